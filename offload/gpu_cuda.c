/* SPDX-License-Identifier: Apache-2.0
 * The table of offload/gpu.h by the CUDA runtime.  Tests compile it against a runtime that plays a
 * GPU (tests/cuda_emu/include). */
#include "offload/gpu_cuda.h"

#include "base/types.h"

#include <ctype.h>
#include <cuda_runtime_api.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Whatever the driver and others hold beyond this is not ours. */
#define CONTEXT_BYTES_MAX ((uint64_t)1 << 30)
enum { GPUS_MAX = 64 };

struct aq_gpu {
    int index;
};

/* Without a driver the runtime reports 35 and leaves its outputs alone. */
static int cuda_count(uint32_t *ret_count, uint32_t *ret_driver, uint32_t *ret_runtime)
{
    int count = 0, driver = 0, runtime = 0;
    cudaDriverGetVersion(&driver);
    cudaRuntimeGetVersion(&runtime);
    int rc = (int)cudaGetDeviceCount(&count);
    *ret_count = rc ? 0 : (uint32_t)count;
    *ret_driver = (uint32_t)driver;
    *ret_runtime = (uint32_t)runtime;
    return rc;
}

static const char *cuda_error_text(int code)
{
    return cudaGetErrorString((cudaError_t)code);
}

/* The runtime's calls work on the thread's device. */
static int enter(const struct aq_gpu *g)
{
    return (int)cudaSetDevice(g->index);
}

/* The node that the kernel says the PCI device hangs on. */
static int numa_node_of(int index)
{
    char id[32] = "", path[96];
    int node = -1;
    if (cudaDeviceGetPCIBusId(id, sizeof(id), index))
        return -1;
    for (char *c = id; *c; c++)
        *c = (char)tolower((unsigned char)*c);
    snprintf(path, sizeof(path), "/sys/bus/pci/devices/%s/numa_node", id);
    FILE *f = fopen(path, "re");
    if (!f)
        return -1;
    if (fscanf(f, "%d", &node) != 1)
        node = -1;
    fclose(f);
    return node;
}

/* What a driver holds of a GPU's memory when it is opened first in this process.  Kernels that are
 * loaded later stay, and are not part of the context when it is opened again. */
static uint64_t held_at_first(int index, uint64_t held)
{
    static _Atomic uint64_t first[GPUS_MAX];
    uint64_t none = 0;
    if (index >= GPUS_MAX || atomic_compare_exchange_strong(&first[index], &none, held))
        return held;
    return aq_min_u64(none, held);
}

static int read_info(struct aq_gpu_info *info, int index)
{
    struct cudaDeviceProp p;
    size_t free_bytes, total;
    int host_addresses = 0, rc = (int)cudaGetDeviceProperties(&p, index);
    rc = rc ? rc
            : (int)cudaDeviceGetAttribute(&host_addresses,
                                          cudaDevAttrCanUseHostPointerForRegisteredMem, index);
    rc = rc ? rc : (int)cudaMemGetInfo(&free_bytes, &total);
    if (rc)
        return rc;
    uint64_t held = held_at_first(index, total - free_bytes);
    *info = (struct aq_gpu_info){
        .total_bytes = total,
        .free_bytes = free_bytes,
        .context_bytes = held < CONTEXT_BYTES_MAX ? held : CONTEXT_BYTES_MAX,
        .sm = (uint32_t)(p.major * 10 + p.minor),
        .multiprocessors = (uint32_t)p.multiProcessorCount,
        .host_addresses = host_addresses,
        .numa_node = numa_node_of(index),
    };
    snprintf(info->name, sizeof(info->name), "%s", p.name);
    return 0;
}

static int cuda_open(struct aq_gpu **ret, uint32_t index, struct aq_gpu_info *info)
{
    struct aq_gpu *g = calloc(1, sizeof(*g));
    if (!g)
        return (int)cudaErrorMemoryAllocation;
    g->index = (int)index;
    /* The driver's waits sleep: cores are for computing.  Free makes the context, so that what it
     * takes counts. */
    int rc = enter(g);
    rc = rc ? rc : (int)cudaSetDeviceFlags(cudaDeviceScheduleBlockingSync);
    rc = rc ? rc : (int)cudaFree(NULL);
    rc = rc ? rc : read_info(info, g->index);
    if (rc) {
        free(g);
        return rc;
    }
    *ret = g;
    return 0;
}

static void cuda_close(struct aq_gpu *g)
{
    free(g);
}

static int cuda_memory(struct aq_gpu *g, uint64_t *ret_free, uint64_t *ret_total)
{
    size_t free_bytes = 0, total = 0;
    int rc = enter(g);
    rc = rc ? rc : (int)cudaMemGetInfo(&free_bytes, &total);
    *ret_free = free_bytes;
    *ret_total = total;
    return rc;
}

/* What has failed stays the thread's last error until somebody asks for it, and a kernel's launch
 * is told by asking: whoever can do without what failed is not to be told of it then. */
static int forget(int rc)
{
    cudaGetLastError();
    return rc;
}

static int cuda_take(struct aq_gpu *g, void **ret, size_t bytes)
{
    int rc = enter(g);
    rc = rc ? rc : (int)cudaMalloc(ret, bytes);
    if (rc)
        return forget(rc);
    rc = (int)cudaMemset(*ret, 0, bytes);
    rc = rc ? rc : (int)cudaDeviceSynchronize();
    if (rc)
        cudaFree(*ret);
    return rc;
}

static void cuda_give(struct aq_gpu *g, void *p)
{
    if (!enter(g))
        cudaFree(p);
}

static int cuda_pin(struct aq_gpu *g, void *p, size_t bytes)
{
    int rc = enter(g);
    rc = rc ? rc
            : (int)cudaHostRegister(p, bytes, cudaHostRegisterPortable | cudaHostRegisterMapped);
    return rc ? forget(rc) : 0;
}

static void cuda_unpin(struct aq_gpu *g, void *p)
{
    if (!enter(g))
        cudaHostUnregister(p);
}

static enum cudaMemcpyKind kind_of(enum aq_gpu_copy way)
{
    static const enum cudaMemcpyKind map[] = {
        [AQ_GPU_H2D] = cudaMemcpyHostToDevice,
        [AQ_GPU_D2H] = cudaMemcpyDeviceToHost,
        [AQ_GPU_D2D] = cudaMemcpyDeviceToDevice,
        [AQ_GPU_H2H] = cudaMemcpyHostToHost,
    };
    return map[way];
}

static int cuda_copy_now(struct aq_gpu *g, void *dst, const void *src, size_t bytes,
                         enum aq_gpu_copy way)
{
    int rc = enter(g);
    rc = rc ? rc : (int)cudaMemcpy(dst, src, bytes, kind_of(way));
    /* From pageable memory it may return with the last bytes still on their way. */
    return rc ? rc : (int)cudaStreamSynchronize(NULL);
}

static int cuda_stream_open(struct aq_gpu *g, void **ret, bool first)
{
    cudaStream_t s;
    int rc = enter(g), last_priority = 0, first_priority = 0;
    rc = rc ? rc : (int)cudaDeviceGetStreamPriorityRange(&last_priority, &first_priority);
    rc = rc ? rc
            : (int)cudaStreamCreateWithPriority(&s, cudaStreamNonBlocking,
                                                first ? first_priority : last_priority);
    if (!rc)
        *ret = s;
    return rc;
}

static void cuda_stream_close(struct aq_gpu *g, void *stream)
{
    if (!enter(g))
        cudaStreamDestroy(stream);
}

static int cuda_copy(struct aq_gpu *g, void *stream, void *dst, const void *src, size_t bytes,
                     enum aq_gpu_copy way)
{
    int rc = enter(g);
    return rc ? rc : (int)cudaMemcpyAsync(dst, src, bytes, kind_of(way), stream);
}

/* Only this thread's calls are captured, or forbidden: others wait for events meanwhile. */
static int cuda_capture_begin(struct aq_gpu *g, void *stream)
{
    int rc = enter(g);
    rc = rc ? rc : (int)cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
    return rc ? forget(rc) : 0;
}

static int cuda_capture_end(struct aq_gpu *g, void *stream, void **ret_graph)
{
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    int rc = enter(g);
    rc = rc ? rc : (int)cudaStreamEndCapture(stream, &graph);
    rc = rc ? rc : (int)cudaGraphInstantiate(&exec, graph, 0);
    if (graph)
        cudaGraphDestroy(graph);
    if (!rc)
        *ret_graph = exec;
    return forget(rc); /* also of what failed in between: a library need not have asked */
}

static int cuda_graph_launch(struct aq_gpu *g, void *graph, void *stream)
{
    int rc = enter(g);
    return rc ? rc : (int)cudaGraphLaunch(graph, stream);
}

static void cuda_graph_close(struct aq_gpu *g, void *graph)
{
    if (!enter(g))
        cudaGraphExecDestroy(graph);
}

static int cuda_event_open(struct aq_gpu *g, void **ret)
{
    cudaEvent_t e;
    int rc = enter(g);
    rc = rc ? rc : (int)cudaEventCreateWithFlags(&e, cudaEventBlockingSync);
    if (!rc)
        *ret = e;
    return rc;
}

static void cuda_event_close(struct aq_gpu *g, void *event)
{
    if (!enter(g))
        cudaEventDestroy(event);
}

static int cuda_record(struct aq_gpu *g, void *event, void *stream)
{
    int rc = enter(g);
    return rc ? rc : (int)cudaEventRecord(event, stream);
}

static int cuda_follow(struct aq_gpu *g, void *stream, void *event)
{
    int rc = enter(g);
    return rc ? rc : (int)cudaStreamWaitEvent(stream, event, 0);
}

static int cuda_wait(struct aq_gpu *g, void *event)
{
    int rc = enter(g);
    return rc ? rc : (int)cudaEventSynchronize(event);
}

static int cuda_elapsed(struct aq_gpu *g, uint64_t *ret_ns, void *from, void *to)
{
    float ms = 0;
    int rc = enter(g);
    rc = rc ? rc : (int)cudaEventElapsedTime(&ms, from, to);
    *ret_ns = ms > 0 ? (uint64_t)((double)ms * 1e6) : 0;
    return rc;
}

const struct aq_gpu_ops aq_gpu_cuda = {
    .count = cuda_count,
    .error_text = cuda_error_text,
    .open = cuda_open,
    .close = cuda_close,
    .memory = cuda_memory,
    .take = cuda_take,
    .give = cuda_give,
    .pin = cuda_pin,
    .unpin = cuda_unpin,
    .copy_now = cuda_copy_now,
    .stream_open = cuda_stream_open,
    .stream_close = cuda_stream_close,
    .copy = cuda_copy,
    .capture_begin = cuda_capture_begin,
    .capture_end = cuda_capture_end,
    .graph_launch = cuda_graph_launch,
    .graph_close = cuda_graph_close,
    .event_open = cuda_event_open,
    .event_close = cuda_event_close,
    .record = cuda_record,
    .follow = cuda_follow,
    .wait = cuda_wait,
    .elapsed = cuda_elapsed,
};
