/* SPDX-License-Identifier: Apache-2.0
 * One job on several machines: how they are ranked, and each has the plan that it has alone. */
#include "base/json.h"
#include "engine/plan/cases.h"
#include "engine/plan/machines.h"
#include "tests/temp.h"
#include "tests/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct {
    char dir[TEMP_PATH_MAX], slow[TEMP_PATH_MAX + 16], fast[TEMP_PATH_MAX + 16],
        small[TEMP_PATH_MAX + 16];
} rig;

/* A machine without an accelerator, of so many GB/s and bytes of memory. */
static void write_machine(const char *path, const char *name, const char *memory, double gb_s)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fprintf(f,
            "machine: {name: %s, cores: 4, price_per_hour: {value: $1.00, date: 2026-01-31}}\n"
            "host: {memory: %s, memory_gb_s: %g, product_f32_tflop_s: %g}\n",
            name, memory, gb_s, gb_s / 100);
    assert_int_equal(fclose(f), 0);
}

static int set_up(void **state)
{
    temp_dir(rig.dir, "machines");
    snprintf(rig.slow, sizeof(rig.slow), "%s/slow.yaml", rig.dir);
    snprintf(rig.fast, sizeof(rig.fast), "%s/fast.yaml", rig.dir);
    snprintf(rig.small, sizeof(rig.small), "%s/small.yaml", rig.dir);
    write_machine(rig.slow, "Slow", "16GiB", 20);
    write_machine(rig.fast, "Fast", "16GiB", 100);
    write_machine(rig.small, "Small", "2200MiB", 50);
    return 0;
}

static int tear_down(void **state)
{
    return temp_remove(rig.dir);
}

/* Options of a small job; NULL ends the pairs. */
static struct aq_options *options_of(const char *hardware, const char *const *pairs)
{
    struct aq_options *o;
    struct aq_err err = {0};
    json_t *all = json_pack("{s:s, s:s, s:s, s:s, s:s}", "shape", "opt-350m", "prompt_len", "32",
                            "gen_len", "8", "micro_batch", "8", "hardware", hardware);
    for (; pairs && *pairs; pairs += 2) {
        json_t *v = strchr(pairs[1], ';') ? json_array() : json_string(pairs[1]);
        char copy[3 * TEMP_PATH_MAX], *save = NULL;
        snprintf(copy, sizeof(copy), "%s", pairs[1]);
        for (char *item = json_is_array(v) ? strtok_r(copy, ";", &save) : NULL; item;
             item = strtok_r(NULL, ";", &save))
            json_array_append_new(v, json_string(item));
        json_object_set_new(all, pairs[0], v);
    }
    if (aq_options_from_json(&o, "plan", all, &err) < 0 || aq_options_check(o, &err) < 0)
        fail_msg("%s", err.text);
    json_decref(all);
    return o;
}

static json_t *compare(const char *hardware, const char *const *pairs)
{
    struct aq_options *o = options_of(hardware, pairs);
    struct aq_err err = {0};
    json_t *doc;
    if (aq_plan_check_prices(o, &err) < 0 || aq_plan_machines(&doc, o, NULL, &err) < 0)
        fail_msg("%s", err.text);
    aq_options_close(o);
    return doc;
}

static const char *name_at(const json_t *doc, const char *list, size_t i)
{
    const json_t *names = json_object_get(json_object_get(doc, "ranking"), list);
    const char *name = json_string_value(json_array_get(names, i));
    return name ? name : "";
}

static void machines_are_ranked_by_time_and_by_money(void **state)
{
    char both[3 * TEMP_PATH_MAX + 128], prices[2 * TEMP_PATH_MAX + 64];
    snprintf(both, sizeof(both), "%s,%s,%s", rig.slow, rig.small, rig.fast);
    /* Five times as fast, and ten times as dear. */
    snprintf(prices, sizeof(prices), "%s=$10/h;%s=$2/h", rig.fast, rig.small);
    json_t *doc = compare(both, (const char *[]){"requests", "400", "price", prices, NULL});
    assert_true(json_is_true(json_object_get(doc, "feasible")));
    assert_string_equal(name_at(doc, "time", 0), rig.fast);
    assert_string_equal(name_at(doc, "time", 1), rig.slow);
    assert_string_equal(name_at(doc, "time", 2), "");
    const json_t *money =
        json_object_get(json_object_get(json_object_get(doc, "ranking"), "money"), "$");
    assert_int_equal(json_array_size(money), 2);
    assert_string_equal(json_string_value(json_array_get(money, 0)), rig.slow);
    const json_t *rows = json_object_get(doc, "machines"), *row = json_array_get(rows, 0);
    double hours = json_number_value(json_object_get(row, "hours"));
    assert_true(hours > 0);
    assert_true(json_number_value(json_object_get(row, "money")) == 10 * hours);
    assert_string_equal(json_string_value(json_object_get(row, "currency")), "$");
    /* The profile's own price, of its day. */
    row = json_array_get(rows, 1);
    assert_string_equal(json_string_value(json_object_get(json_object_get(row, "price"), "date")),
                        "2026-01-31");
    row = json_array_get(rows, 2);
    assert_true(json_is_false(json_object_get(row, "feasible")));
    assert_non_null(strstr(json_string_value(json_object_get(row, "reason")), "host memory"));
    json_decref(doc);
}

static void amounts_of_two_currencies_are_not_compared(void **state)
{
    char both[3 * TEMP_PATH_MAX + 128], prices[2 * TEMP_PATH_MAX + 64];
    snprintf(both, sizeof(both), "%s,%s", rig.slow, rig.fast);
    snprintf(prices, sizeof(prices), "%s=1 EUR/h;%s=1 USD/h", rig.fast, rig.slow);
    json_t *doc = compare(both, (const char *[]){"price", prices, NULL});
    const json_t *money = json_object_get(json_object_get(doc, "ranking"), "money");
    assert_int_equal(json_object_size(money), 2);
    assert_string_equal(json_string_value(json_array_get(json_object_get(money, "EUR"), 0)),
                        rig.fast);
    /* Without a number of requests there is no job, but a price of tokens. */
    const json_t *row = json_array_get(json_object_get(doc, "machines"), 0);
    assert_true(json_is_null(json_object_get(row, "money")));
    assert_true(json_number_value(json_object_get(row, "money_per_million")) > 0);
    json_decref(doc);
}

static void each_has_the_plan_that_it_has_alone(void **state)
{
    char both[3 * TEMP_PATH_MAX + 128];
    const char *const job[] = {"requests", "100", NULL};
    snprintf(both, sizeof(both), "%s,%s", rig.slow, rig.fast);
    json_t *doc = compare(both, job), *row;
    size_t i;
    json_array_foreach(json_object_get(doc, "machines"), i, row)
    {
        struct aq_plan_case alone = {0};
        struct aq_planning_env env = {0};
        struct aq_err err = {0};
        const char *name = json_string_value(json_object_get(row, "hardware"));
        struct aq_options *o = options_of(name, job);
        json_t *none = json_pack("{s:s}", "hardware", name);
        assert_int_equal(aq_plan_case_open(&alone, o, none, &env, &err), 0);
        json_t *expected = aq_plan_row_json(none, alone.p), *v;
        const char *key;
        json_object_foreach(expected, key, v) assert_true(json_equal(v, json_object_get(row, key)));
        json_decref(expected);
        json_decref(none);
        aq_plan_case_close(&alone);
        aq_options_close(o);
    }
    assert_int_equal(i, 2);
    json_decref(doc);
}

static void what_is_wrong_with_all_is_refused(void **state)
{
    struct aq_err err = {0};
    json_t *doc;
    struct aq_options *o = options_of("l4-24gb,l5-24gb", NULL);
    assert_int_equal(aq_plan_machines(&doc, o, NULL, &err), -EINVAL);
    assert_non_null(strstr(err.text, "--hardware: expected a file (NAME.yaml) or one of local, "));
    assert_non_null(strstr(err.text, "found 'l5-24gb'"));
    aq_options_close(o);
    o = options_of("l4-24gb,t4-208gb", (const char *[]){"prompt_len", "4000", NULL});
    assert_int_equal(aq_plan_machines(&doc, o, NULL, &err), -EINVAL);
    assert_non_null(strstr(err.text, "do not fit a context of 2048"));
    aq_options_close(o);
    o = options_of("all", (const char *[]){"price", "l4=1/h;t4-208gb=1/h", NULL});
    assert_int_equal(aq_plan_check_prices(o, &err), -EINVAL);
    assert_non_null(strstr(err.text, "--price: expected a file"));
    assert_non_null(strstr(err.text, "the nearest one is 'l4"));
    aq_options_close(o);
}

static void the_list_has_every_built_in_machine(void **state)
{
    struct aq_err err;
    json_t *doc;
    assert_int_equal(aq_plan_list(&doc, &err), 0);
    const json_t *rows = json_object_get(doc, "hardware");
    uint32_t i = 0;
    for (; aq_hw_built_in(i); i++) {
        const json_t *row = json_array_get(rows, i);
        assert_string_equal(json_string_value(json_object_get(row, "hardware")), aq_hw_built_in(i));
        assert_true(json_is_null(json_object_get(row, "price")));
    }
    assert_int_equal(json_array_size(rows), i);
    json_decref(doc);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(machines_are_ranked_by_time_and_by_money),
    cmocka_unit_test(amounts_of_two_currencies_are_not_compared),
    cmocka_unit_test(each_has_the_plan_that_it_has_alone),
    cmocka_unit_test(what_is_wrong_with_all_is_refused),
    cmocka_unit_test(the_list_has_every_built_in_machine),
};

int main(void)
{
    return cmocka_run_group_tests(tests, set_up, tear_down) ? 1 : 0;
}
