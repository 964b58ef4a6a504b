/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/machine/limits.h"

#include "base/types.h"

#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { FILE_BYTES_MAX = 65536 };
#define NO_LIMIT UINT64_MAX

/* ---- small files ------------------------------------------------------------------------ */

/* A small file's text, in the caller's memory: what limits there are must be known where there is
 * no more to be had. */
struct file_text {
    char text[FILE_BYTES_MAX + 1];
};

/* Reads at most FILE_BYTES_MAX bytes of root/path; returns t->text, or NULL when it cannot be
 * read. */
static char *read_text(struct file_text *t, const char *root, const char *path)
{
    char full[PATH_MAX];
    int n = snprintf(full, sizeof(full), "%s%s", root ? root : "", path);
    if (n < 0 || (size_t)n >= sizeof(full))
        return NULL;
    int fd = open(full, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return NULL;
    size_t have = 0;
    while (have < FILE_BYTES_MAX) {
        ssize_t got = read(fd, t->text + have, FILE_BYTES_MAX - have);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            break;
        have += (size_t)got;
    }
    close(fd);
    t->text[have] = '\0';
    return t->text;
}

/* The number behind `name` at the start of a line, times `unit`; deflt when there is none. */
static uint64_t line_value(const char *text, const char *name, uint64_t unit, uint64_t deflt)
{
    size_t n = strlen(name);
    for (const char *at = text; at && *at; at = strchr(at, '\n') ? strchr(at, '\n') + 1 : NULL) {
        if (strncmp(at, name, n) != 0)
            continue;
        at += n + strspn(at + n, " \t");
        if (*at < '0' || *at > '9')
            return deflt;
        uint64_t value = strtoull(at, NULL, 10);
        return value > NO_LIMIT / unit ? NO_LIMIT : value * unit;
    }
    return deflt;
}

/* A file with one number in it; "max" and values no machine has are no limit. */
static uint64_t file_value(const char *root, const char *directory, const char *name)
{
    char path[PATH_MAX];
    int n = snprintf(path, sizeof(path), "%s/%s", directory, name);
    struct file_text file;
    char *text = n > 0 && (size_t)n < sizeof(path) ? read_text(&file, root, path) : NULL;
    uint64_t value = NO_LIMIT;
    if (text && *text >= '0' && *text <= '9')
        value = strtoull(text, NULL, 10);
    /* cgroup v1 writes "no limit" as the largest page-aligned signed number. */
    return value >= (1ull << 62) ? NO_LIMIT : value;
}

static uint64_t minus(uint64_t limit, uint64_t used)
{
    if (limit == NO_LIMIT)
        return NO_LIMIT;
    return limit > used ? limit - used : 0;
}

/* ---- cgroups ---------------------------------------------------------------------------- */

/* Where a controller's tree is mounted and where in it this process sits.  cgroups(7). */
struct cgroup {
    bool v2;
    char mount[PATH_MAX];
    char path[2 * PATH_MAX]; /* mount + own place, without a slash at its end */
};

/* Whether a comma-separated list has this word. */
static bool has_word(const char *list, const char *word)
{
    size_t n = strlen(word);
    for (const char *at = list; at && *at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL) {
        if (strncmp(at, word, n) == 0 && (at[n] == ',' || at[n] == '\0'))
            return true;
    }
    return false;
}

/* This process's path in the hierarchy with `controller`, or in the unified one (controller ""),
 * from /proc/self/cgroup: lines "id:controllers:path". */
static bool own_path(const char *root, const char *controller, char ret[PATH_MAX])
{
    struct file_text file;
    char *text = read_text(&file, root, "/proc/self/cgroup"), *save = NULL;
    bool found = false;
    for (char *line = text ? strtok_r(text, "\n", &save) : NULL; line && !found;
         line = strtok_r(NULL, "\n", &save)) {
        char *list = strchr(line, ':'), *path = list ? strchr(list + 1, ':') : NULL;
        if (!path)
            continue;
        *path = '\0';
        found = *controller ? has_word(list + 1, controller) : list[1] == '\0';
        if (found)
            snprintf(ret, PATH_MAX, "%s", path + 1);
    }
    return found;
}

/* One line of /proc/self/mountinfo, proc(5): id parent major:minor root mount options ... - type
 * source superoptions.  True when it mounts the wanted hierarchy. */
static bool parse_mount(char *line, const char *controller, char root[PATH_MAX],
                        char mount[PATH_MAX])
{
    char *tail = strstr(line, " - "), type[64], super[1024];
    if (!tail || sscanf(line, "%*s %*s %*s %4095s %4095s", root, mount) != 2 ||
        sscanf(tail, " - %63s %*s %1023s", type, super) != 2)
        return false;
    if (!*controller)
        return strcmp(type, "cgroup2") == 0;
    return strcmp(type, "cgroup") == 0 && has_word(super, controller);
}

static bool find_mount(const char *root, const char *controller, char ret_root[PATH_MAX],
                       char ret_mount[PATH_MAX])
{
    struct file_text file;
    char *text = read_text(&file, root, "/proc/self/mountinfo"), *save = NULL;
    bool found = false;
    for (char *line = text ? strtok_r(text, "\n", &save) : NULL; line && !found;
         line = strtok_r(NULL, "\n", &save))
        found = parse_mount(line, controller, ret_root, ret_mount);
    return found;
}

/* In a container the mount may show only a subtree (its root is then not "/"), and the path may be
 * counted from the host's root or from the container's. */
static bool find_hierarchy(const char *root, const char *controller, struct cgroup *ret)
{
    char path[PATH_MAX], mount_root[PATH_MAX];
    if (!own_path(root, controller, path) || !find_mount(root, controller, mount_root, ret->mount))
        return false;
    ret->v2 = !*controller;
    const char *below = path;
    size_t n = strlen(mount_root);
    if (strcmp(mount_root, "/") != 0) {
        bool inside = strncmp(path, mount_root, n) == 0 && (path[n] == '/' || path[n] == '\0');
        below = inside ? path + n : "";
    }
    if (strstr(below, "/.."))
        below = "";
    if (strcmp(below, "/") == 0)
        below = "";
    snprintf(ret->path, sizeof(ret->path), "%s%s", ret->mount, below);
    return true;
}

/* A controller lives in its own v1 hierarchy or in the unified one. */
static bool find_cgroup(const char *root, const char *controller, struct cgroup *ret)
{
    return find_hierarchy(root, controller, ret) || find_hierarchy(root, "", ret);
}

/* Moves to the parent group; false at the top of what is mounted. */
static bool go_up(struct cgroup *g)
{
    char *slash = strrchr(g->path, '/');
    if (!slash || strlen(g->path) <= strlen(g->mount))
        return false;
    *slash = '\0';
    return strlen(g->path) >= strlen(g->mount);
}

/* Page cache on the LRU lists counts as use but goes when memory is needed. */
static uint64_t droppable(const char *root, const struct cgroup *g)
{
    char path[2 * PATH_MAX + 16];
    snprintf(path, sizeof(path), "%s/memory.stat", g->path);
    struct file_text file;
    char *text = read_text(&file, root, path);
    if (!text)
        return 0;
    return g->v2 ? line_value(text, "inactive_file ", 1, 0) + line_value(text, "active_file ", 1, 0)
                 : line_value(text, "total_inactive_file ", 1, 0) +
                       line_value(text, "total_active_file ", 1, 0);
}

/* Bytes left at the tightest level from this process's group up. */
static uint64_t cgroup_memory_left(const char *root)
{
    struct cgroup g;
    uint64_t least = NO_LIMIT;
    if (!find_cgroup(root, "memory", &g))
        return NO_LIMIT;
    do {
        uint64_t limit = file_value(root, g.path, g.v2 ? "memory.max" : "memory.limit_in_bytes");
        if (g.v2) /* above memory.high the kernel stalls the process until it shrinks */
            limit = aq_min_u64(limit, file_value(root, g.path, "memory.high"));
        if (limit == NO_LIMIT)
            continue;
        uint64_t used = file_value(root, g.path, g.v2 ? "memory.current" : "memory.usage_in_bytes");
        used = used == NO_LIMIT ? 0 : minus(used, droppable(root, &g));
        least = aq_min_u64(least, minus(limit, used));
    } while (go_up(&g));
    return least;
}

/* CPUs' worth of time at the tightest level; 0 for no quota. */
static double cgroup_cpu_quota(const char *root)
{
    struct cgroup g;
    double least = 0;
    if (!find_cgroup(root, "cpu", &g))
        return 0;
    do {
        uint64_t quota = NO_LIMIT, period = 100000;
        if (g.v2) {
            char path[2 * PATH_MAX + 16];
            snprintf(path, sizeof(path), "%s/cpu.max", g.path);
            struct file_text file;
            char *text = read_text(&file, root, path);
            if (text && *text >= '0' && *text <= '9') { /* "max 100000": no quota */
                char *end;
                quota = strtoull(text, &end, 10);
                period = strtoull(end, NULL, 10);
            }
        } else {
            quota = file_value(root, g.path, "cpu.cfs_quota_us"); /* -1: none */
            period = file_value(root, g.path, "cpu.cfs_period_us");
        }
        if (quota == NO_LIMIT || quota == 0 || period == NO_LIMIT || period == 0)
            continue;
        double cpus = (double)quota / (double)period;
        if (least == 0 || cpus < least)
            least = cpus;
    } while (go_up(&g));
    return least;
}

/* ---- the rules -------------------------------------------------------------------------- */

/* The soft value of a row of /proc/self/limits, in bytes. */
static uint64_t resource_limit(const char *limits, const char *name)
{
    return limits ? line_value(limits, name, 1, NO_LIMIT) : NO_LIMIT;
}

static void take_least(struct aq_host_limits *h, uint64_t bytes, const char *name)
{
    if (bytes < h->usable) {
        h->usable = bytes;
        h->limited_by = name;
    }
}

int aq_limits_host(struct aq_host_limits *ret, const char *root, struct aq_err *reterr)
{
    struct aq_host_limits h = {0};
    struct file_text file;
    char *meminfo = read_text(&file, root, "/proc/meminfo");
    h.total = meminfo ? line_value(meminfo, "MemTotal:", 1024, 0) : 0;
    h.available = meminfo ? line_value(meminfo, "MemAvailable:", 1024, 0) : 0;
    if (!h.total || !h.available)
        return aq_error(reterr, -EIO,
                        "/proc/meminfo: expected MemTotal and MemAvailable; give --host-memory");
    char *status = read_text(&file, root, "/proc/self/status");
    uint64_t size = status ? line_value(status, "VmSize:", 1024, 0) : 0;
    uint64_t data = status ? line_value(status, "VmData:", 1024, 0) : 0;
    char *limits = read_text(&file, root, "/proc/self/limits");
    h.address_space = minus(resource_limit(limits, "Max address space"), size);
    h.data = minus(resource_limit(limits, "Max data size"), data);
    h.locked = resource_limit(limits, "Max locked memory");
    h.cgroup = cgroup_memory_left(root);
    h.usable = h.available;
    h.limited_by = "MemAvailable";
    take_least(&h, h.cgroup, "cgroup");
    take_least(&h, h.address_space, "RLIMIT_AS");
    take_least(&h, h.data, "RLIMIT_DATA");
    h.budget = aq_max_u64(minus(h.usable, aq_max_u64(2 * AQ_GIB, h.usable / 20)), h.usable / 4);
    *ret = h;
    return 0;
}

/* CPUs of the affinity mask, whose size is not known beforehand: sched_setaffinity(2). */
static uint32_t affinity_count(void)
{
    for (uint32_t cpus = 1024; cpus <= 1u << 20; cpus *= 2) {
        cpu_set_t *set = CPU_ALLOC(cpus);
        if (!set)
            break;
        size_t bytes = CPU_ALLOC_SIZE(cpus);
        int rc = sched_getaffinity(0, bytes, set);
        int count = rc == 0 ? CPU_COUNT_S(bytes, set) : 0;
        CPU_FREE(set);
        if (rc == 0 && count > 0)
            return (uint32_t)count;
        if (rc < 0 && errno != EINVAL)
            break;
    }
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 0 ? (uint32_t)online : 1;
}

void aq_limits_cpu(struct aq_cpu_limits *ret, const char *root)
{
    struct aq_cpu_limits c = {.affinity = affinity_count(), .quota = cgroup_cpu_quota(root)};
    c.threads = c.affinity;
    c.limited_by = "affinity";
    if (c.quota > 0 && c.quota < c.affinity) {
        uint32_t whole = (uint32_t)c.quota;
        whole += (double)whole < c.quota;
        if (whole < c.threads) {
            c.threads = whole;
            c.limited_by = "cgroup";
        }
    }
    if (c.threads == 0)
        c.threads = 1;
    *ret = c;
}

void aq_limits_cpu_model(char *text, size_t bytes, const char *root)
{
    struct file_text file;
    char *cpuinfo = read_text(&file, root, "/proc/cpuinfo");
    char *line = cpuinfo ? strstr(cpuinfo, "model name") : NULL;
    char *colon = line ? strchr(line, ':') : NULL;
    snprintf(text, bytes, "unknown");
    if (colon) {
        colon += 1 + strspn(colon + 1, " \t");
        snprintf(text, bytes, "%.*s", (int)strcspn(colon, "\n"), colon);
    }
}
