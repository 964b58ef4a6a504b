/* SPDX-License-Identifier: Apache-2.0
 * kernels/cpu/gemm.h - the products' loops, shared by all versions, and what a version supplies.
 *
 * A job is cut into tiles of one panel (64 output columns) by a chunk of rows; a worker owns a tile
 * from the first k to the last.  Inside, K goes in blocks whose weights stay in L2 while the rows
 * of the chunk pass by, a few at a time:
 *
 *     for each K block:   (weights converted to the compute type if they are not in it)
 *         for each group of rows:   sums [rows][64] += x [rows][block] * w [block][64]
 *     finish: bias, activation, store
 *
 * Several panels may go through a K block together: the block of x is then read from L2 for each of
 * them, where that of all of K would not fit, and widened once, where it is not in the compute
 * type.
 *
 * Sums stay in f32 between blocks, so blocks change no bit, and neither do chunks, groups of rows
 * or threads: each output has one accumulator that takes k in ascending order (of AMX, 32 at a
 * time).  While a block is worked on, the next one (of the same tile, or of the worker's next) is
 * fetched. */
#ifndef AQ_KERNELS_CPU_GEMM_H
#define AQ_KERNELS_CPU_GEMM_H

#include "base/sanitized.h"
#include "kernels/kernels.h"

enum {
    /* Rows of a chunk: a block of x (1024 bf16 or 512 f32 wide) takes half a MiB of L2 then. */
    AQ_GEMM_CHUNK_ROWS = 252,
    AQ_GEMM_PANELS = 4, /* that go through a K block together, of the versions in f32 */
    AQ_GEMM_BLOCK_K_BF16 = 1024,
    AQ_GEMM_BLOCK_K_F32 = 512,
    /* With few rows memory is what bounds: blocks of 16 KiB, so that the one in use stays in L1. */
    AQ_GEMM_FEW_ROWS = 36,
    AQ_GEMM_FEW_BLOCK_BYTES = 16384,
    AQ_GEMM_LINE = 64,
    /* Bytes asked for ahead of their use, into L2, when weights stream from memory to one group of
     * rows.  (Into L1, which has room for fewer lines on their way, and 2 KiB ahead, a core of a
     * Xeon got 2 to 12 % fewer of them a second.) */
    AQ_GEMM_STREAM_AHEAD = 8192,
    /* The same, into L1, when a block is converted, most of which the steps before asked for,
     * and of products on codes. */
    AQ_GEMM_NEAR_AHEAD = 2048,
};

/* Sums of a few rows over one K block.
 *   x     [rows][k] of the compute type, row stride x_stride elements (bytes where it is AQ_Q8)
 *   w     f32 [k][64], or bf16 [ceil(k/2)][64][2] where the pad of an odd k is zero; codes.h has
 *         both for AQ_Q8
 *   sums  f32 [rows][64], contiguous; taken for zero when `first`
 * ahead: memory to prefetch meanwhile, none where ahead_bytes is 0; into L1 when `near`, else into
 * L2. */
struct aq_gemm_step {
    const void *x;
    size_t x_stride;
    const void *w;
    uint32_t rows, k;
    float *sums;
    bool first;
    const char *ahead;
    uint32_t ahead_bytes;
    bool near;
    bool pairs;          /* w is bf16 although the compute type is f32 */
    uint32_t *tile_rows; /* the rows that the worker's AMX tiles are made for; 0: none yet */
};

/* Where finished sums go: rows [row, row + rows) and columns [column, column + columns) of y. */
struct aq_gemm_finish {
    const struct aq_product *p;
    const float *sums; /* [rows][64] */
    uint32_t row, rows, column, columns;
};

struct aq_gemm_ops {
    enum aq_dtype compute; /* what `step` takes: AQ_F32, AQ_BF16, or AQ_Q8: codes.h */
    uint32_t code_bytes;   /* of AQ_Q8: of a code of x and of w, 1 or 2 */
    uint32_t step_rows;    /* most rows of a step */
    /* Steps of step_rows and one of the rest, if that is faster than steps of the same number. */
    bool whole_steps;
    uint32_t chunk_rows, few_rows; /* most rows of a chunk, and of one that memory bounds */
    uint32_t block_k;              /* most columns of a block */
    uint32_t stream_ahead;         /* bytes asked for ahead where weights stream */
    bool near;                     /* weights of few rows are asked for into L1 */
    uint32_t panels;               /* most panels that a K block is taken through together */
    /* Of versions in f32: at most so many rows take bf16 weights straight from their pairs, a step
     * after the other; for more they are converted once. */
    uint32_t step_pairs_rows;
    void (*step)(const struct aq_gemm_step *s);
    /* The same with w in groups of codes of dtype, rounded to bf16 when round_bf16, for at most
     * step_codes_rows rows: converting to memory first would cost them more than the step does.
     * Prefetches w by itself. */
    void (*step_codes)(const struct aq_gemm_step *s, enum aq_dtype dtype, bool round_bf16);
    uint32_t step_codes_rows;
    /* dst = the compute layout of k columns of a panel in dtype, from a multiple of AQ_GROUP_K on
     * if that is quantised; rounded to bf16 on the way when
     * round_bf16 (dst may be f32 then too: bf16 products without bf16 instructions).  src is
     * prefetched in passing. */
    void (*convert)(void *dst, const void *src, enum aq_dtype dtype, bool round_bf16, uint32_t k);
    /* dst f32 [rows][k] contiguous = x bf16 [rows][k]; only where compute is f32. */
    void (*widen)(float *dst, const uint16_t *x, size_t x_stride, uint32_t rows, uint32_t k);
    /* dst = pairs in bf16 of src f32 [k][64], numbers that bf16 holds; the pad of an odd k is 0.
     * Only where compute is f32. */
    void (*narrow)(uint16_t *dst, const float *src, uint32_t k);
    void (*finish)(const struct aq_gemm_finish *f);
    /* The worker has no more steps to do; NULL where it keeps no state. */
    void (*leave)(void);
};

void aq_gemm_run(struct aq_exec *ex, const struct aq_product *p, const struct aq_gemm_ops *ops);
/* Panels to the compute layout; u->dst_dtype is ops->compute, or bf16. */
void aq_gemm_unpack(struct aq_exec *ex, const struct aq_unpack *u, const struct aq_gemm_ops *ops);

/* A worker's scratch: sums, a converted block of weights, a widened block of x.  A version that
 * widens nothing may have more sums and longer blocks instead. */
#define AQ_GEMM_SUMS_BYTES    ((size_t)AQ_GEMM_PANELS * AQ_GEMM_CHUNK_ROWS * AQ_PANEL_ROWS * 4)
#define AQ_GEMM_BLOCK_BYTES   ((size_t)AQ_GEMM_BLOCK_K_F32 * AQ_PANEL_ROWS * 4)
#define AQ_GEMM_WIDE_BYTES    ((size_t)AQ_GEMM_CHUNK_ROWS * AQ_GEMM_BLOCK_K_F32 * 4)
#define AQ_GEMM_SCRATCH_BYTES (AQ_GEMM_SUMS_BYTES + AQ_GEMM_BLOCK_BYTES + AQ_GEMM_WIDE_BYTES)

/* The next loop is unrolled n times: its sums are registers then.  Sanitizers instrument every
 * copy: in their builds, where a file took minutes, it stays a loop. */
#if AQ_SANITIZED
#define AQ_UNROLLS 0
#define AQ_UNROLL(n)
#else
#define AQ_UNROLLS             1
#define AQ_UNROLL_PRAGMA(text) _Pragma(#text)
#define AQ_UNROLL(n)           AQ_UNROLL_PRAGMA(GCC unroll n)
#endif

/* Asks for the next lines of a range; the hint is an immediate, hence two loops. */
static inline void aq_gemm_ask(const char **ahead, uint32_t lines, bool near)
{
    for (uint32_t i = 0; i < lines; i++) {
        if (near)
            __builtin_prefetch(*ahead, 0, 3);
        else
            __builtin_prefetch(*ahead, 0, 2);
        *ahead += AQ_GEMM_LINE;
    }
}

/* Asks for as many bytes ahead as those at p. */
static inline void aq_gemm_ask_stream(const void *p, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += AQ_GEMM_LINE)
        __builtin_prefetch((const char *)p + AQ_GEMM_STREAM_AHEAD + i, 0, 2);
}
static inline void aq_gemm_ask_near(const void *p, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += AQ_GEMM_LINE)
        __builtin_prefetch((const char *)p + AQ_GEMM_NEAR_AHEAD + i, 0, 3);
}

/* Pieces that higher levels reuse, and tests. */
void aq_gemm_finish_one(const struct aq_product *p, uint32_t row, uint32_t column, double sum);
void aq_gemm_finish_ref(const struct aq_gemm_finish *f);
void aq_gemm_finish_avx2(const struct aq_gemm_finish *f);
void aq_gemm_finish_avx512(const struct aq_gemm_finish *f);
void aq_gemm_step_avx512bf16(const struct aq_gemm_step *s);
void aq_gemm_step_codes_avx512bf16(const struct aq_gemm_step *s, enum aq_dtype dtype, bool round);
void aq_gemm_unpack_avx512bf16(uint16_t *dst, const uint8_t *src, enum aq_dtype dtype, uint32_t k);
void aq_gemm_convert_avx512bf16(void *dst, const void *src, enum aq_dtype dtype, bool round,
                                uint32_t k);

#endif
