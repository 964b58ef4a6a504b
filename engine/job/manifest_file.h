/* SPDX-License-Identifier: Apache-2.0
 * engine/job/manifest_file.h - FILE.manifest.json as a file, and its values as things to compare:
 * of one output at two times (manifest.c), or of several shards (merge.c).  Knows no job. */
#ifndef AQ_ENGINE_JOB_MANIFEST_FILE_H
#define AQ_ENGINE_JOB_MANIFEST_FILE_H

#include "base/compress.h"
#include "base/err.h"
#include "engine/options/options.h"

#include <jansson.h>

/* {"schema", "values", "sums"...} as it was written.  *ret: its "values", a new reference;
 * *ret_sums (NULL allowed): it says that FILE.sums is there.  -EINVAL: there is none, or it is
 * damaged or of another version; the sentence does not say what to do about it. */
int aq_manifest_read(json_t **ret, bool *ret_sums, const char *path, struct aq_err *reterr);
/* Replaces the file; steals the reference to the values, NULL of which is lack of memory. */
int aq_manifest_write(const char *path, json_t *values, struct aq_err *reterr);

/* "compression": how the file of results is. */
json_t *aq_manifest_compression(enum aq_compression c);

/* Whether two values are the same; NULL, a key that is not there, is null. */
bool aq_manifest_same(const json_t *a, const json_t *b);
/* Whether a key differs between machines and releases without making results wrong. */
bool aq_manifest_may_differ(const char *key);
/* Whether --allow-change names it: with '-' for '_', and "input" for the input's size and hash. */
bool aq_manifest_allowed(const struct aq_strings *allow_change, const char *key);
/* A value in few words; returns dst. */
enum { AQ_MANIFEST_VALUE_BYTES = 40 };
const char *aq_manifest_text(char dst[AQ_MANIFEST_VALUE_BYTES], const json_t *value);

#endif
