/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model/config.h"

#include "base/json.h"

#include <assert.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { CONFIG_BYTES_MAX = 1 << 20 };

/* ---- published shapes: Zhang et al., arXiv 2205.01068, table 1; the 350m size is post-norm with a
 * 512-wide token table, as its published config.json says ---- */

struct named_shape {
    const char *name;
    uint32_t layers, hidden, heads, embed;
    bool norm_before;
};

static const struct named_shape shapes[] = {
    {"opt-125m", 12, 768, 12, 768, true},     {"opt-350m", 24, 1024, 16, 512, false},
    {"opt-1.3b", 24, 2048, 32, 2048, true},   {"opt-2.7b", 32, 2560, 32, 2560, true},
    {"opt-6.7b", 32, 4096, 32, 4096, true},   {"opt-13b", 40, 5120, 40, 5120, true},
    {"opt-30b", 48, 7168, 56, 7168, true},    {"opt-66b", 64, 9216, 72, 9216, true},
    {"opt-175b", 96, 12288, 96, 12288, true},
};

static const char *const shape_names[] = {
    "opt-125m", "opt-350m", "opt-1.3b", "opt-2.7b", "opt-6.7b",
    "opt-13b",  "opt-30b",  "opt-66b",  "opt-175b", NULL,
};

const char *const *aq_model_config_names(void)
{
    return shape_names;
}

int aq_model_config_named(struct aq_model_config *ret, const char *name, struct aq_err *reterr)
{
    assert(ret && name);
    for (size_t i = 0; i < AQ_ARRAY_LEN(shapes); i++) {
        const struct named_shape *s = &shapes[i];
        if (strcasecmp(name, s->name) != 0)
            continue;
        *ret = (struct aq_model_config){
            .model_type = AQ_MODEL_OPT,
            .vocab_size = 50272,
            .hidden_size = s->hidden,
            .ffn_dim = 4 * s->hidden,
            .layers = s->layers,
            .heads = s->heads,
            .kv_heads = s->heads,
            .head_dim = s->hidden / s->heads,
            .max_positions = 2048,
            .word_embed_proj_dim = s->embed,
            .do_layer_norm_before = s->norm_before,
            .enable_bias = true,
            .layer_norm_elementwise_affine = true,
            .tie_word_embeddings = true,
            .activation = AQ_ACT_RELU,
            .torch_dtype = AQ_F16,
            .bos_id = 2,
            .pad_id = 1,
            .eos_id = {2},
            .eos_count = 1,
        };
        return 0;
    }
    char list[256];
    size_t at = 0;
    for (const char *const *n = shape_names; *n; n++)
        at += (size_t)snprintf(list + at, sizeof(list) - at, "%s%s", at ? ", " : "", *n);
    char quoted[64];
    return aq_error(reterr, -EINVAL, "shape '%s' is not known; expected one of %s",
                    aq_quote(quoted, sizeof(quoted), name, strlen(name)), list);
}

/* ---- config.json ---- */

/* Where a value comes from, for messages. */
struct reader {
    const json_t *root;
    const char *what;
    struct aq_err *reterr;
};

static int read_size(const struct reader *r, const char *key, uint32_t max, uint32_t *ret)
{
    const json_t *v = json_object_get(r->root, key);
    if (!v || json_is_null(v))
        return aq_error(r->reterr, -ENOEXEC, "%s: '%s': expected 1 to %u, found nothing", r->what,
                        key, max);
    if (json_is_integer(v) && (json_integer_value(v) < 1 || json_integer_value(v) > max))
        return aq_error(r->reterr, -ENOEXEC, "%s: '%s': expected 1 to %u, found %lld", r->what, key,
                        max, (long long)json_integer_value(v));
    uint64_t n = 0;
    int rc = aq_json_get_u64(r->root, key, 0, max, r->what, &n, r->reterr);
    if (rc < 0)
        return rc;
    if (n == 0) /* written as 0.0 */
        return aq_error(r->reterr, -ENOEXEC, "%s: '%s': expected 1 to %u, found 0", r->what, key,
                        max);
    *ret = (uint32_t)n;
    return 0;
}

/* A token id, or none (-1) for null and for the -1 that some files write. */
static int read_id_value(const struct reader *r, const char *key, const json_t *v, int64_t max,
                         int32_t *ret)
{
    if (json_is_null(v)) {
        *ret = -1;
        return 0;
    }
    if (!json_is_integer(v))
        return aq_error(r->reterr, -ENOEXEC, "%s: '%s': expected a token id, found another type",
                        r->what, key);
    json_int_t id = json_integer_value(v);
    if (id < -1 || id > max)
        return aq_error(r->reterr, -ENOEXEC,
                        "%s: '%s': expected a token id from 0 to %lld, found "
                        "%lld",
                        r->what, key, (long long)max, (long long)id);
    *ret = (int32_t)id;
    return 0;
}

static int read_id(const struct reader *r, const char *key, int32_t deflt, int64_t max,
                   int32_t *ret)
{
    const json_t *v = json_object_get(r->root, key);
    if (!v) {
        *ret = deflt <= max ? deflt : -1;
        return 0;
    }
    return read_id_value(r, key, v, max, ret);
}

static int add_eos(const struct reader *r, struct aq_model_config *c, const json_t *v)
{
    int32_t id = -1;
    int rc = read_id_value(r, "eos_token_id", v, (int64_t)c->vocab_size - 1, &id);
    if (rc < 0 || id < 0)
        return rc;
    for (uint32_t i = 0; i < c->eos_count; i++)
        if (c->eos_id[i] == (uint32_t)id)
            return 0;
    if (c->eos_count == AQ_CONFIG_EOS_MAX)
        return aq_error(r->reterr, -ENOEXEC, "%s: 'eos_token_id': expected at most %d ids", r->what,
                        AQ_CONFIG_EOS_MAX);
    c->eos_id[c->eos_count++] = (uint32_t)id;
    return 0;
}

/* One id or a list of them; false in *ret_found when the key is absent. */
static int read_eos(const struct reader *r, struct aq_model_config *c, bool *ret_found)
{
    const json_t *v = json_object_get(r->root, "eos_token_id");
    *ret_found = v != NULL;
    if (!v)
        return 0;
    if (!json_is_array(v))
        return add_eos(r, c, v);
    for (size_t i = 0; i < json_array_size(v); i++) {
        int rc = add_eos(r, c, json_array_get(v, i));
        if (rc < 0)
            return rc;
    }
    return 0;
}

/* The names of transformers' activation table that the kernels compute.  Its tanh forms of GELU
 * (new, fast, accurate, pytorch_tanh) are one function written in different ways. */
static int read_activation(const struct reader *r, enum aq_activation *ret)
{
    static const struct {
        const char *name;
        enum aq_activation activation;
    } table[] = {
        {"relu", AQ_ACT_RELU},
        {"gelu", AQ_ACT_GELU},
        {"gelu_python", AQ_ACT_GELU},
        {"gelu_new", AQ_ACT_GELU_TANH},
        {"gelu_fast", AQ_ACT_GELU_TANH},
        {"gelu_accurate", AQ_ACT_GELU_TANH},
        {"gelu_pytorch_tanh", AQ_ACT_GELU_TANH},
        {"gelu_python_tanh", AQ_ACT_GELU_TANH},
        {"silu", AQ_ACT_SILU},
        {"swish", AQ_ACT_SILU},
    };
    const char *name;
    int rc = aq_json_get_string(r->root, "activation_function", "relu", r->what, &name, r->reterr);
    if (rc < 0)
        return rc;
    for (size_t i = 0; i < AQ_ARRAY_LEN(table); i++) {
        if (strcmp(name, table[i].name) == 0) {
            *ret = table[i].activation;
            return 0;
        }
    }
    char quoted[64], known[256] = "";
    for (size_t i = 0, n = 0; i < AQ_ARRAY_LEN(table); i++)
        n += (size_t)snprintf(known + n, sizeof(known) - n, "%s%s",
                              i == 0                        ? ""
                              : i + 1 < AQ_ARRAY_LEN(table) ? ", "
                                                            : " or ",
                              table[i].name);
    return aq_error(r->reterr, -ENOEXEC, "%s: 'activation_function': expected %s, found '%s'",
                    r->what, known, aq_quote(quoted, sizeof(quoted), name, strlen(name)));
}

/* Newer files write "dtype".  Only a claim: the tensors themselves decide. */
static int read_dtype(const struct reader *r, enum aq_dtype *ret)
{
    const char *name;
    int rc = aq_json_get_string(r->root, "torch_dtype", NULL, r->what, &name, r->reterr);
    if (rc == 0 && !name)
        rc = aq_json_get_string(r->root, "dtype", NULL, r->what, &name, r->reterr);
    if (rc < 0)
        return rc;
    *ret = AQ_DTYPE_COUNT;
    if (!name)
        return 0;
    if (strncmp(name, "torch.", 6) == 0)
        name += 6;
    if (strcmp(name, "float16") == 0 || strcmp(name, "half") == 0)
        *ret = AQ_F16;
    else if (strcmp(name, "bfloat16") == 0)
        *ret = AQ_BF16;
    else if (strcmp(name, "float32") == 0 || strcmp(name, "float") == 0)
        *ret = AQ_F32;
    return 0;
}

static int read_opt_switches(const struct reader *r, struct aq_model_config *c)
{
    const struct {
        const char *key;
        bool deflt;
        bool *ret;
    } table[] = {
        {"do_layer_norm_before", true, &c->do_layer_norm_before},
        {"_remove_final_layer_norm", false, &c->remove_final_layer_norm},
        {"enable_bias", true, &c->enable_bias},
        {"layer_norm_elementwise_affine", true, &c->layer_norm_elementwise_affine},
        {"tie_word_embeddings", true, &c->tie_word_embeddings},
    };
    for (size_t i = 0; i < AQ_ARRAY_LEN(table); i++) {
        int rc = aq_json_get_bool(r->root, table[i].key, table[i].deflt, r->what, table[i].ret,
                                  r->reterr);
        if (rc < 0)
            return rc;
    }
    return 0;
}

/* Defaults of absent keys are those of transformers' OPTConfig; sizes have none here, because a
 * guessed size only fails later and less clearly. */
static int read_opt(const struct reader *r, struct aq_model_config *c)
{
    const struct {
        const char *key;
        uint32_t max, *ret;
    } sizes[] = {
        {"vocab_size", AQ_CONFIG_VOCAB_MAX, &c->vocab_size},
        {"hidden_size", AQ_CONFIG_WIDTH_MAX, &c->hidden_size},
        {"ffn_dim", AQ_CONFIG_WIDTH_MAX, &c->ffn_dim},
        {"num_hidden_layers", AQ_CONFIG_LAYERS_MAX, &c->layers},
        {"num_attention_heads", AQ_CONFIG_WIDTH_MAX, &c->heads},
        {"max_position_embeddings", AQ_CONFIG_POSITIONS_MAX, &c->max_positions},
        {"word_embed_proj_dim", AQ_CONFIG_WIDTH_MAX, &c->word_embed_proj_dim},
    };
    for (size_t i = 0; i < AQ_ARRAY_LEN(sizes); i++) {
        const json_t *v = json_object_get(r->root, sizes[i].key);
        if (sizes[i].ret == &c->word_embed_proj_dim && (!v || json_is_null(v))) {
            c->word_embed_proj_dim = c->hidden_size;
            continue;
        }
        int rc = read_size(r, sizes[i].key, sizes[i].max, sizes[i].ret);
        if (rc < 0)
            return rc;
    }
    if (c->hidden_size % c->heads != 0)
        return aq_error(r->reterr, -ENOEXEC,
                        "%s: 'num_attention_heads': expected a divisor of "
                        "'hidden_size' %u, found %u",
                        r->what, c->hidden_size, c->heads);
    c->kv_heads = c->heads;
    c->head_dim = c->hidden_size / c->heads;
    if (c->head_dim > AQ_CONFIG_HEAD_DIM_MAX)
        return aq_error(r->reterr, -ENOEXEC,
                        "%s: 'num_attention_heads': expected heads of at most "
                        "%d values, found %u",
                        r->what, AQ_CONFIG_HEAD_DIM_MAX, c->head_dim);
    int rc = read_opt_switches(r, c);
    return rc < 0 ? rc : read_activation(r, &c->activation);
}

static int read_ids(const struct reader *r, struct aq_model_config *c)
{
    enum { OPT_BOS = 2, OPT_EOS = 2, OPT_PAD = 1 };
    int rc = read_id(r, "bos_token_id", OPT_BOS, (int64_t)c->vocab_size - 1, &c->bos_id);
    if (rc == 0)
        rc = read_id(r, "pad_token_id", OPT_PAD, INT32_MAX, &c->pad_id);
    bool found;
    if (rc == 0)
        rc = read_eos(r, c, &found);
    if (rc == 0 && !found && OPT_EOS < c->vocab_size)
        c->eos_id[c->eos_count++] = OPT_EOS;
    return rc;
}

static int check_type(const struct reader *r, enum aq_model_type *ret)
{
    const char *type;
    int rc = aq_json_get_string(r->root, "model_type", NULL, r->what, &type, r->reterr);
    if (rc < 0)
        return rc;
    if (!type)
        return aq_error(r->reterr, -ENOEXEC, "%s: 'model_type': expected opt, found nothing",
                        r->what);
    if (strcmp(type, "opt") != 0) {
        char quoted[64];
        return aq_error(r->reterr, -ENOEXEC,
                        "%s: 'model_type': '%s' is not supported yet; this version runs opt",
                        r->what, aq_quote(quoted, sizeof(quoted), type, strlen(type)));
    }
    const json_t *quantised = json_object_get(r->root, "quantization_config");
    if (quantised && !json_is_null(quantised))
        return aq_error(r->reterr, -ENOEXEC,
                        "%s: 'quantization_config': expected an unquantised checkpoint (f16, bf16 "
                        "or f32 tensors), found one that is already quantised",
                        r->what);
    *ret = AQ_MODEL_OPT;
    return 0;
}

int aq_model_config_parse(struct aq_model_config *ret, const char *text, size_t bytes,
                          const char *what, struct aq_err *reterr)
{
    assert(ret && text && what);
    json_t *root;
    int rc = aq_json_parse(&root, text, bytes, false, reterr);
    if (rc < 0) {
        aq_error_prefix(reterr, "%s", what);
        return rc;
    }
    struct reader r = {.root = root, .what = what, .reterr = reterr};
    struct aq_model_config c = {0};
    if (!json_is_object(root))
        rc = aq_error(reterr, -ENOEXEC, "%s: expected a JSON object", what);
    if (rc == 0)
        rc = check_type(&r, &c.model_type);
    if (rc == 0)
        rc = read_opt(&r, &c);
    if (rc == 0)
        rc = read_dtype(&r, &c.torch_dtype);
    if (rc == 0)
        rc = read_ids(&r, &c);
    json_decref(root);
    if (rc == 0)
        *ret = c;
    return rc;
}

int aq_model_config_read_file(struct aq_model_config *ret, const char *path, struct aq_err *reterr)
{
    assert(ret && path);
    char *text;
    size_t bytes;
    int rc = aq_read_file(&text, &bytes, path, CONFIG_BYTES_MAX, reterr);
    if (rc < 0)
        return rc;
    char what[PATH_MAX + 2];
    snprintf(what, sizeof(what), "'%s'", path);
    if (strncmp(text, "version https://git-lfs", 23) == 0)
        rc =
            aq_error(reterr, -ENOEXEC,
                     "%s: expected a config.json, found a git-LFS pointer; run git lfs pull", what);
    else
        rc = aq_model_config_parse(ret, text, bytes, what, reterr);
    free(text);
    return rc;
}

/* The ids of generation_config.json end a text as well: chat models list more than one there. */
static int add_generation_eos(struct aq_model_config *c, const char *path, struct aq_err *reterr)
{
    json_t *root;
    struct aq_err err = {0};
    int rc = aq_json_read_file(&root, path, CONFIG_BYTES_MAX, &err);
    if (rc == -ENOENT)
        return 0;
    if (rc < 0)
        return aq_error(reterr, rc, "%s", err.text);
    char what[PATH_MAX + 2];
    snprintf(what, sizeof(what), "'%s'", path);
    struct reader r = {.root = root, .what = what, .reterr = reterr};
    bool found;
    rc = json_is_object(root) ? read_eos(&r, c, &found)
                              : aq_error(reterr, -ENOEXEC, "%s: expected a JSON object", what);
    json_decref(root);
    return rc;
}

int aq_model_config_read(struct aq_model_config *ret, const char *dir, struct aq_err *reterr)
{
    assert(ret && dir);
    char path[PATH_MAX];
    if (snprintf(path, sizeof(path), "%s/generation_config.json", dir) >= (int)sizeof(path))
        return aq_error(reterr, -EINVAL, "'%.200s...': the path is too long", dir);
    struct aq_model_config c;
    char config_path[PATH_MAX];
    snprintf(config_path, sizeof(config_path), "%s/config.json", dir);
    int rc = aq_model_config_read_file(&c, config_path, reterr);
    if (rc == 0)
        rc = add_generation_eos(&c, path, reterr);
    if (rc == 0)
        *ret = c;
    return rc;
}
