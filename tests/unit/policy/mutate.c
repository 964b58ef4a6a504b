/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/policy/mutate.h"

#include "base/prng.h"
#include "tests/test.h"

#include <string.h>

const char *mutation_name(enum mutation m)
{
    static const char *const names[MUTATION_COUNT] = {
        "drop dep",  "redirect dep",    "flip back", "swap slots",   "any slot", "skip op",
        "skip load", "swap neighbours", "move op",   "move in lane", "tag",      "lane",
        "mode",      "drop use",        "identity",  "shrink ring",
    };
    return names[m];
}

struct dice {
    uint64_t seed, rolls;
};

static uint32_t roll(struct dice *d, uint32_t n)
{
    return (uint32_t)aq_prng_below(d->seed, d->rolls++, 7, n);
}

static struct aq_op *op_of_use(struct aq_program *p, uint32_t use)
{
    for (uint32_t i = 0; i < p->op_count; i++) {
        struct aq_op *op = &p->op[i];
        if (use >= op->use_first && use < op->use_first + op->use_count)
            return op;
    }
    return NULL;
}

static struct aq_op *op_of_dep(struct aq_program *p, uint32_t dep)
{
    for (uint32_t i = 0; i < p->op_count; i++) {
        struct aq_op *op = &p->op[i];
        if (dep >= op->dep_first && dep < op->dep_first + op->dep_count)
            return op;
    }
    return NULL;
}

static void drop_dep(struct aq_program *p, struct aq_op *op, uint32_t dep)
{
    p->dep[dep] = p->dep[op->dep_first + op->dep_count - 1];
    op->dep_count--;
}

static bool change_dep(struct aq_program *p, enum mutation m, struct dice *d)
{
    if (!p->dep_count)
        return false;
    uint32_t dep = roll(d, p->dep_count);
    struct aq_op *op = op_of_dep(p, dep);
    if (!op)
        return false;
    if (m == MUTATE_DROP_DEP)
        drop_dep(p, op, dep);
    else if (m == MUTATE_FLIP_BACK)
        p->dep[dep].back ^= 1;
    else
        p->dep[dep].op = roll(d, p->op_count);
    return true;
}

static bool swap_slots(struct aq_program *p, struct dice *d)
{
    uint32_t a = roll(d, p->use_count), b = roll(d, p->use_count);
    uint32_t slot_a = p->use[a].slot, slot_b = p->use[b].slot;
    if (slot_a == slot_b || p->slot[slot_a].slot_class != p->slot[slot_b].slot_class)
        return false;
    p->use[a].slot = slot_b;
    p->use[b].slot = slot_a;
    return true;
}

static bool any_slot(struct aq_program *p, struct dice *d)
{
    struct aq_use *use = &p->use[roll(d, p->use_count)];
    uint32_t c = p->slot[use->slot].slot_class, before = use->slot;
    use->slot = p->first[c] + roll(d, p->first[c + 1] - p->first[c]);
    return use->slot != before;
}

void mutate_move(struct aq_program *p, uint32_t from, uint32_t to)
{
    struct aq_op op = p->op[from];
    memmove(p->op + from, p->op + from + 1, (p->op_count - from - 1) * sizeof(op));
    memmove(p->op + to + 1, p->op + to, (p->op_count - to - 1) * sizeof(op));
    p->op[to] = op;
    for (uint32_t d = 0; d < p->dep_count; d++) {
        uint32_t on = p->dep[d].op;
        if (on == from)
            p->dep[d].op = to;
        else
            p->dep[d].op = on - (on > from) + (on - (on > from) >= to);
    }
}

static bool skip_op(struct aq_program *p, uint32_t i)
{
    mutate_move(p, i, p->op_count - 1);
    p->op_count--;
    for (uint32_t o = 0; o < p->op_count; o++) {
        struct aq_op *op = &p->op[o];
        for (uint32_t d = op->dep_count; d-- > 0;) {
            if (p->dep[op->dep_first + d].op == p->op_count)
                drop_dep(p, op, op->dep_first + d);
        }
    }
    return true;
}

static bool skip_load(struct aq_program *p, struct dice *d)
{
    uint32_t i = roll(d, p->op_count);
    bool load = p->op[i].object == AQ_OBJECT_WEIGHTS && p->op[i].kind <= AQ_OP_D2H;
    return load && skip_op(p, i);
}

static bool move_in_lane(struct aq_program *p, struct dice *d)
{
    uint32_t i = roll(d, p->op_count), to = i + 1;
    while (to < p->op_count && p->op[to].lane != p->op[i].lane)
        to++;
    if (to == p->op_count)
        return false;
    mutate_move(p, i, to);
    return true;
}

static bool change_tag(struct aq_program *p, struct dice *d)
{
    struct aq_use *use = &p->use[roll(d, p->use_count)];
    bool left = use->mode == AQ_USE_WRITE || (use->mode == AQ_USE_UPDATE && roll(d, 2));
    struct aq_tag *tag = left ? &use->leave : &use->need;
    switch (roll(d, 5)) {
    case 0: tag->object = (uint8_t)roll(d, AQ_OBJECT_COUNT); break;
    case 1: tag->pass = (int8_t)(tag->pass + (roll(d, 2) ? 1 : -1)); break;
    case 2: tag->micro_batch = (uint16_t)roll(d, p->micro_batches); break;
    case 3: tag->part = (uint16_t)roll(d, p->parts); break;
    default: tag->index = tag->index + (roll(d, 2) ? 1 : UINT32_MAX); break;
    }
    return true;
}

static bool change_identity(struct aq_program *p, struct dice *d)
{
    struct aq_op *op = &p->op[roll(d, p->op_count)];
    switch (roll(d, 6)) {
    case 0: op->step += roll(d, 2) ? 1 : UINT32_MAX; break;
    case 1: op->micro_batch = (uint16_t)roll(d, p->micro_batches); break;
    case 2: op->part = (uint16_t)roll(d, p->parts); break;
    case 3: op->chunk += 1; break;
    case 4: op->stage += 1; break;
    default: op->workspace += 1; break;
    }
    return true;
}

static bool drop_use(struct aq_program *p, struct dice *d)
{
    uint32_t use = roll(d, p->use_count);
    struct aq_op *op = op_of_use(p, use);
    if (!op)
        return false;
    p->use[use] = p->use[op->use_first + op->use_count - 1];
    op->use_count--;
    return true;
}

static bool shrink_ring(struct aq_program *p)
{
    uint32_t first = p->first[AQ_SLOT_RING], ring = p->first[AQ_SLOT_RING + 1] - first;
    if (ring < 2)
        return false;
    for (uint32_t u = 0; u < p->use_count; u++) {
        struct aq_use *use = &p->use[u];
        if (p->slot[use->slot].slot_class == AQ_SLOT_RING)
            use->slot = first + (use->slot - first) % (ring - 1);
    }
    return true;
}

bool mutate(struct aq_program *p, enum mutation m, uint64_t seed)
{
    struct dice d = {.seed = seed};
    uint32_t i = roll(&d, p->op_count), j = roll(&d, p->op_count);
    switch (m) {
    case MUTATE_DROP_DEP:
    case MUTATE_REDIRECT_DEP:
    case MUTATE_FLIP_BACK: return change_dep(p, m, &d);
    case MUTATE_SWAP_SLOTS: return swap_slots(p, &d);
    case MUTATE_ANY_SLOT: return any_slot(p, &d);
    case MUTATE_SKIP_OP: return skip_op(p, i);
    case MUTATE_SKIP_LOAD: return skip_load(p, &d);
    case MUTATE_SWAP_NEIGHBOURS:
        if (i + 1 < p->op_count)
            mutate_move(p, i, i + 1);
        return i + 1 < p->op_count;
    case MUTATE_MOVE_OP: mutate_move(p, i, j); return i != j;
    case MUTATE_MOVE_IN_LANE: return move_in_lane(p, &d);
    case MUTATE_TAG: return change_tag(p, &d);
    case MUTATE_LANE: p->op[i].lane = (uint8_t)roll(&d, AQ_LANE_COUNT); return true;
    case MUTATE_MODE: p->use[roll(&d, p->use_count)].mode = (uint8_t)roll(&d, 3); return true;
    case MUTATE_DROP_USE: return drop_use(p, &d);
    case MUTATE_IDENTITY: return change_identity(p, &d);
    case MUTATE_SHRINK_RING: return shrink_ring(p);
    case MUTATION_COUNT: break;
    }
    fail_msg("no such mutation");
    return false;
}
