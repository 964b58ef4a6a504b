/* SPDX-License-Identifier: Apache-2.0
 * Ops that follow each other on a GPU without the host; and bundles: consecutive ops of the compute
 * lane that no other lane waits for, put on the stream as one entry.  A bundle has one pair of
 * events, one report and one copy of its arguments; and if the same launches came before, it is one
 * graph (engine/compute/cuda_graph.h).
 *
 * A bundle ends behind an op that another lane waits for, so that no lane waits longer than without
 * bundles; in front of an op that waits for another lane; and where its desks are full. */
#include "engine/exec/exec.h"

#include <assert.h>
#include <stdlib.h>

bool exec_lanes_chain(const struct aq_executor *x, enum aq_lane l, enum aq_lane other, bool work)
{
    const struct aq_device_stream *s = x->lane[l].stream, *t = x->lane[other].stream;
    return x->opts.cuda && !x->opts.serial && s && t && (work || l == other) &&
           aq_device_chains(s, t);
}

bool exec_follow_deps(struct aq_executor *x, const struct aq_op *op, uint64_t pass, bool look)
{
    const struct aq_dep *dep = aq_op_deps(x->program, op);
    struct exec_lane *lane = &x->lane[op->lane];
    bool any = false;
    for (uint32_t i = 0; i < op->dep_count; i++) {
        enum aq_lane other = (enum aq_lane)x->program->op[dep[i].op].lane;
        if (other == (enum aq_lane)op->lane ||
            !exec_lanes_chain(x, (enum aq_lane)op->lane, other, true) ||
            x->done[dep[i].op] + dep[i].back >= pass + 1)
            continue;
        any = true;
        if (!look)
            aq_device_follow(lane->stream, x->lane[other].stream, x->ticket[dep[i].op]);
    }
    return any;
}

int exec_bundle_open(struct aq_executor *x, struct aq_err *reterr)
{
    const struct aq_program *p = x->program;
    /* A trace has the time of each op, so there are no bundles with a trace. */
    x->bundles = x->opts.cuda && !x->opts.serial && !x->opts.trace;
    x->watched = calloc(p->op_count, sizeof(*x->watched));
    if (!x->watched)
        return aq_error_memory(reterr, "executor of %u ops", p->op_count);
    for (uint32_t i = 0; i < p->op_count; i++) {
        const struct aq_dep *dep = aq_op_deps(p, &p->op[i]);
        for (uint32_t n = 0; n < p->op[i].dep_count; n++)
            x->watched[dep[n].op] |= p->op[dep[n].op].lane != p->op[i].lane;
    }
    return 0;
}

void exec_bundle_close(struct aq_executor *x)
{
    free(x->watched);
}

/* Desks that the op may fill: one, if its launches have arrays as arguments. */
static uint32_t desks_of(const struct aq_executor *x, uint32_t op_index)
{
    const struct aq_op *op = &x->program->op[op_index];
    bool described =
        op->kind == AQ_OP_EMBED || op->kind == AQ_OP_ATTN_PREFILL || op->kind == AQ_OP_ATTN_DEVICE;
    return described && aq_op_has_work(op, &x->cost[op_index]);
}

bool exec_bundle_takes(struct aq_executor *x, uint32_t op_index, uint64_t pass)
{
    const struct exec_bundle *b = &x->bundle;
    const struct aq_op *op = &x->program->op[op_index];
    return b->count > 0 && b->count < AQ_EXEC_BUNDLE_MAX && op->kind != AQ_OP_HEAD &&
           b->desks + desks_of(x, op_index) <= AQ_GPU_BUNDLE_DESKS &&
           !exec_follow_deps(x, op, pass, true);
}

bool exec_bundle_add(struct aq_executor *x, uint32_t op_index)
{
    struct exec_bundle *b = &x->bundle;
    assert(b->count < AQ_EXEC_BUNDLE_MAX);
    b->op[b->count++] = op_index;
    b->desks += desks_of(x, op_index);
    x->issued[op_index]++;
    return x->watched[op_index] || b->count == AQ_EXEC_BUNDLE_MAX;
}

static int enqueue(void *arg, void *native)
{
    struct aq_executor *x = arg;
    return exec_enqueue(x, x->bundle.op, x->bundle.count, true, native);
}

int exec_bundle_send(struct aq_executor *x)
{
    struct exec_bundle *b = &x->bundle;
    struct aq_device_stream *stream = x->lane[AQ_LANE_COMPUTE].stream;
    if (!b->count)
        return 0;
    struct aq_device_job job = {
        .fn = enqueue,
        .arg = x,
        .token = b->op[0],
        .done = x->completions,
        .span = &x->job[b->op[0]].span,
    };
    int rc = aq_device_run(stream, &job);
    for (uint32_t i = 0; i < b->count; i++)
        x->ticket[b->op[i]] = aq_device_mark(stream);
    b->count = b->desks = 0;
    return rc;
}
