/* SPDX-License-Identifier: Apache-2.0
 * policy/host_product.h - the columns of an op's product that the host computes, because the panels
 * they need rest in its memory and do not stream.
 *
 * The op's input rows go to the host (D2H of INPUT), PRODUCT_HOST makes the columns of these
 * panels from them with the op's own primitives, and they come back (H2D of COLUMNS).  Meanwhile
 * the op itself makes all other columns and leaves its output PARTIAL; MERGE puts the host's
 * columns in, adding where the product adds to what is there, and runs what follows the product.
 * Every column is the sum that it would be anywhere: tokens do not change by a bit.  Pure. */
#ifndef AQ_POLICY_HOST_PRODUCT_H
#define AQ_POLICY_HOST_PRODUCT_H

#include "policy/program.h"

/* Columns of one matrix. */
struct aq_host_range {
    uint32_t matrix;      /* of the step */
    uint32_t first, rows; /* of the matrix: where they begin, how many */
    uint32_t column;      /* of the product's output, and of its bias */
    uint32_t at;          /* among the columns that the host computes */
};

struct aq_host_product {
    struct aq_host_range range[AQ_VECTOR_PART_MAX];
    uint32_t range_count, columns;
    uint32_t prim;          /* of the op's list: the product; those after it are MERGE's */
    enum aq_register input; /* HIDDEN, ATTENTION or INNER: what the op's list starts from */
    uint64_t input_bytes;   /* of a row */
    uint64_t column_bytes;  /* of one number that the host makes */
};

/* Can the host compute columns of this matrix of a step?  It belongs to PRE, POST, MLP_UP or
 * MLP_DOWN, and that op's list is one product, behind nothing or behind a norm of the residual
 * stream.  The first half of a gated MLP is more than that: all of its columns are the device's. */
bool aq_host_product_can(const struct aq_step_desc *step, uint32_t matrix);

/* Does the host compute columns of the product of ops of this kind (PRE, POST, MLP_UP, MLP_DOWN; of
 * all others it computes none) in this step?  Fills *ret (may be NULL) if it does. */
bool aq_host_product_find(struct aq_host_product *ret, const struct aq_stream *stream,
                          const struct aq_model_steps *steps, const struct aq_plan *plan,
                          enum aq_op_kind kind, uint32_t step);

/* Bytes of a row of the widest input and of the widest columns: what slots are made for; 0 where
 * the host computes nothing. */
void aq_host_product_widest(uint64_t *ret_input, uint64_t *ret_columns,
                            const struct aq_stream *stream, const struct aq_model_steps *steps,
                            const struct aq_plan *plan);

#endif
