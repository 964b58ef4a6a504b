/* SPDX-License-Identifier: Apache-2.0
 * Which slots the rows of a delta belong to: a thread per head, bound by the launch. */
#include "kernels/cuda/device.cuh"

enum { NOTE_THREADS = 256 };

__global__ void __launch_bounds__(NOTE_THREADS)
    note_targets(uint32_t *target, const uint32_t *victim, uint32_t kv_heads, uint32_t whole)
{
    for (uint32_t h = threadIdx.x; h < kv_heads; h += blockDim.x)
        target[h * AQ_HEAD_BLOCK_SLOTS] = victim[h] < whole ? victim[h] : UINT32_MAX;
}

int aq_cuda_kv_note(const struct aq_cuda_exec *ex, uint32_t *target, const uint32_t *victim,
                    uint32_t kv_heads, uint32_t whole)
{
    return AQ_LAUNCH(ex, note_targets, 1, aq_cu_row_threads(kv_heads, NOTE_THREADS), 0, target,
                     victim, kv_heads, whole);
}
