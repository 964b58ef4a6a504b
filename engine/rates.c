/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/rates.h"

#include "base/clock.h"
#include "base/mem.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Small: a matrix that stays in a core's cache while it meets ROWS rows, as in a large block.
 * Large: weights past the caches, which one row reads once. */
enum { K = 2048, SMALL_PANELS = 8, ROWS = 128, REPEATS_MIN = 3, REPEATS_MAX = 64 };
#define LARGE_BYTES     (96 * AQ_MIB)
#define LARGE_BYTES_MIN (24 * AQ_MIB)
/* Then it stops repeating. */
static const double long_s = 0.08;
/* Of the rate of a product alone, products of a pass reach this much: 0.94 to 0.98 in four runs of
 * bench/offload.py (bench/results/epyc-zen5-2vcpu-2026-11-22.offload.md).  Norms, residuals and
 * other rows' activations pass through the caches between them. */
static const double share_in_pass = 0.965;

enum { DISK_BYTES = 64 << 20, DISK_PIECE = 1 << 20, DISK_BUFFER = 16 << 20 };

struct bench {
    const struct aq_rates_opts *o;
    struct aq_mem *mem;
    struct aq_pool *pool;
    struct aq_exec *exec;
    uint8_t *weights, *x;
    float *y;
    void *scratch;
    size_t weight_bytes, x_bytes, y_bytes, scratch_bytes;
};

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Seconds of a product of `rows` rows with the first panels: the median of many.  Others on the
 * machine make some of them slow; a run of minutes meets both kinds. */
static double product_s(const struct bench *b, uint32_t panels, uint32_t rows)
{
    enum aq_dtype compute = b->o->compute;
    struct aq_segment segment = {b->weights, 0, panels * AQ_PANEL_ROWS};
    struct aq_product p = {
        .x = b->x,
        .x_dtype = compute,
        .m = rows,
        .k = K,
        .x_stride = K,
        .segments = &segment,
        .segment_count = 1,
        .w_dtype = b->o->weight_format,
        .w_layout = aq_layout_cpu(b->o->weight_format),
        .y = b->y,
        .y_dtype = AQ_F32,
        .y_stride = (size_t)panels * AQ_PANEL_ROWS,
    };
    aq_product_fn *product =
        compute == AQ_BF16 ? b->o->kernels->product_bf16 : b->o->kernels->product_f32;
    double s[REPEATS_MAX], begin = aq_clock_s();
    size_t count = 0;
    product(b->exec, &p); /* warms up */
    while (count < REPEATS_MAX && (count < REPEATS_MIN || aq_clock_s() - begin < long_s)) {
        double start = aq_clock_s();
        product(b->exec, &p);
        s[count++] = aq_clock_s() - start;
    }
    qsort(s, count, sizeof(*s), compare);
    return s[count / 2];
}

static void measure_products(const struct bench *b, struct aq_hardware *hw)
{
    /* The reference takes about a nanosecond a product. */
    uint32_t rows = b->o->kernels->isa & AQ_ISA_AVX2 ? ROWS : 1;
    double s = product_s(b, SMALL_PANELS, rows);
    double flops = 2.0 * rows * SMALL_PANELS * AQ_PANEL_ROWS * K;
    if (s <= 0)
        return;
    struct aq_hw_side *side = &hw->device;
    double scale = share_in_pass * flops / s / side->product_flops_per_s[b->o->compute];
    for (int t = 0; t < AQ_DTYPE_COUNT; t++)
        side->product_flops_per_s[t] *= scale;
    side->attention_flops_per_s *= scale;
}

static void measure_memory(const struct bench *b, uint32_t panels, struct aq_hardware *hw)
{
    double bytes = (double)panels * (double)aq_panel_bytes(b->o->weight_format, K);
    double s = product_s(b, panels, 1);
    if (s <= 0)
        return;
    double scale = bytes / s / hw->device.product_bytes_per_s;
    hw->device.product_bytes_per_s *= scale;
    hw->device.attention_bytes_per_s *= scale;
    hw->device.unpack_bytes_per_s *= scale;
    hw->host_memory_bytes_per_s = bytes / s;
}

static void bench_close(struct bench *b)
{
    aq_exec_close(b->exec);
    aq_pool_close(b->pool);
    aq_mem_free(b->mem, AQ_HOST, "rates", b->weights, b->weight_bytes);
    aq_mem_free(b->mem, AQ_HOST, "rates", b->x, b->x_bytes);
    aq_mem_free(b->mem, AQ_HOST, "rates", b->y, b->y_bytes);
    aq_mem_free(b->mem, AQ_HOST, "rates", b->scratch, b->scratch_bytes);
    aq_mem_close(b->mem);
}

static int take(struct bench *b, void *ret, size_t *bytes, struct aq_err *reterr)
{
    return aq_mem_alloc(ret, b->mem, AQ_HOST, "rates", *bytes, reterr);
}

static int bench_open(struct bench *b, uint32_t panels, struct aq_err *reterr)
{
    uint64_t limit[AQ_TIER_COUNT] = {[AQ_HOST] = UINT64_MAX};
    struct aq_scratch_need need = {K, 64, 64};
    size_t each = aq_kernels_scratch_bytes(&need);
    b->weight_bytes = panels * aq_panel_bytes(b->o->weight_format, K);
    b->x_bytes = ROWS * K * aq_dtype_bytes(b->o->compute);
    b->y_bytes = ((size_t)ROWS * SMALL_PANELS + panels) * AQ_PANEL_ROWS * sizeof(float);
    b->scratch_bytes = each * b->o->threads;
    int rc = aq_mem_open(&b->mem, limit, reterr);
    rc = rc < 0 ? rc : take(b, &b->weights, &b->weight_bytes, reterr);
    rc = rc < 0 ? rc : take(b, &b->x, &b->x_bytes, reterr);
    rc = rc < 0 ? rc : take(b, &b->y, &b->y_bytes, reterr);
    rc = rc < 0 ? rc : take(b, &b->scratch, &b->scratch_bytes, reterr);
    rc = rc < 0 ? rc : aq_pool_open(&b->pool, b->o->threads, reterr);
    rc = rc < 0 ? rc : aq_exec_open(&b->exec, b->pool, b->scratch, each, reterr);
    if (rc < 0)
        return rc;
    /* Numbers that are neither zero nor denormal in any format, on pages of their own. */
    memset(b->weights, 0x11, b->weight_bytes);
    memset(b->x, 0x3f, b->x_bytes);
    return 0;
}

int aq_rates_measure(struct aq_hardware *ret, struct aq_rates_measured *ret_measured,
                     const struct aq_rates_opts *opts, struct aq_err *reterr)
{
    size_t panel = aq_panel_bytes(opts->weight_format, K);
    uint64_t bytes = aq_min_u64(opts->memory, LARGE_BYTES);
    uint32_t panels = (uint32_t)(bytes / panel);
    struct aq_hardware hw;
    struct aq_rates_measured measured = {0};
    aq_hardware_default(&hw, opts->cores, opts->threads, opts->threads);
    if (panels >= SMALL_PANELS) {
        struct bench b = {.o = opts};
        int rc = bench_open(&b, panels, reterr);
        if (rc == 0) {
            measure_products(&b, &hw);
            measured.products = true;
            measured.memory = bytes >= LARGE_BYTES_MIN;
            if (measured.memory)
                measure_memory(&b, panels, &hw);
        }
        bench_close(&b);
        if (rc < 0)
            return rc;
    }
    hw.host = hw.device;
    *ret = hw;
    *ret_measured = measured;
    return 0;
}

/* ---- disk -------------------------------------------------------------------------------- */

static void fill_group(struct aq_disk_group *g, struct aq_disk_transfer *t, uint32_t count,
                       uint64_t store_bytes, uint8_t *buffer)
{
    uint64_t places = store_bytes / DISK_PIECE;
    for (uint32_t i = 0; i < count; i++)
        t[i].t = (struct aq_transfer){
            .op = AQ_IO_READ,
            .set = AQ_DISKS_STORE_SET,
            .offset = i * places / count * DISK_PIECE,
            .bytes = DISK_PIECE,
            .buffer = buffer + (uint64_t)i * DISK_PIECE % DISK_BUFFER,
        };
    *g = (struct aq_disk_group){.transfer = t, .count = count};
}

/* Seconds until all of the group is there; a negative errno. */
static double read_group(struct aq_disks *d, struct aq_disk_group *g, void *buffer,
                         struct aq_err *reterr)
{
    struct aq_completions *done = NULL;
    struct aq_disk_lane *lane = NULL;
    struct aq_io_region region = {buffer, DISK_BUFFER};
    struct aq_completion c = {0};
    double s = 0;
    int rc = aq_completions_open(&done, 4, NULL, reterr);
    rc = rc < 0 ? rc : aq_disks_start(d, &lane, &region, 1, done, reterr);
    if (rc == 0) {
        double start = aq_clock_s();
        aq_disk_lane_submit(lane, g);
        do
            rc = aq_completions_wait(done, &c, 1, AQ_WAIT_FOREVER);
        while (rc == 0);
        s = aq_clock_s() - start;
        rc = rc < 0 ? rc : c.result;
        if (rc < 0)
            aq_disk_lane_error(lane, reterr);
    }
    aq_disk_lane_close(lane);
    aq_completions_close(done);
    return rc < 0 ? rc : s;
}

int aq_rates_disk(double *ret_bytes_per_s, const struct aq_disks_opts *opts, struct aq_err *reterr)
{
    static const uint64_t limit[AQ_TIER_COUNT] = {[AQ_HOST] = AQ_RATES_DISK_MEMORY};
    struct aq_disk_transfer transfer[DISK_BYTES / DISK_PIECE];
    struct aq_disks_opts only = {
        .store = opts->store, .io = opts->io, .io_direct = opts->io_direct};
    uint64_t bytes = aq_store_bytes(opts->store);
    uint32_t count = (uint32_t)aq_min_u64(AQ_ARRAY_LEN(transfer), bytes / DISK_PIECE);
    if (!count)
        return aq_error(reterr, -ERANGE, "rates: a store of %llu bytes is too small to be measured",
                        (unsigned long long)bytes);
    struct aq_mem *mem;
    struct aq_disks *d = NULL;
    struct aq_disk_group group;
    void *buffer = NULL;
    double s = 0;
    int rc = aq_mem_open(&mem, limit, reterr);
    if (rc < 0)
        return rc;
    rc = aq_mem_alloc(&buffer, mem, AQ_HOST, "rates", DISK_BUFFER, reterr);
    rc = rc < 0 ? rc : aq_disks_open(&d, &only, reterr);
    if (rc == 0) {
        fill_group(&group, transfer, count, bytes, buffer);
        s = read_group(d, &group, buffer, reterr);
        rc = s < 0 ? (int)s : 0;
    }
    aq_disks_close(d);
    aq_mem_free(mem, AQ_HOST, "rates", buffer, DISK_BUFFER);
    aq_mem_close(mem);
    if (rc == 0 && s > 0)
        *ret_bytes_per_s = (double)count * DISK_PIECE / s;
    return rc;
}
