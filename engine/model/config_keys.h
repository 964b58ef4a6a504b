/* SPDX-License-Identifier: Apache-2.0
 * engine/model/config_keys.h - values of a config.json by their keys, checked, with messages that
 * name file, key, what was expected and what was found (-ENOEXEC).  Read by
 * engine/model/config.c and by the rows of engine/model/arch, which say which keys an architecture
 * has.  Owns nothing. */
#ifndef AQ_ENGINE_MODEL_CONFIG_KEYS_H
#define AQ_ENGINE_MODEL_CONFIG_KEYS_H

#include "base/err.h"
#include "base/types.h"
#include "engine/model/config.h"

#include <jansson.h>

/* The document, how messages call it, and where they go. */
struct aq_config_keys {
    const json_t *root;
    const char *what;
    struct aq_err *reterr;
};

/* 1 to max; there is no default, because a guessed size only fails later and less clearly. */
int aq_config_size(const struct aq_config_keys *keys, const char *key, uint32_t max, uint32_t *ret);
/* The same; `deflt` where the key is absent or null. */
int aq_config_size_or(const struct aq_config_keys *keys, const char *key, uint32_t deflt,
                      uint32_t max, uint32_t *ret);
int aq_config_switch(const struct aq_config_keys *keys, const char *key, bool deflt, bool *ret);

/* Several at once. */
struct aq_config_size_key {
    const char *key;
    uint32_t max, *ret;
};
int aq_config_sizes(const struct aq_config_keys *keys, const struct aq_config_size_key *table,
                    size_t count);
struct aq_config_switch_key {
    const char *key;
    bool deflt, *ret;
};
int aq_config_switches(const struct aq_config_keys *keys, const struct aq_config_switch_key *table,
                       size_t count);
/* Heads that share hidden_size evenly, each with a key of its own: kv_heads and head_dim. */
int aq_config_even_heads(const struct aq_config_keys *keys, struct aq_model_config *c);

/* Where a value may stand: at a key of the document, or of an object in it.  Files of different
 * years have the same value in different places. */
struct aq_config_place {
    const char *object, *key; /* object NULL: the document's own key */
};
/* The value of the first place that has one, neither absent nor null, and that place; NULL where
 * none has.  -ENOEXEC with both values where two places differ. */
int aq_config_find(const struct aq_config_keys *keys, const struct aq_config_place *place,
                   size_t count, const json_t **ret, const struct aq_config_place **ret_place);
/* "expected ..., found ...", of the value at this place. */
int aq_config_wrong(const struct aq_config_keys *keys, const struct aq_config_place *place,
                    const json_t *value, const char *expected);
/* A number from min to max; `deflt` where no place has one. */
int aq_config_number(const struct aq_config_keys *keys, const struct aq_config_place *place,
                     size_t count, double min, double max, double deflt, double *ret);
/* An activation by its name in transformers' table; absent: the one named `deflt`. */
int aq_config_activation(const struct aq_config_keys *keys, const char *key, const char *deflt,
                         enum aq_activation *ret);
/* 'torch_dtype', or 'dtype' as newer files have it; AQ_DTYPE_COUNT when it says nothing usable.
 * Only a claim: the tensors themselves decide. */
int aq_config_dtype(const struct aq_config_keys *keys, enum aq_dtype *ret);
/* A token id from 0 to max; -1 (none) for null and for the -1 that some files write.  Absent:
 * `deflt`, or none where that is above max. */
int aq_config_id(const struct aq_config_keys *keys, const char *key, int32_t deflt, int64_t max,
                 int32_t *ret);
/* Adds the id of 'eos_token_id', or the list of them, to those of c; each is below c->vocab_size.
 * *ret_found: the key is there. */
int aq_config_eos(const struct aq_config_keys *keys, struct aq_model_config *c, bool *ret_found);

#endif
