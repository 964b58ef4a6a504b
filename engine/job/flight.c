/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/job/flight.h"

#include "engine/records/record_state.h"

#include <inttypes.h>

int aq_flight_submit(struct aq_flight *f, struct aq_engine *e, struct aq_request *r,
                     const struct aq_record_rules *rules, struct aq_buf *state,
                     struct aq_err *reterr)
{
    struct aq_record *rec;
    int rc = aq_record_open(&rec, r, rules, reterr);
    if (rc < 0)
        return rc;
    rec->next = f->first;
    rec->link = &f->first;
    if (rec->next)
        rec->next->link = &rec->next;
    f->first = rec;
    f->count++;
    f->bytes += rec->bytes;
    if (state && state->count && !aq_record_state_take(rec, state->data, state->count))
        aq_buf_clear(state);
    for (uint32_t i = 0; i < rec->choice_count; i++)
        if (!rec->choices[i].ended)
            aq_engine_submit(e, &rec->choices[i].sequence);
    return 0;
}

void aq_flight_know(struct aq_flight *f)
{
    for (struct aq_record *rec = f->first; rec; rec = rec->next)
        aq_record_know(rec);
}

uint64_t aq_flight_seated(const struct aq_flight *f, uint64_t seats)
{
    uint64_t open = 0, records = f->count;
    for (const struct aq_record *rec = f->first; rec; rec = rec->next)
        open += rec->choice_count - rec->finished_count;
    for (const struct aq_record *rec = f->first; rec; rec = rec->next, records--) {
        open -= rec->choice_count - rec->finished_count;
        if (open < seats)
            break;
    }
    return records;
}

struct aq_record *aq_flight_end(struct aq_flight *f, struct aq_sequence *s)
{
    struct aq_record *rec = aq_record_finish(s)->record;
    if (!aq_record_done(rec))
        return NULL;
    *rec->link = rec->next;
    if (rec->next)
        rec->next->link = rec->link;
    f->count--;
    f->bytes -= rec->bytes;
    return rec;
}

void aq_flight_close(struct aq_flight *f)
{
    for (struct aq_record *rec = f->first, *next; rec; rec = next) {
        next = rec->next;
        aq_record_close(rec);
    }
    *f = (struct aq_flight){0};
}

int aq_flight_stuck(const struct aq_flight *f, struct aq_err *reterr)
{
    return aq_error(reterr, -EIO, "the engine stands still with %" PRIu64 " records in flight",
                    f->count);
}
