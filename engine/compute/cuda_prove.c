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
    PARTS = 4, /* all columns, a half of them, a quarter, an eighth */
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

static float value_of(const void *data, enum aq_dtype t, uint32_t i)
{
    if (t == AQ_F32)
        return ((const float *)data)[i];
    uint16_t bits = ((const uint16_t *)data)[i];
    return t == AQ_F16 ? aq_f32_from_f16(bits) : aq_f32_from_bf16(bits);
}

/* Of column c before its activation: -4 to 3.75. */
static float sum_of(uint32_t c)
{
    return (float)c / 4 - SOME_COLUMNS / 8;
}

/* Is this near the activation of x, rounded to t? */
static bool is_near(enum aq_activation a, float x, float y, enum aq_dtype t)
{
    const float two_root_2_pi = 1.59576912f; /* 2 sqrt(2 / pi) */
    float relu = x > 0 ? x : 0, gelu = x / (1 + expf(-two_root_2_pi * (x + 0.044715f * x * x * x)));
    float want = a == AQ_ACT_RELU ? relu : gelu;
    float rounding = t == AQ_F32 ? 0x1p-18f : t == AQ_F16 ? 0x1p-10f : 0x1p-7f;
    return fabsf(y - want) <= 1e-5f + rounding * fabsf(want);
}

/* One try: rows of NaNs, which have to come out, or of known sums.  *ret_right: it is so. */
static int try_rows(const struct trial *t, const struct aq_cuda_dense *d, bool nans,
                    struct aq_cuda_trial *ret, bool *ret_right)
{
    float home[SOME_ROWS * SOME_COLUMNS] = {0};
    struct aq_cuda_dense of = *d;
    uint32_t rows = (uint32_t)aq_min_u64(d->m, SOME_ROWS);
    of.x = nans ? t->x : t->x + SOME_ROWS * t->k * aq_dtype_bytes(d->dtype);
    *ret_right = false;
    int code = t->ops->copy_now(gpu_of(t), d->y, home, sizeof(home), AQ_GPU_H2D);
    if (code)
        return code;
    if (t->p->cuda->module->kernels->dense_try(&t->ex, &of, rows, SOME_COLUMNS, ret))
        return 0; /* there is no such kernel */
    code = t->ops->record(gpu_of(t), t->event, t->ex.stream);
    code = code ? code : t->ops->wait(gpu_of(t), t->event);
    code = code ? code : t->ops->copy_now(gpu_of(t), home, d->y, sizeof(home), AQ_GPU_D2H);
    *ret_right = !code;
    for (uint32_t i = 0; i < rows * SOME_COLUMNS; i++) {
        float y = value_of(home, d->y_dtype, i);
        *ret_right &=
            nans ? isnan(y) : is_near(d->activation, sum_of(i % SOME_COLUMNS), y, d->y_dtype);
    }
    return code;
}

/* The kernel of a product of m rows and n columns. */
static int try_kernel(const struct trial *t, const struct aq_prim *prim, uint32_t m, uint32_t n)
{
    const struct aq_cuda_proof *p = t->p;
    enum aq_dtype y = aq_register_dtype(prim->dst, p->compute);
    uint8_t *bias = (uint8_t *)p->sums + SOME_ROWS * SOME_COLUMNS * sizeof(float);
    struct aq_cuda_dense d = {
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
        .combine = prim->combine,
        .m = m,
        .n = n,
        .k = t->k,
    };
    struct aq_cuda_trial trial = {0};
    bool right;
    int code = try_rows(t, &d, true, &trial, &right);
    if (code || !right || trial.trusted)
        return code;
    code = try_rows(t, &d, false, &trial, &right);
    if (!code && right)
        p->cuda->module->kernels->dense_trust(t->ex.blas, trial.kind);
    return code;
}

/* In all numbers of rows, of all columns first and then of parts of them. */
static int try_activation(const struct trial *t, const struct aq_prim *prim, uint32_t columns)
{
    uint32_t n = (uint32_t)aq_align_up(columns, AQ_PANEL_ROWS);
    for (uint32_t part = 0; part < PARTS; part++) {
        for (uint32_t m = 1; m <= ROWS_UP_TO; m *= 2) {
            int code = try_kernel(t, prim, m, n);
            if (code)
                return code;
        }
        if (n <= AQ_PANEL_ROWS)
            break;
        n = (uint32_t)aq_align_up(n / 2, AQ_PANEL_ROWS);
    }
    return 0;
}

/* A number in each place, or only in the first of each row. */
static int put_rows(const struct trial *t, uint8_t *to, const float *first, uint32_t rows,
                    float other)
{
    enum aq_dtype type = t->p->compute;
    size_t each = aq_dtype_bytes(type), bytes = rows * t->k * each;
    uint8_t *all = malloc(bytes);
    if (!all)
        return -ENOMEM;
    for (uint32_t i = 0; i < rows * t->k; i++) {
        float v = i % t->k ? other : first[i / t->k];
        uint16_t half = type == AQ_F16 ? aq_f16_from_f32(v) : aq_bf16_from_f32(v);
        memcpy(all + i * each, type == AQ_F32 ? (const void *)&v : &half, each);
    }
    int code = t->ops->copy_now(gpu_of(t), to, all, bytes, AQ_GPU_H2D);
    free(all);
    return code;
}

/* Rows of NaNs, rows that begin with 1, weights that begin with a sum, and no bias.  -ENOSPC: there
 * is no room. */
static int fill_activation(struct trial *t)
{
    const struct aq_cuda_proof *p = t->p;
    size_t each = t->k * aq_dtype_bytes(p->compute);
    float nans[SOME_ROWS], ones[SOME_ROWS], sums[SOME_COLUMNS];
    float none[2 * SOME_ROWS * SOME_COLUMNS] = {0};
    t->x = p->operands;
    t->w = t->x + 2 * SOME_ROWS * each;
    if (p->operands_bytes < (2 * SOME_ROWS + SOME_COLUMNS) * each || p->sums_bytes < sizeof(none))
        return -ENOSPC;
    for (uint32_t i = 0; i < SOME_ROWS; i++) {
        nans[i] = NAN;
        ones[i] = 1;
    }
    for (uint32_t c = 0; c < SOME_COLUMNS; c++)
        sums[c] = sum_of(c);
    int code = put_rows(t, t->x, nans, SOME_ROWS, NAN);
    code = code ? code : put_rows(t, t->x + SOME_ROWS * each, ones, SOME_ROWS, 0);
    code = code ? code : put_rows(t, t->w, sums, SOME_COLUMNS, 0);
    return code ? code : t->ops->copy_now(gpu_of(t), p->sums, none, sizeof(none), AQ_GPU_H2D);
}

/* Layers are alike: a product like the last one that was tried is not tried again. */
static int try_activations(struct trial *t)
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
            last = prim;
            last_columns = columns;
            last_k = t->k;
            int code = same ? 0 : fill_activation(t);
            if (code == -ENOSPC)
                continue;
            code = same || code ? code : try_activation(t, prim, columns);
            if (code)
                return code;
        }
    }
    return 0;
}

/* ---- both ---- */

static int open_trial(struct trial *t)
{
    int code = t->ops->stream_open(gpu_of(t), &t->ex.stream, false);
    if (code)
        return code;
    code = t->ops->event_open(gpu_of(t), &t->event);
    if (code)
        t->ops->stream_close(gpu_of(t), t->ex.stream);
    return code;
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
    int code = open_trial(&t);
    if (code)
        return say_failure(&t, code, reterr);
    int rc = try_all(&t, reterr);
    close_trial(&t);
    return rc;
}

int aq_cuda_prove_activations(const struct aq_cuda_proof *p, struct aq_err *reterr)
{
    struct trial t = {.p = p, .ops = p->cuda->module->gpu, .ex = *p->ex};
    int code = open_trial(&t);
    if (!code) {
        code = try_activations(&t);
        close_trial(&t);
    }
    return code ? aq_error(reterr, -ENODEV, "the GPU '%s' cannot multiply: %s", p->cuda->info.name,
                           p->cuda->module->kernels->error_text(code))
                : 0;
}
