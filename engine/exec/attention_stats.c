/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/exec/attention_stats.h"

#include "base/json.h"
#include "base/types.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define THRESHOLD 0.01 /* of a row's largest probability, as in arXiv 2306.14048, figure 2 */

enum { KEYS = 16, THIRDS = 3, RANKS_MAX = 64 };

static const double shares[] = {0.01, 0.02, 0.05, 0.10, 0.20, 0.50};

/* Sums of one (layer, head) over prompts. */
struct head_sums {
    uint64_t entries[THIRDS], below[THIRDS];
    double top[AQ_ARRAY_LEN(shares)], at_rank[RANKS_MAX];
    uint64_t at_rank_prompts[RANKS_MAX];
};

/* A worker's memory: keys transposed to [head_dim][n], a row of exponentials, sorted sums. */
struct workspace {
    float *keys, *row;
    double *sorted;
};

struct aq_attention_stats {
    struct aq_attention_stats_opts opts;
    uint32_t rank[RANKS_MAX], rank_count;
    struct head_sums *head; /* [layers][heads] */
    double *token;          /* [layers][vocab] */
    double *column;         /* [heads][prompt_max] of the prompt at hand */
    struct workspace *work; /* [threads] */
    uint64_t prompts;       /* counted in layer 0 */
    const struct aq_attention_rows *rows;
};

uint64_t aq_attention_stats_bytes(const struct aq_attention_stats_opts *o)
{
    uint64_t n = aq_align_up(o->prompt_max, KEYS);
    return sizeof(struct aq_attention_stats) +
           (uint64_t)o->layers * o->heads * sizeof(struct head_sums) +
           (uint64_t)o->layers * o->vocab * sizeof(double) + o->heads * n * sizeof(double) +
           o->threads * (sizeof(struct workspace) +
                         n * ((o->head_dim + 1) * sizeof(float) + sizeof(double)));
}

/* 1, 2, 3, 5, 7, 10, ...: about eight ranks for each factor of ten. */
static void fill_ranks(struct aq_attention_stats *s)
{
    uint32_t most = s->opts.prompt_max > s->opts.vocab ? s->opts.prompt_max : s->opts.vocab;
    for (uint32_t r = 1; r <= most && s->rank_count < RANKS_MAX;
         r = (uint32_t)aq_max_u64(r + 1, (uint64_t)lround(r * 1.3335)))
        s->rank[s->rank_count++] = r;
}

int aq_attention_stats_open(struct aq_attention_stats **ret,
                            const struct aq_attention_stats_opts *o, struct aq_err *reterr)
{
    assert(o->heads % o->kv_heads == 0);
    struct aq_attention_stats *s = calloc(1, sizeof(*s));
    if (!s)
        return aq_error_memory(reterr, "attention statistics");
    size_t n = aq_align_up(o->prompt_max, KEYS);
    s->opts = *o;
    fill_ranks(s);
    s->head = calloc((size_t)o->layers * o->heads, sizeof(*s->head));
    s->token = calloc((size_t)o->layers * o->vocab, sizeof(*s->token));
    s->column = calloc(o->heads * n, sizeof(*s->column));
    s->work = calloc(o->threads, sizeof(*s->work));
    bool whole = s->head && s->token && s->column && s->work;
    for (uint32_t i = 0; whole && i < o->threads; i++) {
        struct workspace *w = &s->work[i];
        w->keys = calloc(n * o->head_dim, sizeof(*w->keys));
        w->row = calloc(n, sizeof(*w->row));
        w->sorted = calloc(n, sizeof(*w->sorted));
        whole = w->keys && w->row && w->sorted;
    }
    if (!whole) {
        aq_attention_stats_close(s);
        return aq_error_memory(reterr, "attention statistics of %u layers, %u heads, %u tokens",
                               o->layers, o->heads, o->prompt_max);
    }
    *ret = s;
    return 0;
}

void aq_attention_stats_close(struct aq_attention_stats *s)
{
    if (!s)
        return;
    for (uint32_t i = 0; s->work && i < s->opts.threads; i++) {
        free(s->work[i].keys);
        free(s->work[i].row);
        free(s->work[i].sorted);
    }
    free(s->head);
    free(s->token);
    free(s->column);
    free(s->work);
    free(s);
}

/* ---- one head of a prompt ---------------------------------------------------------------- */

static void turn_keys(const struct aq_attention_stats *s, struct workspace *w, uint32_t kv_head)
{
    const struct aq_attention_rows *r = s->rows;
    uint32_t d = s->opts.head_dim;
    size_t n = aq_align_up(r->n, KEYS);
    for (uint32_t j = 0; j < n; j++) {
        const float *k = r->k + (size_t)j * r->stride + (size_t)kv_head * d;
        for (uint32_t i = 0; i < d; i++)
            w->keys[i * n + j] = j < r->n ? k[i] : 0;
    }
}

/* row[j] = scale q . k_j for j in [first, count), sixteen keys at a time; returns the largest. */
static float row_logits(const struct aq_attention_stats *s, struct workspace *w, const float *q,
                        uint32_t first, uint32_t count)
{
    size_t n = aq_align_up(s->rows->n, KEYS);
    float max = -INFINITY;
    for (uint32_t j = first / KEYS * KEYS; j < count; j += KEYS) {
        float sum[KEYS] = {0};
        for (uint32_t i = 0; i < s->opts.head_dim; i++) {
            for (uint32_t c = 0; c < KEYS; c++)
                sum[c] += q[i] * w->keys[i * n + j + c];
        }
        for (uint32_t c = 0; c < KEYS; c++) {
            w->row[j + c] = sum[c] * s->opts.scale;
            bool seen = j + c >= first && j + c < count;
            max = seen && w->row[j + c] > max ? w->row[j + c] : max;
        }
    }
    return max;
}

/* Lets v[at] sink in a heap of n whose least value is on top. */
static void sink(double *v, size_t at, size_t n)
{
    for (size_t child; (child = 2 * at + 1) < n; at = child) {
        child += child + 1 < n && v[child + 1] < v[child];
        if (v[at] <= v[child])
            return;
        double least = v[child];
        v[child] = v[at];
        v[at] = least;
    }
}

/* Largest first, in place: qsort may allocate, and passes may not. */
static void sort_descending(double *v, size_t n)
{
    for (size_t i = n / 2; i-- > 0;)
        sink(v, i, n);
    for (size_t end = n; end > 1; end--) {
        double least = v[0];
        v[0] = v[end - 1];
        v[end - 1] = least;
        sink(v, 0, end - 1);
    }
}

/* Each query gave 1 in all. */
static void add_distribution(const struct aq_attention_stats *s, struct head_sums *h,
                             double *sorted, uint32_t n)
{
    sort_descending(sorted, n);
    double sum = 0;
    uint32_t at = 0;
    for (size_t i = 0; i < AQ_ARRAY_LEN(shares); i++) {
        uint32_t count = (uint32_t)ceil(shares[i] * n);
        for (; at < count; at++)
            sum += sorted[at];
        h->top[i] += sum / n;
    }
    for (uint32_t i = 0; i < s->rank_count && s->rank[i] <= n; i++) {
        h->at_rank[i] += sorted[s->rank[i] - 1] / n;
        h->at_rank_prompts[i]++;
    }
}

static void add_head(void *arg, uint32_t head, uint32_t worker)
{
    const struct aq_attention_stats *s = arg;
    const struct aq_attention_rows *r = s->rows;
    struct workspace *w = &s->work[worker];
    struct head_sums *h = &s->head[(size_t)r->layer * s->opts.heads + head];
    double *column = s->column + head * aq_align_up(s->opts.prompt_max, KEYS);
    turn_keys(s, w, head / (s->opts.heads / s->opts.kv_heads));
    memset(column, 0, r->n * sizeof(*column));
    for (uint32_t i = 0; i < r->n; i++) {
        const float *q = r->q + (size_t)i * r->stride + (size_t)head * s->opts.head_dim;
        uint32_t first = r->window && i >= r->window ? i + 1 - r->window : 0;
        float max = row_logits(s, w, q, first, i + 1);
        double sum = 0;
        uint32_t below = 0;
        for (uint32_t j = first; j <= i; j++) {
            w->row[j] = expf(w->row[j] - max); /* of the largest probability */
            sum += (double)w->row[j];
            below += w->row[j] < (float)THRESHOLD;
        }
        for (uint32_t j = first; j <= i; j++)
            column[j] += (double)w->row[j] / sum;
        uint32_t third = (uint32_t)((uint64_t)i * THIRDS / r->n);
        h->entries[third] += i + 1 - first;
        h->below[third] += below;
    }
    memcpy(w->sorted, column, r->n * sizeof(*column));
    add_distribution(s, h, w->sorted, r->n);
}

void aq_attention_stats_add(struct aq_attention_stats *s, struct aq_pool *pool,
                            const struct aq_attention_rows *rows)
{
    assert(rows->layer < s->opts.layers && rows->n >= 1 && rows->n <= s->opts.prompt_max);
    assert(aq_pool_threads(pool) <= s->opts.threads);
    s->rows = rows;
    aq_pool_run(pool, add_head, s, s->opts.heads);
    double *token = s->token + (size_t)rows->layer * s->opts.vocab;
    for (uint32_t head = 0; head < s->opts.heads; head++) {
        const double *column = s->column + head * aq_align_up(s->opts.prompt_max, KEYS);
        for (uint32_t j = 0; j < rows->n; j++)
            token[rows->ids[j]] += column[j];
    }
    s->prompts += rows->layer == 0;
    s->rows = NULL;
}

/* ---- result ------------------------------------------------------------------------------ */

static json_t *share_json(uint64_t part, uint64_t all)
{
    return all ? aq_json_real((double)part / (double)all) : json_null();
}

static void add_sparsity(const struct aq_attention_stats *s, const struct head_sums *heads,
                         json_t **to)
{
    uint64_t entries[THIRDS] = {0}, below[THIRDS] = {0}, all = 0, all_below = 0;
    json_t *by_head = json_array(), *by_third = json_array();
    for (uint32_t i = 0; i < s->opts.heads; i++) {
        uint64_t of_head = 0, below_of_head = 0;
        for (int t = 0; t < THIRDS; t++) {
            of_head += heads[i].entries[t];
            below_of_head += heads[i].below[t];
            entries[t] += heads[i].entries[t];
            below[t] += heads[i].below[t];
        }
        aq_json_add(&by_head, share_json(below_of_head, of_head));
        all += of_head;
        all_below += below_of_head;
    }
    for (int t = 0; t < THIRDS; t++)
        aq_json_add(&by_third, share_json(below[t], entries[t]));
    aq_json_put(to, "sparsity", share_json(all_below, all));
    aq_json_put(to, "sparsity_by_head", by_head);
    aq_json_put(to, "sparsity_by_third", by_third);
}

static void add_scores(const struct aq_attention_stats *s, const struct head_sums *heads,
                       json_t **to)
{
    json_t *top = json_array(), *at_rank = json_array();
    double of = (double)s->prompts * s->opts.heads;
    for (size_t n = 0; n < AQ_ARRAY_LEN(shares); n++) {
        double sum = 0;
        for (uint32_t i = 0; i < s->opts.heads; i++)
            sum += heads[i].top[n];
        aq_json_add(&top, aq_json_real(sum / of));
    }
    for (uint32_t n = 0; n < s->rank_count && heads[0].at_rank_prompts[n]; n++) {
        double sum = 0, count = 0;
        for (uint32_t i = 0; i < s->opts.heads; i++) {
            sum += heads[i].at_rank[n];
            count += (double)heads[i].at_rank_prompts[n];
        }
        aq_json_add(&at_rank, aq_json_real(sum / count));
    }
    aq_json_put(to, "top_share", top);
    aq_json_put(to, "score_at_rank", at_rank);
}

static json_t *token_json(const struct aq_attention_stats *s, uint32_t layer)
{
    uint32_t vocab = s->opts.vocab;
    double *sorted = malloc(vocab * sizeof(*sorted)), all = 0;
    if (!sorted)
        return NULL;
    memcpy(sorted, s->token + (size_t)layer * vocab, vocab * sizeof(*sorted));
    sort_descending(sorted, vocab);
    for (uint32_t i = 0; i < vocab; i++)
        all += sorted[i];
    json_t *list = json_array();
    for (uint32_t i = 0; i < s->rank_count && s->rank[i] <= vocab; i++) {
        if (sorted[s->rank[i] - 1] > 0)
            aq_json_add(&list, aq_json_real(sorted[s->rank[i] - 1] / all));
    }
    free(sorted);
    return list;
}

json_t *aq_attention_stats_json(const struct aq_attention_stats *s)
{
    json_t *layers = json_array(), *ranks = json_array(), *parts = json_array();
    for (uint32_t i = 0; i < s->rank_count; i++)
        aq_json_add(&ranks, json_integer(s->rank[i]));
    for (size_t i = 0; i < AQ_ARRAY_LEN(shares); i++)
        aq_json_add(&parts, json_real(shares[i]));
    for (uint32_t l = 0; l < s->opts.layers && s->prompts; l++) {
        const struct head_sums *heads = &s->head[(size_t)l * s->opts.heads];
        json_t *o = json_pack("{s:i}", "layer", (int)l);
        add_sparsity(s, heads, &o);
        add_scores(s, heads, &o);
        aq_json_put(&o, "token_share_at_rank", token_json(s, l));
        aq_json_add(&layers, o);
    }
    return json_pack("{s:I, s:f, s:o, s:o, s:o}", "prompts", (json_int_t)s->prompts, "threshold",
                     THRESHOLD, "ranks", ranks, "shares", parts, "layers", layers);
}
