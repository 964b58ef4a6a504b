/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model/model.h"

#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/store.h"
#include "engine/model/arch/arch.h"
#include "engine/model/random_weights.h"
#include "engine/model/shapes.h"
#include "engine/model/source.h"
#include "kernels/cpu/panel.h"

#include <assert.h>
#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

/* ---- open -------------------------------------------------------------------------------- */

static const char *base_name(const char *path)
{
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/')
        n--;
    size_t at = n;
    while (at > 0 && path[at - 1] != '/')
        at--;
    return path + at;
}

/* Damage to the files beside the weights is found before they are believed. */
static int verify_files(const struct aq_store *s, struct aq_err *reterr)
{
    enum { BUFFER_BYTES = 1 << 16 };
    char *buffer = malloc(BUFFER_BYTES);
    int rc = buffer ? 0 : aq_error_memory(reterr, "check of '%s'", aq_store_dir(s, 0));
    for (uint32_t i = 0; rc == 0 && i < aq_store_file_count(s); i++)
        rc = aq_store_verify_file(s, i, buffer, BUFFER_BYTES, reterr);
    free(buffer);
    return rc;
}

static int open_store(struct aq_model *m, const char *dir, struct aq_err *reterr)
{
    int rc = aq_store_open(&m->source->store, dir, reterr);
    if (rc < 0)
        return rc;
    m->hash = aq_store_identity(m->source->store);
    return m->verify ? verify_files(m->source->store, reterr) : 0;
}

static int open_dir(struct aq_model *m, const char *named, struct aq_err *reterr)
{
    char dir[PATH_MAX];
    int rc = aq_checkpoint_resolve(named, dir, sizeof(dir), reterr);
    if (rc < 0)
        return rc;
    m->source = calloc(1, sizeof(*m->source));
    if (!m->source)
        return aq_error_memory(reterr, "model source");
    aq_relaid_open(&m->source->relaid);
    snprintf(m->name, sizeof(m->name), "%s", base_name(named));
    while (m->name[0] && m->name[strlen(m->name) - 1] == '/')
        m->name[strlen(m->name) - 1] = '\0';
    if (aq_store_present(dir))
        rc = open_store(m, dir, reterr);
    rc = rc < 0 ? rc : aq_model_config_read(&m->config, dir, reterr);
    if (rc < 0 || m->source->store)
        return rc;
    rc = aq_checkpoint_open(&m->source->checkpoint, dir, reterr);
    m->hash = rc < 0 ? 0 : aq_checkpoint_hash(m->source->checkpoint);
    if (rc == 0 && m->config.quantised.count)
        rc = aq_columns_open(&m->source->columns, m->source->checkpoint, reterr);
    return rc;
}

static int open_shape(struct aq_model *m, const char *shape, uint64_t seed, struct aq_err *reterr)
{
    bool file = strchr(shape, '/') || strstr(shape, ".json");
    struct aq_err why;
    /* OWNER/NAME, as the hub has it: unless there is such a file, NAME. */
    if (file && access(shape, F_OK) != 0 &&
        aq_shape_find(&m->config, base_name(shape), NULL) == 0) {
        shape = base_name(shape);
        file = false;
    }
    int rc = file ? aq_model_config_read_file(&m->config, shape, &why)
                  : aq_shape_find(&m->config, shape, &why);
    /* A file that is no shape is a word that means nothing, as a name is that nobody knows. */
    if (rc < 0)
        return aq_error(reterr, rc == -ENOEXEC || rc == -ENOENT ? -EINVAL : rc, "%s%s",
                        file ? "--shape: " : "", why.text);
    m->random = true;
    m->random_seed = seed;
    snprintf(m->name, sizeof(m->name), "%s", base_name(shape));
    return 0;
}

/* The dtype of the matrices; f32, which holds them all, where they differ.  In a store they do not;
 * quantised ones take that of the others. */
static enum aq_dtype common_dtype(const struct aq_model *m)
{
    enum aq_dtype first = aq_source_dtype(m, m->steps.step[1].matrix[0].name),
                  dtype = AQ_DTYPE_COUNT;
    if (m->source && m->source->store)
        return first;
    for (uint32_t s = 0; s < m->steps.step_count; s++) {
        const struct aq_step_desc *d = &m->steps.step[s];
        for (uint32_t i = 0; i < d->matrix_count; i++) {
            const char *name = d->matrix[i].name;
            if (d->matrix[i].table || aq_source_is_quantised(m, name))
                continue;
            if (dtype != AQ_DTYPE_COUNT && aq_source_dtype(m, name) != dtype)
                return AQ_F32;
            dtype = aq_source_dtype(m, name);
        }
    }
    return dtype == AQ_DTYPE_COUNT ? first : dtype;
}

/* A store says what it was packed from, in words of its writer: only a hint. */
static enum aq_dtype original_dtype(const struct aq_model *m)
{
    enum aq_dtype dtype = m->checkpoint_dtype;
    if (m->source && m->source->store) {
        const json_t *name = json_object_get(aq_store_model(m->source->store), "checkpoint_dtype");
        if (json_is_string(name))
            (void)aq_dtype_parse(json_string_value(name), &dtype);
    }
    return aq_dtype_is_float(dtype) ? dtype : AQ_F16;
}

/* In the words of this engine, or of a store's writer. */
static void name_quantised(struct aq_model *m)
{
    const struct aq_store *store = aq_model_store(m);
    const json_t *v = store ? json_object_get(aq_store_model(store), "quantised") : NULL;
    const char *name = store ? json_string_value(v) : aq_source_quantised_name(m);
    if (name)
        aq_quote(m->quantised, sizeof(m->quantised), name, strlen(name));
}

const char *aq_model_rounded_from(const struct aq_model *m, enum aq_dtype format)
{
    if (format == AQ_F32 || (format == m->original_dtype && !m->quantised[0]))
        return NULL;
    return m->quantised[0] ? m->quantised : aq_dtype_name(m->original_dtype);
}

int aq_model_open(struct aq_model **ret, const struct aq_model_opts *opts, struct aq_err *reterr)
{
    assert(ret && (opts->dir || opts->shape));
    struct aq_model *m = calloc(1, sizeof(*m));
    if (!m)
        return aq_error_memory(reterr, "model");
    m->verify = opts->verify;
    int rc = opts->dir ? open_dir(m, opts->dir, reterr)
                       : open_shape(m, opts->shape, opts->random_seed, reterr);
    if (rc == 0)
        rc = aq_source_read_tie(m, opts->log, reterr);
    if (rc < 0)
        goto fail;
    rc = aq_arch_steps(&m->steps, &m->config, reterr);
    if (rc < 0)
        goto fail;
    if (m->source && (rc = aq_source_check(m, opts->log, reterr)) < 0)
        goto fail;
    if (m->random) {
        uint64_t key[] = {opts->random_seed, m->steps.parameters, m->steps.hidden, m->steps.layers,
                          m->steps.heads};
        m->hash = XXH3_64bits(key, sizeof(key));
    }
    m->checkpoint_dtype = common_dtype(m);
    m->original_dtype = original_dtype(m);
    name_quantised(m);
    *ret = m;
    return 0;
fail:
    aq_model_close(m);
    return rc;
}

static enum aq_device_memory memory_of(int tier)
{
    return tier == AQ_DEVICE ? AQ_MEMORY_DEVICE : AQ_MEMORY_PINNED;
}

void aq_model_close(struct aq_model *m)
{
    if (!m)
        return;
    if (m->device) {
        for (int t = AQ_DEVICE; t <= AQ_HOST; t++)
            aq_device_free(m->device, memory_of(t), "weights", m->weights_buffer[t],
                           m->weights_bytes[t]);
        aq_device_free(m->device, AQ_MEMORY_DEVICE, "vectors", m->vectors_buffer, m->vectors_bytes);
    }
    aq_source_close(m->source);
    free(m->weight);
    free(m->vector);
    aq_steps_close(&m->steps);
    free(m);
}

enum aq_dtype aq_model_table_dtype(const struct aq_model *m)
{
    const struct aq_step_desc *embed = &m->steps.step[0];
    for (uint32_t i = 0; i < embed->matrix_count; i++) {
        if (embed->matrix[i].table)
            return aq_source_dtype(m, embed->matrix[i].name);
    }
    return m->checkpoint_dtype;
}

struct aq_store *aq_model_store(const struct aq_model *m)
{
    return m->source ? m->source->store : NULL;
}

int aq_model_store_format(const struct aq_model *m)
{
    return m->source && m->source->store ? (int)m->checkpoint_dtype : -1;
}

/* ---- reading ----------------------------------------------------------------------------- */

int aq_model_read_rows(const struct aq_model *m, const char *canonical, uint32_t first,
                       uint32_t rows, uint32_t k, void *dst, enum aq_dtype *ret_dtype,
                       struct aq_err *reterr)
{
    if (m->random) {
        *ret_dtype = AQ_F32;
        struct aq_random_tensor t = aq_random_tensor(
            m->random_seed, canonical, m->config.arch->residual_writers, m->steps.layers);
        aq_random_rows(dst, &t, first, rows, k);
        return 0;
    }
    if (m->source->store) {
        const struct aq_store_item *item = aq_store_find(m->source->store, canonical);
        size_t row_bytes = (size_t)k * aq_dtype_bytes(item->dtype);
        assert(item->kind != AQ_STORE_MATRIX); /* panels, not rows */
        *ret_dtype = item->dtype;
        bool tile = first % AQ_PANEL_ROWS == 0 &&
                    (rows == AQ_PANEL_ROWS || (first + rows == item->rows && rows < AQ_PANEL_ROWS));
        if (m->verify && tile)
            return aq_store_read_tile(m->source->store, item, first / AQ_PANEL_ROWS, dst,
                                      rows * row_bytes, reterr);
        return aq_store_read(m->source->store, item, first * row_bytes, dst, rows * row_bytes,
                             reterr);
    }
    return aq_source_read_rows(m, canonical, first, rows, k, dst, ret_dtype, reterr);
}

/* Where a panel of f32, f16 or bf16 lies in one layout, in another: the same bits, and zeros behind
 * them. */
static void lay_out_anew(void *dst, enum aq_layout to, const void *src, enum aq_layout from,
                         enum aq_dtype dtype, uint32_t k_count)
{
    size_t size = aq_dtype_bytes(dtype);
    memset(dst, 0, aq_panel_bytes(dtype, k_count));
    for (uint32_t row = 0; row < AQ_PANEL_ROWS; row++) {
        for (uint32_t k = 0; k < k_count; k++)
            memcpy((char *)dst + aq_panel_index(to, k_count, row, k) * size,
                   (const char *)src + aq_panel_index(from, k_count, row, k) * size, size);
    }
}

/* The first bytes of 64 rows of a store's item. */
static int read_tile(const struct aq_model *m, const struct aq_store_item *item, uint32_t tile,
                     void *dst, size_t bytes, struct aq_err *reterr)
{
    const struct aq_store *store = m->source->store;
    if (m->verify)
        return aq_store_read_tile(store, item, tile, dst, bytes, reterr);
    return aq_store_read(store, item, tile * aq_store_tile_bytes(item), dst, bytes, reterr);
}

int aq_model_read_panel(const struct aq_model *m, const char *canonical, uint32_t panel,
                        enum aq_layout layout, void *dst, void *staging, struct aq_err *reterr)
{
    const struct aq_store_item *item = aq_store_find(m->source->store, canonical);
    uint32_t k = item->cols;
    size_t each = aq_panel_bytes(item->dtype, k);
    assert(item->kind == AQ_STORE_MATRIX);
    if (item->layout == layout)
        return read_tile(m, item, panel, dst, each, reterr);
    assert(aq_dtype_is_float(item->dtype)); /* codes have one layout */
    /* Without what is behind the last element, for which there may be no room. */
    size_t count = 1 + aq_panel_index(item->layout, k, AQ_PANEL_ROWS - 1, k - 1);
    int rc = read_tile(m, item, panel, staging, count * aq_dtype_bytes(item->dtype), reterr);
    if (rc == 0)
        lay_out_anew(dst, layout, staging, item->layout, item->dtype, k);
    return rc;
}

/* All ones in the exponent: infinity or NaN.  Without a branch, so that it is one wide loop. */
static bool has_infinite_f16(const void *data, size_t count)
{
    const uint16_t *v = data;
    unsigned found = 0;
    for (size_t i = 0; i < count; i++)
        found |= (v[i] & 0x7c00u) == 0x7c00u;
    return found;
}

int aq_model_check_panel(const void *panel, enum aq_dtype format, enum aq_dtype source,
                         const char *canonical, uint32_t first, uint32_t rows, uint32_t k,
                         struct aq_err *reterr)
{
    bool bad = false;
    if (format == AQ_F16 && source != AQ_F16)
        bad = has_infinite_f16(panel, aq_panel_bytes(AQ_F16, k) / 2);
    for (uint32_t at = 0; aq_dtype_is_quantised(format) && at < k; at += AQ_GROUP_K) {
        uint32_t n = (uint32_t)aq_min_u64(AQ_GROUP_K, k - at);
        const char *group = (const char *)panel + aq_panel_offset(format, at);
        bad |= has_infinite_f16(group + aq_group_code_bytes(format, n), 2 * AQ_PANEL_ROWS);
    }
    if (!bad)
        return 0;
    return aq_error(reterr, -EINVAL,
                    "tensor '%s', rows %u to %u: expected values within f16's range of 65504 for "
                    "%s, found larger ones (or infinities or NaN) in %s; bf16 and f32 hold them",
                    canonical, first, first + rows - 1, aq_dtype_name(format),
                    aq_dtype_name(source));
}

uint64_t aq_model_decoding_bytes(const struct aq_model *m, uint32_t threads)
{
    return aq_source_decoding_bytes(m, threads);
}

void aq_model_measure_panel(const struct aq_model *m, const char *canonical, const void *panel,
                            enum aq_dtype format, enum aq_layout layout, const float *values,
                            uint32_t rows, uint32_t k)
{
    struct aq_model_source *s = m->source;
    if (s && !s->store && format != AQ_F32 && aq_source_is_quantised(m, canonical))
        aq_relaid_measure(&s->relaid, &(struct aq_laid_out){panel, format, layout, rows, k},
                          values);
}

void aq_model_say_relaid(const struct aq_model *m, enum aq_dtype format, const struct aq_log *log)
{
    double largest, rms;
    aq_source_settle(m);
    if (!m->source || !aq_relaid_take(&m->source->relaid, &largest, &rms))
        return;
    aq_log_line(log, AQ_LOG_INFO,
                "%s: %s weights in %s: off by at most %.3g %% of the largest of 64 along a row, "
                "%.3g %% rms of all",
                m->name, m->quantised, aq_dtype_name(format), 100 * largest, 100 * rms);
}

enum aq_layout aq_model_layout(const struct aq_model *m, enum aq_dtype dtype)
{
    return m->row_major && aq_dtype_is_float(dtype) ? AQ_LAYOUT_ROWS : aq_layout_cpu(dtype);
}

struct load {
    struct aq_model *m;
    const struct aq_kernels *kernels;
    const struct aq_weight *weight; /* being loaded: */
    uint32_t first_panel;           /* from here on ... */
    uint8_t *to;                    /* ... to here, */
    bool away;                      /* where the host cannot write */
    uint8_t *staging;
    size_t staging_bytes;
    pthread_mutex_t lock;
    int rc;
    struct aq_err err;
};

static void note_error(struct load *l, int rc, const struct aq_err *err)
{
    pthread_mutex_lock(&l->lock);
    if (l->rc == 0) {
        l->err = *err;
        __atomic_store_n(&l->rc, rc, __ATOMIC_RELAXED); /* other workers look without the lock */
    }
    pthread_mutex_unlock(&l->lock);
}

/* Floats as they would be had they been kept in `values`.  One that does not come back from there
 * unharmed (f16 ends before bf16 does) stays as it is. */
static void round_values(void *at, enum aq_dtype dtype, enum aq_dtype values, size_t count)
{
    enum { ONCE = 512 };
    float x[ONCE], y[ONCE];
    char kept[4 * ONCE];
    for (size_t i = 0; i < count; i += ONCE) {
        size_t n = aq_min_u64(ONCE, count - i);
        char *part = (char *)at + i * aq_dtype_bytes(dtype);
        aq_convert(x, AQ_F32, part, dtype, n);
        aq_convert(kept, values, x, AQ_F32, n);
        aq_convert(y, AQ_F32, kept, values, n);
        aq_convert(kept, dtype, y, AQ_F32, n);
        aq_convert(x, AQ_F32, kept, dtype, n);
        for (size_t k = 0; k < n; k++)
            if (x[k] == y[k])
                memcpy(part + k * aq_dtype_bytes(dtype), kept + k * aq_dtype_bytes(dtype),
                       aq_dtype_bytes(dtype));
    }
}

/* 64 rows, a panel or a piece of a table, made at dst. */
static int make_rows(struct load *l, uint32_t panel, uint8_t *dst, uint8_t *staging,
                     struct aq_err *reterr)
{
    const struct aq_weight *w = l->weight;
    const struct aq_matrix_desc *d = w->desc;
    const struct aq_store *store = l->m->source ? l->m->source->store : NULL;
    uint32_t first = panel * AQ_PANEL_ROWS,
             rows = (uint32_t)aq_min_u64(AQ_PANEL_ROWS, d->rows - first);
    size_t row_bytes = (size_t)d->k * aq_dtype_bytes(w->dtype);
    enum aq_dtype dtype;
    if (store && !d->table) {
        int rc = aq_model_read_panel(l->m, d->name, panel, w->layout, dst, staging, reterr);
        enum aq_dtype values = l->m->vocabulary_values;
        if (rc == 0 && d->vocabulary && values != AQ_F32 && values != w->dtype)
            round_values(dst, w->dtype, values,
                         aq_panel_bytes(w->dtype, d->k) / aq_dtype_bytes(w->dtype));
        return rc;
    }
    int rc = aq_model_read_rows(l->m, d->name, first, rows, d->k, staging, &dtype, reterr);
    if (rc < 0)
        return rc;
    if (!d->table) {
        l->kernels->pack_panel(dst, w->dtype, w->layout, staging, dtype, rows, d->k);
        aq_model_measure_panel(l->m, d->name, dst, w->dtype, w->layout,
                               (const float *)(const void *)staging, rows, d->k);
        return aq_model_check_panel(dst, w->dtype, dtype, d->name, first, rows, d->k, reterr);
    }
    if (dtype == w->dtype)
        memcpy(dst, staging, rows * row_bytes);
    else
        aq_convert(dst, w->dtype, staging, dtype, (size_t)rows * d->k);
    return 0;
}

/* Where the host has no way to the device's memory they are made beside the staging, and copied. */
static int load_rows(struct load *l, uint32_t tile, uint8_t *staging, struct aq_err *reterr)
{
    const struct aq_weight *w = l->weight;
    uint32_t panel = l->first_panel + tile, first = panel * AQ_PANEL_ROWS;
    size_t panel_bytes = aq_panel_bytes(w->dtype, w->desc->k),
           row_bytes = (size_t)w->desc->k * aq_dtype_bytes(w->dtype);
    size_t bytes =
        w->desc->table ? aq_min_u64(AQ_PANEL_ROWS, w->desc->rows - first) * row_bytes : panel_bytes;
    uint8_t *dst = l->to + (w->desc->table ? first * row_bytes : tile * panel_bytes);
    if (!l->away)
        return make_rows(l, panel, dst, staging, reterr);
    uint8_t *made = staging + l->staging_bytes / 2;
    int rc = make_rows(l, panel, made, staging, reterr);
    return rc < 0 ? rc : aq_device_write(l->m->device, dst, made, bytes, reterr);
}

static void load_tile(void *arg, uint32_t tile, uint32_t worker)
{
    struct load *l = arg;
    struct aq_err err = {0};
    if (__atomic_load_n(&l->rc, __ATOMIC_RELAXED) < 0)
        return;
    int rc = load_rows(l, tile, l->staging + worker * l->staging_bytes, &err);
    if (rc < 0)
        note_error(l, rc, &err);
}

static int make_vector(struct load *l, const struct aq_vector_desc *d, float *dst,
                       struct aq_err *reterr)
{
    for (uint32_t n = 0; n < d->part_count; n++) {
        const struct aq_vector_part *part = &d->part[n];
        if (part->name[0]) {
            enum aq_dtype dtype;
            int rc =
                aq_model_read_rows(l->m, part->name, 0, 1, part->count, l->staging, &dtype, reterr);
            if (rc < 0)
                return rc;
            aq_convert(dst, AQ_F32, l->staging, dtype, part->count);
        } else {
            for (uint32_t i = 0; i < part->count; i++)
                dst[i] = d->fill;
        }
        dst += part->count;
    }
    return 0;
}

static int load_vector(struct load *l, const struct aq_vector_desc *d, float *dst,
                       struct aq_err *reterr)
{
    if (!aq_device_is_gpu(l->m->device))
        return make_vector(l, d, dst, reterr);
    float *made = (float *)(l->staging + l->staging_bytes / 2);
    assert(4ull * d->count <= l->staging_bytes / 2);
    int rc = make_vector(l, d, made, reterr);
    return rc < 0 ? rc : aq_device_write(l->m->device, dst, made, 4ull * d->count, reterr);
}

/* Gives every matrix and vector its place; tied matrices share one.  With bases of NULL it only
 * adds up, and lists the matrices where products run: *ret_count of them in shared
 * [matrix_count]. */
static void place(struct aq_model *m, const struct aq_stream *stream, enum aq_tier head,
                  enum aq_dtype format, enum aq_dtype table, struct aq_device_shared *shared,
                  uint32_t *ret_count)
{
    uint64_t used[AQ_TIER_COUNT] = {0}, bytes[AQ_TIER_COUNT];
    float *vector = m->vectors_buffer;
    uint64_t vectors = 0;
    for (uint32_t s = 0; s < m->steps.step_count; s++) {
        const struct aq_step_desc *d = &m->steps.step[s];
        for (uint32_t i = 0; i < d->matrix_count; i++) {
            struct aq_weight *weight = &m->weight[aq_matrix_index(&m->steps, s, i)];
            uint32_t at_step, at_index;
            if (aq_matrix_is_tied(&m->steps, s, i, &at_step, &at_index)) {
                *weight = m->weight[aq_matrix_index(&m->steps, at_step, at_index)];
                continue;
            }
            enum aq_dtype dtype =
                d->matrix[i].table ? table : aq_matrix_format(&d->matrix[i], format);
            aq_stream_matrix_bytes(bytes, stream, &m->steps, s, i, dtype, head);
            bool layer = aq_step_is_layer(d);
            uint8_t *device = m->weights_buffer[AQ_DEVICE], *host = m->weights_buffer[AQ_HOST];
            *weight = (struct aq_weight){
                .desc = &d->matrix[i],
                .dtype = dtype,
                .layout = d->matrix[i].table ? AQ_LAYOUT_ROWS : aq_model_layout(m, dtype),
                .data = !device || (!layer && head == AQ_HOST) ? NULL : device + used[AQ_DEVICE],
                .resident = layer
                                ? stream->split[aq_matrix_index(&m->steps, s, i)].panels[AQ_DEVICE]
                                : aq_panel_count(d->matrix[i].rows),
                .host = host ? host + used[AQ_HOST] : NULL,
            };
            if (!layer && head == AQ_HOST)
                weight->data = weight->host; /* read where it is */
            if (shared && bytes[AQ_DEVICE])
                shared[(*ret_count)++] =
                    (struct aq_device_shared){.offset = used[AQ_DEVICE],
                                              .count = weight->resident,
                                              .unit = aq_panel_bytes(dtype, weight->desc->k)};
            used[AQ_DEVICE] += bytes[AQ_DEVICE];
            used[AQ_HOST] += bytes[AQ_HOST];
        }
        for (uint32_t i = 0; i < d->vector_count; i++) {
            m->vector[aq_vector_index(&m->steps, s, i)] = vector ? vector + vectors / 4 : NULL;
            vectors += aq_align_up(4ull * d->vector[i].count, 64);
        }
    }
    m->weights_bytes[AQ_DEVICE] = used[AQ_DEVICE];
    m->weights_bytes[AQ_HOST] = used[AQ_HOST];
    m->vectors_bytes = vectors;
}

static int load_panels(struct load *l, struct aq_pool *pool, uint32_t first, uint32_t count,
                       void *to, struct aq_err *reterr)
{
    uint8_t *device = l->m->weights_buffer[AQ_DEVICE];
    l->first_panel = first;
    l->to = to;
    l->away = aq_device_is_gpu(l->m->device) && l->to >= device &&
              l->to < device + l->m->weights_bytes[AQ_DEVICE];
    if (count && !l->m->unfilled)
        aq_pool_run(pool, load_tile, l, count);
    if (l->rc < 0 && reterr)
        *reterr = l->err;
    return l->rc;
}

static int load_step(struct load *l, struct aq_pool *pool, const struct aq_stream *stream,
                     uint32_t s, struct aq_err *reterr)
{
    struct aq_model *m = l->m;
    const struct aq_step_desc *d = &m->steps.step[s];
    bool layer = aq_step_is_layer(d);
    for (uint32_t i = 0; i < d->matrix_count; i++) {
        uint32_t at_step, at_index;
        if (aq_matrix_is_tied(&m->steps, s, i, &at_step, &at_index))
            continue;
        uint32_t index = aq_matrix_index(&m->steps, s, i);
        l->weight = &m->weight[index];
        const uint32_t *panels = stream->split[index].panels;
        uint32_t near = layer ? panels[AQ_DEVICE] : aq_panel_count(d->matrix[i].rows);
        int rc = load_panels(l, pool, 0, near, l->weight->data, reterr);
        if (rc == 0 && layer)
            rc = load_panels(l, pool, near, panels[AQ_HOST], l->weight->host, reterr);
        if (rc < 0)
            return rc;
    }
    for (uint32_t i = 0; i < d->vector_count; i++) {
        int rc = load_vector(l, &d->vector[i], m->vector[aq_vector_index(&m->steps, s, i)], reterr);
        if (rc < 0)
            return rc;
    }
    return 0;
}

static int take_memory(struct aq_model *m, const struct aq_device_shared *shared,
                       uint32_t shared_count, struct aq_err *reterr)
{
    for (int t = AQ_DEVICE; t <= AQ_HOST; t++) {
        uint64_t bytes = m->weights_bytes[t];
        m->weights_bytes[t] = 0; /* until it is there */
        if (!bytes)
            continue;
        int rc = aq_device_alloc_shared(&m->weights_buffer[t], m->device, memory_of(t), "weights",
                                        bytes, shared, t == AQ_DEVICE ? shared_count : 0, reterr);
        if (rc < 0)
            return rc;
        m->weights_bytes[t] = bytes;
    }
    if (!m->vectors_bytes)
        return 0; /* neither biases nor norms with weights */
    return aq_device_alloc((void **)&m->vectors_buffer, m->device, AQ_MEMORY_DEVICE, "vectors",
                           m->vectors_bytes, reterr);
}

int aq_model_load(struct aq_model *m, struct aq_device *device, const struct aq_stream *stream,
                  enum aq_tier head, enum aq_dtype format, const struct aq_kernels *kernels,
                  struct aq_pool *pool, void *staging, size_t staging_bytes, struct aq_err *reterr)
{
    assert(!m->device);
    enum aq_dtype table = aq_model_table_dtype(m);
    m->weight = calloc(m->steps.matrix_count, sizeof(*m->weight));
    m->vector = calloc(m->steps.vector_count, sizeof(*m->vector));
    struct aq_device_shared *shared = calloc(m->steps.matrix_count, sizeof(*shared));
    uint32_t shared_count = 0;
    if (!m->weight || !m->vector || !shared) {
        free(shared);
        return aq_error_memory(reterr, "%s: table of weights", m->name);
    }
    head = aq_device_separate(device) ? head : AQ_DEVICE;
    m->device = device;
    place(m, stream, head, format, table, shared, &shared_count);
    int rc = take_memory(m, shared, shared_count, reterr);
    free(shared);
    if (rc < 0)
        return rc;
    place(m, stream, head, format, table, NULL, NULL);
    struct load l = {.m = m,
                     .kernels = kernels,
                     .staging = staging,
                     .staging_bytes = staging_bytes,
                     .lock = PTHREAD_MUTEX_INITIALIZER};
    for (uint32_t s = 0; s < m->steps.step_count; s++) {
        rc = load_step(&l, pool, stream, s, reterr);
        if (rc < 0) {
            aq_error_prefix(reterr, "%s", m->name);
            return rc;
        }
    }
    return 0;
}

void aq_model_stream_from(struct aq_model *m, const struct aq_store *store)
{
    for (uint32_t s = 0; s < m->steps.step_count; s++) {
        const struct aq_step_desc *d = &m->steps.step[s];
        for (uint32_t i = 0; i < d->matrix_count; i++)
            m->weight[aq_matrix_index(&m->steps, s, i)].item =
                aq_store_find(store, d->matrix[i].name);
    }
}
