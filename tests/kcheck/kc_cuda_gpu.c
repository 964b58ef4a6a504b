/* SPDX-License-Identifier: Apache-2.0
 * The device of kcheck_gpu: a GPU, through the module that the engine loads ($AQ_CUDA_MODULE, or
 * where the engine looks).  What checks give to kernels lies in buffers, on the stack and in static
 * variables: all are pinned, so that kernels read and write them at the host's addresses, which no
 * driver has to allow for other memory; behind each buffer is memory that no kernel may touch
 * either.  A child opens the GPU for itself, as CUDA does not survive
 * fork(). */
#include "tests/kcheck/kc_cuda.h"

#include "engine/compute/cuda.h"
#include "tests/kcheck/kc_internal.h"

#include <stdlib.h>
#include <string.h>

static struct {
    struct aq_cuda cuda;
    struct aq_cuda_exec exec;
    void *event;
} gpu;

static void expect(int code, const char *what)
{
    if (!code)
        return;
    fprintf(stderr, "kcheck: %s: %s\n", what, gpu.cuda.module->kernels->error_text(code));
    abort(); /* a failure of the case, to whoever waits for this child */
}

static void pin(void *base, size_t bytes)
{
    uintptr_t first = (uintptr_t)base / 4096 * 4096;
    uintptr_t end = ((uintptr_t)base + bytes + 4095) / 4096 * 4096;
    expect(gpu.cuda.module->gpu->pin(gpu.cuda.gpu, (void *)first, end - first),
           "pinning a stack, or statics");
}

const struct aq_cuda_kernels *kc_cuda_kernels(void)
{
    if (gpu.cuda.gpu)
        return gpu.cuda.module->kernels;
    struct aq_err err;
    if (aq_cuda_open(&gpu.cuda, getenv("AQ_CUDA_MODULE"), 0, &err) < 0) {
        fprintf(stderr, "kcheck: %s\n", err.text);
        exit(1);
    }
    const struct aq_gpu_ops *ops = gpu.cuda.module->gpu;
    expect(ops->stream_open(gpu.cuda.gpu, &gpu.exec.stream, false), "a stream");
    expect(ops->event_open(gpu.cuda.gpu, &gpu.event), "an event");
    gpu.exec.sm = gpu.cuda.info.code_sm;
    gpu.exec.multiprocessors = gpu.cuda.info.multiprocessors;
    kc_cuda_own(pin);
    return gpu.cuda.module->kernels;
}

static void mapped(void *base, size_t bytes)
{
    kc_cuda_kernels();
    expect(gpu.cuda.module->gpu->pin(gpu.cuda.gpu, base, bytes), "pinning a buffer");
}

static void unmapped(void *base)
{
    gpu.cuda.module->gpu->unpin(gpu.cuda.gpu, base);
}

const char *kc_cuda_prepare(struct kc_options *options)
{
    options->mapped = mapped;
    options->unmapped = unmapped;
    return "cuda";
}

const struct aq_cuda_exec *kc_cuda(void)
{
    kc_cuda_kernels();
    return &gpu.exec;
}

void kc_cuda_done(int rc)
{
    const struct aq_gpu_ops *ops = gpu.cuda.module->gpu;
    expect(rc, "a launch");
    expect(ops->record(gpu.cuda.gpu, gpu.event, gpu.exec.stream), "an event behind it");
    expect(ops->wait(gpu.cuda.gpu, gpu.event), "a kernel");
}

void *kc_cuda_take(size_t bytes)
{
    void *p, *garbage = malloc(bytes + 1);
    kc_cuda_kernels();
    if (!garbage)
        abort();
    memset(garbage, 0xff, bytes);
    expect(gpu.cuda.module->gpu->take(gpu.cuda.gpu, &p, bytes + 1), "device memory");
    if (bytes)
        expect(gpu.cuda.module->gpu->copy_now(gpu.cuda.gpu, p, garbage, bytes, AQ_GPU_H2D),
               "a copy");
    free(garbage);
    return p;
}

void kc_cuda_give(void *p)
{
    gpu.cuda.module->gpu->give(gpu.cuda.gpu, p);
}
