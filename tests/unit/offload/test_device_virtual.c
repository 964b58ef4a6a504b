/* SPDX-License-Identifier: Apache-2.0
 * The device in virtual time: when what happens, and that a missing wait shows. */
#include "base/prng.h"
#include "base/types.h"
#include "tests/unit/offload/device_rig.h"

static bool is_poison(const void *p, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        if (((const unsigned char *)p)[i] != 0xff)
            return false;
    }
    return true;
}

static int do_nothing(void *arg, void *native)
{
    (void)arg;
    (void)native;
    return 0;
}

static const struct aq_device_opts emulated = {
    .kind = AQ_DEVICE_EMULATED,
    .link = {{4 * GB_S, 100}, {2 * GB_S, 0}},
    .poison = true,
};

/* ---- poison ---- */

static void destination_is_poison_from_start_to_end_of_a_copy(void **state)
{
    (void)state;
    struct rig r;
    rig_open(&r, (struct rig_opts){.device = emulated});
    struct aq_device_stream *s = rig_stream(&r, "h2d", 4, 1);
    char *src = rig_take(&r, AQ_MEMORY_PINNED, 4000), *dst = rig_take(&r, AQ_MEMORY_DEVICE, 4000);
    memset(src, 7, 4000);
    memset(dst, 1, 4000);
    /* Behind a job the copy has not begun: what uses its destination lawfully may still do so. */
    struct aq_device_job job = {.fn = do_nothing, .cost_ns = 500, .token = AQ_TOKEN_NONE};
    assert_int_equal(aq_device_run(s, &job), 0);
    struct aq_copy_piece piece = {dst, src, 4000};
    struct aq_device_copy copy = {
        .direction = AQ_H2D, .pieces = &piece, .piece_count = 1, .done = r.done};
    assert_int_equal(aq_device_copy(s, &copy), 0);
    rig_pass(&r, 499);
    assert_int_equal(dst[0], 1);
    rig_pass(&r, 1);
    assert_true(is_poison(dst, 4000));
    rig_pass(&r, 1099);
    assert_true(is_poison(dst, 4000));
    rig_expect(&r, 0, 0);
    assert_int_equal(aq_device_now(r.d), 500 + 100 + 1000);
    assert_memory_equal(dst, src, 4000);
    aq_device_stream_close(s);
    rig_give(&r, AQ_MEMORY_PINNED, src, 4000);
    rig_give(&r, AQ_MEMORY_DEVICE, dst, 4000);
    rig_close(&r);
}

static void source_is_read_when_the_copy_ends(void **state)
{
    (void)state;
    struct rig r;
    rig_open(&r, (struct rig_opts){.device = emulated});
    struct aq_device_stream *s = rig_stream(&r, "d2h", 4, 1);
    int *src = rig_take(&r, AQ_MEMORY_DEVICE, 4), *dst = rig_take(&r, AQ_MEMORY_PINNED, 4);
    *src = 1;
    struct aq_copy_piece piece = {dst, src, 4};
    struct aq_device_copy copy = {
        .direction = AQ_D2H, .pieces = &piece, .piece_count = 1, .done = r.done};
    assert_int_equal(aq_device_copy(s, &copy), 0);
    *src = 2; /* too early: the copy is under way */
    rig_expect(&r, 0, 0);
    assert_int_equal(*dst, 2);
    aq_device_stream_close(s);
    rig_give(&r, AQ_MEMORY_DEVICE, src, 4);
    rig_give(&r, AQ_MEMORY_PINNED, dst, 4);
    rig_close(&r);
}

static int set_five(void *arg, void *native)
{
    (void)native;
    *(int *)arg = 5;
    return 0;
}

static void outputs_of_a_job_are_poison_until_it_is_done(void **state)
{
    (void)state;
    struct rig r;
    rig_open(&r, (struct rig_opts){.device = emulated});
    struct aq_device_stream *s = rig_stream(&r, "compute", 4, 1);
    int value = 1;
    struct aq_device_range out = {&value, sizeof(value)};
    struct aq_device_job job = {.fn = set_five,
                                .arg = &value,
                                .cost_ns = 10,
                                .done = r.done,
                                .outputs = &out,
                                .output_count = 1};
    assert_int_equal(aq_device_run(s, &job), 0);
    assert_true(is_poison(&value, sizeof(value)));
    rig_pass(&r, 9);
    assert_true(is_poison(&value, sizeof(value)));
    rig_expect(&r, 0, 0);
    assert_int_equal(value, 5);
    aq_device_stream_close(s);
    rig_close(&r);
}

/* ---- links ---- */

static void links_carry_one_copy_at_a_time_each_way(void **state)
{
    (void)state;
    struct rig r;
    rig_open(&r, (struct rig_opts){.device = emulated});
    struct aq_device_stream *s[3] = {rig_stream(&r, "h2d", 4, 1), rig_stream(&r, "h2d", 4, 1),
                                     rig_stream(&r, "d2h", 4, 1)};
    char *host = rig_take(&r, AQ_MEMORY_PINNED, 8000), *dev = rig_take(&r, AQ_MEMORY_DEVICE, 12000);
    struct aq_copy_piece up[2] = {{dev, host, 4000}, {dev + 4000, host, 4000}};
    struct aq_copy_piece down = {host + 4000, dev + 8000, 4000};
    struct aq_device_copy copy = {.direction = AQ_H2D, .piece_count = 1, .done = r.done};
    for (copy.token = 0; copy.token < 2; copy.token++) {
        copy.pieces = &up[copy.token];
        assert_int_equal(aq_device_copy(s[copy.token], &copy), 0);
    }
    copy.direction = AQ_D2H;
    copy.pieces = &down;
    assert_int_equal(aq_device_copy(s[2], &copy), 0);
    rig_expect(&r, 0, 0);
    assert_int_equal(aq_device_now(r.d), 1100);
    rig_expect(&r, 2, 0);
    assert_int_equal(aq_device_now(r.d), 2000); /* not slowed by the other way */
    rig_expect(&r, 1, 0);
    assert_int_equal(aq_device_now(r.d), 2200);
    for (int i = 0; i < 3; i++)
        aq_device_stream_close(s[i]);
    rig_give(&r, AQ_MEMORY_PINNED, host, 8000);
    rig_give(&r, AQ_MEMORY_DEVICE, dev, 12000);
    rig_close(&r);
}

static void a_wide_stream_ends_jobs_when_they_end(void **state)
{
    (void)state;
    struct rig r;
    rig_open(&r, (struct rig_opts){0});
    struct aq_device_stream *disk = rig_stream(&r, "disk", 8, 2);
    uint64_t cost[4] = {100, 30, 30, 10}, order[4] = {1, 2, 0, 3}, at[4] = {30, 60, 100, 70};
    struct aq_device_job job = {.fn = do_nothing, .done = r.done};
    for (job.token = 0; job.token < 4; job.token++) {
        job.cost_ns = cost[job.token];
        assert_int_equal(aq_device_run(disk, &job), 0);
    }
    /* Two at a time: 0 and 1 start at 0, 2 at 30, 3 at 60. */
    order[2] = 3;
    order[3] = 0;
    at[2] = 70;
    at[3] = 100;
    for (int i = 0; i < 4; i++) {
        rig_expect(&r, order[i], 0);
        assert_int_equal(aq_device_now(r.d), at[i]);
        /* A ticket stands for all before it as well. */
        assert_true(aq_device_finished(disk, 1) == (i == 3));
    }
    aq_device_stream_close(disk);
    rig_close(&r);
}

/* ---- a missing wait shows ---- */

/* A ring of two weight slots in the device: chunk c is copied into slot c % 2 and then used by a
 * job that adds up what it sees.  The two edges of a ring (a use waits for its chunk; a copy waits
 * until its slot has been used) can be left out. */
struct ring {
    const float *slot;
    double *sum;
};

enum { RING_CHUNKS = 24, RING_FLOATS = 64 };

static int add_slot(void *arg, void *native)
{
    struct ring *u = arg;
    (void)native;
    for (int i = 0; i < RING_FLOATS; i++)
        *u->sum += (double)u->slot[i] * (i + 1);
    return 0;
}

static double run_ring(uint64_t seed, bool wait_for_chunk, bool wait_for_use)
{
    struct rig r;
    struct aq_device_opts o = emulated;
    o.jitter_permille = 500;
    o.eager = true;
    rig_open(&r, (struct rig_opts){.seed = seed, .device = o});
    struct aq_device_stream *h2d = rig_stream(&r, "h2d", 64, 1);
    struct aq_device_stream *compute = rig_stream(&r, "compute", 64, 1);
    size_t chunk = RING_FLOATS * sizeof(float);
    float *host = rig_take(&r, AQ_MEMORY_PINNED, RING_CHUNKS * chunk);
    float *slots = rig_take(&r, AQ_MEMORY_DEVICE, 2 * chunk);
    for (int i = 0; i < RING_CHUNKS * RING_FLOATS; i++)
        host[i] = (float)(i % 1013);
    struct aq_copy_piece piece[RING_CHUNKS];
    struct ring use[RING_CHUNKS];
    uint64_t used[RING_CHUNKS];
    double sum = 0;
    for (int c = 0; c < RING_CHUNKS; c++) {
        float *slot = slots + c % 2 * RING_FLOATS;
        piece[c] = (struct aq_copy_piece){slot, host + c * RING_FLOATS, chunk};
        use[c] = (struct ring){slot, &sum};
        if (wait_for_use && c >= 2)
            aq_device_follow(h2d, compute, used[c - 2]);
        struct aq_device_copy copy = {
            .direction = AQ_H2D, .pieces = &piece[c], .piece_count = 1, .token = AQ_TOKEN_NONE};
        assert_int_equal(aq_device_copy(h2d, &copy), 0);
        if (wait_for_chunk)
            aq_device_follow(compute, h2d, aq_device_mark(h2d));
        struct aq_device_job job = {
            .fn = add_slot, .arg = &use[c], .cost_ns = 170, .token = AQ_TOKEN_NONE};
        assert_int_equal(aq_device_run(compute, &job), 0);
        used[c] = aq_device_mark(compute);
        if (aq_device_mark(h2d) + 4 > 60 || aq_device_mark(compute) + 4 > 60)
            aq_device_drain(r.d);
    }
    aq_device_drain(r.d);
    aq_device_stream_close(h2d);
    aq_device_stream_close(compute);
    rig_give(&r, AQ_MEMORY_PINNED, host, RING_CHUNKS * chunk);
    rig_give(&r, AQ_MEMORY_DEVICE, slots, 2 * chunk);
    rig_close(&r);
    return sum;
}

static void a_missing_wait_changes_the_result(void **state)
{
    (void)state;
    double want = 0;
    for (int i = 0; i < RING_CHUNKS * RING_FLOATS; i++)
        want += (double)(float)(i % 1013) * (i % RING_FLOATS + 1);
    int no_chunk = 0, no_use = 0;
    for (uint64_t seed = 0; seed < 50; seed++) {
        assert_true(run_ring(seed, true, true) == want);
        no_chunk += run_ring(seed, false, true) != want;
        no_use += run_ring(seed, true, false) != want;
    }
    assert_int_equal(no_chunk, 50);
    assert_int_equal(no_use, 50);
}

/* ---- random graphs ---- */

enum { OPS_MAX = 80, STREAMS_MAX = 6, DEPS_MAX = 3 };

struct graph_op {
    struct graph *g;
    uint32_t index, stream, dep[DEPS_MAX], dep_count;
    bool copy, on_device, failing;
    uint64_t ticket;
    struct aq_copy_piece piece;
    struct aq_device_range output;
    struct aq_device_span span;
    bool submitted, finished;
    int result;
};

/* Each op leaves a number, made of those of the ops that it depends on, in a place of its own. */
struct graph {
    struct rig r;
    uint64_t seed, draws, event_hash;
    struct graph_op op[OPS_MAX];
    uint32_t op_count, stream_count, out;
    struct aq_device_stream *stream[STREAMS_MAX];
    uint32_t width[STREAMS_MAX];
    uint64_t *host, *dev; /* [OPS_MAX] */
};

static uint64_t draw(struct graph *g, uint64_t n)
{
    return aq_prng_below(g->seed, g->draws++, 77, n);
}

static uint64_t *place(struct graph *g, const struct graph_op *op)
{
    return (op->on_device ? g->dev : g->host) + op->index;
}

static uint64_t mix(uint64_t a, uint64_t b)
{
    return (a ^ b) * 0x9e3779b97f4a7c15ull + (a >> 29);
}

static int graph_work(void *arg, void *native)
{
    struct graph_op *op = arg;
    (void)native;
    if (op->failing)
        return -EIO;
    uint64_t value = op->index;
    for (uint32_t i = 0; i < op->dep_count; i++)
        value = mix(value, *place(op->g, &op->g->op[op->dep[i]]));
    *place(op->g, op) = value;
    return 0;
}

static void graph_draw(struct graph *g, uint32_t fail_permille)
{
    g->op_count = 1 + (uint32_t)draw(g, OPS_MAX);
    for (uint32_t i = 0; i < g->op_count; i++) {
        struct graph_op *op = &g->op[i];
        *op = (struct graph_op){.g = g, .index = i, .stream = (uint32_t)draw(g, g->stream_count)};
        op->on_device = draw(g, 2);
        op->copy = i > 0 && draw(g, 3) == 0;
        op->failing = !op->copy && draw(g, 1000) < fail_permille;
        uint32_t deps = op->copy ? 1 : (uint32_t)draw(g, DEPS_MAX + 1);
        for (uint32_t k = 0; i > 0 && k < deps; k++)
            op->dep[op->dep_count++] = (uint32_t)draw(g, i);
    }
}

static void graph_take(struct graph *g)
{
    struct aq_completion c = rig_next(&g->r);
    struct graph_op *op = &g->op[c.token];
    assert_true(op->submitted && !op->finished);
    assert_true(op->span.end_ns >= op->span.start_ns);
    op->finished = true;
    op->result = c.result;
    g->event_hash = mix(mix(g->event_hash, c.token), mix(op->span.end_ns, op->span.start_ns));
    g->out--;
}

/* Orders op behind what it depends on: by its stream, by a follow, or by waiting here. */
static void graph_order(struct graph *g, struct graph_op *op)
{
    for (uint32_t i = 0; i < op->dep_count; i++) {
        struct graph_op *dep = &g->op[op->dep[i]];
        if (dep->stream == op->stream && g->width[op->stream] == 1)
            continue;
        if (draw(g, 3) == 0) {
            while (!dep->finished)
                graph_take(g);
            assert_true(aq_device_finished(g->stream[dep->stream], dep->ticket) ||
                        g->width[dep->stream] > 1);
        } else {
            aq_device_follow(g->stream[op->stream], g->stream[dep->stream], dep->ticket);
        }
    }
}

static void graph_submit(struct graph *g, struct graph_op *op)
{
    struct aq_device_stream *s = g->stream[op->stream];
    uint64_t cost = draw(g, 4) * 100; /* many of the same: ties */
    graph_order(g, op);
    op->submitted = true;
    g->out++;
    for (;;) {
        int rc;
        if (op->copy) {
            const struct graph_op *dep = &g->op[op->dep[0]];
            op->piece = (struct aq_copy_piece){place(g, op), place(g, dep), sizeof(uint64_t)};
            struct aq_device_copy copy = {.direction = dep->on_device
                                                           ? op->on_device ? AQ_D2D : AQ_D2H
                                                       : op->on_device ? AQ_H2D
                                                                       : AQ_H2H,
                                          .pieces = &op->piece,
                                          .piece_count = 1,
                                          .cost_ns = cost,
                                          .token = op->index,
                                          .done = g->r.done,
                                          .span = &op->span};
            rc = aq_device_copy(s, &copy);
        } else {
            op->output = (struct aq_device_range){place(g, op), sizeof(uint64_t)};
            struct aq_device_job job = {.fn = graph_work,
                                        .arg = op,
                                        .cost_ns = cost,
                                        .token = op->index,
                                        .done = g->r.done,
                                        .span = &op->span,
                                        .outputs = &op->output,
                                        .output_count = 1};
            rc = aq_device_run(s, &job);
        }
        if (rc == 0)
            break;
        assert_int_equal(rc, -EAGAIN);
        graph_take(g);
    }
    op->ticket = aq_device_mark(s);
}

static void graph_check(struct graph *g)
{
    uint64_t want[OPS_MAX];
    bool failed = false;
    for (uint32_t i = 0; i < g->op_count; i++)
        failed |= g->op[i].result < 0;
    for (uint32_t i = 0; i < g->op_count; i++) {
        const struct graph_op *op = &g->op[i];
        assert_true(op->finished);
        assert_true(op->result == 0 || op->result == -ECANCELED || (op->failing && failed));
        want[i] = i;
        for (uint32_t k = 0; k < op->dep_count; k++) {
            assert_true(op->span.start_ns >= g->op[op->dep[k]].span.end_ns);
            want[i] = op->copy ? want[op->dep[k]] : mix(want[i], want[op->dep[k]]);
        }
        /* What ended well has the right number, whatever became of the others. */
        if (op->result == 0)
            assert_int_equal(*place(g, op), want[i]);
    }
    assert_int_equal(aq_device_failed(g->r.d) != 0, failed);
}

/* Returns a hash of all that happened, and when. */
static uint64_t run_graph(uint64_t seed, bool real, uint32_t fail_permille)
{
    static struct graph g;
    g = (struct graph){.seed = seed};
    struct aq_device_opts o = {.kind = AQ_DEVICE_EMULATED};
    if (!real) {
        o.poison = true;
        o.eager = draw(&g, 2);
        o.jitter_permille = draw(&g, 2) ? (uint32_t)draw(&g, 1001) : 0;
        o.link[AQ_H2D] = (struct aq_device_link){1 + draw(&g, GB_S / 10), draw(&g, 200)};
        o.link[AQ_D2H] = (struct aq_device_link){draw(&g, 2) ? GB_S : 0, draw(&g, 200)};
    }
    rig_open(&g.r, (struct rig_opts){.real = real, .seed = seed, .device = o});
    g.host = rig_take(&g.r, AQ_MEMORY_PINNED, OPS_MAX * sizeof(uint64_t));
    g.dev = rig_take(&g.r, AQ_MEMORY_DEVICE, OPS_MAX * sizeof(uint64_t));
    g.stream_count = 1 + (uint32_t)draw(&g, STREAMS_MAX);
    for (uint32_t i = 0; i < g.stream_count; i++) {
        g.width[i] = real || draw(&g, 2) ? 1 : 1 + (uint32_t)draw(&g, 4);
        g.stream[i] = rig_stream(&g.r, "random", 1 + (uint32_t)draw(&g, 8), g.width[i]);
    }
    graph_draw(&g, fail_permille);
    for (uint32_t i = 0; i < g.op_count; i++)
        graph_submit(&g, &g.op[i]);
    while (g.out)
        graph_take(&g);
    graph_check(&g);
    for (uint32_t i = 0; i < g.stream_count; i++)
        aq_device_stream_close(g.stream[i]);
    rig_give(&g.r, AQ_MEMORY_PINNED, g.host, OPS_MAX * sizeof(uint64_t));
    rig_give(&g.r, AQ_MEMORY_DEVICE, g.dev, OPS_MAX * sizeof(uint64_t));
    rig_close(&g.r);
    return g.event_hash;
}

static void random_graphs_end_with_the_serial_result(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 4000; seed++)
        run_graph(seed, false, 0);
}

static void random_graphs_with_failures_end_once(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 2000; seed++)
        run_graph(seed, false, 20);
}

static void random_graphs_on_threads_end_with_the_serial_result(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 200; seed++)
        run_graph(seed, true, seed % 4 ? 0 : 20);
}

static void the_seed_decides_everything(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 300; seed++)
        assert_int_equal(run_graph(seed, false, 5), run_graph(seed, false, 5));
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(destination_is_poison_from_start_to_end_of_a_copy),
    cmocka_unit_test(source_is_read_when_the_copy_ends),
    cmocka_unit_test(outputs_of_a_job_are_poison_until_it_is_done),
    cmocka_unit_test(links_carry_one_copy_at_a_time_each_way),
    cmocka_unit_test(a_wide_stream_ends_jobs_when_they_end),
    cmocka_unit_test(a_missing_wait_changes_the_result),
    cmocka_unit_test(random_graphs_end_with_the_serial_result),
    cmocka_unit_test(random_graphs_with_failures_end_once),
    cmocka_unit_test(random_graphs_on_threads_end_with_the_serial_result),
    cmocka_unit_test(the_seed_decides_everything),
};
AQ_TEST_MAIN(tests)
