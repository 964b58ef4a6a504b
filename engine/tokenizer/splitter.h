/* SPDX-License-Identifier: Apache-2.0
 * engine/tokenizer/splitter.h - cuts text into the pieces that are merged one by one: a chain of
 * stages, each applied to every piece of the one before.  Part of tokenizer.h.  Knows regular
 * expressions (PCRE2, Unicode classes); no tokens, no files. */
#ifndef AQ_ENGINE_TOKENIZER_SPLITTER_H
#define AQ_ENGINE_TOKENIZER_SPLITTER_H

#include "base/buf.h"
#include "base/err.h"
#include "engine/tokenizer/unicode.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum aq_split_kind {
    AQ_SPLIT_PREFIX_SPACE, /* a space in front of a piece that does not begin with one */
    AQ_SPLIT_ISOLATE,      /* each match is a piece, and so is what lies between two matches */
    AQ_SPLIT_KEEP,         /* each match is a piece; what lies between is dropped */
    AQ_SPLIT_BEHIND,       /* a piece ends behind each match */
    AQ_SPLIT_BEFORE,       /* a piece begins with each match */
};

enum { AQ_SPLIT_STAGES_MAX = 8, AQ_SPLIT_PATTERN_BYTES_MAX = 64 << 10 };

struct aq_split_code {
    void *code; /* pcre2_code */
    bool jit;
};

/* Each version of PCRE2 has the categories of another version of Unicode.  A pattern whose classes
 * have ours spelled out is slower; it is for the text that needs it. */
struct aq_split_stage {
    enum aq_split_kind kind;
    struct aq_split_code plain; /* of text that every PCRE2 reads as Unicode 16.0 has it */
    struct aq_split_code newer; /* of other text; empty where `plain` is for all text */
};

struct aq_splitter {
    struct aq_split_stage stage[AQ_SPLIT_STAGES_MAX];
    unsigned stage_count;
};

/* GPT-2's pattern, in the dialect of tokenizer.json. */
extern const char aq_split_gpt2_pattern[];

void aq_splitter_close(struct aq_splitter *s);
/* pattern: a regular expression as tokenizer.json has it (Oniguruma's Ruby syntax, as the
 * tokenizers library reads it), NULL for PREFIX_SPACE.  -ENOEXEC for what PCRE2 refuses and for
 * constructs that mean something else there. */
int aq_splitter_add(struct aq_splitter *s, enum aq_split_kind kind, const char *pattern,
                    size_t bytes, struct aq_err *reterr);

/* Buffers of one thread. */
struct aq_split_scratch;
int aq_split_scratch_open(struct aq_split_scratch **ret, const struct aq_splitter *s,
                          struct aq_err *reterr);
void aq_split_scratch_close(struct aq_split_scratch *c);

/* A negative return ends the splitting and is passed on. */
typedef int aq_piece_fn(void *arg, const char *piece, size_t bytes, struct aq_err *reterr);

/* Calls fn for every piece in order; pieces are never empty.  A byte that is not UTF-8 is a piece
 * of its own, and the text on either side of it is split as if it ended there.
 * -EINVAL: a pattern needs more steps, or more time in all, than any sane one does. */
int aq_split(const struct aq_splitter *s, struct aq_split_scratch *c, const char *text,
             size_t bytes, aq_piece_fn *fn, void *arg, struct aq_err *reterr);

/* Rewrites a pattern from tokenizer.json's dialect into PCRE2's. */
int aq_split_translate(const char *pattern, size_t bytes, enum aq_unicode_spelling spelling,
                       struct aq_buf *out, struct aq_err *reterr);

#endif
