/* SPDX-License-Identifier: Apache-2.0
 * engine/model/arch/rows.h - the rows of engine/model/arch/arch.h.  Those that share their list of
 * steps share a file. */
#ifndef AQ_ENGINE_MODEL_ARCH_ROWS_H
#define AQ_ENGINE_MODEL_ARCH_ROWS_H

#include "engine/model/arch/arch.h"

extern const struct aq_arch aq_arch_opt;
extern const struct aq_arch aq_arch_llama, aq_arch_mistral, aq_arch_qwen2, aq_arch_qwen3,
    aq_arch_phi3;
extern const struct aq_arch aq_arch_gpt_neox;

#endif
