/* SPDX-License-Identifier: Apache-2.0
 * In the virtual time of the emulated GPU's copy engines (tests/cuda_emu/control.h): how long the
 * link idles while weights stream.  AQ_CUDA_MODULE is the emulated module. */
#include "engine/core/engine_seams.h"
#include "tests/choices.h"
#include "tests/cuda_emu/control.h"
#include "tests/random_model.h"
#include "tests/temp.h"
#include "tests/test.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    LAYERS = 4,
    HIDDEN = 512,
    VOCAB = 256,
    CONTEXT = 64,
    SEQUENCES = 8,
    PROMPT = 8,
    TOKENS = 7,
    SKIPPED = 3, /* passes until the ring is full and graphs are made */
    CHUNKS = 20, /* about so many a layer, as of OPT-30B in int4 */
};

/* A layer of OPT-30B in int4 takes a link of 55 GB/s 6 ms.  With kernels of 65 us, which are about
 * 55 a layer here, the device takes 3.5 ms of it. */
static const uint64_t LAYER_NS = 6000000, KERNEL_NS = 65000;

static struct {
    char model[TEMP_PATH_MAX + 16], root[TEMP_PATH_MAX];
    __typeof__(aq_emu_time) *time;
    __typeof__(aq_emu_timed) *timed;
} rig;

/* In 4.5 bits each: attention has 4 matrices, the MLP 2 of 4 times the size. */
static uint64_t layer_bytes(void)
{
    return 12ull * HIDDEN * HIDDEN * 9 / 16;
}

static void submit_all(struct aq_engine *e, struct aq_sequence s[SEQUENCES])
{
    static const uint32_t prompt[PROMPT] = {2, 3, 5, 7, 11, 13, 17, 19};
    static uint32_t tokens[SEQUENCES][TOKENS];
    for (uint32_t i = 0; i < SEQUENCES; i++) {
        s[i] = (struct aq_sequence){.prompt = prompt,
                                    .prompt_count = PROMPT,
                                    .max_tokens = TOKENS,
                                    .sampling = {.top_p = 1, .repetition_penalty = 1},
                                    .tokens = tokens[i]};
        aq_engine_submit(e, &s[i]);
    }
}

/* The link's idle share from pass SKIPPED to the last but one. */
static double idle_share(uint64_t kernel_ns, uint64_t slice_ns)
{
    struct aq_engine_opts opts = {
        .model_dir = rig.model,
        .device = computed_on("cuda"),
        .cuda_module = getenv("AQ_CUDA_MODULE"),
        .compute = AQ_F16,
        .weight_format = AQ_Q4,
        .kv_format = AQ_F16,
        .threads = 2,
        .device_memory = 160 * AQ_MIB,
        .host_memory = AQ_GIB,
        .cache_dir = rig.root,
        .disk_dir_any = true,
        .chunk = layer_bytes() / CHUNKS,
        .micro_batches = 2,
        .micro_batch = SEQUENCES / 2,
        .placement = placed("weights=0/100/0 kv=100/0/0 hidden=100/0/0 head=device"),
        .attention = attended("device")};
    struct aq_workload w = {
        .sequences = SEQUENCES, .prompt_max = PROMPT, .total_max = PROMPT + TOKENS};
    struct aq_sequence s[SEQUENCES];
    struct aq_emu_timed at[TOKENS + 2];
    struct aq_engine *e = NULL;
    struct aq_err err;
    uint32_t passes = 0;
    int rc = aq_engine_open(&e, &opts, &err);
    rc = rc < 0 ? rc : aq_engine_plan(e, &w, &err);
    rc = rc < 0 ? rc : aq_engine_load(e, &err);
    if (rc == 0) {
        struct aq_emu_rates rates = {.bytes_per_ms = aq_engine_block(e)->stream.bytes[AQ_HOST] /
                                                     LAYERS * 1000000 / LAYER_NS,
                                     .kernel_ns = kernel_ns,
                                     .slice_ns = slice_ns,
                                     .small_bytes = 32768,
                                     .patience_us = 10000};
        rig.time(&rates);
        submit_all(e, s);
    }
    for (bool worked = true; rc == 0 && worked;) {
        rc = aq_engine_pass(e, &worked, &err);
        if (worked && passes < AQ_ARRAY_LEN(at))
            at[passes++] = rig.timed();
    }
    if (rc < 0)
        fail_msg("%s", err.text);
    aq_engine_close(e);
    rig.time(&(struct aq_emu_rates){0});
    assert_true(passes > SKIPPED + 2);
    const struct aq_emu_timed *from = &at[SKIPPED - 1], *to = &at[passes - 2];
    double span = (double)(to->now_ns - from->now_ns), layers = (passes - 1 - SKIPPED) * LAYERS;
    double idle = 1 - (double)(to->to_device_ns - from->to_device_ns) / span;
    print_message(
        "a layer: %.2f ms, of which the link copies %.2f, and kernels take %.2f; slices of "
        "%.1f ms: the link idles %.1f %%, small copies wait up to %.2f ms\n",
        span / layers * 1e-6, (double)(to->to_device_ns - from->to_device_ns) / layers * 1e-6,
        (double)(to->kernels_ns - from->kernels_ns) / layers * 1e-6, (double)slice_ns * 1e-6,
        100 * idle, (double)to->late_ns * 1e-6);
    return idle;
}

/* Whether the copy engine takes copies as they become ready, or serves a stream for 2 ms. */
static void the_link_hardly_idles_while_weights_stream(void **state)
{
    (void)state;
    double fair = idle_share(KERNEL_NS, 0), slices = idle_share(KERNEL_NS, 2000000);
    assert_true(fair <= 0.03);
    assert_true(slices <= 0.03);
}

/* Kernels that take longer than the link are seen: the figure is no constant. */
static void the_link_idles_while_kernels_take_longer(void **state)
{
    (void)state;
    assert_true(idle_share(3 * KERNEL_NS, 0) >= 0.2);
}

static int set_up(void **state)
{
    static const struct random_model model = {RANDOM_OPT, LAYERS, HIDDEN,  8, 8,
                                              64,         VOCAB,  CONTEXT, 2};
    void *module = dlopen(getenv("AQ_CUDA_MODULE"), RTLD_NOW);
    (void)state;
    if (!module)
        return -1;
    rig.time = (__typeof__(rig.time))dlsym(module, "aq_emu_time");
    rig.timed = (__typeof__(rig.timed))dlsym(module, "aq_emu_timed");
    temp_dir(rig.root, "gpu-time");
    snprintf(rig.model, sizeof(rig.model), "%s/model", rig.root);
    random_model_write(rig.model, &model, 7);
    return rig.time && rig.timed ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    return temp_remove(rig.root);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(the_link_hardly_idles_while_weights_stream),
    cmocka_unit_test(the_link_idles_while_kernels_take_longer),
};

int main(void)
{
    return cmocka_run_group_tests(tests, set_up, tear_down) ? 1 : 0;
}
