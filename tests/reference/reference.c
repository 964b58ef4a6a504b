/* SPDX-License-Identifier: Apache-2.0
 * OPT as arXiv 2205.01068 and transformers' modeling_opt.py have it (pre-norm, learned positions
 * from row 2 on, tied head), one operation after the other in f64. */
#include "tests/reference/reference.h"

#include "base/types.h"
#include "engine/model/model.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *take(size_t count, size_t size)
{
    void *p = calloc(count ? count : 1, size);
    if (!p)
        abort();
    return p;
}

/* ---- weights ---- */

/* Rows of a matrix, or a vector as one row, exactly as they are kept, widened. */
static float *read_rows(const struct aq_model *m, const char *name, uint32_t rows, uint32_t cols)
{
    float *raw = take((size_t)rows * cols, sizeof(*raw)),
          *wide = take((size_t)rows * cols, sizeof(*wide));
    enum aq_dtype dtype;
    struct aq_err err;
    if (aq_model_read_rows(m, name, 0, rows, cols, raw, &dtype, &err) < 0) {
        fprintf(stderr, "%s: %s\n", name, err.text);
        abort();
    }
    aq_convert(wide, AQ_F32, raw, dtype, (size_t)rows * cols);
    free(raw);
    return wide;
}

static float *turned(const float *from, uint32_t rows, uint32_t cols)
{
    float *to = take((size_t)rows * cols, sizeof(*to));
    for (uint32_t r = 0; r < rows; r++) {
        for (uint32_t c = 0; c < cols; c++)
            to[(size_t)c * rows + r] = from[(size_t)r * cols + c];
    }
    return to;
}

static struct ref_linear read_linear(const struct aq_model *m, uint32_t layer, const char *name,
                                     uint32_t out, uint32_t in)
{
    char full[AQ_NAME_MAX];
    snprintf(full, sizeof(full), "layers.%u.%s.weight", layer, name);
    float *rows = read_rows(m, full, out, in);
    struct ref_linear l = {.in = in, .out = out, .w = turned(rows, out, in)};
    snprintf(full, sizeof(full), "layers.%u.%s.bias", layer, name);
    l.b = read_rows(m, full, 1, out);
    free(rows);
    return l;
}

static struct ref_norm read_norm(const struct aq_model *m, const char *prefix, uint32_t dim)
{
    char name[AQ_NAME_MAX];
    struct ref_norm n;
    snprintf(name, sizeof(name), "%s.weight", prefix);
    n.w = read_rows(m, name, 1, dim);
    snprintf(name, sizeof(name), "%s.bias", prefix);
    n.b = read_rows(m, name, 1, dim);
    return n;
}

static void read_layer(struct ref_layer *l, const struct aq_model *m, uint32_t layer)
{
    const struct aq_model_config *c = &m->config;
    char prefix[AQ_NAME_MAX / 2];
    uint32_t d = c->hidden_size;
    snprintf(prefix, sizeof(prefix), "layers.%u.self_attn_layer_norm", layer);
    l->norm_attention = read_norm(m, prefix, d);
    snprintf(prefix, sizeof(prefix), "layers.%u.final_layer_norm", layer);
    l->norm_mlp = read_norm(m, prefix, d);
    l->q = read_linear(m, layer, "self_attn.q_proj", d, d);
    l->k = read_linear(m, layer, "self_attn.k_proj", d, d);
    l->v = read_linear(m, layer, "self_attn.v_proj", d, d);
    l->o = read_linear(m, layer, "self_attn.out_proj", d, d);
    l->fc1 = read_linear(m, layer, "fc1", c->intermediate_size, d);
    l->fc2 = read_linear(m, layer, "fc2", d, c->intermediate_size);
}

struct ref_model *ref_model_open(const struct aq_model *from)
{
    const struct aq_model_config *c = &from->config;
    assert(c->norm_first && c->final_norm && c->qkv_bias && c->out_bias && c->mlp_bias);
    assert(c->norm_affine && c->tie_word_embeddings);
    assert(c->embed_width == c->hidden_size && c->activation == AQ_ACT_RELU);
    struct ref_model *m = take(1, sizeof(*m));
    m->layers = c->layers;
    m->hidden = c->hidden_size;
    m->heads = c->heads;
    m->head_dim = c->hidden_size / c->heads;
    m->vocab = c->vocab_size;
    m->context = c->max_positions;
    m->tokens = read_rows(from, "embed_tokens.weight", m->vocab, m->hidden);
    m->positions = read_rows(from, "embed_positions.weight", m->context + 2, m->hidden);
    m->norm = read_norm(from, "final_layer_norm", m->hidden);
    m->head = (struct ref_linear){m->hidden, m->vocab, turned(m->tokens, m->vocab, m->hidden),
                                  take(m->vocab, sizeof(float))};
    m->layer = take(m->layers, sizeof(*m->layer));
    for (uint32_t i = 0; i < m->layers; i++)
        read_layer(&m->layer[i], from, i);
    return m;
}

void ref_model_close(struct ref_model *m)
{
    if (!m)
        return;
    for (uint32_t i = 0; i < m->layers; i++) {
        struct ref_layer *l = &m->layer[i];
        float *all[] = {l->norm_attention.w,
                        l->norm_attention.b,
                        l->norm_mlp.w,
                        l->norm_mlp.b,
                        l->q.w,
                        l->q.b,
                        l->k.w,
                        l->k.b,
                        l->v.w,
                        l->v.b,
                        l->o.w,
                        l->o.b,
                        l->fc1.w,
                        l->fc1.b,
                        l->fc2.w,
                        l->fc2.b};
        for (size_t n = 0; n < AQ_ARRAY_LEN(all); n++)
            free(all[n]);
    }
    free(m->layer);
    free(m->tokens);
    free(m->positions);
    free(m->norm.w);
    free(m->norm.b);
    free(m->head.w);
    free(m->head.b);
    free(m);
}

/* ---- one row through the parts of a layer ---- */

static void apply_norm(double *y, const double *x, const struct ref_norm *n, uint32_t dim)
{
    double mean = 0, var = 0;
    for (uint32_t i = 0; i < dim; i++)
        mean += x[i] / dim;
    for (uint32_t i = 0; i < dim; i++)
        var += (x[i] - mean) * (x[i] - mean) / dim;
    for (uint32_t i = 0; i < dim; i++)
        y[i] = (x[i] - mean) / sqrt(var + 1e-5) * n->w[i] + n->b[i];
}

static void apply_linear(double *restrict y, const double *restrict x, const struct ref_linear *l)
{
    for (uint32_t n = 0; n < l->out; n++)
        y[n] = l->b[n];
    for (uint32_t k = 0; k < l->in; k++) {
        const float *restrict w = l->w + (size_t)k * l->out;
        double xk = x[k];
        for (uint32_t n = 0; n < l->out; n++)
            y[n] += xk * w[n];
    }
}

/* x += fc2(relu(fc1(norm(x)))) */
static void apply_mlp(const struct ref_model *m, const struct ref_layer *l, double *x, double *work)
{
    double *norm = work, *inner = norm + m->hidden, *sum = inner + l->fc1.out;
    apply_norm(norm, x, &l->norm_mlp, m->hidden);
    apply_linear(inner, norm, &l->fc1);
    for (uint32_t i = 0; i < l->fc1.out; i++)
        inner[i] = inner[i] > 0 ? inner[i] : 0;
    apply_linear(sum, inner, &l->fc2);
    for (uint32_t i = 0; i < m->hidden; i++)
        x[i] += sum[i];
}

static size_t work_doubles(const struct ref_model *m)
{
    return 6 * (size_t)m->hidden + m->layer[0].fc1.out;
}

/* q (scaled) of a row at position t, and its k and v into the heads. */
static void apply_qkv(struct ref_run *r, uint32_t layer, const double *x, uint32_t t, double *q,
                      double *work)
{
    const struct ref_model *m = r->m;
    const struct ref_layer *l = &m->layer[layer];
    uint32_t d = m->head_dim;
    double *norm = work, *k = norm + m->hidden, *v = k + m->hidden;
    apply_norm(norm, x, &l->norm_attention, m->hidden);
    apply_linear(q, norm, &l->q);
    apply_linear(k, norm, &l->k);
    apply_linear(v, norm, &l->v);
    for (uint32_t i = 0; i < m->hidden; i++)
        q[i] /= sqrt(d);
    for (uint32_t a = 0; a < m->heads; a++) {
        struct ref_head *h = ref_head(r, layer, a);
        memcpy(h->k + (size_t)t * d, k + a * d, d * sizeof(*k));
        memcpy(h->v + (size_t)t * d, v + a * d, d * sizeof(*v));
    }
}

/* p = softmax over the kept keys of [0, t], 0 at the others; out = sum of p v. */
static void attend(const struct ref_head *h, const double *q, uint32_t t, uint32_t d, double *p,
                   double *out)
{
    double max = -INFINITY, sum = 0;
    for (uint32_t j = 0; j <= t; j++) {
        p[j] = 0;
        for (uint32_t i = 0; i < d; i++)
            p[j] += q[i] * h->k[(size_t)j * d + i];
        if (h->kept[j] && p[j] > max)
            max = p[j];
    }
    for (uint32_t j = 0; j <= t; j++) {
        p[j] = h->kept[j] ? exp(p[j] - max) : 0;
        sum += p[j];
    }
    memset(out, 0, d * sizeof(*out));
    for (uint32_t j = 0; j <= t; j++) {
        p[j] /= sum;
        for (uint32_t i = 0; i < d; i++)
            out[i] += p[j] * h->v[(size_t)j * d + i];
    }
}

/* x += o(attention) */
static void apply_out(const struct ref_model *m, const struct ref_layer *l, const double *attention,
                      double *x, double *work)
{
    apply_linear(work, attention, &l->o);
    for (uint32_t i = 0; i < m->hidden; i++)
        x[i] += work[i];
}

static void embed(const struct ref_model *m, uint32_t id, uint32_t position, double *x)
{
    assert(id < m->vocab && position < m->context);
    for (uint32_t i = 0; i < m->hidden; i++)
        x[i] = (double)m->tokens[(size_t)id * m->hidden + i] +
               (double)m->positions[((size_t)position + 2) * m->hidden + i];
}

static void apply_head(const struct ref_model *m, const double *x, double *logits, double *work)
{
    apply_norm(work, x, &m->norm, m->hidden);
    apply_linear(logits, work, &m->head);
}

/* ---- a sequence ---- */

static struct ref_run *open_run(const struct ref_model *m, const struct ref_policy *p,
                                uint32_t room)
{
    struct ref_run *r = take(1, sizeof(*r));
    *r = (struct ref_run){.m = m, .policy = *p, .room = room};
    r->head = take((size_t)m->layers * m->heads, sizeof(*r->head));
    for (uint32_t i = 0; i < m->layers * m->heads; i++) {
        struct ref_head *h = &r->head[i];
        h->k = take((size_t)room * m->head_dim, sizeof(*h->k));
        h->v = take((size_t)room * m->head_dim, sizeof(*h->v));
        h->score = take(room, sizeof(*h->score));
        h->kept = take(room, sizeof(*h->kept));
        h->heavy = take(room, sizeof(*h->heavy));
        h->ring = take(room, sizeof(*h->ring));
    }
    return r;
}

void ref_run_close(struct ref_run *r)
{
    if (!r)
        return;
    for (uint32_t i = 0; i < r->m->layers * r->m->heads; i++) {
        struct ref_head *h = &r->head[i];
        free(h->k);
        free(h->v);
        free(h->score);
        free(h->kept);
        free(h->heavy);
        free(h->ring);
    }
    free(r->head);
    free(r);
}

/* Full attention of all n queries; each key's score is the sum of what they gave it, where those of
 * i queries ago count decay^i. */
static void prefill_attention(struct ref_run *r, uint32_t layer, uint32_t n, double *q, double *p)
{
    const struct ref_model *m = r->m;
    double decay = r->policy.decay == 0 ? 1 : r->policy.decay;
    for (uint32_t a = 0; a < m->heads; a++) {
        struct ref_head *h = ref_head(r, layer, a);
        for (uint32_t j = 0; j < n; j++)
            h->kept[j] = true;
        for (uint32_t i = 0; i < n; i++) {
            double *row = q + (size_t)i * m->hidden + a * m->head_dim, out[512];
            assert(m->head_dim <= AQ_ARRAY_LEN(out));
            attend(h, row, i, m->head_dim, p, out);
            memcpy(row, out, m->head_dim * sizeof(*out)); /* q of this head is done with */
            for (uint32_t j = 0; j <= i; j++)
                h->score[j] = decay * h->score[j] + p[j];
        }
    }
}

static void cut_prompt(struct ref_run *r)
{
    const struct ref_stages *stages = ref_stages(r->policy.variant);
    uint32_t heads = r->m->heads;
    for (uint32_t i = 0; i < r->m->layers * heads && stages->prefilled; i++)
        stages->prefilled(&r->policy, &r->head[i], r->prompt);
    for (uint32_t l = 0; l < r->m->layers && !stages->prefilled; l++)
        stages->layer_prefilled(&r->policy, ref_head(r, l, 0), heads, r->prompt);
}

struct ref_run *ref_run_open(const struct ref_model *m, const struct ref_policy *policy,
                             const uint32_t *ids, uint32_t n, uint32_t room, double *last)
{
    struct ref_run *r = open_run(m, policy, room);
    size_t d = m->hidden;
    double *x = take(n * d, sizeof(*x)), *q = take(n * d, sizeof(*q));
    double *work = take(work_doubles(m), sizeof(*work)), *p = take(n, sizeof(*p));
    assert(n >= 1 && n <= room);
    r->prompt = r->count = n;
    for (uint32_t t = 0; t < n; t++)
        embed(m, ids[t], t, x + t * d);
    for (uint32_t layer = 0; layer < m->layers; layer++) {
        for (uint32_t t = 0; t < n; t++)
            apply_qkv(r, layer, x + t * d, t, q + t * d, work);
        prefill_attention(r, layer, n, q, p);
        for (uint32_t t = 0; t < n; t++) {
            apply_out(m, &m->layer[layer], q + t * d, x + t * d, work);
            apply_mlp(m, &m->layer[layer], x + t * d, work);
        }
    }
    if (last)
        apply_head(m, x + (n - 1) * d, last, work);
    cut_prompt(r);
    free(x);
    free(q);
    free(work);
    free(p);
    return r;
}

struct ref_run *ref_run_fork(const struct ref_run *full, const struct ref_policy *policy)
{
    assert(full->policy.variant == REF_FULL && full->policy.decay == policy->decay);
    assert(full->count == full->prompt);
    const struct ref_model *m = full->m;
    struct ref_run *r = open_run(m, policy, full->room);
    r->prompt = r->count = full->prompt;
    for (uint32_t i = 0; i < m->layers * m->heads; i++) {
        const struct ref_head *from = &full->head[i];
        struct ref_head *to = &r->head[i];
        memcpy(to->k, from->k, (size_t)r->prompt * m->head_dim * sizeof(*to->k));
        memcpy(to->v, from->v, (size_t)r->prompt * m->head_dim * sizeof(*to->v));
        memcpy(to->score, from->score, r->prompt * sizeof(*to->score));
    }
    cut_prompt(r);
    return r;
}

void ref_run_step(struct ref_run *r, uint32_t id, double *logits, ref_attends_fn *attends,
                  void *user)
{
    const struct ref_model *m = r->m;
    const struct ref_stages *stages = ref_stages(r->policy.variant);
    uint32_t t = r->count++, d = m->head_dim;
    assert(t < r->room);
    double *x = take(m->hidden, sizeof(*x)), *q = take(m->hidden, sizeof(*q));
    double *out = take(m->hidden, sizeof(*out)), *p = take(r->count, sizeof(*p));
    double *work = take(work_doubles(m), sizeof(*work));
    embed(m, id, t, x);
    for (uint32_t layer = 0; layer < m->layers; layer++) {
        apply_qkv(r, layer, x, t, q, work);
        for (uint32_t a = 0; a < m->heads; a++) {
            struct ref_head *h = ref_head(r, layer, a);
            stages->arrives(&r->policy, h, t, r->prompt);
            if (attends)
                attends(user, r, layer, a, t);
            attend(h, q + a * d, t, d, p, out + a * d);
            stages->attended(&r->policy, h, t, r->prompt, p);
        }
        apply_out(m, &m->layer[layer], out, x, work);
        apply_mlp(m, &m->layer[layer], x, work);
    }
    if (logits)
        apply_head(m, x, logits, work);
    free(x);
    free(q);
    free(out);
    free(p);
    free(work);
}

double ref_logprob(const double *logits, uint32_t vocab, uint32_t id)
{
    double max = logits[ref_argmax(logits, vocab)], sum = 0;
    for (uint32_t i = 0; i < vocab; i++)
        sum += exp(logits[i] - max);
    return logits[id] - max - log(sum);
}

uint32_t ref_argmax(const double *logits, uint32_t vocab)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < vocab; i++) {
        if (logits[i] > logits[best])
            best = i;
    }
    return best;
}
