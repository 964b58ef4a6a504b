/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/options/options.h"

#include "base/file.h"
#include "base/json.h"
#include "engine/options/give.h"
#include "engine/options/kv.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- from JSON -------------------------------------------------------------------------- */

static bool takes_text(const struct aq_option *option)
{
    return option->kind == AQ_OPTION_STRING || option->kind == AQ_OPTION_STRINGS ||
           option->kind == AQ_OPTION_LIST;
}

static int wrong_type(const struct aq_option *option, const char *label, const json_t *value,
                      struct aq_err *reterr)
{
    static const char *const names[] = {"an object", "a list",        "a string",      "a number",
                                        "a number",  "a truth value", "a truth value", "null"};
    return aq_error(reterr, -EINVAL, "%s: expected %s, found %s", label,
                    takes_text(option) ? "a string" : "one value", names[json_typeof(value)]);
}

/* A JSON scalar becomes the text that a command line would have. */
static int give_scalar(struct aq_options *o, const struct aq_option *option, const char *label,
                       const json_t *value, struct aq_err *reterr)
{
    char number[64];
    const char *text = number;
    if (takes_text(option) && !json_is_string(value))
        return wrong_type(option, label, value, reterr);
    if (json_is_string(value)) {
        text = json_string_value(value);
        if (strlen(text) != json_string_length(value))
            return aq_error(reterr, -EINVAL, "%s: expected text, found a NUL character", label);
    } else if (json_is_boolean(value)) {
        text = json_is_true(value) ? "on" : "off";
    } else if (json_is_number(value)) {
        double x = json_number_value(value);
        bool fraction = option->kind == AQ_OPTION_REAL || option->kind == AQ_OPTION_DURATION ||
                        option->kind == AQ_OPTION_CHECKED;
        if (json_is_real(value) && !fraction && x >= 0 && x < 0x1p53 && x == (double)(uint64_t)x) {
            snprintf(number, sizeof(number), "%llu", (unsigned long long)x); /* 32.0 is 32 */
        } else {
            char *dump = aq_json_dump(value, JSON_ENCODE_ANY);
            if (!dump)
                return aq_error_memory(reterr, "%s", label);
            assert(strlen(dump) < sizeof(number));
            snprintf(number, sizeof(number), "%s", dump);
            free(dump);
        }
    } else {
        return wrong_type(option, label, value, reterr);
    }
    return aq_options_give(o, option, 1, label, text, reterr);
}

static int give_value(struct aq_options *o, const struct aq_option *option, const char *key,
                      const json_t *value, struct aq_err *reterr)
{
    char label[128];
    snprintf(label, sizeof(label), "option '%.100s'", key);
    if (json_is_null(value))
        return 0;
    if (!json_is_array(value) || !aq_option_is_list(option))
        return give_scalar(o, option, label, value, reterr);
    size_t i;
    const json_t *item;
    json_array_foreach(value, i, item)
    {
        int rc = give_scalar(o, option, label, item, reterr);
        if (rc < 0)
            return rc;
    }
    return 0;
}

int aq_options_from_json(struct aq_options **ret, const char *command, const json_t *object,
                         struct aq_err *reterr)
{
    assert(ret && command);
    if (!json_is_object(object))
        return aq_error(reterr, -EINVAL, "options: expected one JSON object");
    struct aq_options *o;
    int rc = aq_options_open(&o, command, reterr);
    if (rc < 0)
        return rc;
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)object, key, value)
    {
        if (strcmp(key, "command") == 0 || strcmp(key, "notes") == 0)
            continue;
        const struct aq_option *option;
        rc = aq_option_find(&option, aq_options_command(o), key, "", reterr);
        if (rc == 0)
            rc = give_value(o, option, key, value, reterr);
        if (rc < 0) {
            aq_options_close(o);
            return rc;
        }
    }
    *ret = o;
    return 0;
}

/* ---- to JSON ---------------------------------------------------------------------------- */

static json_t *strings_to_json(const struct aq_strings *list)
{
    json_t *array = json_array();
    for (uint32_t i = 0; array && i < list->count; i++) {
        if (json_array_append_new(array, json_string(list->item[i])) < 0) {
            json_decref(array);
            return NULL;
        }
    }
    return array;
}

static json_t *integers_to_json(const uint32_t *list, uint32_t count)
{
    json_t *array = json_array();
    for (uint32_t i = 0; array && i < count; i++) {
        if (json_array_append_new(array, json_integer(list[i])) < 0) {
            json_decref(array);
            return NULL;
        }
    }
    return array;
}

/* The index-th word of "a|b|c". */
static json_t *word_to_json(const char *words, unsigned index)
{
    for (; index > 0; index--)
        words += strcspn(words, "|") + 1;
    return json_stringn(words, strcspn(words, "|"));
}

static json_t *string_to_json(const char *text)
{
    return text ? json_string(text) : json_string("auto");
}

/* JSON integers are signed here; larger ones go as text, which is read back the same. */
static json_t *u64_to_json(uint64_t x)
{
    char text[32];
    if (x <= INT64_MAX)
        return json_integer((json_int_t)x);
    snprintf(text, sizeof(text), "%llu", (unsigned long long)x);
    return json_string(text);
}

static json_t *value_to_json(const struct aq_options *o, const struct aq_option *option)
{
    const void *at = (const char *)o + option->offset;
    const void *aux = (const char *)o + option->aux;
    bool or_auto = option->flags & AQ_OPTION_AUTO;
    switch (option->kind) {
    case AQ_OPTION_BOOL: return json_boolean(*(const bool *)at);
    case AQ_OPTION_NO_BOS: return json_boolean(*(const enum aq_bos *)at == AQ_BOS_NEVER);
    case AQ_OPTION_STRING:
    case AQ_OPTION_CHECKED:
    case AQ_OPTION_CHOICE: return string_to_json(*(char *const *)at);
    case AQ_OPTION_STRINGS:
    case AQ_OPTION_LIST: return strings_to_json(at);
    case AQ_OPTION_U32:
        return or_auto && *(const uint32_t *)at == 0 ? json_string("auto")
                                                     : json_integer(*(const uint32_t *)at);
    case AQ_OPTION_SIZE:
        return or_auto && *(const uint64_t *)at == 0 ? json_string("auto")
                                                     : u64_to_json(*(const uint64_t *)at);
    case AQ_OPTION_U64: return u64_to_json(*(const uint64_t *)at);
    case AQ_OPTION_INT: return json_integer(*(const int *)at);
    case AQ_OPTION_U32_LIST:
        return integers_to_json(*(uint32_t *const *)at, *(const uint32_t *)aux);
    case AQ_OPTION_REAL:
    case AQ_OPTION_DURATION: return aq_json_real(*(const double *)at);
    case AQ_OPTION_DTYPE: {
        int dtype = *(const int *)at;
        return json_string(dtype < 0 ? "auto" : aq_dtype_name((enum aq_dtype)dtype));
    }
    case AQ_OPTION_ENUM: return word_to_json(option->choices, *(const unsigned *)at);
    case AQ_OPTION_CHOICE_ON: return word_to_json(option->choices, *(const bool *)at);
    case AQ_OPTION_LATER:
    case AQ_OPTION_LATER_FLAG: break;
    }
    assert(!"an option of a later version was given");
    return NULL;
}

/* Given options of rows that are of all these commands, and not of those groups. */
static json_t *rows_to_json(const struct aq_options *o, unsigned commands, unsigned groups_left_out)
{
    json_t *object = json_object();
    for (uint32_t i = 0; i < aq_option_count && object; i++) {
        const struct aq_option *option = &aq_option_table[i];
        char key[64];
        if (!aq_options_was_given(o, option) || !option->offset ||
            (option->commands & commands) != commands || (groups_left_out & (1u << option->group)))
            continue;
        size_t n = strlen(option->name);
        assert(n < sizeof(key));
        for (size_t c = 0; c <= n; c++)
            key[c] = option->name[c] == '-' ? '_' : option->name[c];
        aq_json_put(&object, key, value_to_json(o, option));
    }
    return object;
}

json_t *aq_options_to_json(const struct aq_options *o)
{
    json_t *object = json_pack("{s:s}", "command", o->command);
    json_t *rows = rows_to_json(o, 0, 0);
    if (!object || !rows || json_object_update(object, rows) < 0) {
        json_decref(object);
        object = NULL;
    }
    json_decref(rows);
    return object;
}

json_t *aq_options_shared(const struct aq_options *o, const char *command, const char *other)
{
    unsigned commands = aq_command_find(command)->bit;
    commands |= other ? aq_command_find(other)->bit : 0;
    return rows_to_json(o, commands, 1u << AQ_GROUP_REPORT);
}

bool aq_options_several_machines(const struct aq_options *o)
{
    return o->hardware && (strcmp(o->hardware, "all") == 0 || strchr(o->hardware, ','));
}

bool aq_options_given(const struct aq_options *o, const char *name)
{
    for (uint32_t i = 0; i < aq_option_count; i++) {
        if (strcmp(aq_option_table[i].name, name) == 0 &&
            aq_options_was_given(o, &aq_option_table[i]))
            return true;
    }
    return false;
}

struct aq_device_choice aq_options_device(const struct aq_options *o)
{
    struct aq_device_choice choice;
    if (!aq_device_parse(&choice, o->device ? o->device : "auto"))
        assert(!"aq_check_device takes what is none");
    return choice;
}

struct aq_isa_choice aq_options_isa(const struct aq_options *o)
{
    struct aq_isa_choice choice = {.given = o->isa};
    if (o->isa && !aq_isa_parse(o->isa, &choice.mask))
        assert(!"a choice of the table is no instruction set");
    return choice;
}

/* ---- what belongs together -------------------------------------------------------------- */

static int missing(const struct aq_options *o, const char *what, struct aq_err *reterr)
{
    return aq_error(reterr, -EINVAL, "%s: expected %s; aquifer help %s shows them all", o->command,
                    what, o->command);
}

static int check_model(const struct aq_options *o, struct aq_err *reterr)
{
    if (o->model && o->shape)
        return aq_error(reterr, -EINVAL, "expected --model or --shape, found both");
    if (!o->model && !o->shape)
        return missing(o, "--model DIR", reterr);
    if (o->model && o->random_weights)
        return aq_error(reterr, -EINVAL, "--random-weights goes with --shape, found --model '%s'",
                        o->model);
    if (o->shape && !o->random_weights && !o->dry_run)
        return aq_error(reterr, -EINVAL,
                        "--shape '%s' has no weights: expected --random-weights SEED to run it",
                        o->shape);
    if (o->device_memory && aq_options_device(o).backend == AQ_BACKEND_CPU)
        return aq_error(reterr, -EINVAL,
                        "--device-memory: the cpu backend has no device tier; --host-memory bounds "
                        "the whole process");
    return 0;
}

static int check_generate(const struct aq_options *o, struct aq_err *reterr)
{
    if (o->prompt.count && (o->input || o->output))
        return aq_error(reterr, -EINVAL,
                        "--prompt prints to standard output: expected no --input and no --output");
    if (!o->prompt.count && (!o->input || !o->output))
        return missing(o, "--input FILE and --output FILE, or --prompt TEXT", reterr);
    if (o->prompt.count && o->shard)
        return aq_error(reterr, -EINVAL, "--shard is for records of a file: expected no --prompt");
    if (o->min_tokens > o->max_tokens)
        return aq_error(reterr, -EINVAL, "--min-tokens: expected at most --max-tokens %u, found %u",
                        o->max_tokens, o->min_tokens);
    if (o->overwrite && o->retry_errors)
        return aq_error(reterr, -EINVAL,
                        "--overwrite starts anew and --retry-errors goes on: expected one of them");
    return 0;
}

static int check_eval(const struct aq_options *o, const struct aq_kv_policy *kv,
                      struct aq_err *reterr)
{
    if (!o->text == !o->ids)
        return o->text ? aq_error(reterr, -EINVAL, "expected --text or --ids, found both")
                       : missing(o, "--text FILE or --ids FILE", reterr);
    if (!o->prompt_tokens_given || !o->score_tokens)
        return missing(o, "--prompt-tokens P and --score-tokens G", reterr);
    if (o->compare_full && !o->prompt_tokens)
        return aq_error(reterr, -EINVAL,
                        "--compare-full: --prompt-tokens 0 scores each window in one prefill, "
                        "which is the full cache");
    if (aq_kv_policy_drops(kv) && !o->prompt_tokens)
        return aq_error(reterr, -EINVAL,
                        "--kv-policy %s: --prompt-tokens 0 scores each window in one prefill, "
                        "where nothing is dropped yet",
                        o->kv_policy);
    if (kv->read && !o->prompt_tokens)
        return aq_error(reterr, -EINVAL,
                        "--kv-read %u: --prompt-tokens 0 scores each window in one prefill, whose "
                        "rows read all of their keys",
                        kv->read);
    if (o->sweep.count && (o->attention_stats || o->report || o->trace))
        return aq_error(reterr, -EINVAL, "--%s tells of one run: expected no --sweep beside it",
                        o->attention_stats ? "attention-stats"
                        : o->report        ? "report"
                                           : "trace");
    return 0;
}

static int check_bench(const struct aq_options *o, struct aq_err *reterr)
{
    bool lengths = o->prompt_len_count && o->gen_len_count;
    if (!o->table && !lengths)
        return missing(o, "--prompt-len N and --gen-len N, or --table FILE", reterr);
    return 0;
}

static int check_info(const struct aq_options *o, struct aq_err *reterr)
{
    if (o->model && o->shape)
        return aq_error(reterr, -EINVAL, "expected --model or --shape, found both");
    if (o->cache && (o->model || o->shape))
        return aq_error(reterr, -EINVAL,
                        "--cache tells of this machine: expected no model beside it");
    if (o->hardware && !o->model && !o->shape)
        return aq_error(reterr, -EINVAL,
                        "--hardware says which machines a model is to fit: expected --model DIR or "
                        "--shape NAME beside it");
    return 0;
}

static int check_plan(const struct aq_options *o, struct aq_err *reterr)
{
    static const char *const of_records[] = {
        "input-format", "prompt-field", "prompt-template", "limit",     "max-tokens",  "n",
        "temperature",  "bos",          "overlong",        "tokenizer", "allow-errors"};
    struct aq_kv_policy kv;
    if (o->hardware && strcmp(o->hardware, "list") == 0 && o->sweep.count)
        return aq_error(reterr, -EINVAL,
                        "--sweep plans machines: expected their names, found 'list', which prints "
                        "them (--hardware list)");
    if (o->hardware && strcmp(o->hardware, "list") == 0)
        return 0;
    for (size_t i = 0; i < AQ_ARRAY_LEN(of_records); i++) {
        if (!o->input && aq_options_given(o, of_records[i]))
            return aq_error(reterr, -EINVAL,
                            "--%s says how records are read: expected --input FILE beside it",
                            of_records[i]);
    }
    if (!o->html && aq_options_given(o, "html-points"))
        return aq_error(reterr, -EINVAL,
                        "--html-points says how many plans a page has: expected --html FILE beside "
                        "it");
    if (o->tokenizer && o->model)
        return aq_error(reterr, -EINVAL,
                        "--tokenizer goes with --shape: '%s' has a tokenizer of its own", o->model);
    if (o->model && o->shape)
        return aq_error(reterr, -EINVAL, "expected --model or --shape, found both");
    if (!o->model && !o->shape)
        return missing(o, "--model DIR or --shape NAME", reterr);
    if (o->input && (o->prompt_range || o->gen_range || o->requests || o->lengths))
        return aq_error(reterr, -EINVAL,
                        "--input: its records say how long prompts are, how much each generates "
                        "and how many they are; leave out --prompt-len, --gen-len, --lengths and "
                        "--requests");
    if (o->lengths && (o->prompt_range || o->gen_range))
        return aq_error(reterr, -EINVAL,
                        "--lengths says how long prompts are and how much each generates; leave "
                        "out --prompt-len and --gen-len");
    if (aq_options_several_machines(o) && (o->sweep.count || o->html || o->write_config))
        return aq_error(reterr, -EINVAL,
                        "--%s tells of one machine: expected --hardware NAME, found '%s'",
                        o->sweep.count ? "sweep"
                        : o->html      ? "html"
                                       : "write-config",
                        o->hardware);
    if (!o->input && !o->lengths && (!o->prompt_range || !o->gen_range))
        return missing(o, "--prompt-len and --gen-len, --lengths FILE, or --input FILE", reterr);
    return aq_options_kv_policy(&kv, o, reterr);
}

struct named {
    const char *option, *path; /* path NULL: it is not given */
};

static int check_two(const struct named *written, const struct named *read, struct aq_err *reterr)
{
    if (!written->path || !read->path)
        return 0;
    char *beside = aq_replacement_beside(written->path); /* NULL: links in a circle */
    int rc = 0;
    if (aq_file_same(written->path, read->path) || (beside && aq_file_same(beside, read->path)))
        rc = aq_error(reterr, -EINVAL,
                      "--%s '%s' would replace what --%s reads: expected another file",
                      written->option, written->path, read->option);
    free(beside);
    return rc;
}

enum { WRITTEN = 7 };

static void list_written(struct named ret[WRITTEN], const struct aq_options *o)
{
    const struct named written[WRITTEN] = {
        {"report", o->report},
        {"trace", o->trace},
        {"metrics-file", o->metrics_file},
        {"write-config", o->write_config},
        {"html", o->html},
        {"output", o->output},
        {"errors", o->errors},
    };
    memcpy(ret, written, sizeof(written));
}

int aq_options_check_apart(const struct aq_options *o, const char *option, const char *path,
                           struct aq_err *reterr)
{
    const struct named read = {option, path};
    struct named written[WRITTEN];
    int rc = 0;
    list_written(written, o);
    for (size_t i = 0; rc == 0 && i < WRITTEN; i++)
        rc = check_two(&written[i], &read, reterr);
    return rc;
}

/* Names of a model's files, of checkpoints and of a packed store's first folder. */
static bool is_of_models(const char *name)
{
    static const char *const names[] = {
        "config.json", "generation_config.json",  "tokenizer.json",    "tokenizer_config.json",
        "vocab.json",  "special_tokens_map.json", "added_tokens.json", "merges.txt",
        "vocab.txt",   "manifest.json",           "stripe.json",       "data.0",
    };
    static const char *const ends[] = {".safetensors", ".index.json", ".bin",
                                       ".model",       ".pt",         ".jinja"};
    size_t length = strlen(name);
    for (size_t i = 0; i < AQ_ARRAY_LEN(names); i++) {
        if (!strcmp(name, names[i]))
            return true;
    }
    for (size_t i = 0; i < AQ_ARRAY_LEN(ends); i++) {
        size_t end = strlen(ends[i]);
        if (length > end && !strcmp(name + length - end, ends[i]))
            return true;
    }
    return false;
}

static bool is_in(const char *folder, const char *path)
{
    const char *slash = strrchr(path, '/');
    char *in = aq_file_folder(path);
    bool is = in && aq_file_same(in, folder) && is_of_models(slash ? slash + 1 : path);
    free(in);
    return is;
}

/* A model is not lost to a report: nothing is written over a file of its folder that has the name
 * of a model's. */
static int check_model_apart(const struct aq_options *o, const char *folder, struct aq_err *reterr)
{
    struct named written[WRITTEN];
    int rc = 0;
    list_written(written, o);
    for (size_t i = 0; folder && rc == 0 && i < WRITTEN; i++) {
        const char *path = written[i].path;
        char *behind = path && aq_file_size(path) > 0 ? aq_file_resolve(path) : NULL;
        /* A file is replaced where a link leads; a model's own may be links out of its folder. */
        if (behind && (is_in(folder, path) || is_in(folder, behind)))
            rc = aq_error(reterr, -EINVAL,
                          "--%s '%s' would replace a file of the model: expected another file",
                          written[i].option, path);
        free(behind);
    }
    return rc;
}

/* No file that is written is one that is read.  (Of `generate` the job looks at its own files.) */
static int check_written(const struct aq_options *o, struct aq_err *reterr)
{
    const bool job = aq_options_command(o)->bit == AQ_CMD_GENERATE;
    const struct named read[] = {
        {"input", job ? NULL : o->input},
        {"text", o->text},
        {"ids", o->ids},
        {"lengths", o->lengths},
        {"table", o->table},
        {"hardware", o->hardware},
        {"file", o->published_file},
        {"prompt-template", o->prompt_template},
        {"shape", o->shape && aq_file_size(o->shape) >= 0 ? o->shape : NULL},
    };
    int rc = check_model_apart(o, o->model, reterr);
    rc = rc < 0 ? rc : check_model_apart(o, o->tokenizer, reterr);
    for (size_t k = 0; rc == 0 && k < AQ_ARRAY_LEN(read); k++)
        rc = aq_options_check_apart(o, read[k].option, read[k].path, reterr);
    return rc;
}

int aq_options_check(const struct aq_options *o, struct aq_err *reterr)
{
    unsigned bit = aq_options_command(o)->bit;
    int rc = check_written(o, reterr);
    if (rc < 0)
        return rc;
    /* A table's rows may name their own models. */
    if ((bit & AQ_CMD_RUN) && !(bit == AQ_CMD_BENCH && o->table && !o->model && !o->shape))
        rc = check_model(o, reterr);
    /* A table's rows may have a device each. */
    if (rc == 0 && o->emulate_link && !o->emulate_device && !o->table)
        rc = aq_error(reterr, -EINVAL,
                      "--emulate-link is the link of an emulated device: expected --emulate-device "
                      "SIZE beside it");
    if (rc < 0)
        return rc;
    struct aq_kv_policy kv;
    rc = bit & AQ_CMD_RUN ? aq_options_kv_policy(&kv, o, reterr) : 0;
    if (rc < 0)
        return rc;
    switch (bit) {
    case AQ_CMD_GENERATE: return check_generate(o, reterr);
    case AQ_CMD_EVAL: return check_eval(o, &kv, reterr);
    case AQ_CMD_BENCH: return check_bench(o, reterr);
    case AQ_CMD_PACK:
        if (!o->model && (o->verify || o->list) && !o->store_output.count)
            return missing(o, "--output STORE or --model DIR", reterr);
        if (!o->model && !o->verify && !o->list)
            return missing(o, "--model DIR", reterr);
        if (!o->store_output.count && !o->verify && !o->list)
            return missing(o, "--output STORE", reterr);
        return 0;
    case AQ_CMD_PLAN: return check_plan(o, reterr);
    case AQ_CMD_INFO: return check_info(o, reterr);
    case AQ_CMD_TOKENIZE: return o->model ? 0 : missing(o, "--model DIR", reterr);
    case AQ_CMD_PUBLISHED: return o->published_file ? 0 : missing(o, "FILE", reterr);
    case AQ_CMD_STATUS: return o->status_files.count ? 0 : missing(o, "FILE", reterr);
    case AQ_CMD_MERGE:
        return o->merge_files.count >= 2 ? 0 : missing(o, "OUTPUT and SHARD...", reterr);
    default: return 0;
    }
}
