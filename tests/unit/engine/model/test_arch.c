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

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(every_row_is_found_by_its_name),
    cmocka_unit_test(an_unknown_architecture_is_refused_with_the_list),
    cmocka_unit_test(a_tensor_is_looked_for_behind_each_prefix_then_by_its_alias),
    cmocka_unit_test(residual_writers_are_the_products_that_add_to_it),
};
AQ_TEST_MAIN(tests)
