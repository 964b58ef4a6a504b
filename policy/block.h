/* SPDX-License-Identifier: Apache-2.0
 * policy/block.h - the shape of a block and its memory.  A plain rule chooses: the largest number
 * of seats (up to a cap where products stop gaining) whose ledger fits the budgets, then as much of
 * the weights in memory as is left.  Where the machine's rates are known, the planner
 * (policy/planner.h) looks for a faster one.  Pure. */
#ifndef AQ_POLICY_BLOCK_H
#define AQ_POLICY_BLOCK_H

#include "base/err.h"
#include "policy/hw.h"
#include "policy/ledger.h"
#include "policy/plan.h"
#include "policy/program.h"
#include "policy/stream.h"

/* Seats beyond this gain nothing on a CPU: products are compute-bound from about 128 rows on. */
enum { AQ_BLOCK_SEATS_CAP = 256, AQ_BLOCK_TILE_ROWS = 512, AQ_BLOCK_HEAD_TILE_ROWS = 128 };
enum { AQ_BLOCK_PROMPT_TOKENS = 4096 };
/* Of a block that would not fit otherwise. */
enum { AQ_BLOCK_TIGHT_TILE_ROWS = 64, AQ_BLOCK_TIGHT_HEAD_ROWS = 16 };
/* The weight ring: chunks of this many bytes (larger where a panel is), and bytes of the ring where
 * nobody says: this many times what one group of ops needs at once. */
#define AQ_BLOCK_CHUNK_BYTES (16 * AQ_MIB)
enum { AQ_BLOCK_RING_STEPS = 2 };
/* Unless larger chunks make fewer, about as many chunks stream in a pass at most. */
enum { AQ_BLOCK_CHUNKS_MAX = 64 * 1024 };
/* Bytes of a staging slot for KV, if a seat does not need more. */
#define AQ_BLOCK_STAGE_BYTES (64 * AQ_MIB)

struct aq_block_inputs {
    const struct aq_model_steps *steps;
    enum aq_dtype compute, weight_format, kv_format, table_format;
    uint32_t threads;
    /* What the command line fixes; 0 is free. */
    uint32_t micro_batch, micro_batches, prompt_tokens;
    uint64_t chunk_bytes, prefetch_bytes;
    double ring_steps; /* the ring where it is free: so many groups; 0: AQ_BLOCK_RING_STEPS */
    const struct aq_placement *placement; /* NULL: chosen */
    enum aq_attention_side attention;
    bool attention_auto; /* chosen: on the host where KV lives there */
    /* Percent, where it is split: struct aq_plan; 0: chosen where the machine's rates are known,
     * else the usual half. */
    double split_host;
    bool one_side; /* never split where that is chosen: the sides' bits differ, and must not */
    bool separate, fuse_layer, alternate;
    bool gpu;                /* the separate device is one: struct aq_gpu_sizes */
    uint64_t context_bytes;  /* that its driver holds */
    double host_products;    /* percent: struct aq_plan */
    bool host_products_auto; /* chosen instead: of a few, where the machine's rates are known */
    const struct aq_hardware *hw; /* rates to rank blocks with; NULL: the plain rule */
    uint64_t
        plan_ops; /* that the planner may build and simulate; 0: as many as a few seconds take */
    /* Where nothing fits else: the smallest ring and tiles that do, and one prompt at a time. */
    bool tight;
    bool refill, serial; /* how they are ranked: struct aq_forecast_work */
    bool can_stream;     /* the weights are in a packed store, or can be put into one */
    /* The workload's bounds; 0 sums are unknown. */
    uint64_t sequences, total_sum, prompt_sum;
    uint32_t prompt_max, total_max;
    struct aq_kv_policy kv; /* all zero: full */
    /* Bytes that do not depend on the shape. */
    uint64_t scratch_bytes_per_thread, queue_bytes, process_bytes;
    uint64_t trace_bytes_per_op;    /* 0: nothing is recorded */
    uint64_t budget[AQ_TIER_COUNT]; /* device: of a separate one */
};

/* A plan with everything that follows from it.  Zero-initialise before the first use. */
struct aq_block {
    struct aq_plan plan;
    struct aq_stream stream;
    struct aq_program program;
    struct aq_ledger ledger;
    bool tight; /* as in the inputs; a forecast does not see what small tiles cost */
};
void aq_block_close(struct aq_block *b);

/* Bytes of the weights by kind: matrices in panels, tables row-major, vectors in f32. */
void aq_block_weight_bytes(const struct aq_block_inputs *in, uint64_t *ret_matrices,
                           uint64_t *ret_vectors);

/* Of a block of so many seats in each micro-batch: its shape, and the bytes of its KV, all of it in
 * memory or all of it on disk, with what stays in host memory of that. */
struct aq_block_sizes {
    struct aq_block_shape shape;
    uint64_t kv_memory, kv_disk, kv_tails;
};
void aq_block_sizes(struct aq_block_sizes *ret, const struct aq_block_inputs *in, uint32_t seats);

/* Chooses *ret, and only if nothing fits with buffers of the usual sizes one with the smallest;
 * every line of the ledger is the bytes aq_mem_alloc is asked for (rounded).
 * -ENOBUFS: the sentence says the shortfall and the largest block that fits, or that none does;
 * -EINVAL: a placement that does not add up, a ring that is too small; -ENOMEM: this process had no
 * memory to look, which says nothing of what fits. */
int aq_block_choose(struct aq_block *ret, const struct aq_block_inputs *in, struct aq_err *reterr);

/* The least that the inputs ask for, fitting or not, to say by how much it does not: what they fix,
 * else one seat with the smallest buffers, and weights, KV, head and hidden states each on the tier
 * where the fewest bytes are lacking; first tried with everything on disk that may be there.
 * -EINVAL: there is no such program; -ENOMEM: of this process. */
int aq_block_least(struct aq_block *ret, const struct aq_block_inputs *in, struct aq_err *reterr);

/* What the buffer of a slot class is called in the ledger and in the account of memory; NULL for
 * classes without one of their own. */
const char *aq_block_purpose(enum aq_slot_class c);

/* Rows of a product tile: normalised, between the halves of MLP, and embedded, one behind the
 * other. */
struct aq_block_tiles {
    uint64_t norm, inner, embed; /* bytes; whole cache lines but the last */
};
struct aq_block_tiles aq_block_tiles(const struct aq_plan *p, const struct aq_model_steps *m);

/* Upper bound of the bookkeeping per row and seat (ids, positions, seats, attention descriptors).
 */
uint64_t aq_block_rows_bytes(const struct aq_plan *p);

/* Pages that sequences of this many keys need, all layers together. */
uint64_t aq_block_pages(const struct aq_block_shape *s, uint32_t layers, uint64_t keys);

#endif
