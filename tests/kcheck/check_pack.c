/* SPDX-License-Identifier: Apache-2.0
 * pack_panel: every bit is that of the reference. */
#include "tests/kcheck/kcheck.h"

static const enum aq_dtype dtypes[] = {AQ_F32, AQ_F16, AQ_BF16};                /* of rows */
static const enum aq_dtype formats[] = {AQ_F32, AQ_F16, AQ_BF16, AQ_Q8, AQ_Q4}; /* of panels */
static const uint32_t k_values[] = {1, 2, 15, 16, 17, 31, 33, 64, 127, 512};
static const uint32_t row_counts[] = {1, 7, 16, 33, 63, 64};

static void check_one(struct kc *kc, enum aq_dtype src, enum aq_dtype dst, enum aq_layout layout,
                      uint32_t k)
{
    for (size_t i = 0; i < AQ_ARRAY_LEN(row_counts); i++) {
        uint32_t rows = row_counts[i];
        enum kc_fill fill = (enum kc_fill)kc_below(kc, KC_NONFINITE + 1);
        const void *w = kc_in(kc, src, fill, rows, k, k);
        /* Codes, scales and minima are compared as the bits they are. */
        enum aq_dtype element = aq_dtype_is_quantised(dst) ? AQ_F16 : dst;
        uint32_t elements = (uint32_t)(aq_panel_bytes(dst, k) / aq_dtype_bytes(element));
        struct kc_out out = kc_out(kc, element, 1, elements, elements);
        kc_ref(kc)->pack_panel(out.ref, dst, layout, w, src, rows, k);
        kc_new(kc)->pack_panel(out.got, dst, layout, w, src, rows, k);
        kc_same(kc, &out);
    }
}

static void check(struct kc *kc)
{
    for (size_t s = 0; s < AQ_ARRAY_LEN(dtypes); s++) {
        for (size_t d = 0; d < AQ_ARRAY_LEN(formats); d++) {
            for (uint32_t l = 0; l < AQ_LAYOUT_COUNT; l++) {
                if (aq_dtype_is_quantised(formats[d]) != (l == AQ_LAYOUT_GROUP64))
                    continue;
                for (size_t k = 0; k < AQ_ARRAY_LEN(k_values); k++) {
                    if (kc_begin(kc, KC_SLOT(pack_panel), "pack_%s_%s_%s_k%u",
                                 aq_dtype_name(dtypes[s]), aq_dtype_name(formats[d]),
                                 aq_layout_name(l), k_values[k]))
                        check_one(kc, dtypes[s], formats[d], l, k_values[k]);
                }
            }
        }
    }
}

/* ---- benchmarks ---- */

enum { BENCH_PANELS = 64, BENCH_K = 4096 };

struct bench {
    struct kc *kc;
    enum aq_dtype src, dst;
    const char *cold;
    char *panels;
    size_t rows_bytes; /* of one panel's rows */
    uint64_t copies, copy;
};

static void bench_panel(void *arg, uint32_t tile, uint32_t worker)
{
    struct bench *b = arg;
    const char *src = b->cold + (b->copy * BENCH_PANELS + tile) * b->rows_bytes;
    kc_new(b->kc)->pack_panel(b->panels + tile * aq_panel_bytes(b->dst, BENCH_K), b->dst,
                              aq_layout_cpu(b->dst), src, b->src, AQ_PANEL_ROWS, BENCH_K);
}

static void bench_call(void *arg, uint64_t i)
{
    struct bench *b = arg;
    b->copy = i % b->copies;
    aq_pool_run(aq_exec_pool(kc_exec(b->kc, 0)), bench_panel, b, BENCH_PANELS);
}

static void bench_one(struct kc *kc, enum aq_dtype src, enum aq_dtype dst)
{
    size_t cold_bytes, panel_bytes = aq_panel_bytes(dst, BENCH_K);
    struct bench b = {.kc = kc, .src = src, .dst = dst, .cold = kc_cold(kc, &cold_bytes)};
    b.rows_bytes = (size_t)AQ_PANEL_ROWS * BENCH_K * aq_dtype_bytes(src);
    b.copies = cold_bytes / (b.rows_bytes * BENCH_PANELS);
    b.panels = kc_hot(kc, BENCH_PANELS * panel_bytes);
    kc_bench(kc, &(struct kc_bench){.call = bench_call,
                                    .arg = &b,
                                    .bytes = (double)BENCH_PANELS * (b.rows_bytes + panel_bytes),
                                    .bound = KC_BOUND_READ});
}

static void bench(struct kc *kc)
{
    for (size_t s = 0; s < AQ_ARRAY_LEN(dtypes); s++) {
        for (size_t d = 0; d < AQ_ARRAY_LEN(formats); d++) {
            if (kc_bench_begin(kc, KC_SLOT(pack_panel), "pack_%s_%s", aq_dtype_name(dtypes[s]),
                               aq_dtype_name(formats[d])))
                bench_one(kc, dtypes[s], formats[d]);
        }
    }
}

const struct kc_check kc_check_pack = {.name = "pack", .check = check, .bench = bench};
