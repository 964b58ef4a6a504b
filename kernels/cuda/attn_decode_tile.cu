/* SPDX-License-Identifier: Apache-2.0
 * Decode attention on tensor cores: K and V of a KV head are read once for up to 16 of its queries,
 * of which there may be one.
 *
 * A block of four warps has 16 queries of a KV head, all of them in each warp; a warp takes every
 * fourth head-block of a split, as prefill does (attn_rows.cuh).  K and V go from memory straight
 * into registers, 16 bytes a lane where rows are such, in pieces of 16 slots that are asked for
 * while earlier ones are multiplied: a product does not mind which dimension is which of its
 * columns or terms, so a lane takes those that lie together (place_of), and neither shared memory
 * nor ldmatrix brings them in order.  At a split's end the four warps are joined in ascending
 * order, and then the splits, as attn_decode.cuh says.
 *
 * The dot product's order depends on the head size and the format, every sum of a query is its own:
 * the bits depend on the query and its keys only, whatever shares the tile.  Rounded to 16 bits are
 * what prefill rounds: queries (times scale), weights and values of codes. */
#include "kernels/cuda/attn_decode_tile.cuh"

#include "kernels/cuda/attn_rows.cuh"

enum {
    WARPS = 4,
    THREADS = WARPS * AQ_CU_WARP,
    QUERIES = AQ_CU_TILE_QUERIES,
    PIECE_SLOTS = 16,
    TURNS = AQ_CU_SPLIT_BLOCKS / WARPS, /* head-blocks of a warp in a split */
};

/* ---- rows of K and V in registers ---- */

/* How a format stores a row: in units of so many bytes, each one element, or of int4 two, which are
 * half a row apart. */
template <enum aq_dtype T, uint32_t D> struct stored {
    static constexpr bool codes = T == AQ_Q8 || T == AQ_Q4;
    static constexpr uint32_t unit = codes ? 1 : 2, units = T == AQ_Q4 ? D / 2 : D;
    static constexpr size_t row_bytes = unit * units;
};

/* Which of a row's N units is the i-th of a lane, where L lanes share the row: runs of 8 units a
 * lane for as long as there are such for all lanes, then one of 4, of 2 and of 1.  In 64 bits, as
 * addresses are, so that all loads of a lane are one address and constants beside it. */
template <uint32_t N, uint32_t L> AQ_DEVICE_FN size_t place_of(uint32_t i, size_t lane)
{
    static_assert(N % L == 0 && N / L % 4 < 3, "runs that begin in words of their own");
    uint32_t whole = N / L / 8 * 8, base = whole * L;
    if (i < whole)
        return 8 * lane + (i / 8 * 8 * L + i % 8);
    i -= whole;
#pragma unroll
    for (uint32_t run = 4; run > 1; run /= 2) {
        bool has = N / L & run;
        if (has && i < run)
            return run * lane + (base + i);
        base += has ? run * L : 0;
        i -= has ? run : 0;
    }
    return lane + base;
}

template <uint32_t BYTES> AQ_DEVICE_FN void load_run(uint32_t *to, const uint8_t *from)
{
    if constexpr (BYTES == 16) {
        uint4 u = *reinterpret_cast<const uint4 *>(from);
        to[0] = u.x;
        to[1] = u.y;
        to[2] = u.z;
        to[3] = u.w;
    } else if constexpr (BYTES == 8) {
        uint2 u = *reinterpret_cast<const uint2 *>(from);
        to[0] = u.x;
        to[1] = u.y;
    } else if constexpr (BYTES == 4) {
        to[0] = *reinterpret_cast<const uint32_t *>(from);
    } else if constexpr (BYTES == 2) {
        to[0] = *reinterpret_cast<const uint16_t *>(from);
    } else {
        to[0] = *from;
    }
}

/* A lane's units of a row of N. */
template <uint32_t UNIT, uint32_t N, uint32_t L>
AQ_DEVICE_FN void load_units(uint32_t *words, const uint8_t *row, size_t lane)
{
    constexpr uint32_t count = N / L;
#pragma unroll
    for (uint32_t i = 0; i + 8 <= count; i += 8)
        load_run<8 * UNIT>(words + i * UNIT / 4, row + place_of<N, L>(i, lane) * UNIT);
    if constexpr (count & 4) {
        constexpr uint32_t i = count & ~7u;
        load_run<4 * UNIT>(words + i * UNIT / 4, row + place_of<N, L>(i, lane) * UNIT);
    }
    if constexpr (count & 2) {
        constexpr uint32_t i = count & ~3u;
        load_run<2 * UNIT>(words + i * UNIT / 4, row + place_of<N, L>(i, lane) * UNIT);
    }
    if constexpr (count & 1) {
        constexpr uint32_t i = count - 1;
        load_run<UNIT>(words + i * UNIT / 4, row + place_of<N, L>(i, lane) * UNIT);
    }
}

AQ_DEVICE_FN uint32_t half_of(uint32_t word, uint32_t i)
{
    return i ? word >> 16 : word & 0xffffu;
}

/* Sixteen keys, the second operand of scores: a lane has two of them, lane / 4 of the first eight
 * and of the other eight, and every fourth run of their rows. */
template <enum aq_dtype T, uint32_t D> struct key_piece {
    using format = stored<T, D>;
    static constexpr uint32_t count = format::units / 4;
    uint32_t words[2][(count * format::unit + 3) / 4];
    uint16_t scale[2], minimum[2];

    __device__ __forceinline__ void load(uint8_t *from, uint32_t slot)
    {
        uint8_t *block = aq_cu_global(from);
        const uint8_t *row = aq_cu_kv_row(block, T, D, slot) + aq_cu_lane() / 4 * format::row_bytes;
        const uint16_t *of = aq_cu_kv_scale(block, slot) + aq_cu_lane() / 4;
#pragma unroll
        for (uint32_t j = 0; j < 2; j++) {
            load_units<format::unit, format::units, 4>(words[j], row + 8 * j * format::row_bytes,
                                                       aq_cu_lane() % 4);
            if constexpr (format::codes) {
                scale[j] = of[8 * j];
                minimum[j] = of[8 * j + AQ_HEAD_BLOCK_SLOTS];
            }
        }
    }

    /* Two neighbours of a key's row: those that query_order says. */
    __device__ __forceinline__ uint32_t pair(uint32_t j, uint32_t k) const
    {
        if constexpr (!format::codes)
            return words[j][k];
        uint32_t at = 2 * k % count; /* of int4 the high ones lie behind the low ones */
        uint32_t bytes = aq_cu_codes_of<T>(words[j][at / 4], 2 * k >= count);
        return aq_cu_pair_of_codes(aq_cu_two_codes(bytes, at % 4), scale[j] * 0x10001u,
                                   minimum[j] * 0x10001u);
    }
};

/* The order of a lane's pairs of a query, for aq_cu_load_queries(): that of key_piece. */
template <enum aq_dtype T, uint32_t D> struct query_order {
    static __device__ __forceinline__ uint32_t pair(uint32_t k, uint32_t lane)
    {
        constexpr uint32_t n = stored<T, D>::units, count = n / 4;
        return static_cast<uint32_t>(place_of<n, 4>(2 * k % count, lane % 4)) + 2 * k / count * n;
    }
};

/* The dimension that column `column` of the n-th product of values has. */
template <enum aq_dtype T, uint32_t D> AQ_DEVICE_FN uint32_t value_dim(uint32_t n, uint32_t column)
{
    constexpr uint32_t units = stored<T, D>::units, count = units / 8;
    return static_cast<uint32_t>(place_of<units, 8>(n % count, column)) + n / count * units;
}

/* Sixteen values, which weights are multiplied with: a lane has slots 2 (lane % 4), the next one,
 * and both of the other eight, and every eighth run of their rows. */
template <enum aq_dtype T, uint32_t D> struct value_piece {
    using format = stored<T, D>;
    static constexpr uint32_t count = format::units / 8;
    uint32_t words[4][(count * format::unit + 3) / 4];
    uint32_t scale[2], minimum[2]; /* of two neighbours each */

    static __device__ __forceinline__ uint32_t slot_of(uint32_t i)
    {
        return i / 2 * 8 + i % 2 + aq_cu_lane() % 4 * 2;
    }

    __device__ __forceinline__ void load(uint8_t *from, uint32_t slot)
    {
        uint8_t *block = aq_cu_global(from);
        uint32_t first = AQ_HEAD_BLOCK_SLOTS + slot;
        const uint8_t *row =
            aq_cu_kv_row(block, T, D, first) + aq_cu_lane() % 4 * 2 * format::row_bytes;
        const uint32_t *of =
            reinterpret_cast<const uint32_t *>(aq_cu_kv_scale(block, first)) + aq_cu_lane() % 4;
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            load_units<format::unit, format::units, 8>(
                words[i], row + (i / 2 * 8 + i % 2) * format::row_bytes, aq_cu_lane() / 4);
            if constexpr (format::codes) {
                scale[i / 2] = of[i / 2 * 4];
                minimum[i / 2] = of[i / 2 * 4 + AQ_HEAD_BLOCK_SLOTS / 2];
            }
        }
    }

    /* Slots that nobody sees become zeros: anything may lie there, and 0 times it must be 0. */
    __device__ __forceinline__ void keep(uint32_t slot, uint32_t begin, uint32_t end)
    {
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            uint32_t at = slot + slot_of(i);
            if (at >= begin && at < end)
                continue;
#pragma unroll
            for (uint32_t n = 0; n < sizeof(words[i]) / sizeof(words[i][0]); n++)
                words[i][n] = 0;
            scale[i / 2] &= i % 2 ? 0x0000ffffu : 0xffff0000u;
            minimum[i / 2] &= i % 2 ? 0x0000ffffu : 0xffff0000u;
        }
    }

    /* Of two neighbouring slots, the elements of the n-th product. */
    __device__ __forceinline__ uint32_t pair(uint32_t h, uint32_t n) const
    {
        const uint32_t *low = words[2 * h], *high = words[2 * h + 1];
        if constexpr (!format::codes)
            return half_of(low[n / 2], n % 2) | half_of(high[n / 2], n % 2) << 16;
        uint32_t at = n % count;
        uint32_t bytes = __byte_perm(low[at / 4], high[at / 4], 0x4400 + at % 4 * 0x1111);
        uint32_t codes = aq_cu_codes_of<T>(bytes, n >= count) & 0x00ff00ffu;
        return aq_cu_pair_of_codes(codes | (AQ_CU_CODE & 0xff00ff00u), scale[h], minimum[h]);
    }
};

/* What is on its way: a piece of K and one of V, of int4, which is few bytes, two of each. */
template <enum aq_dtype T, uint32_t D> struct pieces {
    static constexpr uint32_t count = T == AQ_Q4 ? 2 : 1;
    struct key_piece<T, D> k[count];
    struct value_piece<T, D> v[count];
};

/* ---- a piece ---- */

/* The queries, as lanes take them: in shared memory, because there are registers for more than keys
 * and values or for them, but not for both. */
template <uint32_t D> AQ_DEVICE_FN void leave_queries(uint4 *to, const struct aq_cu_lane_rows<D> *w)
{
#pragma unroll
    for (uint32_t i = 0; i < D / 16; i++)
        to[i * AQ_CU_WARP + aq_cu_lane()] = {w->q[i][0], w->q[i][1], w->q[i][2], w->q[i][3]};
}

template <enum aq_dtype C, enum aq_dtype T, uint32_t D>
AQ_DEVICE_FN void multiply_keys(float s[2][4], const uint4 *queries,
                                const struct key_piece<T, D> *k)
{
#pragma unroll
    for (uint32_t i = 0; i < D / 16; i++) {
        uint4 q = queries[i * AQ_CU_WARP + aq_cu_lane()];
        uint32_t a[4] = {q.x, q.y, q.z, q.w};
#pragma unroll
        for (uint32_t j = 0; j < 2; j++) {
            uint32_t b[2] = {k->pair(j, 2 * i), k->pair(j, 2 * i + 1)};
            aq_cu_mma<C>(s[j], a, b);
        }
    }
}

template <enum aq_dtype C, enum aq_dtype T, uint32_t D>
AQ_DEVICE_FN void multiply_values(const float s[2][4], struct aq_cu_lane_rows<D> *w,
                                  const struct value_piece<T, D> *v)
{
    uint32_t p[4];
#pragma unroll
    for (uint32_t i = 0; i < 4; i++)
        p[i] = aq_cu_pair<C>(s[i / 2][i % 2 * 2], s[i / 2][i % 2 * 2 + 1]);
#pragma unroll
    for (uint32_t n = 0; n < D / 8; n++) {
        uint32_t b[2] = {v->pair(0, n), v->pair(1, n)};
        aq_cu_mma<C>(w->o[n], p, b);
    }
}

/* Where the scores of a batch go: query q's of slot j to at[q * stride + j]. */
struct kept {
    float *at; /* NULL: nowhere */
    uint32_t stride;
};

AQ_DEVICE_FN void keep_scores(struct kept to, const float s[2][4], uint32_t count, uint32_t slot)
{
    uint32_t lane = aq_cu_lane();
#pragma unroll
    for (uint32_t i = 0; i < 8; i++) {
        uint32_t q = lane / 4 + i % 4 / 2 * 8;
        if (q < count)
            to.at[static_cast<size_t>(q) * to.stride + slot + i / 4 * 8 + lane % 4 * 2 + i % 2] =
                s[i / 4][i % 4];
    }
}

/* What a warp passes over: every fourth head-block of those that one of its queries sees. */
struct walk {
    uint32_t first, end;   /* its first one; behind the block's last one */
    uint32_t least, most;  /* keys of the first query and of the last */
    uint32_t narrow;       /* the first slot that the last query sees */
    uint8_t *block, *next; /* the current one and the one after it */
};

AQ_DEVICE_FN uint8_t *block_at(const struct aq_cu_batch *b, const struct walk *k, uint32_t at)
{
    return at < k->end ? aq_cu_block(b->s, b->head, at) : NULL;
}

/* Over the slots [begin, end), and puts on its way what the first turn begins with. */
template <enum aq_dtype T, uint32_t D>
AQ_DEVICE_FN struct walk start_walk(const struct aq_cu_decode *p, const struct aq_cu_batch *b,
                                    uint32_t begin, uint32_t end, struct pieces<T, D> *x)
{
    uint32_t group = p->a.q_per_kv, warp = threadIdx.x / AQ_CU_WARP;
    struct walk k = {};
    k.least = aq_cu_keys_of(b, group, 0);
    k.most = aq_cu_keys_of(b, group, b->count - 1);
    k.narrow = aq_cu_first(&p->a, k.most);
    k.first = begin / AQ_HEAD_BLOCK_SLOTS;
    k.first += (warp + WARPS - k.first % WARPS) % WARPS;
    k.end = (aq_cu_min(end, k.most) + AQ_HEAD_BLOCK_SLOTS - 1) / AQ_HEAD_BLOCK_SLOTS;
    k.block = block_at(b, &k, k.first);
    k.next = block_at(b, &k, k.first + WARPS);
#pragma unroll
    for (uint32_t i = 0; i < pieces<T, D>::count; i++) {
        if (!k.block)
            continue;
        x->k[i].load(k.block, i * PIECE_SLOTS);
        x->v[i].load(k.block, i * PIECE_SLOTS);
    }
    return k;
}

/* The warp's head-blocks of a split, one after the other; what the first begins with is on its
 * way, and when this returns, so is what the next split's begins with. */
template <enum aq_dtype C, enum aq_dtype T, uint32_t D>
AQ_DEVICE_FN void take_split(const struct aq_cu_batch *b, uint32_t split, struct walk *k,
                             const uint4 *queries, struct pieces<T, D> *x,
                             struct aq_cu_lane_rows<D> *w, struct kept to)
{
    constexpr uint32_t ahead = pieces<T, D>::count;
#pragma unroll 1
    for (uint32_t turn = 0; turn < TURNS; turn++) {
        uint32_t at = (split * TURNS + turn) * WARPS + threadIdx.x / AQ_CU_WARP;
        if (at < k->first || at >= k->end)
            continue;
        uint8_t *later = block_at(b, k, at + 2 * WARPS);
#pragma unroll ahead
        for (uint32_t i = 0; i < AQ_HEAD_BLOCK_SLOTS / PIECE_SLOTS; i++) {
            uint32_t slot = at * AQ_HEAD_BLOCK_SLOTS + i * PIECE_SLOTS, after = i + ahead;
            uint8_t *next = after < AQ_HEAD_BLOCK_SLOTS / PIECE_SLOTS ? k->block : k->next;
            after = after * PIECE_SLOTS % AQ_HEAD_BLOCK_SLOTS;
            bool masked = slot + PIECE_SLOTS > k->least || slot < k->narrow;
            float s[2][4] = {};
            multiply_keys<C, T, D>(s, queries, &x->k[i % ahead]);
            if (next)
                x->k[i % ahead].load(next, after);
            if (to.at)
                keep_scores(to, s, b->count, slot);
            aq_cu_weigh<D, 2>(s, w, slot, masked);
            if (masked)
                x->v[i % ahead].keep(slot, b->begin, k->most);
            multiply_values<C, T, D>(s, w, &x->v[i % ahead]);
            if (next)
                x->v[i % ahead].load(next, after);
        }
        k->block = k->next;
        k->next = later;
    }
}

/* ---- joining ---- */

struct sums {
    float max[QUERIES], sum[QUERIES];
};

/* Shared memory of a block of threads; values lie as lanes have them. */
struct alignas(16) room {
    struct sums warp[WARPS];     /* max: of scores times log2(e) */
    struct sums joined;          /* so far; max: of scores */
    float share[WARPS][QUERIES]; /* what a warp's sums count in the split's; below 0: it saw none */
    float scale[QUERIES], other_scale[QUERIES]; /* what is joined so far, and the split */
    float log_sum[QUERIES];
    uint32_t victims[3 * WARPS];
};

/* Columns of lane_rows.o that hold queries: the second two are of those from the ninth on. */
AQ_DEVICE_FN uint32_t columns_of(uint32_t queries)
{
    return queries > QUERIES / 2 ? 4 : 2;
}

/* What a warp's split came to. */
template <uint32_t D>
AQ_DEVICE_FN void leave_sums(struct room *r, float *values, uint32_t columns,
                             const struct aq_cu_lane_rows<D> *w)
{
    uint32_t lane = aq_cu_lane(), warp = threadIdx.x / AQ_CU_WARP;
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) {
        float sum = w->sum[i];
        sum += __shfl_xor_sync(AQ_CU_ALL, sum, 1);
        sum += __shfl_xor_sync(AQ_CU_ALL, sum, 2);
        if (lane % 4 == 0) { /* four lanes have the same */
            r->warp[warp].max[lane / 4 + 8 * i] = w->max[i];
            r->warp[warp].sum[lane / 4 + 8 * i] = sum;
        }
    }
    float *to = values + warp * (D / 8) * columns * AQ_CU_WARP + lane;
#pragma unroll
    for (uint32_t i = 0; i < D / 2; i++) {
        if (i % 4 < columns)
            to[(i / 4 * columns + i % 4) * AQ_CU_WARP] = w->o[i / 4][i % 4];
    }
}

/* Of a query: what each warp's sums count in the split's, and the split's in what is joined. */
AQ_DEVICE_FN void join_sums(struct room *r, uint32_t q)
{
    float max = -INFINITY, sum = 0;
    for (uint32_t i = 0; i < WARPS; i++)
        max = fmaxf(max, r->warp[i].max[q]);
    for (uint32_t i = 0; i < WARPS; i++) {
        float has = r->warp[i].sum[q];
        bool saw = r->warp[i].max[q] != -INFINITY || has != 0; /* or all that it saw was NaN */
        float share = saw ? aq_cu_exp2(r->warp[i].max[q] - max) : 0;
        sum = fmaf(share, has, sum);
        r->share[i][q] = saw ? share : -1;
    }
    max = max == -INFINITY ? max : max * AQ_CU_LN2;
    struct aq_cu_joint j = aq_cu_join(r->joined.max[q], max);
    r->scale[q] = j.scale;
    r->other_scale[q] = j.other_scale;
    r->joined.max[q] = j.max;
    r->joined.sum[q] = r->joined.sum[q] * j.scale + sum * j.other_scale;
}

/* The split's value `at` of a lane: its warps' in ascending order. */
template <uint32_t D>
AQ_DEVICE_FN float join_values(const struct room *r, const float *values, uint32_t columns,
                               uint32_t at, uint32_t q)
{
    float o = 0;
    for (uint32_t i = 0; i < WARPS; i++) {
        float share = r->share[i][q];
        float v = values[(i * (D / 8) * columns + at) * AQ_CU_WARP + aq_cu_lane()];
        o = share < 0 ? o : fmaf(share, v, o);
    }
    return o;
}

/* A value of a query. */
struct value {
    uint32_t q, d;
};

template <enum aq_dtype T, uint32_t D>
AQ_DEVICE_FN struct value value_at(uint32_t at, uint32_t columns)
{
    uint32_t lane = aq_cu_lane(), column = at % columns;
    return {lane / 4 + column / 2 * 8, value_dim<T, D>(at / columns, lane % 4 * 2 + column % 2)};
}

/* ---- the kernel ---- */

/* What a block of threads has beside its registers. */
struct place {
    struct room *room;
    uint4 *queries;
    float *values; /* [WARPS][D / 8][columns][32] */
    float *joined; /* [D / 8][columns][32], where it is fused */
    float *scores; /* [queries][cap], where it is fused and keeps them */
    uint32_t columns;
};

template <uint32_t D>
AQ_DEVICE_FN struct place place_in(const struct aq_cu_decode *p, struct room *room)
{
    struct place at = {room, reinterpret_cast<uint4 *>(room + 1), NULL, NULL,
                       NULL, columns_of(p->queries * p->joint)};
    uint32_t values = D / 8 * at.columns * AQ_CU_WARP;
    at.values = reinterpret_cast<float *>(at.queries + D / 16 * AQ_CU_WARP);
    at.joined = at.values + WARPS * values;
    at.scores = at.joined + values;
    return at;
}

/* The same sum for the host. */
size_t aq_cuda_decode_tile_bytes(const struct aq_cu_decode *p, bool fused)
{
    size_t columns = p->queries * p->joint > QUERIES / 2 ? 4 : 2;
    size_t values = p->a.head_dim / 8 * columns * AQ_CU_WARP;
    size_t scores = fused && p->keeps ? (size_t)aq_min_u64(p->queries, QUERIES) * p->cap : 0;
    size_t queries = p->a.head_dim / 16 * AQ_CU_WARP * sizeof(uint4);
    return sizeof(struct room) + queries + sizeof(float) * ((WARPS + fused) * values + scores);
}

/* The workspace's part of a split, as decode_join reads it. */
template <enum aq_dtype T, uint32_t D>
AQ_DEVICE_FN void leave_part(const struct aq_cu_decode *p, const struct aq_cu_batch *b,
                             const struct place *at, uint32_t seq, uint32_t split)
{
    const struct room *r = at->room;
    for (uint32_t i = threadIdx.x / AQ_CU_WARP; i < D / 8 * at->columns; i += WARPS) {
        struct value v = value_at<T, D>(i, at->columns);
        float o = join_values<D>(r, at->values, at->columns, i, v.q);
        if (v.q < b->count)
            p->parts[(aq_cu_query_index(p, b, seq, v.q) * p->splits + split) * (D + 2) + v.d] = o;
    }
    if (threadIdx.x < b->count) {
        size_t query = aq_cu_query_index(p, b, seq, threadIdx.x);
        float *to = p->parts + (query * p->splits + split) * (D + 2) + D;
        to[0] = r->joined.max[threadIdx.x];
        to[1] = r->joined.sum[threadIdx.x];
    }
}

/* Results, and what is remembered, of all splits. */
template <enum aq_dtype T, uint32_t D>
AQ_DEVICE_FN void finish(const struct aq_cu_decode *p, const struct aq_cu_batch *b,
                         const struct place *at)
{
    const struct aq_attn *a = &p->a;
    struct room *r = at->room;
    for (uint32_t i = threadIdx.x / AQ_CU_WARP; i < D / 8 * at->columns; i += WARPS) {
        struct value v = value_at<T, D>(i, at->columns);
        if (v.q < b->count)
            aq_cu_store_out(a, aq_cu_place_of(a, b, v.q), v.d,
                            at->joined[i * AQ_CU_WARP + aq_cu_lane()], r->joined.sum[v.q],
                            aq_cu_keys_of(b, a->q_per_kv, v.q));
    }
    if (threadIdx.x < b->count) {
        struct aq_cu_place to = aq_cu_place_of(a, b, threadIdx.x);
        float log_sum = aq_cu_log_sum_of(r->joined.max[threadIdx.x], r->joined.sum[threadIdx.x]);
        if (a->log_sum_exp)
            a->log_sum_exp[to.row * a->kv_heads * a->q_per_kv + to.q_head] = log_sum;
        r->log_sum[threadIdx.x] = log_sum;
    }
    __syncthreads();
    if (p->keeps)
        aq_cu_remember(p, b, at->scores, p->cap, r->log_sum, r->victims);
}

/* A grid of (batches of queries, KV heads, sequences), where it is not fused with as many blocks of
 * threads a batch as there are splits. */
template <enum aq_dtype T, uint32_t D>
__global__ void __launch_bounds__(THREADS, D == 64 && !stored<T, D>::codes ? 3 : 2)
    decode_tile(struct aq_cu_decode p, bool fused)
{
    constexpr enum aq_dtype C = T == AQ_BF16 ? AQ_BF16 : AQ_F16;
    AQ_SHARED(struct room, r);
    struct place at = place_in<D>(&p, r);
    uint32_t blocks = fused ? 1 : p.splits, from = blockIdx.x / blocks * QUERIES;
    struct aq_cu_batch b = fused ? aq_cu_batch_of(&p, blockIdx.z, blockIdx.y, from, QUERIES)
                                 : aq_cu_split_batch_of(&p, blockIdx.z, blockIdx.y, from, QUERIES,
                                                        blockIdx.x % blocks);
    if (!b.count)
        return;
    uint32_t split = b.begin / AQ_CU_SPLIT_SLOTS;
    uint32_t end = (b.len + AQ_CU_SPLIT_SLOTS - 1) / AQ_CU_SPLIT_SLOTS;
    if (!fused) {
        if (blockIdx.x % blocks < split || blockIdx.x % blocks >= end)
            return;
        split = blockIdx.x % blocks;
        end = split + 1;
    }
    struct kept kept = {NULL, fused ? p.cap : p.splits * AQ_CU_SPLIT_SLOTS};
    if (p.keeps)
        kept.at =
            fused ? at.scores : p.scores + aq_cu_query_index(&p, &b, blockIdx.z, 0) * kept.stride;
    if (threadIdx.x < QUERIES) {
        r->joined.max[threadIdx.x] = -INFINITY;
        r->joined.sum[threadIdx.x] = 0;
    }
    uint32_t values = D / 8 * at.columns * AQ_CU_WARP;
    for (uint32_t i = threadIdx.x; fused && i < values; i += THREADS)
        at.joined[i] = 0;
    struct pieces<T, D> pieces;
    struct aq_cu_lane_rows<D> w;
    uint32_t begin = split * AQ_CU_SPLIT_SLOTS;
    struct walk walk = start_walk<T, D>(&p, &b, b.begin > begin ? b.begin : begin,
                                        end * AQ_CU_SPLIT_SLOTS, &pieces);
    aq_cu_load_queries<C, D, struct query_order<T, D>>(
        &p.a, {b.s->row, b.joint ? b.count / p.a.q_per_kv : b.s->rows, b.len, b.joint}, b.head,
        b.first, &w);
    if (threadIdx.x < AQ_CU_WARP)
        leave_queries<D>(at.queries, &w);
    __syncthreads();
    for (; split < end; split++) {
        aq_cu_start_rows<D>(&w);
        take_split<C, T, D>(&b, split, &walk, at.queries, &pieces, &w, kept);
        leave_sums<D>(r, at.values, at.columns, &w);
        __syncthreads();
        if (threadIdx.x < QUERIES)
            join_sums(r, threadIdx.x);
        __syncthreads();
        for (uint32_t i = threadIdx.x / AQ_CU_WARP; fused && i < D / 8 * at.columns; i += WARPS) {
            uint32_t q = aq_cu_lane() / 4 + i % at.columns / 2 * 8;
            float *o = &at.joined[i * AQ_CU_WARP + aq_cu_lane()];
            *o = *o * r->scale[q] +
                 join_values<D>(r, at.values, at.columns, i, q) * r->other_scale[q];
        }
        __syncthreads(); /* what the warps left is done with */
    }
    if (fused)
        finish<T, D>(&p, &b, &at);
    else
        leave_part<T, D>(&p, &b, &at, blockIdx.z, split - 1);
}

template <enum aq_dtype T>
static int launch(const struct aq_cuda_exec *ex, const struct aq_cu_decode &p, bool fused,
                  dim3 grid, size_t shared)
{
    auto kernel = p.a.head_dim == 64   ? decode_tile<T, 64>
                  : p.a.head_dim == 80 ? decode_tile<T, 80>
                  : p.a.head_dim == 96 ? decode_tile<T, 96>
                                       : decode_tile<T, 128>;
    return AQ_LAUNCH(ex, kernel, grid, THREADS, shared, p, fused);
}

int aq_cuda_decode_tile_launch(const struct aq_cuda_exec *ex, const struct aq_cu_decode &p,
                               bool fused, dim3 grid)
{
    size_t shared = aq_cuda_decode_tile_bytes(&p, fused);
    assert(shared <= AQ_CU_SHARED_MAX);
    switch (p.a.kv_dtype) {
    case AQ_F16: return launch<AQ_F16>(ex, p, fused, grid, shared);
    case AQ_BF16: return launch<AQ_BF16>(ex, p, fused, grid, shared);
    case AQ_Q8: return launch<AQ_Q8>(ex, p, fused, grid, shared);
    case AQ_Q4: return launch<AQ_Q4>(ex, p, fused, grid, shared);
    default: return -EINVAL;
    }
}
