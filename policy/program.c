/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/host_product.h"
#include "policy/kv_layout.h"
#include "policy/program_build.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

const char *aq_op_name(enum aq_op_kind kind)
{
    static const char *const names[AQ_OP_KIND_COUNT] = {
        "READ",   "WRITE",        "H2D",          "D2H",       "UNPACK", "EMBED",
        "PRE",    "ATTN_PREFILL", "ATTN_DEVICE",  "ATTN_HOST", "POST",   "MLP",
        "MLP_UP", "MLP_DOWN",     "PRODUCT_HOST", "MERGE",     "HEAD",   "TURN",
    };
    return (unsigned)kind < AQ_OP_KIND_COUNT ? names[kind] : "?";
}

const char *aq_lane_name(enum aq_lane lane)
{
    static const char *const names[AQ_LANE_COUNT] = {
        "compute",     "host_compute",      "h2d",     "d2h", "disk_read", "disk_write",
        "h2d_weights", "disk_read_weights", "control",
    };
    return (unsigned)lane < AQ_LANE_COUNT ? names[lane] : "?";
}

const char *aq_object_name(enum aq_object object)
{
    static const char *const names[AQ_OBJECT_COUNT] = {
        "none",      "weights", "rows",   "hidden", "qkv",   "attention", "kv",
        "kv_prompt", "inner",   "logits", "tokens", "input", "columns",   "partial",
    };
    return (unsigned)object < AQ_OBJECT_COUNT ? names[object] : "?";
}

const char *aq_slot_class_name(enum aq_slot_class c)
{
    static const char *const names[AQ_SLOT_CLASS_COUNT] = {
        "ring",        "staging",      "unpacked",  "rows",       "tokens",   "hidden",
        "hidden_host", "hidden_disk",  "qkv",       "attention",  "qkv_host", "attention_host",
        "kv",          "kv_host",      "kv_device", "kv_prefill", "inner",    "logits",
        "input_host",  "columns_host", "columns",
    };
    return (unsigned)c < AQ_SLOT_CLASS_COUNT ? names[c] : "?";
}

/* ---- slots ------------------------------------------------------------------------------- */

static void add_class(struct aq_builder *b, enum aq_slot_class c, uint32_t count, enum aq_tier tier,
                      uint64_t bytes)
{
    struct aq_program *p = b->p;
    p->first[c] = p->slot_count;
    for (uint32_t i = 0; i < count && p->slot; i++)
        p->slot[p->slot_count + i] = (struct aq_slot){(uint8_t)c, (uint8_t)tier, bytes};
    p->slot_count += count;
}

/* Bytes of the largest step's matrices in the compute type, in whole panels. */
static uint64_t unpacked_bytes(const struct aq_builder *b)
{
    uint64_t most = 0;
    for (uint32_t j = 0; j < b->steps->step_count; j++) {
        const struct aq_step_desc *d = &b->steps->step[j];
        uint64_t bytes = 0;
        if (!aq_step_is_layer(d))
            continue;
        for (uint32_t i = 0; i < d->matrix_count; i++)
            bytes += aq_matrix_bytes(&d->matrix[i], b->plan->shape.compute);
        most = aq_max_u64(most, bytes);
    }
    return most;
}

/* Bytes of a staging slot for parts; with_slots: scores, positions and victims included. */
static uint64_t stage_bytes(const struct aq_builder *b, bool with_slots)
{
    uint64_t most = 0, seats = 0;
    for (uint32_t i = 0; i < b->plan->part_count; i++) {
        const struct aq_part *part = &b->plan->part[i];
        if (!part->staged && part->side != AQ_ATTEND_HOST)
            continue;
        most = aq_max_u64(most, aq_plan_part_bytes(b->plan, part));
        seats = aq_max_u64(seats, part->count);
    }
    return most + (with_slots ? seats * aq_kv_layout_transfer(b->plan, b->steps->kv_heads) : 0);
}

/* Sizes of the slots of parts.  The outputs of all parts of a workspace are one buffer, which
 * counts as the slot of the first part. */
static void size_parts(struct aq_builder *b, uint64_t q_width, uint64_t kv_width)
{
    const struct aq_plan *plan = b->plan;
    struct aq_program *p = b->p;
    uint64_t compute = aq_dtype_bytes(plan->shape.compute);
    for (uint32_t i = 0; i < b->workspaces * plan->part_count; i++) {
        uint64_t rows = plan->part[i % plan->part_count].count;
        bool host = plan->part[i % plan->part_count].side == AQ_ATTEND_HOST;
        p->slot[p->first[AQ_SLOT_ATTENTION] + i].bytes =
            i % plan->part_count ? 0 : plan->shape.rows_max * q_width * compute;
        if (!b->host_parts)
            continue;
        p->slot[p->first[AQ_SLOT_QKV_HOST] + i].bytes =
            host ? rows * (q_width + 2 * kv_width) * 4 : 0;
        p->slot[p->first[AQ_SLOT_ATTENTION_HOST] + i].bytes = host ? rows * q_width * compute : 0;
    }
    uint32_t homes = b->steps->layers * plan->shape.micro_batches * plan->part_count;
    for (uint32_t i = 0; i < homes; i++) {
        uint8_t tier = plan->part[i % plan->part_count].tier;
        bool shared = !plan->separate && tier == AQ_DEVICE;
        p->slot[p->first[AQ_SLOT_KV] + i].tier = shared ? AQ_HOST : tier;
    }
    for (uint32_t k = 0; k < plan->shape.micro_batches; k++) {
        if (aq_plan_hidden_tier(plan, k) != AQ_DISK)
            p->slot[p->first[AQ_SLOT_HIDDEN_DISK] + k].bytes = 0;
    }
}

static uint32_t stages_of(const struct aq_build_stages *s)
{
    return s->count[AQ_ATTEND_DEVICE] + s->count[AQ_ATTEND_HOST];
}

/* Numbers the slots class by class; called once to count and once to fill. */
static void lay_slots(struct aq_builder *b)
{
    const struct aq_model_steps *m = b->steps;
    const struct aq_plan *plan = b->plan;
    const struct aq_block_shape *s = &plan->shape;
    enum aq_tier device = plan->separate ? AQ_DEVICE : AQ_HOST;
    uint64_t rows = s->rows_max;
    uint64_t width = (uint64_t)m->heads * m->head_dim;
    uint64_t kv_width = (uint64_t)m->kv_heads * m->head_dim;
    uint64_t hidden = rows * m->hidden * 4, qkv = rows * (width + 2 * kv_width) * 4;
    uint32_t n = s->micro_batches, w = b->workspaces, parts = plan->part_count;
    uint32_t host = b->host_parts ? w * parts : 0;
    uint32_t unpacked = plan->unpack ? b->beside ? 4 : 2 : 0;
    b->p->slot_count = 0;
    add_class(b, AQ_SLOT_RING, b->stream->ring, device, b->stream->chunk_bytes);
    add_class(b, AQ_SLOT_STAGING, b->stream->staging, AQ_HOST, b->stream->chunk_bytes);
    add_class(b, AQ_SLOT_UNPACKED, unpacked, device, unpacked_bytes(b));
    add_class(b, AQ_SLOT_ROWS, n, device, rows * 8);
    add_class(b, AQ_SLOT_TOKENS, n, device, s->micro_batch * 4ull);
    add_class(b, AQ_SLOT_HIDDEN, b->hidden_resident + b->hidden_work, device, hidden);
    add_class(b, AQ_SLOT_HIDDEN_HOST, b->hidden_host + b->hidden_transit, AQ_HOST, hidden);
    add_class(b, AQ_SLOT_HIDDEN_DISK, n, AQ_DISK, hidden);
    add_class(b, AQ_SLOT_QKV, w, device, qkv);
    add_class(b, AQ_SLOT_ATTENTION, w * parts, device, 0);
    add_class(b, AQ_SLOT_QKV_HOST, host, AQ_HOST, 0);
    add_class(b, AQ_SLOT_ATTENTION_HOST, host, AQ_HOST, 0);
    add_class(b, AQ_SLOT_KV, m->layers * n * parts, AQ_HOST, 0);
    add_class(b, AQ_SLOT_KV_HOST, stages_of(&b->on_host), AQ_HOST, stage_bytes(b, false));
    add_class(b, AQ_SLOT_KV_DEVICE, stages_of(&b->on_device), device, stage_bytes(b, true));
    struct aq_kv_prefill_layout prefill;
    aq_kv_layout_prefill(&prefill, plan, m);
    add_class(b, AQ_SLOT_KV_PREFILL, prefill.bytes > 0, device, prefill.bytes);
    uint64_t inner = rows * m->inner * aq_dtype_bytes(s->compute);
    add_class(b, AQ_SLOT_INNER, b->inner_slots, device, inner);
    add_class(b, AQ_SLOT_LOGITS, 1, device, (uint64_t)s->head_tile_rows * m->vocab * 4);
    uint64_t input, columns;
    aq_host_product_widest(&input, &columns, b->stream, m, plan);
    b->host_slots = !columns ? 0 : n > 1 ? 2 : 1;
    add_class(b, AQ_SLOT_INPUT_HOST, b->host_slots, AQ_HOST, rows * input);
    add_class(b, AQ_SLOT_COLUMNS_HOST, b->host_slots, AQ_HOST, rows * columns);
    add_class(b, AQ_SLOT_COLUMNS, b->host_slots, device, rows * columns);
    b->p->first[AQ_SLOT_CLASS_COUNT] = b->p->slot_count;
    if (b->p->slot)
        size_parts(b, width, kv_width);
}

/* The home of each micro-batch's residual stream, and the working slots that moving streams
 * share. */
static void count_hidden(struct aq_builder *b)
{
    const struct aq_plan *plan = b->plan;
    bool moves = false, disk = false;
    for (uint32_t k = 0; k < plan->shape.micro_batches; k++) {
        enum aq_tier t = aq_plan_hidden_tier(plan, k);
        b->hidden_home[k] = t == AQ_DEVICE ? b->hidden_resident++
                            : t == AQ_HOST ? b->hidden_host++
                                           : k;
        moves |= t != AQ_DEVICE;
        disk |= t == AQ_DISK;
    }
    uint32_t work = (uint32_t)aq_max_u64(plan->hidden_slots, 2);
    b->hidden_work = moves ? work : 0;
    b->hidden_transit = disk && plan->separate ? work : 0;
}

static void count_stages(struct aq_builder *b)
{
    const struct aq_plan *plan = b->plan;
    uint32_t stages = (uint32_t)aq_max_u64(plan->kv_stages, 1);
    for (uint32_t i = 0; i < plan->part_count; i++) {
        const struct aq_part *part = &plan->part[i];
        bool on_host = part->side == AQ_ATTEND_HOST;
        b->host_parts |= on_host;
        if (part->staged || on_host)
            b->on_device.count[part->side] = stages;
        if (part->tier == AQ_DISK && plan->separate)
            b->on_host.count[part->side] = stages;
    }
    /* Each half of MLP is a group of its own, so all micro-batches lie between the two. */
    b->beside = b->host_parts || plan->side_by_side;
    bool apart = !b->beside && !plan->fuse_layer;
    bool split = plan->split_mlp && aq_steps_have(b->steps, AQ_STEP_MLP);
    b->inner_slots = !split ? 0 : apart ? plan->shape.micro_batches : 1;
    b->workspaces = (uint32_t)aq_max_u64(plan->workspaces, 1);
    if (b->beside) /* every micro-batch may have attention under way */
        b->workspaces = plan->shape.micro_batches;
}

/* ---- dependencies ------------------------------------------------------------------------ */

/* An op of a pass that used a slot. */
struct touch {
    uint32_t op, pass;
};

struct slot_state {
    struct touch writer;
    bool written;
    struct touch *reader; /* since the last write */
    uint32_t reader_count, reader_max;
};

struct deriver {
    struct aq_program *p;
    struct slot_state *slot;
    struct touch *found; /* of one op */
    uint32_t found_count, found_max;
    uint32_t of_lane[AQ_LANE_COUNT]; /* lanes in order: 1 + index in found; 0: none */
    uint64_t *recorded;              /* [op][pass] the last op that found it, by `round` */
    uint64_t round;                  /* counts ops, from 1 on */
};

/* Is `a` done whenever `b` is, by the order of a lane? */
static bool covers(const struct aq_program *p, struct touch b, struct touch a)
{
    const struct aq_op *x = &p->op[a.op], *y = &p->op[b.op];
    return x->lane == y->lane && aq_lane_in_order(x->lane) &&
           (a.pass < b.pass || (a.pass == b.pass && a.op <= b.op));
}

static bool add_wait(struct deriver *d, struct touch self, struct touch on)
{
    const struct aq_program *p = d->p;
    enum aq_lane lane = (enum aq_lane)p->op[on.op].lane;
    if (covers(p, self, on))
        return true;
    if (aq_lane_in_order(lane) && d->of_lane[lane]) {
        struct touch *f = &d->found[d->of_lane[lane] - 1];
        *f = covers(p, *f, on) ? *f : on;
        return true;
    }
    uint64_t *recorded = &d->recorded[2ull * on.op + on.pass];
    if (*recorded == d->round)
        return true;
    if (!aq_build_grow((void **)&d->found, &d->found_max, d->found_count, sizeof(*d->found)))
        return false;
    d->found[d->found_count++] = on;
    d->of_lane[lane] = d->found_count;
    *recorded = d->round;
    return true;
}

static bool touch_slot(struct deriver *d, const struct aq_use *u, struct touch self)
{
    struct slot_state *s = &d->slot[u->slot];
    bool waits = self.pass > 0; /* the first pass only leaves uses behind */
    if (waits && s->written && !add_wait(d, self, s->writer))
        return false;
    if (u->mode == AQ_USE_READ) {
        if (!aq_build_grow((void **)&s->reader, &s->reader_max, s->reader_count,
                           sizeof(*s->reader)))
            return false;
        s->reader[s->reader_count++] = self;
        return true;
    }
    for (uint32_t i = 0; waits && i < s->reader_count; i++) {
        if (!add_wait(d, self, s->reader[i]))
            return false;
    }
    s->reader_count = 0;
    s->written = true;
    s->writer = self;
    return true;
}

/* Derives the dependencies from the serial order of the array: every use comes after the uses that
 * it conflicts with.  Two passes are played; the deps of the second are those of every pass. */
static bool derive(struct deriver *d)
{
    struct aq_program *p = d->p;
    for (uint32_t pass = 0; pass < 2; pass++) {
        for (uint32_t i = 0; i < p->op_count; i++) {
            struct aq_op *op = &p->op[i];
            d->found_count = 0;
            memset(d->of_lane, 0, sizeof(d->of_lane));
            d->round++;
            for (uint32_t u = 0; u < op->use_count; u++) {
                if (!touch_slot(d, &p->use[op->use_first + u], (struct touch){i, pass}))
                    return false;
            }
            if (!pass)
                continue;
            op->dep_first = p->dep_count;
            op->dep_count = d->found_count;
            for (uint32_t f = 0; f < d->found_count; f++) {
                if (!aq_build_grow((void **)&p->dep, &p->dep_room, p->dep_count, sizeof(*p->dep)))
                    return false;
                p->dep[p->dep_count++] =
                    (struct aq_dep){d->found[f].op, (uint8_t)(1 - d->found[f].pass)};
            }
        }
    }
    return true;
}

int aq_program_order(struct aq_program *p, struct aq_err *reterr)
{
    struct deriver d = {.p = p};
    if (p->ordered)
        return 0;
    d.slot = calloc(p->slot_count, sizeof(*d.slot));
    d.recorded = calloc(2 * (size_t)p->op_count, sizeof(*d.recorded));
    p->ordered = d.slot && d.recorded && derive(&d);
    for (uint32_t i = 0; d.slot && i < p->slot_count; i++)
        free(d.slot[i].reader);
    free(d.slot);
    free(d.recorded);
    free(d.found);
    return p->ordered ? 0 : aq_error_memory(reterr, "program of %u ops", p->op_count);
}

/* ---- build ------------------------------------------------------------------------------- */

uint64_t aq_program_class_bytes(const struct aq_program *p, enum aq_slot_class c)
{
    uint64_t bytes = 0;
    for (uint32_t i = p->first[c]; i < p->first[c + 1]; i++)
        bytes += aq_align_up(p->slot[i].bytes, AQ_PANEL_ALIGN);
    return bytes;
}

int aq_program_build(struct aq_program *ret, const struct aq_model_steps *steps,
                     const struct aq_plan *plan, const struct aq_stream *stream,
                     struct aq_err *reterr)
{
    assert(plan->shape.micro_batches >= 1 && plan->part_count >= 1);
    aq_program_clear(ret);
    struct aq_program p = *ret;
    *ret = (struct aq_program){0};
    p.parts = plan->part_count;
    p.micro_batches = plan->shape.micro_batches;
    struct aq_builder b = {.p = &p, .steps = steps, .plan = plan, .stream = stream};
    b.hidden_home = calloc(plan->shape.micro_batches, sizeof(*b.hidden_home));
    b.hidden_now = calloc(plan->shape.micro_batches, sizeof(*b.hidden_now));
    b.hidden_step = calloc(plan->shape.micro_batches, sizeof(*b.hidden_step));
    int rc = -ENOMEM;
    if (b.hidden_home && b.hidden_now && b.hidden_step) {
        count_hidden(&b);
        count_stages(&b);
        lay_slots(&b);
        p.slot = calloc(p.slot_count, sizeof(*p.slot));
    }
    if (!p.slot) {
        aq_error_memory(reterr, "program of %u slots", p.slot_count);
        goto end;
    }
    lay_slots(&b);
    rc = aq_build_ops(&b, reterr);
    if (rc == 0 && b.failed)
        rc = aq_error_memory(reterr, "program of %u ops", p.op_count);
end:
    free(b.hidden_home);
    free(b.hidden_now);
    free(b.hidden_step);
    if (rc < 0)
        aq_program_close(&p);
    else
        *ret = p;
    return rc;
}

void aq_program_clear(struct aq_program *p)
{
    free(p->slot);
    *p = (struct aq_program){.op = p->op,
                             .use = p->use,
                             .dep = p->dep,
                             .op_room = p->op_room,
                             .use_room = p->use_room,
                             .dep_room = p->dep_room};
}

void aq_program_close(struct aq_program *p)
{
    if (!p)
        return;
    free(p->op);
    free(p->use);
    free(p->dep);
    free(p->slot);
    *p = (struct aq_program){0};
}
