/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/records/template.h"

#include "base/json.h"
#include "base/types.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <xxhash.h>

enum { TEMPLATE_BYTES_MAX = 16 << 20 };

/* Literal text up to a field; the last piece has none. */
struct piece {
    char *text;
    size_t bytes;
    char *field;
};

struct aq_template {
    struct piece piece[AQ_TEMPLATE_FIELDS_MAX + 1];
    uint32_t count; /* pieces */
    uint64_t hash;
};

void aq_template_close(struct aq_template *t)
{
    if (!t)
        return;
    for (size_t i = 0; i < AQ_ARRAY_LEN(t->piece); i++) {
        free(t->piece[i].text);
        free(t->piece[i].field);
    }
    free(t);
}

/* Ends the current piece at a field (NULL: the text's end) and starts the next. */
static int piece_end(struct aq_template *t, struct aq_buf *text, const char *field, size_t bytes,
                     struct aq_err *reterr)
{
    struct piece *p = &t->piece[t->count++];
    p->bytes = text->count;
    p->text = aq_buf_take(text);
    if (field)
        p->field = strndup(field, bytes);
    if (!p->text || (field && !p->field))
        return aq_error_memory(reterr, "prompt template");
    return 0;
}

static int template_parse(struct aq_template *t, struct aq_buf *literal, const char *text,
                          size_t bytes, struct aq_err *reterr)
{
    for (size_t i = 0; i < bytes; i++) {
        char c = text[i];
        if ((c == '{' || c == '}') && i + 1 < bytes && text[i + 1] == c) {
            aq_buf_put(literal, &c, 1);
            i++;
        } else if (c == '}') {
            return aq_error(reterr, -EINVAL,
                            "prompt template: '}' at byte %zu closes nothing (write '}}' for a "
                            "brace)",
                            i);
        } else if (c == '{') {
            const char *field = text + i + 1, *end = memchr(field, '}', bytes - i - 1);
            size_t length = end ? (size_t)(end - field) : 0;
            if (!end || !length || memchr(field, '{', length) || memchr(field, '\0', length))
                return aq_error(reterr, -EINVAL,
                                "prompt template: expected {field} at byte %zu (write '{{' for a "
                                "brace)",
                                i);
            if (t->count == AQ_TEMPLATE_FIELDS_MAX)
                return aq_error(reterr, -EINVAL, "prompt template: more than %d fields",
                                AQ_TEMPLATE_FIELDS_MAX);
            int rc = piece_end(t, literal, field, length, reterr);
            if (rc < 0)
                return rc;
            i += length + 1;
        } else {
            aq_buf_put(literal, &c, 1);
        }
    }
    if (!t->count)
        return aq_error(reterr, -EINVAL, "prompt template: expected at least one {field}");
    return piece_end(t, literal, NULL, 0, reterr);
}

int aq_template_open(struct aq_template **ret, const char *text, size_t bytes,
                     struct aq_err *reterr)
{
    assert(ret && text);
    size_t bad = aq_utf8_invalid_at(text, bytes);
    if (bad < bytes)
        return aq_error(reterr, -EINVAL, "prompt template: byte %zu is not UTF-8", bad);
    struct aq_template *t = calloc(1, sizeof(*t));
    if (!t)
        return aq_error_memory(reterr, "prompt template");
    t->hash = XXH3_64bits(text, bytes);
    struct aq_buf literal = {0};
    int rc = template_parse(t, &literal, text, bytes, reterr);
    aq_buf_close(&literal);
    if (rc < 0)
        aq_template_close(t);
    else
        *ret = t;
    return rc;
}

int aq_template_open_option(struct aq_template **ret, const char *text_or_file,
                            struct aq_err *reterr)
{
    struct stat st;
    if (stat(text_or_file, &st) < 0 || !S_ISREG(st.st_mode))
        return aq_template_open(ret, text_or_file, strlen(text_or_file), reterr);
    char *text;
    size_t bytes;
    int rc = aq_read_file(&text, &bytes, text_or_file, TEMPLATE_BYTES_MAX, reterr);
    if (rc < 0)
        return rc;
    if (bytes && text[bytes - 1] == '\n') /* editors end files with one; prompts rarely mean it */
        bytes -= bytes > 1 && text[bytes - 2] == '\r' ? 2 : 1;
    rc = aq_template_open(ret, text, bytes, reterr);
    free(text);
    return rc < 0 ? aq_error_prefix(reterr, "'%s'", text_or_file) : 0;
}

uint64_t aq_template_hash(const struct aq_template *t)
{
    return t->hash;
}

bool aq_template_names(const struct aq_template *t, const char *field)
{
    for (uint32_t i = 0; t && i < t->count; i++)
        if (t->piece[i].field && !strcmp(t->piece[i].field, field))
            return true;
    return false;
}

int aq_template_fill(struct aq_buf *out, const struct aq_template *t, const json_t *object,
                     const char **ret_field)
{
    for (uint32_t i = 0; i < t->count; i++) {
        const struct piece *p = &t->piece[i];
        aq_buf_put(out, p->text, p->bytes);
        if (!p->field)
            continue;
        const json_t *v = json_object_get(object, p->field);
        if (json_is_string(v)) {
            aq_buf_put(out, json_string_value(v), json_string_length(v));
        } else if (json_is_integer(v)) {
            aq_buf_printf(out, "%" JSON_INTEGER_FORMAT, json_integer_value(v));
        } else if (json_is_real(v)) {
            aq_buf_json_double(out, json_real_value(v));
        } else if (json_is_boolean(v)) {
            aq_buf_puts(out, json_is_true(v) ? "true" : "false");
        } else {
            *ret_field = p->field;
            return -EBADMSG;
        }
    }
    return 0;
}
