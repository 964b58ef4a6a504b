/* SPDX-License-Identifier: Apache-2.0
 * Where results go and what lies beside them: FILE, FILE.part, FILE.sums, FILE.damaged, FILE.stale,
 * FILE.manifest.json, FILE.status.json, FILE.lock.  A symbolic link is followed first, so that all
 * of these lie beside the file itself and every name of it has the same lock. */
#include "engine/job/job.h"

#include "base/file.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* A pipe or character device: no resume, no status, nothing beside it. */
static int open_stream(struct aq_job *j, mode_t mode, struct aq_err *reterr)
{
    const struct aq_options *o = j->o;
    if (S_ISDIR(mode))
        return aq_error(reterr, -EINVAL, "the output '%s' is a directory; expected a file",
                        o->output);
    if (!S_ISFIFO(mode) && !S_ISCHR(mode))
        return aq_error(reterr, -EINVAL,
                        "the output '%s' is a %s; expected a file, a pipe or a character device",
                        o->output, S_ISBLK(mode) ? "block device" : "socket");
    if (o->ordered || o->overwrite || o->retry_errors)
        return aq_error(reterr, -EINVAL,
                        "the output '%s' is not a regular file: --ordered, --overwrite and "
                        "--retry-errors need one",
                        o->output);
    j->stream_output = true;
    j->output = strdup(o->output);
    return j->output ? 0 : aq_error_memory(reterr, "output");
}

static int name_files(struct aq_job *j, char **ret_lock, struct aq_err *reterr)
{
    const char *given = j->o->output;
    j->output = aq_file_resolve(given);
    if (!j->output)
        return aq_error(reterr, errno == ELOOP ? -EINVAL : -ENOMEM, "the output '%s': %s", given,
                        strerror(errno));
    struct stat st;
    if (stat(given, &st) == 0 && !aq_file_same(given, j->output))
        return aq_error(reterr, -EINVAL,
                        "the output '%s' is an open file that has no name any more", given);
    j->part = aq_file_name(j->output, ".part");
    j->manifest = aq_file_name(j->output, ".manifest.json");
    j->status = aq_file_name(j->output, ".status.json");
    j->sums = aq_file_name(j->output, ".sums");
    j->damaged = aq_file_name(j->output, ".damaged");
    j->stale = aq_file_name(j->output, ".stale");
    *ret_lock = aq_file_name(j->output, ".lock");
    return j->part && j->manifest && j->status && j->sums && j->damaged && j->stale && *ret_lock
               ? 0
               : aq_error_memory(reterr, "output");
}

static int check_differ(const char *what, const char *path, const char *own, struct aq_err *reterr)
{
    return aq_file_same(path, own)
               ? aq_error(reterr, -EINVAL, "the %s '%s' is also the output's file '%s'", what, path,
                          own)
               : 0;
}

/* Input and report must be none of our files, nor lie where one is written before it gets its name:
 * all of these are written to and renamed. */
static int check_apart(const struct aq_job *j, const char *what, const char *path, const char *lock,
                       struct aq_err *reterr)
{
    const char *const own[] = {j->output, j->part,    j->manifest, j->status,
                               j->sums,   j->damaged, j->stale,    lock};
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < AQ_ARRAY_LEN(own); i++) {
        if (!own[i])
            continue;
        char *beside = aq_replacement_beside(own[i]);
        rc = beside ? check_differ(what, path, own[i], reterr) : aq_error_memory(reterr, "output");
        if (rc == 0)
            rc = check_differ(what, path, beside, reterr);
        free(beside);
    }
    return rc;
}

/* A file that tells of the run; path NULL: there is none. */
static int check_told(const struct aq_job *j, const char *what, const char *path, const char *input,
                      const char *lock, struct aq_err *reterr)
{
    int rc = path ? check_apart(j, what, path, lock, reterr) : 0;
    return rc == 0 && path && input && aq_file_same(input, path)
               ? aq_error(reterr, -EINVAL, "the %s '%s' is also the input", what, path)
               : rc;
}

/* The report, where it is written first, and the trace. */
static int check_telling(const struct aq_job *j, const char *input, const char *lock,
                         struct aq_err *reterr)
{
    const struct aq_options *o = j->o;
    int rc = check_told(j, "trace", o->trace, input, lock, reterr);
    if (rc < 0 || !o->report)
        return rc;
    if (o->trace && aq_file_same(o->report, o->trace))
        return aq_error(reterr, -EINVAL, "the trace '%s' is also the report", o->trace);
    char *beside = aq_replacement_beside(o->report); /* NULL: links in a circle, or no memory */
    rc = check_told(j, "report", o->report, input, lock, reterr);
    if (rc == 0)
        rc = check_told(j, "report's temporary file", beside, input, lock, reterr);
    free(beside);
    return rc;
}

static int check_names(const struct aq_job *j, const char *lock, struct aq_err *reterr)
{
    const struct aq_options *o = j->o;
    const char *input = o->prompt.count || (o->input && !strcmp(o->input, "-")) ? NULL : o->input;
    int rc = input ? check_apart(j, "input", input, lock, reterr) : 0;
    return rc == 0 ? check_telling(j, input, lock, reterr) : rc;
}

static int open_file(struct aq_job *j, struct aq_err *reterr)
{
    char *lock = NULL;
    int rc = name_files(j, &lock, reterr);
    if (rc == 0)
        rc = check_names(j, lock, reterr);
    if (rc == 0 && !j->o->dry_run)
        rc = aq_lock_open(&j->lock, lock, reterr);
    if (rc < 0 && lock && access(lock, F_OK) < 0)
        aq_error_prefix(reterr, "the output '%s' cannot be written", j->output);
    j->lines = j->o->ordered ? j->part : j->output;
    free(lock);
    return rc;
}

int aq_job_open_output(struct aq_job *j, struct aq_err *reterr)
{
    const struct aq_options *o = j->o;
    j->text_output = !o->output;
    if (!o->output && o->json && !o->dry_run)
        return aq_error(reterr, -EINVAL,
                        "--json without --output: the answer itself goes to standard output, as "
                        "text; --output - writes it as a line of JSON");
    if (!o->output || !strcmp(o->output, "-")) {
        if (o->overwrite || o->retry_errors)
            return aq_error(reterr, -EINVAL,
                            "--overwrite and --retry-errors need an output file, not standard "
                            "output");
        return check_names(j, NULL, reterr);
    }
    struct stat st;
    if (stat(o->output, &st) < 0 || S_ISREG(st.st_mode))
        return open_file(j, reterr);
    int rc = open_stream(j, st.st_mode, reterr);
    j->lines = j->output;
    return rc < 0 ? rc : check_names(j, NULL, reterr);
}
