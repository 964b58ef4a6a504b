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

/* Seats of a micro-batch beyond this gain nothing on a CPU: products are bound by arithmetic from
 * about 128 rows on.  With a GPU they are from about 200 rows on (an H200's flops to a byte that it
 * reads), but fewer sweeps over weights that stream still count.  Rows of a product's tile: the
 * columns of 512 rows of a few thousand channels leave half of a large GPU without a tile. */
enum { AQ_BLOCK_SEATS_CAP = 256, AQ_BLOCK_GPU_SEATS_CAP = 1024 };
enum { AQ_BLOCK_TILE_ROWS = 512, AQ_BLOCK_GPU_TILE_ROWS = 2048, AQ_BLOCK_HEAD_TILE_ROWS = 128 };
enum { AQ_BLOCK_PROMPT_TOKENS = 4096 };
/* Tiles of a block that does not fit with the usual ones. */
enum { AQ_BLOCK_TIGHT_TILE_ROWS = 64, AQ_BLOCK_TIGHT_HEAD_ROWS = 16 };
/* The weight ring: bytes of a chunk (more where a panel is larger), and how many times the weights
 * of one group of ops the ring holds by default. */
#define AQ_BLOCK_CHUNK_BYTES (16 * AQ_MIB)
enum { AQ_BLOCK_RING_STEPS = 2 };
/* Chunks of a pass, about: above this number chunks are made larger. */
enum { AQ_BLOCK_CHUNKS_MAX = 64 * 1024 };
/* Bytes of a staging slot for KV, unless one seat needs more. */
#define AQ_BLOCK_STAGE_BYTES (64 * AQ_MIB)

struct aq_block_inputs {
    const struct aq_model_steps *steps;
    enum aq_dtype compute, weight_format, kv_format, table_format;
    enum aq_dtype products; /* what products are computed in: compute, or AQ_Q8 on bf16 rows */
    uint32_t threads;
    /* What the command line fixes; 0 is free. */
    uint32_t micro_batch, micro_batches, prompt_tokens;
    uint64_t chunk_bytes, prefetch_bytes;
    double ring_steps;    /* groups that a free ring holds; 0: AQ_BLOCK_RING_STEPS */
    uint64_t stage_bytes; /* most of a staging slot of KV; 0: AQ_BLOCK_STAGE_BYTES */
    const struct aq_placement *placement; /* NULL: chosen */
    enum aq_attention_side attention;
    bool attention_auto; /* chosen: on the host where KV lives there */
    /* Percent of split attention that the host does (struct aq_plan); 0: chosen where the machine's
     * rates are known, else the usual half. */
    double split_host;
    bool one_side; /* a chosen side is never split: the bits of host and device differ */
    bool separate, fuse_layer, alternate;
    /* struct aq_plan, where there are several micro-batches and no separate device; and whether the
     * planner may choose it, where the machine's rates are known. */
    bool side_by_side, side_by_side_auto;
    bool gpu;                /* the separate device is a GPU: struct aq_gpu_sizes */
    uint64_t context_bytes;  /* held by the GPU's driver */
    double host_products;    /* percent: struct aq_plan */
    bool host_products_auto; /* chosen among a few shares, where the machine's rates are known */
    const struct aq_hardware *hw; /* rates to rank blocks with; NULL: the plain rule */
    uint64_t plan_ops; /* ops that the planner may build and simulate; 0: as a few seconds allow */
    /* Where no other block fits: the smallest ring and tiles, and one prompt at a time. */
    bool tight;
    bool refill, serial; /* what blocks are ranked for: struct aq_forecast_work */
    bool can_stream;     /* the weights are in a packed store, or can be packed */
    /* The workload's bounds; 0 sums are unknown. */
    uint64_t sequences, total_sum, prompt_sum;
    uint64_t shared_sum; /* of prompt_sum: what each has in common with the prompt before it, in
                            steps of AQ_HEAD_BLOCK_SLOTS */
    uint32_t prompt_max, total_max, new_max; /* new_max: most new tokens; 0: unknown */
    /* Lengths of the sequences, as aq_forecast_job() takes them; NULL: unknown. */
    const struct aq_length *length;
    uint32_t length_count;
    struct aq_kv_policy kv; /* all zero: full */
    /* Bytes that do not depend on the shape. */
    uint64_t scratch_bytes_per_thread, queue_bytes, process_bytes;
    uint64_t codes_bytes;           /* of rows, where products are computed on codes */
    uint64_t trace_bytes_per_op;    /* 0: nothing is recorded */
    bool scratch_sums;              /* a checksum is kept of each run of KV on disk */
    uint64_t budget[AQ_TIER_COUNT]; /* AQ_DEVICE: of a separate device */
};

/* A plan with everything that follows from it.  Zero-initialise before the first use. */
struct aq_block {
    struct aq_plan plan;
    struct aq_stream stream;
    struct aq_program program;
    struct aq_ledger ledger;
    bool tight; /* as in the inputs; forecasts do not count the cost of small tiles */
};
void aq_block_close(struct aq_block *b);
static inline void aq_block_swap(struct aq_block *a, struct aq_block *b)
{
    struct aq_block was = *a;
    *a = *b;
    *b = was;
}

/* Most bytes of a staging slot of KV for these inputs: those that they ask for, within a share of
 * its memory, or the usual ones. */
uint64_t aq_block_stage_bytes(const struct aq_block_inputs *in);
/* Slots that a mean sequence of such a plan has of the pages of another; 0: sequences drop keys, or
 * have nothing in common, so that nothing is shared. */
double aq_block_shared_slots(const struct aq_block_inputs *in, const struct aq_block_shape *shape,
                             const struct aq_kv_kinds *kinds);

/* Bytes of the weights by kind: matrices in panels, tables row-major, vectors in f32. */
void aq_block_weight_bytes(const struct aq_block_inputs *in, uint64_t *ret_matrices,
                           uint64_t *ret_vectors);

/* A block with `seats` seats in each micro-batch: its shape and the kinds of the model's layers;
 * the bytes of its KV, if all KV is in memory, where sequences share it or do not, or if all is on
 * disk; and the tails, or residuals, that KV on disk keeps in host memory. */
struct aq_block_sizes {
    struct aq_block_shape shape;
    struct aq_kv_kinds kinds;
    uint64_t kv_memory, kv_shared, kv_disk, kv_tails;
};
void aq_block_sizes(struct aq_block_sizes *ret, const struct aq_block_inputs *in, uint32_t seats);

/* Chooses *ret.  The smallest buffers are taken only if no block fits with the usual ones.  Every
 * line of the ledger has the (rounded) bytes that aq_mem_alloc is called with.  -ENOBUFS: the
 * sentence says the shortfall and the largest block that fits, or that none does; -EINVAL: a
 * placement that does not add up, a ring that is too small; -ENOMEM: this process ran out of
 * memory, which says nothing about blocks. */
int aq_block_choose(struct aq_block *ret, const struct aq_block_inputs *in, struct aq_err *reterr);

/* The least block that the inputs allow, for saying how much memory is missing, so it need not fit:
 * the choices that the inputs fix, else one seat with the smallest buffers, and weights, KV, head
 * and hidden states each on the tier where the fewest bytes are missing.  The search begins with
 * everything on disk that may be there.  -EINVAL: no program can be built; -ENOMEM: of this
 * process. */
int aq_block_least(struct aq_block *ret, const struct aq_block_inputs *in, struct aq_err *reterr);

/* Has the lane host_compute work: for a separate device, or side by side? */
bool aq_block_host_lane(const struct aq_block *b);

/* Name of a slot class's buffer in the ledger and in the account of memory; NULL: the class has no
 * buffer of its own. */
const char *aq_block_purpose(enum aq_slot_class c);

/* The arrays of a product tile, one behind the other: normalised rows, rows between two products of
 * one op, rows of the rotary table, and embedded rows. */
struct aq_block_tiles {
    uint64_t norm, inner, rotary, embed; /* bytes; whole cache lines but the last */
    uint64_t bytes;                      /* of all */
};
struct aq_block_tiles aq_block_tiles(const struct aq_plan *p, const struct aq_model_steps *m);

/* Upper bound of the bookkeeping per row and seat (ids, positions, seats, attention descriptors).
 */
uint64_t aq_block_rows_bytes(const struct aq_plan *p);

/* May KV live on this tier?  Not on the disk where heads of all layers share, nor in the memory of
 * a separate device where rows choose what they read. */
bool aq_block_kv_may(const struct aq_block_inputs *in, enum aq_tier tier);

/* Pages that a sequence with this many keys needs in `layers` layers. */
uint64_t aq_block_pages(const struct aq_block_shape *s, uint32_t layers, uint64_t keys);

#endif
