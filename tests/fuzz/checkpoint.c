/* SPDX-License-Identifier: Apache-2.0
 * Folders that are said to hold a model, and the hub's cache around them: whatever lies there, a
 * checkpoint opens whose tensors can be read and whose identity stays, or one sentence says what is
 * wrong.  The input is a list of sections:
 *   @@ file PATH             the section's bytes
 *   @@ tensors PATH COUNT    safetensors: the section as its header, COUNT zeros as its data
 *   @@ link PATH             a symbolic link to what the section says
 *   @@ fold PATH             a folder */
#include "engine/checkpoint/checkpoint.h"
#include "base/types.h"
#include "engine/model/model.h"
#include "tests/fuzz/fuzz_dir.h"

#include <limits.h>

enum { SECTIONS_MAX = 24, DATA_MAX = 1 << 16, ROW_BYTES_MAX = 1 << 20 };

static char dir[TEMP_PATH_MAX];

static void remove_dir(void)
{
    temp_remove(dir);
}

/* Plain names one below the other, the folders above made; false for any other path. */
static bool make_path(char path[TEMP_INSIDE_MAX], const char *text)
{
    int at = snprintf(path, TEMP_INSIDE_MAX, "%s", dir), depth = 0;
    while (*text && depth++ < 6) {
        size_t n =
            strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.");
        if (n == 0 || n > 80 || text[0] == '.' || (text[n] && text[n] != '/') ||
            at + (int)n + 1 >= TEMP_INSIDE_MAX)
            return false;
        if (depth > 1)
            mkdir(path, 0700);
        at += snprintf(path + at, (size_t)(TEMP_INSIDE_MAX - at), "/%.*s", (int)n, text);
        text += n + (text[n] == '/');
    }
    return depth > 0 && !*text;
}

/* The section between a safetensors file's length field and data, or alone; nothing where a folder
 * or link is in the way. */
static void make_file(const char *path, const struct fuzz_section *s, bool tensors, unsigned zeros)
{
    static const char zero[DATA_MAX];
    uint64_t bytes = s->bytes;
    struct stat st;
    FILE *f = lstat(path, &st) < 0 ? fopen(path, "wb") : NULL;
    if (!f)
        return;
    if (tensors)
        fuzz_check(fwrite(&bytes, 1, sizeof(bytes), f) == sizeof(bytes));
    fuzz_check(fwrite(s->data, 1, s->bytes, f) == s->bytes);
    fuzz_check(fwrite(zero, 1, zeros, f) == zeros && fclose(f) == 0);
}

/* To a place in the folder, or two above it at most. */
static void make_link(const char *path, const struct fuzz_section *s)
{
    char target[128] = "";
    unsigned up = 0;
    snprintf(target, sizeof(target), "%.*s", (int)(s->bytes < 100 ? s->bytes : 100), s->data);
    for (const char *p = target; (p = strstr(p, "..")); p += 2)
        up++;
    if (target[0] != '/' && up <= 2 && symlink(target, path) < 0)
        return; /* something is there, or there is no target */
}

static void make_section(const struct fuzz_section *s)
{
    char line[256], kind[16], name[200], path[TEMP_INSIDE_MAX];
    unsigned zeros = 0;
    snprintf(line, sizeof(line), "%.*s", (int)(s->name_bytes < 240 ? s->name_bytes : 240), s->name);
    if (sscanf(line, "%15s %199s %5u", kind, name, &zeros) < 2 || !make_path(path, name))
        return;
    if (strcmp(kind, "link") == 0)
        make_link(path, s);
    else if (strcmp(kind, "fold") == 0)
        mkdir(path, 0700);
    else if (strcmp(kind, "tensors") == 0)
        make_file(path, s, true, zeros < DATA_MAX ? zeros : DATA_MAX);
    else
        make_file(path, s, false, 0);
}

static void check_rows(const struct aq_checkpoint *c, const struct aq_tensor_info *t)
{
    struct aq_err err = {0};
    uint64_t rows = aq_tensor_rows(t), row_bytes = aq_tensor_row_bytes(t);
    fuzz_check(aq_checkpoint_find(c, t->name) == t && *aq_checkpoint_file(c, t));
    if (rows == 0 || row_bytes > ROW_BYTES_MAX)
        return;
    void *row = malloc(row_bytes + 1);
    fuzz_check(row != NULL);
    int rc = aq_checkpoint_read(c, t, rows - 1, 1, row, &err);
    fuzz_check(rc == 0 || (rc == -ENOEXEC && t->dtype == AQ_DTYPE_COUNT));
    free(row);
}

static void check_checkpoint(const char *path)
{
    struct aq_checkpoint *c = NULL, *again = NULL;
    struct aq_err err = {0};
    int rc = aq_checkpoint_open(&c, path, &err);
    if (rc < 0) {
        fuzz_check(err.code == rc && (rc == -ENOENT || rc == -ENOEXEC));
        fuzz_check_error_text(&err);
        return;
    }
    for (size_t i = 0; i < aq_checkpoint_count(c); i++) {
        const struct aq_tensor_info *t = aq_checkpoint_tensor(c, i);
        fuzz_check(i == 0 || strcmp(aq_checkpoint_tensor(c, i - 1)->name, t->name) < 0);
        check_rows(c, t);
    }
    fuzz_check(aq_checkpoint_open(&again, path, NULL) == 0);
    fuzz_check(aq_checkpoint_hash(c) == aq_checkpoint_hash(again));
    fuzz_check(aq_checkpoint_bytes(c) == aq_checkpoint_bytes(again));
    aq_checkpoint_close(again);
    aq_checkpoint_close(c);
}

/* A model that opens has every tensor of its steps, in its size; of quantised ones values may be
 * wrong, and are refused. */
static void check_model(const char *path)
{
    struct aq_model *m = NULL;
    struct aq_err err = {0};
    if (aq_model_open(&m, &(struct aq_model_opts){.dir = path}, &err) < 0) {
        fuzz_check_error_text(&err);
        return;
    }
    for (uint32_t s = 0; s < m->steps.step_count; s++) {
        for (uint32_t i = 0; i < m->steps.step[s].matrix_count; i++) {
            const struct aq_matrix_desc *w = &m->steps.step[s].matrix[i];
            enum aq_dtype dtype;
            if ((uint64_t)w->k * 4 > ROW_BYTES_MAX)
                continue;
            void *row = malloc((size_t)w->k * 4);
            int rc = aq_model_read_rows(m, w->name, w->rows - 1, 1, w->k, row, &dtype, &err);
            fuzz_check(row && (rc == 0 || (rc == -ENOEXEC && m->quantised[0])));
            if (rc < 0)
                fuzz_check_error_text(&err);
            else
                fuzz_check(aq_dtype_bytes(dtype) <= 4);
            free(row);
        }
    }
    aq_model_close(m);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char hub[TEMP_INSIDE_MAX], resolved[PATH_MAX];
    struct aq_err err = {0};
    struct fuzz_section s;
    if (!*dir) {
        fuzz_dir(dir, "checkpoint");
        atexit(remove_dir);
        snprintf(hub, sizeof(hub), "%s/hub", dir);
        setenv("HF_HUB_CACHE", hub, 1);
    }
    const uint8_t *at = data;
    for (int i = 0; i < SECTIONS_MAX && fuzz_next_section(&s, &at, data + size); i++)
        make_section(&s);
    check_checkpoint(dir);
    check_model(dir);
    if (aq_checkpoint_resolve("org/name", resolved, sizeof(resolved), &err) == 0) {
        check_checkpoint(resolved);
        check_model(resolved);
    } else {
        fuzz_check_error_text(&err);
    }
    temp_remove(dir);
    fuzz_check(mkdir(dir, 0700) == 0);
    return 0;
}
