/* SPDX-License-Identifier: Apache-2.0
 * base/json_text.h - JSON as text: where the value of a member begins and ends, how deep brackets
 * nest, which numbers do not fit 64 bits.  Makes no values (base/json.h does). */
#ifndef AQ_BASE_JSON_TEXT_H
#define AQ_BASE_JSON_TEXT_H

#include "base/types.h"

/* Text of a member's value in the text of a JSON object known to be well-formed; false when there
 * is none of that name (written without escapes). */
bool aq_json_member_text(struct aq_text *ret, struct aq_text object, const char *name);
/* The same, if the member is written as an integer; it may have any number of digits. */
bool aq_json_member_integer(struct aq_text *ret, struct aq_text object, const char *name);

/* Whether more than `depth_max` brackets are open at once; the text may be anything. */
bool aq_json_text_is_deep(struct aq_text t, size_t depth_max);

/* Replaces numbers out of range (integers beyond 64 bits, reals beyond a double) by reals near
 * their value with the same number of characters.  The text may be anything; a NUL must follow
 * it. */
void aq_json_text_narrow(char *text, size_t bytes);

#endif
