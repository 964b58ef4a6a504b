/* SPDX-License-Identifier: Apache-2.0
 * Checkpoints for the reference: config.json and tensors by the names that they have there, without
 * anything that the engine knows of architectures. */
#include "base/json.h"
#include "base/types.h"
#include "engine/checkpoint/checkpoint.h"
#include "tests/reference/reference.h"

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

static void stop(const char *what, const char *why)
{
    fprintf(stderr, "reference: %s: %s\n", what, why);
    abort();
}

/* ---- tensors ---- */

/* Where a layer's tensors are, by the names of its family; NULL: there is no such tensor. */
struct names {
    const char *type, *prefix;
    const char *norm_attention, *norm_mlp, *norm_q, *norm_k;
    const char *q, *k, *v, *o, *gate, *up, *down;
    /* Tensors of several, whose own names are NULL then: rows [head][q, k, v][head_dim]; of q, then
     * k, then v; of gate, then up. */
    const char *fused, *qkv, *gate_up;
    const char *tokens, *positions, *norm, *head;
};

static const struct names families[] = {
    {.type = "opt",
     .prefix = "model.decoder.",
     .norm_attention = "self_attn_layer_norm",
     .norm_mlp = "final_layer_norm",
     .q = "self_attn.q_proj",
     .k = "self_attn.k_proj",
     .v = "self_attn.v_proj",
     .o = "self_attn.out_proj",
     .up = "fc1",
     .down = "fc2",
     .tokens = "model.decoder.embed_tokens.weight",
     .positions = "model.decoder.embed_positions.weight",
     .norm = "model.decoder.final_layer_norm"},
    {.type = "llama mistral qwen2 qwen3",
     .prefix = "model.",
     .norm_attention = "input_layernorm",
     .norm_mlp = "post_attention_layernorm",
     .norm_q = "self_attn.q_norm",
     .norm_k = "self_attn.k_norm",
     .q = "self_attn.q_proj",
     .k = "self_attn.k_proj",
     .v = "self_attn.v_proj",
     .o = "self_attn.o_proj",
     .gate = "mlp.gate_proj",
     .up = "mlp.up_proj",
     .down = "mlp.down_proj",
     .tokens = "model.embed_tokens.weight",
     .norm = "model.norm",
     .head = "lm_head.weight"},
    {.type = "phi3",
     .prefix = "model.",
     .norm_attention = "input_layernorm",
     .norm_mlp = "post_attention_layernorm",
     .qkv = "self_attn.qkv_proj",
     .o = "self_attn.o_proj",
     .gate_up = "mlp.gate_up_proj",
     .down = "mlp.down_proj",
     .tokens = "model.embed_tokens.weight",
     .norm = "model.norm",
     .head = "lm_head.weight"},
    {.type = "gpt_neox",
     .prefix = "gpt_neox.",
     .norm_attention = "input_layernorm",
     .norm_mlp = "post_attention_layernorm",
     .fused = "attention.query_key_value",
     .o = "attention.dense",
     .up = "mlp.dense_h_to_4h",
     .down = "mlp.dense_4h_to_h",
     .tokens = "gpt_neox.embed_in.weight",
     .norm = "gpt_neox.final_layer_norm",
     .head = "embed_out.weight"},
};

struct source {
    struct aq_checkpoint *files;
    const struct names *names;
    uint32_t layer;
};

/* A whole tensor of rows * cols elements, exactly as it is kept, widened; NULL: there is none.
 * Models of pictures and text have the latter's under another name. */
static float *read_tensor(const struct source *s, const char *name, uint64_t rows, uint64_t cols)
{
    const struct aq_tensor_info *t = aq_checkpoint_find(s->files, name);
    char nested[256];
    struct aq_err err;
    snprintf(nested, sizeof(nested), "language_model.%s", name);
    t = t ? t : aq_checkpoint_find(s->files, nested);
    if (!t)
        return NULL;
    if (t->elements != rows * cols)
        stop(name, "another size");
    float *raw = take(rows * cols, sizeof(*raw)), *wide = take(rows * cols, sizeof(*wide));
    if (aq_checkpoint_read(s->files, t, 0, aq_tensor_rows(t), raw, &err) < 0)
        stop(name, err.text);
    aq_convert(wide, AQ_F32, raw, t->dtype, rows * cols);
    free(raw);
    return wide;
}

static float *need_tensor(const struct source *s, const char *name, uint64_t rows, uint64_t cols)
{
    float *t = read_tensor(s, name, rows, cols);
    if (!t)
        stop(name, "there is no such tensor");
    return t;
}

static void name_of(char text[256], const struct source *s, const char *name, const char *end)
{
    snprintf(text, 256, "%slayers.%u.%s.%s", s->names->prefix, s->layer, name, end);
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

/* From rows as checkpoints have them; takes both arrays.  No bias: zeros. */
static struct ref_linear linear_of(float *rows, float *bias, uint32_t out, uint32_t in)
{
    struct ref_linear l = {in, out, turned(rows, out, in), bias ? bias : take(out, sizeof(float))};
    free(rows);
    return l;
}

static struct ref_linear read_linear(const struct source *s, const char *name, uint32_t out,
                                     uint32_t in)
{
    char weight[256], bias[256];
    if (!name)
        return (struct ref_linear){0};
    name_of(weight, s, name, "weight");
    name_of(bias, s, name, "bias");
    return linear_of(need_tensor(s, weight, out, in), read_tensor(s, bias, 1, out), out, in);
}

/* `out` rows of a tensor of `total`: blocks of `block` rows, of which the first begins at row
 * `first` and each of the others `every` rows behind the one before it. */
struct rows {
    uint32_t total, out, first, block, every;
};

static struct ref_linear read_rows(const struct source *s, const char *name, const struct rows *r,
                                   uint32_t in)
{
    char weight[256], bias[256];
    name_of(weight, s, name, "weight");
    name_of(bias, s, name, "bias");
    float *all = need_tensor(s, weight, r->total, in),
          *all_bias = read_tensor(s, bias, 1, r->total);
    float *rows = take((size_t)r->out * in, sizeof(*rows)), *b = take(r->out, sizeof(*b));
    for (uint32_t i = 0; i < r->out; i++) {
        uint32_t from = r->first + i / r->block * r->every + i % r->block;
        memcpy(rows + (size_t)i * in, all + (size_t)from * in, in * sizeof(*rows));
        b[i] = all_bias ? all_bias[from] : 0;
    }
    free(all);
    free(all_bias);
    return linear_of(rows, b, r->out, in);
}

/* One of q (0), k and v. */
static struct ref_linear read_qkv(const struct source *s, const struct ref_model *m, uint32_t of)
{
    const struct names *n = s->names;
    const char *const own[] = {n->q, n->k, n->v};
    uint32_t d = m->head_dim, q = m->heads * d, kv = m->kv_heads * d, out = of == 0 ? q : kv;
    if (n->fused && m->mistake != REF_FUSED_BY_KIND)
        return read_rows(s, n->fused, &(struct rows){3 * q, q, of * d, d, 3 * d}, m->hidden);
    if (n->fused || n->qkv)
        return read_rows(s, n->fused ? n->fused : n->qkv,
                         &(struct rows){q + 2 * kv, out, of == 0 ? 0 : q + (of - 1) * kv, out, 0},
                         m->hidden);
    return read_linear(s, own[of], out, m->hidden);
}

/* The gate (0) or what it multiplies. */
static struct ref_linear read_gated(const struct source *s, const struct ref_model *m, uint32_t of)
{
    uint32_t i = m->inner;
    if (s->names->gate_up)
        return read_rows(s, s->names->gate_up, &(struct rows){2 * i, i, of * i, i, 0}, m->hidden);
    return read_linear(s, of == 0 ? s->names->gate : s->names->up, i, m->hidden);
}

/* A norm without a bias has NULL there; without a weight it is none. */
static struct ref_norm read_norm(const struct source *s, const char *name, bool layer, uint32_t dim)
{
    char weight[256], bias[256];
    if (!name)
        return (struct ref_norm){0};
    if (layer) {
        name_of(weight, s, name, "weight");
        name_of(bias, s, name, "bias");
    } else {
        snprintf(weight, sizeof(weight), "%s.weight", name);
        snprintf(bias, sizeof(bias), "%s.bias", name);
    }
    return (struct ref_norm){read_tensor(s, weight, 1, dim), read_tensor(s, bias, 1, dim)};
}

static void read_layer(struct ref_layer *l, const struct ref_model *m, const struct source *s)
{
    const struct names *n = s->names;
    uint32_t h = m->hidden;
    l->norm_attention = read_norm(s, n->norm_attention, true, h);
    l->norm_mlp = read_norm(s, n->norm_mlp, true, h);
    l->norm_q = read_norm(s, n->norm_q, true, m->head_dim);
    l->norm_k = read_norm(s, n->norm_k, true, m->head_dim);
    l->q = read_qkv(s, m, 0);
    l->k = read_qkv(s, m, 1);
    l->v = read_qkv(s, m, 2);
    l->o = read_linear(s, n->o, h, m->heads * m->head_dim);
    l->gate = read_gated(s, m, 0);
    l->up = read_gated(s, m, 1);
    l->down = read_linear(s, n->down, h, m->inner);
}

/* ---- config.json ---- */

static double number(const json_t *o, const char *key, double other)
{
    const json_t *v = json_object_get(o, key);
    return json_is_number(v) ? json_number_value(v) : other;
}

static uint32_t integer(const json_t *o, const char *key, uint32_t other)
{
    return (uint32_t)number(o, key, other);
}

static double gelu(double x)
{
    return 0.5 * x * (1 + erf(x / sqrt(2)));
}

static double gelu_tanh(double x)
{
    return 0.5 * x * (1 + tanh(sqrt(2 / 3.14159265358979323846) * (x + 0.044715 * x * x * x)));
}

static double silu(double x)
{
    return x / (1 + exp(-x));
}

static double relu(double x)
{
    return x > 0 ? x : 0;
}

static double (*activation(const json_t *o))(double)
{
    static const struct {
        const char *name;
        double (*f)(double);
    } all[] = {{"relu", relu},
               {"silu", silu},
               {"gelu", gelu},
               {"gelu_new", gelu_tanh},
               {"gelu_fast", gelu_tanh}};
    const json_t *v = json_object_get(o, "hidden_act");
    const char *name = json_string_value(v ? v : json_object_get(o, "activation_function"));
    for (size_t i = 0; name && i < AQ_ARRAY_LEN(all); i++) {
        if (strcmp(all[i].name, name) == 0)
            return all[i].f;
    }
    stop(name ? name : "activation", "not known");
    return NULL;
}

/* ---- rotary positions, as transformers' modeling_rope_utils.py has them ---- */

static double rope_number(const json_t *const o[3], const char *key, double other)
{
    for (size_t i = 3; i > 0; i--)
        other = number(o[i - 1], key, other);
    return other;
}

static double yarn_scale(double factor, double by)
{
    return factor > 1 ? 0.1 * by * log(factor) + 1 : 1;
}

/* Which frequency turns so many times in `original` positions. */
static double yarn_place(double turns, uint32_t dims, double original, double theta)
{
    return dims * log(original / (turns * 2 * M_PI)) / (2 * log(theta));
}

static void read_yarn(struct ref_rotary *r, const json_t *o, double theta, double original)
{
    double factor = number(o, "factor", 1), one = number(o, "mscale", 0),
           all = number(o, "mscale_all_dim", 0);
    double first = yarn_place(number(o, "beta_fast", 32), r->dims, original, theta);
    double last = yarn_place(number(o, "beta_slow", 1), r->dims, original, theta);
    if (!json_is_false(json_object_get(o, "truncate"))) {
        first = floor(first);
        last = ceil(last);
    }
    first = fmax(first, 0);
    last = fmin(last, r->dims - 1);
    for (uint32_t i = 0; i < r->dims / 2; i++) {
        double ramp = fmin(1, fmax(0, (i - first) / (last == first ? 0.001 : last - first)));
        r->frequency[0][i] *= ramp / factor + 1 - ramp;
    }
    r->factor[0] = number(o, "attention_factor",
                          one > 0 && all > 0 ? yarn_scale(factor, one) / yarn_scale(factor, all)
                                             : yarn_scale(factor, 1));
}

static void read_bands(struct ref_rotary *r, const json_t *o, double original)
{
    double factor = number(o, "factor", 1), low = number(o, "low_freq_factor", 1),
           high = number(o, "high_freq_factor", 4);
    for (uint32_t i = 0; i < r->dims / 2; i++) {
        double *f = &r->frequency[0][i], wave = 2 * M_PI / *f;
        double share = (original / wave - low) / (high - low);
        if (wave > original / low)
            *f /= factor;
        else if (wave >= original / high)
            *f = (1 - share) * *f / factor + share * *f;
    }
}

static void read_longrope(struct ref_rotary *r, const json_t *o, double max, double original)
{
    const char *const key[] = {"short_factor", "long_factor"};
    double factor = number(o, "factor", max / original);
    r->long_from = (uint32_t)original;
    for (int k = 0; k < 2; k++) {
        const json_t *list = json_object_get(o, key[k]);
        for (uint32_t i = 0; i < r->dims / 2; i++)
            r->frequency[k][i] /= json_number_value(json_array_get(list, i));
        r->factor[k] =
            number(o, "attention_factor", factor > 1 ? sqrt(1 + log(factor) / log(original)) : 1);
    }
}

static void read_rotary(struct ref_model *m, const json_t *config)
{
    struct ref_rotary *r = &m->rotary;
    const json_t *scaling = json_object_get(config, "rope_scaling"),
                 *newer = json_object_get(config, "rope_parameters");
    const json_t *all[] = {newer, scaling, config}, *own = json_is_object(newer) ? newer : scaling;
    double theta = rope_number(all, "rope_theta", number(config, "rotary_emb_base", 10000));
    double share = rope_number(all, "partial_rotary_factor", number(config, "rotary_pct", 1));
    double original = rope_number(all, "original_max_position_embeddings", m->context);
    const json_t *name = json_object_get(own, "rope_type");
    const char *type = json_string_value(name ? name : json_object_get(own, "type"));
    r->dims = (uint32_t)(m->head_dim * share);
    r->factor[0] = r->factor[1] = 1;
    if (r->dims > 2 * AQ_ARRAY_LEN(r->frequency[0]))
        stop("rotary positions", "more than the reference has room for");
    for (uint32_t i = 0; i < r->dims / 2; i++)
        r->frequency[0][i] = r->frequency[1][i] = pow(theta, -2.0 * i / r->dims);
    if (!type || strcmp(type, "default") == 0 || strcmp(type, "dynamic") == 0)
        return; /* dynamic: changes nothing within max_position_embeddings */
    if (strcmp(type, "linear") == 0) {
        for (uint32_t i = 0; i < r->dims / 2; i++)
            r->frequency[0][i] /= number(own, "factor", 1);
    } else if (strcmp(type, "llama3") == 0) {
        read_bands(r, own, original);
    } else if (strcmp(type, "yarn") == 0) {
        read_yarn(r, own, theta, original);
    } else if (strcmp(type, "longrope") == 0 || strcmp(type, "su") == 0) {
        read_longrope(r, own, m->context, original);
    } else {
        stop(type, "not a kind of rotary positions that the reference knows");
    }
}

/* ---- the whole ---- */

/* Which layers see only the last sliding_window tokens: what layer_types says; where there is a
 * use_sliding_window and it is true, from layer max_window_layers on; where there is none, all. */
static void read_windows(struct ref_model *m, const json_t *o)
{
    const json_t *types = json_object_get(o, "layer_types"),
                 *use = json_object_get(o, "use_sliding_window");
    for (uint32_t i = 0; i < m->layers; i++) {
        const char *type = json_string_value(json_array_get(types, i));
        bool window = type  ? strcmp(type, "sliding_attention") == 0
                      : use ? i >= integer(o, "max_window_layers", 0)
                            : true;
        window = window && !json_is_false(use);
        m->layer[i].window = window ? integer(o, "sliding_window", 0) : 0;
    }
}

static void read_shape(struct ref_model *m, const json_t *o)
{
    m->layers = integer(o, "num_hidden_layers", 0);
    m->hidden = integer(o, "hidden_size", 0);
    m->heads = integer(o, "num_attention_heads", 1);
    m->kv_heads = integer(o, "num_key_value_heads", m->heads);
    m->head_dim = integer(o, "head_dim", m->hidden / m->heads);
    m->inner = integer(o, "intermediate_size", integer(o, "ffn_dim", 0));
    m->vocab = integer(o, "vocab_size", 0);
    m->context = integer(o, "max_position_embeddings", integer(o, "max_sequence_length", 0));
    m->scale = 1 / sqrt(m->head_dim);
    m->eps = number(o, "rms_norm_eps", number(o, "layer_norm_eps", 1e-5));
    m->rms = json_object_get(o, "rms_norm_eps");
    m->activation = activation(o);
    m->layer = take(m->layers, sizeof(*m->layer));
}

static const struct names *family_of(const char *type)
{
    for (size_t i = 0; i < AQ_ARRAY_LEN(families); i++) {
        if (strstr(families[i].type, type))
            return &families[i];
    }
    stop(type, "not a family of the reference");
    return NULL;
}

/* config.json of a folder, or of the text in it, with changes. */
static json_t *read_config(const char *dir, const char *changes)
{
    char path[4096];
    struct aq_err err;
    json_t *whole, *changed = changes ? json_loads(changes, 0, NULL) : json_object();
    snprintf(path, sizeof(path), "%s/config.json", dir);
    if (aq_json_read_file(&whole, path, 1 << 20, &err) < 0)
        stop(dir, err.text);
    json_t *text = json_object_get(whole, "text_config");
    json_t *config = json_deep_copy(text ? text : whole);
    if (json_object_update(config, changed) < 0)
        stop(changes, "not a JSON object");
    json_decref(changed);
    json_decref(whole);
    return config;
}

struct ref_model *ref_model_open(const char *dir)
{
    return ref_model_open_wrong(dir, NULL, REF_NO_MISTAKE);
}

struct ref_model *ref_model_open_wrong(const char *dir, const char *changes,
                                       enum ref_mistake mistake)
{
    struct ref_model *m = take(1, sizeof(*m));
    struct source s = {0};
    struct aq_err err;
    json_t *config = read_config(dir, changes);
    if (aq_checkpoint_open(&s.files, dir, &err) < 0)
        stop(dir, err.text);
    m->mistake = mistake;
    s.names = family_of(json_string_value(json_object_get(config, "model_type")));
    read_shape(m, config);
    m->tokens = need_tensor(&s, s.names->tokens, m->vocab, m->hidden);
    if (s.names->positions)
        m->positions = need_tensor(&s, s.names->positions, m->context + 2ull, m->hidden);
    else
        read_rotary(m, config);
    m->norm = read_norm(&s, s.names->norm, false, m->hidden);
    float *head = s.names->head ? read_tensor(&s, s.names->head, m->vocab, m->hidden) : NULL;
    m->head = (struct ref_linear){m->hidden, m->vocab,
                                  turned(head ? head : m->tokens, m->vocab, m->hidden),
                                  take(m->vocab, sizeof(float))};
    free(head);
    for (s.layer = 0; s.layer < m->layers; s.layer++)
        read_layer(&m->layer[s.layer], m, &s);
    const json_t *parallel = json_object_get(config, "use_parallel_residual");
    m->parallel = s.names->fused && !json_is_false(parallel);
    read_windows(m, config);
    json_decref(config);
    aq_checkpoint_close(s.files);
    return m;
}

static void free_linear(struct ref_linear *l)
{
    free(l->w);
    free(l->b);
}

static void free_norm(struct ref_norm *n)
{
    free(n->w);
    free(n->b);
}

void ref_model_close(struct ref_model *m)
{
    if (!m)
        return;
    for (uint32_t i = 0; i < m->layers; i++) {
        struct ref_layer *l = &m->layer[i];
        struct ref_linear *linear[] = {&l->q, &l->k, &l->v, &l->o, &l->gate, &l->up, &l->down};
        struct ref_norm *norm[] = {&l->norm_attention, &l->norm_mlp, &l->norm_q, &l->norm_k};
        for (size_t n = 0; n < AQ_ARRAY_LEN(linear); n++)
            free_linear(linear[n]);
        for (size_t n = 0; n < AQ_ARRAY_LEN(norm); n++)
            free_norm(norm[n]);
    }
    free(m->layer);
    free(m->tokens);
    free(m->positions);
    free_norm(&m->norm);
    free_linear(&m->head);
    free(m);
}
