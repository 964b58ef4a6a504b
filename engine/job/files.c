/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/job/files.h"

#include "base/file.h"
#include "base/types.h"
#include "engine/job/aside.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int aq_output_resolve(char **ret, const char *what, const char *given, struct aq_err *reterr)
{
    struct stat st;
    char *path = aq_file_resolve(given);
    if (!path)
        return aq_error(reterr, errno == ELOOP ? -EINVAL : -ENOMEM, "the %s '%s': %s", what, given,
                        strerror(errno));
    if (stat(given, &st) == 0 && !aq_file_same(given, path)) {
        free(path);
        return aq_error(reterr, -EINVAL, "the %s '%s' is an open file that has no name any more",
                        what, given);
    }
    *ret = path;
    return 0;
}

int aq_output_files_open(struct aq_output_files *ret, const char *what, const char *given,
                         struct aq_err *reterr)
{
    struct aq_output_files f = {0};
    int rc = aq_output_resolve(&f.output, what, given, reterr);
    if (rc < 0)
        return rc;
    struct {
        char **name;
        const char *ending;
    } const beside[] = {
        {&f.part, ".part"},      {&f.manifest, ".manifest.json"}, {&f.status, ".status.json"},
        {&f.sums, ".sums"},      {&f.damaged, ".damaged"},        {&f.stale, ".stale"},
        {&f.roster, ".records"}, {&f.inflight, ".inflight"},      {&f.lock, ".lock"},
    };
    for (size_t i = 0; rc == 0 && i < AQ_ARRAY_LEN(beside); i++) {
        *beside[i].name = aq_file_name(f.output, beside[i].ending);
        rc = *beside[i].name ? 0 : aq_error_memory(reterr, "'%s'", given);
    }
    if (rc < 0)
        aq_output_files_close(&f);
    else
        *ret = f;
    return rc;
}

void aq_output_files_close(struct aq_output_files *f)
{
    const char *path[AQ_OUTPUT_FILES];
    aq_output_files_list(f, path);
    for (size_t i = 0; i < AQ_OUTPUT_FILES; i++)
        free((char *)path[i]);
    *f = (struct aq_output_files){0};
}

void aq_output_files_list(const struct aq_output_files *f, const char *ret[AQ_OUTPUT_FILES])
{
    const char *const all[AQ_OUTPUT_FILES] = {f->output,   f->part,    f->manifest, f->status,
                                              f->sums,     f->damaged, f->stale,    f->roster,
                                              f->inflight, f->lock};
    memcpy(ret, all, sizeof(all));
}

static int check_differ(const char *what, const char *path, const char *own, struct aq_err *reterr)
{
    return aq_file_same(path, own)
               ? aq_error(reterr, -EINVAL, "the %s '%s' is also the output's file '%s'", what, path,
                          own)
               : 0;
}

int aq_output_files_apart(const struct aq_output_files *f, const char *what, const char *path,
                          struct aq_err *reterr)
{
    const char *own[AQ_OUTPUT_FILES];
    int rc = 0;
    aq_output_files_list(f, own);
    for (size_t i = 0; rc == 0 && i < AQ_OUTPUT_FILES; i++) {
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

void aq_output_files_clean(const struct aq_output_files *f, const char *errors)
{
    const char *own[AQ_OUTPUT_FILES + 1] = {[AQ_OUTPUT_FILES] = errors};
    aq_output_files_list(f, own);
    for (size_t i = 0; i < AQ_ARRAY_LEN(own); i++) {
        char *beside = own[i] ? aq_replacement_beside(own[i]) : NULL;
        if (beside)
            unlink(beside);
        free(beside);
    }
}

bool aq_output_files_hold(const struct aq_output_files *f)
{
    return aq_file_size(f->output) >= 0 || aq_file_size(f->part) > 0;
}

/* The manifest goes first: cut off in between, results without one are left alone by the next run,
 * but a manifest or sums without results would be replaced. */
int aq_output_files_set_aside(const struct aq_output_files *f, const char *errors, const char *why,
                              const struct aquifer_hooks *hooks, struct aq_err *reterr)
{
    const char *const paths[] = {f->manifest, f->roster,   f->status, f->sums, f->damaged,
                                 f->stale,    f->inflight, f->output, f->part, errors};
    return aq_set_aside(paths, AQ_ARRAY_LEN(paths) - !errors, why, hooks, reterr);
}
