/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/job/manifest_file.h"

#include "base/file.h"
#include "base/json.h"
#include "base/types.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { SCHEMA = 1, MANIFEST_BYTES_MAX = 16 << 20, DIGITS = 16 };
/* The file's own checksum, of its text with these digits all 0. */
static const char own_sum[] = "\"xxh3\": \"", no_sum[] = "0000000000000000";

/* These differ between machines and releases without making results wrong. */
static const char *const only_warned[] = {"version", "model", "backend", "isa"};

/* The digits of the checksum in the text of a manifest; NULL where it has none. */
static char *find_sum(char *text)
{
    char *last = NULL;
    for (char *at = text; (at = strstr(at, own_sum)); at++)
        last = at + sizeof(own_sum) - 1;
    return last && strlen(last) > DIGITS ? last : NULL;
}

int aq_manifest_write(const char *path, json_t *values, struct aq_err *reterr)
{
    json_t *m = json_pack("{s:i, s:b, s:o, s:s}", "schema", SCHEMA, "sums", 1, "values", values,
                          "xxh3", no_sum);
    char *text = m ? aq_json_dump(m, JSON_INDENT(1) | JSON_REAL_PRECISION(9)) : NULL;
    json_decref(m);
    if (!text)
        return aq_error_memory(reterr, "manifest '%s'", path);
    char digits[DIGITS + 1];
    snprintf(digits, sizeof(digits), "%016" PRIx64, (uint64_t)XXH3_64bits(text, strlen(text)));
    memcpy(find_sum(text), digits, DIGITS);
    int rc = aq_file_replace(path, text, strlen(text), true, reterr);
    free(text);
    return rc;
}

/* Whether the text is as it was written.  Manifests of before there were checksums have no keys
 * but these two. */
static bool is_as_written(char *text, size_t bytes, const json_t *m)
{
    char *digits = find_sum(text), found[DIGITS], want[DIGITS + 1];
    if (!digits)
        return json_object_size(m) ==
               (size_t)(!!json_object_get(m, "schema") + !!json_object_get(m, "values"));
    memcpy(found, digits, DIGITS);
    memcpy(digits, no_sum, DIGITS);
    snprintf(want, sizeof(want), "%016" PRIx64, (uint64_t)XXH3_64bits(text, bytes));
    return !memcmp(found, want, DIGITS);
}

static int read_document(json_t **ret, const char *path, struct aq_err *reterr)
{
    char *text = NULL;
    size_t bytes;
    json_t *m = NULL;
    struct aq_err err;
    if (aq_file_size(path) < 0)
        return aq_error(reterr, -EINVAL, "the manifest '%s' does not exist", path);
    int rc = aq_read_file(&text, &bytes, path, MANIFEST_BYTES_MAX, &err);
    if (rc == 0)
        rc = aq_json_parse(&m, text, bytes, false, &err);
    if (rc < 0)
        rc = aq_error(reterr, rc == -ENOMEM ? rc : -EINVAL, "manifest '%s': %s", path, err.text);
    else if (!is_as_written(text, bytes, m))
        rc = aq_error(reterr, -EINVAL,
                      "manifest '%s' is damaged or was edited (its own checksum does not agree)",
                      path);
    free(text);
    if (rc == 0)
        *ret = m;
    else
        json_decref(m);
    return rc;
}

int aq_manifest_read(json_t **ret, bool *ret_sums, const char *path, struct aq_err *reterr)
{
    json_t *m = NULL;
    int rc = read_document(&m, path, reterr);
    if (rc < 0)
        return rc;
    const json_t *schema = json_object_get(m, "schema");
    json_t *values = json_object_get(m, "values");
    if (!json_is_integer(schema) || json_integer_value(schema) != SCHEMA)
        rc = aq_error(reterr, -EINVAL,
                      "'%s': expected \"schema\": %d, found another: these results were made by "
                      "another version",
                      path, SCHEMA);
    else if (!json_is_object(values))
        rc = aq_error(reterr, -EINVAL, "'%s': expected an object \"values\", found none", path);
    else
        *ret = json_incref(values);
    if (ret_sums)
        *ret_sums = json_is_true(json_object_get(m, "sums"));
    json_decref(m);
    return rc;
}

json_t *aq_manifest_compression(enum aq_compression c)
{
    return c == AQ_PLAIN ? json_null() : json_string(aq_compression_name(c));
}

/* ---- comparing ---- */

/* Both sides through text, so that 1 and 1.0, written and read, are the same. */
bool aq_manifest_same(const json_t *a, const json_t *b)
{
    if (json_is_integer(a) && json_is_integer(b)) /* a double has too few digits for a seed */
        return json_integer_value(a) == json_integer_value(b);
    if (json_is_number(a) && json_is_number(b)) {
        double x = json_number_value(a), y = json_number_value(b);
        double limit = 1e-8 * (x < 0 ? -x : x);
        return x == y || (x - y <= limit && y - x <= limit && !json_is_integer(a));
    }
    if (!a || !b) /* what earlier versions did not know of */
        return (!a || json_is_null(a)) && (!b || json_is_null(b));
    return json_equal(a, b);
}

bool aq_manifest_may_differ(const char *key)
{
    for (size_t i = 0; i < AQ_ARRAY_LEN(only_warned); i++)
        if (!strcmp(only_warned[i], key))
            return true;
    return false;
}

bool aq_manifest_allowed(const struct aq_strings *allow_change, const char *key)
{
    for (uint32_t i = 0; i < allow_change->count; i++) {
        const char *a = allow_change->item[i], *k = key;
        if (!strcmp(a, "input") && !strncmp(key, "input_", 6) && strcmp(key, "input_format") != 0)
            return true;
        while (*a && *k && (*a == *k || (*a == '-' && *k == '_'))) {
            a++;
            k++;
        }
        if (!*a && !*k)
            return true;
    }
    return false;
}

const char *aq_manifest_text(char dst[AQ_MANIFEST_VALUE_BYTES], const json_t *value)
{
    char *dump =
        value ? aq_json_dump(value, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(9)) : NULL;
    const char *text = dump ? dump : "(nothing)";
    aq_quote(dst, AQ_MANIFEST_VALUE_BYTES, text, strlen(text));
    free(dump);
    return dst;
}
