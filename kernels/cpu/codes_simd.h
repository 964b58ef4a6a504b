/* SPDX-License-Identifier: Apache-2.0
 * Products on codes (codes.h), on vec.h; included once by each version's file, which defines
 * before:
 *   CODE_BYTES        of a code, 1 or 2
 *   BLOCK_K, FINISH   of struct aq_gemm_ops
 *   STEP_VECS         vectors of columns a step holds in registers
 *   codes_dot(s, x, w)   s + the products of the codes in each 32 bits of x (signed) and w
 *   codes_store(p, v)    VEC_LANES codes of x from 32-bit numbers
 *   codes_spread8(dst, src, n), codes_spread4(...)   the codes of n columns of a group as a step
 *                     takes them, n filled up to AQ_GROUP_K with zeros
 *   codes_load8(src, i, column)   words i of VEC_LANES columns of a whole group of int8 */

enum {
    STEP_ROWS = 6,
    PANEL_VECS = AQ_PANEL_ROWS / VEC_LANES,
    CODES = 4 / CODE_BYTES, /* in 32 bits */
    GROUP_WORDS = AQ_GROUP_K / CODES,
    STEP_CODES_ROWS = 4,
};

/* ---- rows ---- */

VEC_FN vec_int magnitude_bits(vec v)
{
    return vec_int_and(vec_bits(v), vec_int_set(0x7fffffff));
}

/* Numbers at `at` of a row of x, of which n are left. */
VEC_FN vec load_x(const struct aq_product *p, size_t at, uint32_t n)
{
    if (n >= VEC_LANES)
        return vec_load_as(p->x, p->x_dtype, at);
    return n ? vec_load_as_n(p->x, p->x_dtype, at, n) : vec_zero();
}

VEC_FN void make_group(const struct aq_product *p, size_t at, uint32_t n, char *dst)
{
    enum { VECS = AQ_GROUP_K / VEC_LANES };
    vec v[VECS];
    vec_int most = vec_int_set(0), sum = vec_int_set(0);
    for (uint32_t i = 0; i < VECS; i++) {
        uint32_t done = i * VEC_LANES;
        v[i] = load_x(p, at + done, n > done ? n - done : 0);
        most = vec_int_max(most, magnitude_bits(v[i]));
    }
    struct aq_x_scale s = aq_x_scale_of((uint32_t)vec_int_most(most));
    for (uint32_t i = 0; i < VECS; i++) {
        vec_int code = vec_bits(vec_to_int(vec_mul(v[i], vec_set(s.inverse))));
        sum = vec_int_add(sum, code);
        codes_store(dst + (size_t)i * VEC_LANES * CODE_BYTES, code);
    }
    float rest[2] = {s.scale, s.scale * (float)vec_int_sum(sum)};
    memcpy(dst + AQ_GROUP_K * CODE_BYTES, rest, sizeof(rest));
}

static void make_rows(const struct aq_codes_rows *c)
{
    char *dst = c->dst;
    for (uint32_t r = 0; r < c->rows; r++) {
        size_t at = (c->first + r) * c->p->x_stride;
        for (uint32_t k = 0; k < c->p->k; k += AQ_GROUP_K) {
            uint32_t n = (uint32_t)aq_min_u64(AQ_GROUP_K, c->p->k - k);
            if (n == AQ_GROUP_K)
                make_group(c->p, at + k, AQ_GROUP_K, dst);
            else
                make_group(c->p, at + k, n, dst);
            dst += aq_codes_x_group(CODE_BYTES);
        }
    }
}

/* ---- panels ---- */

/* Scales and minima of a group. */
VEC_FN void load_numbers(float *dst, const char *src)
{
    for (uint32_t c = 0; c < 2 * AQ_PANEL_ROWS; c += VEC_LANES)
        vec_store(dst + c, vec_load_as(src, AQ_F16, c));
}

VEC_FN void spread_group(uint8_t *dst, const uint8_t *src, enum aq_dtype dtype, uint32_t n)
{
    if (dtype == AQ_Q8)
        codes_spread8(dst, src, n);
    else
        codes_spread4(dst, src, n);
}

static void convert(void *dst, const void *src, enum aq_dtype dtype, bool round, uint32_t k)
{
    char *to = dst;
    const char *from = src;
    for (uint32_t done = 0; done < k; done += AQ_GROUP_K) {
        uint32_t n = (uint32_t)aq_min_u64(AQ_GROUP_K, k - done);
        size_t code_bytes = aq_group_code_bytes(dtype, n), bytes = aq_group_bytes(dtype, n);
        aq_gemm_ask_near(from, bytes);
        spread_group((uint8_t *)to, (const uint8_t *)from, dtype, n);
        load_numbers((float *)(void *)(to + AQ_GROUP_K * AQ_PANEL_ROWS * CODE_BYTES),
                     from + code_bytes);
        to += aq_codes_w_group(CODE_BYTES);
        from += bytes;
    }
}

/* ---- sums ---- */

/* GCC moves sums to memory and back without it. */
#define KEEP_SUMS                                                                                  \
    for (uint32_t r = 0; r < rows; r++) {                                                          \
        for (uint32_t c = 0; c < vecs; c++)                                                        \
            __asm__("" : "+v"(sum[r][c]));                                                         \
    }

/* Words i of VEC_LANES columns: as convert made them, or of int8 as they lie in the panel. */
VEC_FN vec_int load_words(const char *w, uint32_t i, uint32_t column, bool as_they_lie)
{
    if (as_they_lie)
        return codes_load8((const uint8_t *)w, i, column);
    const char *at = w + ((size_t)i * AQ_PANEL_ROWS + column) * 4;
    return vec_int_load((const int32_t *)(const void *)at);
}

/* sums = sums + scales * exact sums in 32 bits + minima * sum of the codes of x, by two fma. */
VEC_FN void add_group(float *sums, const vec_int *sum, uint32_t vecs, const char *of_x,
                      const float *numbers, bool first)
{
    float two[2];
    memcpy(two, of_x, sizeof(two));
    vec scale = vec_set(two[0]), total = vec_set(two[1]);
#pragma GCC unroll 8
    for (uint32_t c = 0; c < vecs; c++) {
        float *at = sums + c * VEC_LANES;
        vec y = first ? vec_zero() : vec_load(at);
        vec both = vec_mul(vec_load(numbers + c * VEC_LANES), scale);
        y = vec_fma(both, vec_from_int(sum[c]), y);
        y = vec_fma(vec_load(numbers + AQ_PANEL_ROWS + c * VEC_LANES), total, y);
        vec_store(at, y);
    }
}

/* One group, `vecs` vectors of columns from `column` on.  rows, vecs and as_they_lie are constants
 * where this is called, so that the sums are registers. */
VEC_FN void step_group(float *sums, uint32_t rows, uint32_t vecs, uint32_t column, const char *x,
                       size_t x_stride, const char *w, const float *numbers, bool first,
                       bool as_they_lie)
{
    vec_int sum[STEP_ROWS][PANEL_VECS];
#pragma GCC unroll 6
    for (uint32_t r = 0; r < rows; r++) {
#pragma GCC unroll 8
        for (uint32_t c = 0; c < vecs; c++)
            sum[r][c] = vec_int_set(0);
    }
    AQ_UNROLL(16)
    for (uint32_t i = 0; i < GROUP_WORDS; i++) {
        vec_int wk[PANEL_VECS];
#pragma GCC unroll 8
        for (uint32_t c = 0; c < vecs; c++)
            wk[c] = load_words(w, i, column + c * VEC_LANES, as_they_lie);
#pragma GCC unroll 6
        for (uint32_t r = 0; r < rows; r++) {
            int32_t word;
            memcpy(&word, x + r * x_stride + 4 * (size_t)i, sizeof(word));
            vec_int xr = vec_int_set(word);
#pragma GCC unroll 8
            for (uint32_t c = 0; c < vecs; c++)
                sum[r][c] = codes_dot(sum[r][c], xr, wk[c]);
        }
        KEEP_SUMS
    }
#pragma GCC unroll 6
    for (uint32_t r = 0; r < rows; r++)
        add_group(sums + r * AQ_PANEL_ROWS + column, sum[r], vecs,
                  x + r * x_stride + AQ_GROUP_K * CODE_BYTES, numbers + column, first);
}

VEC_FN void step_rows(const struct aq_gemm_step *s, uint32_t rows)
{
    uint32_t groups = (uint32_t)aq_div_up(s->k, AQ_GROUP_K);
    uint32_t lines = (s->ahead_bytes / AQ_GEMM_LINE + groups - 1) / groups;
    const char *ahead = s->ahead, *x = s->x, *w = s->w;
    for (uint32_t g = 0; g < groups; g++) {
        const float *numbers =
            (const float *)(const void *)(w + AQ_GROUP_K * AQ_PANEL_ROWS * CODE_BYTES);
        aq_gemm_ask(&ahead, lines, s->near);
        for (uint32_t column = 0; column < AQ_PANEL_ROWS; column += STEP_VECS * VEC_LANES)
            step_group(s->sums, rows, STEP_VECS, column, x, s->x_stride, w, numbers,
                       s->first && g == 0, false);
        x += aq_codes_x_group(CODE_BYTES);
        w += aq_codes_w_group(CODE_BYTES);
    }
}

static void step(const struct aq_gemm_step *s)
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

/* A group of int8 as it lies in the panel; of int4, and the last and short one of a row, by way of
 * memory. */
VEC_FN void step_codes_rows(const struct aq_gemm_step *s, enum aq_dtype dtype, uint32_t rows)
{
    const char *x = s->x, *w = s->w;
    for (uint32_t k = 0; k < s->k; k += AQ_GROUP_K) {
        _Alignas(64) char made[AQ_GROUP_K * AQ_PANEL_ROWS * CODE_BYTES];
        float numbers[2 * AQ_PANEL_ROWS];
        uint32_t n = (uint32_t)aq_min_u64(AQ_GROUP_K, s->k - k);
        size_t bytes = aq_group_bytes(dtype, n);
        bool as_they_lie = dtype == AQ_Q8 && n == AQ_GROUP_K;
        aq_gemm_ask_near(w, bytes);
        load_numbers(numbers, w + aq_group_code_bytes(dtype, n));
        if (!as_they_lie)
            spread_group((uint8_t *)made, (const uint8_t *)w, dtype, n);
        for (uint32_t column = 0; column < AQ_PANEL_ROWS; column += STEP_VECS * VEC_LANES) {
            if (as_they_lie)
                step_group(s->sums, rows, STEP_VECS, column, x, s->x_stride, w, numbers,
                           s->first && k == 0, true);
            else
                step_group(s->sums, rows, STEP_VECS, column, x, s->x_stride, made, numbers,
                           s->first && k == 0, false);
        }
        x += aq_codes_x_group(CODE_BYTES);
        w += bytes;
    }
}

static void step_codes(const struct aq_gemm_step *s, enum aq_dtype dtype, bool round)
{
    switch (s->rows) {
    case 1: step_codes_rows(s, dtype, 1); break;
    case 2: step_codes_rows(s, dtype, 2); break;
    case 3: step_codes_rows(s, dtype, 3); break;
    case 4: step_codes_rows(s, dtype, 4); break;
    default: assert(!"1 to STEP_CODES_ROWS rows");
    }
}

static const struct aq_gemm_ops ops = {.compute = AQ_Q8,
                                       .code_bytes = CODE_BYTES,
                                       .step_rows = STEP_ROWS,
                                       .chunk_rows = AQ_GEMM_CHUNK_ROWS,
                                       .few_rows = AQ_GEMM_FEW_ROWS,
                                       .block_k = BLOCK_K,
                                       .stream_ahead = AQ_GEMM_STREAM_AHEAD,
                                       .panels = 1,
                                       .step = step,
                                       .step_codes = step_codes,
                                       .step_codes_rows = STEP_CODES_ROWS,
                                       .convert = convert,
                                       .finish = FINISH};
