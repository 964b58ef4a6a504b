/* SPDX-License-Identifier: Apache-2.0
 * What offload/device.h promises, kept by a GPU: offload/gpu_cuda.c over the emulated runtime,
 * which serves streams in an order that is drawn. */
#include "kernels/cuda/launch.h"
#include "offload/gpu_cuda.h"
#include "tests/cuda_emu/control.h"
#include "tests/unit/offload/device_rig.h"

enum { FLOATS = 4096, BYTES = 4 * FLOATS };

struct gpu_rig {
    struct rig r;
    struct aq_gpu *gpu;
    struct aq_gpu_info info;
};

static void gpu_open_with(struct gpu_rig *g, uint64_t seed, uint64_t device_bytes,
                          int (*pieces)(void *user, void *native, const struct aq_copy_piece *list,
                                        uint32_t count),
                          void *user)
{
    aq_emu_order(seed);
    assert_int_equal(aq_gpu_cuda.open(&g->gpu, 0, &g->info), 0);
    struct rig_opts o = {.real = true, .device_bytes = device_bytes};
    o.device.kind = AQ_DEVICE_GPU;
    o.device.gpu_ops = &aq_gpu_cuda;
    o.device.gpu = g->gpu;
    o.device.gpu_pieces = pieces;
    o.device.gpu_pieces_user = user;
    rig_open(&g->r, o);
}

static void gpu_open(struct gpu_rig *g, uint64_t seed, uint64_t device_bytes)
{
    gpu_open_with(g, seed, device_bytes, NULL, NULL);
}

/* Nothing is left behind, whatever happened. */
static void gpu_close(struct gpu_rig *g)
{
    rig_close(&g->r);
    aq_gpu_cuda.close(g->gpu);
    assert_int_equal(aq_emu_alive(), 0);
}

/* ---- jobs: kernels that add one to every number ---- */

struct add {
    const float *from;
    float *to;
    int rc; /* of the job itself */
};

static void add_one(void *arg)
{
    const struct add *a = arg;
    for (int i = 0; i < FLOATS; i++)
        a->to[i] = a->from[i] + 1;
}

static int launch_add(void *arg, void *native)
{
    struct add *a = arg;
    assert_non_null(native);
    if (a->rc)
        return a->rc;
    return aq_emu_call(native, add_one, a) ? -EIO : 0; /* where the GPU has failed already */
}

static void submit_add(struct gpu_rig *g, struct aq_device_stream *s, struct add *a, uint64_t token)
{
    struct aq_device_job job = {.fn = launch_add, .arg = a, .token = token, .done = g->r.done};
    assert_int_equal(aq_device_run(s, &job), 0);
}

static void submit_copy(struct gpu_rig *g, struct aq_device_stream *s, enum aq_direction direction,
                        void *dst, const void *src, uint64_t token)
{
    struct aq_copy_piece piece = {dst, src, BYTES};
    struct aq_device_copy c = {.direction = direction,
                               .pieces = &piece,
                               .piece_count = 1,
                               .token = token,
                               .done = g->r.done};
    assert_int_equal(aq_device_copy(s, &c), 0);
}

enum { FETCHED = 1 << 20 };

/* What lies in device memory. */
static void fetch(struct gpu_rig *g, struct aq_device_stream *s, void *to, const void *from)
{
    void *pinned = rig_take(&g->r, AQ_MEMORY_PINNED, BYTES);
    submit_copy(g, s, AQ_D2H, pinned, from, FETCHED);
    rig_expect(&g->r, FETCHED, 0);
    memcpy(to, pinned, BYTES);
    rig_give(&g->r, AQ_MEMORY_PINNED, pinned, BYTES);
}

/* ---- claims ---- */

static void jobs_of_a_stream_run_in_the_order_of_submission(void **state)
{
    (void)state;
    struct gpu_rig g;
    gpu_open(&g, 3, 0);
    assert_true(aq_device_is_gpu(g.r.d) && aq_device_separate(g.r.d));
    struct aq_device_stream *s = rig_stream(&g.r, "compute", 8, 1);
    float *x = rig_take(&g.r, AQ_MEMORY_DEVICE, BYTES), got[FLOATS];
    struct add a = {x, x, 0};
    uint64_t token = 0, taken = 0;
    while (token < 300) {
        struct aq_device_job job = {.fn = launch_add, .arg = &a, .token = token, .done = g.r.done};
        int rc = aq_device_run(s, &job);
        assert_true(rc == 0 || rc == -EAGAIN);
        if (rc == 0)
            token++;
        else
            rig_expect(&g.r, taken++, 0); /* full: one has to end first */
    }
    while (taken < 300)
        rig_expect(&g.r, taken++, 0);
    fetch(&g, s, got, x);
    for (int i = 0; i < FLOATS; i++)
        assert_true(got[i] == 300);
    assert_true(aq_device_finished(s, aq_device_mark(s)));
    aq_device_stream_close(s);
    rig_give(&g.r, AQ_MEMORY_DEVICE, x, BYTES);
    gpu_close(&g);
}

/* Host to device, a kernel, device to host, on three streams that follow each other; with `wait`
 * false the middle one does not wait for the first.  Returns how many rounds came out right. */
static int round_trips(uint64_t seed, bool wait)
{
    enum { ROUNDS = 12 };
    struct gpu_rig g;
    gpu_open(&g, seed, 0);
    struct aq_device_stream *up = rig_stream(&g.r, "h2d", 8, 1),
                            *compute = rig_stream(&g.r, "compute", 8, 1),
                            *down = rig_stream(&g.r, "d2h", 8, 1);
    float *from = rig_take(&g.r, AQ_MEMORY_PINNED, BYTES),
          *to = rig_take(&g.r, AQ_MEMORY_PINNED, BYTES);
    float *x = rig_take(&g.r, AQ_MEMORY_DEVICE, BYTES),
          *y = rig_take(&g.r, AQ_MEMORY_DEVICE, BYTES);
    int right = 0;
    for (int round = 0; round < ROUNDS; round++) {
        struct add a = {x, y, 0};
        for (int i = 0; i < FLOATS; i++)
            from[i] = (float)(round * FLOATS + i);
        submit_copy(&g, up, AQ_H2D, x, from, AQ_TOKEN_NONE);
        assert_true(aq_device_chains(compute, up));
        if (wait)
            aq_device_follow(compute, up, aq_device_mark(up));
        submit_add(&g, compute, &a, AQ_TOKEN_NONE);
        aq_device_follow(down, compute, aq_device_mark(compute));
        submit_copy(&g, down, AQ_D2H, to, y, 7);
        rig_expect(&g.r, 7, 0);
        aq_device_drain(g.r.d);
        bool same = true;
        for (int i = 0; i < FLOATS; i++)
            same &= to[i] == from[i] + 1;
        right += same;
    }
    aq_device_stream_close(up);
    aq_device_stream_close(compute);
    aq_device_stream_close(down);
    struct aq_device_stats stats;
    aq_device_stats(g.r.d, &stats);
    assert_int_equal(stats.link[AQ_H2D].copies, ROUNDS);
    assert_int_equal(stats.link[AQ_D2H].bytes, ROUNDS * BYTES);
    assert_int_equal(stats.link[AQ_H2D].pageable_bytes, 0);
    rig_give(&g.r, AQ_MEMORY_PINNED, from, BYTES);
    rig_give(&g.r, AQ_MEMORY_PINNED, to, BYTES);
    rig_give(&g.r, AQ_MEMORY_DEVICE, x, BYTES);
    rig_give(&g.r, AQ_MEMORY_DEVICE, y, BYTES);
    gpu_close(&g);
    return right;
}

static void streams_that_follow_see_what_was_written_before(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 20; seed++)
        assert_int_equal(round_trips(seed, true), 12);
}

/* Or else the test above would prove nothing. */
static void streams_that_do_not_wait_compute_with_garbage(void **state)
{
    (void)state;
    int right = 0;
    for (uint64_t seed = 1; seed < 10; seed++)
        right += round_trips(seed, false);
    assert_true(right < 9 * 12);
}

static void pieces_of_a_copy_arrive_whole(void **state)
{
    (void)state;
    struct gpu_rig g;
    gpu_open(&g, 5, 0);
    struct aq_device_stream *s = rig_stream(&g.r, "h2d", 8, 1);
    char *from = rig_take(&g.r, AQ_MEMORY_PINNED, BYTES),
         *x = rig_take(&g.r, AQ_MEMORY_DEVICE, BYTES);
    char got[BYTES];
    for (int i = 0; i < BYTES; i++)
        from[i] = (char)(i * 7);
    /* Two that touch, an empty one, one elsewhere. */
    struct aq_copy_piece piece[] = {
        {x, from, 100}, {x + 100, from + 100, 28}, {x, from, 0}, {x + 512, from + 1000, 64}};
    struct aq_device_copy c = {
        .direction = AQ_H2D, .pieces = piece, .piece_count = 4, .token = 1, .done = g.r.done};
    assert_int_equal(aq_device_copy(s, &c), 0);
    rig_expect(&g.r, 1, 0);
    fetch(&g, s, got, x);
    assert_memory_equal(got, from, 128);
    assert_memory_equal(got + 512, from + 1000, 64);
    for (int i = 128; i < BYTES; i++)
        assert_true(got[i] == 0 || (i >= 512 && i < 576)); /* the rest is as it was taken: zeroed */
    assert_true(aq_device_reaches(g.r.d, x + 10, 20) && aq_device_reaches(g.r.d, from, BYTES));
    assert_false(aq_device_reaches(g.r.d, got, 4) || aq_device_reaches(g.r.d, x, BYTES + 1));
    aq_device_stream_close(s);
    rig_give(&g.r, AQ_MEMORY_PINNED, from, BYTES);
    rig_give(&g.r, AQ_MEMORY_DEVICE, x, BYTES);
    gpu_close(&g);
}

static int on_host(void *arg, void *native)
{
    assert_null(native);
    ++*(int *)arg;
    return 0;
}

static void streams_of_the_host_are_threads_that_gpu_streams_cannot_follow(void **state)
{
    (void)state;
    struct gpu_rig g;
    int count = 0;
    gpu_open(&g, 1, 0);
    struct aq_device_stream *s = rig_stream(&g.r, "compute", 8, 1), *host;
    struct aq_device_stream_opts o = {.name = "host", .side = AQ_STREAM_HOST, .depth = 4};
    assert_int_equal(aq_device_stream_open(&host, g.r.d, &o, NULL), 0);
    assert_false(aq_device_chains(s, host) || aq_device_chains(host, s));
    struct aq_device_job job = {.fn = on_host, .arg = &count, .token = 4, .done = g.r.done};
    assert_int_equal(aq_device_run(host, &job), 0);
    rig_expect(&g.r, 4, 0);
    assert_int_equal(count, 1);
    aq_device_stream_close(host);
    aq_device_stream_close(s);
    gpu_close(&g);
}

/* ---- failure ---- */

/* Jobs on two streams; something fails.  Every token comes, one of them with the cause. */
static void expect_failure(struct gpu_rig *g, struct aq_device_stream *s[2], uint32_t jobs,
                           int cause)
{
    uint32_t causes = 0;
    for (uint32_t i = 0; i < jobs; i++) {
        struct aq_completion c = rig_next(&g->r);
        assert_true(c.token < jobs);
        assert_true(c.result == 0 || c.result == -ECANCELED || c.result == cause);
        causes += c.result == cause;
    }
    assert_true(causes > 0);
    assert_int_equal(aq_device_failed(g->r.d), cause);
    aq_device_drain(g->r.d);
    /* Whatever comes now is not begun. */
    struct add none = {NULL, NULL, 0};
    submit_add(g, s[0], &none, 99);
    rig_expect(&g->r, 99, -ECANCELED);
}

static void a_failure_of_the_gpu_ends_everything_soon_and_says_why(void **state)
{
    (void)state;
    for (uint64_t after = 0; after < 12; after++) {
        struct gpu_rig g;
        gpu_open(&g, after, 0);
        struct aq_device_stream *s[2] = {rig_stream(&g.r, "a", 16, 1),
                                         rig_stream(&g.r, "b", 16, 1)};
        float *x = rig_take(&g.r, AQ_MEMORY_DEVICE, BYTES),
              *y = rig_take(&g.r, AQ_MEMORY_DEVICE, BYTES);
        struct add a[2] = {{x, x, 0}, {x, y, 0}};
        aq_emu_fail_after(after);
        for (uint32_t i = 0; i < 20; i++) {
            aq_device_follow(s[i % 2], s[1 - i % 2], aq_device_mark(s[1 - i % 2]));
            submit_add(&g, s[i % 2], &a[i % 2], i);
        }
        expect_failure(&g, s, 20, -EIO);
        assert_string_equal(aq_device_failure(g.r.d), "an illegal memory access was encountered");
        aq_emu_recover();
        aq_device_clear(g.r.d);
        submit_add(&g, s[0], &a[0], 5);
        rig_expect(&g.r, 5, 0);
        aq_device_stream_close(s[0]);
        aq_device_stream_close(s[1]);
        rig_give(&g.r, AQ_MEMORY_DEVICE, x, BYTES);
        rig_give(&g.r, AQ_MEMORY_DEVICE, y, BYTES);
        gpu_close(&g);
    }
}

static void a_failing_job_fails_the_device(void **state)
{
    (void)state;
    struct gpu_rig g;
    gpu_open(&g, 9, 0);
    struct aq_device_stream *s[2] = {rig_stream(&g.r, "a", 16, 1), rig_stream(&g.r, "b", 16, 1)};
    float *x = rig_take(&g.r, AQ_MEMORY_DEVICE, BYTES);
    struct add good = {x, x, 0}, bad = {x, x, -EPROTO};
    for (uint32_t i = 0; i < 10; i++)
        submit_add(&g, s[i % 2], i == 4 ? &bad : &good, i);
    expect_failure(&g, s, 10, -EPROTO);
    assert_null(aq_device_failure(g.r.d));
    aq_device_stream_close(s[0]);
    aq_device_stream_close(s[1]);
    rig_give(&g.r, AQ_MEMORY_DEVICE, x, BYTES);
    gpu_close(&g);
}

/* ---- memory ---- */

static void memory_of_the_device_has_an_absolute_limit(void **state)
{
    (void)state;
    struct gpu_rig g;
    struct aq_err err;
    void *p;
    gpu_open(&g, 0, 3 * BYTES);
    void *one = rig_take(&g.r, AQ_MEMORY_DEVICE, BYTES),
         *two = rig_take(&g.r, AQ_MEMORY_DEVICE, BYTES);
    int rc = aq_device_alloc(&p, g.r.d, AQ_MEMORY_DEVICE, "too much", 2 * BYTES, &err);
    assert_int_equal(rc, -ENOMEM);
    assert_non_null(strstr(err.text, "32768 of 49152 are in use"));
    rig_give(&g.r, AQ_MEMORY_DEVICE, one, BYTES);
    rig_give(&g.r, AQ_MEMORY_DEVICE, two, BYTES);
    gpu_close(&g);
}

static void memory_that_another_process_took_is_said_with_both_figures(void **state)
{
    (void)state;
    struct gpu_rig g;
    struct aq_err err;
    void *p;
    gpu_open(&g, 0, 0);
    aq_emu_driver_takes(512, 0);
    aq_emu_device_memory(BYTES);
    int rc = aq_device_alloc(&p, g.r.d, AQ_MEMORY_DEVICE, "weights", 2 * BYTES, &err);
    assert_int_equal(rc, -ENOMEM);
    assert_non_null(strstr(err.text, "32768 bytes for weights"));
    assert_non_null(strstr(err.text, "16384 of its 5259264 bytes are free"));
    assert_non_null(strstr(err.text, "end it, or give a smaller --device-memory"));
    assert_int_equal(aq_mem_used(g.r.mem, AQ_DEVICE), 0);
    aq_emu_device_memory(2ull << 30);
    gpu_close(&g);
}

/* Pinning goes by pages, and none can be pinned twice. */
static void small_pinned_buffers_share_no_page(void **state)
{
    (void)state;
    struct gpu_rig g;
    void *p[40];
    gpu_open(&g, 0, 0);
    for (size_t i = 0; i < 40; i++)
        p[i] = rig_take(&g.r, AQ_MEMORY_PINNED, 1 + i * 300);
    for (size_t i = 0; i < 40; i++)
        rig_give(&g.r, AQ_MEMORY_PINNED, p[i], 1 + i * 300);
    gpu_close(&g);
}

static void what_a_gpu_is_is_found_out(void **state)
{
    (void)state;
    struct gpu_rig g;
    gpu_open(&g, 0, 0);
    assert_int_equal(g.info.sm, 90);
    assert_true(g.info.total_bytes > g.info.free_bytes && g.info.free_bytes > 0);
    assert_int_equal(g.info.context_bytes, 5 << 20);
    assert_int_equal(g.info.numa_node, -1);
    assert_string_equal(g.info.name, "emulated GPU");
    gpu_close(&g);
}

/* The runtime leaves the count alone then. */
static void without_a_driver_there_are_no_gpus(void **state)
{
    (void)state;
    uint32_t count = 77, driver, runtime;
    struct aq_gpu *gpu;
    struct aq_gpu_info info;
    aq_emu_gpus(1, cudaErrorInsufficientDriver);
    aq_emu_driver(0);
    int rc = aq_gpu_cuda.count(&count, &driver, &runtime);
    assert_int_equal(rc, cudaErrorInsufficientDriver);
    assert_int_equal(count, 0);
    assert_int_equal(driver, 0);
    assert_int_equal(aq_gpu_cuda.open(&gpu, 0, &info), cudaErrorInsufficientDriver);
    aq_emu_gpus(1, cudaSuccess);
    aq_emu_driver(13000);
    assert_int_equal(aq_gpu_cuda.count(&count, &driver, &runtime), 0);
    assert_int_equal(count, 1);
    assert_int_equal(aq_gpu_cuda.open(&gpu, 1, &info), cudaErrorInvalidDevice);
}

/* A launch tells what an earlier call of its thread left unread. */
static void a_capture_that_fails_leaves_the_next_launch_alone(void **state)
{
    static const enum aq_emu_capture_failure ways[] = {AQ_EMU_FAILS_AT_BEGIN, AQ_EMU_FAILS_INSIDE};
    (void)state;
    for (size_t i = 0; i < AQ_ARRAY_LEN(ways); i++) {
        struct gpu_rig g;
        void *stream, *graph = NULL, *x;
        gpu_open(&g, 0, 0);
        assert_int_equal(aq_gpu_cuda.stream_open(g.gpu, &stream, false), 0);
        assert_int_equal(aq_gpu_cuda.take(g.gpu, &x, BYTES), 0);
        struct add a = {x, x, 0};
        aq_emu_fail_capture(ways[i]);
        int rc = aq_gpu_cuda.capture_begin(g.gpu, stream);
        assert_int_equal(rc != 0, ways[i] == AQ_EMU_FAILS_AT_BEGIN);
        if (!rc) {
            /* A copy is refused, and does not ask for the thread's last error. */
            rc = aq_gpu_cuda.copy(g.gpu, stream, x, x, BYTES, AQ_GPU_D2D);
            assert_int_equal(rc, cudaErrorStreamCaptureUnsupported);
            assert_int_equal(aq_gpu_cuda.capture_end(g.gpu, stream, &graph), 0);
            aq_gpu_cuda.graph_close(g.gpu, graph);
        }
        aq_emu_fail_capture(AQ_EMU_CAPTURES);
        assert_int_equal(launch_add(&a, stream), 0);
        aq_gpu_cuda.stream_close(g.gpu, stream);
        aq_gpu_cuda.give(g.gpu, x);
        gpu_close(&g);
    }
}

/* ---- small pieces ---- */

static int count_pieces(void *user, void *native, const struct aq_copy_piece *pieces,
                        uint32_t count)
{
    uint32_t *taken = user;
    struct aq_cuda_exec ex = {.stream = native, .sm = 90};
    *taken += count;
    return aq_cuda_copy_pieces(&ex, pieces, count);
}

enum { SMALL = 10, PIECES = SMALL + 4, ROOM = 16384 };

/* Small ones, a large one, and a few small ones again; returns their bytes. */
static uint64_t list_pieces(struct aq_copy_piece *ret, char *to, const char *from)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < PIECES; i++) {
        uint32_t at = i < SMALL ? 100 * i : i == SMALL ? 2000 : 6000 + 200 * i;
        ret[i] = (struct aq_copy_piece){to + at, from + at, i == SMALL ? 5000 : 96};
        sum += ret[i].bytes;
    }
    return sum;
}

/* The large one, and those that are too few, do not; nor does anything where a kernel could not
 * write the bytes, or there is none. */
static void small_pieces_go_by_a_kernel(void **state)
{
    char want[ROOM];
    (void)state;
    for (int c = 0; c < 3; c++) {
        struct gpu_rig g;
        uint32_t taken = 0;
        enum aq_device_memory home = c == 2 ? AQ_MEMORY_HOST : AQ_MEMORY_PINNED;
        struct aq_copy_piece pieces[PIECES];
        gpu_open_with(&g, 1 + (uint64_t)c, 0, c == 1 ? NULL : count_pieces, &taken);
        struct aq_device_stream *s = rig_stream(&g.r, "d2h", 8, 1);
        char *from = rig_take(&g.r, AQ_MEMORY_DEVICE, ROOM), *to = rig_take(&g.r, home, ROOM);
        struct aq_device_copy copy = {.direction = AQ_D2H,
                                      .pieces = pieces,
                                      .piece_count = PIECES,
                                      .token = 5,
                                      .done = g.r.done};
        uint64_t left = list_pieces(pieces, to, from);
        memset(want, 7, ROOM);
        assert_int_equal(aq_device_write(g.r.d, from, want, ROOM, NULL), 0);
        assert_int_equal(aq_device_copy(s, &copy), 0);
        rig_expect(&g.r, 5, 0);
        assert_int_equal(taken, c == 0 ? SMALL : 0);
        for (uint32_t i = 0; i < PIECES; i++)
            assert_memory_equal(pieces[i].dst, want, pieces[i].bytes);
        for (uint32_t i = 0; i < ROOM; i++)
            left -= to[i] != 0;
        assert_int_equal(left, 0);
        aq_device_stream_close(s);
        rig_give(&g.r, AQ_MEMORY_DEVICE, from, ROOM);
        rig_give(&g.r, home, to, ROOM);
        gpu_close(&g);
    }
}

/* ---- time, as the emulation keeps it ---- */

enum { LARGE_NS = 1000000, LARGE = 4, SMALL_BYTES = 64 };

/* How long a small copy behind a kernel of half a large one's time waits, while another stream has
 * large ones. */
static uint64_t lateness(uint64_t slice_ns)
{
    struct gpu_rig g;
    struct aq_emu_rates rates = {.bytes_per_ms = BYTES,
                                 .kernel_ns = LARGE_NS / 2,
                                 .slice_ns = slice_ns,
                                 .small_bytes = SMALL_BYTES};
    gpu_open(&g, 1, 0);
    struct aq_device_stream *link = rig_stream(&g.r, "h2d", 8, 1);
    struct aq_device_stream *compute = rig_stream(&g.r, "compute", 8, 1);
    char *here = rig_take(&g.r, AQ_MEMORY_PINNED, BYTES);
    float *there = rig_take(&g.r, AQ_MEMORY_DEVICE, BYTES);
    float *small = rig_take(&g.r, AQ_MEMORY_DEVICE, BYTES);
    struct add a = {small, small, 0};
    struct aq_copy_piece piece = {small, here, SMALL_BYTES};
    struct aq_device_copy copy = {.direction = AQ_H2D,
                                  .pieces = &piece,
                                  .piece_count = 1,
                                  .token = LARGE + 1,
                                  .done = g.r.done};
    aq_emu_time(&rates);
    aq_emu_hold(true);
    for (uint64_t i = 0; i < LARGE; i++)
        submit_copy(&g, link, AQ_H2D, there, here, i);
    submit_add(&g, compute, &a, LARGE);
    assert_int_equal(aq_device_copy(compute, &copy), 0);
    aq_emu_hold(false);
    for (uint64_t i = 0; i < LARGE + 2; i++)
        assert_int_equal(rig_next(&g.r).result, 0);
    struct aq_emu_timed timed = aq_emu_timed();
    assert_int_equal(timed.to_device_ns, LARGE * LARGE_NS + SMALL_BYTES * LARGE_NS / BYTES);
    assert_int_equal(timed.kernels_ns, LARGE_NS / 2);
    aq_emu_time(&(struct aq_emu_rates){0});
    aq_device_stream_close(compute);
    aq_device_stream_close(link);
    rig_give(&g.r, AQ_MEMORY_DEVICE, small, BYTES);
    rig_give(&g.r, AQ_MEMORY_DEVICE, there, BYTES);
    rig_give(&g.r, AQ_MEMORY_PINNED, here, BYTES);
    gpu_close(&g);
    return timed.late_ns;
}

static void small_copies_wait_for_large_ones_in_the_emulation(void **state)
{
    (void)state;
    assert_int_equal(lateness(0), LARGE_NS / 2); /* for the end of the one at work */
    assert_int_equal(lateness(5 * LARGE_NS / 2), 5 * LARGE_NS / 2); /* of the slice's last */
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(small_copies_wait_for_large_ones_in_the_emulation),
    cmocka_unit_test(small_pieces_go_by_a_kernel),
    cmocka_unit_test(jobs_of_a_stream_run_in_the_order_of_submission),
    cmocka_unit_test(streams_that_follow_see_what_was_written_before),
    cmocka_unit_test(streams_that_do_not_wait_compute_with_garbage),
    cmocka_unit_test(pieces_of_a_copy_arrive_whole),
    cmocka_unit_test(streams_of_the_host_are_threads_that_gpu_streams_cannot_follow),
    cmocka_unit_test(a_failure_of_the_gpu_ends_everything_soon_and_says_why),
    cmocka_unit_test(a_failing_job_fails_the_device),
    cmocka_unit_test(memory_of_the_device_has_an_absolute_limit),
    cmocka_unit_test(memory_that_another_process_took_is_said_with_both_figures),
    cmocka_unit_test(small_pinned_buffers_share_no_page),
    cmocka_unit_test(what_a_gpu_is_is_found_out),
    cmocka_unit_test(without_a_driver_there_are_no_gpus),
    cmocka_unit_test(a_capture_that_fails_leaves_the_next_launch_alone),
};

int main(void)
{
    return cmocka_run_group_tests(tests, NULL, NULL) ? 1 : 0;
}
