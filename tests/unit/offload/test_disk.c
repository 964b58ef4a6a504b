/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/temp.h"
#include "tests/test.h"

#include "base/types.h"
#include "offload/disk.h"
#include "offload/xfer.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- rig: two directories, and what was logged ---- */

struct rig {
    char root[TEMP_PATH_MAX], dir[2][TEMP_INSIDE_MAX];
    const char *dirs[2];
    char log[4096];
    struct aq_log sink;
    struct aq_err err;
};

static void keep_line(void *user, enum aq_log_level level, const char *text)
{
    struct rig *r = user;
    size_t used = strlen(r->log);
    snprintf(r->log + used, sizeof(r->log) - used, "%d %s\n", level, text);
}

static int rig_open(void **state)
{
    struct rig *r = calloc(1, sizeof(*r));
    temp_dir(r->root, "disk");
    chmod(r->root, 0755);
    for (int i = 0; i < 2; i++) {
        snprintf(r->dir[i], sizeof(r->dir[i]), "%s/%d", r->root, i);
        assert_int_equal(mkdir(r->dir[i], 0755), 0);
        r->dirs[i] = r->dir[i];
    }
    r->sink = (struct aq_log){keep_line, r};
    *state = r;
    return 0;
}

static int rig_close(void **state)
{
    struct rig *r = *state;
    int rc = temp_remove(r->root);
    free(r);
    return rc;
}

static struct aq_disk_scratch_opts scratch(const struct rig *r, uint64_t bytes)
{
    return (struct aq_disk_scratch_opts){.what = "KV cache",
                                         .dirs = r->dirs,
                                         .dir_count = 2,
                                         .bytes = bytes,
                                         .allow_memory = true, /* wherever the tests run */
                                         .log = &r->sink};
}

static int entries(const char *path)
{
    DIR *d = opendir(path);
    int n = 0;
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));)
        n += e->d_name[0] != '.' || e->d_name[1] == 'a';
    closedir(d);
    return n;
}

/* Runs `body` in a child, where it may bend the system; its exit status is the answer. */
static void in_a_child(struct rig *r, int (*body)(struct rig *r))
{
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0)
        _exit(body(r));
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == 77)
        skip(); /* no seccomp here */
    assert_int_equal(WEXITSTATUS(status), 0);
}

/* From now on system call `nr` fails with `code`, where argument `arg` has a bit of `mask`. */
static int forbid(int nr, int arg, uint32_t mask, int code)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)nr, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS,
                 (uint32_t)(offsetof(struct seccomp_data, args) + 8 * (size_t)arg)),
        BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, mask, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (uint32_t)code),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {AQ_ARRAY_LEN(filter), filter};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
        return -1;
    return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

/* fcntl(fd, F_SETFL, flags with O_DIRECT) says EINVAL, as a file system without it would. */
static int refuse_direct(void)
{
    return forbid(SYS_fcntl, 2, O_DIRECT, EINVAL);
}

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: %s; log: %s; error: %s\n", __FILE__, __LINE__, #condition,     \
                    r->log, r->err.text);                                                          \
            return 1;                                                                              \
        }                                                                                          \
    } while (0)

/* ---- scratch ---- */

static void scratch_has_no_name_and_all_its_bytes(void **state)
{
    struct rig *r = *state;
    struct aq_disk *d;
    struct aq_disk_scratch_opts o = scratch(r, 9 * AQ_MIB);
    assert_int_equal(aq_disk_open_scratch(&d, &o, &r->err), 0);
    assert_int_equal(aq_disk_file_count(d), 2);
    static const uint64_t sizes[2] = {5 * AQ_MIB, 4 * AQ_MIB};
    for (uint32_t i = 0; i < 2; i++) {
        struct stat st;
        assert_int_equal(entries(r->dirs[i]), 0);
        assert_int_equal(fstat(aq_disk_files(d)[i].fd, &st), 0);
        assert_int_equal(st.st_nlink, 0);
        assert_int_equal(st.st_size, sizes[i]);
        assert_true((uint64_t)st.st_blocks * 512 >= sizes[i]);
        assert_int_equal(aq_disk_files(d)[i].direct, aq_disk_is_direct(d));
        assert_int_equal(aq_disk_files(d)[i].forget, !aq_disk_is_direct(d));
    }
    assert_int_equal(aq_disk_allocated(d), 9 * AQ_MIB);
    aq_disk_close(d);
}

/* Writes a pattern through an engine and xfer, and reads it back. */
static bool works(const struct aq_disk *d, uint64_t bytes)
{
    struct aq_io *io;
    struct aq_xfer *x;
    struct aq_io_opts io_opts = {
        .files = aq_disk_files(d), .file_count = aq_disk_file_count(d), .depth = 8};
    struct aq_xfer_set set = {0, aq_disk_file_count(d), bytes};
    struct aq_xfer_opts opts = aq_xfer_defaults();
    unsigned char *data;
    if (aq_io_open(&io, &io_opts, NULL) < 0)
        return false;
    opts.io = io;
    opts.sets = &set;
    opts.set_count = 1;
    opts.depth = 8;
    if (aq_xfer_open(&x, &opts, NULL) < 0 || posix_memalign((void **)&data, 4096, bytes) != 0)
        return false;
    bool ok = true;
    for (int turn = 0; turn < 2; turn++) {
        struct aq_transfer t = {.op = turn ? AQ_IO_READ : AQ_IO_WRITE, .bytes = bytes};
        t.buffer = data;
        for (uint64_t i = 0; i < bytes; i++)
            data[i] = turn ? 0 : (unsigned char)(i ^ i >> 8 ^ i >> 16);
        aq_xfer_start(x, &t);
        while (aq_xfer_running(x) > 0)
            (void)aq_xfer_poll(x, AQ_IO_FOREVER);
        ok = ok && t.status == 0;
    }
    for (uint64_t i = 0; i < bytes; i++)
        ok = ok && data[i] == (unsigned char)(i ^ i >> 8 ^ i >> 16);
    aq_xfer_close(x);
    aq_io_close(io);
    free(data);
    return ok;
}

static void scratch_reads_back_what_was_written(void **state)
{
    struct rig *r = *state;
    struct aq_disk *d;
    struct aq_disk_scratch_opts o = scratch(r, 9 * AQ_MIB);
    assert_int_equal(aq_disk_open_scratch(&d, &o, &r->err), 0);
    assert_true(works(d, 9 * AQ_MIB));
    aq_disk_close(d);
}

static void too_little_space_says_how_much_is_free(void **state)
{
    struct rig *r = *state;
    struct aq_disk *d;
    struct aq_disk_place place;
    assert_int_equal(aq_disk_stat(&place, r->dir[0], &r->err), 0);
    /* Each half would fit alone. */
    struct aq_disk_scratch_opts o = scratch(r, aq_align_up(place.free, AQ_MIB) / 2 * 3);
    assert_int_equal(aq_disk_open_scratch(&d, &o, &r->err), -ENOMEM);
    char need[32];
    snprintf(need, sizeof(need), " %llu bytes are needed", (unsigned long long)o.bytes);
    assert_non_null(strstr(r->err.text, need));
    assert_non_null(strstr(r->err.text, "are free"));
    assert_non_null(strstr(r->err.text, "KV cache"));
    assert_int_equal(entries(r->dir[0]), 0);
}

static int no_space_body(struct rig *r)
{
    struct aq_disk *d;
    struct aq_disk_scratch_opts o = scratch(r, AQ_MIB);
    if (forbid(SYS_fallocate, 3, UINT32_MAX, ENOSPC) < 0)
        return 77;
    CHECK(aq_disk_open_scratch(&d, &o, &r->err) == -ENOMEM);
    CHECK(strstr(r->err.text, "1048576 bytes are needed"));
    return 0;
}

static void space_that_vanishes_meanwhile_is_an_error(void **state)
{
    in_a_child(*state, no_space_body);
}

static int no_fallocate_body(struct rig *r)
{
    struct aq_disk *d;
    struct stat st;
    struct aq_disk_scratch_opts o = scratch(r, 3 * AQ_MIB + 4096);
    if (forbid(SYS_fallocate, 3, UINT32_MAX, EOPNOTSUPP) < 0)
        return 77;
    o.dir_count = 1;
    CHECK(aq_disk_open_scratch(&d, &o, &r->err) == 0);
    CHECK(strstr(r->log, "zeros"));
    CHECK(fstat(aq_disk_files(d)[0].fd, &st) == 0);
    CHECK(st.st_size == (off_t)o.bytes);
    CHECK((uint64_t)st.st_blocks * 512 >= o.bytes || fsync(aq_disk_files(d)[0].fd) == 0);
    aq_disk_close(d);
    return 0;
}

static void a_file_system_that_cannot_reserve_is_written_full(void **state)
{
    in_a_child(*state, no_fallocate_body);
}

static int file_limit_body(struct rig *r)
{
    struct aq_disk *d;
    struct aq_disk_scratch_opts o = scratch(r, 64 * AQ_MIB);
    struct rlimit limit = {AQ_MIB, AQ_MIB};
    signal(SIGXFSZ, SIG_IGN); /* as the program does */
    CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
    CHECK(aq_disk_open_scratch(&d, &o, &r->err) == -ENOMEM);
    CHECK(strstr(r->err.text, "ulimit -f"));
    return 0;
}

static void a_file_size_limit_is_named(void **state)
{
    in_a_child(*state, file_limit_body);
}

static int unwritable_body(struct rig *r)
{
    struct aq_disk *d;
    struct aq_disk_place place;
    struct aq_disk_scratch_opts o = scratch(r, AQ_MIB);
    CHECK(chmod(r->dir[1], 0555) == 0);
    if (geteuid() == 0)
        CHECK(chmod(r->dir[0], 0777) == 0 && seteuid(65534) == 0);
    CHECK(aq_disk_open_scratch(&d, &o, &r->err) == -ENODEV);
    CHECK(strstr(r->err.text, r->dir[1]) && strstr(r->err.text, "Permission denied"));
    CHECK(entries(r->dir[0]) == 0);
    CHECK(aq_disk_stat(&place, r->dir[1], &r->err) == 0);
    CHECK(!place.direct && strstr(place.direct_reason, "cannot be written"));
    return 0;
}

static void a_directory_that_cannot_be_written_is_refused(void **state)
{
    in_a_child(*state, unwritable_body);
}

static void a_directory_that_is_none_is_refused(void **state)
{
    struct rig *r = *state;
    struct aq_disk *d;
    struct aq_disk_scratch_opts o = scratch(r, AQ_MIB);
    r->dirs[1] = "/nonexistent/scratch";
    assert_int_equal(aq_disk_open_scratch(&d, &o, &r->err), -ENOENT);
    assert_non_null(strstr(r->err.text, "/nonexistent/scratch"));
    r->dirs[1] = "/proc/self/status";
    assert_int_equal(aq_disk_open_scratch(&d, &o, &r->err), -ENODEV);
    assert_non_null(strstr(r->err.text, "expected a directory"));
}

static void too_many_directories_are_refused(void **state)
{
    struct rig *r = *state;
    struct aq_disk *d;
    const char *dirs[AQ_STRIPE_FILES_MAX + 1];
    struct aq_disk_scratch_opts o = scratch(r, AQ_MIB);
    for (uint32_t i = 0; i < AQ_ARRAY_LEN(dirs); i++)
        dirs[i] = r->dir[0];
    o.dirs = dirs;
    o.dir_count = AQ_ARRAY_LEN(dirs);
    assert_int_equal(aq_disk_open_scratch(&d, &o, &r->err), -EINVAL);
    assert_non_null(strstr(r->err.text, "expected 1 to 64 directories, found 65"));
    o.dir_count--;
    assert_int_equal(aq_disk_open_scratch(&d, &o, &r->err), 0);
    aq_disk_close(d);
}

static void memory_is_no_disk(void **state)
{
    struct rig *r = *state;
    struct aq_disk *d;
    struct statfs st;
    if (statfs("/dev/shm", &st) < 0 || st.f_type != 0x01021994 || access("/dev/shm", W_OK) < 0)
        skip(); /* no tmpfs here */
    struct aq_disk_scratch_opts o = scratch(r, AQ_MIB);
    r->dirs[1] = "/dev/shm";
    o.allow_memory = false;
    /* TMPDIR may be one as well: either way it is told. */
    assert_int_equal(aq_disk_open_scratch(&d, &o, &r->err), -ENODEV);
    assert_non_null(strstr(r->err.text, "is in memory (tmpfs)"));
    o.allow_memory = true;
    assert_int_equal(aq_disk_open_scratch(&d, &o, &r->err), 0);
    aq_disk_close(d);
}

/* ---- direct or not ---- */

static int no_direct_body(struct rig *r)
{
    struct aq_disk *d;
    struct aq_disk_place place;
    struct aq_disk_scratch_opts o = scratch(r, 5 * AQ_MIB);
    if (refuse_direct() < 0)
        return 77;
    CHECK(aq_disk_open_scratch(&d, &o, &r->err) == 0);
    CHECK(!aq_disk_is_direct(d) && aq_disk_files(d)[0].forget);
    CHECK(strstr(r->log, "0 disk: scratch in") && strstr(r->log, "refuses O_DIRECT"));
    CHECK(works(d, 5 * AQ_MIB));
    aq_disk_close(d);
    CHECK(aq_disk_stat(&place, r->dir[0], &r->err) == 0);
    CHECK(!place.direct && strstr(place.direct_reason, "refuses O_DIRECT"));
    o.direct = AQ_DIRECT_ON;
    CHECK(aq_disk_open_scratch(&d, &o, &r->err) == -ENODEV);
    CHECK(strstr(r->err.text, "--io-direct on"));
    return 0;
}

static void refused_direct_io_becomes_buffered_and_says_so(void **state)
{
    in_a_child(*state, no_direct_body);
}

/* Bytes of a file that are in the page cache. */
static uint64_t cached(int fd, uint64_t bytes)
{
    static unsigned char resident[4096];
    void *map = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
    assert_true(map != MAP_FAILED && bytes / 4096 <= sizeof(resident));
    assert_int_equal(mincore(map, bytes, resident), 0);
    uint64_t n = 0;
    for (uint64_t i = 0; i < bytes / 4096; i++)
        n += resident[i] & 1;
    munmap(map, bytes);
    return n * 4096;
}

static void buffered_data_is_dropped_behind(void **state)
{
    struct rig *r = *state;
    enum { BYTES = 4 << 20 };
    char path[TEMP_DEEP_MAX];
    struct statfs fs;
    snprintf(path, sizeof(path), "%s/data", r->dir[0]);
    int fd = open(path, O_RDWR | O_CREAT, 0600);
    void *data = calloc(1, BYTES);
    assert_true(fd >= 0 && fstatfs(fd, &fs) == 0);
    assert_int_equal(pwrite(fd, data, BYTES, 0), BYTES);
    assert_int_equal(fsync(fd), 0);
    free(data);
    if (fs.f_type == 0x01021994)
        skip(); /* tmpfs: the page cache is all there is */
    for (enum aq_io_kind kind = AQ_IO_AUTO; kind <= AQ_IO_THREADS; kind += AQ_IO_THREADS) {
        const char *paths[] = {path};
        struct aq_disk_data_opts o = {
            .paths = paths, .count = 1, .direct = AQ_DIRECT_OFF, .log = &r->sink};
        struct aq_disk *d;
        struct aq_io *io;
        struct aq_io_reaped reaped;
        assert_int_equal(aq_disk_open_data(&d, &o, &r->err), 0);
        assert_false(aq_disk_is_direct(d));
        assert_non_null(strstr(r->log, "as asked for"));
        struct aq_io_opts io_opts = {
            .kind = kind, .files = aq_disk_files(d), .file_count = 1, .depth = 1};
        assert_int_equal(aq_io_open(&io, &io_opts, &r->err), 0);
        struct aq_io_request q = {.op = AQ_IO_READ, .bytes = BYTES, .buffer = malloc(BYTES)};
        assert_int_equal(aq_io_queue(io, &q), 0);
        assert_int_equal(aq_io_reap(io, 1, AQ_IO_FOREVER, &reaped, NULL), 0);
        assert_int_equal(q.result, BYTES);
        free(q.buffer);
        assert_true(cached(fd, BYTES) < BYTES / 4);
        aq_io_close(io);
        aq_disk_close(d);
    }
    close(fd);
}

static void data_files_are_opened_as_asked_for(void **state)
{
    struct rig *r = *state;
    struct aq_disk_place place;
    struct aq_disk *d;
    char path[2][TEMP_DEEP_MAX];
    const char *paths[2] = {path[0], path[1]};
    for (int i = 0; i < 2; i++) {
        snprintf(path[i], sizeof(path[i]), "%s/data.%d", r->dir[i], i);
        FILE *f = fopen(path[i], "w");
        fputs("short", f);
        fclose(f);
    }
    assert_int_equal(aq_disk_stat(&place, r->dir[0], &r->err), 0);
    struct aq_disk_data_opts o = {.paths = paths, .count = 2, .log = &r->sink};
    assert_int_equal(aq_disk_open_data(&d, &o, &r->err), 0);
    assert_int_equal(aq_disk_is_direct(d), place.direct);
    assert_string_equal(aq_disk_files(d)[1].name, path[1]);
    aq_disk_close(d);
    paths[1] = "/nonexistent/data.1";
    assert_int_equal(aq_disk_open_data(&d, &o, &r->err), -ENOENT);
    assert_non_null(strstr(r->err.text, "/nonexistent/data.1"));
}

static void a_directory_says_what_it_offers(void **state)
{
    struct rig *r = *state;
    struct aq_disk_place place;
    assert_int_equal(aq_disk_stat(&place, r->dir[0], &r->err), 0);
    assert_true(place.total >= place.free && place.free > 0);
    assert_true(place.direct == !place.direct_reason);
    assert_int_equal(entries(r->dir[0]), 0);
    assert_int_equal(aq_disk_stat(&place, "/nonexistent", &r->err), -ENOENT);
}

#define WITH_RIG(test) cmocka_unit_test_setup_teardown(test, rig_open, rig_close)

static const struct CMUnitTest tests[] = {
    WITH_RIG(scratch_has_no_name_and_all_its_bytes),
    WITH_RIG(scratch_reads_back_what_was_written),
    WITH_RIG(too_little_space_says_how_much_is_free),
    WITH_RIG(space_that_vanishes_meanwhile_is_an_error),
    WITH_RIG(a_file_system_that_cannot_reserve_is_written_full),
    WITH_RIG(a_file_size_limit_is_named),
    WITH_RIG(a_directory_that_cannot_be_written_is_refused),
    WITH_RIG(a_directory_that_is_none_is_refused),
    WITH_RIG(too_many_directories_are_refused),
    WITH_RIG(memory_is_no_disk),
    WITH_RIG(refused_direct_io_becomes_buffered_and_says_so),
    WITH_RIG(buffered_data_is_dropped_behind),
    WITH_RIG(data_files_are_opened_as_asked_for),
    WITH_RIG(a_directory_says_what_it_offers),
};
AQ_TEST_MAIN(tests)
