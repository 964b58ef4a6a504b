/* SPDX-License-Identifier: Apache-2.0
 * engine/job/merge.h - the results of all shards of an input become the results file of one run:
 * checked first, line by line, then written whole under another name and renamed.  Needs neither
 * the input nor the model.  Memory: some tens of bytes a record, whatever the files' size. */
#ifndef AQ_ENGINE_JOB_MERGE_H
#define AQ_ENGINE_JOB_MERGE_H

#include "engine/hooks.h"
#include "engine/options/options.h"

struct aq_merge_opts {
    const char *output;
    char *const *shards; /* results files, in any order */
    uint32_t shard_count;
    bool ordered, overwrite;
    const struct aq_strings *allow_change; /* keys that may differ between shards */
    const struct aquifer_hooks *hooks;
};

struct aq_merge_result {
    uint64_t records, errors, bytes; /* of the output's text; errors: error records among them */
    uint64_t left_out;               /* lines of no record, with --allow-change input */
    json_t *problems;                /* a list of sentences: why nothing was written.  Owned */
};

/* -EINVAL: the shards do not make up one run, for *ret->problems, which were shown; nothing was
 * written.  Other failures leave no output, either. */
int aq_merge(struct aq_merge_result *ret, const struct aq_merge_opts *opts, struct aq_err *reterr);

#endif
