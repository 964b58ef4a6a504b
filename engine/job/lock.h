/* SPDX-License-Identifier: Apache-2.0
 * engine/job/lock.h - FILE.lock: one writer for one output.  The kernel drops the lock of a process
 * that dies, so the next one takes it over. */
#ifndef AQ_ENGINE_JOB_LOCK_H
#define AQ_ENGINE_JOB_LOCK_H

#include "base/err.h"

struct aq_lock;

/* -EINVAL: another process (named by its id where known) holds it, the folder is not writable, or
 * the file that is there was not left by a lock. */
int aq_lock_open(struct aq_lock **ret, const char *path, struct aq_err *reterr);
/* -EINVAL: a process holds it.  Makes no file; who wants the lock just then may be refused. */
int aq_lock_check(const char *path, struct aq_err *reterr);
/* Removes the file and lets go.  NULL is fine. */
void aq_lock_close(struct aq_lock *l);

#endif
