/* SPDX-License-Identifier: Apache-2.0
 * Until version 4 transformers wrote 'rope_theta' and 'rope_scaling', or names of a family's own;
 * since version 5 all is in 'rope_parameters'. */
#include "engine/model/arch/rope.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static const char *const objects[] = {"rope_parameters", "rope_scaling"};

/* A number of one of the objects, or of the document. */
struct number {
    const char *key, *outside[2]; /* NULL: in the objects alone */
    double min, max, deflt, *ret;
};

static int read_number(const struct aq_config_keys *keys, const struct number *n)
{
    const struct aq_config_place place[] = {
        {objects[0], n->key}, {objects[1], n->key}, {NULL, n->outside[0]}, {NULL, n->outside[1]}};
    size_t count = n->outside[1] ? 4 : n->outside[0] ? 3 : 2;
    return aq_config_number(keys, place, count, n->min, n->max, n->deflt, n->ret);
}

static int read_numbers(const struct aq_config_keys *keys, const struct number *table, size_t count)
{
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < count; i++)
        rc = read_number(keys, &table[i]);
    return rc;
}

static const struct {
    const char *name;
    enum aq_rotary_kind kind;
} kinds[] = {
    {"default", AQ_ROTARY_PLAIN}, {"linear", AQ_ROTARY_LINEAR}, {"dynamic", AQ_ROTARY_DYNAMIC},
    {"llama3", AQ_ROTARY_BANDS},  {"yarn", AQ_ROTARY_YARN},     {"longrope", AQ_ROTARY_LONG},
    {"su", AQ_ROTARY_LONG}, /* its older name */
};

/* The kind that a value of 'rope_type' or 'type' means. */
static int kind_of(const struct aq_config_keys *keys, const struct aq_config_place *place,
                   const json_t *value, const struct aq_rope_defaults *defaults,
                   enum aq_rotary_kind *ret)
{
    char known[160] = "";
    for (size_t i = 0; i < AQ_ARRAY_LEN(kinds); i++) {
        size_t n = strlen(known);
        if (json_is_string(value) && strcmp(json_string_value(value), kinds[i].name) == 0) {
            bool is_long = kinds[i].kind == AQ_ROTARY_YARN && defaults->yarn_is_long;
            *ret = is_long ? AQ_ROTARY_LONG : kinds[i].kind;
            return 0;
        }
        snprintf(known + n, sizeof(known) - n, "%s%s", i ? " or " : "", kinds[i].name);
    }
    return aq_config_wrong(keys, place, value, known);
}

static int read_kind(struct aq_rotary_config *r, const struct aq_config_keys *keys,
                     const struct aq_rope_defaults *defaults)
{
    static const char *const words[] = {"rope_type", "type"};
    bool scaled = false, found = false;
    r->kind = AQ_ROTARY_PLAIN;
    for (size_t i = 0; i < AQ_ARRAY_LEN(objects) * AQ_ARRAY_LEN(words); i++) {
        const struct aq_config_place place = {objects[i / 2], words[i % 2]};
        const json_t *object = json_object_get(keys->root, place.object),
                     *value = json_object_get(object, place.key);
        enum aq_rotary_kind kind = AQ_ROTARY_PLAIN;
        scaled |= json_object_get(object, "factor") != NULL;
        if (!value || json_is_null(value))
            continue;
        int rc = kind_of(keys, &place, value, defaults, &kind);
        if (rc < 0)
            return rc;
        if (found && kind != r->kind)
            return aq_config_wrong(keys, &place, value, "the type that is given elsewhere as well");
        r->kind = kind;
        found = true;
    }
    if (scaled && !found)
        return aq_error(keys->reterr, -ENOEXEC,
                        "%s: 'rope_scaling': expected a 'rope_type' beside 'factor', found none",
                        keys->what);
    return 0;
}

/* Objects of objects have a set of numbers for each type of layers. */
static int check_objects(const struct aq_config_keys *keys)
{
    for (size_t i = 0; i < AQ_ARRAY_LEN(objects); i++) {
        json_t *object = json_object_get(keys->root, objects[i]), *value;
        const char *key;
        if (object && !json_is_null(object) && !json_is_object(object))
            return aq_config_wrong(keys, &(struct aq_config_place){NULL, objects[i]}, object,
                                   "an object");
        json_object_foreach(object, key, value)
        {
            if (json_is_object(value))
                return aq_config_wrong(keys, &(struct aq_config_place){objects[i], key}, value,
                                       "one set of numbers for all layers");
        }
    }
    return 0;
}

static int read_factors(double *ret, uint32_t pairs, const struct aq_config_keys *keys,
                        const char *key)
{
    const struct aq_config_place place[] = {{objects[0], key}, {objects[1], key}}, *at = &place[1];
    const json_t *list;
    char expected[80];
    int rc = aq_config_find(keys, place, AQ_ARRAY_LEN(place), &list, &at);
    if (rc < 0)
        return rc;
    snprintf(expected, sizeof(expected), "%u numbers above 0, one for each pair that turns", pairs);
    if (json_array_size(list) != pairs || pairs > AQ_CONFIG_TURNS_MAX)
        return aq_config_wrong(keys, at, list, expected);
    for (uint32_t i = 0; i < pairs; i++) {
        ret[i] = json_number_value(json_array_get(list, i));
        if (!(ret[i] >= 1e-6 && ret[i] <= 1e6))
            return aq_config_wrong(keys, at, json_array_get(list, i), expected);
    }
    return 0;
}

static int read_original(struct aq_rotary_config *r, const struct aq_config_keys *keys,
                         uint32_t deflt)
{
    double original;
    const struct number n = {.key = "original_max_position_embeddings",
                             .outside = {"original_max_position_embeddings"},
                             .min = 2,
                             .max = AQ_CONFIG_POSITIONS_MAX,
                             .deflt = deflt,
                             .ret = &original};
    int rc = read_number(keys, &n);
    r->original = rc < 0 ? 0 : (uint32_t)original;
    return rc;
}

/* What each kind has beyond the base. */
static int read_stretch(struct aq_rotary_config *r, const struct aq_config_keys *keys,
                        uint32_t original)
{
    const struct number factor = {"factor", {NULL}, 1, 1e6, 0, &r->factor};
    const struct number attention = {"attention_factor", {NULL}, 1e-6, 1e6, 0, &r->attention};
    const struct number bands[] = {{"low_freq_factor", {NULL}, 1e-6, 1e6, 0, &r->low},
                                   {"high_freq_factor", {NULL}, 1e-6, 1e6, 0, &r->high}};
    const struct number yarn[] = {attention,
                                  {"beta_fast", {NULL}, 1e-6, 1e6, 32, &r->beta_fast},
                                  {"beta_slow", {NULL}, 1e-6, 1e6, 1, &r->beta_slow},
                                  {"mscale", {NULL}, 0, 1e6, 0, &r->mscale},
                                  {"mscale_all_dim", {NULL}, 0, 1e6, 0, &r->mscale_all_dim}};
    int rc = read_number(keys, &factor);
    bool known = r->kind == AQ_ROTARY_YARN || r->kind == AQ_ROTARY_LONG; /* it may follow */
    if (rc == 0 && !known && r->factor == 0)
        return aq_error(keys->reterr, -ENOEXEC,
                        "%s: 'rope_scaling.factor': expected a number from 1 to 1e+06, found "
                        "nothing",
                        keys->what);
    if (rc == 0 && r->kind != AQ_ROTARY_LINEAR && r->kind != AQ_ROTARY_DYNAMIC)
        rc = read_original(r, keys, original);
    if (rc == 0 && r->kind == AQ_ROTARY_BANDS) {
        rc = read_numbers(keys, bands, AQ_ARRAY_LEN(bands));
        if (rc == 0 && !(r->low > 0 && r->low < r->high))
            rc = aq_error(keys->reterr, -ENOEXEC,
                          "%s: 'rope_scaling': expected a 'low_freq_factor' below "
                          "'high_freq_factor', found %g and %g",
                          keys->what, r->low, r->high);
    }
    if (rc == 0 && r->kind == AQ_ROTARY_YARN)
        rc = read_numbers(keys, yarn, AQ_ARRAY_LEN(yarn));
    if (rc == 0 && r->kind == AQ_ROTARY_LONG)
        rc = read_number(keys, &attention);
    return rc;
}

static int read_truncate(struct aq_rotary_config *r, const struct aq_config_keys *keys)
{
    const struct aq_config_place place[] = {{objects[0], "truncate"}, {objects[1], "truncate"}},
                                 *at;
    const json_t *value;
    int rc = aq_config_find(keys, place, AQ_ARRAY_LEN(place), &value, &at);
    if (rc == 0 && value && !json_is_boolean(value))
        rc = aq_config_wrong(keys, at, value, "true or false");
    r->truncate = rc == 0 && !json_is_false(value);
    return rc;
}

/* How many values of a head turn, and how fast. */
static int read_base(struct aq_model_config *c, const struct aq_config_keys *keys,
                     const struct aq_rope_defaults *defaults)
{
    struct aq_rotary_config *r = &c->rotary;
    double share;
    const struct number base[] = {
        {"rope_theta", {"rope_theta", "rotary_emb_base"}, 2, 1e18, 10000, &r->theta},
        {"partial_rotary_factor",
         {"partial_rotary_factor", "rotary_pct"},
         0,
         1,
         defaults->share > 0 ? defaults->share : 1,
         &share},
    };
    int rc = read_numbers(keys, base, AQ_ARRAY_LEN(base));
    if (rc < 0)
        return rc;
    r->dims = (uint32_t)(c->head_dim * share);
    if (r->dims < 2 || r->dims % 2 != 0)
        return aq_error(keys->reterr, -ENOEXEC,
                        "%s: 'partial_rotary_factor': expected an even number of each head's %u "
                        "values to turn, found %u",
                        keys->what, c->head_dim, r->dims);
    return 0;
}

int aq_rope_read(struct aq_model_config *c, const struct aq_config_keys *keys,
                 const struct aq_rope_defaults *defaults)
{
    struct aq_rotary_config *r = &c->rotary;
    assert(c->head_dim && c->max_positions);
    int rc = check_objects(keys);
    rc = rc < 0 ? rc : read_kind(r, keys, defaults);
    rc = rc < 0 ? rc : read_base(c, keys, defaults);
    if (rc < 0 || r->kind == AQ_ROTARY_PLAIN)
        return rc;
    uint32_t original = defaults->original ? defaults->original : c->max_positions;
    rc = read_stretch(r, keys, original);
    if (rc == 0 && r->kind == AQ_ROTARY_LONG)
        rc = read_factors(r->short_factor, r->dims / 2, keys, "short_factor");
    if (rc == 0 && r->kind == AQ_ROTARY_LONG)
        rc = read_factors(r->long_factor, r->dims / 2, keys, "long_factor");
    if (rc == 0 && r->kind == AQ_ROTARY_YARN)
        rc = read_truncate(r, keys);
    if (rc == 0 && r->kind == AQ_ROTARY_YARN && r->factor > 0)
        c->max_positions = (uint32_t)fmin(fmax(c->max_positions, r->factor * r->original),
                                          AQ_CONFIG_POSITIONS_MAX);
    return rc;
}
