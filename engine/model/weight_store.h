/* SPDX-License-Identifier: Apache-2.0
 * engine/model/weight_store.h - the packed store that weights stream from: the model itself where
 * it is one in the right format, else one in the cache, packed now unless an earlier run did. */
#ifndef AQ_ENGINE_MODEL_WEIGHT_STORE_H
#define AQ_ENGINE_MODEL_WEIGHT_STORE_H

#include "base/log.h"
#include "base/threads.h"
#include "engine/checkpoint/store.h"
#include "engine/model/model.h"
#include "kernels/kernels.h"

struct aq_weight_store_opts {
    const struct aq_model *model;
    const char *model_dir; /* NULL for a shape with random weights */
    const char *cache_dir; /* NULL: the default one */
    enum aq_dtype format;
    const struct aq_kernels *kernels;
    struct aq_pool *pool;
    uint64_t memory; /* for the conversion; 0: no bound */
    const struct aq_log *log;
    bool (*stop)(void *user); /* asked while this process packs or waits for another; NULL: never */
    void *stop_user;
};

/* *ret_borrowed: the store is the model's own, not to be closed.  *ret_pack_s: seconds spent
 * packing.  -ENOMEM before anything is written when there is too little space in the cache;
 * -EINTR: stopped. */
int aq_weight_store_open(struct aq_store **ret, bool *ret_borrowed, double *ret_pack_s,
                         const struct aq_weight_store_opts *opts, struct aq_err *reterr);

/* Whether it is there already, so that opening it packs nothing. */
bool aq_weight_store_present(const struct aq_model *m, const char *cache_dir, enum aq_dtype format);

#endif
