/* SPDX-License-Identifier: Apache-2.0
 * policy/kv_layout.h - sizes and offsets of the arrays that a KV cache has beside K and V: scores,
 * positions and victims of slots, the delta of sequences on disk, and scratch for prompts that are
 * cut (all 0 where the policy drops nothing); and the tables of the addresses of K and V.  Pure. */
#ifndef AQ_POLICY_KV_LAYOUT_H
#define AQ_POLICY_KV_LAYOUT_H

#include "policy/plan.h"

/* Arrays of one (sequence, layer), in the memory of the side that attends; offsets in bytes.  All
 * but the residual are 0 in layers that drop no keys. */
struct aq_kv_layout {
    uint32_t stride;   /* slots of a row: most slots of a head, rounded up to 32 */
    uint64_t score;    /* f32 [kv_heads][stride], where the policy has scores */
    uint64_t position; /* u32 [kv_heads][stride]; until a prompt that is cut over all layers is cut
                          the ranks of its keys */
    uint64_t victim;   /* u32 [kv_heads] */
    uint64_t cost;     /* u32 [kv_heads][stride / 32], where heads of all layers share, */
    uint64_t gone;     /* u32 [kv_heads], and head-blocks that went when the layer was cut */
    uint64_t rule;     /* u32 [kv_heads] rules, where each head has one, and */
    uint64_t grown;    /* u32 [kv_heads] slots that a head has taken since the prompt was cut */
    uint64_t residual; /* the ring of f16 runs (policy/kv_residual.h) */
    uint64_t bytes;
};
/* The purpose of these arrays in the ledger. */
const char *aq_kv_layout_purpose(const struct aq_plan *plan);
/* Of a layer of kind number `kind`. */
void aq_kv_layout_slots(struct aq_kv_layout *ret, const struct aq_plan *plan, uint32_t kind,
                        uint32_t kv_heads);

/* The delta of a (sequence, layer) on disk: a run of rows that are not yet written to their slots
 * on disk, and the numbers of these slots.  Layers that drop no keys have none. */
struct aq_kv_delta_layout {
    uint64_t target; /* u32 [kv_heads][32] slots of the rows; UINT32_MAX: no row */
    uint64_t bytes;
};
void aq_kv_layout_delta(struct aq_kv_delta_layout *ret, const struct aq_plan *plan,
                        uint32_t kv_heads);

/* What a row with `held` slots works on: keys that it computes with (bounds are half of what a key
 * is), and slots that it reads, in slots of the cache's format: whole head-blocks, and bounds.
 * `read`: of the policy of the layer. */
struct aq_kv_reads {
    uint64_t keys, slots;
};
struct aq_kv_reads aq_kv_reads_of(const struct aq_block_shape *shape,
                                  const struct aq_kv_residual *residual, uint32_t read,
                                  uint32_t held);
/* Bounds of the keys of one sequence in a layer of this kind, of whole groups of head-blocks; 0:
 * its rows read all.  Groups of a head; bytes in all layers. */
uint32_t aq_kv_bound_groups_of(const struct aq_kv_kind *kind);
uint64_t aq_kv_bounds_bytes(const struct aq_block_shape *shape, const struct aq_kv_kind *kind);
uint64_t aq_kv_kinds_bounds_bytes(const struct aq_block_shape *shape,
                                  const struct aq_kv_kinds *kinds);
/* Bytes of the residual of a sequence in all layers. */
uint64_t aq_kv_residual_bytes(const struct aq_block_shape *shape,
                              const struct aq_kv_residual *residual, uint32_t layers);

/* Workspace of a side that attends, for one sequence at a time that drops many keys in a layer:
 * what the keys are worth where that is not their scores, and which of them stay.  Offsets in
 * bytes; 0 bytes where no keys are dropped in bulk. */
struct aq_kv_drop_layout {
    uint64_t value; /* f32 [kv_heads][stride] */
    uint64_t keep;  /* u32 [kv_heads][stride] */
    uint64_t count; /* u32 [kv_heads] */
    uint64_t bytes;
};
void aq_kv_layout_drop(struct aq_kv_drop_layout *ret, const struct aq_plan *plan,
                       uint32_t kv_heads);

/* Sums over the layers of one sequence: bytes of the arrays beside slots, and the number of layers
 * that drop keys, which are those with a delta and victims. */
struct aq_kv_beside {
    uint64_t slots_bytes;
    uint32_t dropping;
};
struct aq_kv_beside aq_kv_beside_of(const struct aq_plan *plan, uint32_t kv_heads);

/* Can the K and V rows of one slot be copied without those of its neighbours in this format? */
bool aq_kv_rows_apart(enum aq_dtype format);

/* Bytes of the moves of one (sequence, layer of kind number `kind`). */
struct aq_kv_sizes {
    uint64_t run, run_stride; /* a run over a link; a run in a stage and on disk */
    uint64_t key;             /* the rows of a new key; the whole run if !aq_kv_rows_apart() */
    uint64_t victims, slots, delta;
};
void aq_kv_sizes_of(struct aq_kv_sizes *ret, const struct aq_plan *plan, uint32_t kind,
                    uint32_t kv_heads, uint32_t head_dim);

/* Scratch for prompts that are attended and cut, or encoded, side by side: a room for each, with
 * its K and V in runs from 0 on and the arrays that choose among its keys; and behind the rooms
 * what one call makes of all their rows.  Offsets are of a room, but for the first. */
struct aq_kv_prefill_layout {
    uint64_t bytes;
    uint64_t log_sum_exp; /* f32 [rooms * prompt][heads], where attention ranks keys */
    uint32_t rooms;       /* 1 or more; 0 where no prompt needs one */
    uint64_t room_bytes;
    uint32_t stride;  /* keys of a row: the longest prompt rounded up to 32 */
    uint64_t sums;    /* f32 [heads or kv_heads][stride], where values are made of them, or of
                             near pairs alone where each head has a rule */
    uint64_t begun;   /* the same, of the queries that a prompt has in common with the one in
                             front; 0 and nothing where such sums are not kept */
    uint64_t moments; /* f32 [heads][head_dim + AQ_KV_MOMENT_ROWS][head_dim], and what angles
                             to come are on average, f32 [head_dim], where queries are expected */
    uint64_t value;   /* f32 [kv_heads][stride], unless positions rank keys */
    uint64_t keep;    /* u32 [kv_heads][stride of the slots] */
    uint64_t count;   /* u32 [kv_heads] */
    uint64_t sort;    /* u32 [2][stride], where heads of all layers share */
    uint64_t classes; /* u8 [stride] of the prompt's tokens, where each head has a rule */
    uint64_t kept;    /* runs of the slots that stay, in f16, from 0 on, where they are encoded:
                             the prompt stays as it is for the next one */
};
enum { AQ_KV_PROMPT_ROOMS_MAX = 8 };
enum { AQ_KV_MOMENT_ROWS = 9 }; /* of room, beside the covariance */
void aq_kv_layout_prefill(struct aq_kv_prefill_layout *ret, const struct aq_plan *plan,
                          const struct aq_model_steps *m);

/* Tables of addresses and lengths, in host memory; offsets in bytes, runs from 0 on. */
struct aq_kv_table_layout {
    uint64_t runs; /* most runs of a seat in all layers; addresses [seats][runs] */
    /* For heads that hold different numbers of slots, or choose what they read; else all 0. */
    uint32_t head_blocks; /* most head-blocks that are read of one head */
    uint64_t spread;      /* addresses [lanes][micro_batch][kv_heads][head_blocks], of one op on
                             either of the lanes that attend: aq_plan_attending() */
    uint64_t now;         /* u32 [lanes][micro_batch][kv_heads]: slots in use, likewise */
    uint64_t chosen;      /* u32 [lanes][micro_batch][kv_heads][head_blocks]: those chosen */
    uint64_t len;         /* u32 [seats][layers][kv_heads]: slots kept of the prompt */
    uint64_t packed;      /* u32 [seats][layers] packed runs, once layers have their own */
    uint64_t free;        /* u32 [pages]: which of the pools' pages are free */
    uint64_t users;       /* u32 [pages]: seats in whose tables a page is */
    uint64_t home, own;   /* u32 [seats on disk][home_runs] regions of the scratch file, by run:
                             where it is, and the one that is the seat's */
    uint32_t home_runs;
    uint64_t bytes;
};
void aq_kv_layout_tables(struct aq_kv_table_layout *ret, const struct aq_plan *plan,
                         uint32_t layers, uint32_t kv_heads);

/* Bytes that a seat has beside its runs in a slot of AQ_SLOT_KV_DEVICE behind links: arrays that
 * move with its KV. */
uint64_t aq_kv_layout_transfer(const struct aq_plan *plan, uint32_t kv_heads);

#endif
