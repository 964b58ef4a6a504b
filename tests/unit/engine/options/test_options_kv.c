/* SPDX-License-Identifier: Apache-2.0
 * Options of KV policies: what they come to, and what is refused. */
#include "engine/options/kv.h"
#include "engine/options/options.h"
#include "tests/test.h"
#include "tests/unit/engine/options/options_rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What the policy is that a line asks for. */
static void resolves_to(const char *line, const char *words)
{
    char whole[256], text[160];
    snprintf(whole, sizeof(whole), "-m|x|-i|a|-o|b%s%s", *line ? "|" : "", line);
    struct aq_options *o = options_parse("generate", whole);
    struct aq_kv_policy p;
    struct aq_err err = {0};
    if (aq_options_check(o, &err) < 0 || aq_options_kv_policy(&p, o, &err) < 0)
        fail_msg("%s: %s", line, err.text);
    assert_string_equal(aq_kv_policy_text(text, sizeof(text), &p), words);
    aq_options_close(o);
}

static void kv_options_make_a_policy(void **state)
{
    resolves_to("", "full");
    resolves_to("--kv-policy|full|--kv-budget|1.0", "full");
    resolves_to("--kv-policy|h2o|--kv-budget|0.2", "h2o: budget 20%");
    resolves_to("--kv-policy|h2o|--kv-budget|20%", "h2o: budget 20%");
    resolves_to("--kv-policy|h2o|--kv-budget|1.0", "h2o: budget 100%");
    resolves_to("--kv-policy|h2o|--kv-budget|2", "h2o: budget 2");
    resolves_to("--kv-policy|h2o|--kv-heavy|16|--kv-recent|112", "h2o: heavy 16, recent 112");
    resolves_to("--kv-policy|h2o|--kv-budget|128|--kv-recent|1", "h2o: budget 128, recent 1");
    resolves_to("--kv-policy|h2o|--kv-budget|128|--kv-sinks|4|--kv-decay|0.98|--kv-grace|16|"
                "--kv-group|max",
                "h2o: budget 128, sinks 4, grace 16, decay 0.98, group max");
    resolves_to("--kv-policy|window|--kv-budget|128", "window: budget 128, sinks 4");
    resolves_to("--kv-policy|window|--kv-budget|128|--kv-sinks|0", "window: budget 128");
    resolves_to("--kv-policy|heavy|--kv-budget|128", "heavy: budget 128, recent 1");
    resolves_to("--kv-policy|h2o:flexgen|--kv-budget|10%", "h2o:flexgen: heavy 10%");
    resolves_to("--kv-policy|h2o:hf|--kv-budget|256", "h2o:hf: heavy 128, recent 128");
    resolves_to("--kv-policy|adakv|--kv-budget|20%", "adakv: budget 20%, floor 20%");
    resolves_to("--kv-policy|adakv|--kv-heavy|16|--kv-recent|112|--kv-floor|3",
                "adakv: heavy 16, recent 112, floor 3");
    resolves_to("--kv-policy|scissorhands|--kv-budget|1000|--kv-low|0.5",
                "scissorhands: budget 1000, recent 10, drop 50%, history 400, low 0.5");
    resolves_to("--kv-policy|h2o|--kv-budget|20%|--kv-decode|bulk|--kv-drop|16",
                "h2o: budget 20%, drop 16, history all");
    resolves_to("--kv-policy|snapkv|--kv-budget|256|--kv-decode|bulk|--kv-history|8",
                "snapkv: budget 256, observe 32, pool avg:5, drop 25%, history 8");
    resolves_to("--kv-policy|h2o|--kv-budget|64|--kv-decode|overwrite", "h2o: budget 64");
    resolves_to("--kv-policy|snapkv|--kv-budget|64|--kv-decode|grow",
                "snapkv: budget 64, observe 32, pool avg:5");
    resolves_to("--kv-policy|expected|--kv-budget|20%", "expected: budget 20%, sinks 4, ahead 512");
    resolves_to("--kv-policy|expected|--kv-budget|64|--kv-ahead|9|--kv-sinks|0|--kv-heads|shared",
                "expected: budget 64, floor mix:20%, ahead 9, heads shared");
    resolves_to("--kv-policy|fastgen", "fastgen: mass 0.95, frequent 30%, local 30%, sinks 4");
    resolves_to("--kv-policy|fastgen|--kv-mass|0.9|--kv-frequent|64|--kv-local|0.2|--kv-sinks|1",
                "fastgen: mass 0.9, frequent 64, local 20%, sinks 1");
    resolves_to("--kv-policy|fastgen|--kv-budget|2048|--kv-mass|1",
                "fastgen: budget 2048, mass 1, frequent 30%, local 30%, sinks 4");
    resolves_to("--kv-policy|window|--kv-recent|28|--kv-positions|cache",
                "window: recent 28, sinks 4, positions cache");
    resolves_to("--kv-policy|h2o|--kv-budget|64|--kv-positions|text", "h2o: budget 64");
    resolves_to("--kv-read|2048", "full: read 2048 but in the first 2 layers");
    resolves_to("--kv-read|96|--kv-read-dense|0|--kv-policy|snapkv|--kv-budget|256|--kv-pool|none",
                "snapkv: budget 256, observe 32, pool none, read 96 but in the first 0 layers");
}

static void positions_in_the_cache_are_a_window_s(void **state)
{
    static const char *const refused[][2] = {
        {"", "--kv-policy full: --kv-positions cache does not go with it: it keeps every token"},
        {"--kv-policy|h2o|--kv-budget|64",
         "--kv-policy h2o: --kv-positions cache does not go with it: each new key takes the place"},
        {"--kv-policy|tova|--kv-budget|64", "(overwrite), and every newer key would move with it"},
        {"--kv-policy|snapkv|--kv-budget|64", "(grow), whose positions would pass the model's"},
        {"--kv-policy|h2o|--kv-budget|64|--kv-decode|bulk", "keys are dropped in bulk"},
        {"--kv-policy|scissorhands|--kv-budget|64", "--kv-policy window has it"},
        {"--kv-policy|window|--kv-budget|64|--kv-format|int8", "--kv-positions cache: queries are"},
        {"--kv-policy|window|--kv-budget|64|--kv-format|int4", "expected --kv-format f16, bf16"},
    };
    for (size_t i = 0; i < AQ_ARRAY_LEN(refused); i++) {
        char line[160];
        snprintf(line, sizeof(line), "-m|x|-i|a|-o|b|--kv-positions|cache%s%s",
                 refused[i][0][0] ? "|" : "", refused[i][0]);
        options_refuse_together("generate", line, refused[i][1]);
    }
    options_accept_together("generate",
                            "-m|x|-i|a|-o|b|--kv-policy|window|--kv-budget|64|--kv-positions|cache"
                            "|--kv-format|bf16|--context|100000");
    (void)state;
}

static void reading_a_part_needs_head_blocks_that_stay(void **state)
{
    static const char *const refused[][2] = {
        {"--kv-read|95", "--kv-read 95: a row always reads the first, the last and"},
        {"--kv-read|0", "expected 96 slots or more"},
        {"--kv-read-dense|3", "expected --kv-read beside it"},
        {"--kv-read|96|--kv-policy|h2o|--kv-budget|20%",
         "--kv-policy h2o: --kv-read does not go with it: new keys take the places of dropped ones "
         "(overwrite)"},
        {"--kv-read|96|--kv-policy|window|--kv-budget|64", "--kv-policy window: --kv-read"},
        {"--kv-read|96|--kv-policy|tova|--kv-budget|64", "--kv-policy tova: --kv-read"},
        {"--kv-read|96|--kv-policy|snapkv|--kv-budget|64|--kv-decode|bulk",
         "--kv-policy snapkv: --kv-read does not go with it: keys are dropped in bulk"},
        {"--kv-read|96|--kv-policy|scissorhands|--kv-budget|64", "in bulk (--kv-decode)"},
        {"--kv-read|96|--kv-policy|ada-snapkv|--kv-budget|64",
         "--kv-policy ada-snapkv: --kv-read does not go with it: its heads hold different numbers"},
        {"--kv-read|96|--kv-policy|kvcompress|--kv-budget|64", "--kv-policy kvcompress: --kv-read"},
        {"--kv-read|96|--kv-format|kivi4", "--kv-read: bounds are of keys that are numbers or"},
        {"--kv-read|96|--kv-format|kivi2", "--kv-format int4"},
    };
    for (size_t i = 0; i < AQ_ARRAY_LEN(refused); i++) {
        char line[160];
        snprintf(line, sizeof(line), "-m|x|-i|a|-o|b|%s", refused[i][0]);
        options_refuse_together("generate", line, refused[i][1]);
    }
    options_refuse_together("eval", "-m|x|--text|t|--prompt-tokens|0|--score-tokens|8|--kv-read|96",
                            "--kv-read 96: --prompt-tokens 0");
    options_accept_together("generate", "-m|x|-i|a|-o|b|--kv-read|96|--kv-format|int4");
    (void)state;
}

static void rules_of_heads_are_fastgen_s(void **state)
{
    static const char *const refused[][2] = {
        {"--kv-policy|fastgen|--kv-budget|4", "--kv-budget 4: each head keeps the first 4 tokens"},
        {"--kv-policy|fastgen|--kv-heavy|20%",
         "--kv-policy fastgen: --kv-heavy does not go with it: each head has the smallest rule"},
        {"--kv-policy|fastgen|--kv-local|0", "--kv-local 0: the newest token attends itself"},
        {"--kv-policy|fastgen|--kv-format|kivi2", "all heads of a layer have one residual"},
        {"--kv-policy|fastgen|--kv-read|96", "--kv-policy fastgen: --kv-read does not go with it"},
        {"--kv-mass|0.9", "--kv-policy full: --kv-mass does not go with it"},
        {"--kv-policy|h2o|--kv-budget|9|--kv-local|3", "--kv-policy h2o: --kv-local does not go"},
    };
    for (size_t i = 0; i < AQ_ARRAY_LEN(refused); i++) {
        char line[160];
        snprintf(line, sizeof(line), "-m|x|-i|a|-o|b|%s", refused[i][0]);
        options_refuse_together("generate", line, refused[i][1]);
    }
    options_accept_together("generate", "-m|x|-i|a|-o|b|--kv-policy|fastgen|--kv-format|int4");
    (void)state;
}

static void kivi_has_a_residual_and_needs_keys_that_stay(void **state)
{
    static const char *const refused[][2] = {
        {"--kv-format|kivi2|--kv-policy|h2o|--kv-budget|20%", "a key cannot leave its group of 32"},
        {"--kv-format|kivi4|--kv-policy|window|--kv-budget|64",
         "--kv-format int4 keeps keys apart"},
        {"--kv-format|kivi4|--kv-policy|adakv|--kv-budget|64",
         "all heads of a layer have one residual"},
        {"--kv-format|kivi4|--kv-policy|tova|--kv-budget|64", "gives up keys after the prompt"},
        {"--kv-format|kivi2|--kv-policy|scissorhands|--kv-budget|64",
         "a key cannot leave its group of 32"},
        {"--kv-format|kivi4|--kv-policy|snapkv|--kv-budget|64|--kv-decode|bulk",
         "--kv-policy snapkv --kv-decode bulk gives up keys after the prompt"},
        {"--kv-format|kivi2|--emulate-device|1GiB", "where no device has memory of its own"},
        {"--kv-format|int4|--kv-residual|64", "expected --kv-format kivi4 or kivi2 beside it"},
        {"--kv-residual-rule|flush", "found auto"},
        {"--kv-format|kivi2|--kv-residual|33", "such as 64"},
    };
    static const struct {
        const char *line;
        uint32_t tokens;
        bool flush;
    } taken[] = {
        {"", 0, false},
        {"|--kv-format|int4", 0, false},
        {"|--kv-format|kivi2", 128, false},
        {"|--kv-format|kivi4|--kv-residual|32|--kv-residual-rule|flush", 32, true},
        {"|--kv-format|kivi2|--kv-policy|snapkv|--kv-budget|10%", 128, false},
        {"|--kv-format|kivi2|--kv-policy|knorm|--kv-budget|64|--kv-residual|256", 256, false},
    };
    for (size_t i = 0; i < AQ_ARRAY_LEN(refused); i++) {
        char line[160];
        snprintf(line, sizeof(line), "-m|x|-i|a|-o|b|%s", refused[i][0]);
        options_refuse_together("generate", line, refused[i][1]);
    }
    for (size_t i = 0; i < AQ_ARRAY_LEN(taken); i++) {
        char line[160];
        struct aq_kv_policy p;
        struct aq_err err = {0};
        snprintf(line, sizeof(line), "-m|x|-i|a|-o|b%s", taken[i].line);
        struct aq_options *o = options_parse("generate", line);
        if (aq_options_check(o, &err) < 0 || aq_options_kv_policy(&p, o, &err) < 0)
            fail_msg("%s: %s", line, err.text);
        assert_int_equal(p.residual.tokens, taken[i].tokens);
        assert_int_equal(p.residual.flush, taken[i].flush);
        aq_options_close(o);
    }
    (void)state;
}

static void kv_options_that_contradict_each_other_are_refused(void **state)
{
#define RUN "-m|x|-i|a|-o|b|"
    options_refuse_together("generate", RUN "--kv-policy|h2o", "--kv-budget");
    options_refuse_together("generate", RUN "--kv-budget|20%", "--kv-policy h2o");
    options_refuse_together("generate", RUN "--kv-policy|h2o|--kv-budget|0", "no token");
    options_refuse_together("generate", RUN "--kv-policy|h2o|--kv-budget|0%", "no token");
    options_refuse_together("generate",
                            RUN "--kv-policy|h2o|--kv-budget|100|--kv-heavy|60|--kv-recent|60",
                            "--kv-heavy 60 and --kv-recent 60 together are above --kv-budget 100");
    options_refuse_together("generate", RUN "--kv-policy|h2o|--kv-budget|100|--kv-recent|0",
                            "expected 1");
    options_refuse_together("generate", RUN "--kv-policy|window|--kv-budget|4",
                            "smaller than its 4 sinks");
    options_refuse_together("generate", RUN "--kv-policy|h2o:hf|--kv-budget|20%",
                            "counts in slots");
    options_refuse_together("generate", RUN "--kv-policy|h2o|--kv-budget|64|--kv-drop|16",
                            "--kv-drop does not go with it");
    options_refuse_together("generate",
                            RUN "--kv-policy|h2o|--kv-budget|64|--kv-decode|bulk|--kv-drop|64",
                            "--kv-drop 64");
    options_refuse_together("generate", RUN "--kv-policy|tova|--kv-budget|64|--kv-decode|bulk",
                            "--kv-decode bulk does not go with it");
    options_refuse_together("generate", RUN "--kv-policy|snapkv|--kv-budget|64|--kv-history|9",
                            "--kv-history does not go with it");
    options_refuse_together("generate", RUN "--kv-policy|h2o|--kv-budget|64|--kv-low|2",
                            "--kv-low");
    options_refuse_together("generate", RUN "--kv-policy|h2o|--kv-budget|20%|--kv-floor|0.3",
                            "--kv-policy adakv lets them");
    options_refuse_together(
        "eval", "-m|x|--text|t|--prompt-tokens|8|--score-tokens|8|--kv-policy|h2o", "--kv-budget");
    options_refuse_together(
        "bench", "-m|x|--prompt-len|8|--gen-len|8|--kv-policy|window|--kv-heavy|3", "--kv-heavy");
#undef RUN
}

/* Every row of the table, and every option that it takes. */
static void help_has_the_table_of_kv_policies(void **state)
{
    char *text = aq_options_help("kv", false), row[64];
    assert_non_null(text);
    for (uint32_t i = 0; aq_kv_policy_at(i); i++) {
        snprintf(row, sizeof(row), "\n  %-12s ", aq_kv_policy_at(i)->name);
        assert_non_null(strstr(text, row));
    }
    assert_non_null(strstr(text,
                           "ada-pyramid  attention   last 32: mean, max:7    pyramid:20  shared, "
                           "mix:20% grows\n"));
    assert_null(strstr(text, "(null)"));
    assert_non_null(strstr(text, "--kv-layers"));
    assert_non_null(strstr(text, "--kv-floor"));
    for (const char *line = text; *line; line = strchr(line, '\n') + 1)
        assert_true(strcspn(line, "\n") <= 100);
    free(text);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(kv_options_make_a_policy),
    cmocka_unit_test(rules_of_heads_are_fastgen_s),
    cmocka_unit_test(positions_in_the_cache_are_a_window_s),
    cmocka_unit_test(reading_a_part_needs_head_blocks_that_stay),
    cmocka_unit_test(kivi_has_a_residual_and_needs_keys_that_stay),
    cmocka_unit_test(kv_options_that_contradict_each_other_are_refused),
    cmocka_unit_test(help_has_the_table_of_kv_policies),
};

AQ_TEST_MAIN(tests)
