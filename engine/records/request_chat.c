/* SPDX-License-Identifier: Apache-2.0
 * Records that are conversations: their messages become one prompt by the model's chat template. */
#include "engine/records/request_draft.h"

#include "engine/chat/chat.h"

#include <math.h>
#include <string.h>

static bool is_given(const json_t *v)
{
    return v && !json_is_null(v);
}

/* A plain record is one where it has messages and is not told to find its prompt elsewhere. */
bool aq_request_has_messages(const struct aq_request *r)
{
    const struct aq_request_rules *rules = r->draft->rules;
    if (r->form != AQ_FORM_PLAIN || rules->text_lines || rules->prompt_template ||
        !is_given(json_object_get(r->draft->body, "messages")))
        return false;
    const char *field = aq_request_prompt_field(rules);
    bool prompt = is_given(json_object_get(r->draft->body, field));
    return !prompt || json_array_size(json_object_get(r->draft->body, "messages")) > 0;
}

/* ---- fields ---- */

static bool read_flag(struct aq_request *r, const char *name, bool *ret)
{
    const json_t *v = json_object_get(r->draft->body, name);
    if (is_given(v) && !json_is_boolean(v))
        return aq_request_refuse(r, AQ_RECORD_INVALID_PARAMETER, name,
                                 "'%s': expected true or false", name);
    if (is_given(v))
        *ret = json_is_true(v);
    return true;
}

/* "logprobs": true, and "top_logprobs" beside it. */
static bool read_logprobs(struct aq_request *r)
{
    const json_t *top = json_object_get(r->draft->body, "top_logprobs");
    bool wanted = r->params.logprobs >= 0;
    if (!read_flag(r, "logprobs", &wanted))
        return false;
    if (is_given(json_object_get(r->draft->body, "logprobs")) || !wanted)
        r->params.logprobs = wanted ? 0 : -1;
    if (!is_given(top))
        return true;
    double count = json_is_number(top) ? json_number_value(top) : -1;
    if (!(count >= 0 && count <= 20 && floor(count) == count))
        return aq_request_refuse(r, AQ_RECORD_INVALID_PARAMETER, "top_logprobs",
                                 "'top_logprobs': expected an integer from 0 to 20");
    if (count > 0 && !wanted)
        return aq_request_refuse(r, AQ_RECORD_INVALID_PARAMETER, "top_logprobs",
                                 "'top_logprobs' needs 'logprobs': true");
    if (wanted)
        r->params.logprobs = (int)count;
    return true;
}

/* Variables of the template that have fields of their own. */
static bool check_kwargs(struct aq_request *r, const json_t *kwargs)
{
    static const char *const taken[] = {
        "messages",     "tools", "documents", "add_generation_prompt", "continue_final_message",
        "chat_template"};
    if (is_given(kwargs) && !json_is_object(kwargs))
        return aq_request_refuse(r, AQ_RECORD_INVALID_PARAMETER, "chat_template_kwargs",
                                 "'chat_template_kwargs': expected an object");
    for (size_t i = 0; i < AQ_ARRAY_LEN(taken); i++)
        if (json_object_get(kwargs, taken[i]))
            return aq_request_refuse(r, AQ_RECORD_INVALID_PARAMETER, "chat_template_kwargs",
                                     "'chat_template_kwargs': '%s' is no variable to be set there",
                                     taken[i]);
    return true;
}

static bool check_tools(struct aq_request *r, const json_t *tools)
{
    size_t i;
    const json_t *tool;
    if (is_given(tools) && !json_is_array(tools))
        return aq_request_refuse(r, AQ_RECORD_INVALID_PARAMETER, "tools",
                                 "'tools': expected a list of objects");
    json_array_foreach(tools, i, tool)
    {
        if (!json_is_object(tool))
            return aq_request_refuse(r, AQ_RECORD_INVALID_PARAMETER, "tools",
                                     "'tools': expected an object at %zu", i);
    }
    return true;
}

static bool read_chat(struct aq_request *r, struct aq_chat_request *ret)
{
    const json_t *body = r->draft->body;
    const json_t *tools = json_object_get(body, "tools");
    const json_t *kwargs = json_object_get(body, "chat_template_kwargs");
    *ret = (struct aq_chat_request){.messages = json_object_get(body, "messages"),
                                    .tools = json_array_size(tools) ? tools : NULL,
                                    .kwargs = is_given(kwargs) ? kwargs : NULL};
    if (!check_tools(r, tools) || !check_kwargs(r, kwargs) || !read_logprobs(r) ||
        !read_flag(r, "continue_final_message", &ret->continue_final_message))
        return false;
    ret->add_generation_prompt = !ret->continue_final_message;
    if (!read_flag(r, "add_generation_prompt", &ret->add_generation_prompt))
        return false;
    if (ret->add_generation_prompt && ret->continue_final_message)
        return aq_request_refuse(r, AQ_RECORD_INVALID_PARAMETER, "continue_final_message",
                                 "'continue_final_message' and 'add_generation_prompt' exclude "
                                 "each other");
    if (r->params.echo)
        return aq_request_refuse(r, AQ_RECORD_UNSUPPORTED_PARAMETER, "echo",
                                 "'echo': a chat result has no prompt in front; leave it out");
    return true;
}

/* A number beyond 64 bits, or one as large: a template would print another one. */
static bool has_wide_number(const json_t *v)
{
    const char *key;
    json_t *item;
    size_t i;
    if (json_is_real(v))
        return fabs(json_real_value(v)) >= 0x1p63;
    json_array_foreach(v, i, item)
    {
        if (has_wide_number(item))
            return true;
    }
    json_object_foreach((json_t *)v, key, item)
    {
        if (has_wide_number(item))
            return true;
    }
    return false;
}

static bool check_numbers(struct aq_request *r, const struct aq_chat_request *chat)
{
    if (!r->draft->wide || !(has_wide_number(chat->messages) || has_wide_number(chat->tools) ||
                             has_wide_number(chat->kwargs)))
        return true;
    return aq_request_refuse(r, AQ_RECORD_INVALID_RECORD, "messages",
                             "'messages': a number beyond 64 bits is not supported");
}

/* ---- text ---- */

/* Where nobody can render: about as long, for a plan. */
static void estimate(struct aq_buf *out, const json_t *messages)
{
    size_t i;
    const json_t *message;
    json_array_foreach(messages, i, message)
    {
        const json_t *content = json_object_get(message, "content"), *part;
        size_t k;
        aq_buf_puts(out, "<|begin|>assistant\n");
        if (json_is_string(content))
            aq_buf_put(out, json_string_value(content), json_string_length(content));
        json_array_foreach(content, k, part)
        {
            const json_t *text = json_object_get(part, "text");
            if (json_is_string(text))
                aq_buf_put(out, json_string_value(text), json_string_length(text));
        }
    }
}

static bool render(struct aq_request *r, const struct aq_chat_request *chat, struct aq_buf *text,
                   int *ret_rc)
{
    const struct aq_request_rules *rules = r->draft->rules;
    const char *why = rules->chat ? aq_chat_problem(rules->chat) : "the model has no chat template";
    if (!rules->tokenizer && rules->token_bytes) {
        estimate(text, chat->messages);
        return true;
    }
    if (why)
        return aq_request_refuse(r, AQ_RECORD_UNSUPPORTED_PARAMETER, "messages", "'messages': %s",
                                 why);
    struct aq_err err;
    const char *param;
    int rc = aq_chat_render(text, rules->chat, chat, &param, &err);
    if (rc == -ENOMEM)
        *ret_rc = rc;
    else if (rc < 0)
        aq_request_refuse(r, AQ_RECORD_INVALID_RECORD, param, "%s", err.text);
    return rc == 0;
}

bool aq_request_read_chat(struct aq_request *r, int *ret_rc)
{
    struct aq_request_draft *d = r->draft;
    struct aq_chat_request chat;
    if (d->rules->prompt_template)
        return aq_request_refuse(r, AQ_RECORD_INVALID_RECORD, "messages",
                                 "'messages': --prompt-template makes prompts, a chat template "
                                 "does so of messages: expected one of them");
    if (is_given(json_object_get(d->body, "prompt")))
        return aq_request_refuse(r, AQ_RECORD_INVALID_RECORD, "prompt",
                                 "'prompt' and 'messages' exclude each other");
    if (!read_chat(r, &chat) || !check_numbers(r, &chat))
        return false;
    struct aq_buf text = {0};
    bool good = render(r, &chat, &text, ret_rc);
    char *copy =
        good && !text.failed ? aq_request_copy(r, text.data ? text.data : "", text.count) : NULL;
    if (good && !copy)
        *ret_rc = -ENOMEM;
    if (copy)
        d->prompts[0].text = (struct aq_text){copy, text.count};
    aq_buf_close(&text);
    return copy != NULL;
}
