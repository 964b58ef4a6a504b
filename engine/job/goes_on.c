/* SPDX-License-Identifier: Apache-2.0
 * Records that were in flight when an earlier run ended go on from the tokens that they had, which
 * FILE.inflight keeps; and those of this run are kept for the next one. */
#include "engine/job/job.h"

#include <inttypes.h>

/* Entries of rows that have a result, or are not of this input any more, are of no use; but those
 * of records beyond a limit are not known to this run. */
static void want_rows(struct aq_job *j)
{
    for (uint64_t i = 0; i < j->row_count; i++) {
        const struct aq_row *row = &j->rows[i];
        aq_inflight_want(j->begun.file, row->id_hash, row->key, !row->done && !row->code);
    }
    if (j->o->limit)
        aq_inflight_keep_unknown(j->begun.file);
    j->begun.count = aq_inflight_wanted(j->begun.file);
}

int aq_job_find_inflight(struct aq_job *j, struct aq_err *reterr)
{
    struct aq_err err;
    if (!j->inflight)
        return 0;
    int rc = aq_job_values_hash(j, &j->begun.values, reterr);
    if (rc < 0 || j->o->overwrite)
        return rc;
    rc = aq_inflight_open(&j->begun.file, j->inflight, j->begun.values, &err);
    if (rc == -ENOMEM)
        return aq_error(reterr, rc, "%s", err.text);
    if (rc < 0 && rc != -ENOENT)
        aq_job_note(j, AQUIFER_WARNING,
                    "resume: %s; records that were in flight begin again, and their tokens will be "
                    "the same as without the stop",
                    err.text);
    if (rc < 0)
        return 0;
    want_rows(j);
    if (j->begun.count.records)
        aq_job_note(
            j, AQUIFER_INFO,
            "resume: %" PRIu64 " %s on from %" PRIu64 " tokens, which '%s' has kept",
            j->begun.count.records,
            aq_job_plural(j->begun.count.records, "record in flight goes", "records in flight go"),
            j->begun.count.tokens, j->inflight);
    return 0;
}

uint64_t aq_job_take_inflight(struct aq_job *j, const struct aq_request *r, struct aq_buf *state)
{
    aq_buf_clear(state);
    return j->begun.file ? aq_inflight_take(j->begun.file, r->id_hash, r->key, state) : 0;
}

struct aq_inflight_count aq_job_keep_inflight(const struct aq_job *j, bool over)
{
    struct aq_inflight_count count = {0};
    struct aq_err err;
    if (!j->inflight)
        return count;
    if (over && (!j->begun.file || aq_inflight_is_used_up(j->begun.file))) {
        aq_inflight_remove(j->inflight);
        return count;
    }
    if (aq_inflight_write(j->inflight, j->begun.values, &j->flight, j->begun.file, &count, &err) <
        0)
        aq_log_line(&j->log, AQ_LOG_WARNING,
                    "%s: the tokens of %" PRIu64 " records in flight are not kept", err.text,
                    j->flight.count);
    return count;
}
