/* SPDX-License-Identifier: Apache-2.0
 * engine/tokenizer/token_text.h - what a token adds to a text, also where there is no tokenizer (a
 * shape without files) or the id is a hole in the vocabulary: then nothing. */
#ifndef AQ_ENGINE_TOKENIZER_TOKEN_TEXT_H
#define AQ_ENGINE_TOKENIZER_TOKEN_TEXT_H

#include "engine/tokenizer/tokenizer.h"

/* Bytes of the token, special ones included; NULL when it has none. */
static inline const char *aq_token_bytes(const struct aq_tokenizer *t, uint32_t id,
                                         size_t *ret_bytes)
{
    *ret_bytes = 0;
    return t ? aq_tokenizer_token_bytes(t, id, ret_bytes) : NULL;
}

/* Bytes it adds to generated text, which goes on from a prompt: none for EOS and other special
 * tokens.  Never NULL.  Together they need not be UTF-8; aq_tokenizer_repair() makes them so. */
static inline const char *aq_token_text(const struct aq_tokenizer *t, uint32_t id,
                                        size_t *ret_bytes)
{
    *ret_bytes = 0;
    if (!t || aq_tokenizer_is_special(t, id))
        return "";
    const char *bytes = aq_tokenizer_token_bytes(t, id, ret_bytes);
    return bytes ? bytes : "";
}

#endif
