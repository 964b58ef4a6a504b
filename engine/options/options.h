/* SPDX-License-Identifier: Apache-2.0
 * engine/options/options.h - every option of every command in one table: command line, YAML file
 * and JSON all end here, with the same names, ranges and messages.  Owns the strings in struct
 * aq_options.
 */
#ifndef AQ_ENGINE_OPTIONS_OPTIONS_H
#define AQ_ENGINE_OPTIONS_OPTIONS_H

#include "base/buf.h"
#include "base/err.h"
#include "base/types.h"
#include "engine/compute/backend.h"
#include "engine/options/notation.h"
#include "kernels/kernels.h"
#include "offload/disk.h"
#include "offload/io.h"
#include "offload/sum.h"

#include <jansson.h>

enum aq_overlong {
    AQ_OVERLONG_ERROR,
    AQ_OVERLONG_TRUNCATE_LEFT,
    AQ_OVERLONG_TRUNCATE_RIGHT,
    AQ_OVERLONG_CLIP
};
enum aq_bos { AQ_BOS_AUTO, AQ_BOS_ALWAYS, AQ_BOS_NEVER };
/* Whether sequences share what their prompts begin with.  AUTO: and records that begin alike run
 * together where that saves a twentieth of all prompts' tokens; ON: wherever it saves any. */
enum aq_share_prefixes { AQ_SHARE_AUTO, AQ_SHARE_ON, AQ_SHARE_OFF };
enum aq_input_format { AQ_INPUT_AUTO, AQ_INPUT_JSONL, AQ_INPUT_TEXT };

struct aq_strings {
    char **item;
    uint32_t count;
};

/* Strings are NULL and numbers 0 when not given, unless a default is named. */
struct aq_options {
    const char *command;
    /* model and machine, shared */
    char *model, *shape, *device, *isa, *numa, *executor, *placement, *attention, *host_products,
        *hardware, *kv_policy, *kv_budget, *kv_heavy, *kv_recent, *kv_floor, *kv_group, *kv_pool,
        *kv_pool_order, *kv_layers, *kv_heads, *kv_residual_rule, *kv_decode, *kv_drop,
        *kv_positions, *kv_frequent, *kv_local;
    bool kv_sinks_given, kv_observe_given, kv_history_given, kv_cross_layer_given, kv_mass_given;
    bool kv_read_given, kv_read_dense_given, kv_ahead_given;
    uint32_t kv_sinks, kv_grace, kv_observe, kv_residual, kv_history, kv_read, kv_read_dense,
        kv_ahead;
    double kv_decay, kv_low; /* 0: not given */
    double kv_cross_layer, kv_mass;
    bool random_weights;
    uint64_t random_weights_seed;
    uint64_t device_memory, host_memory, disk_memory; /* 0: default rule */
    bool fuse_layer, alternate, replay;
    uint64_t emulate_device;  /* bytes of an emulated device; 0: none */
    char *emulate_link;       /* "H2D/D2H" in GB/s */
    uint64_t prefetch, chunk; /* of the weight ring; 0: planned */
    uint64_t kv_stage;        /* bytes of a staging slot of KV; 0: planned */
    struct aq_strings disk_dir;
    enum aq_io_kind io;
    enum aq_direct io_direct;
    enum aq_verify verify_store;
    bool disk_dir_any; /* tmpfs and network file systems are fine for scratch */
    char *cache_dir;
    uint32_t micro_batch, micro_batches, micro_batch_tokens, context, threads;
    int weight_format, kv_format, compute; /* enum aq_dtype or -1 = auto (default) */
    bool refill;                           /* default true */
    enum aq_share_prefixes share_prefixes;
    enum aq_side_by_side side_by_side;
    bool deterministic;
    uint64_t seed;
    char *report, *trace, *metrics_file;
    bool dry_run, json, quiet, log_time;
    double progress_s; /* 0: the default rhythm */

    /* generate */
    char *input, *output, *errors;
    enum aq_input_format input_format;
    struct aq_strings prompt; /* --prompt, repeatable */
    char *prompt_field, *prompt_template, *chat_time;
    bool generation_config_all;
    char *tokenizer;     /* plan: whose files a shape takes */
    uint32_t max_tokens; /* default 32 */
    uint32_t min_tokens;
    double temperature, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty;
    uint32_t top_k, n; /* n default 1 */
    int logprobs;      /* -1: none */
    bool echo, ignore_eos, include_stop_str_in_output;
    struct aq_strings stop;
    uint32_t *stop_token_ids;
    uint32_t stop_token_id_count;
    enum aq_bos bos;
    enum aq_overlong overlong;
    bool unknown_fields_error, strict, allow_errors, ordered, overwrite, retry_errors;
    struct aq_strings allow_change;
    char *shard;               /* K/N or slurm; NULL: all records */
    uint64_t limit;            /* 0: all */
    double disk_full_wait_s;   /* default 600 */
    double checkpoint_every_s; /* how often records in flight are kept; 0: when stopped */
    /* only from JSON, for records submitted one by one; 0: the model's context */
    uint32_t max_prompt_tokens, max_total_tokens;

    /* eval */
    char *text, *ids, *bos_mode; /* bos_mode: none|once|each */
    uint32_t prompt_tokens, score_tokens, windows;
    bool prompt_tokens_given;
    bool compare_full, attention_stats;
    struct aq_strings sweep;
    /* bench: comma lists are kept as lists, one row per combination */
    uint32_t *prompt_len, *gen_len, *bench_micro_batch;
    uint32_t prompt_len_count, gen_len_count, bench_micro_batch_count;
    uint64_t requests;
    uint32_t repeats, warmup, decode_passes; /* 3, 1, 0 */
    char *table, *format;
    /* plan */
    char *prompt_range, *gen_range, *lengths;
    struct aq_strings allow, price;
    double deadline_s; /* 0: none */
    char *write_config, *html;
    uint32_t html_points; /* 24 */
    /* pack */
    struct aq_strings store_output;
    bool verify, list;
    /* tokenize, info, status */
    bool decode, chat, cache;
    struct aq_strings status_files;
    /* merge */
    struct aq_strings merge_files; /* OUTPUT SHARD... */
    /* published */
    char *published_file;
    /* probe */
    bool quick, keep;

    /* Lines to be said before anything else: what flags of other programs became.  NULL: none. */
    char *notes;

    void *owned; /* all strings but the notes live here */
};

/* Parses `args` (without program and command name) for `command`; --config FILE is read first, the
 * command line wins.  -EINVAL: unknown flags name the nearest known one, values name flag, expected
 * and found.  When --help was asked for, *ret_help is set and *ret is left alone.  Positional
 * arguments: only where the command takes them. */
int aq_options_from_args(struct aq_options **ret, const char *command, int arg_count, char **args,
                         bool *ret_help, struct aq_err *reterr);
/* The same from one JSON object {"model": ..., "max_tokens": 32, ...}; '-' and '_' are the same in
 * keys.  "command" is passed over, and so are "notes" (lines for aquifer_run to say first). */
int aq_options_from_json(struct aq_options **ret, const char *command, const json_t *object,
                         struct aq_err *reterr);
void aq_options_close(struct aq_options *o);
/* Rules of a whole command beyond single values: no two that exclude each other, none missing.
 * -EINVAL.  Not for records submitted one by one, which come without files. */
int aq_options_check(const struct aq_options *o, struct aq_err *reterr);
/* No file that the command writes is this one, which it reads by the option `option`.  -EINVAL. */
int aq_options_check_apart(const struct aq_options *o, const char *option, const char *path,
                           struct aq_err *reterr);
/* {"command": ..., every option that was given, with '_' and its value's own type}: goes back
 * through aq_options_from_json.  New reference; NULL: out of memory. */
json_t *aq_options_to_json(const struct aq_options *o);
/* Of these the options that a command has as well, and of two commands both of them: by the same
 * row of the table, so that they take the same values; without those of reports and messages. */
json_t *aq_options_shared(const struct aq_options *o, const char *command, const char *other);
/* " --name value" as a shell takes it, of a key and a value as aq_options_to_json() has them; of a
 * list one for each item. */
void aq_options_put_flag(struct aq_buf *out, const char *command, const char *key, const json_t *v);
/* What --device and --isa choose. */
struct aq_device_choice aq_options_device(const struct aq_options *o);
struct aq_isa_choice aq_options_isa(const struct aq_options *o);
/* Whether --hardware of a plan names several machines: "all", or names with commas. */
bool aq_options_several_machines(const struct aq_options *o);
/* Whether the user gave this option (name with '-'), rather than the default standing. */
bool aq_options_given(const struct aq_options *o, const char *name);

/* Help texts, malloc'd: of a command, its basic options or all of them; "kv": the table of KV
 * policies; "words"; NULL: the overview; "" for an unknown name. */
char *aq_options_help(const char *command, bool all);

#endif
