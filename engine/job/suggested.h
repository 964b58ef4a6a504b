/* SPDX-License-Identifier: Apache-2.0
 * engine/job/suggested.h - how generation_config.json of a model suggests to sample, and the
 * parameters of a run that follow from it (--generation-config).  Its end tokens are the model's
 * (engine/model); its lengths are never used. */
#ifndef AQ_ENGINE_JOB_SUGGESTED_H
#define AQ_ENGINE_JOB_SUGGESTED_H

#include "base/err.h"
#include "base/log.h"
#include "engine/options/options.h"
#include "engine/records/request.h"

/* --generation-config all: what the user did not give is taken from dir's file into *params, and
 * -EINVAL names a key that is not supported.  eos: a line says what is not used.  Without the file
 * there is nothing to do. */
int aq_suggested_params(struct aq_params *params, const struct aq_options *o, const char *dir,
                        const struct aq_log *log, struct aq_err *reterr);

#endif
