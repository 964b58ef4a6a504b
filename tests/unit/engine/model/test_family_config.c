/* SPDX-License-Identifier: Apache-2.0
 * config.json as the families write it: values in all places that they have had, what absent keys
 * mean, and what is refused; and the rotary tables that follow, against tests/golden/families. */
#include "base/json.h"
#include "engine/model/arch/arch.h"
#include "tests/test.h"

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static int parse(struct aq_model_config *c, const char *text, struct aq_err *err)
{
    return aq_model_config_parse(c, text, strlen(text), "config", err);
}

static struct aq_model_config parsed(const char *text)
{
    struct aq_model_config c;
    struct aq_err err = {0};
    if (parse(&c, text, &err) < 0)
        fail_msg("%s: %s", text, err.text);
    return c;
}

/* A small configuration of this type, with `more` of its keys. */
static const char *text_of(const char *type, const char *more)
{
    static char text[4096];
    int n = snprintf(text, sizeof(text),
                     "{\"model_type\": \"%s\", \"vocab_size\": 100, \"hidden_size\": 48, "
                     "\"intermediate_size\": 64, \"num_hidden_layers\": 4, "
                     "\"num_attention_heads\": 4, \"max_position_embeddings\": 64%s%s}",
                     type, *more ? ", " : "", more);
    assert_in_range(n, 1, sizeof(text) - 1);
    return text;
}

static void must_refuse(const char *type, const char *more, const char *want)
{
    struct aq_model_config c;
    struct aq_err err = {0};
    int rc = parse(&c, text_of(type, more), &err);
    if (rc != -ENOEXEC || !strstr(err.text, want) || strncmp(err.text, "config: ", 8) != 0)
        fail_msg("%s, %s: expected '%s', found %d: %s", type, more, want, rc, err.text);
}

/* ---- both spellings ---- */

static void every_spelling_of_a_configuration_means_the_same(void **state)
{
    DIR *d = opendir(test_data_path("../golden/families"));
    uint32_t pairs = 0;
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));) {
        char name[300], path[2][1024];
        struct aq_model_config c[2];
        struct aq_err err = {0};
        for (int i = 0; i < 2; i++) {
            snprintf(name, sizeof(name), "../golden/families/%s/%s", e->d_name,
                     i ? "other.json" : "config.json");
            snprintf(path[i], sizeof(path[i]), "%s", test_data_path(name));
        }
        int rc = aq_model_config_read_file(&c[1], path[1], &err);
        if (rc == -ENOENT || rc == -ENOTDIR)
            continue;
        rc = rc < 0 ? rc : aq_model_config_read_file(&c[0], path[0], &err);
        if (rc < 0)
            fail_msg("%s", err.text);
        assert_memory_equal(&c[0], &c[1], sizeof(c[0]));
        pairs++;
    }
    closedir(d);
    assert_true(pairs >= 12);
}

static void two_values_in_two_places_are_refused_with_both(void **state)
{
    static const struct {
        const char *more, *want;
    } table[] = {
        {"\"rope_theta\": 5000.5, \"rope_parameters\": {\"rope_theta\": 10000}",
         "'rope_parameters.rope_theta' is 10000, but 'rope_theta' is 5000.5"},
        {"\"rope_parameters\": {\"partial_rotary_factor\": 0.5}, \"partial_rotary_factor\": 1",
         "'rope_parameters.partial_rotary_factor' is 0.5, but 'partial_rotary_factor' is 1"},
        {"\"rope_scaling\": {\"rope_type\": \"linear\", \"type\": \"yarn\", \"factor\": 2}",
         "'rope_scaling.type': expected the type that is given elsewhere as well, found \"yarn\""},
        {"\"rope_scaling\": {\"rope_type\": \"linear\", \"factor\": 2}, "
         "\"rope_parameters\": {\"rope_type\": \"linear\", \"factor\": 4}",
         "'rope_parameters.factor' is 4, but 'rope_scaling.factor' is 2"},
        {"\"dtype\": \"bfloat16\", \"torch_dtype\": \"float16\"",
         "'torch_dtype' is 'float16', but 'dtype' is 'bfloat16'"},
    };
    for (size_t i = 0; i < AQ_ARRAY_LEN(table); i++)
        must_refuse("llama", table[i].more, table[i].want);
    must_refuse("gpt_neox", "\"rotary_pct\": 0.5, \"partial_rotary_factor\": 0.25",
                "'partial_rotary_factor' is 0.25, but 'rotary_pct' is 0.5");
    must_refuse("gpt_neox", "\"rotary_emb_base\": 10000, \"rope_theta\": 20000",
                "'rope_theta' is 20000, but 'rotary_emb_base' is 10000");
    /* The same value twice is one. */
    struct aq_model_config c =
        parsed(text_of("llama", "\"rope_theta\": 10000.0, \"torch_dtype\": \"torch.bfloat16\", "
                                "\"rope_parameters\": {\"rope_theta\": 10000}, "
                                "\"dtype\": \"bfloat16\""));
    assert_true(c.rotary.theta == 10000);
    assert_int_equal(c.torch_dtype, AQ_BF16);
}

/* ---- what absent keys mean ---- */

static void absent_keys_mean_what_the_family_means_by_it(void **state)
{
    static const struct {
        const char *type;
        double eps;
        uint32_t head_dim, dims, window;
        bool qkv, out, mlp, head_norms, fused, parallel;
        int32_t bos, eos, pad;
    } table[] = {
        {"llama", 1e-6, 12, 12, 0, .bos = 1, .eos = 2, .pad = -1},
        {"mistral", 1e-6, 12, 12, 0, .bos = 1, .eos = 2, .pad = -1},
        {"qwen2", 1e-6, 12, 12, 0, .qkv = true, .bos = -1, .eos = -1, .pad = -1},
        {"qwen3", 1e-6, 128, 128, 0, .head_norms = true, .bos = -1, .eos = -1, .pad = -1},
        {"phi3", 1e-5, 12, 12, 0, .fused = true, .bos = 1, .eos = -1, .pad = 32000},
        {"gpt_neox", 1e-5, 16, 4, 0, .qkv = true, .out = true, .mlp = true, .parallel = true,
         .bos = 0, .eos = 2, .pad = -1},
    };
    for (size_t i = 0; i < AQ_ARRAY_LEN(table); i++) {
        bool neox = strcmp(table[i].type, "gpt_neox") == 0;
        char text[4096];
        snprintf(text, sizeof(text), "%s", text_of(table[i].type, ""));
        if (neox) /* heads of 16, of which a quarter is an even number */
            strstr(text, "_heads\": 4")[strlen("_heads\": ")] = '3';
        struct aq_model_config c = parsed(text);
        assert_string_equal(c.arch->name, table[i].type);
        assert_true(c.norm_eps == (float)table[i].eps);
        assert_int_equal(c.norm, neox ? AQ_NORM_LAYER : AQ_NORM_RMS);
        assert_int_equal(c.activation, neox ? AQ_ACT_GELU : AQ_ACT_SILU);
        assert_int_equal(c.head_dim, table[i].head_dim);
        assert_int_equal(c.kv_heads, c.heads);
        assert_int_equal(c.rotary.kind, AQ_ROTARY_PLAIN);
        assert_int_equal(c.rotary.dims, table[i].dims);
        assert_true(c.rotary.theta == 10000);
        assert_int_equal(c.window, table[i].window);
        assert_true(c.qkv_bias == table[i].qkv && c.out_bias == table[i].out &&
                    c.mlp_bias == table[i].mlp);
        assert_true(c.head_norms == table[i].head_norms && c.fused == table[i].fused &&
                    c.parallel_residual == table[i].parallel);
        assert_true(!c.tie_word_embeddings && c.norm_first && c.final_norm && c.norm_affine);
        assert_int_equal(c.bos_id, table[i].bos);
        assert_int_equal(c.pad_id, table[i].pad);
        assert_int_equal(c.eos_count, table[i].eos >= 0);
        assert_true(!c.eos_count || c.eos_id[0] == (uint32_t)table[i].eos);
    }
}

static void keys_are_read_where_the_family_has_them(void **state)
{
    struct aq_model_config c =
        parsed(text_of("llama", "\"head_dim\": 20, \"num_key_value_heads\": 2, "
                                "\"attention_bias\": true, \"mlp_bias\": true, "
                                "\"rms_norm_eps\": 0.001, \"tie_word_embeddings\": true, "
                                "\"hidden_act\": \"gelu_pytorch_tanh\", \"pad_token_id\": -1, "
                                "\"eos_token_id\": [7, 8, 9]"));
    assert_int_equal(c.head_dim, 20);
    assert_int_equal(c.kv_heads, 2);
    assert_true(c.qkv_bias && c.out_bias && c.mlp_bias && c.tie_word_embeddings);
    assert_true(c.norm_eps == 0.001f);
    assert_int_equal(c.activation, AQ_ACT_GELU_TANH);
    assert_int_equal(c.pad_id, -1);
    assert_int_equal(c.eos_count, 3);
    c = parsed(text_of("mistral", "\"attention_bias\": true")); /* no key of its */
    assert_false(c.qkv_bias);
    c = parsed(text_of("gpt_neox", "\"attention_bias\": false, \"use_parallel_residual\": false, "
                                   "\"rotary_pct\": 1.0, \"rotary_emb_base\": 500, "
                                   "\"layer_norm_eps\": 1e-12, \"hidden_act\": \"gelu_fast\""));
    assert_true(!c.qkv_bias && !c.out_bias && c.mlp_bias && !c.parallel_residual);
    assert_int_equal(c.rotary.dims, 12);
    assert_true(c.rotary.theta == 500 && c.norm_eps == 1e-12f);
    assert_int_equal(c.activation, AQ_ACT_GELU_TANH);
}

/* ---- windows ---- */

/* The layers with a window as a text of 0 and 1. */
static const char *windows_of(const char *type, const char *more, uint32_t window)
{
    static char text[8];
    struct aq_model_config c = parsed(text_of(type, more));
    assert_int_equal(c.window, window);
    for (uint32_t i = 0; i < c.layers; i++)
        text[i] = c.windowed[i] ? '1' : '0';
    text[c.layers] = '\0';
    return text;
}

static void windows_are_of_the_layers_that_have_them(void **state)
{
    static const char types[] = "\"layer_types\": [\"sliding_attention\", \"full_attention\", "
                                "\"full_attention\", \"sliding_attention\"]";
    char more[512];
    assert_string_equal(windows_of("mistral", "\"sliding_window\": 9", 9), "1111");
    assert_string_equal(windows_of("mistral", "\"sliding_window\": null", 0), "0000");
    assert_string_equal(windows_of("mistral", "\"sliding_window\": 64", 0), "0000"); /* all */
    assert_string_equal(windows_of("mistral", "\"sliding_window\": 63", 63), "1111");
    assert_string_equal(windows_of("phi3", "\"sliding_window\": 10", 10), "1111");
    assert_string_equal(windows_of("phi3", "", 0), "0000");
    assert_string_equal(windows_of("qwen2", "\"sliding_window\": 7", 0), "0000"); /* not used */
    assert_string_equal(windows_of("qwen2",
                                   "\"use_sliding_window\": true, \"sliding_window\": 7, "
                                   "\"max_window_layers\": 3",
                                   7),
                        "0001");
    assert_string_equal(windows_of("qwen3",
                                   "\"use_sliding_window\": true, \"sliding_window\": 7, "
                                   "\"max_window_layers\": 0",
                                   7),
                        "1111");
    assert_string_equal(
        windows_of("qwen3", "\"use_sliding_window\": true, \"sliding_window\": 7", 0), "0000");
    snprintf(more, sizeof(more), "\"sliding_window\": 9, %s", types);
    assert_string_equal(windows_of("mistral", more, 9), "1001");
    snprintf(more, sizeof(more),
             "\"use_sliding_window\": true, \"max_window_layers\": 3, \"sliding_window\": 9, %s",
             types);
    assert_string_equal(windows_of("qwen2", more, 9), "1001");
    must_refuse("llama", types, "'layer_types': expected full_attention, as no 'sliding_window'");
}

/* ---- traps of published files ---- */

static void the_first_files_have_another_key_for_positions(void **state)
{
    static const char first[] =
        "{\"architectures\": [\"LLaMAForCausalLM\"], \"bos_token_id\": 0, \"eos_token_id\": 1, "
        "\"hidden_act\": \"silu\", \"hidden_size\": 4096, \"intermediate_size\": 11008, "
        "\"max_sequence_length\": 2048, \"model_type\": \"llama\", \"num_attention_heads\": 32, "
        "\"num_hidden_layers\": 32, \"pad_token_id\": -1, \"rms_norm_eps\": 1e-06, "
        "\"torch_dtype\": \"float16\", \"vocab_size\": 32000}";
    struct aq_model_config c = parsed(first);
    assert_int_equal(c.max_positions, 2048);
    assert_int_equal(c.pad_id, -1);
    assert_int_equal(c.bos_id, 0);
    /* Later files may have both, and mean the usual one. */
    c = parsed(text_of("llama", "\"max_sequence_length\": 256"));
    assert_int_equal(c.max_positions, 64);
}

static void yarn_adds_positions_where_the_file_leaves_it_to_the_factor(void **state)
{
    static const char yarn[] = "\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 4.0, "
                               "\"original_max_position_embeddings\": %u}";
    char more[128];
    snprintf(more, sizeof(more), yarn, 64u);
    assert_int_equal(parsed(text_of("qwen2", more)).max_positions, 256);
    snprintf(more, sizeof(more), yarn, 8u);
    assert_int_equal(parsed(text_of("qwen2", more)).max_positions, 64);
}

static void the_text_of_a_model_of_pictures_is_read(void **state)
{
    static const char nested[] =
        "{\"model_type\": \"mistral3\", \"architectures\": [\"Mistral3ForConditionalGeneration\"], "
        "\"eos_token_id\": 11, \"torch_dtype\": \"bfloat16\", \"vision_config\": "
        "{\"hidden_size\": 8}, \"text_config\": {\"model_type\": \"%s\", \"vocab_size\": 100, "
        "\"hidden_size\": 48, \"intermediate_size\": 64, \"num_hidden_layers\": 4, "
        "\"num_attention_heads\": 4, \"max_position_embeddings\": 64%s}%s}";
    char text[1024];
    snprintf(text, sizeof(text), nested, "mistral", ", \"head_dim\": 16", "");
    struct aq_model_config c = parsed(text);
    assert_string_equal(c.arch->name, "mistral");
    assert_true(c.text_of_more);
    assert_int_equal(c.head_dim, 16);
    assert_int_equal(c.eos_id[0], 11);
    assert_int_equal(c.torch_dtype, AQ_BF16);
    snprintf(text, sizeof(text), nested, "mistral", ", \"dtype\": \"float16\"", "");
    assert_int_equal(parsed(text).torch_dtype, AQ_F16);
    assert_false(parsed(text_of("llama", "\"text_config\": {\"vocab_size\": 7}")).text_of_more);
    struct aq_err err = {0};
    snprintf(text, sizeof(text), nested, "gemma3_text", "", "");
    assert_int_equal(parse(&c, text, &err), -ENOEXEC);
    assert_non_null(strstr(err.text, "'gemma3_text' is not supported yet"));
    snprintf(text, sizeof(text), nested, "mistral", "",
             ", \"quantization_config\": {\"quant_method\": \"fp8\"}");
    assert_int_equal(parsed(text).quantised.count, 1);
}

/* ---- refusals ---- */

static void other_models_are_refused_by_name_with_what_is_known(void **state)
{
    static const char *const types[] = {"gpt_neox_reward_model",
                                        "mixtral",
                                        "qwen3_moe",
                                        "gpt_oss",
                                        "gemma3",
                                        "qwen2_vl",
                                        "llama4",
                                        "Llama"};
    for (size_t i = 0; i < AQ_ARRAY_LEN(types); i++) {
        char want[160];
        snprintf(want, sizeof(want),
                 "'%s' is not supported yet; this version runs opt, llama, mistral, qwen2, qwen3, "
                 "phi3, gpt_neox",
                 types[i]);
        must_refuse(types[i], "", want);
    }
    must_refuse("llama", "\"architectures\": [\"LlamaForSequenceClassification\"]",
                "'architectures': expected a model that generates text (...ForCausalLM), found "
                "\"LlamaForSequenceClassification\"");
    must_refuse("mistral", "\"architectures\": [\"MistralModel\"]", "found \"MistralModel\"");
    parsed(text_of("llama", "\"architectures\": []"));
}

/* ---- quantised checkpoints ---- */

#define QUANTISED(text) "\"quantization_config\": {" text "}"
#define COMPRESSED(format, weights, more)                                                          \
    QUANTISED("\"quant_method\": \"compressed-tensors\", \"format\": \"" format                    \
              "\", \"config_groups\": {\"group_0\": {\"weights\": {" weights "}}}" more)

static void forms_of_quantised_checkpoints_that_are_not_read_are_refused_by_name(void **state)
{
    static const char *const methods[] = {"mxfp4", "bitsandbytes", "modelopt", "quark",
                                          "hqq",   "aqlm",         "torchao",  "exl3"};
    for (size_t i = 0; i < AQ_ARRAY_LEN(methods); i++) {
        char more[96], want[240];
        snprintf(more, sizeof(more), QUANTISED("\"quant_method\": \"%s\""), methods[i]);
        snprintf(want, sizeof(want),
                 "'quantization_config': 'quant_method': expected fp8, fbgemm_fp8, awq, gptq or "
                 "compressed-tensors; for any other take the checkpoint that it was made from: "
                 "--weight-format int8 or int4 makes it small here, found \"%s\"",
                 methods[i]);
        must_refuse("qwen3", more, want);
    }
    must_refuse("llama", QUANTISED("\"bits\": 4"),
                "--weight-format int8 or int4 makes it small "
                "here, found nothing");
}

static void variants_of_forms_that_are_not_read_are_refused_by_key_and_value(void **state)
{
    static const char awq[] = "\"quant_method\": \"awq\", \"bits\": 4, \"group_size\": 128";
    static const struct {
        const char *more, *want;
    } table[] = {
        {QUANTISED("\"quant_method\": \"awq\", \"bits\": 8"), "'bits': expected 4; for any"},
        {QUANTISED("\"quant_method\": \"awq\", \"bits\": 4"), "'group_size': expected columns of"},
        {QUANTISED("\"quant_method\": \"awq\", \"bits\": 4, \"group_size\": 0"), "found 0"},
        {QUANTISED("\"quant_method\": \"awq\", \"bits\": 4, \"version\": \"gemv\""),
         "'version': expected gemm; for any"},
        {QUANTISED("\"quant_method\": \"awq\", \"bits\": 4, \"zero_point\": false"),
         "'zero_point': expected true"},
        {QUANTISED("\"quant_method\": \"gptq\", \"bits\": 3, \"group_size\": 128"),
         "'bits': expected 4 or 8; for any"},
        {QUANTISED("\"quant_method\": \"gptq\", \"bits\": 2"), "found 2"},
        {QUANTISED("\"quant_method\": \"gptq\", \"bits\": 4, \"checkpoint_format\": \"marlin\""),
         "'checkpoint_format': expected gptq or gptq_v2"},
        {QUANTISED("\"quant_method\": \"gptq\", \"bits\": 4, \"is_marlin_format\": true"),
         "'is_marlin_format': expected false"},
        {QUANTISED("\"quant_method\": \"gptq\", \"bits\": 4, \"group_size\": -2"), "found -2"},
        {QUANTISED("\"quant_method\": \"fp8\", \"fmt\": \"e5m2\""), "'fmt': expected e4m3"},
        {QUANTISED("\"quant_method\": \"fp8\", \"weight_block_size\": [128]"),
         "'weight_block_size': expected rows and columns of a block, found [128]"},
        {QUANTISED("\"quant_method\": \"fp8\", \"weight_block_size\": [128, 99999999]"),
         "'weight_block_size': expected rows"},
        {COMPRESSED("nvfp4-pack-quantized", "", ""), "'format': expected float-quantized, int-"},
        {COMPRESSED("marlin-24", "", ""), "found \"marlin-24\""},
        {COMPRESSED("mxfp4-pack-quantized", "", ""), "found \"mxfp4-pack-quantized\""},
        {COMPRESSED("pack-quantized", "\"num_bits\": 3, \"type\": \"int\"", ""),
         "'group_0': 'num_bits': expected 4 or 8"},
        {COMPRESSED("pack-quantized", "\"num_bits\": 4, \"type\": \"float\"", ""),
         "'type': expected int, as 'format' says"},
        {COMPRESSED("float-quantized", "\"num_bits\": 4, \"type\": \"float\"", ""),
         "'num_bits': expected 8"},
        {COMPRESSED("int-quantized", "\"num_bits\": 8, \"symmetric\": false", ""),
         "'symmetric': expected true"},
        {COMPRESSED("float-quantized",
                    "\"num_bits\": 8, \"type\": \"float\", \"strategy\": \"tensor_group\"", ""),
         "'strategy': expected tensor, channel, group or block"},
        {COMPRESSED("pack-quantized", "\"num_bits\": 4",
                    ", \"sparsity_config\": {\"format\": \"sparse-24-bitmask\"}"),
         "'sparsity_config': expected none"},
        {COMPRESSED("pack-quantized", "\"num_bits\": 4",
                    ", \"transform_config\": {\"config_groups\": {\"R1\": {}}}"),
         "'transform_config': expected none"},
        {QUANTISED("\"quant_method\": \"compressed-tensors\", \"format\": \"pack-quantized\""),
         "'config_groups': expected groups with 'weights', found nothing"},
    };
    parsed(text_of("llama", "\"quantization_config\": null"));
    char text[200];
    snprintf(text, sizeof(text), "\"quantization_config\": {%s}", awq);
    parsed(text_of("llama", text));
    for (size_t i = 0; i < AQ_ARRAY_LEN(table); i++)
        must_refuse("llama", table[i].more, table[i].want);
}

static void groups_may_be_of_different_forms(void **state)
{
    struct aq_model_config c = parsed(text_of(
        "llama",
        QUANTISED("\"quant_method\": \"compressed-tensors\", \"format\": \"mixed-precision\", "
                  "\"config_groups\": {\"a\": {\"format\": \"float-quantized\", \"weights\": "
                  "{\"num_bits\": 8, \"type\": \"float\", \"strategy\": \"block\", "
                  "\"block_structure\": [128, 64]}}, \"b\": {\"format\": \"pack-quantized\", "
                  "\"weights\": {\"num_bits\": 4, \"type\": \"int\", \"strategy\": \"group\", "
                  "\"group_size\": 32, \"symmetric\": false, \"actorder\": \"weight\"}}, "
                  "\"c\": {\"weights\": null, \"input_activations\": {\"num_bits\": 8}}}")));
    assert_int_equal(c.quantised.count, 2);
    assert_true(c.quantised.activations);
    assert_int_equal(c.quantised.scheme[0].block_rows, 128);
    assert_int_equal(c.quantised.scheme[0].block_k, 64);
    assert_int_equal(c.quantised.scheme[1].bits, 4);
    assert_int_equal(c.quantised.scheme[1].block_k, 32);
    assert_true(c.quantised.scheme[1].zeros);
    assert_false(c.quantised.scheme[1].order);
}

static void rotations_that_are_not_known_are_refused_by_name(void **state)
{
#define SCALING(text) "\"rope_scaling\": {" text "}"
    static const struct {
        const char *type, *more, *want;
    } table[] = {
        {"llama", SCALING("\"rope_type\": \"mrope\", \"factor\": 2"),
         "'rope_scaling.rope_type': expected default or linear or dynamic or llama3 or yarn or "
         "longrope or su, found \"mrope\""},
        {"llama", SCALING("\"type\": 3"), "'rope_scaling.type': expected default"},
        {"llama", "\"rope_parameters\": {\"rope_type\": \"proportional\"}",
         "'rope_parameters.rope_type': expected default"},
        {"llama", "\"rope_parameters\": {\"full_attention\": {\"rope_theta\": 10000}}",
         "'rope_parameters.full_attention': expected one set of numbers for all layers"},
        {"llama", "\"rope_scaling\": 4", "'rope_scaling': expected an object, found 4"},
        {"llama", SCALING("\"factor\": 2"), "expected a 'rope_type' beside 'factor'"},
        {"llama", SCALING("\"type\": \"linear\""), "'rope_scaling.factor': expected a number"},
        {"llama", SCALING("\"type\": \"linear\", \"factor\": 0.5"),
         "'rope_scaling.factor': expected a number from 1 to 1e+06, found 0.5"},
        {"llama", SCALING("\"type\": \"linear\", \"factor\": \"2\""), "found \"2\""},
        {"llama", "\"rope_theta\": 0", "'rope_theta': expected a number from 2 to 1e+18, found 0"},
        {"llama",
         SCALING("\"type\": \"llama3\", \"factor\": 8, \"low_freq_factor\": 4, "
                 "\"high_freq_factor\": 1"),
         "expected a 'low_freq_factor' below 'high_freq_factor', found 4 and 1"},
        {"llama", SCALING("\"type\": \"llama3\", \"factor\": 8"), "found 0 and 0"},
        {"llama", SCALING("\"type\": \"yarn\", \"factor\": 8, \"truncate\": 1"),
         "'rope_scaling.truncate': expected true or false, found 1"},
        {"phi3", SCALING("\"type\": \"longrope\", \"short_factor\": [1, 1, 1, 1, 1, 1]"),
         "'rope_scaling.long_factor': expected 6 numbers above 0, one for each pair that turns, "
         "found nothing"},
        {"phi3", SCALING("\"type\": \"su\", \"short_factor\": [1, 1]"),
         "'rope_scaling.short_factor': expected 6 numbers above 0"},
        {"phi3", SCALING("\"type\": \"yarn\", \"short_factor\": [1, 1, 1, 1, 1, 0]"),
         "'rope_scaling.short_factor': expected 6 numbers above 0"},
        {"gpt_neox", "", "expected an even number of each head's 12 values to turn, found 3"},
        {"llama", "\"partial_rotary_factor\": 0", "values to turn, found 0"},
        {"llama", "\"partial_rotary_factor\": 1.5", "expected a number from 0 to 1, found 1.5"},
    };
    for (size_t i = 0; i < AQ_ARRAY_LEN(table); i++)
        must_refuse(table[i].type, table[i].more, table[i].want);
#undef SCALING
}

static void words_and_sizes_that_do_not_fit_are_refused(void **state)
{
    must_refuse("mistral",
                "\"sliding_window\": 9, \"layer_types\": [\"full_attention\", "
                "\"chunked_attention\", \"full_attention\", \"full_attention\"]",
                "'layer_types': expected full_attention or sliding_attention, found "
                "\"chunked_attention\"");
    must_refuse("mistral", "\"sliding_window\": 9, \"layer_types\": [\"full_attention\"]",
                "'layer_types': expected 4 words, one for each layer");
    must_refuse("mistral", "\"sliding_window\": 0", "'sliding_window': expected 1 to");
    must_refuse("llama", "\"hidden_act\": \"quick_gelu\"", "'hidden_act': expected relu");
    must_refuse("llama", "\"num_key_value_heads\": 3",
                "'num_key_value_heads': expected a divisor of 'num_attention_heads' 4, found 3");
    must_refuse("llama", "\"rms_norm_eps\": \"small\"", "'rms_norm_eps': expected a number");
    must_refuse("llama", "\"head_dim\": 5000", "'head_dim': expected 1 to 4096, found 5000");
    struct aq_model_config c;
    struct aq_err err = {0};
    assert_int_equal(parse(&c,
                           "{\"model_type\": \"qwen3\", \"vocab_size\": 9, \"hidden_size\": 8, "
                           "\"intermediate_size\": 8, \"num_hidden_layers\": 1, "
                           "\"num_attention_heads\": 16384, \"max_position_embeddings\": 8}",
                           &err),
                     -ENOEXEC);
    assert_non_null(strstr(err.text, "'head_dim': expected at most 1048576 values of 16384 heads"));
}

/* ---- rotary tables ---- */

static void check_table(const char *name, const struct aq_rotary *r, uint32_t table,
                        const json_t *row)
{
    const json_t *want = json_array_get(json_object_get(row, "frequencies"), table);
    double factor = json_number_value(json_array_get(json_object_get(row, "factors"), table));
    assert_non_null(r->frequency[table]);
    assert_int_equal(json_array_size(want), r->dims / 2);
    assert_true(fabs(r->factor[table] - factor) <= 1e-7 * factor);
    for (uint32_t i = 0; i < r->dims / 2; i++) {
        float f = (float)json_number_value(json_array_get(want, i));
        /* Rounded once on both sides; the last bit of a pow() in f64 is left. */
        if (fabsf(r->frequency[table][i] - f) > 1.2e-7f * f)
            fail_msg("%s: frequency %u is %.9g, expected %.9g", name, i,
                     (double)r->frequency[table][i], (double)f);
    }
}

static void tables_are_those_of_the_formulas(void **state)
{
    json_t *rows;
    struct aq_err err = {0};
    const char *path = test_data_path("../golden/families/rotary.json");
    if (aq_json_read_file(&rows, path, AQ_MIB, &err) < 0)
        fail_msg("%s", err.text);
    assert_true(json_array_size(rows) >= 12);
    for (size_t i = 0; i < json_array_size(rows); i++) {
        const json_t *row = json_array_get(rows, i);
        const char *name = json_string_value(json_object_get(row, "name"));
        json_int_t long_from = json_integer_value(json_object_get(row, "long_from"));
        struct aq_model_config c;
        struct aq_model_steps m;
        if (aq_model_config_read_json(&c, json_object_get(row, "config"), name, &err) < 0 ||
            aq_arch_steps(&m, &c, &err) < 0)
            fail_msg("%s", err.text);
        assert_int_equal(m.rotary.dims, json_integer_value(json_object_get(row, "dims")));
        assert_int_equal(m.rotary.long_from, long_from);
        check_table(name, &m.rotary, 0, row);
        if (long_from)
            check_table(name, &m.rotary, 1, row);
        else
            assert_null(m.rotary.frequency[1]);
        aq_steps_close(&m);
    }
    json_decref(rows);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(every_spelling_of_a_configuration_means_the_same),
    cmocka_unit_test(two_values_in_two_places_are_refused_with_both),
    cmocka_unit_test(absent_keys_mean_what_the_family_means_by_it),
    cmocka_unit_test(keys_are_read_where_the_family_has_them),
    cmocka_unit_test(windows_are_of_the_layers_that_have_them),
    cmocka_unit_test(the_first_files_have_another_key_for_positions),
    cmocka_unit_test(yarn_adds_positions_where_the_file_leaves_it_to_the_factor),
    cmocka_unit_test(the_text_of_a_model_of_pictures_is_read),
    cmocka_unit_test(other_models_are_refused_by_name_with_what_is_known),
    cmocka_unit_test(forms_of_quantised_checkpoints_that_are_not_read_are_refused_by_name),
    cmocka_unit_test(variants_of_forms_that_are_not_read_are_refused_by_key_and_value),
    cmocka_unit_test(groups_may_be_of_different_forms),
    cmocka_unit_test(rotations_that_are_not_known_are_refused_by_name),
    cmocka_unit_test(words_and_sizes_that_do_not_fit_are_refused),
    cmocka_unit_test(tables_are_those_of_the_formulas),
};
AQ_TEST_MAIN(tests)
