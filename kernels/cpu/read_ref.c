/* SPDX-License-Identifier: Apache-2.0
 * Bounds of head-blocks and the choice by them, reference: number by number, in the order that all
 * versions have. */
#include "kernels/cpu/kv.h"
#include "kernels/cpu/read.h"
#include "kernels/cpu/versions.h"
#include "kernels/exp.h"

#include <math.h>

/* ---- bounds ---- */

static void bound_channel(const uint8_t *block, enum aq_dtype t, uint32_t dim, uint32_t d,
                          uint16_t *least, uint16_t *greatest)
{
    float lo = INFINITY, hi = -INFINITY;
    bool finite = true;
    for (uint32_t slot = 0; slot < AQ_HEAD_BLOCK_SLOTS; slot++) {
        float k = aq_kv_load(block, t, dim, slot, d);
        lo = k < lo ? k : lo;
        hi = k > hi ? k : hi;
        finite &= isfinite(k);
    }
    *least = aq_f16_down(finite ? lo : -INFINITY);
    *greatest = aq_f16_up(finite ? hi : INFINITY);
}

/* A tile is one KV head of one sequence. */
static void bounds_tile(void *arg, uint32_t tile, uint32_t worker)
{
    const struct aq_kv_bounds *job = arg;
    const struct aq_kv_bound *s = &job->bounds[tile / job->kv_heads];
    uint32_t head = tile % job->kv_heads, dim = job->head_dim;
    for (uint32_t b = s->first; b < s->end; b++) {
        const uint8_t *block = s->block[b] + head * s->head_offset;
        uint16_t *to = s->bounds + aq_read_group(s->groups, head, dim, b / AQ_KV_BOUND_BLOCKS) +
                       b % AQ_KV_BOUND_BLOCKS;
        for (uint32_t d = 0; d < dim; d++, to += 2 * AQ_KV_BOUND_BLOCKS)
            bound_channel(block, job->kv_dtype, dim, d, to, to + AQ_KV_BOUND_BLOCKS);
    }
}

void aq_kv_bounds_ref(struct aq_exec *ex, const struct aq_kv_bounds *b)
{
    assert(!aq_dtype_is_kivi(b->kv_dtype));
    aq_pool_run(aq_exec_pool(ex), bounds_tile, (void *)b, b->count * b->kv_heads);
}

/* ---- choice ---- */

/* worth[b] += the part of one query head, whose bounds go into u [blocks]. */
static void add_query(const struct aq_kv_choice *c, const uint16_t *bounds, const float *q,
                      const uint32_t *side, uint32_t dim, float *u, float *worth)
{
    float most = -INFINITY;
    for (uint32_t b = 0; b < c->blocks; b++) {
        const uint16_t *at =
            bounds + aq_kv_bound_numbers(dim, b / AQ_KV_BOUND_BLOCKS) + b % AQ_KV_BOUND_BLOCKS;
        u[b] = 0;
        for (uint32_t d = 0; d < dim; d++)
            u[b] = fmaf(q[d], aq_f32_from_f16(at[side[d]]), u[b]);
        most = most < u[b] ? u[b] : most;
    }
    for (uint32_t b = 0; b < c->blocks; b++)
        worth[b] += aq_exp(u[b] - most);
}

struct choose_job {
    struct aq_exec *ex;
    const struct aq_kv_choices *c;
};

/* A tile is one KV head of one sequence. */
static void choose_tile(void *arg, uint32_t tile, uint32_t worker)
{
    const struct choose_job *job = arg;
    const struct aq_kv_choices *c = job->c;
    const struct aq_kv_choice *choice = &c->choices[tile / c->kv_heads];
    uint32_t head = tile % c->kv_heads, dim = c->head_dim;
    struct aq_read_room r = aq_read_open(aq_exec_scratch(job->ex, worker),
                                         aq_exec_scratch_size(job->ex), c, choice, head);
    const uint16_t *bounds = choice->bounds + aq_read_group(choice->groups, head, dim, 0);
    for (uint32_t b = 0; b < choice->blocks; b++)
        r.worth[b] = 0;
    for (uint32_t g = 0; g < c->q_per_kv; g++)
        add_query(choice, bounds, r.q + (size_t)g * dim, r.side + (size_t)g * dim, dim,
                  r.u + g * r.padded, r.worth);
    aq_read_choose(choice, head, r.worth);
}

void aq_kv_choose_ref(struct aq_exec *ex, const struct aq_kv_choices *c)
{
    struct choose_job job = {ex, c};
    aq_pool_run(aq_exec_pool(ex), choose_tile, &job, c->count * c->kv_heads);
}
