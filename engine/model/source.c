/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model/source.h"

#include "base/units.h"
#include "engine/model/arch/arch.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct aq_source_tensor {
    const char *name;                  /* canonical, the steps' own text */
    const struct aq_tensor_info *info; /* NULL: it is kept as */
    struct aq_quantised codes;
    struct aq_tensor_rows from;
};

void aq_source_close(struct aq_model_source *s)
{
    if (!s)
        return;
    aq_relaid_close(&s->relaid);
    aq_columns_close(s->columns);
    aq_checkpoint_close(s->checkpoint);
    aq_store_close(s->store);
    free(s->tensor);
    free(s);
}

/* ---- finding tensors --------------------------------------------------------------------- */

/* What a tensor of the steps must be; k 0: a vector of `rows` values. */
struct wanted {
    const char *name;
    uint32_t rows, k;
    struct aq_tensor_rows from;
    bool table;
};

static uint32_t rows_of(const struct wanted *w)
{
    return w->from.total ? w->from.total : w->rows;
}

/* The variant-th name in checkpoints of a tensor, or of what stands in front of its '#'. */
static bool name_of(const struct aq_model *m, const char *canonical, uint32_t variant,
                    char name[2 * AQ_NAME_MAX])
{
    char whole[AQ_NAME_MAX];
    snprintf(whole, sizeof(whole), "%.*s", (int)strcspn(canonical, "#"), canonical);
    return aq_arch_tensor_name(m->config.arch, whole, variant, name);
}

/* 1: it is there, as it is or as codes; 0: it is not. */
static int find_tensor(const struct aq_model *m, const struct wanted *w,
                       struct aq_source_tensor *ret, struct aq_err *reterr)
{
    const struct aq_checkpoint *c = m->source->checkpoint;
    char name[2 * AQ_NAME_MAX];
    *ret = (struct aq_source_tensor){.name = w->name, .from = w->from};
    for (uint32_t variant = 0; name_of(m, w->name, variant, name); variant++) {
        int rc = w->k ? aq_quantised_find(&ret->codes, &m->config.quantised, c, name, rows_of(w),
                                          w->k, reterr)
                      : 0;
        if (rc < 0) {
            aq_error_prefix(reterr, "%s", m->name);
            return rc;
        }
        ret->codes.columns = m->source->columns;
        ret->info = rc ? NULL : aq_checkpoint_find(c, name);
        if (rc || ret->info)
            return 1;
    }
    return 0;
}

/* Of a tensor that is not there: codes of it that config.json does not tell of, or NULL. */
static const struct aq_tensor_info *find_stray(const struct aq_model *m, const char *canonical)
{
    const struct aq_tensor_info *t = NULL;
    char name[2 * AQ_NAME_MAX];
    for (uint32_t variant = 0; !t && name_of(m, canonical, variant, name); variant++)
        t = aq_quantised_stray(m->source->checkpoint, name);
    return t;
}

/* It or its codes, whatever they are; NULL. */
static const struct aq_tensor_info *find_any(const struct aq_model *m, const char *canonical)
{
    const struct aq_tensor_info *t = NULL;
    char name[2 * AQ_NAME_MAX];
    for (uint32_t variant = 0; !t && name_of(m, canonical, variant, name); variant++)
        t = aq_checkpoint_find(m->source->checkpoint, name);
    return t ? t : find_stray(m, canonical);
}

/* Names the prefixes that were tried before the bare name. */
static int missing_tensor(const struct aq_model *m, const char *canonical, struct aq_err *reterr)
{
    char tried[256] = "", quoted[160];
    size_t at = 0;
    const struct aq_tensor_info *stray = find_stray(m, canonical);
    if (stray)
        return aq_error(reterr, -ENOEXEC,
                        "%s: tensor '%.*s' is missing, and '%s' is there: expected a "
                        "'quantization_config' in config.json that says how it was quantised",
                        m->name, (int)strcspn(canonical, "#"), canonical,
                        aq_quote(quoted, sizeof(quoted), stray->name, strlen(stray->name)));
    for (const char *const *p = m->config.arch->prefixes; *p && **p; p++) {
        at += (size_t)snprintf(tried + at, sizeof(tried) - at, "%s'%s'",
                               at ? " and " : " (also under ", *p);
        assert(at < sizeof(tried));
    }
    return aq_error(reterr, -ENOEXEC, "%s: tensor '%.*s' is missing%s%s", m->name,
                    (int)strcspn(canonical, "#"), canonical, tried, at ? ")" : "");
}

static int check_tensor(const struct aq_model *m, const struct wanted *w,
                        struct aq_source_tensor *ret, struct aq_err *reterr)
{
    int rc = find_tensor(m, w, ret, reterr);
    if (rc <= 0)
        return rc < 0 ? rc : missing_tensor(m, w->name, reterr);
    const struct aq_tensor_info *t = ret->info;
    uint32_t rows = rows_of(w);
    bool fits = !t || (w->k ? t->rank == 2 && t->shape[0] == rows && t->shape[1] == w->k
                            : t->rank == 1 && t->shape[0] == rows);
    if (!t || (aq_dtype_is_float(t->dtype) && fits))
        return 0;
    char found[160], expected[64];
    snprintf(expected, sizeof(expected), w->k ? "[%u, %u]" : "[%u]", rows, w->k);
    return aq_error(reterr, -ENOEXEC,
                    "%s: tensor '%.*s': expected f32, f16 or bf16 %s by config.json, found %s",
                    m->name, (int)strcspn(w->name, "#"), w->name, expected,
                    aq_tensor_text(t, found, sizeof(found)));
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
    int rc = check_tensor(m, w, &s->tensor[s->tensor_count], reterr);
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

static void mark(const struct aq_checkpoint *c, const struct aq_source_tensor *t, bool *known)
{
    const struct aq_tensor_info *first = aq_checkpoint_tensor(c, 0);
    if (t->info)
        known[t->info - first] = true;
    for (int i = 0; !t->info && i < AQ_QUANTISED_PARTS; i++)
        if (t->codes.part[i])
            known[t->codes.part[i] - first] = true;
}

static struct wanted wanted_head(const struct aq_model *m)
{
    return (struct wanted){
        .name = m->config.arch->head, .rows = m->config.vocab_size, .k = m->config.embed_width};
}

/* Of each of the checkpoint's tensors whether a step names it.  The LM head may be there and be
 * tied. */
static void mark_known(const struct aq_model *m, bool *known)
{
    const struct aq_model_source *s = m->source;
    const struct wanted w = wanted_head(m);
    struct aq_source_tensor head;
    for (size_t i = 0; i < s->tensor_count; i++)
        mark(s->checkpoint, &s->tensor[i], known);
    if (find_tensor(m, &w, &head, NULL) == 1)
        mark(s->checkpoint, &head, known);
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
        const struct aq_tensor_info *t = aq_checkpoint_tensor(c, i);
        const char *name = t->name;
        if (known[i] || ends_with_one(name, m->config.arch->ignored))
            continue;
        int rc = aq_quantised_is_idle(&m->config.quantised, c, t, reterr);
        if (rc < 0) {
            free(known);
            return rc;
        }
        if (rc)
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

/* ---- what was quantised ------------------------------------------------------------------ */

/* Fused tensors count once: their parts are neighbours. */
static void say_quantised(const struct aq_model *m, const struct aq_log *log)
{
    const struct aq_model_source *s = m->source;
    const struct aq_quantised *first = NULL, *last = NULL, *other = NULL;
    uint64_t bytes = 0, values = 0, int8 = 0;
    size_t matrices = 0;
    char words[160], more[160] = "", size[3][AQ_SIZE_TEXT_MAX];
    for (size_t i = 0; i < s->tensor_count; i++) {
        const struct aq_quantised *q = &s->tensor[i].codes;
        if (s->tensor[i].info || (last && last->part[0] == q->part[0]))
            continue;
        first = first ? first : q;
        other = aq_quantised_name(q) != aq_quantised_name(first) ? q : other;
        last = q;
        matrices++;
        bytes += aq_quantised_bytes(q);
        values += (uint64_t)q->rows * q->k;
        int8 += aq_panel_count(q->rows) * (uint64_t)aq_panel_offset(AQ_Q8, q->k);
    }
    if (!matrices)
        return;
    if (other)
        snprintf(more, sizeof(more), " and %s", aq_quantised_name(other));
    enum aq_dtype dtype = aq_source_dtype(m, m->steps.step[1].matrix[0].name);
    aq_log_line(log, AQ_LOG_INFO,
                "%s: %zu matrices are %s%s, %s: read as %s, which takes %s; --weight-format int8 "
                "takes %s%s",
                m->name, matrices, aq_quantised_words(first, words, sizeof(words)), more,
                aq_format_size(size[0], bytes), aq_dtype_name(dtype),
                aq_format_size(size[1], values * aq_dtype_bytes(dtype)),
                aq_format_size(size[2], int8),
                m->config.quantised.activations
                    ? "; activations, keys and values are not rounded to the checkpoint's formats"
                    : "");
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
    int rc = m->config.arch->ignored ? check_rest(m, log, reterr) : 0;
    if (rc == 0)
        say_quantised(m, log);
    return rc;
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

bool aq_source_is_quantised(const struct aq_model *m, const char *canonical)
{
    return m->source && !m->source->store && !tensor_of(m, canonical)->info;
}

const char *aq_source_quantised_name(const struct aq_model *m)
{
    const struct aq_model_source *s = m->source;
    for (size_t i = 0; s && i < s->tensor_count; i++)
        if (!s->tensor[i].info)
            return aq_quantised_name(&s->tensor[i].codes);
    return NULL;
}

uint64_t aq_source_decoding_bytes(const struct aq_model *m, uint32_t threads)
{
    const struct aq_model_source *s = m->source;
    uint64_t most = 0;
    for (size_t i = 0; s && i < s->tensor_count; i++)
        if (!s->tensor[i].info)
            most =
                aq_max_u64(most, aq_quantised_memory(&s->tensor[i].codes, AQ_PANEL_ROWS, threads));
    return most;
}

void aq_source_settle(const struct aq_model *m)
{
    if (m->source && m->source->columns)
        aq_columns_forget(m->source->columns);
}

enum aq_dtype aq_source_dtype(const struct aq_model *m, const char *canonical)
{
    enum aq_dtype claim = m->config.torch_dtype;
    if (m->random)
        return claim == AQ_BF16 || claim == AQ_F32 ? claim : AQ_F16;
    if (m->source->store)
        return aq_store_find(m->source->store, canonical)->dtype;
    const struct aq_tensor_info *info = tensor_of(m, canonical)->info;
    return info ? info->dtype : aq_dtype_is_float(claim) ? claim : AQ_BF16;
}

/* Rows of the tensor as the files have it. */
static int read_whole(const struct aq_model *m, const struct aq_source_tensor *t, uint64_t first,
                      uint64_t rows, void *dst, struct aq_err *reterr)
{
    if (t->info)
        return aq_checkpoint_read(m->source->checkpoint, t->info, first, rows, dst, reterr);
    return aq_quantised_read(&t->codes, (uint32_t)first, (uint32_t)rows, dst, reterr);
}

int aq_source_read_rows(const struct aq_model *m, const char *canonical, uint32_t first,
                        uint32_t rows, uint32_t k, void *dst, enum aq_dtype *ret_dtype,
                        struct aq_err *reterr)
{
    const struct aq_source_tensor *t = tensor_of(m, canonical);
    bool vector = t->info && t->info->rank == 1; /* its values are the rows */
    size_t row_bytes = t->info ? aq_tensor_row_bytes(t->info) : sizeof(float) * k;
    uint32_t at = vector ? 0 : first, end = at + (vector ? k : rows);
    const struct aq_tensor_rows whole = {.block = UINT32_MAX},
                                *from = t->from.total ? &t->from : &whole;
    *ret_dtype = t->info ? t->info->dtype : AQ_F32;
    while (at < end) {
        uint32_t in = at % from->block, run = (uint32_t)aq_min_u64(from->block - in, end - at);
        uint64_t row = from->first + (uint64_t)(at / from->block) * from->every + in;
        int rc = read_whole(m, t, row, run, dst, reterr);
        if (rc < 0)
            return rc;
        dst = (char *)dst + run * row_bytes;
        at += run;
    }
    return 0;
}

/* ---- the LM head ------------------------------------------------------------------------- */

/* Have two matrices [rows][k] the same values?  1 yes, 0 no. */
static int same_values(const struct aq_model *m, const struct aq_source_tensor *a,
                       const struct aq_source_tensor *b, uint64_t all, uint64_t k,
                       struct aq_err *reterr)
{
    enum { CHUNK_ELEMENTS = 1 << 18 };
    const struct aq_tensor_info *ia = a->info, *ib = b->info;
    if (ia && ib && ia->file == ib->file && ia->offset == ib->offset && ia->dtype == ib->dtype &&
        ia->contiguous && ib->contiguous)
        return 1; /* one storage under two names, as torch saves tied ones */
    uint64_t once = aq_max_u64(1, CHUNK_ELEMENTS / k);
    float *x = malloc(2 * once * k * sizeof(*x)), *y = x + once * k;
    void *raw = malloc(once * k * sizeof(*x));
    int rc = x && raw ? 1 : aq_error_memory(reterr, "%s: comparison of tensors", m->name);
    for (uint64_t row = 0; rc == 1 && row < all; row += once) {
        uint64_t rows = aq_min_u64(once, all - row);
        rc = read_whole(m, a, row, rows, raw, reterr);
        if (rc < 0)
            break;
        aq_convert(x, AQ_F32, raw, ia ? ia->dtype : AQ_F32, rows * k);
        rc = read_whole(m, b, row, rows, raw, reterr);
        if (rc < 0)
            break;
        aq_convert(y, AQ_F32, raw, ib ? ib->dtype : AQ_F32, rows * k);
        rc = memcmp(x, y, rows * k * sizeof(*x)) == 0;
    }
    free(x);
    free(raw);
    return rc;
}

/* Tied by the configuration, and yet there is a head: transformers (5.23, modeling_utils.py,
 * tie_weights) takes the checkpoint's own where its values differ, and so does this.  A head of
 * another shape or type is not tied either; what is wrong with it is said by aq_source_check. */
static int compare_head(struct aq_model *m, const char *name, const struct aq_log *log,
                        struct aq_err *reterr)
{
    struct aq_source_tensor table, head;
    struct wanted w = wanted_head(m);
    bool fits = check_tensor(m, &w, &head, NULL) == 0;
    w.name = m->config.arch->tokens;
    int rc = check_tensor(m, &w, &table, reterr);
    if (rc < 0)
        return rc;
    rc = fits ? same_values(m, &head, &table, w.rows, w.k, reterr) : 0;
    if (rc < 0)
        return aq_error_prefix(reterr, "%s", m->name);
    m->config.tie_word_embeddings = rc == 1;
    if (rc == 0)
        aq_log_line(
            log, AQ_LOG_WARNING,
            "%s: config.json ties the LM head to the token table, but '%s' has other values; "
            "it is used, as transformers does (\"tie_word_embeddings\": false says the same)",
            m->name, name);
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
    const struct aq_tensor_info *head = find_any(m, arch->head), *table = find_any(m, arch->tokens);
    if (m->config.tie_word_embeddings)
        return head && table ? compare_head(m, head->name, log, reterr) : 0;
    if (!head && table) {
        aq_log_line(log, AQ_LOG_INFO,
                    "%s: there is no '%s': the token table is the LM head as well", m->name,
                    arch->head);
        m->config.tie_word_embeddings = true;
    }
    return 0;
}
