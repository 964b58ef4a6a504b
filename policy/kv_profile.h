/* SPDX-License-Identifier: Apache-2.0
 * policy/kv_profile.h - a rule for each head, found from its prompt (FastGen, arXiv 2310.01801,
 * whose authors have released no program; the order of the details is that of the one that runs,
 * AnswerDotAI/cold-compress).  Of a prompt of n tokens, with a[i][j] the attention of query i to
 * key j, the mean over the query heads of the KV head:
 *   all[j]  = sum over i >= j of a[i][j];   band[j] = the same of i - j < local
 *   rules, in this order, each with what the one before it keeps:
 *     special    the first `sinks` tokens and special ones
 *     punct      and tokens of punctuation
 *     frequent   and of the others the `frequent` largest all[j] / (n - j)
 *     local      and the newest `local`, among which no frequent ones are sought
 *     full       all
 *   a rule keeps S at the last query, and the mass (sum over j in S of all[j] + for local the sum
 *   over the others of band[j]) / n: each row of the prompt saw the tokens that were newest then.
 * A head has the first rule whose mass is at least `mass`.  Of equal keys the later one stays.
 * Where what heads keep of a prompt has a cap (`heavy_prompt`: the least of it and n), a head whose
 * rule keeps more has the last of the rules before it that does not; if none is left, the first
 * `sinks` tokens and the newest of the special ones.
 *
 * Rows behind the prompt find at most `frequent` tokens (0 before that rule) that are neither of
 * the first, nor of a class that the rule keeps, nor among the newest `local` positions, the row's
 * own being one of them (before that rule: but the row's own).  Where there is one more, it is the
 * one of the lowest score, the sum of the attention that it got, that gives way.  Pure. */
#ifndef AQ_POLICY_KV_PROFILE_H
#define AQ_POLICY_KV_PROFILE_H

#include "policy/kv_policy.h"

/* Classes of tokens: bits. */
enum aq_kv_class { AQ_KV_CLASS_SPECIAL = 1, AQ_KV_CLASS_PUNCT = 2 };

/* The classes of a vocabulary's tokens; ids from `count` on have none. */
struct aq_kv_classes {
    const uint8_t *of;
    uint32_t count;
};
static inline uint8_t aq_kv_class_of(const struct aq_kv_classes *c, uint32_t id)
{
    return id < c->count ? c->of[id] : 0;
}

enum aq_kv_profile {
    AQ_KV_PROFILE_SPECIAL,
    AQ_KV_PROFILE_PUNCT,
    AQ_KV_PROFILE_FREQUENT,
    AQ_KV_PROFILE_LOCAL,
    AQ_KV_PROFILE_FULL,
    AQ_KV_PROFILE_COUNT
};
const char *aq_kv_profile_name(enum aq_kv_profile rule);

/* A head's sums over its prompt, and the classes of the prompt's tokens. */
struct aq_kv_sums {
    const float *all, *band;
    const uint8_t *classes;
    uint32_t prompt;
};

/* The mass that a rule keeps of a prompt. */
double aq_kv_profile_mass(const struct aq_kv_sums *s, const struct aq_kv_limits *l,
                          enum aq_kv_profile rule);
/* The first rule that keeps enough, or the last one before it that keeps no more than the cap. */
enum aq_kv_profile aq_kv_profile_choose(const struct aq_kv_sums *s, const struct aq_kv_limits *l);
/* What the rule keeps of the prompt, ascending; returns how many, at most heavy_prompt. */
uint32_t aq_kv_profile_keep(uint32_t *keep, const struct aq_kv_sums *s,
                            const struct aq_kv_limits *l, enum aq_kv_profile rule);

/* Does the rule keep every token of these classes?  Its score is infinite then, and no more need be
 * remembered of its class. */
bool aq_kv_profile_safe(enum aq_kv_profile rule, uint8_t classes);
/* Which of the slots gives way to the row at position `next`; UINT32_MAX: none, and the row takes
 * one more. */
uint32_t aq_kv_profile_victim(const float *score, const uint32_t *position, uint32_t len,
                              const struct aq_kv_limits *l, enum aq_kv_profile rule, uint32_t next);

/* Refuses options of other policies, and takes those of such a one, as aq_kv_policy_resolve()
 * does. */
int aq_kv_profile_check(const struct aq_kv_policy *p, const struct aq_kv_options *o,
                        struct aq_err *reterr);
int aq_kv_profile_resolve(struct aq_kv_policy *p, const struct aq_kv_options *o,
                          struct aq_err *reterr);

#endif
