/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/records/stop.h"

#include "engine/records/request.h"

#include <assert.h>
#include <string.h>

static size_t longest_of(const struct aq_text *strings, uint32_t string_count)
{
    size_t longest = 0;
    for (uint32_t i = 0; i < string_count; i++)
        if (strings[i].count > longest)
            longest = strings[i].count;
    return longest;
}

size_t aq_stop_scratch_bytes(const struct aq_text *strings, uint32_t string_count)
{
    return 2 * longest_of(strings, string_count);
}

void aq_stop_init(struct aq_stop *s, const struct aq_text *strings, uint32_t string_count,
                  char *scratch)
{
    *s = (struct aq_stop){.strings = strings,
                          .string_count = string_count,
                          .tail = scratch,
                          .longest = longest_of(strings, string_count),
                          .matched = -1};
}

/* The longest string that ends with the last byte of the tail. */
static void stop_look(struct aq_stop *s)
{
    for (uint32_t i = 0; i < s->string_count; i++) {
        const struct aq_text *t = &s->strings[i];
        if (t->count > s->tail_count ||
            (s->matched >= 0 && t->count <= s->strings[s->matched].count))
            continue;
        if (!memcmp(s->tail + s->tail_count - t->count, t->bytes, t->count))
            s->matched = (int32_t)i;
    }
}

bool aq_stop_feed(struct aq_stop *s, const char *bytes, size_t count, bool may_match)
{
    for (size_t i = 0; i < count && s->longest && s->matched < 0; i++) {
        if (s->tail_count == 2 * s->longest) { /* keep what a match may still begin in */
            memmove(s->tail, s->tail + s->longest, s->longest);
            s->tail_count = s->longest;
        }
        s->tail[s->tail_count++] = bytes[i];
        s->bytes++;
        if (may_match)
            stop_look(s);
        if (s->matched >= 0) {
            s->end = s->bytes;
            s->begin = s->end - s->strings[s->matched].count;
        }
    }
    return s->matched >= 0;
}
