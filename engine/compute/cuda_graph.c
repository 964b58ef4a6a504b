/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/compute/cuda_graph.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum {
    LAUNCHES_MAX = 512,
    LAUNCHES_MIN = 3, /* fewer cost about what a graph does */
    KNOWN_MIN = 128,
    KNOWN_MAX = 1024, /* each may hold some of the driver's memory */
};

/* The largest arguments of a kernel. */
union params {
#define MEMBER(name, params) struct params name;
    AQ_CUDA_KERNELS(MEMBER)
#undef MEMBER
};

/* A launch with its arguments, which have no holes; the rest of the room is zero.  Lists are
 * compared by their bytes. */
struct launch {
    uint32_t kernel, op;
    union params params;
};

/* A list that was there before. */
struct known {
    XXH128_hash_t hash;
    uint64_t used;  /* when it came last; 0: no list */
    void *graph;    /* NULL: it came once */
    bool launched;  /* the graph has been */
    bool unwilling; /* it cannot be captured */
    uint64_t bytes; /* of the GPU's memory, that the driver took for the graph */
};

struct aq_cuda_record {
    struct aq_cuda_record_opts opts;
    const struct aq_cuda_kernels *kernels;
    struct launch *list;
    uint32_t count;
    uint64_t now,
        far; /* lists that came; a list that has not come for more than `far` is forgotten */
    uint32_t known_max;
    struct known *known;
    struct aq_cuda_graphs graphs;
};

bool aq_cuda_record_add(struct aq_cuda_record *r, enum aq_cuda_kernel kernel, const void *params,
                        uint32_t op)
{
    if (r->count == r->opts.launches_max)
        return false;
    struct launch *l = &r->list[r->count++];
    memset(l, 0, sizeof(*l));
    l->kernel = kernel;
    l->op = op;
    memcpy(&l->params, params, aq_cuda_kernel_bytes(kernel));
    return true;
}

/* ---- launching --------------------------------------------------------------------------- */

/* One after the other. */
static int launch_all(const struct aq_cuda_record *r, const struct aq_cuda_exec *ex,
                      const char **ret_what, uint32_t *ret_op)
{
    for (uint32_t i = 0; i < r->count; i++) {
        const struct launch *l = &r->list[i];
        int rc = aq_cuda_launch(r->kernels, ex, l->kernel, &l->params);
        if (rc) {
            *ret_what = aq_cuda_kernel_name(l->kernel);
            *ret_op = l->op;
            return rc;
        }
    }
    return 0;
}

/* ---- graphs ------------------------------------------------------------------------------ */

/* The list as it was known, or the place that it gets; NULL: there is none.  Lists come in turn,
 * all of a pass before the first one comes again: where they are more than there is room for,
 * whoever made room for each by what came longest ago would know none of them again.  So what was
 * there stays, unless it has not come for longer than two passes, and lists that came once replace
 * each other. */
static struct known *look_up(const struct aq_cuda_record *r, XXH128_hash_t hash)
{
    struct known *oldest = &r->known[0], *newest = NULL;
    for (uint32_t i = 0; i < r->known_max; i++) {
        struct known *n = &r->known[i];
        if (n->used && XXH128_isEqual(n->hash, hash))
            return n;
        if (n->used < oldest->used)
            oldest = n;
        if (!n->graph && !n->unwilling && (!newest || n->used > newest->used))
            newest = n;
    }
    return !oldest->used || r->now - oldest->used > r->far ? oldest : newest;
}

static void drop(struct aq_cuda_record *r, struct known *n)
{
    if (n->graph) {
        r->opts.cuda->module->gpu->graph_close(r->opts.cuda->gpu, n->graph);
        r->graphs.bytes -= n->bytes;
        r->graphs.count--;
    }
    *n = (struct known){0};
}

static uint64_t free_now(const struct aq_cuda_record *r)
{
    uint64_t free_bytes = 0, total;
    int rc = r->opts.cuda->module->gpu->memory(r->opts.cuda->gpu, &free_bytes, &total);
    return rc ? 0 : free_bytes;
}

/* The graph has what the GPU has lost since then.  The driver takes memory when one is made, and
 * when it is launched first; what is lost in between is others': kernels that are loaded,
 * processes. */
static void charge(struct aq_cuda_record *r, struct known *n, uint64_t free_before)
{
    uint64_t now = free_now(r), lost = free_before > now ? free_before - now : 0;
    n->bytes += lost;
    r->graphs.bytes += lost;
}

/* A list that cannot be captured is launched op by op. */
static void capture(struct aq_cuda_record *r, const struct aq_cuda_exec *ex, struct known *n)
{
    const struct aq_gpu_ops *ops = r->opts.cuda->module->gpu;
    const char *what;
    uint32_t op;
    void *graph = NULL;
    if (r->graphs.bytes > r->opts.graphs_bytes) {
        r->graphs.full = true;
        return;
    }
    uint64_t free_before = free_now(r);
    int rc = ops->capture_begin(r->opts.cuda->gpu, ex->stream);
    if (!rc) {
        int failed = launch_all(r, ex, &what, &op);
        rc = ops->capture_end(r->opts.cuda->gpu, ex->stream, &graph);
        if (!rc && failed)
            ops->graph_close(r->opts.cuda->gpu, graph);
        rc = rc ? rc : failed;
    }
    n->graph = rc ? NULL : graph;
    n->unwilling = rc;
    if (!n->graph)
        return;
    r->graphs.count++;
    charge(r, n, free_before);
}

static int launch_graph(struct aq_cuda_record *r, const struct aq_cuda_exec *ex, struct known *n)
{
    bool first = !n->launched;
    uint64_t free_before = first ? free_now(r) : 0;
    int rc = r->opts.cuda->module->gpu->graph_launch(r->opts.cuda->gpu, n->graph, ex->stream);
    n->launched = true;
    if (first)
        charge(r, n, free_before);
    return rc;
}

int aq_cuda_record_launch(struct aq_cuda_record *r, const struct aq_cuda_exec *ex, bool again,
                          const char **ret_what, uint32_t *ret_op)
{
    if (!again || r->count < LAUNCHES_MIN)
        return launch_all(r, ex, ret_what, ret_op);
    XXH128_hash_t hash = XXH3_128bits(r->list, r->count * sizeof(*r->list));
    struct known *n = look_up(r, hash);
    r->now++;
    if (n && !(n->used && XXH128_isEqual(n->hash, hash))) {
        drop(r, n);
        n->hash = hash;
    } else if (n && !n->graph && !n->unwilling) {
        capture(r, ex, n);
    }
    if (n)
        n->used = r->now;
    if (!n || !n->graph)
        return launch_all(r, ex, ret_what, ret_op);
    *ret_what = "cudaGraphLaunch";
    *ret_op = r->list[0].op;
    return launch_graph(r, ex, n);
}

struct aq_cuda_graphs aq_cuda_record_graphs(const struct aq_cuda_record *r)
{
    return r->graphs;
}

/* ---- open and close ---------------------------------------------------------------------- */

void aq_cuda_record_clear(struct aq_cuda_record *r)
{
    r->count = 0;
}

int aq_cuda_record_open(struct aq_cuda_record **ret, const struct aq_cuda_record_opts *opts,
                        struct aq_err *reterr)
{
    struct aq_cuda_record *r = calloc(1, sizeof(*r));
    uint32_t most = opts->launches_max ? opts->launches_max : LAUNCHES_MAX;
    uint32_t known = (uint32_t)aq_min_u64(aq_max_u64(opts->pass_lists_max, KNOWN_MIN), KNOWN_MAX);
    if (r) {
        r->list = calloc(most, sizeof(*r->list));
        r->known = calloc(known, sizeof(*r->known));
    }
    if (!r || !r->list || !r->known) {
        aq_cuda_record_close(r);
        return aq_error_memory(reterr, "GPU");
    }
    r->opts = *opts;
    r->opts.launches_max = most;
    r->known_max = known;
    r->far = 2 * aq_max_u64(opts->pass_lists_max, known);
    r->kernels = opts->cuda->module->kernels;
    *ret = r;
    return 0;
}

void aq_cuda_record_close(struct aq_cuda_record *r)
{
    if (!r)
        return;
    for (uint32_t i = 0; r->known && i < r->known_max; i++)
        drop(r, &r->known[i]);
    free(r->known);
    free(r->list);
    free(r);
}
