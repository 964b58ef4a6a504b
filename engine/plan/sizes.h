/* SPDX-License-Identifier: Apache-2.0
 * engine/plan/sizes.h - how large a model is, and which machines hold it, before anything is
 * planned: parameters, bytes of weights by format, of KV a token, and what memory is left for it.
 * A run takes buffers beside these; its plan says how many. */
#ifndef AQ_ENGINE_PLAN_SIZES_H
#define AQ_ENGINE_PLAN_SIZES_H

#include "engine/hooks.h"
#include "engine/plan/planning.h"

/* {"parameters", ..., "weights": {format: bytes}, "kv_bytes_per_token": {format: bytes},
 * "machines": [{"hardware", "fits": {format: {"where", "kv_tokens", "device_kv_tokens"}}}]} of
 * --model or --shape, on the machines of --hardware, or all that are built in. */
int aq_plan_sizes(json_t **ret, const struct aq_options *o, const struct aq_log *log,
                  struct aq_err *reterr);
void aq_plan_sizes_text(const json_t *doc, const struct aquifer_hooks *hooks);

#endif
