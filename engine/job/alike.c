/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/job/alike.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { STEP = AQ_ALIKE_STEP, FIRST = 1024 };

struct prompt {
    uint64_t item, first; /* its sums: sum[first], ... */
    uint32_t steps;
};

struct aq_alike {
    uint32_t *sum; /* of the first STEP tokens of a prompt, of the first 2 * STEP, ... */
    struct prompt *prompt;
    uint64_t sums, sums_room, most, prompts, prompts_room;
};

int aq_alike_open(struct aq_alike **ret, uint64_t bytes, struct aq_err *reterr)
{
    struct aq_alike *a = calloc(1, sizeof(*a));
    if (!a)
        return aq_error_memory(reterr, "order of the prompts");
    a->most = bytes / sizeof(*a->sum);
    *ret = a;
    return 0;
}

void aq_alike_close(struct aq_alike *a)
{
    if (!a)
        return;
    free(a->sum);
    free(a->prompt);
    free(a);
}

/* Room for `more` things of `bytes` each behind those that are there. */
static int reserve(void *array, uint64_t *room, uint64_t count, uint64_t more, size_t bytes,
                   struct aq_err *reterr)
{
    uint64_t wanted = *room ? *room : FIRST;
    while (wanted < count + more)
        wanted *= 2;
    if (wanted == *room)
        return 0;
    void *larger = realloc(*(void **)array, wanted * bytes);
    if (!larger)
        return aq_error_memory(reterr, "order of the prompts");
    *(void **)array = larger;
    *room = wanted;
    return 0;
}

int aq_alike_add(struct aq_alike *a, uint64_t item, const uint32_t *ids, uint32_t count,
                 struct aq_err *reterr)
{
    uint64_t steps = count / STEP, sum = 0;
    steps = steps < a->most - a->sums ? steps : a->most - a->sums;
    if (!steps)
        return 0;
    assert(!a->prompts || a->prompt[a->prompts - 1].item < item);
    int rc = reserve(&a->sum, &a->sums_room, a->sums, steps, sizeof(*a->sum), reterr);
    if (rc == 0)
        rc = reserve(&a->prompt, &a->prompts_room, a->prompts, 1, sizeof(*a->prompt), reterr);
    if (rc < 0)
        return rc;
    a->prompt[a->prompts++] = (struct prompt){item, a->sums, (uint32_t)steps};
    for (uint64_t i = 0; i < steps; i++) {
        sum = XXH3_64bits_withSeed(ids + i * STEP, STEP * sizeof(*ids), sum);
        a->sum[a->sums++] = (uint32_t)sum;
    }
    return 0;
}

/* A run of sorted prompts of which each begins as the one before it does; `first` is the lowest
 * number in it. */
struct run {
    uint64_t first, at, count;
};

struct sorting {
    struct one {
        const struct prompt *prompt;
        const uint32_t *sum;
    } * one; /* [count], sorted by sums */
    struct run *run;
    uint64_t count, runs;
};

static uint32_t steps_alike(const struct one *x, const struct one *y)
{
    uint32_t n = 0;
    while (n < x->prompt->steps && n < y->prompt->steps && x->sum[n] == y->sum[n])
        n++;
    return n;
}

static int by_item(const void *key, const void *prompt)
{
    uint64_t item = *(const uint64_t *)key, at = ((const struct prompt *)prompt)->item;
    return item < at ? -1 : item > at;
}

uint32_t aq_alike_tokens(const struct aq_alike *a, uint64_t item, uint64_t other)
{
    struct one x, y;
    if (!a->prompts)
        return 0;
    x.prompt = bsearch(&item, a->prompt, a->prompts, sizeof(*a->prompt), by_item);
    y.prompt = bsearch(&other, a->prompt, a->prompts, sizeof(*a->prompt), by_item);
    if (!x.prompt || !y.prompt)
        return 0;
    x.sum = a->sum + x.prompt->first;
    y.sum = a->sum + y.prompt->first;
    return STEP * steps_alike(&x, &y);
}

static int by_sums(const void *a, const void *b)
{
    const struct one *x = a, *y = b;
    uint32_t n = steps_alike(x, y);
    bool x_ends = n == x->prompt->steps, y_ends = n == y->prompt->steps;
    if (!x_ends && !y_ends)
        return x->sum[n] < y->sum[n] ? -1 : 1;
    if (x_ends != y_ends) /* the shorter one is the beginning of the other */
        return x_ends ? -1 : 1;
    return x->prompt->item < y->prompt->item ? -1 : x->prompt->item > y->prompt->item;
}

static int by_first(const void *a, const void *b)
{
    const struct run *x = a, *y = b;
    return x->first < y->first ? -1 : x->first > y->first;
}

/* Finds the runs of two and more, and returns the tokens that their prompts share. */
static int64_t find_runs(struct sorting *s)
{
    int64_t shared = 0;
    for (uint64_t i = 0, end; i < s->count; i = end) {
        struct run run = {s->one[i].prompt->item, i, 1};
        uint32_t steps = 1;
        for (end = i + 1; end < s->count && steps; end += steps > 0) {
            steps = steps_alike(&s->one[end - 1], &s->one[end]);
            uint64_t item = s->one[end].prompt->item;
            run.first = steps && item < run.first ? item : run.first;
            run.count += steps > 0;
            shared += (int64_t)steps * STEP;
        }
        if (run.count > 1)
            s->run[s->runs++] = run;
    }
    qsort(s->run, s->runs, sizeof(*s->run), by_first);
    return shared;
}

static void put_order(const struct sorting *s, uint64_t *order, uint64_t count, uint8_t *in_run)
{
    uint64_t at = 0, run = 0;
    for (uint64_t i = 0; i < s->runs; i++) {
        for (uint64_t n = 0; n < s->run[i].count; n++)
            in_run[s->one[s->run[i].at + n].prompt->item] = 1;
    }
    for (uint64_t item = 0; item < count; item++) {
        if (run < s->runs && s->run[run].first == item) {
            for (uint64_t n = 0; n < s->run[run].count; n++)
                order[at++] = s->one[s->run[run].at + n].prompt->item;
            run++;
        } else if (!in_run[item]) {
            order[at++] = item;
        }
    }
    assert(at == count);
}

int64_t aq_alike_order(const struct aq_alike *a, uint64_t *ret_order, uint64_t count,
                       bool (*wants)(void *user, uint64_t item), void *user, struct aq_err *reterr)
{
    struct sorting s = {.one = calloc(a->prompts + 1, sizeof(*s.one)),
                        .run = calloc(a->prompts / 2 + 1, sizeof(*s.run))};
    uint8_t *in_run = calloc(count + 1, 1);
    int64_t shared = -ENOMEM;
    for (uint64_t i = 0; i < a->prompts && s.one; i++) {
        const struct prompt *p = &a->prompt[i];
        if (p->item < count && wants(user, p->item))
            s.one[s.count++] = (struct one){p, a->sum + p->first};
    }
    if (s.one && s.run && in_run) {
        qsort(s.one, s.count, sizeof(*s.one), by_sums);
        shared = find_runs(&s);
        put_order(&s, ret_order, count, in_run);
    } else {
        aq_error_memory(reterr, "order of the prompts");
    }
    free(s.one);
    free(s.run);
    free(in_run);
    return shared;
}
