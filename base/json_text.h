/* SPDX-License-Identifier: Apache-2.0
 * base/json_text.h - JSON as it stands in a text: where the value of a member begins and ends, how
 * deep brackets nest, which numbers a parser of 64 bits cannot hold.  Makes no values
 * (base/json.h). */
#ifndef AQ_BASE_JSON_TEXT_H
#define AQ_BASE_JSON_TEXT_H

#include "base/types.h"

/* Text of a member's value in the text of a JSON object known to be well-formed; false when there
 * is none of that name (written without escapes). */
bool aq_json_member_text(struct aq_text *ret, struct aq_text object, const char *name);
/* The same of a member that is written as an integer, of however many digits. */
bool aq_json_member_integer(struct aq_text *ret, struct aq_text object, const char *name);

/* Whether more than `depth_max` brackets are open at once; the text may be anything. */
bool aq_json_text_is_deep(struct aq_text t, size_t depth_max);

/* Numbers out of range, integers beyond 64 bits and reals beyond a double, become reals that are
 * near them and have as many characters.  A NUL stands behind the text, which may be anything. */
void aq_json_text_narrow(char *text, size_t bytes);

#endif
