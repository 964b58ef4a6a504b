/* SPDX-License-Identifier: Apache-2.0
 * engine/core/forecast_json.h - a forecast as JSON and as lines of text: pass times, bytes and busy
 * share of every lane, what binds, and the rates it rests on.  Never NaN: what is unknown is
 * null. */
#ifndef AQ_ENGINE_CORE_FORECAST_JSON_H
#define AQ_ENGINE_CORE_FORECAST_JSON_H

#include "base/buf.h"
#include "engine/machine/rates.h"
#include "policy/forecast.h"

#include <jansson.h>

/* New references, all of these.  Lanes: {name: {"busy", "bytes_per_pass", "limit", "gb_s"}}; times:
 * of a pass and of the work, with tokens per second. */
json_t *aq_predict_lanes_json(const struct aq_forecast *f);
json_t *aq_predict_times_json(const struct aq_forecast *f);
json_t *aq_predict_json(const struct aq_forecast *f, const struct aq_hardware *hw,
                        const struct aq_rates_measured *measured, enum aq_dtype compute);

/* The document in words, a line at a time; null has no line. */
void aq_predict_lines(const json_t *predicted, void (*line)(void *user, const char *text),
                      void *user);

#endif
