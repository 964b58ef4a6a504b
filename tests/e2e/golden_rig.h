/* SPDX-License-Identifier: Apache-2.0
 * tests/e2e/golden_rig.h - folders of golden checkpoints (tests/golden/README.md) through the
 * engine: greedy tokens equal, log-probabilities of the best 20 tokens at every position within
 * 1e-4.  A failure ends the test. */
#ifndef AQ_TESTS_E2E_GOLDEN_RIG_H
#define AQ_TESTS_E2E_GOLDEN_RIG_H

#include "base/types.h"

enum { GOLDEN_PROMPTS_MAX = 4, GOLDEN_PROMPT_MAX = 64, GOLDEN_GREEDY_MAX = 32 };

struct golden {
    char dir[512];
    int weights; /* the format to run in; -1, as it is read: the checkpoint's own */
    uint32_t vocab, logit_rows, prompt_count;
    float *logits;    /* [logit_rows][vocab] */
    double deviation; /* of all of them */
    struct golden_prompt {
        uint32_t ids[GOLDEN_PROMPT_MAX], count, greedy[GOLDEN_GREEDY_MAX], greedy_count;
        uint32_t first_row;
    } prompt[GOLDEN_PROMPTS_MAX];
};

void golden_read(struct golden *g, const char *root, const char *name);
void golden_free(struct golden *g);
/* Calls fn for each folder of `root` that has an expected.json; there are at least `least`: a lost
 * folder must not look like success. */
void golden_for_each(const char *root, uint32_t least, void (*fn)(const struct golden *));

/* In f32 on every instruction set that this machine has, from the checkpoint. */
void golden_on_every_isa(const struct golden *g);
/* The same from packed stores of it, in each layout, and widened to f32. */
void golden_from_a_store(const struct golden *g);

/* Tokens and log-probabilities of a run from the checkpoint with this format of weights, -1: its
 * own, are bit for bit those from a store in it, from host and disk, and of an emulated device. */
void golden_wherever_weights_live(const struct golden *g, enum aq_dtype compute, int weights);

/* The same beside an emulated device, with the KV cache on each tier, attended on each side.
 * False: the model has no window, and nothing was run. */
bool golden_with_windows_in_every_place(const struct golden *g);

/* How far a run in bf16 may be from the logits, as shares of their deviation: one log-probability,
 * and the root mean square of all. */
struct golden_limits {
    double one, rms;
};
/* Prompts only: what follows depends on the tokens chosen before. */
void golden_in_bf16(const struct golden *g, const struct golden_limits *limits);

#endif
