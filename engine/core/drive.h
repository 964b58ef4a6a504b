/* SPDX-License-Identifier: Apache-2.0
 * engine/core/drive.h - the loop over an engine's passes, once for jobs, sessions, benchmarks and
 * scores. */
#ifndef AQ_ENGINE_CORE_DRIVE_H
#define AQ_ENGINE_CORE_DRIVE_H

#include "engine/core/engine.h"

struct aq_drive {
    struct aq_engine *engine;
    void *user;
    /* Called before each pass: submits sequences, or ends the drive with a negative errno.  NULL:
     * every sequence was submitted before. */
    int (*before)(void *user, struct aq_err *reterr);
    /* Called for each sequence that has ended; the sequence is its owner's again. */
    int (*ended)(void *user, struct aq_sequence *s, struct aq_err *reterr);
};

/* Hands the sequences that have ended to d->ended. */
int aq_drive_collect(const struct aq_drive *d, struct aq_err *reterr);
/* One pass: before, the pass itself, collect.  *ret_worked: the pass had something to do. */
int aq_drive_pass(const struct aq_drive *d, bool *ret_worked, struct aq_err *reterr);
/* Passes until one had nothing to do. */
int aq_drive_all(const struct aq_drive *d, struct aq_err *reterr);

#endif
