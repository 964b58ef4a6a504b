/* SPDX-License-Identifier: Apache-2.0
 * Compares bytes that come from a disk with their checksums: weights with those of the store,
 * scratch with those of the last write.  Runs in the disk lane's thread for checks; in virtual time
 * in the only thread. */
#include "engine/exec/exec.h"

#include "offload/sum.h"

#include <assert.h>
#include <stdlib.h>

#define SUMS "scratch sums"

static uint64_t scratch_runs(const struct aq_executor *x)
{
    return aq_kv_disk_bytes(x->kv) / aq_kv_run_stride(x->kv);
}

static int check_weights(const struct aq_executor *x, const struct aq_op *op,
                         const struct aq_disk_group *g, struct aq_err *reterr)
{
    const struct aq_chunk *chunk = &x->stream->chunk[op->chunk];
    int rc = 0;
    for (uint32_t i = 0; rc == 0 && i < g->count; i++) {
        const struct aq_piece *p = &x->stream->piece[chunk->piece_first + i];
        const struct aq_weight *w =
            &x->opts.model->weight[aq_matrix_index(x->steps, op->step, p->matrix)];
        rc = aq_store_check_tiles(x->opts.store, w->item, p->first, p->count,
                                  g->transfer[i].t.buffer, reterr);
    }
    return rc;
}

/* Sums are kept in the order of places on disk: one for each run of KV, and one for each
 * micro-batch's hidden states.  A range that is read was written whole before, by an op that the
 * read waits for. */
static int check_part(struct aq_executor *x, const struct aq_transfer *t, uint64_t sum_index,
                      uint64_t at, uint64_t bytes, struct aq_err *reterr)
{
    uint64_t found = aq_sum((const char *)t->buffer + at, bytes);
    uint64_t *sum = &x->scratch_sum[sum_index];
    if (t->op == AQ_IO_WRITE)
        *sum = found;
    if (*sum == found)
        return 0;
    return aq_error(reterr, -EIO,
                    "scratch on disk: %llu bytes from %llu on are not what was written there: "
                    "expected xxh3 %016llx, found %016llx; the disk, its cable or memory is at "
                    "fault: run again with --disk-dir on another disk",
                    (unsigned long long)bytes, (unsigned long long)(t->offset + at),
                    (unsigned long long)*sum, (unsigned long long)found);
}

static int check_scratch(struct aq_executor *x, const struct aq_op *op,
                         const struct aq_disk_group *g, struct aq_err *reterr)
{
    uint64_t run = aq_kv_run_stride(x->kv);
    int rc = 0;
    for (uint32_t i = 0; rc == 0 && i < g->count; i++) {
        const struct aq_transfer *t = &g->transfer[i].t;
        if (op->object == AQ_OBJECT_HIDDEN)
            rc = check_part(x, t, scratch_runs(x) + op->micro_batch, 0, t->bytes, reterr);
        assert(op->object == AQ_OBJECT_HIDDEN || (t->offset % run == 0 && t->bytes % run == 0));
        for (uint64_t at = 0; rc == 0 && op->object == AQ_OBJECT_KV && at < t->bytes; at += run)
            rc = check_part(x, t, (t->offset + at) / run, at, run, reterr);
    }
    return rc;
}

static int check_group(void *user, const struct aq_disk_group *g, struct aq_err *reterr)
{
    struct aq_executor *x = user;
    const struct aq_op *op = &x->program->op[g->token];
    return op->object == AQ_OBJECT_WEIGHTS ? check_weights(x, op, g, reterr)
                                           : check_scratch(x, op, g, reterr);
}

static size_t sums_bytes(const struct aq_executor *x)
{
    return (scratch_runs(x) + x->plan->shape.micro_batches) * sizeof(*x->scratch_sum);
}

int exec_check_open(struct aq_executor *x, struct aq_disk_check *ret, struct aq_err *reterr)
{
    if (x->opts.verify == AQ_VERIFY_OFF)
        return 0;
    x->checked = calloc(x->stream->chunk_count + 1ul, sizeof(*x->checked));
    if (!x->checked)
        return aq_error_memory(reterr, "checksums of %u chunks", x->stream->chunk_count);
    void *sums = NULL;
    int rc = 0;
    if (x->opts.verify == AQ_VERIFY_ALWAYS)
        rc = aq_device_alloc(&sums, x->opts.device, AQ_MEMORY_HOST, SUMS, sums_bytes(x), reterr);
    x->scratch_sum = sums;
    if (rc < 0)
        return rc;
    *ret = (struct aq_disk_check){check_group, x};
    return 0;
}

void exec_check_close(struct aq_executor *x)
{
    free(x->checked);
    if (x->scratch_sum)
        aq_device_free(x->opts.device, AQ_MEMORY_HOST, SUMS, x->scratch_sum, sums_bytes(x));
}

bool exec_check_wanted(struct aq_executor *x, const struct aq_op *op)
{
    if (op->object != AQ_OBJECT_WEIGHTS)
        return x->opts.verify == AQ_VERIFY_ALWAYS;
    if (x->opts.verify == AQ_VERIFY_OFF ||
        (x->opts.verify == AQ_VERIFY_ONCE && x->checked[op->chunk]))
        return false;
    /* The chunk is read again only after this check has ended. */
    x->checked[op->chunk] = true;
    return true;
}
