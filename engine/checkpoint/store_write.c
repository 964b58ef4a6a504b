/* SPDX-License-Identifier: Apache-2.0
 * The writer of packed stores.  What makes it restartable: data files have their full size from the
 * start, every item has its place from the start, and `journal` (in the first partial directory)
 * gains a line for an item only after the item's bytes are on the disk.  What makes it atomic: the
 * manifest is the last file, and the first directory is the last to get its name. */
#include "engine/checkpoint/store.h"

#include "base/file.h"
#include "base/json.h"
#include "engine/checkpoint/store_manifest.h"
#include "engine/checkpoint/store_tiles.h"

#include <assert.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define ULL(x) ((unsigned long long)(x))

/* An interrupted conversion repeats at most this much. */
#define COMMIT_BYTES  (256 * AQ_MIB)
#define JOURNAL_MAGIC "aquifer-store-journal"
/* Manifest, journal and directories, beside data and copied files. */
#define SLACK_BYTES AQ_MIB

struct aq_store_writer {
    struct aq_store_manifest *m;
    const struct aq_store_source_file *files;
    uint32_t file_count, dir_count;
    const struct aq_log *log;
    struct target {
        char *final, *partial, *parent, *data;
        int fd;       /* of data */
        bool claimed; /* partial is ours to write to and to remove */
    } target[AQ_STORE_DIRS_MAX];
    char *journal_path;
    int journal;
    bool *done;
    uint32_t *pending; /* finished, not yet in the journal */
    uint32_t pending_count, done_count;
    uint64_t pending_bytes, done_bytes, total_bytes;
    uint32_t open_item; /* UINT32_MAX when none */
    uint64_t open_at;   /* bytes of it appended so far */
    struct aq_store_summer sum;
    bool anew; /* nothing worth keeping is there yet */
    bool published;
};

/* ---- opening ---- */

static int name_target(struct target *t, const char *dir, uint32_t index, struct aq_err *reterr)
{
    size_t n = strlen(dir);
    while (n > 1 && dir[n - 1] == '/')
        n--;
    const char *slash = memrchr(dir, '/', n), *base = slash ? slash + 1 : dir;
    size_t base_bytes = n - (size_t)(base - dir);
    if (base_bytes == 0 || (base_bytes == 1 && *base == '.') ||
        (base_bytes == 2 && base[0] == '.' && base[1] == '.'))
        return aq_error(reterr, -EINVAL, "store directory '%s': expected the name of a new one",
                        dir);
    char *in = slash ? strndup(dir, slash == dir ? 1 : (size_t)(slash - dir)) : strdup(".");
    /* The resolved parent: directories given twice show, and the manifest's paths are absolute. */
    t->parent = in ? realpath(in, NULL) : NULL;
    int rc = 0;
    if (in && !t->parent)
        rc = aq_error(reterr, -errno, "store directory '%s': '%s': %s", dir, in, strerror(errno));
    free(in);
    if (rc < 0)
        return rc;
    const char *top = t->parent && strcmp(t->parent, "/") == 0 ? "" : t->parent;
    if (!t->parent || asprintf(&t->final, "%s/%.*s", top, (int)base_bytes, base) < 0 ||
        asprintf(&t->partial, "%s.partial", t->final) < 0 ||
        asprintf(&t->data, "%s/data.%u", t->partial, index) < 0)
        return aq_error_memory(reterr, "store directory '%s'", dir);
    return 0;
}

static int scan_dir(const char *path, bool wipe);

/* A file, or a folder of copied files. */
static void remove_entry(const char *dir, const char *name)
{
    char *path;
    if (asprintf(&path, "%s/%s", dir, name) < 0)
        return;
    if (unlink(path) < 0) {
        (void)scan_dir(path, true);
        (void)rmdir(path);
    }
    free(path);
}

/* Counts the entries of a directory; with `wipe` removes them, all but the journal.  -1 when it is
 * no directory. */
static int scan_dir(const char *path, bool wipe)
{
    DIR *dir = opendir(path);
    if (!dir)
        return -1;
    int count = 0;
    struct dirent *entry;
    while ((entry = readdir(dir))) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        count++;
        if (wipe && strcmp(entry->d_name, "journal") != 0)
            remove_entry(path, entry->d_name);
    }
    closedir(dir);
    return count;
}

/* rename(2) replaces an empty directory; anything else under that name is someone's. */
static int check_free(const struct target *t, struct aq_err *reterr)
{
    struct stat st;
    if (lstat(t->final, &st) < 0 || scan_dir(t->final, false) == 0)
        return 0;
    return aq_error(reterr, -EINVAL, "'%s' exists already: remove it or name another directory",
                    t->final);
}

/* An interrupted publish leaves further directories under their final names while the first is
 * still partial: such a one, of this very plan, is taken back. */
static int reclaim(struct aq_store_writer *w, uint32_t i, struct aq_err *reterr)
{
    struct target *t = &w->target[i];
    struct aq_store_stripe stripe;
    struct stat st;
    char *path;
    if (lstat(t->partial, &st) == 0)
        return 0;
    if (asprintf(&path, "%s/" AQ_STORE_STRIPE_NAME, t->final) < 0)
        return aq_error_memory(reterr, "store directory '%s'", t->final);
    int rc = aq_store_stripe_read(&stripe, path, NULL);
    free(path);
    if (rc < 0 || stripe.plan != w->m->plan || stripe.index != i || stripe.count != w->dir_count)
        return 0;
    rc = aq_file_rename(t->final, t->partial);
    return rc < 0 ? aq_error(reterr, rc, "rename '%s' to '%s': %s", t->final, t->partial,
                             strerror(-rc))
                  : 0;
}

/* Makes DIR.partial, or takes over one that a writer of stores left: its first file tells. */
static int claim_partial(struct aq_store_writer *w, uint32_t i, struct aq_err *reterr)
{
    struct target *t = &w->target[i];
    if (mkdir(t->partial, 0777) == 0) {
        t->claimed = true;
        return 0;
    }
    if (errno != EEXIST)
        return aq_error(reterr, aq_err_of_place(errno), "create directory '%s': %s", t->partial,
                        strerror(errno));
    char *path, head[sizeof(JOURNAL_MAGIC)] = "";
    if (asprintf(&path, "%s/%s", t->partial, i == 0 ? "journal" : AQ_STORE_STRIPE_NAME) < 0)
        return aq_error_memory(reterr, "'%s'", t->partial);
    bool ours = scan_dir(t->partial, false) == 0;
    int fd = ours ? -1 : aq_file_open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC, 0);
    if (fd >= 0) {
        ssize_t n = aq_file_read(fd, head, sizeof(head) - 1);
        ours = i > 0 || n == 0 || strcmp(head, JOURNAL_MAGIC) == 0;
        close(fd);
    }
    free(path);
    t->claimed = ours;
    return ours ? 0
                : aq_error(reterr, -EINVAL,
                           "'%s' exists and is no unfinished store: remove it or name another "
                           "directory",
                           t->partial);
}

static uint64_t data_bytes(const struct aq_store_writer *w, uint32_t i)
{
    return aq_stripe_file_bytes(w->m->bytes, w->dir_count, i);
}

/* Adds up what each file system still has to take and compares it with what is free there. */
static int check_space(const struct aq_store_writer *w, struct aq_err *reterr)
{
    dev_t device[AQ_STORE_DIRS_MAX];
    uint64_t need[AQ_STORE_DIRS_MAX];
    for (uint32_t i = 0; i < w->dir_count; i++) {
        struct stat st;
        need[i] = data_bytes(w, i) + SLACK_BYTES;
        if (stat(w->target[i].data, &st) == 0)
            need[i] -= aq_min_u64(data_bytes(w, i), (uint64_t)st.st_blocks * 512);
        for (uint32_t f = 0; i == 0 && f < w->file_count; f++)
            need[i] += stat(w->files[f].path, &st) == 0 ? (uint64_t)st.st_size : 0;
        if (stat(w->target[i].parent, &st) < 0)
            return aq_error(reterr, -errno, "'%s': %s", w->target[i].parent, strerror(errno));
        device[i] = st.st_dev;
    }
    for (uint32_t i = 0; i < w->dir_count; i++) {
        struct statvfs fs;
        uint64_t sum = 0;
        for (uint32_t j = 0; j < w->dir_count; j++)
            sum += device[j] == device[i] ? need[j] : 0;
        if (statvfs(w->target[i].parent, &fs) < 0)
            return aq_error(reterr, -errno, "'%s': %s", w->target[i].parent, strerror(errno));
        uint64_t free_bytes = (uint64_t)fs.f_bavail * fs.f_frsize;
        if (sum > free_bytes)
            return aq_error(reterr, -ENOMEM,
                            "store '%s': %llu bytes are needed on the file system of '%s', %llu "
                            "are free; nothing was written",
                            w->target[0].final, ULL(sum), w->target[i].parent, ULL(free_bytes));
    }
    return 0;
}

/* One writer per store: the lock lives as long as the journal is open. */
static int lock_journal(struct aq_store_writer *w, struct aq_err *reterr)
{
    if (asprintf(&w->journal_path, "%s/journal", w->target[0].partial) < 0) {
        w->journal_path = NULL;
        return aq_error_memory(reterr, "'%s'", w->target[0].partial);
    }
    int fd = aq_file_open(w->journal_path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (fd < 0)
        return aq_error(reterr, fd, "open '%s': %s", w->journal_path, strerror(-fd));
    struct stat st;
    int rc = aq_file_lock(fd);
    if (rc < 0)
        rc = rc != -EWOULDBLOCK
                 ? aq_error(reterr, rc, "lock '%s': %s", w->journal_path, strerror(-rc))
                 : aq_error(reterr, -EAGAIN, "'%s': another process is packing there",
                            w->target[0].partial);
    /* The other process may have ended between our open and our lock. */
    else if (fstat(fd, &st) < 0 || st.st_nlink == 0 || check_free(&w->target[0], NULL) < 0)
        rc = aq_error(reterr, -EAGAIN, "'%s': another process just left, try again",
                      w->target[0].partial);
    if (rc < 0) {
        close(fd);
        return rc;
    }
    w->journal = fd;
    return 0;
}

static int mark_done(struct aq_store_writer *w, uint32_t item, uint64_t hash)
{
    if (item >= w->m->item_count || w->done[item])
        return -EINVAL;
    w->done[item] = true;
    w->done_count++;
    w->done_bytes += w->m->items[item].bytes;
    w->m->items[item].xxh3 = hash;
    return 0;
}

/* The line that opens a journal: whatever else is found there belongs to another conversion. */
static int journal_head(const struct aq_store_writer *w, char text[80])
{
    return snprintf(text, 80, JOURNAL_MAGIC " %d %016llx %u\n", AQ_STORE_FORMAT_VERSION,
                    ULL(w->m->plan), w->dir_count);
}

/* Takes over the items an earlier writer finished.  *ret_bytes is the journal's sound part: a torn
 * last line is cut off.  0 when there is nothing to take over. */
static void read_journal(struct aq_store_writer *w, uint64_t *ret_bytes)
{
    char head[80], *text;
    size_t bytes, head_bytes = (size_t)journal_head(w, head);
    *ret_bytes = 0;
    if (aq_read_file(&text, &bytes, w->journal_path, AQ_STORE_MANIFEST_BYTES_MAX, NULL) < 0)
        return;
    if (bytes < head_bytes || memcmp(text, head, head_bytes) != 0) {
        if (bytes > 0)
            aq_log_line(w->log, AQ_LOG_INFO, "'%s': model or options changed, starting anew",
                        w->target[0].partial);
        free(text);
        return;
    }
    char *at = text + head_bytes, *newline;
    while ((newline = memchr(at, '\n', bytes - (size_t)(at - text)))) {
        unsigned index;
        unsigned long long hash;
        int end = 0;
        *newline = '\0';
        if (sscanf(at, "%u %16llx %n", &index, &hash, &end) != 2 || index >= w->m->item_count ||
            aq_store_tiles_parse(&w->m->items[index], at + end, (size_t)(newline - at - end)) < 0 ||
            mark_done(w, index, hash) < 0)
            break;
        at = newline + 1;
    }
    *ret_bytes = (uint64_t)(at - text);
    free(text);
}

static void forget_done(struct aq_store_writer *w)
{
    memset(w->done, 0, w->m->item_count * sizeof(*w->done));
    w->done_count = 0;
    w->done_bytes = 0;
}

/* Are the data files those the journal speaks of? */
static bool data_is_there(const struct aq_store_writer *w)
{
    for (uint32_t i = 0; i < w->dir_count; i++) {
        struct stat st;
        struct aq_store_stripe stripe = {0};
        if (stat(w->target[i].data, &st) < 0 || (uint64_t)st.st_size != data_bytes(w, i))
            return false;
        if (i == 0)
            continue;
        char *path;
        if (asprintf(&path, "%s/" AQ_STORE_STRIPE_NAME, w->target[i].partial) < 0)
            return false;
        int rc = aq_store_stripe_read(&stripe, path, NULL);
        free(path);
        if (rc < 0 || stripe.plan != w->m->plan || stripe.index != i ||
            stripe.count != w->dir_count)
            return false;
    }
    return true;
}

static int write_stripe(const struct aq_store_writer *w, uint32_t i, struct aq_err *reterr)
{
    struct aq_store_stripe stripe = {w->m->plan, w->m->id, i, w->dir_count};
    return aq_json_replace(w->target[i].partial, AQ_STORE_STRIPE_NAME,
                           aq_store_stripe_json(&stripe), reterr);
}

/* Opens a data file and gives it its full size, so that a full disk shows now and not at the end.
 * File systems without allocation get a sparse file. */
static int open_data(struct aq_store_writer *w, uint32_t i, bool anew, struct aq_err *reterr)
{
    struct target *t = &w->target[i];
    uint64_t bytes = data_bytes(w, i);
    int rc = i > 0 ? write_stripe(w, i, reterr) : 0;
    if (rc < 0)
        return rc;
    t->fd = aq_file_open(t->data, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC | (anew ? O_TRUNC : 0),
                         0666);
    if (t->fd < 0)
        return aq_error(reterr, t->fd, "open '%s': %s", t->data, strerror(-t->fd));
    rc = bytes > 0 ? aq_file_reserve(t->fd, bytes) : 0;
    if (rc < 0) {
        if (rc != -EOPNOTSUPP && rc != -ENOSYS)
            return aq_error(reterr, rc, "'%s': allocating %llu bytes: %s", t->data, ULL(bytes),
                            strerror(-rc));
        rc = aq_file_truncate(t->fd, bytes);
        if (rc < 0)
            return aq_error(reterr, rc, "'%s': setting its size to %llu bytes: %s", t->data,
                            ULL(bytes), strerror(-rc));
    }
    return aq_file_sync_dir(t->partial, reterr);
}

static int sync_file(int fd, const char *path, struct aq_err *reterr)
{
    int rc = aq_file_sync(fd);
    return rc < 0 ? aq_error(reterr, rc, "fsync '%s': %s", path, strerror(-rc)) : 0;
}

/* Goes on where the journal ends, or starts a new one. */
static int start(struct aq_store_writer *w, struct aq_err *reterr)
{
    char head[80];
    uint64_t journal_bytes;
    read_journal(w, &journal_bytes);
    if (journal_bytes > 0 && !data_is_there(w)) {
        aq_log_line(w->log, AQ_LOG_INFO, "'%s': data files are missing, starting anew",
                    w->target[0].partial);
        forget_done(w);
        journal_bytes = 0;
    }
    bool anew = w->anew = journal_bytes == 0;
    for (uint32_t i = 0; anew && i < w->dir_count; i++)
        (void)scan_dir(w->target[i].partial, true); /* what another conversion left */
    int rc = aq_file_truncate(w->journal, journal_bytes);
    if (rc < 0)
        return aq_error(reterr, rc, "truncate '%s': %s", w->journal_path, strerror(-rc));
    for (uint32_t i = 0; i < w->dir_count; i++) {
        rc = open_data(w, i, anew, reterr);
        if (rc < 0)
            return rc;
    }
    if (anew) {
        size_t n = (size_t)journal_head(w, head);
        rc = aq_file_write_at(w->journal, w->journal_path, 0, head, n, reterr);
        if (rc == 0)
            rc = sync_file(w->journal, w->journal_path, reterr);
        if (rc < 0)
            return rc;
        w->anew = false;
    } else {
        aq_log_line(w->log, AQ_LOG_INFO, "'%s': going on, %u of %u items are there",
                    w->target[0].partial, w->done_count, w->m->item_count);
    }
    return 0;
}

static int check_files(const struct aq_store_writer_opts *opts, struct aq_err *reterr)
{
    if (opts->file_count > AQ_STORE_FILES_MAX)
        return aq_error(reterr, -EINVAL, "a store takes at most %d files, found %u",
                        AQ_STORE_FILES_MAX, opts->file_count);
    for (uint32_t i = 0; i < opts->file_count; i++) {
        const char *name = opts->files[i].name;
        bool twice = false;
        for (uint32_t j = 0; j < i; j++)
            twice = twice || strcmp(name, opts->files[j].name) == 0;
        if (twice || !aq_store_file_name_ok(name))
            return aq_error(reterr, -EINVAL, "file '%s' cannot be copied into a store: %s", name,
                            twice ? "it is there twice" : "the name is not allowed");
    }
    return 0;
}

static int prepare(struct aq_store_writer *w, const struct aq_store_writer_opts *opts,
                   struct aq_err *reterr)
{
    int rc = check_files(opts, reterr);
    if (rc == 0)
        rc = aq_store_manifest_lay_out(&w->m, opts, reterr);
    if (rc < 0)
        return rc;
    w->done = calloc(w->m->item_count + 1ul, sizeof(*w->done));
    w->pending = calloc(w->m->item_count + 1ul, sizeof(*w->pending));
    if (!w->done || !w->pending)
        return aq_error_memory(reterr, "writer of %u items", w->m->item_count);
    rc = aq_store_summer_open(&w->sum, reterr);
    if (rc < 0)
        return rc;
    for (uint32_t i = 0; i < w->m->item_count; i++)
        w->total_bytes += w->m->items[i].bytes;
    for (uint32_t i = 0; i < w->dir_count; i++) {
        rc = name_target(&w->target[i], opts->dirs[i], i, reterr);
        if (rc < 0)
            return rc;
        for (uint32_t j = 0; j < i; j++) {
            if (strcmp(w->target[i].final, w->target[j].final) == 0)
                return aq_error(reterr, -EINVAL, "store directory '%s' is given twice",
                                w->target[i].final);
        }
    }
    return 0;
}

/* Leaves no trace of a conversion that never began. */
static void discard(struct aq_store_writer *w)
{
    struct stat st;
    if (w->journal < 0 || !(w->anew || (fstat(w->journal, &st) == 0 && st.st_size == 0)))
        return;
    for (uint32_t i = w->dir_count; i-- > 0;) {
        struct target *t = &w->target[i];
        if (t->claimed)
            (void)scan_dir(t->partial, true);
        if (t->claimed && i == 0)
            (void)unlink(w->journal_path);
        if (t->claimed)
            (void)rmdir(t->partial);
    }
}

int aq_store_writer_open(struct aq_store_writer **ret, const struct aq_store_writer_opts *opts,
                         struct aq_err *reterr)
{
    assert(ret && opts && opts->dir_count >= 1);
    if (opts->dir_count > AQ_STORE_DIRS_MAX)
        return aq_error(reterr, -EINVAL, "a store has at most %d directories, found %u",
                        AQ_STORE_DIRS_MAX, opts->dir_count);
    struct aq_store_writer *w = calloc(1, sizeof(*w));
    if (!w)
        return aq_error_memory(reterr, "writer of a store");
    w->files = opts->files;
    w->file_count = opts->file_count;
    w->dir_count = opts->dir_count;
    w->log = opts->log;
    w->journal = -1;
    w->open_item = UINT32_MAX;
    for (uint32_t i = 0; i < AQ_STORE_DIRS_MAX; i++)
        w->target[i].fd = -1;
    int rc;
    if ((rc = prepare(w, opts, reterr)) < 0 || (rc = check_free(&w->target[0], reterr)) < 0 ||
        (rc = claim_partial(w, 0, reterr)) < 0 || (rc = lock_journal(w, reterr)) < 0)
        goto fail;
    for (uint32_t i = 1; i < w->dir_count; i++) {
        if ((rc = reclaim(w, i, reterr)) < 0 || (rc = check_free(&w->target[i], reterr)) < 0 ||
            (rc = claim_partial(w, i, reterr)) < 0)
            goto fail;
    }
    if ((rc = check_space(w, reterr)) < 0 || (rc = start(w, reterr)) < 0)
        goto fail;
    *ret = w;
    return 0;
fail:
    discard(w);
    aq_store_writer_close(w);
    return rc;
}

/* ---- writing items ---- */

/* "item checksum tiles": what mark_done and the manifest need of it. */
static int write_line(struct aq_store_writer *w, uint32_t index, off_t *end, struct aq_err *reterr)
{
    const struct aq_store_item *item = &w->m->items[index];
    char *line = NULL, *tiles = aq_store_tiles_text(item);
    int n = tiles ? asprintf(&line, "%u %016llx %s\n", index, ULL(item->xxh3), tiles) : -1;
    free(tiles);
    if (n < 0)
        return aq_error_memory(reterr, "item '%s'", item->name);
    int rc = aq_file_write_at(w->journal, w->journal_path, (uint64_t)*end, line, (size_t)n, reterr);
    free(line);
    *end += n;
    return rc;
}

/* Data first, then the journal's lines: what the journal says is on the disk. */
static int commit(struct aq_store_writer *w, struct aq_err *reterr)
{
    if (w->pending_count == 0)
        return 0;
    for (uint32_t i = 0; i < w->dir_count; i++) {
        int rc = sync_file(w->target[i].fd, w->target[i].data, reterr);
        if (rc < 0)
            return rc;
        /* A large conversion must not push everything else out of the page cache. */
        (void)posix_fadvise(w->target[i].fd, 0, 0, POSIX_FADV_DONTNEED);
    }
    off_t end = lseek(w->journal, 0, SEEK_END);
    for (uint32_t i = 0; i < w->pending_count; i++) {
        int rc = write_line(w, w->pending[i], &end, reterr);
        if (rc < 0)
            return rc;
    }
    int rc = sync_file(w->journal, w->journal_path, reterr);
    if (rc < 0)
        return rc;
    w->pending_count = 0;
    w->pending_bytes = 0;
    return 0;
}

void aq_store_writer_close(struct aq_store_writer *w)
{
    if (!w)
        return;
    if (!w->published && w->journal >= 0)
        (void)commit(w, NULL); /* what fails here is converted again */
    for (uint32_t i = 0; i < AQ_STORE_DIRS_MAX; i++) {
        struct target *t = &w->target[i];
        if (t->fd >= 0)
            close(t->fd);
        free(t->final);
        free(t->partial);
        free(t->parent);
        free(t->data);
    }
    if (w->journal >= 0)
        close(w->journal);
    free(w->journal_path);
    free(w->done);
    free(w->pending);
    aq_store_summer_close(&w->sum);
    aq_store_manifest_close(w->m);
    free(w);
}

uint32_t aq_store_writer_item_count(const struct aq_store_writer *w)
{
    return w->m->item_count;
}

const struct aq_store_item *aq_store_writer_item(const struct aq_store_writer *w, uint32_t index)
{
    assert(index < w->m->item_count);
    return &w->m->items[index];
}

bool aq_store_writer_has(const struct aq_store_writer *w, uint32_t index)
{
    assert(index < w->m->item_count);
    return w->done[index];
}

void aq_store_writer_progress(const struct aq_store_writer *w, uint64_t *ret_total,
                              uint64_t *ret_done)
{
    *ret_total = w->total_bytes;
    *ret_done = w->done_bytes;
}

void aq_store_writer_begin(struct aq_store_writer *w, uint32_t index)
{
    assert(index < w->m->item_count && !w->done[index] && w->open_item == UINT32_MAX);
    w->open_item = index;
    w->open_at = 0;
    aq_store_summer_begin(&w->sum, &w->m->items[index]);
}

int aq_store_writer_append(struct aq_store_writer *w, const void *bytes, size_t count,
                           struct aq_err *reterr)
{
    assert(w->open_item != UINT32_MAX);
    const struct aq_store_item *item = &w->m->items[w->open_item];
    assert(count <= item->bytes - w->open_at);
    aq_store_summer_add(&w->sum, bytes, count);
    uint64_t offset = item->offset + w->open_at;
    for (size_t done = 0; done < count;) {
        struct aq_stripe_piece piece = aq_stripe_locate(w->dir_count, offset + done, count - done);
        const struct target *t = &w->target[piece.file];
        int rc = aq_file_write_at(t->fd, t->data, piece.offset, (const char *)bytes + done,
                                  piece.bytes, reterr);
        if (rc < 0)
            return aq_error_prefix(reterr, "item '%s'", item->name);
        /* Starts the disk now: fdatasync then finds little left to do.  Only a hint. */
        (void)sync_file_range(t->fd, (off_t)piece.offset, (off_t)piece.bytes,
                              SYNC_FILE_RANGE_WRITE);
        done += piece.bytes;
    }
    w->open_at += count;
    return 0;
}

int aq_store_writer_end(struct aq_store_writer *w, struct aq_err *reterr)
{
    assert(w->open_item != UINT32_MAX && w->open_at == w->m->items[w->open_item].bytes);
    uint32_t item = w->open_item;
    w->open_item = UINT32_MAX;
    (void)mark_done(w, item, aq_store_summer_end(&w->sum));
    w->pending[w->pending_count++] = item;
    w->pending_bytes += w->m->items[item].bytes;
    return w->pending_bytes >= COMMIT_BYTES ? commit(w, reterr) : 0;
}

/* ---- publishing ---- */

static int copy_stream(int from, const char *from_path, int to, const char *to_path,
                       struct aq_store_file *file, struct aq_err *reterr)
{
    enum { BUFFER_BYTES = 1 << 18 };
    char *buffer = malloc(BUFFER_BYTES);
    XXH3_state_t *hash = XXH3_createState();
    int rc = 0;
    if (!buffer || !hash) {
        rc = aq_error_memory(reterr, "copy of '%s'", from_path);
        goto out;
    }
    XXH3_64bits_reset(hash);
    for (;;) {
        ssize_t n = aq_file_read(from, buffer, BUFFER_BYTES);
        if (n < 0)
            rc = aq_error(reterr, (int)n, "read '%s': %s", from_path, strerror((int)-n));
        if (n <= 0)
            break;
        XXH3_64bits_update(hash, buffer, (size_t)n);
        rc = aq_file_write_at(to, to_path, file->bytes, buffer, (size_t)n, reterr);
        if (rc < 0)
            break;
        file->bytes += (uint64_t)n;
    }
    file->xxh3 = XXH3_64bits_digest(hash);
    if (rc == 0)
        rc = sync_file(to, to_path, reterr);
out:
    free(buffer);
    if (hash)
        XXH3_freeState(hash);
    return rc;
}

/* Makes the folder of a copied file "FOLDER/FILE"; its own entry lasts with the store's. */
static int make_folder(const char *path, size_t store_bytes, struct aq_err *reterr)
{
    const char *slash = strchr(path + store_bytes + 1, '/');
    if (!slash)
        return 0;
    char *folder = strndup(path, (size_t)(slash - path));
    if (!folder)
        return aq_error_memory(reterr, "folder of '%s'", path);
    int rc = 0;
    if (mkdir(folder, 0777) < 0 && errno != EEXIST)
        rc = aq_error(reterr, aq_err_of_place(errno), "create directory '%s': %s", folder,
                      strerror(errno));
    free(folder);
    return rc;
}

static int sync_folder(const char *path, struct aq_err *reterr)
{
    char *folder = strndup(path, (size_t)(strrchr(path, '/') - path));
    int rc =
        folder ? aq_file_sync_dir(folder, reterr) : aq_error_memory(reterr, "folder of '%s'", path);
    free(folder);
    return rc;
}

static int copy_file(struct aq_store_writer *w, const struct aq_store_source_file *source,
                     struct aq_err *reterr)
{
    struct aq_store_file *file = &w->m->files[w->m->file_count];
    char *path;
    if (asprintf(&path, "%s/%s", w->target[0].partial, source->name) < 0)
        return aq_error_memory(reterr, "copy of '%s'", source->path);
    int to = -1, from = aq_file_open(source->path, O_RDONLY | O_CLOEXEC, 0);
    int rc = from < 0 ? aq_error(reterr, from, "open '%s': %s", source->path, strerror(-from))
                      : make_folder(path, strlen(w->target[0].partial), reterr);
    if (rc < 0)
        goto out;
    to = aq_file_open(path, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (to < 0) {
        rc = aq_error(reterr, to, "create '%s': %s", path, strerror(-to));
        goto out;
    }
    *file = (struct aq_store_file){.name = strdup(source->name)};
    if (!file->name) {
        rc = aq_error_memory(reterr, "copy of '%s'", source->path);
        goto out;
    }
    w->m->file_count++;
    rc = copy_stream(from, source->path, to, path, file, reterr);
    if (rc == 0)
        rc = sync_folder(path, reterr);
out:
    if (from >= 0)
        close(from);
    if (to >= 0)
        close(to);
    free(path);
    return rc;
}

/* Everything the manifest says beside the items: files, directories, identity. */
static int complete_manifest(struct aq_store_writer *w, struct aq_err *reterr)
{
    w->m->files = calloc(w->file_count + 1ul, sizeof(*w->m->files));
    w->m->dirs = calloc(w->dir_count, sizeof(*w->m->dirs));
    if (!w->m->files || !w->m->dirs)
        return aq_error_memory(reterr, "manifest of the store");
    for (uint32_t i = 0; i < w->file_count; i++) {
        int rc = copy_file(w, &w->files[i], reterr);
        if (rc < 0)
            return rc;
    }
    for (uint32_t i = 0; i < w->dir_count; i++) {
        w->m->dirs[i] = strdup(i == 0 ? "." : w->target[i].final);
        if (!w->m->dirs[i])
            return aq_error_memory(reterr, "manifest of the store");
        w->m->dir_count++;
    }
    return aq_store_manifest_identity(&w->m->id, w->m, reterr);
}

static int give_name(const struct target *t, struct aq_err *reterr)
{
    int rc = aq_file_rename(t->partial, t->final);
    if (rc < 0)
        return aq_error(reterr, rc, "rename '%s' to '%s': %s", t->partial, t->final, strerror(-rc));
    return aq_file_sync_dir(t->parent, reterr);
}

int aq_store_writer_publish(struct aq_store_writer *w, struct aq_err *reterr)
{
    assert(w->done_count == w->m->item_count && !w->published && w->open_item == UINT32_MAX);
    json_t *manifest;
    char *journal;
    int rc;
    if ((rc = commit(w, reterr)) < 0 || (rc = complete_manifest(w, reterr)) < 0 ||
        (rc = aq_store_manifest_json(&manifest, w->m, reterr)) < 0)
        return rc;
    for (uint32_t i = 1; rc == 0 && i < w->dir_count; i++) {
        rc = write_stripe(w, i, reterr);
        if (rc == 0)
            rc = give_name(&w->target[i], reterr);
    }
    if (rc < 0) {
        json_decref(manifest);
        return rc;
    }
    if ((rc = aq_json_replace(w->target[0].partial, AQ_STORE_MANIFEST_NAME, manifest, reterr)) <
            0 ||
        (rc = give_name(&w->target[0], reterr)) < 0)
        return rc;
    w->published = true;
    /* Until here an interrupted publish could be repeated from the journal. */
    if (asprintf(&journal, "%s/journal", w->target[0].final) >= 0) {
        (void)unlink(journal);
        free(journal);
    }
    return 0;
}

uint64_t aq_store_writer_identity(const struct aq_store_writer *w)
{
    assert(w->published);
    return w->m->id;
}
