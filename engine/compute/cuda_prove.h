/* SPDX-License-Identifier: Apache-2.0
 * engine/compute/cuda_prove.h - what cuBLASLt does not promise and the engine needs: that a row's
 * bits do not depend on the rows and columns that a product computes beside it, and that an
 * activation is the one that is meant and keeps a NaN.  So the products of a model are tried on the
 * GPU that is to compute them.  Knows products, not what they are for. */
#ifndef AQ_ENGINE_COMPUTE_CUDA_PROVE_H
#define AQ_ENGINE_COMPUTE_CUDA_PROVE_H

#include "engine/compute/cuda.h"
#include "policy/steps.h"

struct aq_cuda_proof {
    const struct aq_cuda *cuda;
    const struct aq_cuda_exec *ex;      /* with workspace and blas; its stream is not used */
    const struct aq_model_steps *steps; /* whose products are meant */
    enum aq_dtype compute;
    /* Device memory, aligned to 256, that nobody uses now: for rows and weights, and for sums. */
    void *operands;
    float *sums;
    size_t operands_bytes, sums_bytes;
};

/* With a deterministic blas: of each length of rows that the model has, one product of many rows
 * and columns against cuts of it.  0, or -ENODEV with a sentence that says which two differ, or why
 * there is no product. */
int aq_cuda_prove(const struct aq_cuda_proof *p, struct aq_err *reterr);

/* With another blas: has it trust (aq_cuda_dense_trust) the kernels with an activation, of those
 * that products of the model may get, out of which NaNs come as NaNs and other numbers as the
 * engine's formula has them.  Where there is none the engine's own kernel follows the product.  0,
 * or -ENODEV where the GPU fails. */
int aq_cuda_prove_activations(const struct aq_cuda_proof *p, struct aq_err *reterr);

#endif
