/* SPDX-License-Identifier: Apache-2.0
 * Which slots the rows of a delta belong to: a thread per head, bound by the launch. */
#include "kernels/cuda/device.cuh"

enum { NOTE_THREADS = 256 };

__global__ void __launch_bounds__(NOTE_THREADS) note_targets(struct aq_kv_note n)
{
    for (uint32_t h = threadIdx.x; h < n.kv_heads; h += blockDim.x)
        n.target[h * AQ_HEAD_BLOCK_SLOTS] = n.victim[h] < n.whole ? n.victim[h] : UINT32_MAX;
}

int aq_cuda_kv_note(const struct aq_cuda_exec *ex, const struct aq_kv_note *n)
{
    return AQ_LAUNCH(ex, note_targets, 1, aq_cu_row_threads(n->kv_heads, NOTE_THREADS), 0, *n);
}
