/* SPDX-License-Identifier: Apache-2.0
 * Products in bf16 on AMX tiles: 32 rows by 32 columns in four tiles, or 16 by 64.  An instruction
 * adds 32 products to each sum (tiles_emulated.h says in which order); k goes up in steps of 32
 * from 0 for any number of rows, so that a row's bits are its own.  One or two rows, whose speed is
 * that of memory, take the same sums in the same order in vectors: weights come faster that way.
 *
 * What a tile instruction costs (one core of a Xeon, cycles): a dot product 16, a load of 1 KiB
 * from L1 8 and from L2 20, a store to L1 15 and to L2 58.  Two loads and two dot products of each
 * operand per pair of tiles is what L2 can feed, and sums stay in tiles for a whole block: shorter
 * parts, which would keep x in L1, cost more in loads and stores of sums than they save. */
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/tiles.h"
#include "kernels/cpu/versions.h"

#include <assert.h>
#include <string.h>

enum {
    STEP_ROWS = 2 * AQ_TILE_ROWS,
    CHUNK_ROWS = 256,
    /* With more rows the sums of all do not stay in L1 between short blocks. */
    FEW_ROWS = 2 * STEP_ROWS,
    /* Of 256 rows of x such a block is half a MiB, a quarter of L2; the weights of a panel, those
     * that come next, and the sums of all panels need the rest. */
    BLOCK_K = 1024,
    STREAM_AHEAD = 2048,
    PANELS = 8,
    K_BYTES = AQ_PANEL_ROWS * 2, /* of weights, per k */
    /* Between rows of the tiles of weights, and of sums. */
    PAIR_BYTES = 2 * K_BYTES,
    SUM_BYTES = AQ_PANEL_ROWS * 4,
    TILE_LINES = AQ_TILE_ROWS, /* cache lines of a tile */
};

_Static_assert(PANELS *CHUNK_ROWS *SUM_BYTES + BLOCK_K * K_BYTES <= AQ_GEMM_SCRATCH_BYTES,
               "sums and a converted block fit the scratch of products");

#define INLINE static inline __attribute__((always_inline))

/* Tiles 0, 1: sums of the first 16 rows, 2, 3: of the others.  4, 5: rows of x.  6, 7: columns of
 * w.  Up to 16 rows: 0 to 3 are all the sums, 4 is x, 5 to 7 are columns. */
static void configure(const struct aq_gemm_step *s)
{
    if (*s->tile_rows == s->rows)
        return;
    *s->tile_rows = s->rows;
    uint8_t first = (uint8_t)aq_min_u64(s->rows, AQ_TILE_ROWS), second = (uint8_t)(s->rows - first);
    const struct aq_tile_shape a = {first, AQ_TILE_BYTES}, b = {second, AQ_TILE_BYTES},
                               w = {AQ_TILE_ROWS, AQ_TILE_BYTES};
    if (second)
        aq_tiles_configure((const struct aq_tile_shape[]){a, a, b, b, a, b, w, w}, AQ_TILES);
    else
        aq_tiles_configure((const struct aq_tile_shape[]){a, a, a, a, a, w, w, w}, AQ_TILES);
}

/* What is fetched while steps compute. */
struct ahead {
    const char *at;
    uint32_t lines; /* each time: four times in 32 of k */
    bool near;
};

INLINE void ask(struct ahead *ahead)
{
    aq_gemm_ask(&ahead->at, ahead->lines, ahead->near);
}

static struct ahead ahead_of(const struct aq_gemm_step *s, uint32_t steps)
{
    return (struct ahead){
        .at = s->ahead,
        .lines = steps ? (uint32_t)aq_div_up(s->ahead_bytes / AQ_GEMM_LINE, 4 * steps) : 0,
        .near = s->near};
}

/* ---- sums ---- */

/* Where the sums of tiles 1, 2 and 3 lie behind those of tile 0. */
struct spots {
    size_t one, two, three;
};
static const struct spots in_a_row = {16, 32, 48}, in_two_rows = {16, AQ_TILE_ROWS *AQ_PANEL_ROWS,
                                                                  AQ_TILE_ROWS *AQ_PANEL_ROWS + 16};

INLINE void open_sums(const float *sums, struct spots at, bool first)
{
    if (first) {
        AQ_TILE_ZERO(0);
        AQ_TILE_ZERO(1);
        AQ_TILE_ZERO(2);
        AQ_TILE_ZERO(3);
    } else {
        AQ_TILE_LOAD(0, sums, SUM_BYTES);
        AQ_TILE_LOAD(1, sums + at.one, SUM_BYTES);
        AQ_TILE_LOAD(2, sums + at.two, SUM_BYTES);
        AQ_TILE_LOAD(3, sums + at.three, SUM_BYTES);
    }
}

INLINE void close_sums(float *sums, struct spots at)
{
    AQ_TILE_STORE(0, sums, SUM_BYTES);
    AQ_TILE_STORE(1, sums + at.one, SUM_BYTES);
    AQ_TILE_STORE(2, sums + at.two, SUM_BYTES);
    AQ_TILE_STORE(3, sums + at.three, SUM_BYTES);
}

/* ---- up to 16 rows by 64 columns ---- */

/* 32 of k. */
INLINE void add_row(const char *x, size_t x_bytes, const char *w, struct ahead *ahead)
{
    AQ_TILE_LOAD(4, x, x_bytes);
    AQ_TILE_LOAD(5, w, PAIR_BYTES);
    AQ_TILE_DOT(0, 4, 5);
    ask(ahead);
    AQ_TILE_LOAD(6, w + AQ_TILE_BYTES, PAIR_BYTES);
    AQ_TILE_DOT(1, 4, 6);
    ask(ahead);
    AQ_TILE_LOAD(7, w + 2 * AQ_TILE_BYTES, PAIR_BYTES);
    AQ_TILE_DOT(2, 4, 7);
    ask(ahead);
    AQ_TILE_LOAD(5, w + 3 * AQ_TILE_BYTES, PAIR_BYTES);
    AQ_TILE_DOT(3, 4, 5);
    ask(ahead);
}

/* ---- up to 32 rows by the 32 columns of half a panel ---- */

INLINE void add_half(const char *x, size_t x_bytes, const char *w, struct ahead *ahead)
{
    AQ_TILE_LOAD(4, x, x_bytes);
    AQ_TILE_LOAD(6, w, PAIR_BYTES);
    AQ_TILE_DOT(0, 4, 6);
    ask(ahead);
    AQ_TILE_LOAD(7, w + AQ_TILE_BYTES, PAIR_BYTES);
    AQ_TILE_DOT(1, 4, 7);
    ask(ahead);
    AQ_TILE_LOAD(5, x + AQ_TILE_ROWS * x_bytes, x_bytes);
    AQ_TILE_DOT(2, 5, 6);
    AQ_TILE_DOT(3, 5, 7);
}

/* ---- one or two rows, without tiles ---- */

#if !defined(AQ_TILES_EMULATED)
#include <immintrin.h>

enum {
    VECTOR_ROWS = 2,
    VECS = AQ_PANEL_ROWS / 16,
    ROUNDING_OF_TILES = 0x9fc0, /* MXCSR: to nearest, subnormal numbers are zero, no traps */
};

/* 32 of k: what AQ_TILE_DOT does with them, in vectors, which weights from memory pass faster. */
INLINE void add_vectors(__m512 sum[][VECS], uint32_t rows, const char *x, size_t x_bytes,
                        const char *w, struct ahead *ahead)
{
    __m512 even[VECTOR_ROWS][VECS], odd[VECTOR_ROWS][VECS];
    const __m512i upper = _mm512_set1_epi32((int)0xffff0000);
    AQ_UNROLL(2)
    for (uint32_t r = 0; r < rows; r++) {
        AQ_UNROLL(4)
        for (uint32_t c = 0; c < VECS; c++)
            even[r][c] = odd[r][c] = _mm512_setzero_ps();
    }
    for (uint32_t i = 0; i < AQ_TILE_K / 2; i++) {
        AQ_UNROLL(4)
        for (uint32_t c = 0; c < VECS; c++) {
            __m512i pairs = _mm512_loadu_si512(w + c * AQ_TILE_BYTES);
            __m512 first = (__m512)_mm512_slli_epi32(pairs, 16);
            __m512 second = (__m512)_mm512_and_si512(pairs, upper);
            AQ_UNROLL(2)
            for (uint32_t r = 0; r < rows; r++) {
                uint32_t two;
                memcpy(&two, x + r * x_bytes, sizeof(two));
                __m512 x_first = (__m512)_mm512_set1_epi32((int)(two << 16));
                __m512 x_second = (__m512)_mm512_set1_epi32((int)(two & 0xffff0000));
                even[r][c] = _mm512_fmadd_ps(x_first, first, even[r][c]);
                odd[r][c] = _mm512_fmadd_ps(x_second, second, odd[r][c]);
            }
        }
        if (i % 4 == 0)
            ask(ahead);
        x += 4;
        w += PAIR_BYTES;
    }
    AQ_UNROLL(2)
    for (uint32_t r = 0; r < rows; r++) {
        AQ_UNROLL(4)
        for (uint32_t c = 0; c < VECS; c++)
            sum[r][c] = _mm512_add_ps(sum[r][c], _mm512_add_ps(even[r][c], odd[r][c]));
    }
}

/* rows is a constant where this is called, so that the sums are registers. */
INLINE void run_vectors(const struct aq_gemm_step *s, uint32_t rows, const char *x, size_t x_bytes,
                        const char *w, uint32_t steps, bool first, struct ahead *ahead)
{
    __m512 sum[VECTOR_ROWS][VECS];
    unsigned before = _mm_getcsr();
    _mm_setcsr(ROUNDING_OF_TILES);
    AQ_UNROLL(2)
    for (uint32_t r = 0; r < rows; r++) {
        AQ_UNROLL(4)
        for (uint32_t c = 0; c < VECS; c++)
            sum[r][c] =
                first ? _mm512_setzero_ps() : _mm512_loadu_ps(s->sums + r * AQ_PANEL_ROWS + c * 16);
    }
    for (uint32_t i = 0; i < steps; i++)
        add_vectors(sum, rows, x + (size_t)i * AQ_TILE_BYTES, x_bytes,
                    w + (size_t)i * AQ_TILE_K * K_BYTES, ahead);
    AQ_UNROLL(2)
    for (uint32_t r = 0; r < rows; r++) {
        AQ_UNROLL(4)
        for (uint32_t c = 0; c < VECS; c++)
            _mm512_storeu_ps(s->sums + r * AQ_PANEL_ROWS + c * 16, sum[r][c]);
    }
    _mm_setcsr(before);
}
#endif

static bool needs_tiles(uint32_t rows)
{
#if defined(AQ_TILES_EMULATED)
    return true;
#else
    return rows > VECTOR_ROWS;
#endif
}

/* ---- steps ---- */

/* `steps` times 32 of k. */
static void run(const struct aq_gemm_step *s, const char *x, size_t x_bytes, const char *w,
                uint32_t steps, bool first, struct ahead *ahead)
{
#if !defined(AQ_TILES_EMULATED)
    if (s->rows == 1) {
        run_vectors(s, 1, x, x_bytes, w, steps, first, ahead);
        return;
    }
    if (s->rows == 2) {
        run_vectors(s, 2, x, x_bytes, w, steps, first, ahead);
        return;
    }
#endif
    if (s->rows <= AQ_TILE_ROWS) {
        open_sums(s->sums, in_a_row, first);
        for (uint32_t i = 0; i < steps; i++) {
            add_row(x + (size_t)i * AQ_TILE_BYTES, x_bytes, w + (size_t)i * AQ_TILE_K * K_BYTES,
                    ahead);
        }
        close_sums(s->sums, in_a_row);
        return;
    }
    for (uint32_t half = 0; half < 2; half++) {
        float *sums = s->sums + half * AQ_PANEL_ROWS / 2;
        const char *columns = w + half * 2 * AQ_TILE_BYTES;
        open_sums(sums, in_two_rows, first);
        for (uint32_t i = 0; i < steps; i++) {
            add_half(x + (size_t)i * AQ_TILE_BYTES, x_bytes,
                     columns + (size_t)i * AQ_TILE_K * K_BYTES, ahead);
        }
        close_sums(sums, in_two_rows);
    }
}

/* The last k, fewer than 32: zeros up to there, which change no sum. */
static void run_rest(const struct aq_gemm_step *s, const char *x, size_t x_bytes, const char *w,
                     uint32_t k, bool first)
{
    _Alignas(64) char x_rest[STEP_ROWS][AQ_TILE_BYTES], w_rest[AQ_TILE_K * K_BYTES];
    memset(x_rest, 0, sizeof(x_rest));
    memset(w_rest, 0, sizeof(w_rest));
    for (uint32_t r = 0; r < s->rows; r++)
        memcpy(x_rest[r], x + r * x_bytes, 2 * (size_t)k);
    memcpy(w_rest, w, aq_align_up(k, 2) * K_BYTES);
    struct ahead none = {.at = NULL};
    run(s, x_rest[0], AQ_TILE_BYTES, w_rest, 1, first, &none);
}

static void step(const struct aq_gemm_step *s)
{
    assert(s->rows >= 1 && s->rows <= STEP_ROWS);
    if (needs_tiles(s->rows))
        configure(s);
    const char *x = s->x, *w = s->w;
    size_t x_bytes = s->x_stride * 2;
    uint32_t steps = s->k / AQ_TILE_K, rest = s->k % AQ_TILE_K;
    struct ahead ahead = ahead_of(s, steps);
    if (steps)
        run(s, x, x_bytes, w, steps, s->first, &ahead);
    if (rest)
        run_rest(s, x + (size_t)steps * AQ_TILE_BYTES, x_bytes,
                 w + (size_t)steps * AQ_TILE_K * K_BYTES, rest, s->first && !steps);
}

static const struct aq_gemm_ops ops = {.compute = AQ_BF16,
                                       .step_rows = STEP_ROWS,
                                       .whole_steps = true,
                                       .chunk_rows = CHUNK_ROWS,
                                       .few_rows = FEW_ROWS,
                                       .block_k = BLOCK_K,
                                       .panels = PANELS,
                                       .stream_ahead = STREAM_AHEAD,
                                       .near = true,
                                       .step = step,
                                       .convert = aq_gemm_convert_avx512bf16,
                                       .finish = aq_gemm_finish_avx512,
                                       .leave = aq_tiles_release};

void aq_product_bf16_amx(struct aq_exec *ex, const struct aq_product *p)
{
    assert(p->x_dtype == AQ_BF16);
    aq_gemm_run(ex, p, &ops);
}
