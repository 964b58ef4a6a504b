/* SPDX-License-Identifier: Apache-2.0
 * engine/job/files.h - the files that belong to an output: FILE and what lies beside it, for runs
 * and for merging.  Only engine/job includes it. */
#ifndef AQ_ENGINE_JOB_FILES_H
#define AQ_ENGINE_JOB_FILES_H

#include "base/err.h"
#include "engine/hooks.h"

#include <stdbool.h>
#include <stddef.h>

/* The names, each malloc'd. */
struct aq_output_files {
    char *output;            /* FILE */
    char *part;              /* FILE.part, where --ordered collects */
    char *manifest, *status; /* FILE.manifest.json, FILE.status.json */
    char *sums, *damaged;    /* FILE.sums; FILE.damaged, where lines go that are not as written */
    char *stale;    /* FILE.stale, where lines go whose records are no longer in the input */
    char *roster;   /* FILE.records, of a shard */
    char *inflight; /* FILE.inflight */
    char *lock;     /* FILE.lock */
};
enum { AQ_OUTPUT_FILES = 10 };

/* The file of results that a user names, behind the links that lead to it, so that every name of it
 * has the same files beside it; malloc'd.  `what` it is goes into the message. */
int aq_output_resolve(char **ret, const char *what, const char *given, struct aq_err *reterr);
/* Resolves the name and makes the others. */
int aq_output_files_open(struct aq_output_files *ret, const char *what, const char *given,
                         struct aq_err *reterr);
void aq_output_files_close(struct aq_output_files *f);
/* All of them, FILE first. */
void aq_output_files_list(const struct aq_output_files *f, const char *ret[AQ_OUTPUT_FILES]);
/* A file of others, which the message calls `what`, is none of them, nor lies where one of them is
 * written before it gets its name. */
int aq_output_files_apart(const struct aq_output_files *f, const char *what, const char *path,
                          struct aq_err *reterr);
/* Removes what a run that was cut off left where they are written before they get their names.  Of
 * `errors` too (NULL: none). */
void aq_output_files_clean(const struct aq_output_files *f, const char *errors);

/* Whether results are there: FILE, or those that a run has yet to put in order. */
bool aq_output_files_hold(const struct aq_output_files *f);
/* Renames all that are there but the lock, and `errors` (NULL: none), to one free ".old.N". */
int aq_output_files_set_aside(const struct aq_output_files *f, const char *errors, const char *why,
                              const struct aquifer_hooks *hooks, struct aq_err *reterr);

#endif
