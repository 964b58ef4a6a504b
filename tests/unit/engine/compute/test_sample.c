/* SPDX-License-Identifier: Apache-2.0 */
#include "base/prng.h"
#include "engine/compute/sample.h"
#include "kernels/exp.h"
#include "tests/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { VOCAB = 600 };

struct rig {
    float logits[VOCAB];
    struct aq_logits_stat stat;
    uint32_t id[VOCAB];
    float weight[VOCAB], copy[VOCAB];
    struct aq_kernels kernels;
    struct aq_sequence s;
    uint32_t tokens[64], prompt[8];
};

static void fill_stat(struct rig *r)
{
    double sum = 0;
    r->stat = (struct aq_logits_stat){.max = r->logits[0]};
    for (uint32_t i = 1; i < VOCAB; i++) {
        if (r->logits[i] > r->stat.max) {
            r->stat.max = r->logits[i];
            r->stat.argmax = i;
        }
    }
    for (uint32_t i = 0; i < VOCAB; i++)
        sum += exp(r->logits[i] - r->stat.max);
    r->stat.log_sum_exp = (float)(r->stat.max + log(sum));
}

static struct rig *open_rig(uint64_t seed)
{
    struct rig *r = calloc(1, sizeof(*r));
    aq_kernels_cpu(&r->kernels, aq_isa_detect());
    for (uint32_t i = 0; i < VOCAB; i++)
        r->logits[i] = roundf(aq_prng_normal(seed, i, 0) * 12) * 0.25f; /* many ties */
    fill_stat(r);
    r->s = (struct aq_sequence){
        .tokens = r->tokens, .prompt = r->prompt, .prompt_count = 8, .max_tokens = 64};
    r->s.sampling =
        (struct aq_sampling){.temperature = 1, .top_p = 1, .repetition_penalty = 1, .seed = seed};
    for (uint32_t i = 0; i < 8; i++)
        r->prompt[i] = 100 + i;
    return r;
}

static uint32_t sample(struct rig *r)
{
    struct aq_sample_work work = {r->id, r->weight, r->copy, &r->kernels};
    float before[VOCAB];
    memcpy(before, r->logits, sizeof(before));
    uint32_t token = aq_sample_token(&r->s, r->logits, &r->stat, VOCAB, &work);
    assert_memory_equal(before, r->logits, sizeof(before));
    return token;
}

static const float *sort_logits;

static int by_logit(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    if (sort_logits[x] != sort_logits[y])
        return sort_logits[x] > sort_logits[y] ? -1 : 1;
    return x < y ? -1 : 1;
}

static void tops_equal_a_full_sort(void **state)
{
    for (uint64_t seed = 1; seed <= 5; seed++) {
        struct rig *r = open_rig(seed);
        uint32_t order[VOCAB];
        struct aq_top tops[AQ_TOP_MAX];
        for (uint32_t i = 0; i < VOCAB; i++)
            order[i] = i;
        sort_logits = r->logits;
        qsort(order, VOCAB, sizeof(*order), by_logit);
        for (uint32_t count = 0; count <= AQ_TOP_MAX; count += 5) {
            aq_sample_tops(tops, count, r->logits, &r->stat, VOCAB);
            for (uint32_t i = 0; i < count; i++) {
                assert_int_equal(tops[i].id, order[i]);
                assert_true(tops[i].logprob == r->logits[order[i]] - r->stat.log_sum_exp);
            }
        }
        free(r);
    }
}

/* The set of tokens that may come out, computed by sorting everything. */
static void allowed_by_sorting(const struct rig *r, bool *allowed)
{
    const struct aq_sampling *p = &r->s.sampling;
    uint32_t order[VOCAB], count = p->top_k ? p->top_k : VOCAB;
    for (uint32_t i = 0; i < VOCAB; i++)
        order[i] = i;
    sort_logits = r->logits;
    qsort(order, VOCAB, sizeof(*order), by_logit);
    double total = 0, sum = 0;
    for (uint32_t i = 0; i < count; i++)
        total += exp((r->logits[order[i]] - r->stat.max) / p->temperature);
    memset(allowed, 0, VOCAB * sizeof(*allowed));
    for (uint32_t i = 0; i < count; i++) {
        double w = exp((r->logits[order[i]] - r->stat.max) / p->temperature);
        if (i > 0 && (sum >= p->top_p * total || w < p->min_p))
            break;
        allowed[order[i]] = true;
        sum += w;
    }
}

static void draws_stay_within_the_truncation(void **state)
{
    static const struct {
        uint32_t k;
        float p, min_p, t;
    } cases[] = {
        {5, 1, 0, 1},    {0, 0.5f, 0, 1},         {0, 0.97f, 0, 2},
        {0, 1, 0.3f, 1}, {40, 0.6f, 0.05f, 0.7f}, {1, 1, 0, 1},
    };
    for (size_t c = 0; c < AQ_ARRAY_LEN(cases); c++) {
        struct rig *r = open_rig(10 + c);
        struct aq_sampling *p = &r->s.sampling;
        p->top_k = cases[c].k;
        p->top_p = cases[c].p;
        p->min_p = cases[c].min_p;
        p->temperature = cases[c].t;
        bool allowed[VOCAB], seen[VOCAB] = {0};
        allowed_by_sorting(r, allowed);
        for (uint32_t i = 0; i < 800; i++) {
            p->record_hash = i;
            uint32_t token = sample(r);
            assert_true(allowed[token]);
            seen[token] = true;
        }
        uint32_t reached = 0, open = 0;
        for (uint32_t i = 0; i < VOCAB; i++) {
            reached += seen[i];
            open += allowed[i];
        }
        assert_true(open == 1 ? reached == 1 : reached > 1);
        free(r);
    }
}

/* The token by the rule as it is written, with everything sorted: the first candidate up to and
 * with which the weights' sum is more than the drawn share of it. */
static uint32_t token_by_sorting(const struct rig *r)
{
    const struct aq_sampling *p = &r->s.sampling;
    bool ordered = p->top_k || p->top_p < 1;
    float inverse = aq_sample_inverse(p), reach = aq_sample_reach(p), unit = aq_weight_unit(VOCAB);
    uint32_t order[VOCAB], count = p->top_k && p->top_k < VOCAB ? p->top_k : VOCAB, kept = 0;
    uint64_t weight[VOCAB], total = 0, sum = 0;
    for (uint32_t i = 0; i < VOCAB; i++)
        order[i] = i;
    sort_logits = r->logits;
    if (ordered)
        qsort(order, VOCAB, sizeof(*order), by_logit);
    for (uint32_t i = 0; i < count; i++) {
        weight[i] = (uint64_t)(aq_exp((r->logits[order[i]] - r->stat.max) * inverse) * unit);
        total += weight[i];
    }
    for (; kept < count && (p->top_p >= 1 || !kept || (double)sum < p->top_p * (double)total);
         kept++)
        sum += weight[kept];
    for (uint32_t i = 0; i < kept; i++) {
        if ((r->stat.max - r->logits[order[i]]) * inverse > reach) {
            sum -= weight[i];
            weight[i] = 0;
        }
    }
    double u = aq_prng_uniform(p->seed, p->record_hash, (uint64_t)p->choice << 32);
    uint64_t limit = (uint64_t)(u * (double)sum), passed = 0;
    for (uint32_t i = 0; i < kept; i++) {
        passed += weight[i];
        if (passed > limit)
            return order[i];
    }
    fail_msg("no candidate is reached");
    return 0;
}

static void fill_logits(struct rig *r, uint32_t fill)
{
    for (uint32_t i = 0; i < VOCAB && fill; i++) {
        float x = aq_prng_normal(99, i, fill);
        r->logits[i] = fill == 1   ? 2.5f      /* one ring */
                       : fill == 2 ? x * 0.01f /* the same, not in order */
                       : fill == 3 ? x * 30    /* few that weigh anything */
                       : i % 7     ? x
                                   : -INFINITY;
    }
    fill_stat(r);
}

static void every_way_to_draw_is_the_rule_to_the_bit(void **state)
{
    static const float top_p[] = {1, 0, 0.25f, 0.9f, 0.9999f};
    static const float min_p[] = {0, 0, 0.02f, 0.3f, 1};
    static const float temperature[] = {1, 0.01f, 0.7f, 3, 100};
    static const uint32_t top_k[] = {0, 0, 1, 5, 100, VOCAB, VOCAB + 5};
    for (uint32_t fill = 0; fill < 5; fill++) {
        struct rig *r = open_rig(4);
        fill_logits(r, fill);
        for (uint64_t i = 0; i < 3000; i++) {
            r->s.sampling = (struct aq_sampling){
                .temperature = temperature[aq_prng_below(1, i, fill, AQ_ARRAY_LEN(temperature))],
                .top_p = top_p[aq_prng_below(2, i, fill, AQ_ARRAY_LEN(top_p))],
                .min_p = min_p[aq_prng_below(3, i, fill, AQ_ARRAY_LEN(min_p))],
                .top_k = top_k[aq_prng_below(4, i, fill, AQ_ARRAY_LEN(top_k))],
                .repetition_penalty = 1,
                .seed = i};
            assert_int_equal(sample(r), token_by_sorting(r));
        }
        free(r);
    }
}

/* Frequencies of 10000 draws against the softmax: each of the 20 likeliest within 5 standard
 * errors. */
static void draws_follow_the_softmax(void **state)
{
    enum { DRAWS = 10000 };
    for (int mode = 0; mode < 3; mode++) { /* whole vocabulary, nucleus, top-k */
        struct rig *r = open_rig(77);
        r->s.sampling.temperature = 0.8f;
        if (mode == 1)
            r->s.sampling.top_p = 0.999999f;
        if (mode == 2)
            r->s.sampling.top_k = VOCAB;
        uint32_t *hits = calloc(VOCAB, sizeof(*hits));
        double total = 0;
        for (uint32_t i = 0; i < VOCAB; i++)
            total += exp((r->logits[i] - r->stat.max) / 0.8);
        for (uint32_t i = 0; i < DRAWS; i++) {
            r->s.sampling.record_hash = i * 977ull;
            hits[sample(r)]++;
        }
        struct aq_top tops[AQ_TOP_MAX];
        aq_sample_tops(tops, AQ_TOP_MAX, r->logits, &r->stat, VOCAB);
        for (uint32_t i = 0; i < AQ_TOP_MAX; i++) {
            double p = exp((r->logits[tops[i].id] - r->stat.max) / 0.8) / total;
            double sd = sqrt(p * (1 - p) / DRAWS);
            assert_true(fabs((double)hits[tops[i].id] / DRAWS - p) < 5 * sd);
        }
        free(hits);
        free(r);
    }
}

static void the_draw_depends_on_its_key_alone(void **state)
{
    struct rig *r = open_rig(5);
    struct aq_sampling *p = &r->s.sampling;
    uint32_t first = sample(r), differ = 0;
    assert_int_equal(sample(r), first);
    for (uint32_t i = 1; i <= 50; i++) {
        *p = (struct aq_sampling){
            .temperature = 1, .top_p = 1, .repetition_penalty = 1, .seed = 5, .choice = i};
        differ += sample(r) != first;
        p->choice = 0;
        r->s.token_count = i;
        differ += sample(r) != first;
        r->s.token_count = 0;
        p->seed = 1000 + i;
        differ += sample(r) != first;
    }
    assert_true(differ > 100); /* the likeliest token comes up again now and then */
    free(r);
}

static void greedy_takes_the_lowest_of_equals(void **state)
{
    struct rig *r = open_rig(3);
    r->s.sampling.temperature = 0;
    r->logits[270] = r->logits[190] = r->logits[550] = 50;
    fill_stat(r);
    assert_int_equal(sample(r), 190);
    r->s.sampling.repetition_penalty = 1.5f; /* goes another way through the code */
    assert_int_equal(sample(r), 190);
    free(r);
}

static void penalties_count_prompt_and_output_as_defined(void **state)
{
    struct rig *r = open_rig(3);
    for (uint32_t i = 0; i < VOCAB; i++)
        r->logits[i] = -100;
    r->s.sampling.temperature = 0;
    r->logits[100] = 9.0f; /* in the prompt */
    r->logits[7] = 8.0f;   /* generated twice */
    r->logits[8] = 7.0f;   /* nowhere */
    r->tokens[0] = r->tokens[1] = 7;
    r->s.token_count = 2;
    fill_stat(r);
    assert_int_equal(sample(r), 100);
    r->s.sampling.repetition_penalty = 1.2f; /* 7.5, 6.67, 7 */
    assert_int_equal(sample(r), 100);
    r->s.sampling.repetition_penalty = 1.35f; /* 6.67, 5.93, 7 */
    assert_int_equal(sample(r), 8);
    r->s.sampling.repetition_penalty = 1.0f;
    r->s.sampling.presence_penalty = 5.0f; /* the prompt does not count: 9, 3, 7 */
    assert_int_equal(sample(r), 100);
    r->logits[100] = -100;
    fill_stat(r);
    assert_int_equal(sample(r), 8);
    r->s.sampling.presence_penalty = 0;
    r->s.sampling.frequency_penalty = 0.4f; /* 8 - 2 * 0.4 = 7.2 */
    assert_int_equal(sample(r), 7);
    r->s.sampling.frequency_penalty = 0.6f; /* 6.8 */
    assert_int_equal(sample(r), 8);
    r->s.sampling.frequency_penalty = 0;
    r->logits[100] = -1; /* a negative logit is multiplied */
    r->logits[7] = r->logits[8] = -1.1f;
    r->s.sampling.repetition_penalty = 1.2f;
    fill_stat(r);
    assert_int_equal(sample(r), 8);
    free(r);
}

static void stop_ids_wait_for_min_tokens(void **state)
{
    struct rig *r = open_rig(3);
    uint32_t stop[] = {42};
    r->s.sampling.temperature = 0;
    r->logits[42] = 60;
    r->logits[43] = 50;
    fill_stat(r);
    r->s.stop_ids = stop;
    r->s.stop_id_count = 1;
    r->s.min_tokens = 2;
    for (r->s.token_count = 0; r->s.token_count < 4; r->s.token_count++)
        assert_int_equal(sample(r), r->s.token_count < 2 ? 43 : 42);
    free(r);
}

static void draw_way(struct aq_sampling *p, uint64_t seed, uint64_t i)
{
    *p = (struct aq_sampling){.temperature = 0.5f + (float)aq_prng_below(seed, i, 1, 3),
                              .top_p = 1,
                              .repetition_penalty = 1,
                              .seed = seed,
                              .record_hash = i};
    switch (aq_prng_below(seed, i, 2, 6)) {
    case 0: p->temperature = 0; break;
    case 1: p->top_k = 5; break;
    case 2: p->top_p = 0.7f; break;
    case 3: p->min_p = 0.1f; break;
    case 4: p->repetition_penalty = 1.3f; break;
    default: break;
    }
}

/* Whatever the way to choose: as if the model had never thought of them. */
static void ids_without_a_token_are_as_good_as_impossible(void **state)
{
    enum { END = 400 };
    static const uint32_t never[] = {7, 120, 121, 390};
    uint32_t differ = 0;
    for (uint64_t seed = 1; seed <= 10; seed++) {
        struct rig *r = open_rig(seed), *small = open_rig(seed);
        for (uint32_t i = 0; i < VOCAB; i++)
            small->logits[i] = i < END ? r->logits[i] : -INFINITY;
        for (size_t i = 0; i < AQ_ARRAY_LEN(never); i++)
            small->logits[never[i]] = -INFINITY;
        fill_stat(small);
        float log_sum_exp = r->stat.log_sum_exp;
        for (uint64_t i = 0; i < 100; i++) {
            draw_way(&r->s.sampling, seed, i);
            small->s.sampling = r->s.sampling;
            r->s.id_end = r->s.never_count = 0;
            uint32_t any = sample(r);
            r->s.id_end = END;
            r->s.never = never;
            r->s.never_count = AQ_ARRAY_LEN(never);
            uint32_t token = sample(r);
            assert_int_equal(token, sample(small));
            differ += token != any;
        }
        struct aq_top top;
        aq_sample_tops(&top, 1, r->logits, &r->stat, VOCAB);
        assert_int_equal(top.id, r->stat.argmax); /* log-probabilities are of all ids */
        assert_true(r->stat.log_sum_exp == log_sum_exp);
        free(small);
        free(r);
    }
    assert_true(differ > 100);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(tops_equal_a_full_sort),
    cmocka_unit_test(draws_stay_within_the_truncation),
    cmocka_unit_test(every_way_to_draw_is_the_rule_to_the_bit),
    cmocka_unit_test(draws_follow_the_softmax),
    cmocka_unit_test(the_draw_depends_on_its_key_alone),
    cmocka_unit_test(greedy_takes_the_lowest_of_equals),
    cmocka_unit_test(penalties_count_prompt_and_output_as_defined),
    cmocka_unit_test(stop_ids_wait_for_min_tokens),
    cmocka_unit_test(ids_without_a_token_are_as_good_as_impossible),
};

AQ_TEST_MAIN(tests)
