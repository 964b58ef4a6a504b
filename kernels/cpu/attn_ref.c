/* SPDX-License-Identifier: Apache-2.0
 * Attention, reference: one query at a time in f64, the keys passed over twice (for the largest
 * score, then for the sums), nothing shared between queries; a rule's memory is computed from
 * the products once more. */
#include "kernels/cpu/attn.h"
#include "kernels/cpu/kv.h"
#include "kernels/cpu/slots.h"
#include "kernels/cpu/versions.h"

#include <math.h>

struct query {
    const struct aq_attn *a;
    const struct aq_attn_seq *seq;
    const float *q;
    uint32_t head, first, end; /* the keys that it sees: [first, end) */
    uint32_t g;                /* the first of the query heads of the KV head that count */
    float *rows;               /* [ROWS][head_dim]: room for rows of K or V */
};

/* Keys that are scored together: a sum has to wait for the one before, four of them need not. */
enum { ROWS = 4 };

/* Number d of the query, as `key` gets it. */
static double query_at(const struct query *x, uint32_t key, uint32_t d)
{
    const struct aq_attn_turn *t = &x->seq->turn;
    uint32_t half = t->dim / 2;
    if (!t->turn || key >= t->slots || d >= t->dim)
        return (double)x->q[d];
    double c = (double)t->turn[d % half] * (double)t->scale;
    double s = (double)t->turn[half + d % half] * (double)t->scale;
    return d < half ? x->q[d] * c + x->q[d + half] * s : x->q[d] * c - x->q[d - half] * s;
}

static bool is_turned(const struct query *x, uint32_t key)
{
    return x->seq->turn.turn && key < x->seq->turn.slots;
}

/* A row of the block that holds key. */
static void load_row(const struct query *x, float *to, uint32_t key, uint32_t row)
{
    const struct aq_attn *a = x->a;
    uint32_t b = key / AQ_HEAD_BLOCK_SLOTS;
    aq_kv_load_row(to, aq_attn_block(x->seq, x->head, b), aq_attn_block_dtype(a, x->seq, b),
                   a->head_dim, row + key % AQ_HEAD_BLOCK_SLOTS);
}

static double score(const struct query *x, uint32_t key)
{
    const float *k = x->rows;
    uint32_t dim = x->a->head_dim;
    double sum = 0;
    load_row(x, x->rows, key, 0);
    if (is_turned(x, key)) {
        for (uint32_t d = 0; d < dim; d++)
            sum += query_at(x, key, d) * k[d];
    } else {
        for (uint32_t d = 0; d < dim; d++)
            sum += (double)x->q[d] * k[d];
    }
    return sum * x->a->scale;
}

/* The scores of `count` keys from key on, at most ROWS; each as score() has it. */
static void scores(const struct query *x, uint32_t key, uint32_t count, double *ret)
{
    uint32_t dim = x->a->head_dim;
    if (count < ROWS || is_turned(x, key)) {
        for (uint32_t i = 0; i < count; i++)
            ret[i] = score(x, key + i);
        return;
    }
    for (uint32_t i = 0; i < ROWS; i++)
        load_row(x, x->rows + (size_t)i * dim, key + i, 0);
    const float *k = x->rows;
    double sum[ROWS] = {0};
    for (uint32_t d = 0; d < dim; d++) {
        double q = x->q[d];
        for (uint32_t i = 0; i < ROWS; i++)
            sum[i] += q * k[(size_t)i * dim + d];
    }
    for (uint32_t i = 0; i < ROWS; i++)
        ret[i] = sum[i] * x->a->scale;
}

/* sum[d] += p * V[key][d] */
static void add_value(const struct query *x, uint32_t key, double p, double *sum)
{
    load_row(x, x->rows, key, AQ_HEAD_BLOCK_SLOTS);
    for (uint32_t d = 0; d < x->a->head_dim; d++)
        sum[d] += p * x->rows[d];
}

/* Returns the log of the sum of exp(score); sum[d] becomes the output. */
static double attend(const struct query *x, double *sum)
{
    uint32_t dim = x->a->head_dim;
    for (uint32_t d = 0; d < dim; d++)
        sum[d] = 0;
    if (!x->end)
        return -INFINITY;
    double max = -INFINITY, weight = 0, s[ROWS];
    for (uint32_t key = x->first, n; key < x->end; key += n) {
        n = (uint32_t)aq_min_u64(ROWS, x->end - key);
        scores(x, key, n, s);
        for (uint32_t i = 0; i < n; i++)
            max = fmax(max, s[i]);
    }
    double base = max == -INFINITY ? 0 : max; /* all scores -inf: weights of 0, not NaN */
    for (uint32_t key = x->first, n; key < x->end; key += n) {
        n = (uint32_t)aq_min_u64(ROWS, x->end - key);
        scores(x, key, n, s);
        for (uint32_t i = 0; i < n; i++) {
            double p = exp(s[i] - base);
            weight += p;
            add_value(x, key + i, p, sum);
        }
    }
    for (uint32_t d = 0; d < dim; d++)
        sum[d] /= weight;
    return base + log(weight);
}

struct job {
    struct aq_exec *ex;
    const struct aq_attn *a;
};

static size_t rows_bytes(const struct aq_attn *a)
{
    return (size_t)ROWS * a->head_dim * sizeof(float);
}

/* The keys of query row i of a head. */
static void set_keys(struct query *x, uint32_t i)
{
    x->end = aq_attn_visible(aq_attn_len(x->seq, x->head), x->seq->rows, i);
    x->first = aq_attn_first(x->a->window, x->end);
}

/* One query row of one KV head; log_sum[g] becomes that of its query head g. */
static void attend_row(const struct query *x, uint32_t i, double *log_sum, double *sum)
{
    const struct aq_attn *a = x->a;
    size_t row = (size_t)x->seq->row + i;
    for (uint32_t g = 0; g < a->q_per_kv; g++) {
        size_t q_head = (size_t)x->head * a->q_per_kv + g;
        struct query of = *x;
        of.q = a->q + row * a->q_stride + q_head * a->head_dim;
        log_sum[g] = attend(&of, sum);
        size_t at = row * a->out_stride + q_head * a->head_dim;
        for (uint32_t d = 0; d < a->head_dim; d++)
            aq_element_store(a->out, a->out_dtype, at + d, (float)sum[d]);
        if (a->log_sum_exp)
            a->log_sum_exp[row * a->kv_heads * a->q_per_kv + q_head] = (float)log_sum[g];
    }
}

/* c(i, key) of struct aq_attn_rule, for the query row i. */
static double counted(const struct query *x, uint32_t i, const double *log_sum, uint32_t key)
{
    const struct aq_attn *a = x->a;
    const struct aq_attn_rule *rule = &a->rule;
    double c = 0;
    for (uint32_t g = x->g; g < x->g + aq_attn_stats_group(a); g++) {
        struct query of = *x;
        of.q = a->q + ((size_t)x->seq->row + i) * a->q_stride +
               ((size_t)x->head * a->q_per_kv + g) * a->head_dim;
        double p = exp(score(&of, key) - log_sum[g]);
        if (rule->stat == AQ_ATTN_PROB_SQUARED)
            p *= p;
        else if (rule->stat == AQ_ATTN_LOW)
            p = p < (double)rule->threshold / (x->end - x->first) ? -1 : 0;
        c = rule->group == AQ_ATTN_MAX && g > x->g ? fmax(c, p) : c + p;
    }
    return rule->group == AQ_ATTN_MEAN ? c / a->q_per_kv : c;
}

/* A tile is one KV head of one sequence. */
static void attend_tile(void *arg, uint32_t tile, uint32_t worker)
{
    const struct job *job = arg;
    const struct aq_attn *a = job->a;
    const struct aq_attn_seq *seq = &a->seqs[tile / a->kv_heads];
    double *log_sum = aq_exec_scratch(job->ex, worker), *sum = log_sum + a->q_per_kv;
    struct query x = {.a = a, .seq = seq, .head = tile % a->kv_heads};
    x.rows = (float *)(sum + a->head_dim);
    for (uint32_t i = 0; i < seq->rows; i++) {
        set_keys(&x, i);
        attend_row(&x, i, log_sum, sum);
        if (!a->rule.victim || !seq->slots.score)
            continue;
        float *s = seq->slots.score + (size_t)x.head * seq->slots.stride;
        for (uint32_t key = 0; key < x.end; key++) {
            double c = key >= x.first ? counted(&x, i, log_sum, key) : 0;
            s[key] = (float)((double)a->rule.decay * s[key] + c);
        }
    }
    if (a->rule.victim && seq->slots.victim && !a->rule.together)
        seq->slots.victim[x.head] = aq_slots_victim(a, seq, x.head);
}

static void attend_all(struct aq_exec *ex, const struct aq_attn *a)
{
    assert((a->head_dim + a->q_per_kv) * sizeof(double) + rows_bytes(a) <=
           aq_exec_scratch_size(ex));
    struct job job = {.ex = ex, .a = a};
    aq_pool_run(aq_exec_pool(ex), attend_tile, &job, a->seq_count * a->kv_heads);
}

void aq_attn_decode_ref(struct aq_exec *ex, const struct aq_attn *a)
{
    aq_attn_decode_assert(a);
    attend_all(ex, a);
}

/* ---- column sums ---- */

/* The sum over queries for one key, queries ascending; in f64 within a window of queries, and a
 * float behind each of them, from which a later call can go on. */
static float column(struct query *x, double *log_sum, uint32_t key, float begun)
{
    const struct aq_attn *a = x->a;
    uint32_t rows = x->seq->rows;
    uint32_t first = a->pairs.rows && a->pairs.rows < rows ? rows - a->pairs.rows : 0, end = 0;
    double sum = begun;
    for (uint32_t i = 0; i < rows; i++) {
        if (i == end) {
            end = (uint32_t)aq_min_u64(end + AQ_ATTN_STATS_ROWS, rows);
            sum = (float)sum * pow(a->rule.decay, end - i);
        }
        set_keys(x, i);
        if (i < first)
            continue;
        if (key < x->first || key >= x->end)
            continue;
        uint32_t dist = x->end - 1 - key;
        if (dist < a->pairs.min_dist || (a->pairs.band && dist >= a->pairs.band))
            continue;
        size_t at =
            ((size_t)x->seq->row + i) * a->kv_heads * a->q_per_kv + (size_t)x->head * a->q_per_kv;
        for (uint32_t g = x->g; g < x->g + aq_attn_stats_group(a); g++)
            log_sum[g] = a->log_sum_exp[at + g];
        sum += pow(a->rule.decay, end - 1 - i) * counted(x, i, log_sum, key);
    }
    return (float)sum;
}

static void stats_tile(void *arg, uint32_t tile, uint32_t worker)
{
    const struct job *job = arg;
    const struct aq_attn *a = job->a;
    uint32_t rows = aq_attn_stats_rows(a), row = tile % rows;
    const struct aq_attn_seq *seq = &a->seqs[tile / rows];
    double *log_sum = aq_exec_scratch(job->ex, worker);
    struct query x = {.a = a, .seq = seq, .head = row / (rows / a->kv_heads)};
    x.g = row % (rows / a->kv_heads);
    x.rows = (float *)(log_sum + a->q_per_kv);
    float *to = seq->slots.score + (size_t)row * seq->slots.stride;
    for (uint32_t key = 0; key < aq_attn_len(seq, x.head); key++)
        to[key] = column(&x, log_sum, key, aq_attn_begun_sum(a, row, key));
}

void aq_attn_stats_ref(struct aq_exec *ex, const struct aq_attn *a)
{
    aq_attn_stats_assert(a);
    assert(a->q_per_kv * sizeof(double) + rows_bytes(a) <= aq_exec_scratch_size(ex));
    struct job job = {.ex = ex, .a = a};
    aq_pool_run(aq_exec_pool(ex), stats_tile, &job, a->seq_count * aq_attn_stats_rows(a));
}

/* As decode, but for rules, which are of the column sums. */
void aq_attn_prefill_ref(struct aq_exec *ex, const struct aq_attn *a)
{
    struct aq_attn without = *a;
    aq_attn_prefill_assert(a);
    without.rule = (struct aq_attn_rule){0};
    attend_all(ex, &without);
    if (a->pairs.rows)
        aq_attn_stats_ref(ex, a);
}
