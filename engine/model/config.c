/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model/config.h"

#include "base/json.h"
#include "engine/model/arch/arch.h"
#include "engine/model/config_keys.h"

#include <assert.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CONFIG_BYTES_MAX = 1 << 20 };

static int find_arch(const struct aq_config_keys *k, const struct aq_arch **ret)
{
    const char *type;
    char names[256], quoted[64];
    int rc = aq_json_get_string(k->root, "model_type", NULL, k->what, &type, k->reterr);
    if (rc < 0)
        return rc;
    aq_arch_names(names, sizeof(names));
    if (!type)
        return aq_error(k->reterr, -ENOEXEC, "%s: 'model_type': expected %s, found nothing",
                        k->what, names);
    const struct aq_arch *arch = aq_arch_find(type);
    if (!arch)
        return aq_error(k->reterr, -ENOEXEC,
                        "%s: 'model_type': '%s' is not supported yet; this version runs %s",
                        k->what, aq_quote(quoted, sizeof(quoted), type, strlen(type)), names);
    *ret = arch;
    return aq_arch_check_classes(k);
}

static int read_ids(const struct aq_config_keys *k, struct aq_model_config *c)
{
    const struct aq_arch *a = c->arch;
    int64_t last = (int64_t)c->vocab_size - 1;
    bool found;
    int rc = aq_config_id(k, "bos_token_id", a->bos_id, last, &c->bos_id);
    if (rc == 0)
        rc = aq_config_id(k, "pad_token_id", a->pad_id, INT32_MAX, &c->pad_id);
    if (rc == 0)
        rc = aq_config_eos(k, c, &found);
    if (rc == 0 && !found && a->eos_id >= 0 && a->eos_id <= last)
        c->eos_id[c->eos_count++] = (uint32_t)a->eos_id;
    return rc;
}

static int read_keys(struct aq_model_config *c, const struct aq_config_keys *keys)
{
    int rc = find_arch(keys, &c->arch);
    if (rc == 0)
        rc = aq_quantised_config_read(&c->quantised, keys);
    if (rc == 0)
        rc = c->arch->read_config(c, keys);
    if (rc == 0)
        rc = aq_config_dtype(keys, &c->torch_dtype);
    if (rc == 0)
        rc = read_ids(keys, c);
    return rc;
}

/* A model of pictures or sounds and text keeps what is of the text in an object of its own.  That
 * object, with what stands beside it but means the text as well; NULL where there is none.
 * -ENOMEM. */
static int text_config(json_t **ret, const json_t *root, const char *what, struct aq_err *reterr)
{
    static const char *const beside[] = {"bos_token_id",        "eos_token_id",
                                         "pad_token_id",        "quantization_config",
                                         "tie_word_embeddings", NULL};
    const json_t *text = json_object_get(root, "text_config");
    *ret = NULL;
    if (!json_is_object(text) || json_object_get(root, "hidden_size"))
        return 0;
    json_t *all = aq_json_copy(text);
    for (const char *const *key = beside; all && *key; key++)
        if (!json_object_get(all, *key) && json_object_get(root, *key))
            aq_json_put(&all, *key, aq_json_copy(json_object_get(root, *key)));
    bool says = all && (json_object_get(all, "dtype") || json_object_get(all, "torch_dtype"));
    for (int i = 0; all && !says && i < 2; i++) {
        const char *key = i ? "torch_dtype" : "dtype";
        if (json_object_get(root, key))
            aq_json_put(&all, key, aq_json_copy(json_object_get(root, key)));
    }
    if (!all)
        return aq_error_memory(reterr, "%s", what);
    *ret = all;
    return 0;
}

int aq_model_config_read_json(struct aq_model_config *ret, const json_t *root, const char *what,
                              struct aq_err *reterr)
{
    assert(ret && root && what);
    struct aq_model_config c = {0};
    json_t *text;
    if (!json_is_object(root))
        return aq_error(reterr, -ENOEXEC, "%s: expected a JSON object", what);
    int rc = text_config(&text, root, what, reterr);
    if (rc < 0)
        return rc;
    struct aq_config_keys keys = {.root = text ? text : root, .what = what, .reterr = reterr};
    c.text_of_more = text;
    rc = read_keys(&c, &keys);
    json_decref(text);
    if (rc == 0)
        *ret = c;
    return rc;
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
    rc = aq_model_config_read_json(ret, root, what, reterr);
    json_decref(root);
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
    struct aq_config_keys keys = {.root = root, .what = what, .reterr = reterr};
    bool found;
    rc = json_is_object(root) ? aq_config_eos(&keys, c, &found)
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
