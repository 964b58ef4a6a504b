/* SPDX-License-Identifier: Apache-2.0
 * policy/program.h - the schedule as data: the ops of one pass, as the body of a loop, with lanes,
 * dependencies and buffer slots.  Built once per plan; the same body serves prefill, decode and
 * mixed passes, and ops without work complete at issue.  Pure: it knows shapes, not weights,
 * sequences or threads. */
#ifndef AQ_POLICY_PROGRAM_H
#define AQ_POLICY_PROGRAM_H

#include "base/err.h"
#include "policy/steps.h"

enum aq_lane {
    AQ_LANE_COMPUTE,
    AQ_LANE_HOST_COMPUTE,
    AQ_LANE_H2D,
    AQ_LANE_D2H,
    AQ_LANE_DISK_READ,
    AQ_LANE_DISK_WRITE,
    AQ_LANE_CONTROL,
    AQ_LANE_COUNT,
};

enum aq_op_kind {
    AQ_OP_EMBED,        /* (k): rows of micro-batch k -> hidden */
    AQ_OP_PRE,          /* (j,k): norm, q k v */
    AQ_OP_ATTN_PREFILL, /* (j,k): prompt rows: store K and V, attend */
    AQ_OP_ATTN_DEVICE,  /* (j,k,part): decode rows, where the products run */
    AQ_OP_POST,         /* (j,k): output projection, residual */
    AQ_OP_MLP,          /* (j,k) */
    AQ_OP_HEAD,         /* (k): logits of the rows that need them, and the choice of tokens */
    AQ_OP_TURN,         /* (k): ends, seats and rows of micro-batch k for its next pass */
    AQ_OP_KIND_COUNT,
};

/* What a slot holds.  k-indexed classes have one slot per micro-batch; the others are workspace
 * that the compute lane's order keeps to one op at a time. */
enum aq_slot_class {
    AQ_SLOT_WEIGHTS, /* all steps' weights, resident */
    AQ_SLOT_ROWS,    /* [k] ids, positions, seats: written by TURN */
    AQ_SLOT_HIDDEN,  /* [k] residual stream */
    AQ_SLOT_KV,      /* [k] pages of its seats */
    AQ_SLOT_TOKENS,  /* [k] chosen tokens: written by HEAD */
    AQ_SLOT_QKV,
    AQ_SLOT_ATTENTION,
    AQ_SLOT_LOGITS,
    AQ_SLOT_CLASS_COUNT,
};

enum aq_use_mode { AQ_USE_READ, AQ_USE_WRITE, AQ_USE_UPDATE };

struct aq_use {
    uint16_t slot;
    uint8_t mode; /* enum aq_use_mode */
    /* What must be in the slot (READ, UPDATE) or is after the op (WRITE, UPDATE): the step and
     * micro-batch that produced it.  `pass` is relative: 0 this pass, -1 the one before. */
    uint32_t step;
    uint16_t micro_batch;
    int8_t pass;
};

struct aq_dep {
    uint32_t op;
    uint8_t back; /* 1: the previous pass's instance */
};

enum { AQ_OP_USE_MAX = 6, AQ_OP_DEP_MAX = 4 };

struct aq_op {
    uint8_t kind, lane;
    uint32_t step;
    uint16_t micro_batch, part;
    uint8_t use_count, dep_count;
    struct aq_use use[AQ_OP_USE_MAX];
    struct aq_dep dep[AQ_OP_DEP_MAX];
};

struct aq_slot {
    uint8_t slot_class, tier;
    uint16_t micro_batch;
    uint64_t bytes;
};

/* The numbers a plan fixes before the first pass. */
struct aq_block_shape {
    uint32_t micro_batch, micro_batches; /* seats per micro-batch, micro-batches per block */
    uint32_t prompt_tokens;              /* new prompt tokens a micro-batch admits per pass */
    uint32_t rows_max;                   /* rows a micro-batch may have in one pass */
    uint32_t tile_rows;                  /* rows of a product tile */
    uint32_t head_tile_rows;             /* rows whose logits are held at once */
    uint32_t page_slots;                 /* tokens per KV page */
    uint64_t page_bytes, page_count; /* of one layer; pages of all layers together in the pool */
    enum aq_dtype compute, kv_format;
};

struct aq_program {
    struct aq_op *op;
    uint32_t op_count;
    struct aq_slot *slot;
    uint32_t slot_count;
};

int aq_program_build(struct aq_program *ret, const struct aq_model_steps *steps,
                     const struct aq_block_shape *shape, struct aq_err *reterr);
void aq_program_close(struct aq_program *p);
const char *aq_op_name(enum aq_op_kind kind);
const char *aq_lane_name(enum aq_lane lane);

/* What a micro-batch does in a pass. */
struct aq_pass_shape {
    uint32_t decode_rows, prefill_rows, logit_rows;
    uint64_t decode_keys;       /* sum of keys over decode rows */
    uint64_t prefill_key_pairs; /* sum over prompt rows of the keys each sees */
};

/* What an op takes from the machine in such a pass. */
struct aq_op_cost {
    uint32_t rows;
    uint64_t flops;
    uint64_t bytes; /* weights and KV read */
};

/* Fills cost[op_count] for pass shapes shape[micro_batches].  Cheap: once per pass. */
void aq_program_annotate(struct aq_op_cost *cost, const struct aq_program *p,
                         const struct aq_model_steps *steps, const struct aq_block_shape *block,
                         const struct aq_pass_shape *shape);

#endif
