/* SPDX-License-Identifier: Apache-2.0
 * KV append: a warp per row of a head, K then V; formats are those of kernels/cpu/quant.h, to the
 * bit.  Moves of rows: a block of threads per (move, head) carries some rows at a time through
 * shared memory, all of them read before one is written. */
#include "kernels/cuda/attn.cuh"

enum {
    APPEND_WARPS = 4,
    MOVE_THREADS = 128,
    MOVE_ROWS = 32,                                         /* at a time, at most */
    MOVE_STAGE = AQ_CU_SHARED_MAX - 8 * MOVE_ROWS * 4 - 64, /* bytes of their K and V */
    FLIGHT = 4, /* units of 16 bytes that a thread has asked for before it stores the first */
};

/* ---- quantised rows ---- */

/* Rounding towards minus infinity, as aq_f16_down(). */
AQ_DEVICE_FN uint16_t f16_down(float x)
{
    uint16_t h = aq_cu_to_f16(x);
    if (isnan(x) || aq_cu_from_f16(h) <= x)
        return h;
    if ((h & 0x7fff) == 0)
        return 0x8001;
    return static_cast<uint16_t>(h & 0x8000 ? h + 1 : h - 1);
}

AQ_DEVICE_FN uint16_t f16_up(float x)
{
    return f16_down(-x) ^ 0x8000;
}

/* As aq_quant_scale(). */
AQ_DEVICE_FN uint16_t scale_of(float step, enum aq_dtype t)
{
    return t == AQ_Q4 && step >= 0x1p-14f ? aq_cu_to_f16(step) : f16_up(step);
}

struct group {
    uint16_t scale, minimum;
    float code_max;
};

/* Of a warp's row, as aq_quant_of(). */
AQ_DEVICE_FN struct group group_of(const float *v, uint32_t n, enum aq_dtype t)
{
    float lo = INFINITY, hi = -INFINITY;
    bool finite = true;
    for (uint32_t d = aq_cu_lane(); d < n; d += AQ_CU_WARP) {
        lo = v[d] < lo ? v[d] : lo;
        hi = v[d] > hi ? v[d] : hi;
        finite &= isfinite(v[d]) != 0;
    }
    for (uint32_t step = AQ_CU_WARP / 2; step; step /= 2) {
        lo = fminf(lo, __shfl_xor_sync(AQ_CU_ALL, lo, step));
        hi = fmaxf(hi, __shfl_xor_sync(AQ_CU_ALL, hi, step));
    }
    finite = __all_sync(AQ_CU_ALL, finite);
    struct group g = {0, f16_down(lo + 0.0f), t == AQ_Q8 ? 255.0f : 15.0f};
    g.scale = scale_of((hi - aq_cu_from_f16(g.minimum) + 0.0f) / g.code_max, t);
    if (!finite || !isfinite(aq_cu_from_f16(g.minimum)) || !isfinite(aq_cu_from_f16(g.scale)))
        g.scale = g.minimum = 0x7e00;
    return g;
}

AQ_DEVICE_FN uint32_t code_of(const struct group *g, float v)
{
    float scale = aq_cu_from_f16(g->scale), minimum = aq_cu_from_f16(g->minimum);
    float code = rintf((v - minimum) / scale);
    if (!(scale > 0) || !(code > 0))
        return 0;
    return static_cast<uint32_t>(fminf(code, g->code_max));
}

/* A warp stores a row of a head-block. */
AQ_DEVICE_FN void store_row(uint8_t *block, enum aq_dtype t, uint32_t dim, uint32_t row,
                            const float *v)
{
    uint8_t *to = aq_cu_kv_row(block, t, dim, row);
    if (!aq_cu_is_quantised(t)) {
        for (uint32_t d = aq_cu_lane(); d < dim; d += AQ_CU_WARP)
            aq_cu_store(to, t, d, v[d]);
        return;
    }
    struct group g = group_of(v, dim, t);
    if (aq_cu_lane() == 0) {
        uint16_t *scale = aq_cu_kv_scale(block, row);
        scale[0] = g.scale;
        scale[AQ_HEAD_BLOCK_SLOTS] = g.minimum;
    }
    uint32_t half = (dim + 1) / 2;
    for (uint32_t d = aq_cu_lane(); d < (t == AQ_Q8 ? dim : half); d += AQ_CU_WARP) {
        uint32_t code = code_of(&g, v[d]);
        if (t == AQ_Q4 && half + d < dim)
            code |= code_of(&g, v[half + d]) << 4;
        to[d] = static_cast<uint8_t>(code);
    }
}

/* ---- append ---- */

__global__ void __launch_bounds__(APPEND_WARPS *AQ_CU_WARP) append_rows(struct aq_attn a)
{
    const struct aq_attn_seq *s = &a.seqs[blockIdx.z];
    uint32_t head = blockIdx.y, dim = a.head_dim;
    uint32_t i = blockIdx.x * APPEND_WARPS + threadIdx.x / AQ_CU_WARP;
    if (i >= s->rows)
        return;
    uint32_t slot = s->overwrite ? s->slots.victim[head] : aq_cu_len(s, head) - s->rows + i;
    if (aq_cu_lane() == 0 && s->slots.position) {
        size_t at = static_cast<size_t>(head) * s->slots.stride + slot;
        s->slots.position[at] = s->position + i;
        if (s->slots.score)
            s->slots.score[at] = 0;
    }
    uint8_t *block = aq_cu_block(s, head, slot / AQ_HEAD_BLOCK_SLOTS);
    slot %= AQ_HEAD_BLOCK_SLOTS;
    size_t from =
        (s->row + static_cast<size_t>(i)) * a.new_stride + static_cast<size_t>(head) * dim;
    store_row(block, a.kv_dtype, dim, slot, a.k_new + from);
    store_row(block, a.kv_dtype, dim, AQ_HEAD_BLOCK_SLOTS + slot, a.v_new + from);
}

int aq_cuda_kv_append(const struct aq_cuda_exec *ex, const struct aq_attn *a)
{
    if (!a->seq_count || !a->reach.rows)
        return 0;
    assert(a->kv_heads <= AQ_CU_GRID_YZ_MAX && a->seq_count <= AQ_CU_GRID_YZ_MAX);
    dim3 grid(aq_cu_div_up(a->reach.rows, APPEND_WARPS), a->kv_heads, a->seq_count);
    return AQ_LAUNCH(ex, append_rows, grid, APPEND_WARPS * AQ_CU_WARP, 0, *a);
}

/* ---- moves ---- */

struct mover {
    const struct aq_kv_move *moves;
    enum aq_dtype t;
    uint32_t dim, rows; /* at a time */
};

/* A move carries the memory of slots, then K and V of each. */
struct carried {
    uint32_t from[MOVE_ROWS], to[MOVE_ROWS], position[MOVE_ROWS];
    float score[MOVE_ROWS];
    uint32_t quant[2][MOVE_ROWS]; /* scale and minimum of K, of V */
    uint32_t stays[MOVE_ROWS];    /* goes nowhere: a later row takes its place, or it is there */
};

AQ_DEVICE_FN uint32_t side_slot(const struct aq_kv_side *side, uint32_t head, uint32_t i)
{
    return side->list ? side->list[static_cast<size_t>(head) * side->list_stride + i]
                      : side->first + i;
}

AQ_DEVICE_FN uint8_t *side_block(const struct aq_kv_side *side, uint32_t head, uint32_t slot)
{
    return side->block[static_cast<size_t>(head) * side->head_table_step +
                       slot / AQ_HEAD_BLOCK_SLOTS] +
           head * side->head_offset;
}

/* Where unit `u` of n rows' K and V lies in the blocks of a side; NULL: it goes nowhere. */
template <typename U>
AQ_DEVICE_FN U *side_unit(const struct mover *m, const struct aq_kv_side *side, uint32_t head,
                          const uint32_t *slots, const struct carried *c, uint32_t u, uint32_t n)
{
    uint32_t units = aq_cu_kv_row_bytes(m->t, m->dim) / sizeof(U);
    uint32_t i = u / units / 2, half = u / units % 2 * AQ_HEAD_BLOCK_SLOTS;
    if (i >= n || c->stays[i])
        return NULL;
    uint8_t *block = aq_cu_global(side_block(side, head, slots[i]));
    uint32_t row = half + slots[i] % AQ_HEAD_BLOCK_SLOTS;
    return reinterpret_cast<U *>(aq_cu_kv_row(block, m->t, m->dim, row)) + u % units;
}

/* Copies K and V of n rows from the blocks of a side to `stage`, in units of U. */
template <typename U>
AQ_DEVICE_FN void fetch(const struct mover *m, const struct aq_kv_side *side, uint32_t head,
                        const uint32_t *slots, const struct carried *c, U *stage, uint32_t n)
{
    uint32_t units = 2 * n * (aq_cu_kv_row_bytes(m->t, m->dim) / sizeof(U));
    for (uint32_t u = threadIdx.x; u < units; u += FLIGHT * blockDim.x) {
        const U *from[FLIGHT];
        U v[FLIGHT] = {};
#pragma unroll
        for (uint32_t f = 0; f < FLIGHT; f++)
            from[f] = side_unit<U>(m, side, head, slots, c, u + f * blockDim.x, n);
#pragma unroll
        for (uint32_t f = 0; f < FLIGHT; f++) {
            if (from[f])
                v[f] = *from[f];
        }
#pragma unroll
        for (uint32_t f = 0; f < FLIGHT; f++) {
            if (from[f])
                stage[u + f * blockDim.x] = v[f];
        }
    }
}

/* The way back. */
template <typename U>
AQ_DEVICE_FN void place(const struct mover *m, const struct aq_kv_side *side, uint32_t head,
                        const uint32_t *slots, const struct carried *c, const U *stage, uint32_t n)
{
    uint32_t units = 2 * n * (aq_cu_kv_row_bytes(m->t, m->dim) / sizeof(U));
    for (uint32_t u = threadIdx.x; u < units; u += blockDim.x) {
        U *to = side_unit<U>(m, side, head, slots, c, u, n);
        if (to)
            *to = stage[u];
    }
}

template <typename U>
AQ_DEVICE_FN void carry(const struct mover *m, const struct aq_kv_move *move, uint32_t head,
                        struct carried *c, uint32_t n)
{
    U *stage = reinterpret_cast<U *>(c + 1);
    fetch<U>(m, &move->from, head, c->from, c, stage, n);
    __syncthreads();
    place<U>(m, &move->to, head, c->to, c, stage, n);
}

/* Thread i reads what is remembered of row i, ahead of all writing. */
AQ_DEVICE_FN void look_up(const struct mover *m, const struct aq_kv_move *move, uint32_t head,
                          uint32_t i, struct carried *c)
{
    const struct aq_attn_slots *from = &move->from.slots;
    uint32_t slot = c->from[i];
    size_t at = static_cast<size_t>(head) * from->stride + slot;
    c->position[i] = from->position ? from->position[at] : slot;
    c->score[i] = from->score ? from->score[at] : 0;
    if (!aq_cu_is_quantised(m->t))
        return;
    uint8_t *block = side_block(&move->from, head, slot);
    for (uint32_t half = 0; half < 2; half++) {
        uint16_t *scale =
            aq_cu_kv_scale(block, half * AQ_HEAD_BLOCK_SLOTS + slot % AQ_HEAD_BLOCK_SLOTS);
        c->quant[half][i] = scale[0] | static_cast<uint32_t>(scale[AQ_HEAD_BLOCK_SLOTS]) << 16;
    }
}

AQ_DEVICE_FN void note_down(const struct mover *m, const struct aq_kv_move *move, uint32_t head,
                            uint32_t i, const struct carried *c)
{
    const struct aq_attn_slots *to = &move->to.slots;
    uint32_t slot = c->to[i];
    size_t at = static_cast<size_t>(head) * to->stride + slot;
    if (to->position)
        to->position[at] = c->position[i];
    if (to->score && move->from.slots.score)
        to->score[at] = c->score[i];
    if (!aq_cu_is_quantised(m->t))
        return;
    uint8_t *block = side_block(&move->to, head, slot);
    for (uint32_t half = 0; half < 2; half++) {
        uint16_t *scale =
            aq_cu_kv_scale(block, half * AQ_HEAD_BLOCK_SLOTS + slot % AQ_HEAD_BLOCK_SLOTS);
        scale[0] = static_cast<uint16_t>(c->quant[half][i]);
        scale[AQ_HEAD_BLOCK_SLOTS] = static_cast<uint16_t>(c->quant[half][i] >> 16);
    }
}

__global__ void __launch_bounds__(MOVE_THREADS, 4) move_rows(struct mover m)
{
    AQ_SHARED(struct carried, c);
    const struct aq_kv_move *move = &m.moves[blockIdx.y];
    uint32_t head = blockIdx.x, i = threadIdx.x;
    uint32_t count = move->count[static_cast<size_t>(head) * move->count_step];
    for (uint32_t first = 0; first < count; first += m.rows) {
        uint32_t n = aq_cu_min(m.rows, count - first);
        if (i < n) {
            c->from[i] = side_slot(&move->from, head, first + i);
            c->to[i] = side_slot(&move->to, head, first + i);
            if (c->from[i] == UINT32_MAX)
                c->to[i] = UINT32_MAX;
        }
        __syncthreads();
        if (i < n) {
            c->stays[i] = c->to[i] == UINT32_MAX;
            for (uint32_t later = i + 1; later < n; later++)
                c->stays[i] |= c->to[later] == c->to[i];
            if (!c->stays[i])
                look_up(&m, move, head, i, c);
        }
        __syncthreads();
        if (aq_cu_kv_row_bytes(m.t, m.dim) % 16 == 0)
            carry<uint4>(&m, move, head, c, n);
        else
            carry<uint8_t>(&m, move, head, c, n);
        if (i < n && !c->stays[i])
            note_down(&m, move, head, i, c);
        __syncthreads();
    }
}

int aq_cuda_kv_move(const struct aq_cuda_exec *ex, const struct aq_kv_moves *a)
{
    assert(aq_dtype_is_float(a->kv_dtype) || aq_dtype_is_quantised(a->kv_dtype));
    assert(a->count <= AQ_CU_GRID_YZ_MAX);
    if (!a->count)
        return 0;
    size_t row_bytes = 2 * aq_kv_row_bytes(a->kv_dtype, a->head_dim);
    struct mover m = {a->moves, a->kv_dtype, a->head_dim, MOVE_ROWS};
    m.rows = static_cast<uint32_t>(aq_min_u64(MOVE_ROWS, MOVE_STAGE / row_bytes));
    assert(m.rows);
    size_t shared = sizeof(struct carried) + m.rows * row_bytes;
    return AQ_LAUNCH(ex, move_rows, dim3(a->kv_heads, a->count), MOVE_THREADS, shared, m);
}
