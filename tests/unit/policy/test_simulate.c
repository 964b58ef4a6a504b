/* SPDX-License-Identifier: Apache-2.0
 * The simulator against times known in closed form, against a recurrence, and against the rules it
 * plays by.  Machines here do one flop, or move one byte, in a second. */
#include "base/prng.h"
#include "policy/simulate.h"
#include "tests/test.h"
#include "tests/unit/policy/hand.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static struct aq_hardware plain_machine(void)
{
    struct aq_hw_side side = {
        .product_flops_per_s = {[AQ_F32] = 1},
        .attention_flops_per_s = 1,
        .product_bytes_per_s = 1,
        .attention_bytes_per_s = 1,
        .unpack_bytes_per_s = 1,
        .overlap = 1,
        .threads = 1,
    };
    return (struct aq_hardware){
        .device = side,
        .host = side,
        .device_on_host = true,
        .cores = 100,
        .host_memory_bytes_per_s = 100,
        .h2d_bytes_per_s = 1,
        .d2h_bytes_per_s = 1,
        .disk_read_bytes_per_s = 1,
        .disk_write_bytes_per_s = 1,
        .link_duplex = 2,
        .disk_duplex = 2,
        .disk_in_flight = 2,
    };
}

static struct aq_sim_result simulate(const struct aq_program *p, const struct aq_hardware *hw,
                                     const struct aq_op_cost *cost, uint32_t passes, bool serial)
{
    struct aq_simulate_opts opts = {
        .passes = passes, .serial = serial, .timeline = true, .compute = AQ_F32, .cost = cost};
    struct aq_sim_result r;
    struct aq_err err = {0};
    if (aq_simulate(&r, p, hw, &opts, &err) < 0)
        fail_msg("%s", err.text);
    return r;
}

static void expect_near(double found, double expected)
{
    if (fabs(found - expected) > 1e-9 * (1 + fabs(expected)))
        fail_msg("expected %.12g, found %.12g", expected, found);
}

/* ---- one stream of chunks and the products that need them ---- */

struct stream {
    struct aq_program p;
    struct aq_op_cost *cost;
    uint32_t chunks, ring;
};

/* Load c, product c, for every chunk; load c takes the slot of chunk c - ring; TURN at the end. */
static void open_stream(struct stream *s, uint32_t chunks, uint32_t ring, const double *load,
                        const double *product)
{
    *s = (struct stream){.chunks = chunks, .ring = ring};
    s->p = (struct aq_program){.parts = 1, .micro_batches = 1};
    s->cost = calloc(2 * chunks + 1, sizeof(*s->cost));
    assert_non_null(s->cost);
    for (uint32_t c = 0; c < chunks; c++) {
        uint32_t i = hand_op(&s->p, AQ_OP_H2D, AQ_LANE_H2D, c, 0);
        s->p.op[i].object = AQ_OBJECT_WEIGHTS;
        s->cost[i].move_bytes = (uint64_t)load[c];
        uint32_t before = (c + chunks - ring) % chunks; /* its product frees the slot */
        hand_dep(&s->p, 2 * before + 1, c < ring);
        i = hand_op(&s->p, AQ_OP_MLP, AQ_LANE_COMPUTE, c, 0);
        s->cost[i].flops = (uint64_t)product[c];
        s->cost[i].rows = 1;
        hand_dep(&s->p, i - 1, 0);
    }
    hand_op(&s->p, AQ_OP_TURN, AQ_LANE_CONTROL, chunks, 0);
    hand_dep(&s->p, 2 * chunks - 1, 0);
}

static void close_stream(struct stream *s)
{
    aq_program_close(&s->p);
    free(s->cost);
}

static double steady_pass(uint32_t chunks, uint32_t ring, double load, double product, bool serial)
{
    double loads[32], products[32];
    for (uint32_t c = 0; c < chunks; c++) {
        loads[c] = load;
        products[c] = product;
    }
    struct stream s;
    struct aq_hardware hw = plain_machine();
    open_stream(&s, chunks, ring, loads, products);
    struct aq_sim_result r = simulate(&s.p, &hw, s.cost, 5, serial);
    double ret = r.pass_s;
    aq_sim_result_close(&r);
    close_stream(&s);
    return ret;
}

static void a_ring_of_one_adds_times_and_a_ring_of_two_takes_the_larger(void **state)
{
    for (uint32_t load = 1; load <= 3; load++) {
        for (uint32_t product = 1; product <= 3; product++) {
            double larger = 12.0 * (load > product ? load : product), sum = 12.0 * (load + product);
            expect_near(steady_pass(12, 1, load, product, false), sum);
            expect_near(steady_pass(12, 2, load, product, false), larger);
            expect_near(steady_pass(12, 4, load, product, false), larger);
            expect_near(steady_pass(12, 4, load, product, true), sum);
        }
    }
}

/* Loads of 1, products of 0 0 0 4 in turn: while the long one holds its slot, the others are
 * filled, ring - 1 chunks of the next four, so that 4 + (4 - (ring - 1)) lie between long ones. */
static void uneven_products_need_a_deeper_ring(void **state)
{
    double loads[8], products[8] = {0, 0, 0, 4, 0, 0, 0, 4};
    static const struct {
        uint32_t ring;
        double pass;
    } cases[] = {{1, 16}, {2, 14}, {4, 10}, {8, 8}};
    for (uint32_t i = 0; i < 8; i++)
        loads[i] = 1;
    for (uint32_t i = 0; i < AQ_ARRAY_LEN(cases); i++) {
        struct stream s;
        struct aq_hardware hw = plain_machine();
        open_stream(&s, 8, cases[i].ring, loads, products);
        struct aq_sim_result r = simulate(&s.p, &hw, s.cost, 5, false);
        expect_near(r.pass_s, cases[i].pass);
        aq_sim_result_close(&r);
        close_stream(&s);
    }
}

/* The same as a recurrence over chunks: the ends of passes agree to the last. */
static void random_streams_follow_the_recurrence(void **state)
{
    for (uint64_t seed = 0; seed < 300; seed++) {
        uint32_t ring = 1 + (uint32_t)(seed % 4), chunks = ring * (2 + (uint32_t)(seed % 5));
        double loads[32], products[32], load_end[5 * 32], product_end[5 * 32];
        for (uint32_t c = 0; c < chunks; c++) {
            loads[c] = (double)aq_prng_below(seed, c, 1, 10);
            products[c] = (double)aq_prng_below(seed, c, 2, 10);
        }
        struct stream s;
        struct aq_hardware hw = plain_machine();
        open_stream(&s, chunks, ring, loads, products);
        struct aq_sim_result r = simulate(&s.p, &hw, s.cost, 5, false);
        for (uint32_t n = 0; n < 5 * chunks; n++) {
            double load_start = n ? load_end[n - 1] : 0;
            if (n >= ring)
                load_start = fmax(load_start, product_end[n - ring]);
            load_end[n] = load_start + loads[n % chunks];
            product_end[n] = fmax(load_end[n], n ? product_end[n - 1] : 0) + products[n % chunks];
            if (n % chunks == chunks - 1)
                expect_near(r.end_s[n / chunks], product_end[n]);
        }
        aq_sim_result_close(&r);
        close_stream(&s);
    }
}

static void lanes_report_share_bytes_and_limit(void **state)
{
    double loads[8], products[8];
    for (uint32_t c = 0; c < 8; c++) {
        loads[c] = 1;
        products[c] = 3;
    }
    struct stream s;
    struct aq_hardware hw = plain_machine();
    open_stream(&s, 8, 2, loads, products);
    struct aq_sim_result r = simulate(&s.p, &hw, s.cost, 4, false);
    expect_near(r.pass_s, 24);
    expect_near(r.lane[AQ_LANE_COMPUTE].share, 1);
    expect_near(r.lane[AQ_LANE_H2D].share, 1.0 / 3);
    expect_near(r.lane[AQ_LANE_H2D].bytes, 8);
    expect_near(r.lane[AQ_LANE_H2D].bytes_per_s, 1.0 / 3);
    expect_near(r.lane[AQ_LANE_DISK_READ].share, 0);
    assert_int_equal(r.binding_lane, AQ_LANE_COMPUTE);
    assert_int_equal(r.binding, AQ_RESOURCE_FLOPS);
    aq_sim_result_close(&r);
    hw.h2d_bytes_per_s = 0.2;
    r = simulate(&s.p, &hw, s.cost, 4, false);
    expect_near(r.pass_s, 40);
    assert_int_equal(r.binding_lane, AQ_LANE_H2D);
    assert_int_equal(r.binding, AQ_RESOURCE_H2D);
    aq_sim_result_close(&r);
    close_stream(&s);
}

/* ---- three lanes ---- */

/* Two micro-batches, a layer at a time: products of layer j (which need its chunk), then attention
 * on the host, then products of layer j + 1. */
static void open_three_lanes(struct stream *s, uint32_t layers, uint32_t ring, uint32_t batches)
{
    uint32_t per_layer = 1 + 2 * batches;
    *s = (struct stream){.chunks = layers, .ring = ring};
    s->p = (struct aq_program){.parts = 1, .micro_batches = (uint16_t)batches};
    s->cost = calloc(layers * per_layer + batches, sizeof(*s->cost));
    assert_non_null(s->cost);
    for (uint32_t j = 0; j < layers; j++) {
        uint32_t load = hand_op(&s->p, AQ_OP_H2D, AQ_LANE_H2D, j, 0);
        s->p.op[load].object = AQ_OBJECT_WEIGHTS;
        s->cost[load].move_bytes = 6;
        uint32_t before = (j + layers - ring) % layers * per_layer;
        for (uint32_t k = 0; k < batches; k++)
            hand_dep(&s->p, before + 1 + 2 * k, j < ring);
        for (uint32_t k = 0; k < batches; k++) {
            uint32_t i = hand_op(&s->p, AQ_OP_MLP, AQ_LANE_COMPUTE, j, k);
            s->cost[i].flops = 6 / batches;
            s->cost[i].rows = 1;
            hand_dep(&s->p, load, 0);
            if (j)
                hand_dep(&s->p, i + 1 - per_layer, 0);
            i = hand_op(&s->p, AQ_OP_ATTN_HOST, AQ_LANE_HOST_COMPUTE, j, k);
            s->cost[i].flops = 6 / batches;
            s->cost[i].rows = 1;
            hand_dep(&s->p, i - 1, 0);
        }
    }
    for (uint32_t k = 0; k < batches; k++) {
        hand_op(&s->p, AQ_OP_TURN, AQ_LANE_CONTROL, layers, k);
        hand_dep(&s->p, (layers - 1) * per_layer + 2 + 2 * k, 0);
    }
}

/* Link, host attention and products take 6 each a layer.  The turn at the end of a pass costs what
 * one micro-batch's products and attention take alone: 6 / batches each way. */
static void three_equal_lanes_overlap(void **state)
{
    const uint32_t layers = 32;
    for (uint32_t batches = 1; batches <= 3; batches++) {
        struct stream s;
        struct aq_hardware hw = plain_machine();
        open_three_lanes(&s, layers, 4, batches);
        struct aq_sim_result r = simulate(&s.p, &hw, s.cost, 5, false);
        double alone = 6.0 * layers;
        if (batches == 1)
            expect_near(r.pass_s, 2 * alone); /* nothing to attend to while products run */
        else
            expect_near(r.pass_s, alone + 6.0 / batches);
        if (batches > 1)
            assert_true(r.pass_s <= 1.15 * alone);
        aq_sim_result_close(&r);
        close_stream(&s);
    }
}

/* ---- sharing ---- */

/* One op on each of the two sides that compute, side by side. */
static void open_pair(struct stream *s, uint64_t device_bytes, uint64_t host_bytes)
{
    *s = (struct stream){.p = {.parts = 1, .micro_batches = 1}};
    s->cost = calloc(2, sizeof(*s->cost));
    assert_non_null(s->cost);
    hand_op(&s->p, AQ_OP_MLP, AQ_LANE_COMPUTE, 0, 0);
    hand_op(&s->p, AQ_OP_ATTN_HOST, AQ_LANE_HOST_COMPUTE, 0, 0);
    s->cost[0] = (struct aq_op_cost){.rows = 1, .memory_bytes = device_bytes};
    s->cost[1] = (struct aq_op_cost){.rows = 1, .memory_bytes = host_bytes};
}

static void expect_ends(const struct stream *s, const struct aq_hardware *hw, double device,
                        double host)
{
    struct aq_sim_result r = simulate(&s->p, hw, s->cost, 1, false);
    assert_int_equal(r.event_count, 2);
    for (uint32_t e = 0; e < 2; e++)
        expect_near(r.event[e].end_s, r.event[e].op == 0 ? device : host);
    aq_sim_result_close(&r);
}

static void a_shared_memory_halves_rates(void **state)
{
    struct stream s;
    struct aq_hardware hw = plain_machine();
    open_pair(&s, 10, 10);
    expect_ends(&s, &hw, 10, 10);
    hw.host_memory_bytes_per_s = 1;
    expect_ends(&s, &hw, 20, 20);
    hw.device_on_host = false;
    hw.device_memory_bytes_per_s = 1;
    expect_ends(&s, &hw, 10, 10);
    close_stream(&s);
}

static void who_wants_less_than_its_part_gets_it(void **state)
{
    struct stream s;
    struct aq_hardware hw = plain_machine();
    hw.host_memory_bytes_per_s = 1;
    hw.host.attention_bytes_per_s = 0.25;
    /* The host draws a quarter throughout; the device has three quarters, then all. */
    open_pair(&s, 10, 2);
    expect_ends(&s, &hw, 8 + (10 - 6), 8);
    close_stream(&s);
}

static void threads_compete_for_cores(void **state)
{
    struct stream s;
    struct aq_hardware hw = plain_machine();
    open_pair(&s, 12, 12);
    hw.cores = 2;
    expect_ends(&s, &hw, 12, 12);
    hw.cores = 1;
    expect_ends(&s, &hw, 24, 24);
    /* Three threads on two cores get two thirds each; when the device has ended, the host's one
     * thread runs at full speed. */
    hw.cores = 2;
    hw.device.threads = 2;
    s.cost[1].memory_bytes = 24;
    expect_ends(&s, &hw, 18, 18 + 12);
    close_stream(&s);
}

/* Attention that one thread does at half the rate of all four has two of them, if products are
 * there, and else all it can use. */
static void attention_beside_products_leaves_them_the_other_threads(void **state)
{
    struct stream s;
    struct aq_hardware hw = plain_machine();
    hw.cores = 4;
    hw.device_on_host = true;
    hw.device.threads = hw.host.threads = 4;
    hw.device.attention_bytes_per_s = 1;
    hw.device.attention_thread_bytes_per_s = 0.5;
    assert_int_equal(aq_hardware_aside(&hw.device), 2);
    open_pair(&s, 12, 12);
    s.p.op[1].kind = AQ_OP_ATTN_DEVICE;
    /* Both ask for 1 a second, but products have half of it until attention has ended. */
    expect_ends(&s, &hw, 12 + (12 - 6), 12);
    hw.device.attention_thread_bytes_per_s = 0.25; /* four would be needed */
    assert_int_equal(aq_hardware_aside(&hw.device), 2);
    expect_ends(&s, &hw, 24, 24);
    hw.device.attention_thread_bytes_per_s = 1;
    assert_int_equal(aq_hardware_aside(&hw.device), 1);
    expect_ends(&s, &hw, 12 + (12 - 9), 12);
    hw.device.attention_thread_bytes_per_s = 0; /* unknown: as if all were needed */
    assert_int_equal(aq_hardware_aside(&hw.device), 2);
    expect_ends(&s, &hw, 24, 24);
    hw.device.threads = 1;
    assert_int_equal(aq_hardware_aside(&hw.device), 1);
    close_stream(&s);
}

static void the_limit_of_a_lane_is_what_it_waits_for(void **state)
{
    struct stream s;
    struct aq_hardware hw = plain_machine();
    hw.host_memory_bytes_per_s = 1;
    open_pair(&s, 10, 10);
    struct aq_sim_result r = simulate(&s.p, &hw, s.cost, 3, false);
    assert_int_equal(r.lane[AQ_LANE_COMPUTE].limit, AQ_RESOURCE_HOST_MEMORY);
    assert_int_equal(r.binding, AQ_RESOURCE_HOST_MEMORY);
    aq_sim_result_close(&r);
    close_stream(&s);
}

static void reads_in_flight_share_the_disk(void **state)
{
    struct aq_program p = {.parts = 1, .micro_batches = 1};
    struct aq_op_cost cost[4] = {
        {.move_bytes = 6}, {.move_bytes = 6}, {.move_bytes = 6}, {.move_bytes = 12}};
    for (uint32_t i = 0; i < 3; i++)
        hand_op(&p, AQ_OP_READ, AQ_LANE_DISK_READ, i, 0);
    hand_op(&p, AQ_OP_WRITE, AQ_LANE_DISK_WRITE, 3, 0);
    struct aq_hardware hw = plain_machine();
    hw.overhead_s[AQ_LANE_DISK_READ] = 1;
    struct aq_sim_result r = simulate(&p, &hw, cost, 1, false);
    /* Two start, wait 1 and share the disk; the third waits 1 when they have ended. */
    expect_near(r.event[0].end_s, 12); /* the write, beside them */
    expect_near(r.event[1].end_s, 13);
    expect_near(r.event[2].end_s, 13);
    expect_near(r.event[3].end_s, 20);
    aq_sim_result_close(&r);
    hw.disk_duplex = 1; /* from second 1 on two reads and a write share one disk */
    r = simulate(&p, &hw, cost, 1, false);
    expect_near(r.end_s[0], 1 + (1 + 6 + 6 + 6 + 11 - 1));
    aq_sim_result_close(&r);
    aq_program_close(&p);
}

/* Whoever is in flight with whom: two reads of n bytes take 2 n / rate together, one n / rate; also
 * where one of them runs on the weights' lane. */
static void two_reads_take_twice_as_long_as_one(void **state)
{
    static const enum aq_lane lanes[] = {AQ_LANE_DISK_READ, AQ_LANE_READ_WEIGHTS};
    struct aq_hardware hw = plain_machine();
    struct aq_op_cost cost[2] = {{.move_bytes = 6}, {.move_bytes = 6}};
    hw.disk_read_bytes_per_s = 0.5;
    for (uint32_t count = 1; count <= 2; count++) {
        for (uint32_t l = 0; l < AQ_ARRAY_LEN(lanes); l++) {
            struct aq_program p = {.parts = 1, .micro_batches = 1};
            for (uint32_t i = 0; i < count; i++)
                hand_op(&p, AQ_OP_READ, i ? lanes[l] : AQ_LANE_DISK_READ, i, 0);
            struct aq_sim_result r = simulate(&p, &hw, cost, 1, false);
            assert_int_equal(r.event_count, count);
            for (uint32_t i = 0; i < count; i++)
                expect_near(r.event[i].end_s, count * 6 / 0.5);
            aq_sim_result_close(&r);
            aq_program_close(&p);
        }
    }
}

static void copies_take_cores_and_memory(void **state)
{
    struct stream s;
    struct aq_hardware hw = plain_machine();
    open_pair(&s, 0, 10);
    s.p.op[0].kind = AQ_OP_H2D;
    s.p.op[0].lane = AQ_LANE_H2D;
    s.cost[0] = (struct aq_op_cost){.move_bytes = 10};
    hw.copy_core_s_per_byte = 0.5;
    hw.cores = 2;
    expect_ends(&s, &hw, 10, 10);
    hw.cores = 1.25; /* the copy takes half a core, the host what remains of one */
    expect_ends(&s, &hw, 10, 7.5 / 0.75 + 2.5);
    hw.cores = 2;
    hw.copy_core_s_per_byte = 3; /* a thread cannot copy faster */
    expect_ends(&s, &hw, 30, 10);
    hw.copy_core_s_per_byte = 0;
    hw.copy_host_bytes_per_byte = 2;
    hw.host_memory_bytes_per_s = 2;
    /* The copy wants all of it, attention half: half each, and the copy at half speed. */
    expect_ends(&s, &hw, 15, 10);
    close_stream(&s);
}

/* ---- costs ---- */

static void arithmetic_hides_behind_memory_as_far_as_they_overlap(void **state)
{
    struct stream s;
    struct aq_hardware hw = plain_machine();
    open_pair(&s, 4, 0);
    s.cost[0].flops = 10;
    hw.device.overlap = 0.75;
    hw.overhead_s[AQ_LANE_COMPUTE] = 0.5;
    expect_ends(&s, &hw, 0.5 + 10 + 1, 0);
    close_stream(&s);
}

static double work_s(const struct aq_hardware *hw, enum aq_op_kind kind,
                     const struct aq_op_cost *cost)
{
    struct aq_op op = {.kind = (uint8_t)kind, .lane = AQ_LANE_COMPUTE};
    struct aq_op_need need;
    aq_hardware_need(&need, hw, &op, cost, AQ_F32);
    return need.work_s;
}

/* Sums of K terms cost a + b / K a term: what K = 768 takes longer than 2048 tells of all below. */
static void short_sums_take_longer_as_one_by_their_length(void **state)
{
    struct aq_hardware hw = plain_machine();
    static const uint32_t ks[] = {256, 512, 768, 1024, 1536, 2048, 4096, 8192};
    for (uint32_t i = 0; i < AQ_ARRAY_LEN(ks); i++) {
        double shortness = aq_hardware_shortness(ks[i]);
        struct aq_op_cost cost = {
            .rows = 1, .flops = 1000000, .short_flops = (uint64_t)(1e6 * shortness)};
        hw.device.short_share[AQ_F32] = 0;
        expect_near(work_s(&hw, AQ_OP_MLP, &cost), 1e6);
        hw.device.short_share[AQ_F32] = 0.8;
        double a = 1 - 0.25 * 768 / (2048 - 768), b = 0.25 * 768 * 2048 / (2048 - 768);
        double expected = ks[i] < 2048 ? 1e6 * (a + b / ks[i]) : 1e6;
        if (fabs(work_s(&hw, AQ_OP_MLP, &cost) - expected) > 1)
            fail_msg("K = %u: expected %g, found %g", ks[i], expected,
                     work_s(&hw, AQ_OP_MLP, &cost));
    }
    expect_near(aq_hardware_shortness(768), 1);
    expect_near(aq_hardware_shortness(16), aq_hardware_shortness(256));
}

/* Of 40 bytes that all but one in so many sequences have in common, what is not read again takes
 * arithmetic instead, at half of what products reach; on a device of its own nothing changes. */
static void keys_that_rows_share_are_read_once_for_some_of_them(void **state)
{
    struct aq_hardware hw = plain_machine();
    struct aq_op_cost cost = {.rows = 1, .flops = 1000, .memory_bytes = 40, .head_dim = 64};
    hw.device_on_host = true;
    hw.device.attention_bytes_per_s = 4;
    hw.device.attention_flops_per_s = 1e9;
    hw.device.product_flops_per_s[AQ_F32] = 2000;
    hw.device.overlap = 1;
    expect_near(work_s(&hw, AQ_OP_ATTN_DEVICE, &cost), 10);
    cost.joint_bytes = 32;
    expect_near(work_s(&hw, AQ_OP_ATTN_DEVICE, &cost), (40 - 31.75) / 4 + 1000 * 31.75 / 40 / 1000);
    cost.group = 32; /* four sequences at once */
    expect_near(work_s(&hw, AQ_OP_ATTN_DEVICE, &cost), (40 - 24) / 4.0 + 1000 * 24 / 40.0 / 1000);
    hw.device.threads = 2;
    cost.heads = 512; /* of eight rows, so that each thread has four tiles of two */
    expect_near(work_s(&hw, AQ_OP_ATTN_DEVICE, &cost), (40 - 16) / 4.0 + 1000 * 16 / 40.0 / 1000);
    hw.device.threads = 3;
    expect_near(work_s(&hw, AQ_OP_ATTN_DEVICE, &cost), 10);
    cost.heads = 0;
    cost.group = 65;
    expect_near(work_s(&hw, AQ_OP_ATTN_DEVICE, &cost), 10);
    cost.group = 1;
    hw.device_on_host = false;
    expect_near(work_s(&hw, AQ_OP_ATTN_DEVICE, &cost), 10);
}

static void wide_heads_have_rates_of_their_own_and_others_lie_between(void **state)
{
    struct aq_hardware hw = plain_machine();
    hw.device.attention_flops_per_s = 8;
    hw.device.attention_bytes_per_s = 4;
    hw.device.decode_head_s = 1;
    hw.device.prefill_head_s = 2;
    struct aq_op_cost prefill = {.rows = 1, .flops = 80, .heads = 1},
                      decode = {.rows = 1, .memory_bytes = 40, .heads = 1};
    for (uint32_t dim = 32; dim <= 256; dim *= 2) { /* nothing is known of wide ones */
        prefill.head_dim = decode.head_dim = dim;
        expect_near(work_s(&hw, AQ_OP_ATTN_PREFILL, &prefill), 10 + 2);
        expect_near(work_s(&hw, AQ_OP_ATTN_DEVICE, &decode), 10 + 1);
    }
    hw.device.wide = (struct aq_hw_attention){
        .bytes_per_s = 2, .decode_head_s = 3, .flops_per_s = 4, .prefill_head_s = 6};
    static const struct {
        uint32_t dim;
        double prefill_s, decode_s;
    } cases[] = {{32, 12, 11}, {64, 12, 11},  {80, 15.5, 14},
                 {96, 19, 17}, {128, 26, 23}, {256, 26, 23}};
    for (uint32_t i = 0; i < AQ_ARRAY_LEN(cases); i++) {
        prefill.head_dim = decode.head_dim = cases[i].dim;
        expect_near(work_s(&hw, AQ_OP_ATTN_PREFILL, &prefill), cases[i].prefill_s);
        expect_near(work_s(&hw, AQ_OP_ATTN_DEVICE, &decode), cases[i].decode_s);
    }
}

static void groups_have_rates_of_their_own_and_others_lie_between(void **state)
{
    struct aq_hardware hw = plain_machine();
    hw.device.attention_flops_per_s = 8;
    hw.device.attention_bytes_per_s = 4;
    hw.device.decode_head_s = 1;
    hw.device.prefill_head_s = 2;
    struct aq_op_cost prefill = {.rows = 1, .flops = 80, .heads = 1, .head_dim = 64},
                      decode = {.rows = 1, .flops = 80, .memory_bytes = 40, .heads = 1};
    double overlapped = 10 + (1 - hw.device.overlap) * 10; /* as long for flops as for bytes */
    decode.head_dim = 64;
    for (uint32_t group = 0; group <= 16; group += 4) { /* nothing is known of groups */
        prefill.group = decode.group = group;
        expect_near(work_s(&hw, AQ_OP_ATTN_PREFILL, &prefill), 10 + 2);
        expect_near(work_s(&hw, AQ_OP_ATTN_DEVICE, &decode), overlapped + 1);
    }
    hw.device.shared[0][0] = (struct aq_hw_attention){
        .bytes_per_s = 2, .decode_head_s = 0.7, .flops_per_s = 16, .prefill_head_s = 1.4};
    hw.device.shared[0][1] = (struct aq_hw_attention){
        .bytes_per_s = 1, .decode_head_s = 0.3, .flops_per_s = 16, .prefill_head_s = 1};
    static const struct {
        uint32_t group;
        double prefill_s, decode_s;
    } cases[] = {
        {2, 10 - 5.0 / 3 + 1.8, 10 + 10.0 / 3 + 0.9},
        {4, 5 + 1.4, 20 + 0.7}, /* the arithmetic is contained */
        {6, 5 + 1.2, 30 + 0.5},
        {8, 5 + 1, 40 + 0.3},
        {16, 5 + 1, 80 + 0.3}, /* what falls does not fall on */
    };
    for (uint32_t i = 0; i < AQ_ARRAY_LEN(cases); i++) {
        prefill.group = decode.group = cases[i].group;
        expect_near(work_s(&hw, AQ_OP_ATTN_PREFILL, &prefill), cases[i].prefill_s);
        expect_near(work_s(&hw, AQ_OP_ATTN_DEVICE, &decode), cases[i].decode_s);
    }
    prefill.group = decode.group = 1;
    expect_near(work_s(&hw, AQ_OP_ATTN_PREFILL, &prefill), 10 + 2);
    expect_near(work_s(&hw, AQ_OP_ATTN_DEVICE, &decode), overlapped + 1);
    /* Of wide heads in groups nothing is known: as with one each, and their arithmetic counts. */
    prefill.group = decode.group = 8;
    prefill.head_dim = decode.head_dim = 128;
    hw.device.wide = (struct aq_hw_attention){
        .bytes_per_s = 4, .decode_head_s = 1, .flops_per_s = 8, .prefill_head_s = 2};
    expect_near(work_s(&hw, AQ_OP_ATTN_PREFILL, &prefill), 10 + 2);
    expect_near(work_s(&hw, AQ_OP_ATTN_DEVICE, &decode), overlapped + 1);
}

static void attention_is_scaled_with_heads_of_every_size(void **state)
{
    struct aq_hardware hw = plain_machine();
    const struct aq_hw_attention a = {
        .bytes_per_s = 4, .decode_head_s = 1, .flops_per_s = 8, .prefill_head_s = 2};
    hw.device.wide = hw.device.shared[0][0] = hw.device.shared[0][1] = a;
    hw.device.shared[1][0] = hw.device.shared[1][1] = a;
    hw.device.attention_flops_per_s = a.flops_per_s;
    hw.device.attention_bytes_per_s = a.bytes_per_s;
    hw.device.decode_head_s = a.decode_head_s;
    hw.device.prefill_head_s = a.prefill_head_s;
    struct aq_op_cost prefill = {.rows = 1, .flops = 80, .heads = 1},
                      decode = {.rows = 1, .memory_bytes = 40, .heads = 1};
    aq_hardware_scale_attention(&hw.device, 2, 4);
    for (uint32_t dim = 64; dim <= 128; dim += 32) {
        for (uint32_t group = 1; group <= 8; group += 1) {
            prefill.head_dim = decode.head_dim = dim;
            prefill.group = decode.group = group;
            expect_near(work_s(&hw, AQ_OP_ATTN_PREFILL, &prefill), 3);
            expect_near(work_s(&hw, AQ_OP_ATTN_DEVICE, &decode), 5.5);
        }
    }
}

static void ops_without_work_end_as_they_start(void **state)
{
    struct aq_program p;
    struct aq_hardware hw = plain_machine();
    hand_build(&p, &(struct hand_model){.layers = 3, .micro_batches = 2, .ring = 2});
    struct aq_op_cost *cost = calloc(p.op_count, sizeof(*cost));
    assert_non_null(cost);
    for (uint32_t lane = 0; lane < AQ_LANE_COUNT; lane++)
        hw.overhead_s[lane] = lane == AQ_LANE_CONTROL ? 0 : 1;
    struct aq_sim_result r = simulate(&p, &hw, cost, 3, false);
    expect_near(r.end_s[2], 0);
    assert_int_equal(r.event_count, 3 * 2); /* TURNs are always there */
    aq_sim_result_close(&r);
    free(cost);
    aq_program_close(&p);
}

static void costs_may_differ_from_pass_to_pass(void **state)
{
    double loads[4] = {1, 1, 1, 1}, products[4] = {2, 2, 2, 2};
    struct stream s;
    struct aq_hardware hw = plain_machine();
    open_stream(&s, 4, 2, loads, products);
    struct aq_op_cost *cost = calloc(2 * s.p.op_count, sizeof(*cost));
    assert_non_null(cost);
    memcpy(cost, s.cost, s.p.op_count * sizeof(*cost));
    memcpy(cost + s.p.op_count, s.cost, s.p.op_count * sizeof(*cost));
    for (uint32_t c = 0; c < 4; c++)
        cost[s.p.op_count + 2 * c + 1].flops = 5;
    struct aq_simulate_opts opts = {
        .passes = 2, .compute = AQ_F32, .cost = cost, .cost_stride = s.p.op_count};
    struct aq_sim_result r;
    assert_int_equal(aq_simulate(&r, &s.p, &hw, &opts, NULL), 0);
    expect_near(r.end_s[0], 1 + 8);
    expect_near(r.end_s[1], 1 + 8 + 20);
    assert_null(r.event);
    aq_sim_result_close(&r);
    free(cost);
    close_stream(&s);
}

static void a_machine_without_a_rate_is_refused(void **state)
{
    struct stream s;
    struct aq_hardware hw = plain_machine();
    struct aq_simulate_opts opts = {.passes = 1, .compute = AQ_F32};
    struct aq_sim_result r;
    struct aq_err err = {0};
    open_pair(&s, 10, 10);
    opts.cost = s.cost;
    hw.host.attention_bytes_per_s = 0;
    assert_int_equal(aq_simulate(&r, &s.p, &hw, &opts, &err), -EINVAL);
    assert_non_null(strstr(err.text, "ATTN_HOST of step 0, micro-batch 0"));
    hw = plain_machine();
    hand_dep(&s.p, 1, 0); /* the last op waits for itself */
    assert_int_equal(aq_simulate(&r, &s.p, &hw, &opts, &err), -EDEADLK);
    close_stream(&s);
}

/* ---- rules, on random machines ---- */

struct span {
    double start, end;
    bool there;
};

static void check_rules(const struct aq_program *p, const struct aq_sim_result *r, bool in_order)
{
    uint32_t n = p->op_count * r->passes;
    struct span *span = calloc(n, sizeof(*span));
    assert_non_null(span);
    for (uint32_t e = 0; e < r->event_count; e++) {
        const struct aq_sim_event *v = &r->event[e];
        assert_true(v->end_s >= v->start_s);
        assert_true(e == 0 || v->end_s >= r->event[e - 1].end_s);
        struct span *x = &span[v->pass * p->op_count + v->op];
        assert_false(x->there);
        *x = (struct span){v->start_s, v->end_s, true};
    }
    double lane_start[AQ_LANE_COUNT] = {0}, lane_end[AQ_LANE_COUNT] = {0};
    for (uint32_t i = 0; i < n; i++) {
        uint32_t pass = i / p->op_count;
        const struct aq_op *op = &p->op[i % p->op_count];
        assert_true(span[i].there);
        for (uint32_t d = 0; d < op->dep_count; d++) {
            const struct aq_dep *dep = &aq_op_deps(p, op)[d];
            if (dep->back <= pass)
                assert_true(span[(pass - dep->back) * p->op_count + dep->op].end <=
                            span[i].start + 1e-9);
        }
        assert_true(span[i].start + 1e-9 >= lane_start[op->lane]);
        if (in_order || aq_lane_in_order((enum aq_lane)op->lane))
            assert_true(span[i].start + 1e-9 >= lane_end[op->lane]);
        if (pass && op->object != AQ_OBJECT_WEIGHTS)
            assert_true(span[i].start + 1e-9 >= r->end_s[pass - 1]);
        lane_start[op->lane] = span[i].start;
        lane_end[op->lane] = fmax(lane_end[op->lane], span[i].end);
    }
    free(span);
}

static void random_machines_play_by_the_rules(void **state)
{
    for (uint64_t seed = 0; seed < 200; seed++) {
        struct aq_program p;
        struct hand_model m = {.layers = 2 + (uint32_t)(seed % 4),
                               .micro_batches = 1 + (uint32_t)(seed % 3),
                               .ring = 1 + (uint32_t)(seed % 2),
                               .staged = seed % 5 == 0};
        hand_build(&p, &m);
        struct aq_hardware hw = plain_machine();
        hw.cores = 1 + (double)aq_prng_below(seed, 0, 3, 3);
        hw.host_memory_bytes_per_s = 1 + (double)aq_prng_below(seed, 1, 3, 3);
        hw.copy_core_s_per_byte = aq_prng_uniform(seed, 2, 3);
        hw.device.threads = 1 + (double)aq_prng_below(seed, 3, 3, 2);
        hw.disk_in_flight = 1 + (uint32_t)aq_prng_below(seed, 4, 3, 3);
        struct aq_op_cost *cost = calloc(p.op_count, sizeof(*cost));
        assert_non_null(cost);
        for (uint32_t i = 0; i < p.op_count; i++) {
            bool moves = p.op[i].object != AQ_OBJECT_NONE;
            cost[i].rows = 1;
            cost[i].flops = aq_prng_below(seed, i, 4, 20);
            cost[i].memory_bytes = aq_prng_below(seed, i, 5, 20);
            cost[i].move_bytes = moves ? aq_prng_below(seed, i, 6, 20) : 0;
        }
        struct aq_sim_result serial = simulate(&p, &hw, cost, 4, true);
        struct aq_sim_result r = simulate(&p, &hw, cost, 4, false);
        struct aq_sim_result again = simulate(&p, &hw, cost, 4, false);
        check_rules(&p, &r, false);
        check_rules(&p, &serial, true);
        assert_true(r.end_s[3] <= serial.end_s[3] * (1 + 1e-9));
        for (uint32_t lane = 0; lane < AQ_LANE_COUNT; lane++) {
            assert_true(r.lane[lane].share <= 1 + 1e-9);
            double bytes = 0;
            for (uint32_t i = 0; i < p.op_count; i++)
                bytes += p.op[i].lane == lane ? (double)cost[i].move_bytes : 0;
            expect_near(serial.lane[lane].bytes, bytes);
        }
        assert_int_equal(r.event_count, again.event_count);
        assert_memory_equal(r.event, again.event, r.event_count * sizeof(*r.event));
        aq_sim_result_close(&serial);
        aq_sim_result_close(&r);
        aq_sim_result_close(&again);
        free(cost);
        aq_program_close(&p);
    }
}

static void the_default_machine_has_all_rates(void **state)
{
    struct aq_hardware hw;
    aq_hardware_default(&hw, 2, 1, 1);
    static const enum aq_op_kind kinds[] = {AQ_OP_READ,         AQ_OP_WRITE,       AQ_OP_H2D,
                                            AQ_OP_D2H,          AQ_OP_UNPACK,      AQ_OP_MLP,
                                            AQ_OP_ATTN_PREFILL, AQ_OP_ATTN_DEVICE, AQ_OP_ATTN_HOST};
    static const enum aq_lane lanes[] = {
        AQ_LANE_DISK_READ, AQ_LANE_DISK_WRITE, AQ_LANE_H2D,
        AQ_LANE_D2H,       AQ_LANE_COMPUTE,    AQ_LANE_COMPUTE,
        AQ_LANE_COMPUTE,   AQ_LANE_COMPUTE,    AQ_LANE_HOST_COMPUTE};
    static const enum aq_dtype types[] = {AQ_F32, AQ_F16, AQ_BF16};
    for (uint32_t i = 0; i < AQ_ARRAY_LEN(kinds); i++) {
        for (uint32_t t = 0; t < AQ_ARRAY_LEN(types); t++) {
            struct aq_op op = {.kind = (uint8_t)kinds[i], .lane = (uint8_t)lanes[i]};
            struct aq_op_cost cost = {
                .rows = 1, .flops = 1000000, .memory_bytes = 1000000, .move_bytes = 1000000};
            struct aq_op_need need;
            aq_hardware_need(&need, &hw, &op, &cost, types[t]);
            assert_true(isfinite(need.work_s) && need.work_s > 0 && need.overhead_s > 0);
            for (uint32_t r = 0; r < AQ_RESOURCE_SHARED_COUNT; r++)
                assert_true(need.shared_s[r] <= need.work_s * (1 + 1e-9));
        }
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(a_ring_of_one_adds_times_and_a_ring_of_two_takes_the_larger),
    cmocka_unit_test(uneven_products_need_a_deeper_ring),
    cmocka_unit_test(random_streams_follow_the_recurrence),
    cmocka_unit_test(lanes_report_share_bytes_and_limit),
    cmocka_unit_test(three_equal_lanes_overlap),
    cmocka_unit_test(a_shared_memory_halves_rates),
    cmocka_unit_test(who_wants_less_than_its_part_gets_it),
    cmocka_unit_test(threads_compete_for_cores),
    cmocka_unit_test(attention_beside_products_leaves_them_the_other_threads),
    cmocka_unit_test(the_limit_of_a_lane_is_what_it_waits_for),
    cmocka_unit_test(reads_in_flight_share_the_disk),
    cmocka_unit_test(two_reads_take_twice_as_long_as_one),
    cmocka_unit_test(copies_take_cores_and_memory),
    cmocka_unit_test(arithmetic_hides_behind_memory_as_far_as_they_overlap),
    cmocka_unit_test(short_sums_take_longer_as_one_by_their_length),
    cmocka_unit_test(keys_that_rows_share_are_read_once_for_some_of_them),
    cmocka_unit_test(wide_heads_have_rates_of_their_own_and_others_lie_between),
    cmocka_unit_test(groups_have_rates_of_their_own_and_others_lie_between),
    cmocka_unit_test(attention_is_scaled_with_heads_of_every_size),
    cmocka_unit_test(ops_without_work_end_as_they_start),
    cmocka_unit_test(costs_may_differ_from_pass_to_pass),
    cmocka_unit_test(a_machine_without_a_rate_is_refused),
    cmocka_unit_test(random_machines_play_by_the_rules),
    cmocka_unit_test(the_default_machine_has_all_rates),
};

AQ_TEST_MAIN(tests)
