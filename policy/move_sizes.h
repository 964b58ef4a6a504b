/* SPDX-License-Identifier: Apache-2.0
 * policy/move_sizes.h - sizes of the lists that moves are cut into: pieces of copies over links,
 * and transfers from and to disk.  Weights and rows have a list for each op; KV has a list for each
 * slot of the program that it passes through, because ops of one slot are never under way together.
 * Pure. */
#ifndef AQ_POLICY_MOVE_SIZES_H
#define AQ_POLICY_MOVE_SIZES_H

#include "policy/program.h"

/* Upper bounds of the bytes of a list's entry; offload/ has the exact types. */
enum { AQ_MOVE_PIECE_BYTES = 24, AQ_MOVE_TRANSFER_BYTES = 128 };

struct aq_move_sizes {
    /* Entries of one list of KV: pieces for each slot of AQ_SLOT_KV_DEVICE behind links, transfers
     * for each slot that disks read and write. */
    uint32_t kv_pieces, kv_transfers;
    uint32_t kv_piece_lists, kv_transfer_lists;
    uint64_t pieces, transfers; /* entries in all */
    uint32_t stage_seats;       /* most seats of a part that passes through a slot of KV_DEVICE */
    uint64_t blocks;            /* addresses of runs in those slots, behind links */
};

void aq_move_sizes_count(struct aq_move_sizes *ret, const struct aq_program *program,
                         const struct aq_model_steps *steps, const struct aq_plan *plan,
                         const struct aq_stream *stream);
/* Bytes of all lists and addresses: the ledger's line "moves". */
uint64_t aq_move_sizes_bytes(const struct aq_move_sizes *r);

#endif
