/* SPDX-License-Identifier: Apache-2.0
 * kernels/cpu/vec_avx2.h - vec.h on AVX2, FMA, F16C.  Included by vec.h only. */
#ifndef AQ_KERNELS_CPU_VEC_AVX2_H
#define AQ_KERNELS_CPU_VEC_AVX2_H

#define VEC_VERSION(kernel) aq_##kernel##_avx2

#define VEC_ADDS_QUADS 0

enum { VEC_LANES = 8 };
typedef __m256 vec;
typedef __m256i vec_int;
typedef __m256 vec_mask; /* all bits of a lane, or none */

VEC_FN vec_int vec_int_set(int32_t a)
{
    return _mm256_set1_epi32(a);
}
/* 0, 1, 2, ... */
VEC_FN vec_int vec_int_lanes(void)
{
    return _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
}
/* a > b, signed. */
VEC_FN vec_mask vec_int_greater(vec_int a, vec_int b)
{
    return _mm256_castsi256_ps(_mm256_cmpgt_epi32(a, b));
}
/* The four lanes from 4 n on. */
VEC_FN vec_mask vec_fourth(int n)
{
    __m256i m = n ? _mm256_setr_epi32(0, 0, 0, 0, -1, -1, -1, -1)
                  : _mm256_setr_epi32(-1, -1, -1, -1, 0, 0, 0, 0);
    return _mm256_castsi256_ps(m);
}
/* The lanes below n. */
VEC_FN vec_mask vec_first(uint32_t n)
{
    return vec_int_greater(vec_int_set((int32_t)n), vec_int_lanes());
}
VEC_FN vec_mask vec_both(vec_mask a, vec_mask b)
{
    return _mm256_and_ps(a, b);
}
VEC_FN vec_mask vec_either(vec_mask a, vec_mask b)
{
    return _mm256_or_ps(a, b);
}
VEC_FN vec_int vec_int_load(const int32_t *p)
{
    return _mm256_loadu_si256((const __m256i *)p);
}
VEC_FN void vec_int_store(int32_t *p, vec_int a)
{
    _mm256_storeu_si256((__m256i *)p, a);
}
VEC_FN vec_int vec_int_add(vec_int a, vec_int b)
{
    return _mm256_add_epi32(a, b);
}
VEC_FN vec_int vec_int_and(vec_int a, vec_int b)
{
    return _mm256_and_si256(a, b);
}
VEC_FN vec_int vec_int_max(vec_int a, vec_int b)
{
    return _mm256_max_epi32(a, b);
}
VEC_FN int32_t vec_int_most(vec_int a)
{
    __m128i m = _mm_max_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4e));
    return _mm_cvtsi128_si32(_mm_max_epi32(m, _mm_shuffle_epi32(m, 0xb1)));
}
VEC_FN int32_t vec_int_sum(vec_int a)
{
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1)));
}

VEC_FN vec vec_zero(void)
{
    return _mm256_setzero_ps();
}
VEC_FN vec vec_set(float a)
{
    return _mm256_set1_ps(a);
}
VEC_FN vec vec_load(const float *p)
{
    return _mm256_loadu_ps(p);
}
VEC_FN void vec_store(float *p, vec a)
{
    _mm256_storeu_ps(p, a);
}
VEC_FN vec vec_load_n(const float *p, uint32_t n)
{
    return _mm256_maskload_ps(p, _mm256_castps_si256(vec_first(n)));
}
VEC_FN void vec_store_n(float *p, vec a, uint32_t n)
{
    _mm256_maskstore_ps(p, _mm256_castps_si256(vec_first(n)), a);
}
/* Lane i is p[i * stride]. */
VEC_FN vec vec_gather(const float *p, int stride)
{
    return _mm256_i32gather_ps(p, _mm256_mullo_epi32(vec_int_lanes(), vec_int_set(stride)), 4);
}
VEC_FN vec vec_add(vec a, vec b)
{
    return _mm256_add_ps(a, b);
}
VEC_FN vec vec_sub(vec a, vec b)
{
    return _mm256_sub_ps(a, b);
}
VEC_FN vec vec_mul(vec a, vec b)
{
    return _mm256_mul_ps(a, b);
}
VEC_FN vec vec_div(vec a, vec b)
{
    return _mm256_div_ps(a, b);
}
/* a * b + c */
VEC_FN vec vec_fma(vec a, vec b, vec c)
{
    return _mm256_fmadd_ps(a, b, c);
}
/* a * b - c */
VEC_FN vec vec_fms(vec a, vec b, vec c)
{
    return _mm256_fmsub_ps(a, b, c);
}
/* c - a * b */
VEC_FN vec vec_fnma(vec a, vec b, vec c)
{
    return _mm256_fnmadd_ps(a, b, c);
}
/* The larger one; b where either is NaN. */
VEC_FN vec vec_max(vec a, vec b)
{
    return _mm256_max_ps(a, b);
}
VEC_FN vec vec_abs(vec a)
{
    return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a);
}
/* The larger one of |a| and of b, which is not negative; b where either is NaN. */
VEC_FN vec vec_max_size(vec a, vec b)
{
    return vec_max(vec_abs(a), b);
}
VEC_FN vec vec_round(vec a)
{
    return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
/* The bits of the nearest integers. */
VEC_FN vec vec_to_int(vec a)
{
    return _mm256_castsi256_ps(_mm256_cvtps_epi32(a));
}
/* a * 2^n for whole n, where a and the result are normal. */
VEC_FN vec vec_scale_exponent(vec a, vec n)
{
    __m256i shift = _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23);
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(a), shift));
}

VEC_FN vec_mask vec_less(vec a, vec b)
{
    return _mm256_cmp_ps(a, b, _CMP_LT_OQ);
}
VEC_FN vec_mask vec_equal(vec a, vec b)
{
    return _mm256_cmp_ps(a, b, _CMP_EQ_OQ);
}
/* Neither NaN nor infinite: the difference with itself is 0 only then. */
VEC_FN vec_mask vec_finite(vec a)
{
    return vec_equal(vec_sub(a, a), vec_zero());
}
VEC_FN vec vec_zero_where(vec_mask m, vec a)
{
    return _mm256_andnot_ps(m, a);
}
/* a where m, else b. */
VEC_FN vec vec_select(vec_mask m, vec a, vec b)
{
    return _mm256_blendv_ps(b, a, m);
}
VEC_FN vec_int vec_int_select(vec_mask m, vec_int a, vec_int b)
{
    return _mm256_blendv_epi8(b, a, _mm256_castps_si256(m));
}
/* a * b + c where m, else c. */
VEC_FN vec vec_fma_where(vec_mask m, vec a, vec b, vec c)
{
    return vec_select(m, vec_fma(a, b, c), c);
}
/* a * b where m, else 0. */
VEC_FN vec vec_mul_where(vec_mask m, vec a, vec b)
{
    return vec_both(m, vec_mul(a, b));
}
/* Where m, the smaller one, else b; b where either is NaN. */
VEC_FN vec vec_min_where(vec_mask m, vec a, vec b)
{
    return vec_select(m, _mm256_min_ps(a, b), b);
}
VEC_FN bool vec_any(vec_mask m)
{
    return _mm256_movemask_ps(m) != 0;
}
VEC_FN uint32_t vec_count(vec_mask m)
{
    return (uint32_t)__builtin_popcount((unsigned)_mm256_movemask_ps(m));
}
/* Bit i is lane i. */
VEC_FN uint32_t vec_mask_bits(vec_mask m)
{
    return (uint32_t)_mm256_movemask_ps(m);
}

/* ---- sums of whole numbers of 64 bits, each of two lanes ---- */

typedef __m256i vec_long;

VEC_FN vec_long vec_long_zero(void)
{
    return _mm256_setzero_si256();
}
/* Numbers below 2^51, the rest of 1 cut off: added to 2^52, they are the lowest bits. */
VEC_FN vec_long vec_long_whole(__m128 a)
{
    const __m256d high = _mm256_set1_pd(0x1p52);
    __m256d whole = _mm256_round_pd(_mm256_cvtps_pd(a), _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC);
    return _mm256_sub_epi64(_mm256_castpd_si256(_mm256_add_pd(whole, high)),
                            _mm256_castpd_si256(high));
}
/* Adds a's lanes, which are from 0 to below 2^51, the rest of 1 cut off. */
VEC_FN vec_long vec_long_add_whole(vec_long sum, vec a)
{
    sum = _mm256_add_epi64(sum, vec_long_whole(_mm256_castps256_ps128(a)));
    return _mm256_add_epi64(sum, vec_long_whole(_mm256_extractf128_ps(a, 1)));
}
VEC_FN uint64_t vec_long_sum(vec_long a)
{
    __m128i s = _mm_add_epi64(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    return (uint64_t)_mm_cvtsi128_si64(s) + (uint64_t)_mm_extract_epi64(s, 1);
}

/* ---- codes ---- */

VEC_FN vec_int vec_bits(vec a)
{
    return _mm256_castps_si256(a);
}
VEC_FN vec vec_from_int(vec_int a)
{
    return _mm256_cvtepi32_ps(a);
}
VEC_FN vec_int vec_int_shift_right(vec_int a, uint32_t n)
{
    return _mm256_srli_epi32(a, (int)n);
}
/* The lowest four bits of each lane, whatever lies above. */
VEC_FN vec vec_nibble(vec_int a)
{
    return _mm256_cvtepi32_ps(_mm256_and_si256(a, _mm256_set1_epi32(15)));
}
/* The first n bytes, the other lanes 0. */
VEC_FN vec_int vec_load_u8(const uint8_t *p, uint32_t n)
{
    uint8_t part[8] = {0};
    if (n < 8) {
        memcpy(part, p, n);
        p = part;
    }
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p));
}
/* Whole numbers below 256. */
VEC_FN void vec_store_u8(uint8_t *p, vec a, uint32_t n)
{
    uint8_t part[8];
    __m256i i = _mm256_cvtps_epi32(a);
    __m128i words = _mm_packus_epi32(_mm256_castsi256_si128(i), _mm256_extracti128_si256(i, 1));
    _mm_storel_epi64((__m128i *)(void *)part, _mm_packus_epi16(words, words));
    memcpy(p, part, n < 8 ? n : 8);
}

/* ---- whole numbers of 8 bits ---- */

/* Not of AVX2 (VEC_ADDS_QUADS): named by code that never gets here. */
VEC_FN vec_int vec_int_add_quads(vec_int sum, vec_int a, vec_int b)
{
    (void)a;
    (void)b;
    assert(!"AVX512-VNNI");
    return sum;
}
/* To each half lane the products of both bytes of a, which are unsigned, and of b, which are
 * signed: sums must fit 16 bits. */
VEC_FN vec_int vec_int_add_pairs(vec_int sum, vec_int a, vec_int b)
{
    return _mm256_add_epi16(sum, _mm256_maddubs_epi16(a, b));
}
/* The sums of both halves of each lane. */
VEC_FN vec_int vec_int_join_halves(vec_int a)
{
    return _mm256_madd_epi16(a, _mm256_set1_epi16(1));
}
VEC_FN vec_int vec_int_shift_left(vec_int a, int n)
{
    return _mm256_slli_epi32(a, n);
}
/* Eight bytes, in every two lanes. */
VEC_FN vec_int vec_int_repeat(const int8_t *p)
{
    long long eight;
    memcpy(&eight, p, sizeof(eight));
    return _mm256_set1_epi64x(eight);
}
/* The sums of every two lanes: a's, then b's. */
VEC_FN vec_int vec_int_add_neighbours(vec_int a, vec_int b)
{
    return _mm256_permute4x64_epi64(_mm256_hadd_epi32(a, b), 0xd8);
}
/* The lowest byte of each lane. */
VEC_FN void vec_store_bytes(int8_t *p, vec_int a)
{
    const __m256i first = _mm256_set1_epi32(0x0c080400);
    __m256i four = _mm256_shuffle_epi8(a, first);
    __m256i eight = _mm256_permutevar8x32_epi32(four, _mm256_setr_epi32(0, 4, 0, 0, 0, 0, 0, 0));
    _mm_storel_epi64((__m128i *)(void *)p, _mm256_castsi256_si128(eight));
}

/* ---- 16-bit floats ---- */

VEC_FN vec vec_from_f16(__m128i h)
{
    return _mm256_cvtph_ps(h);
}
VEC_FN vec vec_from_bf16(__m128i h)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}
VEC_FN vec vec_load_f16(const uint16_t *p)
{
    return vec_from_f16(_mm_loadu_si128((const __m128i *)p));
}
VEC_FN vec vec_load_bf16(const uint16_t *p)
{
    return vec_from_bf16(_mm_loadu_si128((const __m128i *)p));
}
VEC_FN __m128i vec_load_halves_n(const uint16_t *p, uint32_t n)
{
    uint16_t half[8] = {0};
    memcpy(half, p, n * sizeof(*half));
    return _mm_loadu_si128((const __m128i *)half);
}
VEC_FN vec vec_load_f16_n(const uint16_t *p, uint32_t n)
{
    return vec_from_f16(vec_load_halves_n(p, n));
}
VEC_FN vec vec_load_bf16_n(const uint16_t *p, uint32_t n)
{
    return vec_from_bf16(vec_load_halves_n(p, n));
}
VEC_FN void vec_store_f16(uint16_t *p, vec a)
{
    _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
}
/* Adding 0x7fff and the lowest kept bit rounds to nearest even; a NaN is made quiet instead. */
VEC_FN void vec_store_bf16(uint16_t *p, vec a)
{
    __m256i bits = _mm256_castps_si256(a), high = _mm256_srli_epi32(bits, 16);
    __m256i odd = _mm256_and_si256(high, _mm256_set1_epi32(1));
    __m256i sum = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
    __m256i quiet = _mm256_or_si256(high, _mm256_set1_epi32(0x40));
    __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_UNORD_Q));
    __m256i out = _mm256_blendv_epi8(_mm256_srli_epi32(sum, 16), quiet, nan);
    __m128i packed =
        _mm_packus_epi32(_mm256_castsi256_si128(out), _mm256_extracti128_si256(out, 1));
    _mm_storeu_si128((__m128i *)p, packed);
}
/* To bf16 and back: nearest even, a NaN is made quiet. */
VEC_FN vec vec_round_bf16(vec a)
{
    __m256i bits = _mm256_castps_si256(a), high = _mm256_set1_epi32((int)0xffff0000u);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    __m256i sum = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
    __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_UNORD_Q));
    return _mm256_castsi256_ps(_mm256_and_si256(_mm256_blendv_epi8(sum, quiet, nan), high));
}
/* Rounded towards minus, plus infinity. */
VEC_FN void vec_store_f16_down(uint16_t *p, vec a)
{
    _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(a, _MM_FROUND_TO_NEG_INF));
}
VEC_FN void vec_store_f16_up(uint16_t *p, vec a)
{
    _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(a, _MM_FROUND_TO_POS_INF));
}

/* ---- across lanes ---- */

/* Lanes l and l + 4 first, then 2, 1 apart. */
VEC_FN float vec_sum(vec a)
{
    __m128 c = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    c = _mm_add_ps(c, _mm_movehl_ps(c, c));
    return _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)));
}
/* The sums of the lanes of four vectors, in another order. */
VEC_FN void vec_store_sums(float *to, const vec a[4])
{
    vec b = _mm256_hadd_ps(_mm256_hadd_ps(a[0], a[1]), _mm256_hadd_ps(a[2], a[3]));
    _mm_storeu_ps(to, _mm_add_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1)));
}
VEC_FN float vec_first_lane(vec a)
{
    return _mm256_cvtss_f32(a);
}
/* The largest lane, in all lanes. */
VEC_FN vec vec_max_all(vec a)
{
    a = vec_max(a, _mm256_permute2f128_ps(a, a, 1));
    a = vec_max(a, _mm256_shuffle_ps(a, a, 0x4e));
    return vec_max(a, _mm256_shuffle_ps(a, a, 0xb1));
}
/* The largest lane of vector i, in the four lanes from 4 i on; of up to two vectors. */
VEC_FN vec vec_max_each(const vec *a, int n)
{
    if (n == 1)
        return vec_max_all(a[0]);
    vec b =
        vec_max(_mm256_permute2f128_ps(a[0], a[1], 0x20), _mm256_permute2f128_ps(a[0], a[1], 0x31));
    b = vec_max(b, _mm256_shuffle_ps(b, b, 0x4e));
    return vec_max(b, _mm256_shuffle_ps(b, b, 0xb1));
}

/* Lane i of the result is what `join` makes of the lanes of row[i], all rows in vec_sum()'s order:
 * halves, quarters and so on are joined while rows are packed side by side. */
VEC_FN vec vec_join_rows(const vec row[VEC_LANES], vec join(vec, vec))
{
    vec half[4];
    for (int i = 0; i < 4; i++) {
        half[i] = join(_mm256_permute2f128_ps(row[i], row[i + 4], 0x20),
                       _mm256_permute2f128_ps(row[i], row[i + 4], 0x31));
    }
    vec x = join(_mm256_unpacklo_ps(half[0], half[1]), _mm256_unpackhi_ps(half[0], half[1]));
    vec y = join(_mm256_unpacklo_ps(half[2], half[3]), _mm256_unpackhi_ps(half[2], half[3]));
    __m256d xd = _mm256_castps_pd(x), yd = _mm256_castps_pd(y);
    return join(_mm256_castpd_ps(_mm256_unpacklo_pd(xd, yd)),
                _mm256_castpd_ps(_mm256_unpackhi_pd(xd, yd)));
}

/* Stores shares of `each` lanes (4 or all) at p, p + stride, ... */
VEC_FN void vec_store_shares(float *p, size_t stride, int each, vec a)
{
    if (each == VEC_LANES) {
        vec_store(p, a);
        return;
    }
    _mm_storeu_ps(p, _mm256_castps256_ps128(a));
    _mm_storeu_ps(p + stride, _mm256_extractf128_ps(a, 1));
}

/* Rows become columns. */
VEC_FN void vec_transpose(vec r[VEC_LANES])
{
    vec t[8];
    for (int i = 0; i < 8; i += 4) { /* 4 x 4 within each 128-bit part */
        __m256d a = _mm256_castps_pd(_mm256_unpacklo_ps(r[i], r[i + 1]));
        __m256d b = _mm256_castps_pd(_mm256_unpackhi_ps(r[i], r[i + 1]));
        __m256d c = _mm256_castps_pd(_mm256_unpacklo_ps(r[i + 2], r[i + 3]));
        __m256d d = _mm256_castps_pd(_mm256_unpackhi_ps(r[i + 2], r[i + 3]));
        t[i] = _mm256_castpd_ps(_mm256_unpacklo_pd(a, c));
        t[i + 1] = _mm256_castpd_ps(_mm256_unpackhi_pd(a, c));
        t[i + 2] = _mm256_castpd_ps(_mm256_unpacklo_pd(b, d));
        t[i + 3] = _mm256_castpd_ps(_mm256_unpackhi_pd(b, d));
    }
    for (int i = 0; i < 4; i++) { /* then the 128-bit parts */
        r[i] = _mm256_permute2f128_ps(t[i], t[i + 4], 0x20);
        r[i + 4] = _mm256_permute2f128_ps(t[i], t[i + 4], 0x31);
    }
}

#endif
