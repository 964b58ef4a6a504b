/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/records/result.h"

#include "base/json.h"
#include "engine/tokenizer/token_text.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- text ---- */

static void put_token_text(struct aq_buf *out, const struct aq_tokenizer *t, uint32_t id)
{
    size_t bytes;
    const char *text = aq_token_text(t, id, &bytes);
    aq_buf_put(out, text, bytes);
}

/* Generated text up to the stop string, special tokens left out. */
static void put_generated(struct aq_buf *out, const struct aq_choice *c,
                          const struct aq_tokenizer *t)
{
    const struct aq_sequence *s = &c->sequence;
    size_t begin = out->count;
    uint32_t count = s->token_count - (c->eos ? 1 : 0); /* EOS need not be marked as special */
    for (uint32_t i = 0; i < count; i++)
        put_token_text(out, t, s->tokens[i]);
    uint64_t keep = c->record->request->params.include_stop ? c->stop.end : c->stop.begin;
    if (c->stop.matched >= 0 && !out->failed && out->count - begin > keep) {
        out->count = begin + keep;
        out->data[out->count] = '\0';
    }
}

/* What a choice shows: the prompt in front with echo; what was scored. */
static void put_text(struct aq_buf *out, const struct aq_choice *c, const struct aq_tokenizer *t)
{
    const struct aq_request *r = c->record->request;
    size_t begin = out->count;
    if (r->params.echo || r->scoring)
        aq_buf_put(out, c->prompt->text.bytes, c->prompt->text.count);
    if (!r->scoring)
        put_generated(out, c, t);
    if (t)
        aq_tokenizer_repair(t, out, begin);
}

int aq_result_text(struct aq_buf *out, const struct aq_record *rec, uint32_t choice,
                   struct aq_err *reterr)
{
    assert(choice < rec->choice_count);
    put_text(out, &rec->choices[choice], rec->rules->tokenizer);
    return out->failed ? aq_error_memory(reterr, "result text") : 0;
}

static void json_text(struct aq_buf *out, const struct aq_choice *c, const struct aq_tokenizer *t)
{
    struct aq_buf text = {0};
    put_text(&text, c, t);
    aq_buf_json_string(out, text.data ? text.data : "", text.count);
    out->failed |= text.failed;
    aq_buf_close(&text);
}

/* ---- log-probabilities ---- */

/* A token as a string: its text; "bytes:\xe2\x80" where that is not UTF-8 by itself (the legacy
 * completions interface writes it so) or has a zero byte, which many readers, our own among them,
 * refuse in an object's key; and "token_id:7" where it has none. */
static void json_token(struct aq_buf *out, const struct aq_tokenizer *t, uint32_t id)
{
    size_t bytes;
    const char *text = aq_token_bytes(t, id, &bytes);
    if (!text) {
        aq_buf_printf(out, "\"token_id:%u\"", id);
    } else if (aq_utf8_invalid_at(text, bytes) == bytes && !memchr(text, '\0', bytes)) {
        aq_buf_json_string(out, text, bytes);
    } else {
        aq_buf_puts(out, "\"bytes:");
        for (size_t i = 0; i < bytes; i++)
            aq_buf_printf(out, "\\\\x%02x", (unsigned char)text[i]);
        aq_buf_puts(out, "\"");
    }
}

static bool same_token_text(const struct aq_tokenizer *t, uint32_t a, uint32_t b)
{
    size_t a_bytes, b_bytes;
    const char *a_text = aq_token_bytes(t, a, &a_bytes);
    const char *b_text = aq_token_bytes(t, b, &b_bytes);
    return a_text && b_text && a_bytes == b_bytes && !memcmp(a_text, b_text, a_bytes);
}

/* {string: lp}, best first; of ids that read the same only the best, as keys must differ. */
static void json_tops(struct aq_buf *out, const struct aq_tokenizer *t, const struct aq_top *top,
                      uint32_t count)
{
    bool first = true;
    aq_buf_puts(out, "{");
    for (uint32_t i = 0; i < count; i++) {
        bool seen = false;
        for (uint32_t k = 0; k < i && !seen; k++)
            seen = same_token_text(t, top[i].id, top[k].id);
        if (seen)
            continue;
        aq_buf_puts(out, first ? "" : ",");
        first = false;
        json_token(out, t, top[i].id);
        aq_buf_puts(out, ":");
        aq_buf_json_float(out, top[i].logprob);
    }
    aq_buf_puts(out, "}");
}

/* The tokens of a choice as the logprobs lists see them: with echo the prompt's come first; of a
 * record that scores, those that are scored, which the prompt may have part of. */
struct listing {
    const struct aq_choice *c;
    const struct aq_tokenizer *t;
    uint32_t prompt_count, count; /* of the list */
    uint32_t text_prompt;         /* how many of them are the prompt's as text */
};

static uint32_t listed_id(const struct listing *l, uint32_t i)
{
    const struct aq_sequence *s = &l->c->sequence;
    return i < l->prompt_count ? s->prompt[s->prompt_from + i] : s->tokens[i - l->prompt_count];
}

static void json_listed_logprob(struct aq_buf *out, const struct listing *l, uint32_t i)
{
    const struct aq_sequence *s = &l->c->sequence;
    if (i >= l->prompt_count)
        aq_buf_json_float(out, s->logprobs[i - l->prompt_count]);
    else if (s->prompt_from + i)
        aq_buf_json_float(out, s->prompt_logprob[i]);
    else
        aq_buf_puts(out, "null");
}

static void json_listed_tops(struct aq_buf *out, const struct listing *l, uint32_t i)
{
    const struct aq_sequence *s = &l->c->sequence;
    uint32_t stride = (uint32_t)s->top_count,
             count = (uint32_t)l->c->record->request->params.logprobs;
    if (!i && l->prompt_count && !s->prompt_from)
        aq_buf_puts(out, "null");
    else if (!count)
        aq_buf_puts(out, "{}");
    else if (i < l->prompt_count)
        json_tops(out, l->t, s->prompt_tops + (size_t)i * stride, count);
    else
        json_tops(out, l->t, s->tops + (size_t)(i - l->prompt_count) * stride, count);
}

static size_t step(const struct aq_tokenizer *t, const char *bytes, size_t count, bool *ret_valid)
{
    return t ? aq_tokenizer_step(t, bytes, count, ret_valid)
             : aq_utf8_step(bytes, count, ret_valid);
}

/* Where each token begins in the text, in characters; one that begins inside a character counts
 * from the next.  The prompt is shown as it was given, with the text of special tokens that its
 * tokens alone do not have: generated tokens begin behind all of it. */
static void json_offsets(struct aq_buf *out, const struct listing *l)
{
    struct aq_buf text = {0};
    size_t prompt_bytes = l->text_prompt ? l->c->prompt->text.count : 0, bytes = 0;
    if (prompt_bytes)
        aq_buf_put(&text, l->c->prompt->text.bytes, prompt_bytes);
    for (uint32_t i = l->text_prompt; i < l->count; i++)
        put_token_text(&text, l->t, listed_id(l, i));
    size_t begin = 0, at = 0, characters = 0;
    bool valid, begun = false; /* the text: a tokenizer may leave out a space in front of it */
    aq_buf_puts(out, "[");
    for (uint32_t i = 0; i < l->count; i++) {
        if (i == l->text_prompt || (i < l->text_prompt && begin > prompt_bytes))
            begin = prompt_bytes;
        begun = begun || i >= l->text_prompt;
        for (; at < begin && at < text.count; characters++)
            at += step(l->t, text.data + at, text.count - at, &valid);
        aq_buf_puts(out, i ? "," : "");
        aq_buf_json_u64(out, characters);
        if (l->t)
            aq_tokenizer_next_text(l->t, listed_id(l, i), true, &begun, &bytes);
        begin += bytes;
    }
    aq_buf_puts(out, "]");
    out->failed |= text.failed;
    aq_buf_close(&text);
}

static void json_list(struct aq_buf *out, const char *name, const struct listing *l,
                      void (*item)(struct aq_buf *out, const struct listing *l, uint32_t i))
{
    aq_buf_printf(out, "\"%s\":[", name);
    for (uint32_t i = 0; i < l->count; i++) {
        aq_buf_puts(out, i ? "," : "");
        item(out, l, i);
    }
    aq_buf_puts(out, "]");
}

static void json_listed_token(struct aq_buf *out, const struct listing *l, uint32_t i)
{
    json_token(out, l->t, listed_id(l, i));
}

static void json_listed_id(struct aq_buf *out, const struct listing *l, uint32_t i)
{
    aq_buf_json_u64(out, listed_id(l, i));
}

static void json_logprobs(struct aq_buf *out, const struct aq_choice *c,
                          const struct aq_tokenizer *t)
{
    const struct aq_sequence *s = &c->sequence;
    struct listing l = {.c = c, .t = t};
    l.prompt_count = s->prompt_logprobs ? s->prompt_count - s->prompt_from : 0;
    l.count = l.prompt_count + s->token_count;
    l.text_prompt = c->record->request->scoring ? 0 : l.prompt_count;
    aq_buf_puts(out, "{");
    json_list(out, "tokens", &l, json_listed_token);
    aq_buf_puts(out, ",");
    json_list(out, "token_ids", &l, json_listed_id);
    aq_buf_puts(out, ",");
    json_list(out, "token_logprobs", &l, json_listed_logprob);
    aq_buf_puts(out, ",");
    json_list(out, "top_logprobs", &l, json_listed_tops);
    aq_buf_puts(out, ",\"text_offset\":");
    json_offsets(out, &l);
    aq_buf_puts(out, "}");
}

/* ---- choices ---- */

static void json_finish(struct aq_buf *out, const struct aq_choice *c)
{
    const struct aq_sequence *s = &c->sequence;
    if (s->finish == AQ_FINISH_CALLER) {
        const struct aq_text *stop = &c->stop.strings[c->stop.matched];
        aq_buf_puts(out, "\"finish_reason\":\"stop\",\"stop_reason\":");
        aq_buf_json_string(out, stop->bytes, stop->count);
    } else if (s->finish == AQ_FINISH_STOP_ID && !c->eos) {
        aq_buf_printf(out, "\"finish_reason\":\"stop\",\"stop_reason\":%u", s->finish_id);
    } else {
        aq_buf_printf(out, "\"finish_reason\":\"%s\",\"stop_reason\":null",
                      s->finish == AQ_FINISH_STOP_ID ? "stop" : "length");
    }
}

static void json_score(struct aq_buf *out, const struct aq_choice *c)
{
    const struct aq_record *rec = c->record;
    bool rolling = rec->request->scoring == AQ_SCORING_ROLLING;
    struct aq_score s = rolling ? aq_record_score(rec) : aq_choice_score(c);
    aq_buf_puts(out, "\"loglikelihood\":");
    aq_buf_json_double(out, s.loglikelihood);
    aq_buf_printf(out, ",\"is_greedy\":%s,\"tokens\":%u", s.greedy ? "true" : "false", s.tokens);
}

/* Choices that a list of them has; the windows of a text are one. */
static uint32_t listed_choices(const struct aq_record *rec)
{
    return rec->request->scoring == AQ_SCORING_ROLLING ? 1 : rec->choice_count;
}

static bool wants_logprobs(const struct aq_choice *c)
{
    return c->record->request->params.logprobs >= 0;
}

static void json_truncated(struct aq_buf *out, const struct aq_choice *c)
{
    if (c->prompt->dropped)
        aq_buf_printf(out, ",\"truncated\":%u", c->prompt->dropped);
}

static void json_choice_logprobs(struct aq_buf *out, const struct aq_choice *c,
                                 const struct aq_tokenizer *t)
{
    if (!wants_logprobs(c))
        return;
    aq_buf_puts(out, ",\"logprobs\":");
    json_logprobs(out, c, t);
}

/* What an assistant says, in chat interfaces; end: what stands behind the content. */
static void json_message(struct aq_buf *out, const struct aq_choice *c,
                         const struct aq_tokenizer *t, const char *end)
{
    aq_buf_puts(out, "\"message\":{\"role\":\"assistant\",\"content\":");
    json_text(out, c, t);
    aq_buf_puts(out, end);
}

/* The fields a plain result and its choices share: from "text" to "stop_reason", or the score. */
static void json_plain_choice(struct aq_buf *out, const struct aq_choice *c,
                              const struct aq_tokenizer *t)
{
    if (c->record->request->scoring) {
        json_score(out, c);
        return;
    }
    aq_buf_puts(out, "\"text\":");
    json_text(out, c, t);
    if (c->record->request->chat) {
        aq_buf_puts(out, ",");
        json_message(out, c, t, "}");
    }
    aq_buf_puts(out, ",\"tokens\":");
    aq_buf_json_u32s(out, c->sequence.tokens, c->sequence.token_count);
    aq_buf_puts(out, ",");
    json_finish(out, c);
}

/* As completion interfaces have it: index, text, logprobs (null when not asked for), why it ended.
 */
static void json_completion_choice(struct aq_buf *out, const struct aq_choice *c, uint32_t index,
                                   const struct aq_tokenizer *t)
{
    aq_buf_printf(out, "{\"index\":%u,\"text\":", index);
    json_text(out, c, t);
    aq_buf_puts(out, ",\"logprobs\":");
    if (!wants_logprobs(c))
        aq_buf_puts(out, "null");
    else
        json_logprobs(out, c, t);
    aq_buf_puts(out, ",");
    json_finish(out, c);
    if (c->record->request->scoring) {
        aq_buf_puts(out, ",");
        json_score(out, c);
    }
    json_truncated(out, c);
    aq_buf_puts(out, "}");
}

/* ---- chat ---- */

/* "token", "logprob" and "bytes"; bytes that are not UTF-8 by themselves show as U+FFFD in the
 * token, and a token without text has none. */
static void json_chat_token(struct aq_buf *out, const struct aq_tokenizer *t, uint32_t id,
                            float logprob)
{
    size_t bytes;
    const char *text = aq_token_bytes(t, id, &bytes);
    aq_buf_puts(out, "\"token\":");
    if (text)
        aq_buf_json_string(out, text, bytes);
    else
        aq_buf_printf(out, "\"token_id:%u\"", id);
    aq_buf_puts(out, ",\"logprob\":");
    aq_buf_json_float(out, logprob);
    aq_buf_puts(out, text ? ",\"bytes\":[" : ",\"bytes\":null");
    for (size_t i = 0; text && i < bytes; i++)
        aq_buf_printf(out, "%s%u", i ? "," : "", (unsigned char)text[i]);
    aq_buf_puts(out, text ? "]" : "");
}

static void json_chat_logprobs(struct aq_buf *out, const struct aq_choice *c,
                               const struct aq_tokenizer *t)
{
    const struct aq_sequence *s = &c->sequence;
    uint32_t top_count = (uint32_t)s->top_count;
    aq_buf_puts(out, "{\"content\":[");
    for (uint32_t i = 0; i < s->token_count; i++) {
        aq_buf_puts(out, i ? ",{" : "{");
        json_chat_token(out, t, s->tokens[i], s->logprobs[i]);
        aq_buf_puts(out, ",\"top_logprobs\":[");
        for (uint32_t k = 0; k < top_count; k++) {
            const struct aq_top *top = &s->tops[(size_t)i * top_count + k];
            aq_buf_puts(out, k ? ",{" : "{");
            json_chat_token(out, t, top->id, top->logprob);
            aq_buf_puts(out, "}");
        }
        aq_buf_puts(out, "]}");
    }
    aq_buf_puts(out, "],\"refusal\":null}");
}

/* As chat interfaces have it. */
static void json_chat_choice(struct aq_buf *out, const struct aq_choice *c, uint32_t index,
                             const struct aq_tokenizer *t)
{
    aq_buf_printf(out, "{\"index\":%u,", index);
    json_message(out, c, t, ",\"refusal\":null},\"logprobs\":");
    if (c->sequence.top_count < 0)
        aq_buf_puts(out, "null");
    else
        json_chat_logprobs(out, c, t);
    aq_buf_puts(out, ",");
    json_finish(out, c);
    json_truncated(out, c);
    aq_buf_puts(out, "}");
}

static void json_completion_choices(struct aq_buf *out, const struct aq_record *rec,
                                    const struct aq_tokenizer *t)
{
    aq_buf_puts(out, "\"choices\":[");
    for (uint32_t i = 0; i < listed_choices(rec); i++) {
        aq_buf_puts(out, i ? "," : "");
        if (rec->request->chat)
            json_chat_choice(out, &rec->choices[i], i, t);
        else
            json_completion_choice(out, &rec->choices[i], i, t);
    }
    aq_buf_puts(out, "]");
}

static void json_usage(struct aq_buf *out, const struct aq_record *rec)
{
    uint64_t prompt = aq_record_prompt_tokens(rec), generated = aq_record_generated(rec);
    aq_buf_printf(out,
                  "\"usage\":{\"prompt_tokens\":%" PRIu64 ",\"completion_tokens\":%" PRIu64
                  ",\"total_tokens\":%" PRIu64 "}",
                  prompt, generated, prompt + generated);
}

static void json_label(struct aq_buf *out, const char *name, const char *text)
{
    if (text)
        aq_buf_printf(out, ",\"%s\":%s", name, text);
}

/* ---- results by form ---- */

/* "choices" of the plain form, which scores in harness results have, too. */
static void json_plain_choices(struct aq_buf *out, const struct aq_record *rec,
                               const struct aq_tokenizer *t)
{
    aq_buf_puts(out, "\"choices\":[");
    for (uint32_t i = 0; i < listed_choices(rec); i++) {
        const struct aq_choice *c = &rec->choices[i];
        aq_buf_printf(out, "%s{\"index\":%u,", i ? "," : "", i);
        json_plain_choice(out, c, t);
        json_choice_logprobs(out, c, t);
        json_truncated(out, c);
        aq_buf_puts(out, "}");
    }
    aq_buf_puts(out, "]");
}

static void plain_result(struct aq_buf *out, const struct aq_record *rec,
                         const struct aq_result_rules *rules)
{
    const struct aq_request *r = rec->request;
    const struct aq_choice *first = &rec->choices[0];
    aq_buf_printf(out, "{\"id\":%s,\"index\":%" PRIu64 ",\"key\":\"%016" PRIx64 "\",", r->id_json,
                  r->index, r->key);
    json_plain_choice(out, first, rules->tokenizer);
    aq_buf_puts(out, ",");
    json_usage(out, rec);
    json_choice_logprobs(out, first, rules->tokenizer);
    if (r->scoring ? r->scores_list : rec->choice_count > 1) {
        aq_buf_puts(out, ",");
        json_plain_choices(out, rec, rules->tokenizer);
    }
    json_truncated(out, first);
    json_label(out, "model", r->label_model);
    json_label(out, "user", r->label_user);
    json_label(out, "metadata", r->label_metadata);
    aq_buf_puts(out, "}");
}

/* Ids of the batch form: who and what, so that the same record gets the same ones in every run. */
static void json_batch_id(struct aq_buf *out, const char *prefix, const struct aq_request *r)
{
    aq_buf_printf(out, "\"%s%016" PRIx64 "%016" PRIx64 "\"", prefix, r->id_hash, r->key);
}

static void batch_head(struct aq_buf *out, const struct aq_request *r, int status)
{
    aq_buf_puts(out, "{\"id\":");
    json_batch_id(out, "batch_req_", r);
    aq_buf_printf(out,
                  ",\"custom_id\":%s,\"response\":{\"status_code\":%d,\"request_id\":", r->id_json,
                  status);
    json_batch_id(out, "req_", r);
    aq_buf_puts(out, ",\"body\":{");
}

static void batch_result(struct aq_buf *out, const struct aq_record *rec,
                         const struct aq_result_rules *rules)
{
    const struct aq_request *r = rec->request;
    batch_head(out, r, 200);
    aq_buf_puts(out, "\"id\":");
    json_batch_id(out, r->chat ? "chatcmpl-" : "cmpl-", r);
    aq_buf_printf(out, ",\"object\":\"%s\",\"created\":%" PRId64 ",\"model\":",
                  r->chat ? "chat.completion" : "text_completion", rules->created);
    if (r->label_model)
        aq_buf_puts(out, r->label_model);
    else
        aq_buf_json_string(out, rules->model, strlen(rules->model));
    aq_buf_puts(out, ",");
    json_completion_choices(out, rec, rules->tokenizer);
    aq_buf_puts(out, ",");
    json_usage(out, rec);
    json_label(out, "user", r->label_user);
    json_label(out, "metadata", r->label_metadata);
    aq_buf_puts(out, "}},\"error\":null}");
}

/* The frame of a harness line; what stands between head and tail is "result". */
static void harness_head(struct aq_buf *out, const struct aq_request *r)
{
    aq_buf_puts(out, "{");
    if (r->scenario)
        aq_buf_printf(out, "\"scenario\":%s,", r->scenario);
    aq_buf_printf(out, "\"request\":%s,\"result\":", r->echo_request ? r->echo_request : "null");
}

static void harness_tail(struct aq_buf *out, const struct aq_request *r)
{
    aq_buf_printf(out, ",\"index\":%" PRIu64 ",\"key\":\"%016" PRIx64 "\"}", r->index, r->key);
}

static void harness_result(struct aq_buf *out, const struct aq_record *rec,
                           const struct aq_result_rules *rules)
{
    harness_head(out, rec->request);
    aq_buf_puts(out, "{");
    if (rec->request->scoring) {
        json_score(out, &rec->choices[0]);
        aq_buf_puts(out, ",");
        json_plain_choices(out, rec, rules->tokenizer);
    } else {
        json_completion_choices(out, rec, rules->tokenizer);
    }
    aq_buf_puts(out, "}");
    harness_tail(out, rec->request);
}

/* ---- errors by form ---- */

static void json_param(struct aq_buf *out, const struct aq_record_error *e)
{
    if (e->param[0])
        aq_buf_json_string(out, e->param, strlen(e->param));
    else
        aq_buf_puts(out, "null");
}

static void json_error(struct aq_buf *out, const struct aq_request *r)
{
    const struct aq_record_error *e = &r->error;
    aq_buf_printf(out, "\"error\":{\"code\":\"%s\",\"message\":", aq_record_code_name(e->code));
    aq_buf_json_string(out, e->message, strlen(e->message));
    aq_buf_puts(out, ",\"param\":");
    json_param(out, e);
    aq_buf_printf(out, ",\"line\":%" PRIu64 "}", r->line);
}

static void batch_error(struct aq_buf *out, const struct aq_request *r)
{
    const struct aq_record_error *e = &r->error;
    bool ours = e->code == AQ_RECORD_INTERNAL_ERROR;
    batch_head(out, r, ours ? 500 : 400);
    aq_buf_puts(out, "\"error\":{\"message\":");
    aq_buf_json_string(out, e->message, strlen(e->message));
    aq_buf_printf(out,
                  ",\"type\":\"%s\",\"param\":", ours ? "server_error" : "invalid_request_error");
    json_param(out, e);
    aq_buf_printf(out, ",\"code\":\"%s\"}}},", aq_record_code_name(e->code));
    json_error(out, r);
    aq_buf_puts(out, "}");
}

int aq_result_format_error(struct aq_buf *out, const struct aq_request *r,
                           const struct aq_result_rules *rules, struct aq_err *reterr)
{
    assert(r->error.code);
    enum aq_form form = r->form ? r->form : rules->malformed;
    if (form == AQ_FORM_BATCH) {
        batch_error(out, r);
    } else if (form == AQ_FORM_HARNESS) {
        harness_head(out, r);
        aq_buf_puts(out, "null,");
        json_error(out, r);
        harness_tail(out, r);
    } else {
        aq_buf_printf(out, "{\"id\":%s,\"index\":%" PRIu64 ",\"key\":\"%016" PRIx64 "\",",
                      r->id_json, r->index, r->key);
        json_error(out, r);
        aq_buf_puts(out, "}");
    }
    if (out->failed)
        return aq_error_memory(reterr, "error record of line %" PRIu64, r->line);
    return 0;
}

int aq_result_format(struct aq_buf *out, const struct aq_record *rec,
                     const struct aq_result_rules *rules, bool *ret_error, struct aq_err *reterr)
{
    assert(aq_record_done(rec));
    struct aq_request *r = rec->request;
    for (uint32_t i = 0; i < rec->choice_count; i++)
        if (rec->choices[i].sequence.finish == AQ_FINISH_ERROR)
            aq_request_refuse(r, AQ_RECORD_INTERNAL_ERROR, "",
                              "the model's logits were not finite after %u tokens of choice %u",
                              rec->choices[i].sequence.token_count, i);
    if (ret_error)
        *ret_error = r->error.code != AQ_RECORD_OK;
    if (r->error.code)
        return aq_result_format_error(out, r, rules, reterr);
    if (r->form == AQ_FORM_BATCH)
        batch_result(out, rec, rules);
    else if (r->form == AQ_FORM_HARNESS)
        harness_result(out, rec, rules);
    else
        plain_result(out, rec, rules);
    if (out->failed)
        return aq_error_memory(reterr, "result of line %" PRIu64, r->line);
    return 0;
}
