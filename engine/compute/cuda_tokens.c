/* SPDX-License-Identifier: Apache-2.0
 * From logits to tokens on the device, and home: see cuda_lane.h. */
#include "engine/compute/cuda_desk.h"
#include "engine/compute/sample.h"

#include <string.h>

static void fetch(struct aq_compute_cuda *c, void *to, const void *from, size_t bytes)
{
    if (!desk_failed(c))
        desk_note(c, c->gpu_ops->copy(c->gpu, c->ex.stream, to, from, bytes, AQ_GPU_D2H),
                  "cudaMemcpyAsync");
}

void aq_compute_cuda_fetch(struct aq_compute_cuda *c, const float *logits, uint32_t rows,
                           uint32_t vocab)
{
    struct aq_logits stat = {c->stats, logits, vocab, rows, vocab};
    DESK_LAUNCH(c, logits_stat, &stat);
    fetch(c, c->stats_home, c->stats, rows * sizeof(*c->stats));
    fetch(c, c->logits_home, logits, (size_t)rows * vocab * sizeof(*logits));
}

const struct aq_logits_stat *aq_compute_cuda_stats(const struct aq_compute_cuda *c)
{
    return c->stats_home;
}

float *aq_compute_cuda_logits(const struct aq_compute_cuda *c)
{
    return c->logits_home;
}

/* ---- tokens ---- */

/* Ids that may not come now, and those that penalties look at. */
static uint32_t masked_count(const struct aq_compute_cuda_row *r)
{
    return r->given == AQ_CUDA_CHOOSE ? aq_sample_masked(r->sequence) : 0;
}

static uint32_t seen_count(const struct aq_compute_cuda_row *r)
{
    const struct aq_sequence *s = r->sequence;
    return r->given == AQ_CUDA_CHOOSE && aq_sample_has_penalties(&s->sampling)
               ? s->prompt_count + s->token_count
               : 0;
}

uint64_t aq_compute_cuda_row_bytes(const struct aq_compute_cuda_row *row)
{
    /* Each array on the desk is rounded up to 16: the arrays of a tile, here counted for each of
     * its rows, and the ids, with the logits that were theirs. */
    _Static_assert(sizeof(uint32_t) + sizeof(struct aq_cuda_draw) + sizeof(struct aq_cuda_choice) +
                           AQ_TOP_MAX * sizeof(struct aq_cuda_top) + 4 * 16 <=
                       AQ_GPU_ROW_BYTES,
                   "as the ledger counts");
    uint64_t masked = masked_count(row), seen = seen_count(row);
    assert(row->top_count <= AQ_TOP_MAX);
    return AQ_GPU_ROW_BYTES + aq_align_up(4 * masked, 16) + aq_align_up(4 * seen, 16) +
           aq_align_up(4 * (masked + seen), 16);
}

uint64_t aq_compute_cuda_rows_room(const struct aq_compute_cuda *c)
{
    return c->sizes.desk_bytes;
}

void aq_compute_cuda_expect(struct aq_compute_cuda *c, uint32_t rows, uint32_t tops,
                            struct aq_compute_cuda_answers *ret)
{
    size_t choices = aq_align_up(rows * sizeof(*ret->choice), 16);
    assert(!c->used);
    c->answers_bytes = choices + tops * sizeof(*ret->top);
    c->answers = desk_put(c, c->answers_bytes, &c->answers_there);
    c->sent = c->used; /* it comes home, and does not go there */
    c->choice = (struct aq_cuda_choice *)c->answers_there;
    c->top = (struct aq_cuda_top *)(c->answers_there + choices);
    ret->choice = (const struct aq_cuda_choice *)c->answers;
    ret->top = (const struct aq_cuda_top *)(c->answers + choices);
}

void aq_compute_cuda_answer(struct aq_compute_cuda *c)
{
    fetch(c, c->answers, c->answers_there, c->answers_bytes);
}

static struct aq_cuda_draw draw_of(struct aq_compute_cuda *c, const struct aq_compute_cuda_row *r,
                                   uint32_t vocab)
{
    const struct aq_sequence *s = r->sequence;
    const struct aq_sampling *p = &s->sampling;
    struct aq_cuda_draw d = {
        .given = r->given,
        .id_end = aq_sample_id_end(s, vocab),
        .inverse = p->temperature > 0 ? aq_sample_inverse(p) : 0,
        .reach = aq_sample_reach(p),
        .top_p = p->top_p,
        .top_k = p->top_k,
        .seed = p->seed,
        .counter_low = p->record_hash,
        .counter_high = (uint64_t)p->choice << 32 | s->token_count,
        .repetition_penalty = p->repetition_penalty,
        .presence_penalty = p->presence_penalty,
        .frequency_penalty = p->frequency_penalty,
        .prompt_count = s->prompt_count,
        .seen_count = seen_count(r),
        .masked_count = masked_count(r),
        .tops = c->top,
        .top_count = r->top_count,
        .chosen = r->seat == UINT32_MAX ? NULL : c->chosen + r->seat,
    };
    c->top += r->top_count;
    if (d.masked_count)
        aq_sample_masked_ids(s, desk_put(c, d.masked_count * sizeof(*d.masked), &d.masked));
    if (d.seen_count) {
        uint32_t *ids = desk_put(c, d.seen_count * sizeof(*ids), &d.seen);
        memcpy(ids, s->prompt, s->prompt_count * sizeof(*ids));
        if (s->token_count)
            memcpy(ids + s->prompt_count, s->tokens, s->token_count * sizeof(*ids));
    }
    if (d.masked_count + d.seen_count)
        desk_put(c, (d.masked_count + d.seen_count) * sizeof(*d.before), &d.before);
    return d;
}

void aq_compute_cuda_choose(struct aq_compute_cuda *c, const struct aq_compute_cuda_row *row,
                            uint32_t rows, float *logits, uint32_t vocab)
{
    struct aq_logits stat = {c->stats, logits, vocab, rows, vocab};
    struct aq_cuda_rows r = {.raw = c->stats,
                             .now = c->stats,
                             .choices = c->choice,
                             .logits = logits,
                             .stride = vocab,
                             .rows = rows,
                             .vocab = vocab};
    struct aq_cuda_draw *draw = desk_put(c, rows * sizeof(*draw), &r.draws);
    bool changes = false, tops = false;
    for (uint32_t i = 0; i < rows; i++) {
        draw[i] = draw_of(c, &row[i], vocab);
        changes |= draw[i].before != NULL;
        tops |= draw[i].top_count > 0;
    }
    desk_send(c);
    DESK_LAUNCH(c, logits_stat, &stat);
    if (tops)
        DESK_LAUNCH(c, tops, &r);
    if (changes) {
        DESK_LAUNCH(c, penalise, &r);
        r.now = stat.stat = c->stats_now;
        DESK_LAUNCH(c, logits_stat, &stat);
    }
    DESK_LAUNCH(c, sample, &r);
    c->choice += rows;
}
