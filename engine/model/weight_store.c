/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model/weight_store.h"

#include "base/clock.h"
#include "base/paths.h"
#include "engine/model/pack.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool is_laid_out(const struct aq_model *m, const struct aq_store *s, enum aq_dtype format)
{
    for (uint32_t j = 0; j < m->steps.step_count; j++) {
        const struct aq_step_desc *d = &m->steps.step[j];
        for (uint32_t i = 0; i < d->matrix_count; i++) {
            const struct aq_store_item *item = aq_store_find(s, d->matrix[i].name);
            if (!item)
                return false;
            enum aq_dtype dtype = aq_matrix_format(&d->matrix[i], format);
            if (!d->matrix[i].table &&
                (item->dtype != dtype || item->layout != aq_model_layout(m, dtype) ||
                 item->rows != d->matrix[i].rows || item->cols != d->matrix[i].k))
                return false;
        }
    }
    return true;
}

static int cache_path(char path[PATH_MAX], const struct aq_model *m, const char *cache_dir,
                      enum aq_dtype format, bool make, struct aq_err *reterr)
{
    char *cache = aq_path_cache(cache_dir, reterr);
    if (!cache) {
        aq_error_prefix(reterr, "weights stream from a packed store in the cache");
        return -ENOENT;
    }
    const char *scales = aq_pack_scales(format);
    int n = snprintf(path, PATH_MAX, "%s/%s-%016llx-%s-%s%s%s", cache, m->name,
                     (unsigned long long)m->hash, aq_dtype_name(format),
                     aq_layout_name(aq_model_layout(m, format)), scales ? "-" : "",
                     scales ? scales : "");
    int rc = n >= PATH_MAX ? aq_error(reterr, -ENAMETOOLONG, "cache directory '%s'", cache)
             : make        ? aq_path_make(cache, reterr)
                           : 0;
    free(cache);
    return rc;
}

bool aq_weight_store_present(const struct aq_model *m, const char *cache_dir, enum aq_dtype format)
{
    char path[PATH_MAX];
    struct aq_store *own = aq_model_store(m);
    return (own && is_laid_out(m, own, format)) ||
           (cache_path(path, m, cache_dir, format, false, NULL) == 0 && aq_store_present(path));
}

static bool stopped(void *user, uint64_t done, uint64_t total)
{
    const struct aq_weight_store_opts *o = user;
    return o->stop && o->stop(o->stop_user);
}

static int pack(const char *path, const struct aq_weight_store_opts *o, double *ret_pack_s,
                struct aq_err *reterr)
{
    struct aq_pack_opts opts = {
        .model = o->model,
        .model_dir = o->model_dir,
        .dirs = &path,
        .dir_count = 1,
        .format = o->format,
        .layout = aq_model_layout(o->model, o->format),
        .memory = o->memory,
        .log = o->log,
        .progress = stopped,
        .user = (void *)o,
    };
    struct aq_pack_result result;
    double start = aq_clock_s();
    int rc = aq_pack_run(&result, &opts, o->kernels, o->pool, reterr);
    *ret_pack_s += aq_clock_s() - start;
    return rc;
}

int aq_weight_store_open(struct aq_store **ret, bool *ret_borrowed, double *ret_pack_s,
                         const struct aq_weight_store_opts *o, struct aq_err *reterr)
{
    struct aq_store *own = aq_model_store(o->model);
    if (own && is_laid_out(o->model, own, o->format)) {
        *ret = own;
        *ret_borrowed = true;
        return 0;
    }
    char path[PATH_MAX];
    int rc = cache_path(path, o->model, o->cache_dir, o->format, true, reterr);
    if (rc == 0 && !aq_store_present(path))
        rc = pack(path, o, ret_pack_s, reterr);
    struct aq_store *s = NULL;
    rc = rc < 0 ? rc : aq_store_open(&s, path, reterr);
    if (rc < 0)
        return rc;
    if (!is_laid_out(o->model, s, o->format)) {
        aq_store_close(s);
        return aq_error(reterr, -ENOEXEC, "'%s' does not hold this model in %s; remove it", path,
                        aq_dtype_name(o->format));
    }
    *ret = s;
    *ret_borrowed = false;
    return 0;
}
