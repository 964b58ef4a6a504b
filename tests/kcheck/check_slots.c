/* SPDX-License-Identifier: Apache-2.0
 * What is remembered of slots and what is done with it: victims, selections, moves of rows and rows
 * that take a victim's slot.  All of it is exact: every number is that of the reference, and the
 * reference is held against cases worked out by hand and against statements of its own. */
#include "kernels/cpu/attn.h"
#include "kernels/cpu/kv.h"
#include "tests/kcheck/kc_attn.h"

#include <math.h>
#include <string.h>

static const enum aq_dtype kv_dtypes[] = {AQ_F32, AQ_F16, AQ_BF16, AQ_Q8, AQ_Q4};

/* ---- victims ---- */

static struct aq_attn sequence_of(struct aq_attn_seq *seq, uint32_t sinks, bool by_position)
{
    return (struct aq_attn){
        .seqs = seq,
        .seq_count = 1,
        .kv_dtype = AQ_F16,
        .kv_heads = 1,
        .q_per_kv = 1,
        .head_dim = 8,
        .rule = {.victim = by_position ? AQ_ATTN_BY_POSITION : AQ_ATTN_BY_SCORE, .sinks = sinks}};
}

/* Scores and positions of one head, the row at position 9 being the newest, and who must go. */
static void check_victim_by_hand(struct kc *kc)
{
    enum { NEVER = -1 };
    static const struct {
        float score[5];
        uint32_t position[5], sinks, recent;
        bool by_position;
        uint32_t expected;
    } hand[] = {
        {{5, 2, 3, 2, 1}, {0, 3, 4, 2, 9}, 0, 2, false, 3}, /* a tie: position 2 before 3 */
        {{5, 2, 3, 2, 1}, {0, 3, 4, 2, 9}, 0, 1, false, 4}, /* the newest may go at 10 */
        {{0, 2, 3, 4, 1}, {0, 3, 4, 2, 9}, 1, 2, false, 1}, /* a sink may not */
        {{5, 2, 3, 2, 1}, {0, 3, 4, 2, 9}, 3, 7, false, 1}, /* positions below 4 */
        {{5, 2, 3, 2, 1}, {0, 3, 4, 2, 9}, 3, 8, false, UINT32_MAX},
        {{5, 2, 3, 2, 1}, {0, 3, 4, 2, 9}, 0, 40, false, UINT32_MAX},
        {{5, 2, 3, 2, 1}, {0, 3, 4, 2, 9}, 2, 2, true, 2},
        {{5, 2, 3, 2, 1}, {0, 3, 4, 2, 9}, 0, 0, true, 4},
        {{5, 2, 3, 2, 1}, {0, 3, 4, 2, 9}, 5, 2, true, UINT32_MAX},
        {{NAN, NAN, INFINITY, NAN, 1}, {0, 3, 4, 2, 9}, 0, 2, false, 0},
        {{NAN, NAN, 7, NAN, 1}, {0, 3, 4, 2, 9}, 1, 2, false, 2},
        {{0.0f, -0.0f, 7, 0.0f, 1}, {5, 3, 4, 6, 9}, 1, 2, false, 1},
    };
    for (size_t i = 0; i < AQ_ARRAY_LEN(hand); i++) {
        float *score = kc_bytes(kc, 32 * sizeof(*score));
        uint32_t *position = kc_bytes(kc, 32 * sizeof(*position)), len = 5, victim = 77;
        memcpy(score, hand[i].score, sizeof(hand[i].score));
        memcpy(position, hand[i].position, sizeof(hand[i].position));
        struct aq_attn_seq seq = {.slots = {score, position, &victim, 32},
                                  .len = &len,
                                  .rows = 2,
                                  .position = 8,
                                  .recent = hand[i].recent};
        struct aq_attn a = sequence_of(&seq, hand[i].sinks, hand[i].by_position);
        kc_new(kc)->kv_victim(kc_exec(kc, 0), &a);
        kc_expect(kc, victim == hand[i].expected, "case %zu: %d goes, expected %d", i, (int)victim,
                  (int)hand[i].expected);
    }
}

/* Few different scores, so that ties abound, among positions in any order. */
static void check_victim_drawn(struct kc *kc, uint32_t len)
{
    uint32_t stride = (uint32_t)aq_align_up(len + 1, 32);
    float *score = kc_bytes(kc, stride * sizeof(*score));
    uint32_t *position = kc_bytes(kc, stride * sizeof(*position)), victim[2] = {77, 77};
    for (uint32_t draw = 0; draw < 40; draw++) {
        for (uint32_t j = 0; j < stride; j++) { /* past len lies what would be chosen */
            uint32_t other = kc_below(kc, j + 1);
            position[j] = position[other];
            position[other] = j;
        }
        for (uint32_t j = 0; j < stride; j++)
            score[j] = (float)kc_below(kc, 1 + draw % 4) + 0.25f * (draw & 1);
        for (uint32_t j = len; j < stride; j++)
            score[j] = j % 2 ? -1 : 0.25f * (draw & 1); /* lower than all, or a tie */
        uint32_t sinks = kc_below(kc, len + 2);
        struct aq_attn_seq seq = {.slots = {score, position, NULL, stride},
                                  .len = &len,
                                  .rows = 1,
                                  .position = kc_below(kc, stride + 3),
                                  .recent = kc_below(kc, len + 2)};
        struct aq_attn a = sequence_of(&seq, sinks, draw % 5 == 0);
        seq.slots.victim = &victim[0];
        kc_ref(kc)->kv_victim(kc_exec(kc, 0), &a);
        seq.slots.victim = &victim[1];
        kc_new(kc)->kv_victim(kc_exec(kc, 0), &a);
        kc_expect(kc, victim[0] == victim[1], "draw %u: slot %d goes, expected %d", draw,
                  (int)victim[1], (int)victim[0]);
    }
}

/* Of heads that choose together: those of one head whose scores are their sums. */
static void check_victim_together(struct kc *kc, uint32_t heads, uint32_t len)
{
    uint32_t stride = (uint32_t)aq_align_up(len, 32);
    float *score = kc_bytes(kc, (size_t)heads * stride * sizeof(*score));
    float *sum = kc_bytes(kc, stride * sizeof(*sum));
    uint32_t *position = kc_bytes(kc, (size_t)heads * stride * sizeof(*position));
    uint32_t *victim = kc_bytes(kc, (heads + 1) * sizeof(*victim));
    for (uint32_t draw = 0; draw < 20; draw++) {
        for (uint32_t j = 0; j < len; j++) {
            sum[j] = 0;
            for (uint32_t h = 0; h < heads; h++) {
                position[h * stride + j] = (j * 7 + draw) % len;
                score[h * stride + j] =
                    draw % 2 ? (float)kc_below(kc, 3) : 1e-3f * (float)kc_below(kc, 999);
                sum[j] = h ? sum[j] + score[h * stride + j] : score[j];
            }
        }
        struct aq_attn_seq seq = {.slots = {score, position, victim, stride},
                                  .len = &len,
                                  .rows = 1,
                                  .position = len,
                                  .recent = kc_below(kc, 3)};
        struct aq_attn a = sequence_of(&seq, kc_below(kc, 2), false);
        a.kv_heads = heads;
        a.rule.together = 1;
        kc_new(kc)->kv_victim(kc_exec(kc, 0), &a);
        seq.slots.score = sum;
        seq.slots.victim = victim + heads;
        a.kv_heads = 1;
        a.rule.together = 0;
        kc_ref(kc)->kv_victim(kc_exec(kc, 0), &a);
        for (uint32_t h = 0; h < heads; h++)
            kc_expect(kc, victim[h] == victim[heads], "draw %u, head %u: slot %d goes, expected %d",
                      draw, h, (int)victim[h], (int)victim[heads]);
    }
}

static void check_victims(struct kc *kc)
{
    if (kc_begin(kc, KC_SLOT(kv_victim), "kv_victim_by_hand"))
        check_victim_by_hand(kc);
    static const uint32_t lens[] = {1, 7, 16, 31, 32, 33, 100, 257};
    for (size_t i = 0; i < AQ_ARRAY_LEN(lens); i++) {
        if (kc_begin(kc, KC_SLOT(kv_victim), "kv_victim_%u", lens[i]))
            check_victim_drawn(kc, lens[i]);
    }
    for (uint32_t heads = 1; heads <= 16; heads++) {
        uint32_t len = lens[heads % AQ_ARRAY_LEN(lens)];
        if (kc_begin(kc, KC_SLOT(kv_victim), "kv_victim_together_x%u_%u", heads, len))
            check_victim_together(kc, heads, len);
    }
}

/* ---- selection ---- */

enum { SELECT_HEADS = 3, SELECT_MAX = 320 };

struct selection {
    uint32_t keep[SELECT_HEADS][SELECT_MAX], count[SELECT_HEADS];
};

static void select_with(struct kc *kc, const struct aq_kernels *k, struct aq_kv_select s,
                        struct selection *to, uint32_t threads)
{
    memset(to, 0xee, sizeof(*to));
    s.keep = to->keep[0];
    s.keep_stride = SELECT_MAX;
    s.count = to->count;
    k->kv_select(kc_exec(kc, threads), &(struct aq_kv_selects){&s, 1, SELECT_HEADS});
}

static void check_select_by_hand(struct kc *kc)
{
    static const float values[SELECT_HEADS][8] = {
        {1, 9, 2, 2, 5, 2, 0, 7}, {4, 4, 4, 4, 4, 4, 4, 4}, {8, 0, 0, NAN, 1, 6, 9, 9}};
    static const struct {
        struct aq_kv_select s;
        uint32_t count[SELECT_HEADS], keep[SELECT_HEADS][8];
    } hand[] = {
        {{.recent = 2, .heavy = 3}, {5, 5, 5}, {{1, 4, 5, 6, 7}, {3, 4, 5, 6, 7}, {0, 3, 5, 6, 7}}},
        {{.recent = 2, .heavy = 3, .sinks = 1},
         {5, 5, 5},
         {{0, 1, 4, 6, 7}, {0, 4, 5, 6, 7}, {0, 3, 5, 6, 7}}},
        {{.recent = 1, .heavy = 0}, {1, 1, 1}, {{7}, {7}, {7}}},
        {{.recent = 0, .heavy = 1}, {1, 1, 1}, {{1}, {7}, {3}}},
        {{.recent = 7, .heavy = 4},
         {8, 8, 8},
         {{0, 1, 2, 3, 4, 5, 6, 7}, {0, 1, 2, 3, 4, 5, 6, 7}, {0, 1, 2, 3, 4, 5, 6, 7}}},
        {{.recent = 9},
         {8, 8, 8},
         {{0, 1, 2, 3, 4, 5, 6, 7}, {0, 1, 2, 3, 4, 5, 6, 7}, {0, 1, 2, 3, 4, 5, 6, 7}}},
        /* Of the layer: NaN, 9, 8, 6, 5 and one 4, the highest position. */
        {{.recent = 2, .heavy = 2, .layer = true},
         {4, 3, 5},
         {{1, 4, 6, 7}, {5, 6, 7}, {0, 3, 5, 6, 7}}},
        {{.recent = 2, .heavy = 2, .layer = true, .floor = 2},
         {4, 4, 4},
         {{1, 4, 6, 7}, {4, 5, 6, 7}, {0, 3, 6, 7}}},
        /* 2, 1 and 3 of the layer's best: halves of these, 1, .5 and 1.5, and one or two more. */
        {{.recent = 2, .heavy = 2, .layer = true, .floor = 1, .mix = 500000000},
         {4, 4, 4},
         {{1, 4, 6, 7}, {4, 5, 6, 7}, {0, 3, 6, 7}}},
        {{.recent = 2, .heavy = 2, .layer = true, .floor = 2, .mix = 500000000},
         {5, 4, 6},
         {{1, 4, 5, 6, 7}, {4, 5, 6, 7}, {0, 3, 4, 5, 6, 7}}},
        {{.recent = 2, .heavy = 2, .layer = true, .mix = 900000000, .sinks = 1},
         {3, 3, 3},
         {{0, 6, 7}, {0, 6, 7}, {0, 6, 7}}},
    };
    float *value = kc_bytes(kc, sizeof(values)); /* as a device has it */
    memcpy(value, values, sizeof(values));
    for (size_t i = 0; i < AQ_ARRAY_LEN(hand); i++) {
        struct aq_kv_select s = hand[i].s;
        struct selection got;
        s.value = value;
        s.stride = s.len = 8;
        select_with(kc, kc_new(kc), s, &got, 0);
        for (uint32_t h = 0; h < SELECT_HEADS; h++)
            kc_expect(kc,
                      got.count[h] == hand[i].count[h] &&
                          memcmp(got.keep[h], hand[i].keep[h], 4 * got.count[h]) == 0,
                      "case %zu, head %u: %u stay", i, h, got.count[h]);
    }
    struct aq_kv_select s = {.len = 8, .recent = 2, .heavy = 3};
    static const uint32_t first[] = {0, 1, 2, 6, 7};
    struct selection got;
    select_with(kc, kc_new(kc), s, &got, 0);
    for (uint32_t h = 0; h < SELECT_HEADS; h++)
        kc_expect(kc, got.count[h] == 5 && memcmp(got.keep[h], first, sizeof(first)) == 0,
                  "without values, head %u", h);
}

static void check_select_drawn(struct kc *kc, uint32_t len, bool layer)
{
    uint32_t stride = len + kc_below(kc, 5);
    float *value = kc_bytes(kc, (size_t)SELECT_HEADS * stride * sizeof(*value));
    for (uint32_t draw = 0; draw < 12; draw++) {
        for (uint32_t i = 0; i < SELECT_HEADS * stride; i++)
            value[i] = draw % 3 ? (float)kc_below(kc, 1 + draw) : (float)kc_below(kc, 1u << 30);
        struct aq_kv_select s = {.value = draw == 5 ? NULL : value,
                                 .stride = stride,
                                 .len = len,
                                 .recent = kc_below(kc, len + 1),
                                 .heavy = kc_below(kc, len + 1),
                                 .sinks = draw & 1 ? kc_below(kc, len + 1) : 0,
                                 .layer = layer,
                                 .floor = kc_below(kc, 9),
                                 .mix = draw % 4 == 3 ? 1 + kc_below(kc, 10) * 100000000 : 0};
        struct selection ref, got;
        select_with(kc, kc_ref(kc), s, &ref, 1);
        for (uint32_t threads = 1; threads <= 3; threads++) {
            select_with(kc, kc_new(kc), s, &got, threads);
            kc_expect(kc, memcmp(&ref, &got, sizeof(ref)) == 0,
                      "draw %u: not what the reference selects (%u threads)", draw, threads);
        }
    }
}

static void check_selections(struct kc *kc)
{
    if (kc_begin(kc, KC_SLOT(kv_select), "kv_select_by_hand"))
        check_select_by_hand(kc);
    static const uint32_t lens[] = {1, 2, 31, 32, 33, 70, 300};
    for (size_t i = 0; i < AQ_ARRAY_LEN(lens); i++) {
        for (uint32_t layer = 0; layer < 2; layer++) {
            if (lens[i] * layer > 70) /* the reference compares every two, for every one */
                continue;
            if (kc_begin(kc, KC_SLOT(kv_select), "kv_select_%u%s", lens[i], layer ? "_layer" : ""))
                check_select_drawn(kc, lens[i], layer);
        }
    }
}

/* ---- moves ---- */

/* What a slot of a head holds: bits of K and V, widened, and what is remembered of it. */
static void expect_slot(struct kc *kc, const struct kc_attn *t, const struct aq_kv_side *now,
                        uint32_t to, const struct aq_kv_side *then, uint32_t from, uint32_t head)
{
    enum aq_dtype dtype = t->a.kv_dtype;
    uint32_t dim = t->a.head_dim;
    const uint8_t *got =
        now->block[(size_t)head * now->head_table_step + to / 32] + head * now->head_offset;
    const uint8_t *want =
        then->block[(size_t)head * then->head_table_step + from / 32] + head * then->head_offset;
    for (uint32_t half = 0; half < 64; half += 32) {
        for (uint32_t d = 0; d < dim; d++) {
            float x = aq_kv_load(got, dtype, dim, half + to % 32, d);
            float y = aq_kv_load(want, dtype, dim, half + from % 32, d);
            if (!kc_expect(kc, memcmp(&x, &y, sizeof(x)) == 0,
                           "head %u: slot %u holds %g at %u, expected %g of slot %u", head, to, x,
                           half + d, y, from))
                return;
        }
    }
    if (!now->slots.position)
        return;
    size_t at = (size_t)head * now->slots.stride + to;
    size_t was = (size_t)head * then->slots.stride + from;
    kc_expect(kc,
              now->slots.position[at] == (then->slots.position ? then->slots.position[was] : from),
              "head %u: slot %u is said to be at position %u", head, to, now->slots.position[at]);
    if (then->slots.score)
        kc_expect(kc, now->slots.score[at] == then->slots.score[was],
                  "head %u: slot %u is said to have a score of %g", head, to, now->slots.score[at]);
}

static struct aq_attn_slots draw_slots(struct kc *kc, uint32_t heads, uint32_t stride)
{
    struct aq_attn_slots s = {.score = kc_bytes(kc, (size_t)heads * stride * 4),
                              .position = kc_bytes(kc, (size_t)heads * stride * 4),
                              .victim = kc_bytes(kc, heads * sizeof(uint32_t)),
                              .stride = stride};
    for (size_t i = 0; i < (size_t)heads * stride; i++) {
        s.score[i] = (float)kc_below(kc, 1000);
        s.position[i] = kc_below(kc, 1000);
    }
    return s;
}

struct moved {
    struct kc_attn now, then; /* the same numbers in other blocks */
    struct aq_kv_side side, old;
    uint32_t len;
};

static struct aq_kv_side side_of(const struct aq_attn_seq *s, const struct aq_attn_slots *slots)
{
    return (struct aq_kv_side){.block = s->block,
                               .head_table_step = s->head_table_step,
                               .head_offset = s->head_offset,
                               .slots = *slots};
}

/* One sequence of `len` keys and a copy of it as it was. */
static void make_moved(struct kc *kc, struct moved *m, const struct kc_attn_shape *shape)
{
    uint32_t heads = shape->kv_heads;
    do /* every head has keys */
        kc_attn_make(kc, &m->now, shape);
    while (aq_attn_len(&m->now.seq[0], 0) < 5 || aq_attn_len(&m->now.seq[0], heads - 1) < 5);
    m->len = UINT32_MAX;
    for (uint32_t h = 0; h < heads; h++)
        m->len = (uint32_t)aq_min_u64(m->len, aq_attn_len(&m->now.seq[0], h));
    struct aq_attn_slots slots = draw_slots(kc, heads, 128), old = slots;
    m->then = m->now;
    m->side = side_of(&m->now.seq[0], &slots);
    uint8_t *pool = kc_bytes(kc, m->now.pool_bytes);
    memcpy(pool, m->now.pool, m->now.pool_bytes);
    size_t bytes = (size_t)heads * old.stride * 4;
    old.score = memcpy(kc_bytes(kc, bytes), slots.score, bytes);
    old.position = memcpy(kc_bytes(kc, bytes), slots.position, bytes);
    uint32_t blocks = 64;
    uint8_t **table = kc_bytes(kc, blocks * sizeof(*table));
    uint32_t used = (uint32_t)aq_div_up(shape->len_max, 32) * heads;
    assert(used <= blocks);
    uint32_t entries =
        shape->ragged ? m->now.seq[0].head_table_step * heads : (uint32_t)aq_div_up(m->len, 32);
    for (uint32_t b = 0; b < entries; b++)
        table[b] = pool + (m->now.seq[0].block[b] - m->now.pool);
    m->then.seq[0].block = table;
    m->old = side_of(&m->then.seq[0], &old);
}

static uint32_t *ascending(struct kc *kc, uint32_t heads, uint32_t stride, uint32_t len,
                           uint32_t *count)
{
    uint32_t *list = kc_bytes(kc, (size_t)heads * stride * sizeof(*list));
    for (uint32_t h = 0; h < heads; h++) {
        count[h] = 0;
        for (uint32_t j = 0; j < len; j++) {
            if (kc_below(kc, 3))
                list[h * stride + count[h]++] = j;
        }
    }
    return list;
}

static void run_move(struct kc *kc, const struct kc_attn_shape *shape,
                     const struct aq_kv_move *move, uint32_t threads)
{
    struct aq_kv_moves m = {move, 1, shape->kv_dtype, shape->kv_heads, shape->head_dim};
    kc_new(kc)->kv_move(kc_exec(kc, threads), &m);
}

/* Slots that stay move to the front, in place. */
static void check_gather(struct kc *kc, const struct kc_attn_shape *shape, uint32_t threads)
{
    struct moved m;
    make_moved(kc, &m, shape);
    uint32_t *count = kc_bytes(kc, shape->kv_heads * sizeof(*count));
    struct aq_kv_move move = {.from = m.side, .to = m.side, .count = count, .count_step = 1};
    move.from.list = ascending(kc, shape->kv_heads, 128, m.len, count);
    move.from.list_stride = 128;
    run_move(kc, shape, &move, threads);
    for (uint32_t h = 0; h < shape->kv_heads; h++) {
        for (uint32_t i = 0; i < m.len; i++)
            expect_slot(kc, &m.now, &m.side, i, &m.old,
                        i < count[h] ? move.from.list[h * 128 + i] : i, h);
    }
}

/* Slot `victim` of each head to slot 3, and slots 1, 2, ... to `count` others; one head is left
 * out. */
static void check_scatter(struct kc *kc, const struct kc_attn_shape *shape, uint32_t threads)
{
    struct moved m, other;
    make_moved(kc, &m, shape);
    make_moved(kc, &other, shape);
    uint32_t heads = shape->kv_heads, skip = kc_below(kc, heads + 1), one = 1;
    uint32_t *victim = kc_bytes(kc, heads * sizeof(*victim));
    for (uint32_t h = 0; h < heads; h++)
        victim[h] = h == skip ? UINT32_MAX : kc_below(kc, m.len);
    struct aq_kv_move move = {.from = m.side, .to = other.side, .count = &one};
    move.from.list = victim;
    move.from.list_stride = 1;
    move.from.slots.position = NULL; /* slot j holds position j */
    struct aq_kv_side counted = m.old;
    counted.slots.position = NULL;
    move.to.first = 3;
    run_move(kc, shape, &move, threads);
    for (uint32_t h = 0; h < heads; h++) {
        for (uint32_t i = 0; i < other.len; i++) {
            bool moved = i == 3 && h != skip;
            expect_slot(kc, &m.now, &other.side, i, moved ? &counted : &other.old,
                        moved ? victim[h] : i, h);
        }
    }
    /* Back, into slots of a list: the last one that names a slot has its way. */
    uint32_t back[4] = {4, 0, 4, UINT32_MAX}, four = 4;
    move = (struct aq_kv_move){.from = other.side, .to = m.side, .count = &four};
    move.from.slots.score = NULL;
    move.from.first = 1;
    move.to.list = back; /* the same for every head */
    float *score = m.side.slots.score;
    float kept = score[4];
    run_move(kc, shape, &move, threads);
    struct aq_kv_side from = other.side, to = m.side;
    from.slots.score = NULL;
    for (uint32_t h = 0; h < heads; h++) {
        expect_slot(kc, &m.now, &to, 4, &from, 3, h);
        expect_slot(kc, &m.now, &to, 0, &from, 2, h);
        expect_slot(kc, &m.now, &to, 1, &m.old, 1, h);
    }
    kc_expect(kc, score[4] == kept, "a score moved that only one side has");
}

static void check_moves(struct kc *kc)
{
    static const uint32_t dims[] = {64, 7, 33};
    for (size_t i = 0; i < AQ_ARRAY_LEN(dims); i++) {
        for (size_t d = 0; d < AQ_ARRAY_LEN(kv_dtypes); d++) {
            for (uint32_t ragged = 0; ragged < 2; ragged++) {
                struct kc_attn_shape shape = {.seqs = 1,
                                              .kv_heads = 4,
                                              .q_per_kv = 1,
                                              .head_dim = dims[i],
                                              .kv_dtype = kv_dtypes[d],
                                              .rows_max = 1,
                                              .len_max = 100,
                                              .ragged = ragged};
                const char *name = aq_dtype_name(kv_dtypes[d]);
                if (kc_begin(kc, KC_SLOT(kv_move), "kv_gather_%s_d%u_%u", name, dims[i], ragged)) {
                    for (uint32_t threads = 1; threads <= 3; threads++)
                        check_gather(kc, &shape, threads);
                }
                if (kc_begin(kc, KC_SLOT(kv_move), "kv_move_%s_d%u_%u", name, dims[i], ragged)) {
                    for (uint32_t threads = 1; threads <= 3; threads++)
                        check_scatter(kc, &shape, threads);
                }
            }
        }
    }
}

/* ---- targets ---- */

/* A victim in a whole block is a target, one behind them is none; nothing else is written. */
static void check_note(struct kc *kc, uint32_t heads)
{
    uint32_t count = heads * AQ_HEAD_BLOCK_SLOTS, whole = kc_below(kc, 100);
    uint32_t *target = kc_bytes(kc, count * sizeof(*target));
    uint32_t *victim = kc_bytes(kc, heads * sizeof(*victim));
    memset(target, 0x77, count * sizeof(*target));
    for (uint32_t h = 0; h < heads; h++)
        victim[h] = kc_below(kc, 4) ? whole + kc_below(kc, 3) - 1 : UINT32_MAX;
    kc_new(kc)->kv_note(kc_exec(kc, 0), &(struct aq_kv_note){target, victim, heads, whole});
    for (uint32_t i = 0; i < count; i++) {
        uint32_t h = i / AQ_HEAD_BLOCK_SLOTS, want = victim[h] < whole ? victim[h] : UINT32_MAX;
        want = i % AQ_HEAD_BLOCK_SLOTS ? 0x77777777 : want;
        kc_expect(kc, target[i] == want, "number %u is %u, expected %u", i, target[i], want);
    }
}

static void check_notes(struct kc *kc)
{
    static const uint32_t heads[] = {1, 3, 40, 300};
    for (size_t i = 0; i < AQ_ARRAY_LEN(heads); i++) {
        if (kc_begin(kc, KC_SLOT(kv_note), "kv_note_%u", heads[i]))
            check_note(kc, heads[i]);
    }
}

/* ---- rows that are stored ---- */

/* New rows, some at the end and some over victims, are stored where they belong and nowhere else,
 * and what is remembered of their slots starts anew. */
static void check_store(struct kc *kc, const struct kc_attn_shape *shape)
{
    struct kc_attn t;
    kc_attn_make(kc, &t, shape);
    uint32_t heads = shape->kv_heads, cols = heads * shape->head_dim, stride = 128;
    const float *k_new = kc_in(kc, AQ_F32, KC_NORMAL, t.rows, cols, cols);
    const float *v_new = kc_in(kc, AQ_F32, KC_NORMAL, t.rows, cols, cols);
    struct aq_attn_slots old[KC_ATTN_SEQS_MAX];
    size_t bytes = (size_t)heads * stride * 4;
    for (uint32_t i = 0; i < shape->seqs; i++) {
        struct aq_attn_seq *s = &t.seq[i];
        s->overwrite = s->rows == 1 && kc_below(kc, 2);
        s->slots = draw_slots(kc, heads, stride);
        s->position = 5000 + i;
        for (uint32_t h = 0; h < heads; h++)
            s->slots.victim[h] = kc_below(kc, aq_attn_len(s, h));
        old[i] = s->slots;
        old[i].score = memcpy(kc_bytes(kc, bytes), s->slots.score, bytes);
        old[i].position = memcpy(kc_bytes(kc, bytes), s->slots.position, bytes);
    }
    uint8_t *before = memcpy(kc_bytes(kc, t.pool_bytes), t.pool, t.pool_bytes);
    t.a.k_new = k_new;
    t.a.v_new = v_new;
    t.a.new_stride = cols;
    kc_new(kc)->kv_append(kc_exec(kc, 0), &t.a);
    for (uint32_t i = 0; i < shape->seqs; i++) {
        struct aq_attn_seq *s = &t.seq[i];
        for (uint32_t h = 0; h < heads; h++) {
            uint32_t len = aq_attn_len(s, h);
            for (uint32_t r = 0; r < s->rows; r++) {
                uint32_t slot = s->overwrite ? s->slots.victim[h] : len - s->rows + r;
                uint8_t *block = aq_attn_block(s, h, slot / 32);
                size_t from = ((size_t)s->row + r) * cols + (size_t)h * shape->head_dim;
                /* The old bytes with the new row must be the new bytes. */
                uint8_t *was = before + (block - t.pool);
                aq_kv_store_row(was, shape->kv_dtype, shape->head_dim, slot % 32, k_new + from);
                aq_kv_store_row(was, shape->kv_dtype, shape->head_dim, 32 + slot % 32,
                                v_new + from);
                old[i].score[(size_t)h * stride + slot] = 0;
                old[i].position[(size_t)h * stride + slot] = 5000 + i + r;
            }
        }
        kc_expect(kc, memcmp(old[i].score, s->slots.score, bytes) == 0, "scores of sequence %u", i);
        kc_expect(kc, memcmp(old[i].position, s->slots.position, bytes) == 0,
                  "positions of sequence %u", i);
    }
    kc_expect(kc, memcmp(before, t.pool, t.pool_bytes) == 0, "blocks");
}

static void check_stores(struct kc *kc)
{
    static const uint32_t dims[] = {64, 80, 7};
    for (size_t i = 0; i < AQ_ARRAY_LEN(dims); i++) {
        for (size_t d = 0; d < AQ_ARRAY_LEN(kv_dtypes); d++) {
            if (!kc_begin(kc, KC_SLOT(kv_append), "kv_overwrite_%s_d%u",
                          aq_dtype_name(kv_dtypes[d]), dims[i]))
                continue;
            for (uint32_t draw = 0; draw < 6; draw++) {
                struct kc_attn_shape shape = {.seqs = 5,
                                              .kv_heads = 1 + kc_below(kc, 11),
                                              .q_per_kv = 1,
                                              .head_dim = dims[i],
                                              .kv_dtype = kv_dtypes[d],
                                              .rows_max = 2,
                                              .len_max = 100,
                                              .ragged = draw & 1,
                                              .holds_rows = true};
                check_store(kc, &shape);
            }
        }
    }
}

static void check(struct kc *kc)
{
    check_victims(kc);
    check_selections(kc);
    check_moves(kc);
    check_notes(kc);
    check_stores(kc);
}

/* ---- benchmarks ---- */

struct bench {
    struct kc *kc;
    struct aq_kv_select select;
    uint32_t heads;
};

static void bench_call(void *arg, uint64_t i)
{
    struct bench *b = arg;
    kc_new(b->kc)->kv_select(kc_exec(b->kc, 0), &(struct aq_kv_selects){&b->select, 1, b->heads});
}

/* A fifth of a prompt's keys stays. */
static void bench(struct kc *kc)
{
    static const uint32_t lens[] = {512, 2048};
    for (size_t i = 0; i < AQ_ARRAY_LEN(lens); i++) {
        uint32_t len = lens[i], heads = 32;
        if (!kc_bench_begin(kc, KC_SLOT(kv_select), "kv_select_h%u_s%u", heads, len))
            continue;
        if (kc_new(kc) == kc_ref(kc))
            continue; /* compares every two slots */
        float *value = kc_hot(kc, (size_t)heads * len * sizeof(*value));
        for (uint32_t j = 0; j < heads * len; j++)
            value[j] = (float)kc_below(kc, 1u << 24) * 1e-6f;
        struct bench b = {.kc = kc, .heads = heads};
        b.select = (struct aq_kv_select){.value = value,
                                         .stride = len,
                                         .len = len,
                                         .recent = len / 10,
                                         .heavy = len / 10,
                                         .keep = kc_hot(kc, (size_t)heads * len * 4),
                                         .keep_stride = len,
                                         .count = kc_hot(kc, heads * 4)};
        kc_bench(kc, &(struct kc_bench){.call = bench_call, .arg = &b, .bytes = 4.0 * heads * len});
    }
}

const struct kc_check kc_check_slots = {.name = "slots", .check = check, .bench = bench};
