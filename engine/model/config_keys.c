/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model/config_keys.h"

#include "base/json.h"

#include <stdio.h>
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
    const char *name;
    int rc = aq_json_get_string(k->root, "torch_dtype", NULL, k->what, &name, k->reterr);
    if (rc == 0 && !name)
        rc = aq_json_get_string(k->root, "dtype", NULL, k->what, &name, k->reterr);
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
