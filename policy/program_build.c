/* SPDX-License-Identifier: Apache-2.0
 * Single ops and uses as they are added to a program. */
#include "policy/program_build.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

bool aq_build_grow(void **p, uint32_t *max, uint32_t count, size_t size)
{
    if (count < *max)
        return true;
    uint32_t more = *max ? 2 * *max : 16;
    void *q = realloc(*p, more * size);
    if (!q)
        return false;
    *p = q;
    *max = more;
    return true;
}

struct aq_op *aq_build_op(struct aq_builder *b, enum aq_op_kind kind, enum aq_lane lane,
                          uint32_t step, uint32_t k, uint32_t part)
{
    struct aq_program *p = b->p;
    struct aq_op *none = &b->none; /* takes writes after a failure; never read */
    if (b->failed || !aq_build_grow((void **)&p->op, &p->op_room, p->op_count, sizeof(*p->op))) {
        b->failed = true;
        return none;
    }
    struct aq_op *op = &p->op[p->op_count++];
    *op = (struct aq_op){
        .kind = (uint8_t)kind,
        .lane = (uint8_t)lane,
        .step = step,
        .micro_batch = (uint16_t)k,
        .part = (uint16_t)part,
        .use_first = p->use_count,
    };
    return op;
}

void aq_build_use(struct aq_builder *b, struct aq_op *op, enum aq_slot_class c, uint32_t index,
                  enum aq_use_mode mode, struct aq_tag need, struct aq_tag leave)
{
    struct aq_program *p = b->p;
    if (b->failed ||
        !aq_build_grow((void **)&p->use, &p->use_room, p->use_count, sizeof(*p->use))) {
        b->failed = true;
        return;
    }
    assert(p->first[c] + index < p->first[c + 1]);
    assert(op->use_first + op->use_count == p->use_count);
    op->use_count++;
    p->use[p->use_count++] = (struct aq_use){p->first[c] + index, (uint8_t)mode, need, leave};
}

/* ---- registers --------------------------------------------------------------------------- */

/* Slot class and object of the registers that hold all rows. */
static const struct {
    uint8_t slot_class, object;
} registers[AQ_REG_COUNT] = {
    [AQ_REG_HIDDEN] = {AQ_SLOT_HIDDEN, AQ_OBJECT_HIDDEN},
    [AQ_REG_QKV] = {AQ_SLOT_QKV, AQ_OBJECT_QKV},
    [AQ_REG_ATTENTION] = {AQ_SLOT_ATTENTION, AQ_OBJECT_ATTENTION},
    [AQ_REG_INNER] = {AQ_SLOT_INNER, AQ_OBJECT_INNER},
    [AQ_REG_LOGITS] = {AQ_SLOT_LOGITS, AQ_OBJECT_LOGITS},
};

void aq_build_register(struct aq_builder *b, struct aq_op *op, enum aq_register r,
                       enum aq_use_mode mode, bool partial)
{
    enum aq_slot_class c = (enum aq_slot_class)registers[r].slot_class;
    enum aq_op_kind kind = (enum aq_op_kind)(op->of ? op->of : op->kind);
    bool hidden = r == AQ_REG_HIDDEN;
    uint32_t k = op->micro_batch, parts = r == AQ_REG_ATTENTION ? b->plan->part_count : 1;
    uint32_t slot = hidden ? b->hidden_now[k] : r == AQ_REG_LOGITS ? 0 : op->workspace * parts;
    for (uint32_t part = 0; part < parts; part++) {
        struct aq_tag less =
            aq_build_tag(AQ_OBJECT_PARTIAL, aq_product_index(kind, op->step), k, 0, 0);
        struct aq_tag whole =
            aq_build_tag((enum aq_object)registers[r].object, op->step, k, part, 0);
        struct aq_tag need = whole, none = {0};
        if (hidden)
            need.index = b->hidden_step[k];
        if (op->kind == AQ_OP_MERGE)
            need = less;
        aq_build_use(b, op, c, slot + part, mode, mode == AQ_USE_WRITE ? none : need,
                     mode == AQ_USE_READ ? none
                     : partial           ? less
                                         : whole);
    }
    if (hidden && mode != AQ_USE_READ && !partial)
        b->hidden_step[k] = op->step;
}
