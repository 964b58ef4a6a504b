/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/machine/rates_gpu.h"

#include "base/clock.h"
#include "base/prng.h"
#include "offload/device.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    ROUNDS_MIN = 3,
    ROUNDS_MAX = 256,
    LAUNCHES_MAX = 64, /* between two events */
    OPS = 64,          /* in a stream at a time */
    WIDTH = 4096,      /* of a row of queries, and of KV */
    KEYS = 1024,       /* of a sequence that decodes */
    PREFILL = 2048,    /* rows of the longest prompt */
    FILL_WORDS = 1 << 19,
};
/* A head-block of each KV head; as long with heads of AQ_HW_HEAD, which are more. */
#define PAGE_BYTES      (WIDTH / AQ_HW_HEAD_WIDE * aq_kv_block_bytes(AQ_F16, AQ_HW_HEAD_WIDE))
#define BYTES_MIN       (PREFILL / AQ_HEAD_BLOCK_SLOTS * PAGE_BYTES)
#define ROWS_BYTES      ((size_t)PREFILL * WIDTH * sizeof(float))
#define WORKSPACE_BYTES (32 * AQ_MIB)
/* Between two events lies at least so much work: they are half a microsecond apart themselves. */
#define BETWEEN_S 200e-6

const uint32_t aq_rates_gpu_rows[AQ_RATES_GPU_ROWS] = {1, 16, 64, 256, AQ_RATES_GPU_ROWS_MAX};

struct gpu {
    const struct aq_cuda_kernels *k;
    const struct aq_gpu_ops *ops;
    struct aq_gpu *gpu;
    struct aq_device *device;
    struct aq_cuda_exec ex;
    struct aq_cuda_blas blas;
    void *stream, *event[2];
    double long_s;
    /* Weights or KV; what is written; rows; arrays of sequences. */
    uint8_t *from, *to, *rows, *desk;
    void *workspace;
    size_t bytes, desk_bytes; /* of each of the first two; of the last */
    struct aq_rates_gpu *found;
    /* What is launched. */
    size_t copy_bytes;
    struct aq_cuda_dense dense;
    struct aq_cuda_unpack unpack;
    struct aq_attn attn;
    uint32_t wide, group; /* of decode attention: as in struct aq_rates_gpu */
    struct aq_norm norm;
    int code; /* the first failure */
};

/* Something to measure: sizes it and returns how much that is, 0 where there is no such size; puts
 * it on the stream once. */
struct subject {
    double (*size)(struct gpu *g, uint32_t level);
    int (*launch)(struct gpu *g);
};

static void note(struct gpu *g, int code)
{
    if (!g->code)
        g->code = code;
}

/* ---- time -------------------------------------------------------------------------------- */

/* Seconds of so many launches on the GPU; 0 once something has failed. */
static double timed(struct gpu *g, int (*launch)(struct gpu *g), uint32_t count)
{
    uint64_t ns = 0;
    note(g, g->ops->record(g->gpu, g->event[0], g->stream));
    for (uint32_t i = 0; i < count && !g->code; i++)
        note(g, launch(g));
    note(g, g->ops->record(g->gpu, g->event[1], g->stream));
    note(g, g->ops->wait(g->gpu, g->event[1]));
    if (!g->code)
        note(g, g->ops->elapsed(g->gpu, &ns, g->event[0], g->event[1]));
    return g->code ? 0 : fmax((double)ns, 1) * 1e-9;
}

/* Amount per second, of what has been launched before. */
static struct aq_sample sample(struct gpu *g, int (*launch)(struct gpu *g), double amount)
{
    double rate[ROUNDS_MAX], begin = aq_clock_s(), once = timed(g, launch, 1);
    size_t count = 0;
    if (g->code)
        return (struct aq_sample){0};
    uint32_t launches = (uint32_t)fmin(fmax(1, ceil(BETWEEN_S / once)), LAUNCHES_MAX);
    while (!g->code && count < ROUNDS_MAX &&
           (count < ROUNDS_MIN || aq_clock_s() - begin < g->long_s)) {
        double s = timed(g, launch, launches);
        rate[count++] = s > 0 ? launches * amount / s : 0;
    }
    return aq_sample_of(rate, count);
}

/* At the largest size that does not take too long. */
static struct aq_sample climb(struct gpu *g, const struct subject *s)
{
    uint32_t level = 0;
    double amount = s->size(g, 0);
    assert(amount > 0);
    for (;;) {
        timed(g, s->launch, 1); /* the first time chooses and loads */
        double took = timed(g, s->launch, 1), next = s->size(g, level + 1);
        if (g->code || next <= 0 || took * next / amount > g->long_s / 2)
            break;
        amount = next;
        level++;
    }
    amount = s->size(g, level);
    return sample(g, s->launch, amount);
}

/* ---- what is measured -------------------------------------------------------------------- */

static double size_copy(struct gpu *g, uint32_t level)
{
    const size_t sizes[] = {AQ_MIB, aq_min_u64(64 * AQ_MIB, g->bytes), g->bytes};
    if (level >= AQ_ARRAY_LEN(sizes))
        return 0;
    g->copy_bytes = sizes[level];
    return 2 * (double)g->copy_bytes;
}

static int launch_copy(struct gpu *g)
{
    return g->ops->copy(g->gpu, g->stream, g->to, g->from, g->copy_bytes, AQ_GPU_D2D);
}

/* What widens and narrows an MLP of 4096 and of 7168 values, and smaller ones. */
static const uint32_t matrices[][2] = {{256, 256}, {2048, 2048}, {4096, 16384}, {7168, 28672}};

/* A product of `rows` with a matrix that the buffers have room for. */
static double size_dense(struct gpu *g, uint32_t level, enum aq_dtype t, uint32_t rows)
{
    if (level >= AQ_ARRAY_LEN(matrices))
        return 0;
    uint32_t k = matrices[level][0], n = matrices[level][1];
    if ((uint64_t)k * n * aq_dtype_bytes(t) > g->bytes || (uint64_t)rows * n * 4 > g->bytes)
        return 0;
    g->dense = (struct aq_cuda_dense){.x = g->rows,
                                      .w = g->from,
                                      .dtype = t,
                                      .y_dtype = AQ_F32,
                                      .x_stride = k,
                                      .w_stride = k,
                                      .y = g->to,
                                      .y_stride = n,
                                      .m = rows,
                                      .n = n,
                                      .k = k};
    return 2.0 * rows * k * n;
}

static double size_product(struct gpu *g, uint32_t level)
{
    return size_dense(g, level, AQ_F16, AQ_RATES_GPU_ROWS_MAX);
}

static int launch_product(struct gpu *g)
{
    return g->k->dense(&g->ex, &g->dense);
}

static double size_unpack(struct gpu *g, uint32_t level, enum aq_dtype t)
{
    static const uint32_t rows[] = {64, 4096, 16384};
    uint32_t k = WIDTH;
    if (level >= AQ_ARRAY_LEN(rows) || rows[level] * 2ull * k > g->bytes)
        return 0;
    g->unpack = (struct aq_cuda_unpack){g->from, g->to, t, AQ_F16, k, rows[level], k};
    return (double)aq_panel_count(rows[level]) * (double)aq_panel_bytes(t, k);
}

static double size_unpack_int8(struct gpu *g, uint32_t level)
{
    return size_unpack(g, level, AQ_Q8);
}

static double size_unpack_int4(struct gpu *g, uint32_t level)
{
    return size_unpack(g, level, AQ_Q4);
}

static int launch_unpack(struct gpu *g)
{
    return g->k->unpack(&g->ex, &g->unpack);
}

/* ---- attention --------------------------------------------------------------------------- */

/* Sizes of attention: sequences, query rows of each, keys, KV heads. */
struct attention {
    uint32_t sequences, rows, keys, heads, head_dim;
};
enum {
    DECODE_LEVELS = 2, /* with heads of AQ_HW_HEAD, then with those of AQ_HW_HEAD_WIDE */
    PREFILL_FIRST = 2 * DECODE_LEVELS,
    PREFILL_LEVELS = 3,
    SCORED_FIRST = PREFILL_FIRST + PREFILL_LEVELS,
    LEVELS = SCORED_FIRST + DECODE_LEVELS,
};

static struct attention attention_of(const struct gpu *g, uint32_t level)
{
    const uint32_t dim = AQ_HW_HEAD, wide = AQ_HW_HEAD_WIDE;
    /* No more than there are rows of queries for in the largest group. */
    uint32_t most = PREFILL / aq_hw_groups[AQ_HW_GROUPS - 1];
    uint32_t n = (uint32_t)aq_min_u64(g->bytes / (KEYS / AQ_HEAD_BLOCK_SLOTS * PAGE_BYTES), most);
    const struct attention sizes[SCORED_FIRST] = {
        {1, 1, 64, 2, dim},
        {n, 1, KEYS, WIDTH / dim, dim},
        {1, 1, 64, 2, wide},
        {n, 1, KEYS, WIDTH / wide, wide},
        {1, 64, 64, 2, wide},
        {1, 512, 512, WIDTH / wide, wide},
        {1, PREFILL, PREFILL, WIDTH / wide, wide},
    };
    return sizes[level < SCORED_FIRST ? level : level - SCORED_FIRST];
}

/* On the desk lie a table of all pages, a length for each size, and its sequences, one size after
 * the other. */
static size_t desk_of(const struct gpu *g, size_t *ret_lens, size_t ret_seqs[LEVELS])
{
    size_t at = g->bytes / PAGE_BYTES * sizeof(uint8_t *);
    *ret_lens = at;
    at += aq_align_up(LEVELS * sizeof(uint32_t), 16);
    for (uint32_t i = 0; i < LEVELS; i++) {
        ret_seqs[i] = at;
        at += attention_of(g, i).sequences * sizeof(struct aq_attn_seq);
    }
    return at;
}

/* Where sequence n keeps its scores: behind all that attention writes. */
static float *scores_of(const struct gpu *g, uint32_t n)
{
    return (float *)(void *)(g->to + g->bytes / 2) + (size_t)n * (WIDTH / AQ_HW_HEAD) * KEYS;
}

static int lay_desk(struct gpu *g, struct aq_err *reterr)
{
    size_t lens, seqs[LEVELS];
    uint8_t *here = calloc(1, desk_of(g, &lens, seqs));
    if (!here)
        return aq_error_memory(reterr, "rates");
    uint8_t **page = (uint8_t **)(void *)here;
    for (size_t i = 0; i < g->bytes / PAGE_BYTES; i++)
        page[i] = g->from + i * PAGE_BYTES;
    for (uint32_t i = 0; i < LEVELS; i++) {
        struct attention a = attention_of(g, i);
        struct aq_attn_seq *s = (struct aq_attn_seq *)(void *)(here + seqs[i]);
        ((uint32_t *)(void *)(here + lens))[i] = a.keys;
        for (uint32_t n = 0; n < a.sequences; n++)
            s[n] = (struct aq_attn_seq){
                .block = (uint8_t *const *)(void *)g->desk + n * (KEYS / AQ_HEAD_BLOCK_SLOTS),
                .head_offset = aq_kv_block_bytes(AQ_F16, a.head_dim),
                .len = (const uint32_t *)(void *)(g->desk + lens) + i,
                .row = n * a.rows,
                .rows = a.rows,
                .slots = {.score = i < SCORED_FIRST ? NULL : scores_of(g, n), .stride = KEYS},
            };
    }
    int rc = aq_device_write(g->device, g->desk, here, g->desk_bytes, reterr);
    free(here);
    return rc;
}

static struct attention size_attention(struct gpu *g, uint32_t level, uint32_t group)
{
    size_t lens, seqs[LEVELS];
    struct attention a = attention_of(g, level);
    desk_of(g, &lens, seqs);
    g->attn = (struct aq_attn){
        .seqs = (const struct aq_attn_seq *)(const void *)(g->desk + seqs[level]),
        .seq_count = a.sequences,
        .q = (const float *)g->rows,
        .q_stride = (size_t)WIDTH * group,
        .out = g->to,
        .out_dtype = AQ_F16,
        .out_stride = (size_t)WIDTH * group,
        .kv_dtype = AQ_F16,
        .kv_heads = a.heads,
        .q_per_kv = group,
        .head_dim = a.head_dim,
        .scale = 1 / sqrtf((float)a.head_dim),
        .reach = {.rows = a.rows, .len = a.keys},
    };
    return a;
}

/* K and V in f16. */
static double decode_bytes(const struct attention *a)
{
    return 4.0 * a->sequences * a->keys * a->heads * a->head_dim;
}

static double size_decode(struct gpu *g, uint32_t level)
{
    if (level >= DECODE_LEVELS)
        return 0;
    uint32_t group = g->group ? aq_hw_groups[g->group - 1] : 1;
    struct attention a = size_attention(g, g->wide * DECODE_LEVELS + level, group);
    g->found->decode[g->wide][g->group].sequences = a.sequences;
    g->found->decode[g->wide][g->group].keys = a.keys;
    return decode_bytes(&a);
}

/* With a KV head for each query head, with scores kept up as h2o does. */
static double size_scored(struct gpu *g, uint32_t level)
{
    if (level >= DECODE_LEVELS)
        return 0;
    struct attention a = size_attention(g, SCORED_FIRST + level, 1);
    g->attn.rule = (struct aq_attn_rule){
        .victim = AQ_ATTN_BY_SCORE, .stat = AQ_ATTN_PROB, .group = AQ_ATTN_SUM, .decay = 1};
    return decode_bytes(&a);
}

static int launch_decode(struct gpu *g)
{
    return g->k->attn_decode(&g->ex, &g->attn);
}

static double size_prefill(struct gpu *g, uint32_t level)
{
    if (level >= PREFILL_LEVELS)
        return 0;
    struct attention a = size_attention(g, PREFILL_FIRST + level, 1);
    g->found->prefill_rows = a.rows;
    return 4 * 0.5 * a.rows * (a.rows + 1.0) * a.heads * a.head_dim;
}

static int launch_prefill(struct gpu *g)
{
    return g->k->attn_prefill(&g->ex, &g->attn);
}

/* ---- what nothing costs ------------------------------------------------------------------ */

static int launch_nothing(struct gpu *g)
{
    return g->k->norm(&g->ex, &g->norm);
}

static int op_of_nothing(void *arg, void *native)
{
    struct gpu *g = arg;
    struct aq_cuda_exec ex = g->ex;
    ex.stream = native;
    return g->k->norm(&ex, &g->norm) ? -EIO : 0;
}

/* Ops of one small kernel each, as many in the stream as it takes, until all are known to be over:
 * as the executor issues them. */
static int measure_ops(struct gpu *g, struct aq_err *reterr)
{
    struct aq_device_stream_opts opts = {.name = "compute", .side = AQ_STREAM_DEVICE, .depth = OPS};
    struct aq_completions *done = NULL;
    struct aq_device_stream *stream = NULL;
    double s[ROUNDS_MAX];
    int rc = aq_completions_open(&done, OPS, NULL, reterr);
    rc = rc < 0 ? rc : aq_device_stream_open(&stream, g->device, &opts, reterr);
    for (int round = -1; rc == 0 && round < ROUNDS_MIN + 2; round++) { /* the first warms up */
        double begin = aq_clock_s();
        for (uint32_t i = 0; i < OPS && rc == 0; i++)
            rc = aq_device_run(
                stream,
                &(struct aq_device_job){.fn = op_of_nothing, .arg = g, .token = i, .done = done});
        for (uint32_t i = 0; i < OPS && rc == 0; i++) {
            struct aq_completion c = {0};
            int n = aq_completions_wait(done, &c, 1, AQ_WAIT_FOREVER);
            rc = n < 0 ? n : c.result;
        }
        s[round < 0 ? 0 : round] = (aq_clock_s() - begin) / OPS;
        if (rc < 0)
            aq_error(reterr, rc, "rates: an op of the GPU failed");
    }
    aq_device_stream_close(stream);
    aq_completions_close(done);
    if (rc == 0)
        g->found->op_s = aq_sample_of(s, ROUNDS_MIN + 2);
    return rc;
}

/* ---- all of it --------------------------------------------------------------------------- */

/* By compute type and rows, at the largest matrix that f16 takes in time (a smaller one where the
 * type is wider). */
static void measure_products(struct gpu *g)
{
    static const struct subject product = {size_product, launch_product};
    static const enum aq_dtype types[] = {AQ_F32, AQ_F16, AQ_BF16};
    climb(g, &product);
    g->found->k = g->dense.k;
    g->found->n = g->dense.n;
    uint32_t most = 0;
    while (matrices[most][0] != g->dense.k)
        most++;
    for (size_t t = 0; t < AQ_ARRAY_LEN(types); t++) {
        if (types[t] == AQ_BF16 && g->ex.sm < 80)
            continue;
        for (uint32_t i = 0; i < AQ_RATES_GPU_ROWS && !g->code; i++) {
            uint32_t level = most;
            double flops = 0;
            while ((flops = size_dense(g, level, types[t], aq_rates_gpu_rows[i])) <= 0)
                level--;
            timed(g, launch_product, 1);
            g->found->product[types[t]][i] = sample(g, launch_product, flops);
        }
    }
    /* Two flops a number of two bytes. */
    g->found->product_bytes = g->found->product[AQ_F16][0];
}

static void measure_decode(struct gpu *g)
{
    static const struct subject decode = {size_decode, launch_decode};
    for (g->wide = 0; g->wide < 2; g->wide++) {
        for (g->group = 0; g->group <= AQ_HW_GROUPS; g->group++)
            g->found->decode[g->wide][g->group].bytes = climb(g, &decode);
    }
}

static void measure_rest(struct gpu *g)
{
    static const struct subject copy = {size_copy, launch_copy},
                                int8 = {size_unpack_int8, launch_unpack},
                                int4 = {size_unpack_int4, launch_unpack},
                                scored = {size_scored, launch_decode},
                                prefill = {size_prefill, launch_prefill};
    g->found->memory = climb(g, &copy);
    g->found->unpack[0] = climb(g, &int8);
    g->found->unpack[1] = climb(g, &int4);
    measure_decode(g);
    g->found->scored = climb(g, &scored);
    g->found->prefill = climb(g, &prefill);
    g->norm = (struct aq_norm){.kind = AQ_NORM_CAST,
                               .x = (const float *)g->rows,
                               .x_stride = 64,
                               .y = g->to,
                               .y_dtype = AQ_F32,
                               .y_stride = 64,
                               .rows = 1,
                               .dim = 64};
    struct aq_sample rate = sample(g, launch_nothing, 1);
    g->found->launch_s = (struct aq_sample){rate.median > 0 ? 1 / rate.median : 0, rate.spread};
}

/* Random numbers of a sane size in every format: of patterns that repeat, memory and arithmetic
 * take less power, and a GPU is faster than with weights. */
static int fill(struct gpu *g, uint8_t *to, size_t bytes, struct aq_rates_rig *r,
                struct aq_err *reterr)
{
    uint16_t *words = NULL;
    size_t piece = FILL_WORDS * sizeof(*words);
    int rc = aq_rates_take(&words, r, piece, 0, reterr);
    for (size_t i = 0; rc == 0 && i < FILL_WORDS; i += 4) {
        uint64_t bits = aq_prng_u64(1, i, 0);
        for (size_t n = 0; n < 4; n++, bits >>= 16) /* f16 of 2^-3 to 2, with either sign */
            words[i + n] = (uint16_t)(0x3000 | (bits & 0x8fff));
    }
    for (size_t at = 0; rc == 0 && at < bytes; at += piece)
        rc = aq_device_write(g->device, to + at, words, aq_min_u64(piece, bytes - at), reterr);
    return rc;
}

static int take(struct gpu *g, void *ret, size_t bytes, struct aq_err *reterr)
{
    return aq_device_alloc(ret, g->device, AQ_MEMORY_DEVICE, "rates", bytes, reterr);
}

static int open_gpu(struct gpu *g, struct aq_rates_rig *r, struct aq_err *reterr)
{
    size_t lens, seqs[LEVELS];
    struct aq_device_opts opts = {
        .kind = AQ_DEVICE_GPU, .mem = r->mem, .gpu_ops = g->ops, .gpu = g->gpu};
    int rc = aq_device_open(&g->device, &opts, reterr);
    rc = rc < 0 ? rc : take(g, &g->from, g->bytes, reterr);
    rc = rc < 0 ? rc : take(g, &g->to, g->bytes, reterr);
    rc = rc < 0 ? rc : take(g, &g->rows, ROWS_BYTES, reterr);
    rc = rc < 0 ? rc : take(g, &g->workspace, WORKSPACE_BYTES, reterr);
    rc = rc < 0 ? rc : take(g, &g->desk, g->desk_bytes = desk_of(g, &lens, seqs), reterr);
    rc = rc < 0 ? rc : fill(g, g->from, g->bytes, r, reterr);
    rc = rc < 0 ? rc : fill(g, g->rows, ROWS_BYTES, r, reterr);
    rc = rc < 0 ? rc : lay_desk(g, reterr);
    if (rc < 0)
        return rc;
    g->ex.workspace = g->workspace;
    g->ex.workspace_bytes = WORKSPACE_BYTES;
    note(g, g->k->blas_open(&g->blas, false));
    note(g, g->ops->stream_open(g->gpu, &g->stream, false));
    for (int i = 0; i < 2 && !g->code; i++)
        note(g, g->ops->event_open(g->gpu, &g->event[i]));
    g->ex.stream = g->stream;
    g->ex.blas = &g->blas;
    return 0;
}

static void close_gpu(struct gpu *g)
{
    for (int i = 0; i < 2; i++) {
        if (g->event[i])
            g->ops->event_close(g->gpu, g->event[i]);
    }
    if (g->stream)
        g->ops->stream_close(g->gpu, g->stream);
    g->k->blas_close(&g->blas);
    if (!g->device)
        return;
    aq_device_free(g->device, AQ_MEMORY_DEVICE, "rates", g->from, g->bytes);
    aq_device_free(g->device, AQ_MEMORY_DEVICE, "rates", g->to, g->bytes);
    aq_device_free(g->device, AQ_MEMORY_DEVICE, "rates", g->rows, ROWS_BYTES);
    aq_device_free(g->device, AQ_MEMORY_DEVICE, "rates", g->workspace, WORKSPACE_BYTES);
    aq_device_free(g->device, AQ_MEMORY_DEVICE, "rates", g->desk, g->desk_bytes);
    aq_device_close(g->device);
}

int aq_rates_gpu(struct aq_rates_gpu *ret, struct aq_rates_rig *r, const struct aq_cuda *cuda,
                 size_t bytes, struct aq_err *reterr)
{
    struct aq_rates_gpu found = {0};
    struct gpu g = {
        .k = cuda->module->kernels,
        .ops = cuda->module->gpu,
        .gpu = cuda->gpu,
        .ex = {.sm = cuda->info.code_sm, .multiprocessors = cuda->info.multiprocessors},
        .long_s = r->long_s,
        .found = &found,
        .bytes = aq_min_u64(bytes, cuda->info.free_bytes / 8) / PAGE_BYTES * PAGE_BYTES,
    };
    if (g.bytes < BYTES_MIN)
        return aq_error(reterr, -ENOMEM,
                        "'%s': expected %llu MiB free to measure it in, found %llu MiB",
                        cuda->info.name, (unsigned long long)(8 * BYTES_MIN / AQ_MIB),
                        (unsigned long long)(cuda->info.free_bytes / AQ_MIB));
    int rc = open_gpu(&g, r, reterr);
    if (rc == 0) {
        if (!g.code)
            measure_products(&g);
        if (!g.code)
            measure_rest(&g);
        rc = g.code ? aq_error(reterr, -EIO, "measuring '%s': %s", cuda->info.name,
                               g.k->error_text(g.code))
                    : measure_ops(&g, reterr);
    }
    close_gpu(&g);
    if (rc == 0)
        *ret = found;
    return rc;
}
