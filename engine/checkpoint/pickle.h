/* SPDX-License-Identifier: Apache-2.0
 * engine/checkpoint/pickle.h - a pickle reader that can only build dicts, lists, tuples, strings,
 * numbers, storages and tensors.  It executes nothing: a fixed table says which names a pickle may
 * refer to, and what each of them means here; any other name is one error.  Work and memory are
 * bounded by the pickle's length and the limits below; no recursion. Formats: Python's pickle
 * protocols 2 to 5 (Lib/pickletools.py) as far as torch.save uses them, and the persistent ids and
 * rebuild functions of torch/serialization.py and torch/_utils.py. Knows no file and no
 * container. */
#ifndef AQ_ENGINE_CHECKPOINT_PICKLE_H
#define AQ_ENGINE_CHECKPOINT_PICKLE_H

#include "base/err.h"
#include "engine/checkpoint/tensor_file.h"

enum {
    AQ_PICKLE_BYTES_MAX = 64 << 20,   /* longest pickle */
    AQ_PICKLE_MEMORY_MAX = 512 << 20, /* all values together */
    AQ_PICKLE_STACK_MAX = 1 << 20,
};

enum aq_pickle_kind {
    AQ_PICKLE_NONE,
    AQ_PICKLE_BOOL,
    AQ_PICKLE_INT,
    AQ_PICKLE_BIG, /* an integer beyond 64 bits: bytes, little-endian two's complement */
    AQ_PICKLE_FLOAT,
    AQ_PICKLE_STRING,
    AQ_PICKLE_BYTES,
    AQ_PICKLE_TUPLE,
    AQ_PICKLE_LIST,
    AQ_PICKLE_DICT,
    AQ_PICKLE_GLOBAL, /* a name of the table */
    AQ_PICKLE_STORAGE,
    AQ_PICKLE_TENSOR,
};

/* The storage that BINPERSID of ('storage', type, key, location, numel[, view]) names. */
struct aq_pickle_storage {
    const struct aq_element *element; /* NULL: untyped, numel counts bytes */
    const char *key;                  /* not NUL-terminated */
    size_t key_bytes;
    uint64_t numel;      /* of the whole storage */
    uint64_t view_first; /* legacy views: the part of it that this one is; else 0 and numel */
    uint64_t view_numel;
};

struct aq_pickle_tensor {
    const struct aq_pickle_storage *storage;
    const struct aq_element *element; /* as it is to be read; an untyped storage has none itself */
    uint64_t offset;                  /* of its first element in the view, in elements */
    uint32_t rank;
    uint64_t shape[AQ_TENSOR_RANK_MAX], stride[AQ_TENSOR_RANK_MAX];
};

struct aq_pickle_value;
struct aq_pickle_pair {
    const struct aq_pickle_value *key, *value;
};

/* Strings and bytes point into the pickle and are not NUL-terminated.  Containers may hold one
 * another in cycles: whoever walks them must bound the walk. */
struct aq_pickle_value {
    enum aq_pickle_kind kind;
    uint32_t count; /* items of a tuple or list, pairs of a dict */
    union {
        bool boolean;
        int64_t integer;
        double real;
        struct {
            const char *bytes;
            size_t length;
        } text; /* STRING, BYTES, BIG */
        const struct aq_pickle_value **items;
        struct aq_pickle_pair *pairs;
        const struct aq_pickle_global *global;
        const struct aq_pickle_storage *storage;
        const struct aq_pickle_tensor *tensor;
    } as;
};

/* One parsed pickle: its values, all freed by close. */
struct aq_pickle;

/* Parses the pickle at the start of bytes[0..size), which must outlive *ret; *ret_used is its
 * length. -ENOEXEC with the position, and the name or opcode that is not allowed. */
int aq_pickle_parse(struct aq_pickle **ret, const uint8_t *bytes, size_t size, size_t *ret_used,
                    struct aq_err *reterr);
void aq_pickle_close(struct aq_pickle *p);
const struct aq_pickle_value *aq_pickle_root(const struct aq_pickle *p);

/* Value of a string key of a dict, NULL when absent or when v is no dict. */
const struct aq_pickle_value *aq_pickle_get(const struct aq_pickle_value *v, const char *key);
bool aq_pickle_is_string(const struct aq_pickle_value *v, const char *text);

/* The storages that persistent ids named, in order, repeats included. */
size_t aq_pickle_storage_count(const struct aq_pickle *p);
const struct aq_pickle_storage *aq_pickle_storage_at(const struct aq_pickle *p, size_t index);

#endif
