/* SPDX-License-Identifier: Apache-2.0
 * policy/lengths.h - the lengths of a job's sequences in their order.  Of very many only every
 * second is kept, then every fourth, and so on.
 *
 * Sequences begin alike in a chain: each says what it has in common with the one before it, so two
 * of them have at least the least of what is said from the one to the other.  Where those that
 * begin alike stand together in the order of their tokens it is no more than that either. */
#ifndef AQ_POLICY_LENGTHS_H
#define AQ_POLICY_LENGTHS_H

#include <stdbool.h>
#include <stdint.h>

/* Tokens of a sequence: its prompt, and at least one that it generates. */
struct aq_length {
    uint32_t prompt, max_new;
    uint32_t shared; /* the prompt before it begins with the first so many of its tokens, too */
};

/* All zero: empty. */
struct aq_lengths {
    struct aq_length *item; /* [count] */
    uint32_t count, shift;  /* one length of each 1 << shift is kept */
    uint32_t chained;       /* least `shared` of those left out behind the last one */
    uint64_t added;
};

/* Adds `times` sequences of this length; false: out of memory.  A kept one shares with the kept one
 * before it what all between them do. */
bool aq_lengths_add(struct aq_lengths *l, struct aq_length length, uint32_t times);
/* Frees the items; *l is empty again. */
void aq_lengths_close(struct aq_lengths *l);

#endif
