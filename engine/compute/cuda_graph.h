/* SPDX-License-Identifier: Apache-2.0
 * engine/compute/cuda_graph.h - launches that are noted instead of made, and made together at the
 * end: a list that comes again, to the bit, is a graph from then on, which costs the host one call
 * however long it is.  Lists are known by a hash of 128 bits, as many as a pass has; of one or two
 * launches none is made a graph.  Knows kernels and streams, not what they are
 * for.  One thread at a time. */
#ifndef AQ_ENGINE_COMPUTE_CUDA_GRAPH_H
#define AQ_ENGINE_COMPUTE_CUDA_GRAPH_H

#include "engine/compute/cuda.h"

struct aq_cuda_record;

struct aq_cuda_record_opts {
    const struct aq_cuda *cuda;
    uint32_t launches_max;   /* of a list; 0: as many as is usual */
    uint32_t pass_lists_max; /* that come one after the other before one comes again; 0: as usual */
    uint64_t graphs_bytes;   /* once graphs have taken more of the GPU's memory, no more are made */
};

/* Graphs that there are, and the GPU's memory that they took.  full: a list was not made one,
 * because graphs had taken all that they may. */
struct aq_cuda_graphs {
    uint32_t count;
    uint64_t bytes;
    bool full;
};

int aq_cuda_record_open(struct aq_cuda_record **ret, const struct aq_cuda_record_opts *opts,
                        struct aq_err *reterr);
/* Nothing runs any more.  NULL is fine. */
void aq_cuda_record_close(struct aq_cuda_record *r);

struct aq_cuda_graphs aq_cuda_record_graphs(const struct aq_cuda_record *r);

/* Nothing is noted. */
void aq_cuda_record_clear(struct aq_cuda_record *r);
/* Notes a launch: a copy of the kernel's struct.  What that points to has to be there when it is
 * launched.  op: a number that a failure is told with.  False: there is no room for another; what
 * is noted has to be launched first. */
bool aq_cuda_record_add(struct aq_cuda_record *r, enum aq_cuda_kernel kernel, const void *params,
                        uint32_t op);
/* Puts all that is noted on the stream, in order; `again`: it may be looked up, and become a graph.
 * 0, or a code for aq_cuda_error_text(): then *ret_what names the kernel and *ret_op its op. */
int aq_cuda_record_launch(struct aq_cuda_record *r, const struct aq_cuda_exec *ex, bool again,
                          const char **ret_what, uint32_t *ret_op);

#endif
