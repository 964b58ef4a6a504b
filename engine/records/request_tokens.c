/* SPDX-License-Identifier: Apache-2.0
 * From text or given ids to the ids the engine gets: BOS, bounds, and prompts that are too long. */
#include "engine/records/request_draft.h"

#include "engine/tokenizer/tokenizer.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

const char *aq_request_field(const struct aq_request *r)
{
    const struct aq_request_rules *rules = r->draft->rules;
    if (r->draft->field)
        return r->draft->field;
    if (r->chat)
        return "messages";
    return rules->prompt_template ? "prompt" : aq_request_prompt_field(rules);
}

bool aq_request_wants_bos(const struct aq_request *r, bool text)
{
    const struct aq_request_rules *rules = r->draft->rules;
    if (r->chat) /* a chat template writes its own */
        return false;
    if (rules->bos_id < 0 || rules->bos == AQ_BOS_NEVER)
        return false;
    if (rules->bos == AQ_BOS_ALWAYS)
        return true;
    return text && r->form != AQ_FORM_HARNESS && rules->adds_bos;
}

/* Ids for `count` tokens and one BOS in front, which is left free. */
static uint32_t *take_ids(struct aq_request *r, uint64_t count, int *ret_rc)
{
    uint32_t *ids = count < UINT32_MAX - 1 ? aq_request_alloc(r, (count + 1) * sizeof(*ids)) : NULL;
    if (!ids)
        *ret_rc = -ENOMEM;
    return ids;
}

/* Ids that stand for those of a text, where only their number is wanted. */
static bool estimate_text(struct aq_request *r, uint32_t **ret, uint64_t *ret_count,
                          struct aq_text text, int *ret_rc)
{
    *ret_count = aq_div_up(text.count, r->draft->rules->token_bytes);
    *ret = take_ids(r, *ret_count, ret_rc);
    if (*ret)
        memset(*ret, 0, (*ret_count + 1) * sizeof(**ret));
    return *ret != NULL;
}

/* A tokenizer may have tokens that were added behind the model's last one. */
static bool check_encoded(struct aq_request *r, const struct aq_ids *ids)
{
    const struct aq_request_rules *rules = r->draft->rules;
    for (size_t i = 0; i < ids->count; i++) {
        if (ids->item[i] < rules->vocab)
            continue;
        const char *token = aq_tokenizer_token_text(rules->tokenizer, ids->item[i]);
        char q[64];
        return aq_request_refuse(r, AQ_RECORD_TOKEN_OUT_OF_RANGE, aq_request_field(r),
                                 "'%s': the text has '%s', token %u of the tokenizer; the model's "
                                 "end at %u",
                                 aq_request_field(r), aq_quote(q, sizeof(q), token, strlen(token)),
                                 ids->item[i], rules->vocab - 1);
    }
    return true;
}

static bool encode_text(struct aq_request *r, uint32_t **ret, uint64_t *ret_count,
                        struct aq_text text, int *ret_rc)
{
    const struct aq_request_rules *rules = r->draft->rules;
    if (!rules->tokenizer && rules->token_bytes)
        return estimate_text(r, ret, ret_count, text, ret_rc);
    if (!rules->tokenizer)
        return aq_request_refuse(r, AQ_RECORD_INVALID_RECORD, aq_request_field(r),
                                 "'%s': expected token ids: the model has no tokenizer files",
                                 aq_request_field(r));
    struct aq_ids ids = {0};
    struct aq_err err;
    struct aq_encode_opts opts = {.parse_special = true};
    int rc = aq_tokenizer_encode(rules->tokenizer, rules->tok_state, text.bytes, text.count, opts,
                                 &ids, &err);
    if (rc == 0 && !check_encoded(r, &ids)) {
        aq_ids_close(&ids);
        return false;
    }
    if (rc == 0) {
        *ret_count = ids.count;
        *ret = take_ids(r, ids.count, ret_rc);
        if (*ret && ids.count)
            memcpy(*ret + 1, ids.item, ids.count * sizeof(uint32_t));
    } else if (rc == -ENOMEM) {
        *ret_rc = rc;
    } else {
        aq_request_refuse(r, AQ_RECORD_INVALID_RECORD, aq_request_field(r), "'%s': %s",
                          aq_request_field(r), err.text);
    }
    aq_ids_close(&ids);
    return rc == 0 && *ret;
}

static bool read_ids(struct aq_request *r, uint32_t **ret, uint64_t *ret_count, const json_t *list,
                     int *ret_rc)
{
    const char *field = aq_request_field(r);
    uint32_t vocab = r->draft->rules->vocab;
    *ret_count = json_array_size(list);
    *ret = take_ids(r, *ret_count, ret_rc);
    for (size_t i = 0; *ret && i < *ret_count; i++) {
        const json_t *v = json_array_get(list, i);
        json_int_t id = json_integer_value(v);
        if (!json_is_integer(v))
            return aq_request_refuse(r, AQ_RECORD_INVALID_RECORD, field,
                                     "'%s': expected token ids, found something else at %zu", field,
                                     i);
        if (id < 0 || id >= (json_int_t)vocab)
            return aq_request_refuse(r, AQ_RECORD_TOKEN_OUT_OF_RANGE, field,
                                     "'%s': expected ids from 0 to %u, found %lld at %zu", field,
                                     vocab - 1, (long long)id, i);
        (*ret)[i + 1] = (uint32_t)id;
    }
    return *ret != NULL;
}

static bool refuse_length(struct aq_request *r, const struct aq_prompt *p, const char *why)
{
    return aq_request_refuse(r, AQ_RECORD_CONTEXT_LENGTH_EXCEEDED, aq_request_field(r),
                             "%s: prompt %u tokens, max_tokens %u, context %u", why, p->count,
                             p->max_tokens, r->draft->rules->context);
}

/* Cuts the prompt to `keep` tokens, BOS among them where there is one. */
static void truncate(struct aq_prompt *p, uint32_t keep, bool left)
{
    uint32_t bos = p->bos;
    p->dropped = p->count - keep;
    if (left)
        memmove(p->ids + bos, p->ids + bos + p->dropped, (keep - bos) * sizeof(*p->ids));
    p->count = keep;
}

static bool fit_context(struct aq_request *r, struct aq_prompt *p)
{
    uint32_t context = r->draft->rules->context, most = aq_request_prompt_max(r->draft->rules);
    if ((uint64_t)p->count + p->max_tokens <= context && p->count <= most)
        return true;
    switch (r->draft->rules->overlong) {
    case AQ_OVERLONG_TRUNCATE_LEFT:
    case AQ_OVERLONG_TRUNCATE_RIGHT:
        if ((uint64_t)p->max_tokens + p->bos + 1 > context)
            return refuse_length(r, p, "max_tokens leaves no room for the prompt");
        most = (uint32_t)aq_min_u64(most, context - p->max_tokens);
        truncate(p, most, r->draft->rules->overlong == AQ_OVERLONG_TRUNCATE_LEFT);
        return true;
    case AQ_OVERLONG_CLIP:
        if (p->count >= context)
            return refuse_length(r, p, "the prompt leaves no room");
        if (p->count > most)
            break;
        p->max_tokens = context - p->count;
        return true;
    default: break;
    }
    if (p->count > most && p->count < context)
        return aq_request_refuse(
            r, AQ_RECORD_CONTEXT_LENGTH_EXCEEDED, aq_request_field(r),
            "the prompt exceeds the positions that the model knows, behind "
            "which the context has room for new tokens alone: prompt %u tokens, positions "
            "%u, context %u",
            p->count, most, context);
    return refuse_length(r, p,
                         p->count >= context ? "the prompt leaves no room"
                                             : "prompt and max_tokens exceed the context");
}

/* With echo: the text as given, or what the ids that are left stand for. */
static bool set_echo_text(struct aq_request *r, struct aq_prompt *p,
                          const struct aq_draft_prompt *draft, int *ret_rc)
{
    if (!r->params.echo)
        return true;
    struct aq_buf text = {0};
    if (!draft->ids && !p->dropped)
        aq_buf_put(&text, draft->text.bytes, draft->text.count);
    else if (r->draft->rules->tokenizer)
        aq_tokenizer_decode(r->draft->rules->tokenizer, p->ids, p->count, true, &text);
    p->text.count = text.count;
    p->text.bytes = text.failed ? NULL : aq_request_copy(r, text.data ? text.data : "", text.count);
    aq_buf_close(&text);
    if (!p->text.bytes)
        *ret_rc = -ENOMEM;
    return p->text.bytes != NULL;
}

bool aq_request_fill_ids(struct aq_request *r, struct aq_prompt *p,
                         const struct aq_draft_prompt *draft, int32_t first, int *ret_rc)
{
    uint32_t *ids;
    uint64_t count;
    bool good = draft->ids ? read_ids(r, &ids, &count, draft->ids, ret_rc)
                           : encode_text(r, &ids, &count, draft->text, ret_rc);
    if (!good)
        return false;
    int32_t bos_id = r->draft->rules->bos_id;
    bool add = first >= 0;
    if (add && draft->ids && count && ids[1] == (uint32_t)first)
        add = false; /* given ids that bring their own */
    if (add)
        ids[0] = (uint32_t)first;
    p->bos_twice = add && count && ids[1] == (uint32_t)first;
    p->ids = ids + !add;
    p->count = (uint32_t)count + add;
    p->estimated = !draft->ids && !r->draft->rules->tokenizer;
    p->bos = p->count && bos_id >= 0 && p->ids[0] == (uint32_t)bos_id;
    return true;
}

static bool tokenise_prompt(struct aq_request *r, struct aq_prompt *p,
                            const struct aq_draft_prompt *draft, int *ret_rc)
{
    int32_t first = aq_request_wants_bos(r, !draft->ids) ? r->draft->rules->bos_id : -1;
    if (!draft->ids && !draft->text.count)
        return aq_request_refuse(r, AQ_RECORD_EMPTY_PROMPT, aq_request_field(r),
                                 "'%s': expected text, found an empty string (to start from BOS "
                                 "alone, give its id in a list)",
                                 aq_request_field(r));
    if (!aq_request_fill_ids(r, p, draft, first, ret_rc))
        return false;
    p->max_tokens = r->params.max_tokens;
    bool empty = draft->ids ? !json_array_size(draft->ids) : p->count == (first >= 0);
    if (empty)
        return aq_request_refuse(r, AQ_RECORD_EMPTY_PROMPT, aq_request_field(r),
                                 "'%s': expected at least one token, found none",
                                 aq_request_field(r));
    return fit_context(r, p) && set_echo_text(r, p, draft, ret_rc);
}

bool aq_request_tokenise(struct aq_request *r, int *ret_rc)
{
    r->prompts = aq_request_alloc(r, r->prompt_count * sizeof(*r->prompts));
    if (!r->prompts) {
        *ret_rc = -ENOMEM;
        return false;
    }
    memset(r->prompts, 0, r->prompt_count * sizeof(*r->prompts));
    for (uint32_t i = 0; i < r->prompt_count; i++)
        if (!tokenise_prompt(r, &r->prompts[i], &r->draft->prompts[i], ret_rc))
            return false;
    return true;
}
