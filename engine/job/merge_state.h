/* SPDX-License-Identifier: Apache-2.0
 * engine/job/merge_state.h - a merge under way, shared by the files that make it up: merge.c (the
 * phases, and the set of shards as a whole), merge_shard.c (one shard read and judged),
 * merge_write.c (the output), merge_problems.c.  Nobody else includes it. */
#ifndef AQ_ENGINE_JOB_MERGE_STATE_H
#define AQ_ENGINE_JOB_MERGE_STATE_H

#include "base/compress.h"
#include "engine/job/files.h"
#include "engine/job/merge.h"
#include "engine/job/roster.h"

/* The files that have lines of a shard. */
enum {
    AQ_MERGE_RESULTS, /* FILE, or FILE.part */
    AQ_MERGE_ERRORS,  /* --errors */
    AQ_MERGE_SOURCES
};
struct aq_merge_source {
    const char *path; /* NULL: there is none */
    enum aq_compression compression;
};

/* A shard as it was found. */
struct aq_merge_shard {
    const char *given; /* as the user calls it */
    struct aq_output_files files;
    char *errors; /* NULL: they are among its results */
    struct aq_merge_source source[AQ_MERGE_SOURCES];
    json_t *values; /* of its manifest; NULL: nothing of this shard can be believed */
    struct aq_roster_head head;
    uint64_t count;     /* records that it must have */
    bool sums_promised; /* by its manifest */
    bool foreign;       /* not of the first one's run, or a shard that was given before */
};

/* A line that will be written. */
struct aq_merge_line {
    uint64_t offset, count, sum; /* count 0: none so far */
    uint32_t source;             /* AQ_MERGE_SOURCES * its shard's place + which of its files */
};

struct aq_merge {
    const struct aq_merge_opts *o;
    struct aq_output_files files; /* of the output */
    struct aq_merge_shard *shard;
    uint32_t shard_count;
    const struct aq_merge_shard *first; /* the first that can be believed; NULL: none */
    uint64_t total;                     /* records of the input */
    struct aq_merge_line *line; /* [total]: by record with --ordered, else as they were found */
    uint64_t line_count;
    uint8_t *taken; /* [total], a bit a record: some shard has it */
    struct aq_merge_result result;
    bool no_memory; /* for a problem's sentence */
};

static inline const struct aq_merge_source *aq_merge_source(const struct aq_merge *m, uint32_t at)
{
    return &m->shard[at / AQ_MERGE_SOURCES].source[at % AQ_MERGE_SOURCES];
}
/* Something that forbids the merge: kept, and shown. */
void aq_merge_problem(struct aq_merge *m, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* How many there are. */
size_t aq_merge_problems(const struct aq_merge *m);
static inline bool aq_merge_interrupted(const struct aq_merge *m)
{
    return aq_hooks_interrupted((void *)m->o->hooks);
}

/* Names the shard's files. */
int aq_merge_shard_name(struct aq_merge *m, uint32_t at, struct aq_err *reterr);
/* Reads what it says of itself. */
int aq_merge_shard_open(struct aq_merge *m, uint32_t at, struct aq_err *reterr);
void aq_merge_shard_close(struct aq_merge_shard *s);
/* Its results: each line into m->line, what is wrong with them into problems. */
int aq_merge_shard_read(struct aq_merge *m, uint32_t at, struct aq_err *reterr);

/* Writes manifest, sums and results. */
int aq_merge_write(struct aq_merge *m, struct aq_err *reterr);

#endif
