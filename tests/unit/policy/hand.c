/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/policy/hand.h"

#include "tests/test.h"

#include <stdlib.h>
#include <string.h>

static void *grown(void *array, uint32_t count, size_t size)
{
    void *ret = realloc(array, (count + 1) * size);
    assert_non_null(ret);
    memset((char *)ret + count * size, 0, size);
    return ret;
}

void hand_slots(struct aq_program *p, enum aq_slot_class c, uint32_t count, enum aq_tier tier,
                uint64_t bytes)
{
    assert_int_equal(p->use_count, 0);
    for (uint32_t i = 0; i < count; i++) {
        p->slot = grown(p->slot, p->slot_count, sizeof(*p->slot));
        uint32_t at = p->first[c + 1];
        memmove(p->slot + at + 1, p->slot + at, (p->slot_count - at) * sizeof(*p->slot));
        p->slot[at] = (struct aq_slot){(uint8_t)c, (uint8_t)tier, bytes};
        p->slot_count++;
        for (uint32_t later = c + 1u; later <= AQ_SLOT_CLASS_COUNT; later++)
            p->first[later]++;
    }
}

uint32_t hand_op(struct aq_program *p, enum aq_op_kind kind, enum aq_lane lane, uint32_t step,
                 uint32_t k)
{
    p->op = grown(p->op, p->op_count, sizeof(*p->op));
    p->op[p->op_count] = (struct aq_op){
        .kind = (uint8_t)kind,
        .lane = (uint8_t)lane,
        .step = step,
        .micro_batch = (uint16_t)k,
        .use_first = p->use_count,
        .dep_first = p->dep_count,
    };
    return p->op_count++;
}

void hand_use(struct aq_program *p, enum aq_slot_class c, uint32_t index, enum aq_use_mode mode,
              struct aq_tag need, struct aq_tag leave)
{
    p->use = grown(p->use, p->use_count, sizeof(*p->use));
    p->use[p->use_count++] = (struct aq_use){p->first[c] + index, (uint8_t)mode, need, leave};
    p->op[p->op_count - 1].use_count++;
}

void hand_dep(struct aq_program *p, uint32_t on, uint8_t back)
{
    p->dep = grown(p->dep, p->dep_count, sizeof(*p->dep));
    p->dep[p->dep_count++] = (struct aq_dep){on, back};
    p->op[p->op_count - 1].dep_count++;
}

struct aq_tag hand_tag(enum aq_object object, uint32_t index, uint32_t k, int pass)
{
    return (struct aq_tag){(uint8_t)object, (int8_t)pass, (uint16_t)k, 0, index};
}

static bool conflict(const struct aq_program *p, const struct aq_op *a, const struct aq_op *b)
{
    for (uint32_t u = 0; u < a->use_count; u++) {
        for (uint32_t v = 0; v < b->use_count; v++) {
            const struct aq_use *x = &aq_op_uses(p, a)[u], *y = &aq_op_uses(p, b)[v];
            if (x->slot == y->slot && (x->mode != AQ_USE_READ || y->mode != AQ_USE_READ))
                return true;
        }
    }
    return false;
}

void hand_derive_deps(struct aq_program *p)
{
    free(p->dep);
    p->dep = NULL;
    p->dep_count = 0;
    for (uint32_t i = 0; i < p->op_count; i++) {
        struct aq_op *op = &p->op[i];
        op->dep_first = p->dep_count;
        op->dep_count = 0;
        for (uint32_t j = 0; j < p->op_count; j++) {
            if (!conflict(p, op, &p->op[j]))
                continue;
            p->dep = grown(p->dep, p->dep_count, sizeof(*p->dep));
            p->dep[p->dep_count++] = (struct aq_dep){j, j >= i};
            op->dep_count++;
        }
    }
}

static void *copied(const void *array, uint32_t count, size_t size)
{
    void *ret = malloc(count * size + 1);
    assert_non_null(ret);
    if (count)
        memcpy(ret, array, count * size);
    return ret;
}

void hand_copy(struct aq_program *ret, const struct aq_program *p)
{
    *ret = *p;
    ret->op = copied(p->op, p->op_count, sizeof(*p->op));
    ret->use = copied(p->use, p->use_count, sizeof(*p->use));
    ret->dep = copied(p->dep, p->dep_count, sizeof(*p->dep));
    ret->slot = copied(p->slot, p->slot_count, sizeof(*p->slot));
}

static bool equal(const void *a, uint32_t a_count, const void *b, uint32_t b_count, size_t size)
{
    return a_count == b_count && (a_count == 0 || memcmp(a, b, a_count * size) == 0);
}

bool hand_equal(const struct aq_program *a, const struct aq_program *b)
{
    return equal(a->op, a->op_count, b->op, b->op_count, sizeof(*a->op)) &&
           equal(a->use, a->use_count, b->use, b->use_count, sizeof(*a->use)) &&
           equal(a->dep, a->dep_count, b->dep, b->dep_count, sizeof(*a->dep)) &&
           equal(a->slot, a->slot_count, b->slot, b->slot_count, sizeof(*a->slot));
}

/* ---- a small decoder ---- */

static const struct aq_tag no_tag;

static void reads(struct aq_program *p, enum aq_slot_class c, uint32_t index, struct aq_tag need)
{
    hand_use(p, c, index, AQ_USE_READ, need, no_tag);
}

static void writes(struct aq_program *p, enum aq_slot_class c, uint32_t index, struct aq_tag leave)
{
    hand_use(p, c, index, AQ_USE_WRITE, no_tag, leave);
}

static void load(struct aq_program *p, const struct hand_model *m, uint32_t step)
{
    uint32_t chunk = step - 1;
    struct aq_tag w = hand_tag(AQ_OBJECT_WEIGHTS, chunk, 0, 0);
    for (int hop = m->staged ? 0 : 1; hop < 2; hop++) {
        uint32_t i = hop ? hand_op(p, AQ_OP_H2D, AQ_LANE_H2D, step, 0)
                         : hand_op(p, AQ_OP_READ, AQ_LANE_DISK_READ, step, 0);
        p->op[i].object = AQ_OBJECT_WEIGHTS;
        p->op[i].chunk = chunk;
        p->op[i].bytes_max = 1000;
        if (hop && m->staged)
            reads(p, AQ_SLOT_STAGING, chunk % 2, w);
        writes(p, hop ? AQ_SLOT_RING : AQ_SLOT_STAGING, hop ? chunk % m->ring : chunk % 2, w);
    }
}

static void move(struct aq_program *p, enum aq_op_kind kind, uint32_t k, enum aq_slot_class from,
                 enum aq_slot_class to, struct aq_tag what)
{
    enum aq_lane lane = kind == AQ_OP_H2D ? AQ_LANE_H2D : AQ_LANE_D2H;
    uint32_t i = hand_op(p, kind, lane, what.index, k);
    p->op[i].object = what.object;
    p->op[i].workspace = k;
    reads(p, from, k, what);
    writes(p, to, k, what);
}

static void first_half(struct aq_program *p, const struct hand_model *m, uint32_t step, uint32_t k)
{
    struct aq_tag rows = hand_tag(AQ_OBJECT_ROWS, 0, k, -1);
    struct aq_tag qkv = hand_tag(AQ_OBJECT_QKV, step, k, 0);
    struct aq_tag out = hand_tag(AQ_OBJECT_ATTENTION, step, k, 0);
    uint32_t i = hand_op(p, AQ_OP_PRE, AQ_LANE_COMPUTE, step, k);
    p->op[i].workspace = p->op[i].stage = k;
    reads(p, AQ_SLOT_RING, (step - 1) % m->ring, hand_tag(AQ_OBJECT_WEIGHTS, step - 1, 0, 0));
    reads(p, AQ_SLOT_HIDDEN, k, hand_tag(AQ_OBJECT_HIDDEN, step - 1, k, 0));
    writes(p, AQ_SLOT_QKV, k, qkv);
    move(p, AQ_OP_D2H, k, AQ_SLOT_QKV, AQ_SLOT_QKV_HOST, qkv);
    i = hand_op(p, AQ_OP_ATTN_HOST, AQ_LANE_HOST_COMPUTE, step, k);
    p->op[i].workspace = k;
    reads(p, AQ_SLOT_ROWS, k, rows);
    reads(p, AQ_SLOT_QKV_HOST, k, qkv);
    hand_use(p, AQ_SLOT_KV, (step - 1) * m->micro_batches + k, AQ_USE_UPDATE,
             hand_tag(AQ_OBJECT_KV, step, k, -1), hand_tag(AQ_OBJECT_KV, step, k, 0));
    writes(p, AQ_SLOT_ATTENTION_HOST, k, out);
    move(p, AQ_OP_H2D, k, AQ_SLOT_ATTENTION_HOST, AQ_SLOT_ATTENTION, out);
}

static void second_half(struct aq_program *p, const struct hand_model *m, uint32_t step, uint32_t k)
{
    uint32_t i = hand_op(p, AQ_OP_POST, AQ_LANE_COMPUTE, step, k);
    p->op[i].workspace = p->op[i].stage = k;
    reads(p, AQ_SLOT_RING, (step - 1) % m->ring, hand_tag(AQ_OBJECT_WEIGHTS, step - 1, 0, 0));
    reads(p, AQ_SLOT_ATTENTION, k, hand_tag(AQ_OBJECT_ATTENTION, step, k, 0));
    hand_use(p, AQ_SLOT_HIDDEN, k, AQ_USE_UPDATE, hand_tag(AQ_OBJECT_HIDDEN, step - 1, k, 0),
             hand_tag(AQ_OBJECT_HIDDEN, step, k, 0));
}

static void finish(struct aq_program *p, const struct hand_model *m, uint32_t k)
{
    uint32_t step = m->layers + 1;
    uint32_t head = hand_op(p, AQ_OP_HEAD, AQ_LANE_COMPUTE, step, k);
    p->op[head].stage = k;
    reads(p, AQ_SLOT_ROWS, k, hand_tag(AQ_OBJECT_ROWS, 0, k, -1));
    reads(p, AQ_SLOT_HIDDEN, k, hand_tag(AQ_OBJECT_HIDDEN, step - 1, k, 0));
    writes(p, AQ_SLOT_LOGITS, 0, hand_tag(AQ_OBJECT_LOGITS, step, k, 0));
    writes(p, AQ_SLOT_TOKENS, k, hand_tag(AQ_OBJECT_TOKENS, step, k, 0));
    hand_op(p, AQ_OP_TURN, AQ_LANE_CONTROL, step, k);
    reads(p, AQ_SLOT_TOKENS, k, hand_tag(AQ_OBJECT_TOKENS, step, k, 0));
    for (uint32_t j = 1; j <= m->layers; j++)
        hand_use(p, AQ_SLOT_KV, (j - 1) * m->micro_batches + k, AQ_USE_UPDATE,
                 hand_tag(AQ_OBJECT_KV, j, k, 0), hand_tag(AQ_OBJECT_KV, j, k, 0));
    writes(p, AQ_SLOT_ROWS, k, hand_tag(AQ_OBJECT_ROWS, 0, k, 0));
}

void hand_build(struct aq_program *ret, const struct hand_model *m)
{
    struct aq_program p = {.parts = 1, .micro_batches = m->micro_batches};
    uint32_t n = m->micro_batches;
    hand_slots(&p, AQ_SLOT_RING, m->ring, AQ_DEVICE, 1000);
    hand_slots(&p, AQ_SLOT_STAGING, m->staged ? 2 : 0, AQ_HOST, 1000);
    hand_slots(&p, AQ_SLOT_KV, m->layers * n, AQ_HOST, 100);
    static const enum aq_slot_class of_k[] = {AQ_SLOT_ROWS, AQ_SLOT_TOKENS, AQ_SLOT_HIDDEN,
                                              AQ_SLOT_QKV, AQ_SLOT_ATTENTION};
    for (uint32_t c = 0; c < AQ_ARRAY_LEN(of_k); c++)
        hand_slots(&p, of_k[c], n, AQ_DEVICE, 10);
    hand_slots(&p, AQ_SLOT_QKV_HOST, n, AQ_HOST, 10);
    hand_slots(&p, AQ_SLOT_ATTENTION_HOST, n, AQ_HOST, 10);
    hand_slots(&p, AQ_SLOT_LOGITS, 1, AQ_DEVICE, 50);
    for (uint32_t k = 0; k < n; k++) {
        uint32_t embed = hand_op(&p, AQ_OP_EMBED, AQ_LANE_COMPUTE, 0, k);
        p.op[embed].stage = k;
        reads(&p, AQ_SLOT_ROWS, k, hand_tag(AQ_OBJECT_ROWS, 0, k, -1));
        writes(&p, AQ_SLOT_HIDDEN, k, hand_tag(AQ_OBJECT_HIDDEN, 0, k, 0));
    }
    for (uint32_t step = 1; step <= m->layers; step++) {
        load(&p, m, step);
        for (uint32_t k = 0; k < n; k++)
            first_half(&p, m, step, k);
        for (uint32_t k = 0; k < n; k++)
            second_half(&p, m, step, k);
    }
    for (uint32_t k = 0; k < n; k++)
        finish(&p, m, k);
    hand_derive_deps(&p);
    *ret = p;
}
