/* SPDX-License-Identifier: Apache-2.0
 * Products in f32, on vec.h; included once by each version's file, which defines before:
 *   STEP_VECS    vectors of columns a step of several rows holds in registers
 *   STEP_PAIRS_ROWS   step_pairs_rows of struct aq_gemm_ops
 *   vec_pair_even, vec_pair_odd   the f32 of the first and second bf16 of VEC_LANES pairs */

enum {
    STEP_ROWS = 6,
    UNROLL = 4, /* k per turn of a step's loop */
    PANEL_VECS = AQ_PANEL_ROWS / VEC_LANES,
};

/* ---- sums ---- */

/* Columns of one k from w on: f32, or of bf16 pairs the first or the second. */
VEC_FN vec load_column(const char *w, bool pairs, bool second)
{
    const uint16_t *pair = (const uint16_t *)(const void *)w;
    if (!pairs)
        return vec_load((const float *)(const void *)w);
    return second ? vec_pair_odd(pair) : vec_pair_even(pair);
}

/* Adds x[.][k] * w[k][.] for one k. */
VEC_FN void step_k(vec sum[][PANEL_VECS], uint32_t rows, uint32_t vecs, const float *x,
                   size_t x_stride, const char *w, bool pairs, bool second)
{
    vec wk[PANEL_VECS];
#pragma GCC unroll 8
    for (uint32_t c = 0; c < vecs; c++)
        wk[c] = load_column(w + c * sizeof(vec), pairs, second);
#pragma GCC unroll 6
    for (uint32_t r = 0; r < rows; r++) {
        vec xr = vec_set(x[r * x_stride]);
#pragma GCC unroll 8
        for (uint32_t c = 0; c < vecs; c++)
            sum[r][c] = vec_fma(xr, wk[c], sum[r][c]);
    }
}

/* `rows` rows by `vecs` vectors of columns from `column` on; both are constants where this is
 * called, so that the sums are registers, and so is whether w is bf16 in pairs, which take as many
 * bytes as one k in f32. */
VEC_FN void step_columns(const struct aq_gemm_step *s, uint32_t rows, uint32_t vecs,
                         uint32_t column, const char *ahead, uint32_t ahead_lines, bool pairs)
{
    enum { LINE = AQ_PANEL_ROWS * sizeof(float) };
    vec sum[STEP_ROWS][PANEL_VECS];
    const float *x = s->x;
    const char *w = (const char *)s->w + column * sizeof(float);
    float *sums = s->sums + column;
    uint32_t each = pairs ? 2 : 1; /* k of a line */
#pragma GCC unroll 6
    for (uint32_t r = 0; r < rows; r++) {
#pragma GCC unroll 8
        for (uint32_t c = 0; c < vecs; c++)
            sum[r][c] = s->first ? vec_zero() : vec_load(sums + r * AQ_PANEL_ROWS + c * VEC_LANES);
    }
    uint32_t turns = s->k / UNROLL;
    uint32_t lines = turns ? (ahead_lines + turns - 1) / turns : 0;
    for (uint32_t t = 0; t < turns; t++) {
#pragma GCC unroll 4
        for (uint32_t k = 0; k < UNROLL; k++)
            step_k(sum, rows, vecs, x + k, s->x_stride, w + k / each * LINE, pairs, k % each);
        x += UNROLL;
        w += UNROLL / each * LINE;
        aq_gemm_ask(&ahead, lines, s->near);
    }
    for (uint32_t k = 0; k < s->k % UNROLL; k++)
        step_k(sum, rows, vecs, x + k, s->x_stride, w + k / each * LINE, pairs, k % each);
#pragma GCC unroll 6
    for (uint32_t r = 0; r < rows; r++) {
#pragma GCC unroll 8
        for (uint32_t c = 0; c < vecs; c++)
            vec_store(sums + r * AQ_PANEL_ROWS + c * VEC_LANES, sum[r][c]);
    }
}

/* One row takes the panel in a single pass, which is what nearing weights from memory wants;
 * more rows take as many columns at a time as there are registers. */
VEC_FN void step_rows(const struct aq_gemm_step *s, uint32_t rows, bool pairs)
{
    uint32_t vecs = rows == 1 ? PANEL_VECS : STEP_VECS, passes = PANEL_VECS / vecs;
    uint32_t lines = s->ahead_bytes / AQ_GEMM_LINE / passes;
    for (uint32_t i = 0; i < passes; i++)
        step_columns(s, rows, vecs, i * vecs * VEC_LANES,
                     s->ahead + (size_t)i * lines * AQ_GEMM_LINE, lines, pairs);
}

VEC_FN void step_any(const struct aq_gemm_step *s, bool pairs)
{
    switch (s->rows) {
    case 1: step_rows(s, 1, pairs); break;
    case 2: step_rows(s, 2, pairs); break;
    case 3: step_rows(s, 3, pairs); break;
    case 4: step_rows(s, 4, pairs); break;
    case 5: step_rows(s, 5, pairs); break;
    case 6: step_rows(s, 6, pairs); break;
    default: assert(!"1 to STEP_ROWS rows");
    }
}

static void step(const struct aq_gemm_step *s)
{
    s->pairs ? step_any(s, true) : step_any(s, false);
}

/* Straight from codes; the last group of a panel may be short, and goes by way of memory. */
static void step_codes(const struct aq_gemm_step *s, enum aq_dtype dtype, bool round)
{
    uint32_t whole = s->k / AQ_GROUP_K * AQ_GROUP_K;
    if (whole) {
        if (dtype == AQ_Q8)
            round ? step_groups_rows(s, AQ_Q8, true) : step_groups_rows(s, AQ_Q8, false);
        else
            round ? step_groups_rows(s, AQ_Q4, true) : step_groups_rows(s, AQ_Q4, false);
    }
    if (whole == s->k)
        return;
    float w[AQ_GROUP_K * AQ_PANEL_ROWS];
    unpack_columns(w, (const char *)s->w + aq_panel_offset(dtype, whole), dtype, round,
                   s->k - whole);
    struct aq_gemm_step rest = *s;
    rest.x = (const float *)s->x + whole;
    rest.w = w;
    rest.k = s->k - whole;
    rest.first = s->first && !whole;
    rest.ahead_bytes = 0;
    step(&rest);
}

/* ---- blocks in other types ---- */

VEC_FN void convert_col64(float *dst, const void *src, enum aq_dtype dtype, bool round, uint32_t k)
{
    for (uint32_t i = 0; i < k; i++) {
        for (uint32_t c = 0; c < AQ_PANEL_ROWS; c += VEC_LANES) {
            size_t at = (size_t)i * AQ_PANEL_ROWS + c;
            if (c % 32 == 0)
                aq_gemm_ask_near((const char *)src + at * aq_dtype_bytes(dtype), AQ_GEMM_LINE);
            vec v = vec_load_as(src, dtype, at);
            vec_store(dst + at, round ? vec_round_bf16(v) : v);
        }
    }
}

static void convert_pair64(float *dst, const uint16_t *src, uint32_t k)
{
    for (uint32_t i = 0; i < k; i += 2) {
        const uint16_t *pairs = src + (size_t)i * AQ_PANEL_ROWS;
        float *even = dst + (size_t)i * AQ_PANEL_ROWS;
        for (uint32_t c = 0; c < AQ_PANEL_ROWS; c += VEC_LANES) {
            aq_gemm_ask_near(pairs + 2 * c, AQ_GEMM_LINE);
            vec_store(even + c, vec_pair_even(pairs + 2 * c));
            if (i + 1 < k)
                vec_store(even + AQ_PANEL_ROWS + c, vec_pair_odd(pairs + 2 * c));
        }
    }
}

static void convert(void *dst, const void *src, enum aq_dtype dtype, bool round, uint32_t k)
{
    if (dtype == AQ_BF16)
        convert_pair64(dst, src, k);
    else if (dtype == AQ_F16)
        convert_col64(dst, src, AQ_F16, round, k);
    else if (dtype == AQ_F32)
        convert_col64(dst, src, AQ_F32, round, k);
    else
        unpack_columns(dst, src, dtype, round, k);
}

/* Numbers of a group of columns that bf16 holds: the lower halves are 0. */
static void narrow(uint16_t *dst, const float *src, uint32_t k)
{
    for (uint32_t i = 0; i < k; i += 2) {
        const float *even = src + (size_t)i * AQ_PANEL_ROWS;
        for (uint32_t c = 0; c < AQ_PANEL_ROWS; c += VEC_LANES) {
            vec odd = i + 1 < k ? vec_load(even + AQ_PANEL_ROWS + c) : vec_zero();
            vec_store_pairs(dst + (size_t)i * AQ_PANEL_ROWS + 2 * c, vec_load(even + c), odd);
        }
    }
}

static void widen(float *dst, const uint16_t *x, size_t x_stride, uint32_t rows, uint32_t k)
{
    for (uint32_t r = 0; r < rows; r++) {
        uint32_t i = 0;
        for (; i + VEC_LANES <= k; i += VEC_LANES)
            vec_store(dst + i, vec_load_bf16(x + i));
        if (i < k)
            vec_store_n(dst + i, vec_load_bf16_n(x + i, k - i), k - i);
        dst += k;
        x += x_stride;
    }
}

/* ---- bias, activation, store ---- */

/* 1 / (1 + exp(-v)), from the exponential of -|v|, which cannot overflow. */
VEC_FN vec sigmoid(vec v)
{
    vec_mask negative = vec_less(v, vec_zero());
    vec e = vec_exp(vec_select(negative, v, vec_sub(vec_zero(), v)));
    vec one = vec_set(1);
    return vec_div(vec_select(negative, e, one), vec_add(one, e));
}

/* v * Phi(v), with Phi(-|v|) = erfc(t) / 2, t = |v| / sqrt 2, and
 * erfc(t) = exp(-t^2) p(q) / (1 + 2t), q = (t - 2) / (t + 2): the form of Shepherd and Laframboise,
 * "Chebyshev approximation of (1 + 2x) exp(x^2) erfc x in 0 <= x < infinity", Math. Comp. 36, 1981;
 * p interpolates at Chebyshev nodes for t in [0, 9.5] (relative error 2.1e-8).  v^2 is taken in two
 * parts, since an error in an exponent is one in every digit.  Within 6 ulp. */
VEC_FN vec gelu(vec v)
{
    static const float p[] = {-0x1.c0ca9ep-12f, -0x1.4da66ap-10f, 0x1.5b5074p-10f, 0x1.1c14e6p-7f,
                              -0x1.080822p-7f,  -0x1.bc2138p-5f,  0x1.4ffbacp-3f,  -0x1.5407cp-3f,
                              -0x1.7bf604p-4f,  0x1.46e80ep+0f};
    vec_mask negative = vec_less(v, vec_zero());
    vec one = vec_set(1), half = vec_set(0.5f), two = vec_set(2);
    vec t = vec_mul(vec_select(negative, vec_sub(vec_zero(), v), v), vec_set(0x1.6a09e6p-1f));
    vec q = vec_div(vec_sub(t, two), vec_add(t, two));
    vec sum = vec_set(p[0]);
    for (uint32_t i = 1; i < AQ_ARRAY_LEN(p); i++)
        sum = vec_fma(sum, q, vec_set(p[i]));
    vec square = vec_mul(v, v), rest = vec_sub(vec_zero(), vec_fnma(v, v, square));
    vec e = vec_exp(vec_mul(square, vec_set(-0.5f)));
    e = vec_mul(e, vec_fnma(half, rest, one));
    vec tail = vec_div(vec_mul(vec_mul(sum, half), e), vec_fma(two, t, one));
    return vec_mul(v, vec_select(negative, tail, vec_sub(one, tail)));
}

/* 0.5 v (1 + tanh u) = v * sigmoid(2u), u = sqrt(2 / pi) (v + 0.044715 v^3). */
VEC_FN vec gelu_tanh(vec v)
{
    vec cube = vec_mul(vec_mul(v, v), v);
    vec u = vec_mul(vec_fma(cube, vec_set(0.044715f), v), vec_set(0x1.988454p+0f));
    return vec_mul(v, sigmoid(u));
}

VEC_FN vec activate(enum aq_activation activation, vec v)
{
    switch (activation) {
    case AQ_ACT_NONE: return v;
    case AQ_ACT_RELU: return vec_max(vec_zero(), v); /* NaN stays */
    case AQ_ACT_GELU: return gelu(v);
    case AQ_ACT_GELU_TANH: return gelu_tanh(v);
    case AQ_ACT_SILU: return vec_mul(v, sigmoid(v));
    }
    assert(!"a known activation");
    return v;
}

VEC_FN void finish_vec(const struct aq_product *p, vec v, uint32_t row, uint32_t column, uint32_t n)
{
    if (p->bias)
        v = vec_add(v, vec_load_n(p->bias + column, n));
    v = activate(p->activation, v);
    size_t at = row * p->y_stride + column;
    if (p->combine == AQ_COMBINE_ADD)
        v = vec_add(vec_load_n((const float *)p->y + at, n), v);
    else if (p->combine == AQ_COMBINE_MULTIPLY)
        v = vec_mul(vec_load_as_n(p->y, p->y_dtype, at, n), v);
    if (p->y_dtype == AQ_F32)
        vec_store_n((float *)p->y + at, v, n);
    else if (n == VEC_LANES)
        vec_store_bf16((uint16_t *)p->y + at, v);
    else
        vec_store_as_n(p->y, AQ_BF16, at, v, n);
}

static void finish(const struct aq_gemm_finish *f)
{
    for (uint32_t r = 0; r < f->rows; r++) {
        for (uint32_t c = 0; c < f->columns; c += VEC_LANES) {
            uint32_t n = (uint32_t)aq_min_u64(VEC_LANES, f->columns - c);
            finish_vec(f->p, vec_load(f->sums + r * AQ_PANEL_ROWS + c), f->row + r, f->column + c,
                       n);
        }
    }
}

static const struct aq_gemm_ops ops = {.compute = AQ_F32,
                                       .step_rows = STEP_ROWS,
                                       .chunk_rows = AQ_GEMM_CHUNK_ROWS,
                                       .few_rows = AQ_GEMM_FEW_ROWS,
                                       .block_k = AQ_GEMM_BLOCK_K_F32,
                                       .stream_ahead = AQ_GEMM_STREAM_AHEAD,
                                       .panels = AQ_GEMM_PANELS,
                                       .step_pairs_rows = STEP_PAIRS_ROWS,
                                       .step = step,
                                       .step_codes_rows = STEP_CODES_ROWS,
                                       .step_codes = step_codes,
                                       .convert = convert,
                                       .widen = widen,
                                       .narrow = narrow,
                                       .finish = finish};
