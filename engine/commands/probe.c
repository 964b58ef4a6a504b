/* SPDX-License-Identifier: Apache-2.0
 * engine/commands/probe.c - `aquifer probe`: this machine as a hardware profile. */
#include "engine/commands/commands.h"

#include "base/json.h"
#include "base/paths.h"
#include "engine/compute/backend.h"
#include "engine/machine/hw_file.h"
#include "engine/machine/probe.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int print_json(const struct aq_hw_profile *p, const char *output,
                      const struct aquifer_hooks *hooks, struct aq_err *reterr)
{
    json_t *document = json_pack("{s:i, s:o, s:o, s:s?}", "schema", 1, "profile", aq_hw_json(p),
                                 "assumptions", aq_hw_assumptions_json(p), "output", output);
    if (!document)
        return aq_error_memory(reterr, "probe");
    return aq_hooks_json(hooks, document, reterr);
}

static int print_yaml(const struct aq_hw_profile *p, const struct aquifer_hooks *hooks,
                      struct aq_err *reterr)
{
    struct aq_buf b = {0};
    aq_hw_file_text(&b, p);
    int rc = b.failed ? aq_error_memory(reterr, "probe") : 0;
    if (rc == 0)
        aq_hooks_output(hooks, b.data, b.count);
    aq_buf_close(&b);
    return rc;
}

/* Measures as the options say; with --keep for every run to come. */
static int measure(struct aq_hw_profile *ret, const struct aq_options *o,
                   const struct aq_cuda *cuda, const struct aq_log *log,
                   const struct aquifer_hooks *hooks, struct aq_err *reterr)
{
    char *cache = o->keep ? aq_path_cache(o->cache_dir, reterr) : NULL;
    struct aq_probe_opts opts = {
        .cuda = cuda,
        .disk_dir = o->disk_dir.count ? o->disk_dir.item[0] : cache,
        .threads = o->threads,
        .isa = aq_options_isa(o),
        .io = o->io,
        .io_direct = o->io_direct,
        .quick = o->quick,
        .log = log,
        .stop = aq_hooks_interrupted,
        .stop_user = (void *)hooks,
    };
    struct aq_hw_local_opts local = {.cache_dir = o->cache_dir,
                                     .disk_dir = o->disk_dir.count ? o->disk_dir.item[0] : NULL,
                                     .threads = o->threads,
                                     .isa = opts.isa,
                                     .cuda = cuda};
    int rc = o->keep && !cache ? -EINVAL : 0;
    if (rc == 0 && cache)
        rc = aq_path_make(cache, reterr);
    rc = rc < 0 ? rc : aq_probe(ret, &opts, reterr);
    if (rc == 0 && o->keep)
        rc = aq_hw_local_keep(ret, &local, reterr);
    free(cache);
    return rc;
}

/* Before seconds of measuring are spent: whether the profile will have a place. */
static int check_output(const char *path, struct aq_err *reterr)
{
    const char *end = strrchr(path, '/');
    char *folder = end ? strndup(path, (size_t)(end - path) + 1) : strdup(".");
    if (!folder)
        return aq_error_memory(reterr, "probe");
    bool fine = access(path, W_OK) == 0 || (errno == ENOENT && access(folder, W_OK | X_OK) == 0);
    int rc = fine ? 0 : aq_error(reterr, -errno, "write '%s': %s", path, strerror(errno));
    free(folder);
    return rc;
}

int aq_cmd_probe(const struct aq_options *o, const struct aquifer_hooks *hooks,
                 struct aq_err *reterr)
{
    struct aq_log log = aq_log_from_hooks(hooks);
    struct aq_hw_profile p;
    if (o->disk_dir.count > 1)
        return aq_error(reterr, -EINVAL, "--disk-dir: expected one directory to measure, found %u",
                        o->disk_dir.count);
    if (o->keep && (o->isa || o->io || o->io_direct))
        return aq_error(reterr, -EINVAL,
                        "--keep: expected a measurement as runs are by default, found --isa, --io "
                        "or --io-direct");
    struct aq_cuda cuda;
    int rc = o->output ? check_output(o->output, reterr) : 0;
    rc = rc < 0 ? rc : aq_device_open_gpu(&cuda, aq_options_device(o), reterr);
    if (rc < 0)
        return rc;
    rc = measure(&p, o, cuda.module ? &cuda : NULL, &log, hooks, reterr);
    aq_cuda_close(&cuda);
    if (rc == 0 && o->output)
        rc = aq_hw_file_write(&p, o->output, reterr);
    if (rc < 0)
        return rc;
    if (o->json)
        return print_json(&p, o->output, hooks, reterr);
    if (!o->output)
        return print_yaml(&p, hooks, reterr);
    aq_hooks_line(hooks, AQUIFER_INFO, "profile written to '%s'", o->output);
    return 0;
}
