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
    const char *fused; /* rows [head][q, k, v][head_dim]; then q, k and v are NULL */
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

/* A whole tensor of rows * cols elements, exactly as it is kept, widened; NULL: there is none. */
static float *read_tensor(const struct source *s, const char *name, uint64_t rows, uint64_t cols)
{
    const struct aq_tensor_info *t = aq_checkpoint_find(s->files, name);
    struct aq_err err;
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

/* One of q (0), k and v of a fused tensor: rows [head][q, k, v][d]. */
static struct ref_linear read_fused(const struct source *s, const struct ref_model *m, uint32_t of)
{
    char weight[256], bias[256];
    uint32_t d = m->head_dim, h = m->hidden;
    name_of(weight, s, s->names->fused, "weight");
    name_of(bias, s, s->names->fused, "bias");
    float *all = need_tensor(s, weight, 3ull * h, h), *all_bias = read_tensor(s, bias, 1, 3ull * h);
    float *rows = take((size_t)h * h, sizeof(*rows)), *b = take(h, sizeof(*b));
    for (uint32_t i = 0; i < h; i++) {
        uint32_t from = (3 * (i / d) + of) * d + i % d;
        memcpy(rows + (size_t)i * h, all + (size_t)from * h, h * sizeof(*rows));
        b[i] = all_bias ? all_bias[from] : 0;
    }
    free(all);
    free(all_bias);
    return linear_of(rows, b, h, h);
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
    uint32_t h = m->hidden, q = m->heads * m->head_dim, kv = m->kv_heads * m->head_dim;
    l->norm_attention = read_norm(s, n->norm_attention, true, h);
    l->norm_mlp = read_norm(s, n->norm_mlp, true, h);
    l->norm_q = read_norm(s, n->norm_q, true, m->head_dim);
    l->norm_k = read_norm(s, n->norm_k, true, m->head_dim);
    l->q = n->fused ? read_fused(s, m, 0) : read_linear(s, n->q, q, h);
    l->k = n->fused ? read_fused(s, m, 1) : read_linear(s, n->k, kv, h);
    l->v = n->fused ? read_fused(s, m, 2) : read_linear(s, n->v, kv, h);
    l->o = read_linear(s, n->o, h, q);
    l->gate = read_linear(s, n->gate, m->inner, h);
    l->up = read_linear(s, n->up, m->inner, h);
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

/* The first `rotary` numbers of each head turn, by frequencies theta^(-2i / rotary). */
static void read_rotary(struct ref_model *m, const json_t *o)
{
    double share = number(o, "rotary_pct", number(o, "partial_rotary_factor", 1));
    m->rotary = (uint32_t)(m->head_dim * share);
    m->theta = number(o, "rope_theta", number(o, "rotary_emb_base", 10000));
}

/* Which layers see only the last sliding_window tokens: what layer_types says, else all. */
static void read_windows(struct ref_model *m, const json_t *o)
{
    const json_t *types = json_object_get(o, "layer_types");
    for (uint32_t i = 0; i < m->layers; i++) {
        const char *type = json_string_value(json_array_get(types, i));
        bool window = !types || (type && strcmp(type, "sliding_attention") == 0);
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
    m->context = integer(o, "max_position_embeddings", 0);
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

struct ref_model *ref_model_open(const char *dir)
{
    struct ref_model *m = take(1, sizeof(*m));
    struct source s = {0};
    struct aq_err err;
    json_t *config;
    char path[4096];
    snprintf(path, sizeof(path), "%s/config.json", dir);
    if (aq_checkpoint_open(&s.files, dir, &err) < 0 ||
        aq_json_read_file(&config, path, 1 << 20, &err) < 0)
        stop(dir, err.text);
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
