/* SPDX-License-Identifier: Apache-2.0
 * Weights as cuBLASLt takes them: panels of any dtype to one row-major matrix in the compute type.
 * A block has the 64 rows of a panel and some groups of its columns.  A thread asks for its codes
 * of all of them before it makes numbers of any; these are turned in shared memory, from where rows
 * side by side, as panels have them, leave as 16 bytes along k. */
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/panel.cuh"

enum {
    THREADS = 256,
    SLOW_COLUMNS = 64,
};

/* Groups of a block: a thread has 12 bytes of int4 to ask for in each, 32 of int8. */
template <enum aq_dtype W> struct groups {
    static constexpr uint32_t count = W == AQ_Q4 ? 8 : 4;
};

/* A thread's codes of a group: a run of 16 columns of a row of int4 ones; of int8 ones four rows,
 * two pairs of columns. */
struct thread_codes {
    uint2 at[2];          /* int4: one */
    uint2 scale, minimum; /* f16 of the rows; int4: in the first halves of x */
};

/* A warp has whole sectors of int8 codes, and rows and columns whose places in the tile are in
 * different banks, two by two. */
template <enum aq_dtype W> AQ_DEVICE_FN uint32_t first_row()
{
    if (W == AQ_Q4)
        return threadIdx.x % AQ_PANEL_ROWS;
    return (threadIdx.x % 4 + threadIdx.x / AQ_CU_WARP % 4 * 4) * 4;
}

/* The first column of at[i]. */
template <enum aq_dtype W> AQ_DEVICE_FN uint32_t first_column(uint32_t i)
{
    if (W == AQ_Q4)
        return threadIdx.x / AQ_PANEL_ROWS * 16;
    return (threadIdx.x / 4 % 8 + threadIdx.x / 128 * 8) * 2 + i * (AQ_GROUP_K / 2);
}

/* Of a group of n columns; zeros past them. */
template <enum aq_dtype W>
AQ_DEVICE_FN void load_codes(struct thread_codes *to, const uint8_t *codes, uint32_t n)
{
    uint32_t row = first_row<W>();
    const uint8_t *scale = codes + aq_cu_group_code_bytes(W, n) + 2 * row;
    const uint8_t *minimum = scale + 2 * AQ_PANEL_ROWS;
    if constexpr (W == AQ_Q4) {
        const uint8_t *run = codes + 8 * (first_column<W>(0) / 16 * AQ_PANEL_ROWS + row);
        to->at[0] = first_column<W>(0) < n ? *reinterpret_cast<const uint2 *>(run) : uint2{};
        to->scale.x = *reinterpret_cast<const uint16_t *>(scale);
        to->minimum.x = *reinterpret_cast<const uint16_t *>(minimum);
    } else {
#pragma unroll
        for (uint32_t i = 0; i < 2; i++) {
            const uint8_t *pair = codes + 2 * (first_column<W>(i) / 2 * AQ_PANEL_ROWS + row);
            to->at[i] = first_column<W>(i) < n ? *reinterpret_cast<const uint2 *>(pair) : uint2{};
        }
        to->scale = *reinterpret_cast<const uint2 *>(scale);
        to->minimum = *reinterpret_cast<const uint2 *>(minimum);
    }
}

/* Numbers of a tile lie in words: one of f32, two of 16 bits.  A row of 64 is followed by four
 * words, so that 16 bytes of neighbouring rows are in different banks. */
template <enum aq_dtype D> AQ_DEVICE_FN uint32_t tile_stride()
{
    return AQ_GROUP_K / (D == AQ_F32 ? 1 : 2) + 4;
}

/* The words of two numbers. */
template <enum aq_dtype D> AQ_DEVICE_FN void put_pair(uint32_t *to, float low, float high)
{
    if constexpr (D == AQ_F32) {
        to[0] = __float_as_uint(low);
        to[1] = __float_as_uint(high);
    } else {
        to[0] = aq_cu_pair<D>(low, high);
    }
}

/* A run of int4 codes as numbers of the tile. */
template <enum aq_dtype D>
AQ_DEVICE_FN void put_run(uint32_t *tile, const struct thread_codes *from)
{
    constexpr uint32_t words = D == AQ_F32 ? 16 : 8;
    struct aq_cu_codes16 codes = aq_cu_codes16_of(from->at[0].x, from->at[0].y);
    float scale = aq_cu_half_of(from->scale, 0), minimum = aq_cu_half_of(from->minimum, 0);
    uint32_t word[words];
#pragma unroll
    for (uint32_t i = 0; i < 16; i += 2) {
        float low = aq_cu_byte_float(codes.at[i % 4], i / 4);
        float high = aq_cu_byte_float(codes.at[i % 4 + 1], i / 4);
        put_pair<D>(word + i * words / 16, fmaf(low, scale, minimum), fmaf(high, scale, minimum));
    }
    uint32_t *to = tile + first_row<AQ_Q4>() * tile_stride<D>();
    to += first_column<AQ_Q4>(0) * words / 16;
#pragma unroll
    for (uint32_t i = 0; i < words; i += 4)
        *reinterpret_cast<uint4 *>(to + i) = {word[i], word[i + 1], word[i + 2], word[i + 3]};
}

/* Pairs of int8 codes of four rows. */
template <enum aq_dtype D>
AQ_DEVICE_FN void put_pairs(uint32_t *tile, const struct thread_codes *from)
{
#pragma unroll
    for (uint32_t i = 0; i < 8; i++) {
        uint32_t pair = i / 4, r = i % 4, byte = r % 2 * 2;
        uint32_t word = r < 2 ? from->at[pair].x : from->at[pair].y;
        float scale = aq_cu_half_of(from->scale, r), minimum = aq_cu_half_of(from->minimum, r);
        uint32_t *to = tile + (first_row<AQ_Q8>() + r) * tile_stride<D>();
        put_pair<D>(to + first_column<AQ_Q8>(pair) / (D == AQ_F32 ? 1 : 2),
                    fmaf(aq_cu_byte_float(word, byte), scale, minimum),
                    fmaf(aq_cu_byte_float(word, byte + 1), scale, minimum));
    }
}

/* n columns of the tile's rows to dst, from element `to` on; whole: by 16 bytes. */
template <enum aq_dtype D>
AQ_DEVICE_FN void store_tile(const struct aq_cuda_unpack *u, const uint32_t *tile, size_t to,
                             uint32_t rows, uint32_t n, bool whole)
{
    constexpr uint32_t size = D == AQ_F32 ? 4 : 2, unit = 16 / size;
    char *dst = static_cast<char *>(u->dst);
    if (whole && n == AQ_GROUP_K) {
        for (uint32_t i = threadIdx.x; i < rows * (AQ_GROUP_K / unit); i += THREADS) {
            uint32_t row = i / (AQ_GROUP_K / unit), at = i % (AQ_GROUP_K / unit);
            size_t element = to + row * u->dst_stride + at * unit;
            *reinterpret_cast<uint4 *>(dst + element * size) =
                *reinterpret_cast<const uint4 *>(tile + row * tile_stride<D>() + at * 4);
        }
        return;
    }
    for (uint32_t i = threadIdx.x; i < rows * AQ_GROUP_K; i += THREADS) {
        uint32_t row = i / AQ_GROUP_K, k = i % AQ_GROUP_K;
        if (k >= n)
            continue;
        const char *from = reinterpret_cast<const char *>(tile + row * tile_stride<D>()) + k * size;
        char *element = dst + (to + row * u->dst_stride + k) * size;
        if (D == AQ_F32)
            *reinterpret_cast<uint32_t *>(element) = *reinterpret_cast<const uint32_t *>(from);
        else
            *reinterpret_cast<uint16_t *>(element) = *reinterpret_cast<const uint16_t *>(from);
    }
}

/* A grid of (groups<W>::count groups, panels). */
template <enum aq_dtype W, enum aq_dtype D>
__global__ void __launch_bounds__(THREADS)
    unpack_codes(struct aq_cuda_unpack u, size_t panel_bytes, size_t group_bytes)
{
    constexpr uint32_t count = groups<W>::count;
    AQ_SHARED(uint32_t, tile);
    uint32_t first = blockIdx.x * count * AQ_GROUP_K, row0 = blockIdx.y * AQ_PANEL_ROWS;
    uint32_t rows = aq_cu_min(u.rows - row0, AQ_PANEL_ROWS);
    const uint8_t *codes = static_cast<const uint8_t *>(u.src) + blockIdx.y * panel_bytes +
                           blockIdx.x * count * group_bytes;
    constexpr uint32_t size = D == AQ_F32 ? 4 : 2;
    bool whole = reinterpret_cast<uintptr_t>(u.dst) % 16 == 0 && u.dst_stride * size % 16 == 0;
    struct thread_codes mine[count] = {};
#pragma unroll
    for (uint32_t g = 0; g < count; g++) {
        uint32_t k = first + g * AQ_GROUP_K;
        if (k < u.k)
            load_codes<W>(&mine[g], codes + g * group_bytes, aq_cu_min(u.k - k, AQ_GROUP_K));
    }
#pragma unroll
    for (uint32_t g = 0; g < count; g++) {
        uint32_t k = first + g * AQ_GROUP_K;
        if (k >= u.k)
            break;
        if (g)
            __syncthreads(); /* the group before is still read */
        if constexpr (W == AQ_Q4)
            put_run<D>(tile, &mine[g]);
        else
            put_pairs<D>(tile, &mine[g]);
        __syncthreads();
        store_tile<D>(&u, tile, row0 * u.dst_stride + k, rows, aq_cu_min(u.k - k, AQ_GROUP_K),
                      whole);
    }
}

/* Panels of a float dtype whose rows are padded, or of another one.  A grid of (64 columns,
 * panels). */
__global__ void __launch_bounds__(THREADS) convert_rows(struct aq_cuda_unpack u, size_t panel_bytes)
{
    uint32_t first = blockIdx.x * SLOW_COLUMNS, row0 = blockIdx.y * AQ_PANEL_ROWS;
    uint32_t rows = aq_cu_min(u.rows - row0, AQ_PANEL_ROWS);
    const uint8_t *panel = static_cast<const uint8_t *>(u.src) + blockIdx.y * panel_bytes;
    for (uint32_t i = threadIdx.x; i < rows * SLOW_COLUMNS; i += THREADS) {
        uint32_t row = i / SLOW_COLUMNS, k = first + i % SLOW_COLUMNS;
        if (k < u.k)
            aq_cu_store(u.dst, u.dst_dtype, (row0 + row) * u.dst_stride + k,
                        aq_cu_load(panel, u.src_dtype, static_cast<size_t>(row) * u.k + k));
    }
}

template <enum aq_dtype W, enum aq_dtype D>
static int launch(const struct aq_cuda_exec *ex, const struct aq_cuda_unpack *u)
{
    dim3 grid(aq_cu_div_up(u->k, groups<W>::count * AQ_GROUP_K), aq_panel_count(u->rows));
    size_t shared = AQ_PANEL_ROWS * (AQ_GROUP_K / (D == AQ_F32 ? 1 : 2) + 4) * sizeof(uint32_t);
    auto kernel = unpack_codes<W, D>;
    return AQ_LAUNCH(ex, kernel, grid, THREADS, shared, *u, aq_panel_bytes(W, u->k),
                     aq_group_bytes(W, AQ_GROUP_K));
}

template <enum aq_dtype W>
static int launch_codes(const struct aq_cuda_exec *ex, const struct aq_cuda_unpack *u)
{
    assert(reinterpret_cast<uintptr_t>(u->src) % 8 == 0);
    return u->dst_dtype == AQ_F32   ? launch<W, AQ_F32>(ex, u)
           : u->dst_dtype == AQ_F16 ? launch<W, AQ_F16>(ex, u)
                                    : launch<W, AQ_BF16>(ex, u);
}

int aq_cuda_unpack(const struct aq_cuda_exec *ex, const struct aq_cuda_unpack *u)
{
    assert(aq_dtype_is_quantised(u->src_dtype) || aq_dtype_is_float(u->src_dtype));
    assert(aq_dtype_is_float(u->dst_dtype));
    if (!u->rows || !u->k)
        return 0;
    assert(aq_panel_count(u->rows) <= AQ_CU_GRID_YZ_MAX);
    if (u->src_dtype == AQ_Q4)
        return launch_codes<AQ_Q4>(ex, u);
    if (u->src_dtype == AQ_Q8)
        return launch_codes<AQ_Q8>(ex, u);
    dim3 grid(aq_cu_div_up(u->k, SLOW_COLUMNS), aq_panel_count(u->rows));
    return AQ_LAUNCH(ex, convert_rows, grid, THREADS, 0, *u, aq_panel_bytes(u->src_dtype, u->k));
}
