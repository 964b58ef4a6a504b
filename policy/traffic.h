/* SPDX-License-Identifier: Apache-2.0
 * policy/traffic.h - the bytes of a sequence's KV that a pass moves, in one layer: one function for
 * the executor, which lists the moves, and for ledger, forecast and planner, which count bytes.
 *
 * A run is 32 slots of all KV heads.  A sequence on disk has its full runs on disk, and the last
 * run, its tail, in host memory.  Where slots are overwritten, new rows join a delta of one run,
 * which is written back with all full runs once it is full.  Where each head has a rule
 * (kv_profile.h) all new rows do, since a run of growth counts as full once a head without a partly
 * filled head-block of the prompt has filled it.  With a residual (kv_residual.h) the runs of codes
 * are on disk, and there is no tail.
 *
 * Runs that sequences of a part share (policy/seats.h) are brought to the stage by the lowest of
 * their seats in the pass, and written by the seat that computed them.  Pure. */
#ifndef AQ_POLICY_TRAFFIC_H
#define AQ_POLICY_TRAFFIC_H

#include "policy/seats.h"

/* Runs [first, end). */
struct aq_runs {
    uint32_t first, end;
};

/* Of one (sequence, layer) in a pass. */
struct aq_kv_traffic {
    uint32_t whole;       /* full runs before the pass; with a prompt, or of codes: after it */
    uint32_t left;        /* of these those that are left once many slots are dropped; else all */
    struct aq_runs read;  /* disk -> stage */
    struct aq_runs write; /* stage -> disk, or the tail, which has become full -> disk */
    bool write_tail;
    struct aq_runs load; /* host -> device: runs; and the delta */
    bool load_delta;
    struct aq_runs store; /* device -> host: runs; */
    bool store_key;       /* the rows of the new key; */
    bool store_victims;   /* the slots that the next keys take; */
    bool store_slots;     /* scores, positions and victims of all slots; */
    bool store_delta;     /* the delta */
};
/* In a layer of kind number `kind`. */
void aq_kv_traffic_of(struct aq_kv_traffic *ret, const struct aq_plan *plan,
                      const struct aq_part *part, const struct aq_seat *seat, uint32_t kind);

/* Does the seat's new row join its delta (unless the delta is written back in this pass)? */
bool aq_kv_uses_delta(const struct aq_part *part, const struct aq_seat_kv *kv);
/* Adds the bytes of these moves to read_bytes, write_bytes, load_bytes and store_bytes. */
void aq_kv_traffic_add(struct aq_kv_work *io, const struct aq_kv_traffic *t,
                       const struct aq_kv_sizes *sizes);

#endif
