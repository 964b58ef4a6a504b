/* SPDX-License-Identifier: Apache-2.0
 * engine/tokenizer/normalizer.h - what happens to text before it is split: a chain of steps, each
 * from bytes to bytes.  Part of tokenizer.h.  Knows Unicode; no tokens, no files. */
#ifndef AQ_ENGINE_TOKENIZER_NORMALIZER_H
#define AQ_ENGINE_TOKENIZER_NORMALIZER_H

#include "base/buf.h"
#include "base/err.h"

enum aq_normalizer_kind {
    AQ_NORMALIZER_NFC, /* canonical composition (Unicode Standard Annex 15); bytes that are not
                          UTF-8 stay as they are, and nothing composes across them */
};

enum { AQ_NORMALIZER_STEPS_MAX = 4 };

struct aq_normalizer {
    enum aq_normalizer_kind step[AQ_NORMALIZER_STEPS_MAX];
    unsigned step_count; /* 0: text stays as it is */
};

/* Buffers of one thread: start from {0}. */
struct aq_normalizer_scratch {
    struct aq_buf out[2];
    int32_t *character; /* code points, decomposed */
    size_t character_capacity;
};

void aq_normalizer_scratch_close(struct aq_normalizer_scratch *s);

/* *ret views `text` itself where nothing changes, else the scratch, until the next call. */
int aq_normalize(const struct aq_normalizer *n, struct aq_normalizer_scratch *s, const char *text,
                 size_t bytes, const char **ret, size_t *ret_bytes, struct aq_err *reterr);

#endif
