/* SPDX-License-Identifier: Apache-2.0
 * engine/tokenizer/added.h - finds added tokens in text: of several that begin at the same place
 * the longest, of several places the leftmost.  Part of tokenizer.h.  Knows bytes and ids. */
#ifndef AQ_ENGINE_TOKENIZER_ADDED_H
#define AQ_ENGINE_TOKENIZER_ADDED_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { AQ_ADDED_BYTES_MAX = 4096 }; /* of one added token: bounds the work at each byte of text */

/* A trie; children of a node are a list. */
struct aq_added_node {
    uint32_t child, sibling; /* 0: none */
    int32_t id;              /* -1: no token ends here */
    unsigned char byte;
};

struct aq_added {
    uint32_t root[256]; /* node of the first byte; 0: none */
    struct aq_added_node *node;
    uint32_t count, capacity;
};

struct aq_added_match {
    size_t begin, end;
    uint32_t id;
};

void aq_added_close(struct aq_added *a);
/* The first of two tokens with the same text stays.  -ENOEXEC when it is empty or too long. */
int aq_added_put(struct aq_added *a, const char *text, size_t bytes, uint32_t id,
                 struct aq_err *reterr);
/* The longest that begins at this place. */
bool aq_added_at(const struct aq_added *a, const char *text, size_t bytes, size_t begin,
                 struct aq_added_match *ret);
bool aq_added_find(const struct aq_added *a, const char *text, size_t bytes, size_t from,
                   struct aq_added_match *ret);

/* What single_word, lstrip and rstrip ask: is there a word character (Alphabetic, a mark, a digit,
 * a connector or a joiner, as in the regex crate) at this edge, and how far does white space reach?
 */
bool aq_word_before(const char *text, size_t end);
bool aq_word_after(const char *text, size_t bytes, size_t begin);
size_t aq_space_before(const char *text, size_t end);
size_t aq_space_after(const char *text, size_t bytes, size_t begin);

#endif
