/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model/config_keys.h"

#include "base/json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int aq_config_size(const struct aq_config_keys *k, const char *key, uint32_t max, uint32_t *ret)
{
    const json_t *v = json_object_get(k->root, key);
    if (!v || json_is_null(v))
        return aq_error(k->reterr, -ENOEXEC, "%s: '%s': expected 1 to %u, found nothing", k->what,
                        key, max);
    if (json_is_integer(v) && (json_integer_value(v) < 1 || json_integer_value(v) > max))
        return aq_error(k->reterr, -ENOEXEC, "%s: '%s': expected 1 to %u, found %lld", k->what, key,
                        max, (long long)json_integer_value(v));
    uint64_t n = 0;
    int rc = aq_json_get_u64(k->root, key, 0, max, k->what, &n, k->reterr);
    if (rc < 0)
        return rc;
    if (n == 0) /* written as 0.0 */
        return aq_error(k->reterr, -ENOEXEC, "%s: '%s': expected 1 to %u, found 0", k->what, key,
                        max);
    *ret = (uint32_t)n;
    return 0;
}

int aq_config_size_or(const struct aq_config_keys *k, const char *key, uint32_t deflt, uint32_t max,
                      uint32_t *ret)
{
    const json_t *v = json_object_get(k->root, key);
    if (v && !json_is_null(v))
        return aq_config_size(k, key, max, ret);
    *ret = deflt;
    return 0;
}

int aq_config_switch(const struct aq_config_keys *k, const char *key, bool deflt, bool *ret)
{
    return aq_json_get_bool(k->root, key, deflt, k->what, ret, k->reterr);
}

int aq_config_sizes(const struct aq_config_keys *k, const struct aq_config_size_key *table,
                    size_t count)
{
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < count; i++)
        rc = aq_config_size(k, table[i].key, table[i].max, table[i].ret);
    return rc;
}

int aq_config_switches(const struct aq_config_keys *k, const struct aq_config_switch_key *table,
                       size_t count)
{
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < count; i++)
        rc = aq_config_switch(k, table[i].key, table[i].deflt, table[i].ret);
    return rc;
}

int aq_config_even_heads(const struct aq_config_keys *k, struct aq_model_config *c)
{
    if (c->hidden_size % c->heads != 0)
        return aq_error(k->reterr, -ENOEXEC,
                        "%s: 'num_attention_heads': expected a divisor of "
                        "'hidden_size' %u, found %u",
                        k->what, c->hidden_size, c->heads);
    c->kv_heads = c->heads;
    c->head_dim = c->hidden_size / c->heads;
    if (c->head_dim > AQ_CONFIG_HEAD_DIM_MAX)
        return aq_error(k->reterr, -ENOEXEC,
                        "%s: 'num_attention_heads': expected heads of at most "
                        "%d values, found %u",
                        k->what, AQ_CONFIG_HEAD_DIM_MAX, c->head_dim);
    return 0;
}

/* ---- values with more than one place ---- */

static const char *place_name(const struct aq_config_place *p, char name[96])
{
    snprintf(name, 96, "%s%s%s", p->object ? p->object : "", p->object ? "." : "", p->key);
    return name;
}

/* A value as the file has it, for messages. */
static const char *value_text(const json_t *value, char text[80])
{
    if (!value)
        return "nothing";
    char *all = aq_json_dump(value, JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(15));
    aq_quote(text, 80, all ? all : "?", all ? strlen(all) : 1);
    free(all);
    return text;
}

static bool same_value(const json_t *a, const json_t *b)
{
    if (json_is_number(a) && json_is_number(b))
        return json_number_value(a) == json_number_value(b);
    return json_equal(a, b);
}

int aq_config_wrong(const struct aq_config_keys *k, const struct aq_config_place *place,
                    const json_t *value, const char *expected)
{
    char name[96], found[80];
    return aq_error(k->reterr, -ENOEXEC, "%s: '%s': expected %s, found %s", k->what,
                    place_name(place, name), expected, value_text(value, found));
}

int aq_config_find(const struct aq_config_keys *k, const struct aq_config_place *place,
                   size_t count, const json_t **ret, const struct aq_config_place **ret_place)
{
    const json_t *found = NULL;
    for (size_t i = 0; i < count; i++) {
        const json_t *object =
                         place[i].object ? json_object_get(k->root, place[i].object) : k->root,
                     *v = json_object_get(object, place[i].key);
        char name[2][96], text[2][80];
        if (!v || json_is_null(v))
            continue;
        if (found && !same_value(found, v))
            return aq_error(k->reterr, -ENOEXEC,
                            "%s: '%s' is %s, but '%s' is %s: expected the same, or one of them",
                            k->what, place_name(*ret_place, name[0]), value_text(found, text[0]),
                            place_name(&place[i], name[1]), value_text(v, text[1]));
        if (!found)
            *ret_place = &place[i];
        found = found ? found : v;
    }
    *ret = found;
    return 0;
}

int aq_config_number(const struct aq_config_keys *k, const struct aq_config_place *place,
                     size_t count, double min, double max, double deflt, double *ret)
{
    const json_t *v;
    const struct aq_config_place *at;
    int rc = aq_config_find(k, place, count, &v, &at);
    if (rc < 0)
        return rc;
    double number = v ? json_number_value(v) : deflt;
    if (v && (!json_is_number(v) || !(number >= min && number <= max))) {
        char expected[80];
        snprintf(expected, sizeof(expected), "a number from %g to %g", min, max);
        return aq_config_wrong(k, at, v, expected);
    }
    *ret = number;
    return 0;
}

/* The names of transformers' activation table that the kernels compute.  Its tanh forms of GELU
 * (new, fast, accurate, pytorch_tanh) are one function written in different ways. */
int aq_config_activation(const struct aq_config_keys *k, const char *key, const char *deflt,
                         enum aq_activation *ret)
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
    int rc = aq_json_get_string(k->root, key, deflt, k->what, &name, k->reterr);
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
    return aq_error(k->reterr, -ENOEXEC, "%s: '%s': expected %s, found '%s'", k->what, key, known,
                    aq_quote(quoted, sizeof(quoted), name, strlen(name)));
}

int aq_config_dtype(const struct aq_config_keys *k, enum aq_dtype *ret)
{
    static const char *const keys[] = {"torch_dtype", "dtype"};
    const char *name = NULL;
    for (size_t i = 0; i < AQ_ARRAY_LEN(keys); i++) {
        const char *found;
        char quoted[2][64];
        int rc = aq_json_get_string(k->root, keys[i], NULL, k->what, &found, k->reterr);
        if (rc < 0)
            return rc;
        if (found && strncmp(found, "torch.", 6) == 0)
            found += 6;
        if (name && found && strcmp(name, found) != 0)
            return aq_error(k->reterr, -ENOEXEC,
                            "%s: '%s' is '%s', but '%s' is '%s': expected the same, or one of them",
                            k->what, keys[0], aq_quote(quoted[0], 64, name, strlen(name)), keys[i],
                            aq_quote(quoted[1], 64, found, strlen(found)));
        name = name ? name : found;
    }
    *ret = AQ_DTYPE_COUNT;
    if (!name)
        return 0;
    if (strcmp(name, "float16") == 0 || strcmp(name, "half") == 0)
        *ret = AQ_F16;
    else if (strcmp(name, "bfloat16") == 0)
        *ret = AQ_BF16;
    else if (strcmp(name, "float32") == 0 || strcmp(name, "float") == 0)
        *ret = AQ_F32;
    return 0;
}

static int read_id(const struct aq_config_keys *k, const char *key, const json_t *v, int64_t max,
                   int32_t *ret)
{
    if (json_is_null(v)) {
        *ret = -1;
        return 0;
    }
    if (!json_is_integer(v))
        return aq_error(k->reterr, -ENOEXEC, "%s: '%s': expected a token id, found another type",
                        k->what, key);
    json_int_t id = json_integer_value(v);
    if (id < -1 || id > max)
        return aq_error(k->reterr, -ENOEXEC,
                        "%s: '%s': expected a token id from 0 to %lld, found "
                        "%lld",
                        k->what, key, (long long)max, (long long)id);
    *ret = (int32_t)id;
    return 0;
}

int aq_config_id(const struct aq_config_keys *k, const char *key, int32_t deflt, int64_t max,
                 int32_t *ret)
{
    const json_t *v = json_object_get(k->root, key);
    if (!v) {
        *ret = deflt <= max ? deflt : -1;
        return 0;
    }
    return read_id(k, key, v, max, ret);
}

static int add_eos(const struct aq_config_keys *k, struct aq_model_config *c, const json_t *v)
{
    int32_t id = -1;
    int rc = read_id(k, "eos_token_id", v, (int64_t)c->vocab_size - 1, &id);
    if (rc < 0 || id < 0)
        return rc;
    for (uint32_t i = 0; i < c->eos_count; i++)
        if (c->eos_id[i] == (uint32_t)id)
            return 0;
    if (c->eos_count == AQ_CONFIG_EOS_MAX)
        return aq_error(k->reterr, -ENOEXEC, "%s: 'eos_token_id': expected at most %d ids", k->what,
                        AQ_CONFIG_EOS_MAX);
    c->eos_id[c->eos_count++] = (uint32_t)id;
    return 0;
}

int aq_config_eos(const struct aq_config_keys *k, struct aq_model_config *c, bool *ret_found)
{
    const json_t *v = json_object_get(k->root, "eos_token_id");
    *ret_found = v != NULL;
    if (!v)
        return 0;
    if (!json_is_array(v))
        return add_eos(k, c, v);
    for (size_t i = 0; i < json_array_size(v); i++) {
        int rc = add_eos(k, c, json_array_get(v, i));
        if (rc < 0)
            return rc;
    }
    return 0;
}
