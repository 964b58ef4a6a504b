/* SPDX-License-Identifier: Apache-2.0
 * What a resumed run finds: any bytes as results, sums and manifest, in sections with a line "%%"
 * between.  No record counts as done that has no line of its id and key, and none by a line that
 * sums accuse; when all is put in order every line is still there, with its sum, or set aside.
 * With sums nothing is refused, but for the manifest, and for results that are compressed by their
 * first bytes and not by their name.
 *   An empty section is a file that is not there; without a manifest the right one is written.
 *   Sums that begin with '@' are made: a digit stands for that line of the results (from 0), any
 *   other byte for a line that is lost.  By chance nothing would get past their checksum. */
#include "base/buf.h"
#include "base/compress.h"
#include "base/file.h"
#include "base/json.h"
#include "engine/job/lines.h"
#include "tests/fake_engine.h"
#include "tests/fuzz/fuzz.h"
#include "tests/temp.h"

#include <stdio.h>
#include <xxhash.h>

enum { LINES_MAX = 64, SUMS_MAX = 512 };

static char folder[TEMP_PATH_MAX];
static struct aq_job *job;

static void remove_folder(void)
{
    temp_remove(folder);
}

static char *inside(const char *name)
{
    char *path;
    fuzz_check(asprintf(&path, "%s/%s", folder, name) > 0);
    return path;
}

static void put_file(const char *path, const char *bytes, size_t count)
{
    fuzz_check(aq_file_replace(path, bytes, count, false, NULL) == 0);
}

/* A job over four records, ready to look at what earlier runs left. */
static void open_job(void)
{
    static const char records[] = "{\"id\": \"a\", \"prompt\": [5]}\n{\"id\": 7, \"prompt\": [6]}\n"
                                  "{\"prompt\": [7]}\n{broken\n";
    const char *data = getenv("AQ_TEST_DATA");
    struct aq_options *o;
    json_t *options;
    temp_dir(folder, "resume");
    atexit(remove_folder);
    fake_engine_reset();
    char *input = inside("in.jsonl"), *output = inside("out"), *model;
    fuzz_check(asprintf(&model, "%s/tiny-opt", data ? data : "tests/data") > 0);
    put_file(input, records, sizeof(records) - 1);
    options = json_pack("{s:s, s:s, s:s, s:b, s:b}", "model", model, "input", input, "output",
                        output, "dry_run", 1, "retry_errors", 1);
    fuzz_check(aq_options_from_json(&o, "generate", options, NULL) == 0);
    job = calloc(1, sizeof(*job));
    job->o = o;
    fuzz_check(aq_job_open_output(job, NULL) == 0);
    fuzz_check(aq_generator_open(&job->g, o, NULL, NULL, &job->log, NULL) == 0);
    const struct aq_input_opts opts = {.path = input, .spool_dir = folder};
    fuzz_check(aq_input_open(&job->input, &opts, NULL) == 0);
    fuzz_check(aq_job_preflight(job, NULL) == 0 && job->row_count == 4);
    json_decref(options);
    free(model);
    free(input);
    free(output);
}

static void forget(void)
{
    aq_sums_close(job->old.sums);
    job->old = (struct aq_job_old){0};
    job->done_before = job->errors_before = job->stray_lines = 0;
    for (uint64_t i = 0; i < job->row_count; i++)
        job->rows[i].done = job->rows[i].retried = false;
}

/* ---- what the files say, restated ---- */

struct line {
    const char *bytes;
    size_t count; /* without its newline */
    uint64_t sum;
};

static size_t split(struct line *lines, size_t max, const char *text, size_t bytes)
{
    size_t count = 0;
    for (size_t at = 0; at < bytes && count < max; count++) {
        const char *end = memchr(text + at, '\n', bytes - at);
        size_t n = end ? (size_t)(end - text) - at : bytes - at;
        lines[count] = (struct line){text + at, n, XXH3_64bits(text + at, n)};
        at += n + 1;
    }
    return count;
}

/* The sums that can be believed; *ret_damaged: others may have been illegible. */
static size_t believed(uint64_t *sums, bool *ret_damaged, const char *text, size_t bytes)
{
    struct line lines[LINES_MAX];
    size_t count = 0, n = split(lines, LINES_MAX, text, bytes);
    *ret_damaged = n == 0 || n == LINES_MAX || lines[0].count != 14;
    for (size_t i = 1; i < n; i++) { /* behind the header */
        const struct line *l = &lines[i];
        char check[17];
        bool ended = l->bytes + l->count < text + bytes;
        if (!ended || l->count < 33 || l->count % 17 != 16 || l->count >= AQ_SUMS_LINE_BYTES) {
            *ret_damaged = true;
            continue;
        }
        snprintf(check, sizeof(check), "%016llx",
                 (unsigned long long)XXH3_64bits(l->bytes, l->count - 16));
        *ret_damaged |= memcmp(check, l->bytes + l->count - 16, 16) != 0;
        for (size_t at = 0; !memcmp(check, l->bytes + l->count - 16, 16) && at + 17 < l->count;
             at += 17)
            if (count < SUMS_MAX &&
                strspn(l->bytes + at, "0123456789abcdef") >= 16) /* strtoull takes more */
                sums[count++] = strtoull(l->bytes + at, NULL, 16);
    }
    return count;
}

static bool has(const uint64_t *sums, size_t count, uint64_t sum)
{
    for (size_t i = 0; i < count; i++)
        if (sums[i] == sum)
            return true;
    return false;
}

static bool is_of_row(const struct line *l, const struct aq_row *row, uint64_t index)
{
    struct aq_result_mark m;
    if (aq_result_read(&m, l->bytes, l->count, NULL) < 0)
        return false;
    bool same = m.key == row->key && (m.has_id      ? XXH3_64bits(m.id, m.id_bytes) == row->id_hash
                                      : m.has_index ? m.index == index
                                                    : m.has_line && m.line == row->line);
    aq_result_mark_close(&m);
    return same;
}

/* No record is done but by a line that is its own and that no sum accuses.  (Where sums are
 * illegible, lines may have had them.) */
static void check_done(const struct line *lines, size_t line_count, const uint64_t *sums,
                       size_t sum_count, bool damaged)
{
    bool missing = false;
    for (size_t i = 0; i < sum_count && !missing && !damaged; i++) {
        bool found = false;
        for (size_t k = 0; k < line_count; k++)
            found |= lines[k].sum == sums[i];
        missing = !found;
    }
    for (uint64_t r = 0; r < job->row_count; r++) {
        bool good = !job->rows[r].done;
        for (size_t k = 0; k < line_count && !good; k++)
            good = (!missing || has(sums, sum_count, lines[k].sum)) &&
                   is_of_row(&lines[k], &job->rows[r], r);
        fuzz_check(good);
    }
}

/* ---- afterwards ---- */

static bool holds(const char *text, size_t bytes, const struct line *l)
{
    struct line lines[LINES_MAX];
    size_t n = split(lines, LINES_MAX, text, bytes);
    for (size_t i = 0; i < n; i++)
        if (lines[i].count == l->count && !memcmp(lines[i].bytes, l->bytes, l->count))
            return true;
    return false;
}

/* A file's text; "" where there is none. */
static char *read_back(const char *path, size_t *ret_bytes)
{
    char *text = strdup("");
    *ret_bytes = 0;
    if (aq_file_size(path) < 0)
        return text;
    free(text);
    fuzz_check(aq_read_file(&text, ret_bytes, path, 1 << 26, NULL) == 0);
    return text;
}

static bool is_error(const struct line *l)
{
    struct aq_result_mark m = {0};
    bool error = aq_result_read(&m, l->bytes, l->count, NULL) == 0 && m.error;
    aq_result_mark_close(&m);
    return error;
}

/* Put in order: each line is where it was or set aside, and a second look finds nothing amiss. */
static void check_settled(const struct line *lines, size_t line_count)
{
    uint64_t done = job->done_before;
    bool torn =
        job->old.file[AQ_JOB_RESULTS].walk.good_end < job->old.file[AQ_JOB_RESULTS].walk.end;
    bool kept = torn && (job->old.unread || aq_sums_missing(job->old.sums));
    fuzz_check(aq_job_settle(job, NULL) == 0);
    size_t bytes, damaged_bytes;
    char *text = read_back(job->output, &bytes);
    char *damaged = read_back(job->damaged, &damaged_bytes);
    for (size_t i = 0; i < line_count; i++) {
        bool last = i + 1 == line_count;
        if (!is_error(&lines[i]) && !(last && torn && !kept))
            fuzz_check(holds(text, bytes, &lines[i]) || holds(damaged, damaged_bytes, &lines[i]));
    }
    free(text);
    free(damaged);
    forget();
    fuzz_check(aq_job_resume(job, NULL) == 0);
    const struct aq_job_old *old = &job->old;
    fuzz_check(job->done_before == done && !old->suspicious && !old->added && !old->retried);
    fuzz_check(!old->unread);
    fuzz_check(!old->found || (!old->sums_damaged && !aq_sums_missing(old->sums)));
}

/* ---- one input ---- */

static void put_sums(const char *bytes, size_t count, const struct line *lines, size_t line_count)
{
    if (bytes[0] != '@') {
        put_file(job->sums, bytes, count);
        return;
    }
    struct aq_sums *s;
    fuzz_check(aq_sums_open(&s, NULL) == 0);
    for (size_t i = 1; i < count; i++) {
        size_t line = (size_t)(bytes[i] - '0');
        uint64_t sum =
            bytes[i] >= '0' && line < line_count ? lines[line].sum : XXH3_64bits(&bytes[i], 1);
        fuzz_check(aq_sums_add(s, sum, NULL) == 0);
    }
    fuzz_check(aq_sums_write(s, job->sums, false, NULL) == 0);
    aq_sums_close(s);
}

/* A section up to the next "%%" line; moves on behind it. */
static size_t section(const char **ret, const char **at, const char *end)
{
    static const char mark[] = "%%\n";
    const char *begin = *at;
    const char *next = memmem(begin, (size_t)(end - begin), mark, sizeof(mark) - 1);
    *ret = begin;
    *at = next ? next + sizeof(mark) - 1 : end;
    return (size_t)((next ? next : end) - begin);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct line lines[LINES_MAX];
    static uint64_t sums[SUMS_MAX];
    const char *at = (const char *)data, *end = at + size, *results, *part;
    if (!job)
        open_job();
    forget();
    size_t bytes = section(&results, &at, end);
    size_t line_count = split(lines, LINES_MAX, results, bytes);
    if (line_count == LINES_MAX)
        return 0;
    unlink(job->output);
    unlink(job->sums);
    unlink(job->manifest);
    unlink(job->damaged);
    if (bytes)
        put_file(job->output, results, bytes);
    size_t count = section(&part, &at, end);
    if (count)
        put_sums(part, count, lines, line_count);
    count = section(&part, &at, end);
    if (count)
        put_file(job->manifest, part, count);
    else
        fuzz_check(aq_job_manifest_write(job, NULL) == 0);
    struct aq_err err = {0};
    bool damaged, whole_manifest = count == 0;
    int rc = aq_job_resume(job, &err);
    bool compressed = aq_compression_of_bytes(results, bytes) != AQ_PLAIN;
    if (rc < 0) {
        fuzz_check_error_text(&err);
        fuzz_check(!whole_manifest || compressed || aq_file_size(job->sums) < 0);
        return 0;
    }
    fuzz_check(!compressed);
    char *text = read_back(job->sums, &count);
    size_t sum_count = believed(sums, &damaged, text, count);
    free(text);
    check_done(lines, line_count, sums, sum_count, damaged);
    check_settled(lines, line_count);
    return 0;
}
