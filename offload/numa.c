/* SPDX-License-Identifier: Apache-2.0 */
#include "offload/numa.h"

#include "config.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#if AQ_HAVE_NUMA
#include <numa.h>
#include <numaif.h>
#include <sched.h>
#endif

bool aq_numa_parse(const char *text, struct aq_numa_choice *ret)
{
    size_t digits = strspn(text, "0123456789");
    struct aq_numa_choice choice = {.mode = AQ_NUMA_NODE};
    if (strcmp(text, "auto") == 0)
        choice.mode = AQ_NUMA_AUTO;
    else if (strcmp(text, "off") == 0)
        choice.mode = AQ_NUMA_OFF;
    else if (digits == 0 || digits > 4 || text[digits] != '\0')
        return false;
    else
        choice.node = (uint32_t)strtoul(text, NULL, 10);
    *ret = choice;
    return true;
}

/* ---- the machine ---- */

#if AQ_HAVE_NUMA

/* Bits of more than 64 nodes, as the calls of the kernel want them. */
enum { KERNEL_NODES = 1024 };

/* Parts of less than BIND_HUGE_BYTES end where small pages do: rounded to huge ones they would be
 * much larger or smaller than they should. */
enum { PAGE = 4096, HUGE_PAGE = 2 << 20, BIND_HUGE_BYTES = 16 << 20 };

static uint64_t allowed_memory(void)
{
    unsigned long mask[KERNEL_NODES / 64] = {0};
    static_assert(AQ_NUMA_NODES_MAX == 64, "nodes are bits of one word");
    return get_mempolicy(NULL, mask, KERNEL_NODES, NULL, MPOL_F_MEMS_ALLOWED) < 0 ? 0 : mask[0];
}

/* libnuma's own, like all of it that takes memory, ends the process where there is none. */
static int node_of_cpu(int cpu)
{
    char path[64];
    for (int node = 0; node < AQ_NUMA_NODES_MAX; node++) {
        snprintf(path, sizeof(path), "/sys/devices/system/cpu/cpu%d/node%d", cpu, node);
        if (access(path, F_OK) == 0)
            return node;
    }
    return -1;
}

static void read_cpus(struct aq_numa_topology *t)
{
    cpu_set_t set;
    static_assert(CPU_SETSIZE == AQ_THREADS_MAX, "as many CPUs as threads");
    if (sched_getaffinity(0, sizeof(set), &set) < 0)
        return;
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        int node = CPU_ISSET(cpu, &set) ? node_of_cpu(cpu) : -1;
        if (node < 0)
            continue;
        t->cpu_nodes |= 1ull << node;
        t->cpus[node].bits[cpu / 64] |= 1ull << cpu % 64;
    }
}

void aq_numa_read(struct aq_numa_topology *ret)
{
    int policy = MPOL_DEFAULT;
    *ret = (struct aq_numa_topology){0};
    if (numa_available() < 0) {
        ret->reason = "the kernel knows no memory nodes, or forbids policies";
        return;
    }
    ret->memory_nodes = allowed_memory();
    read_cpus(ret);
    ret->has_policy = get_mempolicy(&policy, NULL, 0, NULL, 0) == 0 && policy != MPOL_DEFAULT;
    if (ret->memory_nodes == 0)
        ret->reason = "the kernel does not say which memory nodes may be used";
}

static bool set_policy(const struct aq_numa_target *target)
{
    unsigned long mask[KERNEL_NODES / 64] = {target->nodes};
    int mode = target->kind == AQ_NUMA_PREFER ? MPOL_PREFERRED : MPOL_INTERLEAVE;
    return set_mempolicy(mode, mask, KERNEL_NODES) == 0;
}

void aq_numa_enter(struct aq_numa_scope *scope, const struct aq_numa_target *target)
{
    *scope = (struct aq_numa_scope){0};
    static_assert(sizeof(scope->before_nodes) * 8 == KERNEL_NODES, "room for all nodes");
    if (target->kind == AQ_NUMA_ANYWHERE ||
        get_mempolicy(&scope->before, (unsigned long *)scope->before_nodes, KERNEL_NODES, NULL, 0) <
            0)
        return;
    scope->changed = set_policy(target);
}

void aq_numa_bind(void *p, size_t bytes, uint32_t node)
{
    uintptr_t each = bytes >= BIND_HUGE_BYTES ? HUGE_PAGE : PAGE, half = each / 2;
    uintptr_t from = ((uintptr_t)p + half) / each * each;
    uintptr_t end = ((uintptr_t)p + bytes + half) / each * each;
    unsigned long mask[KERNEL_NODES / 64] = {1ull << node};
    from = from < (uintptr_t)p ? ((uintptr_t)p + PAGE - 1) / PAGE * PAGE : from;
    end = end > (uintptr_t)p + bytes ? ((uintptr_t)p + bytes) / PAGE * PAGE : end;
    if (end > from) /* a wish: where the kernel refuses, pages lie where they would have lain */
        (void)mbind((void *)from, end - from, MPOL_PREFERRED, mask, KERNEL_NODES, 0);
}

void aq_numa_leave(struct aq_numa_scope *scope)
{
    if (scope->changed)
        set_mempolicy(scope->before, (unsigned long *)scope->before_nodes, KERNEL_NODES);
    scope->changed = false;
}

#else

void aq_numa_read(struct aq_numa_topology *ret)
{
    *ret = (struct aq_numa_topology){.reason = "built without libnuma"};
}

void aq_numa_enter(struct aq_numa_scope *scope, const struct aq_numa_target *target)
{
    (void)target;
    scope->changed = false;
}

void aq_numa_leave(struct aq_numa_scope *scope)
{
    (void)scope;
}

void aq_numa_bind(void *p, size_t bytes, uint32_t node)
{
    (void)p;
    (void)bytes;
    (void)node;
}

#endif

/* ---- the decision ---- */

static struct aq_numa_target prefer(uint64_t nodes)
{
    return (struct aq_numa_target){AQ_NUMA_PREFER, nodes};
}

static bool several(uint64_t nodes)
{
    return (nodes & (nodes - 1)) != 0;
}

void aq_numa_decide(struct aq_numa *ret, const struct aq_numa_topology *t,
                    struct aq_numa_choice choice, int device_node)
{
    bool device =
        device_node >= 0 && device_node < AQ_NUMA_NODES_MAX && (t->memory_nodes >> device_node & 1);
    uint64_t near = t->cpu_nodes & t->memory_nodes;
    *ret = (struct aq_numa){0};
    if (choice.mode == AQ_NUMA_OFF) {
        ret->why = "off";
    } else if (t->reason) {
        ret->why = t->reason;
    } else if (choice.mode == AQ_NUMA_NODE) {
        if (choice.node >= AQ_NUMA_NODES_MAX || !(t->memory_nodes >> choice.node & 1)) {
            ret->why = "this process may not use the memory of the node asked for";
            return;
        }
        ret->large = ret->staged = prefer(1ull << choice.node);
        ret->why = "the node asked for";
    } else if (!several(t->memory_nodes)) {
        ret->why = "there is one memory node";
    } else if (t->has_policy) {
        ret->why = "the process was started with a memory policy of its own";
    } else if (device) {
        ret->large = ret->staged = prefer(1ull << device_node);
        ret->why = "the device's node";
    } else if (near == 0) {
        ret->why = "the CPUs that may be used are on no node whose memory may be used";
    } else if (several(near)) {
        ret->large = ret->staged = (struct aq_numa_target){AQ_NUMA_INTERLEAVE, near};
        ret->why = "the nodes of the CPUs that may be used";
    } else {
        ret->large = ret->staged = prefer(near);
        ret->why = "the node of the CPUs that may be used";
    }
}

static uint32_t count_cpus(const struct aq_cpus *cpus)
{
    uint32_t count = 0;
    for (size_t i = 0; i < sizeof(cpus->bits) / sizeof(*cpus->bits); i++)
        count += (uint32_t)__builtin_popcountll(cpus->bits[i]);
    return count;
}

void aq_numa_part(struct aq_numa *io, const struct aq_numa_topology *t, uint32_t workers)
{
    struct aq_groups groups = {0};
    uint32_t node[AQ_GROUPS_MAX], cpus = 0, all = 0;
    if (io->large.kind != AQ_NUMA_INTERLEAVE)
        return;
    for (uint32_t n = 0; n < AQ_NUMA_NODES_MAX; n++) {
        if (!(io->large.nodes >> n & 1))
            continue;
        if (groups.count == AQ_GROUPS_MAX)
            return;
        node[groups.count++] = n;
        all += count_cpus(&t->cpus[n]);
    }
    for (uint32_t g = 0; g < groups.count; g++) {
        cpus += count_cpus(&t->cpus[node[g]]);
        groups.end[g] = all ? (uint32_t)(((uint64_t)workers * cpus + all / 2) / all) : 0;
        if (groups.end[g] <= (g ? groups.end[g - 1] : 0)) /* a node without a worker */
            return;
    }
    io->groups = groups;
    for (uint32_t g = 0; g < groups.count; g++) {
        io->node[g] = node[g];
        io->cpus[g] = t->cpus[node[g]];
    }
    io->large.kind = AQ_NUMA_PARTS;
}

void aq_numa_choose(struct aq_numa *ret, const struct aq_numa_topology *t,
                    struct aq_numa_choice choice, int device_node, struct aq_pool *pool)
{
    aq_numa_decide(ret, t, choice, device_node);
    if (pool)
        aq_numa_part(ret, t, aq_pool_threads(pool));
    if (ret->large.kind == AQ_NUMA_PARTS && !aq_pool_spread(pool, &ret->groups, ret->cpus))
        ret->large.kind = AQ_NUMA_INTERLEAVE;
}

void aq_numa_bind_parts(const struct aq_numa *n, void *p, uint64_t count, size_t unit)
{
    for (uint32_t g = 0; g < n->groups.count; g++) {
        uint64_t first = aq_groups_first(&n->groups, g, count);
        uint64_t end = aq_groups_first(&n->groups, g + 1, count);
        uint8_t *at = (uint8_t *)p + first * unit;
        if (n->bind)
            n->bind(n->bind_user, at, (end - first) * unit, n->node[g]);
        else
            aq_numa_bind(at, (end - first) * unit, n->node[g]);
    }
}

const char *aq_numa_describe(char *text, size_t bytes, const struct aq_numa_target *target)
{
    size_t used = 0;
    assert(bytes > 0);
    if (target->kind == AQ_NUMA_ANYWHERE) {
        snprintf(text, bytes, "anywhere");
        return text;
    }
    bool one = !several(target->nodes);
    used += (size_t)snprintf(text, bytes, one ? "node " : "nodes ");
    for (unsigned first = 0; first < AQ_NUMA_NODES_MAX && used < bytes; first++) {
        unsigned last = first;
        if (!(target->nodes >> first & 1))
            continue;
        while (last + 1 < AQ_NUMA_NODES_MAX && (target->nodes >> (last + 1) & 1))
            last++;
        const char *comma = target->nodes & ((1ull << first) - 1) ? "," : "";
        if (last > first)
            used += (size_t)snprintf(text + used, bytes - used, "%s%u-%u", comma, first, last);
        else
            used += (size_t)snprintf(text + used, bytes - used, "%s%u", comma, first);
        first = last;
    }
    if (!one && used < bytes)
        snprintf(text + used, bytes - used, "%s",
                 target->kind == AQ_NUMA_PARTS ? ", a part each" : " interleaved");
    return text;
}
