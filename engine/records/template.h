/* SPDX-License-Identifier: Apache-2.0
 * engine/records/template.h - --prompt-template: text with {field} places, filled from a record.
 * "{{" and "}}" are the braces themselves.  Knows JSON objects, not records. */
#ifndef AQ_ENGINE_RECORDS_TEMPLATE_H
#define AQ_ENGINE_RECORDS_TEMPLATE_H

#include "base/buf.h"
#include "base/err.h"

#include <jansson.h>

enum { AQ_TEMPLATE_FIELDS_MAX = 64 };

struct aq_template;

/* -EINVAL names the place of a brace without a partner, or says that the text names no field. */
int aq_template_open(struct aq_template **ret, const char *text, size_t bytes,
                     struct aq_err *reterr);
/* The same from an option's value: the content of the file with that name, if there is one (less
 * one final line end), else the text itself. */
int aq_template_open_option(struct aq_template **ret, const char *text_or_file,
                            struct aq_err *reterr);
void aq_template_close(struct aq_template *t);

/* xxh3-64 of the text. */
uint64_t aq_template_hash(const struct aq_template *t);
bool aq_template_names(const struct aq_template *t, const char *field);

/* Appends the filled text.  Strings go in as they are, numbers and booleans as JSON writes them.
 * -EBADMSG: *ret_field names a field that is missing, null, or of another type. */
int aq_template_fill(struct aq_buf *out, const struct aq_template *t, const json_t *object,
                     const char **ret_field);

#endif
