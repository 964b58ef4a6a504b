/* SPDX-License-Identifier: Apache-2.0
 * Transfers over files in memory behind the fault-injecting engine, and over real ones. */
#include "tests/unit/offload/xfer_rig.h"

#include "base/prng.h"
#include "base/types.h"
#include "offload/stripe.h"
#include "tests/alloc_trap.h"
#include "tests/temp.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* One read of 256 KiB across a border of units, with one fault in its second request. */
static void read_with(enum aq_fault_kind kind, uint32_t align, int status)
{
    struct rig r;
    rig_open(&r, &no_faults, align, small_requests());
    aq_io_fault_at(r.io, 1, kind);
    struct aq_transfer *t =
        start(&r, 0, AQ_IO_READ, 0, AQ_STRIPE_UNIT_BYTES - 2 * 64 * 1024, 4 * 64 * 1024);
    run(&r);
    assert_int_equal(t->status, status);
    assert_int_equal(aq_io_fault_stats(r.io).struck[kind], kind == AQ_FAULT_NONE ? 4 : 1);
    if (status == 0)
        assert_true(same(0, t->offset, t->buffer, t->bytes));
    assert_int_equal(aq_io_out(r.io), kind == AQ_FAULT_STALL);
    rig_close(&r);
}

/* ---- one fault at a time ---- */

static void a_range_is_read_across_stripes(void **state)
{
    (void)state;
    read_with(AQ_FAULT_NONE, 1, 0);
}

static void a_short_transfer_is_resumed(void **state)
{
    (void)state;
    read_with(AQ_FAULT_SHORT, 1, 0);
}

static void a_short_direct_transfer_is_resumed_at_a_block(void **state)
{
    (void)state;
    read_with(AQ_FAULT_SHORT, 4096, 0);
}

static void not_now_and_interrupted_are_tried_again(void **state)
{
    (void)state;
    read_with(AQ_FAULT_EAGAIN, 1, 0);
    read_with(AQ_FAULT_EINTR, 1, 0);
    read_with(AQ_FAULT_BUSY, 1, 0);
}

static void an_error_of_the_disk_is_tried_again(void **state)
{
    (void)state;
    read_with(AQ_FAULT_EIO_ONCE, 1, 0);
}

static void a_request_that_never_comes_back_is_a_timeout(void **state)
{
    (void)state;
    read_with(AQ_FAULT_STALL, 1, -ETIMEDOUT);
}

static void an_error_that_stays_names_the_file_and_the_place(void **state)
{
    (void)state;
    struct rig r;
    struct aq_err err;
    struct aq_fault_extent bad = {
        .file = 2, .kinds = 1u << AQ_FAULT_EIO_STICKY, .offset = 8192, .bytes = 4096};
    struct aq_fault_opts faults = {
        .ratio = {[AQ_FAULT_EIO_STICKY] = {1, 1}}, .map = &bad, .map_count = 1};
    rig_open(&r, &faults, 4096, small_requests());
    struct aq_transfer *t = start(&r, 0, AQ_IO_READ, 0, 2 * AQ_STRIPE_UNIT_BYTES, 256 * 1024),
                       *other = start(&r, 1, AQ_IO_READ, 0, 0, 256 * 1024);
    run(&r);
    assert_int_equal(t->status, -EIO);
    assert_int_equal(aq_xfer_error(r.x, t, &err), -EIO);
    assert_string_equal(err.text,
                        "read 65536 bytes at 0 of 'data.2': Input/output error, tried 4 times");
    assert_int_equal(other->status, 0);
    assert_true(same(0, other->offset, other->buffer, other->bytes));
    struct aq_xfer_stats s = aq_xfer_stats(r.x);
    assert_int_equal(s.eio, 3);
    assert_int_equal(s.failed, 1);
    assert_int_equal(aq_io_out(r.io), 0);
    rig_close(&r);
}

static void other_transfers_survive_a_timeout(void **state)
{
    (void)state;
    struct rig r;
    struct aq_err err;
    rig_open(&r, &no_faults, 1, small_requests());
    aq_io_fault_at(r.io, 0, AQ_FAULT_STALL);
    struct aq_transfer *t = start(&r, 0, AQ_IO_READ, 1, 0, 4096);
    for (int i = 1; i < PLACES; i++)
        start(&r, i, AQ_IO_READ, 1, (uint64_t)i * PLACE_BYTES, PLACE_BYTES);
    run(&r);
    assert_int_equal(t->status, -ETIMEDOUT);
    assert_int_equal(aq_xfer_error(r.x, t, &err), -ETIMEDOUT);
    assert_string_equal(err.text, "read 4096 bytes at 0 of 'scratch': no answer for 0.001 seconds");
    for (int i = 1; i < PLACES; i++) {
        assert_int_equal(r.t[i].status, 0);
        assert_true(same(1, r.t[i].offset, r.t[i].buffer, r.t[i].bytes));
    }
    assert_int_equal(aq_io_out(r.io), 1);
    rig_close(&r);
}

static void a_disk_that_never_answers_fails_all(void **state)
{
    (void)state;
    struct rig r;
    struct aq_err err;
    struct aq_fault_opts faults = {.ratio = {[AQ_FAULT_STALL] = {1, 1}}};
    rig_open(&r, &faults, 1, small_requests());
    for (int i = 0; i < PLACES; i++)
        start(&r, i, i % 2 ? AQ_IO_WRITE : AQ_IO_READ, 1, (uint64_t)i * PLACE_BYTES, PLACE_BYTES);
    run(&r);
    for (int i = 0; i < PLACES; i++)
        assert_int_equal(r.t[i].status, -ETIMEDOUT);
    assert_int_equal(aq_xfer_error(r.x, &r.t[PLACES - 1], &err), -ETIMEDOUT);
    assert_non_null(strstr(err.text, "the disk gives no answer"));
    assert_int_equal(aq_xfer_stats(r.x).timed_out, PLACES);
    rig_close(&r);
}

static void endless_excuses_end_at_the_deadline(void **state)
{
    (void)state;
    static const enum aq_fault_kind kinds[] = {AQ_FAULT_EAGAIN, AQ_FAULT_EINTR, AQ_FAULT_BUSY};
    for (size_t i = 0; i < AQ_ARRAY_LEN(kinds); i++) {
        struct rig r;
        struct aq_fault_opts faults = {.reap_ns = 10000, .ratio = {[AQ_FAULT_NONE] = {0, 1}}};
        faults.ratio[kinds[i]] = (struct aq_ratio){1, 1};
        rig_open(&r, &faults, 1, small_requests());
        struct aq_transfer *t = start(&r, 0, AQ_IO_READ, 1, 0, 4096);
        run(&r);
        assert_int_equal(t->status, -ETIMEDOUT);
        assert_int_equal(aq_io_out(r.io), 0);
        /* All requests are home again. */
        aq_io_fault_heal(r.io);
        for (int n = 0; n < PLACES; n++)
            start(&r, n, AQ_IO_READ, 1, (uint64_t)n * PLACE_BYTES, PLACE_BYTES);
        run(&r);
        for (int n = 0; n < PLACES; n++)
            assert_int_equal(r.t[n].status, 0);
        rig_close(&r);
    }
}

static void a_lost_request_is_told_whatever_else_failed(void **state)
{
    (void)state;
    struct rig r;
    struct aq_xfer_opts opts = small_requests();
    opts.eio_retries = 0;
    rig_open(&r, &no_faults, 1, opts);
    aq_io_fault_at(r.io, 0, AQ_FAULT_EIO_ONCE);
    aq_io_fault_at(r.io, 1, AQ_FAULT_STALL);
    struct aq_transfer *t = start(&r, 0, AQ_IO_READ, 1, 0, PLACE_BYTES);
    run(&r);
    assert_int_equal(t->status, -ETIMEDOUT); /* not -EIO: the buffer is still the engine's */
    assert_int_equal(aq_io_out(r.io), 1);
    rig_close(&r);
}

static void progress_puts_the_deadline_off(void **state)
{
    (void)state;
    struct rig r;
    struct aq_fault_opts faults = {.latency_ns_min = 400 * 1000,
                                   .ratio = {[AQ_FAULT_SHORT] = {1, 1}}};
    rig_open(&r, &faults, 1, small_requests()); /* a deadline of 1 ms */
    struct aq_transfer *t = start(&r, 0, AQ_IO_READ, 1, 0, 64 * 1024);
    run(&r);
    assert_int_equal(t->status, 0);
    assert_true(aq_io_now(r.io) > 1000 * 1000);
    assert_true(aq_xfer_stats(r.x).shorts >= 2);
    rig_close(&r);
}

/* A deadline of 1 ms, and minutes in which the process is stopped, again and again. */
static void time_in_which_the_process_is_stopped_does_not_count(void **state)
{
    (void)state;
    struct rig r;
    struct aq_fault_opts faults = {.latency_ns_min = 700 * 1000};
    rig_open(&r, &faults, 1, small_requests());
    for (uint64_t ran_ns = 0; ran_ns < 700 * 1000; ran_ns += 100 * 1000) {
        struct aq_transfer *t = start(&r, 0, AQ_IO_READ, 1, 0, 8 * 1024);
        uint64_t begin = aq_io_now(r.io);
        assert_null(aq_xfer_poll(r.x, ran_ns)); /* under way, for a part of its time */
        for (int n = 0; n < 3; n++) {
            aq_io_fault_stop(r.io, 600ull * 1000 * 1000 * 1000);
            assert_null(aq_xfer_poll(r.x, 1000));
        }
        run(&r);
        assert_int_equal(t->status, 0);
        assert_true(same(1, 0, t->buffer, t->bytes));
        assert_true(aq_io_now(r.io) - begin > 1800ull * 1000 * 1000 * 1000);
    }
    assert_int_equal(aq_xfer_stats(r.x).timed_out, 0);
    rig_close(&r);
}

static void a_disk_that_never_answers_is_found_out_between_the_stops(void **state)
{
    (void)state;
    struct rig r;
    rig_open(&r, &no_faults, 1, small_requests());
    aq_io_fault_at(r.io, 0, AQ_FAULT_STALL);
    struct aq_transfer *t = start(&r, 0, AQ_IO_READ, 1, 0, 4096), *ended = NULL;
    int stops = 0;
    for (; !ended && stops < 100; stops++) {
        ended = aq_xfer_poll(r.x, 100 * 1000); /* of its millisecond */
        aq_io_fault_stop(r.io, 600ull * 1000 * 1000 * 1000);
    }
    assert_ptr_equal(ended, t);
    assert_int_equal(t->status, -ETIMEDOUT);
    assert_in_range(stops, 6, 11);
    rig_close(&r);
}

static void a_file_that_ends_is_an_error(void **state)
{
    (void)state;
    struct rig r;
    struct aq_err err;
    rig_open(&r, &no_faults, 1, small_requests());
    aq_xfer_close(r.x);
    struct aq_xfer_set set = {STRIPES, 1, 2 * FILE_BYTES}; /* more than there is */
    struct aq_xfer_opts opts = small_requests();
    opts.io = r.io;
    opts.sets = &set;
    opts.set_count = 1;
    assert_int_equal(aq_xfer_open(&r.x, &opts, NULL), 0);
    struct aq_transfer *in = start(&r, 0, AQ_IO_READ, 0, FILE_BYTES - 4096, 8192),
                       *out = start(&r, 1, AQ_IO_WRITE, 0, FILE_BYTES + 8192, 4096);
    run(&r);
    assert_int_equal(in->status, -EIO);
    aq_xfer_error(r.x, in, &err);
    assert_string_equal(err.text, "read 4096 bytes at 8388608 of 'scratch': the file ends");
    assert_int_equal(out->status, -ENOSPC);
    aq_xfer_error(r.x, out, &err);
    assert_non_null(strstr(err.text, "No space left on device"));
    rig_close(&r);
}

/* ---- memory ---- */

static void nothing_is_allocated_after_open(void **state)
{
    (void)state;
    struct rig r;
    struct aq_fault_opts faults = {
        .seed = 1, .ratio = {[AQ_FAULT_SHORT] = {1, 2}, [AQ_FAULT_EAGAIN] = {1, 4}}};
    rig_open(&r, &faults, 1, small_requests());
    alloc_trap_take();
    alloc_trap_arm(NULL, true);
    for (int i = 0; i < PLACES; i++)
        start(&r, i, i % 2 ? AQ_IO_WRITE : AQ_IO_READ, 1, (uint64_t)i * PLACE_BYTES, PLACE_BYTES);
    run(&r);
    alloc_trap_arm(NULL, false);
    assert_int_equal(alloc_trap_take(), 0);
    rig_close(&r);
    alloc_trap_arm(NULL, true); /* the trap works */
    void *volatile p = malloc(1);
    alloc_trap_arm(NULL, false);
    free(p);
    assert_int_equal(alloc_trap_take(), 1);
}

/* ---- order, waits, statistics ---- */

static void destinations_are_garbage_until_poll(void **state)
{
    (void)state;
    struct rig r;
    rig_open(&r, &no_faults, 1, small_requests());
    memset(buffers, 7, PLACE_BYTES);
    struct aq_transfer *t = start(&r, 0, AQ_IO_READ, 1, 0, 4096);
    aq_xfer_commit(r.x);
    for (int i = 0; i < 4096; i++)
        assert_int_equal(buffers[i], 0xff);
    assert_ptr_equal(aq_xfer_poll(r.x, AQ_IO_FOREVER), t);
    assert_true(same(1, 0, buffers, 4096));
    rig_close(&r);
}

static void a_source_is_read_at_completion(void **state)
{
    (void)state;
    struct rig r;
    rig_open(&r, &no_faults, 1, small_requests());
    struct aq_transfer *t = start(&r, 0, AQ_IO_WRITE, 1, 0, 4096);
    aq_xfer_commit(r.x);
    memset(buffers, 9, 4096); /* too early: shows in the file */
    assert_ptr_equal(aq_xfer_poll(r.x, AQ_IO_FOREVER), t);
    assert_int_equal(*byte_at(1, 0), 9);
    rig_close(&r);
}

static void transfers_finish_in_order_on_an_orderly_disk(void **state)
{
    (void)state;
    struct rig r;
    int next = 0;
    rig_open(&r, &no_faults, 1, small_requests());
    for (int i = 0; i < PLACES; i++)
        start(&r, i, AQ_IO_READ, 1, (uint64_t)i * PLACE_BYTES, PLACE_BYTES);
    while (aq_xfer_running(r.x) > 0) {
        for (struct aq_transfer *t = aq_xfer_poll(r.x, AQ_IO_FOREVER); t; t = t->next)
            assert_ptr_equal(t, &r.t[next++]);
    }
    assert_int_equal(next, PLACES);
    rig_close(&r);
}

static void reads_and_writes_take_turns(void **state)
{
    (void)state;
    struct rig r;
    struct aq_fault_opts slow = {.latency_ns_min = 100000};
    struct aq_transfer *order[5];
    int n = 0;
    rig_open(&r, &slow, 1, small_requests()); /* depth 4, a place is 4 requests */
    for (int i = 0; i < 4; i++)
        start(&r, i, AQ_IO_READ, 1, (uint64_t)i * PLACE_BYTES, PLACE_BYTES);
    start(&r, 4, AQ_IO_WRITE, 1, 4 * PLACE_BYTES, PLACE_BYTES);
    while (aq_xfer_running(r.x) > 0) {
        for (struct aq_transfer *t = aq_xfer_poll(r.x, AQ_IO_FOREVER); t; t = t->next)
            order[n++] = t;
    }
    /* The write, started last, got every other turn until it was through. */
    assert_int_equal(n, 5);
    assert_ptr_equal(order[0], &r.t[0]);
    assert_ptr_equal(order[1], &r.t[4]);
    rig_close(&r);
}

static void the_queue_is_kept_full(void **state)
{
    (void)state;
    struct rig r;
    struct aq_fault_opts slow = {.latency_ns_min = 50000, .latency_ns_mean = 20000};
    struct aq_xfer_opts opts = small_requests();
    opts.request_bytes = 16 * 1024;
    rig_open(&r, &slow, 1, opts);
    for (int i = 0; i < PLACES; i++)
        start(&r, i, AQ_IO_READ, 1, (uint64_t)i * PLACE_BYTES, PLACE_BYTES);
    run(&r);
    struct aq_xfer_stats s = aq_xfer_stats(r.x);
    assert_int_equal(s.bytes[AQ_IO_READ], PLACES * PLACE_BYTES);
    assert_int_equal(s.requests[AQ_IO_READ], PLACES * PLACE_BYTES / (16 * 1024));
    assert_true(s.depth > 3.9 && s.depth <= 4.0);
    assert_true(s.busy_ns[AQ_IO_READ] == s.any_busy_ns);
    assert_int_equal(s.busy_ns[AQ_IO_WRITE], 0);
    rig_close(&r);
}

static void poll_without_work_waits_for_a_wake(void **state)
{
    (void)state;
    struct rig r;
    rig_open(&r, &no_faults, 1, small_requests());
    aq_io_wake(r.io);
    assert_null(aq_xfer_poll(r.x, AQ_IO_FOREVER));
    assert_null(aq_xfer_poll(r.x, 0));
    rig_close(&r);
}

static void a_wake_ends_a_poll_that_has_work(void **state)
{
    (void)state;
    struct rig r;
    struct aq_fault_opts slow = {.latency_ns_min = 50000};
    rig_open(&r, &slow, 1, small_requests());
    struct aq_transfer *t = start(&r, 0, AQ_IO_READ, 1, 0, 4096);
    aq_io_wake(r.io);
    assert_null(aq_xfer_poll(r.x, AQ_IO_FOREVER));
    assert_ptr_equal(aq_xfer_poll(r.x, AQ_IO_FOREVER), t);
    rig_close(&r);
}

static void a_timeout_ends_a_poll(void **state)
{
    (void)state;
    struct rig r;
    struct aq_fault_opts slow = {.latency_ns_min = 50000};
    rig_open(&r, &slow, 1, small_requests());
    struct aq_transfer *t = start(&r, 0, AQ_IO_READ, 1, 0, 4096);
    assert_null(aq_xfer_poll(r.x, 10000));
    assert_ptr_equal(aq_xfer_poll(r.x, AQ_IO_FOREVER), t);
    assert_int_equal(t->status, 0);
    rig_close(&r);
}

/* ---- real engines ---- */

static void striped_files_hold_what_was_written(void **state)
{
    (void)state;
    enum { N = 3, BYTES = 9 << 20, CHUNK = 1 << 20 };
    for (enum aq_io_kind kind = AQ_IO_AUTO; kind < AQ_IO_KIND_COUNT; kind++) {
        struct aq_io_file files[N];
        char path[N][TEMP_PATH_MAX];
        struct aq_io *io;
        struct aq_xfer *x;
        for (int i = 0; i < N; i++) {
            int fd = temp_file(path[i], "xfer");
            files[i] = (struct aq_io_file){.fd = fd, .name = path[i]};
            files[i].direct = fcntl(fd, F_SETFL, O_RDWR | O_DIRECT) == 0;
            assert_int_equal(ftruncate(fd, (off_t)aq_stripe_file_bytes(BYTES, N, (uint32_t)i)), 0);
        }
        struct aq_io_opts io_opts = {.kind = kind, .files = files, .file_count = N, .depth = 16};
        if (aq_io_open(&io, &io_opts, NULL) < 0 && kind == AQ_IO_URING)
            continue;
        struct aq_xfer_set set = {0, N, BYTES};
        struct aq_xfer_opts opts = aq_xfer_defaults();
        opts.io = io;
        opts.sets = &set;
        opts.set_count = 1;
        opts.request_bytes = 256 * 1024;
        assert_int_equal(aq_xfer_open(&x, &opts, NULL), 0);
        unsigned char *data, *back;
        assert_int_equal(posix_memalign((void **)&data, 4096, BYTES), 0);
        assert_int_equal(posix_memalign((void **)&back, 4096, BYTES), 0);
        for (uint64_t at = 0; at < BYTES; at += 8) {
            uint64_t word = aq_prng_u64((uint64_t)kind, at, 0);
            memcpy(data + at, &word, 8);
        }
        for (int turn = 0; turn < 2; turn++) {
            struct aq_transfer t[BYTES / CHUNK];
            memset(t, 0, sizeof(t));
            for (size_t i = 0; i < AQ_ARRAY_LEN(t); i++) {
                t[i].op = turn ? AQ_IO_READ : AQ_IO_WRITE;
                t[i].offset = i * CHUNK;
                t[i].bytes = CHUNK;
                t[i].buffer = (turn ? back : data) + i * CHUNK;
                aq_xfer_start(x, &t[i]);
            }
            while (aq_xfer_running(x) > 0)
                (void)aq_xfer_poll(x, AQ_IO_FOREVER);
            for (size_t i = 0; i < AQ_ARRAY_LEN(t); i++)
                assert_int_equal(t[i].status, 0);
        }
        assert_memory_equal(data, back, BYTES);
        aq_xfer_close(x);
        aq_io_close(io);
        for (int i = 0; i < N; i++) {
            close(files[i].fd);
            unlink(path[i]);
        }
        free(data);
        free(back);
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(a_range_is_read_across_stripes),
    cmocka_unit_test(a_short_transfer_is_resumed),
    cmocka_unit_test(a_short_direct_transfer_is_resumed_at_a_block),
    cmocka_unit_test(not_now_and_interrupted_are_tried_again),
    cmocka_unit_test(an_error_of_the_disk_is_tried_again),
    cmocka_unit_test(a_request_that_never_comes_back_is_a_timeout),
    cmocka_unit_test(an_error_that_stays_names_the_file_and_the_place),
    cmocka_unit_test(other_transfers_survive_a_timeout),
    cmocka_unit_test(a_disk_that_never_answers_fails_all),
    cmocka_unit_test(endless_excuses_end_at_the_deadline),
    cmocka_unit_test(a_lost_request_is_told_whatever_else_failed),
    cmocka_unit_test(progress_puts_the_deadline_off),
    cmocka_unit_test(time_in_which_the_process_is_stopped_does_not_count),
    cmocka_unit_test(a_disk_that_never_answers_is_found_out_between_the_stops),
    cmocka_unit_test(a_file_that_ends_is_an_error),
    cmocka_unit_test(nothing_is_allocated_after_open),
    cmocka_unit_test(destinations_are_garbage_until_poll),
    cmocka_unit_test(a_source_is_read_at_completion),
    cmocka_unit_test(transfers_finish_in_order_on_an_orderly_disk),
    cmocka_unit_test(reads_and_writes_take_turns),
    cmocka_unit_test(the_queue_is_kept_full),
    cmocka_unit_test(poll_without_work_waits_for_a_wake),
    cmocka_unit_test(a_wake_ends_a_poll_that_has_work),
    cmocka_unit_test(a_timeout_ends_a_poll),
    cmocka_unit_test(striped_files_hold_what_was_written),
};

int main(void)
{
    return cmocka_run_group_tests(tests, make_data, free_data) ? 1 : 0;
}
