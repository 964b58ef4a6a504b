/* SPDX-License-Identifier: Apache-2.0
 * Column sums of prompts: what every key was given, from the scores computed once more and the logs
 * of the sums that attention saved.
 *
 * On tensor cores a block of four warps has 128 keys of a KV head, a warp a head-block, whose K
 * stays in registers as the first operand: scores come out with keys along the rows, so that a lane
 * adds up the queries of its keys by itself.  Queries pass by, 32 rows of one query head at a time,
 * from the first row that can count on; the query heads of a row are taken together in registers.
 * The plain version holds a head-block in shared memory, a lane has a key, and the four warps take
 * every fourth row.  Both add up the rows of a window of AQ_ATTN_STATS_ROWS, and then windows, in
 * an order that depends on the sequence and head only; so a call may go on from another's sums. */
#include "kernels/cuda/attn_tile.cuh"

enum {
    WARPS = 4,
    THREADS = WARPS * AQ_CU_WARP,
    TILE_ROWS = 32, /* queries at a time */
    PLAIN_DIM_MAX = 256,
};

/* Blocks of the plain version that an SM is to hold: registers are kept for so many.  sm_75 has
 * threads for eight. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
enum { PLAIN_BLOCKS = 8 };
#else
enum { PLAIN_BLOCKS = 12 };
#endif

/* ---- which pairs count ---- */

/* As aq_attn_band(). */
AQ_DEVICE_FN uint32_t band_of(const struct aq_attn *a)
{
    if (!a->window || !a->pairs.band)
        return a->window + a->pairs.band;
    return aq_cu_min(a->window, a->pairs.band);
}

/* The rows of a sequence that keys first to last can count for: [begin, end). */
struct rows {
    uint32_t begin, end;
    uint32_t all; /* the end of the windows that change sums */
};

AQ_DEVICE_FN struct rows rows_for(const struct aq_attn *a, const struct aq_attn_seq *s,
                                  uint32_t len, uint32_t first, uint32_t last)
{
    /* Row i has its own key at len - rows + i. */
    uint64_t own = static_cast<uint64_t>(first) + a->pairs.min_dist + s->rows;
    uint32_t band = band_of(a);
    uint64_t end = static_cast<uint64_t>(last) + band + s->rows;
    struct rows r = {a->pairs.rows && a->pairs.rows < s->rows ? s->rows - a->pairs.rows : 0,
                     s->rows, s->rows};
    if (own > len && own - len > r.begin)
        r.begin = own - len < s->rows ? static_cast<uint32_t>(own - len) : s->rows;
    if (band && end < static_cast<uint64_t>(len) + r.end)
        r.end = end > len ? static_cast<uint32_t>(end - len) : 0;
    r.all = a->rule.decay == 1 ? r.end : s->rows;
    return r;
}

/* Whether a query with so many keys up to its own counts for this one. */
AQ_DEVICE_FN bool counts(const struct aq_attn *a, uint32_t keys, uint32_t key)
{
    if (key >= keys)
        return false;
    uint32_t dist = keys - 1 - key, band = band_of(a);
    return dist >= a->pairs.min_dist && (!band || dist < band);
}

/* f(p) of a score. */
AQ_DEVICE_FN float counted(const struct aq_attn *a, float score, float log_sum, uint32_t keys)
{
    const struct aq_attn_rule *rule = &a->rule;
    float w = aq_cu_exp2((score - log_sum) * AQ_CU_LOG2E);
    if (rule->stat == AQ_ATTN_PROB_SQUARED)
        return w * w;
    if (rule->stat == AQ_ATTN_LOW)
        return w < rule->threshold / static_cast<float>(keys - aq_cu_first(a, keys)) ? -1.0f : 0.0f;
    return w;
}

AQ_DEVICE_FN float together(const struct aq_attn_rule *rule, float c, float f)
{
    return rule->group == AQ_ATTN_MAX ? fmaxf(c, f) : c + f;
}

/* What so many rows leave of the sums in front of them. */
AQ_DEVICE_FN float decayed(const struct aq_attn *a, uint32_t rows)
{
    return a->rule.decay == 1 ? 1 : powf(a->rule.decay, static_cast<float>(rows));
}

/* The first row of a row's window, and the one behind its last. */
AQ_DEVICE_FN uint32_t window_of(uint32_t row)
{
    return row / AQ_ATTN_STATS_ROWS * AQ_ATTN_STATS_ROWS;
}
AQ_DEVICE_FN uint32_t window_end(uint32_t row, uint32_t rows)
{
    return aq_cu_min(window_of(row) + AQ_ATTN_STATS_ROWS, rows);
}

/* The factor of a row in the sum of its window. */
AQ_DEVICE_FN float row_weight(const struct aq_attn *a, uint32_t rows, uint32_t row)
{
    float w = decayed(a, window_end(row, rows) - 1 - row);
    return a->rule.group == AQ_ATTN_MEAN ? w / static_cast<float>(a->q_per_kv) : w;
}

/* What a key has got from queries in front of the call's. */
AQ_DEVICE_FN float begun_sum(const struct aq_attn *a, uint32_t row, uint32_t key)
{
    const struct aq_attn_begun *b = &a->begun;
    return key < b->len ? b->sums[static_cast<size_t>(row) * b->stride + key] : 0;
}

/* The row of sums of a block: its KV head, and the query heads that count. */
struct sum_row {
    uint32_t row, head, g, heads;
};

AQ_DEVICE_FN struct sum_row row_of(const struct aq_attn *a, uint32_t row)
{
    uint32_t each = a->rule.group == AQ_ATTN_EACH ? a->q_per_kv : 1;
    bool one = a->rule.group == AQ_ATTN_EACH || a->rule.group == AQ_ATTN_FIRST;
    return {row, row / each, row % each, one ? 1 : a->q_per_kv};
}

AQ_DEVICE_FN float log_sum_at(const struct aq_attn *a, const struct aq_attn_seq *s, uint32_t row,
                              uint32_t q_head)
{
    return a->log_sum_exp[(s->row + static_cast<size_t>(row)) * a->kv_heads * a->q_per_kv + q_head];
}

/* ---- tensor cores ---- */

/* Of 32 rows. */
struct notes {
    float log_sum[TILE_ROWS], weight[TILE_ROWS];
    uint32_t keys[TILE_ROWS]; /* 0 where a row does not count */
    float kept; /* where a window ends with them: what it leaves of sums in front of it; else -1 */
};

/* Eight floats, at once where they are aligned. */
AQ_DEVICE_FN void load8(float x[8], const float *from)
{
    if (reinterpret_cast<uintptr_t>(from) % 16) {
        for (uint32_t e = 0; e < 8; e++)
            x[e] = from[e];
        return;
    }
    aq_cu_floats8(x, from);
}

/* Rows row to row + 31 of a query head, times scale, and what is to be known of them. */
template <enum aq_dtype C, uint32_t D>
AQ_DEVICE_FN void stage_queries(const struct aq_attn *a, const struct aq_attn_seq *s, uint32_t head,
                                uint32_t q_head, uint32_t row, struct rows r, uint4 *to,
                                struct notes *n)
{
    constexpr uint32_t units = D / 8;
    for (uint32_t u = threadIdx.x; u < TILE_ROWS * units; u += THREADS) {
        uint32_t i = row + u / units;
        float x[8] = {};
        if (i < r.end)
            load8(x, a->q + (s->row + static_cast<size_t>(i)) * a->q_stride +
                         static_cast<size_t>(q_head) * D + u % units * 8);
        uint32_t pair[4];
#pragma unroll
        for (uint32_t e = 0; e < 4; e++)
            pair[e] = aq_cu_pair<C>(x[2 * e] * a->scale, x[2 * e + 1] * a->scale);
        to[aq_cu_tile_at<D>(u / units, u % units)] = {pair[0], pair[1], pair[2], pair[3]};
    }
    if (threadIdx.x < TILE_ROWS) {
        uint32_t i = row + threadIdx.x;
        bool in = i >= r.begin && i < r.end;
        n->log_sum[threadIdx.x] = in ? log_sum_at(a, s, i, q_head) : 0;
        n->keys[threadIdx.x] = in ? aq_cu_visible(aq_cu_len(s, head), s->rows, i) : 0;
        n->weight[threadIdx.x] = in ? row_weight(a, s->rows, i) : 0;
    }
    if (threadIdx.x == TILE_ROWS) {
        uint32_t end = window_end(row, s->rows);
        n->kept = row + TILE_ROWS < aq_cu_min(end, r.all) ? -1 : decayed(a, end - window_of(row));
    }
}

/* The two tiles of 16 keys of a warp. */
template <uint32_t D> struct lane_keys {
    uint32_t k[2][D / 16][4];
    float c[2][4][4]; /* of the query heads of a row so far */
    float sum[2][2];  /* of the rows of a window */
};

/* The lane's keys, counted from the warp's first. */
AQ_DEVICE_FN uint32_t lane_key(uint32_t j)
{
    return 16 * (j / 2) + aq_cu_lane() / 4 + j % 2 * 8;
}

template <enum aq_dtype C, uint32_t D>
AQ_DEVICE_FN void add_head(const struct aq_attn *a, struct lane_keys<D> *w, const uint4 *queries,
                           const struct notes *notes, uint32_t key, bool first)
{
    uint32_t lane = aq_cu_lane();
    float x[2][4][4] = {};
#pragma unroll
    for (uint32_t k = 0; k < D / 16; k++) {
#pragma unroll
        for (uint32_t half = 0; half < 2; half++) {
            uint32_t b[4], row = 16 * half + lane / 16 * 8 + lane % 8;
            aq_cu_ldmatrix(b, queries + aq_cu_tile_at<D>(row, 2 * k + lane / 8 % 2));
#pragma unroll
            for (uint32_t m = 0; m < 2; m++) {
                aq_cu_mma<C>(x[m][2 * half], w->k[m][k], b);
                aq_cu_mma<C>(x[m][2 * half + 1], w->k[m][k], b + 2);
            }
        }
    }
#pragma unroll
    for (uint32_t i = 0; i < 8; i++) { /* the lane's queries */
        uint32_t n = i / 2, column = 8 * n + lane % 4 * 2 + i % 2, keys = notes->keys[column];
        float log_sum = notes->log_sum[column];
#pragma unroll
        for (uint32_t j = 0; j < 4; j++) { /* its keys */
            uint32_t m = j / 2, e = j % 2 * 2 + i % 2;
            float f = 0;
            if (counts(a, keys, key + lane_key(j)))
                f = counted(a, x[m][n][e], log_sum, keys);
            w->c[m][n][e] = first ? f : together(&a->rule, w->c[m][n][e], f);
        }
    }
}

template <uint32_t D> AQ_DEVICE_FN void add_rows(struct lane_keys<D> *w, const struct notes *notes)
{
#pragma unroll
    for (uint32_t i = 0; i < 8; i++) {
        float weight = notes->weight[8 * (i / 2) + aq_cu_lane() % 4 * 2 + i % 2];
#pragma unroll
        for (uint32_t j = 0; j < 4; j++) {
            float *sum = &w->sum[j / 2][j % 2];
            *sum = fmaf(weight, w->c[j / 2][i / 2][j % 2 * 2 + i % 2], *sum);
        }
    }
}

/* The sums of a window join those in front of it, total[32] of the warp's keys: the lanes of a key
 * come together. */
template <uint32_t D> AQ_DEVICE_FN void end_window(struct lane_keys<D> *w, float *total, float kept)
{
#pragma unroll
    for (uint32_t j = 0; j < 4; j++) {
        float v = w->sum[j / 2][j % 2], *to = &total[lane_key(j)];
        v += __shfl_xor_sync(AQ_CU_ALL, v, 1);
        v += __shfl_xor_sync(AQ_CU_ALL, v, 2);
        if (aq_cu_lane() % 4 == 0)
            *to = fmaf(*to, kept, v);
        w->sum[j / 2][j % 2] = 0;
    }
    __syncwarp();
}

/* K of a warp's head-block into its registers; zeros where there is none. */
template <uint32_t D>
AQ_DEVICE_FN void load_keys(const struct aq_attn *a, const struct aq_attn_seq *s, uint32_t head,
                            uint32_t first, uint32_t len, uint4 *tile, struct lane_keys<D> *w)
{
    uint32_t lane = aq_cu_lane();
    if (first < len)
        aq_cu_stage_block<D>(tile, aq_cu_block(s, head, first / AQ_HEAD_BLOCK_SLOTS), a->kv_dtype,
                             AQ_HEAD_BLOCK_SLOTS, len - first, lane, AQ_CU_WARP);
    aq_cu_copy_commit();
    aq_cu_copy_wait<0>();
    __syncwarp();
#pragma unroll
    for (uint32_t m = 0; m < 2; m++) {
        w->sum[m][0] = w->sum[m][1] = 0;
#pragma unroll
        for (uint32_t k = 0; k < D / 16; k++) {
            if (first < len)
                aq_cu_ldmatrix(w->k[m][k],
                               tile + aq_cu_tile_at<D>(16 * m + lane % 16, 2 * k + lane / 16));
        }
    }
}

/* Blocks of an SM that registers are shared out for, without spilling any. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1200
#define STATS_BLOCKS(dim) ((dim) >= 96 ? 2 : 3)
#elif defined(__CUDA_ARCH__) && (__CUDA_ARCH__ >= 1000 || __CUDA_ARCH__ < 800)
#define STATS_BLOCKS(dim) ((dim) == 128 ? 2 : 3)
#else
#define STATS_BLOCKS(dim) 3
#endif

/* A grid of (128 keys, rows of sums, sequences). */
template <enum aq_dtype C, uint32_t D>
__global__ void __launch_bounds__(THREADS, STATS_BLOCKS(D)) stats_tile(struct aq_attn p)
{
    constexpr uint32_t tile_units = TILE_ROWS * D / 8;
    AQ_SHARED(uint4, tiles); /* of K, one per warp, then two of queries, with notes behind all */
    struct notes *notes = reinterpret_cast<struct notes *>(tiles + WARPS * tile_units);
    float *total = reinterpret_cast<float *>(notes + 2) + threadIdx.x / AQ_CU_WARP * AQ_CU_WARP;
    const struct aq_attn *a = &p;
    const struct aq_attn_seq *s = &a->seqs[blockIdx.z];
    const struct sum_row sums = row_of(a, blockIdx.y);
    uint32_t head = sums.head, len = aq_cu_len(s, head), warp = threadIdx.x / AQ_CU_WARP;
    uint32_t block_first = blockIdx.x * WARPS * AQ_HEAD_BLOCK_SLOTS;
    if (block_first >= len)
        return;
    uint32_t first = block_first + warp * AQ_HEAD_BLOCK_SLOTS;
    uint32_t last = aq_cu_min(block_first + WARPS * AQ_HEAD_BLOCK_SLOTS, len) - 1;
    struct lane_keys<D> w;
    load_keys<D>(a, s, head, first, len, tiles + warp * tile_units, &w);
    total[aq_cu_lane()] = begun_sum(a, sums.row, first + aq_cu_lane());
    struct rows r = rows_for(a, s, len, block_first, last);
    uint32_t heads = sums.heads, q_head = head * a->q_per_kv + sums.g;
    uint32_t row = r.begin / TILE_ROWS * TILE_ROWS, group = 0, turn = 0;
    __syncthreads(); /* all of K is in registers */
    if (row < r.all)
        stage_queries<C, D>(a, s, head, q_head, row, r, tiles, notes);
    while (row < r.all) {
        uint32_t next_group = group + 1 < heads ? group + 1 : 0;
        uint32_t next_row = next_group ? row : row + TILE_ROWS, other = turn ^ 1;
        __syncthreads(); /* this turn's is there; the other's is done with */
        if (next_row < r.all)
            stage_queries<C, D>(a, s, head, q_head + next_group, next_row, r,
                                tiles + other * tile_units, notes + other);
        if (first < len) {
            add_head<C, D>(a, &w, tiles + turn * tile_units, notes + turn, first, !group);
            if (!next_group)
                add_rows<D>(&w, notes + turn);
            if (!next_group && notes[turn].kept >= 0)
                end_window<D>(&w, total, notes[turn].kept);
        }
        row = next_row;
        group = next_group;
        turn = other;
    }
    if (first + aq_cu_lane() < len)
        s->slots.score[static_cast<size_t>(sums.row) * s->slots.stride + first + aq_cu_lane()] =
            total[aq_cu_lane()];
}

/* ---- plain ---- */

/* A grid of (head-blocks, rows of sums, sequences). */
__global__ void __launch_bounds__(THREADS, PLAIN_BLOCKS) stats_plain(struct aq_attn p)
{
    AQ_SHARED(float, keys); /* [32][dim + 1], and sums of a window, [THREADS] */
    const struct aq_attn *a = &p;
    const struct aq_attn_seq *s = &a->seqs[blockIdx.z];
    const struct sum_row sums = row_of(a, blockIdx.y);
    uint32_t head = sums.head, len = aq_cu_len(s, head), dim = a->head_dim;
    uint32_t first = blockIdx.x * AQ_HEAD_BLOCK_SLOTS, lane = aq_cu_lane();
    if (first >= len)
        return;
    uint8_t *block = aq_cu_block(s, head, blockIdx.x);
    uint32_t slots = aq_cu_min(AQ_HEAD_BLOCK_SLOTS, len - first);
    for (uint32_t i = threadIdx.x; i < slots * dim; i += blockDim.x)
        keys[i / dim * (dim + 1) + i % dim] =
            aq_cu_kv_load(block, a->kv_dtype, dim, i / dim, i % dim);
    __syncthreads();
    struct rows r = rows_for(a, s, len, first, first + slots - 1);
    const float *k = keys + lane * (dim + 1);
    float *part = keys + AQ_HEAD_BLOCK_SLOTS * (dim + 1);
    /* Of the first warp, which writes the score: sums that were begun may lie in its place, so no
     * other warp may read them. */
    float total = threadIdx.x < slots ? begun_sum(a, sums.row, first + lane) : 0;
    for (uint32_t window = window_of(r.begin), end; window < r.all; window = end) {
        end = window_end(window, s->rows);
        float sum = 0;
        for (uint32_t i = window + threadIdx.x / AQ_CU_WARP; i < aq_cu_min(end, r.end);
             i += WARPS) {
            uint32_t seen = aq_cu_visible(len, s->rows, i);
            if (i < r.begin || lane >= slots || !counts(a, seen, first + lane))
                continue;
            float c = 0;
            for (uint32_t g = 0; g < sums.heads; g++) {
                size_t q_head = static_cast<size_t>(head) * a->q_per_kv + sums.g + g;
                const float *q =
                    a->q + (s->row + static_cast<size_t>(i)) * a->q_stride + q_head * dim;
                float x = 0;
                for (uint32_t d = 0; d < dim; d++)
                    x = fmaf(q[d] * a->scale, k[d], x);
                float f = counted(a, x, log_sum_at(a, s, i, static_cast<uint32_t>(q_head)), seen);
                c = g ? together(&a->rule, c, f) : f;
            }
            sum = fmaf(row_weight(a, s->rows, i), c, sum);
        }
        __syncthreads(); /* the window before has been added up */
        part[threadIdx.x] = sum;
        __syncthreads();
        float added = part[lane];
        for (uint32_t w = 1; w < WARPS; w++)
            added += part[w * AQ_CU_WARP + lane];
        total = fmaf(total, decayed(a, end - window), added);
    }
    if (threadIdx.x < slots)
        s->slots.score[static_cast<size_t>(sums.row) * s->slots.stride + first + lane] = total;
}

/* ---- launchers ---- */

template <enum aq_dtype C>
static int launch(const struct aq_cuda_exec *ex, const struct aq_attn *a, dim3 grid)
{
    uint32_t dim = a->head_dim;
    size_t shared = WARPS * TILE_ROWS * dim * sizeof(uint16_t) + 2 * sizeof(struct notes) +
                    THREADS * sizeof(float);
    assert(shared <= AQ_CU_SHARED_MAX);
    auto kernel = dim == 64   ? stats_tile<C, 64>
                  : dim == 80 ? stats_tile<C, 80>
                  : dim == 96 ? stats_tile<C, 96>
                              : stats_tile<C, 128>;
    return AQ_LAUNCH(ex, kernel, grid, THREADS, shared, *a);
}

int aq_cuda_attn_stats(const struct aq_cuda_exec *ex, const struct aq_attn *a)
{
    assert(a->rule.victim && a->log_sum_exp && a->head_dim <= PLAIN_DIM_MAX);
    assert(a->rule.group != AQ_ATTN_MAX_OF_SUMS && (!a->begun.len || a->seq_count == 1));
    uint32_t rows = a->kv_heads * (a->rule.group == AQ_ATTN_EACH ? a->q_per_kv : 1);
    assert(rows <= AQ_CU_GRID_YZ_MAX && a->seq_count <= AQ_CU_GRID_YZ_MAX);
    if (!a->seq_count || !a->reach.len)
        return 0;
    bool tiles = aq_cu_tile_takes(ex, a);
    uint32_t keys = AQ_HEAD_BLOCK_SLOTS * (tiles ? WARPS : 1);
    dim3 grid(aq_cu_div_up(a->reach.len, keys), rows, a->seq_count);
    if (tiles)
        return a->kv_dtype == AQ_BF16 ? launch<AQ_BF16>(ex, a, grid) : launch<AQ_F16>(ex, a, grid);
    size_t floats = AQ_HEAD_BLOCK_SLOTS * (a->head_dim + 1) + THREADS;
    return AQ_LAUNCH(ex, stats_plain, grid, THREADS, floats * sizeof(float), *a);
}
