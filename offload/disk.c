/* SPDX-License-Identifier: Apache-2.0 */
#include "offload/disk.h"

#include "base/file.h"

#include <assert.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/magic.h>
#include <stdalign.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#define ULL(x) ((unsigned long long)(x))

enum { ZERO_BYTES = 1024 * 1024 };

/* ---- directories ---- */

/* Magic numbers as statfs(2) gives them; those without a name in <linux/magic.h> are in the
 * sources of their file systems. */
static const struct file_system {
    uint32_t magic;
    const char *name;
    bool in_memory, network;
} file_systems[] = {
    {EXT4_SUPER_MAGIC, "ext4"},
    {XFS_SUPER_MAGIC, "xfs"},
    {BTRFS_SUPER_MAGIC, "btrfs"},
    {F2FS_SUPER_MAGIC, "f2fs"},
    {OVERLAYFS_SUPER_MAGIC, "overlay"},
    {0x2fc12fc1, "zfs"},
    {0xca451a4e, "bcachefs"},
    {0x5346544e, "ntfs"},
    {0x7366746e, "ntfs3"},
    {MSDOS_SUPER_MAGIC, "vfat"},
    {0x2011bab0, "exfat"},
    {SQUASHFS_MAGIC, "squashfs"},
    {ECRYPTFS_SUPER_MAGIC, "ecryptfs"},
    {TMPFS_MAGIC, "tmpfs", true, false},
    {RAMFS_MAGIC, "ramfs", true, false},
    {0x958458f6, "hugetlbfs", true, false},
    {NFS_SUPER_MAGIC, "nfs", false, true},
    {0xff534d42, "cifs", false, true},
    {0xfe534d42, "smb2", false, true},
    {0x517b, "smb", false, true},
    {AFS_SUPER_MAGIC, "afs", false, true},
    {CODA_SUPER_MAGIC, "coda", false, true},
    {0x00c36400, "ceph", false, true},
    {0x0bd00bd0, "lustre", false, true},
    {0x47504653, "gpfs", false, true},
    {0x19830326, "beegfs", false, true},
    {0x01021997, "9p", false, true},
    {0x65735546, "fuse", false, false},
};

static const struct file_system *find_file_system(uint32_t magic)
{
    for (size_t i = 0; i < AQ_ARRAY_LEN(file_systems); i++) {
        if (file_systems[i].magic == magic)
            return &file_systems[i];
    }
    return NULL;
}

/* A file in the directory that has no name, or loses it at once; -errno. */
static int open_nameless(const char *directory)
{
    int fd = aq_file_open(directory, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd != -EOPNOTSUPP && fd != -EISDIR && fd != -EINVAL)
        return fd;
    char path[PATH_MAX];
    int n = snprintf(path, sizeof(path), "%s/.aquifer-scratch-XXXXXX", directory);
    if (n < 0 || (size_t)n >= sizeof(path))
        return -ENAMETOOLONG;
    fd = aq_file_open_temp(path);
    if (fd >= 0)
        unlink(path);
    return fd;
}

static int set_direct(int fd)
{
    int flags = fcntl(fd, F_GETFL);
    return flags < 0 ? -1 : fcntl(fd, F_SETFL, flags | O_DIRECT);
}

static int unset_direct(int fd)
{
    int flags = fcntl(fd, F_GETFL);
    return flags < 0 ? -1 : fcntl(fd, F_SETFL, flags & ~O_DIRECT);
}

/* Sets O_DIRECT and tries it: some file systems take the flag and refuse the transfer, or want
 * larger blocks.  NULL when it works, else what does not; the flag is then off again.  `write`: the
 * file is scratch, and its first block may be overwritten. */
static const char *try_direct(int fd, bool write)
{
    alignas(AQ_IO_ALIGN) char page[AQ_IO_ALIGN] = {0};
    if (set_direct(fd) < 0)
        return "the file system refuses O_DIRECT";
    const char *reason = NULL;
    if (write && pwrite(fd, page, AQ_IO_ALIGN, 0) != AQ_IO_ALIGN)
        reason = "a direct write of 4096 bytes failed";
    else if (pread(fd, page, AQ_IO_ALIGN, 0) < 0)
        reason = "a direct read of 4096 bytes failed";
    if (reason)
        (void)unset_direct(fd);
    return reason;
}

/* NULL when direct I/O works, else what does not. */
static const char *probe_direct(const char *directory)
{
    int fd = open_nameless(directory);
    if (fd < 0)
        return fd == -EROFS    ? "the file system is read-only"
               : fd == -EACCES ? "the directory cannot be written"
                               : "no file can be made in the directory";
    const char *reason = try_direct(fd, true);
    close(fd);
    return reason;
}

/* All but the probe. */
static int stat_directory(struct aq_disk_place *ret, const char *directory, struct aq_err *reterr)
{
    struct statfs st;
    if (statfs(directory, &st) < 0)
        return aq_error(reterr, -errno, "'%s': %s", directory, strerror(errno));
    const struct file_system *fs = find_file_system((uint32_t)st.f_type);
    *ret = (struct aq_disk_place){
        .file_system = fs ? fs->name : "unknown",
        .in_memory = fs && fs->in_memory,
        .network = fs && fs->network,
        .total = (uint64_t)st.f_blocks * (uint64_t)st.f_frsize,
        .free = (uint64_t)st.f_bavail * (uint64_t)st.f_frsize,
    };
    return 0;
}

int aq_disk_stat(struct aq_disk_place *ret, const char *directory, struct aq_err *reterr)
{
    struct aq_disk_place place;
    int rc = stat_directory(&place, directory, reterr);
    if (rc < 0)
        return rc;
    place.direct_reason = probe_direct(directory);
    place.direct = !place.direct_reason;
    *ret = place;
    return 0;
}

/* ---- open files ---- */

struct aq_disk {
    struct aq_io_file file[AQ_STRIPE_FILES_MAX];
    char *name[AQ_STRIPE_FILES_MAX]; /* owned; file[].name borrows it */
    uint32_t count;
    bool direct;
};

static struct aq_disk *disk_new(uint32_t count)
{
    assert(count >= 1 && count <= AQ_STRIPE_FILES_MAX);
    struct aq_disk *d = calloc(1, sizeof(*d));
    if (!d)
        return NULL;
    for (uint32_t i = 0; i < AQ_STRIPE_FILES_MAX; i++)
        d->file[i].fd = -1;
    d->count = count;
    d->direct = true;
    return d;
}

void aq_disk_close(struct aq_disk *d)
{
    if (!d)
        return;
    for (uint32_t i = 0; i < d->count; i++) {
        if (d->file[i].fd >= 0)
            close(d->file[i].fd);
        free(d->name[i]);
    }
    free(d);
}

uint32_t aq_disk_file_count(const struct aq_disk *d)
{
    return d->count;
}

const struct aq_io_file *aq_disk_files(const struct aq_disk *d)
{
    return d->file;
}

uint64_t aq_disk_allocated(const struct aq_disk *d)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < d->count; i++) {
        struct stat st;
        /* Blocks are of 512 bytes everywhere, stat(3type), and the file system's own bookkeeping
         * may be among them. */
        if (fstat(d->file[i].fd, &st) == 0)
            bytes += aq_min_u64(512 * (uint64_t)st.st_blocks, (uint64_t)st.st_size);
    }
    return bytes;
}

bool aq_disk_is_direct(const struct aq_disk *d)
{
    return d->direct;
}

/* Takes a descriptor into the set, direct or not as asked for. */
static int adopt(struct aq_disk *d, uint32_t i, int fd, char *name, enum aq_direct direct,
                 bool write, const char **ret_reason, struct aq_err *reterr)
{
    struct aq_io_file *file = &d->file[i];
    const char *reason = direct == AQ_DIRECT_OFF ? NULL : try_direct(fd, write);
    d->name[i] = name;
    *file = (struct aq_io_file){.fd = fd, .name = name};
    file->direct = direct != AQ_DIRECT_OFF && !reason;
    file->forget = !file->direct;
    d->direct = d->direct && file->direct;
    if (reason)
        *ret_reason = reason;
    if (reason && direct == AQ_DIRECT_ON)
        return aq_error(reterr, -ENODEV, "'%s': direct I/O was asked for (--io-direct on), but %s",
                        name, reason);
    return 0;
}

/* One line on what is in effect. */
static void log_io(const struct aq_disk *d, const struct aq_log *log, const char *what,
                   enum aq_direct direct, const char *reason)
{
    char place[512];
    snprintf(place, sizeof(place), "%s%.300s%s", what, d->name[0],
             d->count == 1 ? "" : " and others");
    if (d->direct)
        aq_log_line(log, AQ_LOG_DEBUG, "disk: %s: direct I/O", place);
    else if (direct == AQ_DIRECT_OFF)
        aq_log_line(log, AQ_LOG_INFO,
                    "disk: %s: through the page cache, as asked for; dropped after use", place);
    else
        aq_log_line(log, AQ_LOG_WARNING,
                    "disk: %s: %s; going through the page cache, dropped after use, which costs "
                    "more CPU and memory bandwidth",
                    place, reason);
}

int aq_disk_open_data(struct aq_disk **ret, const struct aq_disk_data_opts *opts,
                      struct aq_err *reterr)
{
    assert(ret && opts && opts->direct < AQ_DIRECT_COUNT);
    struct aq_disk *d = disk_new(opts->count);
    if (!d)
        return aq_error_memory(reterr, "'%s'", opts->paths[0]);
    const char *reason = NULL;
    int rc = 0;
    for (uint32_t i = 0; rc == 0 && i < d->count; i++) {
        char *name = strdup(opts->paths[i]);
        int fd = name ? aq_file_open(name, O_RDONLY | O_CLOEXEC, 0) : -ENOMEM;
        if (!name)
            rc = aq_error_memory(reterr, "'%s'", opts->paths[i]);
        else if (fd < 0)
            rc = aq_error(reterr, fd, "open '%s': %s", name, strerror(-fd));
        else
            rc = adopt(d, i, fd, name, opts->direct, false, &reason, reterr);
        if (fd < 0)
            free(name);
    }
    if (rc < 0) {
        aq_disk_close(d);
        return rc;
    }
    log_io(d, opts->log, "", opts->direct, reason);
    *ret = d;
    return 0;
}

/* ---- scratch ---- */

static int no_room(const struct aq_disk_scratch_opts *o, const char *dir, uint64_t need,
                   uint64_t have, struct aq_err *reterr)
{
    return aq_error(reterr, -ENOMEM,
                    "scratch for the %s: %llu bytes are needed on the file system of '%s', %llu "
                    "are free",
                    o->what, ULL(need), dir, ULL(have));
}

/* Are the directories fit for scratch, and is there room?  Those on one file system share it. */
static int check_places(const struct aq_disk_scratch_opts *o, struct aq_err *reterr)
{
    dev_t device[AQ_STRIPE_FILES_MAX];
    for (uint32_t i = 0; i < o->dir_count; i++) {
        struct stat st;
        if (stat(o->dirs[i], &st) < 0)
            return aq_error(reterr, errno == ENOENT ? -ENOENT : -ENODEV,
                            "scratch directory '%s': %s", o->dirs[i], strerror(errno));
        if (!S_ISDIR(st.st_mode))
            return aq_error(reterr, -ENODEV, "scratch directory '%s': expected a directory",
                            o->dirs[i]);
        device[i] = st.st_dev;
    }
    for (uint32_t i = 0; i < o->dir_count; i++) {
        struct aq_disk_place place;
        uint64_t need = 0;
        int rc = stat_directory(&place, o->dirs[i], reterr);
        if (rc < 0)
            return rc;
        for (uint32_t j = 0; j < o->dir_count; j++)
            need += device[j] == device[i] ? aq_stripe_file_bytes(o->bytes, o->dir_count, j) : 0;
        if (place.in_memory && !o->allow_memory)
            return aq_error(reterr, -ENODEV,
                            "scratch directory '%s' is in memory (%s): its bytes would be taken "
                            "from the host; name one on a disk with --disk-dir",
                            o->dirs[i], place.file_system);
        if (need > place.free)
            return no_room(o, o->dirs[i], need, place.free, reterr);
        if (place.network)
            aq_log_line(o->log, AQ_LOG_WARNING,
                        "disk: scratch directory '%s' is on the network (%s): expect it to be slow",
                        o->dirs[i], place.file_system);
    }
    return 0;
}

/* For file systems without fallocate. */
static int write_zeros(int fd, const char *dir, uint64_t bytes, struct aq_err *reterr)
{
    void *zeros = calloc(1, ZERO_BYTES);
    int rc = zeros ? 0 : aq_error_memory(reterr, "scratch in '%s'", dir);
    for (uint64_t at = 0; rc == 0 && at < bytes; at += ZERO_BYTES) {
        size_t count = (size_t)aq_min_u64(ZERO_BYTES, bytes - at);
        rc = aq_file_write_at(fd, dir, at, zeros, count, reterr);
        if (rc == -ENOSPC || rc == -EFBIG || rc == -EDQUOT)
            rc = -ENOMEM; /* it does not fit; nothing has run yet */
    }
    free(zeros);
    return rc;
}

static int allocate(int fd, const char *dir, const struct aq_disk_scratch_opts *o, uint64_t bytes,
                    struct aq_err *reterr)
{
    if (bytes == 0)
        return 0;
    int code = -aq_file_reserve(fd, bytes);
    if (code == 0)
        return 0;
    struct aq_disk_place place = {0};
    if (code == EOPNOTSUPP || code == ENOSYS) {
        aq_log_line(o->log, AQ_LOG_INFO,
                    "disk: '%s' cannot reserve space; writing %llu bytes of zeros instead", dir,
                    ULL(bytes));
        return write_zeros(fd, dir, bytes, reterr);
    }
    if (code == ENOSPC && stat_directory(&place, dir, NULL) == 0)
        return no_room(o, dir, bytes, place.free, reterr);
    if (code == EFBIG)
        return aq_error(reterr, -ENOMEM,
                        "scratch for the %s: a file of %llu bytes in '%s' is larger than the file "
                        "system or the file size limit (ulimit -f) allows",
                        o->what, ULL(bytes), dir);
    return aq_error(reterr, code == EDQUOT ? -ENOMEM : -EIO,
                    "scratch for the %s: reserve %llu bytes in '%s': %s", o->what, ULL(bytes), dir,
                    strerror(code));
}

int aq_disk_open_scratch(struct aq_disk **ret, const struct aq_disk_scratch_opts *opts,
                         struct aq_err *reterr)
{
    assert(ret && opts && opts->what && opts->direct < AQ_DIRECT_COUNT);
    assert(opts->bytes > 0 && opts->bytes % AQ_IO_ALIGN == 0);
    if (opts->dir_count < 1 || opts->dir_count > AQ_STRIPE_FILES_MAX)
        return aq_error(reterr, -EINVAL,
                        "scratch for the %s: expected 1 to %d directories, found %u", opts->what,
                        AQ_STRIPE_FILES_MAX, opts->dir_count);
    struct aq_disk *d = disk_new(opts->dir_count);
    if (!d)
        return aq_error_memory(reterr, "scratch for the %s", opts->what);
    const char *reason = NULL;
    int rc = check_places(opts, reterr);
    for (uint32_t i = 0; rc == 0 && i < d->count; i++) {
        const char *dir = opts->dirs[i];
        uint64_t bytes = aq_stripe_file_bytes(opts->bytes, d->count, i);
        char *name = NULL;
        if (asprintf(&name, "%s (scratch)", dir) < 0) {
            rc = aq_error_memory(reterr, "scratch for the %s", opts->what);
            break;
        }
        int fd = open_nameless(dir);
        if (fd < 0) {
            rc = aq_error(reterr, aq_err_of_place(-fd),
                          "scratch directory '%s': no file can be made there: %s", dir,
                          strerror(-fd));
            free(name);
            break;
        }
        rc = allocate(fd, dir, opts, bytes, reterr);
        int adopted = adopt(d, i, fd, name, opts->direct, true, &reason, rc == 0 ? reterr : NULL);
        rc = rc == 0 ? adopted : rc;
    }
    if (rc < 0) {
        aq_disk_close(d);
        return rc;
    }
    log_io(d, opts->log, "scratch in ", opts->direct, reason);
    *ret = d;
    return 0;
}
