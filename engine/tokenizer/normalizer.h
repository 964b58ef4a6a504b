/* SPDX-License-Identifier: Apache-2.0
 * engine/tokenizer/normalizer.h - what happens to text before it is split: a chain of steps, each
 * from bytes to bytes.  Part of tokenizer.h.  Knows Unicode; no tokens, no files. */
#ifndef AQ_ENGINE_TOKENIZER_NORMALIZER_H
#define AQ_ENGINE_TOKENIZER_NORMALIZER_H

#include "base/buf.h"
#include "base/err.h"

enum aq_normalizer_kind {
    AQ_NORMALIZER_NFC,     /* canonical composition (Unicode Standard Annex 15); bytes that are not
                              UTF-8 stay as they are, and nothing composes across them */
    AQ_NORMALIZER_REPLACE, /* every `from` by `to` */
    AQ_NORMALIZER_PREPEND, /* `to` in front of a text that is not empty */
    AQ_NORMALIZER_BEGIN,   /* the same, unless the text begins with it already */
    AQ_NORMALIZER_SQUEEZE, /* one space for spaces in a row, none in front */
    AQ_NORMALIZER_TRIM,    /* no `from` at the end */
};

enum { AQ_NORMALIZER_STEPS_MAX = 8 };

struct aq_normalizer_step {
    enum aq_normalizer_kind kind;
    bool first_only; /* nothing happens but at the very beginning of the input */
    struct aq_buf from, to;
};

struct aq_normalizer {
    struct aq_normalizer_step step[AQ_NORMALIZER_STEPS_MAX];
    unsigned step_count; /* 0: text stays as it is */
};

void aq_normalizer_close(struct aq_normalizer *n);
/* Appends a step; from and to are copied, NULL where the kind has none.  -ENOEXEC: there are too
 * many, or `from` is empty where something is looked for. */
int aq_normalizer_add(struct aq_normalizer *n, enum aq_normalizer_kind kind, const char *from,
                      const char *to, struct aq_err *reterr);

/* Buffers of one thread: start from {0}. */
struct aq_normalizer_scratch {
    struct aq_buf out[2];
    int32_t *character; /* code points, decomposed */
    size_t character_capacity;
};

void aq_normalizer_scratch_close(struct aq_normalizer_scratch *s);

/* *ret views `text` itself where nothing changes, else the scratch, until the next call.  first:
 * the text is the beginning of the input. */
int aq_normalize(const struct aq_normalizer *n, struct aq_normalizer_scratch *s, const char *text,
                 size_t bytes, bool first, const char **ret, size_t *ret_bytes,
                 struct aq_err *reterr);

#endif
