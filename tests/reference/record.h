/* SPDX-License-Identifier: Apache-2.0
 * tests/reference/record.h - runs of the engine that record what it keeps: which keys, in each head
 * of each layer after each step, with which scores, and the tokens it chooses. */
#ifndef AQ_TESTS_REFERENCE_RECORD_H
#define AQ_TESTS_REFERENCE_RECORD_H

#include "engine/core/engine.h"
#include "tests/random_model.h"
#include "tests/reference/reference.h"

/* Of a group of tests, which writes models to a directory of its own. */
int record_make_scratch(void **state);
int record_remove_scratch(void **state);
/* Writes a model over the last one.  Returns its directory. */
const char *record_write_model(const struct random_model *m, uint64_t seed);

/* Of a sequence: kept and score [prompt + steps][layers][heads][room], for the prompt and each
 * decode row. */
struct record {
    uint32_t prompt, fed, room, layers, heads, rows;
    bool *kept;
    float *score;
    bool scored, dropped, mixed;
    bool cross;      /* heads of all layers share */
    bool profiled;   /* each head has a rule */
    uint64_t uneven; /* layers of a row in which heads hold different numbers of slots */
    struct aq_sequence s;
    uint32_t *ids, *tokens;
    float *logprobs;
};

/* Where a head's positions are in `kept` and `score`. */
size_t record_at(const struct record *r, uint32_t row, uint32_t layer, uint32_t head);
void record_open(struct record *r, const struct ref_model *m, uint64_t seed, uint32_t prompt,
                 uint32_t fed);
void record_close(struct record *r);

/* Runs all sequences under a policy, several at a time, with keys and values in a format.  draw:
 * decides on the instruction set and the batch. */
void record_run_in(enum aq_dtype kv_format, const char *dir, const struct aq_kv_policy *kv,
                   struct record *r, uint32_t count, uint32_t draw);
/* All of them in one micro-batch, in f32; share: what prompts begin with alike is computed once.
 * Returns the tokens that were not computed. */
uint64_t record_run_beside(const char *dir, const struct aq_kv_policy *kv, struct record *r,
                           uint32_t count, uint32_t draw, bool share);
/* The same in f32. */
void record_run(const char *dir, const struct aq_kv_policy *kv, struct record *r, uint32_t count,
                uint32_t draw);

#endif
