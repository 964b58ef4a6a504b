/* SPDX-License-Identifier: Apache-2.0
 * engine/compute/cuda_bias.h - copies of biases in 16 bits, for products whose results have 16
 * bits: cuBLASLt adds a bias in the type that it writes.  A vector is f32 in the engine; most
 * checkpoints have 16 bits, so that nothing is lost, and where something would be there is no
 * copy. */
#ifndef AQ_ENGINE_COMPUTE_CUDA_BIAS_H
#define AQ_ENGINE_COMPUTE_CUDA_BIAS_H

#include "offload/gpu.h"
#include "policy/steps.h"

struct aq_cuda_biases {
    struct aq_cuda_bias {
        const float *from; /* ascending; both in device memory */
        const void *copy;
        uint32_t count;
    } * bias;
    uint32_t count;
};

struct aq_cuda_biases_opts {
    const struct aq_gpu_ops *gpu_ops;
    struct aq_gpu *gpu;
    const struct aq_model_steps *steps;
    enum aq_dtype compute;
    void *room; /* device memory, aligned to 64; policy/gpu_sizes.h has its bytes */
};

/* Of the biases of products with an activation.
 *   vector  [steps->vector_count], in device memory
 * -EIO with a sentence where the GPU fails.  *ret is to be closed in any case. */
int aq_cuda_biases_open(struct aq_cuda_biases *ret, const struct aq_cuda_biases_opts *opts,
                        float *const *vector, struct aq_err *reterr);
void aq_cuda_biases_close(struct aq_cuda_biases *b);

/* The copy of what is at `at`, in or at the beginning of a vector; NULL: there is none. */
const void *aq_cuda_biases_find(const struct aq_cuda_biases *b, const float *at);

#endif
