/* SPDX-License-Identifier: Apache-2.0
 * Embedding rows on AVX2, FMA and F16C. */
#include "kernels/cpu/panel.h"
#include "kernels/cpu/vec.h"
#include "kernels/cpu/versions.h"

#include "kernels/cpu/embed_simd.h"

void aq_embed_avx2(struct aq_exec *ex, const struct aq_embed *e)
{
    embed(ex, e);
}

void aq_add_rows_avx2(struct aq_exec *ex, float *y, size_t y_stride, const void *table,
                      enum aq_dtype table_dtype, const uint32_t *index, uint32_t rows, uint32_t k)
{
    add_rows(ex, y, y_stride, table, table_dtype, index, rows, k);
}
