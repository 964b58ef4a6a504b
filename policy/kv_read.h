/* SPDX-License-Identifier: Apache-2.0
 * policy/kv_read.h - decoded rows that read a part of the keys held: how many, as functions of the
 * slots held alone, so that a sequence's bits depend on nothing else.  Pure.
 *
 * A row that finds at most `read` slots held reads all of them.  Else it reads the open head-block,
 * which is not full yet (there is none where a multiple of 32 slots is held), and so many full ones
 * that no more than `read` slots are read: always the first and the last, and of the others those
 * that its queries may attend to most, by bounds of their keys (aq_kv_choose_fn of
 * kernels/kernels.h).  Each KV head chooses for itself, and its query heads together.  Bounds are
 * made by the first row that needs them, and then as head-blocks become full. */
#ifndef AQ_POLICY_KV_READ_H
#define AQ_POLICY_KV_READ_H

#include "base/kv_block.h"

enum {
    AQ_KV_READ_MIN = 3 * AQ_HEAD_BLOCK_SLOTS, /* the first, the last and the open head-block */
    AQ_KV_READ_DENSE_DEFAULT = 2,             /* as Quest has it */
};

/* Does a row read a part of what is held? */
static inline bool aq_kv_read_chooses(uint32_t read, uint32_t held)
{
    return read && held > read;
}

/* Full head-blocks that it reads then: at least two, and fewer than are full. */
static inline uint32_t aq_kv_read_blocks(uint32_t read, uint32_t held)
{
    return (read - held % AQ_HEAD_BLOCK_SLOTS) / AQ_HEAD_BLOCK_SLOTS;
}

/* Slots that a row reads in each head. */
static inline uint32_t aq_kv_read_slots(uint32_t read, uint32_t held)
{
    if (!aq_kv_read_chooses(read, held))
        return held;
    return AQ_HEAD_BLOCK_SLOTS * aq_kv_read_blocks(read, held) + held % AQ_HEAD_BLOCK_SLOTS;
}

/* The first full head-block whose bounds are not made yet, for a row that joins `before` slots;
 * `first`: it is the first one after the prompt. */
static inline uint32_t aq_kv_read_bounded(uint32_t read, uint32_t before, bool first)
{
    return first || !aq_kv_read_chooses(read, before) ? 0 : before / AQ_HEAD_BLOCK_SLOTS;
}

#endif
