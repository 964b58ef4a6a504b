/* SPDX-License-Identifier: Apache-2.0
 * policy/program.h - the schedule as data: the ops of one pass, as the body of a loop, with lanes,
 * dependencies and buffer slots.  Built once per plan; the same body serves prefill, decode and
 * mixed passes, and ops without work complete at issue.  Pure: it knows shapes, not weights,
 * sequences or threads.
 *
 * Played one after the other, the ops of the array are a correct serial program.  deps say which
 * ops may not be reordered when lanes run side by side: same-pass deps point to smaller indices,
 * back deps to the op of the previous pass.  Each lane starts its ops in array order.  Lanes also
 * finish them in that order, except the disk lanes, whose ops are in flight together. */
#ifndef AQ_POLICY_PROGRAM_H
#define AQ_POLICY_PROGRAM_H

#include "base/err.h"
#include "policy/plan.h"
#include "policy/stream.h"

enum aq_lane {
    AQ_LANE_COMPUTE,
    AQ_LANE_HOST_COMPUTE,
    AQ_LANE_H2D,
    AQ_LANE_D2H,
    AQ_LANE_DISK_READ,
    AQ_LANE_DISK_WRITE,
    /* Weights have lanes of their own, which share link and disk with h2d and disk_read: moves that
     * a micro-batch waits for must not queue behind weights that are needed later, nor delay the
     * weights of the next pass. */
    AQ_LANE_H2D_WEIGHTS,
    AQ_LANE_READ_WEIGHTS,
    AQ_LANE_CONTROL,
    AQ_LANE_COUNT,
};

enum aq_op_kind {
    AQ_OP_READ,         /* object: disk -> host memory */
    AQ_OP_WRITE,        /* object: host memory -> disk */
    AQ_OP_H2D,          /* object: host -> device memory */
    AQ_OP_D2H,          /* object: device -> host memory */
    AQ_OP_UNPACK,       /* (j): quantised weights of a step -> compute type */
    AQ_OP_EMBED,        /* (k): rows of micro-batch k -> hidden */
    AQ_OP_PRE,          /* (j,k): norm, q k v */
    AQ_OP_ATTN_PREFILL, /* (j,k,part): prompt rows: store K and V, attend */
    AQ_OP_ATTN_DEVICE,  /* (j,k,part): decode rows, where the products run */
    AQ_OP_ATTN_HOST,    /* (j,k,part): decode rows, on the host next to the KV */
    AQ_OP_POST,         /* (j,k): output projection, residual */
    AQ_OP_MLP,          /* (j,k) */
    AQ_OP_MLP_UP,       /* (j,k): its products up to the inner width */
    AQ_OP_MLP_DOWN,     /* (j,k): its products from there back, residual */
    AQ_OP_PRODUCT_HOST, /* (j,k,of): columns of a product whose panels rest on the host */
    AQ_OP_MERGE,        /* (j,k,of): those columns into the output; prims behind the product */
    AQ_OP_HEAD,         /* (k): logits of the rows that need them, and the choice of tokens */
    AQ_OP_TURN,         /* (k): ends sequences, fills seats and rows of micro-batch k's next pass */
    AQ_OP_KIND_COUNT,
};

enum aq_object {
    AQ_OBJECT_NONE,
    AQ_OBJECT_WEIGHTS,   /* index: chunk; of UNPACK: step */
    AQ_OBJECT_ROWS,      /* ids, positions, seats of (k) */
    AQ_OBJECT_HIDDEN,    /* residual stream of (k) after step `index` */
    AQ_OBJECT_QKV,       /* of (step, k) */
    AQ_OBJECT_ATTENTION, /* outputs of (step, k, part) */
    AQ_OBJECT_KV,        /* of (step, k, part) */
    AQ_OBJECT_KV_PROMPT, /* of (step, k, part): of prompts before they are cut */
    AQ_OBJECT_INNER,     /* of (step, k) */
    AQ_OBJECT_LOGITS,
    AQ_OBJECT_TOKENS, /* chosen tokens of (k) */
    /* Of a product with columns of the host; index: aq_product_index(). */
    AQ_OBJECT_INPUT,   /* the op's input rows, on the host */
    AQ_OBJECT_COLUMNS, /* the host's columns */
    AQ_OBJECT_PARTIAL, /* the op's output without these columns */
    AQ_OBJECT_COUNT,
};

/* The kind of object that a slot holds.  Slots of a class are numbered from aq_program.first[class]
 * on, by the indices in brackets, the last index running fastest. */
enum aq_slot_class {
    AQ_SLOT_RING,           /* [ring] weight chunks in the device's memory */
    AQ_SLOT_STAGING,        /* [staging] weight chunks on their way from disk, in host memory */
    AQ_SLOT_UNPACKED,       /* a step's weights in the compute type */
    AQ_SLOT_ROWS,           /* [k] written by TURN */
    AQ_SLOT_TOKENS,         /* [k] written by HEAD */
    AQ_SLOT_HIDDEN,         /* [hidden_slots or k] residual stream where products run */
    AQ_SLOT_HIDDEN_HOST,    /* [k] residual stream at home, or on its way to disk, in host memory */
    AQ_SLOT_HIDDEN_DISK,    /* [k] residual stream at home on disk */
    AQ_SLOT_QKV,            /* [workspace] */
    AQ_SLOT_ATTENTION,      /* [workspace][part] */
    AQ_SLOT_QKV_HOST,       /* [workspace][part] */
    AQ_SLOT_ATTENTION_HOST, /* [workspace][part] */
    AQ_SLOT_KV,             /* [layer][k][part] home of the KV */
    AQ_SLOT_KV_HOST,        /* [stage] a part's KV of one layer, on its way, in host memory */
    AQ_SLOT_KV_DEVICE,      /* [stage] the same in the device's memory */
    AQ_SLOT_KV_PREFILL,     /* one, where keys are dropped: a prompt while it is attended and cut */
    AQ_SLOT_INNER,          /* [k], or one: the rows that MLP_UP leaves for MLP_DOWN */
    AQ_SLOT_LOGITS,
    AQ_SLOT_INPUT_HOST,   /* [host] rows for a product on the host */
    AQ_SLOT_COLUMNS_HOST, /* [host] the columns that it computed, in host memory */
    AQ_SLOT_COLUMNS,      /* [host] the same in the device's memory */
    AQ_SLOT_CLASS_COUNT,
};

enum aq_use_mode { AQ_USE_READ, AQ_USE_WRITE, AQ_USE_UPDATE };

/* The object that is, or must be, in a slot. */
struct aq_tag {
    uint8_t object; /* enum aq_object */
    int8_t pass;    /* relative: 0 this pass, -1 the one before; 0 for weights, which do not age */
    uint16_t micro_batch, part;
    uint32_t index; /* step or chunk */
};

struct aq_use {
    uint32_t slot;
    uint8_t mode;        /* enum aq_use_mode */
    struct aq_tag need;  /* READ, UPDATE: the slot's tag before the op */
    struct aq_tag leave; /* WRITE, UPDATE: the slot's tag after the op */
};

struct aq_dep {
    uint32_t op;
    uint8_t back; /* 1: the op of the previous pass */
};

struct aq_op {
    uint8_t kind, lane, object;
    /* PRODUCT_HOST, MERGE, and moves of INPUT and COLUMNS: the kind of the op that has the product;
     * other ops: 0. */
    uint8_t of;
    uint16_t micro_batch, part;
    uint32_t step;
    uint32_t chunk; /* moves of weights */
    /* Indices of slots.  workspace: the copy of the workspace; stage: the slot of HIDDEN, or of the
     * stages of KV.  Moves of KV have the slot of KV_DEVICE in stage and that of KV_HOST in
     * workspace.  Moves of hidden states over the link have the slot of HIDDEN in stage and that of
     * HIDDEN_HOST in workspace; moves between disk and memory have the slot of HIDDEN_HOST in
     * stage.  Where `of` is set, the slot of INPUT and COLUMNS is in stage, and the slot of the
     * op's input (D2H of INPUT) or output (MERGE) in workspace. */
    uint32_t workspace, stage;
    uint32_t use_first, dep_first;
    uint32_t use_count, dep_count;
    uint64_t bytes_max; /* moves: at most this many */
};

struct aq_slot {
    uint8_t slot_class, tier;
    uint64_t bytes;
};

struct aq_program {
    struct aq_op *op;
    struct aq_use *use;
    struct aq_dep *dep;
    struct aq_slot *slot;
    uint32_t op_count, use_count, dep_count, slot_count;
    uint32_t op_room, use_room, dep_room;    /* of the arrays */
    bool ordered;                            /* deps are there */
    uint32_t first[AQ_SLOT_CLASS_COUNT + 1]; /* slots of a class */
    uint32_t parts, micro_batches;
};

/* Ops, uses and slots: what a ledger counts.  *ret: zeros, or an earlier program, which this one
 * replaces: a planner builds many, and their arrays serve again.  On failure it is closed.
 * -ENOBUFS: the ring is too small for the weights that one group of ops needs; the sentence says
 * how large it must be. */
int aq_program_build(struct aq_program *ret, const struct aq_model_steps *steps,
                     const struct aq_plan *plan, const struct aq_stream *stream,
                     struct aq_err *reterr);
/* The deps, for whoever plays or runs it.  0, also where they are there already, or -ENOMEM. */
int aq_program_order(struct aq_program *p, struct aq_err *reterr);
void aq_program_close(struct aq_program *p);
/* No program any more, but arrays for the next one. */
void aq_program_clear(struct aq_program *p);
/* Bytes of the buffer of a class: all its slots, each rounded up to 4096. */
uint64_t aq_program_class_bytes(const struct aq_program *p, enum aq_slot_class c);
/* Does the host compute columns of some product? */
bool aq_program_host_products(const struct aq_program *p);
/* Has the host of a separate device anything to compute: attention or columns of products? */
bool aq_program_host_computes(const struct aq_program *p);
const char *aq_op_name(enum aq_op_kind kind);
const char *aq_lane_name(enum aq_lane lane);
const char *aq_object_name(enum aq_object object);
const char *aq_slot_class_name(enum aq_slot_class c);

static inline const struct aq_use *aq_op_uses(const struct aq_program *p, const struct aq_op *op)
{
    return p->use + op->use_first;
}
static inline const struct aq_dep *aq_op_deps(const struct aq_program *p, const struct aq_op *op)
{
    return p->dep + op->dep_first;
}
/* Do ops of this lane finish in the order in which they start? */
static inline bool aq_lane_in_order(enum aq_lane lane)
{
    return lane != AQ_LANE_DISK_READ && lane != AQ_LANE_DISK_WRITE && lane != AQ_LANE_READ_WEIGHTS;
}

/* The half of its step that an op computing rows runs; MLP runs both, and the result is the
 * first. */
static inline uint32_t aq_op_half(enum aq_op_kind kind)
{
    return kind == AQ_OP_POST || kind == AQ_OP_MLP_DOWN;
}

/* The index in tags of INPUT, COLUMNS and PARTIAL: the product's half of a step. */
static inline uint32_t aq_product_index(enum aq_op_kind kind, uint32_t step)
{
    return AQ_STEP_HALVES * step + aq_op_half(kind);
}

/* The primitives that an op of this kind runs in a step: a list of the step's own, or *room, where
 * those of both halves are joined.  Plans ask for each of their ops, so none is copied for nothing.
 */
const struct aq_prim_list *aq_op_prims(struct aq_prim_list *room, enum aq_op_kind kind,
                                       const struct aq_step_desc *step);

/* Do the primitives of an op of this kind need the micro-batch's ids, positions or list of logits?
 */
bool aq_op_reads_rows(enum aq_op_kind kind, const struct aq_step_desc *step);

/* Does an op of this kind compute with the matrix of the step? */
bool aq_op_uses_matrix(enum aq_op_kind kind, const struct aq_step_desc *step, uint32_t matrix);

/* The work of a part with its KV in a layer of one kind (policy/kv_kinds.h), in a pass. */
struct aq_kv_work {
    uint64_t decode_keys;       /* keys attended, summed over decode rows: slots held */
    uint64_t decode_slots;      /* slots read, summed over decode rows: whole head-blocks */
    uint64_t decode_joint;      /* of these those that a row reads at once with the row in front */
    uint64_t prefill_key_pairs; /* keys attended, summed over prompt rows */
    uint64_t stat_key_pairs;    /* the same in prompts whose keys get scores */
    /* KV that moves: read from and written to disk, loaded to the side that attends, and stored
     * back from there. */
    uint64_t read_bytes, write_bytes, load_bytes, store_bytes;
};

/* The work of a part of a micro-batch in a pass. */
struct aq_part_shape {
    uint32_t decode_rows, prefill_rows;
    struct aq_kv_work *kv; /* [kinds of layers] */
};

/* The work of a micro-batch in a pass. */
struct aq_pass_shape {
    uint32_t decode_rows, prefill_rows, logit_rows;
    struct aq_part_shape part[AQ_PART_MAX];
};

/* Shapes of all micro-batches of a plan, with no work yet, in one piece that free() takes; NULL: no
 * memory. */
struct aq_pass_shape *aq_pass_shapes_new(const struct aq_plan *plan);
/* Takes all work out of a shape. */
void aq_pass_shape_clear(struct aq_pass_shape *s, const struct aq_plan *plan);

/* What an op costs in a pass of this shape.  An op whose costs are all 0 has no work. */
struct aq_op_cost {
    uint32_t rows;
    uint64_t flops;
    uint64_t short_flops;  /* products: flops, each times the shortness of its K (policy/hw.h) */
    uint64_t memory_bytes; /* weights and KV read or written by the side that computes */
    uint64_t joint_bytes;  /* decode attention: of these those that a row reads at once with the row
                              in front */
    uint64_t row_bytes;    /* rows that pass between primitives, read and written */
    uint64_t heads;        /* attention: query heads of all rows */
    uint32_t head_dim;     /* attention: size of a head */
    uint32_t group;        /* attention: query heads that share a head of keys; 0: as 1 */
    enum aq_dtype weights; /* products: format of the weights read; UNPACK: their packed format */
    uint64_t move_bytes;   /* over the lane's link or disk */
};

/* Fills cost[op_count] for pass shapes shape[micro_batches].  Cheap: once per pass. */
void aq_program_annotate(struct aq_op_cost *cost, const struct aq_program *p,
                         const struct aq_model_steps *steps, const struct aq_plan *plan,
                         const struct aq_stream *stream, const struct aq_pass_shape *shape);
static inline bool aq_op_has_work(const struct aq_op *op, const struct aq_op_cost *c)
{
    return op->kind == AQ_OP_TURN || c->rows || c->move_bytes;
}

#endif
