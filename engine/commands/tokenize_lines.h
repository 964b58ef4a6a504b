/* SPDX-License-Identifier: Apache-2.0
 * engine/commands/tokenize_lines.h - the work of `aquifer tokenize`: JSONL of texts to JSONL of ids
 * and back, line by line in bounded memory.  Knows the tokenizer and JSON; opens no file and names
 * none but by what the caller calls them. */
#ifndef AQ_ENGINE_COMMANDS_TOKENIZE_LINES_H
#define AQ_ENGINE_COMMANDS_TOKENIZE_LINES_H

#include "base/err.h"
#include "engine/chat/chat.h"
#include "engine/tokenizer/tokenizer.h"

#include <stdio.h>

enum { AQ_TOKENIZE_LINE_MAX = 64 << 20 }; /* bytes of one input line */

struct aq_tokenize_opts {
    bool decode; /* {"ids": [...]} to {"text": ...}; else {"text": ...} to {"ids": [...]} */
    const struct aq_chat *chat; /* messages to {"text": the prompt, "ids": ...}; NULL: texts */
    const char *prompt_field; /* that has the text; NULL: "text", or "prompt" where there is none */
    bool no_bos;              /* never BOS in front; else what the tokenizer's files say */
    const char *input_name, *output_name; /* for messages */
    /* Non-zero: stop before the next line.  NULL: never asked. */
    int (*interrupted)(void *user);
    void *user;
};

struct aq_tokenize_stats {
    uint64_t records, errors; /* lines that are not blank; those of them that failed */
    uint64_t text_bytes, ids;
};

/* Writes one line for each input line that is not blank.  A line that cannot be read as a record
 * becomes {"error": {"code", "message", "param", "line"}} and counts in ret->errors (exit status 3
 * when there are any); "id", where a record has one, comes back in its result.  LF, CRLF and a byte
 * order mark are accepted.
 * Decoding inverts encoding with the same options: a BOS that encoding would have put in front is
 * dropped, other special tokens are spelled out.  Bytes that are not UTF-8 become U+FFFD.
 * Returns 0 at the end of input, -EINTR when interrupted, -EIO or another errno when reading or
 * writing fails; *ret is filled in any case. */
int aq_tokenize_stream(const struct aq_tokenizer *t, FILE *input, FILE *output,
                       const struct aq_tokenize_opts *opts, struct aq_tokenize_stats *ret,
                       struct aq_err *reterr);

#endif
