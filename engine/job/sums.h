/* SPDX-License-Identifier: Apache-2.0
 * engine/job/sums.h - FILE.sums: a checksum of each line of a result file, by which a resumed run
 * tells lines that are as they were written from lines that a disk or a hand has changed.
 *
 * The file is text: a header, then lines of XXH3 sums as 16 hex digits each, with a space between.
 * The last sum of a line is that of the text before it, so that damage to this file shows, too:
 *     aquifer-sums 1
 *     SUM ... SUM CHECK
 * Sums are appended after the results they speak of are synced.  A sum without its line therefore
 * says that the line was lost, changed or taken out, and never that it is still on its way.  They
 * have no order: the results may be sorted, and lines taken out, without touching them.
 *
 * A line of the file that is damaged accuses nothing, as any of its sums may be wrong; but a sum in
 * it that a result has vouches for that result, as no damage makes one by chance.
 *
 * The sums cannot tell of a result that changed before its sum was made (in memory, or on the
 * disk where a run without FILE.sums took it as it was), and one that changed and whose sum is
 * damaged, too.
 * Knows bytes, not results. */
#ifndef AQ_ENGINE_JOB_SUMS_H
#define AQ_ENGINE_JOB_SUMS_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    AQ_SUMS_PER_LINE = 64,
    AQ_SUMS_LINE_BYTES = 17 * (AQ_SUMS_PER_LINE + 1), /* the longest, newline included */
};

/* Of a line, with or without its newline. */
uint64_t aq_sums_of(const char *line, size_t bytes);
/* A line of the file for 1 to AQ_SUMS_PER_LINE sums; returns its bytes.  No NUL is written. */
size_t aq_sums_format(char dst[AQ_SUMS_LINE_BYTES], const uint64_t *sums, size_t count);

/* A set of sums. */
struct aq_sums;

/* An empty set. */
int aq_sums_open(struct aq_sums **ret, struct aq_err *reterr);
/* Adds what a file holds, none of it seen yet.  *ret_damaged: its lines that are not as they were
 * written; sums in them may be seen, and are never missing. */
int aq_sums_read(struct aq_sums *s, const char *path, uint64_t *ret_damaged, struct aq_err *reterr);
/* Whether the sum is in the set; it then counts as seen. */
bool aq_sums_see(struct aq_sums *s, uint64_t sum);
/* Adds a sum that has been seen. */
int aq_sums_add(struct aq_sums *s, uint64_t sum, struct aq_err *reterr);
/* How many have not been seen. */
uint64_t aq_sums_missing(const struct aq_sums *s);
/* How many, at most, damage has made illegible: less those of damaged lines that have been seen. */
uint64_t aq_sums_illegible(const struct aq_sums *s);
/* Replaces the file by one of these sums, synced; of the seen ones alone, or of all. */
int aq_sums_write(const struct aq_sums *s, const char *path, bool missing_too,
                  struct aq_err *reterr);
void aq_sums_close(struct aq_sums *s);
/* Replaces the file by one of `count` sums, of which sum(user, i) gives each, synced. */
int aq_sums_write_list(const char *path, uint64_t count,
                       uint64_t (*sum)(const void *user, uint64_t i), const void *user,
                       struct aq_err *reterr);

#endif
