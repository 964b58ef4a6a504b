/* SPDX-License-Identifier: Apache-2.0
 * Products of which the host computes columns, next to the panels in its memory: the same bits as
 * with everything in one memory, for norms before and behind the products, gates, matrices that end
 * in the middle of a panel, every format of the weights, one micro-batch and several, any share;
 * and those panels do not cross the link. */
#include "offload/device.h"
#include "policy/checker.h"
#include "policy/host_product.h"
#include "tests/choices.h"
#include "tests/sim/drawn.h"
#include "tests/temp.h"
#include "tests/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SEQUENCES = 7, PROMPT = 40, TOKENS = 6, VOCAB = 300 };

/* OPT with norms before and behind its products, with half a panel left over in q, k, v and out,
 * and a quarter in fc1; LLaMA, whose gate and the product that it multiplies are shared, with two
 * heads of k and v; GPT-NeoX, whose second half is the device's. */
enum model { BEFORE, BEHIND, GATED, PARALLEL, MODELS };

static const struct {
    const char *config;
    uint32_t shared; /* products of a layer of which the host computes columns */
} models[MODELS] = {
    [BEFORE] = {"\"model_type\": \"opt\", \"activation_function\": \"relu\", "
                "\"do_layer_norm_before\": true, \"ffn_dim\": 336, \"num_attention_heads\": 5, "
                "\"word_embed_proj_dim\": 160, \"enable_bias\": true",
                4},
    [BEHIND] = {"\"model_type\": \"opt\", \"activation_function\": \"relu\", "
                "\"do_layer_norm_before\": false, \"ffn_dim\": 336, \"num_attention_heads\": 5, "
                "\"word_embed_proj_dim\": 160, \"enable_bias\": true",
                4},
    [GATED] = {"\"model_type\": \"llama\", \"hidden_act\": \"silu\", \"rms_norm_eps\": 1e-5, "
               "\"intermediate_size\": 336, \"num_attention_heads\": 6, "
               "\"num_key_value_heads\": 2, \"head_dim\": 32, \"mlp_bias\": true",
               4},
    [PARALLEL] = {"\"model_type\": \"gpt_neox\", \"hidden_act\": \"gelu\", "
                  "\"intermediate_size\": 336, \"num_attention_heads\": 5, \"rotary_pct\": 0.25",
                  1},
};
static char paths[MODELS][TEMP_PATH_MAX];

static void write_shape(char path[TEMP_PATH_MAX], const char *config)
{
    FILE *f = fdopen(temp_file(path, "shape"), "w");
    assert_non_null(f);
    fprintf(f,
            "{%s, \"bos_token_id\": 2, \"eos_token_id\": 2, \"hidden_size\": 160, "
            "\"max_position_embeddings\": 128, \"num_hidden_layers\": 3, "
            "\"torch_dtype\": \"float16\", \"vocab_size\": %d}",
            config, VOCAB);
    assert_int_equal(fclose(f), 0);
}

static int set_up(void **state)
{
    for (int i = 0; i < MODELS; i++)
        write_shape(paths[i], models[i].config);
    return 0;
}

static int tear_down(void **state)
{
    int rc = 0;
    for (int i = 0; i < MODELS; i++)
        rc |= unlink(paths[i]);
    return rc;
}

struct example {
    enum model model;
    bool serial, fuse_layer;
    int compute, weights;
    const char *attention, *share;
    uint32_t micro_batches;
};

struct told {
    struct crowd crowd;
    uint64_t weights_moved, rows_moved; /* bytes over the link to the device */
    uint32_t products, merges;          /* ops */
};

static void count_ops(struct told *t, const struct aq_program *p)
{
    t->products = t->merges = 0;
    for (uint32_t i = 0; i < p->op_count; i++) {
        t->products += p->op[i].kind == AQ_OP_PRODUCT_HOST;
        t->merges += p->op[i].kind == AQ_OP_MERGE;
    }
}

static void check_ledger(const struct aq_engine *e)
{
    struct aq_mem_usage row[AQ_MEM_PURPOSE_MAX];
    unsigned count = aq_mem_usage(aq_engine_mem(e), row, AQ_MEM_PURPOSE_MAX);
    for (unsigned i = 0; i < count; i++) {
        uint64_t line = aq_ledger_line(&aq_engine_block(e)->ledger, row[i].tier, row[i].purpose);
        if (row[i].peak_bytes > line)
            fail_msg("'%s' on the %s took %llu bytes, its line of the ledger is %llu",
                     row[i].purpose, aq_tier_name(row[i].tier),
                     (unsigned long long)row[i].peak_bytes, (unsigned long long)line);
    }
}

/* Runs the crowd; `share` NULL: everything in one memory. */
static void run(struct told *ret, const struct example *x, const char *share)
{
    struct aq_engine_opts o = {
        .shape = paths[x->model],
        .random_weights = true,
        .random_seed = 5,
        .compute = x->compute,
        .weight_format = x->weights,
        .kv_format = AQ_F16,
        .threads = 2,
        .host_memory = AQ_GIB,
        .refill = true,
        .placement = placed("weights=0/100/0"),
    };
    if (share) {
        o.emulate_device = 256 * AQ_MIB;
        o.placement = placed("weights=20/80/0 kv=0/100/0 hidden=50/50/0 head=device");
        o.attention = attended(x->attention);
        o.micro_batch = 3;
        o.micro_batches = x->micro_batches;
        o.serial = x->serial;
        o.fuse_layer = x->fuse_layer;
        o.host_products = multiplied(share);
    }
    struct aq_engine *e;
    struct aq_err err;
    crowd_draw(&ret->crowd, 11, SEQUENCES, PROMPT, TOKENS, VOCAB);
    if (aq_engine_open(&e, &o, &err) < 0 || aq_engine_plan(e, &ret->crowd.work, &err) < 0)
        fail_msg("%s", err.text);
    const struct aq_block *b = aq_engine_block(e);
    struct aq_check_opts check = {
        .stream = &b->stream, .steps = aq_engine_steps(e), .plan = &b->plan};
    if (aq_program_check(&b->program, &check, &err) < 0)
        fail_msg("%s", err.text);
    count_ops(ret, &b->program);
    if (aq_engine_load(e, &err) < 0 || crowd_run(&ret->crowd, e, &err) < 0)
        fail_msg("%s", err.text);
    assert_true(crowd_whole(&ret->crowd));
    struct aq_engine_stats st;
    aq_engine_stats(e, &st);
    ret->weights_moved = st.lane[AQ_LANE_H2D_WEIGHTS].bytes / st.passes;
    ret->rows_moved = st.lane[AQ_LANE_H2D].bytes;
    check_ledger(e);
    aq_engine_close(e);
}

static const struct example examples[] = {
    {BEFORE, false, false, AQ_F32, AQ_F32, "device", "100%", 1},
    {BEFORE, false, false, AQ_BF16, AQ_BF16, "host", "0.4", 2},
    {BEHIND, false, false, AQ_F32, AQ_F16, "device", "35%", 2},
    {BEHIND, false, true, AQ_BF16, AQ_F16, "host", "1", 3},
    {BEHIND, true, false, AQ_BF16, AQ_BF16, "split", "60%", 1},
    {BEFORE, false, true, AQ_BF16, AQ_Q4, "device", "50%", 1},
    {BEFORE, false, false, AQ_F32, AQ_Q4, "host", "50%", 2},
    {BEHIND, false, false, AQ_BF16, AQ_Q8, "split", "70%", 3},
    {BEFORE, true, false, AQ_F32, AQ_Q8, "device", "1.0", 2},
    {GATED, false, false, AQ_F32, AQ_F32, "device", "100%", 1},
    {GATED, false, true, AQ_BF16, AQ_BF16, "host", "45%", 2},
    {GATED, true, false, AQ_BF16, AQ_Q4, "split", "60%", 2},
    {GATED, false, false, AQ_F32, AQ_Q8, "device", "70%", 3},
    {PARALLEL, false, false, AQ_F32, AQ_F16, "device", "50%", 2},
    {PARALLEL, false, true, AQ_BF16, AQ_BF16, "host", "1", 1},
};

static void tokens_are_the_same_bits(void **state)
{
    static struct told want, got;
    for (uint32_t i = 0; i < AQ_ARRAY_LEN(examples); i++) {
        const struct example *x = &examples[i];
        char difference[256];
        run(&want, x, NULL);
        run(&got, x, x->share);
        assert_int_equal(want.products, 0);
        /* In each layer, for each micro-batch. */
        assert_int_equal(got.products, 3 * models[x->model].shared * x->micro_batches);
        assert_int_equal(got.merges, got.products);
        if (!crowd_same(&want.crowd, &got.crowd, difference, sizeof(difference)))
            fail_msg("example %u: %s", i, difference);
    }
}

static void the_hosts_panels_do_not_cross_the_link(void **state)
{
    static struct told none, half, all;
    struct example x = examples[1];
    run(&none, &x, "0");
    run(&half, &x, "50%");
    run(&all, &x, "100%");
    assert_int_equal(none.products, 0);
    assert_true(none.weights_moved > 0 && all.weights_moved == 0);
    /* Shares are rounded to panels, of which a step has few here. */
    assert_in_range(half.weights_moved, none.weights_moved / 3, 2 * none.weights_moved / 3);
    assert_true(half.rows_moved > none.rows_moved && all.rows_moved > half.rows_moved);
}

/* The columns that it lists are those of the panels that do not stream, each once. */
static void ranges_are_the_panels_that_do_not_stream(void **state)
{
    static const enum aq_op_kind kinds[] = {AQ_OP_PRE, AQ_OP_POST, AQ_OP_MLP_UP, AQ_OP_MLP_DOWN};
    struct crowd crowd;
    struct aq_engine_opts o = {.shape = paths[BEHIND],
                               .random_weights = true,
                               .compute = AQ_F32,
                               .weight_format = AQ_F32,
                               .kv_format = AQ_F16,
                               .threads = 1,
                               .host_memory = AQ_GIB,
                               .emulate_device = 256 * AQ_MIB,
                               .placement = placed("weights=20/80/0"),
                               .host_products = multiplied("0.5")};
    struct aq_engine *e;
    struct aq_err err;
    crowd_draw(&crowd, 11, SEQUENCES, PROMPT, TOKENS, VOCAB);
    if (aq_engine_open(&e, &o, &err) < 0 || aq_engine_plan(e, &crowd.work, &err) < 0)
        fail_msg("%s", err.text);
    const struct aq_block *b = aq_engine_block(e);
    const struct aq_model_steps *steps = aq_engine_steps(e);
    uint32_t found = 0, panels = 0;
    for (uint32_t j = 0; j < steps->step_count; j++) {
        for (uint32_t m = 0; m < steps->step[j].matrix_count; m++)
            panels += b->stream.split[aq_matrix_index(steps, j, m)].on_host;
        for (uint32_t i = 0; i < AQ_ARRAY_LEN(kinds); i++) {
            struct aq_host_product h = {0};
            if (!aq_host_product_find(&h, &b->stream, steps, &b->plan, kinds[i], j))
                continue;
            uint32_t at = 0;
            struct aq_prim_list room, list = *aq_op_prims(&room, kinds[i], &steps->step[j]);
            for (uint32_t r = 0; r < h.range_count; r++) {
                const struct aq_host_range *x = &h.range[r];
                const struct aq_prim *p = &list.prim[h.products.first];
                const struct aq_matrix_desc *d = &steps->step[j].matrix[p->matrix[x->place]];
                assert_int_equal(x->at, at);
                assert_int_equal(x->first % AQ_PANEL_ROWS, 0);
                assert_true(x->first + x->rows <= d->rows && x->column >= x->first);
                at += x->rows;
                found += aq_panel_count(x->rows);
            }
            assert_int_equal(h.columns, at);
        }
    }
    assert_true(found > 0);
    assert_int_equal(found, panels);
    aq_engine_close(e);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(tokens_are_the_same_bits),
    cmocka_unit_test(the_hosts_panels_do_not_cross_the_link),
    cmocka_unit_test(ranges_are_the_panels_that_do_not_stream),
};

int main(void)
{
    return cmocka_run_group_tests(tests, set_up, tear_down) ? 1 : 0;
}
