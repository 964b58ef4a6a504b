/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/checkpoint/store_tiles.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

uint64_t aq_store_tile_bytes(const struct aq_store_item *item)
{
    switch (item->kind) {
    case AQ_STORE_MATRIX: return aq_panel_bytes(item->dtype, item->cols);
    case AQ_STORE_TABLE: return (uint64_t)AQ_PANEL_ROWS * item->cols * aq_dtype_bytes(item->dtype);
    default: return item->bytes;
    }
}

uint32_t aq_store_tile_count(const struct aq_store_item *item)
{
    return (uint32_t)aq_div_up(item->bytes, aq_store_tile_bytes(item));
}

int aq_store_tiles_open(struct aq_store_item *item, struct aq_err *reterr)
{
    uint32_t count = aq_store_tile_count(item);
    assert(!item->tile_xxh3);
    if (count == 1)
        return 0;
    item->tile_xxh3 = calloc(count, sizeof(*item->tile_xxh3));
    return item->tile_xxh3 ? 0 : aq_error_memory(reterr, "item '%s'", item->name);
}

/* ---- while an item is written ---- */

int aq_store_summer_open(struct aq_store_summer *s, struct aq_err *reterr)
{
    s->all = XXH3_createState();
    s->tile = XXH3_createState();
    return s->all && s->tile ? 0 : aq_error_memory(reterr, "checksums of a store");
}

void aq_store_summer_close(struct aq_store_summer *s)
{
    if (s->all)
        XXH3_freeState(s->all);
    if (s->tile)
        XXH3_freeState(s->tile);
}

void aq_store_summer_begin(struct aq_store_summer *s, struct aq_store_item *item)
{
    s->item = item;
    s->at = 0;
    XXH3_64bits_reset(s->all);
    XXH3_64bits_reset(s->tile);
}

void aq_store_summer_add(struct aq_store_summer *s, const void *bytes, size_t count)
{
    struct aq_store_item *item = s->item;
    uint64_t each = aq_store_tile_bytes(item), end = s->at + count;
    const char *from = bytes;
    assert(end <= item->bytes);
    XXH3_64bits_update(s->all, bytes, count);
    while (item->tile_xxh3 && s->at < end) {
        uint64_t n = aq_min_u64(end - s->at, each - s->at % each);
        XXH3_64bits_update(s->tile, from, n);
        from += n;
        s->at += n;
        if (s->at % each == 0 || s->at == item->bytes) {
            item->tile_xxh3[(s->at - 1) / each] = XXH3_64bits_digest(s->tile);
            XXH3_64bits_reset(s->tile);
        }
    }
    s->at = end;
}

uint64_t aq_store_summer_end(struct aq_store_summer *s)
{
    assert(s->at == s->item->bytes);
    return XXH3_64bits_digest(s->all);
}

/* ---- text ---- */

char *aq_store_tiles_text(const struct aq_store_item *item)
{
    if (!item->tile_xxh3)
        return strdup("-");
    size_t count = aq_store_tile_count(item);
    char *text = malloc(count * AQ_STORE_SUM_DIGITS + 1);
    for (size_t i = 0; text && i < count; i++)
        snprintf(text + i * AQ_STORE_SUM_DIGITS, AQ_STORE_SUM_DIGITS + 1, "%016llx",
                 (unsigned long long)item->tile_xxh3[i]);
    return text;
}

int aq_store_tiles_parse(struct aq_store_item *item, const char *text, size_t bytes)
{
    uint32_t count = aq_store_tile_count(item);
    if (count == 1)
        return bytes == 1 && *text == '-' ? 0 : -ENOEXEC;
    if (bytes != (size_t)count * AQ_STORE_SUM_DIGITS || strspn(text, "0123456789abcdef") < bytes)
        return -ENOEXEC;
    if (!item->tile_xxh3 && aq_store_tiles_open(item, NULL) < 0)
        return -ENOMEM;
    for (uint32_t i = 0; i < count; i++) {
        char digits[AQ_STORE_SUM_DIGITS + 1] = "";
        memcpy(digits, text + (size_t)i * AQ_STORE_SUM_DIGITS, AQ_STORE_SUM_DIGITS);
        item->tile_xxh3[i] = strtoull(digits, NULL, 16);
    }
    return 0;
}
