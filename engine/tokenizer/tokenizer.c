/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/tokenizer/internal.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

struct aq_tok_state {
    struct aq_normalizer_scratch normalizer, spacer;
    struct aq_split_scratch *split;
    struct aq_merge_scratch *merge;
};

/* ---- opening ---- */

static int find_nothing(struct aq_tok_load *l, struct aq_err *err)
{
    char *text = NULL;
    size_t bytes;
    int rc = aq_tok_read_text(l, "tekken.json", &text, &bytes, err);
    free(text);
    return aq_error(err, -ENOENT,
                    "'%s' has no tokenizer: expected tokenizer.json, or tokenizer.model, or "
                    "vocab.json and merges.txt, or encoder.json and vocab.bpe%s",
                    l->dir,
                    rc == 1 ? " (tekken.json is not read: put the model's tokenizer.json beside it)"
                            : "");
}

static int read_files(struct aq_tok_load *l, struct aq_err *err)
{
    int rc = aq_tok_read_object(l, "tokenizer_config.json", &l->config, err);
    if (rc >= 0)
        rc = aq_tok_read_object(l, "special_tokens_map.json", &l->map, err);
    if (rc >= 0)
        rc = aq_tok_read_object(l, "added_tokens.json", &l->added, err);
    if (rc >= 0)
        rc = aq_tok_read_json(l, err);
    if (rc == 0)
        rc = aq_tok_read_sentencepiece(l, err);
    if (rc == 0)
        rc = aq_tok_read_gpt2(l, "vocab.json", "merges.txt", err);
    if (rc == 0)
        rc = aq_tok_read_gpt2(l, "encoder.json", "vocab.bpe", err);
    if (rc == 0)
        rc = find_nothing(l, err);
    return rc < 0 ? rc : aq_tok_read_special(l, err);
}

/* Puts every added token where the text will look for it. */
static int index_added(struct aq_tokenizer *t, struct aq_err *err)
{
    struct aq_normalizer_scratch scratch = {0};
    int rc = 0;
    for (uint32_t id = 0; rc == 0 && id < t->vocab.id_end; id++) {
        const struct aq_token *token = aq_vocab_token(&t->vocab, id);
        if (!token || !(token->flags & AQ_TOKEN_ADDED))
            continue;
        const char *text = t->vocab.text.data + token->text_at;
        size_t bytes = token->text_bytes;
        bool normalized = token->flags & AQ_TOKEN_NORMALIZED;
        if (normalized)
            rc = aq_normalize(&t->normalizer, &scratch, text, bytes, true, &text, &bytes, err);
        if (rc == 0)
            rc = aq_added_put(normalized ? &t->normalized_added : &t->raw_added, text, bytes, id,
                              err);
    }
    aq_normalizer_scratch_close(&scratch);
    return rc;
}

static int finish(struct aq_tok_load *l, struct aq_err *err)
{
    struct aq_tokenizer *t = l->t;
    int rc = aq_vocab_finish(&t->vocab, &t->decoder, err);
    if (rc == 0)
        rc = index_added(t, err);
    if (rc < 0)
        return aq_error_prefix(err, "'%s'", l->dir);
    t->info.id_end = t->vocab.id_end;
    t->info.token_count = t->vocab.token_count;
    t->info.token_bytes_max = t->vocab.data_bytes_max;
    t->info.hash = XXH3_64bits_digest(l->hash);
    t->info.memory_bytes =
        sizeof(*t) + aq_vocab_memory(&t->vocab) +
        ((uint64_t)sizeof(*t->merger.slot) << t->merger.slot_bits) +
        (uint64_t)sizeof(*t->raw_added.node) *
            (t->raw_added.capacity + t->normalized_added.capacity + t->merger.whole.capacity);
    return 0;
}

int aq_tokenizer_open(struct aq_tokenizer **ret, const char *dir,
                      const struct aq_tokenizer_defaults *defaults, struct aq_err *reterr)
{
    assert(ret && dir);
    struct aq_err unused, *err = reterr ? reterr : &unused;
    struct aq_tok_load l = {.dir = dir,
                            .defaults = defaults,
                            .t = calloc(1, sizeof(*l.t)),
                            .hash = XXH3_createState(),
                            .template_before = -1,
                            .template_after = -1,
                            .model_bos = -1,
                            .model_eos = -1,
                            .model_pad = -1,
                            .model_unk = -1};
    int rc = 0;
    if (!l.t || !l.hash)
        rc = aq_error_memory(err, "tokenizer of '%s'", dir);
    if (rc == 0) {
        XXH3_64bits_reset(l.hash);
        rc = read_files(&l, err);
    }
    if (rc == 0)
        rc = finish(&l, err);
    json_decref(l.config);
    json_decref(l.map);
    json_decref(l.added);
    XXH3_freeState(l.hash);
    if (rc < 0) {
        aq_tokenizer_close(l.t);
        return rc;
    }
    *ret = l.t;
    return 0;
}

void aq_tokenizer_close(struct aq_tokenizer *t)
{
    if (!t)
        return;
    aq_added_close(&t->raw_added);
    aq_added_close(&t->normalized_added);
    aq_normalizer_close(&t->normalizer);
    aq_normalizer_close(&t->spacer);
    aq_normalizer_close(&t->decoder.respell);
    aq_splitter_close(&t->splitter);
    aq_merger_close(&t->merger);
    aq_vocab_close(&t->vocab);
    free(t);
}

/* ---- tokens ---- */

const struct aq_tokenizer_info *aq_tokenizer_info(const struct aq_tokenizer *t)
{
    return &t->info;
}

bool aq_tokenizer_is_special(const struct aq_tokenizer *t, uint32_t id)
{
    const struct aq_token *token = aq_vocab_token(&t->vocab, id);
    return token && (token->flags & AQ_TOKEN_SPECIAL);
}

const char *aq_tokenizer_token_text(const struct aq_tokenizer *t, uint32_t id)
{
    const struct aq_token *token = aq_vocab_token(&t->vocab, id);
    return token ? t->vocab.text.data + token->text_at : NULL;
}

const char *aq_tokenizer_token_bytes(const struct aq_tokenizer *t, uint32_t id, size_t *ret_bytes)
{
    const struct aq_token *token = aq_vocab_token(&t->vocab, id);
    *ret_bytes = token ? token->data_bytes : 0;
    return token ? t->vocab.data.data + token->data_at : NULL;
}

int32_t aq_tokenizer_find(const struct aq_tokenizer *t, const char *text, size_t bytes)
{
    return aq_vocab_find(&t->vocab, text, bytes);
}

/* ---- encoding ---- */

static int put_id(struct aq_ids *ids, uint32_t id, struct aq_err *reterr)
{
    if (!aq_ids_reserve(ids, 1))
        return aq_error_memory(reterr, "%zu ids", ids->count + 1);
    ids->item[ids->count++] = id;
    return 0;
}

int aq_tok_state_open(struct aq_tok_state **ret, const struct aq_tokenizer *t,
                      struct aq_err *reterr)
{
    struct aq_tok_state *s = calloc(1, sizeof(*s));
    if (!s)
        return aq_error_memory(reterr, "buffers for encoding");
    int rc = aq_split_scratch_open(&s->split, &t->splitter, reterr);
    if (rc == 0)
        rc = aq_merge_scratch_open(&s->merge, reterr);
    if (rc < 0) {
        aq_tok_state_close(s);
        return rc;
    }
    *ret = s;
    return 0;
}

void aq_tok_state_close(struct aq_tok_state *s)
{
    if (!s)
        return;
    aq_normalizer_scratch_close(&s->normalizer);
    aq_normalizer_scratch_close(&s->spacer);
    aq_split_scratch_close(s->split);
    aq_merge_scratch_close(s->merge);
    free(s);
}

struct encode {
    const struct aq_tokenizer *t;
    struct aq_tok_state *s;
    bool parse_special;
    struct aq_ids *ids;
    struct aq_err *reterr;
};

static int encode_piece(void *arg, const char *piece, size_t bytes, struct aq_err *reterr)
{
    struct encode *e = arg;
    return aq_merge_piece(&e->t->merger, e->s->merge, piece, bytes, e->ids, reterr);
}

/* first: the text is the beginning of the input, nothing was cut off in front of it. */
typedef int encode_fn(struct encode *e, const char *text, size_t bytes, bool first);

static int encode_plain(struct encode *e, const char *text, size_t bytes, bool first)
{
    int rc =
        aq_normalize(&e->t->spacer, &e->s->spacer, text, bytes, first, &text, &bytes, e->reterr);
    return rc < 0 ? rc
                  : aq_split(&e->t->splitter, e->s->split, text, bytes, encode_piece, e, e->reterr);
}

/* Does this match count, and what does it take with it?  As in the tokenizers library. */
static bool settle_match(const struct encode *e, const char *text, size_t bytes, size_t done,
                         struct aq_added_match *m)
{
    unsigned flags = aq_vocab_token(&e->t->vocab, m->id)->flags;
    if ((flags & AQ_TOKEN_SPECIAL) && !e->parse_special)
        return false;
    if ((flags & AQ_TOKEN_SINGLE_WORD) &&
        (aq_word_before(text, m->begin) || aq_word_after(text, bytes, m->end)))
        return false;
    if (flags & AQ_TOKEN_LSTRIP) {
        size_t begin = aq_space_before(text, m->begin);
        m->begin = begin > done ? begin : done;
    }
    if (flags & AQ_TOKEN_RSTRIP)
        m->end = aq_space_after(text, bytes, m->end);
    return true;
}

/* Takes the added tokens out of the text and hands what lies between to `next`. */
static int encode_added(struct encode *e, const struct aq_added *added, const char *text,
                        size_t bytes, bool first, encode_fn *next)
{
    struct aq_added_match found;
    size_t done = 0;
    int rc = 0;
    for (size_t from = 0; rc >= 0 && aq_added_find(added, text, bytes, from, &found);) {
        struct aq_added_match m = found;
        from = found.end;
        if (!settle_match(e, text, bytes, done, &m))
            continue;
        if (m.begin > done)
            rc = next(e, text + done, m.begin - done, first && done == 0);
        if (rc >= 0)
            rc = put_id(e->ids, m.id, e->reterr);
        done = m.end;
    }
    return rc >= 0 && done < bytes ? next(e, text + done, bytes - done, first && done == 0) : rc;
}

static int encode_raw(struct encode *e, const char *text, size_t bytes, bool first)
{
    int rc = aq_normalize(&e->t->normalizer, &e->s->normalizer, text, bytes, first, &text, &bytes,
                          e->reterr);
    return rc < 0 ? rc : encode_added(e, &e->t->normalized_added, text, bytes, first, encode_plain);
}

int aq_tokenizer_encode(const struct aq_tokenizer *t, struct aq_tok_state *s, const char *text,
                        size_t bytes, struct aq_encode_opts opts, struct aq_ids *ids,
                        struct aq_err *reterr)
{
    assert(t && s && ids && (text || bytes == 0));
    if (bytes > AQ_TOKENIZER_TEXT_MAX)
        return aq_error(reterr, -EINVAL, "expected a text of at most %d bytes, found %zu",
                        AQ_TOKENIZER_TEXT_MAX, bytes);
    struct encode e = {t, s, opts.parse_special, ids, reterr};
    size_t had = ids->count;
    int rc = 0;
    if (opts.add_bos && t->info.bos_id >= 0)
        rc = put_id(ids, (uint32_t)t->info.bos_id, reterr);
    if (rc >= 0 && bytes)
        rc = encode_added(&e, &t->raw_added, text, bytes, true, encode_raw);
    if (rc >= 0 && opts.add_eos && t->info.eos_id >= 0)
        rc = put_id(ids, (uint32_t)t->info.eos_id, reterr);
    if (rc < 0)
        ids->count = had;
    return rc < 0 ? rc : 0;
}
