/* SPDX-License-Identifier: Apache-2.0
 * offload/gpu.h - what offload/device_gpu.c needs of a GPU, as a table of functions, so that the
 * program starts, and is tested, where there is no driver: gpu_cuda.c fills it in, in a module that
 * is loaded on demand.  Knows neither the ledger nor what bytes mean.
 *
 * Functions that can fail return 0 or a positive code of the driver, which error_text explains.
 * Handles are the driver's.  All may be called from any thread. */
#ifndef AQ_OFFLOAD_GPU_H
#define AQ_OFFLOAD_GPU_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct aq_gpu;

struct aq_gpu_info {
    char name[256];
    uint64_t total_bytes, free_bytes; /* now; free after context_bytes were taken */
    uint64_t context_bytes;           /* what the driver and its libraries hold, at most */
    uint32_t sm;                      /* compute capability times ten: 75, 80, 90 */
    uint32_t multiprocessors;
    bool host_addresses; /* kernels use the host's addresses of pinned memory */
    int numa_node;       /* of the host, nearest to the GPU; -1: unknown */
};

enum aq_gpu_copy { AQ_GPU_H2D, AQ_GPU_D2H, AQ_GPU_D2D, AQ_GPU_H2H };

struct aq_gpu_ops {
    /* How many GPUs can be used; versions as 1000 * major + 10 * minor, 0 where there is no driver.
     * *ret_count is 0 where it fails. */
    int (*count)(uint32_t *ret_count, uint32_t *ret_driver, uint32_t *ret_runtime);
    const char *(*error_text)(int code);

    int (*open)(struct aq_gpu **ret, uint32_t index, struct aq_gpu_info *info);
    void (*close)(struct aq_gpu *g);
    int (*memory)(struct aq_gpu *g, uint64_t *ret_free, uint64_t *ret_total);

    /* Device memory, zeroed. */
    int (*take)(struct aq_gpu *g, void **ret, size_t bytes);
    void (*give)(struct aq_gpu *g, void *p);
    /* Makes host memory one that copies go to and from at full speed, without the host waiting, and
     * that kernels may read and write at its own address. */
    int (*pin)(struct aq_gpu *g, void *p, size_t bytes);
    void (*unpin)(struct aq_gpu *g, void *p);
    /* Returns when the bytes are there. */
    int (*copy_now)(struct aq_gpu *g, void *dst, const void *src, size_t bytes,
                    enum aq_gpu_copy way);

    int (*stream_open)(struct aq_gpu *g, void **ret);
    void (*stream_close)(struct aq_gpu *g, void *stream);
    int (*copy)(struct aq_gpu *g, void *stream, void *dst, const void *src, size_t bytes,
                enum aq_gpu_copy way);

    /* What is put into the stream between the two is not done, but becomes a graph, which does all
     * of it, as often as it is launched, at the price of one launch.  Where the first succeeds the
     * second has to follow, also when something in between has failed: then it fails, or makes a
     * graph of what got there, which is closed and not launched. */
    int (*capture_begin)(struct aq_gpu *g, void *stream);
    int (*capture_end)(struct aq_gpu *g, void *stream, void **ret_graph);
    int (*graph_launch)(struct aq_gpu *g, void *graph, void *stream);
    /* Also while it runs: then it goes when it is over. */
    void (*graph_close)(struct aq_gpu *g, void *graph);

    /* An event is over when everything that was in the stream when it was recorded is. */
    int (*event_open)(struct aq_gpu *g, void **ret);
    void (*event_close)(struct aq_gpu *g, void *event);
    int (*record)(struct aq_gpu *g, void *event, void *stream);
    /* What is put into the stream from now on starts when the event is over. */
    int (*follow)(struct aq_gpu *g, void *stream, void *event);
    /* Sleeps until the event is over. */
    int (*wait)(struct aq_gpu *g, void *event);
    /* Of two events that are over. */
    int (*elapsed)(struct aq_gpu *g, uint64_t *ret_ns, void *from, void *to);
};

#endif
