/* SPDX-License-Identifier: Apache-2.0
 * engine/records/spool.h - unlinked temporary files, and input that is copied there: unpacked where
 * it is compressed.  Knows bytes, not lines. */
#ifndef AQ_ENGINE_RECORDS_SPOOL_H
#define AQ_ENGINE_RECORDS_SPOOL_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>

/* An unlinked temporary file in dir, or (NULL) in TMPDIR's directory.  A descriptor or -errno. */
int aq_spool_open(const char *dir, struct aq_err *reterr);
int aq_spool_write(int fd, const char *bytes, size_t count, struct aq_err *reterr);

struct aq_spool {
    int to, from;
    const char *name;               /* of `from`: for messages, and for what its ending promises */
    int (*interrupted)(void *user); /* polled; NULL: never */
    void *user;
};

/* Copies everything `from` has; from a terminal or pipe this takes as long as the writer takes.
 * -EINVAL: it is compressed and damaged, cut off, or of a kind that this build cannot read. */
int aq_spool_copy(const struct aq_spool *s, struct aq_err *reterr);
/* Whether a file is compressed, by its first bytes or by its name. */
bool aq_spool_wanted(int fd, const char *name);

#endif
