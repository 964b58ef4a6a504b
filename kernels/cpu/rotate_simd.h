/* SPDX-License-Identifier: Apache-2.0
 * Rotation of heads, on vec.h; included once by each version's file.  A row's cosines and sines
 * serve all its heads from the first-level cache; a head is read twice where it has a norm.  Bound
 * by reading and writing x. */
#include "kernels/cpu/moments_simd.h"
#include "kernels/cpu/rotate.h"
#include "kernels/cpu/vec.h"
#include "kernels/cpu/versions.h"

enum { TILE_ELEMENTS = 16384 };

VEC_FN void norm_head(float *x, const float *w, const struct aq_rotate *r)
{
    float square = sum_powers(x, r->head_dim, 0, 2);
    vec factor = vec_set(1 / sqrtf(square / (float)r->head_dim + r->eps));
    for (uint32_t d = 0; d < r->head_dim; d += VEC_LANES) {
        uint32_t n = (uint32_t)aq_min_u64(VEC_LANES, r->head_dim - d);
        vec y = vec_mul(vec_load_n(x + d, n), factor);
        vec_store_n(x + d, vec_mul(y, vec_load_n(w + d, n)), n);
    }
}

VEC_FN void turn_head(float *x, const float *turn, uint32_t half)
{
    for (uint32_t d = 0; d < half; d += VEC_LANES) {
        uint32_t n = (uint32_t)aq_min_u64(VEC_LANES, half - d);
        vec a = vec_load_n(x + d, n), b = vec_load_n(x + half + d, n);
        vec c = vec_load_n(turn + d, n), s = vec_load_n(turn + half + d, n);
        vec_store_n(x + d, vec_fms(c, a, vec_mul(s, b)), n);
        vec_store_n(x + half + d, vec_fma(c, b, vec_mul(s, a)), n);
    }
}

struct rotate_job {
    const struct aq_rotate *r;
    uint32_t tile_rows;
};

static void rotate_tile(void *arg, uint32_t tile, uint32_t worker)
{
    const struct rotate_job *job = arg;
    const struct aq_rotate *r = job->r;
    uint32_t row = tile * job->tile_rows;
    uint32_t end = (uint32_t)aq_min_u64((uint64_t)row + job->tile_rows, r->rows);
    for (; row < end; row++) {
        float *x = r->x + row * r->x_stride;
        for (uint32_t head = 0; head < r->q_heads + r->k_heads; head++, x += r->head_dim) {
            const float *w = head < r->q_heads ? r->w_q : r->w_k;
            if (w)
                norm_head(x, w, r);
            if (r->rotary_dim)
                turn_head(x, r->turn + (size_t)row * r->rotary_dim, r->rotary_dim / 2);
        }
    }
}

void VEC_VERSION(rotate)(struct aq_exec *ex, const struct aq_rotate *r)
{
    aq_rotate_assert(r);
    struct rotate_job job = {.r = r};
    uint64_t elements = (uint64_t)(r->q_heads + r->k_heads) * r->head_dim;
    job.tile_rows = (uint32_t)aq_max_u64(1, TILE_ELEMENTS / aq_max_u64(1, elements));
    aq_pool_run(aq_exec_pool(ex), rotate_tile, &job, (uint32_t)aq_div_up(r->rows, job.tile_rows));
}
