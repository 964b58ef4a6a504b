/* SPDX-License-Identifier: Apache-2.0
 * engine/job/roster.h - FILE.records: which records of the input a shard has, so that whoever
 * merges shards knows what each must hold, and in which order, without the input.
 *
 * The file is text, replaced whole at every start of a run:
 *     aquifer-records 1 K/N INPUT_HASH RECORDS_OF_THE_INPUT
 *     INDEX LINE HASH_OF_THE_ID KEY     one line a record, in the order of the input
 *     sum CHECK                         XXH3 of all before it
 * A record that has no id to be known by has '-' for its hash (struct aq_request, has_id).
 * In memory a record takes 32 bytes. */
#ifndef AQ_ENGINE_JOB_ROSTER_H
#define AQ_ENGINE_JOB_ROSTER_H

#include "base/err.h"
#include "engine/options/shard.h"
#include "engine/records/result.h"

struct aq_roster_head {
    struct aq_shard shard;
    uint64_t input_hash, total; /* total: records of the whole input */
};

struct aq_roster_record {
    uint64_t id_hash, key;
    uint32_t index, line;
};

/* ---- writing ---- */

struct aq_roster_writer;

int aq_roster_begin(struct aq_roster_writer **ret, const char *path,
                    const struct aq_roster_head *head, struct aq_err *reterr);
int aq_roster_put(struct aq_roster_writer *w, const struct aq_roster_record *r, bool has_id,
                  struct aq_err *reterr);
/* Gives the file its name, synced, or removes it if rc is the code of an earlier failure.  Returns
 * rc, or the code of a failure here. */
int aq_roster_end(struct aq_roster_writer *w, int rc, struct aq_err *reterr);

/* ---- reading ---- */

struct aq_roster;

/* -ENOENT: there is none; -EINVAL: it is damaged, or of another version. */
int aq_roster_open(struct aq_roster **ret, const char *path, struct aq_err *reterr);
void aq_roster_close(struct aq_roster *r);
const struct aq_roster_head *aq_roster_head(const struct aq_roster *r);
uint64_t aq_roster_count(const struct aq_roster *r);
const struct aq_roster_record *aq_roster_record(const struct aq_roster *r, uint64_t at);
/* Which record a result line belongs to; SIZE_MAX: none of these. */
uint64_t aq_roster_find(const struct aq_roster *r, const struct aq_result_mark *m);

#endif
