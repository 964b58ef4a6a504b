/* SPDX-License-Identifier: Apache-2.0
 * FlexGen's multi-batch loop, visit by visit: request the next group's weights and the next visit's
 * KV and hidden states, send those of the last visit home, compute, wait for all of these.  A group
 * is the work of one sweep over the micro-batches: one step, or, where the host attends beside the
 * device, the second half of a layer and the first half of the next (policy/program_ops.c). */
#include "policy/flexgen_loop.h"

#include "policy/block.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* Groups of 64 codes of 4 bits, with a scale and a minimum of 16 bits each. */
#define PACKED ((4 + 32.0 / 64) / 16)

enum { NONE = UINT32_MAX, RING = 2, PIECES_MAX = 4, TENSORS_MAX = 6, DEPS_MAX = 96 };
enum unit { UNIT_EMBED, UNIT_PRE, UNIT_POST, UNIT_MLP, UNIT_HEAD, UNIT_COUNT };

/* Weights that a group brings to the device. */
struct load {
    double host;              /* bytes */
    double disk[TENSORS_MAX]; /* bytes of each tensor */
    uint32_t disk_count;
};

struct loop {
    const struct aq_flexgen_run *r;
    bool prefill, fused, host_attends;
    uint32_t op_capacity, dep_capacity, steps;
    bool failed; /* memory */
    struct aq_program p;
    struct aq_op_cost *cost;
    uint32_t groups, batches;
    uint32_t seats[AQ_TIER_COUNT]; /* of a micro-batch, by where their KV lives */
    uint32_t rows;                 /* of a micro-batch */
    double keys;                   /* that a decode row sees */
    double kv_bytes;               /* of a key of one layer as it is kept */

    /* The visit that is being emitted: its barrier and everything it waits for. */
    uint32_t barrier, visit_first;
    /* Ops that later ones wait for; NONE where there is none. */
    uint32_t computed[2];  /* last op of the last visit of an even, an odd group */
    uint32_t coming[2][2]; /* [group % 2] newest op on each lane that brings its weights */
    uint32_t begin;        /* first op on the device */
    uint32_t *hidden_home, *hidden_here; /* [k] newest move of its hidden states */
    uint32_t *attended;                  /* [k] what POST waits for */
    uint32_t *kv_here;                   /* [k] newest op that brought its KV */
    uint32_t kv_used[RING], kv_sent[RING], kv_visits;
    uint32_t unsent;                     /* what made KV that is still to go home */
    uint32_t held[DEPS_MAX], held_count; /* what the visit's first computing op waits for as well */
    uint32_t last;                       /* last op on the device */
};

static bool on(const struct loop *l, enum aq_flexgen_rule h)
{
    return l->r->rules & 1u << h;
}

/* ---- ops --------------------------------------------------------------------------------- */

static void *grown(struct loop *l, void *array, uint32_t count, uint32_t *capacity, size_t bytes)
{
    if (array && count < *capacity)
        return array;
    uint32_t more = *capacity ? 2 * *capacity : 1024;
    void *ret = realloc(array, more * bytes);
    if (!ret) {
        l->failed = true;
        return array;
    }
    *capacity = more;
    return ret;
}

static void dep(struct loop *l, uint32_t on_op, uint8_t back)
{
    if (on_op == NONE || l->failed)
        return;
    l->p.dep = grown(l, l->p.dep, l->p.dep_count, &l->dep_capacity, sizeof(*l->p.dep));
    if (l->failed)
        return;
    struct aq_op *op = &l->p.op[l->p.op_count - 1];
    l->p.dep[l->p.dep_count++] = (struct aq_dep){on_op, back};
    op->dep_count++;
}

/* A new op; its deps follow before the next one. */
static uint32_t add(struct loop *l, enum aq_op_kind kind, enum aq_lane lane, enum aq_object object)
{
    uint32_t capacity = l->op_capacity;
    l->p.op = grown(l, l->p.op, l->p.op_count, &capacity, sizeof(*l->p.op));
    if (!l->failed)
        l->cost = grown(l, l->cost, l->p.op_count, &l->op_capacity, sizeof(*l->cost));
    if (l->failed)
        return NONE;
    l->p.op[l->p.op_count] = (struct aq_op){
        .kind = (uint8_t)kind,
        .lane = (uint8_t)lane,
        .object = (uint8_t)object,
        .dep_first = l->p.dep_count,
    };
    l->cost[l->p.op_count] = (struct aq_op_cost){0};
    uint32_t ret = l->p.op_count++;
    if (on(l, AQ_FLEXGEN_BARRIER))
        dep(l, l->barrier, 0);
    return ret;
}

/* Adds a move of `bytes` on a link or disk; no op if there are none. */
static uint32_t move(struct loop *l, enum aq_op_kind kind, enum aq_lane lane, enum aq_object object,
                     double bytes)
{
    if (bytes < 1)
        return NONE;
    uint32_t i = add(l, kind, lane, object);
    if (i != NONE)
        l->cost[i].move_bytes = (uint64_t)bytes;
    return i;
}

static uint32_t compute(struct loop *l, enum aq_op_kind kind, double flops, double bytes)
{
    bool host = kind == AQ_OP_ATTN_HOST;
    uint32_t i = add(l, kind, host ? AQ_LANE_HOST_COMPUTE : AQ_LANE_COMPUTE, AQ_OBJECT_NONE);
    if (i == NONE)
        return i;
    l->cost[i] = (struct aq_op_cost){
        .rows = l->rows, .flops = (uint64_t)flops, .memory_bytes = (uint64_t)bytes};
    for (; !host && l->held_count > 0; l->held_count--)
        dep(l, l->held[l->held_count - 1], 0);
    if (!host)
        l->last = i;
    return i;
}

/* The visit's first op on the device waits for this op, too. */
static void hold(struct loop *l, uint32_t op)
{
    assert(l->held_count < DEPS_MAX);
    if (op != NONE)
        l->held[l->held_count++] = op;
}

/* A copy through pageable memory as the bytes that the link would carry in the same time. */
static double slowed(const struct loop *l, double bytes, double rate, double link)
{
    return on(l, AQ_FLEXGEN_PAGEABLE) && rate > 0 && rate < link ? bytes * link / rate : bytes;
}

/* FlexGen's one thread copies pageable memory into pinned memory before it goes on to compute. */
static uint32_t pin(struct loop *l, double bytes)
{
    if (!on(l, AQ_FLEXGEN_PAGEABLE) || bytes < 1)
        return NONE;
    uint32_t i = add(l, AQ_OP_UNPACK, AQ_LANE_HOST_COMPUTE, AQ_OBJECT_NONE);
    if (i == NONE)
        return i;
    l->cost[i] = (struct aq_op_cost){.rows = 1, .memory_bytes = (uint64_t)bytes};
    hold(l, i);
    return i;
}

/* ---- weights ----------------------------------------------------------------------------- */

static double matrix_elements(const struct aq_matrix_desc *m)
{
    return (double)m->rows * m->k;
}

/* Elements of a step's matrices; FlexGen places a tensor by its midpoint in them. */
static double step_elements(const struct aq_step_desc *d)
{
    double sum = 0;
    for (uint32_t i = 0; i < d->matrix_count; i++)
        sum += matrix_elements(&d->matrix[i]);
    return sum;
}

static void add_load(const struct loop *l, struct load *load, double bytes, double middle)
{
    const struct aq_shares *s = &l->r->weights;
    double host = s->percent[AQ_HOST] / 100, disk = s->percent[AQ_DISK] / 100;
    if (on(l, AQ_FLEXGEN_WHOLE_TENSORS)) {
        enum aq_tier t = aq_flexgen_tensor_tier(s, middle);
        host = t == AQ_HOST;
        disk = t == AQ_DISK;
    }
    load->host += host * bytes;
    if (disk > 0)
        load->disk[load->disk_count++] = disk * bytes;
}

/* Biases, each behind its matrix, move the middles of matrices down a little. */
#define MIDDLE_BEFORE (1 - 1e-5)

/* Matrices [first, end) of a step. */
static void load_matrices(const struct loop *l, struct load *load, uint32_t step, uint32_t first,
                          uint32_t end)
{
    const struct aq_step_desc *d = &l->r->steps->step[step];
    double whole = step_elements(d), before = 0;
    for (uint32_t i = 0; i < d->matrix_count && i < end; i++) {
        double n = matrix_elements(&d->matrix[i]);
        double bytes = 2 * n * (l->r->pack_weights ? PACKED : 1);
        if (i >= first)
            add_load(l, load, bytes, MIDDLE_BEFORE * 100 * (before + n / 2) / whole);
        before += n;
    }
}

static uint32_t attention_step(const struct loop *l, uint32_t layer)
{
    const struct aq_step_desc *step = l->r->steps->step;
    uint32_t j = 0;
    while (step[j].kind != AQ_STEP_ATTENTION || step[j].layer != layer)
        j++;
    return j;
}

/* Is the layer's MLP a step of its own? */
static bool has_mlp(const struct loop *l, uint32_t layer)
{
    return l->r->steps->step[attention_step(l, layer) + 1].kind == AQ_STEP_MLP;
}

/* Units of a group, in order; returns how many. */
static uint32_t units_of(const struct loop *l, uint32_t group, enum unit unit[4])
{
    uint32_t n = 0, last = l->groups - 1;
    if (!l->fused) {
        enum aq_step_kind kind = l->r->steps->step[group].kind;
        if (kind == AQ_STEP_ATTENTION) {
            unit[n++] = UNIT_PRE;
            unit[n++] = UNIT_POST;
        } else {
            unit[n++] = kind == AQ_STEP_MLP    ? UNIT_MLP
                        : kind == AQ_STEP_HEAD ? UNIT_HEAD
                                               : UNIT_EMBED;
        }
        return n;
    }
    if (group == 0)
        unit[n++] = UNIT_EMBED;
    if (group > 0) {
        unit[n++] = UNIT_POST;
        if (has_mlp(l, group - 1))
            unit[n++] = UNIT_MLP;
    }
    unit[n++] = group < last ? UNIT_PRE : UNIT_HEAD;
    return n;
}

/* The step that a unit of a group belongs to. */
static uint32_t step_of(const struct loop *l, uint32_t group, enum unit unit)
{
    if (!l->fused)
        return group;
    switch (unit) {
    case UNIT_EMBED: return 0;
    case UNIT_PRE: return attention_step(l, group);
    case UNIT_POST: return attention_step(l, group - 1);
    case UNIT_MLP: return attention_step(l, group - 1) + 1;
    default: return l->steps - 1;
    }
}

/* Projections of an attention step before attention; the others are after it. */
static uint32_t pre_count(const struct aq_step_desc *d)
{
    uint32_t count = 0;
    while (count < d->matrix_count && aq_op_uses_matrix(AQ_OP_PRE, d, count))
        count++;
    assert(count > 0 && count < d->matrix_count);
    return count;
}

static struct load load_of(const struct loop *l, uint32_t group)
{
    struct load load = {0};
    enum unit unit[4];
    uint32_t n = units_of(l, group, unit);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t step = step_of(l, group, unit[i]);
        const struct aq_step_desc *d = &l->r->steps->step[step];
        /* The first copy of the token table is for the input only, where this engine gathers
         * rows. */
        if (unit[i] == UNIT_EMBED && !on(l, AQ_FLEXGEN_TABLE_TWICE))
            continue;
        uint32_t pre = unit[i] == UNIT_PRE || unit[i] == UNIT_POST ? pre_count(d) : 0;
        load_matrices(l, &load, step, unit[i] == UNIT_POST ? pre : 0,
                      unit[i] == UNIT_PRE ? pre : d->matrix_count);
    }
    return load;
}

/* This engine reads chunks; a few pieces show how reading and sending overlap. */
static uint32_t pieces_of(double bytes)
{
    double chunks = bytes / (double)AQ_BLOCK_CHUNK_BYTES;
    return chunks < 1 ? 1 : chunks > PIECES_MAX ? PIECES_MAX : (uint32_t)chunks;
}

static void load_from_disk(struct loop *l, uint32_t group, double bytes, uint32_t wait)
{
    uint32_t pieces = on(l, AQ_FLEXGEN_WHOLE_READS) ? 1 : pieces_of(bytes);
    for (uint32_t i = 0; i < pieces && bytes / pieces >= 1; i++) {
        uint32_t read =
            move(l, AQ_OP_READ, AQ_LANE_READ_WEIGHTS, AQ_OBJECT_WEIGHTS, bytes / pieces);
        dep(l, wait, 0);
        l->coming[(group + 1) % 2][0] =
            move(l, AQ_OP_H2D, AQ_LANE_H2D_WEIGHTS, AQ_OBJECT_WEIGHTS, bytes / pieces);
        dep(l, read, 0);
    }
}

/* Visit (group, k): the weights of the next group that are due in this visit.  They take the
 * buffers of the group before this one; for the first group, of the group before the pass. */
static void load_weights(struct loop *l, uint32_t group, uint32_t k)
{
    uint32_t next = (group + 1) % l->groups;
    uint32_t wait = group > 0 ? l->computed[(group - 1) % 2] : l->begin;
    uint32_t parts = on(l, AQ_FLEXGEN_FIRST_SLOT) ? 1 : l->batches;
    if (k >= parts || (next == 0 && l->prefill)) /* prefill is played once */
        return;
    if (k == 0)
        memset(l->coming[(group + 1) % 2], 0xff, sizeof(l->coming[0]));
    struct load load = load_of(l, next);
    for (uint32_t i = 0; i < load.disk_count; i++)
        load_from_disk(l, group, load.disk[i] / parts, wait);
    double bytes = load.host / parts;
    uint32_t pinned = l->r->pageable_weights ? pin(l, bytes) : NONE;
    bool one = on(l, AQ_FLEXGEN_ONE_QUEUE);
    uint32_t h2d =
        move(l, AQ_OP_H2D, one ? AQ_LANE_H2D : AQ_LANE_H2D_WEIGHTS, AQ_OBJECT_WEIGHTS, bytes);
    if (h2d == NONE)
        return;
    dep(l, wait, 0);
    dep(l, pinned, 0);
    l->coming[(group + 1) % 2][one] = h2d;
}

/* ---- KV and hidden states ---------------------------------------------------------------- */

/* Bytes of KV that decode rows attend, for the seats of this tier. */
static double seen_bytes(const struct loop *l, enum aq_tier tier)
{
    return l->seats[tier] * l->keys * l->kv_bytes;
}

/* Moves the KV of a decode visit to the side that attends. */
static void load_kv(struct loop *l, uint32_t k)
{
    double disk = seen_bytes(l, AQ_DISK), host = seen_bytes(l, AQ_HOST);
    uint32_t free_at = l->kv_used[l->kv_visits % RING];
    l->kv_here[k] = NONE;
    if (l->prefill)
        return;
    uint32_t read = move(l, AQ_OP_READ, AQ_LANE_DISK_READ, AQ_OBJECT_KV, disk);
    if (read != NONE)
        dep(l, free_at, 0);
    l->kv_here[k] = read;
    if (l->host_attends)
        return;
    uint32_t pinned = pin(l, host);
    uint32_t h2d = move(l, AQ_OP_H2D, AQ_LANE_H2D, AQ_OBJECT_KV, host + disk);
    if (h2d == NONE)
        return;
    dep(l, free_at, 0);
    dep(l, read, 0);
    dep(l, pinned, 0);
    l->kv_here[k] = h2d;
}

/* Moves the new KV of the visit before to its home. */
static void store_kv(struct loop *l)
{
    const struct aq_flexgen_run *r = l->r;
    double length = l->prefill ? (double)l->rows / r->micro_batch : 1;
    double each = (r->kept && r->kept < length ? r->kept : length) * l->kv_bytes;
    double away = (l->seats[AQ_HOST] + l->seats[AQ_DISK]) * each, link = r->hw->d2h_bytes_per_s;
    double rate = l->prefill ? r->rates.kv_store_bytes_per_s : r->rates.pageable_bytes_per_s;
    uint32_t *sent = &l->kv_sent[(l->kv_visits - 1) % RING], made = l->unsent;
    uint32_t d2h = move(l, AQ_OP_D2H, AQ_LANE_D2H, AQ_OBJECT_KV, slowed(l, away, rate, link));
    l->unsent = NONE;
    if (d2h == NONE)
        return;
    dep(l, made, 0);
    uint32_t write =
        move(l, AQ_OP_WRITE, AQ_LANE_DISK_WRITE, AQ_OBJECT_KV, l->seats[AQ_DISK] * each);
    if (write != NONE)
        dep(l, d2h, 0);
    *sent = write == NONE ? d2h : write;
}

static bool hidden_moves(const struct loop *l)
{
    return l->r->hidden.percent[AQ_HOST] == 100;
}

static double hidden_bytes(const struct loop *l)
{
    return 2.0 * l->rows * l->r->steps->hidden;
}

/* Moves micro-batch k's hidden states home, after the op `computed`. */
static void send_hidden(struct loop *l, uint32_t k, uint32_t computed)
{
    double rate = l->r->rates.pageable_bytes_per_s;
    double bytes = slowed(l, hidden_bytes(l), rate, l->r->hw->d2h_bytes_per_s);
    if (!hidden_moves(l))
        return;
    l->hidden_home[k] = move(l, AQ_OP_D2H, AQ_LANE_D2H, AQ_OBJECT_HIDDEN, bytes);
    dep(l, computed, 0);
    if (on(l, AQ_FLEXGEN_ONE_QUEUE))
        hold(l, l->hidden_home[k]);
}

static void bring_hidden(struct loop *l, uint32_t k)
{
    if (!hidden_moves(l))
        return;
    l->hidden_here[k] = move(l, AQ_OP_H2D, AQ_LANE_H2D, AQ_OBJECT_HIDDEN, hidden_bytes(l));
    dep(l, l->hidden_home[k], 0);
    if (on(l, AQ_FLEXGEN_ONE_QUEUE))
        hold(l, l->hidden_here[k]);
}

/* ---- computing --------------------------------------------------------------------------- */

/* A product of matrices [first, end) of a step, with the bytes that it reads. */
static uint32_t product(struct loop *l, enum aq_op_kind kind, uint32_t step, uint32_t first,
                        uint32_t end, uint32_t rows)
{
    const struct aq_step_desc *d = &l->r->steps->step[step];
    double n = 0;
    for (uint32_t i = first; i < end && i < d->matrix_count; i++)
        n += matrix_elements(&d->matrix[i]);
    bool packed = l->r->pack_weights && !on(l, AQ_FLEXGEN_UNPACK_EACH);
    if (l->r->pack_weights && on(l, AQ_FLEXGEN_UNPACK_EACH) && kind != AQ_OP_EMBED)
        compute(l, AQ_OP_UNPACK, 0, 2 * n * PACKED);
    if (kind == AQ_OP_EMBED)
        n = 0; /* rows are gathered */
    return compute(l, kind, 2 * n * rows, 2 * n * (packed ? PACKED : 1));
}

/* Decode attention on the device, with KV that is moved there or is resident. */
static uint32_t attend_on_device(struct loop *l, double bytes)
{
    const struct aq_flexgen_run *r = l->r;
    bool unpacked = r->pack_kv && on(l, AQ_FLEXGEN_UNPACK_EACH);
    if (bytes < 1)
        return l->last;
    if (unpacked)
        compute(l, AQ_OP_UNPACK, 0, bytes);
    return compute(l, AQ_OP_ATTN_DEVICE, 0, unpacked ? bytes / PACKED : bytes);
}

/* q, k and v to the host, attention there, its output back. */
static uint32_t attend_on_host(struct loop *l, uint32_t k, double bytes)
{
    const struct aq_model_steps *m = l->r->steps;
    double row = 2.0 * (l->seats[AQ_HOST] + l->seats[AQ_DISK]) * m->head_dim;
    uint32_t pre = l->last, at;
    at = move(l, AQ_OP_D2H, AQ_LANE_D2H, AQ_OBJECT_QKV, row * (m->heads + 2.0 * m->kv_heads));
    dep(l, pre, 0);
    uint32_t host = compute(l, AQ_OP_ATTN_HOST, 0, bytes);
    dep(l, at, 0);
    dep(l, l->kv_here[k], 0);
    at = move(l, AQ_OP_H2D, AQ_LANE_H2D, AQ_OBJECT_ATTENTION, row * m->heads);
    dep(l, host, 0);
    return at;
}

static void attend(struct loop *l, uint32_t k)
{
    const struct aq_model_steps *m = l->r->steps;
    double width = (double)m->heads * m->head_dim, away = seen_bytes(l, AQ_HOST);
    uint32_t turn = l->kv_visits % RING;
    away += seen_bytes(l, AQ_DISK);
    l->attended[k] = NONE;
    if (l->prefill) {
        double length = (double)l->rows / l->r->micro_batch;
        double pairs = on(l, AQ_FLEXGEN_SLOW_DEVICE) ? length * length : length * (length + 1) / 2;
        compute(l, AQ_OP_ATTN_PREFILL, 4 * pairs * width * l->r->micro_batch, 0);
        l->kv_used[turn] = l->last;
    } else if (l->host_attends && away >= 1) {
        l->attended[k] = attend_on_host(l, k, away);
        l->kv_used[turn] = l->attended[k];
        attend_on_device(l, seen_bytes(l, AQ_DEVICE));
    } else {
        hold(l, l->kv_here[k]);
        l->kv_used[turn] = attend_on_device(l, seen_bytes(l, AQ_DEVICE) + away);
    }
}

static void run_unit(struct loop *l, uint32_t group, enum unit unit, uint32_t k)
{
    uint32_t step = step_of(l, group, unit), seats = l->r->micro_batch;
    const struct aq_step_desc *d = &l->r->steps->step[step];
    switch (unit) {
    case UNIT_PRE:
        hold(l, l->kv_sent[l->kv_visits % RING]);
        product(l, AQ_OP_PRE, step, 0, pre_count(d), l->rows);
        l->unsent = l->last;
        attend(l, k);
        l->kv_visits++;
        break;
    case UNIT_POST:
        hold(l, l->attended[k]);
        product(l, AQ_OP_POST, step, pre_count(d), d->matrix_count, l->rows);
        break;
    case UNIT_HEAD:
        product(l, AQ_OP_HEAD, step, 0, d->matrix_count,
                l->prefill && on(l, AQ_FLEXGEN_ALL_LOGITS) ? l->rows : seats);
        break;
    default:
        product(l, unit == UNIT_EMBED ? AQ_OP_EMBED : AQ_OP_MLP, step, 0, d->matrix_count, l->rows);
    }
}

/* ---- visits ------------------------------------------------------------------------------ */

static bool attends(const struct loop *l, uint32_t group)
{
    enum unit unit[4];
    uint32_t n = units_of(l, group, unit);
    for (uint32_t i = 0; i < n; i++) {
        if (unit[i] == UNIT_PRE)
            return true;
    }
    return false;
}

/* Moves that FlexGen requests one visit ahead. */
static void bring_next(struct loop *l, uint32_t group, uint32_t k)
{
    uint32_t next = k + 1 < l->batches ? group : group + 1, at = (k + 1) % l->batches;
    if (next >= l->groups)
        return;
    if (attends(l, next))
        load_kv(l, at);
    if (next > 0 && l->batches > 1)
        bring_hidden(l, at);
}

static void end_visit(struct loop *l)
{
    uint32_t first = l->visit_first, end = l->p.op_count;
    if (on(l, AQ_FLEXGEN_BARRIER)) {
        uint32_t barrier = add(l, AQ_OP_TURN, AQ_LANE_CONTROL, AQ_OBJECT_NONE);
        for (uint32_t i = first; i < end; i++)
            dep(l, i, 0);
        l->barrier = barrier;
    }
    l->visit_first = l->p.op_count;
}

/* The visit waits for the last weights of its group. */
static void hold_weights(struct loop *l, uint32_t group)
{
    hold(l, l->coming[group % 2][0]);
    hold(l, l->coming[group % 2][1]);
}

static void visit(struct loop *l, uint32_t group, uint32_t k)
{
    enum unit unit[4];
    uint32_t n = units_of(l, group, unit), before = l->last, batches = l->batches;
    bool first = group == 0 && k == 0, after_head = group + 1 == l->groups && k > 0;
    l->held_count = 0;
    if (group > 0)
        load_weights(l, group, k);
    if (batches > 1 && !first && !after_head)
        send_hidden(l, (k + batches - 1) % batches, before);
    if (first && attends(l, group))
        load_kv(l, k);
    bring_next(l, group, k);
    if (l->unsent != NONE)
        store_kv(l);
    if (batches == 1 && group > 0)
        bring_hidden(l, k);
    if (k == 0 && group > 0)
        hold_weights(l, group);
    if (hidden_moves(l) && group > 0)
        hold(l, l->hidden_here[k]);
    uint32_t begin = l->p.op_count;
    for (uint32_t i = 0; i < n; i++)
        run_unit(l, group, unit[i], k);
    if (first)
        l->begin = begin;
    if (group == 0)
        load_weights(l, group, k);
    if (k + 1 == batches)
        l->computed[group % 2] = l->last;
    if (batches == 1 && group + 1 < l->groups)
        send_hidden(l, k, l->last);
    end_visit(l);
}

/* The first group's weights are moved during the last group of the pass before: the first op of the
 * pass waits for ops behind it in the array. */
static void close_circle(struct loop *l)
{
    const uint32_t *coming = l->coming[l->groups % 2];
    if (l->prefill || l->failed)
        return;
    struct aq_op *op = &l->p.op[l->begin];
    uint32_t first = l->p.dep_count, count = op->dep_count, from = op->dep_first;
    op->dep_count = 0;
    for (uint32_t i = 0; i < count + 2 && !l->failed; i++) {
        struct aq_dep d = i < count ? l->p.dep[from + i] : (struct aq_dep){coming[i - count], 1};
        if (d.op == NONE)
            continue;
        l->p.dep = grown(l, l->p.dep, l->p.dep_count, &l->dep_capacity, sizeof(*l->p.dep));
        if (l->failed)
            return;
        l->p.dep[l->p.dep_count++] = d;
        l->p.op[l->begin].dep_count++;
    }
    l->p.op[l->begin].dep_first = first;
}

/* ---- open -------------------------------------------------------------------------------- */

static bool open_loop(struct loop *l)
{
    const struct aq_flexgen_run *r = l->r;
    const struct aq_model_steps *m = r->steps;
    bool padded = on(l, AQ_FLEXGEN_PADDING) || r->prompt_mean <= 0;
    double prompt = padded ? r->prompt : r->prompt_mean;
    l->steps = m->step_count;
    l->batches = r->micro_batches;
    l->host_attends = r->host_attention;
    l->fused = r->host_attention && l->batches > 1 && !l->prefill &&
               r->kv.percent[AQ_DEVICE] < 100 && !on(l, AQ_FLEXGEN_SERIAL_HOST) &&
               !on(l, AQ_FLEXGEN_BARRIER);
    l->groups = l->fused ? m->layers + 1 : m->step_count;
    l->rows = (uint32_t)(r->micro_batch * (l->prefill ? prompt : 1) + 0.5);
    /* The row attends the new token's key, too. */
    l->keys = prompt + (r->first_step ? 1 : r->gen / 2.0);
    if (r->kept && r->kept < l->keys)
        l->keys = r->kept;
    l->kv_bytes = 4.0 * m->kv_heads * m->head_dim * (r->pack_kv ? PACKED : 1);
    aq_plan_kv_seats(l->seats, &r->kv, r->micro_batch);
    uint32_t **per_batch[] = {&l->hidden_home, &l->hidden_here, &l->attended, &l->kv_here};
    for (size_t i = 0; i < AQ_ARRAY_LEN(per_batch); i++) {
        *per_batch[i] = malloc(l->batches * sizeof(uint32_t));
        if (!*per_batch[i])
            return false;
        memset(*per_batch[i], 0xff, l->batches * sizeof(uint32_t));
    }
    memset(l->kv_used, 0xff, sizeof(l->kv_used));
    memset(l->kv_sent, 0xff, sizeof(l->kv_sent));
    memset(l->coming, 0xff, sizeof(l->coming));
    l->barrier = l->last = l->begin = l->unsent = l->computed[0] = l->computed[1] = NONE;
    return true;
}

int aq_flexgen_loop_build(struct aq_flexgen_loop *ret, const struct aq_flexgen_run *run,
                          bool prefill, struct aq_err *reterr)
{
    struct loop l = {.r = run, .prefill = prefill};
    l.failed = !open_loop(&l);
    for (uint32_t g = 0; g < l.groups && !l.failed; g++) {
        for (uint32_t k = 0; k < l.batches && !l.failed; k++)
            visit(&l, g, k);
    }
    close_circle(&l);
    free(l.hidden_home);
    free(l.hidden_here);
    free(l.attended);
    free(l.kv_here);
    l.p.micro_batches = l.batches;
    struct aq_flexgen_loop loop = {l.p, l.cost};
    if (l.failed) {
        aq_flexgen_loop_close(&loop);
        return aq_error_memory(reterr, "a loop of %u x %u visits", l.groups, l.batches);
    }
    *ret = loop;
    return 0;
}

void aq_flexgen_loop_close(struct aq_flexgen_loop *l)
{
    aq_program_close(&l->program);
    free(l->cost);
    l->cost = NULL;
}

enum aq_tier aq_flexgen_tensor_tier(const struct aq_shares *shares, double middle)
{
    const double *p = shares->percent;
    if (middle < p[AQ_DISK])
        return AQ_DISK;
    return middle < p[AQ_DISK] + p[AQ_HOST] ? AQ_HOST : AQ_DEVICE;
}
