/* SPDX-License-Identifier: Apache-2.0
 * The order of prompts that begin alike, against their tokens: random jobs of which some prompts
 * begin as earlier ones do. */
#include "base/prng.h"
#include "engine/job/distinct.h"
#include "tests/test.h"

#include <string.h>

enum { JOBS = 200, PROMPTS = 60, TOKENS = 300, STEP = 32 };

struct job {
    uint64_t seed;
    uint32_t count[PROMPTS], token[PROMPTS][TOKENS];
};

static uint32_t roll(const struct job *j, uint64_t what, uint64_t i, uint32_t below)
{
    return (uint32_t)aq_prng_below(j->seed, what, i, below);
}

static void draw(struct job *j, uint64_t seed)
{
    *j = (struct job){.seed = seed};
    for (uint32_t i = 0; i < PROMPTS; i++) {
        uint32_t from = i && roll(j, 1, i, 3) ? roll(j, 2, i, i) : i, same = 0;
        j->count[i] = 1 + roll(j, 3, i, TOKENS);
        if (from != i)
            same = roll(j, 4, i, 1 + (j->count[i] < j->count[from] ? j->count[i] : j->count[from]));
        memcpy(j->token[i], j->token[from], same * sizeof(j->token[i][0]));
        for (uint32_t t = same; t < j->count[i]; t++)
            j->token[i][t] = 1000 * i + t;
    }
}

static bool wants(void *user, uint64_t item)
{
    return roll(user, 5, item, 10) > 0;
}

/* Tokens of whole steps with which both begin. */
static uint32_t alike(const struct job *j, uint64_t a, uint64_t b)
{
    uint32_t n = 0;
    while (n < j->count[a] && n < j->count[b] && j->token[a][n] == j->token[b][n])
        n++;
    return n / STEP * STEP;
}

static struct aq_alike *open_all(const struct job *j, uint64_t bytes)
{
    struct aq_alike *a;
    assert_int_equal(aq_alike_open(&a, bytes, NULL), 0);
    for (uint32_t i = 0; i < PROMPTS; i++)
        assert_int_equal(aq_alike_add(a, i, j->token[i], j->count[i], NULL), 0);
    return a;
}

/* Each stands beside one that it shares most with: a later one never shares more with it than the
 * one behind it does. */
static void check_order(struct job *j, const uint64_t *order, int64_t shared)
{
    bool seen[PROMPTS] = {false};
    int64_t sum = 0;
    uint64_t first = 0;
    for (uint32_t i = 0; i < PROMPTS; i++) {
        uint64_t item = order[i], behind = i ? order[i - 1] : item;
        assert_true(item < PROMPTS && !seen[item]);
        seen[item] = true;
        bool both = i && wants(j, item) && wants(j, behind);
        uint32_t same = both ? alike(j, item, behind) : 0;
        sum += same;
        for (uint32_t before = 0; before < i && wants(j, item); before++) {
            if (wants(j, order[before]))
                assert_true(alike(j, item, order[before]) <= same);
        }
        /* Those that begin a run, or stand alone, are in order by the lowest number of each. */
        if (same)
            continue;
        uint64_t lowest = item;
        for (uint32_t n = i + 1; n < PROMPTS && wants(j, item) && wants(j, order[n]); n++) {
            if (!alike(j, order[n], order[n - 1]))
                break;
            lowest = order[n] < lowest ? order[n] : lowest;
        }
        assert_true(i == 0 || lowest > first);
        first = lowest;
    }
    assert_int_equal(sum, shared);
}

static void prompts_that_begin_alike_stand_together(void **state)
{
    int64_t all = 0;
    (void)state;
    for (uint64_t seed = 1; seed <= JOBS; seed++) {
        static struct job j;
        uint64_t order[PROMPTS];
        draw(&j, seed);
        struct aq_alike *a = open_all(&j, 1 << 20);
        int64_t shared = aq_alike_order(a, order, PROMPTS, wants, &j, NULL);
        check_order(&j, order, shared);
        all += shared;
        aq_alike_close(a);
    }
    assert_true(all > 1000 * JOBS);
}

/* Without memory for sums those that come late stand alone, and no number is lost. */
static void sums_that_have_no_room_are_left_out(void **state)
{
    static struct job j;
    uint64_t order[PROMPTS], sum = 0;
    (void)state;
    draw(&j, 7);
    struct aq_alike *a = open_all(&j, 1 << 20), *b = open_all(&j, 80), *none = open_all(&j, 0);
    int64_t most = aq_alike_order(a, order, PROMPTS, wants, &j, NULL);
    int64_t some = aq_alike_order(b, order, PROMPTS, wants, &j, NULL);
    assert_true(some <= most && some <= 80 / 4 * STEP);
    assert_int_equal(aq_alike_order(none, order, PROMPTS, wants, &j, NULL), 0);
    for (uint64_t i = 0; i < PROMPTS; i++)
        sum += order[i] == i;
    assert_int_equal(sum, PROMPTS);
    aq_alike_close(a);
    aq_alike_close(b);
    aq_alike_close(none);
    aq_alike_close(NULL);
}

/* The chain of neighbours, in the order of the run and as they come, against the tokens. */
static void lengths_say_what_neighbours_have_in_common(void **state)
{
    uint64_t all = 0;
    (void)state;
    for (uint64_t seed = 1; seed <= JOBS; seed++) {
        static struct job j;
        uint64_t order[PROMPTS], sum = 0;
        uint32_t times[PROMPTS], at = 0;
        draw(&j, seed);
        struct aq_alike *a = open_all(&j, 1 << 20);
        struct aq_lengths l = {0};
        struct aq_distinct d = {.lengths = &l, .alike = a};
        aq_alike_order(a, order, PROMPTS, wants, &j, NULL);
        for (uint32_t i = 0; i < PROMPTS; i++) {
            uint64_t item = seed % 2 ? order[i] : i;
            times[i] = 1 + roll(&j, 6, item, 3);
            assert_true(aq_distinct_add(
                &d, item, (struct aq_length){j.count[item], 1, j.count[item]}, times[i]));
        }
        for (uint32_t i = 0; i < PROMPTS; at += times[i++]) {
            uint64_t item = seed % 2 ? order[i] : i;
            uint64_t before = !i ? item : seed % 2 ? order[i - 1] : i - 1;
            assert_int_equal(l.item[at].shared, i ? alike(&j, item, before) : 0);
            for (uint32_t n = 0; n < times[i]; n++) {
                uint32_t shared = l.item[at + n].shared, most = j.count[item] - 1;
                assert_true(!n || shared == j.count[item]);
                sum += (shared < most ? shared : most) / STEP * STEP;
            }
        }
        assert_int_equal(at, l.count);
        assert_int_equal(sum, d.shared_sum);
        all += sum;
        aq_lengths_close(&l);
        aq_alike_close(a);
    }
    assert_true(all > 1000 * JOBS);
}

/* Choices of a context end what can be said of the first of them; without sums nothing is. */
static void sequences_of_one_record_end_a_chain(void **state)
{
    static struct job j;
    struct aq_lengths l = {0};
    (void)state;
    for (uint32_t i = 0; i < 3; i++) {
        j.count[i] = 200;
        for (uint32_t t = 0; t < 200; t++)
            j.token[i][t] = t < 160 ? t : 1000 * i + t;
    }
    struct aq_alike *a;
    assert_int_equal(aq_alike_open(&a, 1 << 20, NULL), 0);
    for (uint32_t i = 0; i < 3; i++)
        assert_int_equal(aq_alike_add(a, i, j.token[i], 200, NULL), 0);
    struct aq_distinct d = {.lengths = &l, .alike = a};
    struct aq_length each = {200, 1, 96};
    assert_true(aq_distinct_add(&d, 0, (struct aq_length){200, 1, 200}, 1));
    assert_true(aq_distinct_add(&d, 1, (struct aq_length){200, 1, 200}, 1));
    assert_int_equal(l.item[1].shared, 160);
    assert_true(aq_distinct_add(&d, 2, each, 1));
    assert_true(aq_distinct_add(&d, 2, each, 2));
    assert_int_equal(l.item[2].shared, 96);
    assert_int_equal(l.item[4].shared, 96);
    assert_true(aq_distinct_add(&d, 0, (struct aq_length){200, 1, 200}, 1));
    assert_int_equal(l.item[5].shared, 96);
    assert_int_equal(d.shared_sum, 160 + 4 * 96);
    aq_lengths_close(&l);
    struct aq_distinct none = {.lengths = &l};
    assert_true(aq_distinct_add(&none, 0, each, 3));
    assert_true(l.count == 3 && !l.item[2].shared && !none.shared_sum);
    aq_lengths_close(&l);
    aq_alike_close(a);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(prompts_that_begin_alike_stand_together),
    cmocka_unit_test(sums_that_have_no_room_are_left_out),
    cmocka_unit_test(lengths_say_what_neighbours_have_in_common),
    cmocka_unit_test(sequences_of_one_record_end_a_chain),
};

int main(void)
{
    return cmocka_run_group_tests(tests, NULL, NULL) ? 1 : 0;
}
