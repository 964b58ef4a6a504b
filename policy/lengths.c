/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/lengths.h"

#include <stdlib.h>

enum { KEPT_MAX = 1 << 16, KEPT_AT_FIRST = 256 };

static uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

static void thin_out(struct aq_lengths *l)
{
    l->chained = least(l->chained, l->item[KEPT_MAX - 1].shared);
    for (uint32_t i = 1; i < KEPT_MAX / 2; i++) {
        l->item[i] = l->item[2 * i];
        l->item[i].shared = least(l->item[i].shared, l->item[2 * i - 1].shared);
    }
    l->count = KEPT_MAX / 2;
    l->shift++;
}

/* The list doubles when its count is a power of two. */
static bool grow(struct aq_lengths *l)
{
    uint32_t room = l->count ? 2 * l->count : KEPT_AT_FIRST;
    if (l->count && (l->count < KEPT_AT_FIRST || l->count & (l->count - 1) || l->shift))
        return true;
    struct aq_length *item = realloc(l->item, room * sizeof(*item));
    l->item = item ? item : l->item;
    return item;
}

bool aq_lengths_add(struct aq_lengths *l, struct aq_length length, uint32_t times)
{
    for (uint32_t i = 0; i < times; i++) {
        if (l->count == KEPT_MAX)
            thin_out(l);
        l->chained = least(l->chained, length.shared); /* nothing in front of the first one */
        if (l->added++ & ((1ull << l->shift) - 1))
            continue;
        if (!grow(l))
            return false;
        l->item[l->count] = length;
        l->item[l->count++].shared = l->chained;
        l->chained = UINT32_MAX;
    }
    return true;
}

void aq_lengths_close(struct aq_lengths *l)
{
    free(l->item);
    *l = (struct aq_lengths){0};
}
