/* SPDX-License-Identifier: Apache-2.0
 * policy/kv_kinds.h - the layers of a model by what their KV cache holds.  A layer whose attention
 * has a window holds the keys that its window sees, and no policy is asked; the other layers follow
 * the user's policy, whose limits may differ by layer.  Layers in which every sequence holds the
 * same slots, and read as much of them, are one kind, so that counts are made once for each kind
 * and times its layers.  With
 * a residual (kv_residual.h) caches only grow, and layers with a window hold all keys, too.
 * Pure. */
#ifndef AQ_POLICY_KV_KINDS_H
#define AQ_POLICY_KV_KINDS_H

#include "policy/kv_policy.h"
#include "policy/steps.h"

enum { AQ_KV_KINDS_MAX = 256 };

struct aq_kv_kind {
    uint32_t layer;  /* its first layer, which stands for all of them */
    uint32_t layers; /* how many it has */
    bool own;        /* these layers hold what their window sees, and follow no policy */
    bool chooses;    /* decoded rows may read a part (policy/kv_read.h) */
    uint32_t
        window; /* of such layers; 0: all keys stay, and attention leaves out what is outside */
    /* Most slots that a sequence comes to hold in each head, or on average where heads share them,
     * in one head, and the runs of these slots. */
    uint32_t slots, head_slots, runs;
};

struct aq_kv_kinds {
    uint32_t count, layers;
    uint32_t slots, runs;      /* of the kind that holds most */
    uint32_t unpaged;          /* newest slots that take no page: of KIVI's formats */
    uint8_t of[AQ_LAYERS_MAX]; /* the kind of each layer */
    struct aq_kv_kind kind[AQ_KV_KINDS_MAX];
};

/* The kinds of a model's layers under the user's policy, in a workload of these lengths. */
void aq_kv_kinds_of(struct aq_kv_kinds *ret, const struct aq_kv_policy *user,
                    const struct aq_model_steps *m, const struct aq_kv_lengths *lengths);

static inline const struct aq_kv_kind *aq_kv_kinds_at(const struct aq_kv_kinds *kinds,
                                                      uint32_t layer)
{
    return &kinds->kind[kinds->of[layer]];
}

/* Of so many slots, those that take pages. */
static inline uint64_t aq_kv_kinds_paged(const struct aq_kv_kinds *kinds, uint64_t slots)
{
    return slots > kinds->unpaged ? slots - kinds->unpaged : 0;
}

/* The policy that the layers of a kind follow. */
struct aq_kv_policy aq_kv_kind_policy(const struct aq_kv_kind *k, const struct aq_kv_policy *user);
/* The same: the user's own where nothing differs, else in *room. */
static inline const struct aq_kv_policy *aq_kv_kind_policy_in(struct aq_kv_policy *room,
                                                              const struct aq_kv_kind *k,
                                                              const struct aq_kv_policy *user)
{
    if (!k->own && (k->chooses || !user->read))
        return user;
    *room = aq_kv_kind_policy(k, user);
    return room;
}
/* The limits of one sequence in the layers of kind number `kind`. */
void aq_kv_kind_limits(struct aq_kv_limits *ret, const struct aq_kv_kinds *kinds, uint32_t kind,
                       const struct aq_kv_policy *user, uint32_t prompt, uint32_t max_new);
/* Does any layer drop keys? */
bool aq_kv_kinds_drop(const struct aq_kv_kinds *kinds, const struct aq_kv_policy *user);
/* Runs of the longest sequence in all layers together. */
uint64_t aq_kv_kinds_runs(const struct aq_kv_kinds *kinds);

/* "18 of 36 layers keep their own window of 4096", for messages; false and the empty text where no
 * layer has a window. */
bool aq_kv_windows_text(char *dst, size_t dst_bytes, const struct aq_model_steps *m);
/* "4 layers hold at most 30 to 120 slots, 75.0 on average: 1.2 MiB a sequence" (all layers, the
 * longest sequence), for messages; false and the empty text where all layers hold as many. */
bool aq_kv_layers_differ_text(char *dst, size_t dst_bytes, const struct aq_kv_kinds *kinds,
                              uint64_t run_bytes);

#endif
