/* SPDX-License-Identifier: Apache-2.0
 * engine/tokenizer/vocab.h - the tokens of a tokenizer: id <-> spelling, the bytes a token stands
 * for, and its flags; and GPT-2's spelling of bytes as printable characters.  Part of tokenizer.h:
 * filled while files are read, constant afterwards.  Knows no files and no text. */
#ifndef AQ_ENGINE_TOKENIZER_VOCAB_H
#define AQ_ENGINE_TOKENIZER_VOCAB_H

#include "engine/tokenizer/normalizer.h"
#include "engine/tokenizer/tokenizer.h"

enum aq_token_flag {
    AQ_TOKEN_PRESENT = 1, /* not a hole */
    AQ_TOKEN_MODEL = 2,   /* the merger can produce it */
    AQ_TOKEN_ADDED = 4,   /* found in the text before it is split; spelled as it decodes */
    AQ_TOKEN_SPECIAL = 8, /* controls the model, is not text */
    /* How an added token is found: only between non-word characters; with the white space on its
     * left or right; in the normalised instead of the raw text. */
    AQ_TOKEN_SINGLE_WORD = 16,
    AQ_TOKEN_LSTRIP = 32,
    AQ_TOKEN_RSTRIP = 64,
    AQ_TOKEN_NORMALIZED = 128,
    AQ_TOKEN_BYTE = 256, /* spelled "<0xE2>", decodes to this byte */
};

struct aq_token {
    uint32_t text_at, text_bytes; /* spelling, in aq_vocab.text, NUL-terminated */
    uint32_t data_at, data_bytes; /* what it decodes to, in aq_vocab.data */
    uint32_t flags;
};

enum {
    AQ_VOCAB_PAGE_TOKENS = 4096,
    AQ_VOCAB_PAGES = AQ_TOKEN_ID_MAX / AQ_VOCAB_PAGE_TOKENS,
};

struct aq_vocab {
    struct aq_token *page[AQ_VOCAB_PAGES]; /* by id; NULL where no id is used */
    uint32_t id_end, token_count, data_bytes_max;
    struct aq_buf text, data;
    uint32_t *slot; /* hash of spellings: id + 1, 0 is empty */
    uint32_t slot_count;
};

/* How much of the spaces at the very beginning of a text is not part of it. */
enum aq_decoder_strip {
    AQ_STRIP_NOTHING,
    AQ_STRIP_SPACE,      /* one space */
    AQ_STRIP_TOKEN,      /* one space, unless a byte token is it */
    AQ_STRIP_EACH_TOKEN, /* the same of every token until there is text */
};

/* What tokens decode to. */
struct aq_decoder {
    bool of_bytes;      /* they spell bytes as GPT-2 does; else the rest says how it is */
    bool byte_fallback; /* "<0xE2>" is a byte */
    enum aq_decoder_strip strip;
    struct aq_normalizer respell; /* every token by itself */
};

void aq_vocab_close(struct aq_vocab *v);
/* -ENOEXEC names id and spelling when either is taken already, when the id is out of range or the
 * spelling is empty. */
int aq_vocab_add(struct aq_vocab *v, int64_t id, const char *text, size_t bytes, unsigned flags,
                 struct aq_err *reterr);
/* Decodes the spellings, once all tokens are there and know whether they are added ones. */
int aq_vocab_finish(struct aq_vocab *v, const struct aq_decoder *d, struct aq_err *reterr);
/* -1 when there is none. */
int32_t aq_vocab_find(const struct aq_vocab *v, const char *text, size_t bytes);
uint64_t aq_vocab_memory(const struct aq_vocab *v);

/* NULL for a hole. */
static inline struct aq_token *aq_vocab_token(const struct aq_vocab *v, uint32_t id)
{
    if (id >= v->id_end || !v->page[id / AQ_VOCAB_PAGE_TOKENS])
        return NULL;
    struct aq_token *t = &v->page[id / AQ_VOCAB_PAGE_TOKENS][id % AQ_VOCAB_PAGE_TOKENS];
    return t->flags ? t : NULL;
}

/* The character GPT-2 spells a byte with: itself when it is printable, else one from U+0100 on
 * (encoder.py of the GPT-2 release, bytes_to_unicode).  Writes 1 or 2 bytes of UTF-8. */
size_t aq_byte_spell(char dst[2], unsigned char byte);
/* The inverse; -1 when the character spells no byte. */
int aq_byte_spelled(int32_t character);

#endif
