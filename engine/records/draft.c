/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/records/request_draft.h"

#include "base/json_text.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct owned {
    struct owned *next;
    _Alignas(16) char bytes[];
};

void *aq_request_alloc(struct aq_request *r, size_t bytes)
{
    struct owned *o = malloc(sizeof(*o) + bytes);
    if (!o)
        return NULL;
    o->next = r->owned;
    r->owned = o;
    return o->bytes;
}

char *aq_request_copy(struct aq_request *r, const char *bytes, size_t count)
{
    char *copy = aq_request_alloc(r, count + 1);
    if (copy) {
        memcpy(copy, bytes, count);
        copy[count] = '\0';
    }
    return copy;
}

void aq_request_draft_close(struct aq_request *r)
{
    if (r->draft)
        json_decref(r->draft->root);
    free(r->draft);
    r->draft = NULL;
}

void aq_request_close(struct aq_request *r)
{
    if (!r)
        return;
    aq_request_draft_close(r);
    for (struct owned *o = r->owned, *next; o; o = next) {
        next = o->next;
        free(o);
    }
    free(r);
}

bool aq_request_refuse(struct aq_request *r, enum aq_record_code code, const char *param,
                       const char *format, ...)
{
    if (r->error.code)
        return false;
    r->error.code = code;
    snprintf(r->error.param, sizeof(r->error.param), "%s", param);
    char text[sizeof(r->error.message)];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    aq_quote(r->error.message, sizeof(r->error.message), text, strlen(text));
    return false;
}

const char *aq_request_type_name(const json_t *v)
{
    if (!v)
        return "nothing";
    switch (json_typeof(v)) {
    case JSON_OBJECT: return "an object";
    case JSON_ARRAY: return "a list";
    case JSON_STRING: return "a string";
    case JSON_INTEGER: return "an integer";
    case JSON_REAL: return "a number with a fraction";
    case JSON_TRUE:
    case JSON_FALSE: return "a boolean";
    default: return "null";
    }
}
