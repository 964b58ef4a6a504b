/* SPDX-License-Identifier: Apache-2.0
 * engine/tokenizer/tokenizer.h - text to token ids and back, as the model's own files say.  A
 * tokenizer is a pipeline of added tokens -> normaliser -> splitter -> merger -> decoder, read from
 * a model directory; it never changes after open, so any number of threads may use it, each with
 * its own state.  Knows files, bytes and ids; nothing of models, requests or sampling.
 *
 * Text is bytes.  What is not UTF-8 is encoded byte by byte, each such byte a piece of its own.
 * There are two kinds of tokenizers.  Byte-level ones (GPT-2's) have tokens of bytes: decoding
 * gives back exactly the bytes that were encoded, where the normaliser changes nothing.
 * SentencePiece's have tokens of characters, and bytes for what they lack ("<0xE2>"): decoding
 * gives UTF-8, in which U+FFFD stands for each byte that is none, and without the space that
 * encoding put in front of the text. */
#ifndef AQ_ENGINE_TOKENIZER_TOKENIZER_H
#define AQ_ENGINE_TOKENIZER_TOKENIZER_H

#include "base/buf.h"
#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    AQ_TOKEN_ID_MAX = 16 << 20,       /* ids in files lie below this */
    AQ_TOKENIZER_TEXT_MAX = 1 << 30,  /* bytes of one text to encode */
    AQ_TOKENIZER_FILE_MAX = 128 << 20 /* bytes of one tokenizer file */
};

struct aq_tokenizer;
struct aq_tok_state;

/* What config.json says; used only where the tokenizer's own files are silent.  -1: none. */
struct aq_tokenizer_defaults {
    int32_t bos_id, eos_id, pad_id;
    bool add_bos; /* the architecture wants BOS in front of text */
};

struct aq_tokenizer_info {
    uint32_t id_end;      /* one more than the largest id; there may be holes below */
    uint32_t token_count; /* ids that have a token */
    int32_t bos_id, eos_id, pad_id, unk_id; /* -1: none */
    bool add_bos, add_eos;                  /* what the files put around a text */
    uint32_t token_bytes_max;               /* longest token, decoded */
    const char *source;    /* the file that has the vocabulary ("tokenizer.json") */
    char notice[384];      /* a sentence where the files contradict each other; "": there is none */
    uint64_t hash;         /* xxh3-64 over names and bytes of the files that were read */
    uint64_t memory_bytes; /* held until close */
};

/* A growing list of ids, owned by the caller: start from {0}. */
struct aq_ids {
    uint32_t *item;
    size_t count, capacity;
};

/* The names aq_tokenizer_open() looks for, ended by NULL: what a copy of a model must copy to keep
 * its tokenizer. */
extern const char *const aq_tokenizer_file_names[];

/* Reads tokenizer.json, or tokenizer.model (SentencePiece, BPE), or vocab.json + merges.txt, or
 * encoder.json + vocab.bpe, in this order of preference, and the special tokens from
 * tokenizer_config.json, special_tokens_map.json and added_tokens.json.  defaults NULL: none.
 * -ENOENT names what was looked for; -ENOEXEC names file and component. */
int aq_tokenizer_open(struct aq_tokenizer **ret, const char *dir,
                      const struct aq_tokenizer_defaults *defaults, struct aq_err *reterr);
void aq_tokenizer_close(struct aq_tokenizer *t);
const struct aq_tokenizer_info *aq_tokenizer_info(const struct aq_tokenizer *t);

/* ---- tokens; an id without a token is a hole: NULL, not special ---- */

bool aq_tokenizer_is_special(const struct aq_tokenizer *t, uint32_t id);
/* As the files spell it ("\u0120the"), NUL-terminated. */
const char *aq_tokenizer_token_text(const struct aq_tokenizer *t, uint32_t id);
/* What it decodes to (" the"). */
const char *aq_tokenizer_token_bytes(const struct aq_tokenizer *t, uint32_t id, size_t *ret_bytes);
/* The id of a token spelled as in the files; -1 when there is none. */
int32_t aq_tokenizer_find(const struct aq_tokenizer *t, const char *text, size_t bytes);

/* ---- encoding ---- */

/* Buffers of one thread's encodes. */
int aq_tok_state_open(struct aq_tok_state **ret, const struct aq_tokenizer *t,
                      struct aq_err *reterr);
void aq_tok_state_close(struct aq_tok_state *s);

struct aq_encode_opts {
    bool add_bos, add_eos; /* the caller decides; info says what the files want.  No effect
                              where the model has no such token */
    bool parse_special;    /* special tokens spelled out in the text become that token, as in
                              transformers; false: they are ordinary text */
};

/* Appends the text's ids.  On failure ids->count is as before: -EINVAL the text is too long or has
 * a byte the vocabulary has no token for, or the model's split pattern goes astray on it; -ENOMEM.
 */
int aq_tokenizer_encode(const struct aq_tokenizer *t, struct aq_tok_state *s, const char *text,
                        size_t bytes, struct aq_encode_opts opts, struct aq_ids *ids,
                        struct aq_err *reterr);

void aq_ids_close(struct aq_ids *ids);
/* Room for `extra` more; false when memory ran out. */
bool aq_ids_reserve(struct aq_ids *ids, size_t extra);

/* ---- decoding; holes decode to nothing ---- */

/* Appends the text of the tokens, from the beginning of a sequence on.  It need not be UTF-8 where
 * tokens are of bytes. */
void aq_tokenizer_decode(const struct aq_tokenizer *t, const uint32_t *ids, size_t count,
                         bool skip_special, struct aq_buf *out);

/* What the token adds to a text in which *begun says whether something stands already; never NULL.
 * Text that goes on from another one has begun. */
const char *aq_tokenizer_next_text(const struct aq_tokenizer *t, uint32_t id, bool skip_special,
                                   bool *begun, size_t *ret_bytes);
/* As aq_utf8_step, where what is not UTF-8 is as long as one U+FFFD replaces here. */
size_t aq_tokenizer_step(const struct aq_tokenizer *t, const char *bytes, size_t count,
                         bool *ret_valid);
/* Replaces in out, from begin on, what is not UTF-8 as aq_tokenizer_decode() does. */
void aq_tokenizer_repair(const struct aq_tokenizer *t, struct aq_buf *out, size_t begin);

/* Decodes token by token and gives out only whole UTF-8 characters: the beginning of a character is
 * held back until it is complete, and what cannot become one is U+FFFD (aq_tokenizer_step's rule).
 * All outputs together equal the whole decode after replacement.  A plain value: may be copied. */
struct aq_detok {
    const struct aq_tokenizer *t;
    bool skip_special, begun;
    uint8_t pending_count;
    char pending[4];
};

/* Of a text that goes on from another one, set begun. */
void aq_detok_start(struct aq_detok *d, const struct aq_tokenizer *t, bool skip_special);
/* Bytes that one push or flush may write at most. */
size_t aq_detok_bytes_max(const struct aq_tokenizer *t);
/* Returns how many bytes were written to out. */
size_t aq_detok_push(struct aq_detok *d, uint32_t id, char *out);
/* The end of the sequence: what is still held back is replaced. */
size_t aq_detok_flush(struct aq_detok *d, char *out);

#endif
