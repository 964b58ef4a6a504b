/* SPDX-License-Identifier: Apache-2.0
 * engine/model/arch/opt.h - OPT as data: its steps, and where its tensors may be found in a
 * checkpoint. The only file, with opt.c, that knows OPT. */
#ifndef AQ_ENGINE_MODEL_ARCH_OPT_H
#define AQ_ENGINE_MODEL_ARCH_OPT_H

#include "base/err.h"
#include "engine/model/config.h"
#include "policy/steps.h"

/* Fills *ret; the array ret->step is malloc'd and the caller's to free. */
int aq_opt_steps(struct aq_model_steps *ret, const struct aq_model_config *config,
                 struct aq_err *reterr);

/* The variant-th name under which checkpoints keep the tensor with this canonical name; false when
 * there are no more variants.  text holds AQ_NAME_MAX * 2 bytes. */
bool aq_opt_tensor_name(const char *canonical, uint32_t variant, char *text);

#endif
