/* SPDX-License-Identifier: Apache-2.0
 * tests/unit/engine/job/job_rig.h - runs `generate` on the stand-in engine in a folder of its own,
 * and looks at what it leaves. */
#ifndef AQ_TESTS_UNIT_ENGINE_JOB_JOB_RIG_H
#define AQ_TESTS_UNIT_ENGINE_JOB_JOB_RIG_H

#include "base/buf.h"
#include "base/json.h"
#include "engine/commands/commands.h"
#include "tests/fake_engine.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <sys/types.h>

enum { RIG_LINES_MAX = 4096, RIG_RECORDS = 60 };

struct job_rig {
    char dir[64];
    struct aq_buf lines, output; /* what the hooks got */
    uint64_t progress_lines, error_lines;
    double first_progress_s; /* seconds after the start; 0: none */
    double start_s;
    atomic_bool interrupt; /* what hooks->interrupted answers */
    struct aq_err err;
};

/* cmocka setup and teardown; the folder is removed with all that is in it. */
int job_rig_setup(void **state);
int job_rig_teardown(void **state);

/* Path of a file in the folder; good until four more are asked for. */
const char *job_rig_path(const struct job_rig *rig, const char *name);
void job_rig_write(const struct job_rig *rig, const char *name, const char *text);
/* malloc'd content, NULL when there is no such file. */
char *job_rig_read(const struct job_rig *rig, const char *name);
bool job_rig_exists(const struct job_rig *rig, const char *name);

/* Writes "in.jsonl": `count` plain records with ids "r0", "r1", ..., short prompts and different
 * max_tokens, some of them sampled. */
void job_rig_records(struct job_rig *rig, unsigned count);
/* Runs generate with model, input "in.jsonl", output "out.jsonl" and these options on top (JSON
 * members without braces, "" for none; "input", "output" and "prompt" replace the defaults). */
int job_rig_run(struct job_rig *rig, const char *options);
/* Any command, with one JSON object of options. */
int job_rig_command(struct job_rig *rig, const char *command, aq_command_fn *fn,
                    const char *options);

/* The lines of a result file, parsed, as a JSON list.  New reference. */
json_t *job_rig_results(const struct job_rig *rig, const char *name);
/* The file's lines sorted, as one malloc'd text: equal for equal results in any order. */
char *job_rig_sorted(const struct job_rig *rig, const char *name);

/* ---- for runs over what earlier ones left ---- */

/* Runs RIG_RECORDS records; the sorted results, malloc'd. */
char *job_rig_full_run(struct job_rig *rig);
/* "out.jsonl" has these sorted lines. */
void job_rig_assert_results(struct job_rig *rig, const char *want);
/* The run is refused with this text in its error or lines, before anything is loaded or changed. */
void job_rig_assert_refused(struct job_rig *rig, const char *options, const char *text);
/* Whether a line said so. */
bool job_rig_said(const struct job_rig *rig, const char *text);

/* The manifest of "out.jsonl", new reference; and one of before there were checksums in its place,
 * which takes the reference. */
json_t *job_rig_manifest(const struct job_rig *rig);
void job_rig_old_manifest(const struct job_rig *rig, json_t *m);

off_t job_rig_size(const struct job_rig *rig, const char *name);
/* Its permissions. */
unsigned job_rig_mode(const struct job_rig *rig, const char *name);
void job_rig_cut(const struct job_rig *rig, const char *name, off_t bytes);
void job_rig_append(const struct job_rig *rig, const char *name, const char *bytes, size_t count);
/* Flips the bits of `change` in a byte, or makes it 0 where there are none. */
void job_rig_change_byte(const struct job_rig *rig, const char *name, off_t at, char change);

#endif
