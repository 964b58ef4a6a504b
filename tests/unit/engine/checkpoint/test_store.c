/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/temp.h"
#include "tests/test.h"

#include "base/threads.h"
#include "engine/checkpoint/store.h"
#include "engine/checkpoint/store_manifest.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- rig: a small store of every kind, 9 MiB in all, so that it spans three striping units ----
 */

enum { ITEMS = 6, BIG = 2 /* index of the 8 MiB matrix */ };

static const struct aq_store_item_desc embed_items[] = {
    {"embed_tokens.weight", AQ_STORE_MATRIX, AQ_F16, AQ_LAYOUT_COL64, 100, 33, 0},
    {"embed_positions.weight", AQ_STORE_TABLE, AQ_F32, AQ_LAYOUT_ROWS, 10, 33, 0},
};
static const struct aq_store_item_desc layer_items[] = {
    {"layers.0.fc1.weight", AQ_STORE_MATRIX, AQ_BF16, AQ_LAYOUT_PAIR64, 4096, 1024, 0},
    {"layers.0.fc1.bias", AQ_STORE_VECTOR, AQ_F32, AQ_LAYOUT_ROWS, 1, 4096, 0},
};
static const struct aq_store_item_desc head_items[] = {
    {"final_layer_norm.weight", AQ_STORE_VECTOR, AQ_F32, AQ_LAYOUT_ROWS, 1, 33, 0},
    {"blob", AQ_STORE_BLOB, AQ_U8, AQ_LAYOUT_ROWS, 0, 0, 12345},
};
static const struct aq_store_step_desc steps[] = {
    {"embed", embed_items, 2},
    {"layer.0.mlp", layer_items, 2},
    {"head", head_items, 2},
};

struct rig {
    char root[TEMP_PATH_MAX], dir[4][TEMP_INSIDE_MAX];
    const char *dirs[4];
    char config[TEMP_INSIDE_MAX];
    json_t *model;
    struct aq_store_source_file files[2];
    struct aq_store_writer_opts opts;
    struct aq_err err;
    uint64_t identity; /* as the last writer said it */
};

static void write_text(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static int rig_open(void **state)
{
    struct rig *r = calloc(1, sizeof(*r));
    temp_dir(r->root, "store");
    for (int i = 0; i < 4; i++) {
        snprintf(r->dir[i], sizeof(r->dir[i]), "%s/store%d", r->root, i);
        r->dirs[i] = r->dir[i];
    }
    snprintf(r->config, sizeof(r->config), "%s/config.json", r->root);
    write_text(r->config, "{\"model_type\": \"opt\"}\n");
    r->files[0] = (struct aq_store_source_file){"config.json", r->config};
    r->model = json_pack("{ss}", "name", "rig");
    r->opts = (struct aq_store_writer_opts){
        .dirs = r->dirs,
        .dir_count = 1,
        .steps = steps,
        .step_count = AQ_ARRAY_LEN(steps),
        .source = "source",
        .model = r->model,
        .files = r->files,
        .file_count = 1,
    };
    *state = r;
    return 0;
}

static int rig_close(void **state)
{
    struct rig *r = *state;
    int rc = temp_remove(r->root);
    json_decref(r->model);
    free(r);
    return rc;
}

/* Byte `at` of item `item`: no two items, units or panels look alike. */
static unsigned char content(uint32_t item, uint64_t at)
{
    uint64_t x = (at / 8 + 1) * 0x9e3779b97f4a7c15ull + item * 0xd1b54a32d192ed03ull;
    x ^= x >> 29;
    return (unsigned char)((x * 0xbf58476d1ce4e5b9ull) >> (8 * (at % 8)));
}

static unsigned char *item_content(const struct aq_store_item *item, uint32_t index)
{
    unsigned char *bytes = malloc(item->bytes);
    assert_non_null(bytes);
    for (uint64_t i = 0; i < item->bytes; i++)
        bytes[i] = content(index, i);
    return bytes;
}

static int write_item(struct aq_store_writer *w, uint32_t index, struct aq_err *err)
{
    const struct aq_store_item *item = aq_store_writer_item(w, index);
    unsigned char *bytes = item_content(item, index);
    int rc = 0;
    aq_store_writer_begin(w, index);
    for (uint64_t at = 0; rc == 0 && at < item->bytes; at += 1000003) /* crosses units */
        rc = aq_store_writer_append(w, bytes + at, aq_min_u64(item->bytes - at, 1000003), err);
    free(bytes);
    return rc == 0 ? aq_store_writer_end(w, err) : rc;
}

static struct aq_store_writer *must_open_writer(struct rig *r)
{
    struct aq_store_writer *w = NULL;
    int rc = aq_store_writer_open(&w, &r->opts, &r->err);
    if (rc < 0)
        fail_msg("%s", r->err.text);
    return w;
}

static void must_finish(struct rig *r, struct aq_store_writer *w)
{
    for (uint32_t i = 0; i < aq_store_writer_item_count(w); i++) {
        if (!aq_store_writer_has(w, i) && write_item(w, i, &r->err) < 0)
            fail_msg("%s", r->err.text);
    }
    if (aq_store_writer_publish(w, &r->err) < 0)
        fail_msg("%s", r->err.text);
    r->identity = aq_store_writer_identity(w);
    aq_store_writer_close(w);
}

static struct aq_store *must_open(struct rig *r)
{
    struct aq_store *s = NULL;
    if (aq_store_open(&s, r->dir[0], &r->err) < 0)
        fail_msg("%s", r->err.text);
    return s;
}

/* Every tile has a checksum, and other bytes do not fit it. */
static void must_check(struct rig *r, struct aq_store *s, const struct aq_store_item *item,
                       unsigned char *bytes)
{
    uint32_t tiles = aq_store_tile_count(item);
    assert_int_equal(aq_store_check_tiles(s, item, 0, tiles, bytes, &r->err), 0);
    for (uint32_t i = 0; i < tiles; i++) {
        uint64_t at = i * aq_store_tile_bytes(item);
        bytes[at] ^= 1;
        assert_int_equal(aq_store_check_tiles(s, item, i, 1, bytes + at, &r->err), -ENOEXEC);
        bytes[at] ^= 1;
    }
}

static void must_hold_everything(struct rig *r, struct aq_store *s)
{
    char buffer[4096];
    assert_int_equal(aq_store_item_count(s), ITEMS);
    for (uint32_t i = 0; i < ITEMS; i++) {
        const struct aq_store_item *item = aq_store_item(s, i);
        unsigned char *want = item_content(item, i), *found = malloc(item->bytes);
        assert_int_equal(aq_store_read(s, item, 0, found, item->bytes, &r->err), 0);
        assert_memory_equal(found, want, item->bytes);
        assert_int_equal(aq_store_verify_item(s, i, buffer, sizeof(buffer), &r->err), 0);
        must_check(r, s, item, want);
        free(want);
        free(found);
    }
    for (uint32_t i = 0; i < aq_store_file_count(s); i++)
        assert_int_equal(aq_store_verify_file(s, i, buffer, sizeof(buffer), &r->err), 0);
}

static void must_be_whole(struct rig *r)
{
    struct aq_store *s = must_open(r);
    must_hold_everything(r, s);
    aq_store_close(s);
}

static void must_fail_to_open(struct rig *r, int code, const char *part_of_text)
{
    struct aq_store *s = NULL;
    int rc = aq_store_open(&s, r->dir[0], &r->err);
    assert_int_equal(rc, code);
    assert_null(s);
    if (!strstr(r->err.text, part_of_text))
        fail_msg("expected '%s' in: %s", part_of_text, r->err.text);
}

static bool exists(const char *path)
{
    struct stat st;
    return lstat(path, &st) == 0;
}

static char *in_dir(struct rig *r, int dir, const char *name)
{
    static char path[2][TEMP_DEEP_MAX];
    static int turn;
    turn ^= 1;
    snprintf(path[turn], sizeof(path[turn]), "%s%s", r->dir[dir], name);
    return path[turn];
}

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

/* ---- restarting ---- */

static void a_closed_writer_leaves_its_finished_items_to_the_next(void **state)
{
    struct rig *r = *state;
    r->opts.dir_count = 2;
    struct aq_store_writer *w = must_open_writer(r);
    assert_int_equal(write_item(w, 0, &r->err), 0);
    assert_int_equal(write_item(w, BIG, &r->err), 0);
    aq_store_writer_begin(w, 1); /* half an item does not count */
    assert_int_equal(aq_store_writer_append(w, "abc", 3, &r->err), 0);
    aq_store_writer_close(w);
    assert_false(aq_store_present(r->dir[0]));

    w = must_open_writer(r);
    uint64_t total, done;
    aq_store_writer_progress(w, &total, &done);
    for (uint32_t i = 0; i < ITEMS; i++)
        assert_int_equal(aq_store_writer_has(w, i), i == 0 || i == BIG);
    assert_int_equal(done, aq_store_writer_item(w, 0)->bytes + aq_store_writer_item(w, BIG)->bytes);
    must_finish(r, w);
    must_be_whole(r);
}

static void a_killed_writer_leaves_a_state_that_can_be_finished(void **state)
{
    struct rig *r = *state;
    r->opts.dir_count = 2;
    pid_t child = fork();
    if (child == 0) {
        struct aq_store_writer *w = NULL;
        if (aq_store_writer_open(&w, &r->opts, NULL) == 0 && write_item(w, 0, NULL) == 0 &&
            write_item(w, 1, NULL) == 0) {
            aq_store_writer_begin(w, BIG);
            (void)aq_store_writer_append(w, "abc", 3, NULL);
        }
        raise(SIGKILL);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status));
    assert_true(exists(in_dir(r, 0, ".partial/journal")));
    must_finish(r, must_open_writer(r));
    must_be_whole(r);
}

static void a_torn_journal_line_is_cut_off(void **state)
{
    struct rig *r = *state;
    struct aq_store_writer *w = must_open_writer(r);
    assert_int_equal(write_item(w, 0, &r->err), 0);
    aq_store_writer_close(w);
    FILE *f = fopen(in_dir(r, 0, ".partial/journal"), "a");
    fputs("1 0123", f);
    fclose(f);
    w = must_open_writer(r);
    assert_true(aq_store_writer_has(w, 0));
    assert_false(aq_store_writer_has(w, 1));
    assert_int_equal(write_item(w, 1, &r->err), 0);
    aq_store_writer_close(w);
    w = must_open_writer(r);
    assert_true(aq_store_writer_has(w, 1)); /* the line after the torn one is sound */
    must_finish(r, w);
    must_be_whole(r);
}

static void a_changed_plan_starts_anew(void **state)
{
    struct rig *r = *state;
    struct aq_store_writer *w = must_open_writer(r);
    assert_int_equal(write_item(w, 0, &r->err), 0);
    aq_store_writer_close(w);
    write_text(in_dir(r, 0, ".partial/vocab.json"), "of the other model");
    r->opts.source = "another source";
    w = must_open_writer(r);
    assert_false(aq_store_writer_has(w, 0));
    must_finish(r, w);
    must_be_whole(r);
    assert_false(exists(in_dir(r, 0, "/vocab.json")));
}

static void a_missing_stripe_starts_anew(void **state)
{
    struct rig *r = *state;
    r->opts.dir_count = 2;
    struct aq_store_writer *w = must_open_writer(r);
    assert_int_equal(write_item(w, 0, &r->err), 0);
    aq_store_writer_close(w);
    assert_int_equal(unlink(in_dir(r, 1, ".partial/data.1")), 0);
    w = must_open_writer(r);
    assert_false(aq_store_writer_has(w, 0));
    must_finish(r, w);
    must_be_whole(r);
}

static void an_interrupted_publish_is_repeated(void **state)
{
    struct rig *r = *state;
    r->opts.dir_count = 3;
    struct aq_store_writer *w = must_open_writer(r);
    for (uint32_t i = 0; i < ITEMS; i++)
        assert_int_equal(write_item(w, i, &r->err), 0);
    /* The last rename fails: the other directories have their final names by then. */
    assert_int_equal(mkdir(r->dir[0], 0777), 0);
    write_text(in_dir(r, 0, "/in-the-way"), "");
    assert_true(aq_store_writer_publish(w, &r->err) < 0);
    aq_store_writer_close(w);
    assert_true(exists(r->dir[1]) && exists(r->dir[2]));
    assert_int_equal(unlink(in_dir(r, 0, "/in-the-way")), 0);

    w = must_open_writer(r);
    for (uint32_t i = 0; i < ITEMS; i++)
        assert_true(aq_store_writer_has(w, i));
    must_finish(r, w);
    must_be_whole(r);
}

static void a_failed_write_leaves_a_state_that_can_be_finished(void **state)
{
    struct rig *r = *state;
    struct aq_store_writer *w = must_open_writer(r);
    assert_int_equal(write_item(w, 0, &r->err), 0);
    struct rlimit old, small;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    small = old;
    small.rlim_cur = 5 * AQ_MIB; /* in the middle of the big matrix */
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    int rc = write_item(w, BIG, &r->err);
    aq_store_writer_close(w);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    signal(SIGXFSZ, handler);
    assert_int_equal(rc, -EFBIG);
    assert_non_null(strstr(r->err.text, "layers.0.fc1.weight"));
    w = must_open_writer(r);
    assert_true(aq_store_writer_has(w, 0));
    assert_false(aq_store_writer_has(w, BIG));
    must_finish(r, w);
    must_be_whole(r);
}

/* ---- refusing before anything is written ---- */

static void must_refuse(struct rig *r, int code, const char *part_of_text)
{
    struct aq_store_writer *w = NULL;
    int rc = aq_store_writer_open(&w, &r->opts, &r->err);
    assert_int_equal(rc, code);
    assert_null(w);
    if (!strstr(r->err.text, part_of_text))
        fail_msg("expected '%s' in: %s", part_of_text, r->err.text);
}

static void an_existing_store_is_never_overwritten(void **state)
{
    struct rig *r = *state;
    must_finish(r, must_open_writer(r));
    must_refuse(r, -EINVAL, "exists already");
    must_be_whole(r);
}

static void a_directory_of_someone_else_is_left_alone(void **state)
{
    struct rig *r = *state;
    r->opts.dir_count = 2;
    assert_int_equal(mkdir(in_dir(r, 1, ".partial"), 0777), 0);
    write_text(in_dir(r, 1, ".partial/thesis.tex"), "years of work");
    must_refuse(r, -EINVAL, "no unfinished store");
    assert_true(exists(in_dir(r, 1, ".partial/thesis.tex")));
    assert_false(exists(in_dir(r, 0, ".partial")));
    assert_int_equal(rename(in_dir(r, 1, ".partial"), in_dir(r, 0, ".partial")), 0);
    must_refuse(r, -EINVAL, "no unfinished store");
    assert_true(exists(in_dir(r, 0, ".partial/thesis.tex")));
}

static void a_second_writer_is_refused(void **state)
{
    struct rig *r = *state;
    struct aq_store_writer *w = must_open_writer(r);
    must_refuse(r, -EINVAL, "another process");
    must_finish(r, w);
    must_be_whole(r);
}

static void too_little_space_is_said_before_anything_is_written(void **state)
{
    struct rig *r = *state;
    const struct aq_store_item_desc huge[] = {
        {"huge", AQ_STORE_BLOB, AQ_U8, AQ_LAYOUT_ROWS, 0, 0, 1ull << 55},
    };
    const struct aq_store_step_desc step[] = {{"step", huge, 1}};
    r->opts.steps = step;
    r->opts.step_count = 1;
    r->opts.dir_count = 2;
    must_refuse(r, -ENOMEM, "36028797"); /* 2^55 + ... bytes, over one file system */
    assert_false(exists(in_dir(r, 0, ".partial")));
    assert_false(exists(in_dir(r, 1, ".partial")));
}

static void a_missing_parent_directory_is_named(void **state)
{
    struct rig *r = *state;
    snprintf(r->dir[0], sizeof(r->dir[0]), "%s/nowhere/store", r->root);
    must_refuse(r, -ENOENT, "/nowhere'");
}

static void one_directory_given_twice_is_refused(void **state)
{
    struct rig *r = *state;
    snprintf(r->dir[1], sizeof(r->dir[1]), "%s/../%s/store0/", r->root, strrchr(r->root, '/') + 1);
    r->opts.dir_count = 2;
    must_refuse(r, -EINVAL, "given twice");
}

static void descriptions_that_make_no_sense_are_refused(void **state)
{
    struct rig *r = *state;
    const struct {
        struct aq_store_item_desc item;
        const char *text;
    } cases[] = {
        {{"", AQ_STORE_VECTOR, AQ_F32, 0, 1, 4, 0}, "name"},
        {{"a\nb", AQ_STORE_VECTOR, AQ_F32, 0, 1, 4, 0}, "name"},
        {{"\xff", AQ_STORE_VECTOR, AQ_F32, 0, 1, 4, 0}, "printable"},
        {{"a", AQ_STORE_VECTOR, AQ_I64, 0, 1, 4, 0}, "dtype"},
        {{"a", AQ_STORE_VECTOR, AQ_F32, 0, 2, 4, 0}, "shape"},
        {{"a", AQ_STORE_VECTOR, AQ_F32, AQ_LAYOUT_COL64, 1, 4, 0}, "layout"},
        {{"a", AQ_STORE_VECTOR, AQ_Q8, AQ_LAYOUT_ROWS, 1, 64, 0}, "dtype"},
        {{"a", AQ_STORE_TABLE, AQ_Q4, AQ_LAYOUT_ROWS, 4, 64, 0}, "dtype"},
        {{"a", AQ_STORE_TABLE, AQ_F32, AQ_LAYOUT_GROUP64, 4, 64, 0}, "layout"},
        {{"a", AQ_STORE_MATRIX, AQ_I8, AQ_LAYOUT_GROUP64, 64, 64, 0}, "dtype"},
        {{"a", AQ_STORE_MATRIX, AQ_Q8, AQ_LAYOUT_ROWS, 64, 64, 0}, "expected group64 for int8"},
        {{"a", AQ_STORE_MATRIX, AQ_BF16, AQ_LAYOUT_GROUP64, 64, 64, 0}, "found group64"},
        {{"a", AQ_STORE_MATRIX, AQ_F32, 0, 0, 4, 0}, "shape"},
        {{"a", AQ_STORE_MATRIX, AQ_F32, 0, UINT32_MAX, UINT32_MAX, 0}, "2^56"},
        {{"a", AQ_STORE_BLOB, AQ_F32, 0, 0, 0, 4}, "dtype"},
        {{"a", AQ_STORE_BLOB, AQ_U8, 0, 0, 0, 0}, "2^56"},
    };
    for (size_t i = 0; i < AQ_ARRAY_LEN(cases); i++) {
        const struct aq_store_step_desc step = {"step", &cases[i].item, 1};
        r->opts.steps = &step;
        r->opts.step_count = 1;
        must_refuse(r, -EINVAL, cases[i].text);
    }
    const struct aq_store_item_desc twice[] = {
        {"a", AQ_STORE_VECTOR, AQ_F32, 0, 1, 4, 0},
        {"a", AQ_STORE_VECTOR, AQ_F32, 0, 1, 4, 0},
    };
    const struct aq_store_step_desc step = {"step", twice, 2};
    r->opts.steps = &step;
    must_refuse(r, -EINVAL, "twice");
}

static void files_that_would_shadow_the_store_are_refused(void **state)
{
    struct rig *r = *state;
    const char *const names[] = {"manifest.json", "data.0", "journal", "../x", ".", "", "a\nb"};
    for (size_t i = 0; i < AQ_ARRAY_LEN(names); i++) {
        r->files[0].name = names[i];
        must_refuse(r, -EINVAL, "file '");
    }
    r->files[0].name = "config.json";
    r->files[1] = r->files[0];
    r->opts.file_count = 2;
    must_refuse(r, -EINVAL, "twice");
}

/* ---- damage ---- */

static void flip_byte(const char *path, off_t at)
{
    unsigned char byte;
    int fd = open(path, O_RDWR);
    assert_int_equal(pread(fd, &byte, 1, at), 1);
    byte ^= 0x10;
    assert_int_equal(pwrite(fd, &byte, 1, at), 1);
    close(fd);
}

static void one_flipped_bit_is_found_and_its_item_named(void **state)
{
    struct rig *r = *state;
    char buffer[65536];
    r->opts.dir_count = 2;
    must_finish(r, must_open_writer(r));
    struct aq_store *s = must_open(r);
    flip_byte(aq_store_path(s, 1), 1234567); /* unit 1: in the big matrix */
    for (uint32_t i = 0; i < ITEMS; i++) {
        int rc = aq_store_verify_item(s, i, buffer, sizeof(buffer), &r->err);
        assert_int_equal(rc, i == BIG ? -ENOEXEC : 0);
    }
    assert_non_null(strstr(r->err.text, "'layers.0.fc1.weight' is damaged"));
    flip_byte(in_dir(r, 0, "/config.json"), 3);
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
    flip_byte(aq_store_path(s, p.file), (off_t)p.offset);
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

/* Takes the tiles' checksums out of the manifest: what the first version of the format wrote. */
static void make_old(const char *path)
{
    json_t *root = json_load_file(path, 0, NULL), *step, *item;
    size_t i, j;
    json_object_set_new(root, "format_version", json_integer(1));
    json_object_del(root, "tiles");
    json_array_foreach(json_object_get(root, "steps"), i, step)
    {
        json_array_foreach(json_object_get(step, "items"), j, item) json_object_del(item, "tiles");
    }
    assert_int_equal(json_dump_file(root, path, 0), 0);
    json_decref(root);
}

static void a_store_of_the_first_version_is_read_and_compared_where_it_can_be(void **state)
{
    struct rig *r = *state;
    unsigned char bytes[4 * 4096];
    must_finish(r, must_open_writer(r));
    struct aq_store *s = must_open(r);
    assert_true(aq_store_has_tile_sums(s));
    aq_store_close(s);
    make_old(in_dir(r, 0, "/manifest.json"));
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

#define RIG(test) cmocka_unit_test_setup_teardown(test, rig_open, rig_close)

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
    RIG(a_closed_writer_leaves_its_finished_items_to_the_next),
    RIG(a_killed_writer_leaves_a_state_that_can_be_finished),
    RIG(a_torn_journal_line_is_cut_off),
    RIG(a_changed_plan_starts_anew),
    RIG(a_missing_stripe_starts_anew),
    RIG(an_interrupted_publish_is_repeated),
    RIG(a_failed_write_leaves_a_state_that_can_be_finished),
    RIG(an_existing_store_is_never_overwritten),
    RIG(a_directory_of_someone_else_is_left_alone),
    RIG(a_second_writer_is_refused),
    RIG(too_little_space_is_said_before_anything_is_written),
    RIG(a_missing_parent_directory_is_named),
    RIG(one_directory_given_twice_is_refused),
    RIG(descriptions_that_make_no_sense_are_refused),
    RIG(files_that_would_shadow_the_store_are_refused),
    RIG(one_flipped_bit_is_found_and_its_item_named),
    RIG(a_flipped_bit_is_found_in_the_tile_that_is_read),
    RIG(a_store_of_the_first_version_is_read_and_compared_where_it_can_be),
    RIG(a_truncated_data_file_is_named_with_both_sizes),
    RIG(a_data_file_cut_while_it_is_open_is_an_io_error),
    RIG(missing_parts_are_named),
    RIG(directories_of_two_stores_are_not_mixed),
};

AQ_TEST_MAIN(tests)
