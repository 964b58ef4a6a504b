/* SPDX-License-Identifier: Apache-2.0
 * Launches in the place of the CPU's kernels: see cuda_lane.h. */
#include "engine/compute/cuda_lane.h"

#include "engine/compute/cuda_graph.h"
#include "engine/compute/cuda_prove.h"
#include "engine/compute/sample.h"

#include <assert.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* A desk is sent in pieces, a warp each. */
enum { DESK_PIECES_MAX = 256, DESK_PIECE_BYTES = 1024 };
/* Changes of tables that are kept apart: beyond it goes all that lies between them. */
enum { CHANGES_MAX = 256 };
enum { SPLIT_BLOCKS = AQ_CUDA_DECODE_SPLIT / AQ_HEAD_BLOCK_SLOTS };

struct aq_compute_cuda {
    struct aq_compute c;
    const struct aq_cuda_kernels *k;
    const struct aq_gpu_ops *gpu_ops;
    struct aq_gpu *gpu;
    struct aq_device *device;
    struct aq_gpu_sizes sizes;
    struct aq_cuda_exec ex;
    struct aq_cuda_blas blas;
    uint8_t *work, *desks_here; /* all of the device's, and of the pinned memory */
    size_t work_bytes, desks_bytes;
    uint8_t *mirror, *sums, *unpacked;        /* in work */
    struct aq_logits_stat *stats, *stats_now; /* as the model gave them, and penalised */
    struct aq_logits_stat *stats_home;
    float *logits_home;
    bool deterministic;
    /* Answers of the op at work: on the desk and its mirror, and where the next ones go. */
    uint8_t *answers, *answers_there;
    size_t answers_bytes;
    struct aq_cuda_choice *choice;
    struct aq_cuda_top *top;
    /* The ops at work: the stream, their desks, how much of these is taken from the front and, for
     * what has another size in every pass, down to where from the back, and how much of the front
     * has been sent. */
    struct aq_cuda_record *record;
    bool noting; /* launches are noted; the desks' bytes are copied in front of all of them */
    uint32_t desk, desks, op;
    size_t used, back, sent;
    /* Tables of blocks of the op at work that are on its desk already, by sequence: a layer appends
     * to the same tables that it then attends. */
    struct given {
        uint8_t *const *block, *const *there;
        uint32_t count;
    } * given;
    uint32_t given_count, given_max;
    /* Tables that stay on the device, and what of them has to be sent again, in bytes from their
     * beginning; the lock is of the changes, which come from another thread. */
    uint8_t *const *tables, **tables_there;
    struct change {
        size_t from, end;
    } change[CHANGES_MAX];
    uint32_t change_count;
    pthread_mutex_t lock;
    int rc;
    const char *what; /* what failed first, and of which op */
    uint32_t failed_op;
};

/* The execution context of the lane's kernels is the lane itself. */
static struct aq_compute_cuda *cuda_of(struct aq_exec *lane)
{
    return (struct aq_compute_cuda *)lane;
}

/* Nothing of the host's but what is pinned may reach a kernel. */
static void check(const struct aq_compute_cuda *c, const void *p)
{
    assert(!p || aq_device_reaches(c->device, p, 1));
}

/* ---- the desk ---------------------------------------------------------------------------- */

/* A lane that has failed once launches nothing more. */
static bool failed(const struct aq_compute_cuda *c)
{
    return c->rc != 0;
}

static void note(struct aq_compute_cuda *c, int rc, const char *what)
{
    if (rc && !c->rc) {
        c->rc = rc;
        c->what = what;
        c->failed_op = c->op;
    }
}

/* The place of a byte of the ops' desks, here; *ret_there is its place on the device, where all
 * desks have the same one: in the stream, one is sent behind the kernels that read the last. */
static void *place(struct aq_compute_cuda *c, size_t at, void *ret_there)
{
    uint8_t *there = c->mirror + at;
    memcpy(ret_there, &there, sizeof(there));
    return c->desks_here + c->desk * c->sizes.desk_bytes + at;
}

/* Room on the desk, to be filled in before it is sent. */
static void *put(struct aq_compute_cuda *c, size_t bytes, void *ret_there)
{
    size_t at = c->used;
    assert(bytes <= c->back - c->used);
    c->used += aq_align_up(bytes, 16);
    return place(c, at, ret_there);
}

/* A copy of an array of the host's. */
static const void *give(struct aq_compute_cuda *c, const void *data, size_t bytes)
{
    const void *there;
    memcpy(put(c, bytes, &there), data, bytes);
    return there;
}

/* The same of an array whose size changes from pass to pass: what is in front stays where it was in
 * the last one, so that launches have the same arguments. */
static const void *give_behind(struct aq_compute_cuda *c, const void *data, size_t bytes)
{
    const void *there;
    if (!c->noting)
        return give(c, data, bytes);
    assert(aq_align_up(bytes, 16) <= c->back - c->used);
    c->back -= aq_align_up(bytes, 16);
    memcpy(place(c, c->back, &there), data, bytes);
    return there;
}

/* Copies pinned bytes to the device by a kernel that reads them: of engines that copy there is one
 * in this direction, where desks would wait behind chunks of weights, or for the end of a time
 * slice. */
static void send_bytes(struct aq_compute_cuda *c, uint8_t *there, const uint8_t *here, size_t bytes)
{
    struct aq_copy_piece piece[DESK_PIECES_MAX];
    uint32_t count = 0;
    size_t each = aq_align_up(aq_div_up(bytes, DESK_PIECES_MAX), 16);
    each = aq_max_u64(each, DESK_PIECE_BYTES);
    for (size_t at = 0; at < bytes; at += each)
        piece[count++] =
            (struct aq_copy_piece){there + at, here + at, aq_min_u64(each, bytes - at)};
    if (count && !failed(c))
        note(c, c->k->copy_pieces(&c->ex, piece, count), "copy_pieces");
}

static void send_range(struct aq_compute_cuda *c, size_t from, size_t end)
{
    uint8_t *there;
    const uint8_t *here = place(c, from, &there);
    assert(from <= end);
    send_bytes(c, there, here, end - from);
}

static void send(struct aq_compute_cuda *c)
{
    if (c->noting)
        return;
    send_range(c, c->sent, c->used);
    c->sent = c->used;
}

/* Brings the device's tables up to date, in front of all ops that follow on the stream. */
static void send_changes(struct aq_compute_cuda *c)
{
    struct change change[CHANGES_MAX];
    pthread_mutex_lock(&c->lock);
    uint32_t count = c->change_count;
    memcpy(change, c->change, count * sizeof(*change));
    c->change_count = 0;
    pthread_mutex_unlock(&c->lock);
    struct aq_copy_piece piece[CHANGES_MAX];
    uint32_t pieces = 0;
    for (uint32_t i = 0; i < count; i++) {
        size_t from = change[i].from, bytes = change[i].end - from;
        uint8_t *there = (uint8_t *)c->tables_there + from;
        const uint8_t *here = (const uint8_t *)c->tables + from;
        if (bytes > DESK_PIECE_BYTES)
            send_bytes(c, there, here, bytes);
        else
            piece[pieces++] = (struct aq_copy_piece){there, here, bytes};
    }
    if (pieces && !failed(c))
        note(c, c->k->copy_pieces(&c->ex, piece, pieces), "copy_pieces");
}

void aq_compute_cuda_tables(struct aq_compute_cuda *c, uint8_t *const *tables)
{
    c->tables = c->sizes.tables_bytes ? tables : NULL;
    c->change_count = 0;
    check(c, c->tables);
}

void aq_compute_cuda_changed(struct aq_compute_cuda *c, const void *at, size_t bytes)
{
    size_t from = (size_t)((const uint8_t *)at - (const uint8_t *)c->tables), end = from + bytes;
    assert(c->tables && end <= c->sizes.tables_bytes);
    pthread_mutex_lock(&c->lock);
    struct change *last = c->change_count ? &c->change[c->change_count - 1] : NULL;
    if (last && last->end == from) {
        last->end = end;
    } else if (c->change_count < CHANGES_MAX) {
        c->change[c->change_count++] = (struct change){from, end};
    } else {
        for (uint32_t i = 0; i < CHANGES_MAX; i++) {
            from = aq_min_u64(from, c->change[i].from);
            end = aq_max_u64(end, c->change[i].end);
        }
        c->change[0] = (struct change){from, end};
        c->change_count = 1;
    }
    pthread_mutex_unlock(&c->lock);
}

/* Makes the launches that are noted; later ones are launched at once. */
static void launch_noted(struct aq_compute_cuda *c, bool again)
{
    const char *what;
    uint32_t op;
    send_range(c, 0, c->used);
    send_range(c, c->back, c->desks * c->sizes.desk_bytes);
    c->sent = c->used;
    int rc = failed(c) ? 0 : aq_cuda_record_launch(c->record, &c->ex, again, &what, &op);
    if (rc) {
        note(c, rc, what);
        c->failed_op = op;
    }
    c->noting = false;
}

/* Puts a kernel on the stream, or on the list of those that go there together. */
static void launch(struct aq_compute_cuda *c, enum aq_cuda_kernel kernel, const void *params)
{
    if (failed(c) || (c->noting && aq_cuda_record_add(c->record, kernel, params, c->op)))
        return;
    if (c->noting) /* there is no room for another */
        launch_noted(c, false);
    if (!failed(c))
        note(c, aq_cuda_launch(c->k, &c->ex, kernel, params), aq_cuda_kernel_name(kernel));
}

/* A launch by the kernel's name, whose launcher says of what type the struct has to be. */
#define LAUNCH(c, name, params)                                                                    \
    ((void)sizeof(aq_cuda_##name(&(c)->ex, (params))), launch(c, AQ_CUDA_KERNEL_##name, (params)))

/* ---- rows -------------------------------------------------------------------------------- */

static void cuda_norm(struct aq_exec *lane, const struct aq_norm *n)
{
    struct aq_compute_cuda *c = cuda_of(lane);
    struct aq_norm with = *n;
    check(c, n->x);
    check(c, n->y);
    check(c, n->w);
    check(c, n->b);
    if (n->row_index)
        with.row_index = give(c, n->row_index, n->rows * sizeof(*n->row_index));
    send(c);
    LAUNCH(c, norm, &with);
}

static void cuda_embed(struct aq_exec *lane, const struct aq_embed *e)
{
    struct aq_compute_cuda *c = cuda_of(lane);
    struct aq_embed with = *e;
    assert(!e->positions);
    check(c, e->table);
    check(c, e->y);
    with.id = give(c, e->id, e->rows * sizeof(*e->id));
    send(c);
    LAUNCH(c, embed, &with);
}

static void cuda_add_rows(struct aq_exec *lane, const struct aq_add_rows *a)
{
    struct aq_compute_cuda *c = cuda_of(lane);
    struct aq_add_rows with = *a;
    check(c, a->y);
    check(c, a->table);
    with.index = give(c, a->index, a->rows * sizeof(*a->index));
    send(c);
    LAUNCH(c, add_rows, &with);
}

static void cuda_rotate(struct aq_exec *lane, const struct aq_rotate *r)
{
    struct aq_compute_cuda *c = cuda_of(lane);
    check(c, r->x);
    check(c, r->turn);
    check(c, r->w_q);
    check(c, r->w_k);
    LAUNCH(c, rotate, r);
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
    struct aq_cuda_dense d = {
        .x = p->x,
        .w = w,
        .bias = p->bias ? p->bias + column : NULL,
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
    LAUNCH(c, dense, &d);
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
    LAUNCH(c, product_codes, &sums);
    if (!plain)
        LAUNCH(c, finish, &finish);
}

/* Rows of a segment that fit the sums and, where they are unpacked, the room for that. */
static uint32_t rows_at_once(const struct aq_compute_cuda *c, const struct aq_product *p,
                             bool unpacked)
{
    uint64_t rows = c->sizes.sums_bytes / (4ull * p->m);
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
    check(c, p->x);
    check(c, p->y);
    check(c, p->bias);
    assert((uintptr_t)p->x % AQ_CUDA_DENSE_ALIGN == 0);
    for (uint32_t i = 0; i < p->segment_count && p->m;) {
        struct aq_segment s = joined(p, &i);
        check(c, s.panels);
        for (uint32_t row = 0; row < s.rows && !failed(c); row += at_once) {
            uint32_t n = (uint32_t)aq_min_u64(at_once, s.rows - row);
            const void *w = (const uint8_t *)s.panels + row / AQ_PANEL_ROWS * panel;
            struct aq_cuda_unpack u = {w, c->unpacked, p->w_dtype, p->x_dtype, p->k, n, p->k};
            if (unpacked)
                LAUNCH(c, unpack, &u);
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
    check(c, u->src);
    check(c, u->dst);
    for (uint32_t i = 0; i < u->panels && !failed(c); i += each) {
        struct aq_cuda_unpack one = {
            .src = (const uint8_t *)u->src + i * aq_panel_bytes(u->src_dtype, u->k),
            .dst = (uint8_t *)u->dst + i * aq_panel_bytes(u->dst_dtype, u->k),
            .src_dtype = u->src_dtype,
            .dst_dtype = u->dst_dtype,
            .dst_stride = u->k,
            .rows = each * AQ_PANEL_ROWS,
            .k = u->k,
        };
        LAUNCH(c, unpack, &one);
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
        check(c, block[0]);
        check(c, block[count - 1]);
    }
    return give_behind(c, block, count * sizeof(*block));
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
    struct aq_attn_seq *seq = put(c, a->seq_count * sizeof(*seq), &with.seqs);
    uint64_t joint = 0, keys = 0; /* slots that are in splits which two share; all */
    *reach = (struct aq_attn_reach){0};
    check(c, a->q);
    check(c, a->out);
    check(c, a->log_sum_exp);
    for (uint32_t i = 0; i < a->seq_count; i++) {
        const struct aq_attn_seq *s = &a->seqs[i];
        uint32_t len = *s->len;
        assert(!s->head_table_step && !s->len_step);
        check(c, s->slots.score);
        check(c, s->slots.position);
        check(c, s->slots.victim);
        seq[i] = *s;
        seq[i].len = give(c, &len, sizeof(len));
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
    send(c);
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
    for (uint32_t i = 0; i < count && !failed(c); i += with.seq_count) {
        with.seq_count = (uint32_t)aq_min_u64(at_once, count - i);
        LAUNCH(c, attn_decode, &with);
        with.seqs += with.seq_count;
    }
}

static void cuda_attn_prefill(struct aq_exec *lane, const struct aq_attn *a)
{
    struct aq_compute_cuda *c = cuda_of(lane);
    struct aq_attn with = on_desk(c, a);
    LAUNCH(c, attn_prefill, &with);
}

static void cuda_attn_stats(struct aq_exec *lane, const struct aq_attn *a)
{
    struct aq_compute_cuda *c = cuda_of(lane);
    struct aq_attn with = on_desk(c, a);
    check(c, a->begun.sums);
    LAUNCH(c, attn_stats, &with);
}

static void cuda_kv_append(struct aq_exec *lane, const struct aq_attn *a)
{
    struct aq_compute_cuda *c = cuda_of(lane);
    struct aq_attn with = on_desk(c, a);
    check(c, a->k_new);
    check(c, a->v_new);
    with.reach.len = 0; /* not used, and different in every pass */
    LAUNCH(c, kv_append, &with);
}

static void cuda_kv_victim(struct aq_exec *lane, const struct aq_attn *a)
{
    struct aq_compute_cuda *c = cuda_of(lane);
    struct aq_attn with = on_desk(c, a);
    with.reach = (struct aq_attn_reach){0}; /* likewise */
    LAUNCH(c, kv_victim, &with);
}

static void cuda_kv_value(struct aq_exec *lane, const struct aq_kv_value *v)
{
    struct aq_compute_cuda *c = cuda_of(lane);
    check(c, v->sums);
    check(c, v->value);
    LAUNCH(c, kv_value, v);
}

static void cuda_kv_key_value(struct aq_exec *lane, const struct aq_kv_key_value *v)
{
    struct aq_compute_cuda *c = cuda_of(lane);
    check(c, v->k);
    check(c, v->value);
    LAUNCH(c, kv_key_value, v);
}

static void cuda_kv_select(struct aq_exec *lane, const struct aq_kv_selects *s)
{
    struct aq_compute_cuda *c = cuda_of(lane);
    struct aq_kv_selects with = *s;
    with.selects = give(c, s->selects, s->count * sizeof(*s->selects));
    for (uint32_t i = 0; i < s->count; i++) {
        check(c, s->selects[i].value);
        check(c, s->selects[i].keep);
        check(c, s->selects[i].count);
    }
    send(c);
    LAUNCH(c, kv_select, &with);
}

static void cuda_kv_move(struct aq_exec *lane, const struct aq_kv_moves *m)
{
    struct aq_compute_cuda *c = cuda_of(lane);
    struct aq_kv_moves with = *m;
    struct aq_kv_move *move = put(c, m->count * sizeof(*move), &with.moves);
    for (uint32_t i = 0; i < m->count; i++) {
        const struct aq_kv_move *from = &m->moves[i];
        assert(!from->from.head_table_step && !from->to.head_table_step);
        check(c, from->from.list);
        check(c, from->to.list);
        move[i] = *from;
        move[i].from.block = give_blocks(c, from->from.block, from->from.block_count);
        move[i].to.block = give_blocks(c, from->to.block, from->to.block_count);
        if (!from->count_step) /* the same for all heads: the host has said it */
            move[i].count = give(c, from->count, sizeof(*from->count));
        else
            check(c, from->count);
    }
    send(c);
    LAUNCH(c, kv_move, &with);
}

static void cuda_kv_note(struct aq_exec *lane, const struct aq_kv_note *n)
{
    struct aq_compute_cuda *c = cuda_of(lane);
    check(c, n->target);
    check(c, n->victim);
    LAUNCH(c, kv_note, n);
}

/* ---- logits ------------------------------------------------------------------------------ */

static void cuda_logits_stat(struct aq_exec *lane, const struct aq_logits *l)
{
    struct aq_compute_cuda *c = cuda_of(lane);
    check(c, l->stat);
    check(c, l->logits);
    LAUNCH(c, logits_stat, l);
}

static void fetch(struct aq_compute_cuda *c, void *to, const void *from, size_t bytes)
{
    if (!failed(c))
        note(c, c->gpu_ops->copy(c->gpu, c->ex.stream, to, from, bytes, AQ_GPU_D2H),
             "cudaMemcpyAsync");
}

void aq_compute_cuda_fetch(struct aq_compute_cuda *c, const float *logits, uint32_t rows,
                           uint32_t vocab)
{
    struct aq_logits stat = {c->stats, logits, vocab, rows, vocab};
    LAUNCH(c, logits_stat, &stat);
    fetch(c, c->stats_home, c->stats, rows * sizeof(*c->stats));
    fetch(c, c->logits_home, logits, (size_t)rows * vocab * sizeof(*logits));
}

const struct aq_logits_stat *aq_compute_cuda_stats(const struct aq_compute_cuda *c)
{
    return c->stats_home;
}

float *aq_compute_cuda_logits(const struct aq_compute_cuda *c)
{
    return c->logits_home;
}

/* ---- tokens ------------------------------------------------------------------------------ */

/* Ids that may not come now, and those that penalties look at. */
static uint32_t masked_count(const struct aq_compute_cuda_row *r)
{
    return r->given == AQ_CUDA_CHOOSE ? aq_sample_masked(r->sequence) : 0;
}

static uint32_t seen_count(const struct aq_compute_cuda_row *r)
{
    const struct aq_sequence *s = r->sequence;
    return r->given == AQ_CUDA_CHOOSE && aq_sample_has_penalties(&s->sampling)
               ? s->prompt_count + s->token_count
               : 0;
}

uint64_t aq_compute_cuda_row_bytes(const struct aq_compute_cuda_row *row)
{
    /* Each array on the desk is rounded up to 16: the arrays of a tile, here counted for each of
     * its rows, and the ids, with the logits that were theirs. */
    _Static_assert(sizeof(uint32_t) + sizeof(struct aq_cuda_draw) + sizeof(struct aq_cuda_choice) +
                           AQ_TOP_MAX * sizeof(struct aq_cuda_top) + 4 * 16 <=
                       AQ_GPU_ROW_BYTES,
                   "as the ledger counts");
    uint64_t masked = masked_count(row), seen = seen_count(row);
    assert(row->top_count <= AQ_TOP_MAX);
    return AQ_GPU_ROW_BYTES + aq_align_up(4 * masked, 16) + aq_align_up(4 * seen, 16) +
           aq_align_up(4 * (masked + seen), 16);
}

uint64_t aq_compute_cuda_rows_room(const struct aq_compute_cuda *c)
{
    return c->sizes.desk_bytes;
}

void aq_compute_cuda_expect(struct aq_compute_cuda *c, uint32_t rows, uint32_t tops,
                            struct aq_compute_cuda_answers *ret)
{
    size_t choices = aq_align_up(rows * sizeof(*ret->choice), 16);
    assert(!c->used);
    c->answers_bytes = choices + tops * sizeof(*ret->top);
    c->answers = put(c, c->answers_bytes, &c->answers_there);
    c->sent = c->used; /* it comes home, and does not go there */
    c->choice = (struct aq_cuda_choice *)c->answers_there;
    c->top = (struct aq_cuda_top *)(c->answers_there + choices);
    ret->choice = (const struct aq_cuda_choice *)c->answers;
    ret->top = (const struct aq_cuda_top *)(c->answers + choices);
}

void aq_compute_cuda_answer(struct aq_compute_cuda *c)
{
    fetch(c, c->answers, c->answers_there, c->answers_bytes);
}

static struct aq_cuda_draw draw_of(struct aq_compute_cuda *c, const struct aq_compute_cuda_row *r,
                                   uint32_t vocab)
{
    const struct aq_sequence *s = r->sequence;
    const struct aq_sampling *p = &s->sampling;
    struct aq_cuda_draw d = {
        .given = r->given,
        .id_end = aq_sample_id_end(s, vocab),
        .inverse = p->temperature > 0 ? aq_sample_inverse(p) : 0,
        .reach = aq_sample_reach(p),
        .top_p = p->top_p,
        .top_k = p->top_k,
        .seed = p->seed,
        .counter_low = p->record_hash,
        .counter_high = (uint64_t)p->choice << 32 | s->token_count,
        .repetition_penalty = p->repetition_penalty,
        .presence_penalty = p->presence_penalty,
        .frequency_penalty = p->frequency_penalty,
        .prompt_count = s->prompt_count,
        .seen_count = seen_count(r),
        .masked_count = masked_count(r),
        .tops = c->top,
        .top_count = r->top_count,
    };
    c->top += r->top_count;
    if (d.masked_count)
        aq_sample_masked_ids(s, put(c, d.masked_count * sizeof(*d.masked), &d.masked));
    if (d.seen_count) {
        uint32_t *ids = put(c, d.seen_count * sizeof(*ids), &d.seen);
        memcpy(ids, s->prompt, s->prompt_count * sizeof(*ids));
        if (s->token_count)
            memcpy(ids + s->prompt_count, s->tokens, s->token_count * sizeof(*ids));
    }
    if (d.masked_count + d.seen_count)
        put(c, (d.masked_count + d.seen_count) * sizeof(*d.before), &d.before);
    return d;
}

void aq_compute_cuda_choose(struct aq_compute_cuda *c, const struct aq_compute_cuda_row *row,
                            uint32_t rows, float *logits, uint32_t vocab)
{
    struct aq_logits stat = {c->stats, logits, vocab, rows, vocab};
    struct aq_cuda_rows r = {.raw = c->stats,
                             .now = c->stats,
                             .choices = c->choice,
                             .logits = logits,
                             .stride = vocab,
                             .rows = rows,
                             .vocab = vocab};
    struct aq_cuda_draw *draw = put(c, rows * sizeof(*draw), &r.draws);
    bool changes = false, tops = false;
    for (uint32_t i = 0; i < rows; i++) {
        draw[i] = draw_of(c, &row[i], vocab);
        changes |= draw[i].before != NULL;
        tops |= draw[i].top_count > 0;
    }
    send(c);
    LAUNCH(c, logits_stat, &stat);
    if (tops)
        LAUNCH(c, tops, &r);
    if (changes) {
        LAUNCH(c, penalise, &r);
        r.now = stat.stat = c->stats_now;
        LAUNCH(c, logits_stat, &stat);
    }
    LAUNCH(c, sample, &r);
    c->choice += rows;
}

/* ---- ops, open and close ----------------------------------------------------------------- */

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

void aq_compute_cuda_begin(struct aq_compute_cuda *c, void *stream, uint32_t desks, bool together)
{
    assert(AQ_GPU_DESKS % desks == 0 && desks <= AQ_GPU_BUNDLE_DESKS && c->desk % desks == 0);
    c->desks = desks;
    c->desk = (c->desk + desks) % AQ_GPU_DESKS;
    c->used = c->sent = 0;
    c->back = desks * c->sizes.desk_bytes;
    c->rc = 0;
    c->op = 0;
    c->given_count = 0;
    c->ex.stream = stream;
    c->noting = together;
    aq_cuda_record_clear(c->record);
    send_changes(c);
}

void aq_compute_cuda_next(struct aq_compute_cuda *c, uint32_t op)
{
    c->op = op;
    c->given_count = 0;
}

int aq_compute_cuda_end(struct aq_compute_cuda *c, uint32_t *ret_op, const char **ret_what,
                        const char **ret_why)
{
    if (c->noting)
        launch_noted(c, true);
    if (c->rc) {
        *ret_op = c->failed_op;
        *ret_what = c->what;
        *ret_why = c->k->error_text(c->rc);
    }
    return c->rc ? -EIO : 0;
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

static int prove(const struct aq_compute_cuda *c, const struct aq_compute_cuda_opts *opts,
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
    return aq_cuda_prove(&proof, reterr);
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
    c->ex.sm = opts->cuda->info.sm;
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
    if (rc == 0 && opts->deterministic)
        rc = prove(c, opts, reterr);
    if (rc < 0) {
        aq_compute_cuda_close(c);
        return rc;
    }
    *ret = c;
    return 0;
}

void aq_compute_cuda_close(struct aq_compute_cuda *c)
{
    if (!c)
        return;
    aq_cuda_record_close(c->record);
    c->k->blas_close(&c->blas);
    aq_device_free(c->device, AQ_MEMORY_DEVICE, "gpu work", c->work, c->work_bytes);
    aq_device_free(c->device, AQ_MEMORY_PINNED, "gpu desks", c->desks_here, c->desks_bytes);
    free(c->given);
    pthread_mutex_destroy(&c->lock);
    free(c);
}
