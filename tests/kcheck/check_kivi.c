/* SPDX-License-Identifier: Apache-2.0
 * What decode attention makes of KIVI's codes beside what the codes make of numbers: kernels may
 * round what they multiply codes by (kernels/cpu/attn_kivi_simd.h), and check_attn's limit is for
 * the worst that such roundings can add up to.  Here it is their variance that counts. */
#include "kernels/cpu/kv.h"
#include "tests/kcheck/kcheck.h"

#include <math.h>
#include <string.h>

enum { BLOCKS = 12, KV_HEADS = 4, KEYS = BLOCKS * AQ_HEAD_BLOCK_SLOTS };

/* Pages of the blocks of all heads, block after block. */
struct pages {
    uint8_t *at[BLOCKS];
    size_t head_bytes;
};

static struct pages pages_of(uint8_t *memory, enum aq_dtype dtype, uint32_t dim)
{
    struct pages pages = {.head_bytes = aq_kv_block_bytes(dtype, dim)};
    for (uint32_t b = 0; b < BLOCKS; b++)
        pages.at[b] = memory + b * KV_HEADS * pages.head_bytes;
    return pages;
}

static void encode(struct kc *kc, struct pages *to, const struct pages *from, enum aq_dtype dtype,
                   uint32_t dim)
{
    struct aq_kv_encode runs[BLOCKS];
    for (uint32_t b = 0; b < BLOCKS; b++)
        runs[b] = (struct aq_kv_encode){from->at[b], to->at[b]};
    kc_ref(kc)->kv_encode(kc_exec(kc, 0),
                          &(struct aq_kv_encodes){runs, BLOCKS, dtype, KV_HEADS, dim});
}

/* out [KV_HEADS * q_per_kv * dim]: of a query that sees all keys. */
static void attend(struct kc *kc, const struct aq_kernels *kernels, struct pages *pages,
                   const struct aq_attn *like, enum aq_dtype dtype, float *out)
{
    uint32_t keys = KEYS;
    struct aq_attn_seq seq = {
        .block = pages->at,
        .head_offset = pages->head_bytes,
        .coded = aq_dtype_is_kivi(dtype) ? BLOCKS : 0,
        .len = &keys,
        .rows = 1,
        .position = KEYS - 1,
    };
    struct aq_attn a = *like;
    a.seqs = &seq;
    a.seq_count = 1;
    a.kv_dtype = dtype;
    a.out = out;
    kernels->attn_decode(kc_exec(kc, 0), &a);
}

static double squares(const float *x, const float *y, uint32_t count)
{
    double sum = 0;
    for (uint32_t i = 0; i < count; i++)
        sum += ((double)x[i] - (double)y[i]) * ((double)x[i] - (double)y[i]);
    return sum;
}

static void check_variance(struct kc *kc, enum aq_dtype dtype, uint32_t q_per_kv, uint32_t dim)
{
    /* Of two bits some 0.0008 were seen, of four, whose factors have 16 bits, 3e-7. */
    const double share = dtype == AQ_KIVI2 ? 0.002 : 1e-6;
    const uint32_t columns = KV_HEADS * q_per_kv * dim, rows = BLOCKS * KV_HEADS * AQ_KV_ROWS;
    size_t plain_bytes = BLOCKS * KV_HEADS * aq_kv_block_bytes(AQ_F16, dim);
    uint8_t *memory = kc_bytes(kc, plain_bytes);
    memcpy(memory, kc_in(kc, AQ_F16, KC_NORMAL, rows, dim, dim), plain_bytes);
    struct pages plain = pages_of(memory, AQ_F16, dim);
    struct pages coded =
        pages_of(kc_bytes(kc, BLOCKS * KV_HEADS * aq_kv_block_bytes(dtype, dim)), dtype, dim);
    encode(kc, &coded, &plain, dtype, dim);
    struct aq_attn a = {
        .q = kc_in(kc, AQ_F32, KC_NORMAL, 1, columns, columns),
        .q_stride = columns,
        .out_dtype = AQ_F32,
        .out_stride = columns,
        .kv_heads = KV_HEADS,
        .q_per_kv = q_per_kv,
        .head_dim = dim,
        .scale = 1 / sqrtf((float)dim),
    };
    float *exact = kc_bytes(kc, columns * sizeof(float));
    float *ref = kc_bytes(kc, columns * sizeof(float)),
          *got = kc_bytes(kc, columns * sizeof(float));
    attend(kc, kc_ref(kc), &plain, &a, AQ_F16, exact);
    attend(kc, kc_ref(kc), &coded, &a, dtype, ref);
    attend(kc, kc_new(kc), &coded, &a, dtype, got);
    double codes = squares(ref, exact, columns), kernel = squares(got, ref, columns);
    kc_expect(kc, codes > 0 && kernel <= share * codes,
              "the kernel adds a variance of %.3g of what the codes have; %.3g is its limit",
              kernel / codes, share);
}

static void check(struct kc *kc)
{
    static const struct {
        uint32_t q_per_kv, dim;
    } sizes[] = {{1, 128}, {1, 64}, {4, 128}, {4, 64}, {3, 80}, {1, 32}, {2, 96}, {8, 64}};
    if (!kc_new(kc)->kv_encode)
        return;
    for (uint32_t i = 0; i < AQ_ARRAY_LEN(sizes); i++) {
        for (int dtype = AQ_KIVI4; dtype <= AQ_KIVI2; dtype++) {
            if (kc_begin(kc, KC_SLOT(attn_decode), "attn_decode_variance_%s_x%u_d%u",
                         aq_dtype_name((enum aq_dtype)dtype), sizes[i].q_per_kv, sizes[i].dim))
                check_variance(kc, (enum aq_dtype)dtype, sizes[i].q_per_kv, sizes[i].dim);
        }
    }
}

const struct kc_check kc_check_kivi = {.name = "kivi", .check = check};
