/* SPDX-License-Identifier: Apache-2.0
 * The programs of OPT's variants for plans drawn at random, op by op, against hashes of what the
 * builder made when they were recorded: a change of how programs are built must not change them.
 *
 * AQ_PROGRAMS_DUMP=FILE writes every program as text: compare the files of two versions to see
 * which op differs. */
#include "engine/model/arch/arch.h"
#include "tests/test.h"
#include "tests/unit/policy/plans.h"

#include <inttypes.h>
#include <xxhash.h>

enum { SEEDS = 150 };

/* A variant of OPT, and the hash of its programs. */
struct variant {
    const char *name;
    bool post_norm, projected, biasless, plain_norm, untied;
    uint64_t want;
};

static const struct variant variants[] = {
    {.name = "pre-norm", .want = UINT64_C(0x73d2fd4e8d22f4e4)},
    {.name = "post-norm, projected",
     .post_norm = true,
     .projected = true,
     .want = UINT64_C(0xaa3190066449337b)},
    {.name = "biasless, plain norm, untied",
     .biasless = true,
     .plain_norm = true,
     .untied = true,
     .want = UINT64_C(0x37911a130bdae063)},
};

static const struct variant *now; /* the one that model() makes */

static struct aq_model_steps model(uint32_t layers, uint32_t hidden, uint32_t heads, uint32_t vocab)
{
    struct aq_model_steps m;
    struct aq_model_config c = {
        .arch = aq_arch_find("opt"),
        .vocab_size = vocab,
        .hidden_size = hidden,
        .intermediate_size = 4 * hidden,
        .layers = layers,
        .heads = heads,
        .kv_heads = heads,
        .head_dim = hidden / heads,
        .max_positions = 2048,
        .embed_width = now->projected ? hidden / 2 : hidden,
        .norm_first = !now->post_norm,
        .final_norm = true,
        .qkv_bias = !now->biasless,
        .out_bias = !now->biasless,
        .mlp_bias = !now->biasless,
        .norm_affine = !now->plain_norm,
        .tie_word_embeddings = !now->untied,
    };
    assert_int_equal(aq_arch_steps(&m, &c, NULL), 0);
    return m;
}

/* Text of a program, to a file where one is asked for, and into the hash. */
struct dump {
    FILE *file;
    XXH3_state_t *hash;
};

static void say(const struct dump *d, const char *format, ...)
{
    char line[256];
    va_list arguments;
    va_start(arguments, format);
    int count = vsnprintf(line, sizeof(line), format, arguments);
    va_end(arguments);
    assert_in_range(count, 1, sizeof(line) - 1);
    assert_int_equal(XXH3_64bits_update(d->hash, line, (size_t)count), XXH_OK);
    if (d->file)
        fputs(line, d->file);
}

static void say_tag(const struct dump *d, const char *what, const struct aq_tag *t)
{
    if (t->object != AQ_OBJECT_NONE)
        say(d, " %s %s %u k%u p%u %d", what, aq_object_name((enum aq_object)t->object), t->index,
            t->micro_batch, t->part, t->pass);
}

static void say_op(const struct dump *d, const struct aq_program *p, uint32_t index)
{
    static const char *const modes[] = {"reads", "writes", "updates"};
    const struct aq_op *op = &p->op[index];
    say(d, "%u %s %s j%u k%u p%u", index, aq_op_name((enum aq_op_kind)op->kind),
        aq_lane_name((enum aq_lane)op->lane), op->step, op->micro_batch, op->part);
    say(d, " object %u of %u chunk %u at %u %u bytes %" PRIu64 "\n", op->object, op->of, op->chunk,
        op->workspace, op->stage, op->bytes_max);
    for (uint32_t i = 0; i < op->use_count; i++) {
        const struct aq_use *u = &aq_op_uses(p, op)[i];
        say(d, "  %s %u", modes[u->mode], u->slot);
        say_tag(d, "need", &u->need);
        say_tag(d, "leave", &u->leave);
        say(d, "\n");
    }
    for (uint32_t i = 0; i < op->dep_count; i++)
        say(d, "  after %u%s\n", aq_op_deps(p, op)[i].op, aq_op_deps(p, op)[i].back ? "'" : "");
}

/* What every op takes in a pass of a few rows. */
static void say_costs(const struct dump *d, const struct planned *p)
{
    struct aq_pass_shape *shape = aq_pass_shapes_new(&p->plan);
    struct aq_op_cost *cost = calloc(p->program.op_count, sizeof(*cost));
    assert_true(cost && shape);
    for (uint32_t k = 0; k < p->program.micro_batches; k++) {
        shape[k].decode_rows = 3 + k;
        shape[k].prefill_rows = 5;
        shape[k].logit_rows = 4;
        for (uint32_t i = 0; i < p->program.parts; i++) {
            shape[k].part[i].decode_rows = 1 + i;
            shape[k].part[i].prefill_rows = 2;
            *shape[k].part[i].kv = (struct aq_kv_work){.decode_keys = 70 + k,
                                                       .decode_slots = 96,
                                                       .prefill_key_pairs = 40,
                                                       .stat_key_pairs = 20,
                                                       .read_bytes = 1,
                                                       .write_bytes = 2,
                                                       .load_bytes = 3,
                                                       .store_bytes = 4};
        }
    }
    aq_program_annotate(cost, &p->program, &p->steps, &p->plan, &p->stream, shape);
    for (uint32_t i = 0; i < p->program.op_count; i++)
        say(d,
            "cost %u rows %u flops %" PRIu64 " memory %" PRIu64 " row %" PRIu64 " heads %" PRIu64
            " weights %u moves %" PRIu64 "\n",
            i, cost[i].rows, cost[i].flops, cost[i].memory_bytes, cost[i].row_bytes, cost[i].heads,
            cost[i].weights, cost[i].move_bytes);
    free(cost);
    free(shape);
}

static void say_program(const struct dump *d, const struct planned *p, uint64_t seed)
{
    say(d, "%s, seed %" PRIu64 "\n", now->name, seed);
    for (uint32_t i = 0; i < p->program.slot_count; i++)
        say(d, "slot %u %s tier %u bytes %" PRIu64 "\n", i,
            aq_slot_class_name((enum aq_slot_class)p->program.slot[i].slot_class),
            p->program.slot[i].tier, p->program.slot[i].bytes);
    for (uint32_t i = 0; i < p->program.op_count; i++)
        say_op(d, &p->program, i);
    say_costs(d, p);
}

static void programs_are_those_that_were_recorded(void **state)
{
    const struct plan_limits limits = {3, 4, 3, 4};
    const char *path = getenv("AQ_PROGRAMS_DUMP");
    struct dump d = {.file = path ? fopen(path, "w") : NULL, .hash = XXH3_createState()};
    uint32_t wrong = 0;
    assert_non_null(d.hash);
    for (size_t i = 0; i < AQ_ARRAY_LEN(variants); i++) {
        uint32_t planned = 0;
        now = &variants[i];
        assert_int_equal(XXH3_64bits_reset(d.hash), XXH_OK);
        for (uint64_t seed = 1; seed <= SEEDS; seed++) {
            struct planned p;
            if (!plans_draw_for(&p, model, &limits, seed))
                continue;
            say_program(&d, &p, seed);
            plans_check(&p);
            plans_close(&p);
            planned++;
        }
        uint64_t got = XXH3_64bits_digest(d.hash);
        print_message("%s: %u programs, %016" PRIx64 "\n", now->name, planned, got);
        assert_true(planned > SEEDS / 2);
        wrong += got != now->want;
    }
    XXH3_freeState(d.hash);
    if (d.file)
        fclose(d.file);
    assert_int_equal(wrong, 0);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(programs_are_those_that_were_recorded),
};

AQ_TEST_MAIN(tests)
