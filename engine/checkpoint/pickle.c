/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/checkpoint/pickle.h"

#include "engine/checkpoint/pickle_machine.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static int push_bool(struct aq_pickle_machine *m, bool boolean)
{
    struct aq_pickle_value *v;
    int rc = aq_pickle_push_new(m, AQ_PICKLE_BOOL, &v);
    if (rc == 0)
        v->as.boolean = boolean;
    return rc;
}

static int push_int(struct aq_pickle_machine *m, int64_t integer)
{
    struct aq_pickle_value *v;
    int rc = aq_pickle_push_new(m, AQ_PICKLE_INT, &v);
    if (rc == 0)
        v->as.integer = integer;
    return rc;
}

/* Removes the mark; *ret_first is the stack index of the first item above it. */
static int pop_mark(struct aq_pickle_machine *m, size_t *ret_first)
{
    if (m->mark_count == 0)
        return aq_pickle_malformed(m, "no mark where one is needed");
    *ret_first = m->marks[--m->mark_count];
    return 0;
}

static int push_mark(struct aq_pickle_machine *m)
{
    if (m->mark_count == AQ_PICKLE_STACK_MAX)
        return aq_pickle_malformed(m, "expected at most %d marks", AQ_PICKLE_STACK_MAX);
    if (m->mark_count == m->mark_capacity) {
        size_t capacity = m->mark_capacity ? 2 * m->mark_capacity : 64;
        void *grown = realloc(m->marks, capacity * sizeof(*m->marks));
        if (!grown)
            return aq_error_memory(m->reterr, "%zu marks", capacity);
        m->marks = grown;
        m->mark_capacity = capacity;
    }
    m->marks[m->mark_count++] = m->depth;
    return 0;
}

/* ---- literals ---- */

static int fetch(struct aq_pickle_machine *m, uint64_t n, const uint8_t **ret)
{
    if (n > m->size - m->at)
        return aq_pickle_malformed(m, "the pickle ends early: expected %llu more bytes, found %zu",
                                   (unsigned long long)n, m->size - m->at);
    *ret = m->bytes + m->at;
    m->at += n;
    return 0;
}

/* An unsigned little-endian number of n <= 8 bytes. */
static int fetch_le(struct aq_pickle_machine *m, unsigned n, uint64_t *ret)
{
    const uint8_t *p;
    int rc = fetch(m, n, &p);
    if (rc < 0)
        return rc;
    *ret = 0;
    for (unsigned i = n; i-- > 0;)
        *ret = *ret << 8 | p[i];
    return 0;
}

static int push_unsigned(struct aq_pickle_machine *m, unsigned n)
{
    uint64_t value = 0;
    int rc = fetch_le(m, n, &value);
    return rc < 0 ? rc : push_int(m, (int64_t)value);
}

static int push_int32(struct aq_pickle_machine *m)
{
    uint64_t value = 0;
    int rc = fetch_le(m, 4, &value);
    return rc < 0 ? rc : push_int(m, (int32_t)(uint32_t)value);
}

/* LONG1, LONG4: two's complement of any length. */
static int push_long(struct aq_pickle_machine *m, unsigned length_bytes)
{
    uint64_t n = 0, value = 0;
    const uint8_t *p = NULL;
    int rc = fetch_le(m, length_bytes, &n);
    if (rc == 0)
        rc = fetch(m, n, &p); /* LONG4's length is signed: a negative one does not fit the pickle */
    if (rc < 0)
        return rc;
    if (n <= 8) {
        for (unsigned i = 0; i < 8; i++) {
            uint64_t fill = n && p[n - 1] & 0x80 ? 0xff : 0;
            value |= (i < n ? p[i] : fill) << 8 * i;
        }
        return push_int(m, (int64_t)value);
    }
    struct aq_pickle_value *v;
    rc = aq_pickle_push_new(m, AQ_PICKLE_BIG, &v);
    if (rc < 0)
        return rc;
    v->as.text.bytes = (const char *)p;
    v->as.text.length = n;
    return 0;
}

/* BINFLOAT is the one big-endian number. */
static int push_float(struct aq_pickle_machine *m)
{
    const uint8_t *p;
    struct aq_pickle_value *v;
    int rc = fetch(m, 8, &p);
    if (rc == 0)
        rc = aq_pickle_push_new(m, AQ_PICKLE_FLOAT, &v);
    if (rc < 0)
        return rc;
    uint64_t bits = 0;
    for (unsigned i = 0; i < 8; i++)
        bits = bits << 8 | p[i];
    memcpy(&v->as.real, &bits, sizeof(bits));
    return 0;
}

static int push_text(struct aq_pickle_machine *m, enum aq_pickle_kind kind, unsigned length_bytes)
{
    uint64_t n = 0;
    const uint8_t *p = NULL;
    struct aq_pickle_value *v = NULL;
    int rc = fetch_le(m, length_bytes, &n);
    if (rc == 0)
        rc = fetch(m, n, &p);
    if (rc == 0)
        rc = aq_pickle_push_new(m, kind, &v);
    if (rc < 0)
        return rc;
    v->as.text.bytes = (const char *)p;
    v->as.text.length = n;
    return 0;
}

/* ---- containers ---- */

static int list_add(struct aq_pickle_machine *m, struct aq_pickle_value *list,
                    const struct aq_pickle_value *item)
{
    void *items = list->as.items;
    int rc = aq_pickle_grow(m, &items, list->count, sizeof(*list->as.items));
    if (rc < 0)
        return rc;
    list->as.items = items;
    list->as.items[list->count++] = item;
    return 0;
}

/* Replaces the topmost n values by a tuple of them. */
static int make_tuple(struct aq_pickle_machine *m, size_t n)
{
    if (n > aq_pickle_above_mark(m))
        return aq_pickle_malformed(m, "a tuple of %zu values, but the stack holds %zu", n,
                                   aq_pickle_above_mark(m));
    struct aq_pickle_value *v;
    int rc = aq_pickle_take(m, sizeof(*v), &v);
    if (rc == 0 && n)
        rc = aq_pickle_take(m, n * sizeof(*v->as.items), &v->as.items);
    if (rc < 0)
        return rc;
    v->kind = AQ_PICKLE_TUPLE;
    v->count = (uint32_t)n;
    m->depth -= n;
    if (n)
        memcpy(v->as.items, m->stack + m->depth, n * sizeof(*v->as.items));
    return aq_pickle_push(m, v);
}

static int make_tuple_from_mark(struct aq_pickle_machine *m)
{
    size_t first = 0;
    int rc = pop_mark(m, &first);
    return rc < 0 ? rc : make_tuple(m, m->depth - first);
}

/* The container on top of the stack, below `first` when items lie above it. */
static int container_below(struct aq_pickle_machine *m, size_t first, enum aq_pickle_kind kind,
                           struct aq_pickle_value **ret)
{
    size_t floor = m->mark_count ? m->marks[m->mark_count - 1] : 0;
    if (first <= floor || m->stack[first - 1]->kind != kind)
        return aq_pickle_malformed(m, "items are added to something that is no %s",
                                   kind == AQ_PICKLE_LIST ? "list" : "dict");
    *ret = m->stack[first - 1];
    return 0;
}

/* Moves the values from stack index `first` on into the container below them. */
static int add_items(struct aq_pickle_machine *m, size_t first, enum aq_pickle_kind kind)
{
    struct aq_pickle_value *to;
    int rc = container_below(m, first, kind, &to);
    if (rc < 0)
        return rc;
    bool pairs = kind == AQ_PICKLE_DICT;
    if (pairs && (m->depth - first) % 2 != 0)
        return aq_pickle_malformed(m, "a dict is given a key without a value");
    for (size_t i = first; i < m->depth && rc == 0; i += pairs ? 2 : 1)
        rc = pairs ? aq_pickle_dict_add(m, to, m->stack[i], m->stack[i + 1])
                   : list_add(m, to, m->stack[i]);
    m->depth = first;
    return rc;
}

static int add_items_from_mark(struct aq_pickle_machine *m, enum aq_pickle_kind kind)
{
    size_t first = 0;
    int rc = pop_mark(m, &first);
    return rc < 0 ? rc : add_items(m, first, kind);
}

/* APPEND and SETITEM: the topmost n values. */
static int add_top(struct aq_pickle_machine *m, size_t n, enum aq_pickle_kind kind)
{
    if (aq_pickle_above_mark(m) < n)
        return aq_pickle_malformed(m, "the stack is empty where a value is needed");
    return add_items(m, m->depth - n, kind);
}

/* LIST and DICT: a new container of everything above the mark. */
static int make_from_mark(struct aq_pickle_machine *m, enum aq_pickle_kind kind)
{
    size_t first = 0;
    struct aq_pickle_value *v;
    int rc = pop_mark(m, &first);
    if (rc == 0)
        rc = aq_pickle_push_new(m, kind, &v);
    if (rc < 0)
        return rc;
    /* The new container moves below its items. */
    memmove(m->stack + first + 1, m->stack + first, (m->depth - 1 - first) * sizeof(*m->stack));
    m->stack[first] = v;
    return add_items(m, first + 1, kind);
}

/* ---- memo ---- */

static int memo_put(struct aq_pickle_machine *m, uint64_t index)
{
    if (aq_pickle_above_mark(m) == 0)
        return aq_pickle_malformed(m, "the stack is empty where a value is remembered");
    if (index >= m->size)
        return aq_pickle_malformed(m, "memo index %llu in a pickle of %zu bytes",
                                   (unsigned long long)index, m->size);
    if (index >= m->memo_capacity) {
        size_t capacity = aq_max_u64(2 * m->memo_capacity, aq_max_u64(index + 1, 256));
        int rc = aq_pickle_charge(m, (capacity - m->memo_capacity) * sizeof(*m->memo));
        if (rc < 0)
            return rc;
        struct aq_pickle_value **grown = realloc(m->memo, capacity * sizeof(*m->memo));
        if (!grown)
            return aq_error_memory(m->reterr, "memo of %zu values", capacity);
        memset(grown + m->memo_capacity, 0, (capacity - m->memo_capacity) * sizeof(*m->memo));
        m->memo = grown;
        m->memo_capacity = capacity;
    }
    m->memo_count += m->memo[index] == NULL;
    m->memo[index] = m->stack[m->depth - 1];
    return 0;
}

static int op_put(struct aq_pickle_machine *m, unsigned index_bytes)
{
    uint64_t index = 0;
    int rc = fetch_le(m, index_bytes, &index);
    return rc < 0 ? rc : memo_put(m, index);
}

static int op_get(struct aq_pickle_machine *m, unsigned index_bytes)
{
    uint64_t index = 0;
    int rc = fetch_le(m, index_bytes, &index);
    if (rc < 0)
        return rc;
    if (index >= m->memo_capacity || !m->memo[index])
        return aq_pickle_malformed(m, "memo index %llu was never set", (unsigned long long)index);
    return aq_pickle_push(m, m->memo[index]);
}

/* ---- the machine ---- */

static int op_proto(struct aq_pickle_machine *m)
{
    uint64_t version = 0;
    int rc = fetch_le(m, 1, &version);
    if (rc == 0 && (version < 2 || version > 5))
        rc =
            aq_pickle_malformed(m, "pickle protocol: expected 2 to 5, found %u", (unsigned)version);
    return rc;
}

static int op_discard(struct aq_pickle_machine *m, bool to_mark)
{
    struct aq_pickle_value *ignored;
    return to_mark ? pop_mark(m, &m->depth) : aq_pickle_pop(m, &ignored);
}

/* One opcode but STOP.  Names and codes: Python, Lib/pickletools.py.  Those of protocols 0 and 1
 * that torch.save never writes, and all that build classes, sets or buffers, are refused. */
static int step(struct aq_pickle_machine *m, uint8_t op)
{
    struct aq_pickle_value *v;
    uint64_t ignored;
    switch (op) {
    case 0x80: return op_proto(m);
    case 0x95: return fetch_le(m, 8, &ignored); /* FRAME */
    case '(': return push_mark(m);
    case '0': return op_discard(m, false);
    case '1': return op_discard(m, true);
    case 'N': return aq_pickle_push_new(m, AQ_PICKLE_NONE, &v);
    case 0x88: return push_bool(m, true);
    case 0x89: return push_bool(m, false);
    case 'J': return push_int32(m);
    case 'K': return push_unsigned(m, 1);
    case 'M': return push_unsigned(m, 2);
    case 0x8a: return push_long(m, 1);
    case 0x8b: return push_long(m, 4);
    case 'G': return push_float(m);
    case 'U': return push_text(m, AQ_PICKLE_STRING, 1);
    case 'T': return push_text(m, AQ_PICKLE_STRING, 4);
    case 0x8c: return push_text(m, AQ_PICKLE_STRING, 1);
    case 'X': return push_text(m, AQ_PICKLE_STRING, 4);
    case 0x8d: return push_text(m, AQ_PICKLE_STRING, 8);
    case 'C': return push_text(m, AQ_PICKLE_BYTES, 1);
    case 'B': return push_text(m, AQ_PICKLE_BYTES, 4);
    case 0x8e: return push_text(m, AQ_PICKLE_BYTES, 8);
    case ')': return make_tuple(m, 0);
    case 0x85: return make_tuple(m, 1);
    case 0x86: return make_tuple(m, 2);
    case 0x87: return make_tuple(m, 3);
    case 't': return make_tuple_from_mark(m);
    case ']': return aq_pickle_push_new(m, AQ_PICKLE_LIST, &v);
    case 'l': return make_from_mark(m, AQ_PICKLE_LIST);
    case 'a': return add_top(m, 1, AQ_PICKLE_LIST);
    case 'e': return add_items_from_mark(m, AQ_PICKLE_LIST);
    case '}': return aq_pickle_push_new(m, AQ_PICKLE_DICT, &v);
    case 'd': return make_from_mark(m, AQ_PICKLE_DICT);
    case 's': return add_top(m, 2, AQ_PICKLE_DICT);
    case 'u': return add_items_from_mark(m, AQ_PICKLE_DICT);
    case 'q': return op_put(m, 1);
    case 'r': return op_put(m, 4);
    case 0x94: return memo_put(m, m->memo_count);
    case 'h': return op_get(m, 1);
    case 'j': return op_get(m, 4);
    case 'c': return aq_pickle_op_global(m);
    case 0x93: return aq_pickle_op_stack_global(m);
    case 'R':
    case 0x81: return aq_pickle_op_reduce(m);
    case 'b': return aq_pickle_op_build(m);
    case 'Q': return aq_pickle_op_persistent_id(m);
    default: return aq_pickle_malformed(m, "opcode 0x%02x is not one that torch.save writes", op);
    }
}

/* Every opcode consumes at least one byte, so the loop runs at most `size` times. */
static int run(struct aq_pickle_machine *m)
{
    for (;;) {
        size_t start = m->at;
        const uint8_t *op;
        int rc = fetch(m, 1, &op);
        if (rc == 0 && *op == '.') {
            struct aq_pickle_value *root;
            rc = m->mark_count ? aq_pickle_malformed(m, "ends inside a tuple or a list of items")
                               : aq_pickle_pop(m, &root);
            if (rc == 0) {
                m->out->root = root;
                return 0;
            }
        } else if (rc == 0) {
            rc = step(m, *op);
        }
        if (rc < 0) {
            aq_error_prefix(m->reterr, "pickle, byte %zu", start);
            return rc;
        }
    }
}

int aq_pickle_parse(struct aq_pickle **ret, const uint8_t *bytes, size_t size, size_t *ret_used,
                    struct aq_err *reterr)
{
    assert(ret && bytes && ret_used);
    struct aq_pickle_machine m = {.bytes = bytes, .size = size, .reterr = reterr};
    if (size > AQ_PICKLE_BYTES_MAX)
        m.size = AQ_PICKLE_BYTES_MAX; /* what lies behind must not be needed */
    m.out = calloc(1, sizeof(*m.out));
    if (!m.out)
        return aq_error_memory(reterr, "pickle of %zu bytes", size);
    int rc = run(&m);
    free(m.stack);
    free(m.memo);
    free(m.marks);
    if (rc < 0) {
        aq_pickle_close(m.out);
        return rc;
    }
    *ret = m.out;
    *ret_used = m.at;
    return 0;
}

void aq_pickle_close(struct aq_pickle *p)
{
    if (!p)
        return;
    for (struct aq_pickle_chunk *c = p->chunks, *next; c; c = next) {
        next = c->next;
        free(c);
    }
    free(p->storages);
    free(p);
}

const struct aq_pickle_value *aq_pickle_root(const struct aq_pickle *p)
{
    return p->root;
}

const struct aq_pickle_value *aq_pickle_get(const struct aq_pickle_value *v, const char *key)
{
    if (v->kind != AQ_PICKLE_DICT)
        return NULL;
    for (uint32_t i = v->count; i-- > 0;) /* the last of equal keys counts, as in Python */
        if (aq_pickle_is_string(v->as.pairs[i].key, key))
            return v->as.pairs[i].value;
    return NULL;
}

size_t aq_pickle_storage_count(const struct aq_pickle *p)
{
    return p->storage_count;
}

const struct aq_pickle_storage *aq_pickle_storage_at(const struct aq_pickle *p, size_t index)
{
    assert(index < p->storage_count);
    return p->storages[index];
}
