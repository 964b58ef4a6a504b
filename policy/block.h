/* SPDX-License-Identifier: Apache-2.0
 * policy/block.h - the shape of a block and its memory.  Until a planner searches, a plain rule
 * chooses: the largest number of seats (up to a cap where products stop gaining) whose ledger fits
 * the budget.  Pure. */
#ifndef AQ_POLICY_BLOCK_H
#define AQ_POLICY_BLOCK_H

#include "base/err.h"
#include "policy/ledger.h"
#include "policy/program.h"

/* Seats beyond this gain nothing on a CPU: products are compute-bound from about 128 rows on. */
enum { AQ_BLOCK_SEATS_CAP = 256, AQ_BLOCK_TILE_ROWS = 512, AQ_BLOCK_HEAD_TILE_ROWS = 128 };
enum { AQ_BLOCK_PROMPT_TOKENS = 4096 };

struct aq_block_inputs {
    const struct aq_model_steps *steps;
    enum aq_dtype compute, weight_format, kv_format, table_format;
    uint32_t threads;
    /* What the command line fixes; 0 is free. */
    uint32_t micro_batch, micro_batches, prompt_tokens;
    /* The workload's bounds; 0 sums are unknown. */
    uint64_t sequences, total_sum, prompt_sum;
    uint32_t prompt_max, total_max;
    /* Bytes that do not depend on the shape. */
    uint64_t scratch_bytes_per_thread, queue_bytes, process_bytes;
    uint64_t host_budget;
};

/* Bytes of the weights by kind: matrices in panels, tables row-major, vectors in f32. */
void aq_block_weight_bytes(const struct aq_block_inputs *in, uint64_t *ret_matrices,
                           uint64_t *ret_vectors);

/* Chooses *ret and fills the ledger; every line is the bytes aq_mem_alloc is asked for (rounded).
 * -ENOMEM: the sentence says the shortfall and the largest block that fits, or that none does. */
int aq_block_choose(struct aq_block_shape *ret, struct aq_ledger *ledger,
                    const struct aq_block_inputs *in, struct aq_err *reterr);

/* Upper bound of the bookkeeping per row and seat (ids, positions, seats, attention descriptors).
 */
uint64_t aq_block_rows_bytes(const struct aq_block_shape *s);

/* Pages that sequences of this many keys need, all layers together. */
uint64_t aq_block_pages(const struct aq_block_shape *s, uint32_t layers, uint64_t keys);

#endif
