/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/test.h"

#include "engine/model/arch/arch.h"
#include "engine/model/shapes.h"
#include "engine/options/options.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static uint64_t parameters_of(const char *name, struct aq_model_config *c)
{
    struct aq_model_steps m;
    struct aq_err err = {0};
    if (aq_shape_find(c, name, &err) < 0)
        fail_msg("%s: %s", name, err.text);
    assert_int_equal(aq_arch_steps(&m, c, NULL), 0);
    uint64_t parameters = m.parameters;
    aq_steps_close(&m);
    return parameters;
}

/* "a-6.7b": 6.7e9; 0 where the name has no size. */
static double size_in_name(const char *name)
{
    char *unit;
    const char *last = strrchr(name, '-');
    assert_non_null(last);
    double size = strtod(last + 1, &unit);
    if (!*unit)
        return 0;
    assert_true(unit > last + 1 && (*unit == 'm' || *unit == 'b') && !unit[1]);
    return size * (*unit == 'b' ? 1e9 : 1e6);
}

/* What the tensors of the published checkpoints sum up to, of those that config.json alone does not
 * vouch for (test_model_config has all tensors of the others). */
static const struct {
    const char *name;
    uint64_t parameters;
} published[] = {
    {"opt-350m", 331196416},        {"llama-3.2-1b", 1235814400},     {"llama-2-7b", 6738415616},
    {"llama-3.1-8b", 8030261248},   {"llama-2-13b", 13015864320},     {"llama-2-70b", 68976648192},
    {"llama-3.1-70b", 70553706496}, {"llama-3.1-405b", 405853388800}, {"mistral-7b", 7248023552},
    {"qwen2.5-7b", 7615616512},     {"qwen2.5-32b", 32763876352},     {"qwen2.5-72b", 72706203648},
    {"qwen3-8b", 8190735360},       {"qwen3-32b", 32762123264},       {"pythia-1.4b", 1414647808},
    {"pythia-6.9b", 6857302016},    {"pythia-12b", 11846072320},      {"gpt-neox-20b", 20554567680},
    {"phi-4", 14659507200},
};

static bool is_published(const char *name, uint64_t parameters)
{
    for (size_t i = 0; i < AQ_ARRAY_LEN(published); i++) {
        if (strcmp(published[i].name, name) != 0)
            continue;
        if (parameters != published[i].parameters)
            fail_msg("%s has %llu parameters, expected %llu", name, (unsigned long long)parameters,
                     (unsigned long long)published[i].parameters);
        return true;
    }
    return false;
}

static void each_shape_has_the_parameters_that_its_name_says(void **state)
{
    uint32_t count = 0, listed = 0;
    for (; aq_shape_name(count); count++) {
        const char *name = aq_shape_name(count);
        struct aq_model_config c;
        uint64_t parameters = parameters_of(name, &c);
        if (is_published(name, parameters))
            listed++;
        else if (fabs((double)parameters / size_in_name(name) - 1) > 0.05)
            fail_msg("%s has %llu parameters", name, (unsigned long long)parameters);
    }
    assert_true(count >= 27);
    assert_int_equal(listed, AQ_ARRAY_LEN(published));
}

static void shapes_of_an_architecture_stand_together_by_size(void **state)
{
    const struct aq_arch *seen[64];
    uint32_t architectures = 0;
    uint64_t before = 0;
    for (uint32_t i = 0; aq_shape_name(i); i++) {
        struct aq_model_config c;
        uint64_t parameters = parameters_of(aq_shape_name(i), &c);
        if (architectures && seen[architectures - 1] == c.arch) {
            assert_true(parameters > before);
        } else {
            for (uint32_t k = 0; k < architectures; k++)
                assert_true(seen[k] != c.arch);
            assert_true(architectures < AQ_ARRAY_LEN(seen));
            seen[architectures++] = c.arch;
        }
        before = parameters;
    }
}

static void a_name_may_be_in_any_case(void **state)
{
    struct aq_model_config lower, upper;
    assert_int_equal(aq_shape_find(&lower, "opt-1.3b", NULL), 0);
    assert_int_equal(aq_shape_find(&upper, "OPT-1.3B", NULL), 0);
    assert_memory_equal(&lower, &upper, sizeof(lower));
}

static void an_unknown_shape_lists_all_in_their_order(void **state)
{
    struct aq_model_config c;
    struct aq_err err = {0};
    char list[1024] = "";
    for (uint32_t i = 0; aq_shape_name(i); i++)
        snprintf(list + strlen(list), sizeof(list) - strlen(list), "%s%s", i ? ", " : "",
                 aq_shape_name(i));
    char want[1200];
    snprintf(want, sizeof(want), "shape 'opt-7b' is not known; expected one of %s", list);
    assert_int_equal(aq_shape_find(&c, "opt-7b", &err), -EINVAL);
    assert_string_equal(err.text, want);
    assert_int_equal(aq_shape_find(&c, "", &err), -EINVAL);
}

/* In place, each run of spaces and ends of lines as one space. */
static char *on_one_line(char *text)
{
    char *to = text;
    for (const char *from = text; *from; from++) {
        if (!isspace((unsigned char)*from))
            *to++ = *from;
        else if (to > text && to[-1] != ' ')
            *to++ = ' ';
    }
    *to = '\0';
    return text;
}

static void help_tells_the_range_of_the_names(void **state)
{
    char ranges[256], want[320];
    aq_shape_ranges(ranges, sizeof(ranges));
    assert_string_equal(ranges, "opt-125m to opt-175b, llama-3.2-1b to llama-3.1-405b, mistral-7b, "
                                "qwen2.5-7b to qwen2.5-72b, qwen3-8b to qwen3-32b, pythia-1.4b to "
                                "pythia-12b, gpt-neox-20b, phi-4");
    snprintf(want, sizeof(want), "a shape without weights: %s, or", ranges);
    char *help = on_one_line(aq_options_help("plan", true));
    assert_non_null(strstr(help, want));
    assert_null(strstr(help, "{names}"));
    free(help);
}

static void an_object_of_config_json_is_a_map(void **state)
{
    struct aq_model_config c;
    assert_int_equal(aq_shape_find(&c, "llama-3.2-1b", NULL), 0);
    assert_int_equal(c.rotary.kind, AQ_ROTARY_BANDS);
    assert_int_equal(c.rotary.original, 8192);
    assert_true(c.rotary.factor == 32 && c.rotary.high == 4);
    assert_int_equal(aq_shape_find(&c, "mistral-7b", NULL), 0);
    assert_int_equal(c.window, 0); /* null: not the window of those that say nothing */
}

static void a_file_that_is_no_shape_is_refused(void **state)
{
#define HEAD "name: x\narchitecture: opt\n"
    static const struct {
        const char *text, *want;
        int rc;
    } table[] = {
        {"", "x.yaml:1: the file: expected a map of name, architecture and config", -EINVAL},
        {"- 1\n", "the file: expected a map of name, architecture and config", -EINVAL},
        {HEAD, "the file: expected a map of name, architecture and config", -EINVAL},
        {HEAD "config: {a: 1}\nmore: 1\n", "the file: expected a map of name", -EINVAL},
        {"name: y\narchitecture: opt\nconfig: {a: 1}\n",
         "x.yaml:1: name: expected the file's name, found 'y'", -EINVAL},
        {"name: x\narchitecture: [opt]\nconfig: {a: 1}\n", "architecture: expected a name",
         -EINVAL},
        {HEAD "config: 3\n", "config: expected a map of the keys of config.json, found '3'",
         -EINVAL},
        {HEAD "config:\n  vocab_size: [1]\n", "x.yaml:4: vocab_size: expected a number", -EINVAL},
        {HEAD "config: {a: {b: {c: 1}}}\n", "b: expected a number, a switch or a word", -EINVAL},
        {"name: x\narchitecture: other\nconfig: {a: 1}\n", "'other' is not supported", -ENOEXEC},
        {HEAD "config: {vocab_size: \"7\"}\n", "'vocab_size': expected an integer, found a string",
         -ENOEXEC},
        {HEAD "config: {vocab_size: 7}\n", "x.yaml: 'hidden_size': expected 1 to", -ENOEXEC},
    };
#undef HEAD
    for (size_t i = 0; i < AQ_ARRAY_LEN(table); i++) {
        const char *text = table[i].text;
        struct aq_model_config c;
        struct aq_err err = {0};
        int rc = aq_shape_parse(&c, "x.yaml", "x", text, strlen(text), &err);
        if (rc != table[i].rc || !strstr(err.text, table[i].want))
            fail_msg("%s: expected '%s', found %d: %s", text, table[i].want, rc, err.text);
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(each_shape_has_the_parameters_that_its_name_says),
    cmocka_unit_test(shapes_of_an_architecture_stand_together_by_size),
    cmocka_unit_test(a_name_may_be_in_any_case),
    cmocka_unit_test(an_unknown_shape_lists_all_in_their_order),
    cmocka_unit_test(help_tells_the_range_of_the_names),
    cmocka_unit_test(an_object_of_config_json_is_a_map),
    cmocka_unit_test(a_file_that_is_no_shape_is_refused),
};
AQ_TEST_MAIN(tests)
