/* SPDX-License-Identifier: Apache-2.0
 * Panels, on vec.h; included once by each version's file, which defines before:
 *   halves_load(p, n)    n uint16_t, each in the low half of a 32-bit lane, other lanes zero
 *   halves_store(p, v)   the low halves of all lanes, next to each other
 *   halves_pair(a, b)    a in the low, b in the high half of each lane
 *
 * Squares of VEC_LANES rows by VEC_LANES k are transposed in registers as 32-bit lanes: f32, or
 * 16-bit elements by themselves.  Same dtypes are moved as bits, others go through f32.
 *
 * Codes: a group of VEC_LANES rows is transposed to f32, so that each lane finds the range of its
 * own row; then pairs (or eights) of columns are put together as numbers, which f32 holds exactly.
 * */

enum { PACK_LINE = 64, PACK_AHEAD = 512 }; /* bytes */

struct pack {
    void *dst;
    const void *src;
    enum aq_dtype dst_dtype, src_dtype;
    enum aq_layout dst_layout;
    uint32_t rows, k;
};

/* VEC_LANES elements of a row from k on, n of them inside the row, the rest zero. */
VEC_FN vec pack_load(const struct pack *p, enum aq_dtype src, bool bits, uint32_t row, uint32_t k,
                     uint32_t n)
{
    size_t at = (size_t)row * p->k + k;
    if (bits && src != AQ_F32)
        return halves_load((const uint16_t *)p->src + at, n);
    return n == VEC_LANES ? vec_load_as(p->src, src, at) : vec_load_as_n(p->src, src, at, n);
}

/* f32 lanes as 16-bit ones. */
VEC_FN vec pack_encode(enum aq_dtype dst, vec v)
{
    uint16_t half[VEC_LANES];
    vec_store_as(half, dst, 0, v);
    return halves_load(half, VEC_LANES);
}

/* Lanes are rows row..row + VEC_LANES of column k (and k + 1). */
VEC_FN void pack_store_pair(const struct pack *p, enum aq_dtype dst, vec even, vec odd,
                            uint32_t row, uint32_t k)
{
    size_t at = aq_panel_index(p->dst_layout, p->k, row, k);
    if (dst == AQ_F32) {
        vec_store((float *)p->dst + at, even);
        vec_store((float *)p->dst + at + AQ_PANEL_ROWS, odd);
    } else if (p->dst_layout == AQ_LAYOUT_COL64) {
        halves_store((uint16_t *)p->dst + at, even);
        halves_store((uint16_t *)p->dst + at + AQ_PANEL_ROWS, odd);
    } else {
        vec_store((float *)(void *)((uint16_t *)p->dst + at), halves_pair(even, odd));
    }
}

/* The square at (row, k).  src, dst and bits are constants where this is called. */
VEC_FN void pack_square(const struct pack *p, enum aq_dtype src, enum aq_dtype dst, uint32_t row,
                        uint32_t k)
{
    vec v[VEC_LANES];
    bool bits = src == dst;
    uint32_t n = (uint32_t)aq_min_u64(VEC_LANES, p->k - k);
    for (uint32_t r = 0; r < VEC_LANES; r++)
        v[r] = row + r < p->rows ? pack_load(p, src, bits, row + r, k, n) : vec_zero();
    vec_transpose(v);
    for (uint32_t i = 0; i < n; i += 2) {
        vec even = v[i], odd = v[i + 1];
        if (!bits && dst != AQ_F32) {
            even = pack_encode(dst, even);
            odd = pack_encode(dst, odd);
        }
        pack_store_pair(p, dst, even, odd, row, k + i);
    }
}

/* A cache line of each row is used up before the next one is touched: the rows of a matrix are
 * often a multiple of 4096 bytes apart, so that few of their lines fit the first-level cache
 * together. Lines further on are asked for, since 64 rows are more streams than the hardware
 * follows. */
VEC_FN void pack_squares(const struct pack *p, enum aq_dtype src, enum aq_dtype dst)
{
    const uint32_t line_k = PACK_LINE / (uint32_t)aq_dtype_bytes(src);
    size_t row_bytes = p->k * aq_dtype_bytes(src);
    for (uint32_t k = 0; k < p->k; k += line_k) {
        uint32_t end = (uint32_t)aq_min_u64(p->k, k + line_k);
        for (uint32_t row = 0; row < AQ_PANEL_ROWS; row += VEC_LANES) {
            const char *ahead =
                (const char *)p->src + row * row_bytes + k * aq_dtype_bytes(src) + PACK_AHEAD;
            for (uint32_t r = 0; r < VEC_LANES && row + r < p->rows; r++)
                _mm_prefetch(ahead + r * row_bytes, _MM_HINT_T0);
            for (uint32_t i = k; i < end; i += VEC_LANES)
                pack_square(p, src, dst, row, i);
        }
    }
}

static void pack_from_f32(const struct pack *p)
{
    switch (p->dst_dtype) {
    case AQ_F32: pack_squares(p, AQ_F32, AQ_F32); break;
    case AQ_F16: pack_squares(p, AQ_F32, AQ_F16); break;
    default: pack_squares(p, AQ_F32, AQ_BF16); break;
    }
}

static void pack_from_f16(const struct pack *p)
{
    switch (p->dst_dtype) {
    case AQ_F32: pack_squares(p, AQ_F16, AQ_F32); break;
    case AQ_F16: pack_squares(p, AQ_F16, AQ_F16); break;
    default: pack_squares(p, AQ_F16, AQ_BF16); break;
    }
}

static void pack_from_bf16(const struct pack *p)
{
    switch (p->dst_dtype) {
    case AQ_F32: pack_squares(p, AQ_BF16, AQ_F32); break;
    case AQ_F16: pack_squares(p, AQ_BF16, AQ_F16); break;
    default: pack_squares(p, AQ_BF16, AQ_BF16); break;
    }
}

/* Rows stay rows: one run of elements. */
static void pack_rows(const struct pack *p)
{
    size_t count = (size_t)p->rows * p->k, at = 0;
    if (p->src_dtype == p->dst_dtype) {
        memcpy(p->dst, p->src, count * aq_dtype_bytes(p->dst_dtype));
        return;
    }
    for (; at + VEC_LANES <= count; at += VEC_LANES)
        vec_store_as(p->dst, p->dst_dtype, at, vec_load_as(p->src, p->src_dtype, at));
    if (at < count) {
        uint32_t n = (uint32_t)(count - at);
        vec_store_as_n(p->dst, p->dst_dtype, at, vec_load_as_n(p->src, p->src_dtype, at, n), n);
    }
}

/* ---- int8 and int4 ---- */

/* VEC_LANES rows of a group. */
struct pack_group {
    float v[AQ_GROUP_K][VEC_LANES]; /* the rows' values, columns first */
    uint32_t row, first, n;         /* first of the rows; columns [first, first + n) */
    vec scale, minimum;
};

/* Loads and transposes; rows and columns past those in use are 0. */
VEC_FN void group_load(struct pack_group *g, const struct pack *p, enum aq_dtype src)
{
    for (uint32_t k = 0; k < AQ_GROUP_K; k += VEC_LANES) {
        vec square[VEC_LANES];
        uint32_t n = k < g->n ? (uint32_t)aq_min_u64(VEC_LANES, g->n - k) : 0;
        for (uint32_t r = 0; r < VEC_LANES; r++)
            square[r] = n && g->row + r < p->rows
                            ? pack_load(p, src, false, g->row + r, g->first + k, n)
                            : vec_zero();
        vec_transpose(square);
        for (uint32_t i = 0; i < VEC_LANES; i++)
            vec_store(g->v[k + i], square[i]);
    }
}

/* As aq_quant_scale(); it goes through `half`, VEC_LANES of f16. */
VEC_FN vec group_scale(vec step, enum aq_dtype dst, uint16_t *half)
{
    vec_store_f16_up(half, step);
    vec up = vec_load_f16(half);
    if (dst == AQ_Q8)
        return up;
    vec_store_f16(half, step);
    return vec_select(vec_less(step, vec_set(AQ_QUANT_NEAREST_MIN)), up, vec_load_f16(half));
}

/* As aq_quant_range(): both NaN where f16 has neither or a value is not finite; `spoilt` is then
 * NaN. */
VEC_FN void group_range(struct pack_group *g, enum aq_dtype dst, uint16_t *scale, uint16_t *minimum)
{
    vec lo = vec_load(g->v[0]), hi = lo, spoilt = vec_zero();
    for (uint32_t k = 0; k < g->n; k++) {
        vec v = vec_load(g->v[k]);
        lo = vec_select(vec_less(v, lo), v, lo);
        hi = vec_max(v, hi);
        spoilt = vec_add(spoilt, vec_sub(v, v));
    }
    vec_store_f16_down(minimum, vec_add(lo, vec_zero()));
    vec range = vec_add(vec_sub(hi, vec_load_f16(minimum)), vec_zero());
    vec m = vec_load_f16(minimum);
    vec s = group_scale(vec_div(range, vec_set(aq_code_max(dst))), dst, scale);
    spoilt = vec_add(spoilt, vec_add(vec_sub(m, m), vec_sub(s, s)));
    vec_mask sound = vec_equal(spoilt, vec_zero());
    g->minimum = vec_select(sound, m, vec_set(NAN));
    g->scale = vec_select(sound, s, vec_set(NAN));
    vec_store_f16(minimum, g->minimum);
    vec_store_f16(scale, g->scale);
}

/* The codes of a column as numbers; 0 where the scale is 0 or NaN. */
VEC_FN vec group_codes(const struct pack_group *g, enum aq_dtype dst, uint32_t k)
{
    if (k >= g->n)
        return vec_zero();
    vec code = vec_round(vec_div(vec_sub(vec_load(g->v[k]), g->minimum), g->scale));
    code = vec_select(vec_less(vec_zero(), code), code, vec_zero());
    code = vec_select(vec_less(code, vec_set(aq_code_max(dst))), code, vec_set(aq_code_max(dst)));
    return vec_select(vec_less(vec_zero(), g->scale), code, vec_zero());
}

VEC_FN void group_store_q8(const struct pack_group *g, uint8_t *codes)
{
    for (uint32_t k = 0; k < g->n; k += 2) {
        vec pair = vec_fma(group_codes(g, AQ_Q8, k + 1), vec_set(256), group_codes(g, AQ_Q8, k));
        halves_store((uint16_t *)(void *)(codes + (size_t)k * AQ_PANEL_ROWS + 2 * g->row),
                     vec_to_int(pair));
    }
}

/* Codes k, k + 2, k + 4 and k + 6: 16 bits. */
VEC_FN vec group_four(const struct pack_group *g, uint32_t k)
{
    vec four = group_codes(g, AQ_Q4, k + 6);
    for (uint32_t i = 3; i-- > 0;)
        four = vec_fma(four, vec_set(16), group_codes(g, AQ_Q4, k + 2 * i));
    return vec_to_int(four);
}

VEC_FN void group_store_q4(const struct pack_group *g, uint8_t *codes)
{
    for (uint32_t k = 0; k < g->n; k += 16) {
        float even[VEC_LANES], odd[VEC_LANES];
        vec_store(even, halves_pair(group_four(g, k), group_four(g, k + 8)));
        vec_store(odd, halves_pair(group_four(g, k + 1), group_four(g, k + 9)));
        uint8_t *to = codes + ((size_t)k / 2 * AQ_PANEL_ROWS + 8ul * g->row);
        for (uint32_t r = 0; r < VEC_LANES; r++) {
            memcpy(to + 8ul * r, &even[r], 4);
            memcpy(to + 8ul * r + 4, &odd[r], 4);
        }
    }
}

VEC_FN void pack_groups(const struct pack *p, enum aq_dtype src, enum aq_dtype dst)
{
    for (uint32_t first = 0; first < p->k; first += AQ_GROUP_K) {
        struct aq_group at = aq_group_at(p->dst, dst, p->k, first);
        for (uint32_t row = 0; row < AQ_PANEL_ROWS; row += VEC_LANES) {
            struct pack_group g = {.row = row, .first = first};
            g.n = (uint32_t)aq_min_u64(AQ_GROUP_K, p->k - first);
            group_load(&g, p, src);
            group_range(&g, dst, at.scale + row, at.minimum + row);
            if (dst == AQ_Q8)
                group_store_q8(&g, at.codes);
            else
                group_store_q4(&g, at.codes);
        }
    }
}

static void pack_quantised(const struct pack *p)
{
    bool q8 = p->dst_dtype == AQ_Q8;
    switch (p->src_dtype) {
    case AQ_F32: q8 ? pack_groups(p, AQ_F32, AQ_Q8) : pack_groups(p, AQ_F32, AQ_Q4); break;
    case AQ_F16: q8 ? pack_groups(p, AQ_F16, AQ_Q8) : pack_groups(p, AQ_F16, AQ_Q4); break;
    default: q8 ? pack_groups(p, AQ_BF16, AQ_Q8) : pack_groups(p, AQ_BF16, AQ_Q4); break;
    }
    size_t written = aq_panel_offset(p->dst_dtype, p->k);
    memset((char *)p->dst + written, 0, aq_panel_bytes(p->dst_dtype, p->k) - written);
}

static void pack_panel(const struct pack *p)
{
    if (p->dst_layout == AQ_LAYOUT_GROUP64) {
        pack_quantised(p);
        return;
    }
    size_t size = aq_dtype_bytes(p->dst_dtype);
    size_t written = (p->dst_layout == AQ_LAYOUT_ROWS ? (size_t)p->rows * p->k
                                                      : AQ_PANEL_ROWS * aq_align_up(p->k, 2)) *
                     size;
    memset((char *)p->dst + written, 0, aq_panel_bytes(p->dst_dtype, p->k) - written);
    if (p->dst_layout == AQ_LAYOUT_ROWS) {
        pack_rows(p);
        return;
    }
    switch (p->src_dtype) {
    case AQ_F32: pack_from_f32(p); break;
    case AQ_F16: pack_from_f16(p); break;
    default: pack_from_bf16(p); break;
    }
}

/* Pairs of f32 are a layout that no kernel reads: left to the reference. */
VEC_FN bool pack_is_odd(enum aq_dtype dst_dtype, enum aq_layout dst_layout)
{
    return dst_dtype == AQ_F32 && dst_layout == AQ_LAYOUT_PAIR64;
}
