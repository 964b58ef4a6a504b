/* SPDX-License-Identifier: Apache-2.0
 * The products' loops: see gemm.h. */
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/codes.h"

#include <assert.h>
#include <math.h>
#include <string.h>
#if AQ_ADDRESS_SANITIZED
#include <sanitizer/asan_interface.h>
#endif

/* Threads that end further apart by less than this share of the time are left so: where 4 panels
 * became 2 for 4 % (2304 columns, K = 768), f32 gained about 1 % and bf16 lost as much. */
#define SHARING_SAVES 0.05

struct job {
    struct aq_exec *ex;
    const struct aq_product *p;
    const struct aq_gemm_ops *ops;
    uint32_t tile_count, chunk_count, chunk_rows;
    uint32_t panel_count, panels; /* of the product, of a tile */
    uint32_t block_k, block_count;
    bool convert, widen;
    bool pairs; /* of struct aq_gemm_step */
    bool few;   /* rows: blocks for L1 */
    _Alignas(64) struct aq_claims claims;
};

struct tile {
    uint32_t panel, panels; /* the first one, and how many */
    uint32_t row, rows;
};

struct panel {
    const char *w;
    uint32_t column, columns;
};

/* Chunks of rows vary fastest: workers that share a panel meet it in a common cache. */
static struct tile tile_of(const struct job *j, uint32_t index)
{
    uint32_t panel = index / j->chunk_count * j->panels;
    uint32_t row = index % j->chunk_count * j->chunk_rows;
    return (struct tile){.panel = panel,
                         .panels = (uint32_t)aq_min_u64(j->panels, j->panel_count - panel),
                         .row = row,
                         .rows = (uint32_t)aq_min_u64(j->chunk_rows, j->p->m - row)};
}

static struct panel panel_of(const struct job *j, uint32_t panel)
{
    const struct aq_product *p = j->p;
    const struct aq_segment *s = p->segments;
    for (; panel >= aq_panel_count(s->rows); s++)
        panel -= aq_panel_count(s->rows);
    uint32_t first = panel * AQ_PANEL_ROWS;
    return (struct panel){.w = (const char *)s->panels + panel * aq_panel_bytes(p->w_dtype, p->k),
                          .column = s->column + first,
                          .columns = (uint32_t)aq_min_u64(AQ_PANEL_ROWS, s->rows - first)};
}

/* The rows of a chunk split into groups that differ by one row at most: a short group costs as many
 * loads of weights as a long one. */
static uint32_t group_end(const struct aq_gemm_ops *ops, uint32_t rows, uint32_t groups,
                          uint32_t group)
{
    if (ops->whole_steps)
        return (uint32_t)aq_min_u64(rows, (uint64_t)ops->step_rows * (group + 1));
    return (uint32_t)((uint64_t)rows * (group + 1) / groups);
}

struct block {
    uint32_t k, first_k;
    const void *w, *x; /* in the compute type */
    size_t x_stride;
    const char *ahead;
    uint32_t ahead_bytes;
    bool near;
    bool codes; /* w is as it lies in the panel, quantised */
    struct panel panel;
    uint32_t *tile_rows; /* of struct aq_gemm_step */
};

/* Asks for the outputs that rows [row, row + rows) are stored to, or added to or multiplied with:
 * they lie far apart, and a step takes longer than they do to come.  (Inlined, since GCC takes a
 * function that does no more for one without effect, and its calls away.) */
static inline __attribute__((always_inline)) void
ask_outputs(const struct aq_product *p, const struct panel *panel, uint32_t row, uint32_t rows)
{
    size_t size = aq_dtype_bytes(p->y_dtype), bytes = panel->columns * size;
    for (uint32_t r = row; r < row + rows; r++) {
        const char *y = (const char *)p->y + (r * p->y_stride + panel->column) * size;
        for (size_t i = 0; i < bytes; i += AQ_GEMM_LINE)
            __builtin_prefetch(y + i, 1, 3);
    }
}

/* One K block of a panel: all groups of rows of the tile. */
static void run_block(const struct job *j, const struct tile *t, const struct block *b, float *sums)
{
    uint32_t groups = (uint32_t)aq_div_up(t->rows, j->ops->step_rows), row = 0;
    size_t x_size = j->ops->code_bytes ? 1 : aq_dtype_bytes(j->ops->compute);
    bool last = b->first_k + b->k == j->p->k;
    for (uint32_t g = 0; g < groups; g++) {
        uint32_t end = group_end(j->ops, t->rows, groups, g);
        uint32_t from = (uint32_t)((uint64_t)b->ahead_bytes * g / groups);
        uint32_t to = (uint32_t)((uint64_t)b->ahead_bytes * (g + 1) / groups);
        const struct aq_gemm_step step = {.x = (const char *)b->x + row * b->x_stride * x_size,
                                          .x_stride = b->x_stride,
                                          .w = b->w,
                                          .rows = end - row,
                                          .k = b->k,
                                          .sums = sums + (size_t)row * AQ_PANEL_ROWS,
                                          .first = b->first_k == 0,
                                          .ahead = b->ahead ? b->ahead + from : NULL,
                                          .ahead_bytes = to - from,
                                          .near = b->near,
                                          .pairs = j->pairs,
                                          .tile_rows = b->tile_rows};
        if (last)
            ask_outputs(j->p, &b->panel, t->row + row, step.rows);
        if (b->codes)
            j->ops->step_codes(&step, j->p->w_dtype, j->p->x_dtype == AQ_BF16);
        else
            j->ops->step(&step);
        if (last) {
            const struct aq_gemm_finish f = {.p = j->p,
                                             .sums = step.sums,
                                             .row = t->row + row,
                                             .rows = step.rows,
                                             .column = b->panel.column,
                                             .columns = b->panel.columns};
            j->ops->finish(&f);
        }
        row = end;
    }
}

/* Bytes of columns [first, first + k) of a panel. */
static size_t block_bytes(const struct aq_product *p, uint32_t first, uint32_t k)
{
    return aq_panel_offset(p->w_dtype, first + k) - aq_panel_offset(p->w_dtype, first);
}

/* The weights to fetch while block b is worked on, before those at `next` (NULL: there are none).
 * Several groups of rows: all of them, spread over the groups.  One group: weights are used once,
 * as they come, so stay a little ahead of the use; conversion does that by itself. */
static void look_ahead(const struct job *j, const struct tile *t, struct block *b, const char *next)
{
    size_t bytes = block_bytes(j->p, b->first_k, b->k);
    bool jump = next != (const char *)b->w + bytes;
    if (t->rows > j->ops->step_rows) {
        b->ahead = next;
        b->ahead_bytes = b->ahead ? (uint32_t)bytes : 0;
        b->near = j->ops->near && j->few;
        return;
    }
    if (jump && next)
        aq_gemm_ask(&next, j->ops->stream_ahead / AQ_GEMM_LINE, j->ops->near);
    if (j->convert)
        return;
    b->near = j->ops->near;
    b->ahead = (const char *)b->w + j->ops->stream_ahead;
    if (jump)
        bytes -= aq_min_u64(bytes, j->ops->stream_ahead);
    b->ahead_bytes = (uint32_t)bytes;
}

/* Is one step, straight from the codes, all that this many rows need? */
static bool takes_codes(const struct job *j, uint32_t rows)
{
    return aq_dtype_is_quantised(j->p->w_dtype) && rows <= j->ops->step_codes_rows;
}

/* What a worker has: its scratch, and the state of its steps. */
struct worker {
    float *sums; /* [panels of a tile][chunk_rows][64] */
    void *converted;
    float *wide;
    uint32_t tile_rows;
};

static struct worker open_worker(const struct job *j, uint32_t worker)
{
    char *scratch = aq_exec_scratch(j->ex, worker);
    size_t sums = (size_t)j->ops->panels * j->ops->chunk_rows * AQ_PANEL_ROWS * sizeof(float);
    return (struct worker){.sums = (float *)(void *)scratch,
                           .converted = scratch + sums,
                           .wide = (float *)(void *)(scratch + sums + AQ_GEMM_BLOCK_BYTES)};
}

/* Block i of panel q of a tile; next: the weights that come after it. */
static void run_panel(const struct job *j, const struct tile *t, uint32_t i, uint32_t q,
                      const char *next, struct worker *w)
{
    const struct aq_product *p = j->p;
    struct block b = {.panel = panel_of(j, t->panel + q),
                      .first_k = i * j->block_k,
                      .x_stride = p->x_stride,
                      .tile_rows = &w->tile_rows};
    b.k = (uint32_t)aq_min_u64(j->block_k, p->k - b.first_k);
    b.w = b.panel.w + aq_panel_offset(p->w_dtype, b.first_k);
    if (j->ops->code_bytes)
        b.x = (const char *)p->x + t->row * p->x_stride +
              b.first_k / AQ_GROUP_K * aq_codes_x_group(j->ops->code_bytes);
    else
        b.x = (const char *)p->x + (t->row * p->x_stride + b.first_k) * aq_dtype_bytes(p->x_dtype);
    look_ahead(j, t, &b, next);
    b.codes = takes_codes(j, t->rows);
    if (j->convert && !b.codes) {
        j->ops->convert(w->converted, b.w, p->w_dtype, p->x_dtype == AQ_BF16, b.k);
        b.w = w->converted;
    }
    if (j->widen) { /* once for the panels of the tile */
        if (q == 0)
            j->ops->widen(w->wide, b.x, p->x_stride, t->rows, b.k);
        b.x = w->wide;
        b.x_stride = b.k;
    }
    run_block(j, t, &b, w->sums + (size_t)q * j->chunk_rows * AQ_PANEL_ROWS);
}

static void run_tile(const struct job *j, const struct tile *t, const char *next_panel,
                     struct worker *w)
{
    for (uint32_t i = 0; i < j->block_count; i++) {
        for (uint32_t q = 0; q < t->panels; q++) {
            uint32_t next_q = (q + 1) % t->panels, next_i = i + !next_q;
            const char *next = next_panel;
            if (next_i < j->block_count)
                next = panel_of(j, t->panel + next_q).w +
                       aq_panel_offset(j->p->w_dtype, (uint64_t)next_i * j->block_k);
            run_panel(j, t, i, q, next, w);
        }
    }
}

static void work(void *arg, uint32_t index, uint32_t worker)
{
    struct job *j = arg;
    struct worker w = open_worker(j, worker);
    const struct aq_pool *pool = aq_exec_pool(j->ex);
    uint32_t now = aq_claims_next(&j->claims, pool, worker);
    /* A tile is claimed ahead of the one that is worked on, to know what to prefetch. */
    while (now != AQ_NO_TILE) {
        uint32_t next = aq_claims_next(&j->claims, pool, worker);
        struct tile t = tile_of(j, now);
        const char *next_panel = NULL;
        if (next != AQ_NO_TILE && tile_of(j, next).panel != t.panel)
            next_panel = panel_of(j, tile_of(j, next).panel).w;
        run_tile(j, &t, next_panel, &w);
        now = next;
    }
    if (j->ops->leave)
        j->ops->leave();
}

/* Chunks as long as possible (weights then move least often), but enough tiles for every thread to
 * have several: few panels are cut into more chunks of rows.  The sums of one output are never
 * split. */
static void cut(struct job *j, uint32_t threads)
{
    uint32_t m = j->p->m, wanted = threads == 1 ? 1 : 6 * threads, rows_min = 4 * j->ops->step_rows;
    uint32_t chunks = (uint32_t)aq_div_up(m, j->ops->chunk_rows);
    uint32_t more = (uint32_t)aq_div_up(wanted, j->panel_count);
    uint32_t most = (uint32_t)aq_div_up(m, rows_min);
    if (chunks < more)
        chunks = more < most ? more : most;
    j->chunk_rows = (uint32_t)aq_div_up(m, chunks);
    if (j->chunk_rows > j->ops->step_rows)
        j->chunk_rows = (uint32_t)aq_align_up(j->chunk_rows, j->ops->step_rows);
    j->chunk_count = (uint32_t)aq_div_up(m, j->chunk_rows);
}

/* Blocks of equal length: a short last one would cost a pass over the sums for little.  One group
 * of rows uses a block once, so that its size only matters if it is converted first. */
static void cut_k(struct job *j)
{
    uint32_t k = j->p->k, most = j->ops->block_k;
    enum aq_dtype taken = j->pairs ? AQ_BF16 : j->ops->compute;
    size_t column_bytes = j->ops->code_bytes ? aq_codes_w_group(j->ops->code_bytes) / AQ_GROUP_K
                                             : AQ_PANEL_ROWS * aq_dtype_bytes(taken);
    j->few = j->chunk_rows <= j->ops->few_rows;
    if (j->few && !takes_codes(j, j->chunk_rows) &&
        (j->convert || j->pairs || j->chunk_rows > j->ops->step_rows))
        most = (uint32_t)(AQ_GEMM_FEW_BLOCK_BYTES / column_bytes);
    uint32_t count = (uint32_t)aq_div_up(k, most);
    j->block_k = (uint32_t)aq_align_up(aq_div_up(k, count), AQ_GROUP_K);
    j->block_count = (uint32_t)aq_div_up(k, j->block_k);
}

/* Panels that share blocks of x, where x has several; but several tiles for every thread.  Fewer
 * panels share, too, where the threads would end further apart otherwise: 9 tiles of 4 panels take
 * two threads as long as 10. */
static void cut_panels(struct job *j, uint32_t threads)
{
    uint32_t most = j->block_count > 1 && !j->few ? j->ops->panels : 1;
    double least = INFINITY; /* panels that a thread takes one after the other */
    for (uint32_t panels = most; panels; panels /= 2) {
        uint32_t tiles = (uint32_t)aq_div_up(j->panel_count, panels) * j->chunk_count;
        double longest = (double)aq_div_up(tiles, threads) * panels;
        bool few_tiles = panels > 1 && tiles < (uint64_t)4 * threads;
        if (few_tiles || longest >= least * (1 - SHARING_SAVES))
            continue;
        least = longest;
        j->panels = panels;
        j->tile_count = tiles;
    }
}

/* Under AddressSanitizer steps are not instrumented (kernels/meson.build): what they may touch is
 * looked at as a whole, and a byte that they may not is touched here, for the sanitizer's own
 * report. */
static void may_touch(const void *at, size_t bytes)
{
#if AQ_ADDRESS_SANITIZED
    const volatile char *bad = __asan_region_is_poisoned((void *)at, bytes);
    if (bad)
        (void)*bad;
#endif
}

static void look_at_product(const struct aq_product *p, bool codes)
{
    size_t x_bytes = aq_dtype_bytes(p->x_dtype), y_bytes = aq_dtype_bytes(p->y_dtype);
    for (uint32_t r = 0; r < p->m && !codes; r++)
        may_touch((const char *)p->x + r * p->x_stride * x_bytes, p->k * x_bytes);
    for (uint32_t i = 0; i < p->segment_count; i++) {
        const struct aq_segment *s = &p->segments[i];
        may_touch(s->panels, aq_panel_count(s->rows) * aq_panel_bytes(p->w_dtype, p->k));
        if (p->bias)
            may_touch(p->bias + s->column, s->rows * sizeof(*p->bias));
        for (uint32_t r = 0; r < p->m; r++)
            may_touch((char *)p->y + (r * p->y_stride + s->column) * y_bytes, s->rows * y_bytes);
    }
}

static void look_at_unpack(const struct aq_unpack *u)
{
    may_touch(u->src, u->panels * aq_panel_bytes(u->src_dtype, u->k));
    may_touch(u->dst, u->panels * aq_panel_bytes(u->dst_dtype, u->k));
}

void aq_gemm_run(struct aq_exec *ex, const struct aq_product *p, const struct aq_gemm_ops *ops)
{
    assert(p->w_layout == aq_layout_cpu(p->w_dtype));
    assert(p->combine != AQ_COMBINE_ADD || p->y_dtype == AQ_F32);
    assert(aq_exec_scratch_size(ex) >= AQ_GEMM_SCRATCH_BYTES);
    assert(p->k > 0);
    struct job j = {
        .ex = ex, .p = p, .ops = ops, .widen = ops->widen && p->x_dtype != ops->compute};
    for (uint32_t i = 0; i < p->segment_count; i++)
        j.panel_count += aq_panel_count(p->segments[i].rows);
    if (!p->m || !j.panel_count)
        return;
    if (AQ_ADDRESS_SANITIZED)
        look_at_product(p, ops->code_bytes > 0);
    uint32_t threads = aq_pool_threads(aq_exec_pool(ex));
    /* f32 weights of a bf16 product are rounded even where the arithmetic is f32. */
    j.convert = ops->code_bytes || p->w_dtype != ops->compute || (j.widen && p->w_dtype == AQ_F32);
    cut(&j, threads);
    j.pairs = p->w_dtype == AQ_BF16 && j.chunk_rows <= ops->step_pairs_rows;
    j.convert &= !j.pairs;
    cut_k(&j);
    cut_panels(&j, threads);
    aq_claims_open(&j.claims, aq_exec_pool(ex), j.tile_count / j.chunk_count, j.chunk_count);
    aq_pool_run(aq_exec_pool(ex), work, &j, aq_claims_entries(aq_exec_pool(ex), j.tile_count));
}

/* ---- unpacking ---- */

enum { UNPACK_K = 512 }; /* columns of a tile: a block of scratch in f32 */

struct unpack_job {
    struct aq_exec *ex;
    const struct aq_unpack *u;
    const struct aq_gemm_ops *ops;
    uint32_t tiles_per_panel;
};

static void unpack_tile(void *arg, uint32_t tile, uint32_t worker)
{
    const struct unpack_job *j = arg;
    const struct aq_unpack *u = j->u;
    uint32_t panel = tile / j->tiles_per_panel, first = tile % j->tiles_per_panel * UNPACK_K;
    uint32_t k = (uint32_t)aq_min_u64(UNPACK_K, u->k - first);
    const char *src = (const char *)u->src + panel * aq_panel_bytes(u->src_dtype, u->k) +
                      aq_panel_offset(u->src_dtype, first);
    char *dst = (char *)u->dst + panel * aq_panel_bytes(u->dst_dtype, u->k) +
                aq_panel_offset(u->dst_dtype, first);
    bool round = u->dst_dtype == AQ_BF16, narrow = round && j->ops->compute == AQ_F32;
    void *block = narrow ? aq_exec_scratch(j->ex, worker) : dst;
    if (u->src_dtype == u->dst_dtype)
        memcpy(dst, src, aq_panel_offset(u->src_dtype, round ? aq_align_up(k, 2) : k));
    else
        j->ops->convert(block, src, u->src_dtype, round, k);
    if (narrow && u->src_dtype != AQ_BF16)
        j->ops->narrow((uint16_t *)(void *)dst, block, k);
}

void aq_gemm_unpack(struct aq_exec *ex, const struct aq_unpack *u, const struct aq_gemm_ops *ops)
{
    assert(u->dst_dtype == AQ_F32 || u->dst_dtype == AQ_BF16);
    assert(u->dst_dtype == AQ_BF16 || ops->compute == AQ_F32);
    assert(aq_exec_scratch_size(ex) >= (size_t)UNPACK_K * AQ_PANEL_ROWS * sizeof(float));
    if (AQ_ADDRESS_SANITIZED)
        look_at_unpack(u);
    struct unpack_job j = {.ex = ex, .u = u, .ops = ops};
    j.tiles_per_panel = (uint32_t)aq_div_up(u->k, UNPACK_K);
    aq_pool_run(aq_exec_pool(ex), unpack_tile, &j, u->panels * j.tiles_per_panel);
}
