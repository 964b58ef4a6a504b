/* SPDX-License-Identifier: Apache-2.0
 * base/nearest.h - the known name nearest to a mistyped one, for error messages. */
#ifndef AQ_BASE_NEAREST_H
#define AQ_BASE_NEAREST_H

#include <stddef.h>
#include <stdint.h>

/* Edits (insert, delete, replace, swap of neighbours) that turn a into b; '-' and '_' are the same
 * and case does not matter.  Only the first 63 bytes of each word count. */
uint32_t aq_edit_distance(const char *a, const char *b);

/* Edits up to which a name is near: a third of the word's letters, and one at least.  Words that
 * are further apart are not one mistyped. */
uint32_t aq_nearest_limit(const char *word);

/* The name with the fewest edits, the first one on ties; a name that begins with the word counts as
 * one edit away.  NULL where none is near; NULL names are passed over. */
const char *aq_nearest(const char *word, const char *const *names, size_t count);

#endif
