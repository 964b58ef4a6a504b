/* SPDX-License-Identifier: Apache-2.0
 * Selection in time linear in the slots, for every level above the reference: the value that
 * divides those that stay from the others is found byte by byte, from the highest, by counting.
 * All of it is whole numbers, so the sets are those of the reference. */
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/slots.h"
#include "kernels/cpu/versions.h"

#include <string.h>

/* The last slot that stays: by value, then from the highest position down, then from the lowest
 * head up. */
struct cut {
    uint32_t key, position, head;
};

/* Slots [0, count) of the heads [head, head_end), less those that `before` let stay already. */
struct field {
    const struct aq_kv_select *s;
    uint32_t count, head, head_end;
    const struct cut *before; /* [kv_heads], or NULL */
};

static inline bool within(const struct cut *cut, uint32_t key, uint32_t slot, uint32_t head)
{
    if (key != cut->key)
        return key > cut->key;
    return slot != cut->position ? slot > cut->position : head <= cut->head;
}

static const struct cut nothing = {UINT32_MAX, UINT32_MAX, 0};
static const struct cut everything = {0, 0, UINT32_MAX};

/* A number that orders slots as their worth does. */
static inline uint32_t key_of(const struct aq_kv_select *s, uint32_t head, uint32_t slot)
{
    if (slot < s->sinks)
        return UINT32_MAX;
    if (!s->value)
        return UINT32_MAX - 1 - slot;
    float value = aq_slots_rank(s->value[(size_t)head * s->stride + slot]) + 0.0f; /* -0 is 0 */
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

static inline bool taken(const struct field *f, uint32_t key, uint32_t slot, uint32_t head)
{
    return f->before && within(&f->before[head], key, slot, head);
}

/* Counts the keys whose bits above `shift + 8` are those of key, by their next eight. */
static void count_keys(const struct field *f, uint32_t key, uint32_t shift, uint32_t counts[256])
{
    uint32_t mask = shift == 24 ? 0 : UINT32_MAX << (shift + 8);
    memset(counts, 0, 256 * sizeof(*counts));
    for (uint32_t h = f->head; h < f->head_end; h++) {
        for (uint32_t j = 0; j < f->count; j++) {
            uint32_t k = key_of(f->s, h, j);
            if (((k ^ key) & mask) == 0 && !taken(f, k, j, h))
                counts[k >> shift & 255]++;
        }
    }
}

/* The slot that is the want-th (from 1) of those of this key. */
static struct cut cut_ties(const struct field *f, uint32_t key, uint64_t want)
{
    for (uint32_t j = f->count; j-- > 0;) {
        for (uint32_t h = f->head; h < f->head_end; h++) {
            if (key_of(f->s, h, j) == key && !taken(f, key, j, h) && --want == 0)
                return (struct cut){key, j, h};
        }
    }
    return everything;
}

/* Divides the best `want` of the field's `total` slots from the others. */
static struct cut find_cut(const struct field *f, uint64_t want, uint64_t total)
{
    if (!want)
        return nothing;
    if (want >= total)
        return everything;
    uint32_t key = 0;
    for (uint32_t shift = 32; shift > 0;) {
        uint32_t counts[256], digit = 255;
        shift -= 8;
        count_keys(f, key, shift, counts);
        while (digit > 0 && counts[digit] < want)
            want -= counts[digit--];
        key |= digit << shift;
    }
    return cut_ties(f, key, want);
}

static void emit(const struct aq_kv_select *s, uint32_t count, uint32_t head,
                 const struct cut *floor, const struct cut *cut)
{
    uint32_t *keep = s->keep + (size_t)head * s->keep_stride, n = 0;
    for (uint32_t j = 0; j < count; j++) {
        uint32_t key = key_of(s, head, j);
        if (within(cut, key, j, head) || within(floor, key, j, head))
            keep[n++] = j;
    }
    for (uint32_t j = count; j < s->len; j++)
        keep[n++] = j;
    s->count[head] = n;
}

/* ---- tiles ---- */

struct select_job {
    struct aq_exec *ex;
    const struct aq_kv_select *selects;
    uint32_t kv_heads;
};

static void select_head(const struct aq_kv_select *s, uint32_t count, uint32_t head, uint32_t heavy)
{
    struct field f = {.s = s, .count = count, .head = head, .head_end = head + 1};
    struct cut cut = find_cut(&f, heavy, count);
    emit(s, count, head, &nothing, &cut);
}

/* The layer's best slots only say how many each head keeps of its own. */
static void select_mixed(const struct aq_kv_select *s, uint32_t count, uint32_t kv_heads)
{
    struct field f = {.s = s, .count = count, .head_end = kv_heads};
    struct cut cut = find_cut(&f, (uint64_t)s->heavy * kv_heads, (uint64_t)count * kv_heads);
    for (uint32_t h = 0; h < kv_heads; h++) {
        uint32_t best = 0;
        for (uint32_t j = 0; j < count; j++)
            best += within(&cut, key_of(s, h, j), j, h);
        select_head(s, count, h, aq_slots_mixed(s, best));
    }
}

static void select_layer(const struct aq_kv_select *s, uint32_t count, uint32_t kv_heads,
                         struct cut *floors)
{
    uint32_t floor = (uint32_t)aq_min_u64(s->floor, s->heavy);
    for (uint32_t h = 0; h < kv_heads; h++) {
        struct field f = {.s = s, .count = count, .head = h, .head_end = h + 1};
        floors[h] = find_cut(&f, floor, count);
    }
    struct field f = {.s = s, .count = count, .head_end = kv_heads, .before = floors};
    uint64_t left = count > floor ? (uint64_t)(count - floor) * kv_heads : 0;
    struct cut cut = find_cut(&f, (uint64_t)(s->heavy - floor) * kv_heads, left);
    for (uint32_t h = 0; h < kv_heads; h++)
        emit(s, count, h, &floors[h], &cut);
}

/* A tile is one KV head of one sequence; the first one of a layer's selection does all of it. */
static void select_tile(void *arg, uint32_t tile, uint32_t worker)
{
    const struct select_job *job = arg;
    const struct aq_kv_select *s = &job->selects[tile / job->kv_heads];
    uint32_t head = tile % job->kv_heads, count = s->recent < s->len ? s->len - s->recent : 0;
    if (!s->layer)
        select_head(s, count, head, s->heavy);
    else if (head == 0 && s->mix)
        select_mixed(s, count, job->kv_heads);
    else if (head == 0)
        select_layer(s, count, job->kv_heads, aq_exec_scratch(job->ex, worker));
}

void aq_kv_select_avx2(struct aq_exec *ex, const struct aq_kv_selects *s)
{
    assert(s->kv_heads * sizeof(struct cut) <= aq_exec_scratch_size(ex));
    struct select_job job = {.ex = ex, .selects = s->selects, .kv_heads = s->kv_heads};
    aq_pool_run(aq_exec_pool(ex), select_tile, &job, s->count * s->kv_heads);
}
