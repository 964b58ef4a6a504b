/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/policy/plans.h"

#include "base/prng.h"
#include "policy/checker.h"
#include "tests/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint8_t add_matrix(struct aq_step_desc *s, const char *name, uint32_t layer, uint32_t rows,
                          uint32_t k)
{
    struct aq_matrix_desc *m = &s->matrix[s->matrix_count];
    snprintf(m->name, sizeof(m->name), "%s.%u", name, layer);
    m->rows = rows;
    m->k = k;
    return (uint8_t)s->matrix_count++;
}

static void add_product(struct aq_step_desc *s, struct aq_prim_list *list, const char *name,
                        uint32_t rows, uint32_t k, enum aq_register src, enum aq_register dst)
{
    list->prim[list->count++] = (struct aq_prim){
        .kind = AQ_PRIM_PRODUCT,
        .src = src,
        .dst = dst,
        .combine = dst == AQ_REG_HIDDEN ? AQ_COMBINE_ADD : AQ_COMBINE_SET,
        .matrix = {add_matrix(s, name, s->layer, rows, k)},
        .matrix_count = 1,
        .weight = -1,
        .bias = -1,
    };
}

static void attention_step(struct aq_step_desc *s, uint32_t h)
{
    s->kind = AQ_STEP_ATTENTION;
    struct aq_prim qkv = {.kind = AQ_PRIM_PRODUCT,
                          .src = AQ_REG_HIDDEN,
                          .dst = AQ_REG_QKV,
                          .matrix_count = 3,
                          .weight = -1,
                          .bias = -1};
    qkv.matrix[0] = add_matrix(s, "q", s->layer, h, h);
    qkv.matrix[1] = add_matrix(s, "k", s->layer, h, h);
    qkv.matrix[2] = add_matrix(s, "v", s->layer, h, h);
    s->half[0].prim[s->half[0].count++] = qkv;
    add_product(s, &s->half[1], "out", h, h, AQ_REG_ATTENTION, AQ_REG_HIDDEN);
}

struct aq_model_steps plans_model(uint32_t layers, uint32_t hidden, uint32_t heads, uint32_t vocab)
{
    struct aq_model_steps m = {
        .layers = layers,
        .hidden = hidden,
        .inner = 4 * hidden,
        .embed_width = hidden,
        .vocab = vocab,
        .heads = heads,
        .kv_heads = heads,
        .head_dim = hidden / heads,
        .context = 2048,
    };
    assert_int_equal(aq_steps_open(&m, 2 * layers + 2, 4, 1, NULL), 0);
    struct aq_step_desc *embed = &m.step[0], *head = &m.step[m.step_count - 1];
    embed->kind = AQ_STEP_EMBED;
    embed->matrix[add_matrix(embed, "tokens", 0, vocab, hidden)].table = true;
    embed->half[0].prim[embed->half[0].count++] = (struct aq_prim){
        .kind = AQ_PRIM_GATHER, .dst = AQ_REG_HIDDEN, .matrix_count = 1, .weight = -1, .bias = -1};
    for (uint32_t layer = 0; layer < layers; layer++) {
        struct aq_step_desc *mlp = &m.step[2 + 2 * layer];
        m.step[1 + 2 * layer].layer = mlp->layer = layer;
        attention_step(&m.step[1 + 2 * layer], hidden);
        mlp->kind = AQ_STEP_MLP;
        add_product(mlp, &mlp->half[0], "fc1", 4 * hidden, hidden, AQ_REG_HIDDEN, AQ_REG_INNER);
        add_product(mlp, &mlp->half[1], "fc2", hidden, 4 * hidden, AQ_REG_INNER, AQ_REG_HIDDEN);
    }
    head->kind = AQ_STEP_HEAD;
    add_product(head, &head->half[0], "head", vocab, hidden, AQ_REG_HIDDEN, AQ_REG_LOGITS);
    aq_steps_finish(&m);
    return m;
}

/* q and k are turned where they lie. */
static void add_rotate(struct aq_step_desc *s)
{
    s->half[0].prim[s->half[0].count++] = (struct aq_prim){
        .kind = AQ_PRIM_ROTATE, .src = AQ_REG_QKV, .dst = AQ_REG_QKV, .weight = -1, .bias = -1};
}

static void add_frequencies(struct aq_model_steps *m)
{
    m->rotary = (struct aq_rotary){.dims = m->head_dim / 2, .factor = {1, 1}};
    m->rotary.frequency[0] = calloc(m->rotary.dims / 2, sizeof(float));
    assert_non_null(m->rotary.frequency[0]);
}

struct aq_model_steps plans_gated_model(uint32_t layers, uint32_t hidden, uint32_t heads,
                                        uint32_t vocab)
{
    struct aq_model_steps m = plans_model(layers, hidden, heads, vocab);
    m.kv_heads = heads / 2;
    for (uint32_t j = 0; j < m.step_count; j++) {
        struct aq_step_desc *s = &m.step[j];
        if (s->kind == AQ_STEP_ATTENTION) {
            s->matrix[1].rows = s->matrix[2].rows = hidden / 2;
            add_rotate(s);
        } else if (s->kind == AQ_STEP_MLP) { /* fc1 is the gate */
            add_product(s, &s->half[0], "up", 4 * hidden, hidden, AQ_REG_HIDDEN, AQ_REG_INNER);
            s->half[0].prim[1].combine = AQ_COMBINE_MULTIPLY;
        }
    }
    add_frequencies(&m);
    aq_steps_finish(&m);
    return m;
}

/* The second half of attention with the MLP beside it: its norm reads the stream first. */
static void add_parallel_mlp(struct aq_step_desc *s, uint32_t hidden)
{
    struct aq_prim_list *post = &s->half[1];
    post->prim[1] = post->prim[0];
    post->prim[0] = (struct aq_prim){
        .kind = AQ_PRIM_NORM, .src = AQ_REG_HIDDEN, .dst = AQ_REG_NORM, .weight = -1, .bias = -1};
    post->count = 2;
    add_product(s, post, "fc1", 4 * hidden, hidden, AQ_REG_NORM, AQ_REG_INNER);
    add_product(s, post, "fc2", hidden, 4 * hidden, AQ_REG_INNER, AQ_REG_HIDDEN);
}

struct aq_model_steps plans_parallel_model(uint32_t layers, uint32_t hidden, uint32_t heads,
                                           uint32_t vocab)
{
    struct aq_model_steps from = plans_model(layers, hidden, heads, vocab), m = from;
    assert_int_equal(aq_steps_open(&m, layers + 2, 6, 1, NULL), 0);
    for (uint32_t j = 0; j < m.step_count; j++) {
        uint32_t last = from.step_count - 1, as = j + 1 == m.step_count ? last : j ? 2 * j - 1 : 0;
        struct aq_step_desc *s = &m.step[j], place = *s;
        *s = from.step[as];
        s->matrix = place.matrix;
        s->vector = place.vector;
        s->matrix_first = place.matrix_first;
        s->vector_first = place.vector_first;
        memcpy(s->matrix, from.step[as].matrix, s->matrix_count * sizeof(*s->matrix));
        if (s->kind != AQ_STEP_ATTENTION)
            continue;
        add_rotate(s);
        add_parallel_mlp(s, hidden);
    }
    aq_steps_close(&from);
    add_frequencies(&m);
    aq_steps_finish(&m);
    return m;
}

struct dice {
    uint64_t seed, rolls;
};

static uint32_t roll(struct dice *d, uint32_t n)
{
    return (uint32_t)aq_prng_below(d->seed, d->rolls++, 11, n);
}

/* Often all on one tier, sometimes all three. */
static struct aq_shares draw_shares(struct dice *d)
{
    struct aq_shares s = {0};
    double device = roll(d, 101), host = roll(d, 101 - (uint32_t)device);
    if (roll(d, 3) == 0) {
        s.percent[roll(d, AQ_TIER_COUNT)] = 100;
        return s;
    }
    s.percent[AQ_DEVICE] = device;
    s.percent[AQ_HOST] = host;
    s.percent[AQ_DISK] = 100 - device - host;
    return s;
}

struct aq_block_shape plans_shape(uint32_t micro_batch, uint32_t micro_batches)
{
    return (struct aq_block_shape){
        .micro_batch = micro_batch,
        .micro_batches = micro_batches,
        .prompt_tokens = 64,
        .rows_max = 64,
        .tile_rows = 64,
        .head_tile_rows = 8,
        .page_slots = 32,
        .page_bytes = 4096,
        .prompt_max = 64,
        .keys_max = 128,
        .positions_max = 128,
        .compute = AQ_F32,
        .products = AQ_F32,
        .kv_format = AQ_F16,
        .weight_format = AQ_F32,
    };
}

static void draw_plan(struct aq_plan *p, const struct aq_model_steps *m,
                      const struct plan_limits *limits, struct dice *d)
{
    uint64_t step = 8ull * m->hidden * m->hidden * 4; /* bytes of an MLP step in f32 */
    uint32_t seats = 1 + roll(d, 6);
    *p = (struct aq_plan){
        .shape = plans_shape(seats, 1 + roll(d, limits->micro_batches_max)),
        .placement = {draw_shares(d), draw_shares(d), draw_shares(d),
                      roll(d, 2) ? AQ_DEVICE : AQ_HOST},
        .separate = roll(d, 3) > 0,
        .chunk_bytes = aq_align_up(step / (1 + roll(d, limits->chunks_max)), AQ_PANEL_ALIGN),
        .ring_chunks = 1 + roll(d, 6 * limits->chunks_max),
        .staging_chunks = 1 + roll(d, 4),
        .kv_stages = 1 + roll(d, 3),
        .workspaces = 1 + roll(d, 3),
        .hidden_slots = roll(d, 4),
        .fuse_layer = roll(d, 2),
        .alternate = roll(d, 2),
        .split_mlp = roll(d, 2),
        .unpack = roll(d, 4) == 0,
    };
    struct aq_kv_options kv = {.policy = "h2o", .budget = {.unit = AQ_KV_SLOTS, .slots = 128}};
    if (aq_prng_below(d->seed, 0, 12, 3) == 0) /* a draw of its own, which moves no other */
        assert_int_equal(aq_kv_policy_resolve(&p->kv, &kv, NULL), 0);
    aq_kv_kinds_of(&p->kinds, &p->kv, m,
                   &(struct aq_kv_lengths){p->shape.prompt_max, p->shape.positions_max, 0});
    p->host_products =
        aq_prng_below(d->seed, 1, 12, 2) ? 1 + aq_prng_below(d->seed, 2, 12, 100) : 0;
    p->side_by_side =
        !p->separate && p->shape.micro_batches > 1 && aq_prng_below(d->seed, 4, 12, 2);
    /* The smallest panel of all: fc2's. */
    uint64_t panel = aq_panel_bytes(AQ_F32, 4 * m->hidden);
    p->chunk_bytes = aq_max_u64(p->chunk_bytes, panel);
}

bool plans_draw(struct planned *ret, const struct plan_limits *limits, uint64_t seed)
{
    static struct aq_model_steps (*const models[])(uint32_t, uint32_t, uint32_t, uint32_t) = {
        plans_model, plans_gated_model, plans_parallel_model};
    return plans_draw_for(ret, models[seed % AQ_ARRAY_LEN(models)], limits, seed);
}

bool plans_draw_for(struct planned *ret,
                    struct aq_model_steps (*model)(uint32_t layers, uint32_t hidden, uint32_t heads,
                                                   uint32_t vocab),
                    const struct plan_limits *limits, uint64_t seed)
{
    struct dice d = {.seed = seed};
    struct planned p = {0};
    struct aq_err err = {0};
    p.steps = model(1 + roll(&d, limits->layers_max), 128, 2, 200);
    draw_plan(&p.plan, &p.steps, limits, &d);
    enum aq_attention_side side = (enum aq_attention_side)roll(&d, 3);
    p.plan.split_host = (double)aq_prng_below(d.seed, 3, 12, 101);
    uint32_t seats = p.plan.shape.micro_batch, least = (seats + 2) / limits->parts_max + 1;
    assert_int_equal(aq_plan_parts(&p.plan, side, least + roll(&d, seats), &err), 0);
    int rc = aq_stream_build(&p.stream, &p.steps, &p.plan, &err);
    if (rc == 0)
        rc = aq_program_build(&p.program, &p.steps, &p.plan, &p.stream, &err);
    rc = rc < 0 ? rc : aq_program_order(&p.program, &err);
    if (rc < 0) {
        assert_true(rc == -EINVAL || rc == -ENOBUFS);
        assert_non_null(strstr(err.text, "--prefetch"));
        plans_close(&p);
        return false;
    }
    *ret = p;
    return true;
}

void plans_build(struct planned *p, enum aq_attention_side side, uint32_t part_seats)
{
    struct aq_err err;
    aq_kv_kinds_of(
        &p->plan.kinds, &p->plan.kv, &p->steps,
        &(struct aq_kv_lengths){p->plan.shape.prompt_max, p->plan.shape.positions_max, 0});
    if (aq_plan_parts(&p->plan, side, part_seats, &err) < 0 ||
        aq_stream_build(&p->stream, &p->steps, &p->plan, &err) < 0 ||
        aq_program_build(&p->program, &p->steps, &p->plan, &p->stream, &err) < 0 ||
        aq_program_order(&p->program, &err) < 0)
        fail_msg("%s", err.text);
}

void plans_check(const struct planned *p)
{
    struct aq_err err;
    struct aq_check_opts opts = plans_check_opts(p);
    if (aq_program_check(&p->program, &opts, &err) < 0)
        fail_msg("%s", err.text);
}

struct aq_check_opts plans_check_opts(const struct planned *p)
{
    return (struct aq_check_opts){
        .stream = &p->stream,
        .steps = &p->steps,
        .plan = &p->plan,
        .weight_bytes = p->stream.bytes[AQ_HOST] + p->stream.bytes[AQ_DISK],
    };
}

void plans_close(struct planned *p)
{
    aq_steps_close(&p->steps);
    aq_stream_close(&p->stream);
    aq_program_close(&p->program);
}

struct aq_block_inputs plans_inputs(const struct aq_model_steps *m)
{
    return (struct aq_block_inputs){.steps = m,
                                    .compute = AQ_BF16,
                                    .products = AQ_BF16,
                                    .weight_format = AQ_BF16,
                                    .kv_format = AQ_F16,
                                    .table_format = AQ_BF16,
                                    .threads = 2,
                                    .scratch_bytes_per_thread = 4096,
                                    .sequences = 64,
                                    .prompt_max = 100,
                                    .total_max = 164,
                                    .attention_auto = true,
                                    .refill = true,
                                    .can_stream = true,
                                    .budget = {AQ_GIB, AQ_GIB, AQ_GIB}};
}

struct aq_block plans_choose(const struct aq_block_inputs *in)
{
    struct aq_block b = {0};
    struct aq_err err;
    if (aq_block_choose(&b, in, &err) < 0)
        fail_msg("%s", err.text);
    return b;
}

struct aq_forecast plans_forecast(const struct aq_block *b, const struct aq_block_inputs *in,
                                  const struct aq_hardware *hw)
{
    struct aq_forecast f;
    struct aq_err err;
    struct aq_forecast_work work = {
        .steps = in->steps, .sequences = in->sequences, .refill = in->refill, .serial = in->serial};
    aq_forecast_mean(&work, in);
    if (aq_forecast_make(&f, b, &work, hw, &err) < 0)
        fail_msg("%s", err.text);
    return f;
}

void plans_check_block(const struct aq_block *b, const struct aq_block_inputs *in)
{
    struct aq_err err;
    struct aq_check_opts opts = {.stream = &b->stream, .steps = in->steps, .plan = &b->plan};
    for (int t = 0; t < AQ_TIER_COUNT; t++)
        assert_true(aq_ledger_total(&b->ledger, (enum aq_tier)t) <= in->budget[t]);
    if (aq_program_check(&b->program, &opts, &err) < 0)
        fail_msg("%s", err.text);
    assert_int_equal(aq_placement_check(&b->plan.placement, NULL), 0);
    uint64_t lane = aq_ledger_line(&b->ledger, AQ_HOST, "scratch (host lane)");
    assert_int_equal(lane, b->plan.side_by_side || aq_program_host_computes(&b->program)
                               ? (uint64_t)in->threads * in->scratch_bytes_per_thread
                               : 0);
}
