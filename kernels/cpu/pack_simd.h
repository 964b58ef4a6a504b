/* SPDX-License-Identifier: Apache-2.0
 * Panels, on vec.h; included once by each version's file, which defines before:
 *   halves_load(p, n)    n uint16_t, each in the low half of a 32-bit lane, other lanes zero
 *   halves_store(p, v)   the low halves of all lanes, next to each other
 *   halves_pair(a, b)    a in the low, b in the high half of each lane
 *
 * Squares of VEC_LANES rows by VEC_LANES k are transposed in registers as 32-bit lanes: f32, or
 * 16-bit elements by themselves.  Same dtypes are moved as bits, others go through f32. */

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

static void pack_panel(const struct pack *p)
{
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
