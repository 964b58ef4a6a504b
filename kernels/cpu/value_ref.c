/* SPDX-License-Identifier: Apache-2.0
 * What the keys of a prompt are worth, for every level: few operations a key beside attention, and
 * in one order, so that no level may keep other keys than another. */
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/versions.h"

#include <assert.h>
#include <math.h>

/* ---- from column sums ---- */

enum { TILE_KEYS = 512 };

/* A NaN is the largest. */
static float larger(float a, float b)
{
    return isnan(b) || b > a ? b : a;
}

static float combine(const struct aq_kv_value *v, float c, float x)
{
    return v->group == AQ_ATTN_MAX_OF_SUMS ? larger(c, x) : c + x;
}

static float finish(const struct aq_kv_value *v, float c)
{
    return v->group == AQ_ATTN_MEAN ? c / (float)v->q_per_kv : c;
}

/* Keys [first, end) around a key. */
static void neighbours(const struct aq_kv_value *v, uint32_t key, uint32_t *ret_first,
                       uint32_t *ret_end)
{
    uint32_t reach = v->pool ? v->pool_width / 2 : 0;
    *ret_first = key > reach ? key - reach : 0;
    *ret_end = (uint32_t)aq_min_u64((uint64_t)key + reach + 1, v->len);
}

/* Of a key and its neighbours in x, whose first element is that of the key `base`. */
static float pooled(const struct aq_kv_value *v, const float *x, uint32_t base, uint32_t key)
{
    uint32_t first, end;
    neighbours(v, key, &first, &end);
    float c = x[first - base];
    for (uint32_t i = first + 1; i < end; i++)
        c = v->pool == AQ_KV_POOL_MAX ? larger(c, x[i - base]) : c + x[i - base];
    return v->pool == AQ_KV_POOL_AVG ? c / (float)v->pool_width : c;
}

static const float *row_of(const struct aq_kv_value *v, uint32_t head, uint32_t g)
{
    return v->sums + ((size_t)head * v->q_per_kv + g) * v->stride;
}

/* to[i] = what key `key + i` of a KV head is worth to it, for n keys. */
static void pool_then_group(const struct aq_kv_value *v, uint32_t head, uint32_t key, uint32_t n,
                            float *to)
{
    for (uint32_t i = 0; i < n; i++) {
        float c = pooled(v, row_of(v, head, 0), 0, key + i);
        for (uint32_t g = 1; g < v->q_per_kv; g++)
            c = combine(v, c, pooled(v, row_of(v, head, g), 0, key + i));
        to[i] = finish(v, c);
    }
}

static void group_then_pool(const struct aq_kv_value *v, uint32_t head, uint32_t key, uint32_t n,
                            float *to)
{
    float grouped[TILE_KEYS + AQ_KV_POOL_WIDTH_MAX];
    uint32_t first, end, unused;
    neighbours(v, key, &first, &unused);
    neighbours(v, key + n - 1, &unused, &end);
    for (uint32_t j = first; j < end; j++) {
        float c = row_of(v, head, 0)[j];
        for (uint32_t g = 1; g < v->q_per_kv; g++)
            c = combine(v, c, row_of(v, head, g)[j]);
        grouped[j - first] = finish(v, c);
    }
    for (uint32_t i = 0; i < n; i++)
        to[i] = pooled(v, grouped, first, key + i);
}

static void head_values(const struct aq_kv_value *v, uint32_t head, uint32_t key, uint32_t n,
                        float *to)
{
    if (v->pool && v->pool_first)
        pool_then_group(v, head, key, n, to);
    else
        group_then_pool(v, head, key, n, to);
}

static void heads_together(const struct aq_kv_value *v, uint32_t key, uint32_t n)
{
    float one[TILE_KEYS];
    head_values(v, 0, key, n, v->value + key);
    for (uint32_t h = 1; h < v->kv_heads; h++) {
        head_values(v, h, key, n, one);
        for (uint32_t i = 0; i < n; i++)
            v->value[key + i] += one[i];
    }
    for (uint32_t h = 1; h < v->kv_heads; h++) {
        for (uint32_t i = 0; i < n; i++)
            v->value[(size_t)h * v->stride + key + i] = v->value[key + i];
    }
}

/* A tile is TILE_KEYS keys, of one KV head where heads are apart. */
static void value_tile(void *arg, uint32_t tile, uint32_t worker)
{
    const struct aq_kv_value *v = arg;
    uint32_t tiles = (uint32_t)aq_div_up(v->len, TILE_KEYS), head = tile / tiles;
    uint32_t key = tile % tiles * TILE_KEYS;
    uint32_t n = (uint32_t)aq_min_u64(TILE_KEYS, v->len - key);
    if (v->together)
        heads_together(v, key, n);
    else
        head_values(v, head, key, n, v->value + (size_t)head * v->stride + key);
}

void aq_kv_value_ref(struct aq_exec *ex, const struct aq_kv_value *v)
{
    assert(v->sums != v->value && v->len <= v->stride && v->q_per_kv >= 1);
    assert(v->group == AQ_ATTN_SUM || v->group == AQ_ATTN_MEAN || v->group == AQ_ATTN_MAX_OF_SUMS);
    assert(!v->pool || (v->pool_width % 2 && v->pool_width <= AQ_KV_POOL_WIDTH_MAX));
    uint32_t tiles = (uint32_t)aq_div_up(v->len, TILE_KEYS);
    aq_pool_run(aq_exec_pool(ex), value_tile, (void *)v, tiles * (v->together ? 1 : v->kv_heads));
}

/* ---- from keys alone ---- */

enum { PARTS = 8, WINDOW = 64 };

struct key_job {
    struct aq_exec *ex;
    const struct aq_kv_key_value *v;
};

static float dot(const float *x, const float *y, uint32_t dim)
{
    float part[PARTS] = {0};
    uint32_t d = 0;
    for (; d + PARTS <= dim; d += PARTS) {
        for (uint32_t i = 0; i < PARTS; i++)
            part[i] += x[d + i] * y[d + i];
    }
    for (uint32_t i = 0; d + i < dim; i++)
        part[i] += x[d + i] * y[d + i];
    for (uint32_t half = PARTS / 2; half; half /= 2) {
        for (uint32_t i = 0; i < half; i++)
            part[i] += part[i + half];
    }
    return part[0];
}

static const float *key_of(const struct aq_kv_key_value *v, uint32_t head, uint32_t j)
{
    return v->k + j * v->k_stride + (size_t)head * v->head_dim;
}

/* total = the sum of all keys' directions, whose lengths are in n; window is room for as much. */
static void add_directions(const struct aq_kv_key_value *v, uint32_t head, const float *n,
                           float *total, float *window)
{
    for (uint32_t d = 0; d < v->head_dim; d++)
        total[d] = 0;
    for (uint32_t first = 0; first < v->len; first += WINDOW) {
        uint32_t end = (uint32_t)aq_min_u64((uint64_t)first + WINDOW, v->len);
        for (uint32_t d = 0; d < v->head_dim; d++)
            window[d] = 0;
        for (uint32_t j = first; j < end; j++) {
            const float *k = key_of(v, head, j);
            for (uint32_t d = 0; d < v->head_dim; d++)
                window[d] += k[d] / n[j];
        }
        for (uint32_t d = 0; d < v->head_dim; d++)
            total[d] += window[d];
    }
}

/* A tile is a KV head. */
static void key_tile(void *arg, uint32_t head, uint32_t worker)
{
    const struct key_job *job = arg;
    const struct aq_kv_key_value *v = job->v;
    float *value = v->value + (size_t)head * v->stride, *total = aq_exec_scratch(job->ex, worker);
    for (uint32_t j = 0; j < v->len; j++) {
        const float *k = key_of(v, head, j);
        float n = sqrtf(dot(k, k, v->head_dim));
        value[j] = n < 1e-12f ? 1e-12f : n; /* a NaN stays */
    }
    if (v->diff)
        add_directions(v, head, value, total, total + v->head_dim);
    for (uint32_t j = 0; j < v->len; j++) {
        float n = v->diff ? dot(key_of(v, head, j), total, v->head_dim) / value[j] : value[j];
        value[j] = -n;
    }
}

void aq_kv_key_value_ref(struct aq_exec *ex, const struct aq_kv_key_value *v)
{
    assert(v->len <= v->stride);
    assert(2 * v->head_dim * sizeof(float) <= aq_exec_scratch_size(ex));
    struct key_job job = {ex, v};
    aq_pool_run(aq_exec_pool(ex), key_tile, &job, v->kv_heads);
}
