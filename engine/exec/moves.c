/* SPDX-License-Identifier: Apache-2.0
 * Lists the bytes that the ops of the link and disk lanes move.  A list is made when its op is
 * issued, because lengths are known by then. */
#include "engine/exec/exec.h"

#include <assert.h>
#include <stdlib.h>

static bool is_disk(const struct aq_op *op)
{
    return op->kind == AQ_OP_READ || op->kind == AQ_OP_WRITE;
}

static bool is_link(const struct aq_op *op)
{
    return op->kind == AQ_OP_H2D || op->kind == AQ_OP_D2H;
}

/* ---- room ------------------------------------------------------------------------------- */

/* The slot whose list a move of KV uses: two ops of one slot are never in flight together. */
static uint32_t kv_list(const struct aq_executor *x, const struct aq_op *op)
{
    return is_disk(op) && x->plan->separate ? op->workspace : op->stage;
}

static uint32_t entries_max(const struct aq_executor *x, const struct aq_op *op)
{
    if (op->object == AQ_OBJECT_KV)
        return is_disk(op) ? x->sizes.kv_transfers : x->sizes.kv_pieces;
    return op->object == AQ_OBJECT_WEIGHTS ? x->stream->chunk[op->chunk].piece_count : 1;
}

/* Gives every move the list that it fills. */
static void share_out(struct aq_executor *x, struct aq_disk_transfer *t, struct aq_copy_piece *p)
{
    struct aq_disk_transfer *kv_t = t;
    struct aq_copy_piece *kv_p = p;
    t += (size_t)x->sizes.kv_transfer_lists * x->sizes.kv_transfers;
    p += (size_t)x->sizes.kv_piece_lists * x->sizes.kv_pieces;
    for (uint32_t i = 0; i < x->program->op_count; i++) {
        const struct aq_op *op = &x->program->op[i];
        size_t list = op->object == AQ_OBJECT_KV ? kv_list(x, op) : 0;
        if (!is_disk(op) && !is_link(op))
            continue;
        if (op->object == AQ_OBJECT_KV) {
            x->move[i].transfer = kv_t + list * x->sizes.kv_transfers;
            x->move[i].piece = kv_p + list * x->sizes.kv_pieces;
        } else if (is_disk(op)) {
            x->move[i].transfer = t;
            t += entries_max(x, op);
        } else {
            x->move[i].piece = p;
            p += entries_max(x, op);
        }
    }
}

int exec_moves_open(struct aq_executor *x, struct aq_err *reterr)
{
    struct aq_move_sizes *r = &x->sizes;
    aq_move_sizes_count(r, x->program, x->steps, x->plan, x->stream);
    _Static_assert(sizeof(struct aq_copy_piece) <= AQ_MOVE_PIECE_BYTES, "as the ledger counts");
    _Static_assert(sizeof(struct aq_disk_transfer) <= AQ_MOVE_TRANSFER_BYTES, "likewise");
    size_t bytes = r->transfers * sizeof(struct aq_disk_transfer) +
                   r->pieces * sizeof(struct aq_copy_piece) + r->blocks * sizeof(*x->stage_block);
    if (!bytes)
        return 0;
    x->move = calloc(x->program->op_count, sizeof(*x->move));
    if (!x->move)
        return aq_error_memory(reterr, "moves of %u ops", x->program->op_count);
    int rc = aq_device_alloc(&x->moves, x->opts.device, AQ_MEMORY_HOST, "moves", bytes, reterr);
    if (rc < 0)
        return rc;
    x->moves_bytes = bytes;
    struct aq_disk_transfer *t = x->moves;
    struct aq_copy_piece *p = (struct aq_copy_piece *)(t + r->transfers);
    x->stage_block = (uint8_t **)(p + r->pieces);
    share_out(x, t, p);
    return 0;
}

void exec_moves_close(struct aq_executor *x)
{
    free(x->move);
    aq_device_free(x->opts.device, AQ_MEMORY_HOST, "moves", x->moves, x->moves_bytes);
}

/* Asserts that the listed bytes are those that were counted, and at most the program's
 * bytes_max. */
static void check_bytes(const struct aq_executor *x, uint32_t op_index, uint64_t bytes)
{
    const struct aq_op *op = &x->program->op[op_index];
    assert(op->object != AQ_OBJECT_KV || bytes == x->cost[op_index].move_bytes);
    assert(bytes <= aq_align_up(op->bytes_max, AQ_PANEL_ALIGN)); /* disks move whole pages */
}

/* ---- disk -------------------------------------------------------------------------------- */

static void list_weights(struct aq_executor *x, uint32_t op_index)
{
    const struct aq_op *op = &x->program->op[op_index];
    const struct aq_chunk *chunk = &x->stream->chunk[op->chunk];
    bool staged = x->plan->separate;
    uint8_t *slot = exec_slot(x, staged ? AQ_SLOT_STAGING : AQ_SLOT_RING,
                              staged ? chunk->staging : chunk->slot);
    for (uint32_t i = 0; i < chunk->piece_count; i++) {
        const struct aq_piece *p = &x->stream->piece[chunk->piece_first + i];
        const struct aq_weight *w =
            &x->opts.model->weight[aq_matrix_index(x->steps, op->step, p->matrix)];
        exec_add_transfer(x, op_index, x->opts.store_set,
                          w->item->offset + p->first * (p->bytes / p->count), p->bytes,
                          slot + p->offset);
    }
}

static void list_hidden(struct aq_executor *x, uint32_t op_index)
{
    const struct aq_op *op = &x->program->op[op_index];
    const struct exec_batch *b = &x->batch[op->micro_batch];
    uint64_t at = x->slot_offset[x->program->first[AQ_SLOT_HIDDEN_DISK] + op->micro_batch];
    uint64_t bytes = aq_align_up((uint64_t)b->row_count * x->steps->hidden * 4, AQ_PANEL_ALIGN);
    exec_add_transfer(
        x, op_index, x->opts.scratch_set, aq_kv_disk_bytes(x->kv) + at, bytes,
        exec_slot(x, x->plan->separate ? AQ_SLOT_HIDDEN_HOST : AQ_SLOT_HIDDEN, op->stage));
}

static void start_disk(struct aq_executor *x, uint32_t op_index)
{
    const struct aq_op *op = &x->program->op[op_index];
    struct exec_move *m = &x->move[op_index];
    m->group.transfer = m->transfer;
    m->group.count = 0;
    m->group.token = op_index;
    m->group.check = exec_check_wanted(x, op);
    switch ((enum aq_object)op->object) {
    case AQ_OBJECT_WEIGHTS: list_weights(x, op_index); break;
    case AQ_OBJECT_KV: exec_list_kv(x, op_index); break;
    case AQ_OBJECT_HIDDEN: list_hidden(x, op_index); break;
    default: assert(!"an object that goes to disk");
    }
    assert(m->group.count <= entries_max(x, op));
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < m->group.count; i++)
        bytes += m->transfer[i].t.bytes;
    check_bytes(x, op_index, bytes);
    aq_disk_lane_submit(x->disk, &m->group);
}

/* ---- links ------------------------------------------------------------------------------- */

static void link_weights(struct aq_executor *x, const struct aq_op *op, struct exec_pieces *l)
{
    const struct aq_chunk *chunk = &x->stream->chunk[op->chunk];
    uint8_t *slot = exec_slot(x, AQ_SLOT_RING, chunk->slot);
    for (uint32_t i = 0; i < chunk->piece_count; i++) {
        const struct aq_piece *p = &x->stream->piece[chunk->piece_first + i];
        uint32_t index = aq_matrix_index(x->steps, op->step, p->matrix);
        uint8_t *from = chunk->tier == AQ_DISK
                            ? exec_slot(x, AQ_SLOT_STAGING, chunk->staging) + p->offset
                            : aq_weight_panel(&x->opts.model->weight[index], p->first);
        exec_add_piece(l, slot + p->offset, from, p->bytes);
    }
}

static void link_rows(struct aq_executor *x, const struct aq_op *op, struct exec_pieces *l)
{
    const struct exec_batch *b = &x->batch[op->micro_batch];
    const struct aq_model_steps *m = x->steps;
    size_t width = (size_t)m->heads * m->head_dim, kv_width = (size_t)m->kv_heads * m->head_dim;
    size_t qkv = (width + 2 * kv_width) * 4, out = width * aq_dtype_bytes(x->plan->shape.compute);
    uint32_t first = b->decode_first[op->part], rows = b->decode_first[op->part + 1] - first;
    uint32_t at = op->workspace * x->plan->part_count + op->part;
    if (op->object == AQ_OBJECT_QKV)
        exec_add_piece(l, exec_slot(x, AQ_SLOT_QKV, op->workspace) + first * qkv,
                       exec_slot(x, AQ_SLOT_QKV_HOST, at), rows * qkv);
    else
        exec_add_piece(
            l, exec_slot(x, AQ_SLOT_ATTENTION, op->workspace * x->plan->part_count) + first * out,
            exec_slot(x, AQ_SLOT_ATTENTION_HOST, at), rows * out);
}

static int start_link(struct aq_executor *x, uint32_t op_index)
{
    const struct aq_op *op = &x->program->op[op_index];
    struct exec_pieces l = {x->move[op_index].piece, 0, op->kind == AQ_OP_H2D};
    switch ((enum aq_object)op->object) {
    case AQ_OBJECT_WEIGHTS: link_weights(x, op, &l); break;
    case AQ_OBJECT_KV: exec_link_kv(x, op, &l); break;
    case AQ_OBJECT_HIDDEN:
        exec_add_piece(&l, exec_slot(x, AQ_SLOT_HIDDEN, op->stage),
                       exec_slot(x, AQ_SLOT_HIDDEN_HOST, op->workspace),
                       (uint64_t)x->batch[op->micro_batch].row_count * x->steps->hidden * 4);
        break;
    case AQ_OBJECT_INPUT:
    case AQ_OBJECT_COLUMNS: exec_link_share(x, op, &l); break;
    default: link_rows(x, op, &l);
    }
    assert(l.count <= entries_max(x, op));
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < l.count; i++)
        bytes += l.piece[i].bytes;
    check_bytes(x, op_index, bytes);
    struct aq_device_copy copy = {
        .direction = l.to_device ? AQ_H2D : AQ_D2H,
        .pieces = l.piece,
        .piece_count = l.count,
        .token = op_index,
        .done = x->completions,
        .span = &x->job[op_index].span,
    };
    return aq_device_copy(x->lane[op->lane].stream, &copy);
}

int exec_start_move(struct aq_executor *x, uint32_t op_index)
{
    if (is_link(&x->program->op[op_index]))
        return start_link(x, op_index);
    start_disk(x, op_index);
    return 0;
}
