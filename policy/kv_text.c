/* SPDX-License-Identifier: Apache-2.0
 * What a policy is called, part by part, in messages and reports. */
#include "policy/kv_policy.h"

#include <assert.h>
#include <stdio.h>

static const char *const group_names[] = {"sum", "mean", "max", "first", "max-of-sums"};

const char *aq_kv_group_name(enum aq_attn_group g)
{
    assert((unsigned)g < AQ_ARRAY_LEN(group_names));
    return group_names[g];
}

const char *aq_kv_amount_text(char dst[32], const struct aq_kv_amount *a)
{
    if (a->unit == AQ_KV_SHARE)
        snprintf(dst, 32, "%.9g%%", 100 * a->share);
    else
        snprintf(dst, 32, "%u", a->slots);
    return dst;
}

/* "all", "32", or "16 (not 400)" where fewer rows come between two drops. */
static const char *history_text(char dst[32], const struct aq_kv_policy *p)
{
    struct aq_kv_limits l;
    if (!p->history) {
        snprintf(dst, 32, "all");
        return dst;
    }
    snprintf(dst, 32, "%u", p->history);
    if (!aq_kv_policy_in_slots(p) || p->layers != AQ_KV_LAYERS_UNIFORM)
        return dst;
    aq_kv_policy_limits(&l, p, 1, 1, 0, 1);
    if (l.history < p->history)
        snprintf(dst, 32, "%u (not %u)", l.history, p->history);
    return dst;
}

const char *aq_kv_policy_text(char *dst, size_t dst_bytes, const struct aq_kv_policy *p)
{
    const struct aq_kv_amount *const amount[] = {&p->budget, &p->heavy, &p->recent, &p->floor};
    static const char *const name[] = {"budget", "heavy", "recent", "floor"};
    size_t used = 0;
    char text[32];
    bool any = false;
    used += (size_t)snprintf(dst, dst_bytes, "%s", aq_kv_policy_desc(p)->name);
    for (size_t i = 0; i < AQ_ARRAY_LEN(amount) && used < dst_bytes; i++) {
        if (amount[i]->unit == AQ_KV_UNSET)
            continue;
        bool mixed = amount[i] == &p->floor && p->floor_kind == AQ_KV_FLOOR_MIX;
        used += (size_t)snprintf(dst + used, dst_bytes - used, "%s %s %s%s", any ? "," : ":",
                                 name[i], mixed ? "mix:" : "", aq_kv_amount_text(text, amount[i]));
        any = true;
    }
    if (aq_kv_policy_profiled(p) && used < dst_bytes) {
        char local[32];
        used += (size_t)snprintf(dst + used, dst_bytes - used, "%s mass %g, frequent %s, local %s",
                                 any ? "," : ":", p->mass, aq_kv_amount_text(text, &p->frequent),
                                 aq_kv_amount_text(local, &p->local));
    }
    if (p->sinks && used < dst_bytes)
        used += (size_t)snprintf(dst + used, dst_bytes - used, ", sinks %u", p->sinks);
    if (p->grace && used < dst_bytes)
        used += (size_t)snprintf(dst + used, dst_bytes - used, ", grace %u", p->grace);
    if (p->decode.decay > 0 && p->decode.decay < 1 && used < dst_bytes)
        used +=
            (size_t)snprintf(dst + used, dst_bytes - used, ", decay %g", (double)p->decode.decay);
    const struct aq_kv_score *row = &aq_kv_policy_desc(p)->prompt;
    if (row->pool && used < dst_bytes)
        used += (size_t)snprintf(dst + used, dst_bytes - used, ", observe %u", p->prompt.rows);
    if (row->pool && used < dst_bytes) {
        char pool[32];
        used += (size_t)snprintf(dst + used, dst_bytes - used, ", pool %s%s",
                                 aq_kv_pool_text(pool, &p->prompt),
                                 p->prompt.pool && !p->prompt.pool_first ? " group-first" : "");
    }
    if (p->prompt.group != row->group && used < dst_bytes)
        used += (size_t)snprintf(dst + used, dst_bytes - used, ", group %s",
                                 aq_kv_group_name(p->prompt.group));
    if ((p->layers || aq_kv_policy_desc(p)->layers) && used < dst_bytes)
        used += (size_t)snprintf(dst + used, dst_bytes - used, ", layers %s",
                                 aq_kv_layers_text(text, p));
    if (p->ahead && used < dst_bytes)
        used += (size_t)snprintf(dst + used, dst_bytes - used, ", ahead %u", p->ahead);
    if (aq_kv_policy_cross(p) && used < dst_bytes)
        used += (size_t)snprintf(dst + used, dst_bytes - used, ", cross-layer %g", p->cross_layer);
    if (p->heads != aq_kv_policy_desc(p)->heads && used < dst_bytes)
        used += (size_t)snprintf(dst + used, dst_bytes - used, ", heads %s",
                                 aq_kv_heads_name(p->heads));
    if (p->bulk && used < dst_bytes)
        used += (size_t)snprintf(dst + used, dst_bytes - used, ", drop %s",
                                 aq_kv_amount_text(text, &p->drop));
    if (p->bulk && used < dst_bytes)
        used +=
            (size_t)snprintf(dst + used, dst_bytes - used, ", history %s", history_text(text, p));
    if (row->stat == AQ_ATTN_LOW && p->prompt.threshold != row->threshold && used < dst_bytes)
        used +=
            (size_t)snprintf(dst + used, dst_bytes - used, ", low %g", (double)p->prompt.threshold);
    if (p->positions && used < dst_bytes)
        used += (size_t)snprintf(dst + used, dst_bytes - used, ", positions %s",
                                 aq_kv_positions_name(p->positions));
    if (p->read && used < dst_bytes)
        snprintf(dst + used, dst_bytes - used, "%s read %u but in the first %u layers",
                 any ? "," : ":", p->read, p->read_dense);
    return dst;
}

const char *aq_kv_heads_name(enum aq_kv_heads heads)
{
    static const char *const names[] = {"uniform", "shared", "global", "profiled"};
    return names[heads];
}

const char *aq_kv_decode_name(enum aq_kv_decode decode)
{
    static const char *const names[] = {"grow", "overwrite", "bulk"};
    assert((unsigned)decode < AQ_ARRAY_LEN(names));
    return names[decode];
}

const char *aq_kv_positions_name(enum aq_kv_positions positions)
{
    static const char *const names[] = {"text", "cache"};
    assert((unsigned)positions < AQ_ARRAY_LEN(names));
    return names[positions];
}

const char *aq_kv_layers_text(char dst[32], const struct aq_kv_policy *p)
{
    if (p->layers == AQ_KV_LAYERS_UNIFORM)
        snprintf(dst, 32, "uniform");
    else
        snprintf(dst, 32, "%s:%u", p->layers == AQ_KV_LAYERS_PYRAMID ? "pyramid" : "rising",
                 p->beta);
    return dst;
}

const char *aq_kv_pool_text(char dst[32], const struct aq_kv_score *s)
{
    if (s->pool == AQ_KV_POOL_NONE)
        snprintf(dst, 32, "none");
    else
        snprintf(dst, 32, "%s:%u", s->pool == AQ_KV_POOL_AVG ? "avg" : "max", s->pool_width);
    return dst;
}
