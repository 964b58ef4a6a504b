/* SPDX-License-Identifier: Apache-2.0
 * Statistics of logits on AVX2, FMA and F16C. */
#include "kernels/cpu/vec.h"
#include "kernels/cpu/versions.h"

#include "kernels/cpu/logits_simd.h"

void aq_logits_stat_avx2(struct aq_exec *ex, struct aq_logits_stat *stat, const float *logits,
                         size_t stride, uint32_t rows, uint32_t vocab)
{
    logits_stat(ex, stat, logits, stride, rows, vocab);
}
