/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/checkpoint/pickle_machine.h"

#include <stdlib.h>
#include <string.h>

int aq_pickle_charge(struct aq_pickle_machine *m, size_t bytes)
{
    if (bytes > AQ_PICKLE_MEMORY_MAX - m->out->memory)
        return aq_pickle_malformed(m, "its values need more than %d MiB",
                                   AQ_PICKLE_MEMORY_MAX >> 20);
    m->out->memory += bytes;
    return 0;
}

int aq_pickle_take(struct aq_pickle_machine *m, size_t bytes, void *ret)
{
    enum { CHUNK_BYTES = 1 << 16 };
    bytes = aq_align_up(bytes, 16);
    struct aq_pickle_chunk *c = m->out->chunks;
    if (!c || c->bytes - c->used < bytes) {
        size_t want = aq_max_u64(bytes, CHUNK_BYTES);
        int rc = aq_pickle_charge(m, want);
        if (rc < 0)
            return rc;
        c = calloc(1, sizeof(*c) + want);
        if (!c)
            return aq_error_memory(m->reterr, "values of a pickle of %zu bytes", m->size);
        c->bytes = want;
        c->next = m->out->chunks;
        m->out->chunks = c;
    }
    void *p = c->data + c->used;
    c->used += bytes;
    memcpy(ret, &p, sizeof(p));
    return 0;
}

int aq_pickle_push(struct aq_pickle_machine *m, struct aq_pickle_value *v)
{
    if (m->depth == AQ_PICKLE_STACK_MAX)
        return aq_pickle_malformed(m, "expected a stack of at most %d values", AQ_PICKLE_STACK_MAX);
    if (m->depth == m->stack_capacity) {
        size_t capacity = m->stack_capacity ? 2 * m->stack_capacity : 256;
        void *grown = realloc(m->stack, capacity * sizeof(*m->stack));
        if (!grown)
            return aq_error_memory(m->reterr, "stack of %zu values", capacity);
        m->stack = grown;
        m->stack_capacity = capacity;
    }
    m->stack[m->depth++] = v;
    return 0;
}

int aq_pickle_push_new(struct aq_pickle_machine *m, enum aq_pickle_kind kind,
                       struct aq_pickle_value **ret)
{
    struct aq_pickle_value *v;
    int rc = aq_pickle_take(m, sizeof(*v), &v);
    if (rc < 0)
        return rc;
    v->kind = kind;
    *ret = v;
    return aq_pickle_push(m, v);
}

size_t aq_pickle_above_mark(const struct aq_pickle_machine *m)
{
    return m->depth - (m->mark_count ? m->marks[m->mark_count - 1] : 0);
}

int aq_pickle_pop(struct aq_pickle_machine *m, struct aq_pickle_value **ret)
{
    if (aq_pickle_above_mark(m) == 0)
        return aq_pickle_malformed(m, "the stack is empty where a value is needed");
    *ret = m->stack[--m->depth];
    return 0;
}

int aq_pickle_grow(struct aq_pickle_machine *m, void **array, uint32_t count, size_t item_bytes)
{
    if (count != 0 && (count < 4 || (count & (count - 1)) != 0))
        return 0;
    if (count > UINT32_MAX / 4)
        return aq_pickle_malformed(m, "a container of more than %u items", count);
    void *p;
    int rc = aq_pickle_take(m, (count ? 2 * (size_t)count : 4) * item_bytes, &p);
    if (rc < 0)
        return rc;
    if (count)
        memcpy(p, *array, count * item_bytes);
    *array = p;
    return 0;
}

int aq_pickle_dict_add(struct aq_pickle_machine *m, struct aq_pickle_value *dict,
                       const struct aq_pickle_value *key, const struct aq_pickle_value *value)
{
    void *pairs = dict->as.pairs;
    int rc = aq_pickle_grow(m, &pairs, dict->count, sizeof(*dict->as.pairs));
    if (rc < 0)
        return rc;
    dict->as.pairs = pairs;
    dict->as.pairs[dict->count++] = (struct aq_pickle_pair){key, value};
    return 0;
}

bool aq_pickle_is_string(const struct aq_pickle_value *v, const char *text)
{
    return v->kind == AQ_PICKLE_STRING && v->as.text.length == strlen(text) &&
           memcmp(v->as.text.bytes, text, v->as.text.length) == 0;
}
