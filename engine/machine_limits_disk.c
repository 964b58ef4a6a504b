/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/machine_limits.h"

#include "base/types.h"

#include <fcntl.h>
#include <limits.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statfs.h>
#include <unistd.h>

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

/* A file in the directory that has no name, or loses it at once. */
static int open_nameless(const char *directory)
{
    int fd = open(directory, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL))
        return fd;
    char path[PATH_MAX];
    int n = snprintf(path, sizeof(path), "%s/.aquifer-probe-XXXXXX", directory);
    if (n < 0 || (size_t)n >= sizeof(path))
        return -1;
    fd = mkostemp(path, O_CLOEXEC);
    if (fd >= 0)
        unlink(path);
    return fd;
}

/* NULL when direct I/O works, else what does not. */
static const char *probe_direct(const char *directory)
{
    enum { BYTES = 4096 };
    int fd = open_nameless(directory);
    if (fd < 0)
        return errno == EROFS    ? "the file system is read-only"
               : errno == EACCES ? "the directory cannot be written"
                                 : "no file can be made in the directory";
    const char *reason = NULL;
    void *page = aligned_alloc(BYTES, BYTES);
    int flags = fcntl(fd, F_GETFL);
    if (!page) {
        reason = "out of memory";
    } else if (flags < 0 || fcntl(fd, F_SETFL, flags | O_DIRECT) < 0) {
        reason = "the file system refuses O_DIRECT";
    } else {
        memset(page, 0xa5, BYTES);
        if (pwrite(fd, page, BYTES, 0) != BYTES)
            reason = "a direct write failed";
        else if (pread(fd, page, BYTES, 0) != BYTES)
            reason = "a direct read failed";
    }
    free(page);
    close(fd);
    return reason;
}

int aq_limits_disk(struct aq_disk_limits *ret, const char *directory, struct aq_err *reterr)
{
    struct statfs st;
    if (statfs(directory, &st) < 0)
        return aq_error(reterr, -errno, "'%s': %s", directory, strerror(errno));
    const struct file_system *fs = find_file_system((uint32_t)st.f_type);
    struct aq_disk_limits d = {
        .file_system = fs ? fs->name : "unknown",
        .in_memory = fs && fs->in_memory,
        .network = fs && fs->network,
        .total = (uint64_t)st.f_blocks * (uint64_t)st.f_frsize,
        .free = (uint64_t)st.f_bavail * (uint64_t)st.f_frsize,
    };
    d.budget = d.free - d.free / 20;
    d.direct_reason = probe_direct(directory);
    d.direct = !d.direct_reason;
    *ret = d;
    return 0;
}
