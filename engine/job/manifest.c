/* SPDX-License-Identifier: Apache-2.0
 * FILE.manifest.json: the values that decide what results look like.  A resumed run must agree with
 * them, or be told which of them may differ. */
#include "base/compress.h"
#include "engine/job/lines.h"

#include "base/file.h"
#include "base/json.h"
#include "engine/build_info.h"
#include "engine/job/manifest_file.h"
#include "engine/model/pack.h"
#include "engine/options/kv.h"
#include "engine/tokenizer/tokenizer.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

static void set_hash(json_t **o, const char *key, uint64_t hash)
{
    char text[20];
    snprintf(text, sizeof(text), "%016" PRIx64, hash);
    aq_json_put(o, key, json_string(text));
}

/* kv_policy, where it drops anything kv_budget, kv_heavy, ..., and where rows read a part kv_read
 * and kv_read_dense, where positions are those in the cache kv_positions: results of the full cache
 * are compared by its name alone. */
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
    /* A run that goes on without them must not look like one that says nothing. */
    if (kv && !p->read)
        aq_json_put(v, "kv_read", json_null());
    if (kv && !p->positions)
        aq_json_put(v, "kv_positions", json_null());
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
    const struct aq_job_input *before = &j->kept.input;
    uint64_t bytes = before->known ? before->bytes : aq_input_bytes(j->input);
    aq_json_put(v, "input_bytes", json_integer((json_int_t)bytes));
    set_hash(v, "input_hash", before->known ? before->hash : aq_input_hash(j->input));
    char shard[AQ_SHARD_TEXT_MAX];
    aq_json_put(v, "shard",
                j->shard.count ? json_string(aq_shard_text(shard, j->shard)) : json_null());
}

/* Only where the input has conversations, in this shard or another, or there are results of some:
 * results of earlier versions know nothing of them. */
static void add_chat(json_t **v, const struct aq_job *j)
{
    if (j->whole.chats && j->g.chat) {
        const char *time = aq_chat_time(j->g.chat);
        set_hash(v, "chat_template", aq_chat_hash(j->g.chat));
        aq_json_put(v, "chat_time", time ? json_string(time) : json_null());
    } else if (*j->kept.chat_template.hash) {
        const char *time = j->kept.chat_template.time;
        aq_json_put(v, "chat_template", json_string(j->kept.chat_template.hash));
        aq_json_put(v, "chat_time", *time ? json_string(time) : json_null());
    }
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

/* What the files are, beside what is in them. */
static void add_files(json_t **v, const struct aq_job *j)
{
    char *name = j->errors ? aq_file_beside(j->errors, j->output) : NULL;
    aq_json_put(v, "compression", aq_manifest_compression(aq_job_compression(j->output)));
    aq_json_put(v, "errors_file", !j->errors ? json_null() : name ? aq_json_string(name) : NULL);
    free(name);
}

static json_t *manifest_values(const struct aq_job *j)
{
    json_t *v = json_object();
    add_files(&v, j);
    add_model(&v, j);
    add_reading(&v, j);
    add_chat(&v, j);
    add_sampling(&v, &j->g.rules.defaults);
    return v;
}

int aq_job_values_hash(const struct aq_job *j, uint64_t *ret, struct aq_err *reterr)
{
    json_t *v = manifest_values(j);
    /* Records are known by id and key whatever else is in the input, and a model by its hash.  What
     * a chat template makes of a conversation is its prompt, and thereby in its key. */
    static const char *const free_to_differ[] = {"model", "input_bytes", "input_hash",
                                                 "chat_template", "chat_time"};
    for (size_t i = 0; v && i < AQ_ARRAY_LEN(free_to_differ); i++)
        json_object_del(v, free_to_differ[i]);
    aq_json_put(&v, "commit", json_string(aq_build_commit())); /* bits are a build's */
    char *text = v ? aq_json_dump(v, JSON_COMPACT | JSON_SORT_KEYS | JSON_REAL_PRECISION(9)) : NULL;
    json_decref(v);
    if (!text)
        return aq_error_memory(reterr, "values of '%s'", j->output);
    *ret = XXH3_64bits(text, strlen(text));
    free(text);
    return 0;
}

int aq_job_manifest_write(struct aq_job *j, struct aq_err *reterr)
{
    return aq_manifest_write(j->manifest, manifest_values(j), reterr);
}

/* ---- comparing ---- */

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

/* The earlier run's input. */
static struct aq_job_input input_of(const json_t *was)
{
    const json_t *bytes = json_object_get(was, "input_bytes");
    const char *hash = json_string_value(json_object_get(was, "input_hash"));
    json_int_t count = json_integer_value(bytes);
    bool known = json_is_integer(bytes) && hash && count >= 0;
    return known ? (struct aq_job_input){true, (uint64_t)count, strtoull(hash, NULL, 16)}
                 : (struct aq_job_input){0};
}

/* Whether the earlier run's input is the beginning of this one: its records are proven by id and
 * key anyway, and those behind it are new.  1 yes, 0 no. */
static int has_grown(const struct aq_job *j, const struct aq_job_input *was, struct aq_err *reterr)
{
    return was->known && was->bytes < aq_input_bytes(j->input)
               ? aq_input_begins_so(j->input, was->bytes, was->hash, reterr)
               : 0;
}

static bool is_of_input(const char *key)
{
    return strcmp(key, "input_bytes") == 0 || strcmp(key, "input_hash") == 0;
}

static bool is_of_chat(const char *key)
{
    return strcmp(key, "chat_template") == 0 || strcmp(key, "chat_time") == 0;
}

/* Results of conversations stay what they are while a run has none, as with a --limit. */
static void keep_chat(struct aq_job *j, const json_t *was)
{
    const char *hash = json_string_value(json_object_get(was, "chat_template"));
    const char *time = json_string_value(json_object_get(was, "chat_time"));
    snprintf(j->kept.chat_template.hash, sizeof(j->kept.chat_template.hash), "%s",
             hash ? hash : "");
    snprintf(j->kept.chat_template.time, sizeof(j->kept.chat_template.time), "%s",
             time ? time : "");
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
        if (aq_manifest_same(old, value))
            continue;
        j->old.manifest_behind |= is_of_input(key) || strcmp(key, "errors_file") == 0;
        if (grown && is_of_input(key))
            continue;
        if (!old && is_of_chat(key)) /* no result is of a conversation */
            continue;
        /* With --limit nobody knows what became of the other records. */
        j->old.input_changed |= is_of_input(key) && !j->o->limit;
        char a[AQ_MANIFEST_VALUE_BYTES], b[AQ_MANIFEST_VALUE_BYTES];
        bool warn = aq_manifest_may_differ(key) || aq_manifest_allowed(&j->o->allow_change, key);
        if (!warn && !forbidden++)
            aq_job_note(j, AQUIFER_ERROR, "%-28s | %-*s | %s", "key", AQ_MANIFEST_VALUE_BYTES - 1,
                        "was", "now");
        aq_job_note(j, warn ? AQUIFER_WARNING : AQUIFER_ERROR,
                    warn ? "resume: %s was %s, now %s" : "%-28s | %-39s | %s", key,
                    aq_manifest_text(a, old), aq_manifest_text(b, value));
    }
    return forbidden;
}

static const char cure[] = "it cannot be told whether the results belong to this run; "
                           "--allow-change manifest says that they do, --overwrite renames both "
                           "out of the way";

/* A file whose lines the manifest is about. */
static const char *lines_path(const struct aq_job *j)
{
    for (int f = 0; f < AQ_JOB_FILES; f++)
        if (j->old.file[f].path)
            return j->old.file[f].path;
    return j->output;
}

/* The values of the run that made the results.  New reference. */
static int read_values(json_t **ret, struct aq_job *j, struct aq_err *reterr)
{
    struct aq_err err;
    const char *lines = lines_path(j);
    if (aq_file_size(j->manifest) < 0)
        return aq_error(reterr, -EINVAL, "'%s' exists, but its manifest '%s' does not: %s", lines,
                        j->manifest, cure);
    int rc = aq_manifest_read(ret, &j->old.sums_expected, j->manifest, &err);
    if (rc == -ENOMEM)
        return aq_error(reterr, rc, "%s", err.text);
    return rc < 0 ? aq_error(reterr, rc, "'%s': %s: %s", lines, err.text, cure) : 0;
}

void aq_job_manifest_keep(struct aq_job *j)
{
    json_t *values = NULL;
    struct aq_err unused;
    if (!j->manifest || j->o->overwrite || aq_file_size(j->manifest) < 0 ||
        aq_manifest_read(&values, NULL, j->manifest, &unused) < 0)
        return; /* what is wrong with it is said when it is compared */
    const char *time = json_string_value(json_object_get(values, "chat_time"));
    const char *isa = json_string_value(json_object_get(values, "isa"));
    if (time && aq_chat_time_valid(time))
        snprintf(j->kept.chat_time, sizeof(j->kept.chat_time), "%s", time);
    unsigned mask;
    if (isa && aq_isa_parse(isa, &mask))
        snprintf(j->kept.isa, sizeof(j->kept.isa), "%s", isa);
    json_decref(values);
}

int aq_job_manifest_check(struct aq_job *j, struct aq_err *reterr)
{
    struct aq_err err;
    json_t *was = NULL, *now = manifest_values(j);
    int rc = now ? check_allowed_names(j, now, reterr)
                 : aq_error_memory(reterr, "manifest '%s'", j->manifest);
    int read = rc == 0 ? read_values(&was, j, &err) : 0;
    if (read < 0) {
        j->old.manifest_anew =
            read != -ENOMEM && aq_manifest_allowed(&j->o->allow_change, "manifest");
        if (j->old.manifest_anew)
            aq_job_note(j, AQUIFER_WARNING, "%s: it is made anew from this run's values", err.text);
        else
            rc = aq_error(reterr, err.code, "%s", err.text);
    }
    const struct aq_job_input before = input_of(was);
    int grown = has_grown(j, &before, reterr);
    rc = grown < 0 ? grown : rc;
    unsigned forbidden = was && grown >= 0 ? compare(j, was, now, grown) : 0;
    keep_chat(j, was);
    if (grown > 0)
        aq_job_note(j, AQUIFER_INFO, "resume: the input has grown; its first lines are as before");
    if (j->o->limit && !grown) /* the lines of records that are gone are found without a limit */
        j->kept.input = before;
    if (forbidden)
        rc = aq_error(reterr, -EINVAL,
                      "'%s' was begun with other values (%u differ, see above); --allow-change "
                      "KEY,... goes on, --overwrite starts anew",
                      j->output, forbidden);
    json_decref(now);
    json_decref(was);
    return rc;
}
