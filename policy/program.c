/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/program.h"

#include <assert.h>
#include <stdlib.h>

const char *aq_op_name(enum aq_op_kind kind)
{
    static const char *const names[AQ_OP_KIND_COUNT] = {
        "EMBED", "PRE", "ATTN_PREFILL", "ATTN_DEVICE", "POST", "MLP", "HEAD", "TURN",
    };
    return (unsigned)kind < AQ_OP_KIND_COUNT ? names[kind] : "?";
}

const char *aq_lane_name(enum aq_lane lane)
{
    static const char *const names[AQ_LANE_COUNT] = {
        "compute", "host_compute", "h2d", "d2h", "disk_read", "disk_write", "control",
    };
    return (unsigned)lane < AQ_LANE_COUNT ? names[lane] : "?";
}

/* Slots lie by class: WEIGHTS, then five classes with one slot per micro-batch, then shared
 * workspace. */
static uint16_t slot_of(enum aq_slot_class c, uint32_t micro_batches, uint32_t k)
{
    if (c == AQ_SLOT_WEIGHTS)
        return 0;
    if (c <= AQ_SLOT_TOKENS)
        return (uint16_t)(1 + (c - AQ_SLOT_ROWS) * micro_batches + k);
    return (uint16_t)(1 + 4 * micro_batches + (c - AQ_SLOT_QKV));
}

struct builder {
    struct aq_program *p;
    uint32_t micro_batches;
};

static struct aq_op *add_op(struct builder *b, enum aq_op_kind kind, uint32_t step, uint32_t k)
{
    struct aq_op *op = &b->p->op[b->p->op_count++];
    *op = (struct aq_op){
        .kind = (uint8_t)kind,
        .lane = kind == AQ_OP_TURN ? AQ_LANE_CONTROL : AQ_LANE_COMPUTE,
        .step = step,
        .micro_batch = (uint16_t)k,
    };
    return op;
}

static void add_use(struct builder *b, struct aq_op *op, enum aq_slot_class c,
                    enum aq_use_mode mode, uint32_t step, int pass)
{
    assert(op->use_count < AQ_OP_USE_MAX);
    op->use[op->use_count++] = (struct aq_use){
        .slot = slot_of(c, b->micro_batches, op->micro_batch),
        .mode = (uint8_t)mode,
        .step = step,
        .micro_batch = op->micro_batch,
        .pass = (int8_t)pass,
    };
}

static void add_dep(struct aq_op *op, uint32_t on, int back)
{
    assert(op->dep_count < AQ_OP_DEP_MAX);
    op->dep[op->dep_count++] = (struct aq_dep){on, (uint8_t)back};
}

static uint32_t index_of(const struct builder *b, const struct aq_op *op)
{
    return (uint32_t)(op - b->p->op);
}

/* PRE, both attentions and POST of one attention step; returns the last op. */
static uint32_t add_attention(struct builder *b, uint32_t step, uint32_t k, uint32_t before)
{
    struct aq_op *pre = add_op(b, AQ_OP_PRE, step, k);
    add_dep(pre, before, 0);
    add_use(b, pre, AQ_SLOT_WEIGHTS, AQ_USE_READ, 0, 0);
    add_use(b, pre, AQ_SLOT_HIDDEN, AQ_USE_READ, step - 1, 0);
    add_use(b, pre, AQ_SLOT_QKV, AQ_USE_WRITE, step, 0);
    uint32_t attention[2];
    for (int i = 0; i < 2; i++) {
        struct aq_op *a = add_op(b, i ? AQ_OP_ATTN_DEVICE : AQ_OP_ATTN_PREFILL, step, k);
        add_dep(a, index_of(b, pre), 0);
        add_use(b, a, AQ_SLOT_ROWS, AQ_USE_READ, 0, -1);
        add_use(b, a, AQ_SLOT_QKV, AQ_USE_READ, step, 0);
        add_use(b, a, AQ_SLOT_KV, AQ_USE_UPDATE, step, 0);
        add_use(b, a, AQ_SLOT_ATTENTION, i ? AQ_USE_UPDATE : AQ_USE_WRITE, step, 0);
        attention[i] = index_of(b, a);
    }
    struct aq_op *post = add_op(b, AQ_OP_POST, step, k);
    add_dep(post, attention[0], 0);
    add_dep(post, attention[1], 0);
    add_use(b, post, AQ_SLOT_WEIGHTS, AQ_USE_READ, 0, 0);
    add_use(b, post, AQ_SLOT_ATTENTION, AQ_USE_READ, step, 0);
    add_use(b, post, AQ_SLOT_HIDDEN, AQ_USE_UPDATE, step, 0);
    return index_of(b, post);
}

static void add_ops(struct builder *b, const struct aq_model_steps *steps, uint32_t *last,
                    uint32_t *embed)
{
    for (uint32_t j = 0; j < steps->step_count; j++) {
        for (uint32_t k = 0; k < b->micro_batches; k++) {
            struct aq_op *op;
            switch (steps->step[j].kind) {
            case AQ_STEP_EMBED:
                op = add_op(b, AQ_OP_EMBED, j, k);
                add_use(b, op, AQ_SLOT_WEIGHTS, AQ_USE_READ, 0, 0);
                add_use(b, op, AQ_SLOT_ROWS, AQ_USE_READ, 0, -1);
                add_use(b, op, AQ_SLOT_HIDDEN, AQ_USE_WRITE, j, 0);
                embed[k] = last[k] = index_of(b, op);
                break;
            case AQ_STEP_ATTENTION: last[k] = add_attention(b, j, k, last[k]); break;
            case AQ_STEP_MLP:
                op = add_op(b, AQ_OP_MLP, j, k);
                add_dep(op, last[k], 0);
                add_use(b, op, AQ_SLOT_WEIGHTS, AQ_USE_READ, 0, 0);
                add_use(b, op, AQ_SLOT_HIDDEN, AQ_USE_UPDATE, j, 0);
                last[k] = index_of(b, op);
                break;
            case AQ_STEP_HEAD:
                op = add_op(b, AQ_OP_HEAD, j, k);
                add_dep(op, last[k], 0);
                add_use(b, op, AQ_SLOT_WEIGHTS, AQ_USE_READ, 0, 0);
                add_use(b, op, AQ_SLOT_ROWS, AQ_USE_READ, 0, -1);
                add_use(b, op, AQ_SLOT_HIDDEN, AQ_USE_READ, j - 1, 0);
                add_use(b, op, AQ_SLOT_LOGITS, AQ_USE_WRITE, j, 0);
                add_use(b, op, AQ_SLOT_TOKENS, AQ_USE_WRITE, j, 0);
                uint32_t head = index_of(b, op);
                op = add_op(b, AQ_OP_TURN, j, k);
                add_dep(op, head, 0);
                add_use(b, op, AQ_SLOT_TOKENS, AQ_USE_READ, j, 0);
                add_use(b, op, AQ_SLOT_KV, AQ_USE_UPDATE, j, 0);
                add_use(b, op, AQ_SLOT_ROWS, AQ_USE_WRITE, 0, 0);
                add_dep(&b->p->op[embed[k]], index_of(b, op), 1);
                break;
            }
        }
    }
}

static void fill_slots(struct aq_program *p, const struct aq_model_steps *m,
                       const struct aq_block_shape *s)
{
    uint64_t compute = aq_dtype_bytes(s->compute), rows = s->rows_max;
    uint64_t width = (uint64_t)m->heads * m->head_dim;
    uint64_t bytes[AQ_SLOT_CLASS_COUNT] = {
        [AQ_SLOT_ROWS] = rows * 8,
        [AQ_SLOT_HIDDEN] = rows * m->hidden * 4,
        [AQ_SLOT_TOKENS] = (uint64_t)s->micro_batch * 4,
        [AQ_SLOT_QKV] = rows * (width + 2ull * m->kv_heads * m->head_dim) * 4,
        [AQ_SLOT_ATTENTION] = rows * width * compute,
        [AQ_SLOT_LOGITS] = (uint64_t)s->head_tile_rows * m->vocab * 4,
        [AQ_SLOT_KV] = s->page_bytes * s->page_count / s->micro_batches,
    };
    for (unsigned c = 0; c < AQ_SLOT_CLASS_COUNT; c++) {
        uint32_t copies = c >= AQ_SLOT_ROWS && c <= AQ_SLOT_TOKENS ? s->micro_batches : 1;
        for (uint32_t k = 0; k < copies; k++) {
            p->slot[slot_of((enum aq_slot_class)c, s->micro_batches, k)] =
                (struct aq_slot){.slot_class = (uint8_t)c,
                                 .tier = AQ_HOST,
                                 .micro_batch = (uint16_t)k,
                                 .bytes = bytes[c]};
        }
    }
}

int aq_program_build(struct aq_program *ret, const struct aq_model_steps *steps,
                     const struct aq_block_shape *shape, struct aq_err *reterr)
{
    assert(shape->micro_batches >= 1 && shape->micro_batches < 4096);
    uint32_t k_count = shape->micro_batches;
    struct aq_program p = {0};
    uint32_t op_max = k_count * (4 * steps->layers + steps->layers + 3);
    p.op = calloc(op_max, sizeof(*p.op));
    p.slot_count = 1 + 4 * k_count + 3;
    p.slot = calloc(p.slot_count, sizeof(*p.slot));
    uint32_t *last = calloc(2 * k_count, sizeof(*last));
    if (!p.op || !p.slot || !last) {
        free(last);
        aq_program_close(&p);
        return aq_error(reterr, -ENOMEM, "program of %u ops", op_max);
    }
    struct builder b = {&p, k_count};
    add_ops(&b, steps, last, last + k_count);
    assert(p.op_count == op_max);
    fill_slots(&p, steps, shape);
    free(last);
    *ret = p;
    return 0;
}

void aq_program_close(struct aq_program *p)
{
    if (!p)
        return;
    free(p->op);
    free(p->slot);
    *p = (struct aq_program){0};
}

void aq_program_annotate(struct aq_op_cost *cost, const struct aq_program *p,
                         const struct aq_model_steps *steps, const struct aq_block_shape *block,
                         const struct aq_pass_shape *shape)
{
    uint64_t weight = aq_dtype_bytes(block->compute), kv = aq_dtype_bytes(block->kv_format);
    uint64_t width = (uint64_t)steps->heads * steps->head_dim;
    uint64_t kv_width = (uint64_t)steps->kv_heads * steps->head_dim;
    for (uint32_t i = 0; i < p->op_count; i++) {
        const struct aq_op *op = &p->op[i];
        const struct aq_step_desc *s = &steps->step[op->step];
        const struct aq_pass_shape *ps = &shape[op->micro_batch];
        struct aq_op_cost c = {.rows = ps->decode_rows + ps->prefill_rows};
        uint64_t post =
            op->kind == AQ_OP_PRE || op->kind == AQ_OP_POST ? 2 * width * steps->hidden : 0;
        switch ((enum aq_op_kind)op->kind) {
        case AQ_OP_ATTN_PREFILL:
            c.rows = ps->prefill_rows;
            c.flops = 4 * ps->prefill_key_pairs * width;
            c.bytes = 2ull * ps->prefill_rows * kv_width * kv;
            break;
        case AQ_OP_ATTN_DEVICE:
            c.rows = ps->decode_rows;
            c.flops = 4 * ps->decode_keys * width;
            c.bytes = 2 * ps->decode_keys * kv_width * kv;
            break;
        case AQ_OP_TURN: c.rows = ps->logit_rows; break;
        case AQ_OP_POST:
            c.flops = c.rows * post;
            c.bytes = c.rows ? post / 2 * weight : 0;
            break;
        case AQ_OP_HEAD:
            c.rows = ps->logit_rows;
            c.flops = c.rows * s->flops_per_row;
            c.bytes = c.rows ? s->flops_per_row / 2 * weight : 0;
            break;
        default:
            c.flops = c.rows * (s->flops_per_row - post);
            c.bytes = c.rows ? (s->flops_per_row - post) / 2 * weight : 0;
        }
        cost[i] = c;
    }
}
