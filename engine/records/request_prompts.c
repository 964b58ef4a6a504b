/* SPDX-License-Identifier: Apache-2.0
 * Where a record has its prompts: a field, a list, a template's fields, or messages. */
#include "engine/records/request_draft.h"

#include "base/json_text.h"

#include <math.h>
#include <string.h>

/* Any of the fields that other tools use; the first one found is offered. */
static const char *prompt_guess(const json_t *body)
{
    static const char *const guess[] = {"text",  "question",    "input",     "article", "content",
                                        "query", "instruction", "input_ids", "problem"};
    for (size_t i = 0; i < AQ_ARRAY_LEN(guess); i++)
        if (json_object_get(body, guess[i]))
            return guess[i];
    return NULL;
}

static bool refuse_missing_prompt(struct aq_request *r, const char *field, const json_t *v)
{
    const json_t *body = r->draft->body;
    if (v && !json_is_null(v))
        return aq_request_refuse(r, AQ_RECORD_INVALID_RECORD, field,
                                 "'%s': expected a string, a list of ids, a list of strings or a "
                                 "list of lists of ids, found %s",
                                 field, aq_request_type_name(v));
    const char *guess = prompt_guess(body);
    return aq_request_refuse(r, AQ_RECORD_INVALID_RECORD, field, "'%s' is missing%s%s%s", field,
                             guess ? "; --prompt-field " : "", guess ? guess : "",
                             guess ? " would read the one that is there" : "");
}

/* Numbers that the parser cannot hold go into the prompt as they stand in the record. */
static int keep_wide_numbers(struct aq_request_draft *d)
{
    for (void *at = json_object_iter(d->body); at; at = json_object_iter_next(d->body, at)) {
        struct aq_text t;
        const json_t *v = json_object_iter_value(at);
        if (!json_is_real(v) || fabs(json_real_value(v)) < 0x1p63 ||
            !aq_json_member_text(&t, d->raw, json_object_iter_key(at)))
            continue;
        if (json_object_iter_set_new(d->body, at, json_stringn(t.bytes, t.count)) < 0)
            return -ENOMEM;
    }
    return 0;
}

static bool fill_template(struct aq_request *r, int *ret_rc)
{
    struct aq_request_draft *d = r->draft;
    if (d->wide && keep_wide_numbers(d) < 0) {
        *ret_rc = -ENOMEM;
        return false;
    }
    struct aq_buf text = {0};
    const char *field;
    bool good = true;
    if (aq_template_fill(&text, d->rules->prompt_template, d->body, &field) < 0)
        good = aq_request_refuse(r, AQ_RECORD_INVALID_RECORD, field,
                                 "'%s', which the prompt template names: expected a string, number "
                                 "or boolean, found %s",
                                 field, aq_request_type_name(json_object_get(d->body, field)));
    const char *copy = good && !text.failed ? aq_request_copy(r, text.data, text.count) : NULL;
    if (good && !copy)
        *ret_rc = -ENOMEM;
    else if (good)
        d->prompts[0].text = (struct aq_text){copy, text.count};
    aq_buf_close(&text);
    return good && copy;
}

static bool read_prompt_list(struct aq_request *r, const char *field, const json_t *list)
{
    struct aq_request_draft *d = r->draft;
    for (uint32_t i = 0; i < r->prompt_count; i++) {
        const json_t *v = json_array_get(list, i);
        if (json_typeof(v) != json_typeof(json_array_get(list, 0)))
            return aq_request_refuse(r, AQ_RECORD_INVALID_RECORD, field,
                                     "'%s': expected one kind of item, found %s at 0 and %s at %u",
                                     field, aq_request_type_name(json_array_get(list, 0)),
                                     aq_request_type_name(v), i);
        if (json_is_string(v))
            d->prompts[i].text = (struct aq_text){json_string_value(v), json_string_length(v)};
        else
            d->prompts[i].ids = v;
    }
    return true;
}

bool aq_request_read_prompts(struct aq_request *r, int *ret_rc)
{
    struct aq_request_draft *d = r->draft;
    const char *field = aq_request_prompt_field(d->rules);
    const json_t *v = r->chat ? NULL : json_object_get(d->body, field);
    const json_t *first = json_is_array(v) ? json_array_get(v, 0) : NULL;
    bool list = json_is_string(first) || json_is_array(first);
    size_t count = list && !d->rules->prompt_template ? json_array_size(v) : 1;
    if (count > AQ_REQUEST_SEQUENCES_MAX)
        return aq_request_refuse(r, AQ_RECORD_INVALID_RECORD, field,
                                 "'%s': expected at most %d prompts, found %zu", field,
                                 AQ_REQUEST_SEQUENCES_MAX, count);
    r->prompt_count = (uint32_t)count;
    d->prompts = aq_request_alloc(r, count * sizeof(*d->prompts));
    if (!d->prompts) {
        *ret_rc = -ENOMEM;
        return false;
    }
    memset(d->prompts, 0, count * sizeof(*d->prompts));
    if (r->chat)
        return aq_request_read_chat(r, ret_rc);
    if (d->rules->prompt_template)
        return fill_template(r, ret_rc);
    if (json_is_string(v))
        d->prompts[0].text = (struct aq_text){json_string_value(v), json_string_length(v)};
    else if (!json_is_array(v))
        return refuse_missing_prompt(r, field, v);
    else if (list)
        return read_prompt_list(r, field, v);
    else
        d->prompts[0].ids = v;
    return true;
}
