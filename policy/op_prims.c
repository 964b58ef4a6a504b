/* SPDX-License-Identifier: Apache-2.0
 * The primitives of ops. */
#include "policy/host_product.h"

#include <assert.h>
#include <string.h>

struct aq_prim_list aq_op_prims(enum aq_op_kind kind, const struct aq_step_desc *step)
{
    struct aq_prim_list list = step->half[aq_op_half(kind)];
    if (kind == AQ_OP_MLP) {
        const struct aq_prim_list *down = &step->half[1];
        assert(list.count + down->count <= AQ_STEP_PRIM_MAX);
        memcpy(list.prim + list.count, down->prim, down->count * sizeof(*down->prim));
        list.count += down->count;
    }
    return list;
}

bool aq_op_uses_matrix(enum aq_op_kind kind, const struct aq_step_desc *step, uint32_t matrix)
{
    struct aq_prim_list list = aq_op_prims(kind, step);
    for (uint32_t i = 0; i < list.count; i++) {
        const struct aq_prim *p = &list.prim[i];
        for (uint32_t n = 0; p->kind == AQ_PRIM_PRODUCT && n < p->matrix_count; n++) {
            if (p->matrix[n] == matrix)
                return true;
        }
    }
    return false;
}

uint32_t aq_op_host_product(enum aq_op_kind kind, const struct aq_step_desc *step)
{
    bool attention = step->kind == AQ_STEP_ATTENTION && (kind == AQ_OP_PRE || kind == AQ_OP_POST);
    bool mlp = step->kind == AQ_STEP_MLP && (kind == AQ_OP_MLP_UP || kind == AQ_OP_MLP_DOWN);
    if (!attention && !mlp)
        return UINT32_MAX;
    struct aq_prim_list list = aq_op_prims(kind, step);
    uint32_t count = 0, at = UINT32_MAX;
    for (uint32_t i = 0; i < list.count; i++) {
        if (list.prim[i].kind == AQ_PRIM_PRODUCT) {
            count++;
            at = i;
        }
    }
    const struct aq_prim *first = &list.prim[0];
    bool norm = at == 1 && first->kind == AQ_PRIM_NORM && first->src == AQ_REG_HIDDEN &&
                first->dst == AQ_REG_NORM;
    return count == 1 && (at == 0 || norm) ? at : UINT32_MAX;
}

bool aq_host_product_can(const struct aq_step_desc *step, uint32_t matrix)
{
    for (int kind = 0; kind < AQ_OP_KIND_COUNT; kind++) {
        uint32_t at = aq_op_host_product((enum aq_op_kind)kind, step);
        if (at == UINT32_MAX)
            continue;
        struct aq_prim_list list = aq_op_prims((enum aq_op_kind)kind, step);
        for (uint32_t i = 0; i < list.prim[at].matrix_count; i++) {
            if (list.prim[at].matrix[i] == matrix)
                return true;
        }
    }
    return false;
}
