/* SPDX-License-Identifier: Apache-2.0
 * Statistics of logits and their weights, on vec.h; included once by each version's file.
 *
 * A row is cut into chunks of a fixed size.  Each gives its own maximum, where it is, the sum of
 * exp(x - that maximum) and the number of bad logits, read from memory once and from the cache
 * then; the chunks of a row are then joined in order, sums in f64.  Whether a tile is a chunk or a
 * row changes nothing but which worker does what. */
#include "kernels/cpu/vec.h"
#include "kernels/cpu/versions.h"

enum { CHUNK = 4096 };

struct chunk_stat {
    float max, sum;
    uint32_t argmax, bad_count;
};

struct stat_job {
    const struct aq_logits *l;
    uint32_t chunks;
    struct chunk_stat *chunk; /* [rows][chunks], NULL when a tile is a row */
};

/* VEC_LANES logits from x on, bad ones and lanes past n as -inf. */
VEC_FN vec load_good(const float *x, uint32_t n, uint32_t *bad_count)
{
    const vec lowest = vec_set(-INFINITY);
    vec v = n < VEC_LANES ? vec_select(vec_first(n), vec_load_n(x, n), lowest) : vec_load(x);
    vec_mask good = vec_finite(v);
    *bad_count += VEC_LANES - vec_count(good) - (n < VEC_LANES ? VEC_LANES - n : 0);
    return vec_select(good, v, lowest);
}

static struct chunk_stat stat_chunk(const float *x, uint32_t count)
{
    struct chunk_stat s = {0};
    uint32_t unused = 0;
    vec max = vec_set(-INFINITY), sum = vec_zero();
    for (uint32_t i = 0; i < count; i += VEC_LANES)
        max = vec_max(max, load_good(x + i, count - i, &s.bad_count));
    max = vec_max_all(max);
    s.max = vec_first_lane(max);
    if (s.bad_count == count)
        return s;
    for (uint32_t i = 0; i < count; i += VEC_LANES)
        sum = vec_add(sum, vec_exp(vec_sub(load_good(x + i, count - i, &unused), max)));
    s.sum = vec_sum(sum);
    while (x[s.argmax] != s.max)
        s.argmax++;
    return s;
}

static struct chunk_stat stat_at(const struct stat_job *job, uint32_t row, uint32_t chunk)
{
    uint32_t first = chunk * CHUNK;
    uint32_t count = (uint32_t)aq_min_u64(CHUNK, job->l->vocab - first);
    struct chunk_stat s = stat_chunk(job->l->logits + row * job->l->stride + first, count);
    s.argmax += first;
    return s;
}

/* A row's statistics so far: sum is in units of exp(max). */
struct join {
    float max;
    uint32_t argmax, bad_count;
    double sum;
};

static void join_chunk(struct join *j, const struct chunk_stat *s)
{
    j->bad_count += s->bad_count;
    if (s->sum == 0)
        return; /* nothing but bad logits */
    if (s->max > j->max) {
        j->sum = j->sum * exp((double)j->max - s->max) + s->sum;
        j->max = s->max;
        j->argmax = s->argmax;
    } else {
        j->sum += s->sum * exp((double)s->max - j->max);
    }
}

static struct aq_logits_stat join_end(const struct join *j)
{
    return (struct aq_logits_stat){
        .max = j->max,
        .argmax = j->argmax,
        .log_sum_exp = (float)(j->max + log(j->sum)),
        .bad_count = j->bad_count,
    };
}

static void stat_row_tile(void *arg, uint32_t row, uint32_t worker)
{
    const struct stat_job *job = arg;
    struct join j = {.max = -INFINITY};
    for (uint32_t i = 0; i < job->chunks; i++) {
        struct chunk_stat s = stat_at(job, row, i);
        join_chunk(&j, &s);
    }
    job->l->stat[row] = join_end(&j);
}

static void stat_chunk_tile(void *arg, uint32_t tile, uint32_t worker)
{
    const struct stat_job *job = arg;
    job->chunk[tile] = stat_at(job, tile / job->chunks, tile % job->chunks);
}

void VEC_VERSION(logits_stat)(struct aq_exec *ex, const struct aq_logits *l)
{
    assert(l->vocab >= 1);
    struct aq_pool *pool = aq_exec_pool(ex);
    struct stat_job job = {.l = l, .chunks = (uint32_t)aq_div_up(l->vocab, CHUNK)};
    uint64_t tiles = (uint64_t)l->rows * job.chunks;
    if (aq_pool_threads(pool) == 1 || l->rows >= 8 * aq_pool_threads(pool) ||
        tiles * sizeof(*job.chunk) > aq_exec_scratch_size(ex)) {
        aq_pool_run(pool, stat_row_tile, &job, l->rows);
        return;
    }
    job.chunk = aq_exec_scratch(ex, 0);
    aq_pool_run(pool, stat_chunk_tile, &job, (uint32_t)tiles);
    for (uint32_t r = 0; r < l->rows; r++) {
        struct join j = {.max = -INFINITY};
        for (uint32_t i = 0; i < job.chunks; i++)
            join_chunk(&j, &job.chunk[(size_t)r * job.chunks + i]);
        l->stat[r] = join_end(&j);
    }
}

/* Distances as minus themselves, which is exact. */
VEC_FN vec near_of(const struct aq_candidates *c, vec logits)
{
    return vec_mul(vec_sub(logits, vec_set(c->best)), vec_set(c->inverse));
}

VEC_FN vec_long add_units(const struct aq_candidates *c, vec_long sum, vec near, vec weight)
{
    vec_mask out = vec_less(near, vec_set(-c->reach));
    return vec_long_add_whole(sum, vec_zero_where(out, vec_mul(weight, vec_set(c->unit))));
}

uint64_t VEC_VERSION(weigh)(const struct aq_candidates *c)
{
    vec_long sum = vec_long_zero();
    uint32_t i = 0, rest = c->count % VEC_LANES;
    for (; i < c->count - rest; i += VEC_LANES) {
        vec near = near_of(c, vec_load(c->logits + i)), weight = vec_exp(near);
        vec_store(c->weight + i, weight);
        sum = add_units(c, sum, near, weight);
    }
    if (rest) {
        vec logits = vec_select(vec_first(rest), vec_load_n(c->logits + i, rest),
                                vec_set(-INFINITY)); /* weighs nothing */
        vec near = near_of(c, logits), weight = vec_exp(near);
        vec_store_n(c->weight + i, weight, rest);
        sum = add_units(c, sum, near, weight);
    }
    return vec_long_sum(sum);
}

uint32_t VEC_VERSION(weights_between)(uint32_t *id, const float *weight, uint32_t count,
                                      float least, float most)
{
    const vec low = vec_set(least), high = vec_set(most);
    uint32_t found = 0;
    for (uint32_t i = 0; i < count; i += VEC_LANES) {
        uint32_t n = count - i;
        vec v = n < VEC_LANES ? vec_load_n(weight + i, n) : vec_load(weight + i);
        uint32_t out = vec_mask_bits(vec_either(vec_less(v, low), vec_less(high, v)));
        uint32_t in = ~out & (n < VEC_LANES ? (1u << n) - 1 : (1u << VEC_LANES) - 1);
        for (; in; in &= in - 1)
            id[found++] = i + (uint32_t)__builtin_ctz(in);
    }
    return found;
}
