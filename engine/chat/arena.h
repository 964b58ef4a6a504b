/* SPDX-License-Identifier: Apache-2.0
 * engine/chat/arena.h - memory that is taken in small pieces and given back all at once, up to a
 * bound.  Owns what it gave out.  Knows nothing of what lies in it. */
#ifndef AQ_ENGINE_CHAT_ARENA_H
#define AQ_ENGINE_CHAT_ARENA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct aq_arena {
    struct aq_arena_chunk *last;
    size_t left;
    uint64_t bytes, bytes_max;
    bool over; /* a piece was refused because of the bound, not because memory ran out */
};

/* Memory of `bytes` bytes, aligned to 16; NULL: the bound, or there is none left. */
void *aq_arena_take(struct aq_arena *a, size_t bytes);
void aq_arena_close(struct aq_arena *a);

#endif
