/* SPDX-License-Identifier: Apache-2.0
 * engine/records/stop.h - stop strings in text that arrives in pieces.  A string matches across
 * pieces; the first complete match wins, of several complete at once the longest.  Feeding
 * allocates nothing.  Knows bytes, not tokens. */
#ifndef AQ_ENGINE_RECORDS_STOP_H
#define AQ_ENGINE_RECORDS_STOP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct aq_text;

struct aq_stop {
    const struct aq_text *strings; /* none is empty */
    uint32_t string_count;
    char *tail; /* [2 * longest]: the last bytes seen */
    size_t longest, tail_count;
    uint64_t bytes; /* fed so far */
    /* after a match */
    int32_t matched; /* index of the string, -1: none yet */
    uint64_t begin, end;
};

/* Bytes that aq_stop_init needs as scratch; 0 without strings. */
size_t aq_stop_scratch_bytes(const struct aq_text *strings, uint32_t string_count);
/* strings and scratch are borrowed. */
void aq_stop_init(struct aq_stop *s, const struct aq_text *strings, uint32_t string_count,
                  char *scratch);
/* True as soon as a string has matched; later bytes are then ignored.  A match that is complete
 * within bytes fed with may_match false does not count. */
bool aq_stop_feed(struct aq_stop *s, const char *bytes, size_t count, bool may_match);

#endif
