/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/checkpoint/checkpoint.h"
#include "tests/checkpoint_files.h"
#include "tests/test.h"

#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- a directory to fill, removed by dir_remove ---- */

struct dir {
    char path[64];
};

static struct dir dir_make(void)
{
    struct dir d = {"/tmp/aq-checkpoint-XXXXXX"};
    assert_non_null(mkdtemp(d.path));
    return d;
}

static const char *dir_path(const struct dir *d, const char *name)
{
    static char path[PATH_MAX];
    snprintf(path, sizeof(path), "%s/%s", d->path, name);
    return path;
}

static int dir_create(const struct dir *d, const char *name)
{
    int fd = open(dir_path(d, name), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    return fd;
}

static void dir_text(const struct dir *d, const char *name, const char *text)
{
    int fd = dir_create(d, name);
    assert_int_equal(write(fd, text, strlen(text)), strlen(text));
    close(fd);
}

static void dir_remove(const struct dir *d)
{
    char command[128];
    snprintf(command, sizeof(command), "rm -rf '%s'", d->path);
    assert_int_equal(system(command), 0);
}

/* One f32 tensor of four values, all equal to `value`, in a file of either format. */
static void dir_safetensors(const struct dir *d, const char *file, const char *tensor, float value)
{
    char header[256];
    float data[4] = {value, value, value, value};
    snprintf(header, sizeof(header),
             "{\"%s\":{\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[0,16]}}", tensor);
    int fd = dir_create(d, file);
    safetensors_write(fd, header, data, sizeof(data));
    close(fd);
}

static void dir_bin(const struct dir *d, const char *file, const char *tensor, float value)
{
    float data[4] = {value, value, value, value};
    struct bytes p = {0};
    pickle_begin(&p);
    bytes_text(&p, "}");
    pickle_string(&p, tensor);
    pickle_tensor(&p, &(struct pickle_tensor){.storage = "FloatStorage",
                                              .key = "0",
                                              .numel = 4,
                                              .rank = 2,
                                              .shape = {2, 2},
                                              .stride = {2, 1}});
    bytes_text(&p, "s");
    pickle_end(&p);
    int fd = dir_create(d, file);
    assert_true(torch_zip_write(fd, &p, &(struct torch_storage){"0", data, sizeof(data)}, 1));
    close(fd);
    bytes_free(&p);
}

static float first_value(const struct aq_checkpoint *c, const char *name)
{
    float row[2] = {0};
    const struct aq_tensor_info *t = aq_checkpoint_find(c, name);
    assert_non_null(t);
    assert_int_equal(aq_checkpoint_read(c, t, 1, 1, row, NULL), 0);
    return row[1];
}

static struct aq_checkpoint *open_ok(const char *path)
{
    struct aq_checkpoint *c = NULL;
    struct aq_err err;
    if (aq_checkpoint_open(&c, path, &err) < 0)
        fail_msg("%s", err.text);
    return c;
}

static const char *open_error(const char *path, int code)
{
    static struct aq_err err;
    struct aq_checkpoint *c = NULL;
    err = (struct aq_err){0};
    assert_int_equal(aq_checkpoint_open(&c, path, &err), code);
    assert_null(c);
    return err.text;
}

static void assert_contains(const char *text, const char *part)
{
    assert_non_null(text);
    bool found = strstr(text, part) != NULL;
    if (!found)
        print_error("'%s' does not contain '%s'\n", text, part);
    assert_true(found);
}

/* ---- whole checkpoints ---- */

static void the_tiny_model_is_listed_with_its_shapes(void **state)
{
    struct aq_checkpoint *c = open_ok(test_data_path("tiny-opt"));
    assert_string_equal(aq_checkpoint_format(c), "safetensors");
    assert_int_equal(aq_checkpoint_count(c), 6 * 16 + 4);
    const struct aq_tensor_info *t = aq_checkpoint_find(c, "model.decoder.layers.5.fc1.weight");
    assert_non_null(t);
    assert_int_equal(t->dtype, AQ_F16);
    assert_int_equal(t->rank, 2);
    assert_int_equal(t->shape[0], 1024);
    assert_int_equal(t->shape[1], 256);
    assert_string_equal(aq_checkpoint_file(c, t), "model.safetensors");
    assert_null(aq_checkpoint_find(c, "no.such.tensor"));
    for (size_t i = 1; i < aq_checkpoint_count(c); i++)
        assert_true(strcmp(aq_checkpoint_tensor(c, i - 1)->name, aq_checkpoint_tensor(c, i)->name) <
                    0);
    aq_checkpoint_close(c);
}

static void a_single_bin_file_is_read(void **state)
{
    struct dir d = dir_make();
    dir_bin(&d, "pytorch_model.bin", "w", 3.0f);
    dir_text(&d, "training_args.bin", "no weights in here");
    struct aq_checkpoint *c = open_ok(d.path);
    assert_string_equal(aq_checkpoint_format(c), "pytorch");
    assert_int_equal(aq_checkpoint_count(c), 1);
    assert_true(first_value(c, "w") == 3.0f);
    assert_int_equal(aq_checkpoint_bytes(c), 16);
    aq_checkpoint_close(c);
    dir_remove(&d);
}

static void safetensors_win_over_bin(void **state)
{
    struct dir d = dir_make();
    dir_bin(&d, "pytorch_model.bin", "w", 1.0f);
    dir_safetensors(&d, "a.safetensors", "w", 2.0f);
    dir_text(&d, "model.safetensors.index.json", "{\"weight_map\": {\"w\": \"a.safetensors\"}}");
    struct aq_checkpoint *c = open_ok(d.path);
    assert_true(first_value(c, "w") == 2.0f);
    aq_checkpoint_close(c);
    dir_safetensors(&d, "model.safetensors", "w", 5.0f);
    c = open_ok(d.path);
    assert_true(first_value(c, "w") == 5.0f);
    aq_checkpoint_close(c);
    dir_remove(&d);
}

/* total_size is a float in some published files, and metadata may be empty or absent. */
static void shards_of_either_format_are_one_list(void **state)
{
    static const char *const metadata[] = {"\"metadata\": {\"total_size\": 32.0}, ",
                                           "\"metadata\": {}, ", ""};
    for (size_t i = 0; i < AQ_ARRAY_LEN(metadata); i++) {
        for (int bin = 0; bin < 2; bin++) {
            struct dir d = dir_make();
            char index[256];
            snprintf(index, sizeof(index), "{%s\"weight_map\": {\"b\": \"two\", \"a\": \"one\"}}",
                     metadata[i]);
            (bin ? dir_bin : dir_safetensors)(&d, "one", "a", 1.0f);
            (bin ? dir_bin : dir_safetensors)(&d, "two", "b", 2.0f);
            dir_text(&d, bin ? "pytorch_model.bin.index.json" : "model.safetensors.index.json",
                     index);
            struct aq_checkpoint *c = open_ok(d.path);
            assert_int_equal(aq_checkpoint_count(c), 2);
            assert_true(first_value(c, "a") == 1.0f);
            assert_true(first_value(c, "b") == 2.0f);
            assert_string_equal(aq_checkpoint_file(c, aq_checkpoint_find(c, "b")), "two");
            aq_checkpoint_close(c);
            dir_remove(&d);
        }
    }
}

static void the_index_decides_where_a_tensor_comes_from(void **state)
{
    struct dir d = dir_make();
    dir_safetensors(&d, "one", "a", 1.0f);
    dir_safetensors(&d, "two", "a", 2.0f);
    dir_safetensors(&d, "three", "extra", 3.0f);
    dir_text(&d, "model.safetensors.index.json",
             "{\"weight_map\": {\"a\": \"two\", \"b\": \"one\", \"c\": \"three\"}}");
    const char *text = open_error(d.path, -ENOEXEC);
    assert_contains(text, "one: lacks 1 of the tensors that the index puts there, such as 'b'");
    assert_contains(text, "three: lacks 1 of the tensors");
    /* "extra" is in no index and in one file: it is kept. */
    dir_safetensors(&d, "one", "b", 1.0f);
    dir_text(&d, "model.safetensors.index.json",
             "{\"weight_map\": {\"a\": \"two\", \"b\": \"one\", \"extra\": \"three\"}}");
    struct aq_checkpoint *c = open_ok(d.path);
    assert_int_equal(aq_checkpoint_count(c), 3);
    assert_true(first_value(c, "a") == 2.0f);
    aq_checkpoint_close(c);
    dir_remove(&d);
}

/* Some publishers lay the same weights beside the shards once more, in a form of their own. */
static void files_that_the_index_does_not_name_are_not_opened(void **state)
{
    struct dir d = dir_make();
    dir_safetensors(&d, "one", "a", 1.0f);
    dir_safetensors(&d, "consolidated.safetensors", "layers.0.a", 2.0f);
    dir_text(&d, "model.safetensors.index.json", "{\"weight_map\": {\"a\": \"one\"}}");
    struct aq_checkpoint *c = open_ok(d.path);
    assert_int_equal(aq_checkpoint_count(c), 1);
    assert_true(first_value(c, "a") == 1.0f);
    aq_checkpoint_close(c);
    dir_remove(&d);
}

static void a_tensor_in_two_shards_is_refused(void **state)
{
    struct dir d = dir_make();
    dir_safetensors(&d, "one", "same", 1.0f);
    dir_safetensors(&d, "two", "same", 2.0f);
    dir_safetensors(&d, "three", "c", 2.0f);
    dir_text(&d, "model.safetensors.index.json",
             "{\"weight_map\": {\"c\": \"three\", \"x\": \"one\", \"y\": \"two\"}}");
    assert_contains(open_error(d.path, -ENOEXEC), "tensor 'same': the name appears twice");
    dir_remove(&d);
}

/* ---- complaints ---- */

static void everything_that_is_wrong_is_named_at_once(void **state)
{
    struct dir d = dir_make();
    dir_text(&d, "b.safetensors",
             "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12\n");
    dir_text(&d, "c.safetensors", "<!DOCTYPE html><html>");
    dir_text(&d, "d.safetensors", "");
    dir_safetensors(&d, "e.safetensors", "e", 1.0f);
    assert_int_equal(truncate(dir_path(&d, "e.safetensors"), 70), 0);
    dir_safetensors(&d, "f.safetensors", "f", 1.0f);
    assert_int_equal(symlink("../blobs/none", dir_path(&d, "g.safetensors")), 0);
    assert_int_equal(mkdir(dir_path(&d, "h.safetensors"), 0700), 0);
    assert_int_equal(mkfifo(dir_path(&d, "i.safetensors"), 0600), 0);
    dir_text(&d, "model.safetensors.index.json",
             "{\"weight_map\": {\"a\": \"a.safetensors\", \"b\": \"b.safetensors\", "
             "\"c\": \"c.safetensors\", \"d\": \"d.safetensors\", \"e\": \"e.safetensors\", "
             "\"f\": \"f.safetensors\", \"g\": \"g.safetensors\", \"h\": \"h.safetensors\", "
             "\"i\": \"i.safetensors\"}}");
    const char *text = open_error(d.path, -ENOEXEC);
    assert_contains(text, d.path);
    assert_contains(text, "8 of 9 weight files cannot be used");
    assert_contains(text, "a.safetensors: is missing");
    assert_contains(text, "b.safetensors: is a git-LFS pointer");
    assert_contains(text, "c.safetensors: is a web page");
    assert_contains(text, "d.safetensors: is empty");
    assert_contains(text, "e.safetensors: tensor 'e': ends at byte 16 of the data");
    assert_contains(text, "an incomplete download?");
    assert_contains(text, "g.safetensors: is a link to a file that is missing");
    assert_contains(text, "h.safetensors: is not a regular file");
    assert_contains(text, "i.safetensors: is not a regular file");
    assert_null(strstr(text, "f.safetensors"));
    dir_remove(&d);
}

/* An index of `count` shards; tensor ti in shard i. */
static void dir_index(const struct dir *d, int count)
{
    struct bytes b = {0};
    char row[128];
    bytes_text(&b, "{\"weight_map\": {");
    for (int i = 1; i <= count; i++) {
        snprintf(row, sizeof(row), "%s\"t%d\": \"pytorch_model-%05d-of-%05d.bin\"",
                 i > 1 ? ", " : "", i, i, count);
        bytes_text(&b, row);
    }
    bytes_text(&b, "}}");
    bytes_u8(&b, 0);
    dir_text(d, "pytorch_model.bin.index.json", (const char *)b.data);
    bytes_free(&b);
}

static void a_few_missing_files_are_named_one_by_one(void **state)
{
    struct dir d = dir_make();
    dir_index(&d, 7);
    const char *text = open_error(d.path, -ENOENT);
    for (int i = 1; i <= 7; i++) {
        char want[64];
        snprintf(want, sizeof(want), "pytorch_model-%05d-of-00007.bin: is missing", i);
        assert_contains(text, want);
    }
    dir_remove(&d);
}

static void many_missing_files_are_named_as_runs(void **state)
{
    struct dir d = dir_make();
    dir_index(&d, 200);
    dir_bin(&d, "pytorch_model-00002-of-00200.bin", "t2", 1.0f);
    dir_text(&d, "pytorch_model-00100-of-00200.bin", "");
    const char *text = open_error(d.path, -ENOEXEC);
    assert_contains(text, "199 of 200 weight files cannot be used: "
                          "pytorch_model-00001-of-00200.bin: is missing; "
                          "pytorch_model-00003-of-00200.bin to pytorch_model-00099-of-00200.bin "
                          "(97 files): is missing; "
                          "pytorch_model-00100-of-00200.bin: is empty; "
                          "pytorch_model-00101-of-00200.bin to pytorch_model-00200-of-00200.bin "
                          "(100 files): is missing");
    dir_remove(&d);
}

static void complaints_that_do_not_fit_are_counted(void **state)
{
    enum { SHARDS = 120 };
    struct dir d = dir_make();
    dir_index(&d, SHARDS);
    for (int i = 1; i <= SHARDS; i += 2) { /* every other one is empty: no runs */
        char name[64];
        snprintf(name, sizeof(name), "pytorch_model-%05d-of-%05d.bin", i, SHARDS);
        dir_text(&d, name, "");
    }
    const char *text = open_error(d.path, -ENOEXEC);
    unsigned shown = 0, more = 0;
    for (const char *p = text; (p = strstr(p, ".bin: is ")); p++)
        shown++;
    const char *tail = strstr(text, "; and ");
    assert_non_null(tail);
    assert_int_equal(sscanf(tail, "; and %u more", &more), 1);
    assert_true(shown > 10);
    assert_int_equal(shown + more, SHARDS);
    dir_remove(&d);
}

static void unfinished_downloads_are_mentioned(void **state)
{
    struct dir d = dir_make();
    dir_text(&d, "model.safetensors.incomplete", "x");
    assert_contains(open_error(d.path, -ENOENT), "found 1 unfinished download");
    dir_text(&d, "model.safetensors.index.json", "{\"weight_map\": {\"w\": \"a\"}}");
    assert_contains(open_error(d.path, -ENOENT), "(1 unfinished download lies there)");
    dir_remove(&d);
}

static void shard_names_cannot_leave_the_directory(void **state)
{
    static const char *const names[] = {"\"../a\"",     "\"/etc/passwd\"", "\"b/c\"", "\"\"",
                                        "\"..\"",       "\".\"",           "3",       "null",
                                        "\"a\\u0000b\""};
    for (size_t i = 0; i < AQ_ARRAY_LEN(names); i++) {
        struct dir d = dir_make();
        char index[128];
        snprintf(index, sizeof(index), "{\"weight_map\": {\"w\": %s}}", names[i]);
        dir_text(&d, "model.safetensors.index.json", index);
        const char *text = open_error(d.path, -ENOEXEC);
        assert_contains(text, "tensor 'w': expected the name of a file in this directory");
        dir_remove(&d);
    }
}

static void a_useless_index_is_refused(void **state)
{
    static const char *const texts[] = {
        "",
        "[]",
        "{}",
        "{\"weight_map\": []}",
        "{\"weight_map\": {}}",
        "{\"weight_map\": {\"w\"",
        "version https://git-lfs.github.com/spec/v1",
    };
    for (size_t i = 0; i < AQ_ARRAY_LEN(texts); i++) {
        struct dir d = dir_make();
        dir_text(&d, "pytorch_model.bin.index.json", texts[i]);
        assert_contains(open_error(d.path, -ENOEXEC), "pytorch_model.bin.index.json");
        dir_remove(&d);
    }
}

static void a_directory_without_weights_says_what_was_looked_for(void **state)
{
    struct dir d = dir_make();
    assert_contains(open_error(d.path, -ENOENT), "expected model.safetensors, pytorch_model.bin");
    dir_text(&d, "tf_model.h5", "x");
    assert_contains(open_error(d.path, -ENOENT), "found tf_model.h5, which is not read");
    assert_contains(open_error(dir_path(&d, "tf_model.h5"), -ENOEXEC), "expected a directory");
    assert_contains(open_error(dir_path(&d, "nothing"), -ENOENT), "nothing");
    dir_remove(&d);
    d = dir_make();
    dir_text(&d, "small.Q4_K_M.gguf", "GGUF");
    assert_contains(open_error(d.path, -ENOENT), "found small.Q4_K_M.gguf, which is not read: take "
                                                 "the checkpoint that it was made from");
    dir_safetensors(&d, "consolidated.safetensors", "a", 1.0f);
    assert_contains(open_error(d.path, -ENOENT), "found consolidated.safetensors, which is not");
    dir_remove(&d);
}

static void links_as_in_the_hub_cache_are_followed(void **state)
{
    struct dir d = dir_make();
    assert_int_equal(mkdir(dir_path(&d, "blobs"), 0700), 0);
    assert_int_equal(mkdir(dir_path(&d, "snapshot"), 0700), 0);
    dir_safetensors(&d, "blobs/0123", "w", 7.0f);
    assert_int_equal(symlink("../blobs/0123", dir_path(&d, "snapshot/model.safetensors")), 0);
    struct aq_checkpoint *c = open_ok(dir_path(&d, "snapshot"));
    assert_true(first_value(c, "w") == 7.0f);
    aq_checkpoint_close(c);
    dir_remove(&d);
}

/* ---- reading and identity ---- */

struct reading {
    const struct aq_checkpoint *c;
    const struct aq_tensor_info *t;
    const uint8_t *want;
    bool equal;
};

static void *read_all_rows(void *arg)
{
    struct reading *r = arg;
    size_t row = aq_tensor_row_bytes(r->t);
    uint8_t *got = malloc(3 * row);
    r->equal = true;
    for (uint64_t i = 0; i < aq_tensor_rows(r->t); i += 3) {
        uint64_t n = aq_min_u64(3, aq_tensor_rows(r->t) - i);
        r->equal &= aq_checkpoint_read(r->c, r->t, i, n, got, NULL) == 0 &&
                    memcmp(got, r->want + i * row, n * row) == 0;
    }
    free(got);
    return NULL;
}

static void threads_may_read_at_once(void **state)
{
    enum { THREADS = 4 };
    struct aq_checkpoint *c = open_ok(test_data_path("tiny-opt"));
    const struct aq_tensor_info *t = aq_checkpoint_find(c, "model.decoder.layers.0.fc2.weight");
    assert_non_null(t);
    uint8_t *want = malloc(t->bytes);
    assert_int_equal(aq_checkpoint_read(c, t, 0, aq_tensor_rows(t), want, NULL), 0);
    pthread_t thread[THREADS];
    struct reading reading[THREADS];
    for (int i = 0; i < THREADS; i++) {
        reading[i] = (struct reading){c, t, want, false};
        assert_int_equal(pthread_create(&thread[i], NULL, read_all_rows, &reading[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(thread[i], NULL);
        assert_true(reading[i].equal);
    }
    free(want);
    aq_checkpoint_close(c);
}

static uint64_t hash_of(const struct dir *d)
{
    struct aq_checkpoint *c = open_ok(d->path);
    uint64_t hash = aq_checkpoint_hash(c);
    aq_checkpoint_close(c);
    return hash;
}

static void the_hash_is_that_of_the_contents(void **state)
{
    struct dir d = dir_make(), copy = dir_make();
    dir_safetensors(&d, "model.safetensors", "w", 1.0f);
    dir_text(&d, "config.json", "{}");
    dir_safetensors(&copy, "model.safetensors", "w", 1.0f);
    dir_text(&copy, "config.json", "{}");
    uint64_t hash = hash_of(&d);
    assert_true(hash_of(&copy) == hash);
    dir_safetensors(&copy, "model.safetensors", "w", 1.5f);
    assert_true(hash_of(&copy) != hash);
    dir_safetensors(&copy, "model.safetensors", "v", 1.0f);
    assert_true(hash_of(&copy) != hash);
    dir_safetensors(&copy, "model.safetensors", "w", 1.0f);
    assert_true(hash_of(&copy) == hash);
    dir_text(&copy, "config.json", "{ }");
    assert_true(hash_of(&copy) != hash);
    dir_remove(&copy);
    dir_remove(&d);
}

static void a_large_file_is_sampled_from_end_to_end(void **state)
{
    enum { ROWS = 1024, K = 1024 };
    struct dir d = dir_make();
    float *data = calloc(ROWS * K, sizeof(*data));
    uint64_t seen[4];
    static const size_t touched[] = {SIZE_MAX, 0, ROWS * K - 1, ROWS * K / 15 * 4};
    for (size_t i = 0; i < AQ_ARRAY_LEN(touched); i++) {
        if (touched[i] != SIZE_MAX)
            data[touched[i]] = 1.0f;
        int fd = dir_create(&d, "model.safetensors");
        safetensors_write(
            fd, "{\"w\":{\"dtype\":\"F32\",\"shape\":[1024,1024],\"data_offsets\":[0,4194304]}}",
            data, ROWS * K * sizeof(*data));
        close(fd);
        seen[i] = hash_of(&d);
        for (size_t j = 0; j < i; j++)
            assert_true(seen[j] != seen[i]);
    }
    free(data);
    dir_remove(&d);
}

/* ---- names ---- */

static void clear_cache_variables(void)
{
    static const char *const names[] = {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME",
                                        "XDG_CACHE_HOME"};
    for (size_t i = 0; i < AQ_ARRAY_LEN(names); i++)
        unsetenv(names[i]);
}

static void a_repository_is_found_in_the_local_cache(void **state)
{
    static const char *const table[][3] = {
        /* variable, cache below it, model */
        {"HF_HUB_CACHE", "", "org/some-model"},
        {"HF_HOME", "/hub", "org/some-model"},
        {"XDG_CACHE_HOME", "/huggingface/hub", "gpt_2.0"},
        {"HOME", "/.cache/huggingface/hub", "org/some-model"},
    };
    char *home = strdup(getenv("HOME") ? getenv("HOME") : "/");
    for (size_t i = 0; i < AQ_ARRAY_LEN(table); i++) {
        struct dir d = dir_make();
        bool org = strchr(table[i][2], '/') != NULL;
        char command[1024], path[PATH_MAX], want[256];
        snprintf(want, sizeof(want), "%s%s/%s", d.path, table[i][1],
                 org ? "models--org--some-model" : "models--gpt_2.0");
        snprintf(command, sizeof(command),
                 "mkdir -p '%s/refs' '%s/snapshots/c0ffee' && printf 'c0ffee' > '%s/refs/main'",
                 want, want, want);
        assert_int_equal(system(command), 0);
        clear_cache_variables();
        setenv(table[i][0], d.path, 1);
        struct aq_err err = {0};
        if (aq_checkpoint_resolve(table[i][2], path, sizeof(path), &err) < 0)
            fail_msg("%s", err.text);
        strcat(want, "/snapshots/c0ffee");
        assert_string_equal(path, want);
        dir_remove(&d);
    }
    clear_cache_variables();
    setenv("HOME", home, 1);
    free(home);
}

static void an_absent_repository_gives_the_download_command(void **state)
{
    struct dir d = dir_make();
    char path[PATH_MAX];
    struct aq_err err;
    clear_cache_variables();
    setenv("HF_HUB_CACHE", d.path, 1);
    assert_int_equal(aq_checkpoint_resolve("facebook/opt-1.3b", path, sizeof(path), &err), -ENOENT);
    assert_contains(err.text, "it with: hf download facebook/opt-1.3b");
    assert_contains(err.text, d.path);
    clear_cache_variables();
    dir_remove(&d);
}

static void a_ref_that_points_elsewhere_is_not_followed(void **state)
{
    static const char *const refs[] = {"..", "../../x", "/etc", "", "."};
    struct dir d = dir_make();
    char command[512], path[PATH_MAX];
    clear_cache_variables();
    setenv("HF_HUB_CACHE", d.path, 1);
    snprintf(command, sizeof(command),
             "mkdir -p '%s/models--a--b/refs' '%s/models--a--b/snapshots/x'", d.path, d.path);
    assert_int_equal(system(command), 0);
    for (size_t i = 0; i < AQ_ARRAY_LEN(refs); i++) {
        dir_text(&d, "models--a--b/refs/main", refs[i]);
        assert_int_equal(aq_checkpoint_resolve("a/b", path, sizeof(path), NULL), -ENOENT);
    }
    clear_cache_variables();
    dir_remove(&d);
}

static void an_existing_path_wins(void **state)
{
    struct dir d = dir_make();
    char path[PATH_MAX], small[8];
    assert_int_equal(aq_checkpoint_resolve(d.path, path, sizeof(path), NULL), 0);
    assert_string_equal(path, d.path);
    assert_int_equal(aq_checkpoint_resolve(d.path, small, sizeof(small), NULL), -ENOENT);
    dir_remove(&d);
}

/* They have no config.json, whose absence would say nothing. */
static void directories_of_other_programs_are_named_with_what_to_take(void **state)
{
    static const char *const files[][2] = {
        {"small.Q4_K_M.gguf", "small.Q4_K_M.gguf, which is not read: take the checkpoint that"},
        {"adapter_model.safetensors", "an adapter has to be merged into its model first"},
        {"consolidated.00.pth", "found consolidated.00.pth, which is not read"},
    };
    char path[PATH_MAX];
    struct aq_err err;
    for (size_t i = 0; i < AQ_ARRAY_LEN(files); i++) {
        struct dir d = dir_make();
        dir_text(&d, files[i][0], "x");
        assert_int_equal(aq_checkpoint_resolve(d.path, path, sizeof(path), &err), -ENOENT);
        assert_contains(err.text, files[i][1]);
        dir_text(&d, "config.json", "{}");
        assert_int_equal(aq_checkpoint_resolve(d.path, path, sizeof(path), NULL), 0);
        dir_remove(&d);
    }
    struct dir d = dir_make();
    dir_text(&d, "a.gguf", "x");
    assert_int_equal(aq_checkpoint_resolve(dir_path(&d, "a.gguf"), path, sizeof(path), &err),
                     -ENOENT);
    assert_contains(err.text, "found a file: take the checkpoint that it was made from");
    dir_remove(&d);
}

static void what_is_no_repository_is_only_a_path(void **state)
{
    static const char *const names[] = {"/no/such/dir", "./none", "../none", "a/b/c",       "a//b",
                                        "a/",           "-a",     "a b",     "org/.hidden", ""};
    for (size_t i = 0; i < AQ_ARRAY_LEN(names); i++) {
        char path[PATH_MAX];
        struct aq_err err;
        assert_int_equal(aq_checkpoint_resolve(names[i], path, sizeof(path), &err), -ENOENT);
        assert_contains(err.text, "no such directory");
        assert_null(strstr(err.text, "download"));
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(the_tiny_model_is_listed_with_its_shapes),
    cmocka_unit_test(a_single_bin_file_is_read),
    cmocka_unit_test(safetensors_win_over_bin),
    cmocka_unit_test(shards_of_either_format_are_one_list),
    cmocka_unit_test(the_index_decides_where_a_tensor_comes_from),
    cmocka_unit_test(files_that_the_index_does_not_name_are_not_opened),
    cmocka_unit_test(a_tensor_in_two_shards_is_refused),
    cmocka_unit_test(everything_that_is_wrong_is_named_at_once),
    cmocka_unit_test(a_few_missing_files_are_named_one_by_one),
    cmocka_unit_test(many_missing_files_are_named_as_runs),
    cmocka_unit_test(complaints_that_do_not_fit_are_counted),
    cmocka_unit_test(unfinished_downloads_are_mentioned),
    cmocka_unit_test(shard_names_cannot_leave_the_directory),
    cmocka_unit_test(a_useless_index_is_refused),
    cmocka_unit_test(a_directory_without_weights_says_what_was_looked_for),
    cmocka_unit_test(links_as_in_the_hub_cache_are_followed),
    cmocka_unit_test(threads_may_read_at_once),
    cmocka_unit_test(the_hash_is_that_of_the_contents),
    cmocka_unit_test(a_large_file_is_sampled_from_end_to_end),
    cmocka_unit_test(a_repository_is_found_in_the_local_cache),
    cmocka_unit_test(an_absent_repository_gives_the_download_command),
    cmocka_unit_test(a_ref_that_points_elsewhere_is_not_followed),
    cmocka_unit_test(an_existing_path_wins),
    cmocka_unit_test(directories_of_other_programs_are_named_with_what_to_take),
    cmocka_unit_test(what_is_no_repository_is_only_a_path),
};
AQ_TEST_MAIN(tests)
