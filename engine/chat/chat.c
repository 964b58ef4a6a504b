/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/chat/chat.h"

#include "base/characters.h"
#include "base/json.h"
#include "engine/chat/chat_files.h"
#include "engine/chat/chat_messages.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct aq_chat {
    struct aq_chat_files files;
    bool lists; /* the default template goes through lists of parts by itself */
    bool tool_lists;
    bool asks_time;
    struct tm now;
    char time[AQ_CHAT_TIME_BYTES];
    char problem[512];
};

/* ---- time ---- */

static bool read_time(const char *text, struct tm *ret)
{
    struct tm t = {0};
    char rest[2], time[AQ_CHAT_TIME_BYTES];
    int date = sscanf(text, "%4d-%2d-%2d%1s", &t.tm_year, &t.tm_mon, &t.tm_mday, rest);
    if (date == 4 &&
        sscanf(text + 10, "T%2d:%2d:%2d%1s", &t.tm_hour, &t.tm_min, &t.tm_sec, rest) != 3)
        return false;
    t.tm_year -= 1900;
    t.tm_mon--;
    struct tm there = t; /* timegm moves what is no date to one that is */
    if (date < 3 || timegm(&there) == -1 || there.tm_mday != t.tm_mday ||
        there.tm_hour != t.tm_hour || there.tm_min != t.tm_min || there.tm_sec != t.tm_sec)
        return false;
    *ret = there;
    strftime(time, sizeof(time), date == 3 ? "%Y-%m-%d" : "%Y-%m-%dT%H:%M:%S", ret);
    return !strcmp(time, text);
}

bool aq_chat_time_valid(const char *time)
{
    struct tm unused;
    return strlen(time) >= 10 && read_time(time, &unused);
}

void aq_chat_time_now(char ret[AQ_CHAT_TIME_BYTES])
{
    struct tm local;
    time_t now = time(NULL);
    localtime_r(&now, &local);
    strftime(ret, AQ_CHAT_TIME_BYTES, "%Y-%m-%dT%H:%M:%S", &local);
}

const char *aq_chat_time(const struct aq_chat *c)
{
    return c->asks_time ? c->time : NULL;
}

/* ---- opening ---- */

void aq_chat_close(struct aq_chat *c)
{
    if (!c)
        return;
    aq_chat_files_close(&c->files);
    free(c);
}

const char *aq_chat_problem(const struct aq_chat *c)
{
    return c->problem[0] ? c->problem : NULL;
}

uint64_t aq_chat_hash(const struct aq_chat *c)
{
    return c->files.hash;
}

static bool asks(const struct aq_jinja *t, const char *name)
{
    return t && aq_jinja_names(t, name);
}

int aq_chat_open(struct aq_chat **ret, const char *dir, const char *time, struct aq_err *reterr)
{
    assert(ret && dir);
    struct aq_err err = {0};
    struct aq_chat *c = calloc(1, sizeof(*c));
    if (!c)
        return aq_error_memory(reterr, "chat templates of '%s'", dir);
    int rc = aq_chat_files_open(&c->files, dir, &err);
    if (rc == -ENOMEM) {
        aq_chat_close(c);
        return aq_error(reterr, rc, "%s", err.text);
    }
    if (rc < 0)
        snprintf(c->problem, sizeof(c->problem), "%.*s", (int)sizeof(c->problem) - 1, err.text);
    if (time)
        snprintf(c->time, sizeof(c->time), "%s", time);
    else
        aq_chat_time_now(c->time);
    bool valid = read_time(c->time, &c->now);
    assert(valid);
    const struct aq_jinja *one = c->files.deflt, *two = c->files.tool_use;
    c->asks_time = asks(one, "strftime_now") || asks(two, "strftime_now");
    c->lists = one && aq_jinja_iterates_member(one, "content");
    c->tool_lists = two && aq_jinja_iterates_member(two, "content");
    *ret = c;
    return 0;
}

/* ---- rendering ---- */

/* What transformers gives to a template; NULL: out of memory. */
static json_t *make_variables(const struct aq_chat *c, const struct aq_chat_request *r,
                              json_t *messages)
{
    json_t *v = json_object(), *item;
    const char *name;
    json_object_foreach(c->files.tokens, name, item) aq_json_put(&v, name, json_incref(item));
    json_object_foreach((json_t *)r->kwargs, name, item) aq_json_put(&v, name, json_incref(item));
    aq_json_put(&v, "messages", messages);
    aq_json_put(&v, "tools", r->tools ? json_incref((json_t *)r->tools) : json_null());
    aq_json_put(&v, "documents", json_null());
    aq_json_put(&v, "add_generation_prompt", json_boolean(r->add_generation_prompt));
    return v;
}

/* Cuts the text off where the last message's content ends, as transformers does. */
static int cut_at_mark(struct aq_buf *text, const char **ret_param, struct aq_err *reterr)
{
    static const char mark[] = AQ_CHAT_END_MARK;
    size_t bytes = sizeof(mark) - 1, last = SIZE_MAX;
    for (const char *at = text->data; at && (at = strstr(at, mark)); at++)
        last = (size_t)(at - text->data);
    *ret_param = "continue_final_message";
    if (last == SIZE_MAX)
        return aq_error(reterr, -EBADMSG,
                        "'continue_final_message': the chat template does not show the last "
                        "message as it is");
    bool blank = text->data[last + bytes] == ' ';
    text->count = last;
    if (!blank) /* white space at the end was trimmed */
        text->count -= aq_character_space_behind((struct aq_text){text->data, last});
    text->data[text->count] = '\0';
    return 0;
}

int aq_chat_render(struct aq_buf *out, const struct aq_chat *c, const struct aq_chat_request *r,
                   const char **ret_param, struct aq_err *reterr)
{
    assert(out && c && r && !c->problem[0]);
    bool tool_use = r->tools && c->files.tool_use;
    json_t *messages = NULL;
    *ret_param = "messages";
    int rc = aq_chat_messages(&messages, r->messages, tool_use ? c->tool_lists : c->lists,
                              r->continue_final_message, reterr);
    if (rc < 0)
        return rc;
    json_t *variables = make_variables(c, r, messages);
    if (!variables)
        return aq_error_memory(reterr, "messages");
    struct aq_buf text = {0};
    const struct aq_jinja_input input = {.variables = variables, .now = c->now};
    rc = aq_jinja_render(&text, tool_use ? c->files.tool_use : c->files.deflt, &input, reterr);
    if (rc < 0 && rc != -ENOMEM)
        rc = -EBADMSG;
    if (rc == 0 && r->continue_final_message)
        rc = cut_at_mark(&text, ret_param, reterr);
    if (rc == 0 && text.count)
        aq_buf_put(out, text.data, text.count);
    aq_buf_close(&text);
    json_decref(variables);
    return rc == 0 && out->failed ? aq_error_memory(reterr, "messages") : rc;
}
