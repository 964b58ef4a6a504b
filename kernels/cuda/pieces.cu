/* SPDX-License-Identifier: Apache-2.0
 * Many small copies in one launch: keys that go home, each head's to a place of its own.  A warp
 * per piece; bound by the link, which rows on the host are read and written across.  The list goes
 * with the launch, so that whoever made it may make the next one. */
#include "kernels/cuda/device.cuh"

#include <string.h>

enum {
    PIECES_THREADS = 256,
    PIECES_WARPS = PIECES_THREADS / AQ_CU_WARP,
    PIECES_MAX = 512,      /* of a launch */
    ARGUMENTS_MAX = 32764, /* bytes: CUDA 12.1 and later, from compute capability 7.0 on */
};

struct piece_list {
    struct aq_copy_piece piece[PIECES_MAX];
};
static_assert(sizeof(struct piece_list) + sizeof(uint32_t) <= ARGUMENTS_MAX, "of a launch");

template <typename T> AQ_DEVICE_FN void copy_units(uint64_t dst, uint64_t src, uint64_t bytes)
{
#pragma unroll 1 /* a row of a key is one round */
    for (uint64_t i = aq_cu_lane(); i < bytes / sizeof(T); i += AQ_CU_WARP)
        reinterpret_cast<T *>(dst)[i] = reinterpret_cast<const T *>(src)[i];
}

__global__ void __launch_bounds__(PIECES_THREADS)
    copy_pieces(const __grid_constant__ struct piece_list list, uint32_t count)
{
    uint32_t i = blockIdx.x * PIECES_WARPS + threadIdx.x / AQ_CU_WARP;
    if (i >= count)
        return;
    uint64_t dst = reinterpret_cast<uint64_t>(list.piece[i].dst);
    uint64_t src = reinterpret_cast<uint64_t>(list.piece[i].src);
    uint64_t bytes = list.piece[i].bytes;
    if ((dst | src | bytes) % 16 == 0)
        copy_units<uint4>(dst, src, bytes);
    else if ((dst | src | bytes) % 4 == 0)
        copy_units<uint32_t>(dst, src, bytes);
    else
        copy_units<uint8_t>(dst, src, bytes);
}

int aq_cuda_copy_pieces(const struct aq_cuda_exec *ex, const struct aq_copy_piece *pieces,
                        uint32_t count)
{
    int rc = 0;
    for (uint32_t i = 0, n; i < count && !rc; i += n) {
        struct piece_list list = {};
        n = static_cast<uint32_t>(aq_min_u64(count - i, PIECES_MAX));
        memcpy(list.piece, pieces + i, n * sizeof(*pieces));
        rc = AQ_LAUNCH(ex, copy_pieces, aq_cu_div_up(n, PIECES_WARPS), PIECES_THREADS, 0, list, n);
    }
    return rc;
}
