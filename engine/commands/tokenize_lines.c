/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/commands/tokenize_lines.h"

#include "base/json.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* One run over the lines. */
struct run {
    const struct aq_tokenizer *t;
    struct aq_tok_state *state;
    const struct aq_tokenize_opts *opts;
    struct aq_tokenize_stats *stats;
    FILE *input, *output;
    struct aq_buf line, text, out;
    struct aq_ids ids;
    uint64_t line_number;
    bool line_too_long;
};

/* Why a line is no record, or could not be done. */
struct bad_line {
    const char *code, *param; /* param NULL: no single field */
    char message[512];
};

static int io_error(const char *what, const char *name, struct aq_err *reterr)
{
    int code = errno ? errno : EIO;
    return aq_error(reterr, -code, "%s '%s': %s", what, name, strerror(code));
}

/* Reads a line without its end into r->line, its first bytes when it is too long: 1 read, 0 the
 * input has ended. */
static int read_line(struct run *r, struct aq_err *reterr)
{
    int c;
    aq_buf_clear(&r->line);
    r->line_too_long = false;
    errno = 0;
    while ((c = getc_unlocked(r->input)) != EOF && c != '\n') {
        if (r->line.count == AQ_TOKENIZE_LINE_MAX)
            r->line_too_long = true;
        else
            aq_buf_put(&r->line, &(char){(char)c}, 1);
    }
    if (ferror(r->input))
        return io_error("read", r->opts->input_name, reterr);
    if (r->line.failed)
        return aq_error_memory(reterr, "'%s' line %llu", r->opts->input_name,
                               (unsigned long long)r->line_number + 1);
    if (c == EOF && r->line.count == 0)
        return 0;
    r->line_number++;
    if (r->line.count && r->line.data[r->line.count - 1] == '\r')
        r->line.count--;
    return 1;
}

/* The line without a byte order mark and white space around it. */
static const char *trimmed(const struct run *r, size_t *ret_bytes)
{
    const char *text = r->line.data;
    size_t n = r->line.count;
    if (r->line_number == 1 && n >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0) {
        text += 3;
        n -= 3;
    }
    for (; n && strchr(" \t", *text) && *text; text++)
        n--;
    while (n && strchr(" \t", text[n - 1]) && text[n - 1])
        n--;
    *ret_bytes = n;
    return text;
}

/* ---- one record; true when out holds its result ---- */

static bool refuse(struct bad_line *bad, const char *code, const char *param)
{
    bad->code = code;
    bad->param = param;
    return false;
}

/* Where the messages or the prompt are: in the record, in the body of a batch line, or (of
 * messages) the line itself. */
static const json_t *body_of(const json_t *record)
{
    const json_t *body = json_object_get(record, "body");
    return json_is_object(body) ? body : record;
}

/* "text", or what generate reads: lines of one are lines of the other. */
static bool encode_record(struct run *r, const json_t *record, struct bad_line *bad)
{
    const char *field = r->opts->prompt_field ? r->opts->prompt_field : "text";
    const json_t *text = json_object_get(record, field);
    if (!text && !r->opts->prompt_field) {
        text = json_object_get(body_of(record), "prompt");
        field = text ? "prompt" : field;
    }
    if (!json_is_string(text)) {
        snprintf(bad->message, sizeof(bad->message), "'%.80s': expected a string, found %s", field,
                 text ? "another type" : "nothing");
        return refuse(bad, "invalid_record", strcmp(field, "prompt") ? "text" : "prompt");
    }
    const struct aq_tokenizer_info *info = aq_tokenizer_info(r->t);
    struct aq_encode_opts opts = {.add_bos = info->add_bos && !r->opts->no_bos,
                                  .add_eos = info->add_eos,
                                  .parse_special = true};
    struct aq_err err = {0};
    r->ids.count = 0;
    int rc = aq_tokenizer_encode(r->t, r->state, json_string_value(text), json_string_length(text),
                                 opts, &r->ids, &err);
    r->out.failed |= rc == -ENOMEM;
    if (rc < 0) {
        snprintf(bad->message, sizeof(bad->message), "%.500s", err.text);
        return refuse(bad, rc == -EINVAL ? "invalid_record" : "internal_error", "text");
    }
    aq_buf_puts(&r->out, "\"ids\":");
    aq_buf_json_u32s(&r->out, r->ids.item, r->ids.count);
    r->stats->text_bytes += json_string_length(text);
    r->stats->ids += r->ids.count;
    return true;
}

static bool encode_chat(struct run *r, const json_t *record, struct bad_line *bad)
{
    const json_t *body = body_of(record), *tools = json_object_get(body, "tools");
    const json_t *kwargs = json_object_get(body, "chat_template_kwargs");
    bool continues = json_is_true(json_object_get(body, "continue_final_message"));
    const json_t *add = json_object_get(body, "add_generation_prompt");
    struct aq_chat_request chat = {
        .messages = json_is_array(record) ? record : json_object_get(body, "messages"),
        .tools = json_array_size(tools) ? tools : NULL,
        .kwargs = json_is_object(kwargs) ? kwargs : NULL,
        .add_generation_prompt = add ? json_is_true(add) : !continues,
        .continue_final_message = continues,
    };
    const char *param = "messages";
    struct aq_err err = {0};
    aq_buf_clear(&r->text);
    r->ids.count = 0;
    int rc = aq_chat_render(&r->text, r->opts->chat, &chat, &param, &err);
    const struct aq_encode_opts opts = {.parse_special = true};
    if (rc == 0)
        rc = aq_tokenizer_encode(r->t, r->state, r->text.data ? r->text.data : "", r->text.count,
                                 opts, &r->ids, &err);
    r->out.failed |= rc == -ENOMEM;
    if (rc < 0) {
        snprintf(bad->message, sizeof(bad->message), "%.500s", err.text);
        return refuse(bad, "invalid_record", param);
    }
    aq_buf_puts(&r->out, "\"text\":");
    aq_buf_json_string(&r->out, r->text.data ? r->text.data : "", r->text.count);
    aq_buf_puts(&r->out, ",\"ids\":");
    aq_buf_json_u32s(&r->out, r->ids.item, r->ids.count);
    r->stats->text_bytes += r->text.count;
    r->stats->ids += r->ids.count;
    return true;
}

static bool read_ids(struct run *r, const json_t *ids, struct bad_line *bad)
{
    size_t i;
    const json_t *id;
    if (!json_is_array(ids)) {
        snprintf(bad->message, sizeof(bad->message), "'ids': expected a list of ids, found %s",
                 ids ? "another type" : "nothing");
        return refuse(bad, "invalid_record", "ids");
    }
    r->ids.count = 0;
    if (!aq_ids_reserve(&r->ids, json_array_size(ids))) {
        r->out.failed = true;
        snprintf(bad->message, sizeof(bad->message), "no memory for %zu ids", json_array_size(ids));
        return refuse(bad, "internal_error", "ids");
    }
    json_array_foreach(ids, i, id)
    {
        if (!json_is_integer(id)) {
            snprintf(bad->message, sizeof(bad->message),
                     "'ids': expected integers, found another type at index %zu", i);
            return refuse(bad, "invalid_record", "ids");
        }
        json_int_t x = json_integer_value(id);
        if (x < 0 || x > UINT32_MAX || !aq_tokenizer_token_text(r->t, (uint32_t)x)) {
            snprintf(bad->message, sizeof(bad->message),
                     "'ids': index %zu: the tokenizer has no token with id %lld", i, (long long)x);
            return refuse(bad, "token_out_of_range", "ids");
        }
        r->ids.item[r->ids.count++] = (uint32_t)x;
    }
    return true;
}

static bool decode_record(struct run *r, const json_t *record, struct bad_line *bad)
{
    if (!read_ids(r, json_object_get(record, "ids"), bad))
        return false;
    const struct aq_tokenizer_info *info = aq_tokenizer_info(r->t);
    const uint32_t *id = r->ids.item;
    size_t begin = 0, end = r->ids.count;
    if (begin < end && info->add_bos && !r->opts->no_bos && id[0] == (uint32_t)info->bos_id)
        begin++;
    if (begin < end && info->add_eos && id[end - 1] == (uint32_t)info->eos_id)
        end--;
    aq_buf_clear(&r->text);
    if (end > begin)
        aq_tokenizer_decode(r->t, id + begin, end - begin, false, &r->text);
    aq_buf_puts(&r->out, "\"text\":");
    aq_buf_json_string(&r->out, r->text.data, r->text.count);
    r->stats->text_bytes += r->text.count;
    r->stats->ids += r->ids.count;
    return true;
}

/* Begins the result with the record's own id, if it has one. */
static bool put_id(struct run *r, const json_t *record, struct bad_line *bad)
{
    const json_t *id = json_object_get(record, "id");
    if (!id)
        id = json_object_get(record, "custom_id");
    aq_buf_puts(&r->out, "{");
    if (!id || json_is_null(id))
        return true;
    if (!json_is_string(id) && !json_is_integer(id)) {
        snprintf(bad->message, sizeof(bad->message),
                 "'id': expected a string or an integer, found another type");
        return refuse(bad, "invalid_record", "id");
    }
    aq_buf_puts(&r->out, "\"id\":");
    if (json_is_integer(id))
        aq_buf_printf(&r->out, "%lld", (long long)json_integer_value(id));
    else
        aq_buf_json_string(&r->out, json_string_value(id), json_string_length(id));
    aq_buf_puts(&r->out, ",");
    return true;
}

static void put_error(struct run *r, const struct bad_line *bad)
{
    aq_buf_puts(&r->out, "\"error\":{\"code\":");
    aq_buf_json_string(&r->out, bad->code, strlen(bad->code));
    aq_buf_puts(&r->out, ",\"message\":");
    aq_buf_json_string(&r->out, bad->message, strlen(bad->message));
    aq_buf_puts(&r->out, ",\"param\":");
    if (bad->param)
        aq_buf_json_string(&r->out, bad->param, strlen(bad->param));
    else
        aq_buf_puts(&r->out, "null");
    aq_buf_puts(&r->out, ",\"line\":");
    aq_buf_json_u64(&r->out, r->line_number);
    aq_buf_puts(&r->out, "}");
    r->stats->errors++;
}

static bool parse_line(struct run *r, const char *text, size_t bytes, json_t **ret,
                       struct bad_line *bad)
{
    struct aq_err err = {0};
    if (r->line_too_long) {
        snprintf(bad->message, sizeof(bad->message), "expected a line of at most %d bytes",
                 AQ_TOKENIZE_LINE_MAX);
        return refuse(bad, "invalid_record", NULL);
    }
    int rc = aq_json_parse(ret, text, bytes, true, &err);
    r->out.failed |= rc == -ENOMEM;
    if (rc < 0) {
        snprintf(bad->message, sizeof(bad->message), "%.500s", err.text);
        return refuse(bad, "invalid_json", NULL);
    }
    if (!json_is_object(*ret) && !(r->opts->chat && json_is_array(*ret))) {
        snprintf(bad->message, sizeof(bad->message), "expected an object, found another type");
        return refuse(bad, "invalid_record", NULL);
    }
    return true;
}

static int run_line(struct run *r, const char *text, size_t bytes, struct aq_err *reterr)
{
    json_t *record = NULL;
    struct bad_line bad = {0};
    aq_buf_clear(&r->out);
    r->stats->records++;
    bool ok = parse_line(r, text, bytes, &record, &bad);
    if (ok) {
        ok = put_id(r, record, &bad);
        size_t keep = r->out.count;
        if (ok)
            ok = r->opts->decode ? decode_record(r, record, &bad)
                 : r->opts->chat ? encode_chat(r, record, &bad)
                                 : encode_record(r, record, &bad);
        if (!ok && !r->out.failed)
            r->out.count = keep;
    } else {
        aq_buf_puts(&r->out, "{");
    }
    if (!ok)
        put_error(r, &bad);
    aq_buf_puts(&r->out, "}\n");
    json_decref(record);
    if (r->out.failed || r->text.failed)
        return aq_error_memory(reterr, "'%s' line %llu", r->opts->input_name,
                               (unsigned long long)r->line_number);
    errno = 0;
    if (fwrite(r->out.data, 1, r->out.count, r->output) != r->out.count)
        return io_error("write", r->opts->output_name, reterr);
    return 0;
}

static int run_lines(struct run *r, struct aq_err *reterr)
{
    int rc;
    while ((rc = read_line(r, reterr)) == 1) {
        if (r->opts->interrupted && r->opts->interrupted(r->opts->user))
            return aq_error(reterr, -EINTR, "interrupted at line %llu of '%s'",
                            (unsigned long long)r->line_number, r->opts->input_name);
        size_t bytes;
        const char *text = trimmed(r, &bytes);
        rc = bytes || r->line_too_long ? run_line(r, text, bytes, reterr) : 0;
        if (rc < 0)
            return rc;
    }
    return rc;
}

int aq_tokenize_stream(const struct aq_tokenizer *t, FILE *input, FILE *output,
                       const struct aq_tokenize_opts *opts, struct aq_tokenize_stats *ret,
                       struct aq_err *reterr)
{
    assert(t && input && output && opts && ret && opts->input_name && opts->output_name);
    struct run r = {.t = t, .opts = opts, .stats = ret, .input = input, .output = output};
    *ret = (struct aq_tokenize_stats){0};
    int rc = aq_tok_state_open(&r.state, t, reterr);
    if (rc == 0)
        rc = run_lines(&r, reterr);
    errno = 0;
    if (fflush(output) != 0 && rc == 0)
        rc = io_error("write", opts->output_name, reterr);
    aq_tok_state_close(r.state);
    aq_buf_close(&r.line);
    aq_buf_close(&r.text);
    aq_buf_close(&r.out);
    aq_ids_close(&r.ids);
    return rc;
}
