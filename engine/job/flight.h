/* SPDX-License-Identifier: Apache-2.0
 * engine/job/flight.h - records in flight: submitted to an engine, with sequences that have not all
 * ended.  Shared by jobs over files and sessions. */
#ifndef AQ_ENGINE_JOB_FLIGHT_H
#define AQ_ENGINE_JOB_FLIGHT_H

#include "base/buf.h"
#include "engine/core/engine.h"
#include "engine/records/record.h"

struct aq_flight {
    struct aq_record *first;
    uint64_t count, bytes; /* records, and the memory they hold */
};

/* Takes the request, which must be a good one, also on failure, and submits its sequences.  state:
 * what they go on from (engine/records/record_state.h); emptied if it is no state of this record.
 * NULL or empty: they begin. */
int aq_flight_submit(struct aq_flight *f, struct aq_engine *e, struct aq_request *r,
                     const struct aq_record_rules *rules, struct aq_buf *state,
                     struct aq_err *reterr);
/* Between two passes: notes how far all records have come (aq_record_know). */
void aq_flight_know(struct aq_flight *f);
/* Records that have or take the seats, at most: if those that came first sit first, and KV has room
 * for all seats.  The others wait. */
uint64_t aq_flight_seated(const struct aq_flight *f, uint64_t seats);
/* Counts a sequence as ended.  The record that it makes whole leaves the flight and is the caller's
 * to close; NULL: other sequences of the record have not ended. */
struct aq_record *aq_flight_end(struct aq_flight *f, struct aq_sequence *s);
/* Closes what never came back; after the engine, which may still hold its sequences. */
void aq_flight_close(struct aq_flight *f);

/* -EIO: a pass had nothing to do while records are in flight. */
int aq_flight_stuck(const struct aq_flight *f, struct aq_err *reterr);

#endif
