/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/random_model.h"

#include "base/prng.h"
#include "tests/checkpoint_files.h"
#include "tests/test.h"

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

struct tensors {
    struct bytes header, data;
    uint64_t seed, count;
    const char *prefix; /* of the names */
};

/* rows 0: a vector. */
static void add_tensor(struct tensors *t, const char *name, uint32_t rows, uint32_t cols,
                       float mean, float deviation)
{
    char text[256], shape[64];
    size_t from = t->data.count;
    if (rows)
        snprintf(shape, sizeof(shape), "%u,%u", rows, cols);
    else
        snprintf(shape, sizeof(shape), "%u", cols);
    for (uint64_t i = 0; i < (uint64_t)(rows ? rows : 1) * cols; i++) {
        float x = mean + deviation * aq_prng_normal(t->seed, t->count, i);
        bytes_add(&t->data, &x, sizeof(x));
    }
    snprintf(text, sizeof(text),
             "%s\"%s%s\":{\"dtype\":\"F32\",\"shape\":[%s],\"data_offsets\":[%zu,%zu]}",
             t->count++ ? "," : "{", t->prefix, name, shape, from, t->data.count);
    bytes_text(&t->header, text);
}

static void add_layer_tensor(struct tensors *t, uint32_t layer, const char *name, uint32_t rows,
                             uint32_t cols, float mean, float deviation, bool bias)
{
    char full[128];
    snprintf(full, sizeof(full), "layers.%u.%s.weight", layer, name);
    add_tensor(t, full, rows, cols, mean, deviation);
    snprintf(full, sizeof(full), "layers.%u.%s.bias", layer, name);
    if (bias)
        add_tensor(t, full, 0, rows ? rows : cols, 0, 0.1f);
}

static void add_opt_layer(struct tensors *t, const struct random_model *s, uint32_t l)
{
    uint32_t d = s->hidden, inner = 2 * d;
    float each = 1 / sqrtf((float)d), sharp = sqrtf(s->sharpness) * each;
    add_layer_tensor(t, l, "self_attn.q_proj", d, d, 0, sharp, true);
    add_layer_tensor(t, l, "self_attn.k_proj", d, d, 0, sharp, true);
    add_layer_tensor(t, l, "self_attn.v_proj", d, d, 0, each, true);
    add_layer_tensor(t, l, "self_attn.out_proj", d, d, 0, each, true);
    add_layer_tensor(t, l, "self_attn_layer_norm", 0, d, 1, 0.1f, true);
    add_layer_tensor(t, l, "final_layer_norm", 0, d, 1, 0.1f, true);
    add_layer_tensor(t, l, "fc1", inner, d, 0, each, true);
    add_layer_tensor(t, l, "fc2", d, inner, 0, each, true);
}

/* LLaMA's names; Qwen2 has biases of q, k and v, Qwen3 norms of their heads, which make q and k
 * sharp. */
static void add_llama_layer(struct tensors *t, const struct random_model *s, uint32_t l)
{
    uint32_t d = s->hidden, inner = 2 * d, q = s->heads * s->head_dim;
    uint32_t kv = s->kv_heads * s->head_dim;
    float each = 1 / sqrtf((float)d), sharp = sqrtf(s->sharpness);
    bool normed = s->family == RANDOM_QWEN3, bias = s->family == RANDOM_QWEN2;
    add_layer_tensor(t, l, "self_attn.q_proj", q, d, 0, (normed ? 1 : sharp) * each, bias);
    add_layer_tensor(t, l, "self_attn.k_proj", kv, d, 0, (normed ? 1 : sharp) * each, bias);
    add_layer_tensor(t, l, "self_attn.v_proj", kv, d, 0, each, bias);
    add_layer_tensor(t, l, "self_attn.o_proj", d, q, 0, 1 / sqrtf((float)q), false);
    if (normed) {
        add_layer_tensor(t, l, "self_attn.q_norm", 0, s->head_dim, sharp, 0.1f * sharp, false);
        add_layer_tensor(t, l, "self_attn.k_norm", 0, s->head_dim, sharp, 0.1f * sharp, false);
    }
    add_layer_tensor(t, l, "input_layernorm", 0, d, 1, 0.1f, false);
    add_layer_tensor(t, l, "post_attention_layernorm", 0, d, 1, 0.1f, false);
    add_layer_tensor(t, l, "mlp.gate_proj", inner, d, 0, each, false);
    add_layer_tensor(t, l, "mlp.up_proj", inner, d, 0, each, false);
    add_layer_tensor(t, l, "mlp.down_proj", d, inner, 0, 1 / sqrtf((float)inner), false);
}

static void add_neox_layer(struct tensors *t, const struct random_model *s, uint32_t l)
{
    uint32_t d = s->hidden, inner = 2 * d;
    float each = 1 / sqrtf((float)d), sharp = sqrtf(s->sharpness) * each;
    add_layer_tensor(t, l, "attention.query_key_value", 3 * d, d, 0, sharp, true);
    add_layer_tensor(t, l, "attention.dense", d, d, 0, each, true);
    add_layer_tensor(t, l, "input_layernorm", 0, d, 1, 0.1f, true);
    add_layer_tensor(t, l, "post_attention_layernorm", 0, d, 1, 0.1f, true);
    add_layer_tensor(t, l, "mlp.dense_h_to_4h", inner, d, 0, each, true);
    add_layer_tensor(t, l, "mlp.dense_4h_to_h", d, inner, 0, each, true);
}

/* What stands outside of layers, and keys of config.json, by family; OPT's head is tied. */
static const struct family_names {
    const char *prefix, *tokens, *norm, *head, *config;
    bool norm_bias;
    void (*add_layer)(struct tensors *t, const struct random_model *s, uint32_t l);
} names_of[] = {
    [RANDOM_OPT] = {"model.decoder.", "embed_tokens.weight", "final_layer_norm", NULL,
                    "\"model_type\": \"opt\", \"do_layer_norm_before\": true, "
                    "\"activation_function\": \"relu\"",
                    true, add_opt_layer},
    [RANDOM_LLAMA] =
        {"model.", "embed_tokens.weight", "norm", "lm_head.weight",
         "\"model_type\": \"llama\", \"rms_norm_eps\": 1e-5, \"hidden_act\": \"silu\", "
         "\"rope_theta\": 500.0",
         false, add_llama_layer},
    [RANDOM_MISTRAL] = {"model.", "embed_tokens.weight", "norm", "lm_head.weight",
                        "\"model_type\": \"mistral\", \"rms_norm_eps\": 1e-5, "
                        "\"hidden_act\": \"silu\", \"rope_theta\": 10000.0",
                        false, add_llama_layer},
    [RANDOM_QWEN2] =
        {"model.", "embed_tokens.weight", "norm", "lm_head.weight",
         "\"model_type\": \"qwen2\", \"rms_norm_eps\": 1e-6, \"hidden_act\": \"silu\", "
         "\"rope_theta\": 10000.0",
         false, add_llama_layer},
    [RANDOM_QWEN3] =
        {"model.", "embed_tokens.weight", "norm", "lm_head.weight",
         "\"model_type\": \"qwen3\", \"rms_norm_eps\": 1e-6, \"hidden_act\": \"silu\", "
         "\"rope_theta\": 10000.0, \"attention_bias\": false",
         false, add_llama_layer},
    [RANDOM_NEOX] =
        {"gpt_neox.", "embed_in.weight", "final_layer_norm", "embed_out.weight",
         "\"model_type\": \"gpt_neox\", \"layer_norm_eps\": 1e-5, \"hidden_act\": \"gelu\", "
         "\"rotary_pct\": 0.25, \"rotary_emb_base\": 100, \"use_parallel_residual\": true",
         true, add_neox_layer},
};

static void write_layer_types(FILE *f, const struct random_model *s)
{
    fprintf(f, "\"layer_types\": [");
    for (uint32_t l = 0; l < s->layers; l++)
        fprintf(f, "%s\"%s\"", l ? ", " : "",
                s->full_layers >> l & 1 ? "full_attention" : "sliding_attention");
    fprintf(f, "], ");
}

static void write_factors(FILE *f, const char *name, const struct random_model *s, double step)
{
    fprintf(f, "\"%s\": [", name);
    for (uint32_t i = 0; i < s->head_dim / 2; i++)
        fprintf(f, "%s%.3f", i ? ", " : "", 1 + step * i);
    fprintf(f, "]");
}

static void write_longrope(FILE *f, const struct random_model *s)
{
    fprintf(f, "\"original_max_position_embeddings\": %u, \"rope_scaling\": {", s->long_from);
    write_factors(f, "short_factor", s, 0.05);
    fprintf(f, ", ");
    write_factors(f, "long_factor", s, 0.5);
    fprintf(f, ", \"type\": \"longrope\"}, ");
}

static void write_config(const char *path, const struct random_model *s)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fprintf(f,
            "{%s, \"vocab_size\": %u, \"hidden_size\": %u, \"num_hidden_layers\": %u, "
            "\"num_attention_heads\": %u, \"max_position_embeddings\": %u, "
            "\"tie_word_embeddings\": %s, \"torch_dtype\": \"float32\", ",
            names_of[s->family].config, s->vocab, s->hidden, s->layers, s->heads, s->context,
            names_of[s->family].head ? "false" : "true");
    if (s->window)
        fprintf(f, "\"sliding_window\": %u, ", s->window);
    if (s->full_layers)
        write_layer_types(f, s);
    if (s->long_from)
        write_longrope(f, s);
    if (s->family == RANDOM_OPT)
        fprintf(f, "\"ffn_dim\": %u, \"word_embed_proj_dim\": %u}", 2 * s->hidden, s->hidden);
    else if (s->family == RANDOM_NEOX)
        fprintf(f, "\"intermediate_size\": %u}", 2 * s->hidden);
    else
        fprintf(f, "\"intermediate_size\": %u, \"num_key_value_heads\": %u, \"head_dim\": %u}",
                2 * s->hidden, s->kv_heads, s->head_dim);
    fclose(f);
}

void random_model_write(const char *dir, const struct random_model *s, uint64_t seed)
{
    const struct family_names *n = &names_of[s->family];
    char name[512];
    struct tensors t = {.seed = seed, .prefix = n->prefix};
    add_tensor(&t, n->tokens, s->vocab, s->hidden, 0, 1);
    if (s->family == RANDOM_OPT)
        add_tensor(&t, "embed_positions.weight", s->context + 2, s->hidden, 0, 0.7f);
    snprintf(name, sizeof(name), "%s.weight", n->norm);
    add_tensor(&t, name, 0, s->hidden, 1, 0.1f);
    snprintf(name, sizeof(name), "%s.bias", n->norm);
    if (n->norm_bias)
        add_tensor(&t, name, 0, s->hidden, 0, 0.1f);
    for (uint32_t l = 0; l < s->layers; l++)
        n->add_layer(&t, s, l);
    t.prefix = "";
    if (n->head)
        add_tensor(&t, n->head, s->vocab, s->hidden, 0, 1);
    bytes_text(&t.header, "}");
    bytes_u8(&t.header, 0);
    snprintf(name, sizeof(name), "rm -rf '%s' && mkdir '%s'", dir, dir);
    assert_int_equal(system(name), 0);
    snprintf(name, sizeof(name), "%s/model.safetensors", dir);
    int fd = open(name, O_CREAT | O_RDWR, 0600);
    assert_true(fd >= 0);
    safetensors_write(fd, (const char *)t.header.data, t.data.data, t.data.count);
    close(fd);
    snprintf(name, sizeof(name), "%s/config.json", dir);
    write_config(name, s);
    bytes_free(&t.header);
    bytes_free(&t.data);
}
