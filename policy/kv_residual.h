/* SPDX-License-Identifier: Apache-2.0
 * policy/kv_residual.h - the newest slots of a KV cache in one of KIVI's formats, which are f16
 * until 32 of them become codes together: how many, as a function of the slots held alone, so that
 * a sequence's bits depend on nothing else.  Pure.
 *
 * The slots of codes are whole head-blocks from slot 0 on, in pages; those behind them lie in a
 * ring of tokens / 32 + 1 runs of f16, block b in run b modulo that number.  Two rules:
 *   sliding  after each row the oldest block is encoded if `tokens` newer slots are left: from
 *            `tokens` to `tokens` + 31 slots are f16
 *   flush    all slots of the ring are encoded once there are `tokens` of them and another one
 *            comes, so a row attends 1 to `tokens` slots of f16: as the program of KIVI's authors
 *            has it for keys (arXiv 2402.02750), and here for values, too */
#ifndef AQ_POLICY_KV_RESIDUAL_H
#define AQ_POLICY_KV_RESIDUAL_H

#include "base/kv_block.h"

#include <assert.h>

enum { AQ_KV_RESIDUAL_DEFAULT = 128, AQ_KV_RESIDUAL_MAX = 1 << 20 };

/* tokens: a multiple of 32; 0: the cache is not in one of KIVI's formats. */
struct aq_kv_residual {
    uint32_t tokens;
    bool flush;
};

/* Head-blocks of codes in a cache that holds `held` slots. */
static inline uint32_t aq_kv_residual_coded(const struct aq_kv_residual *r, uint32_t held)
{
    assert(r->tokens && r->tokens % AQ_HEAD_BLOCK_SLOTS == 0);
    if (r->flush)
        return held ? (held - 1) / r->tokens * (r->tokens / AQ_HEAD_BLOCK_SLOTS) : 0;
    return held < r->tokens ? 0 : (held - r->tokens) / AQ_HEAD_BLOCK_SLOTS;
}

/* Runs of so many slots that are full and move as they are: those of codes, or without a residual
 * all that are full. */
static inline uint32_t aq_kv_residual_whole(const struct aq_kv_residual *r, uint32_t held)
{
    return r->tokens ? aq_kv_residual_coded(r, held) : held / AQ_HEAD_BLOCK_SLOTS;
}

/* Runs of the ring. */
static inline uint32_t aq_kv_residual_runs(const struct aq_kv_residual *r)
{
    return r->tokens ? r->tokens / AQ_HEAD_BLOCK_SLOTS + 1 : 0;
}

/* Of any number of slots held at least so many take no page; 0 without a residual. */
static inline uint32_t aq_kv_residual_unpaged(const struct aq_kv_residual *r)
{
    if (!r->tokens)
        return 0;
    return r->flush ? 1 : r->tokens + AQ_HEAD_BLOCK_SLOTS - 1;
}

#endif
