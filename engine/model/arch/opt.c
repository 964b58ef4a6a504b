/* SPDX-License-Identifier: Apache-2.0
 * OPT: Zhang et al., "OPT: Open Pre-trained Transformer Language Models", arXiv 2205.01068; tensor
 * names and the order of operations as in transformers' modeling_opt.py.  Pre-norm sizes compute x
 * + attn(LN(x)) and x + fc2(act(fc1(LN(x)))); the 350m size puts the norm after each residual
 * addition, has no final norm, and projects its narrow embedding up and the last hidden state down.
 */
#include "engine/model/arch/opt.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    OPT_POSITION_OFFSET = 2, /* position p uses row p + 2: padding_idx + 1 */
    OPT_MATRIX_MAX = 4,      /* of a step: q, k, v, out */
    OPT_VECTOR_MAX = 4,      /* norm weight and bias, biases of q k v and of out */
};
#define OPT_NORM_EPS 1e-5f

static enum aq_step_activation step_activation(enum aq_activation a)
{
    switch (a) {
    case AQ_ACT_RELU: return AQ_STEP_ACT_RELU;
    case AQ_ACT_GELU: return AQ_STEP_ACT_GELU;
    case AQ_ACT_GELU_TANH: return AQ_STEP_ACT_GELU_TANH;
    case AQ_ACT_SILU: return AQ_STEP_ACT_SILU;
    default: return AQ_STEP_ACT_NONE;
    }
}

static uint8_t add_matrix(struct aq_step_desc *s, const char *prefix, const char *name,
                          uint32_t rows, uint32_t k)
{
    struct aq_matrix_desc *m = &s->matrix[s->matrix_count];
    snprintf(m->name, sizeof(m->name), "%s%s", prefix, name);
    m->rows = rows;
    m->k = k;
    return (uint8_t)s->matrix_count++;
}

/* A vector of one part; absent tensors keep their count and are filled with `fill`. */
static int8_t add_vector(struct aq_step_desc *s, const char *prefix, const char *name,
                         uint32_t count, bool present, float fill)
{
    struct aq_vector_desc *v = &s->vector[s->vector_count];
    if (present)
        snprintf(v->part[0].name, sizeof(v->part[0].name), "%s%s", prefix, name);
    v->part[0].count = count;
    v->part_count = 1;
    v->count = count;
    v->fill = fill;
    return (int8_t)s->vector_count++;
}

static struct aq_prim *add_prim(struct aq_prim_list *list, enum aq_prim_kind kind,
                                enum aq_register src, enum aq_register dst)
{
    struct aq_prim *p = &list->prim[list->count++];
    *p = (struct aq_prim){.kind = kind, .src = src, .dst = dst, .weight = -1, .bias = -1};
    return p;
}

static void add_norm(struct aq_step_desc *s, struct aq_prim_list *list,
                     const struct aq_model_config *c, const char *prefix, const char *name,
                     enum aq_register dst)
{
    char part[AQ_NAME_MAX / 2];
    struct aq_prim *p = add_prim(list, AQ_PRIM_NORM, AQ_REG_HIDDEN, dst);
    p->norm = AQ_STEP_NORM_LAYER;
    p->eps = OPT_NORM_EPS;
    if (!c->layer_norm_elementwise_affine)
        return;
    snprintf(part, sizeof(part), "%s.weight", name);
    p->weight = add_vector(s, prefix, part, c->hidden_size, true, 1.0f);
    snprintf(part, sizeof(part), "%s.bias", name);
    p->bias = add_vector(s, prefix, part, c->hidden_size, true, 0.0f);
}

static void add_cast(struct aq_prim_list *list)
{
    add_prim(list, AQ_PRIM_NORM, AQ_REG_HIDDEN, AQ_REG_NORM)->norm = AQ_STEP_NORM_CAST;
}

static struct aq_prim *add_product(struct aq_prim_list *list, uint8_t matrix, enum aq_register src,
                                   enum aq_register dst)
{
    struct aq_prim *p = add_prim(list, AQ_PRIM_PRODUCT, src, dst);
    p->matrix[0] = matrix;
    p->matrix_count = 1;
    p->accumulate = dst == AQ_REG_HIDDEN;
    return p;
}

static void embed_step(struct aq_step_desc *s, const struct aq_model_config *c)
{
    s->kind = AQ_STEP_EMBED;
    uint32_t width = c->word_embed_proj_dim;
    uint8_t tokens = add_matrix(s, "", "embed_tokens.weight", c->vocab_size, width);
    uint8_t positions = add_matrix(s, "", "embed_positions.weight",
                                   c->max_positions + OPT_POSITION_OFFSET, c->hidden_size);
    s->matrix[tokens].vocabulary = true;
    s->matrix[positions].table = true;
    bool projected = width != c->hidden_size;
    struct aq_prim *p = add_prim(&s->half[0], AQ_PRIM_GATHER, AQ_REG_NONE,
                                 projected ? AQ_REG_EMBED : AQ_REG_HIDDEN);
    p->matrix[0] = tokens;
    p->matrix_count = 1;
    if (projected) {
        uint8_t in = add_matrix(s, "", "project_in.weight", c->hidden_size, width);
        add_product(&s->half[0], in, AQ_REG_EMBED, AQ_REG_HIDDEN)->accumulate = false;
    }
    p = add_prim(&s->half[0], AQ_PRIM_POSITION, AQ_REG_NONE, AQ_REG_HIDDEN);
    p->matrix[0] = positions;
    p->matrix_count = 1;
}

static void attention_step(struct aq_step_desc *s, const struct aq_model_config *c, uint32_t layer)
{
    static const char *const qkv[] = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"};
    char prefix[AQ_NAME_MAX / 4], name[AQ_NAME_MAX / 2];
    uint32_t h = c->hidden_size;
    snprintf(prefix, sizeof(prefix), "layers.%u.", layer);
    s->kind = AQ_STEP_ATTENTION;
    s->layer = layer;
    if (c->do_layer_norm_before)
        add_norm(s, &s->half[0], c, prefix, "self_attn_layer_norm", AQ_REG_NORM);
    else
        add_cast(&s->half[0]);
    struct aq_prim *p = add_prim(&s->half[0], AQ_PRIM_PRODUCT, AQ_REG_NORM, AQ_REG_QKV);
    for (uint32_t i = 0; i < AQ_ARRAY_LEN(qkv); i++) {
        snprintf(name, sizeof(name), "%s.weight", qkv[i]);
        p->matrix[i] = add_matrix(s, prefix, name, h, h);
    }
    p->matrix_count = AQ_ARRAY_LEN(qkv);
    if (c->enable_bias) {
        struct aq_vector_desc *v = &s->vector[s->vector_count];
        for (uint32_t i = 0; i < AQ_ARRAY_LEN(qkv); i++) {
            snprintf(v->part[i].name, AQ_NAME_MAX, "layers.%u.%s.bias", layer, qkv[i]);
            v->part[i].count = h;
        }
        v->part_count = AQ_ARRAY_LEN(qkv);
        v->count = 3 * h;
        p->bias = (int8_t)s->vector_count++;
    }
    uint8_t out = add_matrix(s, prefix, "self_attn.out_proj.weight", h, h);
    p = add_product(&s->half[1], out, AQ_REG_ATTENTION, AQ_REG_HIDDEN);
    if (c->enable_bias)
        p->bias = add_vector(s, prefix, "self_attn.out_proj.bias", h, true, 0.0f);
    if (!c->do_layer_norm_before)
        add_norm(s, &s->half[1], c, prefix, "self_attn_layer_norm", AQ_REG_HIDDEN);
}

static void mlp_step(struct aq_step_desc *s, const struct aq_model_config *c, uint32_t layer)
{
    char prefix[AQ_NAME_MAX / 4];
    snprintf(prefix, sizeof(prefix), "layers.%u.", layer);
    s->kind = AQ_STEP_MLP;
    s->layer = layer;
    if (c->do_layer_norm_before)
        add_norm(s, &s->half[0], c, prefix, "final_layer_norm", AQ_REG_NORM);
    else
        add_cast(&s->half[0]);
    uint8_t fc1 = add_matrix(s, prefix, "fc1.weight", c->ffn_dim, c->hidden_size);
    uint8_t fc2 = add_matrix(s, prefix, "fc2.weight", c->hidden_size, c->ffn_dim);
    struct aq_prim *p = add_product(&s->half[0], fc1, AQ_REG_NORM, AQ_REG_INNER);
    p->activation = step_activation(c->activation);
    if (c->enable_bias)
        p->bias = add_vector(s, prefix, "fc1.bias", c->ffn_dim, true, 0.0f);
    p = add_product(&s->half[1], fc2, AQ_REG_INNER, AQ_REG_HIDDEN);
    if (c->enable_bias)
        p->bias = add_vector(s, prefix, "fc2.bias", c->hidden_size, true, 0.0f);
    if (!c->do_layer_norm_before)
        add_norm(s, &s->half[1], c, prefix, "final_layer_norm", AQ_REG_HIDDEN);
}

static void head_step(struct aq_step_desc *s, const struct aq_model_config *c)
{
    s->kind = AQ_STEP_HEAD;
    uint32_t width = c->word_embed_proj_dim;
    if (c->do_layer_norm_before && !c->remove_final_layer_norm)
        add_norm(s, &s->half[0], c, "", "final_layer_norm", AQ_REG_NORM);
    else
        add_cast(&s->half[0]);
    enum aq_register from = AQ_REG_NORM;
    if (width != c->hidden_size) {
        uint8_t out = add_matrix(s, "", "project_out.weight", width, c->hidden_size);
        add_product(&s->half[0], out, AQ_REG_NORM, AQ_REG_EMBED);
        from = AQ_REG_EMBED;
    }
    uint8_t head =
        add_matrix(s, "", c->tie_word_embeddings ? "embed_tokens.weight" : "lm_head.weight",
                   c->vocab_size, width);
    s->matrix[head].vocabulary = true;
    add_product(&s->half[0], head, from, AQ_REG_LOGITS);
}

int aq_opt_steps(struct aq_model_steps *ret, const struct aq_model_config *c, struct aq_err *reterr)
{
    struct aq_model_steps m = {
        .layers = c->layers,
        .hidden = c->hidden_size,
        .inner = c->ffn_dim,
        .embed_width = c->word_embed_proj_dim,
        .vocab = c->vocab_size,
        .heads = c->heads,
        .kv_heads = c->heads,
        .head_dim = c->hidden_size / c->heads,
        .context = c->max_positions,
        .position_offset = OPT_POSITION_OFFSET,
    };
    m.attention_scale = 1.0f / __builtin_sqrtf((float)m.head_dim);
    int rc = aq_steps_open(&m, 2 * c->layers + 2, OPT_MATRIX_MAX, OPT_VECTOR_MAX, reterr);
    if (rc < 0)
        return rc;
    embed_step(&m.step[0], c);
    for (uint32_t layer = 0; layer < c->layers; layer++) {
        attention_step(&m.step[1 + 2 * layer], c, layer);
        mlp_step(&m.step[2 + 2 * layer], c, layer);
    }
    head_step(&m.step[m.step_count - 1], c);
    aq_steps_finish(&m);
    *ret = m;
    return 0;
}

/* Published prefixes: "model.decoder." (125m, 1.3b, 2.7b, 66b), "decoder." (350m, 6.7b, 13b, 30b);
 * bare names in stores.  Metaseq's own names for the last norm and the projections differ.  lm_head
 * stands outside. */
bool aq_opt_tensor_name(const char *canonical, uint32_t variant, char *text)
{
    static const char *const prefixes[] = {"model.decoder.", "decoder.", "", "model."};
    static const char *const aliases[][2] = {
        {"final_layer_norm.", "layer_norm."},
        {"project_in.", "project_in_dim."},
        {"project_out.", "project_out_dim."},
        {"lm_head.", "output_projection."},
    };
    enum { PREFIXES = sizeof(prefixes) / sizeof(prefixes[0]) };
    if (variant < PREFIXES) {
        snprintf(text, 2 * AQ_NAME_MAX, "%s%s", prefixes[variant], canonical);
        return true;
    }
    if (variant >= 2 * PREFIXES)
        return false;
    for (size_t i = 0; i < AQ_ARRAY_LEN(aliases); i++) {
        size_t n = strlen(aliases[i][0]);
        if (strncmp(canonical, aliases[i][0], n) == 0) {
            snprintf(text, 2 * AQ_NAME_MAX, "%s%s%s", prefixes[variant - PREFIXES], aliases[i][1],
                     canonical + n);
            return true;
        }
    }
    return false;
}
