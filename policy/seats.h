/* SPDX-License-Identifier: Apache-2.0
 * policy/seats.h - the seats of a block: who sits where, what each holds, and what the coming pass
 * does with it.  One state machine: the executor runs sequences through it, and the forecast runs
 * lengths, so that both see the same passes.  Owns no memory but what it is given; knows nothing of
 * tokens, pages or buffers.  Pure. */
#ifndef AQ_POLICY_SEATS_H
#define AQ_POLICY_SEATS_H

#include "policy/admit.h"
#include "policy/kv_layout.h"
#include "policy/program.h"

/* A place for one sequence; index in the block = micro-batch * seats per micro-batch + place.
 * Numbers are those of the pass that its rows are bound for. */
struct aq_seat {
    bool taken;
    struct aq_kv_limits limits;
    uint32_t prompt, max_new;
    uint32_t rows;         /* in the pass: the prompt's, one, or 0 */
    uint32_t seen;         /* positions after it, kept or not; 0: its prompt is still to come */
    uint32_t last;         /* most positions it may come to see */
    uint32_t before, held; /* slots in use before and after it in every head, or on average */
    /* Runs of a sequence whose heads hold different numbers of slots, as many to the end; 0: they
     * hold the same. */
    uint32_t shared_runs;
    uint32_t delta;      /* on disk: rows that wait to be written before the pass, */
    uint32_t delta_next; /* and after it */
    bool drops;          /* it will lose keys: what its slots hold is remembered */
    bool overwrites;     /* its row takes a slot that is given up */
    bool rewrites;       /* all whole runs go to disk again, with the delta */
};

/* Who wants to sit down. */
struct aq_sitter {
    uint32_t prompt, max_new;
    uint32_t kv_prompt, kv_new; /* whose KV it keeps, where it stands for another; 0: its own */
};

/* The user's side of what happens to seats. */
struct aq_seats_ops {
    /* The first of those who wait; false: nobody does. */
    bool (*next)(void *user, struct aq_sitter *ret);
    /* They sit in this seat now. */
    void (*sat)(void *user, uint32_t seat);
    /* Has who sits there ended?  If so the seat is free when this returns. */
    bool (*ended)(void *user, uint32_t seat);
    /* The seat's next key, or its prompt, is in the coming pass.  NULL: nothing to do. */
    void (*bound)(void *user, uint32_t seat);
};

struct aq_seats_opts {
    const struct aq_model_steps *steps;
    const struct aq_plan *plan;
    bool refill; /* seats are filled again as they become free; else a whole block at a time */
    const struct aq_seats_ops *ops;
    void *user;
};

struct aq_seats {
    struct aq_seats_opts opts;
    struct aq_kv_sizes sizes;
    struct aq_seat *seat;            /* [count] */
    struct aq_admit_length *lengths; /* [count + 1] workspace of admission */
    uint32_t *prompt_rows;           /* [micro-batches] bound for the coming pass */
    uint32_t count, seated;
    bool filling;   /* without refill: the block is being filled, nobody decodes yet */
    uint64_t steps; /* comparisons that admission has made, at most: the square of those seated for
                       each who asked */
};

/* The arrays, all zero, are the caller's. */
void aq_seats_open(struct aq_seats *s, const struct aq_seats_opts *opts, struct aq_seat *seat,
                   struct aq_admit_length *lengths, uint32_t *prompt_rows);

/* A seat as they would find it. */
struct aq_seat aq_seats_seat(const struct aq_seats *s, const struct aq_sitter *who);

/* Between two passes, a micro-batch at a time, in the order of the program's TURN ops: those who
 * have ended leave, the others step, and who waits sits down. */
void aq_seats_turn(struct aq_seats *s, uint32_t k);
/* After these, and before the first pass: who has come since sits down; without refill a block that
 * takes nobody more starts to decode. */
void aq_seats_begin_pass(struct aq_seats *s);

/* What a seat that is bound adds to what its part does in the pass. */
void aq_seats_count(const struct aq_seats *s, uint32_t seat, struct aq_part_shape *io);

uint32_t aq_seats_part(const struct aq_plan *plan, uint32_t seat);

#endif
