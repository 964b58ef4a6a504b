/* SPDX-License-Identifier: Apache-2.0
 * 'quantization_config' as transformers (5.2, utils/quantization_config.py), AutoAWQ 0.2.9,
 * GPTQModel 7.7 and compressed-tensors 0.20 write it. */
#include "base/json.h"
#include "engine/model/config_keys.h"
#include "engine/model/quantised/formats.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

enum { GROUP_MAX = AQ_CONFIG_WIDTH_MAX };

/* What to take in place of a form that is not read. */
#define CURE                                                                                       \
    "; for any other take the checkpoint that it was made from: --weight-format int8 or int4 "     \
    "makes it small here"

static int wrong(const struct aq_config_keys *k, const char *key, const char *expected)
{
    const struct aq_config_place place = {.key = key};
    return aq_config_wrong(k, &place, json_object_get(k->root, key), expected);
}

/* Is the value, where there is one, this word or the other, in any case? */
static bool is_word(const struct aq_config_keys *k, const char *key, const char *word,
                    const char *other)
{
    const json_t *v = json_object_get(k->root, key);
    if (!v || json_is_null(v))
        return true;
    const char *text = json_is_string(v) ? json_string_value(v) : "";
    return strcasecmp(text, word) == 0 || (other && strcasecmp(text, other) == 0);
}

static bool has(const struct aq_config_keys *k, const char *key)
{
    const json_t *v = json_object_get(k->root, key);
    return v && !json_is_null(v) && !json_is_false(v);
}

static int read_bits(const struct aq_config_keys *k, const char *key, bool eight, uint32_t *ret)
{
    const json_t *v = json_object_get(k->root, key);
    json_int_t bits = json_is_integer(v) ? json_integer_value(v) : 0;
    if (bits != 4 && !(eight && bits == 8))
        return wrong(k, key, eight ? "4 or 8" CURE : "4" CURE);
    *ret = (uint32_t)bits;
    return 0;
}

/* Columns of a group; -1 is a whole row. */
static int read_group(const struct aq_config_keys *k, const char *key, uint32_t *ret)
{
    const json_t *v = json_object_get(k->root, key);
    json_int_t size = json_is_integer(v) ? json_integer_value(v) : 0;
    if (size != -1 && (size < 1 || size > GROUP_MAX))
        return wrong(k, key, "columns of a group, or -1 for all of a row");
    *ret = size == -1 ? 0 : (uint32_t)size;
    return 0;
}

/* [rows, columns] of a block. */
static int read_block(const struct aq_config_keys *k, const char *key,
                      struct aq_quantised_scheme *s)
{
    const json_t *v = json_object_get(k->root, key);
    json_int_t size[2] = {0, 0};
    for (size_t i = 0; json_array_size(v) == 2 && i < 2; i++)
        size[i] = json_integer_value(json_array_get(v, i));
    if (size[0] < 1 || size[1] < 1 || size[0] > GROUP_MAX || size[1] > GROUP_MAX)
        return wrong(k, key, "rows and columns of a block");
    s->block_rows = (uint32_t)size[0];
    s->block_k = (uint32_t)size[1];
    return 0;
}

/* ---- the methods -------------------------------------------------------------------------- */

static int read_fp8(struct aq_quantised_config *c, const struct aq_config_keys *k)
{
    struct aq_quantised_scheme *s = &c->scheme[c->count++];
    *s = (struct aq_quantised_scheme){.format = &aq_quantised_fp8, .bits = 8};
    c->activations = true;
    if (!is_word(k, "fmt", "e4m3", "float8_e4m3fn"))
        return wrong(k, "fmt", "e4m3" CURE);
    return has(k, "weight_block_size") ? read_block(k, "weight_block_size", s) : 0;
}

static int read_awq(struct aq_quantised_config *c, const struct aq_config_keys *k)
{
    struct aq_quantised_scheme *s = &c->scheme[c->count++];
    *s = (struct aq_quantised_scheme){.format = &aq_quantised_awq, .zeros = true};
    const char *bits = has(k, "w_bit") ? "w_bit" : "bits",
               *group = has(k, "q_group_size") ? "q_group_size" : "group_size";
    static const char *const layout[] = {"version", "format", "checkpoint_format"};
    for (size_t i = 0; i < AQ_ARRAY_LEN(layout); i++)
        if (!is_word(k, layout[i], "gemm", NULL))
            return wrong(k, layout[i], "gemm" CURE);
    if (json_is_false(json_object_get(k->root, "zero_point")))
        return wrong(k, "zero_point", "true" CURE);
    int rc = read_bits(k, bits, false, &s->bits);
    return rc < 0 ? rc : read_group(k, group, &s->block_k);
}

static int read_gptq(struct aq_quantised_config *c, const struct aq_config_keys *k)
{
    struct aq_quantised_scheme *s = &c->scheme[c->count++];
    *s = (struct aq_quantised_scheme){
        .format = &aq_quantised_gptq, .zeros = true, .zero_less_one = true};
    static const char *const keys[] = {"checkpoint_format", "format"}; /* later, the second */
    for (size_t i = 0; i < AQ_ARRAY_LEN(keys); i++) {
        if (!is_word(k, keys[i], "gptq", "gptq_v2"))
            return wrong(k, keys[i], "gptq or gptq_v2" CURE);
        if (has(k, keys[i]) && is_word(k, keys[i], "gptq_v2", NULL))
            s->zero_less_one = false;
    }
    if (has(k, "is_marlin_format"))
        return wrong(k, "is_marlin_format", "false" CURE);
    if (!is_word(k, "pack_dtype", "int32", "torch.int32"))
        return wrong(k, "pack_dtype", "int32" CURE);
    int rc = aq_config_switch(k, "desc_act", false, &s->order);
    if (rc == 0)
        rc = read_bits(k, "bits", true, &s->bits);
    return rc < 0 ? rc : read_group(k, "group_size", &s->block_k);
}

/* What the codes of one of compressed-tensors' groups are; keys are those of its "weights". */
static int read_codes(const struct aq_config_keys *k, struct aq_quantised_scheme *s)
{
    bool packed = s->format == &aq_quantised_packed, floats = s->format == &aq_quantised_fp8,
         symmetric = true;
    if (!is_word(k, "type", floats ? "float" : "int", NULL))
        return wrong(k, "type", floats ? "float, as 'format' says" : "int, as 'format' says");
    int rc = aq_config_switch(k, "symmetric", true, &symmetric);
    if (rc < 0)
        return rc;
    if (packed) {
        s->zeros = !symmetric;
        s->order = !json_is_string(json_object_get(k->root, "actorder"))
                       ? has(k, "actorder")
                       : is_word(k, "actorder", "group", "dynamic");
        return read_bits(k, "num_bits", true, &s->bits);
    }
    s->bits = 8;
    if (!symmetric)
        return wrong(k, "symmetric", "true" CURE);
    if (json_integer_value(json_object_get(k->root, "num_bits")) != 8)
        return wrong(k, "num_bits", "8" CURE);
    return 0;
}

/* What shares a scale.  One for all or one a row: the tensor says it. */
static int read_strategy(const struct aq_config_keys *k, struct aq_quantised_scheme *s)
{
    bool packed = s->format == &aq_quantised_packed,
         said = has(k, "strategy"); /* of early files the size of groups alone says it */
    if (said ? is_word(k, "strategy", "group", NULL) : has(k, "group_size")) {
        s->block_rows = 1;
        return read_group(k, "group_size", &s->block_k);
    }
    if (is_word(k, "strategy", "channel", NULL))
        return 0;
    if (packed)
        return wrong(k, "strategy", "group or channel" CURE);
    if (is_word(k, "strategy", "block", NULL))
        return read_block(k, "block_structure", s);
    if (!is_word(k, "strategy", "tensor", NULL))
        return wrong(k, "strategy", "tensor, channel, group or block" CURE);
    return 0;
}

static const struct aq_quantised_format *format_named(const json_t *name)
{
    static const struct {
        const char *name;
        const struct aq_quantised_format *format;
    } table[] = {
        {"float-quantized", &aq_quantised_fp8},
        {"int-quantized", &aq_quantised_int8},
        {"pack-quantized", &aq_quantised_packed},
    };
    for (size_t i = 0; json_is_string(name) && i < AQ_ARRAY_LEN(table); i++)
        if (strcmp(json_string_value(name), table[i].name) == 0)
            return table[i].format;
    return NULL;
}

/* One of 'config_groups': its own 'format', or that of all; groups of activations alone are none of
 * ours. */
static int read_scheme(struct aq_quantised_config *c, const struct aq_config_keys *all,
                       const char *name, const json_t *group)
{
    char what[PATH_MAX + 200], quoted[64];
    snprintf(what, sizeof(what), "%s: '%s'", all->what,
             aq_quote(quoted, sizeof(quoted), name, strlen(name)));
    struct aq_config_keys keys = {.root = group, .what = what, .reterr = all->reterr},
                          weights = keys;
    bool own = has(&keys, "format");
    const struct aq_quantised_format *f =
        format_named(json_object_get(own ? group : all->root, "format"));
    if (!json_is_object(group))
        return aq_error(all->reterr, -ENOEXEC, "%s: expected an object", what);
    if (has(&keys, "input_activations") || has(&keys, "output_activations"))
        c->activations = true;
    weights.root = json_object_get(group, "weights");
    if (!json_is_object(weights.root))
        return 0;
    if (!f)
        return wrong(own ? &keys : all, "format",
                     "float-quantized, int-quantized or pack-quantized" CURE);
    if (c->count == AQ_QUANTISED_SCHEMES_MAX)
        return aq_error(all->reterr, -ENOEXEC, "%s: expected at most %d groups", all->what,
                        AQ_QUANTISED_SCHEMES_MAX);
    c->scheme[c->count] = (struct aq_quantised_scheme){.format = f};
    int rc = read_codes(&weights, &c->scheme[c->count]);
    if (rc == 0)
        rc = read_strategy(&weights, &c->scheme[c->count]);
    c->count += rc == 0;
    return rc;
}

static int read_compressed(struct aq_quantised_config *c, const struct aq_config_keys *k)
{
    const json_t *groups = json_object_get(k->root, "config_groups"), *group,
                 *sparsity = json_object_get(k->root, "sparsity_config"),
                 *transform = json_object_get(k->root, "transform_config");
    const char *name;
    if (json_object_size(sparsity) &&
        !is_word(&(struct aq_config_keys){.root = sparsity}, "format", "dense", NULL))
        return wrong(k, "sparsity_config", "none" CURE);
    if (json_object_size(json_object_get(transform, "config_groups")))
        return wrong(k, "transform_config", "none" CURE);
    if (!is_word(k, "quantization_status", "compressed", "frozen"))
        return wrong(k, "quantization_status", "compressed");
    c->activations = has(k, "kv_cache_scheme");
    json_object_foreach((json_t *)groups, name, group)
    {
        int rc = read_scheme(c, k, name, group);
        if (rc < 0)
            return rc;
    }
    return c->count ? 0 : wrong(k, "config_groups", "groups with 'weights'");
}

int aq_quantised_config_read(struct aq_quantised_config *ret, const struct aq_config_keys *keys)
{
    static const struct {
        const char *method;
        int (*read)(struct aq_quantised_config *c, const struct aq_config_keys *k);
    } table[] = {
        {"fp8", read_fp8},
        {"fbgemm_fp8", read_fp8},
        {"awq", read_awq},
        {"gptq", read_gptq},
        {"compressed-tensors", read_compressed},
    };
    char what[PATH_MAX + 100];
    const json_t *root = json_object_get(keys->root, "quantization_config");
    struct aq_quantised_config c = {0};
    snprintf(what, sizeof(what), "%s: 'quantization_config'", keys->what);
    struct aq_config_keys inner = {.root = root, .what = what, .reterr = keys->reterr};
    *ret = c;
    if (!root || json_is_null(root))
        return 0;
    const json_t *method = json_object_get(root, "quant_method");
    for (size_t i = 0; json_is_string(method) && i < AQ_ARRAY_LEN(table); i++) {
        if (strcmp(json_string_value(method), table[i].method) != 0)
            continue;
        int rc = table[i].read(&c, &inner);
        if (rc == 0)
            *ret = c;
        return rc;
    }
    return wrong(&inner, "quant_method", "fp8, fbgemm_fp8, awq, gptq or compressed-tensors" CURE);
}
