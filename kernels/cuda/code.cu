/* SPDX-License-Identifier: Apache-2.0
 * Which machines there is code for: nvcc has made it of all sources alike. */
#include "kernels/cuda/device.cuh"

#ifdef __CUDA_ARCH_LIST__
const uint32_t aq_cuda_made_for[] = {__CUDA_ARCH_LIST__, 0};
#else
const uint32_t aq_cuda_made_for[] = {0};
#endif
