/* SPDX-License-Identifier: Apache-2.0
 * policy/lengths.h - the lengths of a job's sequences in their order; of very many every second,
 * then every fourth, and so on. */
#ifndef AQ_POLICY_LENGTHS_H
#define AQ_POLICY_LENGTHS_H

#include <stdbool.h>
#include <stdint.h>

/* Tokens of a sequence: its prompt, and what it generates, at least one. */
struct aq_length {
    uint32_t prompt, max_new;
};

/* All zero: empty. */
struct aq_lengths {
    struct aq_length *item; /* [count] */
    uint32_t count, shift;  /* one of 1 << shift of them */
    uint64_t added;
};

/* So many more of this length; false: out of memory. */
bool aq_lengths_add(struct aq_lengths *l, struct aq_length length, uint32_t times);
/* Empties it. */
void aq_lengths_close(struct aq_lengths *l);

#endif
