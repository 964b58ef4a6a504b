/* SPDX-License-Identifier: Apache-2.0
 * How well the builder's schedule hides one lane behind another: decode passes of the opt-6.7b
 * shape cut to 8 layers, in virtual time, on a machine whose rates are set so that the lanes'
 * work stands in a given ratio.  What each lane takes alone is simulated too, by leaving the others
 * without work. */
#include "policy/checker.h"
#include "policy/forecast.h"
#include "policy/simulate.h"
#include "tests/test.h"
#include "tests/unit/policy/plans.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { LAYERS = 8, HIDDEN = 4096, HEADS = 32, VOCAB = 50272, SEATS = 64, PROMPT = 512, MORE = 32 };
enum { PASSES = 6 };

/* Lanes by what they share: weights and small moves pass the same link. */
enum group { LINK, HOST, PRODUCTS, GROUPS };

struct rig {
    struct aq_model_steps steps;
    struct aq_block block;
    struct aq_op_cost *cost;
    struct aq_hardware hw;
    double streamed, ring;
};

static enum group group_of(const struct aq_op *op)
{
    switch ((enum aq_lane)op->lane) {
    case AQ_LANE_H2D:
    case AQ_LANE_H2D_WEIGHTS: return LINK;
    case AQ_LANE_HOST_COMPUTE: return HOST;
    case AQ_LANE_COMPUTE: return PRODUCTS;
    default: return GROUPS;
    }
}

/* Weights stream from the host through a ring of this share of them, or, without a ring, rest on
 * the device as the LM head does; KV is where it is attended, on the host where sides share it. */
static void open_rig(struct rig *r, enum aq_attention_side attention, uint32_t batches, double ring)
{
    *r = (struct rig){.steps = plans_model(LAYERS, HIDDEN, HEADS, VOCAB)};
    enum aq_tier kv = attention == AQ_ATTEND_DEVICE ? AQ_DEVICE : AQ_HOST;
    struct aq_placement p = {.hidden = {{100, 0, 0}}, .head = AQ_DEVICE};
    p.weights.percent[ring > 0 ? AQ_HOST : AQ_DEVICE] = 100;
    p.kv.percent[kv] = 100;
    double layer = 12.0 * HIDDEN * HIDDEN * 2;
    struct aq_block_inputs in = {
        .steps = &r->steps,
        .compute = AQ_BF16,
        .products = AQ_BF16,
        .weight_format = AQ_BF16,
        .kv_format = AQ_F16,
        .table_format = AQ_BF16,
        .threads = 1,
        .micro_batch = SEATS,
        .micro_batches = batches,
        .prefetch_bytes = (uint64_t)(ring * LAYERS * layer) + 16 * AQ_MIB,
        .placement = &p,
        .attention = attention,
        .separate = true,
        .sequences = SEATS * batches,
        .prompt_tokens = 1024,
        .prompt_max = PROMPT,
        .total_max = PROMPT + MORE,
        .budget = {1ull << 40, 1ull << 40, 1ull << 40},
    };
    struct aq_err err;
    if (aq_block_choose(&r->block, &in, &err) < 0)
        fail_msg("%s", err.text);
    const struct aq_stream *s = &r->block.stream;
    struct aq_check_opts check = {.stream = s, .steps = &r->steps, .plan = &r->block.plan};
    if (aq_program_check(&r->block.program, &check, &err) < 0)
        fail_msg("%s", err.text);
    r->streamed = (double)s->bytes[AQ_HOST];
    r->ring = (double)(s->ring * s->chunk_bytes);
    struct aq_pass_shape *shape = aq_pass_shapes_new(&r->block.plan);
    struct aq_forecast_held held = {.slots = PROMPT + MORE / 2};
    struct aq_forecast_rows rows = {.seats = SEATS, .held = &held};
    assert_non_null(shape);
    for (uint32_t k = 0; k < batches; k++)
        aq_forecast_shape(&shape[k], &r->steps, &r->block.plan, &rows);
    r->cost = calloc(r->block.program.op_count, sizeof(*r->cost));
    assert_non_null(r->cost);
    aq_program_annotate(r->cost, &r->block.program, &r->steps, &r->block.plan, s, shape);
    free(shape);
    struct aq_hw_side side = {.product_flops_per_s = {[AQ_BF16] = 1e12},
                              .attention_flops_per_s = 1e18,
                              .product_bytes_per_s = 1e18,
                              .attention_bytes_per_s = 1e15,
                              .unpack_bytes_per_s = 1e12,
                              .overlap = 1};
    r->hw = (struct aq_hardware){.device = side,
                                 .host = side,
                                 .cores = 1,
                                 .host_memory_bytes_per_s = 1e18,
                                 .device_memory_bytes_per_s = 1e18,
                                 .h2d_bytes_per_s = 1e10,
                                 .d2h_bytes_per_s = 1e10,
                                 .link_duplex = 2};
}

static void close_rig(struct rig *r)
{
    free(r->cost);
    aq_steps_close(&r->steps);
    aq_block_close(&r->block);
}

/* A steady pass; of one group of lanes alone, or of all (GROUPS). */
static double pass_s(const struct rig *r, enum group only)
{
    const struct aq_program *p = &r->block.program;
    struct aq_op_cost *cost = calloc(p->op_count, sizeof(*cost));
    assert_non_null(cost);
    for (uint32_t i = 0; i < p->op_count; i++) {
        if (only == GROUPS || group_of(&p->op[i]) == only)
            cost[i] = r->cost[i];
    }
    struct aq_simulate_opts opts = {.passes = PASSES, .compute = AQ_BF16, .cost = cost};
    struct aq_sim_result sim;
    struct aq_err err;
    if (aq_simulate(&sim, p, &r->hw, &opts, &err) < 0)
        fail_msg("%s", err.text);
    double ret = sim.pass_s;
    aq_sim_result_close(&sim);
    free(cost);
    return ret;
}

/* Sets rates so that what a lane does alone takes `want` of what the link does. */
static void balance(struct rig *r, double products, double host)
{
    double link = pass_s(r, LINK);
    r->hw.device.product_flops_per_s[AQ_BF16] *= pass_s(r, PRODUCTS) / (products * link);
    if (host > 0)
        r->hw.host.attention_bytes_per_s *= pass_s(r, HOST) / (host * link);
}

/* What a case may take: times the lane that takes longest alone. */
struct limit {
    const char *name;
    double products, host; /* alone, beside the link's 1; host 0: attention on the device */
    double ring;           /* 0: attention is split, the link carries KV and no weights */
    double at_most;
};

static void expect_within(const struct limit *l, uint32_t batches)
{
    struct rig r;
    double alone[GROUPS], largest = 0;
    enum aq_attention_side side = l->ring <= 0  ? AQ_ATTEND_SPLIT
                                  : l->host > 0 ? AQ_ATTEND_HOST
                                                : AQ_ATTEND_DEVICE;
    open_rig(&r, side, batches, l->ring);
    balance(&r, l->products, l->host);
    for (int g = 0; g < GROUPS; g++) {
        alone[g] = pass_s(&r, (enum group)g);
        largest = fmax(largest, alone[g]);
    }
    assert_true(fabs(alone[PRODUCTS] / alone[LINK] / l->products - 1) < 0.01);
    assert_true(fabs(alone[HOST] / alone[LINK] - l->host) < 0.01);
    assert_true(r.ring >= fmin(l->ring, 0.10) * r.streamed);
    assert_true(r.ring <= (l->ring + 0.01) * r.streamed);
    double all = pass_s(&r, GROUPS);
    print_message("%s, %u micro-batches, ring %.2f of %.2f GB: alone link %.3f s, host %.3f s, "
                  "products %.3f s; pass %.3f s, %.3f x\n",
                  l->name, batches, r.ring * 1e-9, r.streamed * 1e-9, alone[LINK], alone[HOST],
                  alone[PRODUCTS], all, all / largest);
    assert_true(all >= largest * (1 - 1e-9));
    if (all > l->at_most * largest)
        fail_msg("%s, %u micro-batches: expected at most %g x, found %.3f x", l->name, batches,
                 l->at_most, all / largest);
    close_rig(&r);
}

static void weights_stream_behind_products(void **state)
{
    static const struct limit limits[] = {
        {"link and products equal", 1, 0, 0.10, 1.10},
        {"link three times as long", 1.0 / 3, 0, 0.10, 1.03},
        {"products three times as long", 3, 0, 0.10, 1.03},
    };
    for (uint32_t batches = 1; batches <= 3; batches++) {
        for (uint32_t i = 0; i < AQ_ARRAY_LEN(limits); i++)
            expect_within(&limits[i], batches);
    }
}

/* A layer is visited twice while it is in the ring, and is an eighth of it all. */
static void three_equal_lanes_hide_behind_one(void **state)
{
    static const struct limit two = {"three lanes equal", 1, 1, 0.17, 1.15};
    static const struct limit three = {"three lanes equal", 1, 1, 0.20, 1.15};
    expect_within(&two, 2);
    expect_within(&three, 3);
}

/* Half of the seats' KV crosses the link while the host attends the other half: what comes back
 * from the host must not keep KV waiting. */
static void both_sides_of_split_attention_work_at_once(void **state)
{
    static const struct limit limits[] = {
        {"split, both sides equal", 0.2, 1, 0, 1.06},
        {"split, host half as long", 0.2, 0.5, 0, 1.06},
        {"split, host twice as long", 0.2, 2, 0, 1.06},
    };
    for (uint32_t batches = 2; batches <= 3; batches++) {
        for (uint32_t i = 0; i < AQ_ARRAY_LEN(limits); i++)
            expect_within(&limits[i], batches);
    }
}

/* Chunks that are halved to make their number fit the ring do not meet in one place: wherever it
 * is in the pass, the ring holds nearly as many bytes as elsewhere. */
static void a_ring_holds_about_the_same_everywhere(void **state)
{
    for (double share = 0.10; share < 0.30; share += 0.01) {
        struct rig r;
        open_rig(&r, AQ_ATTEND_DEVICE, 1, share);
        const struct aq_stream *s = &r.block.stream;
        for (uint32_t c = 0; c + s->ring <= s->chunk_count; c++) {
            uint64_t held = 0;
            for (uint32_t i = c; i < c + s->ring; i++)
                held += s->chunk[i].bytes;
            double mean = r.streamed * s->ring / s->chunk_count;
            if ((double)held < 0.95 * mean)
                fail_msg("a ring of %.0f %%: from chunk %u of %u it holds %.1f %% of the mean",
                         100 * share, c, s->chunk_count, 100 * (double)held / mean);
        }
        close_rig(&r);
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(weights_stream_behind_products),
    cmocka_unit_test(three_equal_lanes_hide_behind_one),
    cmocka_unit_test(both_sides_of_split_attention_work_at_once),
    cmocka_unit_test(a_ring_holds_about_the_same_everywhere),
};

AQ_TEST_MAIN(tests)
