/* SPDX-License-Identifier: Apache-2.0
 * OPT: Zhang et al., "OPT: Open Pre-trained Transformer Language Models", arXiv 2205.01068; tensor
 * names and the order of operations as in transformers' modeling_opt.py.  Pre-norm sizes compute x
 * + attn(LN(x)) and x + fc2(act(fc1(LN(x)))); the 350m size puts the norm after each residual
 * addition, has no final norm, and projects its narrow embedding up and the last hidden state down.
 */
#include "engine/model/arch/compose.h"
#include "engine/model/arch/rows.h"

#include <stddef.h>

enum {
    OPT_POSITION_OFFSET = 2, /* position p uses row p + 2: padding_idx + 1 */
    OPT_MATRIX_MAX = 4,      /* of a step: q, k, v, out */
    OPT_VECTOR_MAX = 4,      /* norm weight and bias, biases of q k v and of out */
};
#define OPT_NORM_EPS 1e-5f

/* ---- steps ---- */

static void embed_step(struct aq_step_desc *s, const struct aq_model_config *c)
{
    struct aq_compose at = aq_compose_step(s, c, AQ_STEP_EMBED, 0);
    bool projected = c->embed_width != c->hidden_size;
    aq_compose_tokens(&at, projected ? AQ_REG_EMBED : AQ_REG_HIDDEN);
    uint8_t positions = aq_compose_matrix(&at, "embed_positions.weight",
                                          c->max_positions + OPT_POSITION_OFFSET, c->hidden_size);
    s->matrix[positions].table = true;
    if (projected)
        aq_compose_product_of(&at, "project_in", c->hidden_size, false, AQ_REG_EMBED, AQ_REG_HIDDEN)
            ->combine = AQ_COMBINE_SET;
    aq_compose_rows(&at, AQ_PRIM_POSITION, positions, AQ_REG_HIDDEN);
}

/* In front of attention and MLP; where the norm is behind them, there is only a change of type. */
static void first_norm(struct aq_compose *at, const char *name)
{
    if (at->config->norm_first)
        aq_compose_norm(at, name, AQ_REG_NORM);
    else
        aq_compose_cast(at);
}

static void attention_step(struct aq_step_desc *s, const struct aq_model_config *c, uint32_t layer)
{
    static const char norm[] = "self_attn_layer_norm";
    struct aq_compose at = aq_compose_step(s, c, AQ_STEP_ATTENTION, layer);
    uint32_t h = c->hidden_size;
    const struct aq_compose_part qkv[] = {{.name = "self_attn.q_proj", .rows = h},
                                          {.name = "self_attn.k_proj", .rows = h},
                                          {.name = "self_attn.v_proj", .rows = h}};
    first_norm(&at, norm);
    aq_compose_product(&at, qkv, AQ_ARRAY_LEN(qkv), c->qkv_bias, AQ_REG_NORM, AQ_REG_QKV);
    at.list = &s->half[1];
    aq_compose_product_of(&at, "self_attn.out_proj", h, c->out_bias, AQ_REG_ATTENTION,
                          AQ_REG_HIDDEN);
    if (!c->norm_first)
        aq_compose_norm(&at, norm, AQ_REG_HIDDEN);
}

static void mlp_step(struct aq_step_desc *s, const struct aq_model_config *c, uint32_t layer)
{
    static const char norm[] = "final_layer_norm";
    struct aq_compose at = aq_compose_step(s, c, AQ_STEP_MLP, layer);
    first_norm(&at, norm);
    aq_compose_product_of(&at, "fc1", c->intermediate_size, c->mlp_bias, AQ_REG_NORM, AQ_REG_INNER)
        ->activation = c->activation;
    at.list = &s->half[1];
    aq_compose_product_of(&at, "fc2", c->hidden_size, c->mlp_bias, AQ_REG_INNER, AQ_REG_HIDDEN);
    if (!c->norm_first)
        aq_compose_norm(&at, norm, AQ_REG_HIDDEN);
}

static void head_step(struct aq_step_desc *s, const struct aq_model_config *c)
{
    struct aq_compose at = aq_compose_step(s, c, AQ_STEP_HEAD, 0);
    if (c->norm_first && c->final_norm)
        aq_compose_norm(&at, "final_layer_norm", AQ_REG_NORM);
    else
        aq_compose_cast(&at);
    bool projected = c->embed_width != c->hidden_size;
    if (projected)
        aq_compose_product_of(&at, "project_out", c->embed_width, false, AQ_REG_NORM, AQ_REG_EMBED);
    aq_compose_head(&at, projected ? AQ_REG_EMBED : AQ_REG_NORM);
}

static int opt_steps(struct aq_model_steps *ret, const struct aq_model_config *c,
                     struct aq_err *reterr)
{
    struct aq_model_steps m;
    int rc = aq_compose_open(&m, c, 2 * c->layers + 2, OPT_MATRIX_MAX, OPT_VECTOR_MAX, reterr);
    if (rc < 0)
        return rc;
    m.position_offset = OPT_POSITION_OFFSET;
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

/* Defaults of absent keys are those of transformers' OPTConfig. */
static int opt_config(struct aq_model_config *c, const struct aq_config_keys *keys)
{
    bool no_final_norm = false, bias = true;
    const struct aq_config_size_key sizes[] = {
        {"vocab_size", AQ_CONFIG_VOCAB_MAX, &c->vocab_size},
        {"hidden_size", AQ_CONFIG_WIDTH_MAX, &c->hidden_size},
        {"ffn_dim", AQ_CONFIG_WIDTH_MAX, &c->intermediate_size},
        {"num_hidden_layers", AQ_CONFIG_LAYERS_MAX, &c->layers},
        {"num_attention_heads", AQ_CONFIG_WIDTH_MAX, &c->heads},
        {"max_position_embeddings", AQ_CONFIG_POSITIONS_MAX, &c->max_positions},
    };
    const struct aq_config_switch_key switches[] = {
        {"do_layer_norm_before", true, &c->norm_first},
        {"_remove_final_layer_norm", false, &no_final_norm},
        {"enable_bias", true, &bias},
        {"layer_norm_elementwise_affine", true, &c->norm_affine},
        {"tie_word_embeddings", true, &c->tie_word_embeddings},
    };
    int rc = aq_config_sizes(keys, sizes, AQ_ARRAY_LEN(sizes));
    if (rc == 0)
        rc = aq_config_size_or(keys, "word_embed_proj_dim", c->hidden_size, AQ_CONFIG_WIDTH_MAX,
                               &c->embed_width);
    if (rc == 0)
        rc = aq_config_even_heads(keys, c);
    if (rc == 0)
        rc = aq_config_switches(keys, switches, AQ_ARRAY_LEN(switches));
    if (rc < 0)
        return rc;
    c->norm = AQ_NORM_LAYER;
    c->norm_eps = OPT_NORM_EPS;
    c->final_norm = !no_final_norm;
    c->qkv_bias = c->out_bias = c->mlp_bias = bias;
    return aq_config_activation(keys, "activation_function", "relu", &c->activation);
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
    .tokens = "embed_tokens.weight",
    .head = "lm_head.weight",
    .residual_writers = residual_writers,
};
