/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/compute/cuda_graph.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum {
    LAUNCHES_MAX = 512,
    LAUNCHES_MIN = 3, /* fewer cost about what a graph does */
    KNOWN_MIN = 128,
    KNOWN_MAX = 1024, /* each may hold some of the driver's memory */
};

enum kind {
    NORM,
    EMBED,
    ADD_ROWS,
    FINISH,
    UNPACK,
    DENSE,
    PRODUCT_CODES,
    KV_APPEND,
    KV_VICTIM,
    KV_SELECT,
    KV_MOVE,
    KV_NOTE,
    ATTN_DECODE,
    ATTN_PREFILL,
    ATTN_STATS,
};
static const char *const names[] = {
    [NORM] = "norm",
    [EMBED] = "embed",
    [ADD_ROWS] = "add_rows",
    [FINISH] = "finish",
    [UNPACK] = "unpack",
    [DENSE] = "cublasLtMatmul",
    [PRODUCT_CODES] = "product_codes",
    [KV_APPEND] = "kv_append",
    [KV_VICTIM] = "kv_victim",
    [KV_SELECT] = "kv_select",
    [KV_MOVE] = "kv_move",
    [KV_NOTE] = "kv_note",
    [ATTN_DECODE] = "attn_decode",
    [ATTN_PREFILL] = "attn_prefill",
    [ATTN_STATS] = "attn_stats",
};

/* A launch with its arguments.  What is not set, padding included, is zero: lists are compared by
 * their bytes. */
struct launch {
    uint32_t kind, op;
    union {
        struct aq_norm norm;
        struct aq_embed embed;
        struct {
            float *y;
            size_t y_stride;
            const void *table;
            const uint32_t *index;
            uint32_t table_dtype, rows, k;
        } add_rows;
        struct aq_cuda_finish finish;
        struct aq_cuda_unpack unpack;
        struct {
            struct aq_cuda_blas *blas;
            struct aq_cuda_dense p;
        } dense;
        struct aq_cuda_codes_product codes;
        struct {
            struct aq_attn a;
            struct aq_attn_rule rule;
            struct aq_attn_pairs pairs;
            bool has_rule, has_pairs;
            struct aq_cuda_reach reach;
            const float *k_new, *v_new;
            size_t stride;
        } attn;
        struct {
            const struct aq_kv_select *selects;
            uint32_t count, kv_heads;
        } select;
        struct {
            const struct aq_kv_move *moves;
            uint32_t count, kv_dtype, kv_heads, head_dim;
        } move;
        struct {
            uint32_t *target;
            const uint32_t *victim;
            uint32_t kv_heads, whole;
        } note;
    };
};

/* A list that was there before. */
struct known {
    XXH128_hash_t hash;
    uint64_t used;  /* when it came last; 0: no list */
    void *graph;    /* NULL: it came once */
    bool unwilling; /* it cannot be captured */
};

struct aq_cuda_record {
    struct aq_cuda_record_opts opts;
    const struct aq_cuda_kernels *real;
    struct aq_cuda_kernels kernels;
    struct launch *list;
    uint32_t count, op;
    int rc;            /* of making room for another launch */
    uint64_t now, far; /* lists that came; what has not come for more does not come again */
    uint32_t known_max;
    struct known *known;
    uint64_t free_bytes; /* of the GPU, before there were graphs; 0: there were none */
    bool crowded;        /* there was no room for another; until one goes */
};

/* ---- noting ------------------------------------------------------------------------------ */

/* The next launch of the list; NULL where there is no room: the exec is a real one then, unless
 * r->rc says that nothing more is to be launched. */
static struct launch *next(const struct aq_cuda_exec *ex, enum kind kind)
{
    struct aq_cuda_record *r = ex->stream;
    if (r->count == r->opts.launches_max) {
        r->rc = r->opts.full(r->opts.user);
        assert(r->rc || ex->stream != r);
        return NULL;
    }
    struct launch *l = &r->list[r->count++];
    memset(l, 0, sizeof(*l));
    l->kind = kind;
    l->op = r->op;
    return l;
}

/* Field by field: an assignment of the whole would bring padding along. */
#define SET(to, from, field) ((to)->field = (from)->field)

static int note_norm(const struct aq_cuda_exec *ex, const struct aq_norm *n)
{
    const struct aq_cuda_record *r = ex->stream;
    struct launch *l = next(ex, NORM);
    if (!l)
        return r->rc ? r->rc : r->real->norm(ex, n);
    SET(&l->norm, n, kind);
    SET(&l->norm, n, x);
    SET(&l->norm, n, x_stride);
    SET(&l->norm, n, row_index);
    SET(&l->norm, n, y);
    SET(&l->norm, n, y_dtype);
    SET(&l->norm, n, y_stride);
    SET(&l->norm, n, w);
    SET(&l->norm, n, b);
    SET(&l->norm, n, eps);
    SET(&l->norm, n, rows);
    SET(&l->norm, n, dim);
    return 0;
}

static int note_embed(const struct aq_cuda_exec *ex, const struct aq_embed *e)
{
    const struct aq_cuda_record *r = ex->stream;
    struct launch *l = next(ex, EMBED);
    if (!l)
        return r->rc ? r->rc : r->real->embed(ex, e);
    SET(&l->embed, e, table);
    SET(&l->embed, e, table_dtype);
    SET(&l->embed, e, table_layout);
    SET(&l->embed, e, id);
    SET(&l->embed, e, positions);
    SET(&l->embed, e, positions_dtype);
    SET(&l->embed, e, position);
    SET(&l->embed, e, y);
    SET(&l->embed, e, y_dtype);
    SET(&l->embed, e, y_stride);
    SET(&l->embed, e, rows);
    SET(&l->embed, e, k);
    return 0;
}

static int note_add_rows(const struct aq_cuda_exec *ex, float *y, size_t y_stride,
                         const void *table, enum aq_dtype table_dtype, const uint32_t *index,
                         uint32_t rows, uint32_t k)
{
    const struct aq_cuda_record *r = ex->stream;
    struct launch *l = next(ex, ADD_ROWS);
    if (!l)
        return r->rc ? r->rc
                     : r->real->add_rows(ex, y, y_stride, table, table_dtype, index, rows, k);
    l->add_rows.y = y;
    l->add_rows.y_stride = y_stride;
    l->add_rows.table = table;
    l->add_rows.table_dtype = table_dtype;
    l->add_rows.index = index;
    l->add_rows.rows = rows;
    l->add_rows.k = k;
    return 0;
}

static int note_finish(const struct aq_cuda_exec *ex, const struct aq_cuda_finish *f)
{
    const struct aq_cuda_record *r = ex->stream;
    struct launch *l = next(ex, FINISH);
    if (!l)
        return r->rc ? r->rc : r->real->finish(ex, f);
    SET(&l->finish, f, x);
    SET(&l->finish, f, x_dtype);
    SET(&l->finish, f, x_stride);
    SET(&l->finish, f, bias);
    SET(&l->finish, f, activation);
    SET(&l->finish, f, accumulate);
    SET(&l->finish, f, y);
    SET(&l->finish, f, y_dtype);
    SET(&l->finish, f, y_stride);
    SET(&l->finish, f, rows);
    SET(&l->finish, f, columns);
    return 0;
}

static int note_unpack(const struct aq_cuda_exec *ex, const struct aq_cuda_unpack *u)
{
    const struct aq_cuda_record *r = ex->stream;
    struct launch *l = next(ex, UNPACK);
    if (!l)
        return r->rc ? r->rc : r->real->unpack(ex, u);
    SET(&l->unpack, u, src);
    SET(&l->unpack, u, dst);
    SET(&l->unpack, u, src_dtype);
    SET(&l->unpack, u, dst_dtype);
    SET(&l->unpack, u, dst_stride);
    SET(&l->unpack, u, rows);
    SET(&l->unpack, u, k);
    return 0;
}

static int note_dense(struct aq_cuda_blas *blas, const struct aq_cuda_exec *ex,
                      const struct aq_cuda_dense *d)
{
    const struct aq_cuda_record *r = ex->stream;
    struct launch *l = next(ex, DENSE);
    if (!l)
        return r->rc ? r->rc : r->real->dense(blas, ex, d);
    l->dense.blas = blas;
    SET(&l->dense.p, d, x);
    SET(&l->dense.p, d, w);
    SET(&l->dense.p, d, dtype);
    SET(&l->dense.p, d, x_stride);
    SET(&l->dense.p, d, w_stride);
    SET(&l->dense.p, d, y);
    SET(&l->dense.p, d, y_stride);
    SET(&l->dense.p, d, m);
    SET(&l->dense.p, d, n);
    SET(&l->dense.p, d, k);
    return 0;
}

static int note_codes(const struct aq_cuda_exec *ex, const struct aq_cuda_codes_product *p)
{
    const struct aq_cuda_record *r = ex->stream;
    struct launch *l = next(ex, PRODUCT_CODES);
    if (!l)
        return r->rc ? r->rc : r->real->product_codes(ex, p);
    SET(&l->codes, p, x);
    SET(&l->codes, p, x_dtype);
    SET(&l->codes, p, x_stride);
    SET(&l->codes, p, w);
    SET(&l->codes, p, w_dtype);
    SET(&l->codes, p, y);
    SET(&l->codes, p, y_stride);
    SET(&l->codes, p, m);
    SET(&l->codes, p, rows);
    SET(&l->codes, p, k);
    return 0;
}

/* ---- noting: attention and KV ------------------------------------------------------------ */

static void set_rule(struct launch *l, const struct aq_attn_rule *from)
{
    struct aq_attn_rule *to = &l->attn.rule;
    l->attn.has_rule = from;
    if (!from)
        return;
    SET(to, from, stat);
    SET(to, from, group);
    SET(to, from, threshold);
    SET(to, from, decay);
    SET(to, from, by_position);
    SET(to, from, sinks);
}

static struct launch *note_attn(const struct aq_cuda_exec *ex, enum kind kind,
                                const struct aq_attn *a, struct aq_cuda_reach reach)
{
    struct launch *l = next(ex, kind);
    if (!l)
        return NULL;
    SET(&l->attn.a, a, seqs);
    SET(&l->attn.a, a, seq_count);
    SET(&l->attn.a, a, q);
    SET(&l->attn.a, a, q_stride);
    SET(&l->attn.a, a, out);
    SET(&l->attn.a, a, out_dtype);
    SET(&l->attn.a, a, out_stride);
    SET(&l->attn.a, a, kv_dtype);
    SET(&l->attn.a, a, kv_heads);
    SET(&l->attn.a, a, q_per_kv);
    SET(&l->attn.a, a, head_dim);
    SET(&l->attn.a, a, scale);
    SET(&l->attn.a, a, log_sum_exp);
    set_rule(l, a->rule);
    l->attn.reach = reach;
    return l;
}

static int note_attn_decode(const struct aq_cuda_exec *ex, const struct aq_attn *a,
                            struct aq_cuda_reach reach)
{
    const struct aq_cuda_record *r = ex->stream;
    if (!note_attn(ex, ATTN_DECODE, a, reach))
        return r->rc ? r->rc : r->real->attn_decode(ex, a, reach);
    return 0;
}

static int note_attn_prefill(const struct aq_cuda_exec *ex, const struct aq_attn *a,
                             struct aq_cuda_reach reach)
{
    const struct aq_cuda_record *r = ex->stream;
    if (!note_attn(ex, ATTN_PREFILL, a, reach))
        return r->rc ? r->rc : r->real->attn_prefill(ex, a, reach);
    return 0;
}

static int note_attn_stats(const struct aq_cuda_exec *ex, const struct aq_attn *a,
                           const struct aq_attn_pairs *pairs, struct aq_cuda_reach reach)
{
    const struct aq_cuda_record *r = ex->stream;
    struct launch *l = note_attn(ex, ATTN_STATS, a, reach);
    if (!l)
        return r->rc ? r->rc : r->real->attn_stats(ex, a, pairs, reach);
    l->attn.has_pairs = pairs;
    if (pairs)
        l->attn.pairs = *pairs; /* three numbers of a size: no padding */
    return 0;
}

static int note_kv_append(const struct aq_cuda_exec *ex, const struct aq_attn *a,
                          const float *k_new, const float *v_new, size_t stride,
                          struct aq_cuda_reach reach)
{
    const struct aq_cuda_record *r = ex->stream;
    struct launch *l = note_attn(ex, KV_APPEND, a, reach);
    if (!l)
        return r->rc ? r->rc : r->real->kv_append(ex, a, k_new, v_new, stride, reach);
    l->attn.reach.len = 0; /* not used, and different in every pass */
    l->attn.k_new = k_new;
    l->attn.v_new = v_new;
    l->attn.stride = stride;
    return 0;
}

static int note_kv_victim(const struct aq_cuda_exec *ex, const struct aq_attn *a)
{
    const struct aq_cuda_record *r = ex->stream;
    if (!note_attn(ex, KV_VICTIM, a, (struct aq_cuda_reach){0}))
        return r->rc ? r->rc : r->real->kv_victim(ex, a);
    return 0;
}

static int note_kv_select(const struct aq_cuda_exec *ex, const struct aq_kv_select *selects,
                          uint32_t count, uint32_t kv_heads)
{
    const struct aq_cuda_record *r = ex->stream;
    struct launch *l = next(ex, KV_SELECT);
    if (!l)
        return r->rc ? r->rc : r->real->kv_select(ex, selects, count, kv_heads);
    l->select.selects = selects;
    l->select.count = count;
    l->select.kv_heads = kv_heads;
    return 0;
}

static int note_kv_move(const struct aq_cuda_exec *ex, const struct aq_kv_move *moves,
                        uint32_t count, enum aq_dtype kv_dtype, uint32_t kv_heads,
                        uint32_t head_dim)
{
    const struct aq_cuda_record *r = ex->stream;
    struct launch *l = next(ex, KV_MOVE);
    if (!l)
        return r->rc ? r->rc : r->real->kv_move(ex, moves, count, kv_dtype, kv_heads, head_dim);
    l->move.moves = moves;
    l->move.count = count;
    l->move.kv_dtype = kv_dtype;
    l->move.kv_heads = kv_heads;
    l->move.head_dim = head_dim;
    return 0;
}

static int note_kv_note(const struct aq_cuda_exec *ex, uint32_t *target, const uint32_t *victim,
                        uint32_t kv_heads, uint32_t whole)
{
    const struct aq_cuda_record *r = ex->stream;
    struct launch *l = next(ex, KV_NOTE);
    if (!l)
        return r->rc ? r->rc : r->real->kv_note(ex, target, victim, kv_heads, whole);
    l->note.target = target;
    l->note.victim = victim;
    l->note.kv_heads = kv_heads;
    l->note.whole = whole;
    return 0;
}

/* ---- launching --------------------------------------------------------------------------- */

static int launch_attn(const struct aq_cuda_kernels *k, const struct aq_cuda_exec *ex,
                       const struct launch *l)
{
    struct aq_attn a = l->attn.a;
    a.rule = l->attn.has_rule ? &l->attn.rule : NULL;
    switch ((enum kind)l->kind) {
    case ATTN_DECODE: return k->attn_decode(ex, &a, l->attn.reach);
    case ATTN_PREFILL: return k->attn_prefill(ex, &a, l->attn.reach);
    case ATTN_STATS:
        return k->attn_stats(ex, &a, l->attn.has_pairs ? &l->attn.pairs : NULL, l->attn.reach);
    case KV_APPEND:
        return k->kv_append(ex, &a, l->attn.k_new, l->attn.v_new, l->attn.stride, l->attn.reach);
    default: return k->kv_victim(ex, &a);
    }
}

static int launch_one(const struct aq_cuda_kernels *k, const struct aq_cuda_exec *ex,
                      const struct launch *l)
{
    switch ((enum kind)l->kind) {
    case NORM: return k->norm(ex, &l->norm);
    case EMBED: return k->embed(ex, &l->embed);
    case ADD_ROWS:
        return k->add_rows(ex, l->add_rows.y, l->add_rows.y_stride, l->add_rows.table,
                           (enum aq_dtype)l->add_rows.table_dtype, l->add_rows.index,
                           l->add_rows.rows, l->add_rows.k);
    case FINISH: return k->finish(ex, &l->finish);
    case UNPACK: return k->unpack(ex, &l->unpack);
    case DENSE: return k->dense(l->dense.blas, ex, &l->dense.p);
    case PRODUCT_CODES: return k->product_codes(ex, &l->codes);
    case KV_SELECT: return k->kv_select(ex, l->select.selects, l->select.count, l->select.kv_heads);
    case KV_MOVE:
        return k->kv_move(ex, l->move.moves, l->move.count, (enum aq_dtype)l->move.kv_dtype,
                          l->move.kv_heads, l->move.head_dim);
    case KV_NOTE:
        return k->kv_note(ex, l->note.target, l->note.victim, l->note.kv_heads, l->note.whole);
    default: return launch_attn(k, ex, l);
    }
}

/* One after the other. */
static int launch_all(const struct aq_cuda_record *r, const struct aq_cuda_exec *ex,
                      const char **ret_what, uint32_t *ret_op)
{
    for (uint32_t i = 0; i < r->count; i++) {
        int rc = launch_one(r->real, ex, &r->list[i]);
        if (rc) {
            *ret_what = names[r->list[i].kind];
            *ret_op = r->list[i].op;
            return rc;
        }
    }
    return 0;
}

/* ---- graphs ------------------------------------------------------------------------------ */

/* The list as it was known, or the place that it gets; NULL: there is none.  Lists come in turn,
 * all of a pass before the first one comes again: where they are more than there is room for,
 * whoever made room for each by what came longest ago would know none of them again.  So what was
 * there stays, unless it has not come for longer than two passes, and lists that came once replace
 * each other. */
static struct known *look_up(const struct aq_cuda_record *r, XXH128_hash_t hash)
{
    struct known *oldest = &r->known[0], *newest = NULL;
    for (uint32_t i = 0; i < r->known_max; i++) {
        struct known *n = &r->known[i];
        if (n->used && XXH128_isEqual(n->hash, hash))
            return n;
        if (n->used < oldest->used)
            oldest = n;
        if (!n->graph && !n->unwilling && (!newest || n->used > newest->used))
            newest = n;
    }
    return !oldest->used || r->now - oldest->used > r->far ? oldest : newest;
}

static void drop(struct aq_cuda_record *r, struct known *n)
{
    if (n->graph) {
        r->opts.cuda->module->gpu->graph_close(r->opts.cuda->gpu, n->graph);
        r->crowded = false;
    }
    *n = (struct known){0};
}

static uint64_t free_now(const struct aq_cuda_record *r)
{
    uint64_t free_bytes = 0, total;
    int rc = r->opts.cuda->module->gpu->memory(r->opts.cuda->gpu, &free_bytes, &total);
    return rc ? 0 : free_bytes;
}

/* Have graphs, or others on the GPU, taken what is meant for graphs?  The driver takes some of it
 * when one is made, and some when it is launched first. */
static bool is_crowded(struct aq_cuda_record *r)
{
    if (!r->crowded) {
        uint64_t now = free_now(r);
        r->free_bytes = r->free_bytes ? r->free_bytes : now;
        r->crowded = r->free_bytes > now + r->opts.graphs_bytes;
    }
    return r->crowded;
}

/* What cannot be captured is launched as ever. */
static void capture(struct aq_cuda_record *r, const struct aq_cuda_exec *ex, struct known *n)
{
    const struct aq_gpu_ops *ops = r->opts.cuda->module->gpu;
    const char *what;
    uint32_t op;
    void *graph = NULL;
    if (is_crowded(r))
        return;
    int rc = ops->capture_begin(r->opts.cuda->gpu, ex->stream);
    if (!rc) {
        int failed = launch_all(r, ex, &what, &op);
        rc = ops->capture_end(r->opts.cuda->gpu, ex->stream, &graph);
        if (!rc && failed)
            ops->graph_close(r->opts.cuda->gpu, graph);
        rc = rc ? rc : failed;
    }
    n->graph = rc ? NULL : graph;
    n->unwilling = rc;
}

int aq_cuda_record_launch(struct aq_cuda_record *r, const struct aq_cuda_exec *ex, bool again,
                          const char **ret_what, uint32_t *ret_op)
{
    if (!again || r->count < LAUNCHES_MIN)
        return launch_all(r, ex, ret_what, ret_op);
    XXH128_hash_t hash = XXH3_128bits(r->list, r->count * sizeof(*r->list));
    struct known *n = look_up(r, hash);
    r->now++;
    if (n && !(n->used && XXH128_isEqual(n->hash, hash))) {
        drop(r, n);
        n->hash = hash;
    } else if (n && !n->graph && !n->unwilling) {
        capture(r, ex, n);
    }
    if (n)
        n->used = r->now;
    if (!n || !n->graph)
        return launch_all(r, ex, ret_what, ret_op);
    int rc = r->opts.cuda->module->gpu->graph_launch(r->opts.cuda->gpu, n->graph, ex->stream);
    *ret_what = "cudaGraphLaunch";
    *ret_op = r->list[0].op;
    return rc;
}

/* ---- open and close ---------------------------------------------------------------------- */

const struct aq_cuda_kernels *aq_cuda_record_kernels(const struct aq_cuda_record *r)
{
    return &r->kernels;
}

void aq_cuda_record_clear(struct aq_cuda_record *r)
{
    r->count = 0;
}

void aq_cuda_record_op(struct aq_cuda_record *r, uint32_t op)
{
    r->op = op;
}

int aq_cuda_record_open(struct aq_cuda_record **ret, const struct aq_cuda_record_opts *opts,
                        struct aq_err *reterr)
{
    struct aq_cuda_record *r = calloc(1, sizeof(*r));
    uint32_t most = opts->launches_max ? opts->launches_max : LAUNCHES_MAX;
    uint32_t known = (uint32_t)aq_min_u64(aq_max_u64(opts->pass_lists_max, KNOWN_MIN), KNOWN_MAX);
    if (r) {
        r->list = calloc(most, sizeof(*r->list));
        r->known = calloc(known, sizeof(*r->known));
    }
    if (!r || !r->list || !r->known) {
        aq_cuda_record_close(r);
        return aq_error_memory(reterr, "GPU");
    }
    r->opts = *opts;
    r->opts.launches_max = most;
    r->known_max = known;
    r->far = 2 * aq_max_u64(opts->pass_lists_max, known);
    r->real = opts->cuda->module->kernels;
    r->kernels = (struct aq_cuda_kernels){
        .attn_decode_workspace = r->real->attn_decode_workspace,
        .error_text = r->real->error_text,
        .norm = note_norm,
        .embed = note_embed,
        .add_rows = note_add_rows,
        .finish = note_finish,
        .unpack = note_unpack,
        .dense = note_dense,
        .product_codes = note_codes,
        .kv_append = note_kv_append,
        .kv_victim = note_kv_victim,
        .kv_select = note_kv_select,
        .kv_move = note_kv_move,
        .kv_note = note_kv_note,
        .attn_decode = note_attn_decode,
        .attn_prefill = note_attn_prefill,
        .attn_stats = note_attn_stats,
    };
    *ret = r;
    return 0;
}

void aq_cuda_record_close(struct aq_cuda_record *r)
{
    if (!r)
        return;
    for (uint32_t i = 0; r->known && i < r->known_max; i++)
        drop(r, &r->known[i]);
    free(r->known);
    free(r->list);
    free(r);
}
