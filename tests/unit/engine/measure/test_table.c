/* SPDX-License-Identifier: Apache-2.0
 * Tables as files: what a row becomes, the policies of others, and sentences for what is wrong.
 * (Rows that run: tests/e2e/table.py.) */
#include "engine/measure/table.h"
#include "engine/options/options.h"
#include "tests/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int read_text(struct aq_table **ret, const char *text, struct aq_err *err)
{
    char path[] = "/tmp/aq-table-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), strlen(text));
    close(fd);
    int rc = aq_table_read(ret, path, err);
    unlink(path);
    return rc;
}

#define ENGINES                                                                                    \
    "engines:\n"                                                                                   \
    "  flexgen-t4:\n"                                                                              \
    "    hardware: t4-208gb\n"                                                                     \
    "    host-attention-gb-s: {value: 12.3, source: its cost model}\n"                             \
    "    prefill-tflop-s: {value: 21.24, source: its cost model}\n"

static void a_policy_is_read(void **state)
{
    struct aq_table *t;
    struct aq_err err;
    int rc = read_text(&t,
                       "table: x\n" ENGINES "defaults: {random-weights: 1}\n"
                       "rows:\n"
                       "- name: a\n"
                       "  shape: opt-30b\n"
                       "  prompt_len: 512\n"
                       "  published: {tok-s: 7.32, source: table 2}\n"
                       "  policy: {engine: flexgen-t4, gpu-batch-size: 48, num-gpu-batches: 3,\n"
                       "           percent: 20 80 0 100 0 100, cpu-cache-compute: on,\n"
                       "           decode-steps: first, hh-ratio: 0.1}\n"
                       "- name: b\n",
                       &err);
    if (rc < 0)
        fail_msg("%s", err.text);
    assert_int_equal(t->row_count, 2);
    assert_true(t->engine[0].rates.host_attention_bytes_per_s == 12.3e9);
    assert_true(t->engine[0].rates.prefill_flops_per_s == 21.24e12);
    assert_true(t->engine[0].rates.pageable_bytes_per_s == 0);
    assert_string_equal(t->engine[0].hardware, "t4-208gb");
    const struct aq_table_row *a = &t->row[0], *b = &t->row[1];
    assert_string_equal(json_string_value(json_object_get(a->options, "shape")), "opt-30b");
    assert_string_equal(json_string_value(json_object_get(a->options, "prompt_len")), "512");
    assert_string_equal(json_string_value(json_object_get(b->options, "random_weights")), "1");
    assert_true(a->published == 7.32 && a->has_policy && !b->has_policy && b->published == 0);
    assert_true(a->policy.percent[0] == 20 && a->policy.percent[5] == 100);
    assert_int_equal(a->policy.gpu_batch_size * a->policy.num_gpu_batches, 144);
    assert_true(a->policy.cpu_cache_compute && a->policy.first_step && a->policy.overlap &&
                a->policy.pin_weight && !a->policy.compress_cache && a->policy.hh_ratio == 0.1);
    aq_table_close(t);
}

static void what_is_wrong_is_named(void **state)
{
#define POLICY(text) "table: x\n" ENGINES "rows:\n- name: a\n  policy: {" text "}\n"
    static const struct {
        const char *text, *says;
    } rows[] = {
        {POLICY("engine: hf, gpu-batch-size: 1, num-gpu-batches: 1, percent: 1 1 1 1 1 1"),
         ": engine: expected the name of one of the table's engines, found 'hf'"},
        {POLICY("engine: flexgen-t4, gpu-batch-size: 1, num-gpu-batches: 1"), "'percent'"},
        {POLICY("engine: flexgen-t4, percent: 20 90 0 100 0 100"), "six percentages"},
        {POLICY("engine: flexgen-t4, percent: 20 80 0 100 0"), "six percentages"},
        {POLICY("engine: flexgen-t4, percent: 20 80 0 100 0 100 0"), "six percentages"},
        {POLICY("gpu-batch-size: 1.5"), "a whole number"},
        {POLICY("gpu-batch-size: 0"), "a number from 1 to 65535"},
        {POLICY("gpu-batch-sizes: 1"), "did you mean 'gpu-batch-size'"},
        {POLICY("overlap: maybe"), "expected on or off, found 'maybe'"},
        {POLICY("decode-steps: some"), "expected first or all"},
        {"table: x\nengines: {a: {hardware: t4, pageable-gb-s: 3}}\nrows:\n- name: a\n",
         "pageable-gb-s: expected a map, found '3'"},
        {"table: x\nengines: {a: {hardware: t4, pageable-gb-s: {value: 3}}}\nrows:\n- name: a\n",
         "expected the key 'source'"},
        {"table: x\nengines: {a: {hardware: t4, pageable-gb-s: {value: 0, source: s}}}\nrows:\n"
         "- name: a\n",
         "a number from 1e-06"},
        {"table: x\nengines: {a: {}}\nrows:\n- name: a\n", "expected the key 'hardware'"},
        {"table: x\nrows:\n- name: a\n  table: y\n", "an option of the whole table"},
        {"table: x\nrows:\n- name: a\n  shape: [a]\n", "shape: expected one value, found a list"},
        {"table: x\nrows:\n- 7\n", "expected a map, found '7'"},
        {"table: x\nrows: {}\n", "expected a list of rows"},
        {"table: [x]\nrows:\n- name: a\n", "table: expected text"},
        {"", "a map with the keys table and rows"},
    };
    for (size_t i = 0; i < AQ_ARRAY_LEN(rows); i++) {
        struct aq_table *t;
        struct aq_err err;
        assert_int_equal(read_text(&t, rows[i].text, &err), -EINVAL);
        if (!strstr(err.text, rows[i].says))
            fail_msg("expected '%s' in '%s'", rows[i].says, err.text);
    }
}

/* Every row of every shipped table is a run that bench takes. */
static void shipped_tables_are_read(void **state)
{
    static const char *const names[] = {"flexgen", "h2o", "tiny"};
    for (size_t i = 0; i < AQ_ARRAY_LEN(names); i++) {
        char path[4096];
        struct aq_table *t;
        struct aq_err err;
        snprintf(path, sizeof(path), "%s/../../configs/tables/%s.yaml", getenv("AQ_TEST_DATA"),
                 names[i]);
        if (aq_table_read(&t, path, &err) < 0)
            fail_msg("%s", err.text);
        assert_string_equal(t->name, names[i]);
        for (uint32_t r = 0; r < t->row_count; r++) {
            struct aq_options *o;
            bool shape = json_object_get(t->row[r].options, "shape");
            if (!shape) /* tiny: on the command line */
                json_object_set_new(t->row[r].options, "model", json_string("somewhere"));
            int rc = aq_options_from_json(&o, "bench", t->row[r].options, &err);
            if (rc < 0 || aq_options_check(o, &err) < 0)
                fail_msg("%s: %s: %s", names[i], t->row[r].name, err.text);
            aq_options_close(o);
            if (shape)
                assert_true(t->row[r].published > 0 && t->row[r].source);
        }
        aq_table_close(t);
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(a_policy_is_read),
    cmocka_unit_test(what_is_wrong_is_named),
    cmocka_unit_test(shipped_tables_are_read),
};

AQ_TEST_MAIN(tests)
