/* SPDX-License-Identifier: Apache-2.0
 * OPT: Zhang et al., "OPT: Open Pre-trained Transformer Language Models", arXiv 2205.01068; tensor
 * names and the order of operations as in transformers' modeling_opt.py.  Pre-norm sizes compute x
 * + attn(LN(x)) and x + fc2(act(fc1(LN(x)))); the 350m size puts the norm after each residual
 * addition, has no final norm, and projects its narrow embedding up and the last hidden state down.
 */
#include "engine/model/arch/rows.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    OPT_POSITION_OFFSET = 2, /* position p uses row p + 2: padding_idx + 1 */
    OPT_MATRIX_MAX = 4,      /* of a step: q, k, v, out */
    OPT_VECTOR_MAX = 4,      /* norm weight and bias, biases of q k v and of out */
};
#define OPT_NORM_EPS 1e-5f

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
    p->norm = AQ_NORM_LAYER;
    p->eps = OPT_NORM_EPS;
    if (!c->norm_affine)
        return;
    snprintf(part, sizeof(part), "%s.weight", name);
    p->weight = add_vector(s, prefix, part, c->hidden_size, true, 1.0f);
    snprintf(part, sizeof(part), "%s.bias", name);
    p->bias = add_vector(s, prefix, part, c->hidden_size, true, 0.0f);
}

static void add_cast(struct aq_prim_list *list)
{
    add_prim(list, AQ_PRIM_NORM, AQ_REG_HIDDEN, AQ_REG_NORM)->norm = AQ_NORM_CAST;
}

static struct aq_prim *add_product(struct aq_prim_list *list, uint8_t matrix, enum aq_register src,
                                   enum aq_register dst)
{
    struct aq_prim *p = add_prim(list, AQ_PRIM_PRODUCT, src, dst);
    p->matrix[0] = matrix;
    p->matrix_count = 1;
    p->combine = dst == AQ_REG_HIDDEN ? AQ_COMBINE_ADD : AQ_COMBINE_SET;
    return p;
}

static void embed_step(struct aq_step_desc *s, const struct aq_model_config *c)
{
    s->kind = AQ_STEP_EMBED;
    uint32_t width = c->embed_width;
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
        add_product(&s->half[0], in, AQ_REG_EMBED, AQ_REG_HIDDEN)->combine = AQ_COMBINE_SET;
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
    if (c->norm_first)
        add_norm(s, &s->half[0], c, prefix, "self_attn_layer_norm", AQ_REG_NORM);
    else
        add_cast(&s->half[0]);
    struct aq_prim *p = add_prim(&s->half[0], AQ_PRIM_PRODUCT, AQ_REG_NORM, AQ_REG_QKV);
    for (uint32_t i = 0; i < AQ_ARRAY_LEN(qkv); i++) {
        snprintf(name, sizeof(name), "%s.weight", qkv[i]);
        p->matrix[i] = add_matrix(s, prefix, name, h, h);
    }
    p->matrix_count = AQ_ARRAY_LEN(qkv);
    if (c->bias) {
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
    if (c->bias)
        p->bias = add_vector(s, prefix, "self_attn.out_proj.bias", h, true, 0.0f);
    if (!c->norm_first)
        add_norm(s, &s->half[1], c, prefix, "self_attn_layer_norm", AQ_REG_HIDDEN);
}

static void mlp_step(struct aq_step_desc *s, const struct aq_model_config *c, uint32_t layer)
{
    char prefix[AQ_NAME_MAX / 4];
    snprintf(prefix, sizeof(prefix), "layers.%u.", layer);
    s->kind = AQ_STEP_MLP;
    s->layer = layer;
    if (c->norm_first)
        add_norm(s, &s->half[0], c, prefix, "final_layer_norm", AQ_REG_NORM);
    else
        add_cast(&s->half[0]);
    uint8_t fc1 = add_matrix(s, prefix, "fc1.weight", c->intermediate_size, c->hidden_size);
    uint8_t fc2 = add_matrix(s, prefix, "fc2.weight", c->hidden_size, c->intermediate_size);
    struct aq_prim *p = add_product(&s->half[0], fc1, AQ_REG_NORM, AQ_REG_INNER);
    p->activation = c->activation;
    if (c->bias)
        p->bias = add_vector(s, prefix, "fc1.bias", c->intermediate_size, true, 0.0f);
    p = add_product(&s->half[1], fc2, AQ_REG_INNER, AQ_REG_HIDDEN);
    if (c->bias)
        p->bias = add_vector(s, prefix, "fc2.bias", c->hidden_size, true, 0.0f);
    if (!c->norm_first)
        add_norm(s, &s->half[1], c, prefix, "final_layer_norm", AQ_REG_HIDDEN);
}

static void head_step(struct aq_step_desc *s, const struct aq_model_config *c)
{
    s->kind = AQ_STEP_HEAD;
    uint32_t width = c->embed_width;
    if (c->norm_first && c->final_norm)
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

static int opt_steps(struct aq_model_steps *ret, const struct aq_model_config *c,
                     struct aq_err *reterr)
{
    struct aq_model_steps m = {
        .layers = c->layers,
        .hidden = c->hidden_size,
        .inner = c->intermediate_size,
        .embed_width = c->embed_width,
        .vocab = c->vocab_size,
        .heads = c->heads,
        .kv_heads = c->kv_heads,
        .head_dim = c->head_dim,
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

/* ---- config.json ---- */

static int read_switches(struct aq_model_config *c, const struct aq_config_keys *keys)
{
    bool no_final_norm = false;
    const struct {
        const char *key;
        bool deflt;
        bool *ret;
    } table[] = {
        {"do_layer_norm_before", true, &c->norm_first},
        {"_remove_final_layer_norm", false, &no_final_norm},
        {"enable_bias", true, &c->bias},
        {"layer_norm_elementwise_affine", true, &c->norm_affine},
        {"tie_word_embeddings", true, &c->tie_word_embeddings},
    };
    for (size_t i = 0; i < AQ_ARRAY_LEN(table); i++) {
        int rc = aq_config_switch(keys, table[i].key, table[i].deflt, table[i].ret);
        if (rc < 0)
            return rc;
    }
    c->final_norm = !no_final_norm;
    return 0;
}

/* Defaults of absent keys are those of transformers' OPTConfig. */
static int opt_config(struct aq_model_config *c, const struct aq_config_keys *keys)
{
    const struct {
        const char *key;
        uint32_t max, *ret;
    } sizes[] = {
        {"vocab_size", AQ_CONFIG_VOCAB_MAX, &c->vocab_size},
        {"hidden_size", AQ_CONFIG_WIDTH_MAX, &c->hidden_size},
        {"ffn_dim", AQ_CONFIG_WIDTH_MAX, &c->intermediate_size},
        {"num_hidden_layers", AQ_CONFIG_LAYERS_MAX, &c->layers},
        {"num_attention_heads", AQ_CONFIG_WIDTH_MAX, &c->heads},
        {"max_position_embeddings", AQ_CONFIG_POSITIONS_MAX, &c->max_positions},
    };
    for (size_t i = 0; i < AQ_ARRAY_LEN(sizes); i++) {
        int rc = aq_config_size(keys, sizes[i].key, sizes[i].max, sizes[i].ret);
        if (rc < 0)
            return rc;
    }
    int rc = aq_config_size_or(keys, "word_embed_proj_dim", c->hidden_size, AQ_CONFIG_WIDTH_MAX,
                               &c->embed_width);
    if (rc < 0)
        return rc;
    if (c->hidden_size % c->heads != 0)
        return aq_error(keys->reterr, -ENOEXEC,
                        "%s: 'num_attention_heads': expected a divisor of "
                        "'hidden_size' %u, found %u",
                        keys->what, c->hidden_size, c->heads);
    c->kv_heads = c->heads;
    c->head_dim = c->hidden_size / c->heads;
    if (c->head_dim > AQ_CONFIG_HEAD_DIM_MAX)
        return aq_error(keys->reterr, -ENOEXEC,
                        "%s: 'num_attention_heads': expected heads of at most "
                        "%d values, found %u",
                        keys->what, AQ_CONFIG_HEAD_DIM_MAX, c->head_dim);
    rc = read_switches(c, keys);
    return rc < 0 ? rc : aq_config_activation(keys, "activation_function", "relu", &c->activation);
}

/* ---- the row ---- */

/* Published prefixes: "model.decoder." (125m, 1.3b, 2.7b, 66b), "decoder." (350m, 6.7b, 13b, 30b);
 * bare names in stores. */
static const char *const prefixes[] = {"model.decoder.", "decoder.", "", "model.", NULL};

/* Metaseq's own names for the last norm and the projections.  lm_head stands outside. */
static const struct aq_arch_alias aliases[] = {
    {"final_layer_norm.", "layer_norm."},
    {"project_in.", "project_in_dim."},
    {"project_out.", "project_out_dim."},
    {"lm_head.", "output_projection."},
    {NULL, NULL},
};

static const char *const residual_writers[] = {".out_proj.weight", ".fc2.weight", NULL};

const struct aq_arch aq_arch_opt = {
    .name = "opt",
    .bos_id = 2,
    .eos_id = 2,
    .pad_id = 1,
    .add_bos = true,
    .read_config = opt_config,
    .steps = opt_steps,
    .prefixes = prefixes,
    .aliases = aliases,
    .residual_writers = residual_writers,
};
