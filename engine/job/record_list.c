/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/job/record_list.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* ---- the table of ids ---- */

int aq_id_table_make(struct aq_id_table *t, uint64_t capacity, struct aq_err *reterr)
{
    uint64_t count = 2;
    while (count < 2 * capacity)
        count *= 2;
    uint32_t *slot = calloc(count, sizeof(*slot));
    if (!slot)
        return aq_error_memory(reterr, "%" PRIu64 " records", capacity);
    free(t->slot);
    *t = (struct aq_id_table){slot, count};
    return 0;
}

void aq_id_table_put(struct aq_id_table *t, uint64_t id_hash, uint64_t place)
{
    uint64_t at = id_hash & (t->slot_count - 1);
    while (t->slot[at])
        at = (at + 1) & (t->slot_count - 1);
    t->slot[at] = (uint32_t)(place + 1);
}

void aq_id_table_close(struct aq_id_table *t)
{
    free(t->slot);
    *t = (struct aq_id_table){0};
}

/* ---- looking ---- */

/* The `place`th of members that lie `stride` bytes apart. */
static uint64_t u64_at(const uint64_t *first, size_t stride, uint64_t place)
{
    uint64_t value;
    memcpy(&value, (const char *)first + place * stride, sizeof(value));
    return value;
}

static uint32_t u32_at(const uint32_t *first, size_t stride, uint64_t place)
{
    uint32_t value;
    memcpy(&value, (const char *)first + place * stride, sizeof(value));
    return value;
}

/* Of members that ascend. */
static uint64_t find_ascending(const struct aq_record_list *l, const uint32_t *first,
                               uint64_t value)
{
    uint64_t low = 0, high = l->count;
    while (low < high) {
        uint64_t middle = low + (high - low) / 2, found = u32_at(first, l->stride, middle);
        if (found == value)
            return middle;
        if (found < value)
            low = middle + 1;
        else
            high = middle;
    }
    return SIZE_MAX;
}

uint64_t aq_record_list_id(const struct aq_record_list *l, uint64_t id_hash)
{
    if (!l->count || !l->ids->slot_count)
        return SIZE_MAX;
    uint64_t mask = l->ids->slot_count - 1;
    for (uint64_t at = id_hash & mask;; at = (at + 1) & mask) {
        uint32_t slot = l->ids->slot[at];
        if (!slot)
            return SIZE_MAX;
        if (u64_at(l->id_hash, l->stride, slot - 1) == id_hash)
            return slot - 1;
    }
}

uint64_t aq_record_list_index(const struct aq_record_list *l, uint64_t index)
{
    return find_ascending(l, l->index, index);
}

uint64_t aq_record_list_find(const struct aq_record_list *l, const struct aq_result_mark *m)
{
    uint64_t at = SIZE_MAX;
    if (m->has_id)
        at = aq_record_list_id(l, XXH3_64bits(m->id, m->id_bytes));
    else if (m->has_index)
        at = aq_record_list_index(l, m->index);
    else if (m->has_line)
        at = find_ascending(l, l->line, m->line);
    return at != SIZE_MAX && u64_at(l->key, l->stride, at) == m->key ? at : SIZE_MAX;
}
