/* SPDX-License-Identifier: Apache-2.0
 * Launches in the place of the CPU's kernels: see cuda_lane.h. */
#include "engine/compute/cuda_desk.h"
#include "engine/compute/cuda_prove.h"

#include <stdlib.h>

enum { SPLIT_BLOCKS = AQ_CUDA_DECODE_SPLIT / AQ_HEAD_BLOCK_SLOTS };

/* The execution context of the lane's kernels is the lane itself. */
static struct aq_compute_cuda *cuda_of(struct aq_exec *lane)
{
    return (struct aq_compute_cuda *)lane;
}

/* ---- rows -------------------------------------------------------------------------------- */

static void cuda_norm(struct aq_exec *lane, const struct aq_norm *n)
{
    struct aq_compute_cuda *c = cuda_of(lane);
    struct aq_norm with = *n;
    desk_check(c, n->x);
    desk_check(c, n->y);
    desk_check(c, n->w);
    desk_check(c, n->b);
    if (n->row_index)
        with.row_index = desk_give(c, n->row_index, n->rows * sizeof(*n->row_index));
    desk_send(c);
    DESK_LAUNCH(c, norm, &with);
}

static void cuda_embed(struct aq_exec *lane, const struct aq_embed *e)
{
    struct aq_compute_cuda *c = cuda_of(lane);
    struct aq_embed with = *e;
    assert(!e->positions && !e->chosen);
    desk_check(c, e->table);
    desk_check(c, e->y);
    with.chosen = c->chosen;
    with.id = desk_give(c, e->id, e->rows * sizeof(*e->id));
    desk_send(c);
    DESK_LAUNCH(c, embed, &with);
}

static void cuda_add_rows(struct aq_exec *lane, const struct aq_add_rows *a)
{
    struct aq_compute_cuda *c = cuda_of(lane);
    struct aq_add_rows with = *a;
    desk_check(c, a->y);
    desk_check(c, a->table);
    with.index = desk_give(c, a->index, a->rows * sizeof(*a->index));
    desk_send(c);
    DESK_LAUNCH(c, add_rows, &with);
}

static void cuda_rotate(struct aq_exec *lane, const struct aq_rotate *r)
{
    struct aq_compute_cuda *c = cuda_of(lane);
    desk_check(c, r->x);
    desk_check(c, r->turn);
    desk_check(c, r->w_q);
    desk_check(c, r->w_k);
    DESK_LAUNCH(c, rotate, r);
}

static void cuda_logits_stat(struct aq_exec *lane, const struct aq_logits *l)
{
    struct aq_compute_cuda *c = cuda_of(lane);
    desk_check(c, l->stat);
    desk_check(c, l->logits);
    DESK_LAUNCH(c, logits_stat, l);
}

/* ---- products ---------------------------------------------------------------------------- */

/* Do panels follow each other without padding, so that together they are one matrix? */
static bool is_matrix(enum aq_dtype t, uint32_t k)
{
    return aq_dtype_is_float(t) &&
           aq_panel_bytes(t, k) == (size_t)AQ_PANEL_ROWS * k * aq_dtype_bytes(t);
}

/* A product with w, a matrix in the compute type: n columns of y, and what follows it. */
static void multiply(struct aq_compute_cuda *c, const struct aq_product *p, const void *w,
                     uint32_t column, uint32_t n)
{
    bool biased = p->bias && p->y_dtype != AQ_F32;
    struct aq_cuda_dense d = {
        .x = p->x,
        .w = w,
        .bias = p->bias ? p->bias + column : NULL,
        .bias_y = biased ? aq_cuda_biases_find(&c->biases, p->bias + column) : NULL,
        .sums = (float *)c->sums,
        .y = (uint8_t *)p->y + column * aq_dtype_bytes(p->y_dtype),
        .x_stride = p->x_stride,
        .w_stride = p->k,
        .y_stride = p->y_stride,
        .dtype = p->x_dtype,
        .y_dtype = p->y_dtype,
        .activation = p->activation,
        .combine = p->combine,
        .m = p->m,
        .n = n,
        .k = p->k,
    };
    DESK_LAUNCH(c, dense, &d);
}

/* The same with panels of codes. */
static void multiply_codes(struct aq_compute_cuda *c, const struct aq_product *p, const void *w,
                           uint32_t column, uint32_t n)
{
    struct aq_cuda_codes_product sums = {
        .x = p->x,
        .x_dtype = p->x_dtype,
        .x_stride = p->x_stride,
        .w = w,
        .w_dtype = p->w_dtype,
        .y = (float *)c->sums,
        .y_stride = aq_align_up(n, 4),
        .m = p->m,
        .rows = n,
        .k = p->k,
    };
    struct aq_cuda_finish finish = {
        .x = sums.y,
        .x_dtype = AQ_F32,
        .x_stride = sums.y_stride,
        .bias = p->bias ? p->bias + column : NULL,
        .activation = p->activation,
        .combine = p->combine,
        .y = (uint8_t *)p->y + column * aq_dtype_bytes(p->y_dtype),
        .y_dtype = p->y_dtype,
        .y_stride = p->y_stride,
        .rows = p->m,
        .columns = n,
    };
    bool plain = p->y_dtype == AQ_F32 && !p->bias && !p->activation && !p->combine;
    if (plain) {
        sums.y = finish.y;
        sums.y_stride = p->y_stride;
    }
    DESK_LAUNCH(c, product_codes, &sums);
    if (!plain)
        DESK_LAUNCH(c, finish, &finish);
}

/* Rows of a segment that fit the sums and, where they are unpacked, the room for that.  By a power
 * of two of p's, so that products have few sizes, which activations were tried with. */
static uint32_t rows_at_once(const struct aq_compute_cuda *c, const struct aq_product *p,
                             bool unpacked)
{
    uint64_t most = 1;
    while (most < p->m)
        most *= 2;
    uint64_t rows = aq_max_u64(AQ_PANEL_ROWS, c->sizes.sums_bytes / (4 * most));
    if (unpacked)
        rows = aq_min_u64(rows, c->sizes.unpacked_bytes / (p->k * aq_dtype_bytes(p->x_dtype)));
    else if (aq_dtype_is_float(p->w_dtype) && !is_matrix(p->w_dtype, p->k))
        rows = AQ_PANEL_ROWS;
    assert(rows >= AQ_PANEL_ROWS);
    return (uint32_t)aq_min_u64(rows / AQ_PANEL_ROWS * AQ_PANEL_ROWS, UINT32_MAX / 2);
}

/* Codes that are multiplied as they are, are read once: 4.5 or 8.5 bits a weight.  Unpacked they
 * are read, and 16 bits a weight are written and read again.  With more rows than one launch takes
 * codes would be read, and made numbers of, once per 64 rows.  Sums of the two ways differ in their
 * order, and a row's bits may not depend on how many there are where that is promised. */
static bool goes_by_codes(const struct aq_compute_cuda *c, const struct aq_product *p)
{
    return aq_dtype_is_quantised(p->w_dtype) && p->x_dtype != AQ_F32 &&
           p->m <= AQ_CUDA_PRODUCT_ROWS_MAX && !c->deterministic;
}

/* The segment from `*at` on, with those behind it that go on where it ends: in memory, from whole
 * panels to panels, and in columns.  *at: the next one. */
static struct aq_segment joined(const struct aq_product *p, uint32_t *at)
{
    struct aq_segment s = p->segments[(*at)++];
    size_t panel = aq_panel_bytes(p->w_dtype, p->k);
    for (; *at < p->segment_count && s.rows % AQ_PANEL_ROWS == 0; (*at)++) {
        const struct aq_segment *next = &p->segments[*at];
        const uint8_t *end = (const uint8_t *)s.panels + s.rows / AQ_PANEL_ROWS * panel;
        if (next->panels != end || next->column != s.column + s.rows)
            break;
        s.rows += next->rows;
    }
    return s;
}

static void cuda_product(struct aq_exec *lane, const struct aq_product *p)
{
    struct aq_compute_cuda *c = cuda_of(lane);
    bool codes = goes_by_codes(c, p), unpacked = p->w_dtype != p->x_dtype && !codes;
    size_t panel = aq_panel_bytes(p->w_dtype, p->k);
    uint32_t at_once = p->m ? rows_at_once(c, p, unpacked) : 0;
    desk_check(c, p->x);
    desk_check(c, p->y);
    desk_check(c, p->bias);
    assert((uintptr_t)p->x % AQ_CUDA_DENSE_ALIGN == 0);
    for (uint32_t i = 0; i < p->segment_count && p->m;) {
        struct aq_segment s = joined(p, &i);
        desk_check(c, s.panels);
        for (uint32_t row = 0; row < s.rows && !desk_failed(c); row += at_once) {
            uint32_t n = (uint32_t)aq_min_u64(at_once, s.rows - row);
            const void *w = (const uint8_t *)s.panels + row / AQ_PANEL_ROWS * panel;
            struct aq_cuda_unpack u = {w, c->unpacked, p->w_dtype, p->x_dtype, p->k, n, p->k};
            if (unpacked)
                DESK_LAUNCH(c, unpack, &u);
            if (codes)
                multiply_codes(c, p, w, s.column + row, n);
            else
                multiply(c, p, unpacked ? c->unpacked : w, s.column + row, n);
        }
    }
}

/* Panel by panel where those of the compute type are padded. */
static void cuda_unpack(struct aq_exec *lane, const struct aq_unpack *u)
{
    struct aq_compute_cuda *c = cuda_of(lane);
    uint32_t each = is_matrix(u->dst_dtype, u->k) ? u->panels : 1;
    desk_check(c, u->src);
    desk_check(c, u->dst);
    for (uint32_t i = 0; i < u->panels && !desk_failed(c); i += each) {
        struct aq_cuda_unpack one = {
            .src = (const uint8_t *)u->src + i * aq_panel_bytes(u->src_dtype, u->k),
            .dst = (uint8_t *)u->dst + i * aq_panel_bytes(u->dst_dtype, u->k),
            .src_dtype = u->src_dtype,
            .dst_dtype = u->dst_dtype,
            .dst_stride = u->k,
            .rows = each * AQ_PANEL_ROWS,
            .k = u->k,
        };
        DESK_LAUNCH(c, unpack, &one);
    }
}

/* ---- attention --------------------------------------------------------------------------- */

/* Is the table one of those that stay on the device? */
static bool is_there(const struct aq_compute_cuda *c, uint8_t *const *block)
{
    return c->tables && block >= c->tables &&
           block < c->tables + c->sizes.tables_bytes / sizeof(*block);
}

/* Copies a table of blocks, unless it is on the device.  They are of one pool or stage, so that its
 * ends speak for all: there are hundreds of thousands in a pass. */
static uint8_t *const *give_blocks(struct aq_compute_cuda *c, uint8_t *const *block, uint32_t count)
{
    if (is_there(c, block))
        return c->tables_there + (block - c->tables);
    if (count) {
        desk_check(c, block[0]);
        desk_check(c, block[count - 1]);
    }
    return desk_give_behind(c, block, count * sizeof(*block));
}

/* The same for sequence i of the op at work, whose table may be there already. */
static uint8_t *const *give_blocks_of(struct aq_compute_cuda *c, uint32_t i, uint8_t *const *block,
                                      uint32_t count)
{
    if (i < c->given_count && c->given[i].block == block && count <= c->given[i].count)
        return c->given[i].there;
    uint8_t *const *there = give_blocks(c, block, count);
    if (i < c->given_max && i <= c->given_count) {
        c->given[i] = (struct given){block, there, count};
        c->given_count = (uint32_t)aq_max_u64(c->given_count, i + 1);
    }
    return there;
}

/* The same attention over sequences on the desk, with their lengths and tables. */
static struct aq_attn on_desk(struct aq_compute_cuda *c, const struct aq_attn *a)
{
    struct aq_attn with = *a;
    struct aq_attn_reach *reach = &with.reach;
    struct aq_attn_seq *seq = desk_put(c, a->seq_count * sizeof(*seq), &with.seqs);
    uint64_t joint = 0, keys = 0; /* slots that are in splits which two share; all */
    *reach = (struct aq_attn_reach){0};
    desk_check(c, a->q);
    desk_check(c, a->out);
    desk_check(c, a->log_sum_exp);
    for (uint32_t i = 0; i < a->seq_count; i++) {
        const struct aq_attn_seq *s = &a->seqs[i];
        uint32_t len = *s->len;
        assert(!s->head_table_step && !s->len_step);
        desk_check(c, s->slots.score);
        desk_check(c, s->slots.position);
        desk_check(c, s->slots.victim);
        seq[i] = *s;
        seq[i].len = desk_give(c, &len, sizeof(len));
        seq[i].block =
            give_blocks_of(c, i, s->block, (uint32_t)aq_div_up(len, AQ_HEAD_BLOCK_SLOTS));
        reach->rows = (uint32_t)aq_max_u64(reach->rows, s->rows);
        reach->len = (uint32_t)aq_max_u64(reach->len, len);
        uint32_t splits = i ? s->shared / SPLIT_BLOCKS : 0;
        reach->shared = (uint32_t)aq_max_u64(reach->shared, splits);
        joint += (uint64_t)splits * AQ_CUDA_DECODE_SPLIT;
        keys += len;
    }
    reach->joint = joint && 4 * joint >= keys;
    reach->shared = reach->joint ? reach->shared : 0; /* else one launch as another */
    if (reach->rows == 1) /* decoding takes so many keys at a time: more makes no difference */
        reach->len = (uint32_t)aq_align_up(reach->len, AQ_CUDA_DECODE_SPLIT);
    desk_send(c);
    return with;
}

/* As many sequences at a time as the workspace has room for: the bits are the same. */
static void cuda_attn_decode(struct aq_exec *lane, const struct aq_attn *a)
{
    struct aq_compute_cuda *c = cuda_of(lane);
    struct aq_attn with = on_desk(c, a);
    uint32_t count = a->seq_count;
    with.seq_count = 1;
    uint64_t one = aq_max_u64(c->k->attn_decode_workspace(&with), 1);
    uint32_t at_once = (uint32_t)aq_max_u64(1, c->ex.workspace_bytes / one);
    for (uint32_t i = 0; i < count && !desk_failed(c); i += with.seq_count) {
        with.seq_count = (uint32_t)aq_min_u64(at_once, count - i);
        DESK_LAUNCH(c, attn_decode, &with);
        with.seqs += with.seq_count;
    }
}

static void cuda_attn_prefill(struct aq_exec *lane, const struct aq_attn *a)
{
    struct aq_compute_cuda *c = cuda_of(lane);
    struct aq_attn with = on_desk(c, a);
    DESK_LAUNCH(c, attn_prefill, &with);
    assert(!a->pairs.rows || !a->begun.len);
    if (a->pairs.rows)
        DESK_LAUNCH(c, attn_stats, &with);
}

static void cuda_attn_stats(struct aq_exec *lane, const struct aq_attn *a)
{
    struct aq_compute_cuda *c = cuda_of(lane);
    struct aq_attn with = on_desk(c, a);
    desk_check(c, a->begun.sums);
    DESK_LAUNCH(c, attn_stats, &with);
}

static void cuda_kv_append(struct aq_exec *lane, const struct aq_attn *a)
{
    struct aq_compute_cuda *c = cuda_of(lane);
    struct aq_attn with = on_desk(c, a);
    desk_check(c, a->k_new);
    desk_check(c, a->v_new);
    with.reach.len = 0; /* not used, and different in every pass */
    DESK_LAUNCH(c, kv_append, &with);
}

static void cuda_kv_victim(struct aq_exec *lane, const struct aq_attn *a)
{
    struct aq_compute_cuda *c = cuda_of(lane);
    struct aq_attn with = on_desk(c, a);
    with.reach = (struct aq_attn_reach){0}; /* likewise */
    DESK_LAUNCH(c, kv_victim, &with);
}

static void cuda_kv_value(struct aq_exec *lane, const struct aq_kv_value *v)
{
    struct aq_compute_cuda *c = cuda_of(lane);
    desk_check(c, v->sums);
    desk_check(c, v->value);
    DESK_LAUNCH(c, kv_value, v);
}

static void cuda_kv_key_value(struct aq_exec *lane, const struct aq_kv_key_value *v)
{
    struct aq_compute_cuda *c = cuda_of(lane);
    desk_check(c, v->k);
    desk_check(c, v->value);
    DESK_LAUNCH(c, kv_key_value, v);
}

static void cuda_kv_select(struct aq_exec *lane, const struct aq_kv_selects *s)
{
    struct aq_compute_cuda *c = cuda_of(lane);
    struct aq_kv_selects with = *s;
    with.selects = desk_give(c, s->selects, s->count * sizeof(*s->selects));
    for (uint32_t i = 0; i < s->count; i++) {
        desk_check(c, s->selects[i].value);
        desk_check(c, s->selects[i].keep);
        desk_check(c, s->selects[i].count);
    }
    desk_send(c);
    DESK_LAUNCH(c, kv_select, &with);
}

static void cuda_kv_move(struct aq_exec *lane, const struct aq_kv_moves *m)
{
    struct aq_compute_cuda *c = cuda_of(lane);
    struct aq_kv_moves with = *m;
    struct aq_kv_move *move = desk_put(c, m->count * sizeof(*move), &with.moves);
    for (uint32_t i = 0; i < m->count; i++) {
        const struct aq_kv_move *from = &m->moves[i];
        assert(!from->from.head_table_step && !from->to.head_table_step);
        desk_check(c, from->from.list);
        desk_check(c, from->to.list);
        move[i] = *from;
        move[i].from.block = give_blocks(c, from->from.block, from->from.block_count);
        move[i].to.block = give_blocks(c, from->to.block, from->to.block_count);
        if (!from->count_step) /* the same for all heads: the host has said it */
            move[i].count = desk_give(c, from->count, sizeof(*from->count));
        else
            desk_check(c, from->count);
    }
    desk_send(c);
    DESK_LAUNCH(c, kv_move, &with);
}

static void cuda_kv_note(struct aq_exec *lane, const struct aq_kv_note *n)
{
    struct aq_compute_cuda *c = cuda_of(lane);
    desk_check(c, n->target);
    desk_check(c, n->victim);
    DESK_LAUNCH(c, kv_note, n);
}

/* ---- open and close ---------------------------------------------------------------------- */

static const struct aq_kernels lane_kernels = {.product_f32 = cuda_product,
                                               .product_bf16 = cuda_product,
                                               .unpack = cuda_unpack,
#define MEMBER(name, params) .name = cuda_##name,
                                               AQ_KERNELS(MEMBER)
#undef MEMBER
};

const struct aq_compute *aq_compute_cuda_base(const struct aq_compute_cuda *c)
{
    return &c->c;
}

/* Shares out what was taken. */
static void lay_out(struct aq_compute_cuda *c)
{
    const struct aq_gpu_sizes *r = &c->sizes;
    uint8_t *at = c->work;
    c->mirror = at;
    at += AQ_GPU_BUNDLE_DESKS * r->desk_bytes;
    c->sums = at;
    at += r->sums_bytes;
    c->unpacked = at;
    at += aq_align_up(r->unpacked_bytes, 4096);
    c->tables_there = (uint8_t **)(void *)at;
    at += aq_align_up(r->tables_bytes, 4096);
    c->ex.workspace = at;
    c->ex.workspace_bytes = r->workspace_bytes;
    at += r->workspace_bytes;
    c->biases_there = at;
    at += r->biases_bytes;
    c->chosen = (uint32_t *)(void *)at;
    at += r->chosen_bytes;
    c->stats = (struct aq_logits_stat *)at;
    at += r->stats_bytes;
    c->stats_now = (struct aq_logits_stat *)at;
    assert(at + r->stats_bytes == c->work + aq_gpu_sizes_device(r));
    at = c->desks_here + AQ_GPU_DESKS * r->desk_bytes;
    c->stats_home = (struct aq_logits_stat *)at;
    c->logits_home = (float *)(at + r->stats_bytes);
}

static int take(struct aq_compute_cuda *c, struct aq_err *reterr)
{
    size_t work = aq_gpu_sizes_device(&c->sizes), desks = aq_gpu_sizes_host(&c->sizes);
    int rc =
        aq_device_alloc((void **)&c->work, c->device, AQ_MEMORY_DEVICE, "gpu work", work, reterr);
    if (rc < 0)
        return rc;
    c->work_bytes = work;
    rc = aq_device_alloc((void **)&c->desks_here, c->device, AQ_MEMORY_PINNED, "gpu desks", desks,
                         reterr);
    if (rc < 0)
        return rc;
    c->desks_bytes = desks;
    lay_out(c);
    return 0;
}

static int prove(struct aq_compute_cuda *c, const struct aq_compute_cuda_opts *opts,
                 struct aq_err *reterr)
{
    struct aq_cuda_proof proof = {
        .cuda = opts->cuda,
        .ex = &c->ex,
        .steps = opts->steps,
        .compute = opts->compute,
        .operands = c->unpacked,
        .operands_bytes = c->sizes.unpacked_bytes,
        .sums = (float *)c->sums,
        .sums_bytes = c->sizes.sums_bytes,
    };
    return opts->deterministic ? aq_cuda_prove(&proof, reterr)
                               : aq_cuda_prove_activations(&proof, reterr);
}

int aq_compute_cuda_open(struct aq_compute_cuda **ret, const struct aq_compute_cuda_opts *opts,
                         struct aq_err *reterr)
{
    struct aq_compute_cuda *c = calloc(1, sizeof(*c));
    if (!c)
        return aq_error_memory(reterr, "GPU");
    pthread_mutex_init(&c->lock, NULL);
    _Static_assert(sizeof(struct aq_attn_seq) + 32 <= AQ_GPU_SEQ_BYTES, "as the ledger counts");
    _Static_assert(sizeof(struct aq_kv_move) + sizeof(struct aq_kv_select) + 64 <=
                       AQ_GPU_MOVE_BYTES + 128,
                   "likewise");
    c->c = (struct aq_compute){&lane_kernels, (struct aq_exec *)c};
    c->k = opts->cuda->module->kernels;
    c->gpu_ops = opts->cuda->module->gpu;
    c->gpu = opts->cuda->gpu;
    c->device = opts->device;
    c->sizes = opts->sizes;
    c->deterministic = opts->deterministic;
    c->steps = opts->steps;
    c->compute = opts->compute;
    c->ex.sm = opts->cuda->info.code_sm;
    c->ex.multiprocessors = opts->cuda->info.multiprocessors;
    c->ex.blas = &c->blas;
    c->given_max = opts->seats;
    c->given = calloc(c->given_max, sizeof(*c->given));
    struct aq_cuda_record_opts record = {.cuda = opts->cuda,
                                         .launches_max = opts->launches_max,
                                         .pass_lists_max = opts->pass_ops,
                                         .graphs_bytes = opts->sizes.graphs_bytes};
    int rc = c->given || !c->given_max ? take(c, reterr) : aq_error_memory(reterr, "GPU");
    rc = rc < 0 ? rc : aq_cuda_record_open(&c->record, &record, reterr);
    int code = rc < 0 ? 0 : c->k->blas_open(&c->blas, opts->deterministic);
    if (code)
        rc = aq_error(reterr, -ENODEV, "cuBLASLt cannot be used: %s", c->k->error_text(code));
    rc = rc < 0 ? rc : prove(c, opts, reterr);
    if (rc < 0) {
        aq_compute_cuda_close(c);
        return rc;
    }
    *ret = c;
    return 0;
}

int aq_compute_cuda_biases(struct aq_compute_cuda *c, float *const *vector, struct aq_err *reterr)
{
    const struct aq_cuda_biases_opts opts = {.gpu_ops = c->gpu_ops,
                                             .gpu = c->gpu,
                                             .steps = c->steps,
                                             .compute = c->compute,
                                             .room = c->biases_there};
    assert(!c->biases.bias);
    if (c->deterministic)
        return 0; /* all goes by way of sums */
    return aq_cuda_biases_open(&c->biases, &opts, vector, reterr);
}

struct aq_cuda_graphs aq_compute_cuda_graphs(const struct aq_compute_cuda *c)
{
    return aq_cuda_record_graphs(c->record);
}

void aq_compute_cuda_close(struct aq_compute_cuda *c)
{
    if (!c)
        return;
    aq_cuda_record_close(c->record);
    c->k->blas_close(&c->blas);
    aq_cuda_biases_close(&c->biases);
    aq_device_free(c->device, AQ_MEMORY_DEVICE, "gpu work", c->work, c->work_bytes);
    aq_device_free(c->device, AQ_MEMORY_PINNED, "gpu desks", c->desks_here, c->desks_bytes);
    free(c->given);
    pthread_mutex_destroy(&c->lock);
    free(c);
}
