/* SPDX-License-Identifier: Apache-2.0
 * engine/options/kv.h - the KV policy's options: their notation, and the policy they make together.
 */
#ifndef AQ_ENGINE_OPTIONS_KV_H
#define AQ_ENGINE_OPTIONS_KV_H

#include "engine/options/options.h"
#include "policy/kv_policy.h"

/* "0.2", "20%", "100%", "1.0": a share; "256": slots.  Of a whole budget "1" is neither: it is
 * refused by the question what was meant; of a part it is one slot.  -EINVAL. */
int aq_kv_amount_parse(struct aq_kv_amount *ret, const char *label, const char *text, bool part,
                       struct aq_err *reterr);

/* The policy that options ask for; -EINVAL says which of them do not go together. */
int aq_options_kv_policy(struct aq_kv_policy *ret, const struct aq_options *o,
                         struct aq_err *reterr);

/* -EINVAL, always: a format of KIVI's where a device has memory of its own. */
int aq_kv_format_refused(enum aq_dtype format, struct aq_err *reterr);

/* -EINVAL: the policy is not one that a GPU can run. */
int aq_kv_policy_check_gpu(const struct aq_kv_policy *p, struct aq_err *reterr);

/* {"name", "budget", "heavy", "recent": text or null, "sinks", "grace", "decay", "group"}, with
 * "floor" where heads share, "decode", "drop" and "history" where keys are dropped in bulk,
 * "residual" and "residual_rule" in KIVI's formats: what was resolved.  New reference. */
json_t *aq_kv_policy_json(const struct aq_kv_policy *p);

/* "avg:5", "max:7" or "none": what neighbours add to a token's score. */
int aq_kv_pool_parse(enum aq_kv_pool *ret_pool, uint32_t *ret_width, const char *label,
                     const char *text, struct aq_err *reterr);
/* What each head keeps for itself where heads share: "mix:20%", "reserve:20%", or "20%" and "4" as
 * reserve. */
int aq_kv_floor_parse(struct aq_kv_amount *ret, enum aq_kv_floor *ret_kind, const char *label,
                      const char *text, struct aq_err *reterr);
/* "uniform", "pyramid:20" or "rising:20": how a budget is spread over layers. */
int aq_kv_layers_parse(enum aq_kv_layers *ret_layers, uint32_t *ret_beta, const char *label,
                       const char *text, struct aq_err *reterr);

#endif
