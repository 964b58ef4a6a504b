/* SPDX-License-Identifier: Apache-2.0
 * Files on a machine that interrupts and refuses system calls: a signal ends none of them, and what
 * could not be synced is not told as safe.  The linker puts the calls below in front of the
 * system's (--wrap). */
#include "base/file.h"

#include "tests/temp.h"
#include "tests/test.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

enum call {
    OPEN,
    MKOSTEMP,
    TRUNCATE,
    RESERVE,
    LOCK,
    RENAME,
    WRITE,
    PWRITE,
    READ,
    PREAD,
    FDATASYNC,
    FSYNC,
    CALL_COUNT,
};

/* The next calls of each kind fail so often, with this errno. */
static struct fault {
    unsigned times, seen;
    int errnum;
} faults[CALL_COUNT];

static bool fails(enum call call)
{
    struct fault *f = &faults[call];
    f->seen++;
    if (!f->times)
        return false;
    f->times--;
    errno = f->errnum;
    return true;
}

int __real_open64(const char *path, int flags, mode_t mode);
int __wrap_open64(const char *path, int flags, mode_t mode);
int __wrap_open64(const char *path, int flags, mode_t mode)
{
    return fails(OPEN) ? -1 : __real_open64(path, flags, mode);
}

int __real_mkostemp64(char *name, int flags);
int __wrap_mkostemp64(char *name, int flags);
int __wrap_mkostemp64(char *name, int flags)
{
    if (!fails(MKOSTEMP))
        return __real_mkostemp64(name, flags);
    memset(name + strlen(name) - 6, 'a', 6); /* as the C library leaves it */
    return -1;
}

int __real_rename(const char *from, const char *to);
int __wrap_rename(const char *from, const char *to);
int __wrap_rename(const char *from, const char *to)
{
    return fails(RENAME) ? -1 : __real_rename(from, to);
}

#define WRAP(call, type, name, parameters, ...)                                                    \
    type __real_##name parameters;                                                                 \
    type __wrap_##name parameters;                                                                 \
    type __wrap_##name parameters                                                                  \
    {                                                                                              \
        return fails(call) ? -1 : __real_##name(__VA_ARGS__);                                      \
    }

WRAP(TRUNCATE, int, ftruncate64, (int fd, off_t bytes), fd, bytes)
WRAP(RESERVE, int, fallocate64, (int fd, int mode, off_t at, off_t bytes), fd, mode, at, bytes)
WRAP(LOCK, int, flock, (int fd, int how), fd, how)
WRAP(WRITE, ssize_t, write, (int fd, const void *src, size_t n), fd, src, n)
WRAP(PWRITE, ssize_t, pwrite64, (int fd, const void *src, size_t n, off_t at), fd, src, n, at)
WRAP(READ, ssize_t, read, (int fd, void *dst, size_t n), fd, dst, n)
WRAP(PREAD, ssize_t, pread64, (int fd, void *dst, size_t n, off_t at), fd, dst, n, at)
WRAP(FDATASYNC, int, fdatasync, (int fd), fd)
WRAP(FSYNC, int, fsync, (int fd), fd)

static char folder[TEMP_PATH_MAX], path[TEMP_INSIDE_MAX];

static int setup(void **state)
{
    memset(faults, 0, sizeof(faults));
    temp_dir(folder, "file");
    snprintf(path, sizeof(path), "%s/file", folder);
    return 0;
}

static int teardown(void **state)
{
    memset(faults, 0, sizeof(faults));
    return temp_remove(folder);
}

static void interrupt(enum call call)
{
    faults[call] = (struct fault){.times = 1, .errnum = EINTR};
}

static void assert_interrupted(enum call call)
{
    assert_int_equal(faults[call].times, 0);
    assert_true(faults[call].seen >= 2);
}

static void assert_content(const char *want)
{
    char text[64] = "";
    int fd = aq_file_open(path, O_RDONLY, 0);
    assert_true(fd >= 0);
    assert_int_equal(aq_file_read(fd, text, sizeof(text) - 1), strlen(want));
    assert_string_equal(text, want);
    aq_file_close(fd);
}

static void no_call_ends_by_a_signal(void **state)
{
    char temp[TEMP_INSIDE_MAX], other[TEMP_INSIDE_MAX], bytes[8] = "";
    snprintf(temp, sizeof(temp), "%s/temp-XXXXXX", folder);
    snprintf(other, sizeof(other), "%s/other", folder);
    for (enum call call = 0; call < CALL_COUNT; call++)
        interrupt(call);
    int fd = aq_file_open(path, O_RDWR | O_CREAT, 0600);
    assert_true(fd >= 0);
    assert_int_equal(aq_file_lock(fd), 0);
    assert_int_equal(aq_file_reserve(fd, 4096), 0);
    assert_int_equal(aq_file_truncate(fd, 0), 0);
    assert_int_equal(aq_file_write(fd, "one\n", 4), 0);
    assert_int_equal(aq_file_write_at(fd, path, 4, "two\n", 4, NULL), 0);
    assert_int_equal(aq_file_sync(fd), 0);
    assert_int_equal(aq_file_read_at(fd, bytes, 8, 0), 0);
    assert_memory_equal(bytes, "one\ntwo\n", 8);
    assert_int_equal(aq_file_close(fd), 0);
    assert_int_equal(aq_file_sync_folder(path, NULL), 0);
    assert_content("one\ntwo\n");
    assert_int_equal(aq_file_rename(path, other), 0);
    fd = aq_file_open_temp(temp);
    assert_true(fd >= 0);
    aq_file_close(fd);
    for (enum call call = 0; call < CALL_COUNT; call++)
        assert_interrupted(call);
}

static void a_replacement_is_not_stopped_by_signals(void **state)
{
    static const enum call calls[] = {OPEN, WRITE, FDATASYNC, RENAME, FSYNC};
    assert_int_equal(aq_file_replace(path, "old", 3, true, NULL), 0);
    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++)
        interrupt(calls[i]);
    assert_int_equal(aq_file_replace(path, "new", 3, true, NULL), 0);
    assert_content("new");
}

static void what_cannot_be_synced_has_failed(void **state)
{
    static const int errors[] = {EROFS, EIO, ENOSPC, EDQUOT};
    int fd = aq_file_open(path, O_RDWR | O_CREAT, 0600);
    for (size_t i = 0; i < sizeof(errors) / sizeof(errors[0]); i++) {
        faults[FDATASYNC] = faults[FSYNC] = (struct fault){.times = 1, .errnum = errors[i]};
        assert_int_equal(aq_file_sync(fd), -errors[i]);
        struct aq_err err;
        assert_int_equal(aq_file_sync_folder(path, &err), -errors[i]);
        assert_int_equal(aq_err_exit_status(err.code), 4);
    }
    aq_file_close(fd);
}

static void what_has_nothing_to_sync_has_not_failed(void **state)
{
    static const int errors[] = {EINVAL, ENOTSUP, ENOSYS};
    int fd = aq_file_open("/dev/null", O_RDWR, 0);
    assert_int_equal(aq_file_sync(fd), 0); /* EINVAL by the system itself */
    for (size_t i = 0; i < sizeof(errors) / sizeof(errors[0]); i++) {
        faults[FDATASYNC] = (struct fault){.times = 1, .errnum = errors[i]};
        assert_int_equal(aq_file_sync(fd), 0);
    }
    aq_file_close(fd);
}

/* Whatever fails before the new name is there, the old content stays and nothing lies beside it. */
static void a_replacement_that_fails_leaves_the_old_file(void **state)
{
    static const enum call calls[] = {OPEN, WRITE, FDATASYNC, RENAME};
    char beside[TEMP_DEEP_MAX];
    snprintf(beside, sizeof(beside), "%s.tmp", path);
    assert_int_equal(aq_file_replace(path, "old", 3, true, NULL), 0);
    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
        faults[calls[i]] = (struct fault){.times = 1, .errnum = EIO};
        struct aq_err err;
        assert_int_equal(aq_file_replace(path, "new", 3, true, &err), -EIO);
        assert_non_null(strstr(err.text, path));
        assert_content("old");
        assert_int_equal(aq_file_size(beside), -1);
    }
}

/* The old file's permissions stay, beyond the umask too; new ones come from the file given. */
static void a_replacement_has_the_permissions_of_what_it_replaces(void **state)
{
    char like[TEMP_INSIDE_MAX];
    struct stat st;
    snprintf(like, sizeof(like), "%s/like", folder);
    assert_int_equal(aq_file_replace(path, "old", 3, true, NULL), 0);
    assert_int_equal(aq_file_replace(like, "like", 4, true, NULL), 0);
    assert_int_equal(chmod(path, 0602) | chmod(like, 0622), 0);
    for (int there = 1; there >= 0; there--) {
        struct aq_replacement r;
        assert_int_equal(aq_replacement_open(&r, path, like, NULL), 0);
        assert_int_equal(aq_replacement_close(&r, 0, true, NULL), 0);
        assert_int_equal(stat(path, &st), 0);
        assert_int_equal(st.st_mode & 0777, there ? 0602 : 0622);
        unlink(path);
    }
}

static void lines_come_whole_and_long_ones_in_parts_where_asked(void **state)
{
    static char text[300000];
    memset(text, 'x', sizeof(text));
    text[1] = text[200001] = '\n';
    assert_int_equal(aq_file_replace(path, text, sizeof(text), false, NULL), 0);
    static const struct {
        size_t line_max, counts[8];
    } cases[] = {{0, {2, 200000, 99998}}, {150000, {2, 150000, 50000, 99998}}};
    for (size_t c = 0; c < 2; c++) {
        struct aq_line_reader r = {.fd = aq_file_open(path, O_RDONLY, 0),
                                   .line_max = cases[c].line_max};
        int fd = r.fd;
        const char *line;
        size_t count;
        interrupt(READ);
        for (size_t i = 0; cases[c].counts[i]; i++) {
            assert_int_equal(aq_line_read(&r, &line, &count), 1);
            assert_int_equal(count, cases[c].counts[i]);
        }
        assert_int_equal(aq_line_read(&r, &line, &count), 0);
        faults[READ] = (struct fault){.times = 1, .errnum = EIO};
        aq_line_reader_close(&r);
        r = (struct aq_line_reader){.fd = fd};
        assert_int_equal(aq_line_read(&r, &line, &count), -EIO);
        aq_line_reader_close(&r);
        aq_file_close(fd);
    }
}

#define T(claim) cmocka_unit_test_setup_teardown(claim, setup, teardown)

static const struct CMUnitTest tests[] = {
    T(no_call_ends_by_a_signal),
    T(a_replacement_is_not_stopped_by_signals),
    T(what_cannot_be_synced_has_failed),
    T(what_has_nothing_to_sync_has_not_failed),
    T(a_replacement_that_fails_leaves_the_old_file),
    T(a_replacement_has_the_permissions_of_what_it_replaces),
    T(lines_come_whole_and_long_ones_in_parts_where_asked),
};

AQ_TEST_MAIN(tests)
