/* SPDX-License-Identifier: Apache-2.0
 * Lists of what a move takes: ranges of disk files, and pieces of copies. */
#include "engine/exec/exec.h"

void exec_add_transfer(struct aq_executor *x, uint32_t op_index, uint32_t set, uint64_t offset,
                       uint64_t bytes, void *buffer)
{
    struct exec_move *m = &x->move[op_index];
    const struct aq_op *op = &x->program->op[op_index];
    m->transfer[m->group.count++].t = (struct aq_transfer){
        .op = op->kind == AQ_OP_READ ? AQ_IO_READ : AQ_IO_WRITE,
        .set = set,
        .offset = offset,
        .bytes = bytes,
        .buffer = buffer,
    };
}

void exec_add_piece(struct exec_pieces *l, void *device, void *host, uint64_t bytes)
{
    l->piece[l->count++] = l->to_device ? (struct aq_copy_piece){device, host, bytes}
                                        : (struct aq_copy_piece){host, device, bytes};
}
