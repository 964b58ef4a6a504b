/* SPDX-License-Identifier: Apache-2.0
 * Decode attention: what blocks of KIVI take beside the others, on vec.h; a part of
 * attn_block_simd.h. */

/* Are the rows of codes whole vectors, each of one group of V? */
VEC_FN bool is_direct(struct form f)
{
    return f.dim % ((uint32_t)unit_numbers(f) * VEC_LANES) == 0;
}

/* The step's queries times the scales of K, and their products with its minima. */
VEC_FN void scale_queries(const struct decode *t, struct step *x, struct form f, int queries)
{
    const uint16_t *scale = aq_kivi_keys(x->block);
    const float *q = t->q + (size_t)x->query * t->dim_pad;
    vec offset[QUERIES_WIDE];
    for (int i = 0; i < queries; i++)
        offset[i] = vec_zero();
    for (uint32_t d = 0; d < f.dim; d += VEC_LANES) {
        vec by = vec_load_f16(scale + d), minimum = vec_load_f16(scale + f.dim + d);
        AQ_UNROLL(4)
        for (int i = 0; i < queries; i++) {
            vec y = vec_load(q + (size_t)i * t->dim_pad + d);
            vec_store(t->q_scaled + (size_t)i * t->dim_pad + d, vec_mul(y, by));
            offset[i] = vec_fma(y, minimum, offset[i]);
        }
    }
    for (int i = 0; i < queries; i++)
        x->key_offset[i] = vec_sum(offset[i]);
    x->q = t->q_scaled;
}

VEC_FN void add_key_offset(const struct step *x, uint32_t i)
{
    vec offset = vec_set(x->key_offset[i]);
    for (uint32_t v = 0; v < BLOCK_SLOTS; v += VEC_LANES) {
        float *p = x->p + i * BLOCK_SLOTS + v;
        vec_store(p, vec_add(vec_load(p), offset));
    }
}

/* The weights of query i become weights of codes, for each group of V. */
VEC_FN void spread_weights(const struct decode *t, const struct step *x, struct form f, uint32_t i)
{
    uint32_t groups = aq_kivi_groups(f.dim);
    const uint16_t *scale = aq_kivi_values(x->block, f.dim),
                   *minimum = scale + groups * BLOCK_SLOTS;
    for (uint32_t g = 0; g < groups; g++) {
        size_t at = (size_t)i * groups + g;
        vec offset = vec_zero();
        for (uint32_t v = 0; v < BLOCK_SLOTS; v += VEC_LANES) {
            vec weight = vec_load(x->p + i * BLOCK_SLOTS + v);
            uint32_t from = g * BLOCK_SLOTS + v;
            offset = vec_fma_where(seen_lanes(x, v), weight, vec_load_f16(minimum + from), offset);
            vec_store(t->group_p + at * BLOCK_SLOTS + v,
                      vec_mul(weight, vec_load_f16(scale + from)));
        }
        t->group_offset[at] = vec_sum(offset);
    }
}

/* to[d] = code * scale + minimum of a row. */
VEC_FN void widen_row(float *to, const uint8_t *row, struct form f, const float *scale,
                      const float *minimum)
{
    uint32_t units = row_units(f);
    for (uint32_t d = 0; d < units; d += VEC_LANES) {
        uint32_t lanes = (uint32_t)aq_min_u64(VEC_LANES, units - d);
        union units u = load_units(row, f, d, lanes);
        for (int part = 0; part < unit_numbers(f) && d + (uint32_t)part * units < f.dim; part++) {
            uint32_t at = d + (uint32_t)part * units, n = lanes_of(f, d, lanes, part);
            vec y = vec_fma(number_of(u, f, part), vec_load_n(scale + at, n),
                            vec_load_n(minimum + at, n));
            vec_store_n(to + at, y, n);
        }
    }
}

/* A block as one of f32. */
static inline const uint8_t *widen_block(const struct decode *t, const uint8_t *block,
                                         struct form f)
{
    float *scale = t->q_scaled, *minimum = scale + t->dim_pad;
    for (uint32_t d = 0; d < f.dim; d += VEC_LANES) {
        uint32_t n = (uint32_t)aq_min_u64(VEC_LANES, f.dim - d);
        vec_store_n(scale + d, vec_load_f16_n(aq_kivi_keys(block) + d, n), n);
        vec_store_n(minimum + d, vec_load_f16_n(aq_kivi_keys(block) + f.dim + d, n), n);
    }
    for (uint32_t row = 0; row < AQ_KV_ROWS; row++) {
        for (uint32_t d = 0; d < f.dim && row >= BLOCK_SLOTS; d += AQ_KIVI_GROUP) {
            struct aq_quant q = aq_kivi_quant(block, f.dim, row, d);
            float by = aq_f32_from_f16(q.scale), least = aq_f32_from_f16(q.minimum);
            for (uint32_t i = d; i < f.dim && i < d + AQ_KIVI_GROUP; i++) {
                scale[i] = by;
                minimum[i] = least;
            }
        }
        widen_row(t->wide + (size_t)row * f.dim, aq_kv_row(block, f.dtype, f.dim, row), f, scale,
                  minimum);
    }
    return (const uint8_t *)t->wide;
}
