/* SPDX-License-Identifier: Apache-2.0
 * Flags of FlexGen, vLLM, llama.cpp and the Hugging Face family on our command lines: each is
 * taken, explained or refused, and none is answered with a name that only looks like it. */
#include "engine/aquifer.h"
#include "engine/options/habits.h"
#include "engine/options/options.h"
#include "engine/options/table.h"
#include "tests/test.h"

#include <stdio.h>
#include <string.h>

enum { WORDS_MAX = 64 };

/* A line of words separated by '|', parsed: its JSON, or the message. */
struct parsed {
    char *json, *text;
    struct aquifer_error error;
    int rc;
};

static struct parsed parse(const char *line)
{
    char copy[1024], *words[WORDS_MAX], *save = NULL;
    struct parsed p = {0};
    int count = 0;
    assert_true(snprintf(copy, sizeof(copy), "%s", line) < (int)sizeof(copy));
    for (char *word = strtok_r(copy, "|", &save); word; word = strtok_r(NULL, "|", &save)) {
        assert_true(count < WORDS_MAX);
        words[count++] = word;
    }
    p.rc = aquifer_parse_args(count, words, &p.json, &p.text, &p.error);
    return p;
}

static void parsed_close(struct parsed *p)
{
    aquifer_free(p->json);
    aquifer_free(p->text);
}

/* The line is taken and its native command ends so. */
static void becomes(const char *line, const char *native)
{
    struct parsed p = parse(line);
    if (p.rc < 0)
        fail_msg("%s: %s", line, p.error.text);
    struct aq_err err;
    json_t *object = json_loads(p.json, 0, NULL);
    const char *notes = json_string_value(json_object_get(object, "notes"));
    if (!notes || !strstr(notes, native))
        fail_msg("%s: expected '%s' in: %s", line, native, notes ? notes : "nothing");
    /* The library takes the whole document. */
    struct aq_options *o;
    assert_int_equal(aq_options_from_json(&o, json_string_value(json_object_get(object, "command")),
                                          object, &err),
                     0);
    aq_options_close(o);
    json_decref(object);
    parsed_close(&p);
}

static void refuses(const char *line, const char *words)
{
    struct parsed p = parse(line);
    if (p.rc >= 0)
        fail_msg("%s: was taken", line);
    if (!strstr(p.error.text, words))
        fail_msg("%s: expected '%s' in: %s", line, words, p.error.text);
    assert_int_equal(p.error.exit_status, 1);
    parsed_close(&p);
}

/* ---- FlexGen ------------------------------------------------------------------------------ */

#define TO_SHAPE "native command: aquifer bench "

static void flex_opts_command_becomes_ours(void **state)
{
    becomes("bench|flexgen|--model|facebook/opt-30b|--path|_DUMMY_|--percent|20|80|0|100|0|100|"
            "--gpu-batch-size|48|--num-gpu-batches|3|--cpu|--debug|fewer_batch",
            TO_SHAPE "--placement \"weights=20/80/0 kv=0/100/0 hidden=0/100/0\" --micro-batch 48 "
                     "--micro-batches 3 --attention host --decode-passes 1 --shape opt-30b "
                     "--random-weights 1 --prompt-len 512 --gen-len 32 --repeats 1\n");
    /* Its defaults, and a checkpoint. */
    becomes("bench|flexgen|--model|facebook/opt-6.7b",
            TO_SHAPE "--model facebook/opt-6.7b --prompt-len 512 --gen-len 32 --micro-batch 4 "
                     "--micro-batches 1 --repeats 1 --placement \"weights=100/0/0 kv=100/0/0 "
                     "hidden=100/0/0\"\n");
    /* Without --cpu its attention moves the cache to the device. */
    becomes("bench|flexgen|--model|facebook/opt-6.7b|--percent|0|100|0|100|100|0",
            "--attention device\n");
    becomes("bench|flexgen|--model|facebook/"
            "opt-6.7b|--compress-w|--compress-c|--overlap|False|--sep-layer|false|--pin|0",
            TO_SHAPE "--weight-format int4 --kv-format int4 --executor serial --fuse-layer ");
    becomes("bench|flexgen|--model|facebook/opt-6.7b|--overlap|--sep-layer|True|--prompt-len|64",
            TO_SHAPE "--prompt-len 64 ");
    becomes("bench|flexgen|--model|facebook/opt-6.7b|--offload-dir|/x/"
            "y|--log-file|a.log|--verbose|0|--cut-gen-len|5",
            TO_SHAPE "--disk-dir /x/y --report a.log --quiet --decode-passes 2 ");
    becomes("bench|flexgen|--model|facebook/opt-6.7b|--debug-mode|breakdown",
            "--decode-passes 1 --executor serial");
    /* What is ours may stand among them, and wins. */
    becomes("bench|flexgen|--model|facebook/"
            "opt-6.7b|--path|_DUMMY_|--device|cpu|--host-memory|20GiB|--repeats|2|--json",
            TO_SHAPE "--device cpu --host-memory 20GiB --repeats 2 --json --shape opt-6.7b");
    becomes("bench|flexgen|--model|facebook/opt-6.7b|--shape|opt-125m|--random-weights|3",
            TO_SHAPE "--shape opt-125m --random-weights 3 --prompt-len");
}

static void heavy_hitters_become_the_policy_of_that_name(void **state)
{
    becomes("bench|flexgen|--model|facebook/opt-6.7b|--hh-ratio|0.1|--hh-all",
            "--kv-policy h2o:flexgen --kv-budget 10% ");
    becomes("bench|flexgen|--model|facebook/opt-6.7b|--hh-ratio|0.11", "--kv-budget 11% ");
    becomes("bench|flexgen|--model|facebook/opt-6.7b|--hh-ratio|0.1",
            "without --hh-all H2O's cache grows");
    refuses("bench|flexgen|--model|facebook/opt-6.7b|--hh-ratio|20",
            "above 0 and at most 1, found '20'");
    refuses("bench|flexgen|--model|facebook/opt-6.7b|--hh-ratio|0", "above 0");
    refuses("bench|flexgen|--model|facebook/opt-6.7b|--hh-long-seq", "positions");
    refuses("bench|flexgen|--model|facebook/opt-6.7b|--attn-sparsity|0.1", "--kv-budget");
    becomes("bench|flexgen|--model|facebook/"
            "opt-6.7b|--attn-sparsity|1.0|--hh-ratio|1|--hh-long-seq|off",
            "--model");
}

static void percentages_become_a_placement_in_every_command(void **state)
{
    static const char *const placed = "--placement \"weights=20/30/50 kv=0/100/0 hidden=100/0/0\"";
    becomes("bench|--shape|opt-125m|--random-weights|1|--prompt-len|4|--gen-len|4|--percent|20|30|"
            "0|100|100|0",
            placed);
    becomes("generate|-m|x|--prompt|hi|--percent|20 30 0 100 100 0|-n|3", placed);
    becomes("generate|-m|x|--prompt|hi|--percent=20,30,0,100,100,0", placed);
    becomes("plan|--shape|opt-30b|--prompt-len|4|--gen-len|4|--percent|20|30|0|100|100|0", placed);
    refuses("bench|--percent|20|80|0|100", "six percentages");
    refuses("bench|--percent|20|81|0|100|0|100", "no pair is above 100");
    refuses("bench|--percent|20|80|0|100|0|100|7", "found '7'");
    refuses("bench|--percent", "six percentages");
    refuses("tokenize|--percent|20|80|0|100|0|100", "not of tokenize");
}

static void what_is_short_for_two_flags_is_asked(void **state)
{
    refuses("bench|flexgen|--model|facebook/opt-6.7b|--compress",
            "--compress-weight, --compress-cache");
    refuses("bench|flexgen|--model|facebook/opt-6.7b|--hh|0.1",
            "--hh-ratio, --hh-all, --hh-long-seq");
    refuses("bench|flexgen|--model|facebook/opt-6.7b|--debug-mode|slow",
            "expected fewer_batch or breakdown");
    refuses("bench|flexgen|--model|facebook/opt-6.7b|--cut-gen-len|1", "from 2 on");
    refuses("bench|flexgen|--model|facebook/opt-6.7b|--gpu-batch-size",
            "expected a value, found the end of the line");
    refuses("bench|flexgen|--model|facebook/opt-6.7b|--hh-ratio|--percent",
            "expected a value, found the flag '--percent'");
    refuses("bench|--mlock=off", "--mlock: expected no value, found 'off'");
    refuses("bench|--json|flexgen", "found 'flexgen'"); /* the first word alone is the mode */
    /* Our own words are in the message, where what is wrong is easier to see. */
    refuses("bench|flexgen|--path|_DUMMY_|--shape|x.json|--model|y|--table|opt-125m",
            "(native command: aquifer bench ");
}

/* ---- every flag and its verdict ------------------------------------------------------------- */

enum verdict {
    ALIAS,   /* an option under another name: taken without a word */
    BECOMES, /* `words` in the native command */
    IDLE,    /* taken, without effect; `words` in the note */
    NEUTRAL, /* taken: what it asks for is done anyway */
    REFUSED, /* `words` say what to do instead */
};

static const struct {
    const char *flag; /* with its value, if it takes one */
    enum verdict verdict;
    const char *words;
} table[] = {
    /* FlexGen and H2O */
    {"--percent|0|100|0|100|0|100", BECOMES, "--placement"},
    {"--gpu-batch-size|4", ALIAS, NULL},
    {"--num-gpu-batches|2", ALIAS, NULL},
    {"--compress-weight", BECOMES, "--weight-format int4"},
    {"--compress-cache", BECOMES, "--kv-format int4"},
    {"--cpu-cache-compute", BECOMES, "--attention host"},
    {"--cpu", REFUSED, "--attention host"},
    {"--hh-ratio|0.2", BECOMES, "--kv-policy h2o:flexgen --kv-budget 20%"},
    {"--hh-all", NEUTRAL, NULL},
    {"--hh-long-seq|true", REFUSED, "context"},
    {"--heavy_ratio|0.1|--recent_ratio|0.2", BECOMES,
     "--kv-policy h2o --kv-heavy 0.1 --kv-recent 0.2"},
    {"--enable_small_cache", IDLE, "--kv-policy"},
    {"--offload-dir|/x", ALIAS, NULL},
    {"--pin-weight|false", IDLE, "pinned"},
    {"--overlap|false", BECOMES, "--executor serial"},
    {"--sep-layer|false", BECOMES, "--fuse-layer"},
    {"--attn-sparsity|0.1", REFUSED, "--kv-budget"},
    {"--log-file|x", BECOMES, "--report x"},
    {"--no-log", IDLE, "--report"},
    {"--cut-gen-len|8", BECOMES, "--decode-passes 3"},
    {"--debug-mode|fewer_batch", BECOMES, "--decode-passes 1"},
    {"--path|_DUMMY_", REFUSED, "--random-weights"},
    /* vLLM */
    {"--dtype|float16", ALIAS, NULL},
    {"--max-model-len|128", ALIAS, NULL},
    {"--kv-cache-dtype|fp16", ALIAS, NULL},
    {"--input-len|8", ALIAS, NULL},
    {"--output-len|8", ALIAS, NULL},
    {"--num-prompts|8", ALIAS, NULL},
    {"--gpu-memory-utilization|0.9", REFUSED, "--device-memory"},
    {"--tensor-parallel-size|2", REFUSED, "one device"},
    {"--tensor-parallel-size|1", NEUTRAL, NULL},
    {"-tp|2", REFUSED, "one device"},
    {"--pipeline-parallel-size|2", REFUSED, "one device"},
    {"--cpu-offload-gb|10", REFUSED, "--placement"},
    {"--swap-space|4", IDLE, "swapped"},
    {"--quantization|awq", REFUSED, "--weight-format"},
    {"-q|awq", REFUSED, "--weight-format"},
    {"--load-format|dummy", REFUSED, "--random-weights"},
    {"--max-num-seqs|256", REFUSED, "--micro-batch"},
    {"--max-num-batched-tokens|2048", REFUSED, "--micro-batch-tokens"},
    {"--block-size|16", IDLE, "32 slots"},
    {"--enforce-eager", IDLE, "compiler"},
    {"--no-enable-prefix-caching", BECOMES, "--share-prefixes off"},
    {"--enable-chunked-prefill|false", IDLE, "--micro-batch-tokens"},
    {"--trust-remote-code", REFUSED, "no code of theirs"},
    {"--disable-log-requests", IDLE, "not logged"},
    {"--disable-log-stats", IDLE, "--quiet"},
    {"--revision|main", REFUSED, "hf download"},
    {"--download-dir|/x", REFUSED, "hf download"},
    {"--chat-template|x.jinja", REFUSED, "chat_template.jinja"},
    {"--enable-lora", REFUSED, "merge"},
    {"--speculative-model|x", REFUSED, "speculative"},
    {"--guided-decoding-backend|outlines", REFUSED, "constrained"},
    {"--served-model-name|x", REFUSED, "\"model\""},
    {"--host|0.0.0.0", REFUSED, "no server"},
    {"--port|8000", REFUSED, "no server"},
    {"--api-key|x", REFUSED, "no server"},
    {"--request-rate|inf", NEUTRAL, NULL},
    {"--dataset-path|x", REFUSED, "--input"},
    /* llama.cpp */
    {"--n-gpu-layers|99", REFUSED, "--placement"},
    {"-ngl|99", REFUSED, "--placement"},
    {"-ngl=99", REFUSED, "--placement"},
    {"--ctx-size|128", ALIAS, NULL},
    {"-c|128", BECOMES, "--context 128"},
    {"--batch-size|8", ALIAS, NULL},
    {"-b|512", REFUSED, "--micro-batch"},
    {"-ub|512", REFUSED, "--micro-batch"},
    {"--ubatch-size|512", REFUSED, "--micro-batch"},
    {"--threads-batch|4", REFUSED, "--threads"},
    {"-s|7", BECOMES, "--seed 7"},
    {"-r|5", BECOMES, "--repeats 5"},
    {"-d|512", REFUSED, "--prompt-len"},
    {"-p|512", REFUSED, "--prompt-len"},
    {"-f|x.txt", REFUSED, "--input-format text"},
    {"-fa", IDLE, "scores"},
    {"--flash-attn|on", IDLE, "scores"},
    {"-ctk|q8_0", REFUSED, "--kv-format"},
    {"--cache-type-v|q4_0", REFUSED, "--kv-format"},
    {"--mlock", IDLE, "--io"},
    {"--no-mmap", IDLE, "--io"},
    {"-mmp|0", IDLE, "--io"},
    {"--main-gpu|1", BECOMES, "--device cuda:1"},
    {"--tensor-split|3,1", REFUSED, "one device"},
    {"-nkvo", REFUSED, "kv=0/100/0: shares are planned; --placement \"weights=D/H/N"},
    {"--no-kv-offload", REFUSED, "kv=0/100/0: shares are planned; --placement \"weights=D/H/N"},
    {"-kvo", REFUSED, "opposite sides"},
    {"--parallel|4", REFUSED, "--micro-batch"},
    {"-np|4", REFUSED, "--micro-batch"},
    {"--cont-batching", IDLE, "--refill"},
    {"--grammar-file|x", REFUSED, "constrained"},
    {"--json-schema|{}", REFUSED, "constrained"},
    {"--lora|x", REFUSED, "merge"},
    {"-hf|a/b", REFUSED, "hf download"},
    {"--rope-freq-base|10000", REFUSED, "config.json"},
    {"--mirostat|2", REFUSED, "--top-p"},
    {"-cnv", REFUSED, "messages"},
    {"-no-cnv", IDLE, "messages"},
    {"--no-warmup", BECOMES, "--warmup 0"},
    {"--verbose", IDLE, "--report"},
    {"-v", IDLE, "--report"},
    {"--n-prompt|8", ALIAS, NULL},
    {"--n-gen|8", ALIAS, NULL},
    /* transformers, accelerate, lm-eval, text-generation-webui */
    {"--load-in-8bit", BECOMES, "--weight-format int8"},
    {"--load_in_4bit", BECOMES, "--weight-format int4"},
    {"--torch_dtype|bfloat16", ALIAS, NULL},
    {"--fp16", BECOMES, "--compute f16"},
    {"--bf16|true", BECOMES, "--compute bf16"},
    {"--device_map|auto", NEUTRAL, NULL},
    {"--device_map|sequential", REFUSED, "--placement"},
    {"--max_memory|x", REFUSED, "--device-memory"},
    {"--gpu-memory|12GiB", BECOMES, "--device-memory 12GiB"},
    {"--gpu-memory|12", REFUSED, "with its unit"},
    {"--cpu-memory|64GiB", BECOMES, "--host-memory 64GiB"},
    {"--auto-devices", IDLE, "planned"},
    {"--low_cpu_mem_usage", IDLE, "read once"},
    {"--attn_implementation|sdpa", IDLE, "scores"},
    {"--offload_folder|/x", ALIAS, NULL},
    {"--use_cache|false", REFUSED, "--kv-policy"},
    {"--num_beams|4", REFUSED, "--n N"},
    {"--num_beams|1", NEUTRAL, NULL},
    {"--do_sample", REFUSED, "--temperature"},
    {"--max_length|64", REFUSED, "--max-tokens"},
    {"--no_repeat_ngram_size|3", REFUSED, "--repetition-penalty"},
    {"--model_args|pretrained=x", REFUSED, "--model"},
    {"--tasks|piqa", REFUSED, "lm-eval"},
    {"--num_fewshot|5", REFUSED, "harness"},
    {"--cpu-offload", REFUSED, "weights=0/100/0: shares are planned; --placement \"weights=D/H/N"},
    {"--disk-offload", REFUSED, "weights=0/0/100: shares are planned; --placement \"weights=D/H/N"},
    {"--kv-offload", REFUSED, "opposite sides by it, kv=0/100/0 and kv=100/0/0"},
    {"--kv-offload|off", REFUSED, "opposite sides by it, kv=0/100/0 and kv=100/0/0"},
    {"--disk-offload|off", NEUTRAL, NULL},
    {"--no-cpu-offload", NEUTRAL, NULL},
    {"--local_rank|0", IDLE, "one process"},
};

static void check_row(size_t i, const char *line)
{
    const char *words = table[i].words;
    if (table[i].verdict == REFUSED)
        return refuses(line, words);
    if (table[i].verdict == BECOMES || table[i].verdict == IDLE)
        becomes(line, words);
    struct parsed p = parse(line);
    if (p.rc < 0)
        fail_msg("%s: %s", line, p.error.text);
    bool noted = strstr(p.json, "\"notes\"");
    if (noted != (table[i].verdict == BECOMES || table[i].verdict == IDLE))
        fail_msg("%s: %s", line, p.json);
    if (table[i].verdict == IDLE && strstr(p.json, "native command"))
        fail_msg("%s: has an effect: %s", line, p.json);
    parsed_close(&p);
}

static void every_flag_has_its_verdict(void **state)
{
    for (size_t i = 0; i < AQ_ARRAY_LEN(table); i++) {
        char line[256];
        snprintf(line, sizeof(line), "bench|--model|x|--prompt-len|4|--gen-len|4|%s",
                 table[i].flag);
        check_row(i, line);
        struct parsed p = parse(line);
        if (p.rc < 0 && strstr(p.error.text, "nearest"))
            fail_msg("%s: a wrong guess: %s", line, p.error.text);
        parsed_close(&p);
    }
}

static void each_row_of_the_table_says_something(void **state)
{
    for (uint32_t i = 0; i < aq_habit_count; i++) {
        const struct aq_habit *h = &aq_habit_table[i];
        if (!h->becomes && !h->translate && !h->why)
            fail_msg("--%s has neither words nor a reason", h->name);
        if (!h->becomes && !h->why && !h->flexgen)
            fail_msg("--%s has nothing for a configuration file", h->name);
        for (uint32_t k = i + 1; k < aq_habit_count; k++) {
            const struct aq_habit *other = &aq_habit_table[k];
            if (h->flexgen == other->flexgen && strcmp(h->name, other->name) == 0)
                fail_msg("--%s stands there twice", h->name);
        }
    }
}

/* A habit behind an option of every command would never be seen. */
static void no_habit_hides_behind_an_option(void **state)
{
    for (uint32_t i = 0; i < aq_habit_count; i++) {
        const struct aq_habit *h = &aq_habit_table[i];
        const struct aq_option *option;
        unsigned has = 0, all = 0;
        for (uint32_t c = 0; c < aq_command_count; c++) {
            all += aq_command_table[c].bit != 0;
            has += aq_option_find(&option, &aq_command_table[c], h->name, "--", NULL) == 0;
        }
        if (has == all && !h->flexgen)
            fail_msg("--%s is an option everywhere", h->name);
    }
}

static void names_that_are_far_from_all_are_not_guessed_at(void **state)
{
    static const char *const far[] = {"--verbosity", "--nproc-per-node", "--xyz", "--use-flash"};
    for (size_t i = 0; i < AQ_ARRAY_LEN(far); i++) {
        char line[64];
        snprintf(line, sizeof(line), "generate|%s|1", far[i]);
        refuses(line, "aquifer help generate lists its options");
    }
    refuses("generate|--temprature|1", "the nearest one is '--temperature'");
}

static void commands_of_other_programs_are_explained(void **state)
{
    refuses("run-batch|-i|x", "aquifer generate");
    refuses("serve|x", "nothing is served");
    refuses("quantize|x", "aquifer pack");
    refuses("perplexity", "aquifer eval");
    refuses("xyzzy", "aquifer --help lists them");
}

static void configuration_files_are_told_what_to_write(void **state)
{
    struct aq_options *o;
    struct aq_err err = {0};
    json_t *json = json_pack("{s:s}", "percent", "20 80 0 100 0 100");
    assert_int_equal(aq_options_from_json(&o, "bench", json, &err), -EINVAL);
    assert_non_null(strstr(err.text, "write the shares as placement"));
    json_decref(json);
    json = json_pack("{s:b}", "load_in_4bit", 1);
    assert_int_equal(aq_options_from_json(&o, "bench", json, &err), -EINVAL);
    assert_non_null(strstr(err.text, "write weight-format=int4"));
    json_decref(json);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(flex_opts_command_becomes_ours),
    cmocka_unit_test(heavy_hitters_become_the_policy_of_that_name),
    cmocka_unit_test(percentages_become_a_placement_in_every_command),
    cmocka_unit_test(what_is_short_for_two_flags_is_asked),
    cmocka_unit_test(every_flag_has_its_verdict),
    cmocka_unit_test(each_row_of_the_table_says_something),
    cmocka_unit_test(no_habit_hides_behind_an_option),
    cmocka_unit_test(names_that_are_far_from_all_are_not_guessed_at),
    cmocka_unit_test(commands_of_other_programs_are_explained),
    cmocka_unit_test(configuration_files_are_told_what_to_write),
};

AQ_TEST_MAIN(tests)
