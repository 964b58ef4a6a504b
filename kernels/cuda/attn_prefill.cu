/* SPDX-License-Identifier: Apache-2.0
 * Prefill attention on tensor cores, in the manner of Dao et al., FlashAttention (arXiv 2205.14135)
 * and FlashAttention-2 (arXiv 2307.08691): no score leaves the registers.
 *
 * A block of four warps has 64 or 128 queries of a KV head (the query heads of a row are
 * neighbours, so that they share K and V), 16 or 32 a warp, and passes over the head-blocks from
 * the first one that one of its queries sees: K and V of 32 slots, contiguous in memory, into
 * stages of shared memory.  Copies that run on their own are two head-blocks ahead, in three
 * stages; where there are none, or codes become values on their way, threads load the next
 * head-block before they multiply one and store it in the other of two stages behind that.  A warp
 * keeps its queries, the largest score, the sum of weights and the weighted values in registers;
 * its weights are in the right places for the second product as they come out of the first one.  Of
 * 16 queries the tensor cores of an A100 take as long as shared memory takes to bring them keys and
 * values, those of an H100 less: on both a warp has 32, and of heads of 96 and 128, which leave few
 * registers for them, queries lie in shared memory as lanes take them.  Every sum of a row is that
 * row's own, in one order, and a head-block of which it sees nothing changes none: a row has the
 * same bits whatever shares its tile.
 *
 * Queries (times scale), weights and values of codes are rounded to the 16-bit dtype of the cache;
 * scores, maxima, sums and values are f32.  Weights are powers of two of scores times log2(e). */
#include "kernels/cuda/attn_rows.cuh"

enum {
    WARPS = 4,
    THREADS = WARPS * AQ_CU_WARP,
    TILE_QUERIES = AQ_CU_TILE_QUERIES,
    COPIED_STAGES = 3,
    LOADED_STAGES = 2,
};

/* Do a warp's M times 16 queries lie in shared memory? */
template <uint32_t D, uint32_t M> constexpr bool queries_lie_apart = D >= 96 && M > 1;

/* The queries of a lane, M times 16 of its warp: q[m][k] is at
 * q + (m * D / 16 + k) * AQ_CU_WARP. */
template <uint32_t D, uint32_t M>
AQ_DEVICE_FN void keep_queries(uint4 *q, const struct aq_cu_lane_rows<D> *w)
{
#pragma unroll
    for (uint32_t i = 0; i < M * (D / 16); i++) {
        const uint32_t *of = w[i / (D / 16)].q[i % (D / 16)];
        q[i * AQ_CU_WARP] = {of[0], of[1], of[2], of[3]};
    }
}

/* Scores of M times 16 queries and 32 keys; q: the queries where they lie apart. */
template <enum aq_dtype C, uint32_t D, uint32_t M>
AQ_DEVICE_FN void multiply_keys(float s[M][4][4], const struct aq_cu_lane_rows<D> *w,
                                const uint4 *q, const uint4 *stage)
{
    uint32_t lane = aq_cu_lane(), key = lane / 16 * 8 + lane % 8;
#pragma unroll
    for (uint32_t k = 0; k < D / 16; k++) {
        uint32_t query[M][4];
#pragma unroll
        for (uint32_t m = 0; m < M; m++) {
            uint4 apart = queries_lie_apart<D, M> ? q[(m * (D / 16) + k) * AQ_CU_WARP] : uint4{};
            const uint32_t from[] = {apart.x, apart.y, apart.z, apart.w};
#pragma unroll
            for (uint32_t i = 0; i < 4; i++)
                query[m][i] = queries_lie_apart<D, M> ? from[i] : w[m].q[k][i];
        }
#pragma unroll
        for (uint32_t half = 0; half < 2; half++) {
            uint32_t b[4];
            aq_cu_ldmatrix(b, stage + aq_cu_tile_at<D>(16 * half + key, 2 * k + lane / 8 % 2));
#pragma unroll
            for (uint32_t m = 0; m < M; m++) {
                aq_cu_mma<C>(s[m][2 * half], query[m], b);
                aq_cu_mma<C>(s[m][2 * half + 1], query[m], b + 2);
            }
        }
    }
}

/* o += weights times values: what two products gave side by side is what one takes along k. */
template <enum aq_dtype C, uint32_t D, uint32_t M>
AQ_DEVICE_FN void multiply_values(const float s[M][4][4], struct aq_cu_lane_rows<D> *w,
                                  const uint4 *stage)
{
    uint32_t lane = aq_cu_lane(), value = AQ_HEAD_BLOCK_SLOTS + lane % 16;
#pragma unroll
    for (uint32_t k = 0; k < 2; k++) {
        uint32_t p[M][4];
#pragma unroll
        for (uint32_t i = 0; i < 4 * M; i++) {
            const float *from = &s[i / 4][2 * k + i % 4 / 2][i % 2 * 2];
            p[i / 4][i % 4] = aq_cu_pair<C>(from[0], from[1]);
        }
#pragma unroll
        for (uint32_t n = 0; n < D / 16; n++) {
            uint32_t b[4];
            aq_cu_ldmatrix_transposed(b,
                                      stage + aq_cu_tile_at<D>(16 * k + value, 2 * n + lane / 16));
#pragma unroll
            for (uint32_t m = 0; m < M; m++) {
                aq_cu_mma<C>(w[m].o[2 * n], p[m], b);
                aq_cu_mma<C>(w[m].o[2 * n + 1], p[m], b + 2);
            }
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

/* All that a block of threads does. */
template <enum aq_dtype T, uint32_t D, uint32_t M> AQ_DEVICE_FN void attend(const struct aq_attn &a)
{
    constexpr enum aq_dtype C = T == AQ_BF16 ? AQ_BF16 : AQ_F16;
    constexpr uint32_t stage_units = 2 * AQ_HEAD_BLOCK_SLOTS * D / 8;
    constexpr uint32_t warp_queries = M * TILE_QUERIES, block_queries = WARPS * warp_queries;
    AQ_SHARED(uint4, stages);
    const struct aq_attn_seq *s = &a.seqs[blockIdx.z];
    uint32_t head = blockIdx.y, queries = s->rows * a.q_per_kv, len = aq_cu_len(s, head);
    uint32_t tiles = (queries + block_queries - 1) / block_queries;
    if (blockIdx.x >= tiles)
        return;
    uint32_t tile = (tiles - 1 - blockIdx.x) * block_queries;
    uint32_t first = tile + threadIdx.x / AQ_CU_WARP * warp_queries;
    uint32_t last = aq_cu_min(first + warp_queries, queries) - 1;
    /* Keys of the block's last query; of the warp's first one and its last one. */
    uint32_t keys =
        aq_cu_visible(len, s->rows, (aq_cu_min(tile + block_queries, queries) - 1) / a.q_per_kv);
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
    struct aq_cu_lane_rows<D> w[M];
#pragma unroll
    for (uint32_t m = 0; m < M; m++)
        aq_cu_load_queries<C, D, struct aq_cu_in_order>(&a, {s->row, s->rows, len, false}, head,
                                                        first + m * TILE_QUERIES, &w[m]);
    uint4 *apart = stages + stage_count * stage_units +
                   threadIdx.x / AQ_CU_WARP * (M * (D / 16) * AQ_CU_WARP) + aq_cu_lane();
    if (queries_lie_apart<D, M>)
        keep_queries<D, M>(apart, w);
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
            float x[M][4][4] = {};
            bool masked = slot + AQ_HEAD_BLOCK_SLOTS > least || slot < aq_cu_first(&a, most);
            multiply_keys<C, D, M>(x, w, apart, stage);
#pragma unroll
            for (uint32_t m = 0; m < M; m++)
                aq_cu_weigh<D, 4>(x[m], &w[m], slot, masked);
            multiply_values<C, D, M>(x, w, stage);
        }
        if (block)
            next.store(stages + ahead % stage_count * stage_units,
                       len - ahead * AQ_HEAD_BLOCK_SLOTS, threadIdx.x);
    }
#pragma unroll
    for (uint32_t m = 0; m < M; m++)
        store_rows<D>(&a, s, head, first + m * TILE_QUERIES, &w[m]);
}

/* Are tensor cores as fast as shared memory, or faster?  Those of data centres from 8.0 on are,
 * which add products of 16 bits in f32 at their full rate (CUDA C++ programming guide, throughput
 * of arithmetic instructions). */
#define FAST_TENSOR_CORES(sm) ((sm) == 80 || ((sm) >= 90 && (sm) < 120))
#ifdef __CUDA_ARCH__
#define COMPILED_FOR (__CUDA_ARCH__ / 10)
#else
#define COMPILED_FOR 90
#endif

/* Blocks of an SM, for which a thread's registers are few enough: three, where copies run on their
 * own and a warp has 16 queries. */
template <enum aq_dtype T, uint32_t D, uint32_t M>
constexpr uint32_t
    tile_blocks = COMPILED_FOR >= 80 && M == 1 && (T == AQ_F16 || T == AQ_BF16 || D == 64) ? 3 : 2;

/* A grid of (64 M queries, KV heads, sequences); the queries that see most come first. */
template <enum aq_dtype T, uint32_t D, uint32_t M>
__global__ void __launch_bounds__(THREADS, (tile_blocks<T, D, M>)) prefill_tile(struct aq_attn a)
{
    if constexpr (M == 1 || FAST_TENSOR_CORES(COMPILED_FOR))
        attend<T, D, M>(a);
    else
        __trap(); /* launch_tile() asks for it where there is code for it */
}

template <enum aq_dtype T, uint32_t M>
static int launch(const struct aq_cuda_exec *ex, const struct aq_attn *a)
{
    uint32_t stages = aq_dtype_is_quantised(T) || ex->sm < 80 ? LOADED_STAGES : COPIED_STAGES;
    size_t shared = stages * 2 * AQ_HEAD_BLOCK_SLOTS * a->head_dim * sizeof(uint16_t);
    uint64_t queries = static_cast<uint64_t>(a->reach.rows) * a->q_per_kv;
    dim3 grid(aq_cu_div_up(queries, WARPS * TILE_QUERIES * M), a->kv_heads, a->seq_count);
    bool apart = a->head_dim >= 96 && queries_lie_apart<96, M>;
    shared += apart ? THREADS * M * (a->head_dim / 16) * sizeof(uint4) : 0;
    auto kernel = a->head_dim == 64   ? prefill_tile<T, 64, M>
                  : a->head_dim == 80 ? prefill_tile<T, 80, M>
                  : a->head_dim == 96 ? prefill_tile<T, 96, M>
                                      : prefill_tile<T, 128, M>;
    int rc = aq_cu_allow_shared(ex, kernel, shared);
    return rc ? rc : AQ_LAUNCH(ex, kernel, grid, THREADS, shared, *a);
}

/* Rows have the same bits either way; of few queries half of the warps would have none. */
template <enum aq_dtype T>
static int launch_tile(const struct aq_cuda_exec *ex, const struct aq_attn *a)
{
    bool many = static_cast<uint64_t>(a->reach.rows) * a->q_per_kv > WARPS * TILE_QUERIES;
    return many && FAST_TENSOR_CORES(ex->sm) ? launch<T, 2>(ex, a) : launch<T, 1>(ex, a);
}

int aq_cuda_attn_prefill(const struct aq_cuda_exec *ex, const struct aq_attn *a)
{
    if (!aq_cu_tile_takes(ex, a))
        return aq_cuda_attn_prefill_plain(ex, a);
    assert(a->kv_heads <= AQ_CU_GRID_YZ_MAX && a->seq_count <= AQ_CU_GRID_YZ_MAX);
    if (!a->seq_count || !a->reach.rows)
        return 0;
    switch (a->kv_dtype) {
    case AQ_F16: return launch_tile<AQ_F16>(ex, a);
    case AQ_BF16: return launch_tile<AQ_BF16>(ex, a);
    case AQ_Q8: return launch_tile<AQ_Q8>(ex, a);
    case AQ_Q4: return launch_tile<AQ_Q4>(ex, a);
    default: return -EINVAL;
    }
}
