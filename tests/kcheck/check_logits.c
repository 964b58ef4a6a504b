/* SPDX-License-Identifier: Apache-2.0
 * Statistics of logits: maximum, its place and the bad ones exactly, the log of the sum within its
 * roundings; a row alone, split among workers or in a batch gives the same bits.  Weights of a
 * draw: the reference's bits, near to exp() in f64. */
#include "tests/kcheck/kcheck.h"

#include <float.h>
#include <math.h>
#include <string.h>

static const uint32_t vocabs[] = {1, 2, 15, 16, 17, 100, 4095, 4096, 4097, 8200, 50272};

static float *draw_logits(struct kc *kc, enum kc_fill fill, uint32_t rows, uint32_t vocab,
                          size_t stride)
{
    float *x = kc_in(kc, AQ_F32, fill, rows, vocab, stride);
    for (uint32_t r = 0; r < rows; r++) {
        if (kc_below(kc, 3) == 0) { /* the largest one twice, far apart or not */
            x[r * stride + kc_below(kc, vocab)] = 2000;
            x[r * stride + kc_below(kc, vocab)] = 2000;
        }
        if (fill == KC_NONFINITE && kc_below(kc, 3) == 0) { /* nothing but bad ones */
            for (uint32_t i = 0; i < vocab; i++)
                x[r * stride + i] = i & 1 ? NAN : -INFINITY;
        }
    }
    return x;
}

static void check_one(struct kc *kc, enum kc_fill fill, uint32_t rows, uint32_t vocab)
{
    size_t stride = vocab + kc_below(kc, 5);
    const float *x = draw_logits(kc, fill, rows, vocab, stride);
    struct aq_logits_stat *ref = kc_bytes(kc, rows * sizeof(*ref));
    struct aq_logits_stat *got = kc_bytes(kc, rows * sizeof(*got));
    struct aq_logits_stat *one = kc_bytes(kc, sizeof(*one));
    struct aq_logits l = {ref, x, stride, rows, vocab};
    kc_ref(kc)->logits_stat(kc_exec(kc, 0), &l);
    l.stat = got;
    kc_new(kc)->logits_stat(kc_exec(kc, 1), &l);
    for (uint32_t r = 0; r < rows; r++) {
        kc_expect(kc, got[r].max == ref[r].max && got[r].argmax == ref[r].argmax,
                  "row %u: largest is %g at %u, expected %g at %u", r, got[r].max, got[r].argmax,
                  ref[r].max, ref[r].argmax);
        kc_expect(kc, got[r].bad_count == ref[r].bad_count, "row %u: %u bad, expected %u", r,
                  got[r].bad_count, ref[r].bad_count);
        /* f32 sums of at most 4096 / 8 positive terms a lane, 2^-24 each: 3e-5 if all round alike,
         * plus exp's error; then the result is rounded. */
        double limit = 4e-5 + 0x1p-23 * fabs(ref[r].log_sum_exp);
        kc_expect(kc,
                  got[r].log_sum_exp == ref[r].log_sum_exp ||
                      fabs((double)got[r].log_sum_exp - ref[r].log_sum_exp) <= limit,
                  "row %u: log of the sum is %.9g, expected %.9g", r, got[r].log_sum_exp,
                  ref[r].log_sum_exp);
        for (uint32_t threads = 1; threads <= 3; threads++) {
            kc_new(kc)->logits_stat(kc_exec(kc, threads),
                                    &(struct aq_logits){one, x + r * stride, stride, 1, vocab});
            kc_expect(kc, memcmp(one, &got[r], sizeof(*one)) == 0,
                      "row %u alone with %u threads has other bits", r, threads);
        }
    }
    for (uint32_t threads = 2; threads <= 3; threads++) {
        struct aq_logits_stat *again = kc_bytes(kc, rows * sizeof(*again));
        l.stat = again;
        kc_new(kc)->logits_stat(kc_exec(kc, threads), &l);
        kc_expect(kc, memcmp(again, got, rows * sizeof(*got)) == 0, "other bits with %u threads",
                  threads);
    }
}

static void check_weights(struct kc *kc, enum kc_fill fill, uint32_t vocab)
{
    static const float inverse[] = {1, 0.01f, 1.4285715f, 100, FLT_MAX};
    static const float reach[] = {0, 0.01f, 3, INFINITY};
    float by = inverse[kc_below(kc, AQ_ARRAY_LEN(inverse))], best = -INFINITY;
    float *x = kc_in(kc, AQ_F32, fill, 1, vocab, vocab);
    float *want = kc_bytes(kc, vocab * sizeof(*want)), *got = kc_bytes(kc, vocab * sizeof(*got));
    for (uint32_t i = 0; i < vocab; i++) {
        x[i] = !isfinite(x[i]) || kc_below(kc, 16) == 0 ? -INFINITY : x[i];
        best = fmaxf(best, x[i]);
    }
    best = best > -INFINITY ? best : 0;
    struct aq_candidates c = {.logits = x,
                              .count = vocab,
                              .best = best,
                              .inverse = by,
                              .reach = reach[kc_below(kc, AQ_ARRAY_LEN(reach))],
                              .unit = aq_weight_unit(vocab)};
    c.weight = want;
    uint64_t sum = kc_ref(kc)->weigh(&c);
    c.weight = got;
    kc_expect(kc, kc_new(kc)->weigh(&c) == sum, "another sum than the reference's");
    kc_expect(kc, memcmp(got, want, vocab * sizeof(*want)) == 0, "other bits than the reference's");
    uint64_t exact_sum = 0;
    for (uint32_t i = 0; i < vocab; i++) {
        double far = (double)((best - x[i]) * by), exact = exp(-far);
        kc_expect(kc, fabs(want[i] - exact) <= 0x1p-23 * exact + 0x1p-125,
                  "weight %u is %.9g, expected %.9g", i, want[i], exact);
        exact_sum += far <= c.reach ? (uint64_t)(want[i] * c.unit) : 0;
    }
    kc_expect(kc, sum == exact_sum, "the sum is %llu units, expected %llu", (unsigned long long)sum,
              (unsigned long long)exact_sum);
    c.weight = x; /* in place */
    kc_expect(kc, kc_new(kc)->weigh(&c) == sum, "another sum in place");
    kc_expect(kc, memcmp(x, want, vocab * sizeof(*want)) == 0, "other bits in place");
}

static void check_between(struct kc *kc, enum kc_fill fill, uint32_t count)
{
    float *x = kc_in(kc, AQ_F32, fill, 1, count, count);
    float a = x[kc_below(kc, count)], b = x[kc_below(kc, count)]; /* borders belong to it */
    float least = fminf(a, b), most = fmaxf(a, b);
    uint32_t *want = kc_bytes(kc, count * sizeof(*want)), *got = kc_bytes(kc, count * sizeof(*got));
    uint32_t found = kc_ref(kc)->weights_between(want, x, count, least, most), n = 0;
    kc_expect(kc, kc_new(kc)->weights_between(got, x, count, least, most) == found,
              "another number than the reference's");
    kc_expect(kc, memcmp(got, want, found * sizeof(*want)) == 0, "other ids");
    for (uint32_t i = 0; i < count; i++) {
        bool in = least <= x[i] && x[i] <= most;
        kc_expect(kc, !in || (n < found && want[n] == i), "%u is left out", i);
        n += in;
    }
    kc_expect(kc, n == found, "%u ids, expected %u", found, n);
}

static void check(struct kc *kc)
{
    for (size_t i = 0; i < AQ_ARRAY_LEN(vocabs); i++) {
        for (uint32_t fill = 0; fill <= KC_NONFINITE; fill++) {
            if (!kc_begin(kc, KC_SLOT(logits_stat), "logits_stat_%u_%s", vocabs[i],
                          kc_fill_name(fill)))
                continue;
            uint32_t rows = vocabs[i] > 10000 ? 2 + kc_below(kc, 2) : 1 + kc_below(kc, 40);
            check_one(kc, fill, rows, vocabs[i]);
        }
    }
    for (size_t i = 0; kc_new(kc)->weigh && i < AQ_ARRAY_LEN(vocabs); i++) {
        for (uint32_t fill = 0; fill <= KC_NONFINITE; fill++) {
            if (kc_begin(kc, KC_SLOT(weigh), "weigh_%u_%s", vocabs[i], kc_fill_name(fill)))
                check_weights(kc, fill, vocabs[i]);
            if (fill < KC_NONFINITE && kc_begin(kc, KC_SLOT(weights_between), "between_%u_%s",
                                                vocabs[i], kc_fill_name(fill)))
                check_between(kc, fill, vocabs[i]);
        }
    }
}

const struct kc_check kc_check_logits = {.name = "logits", .check = check};
