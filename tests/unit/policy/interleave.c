/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/policy/interleave.h"

#include "base/prng.h"
#include "tests/test.h"

#include <stdlib.h>

enum { PASSES = 3, RUNNING_MAX = 64, EMPTY = -100 };

struct cell {
    struct aq_tag tag;
    int pass; /* EMPTY: nothing there */
    uint32_t readers, writers;
    bool unread; /* written, and not taken note of since */
};

struct play {
    const struct aq_program *p;
    struct cell *cell;
    uint8_t *ended;               /* [op]: bit p: its op of pass p */
    uint32_t next[AQ_LANE_COUNT]; /* instance: pass * ops + op, at the lane's head */
    uint32_t running_on[AQ_LANE_COUNT];
    uint32_t running[RUNNING_MAX], running_count;
    uint64_t seed, draws;
    bool bad;
};

static bool same(const struct aq_tag *need, int pass, const struct cell *c)
{
    if (c->pass == EMPTY || need->object != c->tag.object || need->index != c->tag.index ||
        need->micro_batch != c->tag.micro_batch || need->part != c->tag.part)
        return false;
    return need->object == AQ_OBJECT_WEIGHTS || need->pass + pass == c->pass;
}

static void put(struct cell *c, const struct aq_tag *tag, int pass)
{
    c->tag = *tag;
    c->pass = tag->pass + pass;
}

static void start(struct play *y, uint32_t n)
{
    const struct aq_op *op = &y->p->op[n % y->p->op_count];
    for (uint32_t u = 0; u < op->use_count; u++) {
        const struct aq_use *use = &aq_op_uses(y->p, op)[u];
        struct cell *c = &y->cell[use->slot];
        bool write = use->mode != AQ_USE_READ;
        y->bad |= c->writers > 0 || (write && c->readers > 0);
        if (use->mode != AQ_USE_WRITE)
            y->bad |= !same(&use->need, (int)(n / y->p->op_count), c);
        else
            y->bad |= c->unread && y->p->slot[use->slot].slot_class != AQ_SLOT_LOGITS &&
                      y->p->slot[use->slot].slot_class != AQ_SLOT_KV_PREFILL;
        c->unread = write;
        *(write ? &c->writers : &c->readers) += 1;
    }
    assert_true(y->running_count < RUNNING_MAX);
    y->running[y->running_count++] = n;
    y->running_on[op->lane]++;
}

static void end(struct play *y, uint32_t at)
{
    uint32_t n = y->running[at], i = n % y->p->op_count;
    const struct aq_op *op = &y->p->op[i];
    for (uint32_t u = 0; u < op->use_count; u++) {
        const struct aq_use *use = &aq_op_uses(y->p, op)[u];
        struct cell *c = &y->cell[use->slot];
        bool write = use->mode != AQ_USE_READ;
        *(write ? &c->writers : &c->readers) -= 1;
        if (write)
            put(c, &use->leave, (int)(n / y->p->op_count));
    }
    y->ended[i] |= (uint8_t)(1 << n / y->p->op_count);
    y->running_on[op->lane]--;
    y->running[at] = y->running[--y->running_count];
}

static bool can_start(const struct play *y, uint32_t lane)
{
    uint32_t n = y->next[lane], ops = y->p->op_count;
    if (n >= PASSES * ops || (aq_lane_in_order(lane) && y->running_on[lane]))
        return false;
    uint32_t pass = n / ops;
    const struct aq_op *op = &y->p->op[n % ops];
    for (uint32_t d = 0; d < op->dep_count; d++) {
        const struct aq_dep *dep = &aq_op_deps(y->p, op)[d];
        if (dep->back <= pass && !(y->ended[dep->op] >> (pass - dep->back) & 1))
            return false;
    }
    return true;
}

static void advance(struct play *y, uint32_t lane)
{
    uint32_t ops = y->p->op_count;
    do
        y->next[lane]++;
    while (y->next[lane] < PASSES * ops && y->p->op[y->next[lane] % ops].lane != lane);
}

static void open_play(struct play *y, const struct aq_program *p)
{
    y->p = p;
    y->cell = calloc(p->slot_count + 1, sizeof(*y->cell));
    y->ended = calloc(p->op_count + 1, 1);
    assert_non_null(y->cell);
    assert_non_null(y->ended);
    for (uint32_t s = 0; s < p->slot_count; s++)
        y->cell[s].pass = EMPTY;
    /* Rows and KV are there from the start, as the pass before the first leaves them. */
    for (uint32_t i = 0; i < p->use_count; i++) {
        uint8_t c = p->slot[p->use[i].slot].slot_class;
        if (p->use[i].mode != AQ_USE_READ && (c == AQ_SLOT_ROWS || c == AQ_SLOT_KV))
            put(&y->cell[p->use[i].slot], &p->use[i].leave, -1);
    }
    for (uint32_t lane = 0; lane < AQ_LANE_COUNT; lane++) {
        y->next[lane] = UINT32_MAX;
        advance(y, lane);
    }
}

static uint32_t draw(struct play *y, uint32_t n)
{
    return (uint32_t)aq_prng_below(y->seed, y->draws++, 0, n);
}

/* One start or end; false: nothing can go on.  Freezing starts all it can before it ends any. */
static bool step(struct play *y, const struct interleaving *how)
{
    uint32_t lanes[AQ_LANE_COUNT], count = 0;
    for (uint32_t lane = 0; lane < AQ_LANE_COUNT; lane++) {
        if (can_start(y, lane) && y->running_count < RUNNING_MAX)
            lanes[count++] = lane;
    }
    bool freezes = how->frozen_op != UINT32_MAX;
    uint32_t frozen = how->frozen_pass * y->p->op_count + how->frozen_op;
    uint32_t ends[RUNNING_MAX], end_count = 0;
    for (uint32_t r = 0; r < y->running_count; r++) {
        if (!freezes || y->running[r] != frozen)
            ends[end_count++] = r;
    }
    if (count == 0 && end_count == 0 && y->running_count)
        ends[end_count++] = 0; /* the frozen one, at last */
    if (count == 0 && end_count == 0)
        return false;
    bool starts = count && (freezes || end_count == 0 || draw(y, 3) > 0);
    if (!starts) {
        end(y, ends[freezes ? 0 : draw(y, end_count)]);
        return true;
    }
    uint32_t lane = lanes[freezes ? 0 : draw(y, count)];
    start(y, y->next[lane]);
    advance(y, lane);
    return true;
}

static void play_serially(struct play *y)
{
    for (uint32_t n = 0; n < PASSES * y->p->op_count && !y->bad; n++) {
        start(y, n);
        end(y, 0);
    }
}

bool interleave(const struct aq_program *p, const struct interleaving *how)
{
    struct play y = {.seed = how->seed};
    open_play(&y, p);
    if (how->serial) {
        play_serially(&y);
    } else {
        while (!y.bad && step(&y, how))
            ;
        for (uint32_t lane = 0; lane < AQ_LANE_COUNT; lane++)
            y.bad |= y.next[lane] < PASSES * p->op_count;
    }
    free(y.cell);
    free(y.ended);
    return !y.bad;
}

bool interleave_all(const struct aq_program *p, uint64_t seed, uint32_t samples)
{
    struct interleaving how = {.frozen_op = UINT32_MAX, .serial = true};
    if (!interleave(p, &how))
        return false;
    how.serial = false;
    for (how.seed = seed; how.seed < seed + samples; how.seed++) {
        if (!interleave(p, &how))
            return false;
    }
    for (how.frozen_pass = 0; how.frozen_pass < PASSES; how.frozen_pass++) {
        for (how.frozen_op = 0; how.frozen_op < p->op_count; how.frozen_op++) {
            if (!interleave(p, &how))
                return false;
        }
    }
    return true;
}
