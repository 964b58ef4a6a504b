/* SPDX-License-Identifier: Apache-2.0
 * Prefill attention, on vec.h; included once by each version's file.
 *
 * A tile is TILE_LANES queries of one KV head of one sequence, and a query is a lane from beginning
 * to end: Q lies transposed, [d][query], scores [key][query], sums [d][query].  Then both products
 * broadcast an element of K or V to vectors of queries, the softmax works down columns without any
 * work across lanes, and no lane ever sees another's numbers: a query's result does not depend on
 * its tile or its neighbours.  Blocks of keys ascend, from the first one that a query of the tile
 * sees, with an online softmax as in decode attention
 * (FlashAttention's order: Dao et al., 2022); K and V of a block are widened to f32 once a tile.
 *
 * A lane of a score adds d = 0, 1, 2, ...; a lane of a sum adds keys in order.  Keys that a query
 * does not see take no part: masked lanes are left alone, not given a weight of 0, so that an
 * infinity or NaN in a later token's V stays there. */

/* Which slots of a block some query does not see: none, some at the end, some at the beginning
 * too, where a window begins. */
enum mask { MASK_NONE, MASK_END, MASK_BOTH };

struct prefill {
    uint32_t dim, lanes, vecs;        /* lanes in use and their vectors */
    float *q;                         /* [dim padded to lanes][TILE_LANES], scaled */
    float *sum;                       /* [dim padded to lanes][TILE_LANES] */
    float *p;                         /* [BLOCK_SLOTS][TILE_LANES]: scores, then weights */
    float *max, *weight, *correction; /* [TILE_LANES] */
    int32_t *before, *visible;        /* [TILE_LANES]: each query sees the keys between the two */
    float *k_wide, *v_wide;           /* [BLOCK_SLOTS][dim]: for K and V that are not f32 */
    /* Where weights are kept, and the lane in it of lane 0; NULL: nowhere. */
    const struct aq_attn_weights *observed;
    uint32_t observed_lane;
    /* The block at work. */
    const float *k, *v;
    uint32_t slots;     /* that any query sees */
    uint32_t first_key; /* number of its first key */
    enum mask mask;
};

/* p[key + r][v..] = K[key + r] . Q[v..] for `rows` keys and `width` vectors. */
VEC_FN void score_block(const struct prefill *t, uint32_t key, uint32_t v, int rows, int width)
{
    const float *k = t->k + (size_t)key * t->dim, *q = t->q + v * VEC_LANES;
    vec sum[BLOCK_ROWS * BLOCK_WIDTH], x[BLOCK_WIDTH];
    for (int i = 0; i < rows * width; i++)
        sum[i] = vec_zero();
    for (uint32_t d = 0; d < t->dim; d++) {
        for (int w = 0; w < width; w++)
            x[w] = vec_load(q + (size_t)d * TILE_LANES + w * VEC_LANES);
        for (int r = 0; r < rows; r++) {
            vec y = vec_set(k[(size_t)r * t->dim + d]);
            for (int w = 0; w < width; w++)
                sum[r * width + w] = vec_fma(y, x[w], sum[r * width + w]);
        }
    }
    float *p = t->p + (size_t)key * TILE_LANES + v * VEC_LANES;
    for (int r = 0; r < rows; r++) {
        for (int w = 0; w < width; w++)
            vec_store(p + r * TILE_LANES + w * VEC_LANES, sum[r * width + w]);
    }
}

VEC_FN void score_columns(const struct prefill *t, uint32_t v, int width)
{
    for (uint32_t key = 0; key < t->slots; key += BLOCK_ROWS)
        score_block(t, key, v, BLOCK_ROWS, width);
}

/* Queries of vector v that see a slot of the block. */
VEC_FN vec_mask seeing(const struct prefill *t, uint32_t v, uint32_t slot, enum mask mask)
{
    vec_int key = vec_int_set((int32_t)(t->first_key + slot));
    vec_mask seen = vec_int_greater(vec_int_load(t->visible + v * VEC_LANES), key);
    if (mask == MASK_BOTH)
        seen = vec_both(seen, vec_int_greater(key, vec_int_load(t->before + v * VEC_LANES)));
    return seen;
}

/* Turns scores into exp(score - max), 0 where masked; keeps maxima, sums of weights and what the
 * sums so far must be multiplied by. */
VEC_FN void weigh_columns(const struct prefill *t, uint32_t first, int width, enum mask mask)
{
    const vec lowest = vec_set(-INFINITY);
    vec max[BLOCK_WIDTH], weight[BLOCK_WIDTH];
    float *p = t->p + first * VEC_LANES;
    for (int w = 0; w < width; w++)
        max[w] = vec_load(t->max + (first + w) * VEC_LANES);
    for (uint32_t slot = 0; slot < t->slots; slot++) {
        for (int w = 0; w < width; w++) {
            vec s = vec_load(p + slot * TILE_LANES + w * VEC_LANES);
            if (mask)
                s = vec_select(seeing(t, first + w, slot, mask), s, lowest);
            max[w] = vec_max(max[w], s);
        }
    }
    for (int w = 0; w < width; w++) {
        uint32_t at = (first + w) * VEC_LANES;
        vec old = vec_load(t->max + at);
        vec_store(t->max + at, max[w]);
        /* While all scores are -inf, subtracting 0 gives weights of 0 instead of NaN. */
        max[w] = vec_zero_where(vec_equal(max[w], lowest), max[w]);
        vec correction = vec_exp(vec_sub(old, max[w]));
        vec_store(t->correction + at, correction);
        weight[w] = vec_mul(vec_load(t->weight + at), correction);
    }
    for (uint32_t slot = 0; slot < t->slots; slot++) {
        for (int w = 0; w < width; w++) {
            float *at = p + slot * TILE_LANES + w * VEC_LANES;
            vec s = vec_load(at);
            if (mask)
                s = vec_select(seeing(t, first + w, slot, mask), s, lowest);
            vec e = vec_exp(vec_sub(s, max[w]));
            vec_store(at, e);
            weight[w] = vec_add(weight[w], e);
        }
    }
    for (int w = 0; w < width; w++)
        vec_store(t->weight + (first + w) * VEC_LANES, weight[w]);
}

/* sum[d + r][v..] = sum * correction + sum over keys of V[key][d + r] * p[key][v..]. */
VEC_FN void value_block(const struct prefill *t, uint32_t d, uint32_t v, int rows, int width,
                        enum mask mask)
{
    vec sum[BLOCK_ROWS * BLOCK_WIDTH], x[BLOCK_WIDTH];
    float *to = t->sum + (size_t)d * TILE_LANES + v * VEC_LANES;
    for (int w = 0; w < width; w++)
        x[w] = vec_load(t->correction + (v + w) * VEC_LANES);
    for (int r = 0; r < rows; r++) {
        for (int w = 0; w < width; w++)
            sum[r * width + w] = vec_mul(vec_load(to + r * TILE_LANES + w * VEC_LANES), x[w]);
    }
    for (uint32_t slot = 0; slot < t->slots; slot++) {
        const float *from = t->v + (size_t)slot * t->dim + d;
        for (int w = 0; w < width; w++)
            x[w] = vec_load(t->p + slot * TILE_LANES + (v + w) * VEC_LANES);
        for (int r = 0; r < rows; r++) {
            vec y = vec_set(from[r]);
            for (int w = 0; w < width; w++) {
                vec *s = &sum[r * width + w];
                *s = mask ? vec_fma_where(seeing(t, v + w, slot, mask), y, x[w], *s)
                          : vec_fma(y, x[w], *s);
            }
        }
    }
    for (int r = 0; r < rows; r++) {
        for (int w = 0; w < width; w++)
            vec_store(to + r * TILE_LANES + w * VEC_LANES, sum[r * width + w]);
    }
}

VEC_FN void value_columns(const struct prefill *t, uint32_t v, int width, enum mask mask)
{
    uint32_t d = 0;
    for (; d + BLOCK_ROWS <= t->dim; d += BLOCK_ROWS)
        value_block(t, d, v, BLOCK_ROWS, width, mask);
    for (; d < t->dim; d++)
        value_block(t, d, v, 1, width, mask);
}

/* Keeps the weights of the block, for sums over queries. */
VEC_FN void keep_columns(const struct prefill *t, uint32_t first, int width)
{
    const struct aq_attn_weights *o = t->observed;
    for (int w = 0; w < width; w++) {
        uint32_t v = first + (uint32_t)w;
        size_t lane = t->observed_lane + v * VEC_LANES;
        const float *p = t->p + v * VEC_LANES;
        float *to = o->weight + lane * o->keys + (size_t)t->first_key * VEC_LANES;
        vec_store(o->max + lane * (o->keys / BLOCK_SLOTS) + t->first_key / BLOCK_SLOTS * VEC_LANES,
                  vec_load(t->max + v * VEC_LANES));
        for (uint32_t slot = 0; slot < t->slots; slot++, p += TILE_LANES, to += VEC_LANES)
            vec_store(to, vec_load(p));
    }
}

VEC_FN void attend_masked(const struct prefill *t, uint32_t v, int width, enum mask mask)
{
    weigh_columns(t, v, width, mask);
    if (t->observed)
        keep_columns(t, v, width);
    value_columns(t, v, width, mask);
}

VEC_FN void attend_columns(const struct prefill *t, uint32_t v, int width)
{
    score_columns(t, v, width);
    switch (t->mask) {
    case MASK_NONE: attend_masked(t, v, width, MASK_NONE); break;
    case MASK_END: attend_masked(t, v, width, MASK_END); break;
    case MASK_BOTH: attend_masked(t, v, width, MASK_BOTH); break;
    }
}

static void attend_all(const struct prefill *t)
{
    uint32_t v = 0;
    for (; v + BLOCK_WIDTH <= t->vecs; v += BLOCK_WIDTH)
        attend_columns(t, v, BLOCK_WIDTH);
    if (t->vecs - v == 2)
        attend_columns(t, v, 2);
    else if (t->vecs - v == 1)
        attend_columns(t, v, 1);
}

/* ---- in and out of the tile ---- */

struct prefill_job {
    struct aq_exec *ex;
    const struct aq_attn *a;
};

static void load_lanes(const struct prefill *t, const struct prefill_run *run, uint32_t v)
{
    const struct aq_attn *a = run->a;
    const vec scale = vec_set(a->scale);
    for (uint32_t d = 0; d < t->dim; d += VEC_LANES) {
        vec x[VEC_LANES];
        uint32_t n = (uint32_t)aq_min_u64(VEC_LANES, t->dim - d);
        for (uint32_t i = 0; i < VEC_LANES; i++) {
            uint32_t lane = v * VEC_LANES + i;
            x[i] =
                lane < t->lanes
                    ? vec_mul(vec_load_n(a->q + lane_offset(run, lane, a->q_stride) + d, n), scale)
                    : vec_zero();
        }
        vec_transpose(x);
        for (uint32_t i = 0; i < VEC_LANES; i++) {
            size_t at = (size_t)(d + i) * TILE_LANES + v * VEC_LANES;
            vec_store(t->q + at, x[i]);
            vec_store(t->sum + at, vec_zero());
        }
    }
}

static void begin_lanes(struct prefill *t, const struct prefill_run *run)
{
    for (uint32_t lane = 0; lane < t->vecs * VEC_LANES; lane++) {
        t->max[lane] = -INFINITY;
        t->weight[lane] = 0;
        /* Spare lanes see what the last one sees, so that they ask for no masks of their own. */
        uint32_t query = run->query + (uint32_t)aq_min_u64(lane, t->lanes - 1);
        struct span keys = keys_seen(run, query);
        t->before[lane] = (int32_t)keys.begin - 1;
        t->visible[lane] = (int32_t)keys.end;
    }
    for (uint32_t v = 0; v < t->vecs; v++)
        load_lanes(t, run, v);
}

static void store_lanes(const struct prefill *t, const struct prefill_run *run, uint32_t v)
{
    const struct aq_attn *a = run->a;
    vec weight = vec_load(t->weight + v * VEC_LANES);
    vec_mask blind = vec_int_greater(vec_int_set(1), vec_int_load(t->visible + v * VEC_LANES));
    vec divisor = vec_select(blind, vec_set(1), weight); /* sees nothing: 0 / 1 */
    for (uint32_t d = 0; d < t->dim; d += VEC_LANES) {
        vec y[VEC_LANES];
        for (uint32_t i = 0; i < VEC_LANES; i++)
            y[i] =
                vec_div(vec_load(t->sum + (size_t)(d + i) * TILE_LANES + v * VEC_LANES), divisor);
        vec_transpose(y);
        for (uint32_t i = 0; i < VEC_LANES && v * VEC_LANES + i < t->lanes; i++) {
            vec_store_as_n(a->out, a->out_dtype,
                           lane_offset(run, v * VEC_LANES + i, a->out_stride) + d, y[i],
                           (uint32_t)aq_min_u64(VEC_LANES, t->dim - d));
        }
    }
}

static void store_log_sums(const struct prefill *t, const struct prefill_run *run)
{
    for (uint32_t lane = 0; lane < t->lanes; lane++)
        run->a->log_sum_exp[lane_head(run, lane)] = t->max[lane] + logf(t->weight[lane]);
}

/* ---- tiles ---- */

static struct prefill prefill_begin(struct aq_exec *ex, uint32_t worker, uint32_t dim,
                                    uint32_t lanes)
{
    struct prefill t = {.dim = dim, .lanes = lanes};
    t.vecs = (uint32_t)aq_div_up(lanes, VEC_LANES);
    size_t square = aq_align_up(dim, VEC_LANES) * TILE_LANES;
    t.q = aq_exec_scratch(ex, worker);
    t.sum = t.q + square;
    t.p = t.sum + square;
    t.max = t.p + BLOCK_SLOTS * TILE_LANES;
    t.weight = t.max + TILE_LANES;
    t.correction = t.weight + TILE_LANES;
    t.before = (int32_t *)(t.correction + TILE_LANES);
    t.visible = t.before + TILE_LANES;
    t.k_wide = t.correction + 3 * TILE_LANES;
    t.v_wide = t.k_wide + (size_t)BLOCK_SLOTS * dim;
    return t;
}

VEC_FN void take_block(struct prefill *t, enum aq_dtype dtype, const uint8_t *block)
{
    size_t half = (size_t)BLOCK_SLOTS * t->dim, used = (size_t)t->slots * t->dim;
    if (dtype == AQ_F32) {
        t->k = (const float *)block;
        t->v = t->k + half;
        return;
    }
    if (aq_dtype_is_quantised(dtype)) {
        widen_codes(t->k_wide, block, dtype, 0, t->slots, t->dim);
        widen_codes(t->v_wide, block, dtype, BLOCK_SLOTS, t->slots, t->dim);
    } else {
        widen(t->k_wide, block, dtype, 0, used);
        widen(t->v_wide, block, dtype, half, used);
    }
    t->k = t->k_wide;
    t->v = t->v_wide;
}

/* Queries [run->query, + lanes), whose weights are kept where `observed` says, from a lane on. */
VEC_FN void prefill_queries(struct aq_exec *ex, const struct prefill_run *run, enum aq_dtype dtype,
                            uint32_t lanes, uint32_t worker, const struct aq_attn_weights *observed,
                            uint32_t lane)
{
    uint32_t dim = run->a->head_dim;
    struct prefill t = prefill_begin(ex, worker, dim, lanes);
    t.observed = observed;
    t.observed_lane = lane;
    begin_lanes(&t, run);
    struct span least = keys_seen(run, run->query), most = keys_seen(run, run->query + lanes - 1);
    size_t block_bytes = aq_kv_block_bytes(dtype, dim);
    for (uint32_t b = least.begin / BLOCK_SLOTS; b * BLOCK_SLOTS < most.end; b++) {
        uint32_t key = b * BLOCK_SLOTS;
        t.first_key = key;
        t.slots = (uint32_t)aq_min_u64(BLOCK_SLOTS, most.end - key);
        t.mask = least.end < key + BLOCK_SLOTS ? MASK_END : MASK_NONE;
        if (key < most.begin)
            t.mask = MASK_BOTH;
        if (key + BLOCK_SLOTS < most.end)
            vec_prefetch(aq_attn_block(run->seq, run->head, b + 1), block_bytes);
        take_block(&t, dtype, aq_attn_block(run->seq, run->head, b));
        attend_all(&t);
    }
    for (uint32_t v = 0; v < t.vecs; v++)
        store_lanes(&t, run, v);
    if (run->a->log_sum_exp)
        store_log_sums(&t, run);
    for (uint32_t v = 0; observed && v < t.vecs; v++) {
        for (uint32_t i = v * VEC_LANES; i < (v + 1) * VEC_LANES; i++)
            observed->log_sum[lane + i] = t.max[i] + logf(t.weight[i]);
    }
}

/* The last queries of a head, whose columns are summed, are attended one tile after the other, and
 * then their weights are there. */
VEC_FN void prefill_observed(struct aq_exec *ex, const struct prefill_run *run, enum aq_dtype dtype,
                             uint32_t queries, uint32_t worker)
{
    const struct aq_attn *a = run->a;
    uint32_t len = aq_attn_len(run->seq, run->head);
    struct aq_attn_weights o = aq_attn_weights_open(
        ex, worker, a->head_dim, len, (uint32_t)aq_align_up(queries, VEC_LANES), BLOCK_SLOTS);
    for (uint32_t lane = 0; lane < queries; lane += TILE_LANES) {
        struct prefill_run part = *run;
        part.query += lane;
        prefill_queries(ex, &part, dtype, (uint32_t)aq_min_u64(TILE_LANES, queries - lane), worker,
                        &o, lane);
    }
    VEC_VERSION(attn_sum_observed)(ex, worker, a, run->seq, run->head, &o);
}

/* The pieces of work that a head's queries are. */
static uint32_t query_tiles(const struct aq_attn *a, const struct aq_attn_seq *seq)
{
    uint32_t observed = aq_attn_observed(a, seq);
    uint64_t others = (uint64_t)seq->rows * a->q_per_kv - observed;
    return (uint32_t)aq_div_up(others, TILE_LANES) + (observed > 0);
}

/* Tiles are numbered by sequence, then from its last queries (which see most) to its first, then by
 * head: the last tiles of a run are short, so that workers end together. */
VEC_FN void prefill_tile(const struct prefill_job *job, enum aq_dtype dtype, uint32_t tile,
                         uint32_t worker)
{
    const struct aq_attn *a = job->a;
    const struct aq_attn_seq *seq = a->seqs;
    uint32_t tiles = query_tiles(a, seq);
    while (tile >= tiles * a->kv_heads) {
        tile -= tiles * a->kv_heads;
        tiles = query_tiles(a, ++seq);
    }
    struct prefill_run run = {.a = a, .seq = seq, .head = tile % a->kv_heads};
    uint32_t observed = aq_attn_observed(a, seq), queries = seq->rows * a->q_per_kv - observed;
    run.query = (tiles - 1 - tile / a->kv_heads) * TILE_LANES;
    if (run.query >= queries) { /* the first piece of a head */
        run.query = queries;
        prefill_observed(job->ex, &run, dtype, observed, worker);
        return;
    }
    uint32_t lanes = (uint32_t)aq_min_u64(TILE_LANES, queries - run.query);
    prefill_queries(job->ex, &run, dtype, lanes, worker, NULL, 0);
}

static void prefill_tile_f32(void *job, uint32_t tile, uint32_t worker)
{
    prefill_tile(job, AQ_F32, tile, worker);
}

static void prefill_tile_f16(void *job, uint32_t tile, uint32_t worker)
{
    prefill_tile(job, AQ_F16, tile, worker);
}

static void prefill_tile_bf16(void *job, uint32_t tile, uint32_t worker)
{
    prefill_tile(job, AQ_BF16, tile, worker);
}

static void prefill_tile_q8(void *job, uint32_t tile, uint32_t worker)
{
    prefill_tile(job, AQ_Q8, tile, worker);
}

static void prefill_tile_q4(void *job, uint32_t tile, uint32_t worker)
{
    prefill_tile(job, AQ_Q4, tile, worker);
}

void VEC_VERSION(attn_prefill)(struct aq_exec *ex, const struct aq_attn *a)
{
    aq_attn_prefill_assert(a);
    assert(aq_attn_scratch_bytes(a->head_dim) <= aq_exec_scratch_size(ex));
    struct prefill_job job = {.ex = ex, .a = a};
    uint32_t tiles = 0;
    for (uint32_t i = 0; i < a->seq_count; i++)
        tiles += query_tiles(a, &a->seqs[i]) * a->kv_heads;
    static aq_tile_fn *const fns[AQ_DTYPE_COUNT] = {
        [AQ_F32] = prefill_tile_f32, [AQ_F16] = prefill_tile_f16, [AQ_BF16] = prefill_tile_bf16,
        [AQ_Q8] = prefill_tile_q8,   [AQ_Q4] = prefill_tile_q4,
    };
    aq_pool_run(aq_exec_pool(ex), fns[a->kv_dtype], &job, tiles);
    aq_attn_sum_others(ex, a, VEC_VERSION(attn_stats));
}
