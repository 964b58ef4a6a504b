/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model/pack.h"

#include "base/clock.h"
#include "engine/model/arch/arch.h"
#include "engine/tokenizer/tokenizer.h"

#include <assert.h>
#include <dirent.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

/* ---- what a model's store holds ---- */

/* A store's item is made in tiles of 64 rows; a vector is one tile. */
static size_t tile_bytes(enum aq_store_kind kind, enum aq_dtype dtype, uint32_t cols)
{
    if (kind == AQ_STORE_MATRIX)
        return aq_panel_bytes(dtype, cols);
    return (size_t)(kind == AQ_STORE_TABLE ? AQ_PANEL_ROWS : 1) * cols * aq_dtype_bytes(dtype);
}

uint64_t aq_pack_item_bytes(const struct aq_store_item_desc *d)
{
    if (d->kind == AQ_STORE_MATRIX)
        return aq_panel_count(d->rows) * (uint64_t)aq_panel_bytes(d->dtype, d->cols);
    return (uint64_t)d->rows * d->cols * aq_dtype_bytes(d->dtype);
}

/* Beside the tokenizer's files: what a directory needs to be a model directory, and what a licence
 * asks to be kept with the weights. */
static const char *const more_files[] = {
    "chat_template.jinja",
    "config.json",
    "generation_config.json",
    "LICENSE",
    "LICENSE.md",
    "LICENSE.txt",
    "NOTICE",
    NULL,
};

static const char template_folder[] = "additional_chat_templates";

enum { FILES_MAX = 64, STEP_NAME_BYTES = 32 };

struct owned {
    struct aq_store_step_desc *steps;
    char (*step_names)[STEP_NAME_BYTES];
    struct aq_store_item_desc *items;
    uint32_t item_count;
    struct aq_store_source_file files[FILES_MAX];
    char *paths[FILES_MAX];
    uint32_t file_count;
    char source[80];
    json_t *model;
};

static void name_step(char name[STEP_NAME_BYTES], const struct aq_step_desc *d)
{
    switch (d->kind) {
    case AQ_STEP_EMBED: snprintf(name, STEP_NAME_BYTES, "embed"); break;
    case AQ_STEP_ATTENTION: snprintf(name, STEP_NAME_BYTES, "layers.%u.attention", d->layer); break;
    case AQ_STEP_MLP: snprintf(name, STEP_NAME_BYTES, "layers.%u.mlp", d->layer); break;
    case AQ_STEP_HEAD: snprintf(name, STEP_NAME_BYTES, "head"); break;
    }
}

static struct aq_store_item_desc *add_item(struct owned *o, const char *name,
                                           enum aq_store_kind kind, enum aq_dtype dtype,
                                           uint32_t rows, uint32_t cols)
{
    struct aq_store_item_desc *item = &o->items[o->item_count++];
    *item = (struct aq_store_item_desc){
        .name = name, .kind = kind, .dtype = dtype, .rows = rows, .cols = cols};
    return item;
}

static void plan_step(struct owned *o, const struct aq_pack_opts *opts, uint32_t s)
{
    const struct aq_model_steps *m = &opts->model->steps;
    const struct aq_step_desc *d = &m->step[s];
    uint32_t first = o->item_count, at_step, at_index;
    for (int tables = 0; tables < 2; tables++) {
        for (uint32_t i = 0; i < d->matrix_count; i++) {
            const struct aq_matrix_desc *w = &d->matrix[i];
            if (w->table != tables || aq_matrix_is_tied(m, s, i, &at_step, &at_index))
                continue;
            if (tables)
                add_item(o, w->name, AQ_STORE_TABLE, aq_model_table_dtype(opts->model), w->rows,
                         w->k);
            else
                add_item(o, w->name, AQ_STORE_MATRIX, aq_matrix_format(w, opts->format), w->rows,
                         w->k)
                    ->layout = opts->layout;
        }
    }
    for (uint32_t i = 0; i < d->vector_count; i++) {
        for (uint32_t n = 0; n < d->vector[i].part_count; n++) {
            const struct aq_vector_part *part = &d->vector[i].part[n];
            if (part->name[0])
                add_item(o, part->name, AQ_STORE_VECTOR, AQ_F32, 1, part->count);
        }
    }
    name_step(o->step_names[s], d);
    o->steps[s] = (struct aq_store_step_desc){
        .name = o->step_names[s], .items = o->items + first, .item_count = o->item_count - first};
}

static int is_template(const struct dirent *e)
{
    size_t bytes = strlen(e->d_name);
    return bytes > 6 && strcmp(e->d_name + bytes - 6, ".jinja") == 0;
}

/* A file of the model directory, where it is there. */
static int add_file(struct owned *o, const char *dir, const char *name, struct aq_err *reterr)
{
    struct stat st;
    char *path;
    if (asprintf(&path, "%s/%s", dir, name) < 0)
        return aq_error_memory(reterr, "files of '%s'", dir);
    if (stat(path, &st) < 0 || !S_ISREG(st.st_mode)) {
        free(path);
        return 0;
    }
    if (o->file_count == FILES_MAX) {
        free(path);
        return aq_error(reterr, -EINVAL, "'%s': more than %d files to keep with the weights", dir,
                        FILES_MAX);
    }
    o->paths[o->file_count] = path;
    o->files[o->file_count++] =
        (struct aq_store_source_file){.name = path + strlen(dir) + 1, .path = path};
    return 0;
}

static int add_files(struct owned *o, const char *dir, const char *const *names,
                     struct aq_err *reterr)
{
    int rc = 0;
    for (; rc == 0 && *names; names++)
        rc = add_file(o, dir, *names, reterr);
    return rc;
}

/* Templates of conversations beside the default one, in the order of their names: the plan's hash
 * is of their order too. */
static int add_templates(struct owned *o, const char *dir, struct aq_err *reterr)
{
    char path[PATH_MAX];
    struct dirent **entry = NULL;
    if (snprintf(path, sizeof(path), "%s/%s", dir, template_folder) >= (int)sizeof(path))
        return 0;
    int rc = 0, count = scandir(path, &entry, is_template, alphasort);
    for (int i = 0; i < count; i++) {
        snprintf(path, sizeof(path), "%s/%s", template_folder, entry[i]->d_name);
        if (rc == 0)
            rc = add_file(o, dir, path, reterr);
        free(entry[i]);
    }
    free(entry);
    return rc;
}

void aq_pack_plan_close(struct aq_pack_plan *p)
{
    struct owned *o = p->owned;
    if (!o)
        return;
    for (uint32_t i = 0; i < o->file_count; i++)
        free(o->paths[i]);
    json_decref(o->model);
    free(o->steps);
    free(o->step_names);
    free(o->items);
    free(o);
    p->owned = NULL;
}

const char *aq_pack_scales(enum aq_dtype format)
{
    return format == AQ_Q4 ? "nearest" : NULL; /* before, without a word: up */
}

int aq_pack_plan_open(struct aq_pack_plan *ret, const struct aq_pack_opts *opts,
                      struct aq_err *reterr)
{
    const struct aq_model *m = opts->model;
    struct aq_pack_plan p = {.owned = calloc(1, sizeof(struct owned))};
    struct owned *o = p.owned;
    size_t items = m->steps.matrix_count + (size_t)m->steps.vector_count * AQ_VECTOR_PART_MAX;
    if (!o)
        return aq_error_memory(reterr, "plan of a store");
    o->steps = calloc(m->steps.step_count, sizeof(*o->steps));
    o->step_names = calloc(m->steps.step_count, sizeof(*o->step_names));
    o->items = calloc(items, sizeof(*o->items));
    /* Nothing that depends on where the checkpoint lies: a moved one continues its conversion. */
    o->model = json_pack(
        "{ss sI sI sI ss ss* ss*}", "architecture", m->config.arch->name, "parameters",
        (json_int_t)m->steps.parameters, "layers", (json_int_t)m->steps.layers, "hidden",
        (json_int_t)m->steps.hidden, "checkpoint_dtype", aq_dtype_name(m->checkpoint_dtype),
        "scales", aq_pack_scales(opts->format), "quantised", m->quantised[0] ? m->quantised : NULL);
    int rc = 0;
    if (!o->steps || !o->step_names || !o->items || !o->model)
        rc = aq_error_memory(reterr, "plan of a store of %u steps", m->steps.step_count);
    for (uint32_t s = 0; rc == 0 && s < m->steps.step_count; s++)
        plan_step(o, opts, s);
    /* A shape with random weights has no directory. */
    if (rc == 0 && opts->model_dir)
        rc = add_files(o, opts->model_dir, more_files, reterr);
    if (rc == 0 && opts->model_dir)
        rc = add_files(o, opts->model_dir, aq_tokenizer_file_names, reterr);
    if (rc == 0 && opts->model_dir)
        rc = add_templates(o, opts->model_dir, reterr);
    if (rc < 0) {
        aq_pack_plan_close(&p);
        return rc;
    }
    snprintf(o->source, sizeof(o->source), "checkpoint %016llx", (unsigned long long)m->hash);
    p.writer = (struct aq_store_writer_opts){
        .dirs = opts->dirs,
        .dir_count = opts->dir_count,
        .steps = o->steps,
        .step_count = m->steps.step_count,
        .source = o->source,
        .model = o->model,
        .files = o->files,
        .file_count = o->file_count,
        .log = opts->log,
    };
    for (uint32_t i = 0; i < o->item_count; i++)
        p.bytes += aq_pack_item_bytes(&o->items[i]);
    *ret = p;
    return 0;
}

int aq_pack_store_bytes(uint64_t *ret, const struct aq_model *m, enum aq_dtype format,
                        struct aq_err *reterr)
{
    struct aq_pack_opts opts = {.model = m, .format = format, .layout = aq_model_layout(m, format)};
    struct aq_pack_plan p;
    int rc = aq_pack_plan_open(&p, &opts, reterr);
    if (rc < 0)
        return rc;
    uint64_t bytes = 0;
    for (uint32_t s = 0; s < p.writer.step_count; s++) {
        const struct aq_store_step_desc *step = &p.writer.steps[s];
        for (uint32_t i = 0; i < step->item_count; i++)
            bytes = aq_align_up(bytes, AQ_STORE_ITEM_ALIGN) + aq_pack_item_bytes(&step->items[i]);
        bytes = aq_align_up(bytes, AQ_STORE_STEP_ALIGN);
    }
    aq_pack_plan_close(&p);
    *ret = bytes;
    return 0;
}

/* ---- conversion ---- */

/* A batch of this size, where memory allows it, keeps writes sequential and the tiles' overhead
 * small. */
#define BATCH_BYTES (8 * AQ_MIB)

/* One item is converted in tiles of 64 rows, a batch of tiles at a time; while the workers fill one
 * buffer, one of them writes the other out. */
struct convert {
    const struct aq_model *model;
    const struct aq_kernels *kernels;
    struct aq_store_writer *writer;
    const struct aq_store_item *item;
    uint32_t first;    /* tile of the item that the batch begins with */
    size_t tile_bytes; /* of a full tile as the store holds it */
    uint8_t *fill, *drain;
    size_t drain_bytes;
    uint8_t *staging; /* one area per worker: 64 rows as the source holds them */
    size_t staging_bytes;
    pthread_mutex_t lock;
    atomic_int rc; /* of the first failure */
    struct aq_err err;
};

static void note_error(struct convert *c, const struct aq_err *err)
{
    pthread_mutex_lock(&c->lock);
    if (atomic_load(&c->rc) == 0) {
        c->err = *err;
        atomic_store(&c->rc, err->code);
    }
    pthread_mutex_unlock(&c->lock);
}

/* From a store: its panels, in the layout of the new one. */
static int copy_panel(const struct convert *c, uint32_t panel, uint8_t *dst, uint8_t *staging,
                      struct aq_err *reterr)
{
    const struct aq_store_item *item = c->item;
    enum aq_dtype has = aq_store_find(aq_model_store(c->model), item->name)->dtype;
    if (has != item->dtype)
        return aq_error(reterr, -EINVAL,
                        "'%s' is a packed store, and has '%s' in %s, not %s: for another format "
                        "pack the checkpoint",
                        c->model->name, item->name, aq_dtype_name(has), aq_dtype_name(item->dtype));
    return aq_model_read_panel(c->model, item->name, panel, item->layout, dst, staging, reterr);
}

static int convert_tile(struct convert *c, uint32_t tile, uint8_t *dst, uint8_t *staging,
                        struct aq_err *reterr)
{
    const struct aq_store_item *item = c->item;
    uint32_t first = tile * AQ_PANEL_ROWS,
             rows = (uint32_t)aq_min_u64(AQ_PANEL_ROWS, item->rows - first);
    enum aq_dtype dtype;
    if (aq_model_store(c->model) && item->kind == AQ_STORE_MATRIX)
        return copy_panel(c, tile, dst, staging, reterr);
    int rc =
        aq_model_read_rows(c->model, item->name, first, rows, item->cols, staging, &dtype, reterr);
    if (rc < 0)
        return rc;
    if (item->kind != AQ_STORE_MATRIX) { /* in the source's own dtype, or f32 */
        aq_convert(dst, item->dtype, staging, dtype, (size_t)rows * item->cols);
        return 0;
    }
    c->kernels->pack_panel(dst, item->dtype, item->layout, staging, dtype, rows, item->cols);
    aq_model_measure_panel(c->model, item->name, dst, item->dtype, item->layout,
                           (const float *)(const void *)staging, rows, item->cols);
    return aq_model_check_panel(dst, item->dtype, dtype, item->name, first, rows, item->cols,
                                reterr);
}

static void run_tile(void *arg, uint32_t tile, uint32_t worker)
{
    struct convert *c = arg;
    struct aq_err err = {0};
    int rc;
    if (atomic_load(&c->rc) < 0)
        return;
    if (tile == 0)
        rc = c->drain_bytes ? aq_store_writer_append(c->writer, c->drain, c->drain_bytes, &err) : 0;
    else
        rc = convert_tile(c, c->first + tile - 1, c->fill + (tile - 1) * c->tile_bytes,
                          c->staging + worker * c->staging_bytes, &err);
    if (rc < 0)
        note_error(c, &err);
}

static uint64_t bytes_of_tiles(const struct aq_store_item *item, uint32_t first, uint32_t tiles,
                               size_t tile_bytes)
{
    uint64_t begin = (uint64_t)first * tile_bytes;
    return aq_min_u64((uint64_t)tiles * tile_bytes, item->bytes - begin);
}

struct progress {
    const struct aq_pack_opts *opts;
    uint64_t done, total;
};

static int convert_item(struct convert *c, struct aq_pool *pool, uint32_t tiles_max,
                        struct progress *progress, struct aq_err *reterr)
{
    const struct aq_store_item *item = c->item;
    uint32_t tiles = item->kind == AQ_STORE_VECTOR ? 1 : aq_panel_count(item->rows);
    c->drain_bytes = 0;
    for (c->first = 0; c->first < tiles || c->drain_bytes;) {
        uint32_t batch = (uint32_t)aq_min_u64(tiles_max, tiles - c->first);
        aq_pool_run(pool, run_tile, c, batch + 1);
        if (atomic_load(&c->rc) < 0) {
            if (reterr)
                *reterr = c->err;
            return atomic_load(&c->rc);
        }
        progress->done += c->drain_bytes;
        if (progress->opts->progress &&
            progress->opts->progress(progress->opts->user, progress->done, progress->total))
            return aq_error(reterr, -EINTR,
                            "interrupted; what is finished is kept, the same "
                            "command goes on from there");
        uint8_t *filled = c->fill;
        c->fill = c->drain;
        c->drain = filled;
        c->drain_bytes = batch ? bytes_of_tiles(item, c->first, batch, c->tile_bytes) : 0;
        c->first += batch;
    }
    return 0;
}

/* Sizes for any item: the widest row, and tiles as the store holds them. */
static void measure(const struct aq_store_writer *w, size_t *ret_tile, size_t *ret_staging)
{
    size_t tile = 0, staging = 0;
    for (uint32_t i = 0; i < aq_store_writer_item_count(w); i++) {
        const struct aq_store_item *item = aq_store_writer_item(w, i);
        uint32_t rows = item->kind == AQ_STORE_VECTOR ? 1 : AQ_PANEL_ROWS;
        staging = aq_max_u64(staging, (uint64_t)rows * item->cols * 4);
        tile = aq_max_u64(tile, tile_bytes(item->kind, item->dtype, item->cols));
    }
    *ret_tile = tile;
    *ret_staging = aq_align_up(staging, 64);
}

static int convert_all(struct aq_store_writer *w, const struct aq_pack_opts *opts,
                       const struct aq_kernels *kernels, struct aq_pool *pool,
                       struct progress *progress, struct aq_err *reterr)
{
    size_t tile, staging;
    uint32_t threads = aq_pool_threads(pool);
    measure(w, &tile, &staging);
    uint64_t room = opts->memory ? opts->memory : UINT64_MAX, batch = BATCH_BYTES,
             decoding = aq_model_decoding_bytes(opts->model, threads);
    room -= aq_min_u64(room, threads * staging + decoding);
    batch = aq_max_u64((uint64_t)threads * tile, aq_min_u64(batch, room / 2 / 64 * 64));
    size_t buffer = aq_align_up(batch, 64);
    size_t all = 2 * buffer + threads * staging + decoding;
    if (opts->memory && all > opts->memory)
        return aq_error(
            reterr, -ENOMEM,
            "packing with %u threads takes %zu bytes, %llu are allowed; lower --threads "
            "or raise --host-memory",
            threads, all, (unsigned long long)opts->memory);
    struct convert c = {.model = opts->model,
                        .kernels = kernels,
                        .writer = w,
                        .lock = PTHREAD_MUTEX_INITIALIZER,
                        .staging_bytes = staging};
    c.fill = aligned_alloc(64, buffer);
    c.drain = aligned_alloc(64, buffer);
    c.staging = aligned_alloc(64, threads * staging);
    int rc = 0;
    if (!c.fill || !c.drain || !c.staging)
        rc =
            aq_error_memory(reterr, "conversion buffers of %zu bytes for %u workers", all, threads);
    for (uint32_t i = 0; rc == 0 && i < aq_store_writer_item_count(w); i++) {
        if (aq_store_writer_has(w, i))
            continue;
        c.item = aq_store_writer_item(w, i);
        c.tile_bytes = tile_bytes(c.item->kind, c.item->dtype, c.item->cols);
        aq_store_writer_begin(w, i);
        rc = convert_item(&c, pool, (uint32_t)(buffer / c.tile_bytes), progress, reterr);
        if (rc == 0)
            rc = aq_store_writer_end(w, reterr);
    }
    free(c.fill);
    free(c.drain);
    free(c.staging);
    return rc;
}

/* Is the first directory already the store that would be made? */
static bool is_there(const struct aq_pack_plan *plan, struct aq_pack_result *ret)
{
    struct aq_store *s;
    uint64_t hash;
    if (!aq_store_present(plan->writer.dirs[0]) ||
        aq_store_plan_hash(&hash, &plan->writer, NULL) < 0 ||
        aq_store_open(&s, plan->writer.dirs[0], NULL) < 0)
        return false;
    bool same = aq_store_plan(s) == hash && aq_store_dir_count(s) == plan->writer.dir_count;
    if (same)
        *ret = (struct aq_pack_result){
            .bytes = plan->bytes, .identity = aq_store_identity(s), .was_there = true};
    aq_store_close(s);
    return same;
}

/* Two that want the same store: one packs, the other waits for it, and goes on where it ended if it
 * dies.  *ret_writer NULL: the store is there. */
static int open_writer(struct aq_store_writer **ret_writer, struct aq_pack_result *ret,
                       const struct aq_pack_plan *plan, const struct aq_pack_opts *opts,
                       struct aq_err *reterr)
{
    const struct timespec pause = {.tv_nsec = 200 * 1000 * 1000};
    *ret_writer = NULL;
    for (bool told = false;; told = true) {
        if (is_there(plan, ret))
            return 0;
        int rc = aq_store_writer_open(ret_writer, &plan->writer, reterr);
        if (rc < 0 && rc != -EAGAIN && is_there(plan, ret)) /* published a moment ago */
            return 0;
        if (rc != -EAGAIN)
            return rc;
        if (!told)
            aq_log_line(opts->log, AQ_LOG_INFO,
                        "another process is packing '%s': waiting for it to end",
                        plan->writer.dirs[0]);
        if (opts->progress && opts->progress(opts->user, 0, plan->bytes))
            return aq_error(reterr, -EINTR,
                            "interrupted while waiting for the process that packs '%s'",
                            plan->writer.dirs[0]);
        nanosleep(&pause, NULL);
    }
}

int aq_pack_run(struct aq_pack_result *ret, const struct aq_pack_opts *opts,
                const struct aq_kernels *kernels, struct aq_pool *pool, struct aq_err *reterr)
{
    assert(ret && opts->dir_count >= 1 && kernels && pool);
    double begin = aq_clock_s();
    struct aq_pack_plan plan;
    int rc = aq_pack_plan_open(&plan, opts, reterr);
    if (rc < 0)
        return rc;
    struct aq_store_writer *w;
    struct progress progress = {.opts = opts};
    rc = open_writer(&w, ret, &plan, opts, reterr);
    if (rc < 0 || !w) {
        aq_pack_plan_close(&plan);
        return rc;
    }
    aq_log_line(opts->log, AQ_LOG_INFO, "packing %s into '%s': %.2f GB in %s", opts->model->name,
                opts->dirs[0], (double)plan.bytes * 1e-9, aq_dtype_name(opts->format));
    aq_store_writer_progress(w, &progress.total, &progress.done);
    uint64_t resumed = progress.done;
    rc = convert_all(w, opts, kernels, pool, &progress, reterr);
    if (rc == 0)
        rc = aq_store_writer_publish(w, reterr);
    if (rc == 0)
        aq_model_say_relaid(opts->model, opts->format, opts->log);
    if (rc == 0)
        *ret = (struct aq_pack_result){.bytes = progress.total,
                                       .bytes_written = progress.total - resumed,
                                       .seconds = aq_clock_s() - begin,
                                       .identity = aq_store_writer_identity(w)};
    aq_store_writer_close(w);
    aq_pack_plan_close(&plan);
    return rc;
}
