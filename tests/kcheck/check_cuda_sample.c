/* SPDX-License-Identifier: Apache-2.0
 * Sampling on a device against engine/compute/sample.c: the same tokens and the same
 * log-probabilities. */
#include "engine/compute/sample.h"
#include "tests/kcheck/kc_cuda.h"

#include <math.h>
#include <string.h>

enum { ROWS = 4, IDS = 24 };

static const uint32_t vocabs[] = {300, 1, 31, 5000, 1025};
static const enum kc_fill fills[] = {KC_NORMAL, KC_HEAVY, KC_CONSTANT, KC_ZERO, KC_OUTLIER};

/* What is set of the ways to choose. */
enum { GREEDY, TEMPERATURE, TOP_K, TOP_P, MIN_P, ALL, PENALTIES, MASKED, WAYS };
static const char *const way_names[WAYS] = {"greedy", "temperature", "top_k",     "top_p",
                                            "min_p",  "all",         "penalties", "masked"};

struct rig {
    struct aq_sequence seq[ROWS];
    struct aq_cuda_draw draw[ROWS];
    uint32_t ids[ROWS][IDS], stop[ROWS][IDS], masked[ROWS][IDS];
    float *before, *logits;
    uint32_t *chosen; /* [ROWS], in another order; of the last row nowhere */
    size_t stride;
    uint32_t vocab;
};

static void draw_sampling(struct kc *kc, struct aq_sampling *p, uint32_t way, uint32_t vocab)
{
    static const float top_p[] = {0, 0.25f, 0.5f, 0.9f, 0.999f};
    static const float min_p[] = {0.02f, 0.3f, 0.95f, 1};
    *p = (struct aq_sampling){.top_p = 1, .repetition_penalty = 1};
    p->temperature = way == GREEDY ? 0 : 0.25f + (float)kc_below(kc, 100) * 0.02f;
    p->seed = kc_below(kc, UINT32_MAX);
    p->record_hash = (uint64_t)kc_below(kc, UINT32_MAX) << 32 | kc_below(kc, UINT32_MAX);
    p->choice = kc_below(kc, 3);
    bool some = way >= ALL;
    if (way == TOP_K || (some && kc_below(kc, 2)))
        p->top_k = 1 + kc_below(kc, kc_below(kc, 2) ? 5 : vocab + 2);
    if (way == TOP_P || (some && kc_below(kc, 2)))
        p->top_p = top_p[kc_below(kc, AQ_ARRAY_LEN(top_p))];
    if (way == MIN_P || (some && kc_below(kc, 2)))
        p->min_p = min_p[kc_below(kc, AQ_ARRAY_LEN(min_p))];
    if (way == PENALTIES) {
        p->repetition_penalty = kc_below(kc, 2) ? 1.3f : 1;
        p->presence_penalty = kc_below(kc, 2) ? 0.7f : 0;
        p->frequency_penalty = kc_below(kc, 2) ? 0.2f : 0;
        p->temperature *= (float)kc_below(kc, 2);
    }
}

static void make_row(struct kc *kc, struct rig *x, uint32_t r, uint32_t way)
{
    struct aq_sequence *s = &x->seq[r];
    uint32_t prompt = 1 + kc_below(kc, IDS / 2), generated = kc_below(kc, IDS / 2);
    for (uint32_t i = 0; i < IDS; i++) {
        x->ids[r][i] = kc_below(kc, x->vocab);
        x->stop[r][i] = kc_below(kc, x->vocab + 1); /* one may lie past the vocabulary */
    }
    *s = (struct aq_sequence){.prompt = x->ids[r],
                              .prompt_count = prompt,
                              .tokens = x->ids[r] + prompt,
                              .token_count = generated,
                              .stop_ids = x->stop[r],
                              .min_tokens = IDS,
                              .id_end = kc_below(kc, 2) ? 1 + kc_below(kc, x->vocab) : 0,
                              .never = x->stop[r] + IDS / 2,
                              .never_count = way == MASKED ? IDS / 2 : 0};
    draw_sampling(kc, &s->sampling, way, x->vocab);
    const struct aq_sampling *p = &s->sampling;
    if (way == MASKED)
        s->stop_id_count = kc_below(kc, IDS / 2);
    aq_sample_masked_ids(s, x->masked[r]);
    x->draw[r] = (struct aq_cuda_draw){.given = AQ_CUDA_CHOOSE,
                                       .id_end = aq_sample_id_end(s, x->vocab),
                                       .inverse = p->temperature > 0 ? aq_sample_inverse(p) : 0,
                                       .reach = aq_sample_reach(p),
                                       .top_p = p->top_p,
                                       .top_k = p->top_k,
                                       .seed = p->seed,
                                       .counter_low = p->record_hash,
                                       .counter_high = (uint64_t)p->choice << 32 | generated,
                                       .repetition_penalty = p->repetition_penalty,
                                       .presence_penalty = p->presence_penalty,
                                       .frequency_penalty = p->frequency_penalty,
                                       .seen = x->ids[r],
                                       .prompt_count = prompt,
                                       .seen_count = prompt + generated,
                                       .masked = x->masked[r],
                                       .masked_count = aq_sample_masked(s),
                                       .before = x->before + 2 * IDS * r,
                                       .chosen = r + 1 < ROWS ? &x->chosen[ROWS - 1 - r] : NULL};
    for (uint32_t i = 0; i < x->vocab; i++) { /* some that are impossible */
        if (kc_below(kc, 16) == 0)
            x->logits[r * x->stride + i] = -INFINITY;
    }
}

/* The rows of x in the order they stand, and what their logits were before they were changed. */
struct expected {
    uint32_t token[ROWS];
    float logprob[ROWS];
};

static void check_choices(struct kc *kc, const struct rig *x, const struct aq_cuda_choice *got,
                          const struct aq_logits_stat *raw, const struct expected *want,
                          uint32_t first, uint32_t rows)
{
    for (uint32_t i = 0; i < rows; i++) {
        uint32_t r = first + i;
        const uint32_t *chosen = x->draw[r].chosen;
        kc_expect(kc, !chosen || *chosen == want->token[r], "row %u: it keeps token %u, not %u", r,
                  chosen ? *chosen : 0, want->token[r]);
        kc_expect(kc, got[i].token == want->token[r], "row %u: token %u, expected %u", r,
                  got[i].token, want->token[r]);
        kc_expect(kc, got[i].bad_count == raw[r].bad_count, "row %u: %u bad ones, expected %u", r,
                  got[i].bad_count, raw[r].bad_count);
        kc_expect(kc, memcmp(&got[i].logprob, &want->logprob[r], sizeof(float)) == 0,
                  "row %u: log-probability %g, expected %g", r, got[i].logprob, want->logprob[r]);
    }
}

/* What engine/compute/sample.c takes, and leaves in `adjusted`. */
static void choose_on_host(struct rig *x, const struct aq_logits_stat *raw, float *adjusted,
                           const struct aq_sample_work *work, struct expected *ret)
{
    size_t row_bytes = x->vocab * sizeof(float);
    for (uint32_t r = 0; r < ROWS; r++) {
        const float *row = x->logits + r * x->stride;
        memcpy(work->logits, row, row_bytes);
        ret->token[r] = aq_sample_token(&x->seq[r], row, &raw[r], x->vocab, work);
        memcpy(adjusted + r * x->stride, work->logits, row_bytes); /* what it chose from */
        if (x->draw[r].given != AQ_CUDA_CHOOSE)
            ret->token[r] = x->draw[r].given;
        ret->logprob[r] = row[ret->token[r]] - raw[r].log_sum_exp;
    }
}

static void check_tokens(struct kc *kc, uint32_t vocab, enum kc_fill fill, uint32_t way)
{
    static struct rig x;
    x.vocab = vocab;
    x.stride = vocab + kc_below(kc, 5);
    x.logits = kc_in(kc, AQ_F32, fill, ROWS, vocab, x.stride);
    x.before = kc_bytes(kc, sizeof(float) * 2 * IDS * ROWS);
    x.chosen = kc_bytes(kc, sizeof(*x.chosen) * ROWS);
    struct aq_sample_work work = {kc_bytes(kc, vocab * sizeof(*work.id)),
                                  kc_bytes(kc, vocab * sizeof(*work.weight)),
                                  kc_bytes(kc, vocab * sizeof(*work.logits)), kc_ref(kc)};
    struct aq_cuda_choice *got = kc_bytes(kc, ROWS * sizeof(*got));
    struct aq_logits_stat raw[ROWS], now[ROWS];
    struct expected want;
    for (uint32_t r = 0; r < ROWS; r++)
        make_row(kc, &x, r, way);
    if (way == GREEDY) /* one of them is not to be chosen, but scored */
        x.draw[ROWS - 1].given = kc_below(kc, vocab);
    kc_ref(kc)->logits_stat(kc_exec(kc, 0),
                            &(struct aq_logits){raw, x.logits, x.stride, ROWS, vocab});
    struct kc_out adjusted = kc_out(kc, AQ_F32, ROWS, vocab, x.stride);
    kc_out_set(&adjusted, x.logits);
    choose_on_host(&x, raw, adjusted.ref, &work, &want);
    struct aq_cuda_rows rows = {x.draw, raw, now, got, adjusted.got, x.stride, ROWS, vocab};
    if (way >= PENALTIES)
        kc_cuda_done(kc_cuda_kernels()->penalise(kc_cuda(), &rows));
    kc_same(kc, &adjusted);
    kc_ref(kc)->logits_stat(kc_exec(kc, 0),
                            &(struct aq_logits){now, rows.logits, x.stride, ROWS, vocab});
    kc_cuda_done(kc_cuda_kernels()->sample(kc_cuda(), &rows));
    check_choices(kc, &x, got, raw, &want, 0, ROWS);
    uint32_t r = kc_below(kc, ROWS); /* alone */
    struct aq_cuda_rows one = rows;
    one.draws += r;
    one.raw += r;
    one.now += r;
    one.logits += r * x.stride;
    one.rows = 1;
    kc_cuda_done(kc_cuda_kernels()->sample(kc_cuda(), &one));
    check_choices(kc, &x, got, raw, &want, r, 1);
}

static void check_tops(struct kc *kc, uint32_t vocab, enum kc_fill fill)
{
    size_t stride = vocab + kc_below(kc, 5);
    float *logits = kc_in(kc, AQ_F32, fill, ROWS, vocab, stride);
    struct aq_logits_stat stat[ROWS];
    struct aq_cuda_draw draw[ROWS];
    struct aq_cuda_top *got = kc_bytes(kc, (size_t)ROWS * AQ_TOP_MAX * sizeof(*got));
    for (uint32_t r = 0; r < ROWS; r++) /* the first row wants some, others perhaps none */
        draw[r] = (struct aq_cuda_draw){.tops = got + r * AQ_TOP_MAX,
                                        .top_count = kc_below(kc, AQ_TOP_MAX) + (r == 0)};
    kc_ref(kc)->logits_stat(kc_exec(kc, 0), &(struct aq_logits){stat, logits, stride, ROWS, vocab});
    kc_cuda_done(kc_cuda_kernels()->tops(kc_cuda(), &(struct aq_cuda_rows){.draws = draw,
                                                                           .raw = stat,
                                                                           .logits = logits,
                                                                           .stride = stride,
                                                                           .rows = ROWS,
                                                                           .vocab = vocab}));
    for (uint32_t r = 0; r < ROWS; r++) {
        struct aq_top want[AQ_TOP_MAX] = {{0, 0}};
        aq_sample_tops(want, draw[r].top_count, logits + r * stride, &stat[r], vocab);
        for (uint32_t i = 0; i < AQ_TOP_MAX; i++) { /* those not asked for stay as they were */
            const struct aq_cuda_top *top = &got[r * AQ_TOP_MAX + i];
            kc_expect(kc, top->id == want[i].id && top->logprob == want[i].logprob,
                      "row %u: number %u is %u at %g, expected %u at %g", r, i, top->id,
                      top->logprob, want[i].id, want[i].logprob);
        }
    }
}

static void check(struct kc *kc)
{
    for (size_t v = 0; v < AQ_ARRAY_LEN(vocabs); v++) {
        for (size_t f = 0; f < AQ_ARRAY_LEN(fills); f++) {
            if (v % AQ_ARRAY_LEN(fills) && v % AQ_ARRAY_LEN(fills) != f)
                continue; /* every fill at the first size only, and one at each other */
            for (uint32_t way = 0; way < WAYS; way++) {
                if (kc_begin(kc, KC_CUDA_SLOT, "sample_%s_%u_%s", way_names[way], vocabs[v],
                             kc_fill_name(fills[f])))
                    check_tokens(kc, vocabs[v], fills[f], way);
            }
            if (kc_begin(kc, KC_CUDA_SLOT, "tops_%u_%s", vocabs[v], kc_fill_name(fills[f])))
                check_tops(kc, vocabs[v], fills[f]);
        }
    }
}

const struct kc_check kc_check_cuda_sample = {.name = "cuda-sample", .check = check};
