/* SPDX-License-Identifier: Apache-2.0
 * engine/machine/limits.h - the memory, threads and disk that this process may use.  Reads /proc
 * and the cgroup trees below `root` (NULL: the real ones; tests bring their own), never the memory
 * figures of NUMA nodes, which ignore containers.  Decides nothing but the default budgets. */
#ifndef AQ_ENGINE_MACHINE_LIMITS_H
#define AQ_ENGINE_MACHINE_LIMITS_H

#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>

/* Bytes that are still free under each limit; UINT64_MAX where there is none. */
struct aq_host_limits {
    uint64_t total;         /* MemTotal */
    uint64_t available;     /* MemAvailable */
    uint64_t cgroup;        /* tightest level: limit - use, the page cache that can be dropped not
                               counted as use */
    uint64_t address_space; /* RLIMIT_AS - VmSize */
    uint64_t data;          /* RLIMIT_DATA - VmData */
    uint64_t locked;        /* RLIMIT_MEMLOCK itself; not part of the rule */
    uint64_t usable;        /* the least of available, cgroup, address_space, data */
    uint64_t budget;        /* usable - max(2 GiB, 5 %), but at least a quarter of usable */
    const char *limited_by; /* "MemAvailable", "cgroup", "RLIMIT_AS" or "RLIMIT_DATA" */
};

/* -EIO when /proc/meminfo cannot be read: then there is no default, and the budget must be
 * given. */
int aq_limits_host(struct aq_host_limits *ret, const char *root, struct aq_err *reterr);

struct aq_cpu_limits {
    uint32_t affinity;      /* CPUs this process may run on */
    double quota;           /* CPUs' worth of time the cgroup grants; 0: no quota */
    uint32_t threads;       /* the lesser, quota rounded up; at least 1 */
    const char *limited_by; /* "affinity" or "cgroup" */
};
void aq_limits_cpu(struct aq_cpu_limits *ret, const char *root);
/* The model name of the CPU, or "unknown". */
void aq_limits_cpu_model(char *text, size_t bytes, const char *root);

struct aq_disk_limits {
    const char *file_system;   /* "ext4", "tmpfs", ...; "unknown" */
    bool in_memory;            /* tmpfs, ramfs: bytes there are host memory */
    bool network;              /* NFS, SMB, ...: too slow and too loose for scratch */
    uint64_t total, free;      /* bytes; free to this user */
    uint64_t budget;           /* free - 5 % */
    bool direct;               /* an O_DIRECT write and read went through */
    const char *direct_reason; /* when not: a static string */
};
/* `directory` must exist.  The probe writes one 4 KiB file that never has a name, or is removed at
 * once.  Error: statfs(2) fails on the directory. */
int aq_limits_disk(struct aq_disk_limits *ret, const char *directory, struct aq_err *reterr);

#endif
