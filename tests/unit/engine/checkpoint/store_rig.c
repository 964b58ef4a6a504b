/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/engine/checkpoint/store_rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

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
const struct aq_store_step_desc steps[STEPS] = {
    {"embed", embed_items, 2},
    {"layer.0.mlp", layer_items, 2},
    {"head", head_items, 2},
};

void write_text(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

int rig_open(void **state)
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
        .step_count = STEPS,
        .source = "source",
        .model = r->model,
        .files = r->files,
        .file_count = 1,
    };
    *state = r;
    return 0;
}

int rig_close(void **state)
{
    struct rig *r = *state;
    int rc = temp_remove(r->root);
    json_decref(r->model);
    free(r);
    return rc;
}

unsigned char content(uint32_t item, uint64_t at)
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

int write_item(struct aq_store_writer *w, uint32_t index, struct aq_err *err)
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

struct aq_store_writer *must_open_writer(struct rig *r)
{
    struct aq_store_writer *w = NULL;
    int rc = aq_store_writer_open(&w, &r->opts, &r->err);
    if (rc < 0)
        fail_msg("%s", r->err.text);
    return w;
}

void must_finish(struct rig *r, struct aq_store_writer *w)
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

struct aq_store *must_open(struct rig *r)
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

void must_be_whole(struct rig *r)
{
    struct aq_store *s = must_open(r);
    must_hold_everything(r, s);
    aq_store_close(s);
}

void must_fail_to_open(struct rig *r, int code, const char *part_of_text)
{
    struct aq_store *s = NULL;
    int rc = aq_store_open(&s, r->dir[0], &r->err);
    assert_int_equal(rc, code);
    assert_null(s);
    if (!strstr(r->err.text, part_of_text))
        fail_msg("expected '%s' in: %s", part_of_text, r->err.text);
}

bool exists(const char *path)
{
    struct stat st;
    return lstat(path, &st) == 0;
}

char *in_dir(struct rig *r, int dir, const char *name)
{
    static char path[2][TEMP_DEEP_MAX];
    static int turn;
    turn ^= 1;
    snprintf(path[turn], sizeof(path[turn]), "%s%s", r->dir[dir], name);
    return path[turn];
}
