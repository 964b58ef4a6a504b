/* SPDX-License-Identifier: Apache-2.0
 * Any tokenizer files: the input is a list of files, each begun by a line "@@ NAME", and the text
 * to encode behind "@@ text".  A tokenizer that opens encodes into ids that have tokens, and
 * decodes the same as a whole and one by one. */
#include "engine/tokenizer/tokenizer.h"
#include "tests/fuzz/fuzz_dir.h"

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

static bool is_named(const struct fuzz_section *s, const char *name)
{
    return s->name_bytes == strlen(name) && memcmp(s->name, name, s->name_bytes) == 0;
}

/* Writes the sections; returns the text. */
static const char *write_files(const uint8_t *data, size_t size, size_t *ret_bytes)
{
    const char *text = "";
    struct fuzz_section s;
    *ret_bytes = 0;
    for (const uint8_t *at = data; fuzz_next_section(&s, &at, data + size);) {
        if (is_named(&s, "text")) {
            text = (const char *)s.data;
            *ret_bytes = s.bytes < TEXT_MAX ? s.bytes : TEXT_MAX;
        }
        for (int i = 0; aq_tokenizer_file_names[i]; i++) {
            char path[TEMP_INSIDE_MAX];
            path_of(path, aq_tokenizer_file_names[i]);
            if (is_named(&s, aq_tokenizer_file_names[i]))
                fuzz_write_file(path, s.data, s.bytes);
        }
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
        fuzz_dir(dir, "fuzz");
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
