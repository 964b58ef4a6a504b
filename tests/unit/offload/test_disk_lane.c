/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/test.h"

#include "base/prng.h"
#include "base/types.h"
#include "offload/disk.h"
#include "offload/disk_lane.h"
#include "offload/io_fault.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { JOBS = 16, JOB_BYTES = 96 * 1024, FILE_BYTES = JOBS * JOB_BYTES };

struct rig {
    unsigned char *file, *buffers; /* [JOBS][JOB_BYTES] each */
    struct aq_timeline *timeline;
    struct aq_completions *done;
    struct aq_io *io;
    struct aq_disk_lane *lane;
    struct aq_disk_group group[JOBS];
    struct aq_disk_transfer half[JOBS][2];
    bool checks;         /* groups ask for the lane's check */
    unsigned look_count; /* of it */
};

static void fill(unsigned char *bytes, uint64_t count, uint64_t key)
{
    for (uint64_t at = 0; at < count; at += 8) {
        uint64_t word = (key + at + 1) * 0x9e3779b97f4a7c15ull;
        memcpy(bytes + at, &word, 8);
    }
}

static void rig_memory(struct rig *r)
{
    memset(r, 0, sizeof(*r));
    assert_int_equal(posix_memalign((void **)&r->file, 4096, FILE_BYTES), 0);
    assert_int_equal(posix_memalign((void **)&r->buffers, 4096, FILE_BYTES), 0);
    fill(r->file, FILE_BYTES, 1);
}

/* The bytes of the job's range of the file and of its buffer are the same. */
static bool same(const struct rig *r, int i)
{
    return memcmp(r->file + (size_t)i * JOB_BYTES, r->buffers + (size_t)i * JOB_BYTES, JOB_BYTES) ==
           0;
}

/* The lane's check: every third job does not look right. */
static int look(void *user, const struct aq_disk_group *g, struct aq_err *reterr)
{
    struct rig *r = user;
    assert_true(same(r, (int)g->token)); /* all of it is there */
    r->look_count++;
    return g->token % 3 ? 0 : aq_error(reterr, -ENOEXEC, "job %d is damaged", (int)g->token);
}

static void rig_lane(struct rig *r, uint64_t deadline_ns)
{
    struct aq_xfer_set set = {0, 1, FILE_BYTES};
    struct aq_disk_lane_opts opts = {
        .io = r->io, .xfer = aq_xfer_defaults(), .timeline = r->timeline, .check = {look, r}};
    opts.xfer.io = r->io;
    opts.xfer.sets = &set;
    opts.xfer.set_count = 1;
    opts.xfer.depth = 4;
    opts.xfer.request_bytes = 32 * 1024;
    opts.xfer.deadline_ns = deadline_ns;
    assert_int_equal(aq_completions_open(&r->done, JOBS, r->timeline, NULL), 0);
    opts.done = r->done;
    assert_int_equal(aq_disk_lane_open(&r->lane, &opts, NULL), 0);
}

/* The file in memory, behind the fault engine, in virtual time. */
static void rig_virtual(struct rig *r, const struct aq_fault_opts *faults)
{
    struct aq_fault_opts f = *faults;
    struct aq_io *mem;
    rig_memory(r);
    assert_int_equal(aq_timeline_open(&r->timeline, f.seed, NULL), 0);
    f.timeline = r->timeline;
    struct aq_io_mem_file file = {r->file, FILE_BYTES, "memory"};
    struct aq_io_mem_opts mem_opts = {.files = &file, .file_count = 1, .depth = 8};
    assert_int_equal(aq_io_open_mem(&mem, &mem_opts, NULL), 0);
    assert_int_equal(aq_io_open_fault(&r->io, mem, &f, NULL), 0);
    rig_lane(r, 20 * 1000 * 1000);
}

static void rig_close(struct rig *r)
{
    aq_disk_lane_close(r->lane);
    aq_io_close(r->io);
    aq_completions_close(r->done);
    aq_timeline_close(r->timeline);
    free(r->file);
    free(r->buffers);
}

/* Job i, of two halves, has its own range of the file and its own buffer. */
static void submit(struct rig *r, int i, enum aq_io_op op, uint64_t turn)
{
    unsigned char *buffer = r->buffers + (size_t)i * JOB_BYTES;
    for (uint64_t h = 0; h < 2; h++) {
        struct aq_disk_transfer *t = &r->half[i][h];
        *t = (struct aq_disk_transfer){0};
        t->t.op = op;
        t->t.bytes = JOB_BYTES / 2;
        t->t.offset = (uint64_t)i * JOB_BYTES + h * t->t.bytes;
        t->t.buffer = buffer + h * t->t.bytes;
    }
    r->group[i] = (struct aq_disk_group){
        .transfer = r->half[i], .count = 2, .token = (uint64_t)i, .check = r->checks};
    if (op == AQ_IO_WRITE)
        fill(buffer, JOB_BYTES, turn << 32 | (uint64_t)i);
    aq_disk_lane_submit(r->lane, &r->group[i]);
}

static void every_job_ends_in_virtual_time(void **state)
{
    (void)state;
    struct rig r;
    struct aq_fault_opts faults = {.seed = 1, .latency_ns_min = 1000, .latency_ns_mean = 5000};
    struct aq_completion c[JOBS];
    rig_virtual(&r, &faults);
    for (int i = 0; i < JOBS; i++)
        submit(&r, i, i % 3 ? AQ_IO_READ : AQ_IO_WRITE, 1);
    for (int n = 0; n < JOBS;) {
        int got = aq_completions_wait(r.done, c, JOBS, AQ_WAIT_FOREVER);
        assert_true(got > 0);
        for (int j = 0; j < got; j++, n++) {
            assert_int_equal(c[j].result, 0);
            assert_true(same(&r, (int)c[j].token));
            const struct aq_transfer *t = &r.half[c[j].token][1].t;
            assert_true(t->began_ns < t->ended_ns && t->ended_ns <= aq_timeline_now(r.timeline));
        }
    }
    /* A group of nothing ends at once; then nothing is due any more. */
    r.group[0] = (struct aq_disk_group){.token = 7};
    aq_disk_lane_submit(r.lane, &r.group[0]);
    assert_int_equal(aq_completions_wait(r.done, c, 1, AQ_WAIT_FOREVER), 1);
    assert_int_equal(c[0].token, 7);
    assert_int_equal(aq_disk_lane_error(r.lane, NULL), 0);
    assert_int_equal(aq_completions_wait(r.done, c, 1, AQ_WAIT_FOREVER), -EDEADLK);
    assert_int_equal(aq_disk_lane_stats(r.lane).bytes[AQ_IO_READ], 10 * JOB_BYTES);
    rig_close(&r);
}

/* Jobs with faults, some of them submitted while others run.  Returns the hash of all events. */
static uint64_t swarm(uint64_t seed, unsigned *ret_failed)
{
    struct rig r;
    struct aq_fault_opts faults = {
        .seed = seed,
        .latency_ns_mean = aq_prng_below(seed, 1, 0, 3) * 5000,
        .ratio = {[AQ_FAULT_SHORT] = {(uint32_t)aq_prng_below(seed, 2, 0, 3), 4},
                  [AQ_FAULT_EAGAIN] = {(uint32_t)aq_prng_below(seed, 3, 0, 3), 4},
                  [AQ_FAULT_BUSY] = {(uint32_t)aq_prng_below(seed, 4, 0, 3), 4},
                  [AQ_FAULT_EIO_ONCE] = {(uint32_t)aq_prng_below(seed, 5, 0, 2), 8},
                  [AQ_FAULT_EIO_STICKY] = {(uint32_t)aq_prng_below(seed, 6, 0, 2), 200},
                  [AQ_FAULT_STALL] = {(uint32_t)aq_prng_below(seed, 7, 0, 2), 200}},
    };
    struct aq_completion c[4];
    struct aq_err err;
    int started = 0, ended = 0, total = 3 * JOBS;
    bool lost[JOBS] = {0};
    rig_virtual(&r, &faults);
    while (started < JOBS)
        submit(&r, started++, AQ_IO_READ, 0);
    while (ended < started) {
        int got = aq_completions_wait(r.done, c, AQ_ARRAY_LEN(c), AQ_WAIT_FOREVER);
        if (got <= 0)
            fail_msg("seed %llu: %d", (unsigned long long)seed, got);
        for (int j = 0; j < got; j++, ended++) {
            int i = (int)c[j].token;
            if (c[j].result == 0) {
                assert_true(same(&r, i));
            } else {
                assert_true(c[j].result == -EIO || c[j].result == -ETIMEDOUT);
                assert_true(aq_disk_lane_error(r.lane, &err) < 0 && err.text[0]);
                lost[i] = c[j].result == -ETIMEDOUT;
                ++*ret_failed;
            }
            if (started < total && !lost[i]) {
                submit(&r, i, started % 2 ? AQ_IO_READ : AQ_IO_WRITE, (uint64_t)started);
                started++;
            }
        }
    }
    uint64_t hash = aq_io_fault_stats(r.io).event_hash;
    rig_close(&r);
    return hash;
}

static void faults_end_jobs_with_an_error_or_not_at_all(void **state)
{
    (void)state;
    unsigned failed = 0, again = 0;
    for (uint64_t seed = 1; seed <= 400; seed++) {
        uint64_t hash = swarm(seed, &failed);
        if (seed <= 50)
            assert_int_equal(hash, swarm(seed, &again));
    }
    assert_true(failed > 100);
}

/* A lane on a real file, fed while the caller waits for something else. */
static void a_thread_moves_bytes_meanwhile(void **state)
{
    (void)state;
    for (enum aq_io_kind kind = AQ_IO_AUTO; kind <= AQ_IO_THREADS; kind += AQ_IO_THREADS) {
        struct rig r;
        struct aq_completion c[JOBS];
        const char *temp = getenv("TMPDIR"), *dirs[] = {temp ? temp : "/tmp"};
        struct aq_disk_scratch_opts scratch = {.what = "test",
                                               .dirs = dirs,
                                               .dir_count = 1,
                                               .bytes = FILE_BYTES,
                                               .allow_memory = true};
        struct aq_disk *disk;
        rig_memory(&r);
        assert_int_equal(aq_disk_open_scratch(&disk, &scratch, NULL), 0);
        struct aq_io_opts io_opts = {
            .kind = kind, .files = aq_disk_files(disk), .file_count = 1, .depth = 8};
        assert_int_equal(aq_io_open(&r.io, &io_opts, NULL), 0);
        rig_lane(&r, 60ull * 1000 * 1000 * 1000);
        for (uint64_t turn = 1; turn <= 6; turn++) {
            for (enum aq_io_op op = AQ_IO_WRITE + 1; op-- > 0;) { /* write, then read */
                for (int i = 0; i < JOBS; i++)
                    submit(&r, i, op, turn);
                for (int n = 0; n < JOBS;) {
                    int got = aq_completions_wait(r.done, c, JOBS, AQ_WAIT_FOREVER);
                    for (int j = 0; j < got; j++, n++)
                        assert_int_equal(c[j].result, 0);
                }
                if (op == AQ_IO_WRITE) {
                    memcpy(r.file, r.buffers, FILE_BYTES);
                    memset(r.buffers, 0, FILE_BYTES);
                }
            }
            for (int i = 0; i < JOBS; i++)
                assert_true(same(&r, i));
        }
        rig_close(&r);
        aq_disk_close(disk);
    }
}

static void take_all(struct rig *r, bool checked)
{
    struct aq_completion c[JOBS];
    for (int n = 0; n < JOBS;) {
        int got = aq_completions_wait(r->done, c, JOBS, AQ_WAIT_FOREVER);
        assert_true(got > 0);
        for (int j = 0; j < got; j++, n++)
            assert_int_equal(c[j].result, checked && c[j].token % 3 == 0 ? -ENOEXEC : 0);
    }
}

static void check_swarm(struct rig *r)
{
    struct aq_err err = {0};
    for (int checked = 0; checked < 2; checked++) {
        r->checks = checked;
        for (int i = 0; i < JOBS; i++)
            submit(r, i, AQ_IO_READ, 0);
        take_all(r, checked);
        assert_int_equal(r->look_count, checked ? JOBS : 0);
        assert_int_equal(aq_disk_lane_error(r->lane, &err), checked ? -ENOEXEC : 0);
    }
    assert_non_null(strstr(err.text, "is damaged"));
    rig_close(r);
}

static void a_group_ends_as_its_check_says_in_virtual_time(void **state)
{
    (void)state;
    struct rig r;
    struct aq_fault_opts faults = {.seed = 1, .latency_ns_min = 1000, .latency_ns_mean = 5000};
    rig_virtual(&r, &faults);
    check_swarm(&r);
}

static void a_group_ends_as_its_check_says_beside_the_disk(void **state)
{
    (void)state;
    struct rig r;
    rig_memory(&r);
    struct aq_io_mem_file file = {r.file, FILE_BYTES, "memory"};
    struct aq_io_mem_opts opts = {.files = &file, .file_count = 1, .depth = 8};
    assert_int_equal(aq_io_open_mem(&r.io, &opts, NULL), 0);
    rig_lane(&r, 60ull * 1000 * 1000 * 1000);
    check_swarm(&r);
}

static void close_waits_for_what_was_submitted(void **state)
{
    (void)state;
    struct rig r;
    struct aq_completion c[JOBS];
    struct aq_io_mem_file file = {NULL, FILE_BYTES, NULL};
    struct aq_io_mem_opts opts = {.files = &file, .file_count = 1, .depth = 8, .null = true};
    rig_memory(&r);
    r.checks = true;
    memcpy(r.buffers, r.file, FILE_BYTES); /* which is all that its check asks */
    assert_int_equal(aq_io_open_mem(&r.io, &opts, NULL), 0);
    rig_lane(&r, 1000 * 1000 * 1000);
    for (int i = 0; i < JOBS; i++)
        submit(&r, i, AQ_IO_READ, 0);
    aq_disk_lane_close(r.lane);
    r.lane = NULL;
    assert_int_equal(aq_completions_wait(r.done, c, JOBS, 0), JOBS);
    rig_close(&r);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(every_job_ends_in_virtual_time),
    cmocka_unit_test(faults_end_jobs_with_an_error_or_not_at_all),
    cmocka_unit_test(a_thread_moves_bytes_meanwhile),
    cmocka_unit_test(a_group_ends_as_its_check_says_in_virtual_time),
    cmocka_unit_test(a_group_ends_as_its_check_says_beside_the_disk),
    cmocka_unit_test(close_waits_for_what_was_submitted),
};
AQ_TEST_MAIN(tests)
