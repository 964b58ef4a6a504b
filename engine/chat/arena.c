/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/chat/arena.h"

#include "base/types.h"

#include <stdlib.h>

enum { CHUNK_BYTES = 16 << 10 };

struct aq_arena_chunk {
    struct aq_arena_chunk *before;
    _Alignas(16) char bytes[];
};

void *aq_arena_take(struct aq_arena *a, size_t bytes)
{
    size_t want = aq_align_up(bytes ? bytes : 1, 16);
    if (want < bytes || want > a->bytes_max) {
        a->over = true;
        return NULL;
    }
    if (want > a->left) {
        size_t room = want > CHUNK_BYTES ? want : CHUNK_BYTES;
        a->over = a->bytes + room > a->bytes_max;
        struct aq_arena_chunk *c = a->over ? NULL : malloc(sizeof(*c) + room);
        if (!c)
            return NULL;
        c->before = a->last;
        a->last = c;
        a->left = room;
        a->bytes += room;
        if (room == want) { /* what is large has a chunk of its own */
            a->left = 0;
            return c->bytes;
        }
    }
    a->left -= want;
    return a->last->bytes + a->left; /* from its end to its beginning */
}

void aq_arena_close(struct aq_arena *a)
{
    for (struct aq_arena_chunk *c = a->last, *before; c; c = before) {
        before = c->before;
        free(c);
    }
    *a = (struct aq_arena){.bytes_max = a->bytes_max};
}
