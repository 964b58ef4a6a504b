/* SPDX-License-Identifier: Apache-2.0
 * engine/checkpoint/store_manifest.h - a packed store's manifest, parsed and checked.  Called by
 * store.c, store_write.c and their tests.  Knows no file descriptors. */
#ifndef AQ_ENGINE_CHECKPOINT_STORE_MANIFEST_H
#define AQ_ENGINE_CHECKPOINT_STORE_MANIFEST_H

#include "engine/checkpoint/store.h"

#define AQ_STORE_MANIFEST_NAME "manifest.json"
#define AQ_STORE_STRIPE_NAME   "stripe.json"

enum { AQ_STORE_MANIFEST_BYTES_MAX = 256 * 1024 * 1024, AQ_STORE_FILES_MAX = 256 };

/* Owns every string and array in it. */
struct aq_store_manifest {
    struct aq_store_item *items;
    uint32_t item_count;
    struct aq_store_step *steps;
    uint32_t step_count;
    struct aq_store_file *files;
    uint32_t file_count;
    char **dirs; /* "." for the manifest's own, absolute paths for the others */
    uint32_t dir_count;
    uint64_t bytes; /* of the logical address space */
    uint32_t version;
    uint64_t plan, id; /* hashes, see store.h */
    char *source;
    json_t *model;
    uint32_t *by_name; /* item indices sorted by name */
};

/* Parses and checks: version, names, shapes, bounds, order (so that nothing overlaps), plan and
 * identity hash.  -ENOEXEC otherwise; the text does not name the file. */
int aq_store_manifest_parse(struct aq_store_manifest **ret, const char *text, size_t bytes,
                            struct aq_err *reterr);
/* Gives every item its place, and allocates the checksums of its tiles; checks names and shapes
 * (-EINVAL).  Hashes stay zero, `dirs` and `files` empty, plan is set. */
int aq_store_manifest_lay_out(struct aq_store_manifest **ret,
                              const struct aq_store_writer_opts *opts, struct aq_err *reterr);
void aq_store_manifest_close(struct aq_store_manifest *m);

/* The hash that belongs into m->id. */
int aq_store_manifest_identity(uint64_t *ret, const struct aq_store_manifest *m,
                               struct aq_err *reterr);
/* The whole document, with m->id as it is.  New reference. */
int aq_store_manifest_json(json_t **ret, const struct aq_store_manifest *m, struct aq_err *reterr);

/* Index of an item, or UINT32_MAX. */
uint32_t aq_store_manifest_find(const struct aq_store_manifest *m, const char *name);

/* The name of a file, or of one in a folder ("FOLDER/FILE", no deeper), that is none of the store's
 * own. */
bool aq_store_file_name_ok(const char *name);

/* stripe.json: the store that a further directory belongs to.  id is 0 until the store is
 * published. */
struct aq_store_stripe {
    uint64_t plan, id;
    uint32_t index, count;
};
json_t *aq_store_stripe_json(const struct aq_store_stripe *s);
int aq_store_stripe_read(struct aq_store_stripe *ret, const char *path, struct aq_err *reterr);

/* Reads the 16 hex digits under `key`. */
int aq_store_get_hash(const json_t *object, const char *key, const char *what, uint64_t *ret,
                      struct aq_err *reterr);

#endif
