/* SPDX-License-Identifier: Apache-2.0
 * kernels/cpu/vec_avx512.h - vec.h on AVX-512 F, BW, DQ, VL.  Included by vec.h only. */
#ifndef AQ_KERNELS_CPU_VEC_AVX512_H
#define AQ_KERNELS_CPU_VEC_AVX512_H

#define VEC_VERSION(kernel) aq_##kernel##_avx512

#define VEC_ADDS_QUADS 1 /* vec_int_add_quads() is there */

enum { VEC_LANES = 16 };
typedef __m512 vec;
typedef __m512i vec_int;
typedef __mmask16 vec_mask; /* one bit a lane */

/* The four lanes from 4 n on. */
VEC_FN vec_mask vec_fourth(int n)
{
    return (vec_mask)(0xf << 4 * n);
}
/* The lanes below n. */
VEC_FN vec_mask vec_first(uint32_t n)
{
    return n >= 16 ? 0xffff : (vec_mask)((1u << n) - 1);
}
VEC_FN vec_mask vec_both(vec_mask a, vec_mask b)
{
    return (vec_mask)(a & b);
}
VEC_FN vec_mask vec_either(vec_mask a, vec_mask b)
{
    return (vec_mask)(a | b);
}

VEC_FN vec vec_zero(void)
{
    return _mm512_setzero_ps();
}
VEC_FN vec vec_set(float a)
{
    return _mm512_set1_ps(a);
}
VEC_FN vec vec_load(const float *p)
{
    return _mm512_loadu_ps(p);
}
VEC_FN void vec_store(float *p, vec a)
{
    _mm512_storeu_ps(p, a);
}
VEC_FN vec vec_load_n(const float *p, uint32_t n)
{
    return _mm512_maskz_loadu_ps(vec_first(n), p);
}
VEC_FN void vec_store_n(float *p, vec a, uint32_t n)
{
    _mm512_mask_storeu_ps(p, vec_first(n), a);
}
/* Lane i is p[i * stride]. */
VEC_FN vec vec_gather(const float *p, int stride)
{
    __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    return _mm512_i32gather_ps(_mm512_mullo_epi32(lanes, _mm512_set1_epi32(stride)), p, 4);
}
VEC_FN vec vec_add(vec a, vec b)
{
    return _mm512_add_ps(a, b);
}
VEC_FN vec vec_sub(vec a, vec b)
{
    return _mm512_sub_ps(a, b);
}
VEC_FN vec vec_mul(vec a, vec b)
{
    return _mm512_mul_ps(a, b);
}
VEC_FN vec vec_div(vec a, vec b)
{
    return _mm512_div_ps(a, b);
}
/* a * b + c */
VEC_FN vec vec_fma(vec a, vec b, vec c)
{
    return _mm512_fmadd_ps(a, b, c);
}
/* a * b - c */
VEC_FN vec vec_fms(vec a, vec b, vec c)
{
    return _mm512_fmsub_ps(a, b, c);
}
/* c - a * b */
VEC_FN vec vec_fnma(vec a, vec b, vec c)
{
    return _mm512_fnmadd_ps(a, b, c);
}
/* The larger one; b where either is NaN. */
VEC_FN vec vec_max(vec a, vec b)
{
    return _mm512_max_ps(a, b);
}
/* The larger one of |a| and of b, which is not negative; b where either is NaN. */
VEC_FN vec vec_max_size(vec a, vec b)
{
    return _mm512_range_ps(a, b, 0x0b);
}
VEC_FN vec vec_abs(vec a)
{
    return _mm512_abs_ps(a);
}
VEC_FN vec vec_round(vec a)
{
    return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
/* The bits of the nearest integers. */
VEC_FN vec vec_to_int(vec a)
{
    return _mm512_castsi512_ps(_mm512_cvtps_epi32(a));
}
/* a * 2^n for whole n, where a and the result are normal. */
VEC_FN vec vec_scale_exponent(vec a, vec n)
{
    return _mm512_scalef_ps(a, n);
}

VEC_FN vec_mask vec_less(vec a, vec b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ);
}
VEC_FN vec_mask vec_equal(vec a, vec b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ);
}
/* Neither NaN nor infinite. */
VEC_FN vec_mask vec_finite(vec a)
{
    return (vec_mask)~_mm512_fpclass_ps_mask(a, 0x99);
}
VEC_FN vec vec_zero_where(vec_mask m, vec a)
{
    return _mm512_maskz_mov_ps((vec_mask)~m, a);
}
/* a where m, else b. */
VEC_FN vec vec_select(vec_mask m, vec a, vec b)
{
    return _mm512_mask_blend_ps(m, b, a);
}
/* a * b + c where m, else c. */
VEC_FN vec vec_fma_where(vec_mask m, vec a, vec b, vec c)
{
    return _mm512_mask3_fmadd_ps(a, b, c, m);
}
/* a * b where m, else 0. */
VEC_FN vec vec_mul_where(vec_mask m, vec a, vec b)
{
    return _mm512_maskz_mul_ps(m, a, b);
}
/* Where m, the smaller one, else b; b where either is NaN. */
VEC_FN vec vec_min_where(vec_mask m, vec a, vec b)
{
    return _mm512_mask_min_ps(b, m, a, b);
}
VEC_FN bool vec_any(vec_mask m)
{
    return m != 0;
}
VEC_FN uint32_t vec_count(vec_mask m)
{
    return (uint32_t)__builtin_popcount(m);
}
/* Bit i is lane i. */
VEC_FN uint32_t vec_mask_bits(vec_mask m)
{
    return m;
}

/* ---- sums of whole numbers of 64 bits, each of two lanes ---- */

typedef __m512i vec_long;

VEC_FN vec_long vec_long_zero(void)
{
    return _mm512_setzero_si512();
}
/* Adds a's lanes, which are from 0 to below 2^51, the rest of 1 cut off. */
VEC_FN vec_long vec_long_add_whole(vec_long sum, vec a)
{
    sum = _mm512_add_epi64(sum, _mm512_cvttps_epi64(_mm512_castps512_ps256(a)));
    return _mm512_add_epi64(sum, _mm512_cvttps_epi64(_mm512_extractf32x8_ps(a, 1)));
}
VEC_FN uint64_t vec_long_sum(vec_long a)
{
    return (uint64_t)_mm512_reduce_add_epi64(a);
}

VEC_FN vec_int vec_int_set(int32_t a)
{
    return _mm512_set1_epi32(a);
}
VEC_FN vec_int vec_int_load(const int32_t *p)
{
    return _mm512_loadu_si512(p);
}
VEC_FN void vec_int_store(int32_t *p, vec_int a)
{
    _mm512_storeu_si512(p, a);
}
VEC_FN vec_int vec_int_add(vec_int a, vec_int b)
{
    return _mm512_add_epi32(a, b);
}
VEC_FN vec_int vec_int_and(vec_int a, vec_int b)
{
    return _mm512_and_si512(a, b);
}
VEC_FN vec_int vec_int_max(vec_int a, vec_int b)
{
    return _mm512_max_epi32(a, b);
}
VEC_FN int32_t vec_int_most(vec_int a)
{
    return _mm512_reduce_max_epi32(a);
}
VEC_FN int32_t vec_int_sum(vec_int a)
{
    return _mm512_reduce_add_epi32(a);
}
/* 0, 1, 2, ... */
VEC_FN vec_int vec_int_lanes(void)
{
    return _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
}
VEC_FN vec_int vec_int_select(vec_mask m, vec_int a, vec_int b)
{
    return _mm512_mask_blend_epi32(m, b, a);
}
/* a > b, signed. */
VEC_FN vec_mask vec_int_greater(vec_int a, vec_int b)
{
    return _mm512_cmpgt_epi32_mask(a, b);
}

/* ---- codes ---- */

VEC_FN vec_int vec_bits(vec a)
{
    return _mm512_castps_si512(a);
}
VEC_FN vec vec_from_int(vec_int a)
{
    return _mm512_cvtepi32_ps(a);
}
VEC_FN vec_int vec_int_shift_right(vec_int a, uint32_t n)
{
    return _mm512_srli_epi32(a, n);
}
/* The lowest four bits of each lane, whatever lies above: the permutation looks at no others. */
VEC_FN vec vec_nibble(vec_int a)
{
    const __m512 values = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    return _mm512_permutexvar_ps(a, values);
}
/* The first n bytes, the other lanes 0. */
VEC_FN vec_int vec_load_u8(const uint8_t *p, uint32_t n)
{
    return _mm512_cvtepu8_epi32(n >= 16 ? _mm_loadu_si128((const __m128i *)(const void *)p)
                                        : _mm_maskz_loadu_epi8(vec_first(n), p));
}
/* Whole numbers below 256. */
VEC_FN void vec_store_u8(uint8_t *p, vec a, uint32_t n)
{
    _mm512_mask_cvtepi32_storeu_epi8(p, vec_first(n), _mm512_cvtps_epi32(a));
}

/* ---- whole numbers of 8 bits ---- */

/* To each lane the products of the four bytes of a, which are unsigned, and of b, which are signed:
 * by VPDPBUSD, which the CPU must have. */
VEC_FN vec_int vec_int_add_quads(vec_int sum, vec_int a, vec_int b)
{
    __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
    return sum;
}
/* The same of two bytes to each half lane, by what every CPU has: sums must fit 16 bits. */
VEC_FN vec_int vec_int_add_pairs(vec_int sum, vec_int a, vec_int b)
{
    return _mm512_add_epi16(sum, _mm512_maddubs_epi16(a, b));
}
/* The sums of both halves of each lane. */
VEC_FN vec_int vec_int_join_halves(vec_int a)
{
    return _mm512_madd_epi16(a, _mm512_set1_epi16(1));
}
VEC_FN vec_int vec_int_shift_left(vec_int a, int n)
{
    return _mm512_slli_epi32(a, n);
}
/* Eight bytes, in every two lanes. */
VEC_FN vec_int vec_int_repeat(const int8_t *p)
{
    long long eight;
    memcpy(&eight, p, sizeof(eight));
    return _mm512_set1_epi64(eight);
}
/* The sums of every two lanes: a's, then b's. */
VEC_FN vec_int vec_int_add_neighbours(vec_int a, vec_int b)
{
    const __m512i lane =
        _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    __m512i next = _mm512_add_epi32(lane, _mm512_set1_epi32(1));
    return _mm512_add_epi32(_mm512_permutex2var_epi32(a, lane, b),
                            _mm512_permutex2var_epi32(a, next, b));
}
/* The lowest byte of each lane. */
VEC_FN void vec_store_bytes(int8_t *p, vec_int a)
{
    _mm_storeu_si128((__m128i *)(void *)p, _mm512_cvtepi32_epi8(a));
}

/* ---- 16-bit floats ---- */

VEC_FN vec vec_from_f16(__m256i h)
{
    return _mm512_cvtph_ps(h);
}
VEC_FN vec vec_from_bf16(__m256i h)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}
VEC_FN vec vec_load_f16(const uint16_t *p)
{
    return vec_from_f16(_mm256_loadu_si256((const __m256i *)p));
}
VEC_FN vec vec_load_bf16(const uint16_t *p)
{
    return vec_from_bf16(_mm256_loadu_si256((const __m256i *)p));
}
VEC_FN vec vec_load_f16_n(const uint16_t *p, uint32_t n)
{
    return vec_from_f16(_mm256_maskz_loadu_epi16(vec_first(n), p));
}
VEC_FN vec vec_load_bf16_n(const uint16_t *p, uint32_t n)
{
    return vec_from_bf16(_mm256_maskz_loadu_epi16(vec_first(n), p));
}
VEC_FN void vec_store_f16(uint16_t *p, vec a)
{
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
}
/* Adding 0x7fff and the lowest kept bit rounds to nearest even; a NaN is made quiet instead. */
VEC_FN void vec_store_bf16(uint16_t *p, vec a)
{
    __m512i bits = _mm512_castps_si512(a), high = _mm512_srli_epi32(bits, 16);
    __m512i odd = _mm512_and_si512(high, _mm512_set1_epi32(1));
    __m512i sum = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    __m512i quiet = _mm512_or_si512(high, _mm512_set1_epi32(0x40));
    __m512i out = _mm512_mask_mov_epi32(_mm512_srli_epi32(sum, 16),
                                        _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q), quiet);
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtepi32_epi16(out));
}
/* To bf16 and back: nearest even, a NaN is made quiet. */
VEC_FN vec vec_round_bf16(vec a)
{
    __m512i bits = _mm512_castps_si512(a), high = _mm512_set1_epi32((int)0xffff0000u);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i sum = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
    sum = _mm512_mask_mov_epi32(sum, _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q), quiet);
    return _mm512_castsi512_ps(_mm512_and_si512(sum, high));
}
/* Rounded towards minus, plus infinity. */
VEC_FN void vec_store_f16_down(uint16_t *p, vec a)
{
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtps_ph(a, _MM_FROUND_TO_NEG_INF));
}
VEC_FN void vec_store_f16_up(uint16_t *p, vec a)
{
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtps_ph(a, _MM_FROUND_TO_POS_INF));
}

/* ---- across lanes ---- */

/* Lanes l and l + 8 first, then 4, 2, 1 apart. */
VEC_FN float vec_sum(vec a)
{
    __m256 b = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 c = _mm_add_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
    c = _mm_add_ps(c, _mm_movehl_ps(c, c));
    return _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)));
}
/* The sums of the lanes of four vectors, in another order. */
VEC_FN void vec_store_sums(float *to, const vec a[4])
{
    vec b = vec_add(_mm512_shuffle_f32x4(a[0], a[1], 0x44), _mm512_shuffle_f32x4(a[0], a[1], 0xee));
    vec c = vec_add(_mm512_shuffle_f32x4(a[2], a[3], 0x44), _mm512_shuffle_f32x4(a[2], a[3], 0xee));
    b = vec_add(_mm512_shuffle_f32x4(b, c, 0x88), _mm512_shuffle_f32x4(b, c, 0xdd));
    b = vec_add(b, _mm512_permute_ps(b, 0x4e));
    b = vec_add(b, _mm512_permute_ps(b, 0xb1));
    const __m512i fourths = _mm512_setr_epi32(0, 4, 8, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
    _mm_storeu_ps(to, _mm512_castps512_ps128(_mm512_permutexvar_ps(fourths, b)));
}
VEC_FN float vec_first_lane(vec a)
{
    return _mm512_cvtss_f32(a);
}
/* The largest lane, in all lanes. */
VEC_FN vec vec_max_all(vec a)
{
    a = vec_max(a, _mm512_shuffle_f32x4(a, a, 0x4e));
    a = vec_max(a, _mm512_shuffle_f32x4(a, a, 0xb1));
    a = vec_max(a, _mm512_shuffle_ps(a, a, 0x4e));
    return vec_max(a, _mm512_shuffle_ps(a, a, 0xb1));
}
/* The largest lane of vector i, in the four lanes from 4 i on; of up to four vectors. */
VEC_FN vec vec_max_each(const vec *a, int n)
{
    vec b = a[0], c;
    if (n == 1)
        return vec_max_all(b);
    b = vec_max(_mm512_shuffle_f32x4(b, a[1], 0x44), _mm512_shuffle_f32x4(b, a[1], 0xee));
    c = b;
    if (n > 2) {
        c = n > 3 ? a[3] : a[2];
        c = vec_max(_mm512_shuffle_f32x4(a[2], c, 0x44), _mm512_shuffle_f32x4(a[2], c, 0xee));
    }
    b = vec_max(_mm512_shuffle_f32x4(b, c, 0x88), _mm512_shuffle_f32x4(b, c, 0xdd));
    b = vec_max(b, _mm512_permute_ps(b, 0x4e));
    return vec_max(b, _mm512_permute_ps(b, 0xb1));
}

/* Lane i of the result is what `join` makes of the lanes of row[i], all rows in vec_sum()'s order:
 * halves, quarters and so on are joined while rows are packed side by side. */
VEC_FN vec vec_join_rows(const vec row[VEC_LANES], vec join(vec, vec))
{
    vec half[8], quarter[4];
    for (int i = 0; i < 4; i++) {
        for (int j = 0; j < 2; j++) {
            vec a = row[i + 8 * j], b = row[i + 8 * j + 4];
            half[2 * i + j] =
                join(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
        }
        vec a = half[2 * i], b = half[2 * i + 1];
        quarter[i] = join(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
    }
    vec x = join(_mm512_unpacklo_ps(quarter[0], quarter[1]),
                 _mm512_unpackhi_ps(quarter[0], quarter[1]));
    vec y = join(_mm512_unpacklo_ps(quarter[2], quarter[3]),
                 _mm512_unpackhi_ps(quarter[2], quarter[3]));
    __m512d xd = _mm512_castps_pd(x), yd = _mm512_castps_pd(y);
    return join(_mm512_castpd_ps(_mm512_unpacklo_pd(xd, yd)),
                _mm512_castpd_ps(_mm512_unpackhi_pd(xd, yd)));
}

/* Stores shares of `each` lanes (4, 8 or all) at p, p + stride, ... */
VEC_FN void vec_store_shares(float *p, size_t stride, int each, vec a)
{
    __m512d wide = _mm512_castps_pd(a);
    switch (each) {
    case 16: vec_store(p, a); return;
    case 8:
        _mm256_storeu_ps(p, _mm512_castps512_ps256(a));
        _mm256_storeu_ps(p + stride, _mm256_castpd_ps(_mm512_extractf64x4_pd(wide, 1)));
        return;
    default:
        _mm_storeu_ps(p, _mm512_castps512_ps128(a));
        _mm_storeu_ps(p + stride, _mm512_extractf32x4_ps(a, 1));
        _mm_storeu_ps(p + 2 * stride, _mm512_extractf32x4_ps(a, 2));
        _mm_storeu_ps(p + 3 * stride, _mm512_extractf32x4_ps(a, 3));
    }
}

/* Rows become columns. */
VEC_FN void vec_transpose(vec r[VEC_LANES])
{
    vec t[16];
    for (int i = 0; i < 16; i += 4) { /* 4 x 4 within each 128-bit part */
        __m512d a = _mm512_castps_pd(_mm512_unpacklo_ps(r[i], r[i + 1]));
        __m512d b = _mm512_castps_pd(_mm512_unpackhi_ps(r[i], r[i + 1]));
        __m512d c = _mm512_castps_pd(_mm512_unpacklo_ps(r[i + 2], r[i + 3]));
        __m512d d = _mm512_castps_pd(_mm512_unpackhi_ps(r[i + 2], r[i + 3]));
        t[i] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, c));
        t[i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, c));
        t[i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(b, d));
        t[i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(b, d));
    }
    for (int i = 0; i < 4; i++) { /* then the 128-bit parts */
        vec a = _mm512_shuffle_f32x4(t[i], t[i + 4], 0x88);
        vec b = _mm512_shuffle_f32x4(t[i + 8], t[i + 12], 0x88);
        vec c = _mm512_shuffle_f32x4(t[i], t[i + 4], 0xdd);
        vec d = _mm512_shuffle_f32x4(t[i + 8], t[i + 12], 0xdd);
        r[i] = _mm512_shuffle_f32x4(a, b, 0x88);
        r[i + 8] = _mm512_shuffle_f32x4(a, b, 0xdd);
        r[i + 4] = _mm512_shuffle_f32x4(c, d, 0x88);
        r[i + 12] = _mm512_shuffle_f32x4(c, d, 0xdd);
    }
}

#endif
