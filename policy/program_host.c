/* SPDX-License-Identifier: Apache-2.0
 * The ops of products of which the host computes a share of the columns: they move rows, compute
 * and merge. */
#include "policy/host_product.h"
#include "policy/program_build.h"

bool aq_program_host_products(const struct aq_program *p)
{
    return p->first[AQ_SLOT_COLUMNS_HOST] < p->first[AQ_SLOT_COLUMNS_HOST + 1];
}

bool aq_program_host_computes(const struct aq_program *p)
{
    return p->first[AQ_SLOT_QKV_HOST] < p->first[AQ_SLOT_QKV_HOST + 1] ||
           aq_program_host_products(p);
}

static struct aq_op *host_op(struct aq_builder *b, const struct aq_op_of *o, enum aq_op_kind kind,
                             enum aq_lane lane, enum aq_object object)
{
    struct aq_op *op = aq_build_op(b, kind, lane, o->step, o->k, 0);
    op->of = (uint8_t)o->kind;
    op->object = (uint8_t)object;
    return op;
}

bool aq_build_on_host(struct aq_builder *b, struct aq_op_of *o)
{
    struct aq_host_product h;
    if (!aq_host_product_find(&h, b->stream, b->steps, b->plan, o->kind, o->step))
        return false;
    uint32_t index = aq_product_index(o->kind, o->step), slot = b->host_visit++ % b->host_slots;
    uint64_t rows = b->plan->shape.rows_max;
    struct aq_tag input = aq_build_tag(AQ_OBJECT_INPUT, index, o->k, 0, 0), none = {0};
    struct aq_tag columns = aq_build_tag(AQ_OBJECT_COLUMNS, index, o->k, 0, 0);
    o->slot = slot;
    struct aq_op *op = host_op(b, o, AQ_OP_D2H, AQ_LANE_D2H, AQ_OBJECT_INPUT);
    op->stage = slot;
    op->bytes_max = rows * h.input_bytes;
    op->workspace = h.input == AQ_REG_HIDDEN ? b->hidden_now[o->k] : o->workspace;
    aq_build_register(b, op, h.input, AQ_USE_READ, false);
    aq_build_use(b, op, AQ_SLOT_INPUT_HOST, slot, AQ_USE_WRITE, none, input);
    op = host_op(b, o, AQ_OP_PRODUCT_HOST, AQ_LANE_HOST_COMPUTE, AQ_OBJECT_NONE);
    op->stage = slot;
    aq_build_use(b, op, AQ_SLOT_INPUT_HOST, slot, AQ_USE_READ, input, none);
    aq_build_use(b, op, AQ_SLOT_COLUMNS_HOST, slot, AQ_USE_WRITE, none, columns);
    op = host_op(b, o, AQ_OP_H2D, AQ_LANE_H2D, AQ_OBJECT_COLUMNS);
    op->stage = slot;
    op->bytes_max = rows * h.columns * h.column_bytes;
    aq_build_use(b, op, AQ_SLOT_COLUMNS_HOST, slot, AQ_USE_READ, columns, none);
    aq_build_use(b, op, AQ_SLOT_COLUMNS, slot, AQ_USE_WRITE, none, columns);
    return true;
}

void aq_build_merge(struct aq_builder *b, const struct aq_op_of *o, enum aq_register output)
{
    struct aq_op *op = host_op(b, o, AQ_OP_MERGE, AQ_LANE_COMPUTE, AQ_OBJECT_NONE);
    op->stage = o->slot;
    op->workspace = output == AQ_REG_HIDDEN ? b->hidden_now[o->k] : o->workspace;
    aq_build_use(b, op, AQ_SLOT_COLUMNS, o->slot, AQ_USE_READ,
                 aq_build_tag(AQ_OBJECT_COLUMNS, aq_product_index(o->kind, o->step), o->k, 0, 0),
                 (struct aq_tag){0});
    if (aq_op_reads_rows(o->kind, &b->steps->step[o->step]))
        aq_build_use(b, op, AQ_SLOT_ROWS, o->k, AQ_USE_READ,
                     aq_build_tag(AQ_OBJECT_ROWS, 0, o->k, 0, -1), (struct aq_tag){0});
    aq_build_register(b, op, output, AQ_USE_UPDATE, false);
}
