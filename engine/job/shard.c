/* SPDX-License-Identifier: Apache-2.0
 * A run of one shard: what it must be told so that all shards ask the same of their records, and
 * FILE.records, which says which records are its own. */
#include "engine/job/job.h"

#include "engine/job/roster.h"

/* A template's present time is part of the prompts, so records would have other keys, and be other
 * shards', in each run that begins at another time. */
int aq_job_check_shard(const struct aq_job *j, struct aq_err *reterr)
{
    const char *time =
        j->shard.count && j->g.chat && !j->o->chat_time ? aq_chat_time(j->g.chat) : NULL;
    return time ? aq_error(reterr, -EINVAL,
                           "--shard: the model's chat template asks for the present time, and "
                           "shards begin at different times: expected --chat-time, the same for "
                           "all shards, such as --chat-time %s",
                           time)
                : 0;
}

int aq_job_write_roster(const struct aq_job *j, struct aq_err *reterr)
{
    struct aq_roster_writer *w;
    struct aq_roster_head head = {
        .shard = j->shard, .input_hash = aq_input_hash(j->input), .total = j->whole.records};
    if (!j->shard.count || !j->roster)
        return 0;
    int rc = aq_roster_begin(&w, j->roster, &head, reterr);
    if (rc < 0)
        return rc;
    for (uint64_t i = 0; rc == 0 && i < j->row_count; i++) {
        const struct aq_row *row = &j->rows[i];
        struct aq_roster_record r = {row->id_hash, row->key, row->index, row->line};
        rc = aq_roster_put(w, &r, row->has_id, reterr);
    }
    return aq_roster_end(w, rc, reterr);
}
