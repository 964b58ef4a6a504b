/* SPDX-License-Identifier: Apache-2.0
 * KV append, on vec.h; included once by each version's file. */
#include "kernels/cpu/attn.h"
#include "kernels/cpu/kv.h"
#include "kernels/cpu/vec.h"
#include "kernels/cpu/versions.h"

enum { TILE_HEADS = 8 };

struct append_job {
    const struct aq_attn *a;
    uint32_t tiles_per_seq;
};

VEC_FN void store_row(void *block, enum aq_dtype dtype, size_t index, const float *from,
                      uint32_t dim)
{
    uint32_t d = 0;
    for (; d + VEC_LANES <= dim; d += VEC_LANES)
        vec_store_as(block, dtype, index + d, vec_load(from + d));
    if (d < dim)
        vec_store_as_n(block, dtype, index + d, vec_load_n(from + d, dim - d), dim - d);
}

/* As aq_quant_of(). */
VEC_FN struct aq_quant row_range(const float *v, uint32_t dim, enum aq_dtype dtype)
{
    vec lo = vec_set(v[0]), hi = lo, spoilt = vec_zero();
    for (uint32_t d = 0; d < dim; d += VEC_LANES) {
        uint32_t n = (uint32_t)aq_min_u64(VEC_LANES, dim - d);
        vec x = vec_select(vec_first(n), vec_load_n(v + d, n), vec_set(v[0]));
        lo = vec_select(vec_less(x, lo), x, lo);
        hi = vec_max(x, hi);
        spoilt = vec_add(spoilt, vec_sub(x, x));
    }
    lo = vec_sub(vec_zero(), vec_max_all(vec_sub(vec_zero(), lo)));
    hi = vec_max_all(hi);
    return aq_quant_range(vec_first_lane(lo), vec_first_lane(hi), vec_sum(spoilt) == 0, dtype);
}

/* As aq_quant_code(). */
VEC_FN vec codes_of(vec x, vec scale, vec minimum, enum aq_dtype dtype)
{
    vec most = vec_set(aq_code_max(dtype));
    vec code = vec_round(vec_div(vec_sub(x, minimum), scale));
    code = vec_select(vec_less(vec_zero(), code), code, vec_zero());
    code = vec_select(vec_less(code, most), code, most);
    return vec_select(vec_less(vec_zero(), scale), code, vec_zero());
}

/* The same for n values; the other lanes are of no use. */
VEC_FN vec row_codes(struct aq_quant q, const float *v, uint32_t n, enum aq_dtype dtype)
{
    return codes_of(vec_load_n(v, n), vec_set(aq_f32_from_f16(q.scale)),
                    vec_set(aq_f32_from_f16(q.minimum)), dtype);
}

VEC_FN void store_codes(uint8_t *block, enum aq_dtype dtype, uint32_t row, const float *from,
                        uint32_t dim)
{
    struct aq_quant q = row_range(from, dim, dtype);
    uint8_t *to = aq_kv_row(block, dtype, dim, row);
    uint32_t bytes = (uint32_t)aq_kv_row_bytes(dtype, dim);
    aq_kv_quant_set(block, row, q);
    for (uint32_t d = 0; d < bytes; d += VEC_LANES) {
        uint32_t n = (uint32_t)aq_min_u64(VEC_LANES, bytes - d);
        vec codes = row_codes(q, from + d, n, dtype);
        if (dtype == AQ_Q4) { /* the upper half may be one shorter */
            uint32_t m = (uint32_t)aq_min_u64(n, dim - bytes - d);
            vec upper = row_codes(q, from + bytes + d, m, dtype);
            upper = vec_select(vec_first(m), upper, vec_zero());
            codes = vec_fma(upper, vec_set(16), codes);
        }
        vec_store_u8(to + d, codes, n);
    }
}

VEC_FN void append_head(const struct append_job *job, enum aq_dtype dtype,
                        const struct aq_attn_seq *seq, uint32_t head)
{
    uint32_t dim = job->a->head_dim;
    for (uint32_t i = 0; i < seq->rows; i++) {
        uint32_t slot = aq_attn_new_slot(seq, head, i);
        aq_attn_note_row(seq, head, i, slot);
        uint8_t *block = aq_attn_block(seq, head, slot / AQ_HEAD_BLOCK_SLOTS);
        slot %= AQ_HEAD_BLOCK_SLOTS;
        size_t from = (seq->row + (size_t)i) * job->a->new_stride + (size_t)head * dim;
        if (aq_dtype_is_quantised(dtype)) {
            store_codes(block, dtype, slot, job->a->k_new + from, dim);
            store_codes(block, dtype, AQ_HEAD_BLOCK_SLOTS + slot, job->a->v_new + from, dim);
            continue;
        }
        store_row(block, dtype, (size_t)slot * dim, job->a->k_new + from, dim);
        store_row(block, dtype, (size_t)(AQ_HEAD_BLOCK_SLOTS + slot) * dim, job->a->v_new + from,
                  dim);
    }
}

/* A tile is a few KV heads of one sequence. */
static void append_tile(void *arg, uint32_t tile, uint32_t worker)
{
    const struct append_job *job = arg;
    const struct aq_attn_seq *seq = &job->a->seqs[tile / job->tiles_per_seq];
    uint32_t head = tile % job->tiles_per_seq * TILE_HEADS;
    uint32_t end = (uint32_t)aq_min_u64(head + TILE_HEADS, job->a->kv_heads);
    for (; head < end; head++) {
        switch (job->a->kv_dtype) {
        case AQ_F32: append_head(job, AQ_F32, seq, head); break;
        case AQ_F16: append_head(job, AQ_F16, seq, head); break;
        case AQ_Q8: append_head(job, AQ_Q8, seq, head); break;
        case AQ_Q4: append_head(job, AQ_Q4, seq, head); break;
        default: append_head(job, AQ_BF16, seq, head);
        }
    }
}

void VEC_VERSION(kv_append)(struct aq_exec *ex, const struct aq_attn *a)
{
    aq_attn_assert(a);
    struct append_job job = {.a = a};
    job.tiles_per_seq = (uint32_t)aq_div_up(a->kv_heads, TILE_HEADS);
    aq_pool_run(aq_exec_pool(ex), append_tile, &job, a->seq_count * job.tiles_per_seq);
}

/* ---- KIVI ---- */

struct encode_job {
    struct aq_exec *ex;
    const struct aq_kv_encodes *e;
};

/* Scales and minima of up to VEC_LANES channels of K from channel d on. */
VEC_FN void key_ranges(uint16_t *scale, const uint16_t *rows, uint32_t d, uint32_t dim,
                       enum aq_dtype dtype)
{
    uint32_t n = (uint32_t)aq_min_u64(VEC_LANES, dim - d);
    vec lo = vec_set(INFINITY), hi = vec_set(-INFINITY), spoilt = vec_zero();
    float least[VEC_LANES], most[VEC_LANES], spoilt_by[VEC_LANES];
    for (uint32_t row = 0; row < AQ_HEAD_BLOCK_SLOTS; row++) {
        vec x = vec_load_f16_n(rows + (size_t)row * dim + d, n);
        lo = vec_select(vec_less(x, lo), x, lo);
        hi = vec_max(x, hi);
        spoilt = vec_add(spoilt, vec_sub(x, x));
    }
    vec_store(least, lo);
    vec_store(most, hi);
    vec_store(spoilt_by, spoilt);
    for (uint32_t i = 0; i < n; i++) {
        struct aq_quant q = aq_quant_range(least[i], most[i], spoilt_by[i] == 0, dtype);
        scale[d + i] = q.scale;
        scale[dim + d + i] = q.minimum;
    }
}

/* code[d] = the code of channel d of a row of K. */
VEC_FN void key_codes(uint8_t *code, const uint16_t *row, const uint16_t *scale, uint32_t dim,
                      enum aq_dtype dtype)
{
    for (uint32_t d = 0; d < dim; d += VEC_LANES) {
        uint32_t n = (uint32_t)aq_min_u64(VEC_LANES, dim - d);
        vec codes = codes_of(vec_load_f16_n(row + d, n), vec_load_f16_n(scale + d, n),
                             vec_load_f16_n(scale + dim + d, n), dtype);
        vec_store_u8(code + d, codes, n);
    }
}

/* code[d] = the code of channel d of a row of V; scale: of the row's first group. */
VEC_FN void value_codes(uint8_t *code, const uint16_t *row, uint16_t *scale, uint32_t dim,
                        enum aq_dtype dtype)
{
    uint16_t *minimum = scale + (size_t)aq_kivi_groups(dim) * AQ_HEAD_BLOCK_SLOTS;
    float v[AQ_KIVI_GROUP];
    for (uint32_t d = 0, g = 0; d < dim; d += AQ_KIVI_GROUP, g += AQ_HEAD_BLOCK_SLOTS) {
        uint32_t count = (uint32_t)aq_min_u64(AQ_KIVI_GROUP, dim - d);
        for (uint32_t i = 0; i < count; i += VEC_LANES) {
            uint32_t n = (uint32_t)aq_min_u64(VEC_LANES, count - i);
            vec_store_n(v + i, vec_load_f16_n(row + d + i, n), n);
        }
        struct aq_quant q = row_range(v, count, dtype);
        scale[g] = q.scale;
        minimum[g] = q.minimum;
        for (uint32_t i = 0; i < count; i += VEC_LANES) {
            uint32_t n = (uint32_t)aq_min_u64(VEC_LANES, count - i);
            vec_store_u8(code + d + i, row_codes(q, v + i, n, dtype), n);
        }
    }
}

/* Codes of a token's keys into its word of each run, where they are 0. */
VEC_FN void pack_keys(uint8_t *to, const uint8_t *code, uint32_t slot, uint32_t dim,
                      enum aq_dtype dtype)
{
    uint32_t words = aq_kivi_words(dtype, AQ_HEAD_BLOCK_SLOTS);
    uint32_t shift = slot / words * aq_kivi_bits(dtype);
    to += slot % words * AQ_KIVI_RUN;
    for (uint32_t d = 0; d < dim; d += AQ_KIVI_RUN, to += words * AQ_KIVI_RUN) {
        uint64_t all = 0, before;
        memcpy(&all, code + d, aq_min_u64(AQ_KIVI_RUN, dim - d));
        memcpy(&before, to, sizeof(before));
        before |= all << shift;
        memcpy(to, &before, sizeof(before));
    }
}

/* The same of a token's values: a byte of each word. */
VEC_FN void pack_values(uint8_t *block, const uint8_t *code, uint32_t slot, uint32_t dim,
                        enum aq_dtype dtype)
{
    for (uint32_t g = 0; g < aq_kivi_groups(dim); g++, code += AQ_KIVI_GROUP) {
        uint32_t width = aq_kivi_width(dim, g), words = aq_kivi_words(dtype, width);
        uint8_t *to = aq_kivi_values_of(block, dtype, dim, g);
        to += slot / AQ_KIVI_RUN * words * AQ_KIVI_RUN + slot % AQ_KIVI_RUN;
        for (uint32_t w = 0; w < words; w++) {
            uint32_t all = 0;
            for (uint32_t i = w, shift = 0; i < width; i += words, shift += aq_kivi_bits(dtype))
                all |= (uint32_t)code[i] << shift;
            to[w * AQ_KIVI_RUN] = (uint8_t)all;
        }
    }
}

VEC_FN void encode_head(uint8_t *to, const uint16_t *rows, uint32_t dim, enum aq_dtype dtype,
                        uint8_t *code)
{
    uint16_t *keys = aq_kivi_keys(to), *values = aq_kivi_values(to, dim);
    memset(to, 0, aq_kv_block_bytes(dtype, dim));
    for (uint32_t d = 0; d < dim; d += VEC_LANES)
        key_ranges(keys, rows, d, dim, dtype);
    for (uint32_t slot = 0; slot < AQ_HEAD_BLOCK_SLOTS; slot++) {
        const uint16_t *k = rows + (size_t)slot * dim, *v = k + (size_t)AQ_HEAD_BLOCK_SLOTS * dim;
        key_codes(code, k, keys, dim, dtype);
        pack_keys(aq_kv_row(to, dtype, dim, 0), code, slot, dim, dtype);
        value_codes(code, v, values + slot, dim, dtype);
        pack_values(to, code, slot, dim, dtype);
    }
}

/* A tile is one KV head of one run. */
static void encode_tile(void *arg, uint32_t tile, uint32_t worker)
{
    const struct encode_job *job = arg;
    const struct aq_kv_encodes *e = job->e;
    const struct aq_kv_encode *run = &e->encodes[tile / e->kv_heads];
    uint32_t head = tile % e->kv_heads, dim = e->head_dim;
    uint8_t *to = run->to + head * aq_kv_block_bytes(e->kv_dtype, dim);
    const void *from = run->from + head * aq_kv_block_bytes(AQ_F16, dim);
    uint8_t *code = aq_exec_scratch(job->ex, worker);
    if (e->kv_dtype == AQ_KIVI2)
        encode_head(to, from, dim, AQ_KIVI2, code);
    else
        encode_head(to, from, dim, AQ_KIVI4, code);
}

void VEC_VERSION(kv_encode)(struct aq_exec *ex, const struct aq_kv_encodes *e)
{
    assert(aq_dtype_is_kivi(e->kv_dtype) && e->head_dim <= aq_exec_scratch_size(ex));
    struct encode_job job = {ex, e};
    aq_pool_run(aq_exec_pool(ex), encode_tile, &job, e->count * e->kv_heads);
}
