/* SPDX-License-Identifier: Apache-2.0
 * offload/numa.h - the memory nodes of buffers.  A preference, never a condition: where the
 * topology is unknown, the policy cannot be set, or there is only one node, buffers lie where the
 * kernel puts them, and a sentence says why.  Knows nodes and memory policies, not the content of
 * buffers.
 *
 * Memory is placed by the policy of the thread that touches it first, so a scope is put around the
 * allocation (aq_mem_alloc touches every page).
 *
 * Where one process computes on several nodes, weights and KV are cut into parts, one for each
 * node, and workers are put on nodes in the same proportion (base/threads.h): each reads nearly all
 * that it reads from its own node, and no byte of a result depends on it. */
#ifndef AQ_OFFLOAD_NUMA_H
#define AQ_OFFLOAD_NUMA_H

#include "base/err.h"
#include "base/threads.h"

#include <stdbool.h>
#include <stdint.h>

enum { AQ_NUMA_NODES_MAX = 64 }; /* nodes beyond are not used */

/* --numa: "auto", "off", or a node's number. */
enum aq_numa_mode { AQ_NUMA_AUTO, AQ_NUMA_OFF, AQ_NUMA_NODE };
struct aq_numa_choice {
    enum aq_numa_mode mode;
    uint32_t node; /* of AQ_NUMA_NODE */
};
/* False when it is none of them. */
bool aq_numa_parse(const char *text, struct aq_numa_choice *ret);

/* The memory nodes as this process sees them.  Sets of nodes are bits. */
struct aq_numa_topology {
    const char *reason;    /* why memory cannot be placed; NULL: it can.  A static string */
    uint64_t memory_nodes; /* nodes whose memory the process may use */
    uint64_t cpu_nodes;    /* nodes whose CPUs the process may run on */
    bool has_policy;       /* started with a policy of its own, as numactl sets it */
    struct aq_cpus cpus[AQ_NUMA_NODES_MAX]; /* of each node those that the process may run on */
};
void aq_numa_read(struct aq_numa_topology *ret);

enum aq_numa_kind {
    AQ_NUMA_ANYWHERE,   /* the kernel's choice: nothing is changed */
    AQ_NUMA_PREFER,     /* on one node as long as it has free memory */
    AQ_NUMA_INTERLEAVE, /* page by page over several */
    AQ_NUMA_PARTS,      /* a part on each of several; what has no parts is interleaved */
};

struct aq_numa_target {
    enum aq_numa_kind kind;
    uint64_t nodes; /* one bit for PREFER, several for INTERLEAVE */
};

/* Placement of buffers. */
struct aq_numa {
    struct aq_numa_target large;  /* weights, KV: read by all cores */
    struct aq_numa_target staged; /* pinned memory and staging rings: next to the device */
    const char *why;              /* a clause for people; a static string */
    /* Of PARTS: groups of workers, each group's node and CPUs. */
    struct aq_groups groups;
    uint32_t node[AQ_GROUPS_MAX];
    struct aq_cpus cpus[AQ_GROUPS_MAX];
    /* Tests: in the place of aq_numa_bind(). */
    void (*bind)(void *user, void *p, size_t bytes, uint32_t node);
    void *bind_user;
};

/* Decides; pure.  device_node: the node that the device hangs on, -1: none or unknown.
 *   auto  one node: nothing.  A policy that is there already: kept.  A device: everything prefers
 *         its node.  Otherwise the nodes of the allowed CPUs: preferred when it is one, interleaved
 *         over when they are several.
 *   off   nothing
 *   N     everything prefers node N; nothing when this process may not use it */
void aq_numa_decide(struct aq_numa *ret, const struct aq_numa_topology *topology,
                    struct aq_numa_choice choice, int device_node);

/* Makes parts of what decide would interleave, for so many workers that products and attention run
 * on: groups in proportion to the nodes' CPUs.  Pure.  Nothing changes where there are fewer
 * workers than nodes, or more than AQ_GROUPS_MAX nodes. */
void aq_numa_part(struct aq_numa *io, const struct aq_numa_topology *topology, uint32_t workers);
/* Decides, and puts the workers of a pool that reads large buffers on their nodes if these are in
 * parts; NULL: nobody reads them so, and they are not. */
void aq_numa_choose(struct aq_numa *ret, const struct aq_numa_topology *topology,
                    struct aq_numa_choice choice, int device_node, struct aq_pool *pool);
/* Says which node the whole pages in [p, p + bytes) are for, which nobody has touched.  Large parts
 * begin and end where huge pages do. */
void aq_numa_bind(void *p, size_t bytes, uint32_t node);
/* The same for each group's part of `count` things of `unit` bytes each at p. */
void aq_numa_bind_parts(const struct aq_numa *n, void *p, uint64_t count, size_t unit);

/* "anywhere", "node 1", "nodes 0,2-3 interleaved", "nodes 0-1, a part each"; returns text. */
const char *aq_numa_describe(char *text, size_t bytes, const struct aq_numa_target *target);

/* The calling thread's policy, between enter and leave, for memory that it touches first.  Enter
 * and leave come in pairs on one thread; where the kernel refuses, nothing changes. */
struct aq_numa_scope {
    bool changed;
    int before;
    uint64_t before_nodes[16];
};
void aq_numa_enter(struct aq_numa_scope *scope, const struct aq_numa_target *target);
void aq_numa_leave(struct aq_numa_scope *scope);

#endif
