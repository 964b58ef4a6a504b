/* SPDX-License-Identifier: Apache-2.0
 * engine/core/classes.h - the classes of a model's tokens, for policies whose heads have rules
 * (policy/kv_profile.h), as its tokenizer has them:
 *   special  BOS, EOS and what the tokenizer's files call special
 *   punct    a token that is nothing but . , : ; ? ! -, their wide forms, an ellipsis, a dash or
 *            the end of a line, whatever spaces are beside it */
#ifndef AQ_ENGINE_CORE_CLASSES_H
#define AQ_ENGINE_CORE_CLASSES_H

#include "engine/core/engine.h"
#include "policy/kv_profile.h"

/* Is a token of these bytes punctuation? */
bool aq_token_is_punct(const char *bytes, size_t count);
/* A byte for each id below info->vocab, into *ret, which the caller frees.  dir NULL: there is no
 * tokenizer, and nothing but BOS and EOS has a class. */
int aq_token_classes(uint8_t **ret, const char *dir, const struct aq_engine_info *info,
                     struct aq_err *reterr);

#endif
