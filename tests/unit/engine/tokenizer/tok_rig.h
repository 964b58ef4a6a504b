/* SPDX-License-Identifier: Apache-2.0
 * tests/unit/engine/tokenizer/tok_rig.h - a temporary directory of tokenizer files, and the
 * tokenizer opened from it. */
#ifndef AQ_TESTS_UNIT_ENGINE_TOKENIZER_TOK_RIG_H
#define AQ_TESTS_UNIT_ENGINE_TOKENIZER_TOK_RIG_H

#include "base/json.h"
#include "base/types.h"
#include "engine/tokenizer/tokenizer.h"
#include "engine/tokenizer/vocab.h"
#include "tests/test.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct rig {
    char dir[64];
    struct aq_tokenizer *t;
    struct aq_tok_state *s;
    struct aq_ids ids;
    struct aq_buf text;
    struct aq_err err;
};

static inline const char *rig_data(char path[PATH_MAX], const char *name)
{
    snprintf(path, PATH_MAX, "%s", test_data_path(name));
    return path;
}

static inline void rig_begin(struct rig *r)
{
    *r = (struct rig){.dir = "/tmp/aq_tok_XXXXXX"};
    assert_non_null(mkdtemp(r->dir));
}

static inline void rig_close_tokenizer(struct rig *r)
{
    aq_tok_state_close(r->s);
    aq_tokenizer_close(r->t);
    r->s = NULL;
    r->t = NULL;
}

static inline void rig_end(struct rig *r)
{
    char path[PATH_MAX];
    for (const char *const *name = aq_tokenizer_file_names; *name; name++) {
        snprintf(path, sizeof(path), "%s/%s", r->dir, *name);
        unlink(path);
    }
    assert_int_equal(rmdir(r->dir), 0);
    rig_close_tokenizer(r);
    aq_ids_close(&r->ids);
    aq_buf_close(&r->text);
}

static inline void rig_write(struct rig *r, const char *name, const char *text, size_t bytes)
{
    char path[PATH_MAX];
    snprintf(path, sizeof(path), "%s/%s", r->dir, name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, bytes, f), bytes);
    assert_int_equal(fclose(f), 0);
}

static inline void rig_puts(struct rig *r, const char *name, const char *text)
{
    rig_write(r, name, text, strlen(text));
}

/* Copies a file of the test data under a name. */
static inline void rig_copy(struct rig *r, const char *name, const char *data)
{
    char path[PATH_MAX], *text;
    size_t bytes;
    if (aq_read_file(&text, &bytes, rig_data(path, data), SIZE_MAX / 2, &r->err) < 0)
        fail_msg("%s", r->err.text);
    rig_write(r, name, text, bytes);
    free(text);
}

/* A vocabulary of the 256 bytes, with their values as ids, and `more`: text for the JSON object
 * that begins with a comma, or "". */
static inline void rig_put_bytes_vocab(struct aq_buf *b, const char *more)
{
    aq_buf_puts(b, "{");
    for (unsigned byte = 0; byte < 256; byte++) {
        char spelling[2];
        size_t n = aq_byte_spell(spelling, (unsigned char)byte);
        aq_buf_puts(b, byte ? "," : "");
        aq_buf_json_string(b, spelling, n);
        aq_buf_printf(b, ":%u", byte);
    }
    aq_buf_puts(b, more);
    aq_buf_puts(b, "}");
}

/* vocab.json and merges.txt: bytes, "ab" 256, "abc" 257, and `more` tokens. */
static inline void rig_small(struct rig *r, const char *more)
{
    struct aq_buf b = {0};
    char tokens[512];
    snprintf(tokens, sizeof(tokens), ",\"ab\":256,\"abc\":257%s", more);
    rig_put_bytes_vocab(&b, tokens);
    rig_write(r, "vocab.json", b.data, b.count);
    rig_puts(r, "merges.txt", "#version: 0.2\na b\nab c\n");
    aq_buf_close(&b);
}

static inline int rig_try_open(struct rig *r, const struct aq_tokenizer_defaults *defaults)
{
    int rc = aq_tokenizer_open(&r->t, r->dir, defaults, &r->err);
    return rc < 0 ? rc : aq_tok_state_open(&r->s, r->t, &r->err);
}

static inline void rig_open(struct rig *r, const struct aq_tokenizer_defaults *defaults)
{
    if (rig_try_open(r, defaults) < 0)
        fail_msg("%s", r->err.text);
}

static inline void rig_open_data(struct rig *r, const char *data,
                                 const struct aq_tokenizer_defaults *defaults)
{
    char path[PATH_MAX];
    if (aq_tokenizer_open(&r->t, rig_data(path, data), defaults, &r->err) < 0 ||
        aq_tok_state_open(&r->s, r->t, &r->err) < 0)
        fail_msg("%s", r->err.text);
}

static inline void rig_encode(struct rig *r, const char *text, size_t bytes,
                              struct aq_encode_opts opts)
{
    r->ids.count = 0;
    if (aq_tokenizer_encode(r->t, r->s, text, bytes, opts, &r->ids, &r->err) < 0)
        fail_msg("%s", r->err.text);
}

static inline void rig_decode(struct rig *r)
{
    aq_buf_clear(&r->text);
    aq_buf_put(&r->text, "", 0);
    aq_tokenizer_decode(r->t, r->ids.item, r->ids.count, false, &r->text);
    assert_false(r->text.failed);
}

/* The ids, from `skip` on, are those of a JSON list. */
static inline void rig_assert_ids(const struct rig *r, const json_t *want, size_t skip,
                                  const char *what)
{
    bool same = r->ids.count == skip + json_array_size(want);
    for (size_t i = 0; same && i < json_array_size(want); i++)
        same = r->ids.item[skip + i] == (uint32_t)json_integer_value(json_array_get(want, i));
    if (!same) {
        struct aq_buf b = {0};
        aq_buf_json_u32s(&b, r->ids.item, r->ids.count);
        char *expected = json_dumps(want, JSON_COMPACT);
        fail_msg("%s: expected %s, found %s", what, expected, b.data);
    }
}

/* Calls fn with every line of a JSONL file of the test data; returns how many there were. */
static inline unsigned rig_lines(const char *data, void (*fn)(void *arg, const json_t *line),
                                 void *arg)
{
    char path[PATH_MAX], *text, *line, *rest;
    size_t bytes;
    unsigned count = 0;
    struct aq_err err = {0};
    if (aq_read_file(&text, &bytes, rig_data(path, data), SIZE_MAX / 2, &err) < 0)
        fail_msg("%s", err.text);
    for (rest = text; (line = strsep(&rest, "\n"));) {
        json_t *record;
        if (!*line)
            continue;
        if (aq_json_parse(&record, line, strlen(line), true, &err) < 0)
            fail_msg("%s: %s", data, err.text);
        fn(arg, record);
        json_decref(record);
        count++;
    }
    free(text);
    return count;
}

#endif
