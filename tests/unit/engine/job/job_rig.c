/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/engine/job/job_rig.h"

#include "base/clock.h"
#include "tests/test.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

const char *job_rig_path(const struct job_rig *rig, const char *name)
{
    static char path[4][512];
    static unsigned next;
    char *p = path[next++ % 4];
    snprintf(p, sizeof(path[0]), "%s/%s", rig->dir, name);
    return p;
}

int job_rig_setup(void **state)
{
    struct job_rig *rig = calloc(1, sizeof(*rig));
    snprintf(rig->dir, sizeof(rig->dir), "/tmp/aq-job-XXXXXX");
    *state = rig;
    fake_engine_reset();
    return mkdtemp(rig->dir) ? 0 : -1;
}

int job_rig_teardown(void **state)
{
    struct job_rig *rig = *state;
    DIR *d = opendir(rig->dir);
    for (struct dirent *e; d && (e = readdir(d));)
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
            unlink(job_rig_path(rig, e->d_name));
    if (d)
        closedir(d);
    rmdir(rig->dir);
    aq_buf_close(&rig->lines);
    aq_buf_close(&rig->output);
    free(rig);
    return 0;
}

void job_rig_write(const struct job_rig *rig, const char *name, const char *text)
{
    FILE *f = fopen(job_rig_path(rig, name), "w");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, strlen(text), f), strlen(text));
    fclose(f);
}

char *job_rig_read(const struct job_rig *rig, const char *name)
{
    char *text;
    size_t bytes;
    return aq_read_file(&text, &bytes, job_rig_path(rig, name), 1 << 26, NULL) < 0 ? NULL : text;
}

bool job_rig_exists(const struct job_rig *rig, const char *name)
{
    return access(job_rig_path(rig, name), F_OK) == 0;
}

void job_rig_records(struct job_rig *rig, unsigned count)
{
    struct aq_buf b = {0};
    for (unsigned i = 0; i < count; i++)
        aq_buf_printf(&b,
                      "{\"id\": \"r%u\", \"prompt\": [%u, %u, 9], \"max_tokens\": %u, "
                      "\"temperature\": %s}\n",
                      i, 10 + i % 50, 20 + i, 1 + i * 7 % 23, i % 3 ? "0" : "0.7");
    job_rig_write(rig, "in.jsonl", b.data ? b.data : "");
    aq_buf_close(&b);
}

static void on_line(void *user, enum aquifer_level level, const char *text)
{
    struct job_rig *rig = user;
    aq_buf_puts(&rig->lines, text);
    aq_buf_puts(&rig->lines, "\n");
    rig->error_lines += level == AQUIFER_ERROR;
    if (level == AQUIFER_PROGRESS && !rig->progress_lines++)
        rig->first_progress_s = aq_clock_s() - rig->start_s;
}

static void on_output(void *user, const char *bytes, size_t count)
{
    aq_buf_put(&((struct job_rig *)user)->output, bytes, count);
}

static int on_interrupted(void *user)
{
    return ((struct job_rig *)user)->interrupt;
}

int job_rig_command(struct job_rig *rig, const char *command, aq_command_fn *fn,
                    const char *options)
{
    json_t *object;
    assert_int_equal(aq_json_parse(&object, options, strlen(options), true, NULL), 0);
    struct aq_options *o;
    rig->err = (struct aq_err){0};
    int rc = aq_options_from_json(&o, command, object, &rig->err);
    json_decref(object);
    if (rc < 0)
        fail_msg("%s", rig->err.text);
    aq_buf_clear(&rig->lines);
    aq_buf_clear(&rig->output);
    rig->progress_lines = rig->error_lines = 0;
    rig->start_s = aq_clock_s();
    struct aquifer_hooks hooks = {
        .user = rig, .line = on_line, .output = on_output, .interrupted = on_interrupted};
    rc = fn(o, &hooks, &rig->err);
    aq_options_close(o);
    return rc;
}

int job_rig_run(struct job_rig *rig, const char *options)
{
    struct aq_buf json = {0};
    aq_buf_printf(&json, "{\"model\": \"%s\"", test_data_path("tiny-opt"));
    if (!strstr(options, "\"prompt\":") && !strstr(options, "\"input\":"))
        aq_buf_printf(&json, ", \"input\": \"%s\"", job_rig_path(rig, "in.jsonl"));
    if (!strstr(options, "\"prompt\":") && !strstr(options, "\"output\":"))
        aq_buf_printf(&json, ", \"output\": \"%s\"", job_rig_path(rig, "out.jsonl"));
    aq_buf_printf(&json, "%s%s}", options[0] ? ", " : "", options);
    int rc = job_rig_command(rig, "generate", aq_cmd_generate, json.data);
    aq_buf_close(&json);
    return rc;
}

json_t *job_rig_results(const struct job_rig *rig, const char *name)
{
    json_t *list = json_array();
    char *text = job_rig_read(rig, name), *rest = text;
    for (char *line; text && (line = strsep(&rest, "\n"));) {
        json_t *v;
        if (!*line)
            continue;
        assert_int_equal(aq_json_parse(&v, line, strlen(line), true, NULL), 0);
        json_array_append_new(list, v);
    }
    free(text);
    return list;
}

static int compare(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

char *job_rig_sorted(const struct job_rig *rig, const char *name)
{
    static char *lines[RIG_LINES_MAX];
    size_t count = 0;
    char *text = job_rig_read(rig, name), *rest = text;
    for (char *line; text && (line = strsep(&rest, "\n"));) {
        if (!*line)
            continue;
        assert_true(count < RIG_LINES_MAX);
        lines[count++] = line;
    }
    qsort(lines, count, sizeof(lines[0]), compare);
    struct aq_buf b = {0};
    for (size_t i = 0; i < count; i++)
        aq_buf_printf(&b, "%s\n", lines[i]);
    free(text);
    return aq_buf_take(&b);
}

/* ---- what earlier runs left ---- */

char *job_rig_full_run(struct job_rig *rig)
{
    job_rig_records(rig, RIG_RECORDS);
    assert_int_equal(job_rig_run(rig, ""), 0);
    return job_rig_sorted(rig, "out.jsonl");
}

void job_rig_assert_results(struct job_rig *rig, const char *want)
{
    char *got = job_rig_sorted(rig, "out.jsonl");
    assert_string_equal(got, want);
    free(got);
}

bool job_rig_said(const struct job_rig *rig, const char *text)
{
    return rig->lines.data && strstr(rig->lines.data, text);
}

void job_rig_assert_refused(struct job_rig *rig, const char *options, const char *text)
{
    char *before = job_rig_read(rig, "out.jsonl");
    fake_engine.loads = 0;
    assert_int_equal(job_rig_run(rig, options), -EINVAL);
    if (!strstr(rig->err.text, text) && !job_rig_said(rig, text))
        fail_msg("expected '%s', found '%s' and\n%s", text, rig->err.text, rig->lines.data);
    char *after = job_rig_read(rig, "out.jsonl");
    if (before)
        assert_string_equal(after, before);
    assert_int_equal(fake_engine.loads, 0);
    free(before);
    free(after);
}

json_t *job_rig_manifest(const struct job_rig *rig)
{
    json_t *m;
    assert_int_equal(
        aq_json_read_file(&m, job_rig_path(rig, "out.jsonl.manifest.json"), 1 << 20, NULL), 0);
    return m;
}

void job_rig_old_manifest(const struct job_rig *rig, json_t *m)
{
    json_object_del(m, "sums");
    json_object_del(m, "xxh3");
    assert_int_equal(json_dump_file(m, job_rig_path(rig, "out.jsonl.manifest.json"), 0), 0);
    json_decref(m);
}

off_t job_rig_size(const struct job_rig *rig, const char *name)
{
    struct stat st;
    assert_int_equal(stat(job_rig_path(rig, name), &st), 0);
    return st.st_size;
}

unsigned job_rig_mode(const struct job_rig *rig, const char *name)
{
    struct stat st;
    assert_int_equal(stat(job_rig_path(rig, name), &st), 0);
    return st.st_mode & 0777;
}

void job_rig_cut(const struct job_rig *rig, const char *name, off_t bytes)
{
    assert_int_equal(truncate(job_rig_path(rig, name), bytes), 0);
}

void job_rig_append(const struct job_rig *rig, const char *name, const char *bytes, size_t count)
{
    FILE *f = fopen(job_rig_path(rig, name), "a");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, count, f), count);
    fclose(f);
}

void job_rig_change_byte(const struct job_rig *rig, const char *name, off_t at, char change)
{
    FILE *f = fopen(job_rig_path(rig, name), "r+");
    assert_non_null(f);
    fseeko(f, at, SEEK_SET);
    int byte = fgetc(f);
    fseeko(f, at, SEEK_SET);
    fputc(change ? byte ^ change : 0, f);
    fclose(f);
}
