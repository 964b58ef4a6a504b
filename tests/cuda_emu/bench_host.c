/* SPDX-License-Identifier: Apache-2.0
 * What issuing a decode pass costs the host:  bench_host [SEATS [HEAD-BLOCKS [LAYERS [sent]]]]
 *
 * The lane describes and launches all layers of a resident pass of OPT-6.7B's shape, four layers to
 * a list as bundles do.  The module is the emulated one (AQ_CUDA_MODULE) with kernels that do
 * nothing, so that the time is the lane's: tables, lists, their hashes and lookups.  Neither the
 * driver's time nor that of describing sequences in the engine is in it.  In each pass one seat in
 * 32 takes another head-block, of which the tables on the device are told; with "sent" no tables
 * are there, and those of all seats are sent in every pass. */
#include "base/clock.h"
#include "engine/compute/cuda_lane.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HEADS = 32, HEAD_DIM = 128, HIDDEN = 4096, INNER = 16384, PASSES = 200, LISTS = 4 };
enum { RANGES = 20 }; /* of memory, that an engine has */

#define NOTHING(name, params)                                                                      \
    static int no_##name(const struct aq_cuda_exec *ex, const struct params *p)                    \
    {                                                                                              \
        (void)ex;                                                                                  \
        (void)p;                                                                                   \
        return 0;                                                                                  \
    }
AQ_CUDA_KERNELS(NOTHING)
#undef NOTHING

static uint64_t desk_bytes_sent;

static int no_copy_pieces(const struct aq_cuda_exec *ex, const struct aq_copy_piece *pieces,
                          uint32_t count)
{
    (void)ex;
    for (uint32_t i = 0; i < count; i++)
        desk_bytes_sent += pieces[i].bytes;
    return 0;
}

static size_t no_workspace(const struct aq_attn *a)
{
    (void)a;
    return 1;
}

static struct {
    struct aq_cuda cuda;
    struct aq_cuda_module module;
    struct aq_cuda_kernels kernels;
    struct aq_mem *mem;
    struct aq_device *device;
    void *stream, *event;
    struct aq_compute_cuda *lane;
    uint8_t *there; /* all arrays of the device: nobody reads them */
    uint32_t seats, runs, layers;
    bool sent;
    uint8_t **table; /* [layer][seat][run], pinned */
    struct aq_attn_seq *seq;
    uint32_t *len;
} b;

static int fail(const char *what, const struct aq_err *err)
{
    fprintf(stderr, "%s: %s\n", what, err->text);
    return 1;
}

static size_t tables_bytes(void)
{
    return (size_t)b.layers * b.seats * b.runs * sizeof(*b.table);
}

static int open_lane(struct aq_err *err)
{
    uint64_t limits[AQ_TIER_COUNT] = {UINT64_MAX, UINT64_MAX, UINT64_MAX};
    int rc = aq_cuda_open(&b.cuda, getenv("AQ_CUDA_MODULE"), 0, err);
    if (rc < 0)
        return rc;
    const struct aq_gpu_ops *gpu = b.cuda.module->gpu;
    b.module = *b.cuda.module;
    b.kernels = *b.module.kernels;
#define NOTHING(name, params) b.kernels.name = no_##name;
    AQ_CUDA_KERNELS(NOTHING)
#undef NOTHING
    b.kernels.copy_pieces = no_copy_pieces;
    b.kernels.attn_decode_workspace = no_workspace;
    b.module.kernels = &b.kernels;
    b.cuda.module = &b.module;
    struct aq_device_opts opts = {.kind = AQ_DEVICE_GPU, .gpu_ops = gpu, .gpu = b.cuda.gpu};
    rc = aq_mem_open(&b.mem, limits, err);
    opts.mem = b.mem;
    rc = rc < 0 ? rc : aq_device_open(&b.device, &opts, err);
    if (rc < 0 || gpu->stream_open(b.cuda.gpu, &b.stream, false) ||
        gpu->event_open(b.cuda.gpu, &b.event))
        return rc < 0 ? rc : -EIO;
    void *range;
    for (int i = 0; i < RANGES && rc == 0; i++)
        rc = aq_device_alloc(&range, b.device, i % 2 ? AQ_MEMORY_PINNED : AQ_MEMORY_DEVICE, "range",
                             4096, err);
    rc = rc < 0 ? rc
                : aq_device_alloc((void **)&b.there, b.device, AQ_MEMORY_DEVICE, "arrays",
                                  64 * AQ_MIB, err);
    rc = rc < 0 ? rc
                : aq_device_alloc((void **)&b.table, b.device, AQ_MEMORY_PINNED, "tables",
                                  tables_bytes(), err);
    static const struct aq_model_steps none = {0}; /* no product is tried */
    struct aq_compute_cuda_opts lane = {
        .cuda = &b.cuda,
        .device = b.device,
        .sizes = {.desk_bytes = aq_align_up(
                      b.seats * (AQ_GPU_SEQ_BYTES + 2ull * b.runs * sizeof(void *)) * 2, 4096),
                  .sums_bytes = 64 * AQ_MIB,
                  .unpacked_bytes = AQ_MIB,
                  .workspace_bytes = AQ_MIB,
                  .tables_bytes = b.sent ? 0 : tables_bytes(),
                  .stats_bytes = 4096,
                  .logits_bytes = 4096,
                  .graphs_bytes = 64 * AQ_MIB},
        .steps = &none,
        .compute = AQ_F16,
        .seats = b.seats,
    };
    rc = rc < 0 ? rc : aq_compute_cuda_open(&b.lane, &lane, err);
    if (rc == 0)
        aq_compute_cuda_tables(b.lane, b.table);
    return rc;
}

static void multiply(uint32_t k, uint32_t n, enum aq_dtype y, enum aq_combine combine)
{
    struct aq_segment s = {.panels = b.there, .rows = n};
    struct aq_product p = {.x = b.there,
                           .x_dtype = AQ_F16,
                           .m = b.seats,
                           .k = k,
                           .x_stride = k,
                           .segments = &s,
                           .segment_count = 1,
                           .w_dtype = AQ_F16,
                           .bias = (const float *)b.there,
                           .combine = combine,
                           .y = b.there,
                           .y_dtype = y,
                           .y_stride = n};
    aq_compute_product(aq_compute_cuda_base(b.lane), &p);
}

static void normalise(void)
{
    const struct aq_compute *c = aq_compute_cuda_base(b.lane);
    struct aq_norm n = {.x = (const float *)b.there,
                        .y = b.there,
                        .y_dtype = AQ_F16,
                        .w = (const float *)b.there,
                        .rows = b.seats,
                        .dim = HIDDEN};
    c->kernels->norm(c->exec, &n);
}

static void attention_half(uint32_t layer)
{
    const struct aq_compute *c = aq_compute_cuda_base(b.lane);
    struct aq_attn a = {.seqs = b.seq,
                        .q = (const float *)b.there,
                        .q_stride = HIDDEN,
                        .out = b.there,
                        .out_stride = HIDDEN,
                        .k_new = (const float *)b.there,
                        .v_new = (const float *)b.there,
                        .new_stride = HIDDEN,
                        .seq_count = b.seats,
                        .out_dtype = AQ_F16,
                        .kv_dtype = AQ_F16,
                        .kv_heads = HEADS,
                        .q_per_kv = 1,
                        .head_dim = HEAD_DIM,
                        .scale = 1};
    normalise();
    multiply(HIDDEN, 3 * HIDDEN, AQ_F32, AQ_COMBINE_SET);
    for (uint32_t i = 0; i < b.seats; i++)
        b.seq[i].block = b.table + ((size_t)layer * b.seats + i) * b.runs;
    c->kernels->kv_append(c->exec, &a);
    c->kernels->attn_decode(c->exec, &a);
    multiply(HIDDEN, HIDDEN, AQ_F32, AQ_COMBINE_ADD);
}

static void mlp_half(void)
{
    normalise();
    multiply(HIDDEN, INNER, AQ_F16, AQ_COMBINE_SET);
    multiply(INNER, HIDDEN, AQ_F32, AQ_COMBINE_ADD);
}

/* Seats that take another head-block in this pass. */
static void grow(uint32_t pass)
{
    for (uint32_t i = pass % 32; i < b.seats && !b.sent; i += 32) {
        for (uint32_t layer = 0; layer < b.layers; layer++)
            aq_compute_cuda_changed(b.lane, b.table + ((size_t)layer * b.seats + i) * b.runs,
                                    sizeof(*b.table));
    }
}

static int run_pass(void)
{
    uint32_t op = 0;
    const char *what, *why;
    for (uint32_t first = 0; first < b.layers; first += LISTS) {
        aq_compute_cuda_begin(b.lane, b.stream, AQ_GPU_BUNDLE_DESKS, true);
        for (uint32_t layer = first; layer < first + LISTS && layer < b.layers; layer++) {
            aq_compute_cuda_next(b.lane, op++);
            attention_half(layer);
            aq_compute_cuda_next(b.lane, op++);
            mlp_half();
        }
        if (aq_compute_cuda_end(b.lane, &op, &what, &why) < 0) {
            fprintf(stderr, "%s: %s\n", what, why);
            return 1;
        }
    }
    return b.module.gpu->record(b.cuda.gpu, b.event, b.stream) ||
           b.module.gpu->wait(b.cuda.gpu, b.event);
}

static int compare(const void *x, const void *y)
{
    double a = *(const double *)x, c = *(const double *)y;
    return a < c ? -1 : a > c;
}

int main(int argc, char **argv)
{
    static double ms[PASSES];
    struct aq_err err = {0};
    b.seats = argc > 1 ? (uint32_t)atoi(argv[1]) : 256;
    b.runs = argc > 2 ? (uint32_t)atoi(argv[2]) : 24;
    b.layers = argc > 3 ? (uint32_t)atoi(argv[3]) : 32;
    b.sent = argc > 4 && strcmp(argv[4], "sent") == 0;
    size_t entries = (size_t)b.layers * b.seats * b.runs;
    if (!entries || open_lane(&err) < 0)
        return fail("bench_host", &err);
    b.seq = calloc(b.seats, sizeof(*b.seq));
    b.len = calloc(b.seats, sizeof(*b.len));
    if (!b.seq || !b.len)
        return 4;
    for (size_t i = 0; i < entries; i++)
        b.table[i] = b.there + i % 4096;
    for (uint32_t i = 0; i < b.seats; i++) {
        b.len[i] = b.runs * AQ_HEAD_BLOCK_SLOTS;
        b.seq[i] = (struct aq_attn_seq){.len = &b.len[i], .row = i, .rows = 1};
    }
    for (int i = 0; i < PASSES; i++) {
        uint64_t begin = aq_clock_ns();
        desk_bytes_sent = 0;
        grow((uint32_t)i);
        if (run_pass())
            return 1;
        ms[i] = (double)(aq_clock_ns() - begin) * 1e-6;
    }
    qsort(ms, PASSES, sizeof(*ms), compare);
    printf(
        "%u seats, %u head-blocks each, %u layers: median %.3f ms a pass (best %.3f, 90 %% below "
        "%.3f), %.2f MB of desks\n",
        b.seats, b.runs, b.layers, ms[PASSES / 2], ms[0], ms[PASSES * 9 / 10],
        (double)desk_bytes_sent * 1e-6);
    return 0;
}
