/* SPDX-License-Identifier: Apache-2.0
 * Products of which the host computes a share of the columns: which they are. */
#include "policy/host_product.h"
#include "policy/registers.h"

#include <string.h>

bool aq_host_product_find(struct aq_host_product *ret, const struct aq_stream *stream,
                          const struct aq_model_steps *steps, const struct aq_plan *plan,
                          enum aq_op_kind kind, uint32_t step)
{
    const struct aq_step_desc *d = &steps->step[step];
    struct aq_op_products products;
    if (!plan->separate || plan->host_products <= 0)
        return false;
    if (!aq_op_host_products(&products, kind, d))
        return false;
    struct aq_host_product h = {.products = products};
    const struct aq_prim_list *list = &d->half[aq_op_half(kind)];
    const struct aq_prim *p = &list->prim[h.products.first];
    for (uint32_t i = 0, column = 0; i < p->matrix_count; i++) {
        struct aq_host_range *r = &h.range[h.range_count];
        *r = (struct aq_host_range){.place = i, .at = h.columns};
        if (aq_stream_host_rows(stream, steps, step, p->matrix[i], &r->first, &r->rows)) {
            r->column = column + r->first;
            h.columns += r->rows;
            h.range_count++;
        }
        column += d->matrix[p->matrix[i]].rows;
    }
    h.input = list->prim[0].src;
    h.input_bytes = aq_register_row_bytes(steps, h.input, plan->shape.compute);
    h.column_bytes = aq_dtype_bytes(aq_register_dtype(p->dst, plan->shape.compute));
    if (h.columns && ret)
        *ret = h;
    return h.columns > 0;
}

void aq_host_product_rest(struct aq_prim_list *list, const struct aq_host_product *h)
{
    uint32_t end = aq_host_product_end(h);
    list->count -= end;
    memmove(list->prim, list->prim + end, list->count * sizeof(*list->prim));
}

void aq_host_product_widest(uint64_t *ret_input, uint64_t *ret_columns,
                            const struct aq_stream *stream, const struct aq_model_steps *steps,
                            const struct aq_plan *plan)
{
    struct aq_host_product h;
    *ret_input = *ret_columns = 0;
    for (uint32_t j = 0; j < steps->step_count; j++) {
        for (int kind = 0; kind < AQ_OP_KIND_COUNT; kind++) {
            if (!aq_host_product_find(&h, stream, steps, plan, (enum aq_op_kind)kind, j))
                continue;
            *ret_input = aq_max_u64(*ret_input, h.input_bytes);
            *ret_columns = aq_max_u64(*ret_columns, h.columns * h.column_bytes);
        }
    }
}
