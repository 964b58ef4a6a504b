/* SPDX-License-Identifier: Apache-2.0
 * engine/checkpoint/store.h - the packed store: one logical address space of named extents, striped
 * over its directories.  Owns the files on disk, their manifest and their checksums.  Knows extents
 * and the layout of their rows, not layers or models.
 *
 *   STORE/manifest.json   written last; without it there is no store
 *   STORE/data.0          striping units 0, n, 2n, ... of n directories
 *   STORE/config.json ... files copied in unchanged, so that a store serves as a model directory
 *   STORE2/data.1         units 1, n + 1, ...      STORE2/stripe.json   names the store
 *
 * Unit u (4 MiB) of the address space lies in directory u % n at offset (u / n) * 4 MiB.  Items
 * start at multiples of 4096 (O_DIRECT), steps at multiples of 64 KiB: a step is read as one
 * sequential extent, and 64 KiB covers 4Kn drives and the usual RAID chunk, where 2 MiB would add a
 * tenth to the smallest models.  The gaps are zero. */
#ifndef AQ_ENGINE_CHECKPOINT_STORE_H
#define AQ_ENGINE_CHECKPOINT_STORE_H

#include "base/err.h"
#include "base/log.h"
#include "base/panel.h"
#include "base/types.h"
#include "offload/stripe.h"

#include <jansson.h>

enum {
    AQ_STORE_FORMAT_VERSION = 2,
    AQ_STORE_ITEM_ALIGN = 4096,
    AQ_STORE_STEP_ALIGN = 64 * 1024,
    AQ_STORE_UNIT_BYTES = AQ_STRIPE_UNIT_BYTES,
    AQ_STORE_DIRS_MAX = AQ_STRIPE_FILES_MAX,
    AQ_STORE_ITEMS_MAX = 1 << 20,
    AQ_STORE_NAME_MAX = 255,
};

enum aq_store_kind {
    AQ_STORE_MATRIX, /* panels of 64 rows, aq_panel_bytes(dtype, cols) each, in `layout` */
    AQ_STORE_TABLE,  /* [rows][cols] row-major, no padding */
    AQ_STORE_VECTOR, /* [cols]; rows is 1 */
    AQ_STORE_BLOB,   /* bytes without shape; rows and cols are 0 */
    AQ_STORE_KIND_COUNT,
};
const char *aq_store_kind_name(enum aq_store_kind k);

struct aq_store_item {
    const char *name;
    enum aq_store_kind kind;
    enum aq_dtype dtype;
    enum aq_layout layout; /* of matrices; ROWS for the others */
    uint32_t rows, cols;
    uint32_t step;          /* index of its step */
    uint64_t offset, bytes; /* in the logical address space */
    uint64_t xxh3;          /* XXH3-64 of the bytes */
    /* XXH3-64 of each tile; NULL for an item of one tile, and in stores of version 1. */
    uint64_t *tile_xxh3;
};

/* The tiles in which an item is made, read and checked: 64 rows, which is a panel of a matrix; a
 * vector or a blob is one tile.  The last tile of a table may be shorter. */
uint32_t aq_store_tile_count(const struct aq_store_item *item);
uint64_t aq_store_tile_bytes(const struct aq_store_item *item);

/* Items [first_item, first_item + item_count), one extent with their gaps. */
struct aq_store_step {
    const char *name;
    uint32_t first_item, item_count;
    uint64_t offset, bytes; /* bytes is a multiple of AQ_STORE_STEP_ALIGN */
};

/* A file copied in unchanged, beside the manifest. */
struct aq_store_file {
    const char *name;
    uint64_t bytes, xxh3;
};

/* ---- reading ---- */

struct aq_store;

/* Is there a manifest in this directory?  Says nothing about its health. */
bool aq_store_present(const char *dir);

/* Reads and checks the manifest and opens the data files.  Nothing in the manifest is trusted.
 * -ENOENT: no manifest, or a data file or directory of the set is missing; -ENOEXEC: malformed, of
 * an unknown version, truncated, or directories that do not belong together. */
int aq_store_open(struct aq_store **ret, const char *dir, struct aq_err *reterr);
void aq_store_close(struct aq_store *s);

/* The identity of a store: a hash of its contents, wherever its directories are.  It covers names,
 * shapes, formats and the checksum of every item and file.  The checksums of tiles have a hash of
 * their own, so that all versions of the format give one identity. */
uint64_t aq_store_identity(const struct aq_store *s);
/* Hash of the packing's inputs (names, shapes, formats, source); see aq_store_plan_hash. */
uint64_t aq_store_plan(const struct aq_store *s);
/* The writer's options `model`, a JSON object, borrowed, and `source`. */
const json_t *aq_store_model(const struct aq_store *s);
const char *aq_store_source(const struct aq_store *s);
uint64_t aq_store_bytes(const struct aq_store *s); /* of the logical address space */

uint32_t aq_store_item_count(const struct aq_store *s);
uint32_t aq_store_step_count(const struct aq_store *s);
uint32_t aq_store_file_count(const struct aq_store *s);
uint32_t aq_store_dir_count(const struct aq_store *s);
const struct aq_store_item *aq_store_item(const struct aq_store *s, uint32_t index);
const struct aq_store_step *aq_store_step(const struct aq_store *s, uint32_t index);
const struct aq_store_file *aq_store_file(const struct aq_store *s, uint32_t index);
const char *aq_store_dir(const struct aq_store *s, uint32_t index);
/* NULL when there is no item of this name. */
const struct aq_store_item *aq_store_find(const struct aq_store *s, const char *name);

/* Reads bytes [offset, offset + bytes) of an item into dst; the range must lie in the item.  May be
 * called by many threads at once.  Short reads are resumed; -EIO with file and offset when the disk
 * fails. */
int aq_store_read(const struct aq_store *s, const struct aq_store_item *item, uint64_t offset,
                  void *dst, size_t bytes, struct aq_err *reterr);

/* Path of the data file in directory `dir`; lives as long as the store. */
const char *aq_store_path(const struct aq_store *s, uint32_t dir);
/* The same of all directories, in their order. */
const char *const *aq_store_paths(const struct aq_store *s);

/* Does every tile have a checksum?  A store of an earlier version has checksums of whole items
 * only, which parts of an item cannot be compared with. */
bool aq_store_has_tile_sums(const struct aq_store *s);

/* Compares tiles [first, first + count) of an item, as they were read, with their checksums; skips
 * tiles without one.  -ENOEXEC names store, file, bytes, rows and item, and the cure.
 * Thread-safe. */
int aq_store_check_tiles(const struct aq_store *s, const struct aq_store_item *item, uint32_t first,
                         uint32_t count, const void *tiles, struct aq_err *reterr);

/* Reads the first `bytes` bytes of a tile into dst, and compares the whole tile with its
 * checksum. */
int aq_store_read_tile(const struct aq_store *s, const struct aq_store_item *item, uint32_t tile,
                       void *dst, size_t bytes, struct aq_err *reterr);

/* Re-reads an item (a copied file), from the disk and not from the page cache, and compares its
 * hash: -ENOEXEC names the item and both hashes.  buffer is the caller's, so that threads can check
 * items side by side. */
int aq_store_verify_item(const struct aq_store *s, uint32_t item, void *buffer, size_t buffer_bytes,
                         struct aq_err *reterr);
int aq_store_verify_file(const struct aq_store *s, uint32_t file, void *buffer, size_t buffer_bytes,
                         struct aq_err *reterr);

/* ---- writing ---- */

struct aq_store_item_desc {
    const char *name; /* unique, 1..255 printable ASCII characters */
    enum aq_store_kind kind;
    enum aq_dtype dtype; /* f32, f16, bf16, of matrices also int8, int4; u8 for blobs */
    enum aq_layout layout;
    uint32_t rows, cols;
    uint64_t bytes; /* of a blob; the others follow from their shape */
};

struct aq_store_step_desc {
    const char *name;
    const struct aq_store_item_desc *items;
    uint32_t item_count;
};

struct aq_store_source_file {
    const char *name; /* in the store: no '/', none of the store's own names */
    const char *path;
};

struct aq_store_writer_opts {
    const char *const *dirs; /* the store's directories, the first holds the manifest */
    uint32_t dir_count;
    const struct aq_store_step_desc *steps; /* in the order in which they are read */
    uint32_t step_count;
    const char *source;  /* identifies the checkpoint: a change starts the conversion anew */
    const json_t *model; /* object kept in the manifest; borrowed until close */
    const struct aq_store_source_file *files; /* copied in at the end; borrowed until close */
    uint32_t file_count;
    const struct aq_log *log; /* NULL: silent */
};

struct aq_store_writer;

/* Hash of these options' inputs: equal to aq_store_plan() of the resulting store. */
int aq_store_plan_hash(uint64_t *ret, const struct aq_store_writer_opts *opts,
                       struct aq_err *reterr);

/* Opens DIR.partial beside each directory.  If an earlier writer left one with the same plan, its
 * finished items are kept.  Before anything is written: -EINVAL when a directory exists already,
 * -EAGAIN when another process is packing there or has just left (the kernel takes the lock from
 * one that dies), -ENOMEM with both figures when there is too little space. */
int aq_store_writer_open(struct aq_store_writer **ret, const struct aq_store_writer_opts *opts,
                         struct aq_err *reterr);
/* Makes finished items durable and leaves the partial directories for a later writer.  NULL is
 * fine. */
void aq_store_writer_close(struct aq_store_writer *w);

uint32_t aq_store_writer_item_count(const struct aq_store_writer *w);
const struct aq_store_item *aq_store_writer_item(const struct aq_store_writer *w, uint32_t index);
/* Was this item finished, by this writer or an earlier one? */
bool aq_store_writer_has(const struct aq_store_writer *w, uint32_t index);
/* Bytes of all items, and of those that are finished. */
void aq_store_writer_progress(const struct aq_store_writer *w, uint64_t *ret_total,
                              uint64_t *ret_done);

/* One item at a time, front to back, exactly its bytes: begin, append..., end.  One thread. -ENOSPC
 * and other failures leave the partial state restartable; after one only close is allowed. */
void aq_store_writer_begin(struct aq_store_writer *w, uint32_t index);
int aq_store_writer_append(struct aq_store_writer *w, const void *bytes, size_t count,
                           struct aq_err *reterr);
int aq_store_writer_end(struct aq_store_writer *w, struct aq_err *reterr);

/* When every item is finished: copies the files, writes the manifest, renames DIR.partial to DIR.
 * Either the whole store is there afterwards, also after a power failure, or none of it. */
int aq_store_writer_publish(struct aq_store_writer *w, struct aq_err *reterr);
/* After publish: the store's aq_store_identity(). */
uint64_t aq_store_writer_identity(const struct aq_store_writer *w);

#endif
