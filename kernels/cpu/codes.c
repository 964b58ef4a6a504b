/* SPDX-License-Identifier: Apache-2.0
 * Products on codes: rows become codes once, then the loops of gemm.h run on them. */
#include "kernels/cpu/codes.h"
#include "kernels/cpu/gemm.h"

#include <assert.h>

enum { ROWS_AT_ONCE = 4 };

struct rows_job {
    struct aq_codes_rows all;
    aq_codes_rows_fn *rows;
    size_t row_bytes;
};

static void make_rows(void *arg, uint32_t index, uint32_t worker)
{
    const struct rows_job *j = arg;
    struct aq_codes_rows part = j->all;
    uint32_t skip = index * ROWS_AT_ONCE;
    part.first += skip;
    part.rows = (uint32_t)aq_min_u64(ROWS_AT_ONCE, part.rows - skip);
    part.dst = (char *)part.dst + skip * j->row_bytes;
    j->rows(&part);
}

void aq_codes_run(struct aq_exec *ex, const struct aq_product *p, const struct aq_gemm_ops *ops,
                  aq_codes_rows_fn *rows)
{
    assert(aq_dtype_is_quantised(p->w_dtype));
    size_t bytes, row_bytes = aq_codes_x_row(ops->code_bytes, p->k);
    void *codes = aq_exec_codes(ex, &bytes);
    uint32_t most = (uint32_t)aq_min_u64(AQ_CODES_ROWS, bytes / row_bytes);
    assert(most > 0);
    uint32_t parts = (uint32_t)aq_div_up(p->m, most);
    for (uint32_t i = 0, end, first = 0; i < parts; i++, first = end) {
        end = (uint32_t)((uint64_t)p->m * (i + 1) / parts);
        struct rows_job j = {.all = {codes, p, first, end - first}, .rows = rows};
        j.row_bytes = row_bytes;
        aq_pool_run(aq_exec_pool(ex), make_rows, &j, (uint32_t)aq_div_up(j.all.rows, ROWS_AT_ONCE));
        struct aq_product part = *p;
        part.x = codes;
        part.x_stride = row_bytes;
        part.m = j.all.rows;
        part.y = (char *)p->y + first * p->y_stride * aq_dtype_bytes(p->y_dtype);
        aq_gemm_run(ex, &part, ops);
    }
}
