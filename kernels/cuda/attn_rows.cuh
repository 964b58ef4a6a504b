/* SPDX-License-Identifier: Apache-2.0
 * kernels/cuda/attn_rows.cuh - the 16 queries of a warp on tensor cores: how they are loaded, and
 * how scores become weights.  A row of the tile is a query; every sum of a row is that
 * row's own, so that its bits do not depend on what shares the tile. */
#ifndef AQ_KERNELS_CUDA_ATTN_ROWS_CUH
#define AQ_KERNELS_CUDA_ATTN_ROWS_CUH

#include "kernels/cuda/attn_tile.cuh"

enum { AQ_CU_TILE_QUERIES = 16 };

/* The values of a lane: of query lane / 4 of its warp, and of the one 8 further on. */
template <uint32_t D> struct aq_cu_lane_rows {
    uint32_t q[D / 16][4];
    float o[D / 8][4];
    float max[2], sum[2];       /* max: of scores times log2(e); sum: of the lane's own columns */
    uint32_t first[2], keys[2]; /* they see the slots [first, keys) */
};

/* Where query n of a head lies. */
AQ_DEVICE_FN size_t aq_cu_query_row(uint32_t row, uint32_t q_per_kv, uint32_t n)
{
    return row + static_cast<size_t>(n / q_per_kv);
}

/* Rows of q, and the keys that they see: row i of them [0, len - rows + i], or each [0, len). */
struct aq_cu_query_rows {
    uint32_t row, rows, len;
    bool see_all;
};

/* Which dimensions a lane has in its k-th pair of a query: in any order that keys are brought in
 * too. */
struct aq_cu_in_order {
    static __device__ __forceinline__ uint32_t pair(uint32_t k, uint32_t lane)
    {
        return 8 * k + 2 * (lane % 4);
    }
};

/* Nothing is joined yet. */
template <uint32_t D> AQ_DEVICE_FN void aq_cu_start_rows(struct aq_cu_lane_rows<D> *w)
{
#pragma unroll
    for (uint32_t r = 0; r < 2; r++) {
        w->max[r] = -INFINITY;
        w->sum[r] = 0;
    }
#pragma unroll
    for (uint32_t n = 0; n < D / 8; n++) {
        for (uint32_t e = 0; e < 4; e++)
            w->o[n][e] = 0;
    }
}

/* Queries from `first` on, times scale; zeros, which see nothing, behind the last one. */
template <enum aq_dtype C, uint32_t D, class ORDER>
AQ_DEVICE_FN void aq_cu_load_queries(const struct aq_attn *a, struct aq_cu_query_rows s,
                                     uint32_t head, uint32_t first, struct aq_cu_lane_rows<D> *w)
{
    uint32_t lane = aq_cu_lane(), queries = s.rows * a->q_per_kv;
#pragma unroll
    for (uint32_t r = 0; r < 2; r++) {
        uint32_t n = first + lane / 4 + 8 * r;
        bool there = n < queries;
        uint32_t group = there ? n % a->q_per_kv : 0;
        const float *q = a->q + (there ? aq_cu_query_row(s.row, a->q_per_kv, n) * a->q_stride : 0) +
                         (static_cast<size_t>(head) * a->q_per_kv + group) * D;
        uint32_t keys = s.see_all ? s.len : aq_cu_visible(s.len, s.rows, n / a->q_per_kv);
        w->keys[r] = there ? keys : 0;
        w->first[r] = aq_cu_first(a, w->keys[r]);
#pragma unroll
        for (uint32_t k = 0; k < D / 8; k++) {
            uint32_t d = ORDER::pair(k, lane);
            float low = there ? q[d] * a->scale : 0, high = there ? q[d + 1] * a->scale : 0;
            w->q[k / 2][k % 2 * 2 + r] = aq_cu_pair<C>(low, high);
        }
    }
    aq_cu_start_rows<D>(w);
}

/* Scores of N times 8 keys become weights relative to the new maximum; earlier sums are brought to
 * it. */
template <uint32_t D, uint32_t N>
AQ_DEVICE_FN void aq_cu_weigh(float s[N][4], struct aq_cu_lane_rows<D> *w, uint32_t slot,
                              bool masked)
{
    float scale[2];
#pragma unroll
    for (uint32_t r = 0; r < 2; r++) {
        float max = -INFINITY, sum = 0;
#pragma unroll
        for (uint32_t i = 0; i < 2 * N; i++) {
            float *x = &s[i / 2][2 * r + i % 2];
            uint32_t key = slot + i / 2 * 8 + aq_cu_lane() % 4 * 2 + i % 2;
            if (masked && (key < w->first[r] || key >= w->keys[r]))
                *x = -INFINITY;
            max = fmaxf(max, *x);
        }
        max = fmaxf(max, __shfl_xor_sync(AQ_CU_ALL, max, 1));
        max = fmaxf(max, __shfl_xor_sync(AQ_CU_ALL, max, 2));
        max = fmaxf(max * AQ_CU_LOG2E, w->max[r]);
        float base = max == -INFINITY ? 0 : max;
#pragma unroll
        for (uint32_t i = 0; i < 2 * N; i++) {
            float *x = &s[i / 2][2 * r + i % 2];
            *x = aq_cu_exp2(fmaf(*x, AQ_CU_LOG2E, -base));
            sum += *x;
        }
        scale[r] = aq_cu_exp2(w->max[r] - base);
        w->max[r] = max;
        w->sum[r] = fmaf(w->sum[r], scale[r], sum);
    }
    /* Mostly no maximum moves; multiplying by 1 would give the same bits. */
    if (!__any_sync(AQ_CU_ALL, scale[0] != 1 || scale[1] != 1))
        return;
#pragma unroll
    for (uint32_t n = 0; n < D / 8; n++) {
        for (uint32_t e = 0; e < 4; e++)
            w->o[n][e] *= scale[e / 2];
    }
}

#endif
