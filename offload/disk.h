/* SPDX-License-Identifier: Apache-2.0
 * offload/disk.h - directories and files for transfers: properties of a directory, data files
 * opened past the page cache where the file system allows it, and scratch files.  Owns the
 * descriptors, from open to close.  Knows no stores and no contents. */
#ifndef AQ_OFFLOAD_DISK_H
#define AQ_OFFLOAD_DISK_H

#include "offload/io.h"
#include "offload/stripe.h"

/* ---- directories ---- */

struct aq_disk_place {
    const char *file_system;   /* "ext4", "tmpfs", ...; "unknown" */
    bool in_memory;            /* tmpfs, ramfs: bytes there are host memory */
    bool network;              /* NFS, SMB, ...: too slow and too loose for scratch */
    uint64_t total, free;      /* bytes; free to this user */
    bool direct;               /* an O_DIRECT write and read of 4096 bytes went through */
    const char *direct_reason; /* when not: a static string */
};
/* `directory` must exist.  Writes one file of 4 KiB that never has a name, or loses it at once.
 * Error: statfs(2) fails on the directory. */
int aq_disk_stat(struct aq_disk_place *ret, const char *directory, struct aq_err *reterr);

/* ---- open files ---- */

/* Whether transfers bypass the page cache.  AUTO: yes where the file system accepts O_DIRECT, else
 * buffered with a warning, each range dropped from the cache after use.  ON: an error where the
 * file system refuses O_DIRECT.  OFF: buffered. */
enum aq_direct { AQ_DIRECT_AUTO, AQ_DIRECT_ON, AQ_DIRECT_OFF, AQ_DIRECT_COUNT };

struct aq_disk;

struct aq_disk_data_opts {
    const char *const *paths; /* stripes of one address space, in this order */
    uint32_t count;           /* 1 .. AQ_STRIPE_FILES_MAX */
    enum aq_direct direct;
    const struct aq_log *log; /* NULL: silent */
};
/* Opens files for reading.  -ENOENT, -EACCES, ...: a file cannot be opened; -ENODEV: AQ_DIRECT_ON,
 * and O_DIRECT is refused. */
int aq_disk_open_data(struct aq_disk **ret, const struct aq_disk_data_opts *opts,
                      struct aq_err *reterr);

struct aq_disk_scratch_opts {
    const char *what; /* "KV cache", for messages */
    const char *const *dirs;
    uint32_t dir_count; /* one may be named several times */
    uint64_t bytes;     /* of the address space; multiple of AQ_IO_ALIGN */
    enum aq_direct direct;
    bool allow_memory; /* tmpfs is allowed */
    const struct aq_log *log;
};
/* Opens one file in each directory that never has a name, or loses it at once: nothing is left
 * behind whatever happens, and no older content is ever read.  All bytes are allocated now, so that
 * no write runs out of space later.  -EINVAL: not 1 to AQ_STRIPE_FILES_MAX directories; -ENOMEM:
 * too little space, with both figures; -ENODEV: a directory cannot be written, or is in memory, or
 * refuses O_DIRECT under AQ_DIRECT_ON; -ENOENT: a directory does not exist. */
int aq_disk_open_scratch(struct aq_disk **ret, const struct aq_disk_scratch_opts *opts,
                         struct aq_err *reterr);

/* Close after the engine that works on the files.  NULL is fine. */
void aq_disk_close(struct aq_disk *d);

uint32_t aq_disk_file_count(const struct aq_disk *d);
/* For the engine's set of files: [aq_disk_file_count], as long as d is open. */
const struct aq_io_file *aq_disk_files(const struct aq_disk *d);
/* Bytes of the files that the file systems hold now: less than their length where there are holes.
 */
uint64_t aq_disk_allocated(const struct aq_disk *d);
/* Do all files bypass the page cache? */
bool aq_disk_is_direct(const struct aq_disk *d);

#endif
