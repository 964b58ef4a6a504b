/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/core/classes.h"

#include "engine/checkpoint/checkpoint.h"
#include "engine/tokenizer/token_text.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

bool aq_token_is_punct(const char *bytes, size_t count)
{
    static const char *const marks[] = {
        ".",      ",",      ":",      ";",      "?",      "!",      "-",
        "\n",     "\r",     "\u2013", "\u2014", "\u2026", "\u3001", "\u3002",
        "\uff01", "\uff0c", "\uff1a", "\uff1b", "\uff1f",
    };
    bool any = false;
    for (size_t at = 0; at < count;) {
        size_t length = 0;
        for (size_t i = 0; i < AQ_ARRAY_LEN(marks) && !length; i++) {
            size_t n = strlen(marks[i]);
            if (count - at >= n && memcmp(bytes + at, marks[i], n) == 0)
                length = n;
        }
        any = any || length > 0;
        if (!length && bytes[at] != ' ')
            return false;
        at += length ? length : 1;
    }
    return any;
}

static void mark(uint8_t *classes, const struct aq_engine_info *info, int64_t id)
{
    if (id >= 0 && id < info->vocab)
        classes[id] |= AQ_KV_CLASS_SPECIAL;
}

static int of_tokenizer(uint8_t *classes, const char *dir, const struct aq_engine_info *info,
                        struct aq_err *reterr)
{
    char path[PATH_MAX];
    struct aq_tokenizer *t = NULL;
    struct aq_err err;
    struct aq_tokenizer_defaults defaults = {
        .bos_id = info->bos_id,
        .eos_id = info->eos_count ? (int32_t)info->eos_id[0] : -1,
        .pad_id = info->pad_id,
        .add_bos = info->add_bos,
    };
    int rc = aq_checkpoint_resolve(dir, path, sizeof(path), reterr);
    if (rc < 0)
        return rc;
    rc = aq_tokenizer_open(&t, path, &defaults, &err);
    if (rc < 0)
        return aq_error(reterr, rc,
                        "--kv-policy %s: special tokens and punctuation are what the tokenizer "
                        "says: %s; put its files beside the model, or take another policy",
                        aq_kv_policy_desc(&info->kv)->name, err.text);
    for (uint32_t id = 0; id < info->vocab; id++) {
        size_t count;
        const char *bytes = aq_token_bytes(t, id, &count);
        if (aq_tokenizer_is_special(t, id))
            classes[id] |= AQ_KV_CLASS_SPECIAL;
        else if (bytes && aq_token_is_punct(bytes, count))
            classes[id] |= AQ_KV_CLASS_PUNCT;
    }
    aq_tokenizer_close(t);
    return 0;
}

int aq_token_classes(uint8_t **ret, const char *dir, const struct aq_engine_info *info,
                     struct aq_err *reterr)
{
    uint8_t *classes = calloc(info->vocab, 1);
    if (!classes)
        return aq_error_memory(reterr, "classes of %u tokens", info->vocab);
    int rc = dir ? of_tokenizer(classes, dir, info, reterr) : 0;
    mark(classes, info, info->bos_id);
    for (uint32_t i = 0; i < info->eos_count; i++)
        mark(classes, info, info->eos_id[i]);
    if (rc < 0)
        free(classes);
    else
        *ret = classes;
    return rc;
}
