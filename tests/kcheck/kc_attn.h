/* SPDX-License-Identifier: Apache-2.0
 * tests/kcheck/kc_attn.h - random sequences with their pages, for the checks of attention and of
 * the KV append. */
#ifndef AQ_TESTS_KCHECK_KC_ATTN_H
#define AQ_TESTS_KCHECK_KC_ATTN_H

#include "tests/kcheck/kcheck.h"

enum { KC_ATTN_SEQS_MAX = 32, KC_ATTN_LEN_MAX = 1024, KC_ATTN_DIM_MAX = 256 };

struct kc_attn_shape {
    uint32_t seqs, kv_heads, q_per_kv, head_dim;
    enum aq_dtype kv_dtype, out_dtype;
    uint32_t rows_max, len_max; /* query rows: 1 to rows_max; keys: up to len_max */
    bool ragged;                /* each head has its own table and length */
    bool holds_rows;            /* every length is at least the rows; else it may be 0 */
    enum kc_fill q, k, v;
};

struct kc_attn {
    struct aq_attn a; /* out, out_stride and log_sum_exp are for the caller to set */
    struct aq_attn_seq seq[KC_ATTN_SEQS_MAX];
    uint32_t rows, columns; /* of q and out */
    uint8_t *pool;          /* the blocks, in an order that has nothing to do with their use */
    size_t pool_bytes;
    bool weights_rounded; /* to bf16, by the version under test (kc_attn_rounds) */
};

/* Blocks are filled up to each head's length and are NaN past it.  Of KIVI's formats a random
 * number of leading blocks are codes. */
void kc_attn_make(struct kc *kc, struct kc_attn *t, const struct kc_attn_shape *shape);

/* Head sizes and query heads of a KV head that models have; cases take all pairs of them. */
enum { KC_ATTN_DIMS = 5, KC_ATTN_GROUPS = 6 };
extern const uint32_t kc_attn_dims[KC_ATTN_DIMS], kc_attn_groups[KC_ATTN_GROUPS];

/* Windows around the border of a block, around the longest head and of a query's own key alone, by
 * number. */
enum { KC_ATTN_WINDOWS = 6 };
extern const char *const kc_attn_window_names[KC_ATTN_WINDOWS];
void kc_attn_set_window(struct kc_attn *t, uint32_t number);
/* Makes NaN of the slots that no query sees: those in front of the first one's window. */
void kc_attn_spoil(struct kc_attn *t);

/* Whether the version under test rounds what prefill attention multiplies to bf16 (q times scale,
 * K, V and weights) where the compute type is bf16; and whether this is. */
bool kc_attn_may_round(const struct kc *kc);
bool kc_attn_rounds(const struct kc *kc, const struct kc_attn *t);
/* The sequences with q, K and V rounded so, for the reference: scale becomes 1, KV f32. */
void kc_attn_round(struct kc *kc, struct kc_attn *ret, const struct kc_attn *t);

/* The column sums of a sequence, of whole.seqs[0], in several calls of which each goes on from the
 * sums of those before it. */
typedef void kc_attn_stats_fn(void *user, struct aq_attn *a);
void kc_attn_stats_in_calls(struct kc *kc, const struct aq_attn *whole, kc_attn_stats_fn *stats,
                            void *user);

/* How large the terms of the elements of a block's row in this format are. */
void kc_attn_sizes_of(double *to, const uint8_t *block, enum aq_dtype dtype, uint32_t dim,
                      uint32_t row);

/* A query's weights in f64, and how far rounding may move its output, as a share of the sum of
 * p |V|.  A score is off by the roundings of its dot product (`steps` of 2^-24 of the sum of
 * magnitudes) and of the subtraction of the maximum; exp turns that into a relative error; the
 * sums over keys add theirs.  Rounding errors that are independent grow with the square root of
 * their number; equal terms round alike and grow with the number itself.  Codes are summed before
 * their minimum is: the terms of a value are code * scale and the minimum.
 *
 * What codes of KIVI are multiplied by may be rounded to multiples of a 32767th part of the largest
 * such factor of a query and block: of a query times K's scales, of weights times V's. */
struct kc_attn_bound {
    double p[KC_ATTN_LEN_MAX];
    double moved[KC_ATTN_LEN_MAX / AQ_HEAD_BLOCK_SLOTS + 1]; /* by a block's rounded factors */
    double share, log_sum;
    double scores;  /* twice what a score is off: share, where that is small */
    uint32_t first; /* the first key of its window; p is 0 in front of it */
};
/* Of a query with so many keys up to its own; q is its row of t->a.q at its head. */
void kc_attn_bound(struct kc_attn_bound *b, const struct kc_attn *t, const struct aq_attn_seq *s,
                   uint32_t head, const float *q, uint32_t keys, bool alike);

/* A scale with which cold data gives scores of a few units in any format: with scores of hundreds,
 * as large codes would have, weights and sums are subnormal, which some CPUs multiply slowly. */
float kc_attn_bench_scale(enum aq_dtype dtype);

#endif
