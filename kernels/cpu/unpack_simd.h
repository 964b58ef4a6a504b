/* SPDX-License-Identifier: Apache-2.0
 * Groups of codes: to f32, and straight into the sums of a few rows; on vec.h.  Included once by
 * each version's file, after STEP_CODES_ROWS (the most rows whose sums fit the registers) and:
 *   codes_pair(p, v)      v[0], v[1] = the even and odd ones of 2 * VEC_LANES bytes
 *   codes_words(p, w)     w[0], w[1] = the even and odd ones of 2 * VEC_LANES u32
 *
 * Codes pass in the order in which they lie.  Two columns (of Q4: sixteen) of VEC_LANES rows are
 * read together, so that lanes are rows from the start and nothing moves between them. */

enum { UNPACK_VECS = AQ_PANEL_ROWS / VEC_LANES };

/* Scale and minimum of a group, by vectors of rows. */
struct unpack {
    vec scale[UNPACK_VECS], minimum[UNPACK_VECS];
    bool round; /* to bf16 */
};

VEC_FN void unpack_open(struct unpack *u, const uint8_t *scales, bool round)
{
    const uint16_t *half = (const uint16_t *)(const void *)scales;
    for (uint32_t c = 0; c < UNPACK_VECS; c++) {
        u->scale[c] = vec_load_f16(half + c * VEC_LANES);
        u->minimum[c] = vec_load_f16(half + AQ_PANEL_ROWS + c * VEC_LANES);
    }
    u->round = round;
}

VEC_FN vec unpack_value(const struct unpack *u, uint32_t c, vec codes)
{
    vec v = vec_fma(codes, u->scale[c], u->minimum[c]);
    return u->round ? vec_round_bf16(v) : v;
}

VEC_FN void unpack_store(const struct unpack *u, float *dst, uint32_t k, uint32_t c, vec codes)
{
    vec_store(dst + (size_t)k * AQ_PANEL_ROWS + c * VEC_LANES, unpack_value(u, c, codes));
}

/* dst f32 [n][64] = a group of n columns. */
VEC_FN void unpack_group_q8(const struct unpack *u, float *dst, const uint8_t *codes, uint32_t n)
{
    for (uint32_t k = 0; k < n; k += 2) {
        aq_gemm_ask_near(codes, 2 * AQ_PANEL_ROWS);
        AQ_UNROLL(8)
        for (uint32_t c = 0; c < UNPACK_VECS; c++) {
            vec v[2];
            codes_pair(codes + c * 2 * VEC_LANES, v);
            unpack_store(u, dst, k, c, v[0]);
            if (k + 1 < n)
                unpack_store(u, dst, k + 1, c, v[1]);
        }
        codes += 2 * AQ_PANEL_ROWS;
    }
}

/* Columns k to min(k + 16, n). */
VEC_FN void unpack_sixteen(const struct unpack *u, float *dst, const uint8_t *codes, uint32_t k,
                           uint32_t n)
{
    AQ_UNROLL(8)
    for (uint32_t c = 0; c < UNPACK_VECS; c++) {
        vec_int w[2];
        codes_words(codes + c * 8 * VEC_LANES, w);
        AQ_UNROLL(16)
        for (uint32_t i = 0; i < 16; i++) {
            if (k + i < n)
                unpack_store(u, dst, k + i, c,
                             vec_nibble(vec_int_shift_right(w[i % 2], 4 * (i / 2))));
        }
    }
}

VEC_FN void unpack_group_q4(const struct unpack *u, float *dst, const uint8_t *codes, uint32_t n)
{
    uint32_t k = 0;
    for (; k + 16 <= n; k += 16) {
        aq_gemm_ask_near(codes, 8 * AQ_PANEL_ROWS);
        unpack_sixteen(u, dst, codes, k, k + 16);
        codes += 8 * AQ_PANEL_ROWS;
    }
    if (k < n)
        unpack_sixteen(u, dst, codes, k, n);
}

VEC_FN void unpack_groups(float *dst, const uint8_t *src, enum aq_dtype dtype, bool round,
                          uint32_t k)
{
    for (uint32_t first = 0; first < k; first += AQ_GROUP_K) {
        uint32_t n = (uint32_t)aq_min_u64(AQ_GROUP_K, k - first);
        struct unpack u;
        unpack_open(&u, src + aq_group_code_bytes(dtype, n), round);
        if (dtype == AQ_Q8)
            unpack_group_q8(&u, dst, src, n);
        else
            unpack_group_q4(&u, dst, src, n);
        src += aq_group_bytes(dtype, n);
        dst += (size_t)n * AQ_PANEL_ROWS;
    }
}

/* dst f32 [k][64] = k columns of a panel from the beginning of a group on. */
static void unpack_columns(float *dst, const void *src, enum aq_dtype dtype, bool round, uint32_t k)
{
    if (dtype == AQ_Q8 && round)
        unpack_groups(dst, src, AQ_Q8, true, k);
    else if (dtype == AQ_Q8)
        unpack_groups(dst, src, AQ_Q8, false, k);
    else if (round)
        unpack_groups(dst, src, AQ_Q4, true, k);
    else
        unpack_groups(dst, src, AQ_Q4, false, k);
}

/* ---- straight into sums ---- */

struct code_step {
    const struct aq_gemm_step *s;
    struct unpack u;
    uint32_t rows;
    vec sum[STEP_CODES_ROWS][UNPACK_VECS];
};

/* sum[.][c] += x[.][k] * w[k][c..] */
VEC_FN void step_add(struct code_step *t, uint32_t k, uint32_t c, vec codes)
{
    vec w = unpack_value(&t->u, c, codes);
    const float *x = (const float *)t->s->x + k;
    AQ_UNROLL(6)
    for (uint32_t r = 0; r < t->rows; r++)
        t->sum[r][c] = vec_fma(vec_set(x[r * t->s->x_stride]), w, t->sum[r][c]);
}

VEC_FN void step_group_q8(struct code_step *t, uint32_t first, const uint8_t *codes)
{
    for (uint32_t k = first; k < first + AQ_GROUP_K; k += 2) {
        aq_gemm_ask_stream(codes, 2 * AQ_PANEL_ROWS);
        AQ_UNROLL(8)
        for (uint32_t c = 0; c < UNPACK_VECS; c++) {
            vec v[2];
            codes_pair(codes + c * 2 * VEC_LANES, v);
            step_add(t, k, c, v[0]);
            step_add(t, k + 1, c, v[1]);
        }
        codes += 2 * AQ_PANEL_ROWS;
    }
}

VEC_FN void step_group_q4(struct code_step *t, uint32_t first, const uint8_t *codes)
{
    for (uint32_t k = first; k < first + AQ_GROUP_K; k += 16) {
        aq_gemm_ask_stream(codes, 8 * AQ_PANEL_ROWS);
        AQ_UNROLL(8)
        for (uint32_t c = 0; c < UNPACK_VECS; c++) {
            vec_int w[2];
            codes_words(codes + c * 8 * VEC_LANES, w);
            AQ_UNROLL(16)
            for (uint32_t i = 0; i < 16; i++)
                step_add(t, k + i, c, vec_nibble(vec_int_shift_right(w[i % 2], 4 * (i / 2))));
        }
        codes += 8 * AQ_PANEL_ROWS;
    }
}

/* Whole groups; rows, dtype and round are constants where this is called, so that the sums are
 * registers. */
VEC_FN void step_groups(const struct aq_gemm_step *s, uint32_t rows, enum aq_dtype dtype,
                        bool round)
{
    struct code_step t = {.s = s, .rows = rows};
    const uint8_t *codes = s->w;
    AQ_UNROLL(6)
    for (uint32_t r = 0; r < rows; r++) {
        AQ_UNROLL(8)
        for (uint32_t c = 0; c < UNPACK_VECS; c++)
            t.sum[r][c] =
                s->first ? vec_zero() : vec_load(s->sums + r * AQ_PANEL_ROWS + c * VEC_LANES);
    }
    for (uint32_t k = 0; k + AQ_GROUP_K <= s->k; k += AQ_GROUP_K) {
        unpack_open(&t.u, codes + aq_group_code_bytes(dtype, AQ_GROUP_K), round);
        if (dtype == AQ_Q8)
            step_group_q8(&t, k, codes);
        else
            step_group_q4(&t, k, codes);
        codes += aq_group_bytes(dtype, AQ_GROUP_K);
    }
    AQ_UNROLL(6)
    for (uint32_t r = 0; r < rows; r++) {
        AQ_UNROLL(8)
        for (uint32_t c = 0; c < UNPACK_VECS; c++)
            vec_store(s->sums + r * AQ_PANEL_ROWS + c * VEC_LANES, t.sum[r][c]);
    }
}

VEC_FN void step_groups_rows(const struct aq_gemm_step *s, enum aq_dtype dtype, bool round)
{
    switch (s->rows) {
    case 1: step_groups(s, 1, dtype, round); break;
#if STEP_CODES_ROWS > 1
    case 2: step_groups(s, 2, dtype, round); break;
    case 3: step_groups(s, 3, dtype, round); break;
    case 4: step_groups(s, 4, dtype, round); break;
#endif
    default: assert(!"1 to STEP_CODES_ROWS rows");
    }
}
