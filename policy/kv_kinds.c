/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/kv_kinds.h"

#include "base/units.h"
#include "policy/kv_read.h"

#include <assert.h>
#include <stdio.h>

struct aq_kv_policy aq_kv_kind_policy(const struct aq_kv_kind *k, const struct aq_kv_policy *user)
{
    struct aq_kv_policy p = *user;
    if (!k->chooses)
        p.read = 0;
    if (!k->own)
        return p;
    return k->window ? aq_kv_policy_window(k->window) : (struct aq_kv_policy){0};
}

void aq_kv_kind_limits(struct aq_kv_limits *ret, const struct aq_kv_kinds *kinds, uint32_t kind,
                       const struct aq_kv_policy *user, uint32_t prompt, uint32_t max_new)
{
    const struct aq_kv_kind *k = &kinds->kind[kind];
    struct aq_kv_policy p = aq_kv_kind_policy(k, user);
    aq_kv_policy_limits(ret, &p, prompt, max_new, k->layer, kinds->layers);
}

bool aq_kv_kinds_drop(const struct aq_kv_kinds *kinds, const struct aq_kv_policy *user)
{
    for (uint32_t i = 0; i < kinds->count; i++) {
        struct aq_kv_policy p = aq_kv_kind_policy(&kinds->kind[i], user);
        if (aq_kv_policy_drops(&p))
            return true;
    }
    return false;
}

uint64_t aq_kv_kinds_runs(const struct aq_kv_kinds *kinds)
{
    uint64_t runs = 0;
    for (uint32_t i = 0; i < kinds->count; i++)
        runs += (uint64_t)kinds->kind[i].layers * kinds->kind[i].runs;
    return runs;
}

/* What tells the kinds of a model's layers apart. */
struct maker {
    struct aq_kv_kinds *kinds;
    const struct aq_kv_policy *user;
    uint32_t total_max;
    bool differ; /* each layer that follows the policy has limits of its own */
};

/* A layer as a kind whose slots are not known yet.  A window as long as the longest sequence leaves
 * nothing out.  Layers for which there is no kind left keep all keys, too; `room`: there is one. */
static struct aq_kv_kind like(const struct maker *m, const struct aq_step_desc *d, bool room)
{
    uint32_t window = d->window;
    bool grows = m->user->residual.tokens > 0; /* codes hold all that a window leaves out */
    struct aq_kv_kind k = {.layer = d->layer, .own = window > 0, .window = window};
    /* A layer with a window never chooses, whatever the longest sequence is. */
    bool chooses = !window && aq_kv_read_chooses(m->user->read, m->total_max) &&
                   d->layer >= m->user->read_dense;
    k.chooses = chooses;
    if (room && (window ? window < m->total_max && !grows : m->differ))
        return k;
    k.window = 0;
    k.own = window ? aq_kv_policy_drops(m->user) || window < m->total_max : m->differ;
    k.chooses = chooses && !k.own;
    return k;
}

static uint32_t find(const struct maker *m, const struct aq_kv_kind *k)
{
    const struct aq_kv_kinds *kinds = m->kinds;
    uint32_t i = 0;
    while (i < kinds->count &&
           (kinds->kind[i].own != k->own || kinds->kind[i].chooses != k->chooses ||
            kinds->kind[i].window != k->window || (m->differ && !k->own)))
        i++;
    return i;
}

static void add_layer(struct maker *m, const struct aq_step_desc *d)
{
    struct aq_kv_kinds *kinds = m->kinds;
    struct aq_kv_kind k = like(m, d, true);
    uint32_t i = find(m, &k);
    assert(d->layer < kinds->layers && d->layer < AQ_LAYERS_MAX);
    /* Two kinds are for the layers that keep all keys and for those that follow the policy, which
     * may be two again: rows of some choose what they read. */
    if (i == kinds->count && i >= AQ_KV_KINDS_MAX - 2 - (m->user->read > 0)) {
        k = like(m, d, false);
        i = find(m, &k);
    }
    if (i == kinds->count)
        kinds->kind[kinds->count++] = k;
    kinds->kind[i].layers++;
    kinds->of[d->layer] = (uint8_t)i;
}

void aq_kv_kinds_of(struct aq_kv_kinds *ret, const struct aq_kv_policy *user,
                    const struct aq_model_steps *m, const struct aq_kv_lengths *lengths)
{
    struct aq_kv_most most[AQ_LAYERS_MAX], own;
    struct maker maker = {.kinds = ret, .user = user, .total_max = lengths->total_max};
    *ret = (struct aq_kv_kinds){.layers = m->layers,
                                .unpaged = aq_kv_residual_unpaged(&user->residual)};
    maker.differ = aq_kv_policy_most(most, user, lengths, m->layers, m->kv_heads);
    for (uint32_t j = 0; j < m->step_count; j++) {
        if (m->step[j].kind == AQ_STEP_ATTENTION)
            add_layer(&maker, &m->step[j]);
    }
    for (uint32_t i = 0; i < ret->count; i++) {
        struct aq_kv_kind *k = &ret->kind[i];
        struct aq_kv_policy p = aq_kv_kind_policy(k, user);
        const struct aq_kv_most *of = &most[k->layer];
        if (k->own) {
            aq_kv_policy_most(&own, &p, lengths, 1, m->kv_heads);
            of = &own;
        }
        k->slots = of->slots;
        k->head_slots = of->head;
        k->runs = aq_kv_policy_runs(&p, of, m->kv_heads);
        ret->slots = k->slots > ret->slots ? k->slots : ret->slots;
        ret->runs = k->runs > ret->runs ? k->runs : ret->runs;
    }
}

bool aq_kv_windows_text(char *dst, size_t dst_bytes, const struct aq_model_steps *m)
{
    uint32_t windowed = 0, least = UINT32_MAX, most = 0;
    dst[0] = '\0';
    for (uint32_t j = 0; j < m->step_count; j++) {
        uint32_t window = m->step[j].window;
        windowed += window > 0;
        least = window && window < least ? window : least;
        most = window > most ? window : most;
    }
    if (windowed && least == most)
        snprintf(dst, dst_bytes, "%u of %u layers keep their own window of %u", windowed, m->layers,
                 most);
    else if (windowed)
        snprintf(dst, dst_bytes, "%u of %u layers keep their own windows of %u to %u", windowed,
                 m->layers, least, most);
    return windowed > 0;
}

bool aq_kv_layers_differ_text(char *dst, size_t dst_bytes, const struct aq_kv_kinds *kinds,
                              uint64_t run_bytes)
{
    char bytes[AQ_SIZE_TEXT_MAX];
    uint32_t least = UINT32_MAX, most = 0, layers = 0;
    double sum = 0;
    dst[0] = '\0';
    for (uint32_t i = 0; i < kinds->count; i++) {
        const struct aq_kv_kind *k = &kinds->kind[i];
        if (k->own)
            continue;
        least = k->slots < least ? k->slots : least;
        most = k->slots > most ? k->slots : most;
        sum += (double)k->layers * k->slots;
        layers += k->layers;
    }
    if (most > least)
        snprintf(dst, dst_bytes,
                 "%u layers hold at most %u to %u slots, %.1f on average: %s a "
                 "sequence",
                 layers, least, most, sum / layers,
                 aq_format_size(bytes, aq_kv_kinds_runs(kinds) * run_bytes));
    return most > least;
}
