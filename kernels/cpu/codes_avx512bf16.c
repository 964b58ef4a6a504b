/* SPDX-License-Identifier: Apache-2.0
 * Groups of codes: to pairs in bf16, and straight into the sums of a few rows.
 *
 * Codes lie in the order of the pairs (rows, of each row two columns), and so do the lanes: the
 * instruction that rounds two vectors to one leaves every number where it belongs.  VPERMPS looks
 * at the lowest four bits of a lane only: with the sixteen values as its table it turns a nibble
 * there, whatever lies above it, into a number.  Nibbles 2, 4 and 6 get there by loading one, two
 * and three bytes further on (past a group's codes lie its scales, so that the last load stays
 * within). */
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/versions.h"

#include <assert.h>
#include <immintrin.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))

enum {
    LANES = 16, /* 8 rows of two columns */
    VECS = 2 * AQ_PANEL_ROWS / LANES,
};

/* Scale and minimum of a group, each row's twice. */
struct meaning {
    __m512 scale[VECS], minimum[VECS];
};

INLINE void twice(__m512 to[2], const uint8_t *half)
{
    const __m512i low = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
    __m512 v = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)half));
    to[0] = _mm512_permutexvar_ps(low, v);
    to[1] = _mm512_permutexvar_ps(high, v);
}

INLINE void open_group(struct meaning *m, const uint8_t *scales)
{
    AQ_UNROLL(4)
    for (uint32_t c = 0; c < VECS; c += 2) {
        twice(m->scale + c, scales + c * LANES);
        twice(m->minimum + c, scales + (VECS + c) * LANES);
    }
}

/* Pairs c and c + 1 (vectors of 8 rows) of one couple of columns. */
INLINE void store_pairs(const struct meaning *m, uint16_t *dst, uint32_t c, __m512 a, __m512 b)
{
    a = _mm512_fmadd_ps(a, m->scale[c], m->minimum[c]);
    b = _mm512_fmadd_ps(b, m->scale[c + 1], m->minimum[c + 1]);
    _mm512_storeu_si512(dst + c * LANES, (__m512i)_mm512_cvtne2ps_pbh(b, a));
}

INLINE __m512 from_bytes(const uint8_t *codes)
{
    __m128i bytes = _mm_loadu_si128((const __m128i *)(const void *)codes);
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes));
}

INLINE void unpack_q8(const struct meaning *m, uint16_t *dst, const uint8_t *codes, uint32_t n)
{
    for (uint32_t k = 0; k < n; k += 2) {
        aq_gemm_ask_near(codes, 2 * AQ_PANEL_ROWS);
        AQ_UNROLL(4)
        for (uint32_t c = 0; c < VECS; c += 2)
            store_pairs(m, dst, c, from_bytes(codes + c * LANES),
                        from_bytes(codes + (c + 1) * LANES));
        codes += 2 * AQ_PANEL_ROWS;
        dst += 2 * AQ_PANEL_ROWS;
    }
}

/* Nibble i of each u32. */
INLINE __m512 from_nibbles(const uint8_t *codes, uint32_t i)
{
    const __m512 values = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    __m512i at = _mm512_loadu_si512(codes + i / 2);
    return _mm512_permutexvar_ps(i % 2 ? _mm512_srli_epi32(at, 4) : at, values);
}

INLINE void unpack_q4(const struct meaning *m, uint16_t *dst, const uint8_t *codes, uint32_t n)
{
    for (uint32_t k = 0; k < n; k += 16) {
        aq_gemm_ask_near(codes, 8 * AQ_PANEL_ROWS);
        uint32_t pairs = n - k < 16 ? (n - k + 1) / 2 : 8;
        AQ_UNROLL(8)
        for (uint32_t i = 0; i < pairs; i++) {
            AQ_UNROLL(4)
            for (uint32_t c = 0; c < VECS; c += 2)
                store_pairs(m, dst + i * 2 * AQ_PANEL_ROWS, c,
                            from_nibbles(codes + c * 4 * LANES, i),
                            from_nibbles(codes + (c + 1) * 4 * LANES, i));
        }
        codes += 8 * AQ_PANEL_ROWS;
        dst += 16 * AQ_PANEL_ROWS;
    }
}

/* ---- straight into sums ---- */

enum {
    STEP_ROWS = 6,
    SUM_VECS = VECS / 2, /* a vector holds the pairs of 16 rows of the panel */
};

struct step {
    const struct aq_gemm_step *s;
    __m512 sum[STEP_ROWS][SUM_VECS];
};

/* sum[.][c] += x[.][k, k + 1] * (16 rows of two columns) */
INLINE void add_pairs(struct step *t, const struct meaning *m, uint32_t rows, uint32_t k,
                      uint32_t c, __m512 a, __m512 b)
{
    a = _mm512_fmadd_ps(a, m->scale[2 * c], m->minimum[2 * c]);
    b = _mm512_fmadd_ps(b, m->scale[2 * c + 1], m->minimum[2 * c + 1]);
    __m512bh w = _mm512_cvtne2ps_pbh(b, a);
    const uint16_t *x = (const uint16_t *)t->s->x + k;
    AQ_UNROLL(6)
    for (uint32_t r = 0; r < rows; r++) {
        int pair;
        memcpy(&pair, x + r * t->s->x_stride, sizeof(pair));
        t->sum[r][c] = _mm512_dpbf16_ps(t->sum[r][c], (__m512bh)_mm512_set1_epi32(pair), w);
    }
}

INLINE void add_q8(struct step *t, const struct meaning *m, uint32_t rows, uint32_t first,
                   const uint8_t *codes)
{
    for (uint32_t k = 0; k < AQ_GROUP_K; k += 2) {
        aq_gemm_ask_stream(codes, 2 * AQ_PANEL_ROWS);
        AQ_UNROLL(4)
        for (uint32_t c = 0; c < SUM_VECS; c++)
            add_pairs(t, m, rows, first + k, c, from_bytes(codes + 2 * c * LANES),
                      from_bytes(codes + (2 * c + 1) * LANES));
        codes += 2 * AQ_PANEL_ROWS;
    }
}

INLINE void add_q4(struct step *t, const struct meaning *m, uint32_t rows, uint32_t first,
                   const uint8_t *codes)
{
    for (uint32_t k = 0; k < AQ_GROUP_K; k += 16) {
        aq_gemm_ask_stream(codes, 8 * AQ_PANEL_ROWS);
        AQ_UNROLL(4)
        for (uint32_t c = 0; c < SUM_VECS; c++) {
            const uint8_t *a = codes + c * 8 * LANES, *b = a + 4 * LANES;
            AQ_UNROLL(8)
            for (uint32_t i = 0; i < 8; i++)
                add_pairs(t, m, rows, first + k + 2 * i, c, from_nibbles(a, i), from_nibbles(b, i));
        }
        codes += 8 * AQ_PANEL_ROWS;
    }
}

/* Whole groups; rows and dtype are constants where this is called, so that the sums are registers.
 */
INLINE void step_groups(const struct aq_gemm_step *s, uint32_t rows, enum aq_dtype dtype)
{
    struct step t = {.s = s};
    const uint8_t *codes = s->w;
    AQ_UNROLL(6)
    for (uint32_t r = 0; r < rows; r++) {
        AQ_UNROLL(4)
        for (uint32_t c = 0; c < SUM_VECS; c++)
            t.sum[r][c] = s->first ? _mm512_setzero_ps()
                                   : _mm512_loadu_ps(s->sums + r * AQ_PANEL_ROWS + c * 16);
    }
    for (uint32_t k = 0; k + AQ_GROUP_K <= s->k; k += AQ_GROUP_K) {
        struct meaning m;
        open_group(&m, codes + aq_group_code_bytes(dtype, AQ_GROUP_K));
        if (dtype == AQ_Q8)
            add_q8(&t, &m, rows, k, codes);
        else
            add_q4(&t, &m, rows, k, codes);
        codes += aq_group_bytes(dtype, AQ_GROUP_K);
    }
    AQ_UNROLL(6)
    for (uint32_t r = 0; r < rows; r++) {
        AQ_UNROLL(4)
        for (uint32_t c = 0; c < SUM_VECS; c++)
            _mm512_storeu_ps(s->sums + r * AQ_PANEL_ROWS + c * 16, t.sum[r][c]);
    }
}

static void step_dtype(const struct aq_gemm_step *s, enum aq_dtype dtype)
{
    switch (s->rows) {
    case 1: dtype == AQ_Q8 ? step_groups(s, 1, AQ_Q8) : step_groups(s, 1, AQ_Q4); break;
    case 2: dtype == AQ_Q8 ? step_groups(s, 2, AQ_Q8) : step_groups(s, 2, AQ_Q4); break;
    case 3: dtype == AQ_Q8 ? step_groups(s, 3, AQ_Q8) : step_groups(s, 3, AQ_Q4); break;
    case 4: dtype == AQ_Q8 ? step_groups(s, 4, AQ_Q8) : step_groups(s, 4, AQ_Q4); break;
    case 5: dtype == AQ_Q8 ? step_groups(s, 5, AQ_Q8) : step_groups(s, 5, AQ_Q4); break;
    case 6: dtype == AQ_Q8 ? step_groups(s, 6, AQ_Q8) : step_groups(s, 6, AQ_Q4); break;
    default: assert(!"1 to STEP_ROWS rows");
    }
}

void aq_gemm_step_codes_avx512bf16(const struct aq_gemm_step *s, enum aq_dtype dtype, bool round)
{
    assert(round);
    uint32_t whole = s->k / AQ_GROUP_K * AQ_GROUP_K;
    if (whole)
        step_dtype(s, dtype);
    if (whole == s->k)
        return;
    /* The last group of a panel may be short: it goes by way of memory. */
    uint16_t pairs[AQ_GROUP_K * AQ_PANEL_ROWS];
    aq_gemm_unpack_avx512bf16(pairs, (const uint8_t *)s->w + aq_panel_offset(dtype, whole), dtype,
                              s->k - whole);
    struct aq_gemm_step rest = *s;
    rest.x = (const uint16_t *)s->x + whole;
    rest.w = pairs;
    rest.k = s->k - whole;
    rest.first = s->first && !whole;
    rest.ahead_bytes = 0;
    aq_gemm_step_avx512bf16(&rest);
}

/* ---- to pairs ---- */

/* The second numbers of a row of pairs become 0. */
INLINE void clear_odd(uint16_t *pairs)
{
    for (uint32_t c = 0; c < VECS; c += 2) {
        __m512i v = _mm512_loadu_si512(pairs + c * LANES);
        _mm512_storeu_si512(pairs + c * LANES, _mm512_and_si512(v, _mm512_set1_epi32(0xffff)));
    }
}

void aq_gemm_unpack_avx512bf16(uint16_t *dst, const uint8_t *src, enum aq_dtype dtype, uint32_t k)
{
    for (uint32_t first = 0; first < k; first += AQ_GROUP_K) {
        uint32_t n = (uint32_t)aq_min_u64(AQ_GROUP_K, k - first);
        struct meaning m;
        open_group(&m, src + aq_group_code_bytes(dtype, n));
        if (dtype == AQ_Q8)
            unpack_q8(&m, dst, src, n);
        else if (n == AQ_GROUP_K)
            unpack_q4(&m, dst, src, AQ_GROUP_K);
        else
            unpack_q4(&m, dst, src, n);
        src += aq_group_bytes(dtype, n);
        dst += (size_t)n * AQ_PANEL_ROWS;
    }
    if (k % 2)
        clear_odd(dst - AQ_PANEL_ROWS); /* the last row of pairs */
}
