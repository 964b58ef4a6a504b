/* SPDX-License-Identifier: Apache-2.0
 * engine/model/arch/arch.h - an architecture is a row of a table: how its config.json is read,
 * which steps it becomes, and where checkpoints keep its tensors.  Each row has a file of its own
 * (engine/model/arch/NAME.c), which alone knows the architecture; everything else asks the row.
 * Knows no weight, file or token text. */
#ifndef AQ_ENGINE_MODEL_ARCH_ARCH_H
#define AQ_ENGINE_MODEL_ARCH_ARCH_H

#include "base/err.h"
#include "engine/model/config.h"
#include "engine/model/config_keys.h"
#include "policy/steps.h"

/* Another beginning that a tensor's name has in some checkpoints. */
struct aq_arch_alias {
    const char *canonical, *other;
};

struct aq_arch {
    const char *name; /* 'model_type' of config.json */
    /* Ids of a config.json without these keys; -1: none. */
    int32_t bos_id, eos_id, pad_id;
    bool add_bos; /* BOS stands in front of texts, where the tokenizer's files do not say */
    /* Fills sizes, switches and activation; ids and dtype are read alike for all.  -ENOEXEC with
     * file, key, what was expected and what was found. */
    int (*read_config)(struct aq_model_config *c, const struct aq_config_keys *keys);
    /* Fills *ret; aq_steps_close() frees it. */
    int (*steps)(struct aq_model_steps *ret, const struct aq_model_config *c,
                 struct aq_err *reterr);
    /* Prefixes of canonical names in checkpoints, in the order of looking; NULL-ended, with
     * "" for the bare name.  Those in front of "" are told where a tensor is missing. */
    const char *const *prefixes;
    const struct aq_arch_alias *aliases; /* ended by {NULL, NULL} */
    const char *tokens, *head;           /* canonical names of the token table and of the LM head */
    /* Endings of the names of tensors that checkpoints carry along and no step names, NULL-ended:
     * any other such tensor is refused.  NULL: all are left alone. */
    const char *const *ignored;
    /* Endings of the names of matrices that write into the residual stream, NULL-ended: random ones
     * are drawn smaller (engine/model/random_weights.h). */
    const char *const *residual_writers;
};

/* The row of this name (exactly as config.json has it); NULL when there is none. */
const struct aq_arch *aq_arch_find(const char *name);
/* The rows' names, separated by ", ", for messages.  Returns text. */
const char *aq_arch_names(char *text, size_t bytes);

/* Do the classes of 'architectures', where they are given, generate text?  -ENOEXEC names one of
 * them: classifiers and encoders have the keys and most tensors of such models too. */
int aq_arch_check_classes(const struct aq_config_keys *keys);

/* The steps of a model. */
static inline int aq_arch_steps(struct aq_model_steps *ret, const struct aq_model_config *config,
                                struct aq_err *reterr)
{
    return config->arch->steps(ret, config, reterr);
}

/* The variant-th name under which checkpoints keep the tensor with this canonical name; false when
 * there are no more variants.  text holds AQ_NAME_MAX * 2 bytes. */
bool aq_arch_tensor_name(const struct aq_arch *arch, const char *canonical, uint32_t variant,
                         char *text);

#endif
