/* SPDX-License-Identifier: Apache-2.0
 * Products of which the host computes a share of the columns: finding them, and the ops that move
 * rows, compute and merge. */
#include "policy/host_product.h"
#include "policy/program_build.h"
#include "policy/registers.h"

static const enum aq_op_kind kinds[] = {AQ_OP_PRE, AQ_OP_POST, AQ_OP_MLP_UP, AQ_OP_MLP_DOWN};

static bool has_product(enum aq_op_kind kind, enum aq_step_kind step)
{
    if (step == AQ_STEP_ATTENTION)
        return kind == AQ_OP_PRE || kind == AQ_OP_POST;
    return step == AQ_STEP_MLP && (kind == AQ_OP_MLP_UP || kind == AQ_OP_MLP_DOWN);
}

/* Index of the product in an op's list that the host can share; UINT32_MAX: none. */
static uint32_t product_of(const struct aq_prim_list *list)
{
    uint32_t count = 0, at = UINT32_MAX;
    for (uint32_t i = 0; i < list->count; i++) {
        if (list->prim[i].kind == AQ_PRIM_PRODUCT) {
            count++;
            at = i;
        }
    }
    const struct aq_prim *first = &list->prim[0];
    bool norm = at == 1 && first->kind == AQ_PRIM_NORM && first->src == AQ_REG_HIDDEN &&
                first->dst == AQ_REG_NORM;
    return count == 1 && (at == 0 || norm) ? at : UINT32_MAX;
}

bool aq_host_product_can(const struct aq_step_desc *step, uint32_t matrix)
{
    for (uint32_t k = 0; k < AQ_ARRAY_LEN(kinds); k++) {
        if (!has_product(kinds[k], step->kind))
            continue;
        struct aq_prim_list list = aq_op_prims(kinds[k], step);
        uint32_t at = product_of(&list);
        for (uint32_t i = 0; at != UINT32_MAX && i < list.prim[at].matrix_count; i++) {
            if (list.prim[at].matrix[i] == matrix)
                return true;
        }
    }
    return false;
}

bool aq_host_product_find(struct aq_host_product *ret, const struct aq_stream *stream,
                          const struct aq_model_steps *steps, const struct aq_plan *plan,
                          enum aq_op_kind kind, uint32_t step)
{
    const struct aq_step_desc *d = &steps->step[step];
    struct aq_host_product h = {0};
    if (!plan->separate || plan->host_products <= 0 || !has_product(kind, d->kind))
        return false;
    struct aq_prim_list list = aq_op_prims(kind, d);
    h.prim = product_of(&list);
    if (h.prim == UINT32_MAX)
        return false;
    const struct aq_prim *p = &list.prim[h.prim];
    for (uint32_t i = 0, column = 0; i < p->matrix_count; i++) {
        struct aq_host_range *r = &h.range[h.range_count];
        *r = (struct aq_host_range){.matrix = p->matrix[i], .at = h.columns};
        if (aq_stream_host_rows(stream, steps, step, r->matrix, &r->first, &r->rows)) {
            r->column = column + r->first;
            h.columns += r->rows;
            h.range_count++;
        }
        column += d->matrix[p->matrix[i]].rows;
    }
    h.input = list.prim[0].src;
    h.input_bytes = aq_register_row_bytes(steps, h.input, plan->shape.compute);
    h.column_bytes = aq_dtype_bytes(aq_register_dtype(p->dst, plan->shape.compute));
    if (h.columns && ret)
        *ret = h;
    return h.columns > 0;
}

void aq_host_product_widest(uint64_t *ret_input, uint64_t *ret_columns,
                            const struct aq_stream *stream, const struct aq_model_steps *steps,
                            const struct aq_plan *plan)
{
    struct aq_host_product h;
    *ret_input = *ret_columns = 0;
    for (uint32_t j = 0; j < steps->step_count; j++) {
        for (uint32_t i = 0; i < AQ_ARRAY_LEN(kinds); i++) {
            if (!aq_host_product_find(&h, stream, steps, plan, kinds[i], j))
                continue;
            *ret_input = aq_max_u64(*ret_input, h.input_bytes);
            *ret_columns = aq_max_u64(*ret_columns, h.columns * h.column_bytes);
        }
    }
}

bool aq_program_host_products(const struct aq_program *p)
{
    return p->first[AQ_SLOT_COLUMNS_HOST] < p->first[AQ_SLOT_COLUMNS_HOST + 1];
}

/* ---- ops --------------------------------------------------------------------------------- */

static struct aq_tag tag(enum aq_object object, uint32_t index, uint32_t k, uint32_t part)
{
    return (struct aq_tag){(uint8_t)object, 0, (uint16_t)k, (uint16_t)part, index};
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
    struct aq_tag input = tag(AQ_OBJECT_INPUT, index, o->k, 0), none = {0};
    struct aq_tag columns = tag(AQ_OBJECT_COLUMNS, index, o->k, 0);
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
                 tag(AQ_OBJECT_COLUMNS, aq_product_index(o->kind, o->step), o->k, 0),
                 (struct aq_tag){0});
    aq_build_register(b, op, output, AQ_USE_UPDATE, false);
}
