/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/measure/eval_sweep.h"

#include "base/json.h"
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KEYS_MAX = 16, RUNS_MAX = 1000 };

/* One "key=a,b,c"; `at` is the value that this combination takes. */
struct axis {
    const char *key, *values;
    size_t key_length, values_length;
    uint32_t count, at;
};

static int parse_axis(struct axis *a, const char *word, size_t length, struct aq_err *reterr)
{
    const char *equals = memchr(word, '=', length);
    size_t key = equals ? (size_t)(equals - word) : 0, values = length - key - 1;
    if (!key || !values)
        return aq_error(reterr, -EINVAL, "--sweep: expected key=value,... words, found '%.*s'",
                        (int)length, word);
    if (strncmp(word, "kv-", 3) != 0 && strncmp(word, "kv_", 3) != 0)
        return aq_error(reterr, -EINVAL,
                        "--sweep: only options of the KV cache can be swept (kv-policy, kv-budget, "
                        "...), found '%.*s'",
                        (int)key, word);
    *a = (struct axis){word, equals + 1, key, values, 1, 0};
    for (size_t i = 0; i < values; i++)
        a->count += a->values[i] == ',';
    return 0;
}

/* Dashes and underscores are the same in them. */
static bool same_key(const struct axis *a, const struct axis *b)
{
    bool same = a->key_length == b->key_length;
    for (size_t i = 0; same && i < a->key_length; i++)
        same = a->key[i] == b->key[i] || (strchr("-_", a->key[i]) && strchr("-_", b->key[i]));
    return same;
}

static int parse_axes(struct axis *axis, uint32_t *ret_count, const char *text,
                      struct aq_err *reterr)
{
    uint32_t count = 0;
    for (const char *at = text; *(at += strspn(at, " \t\n"));) {
        size_t length = strcspn(at, " \t\n");
        if (count == KEYS_MAX)
            return aq_error(reterr, -EINVAL, "--sweep: expected at most %d keys in '%s'", KEYS_MAX,
                            text);
        int rc = parse_axis(&axis[count], at, length, reterr);
        if (rc < 0)
            return rc;
        for (uint32_t i = 0; i < count; i++) {
            if (same_key(&axis[i], &axis[count]))
                return aq_error(reterr, -EINVAL, "--sweep: '%.*s' stands twice in '%s'",
                                (int)axis[i].key_length, axis[i].key, text);
        }
        count++;
        at += length;
    }
    *ret_count = count;
    return count ? 0 : aq_error(reterr, -EINVAL, "--sweep: expected key=value words, found none");
}

/* Value number a->at of the list. */
static const char *axis_value(const struct axis *a, size_t *ret_length)
{
    const char *from = a->values, *end = a->values + a->values_length;
    for (uint32_t i = 0; i < a->at; i++)
        from = (const char *)memchr(from, ',', (size_t)(end - from)) + 1;
    const char *comma = memchr(from, ',', (size_t)(end - from));
    *ret_length = (size_t)((comma ? comma : end) - from);
    return from;
}

/* o as JSON without what only the whole command means. */
static json_t *options_json(const struct aq_options *o)
{
    json_t *object = aq_options_to_json(o);
    if (object)
        json_object_del(object, "sweep");
    return object;
}

static int add_run(struct aq_eval_sweep *s, json_t *object, char *text, struct aq_err *reterr)
{
    struct aq_options *options = NULL;
    struct aq_eval_run *grown = realloc(s->run, (s->count + 1) * sizeof(*grown));
    int rc = 0;
    if (grown)
        s->run = grown;
    if (!grown || !text || !object)
        rc = aq_error_memory(reterr, "--sweep of %u runs", s->count + 1);
    if (rc == 0)
        rc = aq_options_from_json(&options, "eval", object, reterr);
    if (rc == 0)
        rc = aq_options_check(options, reterr);
    if (rc < 0 && text && *text)
        aq_error_prefix(reterr, "--sweep '%s'", text);
    if (rc == 0) {
        s->run[s->count++] = (struct aq_eval_run){options, text};
    } else {
        aq_options_close(options);
        free(text);
    }
    json_decref(object);
    return rc;
}

static int add_combination(struct aq_eval_sweep *s, const struct aq_options *o,
                           const struct axis *axis, uint32_t count, struct aq_err *reterr)
{
    json_t *object = options_json(o);
    char *text = NULL;
    size_t bytes;
    FILE *f = open_memstream(&text, &bytes);
    for (uint32_t i = 0; object && f && i < count; i++) {
        size_t length;
        const char *value = axis_value(&axis[i], &length);
        char key[64];
        snprintf(key, sizeof(key), "%.*s", (int)axis[i].key_length, axis[i].key);
        fprintf(f, "%s%s=%.*s", i ? " " : "", key, (int)length, value);
        for (char *c = key; *c; c++)
            *c = *c == '-' ? '_' : *c;
        aq_json_put(&object, key, json_stringn(value, length));
    }
    if (f && fclose(f) != 0) {
        json_decref(object);
        object = NULL;
    }
    return add_run(s, object, text, reterr);
}

/* Counts up like an odometer; false after the last combination. */
static bool next_combination(struct axis *axis, uint32_t count)
{
    for (uint32_t i = count; i-- > 0;) {
        if (++axis[i].at < axis[i].count)
            return true;
        axis[i].at = 0;
    }
    return false;
}

static int add_sweep(struct aq_eval_sweep *s, const struct aq_options *o, const char *text,
                     struct aq_err *reterr)
{
    struct axis axis[KEYS_MAX];
    uint32_t count = 0;
    int rc = parse_axes(axis, &count, text, reterr);
    for (bool more = rc == 0; more; more = rc == 0 && next_combination(axis, count)) {
        if (s->count == RUNS_MAX)
            return aq_error(reterr, -EINVAL, "--sweep: expected at most %d runs", RUNS_MAX);
        rc = add_combination(s, o, axis, count, reterr);
    }
    return rc;
}

int aq_eval_sweep_open(struct aq_eval_sweep *ret, const struct aq_options *o, struct aq_err *reterr)
{
    struct aq_eval_sweep s = {0};
    int rc = 0;
    for (uint32_t i = 0; i < o->sweep.count && rc == 0; i++)
        rc = add_sweep(&s, o, o->sweep.item[i], reterr);
    if (!o->sweep.count)
        rc = add_run(&s, options_json(o), strdup(""), reterr);
    if (rc < 0)
        aq_eval_sweep_close(&s);
    else
        *ret = s;
    return rc;
}

void aq_eval_sweep_close(struct aq_eval_sweep *s)
{
    for (uint32_t i = 0; i < s->count; i++) {
        aq_options_close(s->run[i].options);
        free(s->run[i].text);
    }
    free(s->run);
    *s = (struct aq_eval_sweep){0};
}

int aq_eval_full_options(struct aq_options **ret, const struct aq_options *o, struct aq_err *reterr)
{
    json_t *object = options_json(o), *copy = aq_json_copy(object);
    const char *key;
    json_t *value;
    json_object_foreach(object, key, value)
    {
        bool format = strcmp(key, "kv_format") == 0 || strncmp(key, "kv_residual", 11) == 0;
        if (strncmp(key, "kv_", 3) == 0 && !format)
            json_object_del(copy, key);
    }
    int rc = object && copy ? aq_options_from_json(ret, "eval", copy, reterr)
                            : aq_error_memory(reterr, "--compare-full");
    json_decref(object);
    json_decref(copy);
    return rc;
}
