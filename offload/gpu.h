/* SPDX-License-Identifier: Apache-2.0
 * offload/gpu.h - a GPU as a table of functions, so that the program starts, and is tested, where
 * there is no driver: gpu_cuda.c fills the table, in a module that is loaded on demand, and
 * offload/device_gpu.c calls it.  Knows neither the ledger nor the meaning of bytes.
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
    uint64_t context_bytes;           /* most bytes that driver and libraries hold */
    uint32_t sm;                      /* compute capability times ten: 75, 80, 90 */
    uint32_t code_sm;                 /* that of the kernels' code; whoever knows them sets it */
    uint32_t multiprocessors;
    bool host_addresses; /* kernels use the host's addresses of pinned memory */
    int numa_node;       /* of the host, nearest to the GPU; -1: unknown */
};

enum aq_gpu_copy { AQ_GPU_H2D, AQ_GPU_D2H, AQ_GPU_D2D, AQ_GPU_H2H };

struct aq_gpu_ops {
    /* Number of usable GPUs; versions as 1000 * major + 10 * minor, 0 where there is no driver.  On
     * failure *ret_count is 0. */
    int (*count)(uint32_t *ret_count, uint32_t *ret_driver, uint32_t *ret_runtime);
    const char *(*error_text)(int code);

    int (*open)(struct aq_gpu **ret, uint32_t index, struct aq_gpu_info *info);
    void (*close)(struct aq_gpu *g);
    int (*memory)(struct aq_gpu *g, uint64_t *ret_free, uint64_t *ret_total);

    /* Device memory, zeroed. */
    int (*take)(struct aq_gpu *g, void **ret, size_t bytes);
    void (*give)(struct aq_gpu *g, void *p);
    /* Pins host memory, so that copies run at full speed without the host waiting, and kernels may
     * read and write it at its own address. */
    int (*pin)(struct aq_gpu *g, void *p, size_t bytes);
    void (*unpin)(struct aq_gpu *g, void *p);
    /* Returns when the bytes are there. */
    int (*copy_now)(struct aq_gpu *g, void *dst, const void *src, size_t bytes,
                    enum aq_gpu_copy way);

    /* first: its kernels begin before what others have in their streams and not begun. */
    int (*stream_open)(struct aq_gpu *g, void **ret, bool first);
    void (*stream_close)(struct aq_gpu *g, void *stream);
    int (*copy)(struct aq_gpu *g, void *stream, void *dst, const void *src, size_t bytes,
                enum aq_gpu_copy way);

    /* Work put into the stream between begin and end does not run, but becomes a graph: a launch of
     * the graph does all the work at the price of one launch.  After a begin that succeeded, end
     * must follow, even if a call in between failed: end then fails too, or returns a graph of a
     * part of the work, to be closed and not launched. */
    int (*capture_begin)(struct aq_gpu *g, void *stream);
    int (*capture_end)(struct aq_gpu *g, void *stream, void **ret_graph);
    int (*graph_launch)(struct aq_gpu *g, void *graph, void *stream);
    /* May be called while the graph runs, which is then freed at its end. */
    void (*graph_close)(struct aq_gpu *g, void *graph);

    /* An event is over when all work in the stream before its record is over. */
    int (*event_open)(struct aq_gpu *g, void **ret);
    void (*event_close)(struct aq_gpu *g, void *event);
    int (*record)(struct aq_gpu *g, void *event, void *stream);
    /* Work put into the stream from now on starts when the event is over. */
    int (*follow)(struct aq_gpu *g, void *stream, void *event);
    /* Sleeps until the event is over. */
    int (*wait)(struct aq_gpu *g, void *event);
    /* Nanoseconds between two events that are over. */
    int (*elapsed)(struct aq_gpu *g, uint64_t *ret_ns, void *from, void *to);
};

#endif
