/* SPDX-License-Identifier: Apache-2.0
 * The device of kcheck_cuda: the CUDA sources, compiled against tests/cuda_emu.  A launch is over
 * when the call returns.  With AQ_EMU_WATCHED it is that of kcheck_watched, where races, and
 * accesses to anything but the arrays of the case, end the case (tests/cuda_emu/watch.h); there
 * AQ_WATCH_SAMPLE in the environment says every how many-th case is looked at. */
#include "tests/cuda_emu/watch.h"
#include "tests/kcheck/kc_cuda.h"
#include "tests/kcheck/kc_internal.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* For tests/cuda_emu: in what order threads run. */
void aq_emu_seed(uint64_t seed);

static const struct aq_cuda_exec device = {.sm = 90, .multiprocessors = 2};

#if defined(AQ_EMU_WATCHED)
static void reached(void *base, size_t bytes)
{
    aq_watch_array(base, bytes);
}

static void watch(struct kc_options *options)
{
    const char *sample = getenv("AQ_WATCH_SAMPLE");
    options->array = aq_watch_array;
    options->forget = aq_watch_forget;
    kc_cuda_own(reached);
    if (sample)
        options->sample = (uint32_t)atoi(sample);
}
#endif

const char *kc_cuda_prepare(struct kc_options *options)
{
    aq_emu_seed(options->seed | 1);
    AQ_WATCH(watch(options));
    return "cuda-emu";
}

const struct aq_cuda_kernels *kc_cuda_kernels(void)
{
    return aq_cuda_module.kernels;
}

const struct aq_cuda_exec *kc_cuda(void)
{
    return &device;
}

void kc_cuda_done(int rc)
{
    assert(rc == 0);
}

void *kc_cuda_take(size_t bytes)
{
    void *p = malloc(bytes + 1);
    assert(p);
    memset(p, 0xff, bytes);
    AQ_WATCH(aq_watch_array(p, bytes));
    return p;
}

void kc_cuda_give(void *p)
{
    AQ_WATCH(aq_watch_forget(p));
    free(p);
}
