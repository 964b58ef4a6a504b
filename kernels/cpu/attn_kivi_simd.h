/* SPDX-License-Identifier: Apache-2.0
 * Decode attention: a block of KIVI, on vec.h; a part of attn_block_simd.h.
 *
 * K has a scale and a minimum for each channel: a query is multiplied by the scales, and its
 * product with the minima is added to the scores.  V has them for 32 channels of a row: a weight
 * becomes one for each group, and the minima are added to the sums.  So K and each group of V are
 * 32 numbers that are sums of codes times what belongs to their pairs of vectors, and codes lie so
 * (aq_kivi_words) that a mask makes factors of them, at their place in a word.
 *
 * The other factors are rounded to multiples of a 32767th part of the largest one of a query and
 * block: their products with codes are added up without a rounding, in whole numbers.  For codes
 * of 2 bits that is two or three instructions for 32 of them where f32 takes three for 16, and a
 * factor is off by no more than 2^-16 of the largest. */

/* The largest of the whole factors: sums of a head's channels fit 32 bits. */
VEC_FN float factor_most(uint32_t dim)
{
    return dim <= 256 ? 32767 : (float)(32767 * 256 / dim);
}

/* What factors whose largest size is in `most` are multiples of; 0 where all are as good as 0. */
VEC_FN float factor_step(vec most, uint32_t dim)
{
    float largest = vec_first_lane(vec_max_all(most));
    return largest > 0x1p-64f ? largest / factor_most(dim) : 0;
}
VEC_FN vec steps_in_one(float step)
{
    return vec_set(step > 0 ? 1 / step : 0);
}

VEC_FN vec larger_size(vec most, vec y)
{
    return vec_max(vec_abs(y), most);
}

/* Words of a run of 32, and vectors of sums: one for each code of a half word. */
VEC_FN int run_words(struct form f)
{
    return f.dtype == AQ_KIVI2 ? 4 : 8;
}
VEC_FN int sum_parts(struct form f)
{
    return f.dtype == AQ_KIVI2 ? 8 : 4;
}

/* sum[i][part] += the factors of query i times the codes of `pairs` pairs of vectors, each of 32
 * numbers; asks for what lies at `next` meanwhile.  The higher codes of a byte count as many times
 * as their place says. */
VEC_FN void multiply_pairs(const uint8_t *codes, const uint8_t *next, const int16_t *factor,
                           size_t apart, uint32_t pairs, struct form f, int queries, bool fused,
                           vec_int *sum)
{
    const int words = run_words(f), parts = sum_parts(f), low = parts / 2;
    const uint32_t together = (uint32_t)(VEC_LANES / words);
    for (uint32_t pair = 0; pair < pairs; pair += together) {
        size_t at = (size_t)pair * (size_t)words * sizeof(uint32_t);
        vec_int u = vec_int_load((const int32_t *)(const void *)(codes + at));
        vec_int half[2] = {u, vec_int_shift_halves(u, 8)}, by[QUERIES_WIDE];
        vec_prefetch_near(next + at, VEC_LANES * sizeof(uint32_t));
        AQ_UNROLL(4)
        for (int i = 0; i < queries; i++) {
            const int16_t *from = factor + (size_t)i * apart + (size_t)2 * pair;
            by[i] = vec_int_repeat((const int32_t *)(const void *)from, words);
        }
        AQ_UNROLL(8)
        for (int part = 0; part < parts; part++) {
            int32_t mask =
                f.dtype == AQ_KIVI2 ? 0x00030003 << part % low * 2 : 0x000f000f << part % low * 4;
            vec_int c = vec_int_and(half[part / low], vec_int_set(mask));
            AQ_UNROLL(4)
            for (int i = 0; i < queries; i++)
                sum[i * parts + part] = vec_int_add_pairs(sum[i * parts + part], by[i], c, fused);
        }
    }
}

/* Queries whose sums are in registers together. */
VEC_FN int multiplied_together(struct form f, int queries)
{
    int most = VEC_LANES / sum_parts(f);
    return queries < most ? queries : most;
}

VEC_FN void multiply(const struct decode *t, const uint8_t *codes, const uint8_t *next,
                     const int16_t *factor, size_t apart, uint32_t pairs, struct form f,
                     int queries, vec_int *sum)
{
    for (int i = 0; i < queries * sum_parts(f); i++)
        sum[i] = vec_int_set(0);
    if (t->fused)
        multiply_pairs(codes, next, factor, apart, pairs, f, queries, true, sum);
    else
        multiply_pairs(codes, next, factor, apart, pairs, f, queries, false, sum);
}

/* What sums of codes are multiples of, for numbers n, n + 1, ... of the 32: a code's place in its
 * byte counts in them. */
VEC_FN vec step_at(struct form f, uint32_t n, float step)
{
    static const float place2[] = {1,       1,       1,       1,       0x1p-2f, 0x1p-2f,
                                   0x1p-2f, 0x1p-2f, 0x1p-4f, 0x1p-4f, 0x1p-4f, 0x1p-4f,
                                   0x1p-6f, 0x1p-6f, 0x1p-6f, 0x1p-6f};
    static const float place4[] = {1,       1,       1,       1,       1,       1,
                                   1,       1,       0x1p-4f, 0x1p-4f, 0x1p-4f, 0x1p-4f,
                                   0x1p-4f, 0x1p-4f, 0x1p-4f, 0x1p-4f};
    return vec_mul(vec_load((f.dtype == AQ_KIVI2 ? place2 : place4) + n % 16), vec_set(step));
}

/* The sums of a query for numbers n, n + 1, ... of the 32. */
VEC_FN vec numbers_at(const vec_int *sum, struct form f, uint32_t n)
{
    return vec_from_int(vec_int_join(sum + n / (uint32_t)run_words(f), run_words(f)));
}

enum { OFFSETS = 4 }; /* added up together */
enum part { KEY_SCALES, KEY_CODES, VALUE_SCALES, VALUE_CODES, PARTS };

/* What codes are multiplied by, of up to QUERIES_WIDE queries; and what is asked for while a part
 * of their block is read. */
struct factors {
    const uint8_t *ask[PARTS];
    int16_t *whole; /* [queries][groups][32] */
    float *offsets; /* [queries][groups, in fours]: sums of weights times V's minima */
    float step[QUERIES_WIDE], offset[QUERIES_WIDE]; /* offset: products with K's minima */
};

/* Query i times the scales of K becomes factors of codes; returns their step, and in *ret_offset
 * its product with the minima. */
VEC_FN float key_factors(const struct decode *t, const struct step *x, struct form f, uint32_t i,
                         int16_t *to, const uint8_t *ask, float *ret_offset)
{
    const uint16_t *scale = aq_kivi_keys(x->block);
    const float *q = t->q + (size_t)(x->query + i) * t->dim_pad;
    float *scaled = t->wide;
    uint32_t room = aq_kivi_groups(f.dim) * AQ_KIVI_GROUP, d = 0;
    vec offset = vec_zero(), most = vec_zero();
    for (; d < f.dim; d += VEC_LANES) {
        uint32_t n = (uint32_t)aq_min_u64(VEC_LANES, f.dim - d);
        vec_prefetch_near(ask + 4 * d, 4 * VEC_LANES);
        bool part = f.dim % VEC_LANES && n < VEC_LANES;
        vec y = vec_load(q + d), by = part ? vec_load_f16_n(scale + d, n) : vec_load_f16(scale + d);
        const uint16_t *minimum = scale + f.dim + d;
        offset = vec_fma(y, part ? vec_load_f16_n(minimum, n) : vec_load_f16(minimum), offset);
        y = vec_mul(y, by);
        most = larger_size(most, y);
        vec_store(scaled + d, y);
    }
    float step = factor_step(most, f.dim);
    vec in_one = steps_in_one(step);
    for (; d < room; d += VEC_LANES)
        vec_store(scaled + d, vec_zero());
    for (d = 0; d < room; d += 2 * VEC_LANES)
        vec_store_i16(to + d, vec_mul(vec_load(scaled + d), in_one),
                      vec_mul(vec_load(scaled + d + VEC_LANES), in_one));
    *ret_offset = vec_sum(offset);
    return step;
}

VEC_FN void score_codes(const struct decode *t, const struct step *x, struct form f, int queries,
                        const struct factors *by)
{
    const int each = multiplied_together(f, queries), parts = sum_parts(f);
    size_t room = (size_t)aq_kivi_groups(f.dim) * AQ_KIVI_GROUP;
    for (int first = 0; first < queries; first += each) {
        vec_int sum[SUMS_MAX];
        multiply(t, aq_kv_row(x->block, f.dtype, f.dim, 0), by->ask[KEY_CODES],
                 by->whole + (size_t)first * room, room, (f.dim + 1) / 2, f, each, sum);
        AQ_UNROLL(4)
        for (int i = 0; i < each; i++) {
            AQ_UNROLL(4)
            for (uint32_t n = 0; n < BLOCK_SLOTS; n += VEC_LANES)
                vec_store(x->p + (uint32_t)(first + i) * BLOCK_SLOTS + n,
                          vec_fma(numbers_at(sum + i * parts, f, n),
                                  step_at(f, n, by->step[first + i]),
                                  vec_set(by->offset[first + i])));
        }
    }
}

/* The weights of a query become factors of codes, for each group of V; returns their step. */
VEC_FN float value_factors(const struct decode *t, const struct step *x, struct form f,
                           uint32_t query, int16_t *to, const uint8_t *ask, float *ret_offsets)
{
    uint32_t groups = aq_kivi_groups(f.dim), numbers = groups * BLOCK_SLOTS;
    const uint16_t *scale = aq_kivi_values(x->block, f.dim), *minimum = scale + numbers;
    vec largest = vec_zero(), heaviest = vec_zero(), weight[BLOCK_VECS], scaled[BLOCK_VECS];
    float *widened = t->wide;
    for (uint32_t n = 0; n < numbers; n += VEC_LANES) {
        vec by = vec_load_f16(scale + n);
        vec_prefetch_near(ask + 4 * n, 4 * VEC_LANES);
        largest = vec_max(by, largest);
        vec_store(widened + n, by);
    }
    for (uint32_t v = 0; v < BLOCK_VECS; v++) {
        weight[v] = vec_load(x->p + query * BLOCK_SLOTS + v * VEC_LANES);
        heaviest = vec_max(weight[v], heaviest);
    }
    float most = factor_most(1), scale_step = factor_step(largest, 1);
    float weight_step = factor_step(heaviest, 1) * most;
    vec in_one = vec_mul(steps_in_one(weight_step), steps_in_one(scale_step));
    for (uint32_t v = 0; v < BLOCK_VECS; v++)
        scaled[v] = vec_mul(weight[v], in_one);
    for (uint32_t first = 0; first < groups; first += OFFSETS) {
        vec offset[OFFSETS];
        AQ_UNROLL(4)
        for (uint32_t i = 0; i < OFFSETS; i++) {
            uint32_t g = first + i;
            vec factor[BLOCK_VECS];
            offset[i] = vec_zero();
            for (uint32_t v = 0; v < BLOCK_VECS && g < groups; v++) {
                uint32_t from = g * BLOCK_SLOTS + v * VEC_LANES;
                vec_mask seen = seen_lanes(x, v * VEC_LANES);
                offset[i] = vec_fma_where(seen, weight[v], vec_load_f16(minimum + from), offset[i]);
                factor[v] = vec_mul_where(seen, scaled[v], vec_load(widened + from));
            }
            for (uint32_t v = 0; v < BLOCK_VECS && g < groups; v += 2)
                vec_store_i16(to + g * BLOCK_SLOTS + v * VEC_LANES, factor[v], factor[v + 1]);
        }
        vec_store_sums(ret_offsets + first, offset);
    }
    return weight_step * scale_step;
}

/* The sums of a last group that is not whole: to[n] = the sum of factors times codes. */
VEC_FN void multiply_rest(const uint8_t *codes, const int16_t *factor, struct form f,
                          uint32_t width, float *to)
{
    uint32_t words = aq_kivi_words(f.dtype, width), bits = aq_kivi_bits(f.dtype);
    int32_t sum[AQ_KIVI_GROUP] = {0};
    const uint16_t *half = (const uint16_t *)(const void *)codes;
    for (uint32_t slot = 0; slot < BLOCK_SLOTS; slot++) {
        const uint16_t *run = half + (size_t)(slot / 2 * words * 2) + slot % 2;
        for (uint32_t n = 0; n < width; n++)
            sum[n] += factor[slot] * (run[n % words * 2] >> (n / words * bits) & ((1 << bits) - 1));
    }
    for (uint32_t n = 0; n < width; n++)
        to[n] = (float)sum[n];
}

/* to[0 .. count) = to * correction + numbers * step + offset */
VEC_FN void add_numbers(float *to, uint32_t count, float correction, vec numbers, vec step,
                        float offset)
{
    vec by = vec_set(correction), y = vec_fma(numbers, step, vec_set(offset));
    if (count == VEC_LANES)
        vec_store(to, vec_fma(vec_load(to), by, y));
    else
        vec_store_n(to, vec_fma(vec_load_n(to, count), by, y), count);
}

VEC_FN void add_codes(const struct decode *t, const struct step *x, struct form f, int queries,
                      const struct factors *by)
{
    size_t group_bytes = aq_kivi_words(f.dtype, AQ_KIVI_GROUP) * 2 * AQ_HEAD_BLOCK_SLOTS;
    const int each = multiplied_together(f, queries), parts = sum_parts(f);
    uint32_t groups = aq_kivi_groups(f.dim), whole = f.dim / AQ_KIVI_GROUP;
    uint32_t offsets = (uint32_t)aq_align_up(groups, OFFSETS);
    size_t apart = (size_t)groups * AQ_KIVI_GROUP;
    for (uint32_t g = 0; g < whole; g++) {
        for (int first = 0; first < queries; first += each) {
            vec_int sum[SUMS_MAX];
            multiply(t, aq_kivi_values_of(x->block, f.dtype, f.dim, g),
                     by->ask[VALUE_CODES] + g * group_bytes,
                     by->whole + (size_t)first * apart + g * AQ_KIVI_GROUP, apart, BLOCK_SLOTS / 2,
                     f, each, sum);
            AQ_UNROLL(4)
            for (int i = 0; i < each; i++) {
                uint32_t query = (uint32_t)(first + i);
                float *to = t->sum + (size_t)(x->query + query) * t->dim_pad + g * AQ_KIVI_GROUP;
                AQ_UNROLL(4)
                for (uint32_t n = 0; n < BLOCK_SLOTS; n += VEC_LANES)
                    add_numbers(to + n, VEC_LANES, x->correction[query],
                                numbers_at(sum + i * parts, f, n), step_at(f, n, by->step[query]),
                                by->offsets[query * offsets + g]);
            }
        }
    }
    for (uint32_t i = 0; i < (uint32_t)queries && whole < groups; i++) {
        float *to = t->sum + (size_t)(x->query + i) * t->dim_pad + whole * AQ_KIVI_GROUP;
        float rest[AQ_KIVI_GROUP];
        uint32_t width = aq_kivi_width(f.dim, whole);
        multiply_rest(aq_kivi_values_of(x->block, f.dtype, f.dim, whole),
                      by->whole + i * apart + whole * AQ_KIVI_GROUP, f, width, rest);
        for (uint32_t n = 0; n < width; n += VEC_LANES) {
            uint32_t count = (uint32_t)aq_min_u64(VEC_LANES, width - n);
            add_numbers(to + n, count, x->correction[i], vec_load_n(rest + n, count),
                        vec_set(by->step[i]), by->offsets[i * offsets + whole]);
        }
    }
}

/* What to ask for while block k of `blocks` is read: of one block, the same part of the next one;
 * of two, the next two from front to back. */
VEC_FN void set_asked(struct factors *by, const struct step *x, struct form f, int blocks, int k)
{
    size_t scales = aq_kivi_key_bytes(f.dim), head = aq_kv_head_bytes(f.dtype, f.dim);
    size_t codes = AQ_HEAD_BLOCK_SLOTS * aq_kv_row_bytes(f.dtype, f.dim), second = (size_t)k;
    const struct step *other = &x[blocks - 1];
    const uint8_t *first = x->next_slots ? x->next : x->block;
    const uint8_t *last = other->next_slots ? other->next : other->block;
    by->ask[KEY_SCALES] = first + second * scales;
    by->ask[KEY_CODES] = first + head + second * codes;
    if (blocks == 1)
        second = 1;
    by->ask[VALUE_SCALES] = last + second * scales;
    by->ask[VALUE_CODES] = last + head + second * codes;
}

/* Attends `blocks` blocks, x[0] and maybe x[1], with `queries` queries each; side by side, since
 * what one's vectors wait for another one's work fills. */
VEC_FN void attend_codes(struct decode *t, struct step *x, struct form f, int blocks, int queries)
{
    uint32_t groups = aq_kivi_groups(f.dim), offsets = (uint32_t)aq_align_up(groups, OFFSETS);
    struct factors by[2];
    for (int k = 0; k < blocks; k++) {
        by[k].whole = t->whole + (size_t)(k * queries) * groups * AQ_KIVI_GROUP;
        by[k].offsets = t->group_offset + (size_t)(k * queries) * offsets;
        set_asked(&by[k], x, f, blocks, k);
        for (uint32_t i = 0; i < (uint32_t)queries; i++)
            by[k].step[i] = key_factors(t, &x[k], f, i, by[k].whole + i * groups * AQ_KIVI_GROUP,
                                        by[k].ask[KEY_SCALES], &by[k].offset[i]);
    }
    for (int k = 0; k < blocks; k++)
        score_codes(t, &x[k], f, queries, &by[k]);
    for (int k = 0; k < blocks; k++) {
        for (uint32_t i = 0; i < (uint32_t)queries; i++)
            weigh(t, &x[k], i);
    }
    for (int k = 0; k < blocks; k++) {
        for (uint32_t i = 0; i < (uint32_t)queries; i++)
            by[k].step[i] = value_factors(t, &x[k], f, i, by[k].whole + i * groups * AQ_KIVI_GROUP,
                                          by[k].ask[VALUE_SCALES], by[k].offsets + i * offsets);
    }
    for (int k = 0; k < blocks; k++)
        add_codes(t, &x[k], f, queries, &by[k]);
}
