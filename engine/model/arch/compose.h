/* SPDX-License-Identifier: Apache-2.0
 * engine/model/arch/compose.h - what the rows' lists of steps are made of: matrices, vectors and
 * primitives, added to a step one after the other.  Called by the files of the rows alone; knows no
 * architecture's order of operations. */
#ifndef AQ_ENGINE_MODEL_ARCH_COMPOSE_H
#define AQ_ENGINE_MODEL_ARCH_COMPOSE_H

#include "engine/model/arch/arch.h"

/* A step that is being made. */
struct aq_compose {
    const struct aq_model_config *config;
    struct aq_step_desc *step;
    struct aq_prim_list *list;    /* that takes the next primitive: half[0] at first */
    char prefix[AQ_NAME_MAX / 4]; /* of the names of its tensors */
};

/* The model's numbers, its rotary tables, and steps without content. */
int aq_compose_open(struct aq_model_steps *ret, const struct aq_model_config *c,
                    uint32_t step_count, uint32_t matrix_max, uint32_t vector_max,
                    struct aq_err *reterr);
struct aq_compose aq_compose_step(struct aq_step_desc *s, const struct aq_model_config *c,
                                  enum aq_step_kind kind, uint32_t layer);

/* Indices in the step.  name: with all that stands behind the prefix. */
uint8_t aq_compose_matrix(struct aq_compose *at, const char *name, uint32_t rows, uint32_t k);
int8_t aq_compose_vector(struct aq_compose *at, const char *name, uint32_t count);

/* A primitive without vectors, the last of the list. */
struct aq_prim *aq_compose_prim(struct aq_compose *at, enum aq_prim_kind kind, enum aq_register src,
                                enum aq_register dst);
/* The row of a matrix for each token or position, into dst. */
void aq_compose_rows(struct aq_compose *at, enum aq_prim_kind kind, uint8_t matrix,
                     enum aq_register dst);
/* The configuration's norm of HIDDEN, with the vectors NAME.weight and NAME.bias that it has. */
void aq_compose_norm(struct aq_compose *at, const char *name, enum aq_register dst);
/* HIDDEN to NORM, a change of type. */
void aq_compose_cast(struct aq_compose *at);

/* One of the matrices that a product takes side by side: NAME.weight, and NAME.bias where it has
 * biases.  Rows of a larger tensor have a word of their own as well (policy/steps.h). */
struct aq_compose_part {
    const char *name, *word;
    uint32_t rows;
    struct aq_tensor_rows from;
};
/* dst = src W^T, or dst += where that is HIDDEN; W is as wide as src. */
struct aq_prim *aq_compose_product(struct aq_compose *at, const struct aq_compose_part *part,
                                   uint32_t count, bool bias, enum aq_register src,
                                   enum aq_register dst);
/* The same of one whole matrix. */
struct aq_prim *aq_compose_product_of(struct aq_compose *at, const char *name, uint32_t rows,
                                      bool bias, enum aq_register src, enum aq_register dst);

/* The token table, gathered to dst. */
void aq_compose_tokens(struct aq_compose *at, enum aq_register dst);
/* The LM head, or the token table where it is tied to it. */
void aq_compose_head(struct aq_compose *at, enum aq_register src);

#endif
