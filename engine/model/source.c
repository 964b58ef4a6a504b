/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model/source.h"

#include "engine/model/arch/arch.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct aq_source_tensor {
    const char *name; /* canonical, the steps' own text */
    const struct aq_tensor_info *info;
    struct aq_tensor_rows from;
};

void aq_source_close(struct aq_model_source *s)
{
    if (!s)
        return;
    aq_checkpoint_close(s->checkpoint);
    aq_store_close(s->store);
    free(s->tensor);
    free(s);
}

/* ---- finding tensors --------------------------------------------------------------------- */

/* The checkpoint's tensor of this name, or of what stands in front of its '#'. */
static const struct aq_tensor_info *find_tensor(const struct aq_model *m, const char *canonical)
{
    char whole[AQ_NAME_MAX], name[2 * AQ_NAME_MAX];
    snprintf(whole, sizeof(whole), "%.*s", (int)strcspn(canonical, "#"), canonical);
    for (uint32_t variant = 0; aq_arch_tensor_name(m->config.arch, whole, variant, name);
         variant++) {
        const struct aq_tensor_info *t = aq_checkpoint_find(m->source->checkpoint, name);
        if (t)
            return t;
    }
    return NULL;
}

static void shape_text(char *text, size_t size, const struct aq_tensor_info *t)
{
    size_t at = (size_t)snprintf(text, size, "%s [", aq_dtype_name(t->dtype));
    for (uint32_t i = 0; i < t->rank && at < size; i++)
        at += (size_t)snprintf(text + at, size - at, "%s%llu", i ? ", " : "",
                               (unsigned long long)t->shape[i]);
    if (at < size)
        snprintf(text + at, size - at, "]");
}

/* Names the prefixes that were tried before the bare name. */
static int missing_tensor(const struct aq_model *m, const char *canonical, struct aq_err *reterr)
{
    char tried[256] = "";
    size_t at = 0;
    for (const char *const *p = m->config.arch->prefixes; *p && **p; p++) {
        at += (size_t)snprintf(tried + at, sizeof(tried) - at, "%s'%s'",
                               at ? " and " : " (also under ", *p);
        assert(at < sizeof(tried));
    }
    return aq_error(reterr, -ENOEXEC, "%s: tensor '%.*s' is missing%s%s", m->name,
                    (int)strcspn(canonical, "#"), canonical, tried, at ? ")" : "");
}

/* What a tensor of the steps must be; k 0: a vector of `rows` values. */
struct wanted {
    const char *name;
    uint32_t rows, k;
    struct aq_tensor_rows from;
    bool table;
};

static int check_tensor(const struct aq_model *m, const struct wanted *w,
                        const struct aq_tensor_info **ret, struct aq_err *reterr)
{
    const struct aq_tensor_info *t = find_tensor(m, w->name);
    if (!t)
        return missing_tensor(m, w->name, reterr);
    uint32_t rows = w->from.total ? w->from.total : w->rows;
    bool real = t->dtype == AQ_F32 || t->dtype == AQ_F16 || t->dtype == AQ_BF16;
    bool fits = w->k ? t->rank == 2 && t->shape[0] == rows && t->shape[1] == w->k
                     : t->rank == 1 && t->shape[0] == rows;
    *ret = t;
    if (real && fits)
        return 0;
    char found[160], expected[64];
    shape_text(found, sizeof(found), t);
    snprintf(expected, sizeof(expected), w->k ? "[%u, %u]" : "[%u]", rows, w->k);
    return aq_error(reterr, -ENOEXEC,
                    "%s: tensor '%.*s': expected f32, f16 or bf16 %s by config.json, found %s",
                    m->name, (int)strcspn(w->name, "#"), w->name, expected, found);
}

static int check_item(const struct aq_model *m, const struct wanted *w, struct aq_err *reterr)
{
    const struct aq_store_item *item = aq_store_find(m->source->store, w->name);
    if (!item)
        return aq_error(reterr, -ENOEXEC, "%s: the store has no item '%s'", m->name, w->name);
    enum aq_store_kind kind = !w->k ? AQ_STORE_VECTOR : w->table ? AQ_STORE_TABLE : AQ_STORE_MATRIX;
    uint32_t want_rows = w->k ? w->rows : 1, want_cols = w->k ? w->k : w->rows;
    if (item->kind != kind || item->rows != want_rows || item->cols != want_cols)
        return aq_error(reterr, -ENOEXEC,
                        "%s: item '%s': expected %s [%u, %u] by config.json, found %s [%u, %u]",
                        m->name, w->name, aq_store_kind_name(kind), want_rows, want_cols,
                        aq_store_kind_name(item->kind), item->rows, item->cols);
    return 0;
}

/* The loader reads all matrices in one format (but the vocabulary's), as pack writes them. */
static int check_format(const struct aq_model *m, const struct aq_matrix_desc *w,
                        struct aq_err *reterr)
{
    const struct aq_store_item *item = aq_store_find(m->source->store, w->name);
    const struct aq_store_item *first =
        aq_store_find(m->source->store, m->steps.step[1].matrix[0].name);
    enum aq_dtype dtype = first ? aq_matrix_format(w, first->dtype) : AQ_DTYPE_COUNT;
    bool layout = item->layout == AQ_LAYOUT_ROWS || item->layout == aq_layout_cpu(item->dtype);
    if (item->dtype == dtype && layout)
        return 0;
    return aq_error(
        reterr, -ENOEXEC,
        "%s: item '%s': expected the format %s of the other matrices, found %s in layout %s",
        m->name, w->name, aq_dtype_name(dtype), aq_dtype_name(item->dtype),
        aq_layout_name(item->layout));
}

static int check_one(struct aq_model *m, const struct wanted *w, struct aq_err *reterr)
{
    struct aq_model_source *s = m->source;
    if (s->store)
        return check_item(m, w, reterr);
    struct aq_source_tensor *found = &s->tensor[s->tensor_count];
    *found = (struct aq_source_tensor){.name = w->name, .from = w->from};
    int rc = check_tensor(m, w, &found->info, reterr);
    s->tensor_count += rc == 0;
    return rc;
}

static int check_step(struct aq_model *m, const struct aq_step_desc *d, struct aq_err *reterr)
{
    for (uint32_t i = 0; i < d->matrix_count; i++) {
        const struct aq_matrix_desc *w = &d->matrix[i];
        int rc = check_one(m, &(struct wanted){w->name, w->rows, w->k, w->from, w->table}, reterr);
        if (rc == 0 && m->source->store && !w->table)
            rc = check_format(m, w, reterr);
        if (rc < 0)
            return rc;
    }
    for (uint32_t i = 0; i < d->vector_count; i++) {
        for (uint32_t n = 0; n < d->vector[i].part_count; n++) {
            const struct aq_vector_part *part = &d->vector[i].part[n];
            int rc = part->name[0] ? check_one(m,
                                               &(struct wanted){.name = part->name,
                                                                .rows = part->count,
                                                                .from = part->from},
                                               reterr)
                                   : 0;
            if (rc < 0)
                return rc;
        }
    }
    return 0;
}

static int compare_names(const void *a, const void *b)
{
    const struct aq_source_tensor *x = a, *y = b;
    return strcmp(x->name, y->name);
}

/* ---- tensors that no step names ---------------------------------------------------------- */

static bool ends_with_one(const char *name, const char *const *ends)
{
    for (; *ends; ends++) {
        size_t n = strlen(name), end = strlen(*ends);
        if (n >= end && strcmp(name + n - end, *ends) == 0)
            return true;
    }
    return false;
}

/* Of each of the checkpoint's tensors whether a step names it.  The LM head may be there and be
 * tied. */
static void mark_known(const struct aq_model *m, bool *known)
{
    const struct aq_model_source *s = m->source;
    const struct aq_tensor_info *first = aq_checkpoint_tensor(s->checkpoint, 0),
                                *head = find_tensor(m, m->config.arch->head);
    for (size_t i = 0; i < s->tensor_count; i++)
        known[s->tensor[i].info - first] = true;
    if (head)
        known[head - first] = true;
}

/* Weights that are left out without a word would give a model that nobody trained: those of
 * adapters, of classifiers, of quantised products, or biases that config.json does not tell of. */
static int check_rest(const struct aq_model *m, const struct aq_log *log, struct aq_err *reterr)
{
    const struct aq_checkpoint *c = m->source->checkpoint;
    size_t count = aq_checkpoint_count(c), rest = 0, other = 0;
    const char *first = NULL;
    bool *known = calloc(count, sizeof(*known));
    if (!known)
        return aq_error_memory(reterr, "%s: list of %zu tensors", m->name, count);
    mark_known(m, known);
    for (size_t i = 0; i < count; i++) {
        const char *name = aq_checkpoint_tensor(c, i)->name;
        if (known[i] || ends_with_one(name, m->config.arch->ignored))
            continue;
        bool not_text = m->config.text_of_more && !strstr(name, "language_model");
        other += not_text;
        rest += !not_text;
        first = first || not_text ? first : name;
    }
    free(known);
    if (other)
        aq_log_line(log, AQ_LOG_INFO, "%s: text only: %zu tensors of other parts are left out",
                    m->name, other);
    if (!rest)
        return 0;
    char quoted[128];
    return aq_error(reterr, -ENOEXEC,
                    "%s: expected the tensors of a model of type '%s' alone, found %zu other%s, "
                    "such as '%s'",
                    m->name, m->config.arch->name, rest, rest == 1 ? "" : "s",
                    aq_quote(quoted, sizeof(quoted), first, strlen(first)));
}

int aq_source_check(struct aq_model *m, const struct aq_log *log, struct aq_err *reterr)
{
    struct aq_model_source *s = m->source;
    size_t most = m->steps.matrix_count + (size_t)m->steps.vector_count * AQ_VECTOR_PART_MAX;
    s->tensor = s->store ? NULL : calloc(most, sizeof(*s->tensor));
    if (!s->store && !s->tensor)
        return aq_error_memory(reterr, "%s: list of tensors", m->name);
    for (uint32_t i = 0; i < m->steps.step_count; i++) {
        int rc = check_step(m, &m->steps.step[i], reterr);
        if (rc < 0)
            return rc;
    }
    if (s->store)
        return 0;
    qsort(s->tensor, s->tensor_count, sizeof(*s->tensor), compare_names);
    return m->config.arch->ignored ? check_rest(m, log, reterr) : 0;
}

/* ---- the LM head ------------------------------------------------------------------------- */

/* Have two tensors of one shape the same values?  1 yes, 0 no. */
static int same_values(const struct aq_model *m, const struct aq_tensor_info *a,
                       const struct aq_tensor_info *b, struct aq_err *reterr)
{
    enum { CHUNK_ELEMENTS = 1 << 18 };
    if (a->file == b->file && a->offset == b->offset && a->dtype == b->dtype && a->contiguous &&
        b->contiguous)
        return 1; /* one storage under two names, as torch saves tied ones */
    uint64_t width = a->elements / a->shape[0];
    uint64_t once = aq_max_u64(1, CHUNK_ELEMENTS / width);
    float *x = malloc(2 * once * width * sizeof(*x)), *y = x + once * width;
    void *raw = malloc(once * width * sizeof(*x));
    int rc = x && raw ? 1 : aq_error_memory(reterr, "%s: comparison of tensors", m->name);
    for (uint64_t row = 0; rc == 1 && row < a->shape[0]; row += once) {
        uint64_t rows = aq_min_u64(once, a->shape[0] - row);
        rc = aq_checkpoint_read(m->source->checkpoint, a, row, rows, raw, reterr);
        if (rc < 0)
            break;
        aq_convert(x, AQ_F32, raw, a->dtype, rows * width);
        rc = aq_checkpoint_read(m->source->checkpoint, b, row, rows, raw, reterr);
        if (rc < 0)
            break;
        aq_convert(y, AQ_F32, raw, b->dtype, rows * width);
        rc = memcmp(x, y, rows * width * sizeof(*x)) == 0;
    }
    free(x);
    free(raw);
    return rc;
}

/* Tied by the configuration, and yet there is a head: transformers (5.23, modeling_utils.py,
 * tie_weights) takes the checkpoint's own where its values differ, and so does this.  A head of
 * another shape or type is not tied either; what is wrong with it is said by aq_source_check. */
static int compare_head(struct aq_model *m, const struct aq_tensor_info *head,
                        const struct aq_tensor_info *table, const struct aq_log *log,
                        struct aq_err *reterr)
{
    const struct aq_tensor_info *found;
    struct wanted w = {
        .name = m->config.arch->tokens, .rows = m->config.vocab_size, .k = m->config.embed_width};
    int rc = check_tensor(m, &w, &found, reterr);
    if (rc < 0)
        return rc;
    w.name = m->config.arch->head;
    rc = check_tensor(m, &w, &found, NULL) == 0 ? same_values(m, head, table, reterr) : 0;
    if (rc < 0)
        return aq_error_prefix(reterr, "%s", m->name);
    m->config.tie_word_embeddings = rc == 1;
    if (rc == 0)
        aq_log_line(
            log, AQ_LOG_WARNING,
            "%s: config.json ties the LM head to the token table, but '%s' has other values; "
            "it is used, as transformers does (\"tie_word_embeddings\": false says the same)",
            m->name, head->name);
    return 0;
}

int aq_source_read_tie(struct aq_model *m, const struct aq_log *log, struct aq_err *reterr)
{
    const struct aq_arch *arch = m->config.arch;
    if (!m->source)
        return 0;
    if (m->source->store) {
        m->config.tie_word_embeddings = !aq_store_find(m->source->store, arch->head);
        return 0;
    }
    const struct aq_tensor_info *head = find_tensor(m, arch->head),
                                *table = find_tensor(m, arch->tokens);
    if (m->config.tie_word_embeddings)
        return head && table ? compare_head(m, head, table, log, reterr) : 0;
    if (!head && table) {
        aq_log_line(log, AQ_LOG_INFO,
                    "%s: there is no '%s': the token table is the LM head as well", m->name,
                    arch->head);
        m->config.tie_word_embeddings = true;
    }
    return 0;
}

/* ---- reading ----------------------------------------------------------------------------- */

static const struct aq_source_tensor *tensor_of(const struct aq_model *m, const char *canonical)
{
    const struct aq_model_source *s = m->source;
    const struct aq_source_tensor key = {.name = canonical},
                                  *t = bsearch(&key, s->tensor, s->tensor_count, sizeof(key),
                                               compare_names);
    assert(t); /* one that the steps name */
    return t;
}

enum aq_dtype aq_source_dtype(const struct aq_model *m, const char *canonical)
{
    if (m->random)
        return m->config.torch_dtype == AQ_BF16 || m->config.torch_dtype == AQ_F32
                   ? m->config.torch_dtype
                   : AQ_F16;
    if (m->source->store)
        return aq_store_find(m->source->store, canonical)->dtype;
    return tensor_of(m, canonical)->info->dtype;
}

int aq_source_read_rows(const struct aq_model *m, const char *canonical, uint32_t first,
                        uint32_t rows, uint32_t k, void *dst, struct aq_err *reterr)
{
    const struct aq_source_tensor *t = tensor_of(m, canonical);
    bool vector = t->info->rank == 1; /* its values are the rows */
    uint32_t at = vector ? 0 : first, end = at + (vector ? k : rows);
    const struct aq_tensor_rows whole = {.block = UINT32_MAX},
                                *from = t->from.total ? &t->from : &whole;
    while (at < end) {
        uint32_t in = at % from->block, run = (uint32_t)aq_min_u64(from->block - in, end - at);
        uint64_t row = from->first + (uint64_t)(at / from->block) * from->every + in;
        int rc = aq_checkpoint_read(m->source->checkpoint, t->info, row, run, dst, reterr);
        if (rc < 0)
            return rc;
        dst = (char *)dst + run * aq_tensor_row_bytes(t->info);
        at += run;
    }
    return 0;
}
