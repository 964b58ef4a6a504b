/* SPDX-License-Identifier: Apache-2.0
 * FILE.records, written and read back, and what is wrong with a bad one. */
#include "engine/job/roster.h"

#include "tests/temp.h"
#include "tests/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { RECORDS = 3000 };

struct rig {
    char dir[TEMP_PATH_MAX], path[TEMP_INSIDE_MAX];
};

static int setup(void **state)
{
    struct rig *r = calloc(1, sizeof(*r));
    temp_dir(r->dir, "roster");
    snprintf(r->path, sizeof(r->path), "%s/out.records", r->dir);
    *state = r;
    return 0;
}

static int teardown(void **state)
{
    struct rig *r = *state;
    int rc = temp_remove(r->dir);
    free(r);
    return rc;
}

static uint64_t hash_of(unsigned i)
{
    char id[16];
    int n = snprintf(id, sizeof(id), "r%u", i);
    return XXH3_64bits(id, (size_t)n);
}

/* Records 1, 4, 7, ... of lines 3, 9, 15, ...; every tenth without an id. */
static void write_some(const struct rig *r, unsigned count)
{
    struct aq_roster_writer *w;
    struct aq_roster_head head = {{2, 7}, 0xabc, 3 * RECORDS};
    int rc = aq_roster_begin(&w, r->path, &head, NULL);
    for (unsigned i = 0; rc == 0 && i < count; i++)
        rc = aq_roster_put(w,
                           &(struct aq_roster_record){.id_hash = i % 10 ? hash_of(i) : 5,
                                                      .key = i + 1,
                                                      .index = 3 * i + 1,
                                                      .line = 6 * i + 3},
                           i % 10 != 0, NULL);
    assert_int_equal(aq_roster_end(w, rc, NULL), 0);
}

static uint64_t find(const struct aq_roster *r, struct aq_result_mark m)
{
    return aq_roster_find(r, &m);
}

static void what_is_written_is_found_by_id_index_and_line(void **state)
{
    struct rig *rig = *state;
    struct aq_roster *r;
    write_some(rig, RECORDS);
    assert_int_equal(aq_roster_open(&r, rig->path, NULL), 0);
    assert_int_equal(aq_roster_count(r), RECORDS);
    assert_int_equal(aq_roster_head(r)->shard.index, 2);
    assert_int_equal(aq_roster_head(r)->shard.count, 7);
    assert_int_equal(aq_roster_head(r)->input_hash, 0xabc);
    assert_int_equal(aq_roster_head(r)->total, 3 * RECORDS);
    for (unsigned i = 0; i < RECORDS; i++) {
        char id[16];
        int n = snprintf(id, sizeof(id), "r%u", i);
        struct aq_result_mark by_id = {
            .has_id = true, .id = id, .id_bytes = (size_t)n, .key = i + 1};
        assert_int_equal(find(r, by_id), i % 10 ? i : SIZE_MAX);
        by_id.key++; /* another request under the same id */
        assert_int_equal(find(r, by_id), SIZE_MAX);
        struct aq_result_mark by_index = {.has_index = true, .index = 3 * i + 1, .key = i + 1};
        assert_int_equal(find(r, by_index), i);
        by_index.index++;
        assert_int_equal(find(r, by_index), SIZE_MAX);
        struct aq_result_mark by_line = {.has_line = true, .line = 6 * i + 3, .key = i + 1};
        assert_int_equal(find(r, by_line), i);
    }
    assert_int_equal(find(r, (struct aq_result_mark){.key = 1}), SIZE_MAX);
    aq_roster_close(r);
}

static void an_empty_one_finds_nothing(void **state)
{
    struct rig *rig = *state;
    struct aq_roster *r;
    write_some(rig, 0);
    assert_int_equal(aq_roster_open(&r, rig->path, NULL), 0);
    assert_int_equal(aq_roster_count(r), 0);
    assert_int_equal(find(r, (struct aq_result_mark){.has_index = true}), SIZE_MAX);
    aq_roster_close(r);
}

static char *read_text(const struct rig *r, size_t *ret_bytes)
{
    FILE *f = fopen(r->path, "rb");
    char *text = malloc(1 << 20);
    *ret_bytes = fread(text, 1, 1 << 20, f);
    fclose(f);
    return text;
}

static void write_text(const struct rig *r, const char *text, size_t bytes)
{
    FILE *f = fopen(r->path, "wb");
    assert_int_equal(fwrite(text, 1, bytes, f), bytes);
    fclose(f);
}

static void any_changed_byte_and_any_cut_is_noticed(void **state)
{
    struct rig *rig = *state;
    struct aq_roster *r;
    struct aq_err err;
    size_t bytes;
    write_some(rig, 12);
    char *text = read_text(rig, &bytes);
    for (size_t at = 0; at < bytes; at++) {
        text[at] ^= 1;
        write_text(rig, text, bytes);
        assert_int_equal(aq_roster_open(&r, rig->path, &err), -EINVAL);
        assert_non_null(strstr(err.text, "is damaged"));
        text[at] ^= 1;
        write_text(rig, text, at);
        assert_int_equal(aq_roster_open(&r, rig->path, &err), -EINVAL);
    }
    text[bytes] = '\n';
    write_text(rig, text, bytes + 1);
    assert_int_equal(aq_roster_open(&r, rig->path, &err), -EINVAL);
    free(text);
}

/* A sum that fits does not make numbers fit. */
static void numbers_out_of_order_are_refused(void **state)
{
    static const char *const bad[] = {
        "0 1 - 01\n0 2 - 02\n", "1 2 - 01\n0 3 - 02\n", "0 2 - 01\n1 2 - 02\n",
        "99999999 1 - 01\n",    "0 1 zz 01\n",          "0 1 -\n",
        "0 99999999999 - 01\n",
    };
    struct rig *rig = *state;
    struct aq_roster *r;
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        char text[512];
        int n = snprintf(text, sizeof(text), "aquifer-records 1 0/2 00 10\n%s", bad[i]);
        n += snprintf(text + n, sizeof(text) - (size_t)n, "sum %016llx\n",
                      (unsigned long long)XXH3_64bits(text, (size_t)n));
        write_text(rig, text, (size_t)n);
        assert_int_equal(aq_roster_open(&r, rig->path, NULL), -EINVAL);
    }
    remove(rig->path);
    assert_int_equal(aq_roster_open(&r, rig->path, NULL), -ENOENT);
}

#define RIG(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

static const struct CMUnitTest tests[] = {
    RIG(what_is_written_is_found_by_id_index_and_line),
    RIG(an_empty_one_finds_nothing),
    RIG(any_changed_byte_and_any_cut_is_noticed),
    RIG(numbers_out_of_order_are_refused),
};

AQ_TEST_MAIN(tests)
