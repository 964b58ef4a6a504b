/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/shares.h"

#include "policy/kv_read.h"
#include "policy/lp.h"
#include "policy/seats.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <string.h>

/* The variables: shares of the layers' matrices by tier, and of the host's matrices that the host
 * computes with; shares of the KV, in seats, attended where products run, or (H_) by a separate
 * device's host; and the seconds of a decode pass and of all prefill passes of the block. */
enum column {
    W_DEVICE,
    W_HOST,
    W_PRODUCT,
    W_DISK,
    K_DEVICE,
    K_HOST,
    K_DISK,
    H_HOST,
    H_DISK,
    T_DECODE,
    T_PREFILL
};
enum { SHARES = T_DECODE, COLUMNS = T_PREFILL + 1 };
enum phase { DECODE, PREFILL, PHASES };

/* Rows: seconds of a pass that each computing lane is busy; seconds of each shared resource; and in
 * the last row seconds of ops that cannot overlap. */
enum { ROW_DEVICE, ROW_HOST, ROW_SHARED, ROW_CHAIN = ROW_SHARED + AQ_RESOURCE_SHARED_COUNT, ROWS };
struct demand {
    double s[ROWS];
};

struct model {
    const struct aq_shares_opts *o;
    const struct aq_model_steps *m;
    const struct aq_hardware *hw;
    struct aq_block_sizes sizes;
    bool separate, head_on_device;
    double seats;          /* taken seats */
    double matrices, head; /* bytes: the layers' matrices; all others */
    bool unpacked;         /* packed weights are unpacked before the products */
    uint32_t prompt;       /* of a mean sequence; and its slots after the prompt, and half-way on */
    uint32_t shared; /* of its prompt: in pages of others, if it lies where these may share; */
    uint32_t spared; /* not computed, in the part that computes least */
    struct aq_forecast_held held_prompt[AQ_KV_KINDS_MAX], held[AQ_KV_KINDS_MAX];
    double prefill_passes;
    struct demand base[PHASES], of[PHASES][SHARES];
    double memory[AQ_TIER_COUNT][SHARES]; /* bytes of a whole share */
    double fixed[AQ_TIER_COUNT];          /* bytes with any shares: the head and its ring */
};

static bool is_beside(const struct model *m)
{
    return m->o->in->side_by_side && !m->separate && m->o->shape.micro_batches > 1;
}

/* ---- what an op takes ---- */

static void add(struct demand *d, const struct model *m, enum aq_op_kind kind, enum aq_lane lane,
                struct aq_op_cost cost, double times)
{
    struct aq_op op = {.kind = (uint8_t)kind, .lane = (uint8_t)lane};
    struct aq_op_need need;
    cost.rows = cost.rows ? cost.rows : 1;
    aq_hardware_need(&need, m->hw, &op, &cost, m->o->in->compute);
    for (int r = 0; r < AQ_RESOURCE_SHARED_COUNT; r++)
        d->s[ROW_SHARED + r] += need.shared_s[r] * times;
    if (lane == AQ_LANE_COMPUTE || lane == AQ_LANE_HOST_COMPUTE) {
        d->s[lane == AQ_LANE_COMPUTE ? ROW_DEVICE : ROW_HOST] += need.work_s * times;
        if (kind != AQ_OP_ATTN_DEVICE) /* of the device: runs beside that of the host */
            d->s[ROW_CHAIN] += need.work_s * times;
    } else {
        /* The thread that copies may be slower than the link or disk. */
        enum aq_resource way = kind == AQ_OP_READ    ? AQ_RESOURCE_DISK_READ
                               : kind == AQ_OP_WRITE ? AQ_RESOURCE_DISK_WRITE
                               : kind == AQ_OP_H2D   ? AQ_RESOURCE_H2D
                                                     : AQ_RESOURCE_D2H;
        d->s[ROW_SHARED + way] += fmax(0, need.work_s - need.shared_s[way]) * times;
    }
}

static void move(struct demand *d, const struct model *m, enum aq_op_kind kind, double bytes)
{
    static const enum aq_lane lane[] = {[AQ_OP_READ] = AQ_LANE_DISK_READ,
                                        [AQ_OP_WRITE] = AQ_LANE_DISK_WRITE,
                                        [AQ_OP_H2D] = AQ_LANE_H2D,
                                        [AQ_OP_D2H] = AQ_LANE_D2H};
    if (bytes > 0)
        add(d, m, kind, lane[kind], (struct aq_op_cost){.move_bytes = (uint64_t)bytes}, 1);
}

/* ---- products ---- */

void aq_shares_sum_up(struct aq_shares_sums *ret, const struct aq_block_inputs *in)
{
    uint64_t all, vectors;
    *ret = (struct aq_shares_sums){0};
    aq_block_weight_bytes(in, &all, &vectors);
    for (uint32_t j = 0; j < in->steps->step_count; j++) {
        const struct aq_step_desc *d = &in->steps->step[j];
        bool layer = aq_step_is_layer(d);
        for (uint32_t i = 0; i < d->matrix_count && layer; i++) {
            ret->matrices += (double)aq_matrix_bytes(&d->matrix[i], in->weight_format);
            ret->unpacked += (double)aq_matrix_bytes(&d->matrix[i], in->compute);
        }
        *(d->kind == AQ_STEP_HEAD ? &ret->head_flops : &ret->row_flops) += (double)d->flops_per_row;
    }
    ret->others = (double)all - ret->matrices;
}

static struct aq_op_cost product(const struct model *m, double rows)
{
    const struct aq_block_inputs *in = m->o->in;
    return (struct aq_op_cost){.rows = (uint32_t)rows,
                               .flops = (uint64_t)(rows * m->o->sums->row_flops),
                               .memory_bytes =
                                   (uint64_t)(m->unpacked ? m->o->sums->unpacked : m->matrices),
                               .weights = m->unpacked ? in->compute : in->weight_format};
}

/* A sweep over the weights, with `rows` rows of each micro-batch. */
static void add_products(struct model *m, enum phase p, double rows, double logits, double passes)
{
    double times = m->o->shape.micro_batches * passes;
    struct demand device = {0};
    enum aq_dtype format = m->o->in->weight_format;
    struct aq_op_cost head = {.rows = (uint32_t)logits,
                              .flops = (uint64_t)(logits * m->o->sums->head_flops),
                              .memory_bytes = (uint64_t)m->head,
                              .weights = format};
    add(&device, m, AQ_OP_MLP, AQ_LANE_COMPUTE, product(m, rows), times);
    for (int r = 0; r < ROWS; r++)
        m->base[p].s[r] += device.s[r];
    add(&m->base[p], m, AQ_OP_HEAD, AQ_LANE_COMPUTE, head, times);
    if (m->unpacked)
        add(&m->base[p], m, AQ_OP_UNPACK, AQ_LANE_COMPUTE,
            (struct aq_op_cost){.memory_bytes = (uint64_t)m->matrices, .weights = format}, passes);
    if (m->separate && !m->head_on_device)
        move(&m->base[p], m, AQ_OP_H2D, m->head * passes);
    if (m->separate)
        move(&m->of[p][W_HOST], m, AQ_OP_H2D, m->matrices * passes);
    move(&m->of[p][W_DISK], m, AQ_OP_READ, m->matrices * passes);
    if (m->separate)
        move(&m->of[p][W_DISK], m, AQ_OP_H2D, m->matrices * passes);
    if (m->separate) {
        struct demand *d = &m->of[p][W_PRODUCT];
        add(d, m, AQ_OP_PRODUCT_HOST, AQ_LANE_HOST_COMPUTE, product(m, rows), times);
        for (int r = 0; r < ROWS; r++)
            d->s[r] -= device.s[r];
        /* Moves of rows to the host and of columns back, about, for the four products of a
         * layer. */
        double width = (double)(m->m->hidden + m->m->inner) * m->m->layers * rows * times;
        move(d, m, AQ_OP_D2H, width * (double)aq_dtype_bytes(m->o->in->compute));
        move(d, m, AQ_OP_H2D, 2 * width * 4);
    }
}

/* Hidden states that live on another tier move in and out with every step. */
static void add_hidden(struct model *m, enum phase p, double rows)
{
    enum aq_tier home = m->o->shape.hidden;
    double bytes = rows * m->m->hidden * 4.0 * m->m->step_count;
    if (m->separate && home != AQ_DEVICE) {
        move(&m->base[p], m, AQ_OP_H2D, bytes);
        move(&m->base[p], m, AQ_OP_D2H, bytes);
    }
    if (home == AQ_DISK) {
        move(&m->base[p], m, AQ_OP_READ, bytes);
        move(&m->base[p], m, AQ_OP_WRITE, bytes);
    }
}

/* ---- KV ---- */

/* Runs of all seats in layers of a kind that pass through a stage with those of another seat of the
 * micro-batch. */
static double runs_shared(const struct model *m, uint32_t kind)
{
    double sharing = fmax(0, m->seats - m->o->shape.micro_batches);
    return sharing * m->sizes.kinds.kind[kind].layers * (m->shared / AQ_HEAD_BLOCK_SLOTS);
}

/* KV of the layers of one kind. */
static void add_decode_kv(struct model *m, uint32_t kind)
{
    const struct aq_block_shape *s = &m->sizes.shape;
    const struct aq_model_steps *steps = m->m;
    const struct aq_kv_kind *k_of = &m->sizes.kinds.kind[kind];
    struct aq_kv_policy policy = aq_kv_kind_policy(k_of, &m->o->in->kv);
    double held = m->held[kind].slots;
    bool full = m->held[kind].full;
    double all = m->seats * k_of->layers;
    double width = (double)steps->heads * steps->head_dim;
    double qkv = width + 2.0 * steps->kv_heads * steps->head_dim;
    uint32_t beside = aq_kv_policy_scores(&policy) ? 12 : aq_kv_policy_drops(&policy) ? 4 : 0;
    const struct aq_kv_residual *residual = &m->o->in->kv.residual;
    double keys = all * held, read = keys;
    if (residual->tokens || aq_kv_read_chooses(policy.read, (uint32_t)held)) {
        struct aq_kv_reads reads = aq_kv_reads_of(s, residual, policy.read, (uint32_t)held);
        keys = all * (double)reads.keys;
        read = all * (double)reads.slots;
    }
    double again = 0; /* slots of a seat that close up, in a mean pass */
    if (m->held[kind].drop_every)
        again = (double)m->held[kind].drop_leaves / m->held[kind].drop_every;
    read += 2 * all * again;
    struct aq_op_cost attend = {
        .flops = (uint64_t)(4 * keys * width),
        .memory_bytes = (uint64_t)(read * (double)s->page_bytes / s->page_slots +
                                   keys * (double)steps->kv_heads * beside),
        .head_dim = steps->head_dim,
        .group = steps->heads / steps->kv_heads,
    };
    struct aq_op_cost joint = attend; /* of the rows of one memory */
    if (!residual->tokens && !aq_kv_read_chooses(policy.read, (uint32_t)held) && !k_of->window)
        joint.joint_bytes =
            (uint64_t)(runs_shared(m, kind) * AQ_HEAD_BLOCK_SLOTS * (double)s->page_bytes /
                       s->page_slots * (aq_seats_joint(m->shared, (uint32_t)held) > 0));
    double before = full ? held : held - 1;
    double stride = (double)aq_align_up(s->run_bytes, AQ_PANEL_ALIGN);
    double whole = aq_kv_residual_whole(residual, (uint32_t)before);
    double brought = runs_shared(m, kind);
    struct demand *of = m->of[DECODE];
    for (int k = K_DEVICE; k <= K_DISK; k++)
        add(&of[k], m, AQ_OP_ATTN_DEVICE, is_beside(m) ? AQ_LANE_HOST_COMPUTE : AQ_LANE_COMPUTE,
            joint, 1);
    for (int k = K_HOST; k <= K_DISK && m->separate; k++) {
        move(&of[k], m, AQ_OP_H2D,
             (all * ceil(before / AQ_HEAD_BLOCK_SLOTS) - brought) * (double)s->run_bytes);
        move(&of[k], m, AQ_OP_D2H,
             all * (double)s->run_bytes * (full ? 1 : (1 + again) / AQ_HEAD_BLOCK_SLOTS));
    }
    for (int k = H_HOST; k <= H_DISK && m->separate; k++) {
        add(&of[k], m, AQ_OP_ATTN_HOST, AQ_LANE_HOST_COMPUTE, attend, 1);
        move(&of[k], m, AQ_OP_D2H, all * qkv * 4);
        move(&of[k], m, AQ_OP_H2D, all * width * (double)aq_dtype_bytes(s->compute));
    }
    for (int k = K_DISK; k <= H_DISK; k += H_DISK - K_DISK) {
        move(&of[k], m, AQ_OP_READ, (all * whole - (k == K_DISK ? brought : 0)) * stride);
        move(&of[k], m, AQ_OP_WRITE,
             all * (full ? whole + 1 : 1 + again) * stride / AQ_HEAD_BLOCK_SLOTS);
    }
}

static void add_prefill_kv(struct model *m, uint32_t kind)
{
    const struct aq_block_shape *s = &m->sizes.shape;
    const struct aq_kv_kind *k_of = &m->sizes.kinds.kind[kind];
    double held = m->held_prompt[kind].slots, all = m->seats * k_of->layers;
    double known = (double)aq_seats_key_pairs(m->spared, k_of->window);
    double pairs = (double)aq_seats_key_pairs(m->prompt, k_of->window) - known;
    double stride = (double)aq_align_up(s->run_bytes, AQ_PANEL_ALIGN);
    double stats = (double)m->held_prompt[kind].stat_pairs;
    stats -= m->held_prompt[kind].sums_all ? known : 0;
    double scored = 1 + 0.5 * stats / pairs;
    struct aq_op_cost attend = {
        .flops = (uint64_t)(4 * all * pairs * scored * m->m->heads * m->m->head_dim),
        .head_dim = m->m->head_dim,
        .group = m->m->heads / m->m->kv_heads};
    add(&m->base[PREFILL], m, AQ_OP_ATTN_PREFILL, AQ_LANE_COMPUTE, attend, 1);
    double home = all * ceil(held / AQ_HEAD_BLOCK_SLOTS) * (double)s->run_bytes;
    double whole = all * aq_kv_residual_whole(&m->o->in->kv.residual, (uint32_t)held) * stride;
    for (int k = K_HOST; k <= H_DISK; k++) {
        bool may_share = k == K_HOST || k == K_DISK; /* and nobody need lead */
        double by_device = may_share ? all * (m->shared / AQ_HEAD_BLOCK_SLOTS) : 0;
        if (m->separate)
            move(&m->of[PREFILL][k], m, AQ_OP_D2H, home - by_device * (double)s->run_bytes);
        if (k == K_DISK || k == H_DISK)
            move(&m->of[PREFILL][k], m, AQ_OP_WRITE, whole - by_device * stride);
    }
}

/* ---- the model of a shape ---- */

static void fill_memory(struct model *m)
{
    enum aq_tier near = m->separate ? AQ_DEVICE : AQ_HOST;
    m->memory[near][W_DEVICE] = m->matrices;
    m->memory[AQ_HOST][W_HOST] = m->memory[AQ_HOST][W_PRODUCT] = m->matrices;
    m->memory[near][K_DEVICE] = (double)m->sizes.kv_shared;
    m->memory[AQ_HOST][K_HOST] = m->memory[AQ_HOST][H_HOST] = (double)m->sizes.kv_memory;
    m->memory[AQ_HOST][K_DISK] = m->memory[AQ_HOST][H_DISK] = (double)m->sizes.kv_tails;
    m->memory[AQ_DISK][K_DISK] = m->memory[AQ_DISK][H_DISK] = (double)m->sizes.kv_disk;
    m->fixed[m->head_on_device ? AQ_DEVICE : AQ_HOST] += m->head;
    /* The ring holds the largest group: that of a head that streams, or one that grows with the
     * weights that stream. */
    const struct aq_block_inputs *in = m->o->in;
    double head = m->separate && !m->head_on_device ? m->head : 0;
    bool joined =
        in->fuse_layer || is_beside(m) || (m->separate && m->o->shape.side != AQ_ATTEND_DEVICE);
    double group = m->matrices / m->m->layers * (joined ? 1 : 0.5);
    double steps = m->o->shape.ring_steps > 0 ? m->o->shape.ring_steps : AQ_BLOCK_RING_STEPS;
    steps = in->prefetch_bytes ? 0 : steps;
    m->fixed[near] += steps * head;
    m->memory[near][W_DISK] += steps * fmax(0, group - head);
    if (m->separate)
        m->memory[near][W_HOST] += steps * fmax(0, group - head);
}

/* What a mean sequence has in common with others, as the forecast takes it (policy/forecast.c). */
static void find_shared(struct model *m, const struct aq_kv_kinds *kinds)
{
    uint32_t copied = aq_forecast_copied(m->o->work, kinds, &m->o->in->kv);
    bool pages = !m->o->in->kv.residual.tokens;
    for (uint32_t k = 0; k < kinds->count; k++)
        pages &= !m->held_prompt[k].drops;
    if (pages)
        m->shared = aq_forecast_shared(m->o->work, m->sizes.shape.page_slots);
    m->spared = (!pages || m->separate) && copied > m->shared ? copied : m->shared;
}

static void make(struct model *m, const struct aq_shares_opts *o, bool head_on_device, double seats)
{
    struct aq_block_inputs in = aq_shares_inputs(o);
    *m = (struct model){.o = o,
                        .m = o->in->steps,
                        .hw = o->in->hw,
                        .separate = o->in->separate,
                        .head_on_device = head_on_device,
                        .unpacked =
                            !aq_dtype_is_float(o->in->weight_format) && o->shape.micro_batches > 1,
                        .matrices = o->sums->matrices,
                        .head = o->sums->others};
    double all = (double)o->shape.micro_batch * o->shape.micro_batches;
    m->seats = seats > 0 ? seats : all;
    aq_block_sizes(&m->sizes, &in, o->shape.micro_batch);
    const struct aq_kv_kinds *kinds = &m->sizes.kinds;
    m->prompt = (uint32_t)fmax(1, round(o->work->prompt));
    struct aq_length mean = {m->prompt, (uint32_t)fmax(0, o->work->total - m->prompt), 0};
    uint32_t seen = (uint32_t)fmax(m->prompt, (o->work->prompt + o->work->total) / 2);
    aq_forecast_held_of(m->held_prompt, kinds, &o->in->kv, m->m->head_dim, &mean, m->prompt);
    aq_forecast_held_of(m->held, kinds, &o->in->kv, m->m->head_dim, &mean, seen);
    find_shared(m, kinds);
    double computed = m->prompt - m->spared;
    double each = fmax(1, floor((double)m->sizes.shape.prompt_tokens / computed));
    double of_batch = m->seats / o->shape.micro_batches;
    m->prefill_passes = ceil(of_batch / each);
    add_products(m, DECODE, of_batch, of_batch, 1);
    add_products(m, PREFILL, of_batch * computed / m->prefill_passes, of_batch / m->prefill_passes,
                 m->prefill_passes);
    add_hidden(m, DECODE, m->seats);
    add_hidden(m, PREFILL, m->seats * computed);
    for (uint32_t i = 0; i < kinds->count; i++) {
        add_decode_kv(m, i);
        add_prefill_kv(m, i);
    }
    fill_memory(m);
}

/* A single micro-batch cannot overlap attention on the host with products. */
static bool is_row(const struct model *m, int row)
{
    return row != ROW_CHAIN || (m->o->shape.micro_batches == 1 && m->separate);
}

static void times_of(double ret[PHASES], const struct model *m, const double x[SHARES])
{
    for (int p = 0; p < PHASES; p++) {
        ret[p] = 0;
        for (int r = 0; r < ROWS; r++) {
            double s = m->base[p].s[r];
            for (int c = 0; c < SHARES; c++)
                s += m->of[p][c].s[r] * x[c];
            ret[p] = is_row(m, r) ? fmax(ret[p], s) : ret[p];
        }
    }
}

/* ---- the program ---- */

static bool fill_rows(struct aq_lp *lp, const struct model *m)
{
    for (int p = 0; p < PHASES; p++) {
        for (int r = 0; r < ROWS; r++) {
            if (!is_row(m, r))
                continue;
            double *at = lp->at[lp->rows];
            if (!isfinite(m->base[p].s[r]))
                return false;
            for (int c = 0; c < SHARES; c++) {
                at[c] = m->of[p][c].s[r];
                if (!isfinite(at[c]) || isnan(at[c])) { /* the machine has no rate for it */
                    at[c] = 0;
                    lp->high[c] = 0;
                }
            }
            at[p == DECODE ? T_DECODE : T_PREFILL] = -1;
            lp->row_low[lp->rows] = -INFINITY;
            lp->row_high[lp->rows++] = -m->base[p].s[r];
        }
    }
    return true;
}

static void fill_capacities(struct aq_lp *lp, const struct model *m)
{
    for (int t = 0; t < AQ_TIER_COUNT; t++) {
        double room = (double)m->o->in->budget[t] - m->o->overhead[t] - m->fixed[t];
        if (m->o->in->budget[t] == UINT64_MAX || (t == AQ_DEVICE && !m->separate))
            continue;
        /* In units of the model's bytes, because the solver prefers numbers near 1. */
        for (int c = 0; c < SHARES; c++)
            lp->at[lp->rows][c] = m->memory[t][c] / m->matrices;
        lp->row_low[lp->rows] = -INFINITY;
        lp->row_high[lp->rows++] = room / m->matrices;
    }
}

static void fix(struct aq_lp *lp, enum column c, double share)
{
    lp->low[c] = lp->high[c] = share;
}

/* A row: the sum of these columns, times their factors, equals a value. */
struct term {
    enum column c;
    double times;
};

static void equal(struct aq_lp *lp, struct term a, struct term b, double sum)
{
    assert(lp->rows < AQ_LP_ROWS_MAX);
    lp->at[lp->rows][a.c] = a.times;
    lp->at[lp->rows][b.c] = b.times;
    lp->row_low[lp->rows] = lp->row_high[lp->rows] = sum;
    lp->rows++;
}

/* Rows for the side that attends KV outside the device's memory. */
static void fill_sides(struct aq_lp *lp, const struct model *m)
{
    enum aq_attention_side side = m->separate ? m->o->shape.side : AQ_ATTEND_DEVICE;
    double host = m->o->shape.split_host / 100;
    for (int k = 0; k < 2; k++) {
        enum column near = k ? K_DISK : K_HOST, far = k ? H_DISK : H_HOST;
        if (side == AQ_ATTEND_DEVICE)
            fix(lp, far, 0);
        else if (side == AQ_ATTEND_HOST)
            fix(lp, near, 0);
        else if (host > 0)
            equal(lp, (struct term){near, host}, (struct term){far, host - 1}, 0);
    }
}

/* Bounds of variables that the inputs or the machine fix. */
static void fill_bounds(struct aq_lp *lp, const struct model *m)
{
    const struct aq_block_inputs *in = m->o->in;
    const struct term k_disk = {K_DISK, 1}, h_disk = {H_DISK, 1};
    for (int c = 0; c < COLUMNS; c++)
        lp->high[c] = c < SHARES ? 1 : INFINITY;
    if (!m->separate) {
        fix(lp, W_HOST, 0);
        fix(lp, K_HOST, 0);
    }
    if (!m->separate || !m->o->shape.host_products)
        fix(lp, W_PRODUCT, 0);
    if (aq_kv_policy_cross(&in->kv)) { /* aq_block_make */
        fix(lp, K_DISK, 0);
        fix(lp, H_DISK, 0);
    }
    if (!aq_block_kv_may(in, AQ_DEVICE))
        fix(lp, K_DEVICE, 0);
    if (!in->can_stream)
        fix(lp, W_DISK, 0);
    if (in->placement) {
        const struct aq_placement *p = in->placement;
        double near = p->weights.percent[AQ_DEVICE], kv = p->kv.percent[AQ_DEVICE];
        near += m->separate ? 0 : p->weights.percent[AQ_HOST];
        kv += m->separate ? 0 : p->kv.percent[AQ_HOST];
        fix(lp, W_DEVICE, near / 100);
        fix(lp, W_DISK, p->weights.percent[AQ_DISK] / 100);
        fix(lp, K_DEVICE, kv / 100);
        equal(lp, k_disk, h_disk, p->kv.percent[AQ_DISK] / 100);
    } else if (m->o->shape.kv_disk >= 0) {
        equal(lp, k_disk, h_disk, m->o->shape.kv_disk);
    }
    fill_sides(lp, m);
    double given = in->host_products / 100;
    if (m->separate && !in->host_products_auto && m->o->shape.host_products)
        equal(lp, (struct term){W_PRODUCT, 1 - given}, (struct term){W_HOST, -given}, 0);
}

static void fill_sums(struct aq_lp *lp)
{
    for (int c = W_DEVICE; c <= W_DISK; c++)
        lp->at[lp->rows][c] = 1;
    for (int c = K_DEVICE; c <= H_DISK; c++)
        lp->at[lp->rows + 1][c] = 1;
    for (int i = 0; i < 2; i++, lp->rows++)
        lp->row_low[lp->rows] = lp->row_high[lp->rows] = 1;
}

/* Tokens a second of the whole work with these shares. */
static double rate(const struct model *m, const double x[SHARES], const double block[PHASES])
{
    const struct aq_forecast_work *w = m->o->work;
    double generated = w->total - w->prompt, all = (double)w->sequences;
    double block_s = block[PREFILL] + fmax(0, generated - 1) * block[DECODE];
    if (!w->sequences || all == m->seats)
        return generated * m->seats / block_s;
    double rest = aq_forecast_rest(w, m->seats), whole = (all - rest) / m->seats;
    double last[PHASES] = {0};
    if (rest > 0) {
        struct model part;
        make(&part, m->o, m->head_on_device, rest);
        times_of(last, &part, x);
    }
    return generated * all /
           (whole * block_s + last[PREFILL] + fmax(0, generated - 1) * last[DECODE]);
}

static int solve(struct aq_shares_found *ret, const struct aq_shares_opts *o, bool head_on_device,
                 struct aq_err *reterr)
{
    struct model m;
    struct aq_lp lp = {.columns = COLUMNS};
    double x[COLUMNS], cost, block[PHASES];
    double seats = (double)o->shape.micro_batch * o->shape.micro_batches;
    if (o->work->sequences)
        seats = fmin(seats, (double)o->work->sequences);
    make(&m, o, head_on_device, seats);
    lp.cost[T_DECODE] = fmax(1e-3, o->work->total - o->work->prompt - 1);
    lp.cost[T_PREFILL] = 1;
    fill_bounds(&lp, &m);
    if (!fill_rows(&lp, &m))
        return -ERANGE;
    fill_capacities(&lp, &m);
    fill_sums(&lp);
    /* Of equally fast shares the one in the nearest memory, so that nothing streams without
     * need. */
    double tie = 1e-6 * (m.base[DECODE].s[ROW_DEVICE] + m.base[PREFILL].s[ROW_DEVICE]);
    lp.cost[W_HOST] = lp.cost[K_HOST] = lp.cost[H_HOST] = tie;
    lp.cost[W_PRODUCT] = lp.cost[W_DISK] = lp.cost[K_DISK] = lp.cost[H_DISK] = 2 * tie;
    int rc = aq_lp_solve(x, &cost, &lp, reterr);
    if (rc < 0)
        return rc;
    enum aq_tier near = o->in->separate ? AQ_DEVICE : AQ_HOST;
    *ret = (struct aq_shares_found){.placement = {.head = head_on_device ? AQ_DEVICE : AQ_HOST}};
    struct aq_placement *p = &ret->placement;
    double host = x[W_HOST] + x[W_PRODUCT];
    p->weights.percent[AQ_HOST] = 100 * host;
    p->weights.percent[AQ_DISK] = 100 * x[W_DISK];
    p->weights.percent[near] += 100 * x[W_DEVICE];
    p->kv.percent[AQ_HOST] = 100 * (x[K_HOST] + x[H_HOST]);
    p->kv.percent[AQ_DISK] = 100 * (x[K_DISK] + x[H_DISK]);
    p->kv.percent[near] += 100 * x[K_DEVICE];
    p->hidden.percent[o->shape.hidden] = 100;
    ret->host_products = host > 0 ? 100 * x[W_PRODUCT] / host : 0;
    double there = x[H_HOST] + x[H_DISK], away = there + x[K_HOST] + x[K_DISK];
    if (o->shape.side == AQ_ATTEND_SPLIT && away > 0)
        ret->split_host = 100 * there / away;
    times_of(block, &m, x);
    ret->decode_pass_s = block[DECODE];
    ret->prefill_s = block[PREFILL];
    ret->gen_tok_s = rate(&m, x, block);
    return 0;
}

struct aq_block_inputs aq_shares_inputs(const struct aq_shares_opts *o)
{
    struct aq_block_inputs in = *o->in;
    in.micro_batch = o->shape.micro_batch;
    in.micro_batches = o->shape.micro_batches;
    in.attention_auto = false;
    in.attention = o->shape.side;
    in.split_host = o->shape.split_host;
    in.ring_steps = o->shape.ring_steps;
    if (o->shape.prompt_tokens)
        in.prompt_tokens = o->shape.prompt_tokens;
    if (!o->shape.host_products)
        in.host_products = 0;
    return in;
}

int aq_shares_solve(struct aq_shares_found *ret, const struct aq_shares_opts *o,
                    struct aq_err *reterr)
{
    struct aq_shares_found host, device;
    assert(o->in->hw && o->shape.micro_batch && o->shape.micro_batches);
    bool pinned = o->in->placement && o->in->placement->head == AQ_DEVICE;
    int rc = -ERANGE, rc_device = -ERANGE;
    if (!pinned)
        rc = solve(&host, o, false, reterr);
    if (rc == -ENOMEM)
        return rc;
    if (o->in->separate && (pinned || !o->in->placement))
        rc_device = solve(&device, o, true, reterr);
    if (rc_device == -ENOMEM || (rc < 0 && rc_device < 0))
        return rc_device == -ENOMEM ? rc_device : aq_error(reterr, -ERANGE, "block: no shares fit");
    *ret = rc < 0 || (rc_device == 0 && device.gen_tok_s >= host.gen_tok_s) ? device : host;
    return 0;
}

void aq_shares_used(double ret[AQ_TIER_COUNT], const struct aq_shares_opts *o,
                    const struct aq_shares_found *f)
{
    struct model m;
    const struct aq_placement *p = &f->placement;
    bool separate = o->in->separate;
    make(&m, o, separate && p->head == AQ_DEVICE, 0);
    double away = separate ? p->weights.percent[AQ_HOST] : 0;
    double x[SHARES] = {
        [W_DEVICE] = p->weights.percent[AQ_DEVICE] + (separate ? 0 : p->weights.percent[AQ_HOST]),
        [W_HOST] = away * (1 - f->host_products / 100),
        [W_PRODUCT] = away * f->host_products / 100,
        [K_DEVICE] = p->kv.percent[AQ_DEVICE] + (separate ? 0 : p->kv.percent[AQ_HOST]),
        [K_HOST] = separate ? p->kv.percent[AQ_HOST] : 0,
        [K_DISK] = p->kv.percent[AQ_DISK],
    };
    for (int t = 0; t < AQ_TIER_COUNT; t++) {
        ret[t] = m.fixed[t];
        for (int c = 0; c < SHARES; c++)
            ret[t] += m.memory[t][c] * x[c] / 100;
    }
}
