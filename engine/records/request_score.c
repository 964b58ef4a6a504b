/* SPDX-License-Identifier: Apache-2.0
 * Records that score: how likely the model finds given continuations of a prompt, or a whole text.
 * Tokens are divided between prompt and continuation, and texts into windows, as the
 * lm-evaluation-harness does it (lm_eval/api/model.py, TemplateLM; lm_eval/utils.py,
 * get_rolling_token_windows), so that its scores can be compared. */
#include "engine/records/request_draft.h"

#include "base/characters.h"
#include "engine/tokenizer/tokenizer.h"

#include <string.h>

static bool is_given(const json_t *v)
{
    return v && !json_is_null(v);
}

static bool is_type(const json_t *body, const char *type)
{
    const char *s = json_string_value(json_object_get(body, "request_type"));
    return s && !strcmp(s, type);
}

enum aq_scoring aq_request_scoring(const struct aq_request *r)
{
    const json_t *body = r->draft->body;
    if (r->draft->rules->text_lines)
        return AQ_SCORING_NONE;
    if (is_type(body, "loglikelihood_rolling"))
        return AQ_SCORING_ROLLING;
    bool given = is_given(json_object_get(body, "continuation")) ||
                 is_given(json_object_get(body, "choices"));
    return given || is_type(body, "loglikelihood") ? AQ_SCORING_CONTINUATIONS : AQ_SCORING_NONE;
}

/* ---- reading ---- */

static bool take_prompts(struct aq_request *r, struct aq_draft_prompt **ret, size_t count,
                         int *ret_rc)
{
    *ret = aq_request_alloc(r, count * sizeof(**ret));
    if (!*ret) {
        *ret_rc = -ENOMEM;
        return false;
    }
    memset(*ret, 0, count * sizeof(**ret));
    return true;
}

/* A text, or a list of ids. */
static bool read_one(struct aq_request *r, struct aq_draft_prompt *p, const json_t *v,
                     const char *field)
{
    if (json_is_string(v))
        p->text = (struct aq_text){json_string_value(v), json_string_length(v)};
    else if (json_is_array(v))
        p->ids = v;
    else
        return aq_request_refuse(r, AQ_RECORD_INVALID_RECORD, field,
                                 "'%s': expected texts or lists of ids, found %s", field,
                                 aq_request_type_name(v));
    return true;
}

/* Continuations out of a text, a list of texts, ids, or a list of lists of ids. */
static bool read_continuations(struct aq_request *r, const json_t *v, const char *field,
                               int *ret_rc)
{
    struct aq_request_draft *d = r->draft;
    const json_t *first = json_array_get(v, 0);
    r->scores_list = json_is_array(v) && !json_is_integer(first);
    size_t count = r->scores_list ? json_array_size(v) : 1;
    if (count < 1 || count > AQ_REQUEST_SEQUENCES_MAX)
        return aq_request_refuse(r, AQ_RECORD_INVALID_RECORD, field,
                                 "'%s': expected 1 to %d continuations, found %zu", field,
                                 AQ_REQUEST_SEQUENCES_MAX, count);
    if (!take_prompts(r, &d->continuations, count, ret_rc))
        return false;
    d->continuation_count = (uint32_t)count;
    for (uint32_t i = 0; i < count; i++) {
        struct aq_draft_prompt *c = &d->continuations[i];
        if (!read_one(r, c, r->scores_list ? json_array_get(v, i) : v, field))
            return false;
        if (!c->ids == !d->prompts[0].ids)
            continue;
        return aq_request_refuse(r, AQ_RECORD_INVALID_RECORD, field,
                                 "'%s': expected %s, as the prompt is, found %s", field,
                                 c->ids ? "text" : "ids", c->ids ? "ids" : "text");
    }
    d->continuation_field = field;
    return true;
}

/* lm-eval's form: [context, continuation], or of a rolling score [text]. */
static bool read_arguments(struct aq_request *r, const json_t *arguments, int *ret_rc)
{
    static const char field[] = "arguments";
    struct aq_request_draft *d = r->draft;
    bool rolling = r->scoring == AQ_SCORING_ROLLING;
    size_t want = rolling ? 1 : 2, count = json_array_size(arguments);
    if (!json_is_array(arguments) || count != want)
        return aq_request_refuse(r, AQ_RECORD_INVALID_RECORD, field,
                                 "'%s': expected %s, found %s of %zu", field,
                                 rolling ? "a list of one text" : "a list [context, continuation]",
                                 aq_request_type_name(arguments), count);
    r->prompt_count = 1;
    d->field = field;
    if (!take_prompts(r, &d->prompts, 1, ret_rc) ||
        !read_one(r, &d->prompts[0], json_array_get(arguments, 0), field))
        return false;
    return rolling || read_continuations(r, json_array_get(arguments, 1), field, ret_rc);
}

/* A prompt as in any record, and what follows it in a field of its own. */
static bool read_fields(struct aq_request *r, int *ret_rc)
{
    const struct aq_request_draft *d = r->draft;
    const json_t *text = json_object_get(d->body, "continuation");
    const json_t *list = json_object_get(d->body, "choices");
    const char *field = is_given(text) ? "continuation" : "choices";
    if (r->scoring == AQ_SCORING_CONTINUATIONS && !is_given(text) && !is_given(list))
        return aq_request_refuse(r, AQ_RECORD_INVALID_RECORD, "arguments",
                                 "'arguments' is missing: expected a list [context, continuation]");
    if (is_given(text) && is_given(list))
        return aq_request_refuse(r, AQ_RECORD_INVALID_RECORD, "choices",
                                 "'continuation' and 'choices': expected one of them");
    if (!is_given(text) && is_given(list) && !json_is_array(list))
        return aq_request_refuse(r, AQ_RECORD_INVALID_RECORD, "choices",
                                 "'choices': expected a list of texts to score, found %s",
                                 aq_request_type_name(list));
    if (!aq_request_read_prompts(r, ret_rc))
        return false;
    const char *prompt = aq_request_prompt_field(d->rules);
    if (r->prompt_count != 1)
        return aq_request_refuse(r, AQ_RECORD_INVALID_RECORD, prompt,
                                 "'%s': expected one, as there is something to score behind it, "
                                 "found %u",
                                 prompt, r->prompt_count);
    return r->scoring == AQ_SCORING_ROLLING ||
           read_continuations(r, is_given(text) ? text : list, field, ret_rc);
}

/* What would generate has no part in scores. */
static bool fix_params(struct aq_request *r)
{
    const struct aq_request_draft *d = r->draft;
    struct aq_params *p = &r->params;
    const char *field = d->max_tokens_given ? "max_tokens" : "max_completion_tokens";
    uint32_t max_tokens = d->max_tokens_given ? p->max_tokens : d->max_completion_tokens;
    if ((d->max_tokens_given || d->max_completion_tokens_given) && max_tokens)
        return aq_request_refuse(r, AQ_RECORD_INVALID_PARAMETER, field,
                                 "'%s': %u tokens are to be generated, and given ones to be "
                                 "scored; a record does one of the two",
                                 field, max_tokens);
    bool rolling = r->scoring == AQ_SCORING_ROLLING;
    if (rolling && p->logprobs >= 0 && p->logprobs != d->rules->defaults.logprobs)
        return aq_request_refuse(r, AQ_RECORD_UNSUPPORTED_PARAMETER, "logprobs",
                                 "'logprobs' of a rolling score are not supported; leave it out");
    *p = (struct aq_params){.n = 1,
                            .top_p = 1,
                            .repetition_penalty = 1,
                            .logprobs = rolling ? -1 : p->logprobs,
                            .ignore_eos = true};
    return true;
}

bool aq_request_read_scored(struct aq_request *r, int *ret_rc)
{
    const json_t *body = r->draft->body, *arguments = json_object_get(body, "arguments");
    if (r->chat)
        return aq_request_refuse(r, AQ_RECORD_UNSUPPORTED_PARAMETER, "messages",
                                 "'messages': continuations of conversations are not scored; give "
                                 "the text as a prompt (aquifer tokenize --chat shows it)");
    bool good = is_given(arguments) && json_object_get(body, "request_type")
                    ? read_arguments(r, arguments, ret_rc)
                    : read_fields(r, ret_rc);
    return good && fix_params(r);
}

/* ---- tokens ---- */

/* The context, which tokens are scored behind. */
struct context {
    struct aq_prompt prompt;
    struct aq_text text; /* as it was given: white space at its end goes with the continuation */
    int32_t first;       /* the id in front, BOS; -1: none */
    bool empty;          /* nothing was given but white space: the prefix stands for it */
};

/* Ids of context and continuation as one text.  Tokens at the end of the context may read otherwise
 * there: those of the context alone take their place. */
static bool encode_behind(struct aq_request *r, struct aq_prompt *whole, const struct context *c,
                          struct aq_text continuation, int *ret_rc)
{
    size_t bytes = c->text.count + continuation.count;
    /* Without a tokenizer lengths are estimated, and what is scored has at least one token. */
    size_t padding = r->draft->rules->tokenizer ? 0 : r->draft->rules->token_bytes;
    char *text = aq_request_alloc(r, bytes + padding + 1);
    if (!text) {
        *ret_rc = -ENOMEM;
        return false;
    }
    memcpy(text, c->text.bytes, c->text.count);
    memcpy(text + c->text.count, continuation.bytes, continuation.count);
    struct aq_draft_prompt draft = {.text = {text, bytes + padding}};
    if (!aq_request_fill_ids(r, whole, &draft, c->first, ret_rc))
        return false;
    if (whole->count > c->prompt.count)
        memcpy(whole->ids, c->prompt.ids, c->prompt.count * sizeof(*whole->ids));
    return true;
}

static bool join_ids(struct aq_request *r, struct aq_prompt *whole, const struct context *c,
                     const struct aq_draft_prompt *continuation, int *ret_rc)
{
    struct aq_prompt behind = {0};
    if (!aq_request_fill_ids(r, &behind, continuation, -1, ret_rc))
        return false;
    whole->count = c->prompt.count + behind.count;
    whole->ids = aq_request_alloc(r, (size_t)whole->count * sizeof(*whole->ids));
    if (!whole->ids) {
        *ret_rc = -ENOMEM;
        return false;
    }
    memcpy(whole->ids, c->prompt.ids, c->prompt.count * sizeof(*whole->ids));
    memcpy(whole->ids + c->prompt.count, behind.ids, behind.count * sizeof(*whole->ids));
    return true;
}

/* Cuts the context to `keep` tokens, BOS among them where there is one; what is scored stays behind
 * it. */
static void truncate_context(struct aq_prompt *p, uint32_t keep, bool left)
{
    p->dropped = p->count - keep;
    if (left) {
        if (p->bos)
            p->ids[p->dropped] = p->ids[0];
        p->ids += p->dropped;
    } else {
        memmove(p->ids + keep, p->ids + p->count, p->scored * sizeof(*p->ids));
    }
    p->count = keep;
}

/* The last token is only scored, so there may be one more than the context. */
static bool fit_context(struct aq_request *r, struct aq_prompt *p)
{
    const struct aq_request_rules *rules = r->draft->rules;
    uint32_t most = aq_request_prompt_max(rules);
    if ((uint64_t)p->count + p->scored <= (uint64_t)rules->context + 1 && p->count <= most)
        return true;
    bool room = p->scored <= rules->context;
    bool left = rules->overlong == AQ_OVERLONG_TRUNCATE_LEFT;
    if (room && (left || rules->overlong == AQ_OVERLONG_TRUNCATE_RIGHT)) {
        most = (uint32_t)aq_min_u64(most, (uint64_t)rules->context + 1 - p->scored);
        truncate_context(p, most, left);
        return true;
    }
    return aq_request_refuse(r, AQ_RECORD_CONTEXT_LENGTH_EXCEEDED, aq_request_field(r),
                             "%s: prompt %u tokens, continuation %u, context %u",
                             p->count > most ? "the prompt exceeds the positions that the model "
                                               "knows"
                             : room          ? "prompt and continuation exceed the context"
                                             : "the continuation leaves no room for a prompt",
                             p->count, p->scored, rules->context);
}

/* In batch records, what is scored as text. */
static bool set_text(struct aq_request *r, struct aq_prompt *p, const struct aq_draft_prompt *draft,
                     const uint32_t *ids, int *ret_rc)
{
    struct aq_buf text = {0};
    if (r->form != AQ_FORM_BATCH)
        return true;
    if (!draft->ids)
        aq_buf_put(&text, draft->text.bytes, draft->text.count);
    else if (r->draft->rules->tokenizer)
        aq_tokenizer_decode(r->draft->rules->tokenizer, ids, json_array_size(draft->ids), true,
                            &text);
    p->text.count = text.count;
    p->text.bytes = text.failed ? NULL : aq_request_copy(r, text.data ? text.data : "", text.count);
    aq_buf_close(&text);
    if (!p->text.bytes)
        *ret_rc = -ENOMEM;
    return p->text.bytes != NULL;
}

/* p->count tokens are the context so far, and p->scored follow them: how many of all are prefilled,
 * and how many are fed.  The last one is predicted, and no more. */
static void divide(const struct aq_request *r, struct aq_prompt *p)
{
    const struct aq_request_rules *rules = r->draft->rules;
    bool feeds = rules->feeds && rules->feeds(rules->feeds_user, p->count, p->scored);
    p->max_tokens = feeds ? p->scored : 1;
    p->count += p->scored - p->max_tokens;
}

static bool tokenise_continuation(struct aq_request *r, struct aq_prompt *p,
                                  const struct context *c,
                                  const struct aq_draft_prompt *continuation, int *ret_rc)
{
    bool good = continuation->ids ? join_ids(r, p, c, continuation, ret_rc)
                                  : encode_behind(r, p, c, continuation->text, ret_rc);
    if (!good)
        return false;
    /* A continuation that begins with the prefix itself needs no other one. */
    if (c->empty && p->count > 1 && p->ids[1] == p->ids[0]) {
        p->ids++;
        p->count--;
    }
    if (p->count <= c->prompt.count)
        return aq_request_refuse(r, AQ_RECORD_EMPTY_CONTINUATION, aq_request_field(r),
                                 "'%s': expected at least one token to score behind the prompt, "
                                 "found none",
                                 aq_request_field(r));
    p->scored = p->count - c->prompt.count;
    p->count = c->prompt.count;
    p->bos = c->prompt.bos;
    p->bos_twice = c->prompt.bos_twice;
    if (!fit_context(r, p) || !set_text(r, p, continuation, p->ids + p->count, ret_rc))
        return false;
    divide(r, p);
    return true;
}

static bool refuse_prefix(struct aq_request *r)
{
    return aq_request_refuse(r, AQ_RECORD_EMPTY_PROMPT, aq_request_field(r),
                             "'%s': expected a text in front of what is scored: the model names no "
                             "BOS and no EOS that could stand for an empty one",
                             aq_request_field(r));
}

static bool open_context(struct aq_request *r, struct context *c, int *ret_rc)
{
    const struct aq_draft_prompt *given = &r->draft->prompts[0];
    int32_t prefix = r->draft->rules->prefix_id;
    struct aq_draft_prompt draft = *given;
    draft.text.count -= given->ids ? 0 : aq_character_space_behind(given->text);
    bool any = given->ids ? json_array_size(given->ids) : draft.text.count;
    *c = (struct context){.text = given->text, .first = prefix, .empty = !any};
    if (any) {
        c->first = aq_request_wants_bos(r, !given->ids) ? r->draft->rules->bos_id : -1;
        return aq_request_fill_ids(r, &c->prompt, &draft, c->first, ret_rc);
    }
    if (prefix < 0)
        return refuse_prefix(r);
    c->prompt = (struct aq_prompt){.ids = aq_request_alloc(r, sizeof(uint32_t)), .count = 1};
    if (!c->prompt.ids) {
        *ret_rc = -ENOMEM;
        return false;
    }
    c->prompt.ids[0] = (uint32_t)prefix;
    c->prompt.bos = prefix == r->draft->rules->bos_id;
    return true;
}

/* A window has as many tokens as the context (or fewer, by the rules) behind its first one, and the
 * next window begins with the last of them; the last window reaches back over tokens that are
 * scored already. */
static bool tokenise_rolling(struct aq_request *r, int *ret_rc)
{
    uint32_t width = aq_request_prompt_max(r->draft->rules), most = r->draft->rules->window_max;
    width = most && most < width ? most : width;
    struct aq_prompt all = {0};
    if (r->draft->rules->prefix_id < 0)
        return refuse_prefix(r);
    if (!aq_request_fill_ids(r, &all, &r->draft->prompts[0], r->draft->rules->prefix_id, ret_rc))
        return false;
    uint64_t scored = all.count - 1, count = aq_div_up(scored, width);
    if (!scored)
        return aq_request_refuse(r, AQ_RECORD_EMPTY_PROMPT, aq_request_field(r),
                                 "'%s': expected at least one token to score, found none",
                                 aq_request_field(r));
    if (count > AQ_REQUEST_SEQUENCES_MAX)
        return aq_request_refuse(r, AQ_RECORD_CONTEXT_LENGTH_EXCEEDED, aq_request_field(r),
                                 "'%s': expected at most %d windows of %u tokens, "
                                 "found %u tokens",
                                 aq_request_field(r), AQ_REQUEST_SEQUENCES_MAX, width,
                                 all.count - 1);
    r->prompts = aq_request_alloc(r, count * sizeof(*r->prompts));
    if (!r->prompts) {
        *ret_rc = -ENOMEM;
        return false;
    }
    r->prompt_count = (uint32_t)count;
    for (uint64_t i = 0; i < count; i++) {
        uint64_t begin = i * width, end = aq_min_u64(begin + width, scored);
        uint64_t from = i ? end - width : 0; /* in all.ids, where token t is at t + 1 */
        struct aq_prompt *p = &r->prompts[i];
        *p = (struct aq_prompt){.ids = all.ids + from,
                                .count = (uint32_t)(begin + 1 - from),
                                .scored = (uint32_t)(end - begin),
                                .estimated = all.estimated,
                                .bos = !i && all.bos};
        divide(r, p);
    }
    return set_text(r, &r->prompts[0], &r->draft->prompts[0], all.ids + 1, ret_rc);
}

bool aq_request_tokenise_scored(struct aq_request *r, int *ret_rc)
{
    struct aq_request_draft *d = r->draft;
    struct context c;
    if (r->scoring == AQ_SCORING_ROLLING)
        return tokenise_rolling(r, ret_rc);
    if (!open_context(r, &c, ret_rc))
        return false;
    d->field = d->continuation_field;
    r->prompts = aq_request_alloc(r, d->continuation_count * sizeof(*r->prompts));
    if (!r->prompts) {
        *ret_rc = -ENOMEM;
        return false;
    }
    memset(r->prompts, 0, d->continuation_count * sizeof(*r->prompts));
    r->prompt_count = d->continuation_count;
    for (uint32_t i = 0; i < d->continuation_count; i++)
        if (!tokenise_continuation(r, &r->prompts[i], &c, &d->continuations[i], ret_rc))
            return false;
    return true;
}
