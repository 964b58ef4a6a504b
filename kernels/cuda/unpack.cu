/* SPDX-License-Identifier: Apache-2.0
 * Weights as cuBLASLt takes them: panels of any dtype to one row-major matrix in the compute type.
 * A block of threads per panel and 64 columns.  A group of codes is read in its own order (rows
 * side by side), turned in shared memory and written along k. */
#include "kernels/cuda/panel.cuh"

enum {
    UNPACK_THREADS = 256,
    UNPACK_STRIDE_MAX = AQ_GROUP_K + 2,
};

/* Of the rows of a tile, so that what a warp writes is in different banks: a column of int8 codes;
 * two columns of 16 rows of int4 ones. */
AQ_DEVICE_FN uint32_t unpack_stride(enum aq_dtype t)
{
    return AQ_GROUP_K + (t == AQ_Q8 ? 1 : 2);
}

/* tile[row][i] of the n columns of a group. */
AQ_DEVICE_FN void decode_group(float *tile, const uint8_t *codes, enum aq_dtype t, uint32_t n)
{
    const uint16_t *scales =
        reinterpret_cast<const uint16_t *>(codes + aq_cu_group_code_bytes(t, n));
    uint32_t stride = unpack_stride(t);
    uint32_t units = t == AQ_Q8 ? (n + 1) / 2 * AQ_PANEL_ROWS : (n + 15) / 16 * AQ_PANEL_ROWS * 2;
    for (uint32_t u = threadIdx.x; u < units; u += blockDim.x) {
        if (t == AQ_Q8) { /* two neighbours along k */
            uint32_t row = u % AQ_PANEL_ROWS, k = u / AQ_PANEL_ROWS * 2;
            float scale = aq_cu_from_f16(scales[row]);
            float minimum = aq_cu_from_f16(scales[AQ_PANEL_ROWS + row]);
            uint32_t pair = reinterpret_cast<const uint16_t *>(codes)[u];
            tile[row * stride + k] = aq_cu_code_value(pair & 255u, scale, minimum);
            tile[row * stride + k + 1] = aq_cu_code_value(pair >> 8, scale, minimum);
        } else { /* every second one of 16 */
            uint32_t row = u / 2 % AQ_PANEL_ROWS, k = u / (2 * AQ_PANEL_ROWS) * 16 + u % 2;
            float scale = aq_cu_from_f16(scales[row]);
            float minimum = aq_cu_from_f16(scales[AQ_PANEL_ROWS + row]);
            uint32_t word = reinterpret_cast<const uint32_t *>(codes)[u];
            for (uint32_t i = 0; i < 8; i++)
                tile[row * stride + k + 2 * i] =
                    aq_cu_code_value(word >> 4 * i & 15u, scale, minimum);
        }
    }
}

__global__ void __launch_bounds__(UNPACK_THREADS)
    unpack_tile(struct aq_cuda_unpack u, size_t panel_bytes, size_t group_bytes)
{
    AQ_SHARED(float, tile);
    uint32_t first = blockIdx.x * AQ_GROUP_K, row0 = blockIdx.y * AQ_PANEL_ROWS;
    uint32_t n = aq_cu_min(u.k - first, AQ_GROUP_K);
    uint32_t rows = aq_cu_min(u.rows - row0, AQ_PANEL_ROWS);
    const uint8_t *panel = static_cast<const uint8_t *>(u.src) + blockIdx.y * panel_bytes;
    bool codes = aq_cu_is_quantised(u.src_dtype);
    if (codes)
        decode_group(tile, panel + blockIdx.x * group_bytes, u.src_dtype, n);
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < rows * AQ_GROUP_K; i += blockDim.x) {
        uint32_t row = i / AQ_GROUP_K, k = i % AQ_GROUP_K;
        if (k >= n)
            continue;
        float v = codes
                      ? tile[row * unpack_stride(u.src_dtype) + k]
                      : aq_cu_load(panel, u.src_dtype, static_cast<size_t>(row) * u.k + first + k);
        aq_cu_store(u.dst, u.dst_dtype, (row0 + row) * u.dst_stride + first + k, v);
    }
}

int aq_cuda_unpack(const struct aq_cuda_exec *ex, const struct aq_cuda_unpack *u)
{
    bool codes = aq_dtype_is_quantised(u->src_dtype);
    assert(codes || aq_dtype_is_float(u->src_dtype));
    assert(aq_dtype_is_float(u->dst_dtype));
    if (!u->rows || !u->k)
        return 0;
    dim3 grid(aq_cu_div_up(u->k, AQ_GROUP_K), aq_panel_count(u->rows));
    assert(grid.y <= AQ_CU_GRID_YZ_MAX);
    size_t shared = codes ? AQ_PANEL_ROWS * UNPACK_STRIDE_MAX * sizeof(float) : 0;
    return AQ_LAUNCH(ex, unpack_tile, grid, UNPACK_THREADS, shared, *u,
                     aq_panel_bytes(u->src_dtype, u->k),
                     codes ? aq_group_bytes(u->src_dtype, AQ_GROUP_K) : 0);
}
