/* SPDX-License-Identifier: Apache-2.0
 * base/kinds.h - the kinds that policy/ plans with and kernels/ computes by, said once for both.
 * Knows no op and no kernel. */
#ifndef AQ_BASE_KINDS_H
#define AQ_BASE_KINDS_H

/* What stands behind a product. */
enum aq_activation { AQ_ACT_NONE, AQ_ACT_RELU, AQ_ACT_GELU, AQ_ACT_GELU_TANH, AQ_ACT_SILU };

/* What a result does with what its place holds: replaces it, is added to it, multiplies it. */
enum aq_combine { AQ_COMBINE_SET, AQ_COMBINE_ADD, AQ_COMBINE_MULTIPLY };

/* A norm by mean and variance, by the mean square alone, or none: a change of type. */
enum aq_norm_kind { AQ_NORM_LAYER, AQ_NORM_RMS, AQ_NORM_CAST };

/* How a query's probability p counts for a key. */
enum aq_attn_stat {
    AQ_ATTN_NONE,         /* not at all: no scores are kept */
    AQ_ATTN_PROB,         /* f(p) = p */
    AQ_ATTN_PROB_SQUARED, /* p * p */
    AQ_ATTN_LOW,          /* -1 where p < threshold / keys that the query sees, else 0 */
};

/* How the query heads of a KV head are taken together. */
enum aq_attn_group {
    /* Per query, before anything is summed. */
    AQ_ATTN_SUM,
    AQ_ATTN_MEAN,
    AQ_ATTN_MAX,
    AQ_ATTN_FIRST,
    AQ_ATTN_MAX_OF_SUMS, /* the largest of their sums over a prompt's queries */
    AQ_ATTN_EACH,        /* not at all: sums of each query head */
};

/* What a prompt's key gets of its neighbours' sums: nothing, the mean, the largest. */
enum aq_kv_pool { AQ_KV_POOL_NONE, AQ_KV_POOL_AVG, AQ_KV_POOL_MAX };

#endif
