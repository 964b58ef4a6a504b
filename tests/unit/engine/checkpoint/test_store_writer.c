/* SPDX-License-Identifier: Apache-2.0
 * Stores being packed: begun again after every kind of end, and refused before anything is
 * written. */
#include "tests/unit/engine/checkpoint/store_rig.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

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
    must_refuse(r, -EAGAIN, "another process");
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
    const char *const names[] = {"manifest.json", "data.0", "journal", "../x", ".",      "",
                                 "a\nb",          "/a",     "a/",      "a/.b", "a/../b", "a/b/c"};
    for (size_t i = 0; i < AQ_ARRAY_LEN(names); i++) {
        r->files[0].name = names[i];
        must_refuse(r, -EINVAL, "file '");
    }
    r->files[0].name = "config.json";
    r->files[1] = r->files[0];
    r->opts.file_count = 2;
    must_refuse(r, -EINVAL, "twice");
}

static const struct CMUnitTest tests[] = {
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
};

AQ_TEST_MAIN(tests)
