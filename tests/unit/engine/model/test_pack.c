/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/temp.h"
#include "tests/test.h"

#include "base/json.h"
#include "engine/aquifer.h"
#include "engine/model/pack.h"
#include "engine/model/weight_store.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- rig: a checkpoint, a place for stores, two workers ---- */

struct rig {
    char root[TEMP_PATH_MAX], golden[512], store[TEMP_INSIDE_MAX], second[TEMP_INSIDE_MAX];
    const char *dirs[2];
    struct aq_kernels kernels;
    struct aq_pool *pool;
    struct aq_pack_opts opts;
    struct aq_pack_result result;
    struct aq_err err;
    uint64_t stop_after; /* bytes; the progress hook stops there */
    bool row_major;      /* models lay matrices out for a GPU */
};

static int rig_open(void **state)
{
    struct rig *r = calloc(1, sizeof(*r));
    snprintf(r->golden, sizeof(r->golden), "%s", test_data_path("../golden/data"));
    temp_dir(r->root, "pack");
    snprintf(r->store, sizeof(r->store), "%s/store", r->root);
    snprintf(r->second, sizeof(r->second), "%s/second", r->root);
    r->dirs[0] = r->store;
    r->dirs[1] = r->second;
    aq_kernels_cpu(&r->kernels, aq_isa_detect());
    assert_int_equal(aq_pool_open(&r->pool, 2, NULL), 0);
    *state = r;
    return 0;
}

static int rig_close(void **state)
{
    struct rig *r = *state;
    aq_pool_close(r->pool);
    int rc = temp_remove(r->root);
    free(r);
    return rc;
}

static struct aq_model *open_model(const struct rig *r, const char *dir)
{
    struct aq_model_opts opts = {.dir = dir};
    struct aq_model *m;
    struct aq_err err;
    if (aq_model_open(&m, &opts, &err) < 0)
        fail_msg("%s", err.text);
    m->row_major = r->row_major;
    return m;
}

static int pack(struct rig *r, const char *checkpoint, enum aq_dtype format)
{
    struct aq_model *m = open_model(r, checkpoint);
    r->opts.model = m;
    r->opts.model_dir = checkpoint;
    r->opts.dirs = r->dirs;
    r->opts.dir_count = r->opts.dir_count ? r->opts.dir_count : 1;
    r->opts.format = format;
    r->opts.layout = aq_model_layout(m, format);
    int rc = aq_pack_run(&r->result, &r->opts, &r->kernels, r->pool, &r->err);
    aq_model_close(m);
    return rc;
}

static void must_pack(struct rig *r, const char *checkpoint, enum aq_dtype format)
{
    if (pack(r, checkpoint, format) < 0)
        fail_msg("%s", r->err.text);
}

static const char *tiny_opt(void)
{
    return test_data_path("tiny-opt");
}

static const char *variant(struct rig *r, const char *name)
{
    static char path[512];
    snprintf(path, sizeof(path), "%.400s/%.64s", r->golden, name);
    return path;
}

static void remove_stores(struct rig *r)
{
    assert_int_equal(temp_remove(r->root), 0);
    assert_int_equal(mkdir(r->root, 0700), 0);
}

/* ---- what is in a store ---- */

/* A model loaded as the engine does it, everything in memory. */
struct loaded {
    struct aq_mem *mem;
    struct aq_device *device;
    struct aq_model *m;
};

static int try_load(struct rig *r, struct loaded *ret, const char *dir, enum aq_dtype format)
{
    const uint64_t limits[AQ_TIER_COUNT] = {UINT64_MAX, UINT64_MAX, UINT64_MAX};
    size_t staging_bytes = 8 * AQ_MIB;
    void *staging = malloc(2 * staging_bytes);
    ret->m = open_model(r, dir);
    struct aq_plan plan = {
        .shape.weight_format = format, .placement.weights = {{0, 100, 0}}, .chunk_bytes = AQ_GIB};
    struct aq_stream stream = {0};
    assert_int_equal(aq_stream_build(&stream, &ret->m->steps, &plan, NULL), 0);
    assert_int_equal(aq_mem_open(&ret->mem, limits, NULL), 0);
    struct aq_device_opts device = {.kind = AQ_DEVICE_UNIFIED, .mem = ret->mem};
    assert_int_equal(aq_device_open(&ret->device, &device, NULL), 0);
    int rc = aq_model_load(ret->m, ret->device, &stream, AQ_HOST, format, &r->kernels, r->pool,
                           staging, staging_bytes, &r->err);
    aq_stream_close(&stream);
    free(staging);
    return rc;
}

static void unload(struct loaded *l)
{
    aq_model_close(l->m);
    aq_device_close(l->device);
    aq_mem_close(l->mem);
}

static void must_load_alike(struct rig *r, const char *checkpoint, const char *store,
                            enum aq_dtype format)
{
    struct loaded a, b;
    if (try_load(r, &a, checkpoint, format) < 0 || try_load(r, &b, store, format) < 0)
        fail_msg("%s", r->err.text);
    assert_int_equal(a.m->weights_bytes[AQ_DEVICE], b.m->weights_bytes[AQ_DEVICE]);
    assert_int_equal(a.m->vectors_bytes, b.m->vectors_bytes);
    assert_memory_equal(a.m->weights_buffer[AQ_DEVICE], b.m->weights_buffer[AQ_DEVICE],
                        a.m->weights_bytes[AQ_DEVICE]);
    assert_memory_equal(a.m->vectors_buffer, b.m->vectors_buffer, a.m->vectors_bytes);
    unload(&a);
    unload(&b);
}

static void a_store_loads_as_its_checkpoint_does(void **state)
{
    static const struct {
        const char *name;
        enum aq_dtype format;
    } cases[] = {
        {"prenorm", AQ_F16},     {"prenorm", AQ_BF16},
        {"prenorm", AQ_F32},     {"postnorm_projected", AQ_F16},
        {"untied_gelu", AQ_F16}, {"tied_with_lm_head", AQ_F16},
        {"plain_norms", AQ_F16}, {"bf16", AQ_BF16},
        {"bf16_bin", AQ_F32},    {"f32", AQ_F32},
        {"f32", AQ_F16},         {"mixed_dtypes", AQ_F16},
        {"odd_sizes", AQ_F16},   {"odd_sizes", AQ_BF16},
        {"bare_names", AQ_F16},  {"prenorm", AQ_Q8},
        {"prenorm", AQ_Q4},      {"postnorm_projected", AQ_Q4},
        {"untied_gelu", AQ_Q4},  {"mixed_dtypes", AQ_Q8},
        {"odd_sizes", AQ_Q8},    {"odd_sizes", AQ_Q4},
    };
    struct rig *r = *state;
    for (size_t i = 0; i < AQ_ARRAY_LEN(cases); i++) {
        must_pack(r, variant(r, cases[i].name), cases[i].format);
        must_load_alike(r, variant(r, cases[i].name), r->store, cases[i].format);
        remove_stores(r);
    }
}

/* A store of the CPU's layout on a GPU, and the other way round: in memory, and packed again for
 * streaming. */
static void a_store_of_another_layout_loads_as_its_checkpoint_does(void **state)
{
    static const struct {
        const char *name;
        enum aq_dtype format;
    } cases[] = {{"prenorm", AQ_F16}, {"odd_sizes", AQ_F16},          {"odd_sizes", AQ_BF16},
                 {"f32", AQ_F32},     {"postnorm_projected", AQ_F16}, {"odd_sizes", AQ_Q4}};
    struct rig *r = *state;
    for (size_t i = 0; i < 2 * AQ_ARRAY_LEN(cases); i++) {
        const char *checkpoint = variant(r, cases[i / 2].name);
        enum aq_dtype format = cases[i / 2].format;
        r->row_major = i % 2;
        must_pack(r, checkpoint, format);
        r->row_major = !r->row_major;
        must_load_alike(r, checkpoint, r->store, format);
        r->dirs[0] = r->second;
        must_pack(r, r->store, format);
        must_load_alike(r, checkpoint, r->second, format);
        r->dirs[0] = r->store;
        remove_stores(r);
    }
    r->row_major = false;
}

static void a_store_is_not_packed_in_another_format(void **state)
{
    struct rig *r = *state;
    must_pack(r, variant(r, "prenorm"), AQ_F16);
    r->dirs[0] = r->second;
    assert_int_equal(pack(r, r->store, AQ_Q4), -EINVAL);
    assert_non_null(strstr(r->err.text, "for another format pack the checkpoint"));
    r->dirs[0] = r->store;
}

static void a_striped_store_of_several_batches_loads_as_its_checkpoint_does(void **state)
{
    struct rig *r = *state;
    r->opts.dir_count = 2;
    must_pack(r, tiny_opt(), AQ_F32);
    must_load_alike(r, tiny_opt(), r->store, AQ_F32);
}

static void tied_matrices_are_stored_once(void **state)
{
    struct rig *r = *state;
    struct aq_store *s;
    must_pack(r, variant(r, "tied_with_lm_head"), AQ_F16);
    assert_int_equal(aq_store_open(&s, r->store, NULL), 0);
    assert_non_null(aq_store_find(s, "embed_tokens.weight"));
    assert_null(aq_store_find(s, "lm_head.weight"));
    aq_store_close(s);
    remove_stores(r);
    must_pack(r, variant(r, "untied_gelu"), AQ_F16);
    assert_int_equal(aq_store_open(&s, r->store, NULL), 0);
    assert_non_null(aq_store_find(s, "lm_head.weight"));
    aq_store_close(s);
}

static void steps_lie_in_the_order_in_which_they_run(void **state)
{
    static const char *const names[] = {"embed",        "layers.0.attention",
                                        "layers.0.mlp", "layers.1.attention",
                                        "layers.1.mlp", "head"};
    struct rig *r = *state;
    struct aq_store *s;
    must_pack(r, variant(r, "prenorm"), AQ_F16);
    assert_int_equal(aq_store_open(&s, r->store, NULL), 0);
    assert_int_equal(aq_store_step_count(s), AQ_ARRAY_LEN(names));
    for (uint32_t i = 0; i < AQ_ARRAY_LEN(names); i++)
        assert_string_equal(aq_store_step(s, i)->name, names[i]);
    aq_store_close(s);
}

static void assert_same_file(const char *from, const char *to, const char *name)
{
    char path[TEMP_DEEP_MAX], *a, *b;
    size_t a_bytes, b_bytes;
    snprintf(path, sizeof(path), "%s/%s", from, name);
    assert_int_equal(aq_read_file(&a, &a_bytes, path, AQ_MIB, NULL), 0);
    snprintf(path, sizeof(path), "%s/%s", to, name);
    assert_int_equal(aq_read_file(&b, &b_bytes, path, AQ_MIB, NULL), 0);
    assert_int_equal(a_bytes, b_bytes);
    assert_memory_equal(a, b, a_bytes);
    free(a);
    free(b);
}

static void the_tokenizer_and_config_come_along(void **state)
{
    static const char *const names[] = {"config.json", "vocab.json", "merges.txt",
                                        "tokenizer_config.json"};
    struct rig *r = *state;
    must_pack(r, tiny_opt(), AQ_F16);
    for (size_t i = 0; i < AQ_ARRAY_LEN(names); i++)
        assert_same_file(tiny_opt(), r->store, names[i]);
}

static void write_text(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");
    assert_true(f && fputs(text, f) >= 0 && fclose(f) == 0);
}

/* A model directory, of links, with templates of conversations in their folder. */
static void make_talker(const char *dir)
{
    static const char *const names[] = {"config.json", "vocab.json", "merges.txt",
                                        "model.safetensors"};
    char path[TEMP_DEEP_MAX], from[TEMP_DEEP_MAX];
    assert_int_equal(mkdir(dir, 0700), 0);
    for (size_t i = 0; i < AQ_ARRAY_LEN(names); i++) {
        snprintf(path, sizeof(path), "%s/%s", dir, names[i]);
        char *whole = realpath(tiny_opt(), NULL);
        snprintf(from, sizeof(from), "%s/%s", whole, names[i]);
        free(whole);
        assert_int_equal(symlink(from, path), 0);
    }
    snprintf(path, sizeof(path), "%s/additional_chat_templates", dir);
    assert_int_equal(mkdir(path, 0700), 0);
    snprintf(path, sizeof(path), "%s/additional_chat_templates/tool_use.jinja", dir);
    write_text(path, "tools");
    snprintf(path, sizeof(path), "%s/additional_chat_templates/default.jinja", dir);
    write_text(path, "{{ messages }}");
    snprintf(path, sizeof(path), "%s/additional_chat_templates/notes.txt", dir);
    write_text(path, "no template");
}

static void templates_of_conversations_come_along(void **state)
{
    struct rig *r = *state;
    char talker[TEMP_INSIDE_MAX], path[TEMP_DEEP_MAX];
    struct stat st;
    snprintf(talker, sizeof(talker), "%s/talker", r->root);
    make_talker(talker);
    /* Half a store of another model has a folder of that name too: nothing of it stays. */
    snprintf(path, sizeof(path), "%s.partial", r->store);
    assert_int_equal(mkdir(path, 0700), 0);
    snprintf(path, sizeof(path), "%s.partial/journal", r->store);
    write_text(path, "");
    snprintf(path, sizeof(path), "%s.partial/additional_chat_templates", r->store);
    assert_int_equal(mkdir(path, 0700), 0);
    snprintf(path, sizeof(path), "%s.partial/additional_chat_templates/stale.jinja", r->store);
    write_text(path, "stale");
    must_pack(r, talker, AQ_F16);
    assert_same_file(talker, r->store, "additional_chat_templates/tool_use.jinja");
    assert_same_file(talker, r->store, "additional_chat_templates/default.jinja");
    snprintf(path, sizeof(path), "%s/additional_chat_templates/notes.txt", r->store);
    assert_int_equal(stat(path, &st), -1);
    snprintf(path, sizeof(path), "%s/additional_chat_templates/stale.jinja", r->store);
    assert_int_equal(stat(path, &st), -1);
    struct aq_store *store;
    assert_int_equal(aq_store_open(&store, r->store, &r->err), 0);
    uint32_t kept = 0;
    for (uint32_t i = 0; i < aq_store_file_count(store); i++)
        kept += strncmp(aq_store_file(store, i)->name, "additional_", 11) == 0;
    assert_int_equal(kept, 2);
    aq_store_close(store);
}

static void threads_do_not_change_a_store(void **state)
{
    struct rig *r = *state;
    must_pack(r, tiny_opt(), AQ_BF16);
    uint64_t identity = r->result.identity;
    remove_stores(r);
    aq_pool_close(r->pool);
    assert_int_equal(aq_pool_open(&r->pool, 5, NULL), 0);
    must_pack(r, tiny_opt(), AQ_BF16);
    assert_int_equal(r->result.identity, identity);
}

/* ---- going on, refusing ---- */

static bool stop_hook(void *user, uint64_t done, uint64_t total)
{
    struct rig *r = user;
    return done >= r->stop_after;
}

static void an_interrupted_conversion_goes_on_and_gives_the_same_store(void **state)
{
    struct rig *r = *state;
    r->opts.dir_count = 2;
    must_pack(r, tiny_opt(), AQ_F16);
    uint64_t identity = r->result.identity, bytes = r->result.bytes;
    remove_stores(r);
    r->opts.progress = stop_hook;
    r->opts.user = r;
    for (r->stop_after = bytes / 5; r->stop_after < bytes; r->stop_after += bytes / 5) {
        assert_int_equal(pack(r, tiny_opt(), AQ_F16), -EINTR);
        assert_false(aq_store_present(r->store));
    }
    r->stop_after = UINT64_MAX;
    must_pack(r, tiny_opt(), AQ_F16);
    assert_int_equal(r->result.identity, identity);
    assert_true(r->result.bytes_written > 0 && r->result.bytes_written < bytes / 2);
}

/* A store of zeros in int4, or half of one, by a version that rounded scales up: it does not say
 * how. */
static void leave_what_an_earlier_version_made(struct rig *r, const char *dir, bool whole)
{
    struct aq_model *m = open_model(r, tiny_opt());
    struct aq_pack_opts opts = {.model = m,
                                .model_dir = tiny_opt(),
                                .dirs = &dir,
                                .dir_count = 1,
                                .format = AQ_Q4,
                                .layout = aq_model_layout(m, AQ_Q4)};
    struct aq_pack_plan plan;
    struct aq_store_writer *w;
    assert_int_equal(aq_pack_plan_open(&plan, &opts, &r->err), 0);
    json_t *model = json_deep_copy(plan.writer.model);
    assert_string_equal(json_string_value(json_object_get(model, "scales")), "nearest");
    json_object_del(model, "scales");
    plan.writer.model = model;
    assert_int_equal(aq_store_writer_open(&w, &plan.writer, &r->err), 0);
    uint32_t count = aq_store_writer_item_count(w);
    for (uint32_t i = 0; i < (whole ? count : count / 2); i++) {
        uint64_t bytes = aq_store_writer_item(w, i)->bytes;
        void *zeros = calloc(1, bytes);
        aq_store_writer_begin(w, i);
        assert_int_equal(aq_store_writer_append(w, zeros, bytes, &r->err), 0);
        assert_int_equal(aq_store_writer_end(w, &r->err), 0);
        free(zeros);
    }
    if (whole)
        assert_int_equal(aq_store_writer_publish(w, &r->err), 0);
    aq_store_writer_close(w);
    json_decref(model);
    aq_pack_plan_close(&plan);
    aq_model_close(m);
}

static void half_a_store_with_other_scales_is_not_gone_on_with(void **state)
{
    struct rig *r = *state;
    must_pack(r, tiny_opt(), AQ_Q4);
    uint64_t identity = r->result.identity;
    remove_stores(r);
    leave_what_an_earlier_version_made(r, r->store, false);
    must_pack(r, tiny_opt(), AQ_Q4);
    assert_int_equal(r->result.bytes_written, r->result.bytes);
    assert_int_equal(r->result.identity, identity);
}

/* Weights that stream are those that would be loaded. */
static void a_store_with_other_scales_in_the_cache_is_not_taken(void **state)
{
    struct rig *r = *state;
    char old[TEMP_DEEP_MAX];
    must_pack(r, tiny_opt(), AQ_Q4);
    uint64_t identity = r->result.identity;
    remove_stores(r);
    struct aq_model *m = open_model(r, tiny_opt());
    snprintf(old, sizeof(old), "%s/tiny-opt-%016llx-int4-group64", r->root,
             (unsigned long long)m->hash);
    leave_what_an_earlier_version_made(r, old, true);
    struct aq_weight_store_opts opts = {.model = m,
                                        .model_dir = tiny_opt(),
                                        .cache_dir = r->root,
                                        .format = AQ_Q4,
                                        .kernels = &r->kernels,
                                        .pool = r->pool};
    for (int again = 0; again < 2; again++) {
        struct aq_store *s;
        bool borrowed;
        double pack_s = 0;
        assert_int_equal(aq_weight_store_present(m, r->root, AQ_Q4), again);
        assert_int_equal(aq_weight_store_open(&s, &borrowed, &pack_s, &opts, &r->err), 0);
        assert_int_equal(aq_store_identity(s), identity);
        assert_int_equal(pack_s == 0, again);
        aq_store_close(s);
    }
    aq_model_close(m);
}

/* What is read is what a store holds, however it was rounded. */
static void a_store_with_other_scales_is_a_model_as_before(void **state)
{
    struct rig *r = *state;
    struct loaded l;
    leave_what_an_earlier_version_made(r, r->store, true);
    assert_int_equal(try_load(r, &l, r->store, AQ_Q4), 0);
    unload(&l);
    assert_int_equal(pack(r, tiny_opt(), AQ_Q4), -EINVAL); /* it is not what would be made */
    assert_non_null(strstr(r->err.text, "exists already"));
}

static void the_same_model_is_not_packed_twice(void **state)
{
    struct rig *r = *state;
    must_pack(r, variant(r, "prenorm"), AQ_F16);
    assert_false(r->result.was_there);
    uint64_t identity = r->result.identity;
    must_pack(r, variant(r, "prenorm"), AQ_F16);
    assert_true(r->result.was_there);
    assert_int_equal(r->result.identity, identity);
    assert_int_equal(pack(r, variant(r, "prenorm"), AQ_F32), -EINVAL); /* another store: refused */
    assert_non_null(strstr(r->err.text, "exists already"));
    assert_int_equal(pack(r, variant(r, "plain_norms"), AQ_F16), -EINVAL);
}

/* One value of a bf16 checkpoint becomes 1.7e38. */
static void write_a_large_value(struct rig *r, char checkpoint[TEMP_INSIDE_MAX])
{
    char command[1200], path[TEMP_DEEP_MAX], *text;
    uint64_t header_bytes;
    size_t bytes;
    json_t *header;
    snprintf(checkpoint, TEMP_INSIDE_MAX, "%s/large", r->root);
    snprintf(command, sizeof(command), "cp -r '%s' '%s'", variant(r, "bf16"), checkpoint);
    assert_int_equal(system(command), 0);
    snprintf(path, sizeof(path), "%s/model.safetensors", checkpoint);
    assert_int_equal(aq_read_file(&text, &bytes, path, AQ_MIB, NULL), 0);
    memcpy(&header_bytes, text, 8);
    assert_int_equal(aq_json_parse(&header, text + 8, header_bytes, true, NULL), 0);
    const json_t *tensor = json_object_get(header, "decoder.layers.1.fc1.weight");
    json_int_t at = json_integer_value(json_array_get(json_object_get(tensor, "data_offsets"), 0));
    assert_true(at > 0);
    int fd = open(path, O_RDWR);
    const unsigned char large[2] = {0x00, 0x7f};
    assert_int_equal(pwrite(fd, large, 2, (off_t)(8 + header_bytes) + at), 2);
    close(fd);
    json_decref(header);
    free(text);
}

static void values_beyond_f16_are_refused_by_name(void **state)
{
    struct rig *r = *state;
    char checkpoint[TEMP_INSIDE_MAX];
    write_a_large_value(r, checkpoint);
    assert_int_equal(pack(r, checkpoint, AQ_F16), -EINVAL);
    assert_non_null(strstr(r->err.text, "'layers.1.fc1.weight'"));
    assert_non_null(strstr(r->err.text, "65504"));
    assert_false(aq_store_present(r->store));
    must_pack(r, checkpoint, AQ_BF16);
}

/* Their scales and minima are f16. */
static void values_beyond_the_range_of_groups_are_refused_by_name(void **state)
{
    static const enum aq_dtype formats[] = {AQ_Q8, AQ_Q4};
    struct rig *r = *state;
    char checkpoint[TEMP_INSIDE_MAX];
    write_a_large_value(r, checkpoint);
    for (size_t i = 0; i < AQ_ARRAY_LEN(formats); i++) {
        assert_int_equal(pack(r, checkpoint, formats[i]), -EINVAL);
        assert_non_null(strstr(r->err.text, "'layers.1.fc1.weight'"));
        assert_non_null(strstr(r->err.text, aq_dtype_name(formats[i])));
        assert_false(aq_store_present(r->store));
        struct loaded l;
        assert_int_equal(try_load(r, &l, checkpoint, formats[i]), -EINVAL);
        assert_non_null(strstr(r->err.text, "'layers.1.fc1.weight'"));
        unload(&l);
    }
}

/* 64 codes and two f16 per group, and a panel's padding; the vocabulary's matrix is int8 where the
 * others are int4. */
static void quantised_stores_are_as_small_as_their_formats(void **state)
{
    struct rig *r = *state;
    must_pack(r, tiny_opt(), AQ_Q4);
    struct aq_store *s;
    assert_int_equal(aq_store_open(&s, r->store, NULL), 0);
    uint32_t matrices = 0;
    for (uint32_t i = 0; i < aq_store_item_count(s); i++) {
        const struct aq_store_item *item = aq_store_item(s, i);
        if (item->kind != AQ_STORE_MATRIX)
            continue;
        matrices++;
        bool vocabulary = strcmp(item->name, "embed_tokens.weight") == 0;
        assert_int_equal(item->dtype, vocabulary ? AQ_Q8 : AQ_Q4);
        assert_int_equal(item->layout, AQ_LAYOUT_GROUP64);
        uint64_t groups = (uint64_t)item->rows * item->cols / AQ_GROUP_K;
        uint64_t exact = groups * ((vocabulary ? 64 : 32) + 4);
        assert_in_range(item->bytes, exact,
                        exact + (uint64_t)item->rows / AQ_PANEL_ROWS * AQ_PANEL_ALIGN - 1);
    }
    assert_int_equal(matrices, 1 + 6 * 6);
    aq_store_close(s);
}

static void a_budget_too_small_for_the_buffers_is_refused(void **state)
{
    struct rig *r = *state;
    r->opts.memory = 64 * AQ_KIB;
    assert_int_equal(pack(r, tiny_opt(), AQ_F16), -ENOMEM);
    assert_non_null(strstr(r->err.text, "--threads"));
    r->opts.memory = AQ_MIB; /* smaller batches */
    must_pack(r, tiny_opt(), AQ_F16);
    uint64_t identity = r->result.identity;
    remove_stores(r);
    r->opts.memory = 64 * AQ_MIB;
    must_pack(r, tiny_opt(), AQ_F16);
    assert_int_equal(r->result.identity, identity);
}

/* What a plan says that a store takes on disk is what it takes. */
static void the_bytes_of_a_store_are_known_before(void **state)
{
    static const enum aq_dtype formats[] = {AQ_F32, AQ_BF16, AQ_Q8, AQ_Q4};
    struct rig *r = *state;
    for (size_t i = 0; i < AQ_ARRAY_LEN(formats); i++) {
        struct aq_model *m = open_model(r, tiny_opt());
        struct aq_store *s;
        uint64_t bytes;
        assert_int_equal(aq_pack_store_bytes(&bytes, m, formats[i], NULL), 0);
        aq_model_close(m);
        must_pack(r, tiny_opt(), formats[i]);
        assert_int_equal(aq_store_open(&s, r->store, NULL), 0);
        assert_int_equal(aq_store_bytes(s), bytes);
        aq_store_close(s);
        remove_stores(r);
    }
}

/* ---- the command ---- */

struct captured {
    char output[1 << 16], lines[1 << 14];
    size_t bytes, line_bytes;
};

static void take_output(void *user, const char *bytes, size_t count)
{
    struct captured *c = user;
    assert_true(c->bytes + count < sizeof(c->output));
    memcpy(c->output + c->bytes, bytes, count);
    c->bytes += count;
}

static void take_line(void *user, enum aquifer_level level, const char *text)
{
    struct captured *c = user;
    c->line_bytes +=
        (size_t)snprintf(c->lines + c->line_bytes, sizeof(c->lines) - c->line_bytes, "%s\n", text);
    assert_true(c->line_bytes < sizeof(c->lines));
}

/* Runs `aquifer pack` with the options and returns its exit status. */
static int command(struct captured *c, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
static int command(struct captured *c, const char *format, ...)
{
    char options[2048];
    va_list args;
    va_start(args, format);
    vsnprintf(options, sizeof(options), format, args);
    va_end(args);
    memset(c, 0, sizeof(*c));
    struct aquifer_hooks hooks = {.user = c, .line = take_line, .output = take_output};
    return aquifer_run(options, &hooks);
}

static void the_command_packs_lists_and_verifies(void **state)
{
    static struct captured c;
    struct rig *r = *state;
    json_t *document;
    int status = command(&c, "{\"command\": \"pack\", \"model\": \"%s\", \"output\": [\"%s\"]}",
                         variant(r, "prenorm"), r->store);
    if (status != 0)
        fail_msg("%s", c.lines);
    assert_int_equal(command(&c,
                             "{\"command\": \"pack\", \"model\": \"%s\", \"list\": true, "
                             "\"json\": true}",
                             r->store),
                     0);
    assert_int_equal(aq_json_parse(&document, c.output, c.bytes, true, NULL), 0);
    assert_true(json_is_true(json_object_get(document, "packed")));
    assert_int_equal(json_array_size(json_object_get(document, "items")), 36);
    json_decref(document);
    assert_int_equal(
        command(&c, "{\"command\": \"pack\", \"output\": [\"%s\"], \"verify\": true}", r->store),
        0);
    assert_non_null(strstr(c.lines, "is intact"));
}

static void verify_names_every_damaged_tensor_and_exits_with_2(void **state)
{
    static struct captured c;
    struct rig *r = *state;
    char path[TEMP_DEEP_MAX];
    must_pack(r, tiny_opt(), AQ_F16);
    snprintf(path, sizeof(path), "%s/data.0", r->store);
    int fd = open(path, O_RDWR);
    assert_int_equal(pwrite(fd, "damage", 6, 100), 6);
    assert_int_equal(pwrite(fd, "damage", 6, 4 << 20), 6);
    close(fd);
    assert_int_equal(
        command(&c, "{\"command\": \"pack\", \"model\": \"%s\", \"verify\": true}", r->store), 2);
    assert_non_null(strstr(c.lines, "'embed_tokens.weight' is damaged"));
    assert_non_null(strstr(c.lines, "2 of 1"));
}

static void a_checkpoint_can_be_listed_before_it_is_packed(void **state)
{
    static struct captured c;
    struct rig *r = *state;
    assert_int_equal(command(&c,
                             "{\"command\": \"pack\", \"model\": \"%s\", \"list\": true, "
                             "\"weight_format\": \"bf16\"}",
                             variant(r, "prenorm")),
                     0);
    assert_non_null(strstr(c.output, "layers.1.fc2.weight"));
    assert_non_null(strstr(c.output, "pair64"));
    assert_non_null(strstr(c.output, "bytes when packed"));
}

static void requests_that_make_no_sense_exit_with_1(void **state)
{
    static struct captured c;
    struct rig *r = *state;
    must_pack(r, variant(r, "prenorm"), AQ_F16);
    assert_int_equal(command(&c,
                             "{\"command\": \"pack\", \"model\": \"%s\", \"output\": "
                             "[\"%s\"]}",
                             r->store, r->second),
                     1);
    assert_non_null(strstr(c.lines, "is a packed store already"));
    assert_int_equal(
        command(&c, "{\"command\": \"pack\", \"model\": \"%s\"}", variant(r, "prenorm")), 1);
    assert_int_equal(command(&c, "{\"command\": \"pack\", \"model\": \"%s\", \"verify\": true}",
                             variant(r, "prenorm")),
                     1);
    assert_non_null(strstr(c.lines, "nothing to verify"));
    assert_int_equal(command(&c, "{\"command\": \"pack\", \"output\": [\"%s\"]}", r->second), 1);
    assert_int_equal(
        command(&c, "{\"command\": \"pack\", \"output\": [\"%s\"], \"list\": true}", r->second), 2);
}

/* ---- a head that the configuration ties and the tensors do not ---- */

struct said {
    unsigned lines;
    char text[512];
};

static void note_line(void *user, enum aq_log_level level, const char *text)
{
    struct said *s = user;
    s->lines++;
    snprintf(s->text, sizeof(s->text), "%s", text);
    assert_int_equal(level, AQ_LOG_WARNING);
}

/* Tied as the tensors are? */
static bool is_tied(const char *dir, struct said *said)
{
    struct aq_log log = {note_line, said};
    struct aq_model_opts opts = {.dir = dir, .log = &log};
    struct aq_model *m;
    struct aq_err err;
    uint32_t step, index;
    if (aq_model_open(&m, &opts, &err) < 0)
        fail_msg("%s", err.text);
    bool tied = aq_matrix_is_tied(&m->steps, m->steps.step_count - 1, 0, &step, &index);
    assert_int_equal(tied, m->config.tie_word_embeddings);
    aq_model_close(m);
    return tied;
}

static void a_head_of_other_values_is_not_tied(void **state)
{
    struct rig *r = *state;
    char dir[TEMP_INSIDE_MAX], from[1024], path[TEMP_INSIDE_MAX + 32];
    struct said said = {0};
    json_t *config;
    snprintf(dir, sizeof(dir), "%s/wrong", r->root);
    assert_int_equal(mkdir(dir, 0700), 0);
    snprintf(from, sizeof(from), "%s/config.json", variant(r, "untied_gelu"));
    assert_int_equal(aq_json_read_file(&config, from, 1 << 20, NULL), 0);
    json_object_set_new(config, "tie_word_embeddings", json_true());
    snprintf(path, sizeof(path), "%s/config.json", dir);
    assert_int_equal(json_dump_file(config, path, 0), 0);
    json_decref(config);
    snprintf(from, sizeof(from), "%s/model.safetensors", variant(r, "untied_gelu"));
    char *real = realpath(from, NULL);
    assert_non_null(real);
    snprintf(path, sizeof(path), "%s/model.safetensors", dir);
    assert_int_equal(symlink(real, path), 0);
    free(real);
    assert_false(is_tied(dir, &said));
    assert_int_equal(said.lines, 1);
    assert_non_null(strstr(said.text, "lm_head.weight' has other values"));
    must_pack(r, dir, AQ_F16);
    assert_false(is_tied(r->store, &said)); /* its config.json says otherwise as well */
    assert_int_equal(said.lines, 1);
    snprintf(from, sizeof(from), "%s", variant(r, "untied_gelu"));
    must_load_alike(r, from, r->store, AQ_F16);
    remove_stores(r);
}

static void a_head_of_the_same_values_is_tied(void **state)
{
    struct rig *r = *state;
    struct said said = {0};
    assert_true(is_tied(variant(r, "tied_with_lm_head"), &said));
    assert_int_equal(said.lines, 0);
    must_pack(r, variant(r, "tied_with_lm_head"), AQ_F16);
    assert_true(is_tied(r->store, &said));
    remove_stores(r);
}

#define RIG(test) cmocka_unit_test_setup_teardown(test, rig_open, rig_close)

static const struct CMUnitTest tests[] = {
    RIG(a_head_of_other_values_is_not_tied),
    RIG(a_head_of_the_same_values_is_tied),
    RIG(a_store_loads_as_its_checkpoint_does),
    RIG(a_store_of_another_layout_loads_as_its_checkpoint_does),
    RIG(a_store_is_not_packed_in_another_format),
    RIG(a_striped_store_of_several_batches_loads_as_its_checkpoint_does),
    RIG(tied_matrices_are_stored_once),
    RIG(steps_lie_in_the_order_in_which_they_run),
    RIG(the_tokenizer_and_config_come_along),
    RIG(templates_of_conversations_come_along),
    RIG(threads_do_not_change_a_store),
    RIG(an_interrupted_conversion_goes_on_and_gives_the_same_store),
    RIG(half_a_store_with_other_scales_is_not_gone_on_with),
    RIG(a_store_with_other_scales_in_the_cache_is_not_taken),
    RIG(a_store_with_other_scales_is_a_model_as_before),
    RIG(the_same_model_is_not_packed_twice),
    RIG(values_beyond_f16_are_refused_by_name),
    RIG(values_beyond_the_range_of_groups_are_refused_by_name),
    RIG(quantised_stores_are_as_small_as_their_formats),
    RIG(the_bytes_of_a_store_are_known_before),
    RIG(a_budget_too_small_for_the_buffers_is_refused),
    RIG(the_command_packs_lists_and_verifies),
    RIG(verify_names_every_damaged_tensor_and_exits_with_2),
    RIG(a_checkpoint_can_be_listed_before_it_is_packed),
    RIG(requests_that_make_no_sense_exit_with_1),
};

AQ_TEST_MAIN(tests)
