/* SPDX-License-Identifier: Apache-2.0
 * Decode attention: a block of KIVI, on vec.h; a part of attn_block_simd.h.
 *
 * K has a scale and a minimum for each channel: a query is multiplied by the scales, and its
 * product with the minima is added to the scores.  V has them for 32 channels of a row: a weight
 * becomes one for each group, and the minima are added to the sums.  So K and each group of V are
 * 32 numbers that are sums of codes times what belongs to their vectors, and codes lie so
 * (aq_kivi_words) that a mask makes bytes of them, at their place in a byte.
 *
 * The other factors are rounded to bytes: to whole multiples of a step, a 127th part of the largest
 * one of a query and block.  Their products with codes are then added up without a rounding.  What
 * rounding cuts off is multiplied by the middle of the codes instead, with the minima, so that only
 * distances from the middle feel it: a thousandth of the variance that rounding to 2 bits makes of
 * the same numbers, and a hundredth of that of 4 bits.  But it lies in directions that the keys or
 * values have, which a model feels more than noise (a tiny one as much as those 4 bits): so factors
 * of codes of 4 bits have 16 bits, whose high and low bytes are multiplied one after the other. */

/* Numbers that a byte has codes of. */
VEC_FN int byte_codes(struct form f)
{
    return f.dtype == AQ_KIVI2 ? 4 : 2;
}
VEC_FN float code_middle(struct form f)
{
    return f.dtype == AQ_KIVI2 ? 1.5F : 7.5F;
}

/* ---- sums of codes times factors ---- */

enum {
    SUM_NUMBERS = VEC_LANES / 2, /* of a vector of sums, which has two lanes for each */
    SUMS = AQ_KIVI_GROUP / SUM_NUMBERS,
    ITEMS_WIDE = VEC_LANES / SUMS,      /* queries whose sums are in registers together */
    RUNS = AQ_KIVI_GROUP / AQ_KIVI_RUN, /* of a group */
    RUNS_NARROW = 8,                    /* whose sums fit 16 bits: 8 * 2 * 15 * 128 */
};

/* Which bits of a byte a code is made of.  The upper half of a byte is shifted down first where
 * products must fit 16 bits. */
VEC_FN int32_t code_mask(struct form f, int part, bool fused)
{
    const int low = byte_codes(f) / 2, bits = 8 / byte_codes(f);
    const uint32_t first = f.dtype == AQ_KIVI2 ? 0x03030303 : 0x0f0f0f0f;
    return (int32_t)(first << (fused ? part : part % low) * bits);
}

/* sum[item][part, vector] = factors times codes of `runs` runs of `words` words: in whole lanes if
 * `fused`, else in half ones, which the sums of so many runs must fit. */
VEC_FN void multiply_runs(const uint8_t *codes, const int8_t *factor, size_t apart, uint32_t runs,
                          uint32_t words, struct form f, int items, bool fused, vec_int *sum)
{
    const int parts = byte_codes(f);
    const uint32_t vecs = (uint32_t)aq_div_up(words, SUM_NUMBERS);
    vec_int own[ITEMS_WIDE * SUMS];
    AQ_UNROLL(16)
    for (int i = 0; i < items * SUMS; i++)
        own[i] = vec_int_set(0);
    AQ_UNROLL(1) /* else sums of AVX2 lose their registers, and code is four times as long */
    for (uint32_t run = 0; run < runs; run++) {
        vec_int by[ITEMS_WIDE];
        AQ_UNROLL(4)
        for (int i = 0; i < items; i++)
            by[i] = vec_int_repeat(factor + (size_t)i * apart + (size_t)run * AQ_KIVI_RUN);
        AQ_UNROLL(4)
        for (uint32_t v = 0; v < vecs; v++) {
            size_t at = ((size_t)run * words + v * SUM_NUMBERS) * AQ_KIVI_RUN;
            uint32_t lanes = 2 * (words - v * SUM_NUMBERS);
            const int32_t *from = (const int32_t *)(const void *)(codes + at);
            vec_int u = lanes >= VEC_LANES
                            ? vec_int_load(from)
                            : vec_bits(vec_load_n((const float *)(const void *)from, lanes));
            vec_int high = fused ? u : vec_int_shift_right(u, 4);
            AQ_UNROLL(4)
            for (int part = 0; part < parts; part++) {
                vec_int c = vec_int_and(part < parts / 2 ? u : high,
                                        vec_int_set(code_mask(f, part, fused)));
                AQ_UNROLL(4)
                for (int i = 0; i < items; i++) {
                    vec_int *to = &own[i * SUMS + part * (int)vecs + (int)v];
                    *to =
                        fused ? vec_int_add_quads(*to, c, by[i]) : vec_int_add_pairs(*to, c, by[i]);
                }
            }
        }
    }
    AQ_UNROLL(16)
    for (int i = 0; i < items * SUMS; i++)
        sum[i] = own[i];
}

/* The same of any number of runs, in whole lanes. */
VEC_FN void multiply(const struct decode *t, const uint8_t *codes, const int8_t *factor,
                     size_t apart, uint32_t runs, uint32_t words, struct form f, int items,
                     vec_int *sum)
{
    if (t->fused) {
        multiply_runs(codes, factor, apart, runs, words, f, items, true, sum);
        /* Sums of many items in memory: a compiler that finds registers for them to the end finds
         * none for them in a loop of many runs. */
        if (items > 1 && runs > RUNS)
            __asm__("" : "+m"(*(vec_int(*)[ITEMS_WIDE * SUMS]) sum));
        return;
    }
    AQ_UNROLL(16)
    for (int i = 0; i < items * SUMS; i++)
        sum[i] = vec_int_set(0);
    for (uint32_t run = 0; run < runs; run += RUNS_NARROW) {
        const uint32_t some = runs - run < RUNS_NARROW ? runs - run : RUNS_NARROW;
        vec_int half[ITEMS_WIDE * SUMS];
        multiply_runs(codes + (size_t)run * words * AQ_KIVI_RUN, factor + run * AQ_KIVI_RUN, apart,
                      some, words, f, items, false, half);
        AQ_UNROLL(16)
        for (int i = 0; i < items * SUMS; i++)
            sum[i] = vec_int_add(sum[i], vec_int_join_halves(half[i]));
    }
}

/* What sums of codes are multiples of, for numbers n, n + 1, ... of the 32: a code's place in its
 * byte counts in them, unless it was shifted down. */
VEC_FN vec step_at(const struct decode *t, struct form f, uint32_t n, float step)
{
#define EIGHT(x) x, x, x, x, x, x, x, x
    static const float place2[] = {EIGHT(1), EIGHT(0x1p-2F), EIGHT(0x1p-4F), EIGHT(0x1p-6F)};
    static const float place4[] = {EIGHT(1), EIGHT(1), EIGHT(0x1p-4F), EIGHT(0x1p-4F)};
#undef EIGHT
    const float *place = (f.dtype == AQ_KIVI2 ? place2 : place4) + (t->fused ? n : n % 16);
    return vec_mul(vec_load(place), vec_set(step));
}

/* An item's sums for numbers n, n + 1, ... of the 32. */
VEC_FN vec numbers_at(const vec_int *sum, uint32_t n)
{
    return vec_from_int(vec_int_add_neighbours(sum[n / SUM_NUMBERS], sum[n / SUM_NUMBERS + 1]));
}

/* ---- asking ahead ---- */

/* The passes over the blocks at work.  Each asks for its part of the blocks that follow, in the
 * order in which they will be read, so that memory always has as much to do. */
enum pass { KEYS_SCALED, KEYS_ROUNDED, KEYS_SCORED, VALUES_SCALED, VALUES_ROUNDED, VALUES_ADDED };

VEC_FN void ask_part(const struct step *x, struct form f, enum pass pass)
{
    const size_t keys = aq_kivi_key_bytes(f.dim), head = aq_kv_head_bytes(f.dtype, f.dim);
    const size_t codes = AQ_HEAD_BLOCK_SLOTS * aq_kv_row_bytes(f.dtype, f.dim);
    if (!x->next_slots)
        return;
    switch (pass) {
    case KEYS_SCALED: vec_prefetch(x->next, keys); break;
    case KEYS_ROUNDED: vec_prefetch(x->next + head, codes / 2); break;
    case KEYS_SCORED: vec_prefetch(x->next + head + codes / 2, codes / 2); break;
    case VALUES_SCALED: vec_prefetch(x->next + keys, head - keys); break;
    case VALUES_ROUNDED: vec_prefetch(x->next + head + codes, codes / 2); break;
    case VALUES_ADDED: vec_prefetch(x->next + head + codes + codes / 2, codes / 2); break;
    }
}

/* ---- factors ---- */

/* What codes of K or of V are multiplied by, of the items at work: item k * queries + i is query i
 * against block k. */
struct factors {
    bool values; /* of V */
    int blocks, queries;
    uint32_t groups, room; /* of 32 factors of an item, and how many that is */
    int levels;            /* bytes of a factor, the high ones first */
    int8_t *whole;         /* [levels][items][room] */
    float *exact;          /* [items][room]: the same before they are rounded */
    float *by_lane;        /* [items][groups][VEC_LANES]: sums on their way */
    float *offset;         /* [items] of K, [items][groups] of V: what is added to sums of codes */
    /* Of item i at 4 i: what factors are multiples of, and the inverse. */
    float step[VEC_LANES], in_one[VEC_LANES];
};

/* In the scratch area, for K and V after each other. */
VEC_FN struct factors factors_open(const struct decode *t, struct form f, bool values, int blocks,
                                   int queries)
{
    const uint32_t groups = aq_kivi_groups(f.dim), room = groups * AQ_KIVI_GROUP;
    float *exact = t->wide + 2 * room; /* behind widened scales */
    return (struct factors){.values = values,
                            .blocks = blocks,
                            .queries = queries,
                            .groups = groups,
                            .room = room,
                            .levels = f.dtype == AQ_KIVI4 ? 2 : 1,
                            .whole = t->whole,
                            .exact = exact,
                            .by_lane = exact + QUERIES_WIDE * room,
                            .offset = t->group_offset};
}

VEC_FN int8_t *factors_at(const struct factors *by, int level, uint32_t item, uint32_t g)
{
    const uint32_t row = (uint32_t)(level * by->blocks * by->queries) + item;
    return by->whole + (size_t)row * by->room + g * AQ_KIVI_GROUP;
}

/* Scales and minima of K or V, `count` each: of a block, or widened where several queries want
 * them. */
struct scales {
    const uint16_t *scale, *minimum;
    const float *wide; /* [2][room] */
    uint32_t count, room;
};

/* Those of numbers n, n + 1, ...; 0 from `count` on. */
VEC_FN vec widened_at(const uint16_t *from, const struct scales *s, uint32_t n)
{
    return n + VEC_LANES <= s->count ? vec_load_f16(from + n)
                                     : vec_load_f16_n(from + n, s->count - n);
}
VEC_FN vec scale_at(const struct scales *s, uint32_t n)
{
    return s->wide ? vec_load(s->wide + n) : widened_at(s->scale, s, n);
}
VEC_FN vec minimum_at(const struct scales *s, uint32_t n)
{
    return s->wide ? vec_load(s->wide + s->room + n) : widened_at(s->minimum, s, n);
}

/* Of a block. */
VEC_FN struct scales scales_open(const struct decode *t, const uint8_t *block, struct form f,
                                 const struct factors *by)
{
    struct scales s = {.count = by->values ? by->room : f.dim, .room = by->room};
    s.scale = by->values ? aq_kivi_values(block, f.dim) : aq_kivi_keys(block);
    s.minimum = s.scale + s.count;
    if (by->queries == 1)
        return s;
    for (uint32_t n = 0; n < s.count; n += VEC_LANES) {
        vec_store(t->wide + n, widened_at(s.scale, &s, n));
        vec_store(t->wide + s.room + n, widened_at(s.minimum, &s, n));
    }
    s.wide = t->wide;
    return s;
}

/* Of a group of an item: what scales are multiplied by, and which of it counts. */
struct group {
    const float *from; /* 32 channels of a query, or the weights of a block */
    const vec_mask *seen;
};
VEC_FN struct group group_of(const struct decode *t, const struct step *x, const struct factors *by,
                             int item, uint32_t g)
{
    const struct step *of = &x[item / by->queries];
    const uint32_t i = (uint32_t)(item % by->queries);
    const float *q = t->q + (size_t)(of->query + i) * t->dim_pad + g * AQ_KIVI_GROUP;
    return (struct group){by->values ? of->p + i * BLOCK_SLOTS : q, of->seen};
}

/* Whether vector v of group g has factors: the last channels of a head may not. */
VEC_FN bool has_factors(const struct factors *by, struct form f, uint32_t g, uint32_t v)
{
    return by->values || g * AQ_KIVI_GROUP + v * VEC_LANES < f.dim;
}

/* Returns the larger ones of `most` and of the group's factors. */
VEC_FN vec scale_group(const struct group *x, struct form f, const struct scales *s,
                       const struct factors *by, int item, uint32_t g, vec most)
{
    float *exact = by->exact + (size_t)item * by->room + g * AQ_KIVI_GROUP;
    AQ_UNROLL(4)
    for (uint32_t v = 0; v < BLOCK_VECS; v++) {
        if (!has_factors(by, f, g, v))
            break;
        vec from = vec_load(x->from + v * VEC_LANES);
        vec scale = scale_at(s, g * AQ_KIVI_GROUP + v * VEC_LANES);
        vec y = by->values ? vec_mul_where(x->seen[v], from, scale) : vec_mul(from, scale);
        most = vec_max_size(y, most);
        vec_store(exact + v * VEC_LANES, y);
    }
    return most;
}

/* Chooses the steps of items whose largest factors are in `most`, by lane.  The high byte of the
 * largest whole factor fits a signed one whatever its low byte is. */
VEC_FN void choose_steps(struct factors *by, const vec *most)
{
    const float whole = by->levels > 1 ? 127 * 256 : 127;
    vec largest = vec_max(vec_max_each(most, by->blocks * by->queries), vec_set(0x1p-64F));
    vec_store(by->step, vec_mul(largest, vec_set(1 / whole)));
    vec_store(by->in_one, vec_div(vec_set(whole), largest));
}

/* Rounds the factors of a group; *minima += what scales were multiplied by times minima, *cut_off
 * += what rounding cuts off. */
VEC_FN void round_group(const struct group *x, struct form f, const struct scales *s,
                        const struct factors *by, int item, uint32_t g, vec *minima, vec *cut_off)
{
    const float *exact = by->exact + (size_t)item * by->room + g * AQ_KIVI_GROUP;
    const vec ulp_is_one = vec_set(0x1.8p23F);
    AQ_UNROLL(4)
    for (uint32_t v = 0; v < BLOCK_VECS; v++) {
        if (!has_factors(by, f, g, v))
            break;
        const uint32_t at = v * VEC_LANES;
        vec from = vec_load(x->from + at), minimum = minimum_at(s, g * AQ_KIVI_GROUP + at);
        *minima = by->values ? vec_fma_where(x->seen[v], from, minimum, *minima)
                             : vec_fma(from, minimum, *minima);
        vec y = vec_load(exact + at);
        vec whole = vec_fma(y, vec_set(by->in_one[4 * item]), ulp_is_one);
        vec_int bits = vec_bits(whole);
        if (by->levels > 1) /* low bytes are signed */
            vec_store_bytes(factors_at(by, 0, (uint32_t)item, g) + at,
                            vec_int_shift_right(vec_int_add(bits, vec_int_set(0x80)), 8));
        vec_store_bytes(factors_at(by, by->levels - 1, (uint32_t)item, g) + at, bits);
        vec cut = vec_fnma(vec_sub(whole, ulp_is_one), vec_set(by->step[4 * item]), y);
        *cut_off = vec_add(*cut_off, cut);
    }
}

/* offset[n] = the sum of by_lane[n], for n < count; as many as make fours are written. */
VEC_FN void add_offsets(const struct factors *by, uint32_t count)
{
    for (uint32_t n = 0; n < count; n += 4) {
        vec four[4];
        AQ_UNROLL(4)
        for (uint32_t k = 0; k < 4; k++)
            four[k] = n + k < count ? vec_load(by->by_lane + (n + k) * VEC_LANES) : vec_zero();
        vec_store_sums(by->offset + n, four);
    }
}

/* Queries times the scales of K, or weights times those of V, become factors. */
VEC_FN void make_factors(const struct decode *t, const struct step *x, struct form f,
                         struct factors *by)
{
    const int items = by->blocks * by->queries;
    struct scales scales[QUERIES_WIDE];
    for (int k = 0; k < by->blocks; k++)
        scales[k] = scales_open(t, x[k].block, f, by);
    vec most[QUERIES_WIDE];
    AQ_UNROLL(4)
    for (int item = 0; item < QUERIES_WIDE; item++)
        most[item] = vec_zero();
    AQ_UNROLL(4)
    for (int item = 0; item < items; item++) {
        const int k = item / by->queries;
        if (item % by->queries == 0)
            ask_part(&x[k], f, by->values ? VALUES_SCALED : KEYS_SCALED);
        AQ_UNROLL(4)
        for (uint32_t g = 0; g < by->groups; g++) {
            struct group group = group_of(t, x, by, item, g);
            most[item] = scale_group(&group, f, &scales[k], by, item, g, most[item]);
        }
    }
    choose_steps(by, most);
    for (int item = 0; item < items; item++) {
        const int k = item / by->queries;
        vec minima = vec_zero(), cut_off = vec_zero();
        if (item % by->queries == 0)
            ask_part(&x[k], f, by->values ? VALUES_ROUNDED : KEYS_ROUNDED);
        AQ_UNROLL(4)
        for (uint32_t g = 0; g < by->groups; g++) {
            struct group group = group_of(t, x, by, item, g);
            round_group(&group, f, &scales[k], by, item, g, &minima, &cut_off);
            if (!by->values && g + 1 < by->groups)
                continue;
            uint32_t n = by->values ? (uint32_t)item * by->groups + g : (uint32_t)item;
            vec_store(by->by_lane + n * VEC_LANES,
                      vec_fma(cut_off, vec_set(code_middle(f)), minima));
            minima = cut_off = vec_zero();
        }
    }
    add_offsets(by, (uint32_t)items * (by->values ? by->groups : 1));
}

/* ---- a block ---- */

VEC_FN int items_together(const struct factors *by)
{
    return by->queries < ITEMS_WIDE ? by->queries : ITEMS_WIDE;
}

/* What bytes of a level are multiples of. */
VEC_FN float level_step(const struct factors *by, int level, uint32_t item)
{
    return by->step[4 * item] * (level + 1 < by->levels ? 256 : 1);
}

/* Scores of block k, by one level of factors after the other. */
VEC_FN void score_codes(const struct decode *t, const struct step *x, struct form f, int k,
                        int level, const struct factors *by)
{
    const int each = items_together(by);
    const uint8_t *codes = aq_kv_row(x[k].block, f.dtype, f.dim, 0);
    for (int query = 0; query < by->queries; query += each) {
        const uint32_t first = (uint32_t)(k * by->queries + query);
        vec_int sum[ITEMS_WIDE * SUMS];
        multiply(t, codes, factors_at(by, level, first, 0), by->room,
                 (uint32_t)aq_div_up(f.dim, AQ_KIVI_RUN), aq_kivi_words(f.dtype, BLOCK_SLOTS), f,
                 each, sum);
        AQ_UNROLL(4)
        for (int i = 0; i < each; i++) {
            const uint32_t item = first + (uint32_t)i;
            const float step = level_step(by, level, item);
            float *p = x[k].p + (uint32_t)(query + i) * BLOCK_SLOTS;
            AQ_UNROLL(4)
            for (uint32_t n = 0; n < BLOCK_SLOTS; n += VEC_LANES) {
                vec before = level ? vec_load(p + n) : vec_set(by->offset[item]);
                vec_store(p + n,
                          vec_fma(numbers_at(sum + i * SUMS, n), step_at(t, f, n, step), before));
            }
        }
    }
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

/* sum[item] of group g of V of block k, which has so many words, of `items` items from `first` on
 * and both bytes of their factors: sums of 32 have room for that. */
VEC_FN void multiply_values(const struct decode *t, const struct step *x, struct form f, int k,
                            uint32_t g, uint32_t words, uint32_t first, int items,
                            const struct factors *by, vec_int *sum)
{
    const uint8_t *codes = aq_kivi_values_of(x[k].block, f.dtype, f.dim, g);
    multiply(t, codes, factors_at(by, 0, first, g), by->room, RUNS, words, f, items, sum);
    if (by->levels == 1)
        return;
    vec_int low[ITEMS_WIDE * SUMS];
    multiply(t, codes, factors_at(by, 1, first, g), by->room, RUNS, words, f, items, low);
    AQ_UNROLL(16)
    for (int i = 0; i < items * SUMS; i++)
        sum[i] = vec_int_add(vec_int_shift_left(sum[i], 8), low[i]);
}

/* Adds group g of V, which is whole, of block k. */
VEC_FN void add_group(const struct decode *t, const struct step *x, struct form f, int k,
                      uint32_t g, const struct factors *by)
{
    const int most = by->levels < ITEMS_WIDE ? ITEMS_WIDE / by->levels : 1;
    const int each = by->queries < most ? by->queries : most;
    for (int query = 0; query < by->queries; query += each) {
        const uint32_t first = (uint32_t)(k * by->queries + query);
        vec_int sum[ITEMS_WIDE * SUMS];
        multiply_values(t, x, f, k, g, aq_kivi_words(f.dtype, AQ_KIVI_GROUP), first, each, by, sum);
        AQ_UNROLL(4)
        for (int i = 0; i < each; i++) {
            const uint32_t item = first + (uint32_t)i;
            float *to = t->sum + (size_t)(x[k].query + (uint32_t)(query + i)) * t->dim_pad;
            AQ_UNROLL(4)
            for (uint32_t n = 0; n < BLOCK_SLOTS; n += VEC_LANES)
                add_numbers(to + g * AQ_KIVI_GROUP + n, VEC_LANES, x[k].correction[query + i],
                            numbers_at(sum + i * SUMS, n), step_at(t, f, n, by->step[4 * item]),
                            by->offset[item * by->groups + g]);
        }
    }
}

/* Adds a last group of V that is not whole. */
VEC_FN void add_rest(const struct decode *t, const struct step *x, struct form f, int k, uint32_t g,
                     const struct factors *by)
{
    const uint32_t width = aq_kivi_width(f.dim, g), words = aq_kivi_words(f.dtype, width);
    const uint32_t vecs = (uint32_t)aq_div_up(words, SUM_NUMBERS);
    for (int query = 0; query < by->queries; query++) {
        const uint32_t item = (uint32_t)(k * by->queries + query);
        float *to = t->sum + (size_t)(x[k].query + (uint32_t)query) * t->dim_pad;
        float rest[AQ_KIVI_GROUP], pair[VEC_LANES];
        vec_int sum[ITEMS_WIDE * SUMS];
        multiply_values(t, x, f, k, g, words, item, 1, by, sum);
        for (uint32_t n = 0; n < width; n++) {
            uint32_t part = n / words, lane = n % words % SUM_NUMBERS;
            if (lane == 0) {
                vec_int y = sum[part * vecs + n % words / SUM_NUMBERS];
                vec_store(pair, vec_from_int(vec_int_add_neighbours(y, y)));
            }
            uint32_t place = t->fused ? part : part % ((uint32_t)byte_codes(f) / 2);
            rest[n] = pair[lane] / (float)(1u << place * aq_kivi_bits(f.dtype));
        }
        for (uint32_t n = 0; n < width; n += VEC_LANES) {
            uint32_t count = (uint32_t)aq_min_u64(VEC_LANES, width - n);
            add_numbers(to + g * AQ_KIVI_GROUP + n, count, x[k].correction[query],
                        vec_load_n(rest + n, count), vec_set(by->step[4 * item]),
                        by->offset[item * by->groups + g]);
        }
    }
}

/* Blocks that are best attended side by side, with a query each: of small heads more, as what is
 * asked for meanwhile needs time to come, and of large ones not more than it needs. */
VEC_FN int blocks_wide(struct form f)
{
    return f.dim <= 64 ? QUERIES_WIDE : 2;
}

/* Attends `blocks` blocks with `queries` queries each, QUERIES_WIDE items at most: side by side,
 * since what one's vectors wait for the others' work fills, and since vectors of four items become
 * sums and maxima with hardly more work than those of one. */
VEC_FN void attend_codes(struct decode *t, struct step *x, struct form f, int blocks, int queries)
{
    const uint32_t groups = aq_kivi_groups(f.dim), whole = f.dim / AQ_KIVI_GROUP;
    struct factors keys = factors_open(t, f, false, blocks, queries);
    struct factors values = factors_open(t, f, true, blocks, queries);
    make_factors(t, x, f, &keys);
    for (int k = 0; k < blocks; k++) {
        ask_part(&x[k], f, KEYS_SCORED);
        for (int level = 0; level < keys.levels; level++)
            score_codes(t, x, f, k, level, &keys);
    }
    weigh(t, x, blocks, queries);
    make_factors(t, x, f, &values);
    for (int k = 0; k < blocks; k++) {
        ask_part(&x[k], f, VALUES_ADDED);
        for (uint32_t g = 0; g < whole; g++)
            add_group(t, x, f, k, g, &values);
        if (whole < groups)
            add_rest(t, x, f, k, whole, &values);
    }
}
