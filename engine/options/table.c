/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/options/table.h"
#include "base/nearest.h"
#include "engine/model/shapes.h"
#include "engine/options/check.h"
#include "engine/options/habits.h"
#include "policy/kv_residual.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

#define AT(field)    .offset = offsetof(struct aq_options, field)
#define GIVEN(field) .aux = offsetof(struct aq_options, field)
#define COUNT(field) .aux = offsetof(struct aq_options, field)
#define RANGE(a, b)  .min = (a), .max = (b)
#define AT_LEAST(a)  .min = (a), .max = (a)-1

/* Largest counts that make sense; they keep sums of a few of them inside 32 bits. */
#define TOKENS_MAX  (1u << 28)
#define SEATS_MAX   (1u << 20)
#define THREADS_MAX 1024
/* Bytes: in chunks of 4096 it is counted in 32 bits. */
#define RING_MAX 0x1p40

#define GENERATE  AQ_CMD_GENERATE
#define EVAL      AQ_CMD_EVAL
#define BENCH     AQ_CMD_BENCH
#define PACK      AQ_CMD_PACK
#define TOKENIZE  AQ_CMD_TOKENIZE
#define INFO      AQ_CMD_INFO
#define STATUS    AQ_CMD_STATUS
#define PROBE     AQ_CMD_PROBE
#define PLAN      AQ_CMD_PLAN
#define PUBLISHED AQ_CMD_PUBLISHED
#define MERGE     AQ_CMD_MERGE
#define CHOOSE    (RUN | PLAN) /* that choose a plan */
#define RUN       AQ_CMD_RUN
#define ALL       AQ_CMD_ALL

const struct aq_option aq_option_table[] = {
    /* ---- model ---- */
    {"model", 'm', AQ_GROUP_MODEL, CHOOSE | PACK | TOKENIZE | INFO, AQ_OPTION_STRING, AT(model),
     .argument = "DIR",
     .help = "Hugging Face checkpoint directory or packed store; org/name is looked up in the "
             "local Hugging Face cache"},
    {"shape", 0, AQ_GROUP_MODEL, CHOOSE | INFO, AQ_OPTION_STRING, AT(shape),
     .argument = "NAME|FILE",
     .help = "a shape without weights: {names}, or a config.json; runs with --random-weights",
     .names = aq_shape_ranges},
    {"random-weights", 0, AQ_GROUP_MODEL, RUN, AQ_OPTION_U64, AT(random_weights_seed),
     GIVEN(random_weights), .argument = "SEED", AT_LEAST(0),
     .help = "fill the shape with random weights made from this seed"},
    {"compute", 0, AQ_GROUP_MODEL, CHOOSE, AQ_OPTION_DTYPE, AT(compute), .argument = "TYPE",
     .choices = "auto|f32|bf16|f16|int8", .deflt = "auto",
     .help = "arithmetic of the products; auto: on the cpu bf16 where it has it, else f32; on a "
             "GPU f16 (bf16 for bf16 checkpoints); int8, on the cpu: int8 or int4 weights times "
             "activations rounded to int8 in groups of 64"},
    {"weight-format", 0, AQ_GROUP_MODEL, CHOOSE | PACK, AQ_OPTION_DTYPE, AT(weight_format),
     .argument = "TYPE", .choices = "auto|f16|bf16|f32|int8|int4", .deflt = "auto",
     .help = "format of stored weights; auto: the checkpoint's, or the compute type where that is "
             "no larger; int8 and int4: groups of 64 with their own scale and minimum, the token "
             "table and the head never below int8"},
    {"kv-format", 0, AQ_GROUP_MODEL, CHOOSE, AQ_OPTION_DTYPE, AT(kv_format), .argument = "TYPE",
     .choices = "auto|f16|bf16|f32|int8|int4|kivi4|kivi2", .deflt = "auto",
     .help = "format of the KV cache; auto: f16, bf16 for bf16 checkpoints, f32 with --compute "
             "f32; int8 and int4: each key and value row of a head with its own scale and minimum; "
             "kivi4 and kivi2: keys with one for each channel and 32 tokens, the newest in f16"},
    {"kv-residual", 0, AQ_GROUP_MODEL, CHOOSE, AQ_OPTION_U32, AT(kv_residual), .argument = "N",
     RANGE(32, AQ_KV_RESIDUAL_MAX),
     .help = "kivi4, kivi2: the newest tokens that stay f16, a multiple of 32 (default 128)"},
    {"kv-residual-rule", 0, AQ_GROUP_MODEL, CHOOSE, AQ_OPTION_CHOICE, AT(kv_residual_rule),
     .argument = "RULE", .choices = "sliding|flush",
     .help = "32 tokens leave at a time, and N stay; or all N of them at once, as in the program "
             "of KIVI's authors (default sliding)"},
    {"context", 0, AQ_GROUP_MODEL, CHOOSE, AQ_OPTION_U32, AT(context), .argument = "N",
     RANGE(1, TOKENS_MAX), .flags = AQ_OPTION_AUTO,
     .help = "lowers the context limit, or with --kv-positions cache raises it; auto: the model's"},

    /* ---- generate: files ---- */
    {"input", 'i', AQ_GROUP_FILES, GENERATE | TOKENIZE | PLAN, AQ_OPTION_STRING, AT(input),
     .argument = "FILE", .help = "records to read, gzip or zstd as well; - is standard input"},
    {"output", 'o', AQ_GROUP_FILES, GENERATE, AQ_OPTION_STRING, AT(output), .argument = "FILE",
     .help =
         "results, appended as they end, compressed if named .gz or .zst; - is standard output. "
         "Started again with the same file, a run goes on where it stopped"},
    {"input-format", 0, AQ_GROUP_FILES, GENERATE | PLAN, AQ_OPTION_ENUM, AT(input_format),
     .argument = "FORMAT", .choices = "auto|jsonl|text", .deflt = "auto",
     .help = "jsonl: one JSON record a line; text: one prompt a line; auto tells them apart, and "
             "refuses tables"},
    {"prompt", 0, AQ_GROUP_FILES, GENERATE, AQ_OPTION_STRINGS, AT(prompt), .argument = "TEXT",
     .help = "a prompt given here (repeatable); its text goes to standard output, no files are "
             "written"},
    {"prompt-field", 0, AQ_GROUP_FILES, GENERATE | PLAN | TOKENIZE, AQ_OPTION_STRING,
     AT(prompt_field), .argument = "NAME",
     .help = "field of a plain record that holds the prompt (default prompt)"},
    {"prompt-template", 0, AQ_GROUP_FILES, GENERATE | PLAN, AQ_OPTION_STRING, AT(prompt_template),
     .argument = "STRING|FILE", .flags = AQ_OPTION_ESCAPES,
     .help = "makes the prompt; {field} is replaced by the record's; \\n, \\t and \\\\ as in "
             "--stop"},
    {"chat-time", 0, AQ_GROUP_FILES, GENERATE | TOKENIZE, AQ_OPTION_CHECKED, AT(chat_time),
     .argument = "DATE[THH:MM:SS]", .check = aq_check_chat_time,
     .help = "date and time for chat templates that ask for them (default: when the run begins; a "
             "run that goes on keeps its own)"},
    {"limit", 0, AQ_GROUP_FILES, GENERATE | PLAN, AQ_OPTION_U64, AT(limit), .argument = "N",
     AT_LEAST(1), .help = "only the first N records"},
    {"shard", 0, AQ_GROUP_FILES, GENERATE, AQ_OPTION_CHECKED, AT(shard), .argument = "K/N|slurm",
     .check = aq_check_shard,
     .help =
         "only this share of the records, K from 0 to N - 1, chosen by a hash of each record; "
         "slurm: which one, from the variables of a job array. aquifer merge joins the results"},
    {"ordered", 0, AQ_GROUP_FILES, GENERATE | MERGE, AQ_OPTION_BOOL, AT(ordered),
     .help = "results in the order of the input; generate keeps them in FILE.part until the end"},
    {"overwrite", 0, AQ_GROUP_FILES, GENERATE | MERGE, AQ_OPTION_BOOL, AT(overwrite),
     .help = "start anew; older results and their manifest are renamed, never deleted"},
    {"retry-errors", 0, AQ_GROUP_FILES, GENERATE, AQ_OPTION_BOOL, AT(retry_errors),
     .help = "drop the error records of an earlier run and try them again"},
    {"errors", 0, AQ_GROUP_FILES, GENERATE, AQ_OPTION_STRING, AT(errors), .argument = "FILE",
     .help = "error records go here instead of among the results, as OpenAI's batches have it"},
    {"allow-change", 0, AQ_GROUP_FILES, GENERATE | MERGE, AQ_OPTION_LIST, AT(allow_change),
     .argument = "KEY,...",
     .help = "go on although these values differ from the earlier run's, or between shards; input, "
             "manifest (lost or damaged), or a key of it"},
    {"strict", 0, AQ_GROUP_FILES, GENERATE, AQ_OPTION_BOOL, AT(strict),
     .help = "any invalid record stops the run before it starts"},
    {"allow-errors", 0, AQ_GROUP_FILES, GENERATE | PLAN, AQ_OPTION_BOOL, AT(allow_errors),
     .help = "run although more than half of the records are invalid"},
    {"tokenizer", 0, AQ_GROUP_FILES, PLAN, AQ_OPTION_STRING, AT(tokenizer), .argument = "DIR",
     .help = "with --shape and --input: the directory whose tokenizer files count the tokens of "
             "texts; otherwise they are estimated, at 4 bytes a token"},
    {"unknown-fields", 0, AQ_GROUP_FILES, GENERATE, AQ_OPTION_CHOICE_ON, AT(unknown_fields_error),
     .argument = "MODE", .choices = "report|error", .deflt = "report",
     .help = "report fields nobody knows once, or refuse their records"},
    {"disk-full-wait", 0, AQ_GROUP_FILES, GENERATE, AQ_OPTION_DURATION, AT(disk_full_wait_s),
     .argument = "TIME", AT_LEAST(0), .deflt = "10m",
     .help = "how long to wait for room when the disk of the results is full"},
    {"checkpoint-every", 0, AQ_GROUP_FILES, GENERATE, AQ_OPTION_DURATION, AT(checkpoint_every_s),
     .argument = "TIME", AT_LEAST(0), .deflt = "0",
     .help = "how often the tokens of unfinished records are kept beside the results, so that a "
             "kill loses no more; 0: only when stopped by a signal"},
    {"max-prompt-tokens", 0, AQ_GROUP_FILES, GENERATE, AQ_OPTION_U32, AT(max_prompt_tokens),
     .argument = "N", RANGE(1, TOKENS_MAX), .flags = AQ_OPTION_API_ONLY,
     .help = "longest prompt that will be submitted"},
    {"max-total-tokens", 0, AQ_GROUP_FILES, GENERATE, AQ_OPTION_U32, AT(max_total_tokens),
     .argument = "N", RANGE(1, TOKENS_MAX), .flags = AQ_OPTION_API_ONLY,
     .help = "longest prompt + max_tokens that will be submitted"},

    /* ---- generate: sampling; records may say otherwise ---- */
    {"max-tokens", 'n', AQ_GROUP_SAMPLING, GENERATE | PLAN, AQ_OPTION_U32, AT(max_tokens),
     .argument = "N", RANGE(0, TOKENS_MAX), .deflt = "32",
     .help = "tokens to generate for each prompt, at most"},
    {"min-tokens", 0, AQ_GROUP_SAMPLING, GENERATE, AQ_OPTION_U32, AT(min_tokens), .argument = "N",
     RANGE(0, TOKENS_MAX), .deflt = "0", .help = "no stop before this many tokens"},
    {"temperature", 0, AQ_GROUP_SAMPLING, GENERATE | PLAN, AQ_OPTION_REAL, AT(temperature),
     .argument = "X", RANGE(0, 100), .deflt = "0", .help = "0 is greedy"},
    {"top-p", 0, AQ_GROUP_SAMPLING, GENERATE, AQ_OPTION_REAL, AT(top_p), .argument = "X",
     RANGE(0, 1), .flags = AQ_OPTION_ABOVE_MIN, .deflt = "1",
     .help = "sample from the likeliest tokens that together have this probability"},
    {"top-k", 0, AQ_GROUP_SAMPLING, GENERATE, AQ_OPTION_U32, AT(top_k), .argument = "N",
     RANGE(0, TOKENS_MAX), .deflt = "0", .help = "sample from the N likeliest tokens; 0: from all"},
    {"min-p", 0, AQ_GROUP_SAMPLING, GENERATE, AQ_OPTION_REAL, AT(min_p), .argument = "X",
     RANGE(0, 1), .deflt = "0", .help = "leave out tokens less likely than X times the likeliest"},
    {"repetition-penalty", 0, AQ_GROUP_SAMPLING, GENERATE, AQ_OPTION_REAL, AT(repetition_penalty),
     .argument = "X", RANGE(0, 100), .flags = AQ_OPTION_ABOVE_MIN, .deflt = "1",
     .help = "above 1: tokens of the prompt and the text so far become less likely"},
    {"presence-penalty", 0, AQ_GROUP_SAMPLING, GENERATE, AQ_OPTION_REAL, AT(presence_penalty),
     .argument = "X", RANGE(-2, 2), .deflt = "0",
     .help = "taken from the logit of each token generated before"},
    {"frequency-penalty", 0, AQ_GROUP_SAMPLING, GENERATE, AQ_OPTION_REAL, AT(frequency_penalty),
     .argument = "X", RANGE(-2, 2), .deflt = "0",
     .help = "the same, once for each time the token was generated"},
    {"seed", 0, AQ_GROUP_JOB, EVAL | BENCH, AQ_OPTION_U64, AT(seed), .argument = "N", AT_LEAST(0),
     .deflt = "0", .help = "decides whatever is drawn at random"},
    {"seed", 0, AQ_GROUP_SAMPLING, GENERATE, AQ_OPTION_U64, AT(seed), .argument = "N", AT_LEAST(0),
     .deflt = "0", .help = "with a record's id it decides every draw, whatever runs beside it"},
    {"n", 0, AQ_GROUP_SAMPLING, GENERATE | PLAN, AQ_OPTION_U32, AT(n), .argument = "N",
     RANGE(1, 128), .deflt = "1", .help = "samples for each prompt"},
    {"stop", 0, AQ_GROUP_SAMPLING, GENERATE, AQ_OPTION_STRINGS, AT(stop), .argument = "TEXT",
     .flags = AQ_OPTION_ESCAPES,
     .help = "a text that ends the generation (repeatable); \\n, \\t and \\\\ are a newline, a "
             "tab and a backslash"},
    {"stop-token-ids", 0, AQ_GROUP_SAMPLING, GENERATE, AQ_OPTION_U32_LIST, AT(stop_token_ids),
     COUNT(stop_token_id_count), .argument = "ID,...", RANGE(0, 4294967294.0),
     .help = "tokens that end the generation, beside the model's own"},
    {"include-stop-str-in-output", 0, AQ_GROUP_SAMPLING, GENERATE, AQ_OPTION_BOOL,
     AT(include_stop_str_in_output), .help = "leave the stop text at the end of the result"},
    {"ignore-eos", 0, AQ_GROUP_SAMPLING, GENERATE, AQ_OPTION_BOOL, AT(ignore_eos),
     .help = "the model's end token does not stop the generation"},
    {"logprobs", 0, AQ_GROUP_SAMPLING, GENERATE, AQ_OPTION_INT, AT(logprobs), .argument = "N",
     RANGE(0, 20), .help = "log-probabilities of each token and of its N likeliest rivals"},
    {"echo", 0, AQ_GROUP_SAMPLING, GENERATE, AQ_OPTION_BOOL, AT(echo),
     .help = "the prompt stands in front of the text"},
    {"generation-config", 0, AQ_GROUP_SAMPLING, GENERATE, AQ_OPTION_CHOICE_ON,
     AT(generation_config_all), .argument = "WHAT", .choices = "eos|all", .deflt = "eos",
     .help = "what is taken from the model's generation_config.json: its end tokens, or also how "
             "it suggests to sample, where no option here says otherwise"},
    {"bos", 0, AQ_GROUP_SAMPLING, GENERATE | TOKENIZE | PLAN, AQ_OPTION_ENUM, AT(bos),
     .argument = "WHEN", .choices = "auto|always|never", .deflt = "auto",
     .help = "begin-of-text token in front of text prompts; auto: as the model's tokenizer does"},
    {"no-bos", 0, AQ_GROUP_SAMPLING, GENERATE | TOKENIZE | PLAN, AQ_OPTION_NO_BOS, AT(bos),
     .help = "the same as --bos never"},
    {"overlong", 0, AQ_GROUP_SAMPLING, GENERATE | PLAN, AQ_OPTION_ENUM, AT(overlong),
     .argument = "HOW", .choices = "error|truncate-left|truncate-right|clip", .deflt = "error",
     .help = "a prompt that leaves less than max-tokens of room: an error record, a shorter "
             "prompt, or fewer tokens (clip)"},

    /* ---- eval ---- */
    {"text", 0, AQ_GROUP_JOB, EVAL, AQ_OPTION_STRING, AT(text), .argument = "FILE",
     .help = "text to score, cut into consecutive windows"},
    {"ids", 0, AQ_GROUP_JOB, EVAL, AQ_OPTION_STRING, AT(ids), .argument = "FILE",
     .help = "token ids to score instead of a text"},
    {"prompt-tokens", 0, AQ_GROUP_JOB, EVAL, AQ_OPTION_U32, AT(prompt_tokens),
     GIVEN(prompt_tokens_given), .argument = "P", RANGE(0, TOKENS_MAX),
     .help = "tokens of a window that are prefilled; 0 scores the window in one prefill"},
    {"score-tokens", 0, AQ_GROUP_JOB, EVAL, AQ_OPTION_U32, AT(score_tokens), .argument = "G",
     RANGE(1, TOKENS_MAX), .help = "tokens of a window that are fed one at a time and scored"},
    {"windows", 0, AQ_GROUP_JOB, EVAL, AQ_OPTION_U32, AT(windows), .argument = "N",
     RANGE(1, TOKENS_MAX), .help = "only the first N windows; all of them otherwise"},
    {"bos", 0, AQ_GROUP_JOB, EVAL, AQ_OPTION_CHOICE, AT(bos_mode), .argument = "WHEN",
     .choices = "none|once|each", .deflt = "none",
     .help = "begin-of-text token: never, before the text, or before each window"},
    {"compare-full", 0, AQ_GROUP_JOB, EVAL, AQ_OPTION_BOOL, AT(compare_full),
     .help = "run with the full cache first, and say how far the distributions are from its own; "
             "its logits lie in --disk-dir or the cache directory meanwhile"},
    {"sweep", 0, AQ_GROUP_JOB, EVAL, AQ_OPTION_STRINGS, AT(sweep),
     .argument = "\"KEY=A,B,... ...\"",
     .help = "a table over options of the KV cache, on the same windows: all combinations of the "
             "lists (repeatable: one after the other)"},
    {"attention-stats", 0, AQ_GROUP_JOB, EVAL, AQ_OPTION_BOOL, AT(attention_stats),
     .help = "also say how attention spreads over the prompts' keys, layer by layer"},

    /* ---- bench ---- */
    {"prompt-len", 0, AQ_GROUP_JOB, BENCH, AQ_OPTION_U32_LIST, AT(prompt_len),
     COUNT(prompt_len_count), .argument = "N,...", RANGE(1, TOKENS_MAX),
     .help = "tokens of each prompt; a list gives one row for each"},
    {"gen-len", 0, AQ_GROUP_JOB, BENCH, AQ_OPTION_U32_LIST, AT(gen_len), COUNT(gen_len_count),
     .argument = "N,...", RANGE(1, TOKENS_MAX),
     .help = "tokens generated for each prompt; a list gives one row for each"},
    {"prompt-len", 0, AQ_GROUP_JOB, PLAN, AQ_OPTION_CHECKED, AT(prompt_range), .argument = "N|A-B",
     .check = aq_check_length, .help = "tokens of the prompts: all the same, or even from A to B"},
    {"gen-len", 0, AQ_GROUP_JOB, PLAN, AQ_OPTION_CHECKED, AT(gen_range), .argument = "N|A-B",
     .check = aq_check_length, .help = "tokens generated for each, likewise"},
    {"lengths", 0, AQ_GROUP_JOB, PLAN, AQ_OPTION_STRING, AT(lengths), .argument = "FILE",
     .help =
         "a distribution of lengths instead: lines \"prompt generated [count]\" or JSON objects "
         "of these; --requests draws as many, else the counts are added up"},
    {"requests", 0, AQ_GROUP_JOB, PLAN, AQ_OPTION_U64, AT(requests), .argument = "N",
     RANGE(1, 1e12), .help = "prompts in all; otherwise as many as keep the block full"},
    {"allow", 0, AQ_GROUP_JOB, PLAN, AQ_OPTION_LIST, AT(allow), .argument = "WHAT,...",
     .help = "what may be chosen although it rounds or drops: int8, int4 (weights), kv-int8, "
             "kv-int4, kivi4, kivi2, or a KV policy with its budget: h2o=20%, snapkv=2048; "
             "kv-read=2048"},
    {"deadline", 0, AQ_GROUP_JOB, PLAN, AQ_OPTION_DURATION, AT(deadline_s), .argument = "TIME",
     AT_LEAST(0), .flags = AQ_OPTION_ABOVE_MIN,
     .help = "how long all requests may take, such as 72h: of what is allowed the least lossy that "
             "meets it is chosen"},
    {"sweep", 0, AQ_GROUP_JOB, PLAN, AQ_OPTION_STRINGS, AT(sweep), .argument = "KEY=A,B,...",
     .help = "a table over an option's values, those that do not fit included (repeatable: all "
             "combinations)"},
    {"price", 0, AQ_GROUP_JOB, PLAN, AQ_OPTION_STRINGS, AT(price), .argument = "HARDWARE=MONEY/h",
     .check = aq_check_price,
     .help = "what an hour on a machine of --hardware costs, in any currency: l4-24gb=0.70USD/h "
             "(repeatable); wins over price_per_hour of its profile"},
    {"write-config", 0, AQ_GROUP_JOB, PLAN, AQ_OPTION_STRING, AT(write_config), .argument = "FILE",
     .help = "write the plan as a config that generate and bench run"},
    {"html", 0, AQ_GROUP_JOB, PLAN, AQ_OPTION_STRING, AT(html), .argument = "FILE",
     .help = "write a page with memory, a pass lane by lane, the sweep, what more would buy, and "
             "sliders over plans made ahead"},
    {"html-points", 0, AQ_GROUP_JOB, PLAN, AQ_OPTION_U32, AT(html_points), .argument = "N",
     RANGE(0, 1000), .deflt = "24",
     .help = "at most so many plans for the sliders of the page, each of which takes as long as a "
             "plan does; 0: no sliders"},
    {"requests", 0, AQ_GROUP_JOB, BENCH, AQ_OPTION_U64, AT(requests), .argument = "N",
     RANGE(1, 1e12), .help = "prompts in all; otherwise one for each seat of the block"},
    {"repeats", 0, AQ_GROUP_JOB, BENCH, AQ_OPTION_U32, AT(repeats), .argument = "N", RANGE(1, 64),
     .deflt = "3", .help = "measured runs of each row"},
    {"warmup", 0, AQ_GROUP_JOB, BENCH, AQ_OPTION_U32, AT(warmup), .argument = "N", RANGE(0, 10000),
     .deflt = "1", .help = "runs before the measured ones"},
    {"decode-passes", 0, AQ_GROUP_JOB, BENCH, AQ_OPTION_U32, AT(decode_passes), .argument = "N",
     RANGE(1, TOKENS_MAX),
     .help = "decode only N passes at each of three lengths and project the rest; the row says so"},
    {"table", 0, AQ_GROUP_JOB, BENCH, AQ_OPTION_STRING, AT(table), .argument = "FILE",
     .help = "a YAML file of rows to run, each of options by name (configs/tables); with --output "
             "finished rows are kept in FILE.rows.json, and started again it goes on"},
    {"format", 0, AQ_GROUP_JOB, BENCH, AQ_OPTION_CHOICE, AT(format), .argument = "FORMAT",
     .choices = "md|csv|json|jsonl", .help = "how rows are printed (default md)"},
    {"output", 'o', AQ_GROUP_JOB, BENCH, AQ_OPTION_STRING, AT(output), .argument = "FILE",
     .help = "write the rows here instead of standard output"},

    /* ---- pack ---- */
    {"output", 'o', AQ_GROUP_JOB, PACK, AQ_OPTION_LIST, AT(store_output),
     .argument = "STORE[,STORE2]",
     .help = "directory of the packed store; several stripe it over as many disks"},
    {"verify", 0, AQ_GROUP_JOB, PACK, AQ_OPTION_BOOL, AT(verify),
     .help = "hash every extent of the store again"},
    {"list", 0, AQ_GROUP_JOB, PACK, AQ_OPTION_BOOL, AT(list), .help = "print the tensors"},

    /* ---- published ---- */
    {"file", 0, AQ_GROUP_JOB, PUBLISHED, AQ_OPTION_STRING, AT(published_file), .argument = "FILE",
     .flags = AQ_OPTION_POSITIONAL,
     .help = "a table of published figures: configs/tables/flexgen.yaml, h2o.yaml"},
    {"output", 'o', AQ_GROUP_JOB, PUBLISHED, AQ_OPTION_STRING, AT(output), .argument = "FILE",
     .help = "write the result here instead of standard output"},

    /* ---- probe ---- */
    {"output", 'o', AQ_GROUP_JOB, PROBE, AQ_OPTION_STRING, AT(output), .argument = "FILE",
     .help = "write the profile here, as YAML; otherwise to standard output"},
    {"keep", 0, AQ_GROUP_JOB, PROBE, AQ_OPTION_BOOL, AT(keep),
     .help = "keep it in the cache directory as what --hardware local means, in place of an older "
             "one and however much it varied; the disk is then that of --disk-dir or of the cache "
             "directory"},
    {"quick", 0, AQ_GROUP_JOB, PROBE, AQ_OPTION_BOOL, AT(quick),
     .help = "less of everything: some seconds, and less exact"},

    /* ---- tokenize, info, status ---- */
    {"decode", 0, AQ_GROUP_JOB, TOKENIZE, AQ_OPTION_BOOL, AT(decode),
     .help = "turn {\"ids\"} back into {\"text\"}"},
    {"chat", 0, AQ_GROUP_JOB, TOKENIZE, AQ_OPTION_BOOL, AT(chat),
     .help = "lines are conversations ({\"messages\"}, a batch line, or a list of messages): "
             "the prompt that the model's chat template makes of each, as text and ids"},
    {"cache", 0, AQ_GROUP_JOB, INFO, AQ_OPTION_BOOL, AT(cache),
     .help = "list the packed stores of the cache directory"},
    {"file", 0, AQ_GROUP_JOB, STATUS, AQ_OPTION_STRINGS, AT(status_files), .argument = "FILE",
     .flags = AQ_OPTION_POSITIONAL,
     .help = "the results file of a run, or its .status.json; several are added up"},
    {"files", 0, AQ_GROUP_JOB, MERGE, AQ_OPTION_STRINGS, AT(merge_files), .argument = "FILE",
     .flags = AQ_OPTION_POSITIONAL,
     .help = "the file to make, then the results file of every shard, in any order"},

    /* ---- placement and memory ---- */
    {"device", 0, AQ_GROUP_MEMORY, CHOOSE | PROBE, AQ_OPTION_CHECKED, AT(device),
     .argument = "NAME", .check = aq_check_device, .suggest = "auto|cpu|cuda",
     .help =
         "auto, cpu, cuda or cuda:N; auto is the GPU where there is one, and stops where NVIDIA "
         "hardware is visible but cannot be used"},
    {"host-memory", 0, AQ_GROUP_MEMORY, CHOOSE | PACK, AQ_OPTION_SIZE, AT(host_memory),
     .argument = "SIZE", AT_LEAST(1), .flags = AQ_OPTION_AUTO,
     .help = "absolute budget of the whole process; auto: what is available, cgroup and resource "
             "limits respected, less 2 GiB or 5 %, whichever is more"},
    {"device-memory", 0, AQ_GROUP_MEMORY, CHOOSE, AQ_OPTION_SIZE, AT(device_memory),
     .argument = "SIZE", AT_LEAST(1), .flags = AQ_OPTION_AUTO,
     .help = "budget of a GPU, its driver's context included; auto: what is free less 512 MiB or "
             "3 %, whichever is more; the cpu has none"},
    {"disk-memory", 0, AQ_GROUP_MEMORY, CHOOSE, AQ_OPTION_SIZE, AT(disk_memory), .argument = "SIZE",
     AT_LEAST(1), .flags = AQ_OPTION_AUTO,
     .help =
         "budget of scratch on disk (KV, hidden states), beside packed weights; auto: what a run "
         "needs, and of plan what is free less 5 % and less the packed weights; of plan, more "
         "than another machine has means a disk of that size, packed weights included"},
    {"disk-dir", 0, AQ_GROUP_MEMORY, RUN, AQ_OPTION_LIST, AT(disk_dir), .argument = "DIR,...",
     .help = "directories for scratch; otherwise the cache directory"},
    {"disk-dir", 0, AQ_GROUP_MEMORY, PROBE, AQ_OPTION_LIST, AT(disk_dir), .argument = "DIR",
     .help = "directory whose disk is measured; otherwise none is"},
    {"disk-dir-any", 0, AQ_GROUP_MEMORY, RUN, AQ_OPTION_BOOL, AT(disk_dir_any),
     .help = "scratch may lie on tmpfs or a network file system"},
    {"cache-dir", 0, AQ_GROUP_MEMORY, CHOOSE | PACK | INFO | PROBE, AQ_OPTION_STRING, AT(cache_dir),
     .argument = "DIR", .help = "packed cache; otherwise $XDG_CACHE_HOME/aquifer"},
    {"placement", 0, AQ_GROUP_MEMORY, CHOOSE, AQ_OPTION_CHECKED, AT(placement),
     .argument = "SHARES", .check = aq_check_placement,
     .help = "auto, or percentages device/host/disk: \"weights=D/H/N kv=D/H/N hidden=D/H/N "
             "head=host\"; on the cpu a device share counts as host"},
    {"micro-batch", 0, AQ_GROUP_MEMORY, GENERATE | EVAL | PLAN, AQ_OPTION_U32, AT(micro_batch),
     .argument = "N", RANGE(1, SEATS_MAX), .flags = AQ_OPTION_AUTO,
     .help = "seats of a micro-batch (default: planned)"},
    {"micro-batch", 0, AQ_GROUP_MEMORY, BENCH, AQ_OPTION_U32_LIST, AT(bench_micro_batch),
     COUNT(bench_micro_batch_count), .argument = "N,...", RANGE(1, SEATS_MAX),
     .help = "seats of a micro-batch (default: planned); a list gives one row for each"},
    {"micro-batches", 0, AQ_GROUP_MEMORY, CHOOSE, AQ_OPTION_U32, AT(micro_batches), .argument = "N",
     RANGE(1, 256), .flags = AQ_OPTION_AUTO, .help = "micro-batches of a block (default: planned)"},
    {"micro-batch-tokens", 0, AQ_GROUP_MEMORY, CHOOSE, AQ_OPTION_U32, AT(micro_batch_tokens),
     .argument = "N", RANGE(1, TOKENS_MAX), .flags = AQ_OPTION_AUTO,
     .help = "new prompt tokens a micro-batch takes in one pass (default: planned)"},
    {"attention", 0, AQ_GROUP_MEMORY, CHOOSE, AQ_OPTION_CHECKED, AT(attention), .argument = "WHERE",
     .check = aq_check_attention, .suggest = "auto|host|device|split",
     .help = "where decode attention of KV in host memory runs: auto, host, device, split or "
             "split:SHARE (the host's); on the cpu host and device are the same"},
    {"host-products", 0, AQ_GROUP_MEMORY, CHOOSE, AQ_OPTION_CHECKED, AT(host_products),
     .argument = "SHARE", .check = aq_check_host_products,
     .help = "auto, or the share (0.25, 25%) of the weights in host memory that the host computes "
             "with, instead of moving them to a device"},
    {"kv-policy", 0, AQ_GROUP_MEMORY, CHOOSE, AQ_OPTION_CHOICE, AT(kv_policy), .argument = "NAME",
     .choices = "full|h2o|h2o:flexgen|h2o:hf|window|heavy|adakv|snapkv|pyramidkv|ada-snapkv|"
                "ada-pyramid|tova|knorm|keydiff|expected|scissorhands|kvcompress|fastgen",
     .help =
         "what the KV cache keeps of a sequence (aquifer help kv has a table); full: every token "
         "(default); h2o: those that got most attention, and the newest; h2o:flexgen, h2o:hf: as "
         "those programs do it; window: the first and the newest; heavy: those that got most, and "
         "the newest one; snapkv: of a prompt what its last tokens attend to; pyramidkv: so, less "
         "from layer to layer; adakv, ada-snapkv, ada-pyramid: heads share their slots; tova: what "
         "the newest token attends to; knorm, keydiff: short keys, or those unlike the others; "
         "expected: what queries to come may attend to; "
         "scissorhands: those that seldom got little; kvcompress: all layers share; fastgen: by a "
         "rule for each head"},
    {"kv-budget", 0, AQ_GROUP_MEMORY, CHOOSE, AQ_OPTION_CHECKED, AT(kv_budget), .argument = "X",
     .check = aq_check_kv_budget,
     .help = "tokens kept: a share (0.2 or 20%) of the prompt and what may be generated, or a "
             "number of slots; h2o:flexgen: a share of the prompt for each half; where new tokens "
             "grow (snapkv, pyramidkv, ada-snapkv, ada-pyramid, knorm, keydiff, expected, "
             "kvcompress): of the prompt; fastgen: at most, of the prompt"},
    {"kv-heavy", 0, AQ_GROUP_MEMORY, CHOOSE, AQ_OPTION_CHECKED, AT(kv_heavy), .argument = "X",
     .check = aq_check_kv_part,
     .help = "of these, the ones that got most attention (default: half)"},
    {"kv-recent", 0, AQ_GROUP_MEMORY, CHOOSE, AQ_OPTION_CHECKED, AT(kv_recent), .argument = "X",
     .check = aq_check_kv_part,
     .help = "and the newest, one at least (default: the rest; kvcompress 64)"},
    {"kv-heads", 0, AQ_GROUP_MEMORY, CHOOSE, AQ_OPTION_CHOICE, AT(kv_heads), .argument = "HOW",
     .choices = "uniform|shared",
     .help = "of the heavy ones, as many for each head of a layer, or the best of all heads "
             "together (default: adakv, ada-snapkv and ada-pyramid shared)"},
    {"kv-floor", 0, AQ_GROUP_MEMORY, CHOOSE, AQ_OPTION_CHECKED, AT(kv_floor), .argument = "X",
     .check = aq_check_kv_floor,
     .help = "where heads share: what each keeps for itself, its own best (reserve:X, or X), or as "
             "a part of its number that is even (mix:X); default adakv 20%, else mix:20%"},
    {"kv-sinks", 0, AQ_GROUP_MEMORY, CHOOSE, AQ_OPTION_U32, AT(kv_sinks), GIVEN(kv_sinks_given),
     .argument = "N", RANGE(0, TOKENS_MAX),
     .help =
         "first tokens that are never dropped (default: window, fastgen and expected 4, else 0)"},
    {"kv-grace", 0, AQ_GROUP_MEMORY, CHOOSE, AQ_OPTION_U32, AT(kv_grace), .argument = "N",
     RANGE(0, TOKENS_MAX),
     .help = "newest tokens that are not dropped while generating, where that is more than the "
             "recent ones (default 0)"},
    {"kv-decay", 0, AQ_GROUP_MEMORY, CHOOSE, AQ_OPTION_REAL, AT(kv_decay), .argument = "X",
     RANGE(0, 1), .flags = AQ_OPTION_ABOVE_MIN,
     .help = "factor on the attention that tokens got before, at each new token (default 1: none)"},
    {"kv-group", 0, AQ_GROUP_MEMORY, CHOOSE, AQ_OPTION_CHOICE, AT(kv_group), .argument = "HOW",
     .choices = "sum|mean|max|first|max-of-sums",
     .help = "how query heads that share a KV head count together (default sum, snapkv mean)"},
    {"kv-observe", 0, AQ_GROUP_MEMORY, CHOOSE, AQ_OPTION_U32, AT(kv_observe),
     GIVEN(kv_observe_given), .argument = "N", RANGE(0, TOKENS_MAX),
     .help = "snapkv: last tokens of a prompt that rank the others, and stay (default 32)"},
    {"kv-cross-layer", 0, AQ_GROUP_MEMORY, CHOOSE, AQ_OPTION_REAL, AT(kv_cross_layer),
     GIVEN(kv_cross_layer_given), .argument = "X", RANGE(0, 1e6),
     .help = "kvcompress: until all layers are ranked a layer keeps at most X even shares of the "
             "budget; 0: the prompt, as in that program, which takes more memory (default 2)"},
    {"kv-ahead", 0, AQ_GROUP_MEMORY, CHOOSE, AQ_OPTION_U32, AT(kv_ahead), GIVEN(kv_ahead_given),
     .argument = "N", RANGE(0, TOKENS_MAX),
     .help = "expected: positions behind the prompt from which queries are expected (default 512)"},
    {"kv-mass", 0, AQ_GROUP_MEMORY, CHOOSE, AQ_OPTION_REAL, AT(kv_mass), GIVEN(kv_mass_given),
     .argument = "T", RANGE(0, 1), .flags = AQ_OPTION_ABOVE_MIN,
     .help = "fastgen: part of a head's attention that its rule must keep; (1 + T) / 2 is the "
             "paper's T (default 0.95; 1: all tokens)"},
    {"kv-frequent", 0, AQ_GROUP_MEMORY, CHOOSE, AQ_OPTION_CHECKED, AT(kv_frequent), .argument = "X",
     .check = aq_check_kv_part,
     .help = "fastgen: share of the prompt, or tokens, that a head may keep for the attention that "
             "they get (default 30%)"},
    {"kv-local", 0, AQ_GROUP_MEMORY, CHOOSE, AQ_OPTION_CHECKED, AT(kv_local), .argument = "X",
     .check = aq_check_kv_part,
     .help = "fastgen: share of the prompt, or tokens, that a head may keep for being the newest "
             "(default 30%)"},
    {"kv-pool", 0, AQ_GROUP_MEMORY, CHOOSE, AQ_OPTION_CHECKED, AT(kv_pool), .argument = "HOW",
     .check = aq_check_kv_pool,
     .help = "snapkv: a token's rank is the mean (avg:K) or the largest (max:K) of K tokens "
             "around it, or its own (none; default avg:5)"},
    {"kv-pool-order", 0, AQ_GROUP_MEMORY, CHOOSE, AQ_OPTION_CHOICE, AT(kv_pool_order),
     .argument = "HOW", .choices = "pool-first|group-first",
     .help = "snapkv: pooled for each query head, or for a KV head together (default pool-first)"},
    {"kv-layers", 0, AQ_GROUP_MEMORY, CHOOSE, AQ_OPTION_CHECKED, AT(kv_layers), .argument = "HOW",
     .check = aq_check_kv_layers,
     .help = "of a budget that a prompt is cut to: uniform, or more for the first layers and less "
             "for the last, in even steps (pyramid:B, of B times what the last has beside the "
             "window on average), or the other way round (rising:B); default uniform, pyramidkv "
             "pyramid:20"},
    {"kv-decode", 0, AQ_GROUP_MEMORY, CHOOSE, AQ_OPTION_CHOICE, AT(kv_decode), .argument = "HOW",
     .choices = "grow|overwrite|bulk",
     .help = "what becomes of the budget with new tokens: they come on top (grow), each takes the "
             "place of one that is dropped (overwrite), or many are dropped at a time (bulk: h2o, "
             "snapkv, pyramidkv; scissorhands always); default: the policy's"},
    {"kv-drop", 0, AQ_GROUP_MEMORY, CHOOSE, AQ_OPTION_CHECKED, AT(kv_drop), .argument = "X",
     .check = aq_check_kv_part,
     .help = "bulk: how much of the budget is dropped at a time, a share or a number of slots "
             "(default 25%, scissorhands 50%)"},
    {"kv-history", 0, AQ_GROUP_MEMORY, CHOOSE, AQ_OPTION_U32, AT(kv_history),
     GIVEN(kv_history_given), .argument = "N", RANGE(0, TOKENS_MAX),
     .help = "bulk: the last tokens in front of a drop whose attention ranks, as many as a drop at "
             "most; 0: all (default: h2o 0, snapkv as --kv-observe, scissorhands 400)"},
    {"kv-low", 0, AQ_GROUP_MEMORY, CHOOSE, AQ_OPTION_REAL, AT(kv_low), .argument = "X",
     RANGE(0, TOKENS_MAX), .flags = AQ_OPTION_ABOVE_MIN,
     .help = "scissorhands: attention is low below this number over the tokens seen (default 1)"},
    {"kv-positions", 0, AQ_GROUP_MEMORY, CHOOSE, AQ_OPTION_CHOICE, AT(kv_positions),
     .argument = "HOW", .choices = "text|cache",
     .help =
         "what new tokens take as the positions of what is kept: those in the text, or (window, "
         "of models with rotary positions, on the CPU) the places in the cache, as StreamingLLM "
         "has it, so that --context may be above the model's (default text)"},
    {"kv-read", 0, AQ_GROUP_MEMORY, CHOOSE, AQ_OPTION_U32, AT(kv_read), GIVEN(kv_read_given),
     .argument = "N", RANGE(0, TOKENS_MAX),
     .help =
         "slots that a new token reads of what is kept, in each head, 96 or more: the first and "
         "the newest head-blocks of 32, and those that bounds of their keys say it may attend "
         "to most (Quest); where attention runs on the host, and nothing is given up after the "
         "prompt (default: all)"},
    {"kv-read-dense", 0, AQ_GROUP_MEMORY, CHOOSE, AQ_OPTION_U32, AT(kv_read_dense),
     GIVEN(kv_read_dense_given), .argument = "L", RANGE(0, TOKENS_MAX),
     .help = "with --kv-read, the first L layers read everything (default 2)"},

    /* ---- machine and schedule ---- */
    {"threads", 't', AQ_GROUP_MACHINE, CHOOSE | PACK | PROBE, AQ_OPTION_U32, AT(threads),
     .argument = "N", RANGE(1, THREADS_MAX), .flags = AQ_OPTION_AUTO,
     .help =
         "worker threads; otherwise what affinity and cgroup quota allow, and with a GPU two fewer "
         "of 8 and more"},
    {"hardware", 0, AQ_GROUP_MACHINE, CHOOSE | INFO, AQ_OPTION_STRING, AT(hardware),
     .argument = "local|NAME|FILE",
     .help =
         "rates that plans and predictions are made with: a machine of configs/hardware (plan "
         "--hardware list; all, or names with commas: plan ranks them), a YAML file (aquifer help "
         "hardware), or local: the profile kept in the cache directory (by aquifer probe --keep), "
         "else "
         "one measured in seconds and kept there unless a rate varied by more than 50 %; "
         "otherwise plan takes local, the others a kept profile or 0.2 s of measuring"},
    {"isa", 0, AQ_GROUP_MACHINE, CHOOSE | PROBE, AQ_OPTION_CHOICE, AT(isa), .argument = "NAME",
     .choices = "auto|ref|avx2|avx512|avx512vnni|avx512bf16|amx", .flags = AQ_OPTION_AUTO,
     .help =
         "highest instruction set to use; auto: the best this CPU has, without an AVX512-BF16 that "
         "is slower than what lies below it"},
    {"numa", 0, AQ_GROUP_MACHINE, RUN, AQ_OPTION_CHECKED, AT(numa), .argument = "MODE",
     .check = aq_check_numa, .suggest = "auto|off",
     .help =
         "memory node of large buffers: auto (a part of weights, KV and threads on each, or the "
         "GPU's), off or a node's number"},
    {"io", 0, AQ_GROUP_MACHINE, RUN | PROBE, AQ_OPTION_ENUM, AT(io), .argument = "ENGINE",
     .choices = "auto|uring|threads", /* as enum aq_io_kind */
     .help = "engine of disk transfers; auto: io_uring where it may be used"},
    {"io-direct", 0, AQ_GROUP_MACHINE, RUN | PROBE, AQ_OPTION_ENUM, AT(io_direct),
     .argument = "MODE", .choices = "auto|on|off", /* as enum aq_direct */
     .help = "whether disk transfers pass by the page cache (O_DIRECT)"},
    {"verify-store", 0, AQ_GROUP_MACHINE, RUN, AQ_OPTION_ENUM, AT(verify_store), .argument = "WHEN",
     .choices = "once|always|off", .deflt = "once",
     .help = "checksums of packed weights as they arrive: once, the first time; always, and of "
             "scratch too"},
    {"executor", 0, AQ_GROUP_MACHINE, CHOOSE, AQ_OPTION_CHOICE, AT(executor), .argument = "MODE",
     .choices = "overlapped|serial",
     .help = "overlapped: lanes run side by side; serial: one op after the other"},
    {"refill", 0, AQ_GROUP_MACHINE, GENERATE | EVAL | PLAN, AQ_OPTION_BOOL, AT(refill),
     .deflt = "on", .help = "a finished sequence gives its seat to a waiting one at once"},
    {"refill", 0, AQ_GROUP_MACHINE, BENCH, AQ_OPTION_CHOICE_ON, AT(refill), .argument = "off",
     .choices = "off", .later = "on", .why = "a benchmark runs every prompt of a block to its end",
     .deflt = "off", .help = "always off here: every prompt of a block runs to its end"},
    {"share-prefixes", 0, AQ_GROUP_MACHINE, CHOOSE, AQ_OPTION_ENUM, AT(share_prefixes),
     .argument = "WHEN", .choices = "auto|on|off", .deflt = "auto", /* as enum aq_share_prefixes */
     .help = "prompts that begin alike are computed once while they run together; records are put "
             "in order for it: auto, where that saves 5 % of the prompts' tokens; on, always"},
    {"deterministic", 0, AQ_GROUP_MACHINE, CHOOSE, AQ_OPTION_BOOL, AT(deterministic),
     .help = "same bits in every run; on the cpu always so"},
    {"prefetch", 0, AQ_GROUP_MACHINE, CHOOSE, AQ_OPTION_SIZE, AT(prefetch), .argument = "SIZE",
     RANGE(4096, RING_MAX), .flags = AQ_OPTION_AUTO,
     .help = "bytes of the ring through which weights stream (default: planned)"},
    {"chunk", 0, AQ_GROUP_MACHINE, CHOOSE, AQ_OPTION_SIZE, AT(chunk), .argument = "SIZE",
     RANGE(4096, RING_MAX), .flags = AQ_OPTION_AUTO,
     .help = "most bytes of one chunk of the ring (default: planned)"},
    {"kv-stage", 0, AQ_GROUP_MACHINE, CHOOSE, AQ_OPTION_SIZE, AT(kv_stage), .argument = "SIZE",
     RANGE(4096, RING_MAX), .flags = AQ_OPTION_AUTO,
     .help = "most bytes of a layer's KV cache that cross a link, or come from disk, together "
             "(default: planned)"},
    {"fuse-layer", 0, AQ_GROUP_MACHINE, CHOOSE, AQ_OPTION_BOOL, AT(fuse_layer),
     .help = "a micro-batch passes both halves of a layer before the next one comes"},
    {"alternate", 0, AQ_GROUP_MACHINE, CHOOSE, AQ_OPTION_BOOL, AT(alternate),
     .help = "steps visit the micro-batches up and down in turn, which saves a move of hidden "
             "states"},
    {"side-by-side", 0, AQ_GROUP_MACHINE, CHOOSE, AQ_OPTION_ENUM, AT(side_by_side),
     .argument = "WHEN", .choices = "auto|on|off", .deflt = "auto", /* as enum aq_side_by_side */
     .help = "on a cpu, new tokens of a micro-batch are attended beside the products of others: "
             "auto, where measured rates say that this is faster; on, always"},
    {"replay", 0, AQ_GROUP_JOB, BENCH, AQ_OPTION_BOOL, AT(replay),
     .help = "move everything, compute nothing: the transfers of the program on dummy bytes"},
    {"emulate-device", 0, AQ_GROUP_MACHINE, CHOOSE, AQ_OPTION_SIZE, AT(emulate_device),
     .argument = "SIZE", AT_LEAST(4096),
     .help = "the cpu plays a separate device with this much memory, inside --host-memory"},
    {"emulate-link", 0, AQ_GROUP_MACHINE, CHOOSE, AQ_OPTION_CHECKED, AT(emulate_link),
     .argument = "H2D/D2H", .check = aq_check_link,
     .help = "speed of the emulated device's links in GB/s each way, such as 12/12"},

    /* ---- reports and messages ---- */
    {"dry-run", 0, AQ_GROUP_REPORT, RUN, AQ_OPTION_BOOL, AT(dry_run),
     .help = "print preflight, plan and ledger, and stop"},
    {"report", 0, AQ_GROUP_REPORT, RUN, AQ_OPTION_STRING, AT(report), .argument = "FILE",
     .help = "write what was done, how fast and with how much memory, as JSON"},
    {"trace", 0, AQ_GROUP_REPORT, RUN, AQ_OPTION_STRING, AT(trace), .argument = "FILE",
     .help = "write what each lane did, and should have done, for chrome://tracing or Perfetto"},
    {"progress", 0, AQ_GROUP_REPORT, RUN | PACK, AQ_OPTION_DURATION, AT(progress_s),
     .argument = "SECONDS", AT_LEAST(0.1),
     .help = "time between progress lines; otherwise after 10 s, 1 min, then every 60 s"},
    {"metrics-file", 0, AQ_GROUP_REPORT, GENERATE, AQ_OPTION_STRING, AT(metrics_file),
     .argument = "FILE",
     .help = "how far the run is, in Prometheus' text format, replaced every 5 s: for the textfile "
             "collector of node_exporter"},
    {"log-time", 0, AQ_GROUP_REPORT, ALL, AQ_OPTION_BOOL, AT(log_time),
     .help = "a time stamp in front of each line of messages; progress comes as lines, too"},
    {"quiet", 0, AQ_GROUP_REPORT, ALL, AQ_OPTION_BOOL, AT(quiet), .help = "no progress, no notes"},
    {"json", 0, AQ_GROUP_REPORT, ALL, AQ_OPTION_BOOL, AT(json),
     .help = "print one JSON document instead of text"},
};
const uint32_t aq_option_count = AQ_ARRAY_LEN(aq_option_table);

const struct aq_option_alias aq_option_aliases[] = {
    {"dtype", "compute"},
    {"max-new-tokens", "max-tokens"},
    {"max-completion-tokens", "max-tokens"},
    {"n-predict", "max-tokens"},
    {"temp", "temperature"},
    {"batch-size", "micro-batch"},
    {"gpu-batch-size", "micro-batch"},
    {"num-gpu-batches", "micro-batches"},
    {"kv-cache-dtype", "kv-format"},
    {"offload-dir", "disk-dir"},
    {"max-model-len", "context"},
    {"ctx-size", "context"},
    {"predict", "max-tokens"},
    {"torch-dtype", "compute"},
    {"model-name-or-path", "model"},
    {"model-path", "model"},
    {"model-id", "model"},
    {"repeat-penalty", "repetition-penalty"},
    {"num-return-sequences", "n"},
    {"offload-folder", "disk-dir"},
    {"input-file", "input"},
    {"output-file", "output"},
    {"input-len", "prompt-len"},
    {"random-input-len", "prompt-len"},
    {"n-prompt", "prompt-len"},
    {"output-len", "gen-len"},
    {"random-output-len", "gen-len"},
    {"n-gen", "gen-len"},
    {"num-prompts", "requests"},
    {"num-iters", "repeats"},
    {"num-iters-warmup", "warmup"},
};
const uint32_t aq_option_alias_count = AQ_ARRAY_LEN(aq_option_aliases);

const struct aq_command aq_command_table[] = {
    {"generate",
     GENERATE,
     "continue every prompt of a JSONL file",
     "aquifer generate --model DIR --input prompts.jsonl --output results.jsonl [options]",
     "Reads records, checks them all before any weight is read, runs them in large batches and "
     "appends one result line for each, in the pass in which it ends. A stopped run goes on where "
     "it was when it is started again with the same output. Values of a record win over the "
     "options below.",
     "model input output prompt max-tokens temperature top-p seed n stop logprobs ordered "
     "overwrite retry-errors limit input-format prompt-field weight-format kv-format device "
     "host-memory device-memory disk-dir placement kv-policy kv-budget threads dry-run report "
     "progress quiet json",
     {"aquifer generate --model DIR --input prompts.jsonl --output results.jsonl",
      "aquifer generate --model DIR --input prompts.jsonl --output results.jsonl "
      "--host-memory 20GiB --max-tokens 64"}},
    {"eval",
     EVAL,
     "score a text: loss and perplexity",
     "aquifer eval --model DIR --text FILE --prompt-tokens P --score-tokens G [options]",
     "Cuts the text into windows of P + G tokens, prefills P of them, feeds the next G one at a "
     "time and scores each by its log-probability.",
     "model text ids prompt-tokens score-tokens windows bos compare-full sweep weight-format "
     "kv-format device host-memory kv-policy kv-budget kv-recent dry-run report quiet json",
     {"aquifer eval --model DIR --text book.txt --prompt-tokens 512 "
      "--score-tokens 128",
      "aquifer eval --model DIR --text book.txt --prompt-tokens 512 "
      "--score-tokens 128 --kv-policy h2o --kv-budget 20% --compare-full"}},
    {"bench",
     BENCH,
     "measure throughput, with real or random weights",
     "aquifer bench (--model DIR | --shape NAME --random-weights SEED) --prompt-len 512 "
     "--gen-len 32 [options]",
     "Runs distinct random prompts of the given length, generates exactly the given number of "
     "tokens and prints rates, each measured several times. With --table FILE it runs the rows of "
     "a file, beside what others published for them; a row that cannot run is reported and the "
     "others go on (exit status 3).",
     "model shape random-weights prompt-len gen-len requests micro-batch micro-batches repeats "
     "warmup decode-passes table format output weight-format kv-format device host-memory "
     "device-memory placement attention kv-policy kv-budget threads dry-run report quiet json",
     {"aquifer bench --model DIR --prompt-len 512 --gen-len 32",
      "aquifer bench flexgen --model DIR --percent 0 100 0 100 0 "
      "100 --gpu-batch-size 8"}},
    {"pack",
     PACK,
     "convert a checkpoint to the packed store",
     "aquifer pack --model DIR --output STORE[,STORE2] [options]",
     "Re-lays the weights for sequential reading. The store is self-contained, is published by one "
     "rename, and an interrupted conversion can be started again.",
     NULL,
     {"aquifer pack --model DIR --output /disk1/store",
      "aquifer pack --output /disk1/store --verify"}},
    {"tokenize",
     TOKENIZE,
     "text to token ids and back",
     "aquifer tokenize --model DIR [--input FILE] [--decode] [options]",
     "Turns lines {\"text\"} (or records of generate) into lines {\"ids\"}, or back with --decode. "
     "Reads only the tokenizer "
     "of the model. Without --input it reads standard input.",
     NULL,
     {"aquifer tokenize --model DIR --input texts.jsonl",
      "aquifer tokenize --chat --model DIR --input talks.jsonl"}},
    {"info",
     INFO,
     "what this machine and this build offer, or how large a model is",
     "aquifer info [--model DIR | --shape NAME] [--hardware NAME,...] [--json] [--cache]",
     "Prints version, backends, instruction sets, threads, io engines and memory limits with "
     "where they come from. Of a model: parameters, bytes of its weights by format and of KV a "
     "token, and which machines (all that are built in, or those of --hardware) hold it with how "
     "many tokens of KV.",
     NULL,
     {"aquifer info", "aquifer info --shape NAME"}},
    {"published",
     PUBLISHED,
     "predict what others published, beside this engine's own plan",
     "aquifer published FILE [--json] [--output FILE]",
     "Reads a table of published throughput figures and predicts each row twice, without running "
     "anything: by a model of the program that it was published for, on its policy and machine, "
     "with that program's rules switched off one after the other; and by the plan that aquifer "
     "would make on that machine. A ratio near 1 says that the model explains the figure.",
     NULL,
     {"aquifer published configs/tables/flexgen.yaml",
      "aquifer published configs/tables/h2o.yaml --json --output rows.json"}},
    {"merge",
     MERGE,
     "join the results of shards to those of one run",
     "aquifer merge OUTPUT SHARD... [--ordered]",
     "Checks that the shards belong together, that none is missing, and that each has one result "
     "for each of its records; then writes OUTPUT, which is a results file like that of a run "
     "without --shard. Files whose names end in .gz or .zst are compressed, OUTPUT too; error "
     "records that a shard has in another file (--errors) are joined with the rest. Otherwise it "
     "says what is missing, writes nothing, and ends with 1.",
     NULL,
     {"aquifer merge results.jsonl part-0.jsonl part-1.jsonl",
      "aquifer merge --ordered results.jsonl part-0.jsonl part-1.jsonl"}},
    {"status",
     STATUS,
     "how far a running job is",
     "aquifer status FILE... [--json]",
     "Prints FILE.status.json, which a run keeps up to date beside its results. Of several files, "
     "such as the shards of a job, it prints a line each and their sum.",
     NULL,
     {"aquifer status results.jsonl", "aquifer status results.jsonl --json"}},
    {"plan",
     PLAN,
     "what fits, where it goes, how fast, and what binds",
     "aquifer plan (--model DIR | --shape NAME) [--hardware local|NAME|FILE|all] --prompt-len "
     "N|A-B "
     "--gen-len N|A-B [--requests N] [options]",
     "Chooses what is not fixed: block shape, placement, where attention runs, and what --allow "
     "opens. With --input FILE lengths and requests are those of its records. Reads no weights and "
     "runs nothing; the machine need not be this one.",
     "model shape hardware prompt-len gen-len requests input tokenizer allow deadline sweep html "
     "write-config weight-format kv-format device-memory host-memory disk-memory placement "
     "attention micro-batch micro-batches kv-policy kv-budget quiet json",
     {"aquifer plan --model DIR --hardware t4-208gb --prompt-len 512 --gen-len 128 "
      "--requests 100000",
      "aquifer plan --shape config.json --hardware rtx4090-24gb --input prompts.jsonl "
      "--deadline 72h --allow int8,kv-int8"}},
    {"probe",
     PROBE,
     "measure this machine for the planner",
     "aquifer probe [--disk-dir DIR] [--output hw.yaml] [--keep] [options]",
     "Measures in seconds what the machine has and how fast it is, with spread: memory, products, "
     "attention, copies by size, both ways at once and beside attention, and the disk of a "
     "directory. Prints a hardware profile that --hardware takes. Nothing else should run "
     "meanwhile.",
     NULL,
     {"aquifer probe --disk-dir /scratch --output hw.yaml", "aquifer probe --keep --quick"}},
};
const uint32_t aq_command_count = AQ_ARRAY_LEN(aq_command_table);

const struct aq_command *aq_command_find(const char *name)
{
    for (uint32_t i = 0; i < aq_command_count; i++) {
        if (strcmp(aq_command_table[i].name, name) == 0)
            return &aq_command_table[i];
    }
    return NULL;
}

/* Equal, '-' and '_' being the same. */
static bool same_name(const char *a, const char *b)
{
    for (; *a && *b; a++, b++) {
        if (*a != *b && !((*a == '_' && *b == '-') || (*a == '-' && *b == '_')))
            return false;
    }
    return *a == *b;
}

static const struct aq_option *find_row(unsigned commands, const char *name)
{
    for (uint32_t i = 0; i < aq_option_count; i++) {
        if ((aq_option_table[i].commands & commands) && same_name(aq_option_table[i].name, name))
            return &aq_option_table[i];
    }
    return NULL;
}

/* "generate and eval": the commands that have an option of this name. */
static void list_commands(const char *name, char *text, size_t bytes)
{
    const char *has[AQ_ARRAY_LEN(aq_command_table)];
    uint32_t count = 0;
    for (uint32_t i = 0; i < aq_command_count; i++) {
        if (aq_command_table[i].bit && find_row(aq_command_table[i].bit, name))
            has[count++] = aq_command_table[i].name;
    }
    size_t used = 0;
    text[0] = '\0';
    for (uint32_t i = 0; i < count && used < bytes; i++) {
        const char *join = i == 0 ? "" : i + 1 == count ? " and " : ", ";
        used += (size_t)snprintf(text + used, bytes - used, "%s%s", join, has[i]);
    }
}

static const char *nearest_option(const struct aq_command *command, const char *name)
{
    const char *names[256];
    uint32_t count = 0;
    for (uint32_t i = 0; i < aq_option_count && count < AQ_ARRAY_LEN(names); i++) {
        const struct aq_option *option = &aq_option_table[i];
        bool hidden = option->flags & (AQ_OPTION_API_ONLY | AQ_OPTION_POSITIONAL);
        if ((option->commands & command->bit) && !hidden)
            names[count++] = option->name;
    }
    /* --no-name is a way to write a flag: the name itself is what is nearest. */
    if (strncmp(name, "no-", 3) == 0 && name[3])
        name += 3;
    return aq_nearest(name, names, count);
}

int aq_option_find(const struct aq_option **ret, const struct aq_command *command, const char *name,
                   const char *dashes, struct aq_err *reterr)
{
    const char *real = name;
    for (uint32_t i = 0; i < aq_option_alias_count; i++) {
        if (same_name(aq_option_aliases[i].name, name))
            real = aq_option_aliases[i].option;
    }
    const struct aq_option *option = find_row(command->bit, real);
    if (option) {
        *ret = option;
        return 0;
    }
    if (!reterr) /* what is nearest takes long to find, and nobody asks */
        return -EINVAL;
    const struct aq_habit *habit = aq_habit_find(name, false);
    if (habit)
        return aq_error(reterr, -EINVAL, "'%s%s' is not an option here: %s%s", dashes, name,
                        habit->why ? "" : "write ", habit->why ? habit->why : habit->becomes);
    option = find_row(AQ_CMD_ALL, real);
    if (option && !(option->flags & AQ_OPTION_POSITIONAL)) {
        char commands[128];
        list_commands(real, commands, sizeof(commands));
        return aq_error(reterr, -EINVAL, "'%s%s' is an option of %s, not of %s", dashes, name,
                        commands, command->name);
    }
    const char *near = nearest_option(command, name);
    if (!near)
        return aq_error(reterr, -EINVAL,
                        "unknown option '%s%s' of %s; aquifer help %s lists its options", dashes,
                        name, command->name, command->name);
    return aq_error(reterr, -EINVAL, "unknown option '%s%s' of %s; the nearest one is '%s%s'",
                    dashes, name, command->name, dashes, near);
}

const struct aq_option *aq_option_find_short(const struct aq_command *command, char short_name)
{
    for (uint32_t i = 0; i < aq_option_count; i++) {
        if ((aq_option_table[i].commands & command->bit) &&
            aq_option_table[i].short_name == short_name)
            return &aq_option_table[i];
    }
    return NULL;
}

bool aq_option_is_flag(const struct aq_option *option)
{
    return option->kind == AQ_OPTION_BOOL || option->kind == AQ_OPTION_NO_BOS ||
           option->kind == AQ_OPTION_LATER_FLAG;
}
