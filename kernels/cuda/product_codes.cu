/* SPDX-License-Identifier: Apache-2.0
 * Products of a few rows with quantised weights, which are de-quantised on the way into the tensor
 * cores: int4 weights move 4.5 bits each and not 4.5, 16 and 16 again.  For up to 16 rows of x;
 * with more, unpacking and a library's product is the better way.
 *
 * A block of eight warps has 32 rows of a panel, which are 32 columns of the result; a warp takes
 * every eighth group of 64 k.  W is the first operand (16 rows of it to a tile), x the second one
 * (8 of its rows): a lane de-quantises the very codes that its fragment holds, once, whatever the
 * number of rows of x.  Sums are f32: along the k of a warp's groups, ascending, 16 at a time, then
 * over the eight warps in order; the result of a row of x does not depend on the others. */
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/panel.cuh"

enum {
    WARPS = 8,
    THREADS = WARPS * AQ_CU_WARP,
    BLOCK_ROWS = 32, /* of W */
    M_MAX = AQ_CUDA_PRODUCT_ROWS_MAX,
};

/* A group of a panel from the block's first row on. */
struct group {
    const uint8_t *codes;
    const uint16_t *scale; /* minima are a panel's rows further on */
    uint32_t n;            /* columns */
};

AQ_DEVICE_FN struct group group_at(const uint8_t *panel, enum aq_dtype t, uint32_t k, uint32_t g,
                                   uint32_t row)
{
    size_t full = aq_cu_group_code_bytes(t, AQ_GROUP_K) + 4 * AQ_PANEL_ROWS;
    struct group x = {panel + g * full, NULL, aq_cu_min(k - g * AQ_GROUP_K, AQ_GROUP_K)};
    x.scale = reinterpret_cast<const uint16_t *>(x.codes + aq_cu_group_code_bytes(t, x.n)) + row;
    return x;
}

/* The codes of columns 16 j + 2 (lane % 4) + {0, 1, 8, 9} of a row, a byte each. */
template <enum aq_dtype W>
AQ_DEVICE_FN uint32_t codes_of(const struct group *x, uint32_t row, uint32_t j)
{
    uint32_t t = aq_cu_lane() % 4;
    if (W == AQ_Q4) {
        uint2 words = reinterpret_cast<const uint2 *>(x->codes)[j * AQ_PANEL_ROWS + row];
        uint32_t even = words.x >> 4 * t, odd = words.y >> 4 * t;
        return (even & 15u) | (odd & 15u) << 8 | (even & 0xf0000u) | (odd & 0xf0000u) << 8;
    }
    const uint16_t *pairs = reinterpret_cast<const uint16_t *>(x->codes);
    uint32_t first = 8 * j + t, next = first + 4; /* pairs along k */
    uint32_t low = 2 * first < x->n ? pairs[first * AQ_PANEL_ROWS + row] : 0;
    uint32_t high = 2 * next < x->n ? pairs[next * AQ_PANEL_ROWS + row] : 0;
    return low | high << 16;
}

/* The values that aq_cuda_unpack makes of them. */
template <enum aq_dtype C>
AQ_DEVICE_FN uint32_t value_pair(uint32_t codes, float scale, float minimum)
{
    return aq_cu_pair<C>(aq_cu_code_value(codes & 255u, scale, minimum),
                         aq_cu_code_value(codes >> 8 & 255u, scale, minimum));
}

/* x of row `row` at columns k and k + 1; zeros past the ends. */
AQ_DEVICE_FN uint32_t x_pair(const struct aq_cuda_codes_product *p, uint32_t row, uint32_t k)
{
    if (row >= p->m || k >= p->k)
        return 0;
    const uint16_t *x = static_cast<const uint16_t *>(p->x) + row * p->x_stride + k;
    if (reinterpret_cast<uintptr_t>(x) % 4 == 0 && k + 1 < p->k)
        return *reinterpret_cast<const uint32_t *>(x);
    return x[0] | (k + 1 < p->k ? static_cast<uint32_t>(x[1]) << 16 : 0);
}

/* sum[tile of W's rows][tile of x's rows] += a group's share. */
template <enum aq_dtype C, enum aq_dtype W, uint32_t TILES>
AQ_DEVICE_FN void add_group(const struct aq_cuda_codes_product *p, const struct group *x,
                            uint32_t row0, uint32_t k0, float sum[2][TILES][4])
{
    uint32_t lane = aq_cu_lane();
    float scale[4], minimum[4];
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
        scale[i] = aq_cu_from_f16(x->scale[lane / 4 + 8 * i]);
        minimum[i] = aq_cu_from_f16(x->scale[lane / 4 + 8 * i + AQ_PANEL_ROWS]);
    }
#pragma unroll
    for (uint32_t j = 0; j < AQ_GROUP_K / 16; j++) {
        if (16 * j >= x->n)
            break;
        uint32_t b[TILES][2], k = k0 + 16 * j + lane % 4 * 2;
#pragma unroll
        for (uint32_t t = 0; t < TILES; t++) {
            b[t][0] = x_pair(p, 8 * t + lane / 4, k);
            b[t][1] = x_pair(p, 8 * t + lane / 4, k + 8);
        }
#pragma unroll
        for (uint32_t m = 0; m < 2; m++) {
            uint32_t a[4];
#pragma unroll
            for (uint32_t half = 0; half < 2; half++) {
                uint32_t i = 2 * m + half;
                uint32_t codes = codes_of<W>(x, row0 + lane / 4 + 8 * i, j);
                a[half] = value_pair<C>(codes, scale[i], minimum[i]);
                a[2 + half] = value_pair<C>(codes >> 16, scale[i], minimum[i]);
            }
#pragma unroll
            for (uint32_t t = 0; t < TILES; t++)
                aq_cu_mma<C>(sum[m][t], a, b[t]);
        }
    }
}

/* A grid of (half panels). */
template <enum aq_dtype C, enum aq_dtype W, uint32_t TILES>
__global__ void __launch_bounds__(THREADS)
    multiply_codes(struct aq_cuda_codes_product p, size_t panel_bytes)
{
    AQ_SHARED(float, parts); /* [warps][x's rows][BLOCK_ROWS] */
    constexpr uint32_t part = 8 * TILES * BLOCK_ROWS;
    uint32_t warp = threadIdx.x / AQ_CU_WARP, lane = aq_cu_lane();
    uint32_t first = blockIdx.x * BLOCK_ROWS, row0 = first % AQ_PANEL_ROWS;
    const uint8_t *panel = static_cast<const uint8_t *>(p.w) + first / AQ_PANEL_ROWS * panel_bytes;
    float sum[2][TILES][4] = {};
    for (uint32_t g = warp; g * AQ_GROUP_K < p.k; g += WARPS) {
        struct group x = group_at(panel, W, p.k, g, row0);
        add_group<C, W, TILES>(&p, &x, row0, g * AQ_GROUP_K, sum);
    }
#pragma unroll
    for (uint32_t m = 0; m < 2; m++) {
#pragma unroll
        for (uint32_t i = 0; i < 4 * TILES; i++) {
            uint32_t e = i % 4, row = 8 * (i / 4) + lane % 4 * 2 + e % 2;
            parts[warp * part + row * BLOCK_ROWS + 16 * m + lane / 4 + e / 2 * 8] =
                sum[m][i / 4][e];
        }
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < p.m * BLOCK_ROWS; i += THREADS) {
        float y = 0;
        for (uint32_t w = 0; w < WARPS; w++)
            y += parts[w * part + i];
        if (first + i % BLOCK_ROWS < p.rows)
            p.y[i / BLOCK_ROWS * p.y_stride + first + i % BLOCK_ROWS] = y;
    }
}

template <enum aq_dtype C, enum aq_dtype W>
static int launch(const struct aq_cuda_exec *ex, const struct aq_cuda_codes_product *p)
{
    uint32_t tiles = p->m <= 8 ? 1 : 2;
    auto kernel = tiles == 1 ? multiply_codes<C, W, 1> : multiply_codes<C, W, 2>;
    size_t shared = WARPS * 8 * tiles * BLOCK_ROWS * sizeof(float);
    return AQ_LAUNCH(ex, kernel, aq_cu_div_up(p->rows, BLOCK_ROWS), THREADS, shared, *p,
                     aq_panel_bytes(W, p->k));
}

int aq_cuda_product_codes(const struct aq_cuda_exec *ex, const struct aq_cuda_codes_product *p)
{
    assert(p->x_dtype == AQ_F16 || p->x_dtype == AQ_BF16);
    assert(aq_dtype_is_quantised(p->w_dtype) && p->m <= M_MAX && p->k >= 1);
    if (!p->m || !p->rows)
        return 0;
    if (!aq_cu_has_mma(ex, p->x_dtype))
        return -EINVAL;
    if (p->x_dtype == AQ_F16)
        return p->w_dtype == AQ_Q4 ? launch<AQ_F16, AQ_Q4>(ex, p) : launch<AQ_F16, AQ_Q8>(ex, p);
    return p->w_dtype == AQ_Q4 ? launch<AQ_BF16, AQ_Q4>(ex, p) : launch<AQ_BF16, AQ_Q8>(ex, p);
}
