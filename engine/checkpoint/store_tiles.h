/* SPDX-License-Identifier: Apache-2.0
 * engine/checkpoint/store_tiles.h - checksums of the tiles that a store's items are read in: how
 * many there are, how they are made while an item is written, how they stand in text.  Called by
 * store*.c.  Knows no files. */
#ifndef AQ_ENGINE_CHECKPOINT_STORE_TILES_H
#define AQ_ENGINE_CHECKPOINT_STORE_TILES_H

#include "engine/checkpoint/store.h"

#include <xxhash.h>

enum { AQ_STORE_SUM_DIGITS = 16 };

/* Room for the sums of an item of more than one tile; one tile's is the item's.  -ENOMEM. */
int aq_store_tiles_open(struct aq_store_item *item, struct aq_err *reterr);

/* The item's sum and those of its tiles, of bytes that come front to back. */
struct aq_store_summer {
    XXH3_state_t *all, *tile;
    struct aq_store_item *item;
    uint64_t at;
};
int aq_store_summer_open(struct aq_store_summer *s, struct aq_err *reterr);
void aq_store_summer_close(struct aq_store_summer *s);
void aq_store_summer_begin(struct aq_store_summer *s, struct aq_store_item *item);
void aq_store_summer_add(struct aq_store_summer *s, const void *bytes, size_t count);
uint64_t aq_store_summer_end(struct aq_store_summer *s); /* the item's; its tiles' are in it */

/* The sums of an item's tiles in hexadecimal, one behind the other; "-" where it has none of its
 * own.  malloc'd; NULL: no memory. */
char *aq_store_tiles_text(const struct aq_store_item *item);
/* The way back, for an item whose shape is known: false unless the text is exactly that. */
bool aq_store_tiles_parse(struct aq_store_item *item, const char *text, size_t bytes);

#endif
