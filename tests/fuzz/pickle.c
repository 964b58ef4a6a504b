/* SPDX-License-Identifier: Apache-2.0
 * Any bytes: parsing ends, and every value that is reachable can be looked at. */
#include "engine/checkpoint/pickle.h"
#include "tests/fuzz/fuzz.h"

#include <assert.h>

static unsigned sum_bytes(const char *p, size_t n)
{
    unsigned sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += (unsigned char)p[i];
    return sum;
}

/* Containers may be shared and cyclic: `left` ends the walk. */
static unsigned look(const struct aq_pickle_value *v, unsigned depth, unsigned *left)
{
    unsigned sum = 0;
    if (depth == 0 || *left == 0)
        return 0;
    --*left;
    switch (v->kind) {
    case AQ_PICKLE_STRING:
    case AQ_PICKLE_BYTES:
    case AQ_PICKLE_BIG: return sum_bytes(v->as.text.bytes, v->as.text.length);
    case AQ_PICKLE_TUPLE:
    case AQ_PICKLE_LIST:
        for (uint32_t i = 0; i < v->count; i++)
            sum += look(v->as.items[i], depth - 1, left);
        return sum;
    case AQ_PICKLE_DICT:
        for (uint32_t i = 0; i < v->count; i++)
            sum += look(v->as.pairs[i].key, depth - 1, left) +
                   look(v->as.pairs[i].value, depth - 1, left);
        return sum;
    case AQ_PICKLE_TENSOR:
        assert(v->as.tensor->rank <= AQ_TENSOR_RANK_MAX && v->as.tensor->element);
        return v->as.tensor->rank +
               sum_bytes(v->as.tensor->storage->key, v->as.tensor->storage->key_bytes);
    default: return 1;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct aq_pickle *p;
    struct aq_err err = {0};
    size_t used = 0;
    int rc = aq_pickle_parse(&p, data, size, &used, &err);
    fuzz_check_error(rc, &err);
    if (rc < 0)
        return 0;
    unsigned left = 100000;
    assert(used > 0 && used <= size);
    volatile unsigned sink = look(aq_pickle_root(p), 64, &left);
    (void)sink;
    aq_pickle_get(aq_pickle_root(p), "little_endian");
    aq_pickle_close(p);
    return 0;
}
