/* SPDX-License-Identifier: Apache-2.0
 * Packed stores that are read: what was written, where it lies, and damage. */
#include "base/threads.h"
#include "tests/rot.h"
#include "tests/unit/engine/checkpoint/store_rig.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- reading back ---- */

static void what_was_written_reads_back(void **state)
{
    struct rig *r = *state;
    must_finish(r, must_open_writer(r));
    assert_true(aq_store_present(r->dir[0]));
    must_be_whole(r);
    assert_false(exists(in_dir(r, 0, ".partial")));
    assert_false(exists(in_dir(r, 0, "/journal")));
}

static void a_store_striped_over_three_directories_reads_back(void **state)
{
    struct rig *r = *state;
    r->opts.dir_count = 3;
    must_finish(r, must_open_writer(r));
    must_be_whole(r);
    struct stat st[3];
    for (int i = 0; i < 3; i++) {
        char name[16];
        snprintf(name, sizeof(name), "/data.%d", i);
        assert_int_equal(stat(in_dir(r, i, name), &st[i]), 0);
        assert_true(st[i].st_size > 0);
        assert_false(exists(in_dir(r, i, ".partial")));
    }
    struct aq_store *s = must_open(r);
    assert_int_equal(st[0].st_size + st[1].st_size + st[2].st_size, aq_store_bytes(s));
    aq_store_close(s);
}

static void any_range_of_an_item_can_be_read(void **state)
{
    struct rig *r = *state;
    r->opts.dir_count = 2;
    must_finish(r, must_open_writer(r));
    struct aq_store *s = must_open(r);
    const struct aq_store_item *item = aq_store_find(s, "layers.0.fc1.weight");
    uint64_t unit_border = AQ_STORE_UNIT_BYTES - item->offset % AQ_STORE_UNIT_BYTES;
    const uint64_t offsets[] = {0, 1, 4095, unit_border - 1, unit_border, item->bytes - 7};
    for (size_t i = 0; i < AQ_ARRAY_LEN(offsets); i++) {
        unsigned char found[8192];
        size_t n = aq_min_u64(sizeof(found), item->bytes - offsets[i]);
        assert_int_equal(aq_store_read(s, item, offsets[i], found, n, &r->err), 0);
        for (size_t j = 0; j < n; j++)
            assert_int_equal(found[j], content(BIG, offsets[i] + j));
    }
    aq_store_close(s);
}

struct parallel {
    struct aq_store *s;
    int bad[64];
};

static void read_tile(void *arg, uint32_t tile, uint32_t worker)
{
    struct parallel *p = arg;
    const struct aq_store_item *item = aq_store_item(p->s, BIG);
    uint64_t share = item->bytes / 64, at = tile * share;
    unsigned char *found = malloc(share);
    p->bad[tile] = !found || aq_store_read(p->s, item, at, found, share, NULL) != 0;
    for (uint64_t i = 0; !p->bad[tile] && i < share; i++)
        p->bad[tile] = found[i] != content(BIG, at + i);
    free(found);
}

static void threads_can_read_side_by_side(void **state)
{
    struct rig *r = *state;
    r->opts.dir_count = 3;
    must_finish(r, must_open_writer(r));
    struct parallel p = {.s = must_open(r)};
    struct aq_pool *pool;
    assert_int_equal(aq_pool_open(&pool, 4, &r->err), 0);
    aq_pool_run(pool, read_tile, &p, 64);
    aq_pool_close(pool);
    for (int i = 0; i < 64; i++)
        assert_int_equal(p.bad[i], 0);
    aq_store_close(p.s);
}

static void items_are_found_by_name(void **state)
{
    struct rig *r = *state;
    must_finish(r, must_open_writer(r));
    struct aq_store *s = must_open(r);
    for (uint32_t i = 0; i < ITEMS; i++)
        assert_ptr_equal(aq_store_find(s, aq_store_item(s, i)->name), aq_store_item(s, i));
    assert_null(aq_store_find(s, "lm_head.weight"));
    assert_null(aq_store_find(s, ""));
    aq_store_close(s);
}

static void a_step_is_one_aligned_extent_in_the_order_given(void **state)
{
    struct rig *r = *state;
    must_finish(r, must_open_writer(r));
    struct aq_store *s = must_open(r);
    uint64_t at = 0;
    assert_int_equal(aq_store_step_count(s), AQ_ARRAY_LEN(steps));
    for (uint32_t i = 0; i < aq_store_step_count(s); i++) {
        const struct aq_store_step *step = aq_store_step(s, i);
        assert_string_equal(step->name, steps[i].name);
        assert_int_equal(step->offset, at);
        assert_int_equal(step->offset % AQ_STORE_STEP_ALIGN, 0);
        for (uint32_t j = 0; j < step->item_count; j++) {
            const struct aq_store_item *item = aq_store_item(s, step->first_item + j);
            assert_string_equal(item->name, steps[i].items[j].name);
            assert_int_equal(item->step, i);
            assert_int_equal(item->offset % AQ_STORE_ITEM_ALIGN, 0);
            assert_true(item->offset >= at);
            at = item->offset + item->bytes;
        }
        assert_true(at <= step->offset + step->bytes);
        at = step->offset + step->bytes;
    }
    assert_int_equal(at, aq_store_bytes(s));
    aq_store_close(s);
}

static void gaps_between_items_are_zero(void **state)
{
    struct rig *r = *state;
    must_finish(r, must_open_writer(r));
    struct aq_store *s = must_open(r);
    const struct aq_store_item *item = aq_store_find(s, "final_layer_norm.weight");
    int fd = open(aq_store_path(s, 0), O_RDONLY);
    unsigned char gap[4096 - 33 * 4];
    assert_int_equal(item->bytes, 33 * 4);
    assert_int_equal(pread(fd, gap, sizeof(gap), (off_t)(item->offset + item->bytes)), sizeof(gap));
    for (size_t i = 0; i < sizeof(gap); i++)
        assert_int_equal(gap[i], 0);
    close(fd);
    aq_store_close(s);
}

static void units_alternate_between_directories(void **state)
{
    const uint64_t u = AQ_STORE_UNIT_BYTES;
    struct aq_stripe_piece p = aq_stripe_locate(3, 7 * u + 5, 2 * u);
    assert_int_equal(p.file, 1);
    assert_int_equal(p.offset, 2 * u + 5);
    assert_int_equal(p.bytes, u - 5);
    p = aq_stripe_locate(1, 7 * u + 5, 2 * u); /* one directory: everything follows */
    assert_int_equal(p.file, 0);
    assert_int_equal(p.offset, 7 * u + 5);
    assert_int_equal(p.bytes, 2 * u);
}

static void stripes_add_up_and_hold_every_piece(void **state)
{
    const uint64_t u = AQ_STORE_UNIT_BYTES;
    const uint64_t sizes[] = {1, u - 1, u, u + 1, 3 * u, 7 * u + 65536, 12 * u};
    for (size_t i = 0; i < AQ_ARRAY_LEN(sizes); i++) {
        for (uint32_t n = 1; n <= 5; n++) {
            uint64_t sum = 0, end[5] = {0};
            for (uint64_t at = 0; at < sizes[i];) {
                struct aq_stripe_piece p = aq_stripe_locate(n, at, sizes[i] - at);
                end[p.file] = aq_max_u64(end[p.file], p.offset + p.bytes);
                at += p.bytes;
            }
            for (uint32_t d = 0; d < n; d++) {
                assert_int_equal(aq_stripe_file_bytes(sizes[i], n, d), end[d]);
                sum += end[d];
            }
            assert_int_equal(sum, sizes[i]);
        }
    }
}

static uint64_t identity_of(struct rig *r)
{
    struct aq_store *s = must_open(r);
    uint64_t id = aq_store_identity(s);
    aq_store_close(s);
    return id;
}

static void remove_store(struct rig *r)
{
    char command[TEMP_DEEP_MAX];
    snprintf(command, sizeof(command), "rm -rf '%s'/store*", r->root);
    assert_int_equal(system(command), 0);
}

static void identity_is_of_the_content_and_not_of_where_it_lies(void **state)
{
    struct rig *r = *state;
    must_finish(r, must_open_writer(r));
    uint64_t one = identity_of(r);
    assert_int_equal(r->identity, one);
    remove_store(r);
    r->opts.dir_count = 3;
    must_finish(r, must_open_writer(r));
    assert_int_equal(identity_of(r), one);
    remove_store(r);
    write_text(r->config, "{\"model_type\": \"opt\", \"other\": 1}\n");
    must_finish(r, must_open_writer(r));
    assert_int_not_equal(identity_of(r), one);
}

static void plan_hash_tells_what_would_be_packed(void **state)
{
    struct rig *r = *state;
    uint64_t plan, other;
    assert_int_equal(aq_store_plan_hash(&plan, &r->opts, &r->err), 0);
    must_finish(r, must_open_writer(r));
    struct aq_store *s = must_open(r);
    assert_int_equal(aq_store_plan(s), plan);
    aq_store_close(s);
    r->opts.source = "another source";
    assert_int_equal(aq_store_plan_hash(&other, &r->opts, &r->err), 0);
    assert_int_not_equal(other, plan);
}

static void what_the_writer_said_about_the_model_is_kept(void **state)
{
    struct rig *r = *state;
    must_finish(r, must_open_writer(r));
    struct aq_store *s = must_open(r);
    assert_true(json_equal(aq_store_model(s), r->model));
    assert_string_equal(aq_store_source(s), "source");
    aq_store_close(s);
}

static void a_moved_store_of_one_directory_still_opens(void **state)
{
    struct rig *r = *state;
    must_finish(r, must_open_writer(r));
    assert_int_equal(rename(r->dir[0], r->dir[3]), 0);
    memcpy(r->dir[0], r->dir[3], sizeof(r->dir[0]));
    must_be_whole(r);
}

/* ---- damage ---- */

static void one_flipped_bit_is_found_and_its_item_named(void **state)
{
    struct rig *r = *state;
    char buffer[65536];
    r->opts.dir_count = 2;
    must_finish(r, must_open_writer(r));
    struct aq_store *s = must_open(r);
    rot_flip(aq_store_path(s, 1), 1234567); /* unit 1: in the big matrix */
    for (uint32_t i = 0; i < ITEMS; i++) {
        int rc = aq_store_verify_item(s, i, buffer, sizeof(buffer), &r->err);
        assert_int_equal(rc, i == BIG ? -ENOEXEC : 0);
    }
    assert_non_null(strstr(r->err.text, "'layers.0.fc1.weight' is damaged"));
    rot_flip(in_dir(r, 0, "/config.json"), 3);
    assert_int_equal(aq_store_verify_file(s, 0, buffer, sizeof(buffer), &r->err), -ENOEXEC);
    assert_non_null(strstr(r->err.text, "'config.json' is damaged"));
    aq_store_close(s);
}

static void a_flipped_bit_is_found_in_the_tile_that_is_read(void **state)
{
    struct rig *r = *state;
    static unsigned char tile[64 * 1024 * 2];
    r->opts.dir_count = 2;
    must_finish(r, must_open_writer(r));
    struct aq_store *s = must_open(r);
    const struct aq_store_item *item = aq_store_find(s, "layers.0.fc1.weight");
    assert_int_equal(aq_store_tile_bytes(item), sizeof(tile));
    assert_int_equal(aq_store_tile_count(item), 64);
    uint64_t at = 40 * sizeof(tile) + 77777; /* behind the first unit: in the second directory */
    struct aq_stripe_piece p = aq_stripe_locate(2, item->offset + at, 1);
    assert_int_equal(p.file, 1);
    rot_flip(aq_store_path(s, p.file), (off_t)p.offset);
    for (uint32_t i = 0; i < 64; i++) {
        int want = i == 40 ? -ENOEXEC : 0;
        assert_int_equal(aq_store_read_tile(s, item, i, tile, sizeof(tile), &r->err), want);
        /* Also where its last bytes are not asked for. */
        assert_int_equal(aq_store_read_tile(s, item, i, tile, 5000, &r->err), want);
    }
    char where[64];
    snprintf(where, sizeof(where), "131072 bytes from %llu on",
             (unsigned long long)(p.offset - 77777));
    assert_non_null(strstr(r->err.text, where));
    assert_non_null(strstr(r->err.text, "store1/data.1"));
    assert_non_null(strstr(r->err.text, "rows 2560 to 2623 of 'layers.0.fc1.weight'"));
    assert_non_null(strstr(r->err.text, "--verify"));
    aq_store_close(s);
}

static void a_store_of_the_first_version_is_read_and_compared_where_it_can_be(void **state)
{
    struct rig *r = *state;
    unsigned char bytes[4 * 4096];
    must_finish(r, must_open_writer(r));
    struct aq_store *s = must_open(r);
    assert_true(aq_store_has_tile_sums(s));
    aq_store_close(s);
    rot_make_old(in_dir(r, 0, "/manifest.json"));
    s = must_open(r);
    assert_false(aq_store_has_tile_sums(s));
    assert_true(aq_store_identity(s) == r->identity);
    const struct aq_store_item *one = aq_store_find(s, "layers.0.fc1.bias");
    assert_int_equal(aq_store_read_tile(s, one, 0, bytes, one->bytes, &r->err), 0);
    bytes[0] ^= 1;
    assert_int_equal(aq_store_check_tiles(s, one, 0, 1, bytes, &r->err), -ENOEXEC);
    const struct aq_store_item *many = aq_store_find(s, "layers.0.fc1.weight");
    assert_int_equal(aq_store_check_tiles(s, many, 0, 1, bytes, &r->err), 0);
    aq_store_close(s);
}

static void a_truncated_data_file_is_named_with_both_sizes(void **state)
{
    struct rig *r = *state;
    must_finish(r, must_open_writer(r));
    assert_int_equal(truncate(in_dir(r, 0, "/data.0"), 1000), 0);
    must_fail_to_open(r, -ENOEXEC, "data.0': expected 8585216 bytes");
    assert_non_null(strstr(r->err.text, "found 1000 (truncated)"));
}

static void a_data_file_cut_while_it_is_open_is_an_io_error(void **state)
{
    struct rig *r = *state;
    char found[16];
    must_finish(r, must_open_writer(r));
    struct aq_store *s = must_open(r);
    assert_int_equal(truncate(in_dir(r, 0, "/data.0"), 1000), 0);
    assert_int_equal(aq_store_read(s, aq_store_item(s, BIG), 0, found, 16, &r->err), -EIO);
    assert_non_null(strstr(r->err.text, "data.0"));
    aq_store_close(s);
}

static void missing_parts_are_named(void **state)
{
    struct rig *r = *state;
    must_fail_to_open(r, -ENOENT, "store0/manifest.json");
    r->opts.dir_count = 2;
    must_finish(r, must_open_writer(r));
    assert_int_equal(unlink(in_dir(r, 1, "/data.1")), 0);
    must_fail_to_open(r, -ENOENT, "store1/data.1");
    assert_int_equal(unlink(in_dir(r, 1, "/stripe.json")), 0);
    must_fail_to_open(r, -ENOENT, "store1/stripe.json");
}

static void directories_of_two_stores_are_not_mixed(void **state)
{
    struct rig *r = *state;
    char keep[TEMP_INSIDE_MAX], moved[TEMP_INSIDE_MAX];
    r->opts.dir_count = 2;
    must_finish(r, must_open_writer(r));
    snprintf(keep, sizeof(keep), "%s/kept", r->root);
    assert_int_equal(rename(r->dir[1], keep), 0);
    remove_store(r);
    r->opts.source = "another source";
    must_finish(r, must_open_writer(r));
    snprintf(moved, sizeof(moved), "%s/moved", r->root);
    assert_int_equal(rename(r->dir[1], moved), 0);
    assert_int_equal(rename(keep, r->dir[1]), 0);
    must_fail_to_open(r, -ENOEXEC, "store1/stripe.json': expected directory 1 of 2");
}

static const struct CMUnitTest tests[] = {
    RIG(what_was_written_reads_back),
    RIG(a_store_striped_over_three_directories_reads_back),
    RIG(any_range_of_an_item_can_be_read),
    RIG(threads_can_read_side_by_side),
    RIG(items_are_found_by_name),
    RIG(a_step_is_one_aligned_extent_in_the_order_given),
    RIG(gaps_between_items_are_zero),
    cmocka_unit_test(units_alternate_between_directories),
    cmocka_unit_test(stripes_add_up_and_hold_every_piece),
    RIG(identity_is_of_the_content_and_not_of_where_it_lies),
    RIG(plan_hash_tells_what_would_be_packed),
    RIG(what_the_writer_said_about_the_model_is_kept),
    RIG(a_moved_store_of_one_directory_still_opens),
    RIG(one_flipped_bit_is_found_and_its_item_named),
    RIG(a_flipped_bit_is_found_in_the_tile_that_is_read),
    RIG(a_store_of_the_first_version_is_read_and_compared_where_it_can_be),
    RIG(a_truncated_data_file_is_named_with_both_sizes),
    RIG(a_data_file_cut_while_it_is_open_is_an_io_error),
    RIG(missing_parts_are_named),
    RIG(directories_of_two_stores_are_not_mixed),
};

AQ_TEST_MAIN(tests)
