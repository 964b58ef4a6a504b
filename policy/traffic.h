/* SPDX-License-Identifier: Apache-2.0
 * policy/traffic.h - which bytes of a sequence's KV a pass moves, in one layer: told once, for the
 * executor that lists the moves and for everyone who counts their bytes.
 *
 * A run is 32 slots of all KV heads.  A sequence on disk has its whole runs there, and the last
 * one, its tail, in host memory; where its slots are overwritten, rows join a delta of one run that
 * is written back with all whole runs once it is full.  Pure. */
#ifndef AQ_POLICY_TRAFFIC_H
#define AQ_POLICY_TRAFFIC_H

#include "policy/seats.h"

/* Runs [first, end). */
struct aq_runs {
    uint32_t first, end;
};

/* Of one (sequence, layer) in a pass. */
struct aq_kv_traffic {
    uint32_t whole;       /* runs that are whole before the pass; of a prompt, after it */
    struct aq_runs read;  /* disk -> stage */
    struct aq_runs write; /* stage, or the tail where that has become whole -> disk */
    bool write_tail;
    struct aq_runs load; /* host -> device, */
    bool load_delta;
    struct aq_runs store; /* device -> host: whole runs, */
    bool store_key;       /* the rows of the new key, */
    bool store_victims;   /* the slots that are given up next, */
    bool store_slots;     /* all that is remembered of the slots, */
    bool store_delta;
};
void aq_kv_traffic_of(struct aq_kv_traffic *ret, const struct aq_plan *plan,
                      const struct aq_part *part, const struct aq_seat *seat);

/* Does the row of the seat's pass join its delta, unless that is written back? */
bool aq_kv_uses_delta(const struct aq_part *part, const struct aq_seat *seat);
/* Adds them up into read_bytes, write_bytes, load_bytes and store_bytes. */
void aq_kv_traffic_add(struct aq_part_shape *io, const struct aq_kv_traffic *t,
                       const struct aq_kv_sizes *sizes);

#endif
