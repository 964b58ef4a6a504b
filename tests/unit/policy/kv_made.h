/* SPDX-License-Identifier: Apache-2.0
 * tests/unit/policy/kv_made.h - amounts and policies, made of what a user would give. */
#ifndef AQ_TESTS_UNIT_POLICY_KV_MADE_H
#define AQ_TESTS_UNIT_POLICY_KV_MADE_H

#include "policy/kv_policy.h"
#include "tests/test.h"

static inline struct aq_kv_amount slots(uint32_t n)
{
    return (struct aq_kv_amount){.unit = AQ_KV_SLOTS, .slots = n};
}

static inline struct aq_kv_amount share(double x)
{
    return (struct aq_kv_amount){.unit = AQ_KV_SHARE, .share = x};
}

/* Fails the test where the options are refused. */
static inline struct aq_kv_policy resolved(struct aq_kv_options o)
{
    struct aq_kv_policy p = {0};
    struct aq_err err = {0};
    if (aq_kv_policy_resolve(&p, &o, &err) < 0)
        fail_msg("%s", err.text);
    return p;
}

#endif
