/* SPDX-License-Identifier: Apache-2.0
 * tests/e2e/gpu_rig.h - the engine with an emulated or a real GPU, as tests run it: three prompts
 * with golden tokens, in one of several places. */
#ifndef AQ_TESTS_E2E_GPU_RIG_H
#define AQ_TESTS_E2E_GPU_RIG_H

#include "engine/core/engine.h"
#include "engine/exec/exec.h"
#include "tests/cuda_emu/control.h"
#include "tests/temp.h"
#include "tests/test.h"

enum {
    PROMPTS = 3,
    PROMPT_MAX = 64,
    TOKENS = TEST_SLOW ? 3 : 6,
    EVERYWHERE = 8,
    TOPS = 20,
    PASSES = 16
};

extern struct rig {
    char model[4096], root[TEMP_PATH_MAX];
    const char *module;
    /* Of an emulated module, else NULL: in which order its streams are served, what fails, and what
     * it says of driver and GPUs (control.h). */
    __typeof__(aq_emu_order) *order;
    __typeof__(aq_emu_fail_after) *fail_after;
    __typeof__(aq_emu_fail_capture) *fail_capture;
    __typeof__(aq_emu_recover) *recover;
    __typeof__(aq_emu_gpus) *gpus;
    __typeof__(aq_emu_driver) *driver;
    __typeof__(aq_emu_host_addresses) *host_addresses;
    __typeof__(aq_emu_bytes_home) *bytes_home;
    __typeof__(aq_emu_counted) *counted;
    __typeof__(aq_emu_device_memory) *device_memory;
    __typeof__(aq_emu_driver_takes) *driver_takes;
    __typeof__(aq_emu_blas) *blas;
    uint64_t seed;
    /* Of the last run: what had been asked of the GPU before the first pass, and when each was
     * over. */
    struct aq_emu_counts before, after[PASSES];
    uint32_t passes;
    struct golden {
        uint32_t prompt[PROMPT_MAX], count, tokens[TOKENS];
    } golden[PROMPTS];
} rig;

/* Where things live, and who attends. */
struct place {
    const char *name, *placement, *attention;
};
extern const struct place rig_places[EVERYWHERE];

struct output;

struct setup {
    const struct place *place; /* NULL: on the CPU, in memory */
    enum aq_dtype compute, weights, kv;
    struct aq_kv_policy policy;
    bool serial, deterministic, one_batch;
    void (*ways)(struct output *o, uint32_t i); /* of choosing; NULL: greedy */
    uint32_t watched;                           /* bits: sequences that show their logits */
    uint32_t launches;                          /* made together, at most; 0: as is usual */
};

struct output {
    struct aq_sequence s;
    uint32_t tokens[TOKENS], watched;
    float logprobs[TOKENS], prompt_logprob[PROMPT_MAX];
    struct aq_top tops[TOKENS * TOPS], prompt_tops[PROMPT_MAX * TOPS];
};

/* Opens the engine with these choices; 0, or an error as aq_engine_open() has them. */
int rig_open_engine(struct aq_engine **ret, const struct setup *s, struct aq_err *reterr);
/* Gives the engine prompt i. */
void rig_submit(struct aq_engine *e, struct output *o, uint32_t i, const struct setup *s, bool fed);
/* Runs all prompts.  fed: the golden tokens take the place of the chosen ones, and
 * log-probabilities are kept. */
void rig_run(struct output out[PROMPTS], const struct setup *s, bool fed);
void rig_expect_golden(const struct output out[PROMPTS], const char *what);
void rig_expect_near(const struct output got[PROMPTS], const struct output want[PROMPTS],
                     float limit, const char *what);

/* Of a group of tests: AQ_CUDA_MODULE and AQ_TEST_DATA say where things are. */
int rig_set_up(void **state);
int rig_tear_down(void **state);

#endif
