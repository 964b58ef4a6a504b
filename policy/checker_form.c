/* SPDX-License-Identifier: Apache-2.0
 * The form of a program: properties of single ops and tables, without their order. */
#include "policy/checker_form.h"

#include <assert.h>
#include <stdlib.h>

enum { TAG_AGE_MAX = 2 };

/* ---- tables ---- */

static int check_slots(const struct aq_program *p, struct aq_err *reterr)
{
    if (p->first[0] != 0 || p->first[AQ_SLOT_CLASS_COUNT] != p->slot_count)
        return aq_error(reterr, -EPROTO, "program: expected the classes to hold %u slots, found %u",
                        p->slot_count, p->first[AQ_SLOT_CLASS_COUNT] - p->first[0]);
    for (uint32_t c = 0; c < AQ_SLOT_CLASS_COUNT; c++) {
        if (p->first[c] > p->first[c + 1] || p->first[c + 1] > p->slot_count)
            return aq_error(reterr, -EPROTO, "program: %s slots lie from %u to %u of %u",
                            aq_slot_class_name(c), p->first[c], p->first[c + 1], p->slot_count);
        for (uint32_t s = p->first[c]; s < p->first[c + 1]; s++) {
            if (p->slot[s].slot_class != c || p->slot[s].tier >= AQ_TIER_COUNT)
                return aq_error(reterr, -EPROTO,
                                "program: slot %u: expected class %u in a tier below %u, found "
                                "class %u in tier %u",
                                s, c, AQ_TIER_COUNT, p->slot[s].slot_class, p->slot[s].tier);
        }
    }
    return 0;
}

static bool lane_fits(uint8_t kind, uint8_t lane)
{
    switch ((enum aq_op_kind)kind) {
    case AQ_OP_READ: return lane == AQ_LANE_DISK_READ || lane == AQ_LANE_READ_WEIGHTS;
    case AQ_OP_WRITE: return lane == AQ_LANE_DISK_WRITE;
    case AQ_OP_H2D: return lane == AQ_LANE_H2D || lane == AQ_LANE_H2D_WEIGHTS;
    case AQ_OP_D2H: return lane == AQ_LANE_D2H;
    case AQ_OP_MERGE: return lane == AQ_LANE_COMPUTE;
    case AQ_OP_ATTN_HOST:
    case AQ_OP_PRODUCT_HOST: return lane == AQ_LANE_HOST_COMPUTE;
    case AQ_OP_TURN: return lane == AQ_LANE_CONTROL;
    default: return lane == AQ_LANE_COMPUTE || lane == AQ_LANE_HOST_COMPUTE;
    }
}

/* Is `of` set exactly in ops of the kinds that serve a product with columns of the host? */
static bool of_fits(const struct aq_op *op)
{
    bool shared = op->kind == AQ_OP_PRODUCT_HOST || op->kind == AQ_OP_MERGE ||
                  (op->kind == AQ_OP_D2H && op->object == AQ_OBJECT_INPUT) ||
                  (op->kind == AQ_OP_H2D && op->object == AQ_OBJECT_COLUMNS);
    bool product = op->of == AQ_OP_PRE || op->of == AQ_OP_POST || op->of == AQ_OP_MLP_UP ||
                   op->of == AQ_OP_MLP_DOWN;
    return shared ? product : op->of == 0;
}

static int check_op(const struct aq_program *p, uint32_t i, struct aq_err *reterr)
{
    const struct aq_op *op = &p->op[i];
    if (op->kind >= AQ_OP_KIND_COUNT || op->lane >= AQ_LANE_COUNT || op->object >= AQ_OBJECT_COUNT)
        return aq_error(reterr, -EPROTO, "program: op %u has kind %u, lane %u, object %u", i,
                        op->kind, op->lane, op->object);
    if (op->use_first > p->use_count || op->use_count > p->use_count - op->use_first ||
        op->dep_first > p->dep_count || op->dep_count > p->dep_count - op->dep_first)
        return aq_check_fault(p, i, reterr, "its uses or deps lie outside their tables");
    if (op->micro_batch >= p->micro_batches || op->part >= p->parts)
        return aq_check_fault(p, i, reterr, "there is no such micro-batch or part");
    if (!of_fits(op))
        return aq_check_fault(p, i, reterr, "it and the op it belongs to do not go together");
    char who[160];
    aq_op_describe(who, sizeof(who), p, i);
    if (!lane_fits(op->kind, op->lane))
        return aq_error(reterr, -EPROTO, "program: %s is on lane %s, which cannot run it", who,
                        aq_lane_name(op->lane));
    for (uint32_t d = 0; d < op->dep_count; d++) {
        const struct aq_dep *dep = &aq_op_deps(p, op)[d];
        if (dep->back > 1 || dep->op >= p->op_count || (!dep->back && dep->op >= i))
            return aq_error(reterr, -EPROTO,
                            "program: %s waits for op %u, %u passes before: expected an earlier "
                            "op, or one of the pass before",
                            who, dep->op, dep->back);
    }
    return 0;
}

/* ---- uses ---- */

static bool tag_is_sound(const struct aq_program *p, const struct aq_tag *t)
{
    if (t->object == AQ_OBJECT_NONE || t->object >= AQ_OBJECT_COUNT)
        return false;
    if (t->object == AQ_OBJECT_WEIGHTS)
        return t->pass == 0 && t->micro_batch == 0 && t->part == 0;
    return t->pass <= 0 && t->pass >= -TAG_AGE_MAX && t->micro_batch < p->micro_batches &&
           t->part < p->parts;
}

/* The residual stream has the tag of the step before, until this step leaves its own. */
static bool hidden_is_own(const struct aq_op *op, const struct aq_tag *t, bool leaves)
{
    if (op->of && !leaves) /* the input of a product on the host */
        return t->index + 1 == op->step;
    return t->index + !(leaves || aq_op_is_move(op)) == op->step;
}

/* Tags of an op name its own micro-batch, and its own step and part where it has them. */
static bool tag_is_own(const struct aq_op *op, const struct aq_tag *t, bool leaves)
{
    bool attention = op->kind >= AQ_OP_ATTN_PREFILL && op->kind <= AQ_OP_ATTN_HOST;
    switch ((enum aq_object)t->object) {
    case AQ_OBJECT_WEIGHTS: return !leaves || op->kind != AQ_OP_UNPACK || t->index == op->step;
    case AQ_OBJECT_HIDDEN: return t->micro_batch == op->micro_batch && hidden_is_own(op, t, leaves);
    case AQ_OBJECT_QKV:
    case AQ_OBJECT_INNER: return t->micro_batch == op->micro_batch && t->index == op->step;
    case AQ_OBJECT_INPUT:
    case AQ_OBJECT_COLUMNS:
    case AQ_OBJECT_PARTIAL:
        return t->micro_batch == op->micro_batch && t->part == 0 &&
               t->index ==
                   aq_product_index((enum aq_op_kind)(op->of ? op->of : op->kind), op->step);
    case AQ_OBJECT_ATTENTION:
    case AQ_OBJECT_KV:
    case AQ_OBJECT_KV_PROMPT:
        if (((aq_op_is_move(op) && !op->of) || attention) && t->part != op->part)
            return false;
        return t->micro_batch == op->micro_batch &&
               (t->index == op->step || op->kind == AQ_OP_TURN);
    case AQ_OBJECT_LOGITS:
    case AQ_OBJECT_TOKENS: return t->micro_batch == op->micro_batch && t->index == op->step;
    default: return t->micro_batch == op->micro_batch;
    }
}

/* An op's slots are those that its numbers workspace, stage and chunk name, which the executor
 * uses. */
static bool slot_is_own(const struct aq_program *p, const struct aq_op *op,
                        const struct aq_use *use)
{
    uint8_t c = p->slot[use->slot].slot_class;
    uint32_t index = use->slot - p->first[c];
    const struct aq_tag *t = use->mode == AQ_USE_WRITE ? &use->leave : &use->need;
    bool link = op->kind == AQ_OP_H2D || op->kind == AQ_OP_D2H;
    switch ((enum aq_slot_class)c) {
    case AQ_SLOT_ROWS:
    case AQ_SLOT_TOKENS:
    case AQ_SLOT_HIDDEN_DISK: return index == op->micro_batch;
    case AQ_SLOT_HIDDEN: return index == (op->of ? op->workspace : op->stage);
    case AQ_SLOT_KV_DEVICE:
    case AQ_SLOT_INPUT_HOST:
    case AQ_SLOT_COLUMNS_HOST:
    case AQ_SLOT_COLUMNS: return index == op->stage;
    case AQ_SLOT_HIDDEN_HOST: return index == (link ? op->workspace : op->stage);
    case AQ_SLOT_KV_HOST: return index == (aq_op_is_move(op) ? op->workspace : op->stage);
    case AQ_SLOT_QKV:
    case AQ_SLOT_INNER: return index == op->workspace;
    case AQ_SLOT_ATTENTION:
    case AQ_SLOT_QKV_HOST:
    case AQ_SLOT_ATTENTION_HOST: return index == op->workspace * p->parts + t->part;
    case AQ_SLOT_KV:
        return index % (p->micro_batches * p->parts) == op->micro_batch * p->parts + t->part;
    default: return true;
    }
}

/* Can slots of this class hold the object? */
static bool object_fits(uint8_t slot_class, uint8_t object)
{
    static const uint8_t held[AQ_SLOT_CLASS_COUNT] = {
        [AQ_SLOT_RING] = AQ_OBJECT_WEIGHTS,
        [AQ_SLOT_STAGING] = AQ_OBJECT_WEIGHTS,
        [AQ_SLOT_UNPACKED] = AQ_OBJECT_WEIGHTS,
        [AQ_SLOT_ROWS] = AQ_OBJECT_ROWS,
        [AQ_SLOT_TOKENS] = AQ_OBJECT_TOKENS,
        [AQ_SLOT_HIDDEN] = AQ_OBJECT_HIDDEN,
        [AQ_SLOT_HIDDEN_HOST] = AQ_OBJECT_HIDDEN,
        [AQ_SLOT_HIDDEN_DISK] = AQ_OBJECT_HIDDEN,
        [AQ_SLOT_QKV] = AQ_OBJECT_QKV,
        [AQ_SLOT_ATTENTION] = AQ_OBJECT_ATTENTION,
        [AQ_SLOT_QKV_HOST] = AQ_OBJECT_QKV,
        [AQ_SLOT_ATTENTION_HOST] = AQ_OBJECT_ATTENTION,
        [AQ_SLOT_KV] = AQ_OBJECT_KV,
        [AQ_SLOT_KV_HOST] = AQ_OBJECT_KV,
        [AQ_SLOT_KV_DEVICE] = AQ_OBJECT_KV,
        [AQ_SLOT_KV_PREFILL] = AQ_OBJECT_KV_PROMPT,
        [AQ_SLOT_INNER] = AQ_OBJECT_INNER,
        [AQ_SLOT_LOGITS] = AQ_OBJECT_LOGITS,
        [AQ_SLOT_INPUT_HOST] = AQ_OBJECT_INPUT,
        [AQ_SLOT_COLUMNS_HOST] = AQ_OBJECT_COLUMNS,
        [AQ_SLOT_COLUMNS] = AQ_OBJECT_COLUMNS,
    };
    bool output =
        slot_class == AQ_SLOT_QKV || slot_class == AQ_SLOT_INNER || slot_class == AQ_SLOT_HIDDEN;
    return held[slot_class] == object || (object == AQ_OBJECT_PARTIAL && output);
}

/* Can the op's side reach the slot?  A separate device computes in its own memory only; rows are in
 * both memories. */
static bool tier_is_own(const struct aq_program *p, const struct aq_op *op,
                        const struct aq_use *use, bool separate)
{
    const struct aq_slot *slot = &p->slot[use->slot];
    if (slot->slot_class == AQ_SLOT_ROWS)
        return true;
    switch ((enum aq_lane)op->lane) {
    case AQ_LANE_COMPUTE: return slot->tier == (separate ? AQ_DEVICE : AQ_HOST);
    case AQ_LANE_HOST_COMPUTE: return slot->tier == AQ_HOST;
    default: return true;
    }
}

static int check_use(const struct aq_program *p, uint32_t i, const struct aq_use *use,
                     bool separate, struct aq_err *reterr)
{
    const struct aq_op *op = &p->op[i];
    if (use->slot >= p->slot_count || use->mode > AQ_USE_UPDATE)
        return aq_check_fault(p, i, reterr, "it uses a slot that is not there, or in no known way");
    uint8_t c = p->slot[use->slot].slot_class;
    const struct aq_tag *need = use->mode == AQ_USE_WRITE ? &use->leave : &use->need;
    const struct aq_tag *left = use->mode == AQ_USE_READ ? &use->need : &use->leave;
    if (!tag_is_sound(p, need) || !tag_is_sound(p, left) || !object_fits(c, need->object) ||
        !object_fits(c, left->object))
        return aq_check_fault(p, i, reterr, "it uses a slot for what such slots do not hold");
    if ((use->mode != AQ_USE_WRITE && !tag_is_own(op, need, false)) ||
        (use->mode != AQ_USE_READ && !tag_is_own(op, left, true)))
        return aq_check_fault(
            p, i, reterr, "it needs or leaves what belongs to another step, micro-batch or part");
    if (!tier_is_own(p, op, use, separate)) {
        char who[160];
        aq_op_describe(who, sizeof(who), p, i);
        return aq_error(reterr, -EPROTO, "program: %s, on lane %s, uses a %s slot on the %s tier",
                        who, aq_lane_name(op->lane), aq_slot_class_name(c),
                        aq_tier_name(p->slot[use->slot].tier));
    }
    if (c == AQ_SLOT_KV && use->mode == AQ_USE_WRITE)
        return aq_check_fault(p, i, reterr, "kv at home is added to, never replaced");
    if (!slot_is_own(p, op, use))
        return aq_check_fault(p, i, reterr,
                              "it uses a slot of another micro-batch, part, workspace or stage");
    return 0;
}

static int check_uses(const struct aq_program *p, uint32_t i, bool separate, struct aq_err *reterr)
{
    const struct aq_use *use = aq_op_uses(p, &p->op[i]);
    for (uint32_t u = 0; u < p->op[i].use_count; u++) {
        int rc = check_use(p, i, &use[u], separate, reterr);
        if (rc < 0)
            return rc;
        for (uint32_t v = 0; v < u; v++) {
            if (use[v].slot == use[u].slot)
                return aq_check_fault(p, i, reterr, "it uses a slot twice");
        }
    }
    return 0;
}

/* ---- kinds ---- */

/* How many uses of each sort an op has. */
struct tally {
    uint32_t in[AQ_OBJECT_COUNT], out[AQ_OBJECT_COUNT];
};

static struct tally count_uses(const struct aq_program *p, const struct aq_op *op)
{
    struct tally t = {0};
    for (uint32_t u = 0; u < op->use_count; u++) {
        const struct aq_use *use = &aq_op_uses(p, op)[u];
        if (use->mode != AQ_USE_WRITE)
            t.in[use->need.object]++;
        if (use->mode != AQ_USE_READ)
            t.out[use->leave.object]++;
    }
    return t;
}

/* Does the op leave its output, whole or without the host's columns? */
static bool leaves(const struct tally *t, enum aq_object output)
{
    return t->out[output] + t->out[AQ_OBJECT_PARTIAL] == 1;
}

/* The output of an op of this kind, whose product has columns of the host. */
static enum aq_object output_of(enum aq_op_kind kind)
{
    return kind == AQ_OP_PRE      ? AQ_OBJECT_QKV
           : kind == AQ_OP_MLP_UP ? AQ_OBJECT_INNER
                                  : AQ_OBJECT_HIDDEN;
}

/* Does an op use the objects that ops of its kind work on? */
static bool uses_fit(const struct aq_program *p, const struct aq_op *op)
{
    struct tally t = count_uses(p, op);
    uint32_t kv = p->first[AQ_SLOT_KV + 1] - p->first[AQ_SLOT_KV];
    uint32_t scratch = p->first[AQ_SLOT_KV_PREFILL + 1] - p->first[AQ_SLOT_KV_PREFILL];
    switch ((enum aq_op_kind)op->kind) {
    case AQ_OP_UNPACK: return t.out[AQ_OBJECT_WEIGHTS] == 1;
    case AQ_OP_EMBED: return t.in[AQ_OBJECT_ROWS] == 1 && t.out[AQ_OBJECT_HIDDEN] == 1;
    case AQ_OP_PRE: return t.in[AQ_OBJECT_HIDDEN] == 1 && leaves(&t, AQ_OBJECT_QKV);
    case AQ_OP_ATTN_PREFILL:
    case AQ_OP_ATTN_DEVICE:
    case AQ_OP_ATTN_HOST:
        if (op->kind == AQ_OP_ATTN_PREFILL && t.out[AQ_OBJECT_KV_PROMPT] != scratch)
            return false;
        return t.in[AQ_OBJECT_ROWS] == 1 && t.in[AQ_OBJECT_QKV] == 1 && t.out[AQ_OBJECT_KV] == 1 &&
               t.out[AQ_OBJECT_ATTENTION] == 1;
    case AQ_OP_POST: /* slots differ, and each is of the part of its tag: so all parts are there */
        return t.in[AQ_OBJECT_ATTENTION] == p->parts && t.in[AQ_OBJECT_HIDDEN] == 1 &&
               leaves(&t, AQ_OBJECT_HIDDEN);
    case AQ_OP_MLP: return t.in[AQ_OBJECT_HIDDEN] == 1 && t.out[AQ_OBJECT_HIDDEN] == 1;
    case AQ_OP_MLP_UP: return t.in[AQ_OBJECT_HIDDEN] == 1 && leaves(&t, AQ_OBJECT_INNER);
    case AQ_OP_MLP_DOWN:
        return t.in[AQ_OBJECT_INNER] == 1 && t.in[AQ_OBJECT_HIDDEN] == 1 &&
               leaves(&t, AQ_OBJECT_HIDDEN);
    case AQ_OP_PRODUCT_HOST: return t.in[AQ_OBJECT_INPUT] == 1 && t.out[AQ_OBJECT_COLUMNS] == 1;
    case AQ_OP_MERGE:
        return t.in[AQ_OBJECT_COLUMNS] == 1 && t.in[AQ_OBJECT_PARTIAL] == 1 &&
               t.out[output_of((enum aq_op_kind)op->of)] == 1;
    case AQ_OP_HEAD:
        return t.in[AQ_OBJECT_HIDDEN] == 1 && t.in[AQ_OBJECT_ROWS] == 1 &&
               t.out[AQ_OBJECT_LOGITS] == 1 && t.out[AQ_OBJECT_TOKENS] == 1;
    case AQ_OP_TURN: /* TURN frees pages, so it must hold all of them */
        return t.in[AQ_OBJECT_TOKENS] == 1 && t.out[AQ_OBJECT_ROWS] == 1 &&
               t.out[AQ_OBJECT_KV] == kv / p->micro_batches;
    default: return true; /* moves: aq_check_moves() checks their routes */
    }
}

struct identity {
    uint32_t step, kind, of, micro_batch, part, op;
};

static int compare_identities(const void *a, const void *b)
{
    const struct identity *x = a, *y = b;
    if (x->step != y->step)
        return x->step < y->step ? -1 : 1;
    if (x->micro_batch != y->micro_batch)
        return x->micro_batch < y->micro_batch ? -1 : 1;
    if (x->part != y->part)
        return x->part < y->part ? -1 : 1;
    if (x->kind != y->kind)
        return x->kind < y->kind ? -1 : 1;
    return x->of < y->of ? -1 : x->of > y->of;
}

/* No object is computed twice in a pass. */
static int check_once(const struct aq_program *p, struct aq_err *reterr)
{
    struct identity *list = calloc(p->op_count + 1, sizeof(*list));
    if (!list)
        return aq_error_memory(reterr, "checker: a program of %u ops", p->op_count);
    uint32_t count = 0;
    for (uint32_t i = 0; i < p->op_count; i++) {
        const struct aq_op *op = &p->op[i];
        if (!aq_op_is_move(op))
            list[count++] =
                (struct identity){op->step, op->kind, op->of, op->micro_batch, op->part, i};
    }
    qsort(list, count, sizeof(*list), compare_identities);
    int rc = 0;
    for (uint32_t i = 1; i < count && rc == 0; i++) {
        if (compare_identities(&list[i - 1], &list[i]) == 0)
            rc = aq_check_fault(p, list[i].op, reterr, "it is in the pass twice");
    }
    free(list);
    return rc;
}

/* ---- all ---- */

static int check_bytes(const struct aq_program *p, const uint64_t *want, struct aq_err *reterr)
{
    uint64_t found[AQ_TIER_COUNT] = {0};
    for (uint32_t s = 0; s < p->slot_count; s++)
        found[p->slot[s].tier] += p->slot[s].bytes;
    for (uint32_t t = 0; t < AQ_TIER_COUNT; t++) {
        if (found[t] != want[t])
            return aq_error(
                reterr, -EPROTO, "program: slots on the %s tier: expected %llu bytes, found %llu",
                aq_tier_name(t), (unsigned long long)want[t], (unsigned long long)found[t]);
    }
    return 0;
}

int aq_program_check_form(const struct aq_program *p, const struct aq_check_opts *opts,
                          struct aq_err *reterr)
{
    static const struct aq_check_opts none;
    assert(p);
    opts = opts ? opts : &none;
    int rc = check_slots(p, reterr);
    bool separate = false;
    for (uint32_t s = 0; rc == 0 && s < p->slot_count; s++)
        separate |= p->slot[s].tier == AQ_DEVICE;
    for (uint32_t i = 0; rc == 0 && i < p->op_count; i++) {
        rc = check_op(p, i, reterr);
        if (rc == 0)
            rc = check_uses(p, i, separate, reterr);
        if (rc == 0 && !uses_fit(p, &p->op[i]))
            rc = aq_check_fault(p, i, reterr, "it does not use what ops of its kind work on");
    }
    if (rc == 0)
        rc = check_once(p, reterr);
    if (rc == 0)
        rc = aq_check_moves(p, opts, reterr);
    if (rc == 0 && opts->slot_bytes)
        rc = check_bytes(p, opts->slot_bytes, reterr);
    return rc;
}
