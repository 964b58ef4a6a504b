/* SPDX-License-Identifier: Apache-2.0
 * policy/kv_layout.h - what a KV cache that gives slots up needs beside its K and V: scores,
 * positions and victims of every slot, the delta of sequences on disk, and scratch for prompts that
 * are cut: sizes and offsets, all 0 where the policy drops nothing.  And the tables of where K and
 * V lie.  Pure. */
#ifndef AQ_POLICY_KV_LAYOUT_H
#define AQ_POLICY_KV_LAYOUT_H

#include "policy/plan.h"

/* Of one (sequence, layer), in the memory of the side that attends it; offsets in bytes. */
struct aq_kv_layout {
    uint32_t stride;   /* slots of a row: the most that a head may hold, rounded up to 32 */
    uint64_t score;    /* f32 [kv_heads][stride], where the policy has scores */
    uint64_t position; /* u32 [kv_heads][stride] */
    uint64_t victim;   /* u32 [kv_heads] */
    uint64_t bytes;
};
void aq_kv_layout_slots(struct aq_kv_layout *ret, const struct aq_plan *plan, uint32_t kv_heads);

/* Rows of a (sequence, layer) on disk that have not been written to their slots there: one run, and
 * the slots that its rows belong to. */
struct aq_kv_delta_layout {
    uint64_t target; /* u32 [kv_heads][32]; UINT32_MAX: of no row */
    uint64_t bytes;
};
void aq_kv_layout_delta(struct aq_kv_delta_layout *ret, const struct aq_plan *plan,
                        uint32_t kv_heads);

/* Do the K and V rows of a slot lie by themselves, so that one can be copied alone? */
bool aq_kv_rows_apart(enum aq_dtype format);

/* Bytes that move of one (sequence, layer). */
struct aq_kv_sizes {
    uint64_t run, run_stride; /* over a link; in a stage and on disk */
    uint64_t key;             /* the rows of a new key, or its run where they do not lie apart */
    uint64_t victims, slots, delta;
};
void aq_kv_sizes_of(struct aq_kv_sizes *ret, const struct aq_plan *plan, uint32_t kv_heads,
                    uint32_t head_dim);

/* Where one prompt that is cut is attended: its K and V in runs from 0 on, and what chooses among
 * them. */
struct aq_kv_prefill_layout {
    uint32_t stride;      /* keys of a row: the longest prompt rounded up to 32 */
    uint64_t log_sum_exp; /* f32 [prompt][heads] */
    uint64_t value;       /* f32 [kv_heads][stride] */
    uint64_t keep;        /* u32 [kv_heads][stride of the slots] */
    uint64_t count;       /* u32 [kv_heads] */
    uint64_t bytes;
};
void aq_kv_layout_prefill(struct aq_kv_prefill_layout *ret, const struct aq_plan *plan,
                          uint32_t heads, uint32_t kv_heads);

/* Addresses and lengths, in host memory; offsets in bytes, runs from 0 on. */
struct aq_kv_table_layout {
    uint32_t runs; /* most runs of a (seat, layer); addresses [seats][layers][runs] */
    /* Where heads hold different numbers of slots; else all 0. */
    uint32_t head_blocks; /* most head-blocks of one head */
    uint64_t spread;      /* addresses [lanes][micro_batch][kv_heads][head_blocks], of one op on
                             either compute lane, of which there are two beside a separate device */
    uint64_t len;         /* u32 [seats][layers][kv_heads]: slots in use */
    uint64_t free;        /* u32 [pages]: which of the pools' pages are free */
    uint64_t bytes;
};
void aq_kv_layout_tables(struct aq_kv_table_layout *ret, const struct aq_plan *plan,
                         uint32_t layers, uint32_t kv_heads);

/* Bytes beside the runs of a seat in a slot of AQ_SLOT_KV_DEVICE behind links: what travels with
 * the KV. */
uint64_t aq_kv_layout_transfer(const struct aq_plan *plan, uint32_t kv_heads);

#endif
