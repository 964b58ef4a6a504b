/* SPDX-License-Identifier: Apache-2.0
 * What versions of prefill attention and of column sums share, on vec.h: which queries a tile
 * holds, what they see, and K and V in f32. */

enum { BLOCK_SLOTS = AQ_HEAD_BLOCK_SLOTS };

/* A tile of prefill attention in f32, and half a tile of column sums. */
enum {
    TILE_LANES = AQ_ATTN_TILE_QUERIES,
    TILE_VECS = TILE_LANES / VEC_LANES,
    /* A register block: this many keys or d against up to this many vectors of lanes. */
    BLOCK_ROWS = VEC_LANES / 2,
    BLOCK_WIDTH = 3,
};

/* Slots or keys: [begin, end), none where begin is not below end. */
struct span {
    uint32_t begin, end;
};

/* Which queries a tile holds: numbered by row, then by query head of the group. */
struct prefill_run {
    const struct aq_attn *a;
    const struct aq_attn_seq *seq;
    uint32_t head, query;
};

/* Element 0 of a lane's query in rows of this stride. */
static inline size_t lane_offset(const struct prefill_run *run, uint32_t lane, size_t stride)
{
    uint32_t row = (run->query + lane) / run->a->q_per_kv;
    uint32_t group = (run->query + lane) % run->a->q_per_kv;
    return (run->seq->row + (size_t)row) * stride +
           ((size_t)run->head * run->a->q_per_kv + group) * run->a->head_dim;
}

/* A lane's place in arrays of a number per row and query head. */
static inline size_t lane_head(const struct prefill_run *run, uint32_t lane)
{
    uint32_t row = (run->query + lane) / run->a->q_per_kv;
    uint32_t group = (run->query + lane) % run->a->q_per_kv;
    return ((run->seq->row + (size_t)row) * run->a->kv_heads + run->head) * run->a->q_per_kv +
           group;
}

static inline struct span keys_seen(const struct prefill_run *run, uint32_t query)
{
    uint32_t len = aq_attn_len(run->seq, run->head);
    uint32_t end = aq_attn_visible(len, run->seq->rows, query / run->a->q_per_kv);
    return (struct span){aq_attn_first(run->a->window, end), end};
}

VEC_FN void widen(float *to, const void *from, enum aq_dtype dtype, size_t first, size_t count)
{
    size_t i = 0;
    for (; i + VEC_LANES <= count; i += VEC_LANES)
        vec_store(to + i, vec_load_as(from, dtype, first + i));
    if (i < count) {
        uint32_t n = (uint32_t)(count - i);
        vec_store_n(to + i, vec_load_as_n(from, dtype, first + i, n), n);
    }
}

/* Rows [first, first + slots) of a quantised block to f32. */
VEC_FN void widen_codes(float *to, const uint8_t *block, enum aq_dtype dtype, uint32_t first,
                        uint32_t slots, uint32_t dim)
{
    uint32_t bytes = (uint32_t)aq_kv_row_bytes(dtype, dim);
    for (uint32_t row = first; row < first + slots; row++, to += dim) {
        const uint8_t *codes = aq_kv_row(block, dtype, dim, row);
        struct aq_quant q = aq_kv_quant(block, row);
        vec scale = vec_set(aq_f32_from_f16(q.scale));
        vec minimum = vec_set(aq_f32_from_f16(q.minimum));
        for (uint32_t d = 0; d < bytes; d += VEC_LANES) {
            uint32_t n = (uint32_t)aq_min_u64(VEC_LANES, bytes - d);
            vec_int both = vec_load_u8(codes + d, n);
            vec low = dtype == AQ_Q8 ? vec_from_int(both) : vec_nibble(both);
            vec_store_n(to + d, vec_fma(low, scale, minimum), n);
            if (dtype == AQ_Q4) {
                vec high = vec_nibble(vec_int_shift_right(both, 4));
                vec_store_n(to + bytes + d, vec_fma(high, scale, minimum),
                            (uint32_t)aq_min_u64(n, dim - bytes - d));
            }
        }
    }
}
