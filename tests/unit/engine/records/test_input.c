/* SPDX-License-Identifier: Apache-2.0
 * Lines of a prompt file: ends, blanks, marks, lengths, and that each can be read again. */
#include "engine/records/input.h"

#include "base/buf.h"
#include "base/compress.h"
#include "tests/test.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

static char dir[64], path[96];

static int setup(void **state)
{
    snprintf(dir, sizeof(dir), "/tmp/aq-input-XXXXXX");
    if (!mkdtemp(dir))
        return -1;
    snprintf(path, sizeof(path), "%s/prompts", dir);
    return 0;
}

static int teardown(void **state)
{
    unlink(path);
    return rmdir(dir);
}

static void write_file(const char *bytes, size_t count)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, count, f), count);
    fclose(f);
}

static struct aq_input *open_file(enum aq_input_format format)
{
    struct aq_input *in;
    struct aq_input_opts opts = {.path = path, .format = format};
    assert_int_equal(aq_input_open(&in, &opts, NULL), 0);
    return in;
}

static void assert_next(struct aq_input *in, const char *text, uint64_t index, uint64_t number)
{
    struct aq_line line, again;
    struct aq_line_place place;
    assert_int_equal(aq_input_next(in, &line, &place, NULL), 1);
    assert_int_equal(line.bytes, strlen(text));
    assert_memory_equal(line.text, text, line.bytes);
    assert_int_equal(line.index, index);
    assert_int_equal(line.number, number);
    assert_int_equal(line.hash, XXH3_64bits(text, strlen(text)));
    assert_int_equal(aq_input_at(in, &place, &again, NULL), 0);
    assert_int_equal(again.bytes, line.bytes);
    assert_memory_equal(again.text, text, again.bytes);
}

static void assert_end(struct aq_input *in)
{
    struct aq_line line;
    struct aq_line_place place;
    assert_int_equal(aq_input_next(in, &line, &place, NULL), 0);
}

static void ends_marks_and_blank_lines_are_passed_over(void **state)
{
    static const char text[] = "\xef\xbb\xbf{\"a\":1}\r\n\n  \t\r\n{\"b\":2}\n\r\n{\"c\":3}";
    write_file(text, sizeof(text) - 1);
    struct aq_input *in = open_file(AQ_INPUT_AUTO);
    assert_false(aq_input_is_text(in));
    assert_next(in, "{\"a\":1}", 0, 1);
    assert_next(in, "{\"b\":2}", 1, 4);
    assert_next(in, "{\"c\":3}", 2, 6); /* no newline at the end */
    assert_end(in);
    assert_end(in);
    aq_input_close(in);
}

static void an_empty_file_has_no_lines(void **state)
{
    write_file("", 0);
    struct aq_input *in = open_file(AQ_INPUT_AUTO);
    assert_end(in);
    aq_input_close(in);
}

static void lines_larger_than_the_buffer_are_whole(void **state)
{
    struct aq_buf b = {0};
    for (int i = 0; i < 300000; i++)
        aq_buf_puts(&b, "0123456789");
    size_t long_bytes = b.count;
    aq_buf_puts(&b, "\nshort\n");
    write_file(b.data, b.count);
    struct aq_input *in = open_file(AQ_INPUT_TEXT);
    struct aq_line line;
    struct aq_line_place place;
    assert_int_equal(aq_input_next(in, &line, &place, NULL), 1);
    assert_int_equal(line.bytes, long_bytes);
    assert_memory_equal(line.text, b.data, long_bytes);
    assert_next(in, "short", 1, 2);
    assert_end(in);
    aq_input_close(in);
    aq_buf_close(&b);
}

static void a_line_beyond_the_limit_is_skipped_but_hashed(void **state)
{
    size_t bytes = AQ_LINE_BYTES_MAX + 5;
    char *text = malloc(bytes + 6);
    assert_non_null(text);
    memset(text, 'x', bytes);
    memcpy(text + bytes, "\nnext\n", 6);
    write_file(text, bytes + 6);
    struct aq_input *in = open_file(AQ_INPUT_TEXT);
    struct aq_line line, again;
    struct aq_line_place place;
    assert_int_equal(aq_input_next(in, &line, &place, NULL), 1);
    assert_true(line.too_long);
    assert_int_equal(line.hash, XXH3_64bits(text, bytes));
    assert_int_equal(aq_input_at(in, &place, &again, NULL), 0);
    assert_true(again.too_long);
    assert_next(in, "next", 1, 2);
    aq_input_close(in);
    free(text);
}

static void the_hash_is_of_the_whole_input_wherever_reading_stopped(void **state)
{
    static const char text[] = "one\ntwo\nthree\n";
    write_file(text, sizeof(text) - 1);
    struct aq_input *in = open_file(AQ_INPUT_TEXT);
    assert_next(in, "one", 0, 1);
    assert_int_equal(aq_input_drain(in, NULL), 0);
    assert_int_equal(aq_input_bytes(in), sizeof(text) - 1);
    uint64_t hash = aq_input_hash(in);
    aq_input_close(in);
    in = open_file(AQ_INPUT_TEXT);
    assert_next(in, "one", 0, 1);
    assert_next(in, "two", 1, 2);
    assert_next(in, "three", 2, 3);
    assert_end(in);
    assert_int_equal(aq_input_hash(in), hash);
    aq_input_close(in);
}

static void auto_tells_text_from_json_by_the_first_character(void **state)
{
    write_file("Once upon\na time", 16);
    struct aq_input *in = open_file(AQ_INPUT_AUTO);
    assert_true(aq_input_is_text(in));
    aq_input_close(in);
    write_file(" {\"a\"", 5);
    in = open_file(AQ_INPUT_AUTO);
    assert_false(aq_input_is_text(in));
    aq_input_close(in);
}

static void what_is_not_a_text_file_is_refused_by_name(void **state)
{
    static const struct {
        const char *bytes;
        size_t count;
        const char *word;
    } cases[] = {{"\x1f\x8b\x08\x00", 4, "gzip"}, /* that is all */
                 {"\x28\xb5\x2f\xfd", 4, "zstd"},
                 {"\x1f\x8b\x08no, no and no", 16, "gzip"},
                 {"\x28\xb5\x2f\xfdno, no and no", 17, "zstd"},
                 {"\xff\xfe{\x00", 4, "UTF-16"}};
    struct aq_input *in;
    struct aq_err err;
    struct aq_input_opts opts = {.path = path};
    for (size_t i = 0; i < AQ_ARRAY_LEN(cases); i++) {
        write_file(cases[i].bytes, cases[i].count);
        assert_int_equal(aq_input_open(&in, &opts, &err), -EINVAL);
        assert_non_null(strstr(err.text, cases[i].word));
    }
    opts.path = dir;
    assert_int_equal(aq_input_open(&in, &opts, &err), -EINVAL);
    assert_non_null(strstr(err.text, "directory"));
    opts.path = "/no/such/file";
    assert_int_equal(aq_input_open(&in, &opts, &err), -EINVAL);
    assert_non_null(strstr(err.text, "/no/such/file"));
}

static const char poem[] = "{\"prompt\": \"one\"}\n{\"prompt\": \"two\"}\n";

/* Members one after the other, and zeros behind them, whatever the file is called; and of a name
 * the ending in front of the compression's counts. */
static void what_is_compressed_is_read_as_its_text(void **state)
{
    (void)state;
    for (int c = AQ_GZIP; c < AQ_COMPRESSION_COUNT; c++) {
        if (aq_compression_check((enum aq_compression)c, "f", NULL) < 0)
            continue;
        struct aq_buf file = {0};
        assert_int_equal(aq_compress(&file, (enum aq_compression)c, poem, 20), 0);
        assert_int_equal(
            aq_compress(&file, (enum aq_compression)c, poem + 20, sizeof(poem) - 1 - 20), 0);
        aq_buf_put(&file, "\0\0\0\0", 4);
        write_file(file.data, file.count);
        struct aq_input *in = open_file(AQ_INPUT_AUTO);
        assert_false(aq_input_is_text(in));
        assert_next(in, "{\"prompt\": \"one\"}", 0, 1);
        assert_next(in, "{\"prompt\": \"two\"}", 1, 2);
        assert_int_equal(aq_input_drain(in, NULL), 0);
        assert_int_equal(aq_input_hash(in), XXH3_64bits(poem, sizeof(poem) - 1));
        aq_input_close(in);
        aq_buf_close(&file);
    }
}

/* Frames to be passed over (RFC 8878, 3.1.2), as pzstd and seekable formats write them, may come
 * first. */
static void what_begins_with_a_skippable_frame_is_read(void **state)
{
    (void)state;
    if (aq_compression_check(AQ_ZSTD, "f", NULL) < 0)
        return;
    static const char frame[] = "\x5f\x2a\x4d\x18\x05\0\0\0notes";
    static const char *const names[] = {"", ".zst"};
    for (size_t i = 0; i < AQ_ARRAY_LEN(names); i++) {
        char name[sizeof(path) + 8];
        struct aq_input *in;
        struct aq_err err = {0};
        struct aq_input_opts opts = {.path = name};
        struct aq_buf file = {0};
        snprintf(name, sizeof(name), "%s%s", path, names[i]);
        aq_buf_put(&file, frame, sizeof(frame) - 1);
        assert_int_equal(aq_compress(&file, AQ_ZSTD, poem, 20), 0);
        aq_buf_put(&file, frame, sizeof(frame) - 1);
        assert_int_equal(aq_compress(&file, AQ_ZSTD, poem + 20, sizeof(poem) - 1 - 20), 0);
        write_file(file.data, file.count);
        assert_int_equal(rename(path, name), 0);
        if (aq_input_open(&in, &opts, &err) < 0)
            fail_msg("%s", err.text);
        assert_int_equal(aq_input_drain(in, NULL), 0);
        assert_int_equal(aq_input_hash(in), XXH3_64bits(poem, sizeof(poem) - 1));
        aq_input_close(in);
        aq_buf_close(&file);
        unlink(name);
    }
}

/* Nothing is damaged there, and it takes a GiB to unpack. */
static void a_window_that_is_too_large_is_said(void **state)
{
    (void)state;
    if (aq_compression_check(AQ_ZSTD, "f", NULL) < 0)
        return;
    struct aq_input_opts opts = {.path = path};
    struct aq_input *in;
    struct aq_err err;
    /* A window of 2^30 bytes, and a last block of one byte as it is. */
    static const char frame[] = "\x28\xb5\x2f\xfd\0\xa0\x09\0\0\n";
    write_file(frame, sizeof(frame) - 1);
    assert_int_equal(aq_input_open(&in, &opts, &err), -EINVAL);
    assert_null(strstr(err.text, "damaged"));
    assert_non_null(strstr(err.text, "zstd -dc --long=31"));
}

/* As compressors make it of nothing, or of no bytes at all. */
static void what_is_compressed_may_be_empty(void **state)
{
    (void)state;
    static const char *const names[] = {"f.gz", "f.zst"};
    for (size_t i = 0; i < AQ_ARRAY_LEN(names); i++) {
        enum aq_compression c = aq_compression_of_name(names[i]);
        if (aq_compression_check(c, "f", NULL) < 0)
            continue;
        char name[sizeof(path) + 8];
        struct aq_buf file = {0};
        assert_int_equal(aq_compress(&file, c, "", 0), 0);
        snprintf(name, sizeof(name), "%s%s", path, names[i] + 1);
        for (int bytes = 0; bytes < 2; bytes++) {
            struct aq_input *in;
            struct aq_err err;
            struct aq_line line;
            struct aq_line_place place;
            write_file(file.data, bytes ? file.count : 0);
            assert_int_equal(rename(path, name), 0);
            if (aq_input_open(&in, &(struct aq_input_opts){.path = name}, &err) < 0)
                fail_msg("%s", err.text);
            assert_int_equal(aq_input_next(in, &line, &place, NULL), 0);
            assert_int_equal(aq_input_bytes(in), 0);
            aq_input_close(in);
        }
        unlink(name);
        aq_buf_close(&file);
    }
}

static void what_is_compressed_and_not_whole_is_refused(void **state)
{
    (void)state;
    struct aq_input_opts opts = {.path = path};
    for (int c = AQ_GZIP; c < AQ_COMPRESSION_COUNT; c++) {
        if (aq_compression_check((enum aq_compression)c, "f", NULL) < 0)
            continue;
        struct aq_buf file = {0};
        struct aq_input *in;
        struct aq_err err;
        assert_int_equal(aq_compress(&file, (enum aq_compression)c, poem, sizeof(poem) - 1), 0);
        for (size_t count = 4; count < file.count; count++) {
            write_file(file.data, count);
            assert_int_equal(aq_input_open(&in, &opts, &err), -EINVAL);
            assert_non_null(strstr(err.text, "cut off"));
        }
        file.data[file.count / 2] ^= 0x10;
        write_file(file.data, file.count);
        assert_int_equal(aq_input_open(&in, &opts, &err), -EINVAL);
        assert_non_null(strstr(err.text, aq_compression_name((enum aq_compression)c)));
        aq_buf_close(&file);
    }
}

static void a_name_that_promises_what_is_not_there_is_refused(void **state)
{
    (void)state;
    char name[sizeof(path) + 8];
    struct aq_input *in;
    struct aq_err err;
    struct aq_input_opts opts = {.path = name};
    snprintf(name, sizeof(name), "%s.gz", path);
    write_file(poem, sizeof(poem) - 1);
    assert_int_equal(rename(path, name), 0);
    assert_int_equal(aq_input_open(&in, &opts, &err), -EINVAL);
    assert_non_null(strstr(err.text, "by its name it is gzip-compressed"));
    unlink(name);
}

static void a_table_is_refused_with_a_line_that_makes_records_of_it(void **state)
{
    static const char table[] = "name,question\na,\"why, oh why\"\n";
    static const char *const names[] = {"q.csv", "Q.TSV"};
    for (size_t i = 0; i < AQ_ARRAY_LEN(names); i++) {
        char name[sizeof(path) + 8];
        snprintf(name, sizeof(name), "%s/%s", dir, names[i]);
        write_file(table, sizeof(table) - 1);
        assert_int_equal(rename(path, name), 0);
        struct aq_input *in;
        struct aq_err err;
        struct aq_input_opts opts = {.path = name};
        assert_int_equal(aq_input_open(&in, &opts, &err), -EINVAL);
        assert_non_null(strstr(err.text, "csv.DictReader(sys.stdin"));
        assert_int_equal(strstr(err.text, "delimiter=\"\\t\"") != NULL, i == 1);
        assert_non_null(strstr(err.text, "--prompt-field"));
        opts.format = AQ_INPUT_TEXT; /* the user may know better */
        assert_int_equal(aq_input_open(&in, &opts, &err), 0);
        assert_next(in, "name,question", 0, 1);
        aq_input_close(in);
        assert_int_equal(unlink(name), 0);
    }
}

/* Opens it as standard input. */
static int open_standard_input(struct aq_input **ret, const char *text, struct aq_err *reterr)
{
    struct aq_input_opts opts = {.path = "-", .spool_dir = dir};
    write_file(text, strlen(text));
    int was = dup(STDIN_FILENO), fd = open(path, O_RDONLY);
    assert_true(was >= 0 && fd >= 0 && dup2(fd, STDIN_FILENO) == STDIN_FILENO);
    int rc = aq_input_open(ret, &opts, reterr);
    assert_int_equal(dup2(was, STDIN_FILENO), STDIN_FILENO);
    close(fd);
    close(was);
    return rc;
}

static void a_table_without_a_name_is_known_by_its_lines(void **state)
{
    static const char *const tables[] = {
        "name,question\na,\"why, oh\nwhy\"\n",
        "name,question\r\na,b\r\n\r\nc,d",
        "\xef\xbb\xbf\"first name\",b\nwell,\"said \"\"so\"\"\"\n",
        "name\tquestion\na\tb, c and d\n",
    };
    static const char *const texts[] = {
        "Once, there was,\na fox, it ran,\n",
        "a, b\nc, d\n",
        "yes,no\nmaybe\n",
        "name,question\n",
        "one\ntwo\n",
        "a,,b\nc,,d\n",
    };
    struct aq_input *in;
    struct aq_err err;
    for (size_t i = 0; i < AQ_ARRAY_LEN(tables); i++) {
        assert_int_equal(open_standard_input(&in, tables[i], &err), -EINVAL);
        assert_non_null(strstr(err.text, "'standard input' is a table"));
        assert_non_null(strstr(err.text, "csv.DictReader(sys.stdin"));
        assert_null(strstr(err.text, "<"));
        assert_int_equal(strstr(err.text, "delimiter=\"\\t\"") != NULL, i == 3);
    }
    for (size_t i = 0; i < AQ_ARRAY_LEN(texts); i++) {
        if (open_standard_input(&in, texts[i], &err) < 0)
            fail_msg("'%s': %s", texts[i], err.text);
        assert_true(aq_input_is_text(in));
        aq_input_close(in);
    }
}

static void the_line_that_makes_records_can_be_typed(void **state)
{
    static const char table[] = "name,question\na,b\n";
    char name[sizeof(path) + 32];
    struct aq_input *in;
    struct aq_err err;
    struct aq_input_opts opts = {.path = name};
    snprintf(name, sizeof(name), "%s/it's $HOME.csv", dir);
    write_file(table, sizeof(table) - 1);
    assert_int_equal(rename(path, name), 0);
    assert_int_equal(aq_input_open(&in, &opts, &err), -EINVAL);
    assert_non_null(strstr(err.text, "/it'\\''s $HOME.csv' >prompts.jsonl"));
    assert_int_equal(unlink(name), 0);
}

static void a_pipe_is_spooled(void **state)
{
    assert_int_equal(mkfifo(path, 0600), 0);
    int keep = open(path, O_RDWR); /* so that neither side waits for the other */
    assert_int_equal(write(keep, "one\ntwo\n", 8), 8);
    int writer = open(path, O_WRONLY);
    struct aq_input *in;
    struct aq_input_opts opts = {.path = path, .spool_dir = dir, .format = AQ_INPUT_TEXT};
    pid_t child = fork();
    if (child == 0) { /* closes the last writer once the reader has it open */
        usleep(200000);
        _exit(0);
    }
    close(writer);
    close(keep);
    /* The child's copies end with it; reading then comes to an end. */
    assert_int_equal(aq_input_open(&in, &opts, NULL), 0);
    assert_next(in, "one", 0, 1);
    assert_next(in, "two", 1, 2);
    assert_end(in);
    aq_input_close(in);
}

static void prompts_become_records(void **state)
{
    char *items[] = {(char *)"say \"hi\"\n", (char *)"b"};
    struct aq_strings prompts = {items, 2};
    struct aq_input_opts opts = {.prompts = &prompts};
    struct aq_input *in;
    assert_int_equal(aq_input_open(&in, &opts, NULL), 0);
    assert_next(in, "{\"prompt\":\"say \\\"hi\\\"\\n\"}", 0, 1);
    assert_next(in, "{\"prompt\":\"b\"}", 1, 2);
    assert_end(in);
    aq_input_close(in);
}

/* Also behind a byte order mark, which is no part of any line. */
static void what_has_only_grown_begins_as_it_was(void **state)
{
    static const char *const texts[] = {"{\"a\":1}\n{\"b\":2}\n",
                                        "\xef\xbb\xbf{\"a\":1}\n{\"b\":2}\n"};
    for (size_t i = 0; i < AQ_ARRAY_LEN(texts); i++) {
        char grown[64];
        struct aq_input *in;
        struct aq_input_opts opts = {.path = path};
        write_file(texts[i], strlen(texts[i]));
        assert_int_equal(aq_input_open(&in, &opts, NULL), 0);
        assert_int_equal(aq_input_drain(in, NULL), 0);
        uint64_t bytes = aq_input_bytes(in), hash = aq_input_hash(in);
        assert_int_equal(bytes, strlen(texts[i]));
        aq_input_close(in);
        snprintf(grown, sizeof(grown), "%s{\"c\":3}", texts[i]);
        write_file(grown, strlen(grown));
        assert_int_equal(aq_input_open(&in, &opts, NULL), 0);
        assert_int_equal(aq_input_begins_so(in, bytes, hash, NULL), 1);
        assert_int_equal(aq_input_begins_so(in, bytes, hash + 1, NULL), 0);
        assert_int_equal(aq_input_begins_so(in, bytes - 8, hash, NULL), 0);
        aq_input_close(in);
    }
}

#define T(claim) cmocka_unit_test_setup_teardown(claim, setup, teardown)

static const struct CMUnitTest tests[] = {
    T(ends_marks_and_blank_lines_are_passed_over),
    T(an_empty_file_has_no_lines),
    T(lines_larger_than_the_buffer_are_whole),
    T(a_line_beyond_the_limit_is_skipped_but_hashed),
    T(the_hash_is_of_the_whole_input_wherever_reading_stopped),
    T(auto_tells_text_from_json_by_the_first_character),
    T(what_is_not_a_text_file_is_refused_by_name),
    T(what_is_compressed_is_read_as_its_text),
    T(what_begins_with_a_skippable_frame_is_read),
    T(a_window_that_is_too_large_is_said),
    T(what_is_compressed_may_be_empty),
    T(what_is_compressed_and_not_whole_is_refused),
    T(a_name_that_promises_what_is_not_there_is_refused),
    T(a_table_is_refused_with_a_line_that_makes_records_of_it),
    T(a_table_without_a_name_is_known_by_its_lines),
    T(the_line_that_makes_records_can_be_typed),
    T(a_pipe_is_spooled),
    T(prompts_become_records),
    T(what_has_only_grown_begins_as_it_was),
};

AQ_TEST_MAIN(tests)
