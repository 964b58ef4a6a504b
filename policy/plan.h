/* SPDX-License-Identifier: Apache-2.0
 * policy/plan.h - the decisions of a run before a byte moves: block shape, placement, rings, parts
 * and sides.  Plain data: filled by policy/block.c (or by hand in tests), read by the program
 * builder, the ledger, the simulator and the executor. */
#ifndef AQ_POLICY_PLAN_H
#define AQ_POLICY_PLAN_H

#include "base/err.h"
#include "policy/kv_kinds.h"

/* The numbers of a block. */
struct aq_block_shape {
    uint32_t micro_batch, micro_batches; /* seats per micro-batch, micro-batches per block */
    uint32_t prompt_tokens;              /* new prompt tokens a micro-batch admits per pass */
    uint32_t rows_max;                   /* rows a micro-batch may have in one pass */
    uint32_t tile_rows;                  /* rows of a product tile */
    uint32_t head_tile_rows;             /* rows whose logits are held at once */
    uint32_t page_slots;                 /* tokens per KV page */
    uint64_t page_bytes;                 /* of one layer */
    uint64_t run_bytes;       /* 32 slots of all KV heads of one layer; a page is made of runs */
    uint64_t bound_bytes;     /* bounds of the keys of such a run, where rows may choose by them */
    uint64_t plain_run_bytes; /* with a residual (policy/kv_residual.h) such a run in f16; else 0 */
    /* Pages of all layers together in the pool of a tier.  On disk every seat has pages for the
     * longest sequence. */
    uint64_t page_count[AQ_TIER_COUNT];
    uint32_t prompt_max;   /* longest prompt */
    uint32_t prompt_rooms; /* prompts that are cut or encoded side by side, each in scratch */
    /* Most slots that a sequence comes to hold in each head, or on average where heads share them,
     * in the layers that hold most (struct aq_kv_kinds).  Its positions may go beyond. */
    uint32_t keys_max;
    uint32_t positions_max; /* most tokens of a sequence, prompt and new ones */
    enum aq_dtype compute, products, kv_format, weight_format; /* as struct aq_block_inputs */
};

/* Percent per tier, adding up to 100.  Where device and host are one memory the device's share
 * counts as the host's. */
struct aq_shares {
    double percent[AQ_TIER_COUNT];
};

struct aq_placement {
    struct aq_shares weights; /* the layers' matrices */
    struct aq_shares kv;      /* seats of every micro-batch */
    struct aq_shares hidden;  /* micro-batches */
    enum aq_tier head;        /* token table and LM head */
};

enum aq_attention_side { AQ_ATTEND_DEVICE, AQ_ATTEND_HOST, AQ_ATTEND_SPLIT };
/* Default percentage of split attention that the host does. */
#define AQ_SPLIT_HOST_PERCENT 50.0

enum { AQ_PART_MAX = 64 };

/* A part: seats [first, first + count) of every micro-batch, whose KV lives in one tier and is
 * attended on one side.  staged: its KV passes through a staging slot in the memory of that side,
 * a layer at a time. */
struct aq_part {
    uint32_t first, count;
    uint8_t tier; /* enum aq_tier: home of the KV */
    uint8_t side; /* AQ_ATTEND_DEVICE or AQ_ATTEND_HOST */
    bool staged;
};

struct aq_plan {
    struct aq_block_shape shape;
    struct aq_placement placement;
    struct aq_kv_policy kv; /* of layers without a window; all zero: full */
    struct aq_kv_kinds kinds;
    bool separate;        /* the device has memory of its own, behind links */
    uint64_t chunk_bytes; /* of the weight ring: most bytes of a chunk */
    uint32_t ring_chunks; /* slots of the ring wanted; the stream may take a few less */
    double ring_steps;    /* groups in the ring as the planner chose (policy/block.h); 0: default */
    uint32_t staging_chunks; /* host slots between disk and a separate device */
    uint32_t kv_stages;      /* staging slots for parts, in each memory that has any */
    uint64_t stage_bytes;    /* most of a slot as it was chosen; 0: as usual (policy/block.h) */
    uint32_t workspaces;     /* copies of the q k v and attention buffers (>= 2 to overlap sides) */
    uint32_t hidden_slots;   /* working copies of residual streams that live on other tiers */
    struct aq_part part[AQ_PART_MAX];
    uint32_t part_count; /* at least 1 */
    /* With split attention: percent that the host attends, of the seats whose KV is not on a
     * separate device; else 0. */
    double split_host;
    bool fuse_layer; /* both halves of a layer in one visit of a micro-batch */
    /* MLP in two ops, so that the ring need not hold all its weights at once.  The rows between the
     * two ops are kept, for all rows of the micro-batch. */
    bool split_mlp;
    bool alternate; /* steps visit micro-batches up and down in turn */
    /* Decode rows are attended on a lane of their own, beside the products of other micro-batches,
     * by the same threads (hw.h: aq_hardware_aside).  Never with a separate device, and only with
     * several micro-batches. */
    bool side_by_side;
    bool unpack; /* weights in a quantised format are unpacked once per step and pass */
    /* Percent of the layers' panels in host memory that do not stream to a separate device: the
     * host computes the columns of these panels, a share of every product.  In MLP this needs
     * split_mlp, because the rows between the halves must be moved to the host. */
    double host_products;
};

/* Lanes whose ops attend at the same time, with work space for each. */
static inline uint32_t aq_plan_attending(const struct aq_plan *p)
{
    return p->separate || p->side_by_side ? 2 : 1;
}

/* Seats of a micro-batch whose KV lives in each tier: shares rounded to seats, the largest
 * remainders first; the numbers add up to count. */
void aq_plan_kv_seats(uint32_t seats[AQ_TIER_COUNT], const struct aq_shares *kv, uint32_t count);
/* The tier in which micro-batch k's residual stream rests between steps. */
enum aq_tier aq_plan_hidden_tier(const struct aq_plan *p, uint32_t k);

/* Most bytes of one layer's KV of a part: the size of a staging slot. */
uint64_t aq_plan_part_bytes(const struct aq_plan *p, const struct aq_part *part);

/* The policy of the layers of kind number `kind`. */
static inline struct aq_kv_policy aq_plan_kind_policy(const struct aq_plan *p, uint32_t kind)
{
    return aq_kv_kind_policy(&p->kinds.kind[kind], &p->kv);
}
static inline const struct aq_kv_policy *
aq_plan_kind_policy_in(struct aq_kv_policy *room, const struct aq_plan *p, uint32_t kind)
{
    return aq_kv_kind_policy_in(room, &p->kinds.kind[kind], &p->kv);
}

/* Lays out the parts by placement, attention side and p->split_host; part_seats: most seats of a
 * staged part (0: no limit). */
int aq_plan_parts(struct aq_plan *p, enum aq_attention_side side, uint32_t part_seats,
                  struct aq_err *reterr);

/* The side that attends KV outside the memory of the products; false: all KV is inside. */
bool aq_plan_attention(enum aq_attention_side *ret, const struct aq_plan *p);

/* Checks shares (0..100 each, adding up to 100 within 0.01): -EINVAL names the line and its sum. */
int aq_placement_check(const struct aq_placement *p, struct aq_err *reterr);

#endif
