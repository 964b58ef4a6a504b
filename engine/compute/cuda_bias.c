/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/compute/cuda_bias.h"

#include "base/half.h"
#include "policy/gpu_sizes.h"

#include <stdlib.h>
#include <string.h>

/* From f32 to the 16 bits of t, in place; false: some number is another one there. */
static bool halve(void *data, uint32_t count, enum aq_dtype t)
{
    for (uint32_t i = 0; i < count; i++) {
        float v = ((const float *)data)[i];
        uint16_t half = t == AQ_F16 ? aq_f16_from_f32(v) : aq_bf16_from_f32(v);
        float back = t == AQ_F16 ? aq_f32_from_f16(half) : aq_f32_from_bf16(half);
        if (memcmp(&v, &back, sizeof(v)) != 0)
            return false;
        ((uint16_t *)data)[i] = half;
    }
    return true;
}

/* *ret_exact: the copy is there. */
static int copy_bias(const struct aq_cuda_biases_opts *o, const struct aq_cuda_bias *b, void *to,
                     bool *ret_exact, struct aq_err *reterr)
{
    size_t bytes = b->count * sizeof(float);
    void *here = malloc(bytes);
    if (!here)
        return aq_error_memory(reterr, "GPU: biases");
    int code = o->gpu_ops->copy_now(o->gpu, here, b->from, bytes, AQ_GPU_D2H);
    *ret_exact = !code && halve(here, b->count, o->compute);
    if (*ret_exact)
        code = o->gpu_ops->copy_now(o->gpu, to, here, bytes / 2, AQ_GPU_H2D);
    free(here);
    return code ? aq_error(reterr, -EIO, "GPU: biases cannot be copied: %s",
                           o->gpu_ops->error_text(code))
                : 0;
}

static int compare(const void *a, const void *b)
{
    const struct aq_cuda_bias *x = a, *y = b;
    return (x->from > y->from) - (x->from < y->from);
}

int aq_cuda_biases_open(struct aq_cuda_biases *ret, const struct aq_cuda_biases_opts *opts,
                        float *const *vector, struct aq_err *reterr)
{
    const struct aq_model_steps *steps = opts->steps;
    uint8_t *to = opts->room;
    *ret = (struct aq_cuda_biases){0};
    if (!steps->vector_count)
        return 0;
    ret->bias = calloc(steps->vector_count, sizeof(*ret->bias));
    if (!ret->bias)
        return aq_error_memory(reterr, "GPU: biases");
    for (uint32_t s = 0; s < steps->step_count; s++) {
        const struct aq_step_desc *d = &steps->step[s];
        for (uint32_t i = 0; i < d->vector_count; i++) {
            bool exact;
            if (!aq_gpu_sizes_is_copied(d, i, opts->compute))
                continue;
            struct aq_cuda_bias b = {vector[aq_vector_index(steps, s, i)], to, d->vector[i].count};
            int rc = copy_bias(opts, &b, to, &exact, reterr);
            if (rc < 0)
                return rc;
            to += aq_gpu_sizes_copy(d->vector[i].count);
            if (exact)
                ret->bias[ret->count++] = b;
        }
    }
    qsort(ret->bias, ret->count, sizeof(*ret->bias), compare);
    return 0;
}

void aq_cuda_biases_close(struct aq_cuda_biases *b)
{
    free(b->bias);
    *b = (struct aq_cuda_biases){0};
}

const void *aq_cuda_biases_find(const struct aq_cuda_biases *b, const float *at)
{
    uint32_t low = 0, high = b->count;
    while (low < high) {
        uint32_t mid = (low + high) / 2;
        const struct aq_cuda_bias *one = &b->bias[mid];
        if (at < one->from)
            high = mid;
        else if (at >= one->from + one->count)
            low = mid + 1;
        else
            return (const uint16_t *)one->copy + (at - one->from);
    }
    return NULL;
}
