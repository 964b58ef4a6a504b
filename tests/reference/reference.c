/* SPDX-License-Identifier: Apache-2.0
 * Decoders as transformers' modeling_opt.py, modeling_llama.py, modeling_qwen3.py,
 * modeling_phi3.py and modeling_gpt_neox.py have them, one operation after the other in f64. */
#include "tests/reference/reference.h"

#include "base/types.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static void *take(size_t count, size_t size)
{
    void *p = calloc(count ? count : 1, size);
    if (!p)
        abort();
    return p;
}

/* ---- one row through the parts of a layer ---- */

static void apply_norm(const struct ref_model *m, double *y, const double *x,
                       const struct ref_norm *n, uint32_t dim)
{
    double mean = 0, var = 0;
    for (uint32_t i = 0; i < dim && !m->rms; i++)
        mean += x[i] / dim;
    for (uint32_t i = 0; i < dim; i++)
        var += (x[i] - mean) * (x[i] - mean) / dim;
    for (uint32_t i = 0; i < dim; i++)
        y[i] = (x[i] - mean) / sqrt(var + m->eps) * n->w[i] + (n->b ? n->b[i] : 0);
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

/* x += down(act(up(norm(from)))), or x += down(act(gate(norm(from))) * up(norm(from))) */
static void apply_mlp(const struct ref_model *m, const struct ref_layer *l, const double *from,
                      double *x, double *work)
{
    double *norm = work, *inner = norm + m->hidden, *gate = inner + m->inner,
           *sum = gate + m->inner;
    apply_norm(m, norm, from, &l->norm_mlp, m->hidden);
    apply_linear(inner, norm, &l->up);
    if (l->gate.w)
        apply_linear(gate, norm, &l->gate);
    for (uint32_t i = 0; i < m->inner; i++)
        inner[i] = l->gate.w ? m->activation(gate[i]) * inner[i] : m->activation(inner[i]);
    apply_linear(sum, inner, &l->down);
    for (uint32_t i = 0; i < m->hidden; i++)
        x[i] += sum[i];
}

static size_t work_doubles(const struct ref_model *m)
{
    return 3 * (size_t)m->hidden + 2 * (size_t)m->inner + 3 * (size_t)m->kv_heads * m->head_dim;
}

/* Angles are products of single precision, as everybody has them who computes positions. */
static void turn(const struct ref_model *m, bool distant, uint32_t t, double *head)
{
    uint32_t half = m->rotary.dims / 2;
    double factor = m->rotary.factor[distant];
    for (uint32_t i = 0; i < half; i++) {
        double angle = (double)((float)t * (float)m->rotary.frequency[distant][i]);
        double c = factor * cos(angle), s = factor * sin(angle);
        double *one = &head[m->mistake == REF_INTERLEAVED ? 2 * i : i];
        double *other = one + (m->mistake == REF_INTERLEAVED ? 1 : half);
        double x = *one, y = *other;
        *one = x * c - y * s;
        *other = y * c + x * s;
    }
}

/* Does the sequence turn by the second frequencies?  It does where it comes to positions behind
 * those that the first ones are for. */
static bool is_distant(const struct ref_run *r)
{
    uint32_t most = r->room, places = r->policy.places;
    if (places && (r->prompt > places || most > places + 1)) /* the last key is never computed */
        most = r->prompt > places ? r->prompt : places;
    return r->m->rotary.long_from && most > r->m->rotary.long_from;
}

/* Heads of q or k side by side, at position t: normed, then turned; still: what they were between.
 */
static void apply_heads(const struct ref_run *r, const struct ref_norm *norm, uint32_t heads,
                        uint32_t t, double *x, double *still)
{
    const struct ref_model *m = r->m;
    bool distant = is_distant(r);
    for (uint32_t a = 0; a < heads; a++) {
        double *head = x + (size_t)a * m->head_dim;
        if (m->mistake == REF_LATE_NORMS)
            turn(m, distant, t, head);
        if (norm->w)
            apply_norm(m, head, head, norm, m->head_dim);
        memcpy(still + (size_t)a * m->head_dim, head, m->head_dim * sizeof(*still));
        if (m->mistake != REF_LATE_NORMS)
            turn(m, distant, t, head);
    }
}

double ref_round_f16(double x)
{
    int exponent;
    frexp(x, &exponent);
    double step = ldexp(1, (exponent < -13 ? -13 : exponent) - 11);
    return nearbyint(x / step) * step;
}

/* q (scaled) of a row at position t, and its k and v into the heads; still_q: q before it turned.
 */
static void apply_qkv(struct ref_run *r, uint32_t layer, const double *x, uint32_t t, double *q,
                      double *still_q, double *work)
{
    const struct ref_model *m = r->m;
    const struct ref_layer *l = &m->layer[layer];
    uint32_t d = m->head_dim;
    double *norm = work, *k = norm + m->hidden, *v = k + (size_t)m->kv_heads * d;
    double *still = v + (size_t)m->kv_heads * d;
    apply_norm(m, norm, x, &l->norm_attention, m->hidden);
    apply_linear(q, norm, &l->q);
    apply_linear(k, norm, &l->k);
    apply_linear(v, norm, &l->v);
    apply_heads(r, &l->norm_q, m->heads, t, q, still_q);
    apply_heads(r, &l->norm_k, m->kv_heads, t, k, still);
    for (uint32_t i = 0; i < m->heads * d; i++) {
        q[i] *= m->scale;
        still_q[i] *= m->scale;
    }
    for (uint32_t a = 0; a < m->kv_heads; a++) {
        struct ref_head *h = ref_head(r, layer, a);
        memcpy(h->k + (size_t)t * d, k + a * d, d * sizeof(*k));
        memcpy(h->v + (size_t)t * d, v + a * d, d * sizeof(*v));
        memcpy(h->still + (size_t)t * d, still + a * d, d * sizeof(*still));
        memcpy(h->asked + (size_t)t * h->group * d, still_q + (size_t)a * h->group * d,
               h->group * d * sizeof(*still_q));
        for (uint32_t i = 0; i < d && m->kv_f16; i++) {
            h->k[(size_t)t * d + i] = ref_round_f16(h->k[(size_t)t * d + i]);
            h->v[(size_t)t * d + i] = ref_round_f16(h->v[(size_t)t * d + i]);
        }
    }
}

/* StreamingLLM (arXiv 2309.17453, section 3.2), literally: keys are cached before they turn, and at
 * each step every kept key turns by its place in the cache, the newest one as the query does.  The
 * query heads of head a. */
static void turn_in_cache(struct ref_run *r, uint32_t layer, uint32_t a, uint32_t t, double *q,
                          const double *still_q)
{
    const struct ref_model *m = r->m;
    struct ref_head *h = ref_head(r, layer, a);
    uint32_t place = 0, d = m->head_dim, each = m->heads / m->kv_heads;
    for (uint32_t j = 0; j <= t; j++) {
        if (!h->kept[j])
            continue;
        memcpy(h->k + (size_t)j * d, h->still + (size_t)j * d, d * sizeof(*h->k));
        turn(m, is_distant(r), place++, h->k + (size_t)j * d);
    }
    for (uint32_t i = a * each; i < (a + 1) * each; i++) {
        memcpy(q + (size_t)i * d, still_q + (size_t)i * d, d * sizeof(*q));
        turn(m, is_distant(r), place - 1, q + (size_t)i * d);
    }
}

/* p = softmax over the kept keys of [0, t], of the last `window` of them if that is not 0, and 0 at
 * the others; out = sum of p v. */
static void attend(const struct ref_head *h, const double *q, uint32_t t, uint32_t window,
                   uint32_t d, double *p, double *out)
{
    double max = -INFINITY, sum = 0;
    for (uint32_t j = 0; j <= t; j++) {
        bool seen = h->kept[j] && !h->left[j] && (!window || t - j < window);
        p[j] = 0;
        for (uint32_t i = 0; i < d; i++)
            p[j] += q[i] * h->k[(size_t)j * d + i];
        p[j] = seen ? p[j] : -INFINITY;
        if (p[j] > max)
            max = p[j];
    }
    for (uint32_t j = 0; j <= t; j++) {
        p[j] = exp(p[j] - max);
        sum += p[j];
    }
    memset(out, 0, d * sizeof(*out));
    for (uint32_t j = 0; j <= t; j++) {
        p[j] /= sum;
        for (uint32_t i = 0; i < d; i++)
            out[i] += p[j] * h->v[(size_t)j * d + i];
    }
}

/* What one head of k and v received from the query heads that share it. */
static double of_group(enum ref_group group, const double *p, uint32_t heads, size_t stride)
{
    double sum = 0, most = p[0];
    for (uint32_t g = 0; g < heads; g++) {
        sum += p[g * stride];
        most = fmax(most, p[g * stride]);
    }
    switch (group) {
    case REF_MEAN: return sum / heads;
    case REF_MAX: return most;
    case REF_FIRST: return p[0];
    default: return sum;
    }
}

/* Whether probabilities are low, in their place: -1, or 0.  Near the border f32 may say otherwise,
 * which is counted. */
static void find_low(const struct ref_run *r, uint32_t layer, uint32_t a, uint32_t t, double *p)
{
    struct ref_head *h = ref_head(r, layer, a);
    uint32_t window = r->m->layer[layer].window, seen = 0;
    for (uint32_t j = 0; j <= t; j++)
        seen += h->kept[j] && (!window || t - j < window);
    for (uint32_t j = 0; j <= t; j++) {
        double border = r->policy.low / seen;
        h->doubt[j] += fabs(p[j] - border) <= 1e-4 * border;
        p[j] = p[j] < border ? -1 : 0;
    }
}

/* The queries at position t of the heads that share head a of k and v: `q` becomes their outputs;
 * p [t + 1]: what they gave, together. */
static void attend_group(const struct ref_run *r, uint32_t layer, uint32_t a, uint32_t t, double *q,
                         double *p)
{
    const struct ref_model *m = r->m;
    uint32_t each = m->heads / m->kv_heads, d = m->head_dim;
    double *all = take((size_t)each * (t + 1), sizeof(*all)), out[512];
    assert(d <= AQ_ARRAY_LEN(out));
    for (uint32_t g = 0; g < each; g++) {
        uint32_t head = m->mistake == REF_HEADS_MODULO ? g * m->kv_heads + a : a * each + g;
        double *row = q + (size_t)head * d;
        attend(ref_head(r, layer, a), row, t, m->layer[layer].window, d, all + (size_t)g * (t + 1),
               out);
        memcpy(row, out, d * sizeof(*out));
        if (r->policy.low > 0)
            find_low(r, layer, a, t, all + (size_t)g * (t + 1));
    }
    for (uint32_t j = 0; j <= t; j++)
        p[j] = of_group(r->policy.group, all + j, each, t + 1);
    memcpy(ref_head(r, layer, a)->given + (size_t)t * r->room, p, (t + 1) * sizeof(*p));
    if (t < r->prompt && t + r->policy.observe >= r->prompt) {
        for (uint32_t i = 0; i < each * (t + 1); i++)
            ref_head(r, layer, a)->each[i / (t + 1) * r->room + i % (t + 1)] +=
                r->policy.squares ? all[i] * all[i] : all[i];
    }
    free(all);
}

/* The layer behind attention: x += o(attention), and the MLP of that sum, or of x as it was. */
static void apply_rest(const struct ref_model *m, const struct ref_layer *l,
                       const double *attention, double *x, double *work)
{
    double *sum = take(m->hidden, sizeof(*sum)), *before = take(m->hidden, sizeof(*before));
    memcpy(before, x, m->hidden * sizeof(*x));
    apply_linear(sum, attention, &l->o);
    for (uint32_t i = 0; i < m->hidden; i++)
        x[i] += sum[i];
    apply_mlp(m, l, m->parallel ? before : x, x, work);
    free(sum);
    free(before);
}

static void embed(const struct ref_model *m, uint32_t id, uint32_t position, double *x)
{
    assert(id < m->vocab && (position < m->context || !m->positions));
    for (uint32_t i = 0; i < m->hidden; i++)
        x[i] = (double)m->tokens[(size_t)id * m->hidden + i];
    for (uint32_t i = 0; i < m->hidden && m->positions; i++) /* OPT: from row 2 on */
        x[i] += (double)m->positions[((size_t)position + 2) * m->hidden + i];
}

static void apply_head(const struct ref_model *m, const double *x, double *logits, double *work)
{
    apply_norm(m, work, x, &m->norm, m->hidden);
    apply_linear(logits, work, &m->head);
}

/* ---- a sequence ---- */

static struct ref_run *open_run(const struct ref_model *m, const struct ref_policy *p,
                                uint32_t room)
{
    struct ref_run *r = take(1, sizeof(*r));
    *r = (struct ref_run){.m = m, .policy = *p, .room = room};
    r->head = take((size_t)m->layers * m->kv_heads, sizeof(*r->head));
    r->ids = take(room, sizeof(*r->ids));
    r->classes = take(room, sizeof(*r->classes));
    for (uint32_t i = 0; i < m->layers * m->kv_heads; i++) {
        struct ref_head *h = &r->head[i];
        h->k = take((size_t)room * m->head_dim, sizeof(*h->k));
        h->v = take((size_t)room * m->head_dim, sizeof(*h->v));
        h->still = take((size_t)room * m->head_dim, sizeof(*h->still));
        h->score = take(room, sizeof(*h->score));
        h->asked = take((size_t)room * m->heads / m->kv_heads * m->head_dim, sizeof(*h->asked));
        h->to_come = take((size_t)m->head_dim * m->head_dim, sizeof(*h->to_come));
        h->group = m->heads / m->kv_heads;
        h->classes = r->classes;
        h->room = room;
        h->dim = m->head_dim;
        h->each = take((size_t)h->group * room, sizeof(*h->each));
        h->given = take((size_t)room * room, sizeof(*h->given));
        h->rank = take(room, sizeof(*h->rank));
        h->doubt = take(room, sizeof(*h->doubt));
        h->kept = take(room, sizeof(*h->kept));
        h->left = take(room, sizeof(*h->left));
        h->worth = take(room, sizeof(*h->worth));
        h->heavy = take(room, sizeof(*h->heavy));
        h->ring = take(room, sizeof(*h->ring));
    }
    return r;
}

void ref_run_close(struct ref_run *r)
{
    if (!r)
        return;
    for (uint32_t i = 0; i < r->m->layers * r->m->kv_heads; i++) {
        struct ref_head *h = &r->head[i];
        free(h->k);
        free(h->v);
        free(h->still);
        free(h->asked);
        free(h->to_come);
        free(h->score);
        free(h->each);
        free(h->given);
        free(h->rank);
        free(h->doubt);
        free(h->kept);
        free(h->left);
        free(h->worth);
        free(h->heavy);
        free(h->ring);
    }
    free(r->head);
    free(r->ids);
    free(r->classes);
    free(r);
}

/* The token at a position. */
static void note_token(struct ref_run *r, uint32_t position, uint32_t id)
{
    r->ids[position] = id;
    r->classes[position] = r->policy.classes ? r->policy.classes[id] : 0;
}

/* Full attention of all n queries; each key's score is the sum of what they gave it, where those of
 * i queries ago count decay^i. */
static void prefill_attention(struct ref_run *r, uint32_t layer, uint32_t n, double *q, double *p)
{
    const struct ref_model *m = r->m;
    size_t width = (size_t)m->heads * m->head_dim;
    double decay = r->policy.decay == 0 ? 1 : r->policy.decay;
    for (uint32_t a = 0; a < m->kv_heads; a++) {
        struct ref_head *h = ref_head(r, layer, a);
        for (uint32_t j = 0; j < n; j++)
            h->kept[j] = true;
        for (uint32_t i = 0; i < n; i++) {
            attend_group(r, layer, a, i, q + i * width, p);
            bool counts = !r->policy.observe || i + r->policy.observe >= n;
            for (uint32_t j = 0; j <= i && counts; j++)
                h->score[j] = decay * h->score[j] + p[j];
        }
    }
}

/* PyramidKV (arXiv 2406.02069) as its program has it: heavy tokens fall by the same number from
 * layer to layer, from twice the average (or the whole prompt) less what the last one keeps. */
static uint32_t pyramid_heavy(const struct ref_policy *p, int64_t n, int64_t layer, int64_t layers)
{
    int64_t alone = p->recent ? 0 : 1; /* no layer is left without any */
    int64_t even = p->heavy - alone, min = even / p->beta, max = even * 2 - min;
    if (n < p->heavy + p->recent || n < even * 2)
        return p->heavy;
    if (max >= n - p->recent - alone) {
        max = n - p->recent - alone;
        min = even * 2 - max;
    }
    int64_t less = layers > 1 ? (max - min) / (layers - 1) : 0;
    return (uint32_t)(alone + max - (p->rising ? layers - 1 - layer : layer) * less);
}

struct ref_policy ref_layer_policy(const struct ref_run *r, uint32_t layer)
{
    uint32_t window = r->m->layer[layer].window;
    struct ref_policy p = r->policy;
    if (window)
        return (struct ref_policy){.variant = REF_WINDOW, .recent = window};
    if (p.high && p.beta) { /* the same, of what the prompt has no part in */
        int64_t layers = r->m->layers, part = p.high - p.recent, min = part / p.beta;
        int64_t less = layers > 1 ? 2 * (part - min) / (layers - 1) : 0;
        p.high = (uint32_t)(p.recent + 2 * part - min -
                            (p.rising ? layers - 1 - (int64_t)layer : layer) * less);
        p.high = p.high < 2 ? 2 : p.high;
        ref_divide(&p);
        return p;
    }
    if (p.beta) {
        p.heavy = pyramid_heavy(&p, r->prompt, layer, r->m->layers);
        p.sinks = p.sinks < p.heavy ? p.sinks : p.heavy;
    }
    if (p.shared && !p.mix) {
        uint32_t floor_of = (uint32_t)floor(p.floor_share * p.heavy + 1e-9);
        floor_of = p.floor_share > 0 && p.heavy && !floor_of ? 1 : floor_of;
        p.floor = floor_of > p.sinks ? floor_of : p.sinks;
    }
    return p;
}

/* Each unit vector turned to each of the positions behind the prompt, on average. */
static void look_ahead(const struct ref_run *r, struct ref_head *h)
{
    double *one = take(h->dim, sizeof(*one));
    for (uint32_t i = 0; i < h->dim; i++) {
        for (uint32_t t = 0; t < r->policy.ahead; t++) {
            memset(one, 0, h->dim * sizeof(*one));
            one[i] = 1;
            turn(r->m, is_distant(r), r->prompt + t, one);
            for (uint32_t d = 0; d < h->dim; d++)
                h->to_come[i * h->dim + d] += one[d] / r->policy.ahead;
        }
    }
    free(one);
}

static void cut_prompt(struct ref_run *r)
{
    uint32_t heads = r->m->kv_heads;
    for (uint32_t i = 0; i < r->m->layers * heads && r->policy.variant == REF_EXPECTED; i++)
        look_ahead(r, &r->head[i]);
    for (uint32_t l = 0; l < r->m->layers; l++) {
        struct ref_policy p = ref_layer_policy(r, l);
        const struct ref_stages *stages = ref_stages(p.variant);
        for (uint32_t i = 0; i < heads && stages->prefilled; i++)
            stages->prefilled(&p, ref_head(r, l, i), r->prompt);
        for (uint32_t i = 0; i < heads && stages->valued; i++) {
            stages->valued(&p, ref_head(r, l, i), r->prompt);
            if (!p.shared && p.variant != REF_KVCOMPRESS)
                ref_cut(&p, ref_head(r, l, i), r->prompt);
        }
        if (stages->valued && p.shared)
            ref_cut_shared(&p, ref_head(r, l, 0), heads, r->prompt);
        if (stages->layer_prefilled)
            stages->layer_prefilled(&p, ref_head(r, l, 0), heads, r->prompt);
    }
    if (r->policy.variant != REF_KVCOMPRESS)
        return;
    struct ref_head **all = take((size_t)r->m->layers * heads, sizeof(struct ref_head *));
    uint32_t count = 0;
    for (uint32_t i = 0; i < r->m->layers * heads; i++) {
        if (!r->m->layer[i / heads].window)
            all[count++] = &r->head[i];
    }
    ref_cut_all(&r->policy, all, count, heads, r->prompt);
    free(all);
}

struct ref_run *ref_run_open(const struct ref_model *m, const struct ref_policy *policy,
                             const uint32_t *ids, uint32_t n, uint32_t room, double *last)
{
    struct ref_run *r = open_run(m, policy, room);
    size_t d = m->hidden, width = (size_t)m->heads * m->head_dim;
    double *x = take(n * d, sizeof(*x)), *q = take(n * width, sizeof(*q));
    double *work = take(work_doubles(m), sizeof(*work)), *p = take(n, sizeof(*p));
    double *still_q = take(width, sizeof(*still_q));
    assert(n >= 1 && n <= room);
    r->prompt = r->count = n;
    for (uint32_t t = 0; t < n; t++) {
        note_token(r, t, ids[t]);
        embed(m, ids[t], t, x + t * d);
    }
    for (uint32_t layer = 0; layer < m->layers; layer++) {
        for (uint32_t t = 0; t < n; t++)
            apply_qkv(r, layer, x + t * d, t, q + t * width, still_q, work);
        prefill_attention(r, layer, n, q, p);
        for (uint32_t t = 0; t < n; t++)
            apply_rest(m, &m->layer[layer], q + t * width, x + t * d, work);
    }
    if (last)
        apply_head(m, x + (n - 1) * d, last, work);
    cut_prompt(r);
    free(x);
    free(q);
    free(work);
    free(p);
    free(still_q);
    return r;
}

struct ref_run *ref_run_fork(const struct ref_run *full, const struct ref_policy *policy)
{
    assert(full->policy.variant == REF_FULL && full->policy.decay == policy->decay);
    assert(full->policy.group == policy->group && full->policy.observe == policy->observe);
    assert(full->policy.low == policy->low);
    assert(full->policy.squares == policy->squares);
    assert(full->count == full->prompt);
    const struct ref_model *m = full->m;
    struct ref_run *r = open_run(m, policy, full->room);
    r->prompt = r->count = full->prompt;
    for (uint32_t t = 0; t < r->prompt; t++)
        note_token(r, t, full->ids[t]);
    for (uint32_t i = 0; i < m->layers * m->kv_heads; i++) {
        const struct ref_head *from = &full->head[i];
        struct ref_head *to = &r->head[i];
        memcpy(to->k, from->k, (size_t)r->prompt * m->head_dim * sizeof(*to->k));
        memcpy(to->v, from->v, (size_t)r->prompt * m->head_dim * sizeof(*to->v));
        memcpy(to->still, from->still, (size_t)r->prompt * m->head_dim * sizeof(*to->still));
        memcpy(to->asked, from->asked,
               (size_t)r->prompt * from->group * m->head_dim * sizeof(*to->asked));
        memcpy(to->score, from->score, r->prompt * sizeof(*to->score));
        memcpy(to->each, from->each, (size_t)from->group * r->room * sizeof(*to->each));
        memcpy(to->given, from->given, (size_t)r->prompt * r->room * sizeof(*to->given));
        memcpy(to->doubt, from->doubt, r->prompt * sizeof(*to->doubt));
    }
    cut_prompt(r);
    return r;
}

void ref_run_step(struct ref_run *r, uint32_t id, double *logits, ref_attends_fn *attends,
                  void *user)
{
    const struct ref_model *m = r->m;
    uint32_t t = r->count++;
    assert(t < r->room);
    double *x = take(m->hidden, sizeof(*x));
    double *q = take((size_t)m->heads * m->head_dim, sizeof(*q)), *p = take(r->count, sizeof(*p));
    double *work = take(work_doubles(m), sizeof(*work));
    note_token(r, t, id);
    double *still_q = take((size_t)m->heads * m->head_dim, sizeof(*still_q));
    embed(m, id, t, x);
    for (uint32_t layer = 0; layer < m->layers; layer++) {
        struct ref_policy policy = ref_layer_policy(r, layer);
        const struct ref_stages *stages = ref_stages(policy.variant);
        apply_qkv(r, layer, x, t, q, still_q, work);
        for (uint32_t a = 0; a < m->kv_heads; a++) {
            struct ref_head *h = ref_head(r, layer, a);
            stages->arrives(&policy, h, t, r->prompt);
            if (policy.read && layer >= policy.read_dense)
                ref_read(&policy, h, q + (size_t)a * h->group * h->dim, t);
            if (attends)
                attends(user, r, layer, a, t);
            if (policy.in_cache)
                turn_in_cache(r, layer, a, t, q, still_q);
            attend_group(r, layer, a, t, q, p);
            stages->attended(&policy, h, t, r->prompt, p);
        }
        if (stages->layer_attended)
            stages->layer_attended(&policy, ref_head(r, layer, 0), m->kv_heads, t);
        apply_rest(m, &m->layer[layer], q, x, work);
    }
    if (logits)
        apply_head(m, x, logits, work);
    free(x);
    free(q);
    free(p);
    free(work);
    free(still_q);
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
