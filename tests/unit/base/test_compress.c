/* SPDX-License-Identifier: Apache-2.0
 * Compressed text: members come back whole, what is damaged or cut off is passed over and named,
 * and nothing of it is taken for text.  For what this build has of gzip and zstd. */
#include "base/compress.h"

#include "base/file.h"
#include "base/prng.h"
#include "tests/temp.h"
#include "tests/test.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

enum { MEMBERS = 5, LINES = 40, RANGES_MAX = 8 };

struct built {
    char path[TEMP_PATH_MAX];
    int fd;
    struct aq_buf text[MEMBERS], file;
    size_t end[MEMBERS]; /* of each member in the file */
};

static void make_text(struct aq_buf *text, unsigned member)
{
    for (unsigned i = 0; i < LINES; i++)
        aq_buf_printf(text, "{\"id\": %u, \"draw\": %u}\n", member * LINES + i,
                      (unsigned)aq_prng_below(1, member, i, 1u << 30));
}

static void put_file(struct built *b)
{
    assert_int_equal(aq_file_replace(b->path, b->file.data, b->file.count, false, NULL), 0);
    if (b->fd >= 0)
        aq_file_close(b->fd);
    b->fd = aq_file_open(b->path, O_RDONLY, 0);
    assert_true(b->fd >= 0);
}

static void build(struct built *b, enum aq_compression c)
{
    *b = (struct built){.fd = -1};
    aq_file_close(temp_file(b->path, "compress"));
    for (unsigned i = 0; i < MEMBERS; i++) {
        make_text(&b->text[i], i);
        assert_int_equal(aq_compress(&b->file, c, b->text[i].data, b->text[i].count), 0);
        b->end[i] = b->file.count;
    }
    put_file(b);
}

static void drop(struct built *b)
{
    aq_file_close(b->fd);
    unlink(b->path);
    aq_buf_close(&b->file);
    for (unsigned i = 0; i < MEMBERS; i++)
        aq_buf_close(&b->text[i]);
}

struct seen {
    struct aq_buf text;
    uint64_t begin[RANGES_MAX], end[RANGES_MAX], whole_end;
    bool last[RANGES_MAX];
    unsigned ranges;
};

static void see_damage(void *user, uint64_t begin, uint64_t end, bool last)
{
    struct seen *s = user;
    assert_true(s->ranges < RANGES_MAX && begin < end);
    s->begin[s->ranges] = begin;
    s->end[s->ranges] = end;
    s->last[s->ranges++] = last;
}

static void read_all(struct seen *s, const struct built *b, enum aq_compression c)
{
    struct aq_members *m;
    char some[1000];
    ssize_t n;
    *s = (struct seen){0};
    assert_int_equal(aq_members_open(&m, b->fd, c, see_damage, s, NULL), 0);
    while ((n = aq_members_read(m, some, sizeof(some))) > 0)
        aq_buf_put(&s->text, some, (size_t)n);
    assert_int_equal(n, 0);
    s->whole_end = aq_members_end(m);
    aq_members_close(m);
}

/* The text is that of all members but one (MEMBERS: of all). */
static void assert_text(const struct seen *s, const struct built *b, unsigned without)
{
    struct aq_buf want = {0};
    for (unsigned i = 0; i < MEMBERS; i++)
        if (i != without)
            aq_buf_put(&want, b->text[i].data, b->text[i].count);
    assert_int_equal(s->text.count, want.count);
    assert_memory_equal(s->text.data, want.data, want.count);
    aq_buf_close(&want);
}

typedef void check_fn(enum aq_compression c);

static void with_each(check_fn *check)
{
    for (int c = AQ_GZIP; c < AQ_COMPRESSION_COUNT; c++)
        if (aq_compression_check((enum aq_compression)c, "f", NULL) == 0)
            check((enum aq_compression)c);
}

static void check_whole(enum aq_compression c)
{
    struct built b;
    struct seen s;
    build(&b, c);
    assert_int_equal(aq_compression_of_bytes(b.file.data, b.file.count), c);
    read_all(&s, &b, c);
    assert_text(&s, &b, MEMBERS);
    assert_int_equal(s.ranges, 0);
    assert_int_equal(s.whole_end, b.file.count);
    aq_buf_close(&s.text);
    drop(&b);
}

static void whole_members_are_their_text(void **state)
{
    (void)state;
    with_each(check_whole);
}

/* Wherever a file is cut, the members before the cut are whole and the rest is named. */
static void check_cut(enum aq_compression c)
{
    struct built b;
    struct seen s;
    build(&b, c);
    size_t whole = b.file.count, before = b.end[MEMBERS - 2];
    for (size_t at = before + 1; at < whole; at++) {
        b.file.count = at;
        put_file(&b);
        read_all(&s, &b, c);
        assert_text(&s, &b, MEMBERS - 1);
        assert_int_equal(s.ranges, 1);
        assert_true(s.last[0] && s.begin[0] == before && s.end[0] == at && s.whole_end == before);
        aq_buf_close(&s.text);
    }
    drop(&b);
}

static void a_cut_loses_the_last_member_and_nothing_else(void **state)
{
    (void)state;
    with_each(check_cut);
}

static void check_flips(enum aq_compression c)
{
    struct built b;
    struct seen s;
    build(&b, c);
    unsigned harmless = 0;
    for (size_t at = b.end[1]; at < b.end[2]; at++) {
        b.file.data[at] ^= (char)(1 << at % 8);
        put_file(&b);
        read_all(&s, &b, c);
        harmless += s.ranges == 0; /* a time or a flag in the header, which nobody reads */
        assert_text(&s, &b, s.ranges ? 2 : MEMBERS);
        if (s.ranges)
            assert_true(s.begin[0] == b.end[1] && s.end[0] == b.end[2] && !s.last[0]);
        aq_buf_close(&s.text);
        b.file.data[at] ^= (char)(1 << at % 8);
    }
    assert_true(harmless <= 8);
    drop(&b);
}

static void a_changed_byte_loses_its_member_and_nothing_else(void **state)
{
    (void)state;
    with_each(check_flips);
}

static int append(void *user, const char *bytes, size_t count)
{
    aq_buf_put(user, bytes, count);
    return 0;
}

static int stop_at_once(void *user, const char *bytes, size_t count)
{
    return 7;
}

static void check_salvage(enum aq_compression c)
{
    struct built b;
    struct aq_buf text = {0};
    build(&b, c);
    b.file.data[b.end[2] - 1] ^= 1; /* of the checksum, or of the length behind it */
    put_file(&b);
    assert_int_equal(aq_members_salvage(b.fd, c, b.end[1], b.end[2], append, &text), 0);
    assert_int_equal(text.count, b.text[2].count);
    assert_memory_equal(text.data, b.text[2].data, text.count);
    assert_int_equal(aq_members_salvage(b.fd, c, b.end[1], b.end[2], stop_at_once, NULL), 7);
    aq_buf_close(&text);
    drop(&b);
}

static void what_a_damaged_member_still_has_can_be_read(void **state)
{
    (void)state;
    with_each(check_salvage);
}

static void names_and_first_bytes_tell_a_compression(void **state)
{
    (void)state;
    assert_int_equal(aq_compression_of_name("a.jsonl.gz"), AQ_GZIP);
    assert_int_equal(aq_compression_of_name("A.ZST"), AQ_ZSTD);
    assert_int_equal(aq_compression_of_name("gz"), AQ_PLAIN);
    assert_int_equal(aq_compression_of_name(".gz"), AQ_PLAIN); /* a hidden file */
    assert_int_equal(aq_compression_of_name("a.gz.txt"), AQ_PLAIN);
    assert_int_equal(aq_compression_ending("a.zst"), 4);
    assert_int_equal(aq_compression_of_bytes("{\"a\"", 4), AQ_PLAIN);
    assert_int_equal(aq_compression_of_bytes("\x28\xb5", 2), AQ_PLAIN);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(whole_members_are_their_text),
    cmocka_unit_test(a_cut_loses_the_last_member_and_nothing_else),
    cmocka_unit_test(a_changed_byte_loses_its_member_and_nothing_else),
    cmocka_unit_test(what_a_damaged_member_still_has_can_be_read),
    cmocka_unit_test(names_and_first_bytes_tell_a_compression),
};

AQ_TEST_MAIN(tests)
