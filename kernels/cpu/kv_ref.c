/* SPDX-License-Identifier: Apache-2.0
 * KV append, reference: element by element.  Moves of rows: copies of bytes, for every level. */
#include "kernels/cpu/attn.h"
#include "kernels/cpu/kv.h"
#include "kernels/cpu/versions.h"

#include <string.h>

/* A tile is one KV head of one sequence. */
static void append_tile(void *arg, uint32_t tile, uint32_t worker)
{
    const struct aq_attn *a = arg;
    const struct aq_attn_seq *seq = &a->seqs[tile / a->kv_heads];
    uint32_t head = tile % a->kv_heads, dim = a->head_dim;
    for (uint32_t i = 0; i < seq->rows; i++) {
        uint32_t slot = aq_attn_new_slot(seq, head, i);
        aq_attn_note_row(seq, head, i, slot);
        uint8_t *block = aq_attn_block(seq, head, slot / AQ_HEAD_BLOCK_SLOTS);
        slot %= AQ_HEAD_BLOCK_SLOTS;
        size_t from = (seq->row + (size_t)i) * a->new_stride + (size_t)head * dim;
        aq_kv_store_row(block, a->kv_dtype, dim, slot, a->k_new + from);
        aq_kv_store_row(block, a->kv_dtype, dim, AQ_HEAD_BLOCK_SLOTS + slot, a->v_new + from);
    }
}

void aq_kv_append_ref(struct aq_exec *ex, const struct aq_attn *a)
{
    aq_attn_assert(a);
    aq_pool_run(aq_exec_pool(ex), append_tile, (void *)a, a->seq_count * a->kv_heads);
}

/* ---- moves ---- */

static uint8_t *side_block(const struct aq_kv_side *side, uint32_t head, uint32_t slot)
{
    size_t b = (size_t)head * side->head_table_step + slot / AQ_HEAD_BLOCK_SLOTS;
    return side->block[b] + head * side->head_offset;
}

static uint32_t side_slot(const struct aq_kv_side *side, uint32_t head, uint32_t i)
{
    return side->list ? side->list[(size_t)head * side->list_stride + i] : side->first + i;
}

static void move_row(const struct aq_kv_moves *job, uint8_t *to, uint32_t to_row,
                     const uint8_t *from, uint32_t from_row)
{
    memcpy(aq_kv_row(to, job->kv_dtype, job->head_dim, to_row),
           aq_kv_row(from, job->kv_dtype, job->head_dim, from_row),
           aq_kv_row_bytes(job->kv_dtype, job->head_dim));
    if (aq_dtype_is_quantised(job->kv_dtype))
        aq_kv_quant_set(to, to_row, aq_kv_quant(from, from_row));
}

static void move_notes(const struct aq_kv_move *m, uint32_t head, uint32_t from_slot,
                       uint32_t to_slot)
{
    const struct aq_attn_slots *from = &m->from.slots, *to = &m->to.slots;
    size_t source = (size_t)head * from->stride + from_slot;
    size_t target = (size_t)head * to->stride + to_slot;
    if (to->position)
        to->position[target] = from->position ? from->position[source] : from_slot;
    if (to->score && from->score)
        to->score[target] = from->score[source];
}

/* A tile is one KV head of one move. */
static void move_tile(void *arg, uint32_t tile, uint32_t worker)
{
    const struct aq_kv_moves *job = arg;
    const struct aq_kv_move *m = &job->moves[tile / job->kv_heads];
    uint32_t head = tile % job->kv_heads, count = m->count[(size_t)head * m->count_step];
    for (uint32_t i = 0; i < count; i++) {
        uint32_t from_slot = side_slot(&m->from, head, i), to_slot = side_slot(&m->to, head, i);
        if (from_slot == UINT32_MAX || to_slot == UINT32_MAX)
            continue;
        const uint8_t *from = side_block(&m->from, head, from_slot);
        uint8_t *to = side_block(&m->to, head, to_slot);
        uint32_t from_row = from_slot % AQ_HEAD_BLOCK_SLOTS, to_row = to_slot % AQ_HEAD_BLOCK_SLOTS;
        move_notes(m, head, from_slot, to_slot);
        if (to == from && to_row == from_row)
            continue;
        move_row(job, to, to_row, from, from_row);
        move_row(job, to, AQ_HEAD_BLOCK_SLOTS + to_row, from, AQ_HEAD_BLOCK_SLOTS + from_row);
    }
}

void aq_kv_move_ref(struct aq_exec *ex, const struct aq_kv_moves *m)
{
    assert(aq_dtype_is_float(m->kv_dtype) || aq_dtype_is_quantised(m->kv_dtype));
    aq_pool_run(aq_exec_pool(ex), move_tile, (void *)m, m->count * m->kv_heads);
}

/* ---- KIVI ---- */

/* v[0 .. n): n values of a group, from row `row` and channel d on, down the rows or along one. */
static void encode_group(uint8_t *to, const uint8_t *from, const struct aq_kv_encodes *e,
                         uint32_t row, uint32_t d, uint32_t n)
{
    bool keys = row < AQ_HEAD_BLOCK_SLOTS;
    uint32_t dim = e->head_dim, apart;
    float v[AQ_KIVI_GROUP];
    for (uint32_t i = 0; i < n; i++)
        v[i] = aq_kv_load(from, AQ_F16, dim, keys ? i : row, keys ? d : d + i);
    struct aq_quant q = aq_quant_of(v, n, e->kv_dtype);
    uint16_t *scale = aq_kivi_scale(to, dim, row, d, &apart);
    scale[0] = q.scale;
    scale[apart] = q.minimum;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t bit;
        uint8_t *byte =
            aq_kivi_code_at(to, e->kv_dtype, dim, keys ? i : row, keys ? d : d + i, &bit);
        *byte |= (uint8_t)(aq_quant_code(q, v[i], e->kv_dtype) << bit);
    }
}

/* A tile is one KV head of one run. */
static void encode_tile(void *arg, uint32_t tile, uint32_t worker)
{
    const struct aq_kv_encodes *e = arg;
    uint32_t head = tile % e->kv_heads, dim = e->head_dim;
    size_t bytes = aq_kv_block_bytes(e->kv_dtype, dim);
    const uint8_t *from =
        e->encodes[tile / e->kv_heads].from + head * aq_kv_block_bytes(AQ_F16, dim);
    uint8_t *to = e->encodes[tile / e->kv_heads].to + head * bytes;
    memset(to, 0, bytes);
    for (uint32_t d = 0; d < dim; d++)
        encode_group(to, from, e, 0, d, AQ_HEAD_BLOCK_SLOTS);
    for (uint32_t row = AQ_HEAD_BLOCK_SLOTS; row < AQ_KV_ROWS; row++) {
        for (uint32_t d = 0; d < dim; d += AQ_KIVI_GROUP)
            encode_group(to, from, e, row, d, (uint32_t)aq_min_u64(AQ_KIVI_GROUP, dim - d));
    }
}

void aq_kv_encode_ref(struct aq_exec *ex, const struct aq_kv_encodes *e)
{
    assert(aq_dtype_is_kivi(e->kv_dtype));
    aq_pool_run(aq_exec_pool(ex), encode_tile, (void *)e, e->count * e->kv_heads);
}

void aq_kv_note_ref(struct aq_exec *ex, const struct aq_kv_note *n)
{
    for (uint32_t h = 0; h < n->kv_heads; h++)
        n->target[h * AQ_HEAD_BLOCK_SLOTS] = n->victim[h] < n->whole ? n->victim[h] : UINT32_MAX;
}
