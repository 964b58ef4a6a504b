/* SPDX-License-Identifier: Apache-2.0
 * What the keys of a prompt are worth: the bits of kernels/cpu/value_ref.c, by adding up in its
 * order.  From column sums a thread has a key.  From keys alone a block has a KV head: eight
 * threads a key for products of vectors, a thread a dimension for the sum of directions. */
#include "kernels/cuda/device.cuh"

enum { VALUE_THREADS = 256, KEY_THREADS = 256, PARTS = 8, WINDOW = 64, DIM_MAX = 512 };

/* ---- from column sums ---- */

AQ_DEVICE_FN float larger(float a, float b)
{
    return isnan(b) || b > a ? b : a;
}

AQ_DEVICE_FN float combine(const struct aq_kv_value *v, float c, float x)
{
    return v->group == AQ_ATTN_MAX_OF_SUMS ? larger(c, x) : c + x;
}

AQ_DEVICE_FN float finish(const struct aq_kv_value *v, float c)
{
    return v->group == AQ_ATTN_MEAN ? c / static_cast<float>(v->q_per_kv) : c;
}

/* Of a key alone: one query head's sum, or those of all of them. */
AQ_DEVICE_FN float sum_of(const struct aq_kv_value *v, uint32_t head, uint32_t g, bool all,
                          uint32_t key)
{
    const float *row = v->sums + (static_cast<size_t>(head) * v->q_per_kv + g) * v->stride + key;
    float c = row[0];
    for (uint32_t i = 1; all && i < v->q_per_kv; i++)
        c = combine(v, c, row[static_cast<size_t>(i) * v->stride]);
    return all ? finish(v, c) : c;
}

AQ_DEVICE_FN float pooled(const struct aq_kv_value *v, uint32_t head, uint32_t g, bool all,
                          uint32_t key)
{
    uint32_t reach = v->pool ? v->pool_width / 2 : 0;
    uint32_t first = key > reach ? key - reach : 0, end = key + reach + 1;
    float c = sum_of(v, head, g, all, first);
    for (uint32_t i = first + 1; i < end && i < v->len; i++) {
        float x = sum_of(v, head, g, all, i);
        c = v->pool == AQ_KV_POOL_MAX ? larger(c, x) : c + x;
    }
    return v->pool == AQ_KV_POOL_AVG ? c / static_cast<float>(v->pool_width) : c;
}

AQ_DEVICE_FN float head_value(const struct aq_kv_value *v, uint32_t head, uint32_t key)
{
    if (!v->pool || !v->pool_first)
        return pooled(v, head, 0, true, key);
    float c = pooled(v, head, 0, false, key);
    for (uint32_t g = 1; g < v->q_per_kv; g++)
        c = combine(v, c, pooled(v, head, g, false, key));
    return finish(v, c);
}

/* A grid of (256 keys, KV heads), or of keys alone where heads go together. */
__global__ void __launch_bounds__(VALUE_THREADS) value_keys(struct aq_kv_value v)
{
    uint32_t key = blockIdx.x * VALUE_THREADS + threadIdx.x, head = blockIdx.y;
    if (key >= v.len)
        return;
    float c = head_value(&v, head, key);
    for (uint32_t h = 1; v.together && h < v.kv_heads; h++)
        c += head_value(&v, h, key);
    for (uint32_t h = head; h < (v.together ? v.kv_heads : head + 1); h++)
        v.value[static_cast<size_t>(h) * v.stride + key] = c;
}

int aq_cuda_kv_value(const struct aq_cuda_exec *ex, const struct aq_kv_value *v)
{
    assert(v->sums != v->value && v->kv_heads <= AQ_CU_GRID_YZ_MAX);
    assert(!v->pool || (v->pool_width % 2 && v->pool_width <= AQ_KV_POOL_WIDTH_MAX));
    if (!v->len)
        return 0;
    dim3 grid(aq_cu_div_up(v->len, VALUE_THREADS), v->together ? 1 : v->kv_heads);
    return AQ_LAUNCH(ex, value_keys, grid, VALUE_THREADS, 0, *v);
}

/* ---- from keys alone ---- */

AQ_DEVICE_FN const float *key_of(const struct aq_kv_key_value *v, uint32_t head, uint32_t j)
{
    return v->k + j * v->k_stride + static_cast<size_t>(head) * v->head_dim;
}

/* x . y, by the eight threads of a key, in each of them. */
AQ_DEVICE_FN float dot(const float *x, const float *y, uint32_t dim)
{
    float part = 0;
    for (uint32_t d = threadIdx.x % PARTS; d < dim; d += PARTS)
        part += x[d] * y[d];
    for (uint32_t half = PARTS / 2; half; half /= 2)
        part += __shfl_xor_sync(AQ_CU_ALL, part, half);
    return part;
}

__global__ void __launch_bounds__(KEY_THREADS) key_values(struct aq_kv_key_value v)
{
    AQ_SHARED(float, total); /* [head_dim] */
    uint32_t head = blockIdx.x, keys = KEY_THREADS / PARTS, own = threadIdx.x / PARTS;
    float *value = v.value + static_cast<size_t>(head) * v.stride;
    /* All threads of a warp take part in the products, past the last key with that one. */
    for (uint32_t first = 0; first < v.len; first += keys) {
        uint32_t j = aq_cu_min(first + own, v.len - 1);
        const float *k = key_of(&v, head, j);
        float n = sqrtf(dot(k, k, v.head_dim));
        n = n < 1e-12f ? 1e-12f : n;
        if (threadIdx.x % PARTS == 0 && first + own < v.len)
            value[j] = v.diff ? n : -n;
    }
    if (!v.diff)
        return;
    __syncthreads();
    for (uint32_t d = threadIdx.x; d < v.head_dim; d += KEY_THREADS) {
        float sum = 0;
        for (uint32_t first = 0; first < v.len; first += WINDOW) {
            float window = 0;
            for (uint32_t j = first; j < v.len && j < first + WINDOW; j++)
                window += key_of(&v, head, j)[d] / value[j];
            sum += window;
        }
        total[d] = sum;
    }
    __syncthreads();
    for (uint32_t first = 0; first < v.len; first += keys) {
        uint32_t j = aq_cu_min(first + own, v.len - 1);
        float like = dot(key_of(&v, head, j), total, v.head_dim);
        if (threadIdx.x % PARTS == 0 && first + own < v.len)
            value[j] = -(like / value[j]);
    }
}

int aq_cuda_kv_key_value(const struct aq_cuda_exec *ex, const struct aq_kv_key_value *v)
{
    assert(v->len <= v->stride && v->head_dim <= DIM_MAX);
    if (!v->len)
        return 0;
    return AQ_LAUNCH(ex, key_values, v->kv_heads, KEY_THREADS, v->head_dim * sizeof(float), *v);
}
