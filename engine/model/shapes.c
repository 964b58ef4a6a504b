/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model/shapes.h"

#include "base/json.h"
#include "base/yaml.h"
#include "engine/embedded.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

const char *aq_shape_name(uint32_t i)
{
    return i < aq_embedded_models_count ? aq_embedded_models[i].name : NULL;
}

/* Do two names begin alike up to their '-'? */
static bool are_alike(const char *a, const char *b)
{
    size_t n = strcspn(a, "-");
    return n == strcspn(b, "-") && strncmp(a, b, n) == 0;
}

void aq_shape_ranges(char *text, size_t bytes)
{
    size_t at = 0;
    text[0] = '\0';
    for (uint32_t first = 0, last; aq_shape_name(first); first = last + 1) {
        last = first;
        while (aq_shape_name(last + 1) && are_alike(aq_shape_name(first), aq_shape_name(last + 1)))
            last++;
        at += (size_t)snprintf(text + at, bytes - at, "%s%s%s%s", at ? ", " : "",
                               aq_shape_name(first), first < last ? " to " : "",
                               first < last ? aq_shape_name(last) : "");
        assert(at < bytes);
    }
}

/* ---- files ------------------------------------------------------------------------------- */

static int wrong(const char *label, const struct aq_yaml_node *node, const char *expected,
                 struct aq_err *reterr)
{
    char found[96];
    return aq_error(reterr, -EINVAL, "%s:%u: %s: expected %s, found %s", label, node->line,
                    node->key ? node->key : "the file", expected,
                    aq_yaml_describe(node, found, sizeof(found)));
}

/* A scalar as config.json would have it: a number, true, false or null where it reads as one, else
 * a string. */
static json_t *scalar_json(const struct aq_yaml_node *node)
{
    json_t *value = NULL;
    if (node->quoted || aq_json_parse(&value, node->text, strlen(node->text), false, NULL) < 0)
        value = aq_json_string(node->text);
    return value;
}

/* Puts the keys of a map into json, which becomes NULL on failure; `nested`: maps in it as well. */
static int add_keys(json_t **json, const char *label, const struct aq_yaml_node *map, bool nested,
                    struct aq_err *reterr)
{
    int rc = 0;
    for (const struct aq_yaml_node *n = map->first; n && rc == 0; n = n->next) {
        json_t *value = NULL;
        if (n->kind == AQ_YAML_MAP && nested) {
            value = json_object();
            rc = add_keys(&value, label, n, false, reterr);
        } else if (n->kind == AQ_YAML_NULL) {
            value = json_null();
        } else if (n->kind == AQ_YAML_SCALAR) {
            value = scalar_json(n);
        } else {
            rc = wrong(label, n, "a number, a switch or a word", reterr);
        }
        if (rc == 0)
            aq_json_put(json, n->key, value);
    }
    if (rc == 0 && !*json)
        rc = aq_error_memory(reterr, "%s", label);
    if (rc < 0) {
        json_decref(*json);
        *json = NULL;
    }
    return rc;
}

/* The keys of `config`, and the architecture as the key that config.json has for it. */
static int config_json(json_t **ret, const char *label, const struct aq_yaml_node *architecture,
                       const struct aq_yaml_node *config, struct aq_err *reterr)
{
    json_t *json = json_object();
    aq_json_put(&json, "model_type", aq_json_string(architecture->text));
    int rc = add_keys(&json, label, config, true, reterr);
    if (rc == 0)
        *ret = json;
    return rc;
}

static int read_root(struct aq_model_config *ret, const char *label, const char *name,
                     const struct aq_yaml_node *root, struct aq_err *reterr)
{
    const struct aq_yaml_node *named = aq_yaml_get(root, "name");
    const struct aq_yaml_node *architecture = aq_yaml_get(root, "architecture");
    const struct aq_yaml_node *config = aq_yaml_get(root, "config");
    if (root->kind != AQ_YAML_MAP || root->count != 3 || !named || !architecture || !config)
        return wrong(label, root, "a map of name, architecture and config", reterr);
    if (named->kind != AQ_YAML_SCALAR || strcmp(named->text, name) != 0)
        return wrong(label, named, "the file's name", reterr);
    if (architecture->kind != AQ_YAML_SCALAR)
        return wrong(label, architecture, "a name", reterr);
    if (config->kind != AQ_YAML_MAP)
        return wrong(label, config, "a map of the keys of config.json", reterr);
    json_t *json = NULL;
    int rc = config_json(&json, label, architecture, config, reterr);
    if (rc < 0)
        return rc;
    rc = aq_model_config_read_json(ret, json, label, reterr);
    json_decref(json);
    return rc;
}

int aq_shape_parse(struct aq_model_config *ret, const char *label, const char *name,
                   const char *text, size_t bytes, struct aq_err *reterr)
{
    struct aq_yaml *yaml;
    int rc = aq_yaml_parse(&yaml, label, text, bytes, reterr);
    if (rc < 0)
        return rc;
    rc = read_root(ret, label, name, aq_yaml_root(yaml), reterr);
    aq_yaml_close(yaml);
    return rc;
}

int aq_shape_find(struct aq_model_config *ret, const char *name, struct aq_err *reterr)
{
    assert(ret && name);
    char list[768] = "", label[128], quoted[64];
    size_t at = 0;
    for (uint32_t i = 0; i < aq_embedded_models_count; i++) {
        const struct aq_embedded *e = &aq_embedded_models[i];
        if (strcasecmp(name, e->name) == 0) {
            snprintf(label, sizeof(label), "configs/models/%s.yaml", e->name);
            return aq_shape_parse(ret, label, e->name, e->text, e->bytes, reterr);
        }
        at += (size_t)snprintf(list + at, sizeof(list) - at, "%s%s", at ? ", " : "", e->name);
        assert(at < sizeof(list));
    }
    return aq_error(reterr, -EINVAL, "shape '%s' is not known; expected one of %s",
                    aq_quote(quoted, sizeof(quoted), name, strlen(name)), list);
}
