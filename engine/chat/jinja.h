/* SPDX-License-Identifier: Apache-2.0
 * engine/chat/jinja.h - templates in the language of Jinja, as far as chat templates use it, with
 * the meaning that transformers gives it: Jinja2's sandbox with trim_blocks and lstrip_blocks, an
 * undefined name is false and prints as nothing, an attribute of one is an error, and tojson,
 * raise_exception and strftime_now are transformers' own.  A template is read once and may then
 * render any number of times, from several threads.  Knows text and JSON; nothing of models,
 * tokens or records.
 *
 * A template comes from outside and is not trusted: what this reader does not know is refused when
 * it is opened, by name and line; what rendering may take is bounded. */
#ifndef AQ_ENGINE_CHAT_JINJA_H
#define AQ_ENGINE_CHAT_JINJA_H

#include "base/buf.h"
#include "base/err.h"
#include "base/types.h"

#include <jansson.h>
#include <time.h>

enum {
    AQ_JINJA_TEXT_MAX = 1 << 20,       /* bytes of a template */
    AQ_JINJA_NESTING_MAX = 100,        /* of expressions and statements in a template */
    AQ_JINJA_DEPTH_MAX = 600,          /* of evaluations in one another, macros included */
    AQ_JINJA_RANGE_MAX = 100000,       /* items of range(), as in the sandbox */
    AQ_JINJA_STEPS_MAX = 20000000,     /* evaluations, and 64 bytes of text each */
    AQ_JINJA_OUTPUT_MAX = 128 << 20,   /* bytes */
    AQ_JINJA_MEMORY_MIN = 64 << 20,    /* bytes a rendering may take, and ... */
    AQ_JINJA_MEMORY_PER_TEXT_BYTE = 8, /* ... this for each byte of text it is given */
};

struct aq_jinja;

/* name: of the template, for messages.  -ENOEXEC: the sentence has name, line and what is wrong.
 */
int aq_jinja_open(struct aq_jinja **ret, const char *name, struct aq_text text,
                  struct aq_err *reterr);
void aq_jinja_close(struct aq_jinja *t);
/* Whether the template reads a variable or function of this name anywhere. */
bool aq_jinja_names(const struct aq_jinja *t, const char *name);

/* Whether a loop goes through an attribute of this name, or through a variable that holds one: then
 * the template knows that it may be a list. */
bool aq_jinja_iterates_member(const struct aq_jinja *t, const char *name);

struct aq_jinja_input {
    const json_t *variables; /* object */
    struct tm now;           /* of strftime_now */
};

/* Appends the rendered text.  -EBADMSG: the template raised an exception or cannot be rendered with
 * these variables; -E2BIG: a bound was reached; -ENOMEM.  Text is appended only on success. */
int aq_jinja_render(struct aq_buf *out, const struct aq_jinja *t,
                    const struct aq_jinja_input *input, struct aq_err *reterr);

#endif
