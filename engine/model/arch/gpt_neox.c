/* SPDX-License-Identifier: Apache-2.0
 * GPT-NeoX: Black et al., arXiv 2204.06745, and Pythia, arXiv 2304.01373; tensor names and order of
 * operations as in transformers' modeling_gpt_neox.py.  Layer norms with biases, and rotary
 * positions of a part of each head.  Attention and MLP read the same hidden state, x + attn(ln1(x))
 * + mlp(ln2(x)), or one after the other. */
#include "engine/model/arch/compose.h"
#include "engine/model/arch/rope.h"
#include "engine/model/arch/rows.h"

enum {
    MATRIX_MAX = 6, /* of a step: q, k, v, dense, and both of the MLP */
    VECTOR_MAX = 8, /* two norms of two each, biases of q k v, of dense and of both of the MLP */
};

/* ---- steps ---- */

/* The tensor's rows are those of q, k and v of the first head, then of the second, ... */
static struct aq_compose_part part_of(const struct aq_model_config *c, const char *word,
                                      uint32_t place)
{
    uint32_t d = c->head_dim, rows = c->heads * d;
    return (struct aq_compose_part){.name = "attention.query_key_value",
                                    .word = word,
                                    .rows = rows,
                                    .from = {place * d, d, 3 * d, 3 * rows}};
}

static void add_inner(struct aq_compose *at)
{
    const struct aq_model_config *c = at->config;
    aq_compose_product_of(at, "mlp.dense_h_to_4h", c->intermediate_size, c->mlp_bias, AQ_REG_NORM,
                          AQ_REG_INNER)
        ->activation = c->activation;
}

static void add_outer(struct aq_compose *at)
{
    const struct aq_model_config *c = at->config;
    aq_compose_product_of(at, "mlp.dense_4h_to_h", c->hidden_size, c->mlp_bias, AQ_REG_INNER,
                          AQ_REG_HIDDEN);
}

static void attention_step(struct aq_step_desc *s, const struct aq_model_config *c, uint32_t layer)
{
    struct aq_compose at = aq_compose_step(s, c, AQ_STEP_ATTENTION, layer);
    const struct aq_compose_part qkv[] = {part_of(c, "q", 0), part_of(c, "k", 1),
                                          part_of(c, "v", 2)};
    aq_compose_norm(&at, "input_layernorm", AQ_REG_NORM);
    aq_compose_product(&at, qkv, AQ_ARRAY_LEN(qkv), c->qkv_bias, AQ_REG_NORM, AQ_REG_QKV);
    aq_compose_prim(&at, AQ_PRIM_ROTATE, AQ_REG_QKV, AQ_REG_QKV);
    at.list = &s->half[1];
    if (c->parallel_residual) /* before HIDDEN changes, so that both norms read the same */
        aq_compose_norm(&at, "post_attention_layernorm", AQ_REG_NORM);
    aq_compose_product_of(&at, "attention.dense", c->hidden_size, c->out_bias, AQ_REG_ATTENTION,
                          AQ_REG_HIDDEN);
    if (!c->parallel_residual)
        return;
    add_inner(&at);
    add_outer(&at);
}

static void mlp_step(struct aq_step_desc *s, const struct aq_model_config *c, uint32_t layer)
{
    struct aq_compose at = aq_compose_step(s, c, AQ_STEP_MLP, layer);
    aq_compose_norm(&at, "post_attention_layernorm", AQ_REG_NORM);
    add_inner(&at);
    at.list = &s->half[1];
    add_outer(&at);
}

static int gpt_neox_steps(struct aq_model_steps *ret, const struct aq_model_config *c,
                          struct aq_err *reterr)
{
    struct aq_model_steps m;
    uint32_t each = c->parallel_residual ? 1 : 2;
    int rc = aq_compose_open(&m, c, each * c->layers + 2, MATRIX_MAX, VECTOR_MAX, reterr);
    if (rc < 0)
        return rc;
    struct aq_compose embed = aq_compose_step(&m.step[0], c, AQ_STEP_EMBED, 0);
    aq_compose_tokens(&embed, AQ_REG_HIDDEN);
    for (uint32_t layer = 0; layer < c->layers; layer++) {
        attention_step(&m.step[1 + each * layer], c, layer);
        if (!c->parallel_residual)
            mlp_step(&m.step[2 + each * layer], c, layer);
    }
    struct aq_compose head = aq_compose_step(&m.step[m.step_count - 1], c, AQ_STEP_HEAD, 0);
    aq_compose_norm(&head, "final_layer_norm", AQ_REG_NORM);
    aq_compose_head(&head, AQ_REG_NORM);
    aq_steps_finish(&m);
    *ret = m;
    return 0;
}

/* ---- config.json ---- */

/* Defaults of absent keys are those of transformers' GPTNeoXConfig. */
static int gpt_neox_config(struct aq_model_config *c, const struct aq_config_keys *keys)
{
    static const struct aq_config_place eps_place = {.key = "layer_norm_eps"};
    static const struct aq_rope_defaults rope = {.share = 0.25};
    double eps;
    bool attention_bias;
    const struct aq_config_size_key sizes[] = {
        {"vocab_size", AQ_CONFIG_VOCAB_MAX, &c->vocab_size},
        {"hidden_size", AQ_CONFIG_WIDTH_MAX, &c->hidden_size},
        {"intermediate_size", AQ_CONFIG_WIDTH_MAX, &c->intermediate_size},
        {"num_hidden_layers", AQ_CONFIG_LAYERS_MAX, &c->layers},
        {"num_attention_heads", AQ_CONFIG_WIDTH_MAX, &c->heads},
        {"max_position_embeddings", AQ_CONFIG_POSITIONS_MAX, &c->max_positions},
    };
    const struct aq_config_switch_key switches[] = {
        {"use_parallel_residual", true, &c->parallel_residual},
        {"attention_bias", true, &attention_bias},
        {"tie_word_embeddings", false, &c->tie_word_embeddings},
    };
    int rc = aq_config_sizes(keys, sizes, AQ_ARRAY_LEN(sizes));
    rc = rc < 0 ? rc : aq_config_even_heads(keys, c);
    rc = rc < 0 ? rc : aq_config_switches(keys, switches, AQ_ARRAY_LEN(switches));
    rc = rc < 0 ? rc : aq_config_number(keys, &eps_place, 1, 0, 1, 1e-5, &eps);
    rc = rc < 0 ? rc : aq_config_activation(keys, "hidden_act", "gelu", &c->activation);
    rc = rc < 0 ? rc : aq_rope_read(c, keys, &rope);
    if (rc < 0)
        return rc;
    c->embed_width = c->hidden_size;
    c->norm = AQ_NORM_LAYER;
    c->norm_eps = (float)eps;
    c->norm_first = c->final_norm = c->norm_affine = true;
    c->qkv_bias = c->out_bias = attention_bias;
    c->mlp_bias = true;
    return 0;
}

/* ---- the row ---- */

static const char *const prefixes[] = {"gpt_neox.", "", NULL};
static const struct aq_arch_alias aliases[] = {{NULL, NULL}};
/* Masks and frequencies: buffers of older versions of transformers. */
static const char *const ignored[] = {".attention.bias", ".attention.masked_bias",
                                      ".rotary_emb.inv_freq", NULL};
static const char *const residual_writers[] = {".attention.dense.weight",
                                               ".mlp.dense_4h_to_h.weight", NULL};

const struct aq_arch aq_arch_gpt_neox = {
    .name = "gpt_neox",
    .bos_id = 0,
    .eos_id = 2,
    .pad_id = -1,
    .read_config = gpt_neox_config,
    .steps = gpt_neox_steps,
    .prefixes = prefixes,
    .aliases = aliases,
    .tokens = "embed_in.weight",
    .head = "embed_out.weight",
    .ignored = ignored,
    .residual_writers = residual_writers,
};
