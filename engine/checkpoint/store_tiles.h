/* SPDX-License-Identifier: Apache-2.0
 * engine/checkpoint/store_tiles.h - checksums of the tiles of a store's items: their number, their
 * computation while an item is written, and their form as text.  Called by store*.c.  Knows no
 * files. */
#ifndef AQ_ENGINE_CHECKPOINT_STORE_TILES_H
#define AQ_ENGINE_CHECKPOINT_STORE_TILES_H

#include "engine/checkpoint/store.h"

#include <xxhash.h>

enum { AQ_STORE_SUM_DIGITS = 16 };

/* Allocates the sums of an item of more than one tile; the sum of a single tile is the item's.
 * -ENOMEM. */
int aq_store_tiles_open(struct aq_store_item *item, struct aq_err *reterr);

/* Computes the sums of an item and of its tiles from bytes that come front to back. */
struct aq_store_summer {
    XXH3_state_t *all, *tile;
    struct aq_store_item *item;
    uint64_t at;
};
int aq_store_summer_open(struct aq_store_summer *s, struct aq_err *reterr);
void aq_store_summer_close(struct aq_store_summer *s);
void aq_store_summer_begin(struct aq_store_summer *s, struct aq_store_item *item);
void aq_store_summer_add(struct aq_store_summer *s, const void *bytes, size_t count);
uint64_t aq_store_summer_end(struct aq_store_summer *s); /* the item's sum; fills its tiles' sums */

/* The sums of an item's tiles in hexadecimal, one behind the other; "-" for an item of one tile.
 * malloc'd; NULL: no memory. */
char *aq_store_tiles_text(const struct aq_store_item *item);
/* Parses such a text for an item whose shape is known.  -ENOEXEC if the text is anything else,
 * -ENOMEM; both without words. */
int aq_store_tiles_parse(struct aq_store_item *item, const char *text, size_t bytes);

#endif
