/* SPDX-License-Identifier: Apache-2.0
 * Passes that begin early.  On a GPU whose program moves nothing a pass takes some milliseconds,
 * and if the host read the tokens of one before it issued the next, the GPU would stand still that
 * long: a copy home, the wake of a thread, TURN, and the way back.  So TURN runs as soon as HEAD is
 * in the stream.  Lengths are known without tokens: a sequence that has all it may have leaves its
 * seat at once, and takes its last token later; every other goes on, and EMBED finds its token on
 * the device (struct aq_embed, chosen).  If the token then ends it, the row that was computed for
 * it is not looked at, and the seat is free one pass later.
 *
 * HEAD of a pass is issued when that of the pass before has answered, so that all that is chosen by
 * depends on tokens that the host knows.  Tokens are the same bits.  SGLang and vLLM do the like in
 * their schedulers ("overlap", "async scheduling"). */
#include "engine/exec/exec.h"

#include <assert.h>
#include <stdlib.h>

/* All that TURN changes is ordered by one stream then, but for tables of pages (tables_op). */
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
    x->tables_op = EXEC_NO_OP;
    /* A trace shows passes one after the other. */
    x->early.allowed = x->bundles && !x->opts.replay && is_still(x);
    if (!x->early.allowed)
        return 0;
    x->early.head = calloc(s->micro_batches, sizeof(*x->early.head));
    x->early.row = calloc((size_t)s->micro_batches * s->micro_batch, sizeof(*x->early.row));
    if (!x->early.head || !x->early.row)
        return aq_error_memory(reterr, "executor of %u seats", s->micro_batches * s->micro_batch);
    for (uint32_t k = 0; k < s->micro_batches; k++)
        x->batch[k].early = x->early.row + (size_t)k * s->micro_batch;
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

bool exec_early_may_turn(const struct aq_executor *x, uint32_t k)
{
    const struct exec_batch *b = &x->batch[k];
    if (!x->early.allowed || !is_asked(x, k) || x->job[x->early.head[k]].round.holds ||
        b->early_count || x->tables_op != EXEC_NO_OP)
        return false;
    for (uint32_t i = 0; i < b->logit_count; i++) {
        if (!only_chooses(x, &b->logit_row[i]))
            return false;
    }
    return true;
}

void exec_early_begin_turn(struct aq_executor *x, uint32_t k)
{
    struct exec_batch *b = &x->batch[k];
    if (!x->early.allowed || !is_asked(x, k))
        return;
    for (uint32_t i = 0; i < b->logit_count; i++) {
        uint32_t at = b->logit_row[i].seat;
        struct exec_seat *seat = &x->seat[at];
        struct aq_sequence *s = seat->sequence;
        bool ended = seat->over != AQ_FINISH_NONE;
        assert(i < x->plan->shape.micro_batch && s->seat == (int32_t)at);
        b->early[i] = ended ? NULL : s;
        seat->asked = !ended;
    }
    b->early_count = b->logit_count;
}

bool exec_early_leaves(const struct exec_seat *seat)
{
    return seat->asked && seat->sequence->token_count + 1 >= seat->sequence->max_tokens;
}
