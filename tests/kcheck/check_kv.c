/* SPDX-License-Identifier: Apache-2.0
 * KV append and the encoding of KIVI's blocks: every bit of every block is that of the reference,
 * also where nothing was stored. */
#include "kernels/cpu/attn.h"
#include "kernels/cpu/kv.h"
#include "tests/kcheck/kc_attn.h"

#include <math.h>
#include <string.h>

static const enum aq_dtype kv_dtypes[] = {AQ_F32, AQ_F16, AQ_BF16, AQ_Q8, AQ_Q4};

static void check_one(struct kc *kc, const struct kc_attn_shape *shape, enum kc_fill fill)
{
    struct kc_attn t;
    kc_attn_make(kc, &t, shape);
    uint32_t cols = shape->kv_heads * shape->head_dim;
    size_t stride = cols + kc_below(kc, 5);
    t.a.k_new = kc_in(kc, AQ_F32, fill, t.rows, cols, stride);
    t.a.v_new = kc_in(kc, AQ_F32, fill, t.rows, cols, stride);
    t.a.new_stride = stride;
    uint8_t *before = kc_bytes(kc, t.pool_bytes), *ref = kc_bytes(kc, t.pool_bytes);
    memcpy(before, t.pool, t.pool_bytes);
    t.a.q = NULL;
    kc_ref(kc)->kv_append(kc_exec(kc, 0), &t.a);
    memcpy(ref, t.pool, t.pool_bytes);
    for (uint32_t threads = 1; threads <= 3; threads++) {
        memcpy(t.pool, before, t.pool_bytes);
        kc_new(kc)->kv_append(kc_exec(kc, threads), &t.a);
        for (size_t i = 0; i < t.pool_bytes; i++) {
            if (!kc_expect(kc, t.pool[i] == ref[i],
                           "byte %zu of the blocks is 0x%02x, expected 0x%02x (%u threads)", i,
                           t.pool[i], ref[i], threads))
                break;
        }
    }
}

/* Rows [32] of K and of V for each head of each run, in f16. */
static void check_encode(struct kc *kc, enum aq_dtype dtype, uint32_t dim, enum kc_fill fill)
{
    enum { RUNS = 3 };
    uint32_t heads = 1 + kc_below(kc, 3);
    size_t from_bytes = heads * aq_kv_block_bytes(AQ_F16, dim);
    size_t to_bytes = heads * aq_kv_block_bytes(dtype, dim);
    const uint8_t *from = kc_in(kc, AQ_F16, fill, RUNS * heads * AQ_KV_ROWS, dim, dim);
    uint8_t *ref = kc_bytes(kc, RUNS * to_bytes), *got = kc_bytes(kc, RUNS * to_bytes);
    struct aq_kv_encode run[RUNS];
    struct aq_kv_encodes e = {run, RUNS, dtype, heads, dim};
    for (uint32_t threads = 0; threads <= 3; threads++) {
        for (uint32_t i = 0; i < RUNS; i++)
            run[i] = (struct aq_kv_encode){from + i * from_bytes,
                                           (threads ? got : ref) + (RUNS - 1 - i) * to_bytes};
        if (threads)
            memset(got, 0xff, RUNS * to_bytes);
        (threads ? kc_new(kc) : kc_ref(kc))->kv_encode(kc_exec(kc, threads), &e);
        for (size_t i = 0; i < RUNS * to_bytes && threads; i++) {
            if (!kc_expect(kc, got[i] == ref[i],
                           "byte %zu of the codes is 0x%02x, expected 0x%02x (%u threads)", i,
                           got[i], ref[i], threads))
                break;
        }
    }
}

static void check_encodes(struct kc *kc)
{
    static const uint32_t dims[] = {64, 128, 80, 1, 7, 24, 33, 256};
    for (size_t i = 0; i < AQ_ARRAY_LEN(dims); i++) {
        for (int t = AQ_KIVI4; t <= AQ_KIVI2; t++) {
            for (uint32_t fill = 0; fill <= KC_NONFINITE; fill++) {
                if (kc_begin(kc, KC_SLOT(kv_encode), "kv_encode_%s_d%u_%s",
                             aq_dtype_name((enum aq_dtype)t), dims[i], kc_fill_name(fill)))
                    check_encode(kc, (enum aq_dtype)t, dims[i], fill);
            }
        }
    }
}

static void check(struct kc *kc)
{
    static const uint32_t dims[] = {64, 128, 80, 1, 7, 24, 33};
    if (kc_new(kc)->kv_encode)
        check_encodes(kc);
    for (size_t i = 0; i < AQ_ARRAY_LEN(dims); i++) {
        for (size_t d = 0; d < AQ_ARRAY_LEN(kv_dtypes); d++) {
            for (uint32_t fill = 0; fill <= KC_NONFINITE; fill++) {
                if (!kc_begin(kc, KC_SLOT(kv_append), "kv_append_%s_d%u_%s",
                              aq_dtype_name(kv_dtypes[d]), dims[i], kc_fill_name(fill)))
                    continue;
                struct kc_attn_shape shape = {.seqs = 1 + kc_below(kc, 5),
                                              .kv_heads = 1 + kc_below(kc, 11),
                                              .q_per_kv = 1,
                                              .head_dim = dims[i],
                                              .kv_dtype = kv_dtypes[d],
                                              .rows_max = 1 + kc_below(kc, 2) * 70,
                                              .len_max = 100,
                                              .ragged = kc_below(kc, 2),
                                              .holds_rows = true};
                check_one(kc, &shape, fill);
            }
        }
    }
}

const struct kc_check kc_check_kv = {.name = "kv", .check = check};
