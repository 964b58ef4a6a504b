/* SPDX-License-Identifier: Apache-2.0
 * The device of kcheck_cuda: the CUDA sources, compiled against tests/cuda_emu.  A launch is over
 * when the call returns. */
#include "tests/kcheck/kc_cuda.h"
#include "tests/kcheck/kc_internal.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* For tests/cuda_emu: in what order threads run. */
void aq_emu_seed(uint64_t seed);

static const struct aq_cuda_exec device = {.sm = 90, .multiprocessors = 2};

const char *kc_cuda_prepare(struct kc_options *options)
{
    aq_emu_seed(options->seed | 1);
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
    return p;
}

void kc_cuda_give(void *p)
{
    free(p);
}
