/* SPDX-License-Identifier: Apache-2.0
 * offload/numa.h - the memory nodes of buffers.  A preference, never a condition: where the
 * topology is unknown, the policy cannot be set, or there is only one node, buffers lie where the
 * kernel puts them, and a sentence says why.  Knows nodes and memory policies, not the content of
 * buffers.
 *
 * Memory is placed by the policy of the thread that touches it first, so a scope is put around the
 * allocation (aq_mem_alloc touches every page). */
#ifndef AQ_OFFLOAD_NUMA_H
#define AQ_OFFLOAD_NUMA_H

#include "base/err.h"

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
};
void aq_numa_read(struct aq_numa_topology *ret);

enum aq_numa_kind {
    AQ_NUMA_ANYWHERE,   /* the kernel's choice: nothing is changed */
    AQ_NUMA_PREFER,     /* on one node as long as it has free memory */
    AQ_NUMA_INTERLEAVE, /* page by page over several */
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
};

/* Decides; pure.  device_node: the node that the device hangs on, -1: none or unknown.
 *   auto  one node: nothing.  A policy that is there already: kept.  A device: everything prefers
 *         its node.  Otherwise the nodes of the allowed CPUs: preferred when it is one, interleaved
 *         over when they are several.
 *   off   nothing
 *   N     everything prefers node N; nothing when this process may not use it */
void aq_numa_decide(struct aq_numa *ret, const struct aq_numa_topology *topology,
                    struct aq_numa_choice choice, int device_node);

/* "anywhere", "node 1", "nodes 0,2-3 interleaved"; returns text. */
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
