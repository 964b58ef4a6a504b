/* SPDX-License-Identifier: Apache-2.0
 * engine/chat/jinja_value.h - values while a template is rendered, and what Python does with them:
 * truth, equality, order, str(), repr(), json.dumps().  Everything lives in the arena of one
 * rendering (or in the template or the input, which outlive it) and is never changed once others
 * may see it, but for namespaces and what is left of an iterator. */
#ifndef AQ_ENGINE_CHAT_JINJA_VALUE_H
#define AQ_ENGINE_CHAT_JINJA_VALUE_H

#include "engine/chat/jinja.h"
#include "engine/chat/jinja_builtins.h"
#include "engine/chat/jinja_tree.h"

enum aq_jinja_type {
    AQ_JINJA_IS_ABSENT, /* an argument that was not given */
    AQ_JINJA_IS_UNDEFINED,
    AQ_JINJA_IS_NONE,
    AQ_JINJA_IS_BOOL,
    AQ_JINJA_IS_INTEGER,
    AQ_JINJA_IS_REAL,
    AQ_JINJA_IS_STRING,
    AQ_JINJA_IS_LIST,
    AQ_JINJA_IS_TUPLE,
    AQ_JINJA_IS_RANGE,
    AQ_JINJA_IS_VIEW,     /* dict.items() and the like: a list that has no index */
    AQ_JINJA_IS_ITERATOR, /* of a filter: can be read once */
    AQ_JINJA_IS_DICT,
    AQ_JINJA_IS_NAMESPACE,
    AQ_JINJA_IS_LOOP,
    AQ_JINJA_IS_MACRO,
    AQ_JINJA_IS_FUNCTION,
    AQ_JINJA_IS_METHOD,
};

struct aq_jinja_value {
    uint8_t type;
    /* function, method: which.  string: 1 for markup (filter safe).  undefined: the type it is an
     * attribute of, ABSENT for a name.  view: 0 items, 1 keys, 2 values. */
    uint8_t which;
    uint32_t count; /* of a string, and of the name of what is undefined: bytes */
    union {
        const char *text;
        int64_t integer; /* bool, too */
        double real;
        struct aq_jinja_list *list;
        struct aq_jinja_dict *dict; /* namespace, too */
        struct aq_jinja_loop *loop;
        const struct aq_jinja_macro *macro;
        const struct aq_jinja_value *self; /* of a method */
    };
};

/* List, tuple, range, view, iterator. */
struct aq_jinja_list {
    struct aq_jinja_value *item;
    uint32_t count, capacity;
    uint32_t at; /* iterator: the next */
};

struct aq_jinja_entry {
    struct aq_text key;
    struct aq_jinja_value value;
};

/* Keys are strings.  In the order of their coming. */
struct aq_jinja_dict {
    struct aq_jinja_entry *entry;
    uint32_t count, capacity;
};

/* The variable `loop`. */
struct aq_jinja_loop {
    const struct aq_jinja_list *items; /* the whole; `index` of it is being rendered */
    uint32_t index, depth;
    uint32_t node; /* of a recursive for, else 0 */
    struct aq_jinja_scope *outer;
    struct aq_jinja_value changed; /* what changed() saw last */
};

struct aq_jinja_scope {
    struct aq_jinja_scope *parent;
    struct aq_jinja_dict names;
    bool captured; /* by a macro: names stay as they are */
};

struct aq_jinja_macro {
    uint32_t node;
    struct aq_jinja_scope *scope; /* where it was defined */
};

struct aq_jinja_named_value {
    struct aq_text name;
    struct aq_jinja_value value;
};

struct aq_jinja_arguments {
    const struct aq_jinja_value *item;
    const struct aq_jinja_named_value *named;
    uint32_t count, named_count;
};

/* One rendering. */
struct aq_jinja_run {
    const struct aq_jinja *t;
    const struct aq_jinja_input *input;
    struct aq_arena arena;
    struct aq_jinja_scope *scope, *root;
    struct aq_buf *out;
    uint64_t steps;
    uint32_t depth, line;
    int leave; /* break or continue that is under way: its kind; 0: none */
    /* statements of a macro, or of a recursive loop's body: what expressions cannot reach */
    bool (*call_macro)(struct aq_jinja_run *r, const struct aq_jinja_macro *m,
                       const struct aq_jinja_arguments *a, struct aq_jinja_value *ret);
    bool (*call_loop)(struct aq_jinja_run *r, const struct aq_jinja_loop *loop,
                      const struct aq_jinja_value *items, struct aq_jinja_value *ret);
    struct aq_err *err;
    int rc;
};

/* ---- failing; all return false ---- */

bool aq_jinja_fail(struct aq_jinja_run *r, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* A bound was reached. */
bool aq_jinja_fail_bound(struct aq_jinja_run *r, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
bool aq_jinja_fail_memory(struct aq_jinja_run *r);
/* "'x' is undefined", as jinja2 says it. */
bool aq_jinja_fail_undefined(struct aq_jinja_run *r, const struct aq_jinja_value *v);
/* Work: one evaluation, or so many bytes of text. */
bool aq_jinja_step(struct aq_jinja_run *r);
bool aq_jinja_work(struct aq_jinja_run *r, uint64_t bytes);

/* ---- making ---- */

void *aq_jinja_take(struct aq_jinja_run *r, size_t bytes);
static inline struct aq_jinja_value aq_jinja_of_type(enum aq_jinja_type type)
{
    return (struct aq_jinja_value){.type = (uint8_t)type};
}
static inline struct aq_jinja_value aq_jinja_bool(bool x)
{
    return (struct aq_jinja_value){.type = AQ_JINJA_IS_BOOL, .integer = x};
}
static inline struct aq_jinja_value aq_jinja_integer(int64_t x)
{
    return (struct aq_jinja_value){.type = AQ_JINJA_IS_INTEGER, .integer = x};
}
static inline struct aq_jinja_value aq_jinja_real(double x)
{
    return (struct aq_jinja_value){.type = AQ_JINJA_IS_REAL, .real = x};
}
/* The bytes are borrowed and live as long as the rendering. */
static inline struct aq_jinja_value aq_jinja_string(const char *text, size_t count)
{
    return (struct aq_jinja_value){
        .type = AQ_JINJA_IS_STRING, .count = (uint32_t)count, .text = text};
}
static inline struct aq_text aq_jinja_text(const struct aq_jinja_value *v)
{
    return (struct aq_text){v->text, v->count};
}
/* Undefined: a name, or an attribute of `owner`. */
struct aq_jinja_value aq_jinja_undefined(struct aq_text name, const struct aq_jinja_value *owner);
/* A copy of what was built; the buffer is emptied. */
bool aq_jinja_from_buf(struct aq_jinja_run *r, struct aq_buf *b, struct aq_jinja_value *ret);
bool aq_jinja_new_list(struct aq_jinja_run *r, enum aq_jinja_type type, uint32_t capacity,
                       struct aq_jinja_value *ret);
bool aq_jinja_push(struct aq_jinja_run *r, struct aq_jinja_list *l, struct aq_jinja_value v);
bool aq_jinja_new_dict(struct aq_jinja_run *r, enum aq_jinja_type type, struct aq_jinja_value *ret);
bool aq_jinja_put(struct aq_jinja_run *r, struct aq_jinja_dict *d, struct aq_text key,
                  struct aq_jinja_value v);
/* NULL: there is none of that key. */
struct aq_jinja_value *aq_jinja_get(const struct aq_jinja_dict *d, struct aq_text key);
bool aq_jinja_from_json(struct aq_jinja_run *r, const json_t *json, struct aq_jinja_value *ret);

/* ---- looking ---- */

static inline bool aq_jinja_is(const struct aq_jinja_value *v, enum aq_jinja_type type)
{
    return v->type == type;
}
static inline bool aq_jinja_has_items(const struct aq_jinja_value *v)
{
    return v->type >= AQ_JINJA_IS_LIST && v->type <= AQ_JINJA_IS_ITERATOR;
}
static inline bool aq_jinja_has_index(const struct aq_jinja_value *v)
{
    return v->type >= AQ_JINJA_IS_LIST && v->type <= AQ_JINJA_IS_RANGE;
}
/* Integer or bool. */
static inline bool aq_jinja_is_whole(const struct aq_jinja_value *v)
{
    return v->type == AQ_JINJA_IS_INTEGER || v->type == AQ_JINJA_IS_BOOL;
}
static inline bool aq_jinja_is_number(const struct aq_jinja_value *v)
{
    return aq_jinja_is_whole(v) || v->type == AQ_JINJA_IS_REAL;
}
static inline double aq_jinja_as_real(const struct aq_jinja_value *v)
{
    return v->type == AQ_JINJA_IS_REAL ? v->real : (double)v->integer;
}
/* Python's name of the type. */
const char *aq_jinja_type_name(const struct aq_jinja_value *v);
bool aq_jinja_truth(const struct aq_jinja_value *v);
bool aq_jinja_equal(struct aq_jinja_run *r, const struct aq_jinja_value *a,
                    const struct aq_jinja_value *b, bool *ret);
/* *ret < 0, 0, > 0; fails where Python has no order. */
bool aq_jinja_compare(struct aq_jinja_run *r, const struct aq_jinja_value *a,
                      const struct aq_jinja_value *b, int *ret);
bool aq_jinja_contains(struct aq_jinja_run *r, const struct aq_jinja_value *container,
                       const struct aq_jinja_value *item, bool *ret);
/* What Python's iteration gives, as a list (characters of a string, keys of a dict); an iterator is
 * read to its end. */
bool aq_jinja_iterate(struct aq_jinja_run *r, const struct aq_jinja_value *v,
                      struct aq_jinja_list *ret);
/* len(). */
bool aq_jinja_length(struct aq_jinja_run *r, const struct aq_jinja_value *v, int64_t *ret);
/* Characters of valid UTF-8, and where the character of this index begins. */
size_t aq_jinja_characters(struct aq_text t);
size_t aq_jinja_offset(struct aq_text t, size_t character);

/* ---- jinja_print.c ---- */

/* str(); "" for what is undefined. */
bool aq_jinja_print(struct aq_jinja_run *r, struct aq_buf *out, const struct aq_jinja_value *v);
/* The same as a value; a string is itself. */
bool aq_jinja_str(struct aq_jinja_run *r, const struct aq_jinja_value *v,
                  struct aq_jinja_value *ret);
void aq_jinja_print_real(struct aq_buf *out, double x);

struct aq_jinja_json_opts {
    bool ascii, sort;
    struct aq_text indent; /* bytes NULL: everything in one line */
    struct aq_text item_separator, key_separator;
};
/* json.dumps(). */
bool aq_jinja_print_json(struct aq_jinja_run *r, struct aq_buf *out, const struct aq_jinja_value *v,
                         const struct aq_jinja_json_opts *opts);

/* ---- jinja_operators.c ---- */

bool aq_jinja_operate(struct aq_jinja_run *r, enum aq_jinja_operator which,
                      const struct aq_jinja_value *a, const struct aq_jinja_value *b,
                      struct aq_jinja_value *ret);
bool aq_jinja_negate(struct aq_jinja_run *r, const struct aq_jinja_value *a, bool minus,
                     struct aq_jinja_value *ret);
/* a.b and a['b']; undefined where there is nothing. */
bool aq_jinja_attribute(struct aq_jinja_run *r, const struct aq_jinja_value *object,
                        struct aq_text name, struct aq_jinja_value *ret);
bool aq_jinja_item(struct aq_jinja_run *r, const struct aq_jinja_value *object,
                   const struct aq_jinja_value *key, struct aq_jinja_value *ret);
/* a[from:to:step]; ABSENT and None stand for what is left out. */
bool aq_jinja_slice(struct aq_jinja_run *r, const struct aq_jinja_value *object,
                    const struct aq_jinja_value part[3], struct aq_jinja_value *ret);

/* ---- jinja_arguments.c ---- */

enum { AQ_JINJA_PARAMETERS_MAX = 5 };
/* Arguments by position and name into ret, in the order of the names in `parameters`, which blanks
 * separate; those not given are ABSENT.  what: of the callee, for messages. */
bool aq_jinja_bind(struct aq_jinja_run *r, const char *what, const char *parameters,
                   uint32_t required, const struct aq_jinja_arguments *a,
                   struct aq_jinja_value ret[AQ_JINJA_PARAMETERS_MAX]);
/* An argument that must be an integer; deflt where it is absent or None. */
bool aq_jinja_want_integer(struct aq_jinja_run *r, const char *what, const struct aq_jinja_value *v,
                           int64_t deflt, int64_t *ret);
/* One that must be a string. */
bool aq_jinja_want_string(struct aq_jinja_run *r, const char *what, const struct aq_jinja_value *v,
                          struct aq_text *ret);

/* ---- jinja_strings.c: what filters and methods of strings share ---- */

struct aq_text aq_jinja_strip(struct aq_text t, const struct aq_text *characters, bool left,
                              bool right);
/* Upper or lower case.  Only ASCII is changed: text with other letters is refused. */
enum aq_jinja_case {
    AQ_JINJA_UPPER,
    AQ_JINJA_LOWER,
    AQ_JINJA_CAPITAL,
    AQ_JINJA_TITLE,
    AQ_JINJA_TITLE_FILTER
};
bool aq_jinja_change_case(struct aq_jinja_run *r, struct aq_text t, enum aq_jinja_case to,
                          struct aq_jinja_value *ret);
/* count < 0: all. */
bool aq_jinja_replace(struct aq_jinja_run *r, struct aq_text t, struct aq_text old,
                      struct aq_text with, int64_t count, struct aq_jinja_value *ret);
/* Byte offset of what is searched at or behind `from`; SIZE_MAX. */
size_t aq_jinja_find(struct aq_text t, struct aq_text what, size_t from);
bool aq_jinja_split(struct aq_jinja_run *r, struct aq_text t, const struct aq_text *separator,
                    int64_t count_max, bool from_right, struct aq_jinja_value *ret);
bool aq_jinja_split_lines(struct aq_jinja_run *r, struct aq_text t, bool keep_ends,
                          struct aq_jinja_value *ret);
bool aq_jinja_join(struct aq_jinja_run *r, struct aq_text separator,
                   const struct aq_jinja_list *items, bool strings_only,
                   struct aq_jinja_value *ret);

#endif
