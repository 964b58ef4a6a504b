/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/records/request.h"

#include "base/json.h"
#include "base/json_text.h"
#include "engine/records/request_draft.h"

#include <assert.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* ---- names ---- */

int aq_request_check_invalid(const struct aq_records_read *read, bool allow, struct aq_err *reterr)
{
    if (allow || read->invalid <= read->count - read->invalid)
        return 0;
    return aq_error(reterr, -EINVAL,
                    "%" PRIu64 " of %" PRIu64 " records are invalid, more than half; "
                    "--allow-errors runs the others.  Line %" PRIu64 ": %s: %s",
                    read->invalid, read->count, read->line, aq_record_code_name(read->code),
                    read->message);
}

const char *aq_record_code_name(enum aq_record_code code)
{
    static const char *const name[AQ_RECORD_CODE_COUNT] = {
        [AQ_RECORD_OK] = "ok",
        [AQ_RECORD_INVALID_JSON] = "invalid_json",
        [AQ_RECORD_INVALID_RECORD] = "invalid_record",
        [AQ_RECORD_INVALID_PARAMETER] = "invalid_parameter",
        [AQ_RECORD_UNSUPPORTED_PARAMETER] = "unsupported_parameter",
        [AQ_RECORD_UNSUPPORTED_ENDPOINT] = "unsupported_endpoint",
        [AQ_RECORD_CONTEXT_LENGTH_EXCEEDED] = "context_length_exceeded",
        [AQ_RECORD_EMPTY_PROMPT] = "empty_prompt",
        [AQ_RECORD_EMPTY_CONTINUATION] = "empty_continuation",
        [AQ_RECORD_TOKEN_OUT_OF_RANGE] = "token_out_of_range",
        [AQ_RECORD_INTERNAL_ERROR] = "internal_error",
    };
    assert(code < AQ_RECORD_CODE_COUNT);
    return name[code];
}

const char *aq_form_name(enum aq_form form)
{
    static const char *const name[AQ_FORM_COUNT] = {
        [AQ_FORM_NONE] = "malformed",
        [AQ_FORM_PLAIN] = "plain",
        [AQ_FORM_BATCH] = "batch",
        [AQ_FORM_HARNESS] = "harness",
    };
    assert(form < AQ_FORM_COUNT);
    return name[form];
}

/* ---- text of members ---- */

/* Copies a member as it stands in the text; a name written with escapes is dumped instead. */
static int copy_member(const char **ret, struct aq_request *r, struct aq_text object,
                       const json_t *parsed, const char *name)
{
    const json_t *v = json_object_get(parsed, name);
    if (!v || json_is_null(v))
        return 0;
    struct aq_text text;
    char *dump = NULL;
    if (!aq_json_member_text(&text, object, name)) {
        dump = aq_json_dump(v, JSON_ENCODE_ANY | JSON_COMPACT);
        if (!dump)
            return -ENOMEM;
        text = (struct aq_text){dump, strlen(dump)};
    }
    *ret = aq_request_copy(r, text.bytes, text.count);
    free(dump);
    return *ret ? 0 : -ENOMEM;
}

/* ---- who and which form ---- */

static enum aq_form form_of(const json_t *root)
{
    if (json_object_get(root, "custom_id") ||
        (json_object_get(root, "url") && json_object_get(root, "body")))
        return AQ_FORM_BATCH;
    if (json_object_get(root, "request_type") || json_is_object(json_object_get(root, "request")))
        return AQ_FORM_HARNESS;
    return AQ_FORM_PLAIN;
}

/* Sets id_text, id_json and id_hash; v NULL stands for the index, a real for these digits. */
static int set_id(struct aq_request *r, const json_t *v, struct aq_text digits)
{
    struct aq_buf text = {0}, json = {0};
    if (json_is_string(v)) {
        aq_buf_put(&text, json_string_value(v), json_string_length(v));
        aq_buf_json_string(&json, json_string_value(v), json_string_length(v));
    } else if (json_is_integer(v)) {
        aq_buf_printf(&text, "%" JSON_INTEGER_FORMAT, json_integer_value(v));
        aq_buf_put(&json, text.data, text.count);
    } else if (v) {
        aq_buf_put(&text, digits.bytes, digits.count);
        aq_buf_put(&json, digits.bytes, digits.count);
    } else {
        aq_buf_json_u64(&text, r->index);
        aq_buf_put(&json, text.data, text.count);
    }
    int rc = -ENOMEM;
    if (!text.failed && !json.failed) {
        r->id_text.count = text.count;
        r->id_text.bytes = aq_request_copy(r, text.data, text.count);
        r->id_json = aq_request_copy(r, json.data, json.count);
        rc = r->id_text.bytes && r->id_json ? 0 : -ENOMEM;
    }
    aq_buf_close(&text);
    aq_buf_close(&json);
    if (!rc)
        r->id_hash = XXH3_64bits(r->id_text.bytes, r->id_text.count);
    r->has_id = true;
    return rc;
}

/* An integer of the line beyond 64 bits: its digits, as the parser has a real for it. */
static bool is_wide_integer(struct aq_text *ret, const struct aq_request *r, const char *field,
                            const json_t *v)
{
    const struct aq_line *line = r->draft->line;
    return json_is_real(v) && r->draft->wide &&
           aq_json_member_integer(ret, (struct aq_text){line->text, line->bytes}, field);
}

/* A record whose id cannot be used is known by its index; one of the batch form, whose readers
 * would take that for the id, by its line. */
static int read_id(struct aq_request *r)
{
    static const char *const name[AQ_FORM_COUNT] = {
        [AQ_FORM_PLAIN] = "id", [AQ_FORM_BATCH] = "custom_id", [AQ_FORM_HARNESS] = "id"};
    const char *field = name[r->form];
    const json_t *id = json_object_get(r->draft->root, field);
    struct aq_text digits = {0};
    if (r->form == AQ_FORM_HARNESS || (r->form == AQ_FORM_PLAIN && json_is_null(id)))
        return set_id(r, NULL, digits); /* a harness finds its results by the request itself */
    bool integer = json_is_integer(id) || is_wide_integer(&digits, r, field, id);
    bool good = json_is_string(id) || (r->form == AQ_FORM_PLAIN && (!id || integer));
    if (!good)
        aq_request_refuse(r, AQ_RECORD_INVALID_RECORD, field, "'%s': expected %s, found %s", field,
                          r->form == AQ_FORM_PLAIN ? "a string or an integer" : "a string",
                          aq_request_type_name(id));
    int rc = set_id(r, good ? id : NULL, digits);
    if (rc < 0 || good || r->form != AQ_FORM_BATCH)
        return rc;
    r->id_json = "null";
    r->has_id = false;
    return 0;
}

static bool read_batch_frame(struct aq_request *r)
{
    struct aq_request_draft *d = r->draft;
    const json_t *method = json_object_get(d->root, "method");
    const json_t *url = json_object_get(d->root, "url");
    d->body = json_object_get(d->root, "body");
    if (!json_is_string(method) || strcmp(json_string_value(method), "POST"))
        return aq_request_refuse(
            r, AQ_RECORD_INVALID_RECORD, "method", "'method': expected \"POST\", found %s",
            json_is_string(method) ? json_string_value(method) : aq_request_type_name(method));
    if (!json_is_string(url))
        return aq_request_refuse(r, AQ_RECORD_INVALID_RECORD, "url",
                                 "'url': expected \"/v1/completions\" or "
                                 "\"/v1/chat/completions\", found %s",
                                 aq_request_type_name(url));
    r->chat = !strcmp(json_string_value(url), "/v1/chat/completions");
    if (!r->chat && strcmp(json_string_value(url), "/v1/completions") != 0)
        return aq_request_refuse(r, AQ_RECORD_UNSUPPORTED_ENDPOINT, "url",
                                 "'url': expected \"/v1/completions\" or "
                                 "\"/v1/chat/completions\", found \"%.80s\"",
                                 json_string_value(url));
    if (!json_is_object(d->body))
        return aq_request_refuse(r, AQ_RECORD_INVALID_RECORD, "body",
                                 "'body': expected an object, found %s",
                                 aq_request_type_name(d->body));
    return true;
}

/* Finds the body and its text; the line itself where the form has no frame around it. */
static bool read_frame(struct aq_request *r)
{
    struct aq_request_draft *d = r->draft;
    struct aq_text line = {d->line->text, d->line->bytes};
    d->body = d->root;
    d->raw = line;
    const char *member = NULL;
    if (r->form == AQ_FORM_BATCH) {
        if (!read_batch_frame(r))
            return false;
        member = "body";
    } else if (r->form == AQ_FORM_HARNESS && !json_object_get(d->root, "request_type")) {
        d->body = json_object_get(d->root, "request");
        member = "request";
    }
    r->chat = r->chat || aq_request_has_messages(r);
    if (member && !aq_json_member_text(&d->raw, line, member))
        return aq_request_refuse(r, AQ_RECORD_INVALID_RECORD, member,
                                 "'%s': expected the name without escapes", member);
    return true;
}

static int copy_labels(struct aq_request *r)
{
    struct aq_request_draft *d = r->draft;
    int rc = 0;
    if (r->form == AQ_FORM_HARNESS) {
        r->echo_request = aq_request_copy(r, d->raw.bytes, d->raw.count);
        rc = r->echo_request ? 0 : -ENOMEM;
        if (!rc && d->body != d->root)
            rc = copy_member(&r->scenario, r, (struct aq_text){d->line->text, d->line->bytes},
                             d->root, "scenario");
        return rc;
    }
    rc = copy_member(&r->label_model, r, d->raw, d->body, "model");
    if (!rc)
        rc = copy_member(&r->label_user, r, d->raw, d->body, "user");
    if (!rc)
        rc = copy_member(&r->label_metadata, r, d->raw, d->body, "metadata");
    return rc;
}

/* ---- the canonical request ---- */

static void canonical_prompts(struct aq_buf *b, const struct aq_draft_prompt *prompts,
                              uint32_t count)
{
    aq_buf_puts(b, "[");
    for (uint32_t i = 0; i < count; i++) {
        const struct aq_draft_prompt *p = &prompts[i];
        if (i)
            aq_buf_puts(b, ",");
        if (!p->ids) {
            aq_buf_json_string(b, p->text.bytes, p->text.count);
            continue;
        }
        aq_buf_puts(b, "[");
        for (size_t k = 0; k < json_array_size(p->ids); k++) {
            const json_t *id = json_array_get(p->ids, k);
            aq_buf_puts(b, k ? "," : "");
            if (json_is_integer(id) && json_integer_value(id) >= 0)
                aq_buf_json_u64(b, (uint64_t)json_integer_value(id));
        }
        aq_buf_puts(b, "]");
    }
    aq_buf_puts(b, "]");
}

static void canonical_real(struct aq_buf *b, const char *name, float x)
{
    aq_buf_printf(b, ",\"%s\":", name);
    aq_buf_json_float(b, x);
}

/* What decides scores. */
static void canonical_scored(struct aq_buf *b, const struct aq_request *r)
{
    const struct aq_request_draft *d = r->draft;
    aq_buf_puts(b, "{\"prompt\":");
    canonical_prompts(b, d->prompts, 1);
    aq_buf_puts(b, ",\"continuation\":");
    canonical_prompts(b, d->continuations, d->continuation_count);
    aq_buf_printf(b, ",\"rolling\":%d,\"list\":%d,\"logprobs\":%d}",
                  r->scoring == AQ_SCORING_ROLLING, r->scores_list, r->params.logprobs);
}

/* Prompt and effective parameters as one JSON object in a fixed order: what decides the result, and
 * nothing else of the record. */
static void canonical_request(struct aq_buf *b, const struct aq_request *r)
{
    const struct aq_params *p = &r->params;
    if (r->scoring) {
        canonical_scored(b, r);
        return;
    }
    aq_buf_puts(b, "{\"prompt\":");
    canonical_prompts(b, r->draft->prompts, r->prompt_count);
    aq_buf_printf(b, ",\"max_tokens\":%u,\"min_tokens\":%u,\"n\":%u,\"top_k\":%u", p->max_tokens,
                  p->min_tokens, p->n, p->top_k);
    canonical_real(b, "temperature", p->temperature);
    canonical_real(b, "top_p", p->top_p);
    canonical_real(b, "min_p", p->min_p);
    canonical_real(b, "repetition_penalty", p->repetition_penalty);
    canonical_real(b, "presence_penalty", p->presence_penalty);
    canonical_real(b, "frequency_penalty", p->frequency_penalty);
    aq_buf_printf(b, ",\"seed\":%lld,\"logprobs\":%d,\"echo\":%d,\"ignore_eos\":%d",
                  (long long)p->seed, p->logprobs, p->echo, p->ignore_eos);
    aq_buf_printf(b, ",\"include_stop_str_in_output\":%d,\"stop\":[", p->include_stop);
    for (uint32_t i = 0; i < p->stop_count; i++) {
        aq_buf_puts(b, i ? "," : "");
        aq_buf_json_string(b, p->stop[i].bytes, p->stop[i].count);
    }
    aq_buf_puts(b, "],\"stop_token_ids\":");
    aq_buf_json_u32s(b, p->stop_ids, p->stop_id_count);
    aq_buf_puts(b, r->chat ? ",\"chat\":1}" : "}");
}

static int set_key(struct aq_request *r)
{
    struct aq_buf b = {0};
    canonical_request(&b, r);
    if (!b.failed)
        r->key = XXH3_64bits(b.data, b.count);
    int rc = b.failed ? -ENOMEM : 0;
    aq_buf_close(&b);
    return rc;
}

/* ---- one line ---- */

static int parse_line(struct aq_request *r)
{
    struct aq_request_draft *d = r->draft;
    const struct aq_line *line = d->line;
    if (line->too_long) {
        aq_request_refuse(r, AQ_RECORD_INVALID_RECORD, "",
                          "expected a line of at most %d MiB, found a longer one",
                          AQ_LINE_BYTES_MAX >> 20);
        return 0;
    }
    if (d->rules->text_lines) {
        size_t bad = aq_utf8_invalid_at(line->text, line->bytes);
        if (bad < line->bytes) {
            aq_request_refuse(r, AQ_RECORD_INVALID_RECORD, "prompt",
                              "byte %zu of the line is not UTF-8", bad);
            return 0;
        }
        d->root = json_pack("{s:s%}", "prompt", line->text, line->bytes);
        r->form = AQ_FORM_PLAIN;
        return d->root ? 0 : -ENOMEM;
    }
    if (aq_json_text_is_deep((struct aq_text){line->text, line->bytes}, AQ_LINE_DEPTH_MAX)) {
        aq_request_refuse(r, AQ_RECORD_INVALID_RECORD, "",
                          "expected at most %d brackets in one another, found more",
                          AQ_LINE_DEPTH_MAX);
        return 0;
    }
    struct aq_err err;
    int rc = aq_json_parse_wide(&d->root, &d->wide, line->text, line->bytes, true, &err);
    if (rc == -ENOMEM)
        return rc;
    if (rc < 0) {
        const char *why = err.text; /* its own line is always 1; ours is in the error record */
        why += strncmp(why, "line 1 ", 7) ? 0 : 7;
        aq_request_refuse(r, AQ_RECORD_INVALID_JSON, "", "not valid JSON: %.480s", why);
        return 0;
    }
    if (!json_is_object(d->root)) {
        aq_request_refuse(r, AQ_RECORD_INVALID_RECORD, "", "expected a JSON object, found %s%s",
                          aq_request_type_name(d->root),
                          json_is_array(d->root) ? " (jq -c '.[]' makes lines of its items)" : "");
        return 0;
    }
    r->form = form_of(d->root);
    return 0;
}

static int open_steps(struct aq_request *r)
{
    int rc = parse_line(r);
    if (rc < 0)
        return rc;
    if (!r->form) { /* nobody knows whose line it is */
        r->id_json = "null";
        return 0;
    }
    rc = read_id(r);
    if (rc < 0)
        return rc;
    bool framed = read_frame(r);
    if (!framed && r->form == AQ_FORM_HARNESS)
        return 0;
    rc = framed && !r->draft->rules->text_lines ? copy_labels(r) : 0;
    if (rc < 0 || r->error.code)
        return rc;
    r->scoring = aq_request_scoring(r);
    bool good = aq_request_read_fields(r, &rc) &&
                (r->scoring ? aq_request_read_scored(r, &rc)
                            : aq_request_read_prompts(r, &rc) && aq_request_check_params(r));
    if (!good)
        return rc;
    rc = set_key(r);
    if (!rc && r->scoring)
        aq_request_tokenise_scored(r, &rc);
    else if (!rc)
        aq_request_tokenise(r, &rc);
    return rc;
}

int aq_request_open(struct aq_request **ret, const struct aq_request_rules *rules,
                    const struct aq_line *line, struct aq_err *reterr)
{
    assert(ret && rules && line);
    struct aq_request *r = calloc(1, sizeof(*r));
    struct aq_request_draft *d = calloc(1, sizeof(*d));
    if (!r || !d) {
        free(r);
        free(d);
        return aq_error_memory(reterr, "line %llu", (unsigned long long)line->number);
    }
    *r = (struct aq_request){.index = line->index,
                             .line = line->number,
                             .key = line->hash,
                             .params = rules->defaults,
                             .draft = d};
    d->rules = rules;
    d->line = line;
    int rc = open_steps(r);
    rc = rc == 0 && d->no_memory ? -ENOMEM : rc;
    aq_request_draft_close(r);
    if (rc < 0) {
        aq_request_close(r);
        return aq_error_memory(reterr, "line %llu", (unsigned long long)line->number);
    }
    *ret = r;
    return 0;
}
