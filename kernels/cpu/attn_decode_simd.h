/* SPDX-License-Identifier: Apache-2.0
 * Decode attention, on vec.h; included once by each version's file.
 *
 * A tile is a few KV heads of one sequence.  Each block of a head is read once, for all queries of
 * that head (the query heads of the group, times the rows of the sequence): scores as dot products
 * along the head's dimension, an online softmax per block (Milakov and Gimelshein, "Online
 * normalizer calculation for softmax", 2018), then the weighted sum of V into the query's
 * accumulators.  While a block is worked on, the next one is asked for from memory, row by row:
 * the hardware's own prefetcher starts afresh at every page and block.
 *
 * Every query is scaled once, in f32, and its sums are formed in one order whatever shares its
 * tile: lane l of a score adds d = l, l + VEC_LANES, ..., then lanes in vec_sum()'s order; blocks
 * and slots ascend; slots that the query does not see take no part. */

enum {
    BLOCK_SLOTS = AQ_HEAD_BLOCK_SLOTS,
    BLOCK_VECS = BLOCK_SLOTS / VEC_LANES,
    QUERIES_MAX = AQ_ATTN_DECODE_QUERIES,
    /* Queries worked on together, so that each vector of K and V is loaded once for all of them. */
    QUERIES_WIDE = VEC_LANES / 4,
    /* Vectors of an output kept in registers at a time: for one query, and for each of several. */
    VECS_ONE = 8,
    VECS_WIDE = VEC_LANES / 4,
    SUMS_MAX = 16,
};

/* The queries of one KV head that are at work. */
struct decode {
    uint32_t count, dim, dim_pad;
    float *q;      /* [count][dim_pad], scaled, zero-padded */
    float *sum;    /* [count][dim_pad] */
    float *weight; /* [count][VEC_LANES]: sums of exp(), by lane */
    float *p;      /* [QUERIES_WIDE][BLOCK_SLOTS]: scores of a block, then their exp() */
    float max[QUERIES_MAX];
    uint32_t visible[QUERIES_MAX]; /* keys each query sees */
    /* The block at work, how many of its slots the present queries see; what their sums so far
     * must be multiplied by; the block to ask for meanwhile, NULL for none. */
    const uint8_t *block;
    uint32_t slots;
    float correction[QUERIES_WIDE];
    const uint8_t *next;
    uint32_t next_slots;
};

/* Asks for rows of the next block; the V rows follow the K rows. */
VEC_FN void ask(const struct decode *t, enum aq_dtype dtype, uint32_t row, uint32_t rows)
{
    size_t row_bytes = t->dim * aq_dtype_bytes(dtype);
    if (t->next && row % BLOCK_SLOTS < t->next_slots)
        vec_prefetch(t->next + row * row_bytes, rows * row_bytes);
}

/* A vector of the block from element `index` on; only `lanes` of it, unless that is VEC_LANES. */
VEC_FN vec load_kv(const struct decode *t, enum aq_dtype dtype, size_t index, uint32_t lanes)
{
    return lanes == VEC_LANES ? vec_load_as(t->block, dtype, index)
                              : vec_load_as_n(t->block, dtype, index, lanes);
}

/* sum[i][s] += q[i][d..] * K[slot + s][d..] for four slots. */
VEC_FN void dot_step(const struct decode *t, enum aq_dtype dtype, const float *q, uint32_t slot,
                     uint32_t d, uint32_t lanes, int queries, vec *sum)
{
    vec y[4];
    for (uint32_t s = 0; s < 4; s++)
        y[s] = load_kv(t, dtype, (size_t)(slot + s) * t->dim + d, lanes);
    for (int i = 0; i < queries; i++) {
        vec x = vec_load(q + (size_t)i * t->dim_pad + d);
        for (int s = 0; s < 4; s++)
            sum[i * 4 + s] = vec_fma(y[s], x, sum[i * 4 + s]);
    }
}

/* sum[i][s] = lane sums of q[i] . K[slot + s] for four slots. */
VEC_FN void dot_four(const struct decode *t, enum aq_dtype dtype, uint32_t query, uint32_t slot,
                     int queries, vec *sum)
{
    const float *q = t->q + (size_t)query * t->dim_pad;
    for (int i = 0; i < 4 * queries; i++)
        sum[i] = vec_zero();
    uint32_t d = 0;
    for (; d + VEC_LANES <= t->dim; d += VEC_LANES)
        dot_step(t, dtype, q, slot, d, VEC_LANES, queries, sum);
    if (d < t->dim)
        dot_step(t, dtype, q, slot, d, t->dim - d, queries, sum);
}

/* p[slot] = q . K[slot] in whole vectors: what lies past the slots in use is of no use. */
VEC_FN void score_one(const struct decode *t, enum aq_dtype dtype, uint32_t query)
{
    for (uint32_t slot = 0; slot < t->slots; slot += VEC_LANES) {
        vec sum[VEC_LANES];
        for (uint32_t s = 0; s < VEC_LANES; s += 4) {
            if (query == 0)
                ask(t, dtype, slot + s, 4);
            dot_four(t, dtype, query, slot + s, 1, sum + s);
        }
        vec_store(t->p + slot, vec_sum_rows(sum));
    }
}

/* The same for QUERIES_WIDE queries at once. */
VEC_FN void score_wide(const struct decode *t, enum aq_dtype dtype, uint32_t query)
{
    for (uint32_t slot = 0; slot < t->slots; slot += 4) {
        vec sum[VEC_LANES];
        if (query == 0)
            ask(t, dtype, slot, 4);
        dot_four(t, dtype, query, slot, QUERIES_WIDE, sum);
        vec_store_fours(t->p + slot, BLOCK_SLOTS, vec_sum_rows(sum));
    }
}

/* Turns the scores of query + i into exp(score - max), 0 past the slots in use, and keeps its
 * maximum, its sum of weights and its correction. */
static inline void weigh(struct decode *t, uint32_t query, uint32_t i)
{
    const vec lowest = vec_set(-INFINITY);
    float *p = t->p + i * BLOCK_SLOTS, *weight = t->weight + (size_t)(query + i) * VEC_LANES;
    vec s[BLOCK_VECS], old = vec_set(t->max[query + i]), max = old;
    for (uint32_t v = 0; v < BLOCK_VECS; v++) {
        uint32_t first = v * VEC_LANES, n = t->slots > first ? t->slots - first : 0;
        s[v] = vec_select(vec_first(n), vec_load(p + first), lowest);
        max = vec_max(max, s[v]);
    }
    max = vec_max_all(max);
    /* While all scores are -inf, subtracting 0 gives weights of 0 instead of NaN. */
    vec base = vec_zero_where(vec_equal(max, lowest), max);
    vec correction = vec_exp(vec_sub(old, base)), added = vec_zero();
    for (uint32_t v = 0; v < BLOCK_VECS; v++) {
        vec e = vec_exp(vec_sub(s[v], base));
        vec_store(p + v * VEC_LANES, e);
        added = vec_add(added, e);
    }
    vec_store(weight, vec_fma(vec_load(weight), correction, added));
    t->max[query + i] = vec_first_lane(max);
    t->correction[i] = vec_first_lane(correction);
}

/* sum[i][d..] = sum[i][d..] * correction[i] + sum over slots of p[i][slot] * V[slot][d..]
 * for `queries` queries and `vecs` vectors along d, each of `lanes` lanes. */
VEC_FN void add_values_at(const struct decode *t, enum aq_dtype dtype, uint32_t query, uint32_t d,
                          uint32_t lanes, int queries, int vecs)
{
    float *to = t->sum + (size_t)query * t->dim_pad + d;
    vec sum[SUMS_MAX];
    for (int i = 0; i < queries; i++) {
        for (int v = 0; v < vecs; v++)
            sum[i * vecs + v] = vec_mul(vec_load(to + (size_t)i * t->dim_pad + v * VEC_LANES),
                                        vec_set(t->correction[i]));
    }
    for (uint32_t slot = 0; slot < t->slots; slot++) {
        size_t index = (size_t)(BLOCK_SLOTS + slot) * t->dim + d;
        if (query == 0 && d == 0)
            ask(t, dtype, BLOCK_SLOTS + slot, 1);
        for (int v = 0; v < vecs; v++) {
            vec y = load_kv(t, dtype, index + (uint32_t)v * VEC_LANES, lanes);
            for (int i = 0; i < queries; i++) {
                vec p = vec_set(t->p[i * BLOCK_SLOTS + slot]);
                sum[i * vecs + v] = vec_fma(p, y, sum[i * vecs + v]);
            }
        }
    }
    for (int i = 0; i < queries; i++) {
        for (int v = 0; v < vecs; v++)
            vec_store(to + (size_t)i * t->dim_pad + v * VEC_LANES, sum[i * vecs + v]);
    }
}

VEC_FN void add_values(const struct decode *t, enum aq_dtype dtype, uint32_t query, int queries,
                       int vecs)
{
    uint32_t d = 0, whole = t->dim / VEC_LANES * VEC_LANES;
    for (; d + vecs * VEC_LANES <= whole; d += vecs * VEC_LANES)
        add_values_at(t, dtype, query, d, VEC_LANES, queries, vecs);
    for (; vecs > 4 && d + 4 * VEC_LANES <= whole; d += 4 * VEC_LANES)
        add_values_at(t, dtype, query, d, VEC_LANES, queries, 4);
    for (; d < whole; d += VEC_LANES)
        add_values_at(t, dtype, query, d, VEC_LANES, queries, 1);
    if (d < t->dim)
        add_values_at(t, dtype, query, d, t->dim - d, queries, 1);
}

/* Slots of the block whose first key has this number, that a query sees. */
static inline uint32_t slots_seen(const struct decode *t, uint32_t query, uint32_t first_key)
{
    uint32_t visible = t->visible[query];
    return visible <= first_key ? 0 : (uint32_t)aq_min_u64(visible - first_key, BLOCK_SLOTS);
}

/* Attends one block with one query. */
VEC_FN void attend_one(struct decode *t, enum aq_dtype dtype, uint32_t query, uint32_t first_key)
{
    t->slots = slots_seen(t, query, first_key);
    if (!t->slots)
        return;
    score_one(t, dtype, query);
    weigh(t, query, 0);
    add_values(t, dtype, query, 1, VECS_ONE);
}

/* Attends one block with all queries: several together where they see the same of it. */
VEC_FN void attend_block(struct decode *t, enum aq_dtype dtype, uint32_t first_key)
{
    for (uint32_t query = 0; query < t->count;) {
        uint32_t last = query + QUERIES_WIDE - 1;
        t->slots = slots_seen(t, query, first_key);
        if (last >= t->count || slots_seen(t, last, first_key) != t->slots) {
            attend_one(t, dtype, query++, first_key);
            continue;
        }
        if (t->slots) {
            score_wide(t, dtype, query);
            for (uint32_t i = 0; i < QUERIES_WIDE; i++)
                weigh(t, query, i);
            add_values(t, dtype, query, QUERIES_WIDE, VECS_WIDE);
        }
        query += QUERIES_WIDE;
    }
}

struct decode_job {
    struct aq_exec *ex;
    const struct aq_attn *a;
    uint32_t tile_heads, tiles_per_seq; /* KV heads of a tile, the last tile maybe fewer */
};

/* The heads [head, head_end) of a sequence, and which of its queries: numbered by row, then by
 * query head of the group. */
struct decode_run {
    const struct aq_attn *a;
    const struct aq_attn_seq *seq;
    uint32_t head, head_end;
    uint32_t query, query_count;
};

/* Lays the scratch area out for this many queries. */
static struct decode decode_begin(struct aq_exec *ex, uint32_t worker, uint32_t dim, uint32_t count)
{
    struct decode t = {.count = count, .dim = dim};
    t.dim_pad = (uint32_t)aq_align_up(dim, VEC_LANES);
    t.p = aq_exec_scratch(ex, worker);
    t.weight = t.p + QUERIES_WIDE * BLOCK_SLOTS;
    t.q = t.weight + (size_t)count * VEC_LANES;
    t.sum = t.q + (size_t)count * t.dim_pad;
    return t;
}

static void load_queries(struct decode *t, const struct decode_run *run)
{
    const struct aq_attn *a = run->a;
    uint32_t len = aq_attn_len(run->seq, run->head);
    for (uint32_t i = 0; i < t->count; i++) {
        uint32_t row = (run->query + i) / a->q_per_kv, group = (run->query + i) % a->q_per_kv;
        const float *from = a->q + (run->seq->row + (size_t)row) * a->q_stride +
                            ((size_t)run->head * a->q_per_kv + group) * a->head_dim;
        float *to = t->q + (size_t)i * t->dim_pad;
        for (uint32_t d = 0; d < t->dim_pad; d++)
            to[d] = d < t->dim ? from[d] * a->scale : 0;
        t->visible[i] = aq_attn_visible(len, run->seq->rows, row);
        t->max[i] = -INFINITY;
        vec_store(t->weight + (size_t)i * VEC_LANES, vec_zero());
    }
    memset(t->sum, 0, (size_t)t->count * t->dim_pad * sizeof(*t->sum));
}

static void store_outputs(const struct decode *t, const struct decode_run *run)
{
    const struct aq_attn *a = run->a;
    for (uint32_t i = 0; i < t->count; i++) {
        size_t row = run->seq->row + (size_t)((run->query + i) / a->q_per_kv);
        size_t head = (size_t)run->head * a->q_per_kv + (run->query + i) % a->q_per_kv;
        size_t to = row * a->out_stride + head * a->head_dim;
        float weight = vec_sum(vec_load(t->weight + (size_t)i * VEC_LANES));
        vec divisor = vec_set(t->visible[i] ? weight : 1); /* sees nothing: 0 / 1 */
        for (uint32_t d = 0; d < t->dim; d += VEC_LANES) {
            vec y = vec_div(vec_load(t->sum + (size_t)i * t->dim_pad + d), divisor);
            vec_store_as_n(a->out, a->out_dtype, to + d, y,
                           (uint32_t)aq_min_u64(VEC_LANES, t->dim - d));
        }
        if (a->log_sum_exp)
            a->log_sum_exp[row * a->kv_heads * a->q_per_kv + head] = t->max[i] + logf(weight);
    }
}

/* Sets the block after (run->head, b) as the one to ask for. */
static void find_next(struct decode *t, const struct decode_run *run, uint32_t b, uint32_t blocks)
{
    uint32_t head = run->head;
    b++;
    if (b == blocks) {
        head++;
        b = 0;
    }
    uint32_t len = head < run->head_end ? aq_attn_len(run->seq, head) : 0;
    t->next = NULL;
    t->next_slots = 0;
    if (len > b * BLOCK_SLOTS) {
        t->next = aq_attn_block(run->seq, head, b);
        t->next_slots = (uint32_t)aq_min_u64(len - b * BLOCK_SLOTS, BLOCK_SLOTS);
    }
}

VEC_FN void decode_head(struct decode *t, enum aq_dtype dtype, const struct decode_run *run)
{
    load_queries(t, run);
    uint32_t visible = t->visible[t->count - 1]; /* rows ascend, and so does what they see */
    uint32_t blocks = (uint32_t)aq_div_up(visible, BLOCK_SLOTS);
    for (uint32_t b = 0; b < blocks; b++) {
        uint32_t first_key = b * BLOCK_SLOTS, used = slots_seen(t, t->count - 1, first_key);
        t->block = aq_attn_block(run->seq, run->head, b);
        find_next(t, run, b, blocks);
        for (uint32_t slot = used; slot < BLOCK_SLOTS; slot++) { /* rows without a counterpart */
            ask(t, dtype, slot, 1);
            ask(t, dtype, BLOCK_SLOTS + slot, 1);
        }
        attend_block(t, dtype, first_key);
    }
    store_outputs(t, run);
}

VEC_FN void decode_tile(const struct decode_job *job, enum aq_dtype dtype, uint32_t tile,
                        uint32_t worker)
{
    const struct aq_attn *a = job->a;
    const struct aq_attn_seq *seq = &a->seqs[tile / job->tiles_per_seq];
    uint32_t head = tile % job->tiles_per_seq * job->tile_heads;
    struct decode_run run = {.a = a, .seq = seq, .head = head};
    run.head_end = (uint32_t)aq_min_u64(head + job->tile_heads, a->kv_heads);
    uint32_t queries = seq->rows * a->q_per_kv;
    for (; run.head < run.head_end; run.head++) {
        for (run.query = 0; run.query < queries; run.query += QUERIES_MAX) {
            uint32_t count = (uint32_t)aq_min_u64(QUERIES_MAX, queries - run.query);
            struct decode t = decode_begin(job->ex, worker, a->head_dim, count);
            decode_head(&t, dtype, &run);
        }
    }
}

static void decode_tile_f32(void *job, uint32_t tile, uint32_t worker)
{
    decode_tile(job, AQ_F32, tile, worker);
}

static void decode_tile_f16(void *job, uint32_t tile, uint32_t worker)
{
    decode_tile(job, AQ_F16, tile, worker);
}

static void decode_tile_bf16(void *job, uint32_t tile, uint32_t worker)
{
    decode_tile(job, AQ_BF16, tile, worker);
}

static void attn_decode(struct aq_exec *ex, const struct aq_attn *a)
{
    aq_attn_assert(a);
    assert(aq_attn_scratch_bytes(a->head_dim) <= aq_exec_scratch_size(ex));
    struct aq_pool *pool = aq_exec_pool(ex);
    struct decode_job job = {.ex = ex, .a = a};
    /* Larger tiles ask ahead across heads; enough of them must be left for balance. */
    uint64_t heads = (uint64_t)a->seq_count * a->kv_heads;
    uint64_t tile_heads = heads / (16ull * aq_pool_threads(pool));
    job.tile_heads = (uint32_t)aq_max_u64(1, aq_min_u64(tile_heads, 8));
    job.tiles_per_seq = (uint32_t)aq_div_up(a->kv_heads, job.tile_heads);
    aq_tile_fn *fn = a->kv_dtype == AQ_F32   ? decode_tile_f32
                     : a->kv_dtype == AQ_F16 ? decode_tile_f16
                                             : decode_tile_bf16;
    aq_pool_run(pool, fn, &job, a->seq_count * job.tiles_per_seq);
}
