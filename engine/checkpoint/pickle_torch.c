/* SPDX-License-Identifier: Apache-2.0
 * The meaning of torch.save's pickles: the names they may refer to, and the values of calls.
 * torch/_utils.py and torch/serialization.py. */
#include "engine/checkpoint/pickle_machine.h"

#include <stdlib.h>
#include <string.h>

/* ---- the names a pickle may refer to ---- */

enum global_kind {
    GLOBAL_DICT,      /* OrderedDict(), OrderedDict([[key, value], ...]) */
    GLOBAL_SIZE,      /* Size((2, 3)) */
    GLOBAL_TENSOR,    /* (storage, offset, size, stride) */
    GLOBAL_TENSOR_V2, /* ... requires_grad, hooks[, metadata] */
    GLOBAL_TENSOR_V3, /* ... requires_grad, hooks, dtype[, metadata] */
    GLOBAL_PARAMETER, /* (tensor, requires_grad, hooks) */
    GLOBAL_STORAGE,   /* a storage class */
    GLOBAL_DTYPE,     /* torch.float16: an argument of TENSOR_V3 */
};

struct aq_pickle_global {
    const char *module, *name;
    enum global_kind kind;
    const char *element; /* of a storage class or dtype; NULL: untyped */
};

static const struct aq_pickle_global globals[] = {
    {"collections", "OrderedDict", GLOBAL_DICT, NULL},
    {"torch", "Size", GLOBAL_SIZE, NULL},
    {"torch._utils", "_rebuild_tensor", GLOBAL_TENSOR, NULL},
    {"torch._utils", "_rebuild_tensor_v2", GLOBAL_TENSOR_V2, NULL},
    {"torch._utils", "_rebuild_tensor_v3", GLOBAL_TENSOR_V3, NULL},
    {"torch._utils", "_rebuild_parameter", GLOBAL_PARAMETER, NULL},
    {"torch", "FloatStorage", GLOBAL_STORAGE, "F32"},
    {"torch", "HalfStorage", GLOBAL_STORAGE, "F16"},
    {"torch", "BFloat16Storage", GLOBAL_STORAGE, "BF16"},
    {"torch", "DoubleStorage", GLOBAL_STORAGE, "F64"},
    {"torch", "LongStorage", GLOBAL_STORAGE, "I64"},
    {"torch", "IntStorage", GLOBAL_STORAGE, "I32"},
    {"torch", "ShortStorage", GLOBAL_STORAGE, "I16"},
    {"torch", "CharStorage", GLOBAL_STORAGE, "I8"},
    {"torch", "ByteStorage", GLOBAL_STORAGE, "U8"},
    {"torch", "BoolStorage", GLOBAL_STORAGE, "BOOL"},
    {"torch", "ComplexFloatStorage", GLOBAL_STORAGE, "C64"},
    {"torch", "ComplexDoubleStorage", GLOBAL_STORAGE, "C128"},
    {"torch", "UntypedStorage", GLOBAL_STORAGE, NULL},
    {"torch.storage", "UntypedStorage", GLOBAL_STORAGE, NULL},
    {"torch", "float32", GLOBAL_DTYPE, "F32"},
    {"torch", "float16", GLOBAL_DTYPE, "F16"},
    {"torch", "bfloat16", GLOBAL_DTYPE, "BF16"},
    {"torch", "float64", GLOBAL_DTYPE, "F64"},
    {"torch", "int64", GLOBAL_DTYPE, "I64"},
    {"torch", "int32", GLOBAL_DTYPE, "I32"},
    {"torch", "int16", GLOBAL_DTYPE, "I16"},
    {"torch", "int8", GLOBAL_DTYPE, "I8"},
    {"torch", "uint8", GLOBAL_DTYPE, "U8"},
    {"torch", "bool", GLOBAL_DTYPE, "BOOL"},
    {"torch", "uint16", GLOBAL_DTYPE, "U16"},
    {"torch", "uint32", GLOBAL_DTYPE, "U32"},
    {"torch", "uint64", GLOBAL_DTYPE, "U64"},
    {"torch", "float8_e5m2", GLOBAL_DTYPE, "F8_E5M2"},
    {"torch", "float8_e4m3fn", GLOBAL_DTYPE, "F8_E4M3"},
    {"torch", "float8_e5m2fnuz", GLOBAL_DTYPE, "F8_E5M2FNUZ"},
    {"torch", "float8_e4m3fnuz", GLOBAL_DTYPE, "F8_E4M3FNUZ"},
    {"torch", "float8_e8m0fnu", GLOBAL_DTYPE, "F8_E8M0"},
    {"torch", "complex64", GLOBAL_DTYPE, "C64"},
    {"torch", "complex128", GLOBAL_DTYPE, "C128"},
};

/* ---- names, calls and persistent ids ---- */

static int push_global(struct aq_pickle_machine *m, const char *module, size_t module_bytes,
                       const char *name, size_t name_bytes)
{
    for (size_t i = 0; i < AQ_ARRAY_LEN(globals); i++) {
        const struct aq_pickle_global *g = &globals[i];
        if (strlen(g->module) != module_bytes || memcmp(g->module, module, module_bytes) != 0 ||
            strlen(g->name) != name_bytes || memcmp(g->name, name, name_bytes) != 0)
            continue;
        struct aq_pickle_value *v;
        int rc = aq_pickle_push_new(m, AQ_PICKLE_GLOBAL, &v);
        if (rc == 0)
            v->as.global = g;
        return rc;
    }
    char quoted_module[128], quoted_name[128];
    return aq_pickle_malformed(
        m,
        "refers to '%s.%s'; only tensors, dicts, lists, strings and numbers are read, "
        "and nothing in a checkpoint is run",
        aq_quote(quoted_module, sizeof(quoted_module), module, module_bytes),
        aq_quote(quoted_name, sizeof(quoted_name), name, name_bytes));
}

/* A line of GLOBAL: up to a newline, which is consumed and not counted. */
static int fetch_line(struct aq_pickle_machine *m, const char **ret, size_t *ret_bytes)
{
    const uint8_t *line = m->bytes + m->at;
    const uint8_t *end = memchr(line, '\n', m->size - m->at);
    if (!end)
        return aq_pickle_malformed(m, "the pickle ends early: expected the name of a global");
    *ret = (const char *)line;
    *ret_bytes = (size_t)(end - line);
    m->at += *ret_bytes + 1;
    return 0;
}

int aq_pickle_op_global(struct aq_pickle_machine *m)
{
    const char *module = NULL, *name = NULL;
    size_t module_bytes = 0, name_bytes = 0;
    int rc = fetch_line(m, &module, &module_bytes);
    if (rc == 0)
        rc = fetch_line(m, &name, &name_bytes);
    return rc < 0 ? rc : push_global(m, module, module_bytes, name, name_bytes);
}

int aq_pickle_op_stack_global(struct aq_pickle_machine *m)
{
    struct aq_pickle_value *name, *module;
    int rc = aq_pickle_pop(m, &name);
    if (rc == 0)
        rc = aq_pickle_pop(m, &module);
    if (rc < 0)
        return rc;
    if (name->kind != AQ_PICKLE_STRING || module->kind != AQ_PICKLE_STRING)
        return aq_pickle_malformed(m, "a global whose name is no string");
    return push_global(m, module->as.text.bytes, module->as.text.length, name->as.text.bytes,
                       name->as.text.length);
}

static bool is_sequence(const struct aq_pickle_value *v)
{
    return v->kind == AQ_PICKLE_TUPLE || v->kind == AQ_PICKLE_LIST;
}

static bool is_size(const struct aq_pickle_value *v)
{
    return v->kind == AQ_PICKLE_INT && v->as.integer >= 0;
}

static bool read_sizes(const struct aq_pickle_value *v, uint64_t *ret, uint32_t *ret_count)
{
    if (!is_sequence(v) || v->count > AQ_TENSOR_RANK_MAX)
        return false;
    for (uint32_t i = 0; i < v->count; i++) {
        if (!is_size(v->as.items[i]))
            return false;
        ret[i] = (uint64_t)v->as.items[i]->as.integer;
    }
    *ret_count = v->count;
    return true;
}

static int rebuild_tensor(struct aq_pickle_machine *m, enum global_kind kind,
                          const struct aq_pickle_value *args)
{
    static const struct {
        uint32_t min, max;
    } counts[] = {
        [GLOBAL_TENSOR] = {4, 4}, [GLOBAL_TENSOR_V2] = {6, 7}, [GLOBAL_TENSOR_V3] = {7, 8}};
    if (args->count < counts[kind].min || args->count > counts[kind].max)
        return aq_pickle_malformed(m, "a tensor of %u arguments", args->count);
    const struct aq_pickle_value **arg = args->as.items;
    struct aq_pickle_tensor *t;
    int rc = aq_pickle_take(m, sizeof(*t), &t);
    if (rc < 0)
        return rc;
    uint32_t strides;
    if (arg[0]->kind != AQ_PICKLE_STORAGE || !is_size(arg[1]))
        return aq_pickle_malformed(m, "a tensor without a storage and an offset of 0 or more");
    if (!read_sizes(arg[2], t->shape, &t->rank) || !read_sizes(arg[3], t->stride, &strides) ||
        t->rank != strides)
        return aq_pickle_malformed(
            m,
            "a tensor's shape and stride: expected two equally long tuples of at "
            "most %d sizes of 0 or more",
            AQ_TENSOR_RANK_MAX);
    t->storage = arg[0]->as.storage;
    t->offset = (uint64_t)arg[1]->as.integer;
    t->element = t->storage->element;
    if (kind == GLOBAL_TENSOR_V3) {
        if (arg[6]->kind != AQ_PICKLE_GLOBAL || arg[6]->as.global->kind != GLOBAL_DTYPE)
            return aq_pickle_malformed(m, "a tensor (v3) whose dtype is none");
        t->element = aq_element_find(arg[6]->as.global->element);
    }
    if (!t->element)
        return aq_pickle_malformed(m, "a tensor over an untyped storage without a dtype");
    struct aq_pickle_value *v;
    rc = aq_pickle_push_new(m, AQ_PICKLE_TENSOR, &v);
    if (rc == 0)
        v->as.tensor = t;
    return rc;
}

/* OrderedDict(), or OrderedDict([[key, value], ...]) as Python 2 writes it. */
static int build_dict(struct aq_pickle_machine *m, const struct aq_pickle_value *args)
{
    struct aq_pickle_value *v;
    int rc = aq_pickle_push_new(m, AQ_PICKLE_DICT, &v);
    if (rc < 0 || args->count == 0)
        return rc;
    const struct aq_pickle_value *pairs = args->as.items[0];
    if (args->count != 1 || !is_sequence(pairs))
        return aq_pickle_malformed(m, "an OrderedDict: expected no argument or one list of pairs");
    for (uint32_t i = 0; i < pairs->count && rc == 0; i++) {
        const struct aq_pickle_value *pair = pairs->as.items[i];
        if (!is_sequence(pair) || pair->count != 2)
            return aq_pickle_malformed(m, "an OrderedDict: expected a list of pairs");
        rc = aq_pickle_dict_add(m, v, pair->as.items[0], pair->as.items[1]);
    }
    return rc;
}

/* REDUCE and NEWOBJ: "call" a name of the table. */
int aq_pickle_op_reduce(struct aq_pickle_machine *m)
{
    struct aq_pickle_value *args, *callee;
    int rc = aq_pickle_pop(m, &args);
    if (rc == 0)
        rc = aq_pickle_pop(m, &callee);
    if (rc < 0)
        return rc;
    if (callee->kind != AQ_PICKLE_GLOBAL || args->kind != AQ_PICKLE_TUPLE)
        return aq_pickle_malformed(
            m, "calls something that is no name with something that is no tuple");
    const struct aq_pickle_global *g = callee->as.global;
    switch (g->kind) {
    case GLOBAL_DICT: return build_dict(m, args);
    case GLOBAL_TENSOR:
    case GLOBAL_TENSOR_V2:
    case GLOBAL_TENSOR_V3: return rebuild_tensor(m, g->kind, args);
    case GLOBAL_SIZE:
        if (args->count != 1 || !is_sequence(args->as.items[0]))
            return aq_pickle_malformed(m, "torch.Size: expected one tuple");
        return aq_pickle_push(m, (struct aq_pickle_value *)args->as.items[0]);
    case GLOBAL_PARAMETER:
        if (args->count != 3 || args->as.items[0]->kind != AQ_PICKLE_TENSOR)
            return aq_pickle_malformed(m, "a parameter: expected a tensor and two more arguments");
        return aq_pickle_push(m, (struct aq_pickle_value *)args->as.items[0]);
    default:
        return aq_pickle_malformed(m, "calls '%s.%s', which is no function here", g->module,
                                   g->name);
    }
}

/* BUILD sets attributes of an object, such as a state dict's _metadata: nothing here has any. */
int aq_pickle_op_build(struct aq_pickle_machine *m)
{
    struct aq_pickle_value *state;
    int rc = aq_pickle_pop(m, &state);
    if (rc < 0)
        return rc;
    if (aq_pickle_above_mark(m) == 0)
        return aq_pickle_malformed(m, "the stack is empty where a value is needed");
    enum aq_pickle_kind kind = m->stack[m->depth - 1]->kind;
    if (kind != AQ_PICKLE_DICT && kind != AQ_PICKLE_TENSOR)
        return aq_pickle_malformed(m, "sets attributes of something that is no dict or tensor");
    return 0;
}

/* Legacy views: (view key, offset, size), in elements of the root storage. */
static int read_view(struct aq_pickle_machine *m, const struct aq_pickle_value *view,
                     struct aq_pickle_storage *s)
{
    uint64_t end;
    if (view->kind == AQ_PICKLE_NONE)
        return 0;
    if (view->kind != AQ_PICKLE_TUPLE || view->count != 3 || !is_size(view->as.items[1]) ||
        !is_size(view->as.items[2]))
        return aq_pickle_malformed(m, "a storage view: expected (key, offset, size)");
    s->view_first = (uint64_t)view->as.items[1]->as.integer;
    s->view_numel = (uint64_t)view->as.items[2]->as.integer;
    if (aq_add_overflows(s->view_first, s->view_numel, &end) || end > s->numel)
        return aq_pickle_malformed(m, "a storage view of %llu values at %llu in a storage of %llu",
                                   (unsigned long long)s->view_numel,
                                   (unsigned long long)s->view_first, (unsigned long long)s->numel);
    return 0;
}

static int remember_storage(struct aq_pickle_machine *m, const struct aq_pickle_storage *s)
{
    struct aq_pickle *p = m->out;
    if (p->storage_count == p->storage_capacity) {
        size_t capacity = p->storage_capacity ? 2 * p->storage_capacity : 64;
        int rc = aq_pickle_charge(m, (capacity - p->storage_capacity) * sizeof(*p->storages));
        if (rc < 0)
            return rc;
        void *grown = realloc(p->storages, capacity * sizeof(*p->storages));
        if (!grown)
            return aq_error_memory(m->reterr, "%zu storages", capacity);
        p->storages = grown;
        p->storage_capacity = capacity;
    }
    p->storages[p->storage_count++] = s;
    return 0;
}

int aq_pickle_op_persistent_id(struct aq_pickle_machine *m)
{
    struct aq_pickle_value *id;
    struct aq_pickle_storage *s;
    int rc = aq_pickle_pop(m, &id);
    if (rc == 0)
        rc = aq_pickle_take(m, sizeof(*s), &s);
    if (rc < 0)
        return rc;
    const struct aq_pickle_value **part = id->as.items;
    if (id->kind != AQ_PICKLE_TUPLE || id->count < 5 || id->count > 6 ||
        !aq_pickle_is_string(part[0], "storage") || part[1]->kind != AQ_PICKLE_GLOBAL ||
        part[1]->as.global->kind != GLOBAL_STORAGE || part[2]->kind != AQ_PICKLE_STRING ||
        !is_size(part[4]))
        return aq_pickle_malformed(
            m, "a persistent id: expected ('storage', type, key, location, size)");
    const char *element = part[1]->as.global->element;
    s->element = element ? aq_element_find(element) : NULL;
    s->key = part[2]->as.text.bytes;
    s->key_bytes = part[2]->as.text.length;
    s->numel = s->view_numel = (uint64_t)part[4]->as.integer;
    if (id->count == 6)
        rc = read_view(m, part[5], s);
    if (rc == 0)
        rc = remember_storage(m, s);
    struct aq_pickle_value *v;
    if (rc == 0)
        rc = aq_pickle_push_new(m, AQ_PICKLE_STORAGE, &v);
    if (rc == 0)
        v->as.storage = s;
    return rc;
}
