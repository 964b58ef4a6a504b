/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/chat/chat_messages.h"

#include "base/buf.h"
#include "base/json.h"

#include <stdlib.h>
#include <string.h>

static int no_memory(struct aq_err *err)
{
    return aq_error_memory(err, "messages");
}

/* ---- content ---- */

static int check_part(size_t message, size_t part, const json_t *v, struct aq_err *err)
{
    const char *type = json_string_value(json_object_get(v, "type"));
    if (!json_is_object(v) || !type)
        return aq_error(err, -EBADMSG,
                        "'messages': expected {\"type\": \"text\", \"text\": ...} at part %zu of "
                        "message %zu",
                        part, message);
    if (strcmp(type, "text") != 0)
        return aq_error(err, -EBADMSG,
                        "'messages': part %zu of message %zu is of type '%.40s': only text is "
                        "supported",
                        part, message, type);
    if (!json_is_string(json_object_get(v, "text")))
        return aq_error(err, -EBADMSG, "'messages': part %zu of message %zu: expected a text", part,
                        message);
    return 0;
}

/* The parts' texts, a line each; NULL when memory ran out. */
static json_t *joined(const json_t *parts)
{
    struct aq_buf b = {0};
    size_t i;
    json_t *part;
    json_array_foreach(parts, i, part)
    {
        const json_t *text = json_object_get(part, "text");
        aq_buf_puts(&b, i ? "\n" : "");
        aq_buf_put(&b, json_string_value(text), json_string_length(text));
    }
    json_t *v = b.failed ? NULL : json_stringn(b.data ? b.data : "", b.count);
    aq_buf_close(&b);
    return v;
}

static int read_content(json_t *message, size_t index, bool lists, struct aq_err *err)
{
    const json_t *v = json_object_get(message, "content");
    size_t i;
    json_t *part;
    if (!v || json_is_null(v) || json_is_string(v))
        return 0;
    if (!json_is_array(v))
        return aq_error(err, -EBADMSG,
                        "'messages': content of message %zu: expected a text or a list of text "
                        "parts",
                        index);
    json_array_foreach(v, i, part)
    {
        int rc = check_part(index, i, part, err);
        if (rc < 0)
            return rc;
    }
    json_t *text = lists ? NULL : joined(v);
    if (!lists && (!text || json_object_set_new(message, "content", text) < 0))
        return no_memory(err);
    return 0;
}

/* ---- tool calls ---- */

static int read_calls(json_t *message, size_t index, struct aq_err *err)
{
    json_t *calls = json_object_get(message, "tool_calls"), *call;
    size_t i;
    json_array_foreach(calls, i, call)
    {
        json_t *function = json_object_get(call, "function"), *value;
        const json_t *arguments = json_object_get(function, "arguments");
        if (!json_is_string(arguments))
            continue;
        struct aq_err why;
        const char *text = json_string_value(arguments);
        size_t bytes = json_string_length(arguments);
        int rc = aq_json_parse(&value, bytes ? text : "{}", bytes ? bytes : 2, false, &why);
        if (rc == -ENOMEM)
            return no_memory(err);
        if (rc < 0)
            return aq_error(err, -EBADMSG,
                            "'messages': arguments of tool call %zu of message %zu: expected JSON: "
                            "%.200s",
                            i, index, why.text);
        if (json_object_set_new(function, "arguments", value) < 0)
            return no_memory(err);
    }
    return 0;
}

/* ---- the last message ---- */

/* The text that is continued: the content, or the last part of it.  Its owner and its key. */
static json_t *last_text(json_t *message, const char **ret_key)
{
    json_t *content = json_object_get(message, "content");
    *ret_key = "content";
    if (json_is_string(content))
        return message;
    *ret_key = "text";
    return json_array_get(content, json_array_size(content) - 1);
}

static int mark_end(json_t *messages, struct aq_err *err)
{
    const char *key;
    json_t *owner = last_text(json_array_get(messages, json_array_size(messages) - 1), &key);
    const json_t *text = json_object_get(owner, key);
    if (!json_is_string(text))
        return aq_error(err, -EBADMSG,
                        "'messages': the last message, which is to be continued, has "
                        "no text");
    struct aq_buf b = {0};
    aq_buf_put(&b, json_string_value(text), json_string_length(text));
    aq_buf_puts(&b, AQ_CHAT_END_MARK " ");
    json_t *v = b.failed ? NULL : json_stringn(b.data, b.count);
    aq_buf_close(&b);
    return v && json_object_set_new(owner, key, v) == 0 ? 0 : no_memory(err);
}

/* ---- all ---- */

static int read_message(json_t *v, size_t index, bool lists, struct aq_err *err)
{
    if (!json_is_object(v) || !json_is_string(json_object_get(v, "role")))
        return aq_error(err, -EBADMSG,
                        "'messages': expected {\"role\": ..., \"content\": ...} at %zu", index);
    int rc = read_content(v, index, lists, err);
    return rc < 0 ? rc : read_calls(v, index, err);
}

int aq_chat_messages(json_t **ret, const json_t *messages, bool lists, bool continues,
                     struct aq_err *reterr)
{
    if (!json_array_size(messages))
        return aq_error(reterr, -EBADMSG, "'messages': expected a list of at least one message");
    json_t *copy = aq_json_copy(messages), *message;
    size_t i;
    int rc = copy ? 0 : no_memory(reterr);
    json_array_foreach(copy, i, message)
    {
        if (rc == 0)
            rc = read_message(message, i, lists, reterr);
    }
    if (rc == 0 && continues)
        rc = mark_end(copy, reterr);
    if (rc < 0)
        json_decref(copy);
    else
        *ret = copy;
    return rc;
}
