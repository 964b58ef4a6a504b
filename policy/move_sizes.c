/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/move_sizes.h"

#include "policy/seats.h"

/* Most pieces of one seat's KV of a layer: its runs and two arrays beside them, or the rows of the
 * new key in every head and one array. */
static uint32_t pieces_of_seat(const struct aq_model_steps *steps, const struct aq_plan *plan)
{
    uint32_t runs = plan->kinds.runs + 2;
    uint32_t rows = 2 * steps->kv_heads + 1;
    return runs > rows ? runs : rows;
}

static uint32_t slots_of(const struct aq_program *p, enum aq_slot_class c)
{
    return p->first[c + 1] - p->first[c];
}

/* Most ranges of one seat's KV of a layer on disk: one, or where sequences share runs these may lie
 * in the region of another seat each. */
static uint32_t ranges_of_seat(const struct aq_plan *plan, const struct aq_part *part)
{
    return aq_seats_shares(plan, part) ? plan->kinds.runs : 1;
}

static void count_kv(struct aq_move_sizes *r, const struct aq_program *program,
                     const struct aq_model_steps *steps, const struct aq_plan *plan)
{
    uint32_t seats = 0, ranges = 0;
    for (uint32_t i = 0; i < plan->part_count; i++) {
        const struct aq_part *p = &plan->part[i];
        if ((p->staged || p->side == AQ_ATTEND_HOST) && p->count > seats)
            seats = p->count;
        if (p->tier == AQ_DISK && p->count * ranges_of_seat(plan, p) > ranges)
            ranges = p->count * ranges_of_seat(plan, p);
    }
    if (plan->separate && seats) {
        r->stage_seats = seats;
        r->kv_piece_lists = slots_of(program, AQ_SLOT_KV_DEVICE);
        r->kv_pieces = seats * pieces_of_seat(steps, plan);
        r->blocks = (uint64_t)r->kv_piece_lists * seats * plan->kinds.runs;
    }
    if (ranges) {
        r->kv_transfer_lists =
            slots_of(program, plan->separate ? AQ_SLOT_KV_HOST : AQ_SLOT_KV_DEVICE);
        r->kv_transfers = ranges;
    }
}

void aq_move_sizes_count(struct aq_move_sizes *ret, const struct aq_program *program,
                         const struct aq_model_steps *steps, const struct aq_plan *plan,
                         const struct aq_stream *stream)
{
    *ret = (struct aq_move_sizes){0};
    count_kv(ret, program, steps, plan);
    for (uint32_t i = 0; i < program->op_count; i++) {
        const struct aq_op *op = &program->op[i];
        bool disk = op->kind == AQ_OP_READ || op->kind == AQ_OP_WRITE;
        bool link = op->kind == AQ_OP_H2D || op->kind == AQ_OP_D2H;
        if (op->object == AQ_OBJECT_KV || (!disk && !link))
            continue;
        uint64_t count = op->object == AQ_OBJECT_WEIGHTS ? stream->chunk[op->chunk].piece_count : 1;
        *(disk ? &ret->transfers : &ret->pieces) += count;
    }
    ret->pieces += (uint64_t)ret->kv_piece_lists * ret->kv_pieces;
    ret->transfers += (uint64_t)ret->kv_transfer_lists * ret->kv_transfers;
}

uint64_t aq_move_sizes_bytes(const struct aq_move_sizes *r)
{
    return r->pieces * AQ_MOVE_PIECE_BYTES + r->transfers * AQ_MOVE_TRANSFER_BYTES +
           r->blocks * sizeof(void *);
}
