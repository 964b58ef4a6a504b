/* SPDX-License-Identifier: Apache-2.0
 * Norms, on vec.h; included once by each version's file.  Two passes over a row that the first one
 * brought into the cache, then one that writes. */
#include "kernels/cpu/moments_simd.h"
#include "kernels/cpu/vec.h"
#include "kernels/cpu/versions.h"

enum { TILE_ELEMENTS = 16384 };

struct norm_job {
    const struct aq_norm *n;
    uint32_t tile_rows;
};

/* The numbers that a row's elements are normed with: y = (x - mean) * factor * w + b. */
struct turn {
    float mean, factor;
};

static inline struct turn find_turn(const struct aq_norm *n, const float *x)
{
    struct turn t = {.mean = 0, .factor = 1};
    if (n->kind == AQ_NORM_CAST)
        return t;
    float count = (float)n->dim;
    if (n->kind == AQ_NORM_LAYER)
        t.mean = sum_powers(x, n->dim, 0, 1) / count;
    t.factor = 1 / sqrtf(sum_powers(x, n->dim, t.mean, 2) / count + n->eps);
    return t;
}

/* One vector of y, from lanes below n. */
VEC_FN vec turn_vec(const struct aq_norm *n, const struct turn *t, vec x, uint32_t d,
                    uint32_t lanes)
{
    vec y = vec_mul(vec_sub(x, vec_set(t->mean)), vec_set(t->factor));
    if (n->w)
        y = vec_mul(y, vec_load_n(n->w + d, lanes));
    if (n->b && n->kind == AQ_NORM_LAYER)
        y = vec_add(y, vec_load_n(n->b + d, lanes));
    return y;
}

VEC_FN void write_row(const struct aq_norm *n, const struct turn *t, const float *x, size_t to,
                      enum aq_dtype dtype)
{
    for (uint32_t d = 0; d < n->dim; d += VEC_LANES) {
        uint32_t lanes = (uint32_t)aq_min_u64(VEC_LANES, n->dim - d);
        vec y = vec_load_n(x + d, lanes);
        if (n->kind != AQ_NORM_CAST)
            y = turn_vec(n, t, y, d, lanes);
        if (lanes == VEC_LANES)
            vec_store_as(n->y, dtype, to + d, y);
        else
            vec_store_as_n(n->y, dtype, to + d, y, lanes);
    }
}

static void norm_tile(void *arg, uint32_t tile, uint32_t worker)
{
    const struct norm_job *job = arg;
    const struct aq_norm *n = job->n;
    uint32_t row = tile * job->tile_rows;
    uint32_t end = (uint32_t)aq_min_u64((uint64_t)row + job->tile_rows, n->rows);
    for (; row < end; row++) {
        const float *x = n->x + (n->row_index ? n->row_index[row] : row) * n->x_stride;
        struct turn t = find_turn(n, x);
        if (n->y_dtype == AQ_F32)
            write_row(n, &t, x, row * n->y_stride, AQ_F32);
        else
            write_row(n, &t, x, row * n->y_stride, AQ_BF16);
    }
}

void VEC_VERSION(norm)(struct aq_exec *ex, const struct aq_norm *n)
{
    assert(n->dim >= 1 && (n->y_dtype == AQ_F32 || n->y_dtype == AQ_BF16));
    struct norm_job job = {.n = n};
    job.tile_rows = (uint32_t)aq_max_u64(1, TILE_ELEMENTS / n->dim);
    aq_pool_run(aq_exec_pool(ex), norm_tile, &job, (uint32_t)aq_div_up(n->rows, job.tile_rows));
}
