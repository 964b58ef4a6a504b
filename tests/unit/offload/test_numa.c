/* SPDX-License-Identifier: Apache-2.0
 * Memory nodes: the decision on machines made up here, and the scope on the machine at hand. */
#include "base/types.h"
#include "config.h"
#include "offload/numa.h"
#include "tests/test.h"

#include <string.h>
#if AQ_HAVE_NUMA
#include <numaif.h>
#include <sys/mman.h>
#endif

static struct aq_numa decide(struct aq_numa_topology t, const char *choice, int device_node)
{
    struct aq_numa_choice c;
    struct aq_numa n;
    assert_true(aq_numa_parse(choice, &c));
    aq_numa_decide(&n, &t, c, device_node);
    assert_non_null(n.why);
    return n;
}

static void assert_target(struct aq_numa_target t, const char *want)
{
    char text[64];
    assert_string_equal(aq_numa_describe(text, sizeof(text), &t), want);
}

static void modes_are_auto_off_and_numbers(void **state)
{
    (void)state;
    struct aq_numa_choice c;
    assert_true(aq_numa_parse("auto", &c) && c.mode == AQ_NUMA_AUTO);
    assert_true(aq_numa_parse("off", &c) && c.mode == AQ_NUMA_OFF);
    assert_true(aq_numa_parse("12", &c) && c.mode == AQ_NUMA_NODE && c.node == 12);
    const char *bad[] = {"", "on", "-1", "1x", "0x1", " 1", "99999", "autos"};
    for (size_t i = 0; i < AQ_ARRAY_LEN(bad); i++)
        assert_false(aq_numa_parse(bad[i], &c));
}

static void one_node_is_left_alone(void **state)
{
    (void)state;
    struct aq_numa n = decide((struct aq_numa_topology){NULL, 1, 1, false}, "auto", 0);
    assert_target(n.large, "anywhere");
    assert_target(n.staged, "anywhere");
}

static void auto_prefers_the_device_then_the_cpus(void **state)
{
    (void)state;
    struct aq_numa_topology t = {NULL, 0xb, 0x8, false};
    assert_target(decide(t, "auto", 1).large, "node 1");
    assert_target(decide(t, "auto", 1).staged, "node 1");
    assert_target(decide(t, "auto", -1).large, "node 3");
    /* A device on a node that may not be used. */
    assert_target(decide(t, "auto", 2).large, "node 3");
    t.cpu_nodes = 0xb;
    assert_target(decide(t, "auto", -1).large, "nodes 0-1,3 interleaved");
    t.cpu_nodes = 0x4;
    assert_target(decide(t, "auto", -1).large, "anywhere");
}

static void a_policy_from_outside_is_kept_unless_a_node_is_named(void **state)
{
    (void)state;
    struct aq_numa_topology t = {NULL, 3, 3, true};
    assert_target(decide(t, "auto", -1).large, "anywhere");
    assert_target(decide(t, "1", -1).large, "node 1");
}

static void off_and_what_cannot_be_had_change_nothing(void **state)
{
    (void)state;
    struct aq_numa_topology t = {NULL, 3, 3, false};
    assert_target(decide(t, "off", 1).large, "anywhere");
    assert_target(decide(t, "2", 1).large, "anywhere");
    assert_target(decide(t, "640", 1).large, "anywhere");
    t.reason = "made up";
    assert_target(decide(t, "1", 1).large, "anywhere");
    assert_string_equal(decide(t, "1", 1).why, "made up");
}

struct bound {
    struct {
        uint8_t *p;
        size_t bytes;
        uint32_t node;
    } at[8];
    uint32_t count;
};

static void note(void *user, void *p, size_t bytes, uint32_t node)
{
    struct bound *b = user;
    b->at[b->count].p = p;
    b->at[b->count].bytes = bytes;
    b->at[b->count++].node = node;
}

static void several_nodes_share_by_their_cpus(void **state)
{
    (void)state;
    struct aq_numa_topology t = {.memory_nodes = 0xa, .cpu_nodes = 0xb};
    struct aq_numa n = decide(t, "auto", -1);
    struct bound b = {.count = 0};
    t.cpus[0].bits[0] = 0xff;
    t.cpus[1].bits[0] = 0xf00;
    t.cpus[3].bits[15] = 0xfff;
    aq_numa_part(&n, &t, 1);
    assert_target(n.large, "nodes 1,3 interleaved"); /* not a worker for each */
    aq_numa_part(&n, &t, 8);
    assert_target(n.large, "nodes 1,3, a part each");
    assert_target(n.staged, "nodes 1,3 interleaved");
    assert_int_equal(n.groups.count, 2);
    assert_int_equal(n.groups.end[0], 2); /* 4 of 16 CPUs */
    assert_int_equal(n.groups.end[1], 8);
    assert_int_equal(n.cpus[1].bits[15], 0xfff);
    n.bind = note;
    n.bind_user = &b;
    uint8_t *p = (uint8_t *)(uintptr_t)4096;
    aq_numa_bind_parts(&n, p, 10, 100);
    assert_int_equal(b.count, 2);
    assert_true(b.at[0].p == p && b.at[0].bytes == 200 && b.at[0].node == 1);
    assert_true(b.at[1].p == p + 200 && b.at[1].bytes == 800 && b.at[1].node == 3);
    /* What is on one node, or nowhere in particular, has no parts. */
    n = decide(t, "3", -1);
    aq_numa_part(&n, &t, 8);
    assert_target(n.large, "node 3");
    t.memory_nodes = t.cpu_nodes = 0x1ff; /* more than there may be groups */
    n = decide(t, "auto", -1);
    aq_numa_part(&n, &t, 64);
    assert_target(n.large, "nodes 0-8 interleaved");
}

static void bound_memory_prefers_its_node(void **state)
{
    (void)state;
#if AQ_HAVE_NUMA
    enum { BYTES = 64 << 10 };
    struct aq_numa_topology t;
    aq_numa_read(&t);
    if (t.reason)
        skip();
    uint32_t first = (uint32_t)__builtin_ctzll(t.memory_nodes);
    uint8_t *p = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(p != MAP_FAILED);
    aq_numa_bind(p + 4096, BYTES - 8192, first);
    p[5000] = 1;
    int policy = -1;
    unsigned long nodes[16] = {0};
    assert_int_equal(get_mempolicy(&policy, nodes, 1024, p + 5000, MPOL_F_ADDR), 0);
    if (policy == MPOL_DEFAULT)
        skip(); /* policies are forbidden here */
    assert_int_equal(policy, MPOL_PREFERRED);
    assert_int_equal(nodes[0], 1ull << first);
    assert_int_equal(get_mempolicy(&policy, NULL, 0, p, MPOL_F_ADDR), 0);
    assert_int_equal(policy, MPOL_DEFAULT); /* what is in front of it */
    munmap(p, BYTES);
#else
    skip();
#endif
}

static void descriptions_fit_their_buffer(void **state)
{
    (void)state;
    char text[9];
    struct aq_numa_target t = {AQ_NUMA_INTERLEAVE, 0x5555555555555555};
    aq_numa_describe(text, sizeof(text), &t);
    assert_string_equal(text, "nodes 0,");
}

static void a_scope_sets_the_policy_and_puts_it_back(void **state)
{
    (void)state;
    struct aq_numa_topology t;
    aq_numa_read(&t);
    assert_true(t.reason || t.memory_nodes);
    struct aq_numa_scope scope;
    struct aq_numa_target none = {0};
    aq_numa_enter(&scope, &none);
    assert_false(scope.changed);
    aq_numa_leave(&scope);
#if AQ_HAVE_NUMA
    if (t.reason)
        skip();
    unsigned long nodes[16] = {0};
    int before, inside, after;
    struct aq_numa_target first = {AQ_NUMA_PREFER, t.memory_nodes & -t.memory_nodes};
    assert_int_equal(get_mempolicy(&before, NULL, 0, NULL, 0), 0);
    aq_numa_enter(&scope, &first);
    if (!scope.changed)
        skip(); /* policies are forbidden here, as in some containers */
    assert_int_equal(get_mempolicy(&inside, nodes, 1024, NULL, 0), 0);
    assert_int_equal(inside, MPOL_PREFERRED);
    assert_int_equal(nodes[0], first.nodes);
    aq_numa_leave(&scope);
    assert_int_equal(get_mempolicy(&after, NULL, 0, NULL, 0), 0);
    assert_int_equal(after, before);
    /* Inside another scope that one's policy comes back. */
    struct aq_numa_scope inner;
    struct aq_numa_target spread = {AQ_NUMA_INTERLEAVE, t.memory_nodes};
    aq_numa_enter(&scope, &first);
    aq_numa_enter(&inner, &spread);
    assert_int_equal(get_mempolicy(&inside, NULL, 0, NULL, 0), 0);
    assert_int_equal(inside, MPOL_INTERLEAVE);
    aq_numa_leave(&inner);
    assert_int_equal(get_mempolicy(&inside, nodes, 1024, NULL, 0), 0);
    assert_int_equal(inside, MPOL_PREFERRED);
    assert_int_equal(nodes[0], first.nodes);
    aq_numa_leave(&scope);
#endif
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(modes_are_auto_off_and_numbers),
    cmocka_unit_test(one_node_is_left_alone),
    cmocka_unit_test(auto_prefers_the_device_then_the_cpus),
    cmocka_unit_test(a_policy_from_outside_is_kept_unless_a_node_is_named),
    cmocka_unit_test(off_and_what_cannot_be_had_change_nothing),
    cmocka_unit_test(several_nodes_share_by_their_cpus),
    cmocka_unit_test(bound_memory_prefers_its_node),
    cmocka_unit_test(descriptions_fit_their_buffer),
    cmocka_unit_test(a_scope_sets_the_policy_and_puts_it_back),
};
AQ_TEST_MAIN(tests)
