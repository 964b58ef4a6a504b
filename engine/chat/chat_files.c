/* SPDX-License-Identifier: Apache-2.0
 * As PreTrainedTokenizerBase of transformers reads them (tokenization_utils_base.py, 5.2). */
#include "engine/chat/chat_files.h"

#include "base/json.h"

#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CONFIG_BYTES_MAX = 128 << 20 };

static const char config_name[] = "tokenizer_config.json";
static const char file_name[] = "chat_template.jinja";
static const char folder_name[] = "additional_chat_templates";

struct reader {
    const char *dir;
    struct aq_chat_files *files;
    XXH3_state_t *hash;
    uint32_t count;
    struct aq_err *err;
};

void aq_chat_files_close(struct aq_chat_files *f)
{
    aq_jinja_close(f->deflt);
    aq_jinja_close(f->tool_use);
    json_decref(f->tokens);
    *f = (struct aq_chat_files){0};
}

/* A template by its name; what has another name than these two is only part of the hash. */
static int add(struct reader *r, const char *name, const char *file, struct aq_text text)
{
    struct aq_jinja **to = strcmp(name, "default") == 0    ? &r->files->deflt
                           : strcmp(name, "tool_use") == 0 ? &r->files->tool_use
                                                           : NULL;
    XXH3_64bits_update(r->hash, name, strlen(name) + 1);
    XXH3_64bits_update(r->hash, &text.count, sizeof(text.count));
    XXH3_64bits_update(r->hash, text.bytes, text.count);
    if (++r->count > AQ_CHAT_TEMPLATES_MAX)
        return aq_error(r->err, -ENOEXEC, "'%s': more than %d chat templates", r->dir,
                        AQ_CHAT_TEMPLATES_MAX);
    if (!to || *to)
        return 0;
    return aq_jinja_open(to, file, text, r->err);
}

/* ---- files ---- */

/* 1 read, 0 there is none. */
static int add_file(struct reader *r, const char *file, const char *name)
{
    char path[PATH_MAX], *text = NULL;
    size_t bytes;
    if (snprintf(path, sizeof(path), "%s/%s", r->dir, file) >= (int)sizeof(path))
        return 0;
    int rc = aq_read_file(&text, &bytes, path, AQ_JINJA_TEXT_MAX, r->err);
    if (rc == -ENOENT)
        return 0;
    if (rc == 0)
        rc = add(r, name, file, (struct aq_text){text, bytes});
    free(text);
    return rc < 0 ? rc : 1;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* The files of the folder in the order of their names. */
static int add_folder(struct reader *r)
{
    char path[PATH_MAX], *name[AQ_CHAT_TEMPLATES_MAX];
    uint32_t count = 0;
    snprintf(path, sizeof(path), "%s/%s", r->dir, folder_name);
    DIR *dir = opendir(path);
    int rc = 0;
    for (struct dirent *e; dir && (e = readdir(dir)) && rc == 0;) {
        size_t bytes = strlen(e->d_name);
        if (bytes < 7 || strcmp(e->d_name + bytes - 6, ".jinja") != 0)
            continue;
        if (count == AQ_CHAT_TEMPLATES_MAX)
            rc = aq_error(r->err, -ENOEXEC, "'%s': more than %d chat templates", path,
                          AQ_CHAT_TEMPLATES_MAX);
        else if (!(name[count++] = strndup(e->d_name, bytes - 6)))
            rc = aq_error_memory(r->err, "names of chat templates");
    }
    if (dir)
        closedir(dir);
    if (rc == 0)
        qsort(name, count, sizeof(*name), compare_names);
    for (uint32_t i = 0; i < count; i++) {
        char file[PATH_MAX];
        snprintf(file, sizeof(file), "%s/%s.jinja", folder_name, name[i] ? name[i] : "");
        if (rc == 0) {
            rc = add_file(r, file, name[i]);
            rc = rc < 0 ? rc : 0;
        }
        free(name[i]);
    }
    return rc;
}

/* ---- tokenizer_config.json ---- */

static int add_configured(struct reader *r, const json_t *config)
{
    const json_t *v = json_object_get(config, "chat_template"), *item;
    size_t i;
    if (json_is_string(v))
        return add(r, "default", config_name,
                   (struct aq_text){json_string_value(v), json_string_length(v)});
    json_array_foreach(v, i, item)
    {
        const char *name = json_string_value(json_object_get(item, "name"));
        const json_t *text = json_object_get(item, "template");
        if (!name || !json_is_string(text))
            return aq_error(r->err, -ENOEXEC,
                            "'%s/%s': chat_template: expected \"name\" and \"template\" at %zu",
                            r->dir, config_name, i);
        int rc = add(r, name, config_name,
                     (struct aq_text){json_string_value(text), json_string_length(text)});
        if (rc < 0)
            return rc;
    }
    if (!v || json_is_null(v) || json_is_array(v))
        return 0;
    return aq_error(r->err, -ENOEXEC, "'%s/%s': chat_template: expected a text or a list", r->dir,
                    config_name);
}

/* Special tokens that the files name, as strings. */
static int read_tokens(struct reader *r, const json_t *config, const json_t *map)
{
    static const char *const names[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                        "pad_token", "cls_token", "mask_token"};
    r->files->tokens = json_object();
    for (size_t i = 0; i < AQ_ARRAY_LEN(names); i++) {
        const json_t *v = json_object_get(config, names[i]);
        if (!v)
            v = json_object_get(map, names[i]);
        if (json_is_object(v))
            v = json_object_get(v, "content");
        if (json_is_string(v))
            aq_json_put(&r->files->tokens, names[i], json_incref((json_t *)v));
    }
    return r->files->tokens ? 0 : aq_error_memory(r->err, "special tokens");
}

/* NULL where there is no such file. */
static int read_object(struct reader *r, const char *name, json_t **ret)
{
    char path[PATH_MAX];
    *ret = NULL;
    if (snprintf(path, sizeof(path), "%s/%s", r->dir, name) >= (int)sizeof(path))
        return 0;
    int rc = aq_json_read_file(ret, path, CONFIG_BYTES_MAX, r->err);
    return rc == -ENOENT ? 0 : rc;
}

static int read_all(struct reader *r)
{
    json_t *config = NULL, *map = NULL;
    int rc = read_object(r, config_name, &config);
    if (rc == 0)
        rc = read_object(r, "special_tokens_map.json", &map);
    if (rc == 0)
        rc = read_tokens(r, config, map);
    if (rc == 0)
        rc = add_file(r, file_name, "default");
    if (rc >= 0)
        rc = add_folder(r);
    if (rc == 0 && !r->count)
        rc = add_configured(r, config);
    json_decref(config);
    json_decref(map);
    return rc;
}

int aq_chat_files_open(struct aq_chat_files *ret, const char *dir, struct aq_err *reterr)
{
    *ret = (struct aq_chat_files){0};
    struct reader r = {.dir = dir, .files = ret, .hash = XXH3_createState(), .err = reterr};
    if (!r.hash)
        return aq_error_memory(reterr, "chat templates of '%s'", dir);
    XXH3_64bits_reset(r.hash);
    int rc = read_all(&r);
    ret->hash = XXH3_64bits_digest(r.hash);
    XXH3_freeState(r.hash);
    if (rc == 0 && !ret->deflt)
        rc = r.count ? aq_error(reterr, -ENOENT,
                                "the model's files have chat templates, but none is named "
                                "'default'")
                     : aq_error(reterr, -ENOENT,
                                "the model has no chat template (neither chat_template.jinja nor "
                                "chat_template in tokenizer_config.json): a base model takes "
                                "prompts, not messages");
    if (rc < 0) {
        uint64_t hash = ret->hash;
        aq_chat_files_close(ret);
        ret->hash = hash;
    }
    return rc;
}
