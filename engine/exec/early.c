/* SPDX-License-Identifier: Apache-2.0
 * Passes that begin early.  On a GPU whose program moves nothing a pass takes some milliseconds,
 * and if the host read the tokens of one before it issued the next, the GPU would stand still that
 * long: a copy home, the wake of a thread, TURN, and the way back.  So TURN runs as soon as HEAD is
 * in the stream.  Lengths are known without tokens: a sequence that has all it may have leaves its
 * seat at once, and takes its last token later; every other goes on, and EMBED finds its token on
 * the device (struct aq_embed, chosen).  If the token then ends it, the row that was computed for
 * it is not looked at, and the seat is free one pass later.
 *
 * HEAD of a pass is issued when that of the pass before has answered, so that all that is chosen
 * by depends on tokens that the host knows.  Whether a micro-batch turns early follows from its
 * rows alone, and a token that ends its sequence frees the seat a pass later even if it came in
 * time: who sits beside whom does not depend on the clock.  Tokens are the same bits.  SGLang and
 * vLLM do the like in their schedulers ("overlap", "async scheduling"). */
#include "engine/exec/exec.h"

#include <assert.h>
#include <stdlib.h>

/* All that TURN changes is ordered by one stream then, but for tables of pages. */
static bool is_still(const struct aq_executor *x)
{
    for (uint32_t i = 0; i < x->program->op_count; i++) {
        enum aq_lane l = (enum aq_lane)x->program->op[i].lane;
        if (l != AQ_LANE_COMPUTE && l != AQ_LANE_CONTROL)
            return false;
    }
    return true;
}

int exec_early_open(struct aq_executor *x, struct aq_err *reterr)
{
    const struct aq_block_shape *s = &x->plan->shape;
    /* A trace shows passes one after the other. */
    x->early.allowed = x->bundles && !x->opts.replay && is_still(x);
    if (!x->early.allowed)
        return 0;
    x->early.head = calloc(s->micro_batches, sizeof(*x->early.head));
    x->early.row = calloc((size_t)s->micro_batches * s->micro_batch, sizeof(*x->early.row));
    if (!x->early.head || !x->early.row)
        return aq_error_memory(reterr, "executor of %u seats", s->micro_batches * s->micro_batch);
    for (uint32_t k = 0; k < s->micro_batches; k++) {
        x->batch[k].reads = EXEC_NO_OP;
        x->batch[k].early = x->early.row + (size_t)k * s->micro_batch;
    }
    for (uint32_t i = 0; i < x->program->op_count; i++) {
        if (x->program->op[i].kind == AQ_OP_HEAD)
            x->early.head[x->program->op[i].micro_batch] = i;
    }
    return 0;
}

void exec_early_close(struct aq_executor *x)
{
    free(x->early.head);
    free(x->early.row);
}

/* ---- turns ---- */

/* HEAD is in the stream, and has not answered. */
static bool is_asked(const struct aq_executor *x, uint32_t k)
{
    uint32_t head = x->early.head[k];
    return x->issued[head] == x->pass + 1 && x->done[head] == x->pass;
}

/* The row chooses the next token of a sequence, and that is all that it answers. */
static bool only_chooses(const struct aq_executor *x, const struct exec_logit_row *row)
{
    const struct aq_sequence *s = x->seat[row->seat].sequence;
    return row->prompt_index < 0 && s->max_tokens > 0 && s->token_count >= s->given_count;
}

void exec_early_asks(struct aq_executor *x, uint32_t k, const struct exec_round *round)
{
    struct exec_batch *b = &x->batch[k];
    b->asks =
        x->early.allowed && !round->on_host && round->first == 0 && round->rows == b->logit_count;
    for (uint32_t i = 0; b->asks && i < b->logit_count; i++)
        b->asks = only_chooses(x, &b->logit_row[i]);
}

bool exec_early_may_turn(const struct aq_executor *x, uint32_t k)
{
    const struct exec_batch *b = &x->batch[k];
    return b->asks && is_asked(x, k) && !b->early_count && b->reads == EXEC_NO_OP;
}

void exec_early_begin_turn(struct aq_executor *x, uint32_t k)
{
    struct exec_batch *b = &x->batch[k];
    x->early.turning = b->asks;
    if (!b->asks || !is_asked(x, k))
        return;
    for (uint32_t i = 0; i < b->logit_count; i++) {
        uint32_t at = b->logit_row[i].seat;
        struct exec_seat *seat = &x->seat[at];
        bool ended = seat->over != AQ_FINISH_NONE;
        assert(i < x->plan->shape.micro_batch && seat->sequence->seat == (int32_t)at);
        b->early[i] = ended ? NULL : seat->sequence;
        seat->asked = !ended;
    }
    b->early_count = b->logit_count;
}

void exec_early_end_turn(struct aq_executor *x, uint32_t k)
{
    x->early.turning = x->batch[k].asks = false;
}

/* ---- tables of pages ---- */

void exec_early_changed(struct aq_executor *x, const void *at)
{
    size_t runs = aq_kv_kinds_runs(&x->plan->kinds), each = x->plan->shape.micro_batch;
    size_t run = (size_t)((uint8_t *const *)at - aq_kv_tables(x->kv));
    x->batch[run / runs / each].changed = true;
}

void exec_early_sent(struct aq_executor *x, uint32_t op, bool all)
{
    for (uint32_t k = 0; x->early.allowed && k < x->plan->shape.micro_batches; k++) {
        struct exec_batch *b = &x->batch[k];
        b->reads = all || b->changed ? op : b->reads;
        b->changed = false;
    }
}

void exec_early_over(struct aq_executor *x, uint32_t op)
{
    for (uint32_t k = 0; x->early.allowed && k < x->plan->shape.micro_batches; k++) {
        struct exec_batch *b = &x->batch[k];
        b->reads = b->reads == op ? EXEC_NO_OP : b->reads;
    }
}
