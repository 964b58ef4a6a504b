/* SPDX-License-Identifier: Apache-2.0
 * A packed store that rots: under a run that streams it, before a run that loads from it, and in
 * the files beside the weights. */
#include "engine/checkpoint/store.h"
#include "engine/core/engine_state.h"
#include "tests/choices.h"
#include "tests/rot.h"
#include "tests/sim/drawn.h"
#include "tests/temp.h"
#include "tests/test.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CROWD = 3, PROMPT = 20, TOKENS = 12, VOCAB = 4096 };
#define STREAMED "weights=0/0/100"
#define LOADED   "weights=0/100/0"

static struct {
    char cache[TEMP_PATH_MAX], store[TEMP_DEEP_MAX], data[TEMP_DEEP_MAX + 16];
    off_t weight; /* of a layer, in data */
    struct crowd *crowd, *want;
    char note[1024]; /* last line of the log about checksums */
} rig;

static struct aq_engine_opts options(const char *dir, const char *placement, enum aq_verify verify)
{
    return (struct aq_engine_opts){
        .model_dir = dir,
        .compute = -1,
        .weight_format = -1,
        .kv_format = -1,
        .threads = 1,
        .host_memory = 2 * AQ_GIB,
        .placement = placed(placement),
        .cache_dir = rig.cache,
        .io_direct = AQ_DIRECT_OFF, /* what is written to the file is what is read next */
        .verify_store = verify,
        .refill = true,
    };
}

static void keep_note(void *user, enum aq_log_level level, const char *text)
{
    (void)user;
    (void)level;
    if (strstr(text, "checksums"))
        snprintf(rig.note, sizeof(rig.note), "%s", text);
}

/* Opens, plans and loads; 0 or what failed. */
static int start(struct aq_engine **ret, const char *dir, const char *placement,
                 enum aq_verify verify, struct aq_err *err)
{
    struct aq_engine_opts o = options(dir, placement, verify);
    struct aq_log log = {.line = keep_note};
    o.log = &log;
    crowd_draw(rig.crowd, 1, CROWD, PROMPT, TOKENS, VOCAB);
    int rc = aq_engine_open(ret, &o, err);
    if (rc < 0)
        return rc;
    rc = aq_engine_plan(*ret, &rig.crowd->work, err);
    rc = rc < 0 ? rc : aq_engine_load(*ret, err);
    if (rc < 0)
        aq_engine_close(*ret);
    return rc;
}

/* A whole run; 0 or what failed. */
static int run(const char *dir, const char *placement, enum aq_verify verify, struct aq_err *err)
{
    struct aq_engine *e;
    int rc = start(&e, dir, placement, verify, err);
    if (rc < 0)
        return rc;
    rc = crowd_run(rig.crowd, e, err);
    aq_engine_close(e);
    return rc;
}

static void must_be_right(void)
{
    char difference[256];
    if (!crowd_same(rig.want, rig.crowd, difference, sizeof(difference)))
        fail_msg("%s", difference);
}

/* The first run packs; its store is the one that rots. */
static int set_up(void **state)
{
    (void)state;
    struct aq_err err;
    temp_dir(rig.cache, "verify");
    rig.crowd = calloc(1, sizeof(*rig.crowd));
    rig.want = calloc(1, sizeof(*rig.want));
    if (run(test_data_path("tiny-opt"), STREAMED, AQ_VERIFY_ALWAYS, &err) < 0) {
        fprintf(stderr, "%s\n", err.text);
        return -1;
    }
    *rig.want = *rig.crowd;
    DIR *d = opendir(rig.cache);
    for (struct dirent *entry; d && (entry = readdir(d));) {
        if (strncmp(entry->d_name, "tiny-opt-", 9) == 0)
            snprintf(rig.store, sizeof(rig.store), "%s/%.60s", rig.cache, entry->d_name);
    }
    closedir(d);
    snprintf(rig.data, sizeof(rig.data), "%s/data.0", rig.store);
    struct aq_store *s;
    if (aq_store_open(&s, rig.store, NULL) < 0)
        return -1;
    rig.weight = (off_t)aq_store_find(s, "layers.3.fc1.weight")->offset + 50000;
    aq_store_close(s);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    free(rig.crowd);
    free(rig.want);
    return temp_remove(rig.cache);
}

static void rot_under_a_streaming_run_ends_it_with_the_place(void **state)
{
    struct aq_err err;
    rot_flip(rig.data, rig.weight);
    for (enum aq_verify v = AQ_VERIFY_ONCE; v <= AQ_VERIFY_ALWAYS; v++) {
        assert_int_equal(run(test_data_path("tiny-opt"), STREAMED, v, &err), -ENOEXEC);
        assert_non_null(strstr(err.text, rig.data));
        assert_non_null(strstr(err.text, "rows 64 to 127 of 'layers.3.fc1.weight'"));
        assert_non_null(strstr(err.text, "pack the model again"));
    }
    assert_int_equal(run(test_data_path("tiny-opt"), STREAMED, AQ_VERIFY_OFF, &err), 0);
    rot_flip(rig.data, rig.weight);
    assert_int_equal(run(test_data_path("tiny-opt"), STREAMED, AQ_VERIFY_ONCE, &err), 0);
    must_be_right();
}

/* Rot that sets in after the first pass: once has looked by then. */
static void what_comes_again_is_compared_where_always_is_asked_for(void **state)
{
    for (enum aq_verify v = AQ_VERIFY_ONCE; v <= AQ_VERIFY_ALWAYS; v++) {
        struct aq_engine *e;
        struct aq_err err;
        assert_int_equal(start(&e, rig.store, STREAMED, v, &err), 0);
        for (uint32_t i = 0; i < CROWD; i++)
            aq_engine_submit(e, &rig.crowd->one[i].s);
        bool worked = true;
        for (int i = 0; i < 2; i++)
            assert_int_equal(aq_engine_pass(e, &worked, &err), 0);
        rot_flip(rig.data, rig.weight);
        int rc = 0;
        while (rc == 0 && worked)
            rc = aq_engine_pass(e, &worked, &err);
        assert_int_equal(rc, v == AQ_VERIFY_ALWAYS ? -ENOEXEC : 0);
        aq_engine_close(e);
        rot_flip(rig.data, rig.weight);
    }
}

static void rot_in_what_is_loaded_at_start_is_found_then(void **state)
{
    struct aq_engine *e;
    struct aq_err err;
    rot_flip(rig.data, rig.weight);
    assert_int_equal(start(&e, rig.store, LOADED, AQ_VERIFY_ONCE, &err), -ENOEXEC);
    assert_non_null(strstr(err.text, "rows 64 to 127 of 'layers.3.fc1.weight'"));
    assert_int_equal(run(rig.store, LOADED, AQ_VERIFY_OFF, &err), 0);
    rot_flip(rig.data, rig.weight);
    assert_int_equal(run(rig.store, LOADED, AQ_VERIFY_ONCE, &err), 0);
    must_be_right();
}

static void rot_in_a_copied_file_is_found_before_it_is_believed(void **state)
{
    struct aq_engine *e;
    struct aq_err err;
    char path[TEMP_DEEP_MAX + 16];
    snprintf(path, sizeof(path), "%s/config.json", rig.store);
    rot_flip(path, 1);
    assert_int_equal(start(&e, rig.store, STREAMED, AQ_VERIFY_ONCE, &err), -ENOEXEC);
    assert_non_null(strstr(err.text, "'config.json' is damaged"));
    rot_flip(path, 1);
}

static void scratch_is_compared_with_what_was_written(void **state)
{
    struct aq_err err;
    const char *all = "weights=0/50/50 kv=0/0/100 hidden=0/0/100";
    assert_int_equal(run(rig.store, all, AQ_VERIFY_ALWAYS, &err), 0);
    must_be_right();
}

/* "scratch sums" on the ledger, and as allocated by the end of a run. */
static void sums_of_scratch_are_on_the_ledger(void **state)
{
    const char *all = "weights=0/100/0 kv=0/0/100 hidden=0/100/0";
    uint64_t planned[2] = {0};
    struct aq_err err;
    for (int always = 0; always < 2; always++) {
        struct aq_engine *e;
        assert_int_equal(
            start(&e, rig.store, all, always ? AQ_VERIFY_ALWAYS : AQ_VERIFY_ONCE, &err), 0);
        const struct aq_block *b = &e->block;
        planned[always] = aq_ledger_line(&b->ledger, AQ_HOST, "scratch sums");
        uint64_t runs = aq_ledger_line(&b->ledger, AQ_DISK, "kv") / b->plan.shape.run_bytes;
        uint64_t bytes = (runs + b->plan.shape.micro_batches) * 8;
        if (always)
            assert_in_range(planned[1], bytes, bytes + 4096);
        struct aq_mem_usage usage[AQ_MEM_PURPOSE_MAX];
        assert_int_equal(crowd_run(rig.crowd, e, &err), 0);
        uint64_t used = 0;
        for (uint32_t i = aq_mem_usage(e->mem, usage, AQ_MEM_PURPOSE_MAX); i-- > 0;)
            used += strcmp(usage[i].purpose, "scratch sums") == 0 ? usage[i].peak_bytes : 0;
        assert_int_equal(used, planned[always]);
        aq_engine_close(e);
    }
    assert_int_equal(planned[0], 0);
}

/* Without the tiles' checksums: what streams in pieces cannot be compared, and the log says so. */
static void a_store_of_the_first_version_runs_with_a_note(void **state)
{
    struct aq_err err;
    char path[TEMP_DEEP_MAX + 16];
    snprintf(path, sizeof(path), "%s/manifest.json", rig.store);
    json_t *sound = json_load_file(path, 0, NULL);
    rig.note[0] = '\0';
    assert_int_equal(run(rig.store, STREAMED, AQ_VERIFY_ONCE, &err), 0);
    assert_string_equal(rig.note, "");
    rot_make_old(path);
    assert_int_equal(run(rig.store, STREAMED, AQ_VERIFY_ONCE, &err), 0);
    must_be_right();
    assert_non_null(strstr(rig.note, "--verify"));
    assert_int_equal(json_dump_file(sound, path, 0), 0);
    json_decref(sound);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(rot_under_a_streaming_run_ends_it_with_the_place),
    cmocka_unit_test(what_comes_again_is_compared_where_always_is_asked_for),
    cmocka_unit_test(rot_in_what_is_loaded_at_start_is_found_then),
    cmocka_unit_test(rot_in_a_copied_file_is_found_before_it_is_believed),
    cmocka_unit_test(scratch_is_compared_with_what_was_written),
    cmocka_unit_test(sums_of_scratch_are_on_the_ledger),
    cmocka_unit_test(a_store_of_the_first_version_runs_with_a_note),
};

int main(void)
{
    return cmocka_run_group_tests(tests, set_up, tear_down) ? 1 : 0;
}
