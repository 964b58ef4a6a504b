/* SPDX-License-Identifier: Apache-2.0
 * engine/exec/attend.h - private to attend.c (ops that attend), attend_prompts.c, attend_rows.c and
 * attend_kv.c: the state of such an op, and who does what of it. */
#ifndef AQ_ENGINE_EXEC_ATTEND_H
#define AQ_ENGINE_EXEC_ATTEND_H

#include "engine/exec/exec.h"

/* The state of an op that attends: a part's prompts, or its decode rows. */
struct exec_attend {
    struct aq_executor *x;
    const struct aq_op *op;
    const struct aq_compute *c;
    struct aq_attn a;        /* of all its sequences */
    struct aq_attn_seq *seq; /* [count] */
    const uint32_t *seat;    /* [count] */
    uint32_t count, layer, kind;
    struct aq_kv_policy policy; /* of the layer */
    /* Of one row of given tokens: its sequence's KV then, and the positions seen with it; NULL:
     * those of the pass. */
    const struct aq_seat_kv *row_kv;
    uint32_t row_seen;
};

static inline const struct aq_seat *exec_seat_of(const struct exec_attend *t, uint32_t i)
{
    return &t->x->seats.seat[t->seat[i]];
}

static inline const struct aq_seat_kv *exec_kv_of(const struct exec_attend *t, uint32_t i)
{
    return t->row_kv ? t->row_kv : &exec_seat_of(t, i)->kv[t->kind];
}

/* Tokens of the op's sequence i, its row's own among them. */
static inline uint32_t exec_seen_of(const struct exec_attend *t, uint32_t i)
{
    return t->row_kv ? t->row_seen : exec_seat_of(t, i)->seen;
}

/* Head-blocks of `slots` slots. */
static inline uint32_t exec_blocks_of(uint32_t slots)
{
    return (uint32_t)aq_div_up(slots, AQ_HEAD_BLOCK_SLOTS);
}

/* Are keys and values codes once they have left the residual? */
static inline bool exec_is_residual(const struct exec_attend *t)
{
    return t->x->plan->kv.residual.tokens > 0;
}

/* ---- attend_kv.c ---- */

/* The rule of rows whose keys get this score, for a seat that drops keys. */
struct aq_attn_rule exec_rule_of(const struct aq_kv_score *score, const struct aq_seat_kv *s);
/* Shows the slots of the op's sequence i to who asked for it (opts.kv_seen). */
void exec_report_slots(const struct exec_attend *t, uint32_t i, const struct aq_attn_seq *seq);

/* The workspace of the op's lane; and moves within the op's memory, of `count` sequences. */
struct exec_moves *exec_moves_of(const struct exec_attend *t);
void exec_run_moves(const struct exec_attend *t, const struct aq_kv_move *moves, uint32_t count);

/* Runs that are to be encoded, some at a time. */
struct exec_encoding {
    const struct exec_attend *t;
    uint32_t count;
    struct aq_kv_encode run[64];
};

void exec_add_encoding(struct exec_encoding *e, const uint8_t *from, uint8_t *to);
void exec_run_encoding(struct exec_encoding *e);

/* ---- attend_prompts.c ---- */

/* The part's prompts. */
void exec_attend_prompts(const struct exec_attend *t);

/* ---- attend_rows.c ---- */

/* The part's decode rows. */
void exec_attend_rows(const struct exec_attend *t);

#endif
