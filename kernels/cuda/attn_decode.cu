/* SPDX-License-Identifier: Apache-2.0
 * Decode attention over pages of head-blocks, in f32 over the cache's format; also the prefill that
 * tensor cores do not take.  What they take of decode is attn_decode_tile.cu's.
 *
 * Keys are taken in splits of 256 slots.  In a split each warp has every fourth head-block (or
 * second, or each, as K rows get longer): it brings K into shared memory by whole 16-byte units, a
 * lane then holds a key; V is read along the rows, a lane holds elements.  A split ends in its
 * largest score, its sum of weights and its sum of weighted values; splits are joined in ascending
 * order.  That order depends on the head size and the format only, so it gives the same bits
 *   fused: one block of threads sees to all splits of its queries, keeps their scores in shared
 *          memory, updates what is remembered of the slots and chooses the victim; or
 *   apart: a block per split, which leaves all of it in the workspace, a second kernel that joins
 *          and a third for what is remembered: where there are too few sequences to fill the
 *          device, the scores of a head do not fit, or sequences share splits.
 * Bound by reading K and V once (per 4 queries of a KV head). */
#include "kernels/cuda/attn_decode_tile.cuh"
#include "kernels/cuda/mma.cuh" /* copies */

enum {
    QUERIES_MAX = 4, /* that share one reading of K and V */
    JOIN_THREADS = 128,
};

/* Shared memory of a block of threads; the pointers follow each other. */
struct room {
    float *q;       /* [QUERIES][dim], times scale */
    float *s;       /* [QUERIES][cap]: scores, or of one split at a time */
    float *p;       /* [QUERIES][AQ_CU_SPLIT_SLOTS]: weights */
    float *o;       /* [QUERIES][dim]: joined so far */
    float *max;     /* [QUERIES]: joined so far, then */
    float *sum;     /* [QUERIES] */
    float *partial; /* [QUERIES][dim] per warp, in the place of the stages */
    uint8_t *stage; /* 32 K rows per warp */
    uint32_t stage_stride;
};

AQ_DEVICE_FN uint32_t stage_stride_of(enum aq_dtype t, uint32_t dim)
{
    return (aq_cu_kv_row_bytes(t, dim) + 15) / 16 * 16 + 16; /* neighbours in other banks */
}

/* Elements of a query in shared memory: what is past its end is 0. */
AQ_DEVICE_FN uint32_t padded_of(uint32_t dim)
{
    return (dim + 7) / 8 * 8;
}

AQ_DEVICE_FN struct room room_of(const struct aq_cu_decode *p, float *shared, uint32_t nq)
{
    uint32_t dim = padded_of(p->a.head_dim);
    struct room r;
    r.stage_stride = stage_stride_of(p->a.kv_dtype, p->a.head_dim);
    r.stage = reinterpret_cast<uint8_t *>(shared);
    r.partial = shared;
    uint32_t stage = p->warps * AQ_HEAD_BLOCK_SLOTS * r.stage_stride / 4;
    uint32_t partial = p->warps * nq * dim;
    r.q = shared + (stage > partial ? stage : partial);
    r.o = r.q + nq * dim;
    r.p = r.o + nq * dim;
    r.max = r.p + nq * AQ_CU_SPLIT_SLOTS;
    r.sum = r.max + QUERIES_MAX;
    r.s = r.sum + QUERIES_MAX;
    return r;
}

/* The same sum for the host. */
static size_t room_bytes(const struct aq_attn *a, uint32_t warps, uint32_t nq, uint32_t cap)
{
    size_t dim = aq_align_up(a->head_dim, 8);
    size_t stride = aq_align_up(aq_kv_row_bytes(a->kv_dtype, a->head_dim), 16) + 16;
    size_t stage = aq_max_u64(warps * AQ_HEAD_BLOCK_SLOTS * stride, warps * nq * dim * 4);
    return stage + 4 * (2 * nq * dim + nq * AQ_CU_SPLIT_SLOTS + 2 * QUERIES_MAX + nq * cap);
}

/* ---- elements of a row ---- */

/* Bytes that hold N neighbours of a row; of int4 those that have them in one half. */
constexpr uint32_t bytes_of(enum aq_dtype t, uint32_t n)
{
    return t == AQ_F32 ? 4 * n : t == AQ_Q8 || t == AQ_Q4 ? n : 2 * n;
}

template <enum aq_dtype T, uint32_t N>
struct alignas(bytes_of(T, N) < 16 ? bytes_of(T, N) : 16) neighbours {
    uint8_t byte[bytes_of(T, N)];
};

/* Whether rows are neighbours<T, N> throughout. */
template <enum aq_dtype T, uint32_t N> AQ_DEVICE_FN bool is_whole(uint32_t dim)
{
    return dim % N == 0 && (T != AQ_Q4 || (dim + 1) / 2 % N == 0);
}

/* Element e of those at `byte`; of int4 in the upper four bits, where it is one of those. */
template <enum aq_dtype T>
AQ_DEVICE_FN float element(const uint8_t *byte, uint32_t e, bool high, float scale, float minimum)
{
    if (T == AQ_F32)
        return reinterpret_cast<const float *>(byte)[e];
    if (T == AQ_F16)
        return aq_cu_from_f16(reinterpret_cast<const uint16_t *>(byte)[e]);
    if (T == AQ_BF16)
        return aq_cu_from_bf16(reinterpret_cast<const uint16_t *>(byte)[e]);
    uint32_t code = T == AQ_Q8 ? byte[e] : high ? byte[e] >> 4 : byte[e] & 15u;
    return aq_cu_code_value(code, scale, minimum);
}

/* A row of K or V, wherever its elements or codes were brought. */
template <enum aq_dtype T> struct row_of {
    const uint8_t *data;
    float scale, minimum;
    uint32_t dim;

    __device__ row_of(uint8_t *block, const uint8_t *row_data, uint32_t row, uint32_t dim_)
        : data(row_data), scale(1), minimum(0), dim(dim_)
    {
        if constexpr (T == AQ_Q8 || T == AQ_Q4) {
            const uint16_t *of = aq_cu_kv_scale(block, row);
            scale = aq_cu_from_f16(of[0]);
            minimum = aq_cu_from_f16(of[AQ_HEAD_BLOCK_SLOTS]);
        }
    }
    /* N elements from d on, a multiple of N: at once where their bytes lie together. */
    template <uint32_t N> __device__ void load(uint32_t d, float *x) const
    {
        uint32_t half = T == AQ_Q4 ? (dim + 1) / 2 : dim;
        if (sizeof(neighbours<T, N>) >= 4 && is_whole<T, N>(dim)) {
            bool high = d >= half;
            const uint8_t *from = data + (high ? d - half : d) / N * sizeof(neighbours<T, N>);
            neighbours<T, N> w = *reinterpret_cast<const neighbours<T, N> *>(from);
            for (uint32_t e = 0; e < N; e++)
                x[e] = element<T>(w.byte, e, high, scale, minimum);
            return;
        }
        for (uint32_t e = 0; e < N; e++) {
            bool high = d + e >= half;
            x[e] = d + e < dim ? element<T>(data, high ? d + e - half : d + e, high, scale, minimum)
                               : 0;
        }
    }
};

/* ---- one split ---- */

/* A warp copies the K rows of a head-block, 16 bytes at a time where rows are such. */
AQ_DEVICE_FN void stage_keys(const struct room *r, const struct aq_attn *a, uint8_t *to,
                             uint8_t *block)
{
    uint32_t bytes = aq_cu_kv_row_bytes(a->kv_dtype, a->head_dim);
    const uint8_t *from = aq_cu_kv_row(block, a->kv_dtype, a->head_dim, 0);
    __syncwarp(); /* what was there is done with */
    if (bytes % 16 == 0) {
        uint32_t units = bytes / 16, row = aq_cu_lane() / units, unit = aq_cu_lane() % units;
        uint32_t rows = AQ_CU_WARP / units, rest = AQ_CU_WARP % units; /* a step further on */
        for (uint32_t u = aq_cu_lane(); u < AQ_HEAD_BLOCK_SLOTS * units; u += AQ_CU_WARP) {
            aq_cu_copy16(to + row * r->stage_stride + unit * 16, from + 16 * u, true);
            unit += rest;
            row += rows + (unit >= units);
            unit -= unit >= units ? units : 0;
        }
        aq_cu_copy_commit();
        aq_cu_copy_wait<0>();
    } else {
        for (uint32_t u = aq_cu_lane(); u < AQ_HEAD_BLOCK_SLOTS * bytes; u += AQ_CU_WARP)
            to[u / bytes * r->stage_stride + u % bytes] = from[u];
    }
    __syncwarp();
}

/* Whether one of the queries sees a slot of a head-block that begins here. */
AQ_DEVICE_FN bool sees_block(const struct aq_cu_batch *b, uint32_t slot)
{
    return slot < b->len && slot + AQ_HEAD_BLOCK_SLOTS > b->begin;
}

/* s[q][at + slot] of a split that begins at slot `first`; -inf for what a query does not see. */
template <enum aq_dtype T, uint32_t NQ>
AQ_DEVICE_FN void split_scores(const struct aq_cu_decode *p, const struct room *r,
                               const struct aq_cu_batch *b, uint32_t first, uint32_t at)
{
    const struct aq_attn *a = &p->a;
    uint32_t warp = threadIdx.x / AQ_CU_WARP, lane = aq_cu_lane(), dim = a->head_dim;
    uint32_t padded = padded_of(dim);
    uint8_t *stage = r->stage + warp * AQ_HEAD_BLOCK_SLOTS * r->stage_stride;
    for (uint32_t i = warp; i < AQ_CU_SPLIT_BLOCKS; i += p->warps) {
        uint32_t slot = first + i * AQ_HEAD_BLOCK_SLOTS + lane;
        float sum[NQ] = {};
        if (sees_block(b, slot - lane)) {
            uint8_t *block = aq_cu_block(b->s, b->head, slot / AQ_HEAD_BLOCK_SLOTS);
            stage_keys(r, a, stage, block);
            if (slot < b->len) {
                row_of<T> k(block, stage + lane * r->stage_stride, lane, dim);
                for (uint32_t d = 0; d < dim; d += 8) { /* q is 0 past the end */
                    float x[8], y[8];
                    k.template load<8>(d, x); /* 16 bytes of 8 lanes: every bank once */
                    for (uint32_t q = 0; q < NQ; q++) {
                        aq_cu_floats8(y, r->q + q * padded + d);
                        for (uint32_t e = 0; e < 8; e++)
                            sum[q] = fmaf(y[e], x[e], sum[q]);
                    }
                }
            }
        }
        for (uint32_t q = 0; q < NQ; q++) {
            struct aq_cu_span seen = aq_cu_span_of(a, b, q);
            bool sees = slot >= seen.first && slot < seen.end;
            r->s[q * p->cap + at + slot - first] = sees ? sum[q] : -INFINITY;
        }
    }
}

/* p[q][slot] = exp(s - the split's largest); returns through max and sum.  A warp per query. */
template <uint32_t NQ>
AQ_DEVICE_FN void split_weights(const struct aq_cu_decode *p, const struct room *r, uint32_t at,
                                float *max, float *sum)
{
    for (uint32_t q = threadIdx.x / AQ_CU_WARP; q < NQ; q += p->warps) {
        const float *s = r->s + q * p->cap + at;
        float m = -INFINITY, l = 0;
        for (uint32_t i = aq_cu_lane(); i < AQ_CU_SPLIT_SLOTS; i += AQ_CU_WARP)
            m = fmaxf(m, s[i]);
        m = aq_cu_warp_max(m);
        for (uint32_t i = aq_cu_lane(); i < AQ_CU_SPLIT_SLOTS; i += AQ_CU_WARP) {
            float w = expf(s[i] - (m == -INFINITY ? 0 : m));
            r->p[q * AQ_CU_SPLIT_SLOTS + i] = w;
            l += w;
        }
        l = aq_cu_warp_sum(l);
        if (aq_cu_lane() == 0) {
            max[q] = m;
            sum[q] = l;
        }
    }
}

/* Rows of V that are on their way for a lane before the first is used: a loop that waits for each
 * row takes one latency of memory a row, whatever its format. */
enum { ROWS_AHEAD = 8 };

/* What a lane reads of ROWS_AHEAD rows of V.  Behind the last row it is the last once more, and
 * lanes past the head read its first elements: no load waits for a condition. */
template <enum aq_dtype T, uint32_t ELEMENTS> struct rows_ahead {
    neighbours<T, ELEMENTS> v[ROWS_AHEAD];
    uint16_t scale[ROWS_AHEAD], minimum[ROWS_AHEAD];
    bool high; /* of int4: the upper four bits */

    __device__ __forceinline__ void load(uint8_t *block, uint32_t dim, uint32_t own, uint32_t first,
                                         uint32_t n)
    {
        uint32_t half = (dim + 1) / 2, mine = own < dim ? own : 0;
        uint32_t at = T == AQ_Q4 ? mine % half : mine * uint32_t{sizeof(v[0])} / ELEMENTS;
        high = T == AQ_Q4 && mine >= half;
#pragma unroll
        for (uint32_t k = 0; k < ROWS_AHEAD; k++) {
            uint32_t row = AQ_HEAD_BLOCK_SLOTS + aq_cu_min(first + k, n - 1);
            const uint8_t *data = aq_cu_kv_row(block, T, dim, row) + at;
            v[k] = *reinterpret_cast<const neighbours<T, ELEMENTS> *>(data);
            if constexpr (T == AQ_Q8 || T == AQ_Q4) {
                const uint16_t *of = aq_cu_kv_scale(block, row);
                scale[k] = of[0];
                minimum[k] = of[AQ_HEAD_BLOCK_SLOTS];
            }
        }
    }

    __device__ __forceinline__ float value(uint32_t k, uint32_t e) const
    {
        if constexpr (T == AQ_Q8 || T == AQ_Q4)
            return element<T>(v[k].byte, e, high, aq_cu_from_f16(scale[k]),
                              aq_cu_from_f16(minimum[k]));
        return element<T>(v[k].byte, e, false, 0, 0);
    }
};

template <uint32_t ELEMENTS>
AQ_DEVICE_FN void add_row(float *o, float weight, const float *x, bool sees)
{
#pragma unroll
    for (uint32_t e = 0; e < ELEMENTS; e++)
        o[e] = sees ? fmaf(weight, x[e], o[e]) : o[e];
}

/* partial[warp][q][d] = sum over the warp's slots of p V, ascending. */
template <enum aq_dtype T, uint32_t NQ, uint32_t ELEMENTS>
AQ_DEVICE_FN void split_values(const struct aq_cu_decode *p, const struct room *r,
                               const struct aq_cu_batch *b, uint32_t first)
{
    const struct aq_attn *a = &p->a;
    uint32_t warp = threadIdx.x / AQ_CU_WARP, dim = a->head_dim, padded = padded_of(dim);
    uint32_t own = aq_cu_lane() * ELEMENTS; /* the lane's elements are from here on */
    bool whole = is_whole<T, ELEMENTS>(dim);
    float o[NQ][ELEMENTS] = {};
    struct aq_cu_span seen[NQ];
    for (uint32_t q = 0; q < NQ; q++)
        seen[q] = aq_cu_span_of(a, b, q);
    for (uint32_t i = warp; i < AQ_CU_SPLIT_BLOCKS; i += p->warps) {
        uint32_t slot = first + i * AQ_HEAD_BLOCK_SLOTS;
        if (!sees_block(b, slot))
            continue;
        uint8_t *block = aq_cu_block(b->s, b->head, slot / AQ_HEAD_BLOCK_SLOTS);
        uint32_t n = aq_cu_min(AQ_HEAD_BLOCK_SLOTS, b->len - slot);
        for (uint32_t j = 0; whole && j < n; j += ROWS_AHEAD) {
            rows_ahead<T, ELEMENTS> rows;
            rows.load(block, dim, own, j, n);
#pragma unroll
            for (uint32_t k = 0; k < ROWS_AHEAD; k++) {
                float x[ELEMENTS];
#pragma unroll
                for (uint32_t e = 0; e < ELEMENTS; e++)
                    x[e] = rows.value(k, e);
#pragma unroll
                for (uint32_t q = 0; q < NQ; q++) {
                    uint32_t of = slot + aq_cu_min(j + k, n - 1);
                    bool sees = j + k < n && of >= seen[q].first && of < seen[q].end;
                    add_row<ELEMENTS>(o[q], r->p[q * AQ_CU_SPLIT_SLOTS + of - first], x, sees);
                }
            }
        }
        for (uint32_t j = 0; !whole && j < n; j++) {
            uint32_t row = AQ_HEAD_BLOCK_SLOTS + j;
            row_of<T> v(block, aq_cu_kv_row(block, T, dim, row), row, dim);
            float x[ELEMENTS] = {};
            if (own < dim)
                v.template load<ELEMENTS>(own, x);
            for (uint32_t q = 0; q < NQ; q++) {
                bool sees = slot + j >= seen[q].first && slot + j < seen[q].end;
                add_row<ELEMENTS>(o[q], r->p[q * AQ_CU_SPLIT_SLOTS + slot - first + j], x, sees);
            }
        }
    }
    for (uint32_t q = 0; q < NQ; q++) {
        for (uint32_t e = 0; e < ELEMENTS && own + e < dim; e++)
            r->partial[(warp * NQ + q) * padded + own + e] = o[q][e];
    }
}

AQ_DEVICE_FN void load_queries(const struct aq_attn *a, const struct aq_cu_batch *b, float *to,
                               uint32_t nq)
{
    uint32_t padded = padded_of(a->head_dim);
    for (uint32_t i = threadIdx.x; i < nq * padded; i += blockDim.x) {
        uint32_t q = i / padded, d = i % padded;
        float x = 0;
        if (q < b->count && d < a->head_dim) {
            struct aq_cu_place at = aq_cu_place_of(a, b, q);
            x = a->q[at.row * a->q_stride + at.q_head * a->head_dim + d] * a->scale;
        }
        to[i] = x;
    }
}

/* ---- fused ---- */

/* Adds a split to what is joined so far. */
template <uint32_t NQ>
AQ_DEVICE_FN void join_split(const struct aq_cu_decode *p, const struct room *r, const float *max,
                             const float *sum)
{
    uint32_t dim = p->a.head_dim, padded = padded_of(dim);
    for (uint32_t i = threadIdx.x; i < NQ * padded; i += blockDim.x) {
        uint32_t q = i / padded, d = i % padded;
        if (d >= dim)
            continue;
        float o = 0;
        for (uint32_t w = 0; w < p->warps; w++)
            o += r->partial[(w * NQ + q) * padded + d];
        struct aq_cu_joint j = aq_cu_join(r->max[q], max[q]);
        r->o[i] = r->o[i] * j.scale + o * j.other_scale;
    }
    __syncthreads();
    if (threadIdx.x < NQ) {
        uint32_t q = threadIdx.x;
        struct aq_cu_joint j = aq_cu_join(r->max[q], max[q]);
        r->sum[q] = r->sum[q] * j.scale + sum[q] * j.other_scale;
        r->max[q] = j.max;
    }
    __syncthreads();
}

/* A grid of (batches of queries, KV heads, sequences). */
template <enum aq_dtype T, uint32_t NQ, uint32_t ELEMENTS>
__global__ void __launch_bounds__(128, 4) decode_fused(struct aq_cu_decode p)
{
    AQ_SHARED(float, shared);
    const struct aq_attn *a = &p.a;
    struct room r = room_of(&p, shared, NQ);
    struct aq_cu_batch b = aq_cu_batch_of(&p, blockIdx.z, blockIdx.y, blockIdx.x * NQ, NQ);
    if (!b.count)
        return;
    uint32_t dim = a->head_dim, padded = padded_of(dim);
    float *max = r.s + NQ * p.cap, *sum = max + QUERIES_MAX;
    load_queries(a, &b, r.q, NQ);
    for (uint32_t i = threadIdx.x; i < NQ * padded; i += blockDim.x)
        r.o[i] = 0;
    if (threadIdx.x < NQ) {
        r.max[threadIdx.x] = -INFINITY;
        r.sum[threadIdx.x] = 0;
    }
    __syncthreads();
    for (uint32_t first = aq_cu_begin_split(&b); first < b.len; first += AQ_CU_SPLIT_SLOTS) {
        uint32_t at = p.keeps ? first : 0;
        split_scores<T, NQ>(&p, &r, &b, first, at);
        __syncthreads();
        split_weights<NQ>(&p, &r, at, max, sum);
        __syncthreads();
        split_values<T, NQ, ELEMENTS>(&p, &r, &b, first);
        __syncthreads();
        join_split<NQ>(&p, &r, max, sum);
    }
    for (uint32_t i = threadIdx.x; i < b.count * padded; i += blockDim.x) {
        uint32_t q = i / padded, d = i % padded;
        if (d < dim)
            aq_cu_store_out(a, aq_cu_place_of(a, &b, q), d, r.o[i], r.sum[q],
                            aq_cu_keys_of(&b, a->q_per_kv, q));
    }
    __syncthreads();
    if (threadIdx.x < b.count) {
        struct aq_cu_place at = aq_cu_place_of(a, &b, threadIdx.x);
        float log_sum = aq_cu_log_sum_of(r.max[threadIdx.x], r.sum[threadIdx.x]);
        if (a->log_sum_exp)
            a->log_sum_exp[at.row * a->kv_heads * a->q_per_kv + at.q_head] = log_sum;
        max[threadIdx.x] = log_sum;
    }
    __syncthreads();
    if (p.keeps)
        aq_cu_remember(&p, &b, r.s, p.cap, max, reinterpret_cast<uint32_t *>(r.partial));
}

/* ---- apart ---- */

/* A grid of (splits x batches of queries, KV heads, sequences). */
template <enum aq_dtype T, uint32_t NQ, uint32_t ELEMENTS>
__global__ void __launch_bounds__(128, 4)
    decode_split(struct aq_cu_decode p, uint32_t scores_stride)
{
    AQ_SHARED(float, shared);
    const struct aq_attn *a = &p.a;
    struct room r = room_of(&p, shared, NQ);
    uint32_t split = blockIdx.x % p.splits, first = split * AQ_CU_SPLIT_SLOTS;
    struct aq_cu_batch b =
        aq_cu_split_batch_of(&p, blockIdx.z, blockIdx.y, blockIdx.x / p.splits * NQ, NQ, split);
    if (!b.count || first < aq_cu_begin_split(&b) || first >= b.len)
        return;
    uint32_t dim = a->head_dim, padded = padded_of(dim);
    float *max = r.max, *sum = r.sum;
    load_queries(a, &b, r.q, NQ);
    __syncthreads();
    split_scores<T, NQ>(&p, &r, &b, first, 0);
    __syncthreads();
    split_weights<NQ>(&p, &r, 0, max, sum);
    __syncthreads();
    split_values<T, NQ, ELEMENTS>(&p, &r, &b, first);
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < b.count * padded; i += blockDim.x) {
        uint32_t q = i / padded, d = i % padded;
        if (d >= dim)
            continue;
        size_t query = aq_cu_query_index(&p, &b, blockIdx.z, q);
        float o = 0;
        for (uint32_t w = 0; w < p.warps; w++)
            o += r.partial[(w * NQ + q) * padded + d];
        p.parts[(query * p.splits + split) * (dim + 2) + d] = o;
    }
    if (threadIdx.x < b.count) {
        size_t query = aq_cu_query_index(&p, &b, blockIdx.z, threadIdx.x);
        float *to = p.parts + (query * p.splits + split) * (dim + 2) + dim;
        to[0] = max[threadIdx.x];
        to[1] = sum[threadIdx.x];
    }
    for (uint32_t i = threadIdx.x; p.keeps && i < b.count * AQ_CU_SPLIT_SLOTS; i += blockDim.x) {
        uint32_t q = i / AQ_CU_SPLIT_SLOTS, j = i % AQ_CU_SPLIT_SLOTS;
        size_t query = aq_cu_query_index(&p, &b, blockIdx.z, q);
        p.scores[query * scores_stride + first + j] = r.s[q * p.cap + j];
    }
}

/* A grid of (queries, KV heads, sequences): out and the log of the sum, which also goes where the
 * first split's largest score was, for decode_remember. */
__global__ void __launch_bounds__(JOIN_THREADS) decode_join(struct aq_cu_decode p)
{
    const struct aq_attn *a = &p.a;
    struct aq_cu_batch b = aq_cu_batch_of(&p, blockIdx.z, blockIdx.y, blockIdx.x, 1);
    if (!b.count)
        return;
    uint32_t dim = a->head_dim, keys = aq_cu_keys_of(&b, a->q_per_kv, 0);
    struct aq_cu_place at = aq_cu_place_of(a, &b, 0);
    float *parts = p.parts + (aq_cu_head_index(&p, blockIdx.z, blockIdx.y) + blockIdx.x) *
                                 p.splits * (dim + 2);
    float max = -INFINITY, sum = 0;
    for (uint32_t d = threadIdx.x; d < dim; d += blockDim.x) {
        float o = 0;
        max = -INFINITY;
        sum = 0;
        for (uint32_t first = aq_cu_begin_split(&b); first < b.len; first += AQ_CU_SPLIT_SLOTS) {
            const float *part = parts + first / AQ_CU_SPLIT_SLOTS * (dim + 2);
            struct aq_cu_joint j = aq_cu_join(max, part[dim]);
            o = o * j.scale + part[d] * j.other_scale;
            sum = sum * j.scale + part[dim + 1] * j.other_scale;
            max = j.max;
        }
        aq_cu_store_out(a, at, d, o, sum, keys);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        float log_sum = aq_cu_log_sum_of(max, sum);
        if (a->log_sum_exp)
            a->log_sum_exp[at.row * a->kv_heads * a->q_per_kv + at.q_head] = log_sum;
        parts[dim] = log_sum;
    }
}

/* A grid of (KV heads, sequences). */
__global__ void __launch_bounds__(JOIN_THREADS, 4)
    decode_remember(struct aq_cu_decode p, uint32_t scores_stride, float *log_sums)
{
    AQ_SHARED(uint32_t, shared);
    const struct aq_attn *a = &p.a;
    struct aq_cu_batch b = aq_cu_batch_of(&p, blockIdx.y, blockIdx.x, 0, UINT32_MAX);
    size_t query = aq_cu_head_index(&p, blockIdx.y, blockIdx.x);
    for (uint32_t n = threadIdx.x; n < b.count && b.len; n += blockDim.x)
        log_sums[query + n] = p.parts[(query + n) * p.splits * (a->head_dim + 2) + a->head_dim];
    __syncthreads();
    aq_cu_remember(&p, &b, p.scores + query * scores_stride, scores_stride, log_sums + query,
                   shared);
}

/* ---- launchers ---- */

/* Warps of a block: as many as its shared memory has stages for. */
static uint32_t warps_for(const struct aq_attn *a)
{
    size_t bytes = aq_kv_row_bytes(a->kv_dtype, a->head_dim);
    return bytes <= 256 ? 4 : bytes <= 512 ? 2 : 1;
}

template <enum aq_dtype T, uint32_t NQ, uint32_t ELEMENTS>
static int launch_fused(const struct aq_cuda_exec *ex, const struct aq_cu_decode &p, dim3 grid,
                        size_t shared)
{
    auto kernel = decode_fused<T, NQ, ELEMENTS>;
    return AQ_LAUNCH(ex, kernel, grid, p.warps * AQ_CU_WARP, shared, p);
}

template <enum aq_dtype T, uint32_t NQ, uint32_t ELEMENTS>
static int launch_split(const struct aq_cuda_exec *ex, const struct aq_cu_decode &p, dim3 grid,
                        size_t shared)
{
    auto kernel = decode_split<T, NQ, ELEMENTS>;
    uint32_t scores_stride = p.splits * AQ_CU_SPLIT_SLOTS;
    return AQ_LAUNCH(ex, kernel, grid, p.warps * AQ_CU_WARP, shared, p, scores_stride);
}

template <enum aq_dtype T>
static int launch_any(const struct aq_cuda_exec *ex, const struct aq_cu_decode &p, bool fused,
                      dim3 grid, size_t shared)
{
    if (p.a.head_dim > 128)
        return fused ? launch_fused<T, 1, 8>(ex, p, grid, shared)
                     : launch_split<T, 1, 8>(ex, p, grid, shared);
    return fused ? launch_fused<T, QUERIES_MAX, 4>(ex, p, grid, shared)
                 : launch_split<T, QUERIES_MAX, 4>(ex, p, grid, shared);
}

/* How K and V are read: for so many queries at a time, by the kernels here or on tensor cores. */
struct way {
    uint32_t queries;
    bool group;
};

/* Whether splits are read for several sequences at once. */
static bool shares(const struct aq_attn *a)
{
    return a->reach.joint && a->reach.rows == 1 && !a->window && !a->rule.victim;
}

static struct way plain_way(const struct aq_attn *a)
{
    return {a->head_dim > 128 ? 1u : uint32_t{QUERIES_MAX}, false};
}

static size_t shared_bytes(const struct aq_cu_decode *p, struct way way, bool fused)
{
    if (way.group)
        return aq_cuda_decode_tile_bytes(p, fused);
    size_t joined = fused ? 2 * QUERIES_MAX * sizeof(float) : 0;
    return room_bytes(&p->a, p->warps, way.queries, p->cap) + joined;
}

static int launch(const struct aq_cuda_exec *ex, const struct aq_cu_decode &p, struct way way,
                  bool fused)
{
    uint32_t batches = aq_cu_div_up(p.queries, way.queries);
    dim3 grid(fused ? batches : p.splits * batches, p.a.kv_heads, p.a.seq_count);
    size_t shared = shared_bytes(&p, way, fused);
    if (way.group)
        return aq_cuda_decode_tile_launch(ex, p, fused, grid);
    switch (p.a.kv_dtype) {
    case AQ_F32: return launch_any<AQ_F32>(ex, p, fused, grid, shared);
    case AQ_F16: return launch_any<AQ_F16>(ex, p, fused, grid, shared);
    case AQ_BF16: return launch_any<AQ_BF16>(ex, p, fused, grid, shared);
    case AQ_Q8: return launch_any<AQ_Q8>(ex, p, fused, grid, shared);
    case AQ_Q4: return launch_any<AQ_Q4>(ex, p, fused, grid, shared);
    default: return -EINVAL;
    }
}

/* At least one, also where no sequence has a key. */
static uint32_t splits_for(struct aq_attn_reach reach)
{
    return reach.len ? aq_cu_div_up(reach.len, AQ_CU_SPLIT_SLOTS) : 1;
}

/* Floats of the workspace, in the order of struct aq_cu_decode, then a log of a sum per query. */
static size_t workspace_floats(const struct aq_attn *a, bool keeps, size_t *scores, size_t *parts)
{
    uint64_t splits = splits_for(a->reach);
    uint64_t queries = (uint64_t)a->seq_count * a->kv_heads * a->reach.rows * a->q_per_kv;
    *scores = keeps ? queries * splits * AQ_CU_SPLIT_SLOTS : 0;
    *parts = queries * splits * (a->head_dim + 2);
    return *scores + *parts + (keeps ? queries : 0);
}

size_t aq_cuda_attn_decode_workspace(const struct aq_attn *a)
{
    size_t scores, parts;
    return workspace_floats(a, a->rule.victim, &scores, &parts) * sizeof(float);
}

static int run_apart(const struct aq_cuda_exec *ex, struct aq_cu_decode p, struct way way)
{
    const struct aq_attn *a = &p.a;
    size_t scores, parts;
    if (workspace_floats(a, p.keeps, &scores, &parts) * sizeof(float) > ex->workspace_bytes)
        return -ENOSPC;
    p.scores = static_cast<float *>(ex->workspace);
    p.parts = p.scores + scores;
    p.cap = AQ_CU_SPLIT_SLOTS;
    int rc = launch(ex, p, way, false);
    if (!rc)
        rc = AQ_LAUNCH(ex, decode_join, dim3(p.queries, a->kv_heads, a->seq_count), JOIN_THREADS, 0,
                       p);
    if (rc || !p.keeps)
        return rc;
    float *log_sums = p.parts + parts;
    return AQ_LAUNCH(ex, decode_remember, dim3(a->kv_heads, a->seq_count), JOIN_THREADS,
                     JOIN_THREADS / AQ_CU_WARP * 3 * sizeof(uint32_t), p,
                     p.splits * AQ_CU_SPLIT_SLOTS, log_sums);
}

static int decode(const struct aq_cuda_exec *ex, const struct aq_attn *a, struct way way)
{
    assert(aq_dtype_is_float(a->out_dtype) && a->head_dim <= 256);
    assert(a->kv_heads <= AQ_CU_GRID_YZ_MAX && a->seq_count <= AQ_CU_GRID_YZ_MAX);
    if (!a->seq_count || !a->reach.rows)
        return 0;
    struct aq_cu_decode p = {
        *a,   warps_for(a), AQ_CU_SPLIT_SLOTS, 0, 0, 1, a->rule.victim != AQ_ATTN_NO_RULE,
        NULL, NULL};
    p.queries = a->reach.rows * a->q_per_kv;
    p.splits = splits_for(a->reach);
    p.joint = shares(a) && way.queries > p.queries ? way.queries / p.queries : 1;
    uint32_t batches = aq_cu_div_up(p.queries, way.queries);
    if (p.keeps)
        p.cap = p.splits * AQ_CU_SPLIT_SLOTS;
    bool fits = shared_bytes(&p, way, true) <= AQ_CU_SHARED_MAX && (!p.keeps || batches == 1);
    uint64_t blocks = (uint64_t)batches * a->kv_heads * a->seq_count;
    bool apart = p.joint > 1 || (p.splits > 1 && blocks < 2ull * ex->multiprocessors);
    if (fits && apart && aq_cuda_attn_decode_workspace(a) > ex->workspace_bytes)
        apart = false; /* slower, the same bits */
    return fits && !apart ? launch(ex, p, way, true) : run_apart(ex, p, way);
}

int aq_cuda_attn_decode(const struct aq_cuda_exec *ex, const struct aq_attn *a)
{
    struct way group = {AQ_CU_DECODE_QUERIES, true};
    return decode(ex, a, aq_cu_tile_takes(ex, a) ? group : plain_way(a));
}

int aq_cuda_attn_prefill_plain(const struct aq_cuda_exec *ex, const struct aq_attn *a)
{
    struct aq_attn without = *a;
    struct aq_cuda_exec fused = *ex;
    without.rule.victim = AQ_ATTN_NO_RULE;
    fused.workspace_bytes = 0; /* rows are many */
    return decode(&fused, &without, plain_way(a));
}
