/* SPDX-License-Identifier: Apache-2.0 */
#include "base/mem.h"
#include "base/prng.h"
#include "policy/admit.h"
#include "policy/block.h"
#include "policy/registers.h"
#include "tests/test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- admission ---- */

/* A model of one layer. */
static const struct aq_kv_kinds one_kind = {.count = 1, .layers = 1, .kind = {[0] = {.layers = 1}}};

static uint32_t held_after(const struct aq_admit_length *s, uint32_t passes)
{
    return s->now + passes < s->slots ? s->now + passes : s->slots;
}

/* A sequence that keeps every key. */
static struct aq_admit_length whole(uint32_t prompt, uint32_t last)
{
    return (struct aq_admit_length){prompt, last, UINT32_MAX};
}

/* Plays the passes one by one: obviously right, slow. */
static uint64_t peak_by_playing(const struct aq_admit_length *s, uint32_t count,
                                uint32_t page_slots)
{
    uint64_t peak = 0;
    for (uint32_t pass = 0; pass <= 400; pass++) {
        uint64_t pages = 0;
        for (uint32_t i = 0; i < count; i++) {
            if (s[i].now + pass <= s[i].last)
                pages += aq_div_up(held_after(&s[i], pass), page_slots);
        }
        peak = aq_max_u64(peak, pages);
    }
    return peak;
}

static void the_peak_equals_playing_the_passes(void **state)
{
    for (uint64_t round = 0; round < 300; round++) {
        struct aq_admit_length s[20] = {0};
        uint32_t count = 1 + (uint32_t)aq_prng_below(1, round, 0, 20);
        for (uint32_t i = 0; i < count; i++) {
            s[i].now = 1 + (uint32_t)aq_prng_below(2, round, i, 100);
            s[i].last = s[i].now + (uint32_t)aq_prng_below(3, round, i, 300);
            uint32_t room = (uint32_t)aq_prng_below(4, round, i, 150);
            s[i].slots = i % 2 ? UINT32_MAX : s[i].now + room;
        }
        uint32_t slots = 32 * (1 + (uint32_t)(round % 3));
        struct aq_admit_limits limits = {.page_slots = slots, .kinds = &one_kind};
        assert_int_equal(aq_admit_peak_pages(&limits, s, count), peak_by_playing(s, count, slots));
    }
}

/* A pool run at its limit by random admissions never needs more pages than it has. */
static void admission_never_exceeds_the_pool(void **state)
{
    struct aq_admit_length seated[65];
    uint32_t count = 0, admitted = 0;
    struct aq_admit_limits limits = {
        .pages = 60, .page_slots = 32, .seats_free = 1, .prompt_tokens = 4096, .kinds = &one_kind};
    for (uint64_t pass = 0; pass < 3000; pass++) {
        for (int attempt = 0; attempt < 4 && count < 64; attempt++) {
            uint32_t prompt = 1 + (uint32_t)aq_prng_below(7, pass, (uint64_t)attempt, 200);
            uint32_t last = prompt + (uint32_t)aq_prng_below(8, pass, (uint64_t)attempt, 200);
            struct aq_admit_length length = whole(prompt, last);
            if (attempt % 2)
                length.slots = prompt + (uint32_t)aq_prng_below(6, pass, (uint64_t)attempt, 80);
            seated[count] = length;
            if (aq_admit_one(&limits, seated, count, 0, prompt)) {
                count++;
                admitted++;
            }
        }
        uint64_t pages = 0;
        for (uint32_t i = 0; i < count; i++)
            pages += aq_div_up(held_after(&seated[i], 0), 32);
        assert_true(pages <= limits.pages);
        uint32_t kept = 0;
        for (uint32_t i = 0; i < count; i++) { /* some end early, all end at `last` */
            bool early = aq_prng_below(9, pass, i, 50) == 0;
            if (seated[i].now < seated[i].last && !early) {
                seated[kept] = seated[i];
                seated[kept++].now++;
            }
        }
        count = kept;
    }
    assert_true(admitted > 300);
}

/* What a smaller cache is for: more sequences sit in the same pool. */
static void sequences_that_drop_keys_need_fewer_pages(void **state)
{
    struct aq_admit_length seated[65];
    struct aq_admit_limits limits = {
        .pages = 64, .page_slots = 32, .seats_free = 1, .prompt_tokens = 4096, .kinds = &one_kind};
    static const char *const names[] = {"full", "h2o", "adakv", "snapkv"};
    uint32_t count[4] = {0};
    for (int small = 0; small < 4; small++) {
        struct aq_kv_policy p = {0};
        struct aq_kv_limits kv;
        struct aq_kv_options o = {.policy = names[small],
                                  .budget = {.unit = AQ_KV_SHARE, .share = small ? 0.2 : 1}};
        assert_int_equal(aq_kv_policy_resolve(&p, &o, NULL), 0);
        aq_kv_policy_limits(&kv, &p, 512, 128, 0, 1);
        for (uint32_t i = 0; i < 65; i++)
            seated[i] = aq_admit_length_of(&kv, 12, 512, 128);
        while (count[small] < 64 && aq_admit_one(&limits, seated, count[small], 0, 512))
            count[small]++;
    }
    assert_int_equal(count[0], 3);  /* 640 - 1 keys: 20 pages */
    assert_int_equal(count[1], 16); /* 128: 4 */
    assert_int_equal(count[2], 12); /* 12 heads of 128 together, each rounded up: 5 */
    assert_int_equal(count[3], 8);  /* 102 of the prompt and 127 new ones: 8 in the end */
}

/* A seat of the model below, whose micro-batches take turns as the executor's do. */
struct turn_seat {
    bool taken;
    uint32_t prompt, held, left;
};

static void step_in_turn(struct turn_seat *s, bool is_new)
{
    s->held = is_new ? s->prompt : s->held + 1;
    s->left -= !is_new;
}

static uint64_t pages_of_seats(const struct turn_seat *seat, uint32_t count, uint32_t page_slots)
{
    uint64_t pages = 0;
    for (uint32_t i = 0; i < count; i++)
        pages += seat[i].taken ? aq_div_up(seat[i].held, page_slots) : 0;
    return pages;
}

/* At its turn a micro-batch lets go who has ended, steps the rest and seats newcomers; the others
 * are a pass behind it or have begun the same one. */
static void pages_last_while_micro_batches_take_turns(void **state)
{
    enum { BATCHES = 3, EACH = 8, SEATS = BATCHES * EACH, PAGES = 40, SLOTS = 4 };
    struct aq_kv_limits kv;
    struct aq_kv_policy p = {0};
    assert_int_equal(aq_kv_policy_resolve(&p, &(struct aq_kv_options){.policy = "full"}, NULL), 0);
    aq_kv_policy_limits(&kv, &p, 64, 64, 0, 1);
    struct aq_admit_limits limits = {.pages = PAGES,
                                     .page_slots = SLOTS,
                                     .seats_free = 1,
                                     .prompt_tokens = 4096,
                                     .kinds = &one_kind};
    struct aq_admit_length lengths[SEATS + 1];
    struct turn_seat seat[SEATS] = {0};
    uint64_t admitted = 0, most = 0;
    for (uint64_t turn = 0; turn < 30000; turn++) {
        uint32_t first = turn % BATCHES * EACH;
        for (uint32_t i = first; i < first + EACH; i++) {
            if (seat[i].taken && seat[i].left == 0)
                seat[i].taken = false;
            else if (seat[i].taken)
                step_in_turn(&seat[i], false);
        }
        for (uint32_t i = first; i < first + EACH; i++) {
            if (seat[i].taken)
                continue;
            uint32_t prompt = 1 + (uint32_t)aq_prng_below(10, turn, i, 24), count = 0;
            uint32_t max_new = 1 + (uint32_t)aq_prng_below(11, turn, i, 24);
            for (uint32_t j = 0; j < SEATS; j++) {
                if (seat[j].taken)
                    lengths[count++] =
                        aq_admit_length_seated(&kv, 1, seat[j].prompt, seat[j].held, seat[j].left);
            }
            lengths[count] = aq_admit_length_of(&kv, 1, prompt, max_new);
            if (!aq_admit_one(&limits, lengths, count, 0, prompt))
                break;
            seat[i] = (struct turn_seat){.taken = true, .prompt = prompt, .left = max_new - 1};
            step_in_turn(&seat[i], true);
            admitted++;
        }
        uint64_t pages = pages_of_seats(seat, SEATS, SLOTS);
        assert_true(pages <= PAGES);
        most = aq_max_u64(most, pages);
    }
    assert_true(admitted > 3000);
    assert_int_equal(most, PAGES); /* and none is left lying */
}

static void a_long_prompt_is_admitted_alone(void **state)
{
    struct aq_admit_length of_long = whole(500, 510), of_short = whole(50, 60);
    struct aq_admit_limits limits = {
        .pages = 1000, .page_slots = 32, .seats_free = 1, .prompt_tokens = 100, .kinds = &one_kind};
    assert_true(aq_admit_one(&limits, &of_long, 0, 0, 500));
    assert_false(aq_admit_one(&limits, &of_short, 0, 60, 50));
    assert_true(aq_admit_one(&limits, &of_short, 0, 50, 50));
    limits.seats_free = 0;
    assert_false(aq_admit_one(&limits, &of_short, 0, 0, 1));
}

/* ---- program ---- */

static struct aq_model_steps little_model(uint32_t layers)
{
    struct aq_model_steps m = {.layers = layers,
                               .hidden = 64,
                               .inner = 256,
                               .embed_width = 64,
                               .vocab = 1000,
                               .heads = 4,
                               .kv_heads = 4,
                               .head_dim = 16,
                               .context = 256};
    assert_int_equal(aq_steps_open(&m, 2 * layers + 2, 1, 0, NULL), 0);
    for (uint32_t j = 0; j < m.step_count; j++) {
        struct aq_step_desc *s = &m.step[j];
        s->kind = j == 0                  ? AQ_STEP_EMBED
                  : j == m.step_count - 1 ? AQ_STEP_HEAD
                  : j % 2                 ? AQ_STEP_ATTENTION
                                          : AQ_STEP_MLP;
        s->layer = (j - 1) / 2;
        snprintf(s->matrix[0].name, AQ_NAME_MAX, j == 0 || j == m.step_count - 1 ? "tokens" : "w%u",
                 j);
        s->matrix[0].vocabulary = j == 0 || j == m.step_count - 1;
        s->matrix[0].rows = s->matrix[0].vocabulary ? 1000 : 256;
        s->matrix[0].k = 64;
        s->matrix_count = 1;
        s->half[0].count = 1;
        s->half[0].prim[0] =
            (struct aq_prim){.kind = j ? AQ_PRIM_PRODUCT : AQ_PRIM_GATHER,
                             .src = j ? AQ_REG_HIDDEN : AQ_REG_NONE,
                             .dst = s->kind == AQ_STEP_ATTENTION ? AQ_REG_QKV
                                    : s->kind == AQ_STEP_HEAD    ? AQ_REG_LOGITS
                                                                 : AQ_REG_HIDDEN,
                             .combine = s->kind == AQ_STEP_MLP ? AQ_COMBINE_ADD : AQ_COMBINE_SET,
                             .matrix_count = 1};
        if (s->kind == AQ_STEP_ATTENTION) /* the way back costs nothing in this model */
            s->half[1] = (struct aq_prim_list){.prim = {{.kind = AQ_PRIM_NORM,
                                                         .src = AQ_REG_ATTENTION,
                                                         .dst = AQ_REG_HIDDEN,
                                                         .combine = AQ_COMBINE_ADD}},
                                               .count = 1};
    }
    aq_steps_finish(&m);
    return m;
}

static void expect_io(const struct aq_prim_list *list, const char *takes, const char *leaves)
{
    static const char letters[AQ_REG_COUNT] = "-HQANIEL"; /* in the order of enum aq_register */
    struct aq_list_io io = aq_list_io(list);
    for (uint32_t r = 0; r < AQ_REG_COUNT; r++) {
        assert_int_equal(io.takes[r], strchr(takes, letters[r]) != NULL);
        assert_int_equal(io.leaves[r], strchr(leaves, letters[r]) != NULL);
    }
}

static void what_a_list_takes_and_leaves_follows_from_its_registers(void **state)
{
    struct aq_prim norm = {.kind = AQ_PRIM_NORM, .src = AQ_REG_HIDDEN, .dst = AQ_REG_NORM};
    struct aq_prim gate = {.kind = AQ_PRIM_PRODUCT, .src = AQ_REG_NORM, .dst = AQ_REG_INNER};
    struct aq_prim up = gate;
    struct aq_prim down = {.kind = AQ_PRIM_PRODUCT,
                           .src = AQ_REG_INNER,
                           .dst = AQ_REG_HIDDEN,
                           .combine = AQ_COMBINE_ADD};
    struct aq_prim dense = down;
    up.combine = AQ_COMBINE_MULTIPLY;
    dense.src = AQ_REG_ATTENTION;
    expect_io(&(struct aq_prim_list){{norm, gate, up}, 3}, "H", "I");
    expect_io(&(struct aq_prim_list){{down}, 1}, "IH", "H");
    expect_io(&(struct aq_prim_list){{norm, gate, up, down}, 4}, "H", "H");
    /* Attention and MLP side by side: INNER stays in the list. */
    expect_io(&(struct aq_prim_list){{norm, dense, gate, down}, 4}, "HA", "H");
    /* Without the gate, what is multiplied comes from before. */
    expect_io(&(struct aq_prim_list){{norm, up}, 2}, "HI", "I");
    struct aq_prim qkv = {.kind = AQ_PRIM_PRODUCT, .src = AQ_REG_NORM, .dst = AQ_REG_QKV};
    struct aq_prim rotate = {.kind = AQ_PRIM_ROTATE, .src = AQ_REG_QKV, .dst = AQ_REG_QKV};
    expect_io(&(struct aq_prim_list){{norm, qkv, rotate}, 3}, "H", "Q");
    expect_io(&(struct aq_prim_list){{rotate}, 1}, "Q", "Q"); /* behind the host's columns */
    struct aq_prim gather = {.kind = AQ_PRIM_GATHER, .dst = AQ_REG_EMBED};
    struct aq_prim project = {.kind = AQ_PRIM_PRODUCT, .src = AQ_REG_EMBED, .dst = AQ_REG_HIDDEN};
    struct aq_prim position = {.kind = AQ_PRIM_POSITION, .dst = AQ_REG_HIDDEN};
    expect_io(&(struct aq_prim_list){{gather, project, position}, 3}, "", "H");
}

static void tied_matrices_are_counted_once(void **state)
{
    struct aq_model_steps m = little_model(2);
    assert_int_equal(m.parameters, 1000 * 64 + 4 * 256 * 64);
    struct aq_block_inputs in = {.steps = &m, .weight_format = AQ_BF16, .table_format = AQ_F16};
    uint64_t matrices, vectors;
    aq_block_weight_bytes(&in, &matrices, &vectors);
    assert_int_equal(matrices, 16 * 8192 + 4 * 4 * 8192);
    aq_steps_close(&m);
}

/* A plan with everything in memory, three micro-batches of four seats. */
static struct aq_plan little_plan(uint32_t micro_batches)
{
    struct aq_plan plan = {
        .kinds = one_kind,
        .shape = {.micro_batch = 4,
                  .micro_batches = micro_batches,
                  .rows_max = 100,
                  .tile_rows = 100,
                  .head_tile_rows = 8,
                  .page_slots = 32,
                  .page_bytes = 4096,
                  .run_bytes = 4096,
                  .page_count = {[AQ_HOST] = 12},
                  .keys_max = 64,
                  .compute = AQ_F32,
                  .products = AQ_F32,
                  .kv_format = AQ_F16,
                  .weight_format = AQ_F16},
        .placement = {{{0, 100, 0}}, {{0, 100, 0}}, {{0, 100, 0}}, AQ_HOST},
        .chunk_bytes = 64 * 1024,
        .ring_chunks = 8,
        .kv_stages = 2,
        .workspaces = 1,
        .hidden_slots = 2,
    };
    plan.kinds.runs = 2; /* of 64 keys */
    assert_int_equal(aq_plan_parts(&plan, AQ_ATTEND_DEVICE, 2, NULL), 0);
    return plan;
}

static void a_split_gives_the_host_its_share_of_the_seats(void **state)
{
    static const uint32_t on_host[] = {0, 1, 2, 4, 6, 8};
    static const double percent[] = {0, 12.5, 25, 50, 75, 100};
    for (uint32_t i = 0; i < AQ_ARRAY_LEN(percent); i++) {
        struct aq_plan plan = little_plan(1);
        uint32_t host = 0, seats = 0;
        plan.separate = true;
        plan.shape.micro_batch = 8;
        plan.split_host = percent[i];
        assert_int_equal(aq_plan_parts(&plan, AQ_ATTEND_SPLIT, 3, NULL), 0);
        for (uint32_t p = 0; p < plan.part_count; p++) {
            seats += plan.part[p].count;
            host += plan.part[p].side == AQ_ATTEND_HOST ? plan.part[p].count : 0;
        }
        assert_int_equal(host, on_host[i]);
        assert_int_equal(seats, 8);
    }
}

struct built {
    struct aq_stream stream;
    struct aq_program program;
};

static struct built build(const struct aq_model_steps *m, const struct aq_plan *plan)
{
    struct built b = {0};
    struct aq_err err = {0};
    if (aq_stream_build(&b.stream, m, plan, &err) < 0 ||
        aq_program_build(&b.program, m, plan, &b.stream, &err) < 0 ||
        aq_program_order(&b.program, &err) < 0)
        fail_msg("%s", err.text);
    return b;
}

static void built_close(struct built *b)
{
    aq_program_close(&b->program);
    aq_stream_close(&b->stream);
}

static void a_program_is_ordered_by_its_dependencies(void **state)
{
    struct aq_model_steps m = little_model(3);
    struct aq_plan plan = little_plan(3);
    struct built b = build(&m, &plan);
    const struct aq_program *p = &b.program;
    assert_int_equal(b.stream.chunk_count, 0);
    assert_int_equal(p->op_count, 3 * (3 * 5 + 3));
    uint32_t turns = 0, back = 0;
    for (uint32_t i = 0; i < p->op_count; i++) {
        const struct aq_op *op = &p->op[i];
        const struct aq_dep *dep = aq_op_deps(p, op);
        turns += op->kind == AQ_OP_TURN;
        assert_int_equal(op->lane, op->kind == AQ_OP_TURN ? AQ_LANE_CONTROL : AQ_LANE_COMPUTE);
        for (uint32_t d = 0; d < op->dep_count; d++) {
            assert_int_not_equal(p->op[dep[d].op].lane, op->lane); /* the lane's order says so */
            if (dep[d].back)
                back += op->kind == AQ_OP_EMBED && p->op[dep[d].op].kind == AQ_OP_TURN;
            else
                assert_true(dep[d].op < i);
        }
        for (uint32_t u = 0; u < op->use_count; u++)
            assert_true(aq_op_uses(p, op)[u].slot < p->slot_count);
    }
    assert_int_equal(turns, 3);
    assert_int_equal(back, 3);
    built_close(&b);
    aq_steps_close(&m);
}

/* Each product's flops appear in exactly one op, whatever the kind of pass. */
static void annotation_adds_up_to_the_model(void **state)
{
    struct aq_model_steps m = little_model(3);
    struct aq_plan plan = little_plan(1);
    struct built b = build(&m, &plan);
    const struct aq_program *p = &b.program;
    struct aq_op_cost *cost = calloc(p->op_count, sizeof(*cost));
    struct aq_pass_shape pass = {.decode_rows = 3, .prefill_rows = 20, .logit_rows = 5};
    struct aq_kv_work work = {.decode_keys = 70, .decode_slots = 118, .prefill_key_pairs = 210};
    pass.part[0] = (struct aq_part_shape){.decode_rows = 3, .prefill_rows = 20, .kv = &work};
    aq_program_annotate(cost, p, &m, &plan, &b.stream, &pass);
    uint64_t products = 0, attention = 0, want = 0, brief = 0;
    double want_brief = 0;
    for (uint32_t i = 0; i < p->op_count; i++) {
        bool attends = p->op[i].kind == AQ_OP_ATTN_PREFILL || p->op[i].kind == AQ_OP_ATTN_DEVICE;
        *(attends ? &attention : &products) += cost[i].flops;
        brief += cost[i].short_flops;
        assert_true(!attends || cost[i].head_dim == m.head_dim);
    }
    for (uint32_t j = 0; j < m.step_count; j++)
        want += m.step[j].flops_per_row * (m.step[j].kind == AQ_STEP_HEAD ? 5 : 23);
    for (uint32_t j = 0; j < m.step_count; j++) {
        const struct aq_step_desc *d = &m.step[j];
        for (uint32_t i = 0; i < d->matrix_count; i++) {
            const struct aq_matrix_desc *w = &d->matrix[i];
            bool read = d->kind != AQ_STEP_EMBED;
            double rows = d->kind == AQ_STEP_HEAD ? 5 : 23;
            want_brief += read * rows * 2.0 * w->rows * w->k * aq_hardware_shortness(w->k);
        }
    }
    assert_true(want_brief > 0 && fabs((double)brief / want_brief - 1) < 1e-3);
    assert_int_equal(products, want);
    assert_int_equal(attention, 3 * 4 * (70 + 210) * 64);
    free(cost);
    built_close(&b);
    aq_steps_close(&m);
}

/* The second pass over a prompt is half of the first one's products, and a decode row reads and
 * writes a score and reads a position of every slot. */
static void scores_have_their_cost(void **state)
{
    struct aq_model_steps m = little_model(3);
    struct aq_plan plan = little_plan(1);
    struct built b = build(&m, &plan);
    struct aq_op_cost plain[64], scored[64];
    struct aq_pass_shape pass = {.decode_rows = 3, .prefill_rows = 20};
    struct aq_kv_work work = {.decode_keys = 70, .decode_slots = 118, .prefill_key_pairs = 210};
    pass.part[0] = (struct aq_part_shape){.decode_rows = 3, .prefill_rows = 20, .kv = &work};
    assert_in_range(b.program.op_count, 1, 64);
    aq_program_annotate(plain, &b.program, &m, &plan, &b.stream, &pass);
    struct aq_kv_options o = {.policy = "h2o", .budget = {.unit = AQ_KV_SLOTS, .slots = 16}};
    assert_int_equal(aq_kv_policy_resolve(&plan.kv, &o, NULL), 0);
    work.stat_key_pairs = 210;
    aq_program_annotate(scored, &b.program, &m, &plan, &b.stream, &pass);
    for (uint32_t i = 0; i < b.program.op_count; i++) {
        uint8_t kind = b.program.op[i].kind;
        bool prefill = kind == AQ_OP_ATTN_PREFILL, decode = kind == AQ_OP_ATTN_DEVICE;
        assert_int_equal(scored[i].flops, plain[i].flops * (prefill ? 3 : 2) / 2);
        uint64_t slots = decode ? 70ull * m.kv_heads * 12 : 0;
        if (!prefill)
            assert_int_equal(scored[i].memory_bytes, plain[i].memory_bytes + slots);
        else
            assert_true(scored[i].memory_bytes > plain[i].memory_bytes);
    }
    built_close(&b);
    aq_steps_close(&m);
}

/* ---- streams ---- */

/* Every panel of the layers lies in exactly one place, in order, and shares are exact to half a
 * panel of the step; the number of chunks is a multiple of the ring. */
static void check_stream(const struct aq_model_steps *m, const struct aq_plan *plan,
                         const struct aq_stream *s)
{
    for (uint32_t j = 0; j < m->step_count; j++) {
        for (uint32_t i = 0; i < m->step[j].matrix_count; i++) {
            if (m->step[j].matrix[i].table)
                continue;
            const struct aq_split *split = &s->split[aq_matrix_index(m, j, i)];
            uint32_t next = split->panels[AQ_DEVICE], panels = 0;
            for (int t = 0; t < AQ_TIER_COUNT; t++)
                panels += split->panels[t];
            assert_int_equal(panels, aq_panel_count(m->step[j].matrix[i].rows));
            for (uint32_t c = s->step_chunk[j]; c < s->step_chunk[j + 1]; c++) {
                for (uint32_t n = 0; n < s->chunk[c].piece_count; n++) {
                    const struct aq_piece *p = &s->piece[s->chunk[c].piece_first + n];
                    if (p->matrix != i)
                        continue;
                    assert_int_equal(p->first, next);
                    assert_int_equal(p->bytes, p->count * aq_panel_bytes(plan->shape.weight_format,
                                                                         m->step[j].matrix[i].k));
                    next += p->count;
                }
            }
            assert_int_equal(next, panels);
        }
    }
    for (uint32_t c = 0; c < s->chunk_count; c++) {
        assert_int_equal(s->chunk[c].slot, c % s->ring);
        assert_true(s->chunk[c].bytes <= s->chunk_bytes && s->chunk_bytes <= plan->chunk_bytes);
    }
    assert_true(!s->chunk_count || s->chunk_count % s->ring == 0);
}

static void streams_hold_every_panel_once(void **state)
{
    struct aq_model_steps m = little_model(5);
    uint32_t made = 0;
    for (uint64_t i = 0; i < 300; i++) {
        struct aq_plan plan = little_plan(1 + (uint32_t)aq_prng_below(11, i, 0, 3));
        double device = (double)aq_prng_below(11, i, 1, 101);
        double host = (double)aq_prng_below(11, i, 2, 101 - (uint64_t)device);
        plan.separate = aq_prng_below(11, i, 3, 2);
        plan.placement.weights = (struct aq_shares){{device, host, 100 - device - host}};
        plan.chunk_bytes = 32768 * (1 + aq_prng_below(11, i, 4, 6));
        plan.ring_chunks = 1 + (uint32_t)aq_prng_below(11, i, 5, 20);
        plan.staging_chunks = 1 + (uint32_t)aq_prng_below(11, i, 6, 4);
        plan.fuse_layer = aq_prng_below(11, i, 7, 2);
        assert_int_equal(aq_plan_parts(&plan, AQ_ATTEND_DEVICE, 2, NULL), 0);
        struct aq_stream s = {0};
        struct aq_err err = {0};
        int rc = aq_stream_build(&s, &m, &plan, &err);
        if (rc < 0) { /* a ring too small for a step: said so */
            assert_int_equal(rc, -EINVAL);
            assert_non_null(strstr(err.text, "--"));
            continue;
        }
        check_stream(&m, &plan, &s);
        aq_stream_close(&s);
        made++;
    }
    assert_true(made > 100);
    aq_steps_close(&m);
}

static void shares_are_exact_to_half_a_panel_of_a_step(void **state)
{
    struct aq_model_steps m = little_model(2);
    struct aq_plan plan = little_plan(1);
    plan.chunk_bytes = AQ_MIB;
    for (double share = 0; share <= 100; share += 0.5) {
        plan.placement.weights = (struct aq_shares){{0, share, 100 - share}};
        struct aq_stream s = {0};
        assert_int_equal(aq_stream_build(&s, &m, &plan, NULL), 0);
        for (uint32_t j = 1; j + 1 < m.step_count; j++) {
            double resident = 0, all = 0, panel = 0;
            for (uint32_t i = 0; i < m.step[j].matrix_count; i++) {
                double bytes = (double)aq_panel_bytes(AQ_F16, m.step[j].matrix[i].k);
                resident += bytes * s.split[aq_matrix_index(&m, j, i)].panels[AQ_DEVICE];
                all += bytes * aq_panel_count(m.step[j].matrix[i].rows);
                panel = bytes > panel ? bytes : panel;
            }
            assert_true(fabs(resident - all * share / 100) <= panel / 2 + 1);
        }
        aq_stream_close(&s);
    }
    aq_steps_close(&m);
}

static void shares_of_seats_give_every_seat_away(void **state)
{
    for (uint64_t i = 0; i < 500; i++) {
        double a = (double)aq_prng_below(12, i, 0, 1001) / 10, b = (100 - a) / 3;
        struct aq_shares kv = {{a, b, 100 - a - b}};
        uint32_t seats[AQ_TIER_COUNT], count = 1 + (uint32_t)aq_prng_below(12, i, 1, 200), sum = 0;
        aq_plan_kv_seats(seats, &kv, count);
        for (int t = 0; t < AQ_TIER_COUNT; t++) {
            sum += seats[t];
            assert_true(fabs(seats[t] - kv.percent[t] * count / 100) <= 1);
        }
        assert_int_equal(sum, count);
    }
}

/* Counts beyond 65535: seats of a part, and what one TURN touches. */
static void parts_hold_any_number_of_seats(void **state)
{
    struct aq_plan plan = little_plan(1);
    static const uint32_t counts[] = {65536, 70000, 1u << 20};
    for (uint32_t i = 0; i < 2 * AQ_ARRAY_LEN(counts); i++) {
        uint32_t next = 0;
        bool staged = i % 2;
        plan.shape.micro_batch = counts[i / 2];
        plan.placement.kv = (struct aq_shares){{0, staged ? 0 : 100, staged ? 100 : 0}};
        assert_int_equal(aq_plan_parts(&plan, AQ_ATTEND_DEVICE, counts[i / 2] / 32, NULL), 0);
        for (uint32_t n = 0; n < plan.part_count; n++) {
            assert_int_equal(plan.part[n].first, next);
            assert_true(plan.part[n].count > 0);
            next += plan.part[n].count;
        }
        assert_int_equal(next, plan.shape.micro_batch);
    }
}

static void a_turn_touches_any_number_of_slots(void **state)
{
    struct aq_model_steps m = little_model(1030);
    struct aq_plan plan = little_plan(1);
    plan.shape.micro_batch = AQ_PART_MAX;
    plan.placement.kv = (struct aq_shares){{0, 0, 100}};
    assert_int_equal(aq_plan_parts(&plan, AQ_ATTEND_DEVICE, 1, NULL), 0);
    struct built b = build(&m, &plan);
    uint32_t turns = 0;
    for (uint32_t i = 0; i < b.program.op_count; i++) {
        if (b.program.op[i].kind != AQ_OP_TURN)
            continue;
        assert_true(b.program.op[i].use_count > m.layers * AQ_PART_MAX);
        assert_true(b.program.op[i].dep_count > m.layers * AQ_PART_MAX); /* on the disk's lane */
        turns++;
    }
    assert_int_equal(turns, 1);
    built_close(&b);
    aq_steps_close(&m);
}

/* ---- block ---- */

static struct aq_block_inputs block_inputs(const struct aq_model_steps *m)
{
    return (struct aq_block_inputs){.steps = m,
                                    .compute = AQ_F32,
                                    .products = AQ_F32,
                                    .weight_format = AQ_F16,
                                    .kv_format = AQ_F16,
                                    .table_format = AQ_F16,
                                    .threads = 2,
                                    .sequences = 1000,
                                    .prompt_max = 100,
                                    .total_max = 200,
                                    .scratch_bytes_per_thread = 1000,
                                    .queue_bytes = 1000,
                                    .process_bytes = 1000,
                                    .budget = {[AQ_HOST] = AQ_GIB, [AQ_DISK] = AQ_GIB}};
}

static void the_block_takes_what_fits(void **state)
{
    struct aq_model_steps m = little_model(3);
    struct aq_block_inputs in = block_inputs(&m);
    struct aq_block b = {0};
    assert_int_equal(aq_block_choose(&b, &in, NULL), 0);
    assert_int_equal(b.plan.shape.micro_batch, AQ_BLOCK_SEATS_CAP);
    uint64_t most = aq_ledger_total(&b.ledger, AQ_HOST);
    in.budget[AQ_HOST] = most - 1;
    assert_int_equal(aq_block_choose(&b, &in, NULL), 0);
    assert_true(b.plan.shape.micro_batch < AQ_BLOCK_SEATS_CAP &&
                b.plan.shape.micro_batch > AQ_BLOCK_SEATS_CAP / 2);
    assert_true(aq_ledger_total(&b.ledger, AQ_HOST) <= in.budget[AQ_HOST]);
    assert_true(b.plan.shape.page_count[AQ_HOST] >=
                aq_block_pages(&b.plan.shape, m.layers, in.total_max));
    aq_block_close(&b);
    aq_steps_close(&m);
}

/* The largest block for a workload grows with what each sequence gives up. */
static void a_smaller_cache_means_a_larger_block(void **state)
{
    struct aq_model_steps m = little_model(3);
    struct aq_block_inputs in = block_inputs(&m);
    struct aq_block b = {0};
    struct aq_err err;
    in.prompt_max = 512;
    in.total_max = 1024;
    in.micro_batch = 10;
    assert_int_equal(aq_block_choose(&b, &in, &err), 0);
    in.budget[AQ_HOST] = aq_ledger_total(&b.ledger, AQ_HOST);
    in.micro_batch = 0;
    assert_int_equal(aq_block_choose(&b, &in, &err), 0);
    assert_int_equal(b.plan.shape.keys_max, 1024);
    uint32_t full = b.plan.shape.micro_batch;
    assert_int_equal(aq_ledger_line(&b.ledger, AQ_HOST, "kv scores"), 0);
    assert_int_equal(aq_ledger_line(&b.ledger, AQ_HOST, "kv prefill"), 0);
    struct aq_kv_options o = {.policy = "h2o", .budget = {.unit = AQ_KV_SHARE, .share = 0.2}};
    assert_int_equal(aq_kv_policy_resolve(&in.kv, &o, &err), 0);
    assert_int_equal(aq_block_choose(&b, &in, &err), 0);
    assert_int_equal(b.plan.shape.keys_max, 204);
    assert_int_equal(b.plan.shape.prompt_max, 512);
    assert_true(b.plan.shape.micro_batch > 2 * full);
    /* Scores and positions of 224 slots, victims; a prompt of 512 whole, beside its sums. */
    uint64_t seats = b.plan.shape.micro_batch, heads = m.kv_heads;
    assert_true(aq_ledger_line(&b.ledger, AQ_HOST, "kv scores") >=
                seats * 3 * heads * (224 * 8 + 4));
    assert_true(aq_ledger_line(&b.ledger, AQ_HOST, "kv prefill") >=
                16 * b.plan.shape.run_bytes + 512 * 4 * (m.heads + heads));
    /* A page wastes no more of the fewer slots. */
    assert_true(b.plan.shape.page_slots == 32 || 10 * b.plan.shape.page_slots <= 204);
    aq_block_close(&b);
    aq_steps_close(&m);
}

/* As h2o of the same budget, but for what heads round up each for itself, and for rows as long as
 * the longest of them may be. */
static void heads_that_share_slots_are_on_the_ledger(void **state)
{
    struct aq_model_steps m = little_model(3);
    struct aq_block_inputs in = block_inputs(&m);
    struct aq_block b = {0};
    struct aq_err err;
    uint64_t seats = 10, heads = m.kv_heads, kv[2], tables[2];
    in.prompt_max = 512;
    in.total_max = 1024;
    in.total_sum = in.prompt_sum = in.sequences = 0; /* every seat at its longest */
    in.micro_batch = (uint32_t)seats;
    for (int shared = 0; shared < 2; shared++) {
        struct aq_kv_options o = {.policy = shared ? "adakv" : "h2o",
                                  .budget = {.unit = AQ_KV_SLOTS, .slots = 200}};
        assert_int_equal(aq_kv_policy_resolve(&in.kv, &o, &err), 0);
        assert_int_equal(aq_block_choose(&b, &in, &err), 0);
        uint64_t runs = shared ? aq_div_up(heads * 200 / 32, heads) + 1 : 7;
        uint64_t stride = shared ? aq_min_u64(512, aq_align_up(200 * heads, 32)) : 224;
        uint64_t page = b.plan.shape.page_slots / 32;
        kv[shared] = aq_ledger_line(&b.ledger, AQ_HOST, "kv");
        tables[shared] = aq_ledger_line(&b.ledger, AQ_HOST, "kv tables");
        assert_int_equal(kv[shared], aq_mem_rounded(seats * 3 * aq_align_up(runs, page) *
                                                    b.plan.shape.run_bytes));
        assert_in_range(aq_ledger_line(&b.ledger, AQ_HOST, "kv scores"),
                        seats * 3 * heads * (stride * 8 + 4),
                        seats * 3 * (heads * (stride * 8 + 4) + 64) + AQ_MIB);
    }
    assert_true(kv[1] >= kv[0] && tables[1] > tables[0]);
    aq_block_close(&b);
    aq_steps_close(&m);
}

static void what_does_not_fit_is_refused_with_the_largest_block(void **state)
{
    struct aq_model_steps m = little_model(3);
    struct aq_block_inputs in = block_inputs(&m);
    struct aq_block b = {0};
    struct aq_err err;
    in.micro_batch = 200;
    assert_int_equal(aq_block_choose(&b, &in, &err), 0);
    uint64_t whole = aq_ledger_total(&b.ledger, AQ_HOST);
    in.budget[AQ_HOST] = whole - 1; /* with smaller tiles */
    assert_int_equal(aq_block_choose(&b, &in, &err), 0);
    assert_true(b.plan.shape.head_tile_rows == AQ_BLOCK_TIGHT_HEAD_ROWS);
    assert_true(aq_ledger_total(&b.ledger, AQ_HOST) < whole);
    in.budget[AQ_HOST] = whole / 2;
    assert_int_equal(aq_block_choose(&b, &in, &err), -ENOBUFS);
    const char *at = strstr(err.text, "--micro-batch ");
    assert_non_null(at);
    in.micro_batch = (uint32_t)atoi(at + strlen("--micro-batch "));
    assert_int_equal(aq_block_choose(&b, &in, &err), 0); /* what it said does fit ... */
    in.micro_batch++;
    assert_int_equal(aq_block_choose(&b, &in, &err), -ENOBUFS); /* ... and one more does not */
    in.budget[AQ_HOST] = 1 * AQ_MIB / 2;
    in.micro_batch = 0;
    assert_int_equal(aq_block_choose(&b, &in, &err), -ENOBUFS);
    assert_non_null(strstr(err.text, "no block fits"));
    aq_block_close(&b);
    aq_steps_close(&m);
}

/* A program of a hundred million ops would take all memory before it is found not to fit. */
static void a_huge_model_streams_in_few_chunks(void **state)
{
    struct aq_model_steps m = little_model(100);
    struct aq_block_inputs in = block_inputs(&m);
    struct aq_block b = {0};
    struct aq_err err;
    for (uint32_t j = 1; j + 1 < m.step_count; j++)
        m.step[j].matrix[0].rows = 1 << 30;
    in.separate = true;
    in.budget[AQ_HOST] = UINT64_MAX;
    assert_int_equal(aq_block_least(&b, &in, &err), 0); /* 28 TB in chunks of 16 MiB: 1.6 million */
    assert_true(b.stream.bytes[AQ_HOST] > 25ull << 40 && b.stream.chunk_count >= m.layers);
    assert_true(b.stream.chunk_count <= 2 * AQ_BLOCK_CHUNKS_MAX);
    in.chunk_bytes = 16 * AQ_MIB;
    assert_int_equal(aq_block_least(&b, &in, &err), -EINVAL);
    assert_non_null(strstr(err.text, "--chunk"));
    in.budget[AQ_HOST] = AQ_MIB;
    assert_int_equal(aq_block_choose(&b, &in, &err), -ENOBUFS);
    assert_non_null(strstr(err.text, "no block fits"));
    aq_block_close(&b);
    aq_steps_close(&m);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(a_huge_model_streams_in_few_chunks),
    cmocka_unit_test(a_split_gives_the_host_its_share_of_the_seats),
    cmocka_unit_test(the_peak_equals_playing_the_passes),
    cmocka_unit_test(admission_never_exceeds_the_pool),
    cmocka_unit_test(sequences_that_drop_keys_need_fewer_pages),
    cmocka_unit_test(pages_last_while_micro_batches_take_turns),
    cmocka_unit_test(a_long_prompt_is_admitted_alone),
    cmocka_unit_test(what_a_list_takes_and_leaves_follows_from_its_registers),
    cmocka_unit_test(tied_matrices_are_counted_once),
    cmocka_unit_test(a_program_is_ordered_by_its_dependencies),
    cmocka_unit_test(annotation_adds_up_to_the_model),
    cmocka_unit_test(scores_have_their_cost),
    cmocka_unit_test(streams_hold_every_panel_once),
    cmocka_unit_test(shares_are_exact_to_half_a_panel_of_a_step),
    cmocka_unit_test(shares_of_seats_give_every_seat_away),
    cmocka_unit_test(parts_hold_any_number_of_seats),
    cmocka_unit_test(a_turn_touches_any_number_of_slots),
    cmocka_unit_test(the_block_takes_what_fits),
    cmocka_unit_test(a_smaller_cache_means_a_larger_block),
    cmocka_unit_test(heads_that_share_slots_are_on_the_ledger),
    cmocka_unit_test(what_does_not_fit_is_refused_with_the_largest_block),
};

AQ_TEST_MAIN(tests)
