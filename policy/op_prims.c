/* SPDX-License-Identifier: Apache-2.0
 * The primitives of ops. */
#include "policy/host_product.h"

#include <assert.h>
#include <string.h>

const struct aq_prim_list *aq_op_prims(struct aq_prim_list *room, enum aq_op_kind kind,
                                       const struct aq_step_desc *step)
{
    const struct aq_prim_list *list = &step->half[aq_op_half(kind)], *down = &step->half[1];
    if (kind != AQ_OP_MLP)
        return list;
    assert(list->count + down->count <= AQ_STEP_PRIM_MAX);
    *room = *list;
    memcpy(room->prim + room->count, down->prim, down->count * sizeof(*down->prim));
    room->count += down->count;
    return room;
}

bool aq_op_uses_matrix(enum aq_op_kind kind, const struct aq_step_desc *step, uint32_t matrix)
{
    struct aq_prim_list room;
    const struct aq_prim_list *list = aq_op_prims(&room, kind, step);
    for (uint32_t i = 0; i < list->count; i++) {
        const struct aq_prim *p = &list->prim[i];
        for (uint32_t n = 0; p->kind == AQ_PRIM_PRODUCT && n < p->matrix_count; n++) {
            if (p->matrix[n] == matrix)
                return true;
        }
    }
    return false;
}

bool aq_op_reads_rows(enum aq_op_kind kind, const struct aq_step_desc *step)
{
    struct aq_prim_list room;
    const struct aq_prim_list *list = aq_op_prims(&room, kind, step);
    for (uint32_t i = 0; i < list->count; i++) {
        enum aq_prim_kind k = list->prim[i].kind;
        if (k == AQ_PRIM_GATHER || k == AQ_PRIM_POSITION || k == AQ_PRIM_ROTATE)
            return true;
    }
    return kind == AQ_OP_HEAD; /* rows whose logits are wanted */
}

/* Do two products give the same columns of one register, from the same rows? */
static bool goes_on(const struct aq_step_desc *step, const struct aq_prim *first,
                    const struct aq_prim *next)
{
    bool same = next->kind == AQ_PRIM_PRODUCT && next->src == first->src &&
                next->dst == first->dst && next->matrix_count == first->matrix_count &&
                first->combine == AQ_COMBINE_SET && next->combine != AQ_COMBINE_SET;
    for (uint32_t i = 0; i < first->matrix_count && same; i++)
        same = step->matrix[next->matrix[i]].rows == step->matrix[first->matrix[i]].rows;
    return same;
}

bool aq_op_host_products(struct aq_op_products *ret, enum aq_op_kind kind,
                         const struct aq_step_desc *step)
{
    bool attention = step->kind == AQ_STEP_ATTENTION && (kind == AQ_OP_PRE || kind == AQ_OP_POST);
    bool mlp = step->kind == AQ_STEP_MLP && (kind == AQ_OP_MLP_UP || kind == AQ_OP_MLP_DOWN);
    if (!attention && !mlp)
        return false;
    const struct aq_prim_list *list = &step->half[aq_op_half(kind)];
    const struct aq_prim *first = &list->prim[0];
    bool norm =
        first->kind == AQ_PRIM_NORM && first->src == AQ_REG_HIDDEN && first->dst == AQ_REG_NORM;
    struct aq_op_products p = {.first = norm ? 1 : 0, .count = 1};
    if (p.first >= list->count || list->prim[p.first].kind != AQ_PRIM_PRODUCT)
        return false;
    while (p.first + p.count < list->count &&
           goes_on(step, &list->prim[p.first], &list->prim[p.first + p.count]))
        p.count++;
    for (uint32_t i = p.first + p.count; i < list->count; i++) {
        if (list->prim[i].kind == AQ_PRIM_PRODUCT)
            return false;
    }
    *ret = p;
    return true;
}

bool aq_host_product_can(const struct aq_step_desc *step, uint32_t matrix)
{
    uint32_t first;
    return aq_host_product_like(step, matrix, &first);
}

bool aq_host_product_like(const struct aq_step_desc *step, uint32_t matrix, uint32_t *ret_first)
{
    struct aq_op_products p;
    for (int kind = 0; kind < AQ_OP_KIND_COUNT; kind++) {
        if (!aq_op_host_products(&p, (enum aq_op_kind)kind, step))
            continue;
        const struct aq_prim *prim = &step->half[aq_op_half((enum aq_op_kind)kind)].prim[p.first];
        for (uint32_t n = 0; n < p.count; n++) {
            for (uint32_t i = 0; i < prim->matrix_count; i++) {
                if (prim[n].matrix[i] != matrix)
                    continue;
                *ret_first = prim->matrix[i];
                return true;
            }
        }
    }
    return false;
}
