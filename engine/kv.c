/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/kv.h"

#include <assert.h>
#include <stdlib.h>

struct aq_kv {
    struct aq_mem *mem;
    struct aq_kv_opts opts;
    uint64_t page_bytes, page_count;
    uint32_t page_runs; /* runs of 32 slots in a page */
    uint32_t runs_max;  /* entries of one address table */
    size_t run_bytes, head_bytes;
    uint8_t *pages;
    void *tables; /* address tables, then the free list */
    size_t tables_bytes;
    uint8_t **block;     /* [seats][layers][runs_max] */
    uint32_t *free_page; /* stack of page numbers */
    uint64_t free_count;
    uint32_t *runs; /* [seats] runs in use, malloc'd at open */
};

int aq_kv_open(struct aq_kv **ret, struct aq_mem *mem, const struct aq_kv_opts *opts,
               struct aq_err *reterr)
{
    struct aq_kv *kv = calloc(1, sizeof(*kv));
    if (!kv)
        return aq_error(reterr, -ENOMEM, "KV cache");
    const struct aq_block_shape *s = opts->shape;
    kv->mem = mem;
    kv->opts = *opts;
    kv->page_bytes = s->page_bytes;
    kv->page_count = s->page_count;
    kv->page_runs = s->page_slots / AQ_HEAD_BLOCK_SLOTS;
    kv->runs_max = (uint32_t)aq_div_up(opts->keys_max, AQ_HEAD_BLOCK_SLOTS);
    kv->head_bytes = aq_kv_block_bytes(s->kv_format, opts->head_dim);
    kv->run_bytes = kv->head_bytes * opts->kv_heads;
    assert(kv->run_bytes * kv->page_runs == kv->page_bytes);
    assert(kv->page_count <= UINT32_MAX);
    size_t entries = (size_t)opts->seats * opts->layers * kv->runs_max;
    kv->tables_bytes = entries * sizeof(*kv->block) + kv->page_count * sizeof(*kv->free_page);
    int rc = -ENOMEM;
    kv->runs = calloc(opts->seats, sizeof(*kv->runs));
    if (!kv->runs) {
        aq_error(reterr, rc, "KV cache of %u seats", opts->seats);
        goto fail;
    }
    rc = aq_mem_alloc((void **)&kv->pages, mem, AQ_HOST, "kv", kv->page_bytes * kv->page_count,
                      reterr);
    if (rc < 0)
        goto fail;
    rc = aq_mem_alloc(&kv->tables, mem, AQ_HOST, "kv tables", kv->tables_bytes, reterr);
    if (rc < 0)
        goto fail;
    kv->block = kv->tables;
    kv->free_page = (uint32_t *)(kv->block + entries);
    for (uint64_t i = 0; i < kv->page_count; i++)
        kv->free_page[i] = (uint32_t)(kv->page_count - 1 - i);
    kv->free_count = kv->page_count;
    *ret = kv;
    return 0;
fail:
    aq_kv_close(kv);
    return rc;
}

void aq_kv_close(struct aq_kv *kv)
{
    if (!kv)
        return;
    aq_mem_free(kv->mem, AQ_HOST, "kv", kv->pages, kv->page_bytes * kv->page_count);
    aq_mem_free(kv->mem, AQ_HOST, "kv tables", kv->tables, kv->tables_bytes);
    free(kv->runs);
    free(kv);
}

static uint8_t **table_of(const struct aq_kv *kv, uint32_t seat, uint32_t layer)
{
    return kv->block + ((size_t)seat * kv->opts.layers + layer) * kv->runs_max;
}

void aq_kv_grow(struct aq_kv *kv, uint32_t seat, uint32_t keys)
{
    uint32_t need = (uint32_t)aq_div_up(keys, AQ_HEAD_BLOCK_SLOTS), have = kv->runs[seat];
    assert(seat < kv->opts.seats && need <= kv->runs_max);
    for (; have < need; have++) {
        for (uint32_t layer = 0; layer < kv->opts.layers; layer++) {
            uint8_t **table = table_of(kv, seat, layer);
            if (have % kv->page_runs) {
                table[have] = table[have - 1] + kv->run_bytes;
                continue;
            }
            assert(kv->free_count > 0);
            table[have] = kv->pages + kv->free_page[--kv->free_count] * kv->page_bytes;
        }
    }
    kv->runs[seat] = have;
}

void aq_kv_release(struct aq_kv *kv, uint32_t seat)
{
    assert(seat < kv->opts.seats);
    for (uint32_t run = 0; run < kv->runs[seat]; run += kv->page_runs) {
        for (uint32_t layer = 0; layer < kv->opts.layers; layer++) {
            size_t offset = (size_t)(table_of(kv, seat, layer)[run] - kv->pages);
            kv->free_page[kv->free_count++] = (uint32_t)(offset / kv->page_bytes);
        }
    }
    kv->runs[seat] = 0;
}

uint8_t *const *aq_kv_blocks(const struct aq_kv *kv, uint32_t seat, uint32_t layer)
{
    return table_of(kv, seat, layer);
}

size_t aq_kv_head_offset(const struct aq_kv *kv)
{
    return kv->head_bytes;
}

uint64_t aq_kv_pages_free(const struct aq_kv *kv)
{
    return kv->free_count;
}
