/* SPDX-License-Identifier: Apache-2.0
 * engine/compute/cuda.h - the CUDA backend as the engine opens it: the module, looked for beside
 * the program and loaded when somebody asks for a GPU, and one GPU by its number. */
#ifndef AQ_ENGINE_COMPUTE_CUDA_H
#define AQ_ENGINE_COMPUTE_CUDA_H

#include "base/err.h"
#include "engine/compute/cuda_module.h"

struct aq_cuda {
    void *library;
    const struct aq_cuda_module *module;
    struct aq_gpu *gpu;
    struct aq_gpu_info info;
};

/* Tensor cores multiply bf16 from compute capability 8.0 on. */
static inline bool aq_gpu_has_bf16(const struct aq_gpu_info *info)
{
    return info->code_sm >= 80;
}

/* The compute capability times ten of the code that a GPU of `sm` runs, of that which was made for
 * these (aq_cuda_made_for): the latest of its own generation, or what its driver translates; 0:
 * there is none. */
uint32_t aq_cuda_code_for(const uint32_t *made_for, uint32_t sm);

/* -ENODEV: the sentence says what is missing (module, library, driver, a new enough driver, GPU).
 * path: of the module; NULL: beside the program, or where it was built. */
int aq_cuda_open(struct aq_cuda *ret, const char *path, uint32_t index, struct aq_err *reterr);
/* Zero stands for the default of each. */
void aq_cuda_close(struct aq_cuda *c);

/* The same without opening a GPU: is there one of that number? */
int aq_cuda_check(const char *path, uint32_t index, struct aq_err *reterr);

/* For struct aq_device_opts: gpu_pieces; user is a struct aq_cuda. */
int aq_cuda_pieces(void *user, void *native, const struct aq_copy_piece *pieces, uint32_t count);

#endif
