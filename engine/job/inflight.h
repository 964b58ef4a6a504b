/* SPDX-License-Identifier: Apache-2.0
 * engine/job/inflight.h - FILE.inflight: how far the records in flight had come when a job was
 * stopped, or when it last made sure (--checkpoint-every), so that the next run goes on from there.
 * The file is a help and never needed: where it is missing, damaged or of other values, records
 * begin again and get the same tokens.
 *
 * Numbers are as this machine has them:
 *     "aquifer-inflight 1\n", filled up with zeros to 24 bytes
 *     u64 hash of the values that tokens depend on
 *     of each record: u64 id_hash, u64 key, u64 tokens, u64 bytes of its state, and the state
 *     u64 number of records, u64 XXH3 of all bytes before
 * Knows records as bytes (engine/records/record_state.h). */
#ifndef AQ_ENGINE_JOB_INFLIGHT_H
#define AQ_ENGINE_JOB_INFLIGHT_H

#include "base/buf.h"
#include "engine/job/flight.h"

struct aq_inflight;

/* What a file holds, or what of it is wanted. */
struct aq_inflight_count {
    uint64_t records, tokens;
};

/* Opens the file, which stays open until close and may be replaced meanwhile.  -ENOENT: there is
 * none; -EINVAL: it is of no use, and reterr says why; -EIO or -ENOMEM. */
int aq_inflight_open(struct aq_inflight **ret, const char *path, uint64_t values,
                     struct aq_err *reterr);
void aq_inflight_close(struct aq_inflight *f); /* NULL is fine */

/* Says whether the record with this id and key is still to be done, and its entry therefore
 * wanted. */
void aq_inflight_want(struct aq_inflight *f, uint64_t id_hash, uint64_t key, bool wanted);
/* Entries of which that is not said are left for a later run; else they are of no use. */
void aq_inflight_keep_unknown(struct aq_inflight *f);
bool aq_inflight_is_used_up(const struct aq_inflight *f); /* nothing is wanted, or to be left */
struct aq_inflight_count aq_inflight_wanted(const struct aq_inflight *f);
/* Takes out the state of a record; it is then no longer wanted.  Returns its tokens; 0: there is
 * none, or it cannot be read, and `state` is empty. */
uint64_t aq_inflight_take(struct aq_inflight *f, uint64_t id_hash, uint64_t key,
                          struct aq_buf *state);

/* Replaces the file by the states of the records in flight, and the entries of `old` (NULL: none)
 * that are still wanted or to be left.  Where that is nothing the file is removed. */
int aq_inflight_write(const char *path, uint64_t values, const struct aq_flight *flight,
                      const struct aq_inflight *old, struct aq_inflight_count *ret,
                      struct aq_err *reterr);
void aq_inflight_remove(const char *path);

#endif
