/* SPDX-License-Identifier: Apache-2.0
 * engine/model/random_weights.h - seeded random weights for shapes without a checkpoint.  A value
 * is a pure function of (seed, tensor name, row, column): any rows can be made anywhere, in any
 * order, by any thread, and are the same bits on every machine.  Owns nothing. */
#ifndef AQ_ENGINE_MODEL_RANDOM_WEIGHTS_H
#define AQ_ENGINE_MODEL_RANDOM_WEIGHTS_H

#include <stdint.h>

struct aq_random_tensor {
    uint64_t key; /* of (seed, name) */
    float mean, deviation;
};

/* How a tensor of this canonical name is drawn.  Matrices and tables: mean 0, deviation 0.02, as in
 * arXiv 2205.01068, section 2.2; those that write into the residual stream 0.02 / sqrt(2 layers),
 * so that it neither dies out nor explodes.  Biases: mean 0, deviation 0.01.  Norm weights: mean 1,
 * deviation 0.02.  residual_writers: endings of the names of what writes into it, NULL-ended. */
struct aq_random_tensor aq_random_tensor(uint64_t seed, const char *name,
                                         const char *const *residual_writers, uint32_t layers);

/* dst[r][c] = value of row first_row + r, column c; dst is f32 [rows][cols], contiguous.  A vector
 * is one row.  Drawn from the sum of four uniform 16-bit numbers (Irwin-Hall), which is normal to
 * within 1 % of its distribution function and ends at 3.46 deviations. */
void aq_random_rows(float *dst, const struct aq_random_tensor *t, uint32_t first_row, uint32_t rows,
                    uint32_t cols);

#endif
