/* SPDX-License-Identifier: Apache-2.0 */
#include "base/json.h"

#include "base/buf.h"
#include "base/file.h"

#include <assert.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int aq_read_file(char **ret, size_t *ret_bytes, const char *path, size_t bytes_max,
                 struct aq_err *reterr)
{
    /* a pipe is refused, not awaited */
    int fd = aq_file_open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK, 0);
    if (fd < 0)
        return aq_error(reterr, fd, "open '%s': %s", path, strerror(-fd));
    struct stat st;
    int rc = 0;
    char *text = NULL;
    if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode)) {
        rc = aq_error(reterr, -ENOEXEC, "'%s': expected a regular file", path);
        goto out;
    }
    if ((uint64_t)st.st_size > bytes_max) {
        rc = aq_error(reterr, -ENOEXEC, "'%s': expected at most %zu bytes, found %lld", path,
                      bytes_max, (long long)st.st_size);
        goto out;
    }
    size_t size = (size_t)st.st_size, have = 0;
    text = malloc(size + 1);
    if (!text) {
        rc = aq_error_memory(reterr, "'%s': %zu bytes", path, size);
        goto out;
    }
    while (have < size) {
        ssize_t n = aq_file_read(fd, text + have, size - have);
        if (n <= 0) {
            rc = aq_error(reterr, n < 0 ? (int)n : -EIO, "read '%s' at byte %zu of %zu: %s", path,
                          have, size, n < 0 ? strerror((int)-n) : "the file ends early");
            goto out;
        }
        have += (size_t)n;
    }
    text[size] = '\0';
    *ret = text;
    *ret_bytes = size;
    text = NULL;
out:
    free(text);
    close(fd);
    return rc;
}

int aq_json_read_file(json_t **ret, const char *path, size_t bytes_max, struct aq_err *reterr)
{
    char *text;
    size_t bytes;
    int rc = aq_read_file(&text, &bytes, path, bytes_max, reterr);
    if (rc < 0)
        return rc;
    rc = aq_json_parse(ret, text, bytes, false, reterr);
    free(text);
    return rc < 0 ? aq_error_prefix(reterr, "'%s'", path) : 0;
}

/* What a value is, for messages: "found a string". */
static const char *type_name(const json_t *v)
{
    switch (json_typeof(v)) {
    case JSON_OBJECT: return "an object";
    case JSON_ARRAY: return "a list";
    case JSON_STRING: return "a string";
    case JSON_INTEGER: return "an integer";
    case JSON_REAL: return "a real number";
    case JSON_NULL: return "null";
    default: return "true or false";
    }
}

int aq_json_get_u64(const json_t *object, const char *key, uint64_t deflt, uint64_t max,
                    const char *what, uint64_t *ret, struct aq_err *reterr)
{
    const json_t *v = json_object_get(object, key);
    if (!v || json_is_null(v)) {
        *ret = deflt;
        return 0;
    }
    double real = json_is_real(v) ? json_real_value(v) : 0;
    bool whole = json_is_real(v) && real >= 0 && real <= 9007199254740992.0 && floor(real) == real;
    if (!json_is_integer(v) && !whole)
        return aq_error(reterr, -ENOEXEC, "%s: '%s': expected an integer, found %s", what, key,
                        type_name(v));
    json_int_t i = whole ? (json_int_t)real : json_integer_value(v);
    if (i < 0 || (uint64_t)i > max)
        return aq_error(reterr, -ENOEXEC, "%s: '%s': expected 0 to %llu, found %lld", what, key,
                        (unsigned long long)max, (long long)i);
    *ret = (uint64_t)i;
    return 0;
}

int aq_json_get_bool(const json_t *object, const char *key, bool deflt, const char *what, bool *ret,
                     struct aq_err *reterr)
{
    const json_t *v = json_object_get(object, key);
    if (v && !json_is_null(v) && !json_is_boolean(v))
        return aq_error(reterr, -ENOEXEC, "%s: '%s': expected true or false, found %s", what, key,
                        type_name(v));
    *ret = !v || json_is_null(v) ? deflt : json_is_true(v);
    return 0;
}

int aq_json_get_string(const json_t *object, const char *key, const char *deflt, const char *what,
                       const char **ret, struct aq_err *reterr)
{
    const json_t *v = json_object_get(object, key);
    if (v && !json_is_null(v) && !json_is_string(v))
        return aq_error(reterr, -ENOEXEC, "%s: '%s': expected a string, found %s", what, key,
                        type_name(v));
    *ret = !v || json_is_null(v) ? deflt : json_string_value(v);
    return 0;
}

json_t *aq_json_real(double x)
{
    return isfinite(x) ? json_real(x) : json_null();
}

json_t *aq_json_string(const char *text)
{
    size_t bytes = strlen(text);
    if (aq_utf8_invalid_at(text, bytes) == bytes)
        return json_stringn_nocheck(text, bytes);
    struct aq_buf b = {0};
    for (size_t at = 0; at < bytes;) {
        bool valid;
        size_t n = aq_utf8_step(text + at, bytes - at, &valid);
        if (valid)
            aq_buf_put(&b, text + at, n);
        else
            aq_buf_puts(&b, "\xef\xbf\xbd");
        at += n;
    }
    json_t *v = b.failed ? NULL : json_stringn_nocheck(b.data, b.count);
    aq_buf_close(&b);
    return v;
}

json_t *aq_json_copy(const json_t *v)
{
    json_t *copy = json_deep_copy(v);
    if (json_equal(v, copy))
        return copy;
    json_decref(copy);
    return NULL;
}

static int dump_to_buf(const char *bytes, size_t count, void *user)
{
    struct aq_buf *b = user;
    aq_buf_put(b, bytes, count);
    return b->failed ? -1 : 0;
}

char *aq_json_dump(const json_t *v, size_t flags)
{
    struct aq_buf b = {0};
    b.failed = json_dump_callback(v, dump_to_buf, &b, flags) < 0 || b.failed;
    return aq_buf_take(&b);
}

void aq_json_put(json_t **object, const char *key, json_t *value)
{
    if (json_object_set_new(*object, key, value) == 0)
        return;
    json_decref(*object);
    *object = NULL;
}

void aq_json_add(json_t **array, json_t *value)
{
    if (json_array_append_new(*array, value) == 0)
        return;
    json_decref(*array);
    *array = NULL;
}

int aq_json_replace(const char *dir, const char *name, json_t *value, struct aq_err *reterr)
{
    char *path = NULL, *text = value ? aq_json_dump(value, JSON_INDENT(1)) : NULL;
    json_decref(value);
    int rc = text && asprintf(&path, "%s/%s", dir, name) >= 0
                 ? aq_file_replace(path, text, strlen(text), true, reterr)
                 : aq_error_memory(reterr, "'%s/%s'", dir, name);
    free(text);
    free(path);
    return rc;
}
