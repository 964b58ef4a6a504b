/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/machine/rates_parts.h"

#include "base/clock.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    REPEATS_MIN = 3,
    REPEATS_MAX = 2048,
    ROUNDS_MIN = 7,
    ROUNDS_MAX = 64,
    READ_TILE = 1 << 20,
    SPREAD_MAX = 10
};
/* Of the matrices of products: 2048 columns. */
enum { MATRIX_PANELS = 2048 / AQ_PANEL_ROWS };

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

struct aq_sample aq_sample_of(double *values, size_t count)
{
    assert(count > 0);
    qsort(values, count, sizeof(*values), compare);
    double median = values[count / 2];
    double range = values[count * 3 / 4 < count ? count * 3 / 4 : count - 1] - values[count / 4];
    return (struct aq_sample){median, median > 0 ? fmin(range / median, SPREAD_MAX) : 0};
}

double aq_rates_cpu_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

struct aq_sample aq_rates_repeat(const struct aq_rates_rig *r, void (*fn)(void *), void *arg,
                                 double amount)
{
    double rate[REPEATS_MAX], begin = aq_clock_s(), end, until_s = r->long_s;
    struct aq_sample found;
    size_t count = 0;
    fn(arg);
    do {
        do {
            double start = aq_clock_s();
            fn(arg);
            end = aq_clock_s();
            rate[count++] = end > start ? amount / (end - start) : 0;
        } while (count < REPEATS_MAX && (count < REPEATS_MIN || end - begin < until_s));
        found = aq_sample_of(rate, count);
        until_s = aq_rates_until_s(r->long_s, found.spread);
    } while (count < REPEATS_MAX && end - begin < until_s);
    return found;
}

/* ---- workers and memory ------------------------------------------------------------------ */

/* On memory nodes as an engine's weights and KV lie (offload/numa.h): in parts, of which each group
 * of workers reads its own. */
static void place_parts(void *user, void *p, size_t bytes)
{
    enum { PAGE = 4096 };
    aq_numa_bind_parts(user, p, bytes / PAGE, PAGE);
}

int aq_rates_take(void *ret, struct aq_rates_rig *r, size_t bytes, int fill, struct aq_err *reterr)
{
    void *at = NULL;
    struct aq_numa_scope scope;
    bool parts = r->numa.large.kind == AQ_NUMA_PARTS;
    assert(r->block_count < AQ_RATES_BLOCKS_MAX);
    aq_numa_enter(&scope, &r->numa.large);
    int rc = aq_mem_alloc_placed(&at, r->mem, AQ_HOST, "rates", bytes, parts ? place_parts : NULL,
                                 &r->numa, reterr);
    aq_numa_leave(&scope);
    if (rc < 0)
        return rc;
    memset(at, fill, bytes);
    r->block[r->block_count].at = at;
    r->block[r->block_count++].bytes = bytes;
    *(void **)ret = at;
    return 0;
}

int aq_rates_rig_open(struct aq_rates_rig *ret, const struct aq_kernels *kernels, uint32_t threads,
                      double long_s, uint32_t context_max, struct aq_err *reterr)
{
    static const uint64_t limit[AQ_TIER_COUNT] = {[AQ_HOST] = UINT64_MAX, [AQ_DEVICE] = UINT64_MAX};
    struct aq_scratch_need need = {AQ_RATES_K, AQ_HW_HEAD_WIDE, context_max, 0};
    size_t each = aq_kernels_scratch_bytes(&need);
    struct aq_rates_rig r = {.kernels = kernels, .threads = threads, .long_s = long_s};
    size_t code_bytes = aq_kernels_codes_bytes(AQ_RATES_K);
    void *scratch = NULL, *codes = NULL;
    struct aq_numa_topology topology;
    int rc = aq_mem_open(&r.mem, limit, reterr);
    rc = rc < 0 ? rc : aq_pool_open(&r.pool, threads, reterr);
    if (rc == 0) {
        aq_numa_read(&topology);
        aq_numa_choose(&r.numa, &topology, (struct aq_numa_choice){.mode = AQ_NUMA_AUTO}, -1,
                       r.pool);
    }
    rc = rc < 0 ? rc : aq_rates_take(&scratch, &r, each * threads, 0, reterr);
    rc = rc < 0 ? rc : aq_rates_take(&codes, &r, code_bytes, 0, reterr);
    rc = rc < 0 ? rc : aq_exec_open(&r.exec, r.pool, scratch, each, reterr);
    rc = rc < 0 ? rc : aq_pool_open(&r.single, 1, reterr);
    rc = rc < 0 ? rc : aq_exec_open(&r.alone, r.single, scratch, each, reterr); /* in turns */
    if (rc == 0)
        aq_exec_lend_codes(r.exec, codes, code_bytes);
    if (rc < 0)
        aq_rates_rig_close(&r);
    else
        *ret = r;
    return rc;
}

void aq_rates_rig_close(struct aq_rates_rig *r)
{
    aq_exec_close(r->exec);
    aq_exec_close(r->alone);
    aq_pool_close(r->pool);
    aq_pool_close(r->single);
    for (uint32_t i = 0; i < r->block_count; i++)
        aq_mem_free(r->mem, AQ_HOST, "rates", r->block[i].at, r->block[i].bytes);
    aq_mem_close(r->mem);
}

/* ---- products ---------------------------------------------------------------------------- */

/* Panels of products that compute: some for each thread, if the weights are so many. */
static uint32_t flop_panels(const struct aq_rates_products *p, enum aq_dtype format)
{
    uint64_t most = aq_min_u64(p->weight_bytes / aq_panel_bytes(format, AQ_RATES_K), 512);
    return (uint32_t)aq_min_u64(most, aq_max_u64(AQ_RATES_PANELS, 4ull * p->rig->threads));
}

int aq_rates_products_open(struct aq_rates_products *ret, struct aq_rates_rig *r,
                           size_t weight_bytes, struct aq_err *reterr)
{
    struct aq_rates_products p = {.rig = r, .weight_bytes = weight_bytes};
    size_t x = (size_t)AQ_RATES_ROWS * AQ_RATES_K * sizeof(float);
    size_t y = (size_t)AQ_RATES_ROWS * MATRIX_PANELS * AQ_PANEL_ROWS * sizeof(float);
    int rc = aq_rates_take(&p.weights, r, weight_bytes, AQ_RATES_FILL_WEIGHTS, reterr);
    rc = rc < 0 ? rc : aq_rates_take(&p.x, r, x, AQ_RATES_FILL_ROWS, reterr);
    rc = rc < 0 ? rc : aq_rates_take(&p.y, r, y, 0, reterr);
    if (rc == 0)
        *ret = p;
    return rc;
}

/* Products of one matrix after the other, as a pass has them. */
struct product_call {
    const struct aq_rates_products *p;
    struct aq_exec *exec;
    struct aq_product product; /* of a whole matrix */
    uint32_t panels;           /* of all matrices together */
    size_t panel_bytes;
    bool on_codes;
};

static void run_product(void *arg)
{
    struct product_call *c = arg;
    const struct aq_kernels *k = c->p->rig->kernels;
    aq_product_fn *product = c->on_codes                     ? k->product_codes
                             : c->product.x_dtype == AQ_BF16 ? k->product_bf16
                                                             : k->product_f32;
    for (uint32_t first = 0; first < c->panels; first += MATRIX_PANELS) {
        uint32_t panels = (uint32_t)aq_min_u64(c->panels - first, MATRIX_PANELS);
        struct aq_segment segment = {c->p->weights + first * c->panel_bytes, 0,
                                     panels * AQ_PANEL_ROWS};
        c->product.segments = &segment;
        product(c->exec, &c->product);
    }
}

static struct product_call call_of(const struct aq_rates_products *p, enum aq_dtype compute,
                                   enum aq_dtype format, uint32_t panels, uint32_t rows)
{
    return (struct product_call){
        .p = p,
        .exec = p->rig->exec,
        .panels = panels,
        .panel_bytes = aq_panel_bytes(format, AQ_RATES_K),
        .on_codes = compute == AQ_Q8,
        .product =
            {
                .x = p->x,
                .x_dtype = compute == AQ_Q8 ? AQ_BF16 : compute,
                .m = rows,
                .k = AQ_RATES_K,
                .x_stride = AQ_RATES_K,
                .segment_count = 1,
                .w_dtype = format,
                .w_layout = aq_layout_cpu(format),
                .y = p->y,
                .y_dtype = AQ_F32,
                .y_stride = (size_t)MATRIX_PANELS * AQ_PANEL_ROWS,
            },
    };
}

static double call_flops(const struct product_call *c)
{
    return 2.0 * c->product.m * c->panels * AQ_PANEL_ROWS * c->product.k;
}

/* Rows of products that compute: the reference takes about a nanosecond a product. */
static uint32_t flop_rows(const struct aq_rates_products *p)
{
    return p->rig->kernels->isa & AQ_ISA_AVX2 ? AQ_RATES_ROWS : 1;
}

struct aq_sample aq_rates_product_flops(const struct aq_rates_products *p, enum aq_dtype compute,
                                        enum aq_dtype format)
{
    uint32_t panels = flop_panels(p, format);
    struct product_call c = call_of(p, compute, format, panels, flop_rows(p));
    assert(panels >= AQ_RATES_PANELS);
    return aq_rates_repeat(p->rig, run_product, &c, call_flops(&c));
}

struct aq_sample aq_rates_product_bytes(const struct aq_rates_products *p, enum aq_dtype compute,
                                        enum aq_dtype format, size_t bytes)
{
    size_t panel = aq_panel_bytes(format, AQ_RATES_K);
    uint32_t panels = (uint32_t)(bytes / panel);
    assert(panels > 0 && bytes <= p->weight_bytes);
    struct product_call c = call_of(p, compute, format, panels, 1);
    return aq_rates_repeat(p->rig, run_product, &c, (double)panels * (double)panel);
}

/* Of a product of that many rows: as many as flops_max allows, and some for each thread. */
static uint32_t panels_within(const struct aq_rates_products *p, uint32_t panels, uint32_t rows)
{
    double each = 2.0 * rows * AQ_PANEL_ROWS * AQ_RATES_K;
    double most = fmax(p->rig->flops_max / each, 4.0 * p->rig->threads);
    return p->rig->flops_max > 0 && most < panels ? (uint32_t)most : panels;
}

static double timed(struct product_call *c)
{
    double start = aq_clock_s();
    run_product(c);
    return aq_clock_s() - start;
}

/* Of a round, what products of more rows reach of what its product of one row and the computing one
 * before each promise: both as the machine was just then.  What was swept in between has put the
 * computing product out of the caches, where its rate is measured: it runs once more. */
static void take_round(struct product_call *computes, struct product_call *one,
                       struct product_call *many, double overlap, double *share)
{
    double memory_s = timed(one);
    for (uint32_t i = 0; i < AQ_HW_ROWS; i++) {
        run_product(computes);
        double flop_s = timed(computes) / call_flops(computes);
        double s = timed(&many[i]), flops_s = flop_s * call_flops(&many[i]);
        double read_s = memory_s * many[i].panels / one->panels;
        double promised = fmax(flops_s, read_s) + (1 - overlap) * fmin(flops_s, read_s);
        /* Who was held up in one of the times says nothing beyond this. */
        share[i] = s > 0 ? fmin(fmax(promised / s, 0.01), 4) : 1;
    }
}

/* What K changes lies in the kernel, and others on the machine only hide it: the best times count.
 * A short sum is not the faster one; where it was, the other one was held up. */
struct aq_sample aq_rates_short_share(const struct aq_rates_products *p, enum aq_dtype compute)
{
    double share[ROUNDS_MAX], begin = aq_clock_s(), best_s[2] = {INFINITY, INFINITY};
    uint32_t panels = flop_panels(p, compute), rounds = 0;
    struct product_call usual = call_of(p, compute, compute, panels, flop_rows(p)), brief = usual;
    struct aq_sample found = {0};
    brief.product.k = AQ_HW_K_SHORT;
    brief.product.x_stride = AQ_HW_K_SHORT;
    brief.panel_bytes = aq_panel_bytes(compute, AQ_HW_K_SHORT);
    timed(&usual);
    timed(&brief);
    while (rounds < ROUNDS_MAX &&
           (rounds < REPEATS_MIN ||
            aq_clock_s() - begin < aq_rates_until_s(p->rig->long_s, found.spread))) {
        double usual_s = timed(&usual) / call_flops(&usual);
        double brief_s = timed(&brief) / call_flops(&brief);
        best_s[0] = fmin(best_s[0], usual_s);
        best_s[1] = fmin(best_s[1], brief_s);
        share[rounds++] = brief_s > 0 ? usual_s / brief_s : 1;
        found = aq_sample_of(share, rounds);
    }
    found.median = best_s[1] > 0 ? fmin(fmax(best_s[0] / best_s[1], 0.5), 1) : 1;
    return found;
}

struct aq_sample aq_rates_product_alone(const struct aq_rates_products *p, enum aq_dtype compute)
{
    double share[ROUNDS_MAX], begin = aq_clock_s();
    uint32_t panels = (uint32_t)(p->weight_bytes / aq_panel_bytes(compute, AQ_RATES_K)), rounds = 0;
    struct product_call all = call_of(p, compute, compute, panels, 1), alone = all;
    struct aq_sample found = {0};
    alone.exec = p->rig->alone;
    timed(&all);
    while (rounds < ROUNDS_MAX &&
           (rounds < REPEATS_MIN ||
            aq_clock_s() - begin < aq_rates_until_s(p->rig->long_s, found.spread))) {
        double all_s = timed(&all), alone_s = timed(&alone);
        share[rounds++] = alone_s > 0 ? fmin(all_s / alone_s, 1) : 1;
        found = aq_sample_of(share, rounds);
    }
    return found;
}

void aq_rates_product_shares(struct aq_sample ret[AQ_HW_ROWS], const struct aq_rates_products *p,
                             enum aq_dtype compute, enum aq_dtype format, size_t bytes,
                             double overlap)
{
    double share[AQ_HW_ROWS][ROUNDS_MAX], begin = aq_clock_s(), round[AQ_HW_ROWS];
    uint32_t panels = (uint32_t)(bytes / aq_panel_bytes(format, AQ_RATES_K)), rounds = 0;
    struct product_call computes =
                            call_of(p, compute, compute, flop_panels(p, compute), AQ_RATES_ROWS),
                        one = call_of(p, compute, format, panels, 1), many[AQ_HW_ROWS];
    assert(panels > 0 && bytes <= p->weight_bytes && flop_rows(p) > 1);
    for (uint32_t i = 0; i < AQ_HW_ROWS; i++)
        many[i] =
            call_of(p, compute, format, panels_within(p, panels, aq_hw_rows[i]), aq_hw_rows[i]);
    take_round(&computes, &one, many, overlap, round); /* warms up, if that is not long enough */
    bool slow = aq_clock_s() - begin > AQ_RATES_SLOW_S;
    double spread = 0;
    while (rounds < (slow ? 1 : ROUNDS_MAX) &&
           (rounds < ROUNDS_MIN ||
            aq_clock_s() - begin < aq_rates_until_s(2 * p->rig->long_s, spread))) {
        if (!slow)
            take_round(&computes, &one, many, overlap, round);
        spread = 0;
        rounds++;
        for (uint32_t i = 0; i < AQ_HW_ROWS; i++) {
            share[i][rounds - 1] = round[i];
            ret[i] = aq_sample_of(share[i], rounds);
            spread = fmax(spread, ret[i].spread);
        }
    }
}

/* ---- other passes over memory ------------------------------------------------------------ */

struct unpack_call {
    const struct aq_rates_rig *rig;
    struct aq_unpack u;
};

static void run_unpack(void *arg)
{
    struct unpack_call *c = arg;
    c->rig->kernels->unpack(c->rig->exec, &c->u);
}

struct aq_sample aq_rates_unpack_bytes(const struct aq_rates_products *p, enum aq_dtype format,
                                       enum aq_dtype compute, void *dst, size_t dst_bytes)
{
    size_t panel = aq_panel_bytes(format, AQ_RATES_K);
    uint64_t panels =
        aq_min_u64(p->weight_bytes / panel, dst_bytes / aq_panel_bytes(compute, AQ_RATES_K));
    struct unpack_call c = {p->rig,
                            {.src = p->weights,
                             .dst = dst,
                             .src_dtype = format,
                             .dst_dtype = compute,
                             .panels = (uint32_t)panels,
                             .k = AQ_RATES_K}};
    return aq_rates_repeat(p->rig, run_unpack, &c, (double)panels * (double)panel);
}

struct read_call {
    const struct aq_rates_products *p;
    uint64_t *sum; /* by worker, a cache line apart: what was read must be used */
};

static void read_tile(void *arg, uint32_t tile, uint32_t worker)
{
    const struct read_call *c = arg;
    const uint64_t *at = (const void *)(c->p->weights + (size_t)tile * READ_TILE);
    uint64_t sum[8] = {0};
    for (size_t i = 0; i < READ_TILE / sizeof(*at); i += 8) {
        for (size_t j = 0; j < 8; j++)
            sum[j] += at[i + j];
    }
    for (size_t j = 0; j < 8; j++)
        c->sum[8 * worker] += sum[j];
}

static void run_read(void *arg)
{
    struct read_call *c = arg;
    aq_pool_run(c->p->rig->pool, read_tile, c, (uint32_t)(c->p->weight_bytes / READ_TILE));
}

struct aq_sample aq_rates_read_bytes(const struct aq_rates_products *p)
{
    uint64_t sum[8 * AQ_THREADS_MAX] = {0};
    struct read_call c = {p, sum};
    return aq_rates_repeat(p->rig, run_read, &c, (double)(p->weight_bytes / READ_TILE * READ_TILE));
}
