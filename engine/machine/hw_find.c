/* SPDX-License-Identifier: Apache-2.0
 * engine/machine/hw_find.c - what --hardware names: this machine, a built-in profile, or a file. */
#include "engine/machine/hw_file.h"

#include "base/clock.h"
#include "base/nearest.h"
#include "base/paths.h"
#include "engine/build_info.h"
#include "engine/embedded.h"
#include "engine/machine/hw_keys.h"
#include "engine/machine/limits.h"
#include "engine/machine/probe.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

/* Half of the samples of a rate within this share of it: beyond, a measurement is good for one plan
 * at most.  Where nothing else runs it is some percent. */
#define SPREAD_KEPT_MAX 0.5

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

static const struct aq_embedded *built_in(const char *name)
{
    for (uint32_t i = 0; i < aq_embedded_hardware_count; i++) {
        if (strcmp(aq_embedded_hardware[i].name, name) == 0)
            return &aq_embedded_hardware[i];
    }
    return NULL;
}

static int unknown_name(const char *name, const char *label, struct aq_err *reterr)
{
    enum { NAMES_MAX = 64 };
    const char *names[NAMES_MAX] = {"local"};
    char quoted[80], list[768] = "";
    uint32_t count = 1;
    for (uint32_t i = 0; i < aq_embedded_hardware_count; i++) {
        assert(count < NAMES_MAX);
        names[count++] = aq_embedded_hardware[i].name;
    }
    size_t used = 0;
    for (uint32_t i = 0; i < count && used < sizeof(list); i++)
        used += (size_t)snprintf(list + used, sizeof(list) - used, "%s%s", i ? ", " : "", names[i]);
    const char *near = aq_nearest(name, names, count);
    return aq_error(reterr, -EINVAL,
                    "%s: expected a file (NAME.yaml) or one of %s; found '%s'%s%s%s", label, list,
                    aq_quote(quoted, sizeof(quoted), name, strlen(name)),
                    near ? ", the nearest one is '" : "", near ? near : "", near ? "'" : "");
}

int aq_hw_check_name(const char *hardware, const char *label, struct aq_err *reterr)
{
    bool known = strcmp(hardware, "local") == 0 || is_file(hardware) || built_in(hardware);
    return known ? 0 : unknown_name(hardware, label, reterr);
}

int aq_hw_find(struct aq_hw_profile *ret, const char *hardware, const struct aq_hw_local_opts *opts,
               struct aq_err *reterr)
{
    if (!hardware || strcmp(hardware, "local") == 0)
        return aq_hw_local(ret, opts, reterr);
    if (is_file(hardware))
        return aq_error_named(reterr, aq_hw_file_read(ret, hardware, reterr), "--hardware");
    const struct aq_embedded *e = built_in(hardware);
    char label[128];
    if (!e)
        return unknown_name(hardware, "--hardware", reterr);
    snprintf(label, sizeof(label), "configs/hardware/%s.yaml", e->name);
    return aq_hw_file_parse(ret, label, e->text, e->bytes, reterr);
}

/* ---- this machine ------------------------------------------------------------------------ */

/* Where it is kept, and what must be the same for an older measurement to stand. */
struct local {
    char *cache, *path;   /* NULL: there is no cache directory; no_cache says why */
    const char *disk_dir; /* NULL: none */
    char made_for[AQ_HW_TEXT_MAX];
    char other[AQ_HW_TEXT_MAX]; /* what the kept one was made for, if that is not the same; "" */
    struct aq_err no_cache;
};

static void close_local(struct local *l)
{
    free(l->path);
    free(l->cache);
}

static int describe_local(struct local *l, const struct aq_hw_local_opts *opts,
                          struct aq_err *reterr)
{
    char cpu[AQ_HW_NAME_MAX], disk[64] = "no disk";
    struct aq_cpu_limits c;
    struct aq_host_limits h;
    bool bf16;
    unsigned have = aq_isa_detect();
    int rc = aq_limits_host(&h, NULL, reterr);
    if (rc < 0)
        return rc;
    aq_limits_cpu(&c, NULL);
    aq_limits_cpu_model(cpu, sizeof(cpu), NULL);
    char *real = l->disk_dir ? realpath(l->disk_dir, NULL) : NULL;
    const char *dir = real ? real : l->disk_dir;
    if (dir)
        snprintf(disk, sizeof(disk), "disk of %.24s (%016llx)", dir,
                 (unsigned long long)XXH3_64bits(dir, strlen(dir)));
    snprintf(l->made_for, sizeof(l->made_for),
             "aquifer %s, rates %u, %s, %s, %u threads on %u cores, %llu MiB%s%.40s, %s",
             aq_build_version(), (unsigned)AQ_PROBE_RATES, cpu,
             aq_isa_name(have & aq_isa_chosen(&opts->isa, have, &bf16)),
             opts->threads ? opts->threads : c.threads, c.threads,
             (unsigned long long)(h.total / AQ_MIB), opts->cuda ? ", " : "",
             opts->cuda ? opts->cuda->info.name : "", disk);
    free(real);
    for (char *at = l->made_for; *at; at++) { /* as the file will hold it: one line, plain text */
        if ((unsigned char)*at < 0x20 || (unsigned char)*at >= 0x7f)
            *at = '?';
    }
    return 0;
}

static int open_local(struct local *l, const struct aq_hw_local_opts *opts, struct aq_err *reterr)
{
    *l = (struct local){.disk_dir = opts->disk_dir};
    l->cache = aq_path_cache(opts->cache_dir, &l->no_cache);
    if (l->cache && !l->disk_dir)
        l->disk_dir = l->cache;
    /* Runs on the CPU and on the GPU do not take turns in measuring. */
    if (l->cache &&
        asprintf(&l->path, "%s/hardware-local%s.yaml", l->cache, opts->cuda ? "-gpu" : "") < 0) {
        l->path = NULL;
        return aq_error_memory(reterr, "hardware profile");
    }
    return describe_local(l, opts, reterr);
}

/* Makes the cache directory, for a file in it. */
static int make_cache(const struct local *l, struct aq_err *reterr)
{
    struct aq_err why;
    if (!l->cache)
        return aq_error(reterr, -EINVAL, "%s", l->no_cache.text);
    int rc = aq_path_make(l->cache, &why);
    if (rc == 0 && access(l->cache, W_OK) < 0)
        rc = aq_error(&why, aq_err_of_place(errno),
                      "cannot write to the directory '%s': %s; --cache-dir DIR names another one",
                      l->cache, strerror(errno));
    return rc < 0 ? aq_error(reterr, rc, "%s", why.text) : 0;
}

/* "3 days ago". */
static void age_text(char *text, size_t bytes, double seconds)
{
    static const struct {
        const char *name;
        double seconds;
    } units[] = {{"day", 86400}, {"hour", 3600}, {"minute", 60}};
    for (size_t i = 0; i < AQ_ARRAY_LEN(units); i++) {
        double count = floor(seconds / units[i].seconds);
        if (count < 1)
            continue;
        snprintf(text, bytes, "%.0f %s%s ago", count, units[i].name, count > 1 ? "s" : "");
        return;
    }
    snprintf(text, bytes, "less than a minute ago");
}

/* "host.memory_gb_s varied by 70 %", where that is too much to plan with for long; else false. */
static bool is_unsteady(char *text, size_t bytes, const struct aq_hw_profile *p)
{
    uint32_t key = 0;
    char name[AQ_HW_KEY_TEXT_MAX];
    double spread = aq_hw_spread(p, &key);
    if (spread <= SPREAD_KEPT_MAX)
        return false;
    snprintf(text, bytes, "%s varied by %.0f %%", aq_hw_key_name(name, key), 100 * spread);
    return true;
}

static bool read_kept(struct aq_hw_profile *ret, struct local *l)
{
    struct aq_hw_profile p;
    struct stat file;
    char age[64], varied[AQ_HW_TEXT_MAX];
    if (!l->path || stat(l->path, &file) < 0 || aq_hw_file_read(&p, l->path, NULL) < 0)
        return false;
    if (strcmp(p.made_for, l->made_for) != 0) {
        snprintf(l->other, sizeof(l->other), "%s", p.made_for);
        return false;
    }
    age_text(age, sizeof(age), aq_clock_unix_s() - (double)file.st_mtime);
    bool unsteady = is_unsteady(varied, sizeof(varied), &p);
    snprintf(p.told, sizeof(p.told), "kept profile '%s', measured %s%s%s", l->path, age,
             unsteady ? "; " : "", unsteady ? varied : "");
    p.kept = true;
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
    rc = rc < 0 ? rc : make_cache(&l, reterr);
    rc = rc < 0 ? rc : describe_local(&l, opts, reterr); /* the directory is there now */
    if (rc == 0) {
        snprintf(p->made_for, sizeof(p->made_for), "%s", l.made_for);
        rc = aq_hw_file_write(p, l.path, reterr);
    }
    if (rc == 0)
        snprintf(p->told, sizeof(p->told),
                 "this machine, measured now and kept as '%s' for plans and runs to come", l.path);
    close_local(&l);
    return rc;
}

void aq_hw_local_offer(struct aq_hw_profile *p, const struct aq_hw_local_opts *opts)
{
    struct local l;
    struct aq_err why;
    char varied[AQ_HW_TEXT_MAX];
    int rc = open_local(&l, opts, &why);
    rc = rc < 0 ? rc : make_cache(&l, &why);
    close_local(&l);
    bool unsteady = rc == 0 && is_unsteady(varied, sizeof(varied), p);
    if (rc == 0 && !unsteady)
        rc = aq_hw_local_keep(p, opts, &why);
    if (unsteady)
        snprintf(p->told, sizeof(p->told),
                 "this machine, measured now; not kept, as %s: on a quiet machine, aquifer probe "
                 "--keep makes a profile to keep",
                 varied);
    else if (rc < 0)
        snprintf(p->told, sizeof(p->told), "this machine, measured now%s; not kept: %s",
                 p->capacity[AQ_DISK] ? "" : " without a disk", why.text);
    aq_log_line(opts->log, unsteady || rc < 0 ? AQ_LOG_WARNING : AQ_LOG_INFO, "hardware: %s",
                p->told);
}

/* Without a place to write to no disk is measured. */
static int measure_local(struct aq_hw_profile *ret, struct local *l,
                         const struct aq_hw_local_opts *opts, struct aq_err *reterr)
{
    bool disk = opts->disk_dir || make_cache(l, NULL) == 0;
    struct aq_probe_opts probe = {.disk_dir = disk ? l->disk_dir : NULL,
                                  .threads = opts->threads,
                                  .isa = opts->isa,
                                  .cuda = opts->cuda,
                                  .memory = opts->memory,
                                  .quick = opts->quick,
                                  .log = opts->log};
    const char *without = disk ? "" : ": without its disk, where nothing can be written to";
    if (*l->other)
        aq_log_line(opts->log, AQ_LOG_INFO,
                    "measuring this machine anew, as the profile kept in '%s' is of '%s', and this "
                    "is '%s'%s",
                    l->path, l->other, l->made_for, without);
    else
        aq_log_line(opts->log, AQ_LOG_INFO, "measuring this machine, as no profile of it is kept%s",
                    without);
    int rc = aq_probe(ret, &probe, reterr);
    rc = rc < 0 ? rc : describe_local(l, opts, reterr); /* the directory may be there now */
    if (rc == 0)
        snprintf(ret->made_for, sizeof(ret->made_for), "%s", l->made_for);
    return rc;
}

int aq_hw_local(struct aq_hw_profile *ret, const struct aq_hw_local_opts *opts,
                struct aq_err *reterr)
{
    struct local l;
    const struct aq_hw_profile *before = opts->before;
    int rc = open_local(&l, opts, reterr);
    if (rc == 0 && !read_kept(ret, &l)) {
        if (before && strcmp(before->made_for, l.made_for) == 0) {
            *ret = *before;
        } else {
            rc = measure_local(ret, &l, opts, reterr);
            if (rc == 0)
                aq_hw_local_offer(ret, opts);
        }
    }
    close_local(&l);
    return rc;
}
