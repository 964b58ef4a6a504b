/* SPDX-License-Identifier: Apache-2.0
 * kernels/cuda/attn.cuh - sequences, head-blocks and slots: kernels/cpu/attn.h, kv.h and slots.h
 * for a device. */
#ifndef AQ_KERNELS_CUDA_ATTN_CUH
#define AQ_KERNELS_CUDA_ATTN_CUH

#include "kernels/cuda/device.cuh"

AQ_DEVICE_FN uint8_t *aq_cu_block(const struct aq_attn_seq *s, uint32_t head, uint32_t b)
{
    size_t at = static_cast<size_t>(head) * s->head_table_step + b;
    return aq_cu_global(aq_cu_global(s->block)[at] + head * s->head_offset);
}

AQ_DEVICE_FN uint32_t aq_cu_len(const struct aq_attn_seq *s, uint32_t head)
{
    return s->len[static_cast<size_t>(head) * s->len_step];
}

/* Keys that query row `row` sees, as aq_attn_visible(). */
AQ_DEVICE_FN uint32_t aq_cu_visible(uint32_t len, uint32_t rows, uint32_t row)
{
    uint32_t end = len + row + 1;
    return end > rows ? end - rows : 0;
}

/* The first key that a query sees of its `keys`, as aq_attn_first(). */
AQ_DEVICE_FN uint32_t aq_cu_first(const struct aq_attn *a, uint32_t keys)
{
    return a->window && keys > a->window ? keys - a->window : 0;
}

/* ---- head-blocks ---- */

AQ_DEVICE_FN uint32_t aq_cu_kv_row_bytes(enum aq_dtype t, uint32_t dim)
{
    if (t == AQ_Q8)
        return dim;
    return t == AQ_Q4 ? (dim + 1) / 2 : t == AQ_F32 ? 4 * dim : 2 * dim;
}

/* Row 0 to 31 are K's, 32 to 63 V's. */
AQ_DEVICE_FN uint8_t *aq_cu_kv_row(uint8_t *block, enum aq_dtype t, uint32_t dim, uint32_t row)
{
    uint32_t head = aq_cu_is_quantised(t) ? 8 * AQ_HEAD_BLOCK_SLOTS : 0;
    return block + head + static_cast<size_t>(row) * aq_cu_kv_row_bytes(t, dim);
}

/* Where the f16 scale of a row lies; its minimum is AQ_HEAD_BLOCK_SLOTS further on. */
AQ_DEVICE_FN uint16_t *aq_cu_kv_scale(uint8_t *block, uint32_t row)
{
    uint32_t half = row / AQ_HEAD_BLOCK_SLOTS;
    return reinterpret_cast<uint16_t *>(block) + 2 * AQ_HEAD_BLOCK_SLOTS * half +
           row % AQ_HEAD_BLOCK_SLOTS;
}

/* One element of a row. */
AQ_DEVICE_FN float aq_cu_kv_load(uint8_t *block, enum aq_dtype t, uint32_t dim, uint32_t row,
                                 uint32_t d)
{
    const uint8_t *data = aq_cu_kv_row(block, t, dim, row);
    if (!aq_cu_is_quantised(t))
        return aq_cu_load(data, t, d);
    const uint16_t *of = aq_cu_kv_scale(block, row);
    uint32_t half = (dim + 1) / 2;
    uint32_t code = t == AQ_Q8 ? data[d] : d < half ? data[d] & 15u : data[d - half] >> 4;
    return aq_cu_code_value(code, aq_cu_from_f16(of[0]), aq_cu_from_f16(of[AQ_HEAD_BLOCK_SLOTS]));
}

/* ---- victims ---- */

/* A score as a number that orders as aq_slots_rank(): the two zeros are one, a NaN is infinite. */
AQ_DEVICE_FN uint32_t aq_cu_rank(float score)
{
    uint32_t bits = __float_as_uint(isnan(score) ? INFINITY : score + 0.0f);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

/* The slot to give up so far: the least key, of equal ones the lowest slot. */
struct aq_cu_victim {
    uint64_t key;
    uint32_t slot, begin, end; /* candidates have positions from begin to before end */
};

AQ_DEVICE_FN struct aq_cu_victim aq_cu_victim_start(const struct aq_attn_rule *rule,
                                                    const struct aq_attn_seq *s)
{
    uint64_t end = static_cast<uint64_t>(s->position) + s->rows + 1;
    end = end > s->recent ? end - s->recent : 0;
    struct aq_cu_victim v = {UINT64_MAX, UINT32_MAX, rule->sinks, 0};
    v.end = end < INT32_MAX ? static_cast<uint32_t>(end) : INT32_MAX;
    return v;
}

AQ_DEVICE_FN void aq_cu_victim_take(struct aq_cu_victim *v, uint64_t key, uint32_t slot)
{
    if (slot != UINT32_MAX && (key < v->key || (key == v->key && slot < v->slot))) {
        v->key = key;
        v->slot = slot;
    }
}

AQ_DEVICE_FN void aq_cu_victim_consider(struct aq_cu_victim *v, const struct aq_attn_rule *rule,
                                        float score, uint32_t position, uint32_t slot)
{
    if (position < v->begin || position >= v->end)
        return;
    uint64_t key = rule->victim == AQ_ATTN_BY_POSITION
                       ? ~position
                       : static_cast<uint64_t>(aq_cu_rank(score)) << 32 | position;
    aq_cu_victim_take(v, key, slot);
}

/* Of all threads, in the block's first one; shared memory for 3 numbers per warp. */
AQ_DEVICE_FN uint32_t aq_cu_victim_of_block(struct aq_cu_victim v, uint32_t *shared)
{
    for (uint32_t step = AQ_CU_WARP / 2; step; step /= 2) {
        uint64_t key = __shfl_xor_sync(AQ_CU_ALL, v.key, step);
        uint32_t slot = __shfl_xor_sync(AQ_CU_ALL, v.slot, step);
        aq_cu_victim_take(&v, key, slot);
    }
    __syncthreads();
    uint32_t *to = shared + threadIdx.x / AQ_CU_WARP * 3;
    if (aq_cu_lane() == 0) {
        to[0] = static_cast<uint32_t>(v.key);
        to[1] = static_cast<uint32_t>(v.key >> 32);
        to[2] = v.slot;
    }
    __syncthreads();
    for (uint32_t i = 0; threadIdx.x == 0 && i < blockDim.x / AQ_CU_WARP; i++)
        aq_cu_victim_take(&v, shared[3 * i] | static_cast<uint64_t>(shared[3 * i + 1]) << 32,
                          shared[3 * i + 2]);
    return v.slot;
}

#endif
