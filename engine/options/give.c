/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/options/give.h"

#include "base/buf.h"
#include "base/nearest.h"
#include "base/units.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { OPTIONS_MAX = 192 };

/* Where an option's value came from: 0 nowhere, or the number of the source.  A list given by a
 * later source replaces an earlier one's; within one source its items add up. */
struct owned {
    void **item;
    size_t item_count, item_capacity;
    uint32_t source[OPTIONS_MAX];
    const struct aq_command *command;
};

static struct owned *owned_of(const struct aq_options *o)
{
    return o->owned;
}

static void *field(struct aq_options *o, uint16_t offset)
{
    return (char *)o + offset;
}

static size_t row_of(const struct aq_option *option)
{
    return (size_t)(option - aq_option_table);
}

/* Keeps p until the options are closed; NULL when p is or memory is out (p is then freed). */
static void *keep(struct aq_options *o, void *p)
{
    struct owned *own = owned_of(o);
    if (!p)
        return NULL;
    if (own->item_count == own->item_capacity) {
        size_t capacity = own->item_capacity ? 2 * own->item_capacity : 32;
        void **grown = realloc(own->item, capacity * sizeof(*grown));
        if (!grown) {
            free(p);
            return NULL;
        }
        own->item = grown;
        own->item_capacity = capacity;
    }
    own->item[own->item_count++] = p;
    return p;
}

static int out_of_memory(const char *label, struct aq_err *reterr)
{
    return aq_error_memory(reterr, "%s", label);
}

/* ---- one value -------------------------------------------------------------------------- */

/* Index of text among the words of "a|b|c", any case; -1 when it is none of them. */
static int word_index(const char *words, const char *text)
{
    int index = 0;
    for (const char *at = words; at && *at; index++) {
        size_t n = strcspn(at, "|");
        if (strlen(text) == n && strncasecmp(at, text, n) == 0)
            return index;
        at += n + (at[n] == '|');
    }
    return -1;
}

/* "a|b|c" as "a, b, c". */
static void list_words(const char *words, char *text, size_t bytes)
{
    size_t used = 0;
    text[0] = '\0';
    for (const char *at = words; *at && used + 3 < bytes;) {
        size_t n = strcspn(at, "|");
        int wrote = snprintf(text + used, bytes - used, "%s%.*s", used ? ", " : "", (int)n, at);
        used += wrote > 0 ? (size_t)wrote : 0;
        at += n + (at[n] == '|');
    }
}

static int wrong_choice(const struct aq_option *option, const char *label, const char *text,
                        struct aq_err *reterr)
{
    if (word_index(option->later, text) >= 0) {
        const char *why = option->why;
        return aq_error(reterr, -EINVAL, "%s: '%s' is not available in this version%s%s", label,
                        text, why ? ": " : "", why ? why : "");
    }
    char words[256];
    list_words(option->choices, words, sizeof(words));
    return aq_error(reterr, -EINVAL, "%s: expected %s%s, found '%s'", label,
                    strchr(words, ',') ? "one of " : "", words, text);
}

/* Names of types as other programs write them. */
static const char *dtype_word(const char *text)
{
    static const char *const words[][2] = {
        {"float32", "f32"}, {"fp32", "f32"},      {"float", "f32"}, {"float16", "f16"},
        {"fp16", "f16"},    {"bfloat16", "bf16"}, {"half", "f16"},
    };
    for (size_t i = 0; i < AQ_ARRAY_LEN(words); i++) {
        if (strcasecmp(words[i][0], text) == 0)
            return words[i][1];
    }
    return text;
}

static bool parse_on_off(const char *text, bool *ret)
{
    static const char *const on = "on|true|yes|1", *const off = "off|false|no|0";
    bool is_on = word_index(on, text) >= 0;
    if (!is_on && word_index(off, text) < 0)
        return false;
    *ret = is_on;
    return true;
}

/* "from 1 to 128", "of at least 1", "above 0 and at most 1". */
static const char *range_text(const struct aq_option *option, char *text, size_t bytes)
{
    bool above = option->flags & AQ_OPTION_ABOVE_MIN, bounded = option->max >= option->min;
    if (!bounded && option->kind == AQ_OPTION_U64)
        snprintf(text, bytes, "from %.15g to %llu", option->min, (unsigned long long)UINT64_MAX);
    else if (!bounded)
        snprintf(text, bytes, "%s %.15g", above ? "above" : "of at least", option->min);
    else if (above)
        snprintf(text, bytes, "above %.15g and at most %.15g", option->min, option->max);
    else
        snprintf(text, bytes, "from %.15g to %.15g", option->min, option->max);
    return text;
}

static bool in_range(const struct aq_option *option, double x)
{
    bool above = option->flags & AQ_OPTION_ABOVE_MIN, bounded = option->max >= option->min;
    return (above ? x > option->min : x >= option->min) && (!bounded || x <= option->max);
}

static int parse_integer(const struct aq_option *option, const char *label, const char *text,
                         uint64_t *ret, struct aq_err *reterr)
{
    char range[96];
    bool is_auto = (option->flags & AQ_OPTION_AUTO) && strcmp(text, "auto") == 0;
    if (is_auto) {
        *ret = 0;
        return 0;
    }
    uint64_t value;
    if (!aq_parse_u64(text, &value) || !in_range(option, (double)value))
        return aq_error(reterr, -EINVAL, "%s: expected an integer %s%s, found '%s'", label,
                        range_text(option, range, sizeof(range)),
                        option->flags & AQ_OPTION_AUTO ? ", or auto" : "", text);
    *ret = value;
    return 0;
}

/* Lists grow when they hold a power of two (or nothing), to more than twice that; the array they
 * were in before stays owned until close. */
static bool is_full(uint32_t count)
{
    return (count & (count - 1)) == 0;
}

static int set_u32_list(struct aq_options *o, const struct aq_option *option, const char *label,
                        const char *text, struct aq_err *reterr)
{
    uint32_t *count = field(o, option->aux), **list = field(o, option->offset);
    char *copy = strdup(text), *save = NULL;
    if (!copy)
        return out_of_memory(label, reterr);
    int rc = 0;
    size_t words = 0;
    for (char *word = strtok_r(copy, ",", &save); word;
         word = strtok_r(NULL, ",", &save), words++) {
        uint64_t value;
        rc = parse_integer(option, label, word + strspn(word, " "), &value, reterr);
        if (rc < 0)
            break;
        if (is_full(*count)) {
            uint32_t *grown = keep(o, malloc(2 * (*count + 1) * sizeof(*grown)));
            if (!grown) {
                rc = out_of_memory(label, reterr);
                break;
            }
            if (*count)
                memcpy(grown, *list, *count * sizeof(*grown));
            *list = grown;
        }
        (*list)[(*count)++] = (uint32_t)value;
    }
    if (rc == 0 && words == 0)
        rc = aq_error(reterr, -EINVAL, "%s: expected integers, found ''", label);
    free(copy);
    return rc;
}

static int add_string(struct aq_options *o, struct aq_strings *list, const char *label,
                      const char *text, size_t bytes, struct aq_err *reterr)
{
    char *copy = keep(o, strndup(text, bytes));
    if (!copy)
        return out_of_memory(label, reterr);
    if (is_full(list->count)) {
        char **grown = keep(o, malloc(2 * (list->count + 1) * sizeof(*grown)));
        if (!grown)
            return out_of_memory(label, reterr);
        if (list->count)
            memcpy(grown, list->item, list->count * sizeof(*grown));
        list->item = grown;
    }
    list->item[list->count++] = copy;
    return 0;
}

static int set_list(struct aq_options *o, const struct aq_option *option, const char *label,
                    const char *text, struct aq_err *reterr)
{
    for (const char *at = text;;) {
        size_t n = strcspn(at, ",");
        if (n == 0)
            return aq_error(reterr, -EINVAL, "%s: expected %s, found '%s'", label, option->argument,
                            text);
        int rc = add_string(o, field(o, option->offset), label, at, n, reterr);
        if (rc < 0 || !at[n])
            return rc;
        at += n + 1;
    }
}

static int set_string(struct aq_options *o, const struct aq_option *option, const char *label,
                      const char *text, struct aq_err *reterr)
{
    char **at = field(o, option->offset);
    if (!*text)
        return aq_error(reterr, -EINVAL, "%s: expected %s, found ''", label, option->argument);
    char *copy = keep(o, strdup(text));
    if (!copy)
        return out_of_memory(label, reterr);
    *at = copy;
    return 0;
}

static int set_choice(struct aq_options *o, const struct aq_option *option, const char *label,
                      const char *text, struct aq_err *reterr)
{
    int index = word_index(option->choices, text);
    if (index < 0)
        return wrong_choice(option, label, text, reterr);
    switch (option->kind) {
    case AQ_OPTION_ENUM: *(unsigned *)field(o, option->offset) = (unsigned)index; return 0;
    case AQ_OPTION_CHOICE_ON: *(bool *)field(o, option->offset) = index == 1; return 0;
    default: break;
    }
    if ((option->flags & AQ_OPTION_AUTO) && strcasecmp(text, "auto") == 0) {
        *(char **)field(o, option->offset) = NULL;
        return 0;
    }
    return set_string(o, option, label, text, reterr);
}

static int set_dtype(struct aq_options *o, const struct aq_option *option, const char *label,
                     const char *text, struct aq_err *reterr)
{
    const char *word = dtype_word(text);
    enum aq_dtype dtype = AQ_F32;
    if (word_index(option->choices, word) < 0)
        return wrong_choice(option, label, word, reterr);
    bool is_auto = strcasecmp(word, "auto") == 0;
    if (!is_auto && !aq_dtype_parse(word, &dtype))
        assert(!"a choice of the table is no dtype");
    *(int *)field(o, option->offset) = is_auto ? -1 : (int)dtype;
    return 0;
}

static int set_amount(struct aq_options *o, const struct aq_option *option, const char *label,
                      const char *text, struct aq_err *reterr)
{
    char range[96];
    double x = 0;
    uint64_t bytes = 0;
    int rc = 0;
    if ((option->flags & AQ_OPTION_AUTO) && strcmp(text, "auto") == 0) {
        assert(option->kind == AQ_OPTION_SIZE);
        *(uint64_t *)field(o, option->offset) = 0;
        return 0;
    }
    const char *what = "number";
    if (option->kind == AQ_OPTION_SIZE) {
        rc = aq_parse_size(text, &bytes, reterr);
        x = (double)bytes;
        what = "number of bytes";
    } else if (option->kind == AQ_OPTION_DURATION) {
        rc = aq_parse_duration(text, &x, reterr);
        what = "number of seconds";
    } else if (!aq_parse_real(text, &x)) {
        rc = aq_error(reterr, -EINVAL, "expected a number %s, found '%s'",
                      range_text(option, range, sizeof(range)), text);
    }
    if (rc < 0) {
        aq_error_prefix(reterr, "%s", label);
        return rc;
    }
    if (!in_range(option, x))
        return aq_error(reterr, -EINVAL, "%s: expected a %s %s, found '%s'", label, what,
                        range_text(option, range, sizeof(range)), text);
    if (option->kind == AQ_OPTION_SIZE)
        *(uint64_t *)field(o, option->offset) = bytes;
    else
        *(double *)field(o, option->offset) = x;
    if (option->aux)
        *(bool *)field(o, option->aux) = true;
    return 0;
}

static int set_integer(struct aq_options *o, const struct aq_option *option, const char *label,
                       const char *text, struct aq_err *reterr)
{
    uint64_t value;
    int rc = parse_integer(option, label, text, &value, reterr);
    if (rc < 0)
        return rc;
    void *at = field(o, option->offset);
    if (option->kind == AQ_OPTION_U64)
        *(uint64_t *)at = value;
    else if (option->kind == AQ_OPTION_INT)
        *(int *)at = (int)value;
    else
        *(uint32_t *)at = (uint32_t)value;
    if (option->aux)
        *(bool *)field(o, option->aux) = true;
    return 0;
}

static int set_bool(struct aq_options *o, const struct aq_option *option, const char *label,
                    const char *text, struct aq_err *reterr)
{
    bool on;
    if (!parse_on_off(text, &on))
        return aq_error(reterr, -EINVAL, "%s: expected on or off, found '%s'", label, text);
    if (option->kind == AQ_OPTION_BOOL)
        *(bool *)field(o, option->offset) = on;
    else if (on)
        *(enum aq_bos *)field(o, option->offset) = AQ_BOS_NEVER;
    return 0;
}

static int set_value(struct aq_options *o, const struct aq_option *option, const char *label,
                     const char *text, struct aq_err *reterr)
{
    switch (option->kind) {
    case AQ_OPTION_BOOL:
    case AQ_OPTION_NO_BOS: return set_bool(o, option, label, text, reterr);
    case AQ_OPTION_STRING: return set_string(o, option, label, text, reterr);
    case AQ_OPTION_STRINGS: {
        int rc = option->check ? option->check(label, text, reterr) : 0;
        return rc < 0 ? rc
                      : add_string(o, field(o, option->offset), label, text, strlen(text), reterr);
    }
    case AQ_OPTION_LIST: return set_list(o, option, label, text, reterr);
    case AQ_OPTION_U32:
    case AQ_OPTION_U64:
    case AQ_OPTION_INT: return set_integer(o, option, label, text, reterr);
    case AQ_OPTION_U32_LIST: return set_u32_list(o, option, label, text, reterr);
    case AQ_OPTION_REAL:
    case AQ_OPTION_SIZE:
    case AQ_OPTION_DURATION: return set_amount(o, option, label, text, reterr);
    case AQ_OPTION_DTYPE: return set_dtype(o, option, label, text, reterr);
    case AQ_OPTION_CHOICE:
    case AQ_OPTION_ENUM:
    case AQ_OPTION_CHOICE_ON: return set_choice(o, option, label, text, reterr);
    case AQ_OPTION_CHECKED: {
        int rc = option->check(label, text, reterr);
        return rc < 0 || !option->offset ? rc : set_string(o, option, label, text, reterr);
    }
    case AQ_OPTION_LATER:
    case AQ_OPTION_LATER_FLAG: break;
    }
    return aq_error(reterr, -EINVAL, "%s is not available in this version", label);
}

bool aq_option_is_list(const struct aq_option *option)
{
    return option->kind == AQ_OPTION_STRINGS || option->kind == AQ_OPTION_LIST ||
           option->kind == AQ_OPTION_U32_LIST;
}

int aq_options_give(struct aq_options *o, const struct aq_option *option, uint32_t source,
                    const char *label, const char *text, struct aq_err *reterr)
{
    size_t bytes = strlen(text), bad = aq_utf8_invalid_at(text, bytes);
    char quoted[80];
    if (bad < bytes) /* options travel as JSON, and so do results */
        return aq_error(reterr, -EINVAL, "%s: expected UTF-8, found byte 0x%02x at %zu of '%s'",
                        label, (unsigned char)text[bad], bad,
                        aq_quote(quoted, sizeof(quoted), text, bytes));
    uint32_t *from = &owned_of(o)->source[row_of(option)];
    if (aq_option_is_list(option) && *from != source) {
        /* A string of an earlier source, or the default, stays owned until close. */
        if (option->kind == AQ_OPTION_U32_LIST)
            *(uint32_t *)field(o, option->aux) = 0;
        else
            *(struct aq_strings *)field(o, option->offset) = (struct aq_strings){0};
    }
    int rc = set_value(o, option, label, text, reterr);
    if (rc == 0)
        *from = source;
    return rc;
}

/* ---- open and close --------------------------------------------------------------------- */

/* Names of other programs' commands that mean one of ours; NULL: none does. */
static const struct {
    const char *name, *ours;
} command_habits[] = {
    {"run-batch", "generate"},
    {"batch", "generate"},
    {"run", "generate"},
    {"complete", "generate"},
    {"completion", "generate"},
    {"throughput", "bench"},
    {"benchmark", "bench"},
    {"perplexity", "eval"},
    {"score", "generate"},
    {"quantize", "pack"},
    {"convert", "pack"},
    {"estimate", "plan"},
    {"estimate-memory", "plan"},
    {"fit", "plan"},
    {"serve", NULL},
    {"server", NULL},
    {"chat", NULL},
};

static int unknown_command(const char *command, const char *const *names, uint32_t count,
                           struct aq_err *reterr)
{
    for (size_t i = 0; i < AQ_ARRAY_LEN(command_habits); i++) {
        if (strcmp(command_habits[i].name, command) != 0)
            continue;
        const char *ours = command_habits[i].ours;
        return aq_error(reterr, -EINVAL, "there is no command '%s' here; %s%s", command,
                        ours ? "what it does is done by aquifer "
                             : "nothing is served or "
                               "interactive: aquifer generate reads files and ends",
                        ours ? ours : "");
    }
    const char *near = aq_nearest(command, names, count);
    return aq_error(reterr, -EINVAL, "unknown command '%s'; %s%s%s", command,
                    near ? "the nearest one is '" : "aquifer --help lists them", near ? near : "",
                    near ? "'" : "");
}

int aq_options_open(struct aq_options **ret, const char *command, struct aq_err *reterr)
{
    const struct aq_command *c = aq_command_find(command);
    assert(aq_option_count <= OPTIONS_MAX);
    if (!c || !c->bit) {
        const char *names[32];
        uint32_t count = 0;
        for (uint32_t i = 0; i < aq_command_count && count < AQ_ARRAY_LEN(names); i++) {
            if (aq_command_table[i].bit)
                names[count++] = aq_command_table[i].name;
        }
        if (c)
            return aq_error(reterr, -EINVAL, "'%s' is not built yet in this version", command);
        return unknown_command(command, names, count, reterr);
    }
    struct aq_options *o = calloc(1, sizeof(*o));
    if (!o)
        return aq_error_memory(reterr, "options");
    o->owned = calloc(1, sizeof(struct owned));
    if (!o->owned) {
        free(o);
        return aq_error_memory(reterr, "options");
    }
    owned_of(o)->command = c;
    o->command = c->name;
    o->logprobs = -1;
    o->compute = o->weight_format = o->kv_format = -1;
    for (uint32_t i = 0; i < aq_option_count; i++) {
        const struct aq_option *option = &aq_option_table[i];
        if (!option->deflt || !(option->commands & c->bit))
            continue;
        int rc = set_value(o, option, option->name, option->deflt, reterr);
        if (rc < 0) {
            aq_options_close(o);
            return rc;
        }
    }
    *ret = o;
    return 0;
}

void aq_options_close(struct aq_options *o)
{
    if (!o)
        return;
    struct owned *own = owned_of(o);
    for (size_t i = 0; i < own->item_count; i++)
        free(own->item[i]);
    free(own->item);
    free(own);
    free(o->notes);
    free(o);
}

const struct aq_command *aq_options_command(const struct aq_options *o)
{
    return owned_of(o)->command;
}

bool aq_options_was_given(const struct aq_options *o, const struct aq_option *option)
{
    return owned_of(o)->source[row_of(option)] != 0;
}
