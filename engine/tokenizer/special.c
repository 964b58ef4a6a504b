/* SPDX-License-Identifier: Apache-2.0
 * Which tokens are special and what they are for: tokenizer_config.json, special_tokens_map.json,
 * added_tokens.json, and where they are silent the model's config.json. */
#include "engine/tokenizer/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char config_name[] = "tokenizer_config.json", added_name[] = "added_tokens.json";

/* ---- added tokens ---- */

const char *aq_tok_string(const json_t *value)
{
    const char *text = json_string_value(value);
    return text && strlen(text) == json_string_length(value) ? text : NULL;
}

static const char *content_of(const json_t *token)
{
    return aq_tok_string(json_is_object(token) ? json_object_get(token, "content") : token);
}

static int read_flags(const json_t *token, bool special, unsigned *ret, struct aq_err *err)
{
    static const struct {
        const char *key;
        unsigned flag;
    } known[] = {{"single_word", AQ_TOKEN_SINGLE_WORD},
                 {"lstrip", AQ_TOKEN_LSTRIP},
                 {"rstrip", AQ_TOKEN_RSTRIP},
                 {"normalized", AQ_TOKEN_NORMALIZED}};
    unsigned flags = AQ_TOKEN_ADDED;
    if (json_is_object(token) && !special) {
        int rc = aq_json_get_bool(token, "special", false, "added token", &special, err);
        if (rc < 0)
            return rc;
    }
    for (size_t i = 0; i < sizeof(known) / sizeof(*known); i++) {
        /* transformers' default: what is special is not normalised */
        bool on = known[i].flag == AQ_TOKEN_NORMALIZED && !special;
        int rc = json_is_object(token)
                     ? aq_json_get_bool(token, known[i].key, on, "added token", &on, err)
                     : 0;
        if (rc < 0)
            return rc;
        flags |= on ? known[i].flag : 0;
    }
    *ret = flags | (special ? AQ_TOKEN_SPECIAL : 0);
    return 0;
}

/* The spelling decides, as in transformers: a token the vocabulary has keeps its id there. */
int aq_tok_read_added(struct aq_tok_load *l, const json_t *token, int64_t id, bool special,
                      struct aq_err *err)
{
    struct aq_vocab *v = &l->t->vocab;
    const char *content = content_of(token);
    unsigned flags;
    if (!content)
        return aq_error(err, -ENOEXEC, "expected a token's text or an object with 'content'");
    int rc = read_flags(token, special, &flags, err);
    if (rc < 0)
        return rc;
    if (l->sentencepiece) /* whose normaliser sees only what lies between them */
        flags &= ~(unsigned)AQ_TOKEN_NORMALIZED;
    int32_t have = aq_vocab_find(v, content, strlen(content));
    if (have >= 0) {
        struct aq_token *t = aq_vocab_token(v, (uint32_t)have);
        /* the first to add it says how it is found */
        t->flags |= t->flags & AQ_TOKEN_ADDED ? flags & AQ_TOKEN_SPECIAL : flags;
        return 0;
    }
    return id < 0 ? 0 : aq_vocab_add(v, id, content, strlen(content), flags, err);
}

/* {"50257": {"content": ...}} */
static int read_decoder(struct aq_tok_load *l, const json_t *decoder, struct aq_err *err)
{
    const char *key;
    json_t *token;
    if (!json_is_object(decoder))
        return aq_error(err, -ENOEXEC, "expected an object");
    json_object_foreach((json_t *)decoder, key, token)
    {
        char q[32], *end;
        errno = 0;
        long long id = strtoll(key, &end, 10);
        int rc = *end || end == key || errno || id < 0
                     ? aq_error(err, -ENOEXEC, "expected an id as key")
                     : aq_tok_read_added(l, token, id, false, err);
        if (rc < 0)
            return aq_error_prefix(err, "'%s'", aq_quote(q, sizeof(q), key, strlen(key)));
    }
    return 0;
}

/* {"<token>": 50257} */
static int read_added_file(struct aq_tok_load *l, struct aq_err *err)
{
    const char *content;
    json_t *id;
    json_object_foreach(l->added, content, id)
    {
        char q[80];
        aq_quote(q, sizeof(q), content, strlen(content));
        if (!json_is_integer(id) || json_integer_value(id) < 0)
            return aq_error(err, -ENOEXEC, "'%s': expected an id", q);
        json_t *token = json_pack("{s:s, s:b}", "content", content, "normalized", 0);
        int rc = token ? aq_tok_read_added(l, token, json_integer_value(id), false, err)
                       : aq_error_memory(err, "added token '%s'", q);
        json_decref(token);
        if (rc < 0)
            return rc;
    }
    return 0;
}

static int read_added_tokens(struct aq_tok_load *l, struct aq_err *err)
{
    const json_t *decoder = json_object_get(l->config, "added_tokens_decoder");
    int rc = decoder && !json_is_null(decoder) ? read_decoder(l, decoder, err) : 0;
    if (rc < 0)
        return aq_error_prefix(err, "'%s/%s': added_tokens_decoder", l->dir, config_name);
    rc = l->added ? read_added_file(l, err) : 0;
    return rc < 0 ? aq_error_prefix(err, "'%s/%s'", l->dir, added_name) : 0;
}

/* ---- roles ---- */

/* What the files say of a key: NULL when none has it.  Files with added_tokens_decoder are of the
 * newer kind, whose special_tokens_map.json is only a copy. */
static const json_t *role_value(const struct aq_tok_load *l, const char *key)
{
    bool newer = json_object_get(l->config, "added_tokens_decoder") != NULL;
    const json_t *first = json_object_get(newer ? l->config : l->map, key);
    return first ? first : json_object_get(newer ? l->map : l->config, key);
}

/* The role's id, -1 for none; *ret_named is false where the files are silent. */
static int read_role(struct aq_tok_load *l, const char *key, int32_t *ret, bool *ret_named,
                     struct aq_err *err)
{
    const json_t *value = role_value(l, key);
    *ret = -1;
    *ret_named = value != NULL;
    if (!value || json_is_null(value))
        return 0;
    int rc = aq_tok_read_added(l, value, -1, true, err);
    if (rc < 0)
        return aq_error_prefix(err, "'%s': %s", l->dir, key);
    const char *content = content_of(value);
    *ret = aq_vocab_find(&l->t->vocab, content, strlen(content));
    return 0;
}

static int read_special_list(struct aq_tok_load *l, const char *key, struct aq_err *err)
{
    const json_t *list = role_value(l, key), *token;
    size_t i;
    json_array_foreach(list, i, token)
    {
        int rc = aq_tok_read_added(l, token, -1, true, err);
        if (rc < 0)
            return aq_error_prefix(err, "'%s': %s[%zu]", l->dir, key, i);
    }
    return 0;
}

/* Takes over an id from config.json if there is such a token; it is special then. */
static int32_t default_role(struct aq_tok_load *l, int32_t id)
{
    struct aq_token *t = id < 0 ? NULL : aq_vocab_token(&l->t->vocab, (uint32_t)id);
    if (!t)
        return -1;
    t->flags |= AQ_TOKEN_ADDED | AQ_TOKEN_SPECIAL;
    return id;
}

static int read_roles(struct aq_tok_load *l, struct aq_err *err)
{
    static const char *const others[] = {"sep_token", "cls_token", "mask_token"};
    static const struct aq_tokenizer_defaults none = {.bos_id = -1, .eos_id = -1, .pad_id = -1};
    struct aq_tokenizer_info *info = &l->t->info;
    struct aq_tokenizer_defaults d = l->defaults ? *l->defaults : none;
    struct {
        const char *key;
        int32_t *id, deflt;
    } roles[] = {
        {"bos_token", &info->bos_id, l->model_bos >= 0 ? l->model_bos : d.bos_id},
        {"eos_token", &info->eos_id, l->model_eos >= 0 ? l->model_eos : d.eos_id},
        {"pad_token", &info->pad_id, l->model_pad >= 0 ? l->model_pad : d.pad_id},
        {"unk_token", &info->unk_id, l->model_unk},
    };
    bool named, silent = !l->defaults && !l->sentencepiece;
    for (size_t i = 0; i < sizeof(roles) / sizeof(*roles); i++) {
        int rc = read_role(l, roles[i].key, roles[i].id, &named, err);
        if (rc < 0)
            return rc;
        silent = silent && !named;
        if (!named)
            *roles[i].id = default_role(l, roles[i].deflt);
    }
    for (size_t i = 0; i < sizeof(others) / sizeof(*others); i++) {
        int32_t id;
        int rc = read_role(l, others[i], &id, &named, err);
        if (rc < 0)
            return rc;
    }
    if (silent) /* GPT-2's own files name no role: this one token has them all */
        info->bos_id = info->eos_id = info->unk_id =
            default_role(l, aq_vocab_find(&l->t->vocab, "<|endoftext|>", 13));
    int rc = read_special_list(l, "additional_special_tokens", err);
    return rc < 0 ? rc : read_special_list(l, "extra_special_tokens", err);
}

/* ---- what stands around a text ---- */

/* What stands on one side of a text: a role, and the flag that says whether it does. */
struct side {
    const char *flag, *role, *name, *where;
    int32_t template; /* the token that tokenizer.json's post-processor puts there; -1: none */
    bool deflt;
    int32_t *id;
    bool *ret;
};

/* tokenizer.json says one thing and tokenizer_config.json another. */
static void note_contradiction(struct aq_tok_load *l, const struct side *s)
{
    char *notice = l->t->info.notice;
    size_t had = strlen(notice), max = sizeof(l->t->info.notice);
    snprintf(notice + had, max - had,
             "%s%s has %s %s: %s %s %s texts, though tokenizer.json puts %s there", had ? "; " : "",
             config_name, s->flag, *s->ret ? "true" : "false", s->name,
             *s->ret ? "stands" : "does not stand", s->where, *s->ret ? "none" : "one");
}

/* The flag decides where there is one, as in transformers (update_post_processor), also beside a
 * post-processor that adds nothing: early conversions lost the BOS that way.  Else a template in
 * tokenizer.json does.  A flag for a role that has no token has no effect; one for a token the
 * vocabulary lacks is an error. */
static int read_around(struct aq_tok_load *l, const struct side *s, struct aq_err *err)
{
    bool on = l->has_template ? s->template >= 0 : s->deflt;
    if (s->template >= 0) {
        if (default_role(l, s->template) < 0)
            return aq_error(err, -ENOEXEC, "post_processor: id %d is not a token", s->template);
        *s->id = s->template;
    }
    int rc = l->config ? aq_json_get_bool(l->config, s->flag, on, config_name, &on, err) : 0;
    const json_t *named = role_value(l, s->role);
    if (rc == 0 && on && *s->id < 0 && named && !json_is_null(named))
        rc = aq_error(err, -ENOEXEC, "%s is true, but %s is not in the vocabulary", s->flag,
                      s->role);
    *s->ret = on && *s->id >= 0;
    if (l->has_template && *s->ret != (s->template >= 0))
        note_contradiction(l, s);
    return rc;
}

int aq_tok_read_special(struct aq_tok_load *l, struct aq_err *err)
{
    struct aq_tokenizer_info *info = &l->t->info;
    int rc = read_added_tokens(l, err);
    if (rc == 0)
        rc = read_roles(l, err);
    if (rc < 0)
        return rc;
    const struct side sides[] = {
        {"add_bos_token", "bos_token", "BOS", "in front of", l->template_before,
         l->sentencepiece || (l->defaults && l->defaults->add_bos), &info->bos_id, &info->add_bos},
        {"add_eos_token", "eos_token", "EOS", "behind", l->template_after, false, &info->eos_id,
         &info->add_eos},
    };
    for (size_t i = 0; rc == 0 && i < sizeof(sides) / sizeof(*sides); i++)
        rc = read_around(l, &sides[i], err);
    return rc < 0 ? aq_error_prefix(err, "'%s'", l->dir) : 0;
}

int aq_tok_prefix_space(const struct aq_tok_load *l, bool deflt, bool *ret, struct aq_err *err)
{
    *ret = deflt;
    return l->config ? aq_json_get_bool(l->config, "add_prefix_space", deflt, config_name, ret, err)
                     : 0;
}
