/* SPDX-License-Identifier: Apache-2.0
 * kernels/cpu/read.h - reading a part of the keys: where bounds lie, and the choice among
 * head-blocks whose worth is known.  Shared by every version, so that none may choose other
 * head-blocks than another. */
#ifndef AQ_KERNELS_CPU_READ_H
#define AQ_KERNELS_CPU_READ_H

#include "kernels/cpu/scratch.h"

#include <assert.h>
#include <string.h>

/* The least of channel 0 of head-block 0 of a group; channel d is 2 * AQ_KV_BOUND_BLOCKS numbers
 * further, the greatest AQ_KV_BOUND_BLOCKS. */
static inline size_t aq_read_group(uint32_t groups, uint32_t head, uint32_t dim, uint32_t group)
{
    return aq_kv_bound_numbers(dim, groups) * head + aq_kv_bound_numbers(dim, group);
}

/* A worker's scratch while it chooses for one head. */
struct aq_read_room {
    float *q;       /* [q_per_kv][dim], scaled */
    uint32_t *side; /* [q_per_kv][dim]: where in a group is what q is multiplied by */
    float *u;       /* [q_per_kv][padded] */
    float *worth;   /* [padded] */
    size_t padded;  /* head-blocks of whole groups */
};

/* Lays out the scratch, and scales the queries of a head. */
static inline struct aq_read_room aq_read_open(void *scratch, size_t bytes,
                                               const struct aq_kv_choices *c,
                                               const struct aq_kv_choice *choice, uint32_t head)
{
    size_t numbers = (size_t)c->q_per_kv * c->head_dim;
    struct aq_read_room r = {.q = scratch};
    r.padded = (size_t)aq_kv_bound_groups(choice->blocks) * AQ_KV_BOUND_BLOCKS;
    r.side = (uint32_t *)(r.q + numbers);
    r.u = (float *)(r.side + numbers);
    r.worth = r.u + c->q_per_kv * r.padded;
    assert((size_t)((uint8_t *)(r.worth + r.padded) - (uint8_t *)scratch) <= bytes);
    const float *q = c->q + choice->row * c->q_stride + head * numbers;
    for (size_t i = 0; i < numbers; i++) {
        r.q[i] = q[i] * c->scale;
        uint32_t channel = (uint32_t)(i % c->head_dim) * 2 * AQ_KV_BOUND_BLOCKS;
        r.side[i] = channel + (r.q[i] >= 0 ? AQ_KV_BOUND_BLOCKS : 0);
    }
    return r;
}

/* Numbers in whose order worths are, as integers: no worth is negative, and what is no number
 * counts as infinite. */
static inline uint32_t aq_read_key(float worth)
{
    const float infinity = __builtin_inff();
    uint32_t bits;
    worth = worth < infinity ? worth : infinity;
    memcpy(&bits, &worth, sizeof(bits));
    return bits;
}

/* The choice: worth [blocks] is lost. */
static inline void aq_read_choose(const struct aq_kv_choice *c, uint32_t head, float *worth)
{
    uint32_t *chosen = c->chosen + (size_t)head * c->stride, blocks = c->blocks, least = 0;
    int32_t *key = (int32_t *)(void *)worth;
    assert(c->keep >= 2 && c->keep <= blocks && c->keep <= c->stride);
    for (uint32_t b = 0; b < blocks; b++)
        key[b] = (int32_t)aq_read_key(worth[b]);
    key[0] = key[blocks - 1] = INT32_MAX;
    /* The keep-th highest key, bit by bit: the highest number that as many keys reach. */
    for (uint32_t bit = 1u << 30; bit; bit >>= 1) {
        int32_t border = (int32_t)(least | bit);
        uint32_t reach = 0;
        for (uint32_t b = 0; b < blocks; b++)
            reach += key[b] >= border;
        least = reach >= c->keep ? least | bit : least;
    }
    uint32_t above = 0, equal = 0, count = 0;
    for (uint32_t b = 0; b < blocks; b++) {
        above += key[b] > (int32_t)least;
        equal += key[b] == (int32_t)least;
    }
    uint32_t passed = equal - (c->keep - above); /* the first of equal ones */
    for (uint32_t b = 0; b < blocks; b++) {
        bool tied = key[b] == (int32_t)least;
        if (key[b] < (int32_t)least || (tied && passed)) {
            passed -= tied;
            continue;
        }
        chosen[count++] = b;
    }
    assert(count == c->keep);
}

#endif
