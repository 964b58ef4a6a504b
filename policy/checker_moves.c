/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/checker_form.h"

#include <stdlib.h>

struct route {
    const struct aq_use *from, *to; /* from: NULL for weights at home, which have no slot there */
};

/* Is the object that arrives the one that left?  Parts may differ, as q k v leave the device a part
 * at a time. */
static bool same_thing(const struct aq_tag *a, const struct aq_tag *b)
{
    return a->object == b->object && a->pass == b->pass && a->micro_batch == b->micro_batch &&
           (a->part == b->part || a->object == AQ_OBJECT_QKV) && a->index == b->index;
}

/* Does a move of this kind go between these tiers? */
static bool tiers_fit(uint8_t kind, uint8_t from, uint8_t to)
{
    switch ((enum aq_op_kind)kind) {
    case AQ_OP_READ: return from == AQ_DISK && to != AQ_DISK;
    case AQ_OP_WRITE: return from != AQ_DISK && to == AQ_DISK;
    case AQ_OP_H2D: return from == AQ_HOST && to == AQ_DEVICE;
    default: return from == AQ_DEVICE && to == AQ_HOST;
    }
}

/* Rows for a product on the host: all rows of the register that its op reads first. */
static int check_input(const struct aq_program *p, uint32_t i, const struct aq_use *to,
                       struct aq_err *reterr)
{
    const struct aq_op *op = &p->op[i];
    enum aq_object from = op->of == AQ_OP_POST       ? AQ_OBJECT_ATTENTION
                          : op->of == AQ_OP_MLP_DOWN ? AQ_OBJECT_INNER
                                                     : AQ_OBJECT_HIDDEN;
    uint32_t found = 0;
    for (uint32_t u = 0; u < op->use_count; u++) {
        const struct aq_use *use = &aq_op_uses(p, op)[u];
        if (use == to)
            continue;
        if (use->mode != AQ_USE_READ || use->need.object != from || use->need.pass != 0 ||
            p->slot[use->slot].tier != AQ_DEVICE)
            return aq_check_fault(p, i, reterr, "it takes what the product does not start from");
        found++;
    }
    if (found != (from == AQ_OBJECT_ATTENTION ? p->parts : 1))
        return aq_check_fault(p, i, reterr, "it does not take all that the product starts from");
    if (!to || to->mode != AQ_USE_WRITE || to->leave.object != AQ_OBJECT_INPUT ||
        to->leave.pass != 0 || p->slot[to->slot].tier != AQ_HOST)
        return aq_check_fault(p, i, reterr, "it does not leave a product's input on the host");
    return 0;
}

/* A move writes one slot and reads at most one. */
static int find_route(struct route *ret, const struct aq_program *p, uint32_t i,
                      struct aq_err *reterr)
{
    const struct aq_op *op = &p->op[i];
    struct route r = {0};
    if (op->object == AQ_OBJECT_INPUT) { /* from the slots of all parts at once */
        for (uint32_t u = 0; u < op->use_count; u++) {
            const struct aq_use *use = &aq_op_uses(p, op)[u];
            r.to = use->mode == AQ_USE_WRITE ? use : r.to;
        }
        *ret = r;
        return check_input(p, i, r.to, reterr);
    }
    for (uint32_t u = 0; u < op->use_count; u++) {
        const struct aq_use *use = &aq_op_uses(p, op)[u];
        const struct aq_use **end = use->mode == AQ_USE_READ ? &r.from : &r.to;
        if (*end)
            return aq_check_fault(p, i, reterr,
                                  "a move has one slot to take from and one to leave in");
        *end = use;
    }
    if (!r.to || (!r.from && op->object != AQ_OBJECT_WEIGHTS))
        return aq_check_fault(p, i, reterr, "a move has a slot to take from and one to leave in");
    if (r.to->leave.object != op->object || (r.from && !same_thing(&r.from->need, &r.to->leave)))
        return aq_check_fault(p, i, reterr,
                              "a move leaves what it took, and that is what it is named after");
    if (op->kind == AQ_OP_D2H && op->object == AQ_OBJECT_KV && r.to->mode != AQ_USE_UPDATE)
        return aq_check_fault(p, i, reterr, "what the device added to kv joins what is there");
    uint8_t to = p->slot[r.to->slot].tier;
    uint8_t home = op->kind == AQ_OP_READ ? AQ_DISK : AQ_HOST;
    if (!tiers_fit(op->kind, r.from ? p->slot[r.from->slot].tier : home, to))
        return aq_check_fault(p, i, reterr, "it moves between other tiers than its kind says");
    *ret = r;
    return 0;
}

static uint8_t class_of(const struct aq_program *p, const struct aq_use *use)
{
    return p->slot[use->slot].slot_class;
}

/* ---- chunks ---- */

struct loads {
    uint8_t *ring, *staged; /* [chunk]: how often */
    uint32_t count;
    uint64_t bytes;
};

/* Compares the move with the stream's entry for its chunk. */
static int check_chunk(const struct aq_program *p, uint32_t i, const struct route *r,
                       const struct aq_stream *stream, struct aq_err *reterr)
{
    const struct aq_op *op = &p->op[i];
    const struct aq_chunk *c = &stream->chunk[op->chunk];
    uint8_t to = class_of(p, r->to);
    bool from_disk = op->kind == AQ_OP_READ || r->from;
    if (op->bytes_max != c->bytes || c->bytes > p->slot[r->to->slot].bytes)
        return aq_check_fault(p, i, reterr,
                              "its bytes are not the chunk's, or its slot's are less");
    if (op->step != c->step || from_disk != (c->tier == AQ_DISK))
        return aq_check_fault(p, i, reterr, "its step or where it comes from is not the chunk's");
    if (r->to->slot - p->first[to] != (to == AQ_SLOT_RING ? c->slot : c->staging))
        return aq_check_fault(p, i, reterr, "its slot is not the chunk's");
    return 0;
}

static int check_load(struct loads *l, const struct aq_program *p, uint32_t i,
                      const struct route *r, const struct aq_check_opts *opts,
                      struct aq_err *reterr)
{
    const struct aq_op *op = &p->op[i];
    if (op->chunk >= l->count || r->to->leave.index != op->chunk)
        return aq_check_fault(p, i, reterr, "the chunk it leaves is not the one it is named after");
    bool to_ring = class_of(p, r->to) == AQ_SLOT_RING;
    bool to_staging = class_of(p, r->to) == AQ_SLOT_STAGING && op->kind == AQ_OP_READ;
    bool from_staging = r->from && class_of(p, r->from) == AQ_SLOT_STAGING;
    if ((!to_ring && !to_staging) || (r->from && !from_staging) || op->kind == AQ_OP_WRITE ||
        op->kind == AQ_OP_D2H)
        return aq_check_fault(p, i, reterr,
                              "weights move from home to the ring, at most by way of staging");
    uint8_t *times = to_ring ? &l->ring[op->chunk] : &l->staged[op->chunk];
    if (*times)
        return aq_check_fault(p, i, reterr, "the chunk was moved there before in this pass");
    *times = 1;
    l->bytes += to_ring ? op->bytes_max : 0;
    if (to_ring && from_staging != (bool)l->staged[op->chunk])
        return aq_check_fault(p, i, reterr, "a chunk that was staged comes from there, no other");
    return opts->stream ? check_chunk(p, i, r, opts->stream, reterr) : 0;
}

static int check_all(const struct aq_program *p, struct loads *l, const struct aq_check_opts *opts,
                     struct aq_err *reterr)
{
    for (uint32_t i = 0; i < p->op_count; i++) {
        const struct aq_op *op = &p->op[i];
        bool load = aq_op_is_move(op) && op->object == AQ_OBJECT_WEIGHTS;
        struct route r = {0};
        int rc = aq_op_is_move(op) ? find_route(&r, p, i, reterr) : 0;
        if (rc == 0 && load)
            rc = check_load(l, p, i, &r, opts, reterr);
        for (uint32_t u = 0; rc == 0 && u < op->use_count && !load; u++) {
            const struct aq_use *use = &aq_op_uses(p, op)[u];
            uint8_t c = class_of(p, use);
            if (use->mode != AQ_USE_READ && (c == AQ_SLOT_RING || c == AQ_SLOT_STAGING))
                rc = aq_check_fault(p, i, reterr, "only loads of weights write the ring");
        }
        if (rc < 0)
            return rc;
    }
    return 0;
}

/* The number of chunks: the stream's, or, without a stream, one more than the largest that an op
 * names.  A program has at most op_count chunks, so a larger number is out of range. */
static uint32_t count_chunks(const struct aq_program *p, const struct aq_stream *stream)
{
    uint32_t count = 0;
    if (stream)
        return stream->chunk_count;
    for (uint32_t i = 0; i < p->op_count; i++) {
        const struct aq_op *op = &p->op[i];
        if (aq_op_is_move(op) && op->object == AQ_OBJECT_WEIGHTS && op->chunk < p->op_count)
            count = op->chunk >= count ? op->chunk + 1 : count;
    }
    return count;
}

/* ---- what products need ---- */

static bool list_uses_matrix(const struct aq_prim_list *list, uint32_t matrix)
{
    for (uint32_t i = 0; i < list->count; i++) {
        const struct aq_prim *prim = &list->prim[i];
        for (uint32_t n = 0; prim->kind == AQ_PRIM_PRODUCT && n < prim->matrix_count; n++) {
            if (prim->matrix[n] == matrix)
                return true;
        }
    }
    return false;
}

static bool needs_chunk(const struct aq_check_opts *opts, const struct aq_op *op, uint32_t chunk)
{
    const struct aq_chunk *c = &opts->stream->chunk[chunk];
    const struct aq_step_desc *d = &opts->steps->step[op->step];
    if (c->step != op->step)
        return false;
    struct aq_prim_list room;
    const struct aq_prim_list *prims = aq_op_prims(&room, (enum aq_op_kind)op->kind, d);
    for (uint32_t i = 0; i < c->piece_count; i++) {
        uint32_t matrix = opts->stream->piece[c->piece_first + i].matrix;
        if (op->kind == AQ_OP_UNPACK || list_uses_matrix(prims, matrix))
            return true;
    }
    return false;
}

static bool reads_weights(const struct aq_program *p, const struct aq_op *op, uint8_t slot_class,
                          uint32_t index)
{
    for (uint32_t u = 0; u < op->use_count; u++) {
        const struct aq_use *use = &aq_op_uses(p, op)[u];
        if (use->mode == AQ_USE_READ && class_of(p, use) == slot_class &&
            use->need.object == AQ_OBJECT_WEIGHTS && use->need.index == index)
            return true;
    }
    return false;
}

static bool multiplies(const struct aq_op *op)
{
    return op->kind == AQ_OP_PRE || op->kind == AQ_OP_POST || op->kind == AQ_OP_MLP ||
           op->kind == AQ_OP_MLP_UP || op->kind == AQ_OP_MLP_DOWN || op->kind == AQ_OP_HEAD;
}

/* An op leaves its output PARTIAL exactly if the host computes some of its columns: then only MERGE
 * makes it whole, and flow shows that the columns have arrived before. */
static bool leaves_partial(const struct aq_program *p, const struct aq_op *op)
{
    for (uint32_t u = 0; u < op->use_count; u++) {
        const struct aq_use *use = &aq_op_uses(p, op)[u];
        if (use->mode != AQ_USE_READ && use->leave.object == AQ_OBJECT_PARTIAL)
            return true;
    }
    return false;
}

static bool shares_columns(const struct aq_check_opts *opts, const struct aq_op *op)
{
    const struct aq_step_desc *d = &opts->steps->step[op->step];
    struct aq_prim_list room;
    const struct aq_prim_list *prims = aq_op_prims(&room, (enum aq_op_kind)op->kind, d);
    for (uint32_t i = 0; i < d->matrix_count; i++) {
        if (opts->stream->split[aq_matrix_index(opts->steps, op->step, i)].on_host &&
            list_uses_matrix(prims, i))
            return true;
    }
    return false;
}

/* Does the op run primitives that need the micro-batch's rows?  Those behind a product with columns
 * of the host are MERGE's; a list that is shared so begins with its products. */
static bool needs_rows(const struct aq_program *p, const struct aq_check_opts *opts,
                       const struct aq_op *op)
{
    const struct aq_step_desc *d = &opts->steps->step[op->step];
    if (op->kind == AQ_OP_MERGE)
        return aq_op_reads_rows((enum aq_op_kind)op->of, d);
    return multiplies(op) && aq_op_reads_rows((enum aq_op_kind)op->kind, d) &&
           !leaves_partial(p, op);
}

static bool reads_rows(const struct aq_program *p, const struct aq_op *op)
{
    for (uint32_t u = 0; u < op->use_count; u++) {
        const struct aq_use *use = &aq_op_uses(p, op)[u];
        if (use->mode == AQ_USE_READ && use->need.object == AQ_OBJECT_ROWS)
            return true;
    }
    return false;
}

static int check_product(const struct aq_program *p, uint32_t i, const bool *unpacked,
                         const struct aq_check_opts *opts, struct aq_err *reterr)
{
    const struct aq_op *op = &p->op[i];
    if (op->step >= opts->steps->step_count)
        return aq_check_fault(p, i, reterr, "the model has no such step");
    if (needs_rows(p, opts, op) && !reads_rows(p, op))
        return aq_check_fault(p, i, reterr, "it does not read the rows that it works on");
    if (op->kind == AQ_OP_MERGE)
        return 0;
    if (multiplies(op) && leaves_partial(p, op) != shares_columns(opts, op))
        return aq_check_fault(p, i, reterr,
                              "what it leaves out and what the host computes are not the same");
    if (multiplies(op) && unpacked[op->step]) {
        if (!reads_weights(p, op, AQ_SLOT_UNPACKED, op->step))
            return aq_check_fault(p, i, reterr, "it does not read the weights that were unpacked");
        return 0;
    }
    const uint32_t *first = opts->stream->step_chunk;
    for (uint32_t c = first[op->step]; c < first[op->step + 1]; c++) {
        char who[160];
        aq_op_describe(who, sizeof(who), p, i);
        if (needs_chunk(opts, op, c) && !reads_weights(p, op, AQ_SLOT_RING, c))
            return aq_error(reterr, -EPROTO,
                            "program: %s: expected it to read weights chunk %u, found no use", who,
                            c);
    }
    return 0;
}

/* Every op with products reads all chunks of its matrices, or the step's unpacked weights; UNPACK
 * reads all chunks of the step.  Ops that turn q and k by their positions read these. */
static int check_products(const struct aq_program *p, const struct aq_check_opts *opts,
                          struct aq_err *reterr)
{
    uint32_t steps = opts->steps->step_count;
    bool *unpacked = calloc(steps + 1, sizeof(*unpacked));
    if (!unpacked)
        return aq_error_memory(reterr, "checker: a model of %u steps", steps);
    for (uint32_t i = 0; i < p->op_count; i++) {
        if (p->op[i].kind == AQ_OP_UNPACK && p->op[i].step < steps)
            unpacked[p->op[i].step] = true;
    }
    int rc = 0;
    for (uint32_t i = 0; i < p->op_count && rc == 0; i++) {
        if (p->op[i].kind == AQ_OP_UNPACK || p->op[i].kind == AQ_OP_MERGE || multiplies(&p->op[i]))
            rc = check_product(p, i, unpacked, opts, reterr);
    }
    free(unpacked);
    return rc;
}

int aq_check_moves(const struct aq_program *p, const struct aq_check_opts *opts,
                   struct aq_err *reterr)
{
    struct loads l = {.count = count_chunks(p, opts->stream)};
    l.ring = calloc(l.count + 1, 1);
    l.staged = calloc(l.count + 1, 1);
    int rc = 0;
    if (!l.ring || !l.staged)
        rc = aq_error_memory(reterr, "checker: a stream of %u chunks", l.count);
    if (rc == 0)
        rc = check_all(p, &l, opts, reterr);
    for (uint32_t c = 0; rc == 0 && c < l.count; c++) {
        if (!l.ring[c])
            rc = aq_error(reterr, -EPROTO,
                          "program: chunk %u: expected one load into the ring, found none", c);
    }
    if (rc == 0 && opts->weight_bytes && opts->weight_bytes != l.bytes)
        rc = aq_error(reterr, -EPROTO,
                      "program: expected %llu bytes of weights a pass, found loads of %llu",
                      (unsigned long long)opts->weight_bytes, (unsigned long long)l.bytes);
    if (rc == 0 && opts->stream && opts->steps)
        rc = check_products(p, opts, reterr);
    free(l.ring);
    free(l.staged);
    return rc;
}
