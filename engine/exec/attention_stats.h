/* SPDX-License-Identifier: Apache-2.0
 * engine/exec/attention_stats.h - how attention is spread over the keys of prompts: the share of
 * probabilities near zero, and how unevenly the sums over queries are distributed over keys.  These
 * are the two observations of H2O (arXiv 2306.14048, section 3).  Computed beside the run from
 * queries and keys as they leave the projections, before a KV format rounds them; O(s) memory.
 * Owns its sums and workspaces; knows no text. */
#ifndef AQ_ENGINE_EXEC_ATTENTION_STATS_H
#define AQ_ENGINE_EXEC_ATTENTION_STATS_H

#include "base/err.h"
#include "base/threads.h"

#include <jansson.h>
#include <stdint.h>

struct aq_attention_stats;

struct aq_attention_stats_opts {
    uint32_t layers, heads, kv_heads, head_dim, vocab;
    uint32_t prompt_max; /* longest prompt, tokens */
    uint32_t threads;    /* of the pool given to aq_attention_stats_add */
    float scale;         /* of q . k */
};

int aq_attention_stats_open(struct aq_attention_stats **ret,
                            const struct aq_attention_stats_opts *opts, struct aq_err *reterr);
void aq_attention_stats_close(struct aq_attention_stats *s);
/* Bytes that open allocates. */
uint64_t aq_attention_stats_bytes(const struct aq_attention_stats_opts *opts);

/* A prompt's attention in one layer: q f32 [n][heads * head_dim], k f32 [n][kv_heads * head_dim],
 * row strides in elements, ids [n].  From one thread at a time; allocates nothing; the sums do not
 * depend on the number of threads. */
struct aq_attention_rows {
    uint32_t layer, n;
    const float *q, *k;
    size_t stride;
    const uint32_t *ids;
    uint32_t window; /* a query sees its own key and the window - 1 before it; 0: all */
};
void aq_attention_stats_add(struct aq_attention_stats *s, struct aq_pool *pool,
                            const struct aq_attention_rows *rows);

/* {"prompts", "threshold", "ranks", "shares", "layers": [{"layer",
 *   "sparsity": share of entries (query, key that it sees) whose probability is below
 *     `threshold` of their query's largest, "sparsity_by_head": [...],
 *   "sparsity_by_third": the same of the queries in each third of their prompts,
 *   "top_share": the part of all attention that goes to the `shares` of keys with most of it, the
 *     mean over heads and prompts; "score_at_rank": the part of the key at each of `ranks`,
 *   "token_share_at_rank": the same by token id over all heads and prompts together}]}.  New
 * reference. */
json_t *aq_attention_stats_json(const struct aq_attention_stats *s);

#endif
