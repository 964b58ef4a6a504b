/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/kv.h"

#include <assert.h>
#include <stdlib.h>

struct pool {
    uint8_t *pages;
    uint64_t bytes, page_count;
    uint32_t *free_page; /* stack of page numbers */
    uint64_t free_count;
};

struct aq_kv {
    struct aq_kv_opts opts;
    uint64_t page_bytes;
    uint32_t seats;
    uint32_t page_runs; /* runs of 32 slots in a page */
    uint32_t runs_max;  /* entries of one address table */
    size_t run_bytes, run_stride, head_bytes;
    struct pool pool[AQ_TIER_COUNT]; /* of device and host */
    void *tables;                    /* address tables, then the free lists */
    size_t tables_bytes;
    uint8_t **block; /* [seats][layers][runs_max] */
    uint8_t *tails;  /* [disk seats][layers][run_stride] */
    size_t tails_bytes;
    uint32_t *runs;      /* [seats] runs in use */
    uint8_t *tier;       /* [seats] */
    uint32_t *disk_seat; /* [seats] number among those on disk */
    uint32_t disk_seats;
};

static enum aq_device_memory memory_of(int tier)
{
    return tier == AQ_DEVICE ? AQ_MEMORY_DEVICE : AQ_MEMORY_PINNED;
}

static void place_seats(struct aq_kv *kv)
{
    const struct aq_plan *plan = kv->opts.plan;
    for (uint32_t s = 0; s < kv->seats; s++) {
        uint32_t place = s % plan->shape.micro_batch, part = 0;
        while (place >= plan->part[part].first + plan->part[part].count)
            part++;
        kv->tier[s] = plan->part[part].tier;
        if (kv->tier[s] == AQ_DISK)
            kv->disk_seat[s] = kv->disk_seats++;
    }
}

static int take_pools(struct aq_kv *kv, struct aq_err *reterr)
{
    const struct aq_block_shape *s = &kv->opts.plan->shape;
    size_t entries = (size_t)kv->seats * kv->opts.layers * kv->runs_max;
    uint64_t pages = 0;
    for (int t = AQ_DEVICE; t <= AQ_HOST; t++) {
        struct pool *p = &kv->pool[t];
        p->page_count = s->page_count[t];
        pages += p->page_count;
        assert(p->page_count <= UINT32_MAX);
        if (!p->page_count)
            continue;
        uint64_t bytes = p->page_count * kv->page_bytes;
        int rc =
            aq_device_alloc((void **)&p->pages, kv->opts.device, memory_of(t), "kv", bytes, reterr);
        if (rc < 0)
            return rc;
        p->bytes = bytes;
    }
    size_t tables = entries * sizeof(*kv->block) + pages * sizeof(uint32_t);
    int rc =
        aq_device_alloc(&kv->tables, kv->opts.device, AQ_MEMORY_HOST, "kv tables", tables, reterr);
    if (rc < 0)
        return rc;
    kv->tables_bytes = tables;
    kv->block = kv->tables;
    uint32_t *list = (uint32_t *)(kv->block + entries);
    for (int t = AQ_DEVICE; t <= AQ_HOST; t++) {
        struct pool *p = &kv->pool[t];
        p->free_page = list;
        list += p->page_count;
        for (uint64_t i = 0; i < p->page_count; i++)
            p->free_page[i] = (uint32_t)(p->page_count - 1 - i);
        p->free_count = p->page_count;
    }
    size_t tails = (size_t)kv->disk_seats * kv->opts.layers * kv->run_stride;
    if (!tails)
        return 0;
    rc = aq_device_alloc((void **)&kv->tails, kv->opts.device, AQ_MEMORY_PINNED, "kv tails", tails,
                         reterr);
    if (rc == 0)
        kv->tails_bytes = tails;
    return rc;
}

int aq_kv_open(struct aq_kv **ret, const struct aq_kv_opts *opts, struct aq_err *reterr)
{
    struct aq_kv *kv = calloc(1, sizeof(*kv));
    if (!kv)
        return aq_error(reterr, -ENOMEM, "KV cache");
    const struct aq_block_shape *s = &opts->plan->shape;
    kv->opts = *opts;
    kv->seats = s->micro_batch * s->micro_batches;
    kv->page_bytes = s->page_bytes;
    kv->page_runs = s->page_slots / AQ_HEAD_BLOCK_SLOTS;
    kv->runs_max = (uint32_t)aq_div_up(s->keys_max, AQ_HEAD_BLOCK_SLOTS);
    kv->run_bytes = s->run_bytes;
    kv->run_stride = aq_align_up(s->run_bytes, AQ_PANEL_ALIGN);
    kv->head_bytes = s->run_bytes / opts->kv_heads;
    assert(kv->run_bytes * kv->page_runs == kv->page_bytes);
    int rc = -ENOMEM;
    kv->runs = calloc(kv->seats, sizeof(*kv->runs));
    kv->tier = calloc(kv->seats, sizeof(*kv->tier));
    kv->disk_seat = calloc(kv->seats, sizeof(*kv->disk_seat));
    if (!kv->runs || !kv->tier || !kv->disk_seat) {
        aq_error(reterr, rc, "KV cache of %u seats", kv->seats);
    } else {
        place_seats(kv);
        rc = take_pools(kv, reterr);
    }
    if (rc < 0) {
        aq_kv_close(kv);
        return rc;
    }
    *ret = kv;
    return 0;
}

void aq_kv_close(struct aq_kv *kv)
{
    if (!kv)
        return;
    struct aq_device *d = kv->opts.device;
    for (int t = AQ_DEVICE; t <= AQ_HOST; t++)
        aq_device_free(d, memory_of(t), "kv", kv->pool[t].pages, kv->pool[t].bytes);
    aq_device_free(d, AQ_MEMORY_HOST, "kv tables", kv->tables, kv->tables_bytes);
    aq_device_free(d, AQ_MEMORY_PINNED, "kv tails", kv->tails, kv->tails_bytes);
    free(kv->runs);
    free(kv->tier);
    free(kv->disk_seat);
    free(kv);
}

static uint8_t **table_of(const struct aq_kv *kv, uint32_t seat, uint32_t layer)
{
    return kv->block + ((size_t)seat * kv->opts.layers + layer) * kv->runs_max;
}

void aq_kv_grow(struct aq_kv *kv, uint32_t seat, uint32_t keys)
{
    uint32_t need = (uint32_t)aq_div_up(keys, AQ_HEAD_BLOCK_SLOTS), have = kv->runs[seat];
    assert(seat < kv->seats && need <= kv->runs_max);
    struct pool *pool = &kv->pool[kv->tier[seat]];
    for (; have < need && kv->tier[seat] != AQ_DISK; have++) {
        for (uint32_t layer = 0; layer < kv->opts.layers; layer++) {
            uint8_t **table = table_of(kv, seat, layer);
            if (have % kv->page_runs) {
                table[have] = table[have - 1] + kv->run_bytes;
                continue;
            }
            assert(pool->free_count > 0);
            table[have] = pool->pages + pool->free_page[--pool->free_count] * kv->page_bytes;
        }
    }
    kv->runs[seat] = need > have ? need : have;
}

void aq_kv_release(struct aq_kv *kv, uint32_t seat)
{
    assert(seat < kv->seats);
    struct pool *pool = &kv->pool[kv->tier[seat]];
    for (uint32_t run = 0; run < kv->runs[seat] && kv->tier[seat] != AQ_DISK;
         run += kv->page_runs) {
        for (uint32_t layer = 0; layer < kv->opts.layers; layer++) {
            size_t offset = (size_t)(table_of(kv, seat, layer)[run] - pool->pages);
            pool->free_page[pool->free_count++] = (uint32_t)(offset / kv->page_bytes);
        }
    }
    kv->runs[seat] = 0;
}

uint8_t *const *aq_kv_blocks(const struct aq_kv *kv, uint32_t seat, uint32_t layer)
{
    assert(kv->tier[seat] != AQ_DISK);
    return table_of(kv, seat, layer);
}

uint8_t *const *aq_kv_place(struct aq_kv *kv, uint32_t seat, uint32_t layer, uint8_t *stage,
                            uint32_t whole)
{
    uint8_t **table = table_of(kv, seat, layer);
    for (uint32_t run = 0; run < whole; run++)
        table[run] = stage + run * kv->run_stride;
    if (whole < kv->runs_max)
        table[whole] = aq_kv_tail(kv, seat, layer);
    return table;
}

uint8_t *aq_kv_tail(const struct aq_kv *kv, uint32_t seat, uint32_t layer)
{
    assert(kv->tier[seat] == AQ_DISK);
    return kv->tails + ((size_t)kv->disk_seat[seat] * kv->opts.layers + layer) * kv->run_stride;
}

size_t aq_kv_head_offset(const struct aq_kv *kv)
{
    return kv->head_bytes;
}

size_t aq_kv_run_stride(const struct aq_kv *kv)
{
    return kv->run_stride;
}

uint64_t aq_kv_disk_offset(const struct aq_kv *kv, uint32_t seat, uint32_t layer)
{
    return ((uint64_t)kv->disk_seat[seat] * kv->opts.layers + layer) * kv->runs_max *
           kv->run_stride;
}

uint64_t aq_kv_disk_bytes(const struct aq_kv *kv)
{
    return (uint64_t)kv->disk_seats * kv->opts.layers * kv->runs_max * kv->run_stride;
}

uint64_t aq_kv_pages_free(const struct aq_kv *kv, enum aq_tier tier)
{
    return kv->pool[tier].free_count;
}
