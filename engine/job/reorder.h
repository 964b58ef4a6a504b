/* SPDX-License-Identifier: Apache-2.0
 * engine/job/reorder.h - pieces of output that come in any order and go out in the order of their
 * index.  What has to wait lies in an unlinked temporary file, so memory is one small entry each.
 * Knows bytes. */
#ifndef AQ_ENGINE_JOB_REORDER_H
#define AQ_ENGINE_JOB_REORDER_H

#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

struct aq_reorder;

int aq_reorder_open(struct aq_reorder **ret, uint64_t count,
                    void (*output)(void *user, const char *bytes, size_t count), void *user,
                    struct aq_err *reterr);
void aq_reorder_close(struct aq_reorder *r);
/* Piece `index`, once each; it and those that waited for it go out as far as they follow on. */
int aq_reorder_put(struct aq_reorder *r, uint64_t index, const char *bytes, size_t count,
                   struct aq_err *reterr);

#endif
