/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/aquifer.h"
#include "engine/options/kv.h"
#include "engine/options/notation.h"
#include "engine/options/options.h"
#include "engine/options/table.h"
#include "tests/test.h"
#include "tests/unit/engine/options/options_rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- values ------------------------------------------------------------------------------ */

static void defaults_are_those_of_the_manual(void **state)
{
    struct aq_options *o = options_parse("generate", "");
    assert_string_equal(o->command, "generate");
    assert_int_equal(o->max_tokens, 32);
    assert_true(o->temperature == 0 && o->top_p == 1 && o->repetition_penalty == 1);
    assert_int_equal(o->n, 1);
    assert_int_equal(o->logprobs, -1);
    assert_int_equal(o->compute, -1);
    assert_int_equal(o->weight_format, -1);
    assert_int_equal(o->kv_format, -1);
    assert_true(o->refill && o->share_prefixes == AQ_SHARE_AUTO);
    assert_true(o->disk_full_wait_s == 600);
    assert_int_equal(o->bos, AQ_BOS_AUTO);
    assert_int_equal(o->overlong, AQ_OVERLONG_ERROR);
    assert_int_equal(o->input_format, AQ_INPUT_AUTO);
    assert_null(o->model);
    assert_int_equal(o->prompt.count, 0);
    assert_false(o->unknown_fields_error);
    aq_options_close(o);
    o = options_parse("bench", "");
    assert_int_equal(o->repeats, 3);
    assert_int_equal(o->warmup, 1);
    assert_false(o->refill);
    aq_options_close(o);
    o = options_parse("eval", "");
    assert_string_equal(o->bos_mode, "none");
    assert_false(o->prompt_tokens_given);
    aq_options_close(o);
}

static void a_value_follows_or_stands_behind_an_equals_sign(void **state)
{
    struct aq_options *o =
        options_parse("generate", "--model|a dir|--input=in=1.jsonl|--max_tokens=5");
    assert_string_equal(o->model, "a dir");
    assert_string_equal(o->input, "in=1.jsonl");
    assert_int_equal(o->max_tokens, 5);
    aq_options_close(o);
}

static void short_forms_take_their_value_in_three_ways(void **state)
{
    struct aq_options *o = options_parse("generate", "-m|dir|-n7|-t=3|-i|-|-o|out");
    assert_string_equal(o->model, "dir");
    assert_int_equal(o->max_tokens, 7);
    assert_int_equal(o->threads, 3);
    assert_string_equal(o->input, "-");
    assert_string_equal(o->output, "out");
    aq_options_close(o);
}

static void the_last_of_two_values_stands(void **state)
{
    struct aq_options *o = options_parse("generate", "-n|1|--max-new-tokens|9");
    assert_int_equal(o->max_tokens, 9);
    aq_options_close(o);
}

static void switches_go_on_and_off(void **state)
{
    struct aq_options *o = options_parse(
        "generate", "--ordered|--no-refill|--strict|off|--echo=true|--quiet|--no-quiet");
    assert_true(o->ordered);
    assert_false(o->refill);
    assert_false(o->strict);
    assert_true(o->echo);
    assert_false(o->quiet);
    aq_options_close(o);
}

static void no_bos_is_bos_never(void **state)
{
    struct aq_options *o = options_parse("generate", "--no-bos");
    assert_int_equal(o->bos, AQ_BOS_NEVER);
    aq_options_close(o);
    o = options_parse("tokenize", "--bos|always");
    assert_int_equal(o->bos, AQ_BOS_ALWAYS);
    aq_options_close(o);
    o = options_parse("eval", "--bos|each");
    assert_string_equal(o->bos_mode, "each");
    aq_options_close(o);
}

static void repeated_options_add_up(void **state)
{
    struct aq_options *o =
        options_parse("generate", "--stop|a,b|--stop|c|--stop-token-ids|1,2|--stop-token-ids|3|"
                                  "--disk-dir|/a,/b|--prompt|one|--prompt|two");
    assert_int_equal(o->stop.count, 2);
    assert_string_equal(o->stop.item[0], "a,b");
    assert_int_equal(o->stop_token_id_count, 3);
    assert_int_equal(o->stop_token_ids[2], 3);
    assert_int_equal(o->disk_dir.count, 2);
    assert_string_equal(o->disk_dir.item[1], "/b");
    assert_string_equal(o->prompt.item[1], "two");
    aq_options_close(o);
}

static void lists_grow_in_order(void **state)
{
    char text[8192] = "";
    for (int i = 0; i < 1000; i++)
        sprintf(text + strlen(text), "%s%d", i ? "," : "", i);
    char *words[] = {"--stop-token-ids", text, "--stop", "a", "--stop", "b",
                     "--stop",           "c",  "--stop", "d", "--stop", "e"};
    struct aq_options *o = NULL;
    bool help = false;
    assert_int_equal(aq_options_from_args(&o, "generate", AQ_ARRAY_LEN(words), words, &help, NULL),
                     0);
    assert_int_equal(o->stop_token_id_count, 1000);
    for (uint32_t i = 0; i < 1000; i++)
        assert_int_equal(o->stop_token_ids[i], i);
    assert_int_equal(o->stop.count, 5);
    for (uint32_t i = 0; i < 5; i++)
        assert_int_equal(o->stop.item[i][0], 'a' + (int)i);
    aq_options_close(o);
}

static void bench_takes_lists(void **state)
{
    struct aq_options *o =
        options_parse("bench", "--prompt-len|128,512|--gen-len|32|--micro-batch=1,8, 64");
    assert_int_equal(o->prompt_len_count, 2);
    assert_int_equal(o->prompt_len[1], 512);
    assert_int_equal(o->gen_len_count, 1);
    assert_int_equal(o->bench_micro_batch_count, 3);
    assert_int_equal(o->bench_micro_batch[2], 64);
    aq_options_close(o);
}

static void auto_is_the_default_of_planned_numbers(void **state)
{
    struct aq_options *o = options_parse(
        "generate", "--micro-batch|auto|--threads|auto|--host-memory|auto|--isa|auto");
    assert_int_equal(o->micro_batch, 0);
    assert_int_equal(o->threads, 0);
    assert_int_equal(o->host_memory, 0);
    assert_null(o->isa);
    assert_true(aq_options_given(o, "threads"));
    assert_false(aq_options_given(o, "context"));
    aq_options_close(o);
}

static void habits_from_elsewhere_are_understood(void **state)
{
    struct aq_options *o =
        options_parse("generate", "--dtype|bfloat16|--n-predict|4|--temp|0.7|--batch-size|3|"
                                  "--num-gpu-batches|2|--kv-cache-dtype|fp16|--offload-dir|/x|"
                                  "--max-model-len|99");
    assert_int_equal(o->compute, AQ_BF16);
    assert_int_equal(o->max_tokens, 4);
    assert_true(o->temperature == 0.7);
    assert_int_equal(o->micro_batch, 3);
    assert_int_equal(o->micro_batches, 2);
    assert_int_equal(o->kv_format, AQ_F16);
    assert_string_equal(o->disk_dir.item[0], "/x");
    assert_int_equal(o->context, 99);
    aq_options_close(o);
}

static void values_that_mean_what_is_done_anyway_are_taken(void **state)
{
    struct aq_options *o = options_parse(
        "generate", "--device|cpu|--attention|auto|--kv-policy|full|--kv-budget|100%|--io|auto|"
                    "--io-direct|auto|--executor|serial|--numa|off|"
                    "--placement|weights=20/80/0 kv=0/100/0 hidden=0/100/0 head=host");
    assert_string_equal(o->device, "cpu");
    aq_options_close(o);
}

/* ---- messages ---------------------------------------------------------------------------- */

static void unknown_flags_name_the_nearest_one(void **state)
{
    options_refuse("generate", "--temprature|1",
                   "'--temprature' of generate; the nearest one is '--temperature'");
    options_refuse("generate", "--max-token|1", "'--max-tokens'");
    options_refuse("generate", "--no-ordred", "'--ordered'");
    options_refuse("generate", "-model|x", "'--model'");
    options_refuse("generate", "-x", "'-x'");
}

static void flags_of_other_commands_are_named_as_such(void **state)
{
    options_refuse("generate", "--windows|3", "an option of eval, not of generate");
    options_refuse("info", "--top-p|1", "an option of generate, not of info");
    options_refuse("pack", "--bos|none", "an option of generate, eval, tokenize and plan");
}

static void advice_comes_with_habits_that_have_no_equal(void **state)
{
    options_refuse("generate", "--gpu-memory-utilization|0.9", "--device-memory");
    options_refuse("bench", "--percent=1", "six percentages");
    options_refuse("bench", "--attention|both",
                   "expected auto, host, device, split or split:SHARE");
    options_refuse("bench", "--attention|split:100%", "between 0% and 100%");
    options_refuse("bench", "--attention|split:1.5",
                   "expected split: and a share such as 0.25 or 25% (of at most 100 %), found "
                   "'split:1.5'");
}

static void wrong_values_name_flag_expected_and_found(void **state)
{
    options_refuse("generate", "--max-tokens|-1", "--max-tokens: expected an integer from 0");
    options_refuse("generate", "--max-tokens|ten", "found 'ten'");
    options_refuse("generate", "--logprobs|21", "from 0 to 20, found '21'");
    options_refuse("generate", "--top-p|0", "above 0 and at most 1, found '0'");
    options_refuse("generate", "--temp|nan",
                   "--temp: expected a number from 0 to 100, found 'nan'");
    options_refuse("generate", "--threads|0", "from 1 to 1024, or auto, found '0'");
    options_refuse("generate", "--host-memory|0", "of at least 1, found '0'");
    options_refuse("generate", "--host-memory|16XB", "expected a size such as");
    options_refuse("generate", "--disk-full-wait|soon", "--disk-full-wait: expected a time");
    options_refuse("generate", "--overlong|cut",
                   "expected one of error, truncate-left, truncate-right, clip");
    options_refuse("generate", "--stop-token-ids|1,x", "found 'x'");
    options_refuse("generate", "--ordered=maybe", "expected on or off, found 'maybe'");
    options_refuse("plan", "--side-by-side|maybe",
                   "--side-by-side: expected one of auto, on, off, found 'maybe'");
    options_refuse("generate", "--share-prefixes|maybe",
                   "--share-prefixes: expected one of auto, on, off, found 'maybe'");
    options_refuse("generate", "--model=", "--model: expected DIR, found ''");
    options_refuse("generate", "--seed|18446744073709551616", "to 18446744073709551615");
    options_refuse("generate", "--disk-dir|/a,,/b", "expected DIR,...");
    options_refuse("generate", "--model|a\xff",
                   "--model: expected UTF-8, found byte 0xff at 1 of 'a?'");
    options_refuse("generate", "--prompt|\xc3", "--prompt: expected UTF-8");
}

static void a_missing_value_is_not_stolen_from_the_next_flag(void **state)
{
    options_refuse("generate", "--model|--input|x",
                   "--model: expected DIR, found the flag '--input'");
    options_refuse("generate", "--model", "found the end of the line");
    options_refuse("generate", "--share-prefixes|--ordered", "WHEN, found the flag '--ordered'");
    struct aq_options *o = options_parse("generate", "--stop|--|--stop|--x");
    assert_string_equal(o->stop.item[0], "--");
    assert_string_equal(o->stop.item[1], "--x");
    aq_options_close(o);
}

static void a_choice_that_may_be_off_is_switched_off(void **state)
{
    static const char *const words[] = {"--no-share-prefixes", "--share-prefixes|off",
                                        "--share-prefixes=off"};
    for (size_t i = 0; i < AQ_ARRAY_LEN(words); i++) {
        struct aq_options *o = options_parse("generate", words[i]);
        assert_int_equal(o->share_prefixes, AQ_SHARE_OFF);
        aq_options_close(o);
    }
    struct aq_options *o = options_parse("plan", "--share-prefixes|on");
    assert_int_equal(o->share_prefixes, AQ_SHARE_ON);
    aq_options_close(o);
    options_refuse("generate", "--no-verify-store", "unknown option '--no-verify-store'");
}

static void what_comes_later_says_so(void **state)
{
    options_refuse("generate", "--placement|weights=0/50/50 head=disk", "it stays in memory");
    options_refuse("generate", "--placement|weights=0/50/49", "shares that sum to 100, found 99");
    options_refuse("plan", "--shape|opt-30b|--prompt-len|9-3|--gen-len|1",
                   "--prompt-len: expected");
    options_refuse("bench", "--refill|on", "not available in this version: a benchmark");
}

static void what_a_budget_of_one_means_is_asked(void **state)
{
    options_refuse("generate", "--kv-budget|1", "100 % or one token?");
    options_refuse("generate", "--kv-budget|120%", "at most 100 %");
    options_refuse("generate", "--kv-budget|1.5", "at most 100 %");
    options_refuse("generate", "--kv-budget|lots", "expected a share");
    options_refuse("generate", "--kv-budget|-3", "expected a share");
    options_refuse("generate", "--kv-budget|20 %", "expected a share");
    options_refuse("generate", "--kv-budget|%", "expected a share");
    options_refuse("generate", "--kv-budget|nan", "expected a share");
    options_refuse("generate", "--kv-budget|99999999999", "whole number of slots");
    options_refuse("generate", "--kv-heavy|half", "--kv-heavy: expected a share");
    options_refuse("generate", "--kv-policy|h2o:vllm", "expected one of full, h2o, h2o:flexgen");
    options_refuse("generate", "--kv-decay|0", "above 0 and at most 1");
    options_refuse("generate", "--kv-group|median", "expected one of sum, mean, max, first");
}

static void a_ring_has_a_largest_size(void **state)
{
    static const char *const sizes[] = {"18446744073709551615", "16383PiB", "512TiB", "4095"};
    for (size_t i = 0; i < AQ_ARRAY_LEN(sizes); i++) {
        char line[80];
        snprintf(line, sizeof(line), "--chunk=%s", sizes[i]);
        options_refuse("generate", line,
                       "--chunk: expected a number of bytes from 4096 to 1099511627776");
        snprintf(line, sizeof(line), "--prefetch=%s", sizes[i]);
        options_refuse("bench", line,
                       "--prefetch: expected a number of bytes from 4096 to 1099511627776");
    }
}

static void placement_shares_sum_to_100(void **state)
{
    options_refuse("generate", "--placement|weights=20/70/0", "sum to 100, found 90");
    options_refuse("generate", "--placement|weights=20/80", "expected percentages");
    options_refuse("generate", "--placement|weight=0/100/0",
                   "expected weights, kv, hidden or head");
    options_refuse("generate", "--placement|head=moon", "expected device, host or disk");
    options_refuse("generate", "--placement|fast", "expected NAME=SHARES");
    options_refuse("generate", "--placement|kv=0/100/0 head=host,kv=0/0/100", "kv is given twice");
}

static void a_device_has_one_of_three_names(void **state)
{
    options_refuse("generate", "--device|tpu", "expected auto, cpu, cuda or cuda:N");
    options_refuse("generate", "--device|cuda:", "expected auto");
}

static void words_without_a_flag_are_refused_where_none_belongs(void **state)
{
    options_refuse("generate", "prompts.jsonl", "found 'prompts.jsonl'");
    options_refuse("published", "a|b", "found 'a' and 'b'");
    struct aq_options *o = options_parse("status", "--json|results.jsonl");
    assert_int_equal(o->status_files.count, 1);
    assert_string_equal(o->status_files.item[0], "results.jsonl");
    aq_options_close(o);
    o = options_parse("status", "--|--strange.jsonl");
    assert_string_equal(o->status_files.item[0], "--strange.jsonl");
    aq_options_close(o);
    o = options_parse("merge", "out.jsonl|--ordered|a.jsonl|b.jsonl");
    assert_int_equal(o->merge_files.count, 3);
    assert_string_equal(o->merge_files.item[0], "out.jsonl");
    assert_string_equal(o->merge_files.item[2], "b.jsonl");
    assert_true(o->ordered);
    aq_options_close(o);
}

static void unknown_commands_name_the_nearest_one(void **state)
{
    options_refuse("genrate", "", "'generate'");
    options_refuse("gen", "", "'generate'");
}

/* ---- what belongs together ---------------------------------------------------------------- */

static void a_link_without_its_device_is_refused(void **state)
{
    (void)state;
    options_refuse_together("generate", "--model|m|--prompt|x|--shard|0/2", "expected no --prompt");
    options_refuse_together("merge", "out.jsonl", "OUTPUT and SHARD");
    options_refuse_together("generate", "-m|x|-i|a|-o|b|--emulate-link|2/2",
                            "--emulate-device SIZE");
    options_refuse_together("plan",
                            "--shape|opt-125m|--prompt-len|8|--gen-len|8|--emulate-link|2/2",
                            "--emulate-device SIZE");
    options_accept_together("generate", "-m|x|-i|a|-o|b|--emulate-link|2/2|--emulate-device|1GiB");
    options_accept_together("bench", "--table|rows.yaml|--emulate-link|2/2");
}

static void commands_name_what_they_miss(void **state)
{
    options_refuse_together("generate", "-i|a|-o|b", "--model DIR");
    options_refuse_together("generate", "-m|x", "--input FILE and --output FILE");
    options_refuse_together("eval", "-m|x|--text|t", "--score-tokens");
    options_refuse_together("eval", "-m|x", "--text FILE");
    options_refuse_together("bench", "-m|x|--gen-len|3", "--prompt-len");
    options_refuse_together("pack", "-m|x", "--output STORE");
    options_refuse_together("tokenize", "", "--model DIR");
    options_refuse_together("status", "", "FILE");
}

static void options_that_exclude_each_other_are_named(void **state)
{
    options_refuse_together("generate", "-m|x|--shape|opt-125m|--prompt|p", "found both");
    options_refuse_together("generate", "--shape|opt-125m|--prompt|p", "--random-weights SEED");
    options_refuse_together("generate", "-m|x|--random-weights|1|--prompt|p", "goes with --shape");
    options_refuse_together("generate", "-m|x|--prompt|p|-i|f", "--prompt prints");
    options_refuse_together("generate", "-m|x|--prompt|p|--device|cpu|--device-memory|1G",
                            "--host-memory bounds");
    options_refuse_together("generate", "-m|x|--prompt|p|--min-tokens|40",
                            "at most --max-tokens 32");
    options_refuse_together("eval", "-m|x|--text|a|--ids|b|--prompt-tokens|1|--score-tokens|1",
                            "both");
}

static void complete_commands_pass(void **state)
{
    options_accept_together("generate", "-m|x|-i|a|-o|b");
    options_accept_together("generate", "-m|x|--prompt|p");
    options_accept_together("generate", "--shape|opt-125m|--random-weights|0|-i|a|-o|b");
    options_accept_together("generate", "--shape|opt-125m|--dry-run|-i|a|-o|b");
    options_accept_together("eval", "-m|x|--ids|i|--prompt-tokens|0|--score-tokens|1");
    options_accept_together("bench", "--table|t.yaml");
    options_accept_together("pack", "-m|x|--verify");
    options_accept_together("info", "");
}

/* ---- JSON --------------------------------------------------------------------------------- */

static struct aq_options *from_json(const char *command, const char *text)
{
    json_t *object = json_loads(text, 0, NULL);
    struct aq_options *o = NULL;
    struct aq_err err = {0};
    assert_non_null(object);
    if (aq_options_from_json(&o, command, object, &err) < 0)
        fail_msg("%s: %s", text, err.text);
    json_decref(object);
    return o;
}

static void refuse_json(const char *text, const char *words)
{
    json_t *object = json_loads(text, JSON_ALLOW_NUL, NULL);
    struct aq_options *o = NULL;
    struct aq_err err = {0};
    assert_non_null(object);
    if (aq_options_from_json(&o, "generate", object, &err) != -EINVAL || !strstr(err.text, words))
        fail_msg("%s: expected '%s' in: %s", text, words, err.text);
    assert_null(o);
    json_decref(object);
}

static void json_takes_the_same_names_with_either_dash(void **state)
{
    struct aq_options *o =
        from_json("generate", "{\"command\": \"generate\", \"max_tokens\": 8.0, \"top-p\": 0.5, "
                              "\"ordered\": true, \"refill\": false, \"stop\": [\"x\", \"y\"], "
                              "\"seed\": 9223372036854775807, \"host_memory\": \"2GiB\", "
                              "\"disk_memory\": 4096, \"model\": null, \"stop_token_ids\": [1, 2], "
                              "\"prompt\": \"p\", \"max_prompt_tokens\": 100}");
    assert_int_equal(o->max_tokens, 8);
    assert_true(o->top_p == 0.5);
    assert_true(o->ordered);
    assert_false(o->refill);
    assert_int_equal(o->stop.count, 2);
    assert_int_equal(o->seed, INT64_MAX);
    assert_int_equal(o->host_memory, 2ull << 30);
    assert_int_equal(o->disk_memory, 4096);
    assert_null(o->model);
    assert_int_equal(o->stop_token_id_count, 2);
    assert_string_equal(o->prompt.item[0], "p");
    assert_int_equal(o->max_prompt_tokens, 100);
    aq_options_close(o);
}

static void json_values_of_a_wrong_type_are_refused(void **state)
{
    refuse_json("{\"max_tokens\": -1}", "option 'max_tokens': expected an integer");
    refuse_json("{\"max_tokens\": 1.5}", "found '1.5'");
    refuse_json("{\"max_tokens\": {}}", "found an object");
    refuse_json("{\"max_tokens\": [1]}", "found a list");
    refuse_json("{\"model\": 3}", "expected a string, found a number");
    refuse_json("{\"stop\": [null]}", "found null");
    refuse_json("{\"stop\": [[\"x\"]]}", "found a list");
    refuse_json("{\"ordered\": \"maybe\"}", "on or off");
    refuse_json("{\"max_tokns\": 3}", "the nearest one is 'max-tokens'");
    refuse_json("{\"kv_budget\": 1}", "100 % or one token");
    refuse_json("{\"stop\": \"a\\u0000b\"}", "NUL");
    refuse_json("[]", "one JSON object");
}

/* Every option that can be given comes back the same through JSON. */
static void json_of_options_reads_back_the_same(void **state)
{
    struct aq_options *o = options_parse(
        "generate", "-m|dir|--max-tokens|7|--temperature|0.1|--stop|a|--stop|b|--overlong|clip|"
                    "--bos|never|--unknown-fields|error|--host-memory|3GiB|--compute|bf16|"
                    "--kv-format|auto|--no-refill|--seed|18446744073709551615|--threads|auto|"
                    "--disk-full-wait|90s|--stop-token-ids|5,6|--logprobs|0|--isa|avx2|"
                    "--placement|auto|--disk-dir|/a,/b|--shape|s|--random-weights|3|"
                    "--kv-policy|h2o|--kv-budget|20%|--kv-sinks|0|--kv-decay|0.5");
    json_t *once = aq_options_to_json(o);
    struct aq_options *again = NULL;
    struct aq_err err;
    assert_non_null(once);
    if (aq_options_from_json(&again, "generate", once, &err) < 0)
        fail_msg("%s", err.text);
    json_t *twice = aq_options_to_json(again);
    assert_true(json_equal(once, twice));
    assert_int_equal(again->seed, UINT64_MAX);
    assert_int_equal(again->max_tokens, 7);
    assert_true(again->temperature == o->temperature);
    assert_int_equal(again->overlong, AQ_OVERLONG_CLIP);
    assert_true(again->unknown_fields_error);
    assert_int_equal(again->stop.count, 2);
    assert_int_equal(again->disk_dir.count, 2);
    assert_int_equal(again->compute, AQ_BF16);
    assert_int_equal(again->kv_format, -1);
    assert_int_equal(again->logprobs, 0);
    assert_true(again->random_weights);
    assert_false(again->refill);
    assert_int_equal(json_object_size(once), 25 + 1);
    assert_string_equal(again->kv_budget, "20%");
    assert_true(again->kv_sinks_given && again->kv_sinks == 0 && again->kv_decay == 0.5);
    json_decref(once);
    json_decref(twice);
    aq_options_close(o);
    aq_options_close(again);
}

/* ---- --config ----------------------------------------------------------------------------- */

struct config {
    char path[64];
};

static struct config write_config(const char *text)
{
    struct config c = {"/tmp/aq-options-XXXXXX"};
    int fd = mkstemp(c.path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), strlen(text));
    close(fd);
    return c;
}

static void a_configuration_file_gives_any_option(void **state)
{
    struct config c = write_config("model: some/dir\nmax_tokens: 11\ntop-p: 0.25\nordered: true\n"
                                   "stop: [one, two]\nrefill: off\nhost-memory: 2GiB\nno-bos: on\n"
                                   "seed:\n");
    char line[256];
    snprintf(line, sizeof(line), "--config|%s", c.path);
    struct aq_options *o = options_parse("generate", line);
    assert_string_equal(o->model, "some/dir");
    assert_int_equal(o->max_tokens, 11);
    assert_true(o->top_p == 0.25);
    assert_true(o->ordered);
    assert_int_equal(o->stop.count, 2);
    assert_false(o->refill);
    assert_int_equal(o->host_memory, 2ull << 30);
    assert_int_equal(o->bos, AQ_BOS_NEVER);
    assert_false(aq_options_given(o, "seed"));
    aq_options_close(o);
    unlink(c.path);
}

/* A shell hands "\n" over as two characters; YAML and JSON have read their escapes already. */
static void escapes_are_read_once_and_on_the_command_line_only(void **state)
{
    static const char *const want[] = {"\n", "a\tb\\n", "\\d\\"};
    struct aq_options *o =
        options_parse("generate", "--stop|\\n|--stop=a\\tb\\\\n|--stop|\\d\\|-m|a\\nb|"
                                  "--prompt-template|Q: {q}\\nA:|--prompt|\\n");
    json_t *json = aq_options_to_json(o);
    for (int round = 0; round < 2; round++) { /* as typed, and as the library gets it */
        for (uint32_t i = 0; i < AQ_ARRAY_LEN(want); i++)
            assert_string_equal(o->stop.item[i], want[i]);
        assert_string_equal(o->prompt_template, "Q: {q}\nA:");
        assert_string_equal(o->model, "a\\nb");
        assert_string_equal(o->prompt.item[0], "\\n");
        aq_options_close(o);
        assert_int_equal(aq_options_from_json(&o, "generate", json, NULL), 0);
    }
    aq_options_close(o);
    json_decref(json);
    struct config c = write_config("stop: [\"\\n\", '\\n', \"\\\\n\"]\n");
    char line[256];
    snprintf(line, sizeof(line), "--config|%s", c.path);
    o = options_parse("generate", line);
    assert_string_equal(o->stop.item[0], "\n");
    assert_string_equal(o->stop.item[1], "\\n");
    assert_string_equal(o->stop.item[2], "\\n");
    aq_options_close(o);
    unlink(c.path);
}

static void the_command_line_wins_over_the_file(void **state)
{
    struct config c = write_config("max-tokens: 11\nstop: [one, two]\ntemperature: 0.5\n");
    char line[256];
    snprintf(line, sizeof(line), "--stop|mine|-n|3|--config=%s", c.path);
    struct aq_options *o = options_parse("generate", line);
    assert_int_equal(o->max_tokens, 3);
    assert_int_equal(o->stop.count, 1);
    assert_string_equal(o->stop.item[0], "mine");
    assert_true(o->temperature == 0.5);
    aq_options_close(o);
    unlink(c.path);
}

static void config_errors_name_file_line_key_expected_and_found(void **state)
{
    static const struct {
        const char *text, *words;
    } wrong[] = {
        {"model: x\nmax-tokens: many\n", ":2: max-tokens: expected an integer"},
        {"a-key: 3\n", ":1: unknown option 'a-key' of generate"},
        {"model: {path: x}\n", ":1: model: expected DIR, found a map"},
        {"model: [x, y]\n", ":1: model: expected DIR, found a list"},
        {"max-tokens: 1\nmax_tokens: 2\n", ":2: 'max_tokens' was already given in line 1"},
        {"temp: 1\ntemperature: 2\n", ":2: 'temperature' was already given in line 1"},
        {"windows: 3\n", ":1: 'windows' is an option of eval"},
        {"config: other.yaml\n", ":1: a configuration file cannot name another"},
        {"max-prompt-tokens: 3\n", "only for the library"},
        {"- model\n", "found a list"},
        {"stop:\n  - a\n  - [b]\n", ":3: stop: expected TEXT or a list, found a list"},
        {"model: [x\n", "expected YAML"},
    };
    for (size_t i = 0; i < AQ_ARRAY_LEN(wrong); i++) {
        struct config c = write_config(wrong[i].text);
        char line[256];
        snprintf(line, sizeof(line), "--config|%s", c.path);
        options_refuse("generate", line, wrong[i].words);
        options_refuse("generate", line, c.path);
        unlink(c.path);
    }
    options_refuse("generate", "--config|/nonexistent.yaml", "--config: open '/nonexistent.yaml'");
}

/* ---- the whole line ----------------------------------------------------------------------- */

static char *text_of(const char *line)
{
    char copy[256], *words[WORDS_MAX], *json = NULL, *text = NULL;
    struct aquifer_error error;
    int count = options_split(line, copy, sizeof(copy), words);
    if (aquifer_parse_args(count, words, &json, &text, &error) < 0)
        fail_msg("%s: %s", line, error.text);
    assert_null(json);
    assert_non_null(text);
    return text;
}

static void help_is_a_text_in_every_spelling(void **state)
{
    static const char *const overview[] = {"", "--help", "-h", "help"};
    static const char *const command[] = {"help|eval", "eval|--help", "eval|-h",
                                          "eval|--windows|3|--help|--bogus"};
    for (size_t i = 0; i < AQ_ARRAY_LEN(overview); i++) {
        char *text = text_of(overview[i]);
        assert_non_null(strstr(text, "aquifer COMMAND"));
        aquifer_free(text);
    }
    for (size_t i = 0; i < AQ_ARRAY_LEN(command); i++) {
        char *text = text_of(command[i]);
        assert_non_null(strstr(text, "--score-tokens G"));
        aquifer_free(text);
    }
    char *version = text_of("--version");
    assert_non_null(strstr(version, aquifer_version()));
    aquifer_free(version);
}

static void help_fits_100_columns_and_names_every_option(void **state)
{
    for (uint32_t c = 0; c < aq_command_count; c++) {
        if (!aq_command_table[c].bit)
            continue;
        char *text = aq_options_help(aq_command_table[c].name, true);
        assert_non_null(text);
        for (const char *at = text; *at; at += strcspn(at, "\n") + 1)
            assert_true(strcspn(at, "\n") <= 100);
        for (uint32_t i = 0; i < aq_option_count; i++) {
            char flag[80];
            const struct aq_option *option = &aq_option_table[i];
            if (!(option->commands & aq_command_table[c].bit) ||
                (option->flags & (AQ_OPTION_API_ONLY | AQ_OPTION_POSITIONAL)))
                continue;
            snprintf(flag, sizeof(flag), "--%s", option->name);
            if (!strstr(text, flag))
                fail_msg("help %s does not name %s", aq_command_table[c].name, flag);
        }
        free(text);
    }
}

static void a_price_is_of_one_machine(void **state)
{
    struct aq_price_choice c;
    struct aq_err err;
    struct aq_options *o =
        options_parse("plan", "--price|l4-24gb=$0.70/h|--price|a=b.yaml=2.5 EUR/hour");
    assert_int_equal(o->price.count, 2);
    assert_int_equal(aq_price_parse(&c, "--price", o->price.item[0], &err), 0);
    assert_string_equal(c.hardware, "l4-24gb");
    assert_string_equal(c.per_hour.currency, "$");
    assert_true(c.per_hour.amount == 0.7);
    assert_int_equal(aq_price_parse(&c, "--price", o->price.item[1], &err), 0);
    assert_string_equal(c.hardware, "a=b.yaml");
    assert_true(c.per_hour.amount == 2.5);
    aq_options_close(o);
    static const char *const wrong[] = {"0.70/h",    "=0.70/h",      "l4-24gb=0.70",  "l4-24gb=/h",
                                        "l4=0.70/d", "l4-24gb=-1/h", "l4-24gb=1,2/h", "l4=1/h/h",
                                        "l4=free/h", "l4 0.70USD/h", "l4=0.70 /h"};
    for (size_t i = 0; i < AQ_ARRAY_LEN(wrong); i++) {
        char line[64];
        snprintf(line, sizeof(line), "--price|%s", wrong[i]);
        options_refuse("plan", line,
                       "--price: expected HARDWARE=MONEY/h, such as l4-24gb=0.70USD/h");
    }
    options_refuse("generate", "--price|l4=1/h", "option of plan");
}

static void a_command_line_becomes_json(void **state)
{
    char copy[256], *words[WORDS_MAX], *json = NULL, *text = NULL;
    int count = options_split("generate|-m|x|--prompt|hi|-n|3", copy, sizeof(copy), words);
    assert_int_equal(aquifer_parse_args(count, words, &json, &text, NULL), 0);
    assert_null(text);
    assert_string_equal(
        json, "{\"command\":\"generate\",\"model\":\"x\",\"prompt\":[\"hi\"],\"max_tokens\":3}");
    aquifer_free(json);
}

static void the_error_of_a_line_carries_its_exit_status(void **state)
{
    static const struct {
        const char *line;
        int exit_status;
    } wrong[] = {
        {"generate", 1}, {"--model|x", 1}, {"help|me", 1}, {"help|man|me", 1}, {"help|man|kv", 1}};
    for (size_t i = 0; i < AQ_ARRAY_LEN(wrong); i++) {
        char copy[256], *words[WORDS_MAX], *json = NULL, *text = NULL;
        struct aquifer_error error = {0};
        int count = options_split(wrong[i].line, copy, sizeof(copy), words);
        assert_true(aquifer_parse_args(count, words, &json, &text, &error) < 0);
        assert_int_equal(error.exit_status, wrong[i].exit_status);
        assert_true(error.text[0] != '\0');
        assert_null(json);
        assert_null(text);
    }
}

static void rows_of_the_table_are_consistent(void **state)
{
    for (uint32_t i = 0; i < aq_option_count; i++) {
        const struct aq_option *a = &aq_option_table[i];
        bool later = a->kind == AQ_OPTION_LATER || a->kind == AQ_OPTION_LATER_FLAG;
        if (!later && !a->help)
            fail_msg("--%s has no help", a->name);
        if (!later && !a->argument && !aq_option_is_flag(a))
            fail_msg("--%s takes a value without a name", a->name);
        for (uint32_t k = i + 1; k < aq_option_count; k++) {
            const struct aq_option *b = &aq_option_table[k];
            if ((a->commands & b->commands) && (strcmp(a->name, b->name) == 0 ||
                                                (a->short_name && a->short_name == b->short_name)))
                fail_msg("--%s and --%s clash", a->name, b->name);
        }
    }
    for (uint32_t i = 0; i < aq_option_alias_count; i++) {
        bool found = false;
        for (uint32_t k = 0; k < aq_option_count; k++)
            found |= strcmp(aq_option_table[k].name, aq_option_aliases[i].option) == 0;
        assert_true(found);
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(defaults_are_those_of_the_manual),
    cmocka_unit_test(a_value_follows_or_stands_behind_an_equals_sign),
    cmocka_unit_test(short_forms_take_their_value_in_three_ways),
    cmocka_unit_test(the_last_of_two_values_stands),
    cmocka_unit_test(switches_go_on_and_off),
    cmocka_unit_test(no_bos_is_bos_never),
    cmocka_unit_test(repeated_options_add_up),
    cmocka_unit_test(lists_grow_in_order),
    cmocka_unit_test(bench_takes_lists),
    cmocka_unit_test(auto_is_the_default_of_planned_numbers),
    cmocka_unit_test(habits_from_elsewhere_are_understood),
    cmocka_unit_test(values_that_mean_what_is_done_anyway_are_taken),
    cmocka_unit_test(unknown_flags_name_the_nearest_one),
    cmocka_unit_test(flags_of_other_commands_are_named_as_such),
    cmocka_unit_test(advice_comes_with_habits_that_have_no_equal),
    cmocka_unit_test(wrong_values_name_flag_expected_and_found),
    cmocka_unit_test(a_missing_value_is_not_stolen_from_the_next_flag),
    cmocka_unit_test(a_choice_that_may_be_off_is_switched_off),
    cmocka_unit_test(what_comes_later_says_so),
    cmocka_unit_test(what_a_budget_of_one_means_is_asked),
    cmocka_unit_test(a_ring_has_a_largest_size),
    cmocka_unit_test(placement_shares_sum_to_100),
    cmocka_unit_test(a_device_has_one_of_three_names),
    cmocka_unit_test(words_without_a_flag_are_refused_where_none_belongs),
    cmocka_unit_test(unknown_commands_name_the_nearest_one),
    cmocka_unit_test(a_link_without_its_device_is_refused),
    cmocka_unit_test(commands_name_what_they_miss),
    cmocka_unit_test(options_that_exclude_each_other_are_named),
    cmocka_unit_test(complete_commands_pass),
    cmocka_unit_test(json_takes_the_same_names_with_either_dash),
    cmocka_unit_test(json_values_of_a_wrong_type_are_refused),
    cmocka_unit_test(json_of_options_reads_back_the_same),
    cmocka_unit_test(a_configuration_file_gives_any_option),
    cmocka_unit_test(escapes_are_read_once_and_on_the_command_line_only),
    cmocka_unit_test(the_command_line_wins_over_the_file),
    cmocka_unit_test(config_errors_name_file_line_key_expected_and_found),
    cmocka_unit_test(help_is_a_text_in_every_spelling),
    cmocka_unit_test(help_fits_100_columns_and_names_every_option),
    cmocka_unit_test(a_price_is_of_one_machine),
    cmocka_unit_test(a_command_line_becomes_json),
    cmocka_unit_test(the_error_of_a_line_carries_its_exit_status),
    cmocka_unit_test(rows_of_the_table_are_consistent),
};

AQ_TEST_MAIN(tests)
