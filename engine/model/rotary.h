/* SPDX-License-Identifier: Apache-2.0
 * engine/model/rotary.h - the frequencies of rotary positions (policy/steps.h), from the numbers
 * of a configuration.  Computed in f64 and rounded to f32 once. */
#ifndef AQ_ENGINE_MODEL_ROTARY_H
#define AQ_ENGINE_MODEL_ROTARY_H

#include "base/err.h"
#include "engine/model/config.h"
#include "policy/steps.h"

/* Fills *ret, whose tables aq_steps_close() frees; no rotation where the kind is NONE. */
int aq_rotary_make(struct aq_rotary *ret, const struct aq_rotary_config *r, uint32_t max_positions,
                   struct aq_err *reterr);

#endif
