/* SPDX-License-Identifier: Apache-2.0
 * Bounds of head-blocks and the choice by them, on vec.h; included once by each version's file.
 *
 * Bounds are made down the 32 keys of a head-block, a vector of channels at a time.  For a choice a
 * lane is a head-block: each lane adds up the channels of its own one, so no sum goes across lanes,
 * and its order is the reference's.  A query's sign says which of the two bounds is the larger
 * product, so only that one is read. */
#include "kernels/cpu/kv.h"
#include "kernels/cpu/read.h"
#include "kernels/cpu/vec.h"
#include "kernels/cpu/versions.h"

enum {
    GROUP_VECS = AQ_KV_BOUND_BLOCKS / VEC_LANES,
    SUMS = 4, /* of groups or queries at a time: one sum alone would wait for itself */
};

/* ---- bounds ---- */

/* Up to VEC_LANES channels of a key from channel d on; those behind `n` are 0.  Of int4 a vector
 * does not go beyond the lower or upper half. */
VEC_FN vec load_key(const uint8_t *block, enum aq_dtype dtype, uint32_t dim, uint32_t slot,
                    uint32_t d, uint32_t n)
{
    const uint8_t *row = aq_kv_row(block, dtype, dim, slot);
    if (!aq_dtype_is_quantised(dtype))
        return n == VEC_LANES ? vec_load_as(row, dtype, d) : vec_load_as_n(row, dtype, d, n);
    uint32_t units = (uint32_t)aq_kv_row_bytes(dtype, dim);
    vec_int codes = vec_load_u8(row + d % units, n);
    struct aq_quant q = aq_kv_quant(block, slot);
    vec code = dtype == AQ_Q8 ? vec_from_int(codes)
                              : vec_nibble(d < units ? codes : vec_int_shift_right(codes, 4));
    return vec_fma(code, vec_set(aq_f32_from_f16(q.scale)), vec_set(aq_f32_from_f16(q.minimum)));
}

/* Of n channels from channel d on: to is the least of channel d. */
VEC_FN void bound_channels(const uint8_t *block, enum aq_dtype dtype, uint32_t dim, uint32_t d,
                           uint32_t n, uint16_t *to)
{
    const vec_mask all = vec_first(VEC_LANES);
    vec lo = vec_set(INFINITY), hi = vec_set(-INFINITY), spoilt = vec_zero();
    uint16_t least[VEC_LANES], greatest[VEC_LANES];
    for (uint32_t slot = 0; slot < AQ_HEAD_BLOCK_SLOTS; slot++) {
        vec k = load_key(block, dtype, dim, slot, d, n);
        lo = vec_min_where(all, k, lo);
        hi = vec_max(k, hi);
        spoilt = vec_add(spoilt, vec_sub(k, k));
    }
    vec_mask finite = vec_equal(spoilt, vec_zero());
    vec_store_f16_down(least, vec_select(finite, lo, vec_set(-INFINITY)));
    vec_store_f16_up(greatest, vec_select(finite, hi, vec_set(INFINITY)));
    for (uint32_t i = 0; i < n; i++, to += 2 * AQ_KV_BOUND_BLOCKS) {
        to[0] = least[i];
        to[AQ_KV_BOUND_BLOCKS] = greatest[i];
    }
}

VEC_FN void bound_block(const uint8_t *block, enum aq_dtype dtype, uint32_t dim, uint16_t *to)
{
    uint32_t half = dtype == AQ_Q4 ? (uint32_t)aq_kv_row_bytes(dtype, dim) : dim;
    for (uint32_t d = 0, n; d < dim; d += n) {
        n = (uint32_t)aq_min_u64(VEC_LANES, (d < half ? half : dim) - d);
        bound_channels(block, dtype, dim, d, n, to + (size_t)d * 2 * AQ_KV_BOUND_BLOCKS);
    }
}

VEC_FN void bound_blocks(const struct aq_kv_bounds *job, enum aq_dtype dtype,
                         const struct aq_kv_bound *s, uint32_t head, uint32_t group)
{
    uint32_t from = group * AQ_KV_BOUND_BLOCKS, end = from + AQ_KV_BOUND_BLOCKS;
    uint16_t *to = s->bounds + aq_read_group(s->groups, head, job->head_dim, group);
    for (uint32_t b = from > s->first ? from : s->first; b < end && b < s->end; b++)
        bound_block(s->block[b] + head * s->head_offset, dtype, job->head_dim, to + (b - from));
}

struct bounds_job {
    const struct aq_kv_bounds *b;
    uint32_t groups; /* most of a sequence */
};

/* A tile is one group of one KV head of one sequence. */
static void bounds_tile(void *arg, uint32_t tile, uint32_t worker)
{
    const struct bounds_job *job = arg;
    const struct aq_kv_bounds *b = job->b;
    uint32_t head = tile / job->groups % b->kv_heads;
    const struct aq_kv_bound *s = &b->bounds[tile / job->groups / b->kv_heads];
    uint32_t group = s->first / AQ_KV_BOUND_BLOCKS + tile % job->groups;
    if (group * AQ_KV_BOUND_BLOCKS >= s->end)
        return;
    switch (b->kv_dtype) {
    case AQ_F32: bound_blocks(b, AQ_F32, s, head, group); break;
    case AQ_F16: bound_blocks(b, AQ_F16, s, head, group); break;
    case AQ_Q8: bound_blocks(b, AQ_Q8, s, head, group); break;
    case AQ_Q4: bound_blocks(b, AQ_Q4, s, head, group); break;
    default: bound_blocks(b, AQ_BF16, s, head, group);
    }
}

void VEC_VERSION(kv_bounds)(struct aq_exec *ex, const struct aq_kv_bounds *b)
{
    struct bounds_job job = {.b = b};
    assert(!aq_dtype_is_kivi(b->kv_dtype));
    for (uint32_t i = 0; i < b->count; i++) {
        const struct aq_kv_bound *s = &b->bounds[i];
        uint32_t first = s->first / AQ_KV_BOUND_BLOCKS, end = aq_kv_bound_groups(s->end);
        job.groups = (uint32_t)aq_max_u64(job.groups, end > first ? end - first : 0);
    }
    aq_pool_run(aq_exec_pool(ex), bounds_tile, &job, b->count * b->kv_heads * job.groups);
}

/* ---- choice ---- */

struct chooser {
    struct aq_read_room room;
    const uint16_t *bounds; /* of the head */
    uint32_t dim, blocks, queries;
};

/* The bounds of `queries` queries for `groups` groups, at most SUMS of them. */
VEC_FN void bound_products(const struct chooser *t, uint32_t query, uint32_t queries,
                           uint32_t group, uint32_t groups)
{
    vec sum[SUMS][GROUP_VECS];
    const uint16_t *bounds = t->bounds + aq_kv_bound_numbers(t->dim, group);
    const float *q = t->room.q + (size_t)query * t->dim;
    const uint32_t *side = t->room.side + (size_t)query * t->dim;
    size_t apart = aq_kv_bound_numbers(t->dim, 1);
    for (uint32_t i = 0; i < SUMS; i++) {
        for (uint32_t v = 0; v < GROUP_VECS; v++)
            sum[i][v] = vec_zero();
    }
    for (uint32_t d = 0; d < t->dim; d++) {
        AQ_UNROLL(4)
        for (uint32_t i = 0; i < queries; i++) {
            vec x = vec_set(q[i * t->dim + d]);
            AQ_UNROLL(4)
            for (uint32_t j = 0; j < groups; j++) {
                const uint16_t *at = bounds + j * apart + side[i * t->dim + d];
                AQ_UNROLL(2)
                for (uint32_t v = 0; v < GROUP_VECS; v++)
                    sum[i * groups + j][v] =
                        vec_fma(x, vec_load_f16(at + v * VEC_LANES), sum[i * groups + j][v]);
            }
        }
    }
    for (uint32_t i = 0; i < queries; i++) {
        float *u = t->room.u + (query + i) * t->room.padded + group * AQ_KV_BOUND_BLOCKS;
        for (uint32_t j = 0; j < groups * GROUP_VECS; j++)
            vec_store(u + j * VEC_LANES, sum[i * groups + j / GROUP_VECS][j % GROUP_VECS]);
    }
}

static void bound_queries(const struct chooser *t)
{
    uint32_t groups = aq_kv_bound_groups(t->blocks);
    for (uint32_t group = 0, n; group < groups; group += n) {
        n = t->queries == 1 && groups - group >= SUMS ? SUMS : 1;
        for (uint32_t query = 0; query < t->queries;) {
            if (n == SUMS) {
                bound_products(t, query++, 1, group, SUMS);
            } else if (t->queries - query >= SUMS) {
                bound_products(t, query, SUMS, group, 1);
                query += SUMS;
            } else {
                bound_products(t, query++, 1, group, 1);
            }
        }
    }
}

/* The largest of u [blocks]; a NaN is none. */
VEC_FN float most_of(const float *u, uint32_t blocks)
{
    vec most = vec_set(-INFINITY);
    for (uint32_t b = 0; b < blocks; b += VEC_LANES) {
        vec x = vec_load(u + b);
        most = vec_select(vec_both(vec_first(blocks - b), vec_less(most, x)), x, most);
    }
    return vec_first_lane(vec_max_all(most));
}

static void weigh_blocks(const struct chooser *t)
{
    for (uint32_t g = 0; g < t->queries; g++) {
        const float *u = t->room.u + g * t->room.padded;
        vec most = vec_set(most_of(u, t->blocks));
        for (uint32_t b = 0; b < t->blocks; b += VEC_LANES) {
            vec x = vec_sub(vec_load(u + b), most);
            vec e = vec_select(vec_equal(x, x), vec_exp(x), x); /* a NaN stays */
            float *worth = t->room.worth + b;
            vec_store(worth, g ? vec_add(vec_load(worth), e) : e);
        }
    }
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
    uint32_t head = tile % c->kv_heads;
    struct chooser t = {
        .room = aq_read_open(aq_exec_scratch(job->ex, worker), aq_exec_scratch_size(job->ex), c,
                             choice, head),
        .bounds = choice->bounds + aq_read_group(choice->groups, head, c->head_dim, 0),
        .dim = c->head_dim,
        .blocks = choice->blocks,
        .queries = c->q_per_kv,
    };
    bound_queries(&t);
    weigh_blocks(&t);
    aq_read_choose(choice, head, t.room.worth);
}

void VEC_VERSION(kv_choose)(struct aq_exec *ex, const struct aq_kv_choices *c)
{
    struct choose_job job = {ex, c};
    aq_pool_run(aq_exec_pool(ex), choose_tile, &job, c->count * c->kv_heads);
}
