/* SPDX-License-Identifier: Apache-2.0
 * Prefill attention on tensor cores, in the manner of Dao et al., FlashAttention (arXiv 2205.14135)
 * and FlashAttention-2 (arXiv 2307.08691): no score leaves the registers.
 *
 * A block of four warps has 64 queries of a KV head (the query heads of a row are neighbours, so
 * that they share K and V), 16 a warp, and passes over the head-blocks from the first one that one
 * of its queries sees: K and V of 32 slots, contiguous in memory, into stages of shared memory.
 * Copies that run on their own are two head-blocks ahead, in three stages; where there are none, or
 * codes become values on their way, threads load the next head-block before they multiply one and
 * store it in the other of two stages behind that.  A warp keeps its queries, the largest score,
 * the sum of weights and the weighted values in registers; its weights are in the right places for
 * the second product as they come out of the first one.  Every sum of a row is that row's own, in
 * one order, and a head-block of which it sees nothing changes none: a row has the same bits
 * whatever shares its tile.
 *
 * Queries (times scale), weights and values of codes are rounded to the 16-bit dtype of the cache;
 * scores, maxima, sums and values are f32.  Weights are powers of two of scores times log2(e). */
#include "kernels/cuda/attn_rows.cuh"

enum {
    WARPS = 4,
    THREADS = WARPS * AQ_CU_WARP,
    WARP_QUERIES = AQ_CU_TILE_QUERIES,
    BLOCK_QUERIES = WARPS * WARP_QUERIES,
    COPIED_STAGES = 3,
    LOADED_STAGES = 2,
};

/* Scores of 16 queries and 32 keys. */
template <enum aq_dtype C, uint32_t D>
AQ_DEVICE_FN void multiply_keys(float s[4][4], const struct aq_cu_lane_rows<D> *w,
                                const uint4 *stage)
{
    uint32_t lane = aq_cu_lane(), key = lane / 16 * 8 + lane % 8;
#pragma unroll
    for (uint32_t k = 0; k < D / 16; k++) {
#pragma unroll
        for (uint32_t half = 0; half < 2; half++) {
            uint32_t b[4];
            aq_cu_ldmatrix(b, stage + aq_cu_tile_at<D>(16 * half + key, 2 * k + lane / 8 % 2));
            aq_cu_mma<C>(s[2 * half], w->q[k], b);
            aq_cu_mma<C>(s[2 * half + 1], w->q[k], b + 2);
        }
    }
}

/* o += weights times values: what two products gave side by side is what one takes along k. */
template <enum aq_dtype C, uint32_t D>
AQ_DEVICE_FN void multiply_values(const float s[4][4], struct aq_cu_lane_rows<D> *w,
                                  const uint4 *stage)
{
    uint32_t lane = aq_cu_lane(), value = AQ_HEAD_BLOCK_SLOTS + lane % 16;
#pragma unroll
    for (uint32_t k = 0; k < 2; k++) {
        uint32_t p[4];
#pragma unroll
        for (uint32_t i = 0; i < 4; i++)
            p[i] = aq_cu_pair<C>(s[2 * k + i / 2][i % 2 * 2], s[2 * k + i / 2][i % 2 * 2 + 1]);
#pragma unroll
        for (uint32_t n = 0; n < D / 16; n++) {
            uint32_t b[4];
            aq_cu_ldmatrix_transposed(b,
                                      stage + aq_cu_tile_at<D>(16 * k + value, 2 * n + lane / 16));
            aq_cu_mma<C>(w->o[2 * n], p, b);
            aq_cu_mma<C>(w->o[2 * n + 1], p, b + 2);
        }
    }
}

template <uint32_t D>
AQ_DEVICE_FN void store_rows(const struct aq_attn *a, const struct aq_attn_seq *s, uint32_t head,
                             uint32_t first, const struct aq_cu_lane_rows<D> *w)
{
    uint32_t lane = aq_cu_lane(), queries = s->rows * a->q_per_kv;
#pragma unroll
    for (uint32_t r = 0; r < 2; r++) {
        float sum = w->sum[r];
        sum += __shfl_xor_sync(AQ_CU_ALL, sum, 1);
        sum += __shfl_xor_sync(AQ_CU_ALL, sum, 2);
        uint32_t n = first + lane / 4 + 8 * r;
        if (n >= queries)
            continue;
        size_t row = aq_cu_query_row(s->row, a->q_per_kv, n);
        size_t q_head = static_cast<size_t>(head) * a->q_per_kv + n % a->q_per_kv;
        size_t at = row * a->out_stride + q_head * D + lane % 4 * 2;
        float inverse = 1 / sum; /* one division, not one an element */
#pragma unroll
        for (uint32_t i = 0; i < D / 4; i++) {
            float o = w->keys[r] ? w->o[i / 2][2 * r + i % 2] * inverse : 0;
            aq_cu_store(a->out, a->out_dtype, at + i / 2 * 8 + i % 2, o);
        }
        if (lane % 4 == 0 && a->log_sum_exp) {
            float base = w->max[r] == -INFINITY ? 0 : w->max[r] * AQ_CU_LN2;
            a->log_sum_exp[row * a->kv_heads * a->q_per_kv + q_head] =
                w->keys[r] ? base + logf(sum) : -INFINITY;
        }
    }
}

AQ_DEVICE_FN uint8_t *block_at(const struct aq_attn_seq *s, uint32_t head, uint32_t at,
                               uint32_t blocks)
{
    return at < blocks ? aq_cu_block(s, head, at) : NULL;
}

/* Where copies run on their own, registers of a thread are few enough for three blocks of them. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#define TILE_BLOCKS(T, D) 2
#else
#define TILE_BLOCKS(T, D) ((T) == AQ_F16 || (T) == AQ_BF16 || (D) == 64 ? 3 : 2)
#endif

/* A grid of (64 queries, KV heads, sequences); the queries that see most come first. */
template <enum aq_dtype T, uint32_t D>
__global__ void __launch_bounds__(THREADS, TILE_BLOCKS(T, D)) prefill_tile(struct aq_attn a)
{
    constexpr enum aq_dtype C = T == AQ_BF16 ? AQ_BF16 : AQ_F16;
    constexpr uint32_t stage_units = 2 * AQ_HEAD_BLOCK_SLOTS * D / 8;
    AQ_SHARED(uint4, stages);
    const struct aq_attn_seq *s = &a.seqs[blockIdx.z];
    uint32_t head = blockIdx.y, queries = s->rows * a.q_per_kv, len = aq_cu_len(s, head);
    uint32_t tiles = (queries + BLOCK_QUERIES - 1) / BLOCK_QUERIES;
    if (blockIdx.x >= tiles)
        return;
    uint32_t tile = (tiles - 1 - blockIdx.x) * BLOCK_QUERIES;
    uint32_t first = tile + threadIdx.x / AQ_CU_WARP * WARP_QUERIES;
    uint32_t last = aq_cu_min(first + WARP_QUERIES, queries) - 1;
    /* Keys of the block's last query; of the warp's first one and its last one. */
    uint32_t keys =
        aq_cu_visible(len, s->rows, (aq_cu_min(tile + BLOCK_QUERIES, queries) - 1) / a.q_per_kv);
    uint32_t least = first < queries ? aq_cu_visible(len, s->rows, first / a.q_per_kv) : 0;
    uint32_t most = first < queries ? aq_cu_visible(len, s->rows, last / a.q_per_kv) : 0;
    uint32_t begin = aq_cu_first(&a, aq_cu_visible(len, s->rows, tile / a.q_per_kv));
    uint32_t b = begin / AQ_HEAD_BLOCK_SLOTS;
    uint32_t blocks = (keys + AQ_HEAD_BLOCK_SLOTS - 1) / AQ_HEAD_BLOCK_SLOTS;
    bool copies = !aq_cu_is_quantised(T) && aq_cu_copies_alone();
    uint32_t stage_count = copies ? COPIED_STAGES : LOADED_STAGES;
    struct aq_cu_next_block<T, D> next;
    static_assert(next.threads == THREADS, "all of them");
    for (uint32_t early = b; early < b + stage_count - 1; early++) {
        uint8_t *block = block_at(s, head, early, blocks);
        uint4 *stage = stages + early % stage_count * stage_units;
        if (block && copies) {
            aq_cu_stage_block<D>(stage, block, T, 2 * AQ_HEAD_BLOCK_SLOTS,
                                 len - early * AQ_HEAD_BLOCK_SLOTS, threadIdx.x, THREADS);
        } else if (block) {
            next.load(block, threadIdx.x);
            next.store(stage, len - early * AQ_HEAD_BLOCK_SLOTS, threadIdx.x);
        }
        aq_cu_copy_commit();
    }
    uint8_t *coming = block_at(s, head, b + stage_count - 1, blocks);
    struct aq_cu_lane_rows<D> w;
    aq_cu_load_queries<C, D, struct aq_cu_in_order>(&a, {s->row, s->rows, len, false}, head, first,
                                                    &w);
    for (; b < blocks; b++) {
        uint32_t slot = b * AQ_HEAD_BLOCK_SLOTS, ahead = b + stage_count - 1;
        uint8_t *block = copies ? NULL : coming;
        if (copies)
            aq_cu_copy_wait<COPIED_STAGES - 2>();
        __syncthreads(); /* block b is there for all threads; the stage of b - 1 is free */
        if (copies && ahead < blocks)
            aq_cu_stage_block<D>(stages + ahead % stage_count * stage_units,
                                 aq_cu_block(s, head, ahead), T, 2 * AQ_HEAD_BLOCK_SLOTS,
                                 len - ahead * AQ_HEAD_BLOCK_SLOTS, threadIdx.x, THREADS);
        aq_cu_copy_commit();
        if (block) {
            next.load(block, threadIdx.x);
            coming = block_at(s, head, ahead + 1, blocks);
        }
        if (slot < most && slot + AQ_HEAD_BLOCK_SLOTS > aq_cu_first(&a, least)) {
            const uint4 *stage = stages + b % stage_count * stage_units;
            float x[4][4] = {};
            multiply_keys<C, D>(x, &w, stage);
            aq_cu_weigh<D, 4>(x, &w, slot,
                              slot + AQ_HEAD_BLOCK_SLOTS > least || slot < aq_cu_first(&a, most));
            multiply_values<C, D>(x, &w, stage);
        }
        if (block)
            next.store(stages + ahead % stage_count * stage_units,
                       len - ahead * AQ_HEAD_BLOCK_SLOTS, threadIdx.x);
    }
    store_rows<D>(&a, s, head, first, &w);
}

template <enum aq_dtype T>
static int launch(const struct aq_cuda_exec *ex, const struct aq_attn *a, dim3 grid)
{
    uint32_t stages = aq_dtype_is_quantised(T) || ex->sm < 80 ? LOADED_STAGES : COPIED_STAGES;
    size_t shared = stages * 2 * AQ_HEAD_BLOCK_SLOTS * a->head_dim * sizeof(uint16_t);
    assert(shared <= AQ_CU_SHARED_MAX);
    auto kernel = a->head_dim == 64   ? prefill_tile<T, 64>
                  : a->head_dim == 80 ? prefill_tile<T, 80>
                  : a->head_dim == 96 ? prefill_tile<T, 96>
                                      : prefill_tile<T, 128>;
    return AQ_LAUNCH(ex, kernel, grid, THREADS, shared, *a);
}

int aq_cuda_attn_prefill(const struct aq_cuda_exec *ex, const struct aq_attn *a)
{
    if (!aq_cu_tile_takes(ex, a))
        return aq_cuda_attn_prefill_plain(ex, a);
    assert(a->kv_heads <= AQ_CU_GRID_YZ_MAX && a->seq_count <= AQ_CU_GRID_YZ_MAX);
    if (!a->seq_count || !a->reach.rows)
        return 0;
    uint64_t queries = static_cast<uint64_t>(a->reach.rows) * a->q_per_kv;
    dim3 grid(aq_cu_div_up(queries, BLOCK_QUERIES), a->kv_heads, a->seq_count);
    switch (a->kv_dtype) {
    case AQ_F16: return launch<AQ_F16>(ex, a, grid);
    case AQ_BF16: return launch<AQ_BF16>(ex, a, grid);
    case AQ_Q8: return launch<AQ_Q8>(ex, a, grid);
    case AQ_Q4: return launch<AQ_Q4>(ex, a, grid);
    default: return -EINVAL;
    }
}
