/* SPDX-License-Identifier: Apache-2.0
 * engine/job/aside.h - files that are renamed out of the way, never deleted. */
#ifndef AQ_ENGINE_JOB_ASIDE_H
#define AQ_ENGINE_JOB_ASIDE_H

#include "base/err.h"
#include "engine/hooks.h"

#include <stddef.h>

/* A rename that survives a power cut once it has returned. */
int aq_move_file(const char *from, const char *to, struct aq_err *reterr);
/* Renames those of the files that are there to the first ".old.N" that is free for all of them, in
 * this order.  `why` begins the note of each. */
int aq_set_aside(const char *const *paths, size_t count, const char *why,
                 const struct aquifer_hooks *hooks, struct aq_err *reterr);

#endif
