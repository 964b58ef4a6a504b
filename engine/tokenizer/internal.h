/* SPDX-License-Identifier: Apache-2.0
 * engine/tokenizer/internal.h - a tokenizer from the inside, and the steps of reading one.  For the
 * files this folder alone. */
#ifndef AQ_ENGINE_TOKENIZER_INTERNAL_H
#define AQ_ENGINE_TOKENIZER_INTERNAL_H

#include "base/json.h"
#include "engine/tokenizer/added.h"
#include "engine/tokenizer/bpe.h"
#include "engine/tokenizer/normalizer.h"
#include "engine/tokenizer/splitter.h"
#include "engine/tokenizer/tokenizer.h"
#include "engine/tokenizer/vocab.h"

#include <xxhash.h>

struct aq_tokenizer {
    /* the pipeline, in the order of encoding */
    struct aq_added raw_added; /* looked for before the normaliser */
    struct aq_normalizer normalizer;
    struct aq_added normalized_added; /* looked for behind it, their own text normalised too */
    struct aq_normalizer spacer;      /* spaces of what lies between added tokens (Metaspace) */
    struct aq_splitter splitter;
    struct aq_merger merger;
    /* decoding: a token's bytes are in the vocabulary */
    struct aq_vocab vocab;
    struct aq_decoder decoder;
    struct aq_tokenizer_info info;
};

/* The directory being read. */
struct aq_tok_load {
    struct aq_tokenizer *t;
    const char *dir;
    const struct aq_tokenizer_defaults *defaults; /* NULL: none */
    XXH3_state_t *hash;
    json_t *config, *map, *added; /* tokenizer_config.json, special_tokens_map.json,
                                     added_tokens.json; NULL when absent */
    /* tokenizer.json's post-processor: the tokens around a text, -1 none. */
    bool has_template;
    int32_t template_before, template_after;
    /* tokenizer.model's own roles, -1 none; and whether it is what is read. */
    int32_t model_bos, model_eos, model_pad, model_unk;
    bool sentencepiece;
};

/* ---- files.c: one file of the directory, added to the hash: 1 read, 0 absent ---- */

int aq_tok_read_text(struct aq_tok_load *l, const char *name, char **ret, size_t *ret_bytes,
                     struct aq_err *err);
int aq_tok_read_object(struct aq_tok_load *l, const char *name, json_t **ret, struct aq_err *err);

/* ---- gpt2.c: vocab.json + merges.txt, or the names GPT-2 itself gave them ---- */

/* 1 read, 0 absent. */
int aq_tok_read_gpt2(struct aq_tok_load *l, const char *vocab_name, const char *merges_name,
                     struct aq_err *err);
/* {"token": id, ...} into the vocabulary. */
int aq_tok_read_vocab(struct aq_tok_load *l, const json_t *object, struct aq_err *err);
/* Adds what ByteLevel does to the splitter. */
int aq_tok_byte_level(struct aq_tok_load *l, bool prefix_space, bool use_regex, struct aq_err *err);

/* ---- json.c ---- */

/* 1 read, 0 absent. */
int aq_tok_read_json(struct aq_tok_load *l, struct aq_err *err);

/* ---- sentencepiece.c: tokenizer.model: 1 read, 0 absent ---- */

int aq_tok_read_sentencepiece(struct aq_tok_load *l, struct aq_err *err);
/* The character that stands for a space there, and in the files made of it. */
#define AQ_SPACE_MARK "\xe2\x96\x81"

/* ---- special.c ---- */

/* The string, NULL for another type and for one with a NUL inside. */
const char *aq_tok_string(const json_t *value);
/* One AddedToken: text or {"content", "lstrip", ...}.  id -1: only if the vocabulary has it.
 * special: it is, whatever the object says. */
int aq_tok_read_added(struct aq_tok_load *l, const json_t *token, int64_t id, bool special,
                      struct aq_err *err);
/* tokenizer_config.json and the others: more added tokens, which of them are special, the roles. */
int aq_tok_read_special(struct aq_tok_load *l, struct aq_err *err);

/* tokenizer_config.json's add_prefix_space where it says something, else deflt. */
int aq_tok_prefix_space(const struct aq_tok_load *l, bool deflt, bool *ret, struct aq_err *err);

#endif
