/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/judge/judge_model.h"

#include "tests/random_model.h"
#include "tests/test.h"

static uint32_t number(const json_t *model, const char *name)
{
    const json_t *value = json_object_get(model, name);
    assert_true(json_is_integer(value));
    return (uint32_t)json_integer_value(value);
}

void judge_model_write(const char *dir, const json_t *model)
{
    const struct random_model m = {
        .family = RANDOM_LLAMA,
        .layers = number(model, "layers"),
        .hidden = number(model, "hidden"),
        .heads = number(model, "heads"),
        .kv_heads = number(model, "kv_heads"),
        .head_dim = number(model, "head_dim"),
        .vocab = number(model, "vocab"),
        .context = number(model, "context"),
        .sharpness = (float)json_number_value(json_object_get(model, "sharpness")),
    };
    random_model_write(dir, &m, number(model, "seed"));
}
