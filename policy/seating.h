/* SPDX-License-Identifier: Apache-2.0
 * policy/seating.h - a job played before it is run: the seats of policy/seats.h with lengths in
 * place of sequences.  Gives the work of each pass, not its time.  Pure. */
#ifndef AQ_POLICY_SEATING_H
#define AQ_POLICY_SEATING_H

#include "policy/forecast.h"
#include "policy/seats.h"

struct aq_seating_opts {
    const struct aq_model_steps *steps;
    const struct aq_block *block;
    /* Sequence i of `sequences` has the lengths of length[aq_seating_item(i)]; it shares with
     * another no more than all lengths do that lie between, or that one stands for. */
    const struct aq_length *length;
    uint32_t length_count;
    uint64_t sequences;
    bool refill;
    /* Lengths that are not left out between others come in runs of so many, so that neighbours who
     * share stay neighbours; 0 and 1: they are spread evenly.  A run and more are left out. */
    uint32_t run;
};

/* The length that stands for a sequence. */
uint32_t aq_seating_item(const struct aq_seating_opts *o, uint64_t sequence);

/* At first all sequences wait, in order.  -ENOMEM. */
struct aq_seating;
int aq_seating_open(struct aq_seating **ret, const struct aq_seating_opts *opts,
                    struct aq_err *reterr);
void aq_seating_close(struct aq_seating *s);

/* The numbers of rows of the next pass; false: the job has ended. */
bool aq_seating_next(struct aq_seating *s, uint32_t *ret_prefill, uint32_t *ret_decode);
/* What that pass does: ret[micro_batches], as aq_pass_shapes_new() makes them. */
void aq_seating_shape(const struct aq_seating *s, struct aq_pass_shape *ret);
/* The seats as that pass has them. */
const struct aq_seats *aq_seating_seats(const struct aq_seating *s);
/* Upper bound of the comparisons made so far: for each sequence that asked for a seat, every end
 * with every seated sequence. */
uint64_t aq_seating_steps(const struct aq_seating *s);

#endif
