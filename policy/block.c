/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/planner.h"

#include "base/mem.h"
#include "policy/gpu_sizes.h"
#include "policy/host_product.h"
#include "policy/kv_cross.h"
#include "policy/kv_layout.h"
#include "policy/move_sizes.h"
#include "policy/registers.h"
#include "policy/rotary.h"
#include "policy/seats.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>

#define PAGE_BYTES_MIN (64 * AQ_KIB)
/* A staging slot takes at most 1 / STAGE_SHARE of its memory, one of a size that was asked for 1 /
 * STAGE_SHARE_ASKED, but at least STAGE_BYTES_MIN. */
#define STAGE_SHARE       64
#define STAGE_SHARE_ASKED 8
#define STAGE_BYTES_MIN   (4 * AQ_MIB)

void aq_block_weight_bytes(const struct aq_block_inputs *in, uint64_t *ret_matrices,
                           uint64_t *ret_vectors)
{
    const struct aq_model_steps *m = in->steps;
    uint64_t matrices = 0, vectors = 0;
    for (uint32_t s = 0; s < m->step_count; s++) {
        const struct aq_step_desc *d = &m->step[s];
        for (uint32_t i = 0; i < d->matrix_count; i++) {
            uint32_t at_step, at_index;
            if (!aq_matrix_is_tied(m, s, i, &at_step, &at_index))
                matrices += aq_matrix_bytes(&d->matrix[i], d->matrix[i].table ? in->table_format
                                                                              : in->weight_format);
        }
        for (uint32_t i = 0; i < d->vector_count; i++)
            vectors += aq_align_up(4ull * d->vector[i].count, 64);
    }
    *ret_matrices = matrices;
    *ret_vectors = vectors;
}

uint64_t aq_block_pages(const struct aq_block_shape *s, uint32_t layers, uint64_t keys)
{
    return aq_div_up(keys, s->page_slots) * layers;
}

/* A page is a number of runs of 32 slots of all KV heads: at least 64 KiB, if that wastes at most 5
 * % of a sequence in any layer (half a page is lost on average). */
static void choose_page(struct aq_block_shape *s, const struct aq_block_inputs *in,
                        const struct aq_kv_kinds *kinds)
{
    const struct aq_model_steps *m = in->steps;
    uint64_t run = aq_kv_block_bytes(in->kv_format, m->head_dim) * m->kv_heads;
    /* Where layers come to have packed runs of their own, pages are given back run by run. */
    bool apart = aq_kv_policy_cross(&in->kv) || aq_kv_policy_profiled(&in->kv);
    uint32_t runs = 1, least = apart ? 0 : kinds->slots;
    for (uint32_t i = 0; i < kinds->count; i++)
        least = kinds->kind[i].slots < least ? kinds->kind[i].slots : least;
    while (run * runs < PAGE_BYTES_MIN && 10ull * AQ_HEAD_BLOCK_SLOTS * (runs + 1) <= least)
        runs++;
    s->page_slots = AQ_HEAD_BLOCK_SLOTS * runs;
    s->page_bytes = run * runs;
    s->run_bytes = run;
    s->bound_bytes = in->kv.read ? 2ull * 2 * m->head_dim * m->kv_heads : 0;
    assert(aq_dtype_is_kivi(in->kv_format) == (in->kv.residual.tokens > 0));
    if (in->kv.residual.tokens)
        s->plain_run_bytes = aq_kv_block_bytes(AQ_F16, m->head_dim) * m->kv_heads;
}

/* Most slots that a sequence of mean length comes to hold in layers of a kind, rounding of heads
 * that share slots included. */
static uint64_t mean_slots(const struct aq_block_inputs *in, const struct aq_kv_kinds *kinds,
                           uint32_t kind)
{
    struct aq_kv_limits l;
    uint64_t total = aq_min_u64(aq_div_up(in->total_sum, in->sequences), in->total_max);
    uint64_t prompt = in->prompt_sum ? aq_div_up(in->prompt_sum, in->sequences) : in->prompt_max;
    prompt = aq_min_u64(prompt, total);
    aq_kv_kind_limits(&l, kinds, kind, &in->kv, (uint32_t)prompt, (uint32_t)(total - prompt));
    if (aq_kv_limits_differ(&l, (uint32_t)prompt))
        return aq_kv_limits_held(&l, (uint32_t)prompt, (uint32_t)total) +
               aq_kv_limits_spare(&l, in->steps->kv_heads, (uint32_t)prompt);
    return aq_min_u64(total, l.slots);
}

/* Most pages of a sequence of these lengths whose heads of all layers share, once its prompt is
 * cut. */
static uint64_t cross_pages(const struct aq_block_inputs *in, const struct aq_kv_kinds *kinds,
                            uint32_t kind, uint64_t prompt, uint64_t max_new)
{
    struct aq_kv_limits l;
    const struct aq_kv_kind *k = &kinds->kind[kind];
    aq_kv_kind_limits(&l, kinds, kind, &in->kv, (uint32_t)prompt, (uint32_t)max_new);
    uint64_t growth = aq_div_up(AQ_HEAD_BLOCK_SLOTS - 1 + max_new, AQ_HEAD_BLOCK_SLOTS);
    return aq_kv_cross_packed(&l, in->steps->kv_heads, k->layers, (uint32_t)prompt) +
           k->layers * growth;
}

/* What prompts of so many tokens, as many as a micro-batch takes in a pass, and one at least, take
 * beyond `held` pages each until they are cut, or as shorter ones do. */
static uint64_t pages_before(const struct aq_block_shape *s, const struct aq_block_inputs *in,
                             const struct aq_kv_kinds *kinds, uint32_t kind, uint64_t prompt,
                             uint64_t held)
{
    struct aq_kv_limits l;
    uint32_t n = (uint32_t)prompt;
    aq_kv_kind_limits(&l, kinds, kind, &in->kv, n, 1);
    if (!aq_kv_cross_cuts(&l, n))
        return 0;
    uint64_t runs = aq_kv_cross_whole(&l, in->steps->kv_heads, n);
    runs = aq_min_u64(runs + (aq_kv_cross_tail(n) == 0), aq_div_up(n, AQ_HEAD_BLOCK_SLOTS));
    uint64_t pages = runs * kinds->kind[kind].layers;
    return aq_max_u64(1, s->prompt_tokens / prompt) * (pages > held ? pages - held : 0);
}

/* Pages of a pool where heads of all layers share.  Beside what seats hold of prompts that are cut
 * there is room for those of a pass that are not.  Admission lets no more in. */
static uint64_t cross_pool_pages(const struct aq_block_shape *s, const struct aq_block_inputs *in,
                                 const struct aq_kv_kinds *kinds, uint64_t seats)
{
    bool known = in->total_sum && in->prompt_sum && in->sequences;
    uint64_t longest = 0, typical = 0, whole = 0, before = 0, usually = 0;
    for (uint32_t i = 0; i < kinds->count; i++) {
        const struct aq_kv_kind *k = &kinds->kind[i];
        uint64_t held = (uint64_t)k->layers * k->runs, mean = held, most = 0, more = 0;
        whole += held;
        if (!k->own) {
            uint64_t most_new = in->new_max ? in->new_max : in->total_max;
            held = aq_min_u64(held, cross_pages(in, kinds, i, in->prompt_max, most_new));
            mean = held;
            most = more = pages_before(s, in, kinds, i, in->prompt_max, held);
        }
        if (!k->own && known) {
            uint64_t prompt = aq_div_up(in->prompt_sum, in->sequences);
            uint64_t left = (in->total_sum - in->prompt_sum) / in->sequences;
            mean = aq_min_u64(held, cross_pages(in, kinds, i, prompt, left));
            more = aq_max_u64(more, pages_before(s, in, kinds, i, prompt, mean));
        }
        longest += held;
        typical += mean;
        before += most;
        usually += more;
    }
    uint64_t all = aq_min_u64(seats * whole, seats * longest + before);
    uint64_t usual = seats * typical * 5 / 4 + longest + usually;
    return known ? aq_min_u64(all, usual) : all;
}

/* No more slots than sequences share on average. */
double aq_block_shared_slots(const struct aq_block_inputs *in, const struct aq_block_shape *s,
                             const struct aq_kv_kinds *kinds)
{
    if (!in->shared_sum || !in->sequences || in->kv.residual.tokens)
        return 0;
    for (uint32_t i = 0; i < kinds->count; i++) {
        struct aq_kv_limits l;
        uint32_t most_new = in->total_max - in->prompt_max;
        aq_kv_kind_limits(&l, kinds, i, &in->kv, in->prompt_max, most_new);
        if (aq_kv_limits_drop(&l, in->prompt_max, most_new))
            return 0;
    }
    /* Of steps that do not fill a page a sequence loses less than one page. */
    double lost = s->page_slots - AQ_HEAD_BLOCK_SLOTS;
    double mean = (double)in->shared_sum / (double)in->sequences - lost;
    return mean > 0 ? mean : 0;
}

/* Pages of a tier's pool: for every seat at its longest, or, if the average length is known and
 * shorter, a quarter more than the average plus one longest sequence; admission stays within.
 * sharing: so many of the seats have what is common to them in pages of others. */
static uint64_t pool_pages(const struct aq_block_shape *s, const struct aq_block_inputs *in,
                           const struct aq_kv_kinds *kinds, uint64_t seats, uint64_t sharing)
{
    bool known = in->total_sum && in->sequences && seats;
    uint64_t longest = 0, typical = 0;
    if (aq_kv_policy_cross(&in->kv))
        return cross_pool_pages(s, in, kinds, seats);
    for (uint32_t i = 0; i < kinds->count; i++) {
        const struct aq_kv_kind *k = &kinds->kind[i];
        uint64_t mean = known ? aq_kv_kinds_paged(kinds, mean_slots(in, kinds, i)) : 0;
        uint64_t most = aq_kv_kinds_paged(kinds, (uint64_t)k->runs * AQ_HEAD_BLOCK_SLOTS);
        mean += known ? s->page_slots / 2 : 0;
        longest += aq_block_pages(s, k->layers, most);
        typical += aq_block_pages(s, k->layers, mean);
    }
    double pages = aq_block_shared_slots(in, s, kinds) / s->page_slots * kinds->layers;
    uint64_t shared = sharing && known ? (uint64_t)((double)sharing * pages) : 0;
    uint64_t all = seats * longest, typically = seats * typical;
    typically -= aq_min_u64(typically, shared);
    return known ? aq_min_u64(all, typically * 5 / 4 + longest) : all;
}

/* Where KV passes through a stage on its way from host memory: most sequences that compute what
 * others share.  Parts and micro-batches lend to each other what was computed before the last pass
 * (aq_seats_lends), so those do whose prompts are in the first two. */
static uint64_t leads_most(const struct aq_block_shape *s, const struct aq_block_inputs *in)
{
    uint64_t mean = in->sequences ? aq_max_u64(1, in->prompt_sum / in->sequences) : 1;
    return 2 * s->micro_batches * aq_max_u64(1, aq_div_up(s->prompt_tokens, mean));
}

/* ---- ledger ------------------------------------------------------------------------------ */

const char *aq_block_purpose(enum aq_slot_class c)
{
    static const char *const names[AQ_SLOT_CLASS_COUNT] = {
        [AQ_SLOT_RING] = "weight ring",
        [AQ_SLOT_STAGING] = "weight staging",
        [AQ_SLOT_UNPACKED] = "unpacked weights",
        [AQ_SLOT_HIDDEN] = "hidden",
        [AQ_SLOT_HIDDEN_HOST] = "hidden (host)",
        [AQ_SLOT_HIDDEN_DISK] = "hidden (disk)",
        [AQ_SLOT_QKV] = "qkv",
        [AQ_SLOT_ATTENTION] = "attention output",
        [AQ_SLOT_QKV_HOST] = "qkv (host)",
        [AQ_SLOT_ATTENTION_HOST] = "attention output (host)",
        [AQ_SLOT_KV_HOST] = "kv staging (host)",
        [AQ_SLOT_KV_DEVICE] = "kv staging",
        [AQ_SLOT_KV_PREFILL] = "kv prefill",
        [AQ_SLOT_INNER] = "inner",
        [AQ_SLOT_LOGITS] = "logits",
        [AQ_SLOT_INPUT_HOST] = "product rows (host)",
        [AQ_SLOT_COLUMNS_HOST] = "product columns (host)",
        [AQ_SLOT_COLUMNS] = "product columns",
    };
    return names[c];
}

static void add(struct aq_ledger *l, enum aq_tier tier, const char *purpose, uint64_t bytes)
{
    if (bytes)
        aq_ledger_add(l, tier, purpose, aq_mem_rounded(bytes));
}

uint64_t aq_block_rows_bytes(const struct aq_plan *p)
{
    enum { EXECUTOR_SEAT = 640 }; /* what the executor has of a seat, beside those of policy/ */
    const struct aq_block_shape *s = &p->shape;
    uint64_t seats = (uint64_t)s->micro_batch * s->micro_batches;
    uint64_t kinds =
        (seats + 1) * p->kinds.count * (sizeof(struct aq_seat_kv) + sizeof(struct aq_admit_length));
    uint64_t each = sizeof(struct aq_seat) + sizeof(struct aq_seat_link) + EXECUTOR_SEAT;
    return s->micro_batches * (s->rows_max * 20ull + 1024) + seats * each + kinds +
           s->head_tile_rows * 16ull + s->rows_max + 1024;
}

/* Resident weights by tier.  Weights that stream from host memory are resident there; tied table
 * and head are one matrix. */
static void add_weights(struct aq_block *b, const struct aq_block_inputs *in, enum aq_tier device)
{
    const struct aq_model_steps *m = in->steps;
    uint64_t bytes[AQ_TIER_COUNT] = {0}, of[AQ_TIER_COUNT];
    enum aq_tier head = in->separate && b->plan.placement.head == AQ_DEVICE ? AQ_DEVICE : AQ_HOST;
    for (uint32_t s = 0; s < m->step_count; s++) {
        const struct aq_step_desc *d = &m->step[s];
        for (uint32_t i = 0; i < d->matrix_count; i++) {
            const struct aq_matrix_desc *w = &d->matrix[i];
            uint32_t at_step, at_index;
            if (aq_matrix_is_tied(m, s, i, &at_step, &at_index))
                continue;
            enum aq_dtype dtype =
                w->table ? in->table_format : aq_matrix_format(w, in->weight_format);
            aq_stream_matrix_bytes(of, &b->stream, m, s, i, dtype, head);
            bytes[device] += of[AQ_DEVICE];
            bytes[AQ_HOST] += of[AQ_HOST];
        }
    }
    uint64_t matrices, vectors;
    aq_block_weight_bytes(in, &matrices, &vectors);
    add(&b->ledger, device, "weights", bytes[device]);
    if (device != AQ_HOST)
        add(&b->ledger, AQ_HOST, "weights", bytes[AQ_HOST]);
    add(&b->ledger, device, "vectors", vectors);
}

/* Scores, positions and victims of slots, residuals and bounds, in the memory of the side that
 * attends. */
static void add_slots(struct aq_block *b, const struct aq_block_inputs *in)
{
    struct aq_kv_beside beside = aq_kv_beside_of(&b->plan, in->steps->kv_heads);
    struct aq_kv_drop_layout drop;
    uint64_t bytes[AQ_TIER_COUNT] = {0}, bounds[AQ_TIER_COUNT] = {0};
    uint64_t of_seat = aq_kv_kinds_bounds_bytes(&b->plan.shape, &b->plan.kinds);
    bool side[2] = {false}; /* a workspace each */
    aq_kv_layout_drop(&drop, &b->plan, in->steps->kv_heads);
    for (uint32_t i = 0; i < b->plan.part_count; i++) {
        const struct aq_part *p = &b->plan.part[i];
        bool device = in->separate && p->side == AQ_ATTEND_DEVICE;
        bytes[device ? AQ_DEVICE : AQ_HOST] +=
            (uint64_t)p->count * b->plan.shape.micro_batches * beside.slots_bytes +
            (p->count && !side[p->side] ? drop.bytes : 0);
        bounds[device ? AQ_DEVICE : AQ_HOST] +=
            (uint64_t)p->count * b->plan.shape.micro_batches * of_seat;
        side[p->side] |= p->count > 0;
    }
    add(&b->ledger, AQ_DEVICE, "kv bounds", bounds[AQ_DEVICE]);
    add(&b->ledger, AQ_HOST, "kv bounds", bounds[AQ_HOST]);
    add(&b->ledger, AQ_DEVICE, aq_kv_layout_purpose(&b->plan), bytes[AQ_DEVICE]);
    add(&b->ledger, AQ_HOST, aq_kv_layout_purpose(&b->plan), bytes[AQ_HOST]);
}

/* For sequences that drop keys: the delta of those on disk, and the host's copies of victims that a
 * separate device chooses. */
static void add_kv_beside(struct aq_block *b, const struct aq_block_inputs *in, uint64_t disk_seats)
{
    const struct aq_plan *p = &b->plan;
    const struct aq_model_steps *m = in->steps;
    struct aq_kv_beside beside = aq_kv_beside_of(p, m->kv_heads);
    struct aq_kv_delta_layout delta;
    uint64_t copied = 0;
    aq_kv_layout_delta(&delta, p, m->kv_heads);
    for (uint32_t i = 0; i < p->part_count; i++) {
        bool away = p->part[i].tier == AQ_HOST && p->part[i].side == AQ_ATTEND_DEVICE;
        copied += p->separate && away ? p->part[i].count * p->shape.micro_batches : 0;
    }
    add(&b->ledger, AQ_HOST, "kv delta", disk_seats * beside.dropping * delta.bytes);
    add(&b->ledger, AQ_HOST, "kv victims", copied * beside.dropping * m->kv_heads * 4);
}

static void add_kv(struct aq_block *b, const struct aq_block_inputs *in)
{
    const struct aq_block_shape *s = &b->plan.shape;
    const struct aq_model_steps *m = in->steps;
    uint64_t seats[AQ_TIER_COUNT] = {0};
    struct aq_kv_table_layout tables;
    aq_kv_layout_tables(&tables, &b->plan, m->layers, m->kv_heads);
    for (uint32_t i = 0; i < b->plan.part_count; i++)
        seats[b->plan.part[i].tier] += (uint64_t)b->plan.part[i].count * s->micro_batches;
    add(&b->ledger, AQ_DEVICE, "kv", s->page_bytes * s->page_count[AQ_DEVICE]);
    add(&b->ledger, AQ_HOST, "kv", s->page_bytes * s->page_count[AQ_HOST]);
    add_slots(b, in);
    uint64_t run = aq_align_up(s->run_bytes, AQ_PANEL_ALIGN);
    if (!s->plain_run_bytes) /* else the residual has what is not on disk */
        add(&b->ledger, AQ_HOST, "kv tails",
            seats[AQ_DISK] * m->layers * aq_kv_policy_tail_runs(&b->plan.kv) * run);
    add_kv_beside(b, in, seats[AQ_DISK]);
    add(&b->ledger, AQ_HOST, "kv tables", tables.bytes);
    aq_ledger_add(&b->ledger, AQ_DISK, "kv", seats[AQ_DISK] * tables.runs * run);
}

static void add_gpu(struct aq_block *b, const struct aq_block_inputs *in)
{
    struct aq_gpu_sizes sizes;
    aq_gpu_sizes_count(&sizes, in->steps, &b->plan, in->context_bytes);
    add(&b->ledger, AQ_DEVICE, "context", in->context_bytes);
    add(&b->ledger, AQ_DEVICE, "gpu work", aq_gpu_sizes_device(&sizes));
    add(&b->ledger, AQ_DEVICE, "gpu graphs", sizes.graphs_bytes);
    add(&b->ledger, AQ_HOST, "gpu desks", aq_gpu_sizes_host(&sizes));
}

/* Does an op of this kind use INNER for itself alone? */
static bool has_inner_tile(const struct aq_step_desc *d, enum aq_op_kind kind)
{
    struct aq_prim_list room;
    const struct aq_prim_list *list = aq_op_prims(&room, kind, d);
    struct aq_list_io io = aq_list_io(list);
    bool used = false;
    for (uint32_t i = 0; i < list->count; i++)
        used = used || list->prim[i].dst == AQ_REG_INNER;
    return used && !io.takes[AQ_REG_INNER] && !io.leaves[AQ_REG_INNER];
}

/* Does some op use INNER for itself?  MLP in two ops keeps it for all rows. */
static bool needs_inner_tile(const struct aq_plan *p, const struct aq_model_steps *m)
{
    for (uint32_t j = 0; j < m->step_count; j++) {
        const struct aq_step_desc *d = &m->step[j];
        if (d->kind == AQ_STEP_MLP && !p->split_mlp && has_inner_tile(d, AQ_OP_MLP))
            return true;
        if (d->kind == AQ_STEP_ATTENTION && has_inner_tile(d, AQ_OP_POST))
            return true;
    }
    return false;
}

struct aq_block_tiles aq_block_tiles(const struct aq_plan *p, const struct aq_model_steps *m)
{
    uint64_t rows = p->shape.tile_rows, row = rows * aq_dtype_bytes(p->shape.compute);
    struct aq_block_tiles t = {
        .norm = row * aq_row_stride(m->hidden, p->shape.compute),
        .inner = needs_inner_tile(p, m) ? row * aq_row_stride(m->inner, p->shape.compute) : 0,
        .rotary = aq_align_up(rows * m->rotary.dims * sizeof(float), 64),
        .embed = row * m->embed_width,
    };
    t.bytes = t.norm + t.inner + t.rotary + t.embed;
    return t;
}

bool aq_block_host_lane(const struct aq_block *b)
{
    return b->plan.side_by_side || aq_program_host_computes(&b->program);
}

static void fill_ledger(struct aq_block *b, const struct aq_block_inputs *in)
{
    const struct aq_model_steps *m = in->steps;
    const struct aq_block_shape *s = &b->plan.shape;
    struct aq_ledger *l = &b->ledger;
    uint64_t compute = aq_dtype_bytes(s->compute);
    struct aq_block_tiles tiles = aq_block_tiles(&b->plan, m);
    enum aq_tier device = in->separate ? AQ_DEVICE : AQ_HOST;
    *l = (struct aq_ledger){0};
    add_weights(b, in, device);
    add_kv(b, in);
    for (int c = 0; c < AQ_SLOT_CLASS_COUNT; c++) {
        const char *purpose = aq_block_purpose((enum aq_slot_class)c);
        const struct aq_program *p = &b->program;
        if (!purpose || p->first[c] == p->first[c + 1])
            continue;
        uint64_t bytes = aq_program_class_bytes(p, (enum aq_slot_class)c);
        enum aq_tier tier = (enum aq_tier)p->slot[p->first[c]].tier;
        if (tier == AQ_DISK)
            aq_ledger_add(l, tier, purpose, bytes);
        else
            add(l, tier, purpose, bytes);
    }
    add(l, device, "tiles", tiles.bytes);
    add(l, device, "rotary table", aq_rotary_bytes(m, &b->plan));
    add(l, AQ_HOST, "sampler", (uint64_t)in->threads * m->vocab * 12);
    add(l, AQ_HOST, "scratch", (uint64_t)in->threads * in->scratch_bytes_per_thread);
    add(l, AQ_HOST, "codes", in->codes_bytes);
    if (aq_block_host_lane(b))
        add(l, AQ_HOST, "scratch (host lane)",
            (uint64_t)in->threads * in->scratch_bytes_per_thread);
    if (aq_program_host_products(&b->program))
        add(l, AQ_HOST, "codes (host lane)", in->codes_bytes);
    if (aq_program_host_products(&b->program)) {
        add(l, AQ_HOST, "tiles (host)", s->tile_rows * (uint64_t)m->hidden * compute);
        add(l, AQ_HOST, "vectors (host)", aq_ledger_line(l, device, "vectors"));
    }
    if (in->gpu)
        add_gpu(b, in);
    add(l, AQ_HOST, "rows and seats", aq_block_rows_bytes(&b->plan));
    add(l, AQ_HOST, "loading",
        in->threads * aq_panel_bytes(AQ_F32, aq_steps_widest_row(m)) * (in->gpu ? 2 : 1));
    struct aq_move_sizes moves;
    aq_move_sizes_count(&moves, &b->program, m, &b->plan, &b->stream);
    add(l, AQ_HOST, "moves", aq_move_sizes_bytes(&moves));
    add(l, AQ_HOST, "trace", in->trace_bytes_per_op * b->program.op_count);
    uint64_t run = aq_align_up(s->run_bytes, AQ_PANEL_ALIGN);
    if (in->scratch_sums)
        add(l, AQ_HOST, "scratch sums",
            (aq_ledger_line(l, AQ_DISK, "kv") / run + s->micro_batches) * sizeof(uint64_t));
    if (in->context_bytes) /* of a GPU that is open; pinned is at most what is listed so far */
        add(l, AQ_DEVICE, "gpu driver",
            aq_gpu_driver_bytes(aq_ledger_total(l, AQ_HOST), in->context_bytes));
    aq_ledger_add(l, AQ_HOST, "queued records", in->queue_bytes);
    aq_ledger_add(l, AQ_HOST, "process", in->process_bytes);
}

/* ---- one candidate ----------------------------------------------------------------------- */

void aq_block_close(struct aq_block *b)
{
    if (!b)
        return;
    aq_program_close(&b->program);
    aq_stream_close(&b->stream);
    *b = (struct aq_block){0};
}

static void shape_for(struct aq_block_shape *s, struct aq_kv_kinds *kinds,
                      const struct aq_block_inputs *in, uint32_t seats_per_batch)
{
    struct aq_kv_lengths lengths = {in->prompt_max, in->total_max, in->new_max, 0};
    if (in->sequences && in->prompt_sum == in->sequences * in->prompt_max)
        lengths.prompt_min = in->prompt_max;
    aq_kv_kinds_of(kinds, &in->kv, in->steps, &lengths);
    *s = (struct aq_block_shape){
        .micro_batch = seats_per_batch,
        .micro_batches = in->micro_batches ? in->micro_batches : 1,
        .compute = in->compute,
        .products = in->products,
        .kv_format = in->kv_format,
        .weight_format = in->weight_format,
        .prompt_max = in->prompt_max,
        .keys_max = kinds->slots,
        .positions_max = in->total_max,
    };
    uint64_t cap = (uint64_t)seats_per_batch * in->prompt_max;
    if (in->prompt_sum)
        cap = aq_min_u64(cap, in->prompt_sum);
    uint64_t usual = in->tight ? in->prompt_max : AQ_BLOCK_PROMPT_TOKENS;
    uint64_t prompts = aq_min_u64(cap, in->prompt_tokens ? in->prompt_tokens : usual);
    /* A single prompt is admitted whatever its length. */
    s->prompt_tokens = (uint32_t)prompts;
    s->rows_max = (uint32_t)aq_max_u64(prompts, in->prompt_max) + seats_per_batch;
    uint32_t tile = in->tight ? AQ_BLOCK_TIGHT_TILE_ROWS
                    : in->gpu ? AQ_BLOCK_GPU_TILE_ROWS
                              : AQ_BLOCK_TILE_ROWS;
    uint32_t head = in->tight ? AQ_BLOCK_TIGHT_HEAD_ROWS : AQ_BLOCK_HEAD_TILE_ROWS;
    s->tile_rows = (uint32_t)aq_min_u64(tile, s->rows_max);
    s->head_tile_rows = (uint32_t)aq_min_u64(head, s->rows_max);
    /* A call on a prompt alone leaves most of a GPU idle. */
    uint64_t rooms = in->gpu && !in->tight ? s->prompt_tokens / aq_max_u64(1, in->prompt_max) : 1;
    rooms = aq_min_u64(aq_min_u64(rooms, AQ_KV_PROMPT_ROOMS_MAX), seats_per_batch);
    s->prompt_rooms = (uint32_t)aq_max_u64(rooms, 1);
    choose_page(s, in, kinds);
}

void aq_block_sizes(struct aq_block_sizes *ret, const struct aq_block_inputs *in, uint32_t seats)
{
    *ret = (struct aq_block_sizes){0};
    shape_for(&ret->shape, &ret->kinds, in, seats);
    const struct aq_block_shape *s = &ret->shape;
    uint64_t all = (uint64_t)seats * s->micro_batches;
    uint64_t run = aq_align_up(s->run_bytes, AQ_PANEL_ALIGN);
    uint64_t residual = all * aq_kv_residual_bytes(s, &in->kv.residual, in->steps->layers);
    uint64_t tails = all * in->steps->layers * aq_kv_policy_tail_runs(&in->kv) * run;
    uint64_t bounds = all * aq_kv_kinds_bounds_bytes(s, &ret->kinds);
    ret->kv_memory = s->page_bytes * pool_pages(s, in, &ret->kinds, all, 0) + residual + bounds;
    ret->kv_shared =
        s->page_bytes * pool_pages(s, in, &ret->kinds, all, all - 1) + residual + bounds;
    ret->kv_tails = (s->plain_run_bytes ? residual : tails) + bounds;
    ret->kv_disk = all * aq_kv_kinds_runs(&ret->kinds) * run;
}

/* Bytes of a step's matrices that pass through the ring: of the matrices that ops of this kind use,
 * or (KIND_COUNT) of all. */
static uint64_t ring_bytes(const struct aq_block_inputs *in, const struct aq_placement *placement,
                           uint32_t step, enum aq_op_kind kind)
{
    const struct aq_step_desc *d = &in->steps->step[step];
    const double *percent = placement->weights.percent;
    bool layer = aq_step_is_layer(d);
    double bytes = 0;
    bool head = d->kind == AQ_STEP_HEAD && in->separate && placement->head != AQ_DEVICE;
    if (!layer && !head)
        return 0;
    for (uint32_t i = 0; i < d->matrix_count; i++) {
        double share = layer ? percent[AQ_DISK] / 100 : 1;
        bool stays = in->host_products > 0 && aq_host_product_can(d, i);
        if (layer && in->separate)
            share += percent[AQ_HOST] / 100 * (stays ? 1 - in->host_products / 100 : 1);
        if (kind == AQ_OP_KIND_COUNT || aq_op_uses_matrix(kind, d, i))
            bytes += share * (double)aq_matrix_bytes(&d->matrix[i], in->weight_format);
    }
    return (uint64_t)bytes + AQ_PANEL_ALIGN;
}

/* Bytes of the step's group where groups join steps: about those of the step and the one before.  A
 * layer that is one step lies in a group of its own, or, with attention on a lane beside, its
 * second half lies in a group with what follows. */
static uint64_t joined_bytes(const struct aq_block_inputs *in, const struct aq_placement *placement,
                             uint32_t j, bool beside)
{
    const struct aq_step_desc *d = &in->steps->step[j];
    uint64_t bytes = ring_bytes(in, placement, j, AQ_OP_KIND_COUNT);
    if (j == 0)
        return bytes;
    if (d[-1].kind != AQ_STEP_ATTENTION || d->kind == AQ_STEP_MLP)
        return bytes + ring_bytes(in, placement, j - 1, AQ_OP_KIND_COUNT);
    if (!beside)
        return bytes;
    enum aq_op_kind next = d->kind == AQ_STEP_ATTENTION ? AQ_OP_PRE : AQ_OP_KIND_COUNT;
    return ring_bytes(in, placement, j - 1, AQ_OP_POST) + ring_bytes(in, placement, j, next);
}

/* Bytes of the largest group of ops whose weights must be in the ring together. */
static uint64_t group_bytes(const struct aq_block_inputs *in, const struct aq_placement *placement,
                            bool split_mlp)
{
    bool beside = in->side_by_side || (in->separate && in->attention != AQ_ATTEND_DEVICE);
    bool joined = in->fuse_layer || beside;
    uint64_t most = 0;
    for (uint32_t j = 0; j < in->steps->step_count; j++) {
        uint64_t bytes = joined ? joined_bytes(in, placement, j, beside)
                                : ring_bytes(in, placement, j, AQ_OP_KIND_COUNT);
        if (split_mlp && !joined && in->steps->step[j].kind == AQ_STEP_MLP)
            bytes = aq_max_u64(ring_bytes(in, placement, j, AQ_OP_MLP_UP),
                               ring_bytes(in, placement, j, AQ_OP_MLP_DOWN));
        most = aq_max_u64(most, bytes);
    }
    return most;
}

static void size_ring(struct aq_plan *p, const struct aq_block_inputs *in)
{
    uint64_t panel = 0;
    for (uint32_t j = 0; j < in->steps->step_count; j++) {
        for (uint32_t i = 0; i < in->steps->step[j].matrix_count; i++) {
            const struct aq_matrix_desc *w = &in->steps->step[j].matrix[i];
            if (!w->table)
                panel =
                    aq_max_u64(panel, aq_panel_bytes(aq_matrix_format(w, in->weight_format), w->k));
        }
    }
    /* MLP is cut in two where the rows between the halves take less memory than the ring saves. */
    uint64_t whole = group_bytes(in, &p->placement, false);
    uint64_t inner = (uint64_t)p->shape.rows_max * in->steps->inner * aq_dtype_bytes(in->compute);
    p->split_mlp = aq_steps_have(in->steps, AQ_STEP_MLP) &&
                   (p->host_products > 0 || inner * p->shape.micro_batches <= whole);
    uint64_t group = group_bytes(in, &p->placement, p->split_mlp);
    /* Small models take small chunks, so that the ring still has several. */
    uint64_t most = in->tight ? AQ_MIB : AQ_BLOCK_CHUNK_BYTES;
    uint64_t chunk = aq_min_u64(most, aq_max_u64(AQ_MIB, group / 4));
    /* Huge models take larger chunks, because the number of ops grows with the number of chunks. */
    chunk = aq_max_u64(chunk, group * in->steps->step_count / AQ_BLOCK_CHUNKS_MAX);
    chunk = in->chunk_bytes ? in->chunk_bytes : aq_max_u64(chunk, panel);
    /* A tight ring begins at the bytes of one group, and grows where chunks are not full. */
    double steps = in->ring_steps > 0 ? in->ring_steps : AQ_BLOCK_RING_STEPS;
    uint64_t usual = in->tight ? group / chunk * chunk : (uint64_t)(steps * (double)group) + chunk;
    uint64_t ring = in->prefetch_bytes ? in->prefetch_bytes : usual;
    p->chunk_bytes = aq_align_up(chunk, AQ_PANEL_ALIGN);
    uint64_t chunks = in->prefetch_bytes ? ring / p->chunk_bytes : aq_div_up(ring, p->chunk_bytes);
    p->ring_chunks = (uint32_t)aq_min_u64(aq_max_u64(1, chunks), AQ_STREAM_CHUNKS_MAX);
    p->staging_chunks = 4;
}

uint64_t aq_block_stage_bytes(const struct aq_block_inputs *in)
{
    uint64_t most = in->stage_bytes ? in->stage_bytes : AQ_BLOCK_STAGE_BYTES;
    uint64_t room = in->budget[in->separate ? AQ_DEVICE : AQ_HOST] /
                    (in->stage_bytes ? STAGE_SHARE_ASKED : STAGE_SHARE);
    return aq_min_u64(most, aq_max_u64(STAGE_BYTES_MIN, room));
}

/* Seats of a staged part: as many as fit a staging slot. */
static uint32_t part_seats(const struct aq_block_shape *s, const struct aq_block_inputs *in,
                           const struct aq_kv_kinds *kinds)
{
    uint64_t seats = aq_max_u64(1, aq_block_stage_bytes(in) / (kinds->runs * s->run_bytes));
    seats = aq_max_u64(seats, aq_div_up(s->micro_batch, AQ_PART_MAX / 2));
    return (uint32_t)aq_min_u64(seats, s->micro_batch);
}

static bool is_quantised(enum aq_dtype t)
{
    return t != AQ_F32 && t != AQ_F16 && t != AQ_BF16;
}

/* The inputs with the side of attention decided: next to the KV, unless the inputs fix another. */
static struct aq_block_inputs settled(const struct aq_block_inputs *in,
                                      const struct aq_placement *placement)
{
    struct aq_block_inputs s = *in;
    bool away = placement->kv.percent[AQ_DEVICE] < 100;
    s.side_by_side &= !in->separate && in->micro_batches > 1;
    if (!in->separate)
        s.attention = AQ_ATTEND_DEVICE;
    else if (in->attention_auto)
        s.attention = away ? AQ_ATTEND_HOST : AQ_ATTEND_DEVICE;
    return s;
}

/* Builds stream and program.  A ring that the user has not fixed grows until the weights of each
 * group fit (chunks consist of whole panels, so the sum of sizes is only a lower bound). */
static int build_program(struct aq_block *b, const struct aq_block_inputs *in,
                         struct aq_err *reterr)
{
    int rc;
    for (;;) {
        rc = aq_stream_build(&b->stream, in->steps, &b->plan, reterr);
        if (rc == 0)
            rc = aq_program_build(&b->program, in->steps, &b->plan, &b->stream, reterr);
        if (rc != -ENOBUFS)
            return rc;
        if (in->prefetch_bytes || b->stream.ring == b->stream.chunk_count)
            return -EINVAL;
        b->plan.ring_chunks += 1 + b->plan.ring_chunks / 8;
    }
}

/* Where heads of all layers share, prompts are cut in the pages where they lie, by the lane that
 * attends: a stage has one layer at a time, and a device the KV that others would have to cut. */
static int check_cross(const struct aq_block_inputs *in, const struct aq_placement *placement,
                       struct aq_err *reterr)
{
    double disk = placement->kv.percent[AQ_DISK];
    const char *name = aq_kv_policy_desc(&in->kv)->name;
    if (!aq_kv_policy_cross(&in->kv) || (!in->separate && disk == 0))
        return 0;
    if (in->separate)
        return aq_error(reterr, -EINVAL,
                        "--kv-policy %s: prompts are cut over all layers in the memory that "
                        "products run in, and this device has memory of its own; --device cpu "
                        "without --emulate-device, or --kv-policy snapkv",
                        name);
    return aq_error(reterr, -EINVAL,
                    "--kv-policy %s: prompts stay whole until all layers are ranked, and are cut "
                    "in memory; expected no KV on disk, found %g%% (--placement), or --kv-policy "
                    "pyramidkv",
                    name, disk);
}

bool aq_block_kv_may(const struct aq_block_inputs *in, enum aq_tier tier)
{
    if (tier == AQ_DISK)
        return !aq_kv_policy_cross(&in->kv);
    return tier == AQ_HOST || !in->separate || !in->kv.read;
}

/* Heads that have rules take in rows or do not as their own scores say, which a link cannot know
 * that moves the rows. */
static int check_profiled(const struct aq_block_inputs *in, struct aq_err *reterr)
{
    if (!aq_kv_policy_profiled(&in->kv) || !in->separate)
        return 0;
    return aq_error(reterr, -EINVAL,
                    "--kv-policy %s: each head decides for itself what it keeps, in the memory "
                    "that products run in, and this device has memory of its own; --device cpu "
                    "without --emulate-device, or --kv-policy h2o",
                    aq_kv_policy_desc(&in->kv)->name);
}

/* Rows choose what they read where the host attends.  A link brings KV to a device before the rows
 * that would choose are there, so it would have to bring all of it. */
static int check_read(const struct aq_block_inputs *in, const struct aq_placement *placement,
                      struct aq_err *reterr)
{
    double device = placement->kv.percent[AQ_DEVICE];
    if (!in->kv.read || !in->separate || (in->attention == AQ_ATTEND_HOST && device == 0))
        return 0;
    return aq_error(reterr, -EINVAL,
                    "--kv-read %u: rows choose what they read where the host attends; KV that "
                    "streams to a device has crossed the link before they can, so that reading "
                    "less gains nothing; expected --attention host and a placement with kv=0/...",
                    in->kv.read);
}

/* Attention beside products is the work of the same threads, for other micro-batches. */
static int check_beside(const struct aq_block_inputs *in, struct aq_err *reterr)
{
    if (!in->side_by_side)
        return 0;
    if (in->separate)
        return aq_error(reterr, -EINVAL,
                        "--side-by-side on: this is for a CPU that computes all; beside a device "
                        "with memory of its own the host attends with --attention host");
    if (in->micro_batches == 1)
        return aq_error(reterr, -EINVAL,
                        "--side-by-side on: while one micro-batch is attended another must have "
                        "products; expected --micro-batches 2 or more, found 1");
    return 0;
}

int aq_block_make(struct aq_block *b, const struct aq_block_inputs *given,
                  const struct aq_placement *placement, uint32_t seats, struct aq_err *reterr)
{
    struct aq_plan *p = &b->plan;
    struct aq_block_inputs settled_in = settled(given, placement);
    const struct aq_block_inputs *in = &settled_in;
    aq_program_clear(&b->program);
    aq_stream_clear(&b->stream);
    *b = (struct aq_block){.program = b->program, .stream = b->stream};
    int rc = check_cross(in, placement, reterr);
    rc = rc < 0 ? rc : check_profiled(in, reterr);
    rc = rc < 0 ? rc : check_beside(given, reterr);
    rc = rc < 0 ? rc : check_read(in, placement, reterr);
    if (rc < 0)
        return rc;
    b->tight = in->tight;
    p->placement = *placement;
    p->kv = in->kv;
    p->separate = in->separate;
    p->host_products = in->separate ? in->host_products : 0;
    p->ring_steps = in->prefetch_bytes ? 0 : in->ring_steps;
    p->fuse_layer = in->fuse_layer;
    p->side_by_side = in->side_by_side;
    p->alternate = in->alternate;
    p->workspaces = in->separate ? 2 : 1;
    p->kv_stages = p->hidden_slots = 2;
    p->stage_bytes = in->stage_bytes ? aq_block_stage_bytes(in) : 0;
    shape_for(&p->shape, &p->kinds, in, seats);
    p->unpack =
        is_quantised(in->weight_format) && in->products != AQ_Q8 && p->shape.micro_batches > 1;
    size_ring(p, in);
    double split = in->split_host > 0 ? in->split_host : AQ_SPLIT_HOST_PERCENT;
    p->split_host = in->attention == AQ_ATTEND_SPLIT ? split : 0;
    rc = aq_plan_parts(p, in->attention, part_seats(&p->shape, in, &p->kinds), reterr);
    if (rc < 0)
        return rc;
    uint64_t tier_seats[AQ_TIER_COUNT] = {0}, sharing[AQ_TIER_COUNT] = {0};
    uint64_t leading = 0, lead_most = leads_most(&p->shape, in);
    for (uint32_t i = 0; i < p->part_count; i++) {
        const struct aq_part *part = &p->part[i];
        uint64_t n = (uint64_t)part->count * p->shape.micro_batches;
        tier_seats[part->tier] += n;
        /* Have it of their own: */
        uint64_t first = p->alternate || part->staged ? p->shape.micro_batches : 1;
        if (part->staged && part->tier == AQ_HOST) {
            first = aq_min_u64(first, lead_most - leading);
            leading += first;
        }
        if (aq_seats_shares(p, part) && n > first)
            sharing[part->tier] += n - first;
    }
    for (int t = AQ_DEVICE; t <= AQ_HOST; t++)
        p->shape.page_count[t] = pool_pages(&p->shape, in, &p->kinds, tier_seats[t], sharing[t]);
    rc = build_program(b, in, reterr);
    if (rc == 0)
        fill_ledger(b, in);
    return rc;
}

void aq_block_excess(double ret[AQ_TIER_COUNT], const struct aq_block *b,
                     const struct aq_block_inputs *in)
{
    for (int t = 0; t < AQ_TIER_COUNT; t++)
        ret[t] = (double)aq_ledger_total(&b->ledger, (enum aq_tier)t) - (double)in->budget[t];
}
