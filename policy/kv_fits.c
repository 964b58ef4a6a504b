/* SPDX-License-Identifier: Apache-2.0
 * Whether a policy goes with a model: its layers, the positions it knows, and its context. */
#include "policy/kv_policy.h"

#include <errno.h>

int aq_kv_policy_check_layers(const struct aq_kv_policy *p, const struct aq_model_steps *m,
                              struct aq_err *reterr)
{
    bool chooses = !p->read;
    if (p->positions == AQ_KV_POSITIONS_CACHE && !m->rotary.dims)
        return aq_error(reterr, -EINVAL,
                        "--kv-positions cache: the model adds positions to the embedding, where no "
                        "cache can change them; it needs a model with rotary positions, or "
                        "--kv-positions text");
    for (uint32_t i = 0; i < m->step_count && !chooses; i++) {
        const struct aq_step_desc *d = &m->step[i];
        chooses = d->kind == AQ_STEP_ATTENTION && d->layer >= p->read_dense && !d->window;
    }
    if (chooses)
        return 0;
    if (p->read_dense < m->layers)
        return aq_error(reterr, -EINVAL,
                        "--kv-read %u: each of the model's %u layers behind the first %u has a "
                        "window of its own, which is read whole; leave --kv-read out",
                        p->read, m->layers - p->read_dense, p->read_dense);
    return aq_error(reterr, -EINVAL,
                    "--kv-read-dense %u: rows would read all of their keys in each of the model's "
                    "%u layers; expected fewer, such as 0, or no --kv-read",
                    p->read_dense, m->layers);
}

/* Sequences may be longer than the model's positions where what is held has room among them. */
static int check_longer(const struct aq_kv_policy *p, uint32_t context, uint32_t known,
                        struct aq_err *reterr)
{
    struct aq_kv_limits l;
    if (p->positions != AQ_KV_POSITIONS_CACHE)
        return aq_error(reterr, -EINVAL,
                        "--context %u: the model knows %u positions; only --kv-policy window with "
                        "--kv-positions cache goes on behind them",
                        context, known);
    if (!aq_kv_policy_in_slots(p))
        return aq_error(reterr, -EINVAL,
                        "--context %u: the model knows %u positions, and a share of longer "
                        "sequences may need more; expected --kv-budget or --kv-recent in slots",
                        context, known);
    aq_kv_policy_limits(&l, p, 1, 1, 0, 1);
    return l.slots <= known
               ? 0
               : aq_error(reterr, -EINVAL,
                          "--context %u: the model knows %u positions, and %u sinks and the newest "
                          "%u tokens need more; expected a smaller --kv-budget or --kv-recent",
                          context, known, l.sinks, l.recent_decode);
}

int aq_kv_policy_check_context(const struct aq_kv_policy *p, uint32_t context, uint32_t known,
                               struct aq_err *reterr)
{
    if (context > known) {
        int rc = check_longer(p, context, known, reterr);
        if (rc < 0)
            return rc;
        context = known;
    }
    const struct aq_kv_amount *const amount[] = {&p->budget, &p->heavy, &p->recent, &p->floor,
                                                 &p->drop};
    static const char *const name[] = {"--kv-budget", "--kv-heavy", "--kv-recent", "--kv-floor",
                                       "--kv-drop"};
    for (size_t i = 0; i < AQ_ARRAY_LEN(amount); i++) {
        if (amount[i]->unit == AQ_KV_SLOTS && amount[i]->slots > context)
            return aq_error(reterr, -EINVAL,
                            "%s %u: above the %u tokens of the model's context; 100%% keeps all",
                            name[i], amount[i]->slots, context);
    }
    uint32_t heavy = 0, recent = 0;
    bool slots = p->heavy.unit == AQ_KV_SLOTS && p->recent.unit == AQ_KV_SLOTS;
    if (slots && p->budget.unit == AQ_KV_UNSET)
        aq_kv_policy_split(&heavy, &recent, p, 0);
    if ((uint64_t)heavy + recent > context)
        return aq_error(reterr, -EINVAL,
                        "--kv-heavy %u and --kv-recent %u together are above the %u tokens of the "
                        "model's context; --kv-budget 100%% keeps all",
                        heavy, recent, context);
    if (p->read > context)
        return aq_error(reterr, -EINVAL,
                        "--kv-read %u: above the %u tokens of the model's context; without it rows "
                        "read all of their keys",
                        p->read, context);
    if (p->sinks > context || p->grace > context)
        return aq_error(reterr, -EINVAL, "%s %u: above the %u tokens of the model's context",
                        p->sinks > context ? "--kv-sinks" : "--kv-grace",
                        p->sinks > context ? p->sinks : p->grace, context);
    return 0;
}
