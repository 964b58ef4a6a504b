/* SPDX-License-Identifier: Apache-2.0
 * engine/kv.h - the KV cache: a pool of equal pages, and for each seat and layer a table of
 * head-block addresses.  A page holds whole runs of 32 slots of all KV heads of one layer; all
 * layers of a sequence grow together.  Owns the pool from open to close and allocates nothing in
 * between; admission (policy/admit.h) guarantees that a page is there when it is asked for. */
#ifndef AQ_ENGINE_KV_H
#define AQ_ENGINE_KV_H

#include "base/mem.h"
#include "policy/program.h"

struct aq_kv;

struct aq_kv_opts {
    uint32_t seats, layers, kv_heads, head_dim;
    uint32_t keys_max; /* of one sequence */
    const struct aq_block_shape *shape;
};

int aq_kv_open(struct aq_kv **ret, struct aq_mem *mem, const struct aq_kv_opts *opts,
               struct aq_err *reterr);
void aq_kv_close(struct aq_kv *kv);

/* Makes room for `keys` keys in all layers of the seat; asserts that the pool has the pages. */
void aq_kv_grow(struct aq_kv *kv, uint32_t seat, uint32_t keys);
/* Gives the seat's pages back. */
void aq_kv_release(struct aq_kv *kv, uint32_t seat);

/* Address table of a (seat, layer): entry b is where the run of slots [32 b, 32 b + 32) starts;
 * head h lies h * aq_kv_head_offset bytes further. */
uint8_t *const *aq_kv_blocks(const struct aq_kv *kv, uint32_t seat, uint32_t layer);
size_t aq_kv_head_offset(const struct aq_kv *kv);
uint64_t aq_kv_pages_free(const struct aq_kv *kv);

#endif
