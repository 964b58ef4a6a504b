/* SPDX-License-Identifier: Apache-2.0
 * Products of a few rows with quantised weights, which are de-quantised on the way into the tensor
 * cores: int4 weights move 4.5 bits each and not 4.5, 16 and 16 again.  For up to 64 rows of x;
 * with more, unpacking and a library's product is the better way.
 *
 * A block of eight warps has 32 rows of a panel, which are 32 columns of the result; a warp takes
 * every eighth group of 64 k.  W is the first operand (16 rows of it to a tile), x the second one
 * (8 of its rows).  Which rows and which k make a tile is free, so a lane has four rows of W that
 * lie side by side and 16 k of a group that do: it reads whole words, none that another lane reads,
 * and makes numbers of its own codes, once, whatever the number of rows of x.  Codes of the next
 * group are on their way meanwhile.  Sums are f32: over a warp's groups, ascending, of each four
 * times 16 k, then over the eight warps in order; the result of a row of x does not depend on the
 * others. */
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/panel.cuh"

enum {
    WARPS = 8,
    THREADS = WARPS * AQ_CU_WARP,
    BLOCK_ROWS = 32, /* of W */
    LANE_ROWS = 4,
    LANE_K = AQ_GROUP_K / 4,
    STEPS = LANE_K / 4, /* products of a group with tiles of 16 k, of which a lane has four */
    M_MAX = AQ_CUDA_PRODUCT_ROWS_MAX,
};

/* A lane's codes of a group.  int4: a run of each row.  int8: of each pair of columns the rows'. */
template <enum aq_dtype W> struct lane_codes {
    uint2 at[W == AQ_Q4 ? LANE_ROWS : LANE_K / 2];
    uint2 scale, minimum; /* f16 [LANE_ROWS] */
};

/* From row `row` of the panel on, of group g; zeros past its columns. */
template <enum aq_dtype W>
AQ_DEVICE_FN void load_codes(struct lane_codes<W> *to, const uint8_t *panel, uint32_t k, uint32_t g,
                             uint32_t row)
{
    size_t full = aq_cu_group_code_bytes(W, AQ_GROUP_K) + 4 * AQ_PANEL_ROWS;
    uint32_t n = aq_cu_min(k - g * AQ_GROUP_K, AQ_GROUP_K), first = aq_cu_lane() % 4 * LANE_K;
    const uint8_t *codes = panel + g * full;
    const uint8_t *scale = codes + aq_cu_group_code_bytes(W, n) + 2 * row;
    to->scale = *reinterpret_cast<const uint2 *>(scale);
    to->minimum = *reinterpret_cast<const uint2 *>(scale + 2 * AQ_PANEL_ROWS);
    if constexpr (W == AQ_Q4) {
        const uint8_t *runs = codes + 8 * (first / 16 * AQ_PANEL_ROWS + row);
        uint4 low = {}, high = {}; /* of two rows each */
        if (first < n) {
            low = *reinterpret_cast<const uint4 *>(runs);
            high = *reinterpret_cast<const uint4 *>(runs + 16);
        }
        to->at[0] = {low.x, low.y};
        to->at[1] = {low.z, low.w};
        to->at[2] = {high.x, high.y};
        to->at[3] = {high.z, high.w};
    } else {
#pragma unroll
        for (uint32_t i = 0; i < LANE_K / 2; i++) {
            const uint8_t *pair = codes + 2 * ((first / 2 + i) * AQ_PANEL_ROWS + row);
            to->at[i] = first + 2 * i < n ? *reinterpret_cast<const uint2 *>(pair) : uint2{};
        }
    }
}

/* a[step][tile of 16 rows][4]: the values that aq_cuda_unpack makes of a lane's codes, as the first
 * operands of products. */
template <enum aq_dtype C, enum aq_dtype W>
AQ_DEVICE_FN void make_values(uint32_t a[STEPS][2][4], const struct lane_codes<W> *from)
{
#pragma unroll
    for (uint32_t i = 0; i < LANE_ROWS; i++) {
        float scale = aq_cu_half_of(from->scale, i), minimum = aq_cu_half_of(from->minimum, i);
#pragma unroll
        for (uint32_t pair = 0; pair < LANE_K / 2; pair++) {
            uint32_t step = pair / 2, low, high, byte, next;
            if constexpr (W == AQ_Q4) {
                struct aq_cu_codes16 codes = aq_cu_codes16_of(from->at[i].x, from->at[i].y);
                low = codes.at[pair % 2 * 2];
                high = codes.at[pair % 2 * 2 + 1];
                byte = next = step;
            } else {
                low = high = i < 2 ? from->at[pair].x : from->at[pair].y;
                byte = i % 2 * 2;
                next = byte + 1;
            }
            a[step][i / 2][i % 2 + pair % 2 * 2] =
                aq_cu_pair<C>(fmaf(aq_cu_byte_float(low, byte), scale, minimum),
                              fmaf(aq_cu_byte_float(high, next), scale, minimum));
        }
    }
}

/* x of row `row` at columns k and k + 1; zeros past the ends. */
AQ_DEVICE_FN uint32_t x_pair(const struct aq_cuda_codes_product *p, uint32_t row, uint32_t k)
{
    if (row >= p->m || k >= p->k)
        return 0;
    const uint16_t *x = static_cast<const uint16_t *>(p->x) + row * p->x_stride + k;
    return x[0] | (k + 1 < p->k ? static_cast<uint32_t>(x[1]) << 16 : 0);
}

/* The same of LANE_K columns from k on; whole: all rows are aligned to 16 bytes. */
AQ_DEVICE_FN void load_x(uint32_t to[LANE_K / 2], const struct aq_cuda_codes_product *p,
                         uint32_t row, uint32_t k, bool whole)
{
    if (whole && k + LANE_K <= p->k) {
        const uint16_t *x = static_cast<const uint16_t *>(p->x) + row * p->x_stride + k;
        const uint4 *units = reinterpret_cast<const uint4 *>(x);
#pragma unroll
        for (uint32_t i = 0; i < LANE_K / 8; i++) {
            uint4 u = row < p->m ? units[i] : uint4{};
            to[4 * i] = u.x;
            to[4 * i + 1] = u.y;
            to[4 * i + 2] = u.z;
            to[4 * i + 3] = u.w;
        }
        return;
    }
#pragma unroll
    for (uint32_t i = 0; i < LANE_K / 2; i++)
        to[i] = x_pair(p, row, k + 2 * i);
}

/* sum[tile of W's rows][tile of x's rows] += a group's share; k: the lane's first column. */
template <enum aq_dtype C, enum aq_dtype W, uint32_t TILES>
AQ_DEVICE_FN void add_group(const struct aq_cuda_codes_product *p, const struct lane_codes<W> *w,
                            uint32_t k, bool whole, float sum[2][TILES][4])
{
    uint32_t a[STEPS][2][4];
    make_values<C, W>(a, w);
#pragma unroll
    for (uint32_t t = 0; t < TILES; t++) {
        uint32_t x[LANE_K / 2];
        load_x(x, p, 8 * t + aq_cu_lane() / 4, k, whole);
#pragma unroll
        for (uint32_t step = 0; step < STEPS; step++) {
            aq_cu_mma<C>(sum[0][t], a[step][0], x + 2 * step);
            aq_cu_mma<C>(sum[1][t], a[step][1], x + 2 * step);
        }
    }
}

/* Tiles of x that lie in shared memory at a time. */
template <uint32_t TILES> constexpr uint32_t PARTS = TILES < 4 ? TILES : 4;

/* Sums of PARTS<TILES> tiles of x from `tile` on, over the warps, to y. */
template <uint32_t TILES>
AQ_DEVICE_FN void join_warps(const struct aq_cuda_codes_product *p, float *parts, uint32_t tile,
                             const float sum[2][TILES][4])
{
    constexpr uint32_t tiles = PARTS<TILES>, part = 8 * tiles * BLOCK_ROWS;
    uint32_t warp = threadIdx.x / AQ_CU_WARP, lane = aq_cu_lane();
    uint32_t first = blockIdx.x * BLOCK_ROWS;
#pragma unroll
    for (uint32_t t = 0; t < tiles; t++) {
#pragma unroll
        for (uint32_t e = 0; e < 2; e++) { /* a row of x, with the lane's rows of W */
            float *to = parts + warp * part + (8 * t + lane % 4 * 2 + e) * BLOCK_ROWS;
            to += lane / 4 * LANE_ROWS;
            to[0] = sum[0][tile + t][e];
            to[1] = sum[0][tile + t][e + 2];
            to[2] = sum[1][tile + t][e];
            to[3] = sum[1][tile + t][e + 2];
        }
    }
    __syncthreads();
    uint32_t rows = aq_cu_min(p->m - aq_cu_min(p->m, 8 * tile), 8 * tiles);
    for (uint32_t i = threadIdx.x; i < rows * BLOCK_ROWS; i += THREADS) {
        float y = 0;
        for (uint32_t w = 0; w < WARPS; w++)
            y += parts[w * part + i];
        if (first + i % BLOCK_ROWS < p->rows)
            p->y[(8 * tile + i / BLOCK_ROWS) * p->y_stride + first + i % BLOCK_ROWS] = y;
    }
}

/* A grid of (half panels). */
template <enum aq_dtype C, enum aq_dtype W, uint32_t TILES>
__global__ void __launch_bounds__(THREADS)
    multiply_codes(struct aq_cuda_codes_product p, size_t panel_bytes)
{
    AQ_SHARED(float, parts); /* [warps][x's rows][BLOCK_ROWS] */
    uint32_t lane = aq_cu_lane(), row = blockIdx.x % (AQ_PANEL_ROWS / BLOCK_ROWS) * BLOCK_ROWS;
    const uint8_t *panel =
        static_cast<const uint8_t *>(p.w) + blockIdx.x / (AQ_PANEL_ROWS / BLOCK_ROWS) * panel_bytes;
    bool whole = reinterpret_cast<uintptr_t>(p.x) % 16 == 0 && p.x_stride % 8 == 0;
    float sum[2][TILES][4] = {};
    struct lane_codes<W> next = {
    };
    row += lane / 4 * LANE_ROWS;
    uint32_t g = threadIdx.x / AQ_CU_WARP, groups = (p.k + AQ_GROUP_K - 1) / AQ_GROUP_K;
    if (g < groups)
        load_codes<W>(&next, panel, p.k, g, row);
    for (; g < groups; g += WARPS) {
        struct lane_codes<W> w = next;
        if (g + WARPS < groups)
            load_codes<W>(&next, panel, p.k, g + WARPS, row);
        add_group<C, W, TILES>(&p, &w, g * AQ_GROUP_K + lane % 4 * LANE_K, whole, sum);
    }
#pragma unroll
    for (uint32_t tile = 0; tile < TILES; tile += PARTS<TILES>) {
        if (tile)
            __syncthreads(); /* the parts before are still read */
        join_warps<TILES>(&p, parts, tile, sum);
    }
}

template <enum aq_dtype C, enum aq_dtype W, uint32_t TILES>
static int launch_tiles(const struct aq_cuda_exec *ex, const struct aq_cuda_codes_product *p)
{
    size_t shared = WARPS * 8 * PARTS<TILES> * BLOCK_ROWS * sizeof(float);
    auto kernel = multiply_codes<C, W, TILES>;
    return AQ_LAUNCH(ex, kernel, aq_cu_div_up(p->rows, BLOCK_ROWS), THREADS, shared, *p,
                     aq_panel_bytes(W, p->k));
}

template <enum aq_dtype C, enum aq_dtype W>
static int launch(const struct aq_cuda_exec *ex, const struct aq_cuda_codes_product *p)
{
    return p->m <= 8    ? launch_tiles<C, W, 1>(ex, p)
           : p->m <= 16 ? launch_tiles<C, W, 2>(ex, p)
           : p->m <= 32 ? launch_tiles<C, W, 4>(ex, p)
                        : launch_tiles<C, W, M_MAX / 8>(ex, p);
}

int aq_cuda_product_codes(const struct aq_cuda_exec *ex, const struct aq_cuda_codes_product *p)
{
    assert(p->x_dtype == AQ_F16 || p->x_dtype == AQ_BF16);
    assert(aq_dtype_is_quantised(p->w_dtype) && p->m <= M_MAX && p->k >= 1);
    assert(reinterpret_cast<uintptr_t>(p->w) % 16 == 0);
    if (!p->m || !p->rows)
        return 0;
    if (!aq_cu_has_mma(ex, p->x_dtype))
        return -EINVAL;
    if (p->x_dtype == AQ_F16)
        return p->w_dtype == AQ_Q4 ? launch<AQ_F16, AQ_Q4>(ex, p) : launch<AQ_F16, AQ_Q8>(ex, p);
    return p->w_dtype == AQ_Q4 ? launch<AQ_BF16, AQ_Q4>(ex, p) : launch<AQ_BF16, AQ_Q8>(ex, p);
}
