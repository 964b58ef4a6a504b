/* SPDX-License-Identifier: Apache-2.0
 * Where ops find and leave rows: registers as slots of the program. */
#include "policy/registers.h"
#include "engine/exec/exec.h"

#include <assert.h>

static enum aq_slot_class class_of(enum aq_register r)
{
    switch (r) {
    case AQ_REG_HIDDEN: return AQ_SLOT_HIDDEN;
    case AQ_REG_QKV: return AQ_SLOT_QKV;
    case AQ_REG_ATTENTION: return AQ_SLOT_ATTENTION;
    case AQ_REG_INNER: return AQ_SLOT_INNER;
    case AQ_REG_LOGITS: return AQ_SLOT_LOGITS;
    default: assert(!"a register with a slot"); return AQ_SLOT_HIDDEN;
    }
}

/* Index of the register's slot in its class, by the op's numbers (struct aq_op). */
static uint32_t slot_of(const struct aq_executor *x, const struct aq_op *op, enum aq_register r)
{
    switch (r) {
    case AQ_REG_HIDDEN: return op->of ? op->workspace : op->stage;
    case AQ_REG_ATTENTION: return op->workspace * x->plan->part_count;
    case AQ_REG_LOGITS: return 0;
    default: return op->workspace;
    }
}

uint8_t *exec_register(const struct aq_executor *x, const struct aq_op *op, enum aq_register r)
{
    return exec_slot(x, class_of(r), slot_of(x, op, r));
}

static struct aq_device_range whole_slot(const struct aq_executor *x, enum aq_slot_class c,
                                         uint32_t index)
{
    return (struct aq_device_range){exec_slot(x, c, index),
                                    x->program->slot[x->program->first[c] + index].bytes};
}

/* The bytes that an op with primitives overwrites without reading them. */
static struct aq_device_range rows_output(const struct aq_executor *x, const struct aq_op *op)
{
    const struct aq_step_desc *step = &x->steps->step[op->step];
    struct aq_prim_list room;
    struct aq_list_io io = aq_list_io(aq_op_prims(&room, (enum aq_op_kind)op->kind, step));
    for (uint32_t r = 0; r < AQ_REG_COUNT; r++) {
        if (io.leaves[r] && !io.takes[r])
            return whole_slot(x, class_of((enum aq_register)r),
                              slot_of(x, op, (enum aq_register)r));
    }
    return (struct aq_device_range){0};
}

struct aq_device_range exec_output(const struct aq_executor *x, const struct aq_op *op)
{
    const struct exec_batch *b = &x->batch[op->micro_batch];
    const uint32_t *unpacked = &x->program->first[AQ_SLOT_UNPACKED];
    uint32_t at = op->workspace * x->plan->part_count;
    switch ((enum aq_op_kind)op->kind) {
    case AQ_OP_EMBED:
    case AQ_OP_PRE:
    case AQ_OP_POST:
    case AQ_OP_MLP:
    case AQ_OP_MLP_UP:
    case AQ_OP_MLP_DOWN:
    case AQ_OP_HEAD: return rows_output(x, op);
    case AQ_OP_ATTN_HOST: return whole_slot(x, AQ_SLOT_ATTENTION_HOST, at + op->part);
    case AQ_OP_PRODUCT_HOST: return whole_slot(x, AQ_SLOT_COLUMNS_HOST, op->stage);
    case AQ_OP_UNPACK: return whole_slot(x, AQ_SLOT_UNPACKED, op->step % (unpacked[1] - *unpacked));
    case AQ_OP_ATTN_DEVICE: {
        /* Decode rows come first in a micro-batch, in the order of their parts. */
        size_t row = aq_register_row_bytes(x->steps, AQ_REG_ATTENTION, x->plan->shape.compute);
        uint32_t entry = b->decode_first[op->part], end = b->decode_first[op->part + 1];
        const struct aq_attn_seq *first = b->decode + entry, *last = b->decode + end - 1;
        size_t rows = entry < end ? last->row + last->rows - first->row : 0;
        return (struct aq_device_range){
            exec_register(x, op, AQ_REG_ATTENTION) + (rows ? first->row * row : 0), rows * row};
    }
    default: return (struct aq_device_range){0};
    }
}
