/* SPDX-License-Identifier: Apache-2.0
 * Which kernels a product on a GPU is made of, that its numbers do not depend on that, and what is
 * said of a library for products that misbehaves.  The GPU is emulated; AQ_CUDA_MODULE is the
 * module. */
#include "base/half.h"
#include "base/prng.h"
#include "engine/compute/cuda_lane.h"
#include "tests/cuda_emu/control.h"
#include "tests/test.h"

#include <dlfcn.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { K = 200, COLUMNS = 230, SECOND = 70, ROWS_MAX = 80 };

/* The module's table, with two launchers that count, and one that does nothing else. */
static struct {
    struct aq_cuda cuda;
    struct aq_cuda_module module;
    struct aq_cuda_kernels kernels;
    const struct aq_cuda_kernels *real;
    struct aq_mem *mem;
    struct aq_device *device;
    void *stream, *event;
    uint32_t by_codes, unpacks;
    bool fails;                 /* by_codes does */
    struct aq_attn_reach reach; /* of the last decode attention */
    __typeof__(aq_emu_blas) *blas;
    __typeof__(aq_emu_counted) *counted;
} g;

/* A model with products of rows of K numbers. */
static struct aq_matrix_desc matrix = {.rows = COLUMNS, .k = K};
static struct aq_step_desc step = {.matrix = &matrix, .matrix_count = 1};
static const struct aq_model_steps steps = {.step = &step, .step_count = 1};

static int count_codes(const struct aq_cuda_exec *ex, const struct aq_cuda_codes_product *p)
{
    g.by_codes++;
    return g.fails ? -EINVAL : g.real->product_codes(ex, p);
}

static int count_unpack(const struct aq_cuda_exec *ex, const struct aq_cuda_unpack *u)
{
    g.unpacks++;
    return g.real->unpack(ex, u);
}

static int note_reach(const struct aq_cuda_exec *ex, const struct aq_attn *a)
{
    (void)ex;
    g.reach = a->reach;
    return 0;
}

static int set_up(void **state)
{
    uint64_t limits[AQ_TIER_COUNT] = {UINT64_MAX, UINT64_MAX, UINT64_MAX};
    (void)state;
    if (aq_cuda_open(&g.cuda, getenv("AQ_CUDA_MODULE"), 0, NULL) < 0)
        return -1;
    const struct aq_gpu_ops *gpu = g.cuda.module->gpu;
    void *control = dlsym(g.cuda.library, "aq_emu_blas");
    void *counted = dlsym(g.cuda.library, "aq_emu_counted");
    if (!control || !counted)
        return -1;
    memcpy(&g.blas, &control, sizeof(g.blas));
    memcpy(&g.counted, &counted, sizeof(g.counted));
    g.real = g.cuda.module->kernels;
    g.kernels = *g.real;
    g.kernels.product_codes = count_codes;
    g.kernels.unpack = count_unpack;
    g.kernels.attn_decode = note_reach;
    g.module = *g.cuda.module;
    g.module.kernels = &g.kernels;
    g.cuda.module = &g.module;
    if (aq_mem_open(&g.mem, limits, NULL) < 0)
        return -1;
    struct aq_device_opts opts = {
        .kind = AQ_DEVICE_GPU, .mem = g.mem, .gpu_ops = gpu, .gpu = g.cuda.gpu};
    return aq_device_open(&g.device, &opts, NULL) < 0 ||
                   gpu->stream_open(g.cuda.gpu, &g.stream, false) ||
                   gpu->event_open(g.cuda.gpu, &g.event)
               ? -1
               : 0;
}

static int tear_down(void **state)
{
    (void)state;
    g.module.gpu->event_close(g.cuda.gpu, g.event);
    g.module.gpu->stream_close(g.cuda.gpu, g.stream);
    aq_device_close(g.device);
    aq_mem_close(g.mem);
    aq_cuda_close(&g.cuda);
    return 0;
}

/* Device memory with these bytes. */
static void *put(const void *from, size_t bytes)
{
    void *p;
    assert_int_equal(aq_device_alloc(&p, g.device, AQ_MEMORY_DEVICE, "test", bytes, NULL), 0);
    assert_int_equal(aq_device_write(g.device, p, from, bytes, NULL), 0);
    return p;
}

static struct aq_compute_cuda_opts lane_opts(enum aq_dtype compute, bool deterministic)
{
    return (struct aq_compute_cuda_opts){.cuda = &g.cuda,
                                         .device = g.device,
                                         .sizes = {.desk_bytes = 4096,
                                                   .sums_bytes = AQ_MIB,
                                                   .unpacked_bytes = AQ_MIB,
                                                   .workspace_bytes = AQ_MIB,
                                                   .stats_bytes = 4096,
                                                   .logits_bytes = 4096},
                                         .deterministic = deterministic,
                                         .steps = &steps,
                                         .compute = compute};
}

/* In two matrices side by side, with all that may follow a product. */
struct example {
    enum aq_dtype compute, weights;
    uint32_t m;
    bool deterministic;
    enum aq_combine combine;
    uint32_t launches_max; /* that are made together, of an odd number of rows */
};

static void multiply(float *ret, const struct example *e, const uint16_t *x, const void *panels,
                     const float *bias)
{
    struct aq_compute_cuda *c;
    struct aq_compute_cuda_opts opts = lane_opts(e->compute, e->deterministic);
    opts.launches_max = e->launches_max;
    const char *what, *why;
    size_t panel = aq_panel_bytes(e->weights, K), x_bytes = (size_t)ROWS_MAX * K * sizeof(*x);
    size_t panels_bytes = 5 * panel, y_bytes = sizeof(float) * ROWS_MAX * COLUMNS;
    assert_int_equal(aq_compute_cuda_open(&c, &opts, NULL), 0);
    void *x_there = put(x, x_bytes), *w_there = put(panels, panels_bytes);
    float *bias_there = put(bias, sizeof(float) * COLUMNS), *y = put(ret, y_bytes);
    struct aq_segment segments[] = {
        {.panels = w_there, .column = 0, .rows = SECOND},
        {.panels = (char *)w_there + 2 * panel, .column = SECOND, .rows = COLUMNS - SECOND},
    };
    struct aq_product p = {.x = x_there,
                           .x_dtype = e->compute,
                           .m = e->m,
                           .k = K,
                           .x_stride = K,
                           .segments = segments,
                           .segment_count = 2,
                           .w_dtype = e->weights,
                           .w_layout = AQ_LAYOUT_GROUP64,
                           .bias = bias_there,
                           .activation = AQ_ACT_GELU,
                           .combine = e->combine,
                           .y = y,
                           .y_dtype = AQ_F32,
                           .y_stride = COLUMNS};
    g.by_codes = g.unpacks = 0;
    uint32_t op;
    aq_compute_cuda_begin(c, g.stream, AQ_GPU_BUNDLE_DESKS, e->m % 2);
    aq_compute_product(aq_compute_cuda_base(c), &p);
    aq_compute_cuda_next(c, 3);
    assert_int_equal(aq_compute_cuda_end(c, &op, &what, &why), g.fails ? -EIO : 0);
    if (g.fails) {
        assert_string_equal(what, "product_codes");
        assert_int_equal(op, 0);
    }
    assert_int_equal(g.module.gpu->record(g.cuda.gpu, g.event, g.stream), 0);
    assert_int_equal(g.module.gpu->wait(g.cuda.gpu, g.event), 0);
    assert_int_equal(g.module.gpu->copy_now(g.cuda.gpu, ret, y, y_bytes, AQ_GPU_D2H), 0);
    aq_device_free(g.device, AQ_MEMORY_DEVICE, "test", x_there, x_bytes);
    aq_device_free(g.device, AQ_MEMORY_DEVICE, "test", w_there, panels_bytes);
    aq_device_free(g.device, AQ_MEMORY_DEVICE, "test", bias_there, sizeof(float) * COLUMNS);
    aq_device_free(g.device, AQ_MEMORY_DEVICE, "test", y, y_bytes);
    aq_compute_cuda_close(c);
}

static float draw(uint64_t seed, uint64_t i)
{
    return (float)(2 * aq_prng_uniform(seed, 0, i) - 1);
}

static void pack(void *panels, enum aq_dtype t)
{
    struct aq_kernels k = {0};
    float rows[AQ_PANEL_ROWS * K];
    aq_kernels_cpu(&k, 0);
    for (uint32_t i = 0; i < 5; i++) { /* the first matrix ends in the middle of its second */
        for (uint32_t j = 0; j < AQ_PANEL_ROWS * K; j++)
            rows[j] = draw(1 + i, j);
        k.pack_panel((char *)panels + i * aq_panel_bytes(t, K), t, AQ_LAYOUT_GROUP64, rows, AQ_F32,
                     i == 1 ? SECOND - AQ_PANEL_ROWS : AQ_PANEL_ROWS, K);
    }
}

/* Both ways against each other: one way's sums of 200 products below 1 are off by 200 roundings of
 * numbers below 200 at the very most. */
static void check_example(struct example e)
{
    static uint16_t x[ROWS_MAX * K];
    static float bias[COLUMNS], first[ROWS_MAX * COLUMNS], got[ROWS_MAX * COLUMNS],
        want[ROWS_MAX * COLUMNS];
    void *panels = malloc(5 * aq_panel_bytes(e.weights, K));
    assert_non_null(panels);
    pack(panels, e.weights);
    for (uint32_t i = 0; i < ROWS_MAX * K; i++)
        x[i] = e.compute == AQ_F16 ? aq_f16_from_f32(draw(20, i)) : aq_bf16_from_f32(draw(20, i));
    for (uint32_t i = 0; i < ROWS_MAX * COLUMNS; i++)
        first[i] = draw(30, i);
    for (uint32_t i = 0; i < COLUMNS; i++)
        bias[i] = draw(40, i);
    memcpy(got, first, sizeof(got));
    multiply(got, &e, x, panels, bias);
    bool few = e.m <= AQ_CUDA_PRODUCT_ROWS_MAX;
    assert_int_equal(g.by_codes, few ? 2 : 0);
    assert_int_equal(g.unpacks, few ? 0 : 2);
    memcpy(want, first, sizeof(want));
    e.deterministic = true;
    multiply(want, &e, x, panels, bias);
    assert_int_equal(g.by_codes, 0);
    assert_int_equal(g.unpacks, 2);
    for (uint32_t i = 0; i < ROWS_MAX * COLUMNS; i++) {
        if (i >= e.m * COLUMNS)
            assert_true(got[i] == first[i]);
        else if (!(fabsf(got[i] - want[i]) <= 200 * 200 * 0x1p-24f))
            fail_msg("%s with %s, %u rows: number %u is %g, expected %g", aq_dtype_name(e.compute),
                     aq_dtype_name(e.weights), e.m, i, (double)got[i], (double)want[i]);
    }
    free(panels);
}

/* What a matrix holds before products are put into it. */
static float first_of(uint32_t i)
{
    return 1 + (float)(i % 7);
}

/* Five rows, which go by codes, in two products with what follows each. */
static void multiply_some(float ret[ROWS_MAX * COLUMNS], enum aq_combine combine,
                          uint32_t launches_max)
{
    static uint16_t x[ROWS_MAX * K];
    static const float bias[COLUMNS];
    struct example e = {.compute = AQ_F16,
                        .weights = AQ_Q8,
                        .m = 5,
                        .combine = combine,
                        .launches_max = launches_max};
    void *panels = malloc(5 * aq_panel_bytes(e.weights, K));
    assert_non_null(panels);
    pack(panels, e.weights);
    for (uint32_t i = 0; i < ROWS_MAX * K; i++)
        x[i] = aq_f16_from_f32(draw(20, i));
    for (uint32_t i = 0; i < ROWS_MAX * COLUMNS; i++)
        ret[i] = first_of(i);
    multiply(ret, &e, x, panels, bias);
    free(panels);
}

static void launches_that_there_is_no_room_for_are_made_behind_the_others(void **state)
{
    static float want[ROWS_MAX * COLUMNS], got[ROWS_MAX * COLUMNS];
    (void)state;
    multiply_some(want, AQ_COMBINE_ADD, 0);
    for (uint32_t room = 1; room <= 4; room++) {
        multiply_some(got, AQ_COMBINE_ADD, room);
        assert_int_equal(g.by_codes, 2);
        assert_memory_equal(got, want, sizeof(want));
    }
}

static void nothing_is_launched_behind_a_failure(void **state)
{
    static float got[ROWS_MAX * COLUMNS];
    (void)state;
    g.fails = true;
    for (uint32_t room = 0; room <= 4; room++) {
        multiply_some(got, AQ_COMBINE_ADD, room);
        assert_int_equal(g.by_codes, 1);
        for (uint32_t i = 0; i < ROWS_MAX * COLUMNS; i++)
            assert_true(got[i] == first_of(i));
    }
    g.fails = false;
}

static void products_are_set_added_or_multiplied(void **state)
{
    static float set[ROWS_MAX * COLUMNS], sum[ROWS_MAX * COLUMNS], product[ROWS_MAX * COLUMNS];
    (void)state;
    multiply_some(set, AQ_COMBINE_SET, 0);
    multiply_some(sum, AQ_COMBINE_ADD, 0);
    multiply_some(product, AQ_COMBINE_MULTIPLY, 0);
    for (uint32_t i = 0; i < 5 * COLUMNS; i++) {
        assert_true(sum[i] == first_of(i) + set[i]);
        assert_true(product[i] == first_of(i) * set[i]);
    }
}

static void few_rows_go_by_codes_unless_bits_are_promised(void **state)
{
    static const uint32_t m_values[] = {1, 5, 17, 64, 65, ROWS_MAX};
    (void)state;
    for (size_t i = 0; i < 4 * AQ_ARRAY_LEN(m_values); i++) {
        struct example e = {.compute = i % 2 ? AQ_BF16 : AQ_F16,
                            .weights = i / 2 % 2 ? AQ_Q8 : AQ_Q4,
                            .combine = AQ_COMBINE_ADD,
                            .m = m_values[i / 4]};
        check_example(e);
    }
}

/* ---- products of the library and what follows them ---- */

enum { WIDE_K = 192, WIDE = 3 * AQ_PANEL_ROWS, SUM_ROWS = 7 };

/* What follows a product, and in how many launches all of it is done. */
struct followed {
    enum aq_dtype y;
    bool bias;
    enum aq_activation activation;
    enum aq_combine combine;
    /* Also where the library knows neither bias nor activation, and where it loses NaNs. */
    uint32_t launches, plain_launches, losing_launches;
    float off; /* added to all of the bias */
};

static float relu_of(float v)
{
    return v > 0 ? v : 0;
}

/* Numbers whose products and sums are exact in f32 and, up to 2048, in f16. */
static float small_of(uint64_t seed, uint64_t i)
{
    return (float)(int)(aq_prng_uniform(seed, 0, i) * 3) - 1;
}

static double wanted(const struct followed *f, uint32_t r, uint32_t n)
{
    float v = 0;
    for (uint32_t i = 0; i < WIDE_K; i++)
        v += small_of(1, r * WIDE_K + i) * small_of(2, n * WIDE_K + i);
    v += f->bias ? small_of(3, n) + f->off : 0;
    v = f->activation == AQ_ACT_RELU ? relu_of(v) : v;
    if (f->activation == AQ_ACT_GELU)
        v *= 0.5f * erfcf(-0.70710678f * v);
    if (f->activation == AQ_ACT_GELU_TANH)
        v /= 1 + expf(-1.59576912f * (v + 0.044715f * v * v * v));
    float old = small_of(4, r * WIDE + n);
    return (double)(f->combine == AQ_COMBINE_SET   ? v
                    : f->combine == AQ_COMBINE_ADD ? v + old
                                                   : v * old);
}

static void *put_halves(uint64_t seed, uint32_t count)
{
    uint16_t *v = malloc(count * sizeof(*v));
    assert_non_null(v);
    for (uint32_t i = 0; i < count; i++)
        v[i] = aq_f16_from_f32(small_of(seed, i));
    void *p = put(v, count * sizeof(*v));
    free(v);
    return p;
}

static void *put_floats(uint64_t seed, uint32_t count, float off)
{
    float *v = malloc(count * sizeof(*v));
    assert_non_null(v);
    for (uint32_t i = 0; i < count; i++)
        v[i] = small_of(seed, i) + off;
    void *p = put(v, count * sizeof(*v));
    free(v);
    return p;
}

/* Three panels that follow each other, as two segments. */
static void check_followed(const struct followed *f, enum aq_emu_manner how)
{
    struct aq_compute_cuda *c;
    struct aq_compute_cuda_opts opts = lane_opts(AQ_F16, false);
    size_t w_bytes = sizeof(uint16_t) * WIDE * WIDE_K, x_bytes = 2 * SUM_ROWS * WIDE_K;
    size_t y_bytes = SUM_ROWS * WIDE * aq_dtype_bytes(f->y), bias_bytes = sizeof(float) * WIDE;
    static uint8_t home[SUM_ROWS * WIDE * sizeof(float)];
    const char *what, *why;
    uint32_t op;
    void *w = put_halves(2, WIDE * WIDE_K), *x = put_halves(1, SUM_ROWS * WIDE_K);
    float *bias = put_floats(3, WIDE, f->off);
    void *y = f->y == AQ_F32 ? put_floats(4, SUM_ROWS * WIDE, 0) : put_halves(4, SUM_ROWS * WIDE);
    struct aq_matrix_desc wide = {.rows = WIDE, .k = WIDE_K};
    struct aq_vector_desc vector = {.count = WIDE};
    struct aq_step_desc product = {
        .matrix = &wide,
        .matrix_count = 1,
        .vector = &vector,
        .vector_count = 1,
        .half[0] = {.prim[0] = {.kind = AQ_PRIM_PRODUCT,
                                .dst = f->y == AQ_F32 ? AQ_REG_HIDDEN : AQ_REG_INNER,
                                .matrix_count = 1,
                                .bias = f->bias ? 0 : -1,
                                .activation = f->activation},
                    .count = 1},
    };
    const struct aq_model_steps model = {.step = &product, .step_count = 1, .vector_count = 1};
    opts.steps = &model;
    opts.sizes.biases_bytes = 4096;
    struct aq_segment segments[] = {
        {.panels = w, .column = 0, .rows = AQ_PANEL_ROWS},
        {.panels = (uint8_t *)w + aq_panel_bytes(AQ_F16, WIDE_K),
         .column = AQ_PANEL_ROWS,
         .rows = 2 * AQ_PANEL_ROWS},
    };
    struct aq_product p = {.x = x,
                           .x_dtype = AQ_F16,
                           .m = SUM_ROWS,
                           .k = WIDE_K,
                           .x_stride = WIDE_K,
                           .segments = segments,
                           .segment_count = 2,
                           .w_dtype = AQ_F16,
                           .bias = f->bias ? bias : NULL,
                           .activation = f->activation,
                           .combine = f->combine,
                           .y = y,
                           .y_dtype = f->y,
                           .y_stride = WIDE};
    g.blas(how);
    assert_int_equal(aq_compute_cuda_open(&c, &opts, NULL), 0);
    assert_int_equal(aq_compute_cuda_biases(c, &bias, NULL), 0);
    uint64_t before = g.counted().works;
    aq_compute_cuda_begin(c, g.stream, AQ_GPU_BUNDLE_DESKS, false);
    aq_compute_product(aq_compute_cuda_base(c), &p);
    assert_int_equal(aq_compute_cuda_end(c, &op, &what, &why), 0);
    assert_int_equal(g.counted().works - before, how == AQ_EMU_BLAS_PLAIN       ? f->plain_launches
                                                 : how == AQ_EMU_BLAS_LOSES_NAN ? f->losing_launches
                                                                                : f->launches);
    assert_int_equal(g.module.gpu->record(g.cuda.gpu, g.event, g.stream), 0);
    assert_int_equal(g.module.gpu->wait(g.cuda.gpu, g.event), 0);
    assert_int_equal(g.module.gpu->copy_now(g.cuda.gpu, home, y, y_bytes, AQ_GPU_D2H), 0);
    for (uint32_t i = 0; i < SUM_ROWS * WIDE; i++) {
        float got = f->y == AQ_F32 ? ((float *)home)[i] : aq_f32_from_f16(((uint16_t *)home)[i]);
        double want = wanted(f, i / WIDE, i % WIDE);
        bool rounds =
            f->activation == AQ_ACT_GELU_TANH || f->activation == AQ_ACT_GELU || f->off != 0;
        assert_true(fabs((double)got - want) <= (rounds ? 1e-3 + 1e-3 * fabs(want) : 0));
    }
    aq_device_free(g.device, AQ_MEMORY_DEVICE, "test", w, w_bytes);
    aq_device_free(g.device, AQ_MEMORY_DEVICE, "test", x, x_bytes);
    aq_device_free(g.device, AQ_MEMORY_DEVICE, "test", bias, bias_bytes);
    aq_device_free(g.device, AQ_MEMORY_DEVICE, "test", y, y_bytes);
    aq_compute_cuda_close(c);
    g.blas(AQ_EMU_BLAS_RIGHT);
}

/* Segments that go on where the last one ends are one product, and bias, activation, residual and
 * rounding are the library's work where it can: not where a NaN would not come out of its
 * activation or numbers are off, and not where a bias would change in y's type. */
static void what_follows_a_product_takes_no_launch_where_the_library_can(void **state)
{
    static const enum aq_emu_manner manners[] = {AQ_EMU_BLAS_RIGHT, AQ_EMU_BLAS_PLAIN,
                                                 AQ_EMU_BLAS_LOSES_NAN};
    static const struct followed cases[] = {
        {AQ_F32, false, AQ_ACT_NONE, AQ_COMBINE_SET, 1, 1, 1, 0},
        {AQ_F32, true, AQ_ACT_NONE, AQ_COMBINE_SET, 1, 2, 1, 0},
        {AQ_F32, false, AQ_ACT_NONE, AQ_COMBINE_ADD, 1, 1, 1, 0},
        {AQ_F32, true, AQ_ACT_NONE, AQ_COMBINE_ADD, 1, 2, 1, 0},
        {AQ_F32, true, AQ_ACT_NONE, AQ_COMBINE_ADD, 1, 2, 1, 1e-5f},
        {AQ_F16, false, AQ_ACT_NONE, AQ_COMBINE_SET, 1, 1, 1, 0},
        {AQ_F16, true, AQ_ACT_NONE, AQ_COMBINE_SET, 2, 2, 2, 0}, /* no copy of its bias */
        {AQ_F16, false, AQ_ACT_RELU, AQ_COMBINE_SET, 1, 2, 2, 0},
        {AQ_F16, true, AQ_ACT_RELU, AQ_COMBINE_SET, 1, 2, 2, 0},
        {AQ_F16, true, AQ_ACT_RELU, AQ_COMBINE_SET, 2, 2, 2, 1e-5f},
        {AQ_F16, true, AQ_ACT_RELU, AQ_COMBINE_ADD, 2, 2, 2, 0},
        {AQ_F32, true, AQ_ACT_RELU, AQ_COMBINE_SET, 1, 2, 2, 0},
        {AQ_F16, true, AQ_ACT_GELU_TANH, AQ_COMBINE_SET, 1, 2, 2, 0},
        {AQ_F16, true, AQ_ACT_GELU, AQ_COMBINE_SET, 2, 2, 2, 0},
        {AQ_F32, true, AQ_ACT_NONE, AQ_COMBINE_MULTIPLY, 2, 2, 2, 0},
    };
    static const struct followed coarse[] = {
        {AQ_F16, true, AQ_ACT_GELU_TANH, AQ_COMBINE_SET, 2, 2, 2, 0},
        {AQ_F16, true, AQ_ACT_RELU, AQ_COMBINE_SET, 1, 2, 2, 0},
    };
    (void)state;
    for (size_t i = 0; i < AQ_ARRAY_LEN(manners) * AQ_ARRAY_LEN(cases); i++)
        check_followed(&cases[i / AQ_ARRAY_LEN(manners)], manners[i % AQ_ARRAY_LEN(manners)]);
    for (size_t i = 0; i < AQ_ARRAY_LEN(coarse); i++)
        check_followed(&coarse[i], AQ_EMU_BLAS_COARSE);
}

/* ---- a library that misbehaves ---- */

/* A lane, and one product of zeros by the library; the error names what failed. */
static int try_product(enum aq_dtype compute, bool deterministic, struct aq_err *err)
{
    struct aq_compute_cuda *c;
    struct aq_compute_cuda_opts opts = lane_opts(compute, deterministic);
    static float zeros[AQ_PANEL_ROWS * 256];
    struct aq_segment segment = {.rows = AQ_PANEL_ROWS};
    struct aq_product p = {.x_dtype = compute,
                           .m = ROWS_MAX,
                           .k = 192, /* panels without padding, and not a length that was tried */
                           .x_stride = 192,
                           .segments = &segment,
                           .segment_count = 1,
                           .w_dtype = compute,
                           .y_dtype = AQ_F32,
                           .y_stride = AQ_PANEL_ROWS};
    const char *what, *why;
    uint32_t op;
    int rc = aq_compute_cuda_open(&c, &opts, err);
    if (rc < 0)
        return rc;
    void *x = put(zeros, sizeof(zeros)), *y = put(zeros, sizeof(zeros));
    segment.panels = x;
    p.x = x;
    p.y = y;
    aq_compute_cuda_begin(c, g.stream, AQ_GPU_BUNDLE_DESKS, false);
    aq_compute_product(aq_compute_cuda_base(c), &p);
    rc = aq_compute_cuda_end(c, &op, &what, &why);
    if (rc < 0)
        rc = aq_error(err, rc, "%s: %s", what, why);
    assert_int_equal(g.module.gpu->record(g.cuda.gpu, g.event, g.stream), 0);
    assert_int_equal(g.module.gpu->wait(g.cuda.gpu, g.event), 0);
    aq_device_free(g.device, AQ_MEMORY_DEVICE, "test", x, sizeof(zeros));
    aq_device_free(g.device, AQ_MEMORY_DEVICE, "test", y, sizeof(zeros));
    aq_compute_cuda_close(c);
    return rc;
}

static void what_the_library_cannot_do_is_named(void **state)
{
    static const struct {
        enum aq_emu_manner how;
        const char *says;
    } cases[] = {
        {AQ_EMU_BLAS_OFFERS_NOTHING, "cuBLASLt has no algorithm for this product"},
        {AQ_EMU_BLAS_REFUSES, "cuBLASLt has no algorithm for this product"},
        {AQ_EMU_BLAS_BROKEN, "is usable within the workspace"},
        {AQ_EMU_BLAS_GREEDY, "is usable within the workspace"},
        {AQ_EMU_BLAS_FAILS, "CUBLAS_STATUS_EXECUTION_FAILED"},
    };
    (void)state;
    for (size_t i = 0; i < AQ_ARRAY_LEN(cases); i++) {
        struct aq_err err;
        g.blas(cases[i].how);
        assert_int_equal(try_product(AQ_F16, false, &err), -EIO);
        assert_non_null(strstr(err.text, "cublasLtMatmul: "));
        assert_non_null(strstr(err.text, cases[i].says));
        assert_int_equal(try_product(AQ_F16, true, &err), -ENODEV);
        assert_non_null(
            strstr(err.text, "--deterministic: products of rows of 200 numbers in f16"));
        assert_non_null(strstr(err.text, cases[i].says));
        assert_non_null(strstr(err.text, "leave --deterministic out"));
    }
    g.blas(AQ_EMU_BLAS_RIGHT);
}

static void a_candidate_with_an_error_state_is_passed_over(void **state)
{
    struct aq_err err;
    (void)state;
    g.blas(AQ_EMU_BLAS_BROKEN_FIRST);
    assert_int_equal(try_product(AQ_F16, false, &err), 0);
    assert_int_equal(try_product(AQ_F16, true, &err), 0);
    g.blas(AQ_EMU_BLAS_RIGHT);
}

static void bits_that_depend_on_neighbours_are_not_called_deterministic(void **state)
{
    static const enum aq_dtype types[] = {AQ_F32, AQ_F16, AQ_BF16};
    (void)state;
    for (size_t i = 0; i < 2 * AQ_ARRAY_LEN(types); i++) {
        struct aq_err err;
        enum aq_dtype type = types[i / 2];
        g.blas(AQ_EMU_BLAS_RIGHT);
        assert_int_equal(try_product(type, true, &err), 0);
        g.blas(i % 2 ? AQ_EMU_BLAS_SPLITS_NARROW : AQ_EMU_BLAS_SPLITS);
        assert_int_equal(try_product(type, false, &err), 0);
        assert_int_equal(try_product(type, true, &err), -ENODEV);
        assert_non_null(strstr(err.text, "does not keep it"));
        assert_non_null(strstr(err.text, "200 numbers"));
        assert_non_null(strstr(err.text, i % 2 ? "64 columns are computed" : "when 1 rows"));
    }
    g.blas(AQ_EMU_BLAS_RIGHT);
}

/* What a launch is told of sequences of 1000 keys, of which the last ones share so many blocks with
 * the one before. */
static struct aq_attn_reach reach_of(const uint32_t *shared, uint32_t count)
{
    enum { SEQS = 4, LEN = 1000, BLOCKS = (LEN + 31) / 32 };
    struct aq_compute_cuda *c;
    struct aq_compute_cuda_opts opts = lane_opts(AQ_F16, true);
    const char *what, *why;
    uint8_t *block[BLOCKS], zeros[64] = {0};
    uint32_t len = LEN, op;
    void *there = put(zeros, sizeof(zeros));
    struct aq_attn_seq seq[SEQS];
    for (uint32_t b = 0; b < BLOCKS; b++)
        block[b] = there;
    assert_true(count <= SEQS);
    for (uint32_t i = 0; i < count; i++)
        seq[i] = (struct aq_attn_seq){
            .block = block, .len = &len, .row = i, .rows = 1, .shared = shared[i]};
    assert_int_equal(aq_compute_cuda_open(&c, &opts, NULL), 0);
    aq_compute_cuda_begin(c, g.stream, AQ_GPU_BUNDLE_DESKS, false);
    const struct aq_compute *base = aq_compute_cuda_base(c);
    base->kernels->attn_decode(base->exec, &(struct aq_attn){.seqs = seq,
                                                             .q = there,
                                                             .out = there,
                                                             .seq_count = count,
                                                             .kv_dtype = AQ_F16,
                                                             .kv_heads = 1,
                                                             .q_per_kv = 1,
                                                             .head_dim = 64});
    assert_int_equal(aq_compute_cuda_end(c, &op, &what, &why), 0);
    assert_int_equal(g.module.gpu->record(g.cuda.gpu, g.event, g.stream), 0);
    assert_int_equal(g.module.gpu->wait(g.cuda.gpu, g.event), 0);
    aq_compute_cuda_close(c);
    aq_device_free(g.device, AQ_MEMORY_DEVICE, "test", there, sizeof(zeros));
    return g.reach;
}

static void splits_are_read_jointly_where_a_quarter_of_the_keys_is_in_them(void **state)
{
    static const struct {
        uint32_t shared[4], splits, joint;
    } cases[] = {
        {{0, 20, 20, 20}, 2, 1}, /* 1536 of 4000 keys */
        {{0, 20, 20, 0}, 2, 1},  /* 1024 */
        {{0, 0, 20, 8}, 0, 0},   /* 768 */
        {{20, 7, 7, 7}, 0, 0},   /* no whole split, and the first one says nothing */
    };
    (void)state;
    for (size_t i = 0; i < AQ_ARRAY_LEN(cases); i++) {
        struct aq_attn_reach r = reach_of(cases[i].shared, 4);
        assert_int_equal(r.rows, 1);
        assert_int_equal(r.len, 1024);
        assert_int_equal(r.shared, cases[i].splits);
        assert_int_equal(r.joint, cases[i].joint);
    }
}

/* ---- tables that stay on the device ---- */

enum { SEATS = 300, DIM = 16 };

/* Stores a row for each seat where its table on the device leads, after a row of zeros in all
 * pages; whether it is there.  Returns what was asked of the GPU. */
static uint64_t store_rows(struct aq_compute_cuda *c, uint8_t *const *table, uint8_t *pages,
                           size_t pages_bytes, const float *rows)
{
    static const uint32_t len = 1;
    static uint8_t home[2 * SEATS * AQ_HEAD_BLOCK_SLOTS * 2 * DIM * sizeof(float)];
    struct aq_attn_seq seq[SEATS];
    const struct aq_compute *base = aq_compute_cuda_base(c);
    const char *what, *why;
    uint32_t op;
    uint64_t works = g.counted().works;
    memset(home, 0, sizeof(home));
    assert_true(pages_bytes == sizeof(home));
    assert_int_equal(aq_device_write(g.device, pages, home, pages_bytes, NULL), 0);
    for (uint32_t i = 0; i < SEATS; i++)
        seq[i] = (struct aq_attn_seq){.block = table + i, .len = &len, .row = i, .rows = 1};
    struct aq_attn a = {.seqs = seq,
                        .k_new = rows,
                        .v_new = rows,
                        .new_stride = DIM,
                        .seq_count = SEATS,
                        .kv_dtype = AQ_F32,
                        .kv_heads = 1,
                        .q_per_kv = 1,
                        .head_dim = DIM};
    aq_compute_cuda_begin(c, g.stream, AQ_GPU_BUNDLE_DESKS, true);
    base->kernels->kv_append(base->exec, &a);
    assert_int_equal(aq_compute_cuda_end(c, &op, &what, &why), 0);
    assert_int_equal(g.module.gpu->record(g.cuda.gpu, g.event, g.stream), 0);
    assert_int_equal(g.module.gpu->wait(g.cuda.gpu, g.event), 0);
    assert_int_equal(g.module.gpu->copy_now(g.cuda.gpu, home, pages, pages_bytes, AQ_GPU_D2H), 0);
    float row[SEATS * DIM];
    assert_int_equal(g.module.gpu->copy_now(g.cuda.gpu, row, (void *)rows, sizeof(row), AQ_GPU_D2H),
                     0);
    for (uint32_t i = 0; i < SEATS; i++)
        assert_memory_equal(home + (table[i] - pages), row + i * DIM, DIM * sizeof(float));
    return g.counted().works - works;
}

/* Few changes are sent one by one, and more than there is room for with all between them; nothing
 * is where nothing has changed. */
static void tables_on_the_device_follow_their_changes(void **state)
{
    const size_t page = (size_t)AQ_HEAD_BLOCK_SLOTS * 2 * DIM * sizeof(float);
    struct aq_compute_cuda_opts opts = lane_opts(AQ_F16, false);
    struct aq_compute_cuda *c;
    uint8_t **table;
    float rows[SEATS * DIM];
    (void)state;
    opts.sizes.tables_bytes = SEATS * sizeof(*table);
    opts.sizes.desk_bytes = AQ_MIB;
    for (uint32_t i = 0; i < AQ_ARRAY_LEN(rows); i++)
        rows[i] = draw(70, i);
    float *rows_there = put(rows, sizeof(rows));
    uint8_t *pages;
    assert_int_equal(aq_device_alloc((void **)&pages, g.device, AQ_MEMORY_DEVICE, "pages",
                                     2 * SEATS * page, NULL),
                     0);
    assert_int_equal(aq_device_alloc((void **)&table, g.device, AQ_MEMORY_PINNED, "tables",
                                     SEATS * sizeof(*table), NULL),
                     0);
    assert_int_equal(aq_compute_cuda_open(&c, &opts, NULL), 0);
    aq_compute_cuda_tables(c, table);
    for (uint32_t i = 0; i < SEATS; i++) { /* none beside the one before */
        uint32_t seat = i * 7 % SEATS;
        table[seat] = pages + seat * page;
        aq_compute_cuda_changed(c, &table[seat], sizeof(*table));
    }
    uint64_t all = store_rows(c, table, pages, 2 * SEATS * page, rows_there);
    uint64_t none = store_rows(c, table, pages, 2 * SEATS * page, rows_there);
    assert_true(all > none);
    for (uint32_t seat = 3; seat < SEATS; seat += 100) {
        table[seat] = pages + (SEATS + seat) * page;
        aq_compute_cuda_changed(c, &table[seat], sizeof(*table));
    }
    assert_int_equal(store_rows(c, table, pages, 2 * SEATS * page, rows_there), none + 1);
    aq_compute_cuda_close(c);
    aq_device_free(g.device, AQ_MEMORY_PINNED, "tables", table, SEATS * sizeof(*table));
    aq_device_free(g.device, AQ_MEMORY_DEVICE, "pages", pages, 2 * SEATS * page);
    aq_device_free(g.device, AQ_MEMORY_DEVICE, "test", rows_there, sizeof(rows));
}

/* A GPU runs the latest code of its own generation, or what was made for the last machine. */
static void code_is_that_which_a_gpu_runs(void **state)
{
    static const uint32_t usual[] = {750, 800, 890, 900, 1000, 1200, 0}, two[] = {750, 890, 0};
    static const uint32_t any[] = {0};
    static const struct {
        const uint32_t *made_for;
        uint32_t sm, code;
    } cases[] = {
        {usual, 75, 75},   {usual, 80, 80}, {usual, 86, 80},   {usual, 89, 89},   {usual, 90, 90},
        {usual, 103, 100}, {usual, 110, 0}, {usual, 121, 120}, {usual, 130, 120}, {two, 80, 0},
        {two, 86, 0},      {two, 89, 89},   {two, 90, 89},     {two, 120, 89},    {any, 86, 86},
    };
    (void)state;
    for (size_t i = 0; i < AQ_ARRAY_LEN(cases); i++)
        assert_int_equal(aq_cuda_code_for(cases[i].made_for, cases[i].sm), cases[i].code);
    assert_int_equal(g.cuda.info.code_sm, g.cuda.info.sm);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(tables_on_the_device_follow_their_changes),
    cmocka_unit_test(splits_are_read_jointly_where_a_quarter_of_the_keys_is_in_them),
    cmocka_unit_test(few_rows_go_by_codes_unless_bits_are_promised),
    cmocka_unit_test(products_are_set_added_or_multiplied),
    cmocka_unit_test(launches_that_there_is_no_room_for_are_made_behind_the_others),
    cmocka_unit_test(nothing_is_launched_behind_a_failure),
    cmocka_unit_test(what_follows_a_product_takes_no_launch_where_the_library_can),
    cmocka_unit_test(code_is_that_which_a_gpu_runs),
    cmocka_unit_test(what_the_library_cannot_do_is_named),
    cmocka_unit_test(a_candidate_with_an_error_state_is_passed_over),
    cmocka_unit_test(bits_that_depend_on_neighbours_are_not_called_deterministic),
};

int main(void)
{
    return cmocka_run_group_tests(tests, set_up, tear_down) ? 1 : 0;
}
