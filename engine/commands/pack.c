/* SPDX-License-Identifier: Apache-2.0
 * aquifer pack: converts a checkpoint, lists tensors, re-hashes a store. */
#include "engine/commands/commands.h"

#include "base/clock.h"
#include "base/json.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/machine/limits.h"
#include "engine/model/pack.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ULL(x) ((unsigned long long)(x))

/* ---- progress: rarely on a file, often on a terminal ---- */

struct reporter {
    const struct aq_options *o;
    const struct aquifer_hooks *hooks;
    const char *verb;
    double begin, next;
};

static void reporter_open(struct reporter *r, const struct aq_options *o,
                          const struct aquifer_hooks *hooks, const char *verb)
{
    bool terminal = hooks && hooks->lines_are_terminal;
    *r = (struct reporter){.o = o, .hooks = hooks, .verb = verb, .begin = aq_clock_s()};
    r->next = r->begin + (o->progress_s > 0 ? o->progress_s : terminal ? 0.5 : 10);
}

static bool report_progress(void *user, uint64_t done, uint64_t total)
{
    struct reporter *r = user;
    double now = aq_clock_s(), since = now - r->begin;
    if (now >= r->next) {
        bool terminal = r->hooks && r->hooks->lines_are_terminal;
        double rest = r->o->progress_s > 0 ? r->o->progress_s
                      : terminal           ? 0.5
                      : since < 60         ? 60 - since
                                           : 60;
        r->next = now + rest;
        aq_hooks_line(r->hooks, AQUIFER_PROGRESS, "%s %.2f of %.2f GB (%.0f %%), %.2f GB/s",
                      r->verb, (double)done / 1e9, (double)total / 1e9,
                      total ? 100.0 * (double)done / (double)total : 100.0,
                      since > 0 ? (double)done / 1e9 / since : 0);
    }
    return aq_hooks_interrupted((void *)r->hooks);
}

static int open_pool(struct aq_pool **ret, const struct aq_options *o, struct aq_err *reterr)
{
    struct aq_cpu_limits cpu;
    aq_limits_cpu(&cpu, NULL);
    return aq_pool_open(ret, o->threads ? o->threads : cpu.threads, reterr);
}

static json_t *hash_json(uint64_t hash)
{
    char hex[17];
    snprintf(hex, sizeof(hex), "%016llx", ULL(hash));
    return json_string(hex);
}

/* ---- list ---- */

struct listing {
    FILE *text;
    json_t *items; /* the same as JSON; NULL when not wanted */
};

static void list_row(struct listing *l, const char *step, const struct aq_store_item *item,
                     bool stored)
{
    char shape[32] = "-";
    if (item->kind == AQ_STORE_VECTOR)
        snprintf(shape, sizeof(shape), "[%u]", item->cols);
    else if (item->kind != AQ_STORE_BLOB)
        snprintf(shape, sizeof(shape), "[%u, %u]", item->rows, item->cols);
    if (!l->items) {
        fprintf(l->text, "%-22s %-44s %-6s %-5s %-6s %-16s %14llu", step, item->name,
                aq_store_kind_name(item->kind), aq_dtype_name(item->dtype),
                aq_layout_name(item->layout), shape, ULL(item->bytes));
        if (stored)
            fprintf(l->text, " %14llu %016llx", ULL(item->offset), ULL(item->xxh3));
        fputc('\n', l->text);
        return;
    }
    json_t *row = json_pack("{ss ss ss ss ss sI sI sI}", "name", item->name, "step", step, "kind",
                            aq_store_kind_name(item->kind), "dtype", aq_dtype_name(item->dtype),
                            "layout", aq_layout_name(item->layout), "rows", (json_int_t)item->rows,
                            "cols", (json_int_t)item->cols, "bytes", (json_int_t)item->bytes);
    if (row && stored) {
        aq_json_put(&row, "offset", json_integer((json_int_t)item->offset));
        aq_json_put(&row, "xxh3", hash_json(item->xxh3));
    }
    aq_json_add(&l->items, row);
}

/* Prints the rows: one JSON document, or a table under a head line and over a sum. */
static int deliver(struct listing *l, json_t **head, const struct aquifer_hooks *hooks, char **text,
                   size_t *bytes, struct aq_err *reterr)
{
    if (l->items) {
        aq_json_put(head, "items", json_incref(l->items));
        return aq_hooks_json(hooks, *head, reterr);
    }
    json_decref(*head);
    if (fflush(l->text) != 0)
        return aq_error_memory(reterr, "list of tensors");
    if (hooks && hooks->output)
        hooks->output(hooks->user, *text, *bytes);
    return 0;
}

static void list_store(struct listing *l, const struct aq_store *s, json_t **head)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < aq_store_item_count(s); i++) {
        const struct aq_store_item *item = aq_store_item(s, i);
        list_row(l, aq_store_step(s, item->step)->name, item, true);
        sum += item->bytes;
    }
    if (!l->items) {
        fprintf(l->text, "%u tensors, %llu bytes in %u directories, identity %016llx\n",
                aq_store_item_count(s), ULL(sum), aq_store_dir_count(s), ULL(aq_store_identity(s)));
        return;
    }
    json_t *dirs = json_array(), *files = json_array();
    for (uint32_t i = 0; i < aq_store_dir_count(s); i++)
        aq_json_add(&dirs, aq_json_string(aq_store_dir(s, i)));
    for (uint32_t i = 0; i < aq_store_file_count(s); i++)
        aq_json_add(&files, json_string(aq_store_file(s, i)->name));
    aq_json_put(head, "identity", hash_json(aq_store_identity(s)));
    aq_json_put(head, "source", json_string(aq_store_source(s)));
    aq_json_put(head, "model", aq_json_copy(aq_store_model(s)));
    aq_json_put(head, "bytes", json_integer((json_int_t)sum));
    aq_json_put(head, "directories", dirs);
    aq_json_put(head, "files", files);
}

static void list_plan(struct listing *l, const struct aq_pack_plan *plan, json_t **head)
{
    uint32_t count = 0;
    for (uint32_t s = 0; s < plan->writer.step_count; s++) {
        const struct aq_store_step_desc *step = &plan->writer.steps[s];
        for (uint32_t i = 0; i < step->item_count; i++, count++) {
            const struct aq_store_item_desc *d = &step->items[i];
            struct aq_store_item item = {.name = d->name,
                                         .kind = d->kind,
                                         .dtype = d->dtype,
                                         .layout = d->layout,
                                         .rows = d->rows,
                                         .cols = d->cols,
                                         .bytes = aq_pack_item_bytes(d)};
            list_row(l, step->name, &item, false);
        }
    }
    if (l->items)
        aq_json_put(head, "bytes", json_integer((json_int_t)plan->bytes));
    else
        fprintf(l->text, "%u tensors, %llu bytes when packed\n", count, ULL(plan->bytes));
}

/* plan or store: the other is NULL. */
static int list(const struct aq_options *o, const struct aq_pack_plan *plan,
                const struct aq_store *store, const struct aquifer_hooks *hooks,
                struct aq_err *reterr)
{
    char *text = NULL;
    size_t bytes = 0;
    struct listing l = {.text = open_memstream(&text, &bytes),
                        .items = o->json ? json_array() : NULL};
    json_t *head = json_pack("{si sb}", "schema", 1, "packed", store != NULL);
    int rc;
    if (!l.text || !head) {
        json_decref(head);
        rc = aq_error_memory(reterr, "list of tensors");
    } else {
        if (store)
            list_store(&l, store, &head);
        else
            list_plan(&l, plan, &head);
        rc = deliver(&l, &head, hooks, &text, &bytes, reterr);
    }
    if (l.text)
        fclose(l.text);
    free(text);
    json_decref(l.items);
    return rc;
}

/* ---- verify ---- */

enum { VERIFY_BUFFER_BYTES = 1 << 20 };

struct verify {
    const struct aq_store *store;
    uint32_t first; /* item (then file) of tile 0 */
    uint8_t *buffer;
    struct aq_err *verdict; /* [items + files] */
};

static void verify_tile(void *arg, uint32_t tile, uint32_t worker)
{
    struct verify *v = arg;
    uint32_t index = v->first + tile, items = aq_store_item_count(v->store);
    uint8_t *buffer = v->buffer + (size_t)worker * VERIFY_BUFFER_BYTES;
    struct aq_err *err = &v->verdict[index];
    if (index < items)
        (void)aq_store_verify_item(v->store, index, buffer, VERIFY_BUFFER_BYTES, err);
    else
        (void)aq_store_verify_file(v->store, index - items, buffer, VERIFY_BUFFER_BYTES, err);
}

/* Every damaged item gets a line of its own; the error that is returned is the first. */
static int judge(const struct verify *v, const struct aq_options *o, uint64_t bytes, double seconds,
                 const struct aquifer_hooks *hooks, struct aq_err *reterr)
{
    uint32_t items = aq_store_item_count(v->store), all = items + aq_store_file_count(v->store),
             bad_count = 0;
    json_t *bad = json_array();
    int rc = 0;
    for (uint32_t i = 0; i < all; i++) {
        if (v->verdict[i].code == 0)
            continue;
        bad_count++;
        aq_json_add(&bad, json_string(i < items ? aq_store_item(v->store, i)->name
                                                : aq_store_file(v->store, i - items)->name));
        if (rc == 0)
            rc = aq_error(reterr, v->verdict[i].code, "%s", v->verdict[i].text);
        else
            aq_hooks_line(hooks, AQUIFER_ERROR, "%s", v->verdict[i].text);
    }
    if (bad_count > 1)
        aq_hooks_line(hooks, AQUIFER_ERROR, "%u of %u tensors and files are damaged", bad_count,
                      all);
    if (o->json) {
        json_t *document =
            json_pack("{si sb sI si sf so so}", "schema", 1, "intact", bad_count == 0, "bytes",
                      (json_int_t)bytes, "checked", (int)all, "seconds", seconds, "damaged", bad,
                      "identity", hash_json(aq_store_identity(v->store)));
        int rc2 = aq_hooks_json(hooks, document, rc < 0 ? NULL : reterr);
        return rc < 0 ? rc : rc2;
    }
    json_decref(bad);
    if (rc == 0)
        aq_hooks_line(hooks, AQUIFER_INFO,
                      "'%s' is intact: %u tensors and files, %.3f GB in %.1f s (%.2f GB/s)",
                      aq_store_dir(v->store, 0), all, (double)bytes / 1e9, seconds,
                      seconds > 0 ? (double)bytes / 1e9 / seconds : 0);
    return rc;
}

static int verify(const struct aq_options *o, const struct aq_store *store,
                  const struct aquifer_hooks *hooks, struct aq_err *reterr)
{
    uint32_t items = aq_store_item_count(store), all = items + aq_store_file_count(store);
    uint64_t total = 0, done = 0;
    struct reporter reporter;
    struct aq_pool *pool;
    int rc = open_pool(&pool, o, reterr);
    if (rc < 0)
        return rc;
    struct verify v = {.store = store,
                       .buffer = malloc((size_t)aq_pool_threads(pool) * VERIFY_BUFFER_BYTES),
                       .verdict = calloc(all + 1ul, sizeof(*v.verdict))};
    for (uint32_t i = 0; i < items; i++)
        total += aq_store_item(store, i)->bytes;
    if (!v.buffer || !v.verdict)
        rc = aq_error_memory(reterr, "check of %u items", all);
    reporter_open(&reporter, o, hooks, "checked");
    while (rc == 0 && v.first < all) {
        uint32_t batch = (uint32_t)aq_min_u64(4ull * aq_pool_threads(pool), all - v.first);
        aq_pool_run(pool, verify_tile, &v, batch);
        for (uint32_t i = v.first; i < v.first + batch && i < items; i++)
            done += aq_store_item(store, i)->bytes;
        v.first += batch;
        if (report_progress(&reporter, done, total))
            rc = aq_error(reterr, -EINTR, "interrupted after %u of %u items", v.first, all);
    }
    if (rc == 0)
        rc = judge(&v, o, total, aq_clock_s() - reporter.begin, hooks, reterr);
    aq_pool_close(pool);
    free(v.buffer);
    free(v.verdict);
    return rc;
}

/* ---- convert ---- */

static int convert(const struct aq_options *o, const struct aq_pack_opts *opts,
                   const struct aquifer_hooks *hooks, struct aq_err *reterr)
{
    struct aq_pack_result result;
    struct aq_kernels kernels;
    struct aq_pool *pool;
    struct aq_isa_choice isa = aq_options_isa(o);
    aq_kernels_cpu(&kernels, isa.given ? aq_isa_detect() & isa.mask : aq_isa_detect());
    int rc = open_pool(&pool, o, reterr);
    if (rc < 0)
        return rc;
    rc = aq_pack_run(&result, opts, &kernels, pool, reterr);
    aq_pool_close(pool);
    if (rc < 0)
        return rc;
    if (o->json && !o->verify && !o->list) {
        json_t *dirs = json_array();
        for (uint32_t i = 0; i < opts->dir_count; i++)
            aq_json_add(&dirs, aq_json_string(opts->dirs[i]));
        return aq_hooks_json(
            hooks,
            json_pack("{si so ss sI sI sf sb so}", "schema", 1, "directories", dirs, "format",
                      aq_dtype_name(opts->format), "bytes", (json_int_t)result.bytes,
                      "bytes_written", (json_int_t)result.bytes_written, "pack_s", result.seconds,
                      "was_there", result.was_there, "identity", hash_json(result.identity)),
            reterr);
    }
    if (result.was_there)
        aq_hooks_line(hooks, AQUIFER_INFO, "'%s' holds this model already, identity %016llx",
                      opts->dirs[0], ULL(result.identity));
    else
        aq_hooks_line(hooks, AQUIFER_INFO,
                      "packed %.3f GB as %s into '%s' in %.1f s (%.2f GB/s), identity %016llx",
                      (double)result.bytes / 1e9, aq_dtype_name(opts->format), opts->dirs[0],
                      result.seconds,
                      result.seconds > 0 ? (double)result.bytes_written / 1e9 / result.seconds : 0,
                      ULL(result.identity));
    return 0;
}

static void say_what_is_lost(const struct aq_model *m, enum aq_dtype format,
                             const struct aquifer_hooks *hooks)
{
    const char *from = aq_model_rounded_from(m, format);
    if (from)
        aq_hooks_line(hooks, AQUIFER_WARNING, "%s weights are rounded to %s%s", from,
                      aq_dtype_name(format),
                      format == AQ_Q4 ? ", token table and head to int8" : "");
}

/* The two uses of a checkpoint: a list of the store's items, or the conversion. */
static int with_checkpoint(const struct aq_options *o, const char *dir,
                           const struct aquifer_hooks *hooks, struct aq_err *reterr)
{
    struct reporter reporter;
    struct aq_log log = aq_log_from_hooks(hooks);
    struct aq_model *model;
    struct aq_model_opts model_opts = {.dir = o->model, .verify = true, .log = &log};
    int rc = aq_model_open(&model, &model_opts, reterr);
    if (rc < 0)
        return rc;
    reporter_open(&reporter, o, hooks, "packed");
    struct aq_pack_opts opts = {
        .model = model,
        .model_dir = dir,
        .dirs = (const char *const *)o->store_output.item,
        .dir_count = o->store_output.count,
        .format = o->weight_format < 0 ? model->checkpoint_dtype : (enum aq_dtype)o->weight_format,
        .memory = o->host_memory,
        .log = &log,
        .progress = report_progress,
        .user = &reporter,
    };
    opts.layout = aq_layout_cpu(opts.format);
    if (o->store_output.count) {
        say_what_is_lost(model, opts.format, hooks);
        rc = convert(o, &opts, hooks, reterr);
    } else {
        struct aq_pack_plan plan;
        rc = aq_pack_plan_open(&plan, &opts, reterr);
        if (rc == 0) {
            rc = list(o, &plan, NULL, hooks, reterr);
            aq_pack_plan_close(&plan);
        }
    }
    aq_model_close(model);
    return rc;
}

static int with_store(const struct aq_options *o, const char *dir,
                      const struct aquifer_hooks *hooks, struct aq_err *reterr)
{
    struct aq_store *store;
    int rc = aq_store_open(&store, dir, reterr);
    if (rc < 0)
        return rc;
    if (o->list)
        rc = list(o, NULL, store, hooks, reterr);
    if (rc == 0 && o->verify)
        rc = verify(o, store, hooks, reterr);
    aq_store_close(store);
    return rc;
}

int aq_cmd_pack(const struct aq_options *o, const struct aquifer_hooks *hooks,
                struct aq_err *reterr)
{
    char dir[PATH_MAX];
    const char *output = o->store_output.count ? o->store_output.item[0] : NULL;
    bool look = o->list || o->verify;
    if (o->list && o->verify && o->json)
        return aq_error(reterr, -EINVAL, "pack: --json is one document: --list or --verify");
    if (!o->model)
        return with_store(o, output, hooks, reterr);
    int rc = aq_checkpoint_resolve(o->model, dir, sizeof(dir), reterr);
    if (rc < 0)
        return rc;
    if (aq_store_present(dir) && output)
        return aq_error(reterr, -EINVAL,
                        "'%s' is a packed store already: give the checkpoint it was made from",
                        o->model);
    if (aq_store_present(dir) && look)
        return with_store(o, dir, hooks, reterr);
    if (!output && o->verify)
        return aq_error(reterr, -EINVAL, "'%s' is no packed store: nothing to verify", o->model);
    rc = with_checkpoint(o, dir, hooks, reterr);
    return rc == 0 && look && output ? with_store(o, output, hooks, reterr) : rc;
}
