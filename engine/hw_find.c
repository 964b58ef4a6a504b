/* SPDX-License-Identifier: Apache-2.0
 * engine/hw_find.c - what --hardware names: this machine, a built-in profile, or a file. */
#include "engine/hw_file.h"

#include "base/nearest.h"
#include "engine/build_info.h"
#include "engine/embedded.h"
#include "engine/machine_limits.h"
#include "engine/paths.h"
#include "engine/probe.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

const char *aq_hw_built_in(uint32_t i)
{
    return i < aq_embedded_hardware_count ? aq_embedded_hardware[i].name : NULL;
}

static bool is_file(const char *text)
{
    size_t n = strlen(text);
    return strchr(text, '/') || (n > 5 && strcmp(text + n - 5, ".yaml") == 0) ||
           (n > 4 && strcmp(text + n - 4, ".yml") == 0);
}

static int find_built_in(struct aq_hw_profile *ret, const char *name, struct aq_err *reterr)
{
    enum { NAMES_MAX = 64 };
    const char *names[NAMES_MAX] = {"local"};
    char quoted[80], label[128];
    uint32_t count = 1;
    for (uint32_t i = 0; i < aq_embedded_hardware_count; i++) {
        const struct aq_embedded *e = &aq_embedded_hardware[i];
        assert(count < NAMES_MAX);
        names[count++] = e->name;
        if (strcmp(e->name, name) != 0)
            continue;
        snprintf(label, sizeof(label), "configs/hardware/%s.yaml", e->name);
        return aq_hw_file_parse(ret, label, e->text, e->bytes, reterr);
    }
    char list[512] = "";
    size_t used = 0;
    for (uint32_t i = 0; i < count && used < sizeof(list); i++)
        used += (size_t)snprintf(list + used, sizeof(list) - used, "%s%s", i ? ", " : "", names[i]);
    return aq_error(reterr, -EINVAL,
                    "--hardware: expected a file (NAME.yaml) or one of %s; found '%s', the nearest "
                    "one is '%s'",
                    list, aq_quote(quoted, sizeof(quoted), name, strlen(name)),
                    aq_nearest(name, names, count));
}

int aq_hw_find(struct aq_hw_profile *ret, const char *hardware, const struct aq_hw_local_opts *opts,
               struct aq_err *reterr)
{
    if (!hardware || strcmp(hardware, "local") == 0)
        return aq_hw_local(ret, opts, reterr);
    if (is_file(hardware))
        return aq_hw_file_read(ret, hardware, reterr);
    return find_built_in(ret, hardware, reterr);
}

/* ---- this machine ------------------------------------------------------------------------ */

/* Where it is kept, and what must be the same for an older measurement to stand. */
struct local {
    char *cache, *path;
    const char *disk_dir;
    char made_for[AQ_HW_TEXT_MAX];
};

static void close_local(struct local *l)
{
    free(l->path);
    free(l->cache);
}

static int describe_local(struct local *l, const struct aq_hw_local_opts *opts,
                          struct aq_err *reterr)
{
    char cpu[AQ_HW_NAME_MAX];
    struct aq_cpu_limits c;
    struct aq_host_limits h;
    int rc = aq_limits_host(&h, NULL, reterr);
    if (rc < 0)
        return rc;
    aq_limits_cpu(&c, NULL);
    aq_limits_cpu_model(cpu, sizeof(cpu), NULL);
    char *real = realpath(l->disk_dir, NULL);
    const char *dir = real ? real : l->disk_dir;
    snprintf(l->made_for, sizeof(l->made_for),
             "aquifer %s, %s, %u threads on %u cores, %llu MiB%s%.40s, disk of %.24s (%016llx)",
             aq_build_version(), cpu, opts->threads ? opts->threads : c.threads, c.threads,
             (unsigned long long)(h.total / AQ_MIB), opts->cuda ? ", " : "",
             opts->cuda ? opts->cuda->info.name : "", dir,
             (unsigned long long)XXH3_64bits(dir, strlen(dir)));
    free(real);
    for (char *at = l->made_for; *at; at++) { /* as the file will hold it: one line, plain text */
        if ((unsigned char)*at < 0x20 || (unsigned char)*at >= 0x7f)
            *at = '?';
    }
    return 0;
}

static int open_local(struct local *l, const struct aq_hw_local_opts *opts, struct aq_err *reterr)
{
    *l = (struct local){.cache = aq_path_cache(opts->cache_dir, reterr)};
    if (!l->cache)
        return -EINVAL;
    l->disk_dir = opts->disk_dir ? opts->disk_dir : l->cache;
    /* Runs on the CPU and on the GPU do not take turns in measuring. */
    if (asprintf(&l->path, "%s/hardware-local%s.yaml", l->cache, opts->cuda ? "-gpu" : "") < 0) {
        l->path = NULL;
        return aq_error_memory(reterr, "hardware profile");
    }
    return describe_local(l, opts, reterr);
}

static bool read_kept(struct aq_hw_profile *ret, const struct local *l)
{
    struct aq_hw_profile p;
    if (aq_hw_file_read(&p, l->path, NULL) < 0 || strcmp(p.made_for, l->made_for) != 0)
        return false;
    *ret = p;
    return true;
}

bool aq_hw_local_kept(struct aq_hw_profile *ret, const struct aq_hw_local_opts *opts)
{
    struct local l;
    bool kept = open_local(&l, opts, NULL) == 0 && read_kept(ret, &l);
    close_local(&l);
    return kept;
}

int aq_hw_local_keep(struct aq_hw_profile *p, const struct aq_hw_local_opts *opts,
                     struct aq_err *reterr)
{
    struct local l;
    int rc = open_local(&l, opts, reterr);
    rc = rc < 0 ? rc : aq_path_make(l.cache, reterr);
    rc = rc < 0 ? rc : describe_local(&l, opts, reterr); /* the directory is there now */
    if (rc == 0) {
        snprintf(p->made_for, sizeof(p->made_for), "%s", l.made_for);
        rc = aq_hw_file_write(p, l.path, reterr);
    }
    close_local(&l);
    return rc;
}

int aq_hw_local(struct aq_hw_profile *ret, const struct aq_hw_local_opts *opts,
                struct aq_err *reterr)
{
    struct local l;
    struct aq_err why = {0};
    int rc = open_local(&l, opts, reterr);
    if (rc == 0 && !read_kept(ret, &l)) {
        struct aq_probe_opts probe = {.disk_dir = l.disk_dir,
                                      .threads = opts->threads,
                                      .cuda = opts->cuda,
                                      .memory = opts->memory,
                                      .quick = opts->quick,
                                      .log = opts->log};
        aq_log_line(opts->log, AQ_LOG_INFO, "measuring this machine for '%s', once", l.path);
        rc = aq_path_make(l.cache, reterr);
        rc = rc < 0 ? rc : aq_probe(ret, &probe, reterr);
        /* What cannot be kept is measured again next time. */
        if (rc == 0 && aq_hw_local_keep(ret, opts, &why) < 0)
            aq_log_line(opts->log, AQ_LOG_WARNING, "not kept: %s", why.text);
    }
    close_local(&l);
    return rc;
}
