/* SPDX-License-Identifier: Apache-2.0
 * LLaMA: Touvron et al., arXiv 2302.13971, and the models that have its list of steps: Mistral
 * (Jiang et al., arXiv 2310.06825), Qwen2 (arXiv 2407.10671), Qwen3 (arXiv 2505.09388), Phi-3
 * (arXiv 2404.14219); tensor names and order of operations as in transformers' modeling files of
 * these names.  x + attn(rms(x)) and x + down(act(gate(rms(x))) * up(rms(x))), rotary positions. */
#include "base/json.h"
#include "engine/model/arch/compose.h"
#include "engine/model/arch/rope.h"
#include "engine/model/arch/rows.h"

#include <string.h>

enum {
    MATRIX_MAX = 4, /* of a step: q, k, v, o */
    VECTOR_MAX = 5, /* norm, biases of q k v and of o, norms of the heads of q and k */
};

/* ---- steps ---- */

static void add_rotation(struct aq_compose *at)
{
    const struct aq_model_config *c = at->config;
    struct aq_prim *p = aq_compose_prim(at, AQ_PRIM_ROTATE, AQ_REG_QKV, AQ_REG_QKV);
    p->eps = c->norm_eps;
    if (!c->head_norms)
        return;
    p->weight = aq_compose_vector(at, "self_attn.q_norm.weight", c->head_dim);
    p->bias = aq_compose_vector(at, "self_attn.k_norm.weight", c->head_dim);
}

static struct aq_compose_part part(const char *name, uint32_t rows)
{
    return (struct aq_compose_part){.name = name, .rows = rows};
}

/* Rows from `first` on of a larger tensor. */
static struct aq_compose_part part_of(const char *name, const char *word, uint32_t first,
                                      uint32_t rows, uint32_t total)
{
    return (struct aq_compose_part){
        .name = name, .word = word, .rows = rows, .from = {first, rows, rows, total}};
}

static void attention_step(struct aq_step_desc *s, const struct aq_model_config *c, uint32_t layer)
{
    static const char fused[] = "self_attn.qkv_proj";
    struct aq_compose at = aq_compose_step(s, c, AQ_STEP_ATTENTION, layer);
    uint32_t q = c->heads * c->head_dim, kv = c->kv_heads * c->head_dim, all = q + 2 * kv;
    const struct aq_compose_part whole[] = {part("self_attn.q_proj", q),
                                            part("self_attn.k_proj", kv),
                                            part("self_attn.v_proj", kv)},
                                 rows[] = {part_of(fused, "q", 0, q, all),
                                           part_of(fused, "k", q, kv, all),
                                           part_of(fused, "v", q + kv, kv, all)};
    s->window = c->windowed[layer] ? c->window : 0;
    aq_compose_norm(&at, "input_layernorm", AQ_REG_NORM);
    aq_compose_product(&at, c->fused ? rows : whole, AQ_ARRAY_LEN(whole), c->qkv_bias, AQ_REG_NORM,
                       AQ_REG_QKV);
    add_rotation(&at);
    at.list = &s->half[1];
    aq_compose_product_of(&at, "self_attn.o_proj", c->hidden_size, c->out_bias, AQ_REG_ATTENTION,
                          AQ_REG_HIDDEN);
}

static void mlp_step(struct aq_step_desc *s, const struct aq_model_config *c, uint32_t layer)
{
    static const char fused[] = "mlp.gate_up_proj";
    struct aq_compose at = aq_compose_step(s, c, AQ_STEP_MLP, layer);
    uint32_t inner = c->intermediate_size;
    const struct aq_compose_part whole[] = {part("mlp.gate_proj", inner),
                                            part("mlp.up_proj", inner)},
                                 rows[] = {part_of(fused, "gate", 0, inner, 2 * inner),
                                           part_of(fused, "up", inner, inner, 2 * inner)},
                                 *pair = c->fused ? rows : whole;
    aq_compose_norm(&at, "post_attention_layernorm", AQ_REG_NORM);
    aq_compose_product(&at, &pair[0], 1, c->mlp_bias, AQ_REG_NORM, AQ_REG_INNER)->activation =
        c->activation;
    aq_compose_product(&at, &pair[1], 1, c->mlp_bias, AQ_REG_NORM, AQ_REG_INNER)->combine =
        AQ_COMBINE_MULTIPLY;
    at.list = &s->half[1];
    aq_compose_product_of(&at, "mlp.down_proj", c->hidden_size, c->mlp_bias, AQ_REG_INNER,
                          AQ_REG_HIDDEN);
}

static int llama_steps(struct aq_model_steps *ret, const struct aq_model_config *c,
                       struct aq_err *reterr)
{
    struct aq_model_steps m;
    int rc = aq_compose_open(&m, c, 2 * c->layers + 2, MATRIX_MAX, VECTOR_MAX, reterr);
    if (rc < 0)
        return rc;
    struct aq_compose embed = aq_compose_step(&m.step[0], c, AQ_STEP_EMBED, 0);
    aq_compose_tokens(&embed, AQ_REG_HIDDEN);
    for (uint32_t layer = 0; layer < c->layers; layer++) {
        attention_step(&m.step[1 + 2 * layer], c, layer);
        mlp_step(&m.step[2 + 2 * layer], c, layer);
    }
    struct aq_compose head = aq_compose_step(&m.step[m.step_count - 1], c, AQ_STEP_HEAD, 0);
    aq_compose_norm(&head, "norm", AQ_REG_NORM);
    aq_compose_head(&head, AQ_REG_NORM);
    aq_steps_finish(&m);
    *ret = m;
    return 0;
}

/* ---- config.json ---- */

/* Which layers have a window, where 'layer_types' does not say. */
enum windows { WINDOWS_NONE, WINDOWS_ALL, WINDOWS_UPPER };

/* What a row's config.json means otherwise than the others'. */
struct habits {
    double eps;        /* absent 'rms_norm_eps' */
    uint32_t head_dim; /* absent 'head_dim'; 0: heads share hidden_size */
    bool bias_keys;    /* 'attention_bias', 'mlp_bias' */
    bool qkv_bias;     /* always there, and no key says so */
    bool head_norms, fused;
    enum windows windows;
    uint32_t window; /* absent 'sliding_window' */
    struct aq_rope_defaults rope;
};

static int read_heads(struct aq_model_config *c, const struct aq_config_keys *keys,
                      const struct habits *h)
{
    uint32_t kv_heads, head_dim = 0;
    int rc = aq_config_size_or(keys, "head_dim", h->head_dim, AQ_CONFIG_HEAD_DIM_MAX, &head_dim);
    if (rc == 0)
        rc = aq_config_size_or(keys, "num_key_value_heads", c->heads, AQ_CONFIG_WIDTH_MAX,
                               &kv_heads);
    if (rc == 0 && !head_dim)
        rc = aq_config_even_heads(keys, c);
    if (rc < 0)
        return rc;
    c->kv_heads = kv_heads;
    c->head_dim = head_dim ? head_dim : c->head_dim;
    if (c->heads % kv_heads != 0)
        return aq_error(keys->reterr, -ENOEXEC,
                        "%s: 'num_key_value_heads': expected a divisor of 'num_attention_heads' "
                        "%u, found %u",
                        keys->what, c->heads, kv_heads);
    if ((uint64_t)c->heads * c->head_dim > AQ_CONFIG_WIDTH_MAX)
        return aq_error(keys->reterr, -ENOEXEC,
                        "%s: 'head_dim': expected at most %d values of %u heads together, found "
                        "%u each",
                        keys->what, AQ_CONFIG_WIDTH_MAX, c->heads, c->head_dim);
    return 0;
}

/* The first files said 'max_sequence_length'; some later ones say that beside the usual key, and
 * mean what their rope_scaling makes of it. */
static int read_positions(struct aq_model_config *c, const struct aq_config_keys *keys)
{
    static const char usual[] = "max_position_embeddings", first[] = "max_sequence_length";
    const json_t *v = json_object_get(keys->root, usual);
    bool old = (!v || json_is_null(v)) && json_object_get(keys->root, first);
    return aq_config_size(keys, old ? first : usual, AQ_CONFIG_POSITIONS_MAX, &c->max_positions);
}

/* One word for each layer. */
static int read_layer_types(struct aq_model_config *c, const struct aq_config_keys *keys,
                            const json_t *types)
{
    static const struct aq_config_place place = {.key = "layer_types"};
    char expected[64];
    snprintf(expected, sizeof(expected), "%u words, one for each layer", c->layers);
    if (json_array_size(types) != c->layers)
        return aq_config_wrong(keys, &place, types, expected);
    for (uint32_t i = 0; i < c->layers; i++) {
        const json_t *type = json_array_get(types, i);
        const char *word = json_is_string(type) ? json_string_value(type) : "";
        c->windowed[i] = strcmp(word, "sliding_attention") == 0;
        if (!c->windowed[i] && strcmp(word, "full_attention") != 0)
            return aq_config_wrong(keys, &place, type, "full_attention or sliding_attention");
        if (c->windowed[i] && !c->window)
            return aq_config_wrong(keys, &place, type,
                                   "full_attention, as no 'sliding_window' is in use");
    }
    return 0;
}

/* 'sliding_window', where it is in use; null: it is not. */
static int read_window(struct aq_model_config *c, const struct aq_config_keys *keys,
                       const struct habits *h)
{
    bool used = h->windows == WINDOWS_ALL;
    const json_t *value = json_object_get(keys->root, "sliding_window");
    int rc = h->windows == WINDOWS_UPPER
                 ? aq_config_switch(keys, "use_sliding_window", false, &used)
                 : 0;
    if (rc < 0 || !used || (value ? json_is_null(value) : !h->window))
        return rc;
    return aq_config_size_or(keys, "sliding_window", h->window, INT32_MAX, &c->window);
}

static int read_windows(struct aq_model_config *c, const struct aq_config_keys *keys,
                        const struct habits *h)
{
    const json_t *types = json_object_get(keys->root, "layer_types");
    uint64_t first = 0;
    int rc = read_window(c, keys, h);
    if (rc == 0 && types && !json_is_null(types)) {
        rc = read_layer_types(c, keys, types);
    } else if (rc == 0 && c->window) {
        if (h->windows == WINDOWS_UPPER)
            rc = aq_json_get_u64(keys->root, "max_window_layers", 28, INT32_MAX, keys->what, &first,
                                 keys->reterr);
        for (uint64_t i = first; rc == 0 && i < c->layers; i++)
            c->windowed[i] = true;
    }
    if (c->window >= c->max_positions) /* hides nothing */
        memset(c->windowed, 0, sizeof(c->windowed));
    if (!memchr(c->windowed, true, sizeof(c->windowed)))
        c->window = 0;
    return rc;
}

static int read_biases(struct aq_model_config *c, const struct aq_config_keys *keys,
                       const struct habits *h)
{
    bool attention = false;
    const struct aq_config_switch_key keys_of[] = {{"attention_bias", false, &attention},
                                                   {"mlp_bias", false, &c->mlp_bias}};
    int rc = h->bias_keys ? aq_config_switches(keys, keys_of, AQ_ARRAY_LEN(keys_of)) : 0;
    c->qkv_bias = attention || h->qkv_bias;
    c->out_bias = attention;
    return rc;
}

static int read_config(struct aq_model_config *c, const struct aq_config_keys *keys,
                       const struct habits *h)
{
    const struct aq_config_size_key sizes[] = {
        {"vocab_size", AQ_CONFIG_VOCAB_MAX, &c->vocab_size},
        {"hidden_size", AQ_CONFIG_WIDTH_MAX, &c->hidden_size},
        {"intermediate_size", AQ_CONFIG_WIDTH_MAX, &c->intermediate_size},
        {"num_hidden_layers", AQ_CONFIG_LAYERS_MAX, &c->layers},
        {"num_attention_heads", AQ_CONFIG_WIDTH_MAX, &c->heads},
    };
    static const struct aq_config_place eps_place = {.key = "rms_norm_eps"};
    double eps;
    int rc = aq_config_sizes(keys, sizes, AQ_ARRAY_LEN(sizes));
    rc = rc < 0 ? rc : read_heads(c, keys, h);
    rc = rc < 0 ? rc : read_positions(c, keys);
    rc = rc < 0 ? rc : read_biases(c, keys, h);
    rc = rc < 0 ? rc : aq_config_number(keys, &eps_place, 1, 0, 1, h->eps, &eps);
    rc =
        rc < 0 ? rc : aq_config_switch(keys, "tie_word_embeddings", false, &c->tie_word_embeddings);
    rc = rc < 0 ? rc : aq_config_activation(keys, "hidden_act", "silu", &c->activation);
    rc = rc < 0 ? rc : aq_rope_read(c, keys, &h->rope);
    rc = rc < 0 ? rc : read_windows(c, keys, h);
    if (rc < 0)
        return rc;
    c->embed_width = c->hidden_size;
    c->norm = AQ_NORM_RMS;
    c->norm_eps = (float)eps;
    c->norm_first = c->final_norm = c->norm_affine = true;
    c->head_norms = h->head_norms;
    c->fused = h->fused;
    return 0;
}

/* Defaults of absent keys are those of transformers' configuration classes. */
static int llama_config(struct aq_model_config *c, const struct aq_config_keys *keys)
{
    return read_config(c, keys, &(const struct habits){.eps = 1e-6, .bias_keys = true});
}

static int mistral_config(struct aq_model_config *c, const struct aq_config_keys *keys)
{
    return read_config(c, keys,
                       &(const struct habits){.eps = 1e-6, .windows = WINDOWS_ALL, .window = 4096});
}

static int qwen2_config(struct aq_model_config *c, const struct aq_config_keys *keys)
{
    return read_config(
        c, keys,
        &(const struct habits){
            .eps = 1e-6, .qkv_bias = true, .windows = WINDOWS_UPPER, .window = 4096});
}

static int qwen3_config(struct aq_model_config *c, const struct aq_config_keys *keys)
{
    return read_config(c, keys,
                       &(const struct habits){.eps = 1e-6,
                                              .head_dim = 128,
                                              .bias_keys = true,
                                              .head_norms = true,
                                              .windows = WINDOWS_UPPER,
                                              .window = 4096});
}

static int phi3_config(struct aq_model_config *c, const struct aq_config_keys *keys)
{
    return read_config(c, keys,
                       &(const struct habits){.eps = 1e-5,
                                              .fused = true,
                                              .windows = WINDOWS_ALL,
                                              .rope = {.original = 4096, .yarn_is_long = true}});
}

/* ---- the rows ---- */

/* The last three are of models of text and pictures, by old and new versions of transformers. */
static const char *const prefixes[] = {
    "model.", "", "language_model.model.", "model.language_model.", "language_model.", NULL,
};
static const struct aq_arch_alias aliases[] = {{NULL, NULL}};
static const char *const ignored[] = {".rotary_emb.inv_freq", NULL};
static const char *const residual_writers[] = {".o_proj.weight", ".down_proj.weight", NULL};

#define SHARED                                                                                     \
    .steps = llama_steps, .prefixes = prefixes, .aliases = aliases,                                \
    .tokens = "embed_tokens.weight", .head = "lm_head.weight", .ignored = ignored,                 \
    .residual_writers = residual_writers

const struct aq_arch aq_arch_llama = {.name = "llama",
                                      .bos_id = 1,
                                      .eos_id = 2,
                                      .pad_id = -1,
                                      .add_bos = true,
                                      .read_config = llama_config,
                                      SHARED};

const struct aq_arch aq_arch_mistral = {.name = "mistral",
                                        .bos_id = 1,
                                        .eos_id = 2,
                                        .pad_id = -1,
                                        .add_bos = true,
                                        .read_config = mistral_config,
                                        SHARED};

const struct aq_arch aq_arch_qwen2 = {
    .name = "qwen2", .bos_id = -1, .eos_id = -1, .pad_id = -1, .read_config = qwen2_config, SHARED};

const struct aq_arch aq_arch_qwen3 = {
    .name = "qwen3", .bos_id = -1, .eos_id = -1, .pad_id = -1, .read_config = qwen3_config, SHARED};

const struct aq_arch aq_arch_phi3 = {.name = "phi3",
                                     .bos_id = 1,
                                     .eos_id = 32000,
                                     .pad_id = 32000,
                                     .read_config = phi3_config,
                                     SHARED};
