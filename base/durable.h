/* SPDX-License-Identifier: Apache-2.0
 * base/durable.h - writing files so that what was reported as written survives a power failure.
 * Knows no format. */
#ifndef AQ_BASE_DURABLE_H
#define AQ_BASE_DURABLE_H

#include "base/err.h"

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

/* All of src at `offset`: short writes are resumed.  path is for the message, which says how much
 * space is free when that is the reason. */
int aq_write_fully(int fd, const char *path, uint64_t offset, const void *src, size_t bytes,
                   struct aq_err *reterr);
/* Writes DIR/NAME as a whole or not at all (temporary file, fsync, rename, fsync of DIR).  Takes
 * the reference to value; NULL is -ENOMEM. */
int aq_write_json(const char *dir, const char *name, json_t *value, struct aq_err *reterr);
/* Makes renames and new files in a directory durable. */
int aq_sync_dir(const char *path, struct aq_err *reterr);

#endif
