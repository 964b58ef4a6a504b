/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/core/classes.h"

#include "engine/tokenizer/tokenizer.h"
#include "tests/test.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static bool punct(const char *text)
{
    return aq_token_is_punct(text, strlen(text));
}

static void punctuation_is_marks_and_ends_of_lines_alone(void **state)
{
    static const char *const are[] = {".",    ",",  " .",     ":",      "?!",     "...", "\n",
                                      "\r\n", " -", "\u2026", "\u3002", "\uff0c", ". "};
    static const char *const are_not[] = {"",   " ", "   ", "a.",   ".a",       "'",
                                          "\"", "(", "$.",  "\xe3", "\xe3\x80", "1,"};
    for (size_t i = 0; i < AQ_ARRAY_LEN(are); i++) {
        if (!punct(are[i]))
            fail_msg("'%s' is punctuation", are[i]);
    }
    for (size_t i = 0; i < AQ_ARRAY_LEN(are_not); i++) {
        if (punct(are_not[i]))
            fail_msg("'%s' is no punctuation", are_not[i]);
    }
}

/* By the trained model's own tokenizer, and with none. */
static void tokens_have_the_classes_that_their_tokenizer_says(void **state)
{
    struct aq_tokenizer *t;
    char dir[4096];
    uint8_t *classes = NULL;
    uint32_t special = 0, marks = 0;
    struct aq_err err = {0};
    snprintf(dir, sizeof(dir), "%s", test_data_path("tiny-opt"));
    struct aq_engine_info info = {.vocab = 512, .bos_id = 2, .eos_id = {2}, .eos_count = 1};
    if (aq_token_classes(&classes, dir, &info, &err) < 0)
        fail_msg("%s", err.text);
    assert_int_equal(aq_tokenizer_open(&t, dir, NULL, NULL), 0);
    for (uint32_t id = 0; id < info.vocab; id++) {
        size_t count = 0;
        const char *bytes = aq_tokenizer_token_bytes(t, id, &count);
        bool is_special = aq_tokenizer_is_special(t, id) || id == 2;
        bool is_punct = !is_special && bytes && aq_token_is_punct(bytes, count);
        assert_int_equal(classes[id], (is_special ? AQ_KV_CLASS_SPECIAL : 0) |
                                          (is_punct ? AQ_KV_CLASS_PUNCT : 0));
        special += is_special;
        marks += is_punct;
    }
    assert_true(special >= 1 && marks >= 7);
    int32_t stop = aq_tokenizer_find(t, ".", 1);
    assert_true(stop >= 0 && classes[stop] == AQ_KV_CLASS_PUNCT);
    aq_tokenizer_close(t);
    free(classes);
    info.eos_id[0] = 7;
    assert_int_equal(aq_token_classes(&classes, NULL, &info, &err), 0);
    for (uint32_t id = 0; id < info.vocab; id++)
        assert_int_equal(classes[id], id == 2 || id == 7 ? AQ_KV_CLASS_SPECIAL : 0);
    free(classes);
}

static void a_model_without_a_tokenizer_has_no_classes(void **state)
{
    uint8_t *classes = NULL;
    struct aq_kv_policy p;
    struct aq_err err = {0};
    assert_int_equal(aq_kv_policy_resolve(&p, &(struct aq_kv_options){.policy = "fastgen"}, NULL),
                     0);
    struct aq_engine_info info = {.vocab = 512, .bos_id = -1, .kv = p};
    assert_true(aq_token_classes(&classes, test_data_path("torch-pt"), &info, &err) < 0);
    assert_non_null(strstr(err.text, "--kv-policy fastgen: special tokens and punctuation are"));
    assert_null(classes);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(punctuation_is_marks_and_ends_of_lines_alone),
    cmocka_unit_test(tokens_have_the_classes_that_their_tokenizer_says),
    cmocka_unit_test(a_model_without_a_tokenizer_has_no_classes),
};

int main(void)
{
    return cmocka_run_group_tests(tests, NULL, NULL) ? 1 : 0;
}
