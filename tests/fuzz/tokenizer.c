/* SPDX-License-Identifier: Apache-2.0
 * Any tokenizer files: the input is a list of files, each begun by a line "@@ NAME", and the text
 * to encode behind "@@ text".  A tokenizer that opens encodes into ids that have tokens, and
 * decodes the same as a whole and one by one. */
#include "engine/tokenizer.h"
#include "tests/fuzz/fuzz.h"
#include "tests/temp.h"

#include <assert.h>
#include <stdio.h>

enum { TEXT_MAX = 4096 };

static char dir[TEMP_PATH_MAX];

static void remove_dir(void)
{
    rmdir(dir);
}

static void path_of(char path[TEMP_INSIDE_MAX], const char *name)
{
    snprintf(path, TEMP_INSIDE_MAX, "%s/%s", dir, name);
}

/* The next section of the input: its name's index in the list of files, -1 for the text, -2 for one
 * that nobody reads. */
static const uint8_t *next_section(const uint8_t *at, const uint8_t *end, int *ret_file,
                                   const uint8_t **ret_begin)
{
    const uint8_t *line_end = memchr(at, '\n', (size_t)(end - at));
    size_t n = (size_t)((line_end ? line_end : end) - at);
    *ret_begin = line_end ? line_end + 1 : end;
    *ret_file = -2;
    if (n == 7 && memcmp(at, "@@ text", 7) == 0)
        *ret_file = -1;
    for (int i = 0; aq_tokenizer_file_names[i]; i++)
        if (n == strlen(aq_tokenizer_file_names[i]) + 3 &&
            memcmp(at + 3, aq_tokenizer_file_names[i], n - 3) == 0)
            *ret_file = i;
    const uint8_t *next = memmem(*ret_begin, (size_t)(end - *ret_begin), "\n@@ ", 4);
    return next ? next + 1 : end;
}

/* Writes the sections; returns the text. */
static const char *write_files(const uint8_t *data, size_t size, size_t *ret_bytes)
{
    const char *text = "";
    const uint8_t *end = data + size;
    *ret_bytes = 0;
    for (const uint8_t *at = data; at < end;) {
        int file;
        const uint8_t *begin, *next = next_section(at, end, &file, &begin);
        size_t n = begin < next ? (size_t)(next - begin) : 0;
        n -= n && next < end; /* the line end before the next section */
        if (file == -1) {
            text = (const char *)begin;
            *ret_bytes = n < TEXT_MAX ? n : TEXT_MAX;
        } else if (file >= 0) {
            char path[TEMP_INSIDE_MAX];
            path_of(path, aq_tokenizer_file_names[file]);
            FILE *f = fopen(path, "wb");
            if (!f || fwrite(begin, 1, n, f) != n || fclose(f) != 0)
                abort();
        }
        at = next;
    }
    return text;
}

static void check_decoding(const struct aq_tokenizer *t, const struct aq_ids *ids)
{
    size_t max = aq_detok_bytes_max(t);
    char *out = malloc(max);
    struct aq_buf whole = {0}, stream = {0}, a = {0}, b = {0};
    struct aq_detok d;
    aq_detok_start(&d, t, false);
    for (size_t i = 0; i < ids->count; i++) {
        size_t n = aq_detok_push(&d, ids->item[i], out);
        assert(n <= max);
        aq_buf_put(&stream, out, n);
        assert(aq_tokenizer_token_text(t, ids->item[i]));
    }
    aq_buf_put(&stream, out, aq_detok_flush(&d, out));
    aq_tokenizer_decode(t, ids->item, ids->count, false, &whole);
    /* as JSON strings, in which replacements are made */
    aq_buf_json_string(&a, whole.data, whole.count);
    aq_buf_json_string(&b, stream.data, stream.count);
    assert(a.count == b.count && memcmp(a.data, b.data, a.count) == 0);
    assert(aq_utf8_invalid_at(stream.data, stream.count) == stream.count);
    aq_buf_close(&whole);
    aq_buf_close(&stream);
    aq_buf_close(&a);
    aq_buf_close(&b);
    free(out);
}

static void check_tokenizer(const struct aq_tokenizer *t, const char *text, size_t bytes)
{
    struct aq_tok_state *s = NULL;
    struct aq_ids ids = {0};
    struct aq_err err = {0};
    if (aq_tok_state_open(&s, t, &err) < 0)
        abort();
    for (int i = 0; i < 4; i++) {
        struct aq_encode_opts opts = {.add_bos = i & 1, .add_eos = i & 1, .parse_special = i & 2};
        ids.count = 0;
        int rc = aq_tokenizer_encode(t, s, text, bytes, opts, &ids, &err);
        fuzz_check_error(rc, &err);
        assert(rc == 0 || (rc == -EINVAL && ids.count == 0));
        check_decoding(t, &ids);
    }
    aq_ids_close(&ids);
    aq_tok_state_close(s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!*dir) {
        temp_dir(dir, "fuzz");
        atexit(remove_dir);
    }
    size_t bytes;
    const char *text = write_files(data, size, &bytes);
    struct aq_tokenizer *t = NULL;
    struct aq_err err = {0};
    struct aq_tokenizer_defaults defaults = {.bos_id = 0, .eos_id = 1, .pad_id = -1};
    int rc = aq_tokenizer_open(&t, dir, size % 2 ? &defaults : NULL, &err);
    fuzz_check_error(rc, &err);
    if (rc == 0)
        check_tokenizer(t, text, bytes);
    aq_tokenizer_close(t);
    for (int i = 0; aq_tokenizer_file_names[i]; i++) {
        char path[TEMP_INSIDE_MAX];
        path_of(path, aq_tokenizer_file_names[i]);
        unlink(path);
    }
    return 0;
}
