/* SPDX-License-Identifier: Apache-2.0
 * Emits the ops of a pass, in serial order.  The model's units of work (embedding, first and second
 * half of attention, MLP, head) are joined to groups; one micro-batch after the other visits a
 * group, and weights enter the ring before the first group that needs them. */
#include "policy/kv_layout.h"
#include "policy/program_build.h"
#include "policy/registers.h"

#include <assert.h>
#include <stdlib.h>

enum unit_kind {
    UNIT_EMBED,
    UNIT_PRE,
    UNIT_POST,
    UNIT_MLP,
    UNIT_UP,
    UNIT_DOWN,
    UNIT_HEAD,
};

struct unit {
    enum unit_kind kind;
    uint32_t step, group;
    uint32_t matrices; /* bit i: the unit multiplies with the step's matrix i */
};

struct order {
    struct unit *unit;
    uint32_t unit_count, group_count;
    uint32_t *first_group, *last_group; /* [chunk] groups that need the chunk */
};

static void reads(struct aq_builder *b, struct aq_op *op, enum aq_slot_class c, uint32_t index,
                  struct aq_tag need)
{
    aq_build_use(b, op, c, index, AQ_USE_READ, need, (struct aq_tag){0});
}

static void writes(struct aq_builder *b, struct aq_op *op, enum aq_slot_class c, uint32_t index,
                   struct aq_tag leave)
{
    aq_build_use(b, op, c, index, AQ_USE_WRITE, (struct aq_tag){0}, leave);
}

static void updates(struct aq_builder *b, struct aq_op *op, enum aq_slot_class c, uint32_t index,
                    struct aq_tag need, struct aq_tag leave)
{
    aq_build_use(b, op, c, index, AQ_USE_UPDATE, need, leave);
}

/* ---- groups ------------------------------------------------------------------------------ */

/* Does a new group begin with this unit?  With attention on a lane of its own a group spans a
 * layer's second half and the next layer's first half, so that both lanes work at the same time on
 * different micro-batches. */
static bool begins_group(const struct aq_builder *b, enum unit_kind kind, uint32_t step)
{
    if (b->beside)
        return kind == UNIT_EMBED || kind == UNIT_POST;
    switch (kind) {
    case UNIT_POST: return false;
    case UNIT_MLP:
    case UNIT_UP:
    case UNIT_DOWN: return !b->plan->fuse_layer;
    default: return true;
    }
}

static enum aq_op_kind op_of(enum unit_kind kind)
{
    static const enum aq_op_kind map[] = {
        [UNIT_EMBED] = AQ_OP_EMBED, [UNIT_PRE] = AQ_OP_PRE,   [UNIT_POST] = AQ_OP_POST,
        [UNIT_MLP] = AQ_OP_MLP,     [UNIT_UP] = AQ_OP_MLP_UP, [UNIT_DOWN] = AQ_OP_MLP_DOWN,
        [UNIT_HEAD] = AQ_OP_HEAD,
    };
    return map[kind];
}

static void add_unit(struct aq_builder *b, struct order *o, enum unit_kind kind, uint32_t step)
{
    const struct aq_step_desc *d = &b->steps->step[step];
    struct unit *u = &o->unit[o->unit_count++];
    o->group_count += begins_group(b, kind, step);
    *u = (struct unit){.kind = kind, .step = step, .group = o->group_count - 1};
    for (uint32_t i = 0; i < d->matrix_count; i++)
        u->matrices |= (uint32_t)aq_op_uses_matrix(op_of(kind), d, i) << i;
}

static void list_units(struct aq_builder *b, struct order *o)
{
    for (uint32_t j = 0; j < b->steps->step_count; j++) {
        switch (b->steps->step[j].kind) {
        case AQ_STEP_EMBED: add_unit(b, o, UNIT_EMBED, j); break;
        case AQ_STEP_ATTENTION:
            add_unit(b, o, UNIT_PRE, j);
            add_unit(b, o, UNIT_POST, j);
            break;
        case AQ_STEP_MLP:
            add_unit(b, o, b->plan->split_mlp ? UNIT_UP : UNIT_MLP, j);
            if (b->plan->split_mlp)
                add_unit(b, o, UNIT_DOWN, j);
            break;
        case AQ_STEP_HEAD: add_unit(b, o, UNIT_HEAD, j); break;
        }
    }
}

static bool unit_uses_chunk(const struct aq_builder *b, const struct unit *u, uint32_t c)
{
    const struct aq_chunk *chunk = &b->stream->chunk[c];
    if (chunk->step != u->step)
        return false;
    for (uint32_t i = 0; i < chunk->piece_count; i++) {
        if (u->matrices >> b->stream->piece[chunk->piece_first + i].matrix & 1)
            return true;
    }
    return false;
}

static bool unpacks(const struct aq_builder *b, uint32_t step)
{
    return b->plan->unpack && aq_step_is_layer(&b->steps->step[step]);
}

/* Finds the groups that need each chunk; a step that is unpacked needs its chunks only at its
 * start. */
static void find_groups(const struct aq_builder *b, struct order *o)
{
    for (uint32_t c = 0; c < b->stream->chunk_count; c++)
        o->first_group[c] = UINT32_MAX;
    for (uint32_t i = 0; i < o->unit_count; i++) {
        const struct unit *u = &o->unit[i];
        const uint32_t *step_chunk = b->stream->step_chunk;
        for (uint32_t c = step_chunk[u->step]; c < step_chunk[u->step + 1]; c++) {
            bool unpacked = unpacks(b, u->step), known = o->first_group[c] != UINT32_MAX;
            if ((unpacked && known) || (!unpacked && !unit_uses_chunk(b, u, c)))
                continue;
            o->first_group[c] = known ? o->first_group[c] : u->group;
            o->last_group[c] = u->group;
        }
    }
    /* Chunks load in their order, so a chunk is due no later than the ones behind it. */
    for (uint32_t c = b->stream->chunk_count; c-- > 1;) {
        if (o->first_group[c] < o->first_group[c - 1])
            o->first_group[c - 1] = o->first_group[c];
    }
}

static int check_ring(const struct aq_builder *b, const struct order *o, struct aq_err *reterr)
{
    uint32_t ring = b->stream->ring, need = 0;
    bool fits = true;
    for (uint32_t c = 0; c < b->stream->chunk_count; c++) {
        assert(o->first_group[c] != UINT32_MAX);
        fits = fits && (c < ring || o->last_group[c - ring] < o->first_group[c]);
    }
    if (fits)
        return 0;
    for (uint32_t c = 0; c < b->stream->chunk_count; c++) {
        uint32_t live = 1;
        for (uint32_t d = c; d-- > 0 && o->last_group[d] >= o->first_group[c];)
            live = c - d + 1;
        need = live > need ? live : need;
    }
    return aq_error(reterr, -ENOBUFS,
                    "--prefetch: %u chunks of up to %llu bytes are needed at the same time, the "
                    "ring holds %u; give it at least %llu bytes",
                    need, (unsigned long long)b->stream->chunk_bytes, ring,
                    (unsigned long long)((need + 1) * b->stream->chunk_bytes));
}

/* ---- weights ----------------------------------------------------------------------------- */

static void load_chunk(struct aq_builder *b, uint32_t c)
{
    const struct aq_chunk *chunk = &b->stream->chunk[c];
    struct aq_tag t = aq_build_tag(AQ_OBJECT_WEIGHTS, c, 0, 0, 0);
    bool link = b->plan->separate, disk = chunk->tier == AQ_DISK;
    for (int hop = 0; hop < 2; hop++) {
        if (hop == 0 ? !disk : !link)
            continue;
        struct aq_op *op =
            aq_build_op(b, hop == 0 ? AQ_OP_READ : AQ_OP_H2D,
                        hop == 0 ? AQ_LANE_READ_WEIGHTS : AQ_LANE_H2D_WEIGHTS, chunk->step, 0, 0);
        op->object = AQ_OBJECT_WEIGHTS;
        op->chunk = c;
        op->bytes_max = chunk->bytes;
        if (hop == 1 && disk)
            reads(b, op, AQ_SLOT_STAGING, chunk->staging, t);
        bool staged = hop == 0 && link;
        writes(b, op, staged ? AQ_SLOT_STAGING : AQ_SLOT_RING,
               staged ? chunk->staging : chunk->slot, t);
    }
}

/* Moves of weights that are due before group g.  Each is emitted as soon as the chunk before it in
 * the same slot is no longer needed. */
static void load_due(struct aq_builder *b, const struct order *o, uint32_t g, uint32_t *next)
{
    const struct aq_stream *s = b->stream;
    for (; *next < s->chunk_count; (*next)++) {
        uint32_t earliest = *next < s->ring ? 0 : o->last_group[*next - s->ring] + 1;
        uint32_t due = (uint32_t)aq_min_u64(o->first_group[*next], earliest);
        if (due > g)
            return;
        load_chunk(b, *next);
    }
}

static uint32_t unpacked_slot(const struct aq_builder *b, uint32_t step)
{
    return step % (b->beside ? 4 : 2);
}

static void unpack_step(struct aq_builder *b, uint32_t step)
{
    struct aq_op *op = aq_build_op(b, AQ_OP_UNPACK, AQ_LANE_COMPUTE, step, 0, 0);
    op->object = AQ_OBJECT_WEIGHTS;
    for (uint32_t c = b->stream->step_chunk[step]; c < b->stream->step_chunk[step + 1]; c++)
        reads(b, op, AQ_SLOT_RING, b->stream->chunk[c].slot,
              aq_build_tag(AQ_OBJECT_WEIGHTS, c, 0, 0, 0));
    writes(b, op, AQ_SLOT_UNPACKED, unpacked_slot(b, step),
           aq_build_tag(AQ_OBJECT_WEIGHTS, step, 0, 0, 0));
}

static void use_weights(struct aq_builder *b, struct aq_op *op, const struct unit *u)
{
    if (unpacks(b, u->step)) {
        reads(b, op, AQ_SLOT_UNPACKED, unpacked_slot(b, u->step),
              aq_build_tag(AQ_OBJECT_WEIGHTS, u->step, 0, 0, 0));
        return;
    }
    for (uint32_t c = b->stream->step_chunk[u->step]; c < b->stream->step_chunk[u->step + 1]; c++) {
        if (unit_uses_chunk(b, u, c))
            reads(b, op, AQ_SLOT_RING, b->stream->chunk[c].slot,
                  aq_build_tag(AQ_OBJECT_WEIGHTS, c, 0, 0, 0));
    }
}

/* ---- hidden states ----------------------------------------------------------------------- */

static struct aq_op *move(struct aq_builder *b, enum aq_op_kind kind, enum aq_object object,
                          uint32_t step, uint32_t k, uint32_t part, uint64_t bytes)
{
    static const uint8_t lane[] = {
        [AQ_OP_READ] = AQ_LANE_DISK_READ,
        [AQ_OP_WRITE] = AQ_LANE_DISK_WRITE,
        [AQ_OP_H2D] = AQ_LANE_H2D,
        [AQ_OP_D2H] = AQ_LANE_D2H,
    };
    struct aq_op *op = aq_build_op(b, kind, (enum aq_lane)lane[kind], step, k, part);
    op->object = (uint8_t)object;
    op->bytes_max = bytes;
    return op;
}

static uint64_t hidden_bytes(const struct aq_builder *b)
{
    return (uint64_t)b->plan->shape.rows_max * b->steps->hidden * 4;
}

/* Takes a working slot for micro-batch k, and moves its residual stream there, unless the step is
 * about to make the stream. */
static void bring_hidden(struct aq_builder *b, uint32_t k)
{
    uint32_t step = b->hidden_step[k];
    enum aq_tier home = aq_plan_hidden_tier(b->plan, k);
    if (home == AQ_DEVICE) {
        b->hidden_now[k] = b->hidden_home[k];
        return;
    }
    uint32_t work = b->hidden_resident + b->hidden_visit++ % b->hidden_work;
    b->hidden_now[k] = work;
    if (step == UINT32_MAX)
        return;
    struct aq_tag t = aq_build_tag(AQ_OBJECT_HIDDEN, step, k, 0, 0);
    uint32_t host = b->hidden_home[k];
    struct aq_op *op;
    if (home == AQ_DISK) {
        op = move(b, AQ_OP_READ, AQ_OBJECT_HIDDEN, step, k, 0, hidden_bytes(b));
        reads(b, op, AQ_SLOT_HIDDEN_DISK, k, t);
        if (!b->plan->separate) {
            op->stage = work;
            writes(b, op, AQ_SLOT_HIDDEN, work, t);
            return;
        }
        host = b->hidden_host + b->transit_visit++ % b->hidden_transit;
        op->stage = host;
        writes(b, op, AQ_SLOT_HIDDEN_HOST, host, t);
    }
    op = move(b, AQ_OP_H2D, AQ_OBJECT_HIDDEN, step, k, 0, hidden_bytes(b));
    op->stage = work;
    op->workspace = host;
    reads(b, op, AQ_SLOT_HIDDEN_HOST, host, t);
    writes(b, op, AQ_SLOT_HIDDEN, work, t);
}

static void take_hidden_home(struct aq_builder *b, uint32_t k)
{
    uint32_t step = b->hidden_step[k];
    enum aq_tier home = aq_plan_hidden_tier(b->plan, k);
    if (home == AQ_DEVICE)
        return;
    struct aq_tag t = aq_build_tag(AQ_OBJECT_HIDDEN, step, k, 0, 0);
    uint32_t work = b->hidden_now[k], host = b->hidden_home[k];
    struct aq_op *op;
    if (b->plan->separate) {
        if (home == AQ_DISK)
            host = b->hidden_host + b->transit_visit++ % b->hidden_transit;
        op = move(b, AQ_OP_D2H, AQ_OBJECT_HIDDEN, step, k, 0, hidden_bytes(b));
        op->stage = work;
        op->workspace = host;
        reads(b, op, AQ_SLOT_HIDDEN, work, t);
        writes(b, op, AQ_SLOT_HIDDEN_HOST, host, t);
        if (home != AQ_DISK)
            return;
    }
    op = move(b, AQ_OP_WRITE, AQ_OBJECT_HIDDEN, step, k, 0, hidden_bytes(b));
    op->stage = b->plan->separate ? host : work;
    reads(b, op, b->plan->separate ? AQ_SLOT_HIDDEN_HOST : AQ_SLOT_HIDDEN, op->stage, t);
    writes(b, op, AQ_SLOT_HIDDEN_DISK, k, t);
}

/* ---- attention --------------------------------------------------------------------------- */

struct att {
    uint32_t step, k, part, layer;
    uint32_t workspace;
    uint32_t home;               /* index in AQ_SLOT_KV */
    uint32_t on_device, on_host; /* stages */
    const struct aq_part *p;
};

static struct aq_tag kv_tag(const struct att *a, int pass)
{
    return aq_build_tag(AQ_OBJECT_KV, a->step, a->k, a->part, pass);
}

static struct aq_op *move_kv(struct aq_builder *b, enum aq_op_kind kind, const struct att *a)
{
    uint64_t bytes = aq_plan_part_bytes(b->plan, a->p);
    if (kind == AQ_OP_H2D || kind == AQ_OP_D2H) /* scores, positions and victims included */
        bytes += a->p->count * aq_kv_layout_transfer(b->plan, b->steps->kv_heads);
    struct aq_op *op = move(b, kind, AQ_OBJECT_KV, a->step, a->k, a->part, bytes);
    op->stage = a->on_device;
    op->workspace = a->on_host;
    return op;
}

static bool waits_on_disk(const struct aq_builder *b, const struct att *a)
{
    return a->p->tier == AQ_DISK;
}

/* Moves the part's KV to the side that attends.  When the host attends, only prompts pass through
 * the device's memory, and nothing is loaded for them. */
static void load_kv(struct aq_builder *b, const struct att *a)
{
    struct aq_op *op;
    bool device = a->p->side == AQ_ATTEND_DEVICE, disk = waits_on_disk(b, a);
    struct aq_tag old = kv_tag(a, -1);
    if (disk) {
        op = move_kv(b, AQ_OP_READ, a);
        reads(b, op, AQ_SLOT_KV, a->home, old);
        bool direct = !b->plan->separate;
        writes(b, op, direct ? AQ_SLOT_KV_DEVICE : AQ_SLOT_KV_HOST,
               direct ? a->on_device : a->on_host, old);
    }
    if (device && a->p->staged && b->plan->separate) {
        op = move_kv(b, AQ_OP_H2D, a);
        reads(b, op, disk ? AQ_SLOT_KV_HOST : AQ_SLOT_KV, disk ? a->on_host : a->home, old);
        writes(b, op, AQ_SLOT_KV_DEVICE, a->on_device, old);
    }
}

/* Moves the device's additions to the part's KV back to the host; `pass`: of the tag that they
 * leave. */
static void return_kv(struct aq_builder *b, const struct att *a, int pass)
{
    if (!b->plan->separate)
        return;
    struct aq_op *op = move_kv(b, AQ_OP_D2H, a);
    bool disk = waits_on_disk(b, a);
    reads(b, op, AQ_SLOT_KV_DEVICE, a->on_device, kv_tag(a, pass));
    updates(b, op, disk ? AQ_SLOT_KV_HOST : AQ_SLOT_KV, disk ? a->on_host : a->home, kv_tag(a, -1),
            kv_tag(a, pass));
}

static void store_kv(struct aq_builder *b, const struct att *a)
{
    if (!waits_on_disk(b, a))
        return;
    struct aq_op *op = move_kv(b, AQ_OP_WRITE, a);
    bool direct = !b->plan->separate;
    reads(b, op, direct ? AQ_SLOT_KV_DEVICE : AQ_SLOT_KV_HOST, direct ? a->on_device : a->on_host,
          kv_tag(a, 0));
    updates(b, op, AQ_SLOT_KV, a->home, kv_tag(a, -1), kv_tag(a, 0));
}

/* An attention op on the side where products run, which has q, k and v: on the lane of products, or
 * of decode rows beside it. */
static void attend_device(struct aq_builder *b, const struct att *a, bool prefill)
{
    bool on_host = a->p->side == AQ_ATTEND_HOST, staged = a->p->staged || on_host;
    bool aside = !prefill && b->plan->side_by_side;
    struct aq_op *op =
        aq_build_op(b, prefill ? AQ_OP_ATTN_PREFILL : AQ_OP_ATTN_DEVICE,
                    aside ? AQ_LANE_HOST_COMPUTE : AQ_LANE_COMPUTE, a->step, a->k, a->part);
    uint32_t out = a->workspace * b->plan->part_count + a->part;
    struct aq_tag t = aq_build_tag(AQ_OBJECT_ATTENTION, a->step, a->k, a->part, 0);
    op->workspace = a->workspace;
    op->stage = a->on_device;
    reads(b, op, AQ_SLOT_ROWS, a->k, aq_build_tag(AQ_OBJECT_ROWS, 0, a->k, 0, -1));
    reads(b, op, AQ_SLOT_QKV, a->workspace, aq_build_tag(AQ_OBJECT_QKV, a->step, a->k, 0, 0));
    if (prefill && on_host)
        writes(b, op, AQ_SLOT_KV_DEVICE, a->on_device, kv_tag(a, -1));
    else
        updates(b, op, staged ? AQ_SLOT_KV_DEVICE : AQ_SLOT_KV, staged ? a->on_device : a->home,
                kv_tag(a, -1), kv_tag(a, prefill ? -1 : 0));
    if (prefill)
        writes(b, op, AQ_SLOT_ATTENTION, out, t);
    else
        updates(b, op, AQ_SLOT_ATTENTION, out, t, t);
    if (prefill && b->p->first[AQ_SLOT_KV_PREFILL] < b->p->first[AQ_SLOT_KV_PREFILL + 1])
        writes(b, op, AQ_SLOT_KV_PREFILL, 0,
               aq_build_tag(AQ_OBJECT_KV_PROMPT, a->step, a->k, a->part, 0));
}

/* Decode rows on the host. */
static void attend_host(struct aq_builder *b, const struct att *a)
{
    uint32_t at = a->workspace * b->plan->part_count + a->part;
    struct aq_op *op =
        aq_build_op(b, AQ_OP_ATTN_HOST, AQ_LANE_HOST_COMPUTE, a->step, a->k, a->part);
    bool disk = waits_on_disk(b, a);
    op->workspace = a->workspace;
    op->stage = a->on_host;
    reads(b, op, AQ_SLOT_ROWS, a->k, aq_build_tag(AQ_OBJECT_ROWS, 0, a->k, 0, -1));
    reads(b, op, AQ_SLOT_QKV_HOST, at, aq_build_tag(AQ_OBJECT_QKV, a->step, a->k, a->part, 0));
    updates(b, op, disk ? AQ_SLOT_KV_HOST : AQ_SLOT_KV, disk ? a->on_host : a->home, kv_tag(a, -1),
            kv_tag(a, 0));
    writes(b, op, AQ_SLOT_ATTENTION_HOST, at,
           aq_build_tag(AQ_OBJECT_ATTENTION, a->step, a->k, a->part, 0));
}

/* Moves the outputs of attention on the host to the device, as late as possible: on the link's lane
 * the move waits for the host, so KV for the micro-batches in between must be in front of it. */
static void bring_outputs(struct aq_builder *b, uint32_t step, uint32_t k)
{
    uint64_t width = (uint64_t)b->steps->heads * b->steps->head_dim;
    for (uint32_t part = 0; part < b->plan->part_count; part++) {
        const struct aq_part *p = &b->plan->part[part];
        uint32_t at = k * b->plan->part_count + part;
        struct aq_tag out = aq_build_tag(AQ_OBJECT_ATTENTION, step, k, part, 0);
        if (p->side != AQ_ATTEND_HOST)
            continue;
        struct aq_op *op = move(b, AQ_OP_H2D, AQ_OBJECT_ATTENTION, step, k, part,
                                p->count * width * aq_dtype_bytes(b->plan->shape.compute));
        op->workspace = k;
        reads(b, op, AQ_SLOT_ATTENTION_HOST, at, out);
        updates(b, op, AQ_SLOT_ATTENTION, at, out, out);
    }
}

static void send_qkv(struct aq_builder *b, const struct att *a)
{
    const struct aq_model_steps *m = b->steps;
    uint64_t width = ((uint64_t)m->heads + 2ull * m->kv_heads) * m->head_dim * 4;
    struct aq_op *op =
        move(b, AQ_OP_D2H, AQ_OBJECT_QKV, a->step, a->k, a->part, a->p->count * width);
    op->workspace = a->workspace;
    reads(b, op, AQ_SLOT_QKV, a->workspace, aq_build_tag(AQ_OBJECT_QKV, a->step, a->k, 0, 0));
    writes(b, op, AQ_SLOT_QKV_HOST, a->workspace * b->plan->part_count + a->part,
           aq_build_tag(AQ_OBJECT_QKV, a->step, a->k, a->part, 0));
}

static uint32_t next_stage(struct aq_build_stages *s, const struct aq_part *p)
{
    uint32_t before = p->side == AQ_ATTEND_HOST ? 0 : s->count[AQ_ATTEND_HOST];
    return before + s->visit[p->side]++ % s->count[p->side];
}

static void attend_part(struct aq_builder *b, struct att *a)
{
    bool on_host = a->p->side == AQ_ATTEND_HOST;
    if (a->p->staged || on_host)
        a->on_device = next_stage(&b->on_device, a->p);
    if (waits_on_disk(b, a) && b->plan->separate)
        a->on_host = next_stage(&b->on_host, a->p);
    load_kv(b, a);
    attend_device(b, a, true);
    if (on_host) {
        return_kv(b, a, -1);
        attend_host(b, a);
    } else {
        attend_device(b, a, false);
        if (a->p->staged)
            return_kv(b, a, 0);
    }
    store_kv(b, a);
}

/* The copy of QKV and ATTENTION for micro-batch k: one of its own where another lane may be
 * attending. */
static uint32_t attention_workspace(const struct aq_builder *b, uint32_t k)
{
    return b->beside ? k : b->visit % b->workspaces;
}

static struct att of_part(const struct aq_builder *b, struct att a, uint32_t part)
{
    a.part = part;
    a.p = &b->plan->part[part];
    a.home = (a.layer * b->plan->shape.micro_batches + a.k) * b->plan->part_count + part;
    return a;
}

/* The host's parts first: q k v for the host must not queue behind KV for the device. */
static void attend_parts(struct aq_builder *b, const struct att *all)
{
    static const enum aq_attention_side sides[] = {AQ_ATTEND_HOST, AQ_ATTEND_DEVICE};
    uint32_t parts = b->plan->part_count;
    for (uint32_t part = 0; part < parts; part++) {
        struct att a = of_part(b, *all, part);
        if (a.p->side == AQ_ATTEND_HOST)
            send_qkv(b, &a);
    }
    for (uint32_t i = 0; i < AQ_ARRAY_LEN(sides) * parts; i++) {
        struct att a = of_part(b, *all, i % parts);
        if (a.p->side == sides[i / parts])
            attend_part(b, &a);
    }
}

/* ---- units ------------------------------------------------------------------------------- */

/* Emits an op that runs primitives; its uses follow from the registers of these. */
static void emit_rows(struct aq_builder *b, const struct unit *u, uint32_t k, uint32_t workspace)
{
    enum aq_op_kind kind = op_of(u->kind);
    struct aq_op_of of = {kind, u->step, k, workspace, 0};
    struct aq_prim_list room;
    struct aq_list_io io = aq_list_io(aq_op_prims(&room, kind, &b->steps->step[u->step]));
    enum aq_register output = AQ_REG_NONE;
    bool shared = aq_build_on_host(b, &of);
    struct aq_op *op = aq_build_op(b, kind, AQ_LANE_COMPUTE, u->step, k, 0);
    op->workspace = workspace;
    op->stage = b->hidden_now[k];
    use_weights(b, op, u);
    if (aq_op_reads_rows(kind, &b->steps->step[u->step]) && !shared) /* else MERGE does */
        reads(b, op, AQ_SLOT_ROWS, k, aq_build_tag(AQ_OBJECT_ROWS, 0, k, 0, -1));
    for (uint32_t r = 0; r < AQ_REG_COUNT; r++) {
        if (io.takes[r] && !io.leaves[r])
            aq_build_register(b, op, (enum aq_register)r, AQ_USE_READ, false);
    }
    for (uint32_t r = 0; r < AQ_REG_COUNT; r++) {
        if (!io.leaves[r])
            continue;
        output = (enum aq_register)r;
        aq_build_register(b, op, output, io.takes[r] ? AQ_USE_UPDATE : AQ_USE_WRITE, shared);
    }
    if (kind == AQ_OP_HEAD)
        writes(b, op, AQ_SLOT_TOKENS, k, aq_build_tag(AQ_OBJECT_TOKENS, u->step, k, 0, 0));
    if (shared)
        aq_build_merge(b, &of, output);
}

static void emit_pre(struct aq_builder *b, const struct unit *u, uint32_t k)
{
    struct att a = {.step = u->step, .k = k, .layer = b->steps->step[u->step].layer};
    a.workspace = attention_workspace(b, k);
    emit_rows(b, u, k, a.workspace);
    attend_parts(b, &a);
}

static void emit_post(struct aq_builder *b, const struct unit *u, uint32_t k)
{
    bring_outputs(b, u->step, k);
    emit_rows(b, u, k, attention_workspace(b, k));
}

static void emit_turn(struct aq_builder *b, uint32_t step, uint32_t k)
{
    struct aq_op *op = aq_build_op(b, AQ_OP_TURN, AQ_LANE_CONTROL, step, k, 0);
    uint32_t parts = b->plan->part_count, batches = b->plan->shape.micro_batches;
    reads(b, op, AQ_SLOT_TOKENS, k, aq_build_tag(AQ_OBJECT_TOKENS, step, k, 0, 0));
    /* TURN frees pages, so no move to or from them may be in flight. */
    for (uint32_t j = 0; j < b->steps->step_count; j++) {
        const struct aq_step_desc *d = &b->steps->step[j];
        for (uint32_t part = 0; d->kind == AQ_STEP_ATTENTION && part < parts; part++) {
            struct aq_tag t = aq_build_tag(AQ_OBJECT_KV, j, k, part, 0);
            updates(b, op, AQ_SLOT_KV, (d->layer * batches + k) * parts + part, t, t);
        }
    }
    writes(b, op, AQ_SLOT_ROWS, k, aq_build_tag(AQ_OBJECT_ROWS, 0, k, 0, 0));
}

static void emit_unit(struct aq_builder *b, const struct unit *u, uint32_t k)
{
    switch (u->kind) {
    case UNIT_PRE: emit_pre(b, u, k); break;
    case UNIT_POST: emit_post(b, u, k); break;
    case UNIT_UP:
    case UNIT_DOWN: emit_rows(b, u, k, k % b->inner_slots); break;
    case UNIT_EMBED:
    case UNIT_MLP: emit_rows(b, u, k, 0); break;
    case UNIT_HEAD:
        emit_rows(b, u, k, 0);
        emit_turn(b, u->step, k);
        break;
    }
}

/* ---- the pass ---------------------------------------------------------------------------- */

static uint32_t visitor(const struct aq_builder *b, uint32_t group, uint32_t i)
{
    uint32_t batches = b->plan->shape.micro_batches;
    bool down = b->plan->alternate && !b->beside && group % 2;
    return down ? batches - 1 - i : i;
}

static void emit_group(struct aq_builder *b, const struct order *o, uint32_t first, uint32_t end)
{
    uint32_t g = o->unit[first].group, batches = b->plan->shape.micro_batches;
    for (uint32_t i = first; i < end; i++) {
        const struct unit *u = &o->unit[i];
        if (unpacks(b, u->step) && u->kind != UNIT_POST && u->kind != UNIT_DOWN)
            unpack_step(b, u->step);
    }
    for (uint32_t i = 0; i < batches; i++) {
        uint32_t k = visitor(b, g, i);
        bool stayed = g > 0 && i == 0 && visitor(b, g - 1, batches - 1) == k;
        if (!stayed)
            bring_hidden(b, k);
        for (uint32_t n = first; n < end; n++)
            emit_unit(b, &o->unit[n], k);
        b->visit++;
        bool stays = i + 1 == batches && visitor(b, g + 1, 0) == k;
        /* MLP_UP alone does not change the stream: a copy at home is still valid. */
        bool unchanged = !stayed && end == first + 1 && o->unit[first].kind == UNIT_UP;
        if (g + 1 < o->group_count && !stays && !unchanged)
            take_hidden_home(b, k);
    }
}

int aq_build_ops(struct aq_builder *b, struct aq_err *reterr)
{
    struct order o = {0};
    int rc = -ENOMEM;
    o.unit = calloc(2 * b->steps->step_count, sizeof(*o.unit));
    o.first_group = calloc(b->stream->chunk_count + 1, sizeof(*o.first_group));
    o.last_group = calloc(b->stream->chunk_count + 1, sizeof(*o.last_group));
    if (!o.unit || !o.first_group || !o.last_group) {
        aq_error_memory(reterr, "program of %u steps", b->steps->step_count);
        goto end;
    }
    list_units(b, &o);
    find_groups(b, &o);
    rc = check_ring(b, &o, reterr);
    if (rc < 0)
        goto end;
    for (uint32_t k = 0; k < b->plan->shape.micro_batches; k++)
        b->hidden_step[k] = UINT32_MAX;
    uint32_t chunk = 0;
    for (uint32_t first = 0, end; first < o.unit_count; first = end) {
        for (end = first + 1; end < o.unit_count && o.unit[end].group == o.unit[first].group;)
            end++;
        load_due(b, &o, o.unit[first].group, &chunk);
        emit_group(b, &o, first, end);
    }
    assert(chunk == b->stream->chunk_count);
end:
    free(o.unit);
    free(o.first_group);
    free(o.last_group);
    return rc;
}
