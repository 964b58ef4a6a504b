/* SPDX-License-Identifier: Apache-2.0
 * Prompts that begin alike, over random jobs in pools that are too small for all seats: sequences
 * share pages that hold the same tokens and no others, admission takes as many as fit when each
 * page counts once, and there is always a page.  On disk each run is written once and read once in
 * a pass for all who share it, and what is read are the sequence's own tokens, whoever has ended in
 * between.  Behind a link parts and micro-batches share what is home by then, and each part loads
 * it once.
 *
 * Passes are played in the memory of the pages: rows leave their tokens there, layer by layer in
 * the order in which micro-batches are visited, and all that a sequence reads must be its own
 * tokens still.  Rows of a part that share pages stand side by side.
 *
 * Known to fail it: a page that its first user's end frees; a seat that lends to lower ones, or
 * with --alternate to another micro-batch, in the pass that computes its prompt; one that lends to
 * another part behind a link in that pass or the next; pages of a prefix that do not pass to the
 * next in the order as one leaves; a prefix that is one page too long; an admission that counts one
 * page too few. */
#include "base/mem.h"
#include "base/prng.h"
#include "engine/exec/kv_pages.h"
#include "policy/seats.h"
#include "policy/traffic.h"
#include "tests/test.h"
#include "tests/unit/policy/plans.h"

#include <stdlib.h>
#include <string.h>

enum { DRAWS = TEST_SLOW ? 60 : 400, SEQUENCES = 60, PROMPT = 560, NEW = 140, LAYERS = 2 };

struct rig {
    uint64_t seed;
    bool share;
    uint32_t longest; /* tokens of a sequence: of so many that pages have several runs, or one */
    struct aq_model_steps steps;
    struct aq_block block;
    struct aq_mem *mem;
    struct aq_device *device;
    struct aq_kv *kv;
    struct aq_seats seats;
    struct aq_seats_arrays at;
    struct one {
        uint32_t prompt, max_new, token[PROMPT];
    } one[SEQUENCES];
    uint32_t waiting, ended, now[SEQUENCES]; /* the next one; how many are over; by seat */
    uint32_t passes;
    uint64_t across; /* tokens of prompts in other parts or micro-batches that were not computed */
    uint64_t shared, copied, taken; /* tokens that were not computed; those of them copied, and
                                       those that an ended sequence left */
    uint64_t *disk;                 /* what was written to each run of the scratch file; 0: none */
    uint64_t moved, brought;        /* runs read and written; runs that another seat brought */
    uint64_t reads;                 /* slots that were read back */
    uint32_t row[SEQUENCES], rows;  /* of the pass: seats that decode, as they were bound */
    uint64_t beside, by_seat;       /* slots that rows share with the one in front; if rows were in
                                       the order of seats */
    uint32_t nearest;               /* pages of the pool that the worst pass to come would leave */
};

static uint32_t roll(const struct rig *r, uint64_t what, uint64_t i, uint32_t below)
{
    return (uint32_t)aq_prng_below(r->seed, what, i, below);
}

/* Most begin as an earlier one does, some as far as that goes. */
static void draw_one(struct rig *r, uint32_t i)
{
    struct one *o = &r->one[i];
    o->prompt = 1 + roll(r, 1, i, r->longest - NEW);
    o->max_new = 1 + roll(r, 2, i, NEW);
    const struct one *from = &r->one[i && roll(r, 3, i, 5) ? roll(r, 4, i, i) : i];
    uint32_t same = from->prompt < o->prompt ? from->prompt : o->prompt;
    same = from == o ? 0 : roll(r, 5, i, 2) ? same : roll(r, 6, i, same + 1);
    memcpy(o->token, from->token, same * sizeof(*o->token));
    for (uint32_t t = same; t < o->prompt; t++)
        o->token[t] = i * 1000 + t;
}

static uint32_t alike(const struct one *a, const struct one *b)
{
    uint32_t n = 0;
    while (n < a->prompt && n < b->prompt && a->token[n] == b->token[n])
        n++;
    return n;
}

static bool next_waiting(void *user, struct aq_sitter *ret)
{
    const struct rig *r = user;
    if (r->waiting == SEQUENCES)
        return false;
    const struct one *o = &r->one[r->waiting];
    *ret = (struct aq_sitter){.prompt = o->prompt, .max_new = o->max_new};
    ret->shares = r->share ? o->prompt : 0;
    if (roll(r, 9, r->waiting, 4) == 0) /* it goes on from tokens of an earlier run */
        ret->given = roll(r, 10, r->waiting, o->max_new);
    return true;
}

static uint32_t begins_alike(void *user, uint32_t from, uint32_t known)
{
    const struct rig *r = user;
    (void)known;
    return alike(&r->one[r->waiting], &r->one[r->now[from]]);
}

/* Are two seats of one part and micro-batch? */
static bool side_by_side(const struct rig *r, uint32_t a, uint32_t b)
{
    const struct aq_plan *plan = &r->block.plan;
    return a / plan->shape.micro_batch == b / plan->shape.micro_batch &&
           aq_seats_part(plan, a) == aq_seats_part(plan, b);
}

static void has_sat(void *user, uint32_t seat)
{
    struct rig *r = user;
    const struct aq_seat *t = &r->seats.seat[seat];
    r->now[seat] = r->waiting++;
    r->shared += t->prefix;
    bool near =
        t->from / r->block.plan.shape.micro_batch == seat / r->block.plan.shape.micro_batch &&
        aq_seats_part(&r->block.plan, t->from) == aq_seats_part(&r->block.plan, seat);
    r->across += near ? 0 : t->prefix;
    r->taken += t->takes ? t->prefix : 0;
    r->copied += t->takes ? 0 : t->prefix - aq_seat_shared_slots(&r->block.plan, t);
    if (t->takes)
        aq_kv_take(r->kv, seat, t->from, (uint32_t)aq_div_up(t->prefix, AQ_HEAD_BLOCK_SLOTS));
}

/* Some end before their time. */
static bool has_ended(void *user, uint32_t seat)
{
    struct rig *r = user;
    const struct aq_seat *t = &r->seats.seat[seat];
    if (!t->seen || (t->seen < t->last && roll(r, 7, r->now[seat] * 1000ull + t->seen, 40)))
        return false;
    r->ended++;
    return true;
}

static void is_gone(void *user, uint32_t seat)
{
    aq_kv_release(((struct rig *)user)->kv, seat);
}

static void bound(void *user, uint32_t seat)
{
    struct rig *r = user;
    const struct aq_seat *t = &r->seats.seat[seat];
    uint32_t shared = aq_seat_shared_slots(&r->block.plan, t);
    if (shared && t->seen == t->prompt)
        aq_kv_share(r->kv, seat, t->from, shared / AQ_HEAD_BLOCK_SLOTS);
    for (uint32_t k = 0; k < r->block.plan.kinds.count; k++)
        aq_kv_grow(r->kv, seat, k, aq_seat_kv_runs(&t->kv[k], t->kv[k].most));
    if (t->seen > t->prompt)
        r->row[r->rows++] = seat;
}

/* link: KV passes from this tier through the stages of a separate device. */
static void open_rig(struct rig *r, uint64_t seed, bool share, enum aq_tier tier, bool link)
{
    static const struct aq_seats_ops ops = {.next = next_waiting,
                                            .alike = begins_alike,
                                            .sat = has_sat,
                                            .ended = has_ended,
                                            .gone = is_gone,
                                            .bound = bound};
    *r = (struct rig){.seed = seed,
                      .share = share,
                      .longest = seed % 2 ? PROMPT + NEW : 3 * NEW,
                      .nearest = UINT32_MAX};
    r->steps = plans_model(LAYERS, 64, 4, 128);
    struct aq_block_inputs in = plans_inputs(&r->steps);
    struct aq_placement place = {{{0, 100, 0}}, {{0}}, {{0, 100, 0}}, AQ_HOST};
    place.kv.percent[tier] = 100;
    for (uint32_t i = 0; i < SEQUENCES; i++)
        draw_one(r, i);
    in.sequences = SEQUENCES;
    in.prompt_max = r->longest - NEW;
    in.total_max = r->longest;
    in.prompt_sum = SEQUENCES * in.prompt_max / 2;
    in.total_sum = SEQUENCES * in.total_max / 2;
    in.micro_batch = 1 + roll(r, 8, 0, 12);
    in.micro_batches = 1 + roll(r, 8, 1, 3);
    in.alternate = roll(r, 8, 2, 2);
    in.placement = &place;
    in.separate = link;
    in.attention = AQ_ATTEND_DEVICE;
    in.attention_auto = false;
    in.stage_bytes = AQ_MIB * (1 + roll(r, 8, 5, 4)); /* of 350 KiB a seat, or 210 */
    r->block = plans_choose(&in);
    struct aq_block_shape *s = &r->block.plan.shape;
    uint64_t seats = (uint64_t)s->micro_batch * s->micro_batches;
    uint64_t longest = (uint64_t)LAYERS * aq_div_up(r->longest, s->page_slots);
    if (tier == AQ_HOST)
        s->page_count[AQ_HOST] = longest * (4 + roll(r, 8, 3, 4 * (uint32_t)seats)) / 4;
    uint64_t limit[AQ_TIER_COUNT] = {[AQ_HOST] = AQ_GIB, [AQ_DEVICE] = AQ_GIB};
    assert_int_equal(aq_mem_open(&r->mem, limit, NULL), 0);
    struct aq_device_opts device = {.kind = link ? AQ_DEVICE_EMULATED : AQ_DEVICE_UNIFIED,
                                    .mem = r->mem};
    assert_int_equal(aq_device_open(&r->device, &device, NULL), 0);
    struct aq_kv_opts kv = {r->device, &r->block.plan, r->steps.kv_heads};
    assert_int_equal(aq_kv_open(&r->kv, &kv, NULL), 0);
    r->disk = calloc(aq_kv_disk_bytes(r->kv) / aq_kv_run_stride(r->kv) + 1, sizeof(*r->disk));
    assert_non_null(r->disk);
    size_t kinds = r->block.plan.kinds.count;
    r->at = (struct aq_seats_arrays){.seat = calloc(seats, sizeof(*r->at.seat)),
                                     .kv = calloc((seats + 1) * kinds, sizeof(*r->at.kv)),
                                     .lengths = calloc((seats + 1) * kinds, sizeof(*r->at.lengths)),
                                     .prompt_rows = calloc(s->micro_batches, sizeof(uint32_t)),
                                     .order = calloc(seats, sizeof(*r->at.order))};
    assert_true(seats <= SEQUENCES && r->at.seat && r->at.kv && r->at.lengths &&
                r->at.prompt_rows && r->at.order);
    struct aq_seats_opts opts = {&r->steps, &r->block.plan, roll(r, 8, 4, 4) > 0, &ops, r};
    aq_seats_open(&r->seats, &opts, &r->at);
}

static void close_rig(struct rig *r)
{
    assert_int_equal(aq_kv_pages_free(r->kv, AQ_HOST), r->block.plan.shape.page_count[AQ_HOST]);
    aq_kv_close(r->kv);
    aq_device_close(r->device);
    aq_mem_close(r->mem);
    aq_block_close(&r->block);
    aq_steps_close(&r->steps);
    free(r->disk);
    free(r->at.seat);
    free(r->at.kv);
    free(r->at.lengths);
    free(r->at.prompt_rows);
    free(r->at.order);
}

/* Of two seats: what lies in the same page is the same tokens of both prompts, in the same run. */
static void check_pair(const struct rig *r, uint32_t a, uint32_t b, uint32_t layer)
{
    const struct aq_seat *s = &r->seats.seat[a], *t = &r->seats.seat[b];
    uint32_t same = alike(&r->one[r->now[a]], &r->one[r->now[b]]);
    uint8_t *const *x = aq_kv_blocks(r->kv, a, layer), *const *y = aq_kv_blocks(r->kv, b, layer);
    uint32_t of_a = (s->seen + 31) / 32, of_b = (t->seen + 31) / 32;
    for (uint32_t i = 0; i < of_a; i++) {
        for (uint32_t j = 0; j < of_b; j++)
            assert_true(x[i] != y[j] || (i == j && 32 * (i + 1) <= same));
    }
}

/* A page in use, and the passes that the one of its users who stays longest may still have. */
struct used_page {
    uintptr_t address;
    uint32_t left;
};

static int by_address(const void *a, const void *b)
{
    const struct used_page *x = a, *y = b;
    if (x->address != y->address)
        return x->address > y->address ? 1 : -1;
    return (x->left < y->left) - (x->left > y->left); /* the longest first */
}

/* Passes that the sequence in this seat has after the coming one if nothing ends it.  One that goes
 * on from given tokens takes in several in a pass: only the coming one is sure. */
static uint32_t passes_left(const struct aq_seat *t)
{
    return t->given > t->seen - t->prompt ? 0 : t->last - t->seen;
}

static uint32_t list_pages(const struct rig *r, struct used_page *all)
{
    uint32_t each = r->block.plan.shape.page_slots / 32, count = 0, kept = 0;
    for (uint32_t i = 0; i < r->seats.count; i++) {
        const struct aq_seat *t = &r->seats.seat[i];
        for (uint32_t layer = 0; layer < LAYERS && t->taken && t->seen; layer++) {
            for (uint32_t run = 0; run * 32 < t->seen; run += each)
                all[count++] = (struct used_page){(uintptr_t)aq_kv_blocks(r->kv, i, layer)[run],
                                                  passes_left(t)};
        }
    }
    qsort(all, count, sizeof(*all), by_address);
    for (uint32_t i = 0; i < count; i++)
        if (i == 0 || all[i].address != all[i - 1].address)
            all[kept++] = all[i];
    return kept;
}

/* Pages in use so many passes from now: those of today that somebody still has, and those that the
 * ones who are still there will have taken. */
static uint64_t pages_then(const struct rig *r, const struct used_page *all, uint32_t count,
                           uint32_t passes)
{
    uint32_t slots = r->block.plan.shape.page_slots;
    uint64_t pages = 0;
    for (uint32_t i = 0; i < count; i++)
        pages += all[i].left >= passes;
    for (uint32_t i = 0; i < r->seats.count; i++) {
        const struct aq_seat *t = &r->seats.seat[i];
        if (t->taken && t->seen && passes_left(t) >= passes)
            pages += LAYERS * (aq_div_up(t->seen + passes, slots) - aq_div_up(t->seen, slots));
    }
    return pages;
}

/* The pages in use are those that seats have in their tables, each once; and whatever is seated now
 * will have its pages until it ends, so that the pool is never under the peak. */
static void check_pages(struct rig *r)
{
    uint64_t room = r->block.plan.shape.page_count[AQ_HOST];
    struct used_page *all = calloc((size_t)r->seats.count * LAYERS * (PROMPT + NEW), sizeof(*all));
    assert_non_null(all);
    uint32_t pages = list_pages(r, all);
    assert_int_equal(pages, room - aq_kv_pages_free(r->kv, AQ_HOST));
    for (uint32_t i = 0; i < r->seats.count; i++) {
        const struct aq_seat *t = &r->seats.seat[i];
        if (!t->taken || !t->seen)
            continue;
        uint64_t then = pages_then(r, all, pages, passes_left(t));
        assert_in_range(then, 0, room);
        r->nearest = (uint32_t)aq_min_u64(r->nearest, room - then);
    }
    free(all);
}

/* What a sequence leaves in a slot: its prompt's token, or a mark of its own. */
static uint32_t mark_of(const struct rig *r, uint32_t seat, uint32_t position)
{
    uint32_t number = r->now[seat];
    const struct one *o = &r->one[number];
    return position < o->prompt ? o->token[position] : UINT32_MAX - number * 1000 - position;
}

/* What is no whole page of a prefix comes from a lower seat. */
static void copy_tail(struct rig *r, uint32_t seat, uint32_t layer)
{
    const struct aq_seat *t = &r->seats.seat[seat];
    uint32_t shared = aq_seat_shared_slots(&r->block.plan, t);
    if (!t->takes && t->seen == t->prompt && shared < t->prefix)
        aq_kv_copy(r->kv, seat, t->from, layer, shared / 32, (t->prefix + 31) / 32);
}

/* In a layer a seat's rows are written, and then all that it has seen is read. */
static void play_seat(struct rig *r, uint32_t seat, uint32_t layer)
{
    const struct aq_seat *t = &r->seats.seat[seat];
    if (!t->taken || !t->seen || !t->rows)
        return;
    uint8_t *const *block = aq_kv_blocks(r->kv, seat, layer);
    copy_tail(r, seat, layer);
    for (uint32_t i = t->seen - t->rows; i < t->seen; i++)
        ((uint32_t *)(void *)block[i / 32])[i % 32] = mark_of(r, seat, i);
    for (uint32_t i = 0; i < t->seen; i++) {
        uint32_t found = ((const uint32_t *)(const void *)block[i / 32])[i % 32];
        if (found != mark_of(r, seat, i))
            fail_msg("seed %llu, pass %u, seat %u, layer %u: slot %u of %u, %u of them shared, is "
                     "another's",
                     (unsigned long long)r->seed, r->passes, seat, layer, i, t->seen, t->prefix);
    }
    r->reads += t->seen;
}

/* Layers in order; each visits the micro-batches upwards, with --alternate every second one
 * downwards. */
static void play_pass(struct rig *r)
{
    const struct aq_block_shape *shape = &r->block.plan.shape;
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        for (uint32_t n = 0; n < shape->micro_batches; n++) {
            bool down = r->block.plan.alternate && layer % 2;
            uint32_t k = down ? shape->micro_batches - 1 - n : n;
            for (uint32_t place = 0; place < shape->micro_batch; place++)
                play_seat(r, k * shape->micro_batch + place, layer);
        }
    }
}

/* Slots at the beginning that two seats of a part have in the same pages; of others none. */
static uint32_t in_common(const struct rig *r, uint32_t a, uint32_t b)
{
    const struct aq_seat *s = &r->seats.seat[a], *t = &r->seats.seat[b];
    uint8_t *const *x = aq_kv_blocks(r->kv, a, 0), *const *y = aq_kv_blocks(r->kv, b, 0);
    uint32_t runs = (s->seen < t->seen ? s->seen : t->seen) / 32, n = 0;
    if (!side_by_side(r, a, b))
        return 0;
    while (n < runs && x[n] == y[n])
        n++;
    return 32 * n;
}

/* What forecasts are told of neighbours is what attention finds. */
static void check_rows(struct rig *r)
{
    uint32_t last = UINT32_MAX;
    for (uint32_t n = 0; n < r->rows; n++) {
        const struct aq_seat *t = &r->seats.seat[r->row[n]];
        bool single = n && t->rows == 1 && r->seats.seat[r->row[n - 1]].rows == 1;
        assert_int_equal(t->beside, single ? in_common(r, r->row[n], r->row[n - 1]) : 0);
        r->beside += n ? in_common(r, r->row[n], r->row[n - 1]) : 0;
    }
    for (uint32_t i = 0; i < r->seats.count; i++) {
        const struct aq_seat *t = &r->seats.seat[i];
        if (!t->taken || !t->rows || t->seen <= t->prompt)
            continue;
        r->by_seat += last == UINT32_MAX ? 0 : in_common(r, i, last);
        last = i;
    }
}

static void check_pass(struct rig *r)
{
    check_rows(r);
    for (uint32_t i = 0; i < r->seats.count; i++) {
        const struct aq_seat *s = &r->seats.seat[i];
        assert_true(!s->taken || s->seen);
        assert_true(!s->rows || s->seen > s->prompt || s->rows == s->prompt - s->prefix);
        for (uint32_t j = 0; j < i && s->taken && s->seen; j++) {
            if (r->seats.seat[j].taken && r->seats.seat[j].seen)
                check_pair(r, i, j, r->passes % LAYERS);
        }
    }
    check_pages(r);
    play_pass(r);
}

/* What run `run` of a seat is: the tokens up to its end, or those of one sequence. */
static uint64_t content_of(const struct rig *r, uint32_t seat, uint32_t run)
{
    const struct one *o = &r->one[r->now[seat]];
    uint64_t sum = 1;
    if (32 * (run + 1) > o->prompt)
        return UINT64_MAX - 1000ull * r->now[seat] - run;
    for (uint32_t i = 0; i < 32 * (run + 1); i++)
        sum = aq_prng_u64(sum, 7, o->token[i]);
    return sum;
}

static uint64_t *on_disk(const struct rig *r, uint32_t seat, uint32_t layer, uint32_t run)
{
    return &r->disk[aq_kv_disk_offset(r->kv, seat, layer, run) / aq_kv_run_stride(r->kv)];
}

enum { RUNS = (PROMPT + NEW) / 32 + 1 };

/* The place in the stage of run `run` of a seat. */
static uint32_t bringer_of(const struct rig *r, uint32_t seat, uint32_t run)
{
    const struct aq_seat *of = r->seats.seat;
    while (32 * run < of[seat].brought)
        seat = of[seat].via;
    return seat;
}

/* A layer of a pass as its program has it: all reads, then what attention makes and finds, then all
 * writes. */
static void check_disk(struct rig *r)
{
    static uint64_t stage[SEQUENCES][RUNS];
    const struct aq_plan *plan = &r->block.plan;
    uint32_t layer = r->passes % LAYERS;
    memset(stage, 0, sizeof(stage));
    for (uint32_t i = 0; i < r->seats.count; i++) {
        const struct aq_seat *s = &r->seats.seat[i];
        struct aq_kv_traffic t;
        aq_kv_traffic_of(&t, plan, &plan->part[aq_seats_part(plan, i)], s, 0);
        for (uint32_t run = t.read.first; run < t.read.end; run++)
            stage[i][run] = *on_disk(r, i, layer, run);
        for (uint32_t run = s->seen > s->prompt ? t.whole : s->prefix / 32; s->rows && run < RUNS;
             run++)
            stage[i][run] = content_of(r, i, run);
        r->moved += t.read.end - t.read.first + t.write.end - t.write.first;
        r->brought += s->rows ? s->brought / 32 : 0;
    }
    for (uint32_t i = 0; i < r->seats.count; i++) {
        const struct aq_seat *s = &r->seats.seat[i];
        for (uint32_t run = 0; s->rows && 32 * run < s->seen; run++)
            assert_int_equal(stage[bringer_of(r, i, run)][run], content_of(r, i, run));
    }
    for (uint32_t i = 0; i < r->seats.count; i++) {
        const struct aq_seat *s = &r->seats.seat[i];
        struct aq_kv_traffic t;
        aq_kv_traffic_of(&t, plan, &plan->part[aq_seats_part(plan, i)], s, 0);
        for (uint32_t at = 0; at < LAYERS; at++) {
            for (uint32_t run = t.write.first; run < t.write.end; run++)
                *on_disk(r, i, at, run) = content_of(r, i, run);
            if (t.write_tail)
                *on_disk(r, i, at, t.left) = content_of(r, i, t.left);
        }
    }
}

/* Of two seats of a part in a pass: what they share one of them brings.  And none has a place of
 * another who does not share. */
static void check_places(const struct rig *r)
{
    for (uint32_t i = 0; i < r->seats.count; i++) {
        for (uint32_t j = 0; j < i && r->seats.seat[i].rows; j++) {
            if (!r->seats.seat[j].rows)
                continue;
            uint32_t same = alike(&r->one[r->now[i]], &r->one[r->now[j]]);
            for (uint32_t run = 0; run < r->block.plan.kinds.runs; run++) {
                bool one = on_disk(r, i, 0, run) == on_disk(r, j, 0, run);
                assert_true(!one || 32 * (run + 1) <= same);
                assert_int_equal(one, bringer_of(r, i, run) == bringer_of(r, j, run));
            }
        }
    }
}

static void run_on_disk(struct rig *r)
{
    for (bool begun = false; r->ended < SEQUENCES; begun = true, r->passes++) {
        r->rows = 0;
        for (uint32_t k = 0; begun && k < r->block.plan.shape.micro_batches; k++)
            aq_seats_turn(&r->seats, k);
        aq_seats_begin_pass(&r->seats);
        check_places(r);
        check_disk(r);
    }
}

/* ---- behind a link ----------------------------------------------------------------------- */

/* What a slot's first bytes in host memory hold there. */
struct kept {
    uint32_t mark, pass, seat; /* whose token, when it was sent home, and from which seat */
};

static struct kept *kept_of(const struct rig *r, uint32_t seat, uint32_t layer, uint32_t i)
{
    return (struct kept *)(void *)aq_kv_blocks(r->kv, seat, layer)[i / 32] + i % 32;
}

/* Run `run` of a seat is fetched: its own tokens, which its part has sent home or another, that one
 * in a pass before the last, because its moves of the last may still be under way. */
static void load_run(struct rig *r, uint32_t seat, uint32_t layer, uint32_t run)
{
    const struct aq_seat *t = &r->seats.seat[seat];
    for (uint32_t i = 32 * run; i < 32 * (run + 1) && i < t->seen - t->rows; i++) {
        const struct kept *found = kept_of(r, seat, layer, i);
        uint32_t after = side_by_side(r, found->seat, seat) ? 1 : 2;
        if (found->mark != mark_of(r, seat, i) || found->pass + after > r->passes)
            fail_msg("seed %llu, pass %u, seat %u, layer %u: slot %u, %u of them shared, is of "
                     "pass %u and seat %u",
                     (unsigned long long)r->seed, r->passes, seat, layer, i, t->prefix, found->pass,
                     found->seat);
        r->reads++;
    }
}

/* Each of a seat's runs is in a stage: it, or the one that brings it, loads or makes it. */
static void check_brought(const struct rig *r, uint32_t seat)
{
    const struct aq_plan *plan = &r->block.plan;
    const struct aq_seat *t = &r->seats.seat[seat];
    for (uint32_t run = 0; 32 * run < t->seen; run++) {
        uint32_t by = bringer_of(r, seat, run);
        const struct aq_seat *of = &r->seats.seat[by];
        struct aq_kv_traffic moves;
        aq_kv_traffic_of(&moves, plan, &plan->part[aq_seats_part(plan, by)], of, 0);
        bool makes = run >= (of->seen - of->rows) / 32;
        assert_true(of->rows && (makes || (run >= moves.load.first && run < moves.load.end)));
        assert_true(side_by_side(r, by, seat));
        assert_ptr_equal(aq_kv_blocks(r->kv, by, 0)[run], aq_kv_blocks(r->kv, seat, 0)[run]);
    }
}

/* All that a pass fetches, and then all that it sends home. */
static void play_link(struct rig *r)
{
    const struct aq_plan *plan = &r->block.plan;
    for (uint32_t i = 0; i < r->seats.count; i++) {
        const struct aq_seat *t = &r->seats.seat[i];
        struct aq_kv_traffic moves;
        if (!t->rows)
            continue;
        aq_kv_traffic_of(&moves, plan, &plan->part[aq_seats_part(plan, i)], t, 0);
        check_brought(r, i);
        for (uint32_t run = moves.load.first; run < moves.load.end; run++) {
            for (uint32_t layer = 0; layer < LAYERS; layer++)
                load_run(r, i, layer, run);
        }
        r->moved += moves.load.end - moves.load.first;
        r->brought += t->brought / 32;
    }
    for (uint32_t i = 0; i < r->seats.count; i++) {
        const struct aq_seat *t = &r->seats.seat[i];
        for (uint32_t at = t->seen - t->rows; t->rows && at < t->seen; at++) {
            for (uint32_t layer = 0; layer < LAYERS; layer++)
                *kept_of(r, i, layer, at) = (struct kept){mark_of(r, i, at), r->passes, i};
        }
    }
}

static void run_linked(struct rig *r)
{
    for (bool begun = false; r->ended < SEQUENCES; begun = true, r->passes++) {
        r->rows = 0;
        for (uint32_t k = 0; begun && k < r->block.plan.shape.micro_batches; k++)
            aq_seats_turn(&r->seats, k);
        aq_seats_begin_pass(&r->seats);
        check_rows(r);
        check_pages(r);
        play_link(r);
    }
}

static void run(struct rig *r)
{
    for (bool begun = false; r->ended < SEQUENCES; begun = true, r->passes++) {
        r->rows = 0;
        for (uint32_t k = 0; begun && k < r->block.plan.shape.micro_batches; k++)
            aq_seats_turn(&r->seats, k);
        aq_seats_begin_pass(&r->seats);
        check_pass(r);
        assert_true(r->seats.seated > 0 || r->ended == SEQUENCES);
    }
}

static void pages_are_shared_by_the_same_tokens_alone(void **state)
{
    uint64_t shared = 0, with = 0, without = 0, several = 0, reads = 0, full = 0;
    uint64_t copied = 0, taken = 0, beside = 0, by_seat = 0;
    (void)state;
    for (uint64_t seed = 1; seed <= DRAWS; seed++) {
        struct rig r;
        for (int share = 0; share < 2; share++) {
            open_rig(&r, seed, share, AQ_HOST, false);
            run(&r);
            *(share ? &with : &without) += r.passes;
            shared += r.shared;
            several += r.block.plan.shape.page_slots > AQ_HEAD_BLOCK_SLOTS;
            reads += r.reads;
            copied += r.copied;
            taken += r.taken;
            beside += r.beside;
            by_seat += r.by_seat;
            full += share && r.nearest < r.block.plan.shape.page_count[AQ_HOST] / 20;
            close_rig(&r);
        }
    }
    print_message("%llu tokens shared, %llu slots read; %llu passes, %llu without; %llu jobs with "
                  "pages of several runs, %llu that fill their pool to 95 %%\n",
                  (unsigned long long)shared, (unsigned long long)reads, (unsigned long long)with,
                  (unsigned long long)without, (unsigned long long)several,
                  (unsigned long long)full);
    print_message("%llu tokens copied, %llu left by those who ended; rows have %llu slots in "
                  "common with the one in front, by seats %llu\n",
                  (unsigned long long)copied, (unsigned long long)taken, (unsigned long long)beside,
                  (unsigned long long)by_seat);
    assert_true(2 * beside > 3 * by_seat);
    assert_true(4 * full >= DRAWS);
    assert_true(copied > 100ull * DRAWS && taken > 10ull * DRAWS);
    assert_true(shared > 1000ull * DRAWS);
    assert_true(2 * several >= DRAWS);
    assert_true(with < without); /* what shares pages leaves room for more */
}

static void runs_on_disk_are_moved_once_for_all_who_share_them(void **state)
{
    uint64_t shared = 0, brought = 0, moved[2] = {0};
    (void)state;
    for (uint64_t seed = 1; seed <= DRAWS / 4; seed++) {
        struct rig r;
        for (int share = 0; share < 2; share++) {
            open_rig(&r, seed, share, AQ_DISK, false);
            run_on_disk(&r);
            moved[share] += r.moved;
            shared += r.shared;
            brought += r.brought;
            close_rig(&r);
        }
    }
    print_message("%llu tokens shared; %llu runs moved, %llu without; %llu brought by others\n",
                  (unsigned long long)shared, (unsigned long long)moved[1],
                  (unsigned long long)moved[0], (unsigned long long)brought);
    assert_true(shared > 200ull * DRAWS);
    assert_true(20 * moved[1] < 19 * moved[0]);
}

static void behind_a_link_parts_share_what_is_home(void **state)
{
    uint64_t shared = 0, brought = 0, across = 0, passes[2] = {0}, moved[2] = {0};
    (void)state;
    for (uint64_t seed = 1; seed <= DRAWS / 2; seed++) {
        struct rig r;
        for (int share = 0; share < 2; share++) {
            open_rig(&r, seed, share, AQ_HOST, true);
            run_linked(&r);
            passes[share] += r.passes;
            moved[share] += r.moved;
            shared += r.shared;
            across += r.across;
            brought += r.brought;
            assert_int_equal(r.copied + r.taken, 0);
            close_rig(&r);
        }
    }
    print_message("%llu tokens shared, %llu with another part or micro-batch; %llu passes, %llu "
                  "without; %llu runs moved, %llu without; %llu brought by others\n",
                  (unsigned long long)shared, (unsigned long long)across,
                  (unsigned long long)passes[1], (unsigned long long)passes[0],
                  (unsigned long long)moved[1], (unsigned long long)moved[0],
                  (unsigned long long)brought);
    assert_true(shared > 500ull * DRAWS && 4 * across > shared);
    assert_true(passes[1] < passes[0] && moved[1] < moved[0]);
}

/* Sequences that have a prefix in common fit as long as its pages, once, and their own do; and
 * longer than the one they took it from. */
static void a_prefix_counts_once_until_its_last_user_ends(void **state)
{
    struct aq_kv_kinds kinds = {.count = 1, .layers = 3, .kind = {{.layers = 3}}};
    struct aq_admit_limits limits = {
        .page_slots = 32, .seats_free = 1, .prompt_tokens = 4096, .kinds = &kinds};
    struct aq_admit_length of[3] = {{.now = 100, .last = 101, .slots = UINT32_MAX},
                                    {.now = 100, .last = 128, .slots = UINT32_MAX, .prefix = 96},
                                    {.now = 65, .last = 128, .slots = UINT32_MAX, .prefix = 64}};
    (void)state;
    /* Four pages of the first, one of the second, one of the third; then the second has four, and
     * two of the third are its own. */
    assert_int_equal(aq_admit_peak_pages(&limits, of, 3), 3 * 6);
    limits.pages = 3 * 6;
    assert_true(aq_admit_one(&limits, of, 2, 0, 1));
    limits.pages--;
    assert_false(aq_admit_one(&limits, of, 2, 0, 1));
    of[1].prefix = of[2].prefix = 0;
    assert_int_equal(aq_admit_peak_pages(&limits, of, 3), 3 * 11);
    /* The one between the two ends first: what the outer ones share is what both share with it. */
    struct aq_admit_length late[3] = {{.now = 128, .last = 160, .slots = UINT32_MAX},
                                      {.now = 128, .last = 128, .slots = UINT32_MAX, .prefix = 64},
                                      {.now = 128, .last = 160, .slots = UINT32_MAX, .prefix = 96}};
    assert_int_equal(aq_admit_peak_pages(&limits, late, 3), 3 * 8);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(pages_are_shared_by_the_same_tokens_alone),
    cmocka_unit_test(runs_on_disk_are_moved_once_for_all_who_share_them),
    cmocka_unit_test(behind_a_link_parts_share_what_is_home),
    cmocka_unit_test(a_prefix_counts_once_until_its_last_user_ends),
};

int main(void)
{
    return cmocka_run_group_tests(tests, NULL, NULL) ? 1 : 0;
}
