/* SPDX-License-Identifier: Apache-2.0
 * An engine on a machine of several memory nodes, which are made up: where weights, pages of KV and
 * workers go, and that no token depends on it. */
#include "base/prng.h"
#include "engine/core/engine_state.h"
#include "engine/exec/exec.h"
#include "tests/random_model.h"
#include "tests/temp.h"
#include "tests/test.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    VOCAB = 4096,
    CONTEXT = 128,
    SEATS = 12,
    SEQUENCES = 30,
    PROMPT = 60,
    TOKENS = 20,
    RANGES_MAX = 1024,
    WORKERS = 4,
};

/* What was said of memory, and what came out. */
static struct told {
    struct range {
        uintptr_t from, end;
        uint32_t node;
    } range[RANGES_MAX];
    uint32_t count;
    uint64_t pages, far; /* of seats, between passes; on another node than the seat's */
    uint32_t tokens[SEQUENCES][TOKENS];
    float logprobs[SEQUENCES][TOKENS];
} plain, parted;

static char model_dir[TEMP_PATH_MAX + 16], root[TEMP_PATH_MAX];

static void note(void *user, void *p, size_t bytes, uint32_t node)
{
    struct told *t = user;
    assert_true(t->count < RANGES_MAX);
    t->range[t->count++] = (struct range){(uintptr_t)p, (uintptr_t)p + bytes, node};
}

/* The node of an address; UINT32_MAX: nothing was said of it. */
static uint32_t node_of(const struct told *t, const void *p)
{
    uint32_t node = UINT32_MAX;
    for (uint32_t i = 0; i < t->count; i++) {
        if ((uintptr_t)p < t->range[i].from || (uintptr_t)p >= t->range[i].end)
            continue;
        assert_int_equal(node, UINT32_MAX); /* one range has it */
        node = t->range[i].node;
    }
    return node;
}

/* Nodes 1 and 4 of this machine's CPUs, the second with twice as many workers: on a machine of two
 * CPUs nobody can be kept from either. */
static void make_up(struct aq_numa_topology *t)
{
    cpu_set_t set;
    *t = (struct aq_numa_topology){.memory_nodes = 0x12, .cpu_nodes = 0x12};
    assert_int_equal(sched_getaffinity(0, sizeof(set), &set), 0);
    for (uint32_t cpu = 0, found = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, &set))
            continue;
        if (found++ == 0)
            t->cpus[1].bits[cpu / 64] |= 1ull << cpu % 64;
        t->cpus[4].bits[cpu / 64] |= 1ull << cpu % 64;
    }
}

/* ---- a run ---- */

static void draw(struct aq_sequence *s, struct told *t, uint32_t i)
{
    static uint32_t prompts[SEQUENCES][PROMPT];
    uint32_t count = 1 + (uint32_t)aq_prng_below(3, i, 0, PROMPT);
    for (uint32_t n = 0; n < count; n++)
        prompts[i][n] = (uint32_t)aq_prng_below(3, i, 10 + n, VOCAB);
    *s = (struct aq_sequence){.prompt = prompts[i],
                              .prompt_count = count,
                              .max_tokens = 1 + (uint32_t)aq_prng_below(3, i, 1, TOKENS),
                              .sampling = {.top_p = 1, .repetition_penalty = 1},
                              .tokens = t->tokens[i],
                              .logprobs = t->logprobs[i]};
}

/* Each seat's pages lie on the node whose workers attend it, if there were free ones. */
static void look_at_pages(const struct aq_engine *e, struct told *t)
{
    const struct aq_executor *x = e->executor;
    const struct aq_groups *groups = aq_device_groups(e->device);
    uint32_t runs = aq_kv_kinds_runs(&x->plan->kinds);
    for (uint32_t i = 0; groups->count > 1 && i < x->seats.count; i++) {
        uint32_t at = i % x->plan->shape.micro_batch, g = 0;
        if (!x->seats.seat[i].taken || !x->seats.seat[i].seen)
            continue;
        while (at >= aq_groups_first(groups, g + 1, x->plan->shape.micro_batch))
            g++;
        uint32_t node = node_of(t, aq_kv_tables(x->kv)[(size_t)i * runs]);
        assert_true(node == 1 || node == 4);
        t->pages++;
        t->far += node != e->numa.node[g];
    }
}

static void look_at_weights(const struct aq_engine *e, const struct told *t)
{
    const struct aq_model *m = e->model;
    const struct aq_groups *groups = aq_device_groups(e->device);
    uint64_t on[2] = {0};
    for (uint32_t i = 0; i < m->steps.matrix_count; i++) {
        const struct aq_weight *w = &m->weight[i];
        size_t panel = w->desc ? aq_panel_bytes(w->dtype, w->desc->k) : 0; /* else unused */
        for (uint32_t g = 0; panel && g < groups->count; g++) {
            uint64_t first = aq_groups_first(groups, g, w->resident);
            uint64_t end = aq_groups_first(groups, g + 1, w->resident);
            for (uint64_t p = first; p < end; p++) {
                const uint8_t *at = (const uint8_t *)w->data + p * panel;
                assert_int_equal(node_of(t, at), e->numa.node[g]);
                assert_int_equal(node_of(t, at + panel - 1), e->numa.node[g]);
                on[g] += panel;
            }
        }
    }
    assert_true(on[0] > 0 && on[1] > on[0]);
}

static void look_at_report(const struct aq_engine *e, const struct told *t)
{
    json_t *memory = aq_engine_memory_json(e), *host = json_object_get(memory, "host");
    const json_t *nodes = json_object_get(host, "nodes");
    assert_int_equal(json_array_size(nodes), 2);
    for (size_t i = 0; i < 2; i++) {
        const json_t *o = json_array_get(nodes, i);
        uint64_t bytes = 0;
        json_int_t node = json_integer_value(json_object_get(o, "node"));
        for (uint32_t n = 0; n < t->count; n++)
            bytes += t->range[n].node == node ? t->range[n].end - t->range[n].from : 0;
        assert_int_equal(node, i ? 4 : 1);
        assert_int_equal(json_integer_value(json_object_get(o, "bytes")), bytes);
        assert_int_equal(json_integer_value(json_object_get(o, "workers")), i ? 3 : 1);
    }
    json_decref(memory);
}

static void run(struct told *t, const struct aq_numa_topology *topology, bool drops)
{
    struct aq_engine_opts opts = {.model_dir = model_dir,
                                  .compute = -1,
                                  .weight_format = AQ_F32,
                                  .kv_format = AQ_F32,
                                  .threads = WORKERS,
                                  .host_memory = AQ_GIB,
                                  .cache_dir = root,
                                  .micro_batches = 2,
                                  .micro_batch = SEATS / 2,
                                  .refill = true};
    struct aq_kv_options h2o = {.policy = "h2o", .budget = {AQ_KV_SLOTS, 40, 0}};
    struct aq_workload w = {
        .sequences = SEQUENCES, .prompt_max = PROMPT, .total_max = PROMPT + TOKENS};
    struct aq_sequence s[SEQUENCES];
    struct aq_engine *e;
    struct aq_err err = {0};
    memset(t, 0, sizeof(*t));
    if (drops)
        assert_int_equal(aq_kv_policy_resolve(&opts.kv, &h2o, NULL), 0);
    int rc = aq_engine_open(&e, &opts, &err);
    if (rc == 0)
        aq_engine_set_seams(
            e, &(struct aq_engine_seams){.topology = topology, .bind = note, .bind_user = t});
    rc = rc < 0 ? rc : aq_engine_plan(e, &w, &err);
    rc = rc < 0 ? rc : aq_engine_load(e, &err);
    for (uint32_t i = 0; rc == 0 && i < SEQUENCES; i++) {
        draw(&s[i], t, i);
        aq_engine_submit(e, &s[i]);
    }
    for (bool worked = true; rc == 0 && worked;) {
        rc = aq_engine_pass(e, &worked, &err);
        look_at_pages(e, t);
    }
    if (rc < 0)
        fail_msg("%s", err.text);
    assert_int_equal(aq_pool_groups(e->pool)->count, topology ? 2 : 1);
    if (topology) {
        look_at_weights(e, t);
        look_at_report(e, t);
    }
    aq_engine_close(e);
}

static void each_node_has_its_part_and_tokens_are_the_same(void **state)
{
    struct aq_numa_topology topology;
    (void)state;
    make_up(&topology);
    for (int drops = 0; drops < 2; drops++) {
        run(&plain, NULL, drops);
        run(&parted, &topology, drops);
        assert_memory_equal(parted.tokens, plain.tokens, sizeof(plain.tokens));
        assert_memory_equal(parted.logprobs, plain.logprobs, sizeof(plain.logprobs));
        assert_int_equal(plain.count, 0);
        assert_true(parted.pages > 0 && parted.far * 10 <= parted.pages);
    }
}

static void take_line(void *user, enum aq_log_level level, const char *text)
{
    if (level == AQ_LOG_WARNING)
        snprintf(user, 200, "%s", text);
}

static void a_node_that_cannot_be_had_is_told(void **state)
{
    char line[200] = "";
    struct aq_log log = {take_line, line};
    struct aq_engine_opts opts = {.model_dir = model_dir,
                                  .compute = -1,
                                  .weight_format = -1,
                                  .kv_format = -1,
                                  .threads = 1,
                                  .host_memory = AQ_GIB,
                                  .cache_dir = root,
                                  .numa = {.mode = AQ_NUMA_NODE, .node = 3},
                                  .log = &log};
    struct aq_workload w = {.sequences = 1, .prompt_max = 4, .total_max = 8};
    struct aq_numa_topology topology;
    struct aq_engine *e;
    (void)state;
    make_up(&topology);
    assert_int_equal(aq_engine_open(&e, &opts, NULL), 0);
    aq_engine_set_seams(e, &(struct aq_engine_seams){.topology = &topology});
    assert_int_equal(aq_engine_plan(e, &w, NULL), 0);
    assert_int_equal(aq_engine_load(e, NULL), 0);
    assert_non_null(strstr(line, "--numa 3: memory goes where the kernel puts it: this process"));
    aq_engine_close(e);
}

/* Fewer workers than nodes, a device of its own, and what the user says. */
static void parts_are_made_for_workers_on_several_nodes_alone(void **state)
{
    struct aq_numa_topology topology;
    struct aq_numa n;
    struct aq_pool *pool;
    (void)state;
    make_up(&topology);
    struct aq_numa_choice automatic = {.mode = AQ_NUMA_AUTO}, off = {.mode = AQ_NUMA_OFF};
    assert_int_equal(aq_pool_open(&pool, 1, NULL), 0);
    aq_numa_choose(&n, &topology, automatic, -1, pool);
    assert_int_equal(n.large.kind, AQ_NUMA_INTERLEAVE);
    aq_pool_close(pool);
    assert_int_equal(aq_pool_open(&pool, 2, NULL), 0);
    aq_numa_choose(&n, &topology, automatic, 4, pool);
    assert_int_equal(n.large.kind, AQ_NUMA_PREFER);
    aq_numa_choose(&n, &topology, off, -1, pool);
    assert_int_equal(n.large.kind, AQ_NUMA_ANYWHERE);
    aq_numa_choose(&n, &topology, automatic, -1, NULL);
    assert_int_equal(n.large.kind, AQ_NUMA_INTERLEAVE);
    assert_int_equal(aq_pool_groups(pool)->count, 1);
    aq_numa_choose(&n, &topology, automatic, -1, pool);
    assert_int_equal(n.large.kind, AQ_NUMA_PARTS);
    assert_int_equal(n.staged.kind, AQ_NUMA_INTERLEAVE);
    assert_int_equal(aq_pool_groups(pool)->count, 2);
    aq_pool_close(pool);
}

static int set_up(void **state)
{
    static const struct random_model model = {RANDOM_LLAMA, 3, 192, 6, 6, 32, VOCAB, CONTEXT, 2};
    (void)state;
    temp_dir(root, "nodes");
    snprintf(model_dir, sizeof(model_dir), "%s/model", root);
    random_model_write(model_dir, &model, 3);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    return temp_remove(root);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(each_node_has_its_part_and_tokens_are_the_same),
    cmocka_unit_test(a_node_that_cannot_be_had_is_told),
    cmocka_unit_test(parts_are_made_for_workers_on_several_nodes_alone),
};

int main(void)
{
    return cmocka_run_group_tests(tests, set_up, tear_down) ? 1 : 0;
}
