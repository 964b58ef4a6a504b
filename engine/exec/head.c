/* SPDX-License-Identifier: Apache-2.0
 * HEAD: logits, and of them tokens and log-probabilities.
 *
 * On a GPU kernels choose the tokens, and a few bytes per row are copied to the host at the end.
 * Rows whose logits the host needs, and rows that do not fit the op's desk, go in rounds: a round
 * is enqueued when the host has read the answers of the one before, and no other op meanwhile. */
#include "engine/exec/exec.h"

#include <assert.h>

/* Places in a sequence that a row of logits fills: log-probability and alternatives; NULL if not
 * wanted. */
struct place {
    float *logprob;
    struct aq_top *tops;
    uint32_t top_count;
};

static struct place place_of(struct aq_sequence *s, const struct exec_logit_row *row)
{
    uint32_t count = s->top_count > 0 ? (uint32_t)s->top_count : 0;
    bool prompt = row->prompt_index >= 0;
    size_t at = prompt ? row->prompt_index + 1u - s->prompt_from : s->token_count;
    float *logprobs = prompt ? s->prompt_logprob : s->logprobs;
    struct aq_top *tops = count ? prompt ? s->prompt_tops : s->tops : NULL;
    if (!prompt && (s->max_tokens == 0 || s->token_count < s->given_count))
        return (struct place){0};
    return (struct place){logprobs ? logprobs + at : NULL, tops ? tops + at * count : NULL,
                          tops ? count : 0};
}

/* Records in the seat whether the row's logits are bad; returns whether the row chooses a token. */
static bool record_row(struct exec_seat *seat, const struct exec_logit_row *row, uint32_t bad_count)
{
    if (row->prompt_index >= 0) {
        if (bad_count > 0)
            __atomic_store_n(&seat->bad_prompt, true, __ATOMIC_RELAXED);
        return false;
    }
    seat->has_chosen = true;
    seat->bad = bad_count > 0;
    return !seat->bad && seat->sequence->max_tokens > 0;
}

/* ---- on the host ------------------------------------------------------------------------- */

struct choose {
    struct aq_executor *x;
    struct exec_batch *b;
    float *logits; /* of logit row `first` on */
    const struct aq_logits_stat *stat;
    uint32_t first; /* logit row of tile row 0 */
};

/* One row of logits: a prompt token scored, or the next token chosen. */
static void choose_row(void *arg, uint32_t tile, uint32_t worker)
{
    struct choose *c = arg;
    struct aq_executor *x = c->x;
    const struct exec_logit_row *row = &c->b->logit_row[c->first + tile];
    struct exec_seat *seat = &x->seat[row->seat];
    struct aq_sequence *s = seat->sequence;
    uint32_t vocab = x->steps->vocab, id = row->prompt_index + 1u;
    const float *logits = c->logits + (size_t)tile * vocab;
    const struct aq_logits_stat *stat = &c->stat[tile];
    struct place p = place_of(s, row);
    if (seat->over != AQ_FINISH_NONE)
        return;
    bool chooses = record_row(seat, row, stat->bad_count);
    if (!chooses && row->prompt_index < 0)
        return;
    if (chooses && s->on_logits && s->token_count >= s->given_count)
        s->on_logits(s, s->token_count, worker, logits, stat);
    aq_sample_tops(p.tops, p.top_count, logits, stat, vocab);
    struct aq_sample_work work = x->sampler;
    work.id += (size_t)worker * vocab;
    work.weight += (size_t)worker * vocab;
    work.logits += (size_t)worker * vocab;
    if (chooses)
        seat->chosen = aq_sample_token(s, logits, stat, vocab, &work);
    if (p.logprob)
        *p.logprob = logits[chooses ? seat->chosen : s->prompt[id]] - stat->log_sum_exp;
}

static void run_on_host(struct aq_executor *x, const struct aq_op *op)
{
    struct choose c = {.x = x,
                       .b = &x->batch[op->micro_batch],
                       .logits = (float *)exec_slot(x, AQ_SLOT_LOGITS, 0),
                       .stat = x->logits_stat};
    uint32_t tile = x->plan->shape.head_tile_rows, vocab = x->steps->vocab;
    const struct aq_compute *compute = x->opts.compute;
    for (; c.first < c.b->logit_count; c.first += tile) {
        uint32_t rows = (uint32_t)aq_min_u64(tile, c.b->logit_count - c.first);
        exec_logits(x, op, c.first, rows);
        compute->kernels->logits_stat(
            compute->exec, &(struct aq_logits){x->logits_stat, c.logits, vocab, rows, vocab});
        aq_pool_run(x->opts.pool, choose_row, &c, rows);
    }
}

void exec_head_replay(struct aq_executor *x, const struct aq_op *op)
{
    const struct exec_batch *b = &x->batch[op->micro_batch];
    for (uint32_t i = 0; i < b->logit_count; i++) {
        struct exec_seat *seat = &x->seat[b->logit_row[i].seat];
        seat->has_chosen = b->logit_row[i].prompt_index < 0 || seat->has_chosen;
        seat->chosen = 0;
    }
}

/* ---- on a GPU ---------------------------------------------------------------------------- */

static struct aq_compute_cuda_row wanted(const struct aq_executor *x,
                                         const struct exec_logit_row *row)
{
    struct aq_sequence *s = x->seat[row->seat].sequence;
    bool looked_at = x->seat[row->seat].over == AQ_FINISH_NONE;
    struct aq_compute_cuda_row r = {.sequence = s,
                                    .given = AQ_CUDA_CHOOSE,
                                    .top_count = looked_at ? place_of(s, row).top_count : 0,
                                    .seat = row->prompt_index < 0 ? row->seat : UINT32_MAX};
    if (row->prompt_index >= 0)
        r.given = s->prompt[row->prompt_index + 1];
    else if (s->token_count < s->given_count)
        r.given = s->tokens[s->token_count];
    else if (s->forced && s->max_tokens > 0)
        r.given = s->forced[s->token_count];
    return r;
}

/* Depends on nothing but the row, so that its token does not depend on other rows. */
static bool is_for_host(const struct aq_executor *x, const struct exec_logit_row *row)
{
    struct aq_compute_cuda_row r = wanted(x, row);
    return (row->prompt_index < 0 && r.sequence->on_logits) ||
           aq_compute_cuda_row_bytes(&r) > aq_compute_cuda_rows_room(x->opts.cuda);
}

/* The next rows of one kind: for the host at most a tile, else as many as fit the desk. */
static void plan_round(const struct aq_executor *x, const struct exec_batch *b,
                       struct exec_round *round, uint32_t *ret_tops)
{
    uint64_t room = aq_compute_cuda_rows_room(x->opts.cuda), bytes = 0;
    uint32_t left = b->logit_count - round->first;
    round->rows = *ret_tops = 0;
    for (; round->rows < left; round->rows++) {
        const struct exec_logit_row *row = &b->logit_row[round->first + round->rows];
        struct aq_compute_cuda_row r = wanted(x, row);
        bool on_host = is_for_host(x, row);
        bytes += aq_compute_cuda_row_bytes(&r);
        if (round->rows == 0)
            round->on_host = on_host;
        if (round->on_host != on_host ||
            (on_host ? round->rows == x->plan->shape.head_tile_rows : bytes > room))
            return;
        *ret_tops += r.top_count;
    }
}

static void enqueue_round(struct aq_executor *x, const struct aq_op *op, struct exec_round *round,
                          uint32_t tops)
{
    const struct exec_batch *b = &x->batch[op->micro_batch];
    float *logits = (float *)exec_slot(x, AQ_SLOT_LOGITS, 0);
    uint32_t tile = x->plan->shape.head_tile_rows, vocab = x->steps->vocab;
    if (round->on_host) {
        exec_logits(x, op, round->first, round->rows);
        aq_compute_cuda_fetch(x->opts.cuda, logits, round->rows, vocab);
        return;
    }
    aq_compute_cuda_expect(x->opts.cuda, round->rows, tops, &round->answers);
    for (uint32_t at = 0; at < round->rows; at += tile) {
        uint32_t rows = (uint32_t)aq_min_u64(tile, round->rows - at);
        struct aq_compute_cuda_row row[AQ_BLOCK_HEAD_TILE_ROWS];
        assert(rows <= AQ_ARRAY_LEN(row));
        for (uint32_t i = 0; i < rows; i++)
            row[i] = wanted(x, &b->logit_row[round->first + at + i]);
        exec_logits(x, op, round->first + at, rows);
        aq_compute_cuda_choose(x->opts.cuda, row, rows, logits, vocab);
    }
    aq_compute_cuda_answer(x->opts.cuda);
}

static void put_answer(const struct place *p, const struct aq_cuda_choice *choice,
                       const struct aq_cuda_top *top, bool counts)
{
    for (uint32_t n = 0; n < p->top_count; n++)
        p->tops[n] = (struct aq_top){top[n].id, top[n].logprob};
    if (p->logprob && counts)
        *p->logprob = choice->logprob;
}

static void take_answers(struct aq_executor *x, const struct exec_batch *b,
                         const struct exec_round *round)
{
    const struct aq_cuda_top *top = round->answers.top;
    for (uint32_t i = 0; i < round->rows; i++) {
        const struct aq_cuda_choice *choice = &round->answers.choice[i];
        const struct exec_logit_row *row = &b->logit_row[round->first + i];
        struct exec_seat *seat = &x->seat[row->seat];
        struct place p = place_of(seat->sequence, row);
        if (seat->over != AQ_FINISH_NONE)
            continue;
        bool chooses = record_row(seat, row, choice->bad_count);
        put_answer(&p, choice, top, chooses || row->prompt_index >= 0);
        if (chooses)
            seat->chosen = choice->token;
        top += p.top_count;
    }
}

/* The same of a micro-batch that has turned: its rows are others now. */
static void take_early_answers(struct aq_executor *x, struct exec_batch *b,
                               const struct exec_round *round)
{
    static const struct exec_logit_row next = {.prompt_index = -1};
    const struct aq_cuda_top *top = round->answers.top;
    uint32_t count = b->early_count;
    assert(round->rows == count);
    b->early_count = 0;
    for (uint32_t i = 0; i < count; i++) {
        const struct aq_cuda_choice *choice = &round->answers.choice[i];
        struct aq_sequence *s = b->early[i];
        if (!s)
            continue;
        struct place p = place_of(s, &next);
        put_answer(&p, choice, top, !choice->bad_count);
        exec_answered(x, s, choice->token, choice->bad_count > 0);
        top += p.top_count;
    }
}

bool exec_head_goes_on(struct aq_executor *x, const struct aq_op *op)
{
    struct exec_batch *b = &x->batch[op->micro_batch];
    struct exec_round *round = &x->job[op - x->program->op].round;
    if (x->opts.replay)
        return false;
    struct choose c = {.x = x,
                       .b = b,
                       .logits = aq_compute_cuda_logits(x->opts.cuda),
                       .stat = aq_compute_cuda_stats(x->opts.cuda),
                       .first = round->first};
    if (b->early_count) {
        take_early_answers(x, b, round);
        return false;
    }
    if (round->on_host)
        aq_pool_run(x->opts.pool, choose_row, &c, round->rows);
    else
        take_answers(x, b, round);
    round->first += round->rows;
    return round->first < b->logit_count;
}

void exec_head(struct aq_executor *x, const struct aq_op *op)
{
    struct exec_round *round = &x->job[op - x->program->op].round;
    uint32_t tops;
    if (!x->opts.cuda) {
        run_on_host(x, op);
        return;
    }
    plan_round(x, &x->batch[op->micro_batch], round, &tops);
    /* There is only one buffer for logits on the host. */
    round->holds =
        round->on_host || round->first + round->rows < x->batch[op->micro_batch].logit_count;
    if (round->first == 0)
        exec_early_asks(x, op->micro_batch, round);
    enqueue_round(x, op, round, tops);
}
