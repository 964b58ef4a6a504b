/* SPDX-License-Identifier: Apache-2.0
 * Products in bf16 with VDPBF16PS: 6 rows by 64 columns in 24 of the 32 registers.  The instruction
 * multiplies pairs along K exactly and adds both to an f32; subnormal factors and sums count as
 * zero. */
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/versions.h"

#include <assert.h>
#include <immintrin.h>
#include <string.h>

enum {
    STEP_ROWS = 6,
    UNROLL = 4, /* pairs per turn of a step's loop */
    VECS = 4,   /* a vector holds the pairs of 16 columns */
};

#define INLINE static inline __attribute__((always_inline))

/* The pair x[0], x[1] in all lanes. */
INLINE __m512bh pair(const uint16_t *x)
{
    int bits;
    memcpy(&bits, x, sizeof(bits));
    return (__m512bh)_mm512_set1_epi32(bits);
}

/* Adds one pair of k.  `last`: of the pair only x[0] exists. */
INLINE void step_pair(__m512 sum[][VECS], uint32_t rows, const uint16_t *x, size_t x_stride,
                      const uint16_t *w, bool last)
{
    __m512bh wk[VECS];
#pragma GCC unroll 4
    for (uint32_t c = 0; c < VECS; c++)
        wk[c] = (__m512bh)_mm512_loadu_si512(w + c * 32);
#pragma GCC unroll 6
    for (uint32_t r = 0; r < rows; r++) {
        const uint16_t *xr = x + r * x_stride;
        __m512bh xk = last ? (__m512bh)_mm512_set1_epi32(xr[0]) : pair(xr);
#pragma GCC unroll 4
        for (uint32_t c = 0; c < VECS; c++)
            sum[r][c] = _mm512_dpbf16_ps(sum[r][c], xk, wk[c]);
    }
}

/* rows is a constant where this is called, so that the sums are registers. */
INLINE void step_rows(const struct aq_gemm_step *s, uint32_t rows)
{
    __m512 sum[STEP_ROWS][VECS];
    const uint16_t *x = s->x, *w = s->w;
#pragma GCC unroll 6
    for (uint32_t r = 0; r < rows; r++) {
#pragma GCC unroll 4
        for (uint32_t c = 0; c < VECS; c++)
            sum[r][c] = s->first ? _mm512_setzero_ps()
                                 : _mm512_loadu_ps(s->sums + r * AQ_PANEL_ROWS + c * 16);
    }
    const char *ahead = s->ahead;
    uint32_t pairs = s->k / 2, turns = pairs / UNROLL;
    uint32_t lines = turns ? (s->ahead_bytes / AQ_GEMM_LINE + turns - 1) / turns : 0;
    for (uint32_t t = 0; t < turns; t++) {
#pragma GCC unroll 4
        for (uint32_t i = 0; i < UNROLL; i++)
            step_pair(sum, rows, x + 2 * i, s->x_stride, w + i * 2 * AQ_PANEL_ROWS, false);
        x += 2 * UNROLL;
        w += 2 * UNROLL * AQ_PANEL_ROWS;
        aq_gemm_ask(&ahead, lines, s->near);
    }
    for (uint32_t i = 0; i < pairs % UNROLL; i++) {
        step_pair(sum, rows, x, s->x_stride, w, false);
        x += 2;
        w += 2 * AQ_PANEL_ROWS;
    }
    if (s->k & 1)
        step_pair(sum, rows, x, s->x_stride, w, true);
#pragma GCC unroll 6
    for (uint32_t r = 0; r < rows; r++) {
#pragma GCC unroll 4
        for (uint32_t c = 0; c < VECS; c++)
            _mm512_storeu_ps(s->sums + r * AQ_PANEL_ROWS + c * 16, sum[r][c]);
    }
}

void aq_gemm_step_avx512bf16(const struct aq_gemm_step *s)
{
    switch (s->rows) {
    case 1: step_rows(s, 1); break;
    case 2: step_rows(s, 2); break;
    case 3: step_rows(s, 3); break;
    case 4: step_rows(s, 4); break;
    case 5: step_rows(s, 5); break;
    case 6: step_rows(s, 6); break;
    default: assert(!"1 to STEP_ROWS rows");
    }
}

/* Rows k and k + 1 of [K][64] become pairs.  The instruction that rounds takes subnormals for zero,
 * as the product would. */
void aq_gemm_convert_avx512bf16(void *dst, const void *src, enum aq_dtype dtype, bool round,
                                uint32_t k)
{
    assert(round && dtype != AQ_BF16);
    if (aq_dtype_is_quantised(dtype)) {
        aq_gemm_unpack_avx512bf16(dst, src, dtype, k);
        return;
    }
    const __m512i weave =
        _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                         21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    uint16_t *to = dst;
    for (uint32_t i = 0; i < k; i += 2) {
        for (uint32_t c = 0; c < AQ_PANEL_ROWS; c += 16) {
            size_t at = (size_t)i * AQ_PANEL_ROWS + c;
            const char *from = (const char *)src + at * aq_dtype_bytes(dtype);
            aq_gemm_ask_near(from, AQ_GEMM_LINE);
            __m512 a, b = _mm512_setzero_ps();
            if (dtype == AQ_F32) {
                aq_gemm_ask_near(from + AQ_PANEL_ROWS * 4, AQ_GEMM_LINE);
                a = _mm512_loadu_ps(from);
                if (i + 1 < k)
                    b = _mm512_loadu_ps(from + AQ_PANEL_ROWS * 4);
            } else {
                a = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)from));
                from += AQ_PANEL_ROWS * 2;
                if (i + 1 < k)
                    b = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)from));
            }
            __m512i both = (__m512i)_mm512_cvtne2ps_pbh(b, a);
            _mm512_storeu_si512(to, _mm512_permutexvar_epi16(weave, both));
            to += 32;
        }
    }
}

/* From three steps of rows on, blocks come from L2 as fast as they are multiplied, and longer ones
 * load and store sums less often: 32 rows by 16 KiB blocks took 1.06 of the time on a Zen 4. */
static const struct aq_gemm_ops ops = {.compute = AQ_BF16,
                                       .step_rows = STEP_ROWS,
                                       .chunk_rows = AQ_GEMM_CHUNK_ROWS,
                                       .few_rows = 2 * STEP_ROWS,
                                       .block_k = AQ_GEMM_BLOCK_K_BF16,
                                       .stream_ahead = AQ_GEMM_STREAM_AHEAD,
                                       .panels = 1,
                                       .step = aq_gemm_step_avx512bf16,
                                       .step_codes = aq_gemm_step_codes_avx512bf16,
                                       .step_codes_rows = STEP_ROWS,
                                       .convert = aq_gemm_convert_avx512bf16,
                                       .finish = aq_gemm_finish_avx512};

void aq_product_bf16_avx512bf16(struct aq_exec *ex, const struct aq_product *p)
{
    assert(p->x_dtype == AQ_BF16);
    aq_gemm_run(ex, p, &ops);
}

void aq_unpack_avx512bf16(struct aq_exec *ex, const struct aq_unpack *u)
{
    if (u->dst_dtype == AQ_BF16)
        aq_gemm_unpack(ex, u, &ops);
    else
        aq_unpack_avx512(ex, u);
}
