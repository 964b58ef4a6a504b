/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/test.h"

#include "engine/model/arch/arch.h"
#include "engine/model/shapes.h"

#include <string.h>

static bool ends_with_one(const char *name, const char *const *ends)
{
    for (; *ends; ends++) {
        size_t n = strlen(name), m = strlen(*ends);
        if (n >= m && strcmp(name + n - m, *ends) == 0)
            return true;
    }
    return false;
}

static void every_row_is_found_by_its_name(void **state)
{
    char names[256];
    uint32_t count = 0;
    aq_arch_names(names, sizeof(names));
    for (char *rest, *name = strtok_r(names, ", ", &rest); name;
         name = strtok_r(NULL, ", ", &rest)) {
        const struct aq_arch *a = aq_arch_find(name);
        assert_non_null(a);
        assert_string_equal(a->name, name);
        assert_true(a->read_config && a->steps && a->prefixes && a->aliases && a->residual_writers);
        bool bare = false;
        for (const char *const *p = a->prefixes; *p; p++)
            bare = bare || !**p;
        assert_true(bare); /* stores keep tensors under their bare names */
        count++;
    }
    assert_true(count > 0);
}

static void an_unknown_architecture_is_refused_with_the_list(void **state)
{
    static const char text[] = "{\"model_type\": \"no-such-model\", \"vocab_size\": 10}",
                      none[] = "{\"vocab_size\": 10}";
    char names[256], want[512];
    struct aq_model_config c;
    struct aq_err err = {0};
    assert_null(aq_arch_find("no-such-model"));
    assert_null(aq_arch_find(""));
    assert_int_equal(aq_model_config_parse(&c, text, strlen(text), "config", &err), -ENOEXEC);
    snprintf(want, sizeof(want),
             "config: 'model_type': 'no-such-model' is not supported yet; this version runs %s",
             aq_arch_names(names, sizeof(names)));
    assert_string_equal(err.text, want);
    assert_int_equal(aq_model_config_parse(&c, none, strlen(none), "config", &err), -ENOEXEC);
    snprintf(want, sizeof(want), "config: 'model_type': expected %s, found nothing", names);
    assert_string_equal(err.text, want);
}

static void a_tensor_is_looked_for_behind_each_prefix_then_by_its_alias(void **state)
{
    const struct aq_arch *a = aq_arch_find("opt");
    static const char *const norm[] = {
        "model.decoder.final_layer_norm.bias",
        "decoder.final_layer_norm.bias",
        "final_layer_norm.bias",
        "model.final_layer_norm.bias",
        "model.decoder.layer_norm.bias",
        "decoder.layer_norm.bias",
        "layer_norm.bias",
        "model.layer_norm.bias",
    };
    char text[2 * AQ_NAME_MAX];
    uint32_t variant = 0;
    for (; aq_arch_tensor_name(a, "final_layer_norm.bias", variant, text); variant++) {
        assert_true(variant < AQ_ARRAY_LEN(norm));
        assert_string_equal(text, norm[variant]);
    }
    assert_int_equal(variant, AQ_ARRAY_LEN(norm));
    for (variant = 0; aq_arch_tensor_name(a, "layers.0.fc1.weight", variant, text);)
        variant++;
    assert_int_equal(variant, 4); /* no alias */
}

/* Of each product whether it adds to the residual stream, as its row's list of names has it. */
static uint32_t check_writers(const struct aq_step_desc *s, const char *const *writers)
{
    uint32_t adding = 0;
    for (int half = 0; half < AQ_STEP_HALVES; half++) {
        for (uint32_t i = 0; i < s->half[half].count; i++) {
            const struct aq_prim *p = &s->half[half].prim[i];
            bool adds = p->kind == AQ_PRIM_PRODUCT && p->dst == AQ_REG_HIDDEN &&
                        p->combine == AQ_COMBINE_ADD;
            for (uint32_t m = 0; m < p->matrix_count; m++) {
                if (ends_with_one(s->matrix[p->matrix[m]].name, writers) != adds)
                    fail_msg("%s: adds to the residual stream: %d", s->matrix[p->matrix[m]].name,
                             adds);
                adding += adds;
            }
        }
    }
    return adding;
}

static void residual_writers_are_the_products_that_add_to_it(void **state)
{
    for (uint32_t i = 0; aq_shape_name(i); i++) {
        struct aq_model_config c;
        struct aq_model_steps m;
        uint32_t adding = 0;
        assert_int_equal(aq_shape_find(&c, aq_shape_name(i), NULL), 0);
        assert_int_equal(aq_arch_steps(&m, &c, NULL), 0);
        for (uint32_t s = 0; s < m.step_count; s++)
            adding += check_writers(&m.step[s], c.arch->residual_writers);
        assert_int_equal(adding, 2 * c.layers);
        aq_steps_close(&m);
    }
}

/* ---- lists of steps, as text ---- */

static char lists[4096];

static void say(const char *format, ...)
{
    size_t n = strlen(lists);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(lists + n, sizeof(lists) - n, format, arguments);
    va_end(arguments);
    assert_true(strlen(lists) + 1 < sizeof(lists));
}

/* Without the layer, which all names of a list share. */
static void say_name(const char *name)
{
    unsigned layer;
    int n = 0;
    if (sscanf(name, "layers.%u.%n", &layer, &n) == 1 && n)
        assert_int_equal(layer, 1);
    say(" %s", name + n);
}

static void say_vector(const struct aq_step_desc *s, const char *what, int8_t index)
{
    if (index < 0)
        return;
    const struct aq_vector_desc *v = &s->vector[index];
    uint32_t count = 0;
    say(" %s", what);
    for (uint32_t i = 0; i < v->part_count; i++) {
        say_name(v->part[i].name);
        count += v->part[i].count;
    }
    assert_int_equal(count, v->count);
}

static void say_list(const struct aq_step_desc *s, const struct aq_prim_list *list)
{
    static const char *const kinds[] = {"gather", "position", "norm", "product", "rotate"};
    static const char *const registers[] = {"",     "hidden", "qkv",   "attention",
                                            "norm", "inner",  "embed", "logits"};
    static const char *const combines[] = {"", "+", "*"};
    static const char *const norms[] = {"", " rms", " cast"};
    for (uint32_t i = 0; i < list->count; i++) {
        const struct aq_prim *p = &list->prim[i];
        say("%s%s %s>%s%s", kinds[p->kind], norms[p->norm], registers[p->src], registers[p->dst],
            combines[p->combine]);
        for (uint32_t m = 0; m < p->matrix_count; m++)
            say_name(s->matrix[p->matrix[m]].name);
        say_vector(s, "weight", p->weight);
        say_vector(s, "bias", p->bias);
        if (p->activation)
            say(" act %d", (int)p->activation);
        say("\n");
    }
}

/* The lists of layer 1, and of the head, of a configuration with `more` keys. */
static const char *lists_of(const char *type, const char *more)
{
    char text[1024];
    struct aq_model_config c;
    struct aq_model_steps m;
    struct aq_err err = {0};
    snprintf(text, sizeof(text),
             "{\"model_type\": \"%s\", \"vocab_size\": 100, \"hidden_size\": 32, "
             "\"intermediate_size\": 64, \"num_hidden_layers\": 2, \"num_attention_heads\": 4, "
             "\"max_position_embeddings\": 64%s}",
             type, more);
    if (aq_model_config_parse(&c, text, strlen(text), "config", &err) < 0)
        fail_msg("%s", err.text);
    assert_int_equal(aq_arch_steps(&m, &c, NULL), 0);
    lists[0] = '\0';
    say_list(&m.step[0], &m.step[0].half[0]);
    for (uint32_t s = m.step_count / 2; s < m.step_count; s++) {
        const struct aq_step_desc *d = &m.step[s];
        say("%s:\n", d->kind == AQ_STEP_ATTENTION ? "attention"
                     : d->kind == AQ_STEP_MLP     ? "mlp"
                                                  : "head");
        for (int half = 0; half < AQ_STEP_HALVES; half++) {
            say(half && d->half[half].count ? "then:\n" : "");
            say_list(d, &d->half[half]);
        }
    }
    aq_steps_close(&m);
    return lists;
}

static void a_gate_multiplies_what_stands_in_front_of_it(void **state)
{
    assert_string_equal(lists_of("llama", ""),
                        "gather >hidden embed_tokens.weight\n"
                        "attention:\n"
                        "norm rms hidden>norm weight input_layernorm.weight\n"
                        "product norm>qkv self_attn.q_proj.weight self_attn.k_proj.weight "
                        "self_attn.v_proj.weight\n"
                        "rotate qkv>qkv\n"
                        "then:\n"
                        "product attention>hidden+ self_attn.o_proj.weight\n"
                        "mlp:\n"
                        "norm rms hidden>norm weight post_attention_layernorm.weight\n"
                        "product norm>inner mlp.gate_proj.weight act 4\n"
                        "product norm>inner* mlp.up_proj.weight\n"
                        "then:\n"
                        "product inner>hidden+ mlp.down_proj.weight\n"
                        "head:\n"
                        "norm rms hidden>norm weight norm.weight\n"
                        "product norm>logits lm_head.weight\n");
}

static void biases_norms_of_heads_and_ties_are_where_the_row_has_them(void **state)
{
    const char *list = lists_of("qwen2", ", \"tie_word_embeddings\": true");
    assert_non_null(strstr(list, "self_attn.v_proj.weight bias self_attn.q_proj.bias "
                                 "self_attn.k_proj.bias self_attn.v_proj.bias\n"));
    assert_non_null(strstr(list, "hidden+ self_attn.o_proj.weight\n"));
    assert_non_null(strstr(list, "norm>logits embed_tokens.weight\n"));
    list = lists_of("qwen3", ", \"head_dim\": 20");
    assert_non_null(strstr(list, "self_attn.v_proj.weight\n"
                                 "rotate qkv>qkv weight self_attn.q_norm.weight bias "
                                 "self_attn.k_norm.weight\n"));
    list = lists_of("llama", ", \"attention_bias\": true, \"mlp_bias\": true");
    assert_non_null(strstr(list, "hidden+ self_attn.o_proj.weight bias self_attn.o_proj.bias\n"));
    assert_non_null(strstr(list, "inner mlp.gate_proj.weight bias mlp.gate_proj.bias act 4\n"
                                 "product norm>inner* mlp.up_proj.weight bias mlp.up_proj.bias\n"));
    assert_non_null(strstr(list, "hidden+ mlp.down_proj.weight bias mlp.down_proj.bias\n"));
}

static void a_parallel_layer_is_one_step_whose_norms_read_the_same(void **state)
{
    assert_string_equal(
        lists_of("gpt_neox", ""),
        "gather >hidden embed_in.weight\n"
        "attention:\n"
        "norm hidden>norm weight input_layernorm.weight bias input_layernorm.bias\n"
        "product norm>qkv attention.query_key_value.weight#q attention.query_key_value.weight#k "
        "attention.query_key_value.weight#v bias attention.query_key_value.bias#q "
        "attention.query_key_value.bias#k attention.query_key_value.bias#v\n"
        "rotate qkv>qkv\n"
        "then:\n"
        "norm hidden>norm weight post_attention_layernorm.weight bias "
        "post_attention_layernorm.bias\n"
        "product attention>hidden+ attention.dense.weight bias attention.dense.bias\n"
        "product norm>inner mlp.dense_h_to_4h.weight bias mlp.dense_h_to_4h.bias act 2\n"
        "product inner>hidden+ mlp.dense_4h_to_h.weight bias mlp.dense_4h_to_h.bias\n"
        "head:\n"
        "norm hidden>norm weight final_layer_norm.weight bias final_layer_norm.bias\n"
        "product norm>logits embed_out.weight\n");
    const char *list = lists_of("gpt_neox", ", \"use_parallel_residual\": false");
    assert_non_null(strstr(list, "then:\n"
                                 "product attention>hidden+ attention.dense.weight bias "
                                 "attention.dense.bias\n"
                                 "mlp:\n"
                                 "norm hidden>norm weight post_attention_layernorm.weight"));
}

static void must_be_rows(const struct aq_tensor_rows *from, uint32_t rows, const uint32_t *want)
{
    for (uint32_t r = 0; r < rows; r++)
        assert_int_equal(from->first + r / from->block * from->every + r % from->block, want[r]);
}

static void fused_tensors_are_taken_apart_row_by_row(void **state)
{
    static const char fused[] = "{\"model_type\": \"%s\", \"vocab_size\": 9, \"hidden_size\": 8, "
                                "\"intermediate_size\": 3, \"num_hidden_layers\": 1, "
                                "\"num_attention_heads\": 2, \"max_position_embeddings\": 64%s}";
    static const uint32_t by_head[3][8] = {
        {0, 1, 2, 3, 12, 13, 14, 15}, {4, 5, 6, 7, 16, 17, 18, 19}, {8, 9, 10, 11, 20, 21, 22, 23}};
    static const uint32_t in_turn[5][8] = {
        {0, 1, 2, 3, 4, 5, 6, 7}, {8, 9, 10, 11}, {12, 13, 14, 15}, {0, 1, 2}, {3, 4, 5}};
    char text[512];
    struct aq_model_config c;
    struct aq_model_steps m;
    snprintf(text, sizeof(text), fused, "gpt_neox", ", \"rotary_pct\": 1");
    assert_int_equal(aq_model_config_parse(&c, text, strlen(text), "config", NULL), 0);
    assert_int_equal(aq_arch_steps(&m, &c, NULL), 0);
    for (uint32_t i = 0; i < 3; i++) {
        const struct aq_vector_part *part = &m.step[1].vector[2].part[i];
        assert_int_equal(m.step[1].matrix[i].from.total, 24);
        must_be_rows(&m.step[1].matrix[i].from, m.step[1].matrix[i].rows, by_head[i]);
        assert_int_equal(part->from.total, 24);
        must_be_rows(&part->from, part->count, by_head[i]);
    }
    aq_steps_close(&m);
    snprintf(text, sizeof(text), fused, "phi3", ", \"num_key_value_heads\": 1");
    assert_int_equal(aq_model_config_parse(&c, text, strlen(text), "config", NULL), 0);
    assert_int_equal(aq_arch_steps(&m, &c, NULL), 0);
    for (uint32_t i = 0; i < 5; i++) {
        const struct aq_matrix_desc *w = i < 3 ? &m.step[1].matrix[i] : &m.step[2].matrix[i - 3];
        assert_int_equal(w->from.total, i < 3 ? 16 : 6);
        must_be_rows(&w->from, w->rows, in_turn[i]);
    }
    aq_steps_close(&m);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(every_row_is_found_by_its_name),
    cmocka_unit_test(an_unknown_architecture_is_refused_with_the_list),
    cmocka_unit_test(a_tensor_is_looked_for_behind_each_prefix_then_by_its_alias),
    cmocka_unit_test(residual_writers_are_the_products_that_add_to_it),
    cmocka_unit_test(a_gate_multiplies_what_stands_in_front_of_it),
    cmocka_unit_test(biases_norms_of_heads_and_ties_are_where_the_row_has_them),
    cmocka_unit_test(a_parallel_layer_is_one_step_whose_norms_read_the_same),
    cmocka_unit_test(fused_tensors_are_taken_apart_row_by_row),
};
AQ_TEST_MAIN(tests)
