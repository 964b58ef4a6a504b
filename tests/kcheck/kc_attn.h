/* SPDX-License-Identifier: Apache-2.0
 * tests/kcheck/kc_attn.h - random sequences with their pages, for the checks of attention and of
 * the KV append. */
#ifndef AQ_TESTS_KCHECK_KC_ATTN_H
#define AQ_TESTS_KCHECK_KC_ATTN_H

#include "tests/kcheck/kcheck.h"

enum { KC_ATTN_SEQS_MAX = 32 };

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
};

/* Blocks are filled up to each head's length and are NaN past it. */
void kc_attn_make(struct kc *kc, struct kc_attn *t, const struct kc_attn_shape *shape);

#endif
