/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model/quantised/formats.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- finding ------------------------------------------------------------------------------ */

static const struct aq_quantised_format *const formats[] = {
    &aq_quantised_fp8,  &aq_quantised_int8,   &aq_quantised_awq,
    &aq_quantised_gptq, &aq_quantised_packed,
};

static const struct aq_tensor_info *find_named(const struct aq_checkpoint *c, const char *name,
                                               const char *ending)
{
    static const char weight[] = ".weight";
    char text[AQ_TENSOR_NAME_MAX];
    size_t n = strlen(name), tail = sizeof(weight) - 1;
    if (!ending || n < tail || strcmp(name + n - tail, weight) != 0)
        return NULL;
    int length = snprintf(text, sizeof(text), "%.*s%s", (int)(n - tail), name, ending);
    return length < (int)sizeof(text) ? aq_checkpoint_find(c, text) : NULL;
}

static const struct aq_tensor_info *find_part(const struct aq_checkpoint *c, const char *name,
                                              const struct aq_quantised_part_name *part)
{
    const struct aq_tensor_info *t = find_named(c, name, part->ending);
    return t ? t : find_named(c, name, part->other);
}

/* The codes of a matrix in this form; a plain matrix of the same name is none. */
static const struct aq_tensor_info *find_codes(const struct aq_checkpoint *c, const char *name,
                                               const struct aq_quantised_format *f)
{
    const struct aq_tensor_info *t = find_part(c, name, &f->part[AQ_QUANTISED_CODES]);
    return t && !aq_dtype_is_float(t->dtype) ? t : NULL;
}

/* Zeros and order are there where the scheme says so, and the rest of the form's. */
static int find_parts(struct aq_quantised *q, const char *name, struct aq_err *reterr)
{
    const struct aq_quantised_format *f = q->scheme.format;
    for (int i = 0; i < AQ_QUANTISED_PARTS; i++) {
        const struct aq_quantised_part_name *part = &f->part[i];
        bool needed = part->ending && !part->optional;
        needed |= i == AQ_QUANTISED_ZEROS && q->scheme.zeros;
        needed |= i == AQ_QUANTISED_ORDER && q->scheme.order;
        q->part[i] = find_part(q->checkpoint, name, part);
        if (q->part[i] && !needed && i == AQ_QUANTISED_ZEROS)
            return aq_error(reterr, -ENOEXEC,
                            "tensor '%s': expected none, as config.json says that the codes are "
                            "symmetric",
                            q->part[i]->name);
        if (!q->part[i] && needed)
            return aq_error(reterr, -ENOEXEC, "tensor '%.*s%s' is missing, with which '%s' is %s",
                            (int)(strlen(name) - strlen(".weight")), name, part->ending,
                            q->part[AQ_QUANTISED_CODES]->name, f->name);
    }
    return 0;
}

/* With more than one scheme the first whose shapes fit; the complaint is the last one's. */
int aq_quantised_find(struct aq_quantised *ret, const struct aq_quantised_config *config,
                      const struct aq_checkpoint *checkpoint, const char *name, uint32_t rows,
                      uint32_t k, struct aq_err *reterr)
{
    int rc = 0;
    for (uint32_t i = 0; i < config->count; i++) {
        const struct aq_quantised_scheme *s = &config->scheme[i];
        struct aq_quantised q = {.checkpoint = checkpoint, .scheme = *s, .rows = rows, .k = k};
        if (!find_codes(checkpoint, name, s->format))
            continue;
        rc = find_parts(&q, name, reterr);
        rc = rc < 0 ? rc : s->format->check(&q, reterr);
        if (rc < 0)
            continue;
        const struct aq_tensor_info *plain = aq_checkpoint_find(checkpoint, name);
        if (plain && plain != q.part[AQ_QUANTISED_CODES])
            return aq_error(reterr, -ENOEXEC,
                            "tensor '%s': expected it or the codes of '%s', found both", name,
                            q.part[AQ_QUANTISED_CODES]->name);
        *ret = q;
        return 1;
    }
    return rc;
}

const struct aq_tensor_info *aq_quantised_stray(const struct aq_checkpoint *checkpoint,
                                                const char *name)
{
    for (size_t i = 0; i < AQ_ARRAY_LEN(formats); i++) {
        const struct aq_tensor_info *t = find_codes(checkpoint, name, formats[i]);
        if (t)
            return t;
    }
    return NULL;
}

/* ---- tensors that mean nothing here ------------------------------------------------------- */

static bool ends_with(const char *name, const char *ending)
{
    size_t n = strlen(name), end = strlen(ending);
    return n >= end && strcmp(name + n - end, ending) == 0;
}

static bool has_idle_biases(const struct aq_quantised_config *config)
{
    for (uint32_t i = 0; i < config->count; i++)
        if (config->scheme[i].format->idle_biases)
            return true;
    return false;
}

static int all_zeros(const struct aq_checkpoint *c, const struct aq_tensor_info *t,
                     struct aq_err *reterr)
{
    enum { ELEMENTS_MAX = 1 << 20 };
    if (!aq_dtype_is_float(t->dtype) || t->rank != 1 || t->elements > ELEMENTS_MAX)
        return 0;
    char *raw = malloc(t->bytes + 1);
    float *x = malloc((t->elements + 1) * sizeof(*x));
    int rc = raw && x ? aq_checkpoint_read(c, t, 0, t->shape[0], raw, reterr)
                      : aq_error_memory(reterr, "tensor '%s'", t->name);
    if (rc == 0) {
        aq_convert(x, AQ_F32, raw, t->dtype, t->elements);
        rc = 1;
    }
    for (uint64_t i = 0; rc == 1 && i < t->elements; i++)
        rc = x[i] == 0;
    free(raw);
    free(x);
    return rc;
}

int aq_quantised_is_idle(const struct aq_quantised_config *config,
                         const struct aq_checkpoint *checkpoint, const struct aq_tensor_info *t,
                         struct aq_err *reterr)
{
    static const char *const endings[] = {
        ".input_scale",  ".input_zero_point", ".activation_scale", ".input_scale_ub",
        ".output_scale", ".q_scale",          ".k_scale",          ".v_scale"};
    if (!config->count)
        return 0;
    for (size_t i = 0; i < AQ_ARRAY_LEN(endings); i++)
        if (ends_with(t->name, endings[i]))
            return 1;
    return has_idle_biases(config) && ends_with(t->name, ".bias") ? all_zeros(checkpoint, t, reterr)
                                                                  : 0;
}

/* ---- reading ------------------------------------------------------------------------------ */

int aq_quantised_read(const struct aq_quantised *q, uint32_t first, uint32_t rows, float *dst,
                      struct aq_err *reterr)
{
    assert(q->columns && rows && first + rows <= q->rows);
    return q->scheme.format->read(q, first, rows, dst, reterr);
}

/* Codes are at most a byte; a scale and a zero, twice while they are laid out, are less than
 * another even in groups of 16; and the groups of all columns. */
uint64_t aq_quantised_memory(const struct aq_quantised *q, uint32_t once, uint32_t threads)
{
    uint64_t bytes = threads * (2ull * once + 16) * q->k;
    for (int i = 0; q->scheme.format->columns && i < AQ_QUANTISED_PARTS; i++)
        bytes += q->part[i] ? aq_min_u64(q->part[i]->bytes, AQ_COLUMNS_SLOT_BYTES) : 0;
    return bytes;
}

uint64_t aq_quantised_bytes(const struct aq_quantised *q)
{
    uint64_t bytes = 0;
    for (int i = 0; i < AQ_QUANTISED_PARTS; i++)
        bytes += q->part[i] ? q->part[i]->bytes : 0;
    return bytes;
}

const char *aq_quantised_name(const struct aq_quantised *q)
{
    return q->scheme.format->name;
}

const char *aq_quantised_words(const struct aq_quantised *q, char *text, size_t bytes)
{
    const struct aq_quantised_scheme *s = &q->scheme;
    char scales[64];
    if (s->block_rows > 1)
        snprintf(scales, sizeof(scales), "blocks of %u x %u", s->block_rows, s->block_k);
    else if (s->block_k)
        snprintf(scales, sizeof(scales), "groups of %u", s->block_k);
    else
        snprintf(scales, sizeof(scales), "%s",
                 q->part[AQ_QUANTISED_SCALES]->elements == 1 ? "whole matrices" : "rows");
    if (s->format->bytes)
        snprintf(text, bytes, "%s (%s, scales of %s)", s->format->name, s->format->bytes, scales);
    else
        snprintf(text, bytes, "%s (%u bits, scales of %s)", s->format->name, s->bits, scales);
    return text;
}
