/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/tokenizer/tokenizer.h"

#include <stdlib.h>

void aq_ids_close(struct aq_ids *ids)
{
    free(ids->item);
    *ids = (struct aq_ids){0};
}

bool aq_ids_reserve(struct aq_ids *ids, size_t extra)
{
    if (extra <= ids->capacity - ids->count)
        return true;
    size_t need, capacity = ids->capacity ? ids->capacity : 64;
    if (__builtin_add_overflow(ids->count, extra, &need) || need > SIZE_MAX / 8)
        return false;
    while (capacity < need)
        capacity *= 2;
    uint32_t *item = realloc(ids->item, capacity * sizeof(*item));
    if (!item)
        return false;
    ids->item = item;
    ids->capacity = capacity;
    return true;
}
