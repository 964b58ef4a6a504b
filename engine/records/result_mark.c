/* SPDX-License-Identifier: Apache-2.0
 * Reads back who a result line belongs to: the other side of result.c. */
#include "engine/records/result.h"

#include "base/json.h"
#include "base/json_text.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* Sixteen hex digits. */
static bool read_key(const char *text, uint64_t *ret)
{
    uint64_t key = 0;
    for (int i = 0; i < 16; i++) {
        const char *digits = "0123456789abcdef";
        const char *at = text[i] ? strchr(digits, text[i]) : NULL;
        if (!at)
            return false;
        key = key << 4 | (uint64_t)(at - digits);
    }
    *ret = key;
    return text[16] == '\0';
}

static bool read_u64(const json_t *v, uint64_t *ret)
{
    *ret = (uint64_t)json_integer_value(v);
    return json_is_integer(v) && json_integer_value(v) >= 0;
}

/* The id as text; false where v is none.  Integers beyond 64 bits are reals to the parser: theirs
 * stands in the line. */
static bool copy_id(struct aq_result_mark *m, const json_t *v, struct aq_text line)
{
    struct aq_buf text = {0};
    struct aq_text digits;
    if (json_is_string(v))
        aq_buf_put(&text, json_string_value(v), json_string_length(v));
    else if (json_is_integer(v))
        aq_buf_printf(&text, "%" JSON_INTEGER_FORMAT, json_integer_value(v));
    else if (json_is_real(v) && aq_json_member_integer(&digits, line, "id"))
        aq_buf_put(&text, digits.bytes, digits.count);
    else
        return false;
    m->id_bytes = text.count;
    m->id = aq_buf_take(&text);
    m->has_id = true;
    return true;
}

static bool read_batch(struct aq_result_mark *m, const json_t *root)
{
    static const char prefix[] = "batch_req_";
    const char *id = json_string_value(json_object_get(root, "id"));
    const json_t *custom = json_object_get(root, "custom_id");
    const json_t *error = json_object_get(root, "error");
    m->form = AQ_FORM_BATCH;
    m->error = error && !json_is_null(error);
    m->has_line = m->error && read_u64(json_object_get(error, "line"), &m->line);
    if (!id || strncmp(id, prefix, sizeof(prefix) - 1) || strlen(id) != sizeof(prefix) - 1 + 32)
        return false;
    if (!read_key(id + sizeof(prefix) - 1 + 16, &m->key))
        return false;
    if (json_is_string(custom))
        return copy_id(m, custom, (struct aq_text){0});
    /* Earlier versions wrote the index where now null stands. */
    return (json_is_null(custom) || json_is_integer(custom)) && m->has_line;
}

/* Plain and harness lines carry index and key in the same way. */
static bool read_indexed(struct aq_result_mark *m, const json_t *root, struct aq_text line)
{
    const char *key = json_string_value(json_object_get(root, "key"));
    m->form = json_object_get(root, "request") ? AQ_FORM_HARNESS : AQ_FORM_PLAIN;
    m->error = json_is_object(json_object_get(root, "error"));
    m->has_index = read_u64(json_object_get(root, "index"), &m->index);
    if (!m->has_index || !key || !read_key(key, &m->key))
        return false;
    if (m->form == AQ_FORM_HARNESS)
        return json_object_get(root, "result") != NULL;
    const json_t *id = json_object_get(root, "id");
    if (json_is_null(id))
        return m->error;
    return copy_id(m, id, line);
}

int aq_result_read(struct aq_result_mark *ret, const char *line, size_t bytes,
                   struct aq_err *reterr)
{
    assert(ret && line);
    json_t *root;
    bool wide; /* a request that stands in the line may have had such numbers */
    int rc = aq_json_parse_wide(&root, &wide, line, bytes, false, reterr);
    if (rc < 0)
        return rc;
    struct aq_result_mark m = {0};
    bool good =
        json_is_object(root) && (json_object_get(root, "custom_id")
                                     ? read_batch(&m, root)
                                     : read_indexed(&m, root, (struct aq_text){line, bytes}));
    json_decref(root);
    if (good && m.has_id && !m.id)
        return aq_error_memory(reterr, "id of %zu bytes", m.id_bytes);
    if (!good) {
        aq_result_mark_close(&m);
        return aq_error(reterr, -ENOEXEC, "not a result line of this program (no id and key)");
    }
    *ret = m;
    return 0;
}

void aq_result_mark_close(struct aq_result_mark *m)
{
    free(m->id);
    *m = (struct aq_result_mark){0};
}
