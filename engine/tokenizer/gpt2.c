/* SPDX-License-Identifier: Apache-2.0
 * The two files of GPT-2's tokenizer: a JSON object of tokens and ids, and one merge a line. */
#include "engine/tokenizer/internal.h"

#include <stdlib.h>
#include <string.h>

int aq_tok_read_vocab(struct aq_tok_load *l, const json_t *object, struct aq_err *err)
{
    const char *token;
    json_t *id;
    if (json_object_size(object) == 0)
        return aq_error(err, -ENOEXEC, "expected tokens and ids, found an empty object");
    json_object_foreach((json_t *)object, token, id)
    {
        char q[80];
        if (!json_is_integer(id))
            return aq_error(err, -ENOEXEC, "token '%s': expected an integer id, found another type",
                            aq_quote(q, sizeof(q), token, strlen(token)));
        int rc = aq_vocab_add(&l->t->vocab, json_integer_value(id), token, strlen(token),
                              AQ_TOKEN_MODEL, err);
        if (rc < 0)
            return rc;
    }
    return 0;
}

int aq_tok_byte_level(struct aq_tok_load *l, bool prefix_space, bool use_regex, struct aq_err *err)
{
    struct aq_splitter *s = &l->t->splitter;
    int rc = 0;
    l->t->decoder.of_bytes = true;
    if (prefix_space)
        rc = aq_splitter_add(s, AQ_SPLIT_PREFIX_SPACE, NULL, 0, err);
    if (rc == 0 && use_regex)
        rc = aq_splitter_add(s, AQ_SPLIT_ISOLATE, aq_split_gpt2_pattern,
                             strlen(aq_split_gpt2_pattern), err);
    return rc;
}

static int read_merge(struct aq_merger *m, const char *line, size_t bytes, struct aq_err *err)
{
    const char *space = memchr(line, ' ', bytes), *end = line + bytes;
    char q[80];
    if (!space || space == line || space + 1 == end ||
        memchr(space + 1, ' ', (size_t)(end - space - 1)))
        return aq_error(err, -ENOEXEC, "expected two tokens with one space between, found '%s'",
                        aq_quote(q, sizeof(q), line, bytes));
    return aq_merger_add(m, line, (size_t)(space - line), space + 1, (size_t)(end - space - 1),
                         err);
}

/* A line a merge; the first may be a "#version" header, which no merge looks like to the readers of
 * this format.  Empty lines are skipped: files end in some. */
static int read_merges(struct aq_merger *m, const char *text, size_t bytes, struct aq_err *err)
{
    size_t number = 1;
    for (const char *line = text, *end = text + bytes; line < end; number++) {
        const char *next = memchr(line, '\n', (size_t)(end - line));
        size_t n = (size_t)((next ? next : end) - line);
        if (n && line[n - 1] == '\r')
            n--;
        bool header = number == 1 && n >= 8 && memcmp(line, "#version", 8) == 0;
        int rc = n && !header ? read_merge(m, line, n, err) : 0;
        if (rc < 0)
            return aq_error_prefix(err, "line %zu", number);
        line = next ? next + 1 : end;
    }
    return 0;
}

/* Which tokenizers are no more than these two files.  Others of the same file names split or
 * normalise differently, and say how in a tokenizer.json. */
static int check_class(struct aq_tok_load *l, struct aq_err *err)
{
    const char *name = NULL;
    int rc = l->config ? aq_json_get_string(l->config, "tokenizer_class", NULL,
                                            "tokenizer_config.json", &name, err)
                       : 0;
    if (rc < 0 || !name)
        return rc;
    if (strcmp(name, "GPT2Tokenizer") == 0 || strcmp(name, "GPT2TokenizerFast") == 0)
        return 0;
    char q[80];
    return aq_error(
        err, -ENOEXEC,
        "'%s/tokenizer_config.json': expected tokenizer_class GPT2Tokenizer where there "
        "is no tokenizer.json, found '%s'",
        l->dir, aq_quote(q, sizeof(q), name, strlen(name)));
}

int aq_tok_read_gpt2(struct aq_tok_load *l, const char *vocab_name, const char *merges_name,
                     struct aq_err *err)
{
    json_t *vocab = NULL;
    char *text = NULL;
    size_t bytes;
    bool prefix = false;
    int rc = aq_tok_read_object(l, vocab_name, &vocab, err);
    if (rc <= 0)
        return rc;
    rc = check_class(l, err);
    if (rc == 0)
        rc = aq_tok_read_text(l, merges_name, &text, &bytes, err);
    if (rc == 0) {
        rc = aq_error(err, -ENOENT, "'%s' has %s but no %s; both are needed", l->dir, vocab_name,
                      merges_name);
        goto out;
    }
    if (rc < 0)
        goto out;
    l->t->info.source = vocab_name;
    rc = aq_tok_read_vocab(l, vocab, err);
    if (rc == 0)
        rc = aq_merger_start(&l->t->merger, &l->t->vocab, false, err);
    if (rc < 0) {
        aq_error_prefix(err, "'%s/%s'", l->dir, vocab_name);
        goto out;
    }
    rc = read_merges(&l->t->merger, text, bytes, err);
    if (rc < 0) {
        aq_error_prefix(err, "'%s/%s'", l->dir, merges_name);
        goto out;
    }
    rc = aq_tok_prefix_space(l, false, &prefix, err);
    if (rc == 0)
        rc = aq_tok_byte_level(l, prefix, true, err);
out:
    json_decref(vocab);
    free(text);
    return rc < 0 ? rc : 1;
}
