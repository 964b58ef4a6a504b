/* SPDX-License-Identifier: Apache-2.0
 * tests/unit/engine/checkpoint/store_rig.h - a small store of every kind, 9 MiB in all, so that it
 * spans three striping units. */
#ifndef AQ_TESTS_STORE_RIG_H
#define AQ_TESTS_STORE_RIG_H

#include "engine/checkpoint/store.h"
#include "engine/checkpoint/store_manifest.h"
#include "tests/temp.h"
#include "tests/test.h"

#include <jansson.h>

enum { STEPS = 3, ITEMS = 6, BIG = 2 /* index of the 8 MiB matrix */ };
extern const struct aq_store_step_desc steps[STEPS];

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

int rig_open(void **state);
int rig_close(void **state);
#define RIG(test) cmocka_unit_test_setup_teardown(test, rig_open, rig_close)

/* A path inside of a directory of the rig, valid until the call after the next. */
char *in_dir(struct rig *r, int dir, const char *name);
bool exists(const char *path);
void write_text(const char *path, const char *text);

/* Byte `at` of item `item`: no two items, units or panels look alike. */
unsigned char content(uint32_t item, uint64_t at);
int write_item(struct aq_store_writer *w, uint32_t index, struct aq_err *err);
struct aq_store_writer *must_open_writer(struct rig *r);
/* Writes what is missing, publishes and closes. */
void must_finish(struct rig *r, struct aq_store_writer *w);

struct aq_store *must_open(struct rig *r);
/* Every item reads back, its checksums fit, and those of its tiles fit no other bytes. */
void must_be_whole(struct rig *r);
void must_fail_to_open(struct rig *r, int code, const char *part_of_text);

#endif
