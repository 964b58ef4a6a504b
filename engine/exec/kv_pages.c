/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/exec/kv_pages.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

struct pool {
    uint8_t *pages;
    uint64_t bytes, page_count;
    /* The pages that each group of workers is near to, from its first one on, and stacks of the
     * free ones among them. */
    struct aq_groups groups;
    uint32_t *free_page;
    uint64_t free_count[AQ_GROUPS_MAX];
    uint32_t *users; /* [page_count] seats that have the page */
};

struct aq_kv {
    struct aq_kv_opts opts;
    uint64_t page_bytes;
    uint32_t seats;
    uint32_t page_runs; /* runs of 32 slots in a page */
    size_t run_bytes, run_stride, head_bytes;
    struct pool pool[AQ_TIER_COUNT]; /* of device and host */
    struct aq_kv_table_layout table;
    uint8_t *tables;
    size_t tables_bytes;
    enum aq_device_memory tables_memory;
    uint8_t **block;      /* [seats][table.runs], layer after layer */
    uint32_t *home, *own; /* [disk seats][table.home_runs] regions, as struct aq_kv_table_layout */
    uint8_t *tails;       /* [disk seats][layers][tail_runs][run_stride] */
    uint32_t tail_runs;
    size_t tails_bytes;
    uint8_t *deltas; /* [disk seats][beside.dropping][delta.bytes] */
    size_t deltas_bytes;
    uint32_t *victims; /* [seats with a copy][beside.dropping][kv_heads] */
    size_t victims_bytes;
    struct aq_kv_layout *layout; /* [kinds of layers] */
    struct aq_kv_delta_layout delta;
    struct aq_kv_drop_layout drop;
    struct aq_kv_beside beside;
    uint64_t bounds_bytes; /* of a seat */
    struct layer {
        uint64_t first_run; /* runs of a seat in the layers before this one */
        uint64_t slots;     /* offset of its arrays beside slots in those of a seat */
        uint64_t bounds;    /* offset of its bounds in those of a seat */
        uint32_t dropping;  /* layers before this one that drop keys */
    } * layer;              /* [layers] */
    struct side {
        uint8_t *slots; /* [seats of the side][beside.slots_bytes], layer after layer; drop.bytes */
        size_t bytes;
        uint8_t *bounds; /* [seats of the side][bounds_bytes], layer after layer */
        size_t bounds_bytes;
        uint32_t seats;
    } side[2];      /* by enum aq_attention_side */
    uint32_t *runs; /* [seats][kinds of layers] runs in use */
    struct place {
        uint8_t tier, side;
        uint8_t group;    /* its pages are near to, as far as there are such */
        uint32_t on_disk; /* number among the seats on disk */
        uint32_t on_side; /* number among the seats attended on its side */
        uint32_t copied;  /* number among the seats whose victims have a copy */
    } * place;            /* [seats] */
    uint32_t disk_seats, copied_seats;
};

static enum aq_device_memory memory_of(int tier)
{
    return tier == AQ_DEVICE ? AQ_MEMORY_DEVICE : AQ_MEMORY_PINNED;
}

/* The group that has thing `at` of `total`. */
static uint32_t group_of(const struct aq_groups *groups, uint64_t at, uint64_t total)
{
    uint32_t g = 0;
    while (at >= aq_groups_first(groups, g + 1, total))
        g++;
    return g;
}

static enum aq_device_memory memory_of_side(const struct aq_kv *kv, int side)
{
    return side == AQ_ATTEND_HOST ? AQ_MEMORY_PINNED : AQ_MEMORY_DEVICE;
}

static void place_seats(struct aq_kv *kv)
{
    const struct aq_plan *plan = kv->opts.plan;
    for (uint32_t s = 0; s < kv->seats; s++) {
        uint32_t at = s % plan->shape.micro_batch, part = 0;
        while (at >= plan->part[part].first + plan->part[part].count)
            part++;
        const struct aq_part *p = &plan->part[part];
        struct place *place = &kv->place[s];
        *place = (struct place){.tier = p->tier, .side = p->side};
        /* Rows of a part are attended in the order of its seats, which groups share. */
        if (p->tier != AQ_DISK)
            place->group =
                (uint8_t)group_of(aq_device_groups(kv->opts.device), at - p->first, p->count);
        place->on_side = kv->side[p->side].seats++;
        if (p->tier == AQ_DISK)
            place->on_disk = kv->disk_seats++;
        if (plan->separate && p->tier == AQ_HOST && p->side == AQ_ATTEND_DEVICE)
            place->copied = kv->copied_seats++;
    }
}

static int take(struct aq_kv *kv, void *ret, enum aq_device_memory memory, const char *purpose,
                size_t bytes, size_t *ret_bytes, struct aq_err *reterr)
{
    if (!bytes)
        return 0;
    int rc = aq_device_alloc(ret, kv->opts.device, memory, purpose, bytes, reterr);
    if (rc == 0)
        *ret_bytes = bytes;
    return rc;
}

static const struct aq_kv_kinds *kinds_of(const struct aq_kv *kv)
{
    return &kv->opts.plan->kinds;
}

static const struct aq_kv_layout *layout_of(const struct aq_kv *kv, uint32_t layer)
{
    return &kv->layout[kinds_of(kv)->of[layer]];
}

/* Where the parts of each layer begin. */
static void place_layers(struct aq_kv *kv)
{
    const struct aq_kv_kinds *kinds = kinds_of(kv);
    struct layer at = {0};
    for (uint32_t k = 0; k < kinds->count; k++)
        aq_kv_layout_slots(&kv->layout[k], kv->opts.plan, k, kv->opts.kv_heads);
    for (uint32_t layer = 0; layer < kinds->layers; layer++) {
        const struct aq_kv_layout *layout = layout_of(kv, layer);
        kv->layer[layer] = at;
        at.first_run += aq_kv_kinds_at(kinds, layer)->runs;
        at.slots += layout->bytes;
        at.bounds += aq_kv_bounds_bytes(&kv->opts.plan->shape, aq_kv_kinds_at(kinds, layer));
        at.dropping += layout->stride > 0;
    }
    kv->beside = aq_kv_beside_of(kv->opts.plan, kv->opts.kv_heads);
    kv->bounds_bytes = at.bounds;
    assert(at.first_run == kv->table.runs);
    assert(at.slots == kv->beside.slots_bytes && at.dropping == kv->beside.dropping);
}

/* Takes so many bytes of each seat that is attended on a side, and `more` behind them. */
static int take_of_seats(struct aq_kv *kv, int side, void *ret, const char *purpose, size_t bytes,
                         size_t more, size_t *ret_bytes, struct aq_err *reterr)
{
    struct aq_device_shared seats = {.count = kv->side[side].seats, .unit = bytes};
    size_t all = seats.count * bytes + more;
    if (!all)
        return 0;
    int rc = aq_device_alloc_shared(ret, kv->opts.device, memory_of_side(kv, side), purpose, all,
                                    &seats, 1, reterr);
    if (rc == 0)
        *ret_bytes = all;
    return rc;
}

/* Takes memory for scores, positions and victims of slots, for residuals and for bounds. */
static int take_slots(struct aq_kv *kv, struct aq_err *reterr)
{
    const struct aq_kv_opts *o = &kv->opts;
    int rc = 0;
    aq_kv_layout_delta(&kv->delta, o->plan, o->kv_heads);
    aq_kv_layout_drop(&kv->drop, o->plan, o->kv_heads);
    for (int i = 0; i < 2 && rc == 0; i++) {
        struct side *side = &kv->side[i];
        rc = take_of_seats(kv, i, &side->slots, aq_kv_layout_purpose(o->plan),
                           kv->beside.slots_bytes, side->seats ? kv->drop.bytes : 0, &side->bytes,
                           reterr);
        rc = rc < 0 ? rc
                    : take_of_seats(kv, i, &side->bounds, "kv bounds", kv->bounds_bytes, 0,
                                    &side->bounds_bytes, reterr);
    }
    size_t copies = (size_t)kv->copied_seats * kv->beside.dropping * o->kv_heads * sizeof(uint32_t);
    rc = rc < 0 ? rc
                : take(kv, &kv->victims, AQ_MEMORY_PINNED, "kv victims", copies, &kv->victims_bytes,
                       reterr);
    rc = rc < 0 ? rc
                : take(kv, &kv->deltas, AQ_MEMORY_PINNED, "kv delta",
                       (size_t)kv->disk_seats * kv->beside.dropping * kv->delta.bytes,
                       &kv->deltas_bytes, reterr);
    return rc;
}

/* Of a seat by its number among those on disk. */
static uint32_t *home_of(const struct aq_kv *kv, uint32_t on_disk)
{
    return kv->home + (size_t)on_disk * kv->table.home_runs;
}

static uint32_t *own_of(const struct aq_kv *kv, uint32_t on_disk)
{
    return kv->own + (size_t)on_disk * kv->table.home_runs;
}

/* Each seat on disk begins with a region of its own. */
static void place_regions(struct aq_kv *kv)
{
    kv->home = (uint32_t *)(kv->tables + kv->table.home);
    kv->own = (uint32_t *)(kv->tables + kv->table.own);
    for (uint32_t s = 0; s < kv->disk_seats; s++) {
        for (uint32_t run = 0; run < kv->table.home_runs; run++)
            home_of(kv, s)[run] = own_of(kv, s)[run] = s;
    }
}

static int take_pools(struct aq_kv *kv, struct aq_err *reterr)
{
    const struct aq_block_shape *s = &kv->opts.plan->shape;
    for (int t = AQ_DEVICE; t <= AQ_HOST; t++) {
        struct pool *p = &kv->pool[t];
        p->page_count = s->page_count[t];
        assert(p->page_count <= UINT32_MAX);
        if (!p->page_count)
            continue;
        uint64_t bytes = p->page_count * kv->page_bytes;
        struct aq_device_shared all = {.count = p->page_count, .unit = kv->page_bytes};
        int rc = aq_device_alloc_shared((void **)&p->pages, kv->opts.device, memory_of(t), "kv",
                                        bytes, &all, 1, reterr);
        if (rc < 0)
            return rc;
        p->bytes = bytes;
    }
    /* A GPU reads what has changed of them. */
    kv->tables_memory = kv->opts.changed ? AQ_MEMORY_PINNED : AQ_MEMORY_HOST;
    int rc = take(kv, &kv->tables, kv->tables_memory, "kv tables", kv->table.bytes,
                  &kv->tables_bytes, reterr);
    if (rc < 0)
        return rc;
    /* Heads are of no length, and no run is packed, before a prompt is cut. */
    if (kv->table.len)
        memset(kv->tables + kv->table.len, 0, kv->table.free - kv->table.len);
    kv->block = (uint8_t **)kv->tables;
    place_regions(kv);
    uint32_t *list = (uint32_t *)(kv->tables + kv->table.free);
    uint32_t *users = (uint32_t *)(kv->tables + kv->table.users);
    for (int t = AQ_DEVICE; t <= AQ_HOST; t++) {
        struct pool *p = &kv->pool[t];
        p->free_page = list;
        list += p->page_count;
        p->users = users;
        users += p->page_count;
        p->groups = *aq_device_groups(kv->opts.device);
        for (uint32_t g = 0; g < p->groups.count; g++) {
            uint64_t first = aq_groups_first(&p->groups, g, p->page_count);
            uint64_t end = aq_groups_first(&p->groups, g + 1, p->page_count);
            for (uint64_t i = first; i < end; i++)
                p->free_page[i] = (uint32_t)(first + end - 1 - i);
            p->free_count[g] = end - first;
        }
    }
    size_t tails = (size_t)kv->disk_seats * kinds_of(kv)->layers * kv->tail_runs * kv->run_stride;
    rc = take(kv, &kv->tails, AQ_MEMORY_PINNED, "kv tails", s->plain_run_bytes ? 0 : tails,
              &kv->tails_bytes, reterr);
    return rc < 0 ? rc : take_slots(kv, reterr);
}

int aq_kv_open(struct aq_kv **ret, const struct aq_kv_opts *opts, struct aq_err *reterr)
{
    struct aq_kv *kv = calloc(1, sizeof(*kv));
    if (!kv)
        return aq_error_memory(reterr, "KV cache");
    const struct aq_block_shape *s = &opts->plan->shape;
    kv->opts = *opts;
    kv->seats = s->micro_batch * s->micro_batches;
    kv->page_bytes = s->page_bytes;
    kv->page_runs = s->page_slots / AQ_HEAD_BLOCK_SLOTS;
    kv->tail_runs = aq_kv_policy_tail_runs(&opts->plan->kv);
    aq_kv_layout_tables(&kv->table, opts->plan, opts->plan->kinds.layers, opts->kv_heads);
    kv->run_bytes = s->run_bytes;
    kv->run_stride = aq_align_up(s->run_bytes, AQ_PANEL_ALIGN);
    kv->head_bytes = s->run_bytes / opts->kv_heads;
    assert(kv->run_bytes * kv->page_runs == kv->page_bytes);
    int rc = -ENOMEM;
    const struct aq_kv_kinds *kinds = &opts->plan->kinds;
    kv->runs = calloc((size_t)kv->seats * kinds->count, sizeof(*kv->runs));
    kv->place = calloc(kv->seats, sizeof(*kv->place));
    kv->layout = calloc(kinds->count, sizeof(*kv->layout));
    kv->layer = calloc(kinds->layers, sizeof(*kv->layer));
    if (!kv->runs || !kv->place || !kv->layout || !kv->layer) {
        aq_error_memory(reterr, "KV cache of %u seats", kv->seats);
    } else {
        place_seats(kv);
        place_layers(kv);
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
    aq_device_free(d, kv->tables_memory, "kv tables", kv->tables, kv->tables_bytes);
    aq_device_free(d, AQ_MEMORY_PINNED, "kv tails", kv->tails, kv->tails_bytes);
    aq_device_free(d, AQ_MEMORY_PINNED, "kv delta", kv->deltas, kv->deltas_bytes);
    aq_device_free(d, AQ_MEMORY_PINNED, "kv victims", kv->victims, kv->victims_bytes);
    for (int i = 0; i < 2; i++) {
        aq_device_free(d, memory_of_side(kv, i), aq_kv_layout_purpose(kv->opts.plan),
                       kv->side[i].slots, kv->side[i].bytes);
        aq_device_free(d, memory_of_side(kv, i), "kv bounds", kv->side[i].bounds,
                       kv->side[i].bounds_bytes);
    }
    free(kv->runs);
    free(kv->place);
    free(kv->layout);
    free(kv->layer);
    free(kv);
}

static uint8_t **table_of(const struct aq_kv *kv, uint32_t seat, uint32_t layer)
{
    return kv->block + seat * kv->table.runs + kv->layer[layer].first_run;
}

static uint32_t *runs_of(const struct aq_kv *kv, uint32_t seat, uint32_t kind)
{
    return &kv->runs[(size_t)seat * kinds_of(kv)->count + kind];
}

/* Packed runs of a (seat, layer) whose prompt was cut over all layers; NULL: there is none. */
static uint32_t *packed_of(const struct aq_kv *kv, uint32_t seat, uint32_t layer)
{
    if (!kv->table.packed)
        return NULL;
    return (uint32_t *)(kv->tables + kv->table.packed) + (size_t)seat * kinds_of(kv)->layers +
           layer;
}

/* Runs in use of a (seat, layer). */
static uint32_t runs_at(const struct aq_kv *kv, uint32_t seat, uint32_t layer)
{
    const uint32_t *packed = packed_of(kv, seat, layer);
    return *runs_of(kv, seat, kinds_of(kv)->of[layer]) + (packed ? *packed : 0);
}

uint8_t *const *aq_kv_tables(const struct aq_kv *kv)
{
    return kv->block;
}

/* Runs [first, end) of the (seat, layer) are other ones now. */
static void tell_changed(const struct aq_kv *kv, uint32_t seat, uint32_t layer, uint32_t first,
                         uint32_t end)
{
    uint8_t *const *table = table_of(kv, seat, layer);
    if (kv->opts.changed && kv->place[seat].tier == AQ_DEVICE && first < end)
        kv->opts.changed(kv->opts.user, table + first, (end - first) * sizeof(*table));
}

/* A free page near this group; if there is none, of the group that has most. */
static uint32_t take_page(struct pool *pool, uint32_t group)
{
    if (!pool->free_count[group]) {
        for (uint32_t g = 0; g < pool->groups.count; g++)
            group = pool->free_count[g] > pool->free_count[group] ? g : group;
    }
    assert(pool->free_count[group] > 0);
    uint64_t first = aq_groups_first(&pool->groups, group, pool->page_count);
    return pool->free_page[first + --pool->free_count[group]];
}

static void put_page(struct pool *pool, uint32_t page)
{
    uint32_t group = group_of(&pool->groups, page, pool->page_count);
    uint64_t first = aq_groups_first(&pool->groups, group, pool->page_count);
    pool->free_page[first + pool->free_count[group]++] = page;
}

/* Adds run number `run` to a layer of the seat, with a page of its own unless it has part of the
 * page of the run before. */
static void add_run(struct aq_kv *kv, uint32_t seat, uint32_t layer, uint32_t run)
{
    struct pool *pool = &kv->pool[kv->place[seat].tier];
    uint8_t **table = table_of(kv, seat, layer);
    if (run % kv->page_runs) {
        table[run] = table[run - 1] + kv->run_bytes;
    } else {
        uint32_t page = take_page(pool, kv->place[seat].group);
        pool->users[page] = 1;
        table[run] = pool->pages + page * kv->page_bytes;
    }
    tell_changed(kv, seat, layer, run, run + 1);
}

void aq_kv_grow(struct aq_kv *kv, uint32_t seat, uint32_t kind, uint32_t runs)
{
    const struct aq_kv_kinds *kinds = kinds_of(kv);
    uint32_t *have = runs_of(kv, seat, kind);
    assert(seat < kv->seats && runs <= kinds->kind[kind].runs);
    for (uint32_t run = *have; run < runs && kv->place[seat].tier != AQ_DISK; run++) {
        for (uint32_t layer = 0; layer < kinds->layers; layer++) {
            const uint32_t *packed = packed_of(kv, seat, layer);
            if (kinds->of[layer] == kind)
                add_run(kv, seat, layer, run + (packed ? *packed : 0));
        }
    }
    *have = runs > *have ? runs : *have;
}

static uint32_t page_number(const struct aq_kv *kv, const struct pool *pool, const uint8_t *page)
{
    return (uint32_t)((size_t)(page - pool->pages) / kv->page_bytes);
}

static void give_page(struct aq_kv *kv, uint32_t seat, const uint8_t *page)
{
    struct pool *pool = &kv->pool[kv->place[seat].tier];
    uint32_t number = page_number(kv, pool, page);
    assert(pool->users[number]);
    if (--pool->users[number] == 0)
        put_page(pool, number);
}

/* Another seat than `seat` whose run is in the region that `seat` owns; NULL: there is none.  Seats
 * share within a micro-batch. */
static const struct place *heir_of(const struct aq_kv *kv, uint32_t seat, uint32_t run)
{
    uint32_t each = kv->opts.plan->shape.micro_batch, first = seat / each * each;
    uint32_t region = own_of(kv, kv->place[seat].on_disk)[run];
    for (uint32_t s = first; s < first + each; s++) {
        const struct place *p = &kv->place[s];
        if (s != seat && p->tier == AQ_DISK && home_of(kv, p->on_disk)[run] == region)
            return p;
    }
    return NULL;
}

/* Gives the seat's places on disk back.  A region whose run others still have goes to one of them,
 * who gives the one for it that it owns and does not use. */
static void leave_disk(struct aq_kv *kv, uint32_t seat)
{
    uint32_t *home = home_of(kv, kv->place[seat].on_disk);
    uint32_t *own = own_of(kv, kv->place[seat].on_disk);
    for (uint32_t run = 0; run < kv->table.home_runs; run++) {
        const struct place *heir = home[run] == own[run] ? heir_of(kv, seat, run) : NULL;
        if (heir) {
            uint32_t *spare = &own_of(kv, heir->on_disk)[run], region = *spare;
            *spare = own[run];
            own[run] = region;
        } else if (home[run] == own[run]) {
            break; /* no one has later runs of what no one has to here */
        }
        home[run] = own[run];
    }
}

void aq_kv_share(struct aq_kv *kv, uint32_t seat, uint32_t from, uint32_t runs)
{
    const struct aq_kv_kinds *kinds = kinds_of(kv);
    bool disk = kv->place[seat].tier == AQ_DISK;
    struct pool *pool = &kv->pool[kv->place[seat].tier];
    assert(kv->place[seat].tier == kv->place[from].tier && runs % kv->page_runs == 0);
    for (uint32_t run = 0; run < runs && disk; run++)
        home_of(kv, kv->place[seat].on_disk)[run] = home_of(kv, kv->place[from].on_disk)[run];
    for (uint32_t layer = 0; layer < kinds->layers && !disk; layer++) {
        uint8_t **to = table_of(kv, seat, layer), **table = table_of(kv, from, layer);
        assert(runs <= runs_at(kv, from, layer) && runs_at(kv, seat, layer) == 0);
        for (uint32_t run = 0; run < runs; run++) {
            to[run] = table[run];
            pool->users[page_number(kv, pool, to[run])] += run % kv->page_runs == 0;
        }
        tell_changed(kv, seat, layer, 0, runs);
    }
    for (uint32_t k = 0; k < kinds->count; k++)
        *runs_of(kv, seat, k) = runs;
}

void aq_kv_take(struct aq_kv *kv, uint32_t seat, uint32_t from, uint32_t runs)
{
    const struct aq_kv_kinds *kinds = kinds_of(kv);
    runs = (uint32_t)aq_align_up(runs, kv->page_runs);
    assert(kv->place[seat].tier == kv->place[from].tier && kv->place[seat].tier != AQ_DISK);
    for (uint32_t layer = 0; layer < kinds->layers; layer++) {
        uint8_t **to = table_of(kv, seat, layer), **table = table_of(kv, from, layer);
        uint32_t have = runs_at(kv, from, layer);
        assert(seat == from || runs_at(kv, seat, layer) == 0);
        for (uint32_t run = runs; run < have; run += kv->page_runs)
            give_page(kv, from, table[run]);
        for (uint32_t run = 0; run < runs && run < have; run++)
            to[run] = table[run];
        if (seat != from)
            tell_changed(kv, seat, layer, 0, runs < have ? runs : have);
    }
    for (uint32_t k = 0; k < kinds->count; k++) {
        uint32_t have = *runs_of(kv, from, k);
        *runs_of(kv, from, k) = 0;
        *runs_of(kv, seat, k) = runs < have ? runs : have;
    }
}

void aq_kv_copy(struct aq_kv *kv, uint32_t seat, uint32_t from, uint32_t layer, uint32_t first,
                uint32_t end)
{
    uint8_t *const *to = table_of(kv, seat, layer), *const *table = table_of(kv, from, layer);
    assert(kv->place[seat].tier != AQ_DISK && !kv->opts.plan->separate);
    assert(end <= runs_at(kv, from, layer) && end <= runs_at(kv, seat, layer));
    for (uint32_t run = first; run < end; run++) {
        assert(to[run] != table[run]);
        memcpy(to[run], table[run], kv->run_bytes);
    }
}

uint64_t aq_kv_shrink(struct aq_kv *kv, uint32_t seat, uint32_t kind, uint32_t runs)
{
    const struct aq_kv_kinds *kinds = kinds_of(kv);
    uint64_t all = 0;
    uint32_t have = *runs_of(kv, seat, kind);
    assert(kv->page_runs == 1 && kv->place[seat].tier != AQ_DISK);
    for (uint32_t layer = 0; layer < kinds->layers; layer++) {
        if (kinds->of[layer] != kind)
            continue;
        uint32_t packed = aq_kv_packed(kv, seat, layer);
        assert(*packed_of(kv, seat, layer) == 0 && packed + runs <= have);
        for (uint32_t run = packed + runs; run < have; run++)
            give_page(kv, seat, table_of(kv, seat, layer)[run]);
        *packed_of(kv, seat, layer) = packed;
        all += packed;
    }
    *runs_of(kv, seat, kind) = runs;
    return all;
}

void aq_kv_release(struct aq_kv *kv, uint32_t seat)
{
    const struct aq_kv_kinds *kinds = kinds_of(kv);
    assert(seat < kv->seats);
    for (uint32_t layer = 0; layer < kinds->layers && kv->place[seat].tier != AQ_DISK; layer++) {
        uint32_t runs = runs_at(kv, seat, layer), *packed = packed_of(kv, seat, layer);
        for (uint32_t run = 0; run < runs; run += kv->page_runs)
            give_page(kv, seat, table_of(kv, seat, layer)[run]);
        if (packed)
            *packed = 0;
    }
    if (kv->place[seat].tier == AQ_DISK)
        leave_disk(kv, seat);
    for (uint32_t k = 0; k < kinds->count; k++)
        *runs_of(kv, seat, k) = 0;
}

uint8_t *const *aq_kv_blocks(const struct aq_kv *kv, uint32_t seat, uint32_t layer)
{
    assert(kv->place[seat].tier != AQ_DISK);
    return table_of(kv, seat, layer);
}

uint8_t **aq_kv_place(struct aq_kv *kv, uint32_t seat, uint32_t layer, uint8_t *stage,
                      uint32_t whole)
{
    uint8_t **table = table_of(kv, seat, layer);
    for (uint32_t run = 0; run < whole; run++)
        table[run] = stage + run * kv->run_stride;
    uint32_t runs = aq_kv_kinds_at(kinds_of(kv), layer)->runs;
    for (uint32_t run = whole; kv->tails && run < whole + kv->tail_runs && run < runs; run++)
        table[run] = aq_kv_tail(kv, seat, layer, run);
    return table;
}

uint8_t *aq_kv_tail(const struct aq_kv *kv, uint32_t seat, uint32_t layer, uint32_t run)
{
    size_t of_layer = (size_t)kv->place[seat].on_disk * kinds_of(kv)->layers + layer;
    assert(kv->tails && kv->place[seat].tier == AQ_DISK);
    return kv->tails + (of_layer * kv->tail_runs + run % kv->tail_runs) * kv->run_stride;
}

/* ---- residual ---- */

uint8_t *aq_kv_residual_run(const struct aq_kv *kv, uint32_t seat, uint32_t layer, uint32_t run)
{
    const struct aq_plan *plan = kv->opts.plan;
    assert(plan->shape.plain_run_bytes);
    return aq_kv_slots_home(kv, seat, layer) + layout_of(kv, layer)->residual +
           run % aq_kv_residual_runs(&plan->kv.residual) * plan->shape.plain_run_bytes;
}

void aq_kv_place_residual(struct aq_kv *kv, uint32_t seat, uint32_t kind, uint32_t coded,
                          uint32_t runs)
{
    const struct aq_kv_kinds *kinds = kinds_of(kv);
    assert(runs <= kinds->kind[kind].runs);
    assert(runs - coded <= aq_kv_residual_runs(&kv->opts.plan->kv.residual));
    for (uint32_t layer = 0; layer < kinds->layers; layer++) {
        if (kinds->of[layer] != kind)
            continue;
        for (uint32_t run = coded; run < runs; run++)
            table_of(kv, seat, layer)[run] = aq_kv_residual_run(kv, seat, layer, run);
        tell_changed(kv, seat, layer, coded, runs);
    }
}

size_t aq_kv_plain_offset(const struct aq_kv *kv)
{
    return kv->opts.plan->shape.plain_run_bytes / kv->opts.kv_heads;
}

/* ---- heads that differ ---- */

uint32_t *aq_kv_lens(const struct aq_kv *kv, uint32_t seat, uint32_t layer)
{
    assert(kv->table.head_blocks);
    return (uint32_t *)(kv->tables + kv->table.len) +
           ((size_t)seat * kinds_of(kv)->layers + layer) * kv->opts.kv_heads;
}

/* The place of block `b` of a head that has filled `own` with the prompt, behind the `before` ones
 * of the heads before it; `packed` runs are of such. */
static struct aq_kv_spot spot_of(const struct aq_kv *kv, uint32_t packed, uint32_t head,
                                 uint32_t own, uint32_t before, uint32_t b)
{
    uint32_t heads = kv->opts.kv_heads, index = before + b;
    if (b >= own)
        return (struct aq_kv_spot){packed + b - own, head * kv->head_bytes};
    assert(index / heads < packed);
    return (struct aq_kv_spot){index / heads, index % heads * kv->head_bytes};
}

/* Puts the memory for a table and a length of each head into *seq: one for each place in a
 * micro-batch and compute lane. */
static void put_tables(const struct aq_kv *kv, struct aq_attn_seq *seq, uint8_t ***ret_table,
                       uint32_t **ret_len, uint32_t seat, uint32_t lane)
{
    uint32_t heads = kv->opts.kv_heads, step = kv->table.head_blocks;
    uint32_t micro_batch = kv->opts.plan->shape.micro_batch;
    size_t place = (size_t)lane * micro_batch + seat % micro_batch;
    assert(lane < aq_plan_attending(kv->opts.plan));
    *ret_table = (uint8_t **)(kv->tables + kv->table.spread) + place * heads * step;
    *ret_len = (uint32_t *)(kv->tables + kv->table.now) + place * heads;
    seq->block = *ret_table;
    seq->head_table_step = step;
    seq->head_offset = 0;
    seq->len = *ret_len;
    seq->len_step = 1;
}

void aq_kv_ragged_table(const struct aq_kv *kv, struct aq_attn_seq *seq, uint32_t seat,
                        uint32_t layer, const struct aq_kv_growth *g, uint32_t lane,
                        uint8_t *const *run)
{
    uint32_t heads = kv->opts.kv_heads, step = kv->table.head_blocks, before = 0, *now;
    const uint32_t *kept = aq_kv_lens(kv, seat, layer);
    uint8_t **table;
    put_tables(kv, seq, &table, &now, seat, lane);
    for (uint32_t h = 0; h < heads; h++, table += step) {
        now[h] = kept[h] + (g->each ? g->each[h] : g->grown);
        uint32_t own = kept[h] / AQ_HEAD_BLOCK_SLOTS;
        uint32_t blocks = (uint32_t)aq_div_up(now[h], AQ_HEAD_BLOCK_SLOTS);
        assert(blocks <= step);
        for (uint32_t b = 0; b < blocks; b++) {
            struct aq_kv_spot spot = spot_of(kv, g->packed, h, own, before, b);
            assert(spot.run < runs_at(kv, seat, layer));
            table[b] = run[spot.run] + spot.offset;
        }
        before += own;
    }
}

struct aq_kv_spot aq_kv_spot(const struct aq_kv *kv, uint32_t seat, uint32_t layer,
                             const struct aq_kv_growth *g, uint32_t head, uint32_t slot)
{
    const uint32_t *kept = aq_kv_lens(kv, seat, layer);
    uint32_t before = 0;
    assert(slot < kept[head] + (g->each ? g->each[head] : g->grown));
    for (uint32_t h = 0; h < head; h++)
        before += kept[h] / AQ_HEAD_BLOCK_SLOTS;
    return spot_of(kv, g->packed, head, kept[head] / AQ_HEAD_BLOCK_SLOTS, before,
                   slot / AQ_HEAD_BLOCK_SLOTS);
}

/* ---- rows that choose ---- */

uint16_t *aq_kv_bounds(const struct aq_kv *kv, uint32_t seat, uint32_t layer)
{
    const struct place *p = &kv->place[seat];
    assert(aq_kv_kinds_at(kinds_of(kv), layer)->chooses);
    return (uint16_t *)(kv->side[p->side].bounds + p->on_side * kv->bounds_bytes +
                        kv->layer[layer].bounds);
}

uint32_t *aq_kv_chosen(const struct aq_kv *kv, uint32_t seat, uint32_t lane, uint32_t *ret_stride)
{
    uint32_t micro_batch = kv->opts.plan->shape.micro_batch, step = kv->table.head_blocks;
    size_t place = (size_t)lane * micro_batch + seat % micro_batch;
    assert(lane < aq_plan_attending(kv->opts.plan) && kv->table.chosen);
    *ret_stride = step;
    return (uint32_t *)(kv->tables + kv->table.chosen) + place * kv->opts.kv_heads * step;
}

void aq_kv_read_table(const struct aq_kv *kv, struct aq_attn_seq *seq, uint32_t seat, uint32_t lane,
                      uint32_t count, uint32_t held)
{
    uint8_t *const *all = seq->block, **table;
    size_t offset = seq->head_offset;
    uint32_t open = held % AQ_HEAD_BLOCK_SLOTS, full = held / AQ_HEAD_BLOCK_SLOTS, step, *len;
    const uint32_t *chosen = aq_kv_chosen(kv, seat, lane, &step);
    assert(!seq->head_table_step && count + (open > 0) <= step);
    put_tables(kv, seq, &table, &len, seat, lane);
    for (uint32_t h = 0; h < kv->opts.kv_heads; h++, table += step, chosen += step) {
        for (uint32_t i = 0; i < count; i++)
            table[i] = all[chosen[i]] + h * offset;
        if (open)
            table[count] = all[full] + h * offset;
        len[h] = count * AQ_HEAD_BLOCK_SLOTS + open;
    }
}

uint32_t aq_kv_packed(const struct aq_kv *kv, uint32_t seat, uint32_t layer)
{
    const uint32_t *kept = aq_kv_lens(kv, seat, layer);
    uint64_t blocks = 0;
    for (uint32_t h = 0; h < kv->opts.kv_heads; h++)
        blocks += kept[h] / AQ_HEAD_BLOCK_SLOTS;
    return (uint32_t)aq_div_up(blocks, kv->opts.kv_heads);
}

uint32_t *aq_kv_costs(const struct aq_kv *kv, uint32_t seat, uint32_t layer)
{
    return (uint32_t *)(aq_kv_slots_home(kv, seat, layer) + layout_of(kv, layer)->cost);
}

uint32_t *aq_kv_gone(const struct aq_kv *kv, uint32_t seat, uint32_t layer)
{
    return (uint32_t *)(aq_kv_slots_home(kv, seat, layer) + layout_of(kv, layer)->gone);
}

uint32_t *aq_kv_rules(const struct aq_kv *kv, uint32_t seat, uint32_t layer)
{
    return (uint32_t *)(aq_kv_slots_home(kv, seat, layer) + layout_of(kv, layer)->rule);
}

uint32_t *aq_kv_grown(const struct aq_kv *kv, uint32_t seat, uint32_t layer)
{
    return (uint32_t *)(aq_kv_slots_home(kv, seat, layer) + layout_of(kv, layer)->grown);
}

uint8_t *aq_kv_slots_home(const struct aq_kv *kv, uint32_t seat, uint32_t layer)
{
    const struct place *p = &kv->place[seat];
    return kv->side[p->side].slots + p->on_side * kv->beside.slots_bytes + kv->layer[layer].slots;
}

struct aq_attn_slots aq_kv_slots_at(const struct aq_kv *kv, uint32_t layer, uint8_t *piece)
{
    const struct aq_kv_layout *layout = layout_of(kv, layer);
    struct aq_kv_policy policy = aq_plan_kind_policy(kv->opts.plan, kinds_of(kv)->of[layer]);
    if (!layout->stride)
        return (struct aq_attn_slots){0};
    return (struct aq_attn_slots){
        .score = aq_kv_policy_scores(&policy) ? (float *)(piece + layout->score) : NULL,
        .position = (uint32_t *)(piece + layout->position),
        .victim = (uint32_t *)(piece + layout->victim),
        .stride = layout->stride,
    };
}

struct aq_attn_slots aq_kv_slots(const struct aq_kv *kv, uint32_t seat, uint32_t layer)
{
    return aq_kv_slots_at(kv, layer, aq_kv_slots_home(kv, seat, layer));
}

size_t aq_kv_slots_bytes(const struct aq_kv *kv, uint32_t layer)
{
    return layout_of(kv, layer)->bytes;
}

struct aq_kv_drop_room aq_kv_drop_room(const struct aq_kv *kv, uint32_t seat)
{
    const struct side *side = &kv->side[kv->place[seat].side];
    uint8_t *room = side->slots + side->seats * kv->beside.slots_bytes;
    assert(kv->drop.bytes);
    return (struct aq_kv_drop_room){(float *)(room + kv->drop.value),
                                    (uint32_t *)(room + kv->drop.keep),
                                    (uint32_t *)(room + kv->drop.count)};
}

uint32_t *aq_kv_victims(const struct aq_kv *kv, uint32_t seat, uint32_t layer)
{
    const struct place *p = &kv->place[seat];
    assert(kv->victims && p->tier == AQ_HOST && p->side == AQ_ATTEND_DEVICE);
    assert(layout_of(kv, layer)->stride);
    return kv->victims + ((size_t)p->copied * kv->beside.dropping + kv->layer[layer].dropping) *
                             kv->opts.kv_heads;
}

uint8_t *aq_kv_delta_home(const struct aq_kv *kv, uint32_t seat, uint32_t layer)
{
    const struct place *p = &kv->place[seat];
    assert(kv->deltas && p->tier == AQ_DISK && layout_of(kv, layer)->stride);
    return kv->deltas +
           ((size_t)p->on_disk * kv->beside.dropping + kv->layer[layer].dropping) * kv->delta.bytes;
}

struct aq_kv_delta aq_kv_delta_at(const struct aq_kv *kv, uint8_t *piece)
{
    return (struct aq_kv_delta){piece, (uint32_t *)(piece + kv->delta.target)};
}

size_t aq_kv_delta_bytes(const struct aq_kv *kv)
{
    return kv->delta.bytes;
}

size_t aq_kv_head_offset(const struct aq_kv *kv)
{
    return kv->head_bytes;
}

size_t aq_kv_run_stride(const struct aq_kv *kv)
{
    return kv->run_stride;
}

uint64_t aq_kv_disk_offset(const struct aq_kv *kv, uint32_t seat, uint32_t layer, uint32_t run)
{
    uint32_t region = home_of(kv, kv->place[seat].on_disk)[run];
    return (region * kv->table.runs + kv->layer[layer].first_run + run) * kv->run_stride;
}

uint64_t aq_kv_disk_bytes(const struct aq_kv *kv)
{
    return kv->disk_seats * kv->table.runs * kv->run_stride;
}

uint64_t aq_kv_pages_free(const struct aq_kv *kv, enum aq_tier tier)
{
    uint64_t count = 0;
    for (uint32_t g = 0; g < kv->pool[tier].groups.count; g++)
        count += kv->pool[tier].free_count[g];
    return count;
}
