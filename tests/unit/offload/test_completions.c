/* SPDX-License-Identifier: Apache-2.0
 * The completion queue and the timeline behind it in virtual time. */
#include "base/types.h"
#include "offload/completions.h"
#include "offload/timeline.h"
#include "tests/test.h"

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

enum { PUSHERS = 4, EACH = 20000, CAPACITY = 64 };

static struct aq_completions *open_queue(uint32_t capacity, struct aq_timeline *t)
{
    struct aq_completions *c;
    assert_int_equal(aq_completions_open(&c, capacity, t, NULL), 0);
    return c;
}

static bool readable(const struct aq_completions *c)
{
    struct pollfd p = {.fd = aq_completions_fd(c), .events = POLLIN};
    return poll(&p, 1, 0) == 1;
}

static void tokens_come_in_the_order_of_pushing(void **state)
{
    (void)state;
    struct aq_completions *c = open_queue(5, NULL);
    struct aq_completion out[3];
    uint64_t pushed = 0, taken = 0;
    for (int round = 0; round < 7; round++) {
        while (pushed - taken < 5) {
            aq_completions_push(c, pushed, -(int)(pushed % 3));
            pushed++;
        }
        int n = aq_completions_wait(c, out, 3, AQ_WAIT_FOREVER);
        assert_int_equal(n, 3);
        for (int i = 0; i < n; i++, taken++) {
            assert_int_equal(out[i].token, taken);
            assert_int_equal(out[i].result, -(int)(taken % 3));
        }
    }
    aq_completions_close(c);
}

static void descriptor_is_readable_exactly_while_something_is_there(void **state)
{
    (void)state;
    struct aq_completions *c = open_queue(4, NULL);
    struct aq_completion out[4];
    assert_false(readable(c));
    aq_completions_push(c, 1, 0);
    aq_completions_push(c, 2, 0);
    assert_true(readable(c));
    assert_int_equal(aq_completions_wait(c, out, 1, 0), 1);
    assert_true(readable(c));
    assert_int_equal(aq_completions_wait(c, out, 4, 0), 1);
    assert_false(readable(c));
    aq_completions_close(c);
}

static void an_empty_queue_gives_nothing_after_the_timeout(void **state)
{
    (void)state;
    struct aq_completions *c = open_queue(1, NULL);
    struct aq_completion out;
    assert_int_equal(aq_completions_wait(c, &out, 1, 0), 0);
    assert_int_equal(aq_completions_wait(c, &out, 1, 1000000), 0);
    aq_completions_close(c);
}

/* Pushers that keep to the bound: each waits until its share of the queue is free. */
struct pusher {
    struct aq_completions *c;
    uint32_t index;
    uint64_t *payload;
    atomic_uint *out;
    pthread_t thread;
};

static void *push_many(void *arg)
{
    struct pusher *p = arg;
    for (uint64_t i = 0; i < EACH; i++) {
        while (atomic_load(p->out) >= CAPACITY / PUSHERS)
            sched_yield();
        atomic_fetch_add(p->out, 1);
        /* Plain memory: whether the taker may read it is what the thread sanitizer checks. */
        p->payload[i] = i * PUSHERS + p->index + 1;
        aq_completions_push(p->c, i * PUSHERS + p->index, 0);
    }
    return NULL;
}

static void nothing_is_lost_among_many_pushers(void **state)
{
    (void)state;
    static uint64_t payload[PUSHERS][EACH];
    struct aq_completions *c = open_queue(CAPACITY, NULL);
    struct pusher p[PUSHERS];
    atomic_uint out[PUSHERS];
    uint64_t next[PUSHERS] = {0};
    for (uint32_t i = 0; i < PUSHERS; i++) {
        atomic_init(&out[i], 0);
        p[i] = (struct pusher){.c = c, .index = i, .payload = payload[i], .out = &out[i]};
        assert_int_equal(pthread_create(&p[i].thread, NULL, push_many, &p[i]), 0);
    }
    struct aq_completion got[7];
    for (uint64_t taken = 0; taken < (uint64_t)PUSHERS * EACH;) {
        int n = aq_completions_wait(c, got, AQ_ARRAY_LEN(got), AQ_WAIT_FOREVER);
        assert_true(n > 0);
        for (int i = 0; i < n; i++, taken++) {
            uint32_t who = (uint32_t)(got[i].token % PUSHERS);
            assert_int_equal(got[i].token / PUSHERS, next[who]);
            assert_int_equal(payload[who][next[who]], got[i].token + 1);
            next[who]++;
            atomic_fetch_sub(&out[who], 1);
        }
    }
    for (uint32_t i = 0; i < PUSHERS; i++)
        pthread_join(p[i].thread, NULL);
    aq_completions_close(c);
}

/* A source of events at given times, each of which pushes its number. */
struct script {
    struct aq_completions *c;
    const uint64_t *at;
    uint64_t base;
    uint32_t count, next;
};

static uint64_t script_next(void *arg)
{
    const struct script *s = arg;
    return s->next < s->count ? s->at[s->next] : AQ_TIMELINE_NEVER;
}

static void script_fire(void *arg, uint64_t now_ns)
{
    struct script *s = arg;
    assert_int_equal(now_ns, s->at[s->next]);
    aq_completions_push(s->c, s->base + s->next++, 0);
}

static void virtual_wait_moves_the_clock_to_the_earliest_event(void **state)
{
    (void)state;
    struct aq_timeline *t;
    assert_int_equal(aq_timeline_open(&t, 1, NULL), 0);
    struct aq_completions *c = open_queue(8, t);
    uint64_t a_at[] = {10, 30, 1000}, b_at[] = {20};
    struct script a = {.c = c, .at = a_at, .count = 3};
    struct script b = {.c = c, .at = b_at, .count = 1, .base = 10};
    aq_timeline_add(t, &(struct aq_timeline_source){script_next, script_fire, &a});
    aq_timeline_add(t, &(struct aq_timeline_source){script_next, script_fire, &b});
    uint64_t token[] = {0, 10, 1}, at[] = {10, 20, 30};
    struct aq_completion out[8];
    for (int i = 0; i < 3; i++) {
        assert_int_equal(aq_completions_wait(c, out, 8, AQ_WAIT_FOREVER), 1);
        assert_int_equal(out[0].token, token[i]);
        assert_int_equal(aq_timeline_now(t), at[i]);
    }
    /* The timeout is of virtual time. */
    assert_int_equal(aq_completions_wait(c, out, 8, 70), 0);
    assert_int_equal(aq_timeline_now(t), 100);
    assert_int_equal(aq_completions_wait(c, out, 8, 900), 1);
    assert_int_equal(aq_timeline_now(t), 1000);
    assert_int_equal(aq_completions_wait(c, out, 8, AQ_WAIT_FOREVER), -EDEADLK);
    aq_timeline_remove(t, &a);
    aq_timeline_remove(t, &b);
    aq_completions_close(c);
    aq_timeline_close(t);
}

/* The order in which two sources with events at the same times fire. */
static uint64_t order_of(uint64_t seed)
{
    struct aq_timeline *t;
    assert_int_equal(aq_timeline_open(&t, seed, NULL), 0);
    struct aq_completions *c = open_queue(64, t);
    uint64_t at[16], bits = 0;
    for (uint64_t i = 0; i < 16; i++)
        at[i] = 5 * i;
    struct script a = {.c = c, .at = at, .count = 16}, b = {.c = c, .at = at, .count = 16};
    b.base = 100;
    aq_timeline_add(t, &(struct aq_timeline_source){script_next, script_fire, &a});
    aq_timeline_add(t, &(struct aq_timeline_source){script_next, script_fire, &b});
    struct aq_completion out;
    while (aq_completions_wait(c, &out, 1, AQ_WAIT_FOREVER) == 1)
        bits = bits << 1 | (out.token >= 100);
    aq_timeline_remove(t, &a);
    aq_timeline_remove(t, &b);
    aq_completions_close(c);
    aq_timeline_close(t);
    return bits;
}

static void ties_are_broken_by_the_seed_alone(void **state)
{
    (void)state;
    uint64_t first = order_of(1);
    bool other = false;
    assert_int_equal(order_of(1), first);
    for (uint64_t seed = 2; seed < 10; seed++)
        other |= order_of(seed) != first;
    assert_true(other);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(tokens_come_in_the_order_of_pushing),
    cmocka_unit_test(descriptor_is_readable_exactly_while_something_is_there),
    cmocka_unit_test(an_empty_queue_gives_nothing_after_the_timeout),
    cmocka_unit_test(nothing_is_lost_among_many_pushers),
    cmocka_unit_test(virtual_wait_moves_the_clock_to_the_earliest_event),
    cmocka_unit_test(ties_are_broken_by_the_seed_alone),
};
AQ_TEST_MAIN(tests)
