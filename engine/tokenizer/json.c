/* SPDX-License-Identifier: Apache-2.0
 * tokenizer.json, the format of the tokenizers library: every component is an object with a "type".
 * What is here is read as that library reads it; what is not is refused by name, since a component
 * left out would give wrong tokens. */
#include "engine/tokenizer/internal.h"

#include <stdlib.h>
#include <string.h>

static const char file_name[] = "tokenizer.json";

enum { NESTING_MAX = 4 }; /* of Sequence in Sequence */

static const char *type_of(const json_t *component)
{
    const char *type = json_string_value(json_object_get(component, "type"));
    return type ? type : "";
}

static bool is_type(const json_t *component, const char *type)
{
    return strcmp(type_of(component), type) == 0;
}

static int unsupported(const char *where, const json_t *component, const char *expected,
                       struct aq_err *err)
{
    const char *type = type_of(component);
    char q[80];
    if (!*type)
        return aq_error(err, -ENOEXEC, "%s: expected an object with a \"type\"", where);
    return aq_error(err, -ENOEXEC, "%s: expected %s, found '%s', which is not supported", where,
                    expected, aq_quote(q, sizeof(q), type, strlen(type)));
}

/* A list under one key of a component. */
static int get_list(const json_t *component, const char *key, const char *where, const json_t **ret,
                    struct aq_err *err)
{
    *ret = json_object_get(component, key);
    if (!json_is_array(*ret))
        return aq_error(err, -ENOEXEC, "%s: '%s': expected a list", where, key);
    return 0;
}

static int get_flag(const json_t *component, const char *key, const char *where, bool *ret,
                    struct aq_err *err)
{
    if (!json_is_boolean(json_object_get(component, key)))
        return aq_error(err, -ENOEXEC, "%s: '%s': expected true or false", where, key);
    *ret = json_is_true(json_object_get(component, key));
    return 0;
}

/* A member that is text without a NUL; "" is text, too. */
static int get_text(const json_t *component, const char *key, const char *where, const char **ret,
                    struct aq_err *err)
{
    *ret = aq_tok_string(json_object_get(component, key));
    return *ret ? 0 : aq_error(err, -ENOEXEC, "%s: '%s': expected text", where, key);
}

/* Replace, of normalisers and decoders: {"pattern": {"String": " "}, "content": "x"}. */
static int read_replace(struct aq_normalizer *n, const json_t *c, const char *where,
                        struct aq_err *err)
{
    const char *from = aq_tok_string(json_object_get(json_object_get(c, "pattern"), "String"));
    const char *to = NULL;
    if (!from)
        return aq_error(err, -ENOEXEC, "%s: Replace: 'pattern': expected {\"String\": ...}", where);
    int rc = get_text(c, "content", where, &to, err);
    if (rc < 0)
        return rc;
    rc = aq_normalizer_add(n, AQ_NORMALIZER_REPLACE, from, to, err);
    return rc < 0 ? aq_error_prefix(err, "%s: Replace", where) : 0;
}

/* ---- normaliser ---- */

static int read_normalizer_step(struct aq_normalizer *n, const json_t *c, struct aq_err *err)
{
    static const char where[] = "normalizer";
    const char *text = NULL;
    if (is_type(c, "Replace"))
        return read_replace(n, c, where, err);
    int rc = is_type(c, "Prepend") ? get_text(c, "prepend", where, &text, err) : 0;
    if (rc < 0)
        return rc;
    rc = aq_normalizer_add(n, text ? AQ_NORMALIZER_PREPEND : AQ_NORMALIZER_NFC, NULL, text, err);
    return rc < 0 ? aq_error_prefix(err, "%s", where) : 0;
}

static int read_normalizer(struct aq_normalizer *n, const json_t *c, unsigned depth,
                           struct aq_err *err)
{
    static const char where[] = "normalizer";
    if (!c || json_is_null(c))
        return 0;
    if (is_type(c, "NFC") || is_type(c, "Prepend") || is_type(c, "Replace"))
        return read_normalizer_step(n, c, err);
    if (!is_type(c, "Sequence") || depth == NESTING_MAX)
        return unsupported(where, c, "NFC, Prepend, Replace, a Sequence of them or null", err);
    const json_t *list, *item;
    size_t i;
    int rc = get_list(c, "normalizers", where, &list, err);
    if (rc < 0)
        return rc;
    json_array_foreach(list, i, item)
    {
        rc = read_normalizer(n, item, depth + 1, err);
        if (rc < 0)
            return rc;
    }
    return 0;
}

/* ---- pre-tokenizer ---- */

static const char pre_tokenizer[] = "pre_tokenizer";

/* A literal as a pattern: everything that could mean something is escaped. */
static int add_literal(struct aq_splitter *s, enum aq_split_kind kind, const char *text,
                       struct aq_err *err)
{
    struct aq_buf pattern = {0};
    for (; *text; text++) {
        if (strchr("\\^$.[]|()?*+{}", *text))
            aq_buf_put(&pattern, "\\", 1);
        aq_buf_put(&pattern, text, 1);
    }
    int rc = pattern.failed || !pattern.count
                 ? aq_error(err, -ENOEXEC, "%s: Split: expected a pattern", pre_tokenizer)
                 : aq_splitter_add(s, kind, pattern.data, pattern.count, err);
    aq_buf_close(&pattern);
    return rc;
}

static int read_split(struct aq_splitter *s, const json_t *c, struct aq_err *err)
{
    const json_t *pattern = json_object_get(c, "pattern");
    const char *regex = aq_tok_string(json_object_get(pattern, "Regex"));
    const char *literal = aq_tok_string(json_object_get(pattern, "String"));
    const char *behavior = NULL;
    bool invert = false;
    if (!regex == !literal)
        return aq_error(err, -ENOEXEC,
                        "%s: Split: 'pattern': expected {\"Regex\": ...} or {\"String\": ...}",
                        pre_tokenizer);
    int rc = aq_json_get_string(c, "behavior", "", pre_tokenizer, &behavior, err);
    if (rc == 0)
        rc = get_flag(c, "invert", pre_tokenizer, &invert, err);
    if (rc < 0)
        return rc;
    enum aq_split_kind kind;
    char q[80];
    if (strcmp(behavior, "Isolated") == 0) /* either way round, matches and gaps become pieces */
        kind = AQ_SPLIT_ISOLATE;
    else if (strcmp(behavior, "Removed") == 0 && invert)
        kind = AQ_SPLIT_KEEP;
    else if (strcmp(behavior, "MergedWithPrevious") == 0 && !invert)
        kind = AQ_SPLIT_BEHIND;
    else if (strcmp(behavior, "MergedWithNext") == 0 && !invert)
        kind = AQ_SPLIT_BEFORE;
    else
        return aq_error(err, -ENOEXEC,
                        "%s: Split: expected behavior Isolated, or Removed with invert, or "
                        "MergedWithPrevious or MergedWithNext without, found '%s'",
                        pre_tokenizer, aq_quote(q, sizeof(q), behavior, strlen(behavior)));
    if (literal)
        return add_literal(s, kind, literal, err);
    rc = aq_splitter_add(s, kind, regex, strlen(regex), err);
    return rc < 0 ? aq_error_prefix(err, "%s: Split", pre_tokenizer) : 0;
}

/* Nd, Nl and No, one by one or in runs. */
static int read_digits(struct aq_splitter *s, const json_t *c, struct aq_err *err)
{
    bool single = false;
    int rc = get_flag(c, "individual_digits", pre_tokenizer, &single, err);
    if (rc < 0)
        return rc;
    const char *pattern = single ? "\\p{N}" : "\\p{N}+";
    return aq_splitter_add(s, AQ_SPLIT_ISOLATE, pattern, strlen(pattern), err);
}

static int read_byte_level(struct aq_tok_load *l, const json_t *c, struct aq_err *err)
{
    bool prefix = false, use_regex = true;
    int rc = get_flag(c, "add_prefix_space", pre_tokenizer, &prefix, err);
    if (rc == 0)
        rc = aq_json_get_bool(c, "use_regex", true, pre_tokenizer, &use_regex, err);
    if (rc == 0)
        rc = aq_tok_prefix_space(l, prefix, &prefix, err);
    return rc < 0 ? rc : aq_tok_byte_level(l, prefix, use_regex, err);
}

/* Spaces become another character, one of which begins the text.  add_prefix_space is an older
 * spelling of prepend_scheme. */
static int read_metaspace(struct aq_tok_load *l, const json_t *c, struct aq_err *err)
{
    struct aq_normalizer *n = &l->t->spacer;
    const char *mark = NULL, *scheme = NULL;
    bool prefix = true, split = true;
    char q[80];
    int rc = get_text(c, "replacement", pre_tokenizer, &mark, err);
    if (rc == 0)
        rc = aq_json_get_bool(c, "add_prefix_space", true, pre_tokenizer, &prefix, err);
    if (rc == 0)
        rc = aq_json_get_string(c, "prepend_scheme", prefix ? "always" : "never", pre_tokenizer,
                                &scheme, err);
    if (rc == 0)
        rc = aq_json_get_bool(c, "split", true, pre_tokenizer, &split, err);
    if (rc < 0)
        return rc;
    if (n->step_count || l->t->splitter.stage_count)
        return aq_error(err, -ENOEXEC, "%s: expected Metaspace to be the first step",
                        pre_tokenizer);
    bool first = strcmp(scheme, "first") == 0, never = strcmp(scheme, "never") == 0;
    if (!first && !never && strcmp(scheme, "always") != 0)
        return aq_error(err, -ENOEXEC,
                        "%s: Metaspace: 'prepend_scheme': expected first, always or never, found "
                        "'%s'",
                        pre_tokenizer, aq_quote(q, sizeof(q), scheme, strlen(scheme)));
    rc = aq_normalizer_add(n, AQ_NORMALIZER_REPLACE, " ", mark, err);
    if (rc == 0 && !never) {
        rc = aq_normalizer_add(n, AQ_NORMALIZER_BEGIN, NULL, mark, err);
        n->step[n->step_count - 1].first_only = first;
    }
    return rc == 0 && split ? add_literal(&l->t->splitter, AQ_SPLIT_BEFORE, mark, err) : rc;
}

/* *byte_level: has ByteLevel come?  It must be the last, since it respells the text. */
static int read_pre_tokenizer(struct aq_tok_load *l, const json_t *c, unsigned depth,
                              bool *byte_level, struct aq_err *err)
{
    if (!c || json_is_null(c))
        return 0;
    if (is_type(c, "Sequence") && depth < NESTING_MAX) {
        const json_t *list, *item;
        size_t i;
        int rc = get_list(c, "pretokenizers", pre_tokenizer, &list, err);
        if (rc < 0)
            return rc;
        json_array_foreach(list, i, item)
        {
            rc = read_pre_tokenizer(l, item, depth + 1, byte_level, err);
            if (rc < 0)
                return rc;
        }
        return 0;
    }
    if (*byte_level)
        return aq_error(err, -ENOEXEC, "%s: expected ByteLevel to be the last step", pre_tokenizer);
    if (is_type(c, "ByteLevel")) {
        *byte_level = true;
        return read_byte_level(l, c, err);
    }
    if (is_type(c, "Split"))
        return read_split(&l->t->splitter, c, err);
    if (is_type(c, "Digits"))
        return read_digits(&l->t->splitter, c, err);
    if (is_type(c, "Metaspace"))
        return read_metaspace(l, c, err);
    return unsupported(pre_tokenizer, c,
                       "ByteLevel, Split, Digits, Metaspace, a Sequence of them or null", err);
}

/* ---- model ---- */

/* Options of BPE that change ids and are not GPT-2's. */
static int check_model(const json_t *model, struct aq_err *err)
{
    static const char *const must_be_empty[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    /* old files say no type: BPE is the one with merges */
    if (json_object_get(model, "type") ? !is_type(model, "BPE") : !json_object_get(model, "merges"))
        return unsupported("model", model, "BPE", err);
    for (size_t i = 0; i < sizeof(must_be_empty) / sizeof(*must_be_empty); i++) {
        const char *value = "";
        int rc = aq_json_get_string(model, must_be_empty[i], "", "model", &value, err);
        if (rc < 0)
            return rc;
        if (*value)
            return aq_error(err, -ENOEXEC, "model: '%s' is not supported; expected null or \"\"",
                            must_be_empty[i]);
    }
    const json_t *dropout = json_object_get(model, "dropout");
    if (dropout && !json_is_null(dropout) && json_number_value(dropout) != 0)
        return aq_error(err, -ENOEXEC, "model: 'dropout': expected null or 0");
    return 0;
}

/* "left right" or ["left", "right"]. */
static int read_merge(struct aq_merger *m, const json_t *merge, struct aq_err *err)
{
    const char *left = aq_tok_string(json_array_get(merge, 0));
    const char *right = aq_tok_string(json_array_get(merge, 1));
    if (left && right && json_array_size(merge) == 2)
        return aq_merger_add(m, left, strlen(left), right, strlen(right), err);
    const char *both = aq_tok_string(merge), *space = both ? strchr(both, ' ') : NULL;
    if (!space || space == both || !space[1] || strchr(space + 1, ' '))
        return aq_error(err, -ENOEXEC, "expected \"left right\" or [\"left\", \"right\"]");
    return aq_merger_add(m, both, (size_t)(space - both), space + 1, strlen(space + 1), err);
}

static int read_model(struct aq_tok_load *l, const json_t *model, struct aq_err *err)
{
    if (!json_is_object(model))
        return aq_error(err, -ENOEXEC, "model: expected an object");
    int rc = check_model(model, err);
    if (rc < 0)
        return rc;
    const json_t *vocab = json_object_get(model, "vocab"), *merges, *merge;
    bool whole_first = false;
    if (!json_is_object(vocab))
        return aq_error(err, -ENOEXEC, "model: 'vocab': expected an object of tokens and ids");
    rc = aq_tok_read_vocab(l, vocab, err);
    if (rc == 0)
        rc = aq_json_get_bool(model, "ignore_merges", false, "model", &whole_first, err);
    if (rc == 0)
        rc = aq_merger_start(&l->t->merger, &l->t->vocab, whole_first, err);
    if (rc < 0)
        return rc;
    rc = get_list(model, "merges", "model", &merges, err);
    if (rc < 0)
        return rc;
    size_t i;
    json_array_foreach(merges, i, merge)
    {
        rc = read_merge(&l->t->merger, merge, err);
        if (rc < 0)
            return aq_error_prefix(err, "merges[%zu]", i);
    }
    return 0;
}

/* A model whose pieces are characters, as those made of SentencePiece's: what becomes of a
 * character that is no token. */
static int read_unknown_rule(struct aq_tok_load *l, const json_t *model, struct aq_err *err)
{
    struct aq_unknown_rule rule = {.unk_id = -1};
    const char *unk = NULL;
    int rc = aq_json_get_bool(model, "byte_fallback", false, "model", &rule.to_bytes, err);
    if (rc == 0)
        rc = aq_json_get_bool(model, "fuse_unk", false, "model", &rule.fused, err);
    if (rc == 0)
        rc = aq_json_get_string(model, "unk_token", NULL, "model", &unk, err);
    if (rc < 0)
        return rc;
    if (unk)
        rule.unk_id = aq_vocab_find(&l->t->vocab, unk, strlen(unk));
    aq_merger_of_characters(&l->t->merger, rule);
    return 0;
}

/* ---- decoder, post-processor, added tokens ---- */

static int read_byte_level_decoder(const json_t *c, struct aq_err *err)
{
    if (!c || json_is_null(c) || is_type(c, "ByteLevel"))
        return 0;
    const json_t *list = json_object_get(c, "decoders");
    if (is_type(c, "Sequence") && json_array_size(list) == 1 &&
        is_type(json_array_get(list, 0), "ByteLevel"))
        return 0;
    return unsupported("decoder", c, "ByteLevel or null", err);
}

/* The order of a decoder's steps: those that look at tokens, bytes, the text as one, its edges. */
enum decoder_step { TOKENS, BYTES, WHOLE, EDGES, STEP_COUNT };

/* {"content": " ", "start": 1, "stop": 0} */
static int read_strip(struct aq_decoder *d, const json_t *c, struct aq_err *err)
{
    const char *content = aq_tok_string(json_object_get(c, "content"));
    uint64_t start = 0, stop = 0;
    int rc = aq_json_get_u64(c, "start", 0, UINT32_MAX, "decoder", &start, err);
    if (rc == 0)
        rc = aq_json_get_u64(c, "stop", 0, UINT32_MAX, "decoder", &stop, err);
    if (rc < 0)
        return rc;
    if (!content || strcmp(content, " ") != 0 || start > 1 || stop > 0)
        return aq_error(err, -ENOEXEC,
                        "decoder: Strip: expected at most one space from the start, none from the "
                        "end");
    d->strip = start ? AQ_STRIP_SPACE : AQ_STRIP_NOTHING;
    return 0;
}

/* *step: the last one that has come. */
static int read_decoder(struct aq_decoder *d, const json_t *c, enum decoder_step *step,
                        unsigned depth, struct aq_err *err)
{
    static const char *const types[] = {
        [TOKENS] = "Replace", [BYTES] = "ByteFallback", [WHOLE] = "Fuse", [EDGES] = "Strip"};
    const json_t *list, *item;
    size_t i;
    if (is_type(c, "Sequence") && depth < NESTING_MAX) {
        int rc = get_list(c, "decoders", "decoder", &list, err);
        if (rc < 0)
            return rc;
        json_array_foreach(list, i, item)
        {
            rc = read_decoder(d, item, step, depth + 1, err);
            if (rc < 0)
                return rc;
        }
        return 0;
    }
    enum decoder_step found = TOKENS;
    while (found < STEP_COUNT && !is_type(c, types[found]))
        found++;
    if (found == STEP_COUNT)
        return unsupported("decoder", c,
                           "a Sequence of Replace, ByteFallback, Fuse and Strip where there is no "
                           "ByteLevel",
                           err);
    if (found < *step || (found == EDGES && *step != WHOLE))
        return aq_error(err, -ENOEXEC,
                        "decoder: expected Replace, ByteFallback, Fuse and Strip in this order, "
                        "found %s behind %s",
                        types[found], types[*step]);
    *step = found;
    if (found == TOKENS)
        return read_replace(&d->respell, c, "decoder", err);
    d->byte_fallback = d->byte_fallback || found == BYTES;
    return found == EDGES ? read_strip(d, c, err) : 0;
}

/* The id a template's special token stands for. */
static int template_id(const json_t *c, const json_t *special, int32_t *ret, struct aq_err *err)
{
    const char *name = json_string_value(json_object_get(special, "id"));
    const json_t *token = name ? json_object_get(json_object_get(c, "special_tokens"), name) : NULL;
    const json_t *ids = json_object_get(token, "ids"), *id = json_array_get(ids, 0);
    if (json_array_size(ids) != 1 || !json_is_integer(id) || json_integer_value(id) < 0 ||
        json_integer_value(id) >= AQ_TOKEN_ID_MAX || *ret >= 0)
        return aq_error(err, -ENOEXEC,
                        "post_processor: 'single': expected at most one special token, with one id "
                        "in 'special_tokens', on either side of the text");
    *ret = (int32_t)json_integer_value(id);
    return 0;
}

/* {"single": [{"SpecialToken": {"id"}}, {"Sequence": {"id": "A"}}]} */
static int read_template(struct aq_tok_load *l, const json_t *c, struct aq_err *err)
{
    const json_t *list, *item;
    size_t i;
    bool text = false;
    int rc = get_list(c, "single", "post_processor", &list, err);
    l->has_template = true;
    if (rc < 0)
        return rc;
    json_array_foreach(list, i, item)
    {
        const json_t *special = json_object_get(item, "SpecialToken");
        if (special) {
            rc = template_id(c, special, text ? &l->template_after : &l->template_before, err);
            if (rc < 0)
                return rc;
        } else if (json_object_get(item, "Sequence") && !text) {
            text = true;
        } else {
            return aq_error(
                err, -ENOEXEC,
                "post_processor: 'single': expected special tokens around one Sequence");
        }
    }
    return text
               ? 0
               : aq_error(err, -ENOEXEC, "post_processor: 'single': expected a Sequence, the text");
}

/* ByteLevel only trims offsets, which nobody sees here. */
static int read_post_processor(struct aq_tok_load *l, const json_t *c, unsigned depth,
                               struct aq_err *err)
{
    if (!c || json_is_null(c) || is_type(c, "ByteLevel"))
        return 0;
    if (is_type(c, "TemplateProcessing") && !l->has_template)
        return read_template(l, c, err);
    if (!is_type(c, "Sequence") || depth == NESTING_MAX)
        return unsupported("post_processor", c,
                           "ByteLevel, one TemplateProcessing, a Sequence of them or null", err);
    const json_t *list, *item;
    size_t i;
    int rc = get_list(c, "processors", "post_processor", &list, err);
    if (rc < 0)
        return rc;
    json_array_foreach(list, i, item)
    {
        rc = read_post_processor(l, item, depth + 1, err);
        if (rc < 0)
            return rc;
    }
    return 0;
}

static int read_added_tokens(struct aq_tok_load *l, const json_t *list, struct aq_err *err)
{
    const json_t *token;
    size_t i;
    if (!list || json_is_null(list))
        return 0;
    if (!json_is_array(list))
        return aq_error(err, -ENOEXEC, "added_tokens: expected a list");
    json_array_foreach(list, i, token)
    {
        const json_t *id = json_object_get(token, "id");
        int rc = json_is_integer(id)
                     ? aq_tok_read_added(l, token, json_integer_value(id), false, err)
                     : aq_error(err, -ENOEXEC, "'id': expected an integer");
        if (rc < 0)
            return aq_error_prefix(err, "added_tokens[%zu]", i);
    }
    return 0;
}

int aq_tok_read_json(struct aq_tok_load *l, struct aq_err *err)
{
    json_t *root = NULL;
    bool byte_level = false;
    int rc = aq_tok_read_object(l, file_name, &root, err);
    if (rc <= 0)
        return rc;
    l->t->info.source = file_name;
    const json_t *model = json_object_get(root, "model"),
                 *decoder = json_object_get(root, "decoder");
    enum decoder_step step = TOKENS;
    rc = read_model(l, model, err);
    if (rc == 0)
        rc = read_normalizer(&l->t->normalizer, json_object_get(root, "normalizer"), 0, err);
    if (rc == 0)
        rc = read_pre_tokenizer(l, json_object_get(root, pre_tokenizer), 0, &byte_level, err);
    if (rc == 0 && !byte_level)
        rc = read_unknown_rule(l, model, err);
    if (rc == 0)
        rc = byte_level ? read_byte_level_decoder(decoder, err)
                        : read_decoder(&l->t->decoder, decoder, &step, 0, err);
    if (rc == 0)
        rc = read_post_processor(l, json_object_get(root, "post_processor"), 0, err);
    if (rc == 0)
        rc = read_added_tokens(l, json_object_get(root, "added_tokens"), err);
    json_decref(root);
    return rc < 0 ? aq_error_prefix(err, "'%s/%s'", l->dir, file_name) : 1;
}
