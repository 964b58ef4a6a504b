/* SPDX-License-Identifier: Apache-2.0
 * Random rows against random weights, as one product and as cuts of it: see cuda_prove.h. */
#include "engine/compute/cuda_prove.h"

#include "base/half.h"
#include "policy/registers.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    ROWS_MAX = 512,
    COLUMNS_MAX = 1088,
    FIRST_ROW_STEP = 8, /* rows that begin so far apart are aligned */
    /* An activation is tried on so many of a product, for all powers of two of rows up to this. */
    SOME_ROWS = 8,
    SOME_COLUMNS = 32,
    ROWS_UP_TO = 2048,
};

#define CURE "leave --deterministic out, or compute with --device cpu"

/* Of the product of all rows and columns, this part. */
struct cut {
    uint32_t row, rows, column, columns;
};

/* Operands as they lie: rows, then weights. */
struct trial {
    const struct aq_cuda_proof *p;
    const struct aq_gpu_ops *ops;
    struct aq_cuda_exec ex;
    void *event;
    uint32_t k, rows, columns;
    uint8_t *x, *w;
    float *whole, *part;         /* sums on the device: of all, and of a cut */
    float *whole_row, *part_row; /* of one row, here */
};

/* Of rows of sums, as the engine's. */
static size_t stride_of(uint32_t columns)
{
    return aq_align_up(columns, 4);
}

static struct aq_gpu *gpu_of(const struct trial *t)
{
    return t->p->cuda->gpu;
}

static int say_failure(const struct trial *t, int code, struct aq_err *reterr)
{
    return aq_error(reterr, -ENODEV,
                    "--deterministic: products of rows of %u numbers in %s on the GPU '%s' cannot "
                    "be tried: %s; " CURE,
                    t->k, aq_dtype_name(t->p->compute), t->p->cuda->info.name,
                    t->p->cuda->module->kernels->error_text(code));
}

static int say_difference(const struct trial *t, const struct cut *c, uint32_t row, uint32_t column,
                          struct aq_err *reterr)
{
    return aq_error(reterr, -ENODEV,
                    "--deterministic: the GPU '%s' does not keep it: of a product of rows of %u "
                    "numbers in %s, row %u, column %u has other bits when %u rows and %u columns "
                    "are computed than when %u and %u are; " CURE,
                    t->p->cuda->info.name, t->k, aq_dtype_name(t->p->compute), row, column, c->rows,
                    c->columns, t->rows, t->columns);
}

/* ---- operands ---- */

/* Between -1 and 1 (Marsaglia, "Xorshift RNGs", 2003). */
static float draw(uint32_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 17;
    *state ^= *state << 5;
    return (float)(int32_t)*state * 0x1p-31f;
}

/* Row by row: of the host's memory no more is taken. */
static int fill(const struct trial *t, uint8_t *to, uint32_t rows, uint32_t seed)
{
    enum aq_dtype type = t->p->compute;
    size_t bytes = t->k * aq_dtype_bytes(type);
    void *row = malloc(bytes);
    int rc = row ? 0 : -ENOMEM;
    for (uint32_t r = 0; r < rows && !rc; r++) {
        for (uint32_t i = 0; i < t->k; i++) {
            float v = draw(&seed);
            if (type == AQ_F32)
                ((float *)row)[i] = v;
            else
                ((uint16_t *)row)[i] = type == AQ_F16 ? aq_f16_from_f32(v) : aq_bf16_from_f32(v);
        }
        rc = t->ops->copy_now(gpu_of(t), to + r * bytes, row, bytes, AQ_GPU_H2D);
    }
    free(row);
    return rc;
}

/* As many rows and columns as there is room for; the columns are at least two panels' where the
 * model has so many. */
static void lay_out(struct trial *t)
{
    const struct aq_cuda_proof *p = t->p;
    size_t each = t->k * aq_dtype_bytes(p->compute);
    uint64_t room = p->operands_bytes / each;
    uint64_t rows = aq_min_u64(ROWS_MAX, room / 3);
    uint64_t columns = aq_min_u64(COLUMNS_MAX, room - rows);
    size_t stride = stride_of((uint32_t)columns);
    rows = aq_min_u64(rows, p->sums_bytes / (2 * sizeof(float) * stride));
    t->rows = (uint32_t)(rows / FIRST_ROW_STEP * FIRST_ROW_STEP);
    t->columns = (uint32_t)columns;
    t->x = p->operands;
    t->w = t->x + t->rows * each;
    t->whole = p->sums;
    t->part = t->whole + t->rows * stride;
}

/* ---- products ---- */

static int multiply(const struct trial *t, const struct cut *c, float *sums)
{
    size_t each = t->k * aq_dtype_bytes(t->p->compute);
    struct aq_cuda_dense d = {
        .x = t->x + c->row * each,
        .w = t->w + c->column * each,
        .x_stride = t->k,
        .w_stride = t->k,
        .y = sums,
        .y_stride = stride_of(c->columns),
        .dtype = t->p->compute,
        .y_dtype = AQ_F32,
        .m = c->rows,
        .n = c->columns,
        .k = t->k,
    };
    int rc = t->p->cuda->module->kernels->dense(&t->ex, &d);
    rc = rc ? rc : t->ops->record(gpu_of(t), t->event, t->ex.stream);
    return rc ? rc : t->ops->wait(gpu_of(t), t->event);
}

/* 0: all bits of the cut are those of the whole. */
static int compare(const struct trial *t, const struct cut *c, struct aq_err *reterr)
{
    size_t bytes = c->columns * sizeof(float);
    int code = multiply(t, c, t->part);
    for (uint32_t r = 0; r < c->rows && !code; r++) {
        const float *whole = t->whole + (c->row + r) * stride_of(t->columns) + c->column;
        const float *part = t->part + r * stride_of(c->columns);
        code = t->ops->copy_now(gpu_of(t), t->whole_row, whole, bytes, AQ_GPU_D2H);
        code = code ? code : t->ops->copy_now(gpu_of(t), t->part_row, part, bytes, AQ_GPU_D2H);
        for (uint32_t i = 0; i < c->columns && !code; i++) {
            if (memcmp(&t->whole_row[i], &t->part_row[i], sizeof(float)) != 0)
                return say_difference(t, c, c->row + r, c->column + i, reterr);
        }
    }
    return code ? say_failure(t, code, reterr) : 0;
}

/* Rows alone, in few and in many; a panel's columns, one more, and those behind a panel. */
static int compare_all(struct trial *t, struct aq_err *reterr)
{
    static const uint32_t some[] = {1, 2, 17, 64, 257};
    const uint32_t panel = AQ_PANEL_ROWS;
    uint32_t last = t->rows - FIRST_ROW_STEP, behind = t->columns > panel ? panel : 0;
    struct cut all = {0, t->rows, 0, t->columns};
    const struct cut cuts[] = {
        {last, 1, 0, t->columns},
        {last, 1, behind, t->columns - behind},
        {0, t->rows, behind, t->columns - behind},
        {0, t->rows, 0, aq_min_u64(panel, t->columns)},
        {0, t->rows, 0, aq_min_u64(panel + 1, t->columns)},
        {last, 3, behind, aq_min_u64(panel, t->columns - behind)},
    };
    int code = multiply(t, &all, t->whole);
    int rc = code ? say_failure(t, code, reterr) : 0;
    for (size_t i = 0; i < AQ_ARRAY_LEN(some) && rc == 0; i++) {
        struct cut c = {0, (uint32_t)aq_min_u64(some[i], t->rows), 0, t->columns};
        rc = compare(t, &c, reterr);
    }
    for (size_t i = 0; i < AQ_ARRAY_LEN(cuts) && rc == 0; i++)
        rc = compare(t, &cuts[i], reterr);
    return rc;
}

/* ---- a model ---- */

static int try_length(struct trial *t, struct aq_err *reterr)
{
    lay_out(t);
    if (t->rows < FIRST_ROW_STEP)
        return aq_error(reterr, -ENODEV,
                        "--deterministic: there is no room to try products of rows of %u numbers "
                        "on the GPU; " CURE,
                        t->k);
    int code = fill(t, t->x, t->rows, 1);
    code = code ? code : fill(t, t->w, t->columns, 2);
    return code ? say_failure(t, code, reterr) : compare_all(t, reterr);
}

/* Has an earlier matrix rows of this length? */
static bool is_known(const struct aq_model_steps *m, uint32_t step, uint32_t matrix)
{
    uint32_t k = m->step[step].matrix[matrix].k;
    for (uint32_t i = 0; i <= step; i++) {
        const struct aq_step_desc *d = &m->step[i];
        for (uint32_t j = 0; j < (i == step ? matrix : d->matrix_count); j++) {
            if (!d->matrix[j].table && d->matrix[j].k == k)
                return true;
        }
    }
    return false;
}

static int try_all(struct trial *t, struct aq_err *reterr)
{
    const struct aq_model_steps *m = t->p->steps;
    int rc = 0;
    for (uint32_t i = 0; i < m->step_count; i++) {
        const struct aq_step_desc *d = &m->step[i];
        for (uint32_t j = 0; j < d->matrix_count && rc == 0; j++) {
            if (d->matrix[j].table || is_known(m, i, j))
                continue;
            t->k = d->matrix[j].k;
            rc = try_length(t, reterr);
        }
    }
    return rc;
}

/* ---- activations ---- */

static bool is_nan(const void *data, enum aq_dtype t, uint32_t i)
{
    if (t == AQ_F32)
        return isnan(((const float *)data)[i]);
    uint16_t bits = ((const uint16_t *)data)[i];
    return isnan(t == AQ_F16 ? aq_f32_from_f16(bits) : aq_f32_from_bf16(bits));
}

/* Do sums that are NaN come out of the activation of d as such?  If so, *ret_kind is the kernel. */
static bool keeps_nan(const struct trial *t, const struct aq_cuda_dense *d, uint64_t *ret_kind)
{
    uint32_t rows = (uint32_t)aq_min_u64(d->m, SOME_ROWS);
    const uint32_t columns = SOME_COLUMNS;
    float home[SOME_ROWS * SOME_COLUMNS];
    int code = t->p->cuda->module->kernels->dense_try(&t->ex, d, rows, columns, ret_kind);
    code = code ? code : t->ops->record(gpu_of(t), t->event, t->ex.stream);
    code = code ? code : t->ops->wait(gpu_of(t), t->event);
    code = code ? code : t->ops->copy_now(gpu_of(t), home, d->y, sizeof(home), AQ_GPU_D2H);
    for (uint32_t i = 0; i < rows * columns && !code; i++) {
        if (!is_nan(home, d->y_dtype, i))
            return false;
    }
    return !code;
}

/* In all numbers of rows, of all columns and of parts of them. */
static void try_activation(const struct trial *t, const struct aq_prim *prim, uint32_t columns)
{
    const struct aq_cuda_proof *p = t->p;
    enum aq_dtype y = aq_register_dtype(prim->dst, p->compute);
    uint8_t *bias = (uint8_t *)p->sums + SOME_ROWS * SOME_COLUMNS * sizeof(float);
    for (uint32_t m = 1; m <= ROWS_UP_TO; m *= 2) {
        for (uint32_t n = (uint32_t)aq_align_up(columns, AQ_PANEL_ROWS);;
             n = (uint32_t)aq_align_up(n / 2, AQ_PANEL_ROWS)) {
            struct aq_cuda_dense d = {
                .x = t->x,
                .w = t->w,
                .bias = prim->bias >= 0 ? (const float *)(const void *)bias : NULL,
                .bias_y = prim->bias >= 0 && y != AQ_F32 ? bias : NULL,
                .x_stride = t->k,
                .w_stride = t->k,
                .y = p->sums,
                .y_stride = n,
                .dtype = p->compute,
                .y_dtype = y,
                .activation = prim->activation,
                .m = m,
                .n = n,
                .k = t->k,
            };
            uint64_t kind;
            if (keeps_nan(t, &d, &kind))
                p->cuda->module->kernels->dense_trust(t->ex.blas, kind);
            if (n <= AQ_PANEL_ROWS)
                break;
        }
    }
}

/* Rows of NaNs, some weights, and no bias. */
static int fill_activation(struct trial *t)
{
    const struct aq_cuda_proof *p = t->p;
    size_t each = t->k * aq_dtype_bytes(p->compute), bytes = SOME_ROWS * each;
    size_t sums = 2 * SOME_ROWS * SOME_COLUMNS * sizeof(float);
    t->x = p->operands;
    t->w = t->x + bytes;
    if (p->operands_bytes < (SOME_ROWS + SOME_COLUMNS) * each || p->sums_bytes < sums)
        return -ENOSPC;
    void *nans = malloc(aq_max_u64(bytes, sums));
    if (!nans)
        return -ENOMEM;
    memset(nans, 0xff, bytes); /* a NaN in each of the types */
    int code = t->ops->copy_now(gpu_of(t), t->x, nans, bytes, AQ_GPU_H2D);
    memset(nans, 0, sums);
    code = code ? code : t->ops->copy_now(gpu_of(t), p->sums, nans, sums, AQ_GPU_H2D);
    free(nans);
    return code ? code : fill(t, t->w, SOME_COLUMNS, 2);
}

/* Layers are alike: a product like the last one that was tried is not tried again. */
static void try_activations(struct trial *t)
{
    const struct aq_model_steps *m = t->p->steps;
    const struct aq_prim *last = NULL;
    uint32_t last_columns = 0, last_k = 0;
    for (uint32_t i = 0; i < AQ_STEP_HALVES * m->step_count; i++) {
        const struct aq_step_desc *d = &m->step[i / AQ_STEP_HALVES];
        const struct aq_prim_list *list = &d->half[i % AQ_STEP_HALVES];
        for (uint32_t j = 0; j < list->count; j++) {
            const struct aq_prim *prim = &list->prim[j];
            if (prim->kind != AQ_PRIM_PRODUCT || !prim->activation)
                continue;
            uint32_t columns = 0;
            for (uint32_t k = 0; k < prim->matrix_count; k++)
                columns += d->matrix[prim->matrix[k]].rows;
            t->k = d->matrix[prim->matrix[0]].k;
            bool same = last && last->activation == prim->activation && last->dst == prim->dst &&
                        (last->bias >= 0) == (prim->bias >= 0) && last_columns == columns &&
                        last_k == t->k;
            if (!same && fill_activation(t) == 0)
                try_activation(t, prim, columns);
            last = prim;
            last_columns = columns;
            last_k = t->k;
        }
    }
}

/* ---- both ---- */

static int open_trial(struct trial *t, struct aq_err *reterr)
{
    int code = t->ops->stream_open(gpu_of(t), &t->ex.stream, false);
    if (code)
        return say_failure(t, code, reterr);
    code = t->ops->event_open(gpu_of(t), &t->event);
    if (code)
        t->ops->stream_close(gpu_of(t), t->ex.stream);
    return code ? say_failure(t, code, reterr) : 0;
}

static void close_trial(struct trial *t)
{
    t->ops->event_close(gpu_of(t), t->event);
    t->ops->stream_close(gpu_of(t), t->ex.stream);
}

int aq_cuda_prove(const struct aq_cuda_proof *p, struct aq_err *reterr)
{
    float rows[2][COLUMNS_MAX];
    struct trial t = {.p = p,
                      .ops = p->cuda->module->gpu,
                      .ex = *p->ex,
                      .whole_row = rows[0],
                      .part_row = rows[1]};
    int rc = open_trial(&t, reterr);
    if (rc < 0)
        return rc;
    rc = try_all(&t, reterr);
    close_trial(&t);
    return rc;
}

void aq_cuda_prove_activations(const struct aq_cuda_proof *p)
{
    struct trial t = {.p = p, .ops = p->cuda->module->gpu, .ex = *p->ex};
    if (open_trial(&t, NULL) < 0)
        return;
    try_activations(&t);
    close_trial(&t);
}
