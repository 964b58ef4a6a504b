/* SPDX-License-Identifier: Apache-2.0
 * tests/reference/record.h - what the engine keeps: sequences run under a policy in f32, and after
 * every attention the positions and scores that each head of each layer holds. */
#ifndef AQ_TESTS_RECORD_H
#define AQ_TESTS_RECORD_H

#include "engine/core/engine_seams.h"
#include "tests/reference/reference.h"

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

static inline size_t record_at(const struct record *r, uint32_t row, uint32_t layer, uint32_t head)
{
    return (((size_t)row * r->layers + layer) * r->heads + head) * r->room;
}

/* Tokens of the prompt are drawn from the seed. */
void record_open(struct record *r, const struct ref_model *m, uint64_t seed, uint32_t prompt,
                 uint32_t fed);
void record_close(struct record *r);

/* Runs all sequences under a policy, several at a time, with keys and values in a format. */
void run_engine_in(enum aq_dtype kv_format, const char *dir, const struct aq_kv_policy *kv,
                   struct record *r, uint32_t count, uint32_t draw);
/* In f32. */
void run_engine(const char *dir, const struct aq_kv_policy *kv, struct record *r, uint32_t count,
                uint32_t draw);

#endif
