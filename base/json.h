/* SPDX-License-Identifier: Apache-2.0
 * base/json.h - thin, bounded wrapper over jansson: parse with a depth and size limit, one-line
 * error text, typed getters that distinguish absent from wrong.  Values are jansson's own
 * (json_decref frees). */
#ifndef AQ_BASE_JSON_H
#define AQ_BASE_JSON_H

#include "base/err.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Parses exactly one JSON value from text[0..bytes).  Duplicate keys are refused when
 * reject_duplicates. -ENOEXEC with position and reason on failure, -ENOMEM.  jansson itself bounds
 * nesting (2048 levels). */
int aq_json_parse(json_t **ret, const char *text, size_t bytes, bool reject_duplicates,
                  struct aq_err *reterr);

/* The same for documents of other programs: a number out of range, such as an integer beyond 64
 * bits, is not an error but becomes a real near its value, and *ret_wide is set.  The exact digits
 * are in the text (base/json_text.h). */
int aq_json_parse_wide(json_t **ret, bool *ret_wide, const char *text, size_t bytes,
                       bool reject_duplicates, struct aq_err *reterr);

/* Reads and parses a whole file of at most bytes_max.  The error names the file. */
int aq_json_read_file(json_t **ret, const char *path, size_t bytes_max, struct aq_err *reterr);

/* Reads a whole file of at most bytes_max into a malloc'd, NUL-terminated buffer; *ret_bytes
 * excludes the NUL. */
int aq_read_file(char **ret, size_t *ret_bytes, const char *path, size_t bytes_max,
                 struct aq_err *reterr);

/* Typed getters on an object: absent or null gives the default; a wrong type or range is -ENOEXEC
 * naming `what` and the key.  Integers accept 3 and 3.0. */
int aq_json_get_u64(const json_t *object, const char *key, uint64_t deflt, uint64_t max,
                    const char *what, uint64_t *ret, struct aq_err *reterr);
int aq_json_get_bool(const json_t *object, const char *key, bool deflt, const char *what, bool *ret,
                     struct aq_err *reterr);
/* Borrowed string, deflt (may be NULL) when absent. */
int aq_json_get_string(const json_t *object, const char *key, const char *deflt, const char *what,
                       const char **ret, struct aq_err *reterr);

/* A real for output: null when x is not finite. */
json_t *aq_json_real(double x);

/* A string for output: bytes that are not UTF-8 (names of files, texts cut within a character)
 * become U+FFFD.  NULL only when memory ran out. */
json_t *aq_json_string(const char *text);

/* A deep copy; NULL when memory ran out or v is NULL.  (jansson's own copy functions silently leave
 * out members that found no memory.) */
json_t *aq_json_copy(const json_t *v);

/* v as text, flags as of json_dumps: malloc'd, NULL when memory is out or v is NULL.  (jansson's
 * own, 2.14, leaves out keys that found no memory.) */
char *aq_json_dump(const json_t *v, size_t flags);
/* Replaces DIR/NAME by the value as JSON text, synced.  Takes the reference; NULL is -ENOMEM. */
int aq_json_replace(const char *dir, const char *name, json_t *value, struct aq_err *reterr);

/* Building documents with one check at the end: adds a value (the reference is taken) to an object
 * or list.  If memory ran out, here or before (value NULL), the whole document is freed and becomes
 * NULL; adding to NULL does nothing. */
void aq_json_put(json_t **object, const char *key, json_t *value);
void aq_json_add(json_t **array, json_t *value);

#endif
