/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/executor.h"

#include "base/clock.h"
#include "engine/kv.h"
#include "engine/sample.h"
#include "policy/admit.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A place for one sequence; index in the block = micro_batch * seats per micro-batch + place. */
struct seat {
    struct aq_sequence *sequence; /* NULL: free */
    uint32_t keys;                /* keys in the cache after the pass whose rows are bound */
    uint32_t rows;                /* rows bound for that pass */
    uint32_t last;                /* most keys it may come to hold */
    uint32_t chosen;              /* token chosen by HEAD */
    bool has_chosen, bad;
    bool bad_prompt; /* a prompt row's logits were not finite: set by any worker */
};

/* A row whose logits are needed: the last row of a sequence (choose a token), or a prompt row whose
 * next token is scored. */
struct logit_row {
    uint32_t seat;
    int32_t prompt_index; /* scores prompt token prompt_index + 1; -1: choose the next token */
};

struct micro_batch {
    uint32_t *id, *position, *logit_index; /* [rows_max] */
    struct logit_row *logit_row;           /* [rows_max] */
    struct aq_attn_seq *decode, *prefill;  /* [seats] */
    uint32_t *decode_seat, *prefill_seat;  /* [seats] seat of each entry above */
    float *hidden;                         /* [rows_max][hidden] */
    uint32_t row_count, logit_count, decode_count, prefill_count, prefill_rows;
};

struct list {
    struct aq_sequence *first, *last;
    uint32_t count;
};

struct aq_executor {
    struct aq_executor_opts opts;
    const struct aq_model_steps *steps;
    struct aq_program program;
    struct aq_op_cost *cost;
    struct aq_pass_shape *pass_shape;
    struct aq_kv *kv;
    struct seat *seat;
    struct micro_batch *batch;
    struct aq_admit_length *lengths; /* workspace of admission */
    uint32_t seat_count, seated;
    bool filling; /* without refill: the block is being filled, nobody decodes yet */
    struct list waiting, finished;
    struct aq_engine_stats stats;

    void *rows_buffer; /* everything per row and seat */
    size_t rows_bytes;
    float *qkv, *logits;
    void *attention, *tile_norm, *tile_inner, *tile_embed, *tiles;
    size_t qkv_bytes, logits_bytes, attention_bytes, tiles_bytes, hidden_bytes, sampler_bytes;
    struct aq_candidate *sampler; /* [threads][vocab] */
    float *sampler_logits;        /* [threads][vocab] */
    struct aq_logits_stat *logits_stat;
};

/* ---- lists ------------------------------------------------------------------------------- */

static void push(struct list *l, struct aq_sequence *s)
{
    s->next = NULL;
    if (l->last)
        l->last->next = s;
    else
        l->first = s;
    l->last = s;
    l->count++;
}

static struct aq_sequence *pop(struct list *l)
{
    struct aq_sequence *s = l->first;
    if (!s)
        return NULL;
    l->first = s->next;
    if (!l->first)
        l->last = NULL;
    l->count--;
    s->next = NULL;
    return s;
}

/* ---- open and close ---------------------------------------------------------------------- */

/* Hands out pieces of one buffer: the arrays per row and seat, so that they are one line of the
 * ledger. */
struct carver {
    uint8_t *base;
    size_t used;
};

static void *carve(struct carver *c, size_t bytes)
{
    void *p = c->base ? c->base + c->used : NULL;
    c->used += aq_align_up(bytes, 64);
    return p;
}

static void carve_rows(struct carver *c, struct aq_executor *x, const struct aq_block_shape *s)
{
    size_t rows = s->rows_max, seats = s->micro_batch;
    for (uint32_t k = 0; k < s->micro_batches; k++) {
        struct micro_batch unused, *b = x ? &x->batch[k] : &unused;
        b->id = carve(c, rows * sizeof(*b->id));
        b->position = carve(c, rows * sizeof(*b->position));
        b->logit_index = carve(c, rows * sizeof(*b->logit_index));
        b->logit_row = carve(c, rows * sizeof(*b->logit_row));
        b->decode = carve(c, seats * sizeof(*b->decode));
        b->prefill = carve(c, seats * sizeof(*b->prefill));
        b->decode_seat = carve(c, seats * sizeof(*b->decode_seat));
        b->prefill_seat = carve(c, seats * sizeof(*b->prefill_seat));
    }
    seats *= s->micro_batches;
    struct seat *seat = carve(c, seats * sizeof(*seat));
    struct aq_admit_length *lengths = carve(c, (seats + 1) * sizeof(*lengths));
    struct aq_logits_stat *stat = carve(c, s->head_tile_rows * sizeof(*stat));
    if (x) {
        x->seat = seat;
        x->lengths = lengths;
        x->logits_stat = stat;
    }
}

uint64_t aq_executor_rows_bytes(const struct aq_block_shape *shape)
{
    struct carver c = {0};
    carve_rows(&c, NULL, shape);
    return c.used;
}

static int take(struct aq_executor *x, void *ret, const char *purpose, size_t bytes,
                size_t *ret_bytes, struct aq_err *reterr)
{
    int rc = aq_mem_alloc(ret, x->opts.mem, AQ_HOST, purpose, bytes, reterr);
    if (rc == 0)
        *ret_bytes = bytes;
    return rc;
}

static int take_buffers(struct aq_executor *x, struct aq_err *reterr)
{
    const struct aq_model_steps *m = x->steps;
    const struct aq_block_shape *s = &x->opts.shape;
    size_t compute = aq_dtype_bytes(s->compute), rows = s->rows_max,
           width = (size_t)m->heads * m->head_dim;
    uint32_t threads = aq_pool_threads(aq_exec_pool(x->opts.exec));
    int rc = take(x, &x->rows_buffer, "rows and seats", aq_executor_rows_bytes(s), &x->rows_bytes,
                  reterr);
    if (rc < 0)
        return rc;
    struct carver c = {.base = x->rows_buffer};
    carve_rows(&c, x, s);
    x->hidden_bytes = rows * m->hidden * sizeof(float);
    for (uint32_t k = 0; k < s->micro_batches && rc == 0; k++)
        rc = aq_mem_alloc((void **)&x->batch[k].hidden, x->opts.mem, AQ_HOST, "hidden",
                          x->hidden_bytes, reterr);
    size_t qkv_width = width + 2ull * m->kv_heads * m->head_dim;
    rc = rc < 0 ? rc
                : take(x, &x->qkv, "qkv", rows * qkv_width * sizeof(float), &x->qkv_bytes, reterr);
    rc = rc < 0 ? rc
                : take(x, &x->attention, "attention output", rows * width * compute,
                       &x->attention_bytes, reterr);
    size_t norm = aq_align_up(s->tile_rows * (size_t)m->hidden * compute, 64);
    size_t inner = aq_align_up(s->tile_rows * (size_t)m->inner * compute, 64);
    size_t embed = s->tile_rows * (size_t)m->embed_width * compute;
    rc = rc < 0 ? rc : take(x, &x->tiles, "tiles", norm + inner + embed, &x->tiles_bytes, reterr);
    rc = rc < 0
             ? rc
             : take(x, &x->logits, "logits", (size_t)s->head_tile_rows * m->vocab * sizeof(float),
                    &x->logits_bytes, reterr);
    rc = rc < 0 ? rc
                : take(x, &x->sampler, "sampler",
                       (size_t)threads * m->vocab * (sizeof(*x->sampler) + sizeof(float)),
                       &x->sampler_bytes, reterr);
    if (rc < 0)
        return rc;
    x->sampler_logits = (float *)(x->sampler + (size_t)threads * m->vocab);
    x->tile_norm = x->tiles;
    x->tile_inner = (uint8_t *)x->tiles + norm;
    x->tile_embed = (uint8_t *)x->tiles + norm + inner;
    return 0;
}

int aq_executor_open(struct aq_executor **ret, const struct aq_executor_opts *opts,
                     struct aq_err *reterr)
{
    struct aq_executor *x = calloc(1, sizeof(*x));
    if (!x)
        return aq_error(reterr, -ENOMEM, "executor");
    x->opts = *opts;
    x->steps = &opts->model->steps;
    const struct aq_block_shape *s = &x->opts.shape;
    x->seat_count = s->micro_batch * s->micro_batches;
    x->filling = true;
    int rc = aq_program_build(&x->program, x->steps, s, reterr);
    if (rc < 0)
        goto fail;
    x->batch = calloc(s->micro_batches, sizeof(*x->batch));
    x->pass_shape = calloc(s->micro_batches, sizeof(*x->pass_shape));
    x->cost = calloc(x->program.op_count, sizeof(*x->cost));
    if (!x->batch || !x->pass_shape || !x->cost) {
        rc = aq_error(reterr, -ENOMEM, "executor of %u ops", x->program.op_count);
        goto fail;
    }
    rc = take_buffers(x, reterr);
    if (rc < 0)
        goto fail;
    struct aq_kv_opts kv = {
        .seats = x->seat_count,
        .layers = x->steps->layers,
        .kv_heads = x->steps->kv_heads,
        .head_dim = x->steps->head_dim,
        .keys_max = opts->keys_max,
        .shape = s,
    };
    rc = aq_kv_open(&x->kv, opts->mem, &kv, reterr);
    if (rc < 0)
        goto fail;
    *ret = x;
    return 0;
fail:
    aq_executor_close(x);
    return rc;
}

void aq_executor_close(struct aq_executor *x)
{
    if (!x)
        return;
    struct aq_mem *mem = x->opts.mem;
    aq_kv_close(x->kv);
    for (uint32_t k = 0; x->batch && k < x->opts.shape.micro_batches; k++)
        aq_mem_free(mem, AQ_HOST, "hidden", x->batch[k].hidden, x->hidden_bytes);
    aq_mem_free(mem, AQ_HOST, "rows and seats", x->rows_buffer, x->rows_bytes);
    aq_mem_free(mem, AQ_HOST, "qkv", x->qkv, x->qkv_bytes);
    aq_mem_free(mem, AQ_HOST, "attention output", x->attention, x->attention_bytes);
    aq_mem_free(mem, AQ_HOST, "tiles", x->tiles, x->tiles_bytes);
    aq_mem_free(mem, AQ_HOST, "logits", x->logits, x->logits_bytes);
    aq_mem_free(mem, AQ_HOST, "sampler", x->sampler, x->sampler_bytes);
    aq_program_close(&x->program);
    free(x->batch);
    free(x->pass_shape);
    free(x->cost);
    free(x);
}

/* ---- TURN: ends, admission, rows --------------------------------------------------------- */

static void finish(struct aq_executor *x, uint32_t seat_index)
{
    struct seat *seat = &x->seat[seat_index];
    struct aq_sequence *s = seat->sequence;
    aq_kv_release(x->kv, seat_index);
    *seat = (struct seat){0};
    s->seat = -1;
    x->seated--;
    x->filling = x->filling || x->seated == 0;
    x->stats.finished++;
    push(&x->finished, s);
}

static bool is_stop_id(const struct aq_sequence *s, uint32_t id)
{
    for (uint32_t i = 0; i < s->stop_id_count; i++) {
        if (s->stop_ids[i] == id)
            return true;
    }
    return false;
}

/* Appends the chosen token; returns how the sequence ends, or NONE. */
static enum aq_finish append_token(struct aq_executor *x, struct seat *seat)
{
    struct aq_sequence *s = seat->sequence;
    if (seat->bad || seat->bad_prompt)
        return AQ_FINISH_ERROR;
    if (s->max_tokens == 0)
        return AQ_FINISH_LENGTH;
    s->tokens[s->token_count++] = seat->chosen;
    x->stats.generated_tokens++;
    if (is_stop_id(s, seat->chosen) && s->token_count > s->min_tokens) {
        s->finish_id = seat->chosen;
        return AQ_FINISH_STOP_ID;
    }
    if (s->on_token && s->on_token(s))
        return AQ_FINISH_CALLER;
    return s->token_count >= s->max_tokens ? AQ_FINISH_LENGTH : AQ_FINISH_NONE;
}

static void retire(struct aq_executor *x, uint32_t k)
{
    uint32_t first = k * x->opts.shape.micro_batch;
    for (uint32_t i = first; i < first + x->opts.shape.micro_batch; i++) {
        struct seat *seat = &x->seat[i];
        if (!seat->sequence || !seat->has_chosen)
            continue;
        seat->has_chosen = false;
        enum aq_finish how = append_token(x, seat);
        if (how != AQ_FINISH_NONE) {
            seat->sequence->finish = how;
            finish(x, i);
        }
    }
}

/* What admission knows of those seated: each may hold one more key than now, and leave one pass
 * later than it thinks, because micro-batches turn one after the other. */
static uint32_t list_lengths(struct aq_executor *x)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < x->seat_count; i++) {
        const struct seat *seat = &x->seat[i];
        if (seat->sequence)
            x->lengths[count++] = (struct aq_admit_length){seat->keys + 1, seat->last + 1};
    }
    return count;
}

/* Seats waiting sequences in micro-batch k, in order.  Without refill only an empty block is
 * filled. */
static void admit(struct aq_executor *x, uint32_t k)
{
    const struct aq_block_shape *s = &x->opts.shape;
    if (!x->waiting.first || (!x->opts.refill && !x->filling))
        return;
    struct aq_admit_limits limits = {
        .pages = s->page_count / x->steps->layers,
        .page_slots = s->page_slots,
        .prompt_tokens = s->prompt_tokens,
        .seats_free = 1,
    };
    uint32_t count = list_lengths(x), tokens = x->batch[k].prefill_rows, first = k * s->micro_batch;
    for (uint32_t i = first; i < first + s->micro_batch && x->waiting.first; i++) {
        struct aq_sequence *q = x->waiting.first;
        if (x->seat[i].sequence)
            continue;
        uint32_t last = q->prompt_count + (q->max_tokens ? q->max_tokens - 1 : 0);
        if (!aq_admit_one(&limits, x->lengths, count, tokens, q->prompt_count, last))
            return;
        pop(&x->waiting);
        count++;
        tokens += q->prompt_count;
        x->seat[i] = (struct seat){.sequence = q, .last = last};
        q->seat = (int32_t)i;
        x->seated++;
    }
}

static void add_logit_row(struct micro_batch *b, uint32_t row, uint32_t seat, int32_t prompt_index)
{
    b->logit_index[b->logit_count] = row;
    b->logit_row[b->logit_count++] = (struct logit_row){seat, prompt_index};
}

static void bind_decode(struct aq_executor *x, struct micro_batch *b, uint32_t seat_index)
{
    struct seat *seat = &x->seat[seat_index];
    const struct aq_sequence *s = seat->sequence;
    uint32_t row = b->row_count++;
    b->id[row] = s->tokens[s->token_count - 1];
    b->position[row] = seat->keys + x->steps->position_offset;
    seat->keys++;
    seat->rows = 1;
    aq_kv_grow(x->kv, seat_index, seat->keys);
    b->decode_seat[b->decode_count] = seat_index;
    b->decode[b->decode_count++] = (struct aq_attn_seq){
        .head_offset = aq_kv_head_offset(x->kv), .len = &seat->keys, .row = row, .rows = 1};
    add_logit_row(b, row, seat_index, -1);
}

static void bind_prefill(struct aq_executor *x, struct micro_batch *b, uint32_t seat_index)
{
    struct seat *seat = &x->seat[seat_index];
    const struct aq_sequence *s = seat->sequence;
    uint32_t first = b->row_count, n = s->prompt_count;
    for (uint32_t i = 0; i < n; i++) {
        b->id[first + i] = s->prompt[i];
        b->position[first + i] = i + x->steps->position_offset;
        if (s->prompt_logprobs && i + 1 < n)
            add_logit_row(b, first + i, seat_index, (int32_t)i);
    }
    add_logit_row(b, first + n - 1, seat_index, -1);
    b->row_count += n;
    b->prefill_rows += n;
    seat->keys = n;
    seat->rows = n;
    aq_kv_grow(x->kv, seat_index, n);
    b->prefill_seat[b->prefill_count] = seat_index;
    b->prefill[b->prefill_count++] = (struct aq_attn_seq){
        .head_offset = aq_kv_head_offset(x->kv), .len = &seat->keys, .row = first, .rows = n};
}

/* Rows of micro-batch k for its next pass: one for each sequence that decodes... */
static void bind_seated(struct aq_executor *x, uint32_t k)
{
    struct micro_batch *b = &x->batch[k];
    uint32_t first = k * x->opts.shape.micro_batch, end = first + x->opts.shape.micro_batch;
    b->row_count = b->logit_count = b->decode_count = b->prefill_count = b->prefill_rows = 0;
    x->pass_shape[k] = (struct aq_pass_shape){0};
    if (!x->opts.refill && x->filling)
        return;
    for (uint32_t i = first; i < end; i++) {
        if (x->seat[i].sequence) {
            bind_decode(x, b, i);
            x->pass_shape[k].decode_keys += x->seat[i].keys;
        }
    }
    x->pass_shape[k].decode_rows = x->pass_shape[k].logit_rows = b->decode_count;
}

/* ... and then the prompts of those who find a seat now. */
static void admit_and_bind(struct aq_executor *x, uint32_t k)
{
    struct micro_batch *b = &x->batch[k];
    struct aq_pass_shape *shape = &x->pass_shape[k];
    uint32_t first = k * x->opts.shape.micro_batch, end = first + x->opts.shape.micro_batch;
    admit(x, k);
    for (uint32_t i = first; i < end; i++) {
        if (x->seat[i].sequence && x->seat[i].keys == 0) {
            bind_prefill(x, b, i);
            shape->prefill_key_pairs += (uint64_t)x->seat[i].keys * (x->seat[i].keys + 1) / 2;
        }
    }
    assert(b->row_count <= x->opts.shape.rows_max);
    shape->prefill_rows = b->prefill_rows;
    shape->logit_rows = b->logit_count;
}

/* ---- ops --------------------------------------------------------------------------------- */

static enum aq_activation kernel_activation(enum aq_step_activation a)
{
    static const enum aq_activation map[] = {
        [AQ_STEP_ACT_NONE] = AQ_ACT_NONE, [AQ_STEP_ACT_RELU] = AQ_ACT_RELU,
        [AQ_STEP_ACT_GELU] = AQ_ACT_GELU, [AQ_STEP_ACT_GELU_TANH] = AQ_ACT_GELU_TANH,
        [AQ_STEP_ACT_SILU] = AQ_ACT_SILU,
    };
    return map[a];
}

/* A register as memory: rows from `row` on. */
struct view {
    void *data;
    enum aq_dtype dtype;
    size_t stride; /* elements */
};

static struct view view_of(struct aq_executor *x, struct micro_batch *b, enum aq_register r,
                           uint32_t row)
{
    const struct aq_model_steps *m = x->steps;
    enum aq_dtype compute = x->opts.shape.compute;
    size_t width = (size_t)m->heads * m->head_dim, qkv = width + 2ull * m->kv_heads * m->head_dim;
    switch (r) {
    case AQ_REG_HIDDEN:
        return (struct view){b->hidden + (size_t)row * m->hidden, AQ_F32, m->hidden};
    case AQ_REG_QKV: return (struct view){x->qkv + row * qkv, AQ_F32, qkv};
    case AQ_REG_ATTENTION:
        return (struct view){(uint8_t *)x->attention + row * width * aq_dtype_bytes(compute),
                             compute, width};
    case AQ_REG_NORM: return (struct view){x->tile_norm, compute, m->hidden};
    case AQ_REG_INNER: return (struct view){x->tile_inner, compute, m->inner};
    case AQ_REG_EMBED: return (struct view){x->tile_embed, compute, m->embed_width};
    case AQ_REG_LOGITS: return (struct view){x->logits, AQ_F32, m->vocab};
    default: assert(!"register"); return (struct view){0};
    }
}

static void run_gather(struct aq_executor *x, uint32_t step, const struct aq_prim *p,
                       struct micro_batch *b, uint32_t row, uint32_t rows)
{
    const struct aq_weight *w = &x->opts.model->weight[step][p->matrix[0]];
    struct view y = view_of(x, b, p->dst, row);
    if (p->kind == AQ_PRIM_POSITION) {
        x->opts.kernels->add_rows(x->opts.exec, y.data, y.stride, w->data, w->dtype,
                                  b->position + row, rows, w->desc->k);
        return;
    }
    x->opts.kernels->embed(x->opts.exec, &(struct aq_embed){
                                             .table = w->data,
                                             .table_dtype = w->dtype,
                                             .table_layout = w->layout,
                                             .id = b->id + row,
                                             .y = y.data,
                                             .y_dtype = y.dtype,
                                             .y_stride = y.stride,
                                             .rows = rows,
                                             .k = w->desc->k,
                                         });
}

static const float *vector_of(struct aq_executor *x, uint32_t step, int8_t index)
{
    return index < 0 ? NULL : x->opts.model->vector[step][index];
}

static void run_norm(struct aq_executor *x, uint32_t step, const struct aq_prim *p,
                     struct micro_batch *b, uint32_t row, uint32_t rows, const uint32_t *row_index)
{
    static const enum aq_norm_kind map[] = {[AQ_STEP_NORM_LAYER] = AQ_NORM_LAYER,
                                            [AQ_STEP_NORM_RMS] = AQ_NORM_RMS,
                                            [AQ_STEP_NORM_CAST] = AQ_NORM_CAST};
    struct view from = view_of(x, b, p->src, row_index ? 0 : row), to = view_of(x, b, p->dst, row);
    x->opts.kernels->norm(x->opts.exec, &(struct aq_norm){
                                            .kind = map[p->norm],
                                            .x = from.data,
                                            .x_stride = from.stride,
                                            .row_index = row_index,
                                            .y = to.data,
                                            .y_dtype = to.dtype,
                                            .y_stride = to.stride,
                                            .w = vector_of(x, step, p->weight),
                                            .b = vector_of(x, step, p->bias),
                                            .eps = p->eps,
                                            .rows = rows,
                                            .dim = x->steps->hidden,
                                        });
}

static void run_product(struct aq_executor *x, uint32_t step, const struct aq_prim *p,
                        struct micro_batch *b, uint32_t row, uint32_t rows)
{
    struct aq_segment segment[AQ_VECTOR_PART_MAX];
    uint32_t column = 0;
    const struct aq_weight *w = NULL;
    for (uint32_t i = 0; i < p->matrix_count; i++) {
        w = &x->opts.model->weight[step][p->matrix[i]];
        segment[i] = (struct aq_segment){w->data, column, w->desc->rows};
        column += w->desc->rows;
    }
    struct view from = view_of(x, b, p->src, row), to = view_of(x, b, p->dst, row);
    struct aq_product product = {
        .x = from.data,
        .x_dtype = from.dtype,
        .m = rows,
        .k = w->desc->k,
        .x_stride = from.stride,
        .segments = segment,
        .segment_count = p->matrix_count,
        .w_dtype = w->dtype,
        .w_layout = w->layout,
        .bias = vector_of(x, step, p->bias),
        .activation = kernel_activation(p->activation),
        .accumulate = p->accumulate,
        .y = to.data,
        .y_dtype = to.dtype,
        .y_stride = to.stride,
    };
    const struct aq_kernels *k = x->opts.kernels;
    (from.dtype == AQ_BF16 ? k->product_bf16 : k->product_f32)(x->opts.exec, &product);
}

/* Runs a list of primitives over rows [row, row + rows).  row_index: the rows of HIDDEN that the
 * first primitive gathers (HEAD), else NULL. */
static void run_list(struct aq_executor *x, uint32_t step, const struct aq_prim_list *list,
                     struct micro_batch *b, uint32_t row, uint32_t rows, const uint32_t *row_index)
{
    for (uint32_t i = 0; i < list->count; i++) {
        const struct aq_prim *p = &list->prim[i];
        switch (p->kind) {
        case AQ_PRIM_GATHER:
        case AQ_PRIM_POSITION: run_gather(x, step, p, b, row, rows); break;
        case AQ_PRIM_NORM: run_norm(x, step, p, b, row, rows, i == 0 ? row_index : NULL); break;
        case AQ_PRIM_PRODUCT: run_product(x, step, p, b, row, rows); break;
        }
    }
}

static void run_tiles(struct aq_executor *x, uint32_t step, const struct aq_prim_list *list,
                      struct micro_batch *b)
{
    uint32_t tile = x->opts.shape.tile_rows;
    for (uint32_t row = 0; row < b->row_count; row += tile)
        run_list(x, step, list, b, row, (uint32_t)aq_min_u64(tile, b->row_count - row), NULL);
}

/* Stores the new keys and values of these sequences and lets their queries attend. */
static void run_attention(struct aq_executor *x, const struct aq_op *op, struct micro_batch *b,
                          bool prefill)
{
    struct aq_attn_seq *seqs = prefill ? b->prefill : b->decode;
    const uint32_t *seat = prefill ? b->prefill_seat : b->decode_seat;
    uint32_t count = prefill ? b->prefill_count : b->decode_count;
    if (!count)
        return;
    const struct aq_model_steps *m = x->steps;
    uint32_t layer = m->step[op->step].layer;
    for (uint32_t i = 0; i < count; i++)
        seqs[i].block = aq_kv_blocks(x->kv, seat[i], layer);
    size_t width = (size_t)m->heads * m->head_dim, kv_width = (size_t)m->kv_heads * m->head_dim;
    size_t stride = width + 2 * kv_width;
    struct aq_attn a = {
        .seqs = seqs,
        .seq_count = count,
        .q = x->qkv,
        .q_stride = stride,
        .out = x->attention,
        .out_dtype = x->opts.shape.compute,
        .out_stride = width,
        .kv_dtype = x->opts.shape.kv_format,
        .kv_heads = m->kv_heads,
        .q_per_kv = m->heads / m->kv_heads,
        .head_dim = m->head_dim,
        .scale = m->attention_scale,
    };
    const struct aq_kernels *k = x->opts.kernels;
    k->kv_append(x->opts.exec, &a, x->qkv + width, x->qkv + width + kv_width, stride);
    (prefill ? k->attn_prefill : k->attn_decode)(x->opts.exec, &a);
}

struct choose {
    struct aq_executor *x;
    struct micro_batch *b;
    uint32_t first; /* logit row of tile row 0 */
};

static void score(const struct aq_executor *x, const struct aq_sequence *s, const float *logits,
                  const struct aq_logits_stat *stat, uint32_t id, float *logprob,
                  struct aq_top *tops)
{
    *logprob = logits[id] - stat->log_sum_exp;
    if (s->top_count > 0 && tops)
        aq_sample_tops(tops, (uint32_t)s->top_count, logits, stat, x->steps->vocab);
}

/* One row of logits: a prompt token scored, or the next token chosen. */
static void choose_row(void *arg, uint32_t tile, uint32_t worker)
{
    struct choose *c = arg;
    struct aq_executor *x = c->x;
    const struct logit_row *row = &c->b->logit_row[c->first + tile];
    struct seat *seat = &x->seat[row->seat];
    struct aq_sequence *s = seat->sequence;
    float *logits = x->logits + (size_t)tile * x->steps->vocab;
    const struct aq_logits_stat *stat = &x->logits_stat[tile];
    uint32_t vocab = x->steps->vocab, tops = s->top_count > 0 ? (uint32_t)s->top_count : 0;
    if (row->prompt_index >= 0) {
        uint32_t at = (uint32_t)row->prompt_index + 1;
        if (stat->bad_count > 0)
            __atomic_store_n(&seat->bad_prompt, true, __ATOMIC_RELAXED);
        score(x, s, logits, stat, s->prompt[at], &s->prompt_logprob[at],
              s->prompt_tops ? s->prompt_tops + (size_t)at * tops : NULL);
        return;
    }
    seat->has_chosen = true;
    seat->bad = stat->bad_count > 0;
    if (seat->bad || s->max_tokens == 0)
        return;
    if (tops && s->tops)
        aq_sample_tops(s->tops + (size_t)s->token_count * tops, tops, logits, stat, vocab);
    struct aq_sample_work *work = &(struct aq_sample_work){
        .candidate = x->sampler + (size_t)worker * vocab,
        .logits = x->sampler_logits + (size_t)worker * vocab,
    };
    seat->chosen = aq_sample_token(s, logits, stat, vocab, work);
    if (s->logprobs)
        s->logprobs[s->token_count] = logits[seat->chosen] - stat->log_sum_exp;
}

static void run_head(struct aq_executor *x, const struct aq_op *op, struct micro_batch *b)
{
    const struct aq_prim_list *list = &x->steps->step[op->step].main;
    uint32_t tile = x->opts.shape.head_tile_rows;
    for (uint32_t first = 0; first < b->logit_count; first += tile) {
        uint32_t rows = (uint32_t)aq_min_u64(tile, b->logit_count - first);
        run_list(x, op->step, list, b, 0, rows, b->logit_index + first);
        x->opts.kernels->logits_stat(x->opts.exec, x->logits_stat, x->logits, x->steps->vocab, rows,
                                     x->steps->vocab);
        struct choose c = {x, b, first};
        aq_pool_run(aq_exec_pool(x->opts.exec), choose_row, &c, rows);
    }
}

static void run_op(struct aq_executor *x, const struct aq_op *op)
{
    struct micro_batch *b = &x->batch[op->micro_batch];
    const struct aq_step_desc *step = &x->steps->step[op->step];
    switch ((enum aq_op_kind)op->kind) {
    case AQ_OP_EMBED:
    case AQ_OP_PRE:
    case AQ_OP_MLP: run_tiles(x, op->step, &step->main, b); break;
    case AQ_OP_POST: run_tiles(x, op->step, &step->post, b); break;
    case AQ_OP_ATTN_PREFILL: run_attention(x, op, b, true); break;
    case AQ_OP_ATTN_DEVICE: run_attention(x, op, b, false); break;
    case AQ_OP_HEAD: run_head(x, op, b); break;
    case AQ_OP_TURN:
        retire(x, op->micro_batch);
        bind_seated(x, op->micro_batch);
        admit_and_bind(x, op->micro_batch);
        break;
    default: assert(!"op kind");
    }
}

/* ---- passes ------------------------------------------------------------------------------ */

void aq_executor_submit(struct aq_executor *x, struct aq_sequence *s)
{
    uint32_t last = s->prompt_count + (s->max_tokens ? s->max_tokens - 1 : 0);
    assert(s->prompt_count >= 1 && last <= x->opts.keys_max);
    assert(s->prompt_count + x->opts.shape.micro_batch <= x->opts.shape.rows_max);
    s->token_count = 0;
    s->finish = AQ_FINISH_NONE;
    s->seat = -1;
    push(&x->waiting, s);
}

struct aq_sequence *aq_executor_finished(struct aq_executor *x)
{
    return pop(&x->finished);
}

static void count_pass(struct aq_executor *x, uint32_t prefill, uint32_t decode, double seconds)
{
    struct aq_engine_stats *st = &x->stats;
    st->passes++;
    st->prefill_tokens += prefill;
    st->decode_tokens += decode;
    st->last_pass_s = seconds;
    if (prefill && decode) {
        st->mixed_passes++;
        st->mixed_s += seconds;
    } else if (prefill) {
        st->prefill_passes++;
        st->prefill_s += seconds;
    } else {
        st->decode_passes++;
        st->decode_s += seconds;
    }
}

/* Rows for sequences submitted since the last TURN; counts the rows of the pass.  Without refill a
 * block that takes nobody more starts to decode. */
static void bind_late_comers(struct aq_executor *x, uint32_t *ret_prefill, uint32_t *ret_decode)
{
    uint32_t prefill = 0, decode = 0;
    for (uint32_t k = 0; k < x->opts.shape.micro_batches; k++) {
        admit_and_bind(x, k);
        prefill += x->pass_shape[k].prefill_rows;
    }
    if (!x->opts.refill && x->filling && !prefill && x->seated) {
        x->filling = false;
        for (uint32_t k = 0; k < x->opts.shape.micro_batches; k++)
            bind_seated(x, k);
    }
    for (uint32_t k = 0; k < x->opts.shape.micro_batches; k++)
        decode += x->pass_shape[k].decode_rows;
    *ret_prefill = prefill;
    *ret_decode = decode;
}

int aq_executor_pass(struct aq_executor *x, bool *ret_worked, struct aq_err *reterr)
{
    uint32_t prefill, decode;
    bind_late_comers(x, &prefill, &decode);
    *ret_worked = prefill + decode > 0;
    if (!*ret_worked) {
        assert(!x->waiting.first);
        return 0;
    }
    if (x->opts.observe)
        x->opts.observe(x->opts.observe_user, true);
    aq_program_annotate(x->cost, &x->program, x->steps, &x->opts.shape, x->pass_shape);
    double start = aq_clock_s(), before = start;
    for (uint32_t i = 0; i < x->program.op_count; i++) {
        const struct aq_op *op = &x->program.op[i];
        if (x->cost[i].rows > 0 || op->kind == AQ_OP_TURN)
            run_op(x, op);
        double now = aq_clock_s();
        *(op->lane == AQ_LANE_CONTROL ? &x->stats.control_busy_s : &x->stats.compute_busy_s) +=
            now - before;
        before = now;
    }
    count_pass(x, prefill, decode, before - start);
    if (x->opts.observe)
        x->opts.observe(x->opts.observe_user, false);
    return 0;
}

struct aq_engine_stats aq_executor_stats(const struct aq_executor *x)
{
    struct aq_engine_stats st = x->stats;
    st.seated = x->seated;
    st.waiting = x->waiting.count;
    return st;
}

const struct aq_program *aq_executor_program(const struct aq_executor *x)
{
    return &x->program;
}
