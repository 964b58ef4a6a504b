/* SPDX-License-Identifier: Apache-2.0
 * engine/exec/kv_pages.h - the KV cache: for each tier in memory a pool of equal pages, and for
 * each seat and layer a table of head-block addresses.  A page holds whole runs of 32 slots of all
 * KV heads of one layer; all layers of a kind (policy/kv_kinds.h) grow together.  A seat whose KV
 * lives on disk has no pages: its full runs lie in a region of the scratch file and pass through a
 * staging slot; its last, partly filled run (the tail) stays in host memory, and so do up to 32
 * rows that belong into full runs (the delta).  The seats of a part have
 * as many regions on disk as they are; where they share a prefix each of its runs is in one of
 * these, whose owner is one of them.  Heads that hold different numbers of slots have
 * packed runs and runs for growth (policy/kv_policy.h), of which the last two are tails; where no
 * slot is added, there is no tail.  Where heads of all layers share (policy/kv_cross.h), layers of
 * a kind come to hold different numbers of packed runs, in memory alone.
 *
 * In one of KIVI's formats runs of codes alone have pages, and there is no tail: the newest slots
 * lie in a ring of f16 runs, the residual.
 *
 * A policy's scores, positions and victims, the residual, and the bounds of keys lie in the memory
 * of the side that attends.  Owns pools, tails and tables from open to close and allocates nothing
 * in between; admission (policy/admit.h) guarantees that there is a page whenever one is taken. */
#ifndef AQ_ENGINE_EXEC_KV_PAGES_H
#define AQ_ENGINE_EXEC_KV_PAGES_H

#include "kernels/kernels.h"
#include "offload/device.h"
#include "policy/kv_layout.h"

struct aq_kv;

struct aq_kv_opts {
    struct aq_device *device;
    const struct aq_plan *plan;
    uint32_t kv_heads;
    /* NULL, or called where `bytes` of the tables, from `at` on, are other addresses than before:
     * of seats whose KV lives on the device. */
    void (*changed)(void *user, const void *at, size_t bytes);
    void *user;
};

/* For tests: the state of a (sequence, layer) after attention of a pass: positions and scores of
 * its slots. */
struct aq_sequence;
struct aq_kv_seen {
    const struct aq_sequence *sequence;
    uint32_t layer, kv_heads;
    uint32_t seen;       /* positions so far, the last row's included */
    uint32_t held;       /* slots in use, of every head or on average */
    const uint32_t *len; /* slots in use of head h: len[h * len_step] */
    uint32_t len_step;
    /* All NULL: slot i holds position i, and there are no scores.  victim: the slots that the next
     * row's keys take; NULL while no key is dropped. */
    struct aq_attn_slots slots;
    /* Of a row that reads a part: the full head-blocks that it has read, [kv_heads][chosen_stride],
     * beside the open one; NULL: it has read all. */
    const uint32_t *chosen;
    uint32_t chosen_stride, chosen_count;
};
/* Called on the thread that attends. */
typedef void aq_kv_seen_fn(void *user, const struct aq_kv_seen *s);

int aq_kv_open(struct aq_kv **ret, const struct aq_kv_opts *opts, struct aq_err *reterr);
void aq_kv_close(struct aq_kv *kv);
/* All tables of pages, [seats][runs of a seat in all layers] addresses; pinned where somebody is
 * told of changes. */
uint8_t *const *aq_kv_tables(const struct aq_kv *kv);

/* Takes pages for this many runs, beside packed ones, in all layers of a kind of the seat; asserts
 * that the pool has them. */
void aq_kv_grow(struct aq_kv *kv, uint32_t seat, uint32_t kind, uint32_t runs);
/* Lets a seat that has no pages begin with those of seat `from`, which has them: its first `runs`
 * runs in all layers, whole pages, or the places that they have on disk.  They are free once both
 * have given them back. */
void aq_kv_share(struct aq_kv *kv, uint32_t seat, uint32_t from, uint32_t runs);
/* A seat that has no pages, or seat `from` itself, has from now on the first `runs` runs of `from`
 * in all layers, which no other seat has, in whole pages; `from` gives the rest back. */
void aq_kv_take(struct aq_kv *kv, uint32_t seat, uint32_t from, uint32_t runs);
/* Copies runs [first, end) of a layer from seat `from`, K and V of all heads, into pages that the
 * seat has for them.  Of pools in memory that the host may read and write. */
void aq_kv_copy(struct aq_kv *kv, uint32_t seat, uint32_t from, uint32_t layer, uint32_t first,
                uint32_t end);
/* Gives the seat's pages back. */
void aq_kv_release(struct aq_kv *kv, uint32_t seat);

/* Address table of a (seat, layer): entry b is where the run of slots [32 b, 32 b + 32) starts;
 * head h lies h * aq_kv_head_offset bytes further, or h * aq_kv_plain_offset in the residual. */
uint8_t *const *aq_kv_blocks(const struct aq_kv *kv, uint32_t seat, uint32_t layer);
/* The same for a seat whose KV passes through a stage: `whole` runs from `stage` on, each
 * aq_kv_run_stride bytes, and the runs behind them in the seat's tails.  The caller may put runs
 * elsewhere, until the next call. */
uint8_t **aq_kv_place(struct aq_kv *kv, uint32_t seat, uint32_t layer, uint8_t *stage,
                      uint32_t whole);
/* A run that is not full yet, of a seat whose KV lives on disk. */
uint8_t *aq_kv_tail(const struct aq_kv *kv, uint32_t seat, uint32_t layer, uint32_t run);

/* ---- the residual of KIVI's formats (policy/kv_residual.h) ---- */

/* Lets the seat's runs [coded, runs) in layers of a kind lie in its residual. */
void aq_kv_place_residual(struct aq_kv *kv, uint32_t seat, uint32_t kind, uint32_t coded,
                          uint32_t runs);
/* The place in the residual that run `run` has, or had before it was encoded. */
uint8_t *aq_kv_residual_run(const struct aq_kv *kv, uint32_t seat, uint32_t layer, uint32_t run);
/* Bytes from head to head in a run of the residual; 0: there is none. */
size_t aq_kv_plain_offset(const struct aq_kv *kv);

/* ---- heads that hold different numbers of slots: policies that are `ragged` alone ---- */

/* The prompt of the seat was cut over all layers of the kind, or by the rules of heads: each layer
 * keeps the packed runs of its heads' lengths and so many behind them, and gives the pages of the
 * others back.  Returns the packed runs of all of them. */
uint64_t aq_kv_shrink(struct aq_kv *kv, uint32_t seat, uint32_t kind, uint32_t runs);
/* Packed runs of the lengths that such a (seat, layer) has; what its head-blocks cost
 * (policy/kv_cross.h), [kv_heads][stride / 32]; and how many went when the layer was cut,
 * [kv_heads]. */
uint32_t aq_kv_packed(const struct aq_kv *kv, uint32_t seat, uint32_t layer);
uint32_t *aq_kv_costs(const struct aq_kv *kv, uint32_t seat, uint32_t layer);
uint32_t *aq_kv_gone(const struct aq_kv *kv, uint32_t seat, uint32_t layer);

/* [kv_heads] slots that each head of a (seat, layer) has kept of the prompt, valid once it is
 * cut. */
uint32_t *aq_kv_lens(const struct aq_kv *kv, uint32_t seat, uint32_t layer);
/* The rules of heads, u32 [kv_heads] of enum aq_kv_profile, and slots that each has taken since the
 * prompt was cut, where each head has a rule (policy/kv_profile.h). */
uint32_t *aq_kv_rules(const struct aq_kv *kv, uint32_t seat, uint32_t layer);
uint32_t *aq_kv_grown(const struct aq_kv *kv, uint32_t seat, uint32_t layer);
/* The runs of such a (seat, layer): how many are packed, and how many rows each head has taken in
 * since: all of them as many, or each its own number. */
struct aq_kv_growth {
    uint32_t packed, grown;
    const uint32_t *each; /* [kv_heads]; NULL: all as many */
};
/* Makes a table of each head's head-blocks in the runs `run`, and puts the tables and the lengths
 * into *seq.  The memory for both is one for each place in a micro-batch and compute lane (1: the
 * host's), and is used again by the next call for that place. */
void aq_kv_ragged_table(const struct aq_kv *kv, struct aq_attn_seq *seq, uint32_t seat,
                        uint32_t layer, const struct aq_kv_growth *g, uint32_t lane,
                        uint8_t *const *run);
/* The place of a slot of a head: its run, and the offset of the head-block in the run. */
struct aq_kv_spot {
    uint32_t run;
    size_t offset;
};
struct aq_kv_spot aq_kv_spot(const struct aq_kv *kv, uint32_t seat, uint32_t layer,
                             const struct aq_kv_growth *g, uint32_t head, uint32_t slot);

/* ---- layers whose rows choose what they read (policy/kv_read.h) ---- */

/* The bounds of a (seat, layer), in the memory of the side that attends: struct aq_kv_bound. */
uint16_t *aq_kv_bounds(const struct aq_kv *kv, uint32_t seat, uint32_t layer);
/* Memory for the numbers of the head-blocks that the heads of a seat choose,
 * [kv_heads][*ret_stride]: one for each place in a micro-batch and compute lane (1: the host's),
 * for one op at a time. */
uint32_t *aq_kv_chosen(const struct aq_kv *kv, uint32_t seat, uint32_t lane, uint32_t *ret_stride);
/* Makes tables of `count` chosen head-blocks of each head, and of the open one, out of the table of
 * all `held` slots in *seq, and puts them and their lengths into *seq. */
void aq_kv_read_table(const struct aq_kv *kv, struct aq_attn_seq *seq, uint32_t seat, uint32_t lane,
                      uint32_t count, uint32_t held);

/* ---- layers that drop keys; all NULL in others ---- */

/* Scores, positions and victims of a (seat, layer), and their bytes. */
struct aq_attn_slots aq_kv_slots(const struct aq_kv *kv, uint32_t seat, uint32_t layer);
size_t aq_kv_slots_bytes(const struct aq_kv *kv, uint32_t layer);
/* The start of these arrays, which are copied as one piece; and the arrays in a copied piece. */
uint8_t *aq_kv_slots_home(const struct aq_kv *kv, uint32_t seat, uint32_t layer);
struct aq_attn_slots aq_kv_slots_at(const struct aq_kv *kv, uint32_t layer, uint8_t *piece);
/* The host's copy of a seat's victims, u32 [kv_heads], where a separate device attends to KV that
 * lives on the host. */
uint32_t *aq_kv_victims(const struct aq_kv *kv, uint32_t seat, uint32_t layer);

/* Where keys are dropped in bulk: the workspace of the side that attends the seat, for one (seat,
 * layer) at a time (policy/kv_layout.h). */
struct aq_kv_drop_room {
    float *value;
    uint32_t *keep, *count;
};
struct aq_kv_drop_room aq_kv_drop_room(const struct aq_kv *kv, uint32_t seat);

/* The delta of a (seat, layer) on disk: rows that wait to be written to their slots.  The address
 * of its run serves as a table of one block. */
struct aq_kv_delta {
    uint8_t *run;
    uint32_t *target; /* [kv_heads][32]: slots of the run's rows; UINT32_MAX: no row */
};
uint8_t *aq_kv_delta_home(const struct aq_kv *kv, uint32_t seat, uint32_t layer);
struct aq_kv_delta aq_kv_delta_at(const struct aq_kv *kv, uint8_t *piece);
size_t aq_kv_delta_bytes(const struct aq_kv *kv);

size_t aq_kv_head_offset(const struct aq_kv *kv);
/* Bytes from one run to the next in a stage and on disk: a multiple of 4096. */
size_t aq_kv_run_stride(const struct aq_kv *kv);
/* Offset of a run of a (seat, layer) in the scratch file; bytes of all KV there. */
uint64_t aq_kv_disk_offset(const struct aq_kv *kv, uint32_t seat, uint32_t layer, uint32_t run);
uint64_t aq_kv_disk_bytes(const struct aq_kv *kv);
uint64_t aq_kv_pages_free(const struct aq_kv *kv, enum aq_tier tier);

#endif
