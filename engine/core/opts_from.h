/* SPDX-License-Identifier: Apache-2.0
 * engine/core/opts_from.h - options as the engine takes them. */
#ifndef AQ_ENGINE_CORE_OPTS_FROM_H
#define AQ_ENGINE_CORE_OPTS_FROM_H

#include "engine/core/engine.h"
#include "engine/options/options.h"

/* What commands that run or plan a model share, as values; names and paths are borrowed from o. */
int aq_engine_opts_from(struct aq_engine_opts *ret, const struct aq_options *o,
                        const struct aq_log *log, struct aq_err *reterr);

#endif
