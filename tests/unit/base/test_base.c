/* SPDX-License-Identifier: Apache-2.0 */
#include "base/half.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/prng.h"
#include "base/threads.h"
#include "tests/test.h"

#include <math.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Known answer of Philox4x32-10 for key and counter zero, from the Random123 distribution's
 * kat_vectors. */
static void philox_gives_the_published_vector(void **state)
{
    uint32_t w[4];
    aq_philox(w, 0, 0, 0);
    assert_int_equal(w[0], 0x6627e8d5u);
    assert_int_equal(w[1], 0xe169c58du);
    assert_int_equal(w[2], 0xbc57ac4cu);
    assert_int_equal(w[3], 0x9b00dbd8u);
}

static void every_f16_survives_the_way_through_f32(void **state)
{
    for (uint32_t h = 0; h < 65536; h++) {
        float f = aq_f32_from_f16((uint16_t)h);
        uint16_t back = aq_f16_from_f32(f);
        if (isnan(f))
            assert_true(isnan(aq_f32_from_f16(back)));
        else
            assert_int_equal(back, h);
    }
}

static void f16_rounds_to_nearest_even(void **state)
{
    assert_int_equal(aq_f16_from_f32(65519.0f),
                     0x7bff); /* just below the middle of 65504 and 65536 */
    assert_int_equal(aq_f16_from_f32(65520.0f), 0x7c00);
    assert_int_equal(aq_f16_from_f32(1.0f + 0x1p-11f), 0x3c00);     /* tie, to even */
    assert_int_equal(aq_f16_from_f32(1.0f + 3 * 0x1p-11f), 0x3c02); /* tie, to even */
    assert_int_equal(aq_f16_from_f32(0x1p-25f), 0);                 /* tie, to even zero */
    assert_int_equal(aq_f16_from_f32(nextafterf(0x1p-25f, 1.0f)), 1);
}

static void bf16_rounds_to_nearest_even(void **state)
{
    assert_int_equal(aq_bf16_from_f32(1.0f + 0x1p-8f), 0x3f80);
    assert_int_equal(aq_bf16_from_f32(1.0f + 3 * 0x1p-8f), 0x3f82);
    assert_true(isnan(aq_f32_from_bf16(aq_bf16_from_f32(NAN))));
    assert_int_equal(aq_bf16_from_f32(3.4e38f), 0x7f80 /* rounds up to infinity */);
}

struct sum {
    uint64_t tile[1000];
};

static void add_tile(void *arg, uint32_t tile, uint32_t worker)
{
    ((struct sum *)arg)->tile[tile] += tile + 1;
}

static void each_tile_runs_once_per_grid(void **state)
{
    for (uint32_t threads = 1; threads <= 5; threads += 2) {
        struct aq_pool *pool;
        assert_int_equal(aq_pool_open(&pool, threads, NULL), 0);
        struct sum s = {0};
        for (int round = 0; round < 300; round++)
            aq_pool_run(pool, add_tile, &s, 1000);
        for (uint32_t i = 0; i < 1000; i++)
            assert_int_equal(s.tile[i], 300 * (i + 1));
        aq_pool_close(pool);
    }
}

struct seen {
    cpu_set_t all;
    atomic_uint elsewhere, helped; /* tiles of workers that were not where they should be; all */
};

static void look_where(void *arg, uint32_t tile, uint32_t worker)
{
    struct seen *s = arg;
    uint32_t at = worker, cpu = 0;
    for (; !CPU_ISSET(cpu, &s->all) || at > 0; cpu++)
        at -= CPU_ISSET(cpu, &s->all) ? 1 : 0;
    if (worker) {
        atomic_fetch_add(&s->helped, 1);
        atomic_fetch_add(&s->elsewhere, (uint32_t)sched_getcpu() != cpu);
    }
    usleep(50); /* so that others get tiles too */
}

static void bound_workers_stay_where_they_are_put(void **state)
{
    struct seen s = {0};
    struct aq_pool *pool;
    assert_int_equal(sched_getaffinity(0, sizeof(s.all), &s.all), 0);
    uint32_t cpus = (uint32_t)CPU_COUNT(&s.all);
    assert_int_equal(aq_pool_open(&pool, cpus, NULL), 0);
    uint32_t owner = aq_pool_bind(pool);
    assert_true(owner > 0 && CPU_ISSET(owner - 1, &s.all));
    for (int round = 0; round < 20; round++)
        aq_pool_run(pool, look_where, &s, 10 * cpus);
    assert_int_equal(s.elsewhere, 0);
    assert_true(cpus == 1 || s.helped > 0);
    aq_pool_close(pool);
    assert_int_equal(aq_pool_open(&pool, cpus + 1, NULL), 0);
    assert_int_equal(aq_pool_bind(pool), 0); /* not one for each CPU */
    aq_pool_close(pool);
}

/* Which worker took each tile, and how many have one. */
struct taken {
    atomic_uint arrived;
    uint32_t workers, first[16], by[1000];
};

/* Nobody goes on before all workers have a tile. */
static void meet(void *arg, uint32_t tile, uint32_t worker)
{
    struct taken *t = arg;
    t->by[tile]++;
    if (t->first[worker] != UINT32_MAX)
        return;
    t->first[worker] = tile;
    atomic_fetch_add(&t->arrived, 1);
    while (atomic_load(&t->arrived) < t->workers)
        sched_yield();
}

static void groups_begin_with_their_own_share(void **state)
{
    static const struct aq_groups groups = {.count = 3, .end = {1, 3, 7}};
    struct aq_cpus cpus[AQ_GROUPS_MAX] = {0};
    cpu_set_t all;
    struct aq_pool *pool;
    assert_int_equal(sched_getaffinity(0, sizeof(all), &all), 0);
    for (uint32_t i = 0; i < AQ_THREADS_MAX; i++) {
        for (uint32_t g = 0; g < 3 && CPU_ISSET(i, &all); g++)
            cpus[g].bits[i / 64] |= 1ull << i % 64;
    }
    assert_int_equal(aq_pool_open(&pool, 7, NULL), 0);
    assert_true(aq_pool_spread(pool, &groups, cpus));
    for (uint32_t tiles = 7; tiles < 1000; tiles += 31) {
        struct taken t = {.workers = 7};
        memset(t.first, 0xff, sizeof(t.first));
        aq_pool_run(pool, meet, &t, tiles);
        for (uint32_t i = 0; i < tiles; i++)
            assert_int_equal(t.by[i], 1);
        for (uint32_t w = 0; w < 7; w++) {
            uint32_t g = w < 1 ? 0 : w < 3 ? 1 : 2;
            assert_in_range(t.first[w], aq_groups_first(&groups, g, tiles),
                            aq_groups_first(&groups, g + 1, tiles) - 1);
        }
    }
    aq_pool_close(pool);
}

struct inner {
    struct aq_claims claims;
    struct aq_pool *pool;
    atomic_uint by[60];
};

static void claim_all(void *arg, uint32_t tile, uint32_t worker)
{
    struct inner *in = arg;
    for (uint32_t t; (t = aq_claims_next(&in->claims, in->pool, worker)) != AQ_NO_TILE;)
        atomic_fetch_add(&in->by[t], 1);
}

/* In one group and in several, and whoever comes. */
static void claims_are_of_whole_units_and_come_once(void **state)
{
    static const struct aq_groups groups = {.count = 2, .end = {1, 3}};
    struct aq_cpus cpus[AQ_GROUPS_MAX];
    struct inner in;
    memset(cpus, 0xff, sizeof(cpus));
    for (uint32_t spread = 0; spread < 2; spread++) {
        assert_int_equal(aq_pool_open(&in.pool, 3, NULL), 0);
        if (spread)
            assert_true(aq_pool_spread(in.pool, &groups, cpus));
        for (uint32_t units = 1; units <= 20; units++) {
            memset(&in.by, 0, sizeof(in.by));
            aq_claims_open(&in.claims, in.pool, units, 3);
            assert_int_equal(in.claims.group[0].end, spread ? units / 3 * 3 : units * 3);
            aq_pool_run(in.pool, claim_all, &in, units % 4);
            for (uint32_t t = 0; t < 3 * units && units % 4; t++)
                assert_int_equal(in.by[t], 1);
        }
        aq_pool_close(in.pool);
    }
}

/* Two owners of one crew: grids of plain tiles and of claims, at the same time or one of them
 * idle. */
struct pair {
    struct aq_pool *pool;
    uint32_t threads, rounds;
    atomic_uint running[8]; /* by number of the worker in this pool: one tile at a time */
    atomic_uint by[60];
    struct aq_claims claims;
    atomic_uint helped; /* tiles of others than the owner */
    atomic_uint wanted; /* rounds that the owner is called for; */
    atomic_uint done;   /* and has run */
    atomic_bool over;
};

static void alone_with_its_number(struct pair *p, uint32_t worker)
{
    assert_true(worker < p->threads);
    assert_int_equal(atomic_exchange(&p->running[worker], 1), 0);
    atomic_fetch_add(&p->helped, worker > 0);
    for (volatile int i = 0; i < 300; i++)
        ;
    atomic_store(&p->running[worker], 0);
}

static void pair_tile(void *arg, uint32_t tile, uint32_t worker)
{
    struct pair *p = arg;
    alone_with_its_number(p, worker);
    atomic_fetch_add(&p->by[tile], 1);
}

static void pair_claims(void *arg, uint32_t tile, uint32_t worker)
{
    struct pair *p = arg;
    for (uint32_t t; (t = aq_claims_next(&p->claims, p->pool, worker)) != AQ_NO_TILE;) {
        alone_with_its_number(p, worker);
        atomic_fetch_add(&p->by[t], 1);
    }
}

static void run_pair(struct pair *p, uint32_t round)
{
    uint32_t tiles = 1 + round % 60;
    memset(p->by, 0, sizeof(p->by));
    aq_pool_begin(p->pool);
    if (round % 3 == 0) {
        aq_claims_open(&p->claims, p->pool, tiles, 1);
        aq_pool_run(p->pool, pair_claims, p, aq_claims_entries(p->pool, tiles));
    } else {
        aq_pool_run(p->pool, pair_tile, p, tiles);
    }
    if (round % 2)
        aq_pool_end(p->pool);
    for (uint32_t t = 0; t < 60; t++)
        assert_int_equal(p->by[t], t < tiles);
    if (round % 2 == 0)
        aq_pool_end(p->pool);
}

static void *owner_main(void *arg)
{
    struct pair *p = arg;
    while (!atomic_load(&p->over)) {
        if (p->done < p->wanted)
            run_pair(p, p->done++);
        else
            aq_pool_help(p->pool);
    }
    return NULL;
}

static void two_owners_share_workers_and_help_each_other(void **state)
{
    static const uint32_t threads[] = {1, 2, 3, 5};
    enum { ROUNDS = 1500 };
    uint32_t helped = 0;
    for (size_t i = 0; i < AQ_ARRAY_LEN(threads); i++) {
        struct aq_pool *pool;
        assert_int_equal(aq_pool_open(&pool, threads[i], NULL), 0);
        struct pair *pair = calloc(2, sizeof(*pair));
        pthread_t owner[2];
        pair[0].pool = pool;
        pair[1].pool = aq_pool_aside(pool);
        aq_pool_pair(pool, threads[i] > 2 ? threads[i] - 2 : 1);
        for (uint32_t k = 0; k < 2; k++) {
            pair[k].threads = threads[i];
            assert_int_equal(aq_pool_threads(pair[k].pool), threads[i]);
            assert_int_equal(pthread_create(&owner[k], NULL, owner_main, &pair[k]), 0);
        }
        /* Now both have work, now only one. */
        for (uint32_t round = 0; round < ROUNDS; round++) {
            for (uint32_t k = 0; k < 2; k++) {
                if ((round / 50 + k) % 3 == 0 && round % 50)
                    continue;
                atomic_fetch_add(&pair[k].wanted, 1);
                aq_pool_call(pair[k].pool);
            }
            if (round % 100 == 99)
                usleep(500);
        }
        for (uint32_t k = 0; k < 2; k++) {
            while (pair[k].done < pair[k].wanted)
                usleep(100);
            atomic_store(&pair[k].over, true);
            aq_pool_call(pair[k].pool);
            assert_int_equal(pthread_join(owner[k], NULL), 0);
            assert_true(pair[k].done > ROUNDS / 3);
            helped += pair[k].helped;
        }
        free(pair);
        aq_pool_close(pool);
    }
    assert_true(helped > 0);
}

/* A helper that leaves a grid of claims for its own work, and comes back to it. */
struct comeback {
    struct aq_pool *pool, *aside;
    struct aq_claims claims;
    atomic_int stage;
};
enum { FIRST, CALLED, WORKED, BACK };

static void comeback_claims(void *arg, uint32_t tile, uint32_t worker)
{
    struct comeback *c = arg;
    while (aq_claims_next(&c->claims, c->pool, worker) != AQ_NO_TILE) {
        if (worker == 0) {
            for (int i = 0; i < 200000 && c->stage < BACK; i++)
                usleep(100);
        } else if (c->stage == FIRST) {
            c->stage = CALLED;
            aq_pool_call(c->aside);
        } else if (c->stage == WORKED) {
            c->stage = BACK;
        }
    }
}

static void comeback_own(void *arg, uint32_t tile, uint32_t worker)
{
    ((struct comeback *)arg)->stage = WORKED;
}

static void *comeback_main(void *arg)
{
    struct comeback *c = arg;
    while (c->stage < BACK) {
        aq_pool_help(c->aside);
        if (c->stage != CALLED)
            continue;
        aq_pool_begin(c->aside);
        aq_pool_run(c->aside, comeback_own, c, 1);
        aq_pool_end(c->aside);
    }
    return NULL;
}

static void who_leaves_a_grid_of_claims_comes_back(void **state)
{
    enum { TILES = 100 };
    struct comeback c = {.stage = FIRST};
    pthread_t helper;
    assert_int_equal(aq_pool_open(&c.pool, 2, NULL), 0);
    assert_int_equal(aq_claims_entries(c.pool, TILES), 2);
    c.aside = aq_pool_aside(c.pool);
    aq_pool_pair(c.pool, 1);
    assert_int_equal(aq_claims_entries(c.pool, 1), 1);
    assert_int_equal(pthread_create(&helper, NULL, comeback_main, &c), 0);
    aq_pool_begin(c.pool);
    aq_claims_open(&c.claims, c.pool, TILES, 1);
    aq_pool_run(c.pool, comeback_claims, &c, aq_claims_entries(c.pool, TILES));
    aq_pool_end(c.pool);
    assert_int_equal(c.stage, BACK);
    aq_pool_call(c.aside);
    assert_int_equal(pthread_join(helper, NULL), 0);
    aq_pool_close(c.pool);
}

struct small_grid {
    uint32_t tiles;
    atomic_uint ran[8];
};

static void run_small(void *arg, uint32_t tile, uint32_t worker)
{
    struct small_grid *g = arg;
    assert_true(tile < g->tiles);
    atomic_fetch_add(&g->ran[tile], 1);
}

static void run_small_backwards(void *arg, uint32_t tile, uint32_t worker)
{
    struct small_grid *g = arg;
    run_small(arg, g->tiles - 1 - tile, worker);
}

/* So small that workers come when all is done, or when another grid is at hand. */
static void late_workers_find_nothing_of_an_old_grid(void **state)
{
    enum { GRIDS = 20000 };
    struct small_grid *grid = calloc(GRIDS, sizeof(*grid));
    struct aq_pool *pool;
    assert_int_equal(aq_pool_open(&pool, 7, NULL), 0);
    for (uint32_t i = 0; i < GRIDS; i++) {
        grid[i].tiles = 1 + (i * 5 + i / 7) % 8;
        aq_pool_run(pool, i % 3 ? run_small : run_small_backwards, &grid[i], grid[i].tiles);
        for (uint32_t t = 0; t < grid[i].tiles; t++)
            assert_int_equal(grid[i].ran[t], 1);
    }
    aq_pool_close(pool);
    for (uint32_t i = 0; i < GRIDS; i++) {
        for (uint32_t t = 0; t < 8; t++)
            assert_int_equal(grid[i].ran[t], t < grid[i].tiles);
    }
    free(grid);
}

static void memory_beyond_the_limit_is_refused_with_figures(void **state)
{
    struct aq_mem *m;
    uint64_t limit[AQ_TIER_COUNT] = {0, 4 * AQ_MIB, 0};
    assert_int_equal(aq_mem_open(&m, limit, NULL), 0);
    void *a, *b;
    struct aq_err err;
    assert_int_equal(aq_mem_alloc(&a, m, AQ_HOST, "weights", 3 * AQ_MIB, &err), 0);
    assert_int_equal(aq_mem_used(m, AQ_HOST), 4 * AQ_MIB); /* whole huge pages */
    assert_int_equal(aq_mem_alloc(&b, m, AQ_HOST, "kv", 64, &err), -ENOMEM);
    assert_non_null(strstr(err.text, "kv"));
    assert_non_null(strstr(err.text, "4194304"));
    aq_mem_free(m, AQ_HOST, "weights", a, 3 * AQ_MIB);
    assert_int_equal(aq_mem_used(m, AQ_HOST), 0);
    assert_int_equal(aq_mem_peak(m, AQ_HOST), 4 * AQ_MIB);
    aq_mem_close(m);
}

static void json_errors_name_the_position(void **state)
{
    json_t *v;
    struct aq_err err;
    assert_int_equal(aq_json_parse(&v, "{\"a\": }", 7, true, &err), -ENOEXEC);
    assert_non_null(strstr(err.text, "line 1"));
    assert_int_equal(aq_json_parse(&v, "{\"a\":1,\"a\":2}", 13, true, &err), -ENOEXEC);
    assert_int_equal(aq_json_parse(&v, "3 4", 3, true, &err), -ENOEXEC);
    assert_int_equal(aq_json_parse(&v, "{\"a\":1}", 7, true, &err), 0);
    uint64_t n;
    assert_int_equal(aq_json_get_u64(v, "a", 7, 10, "x", &n, &err), 0);
    assert_int_equal(n, 1);
    assert_int_equal(aq_json_get_u64(v, "b", 7, 10, "x", &n, &err), 0);
    assert_int_equal(n, 7);
    json_decref(v);
}

static void quoted_bytes_are_printable_and_bounded(void **state)
{
    char text[8];
    assert_string_equal(aq_quote(text, sizeof(text), "a\n\xff\0b", 5), "a???b");
    assert_string_equal(aq_quote(text, sizeof(text), "1234567", 7), "1234567");
    assert_string_equal(aq_quote(text, sizeof(text), "12345678", 8), "1234...");
    assert_string_equal(aq_quote(text, sizeof(text), "", 0), "");
}

static void an_error_is_one_line_whatever_came_from_outside(void **state)
{
    struct aq_err err;
    assert_int_equal(aq_error(&err, -EINVAL, "found '%s'", "a\nb\x1b[2J\x7f\xc3\xa9"), -EINVAL);
    assert_string_equal(err.text, "found 'a?b?[2J?\xc3\xa9'");
    aq_error_prefix(&err, "file '%s'", "x\ty");
    assert_string_equal(err.text, "file 'x?y': found 'a?b?[2J?\xc3\xa9'");
    aq_error_append(&err, " (%s)", "y\nz");
    const char *end = strrchr(err.text, '(');
    assert_string_equal(end, "(y?z)");
}

static void codes_choose_the_exit_status(void **state)
{
    assert_int_equal(aq_err_exit_status(0), 0);
    assert_int_equal(aq_err_exit_status(-EINVAL), 1);
    assert_int_equal(aq_err_exit_status(-ENOEXEC), 2);
    assert_int_equal(aq_err_exit_status(-ENOMEM), 2);
    assert_int_equal(aq_err_exit_status(-ENOBUFS), 2);
    assert_int_equal(aq_err_exit_status(-ENOENT), 2);
    assert_int_equal(aq_err_exit_status(-EMFILE), 2);
    assert_int_equal(aq_err_exit_status(aq_err_of_place(EROFS)), 2);
    assert_int_equal(aq_err_exit_status(aq_err_of_place(ENOTDIR)), 2);
    assert_int_equal(aq_err_exit_status(aq_err_of_place(ENOSPC)), 2);
    assert_int_equal(aq_err_exit_status(aq_err_of_place(EIO)), 4);
    assert_int_equal(aq_err_exit_status(-EIO), 4);
    assert_int_equal(aq_err_exit_status(-ENOSPC), 4);
    assert_int_equal(aq_err_exit_status(-EINTR), 130);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(philox_gives_the_published_vector),
    cmocka_unit_test(every_f16_survives_the_way_through_f32),
    cmocka_unit_test(f16_rounds_to_nearest_even),
    cmocka_unit_test(bf16_rounds_to_nearest_even),
    cmocka_unit_test(each_tile_runs_once_per_grid),
    cmocka_unit_test(bound_workers_stay_where_they_are_put),
    cmocka_unit_test(groups_begin_with_their_own_share),
    cmocka_unit_test(claims_are_of_whole_units_and_come_once),
    cmocka_unit_test(late_workers_find_nothing_of_an_old_grid),
    cmocka_unit_test(two_owners_share_workers_and_help_each_other),
    cmocka_unit_test(who_leaves_a_grid_of_claims_comes_back),
    cmocka_unit_test(memory_beyond_the_limit_is_refused_with_figures),
    cmocka_unit_test(json_errors_name_the_position),
    cmocka_unit_test(quoted_bytes_are_printable_and_bounded),
    cmocka_unit_test(an_error_is_one_line_whatever_came_from_outside),
    cmocka_unit_test(codes_choose_the_exit_status),
};

AQ_TEST_MAIN(tests)
