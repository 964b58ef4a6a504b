/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/measure/eval_windows.h"

#include "tests/test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Reads `bytes` as a file with this ending; the code of the failure, or 0. */
static int read_as(struct aq_eval_ids *ret, const char *ending, const char *data, size_t bytes,
                   struct aq_err *err)
{
    char path[64];
    snprintf(path, sizeof(path), "/tmp/aq-ids-XXXXXX%s", ending);
    int fd = mkstemps(path, (int)strlen(ending));
    assert_true(fd >= 0);
    assert_int_equal(write(fd, data, bytes), bytes);
    close(fd);
    struct aq_options o = {.ids = path};
    int rc = aq_eval_ids_read(ret, &o, err);
    unlink(path);
    return rc;
}

static void assert_refused(const char *ending, const char *data, size_t bytes, const char *says)
{
    struct aq_eval_ids ids = {0};
    struct aq_err err = {0};
    assert_int_equal(read_as(&ids, ending, data, bytes, &err), -EINVAL);
    assert_null(ids.id);
    assert_int_equal(ids.count, 0);
    assert_non_null(strstr(err.text, says));
}

/* ---- ids --------------------------------------------------------------------------------- */

static void ids_are_a_list_or_one_a_line(void **state)
{
    static const char text[] = "[1, 22,333]\n4\r\n4294967295";
    struct aq_eval_ids ids;
    assert_int_equal(read_as(&ids, ".txt", text, sizeof(text) - 1, NULL), 0);
    static const uint32_t want[] = {1, 22, 333, 4, UINT32_MAX};
    assert_int_equal(ids.count, 5);
    assert_memory_equal(ids.id, want, sizeof(want));
    aq_eval_ids_close(&ids);
    assert_int_equal(read_as(&ids, ".txt", "", 0, NULL), 0);
    assert_int_equal(ids.count, 0);
    aq_eval_ids_close(&ids);
}

static void packed_ids_have_their_low_byte_first(void **state)
{
    struct aq_eval_ids ids;
    assert_int_equal(read_as(&ids, ".u16", "\x01\x02\xff\xfe\x00\x80", 6, NULL), 0);
    static const uint32_t want[] = {0x201, 0xfeff, 0x8000};
    assert_int_equal(ids.count, 3);
    assert_memory_equal(ids.id, want, sizeof(want));
    aq_eval_ids_close(&ids);
}

static void broken_files_of_ids_are_refused(void **state)
{
    assert_refused(".txt", "1 2 x3", 6, "byte 4");
    assert_refused(".txt", "1 -2", 4, "byte 2");
    assert_refused(".txt", "4294967296", 10, "byte 0");
    assert_refused(".txt", "1 2\0 3", 6, "byte 3: expected a token id, found '\\0'");
    assert_refused(".txt", "7 0x10", 6, "found 'x10'");
    assert_refused(".u16", "\x01\x02\x03", 3, "3 bytes");
}

/* ---- windows ----------------------------------------------------------------------------- */

enum { BOS = 99 };

/* Windows of `prompt` + `score` tokens over the text 0, 1, 2, ...; tokens[window][stride]. */
static struct aq_eval_windows windows_of(size_t count, uint32_t prompt, uint32_t score,
                                         uint32_t windows, const char *bos)
{
    struct aq_eval_windows w = {0};
    uint32_t id[40];
    assert_true(count <= 40);
    for (uint32_t i = 0; i < count; i++)
        id[i] = i;
    struct aq_options o = {.prompt_tokens = prompt,
                           .score_tokens = score,
                           .windows = windows,
                           .bos_mode = (char *)bos};
    struct aq_eval_ids ids = {id, count};
    assert_int_equal(aq_eval_windows_open(&w, &ids, &o, BOS, NULL), 0);
    return w;
}

static void windows_follow_one_another(void **state)
{
    struct aq_eval_windows w = windows_of(17, 3, 2, 0, NULL);
    assert_int_equal(w.count, 3); /* two tokens are left over */
    for (uint32_t i = 0; i < 15; i++)
        assert_int_equal(w.ids[i], i);
    assert_int_equal(aq_eval_windows_scored(&w), 2);
    aq_eval_windows_close(&w);
    w = windows_of(17, 3, 2, 2, NULL);
    assert_int_equal(w.count, 2);
    aq_eval_windows_close(&w);
}

static void more_windows_than_the_text_has_are_refused(void **state)
{
    uint32_t id[9] = {0};
    struct aq_eval_ids ids = {id, 9};
    struct aq_options o = {.prompt_tokens = 3, .score_tokens = 2, .windows = 2};
    struct aq_eval_windows w = {0};
    struct aq_err err = {0};
    assert_int_equal(aq_eval_windows_open(&w, &ids, &o, BOS, &err), -EINVAL);
    assert_non_null(strstr(err.text, "9 tokens"));
    o.windows = 0;
    ids.count = 4;
    assert_int_equal(aq_eval_windows_open(&w, &ids, &o, BOS, &err), -EINVAL);
    o.bos_mode = "once";
    assert_int_equal(aq_eval_windows_open(&w, &ids, &o, -1, &err), -EINVAL);
    assert_non_null(strstr(err.text, "BOS"));
    aq_eval_windows_close(&w);
}

static void bos_comes_once_or_before_each_window(void **state)
{
    struct aq_eval_windows w = windows_of(9, 3, 2, 0, "once");
    static const uint32_t once[] = {BOS, 0, 1, 2, 3, 4, 5, 6, 7, 8};
    assert_int_equal(w.count, 2);
    assert_int_equal(w.stride, 5);
    assert_memory_equal(w.ids, once, sizeof(once));
    assert_int_equal(aq_eval_windows_prompt(&w), 3);
    aq_eval_windows_close(&w);
    w = windows_of(10, 3, 2, 0, "each");
    static const uint32_t each[] = {BOS, 0, 1, 2, 3, 4, BOS, 5, 6, 7, 8, 9};
    assert_int_equal(w.count, 2);
    assert_int_equal(w.stride, 6);
    assert_memory_equal(w.ids, each, sizeof(each));
    assert_int_equal(aq_eval_windows_prompt(&w), 4);
    aq_eval_windows_close(&w);
}

/* Powers of two, so that a sum tells which numbers are in it. */
static void losses_are_of_the_scored_tokens_alone(void **state)
{
    struct aq_eval_windows w = windows_of(10, 3, 2, 0, "each");
    double nll[2];
    aq_eval_windows_reset(&w);
    for (uint32_t i = 0; i < 4; i++)
        w.logprobs[i] = -(float)(1 << i);
    aq_eval_windows_nll(&w, nll);
    assert_true(nll[0] == 1 + 2 && nll[1] == 4 + 8);
    assert_ptr_equal(w.sequence[1].forced, w.ids + 6 + 4);
    assert_int_equal(w.sequence[1].prompt_count, 4);
    aq_eval_windows_close(&w);
    w = windows_of(10, 0, 5, 0, NULL);
    aq_eval_windows_reset(&w);
    for (uint32_t i = 0; i < 10; i++)
        w.prompt_logprob[i] = -(float)(1 << i);
    assert_int_equal(aq_eval_windows_scored(&w), 4); /* nothing foretells the first */
    aq_eval_windows_nll(&w, nll);
    assert_true(nll[0] == 2 + 4 + 8 + 16 && nll[1] == 64 + 128 + 256 + 512);
    assert_int_equal(w.sequence[1].prompt_count, 5);
    assert_true(w.sequence[1].prompt_logprobs);
    aq_eval_windows_close(&w);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(ids_are_a_list_or_one_a_line),
    cmocka_unit_test(packed_ids_have_their_low_byte_first),
    cmocka_unit_test(broken_files_of_ids_are_refused),
    cmocka_unit_test(windows_follow_one_another),
    cmocka_unit_test(more_windows_than_the_text_has_are_refused),
    cmocka_unit_test(bos_comes_once_or_before_each_window),
    cmocka_unit_test(losses_are_of_the_scored_tokens_alone),
};

AQ_TEST_MAIN(tests)
