/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/tokenizer/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const aq_tokenizer_file_names[] = {
    "tokenizer.json",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
    "encoder.json",
    "vocab.bpe",
    "special_tokens_map.json",
    "added_tokens.json",
    "tokenizer_config.json",
    NULL,
};

/* Name, size and bytes: two files never hash as one of both their contents. */
static void hash_file(struct aq_tok_load *l, const char *name, const char *text, uint64_t bytes)
{
    XXH3_64bits_update(l->hash, name, strlen(name) + 1);
    XXH3_64bits_update(l->hash, &bytes, sizeof(bytes));
    XXH3_64bits_update(l->hash, text, bytes);
}

int aq_tok_read_text(struct aq_tok_load *l, const char *name, char **ret, size_t *ret_bytes,
                     struct aq_err *err)
{
    size_t path_bytes = strlen(l->dir) + strlen(name) + 2;
    char *path = malloc(path_bytes), *text = NULL;
    if (!path)
        return aq_error_memory(err, "path of %zu bytes", path_bytes);
    snprintf(path, path_bytes, "%s/%s", l->dir, name);
    int rc = aq_read_file(&text, ret_bytes, path, AQ_TOKENIZER_FILE_MAX, err);
    if (rc == 0 && strncmp(text, "version https://git-lfs", 23) == 0)
        rc = aq_error(err, -ENOEXEC,
                      "'%s' is a git-LFS pointer, not the file itself (run git lfs pull)", path);
    free(path);
    if (rc < 0) {
        free(text);
        return rc == -ENOENT ? 0 : rc;
    }
    hash_file(l, name, text, *ret_bytes);
    *ret = text;
    return 1;
}

int aq_tok_read_object(struct aq_tok_load *l, const char *name, json_t **ret, struct aq_err *err)
{
    char *text;
    size_t bytes;
    json_t *root = NULL;
    int rc = aq_tok_read_text(l, name, &text, &bytes, err);
    if (rc <= 0)
        return rc;
    rc = aq_json_parse(&root, text, bytes, true, err);
    free(text);
    if (rc == 0 && !json_is_object(root))
        rc = aq_error(err, -ENOEXEC, "expected an object, found another type");
    if (rc < 0) {
        json_decref(root);
        return aq_error_prefix(err, "'%s/%s'", l->dir, name);
    }
    *ret = root;
    return 1;
}
