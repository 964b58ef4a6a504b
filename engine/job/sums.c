/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/job/sums.h"

#include "base/buf.h"
#include "base/file.h"

#include <assert.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

enum { DIGITS = 16, SUM_BYTES = DIGITS + 1, CAPACITY_MIN = 1024 };
static const char header[] = "aquifer-sums 1\n";

enum state {
    FREE,
    DOUBTFUL, /* of a damaged line, and not seen */
    MISSING,  /* not seen */
    SEEN,
};

/* Open addressing, at most half full. */
struct aq_sums {
    uint64_t *sum;  /* [capacity] */
    uint8_t *state; /* [capacity]: enum state */
    uint64_t capacity, count, missing;
    uint64_t illegible; /* sums of damaged lines, less those that were seen */
};

/* ---- text ---- */

uint64_t aq_sums_of(const char *line, size_t bytes)
{
    return XXH3_64bits(line, bytes - (bytes && line[bytes - 1] == '\n'));
}

static void put_digits(char *dst, uint64_t sum)
{
    for (int i = DIGITS - 1; i >= 0; i--, sum >>= 4)
        dst[i] = "0123456789abcdef"[sum & 15];
}

static bool read_digits(const char *text, uint64_t *ret)
{
    uint64_t sum = 0;
    for (int i = 0; i < DIGITS; i++) {
        char c = text[i];
        bool digit = c >= '0' && c <= '9', letter = c >= 'a' && c <= 'f';
        if (!digit && !letter)
            return false;
        sum = sum << 4 | (uint64_t)(digit ? c - '0' : c - 'a' + 10);
    }
    *ret = sum;
    return true;
}

size_t aq_sums_format(char dst[AQ_SUMS_LINE_BYTES], const uint64_t *sums, size_t count)
{
    assert(count > 0 && count <= AQ_SUMS_PER_LINE);
    size_t at = 0;
    for (size_t i = 0; i < count; i++, at += SUM_BYTES) {
        put_digits(dst + at, sums[i]);
        dst[at + DIGITS] = ' ';
    }
    put_digits(dst + at, XXH3_64bits(dst, at));
    dst[at + DIGITS] = '\n';
    return at + SUM_BYTES;
}

/* ---- the set ---- */

int aq_sums_open(struct aq_sums **ret, struct aq_err *reterr)
{
    struct aq_sums *s = calloc(1, sizeof(*s));
    if (!s)
        return aq_error_memory(reterr, "sums of the results");
    *ret = s;
    return 0;
}

void aq_sums_close(struct aq_sums *s)
{
    if (!s)
        return;
    free(s->sum);
    free(s->state);
    free(s);
}

/* Where the sum is, or where it would go. */
static uint64_t find(const struct aq_sums *s, uint64_t sum)
{
    uint64_t at = sum & (s->capacity - 1);
    while (s->state[at] != FREE && s->sum[at] != sum)
        at = (at + 1) & (s->capacity - 1);
    return at;
}

static int grow(struct aq_sums *s, struct aq_err *reterr)
{
    struct aq_sums larger = *s;
    larger.capacity = s->capacity ? 2 * s->capacity : CAPACITY_MIN;
    larger.sum = calloc(larger.capacity, sizeof(*larger.sum));
    larger.state = calloc(larger.capacity, sizeof(*larger.state));
    if (!larger.sum || !larger.state) {
        free(larger.sum);
        free(larger.state);
        return aq_error_memory(reterr, "sums of the results");
    }
    for (uint64_t i = 0; i < s->capacity; i++) {
        if (s->state[i] == FREE)
            continue;
        uint64_t at = find(&larger, s->sum[i]);
        larger.sum[at] = s->sum[i];
        larger.state[at] = s->state[i];
    }
    free(s->sum);
    free(s->state);
    *s = larger;
    return 0;
}

/* States only go up: who is seen stays so. */
static void promote(struct aq_sums *s, uint64_t at, enum state state)
{
    if (s->state[at] >= state)
        return;
    s->missing -= s->state[at] == MISSING;
    s->missing += state == MISSING;
    s->illegible -= s->state[at] == DOUBTFUL && s->illegible;
    s->state[at] = (uint8_t)state;
}

static int put(struct aq_sums *s, uint64_t sum, enum state state, struct aq_err *reterr)
{
    if (2 * (s->count + 1) > s->capacity) {
        int rc = grow(s, reterr);
        if (rc < 0)
            return rc;
    }
    uint64_t at = find(s, sum);
    s->count += s->state[at] == FREE;
    s->sum[at] = sum;
    promote(s, at, state);
    return 0;
}

int aq_sums_add(struct aq_sums *s, uint64_t sum, struct aq_err *reterr)
{
    return put(s, sum, SEEN, reterr);
}

bool aq_sums_see(struct aq_sums *s, uint64_t sum)
{
    uint64_t at = s->capacity ? find(s, sum) : 0;
    if (!s->capacity || s->state[at] == FREE)
        return false;
    promote(s, at, SEEN);
    return true;
}

uint64_t aq_sums_missing(const struct aq_sums *s)
{
    return s->missing;
}

uint64_t aq_sums_illegible(const struct aq_sums *s)
{
    return s->illegible;
}

/* ---- the file ---- */

/* Whether a line is one of ours, as it was written. */
static bool is_as_written(const char *line, size_t bytes)
{
    uint64_t sum;
    bool good = bytes >= 2 * SUM_BYTES && bytes % SUM_BYTES == 0 && line[bytes - 1] == '\n' &&
                read_digits(line + bytes - SUM_BYTES, &sum) &&
                sum == XXH3_64bits(line, bytes - SUM_BYTES);
    for (size_t at = 0; good && at + SUM_BYTES < bytes; at += SUM_BYTES)
        good = read_digits(line + at, &sum);
    return good;
}

/* The sums of a line; the last one is not of a result.  A line that was cut off may have had any
 * number of them. */
static int read_sums(struct aq_sums *s, const char *line, size_t bytes, bool good,
                     struct aq_err *reterr)
{
    uint64_t sum, count = bytes / SUM_BYTES ? bytes / SUM_BYTES - 1 : 0;
    int rc = 0;
    if (!good)
        s->illegible += line[bytes - 1] == '\n' ? count : AQ_SUMS_PER_LINE;
    for (size_t at = 0; rc == 0 && at + SUM_BYTES < bytes; at += SUM_BYTES)
        if (read_digits(line + at, &sum))
            rc = put(s, sum, good ? MISSING : DOUBTFUL, reterr);
    return rc;
}

static int read_lines(struct aq_sums *s, const char *path, struct aq_line_reader *reader,
                      uint64_t *ret_damaged, struct aq_err *reterr)
{
    const char *line;
    size_t bytes;
    for (uint64_t number = 0, damaged = 0;; number++) {
        int rc = aq_line_read(reader, &line, &bytes);
        if (rc < 0)
            return aq_error(reterr, aq_err_of_io(-rc), "read '%s': %s", path, strerror(-rc));
        if (rc == 0) {
            *ret_damaged = damaged + (number == 0); /* not even a header */
            return 0;
        }
        bool is_header = number == 0 && bytes == sizeof(header) - 1 && !memcmp(line, header, bytes);
        if (is_header)
            continue;
        bool good = number > 0 && is_as_written(line, bytes);
        damaged += !good;
        rc = read_sums(s, line, bytes, good, reterr);
        if (rc < 0)
            return rc;
    }
}

int aq_sums_read(struct aq_sums *s, const char *path, uint64_t *ret_damaged, struct aq_err *reterr)
{
    int fd = aq_file_open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK, 0);
    if (fd < 0)
        return aq_error(reterr, aq_err_of_io(-fd), "open '%s': %s", path, strerror(-fd));
    struct aq_line_reader reader = {.fd = fd, .line_max = AQ_SUMS_LINE_BYTES};
    int rc = read_lines(s, path, &reader, ret_damaged, reterr);
    aq_line_reader_close(&reader);
    close(fd);
    return rc;
}

/* A file of sums while it is written. */
struct sums_file {
    struct aq_replacement to;
    uint64_t some[AQ_SUMS_PER_LINE];
    size_t count;
};

static int put_line(struct sums_file *f, struct aq_err *reterr)
{
    char text[AQ_SUMS_LINE_BYTES];
    size_t count = f->count;
    f->count = 0;
    return count ? aq_replacement_put(&f->to, text, aq_sums_format(text, f->some, count), reterr)
                 : 0;
}

static int put_sum(struct sums_file *f, uint64_t sum, struct aq_err *reterr)
{
    f->some[f->count++] = sum;
    return f->count == AQ_SUMS_PER_LINE ? put_line(f, reterr) : 0;
}

static int begin_file(struct sums_file *f, const char *path, struct aq_err *reterr)
{
    f->count = 0;
    int rc = aq_replacement_open(&f->to, path, NULL, reterr);
    if (rc < 0)
        return rc;
    rc = aq_replacement_put(&f->to, header, sizeof(header) - 1, reterr);
    return rc < 0 ? aq_replacement_close(&f->to, rc, true, reterr) : 0;
}

static int end_file(struct sums_file *f, int rc, struct aq_err *reterr)
{
    rc = rc == 0 ? put_line(f, reterr) : rc;
    return aq_replacement_close(&f->to, rc, true, reterr);
}

int aq_sums_write(const struct aq_sums *s, const char *path, bool missing_too,
                  struct aq_err *reterr)
{
    struct sums_file f;
    int rc = begin_file(&f, path, reterr);
    if (rc < 0)
        return rc;
    for (uint64_t i = 0; rc == 0 && i < s->capacity; i++)
        if (s->state[i] == SEEN || (missing_too && s->state[i] == MISSING))
            rc = put_sum(&f, s->sum[i], reterr);
    return end_file(&f, rc, reterr);
}

int aq_sums_write_list(const char *path, uint64_t count,
                       uint64_t (*sum)(const void *user, uint64_t i), const void *user,
                       struct aq_err *reterr)
{
    struct sums_file f;
    int rc = begin_file(&f, path, reterr);
    if (rc < 0)
        return rc;
    for (uint64_t i = 0; rc == 0 && i < count; i++)
        rc = put_sum(&f, sum(user, i), reterr);
    return end_file(&f, rc, reterr);
}
