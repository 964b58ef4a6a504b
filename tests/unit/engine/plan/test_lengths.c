/* SPDX-License-Identifier: Apache-2.0
 * --lengths: what is read of a table of lengths, what is refused, and how many sequences stand for
 * how many. */
#include "engine/plan/planning.h"
#include "tests/temp.h"
#include "tests/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char path[TEMP_PATH_MAX];

static void write_text(const char *text, size_t bytes)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, bytes, f), bytes);
    assert_int_equal(fclose(f), 0);
}

/* A plan of this file, as far as it is read here; free its lengths. */
static int read_rc(struct aq_planning *p, struct aq_options *o, const char *text,
                   struct aq_err *err)
{
    write_text(text, strlen(text));
    o->lengths = path;
    *p = (struct aq_planning){.o = o, .context = 2048, .positions = 2010};
    return aq_planning_read_lengths(p, err);
}

static struct aq_planning read_text(const char *text, uint64_t requests)
{
    struct aq_planning p;
    struct aq_options o = {.requests = requests};
    struct aq_err err = {0};
    if (read_rc(&p, &o, text, &err) < 0)
        fail_msg("%s", err.text);
    p.o = NULL;
    return p;
}

static void refuse(const char *text, const char *words)
{
    struct aq_planning p;
    struct aq_options o = {0};
    struct aq_err err = {0};
    if (read_rc(&p, &o, text, &err) != -EINVAL)
        fail_msg("was taken: %s", text);
    if (!strstr(err.text, words) || !strstr(err.text, path))
        fail_msg("expected '%s' in: %s", words, err.text);
    aq_lengths_close(&p.lengths);
}

static void both_forms_say_the_same(void **state)
{
    static const char *const texts[] = {
        "# prompt generated count\n512 128 3\n\n  100\t20\r\n7,9,2\n",
        "{\"prompt\": 512, \"generated\": 128, \"count\": 3}\n{\"generated\": 20, \"prompt\": "
        "100}\n"
        "{\"prompt\": 7, \"generated\": 9, \"count\": 2}",
        "512 128 2\n{\"prompt\": 512, \"generated\": 128}\n100 , 20\n7 9\n7 9"};
    for (size_t i = 0; i < AQ_ARRAY_LEN(texts); i++) {
        struct aq_planning p = read_text(texts[i], 0);
        const struct aq_workload *w = &p.workload;
        assert_int_equal(w->sequences, 6);
        assert_int_equal(w->prompt_sum, 3 * 512 + 100 + 2 * 7);
        assert_int_equal(w->total_sum, w->prompt_sum + 3 * 128 + 20 + 2 * 9);
        assert_true(w->prompt_max == 512 && w->new_max == 128 && w->total_max == 640);
        assert_true(p.prompt[0] == 7 && p.prompt[1] == 512 && p.gen[0] == 9 && p.gen[1] == 128);
        uint32_t found = 0;
        assert_int_equal(p.lengths.count, 6);
        for (uint32_t k = 0; k < p.lengths.count; k++)
            found += p.lengths.item[k].prompt == 512 && p.lengths.item[k].max_new == 128;
        assert_int_equal(found, 3);
        aq_lengths_close(&p.lengths);
    }
}

static void requests_are_drawn_of_the_distribution(void **state)
{
    struct aq_planning p = read_text("400 10 1\n200 30 3\n", 100000);
    assert_int_equal(p.workload.sequences, 100000);
    assert_int_equal(p.workload.prompt_sum, 100000 * 250ull);
    assert_int_equal(p.workload.total_sum, 100000 * 275ull);
    uint32_t first = 0;
    for (uint32_t i = 0; i < p.lengths.count; i++)
        first += p.lengths.item[i].prompt == 400;
    assert_int_equal(p.lengths.count, 1 << 16);
    assert_int_equal(first, 1 << 14);
    aq_lengths_close(&p.lengths);
    p = read_text("400 10 1000\n200 30 3000\n", 8);
    assert_int_equal(p.workload.total_sum, 8 * 275);
    assert_int_equal(p.lengths.count, 8);
    aq_lengths_close(&p.lengths);
}

static void of_very_many_a_part_stands_for_all_in_no_order(void **state)
{
    struct aq_planning p = read_text("400 10 3000000000\n200 30 1000000000\n1500 500 1\n", 0);
    uint32_t first = 0, first_half = 0;
    assert_int_equal(p.workload.sequences, 4000000001);
    assert_int_equal(p.workload.total_max, 2000); /* what is rare still needs its room */
    assert_int_equal(p.lengths.count, 1 << 16);
    for (uint32_t i = 0; i < p.lengths.count; i++) {
        bool is = p.lengths.item[i].prompt == 400;
        first += is;
        first_half += is && i < p.lengths.count / 2;
    }
    assert_int_equal(first, 3 << 14);
    assert_in_range(first_half, (3 << 13) - 400, (3 << 13) + 400);
    aq_lengths_close(&p.lengths);
}

/* The rows behind it would be lost, and the plan would be of other work. */
static void a_carriage_return_within_a_line_is_refused(void **state)
{
    static const char *const lines[] = {
        "512 128\r100 20",
        "# prompt generated\r512 128\r100 20",
        "\r512 128",
        "512 128\r\r",
        "{\"prompt\": 5, \"generated\": 6}\r{\"prompt\": 7, \"generated\": 8}",
    };
    char text[256];
    for (size_t i = 0; i < AQ_ARRAY_LEN(lines); i++) {
        snprintf(text, sizeof(text), "8 8\r\n%s\r\n", lines[i]);
        refuse(text, "line 2: expected lines that end with a line feed, found a carriage return");
    }
    struct aq_planning p = read_text("512 128\r\n# comment\r\n\r\n100 20\r", 0);
    assert_int_equal(p.workload.sequences, 2);
    aq_lengths_close(&p.lengths);
}

static void what_is_no_table_of_lengths_is_refused(void **state)
{
    static const char *const lines[] = {"512",
                                        "512 128 3 4",
                                        "512 -1",
                                        "512 1.5",
                                        "0 5",
                                        "5 0",
                                        "5 5 0",
                                        "prompt,generated",
                                        "512 128,",
                                        ",512 128",
                                        "512,,128",
                                        "[512, 128]",
                                        "{\"prompt\": 5}",
                                        "{\"prompt\": 5, \"generated\": \"6\"}",
                                        "{\"prompt\": 5, \"generated\": 6",
                                        "{\"prompt\": 5, \"generated\": 6.5}",
                                        "{\"prompt\": 5, \"generated\": 6, \"count\": -1}",
                                        "99999999999999999999 1",
                                        "1 1 1000000000001"};
    char text[256];
    for (size_t i = 0; i < AQ_ARRAY_LEN(lines); i++) {
        snprintf(text, sizeof(text), "8 8\n%s\n", lines[i]);
        refuse(text, "line 2: expected \"prompt generated [count]\" or {\"prompt\", \"generated\"");
    }
    refuse("{\"prompt\": 5, \"generate\": 6}\n",
           "line 1: unknown field 'generate'; expected prompt");
    refuse("", "has no lengths");
    refuse("# nothing\n\n", "has no lengths");
    refuse("2000 48\n2000 49\n", "line 2: a prompt of 2000 and 49 generated tokens do not fit");
    refuse("2010 38\n2011 37\n", "line 2: prompts of 2011 tokens are attended whole, and the model "
                                 "knows 2010 positions; --context 2048 goes on");
    refuse("1 1 1000000000000\n1 1\n", "more than 1000000000000 sequences");
    struct aq_planning p = {.context = 2048, .positions = 2048};
    struct aq_options o = {.lengths = path};
    struct aq_err err;
    p.o = &o;
    write_text("8 8\n\0 8\n", 8);
    assert_int_equal(aq_planning_read_lengths(&p, &err), -EINVAL);
    assert_non_null(strstr(err.text, "found a NUL byte"));
    unlink(path);
    assert_int_equal(aq_planning_read_lengths(&p, &err), -ENOENT);
    assert_non_null(strstr(err.text, "--lengths"));
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(both_forms_say_the_same),
    cmocka_unit_test(requests_are_drawn_of_the_distribution),
    cmocka_unit_test(of_very_many_a_part_stands_for_all_in_no_order),
    cmocka_unit_test(a_carriage_return_within_a_line_is_refused),
    cmocka_unit_test(what_is_no_table_of_lengths_is_refused),
};

int main(void)
{
    int fd = temp_file(path, "lengths");
    close(fd);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(path);
    return failed ? 1 : 0;
}
