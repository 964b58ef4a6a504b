/* SPDX-License-Identifier: Apache-2.0
 * engine/model/pack.h - from an open model to a packed store: which items a model has, in which
 * order, and their conversion.  Memory is bounded by a few panels per worker, whatever the model's
 * size. Called by the pack command and by whoever needs a store of a checkpoint. */
#ifndef AQ_ENGINE_MODEL_PACK_H
#define AQ_ENGINE_MODEL_PACK_H

#include "base/log.h"
#include "base/threads.h"
#include "engine/checkpoint/store.h"
#include "engine/model/model.h"

struct aq_pack_opts {
    const struct aq_model *model;
    /* config.json and the tokenizer's files are copied from here; NULL: there are none. */
    const char *model_dir;
    const char *const *dirs; /* of the store */
    uint32_t dir_count;
    enum aq_dtype format;  /* of the matrices: f32, f16, bf16, int8, int4 (aq_matrix_format) */
    enum aq_layout layout; /* of the matrices */
    uint64_t memory;       /* budget of the conversion's buffers in bytes; 0: none */
    const struct aq_log *log;
    /* Called between batches with bytes done and in all; true stops: -EINTR.  NULL: never. */
    bool (*progress)(void *user, uint64_t done, uint64_t total);
    void *user;
};

/* The content of this model's store: arrays for the store's writer, all owned by the plan.
 * Steps as the model has them; in each the matrices (a tied one where it comes first), then the
 * tables, then the vectors in f32, all under their canonical names. */
struct aq_pack_plan {
    struct aq_store_writer_opts writer;
    uint64_t bytes; /* of all items */
    void *owned;
};
int aq_pack_plan_open(struct aq_pack_plan *ret, const struct aq_pack_opts *opts,
                      struct aq_err *reterr);
void aq_pack_plan_close(struct aq_pack_plan *p);
/* How scales of this format are rounded, where earlier versions did it otherwise; else NULL.  A
 * store tells it, and so does its name in the cache: neither a half-finished conversion nor a store
 * there is taken for one that this version would make. */
const char *aq_pack_scales(enum aq_dtype format);
/* Bytes on disk of the store of a model in this format, beside the files that are copied in. */
int aq_pack_store_bytes(uint64_t *ret, const struct aq_model *m, enum aq_dtype format,
                        struct aq_err *reterr);
/* Bytes of a matrix, table or vector in the store. */
uint64_t aq_pack_item_bytes(const struct aq_store_item_desc *d);

struct aq_pack_result {
    uint64_t bytes, bytes_written; /* of all items; of those converted now */
    double seconds;
    uint64_t identity; /* of the store */
    bool was_there;    /* the very store was there already: nothing was done */
};

/* Converts and publishes; waits while another process does.  kernels and pool do the work.  -ENOMEM
 * before anything is written when space is too little; -ENOSPC, -EIO and -EINTR leave a state from
 * which the next call goes on; -EINVAL when values do not fit the format, naming the tensor. */
int aq_pack_run(struct aq_pack_result *ret, const struct aq_pack_opts *opts,
                const struct aq_kernels *kernels, struct aq_pool *pool, struct aq_err *reterr);

#endif
