/* SPDX-License-Identifier: Apache-2.0
 * Every field a record may carry, in one table: what is honoured, within which range, and what is
 * known but only accepted with a value that changes nothing. */
#include "engine/records/request_draft.h"

#include "base/json.h"
#include "base/json_text.h"
#include "base/nearest.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_TOKENS_MAX = 1 << 24,
    TOP_K_MAX = 1 << 24,
    FIELD_NAME_MAX = 64,
    NEAR_EDITS_MAX = 3,
};

/* Values, besides null, that leave the result as it is. */
enum {
    NEUTRAL_FALSE = 1 << 0,
    NEUTRAL_TRUE = 1 << 1,
    NEUTRAL_ZERO = 1 << 2,
    NEUTRAL_ONE = 1 << 3,
    NEUTRAL_EMPTY = 1 << 4, /* string, list or object */
    NEUTRAL_AUTO = 1 << 5,  /* "auto", "default", "none" */
    NEUTRAL_TEXT = 1 << 6,  /* {"type": "text"} */
};

struct field {
    const char *name;
    /* Reads v, which is not null; false after refusing.  NULL: known, of no effect here. */
    bool (*read)(struct aq_request *r, const struct field *f, const json_t *v);
    size_t offset;    /* in struct aq_params */
    double min, max;  /* of numbers */
    unsigned neutral; /* for fields that are not supported */
    bool chat;        /* of a conversation, request_chat.c reads it */
};

/* ---- messages ---- */

/* The value as JSON, cut to a readable length. */
static const char *value_text(struct aq_request *r, char *dst, size_t dst_bytes, const json_t *v)
{
    if (json_is_real(v)) {
        snprintf(dst, dst_bytes, "%.9g", json_real_value(v));
        return dst;
    }
    char *dump = aq_json_dump(v, JSON_ENCODE_ANY | JSON_COMPACT);
    r->draft->no_memory |= !dump;
    aq_quote(dst, dst_bytes, dump ? dump : "?", dump ? strlen(dump) : 1);
    free(dump);
    return dst;
}

static bool refuse_value(struct aq_request *r, const char *name, const char *expected,
                         const json_t *v)
{
    char found[64];
    struct aq_text raw;
    if (r->draft->wide && aq_json_member_text(&raw, r->draft->raw, name))
        aq_quote(found, sizeof(found), raw.bytes, raw.count);
    else
        value_text(r, found, sizeof(found), v);
    return aq_request_refuse(r, AQ_RECORD_INVALID_PARAMETER, name, "'%s': expected %s, found %s",
                             name, expected, found);
}

/* ---- readers ---- */

static void *place(struct aq_request *r, const struct field *f)
{
    return (char *)&r->params + f->offset;
}

/* A whole number within [min, max]; 3.0 counts as 3. */
static bool whole_number(const json_t *v, double min, double max, double *ret)
{
    if (!json_is_number(v))
        return false;
    *ret = json_number_value(v);
    return floor(*ret) == *ret && *ret >= min && *ret <= max;
}

static bool read_count(struct aq_request *r, const struct field *f, const json_t *v)
{
    double x;
    if (!whole_number(v, f->min, f->max, &x)) {
        char expected[64];
        snprintf(expected, sizeof(expected), "an integer from %.0f to %.0f", f->min, f->max);
        return refuse_value(r, f->name, expected, v);
    }
    *(uint32_t *)place(r, f) = x < 0 ? 0 : (uint32_t)x; /* top_k: -1 is "off", as 0 */
    return true;
}

static bool read_max_tokens(struct aq_request *r, const struct field *f, const json_t *v)
{
    r->draft->max_tokens_given = true;
    return read_count(r, f, v);
}

static bool read_max_completion_tokens(struct aq_request *r, const struct field *f, const json_t *v)
{
    uint32_t max_tokens = r->params.max_tokens;
    if (!read_count(r, f, v))
        return false;
    r->draft->max_completion_tokens_given = true;
    r->draft->max_completion_tokens = r->params.max_tokens;
    r->params.max_tokens = max_tokens;
    return true;
}

static bool read_real(struct aq_request *r, const struct field *f, const json_t *v)
{
    double x = json_is_number(v) ? json_number_value(v) : NAN;
    if (!(x >= f->min && x <= f->max)) {
        char expected[64];
        snprintf(expected, sizeof(expected), "a number from %g to %g", f->min, f->max);
        return refuse_value(r, f->name, expected, v);
    }
    *(float *)place(r, f) = (float)x + 0.0f; /* minus zero becomes zero */
    return true;
}

/* Numbers that must stay above zero, also as a float. */
static bool read_positive(struct aq_request *r, const struct field *f, const json_t *v)
{
    double x = json_is_number(v) ? json_number_value(v) : NAN;
    if (!(x <= f->max && (float)x > 0)) {
        char expected[64];
        snprintf(expected, sizeof(expected), "a number above 0, at most %g", f->max);
        return refuse_value(r, f->name, expected, v);
    }
    *(float *)place(r, f) = (float)x;
    return true;
}

static bool read_flag(struct aq_request *r, const struct field *f, const json_t *v)
{
    if (!json_is_boolean(v))
        return refuse_value(r, f->name, "true or false", v);
    *(bool *)place(r, f) = json_is_true(v);
    return true;
}

static bool read_seed(struct aq_request *r, const struct field *f, const json_t *v)
{
    if (!json_is_integer(v))
        return refuse_value(r, f->name,
                            json_is_number(v) && fabs(json_number_value(v)) >= 0x1p63
                                ? "an integer from -2^63 to 2^63 - 1"
                                : "an integer",
                            v);
    r->params.seed = json_integer_value(v);
    return true;
}

static bool read_logprobs(struct aq_request *r, const struct field *f, const json_t *v)
{
    double x = -1; /* false is the chat endpoint's "none" */
    if (!json_is_false(v) && !whole_number(v, f->min, f->max, &x))
        return refuse_value(r, f->name, "an integer from 0 to 20", v);
    r->params.logprobs = (int)x;
    return true;
}

static bool read_best_of(struct aq_request *r, const struct field *f, const json_t *v)
{
    double x;
    if (!whole_number(v, f->min, f->max, &x))
        return refuse_value(r, f->name, "an integer from 1 to 128", v);
    r->draft->best_of = x;
    return true;
}

static bool read_stop(struct aq_request *r, const struct field *f, const json_t *v)
{
    size_t count = json_is_array(v) ? json_array_size(v) : 1;
    if (count > AQ_REQUEST_STOPS_MAX)
        return aq_request_refuse(r, AQ_RECORD_INVALID_PARAMETER, f->name,
                                 "'%s': expected at most %d strings, found %zu", f->name,
                                 AQ_REQUEST_STOPS_MAX, count);
    struct aq_text *stop = aq_request_alloc(r, (count + 1) * sizeof(*stop));
    for (size_t i = 0; stop && i < count; i++) {
        const json_t *item = json_is_array(v) ? json_array_get(v, i) : v;
        size_t bytes = json_is_string(item) ? json_string_length(item) : 0;
        if (!bytes || bytes > AQ_REQUEST_STOP_BYTES_MAX)
            return refuse_value(r, f->name, "a string of 1 to 1024 bytes, or a list of them", v);
        stop[i].count = bytes;
        stop[i].bytes = aq_request_copy(r, json_string_value(item), bytes);
        if (!stop[i].bytes)
            stop = NULL;
    }
    r->params.stop = stop; /* NULL: read_fields reports that memory ran out */
    r->params.stop_count = (uint32_t)count;
    return true;
}

static bool read_stop_ids(struct aq_request *r, const struct field *f, const json_t *v)
{
    size_t count = json_array_size(v);
    if (!json_is_array(v) || count > AQ_REQUEST_STOP_IDS_MAX)
        return refuse_value(r, f->name, "a list of at most 256 token ids", v);
    uint32_t *ids = aq_request_alloc(r, (count + 1) * sizeof(*ids));
    for (size_t i = 0; ids && i < count; i++) {
        double x;
        const json_t *item = json_array_get(v, i);
        if (!json_is_integer(item))
            return refuse_value(r, f->name, "a list of token ids", v);
        if (!whole_number(item, 0, (double)r->draft->rules->vocab - 1, &x))
            return aq_request_refuse(r, AQ_RECORD_TOKEN_OUT_OF_RANGE, f->name,
                                     "'%s': expected ids from 0 to %u, found %lld at %zu", f->name,
                                     r->draft->rules->vocab - 1,
                                     (long long)json_integer_value(item), i);
        ids[i] = (uint32_t)x;
    }
    r->params.stop_ids = ids;
    r->params.stop_id_count = (uint32_t)count;
    return true;
}

static bool is_neutral(const json_t *v, unsigned neutral)
{
    const char *s = json_string_value(v);
    const char *type = json_string_value(json_object_get(v, "type"));
    bool empty = (json_is_string(v) && !json_string_length(v)) ||
                 (json_is_array(v) && !json_array_size(v)) ||
                 (json_is_object(v) && !json_object_size(v));
    return (neutral & NEUTRAL_FALSE && json_is_false(v)) ||
           (neutral & NEUTRAL_TRUE && json_is_true(v)) ||
           (neutral & NEUTRAL_ZERO && json_is_number(v) && json_number_value(v) == 0) ||
           (neutral & NEUTRAL_ONE && json_is_number(v) && json_number_value(v) == 1) ||
           (neutral & NEUTRAL_EMPTY && empty) ||
           (neutral & NEUTRAL_AUTO && s &&
            (!strcmp(s, "auto") || !strcmp(s, "default") || !strcmp(s, "none"))) ||
           (neutral & NEUTRAL_TEXT && type && !strcmp(type, "text"));
}

static bool read_unsupported(struct aq_request *r, const struct field *f, const json_t *v)
{
    if (is_neutral(v, f->neutral))
        return true;
    char found[64];
    return aq_request_refuse(r, AQ_RECORD_UNSUPPORTED_PARAMETER, f->name,
                             "'%s': %s is not supported; leave it out", f->name,
                             value_text(r, found, sizeof(found), v));
}

/* Messages where a prompt is expected. */
static bool read_messages(struct aq_request *r, const struct field *f, const json_t *v)
{
    if (is_neutral(v, f->neutral))
        return true;
    return aq_request_refuse(r, AQ_RECORD_UNSUPPORTED_PARAMETER, f->name,
                             "'messages' belong to \"/v1/chat/completions\", or to a plain record "
                             "without '%s'",
                             aq_request_prompt_field(r->draft->rules));
}

/* ---- the table ---- */

#define AT(member) offsetof(struct aq_params, member)
#define COUNT(n, to, low, high)                                                                    \
    {                                                                                              \
        .name = n, .read = read_count, .offset = AT(to), .min = low, .max = high                   \
    }
#define REAL(n, to, low, high)                                                                     \
    {                                                                                              \
        .name = n, .read = read_real, .offset = AT(to), .min = low, .max = high                    \
    }
#define FLAG(n, to)                                                                                \
    {                                                                                              \
        .name = n, .read = read_flag, .offset = AT(to)                                             \
    }
#define UNSUPPORTED(n, neutrals)                                                                   \
    {                                                                                              \
        .name = n, .read = read_unsupported, .neutral = neutrals                                   \
    }
#define CHAT(n, neutrals)                                                                          \
    {                                                                                              \
        .name = n, .read = read_unsupported, .neutral = neutrals, .chat = true                     \
    }
#define KNOWN(n)                                                                                   \
    {                                                                                              \
        .name = n                                                                                  \
    }

/* Sorted by name. */
static const struct field fields[] = {
    CHAT("add_generation_prompt", NEUTRAL_TRUE),
    UNSUPPORTED("add_special_tokens", NEUTRAL_TRUE),
    UNSUPPORTED("allowed_token_ids", NEUTRAL_EMPTY),
    UNSUPPORTED("bad_words", NEUTRAL_EMPTY),
    {.name = "best_of", .read = read_best_of, .min = 1, .max = 128},
    UNSUPPORTED("chat_template", 0),
    CHAT("chat_template_kwargs", NEUTRAL_EMPTY),
    KNOWN("choices"),
    KNOWN("continuation"),
    CHAT("continue_final_message", NEUTRAL_FALSE),
    UNSUPPORTED("detokenize", NEUTRAL_TRUE),
    UNSUPPORTED("documents", NEUTRAL_EMPTY),
    UNSUPPORTED("early_stopping", NEUTRAL_FALSE),
    FLAG("echo", echo),
    REAL("frequency_penalty", frequency_penalty, -2, 2),
    UNSUPPORTED("function_call", NEUTRAL_AUTO),
    UNSUPPORTED("functions", NEUTRAL_EMPTY),
    UNSUPPORTED("grammar", NEUTRAL_EMPTY),
    KNOWN("guided_decoding_backend"),
    FLAG("ignore_eos", ignore_eos),
    FLAG("include_stop_str_in_output", include_stop),
    UNSUPPORTED("length_penalty", NEUTRAL_ONE | NEUTRAL_ZERO),
    UNSUPPORTED("logit_bias", NEUTRAL_EMPTY),
    UNSUPPORTED("logits_processors", NEUTRAL_EMPTY),
    {.name = "logprobs", .read = read_logprobs, .min = 0, .max = 20, .chat = true},
    {.name = "max_completion_tokens",
     .read = read_max_completion_tokens,
     .offset = AT(max_tokens),
     .min = 0,
     .max = MAX_TOKENS_MAX},
    {.name = "max_tokens",
     .read = read_max_tokens,
     .offset = AT(max_tokens),
     .min = 0,
     .max = MAX_TOKENS_MAX},
    {.name = "messages", .read = read_messages, .neutral = NEUTRAL_EMPTY, .chat = true},
    KNOWN("metadata"),
    REAL("min_p", min_p, 0, 1),
    COUNT("min_tokens", min_tokens, 0, MAX_TOKENS_MAX),
    KNOWN("model"),
    COUNT("n", n, 1, 128),
    UNSUPPORTED("num_beams", NEUTRAL_ONE),
    KNOWN("parallel_tool_calls"),
    REAL("presence_penalty", presence_penalty, -2, 2),
    KNOWN("priority"),
    KNOWN("prompt"),
    UNSUPPORTED("prompt_logprobs", NEUTRAL_FALSE),
    {.name = "repetition_penalty",
     .read = read_positive,
     .offset = AT(repetition_penalty),
     .max = 100},
    UNSUPPORTED("response_format", NEUTRAL_EMPTY | NEUTRAL_TEXT),
    UNSUPPORTED("return_tokens_as_token_ids", NEUTRAL_FALSE),
    {.name = "seed", .read = read_seed},
    KNOWN("service_tier"),
    UNSUPPORTED("skip_special_tokens", NEUTRAL_TRUE),
    UNSUPPORTED("spaces_between_special_tokens", NEUTRAL_TRUE | NEUTRAL_FALSE),
    {.name = "stop", .read = read_stop},
    {.name = "stop_token_ids", .read = read_stop_ids},
    KNOWN("store"),
    UNSUPPORTED("stream", NEUTRAL_FALSE),
    KNOWN("stream_options"),
    UNSUPPORTED("structured_outputs", NEUTRAL_EMPTY),
    UNSUPPORTED("suffix", NEUTRAL_EMPTY),
    REAL("temperature", temperature, 0, 100),
    UNSUPPORTED("tool_choice", NEUTRAL_AUTO),
    CHAT("tools", NEUTRAL_EMPTY),
    COUNT("top_k", top_k, -1, TOP_K_MAX),
    CHAT("top_logprobs", NEUTRAL_ZERO),
    {.name = "top_p", .read = read_positive, .offset = AT(top_p), .max = 1},
    UNSUPPORTED("truncate_prompt_tokens", 0),
    UNSUPPORTED("use_beam_search", NEUTRAL_FALSE),
    KNOWN("user"),
};

/* Names that other tools use for what is honoured here under another. */
static const struct {
    const char *habit, *name;
} habits[] = {
    {"do_sample", "temperature"},    {"input_ids", "prompt"},
    {"max_length", "max_tokens"},    {"max_new_tokens", "max_tokens"},
    {"n_predict", "max_tokens"},     {"num_return_sequences", "n"},
    {"prompt_token_ids", "prompt"},  {"stop_sequences", "stop"},
    {"stop_strings", "stop"},        {"temp", "temperature"},
    {"output_tokens", "max_tokens"},
};

static int compare_field(const void *name, const void *field)
{
    return strcmp(name, ((const struct field *)field)->name);
}

/* NULL: unknown.  *scratch serves the names that are known by their beginning. */
static const struct field *find_field(const char *name, struct field *scratch)
{
    const struct field *f =
        bsearch(name, fields, AQ_ARRAY_LEN(fields), sizeof(fields[0]), compare_field);
    if (f || strncmp(name, "guided_", 7))
        return f;
    *scratch = (struct field){.name = name, .read = read_unsupported, .neutral = NEUTRAL_EMPTY};
    return scratch;
}

static const char *nearest_field(const char *name)
{
    for (size_t i = 0; i < AQ_ARRAY_LEN(habits); i++)
        if (!strcmp(name, habits[i].habit))
            return habits[i].name;
    const char *names[AQ_ARRAY_LEN(fields)];
    for (size_t i = 0; i < AQ_ARRAY_LEN(fields); i++)
        names[i] = fields[i].name;
    const char *best = aq_nearest(name, names, AQ_ARRAY_LEN(names));
    uint32_t edits = best ? aq_edit_distance(name, best) : UINT32_MAX;
    return edits <= NEAR_EDITS_MAX && edits * 2 < strlen(name) ? best : NULL;
}

/* ---- unknown fields ---- */

static void note_unknown(struct aq_unknown_fields *u, const char *name, uint64_t line)
{
    char shown[sizeof(u->field[0].name)];
    snprintf(shown, sizeof(shown), "%s", name);
    shown[aq_utf8_invalid_at(shown, strlen(shown))] = '\0'; /* cut between two characters */
    for (uint32_t i = 0; i < u->count; i++) {
        if (!strcmp(u->field[i].name, shown)) {
            u->field[i].count++;
            return;
        }
    }
    if (u->count == AQ_UNKNOWN_FIELDS_MAX) {
        u->more++;
        return;
    }
    memcpy(u->field[u->count].name, shown, sizeof(shown));
    u->field[u->count].nearest = nearest_field(name);
    u->field[u->count].count = 1;
    u->field[u->count].first_line = line;
    u->count++;
}

/* Names of the frame around or beside the parameters. */
static bool is_frame_field(const struct aq_request *r, const char *name)
{
    if (r->draft->body != r->draft->root)
        return false;
    return !strcmp(name, "id") || (r->form == AQ_FORM_HARNESS && !strcmp(name, "request_type"));
}

static bool is_score_field(const struct aq_request *r, const char *name)
{
    return r->scoring && (!strcmp(name, "arguments") || !strcmp(name, "request_type"));
}

static bool unknown_field(struct aq_request *r, const char *name)
{
    const struct aq_request_rules *rules = r->draft->rules;
    if ((rules->prompt_field && !strcmp(name, rules->prompt_field)) ||
        aq_template_names(rules->prompt_template, name) || is_frame_field(r, name) ||
        is_score_field(r, name) || (r->form == AQ_FORM_HARNESS && !strcmp(name, "request_type")))
        return true;
    if (rules->unknown)
        note_unknown(rules->unknown, name, r->line);
    if (!rules->unknown_is_error)
        return true;
    const char *nearest = nearest_field(name);
    return aq_request_refuse(r, AQ_RECORD_INVALID_PARAMETER, name, "unknown field '%s'%s%s%s", name,
                             nearest ? ", nearest known: '" : "", nearest ? nearest : "",
                             nearest ? "'" : "");
}

/* Fields beside the body of the two framed forms. */
static bool read_frame_names(struct aq_request *r)
{
    static const char *const batch[] = {"custom_id", "method", "url", "body"};
    static const char *const harness[] = {"request", "scenario", "id"};
    const char *const *known = r->form == AQ_FORM_BATCH ? batch : harness;
    size_t known_count = r->form == AQ_FORM_BATCH ? AQ_ARRAY_LEN(batch) : AQ_ARRAY_LEN(harness);
    const char *name;
    json_t *v;
    json_object_foreach(r->draft->root, name, v)
    {
        bool found = false;
        for (size_t i = 0; i < known_count && !found; i++)
            found = !strcmp(name, known[i]);
        if (!found && !unknown_field(r, name))
            return false;
    }
    return true;
}

bool aq_request_read_fields(struct aq_request *r, int *ret_rc)
{
    if (r->draft->body != r->draft->root && !read_frame_names(r))
        return false;
    const char *name;
    json_t *v;
    json_object_foreach(r->draft->body, name, v)
    {
        struct field scratch;
        const struct field *f = find_field(name, &scratch);
        if (!f && !unknown_field(r, name))
            return false;
        if (f && f->chat && r->chat)
            continue;
        if (f && f->read && !json_is_null(v) && !f->read(r, f, v))
            return false;
    }
    if ((r->params.stop_count && !r->params.stop) ||
        (r->params.stop_id_count && !r->params.stop_ids)) {
        *ret_rc = -ENOMEM;
        return false;
    }
    return true;
}

/* ---- defaults ---- */

int aq_request_defaults(struct aq_params *ret, const struct aq_options *o, uint32_t vocab,
                        struct aq_err *reterr)
{
    assert(ret && o);
    for (uint32_t i = 0; i < o->stop_token_id_count; i++)
        if (o->stop_token_ids[i] >= vocab)
            return aq_error(reterr, -EINVAL,
                            "--stop-token-ids: expected ids from 0 to %u, found %u", vocab - 1,
                            o->stop_token_ids[i]);
    struct aq_text *stop = calloc(o->stop.count + 1, sizeof(*stop));
    if (!stop)
        return aq_error_memory(reterr, "request defaults");
    for (uint32_t i = 0; i < o->stop.count; i++) {
        stop[i] = (struct aq_text){o->stop.item[i], strlen(o->stop.item[i])};
        if (stop[i].count && stop[i].count <= AQ_REQUEST_STOP_BYTES_MAX && i < AQ_REQUEST_STOPS_MAX)
            continue;
        free(stop);
        return aq_error(reterr, -EINVAL, "--stop: expected at most %d strings of 1 to %d bytes",
                        AQ_REQUEST_STOPS_MAX, AQ_REQUEST_STOP_BYTES_MAX);
    }
    *ret = (struct aq_params){
        .max_tokens = o->max_tokens,
        .min_tokens = o->min_tokens,
        .n = o->n,
        .top_k = o->top_k,
        .temperature = (float)o->temperature,
        .top_p = (float)o->top_p,
        .min_p = (float)o->min_p,
        .repetition_penalty = (float)o->repetition_penalty,
        .presence_penalty = (float)o->presence_penalty,
        .frequency_penalty = (float)o->frequency_penalty,
        .seed = (int64_t)o->seed,
        .logprobs = o->logprobs,
        .echo = o->echo,
        .ignore_eos = o->ignore_eos,
        .include_stop = o->include_stop_str_in_output,
        .stop = stop,
        .stop_count = o->stop.count,
        .stop_ids = o->stop_token_ids,
        .stop_id_count = o->stop_token_id_count,
    };
    return 0;
}

void aq_request_defaults_close(struct aq_params *p)
{
    free((void *)p->stop);
    p->stop = NULL;
    p->stop_count = 0;
}

/* ---- what depends on more than one field ---- */

static bool check_max_tokens(struct aq_request *r)
{
    struct aq_params *p = &r->params;
    const struct aq_request_draft *d = r->draft;
    if (d->max_completion_tokens_given) {
        if (d->max_tokens_given && p->max_tokens != d->max_completion_tokens)
            return aq_request_refuse(r, AQ_RECORD_INVALID_PARAMETER, "max_completion_tokens",
                                     "'max_completion_tokens' (%u) and 'max_tokens' (%u) differ",
                                     d->max_completion_tokens, p->max_tokens);
        p->max_tokens = d->max_completion_tokens;
    }
    if (!p->max_tokens && !p->echo)
        return aq_request_refuse(r, AQ_RECORD_INVALID_PARAMETER, "max_tokens",
                                 "'max_tokens': 0 needs 'echo': true");
    if (p->min_tokens > p->max_tokens)
        return aq_request_refuse(r, AQ_RECORD_INVALID_PARAMETER, "min_tokens",
                                 "'min_tokens': expected at most max_tokens (%u), found %u",
                                 p->max_tokens, p->min_tokens);
    return true;
}

bool aq_request_check_params(struct aq_request *r)
{
    const struct aq_params *p = &r->params;
    if (!check_max_tokens(r))
        return false;
    if (p->n > 1 && p->temperature == 0)
        return aq_request_refuse(r, AQ_RECORD_INVALID_PARAMETER, "n",
                                 "'n': %u choices at temperature 0 would all be the same", p->n);
    if (r->draft->best_of > p->n)
        return aq_request_refuse(r, AQ_RECORD_UNSUPPORTED_PARAMETER, "best_of",
                                 "'best_of': %.0f above n (%u) is not supported", r->draft->best_of,
                                 p->n);
    if ((uint64_t)r->prompt_count * p->n > AQ_REQUEST_SEQUENCES_MAX)
        return aq_request_refuse(r, AQ_RECORD_INVALID_PARAMETER, "n",
                                 "expected at most %d sequences (prompts x n), found %u x %u",
                                 AQ_REQUEST_SEQUENCES_MAX, r->prompt_count, p->n);
    return true;
}
