/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/checker.h"

#include "policy/seats.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Edges point forward in (pass, index) and reach at most one pass back, so that two passes show
 * every order there is; the third sees tags that are a pass too old. */
enum { CHECK_PASSES = 3 };

/* An op of an unrolled pass: pass * op_count + op. */
typedef uint32_t instance;

enum { NOBODY = UINT32_MAX };

struct reader {
    instance by;
    uint32_t next; /* index of another reader of the slot, or NOBODY */
};

struct content {
    struct aq_tag tag; /* .pass counts from the first pass */
    bool known, unread;
    instance writer;  /* the last one, or NOBODY */
    uint32_t readers; /* since then: index of the first, or NOBODY */
};

/* Only starts need clocks.  An op has ended before b starts exactly if an op that waits for that
 * end (through a dep, or as the next op of an in-order lane) has started by then.  Of these waiting
 * ops the first one of each lane is enough, because lanes start in order. */
struct flow {
    const struct aq_program *p;
    uint32_t lane_ops[AQ_LANE_COUNT];
    uint32_t *place;                 /* [op]: how many ops of its lane come before it */
    uint32_t (*heir)[AQ_LANE_COUNT]; /* [op]: place of the first to wait for its end, in its pass */
    uint32_t (*clock)[AQ_LANE_COUNT]; /* [instance]: ops of a lane started when it starts */
    struct content *slot;
    struct reader *reader;
    uint32_t reader_count;
};

static const char *slot_text(char *dst, size_t dst_bytes, const struct aq_program *p, uint32_t slot)
{
    uint8_t c = p->slot[slot].slot_class;
    snprintf(dst, dst_bytes, "%s slot %u", aq_slot_class_name(c), slot - p->first[c]);
    return dst;
}

static const char *tag_text(char *dst, size_t dst_bytes, const struct aq_tag *t, uint32_t pass)
{
    if (t->object == AQ_OBJECT_WEIGHTS) {
        snprintf(dst, dst_bytes, "weights %u", t->index);
        return dst;
    }
    int age = (int)pass - t->pass;
    snprintf(dst, dst_bytes, "%s of step %u, micro-batch %u, part %u, %s",
             aq_object_name(t->object), t->index, t->micro_batch, t->part,
             age == 0   ? "this pass"
             : age == 1 ? "the pass before"
                        : "an older pass");
    return dst;
}

/* ---- happens-before ---- */

static void inherit(struct flow *f, uint32_t op, uint32_t by, uint32_t passes)
{
    uint32_t lane = f->p->op[by].lane;
    uint32_t place = f->place[by] + passes * f->lane_ops[lane];
    if (place < f->heir[op][lane])
        f->heir[op][lane] = place;
}

static void find_heirs(struct flow *f)
{
    const struct aq_program *p = f->p;
    for (uint32_t i = 0; i < p->op_count; i++)
        f->place[i] = f->lane_ops[p->op[i].lane]++;
    for (uint32_t i = 0; i < p->op_count; i++) {
        for (uint32_t lane = 0; lane < AQ_LANE_COUNT; lane++)
            f->heir[i][lane] = NOBODY;
        uint32_t lane = p->op[i].lane;
        if (aq_lane_in_order(lane))
            f->heir[i][lane] = f->place[i] + 1;
    }
    for (uint32_t i = 0; i < p->op_count; i++) {
        const struct aq_op *op = &p->op[i];
        for (uint32_t d = 0; d < op->dep_count; d++) {
            const struct aq_dep *dep = &aq_op_deps(p, op)[d];
            inherit(f, dep->op, i, dep->back);
        }
    }
}

static void join(uint32_t *clock, const uint32_t *other)
{
    for (uint32_t lane = 0; lane < AQ_LANE_COUNT; lane++) {
        if (other[lane] > clock[lane])
            clock[lane] = other[lane];
    }
}

static void set_clocks(struct flow *f)
{
    const struct aq_program *p = f->p;
    instance last[AQ_LANE_COUNT];
    for (uint32_t lane = 0; lane < AQ_LANE_COUNT; lane++)
        last[lane] = NOBODY;
    for (instance n = 0; n < CHECK_PASSES * p->op_count; n++) {
        uint32_t pass = n / p->op_count, i = n % p->op_count;
        const struct aq_op *op = &p->op[i];
        if (last[op->lane] != NOBODY)
            join(f->clock[n], f->clock[last[op->lane]]);
        for (uint32_t d = 0; d < op->dep_count; d++) {
            const struct aq_dep *dep = &aq_op_deps(p, op)[d];
            if (dep->back <= pass)
                join(f->clock[n], f->clock[(pass - dep->back) * p->op_count + dep->op]);
        }
        f->clock[n][op->lane] = pass * f->lane_ops[op->lane] + f->place[i] + 1;
        last[op->lane] = n;
    }
}

/* Has a ended whenever b starts? */
static bool is_before(const struct flow *f, instance a, instance b)
{
    uint32_t pass = a / f->p->op_count, op = a % f->p->op_count;
    for (uint32_t lane = 0; lane < AQ_LANE_COUNT; lane++) {
        uint32_t heir = f->heir[op][lane];
        if (heir != NOBODY && pass * f->lane_ops[lane] + heir < f->clock[b][lane])
            return true;
    }
    return false;
}

/* ---- slots ---- */

static int check_order(const struct flow *f, instance a, instance b, uint32_t slot,
                       struct aq_err *reterr)
{
    if (is_before(f, a, b))
        return 0;
    const struct aq_program *p = f->p;
    char first[160], second[160], where[64];
    aq_op_describe(first, sizeof(first), p, a % p->op_count);
    aq_op_describe(second, sizeof(second), p, b % p->op_count);
    slot_text(where, sizeof(where), p, slot);
    return aq_error(
        reterr, -EPROTO,
        "program: %s and %s%s both use %s, one of them to write it: expected the second "
        "to wait for the first, found that nothing makes it",
        first, second, a / p->op_count == b / p->op_count ? "" : " of the next pass", where);
}

static bool tag_fits(const struct aq_tag *need, uint32_t pass, const struct aq_tag *found)
{
    return need->object == found->object && need->micro_batch == found->micro_batch &&
           need->part == found->part && need->index == found->index &&
           (need->object == AQ_OBJECT_WEIGHTS || (int)pass + need->pass == found->pass);
}

static int check_tag(const struct flow *f, instance n, const struct aq_use *use,
                     struct aq_err *reterr)
{
    const struct aq_program *p = f->p;
    const struct content *c = &f->slot[use->slot];
    uint32_t pass = n / p->op_count;
    if (c->known && tag_fits(&use->need, pass, &c->tag))
        return 0;
    char who[160], where[64], need[128], found[128] = "nothing", writer[160];
    struct aq_tag wanted = use->need;
    wanted.pass = (int8_t)(wanted.pass + (int)pass);
    aq_op_describe(who, sizeof(who), p, n % p->op_count);
    slot_text(where, sizeof(where), p, use->slot);
    tag_text(need, sizeof(need), &wanted, pass);
    if (c->known)
        tag_text(found, sizeof(found), &c->tag, pass);
    bool written = c->known && c->writer != NOBODY;
    if (written)
        aq_op_describe(writer, sizeof(writer), p, c->writer % p->op_count);
    return aq_error(reterr, -EPROTO, "program: %s, %s: expected %s in %s, found %s%s%s", who,
                    pass ? "in a later pass" : "in the first pass", need, where, found,
                    written ? ", left by " : "", written ? writer : "");
}

/* Are slots of this class scratch: written and read by one op, and by no later one? */
static bool is_scratch(uint8_t slot_class)
{
    return slot_class == AQ_SLOT_LOGITS || slot_class == AQ_SLOT_KV_PREFILL;
}

/* A slot that no op has read is not overwritten: its object would be lost, or made for nothing. */
static int check_loss(const struct flow *f, instance n, const struct aq_use *use,
                      struct aq_err *reterr)
{
    const struct aq_program *p = f->p;
    const struct content *c = &f->slot[use->slot];
    if (!c->unread || is_scratch(p->slot[use->slot].slot_class))
        return 0;
    char who[160], where[64], found[128], writer[160];
    aq_op_describe(who, sizeof(who), p, n % p->op_count);
    aq_op_describe(writer, sizeof(writer), p, c->writer % p->op_count);
    slot_text(where, sizeof(where), p, use->slot);
    tag_text(found, sizeof(found), &c->tag, n / p->op_count);
    return aq_error(reterr, -EPROTO,
                    "program: %s overwrites %s: expected that somebody had read it, found %s as %s "
                    "left it",
                    who, where, found, writer);
}

static void leave(struct content *c, const struct aq_use *use, uint32_t pass)
{
    c->tag = use->leave;
    c->tag.pass = (int8_t)(c->tag.pass + (int)pass);
    c->known = true;
}

static int play_use(struct flow *f, instance n, const struct aq_use *use, struct aq_err *reterr)
{
    struct content *c = &f->slot[use->slot];
    int rc = 0;
    if (use->mode != AQ_USE_WRITE)
        rc = check_tag(f, n, use, reterr);
    if (rc == 0 && c->writer != NOBODY)
        rc = check_order(f, c->writer, n, use->slot, reterr);
    if (rc == 0 && use->mode == AQ_USE_WRITE)
        rc = check_loss(f, n, use, reterr);
    if (rc < 0)
        return rc;
    if (use->mode == AQ_USE_READ) {
        c->unread = false;
        f->reader[f->reader_count] = (struct reader){.by = n, .next = c->readers};
        c->readers = f->reader_count++;
        return 0;
    }
    for (uint32_t r = c->readers; r != NOBODY; r = f->reader[r].next) {
        rc = check_order(f, f->reader[r].by, n, use->slot, reterr);
        if (rc < 0)
            return rc;
    }
    c->readers = NOBODY;
    c->writer = n;
    c->unread = true;
    leave(c, use, n / f->p->op_count);
    return 0;
}

/* The slots before the first pass: rows and KV as a pass leaves them, all others empty.  A program
 * that needs more could not run its first pass. */
static void enter(struct flow *f)
{
    const struct aq_program *p = f->p;
    for (uint32_t s = 0; s < p->slot_count; s++)
        f->slot[s] = (struct content){.writer = NOBODY, .readers = NOBODY};
    for (uint32_t i = 0; i < p->op_count; i++) {
        for (uint32_t u = 0; u < p->op[i].use_count; u++) {
            const struct aq_use *use = &aq_op_uses(p, &p->op[i])[u];
            if (use->mode != AQ_USE_READ)
                leave(&f->slot[use->slot], use, 0);
        }
    }
    for (uint32_t s = 0; s < p->slot_count; s++) {
        struct content *c = &f->slot[s];
        bool stays = c->tag.object == AQ_OBJECT_ROWS || c->tag.object == AQ_OBJECT_KV;
        bool home = p->slot[s].slot_class == AQ_SLOT_ROWS || p->slot[s].slot_class == AQ_SLOT_KV;
        c->known = c->known && stays && home;
        c->tag.pass--;
    }
}

static int play(struct flow *f, struct aq_err *reterr)
{
    const struct aq_program *p = f->p;
    enter(f);
    for (instance n = 0; n < CHECK_PASSES * p->op_count; n++) {
        const struct aq_op *op = &p->op[n % p->op_count];
        for (uint32_t u = 0; u < op->use_count; u++) {
            int rc = play_use(f, n, &aq_op_uses(p, op)[u], reterr);
            if (rc < 0)
                return rc;
        }
    }
    return 0;
}

/* ---- pages that sequences share ---- */

static int lends_late(const struct aq_program *p, uint32_t lender, uint32_t borrower,
                      const char *when, struct aq_err *reterr)
{
    char first[160], second[160];
    aq_op_describe(first, sizeof(first), p, lender);
    aq_op_describe(second, sizeof(second), p, borrower);
    return aq_error(reterr, -EPROTO,
                    "program: a prompt of %s%s may begin with pages that %s writes: expected the "
                    "first to wait for the second, found that nothing makes it",
                    second, when, first);
}

/* Are prompts of a part attended one micro-batch after the other in each step, in the order that
 * lends pages? */
static int check_lenders(const struct flow *f, const struct aq_plan *plan, struct aq_err *reterr)
{
    const struct aq_program *p = f->p;
    uint32_t parts = plan->part_count, steps = 0;
    for (uint32_t i = 0; i < p->op_count; i++)
        steps = p->op[i].step >= steps ? p->op[i].step + 1 : steps;
    size_t places = (size_t)steps * parts;
    uint32_t *first = malloc((2 * places + 1) * sizeof(*first));
    if (!first)
        return aq_error_memory(reterr, "checker: %u steps", steps);
    uint32_t *last = first + places;
    memset(first, 0xff, 2 * places * sizeof(*first)); /* NOBODY */
    int rc = 0;
    for (uint32_t i = 0; i < p->op_count && rc == 0; i++) {
        const struct aq_op *op = &p->op[i];
        if (op->kind != AQ_OP_ATTN_PREFILL || !aq_seats_shares(plan, &plan->part[op->part]))
            continue;
        size_t place = (size_t)op->step * parts + op->part;
        uint32_t before = last[place];
        bool ascends =
            before == NOBODY || plan->alternate || p->op[before].micro_batch < op->micro_batch;
        if (before == NOBODY)
            first[place] = i;
        else if (!ascends)
            rc = lends_late(p, i, before, "", reterr);
        else if (!is_before(f, before, i))
            rc = lends_late(p, before, i, "", reterr);
        last[place] = i;
    }
    for (size_t i = 0; i < places && rc == 0; i++) {
        if (first[i] != NOBODY && !is_before(f, last[i], first[i] + p->op_count))
            rc = lends_late(p, last[i], first[i], " of the next pass", reterr);
    }
    free(first);
    return rc;
}

int aq_program_check_flow(const struct aq_program *p, const struct aq_check_opts *opts,
                          struct aq_err *reterr)
{
    assert(p);
    assert((uint64_t)CHECK_PASSES * p->op_count < NOBODY);
    assert((uint64_t)CHECK_PASSES * p->use_count < NOBODY);
    size_t instances = CHECK_PASSES * (size_t)p->op_count,
           uses = CHECK_PASSES * (size_t)p->use_count;
    struct flow f = {
        .p = p,
        .place = calloc(p->op_count + 1, sizeof(*f.place)),
        .heir = calloc(p->op_count + 1, sizeof(*f.heir)),
        .clock = calloc(instances + 1, sizeof(*f.clock)),
        .slot = calloc(p->slot_count + 1, sizeof(*f.slot)),
        .reader = calloc(uses + 1, sizeof(*f.reader)),
    };
    int rc;
    if (!f.place || !f.heir || !f.clock || !f.slot || !f.reader) {
        rc = aq_error_memory(reterr, "checker: a program of %u ops", p->op_count);
    } else {
        find_heirs(&f);
        set_clocks(&f);
        rc = play(&f, reterr);
        if (rc == 0 && opts && opts->plan)
            rc = check_lenders(&f, opts->plan, reterr);
    }
    free(f.place);
    free(f.heir);
    free(f.clock);
    free(f.slot);
    free(f.reader);
    return rc;
}

int aq_program_check(const struct aq_program *p, const struct aq_check_opts *opts,
                     struct aq_err *reterr)
{
    int rc = aq_program_check_form(p, opts, reterr);
    return rc < 0 ? rc : aq_program_check_flow(p, opts, reterr);
}
