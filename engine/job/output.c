/* SPDX-License-Identifier: Apache-2.0
 * Where results go, and that nothing else goes there. */
#include "engine/job/job.h"

#include "base/compress.h"
#include "base/file.h"
#include "base/json.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { EMPTY_BYTES_MAX = 64 /* a compressed file that has no text */ };

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
    if (o->ordered || o->overwrite || o->retry_errors || o->errors)
        return aq_error(reterr, -EINVAL,
                        "the output '%s' is not a regular file: --ordered, --overwrite, "
                        "--retry-errors and --errors need one",
                        o->output);
    j->stream_output = true;
    int rc = aq_compression_check(aq_compression_of_name(o->output), o->output, reterr);
    if (rc < 0)
        return rc;
    j->output = j->files.output = strdup(o->output);
    return j->output ? 0 : aq_error_memory(reterr, "output");
}

enum aq_compression aq_job_compression(const char *path)
{
    static const char part[] = ".part";
    size_t count = strlen(path), n = sizeof(part) - 1;
    char *name = count > n && !strcmp(path + count - n, part) ? strndup(path, count - n) : NULL;
    enum aq_compression c = aq_compression_of_name(name ? name : path);
    free(name);
    return c;
}

int64_t aq_job_file_bytes(const char *path)
{
    int64_t size = aq_file_size(path);
    enum aq_compression c = aq_job_compression(path);
    char *text = NULL;
    size_t count;
    struct aq_buf member = {0};
    if (c == AQ_PLAIN || size <= 0 || size > EMPTY_BYTES_MAX)
        return size;
    if (aq_compress(&member, c, "", 0) == 0 && member.count == (size_t)size &&
        aq_read_file(&text, &count, path, EMPTY_BYTES_MAX, NULL) == 0 && count == member.count &&
        !memcmp(text, member.data, count))
        size = 0;
    free(text);
    aq_buf_close(&member);
    return size;
}

static int name_errors(struct aq_job *j, struct aq_err *reterr)
{
    struct stat st;
    const char *given = j->o->errors;
    if (!given)
        return 0;
    if (stat(given, &st) == 0 && !S_ISREG(st.st_mode))
        return aq_error(reterr, -EINVAL,
                        "--errors '%s' is not a regular file; expected one, as a run that goes on "
                        "reads it again",
                        given);
    int rc = aq_output_resolve(&j->errors, "file of errors", given, reterr);
    return rc < 0 ? rc : aq_compression_check(aq_job_compression(j->errors), given, reterr);
}

static int name_files(struct aq_job *j, struct aq_err *reterr)
{
    struct aq_output_files *f = &j->files;
    int rc = aq_output_files_open(f, "output", j->o->output, reterr);
    if (rc < 0)
        return rc;
    j->output = f->output;
    j->part = f->part;
    j->manifest = f->manifest;
    j->status = f->status;
    j->sums = f->sums;
    j->damaged = f->damaged;
    j->stale = f->stale;
    j->roster = f->roster;
    j->inflight = f->inflight;
    rc = aq_compression_check(aq_job_compression(j->output), j->o->output, reterr);
    return rc < 0 ? rc : name_errors(j, reterr);
}

/* A file that the user names. */
struct named {
    const char *what, *path; /* path NULL: there is none */
    bool replaced;           /* it is written beside itself, and then takes its place */
};
enum { NAMED_MAX = 6 };

static int check_two(const struct named *a, const struct named *b, struct aq_err *reterr)
{
    char *beside =
        b->replaced ? aq_replacement_beside(b->path) : NULL; /* NULL: links in a circle */
    int rc = 0;
    if (aq_file_same(a->path, b->path))
        rc = aq_error(reterr, -EINVAL, "the %s '%s' is also the %s", a->what, a->path, b->what);
    else if (beside && aq_file_same(a->path, beside))
        rc = aq_error(reterr, -EINVAL, "the %s's temporary file '%s' is also the %s", b->what,
                      beside, a->what);
    free(beside);
    return rc;
}

/* It must be none of our files, which are written to and renamed.  Temporary files of reports and
 * the like must be none of them either. */
static int check_own(const struct aq_job *j, const struct named *n, struct aq_err *reterr)
{
    char what[64], *beside = n->replaced ? aq_replacement_beside(n->path) : NULL;
    snprintf(what, sizeof(what), "%s's temporary file", n->what);
    int rc = aq_output_files_apart(&j->files, n->what, n->path, reterr);
    if (rc == 0 && beside)
        rc = aq_output_files_apart(&j->files, what, beside, reterr);
    free(beside);
    return rc;
}

/* errors_lock: of the file of errors, which comes and goes with the run. */
static int check_all(const struct aq_job *j, const char *errors_lock, struct aq_err *reterr)
{
    const struct aq_options *o = j->o;
    const char *input = o->prompt.count || (o->input && !strcmp(o->input, "-")) ? NULL : o->input;
    const struct named named[NAMED_MAX] = {{"trace", o->trace, false},
                                           {"report", o->report, true},
                                           {"metrics file", o->metrics_file, true},
                                           {"file of errors", o->errors, true},
                                           {"lock of the file of errors", errors_lock, false},
                                           {"input", input, false}};
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < NAMED_MAX; i++) {
        if (!named[i].path)
            continue;
        rc = check_own(j, &named[i], reterr);
        for (size_t k = 0; rc == 0 && k < NAMED_MAX; k++)
            if (k != i && named[k].path)
                rc = check_two(&named[i], &named[k], reterr);
    }
    return rc;
}

static int check_names(const struct aq_job *j, struct aq_err *reterr)
{
    char *errors_lock = j->errors ? aq_file_name(j->errors, ".lock") : NULL;
    int rc = j->errors && !errors_lock ? aq_error_memory(reterr, "file of errors")
                                       : check_all(j, errors_lock, reterr);
    free(errors_lock);
    return rc;
}

/* Two runs with outputs of their own might still share a file of errors. */
static int lock_files(struct aq_job *j, struct aq_err *reterr)
{
    int rc = aq_lock_open(&j->lock, j->files.lock, reterr);
    char *errors = rc == 0 && j->errors ? aq_file_name(j->errors, ".lock") : NULL;
    if (rc == 0 && j->errors)
        rc = errors ? aq_lock_open(&j->errors_lock, errors, reterr)
                    : aq_error_memory(reterr, "file of errors");
    free(errors);
    return rc;
}

static int open_file(struct aq_job *j, struct aq_err *reterr)
{
    int rc = name_files(j, reterr);
    if (rc == 0)
        rc = check_names(j, reterr);
    if (rc == 0 && !j->o->dry_run)
        rc = lock_files(j, reterr);
    if (rc < 0 && j->files.lock && access(j->files.lock, F_OK) < 0)
        aq_error_prefix(reterr, "the output '%s' cannot be written", j->output);
    j->lines = j->o->ordered ? j->part : j->output;
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
        if (o->overwrite || o->retry_errors || o->errors)
            return aq_error(reterr, -EINVAL,
                            "--overwrite, --retry-errors and --errors need an output file, not "
                            "standard output");
        return check_names(j, reterr);
    }
    struct stat st;
    if (stat(o->output, &st) < 0 || S_ISREG(st.st_mode))
        return open_file(j, reterr);
    int rc = open_stream(j, st.st_mode, reterr);
    j->lines = j->output;
    return rc < 0 ? rc : check_names(j, reterr);
}
