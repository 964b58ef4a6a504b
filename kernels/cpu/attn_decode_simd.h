/* SPDX-License-Identifier: Apache-2.0
 * Decode attention, on vec.h; included once by each version's file.
 *
 * A tile is a few KV heads of one sequence, attended side by side: block by block, in each block
 * head by head, which is how they lie in memory (one head after the other took 73 % of the read
 * bandwidth of a Zen 5 where this takes 85 %).  Each block of a head is read once, for all queries
 * of that head: the query heads of the group, times the rows of the sequence
 * (attn_block_simd.h). */
#include "kernels/cpu/attn_block_simd.h"

struct decode_job {
    struct aq_exec *ex;
    const struct aq_attn *a;
    uint32_t tile_heads, tiles_per_seq; /* KV heads of a tile, the last tile maybe fewer */
    uint32_t members_max;               /* sequences that share blocks, of a tile */
    bool fused;                         /* struct decode */
};

/* The heads [head, head_end) of a sequence, of which `heads` from `head` on are at work, and which
 * of its queries: numbered by row, then by query head of the group.  Of several sequences of a row
 * each, which share blocks, one head is at work: rows are numbered through all of them. */
struct decode_run {
    const struct aq_attn *a;
    const struct aq_attn_seq *seq; /* the first of `members` */
    uint32_t members;
    uint32_t head, heads, head_end;
    uint32_t query;
};

/* The sequence of a row, and the row's number in it. */
static inline const struct aq_attn_seq *row_seq(const struct decode_run *run, uint32_t *row)
{
    const struct aq_attn_seq *seq = run->seq;
    if (run->members > 1) {
        seq += *row;
        *row = 0;
    }
    return seq;
}

/* Keys of the longest of the heads [head, end). */
static inline uint32_t longest(const struct aq_attn_seq *seq, uint32_t head, uint32_t end)
{
    uint32_t len = 0;
    for (; head < end; head++)
        len = (uint32_t)aq_max_u64(len, aq_attn_len(seq, head));
    return len;
}

/* Lays the scratch area out for this many queries, and for what is kept of this many slots. */
static struct decode decode_open(struct aq_exec *ex, uint32_t worker, uint32_t dim, uint32_t heads,
                                 uint32_t count, uint32_t kept_slots)
{
    struct decode t = {.heads = heads, .count = count, .dim = dim};
    uint32_t queries = heads * count;
    assert(queries <= QUERIES_MAX);
    t.dim_pad = (uint32_t)aq_align_up(dim, VEC_LANES);
    t.p = aq_exec_scratch(ex, worker);
    t.weight = t.p + VEC_LANES * BLOCK_SLOTS;
    t.offset = t.weight + (size_t)queries * VEC_LANES;
    t.q = t.offset + (size_t)queries * VEC_LANES;
    t.sum = t.q + (size_t)queries * t.dim_pad;
    t.q_turned = t.sum + (size_t)queries * t.dim_pad;
    t.q_ordered = t.q_turned + t.dim_pad;
    size_t widened = aq_attn_widened_floats(dim), groups = aq_align_up(aq_kivi_groups(dim), 4);
    t.wide = t.q_ordered + QUERIES_MAX * widened;
    t.group_offset = t.wide + 2 * BLOCK_SLOTS * widened;
    t.whole = (int8_t *)(void *)(t.group_offset + QUERIES_WIDE * groups);
    if (kept_slots) {
        t.kept_blocks = (uint32_t)aq_align_up(aq_div_up(kept_slots, BLOCK_SLOTS), 16);
        t.kept_slots = (uint32_t)aq_align_up(kept_slots, BLOCK_SLOTS);
        /* The part that lasts from one set of queries to the next comes first. */
        t.partial = t.p + aq_attn_scratch_bytes(dim) / sizeof(float);
        t.kept = t.partial + t.kept_slots;
        t.kept_max = t.kept + (size_t)queries * t.kept_slots;
        assert(t.kept_max + (size_t)queries * t.kept_blocks <=
               t.p + aq_exec_scratch_size(ex) / sizeof(float));
    }
    return t;
}

static void load_queries(struct decode *t, const struct decode_run *run)
{
    const struct aq_attn *a = run->a;
    uint32_t queries = t->heads * t->count;
    t->turn = run->seq->turn;
    for (uint32_t i = 0; i < queries; i++) {
        uint32_t head = run->head + i / t->count, query = run->query + i % t->count;
        uint32_t row = query / a->q_per_kv, group = query % a->q_per_kv;
        const struct aq_attn_seq *seq = row_seq(run, &row);
        uint32_t len = aq_attn_len(seq, head);
        const float *from = a->q + (seq->row + (size_t)row) * a->q_stride +
                            ((size_t)head * a->q_per_kv + group) * a->head_dim;
        float *to = t->q + (size_t)i * t->dim_pad;
        t->q_sum[i] = 0;
        for (uint32_t d = 0; d < t->dim_pad; d++) {
            to[d] = d < t->dim ? from[d] * a->scale : 0;
            t->q_sum[i] += to[d];
        }
        t->visible[i] = aq_attn_visible(len, seq->rows, row);
        t->first[i] = aq_attn_first(a->window, t->visible[i]);
        t->max[i] = -INFINITY;
        vec_store(t->weight + (size_t)i * VEC_LANES, vec_zero());
        vec_store(t->offset + (size_t)i * VEC_LANES, vec_zero());
    }
    memset(t->sum, 0, (size_t)queries * t->dim_pad * sizeof(*t->sum));
}

static void store_outputs(const struct decode *t, const struct decode_run *run)
{
    const struct aq_attn *a = run->a;
    bool quantised = aq_dtype_is_quantised(a->kv_dtype);
    for (uint32_t i = 0; i < t->heads * t->count; i++) {
        uint32_t query = run->query + i % t->count;
        uint32_t of_seq = query / a->q_per_kv;
        const struct aq_attn_seq *seq = row_seq(run, &of_seq);
        size_t row = seq->row + (size_t)of_seq;
        size_t head = (size_t)(run->head + i / t->count) * a->q_per_kv + query % a->q_per_kv;
        size_t to = row * a->out_stride + head * a->head_dim;
        float weight = vec_sum(vec_load(t->weight + (size_t)i * VEC_LANES));
        vec divisor = vec_set(t->visible[i] ? weight : 1); /* sees nothing: 0 / 1 */
        vec offset = vec_set(vec_sum(vec_load(t->offset + (size_t)i * VEC_LANES)));
        for (uint32_t d = 0; d < t->dim; d += VEC_LANES) {
            vec sum = vec_load(t->sum + (size_t)i * t->dim_pad + d);
            vec y = vec_div(quantised ? vec_add(sum, offset) : sum, divisor);
            vec_store_as_n(a->out, a->out_dtype, to + d, y,
                           (uint32_t)aq_min_u64(VEC_LANES, t->dim - d));
        }
        if (a->log_sum_exp)
            a->log_sum_exp[row * a->kv_heads * a->q_per_kv + head] = t->max[i] + logf(weight);
    }
}

/* Sets the block after block b of this head (counted from run->head) as the one to ask for: the
 * next head's, the first head's next one, or at the end the first of the heads that follow.
 * Memory is read front to back where heads lie side by side. */
static void find_next(struct step *x, const struct decode_run *run, uint32_t head, uint32_t b,
                      uint32_t blocks)
{
    uint32_t next = run->head;
    enum aq_dtype dtype = aq_attn_block_dtype(run->a, run->seq, b);
    bool others = head + 1 == run->heads && ++b >= blocks;
    if (head + 1 < run->heads)
        next += head + 1;
    else if (others)
        next += run->heads;
    uint32_t len = next < run->head_end ? aq_attn_len(run->seq, next) : 0;
    if (others)
        b = aq_attn_first(run->a->window, aq_attn_visible(len, run->seq->rows, 0)) / BLOCK_SLOTS;
    x->next_slots = 0; /* rows of another format lie elsewhere */
    if (len > b * BLOCK_SLOTS && aq_attn_block_dtype(run->a, run->seq, b) == dtype) {
        x->next = aq_attn_block(run->seq, next, b);
        x->next_slots = (uint32_t)aq_min_u64(len - b * BLOCK_SLOTS, BLOCK_SLOTS);
    }
}

/* Sanitizers instrument every copy of what is inlined: in their builds there is one of the
 * following, which asks for its form as it goes. */
#if AQ_UNROLLS
#define ATTEND_FN VEC_FN
#else
#define ATTEND_FN static __attribute__((noinline))
#endif

/* Attends block b with a span of queries of a head, several together where they see the same of it;
 * the first step asks for the next block. */
ATTEND_FN void attend_block(struct decode *t, struct step *x, struct form f, struct span of,
                            uint32_t b)
{
    uint32_t end = of.end, queries;
    for (uint32_t query = of.begin; query < end; query += queries) {
        struct span seen = slots_seen(t, query, query, b);
        queries = step_queries(t, f, query, end, b);
        x->query = query;
        x->number = b;
        if (seen.begin >= seen.end)
            continue;
        see(x, seen.begin, seen.end);
        if (queries == 1)
            attend_step(t, x, f, 1);
        else if (QUERIES_WIDE > 2 && queries == 2)
            attend_step(t, x, f, 2);
        else if (QUERIES_WIDE > 2 && queries == 3 &&
                 !aq_dtype_is_kivi(f.dtype)) /* step_queries() */
            attend_step(t, x, f, 3);
        else
            attend_step(t, x, f, QUERIES_WIDE);
        x->next_slots = 0;
    }
}

/* Attends block b, once it and the next one are set: one function a format and head size, for what
 * attends a block with many queries (attend_jointly) or seldom. */
typedef void attend_fn(struct decode *t, const struct step *step, struct span of, uint32_t b);

#define ATTEND(name, how, dtype, head_dim)                                                         \
    static __attribute__((noinline)) void name(struct decode *t, const struct step *step,          \
                                               struct span of, uint32_t b)                         \
    {                                                                                              \
        struct step x = *step;                                                                     \
        how(t, &x, (struct form){dtype, head_dim}, of, b);                                         \
    }

/* Head sizes that most models have are constants to the compiler. */
#if AQ_UNROLLS
#define ATTEND_SIZES(name, how, dtype)                                                             \
    ATTEND(name, how, dtype, t->dim)                                                               \
    ATTEND(name##_64, how, dtype, 64)                                                              \
    ATTEND(name##_128, how, dtype, 128)
#define ATTEND_ALL(name) name, name##_64, name##_128
#else
#define ATTEND_SIZES(name, how, dtype) ATTEND(name, how, dtype, t->dim)
#define ATTEND_ALL(name)               name, name, name
#endif

ATTEND_SIZES(attend_f32, attend_block, AQ_F32)
ATTEND_SIZES(attend_f16, attend_block, AQ_F16)
ATTEND_SIZES(attend_bf16, attend_block, AQ_BF16)
ATTEND_SIZES(attend_q8, attend_block, AQ_Q8)
ATTEND_SIZES(attend_q4, attend_block, AQ_Q4)

ATTEND_SIZES(attend_kivi4, attend_block, AQ_KIVI4)
ATTEND_SIZES(attend_kivi2, attend_block, AQ_KIVI2)

/* For a block of this format: for rare head sizes, for 64, for 128. */
static attend_fn *const attend_fns[AQ_DTYPE_COUNT][3] = {
    [AQ_F32] = {ATTEND_ALL(attend_f32)},     [AQ_F16] = {ATTEND_ALL(attend_f16)},
    [AQ_BF16] = {ATTEND_ALL(attend_bf16)},   [AQ_Q8] = {ATTEND_ALL(attend_q8)},
    [AQ_Q4] = {ATTEND_ALL(attend_q4)},       [AQ_KIVI4] = {ATTEND_ALL(attend_kivi4)},
    [AQ_KIVI2] = {ATTEND_ALL(attend_kivi2)},
};

static inline int size_number(uint32_t dim)
{
    return dim == 64 ? 1 : dim == 128 ? 2 : 0;
}

/* Block b of a sequence. */
static inline void attend(struct decode *t, const struct decode_run *run,
                          const struct aq_attn_seq *seq, const struct step *x, struct span of,
                          uint32_t b)
{
    attend_fns[aq_attn_block_dtype(run->a, seq, b)][size_number(t->dim)](t, x, of, b);
}

/* Asks for what is remembered of slots, which is wanted when all blocks have been seen: during the
 * last quarter of them, for four blocks each, or K and V would have driven it out by then. */
VEC_FN void ask_slots(const struct decode_run *run, uint32_t head, uint32_t b, uint32_t blocks)
{
    const struct aq_attn_slots *s = &run->seq->slots;
    uint32_t late = blocks - (uint32_t)aq_div_up(blocks, 4), len = blocks * BLOCK_SLOTS;
    if (b < late)
        return;
    uint32_t slot = (b - late) * 4 * BLOCK_SLOTS;
    size_t at = (size_t)(run->head + head) * s->stride + slot;
    size_t slots = slot < len ? aq_min_u64(len - slot, 4 * BLOCK_SLOTS) : 0;
    vec_prefetch(s->score + at, slots * sizeof(*s->score));
    if (s->victim)
        vec_prefetch(s->position + at, slots * sizeof(*s->position));
}

/* Sets the block that is `wide` heads behind block b of `head`, round all heads at work, as the one
 * to ask for. */
VEC_FN void find_ahead(struct step *x, const struct decode *t, const struct decode_run *run,
                       uint32_t head, uint32_t wide, uint32_t b, uint32_t blocks)
{
    uint32_t ahead = head + wide, at = b;
    if (ahead >= t->heads) {
        ahead -= t->heads;
        at++;
    }
    if (at >= blocks) {
        find_next(x, run, t->heads - 1, b, blocks); /* of the heads that follow */
        return;
    }
    bool is_coded = t->visible[ahead] > at * BLOCK_SLOTS && at < run->seq->coded;
    x->next_slots = is_coded ? BLOCK_SLOTS : 0;
    x->next = aq_attn_block(run->seq, run->head + ahead, at);
}

/* Block b of KIVI of `wide` heads from `head` on, of a query each, where all of them see some of
 * it. */
VEC_FN bool attend_side_by_side(struct decode *t, const struct decode_run *run, struct form f,
                                uint32_t head, uint32_t wide, uint32_t b, uint32_t blocks)
{
    struct step x[QUERIES_WIDE];
    if (t->count > 1 || head + wide > t->heads || b >= run->seq->coded)
        return false;
    for (uint32_t k = 0; k < wide; k++) {
        uint32_t query = head + k;
        struct span seen = slots_seen(t, query, query, b);
        if (seen.begin >= seen.end)
            return false;
        x[k].block = aq_attn_block(run->seq, run->head + query, b);
        x[k].number = b;
        x[k].query = query;
        x[k].p = t->p + k * BLOCK_SLOTS;
        see(&x[k], seen.begin, seen.end);
        find_ahead(&x[k], t, run, query, wide, b, blocks);
        if (t->kept)
            ask_slots(run, query, b, blocks);
    }
    attend_codes(t, x, f, (int)wide, 1);
    return true;
}

/* Attends block b of as many heads at once as can be; returns how many. */
VEC_FN uint32_t attend_codes_of(struct decode *t, const struct decode_run *run, struct form f,
                                uint32_t head, uint32_t b, uint32_t blocks)
{
    const uint32_t wide = (uint32_t)blocks_wide(f);
    if (attend_side_by_side(t, run, f, head, wide, b, blocks))
        return wide;
    return wide > 2 && attend_side_by_side(t, run, f, head, 2, b, blocks) ? 2 : 0;
}

VEC_FN void attend_blocks(struct decode *t, const struct decode_run *run, struct form f)
{
    uint32_t least = UINT32_MAX, most = 0;
    for (uint32_t i = 0; i < t->heads * t->count; i++) {
        least = (uint32_t)aq_min_u64(least, t->first[i]);
        most = (uint32_t)aq_max_u64(most, t->visible[i]);
    }
    uint32_t blocks = (uint32_t)aq_div_up(most, BLOCK_SLOTS);
    struct step x = {.p = t->p};
    for (uint32_t b = least / BLOCK_SLOTS; b < blocks; b++) {
        for (uint32_t head = 0, done; head < t->heads; head += done) {
            done = aq_dtype_is_kivi(f.dtype) ? attend_codes_of(t, run, f, head, b, blocks) : 0;
            if (done)
                continue;
            done = 1;
            struct span seen = slots_seen(t, head * t->count, (head + 1) * t->count - 1, b);
            if (seen.begin >= seen.end)
                continue;
            x.block = aq_attn_block(run->seq, run->head + head, b);
            find_next(&x, run, head, b, blocks);
            if (t->kept)
                ask_slots(run, head, b, blocks);
            struct span of = {head * t->count, (head + 1) * t->count};
            if (aq_dtype_is_kivi(f.dtype)) /* whose code is so large that there is one copy */
                attend(t, run, run->seq, &x, of, b);
            else
                attend_block(t, &x, f, of, b);
        }
    }
}

/* All blocks of a sequence, once for each format and head size: a call for each block is 5 % of
 * the time of int8. */
typedef void attend_all_fn(struct decode *restrict t, const struct decode_run *run);

#define ATTEND_BLOCKS(name, dtype, head_dim)                                                       \
    static __attribute__((noinline)) void name(struct decode *restrict t,                          \
                                               const struct decode_run *run)                       \
    {                                                                                              \
        attend_blocks(t, run, (struct form){dtype, head_dim});                                     \
    }
#if AQ_UNROLLS
#define BLOCKS_SIZES(name, dtype)                                                                  \
    ATTEND_BLOCKS(name, dtype, t->dim)                                                             \
    ATTEND_BLOCKS(name##_64, dtype, 64)                                                            \
    ATTEND_BLOCKS(name##_128, dtype, 128)
#else
#define BLOCKS_SIZES(name, dtype) ATTEND_BLOCKS(name, dtype, t->dim)
#endif

BLOCKS_SIZES(blocks_f32, AQ_F32)
BLOCKS_SIZES(blocks_f16, AQ_F16)
BLOCKS_SIZES(blocks_bf16, AQ_BF16)
BLOCKS_SIZES(blocks_q8, AQ_Q8)
BLOCKS_SIZES(blocks_q4, AQ_Q4)
BLOCKS_SIZES(blocks_kivi4, AQ_KIVI4)
BLOCKS_SIZES(blocks_kivi2, AQ_KIVI2)

static attend_all_fn *const blocks_fns[AQ_DTYPE_COUNT][3] = {
    [AQ_F32] = {ATTEND_ALL(blocks_f32)},     [AQ_F16] = {ATTEND_ALL(blocks_f16)},
    [AQ_BF16] = {ATTEND_ALL(blocks_bf16)},   [AQ_Q8] = {ATTEND_ALL(blocks_q8)},
    [AQ_Q4] = {ATTEND_ALL(blocks_q4)},       [AQ_KIVI4] = {ATTEND_ALL(blocks_kivi4)},
    [AQ_KIVI2] = {ATTEND_ALL(blocks_kivi2)},
};

#include "kernels/cpu/attn_widened_simd.h"

#include "kernels/cpu/attn_joint_simd.h"

/* Adds what these queries saw to the scores of their heads. */
static void remember(struct decode *t, const struct decode_run *run)
{
    const struct aq_attn *a = run->a;
    const struct aq_attn_slots *slots = &run->seq->slots;
    uint32_t row = run->query / a->q_per_kv, first = run->query % a->q_per_kv;
    for (uint32_t i = 0; i < t->heads * t->count; i++) {
        vec weight = vec_set(vec_sum(vec_load(t->weight + (size_t)i * VEC_LANES)));
        vec max = vec_set(t->max[i]);
        float *m = t->kept_max + (size_t)i * t->kept_blocks;
        uint32_t b = t->first[i] / BLOCK_SLOTS / VEC_LANES * VEC_LANES;
        for (; b * BLOCK_SLOTS < t->visible[i]; b += VEC_LANES)
            vec_store(m + b, vec_div(vec_exp(vec_sub(vec_load(m + b), max)), weight));
    }
    for (uint32_t head = 0; head < t->heads; head++) {
        uint32_t query = head * t->count;
        struct slot_pass x = {
            .a = a,
            .seq = run->seq,
            .rule = a->rule,
            .score = slots->score + (size_t)(run->head + head) * slots->stride,
            .head = run->head + head,
            .q_per_kv = a->q_per_kv,
            .first = t->first[query],
            .keys = t->visible[query],
            .queries = t->count,
            .begins = first == 0,
            .ends = first + t->count == a->q_per_kv,
            .kept = t->kept + (size_t)query * t->kept_slots,
            .kept_stride = t->kept_slots,
            .factor = t->kept_max + (size_t)query * t->kept_blocks,
            .factor_stride = t->kept_blocks,
            .partial = t->partial,
        };
        x.choose = x.ends && row + 1 == run->seq->rows && slots->victim && !x.rule.together;
        slots_pass(x);
    }
}

/* KV heads attended side by side. */
static inline uint32_t heads_together(uint32_t queries, uint32_t kept_slots)
{
    uint64_t heads = aq_max_u64(1, AQ_ATTN_DECODE_QUERIES / queries);
    if (kept_slots)
        heads =
            aq_min_u64(heads, AQ_ATTN_KEPT_FLOATS / (queries * aq_attn_kept_floats(kept_slots)));
    return (uint32_t)aq_max_u64(1, heads);
}

static void decode_tile(void *arg, uint32_t tile, uint32_t worker)
{
    const struct decode_job *job = arg;
    const struct aq_attn *a = job->a;
    uint32_t number = tile / job->tiles_per_seq;
    const struct aq_attn_seq *seq = &a->seqs[number];
    uint32_t head = tile % job->tiles_per_seq * job->tile_heads;
    struct decode_run run = {.a = a, .seq = seq, .head = head};
    run.members = joint_members(a, job->members_max, number);
    if (!run.members)
        return;
    run.head_end = (uint32_t)aq_min_u64(head + job->tile_heads, a->kv_heads);
    uint32_t kept = a->rule.victim && seq->slots.score ? longest(seq, head, run.head_end) : 0;
    /* Scores are of one row after the other. */
    uint32_t queries = seq->rows * run.members * a->q_per_kv, wave = kept ? a->q_per_kv : queries;
    uint32_t together = run.members > 1 ? 1 : heads_together(wave, kept);
    uint32_t most = run.members > 1 ? AQ_ATTN_JOINT_QUERIES : AQ_ATTN_DECODE_QUERIES;
    for (; run.head < run.head_end; run.head += run.heads) {
        run.heads = (uint32_t)aq_min_u64(together, run.head_end - run.head);
        uint32_t count;
        for (run.query = 0; run.query < queries; run.query += count) {
            count = (uint32_t)aq_min_u64(most, wave - run.query % wave);
            struct decode t = decode_open(job->ex, worker, a->head_dim, run.heads, count, kept);
            t.fused = job->fused;
            load_queries(&t, &run);
            if (run.members > 1)
                attend_jointly(&t, &run);
            else
                blocks_fns[a->kv_dtype][size_number(t.dim)](&t, &run);
            store_outputs(&t, &run);
            if (kept)
                remember(&t, &run);
        }
    }
    bool choose = a->rule.victim && seq->slots.victim && !a->rule.together;
    for (; !kept && choose && head < run.head_end; head++)
        slots_victim(a, seq, head);
}

static void decode_all(struct aq_exec *ex, const struct aq_attn *a, bool fused)
{
    aq_attn_decode_assert(a);
    assert(aq_attn_scratch_bytes(a->head_dim) <= aq_exec_scratch_size(ex));
    struct aq_pool *pool = aq_exec_pool(ex);
    struct decode_job job = {.ex = ex, .a = a, .fused = fused};
    /* Larger tiles ask ahead across heads; enough of them must be left for balance. */
    job.members_max = joint_members_max(a, aq_pool_threads(pool));
    uint64_t heads = (uint64_t)joint_tiles(a, job.members_max) * a->kv_heads;
    uint64_t tile_heads = heads / (16ull * aq_pool_threads(pool));
    job.tile_heads = (uint32_t)aq_max_u64(1, aq_min_u64(tile_heads, 8));
    job.tiles_per_seq = (uint32_t)aq_div_up(a->kv_heads, job.tile_heads);
    aq_pool_run(pool, decode_tile, &job, a->seq_count * job.tiles_per_seq);
}

void VEC_VERSION(attn_decode)(struct aq_exec *ex, const struct aq_attn *a)
{
    decode_all(ex, a, false);
}

#if VEC_ADDS_QUADS
void aq_attn_decode_avx512vnni(struct aq_exec *ex, const struct aq_attn *a)
{
    decode_all(ex, a, true);
}
#endif
