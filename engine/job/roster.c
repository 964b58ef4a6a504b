/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/job/roster.h"

#include "base/file.h"
#include "engine/job/record_list.h"

#include <assert.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

enum { LINE_BYTES_MAX = 128 };

/* ---- writing ---- */

struct aq_roster_writer {
    struct aq_replacement to;
    XXH3_state_t *sum;
};

static int put(struct aq_roster_writer *w, const char *text, int bytes, struct aq_err *reterr)
{
    XXH3_64bits_update(w->sum, text, (size_t)bytes);
    return aq_replacement_put(&w->to, text, (size_t)bytes, reterr);
}

static void close_writer(struct aq_roster_writer *w)
{
    XXH3_freeState(w->sum);
    free(w);
}

int aq_roster_begin(struct aq_roster_writer **ret, const char *path,
                    const struct aq_roster_head *head, struct aq_err *reterr)
{
    struct aq_roster_writer *w = calloc(1, sizeof(*w));
    if (w)
        w->sum = XXH3_createState();
    if (!w || !w->sum) {
        free(w);
        return aq_error_memory(reterr, "'%s'", path);
    }
    XXH3_64bits_reset(w->sum);
    int rc = aq_replacement_open(&w->to, path, NULL, reterr);
    if (rc < 0) {
        close_writer(w);
        return rc;
    }
    char text[LINE_BYTES_MAX], shard[AQ_SHARD_TEXT_MAX];
    int n = snprintf(text, sizeof(text), "aquifer-records 1 %s %016" PRIx64 " %" PRIu64 "\n",
                     aq_shard_text(shard, head->shard), head->input_hash, head->total);
    rc = put(w, text, n, reterr);
    if (rc < 0)
        return aq_roster_end(w, rc, reterr);
    *ret = w;
    return 0;
}

int aq_roster_put(struct aq_roster_writer *w, const struct aq_roster_record *r, bool has_id,
                  struct aq_err *reterr)
{
    char text[LINE_BYTES_MAX], id[20] = "-";
    if (has_id)
        snprintf(id, sizeof(id), "%016" PRIx64, r->id_hash);
    int n = snprintf(text, sizeof(text), "%" PRIu32 " %" PRIu32 " %s %016" PRIx64 "\n", r->index,
                     r->line, id, r->key);
    return put(w, text, n, reterr);
}

int aq_roster_end(struct aq_roster_writer *w, int rc, struct aq_err *reterr)
{
    char text[LINE_BYTES_MAX];
    int n = snprintf(text, sizeof(text), "sum %016" PRIx64 "\n", XXH3_64bits_digest(w->sum));
    if (rc == 0)
        rc = aq_replacement_put(&w->to, text, (size_t)n, reterr);
    rc = aq_replacement_close(&w->to, rc, true, reterr);
    close_writer(w);
    return rc;
}

/* ---- reading ---- */

struct aq_roster {
    struct aq_roster_head head;
    struct aq_roster_record *record;
    uint64_t count, capacity;
    struct aq_id_table ids;
};

/* The number of a record that has no id; such a record is in no table. */
static const uint64_t no_id = UINT64_MAX;

static int add(struct aq_roster *r, const struct aq_roster_record *record, struct aq_err *reterr)
{
    if (r->count == r->capacity) {
        uint64_t capacity = r->capacity ? 2 * r->capacity : 1024;
        struct aq_roster_record *larger = realloc(r->record, capacity * sizeof(*larger));
        if (!larger)
            return aq_error_memory(reterr, "%" PRIu64 " records", capacity);
        r->record = larger;
        r->capacity = capacity;
    }
    r->record[r->count++] = *record;
    return 0;
}

/* Ids with the hash no_id itself are not told apart from none, and such a record is looked for by
 * its place in the input: one of 2^64. */
static int make_table(struct aq_roster *r, struct aq_err *reterr)
{
    int rc = aq_id_table_make(&r->ids, r->count, reterr);
    for (uint64_t i = 0; rc == 0 && i < r->count; i++)
        if (r->record[i].id_hash != no_id)
            aq_id_table_put(&r->ids, r->record[i].id_hash, i);
    return rc;
}

static bool read_head(struct aq_roster_head *ret, const char *line)
{
    char shard[LINE_BYTES_MAX];
    return sscanf(line, "aquifer-records 1 %100s %16" SCNx64 " %" SCNu64, shard, &ret->input_hash,
                  &ret->total) == 3 &&
           aq_shard_parse(&ret->shard, "", shard, NULL) == 0 && ret->shard.count;
}

/* Checksums have the last word; this only keeps what a damaged file says within bounds. */
static bool read_record(const struct aq_roster *r, struct aq_roster_record *ret, const char *line)
{
    char id[20];
    uint64_t index, number;
    *ret = (struct aq_roster_record){.id_hash = no_id};
    if (sscanf(line, "%" SCNu64 " %" SCNu64 " %16s %16" SCNx64, &index, &number, id, &ret->key) !=
            4 ||
        index > UINT32_MAX || number > UINT32_MAX)
        return false;
    ret->index = (uint32_t)index;
    ret->line = (uint32_t)number;
    if (strcmp(id, "-") != 0 && sscanf(id, "%16" SCNx64, &ret->id_hash) != 1)
        return false;
    const struct aq_roster_record *last = r->count ? &r->record[r->count - 1] : NULL;
    return r->count < UINT32_MAX && (!last || last->index < ret->index) &&
           (!last || last->line < ret->line) && ret->index < r->head.total;
}

static int read_lines(struct aq_roster *r, struct aq_line_reader *reader, const char *path,
                      XXH3_state_t *sum, struct aq_err *reterr)
{
    const char *bytes;
    char line[LINE_BYTES_MAX];
    size_t count;
    for (uint64_t number = 1;; number++) {
        int rc = aq_line_read(reader, &bytes, &count);
        if (rc < 0)
            return aq_error(reterr, aq_err_of_io(-rc), "read '%s': %s", path, strerror(-rc));
        bool whole = rc == 1 && count < sizeof(line) && bytes[count - 1] == '\n';
        uint64_t found;
        if (whole) {
            memcpy(line, bytes, count);
            line[count] = '\0';
        }
        if (whole && number > 1 && sscanf(line, "sum %16" SCNx64, &found) == 1 &&
            found == XXH3_64bits_digest(sum) && aq_line_read(reader, &bytes, &count) == 0)
            return 0;
        struct aq_roster_record record;
        if (!whole || !(number == 1 ? read_head(&r->head, line) : read_record(r, &record, line)))
            return aq_error(reterr, -EINVAL,
                            "'%s' is damaged or of another version (line %" PRIu64 ")", path,
                            number);
        XXH3_64bits_update(sum, bytes, count);
        rc = number == 1 ? 0 : add(r, &record, reterr);
        if (rc < 0)
            return rc;
    }
}

static int read_file(struct aq_roster *r, const char *path, struct aq_err *reterr)
{
    int fd = aq_file_open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK, 0);
    if (fd < 0)
        return aq_error(reterr, fd == -ENOENT ? fd : aq_err_of_io(-fd), "open '%s': %s", path,
                        strerror(-fd));
    XXH3_state_t *sum = XXH3_createState();
    struct aq_line_reader reader = {.fd = fd, .line_max = LINE_BYTES_MAX};
    int rc = sum ? 0 : aq_error_memory(reterr, "'%s'", path);
    if (rc == 0) {
        XXH3_64bits_reset(sum);
        rc = read_lines(r, &reader, path, sum, reterr);
    }
    XXH3_freeState(sum);
    aq_line_reader_close(&reader);
    close(fd);
    return rc;
}

int aq_roster_open(struct aq_roster **ret, const char *path, struct aq_err *reterr)
{
    assert(ret && path);
    struct aq_roster *r = calloc(1, sizeof(*r));
    if (!r)
        return aq_error_memory(reterr, "'%s'", path);
    int rc = read_file(r, path, reterr);
    if (rc == 0)
        rc = make_table(r, reterr);
    if (rc < 0)
        aq_roster_close(r);
    else
        *ret = r;
    return rc;
}

void aq_roster_close(struct aq_roster *r)
{
    if (!r)
        return;
    free(r->record);
    aq_id_table_close(&r->ids);
    free(r);
}

const struct aq_roster_head *aq_roster_head(const struct aq_roster *r)
{
    return &r->head;
}

uint64_t aq_roster_count(const struct aq_roster *r)
{
    return r->count;
}

const struct aq_roster_record *aq_roster_record(const struct aq_roster *r, uint64_t at)
{
    assert(at < r->count);
    return &r->record[at];
}

uint64_t aq_roster_find(const struct aq_roster *r, const struct aq_result_mark *m)
{
    const struct aq_roster_record *first = r->record;
    if (!r->count)
        return SIZE_MAX;
    const struct aq_record_list records = {.count = r->count,
                                           .stride = sizeof(*first),
                                           .id_hash = &first->id_hash,
                                           .key = &first->key,
                                           .index = &first->index,
                                           .line = &first->line,
                                           .ids = &r->ids};
    return aq_record_list_find(&records, m);
}
