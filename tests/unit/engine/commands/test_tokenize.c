/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/commands/tokenize_lines.h"
#include "tests/unit/engine/tokenizer/tok_rig.h"

struct result {
    int rc;
    struct aq_tokenize_stats stats;
    char *text;
    size_t bytes;
    struct aq_err err;
};

static struct result stream(const struct aq_tokenizer *t, const char *text, size_t bytes,
                            struct aq_tokenize_opts opts)
{
    struct result res = {0};
    FILE *in = fmemopen((void *)text, bytes, "r"), *out = open_memstream(&res.text, &res.bytes);
    assert_non_null(in);
    assert_non_null(out);
    opts.input_name = "in";
    opts.output_name = "out";
    res.rc = aq_tokenize_stream(t, in, out, &opts, &res.stats, &res.err);
    fclose(in);
    fclose(out);
    return res;
}

static void assert_stream(const struct aq_tokenizer *t, const char *text,
                          struct aq_tokenize_opts opts, const char *want, unsigned errors)
{
    struct result res = stream(t, text, strlen(text), opts);
    if (res.rc < 0)
        fail_msg("%s", res.err.text);
    assert_string_equal(res.text, want);
    assert_int_equal(res.stats.errors, errors);
    free(res.text);
}

static void open_opt(struct rig *r)
{
    rig_begin(r);
    rig_open_data(
        r, "opt-tokenizer",
        &(struct aq_tokenizer_defaults){.bos_id = 2, .eos_id = 2, .pad_id = 1, .add_bos = true});
}

static const struct aq_tokenize_opts encode = {0}, no_bos = {.no_bos = true},
                                     decode = {.decode = true},
                                     decode_no_bos = {.decode = true, .no_bos = true};

static void texts_become_ids(void **state)
{
    struct rig r;
    open_opt(&r);
    assert_stream(r.t, "{\"text\": \"I like you.\"}\n{\"text\": \"\"}\n", encode,
                  "{\"ids\":[2,100,101,47,4]}\n{\"ids\":[2]}\n", 0);
    assert_stream(r.t, "{\"text\": \"I like you.\"}", no_bos, "{\"ids\":[100,101,47,4]}\n", 0);
    rig_end(&r);
}

static void ids_become_texts(void **state)
{
    struct rig r;
    open_opt(&r);
    assert_stream(r.t, "{\"ids\":[2,100,101,47,4]}\n{\"ids\":[]}\n{\"ids\":[2,2,100]}\n", decode,
                  "{\"text\":\"I like you.\"}\n{\"text\":\"\"}\n{\"text\":\"</s>I\"}\n", 0);
    assert_stream(r.t, "{\"ids\":[2,100]}\n", decode_no_bos, "{\"text\":\"</s>I\"}\n", 0);
    rig_end(&r);
}

static void bytes_that_are_not_utf8_become_replacements(void **state)
{
    struct rig r;
    open_opt(&r);
    int32_t id = aq_tokenizer_find(r.t, "\xc3\x83", 2); /* byte 0xc3 */
    char line[64];
    snprintf(line, sizeof(line), "{\"ids\":[%d]}", id);
    assert_stream(r.t, line, decode, "{\"text\":\"\xef\xbf\xbd\"}\n", 0);
    rig_end(&r);
}

static void decoding_undoes_encoding(void **state)
{
    struct rig r;
    open_opt(&r);
    static const char text[] =
        "{\"text\":\"</s>It's\\n <pad> \xc3\xa9\\u0000 \xf0\x9f\x98\x80</s>\"}\n";
    struct result ids = stream(r.t, text, strlen(text), encode);
    assert_int_equal(ids.rc, 0);
    assert_stream(r.t, ids.text, decode, text, 0);
    free(ids.text);
    rig_end(&r);
}

static void a_records_own_id_comes_back(void **state)
{
    struct rig r;
    open_opt(&r);
    assert_stream(r.t, "{\"id\":\"a\",\"text\":\"I\"}\n{\"id\":-7,\"text\":\"I\"}\n", encode,
                  "{\"id\":\"a\",\"ids\":[2,100]}\n{\"id\":-7,\"ids\":[2,100]}\n", 0);
    assert_stream(r.t, "{\"id\":5,\"ids\":[100]}\n", decode, "{\"id\":5,\"text\":\"I\"}\n", 0);
    rig_end(&r);
}

static void crlf_blank_lines_and_a_byte_order_mark_are_accepted(void **state)
{
    struct rig r;
    open_opt(&r);
    assert_stream(r.t, "\xef\xbb\xbf{\"text\":\"I\"}\r\n\r\n \t\n\n  {\"text\":\"I\"}", encode,
                  "{\"ids\":[2,100]}\n{\"ids\":[2,100]}\n", 0);
    assert_stream(r.t, "\n", encode, "", 0);
    rig_end(&r);
}

/* The line gives an error record with these words, and the next line is done all the same. */
static void assert_bad(struct rig *r, const char *line, struct aq_tokenize_opts opts,
                       const char *code, const char *param, const char *words)
{
    struct aq_buf input = {0};
    aq_buf_printf(&input, "\n%s\n{\"text\":\"I\",\"ids\":[100]}\n", line);
    struct result res = stream(r->t, input.data, input.count, opts);
    assert_int_equal(res.rc, 0);
    assert_int_equal(res.stats.records, 2);
    assert_int_equal(res.stats.errors, 1);
    char *second = strchr(res.text, '\n');
    assert_non_null(second);
    assert_non_null(strstr(second, opts.decode ? "\"text\":\"I\"" : "\"ids\":[2,100]"));
    json_t *record = NULL;
    if (aq_json_parse(&record, res.text, (size_t)(second - res.text), true, &res.err) < 0)
        fail_msg("%s", res.err.text);
    const json_t *error = json_object_get(record, "error");
    assert_string_equal(json_string_value(json_object_get(error, "code")), code);
    assert_int_equal(json_integer_value(json_object_get(error, "line")), 2);
    const char *found = json_string_value(json_object_get(error, "param"));
    assert_string_equal(found ? found : "", param);
    if (!strstr(json_string_value(json_object_get(error, "message")), words))
        fail_msg("expected '%s' in %s", words, res.text);
    json_decref(record);
    free(res.text);
    aq_buf_close(&input);
}

static void bad_lines_become_error_records(void **state)
{
    struct rig r;
    open_opt(&r);
    assert_bad(&r, "{\"text\":", encode, "invalid_json", "", "column");
    assert_bad(&r, "{\"text\":\"\xff\"}", encode, "invalid_json", "", "byte 0xff");
    assert_bad(&r, "{\"text\":\"a\",\"text\":\"b\"}", encode, "invalid_json", "", "uplicate");
    assert_bad(&r, "[]", encode, "invalid_record", "", "object");
    assert_bad(&r, "{}", encode, "invalid_record", "text", "found nothing");
    assert_bad(&r, "{\"text\":1}", encode, "invalid_record", "text", "another type");
    assert_bad(&r, "{\"id\":[],\"text\":\"\"}", encode, "invalid_record", "id", "string");
    assert_bad(&r, "{\"text\":\"a\"}", decode, "invalid_record", "ids", "found nothing");
    assert_bad(&r, "{\"ids\":[1,\"x\"]}", decode, "invalid_record", "ids", "index 1");
    assert_bad(&r, "{\"ids\":[1,2.0]}", decode, "invalid_record", "ids", "index 1");
    assert_bad(&r, "{\"ids\":[0,0,50265]}", decode, "token_out_of_range", "ids", "50265");
    assert_bad(&r, "{\"ids\":[-1]}", decode, "token_out_of_range", "ids", "-1");
    assert_bad(&r, "{\"ids\":[4294967298]}", decode, "token_out_of_range", "ids", "4294967298");
    rig_end(&r);
}

static void an_error_record_keeps_the_records_id(void **state)
{
    struct rig r;
    open_opt(&r);
    struct result res = stream(r.t, "{\"id\":\"q\"}", 10, encode);
    assert_int_equal(res.stats.errors, 1);
    assert_memory_equal(res.text, "{\"id\":\"q\",\"error\":{", 19);
    free(res.text);
    rig_end(&r);
}

static void a_line_beyond_the_limit_is_an_error_record(void **state)
{
    struct rig r;
    open_opt(&r);
    size_t n = AQ_TOKENIZE_LINE_MAX + 100;
    char *text = malloc(n);
    memset(text, 'a', n);
    memcpy(text + n - 14, "\n{\"text\":\"I\"}\n", 14);
    struct result res = stream(r.t, text, n, encode);
    assert_int_equal(res.rc, 0);
    assert_int_equal(res.stats.errors, 1);
    assert_non_null(strstr(res.text, "67108864 bytes"));
    assert_non_null(strstr(res.text, "\n{\"ids\":[2,100]}\n"));
    free(res.text);
    free(text);
    rig_end(&r);
}

static int at_third_call(void *user)
{
    int *calls = user;
    return ++*calls == 3;
}

static void an_interrupt_keeps_the_lines_done_so_far(void **state)
{
    struct rig r;
    int calls = 0;
    static const char text[] = "{\"text\":\"I\"}\n{\"text\":\"I\"}\n{\"text\":\"I\"}\n";
    open_opt(&r);
    struct result res =
        stream(r.t, text, strlen(text),
               (struct aq_tokenize_opts){.interrupted = at_third_call, .user = &calls});
    assert_int_equal(res.rc, -EINTR);
    assert_int_equal(res.stats.records, 2);
    assert_string_equal(res.text, "{\"ids\":[2,100]}\n{\"ids\":[2,100]}\n");
    free(res.text);
    rig_end(&r);
}

static void a_full_disk_is_an_error_with_its_name(void **state)
{
    struct rig r;
    struct aq_tokenize_stats stats;
    char text[] = "{\"text\":\"I\"}\n";
    open_opt(&r);
    FILE *in = fmemopen(text, strlen(text), "r"), *out = fopen("/dev/full", "w");
    assert_non_null(out);
    int rc = aq_tokenize_stream(
        r.t, in, out, &(struct aq_tokenize_opts){.input_name = "in", .output_name = "results"},
        &stats, &r.err);
    assert_int_equal(rc, -ENOSPC);
    assert_non_null(strstr(r.err.text, "results"));
    fclose(in);
    fclose(out);
    rig_end(&r);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(texts_become_ids),
    cmocka_unit_test(ids_become_texts),
    cmocka_unit_test(bytes_that_are_not_utf8_become_replacements),
    cmocka_unit_test(decoding_undoes_encoding),
    cmocka_unit_test(a_records_own_id_comes_back),
    cmocka_unit_test(crlf_blank_lines_and_a_byte_order_mark_are_accepted),
    cmocka_unit_test(bad_lines_become_error_records),
    cmocka_unit_test(an_error_record_keeps_the_records_id),
    cmocka_unit_test(a_line_beyond_the_limit_is_an_error_record),
    cmocka_unit_test(an_interrupt_keeps_the_lines_done_so_far),
    cmocka_unit_test(a_full_disk_is_an_error_with_its_name),
};

AQ_TEST_MAIN(tests)
