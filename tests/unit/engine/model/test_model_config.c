/* SPDX-License-Identifier: Apache-2.0 */
#include "base/json.h"
#include "engine/model/arch/arch.h"
#include "engine/model/shapes.h"
#include "tests/test.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *data_path(char *path, const char *format, const char *name)
{
    char tail[256];
    snprintf(tail, sizeof(tail), format, name);
    snprintf(path, PATH_MAX, "%s", test_data_path(tail));
    return path;
}

/* A correct, minimal config with `more` put in front of its keys: the first of two equal keys would
 * lose, so tests replace a key by naming it in `without`. */
static int parse_with(struct aq_model_config *c, const char *without, const char *more,
                      struct aq_err *err)
{
    static const char *const keys[] = {
        "\"model_type\": \"opt\"",
        "\"vocab_size\": 100",
        "\"hidden_size\": 8",
        "\"ffn_dim\": 32",
        "\"num_hidden_layers\": 2",
        "\"num_attention_heads\": 2",
        "\"max_position_embeddings\": 16",
    };
    char text[1024] = "{";
    for (size_t i = 0; i < AQ_ARRAY_LEN(keys); i++) {
        size_t n = strlen(without);
        if (n && strncmp(keys[i] + 1, without, n) == 0)
            continue;
        strcat(text, keys[i]);
        strcat(text, ", ");
    }
    strcat(text, *more ? more : "\"x\": 0");
    strcat(text, "}");
    return aq_model_config_parse(c, text, strlen(text), "config", err);
}

/* tests/data/opt-configs has these. */
static bool is_recorded(const char *shape)
{
    return strncmp(shape, "opt-", 4) == 0;
}

static void published_files_equal_the_named_shapes(void **state)
{
    for (uint32_t i = 0; aq_shape_name(i) && is_recorded(aq_shape_name(i)); i++) {
        char path[PATH_MAX];
        struct aq_model_config read, named;
        struct aq_err err = {0};
        data_path(path, "opt-configs/%s.config.json", aq_shape_name(i));
        if (aq_model_config_read_file(&read, path, &err) < 0)
            fail_msg("%s", err.text);
        assert_int_equal(aq_shape_find(&named, aq_shape_name(i), &err), 0);
        assert_memory_equal(&read, &named, sizeof(read));
    }
}

/* Every tensor of the published lists is a matrix or a vector part of the steps, with its shape,
 * and the steps have no other. */
static const char *step_tensor_shape(const struct aq_model_steps *m, const char *name, char *shape)
{
    for (uint32_t i = 0; i < m->step_count; i++) {
        const struct aq_step_desc *s = &m->step[i];
        for (uint32_t j = 0; j < s->matrix_count; j++)
            if (strcmp(s->matrix[j].name, name) == 0) {
                sprintf(shape, "%ux%u", s->matrix[j].rows, s->matrix[j].k);
                return shape;
            }
        for (uint32_t j = 0; j < s->vector_count; j++)
            for (uint32_t k = 0; k < s->vector[j].part_count; k++)
                if (strcmp(s->vector[j].part[k].name, name) == 0) {
                    sprintf(shape, "%u", s->vector[j].part[k].count);
                    return shape;
                }
    }
    return "absent";
}

static void shapes_give_every_published_tensor(void **state)
{
    for (uint32_t i = 0; aq_shape_name(i) && is_recorded(aq_shape_name(i)); i++) {
        char path[PATH_MAX], line[512], shape[64];
        struct aq_model_config c;
        struct aq_model_steps steps;
        uint64_t numel_sum = 0;
        assert_int_equal(aq_shape_find(&c, aq_shape_name(i), NULL), 0);
        assert_int_equal(aq_arch_steps(&steps, &c, NULL), 0);
        FILE *f = fopen(data_path(path, "opt-configs/%s.tensors.tsv", aq_shape_name(i)), "r");
        assert_non_null(f);
        assert_non_null(fgets(line, sizeof(line), f)); /* the header */
        while (fgets(line, sizeof(line), f)) {
            char tensor[256], want[64];
            unsigned long long numel;
            assert_int_equal(sscanf(line, "decoder.%255s %63s %llu", tensor, want, &numel), 3);
            assert_string_equal(step_tensor_shape(&steps, tensor, shape), want);
            numel_sum += numel;
        }
        fclose(f);
        assert_int_equal(steps.parameters, numel_sum);
        aq_steps_close(&steps);
    }
}

static void parameters_equal_the_published_sums(void **state)
{
    char path[PATH_MAX];
    json_t *summary;
    data_path(path, "opt-configs/%s", "summary.json");
    assert_int_equal(aq_json_read_file(&summary, path, 1 << 20, NULL), 0);
    const char *size;
    json_t *row;
    unsigned rows = 0;
    json_object_foreach(summary, size, row)
    {
        char name[64];
        struct aq_model_config c;
        struct aq_model_steps steps;
        snprintf(name, sizeof(name), "opt-%s", size);
        assert_int_equal(aq_shape_find(&c, name, NULL), 0);
        assert_int_equal(aq_arch_steps(&steps, &c, NULL), 0);
        assert_int_equal(steps.parameters, json_integer_value(json_object_get(row, "params")));
        aq_steps_close(&steps);
        rows++;
    }
    json_decref(summary);
    assert_int_equal(rows, 9);
}

static void a_checkpoint_directory_is_read(void **state)
{
    char path[PATH_MAX];
    struct aq_model_config c;
    assert_int_equal(aq_model_config_read(&c, data_path(path, "%s", "tiny-opt"), NULL), 0);
    assert_int_equal(c.hidden_size, 256);
    assert_int_equal(c.head_dim, 32);
    assert_int_equal(c.layers, 6);
    assert_int_equal(c.max_positions, 1024);
    assert_int_equal(c.torch_dtype, AQ_F16);
    assert_int_equal(c.eos_count, 1);
}

static void absent_keys_take_the_library_defaults(void **state)
{
    struct aq_model_config c;
    assert_int_equal(parse_with(&c, "", "", NULL), 0);
    assert_true(c.norm_first && c.qkv_bias && c.out_bias && c.mlp_bias && c.norm_affine &&
                c.tie_word_embeddings && c.final_norm);
    assert_int_equal(c.embed_width, 8);
    assert_int_equal(c.activation, AQ_ACT_RELU);
    assert_int_equal(c.torch_dtype, AQ_DTYPE_COUNT);
    assert_int_equal(c.bos_id, 2);
    assert_int_equal(c.pad_id, 1);
    assert_int_equal(c.eos_count, 1);
    assert_int_equal(c.eos_id[0], 2);
}

static void switches_are_read_from_the_file(void **state)
{
    struct aq_model_config c;
    assert_int_equal(parse_with(&c, "",
                                "\"do_layer_norm_before\": false, \"enable_bias\": false, "
                                "\"_remove_final_layer_norm\": true, \"word_embed_proj_dim\": 4, "
                                "\"layer_norm_elementwise_affine\": false, "
                                "\"tie_word_embeddings\": false, \"activation_function\": \"gelu\"",
                                NULL),
                     0);
    assert_true(!c.norm_first && !c.qkv_bias && !c.out_bias && !c.mlp_bias && !c.norm_affine &&
                !c.tie_word_embeddings && !c.final_norm);
    assert_int_equal(c.embed_width, 4);
    assert_int_equal(c.activation, AQ_ACT_GELU);
}

static void activation_names_map_to_what_they_compute(void **state)
{
    static const struct {
        const char *name;
        enum aq_activation want;
    } table[] = {
        {"relu", AQ_ACT_RELU},
        {"gelu", AQ_ACT_GELU},
        {"gelu_new", AQ_ACT_GELU_TANH},
        {"gelu_fast", AQ_ACT_GELU_TANH},
        {"silu", AQ_ACT_SILU},
        {"swish", AQ_ACT_SILU},
        {"gelu_pytorch_tanh", AQ_ACT_GELU_TANH},
    };
    for (size_t i = 0; i < AQ_ARRAY_LEN(table); i++) {
        char more[128];
        struct aq_model_config c;
        snprintf(more, sizeof(more), "\"activation_function\": \"%s\"", table[i].name);
        assert_int_equal(parse_with(&c, "", more, NULL), 0);
        assert_int_equal(c.activation, table[i].want);
    }
}

static void an_unknown_activation_is_named(void **state)
{
    struct aq_model_config c;
    struct aq_err err;
    assert_int_equal(parse_with(&c, "", "\"activation_function\": \"quick_gelu\"", &err), -ENOEXEC);
    assert_non_null(strstr(err.text, "'activation_function'"));
    assert_non_null(strstr(err.text, "gelu_pytorch_tanh")); /* as all others that are known */
    assert_non_null(strstr(err.text, " or swish, found 'quick_gelu'"));
    assert_non_null(strstr(err.text, "'quick_gelu'"));
}

static void a_type_of_number_may_have_either_key(void **state)
{
    struct aq_model_config c;
    assert_int_equal(parse_with(&c, "", "\"torch_dtype\": \"bfloat16\"", NULL), 0);
    assert_int_equal(c.torch_dtype, AQ_BF16);
    assert_int_equal(parse_with(&c, "", "\"dtype\": \"torch.float32\"", NULL), 0);
    assert_int_equal(c.torch_dtype, AQ_F32);
    assert_int_equal(parse_with(&c, "", "\"torch_dtype\": \"float8_e4m3fn\"", NULL), 0);
    assert_int_equal(c.torch_dtype, AQ_DTYPE_COUNT);
}

static void eos_may_be_a_list_and_null_means_none(void **state)
{
    struct aq_model_config c;
    assert_int_equal(parse_with(&c, "", "\"eos_token_id\": [7, 2, 7]", NULL), 0);
    assert_int_equal(c.eos_count, 2);
    assert_int_equal(c.eos_id[0], 7);
    assert_int_equal(c.eos_id[1], 2);
    assert_int_equal(parse_with(&c, "", "\"eos_token_id\": null, \"bos_token_id\": null", NULL), 0);
    assert_int_equal(c.eos_count, 0);
    assert_int_equal(c.bos_id, -1);
}

static void the_generation_file_adds_its_eos(void **state)
{
    char dir[] = "/tmp/aq-config-XXXXXX", path[PATH_MAX];
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof(path), "%s/config.json", dir);
    FILE *f = fopen(path, "w");
    fputs("{\"model_type\": \"opt\", \"vocab_size\": 100, \"hidden_size\": 8, \"ffn_dim\": 32, "
          "\"num_hidden_layers\": 1, \"num_attention_heads\": 2, \"max_position_embeddings\": 16, "
          "\"eos_token_id\": 2}",
          f);
    fclose(f);
    struct aq_model_config c;
    assert_int_equal(aq_model_config_read(&c, dir, NULL), 0);
    assert_int_equal(c.eos_count, 1);
    char generation[PATH_MAX];
    snprintf(generation, sizeof(generation), "%s/generation_config.json", dir);
    f = fopen(generation, "w");
    fputs("{\"eos_token_id\": [2, 99]}", f);
    fclose(f);
    assert_int_equal(aq_model_config_read(&c, dir, NULL), 0);
    assert_int_equal(c.eos_count, 2);
    assert_int_equal(c.eos_id[1], 99);
    unlink(path);
    unlink(generation);
    rmdir(dir);
}

static void other_architectures_are_refused_by_name(void **state)
{
    struct aq_model_config c;
    struct aq_err err;
    assert_int_equal(parse_with(&c, "model_type", "\"model_type\": \"bloom\"", &err), -ENOEXEC);
    assert_non_null(strstr(err.text, "'bloom' is not supported yet"));
    assert_int_equal(parse_with(&c, "model_type", "\"model_type\": \"mixtral\"", &err), -ENOEXEC);
    assert_non_null(strstr(err.text, "'mixtral' is not supported yet"));
    assert_int_equal(parse_with(&c, "model_type", "", &err), -ENOEXEC);
    assert_non_null(strstr(err.text, "'model_type'"));
}

static void a_quantised_checkpoint_is_refused(void **state)
{
    struct aq_model_config c;
    struct aq_err err;
    assert_int_equal(parse_with(&c, "", "\"quantization_config\": {\"bits\": 4}", &err), -ENOEXEC);
    assert_non_null(strstr(err.text, "'quantization_config'"));
}

/* Each error names the file, the key, what was expected and, where there is one, what was found. */
static void absurd_shapes_are_refused_with_key_and_figures(void **state)
{
    static const struct {
        const char *key, *value, *want;
    } table[] = {
        {"vocab_size", "0", "expected 1 to 16777216, found 0"},
        {"vocab_size", "-5", "found -5"},
        {"vocab_size", "99999999999", "found 99999999999"},
        {"vocab_size", "\"many\"", "expected an integer, found a"},
        {"vocab_size", "null", "found nothing"},
        {"hidden_size", "1048577", "found 1048577"},
        {"hidden_size", "9223372036854775807", "expected 1 to 1048576, found 92233720"},
        {"hidden_size", "8.5", "expected an integer, found a"},
        {"ffn_dim", "0", "found 0"},
        {"num_hidden_layers", "1000000", "expected"},
        {"num_attention_heads", "3", "expected a divisor of 'hidden_size' 8, found 3"},
        {"num_attention_heads", "0", "found 0"},
        {"max_position_embeddings", "0", "found 0"},
        {"max_position_embeddings", "[2048]", "expected an integer, found a"},
    };
    for (size_t i = 0; i < AQ_ARRAY_LEN(table); i++) {
        char more[128];
        struct aq_model_config c;
        struct aq_err err = {0};
        snprintf(more, sizeof(more), "\"%s\": %s", table[i].key, table[i].value);
        assert_int_equal(parse_with(&c, table[i].key, more, &err), -ENOEXEC);
        char key[64];
        snprintf(key, sizeof(key), "config: '%s': ", table[i].key);
        if (!strstr(err.text, key) || !strstr(err.text, table[i].want))
            fail_msg("%s: %s: %s", table[i].key, table[i].value, err.text);
    }
}

static void a_missing_size_is_named(void **state)
{
    struct aq_model_config c;
    struct aq_err err;
    assert_int_equal(parse_with(&c, "ffn_dim", "", &err), -ENOEXEC);
    assert_non_null(strstr(err.text, "'ffn_dim': expected 1 to"));
}

static void token_ids_outside_the_vocabulary_are_refused(void **state)
{
    struct aq_model_config c;
    struct aq_err err;
    assert_int_equal(parse_with(&c, "", "\"eos_token_id\": 100", &err), -ENOEXEC);
    assert_non_null(strstr(err.text, "expected a token id from 0 to 99, found 100"));
    assert_int_equal(parse_with(&c, "", "\"bos_token_id\": -2", &err), -ENOEXEC);
    assert_int_equal(parse_with(&c, "", "\"eos_token_id\": [1, \"</s>\"]", &err), -ENOEXEC);
    assert_int_equal(parse_with(&c, "", "\"eos_token_id\": [0,1,2,3,4,5,6,7,8]", &err), -ENOEXEC);
    assert_non_null(strstr(err.text, "at most 8 ids"));
}

static void text_that_is_no_config_is_refused(void **state)
{
    static const char *const texts[] = {"", "[]", "3", "{", "\"opt\"", "{\"model_type\": 3}"};
    for (size_t i = 0; i < AQ_ARRAY_LEN(texts); i++) {
        struct aq_model_config c;
        struct aq_err err = {0};
        assert_int_equal(aq_model_config_parse(&c, texts[i], strlen(texts[i]), "config", &err),
                         -ENOEXEC);
        assert_int_equal(strncmp(err.text, "config: ", 8), 0);
    }
}

static void an_absent_config_is_named(void **state)
{
    struct aq_model_config c;
    struct aq_err err;
    assert_int_equal(aq_model_config_read(&c, "/nonexistent", &err), -ENOENT);
    assert_non_null(strstr(err.text, "/nonexistent/config.json"));
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(published_files_equal_the_named_shapes),
    cmocka_unit_test(shapes_give_every_published_tensor),
    cmocka_unit_test(parameters_equal_the_published_sums),
    cmocka_unit_test(a_checkpoint_directory_is_read),
    cmocka_unit_test(absent_keys_take_the_library_defaults),
    cmocka_unit_test(switches_are_read_from_the_file),
    cmocka_unit_test(activation_names_map_to_what_they_compute),
    cmocka_unit_test(an_unknown_activation_is_named),
    cmocka_unit_test(a_type_of_number_may_have_either_key),
    cmocka_unit_test(eos_may_be_a_list_and_null_means_none),
    cmocka_unit_test(the_generation_file_adds_its_eos),
    cmocka_unit_test(other_architectures_are_refused_by_name),
    cmocka_unit_test(a_quantised_checkpoint_is_refused),
    cmocka_unit_test(absurd_shapes_are_refused_with_key_and_figures),
    cmocka_unit_test(a_missing_size_is_named),
    cmocka_unit_test(token_ids_outside_the_vocabulary_are_refused),
    cmocka_unit_test(text_that_is_no_config_is_refused),
    cmocka_unit_test(an_absent_config_is_named),
};
AQ_TEST_MAIN(tests)
