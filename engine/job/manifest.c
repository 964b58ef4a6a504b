/* SPDX-License-Identifier: Apache-2.0
 * FILE.manifest.json: the values that decide what results look like.  A resumed run must agree with
 * them, or be told which of them may differ. */
#include "engine/job/job.h"

#include "base/file.h"
#include "base/json.h"
#include "engine/build_info.h"
#include "engine/model/pack.h"
#include "engine/options/kv.h"
#include "engine/tokenizer/tokenizer.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { SCHEMA = 1, MANIFEST_BYTES_MAX = 16 << 20, VALUE_SHOWN = 40, DIGITS = 16 };
/* The file's own checksum, of its text with these digits all 0. */
static const char own_sum[] = "\"xxh3\": \"", no_sum[] = "0000000000000000";

/* These differ between machines and releases without making results wrong. */
static const char *const only_warned[] = {"version", "model", "backend", "isa"};

static void set_hash(json_t **o, const char *key, uint64_t hash)
{
    char text[20];
    snprintf(text, sizeof(text), "%016" PRIx64, hash);
    aq_json_put(o, key, json_string(text));
}

/* kv_policy, and where it drops anything kv_budget, kv_heavy, ...: results of the full cache are
 * compared by its name alone. */
static void add_kv(json_t **v, const struct aq_kv_policy *p)
{
    json_t *kv = aq_kv_policy_json(p), *value;
    const char *name;
    if (!kv) /* nothing is to be said of the rest either */
        aq_json_put(v, "kv_policy", NULL);
    json_object_foreach(kv, name, value)
    {
        char key[32];
        snprintf(key, sizeof(key), "kv_%s", strcmp(name, "name") ? name : "policy");
        aq_json_put(v, key, json_incref(value));
    }
    json_decref(kv);
}

/* How scales are rounded where this run rounds them and earlier versions did it otherwise. */
static void add_scales(json_t **v, const struct aq_engine_info *i)
{
    const char *weights = i->packed ? NULL : aq_pack_scales(i->weight_format);
    const char *kv = aq_pack_scales(i->kv_format);
    if (weights)
        aq_json_put(v, "weight_scales", json_string(weights));
    if (kv)
        aq_json_put(v, "kv_scales", json_string(kv));
}

static void add_model(json_t **v, const struct aq_job *j)
{
    const struct aq_engine_info *i = j->g.info;
    aq_json_put(v, "version", json_string(aq_build_version()));
    aq_json_put(v, "model", aq_json_string(i->name));
    set_hash(v, "model_hash", i->model_hash);
    set_hash(v, "tokenizer_hash", j->g.tokenizer ? aq_tokenizer_info(j->g.tokenizer)->hash : 0);
    aq_json_put(v, "weights", json_string(i->random_weights ? "random" : "real"));
    aq_json_put(v, "weight_format", json_string(aq_dtype_name(i->weight_format)));
    aq_json_put(v, "kv_format", json_string(aq_dtype_name(i->kv_format)));
    add_scales(v, i);
    aq_json_put(v, "compute", json_string(aq_dtype_name(i->compute)));
    aq_json_put(v, "backend", json_string(i->backend));
    aq_json_put(v, "isa", json_string(i->isa));
    add_kv(v, &i->kv);
    aq_json_put(v, "context", json_integer(j->g.rules.context));
}

static void add_reading(json_t **v, const struct aq_job *j)
{
    const struct aq_options *o = j->o;
    aq_json_put(v, "bos", json_string(aq_job_bos_name(o->bos)));
    aq_json_put(v, "overlong", json_string(aq_job_overlong_name(o->overlong)));
    aq_json_put(v, "unknown_fields", json_string(o->unknown_fields_error ? "error" : "ignore"));
    aq_json_put(v, "prompt_field", o->prompt_field ? json_string(o->prompt_field) : json_null());
    aq_json_put(v, "prompt_template", json_null());
    if (j->g.prompt_template)
        set_hash(v, "prompt_template", aq_template_hash(j->g.prompt_template));
    aq_json_put(v, "input_format", json_string(aq_input_is_text(j->input) ? "text" : "jsonl"));
    aq_json_put(v, "input_bytes", json_integer((json_int_t)aq_input_bytes(j->input)));
    set_hash(v, "input_hash", aq_input_hash(j->input));
}

/* Only where there are conversations: results of earlier versions know nothing of them. */
static void add_chat(json_t **v, const struct aq_job *j)
{
    if (!j->counts.chats || !j->g.chat)
        return;
    const char *time = aq_chat_time(j->g.chat);
    set_hash(v, "chat_template", aq_chat_hash(j->g.chat));
    aq_json_put(v, "chat_time", time ? json_string(time) : json_null());
}

static void add_sampling(json_t **v, const struct aq_params *p)
{
    aq_json_put(v, "max_tokens", json_integer(p->max_tokens));
    aq_json_put(v, "min_tokens", json_integer(p->min_tokens));
    aq_json_put(v, "n", json_integer(p->n));
    aq_json_put(v, "temperature", aq_json_real((double)p->temperature));
    aq_json_put(v, "top_p", aq_json_real((double)p->top_p));
    aq_json_put(v, "top_k", json_integer(p->top_k));
    aq_json_put(v, "min_p", aq_json_real((double)p->min_p));
    aq_json_put(v, "repetition_penalty", aq_json_real((double)p->repetition_penalty));
    aq_json_put(v, "presence_penalty", aq_json_real((double)p->presence_penalty));
    aq_json_put(v, "frequency_penalty", aq_json_real((double)p->frequency_penalty));
    aq_json_put(v, "seed", json_integer(p->seed));
    aq_json_put(v, "logprobs", p->logprobs < 0 ? json_null() : json_integer(p->logprobs));
    aq_json_put(v, "echo", json_boolean(p->echo));
    aq_json_put(v, "ignore_eos", json_boolean(p->ignore_eos));
    aq_json_put(v, "include_stop_str_in_output", json_boolean(p->include_stop));
    json_t *stop = json_array(), *ids = json_array();
    for (uint32_t i = 0; i < p->stop_count; i++)
        aq_json_add(&stop, json_stringn(p->stop[i].bytes, p->stop[i].count));
    for (uint32_t i = 0; i < p->stop_id_count; i++)
        aq_json_add(&ids, json_integer(p->stop_ids[i]));
    aq_json_put(v, "stop", stop);
    aq_json_put(v, "stop_token_ids", ids);
}

static json_t *manifest_values(const struct aq_job *j)
{
    json_t *v = json_object();
    add_model(&v, j);
    add_reading(&v, j);
    add_chat(&v, j);
    add_sampling(&v, &j->g.rules.defaults);
    return v;
}

/* The digits of the checksum in the text of a manifest; NULL where it has none. */
static char *find_sum(char *text)
{
    char *last = NULL;
    for (char *at = text; (at = strstr(at, own_sum)); at++)
        last = at + sizeof(own_sum) - 1;
    return last && strlen(last) > DIGITS ? last : NULL;
}

int aq_job_manifest_write(struct aq_job *j, struct aq_err *reterr)
{
    json_t *m = json_pack("{s:i, s:b, s:o, s:s}", "schema", SCHEMA, "sums", 1, "values",
                          manifest_values(j), "xxh3", no_sum);
    char *text = m ? aq_json_dump(m, JSON_INDENT(1) | JSON_REAL_PRECISION(9)) : NULL;
    json_decref(m);
    if (!text)
        return aq_error_memory(reterr, "manifest '%s'", j->manifest);
    char digits[DIGITS + 1];
    snprintf(digits, sizeof(digits), "%016" PRIx64, (uint64_t)XXH3_64bits(text, strlen(text)));
    memcpy(find_sum(text), digits, DIGITS);
    int rc = aq_file_replace(j->manifest, text, strlen(text), true, reterr);
    free(text);
    return rc;
}

/* ---- comparing ---- */

static bool listed(const char *key, const char *const *list, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (!strcmp(list[i], key))
            return true;
    return false;
}

/* --allow-change takes '-' for '_', and "input" for the input's size and hash. */
static bool allowed(const struct aq_job *j, const char *key)
{
    for (uint32_t i = 0; i < j->o->allow_change.count; i++) {
        const char *a = j->o->allow_change.item[i], *k = key;
        if (!strcmp(a, "input") && !strncmp(key, "input_", 6) && strcmp(key, "input_format") != 0)
            return true;
        while (*a && *k && (*a == *k || (*a == '-' && *k == '_'))) {
            a++;
            k++;
        }
        if (!*a && !*k)
            return true;
    }
    return false;
}

static int check_allowed_names(const struct aq_job *j, const json_t *now, struct aq_err *reterr)
{
    for (uint32_t i = 0; i < j->o->allow_change.count; i++) {
        char key[64];
        snprintf(key, sizeof(key), "%s", j->o->allow_change.item[i]);
        for (char *c = key; *c; c++)
            *c = *c == '-' ? '_' : *c;
        if (strcmp(key, "input") != 0 && strcmp(key, "manifest") != 0 && !json_object_get(now, key))
            return aq_error(reterr, -EINVAL,
                            "--allow-change: '%s' is not a key of '%s' (nor 'input', 'manifest')",
                            key, j->manifest);
    }
    return 0;
}

static const char *value_text(char *dst, size_t dst_bytes, const json_t *v)
{
    char *dump =
        v ? aq_json_dump(v, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(9)) : NULL;
    const char *text = dump ? dump : "(nothing)";
    aq_quote(dst, dst_bytes, text, strlen(text));
    free(dump);
    return dst;
}

/* Both sides through text, so that 1 and 1.0, written and read, are the same. */
static bool same_value(const json_t *a, const json_t *b)
{
    if (json_is_integer(a) && json_is_integer(b)) /* a double has too few digits for a seed */
        return json_integer_value(a) == json_integer_value(b);
    if (json_is_number(a) && json_is_number(b)) {
        double x = json_number_value(a), y = json_number_value(b);
        double limit = 1e-8 * (x < 0 ? -x : x);
        return x == y || (x - y <= limit && y - x <= limit && !json_is_integer(a));
    }
    return a && b && json_equal(a, b);
}

/* Whether the earlier run's input is the beginning of this one: its records are proven by id and
 * key anyway, and those behind it are new.  1 yes, 0 no. */
static int has_grown(const struct aq_job *j, const json_t *was, struct aq_err *reterr)
{
    const json_t *bytes = json_object_get(was, "input_bytes");
    const char *hash = json_string_value(json_object_get(was, "input_hash"));
    json_int_t count = json_integer_value(bytes);
    if (!json_is_integer(bytes) || !hash || count < 0 ||
        (uint64_t)count >= aq_input_bytes(j->input))
        return 0;
    return aq_input_begins_so(j->input, (uint64_t)count, strtoull(hash, NULL, 16), reterr);
}

static bool is_of_input(const char *key)
{
    return strcmp(key, "input_bytes") == 0 || strcmp(key, "input_hash") == 0;
}

/* Prints what differs; returns how much of it forbids going on. */
static unsigned compare(struct aq_job *j, const json_t *was, json_t *now, bool grown)
{
    unsigned forbidden = 0;
    const char *key;
    json_t *value;
    json_object_foreach(now, key, value)
    {
        const json_t *old = json_object_get(was, key);
        if (same_value(old, value) || (grown && is_of_input(key)))
            continue;
        /* With --limit nobody knows what became of the other records. */
        j->old.input_changed |= is_of_input(key) && !j->o->limit;
        char a[VALUE_SHOWN], b[VALUE_SHOWN];
        bool warn = listed(key, only_warned, AQ_ARRAY_LEN(only_warned)) || allowed(j, key);
        if (!warn && !forbidden++)
            aq_job_note(j, AQUIFER_ERROR, "%-28s | %-*s | %s", "key", VALUE_SHOWN - 1, "was",
                        "now");
        aq_job_note(j, warn ? AQUIFER_WARNING : AQUIFER_ERROR,
                    warn ? "resume: %s was %s, now %s" : "%-28s | %-39s | %s", key,
                    value_text(a, sizeof(a), old), value_text(b, sizeof(b), value));
    }
    return forbidden;
}

/* Whether the text is as it was written.  Manifests of before there were checksums have no keys
 * but these two. */
static bool is_as_written(char *text, size_t bytes, const json_t *m)
{
    char *digits = find_sum(text), found[DIGITS], want[DIGITS + 1];
    if (!digits)
        return json_object_size(m) ==
               (size_t)(!!json_object_get(m, "schema") + !!json_object_get(m, "values"));
    memcpy(found, digits, DIGITS);
    memcpy(digits, no_sum, DIGITS);
    snprintf(want, sizeof(want), "%016" PRIx64, (uint64_t)XXH3_64bits(text, bytes));
    return !memcmp(found, want, DIGITS);
}

static const char cure[] = "it cannot be told whether the results belong to this run; "
                           "--allow-change manifest says that they do, --overwrite renames both "
                           "out of the way";

static int read_manifest(json_t **ret, const struct aq_job *j, struct aq_err *reterr)
{
    char *text = NULL;
    size_t bytes;
    json_t *m = NULL;
    struct aq_err err;
    if (aq_file_size(j->manifest) < 0)
        return aq_error(reterr, -EINVAL, "'%s' exists, but its manifest '%s' does not: %s",
                        j->old.path, j->manifest, cure);
    int rc = aq_read_file(&text, &bytes, j->manifest, MANIFEST_BYTES_MAX, &err);
    if (rc == 0)
        rc = aq_json_parse(&m, text, bytes, false, &err);
    if (rc == -ENOMEM)
        rc = aq_error(reterr, rc, "manifest '%s': %s", j->manifest, err.text);
    else if (rc < 0)
        rc = aq_error(reterr, -EINVAL, "manifest '%s' of '%s': %s: %s", j->manifest, j->old.path,
                      err.text, cure);
    else if (!is_as_written(text, bytes, m))
        rc = aq_error(reterr, -EINVAL,
                      "manifest '%s' is damaged or was edited (its own checksum does not agree): "
                      "%s",
                      j->manifest, cure);
    free(text);
    if (rc == 0)
        *ret = m;
    else
        json_decref(m);
    return rc;
}

/* The values of the run that made the results.  New reference. */
static int read_values(json_t **ret, struct aq_job *j, struct aq_err *reterr)
{
    json_t *m = NULL;
    int rc = read_manifest(&m, j, reterr);
    if (rc < 0)
        return rc;
    const json_t *schema = json_object_get(m, "schema");
    json_t *values = json_object_get(m, "values");
    if (!json_is_integer(schema) || json_integer_value(schema) != SCHEMA)
        rc = aq_error(reterr, -EINVAL,
                      "'%s': expected \"schema\": %d, found another: these results were made by "
                      "another version, and %s",
                      j->manifest, SCHEMA, cure);
    else if (!json_is_object(values))
        rc = aq_error(reterr, -EINVAL, "'%s': expected an object \"values\", found none: %s",
                      j->manifest, cure);
    else
        *ret = json_incref(values);
    j->old.sums_expected = json_is_true(json_object_get(m, "sums"));
    json_decref(m);
    return rc;
}

void aq_job_manifest_keep(struct aq_job *j)
{
    json_t *m = NULL;
    struct aq_err unused;
    if (!j->manifest || j->o->overwrite || aq_file_size(j->manifest) < 0 ||
        read_manifest(&m, j, &unused) < 0)
        return; /* what is wrong with it is said when it is compared */
    const json_t *values = json_object_get(m, "values");
    const char *time = json_string_value(json_object_get(values, "chat_time"));
    const char *isa = json_string_value(json_object_get(values, "isa"));
    if (time && aq_chat_time_valid(time))
        snprintf(j->kept.chat_time, sizeof(j->kept.chat_time), "%s", time);
    unsigned mask;
    if (isa && aq_isa_parse(isa, &mask))
        snprintf(j->kept.isa, sizeof(j->kept.isa), "%s", isa);
    json_decref(m);
}

int aq_job_manifest_check(struct aq_job *j, struct aq_err *reterr)
{
    struct aq_err err;
    json_t *was = NULL, *now = manifest_values(j);
    int rc = now ? check_allowed_names(j, now, reterr)
                 : aq_error_memory(reterr, "manifest '%s'", j->manifest);
    int read = rc == 0 ? read_values(&was, j, &err) : 0;
    if (read < 0) {
        j->old.manifest_anew = read != -ENOMEM && allowed(j, "manifest");
        if (j->old.manifest_anew)
            aq_job_note(j, AQUIFER_WARNING, "%s: it is made anew from this run's values", err.text);
        else
            rc = aq_error(reterr, err.code, "%s", err.text);
    }
    int grown = was ? has_grown(j, was, reterr) : 0;
    rc = grown < 0 ? grown : rc;
    unsigned forbidden = was && grown >= 0 ? compare(j, was, now, grown) : 0;
    if (grown > 0)
        aq_job_note(j, AQUIFER_INFO, "resume: the input has grown; its first lines are as before");
    if (forbidden)
        rc = aq_error(reterr, -EINVAL,
                      "'%s' was begun with other values (%u differ, see above); --allow-change "
                      "KEY,... goes on, --overwrite starts anew",
                      j->output, forbidden);
    json_decref(now);
    json_decref(was);
    return rc;
}
