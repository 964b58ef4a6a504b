/* SPDX-License-Identifier: Apache-2.0
 * tests/kcheck/peer.h - another library's packed product, to be timed beside ours.  A peer is a
 * module of its own next to kcheck, loaded only when asked for: the checks never depend on it. */
#ifndef AQ_TESTS_KCHECK_PEER_H
#define AQ_TESTS_KCHECK_PEER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct kc_peer_shape {
    bool bf16; /* x and W bf16, else f32; y is f32 */
    uint32_t m, n, k;
    size_t cold_bytes; /* rotate over copies of the packed weights of at least this size */
};

struct kc_peer {
    const char *name;
    /* NULL when the shape or type is not offered. */
    void *(*product_open)(const struct kc_peer_shape *shape);
    void (*product_call)(void *product, uint64_t i); /* with the i-th copy of the weights */
    void (*product_close)(void *product);
};

/* The one symbol a module exports. */
extern const struct kc_peer kc_peer;

#endif
