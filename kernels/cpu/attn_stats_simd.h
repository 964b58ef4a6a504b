/* SPDX-License-Identifier: Apache-2.0
 * Column sums of attention, on vec.h; included once by each version's file, which has the products:
 * those of its prefill attention with the roles exchanged.
 *
 * A tile is STATS_KEYS keys of one KV head of one sequence, and a key is a lane from beginning to
 * end: K lies transposed, [d][key], and elements of scaled queries are broadcast to it, 32 rows of
 * queries at a time; so a product adds d = 0, 1, 2, ... in prefill attention's order.
 * exp(product - log_sum_exp) is added to its lane without any work across lanes.  Only queries that
 * see a key of the tile are looked at: the causal half of the products, and no row of probabilities
 * is ever stored.
 *
 * Where prefill attention has kept the weights of the queries (struct aq_attn_weights), these take
 * the place of products and exp().
 *
 * A lane adds the queries of a window of STATS_WINDOW in order, and then the windows, which begin
 * at multiples of it: sums of thousands lose little, and no bit depends on tiles or threads. */

enum {
    STATS_HALVES = AQ_ATTN_STATS_KEYS / TILE_LANES, /* that share the scaling of queries */
    STATS_WINDOW = AQ_ATTN_STATS_ROWS,
};

struct stats_run {
    const struct aq_attn *a;
    const struct aq_attn_seq *seq;
    uint32_t head, len, key; /* first key of the tile */
    uint32_t row;            /* of the sums */
    uint32_t g, group;       /* the first query head, and how many are looked at */
    uint32_t band;           /* keys less far than this behind a query count; 0: all */
};

struct stats {
    uint32_t dim;
    float *keys[STATS_HALVES];          /* [dim padded to lanes][TILE_LANES] */
    float *wide;                        /* [TILE_LANES][dim padded]: K in f32 of codes; queries */
    float *p;                           /* [BLOCK_SLOTS][TILE_LANES]: products */
    float *total, *window, *pending;    /* [STATS_HALVES][TILE_LANES]: sums, sums of the window,
                                               c of a query whose heads are not complete */
    float *power;                       /* [STATS_WINDOW + 1]: of the decay */
    const struct aq_attn_weights *kept; /* in place of products */
};

static struct stats stats_open(struct aq_exec *ex, uint32_t worker, uint32_t dim)
{
    uint32_t pad = (uint32_t)aq_align_up(dim, VEC_LANES);
    struct stats s = {.dim = dim};
    float *at = aq_exec_scratch(ex, worker);
    for (uint32_t i = 0; i < STATS_HALVES; i++, at += (size_t)pad * TILE_LANES)
        s.keys[i] = at;
    s.wide = at;
    s.p = s.wide + (size_t)pad * TILE_LANES;
    s.total = s.p + BLOCK_SLOTS * TILE_LANES;
    s.window = s.total + AQ_ATTN_STATS_KEYS;
    s.pending = s.window + AQ_ATTN_STATS_KEYS;
    s.power = s.pending + AQ_ATTN_STATS_KEYS;
    return s;
}

/* ---- what the including file defines, behind this ---- */

/* VEC_LANES rows of this dtype, side by side and of which n are there, become lanes of the half,
 * from `lane` on. */
static inline void put_keys(const struct stats *s, uint32_t half, uint32_t lane, const void *rows,
                            enum aq_dtype dtype, uint32_t n);
/* Query `from` times scale becomes row i of s->wide as the products take it. */
static inline void put_query(const struct stats *s, uint32_t i, const float *from, vec scale);
/* Products of the n queries, at most BLOCK_SLOTS, with BLOCK_WIDTH vectors of a half from v on. */
static inline void multiply_keys(const struct stats *s, uint32_t half, uint32_t v, uint32_t n);

/* ---- keys and queries ---- */

/* Asks for VEC_LANES keys a block ahead of those from `key` on, as far as the tile takes them: they
 * are seldom in this core's caches any more. */
VEC_FN void ask_keys(const struct stats *s, const struct stats_run *run, enum aq_dtype dtype,
                     uint32_t key)
{
    uint32_t at = key + BLOCK_SLOTS;
    if (at >= aq_min_u64(run->len, run->key + AQ_ATTN_STATS_KEYS))
        return;
    const uint8_t *block = aq_attn_block(run->seq, run->head, at / BLOCK_SLOTS);
    vec_prefetch(aq_kv_row(block, dtype, s->dim, at % BLOCK_SLOTS),
                 VEC_LANES * aq_kv_row_bytes(dtype, s->dim));
}

/* A half of the tile as its products take it; zero past the keys there are. */
VEC_FN void take_keys(const struct stats *s, const struct stats_run *run, enum aq_dtype dtype,
                      uint32_t half)
{
    for (uint32_t lane = 0; lane < TILE_LANES; lane += VEC_LANES) {
        uint32_t key = run->key + half * TILE_LANES + lane, slot = key % BLOCK_SLOTS;
        uint32_t n = key < run->len ? (uint32_t)aq_min_u64(run->len - key, VEC_LANES) : 0;
        const uint8_t *block = n ? aq_attn_block(run->seq, run->head, key / BLOCK_SLOTS) : NULL;
        ask_keys(s, run, dtype, key);
        if (!n) {
            put_keys(s, half, lane, s->wide, AQ_F32, 0);
        } else if (aq_dtype_is_quantised(dtype)) {
            widen_codes(s->wide, block, dtype, slot, n, s->dim);
            put_keys(s, half, lane, s->wide, AQ_F32, n);
        } else {
            put_keys(s, half, lane, aq_kv_row(block, dtype, s->dim, slot), dtype, n);
        }
    }
}

static inline const float *query_of(const struct stats_run *run, uint32_t query, uint32_t g)
{
    const struct aq_attn *a = run->a;
    return a->q + ((size_t)run->seq->row + query) * a->q_stride +
           ((size_t)run->head * a->q_per_kv + run->g + g) * a->head_dim;
}

/* Asks for as many rows from `row` on as the next products take: they lie far apart, all in the
 * same few sets of the caches, and are gone again between tiles. */
VEC_FN void ask_queries(const struct stats_run *run, uint32_t row)
{
    uint32_t query = row / run->group, g = row % run->group;
    for (uint32_t i = 0; i < BLOCK_SLOTS && query < run->seq->rows; i++) {
        vec_prefetch(query_of(run, query, g), run->a->head_dim * sizeof(float));
        if (++g == run->group) {
            g = 0;
            query++;
        }
    }
}

/* Rows are numbered by query, then by query head: row i of s->wide is row `row + i`, scaled. */
VEC_FN void take_queries(const struct stats *s, const struct stats_run *run, uint32_t row,
                         uint32_t n)
{
    const vec scale = vec_set(run->a->scale);
    uint32_t query = row / run->group, g = row % run->group;
    for (uint32_t i = 0; i < n; i++) {
        put_query(s, i, query_of(run, query, g), scale);
        if (++g == run->group) {
            g = 0;
            query++;
        }
    }
}

/* Keys that count for a query: [first, end) of the sequence's; and how many it sees. */
struct stats_keys {
    int64_t first, end, seen;
};

static inline struct stats_keys counting(const struct stats_run *run, uint32_t query)
{
    int64_t own = (int64_t)run->len - run->seq->rows + query;
    struct stats_keys k = {.end = own + 1 - run->a->pairs.min_dist, .seen = own + 1};
    if (run->band)
        k.first = own + 1 - run->band;
    if (run->a->window && k.seen > run->a->window)
        k.seen = run->a->window;
    return k;
}

/* Constants for the compiler. */
struct stats_form {
    enum aq_attn_stat stat;
    bool plain; /* one query head, and every key counts */
    bool kept;  /* probabilities are there, of weights that attention has kept */
};

/* What attention has left of a query and the keys from vector v of a half on: of one vector of keys
 * the first number, of the next that VEC_LANES vectors later. */
VEC_FN const float *weights_of(const struct stats *s, const struct stats_run *run, uint32_t half,
                               uint32_t v, uint32_t query, uint32_t g)
{
    const struct aq_attn_weights *o = s->kept;
    uint32_t first = run->seq->rows - aq_attn_observed_rows(run->a, run->seq);
    uint32_t lane = o->first + (query - first) * run->a->q_per_kv + run->g + g;
    size_t key = (size_t)run->key + half * TILE_LANES + v * VEC_LANES;
    return o->weight + (lane / VEC_LANES * (size_t)o->keys + key + lane % VEC_LANES) * VEC_LANES;
}

/* The rows of products in s->p, or of probabilities that are kept, join the sums of `BLOCK_WIDTH`
 * vectors from v on. */
VEC_FN void add_rows(const struct stats *s, const struct stats_run *run, struct stats_form f,
                     uint32_t half, uint32_t v, uint32_t row, uint32_t n)
{
    const struct aq_attn *a = run->a;
    uint32_t at = half * TILE_LANES + v * VEC_LANES, rows = run->seq->rows;
    uint32_t query = row / run->group, g = row % run->group;
    enum aq_attn_group group = a->rule.group;
    const size_t step = f.kept ? VEC_LANES * VEC_LANES : VEC_LANES;
    vec window[BLOCK_WIDTH], c[BLOCK_WIDTH];
    for (int w = 0; w < BLOCK_WIDTH; w++) {
        window[w] = vec_load(s->window + at + w * VEC_LANES);
        c[w] = vec_load(s->pending + at + w * VEC_LANES);
    }
    uint32_t window_end = (uint32_t)aq_min_u64(aq_align_up(query + 1, STATS_WINDOW), rows);
    for (uint32_t i = 0; i < n; i++) {
        size_t q_row = (size_t)run->seq->row + query;
        size_t q_head = (q_row * a->kv_heads + run->head) * a->q_per_kv + run->g + g;
        vec log_sum = f.kept ? vec_zero() : vec_set(a->log_sum_exp[q_head]);
        vec power = vec_set(s->power[window_end - 1 - query]);
        struct stats_keys keys = counting(run, query);
        int64_t base = (int64_t)run->key + at;
        vec_int first = vec_int_set((int32_t)(keys.first - base - 1));
        vec_int end = vec_int_set((int32_t)(keys.end - base));
        vec border = vec_set(a->rule.threshold / (float)keys.seen);
        const float *from =
            f.kept ? weights_of(s, run, half, v, query, g) : s->p + i * TILE_LANES + v * VEC_LANES;
        for (int w = 0; w < BLOCK_WIDTH; w++) {
            vec p = vec_load(from + (size_t)w * step);
            if (!f.kept)
                p = vec_exp(vec_sub(p, log_sum));
            if (f.stat == AQ_ATTN_PROB_SQUARED)
                p = vec_mul(p, p);
            if (f.stat == AQ_ATTN_LOW)
                p = vec_select(vec_less(p, border), vec_set(-1), vec_zero());
            if (f.plain) {
                window[w] = vec_fma(p, power, window[w]);
                continue;
            }
            vec_int lane = vec_int_add(vec_int_set(w * VEC_LANES), vec_int_lanes());
            vec_mask on = vec_both(vec_int_greater(lane, first), vec_int_greater(end, lane));
            p = vec_select(on, p, vec_zero());
            c[w] = g == 0 ? p : group == AQ_ATTN_MAX ? vec_max(c[w], p) : vec_add(c[w], p);
            if (g + 1 < run->group)
                continue;
            vec whole = group == AQ_ATTN_MEAN ? vec_div(c[w], vec_set((float)a->q_per_kv)) : c[w];
            window[w] = vec_fma(whole, power, window[w]);
        }
        if (++g == run->group) {
            g = 0;
            query++;
        }
    }
    for (int w = 0; w < BLOCK_WIDTH; w++) {
        vec_store(s->window + at + w * VEC_LANES, window[w]);
        vec_store(s->pending + at + w * VEC_LANES, c[w]);
    }
}

/* The window's sums join the whole, which is older by as many queries. */
static void end_window(const struct stats *s, uint32_t queries)
{
    vec power = vec_set(s->power[queries]);
    for (uint32_t i = 0; i < AQ_ATTN_STATS_KEYS; i += VEC_LANES) {
        vec_store(s->total + i, vec_fma(vec_load(s->total + i), power, vec_load(s->window + i)));
        vec_store(s->window + i, vec_zero());
    }
}

/* Rows [row, row + n), at most 32 of one window, against the tile. */
VEC_FN void join_rows(struct stats *s, const struct stats_run *run, uint32_t row, uint32_t n,
                      bool kept)
{
    struct stats_keys least = counting(run, row / run->group);
    struct stats_keys most = counting(run, (row + n - 1) / run->group);
    if (!kept) {
        take_queries(s, run, row, n);
        ask_queries(run, row + n);
    }
    for (uint32_t half = 0; half < STATS_HALVES; half++) {
        int64_t key = (int64_t)run->key + half * TILE_LANES;
        if (most.end <= key || least.first >= key + TILE_LANES || key >= run->len)
            continue;
        bool all = least.end >= key + TILE_LANES && most.first <= key;
        enum aq_attn_stat stat = run->a->rule.stat;
        for (uint32_t v = 0; v < TILE_VECS; v += BLOCK_WIDTH) {
            if (!kept)
                multiply_keys(s, half, v, n);
            if (stat == AQ_ATTN_PROB && all && run->group == 1)
                add_rows(s, run, (struct stats_form){AQ_ATTN_PROB, true, kept}, half, v, row, n);
            else if (stat == AQ_ATTN_PROB)
                add_rows(s, run, (struct stats_form){AQ_ATTN_PROB, false, kept}, half, v, row, n);
            else
                add_rows(s, run, (struct stats_form){stat, false, kept}, half, v, row, n);
        }
    }
}

typedef void stats_rows_fn(struct stats *s, const struct stats_run *run, uint32_t row, uint32_t n);

static void stats_rows(struct stats *s, const struct stats_run *run, uint32_t row, uint32_t n)
{
    join_rows(s, run, row, n, false);
}

/* Queries [*ret_first, *ret_end) that may count for a key of the tile. */
static void stats_range(const struct stats_run *run, uint32_t *ret_first, uint32_t *ret_end)
{
    const struct aq_attn_pairs *p = &run->a->pairs;
    int64_t rows = run->seq->rows, own = (int64_t)run->len - rows; /* key of query 0 */
    int64_t first = p->rows && p->rows < rows ? rows - p->rows : 0, end = rows;
    int64_t sees = (int64_t)run->key + p->min_dist - own;
    int64_t last = (int64_t)aq_min_u64(run->key + AQ_ATTN_STATS_KEYS, run->len) - 1;
    first = sees > first ? sees : first;
    if (run->band && last + run->band - own < end)
        end = last + run->band - own;
    *ret_first = (uint32_t)(first < rows ? first : rows);
    *ret_end = (uint32_t)(end > first ? end : *ret_first);
}

static void take_powers(const struct stats *s, float decay)
{
    double power = 1;
    for (uint32_t i = 0; i <= STATS_WINDOW; i++)
        s->power[i] = 1;
    for (uint32_t i = 0; i <= STATS_WINDOW && decay != 1; i++, power *= (double)decay)
        s->power[i] = (float)power;
}

/* The sums of a tile's keys, whose rows `join` adds. */
VEC_FN void sum_rows(struct stats *s, const struct stats_run *run, stats_rows_fn *join)
{
    uint32_t rows = run->seq->rows, query, end;
    for (uint32_t i = 0; i < AQ_ATTN_STATS_KEYS; i++) {
        s->total[i] = aq_attn_begun_sum(run->a, run->row, run->key + i);
        s->window[i] = s->pending[i] = 0;
    }
    stats_range(run, &query, &end);
    while (query < rows) {
        uint32_t window = (uint32_t)aq_min_u64(aq_align_up(query + 1, STATS_WINDOW), rows);
        uint32_t row = query * run->group;
        uint32_t row_end = (uint32_t)aq_min_u64(window, end) * run->group;
        for (uint32_t n; row < row_end; row += n) {
            n = (uint32_t)aq_min_u64(BLOCK_SLOTS, row_end - row);
            join(s, run, row, n);
        }
        end_window(s, window - query / STATS_WINDOW * STATS_WINDOW);
        query = window;
    }
    float *score = run->seq->slots.score + (size_t)run->row * run->seq->slots.stride + run->key;
    uint32_t n = (uint32_t)aq_min_u64(AQ_ATTN_STATS_KEYS, run->len - run->key);
    for (uint32_t i = 0; i < n; i += VEC_LANES)
        vec_store_n(score + i, vec_load(s->total + i), n - i);
}

VEC_FN void stats_keys_of(struct stats *s, const struct stats_run *run, enum aq_dtype dtype)
{
    take_powers(s, run->a->rule.decay);
    for (uint32_t half = 0; half < STATS_HALVES; half++)
        take_keys(s, run, dtype, half);
    sum_rows(s, run, stats_rows);
}

/* ---- tiles ---- */

struct stats_job {
    struct aq_exec *ex;
    const struct aq_attn *a;
};

/* A tile's keys, of a row of the sums. */
static struct stats_run stats_run_of(const struct aq_attn *a, const struct aq_attn_seq *seq,
                                     uint32_t row, uint32_t key)
{
    uint32_t each = aq_attn_stats_rows(a) / a->kv_heads;
    return (struct stats_run){.a = a,
                              .seq = seq,
                              .head = row / each,
                              .len = aq_attn_len(seq, row / each),
                              .key = key,
                              .row = row,
                              .g = row % each,
                              .group = aq_attn_stats_group(a),
                              .band = aq_attn_band(a)};
}

static uint32_t key_tiles(const struct aq_attn *a, const struct aq_attn_seq *seq)
{
    uint32_t len = 0;
    for (uint32_t h = 0; h < a->kv_heads; h++)
        len = (uint32_t)aq_max_u64(len, aq_attn_len(seq, h));
    return (uint32_t)aq_div_up(len, AQ_ATTN_STATS_KEYS);
}

/* Tiles are numbered by sequence, then from its first keys (which most queries see) to its last,
 * then by row of sums. */
VEC_FN void stats_tile(const struct stats_job *job, enum aq_dtype dtype, uint32_t tile,
                       uint32_t worker)
{
    const struct aq_attn *a = job->a;
    const struct aq_attn_seq *seq = a->seqs;
    uint32_t tiles = key_tiles(a, seq), rows = aq_attn_stats_rows(a);
    while (tile >= tiles * rows) {
        tile -= tiles * rows;
        tiles = key_tiles(a, ++seq);
    }
    struct stats_run run = stats_run_of(a, seq, tile % rows, tile / rows * AQ_ATTN_STATS_KEYS);
    if (run.key >= run.len)
        return;
    struct stats s = stats_open(job->ex, worker, a->head_dim);
    stats_keys_of(&s, &run, dtype);
}

static void stats_tile_f32(void *job, uint32_t tile, uint32_t worker)
{
    stats_tile(job, AQ_F32, tile, worker);
}

static void stats_tile_f16(void *job, uint32_t tile, uint32_t worker)
{
    stats_tile(job, AQ_F16, tile, worker);
}

static void stats_tile_bf16(void *job, uint32_t tile, uint32_t worker)
{
    stats_tile(job, AQ_BF16, tile, worker);
}

static void stats_tile_q8(void *job, uint32_t tile, uint32_t worker)
{
    stats_tile(job, AQ_Q8, tile, worker);
}

static void stats_tile_q4(void *job, uint32_t tile, uint32_t worker)
{
    stats_tile(job, AQ_Q4, tile, worker);
}

static void sum_columns(struct aq_exec *ex, const struct aq_attn *a)
{
    aq_attn_stats_assert(a);
    assert(aq_attn_scratch_bytes(a->head_dim) <= aq_exec_scratch_size(ex));
    struct stats_job job = {.ex = ex, .a = a};
    uint32_t tiles = 0;
    for (uint32_t i = 0; i < a->seq_count; i++)
        tiles += key_tiles(a, &a->seqs[i]) * aq_attn_stats_rows(a);
    static aq_tile_fn *const fns[AQ_DTYPE_COUNT] = {
        [AQ_F32] = stats_tile_f32, [AQ_F16] = stats_tile_f16, [AQ_BF16] = stats_tile_bf16,
        [AQ_Q8] = stats_tile_q8,   [AQ_Q4] = stats_tile_q4,
    };
    aq_pool_run(aq_exec_pool(ex), fns[a->kv_dtype], &job, tiles);
}
