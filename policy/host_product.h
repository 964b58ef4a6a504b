/* SPDX-License-Identifier: Apache-2.0
 * policy/host_product.h - the columns of an op's product that the host computes, because their
 * panels rest in host memory and do not stream.
 *
 * The op's input rows go to the host (D2H of INPUT), PRODUCT_HOST computes the columns of these
 * panels with the op's own primitives, and the columns come back (H2D of COLUMNS).  Meanwhile the
 * op computes all other columns and leaves its output PARTIAL; MERGE puts the host's columns in
 * (adds them, where the product accumulates) and runs the primitives behind the product.  Each
 * column is the same sum on either side, so tokens do not change by a bit.  Pure. */
#ifndef AQ_POLICY_HOST_PRODUCT_H
#define AQ_POLICY_HOST_PRODUCT_H

#include "policy/program.h"

/* Columns of one matrix. */
struct aq_host_range {
    uint32_t matrix;      /* of the step */
    uint32_t first, rows; /* rows of the matrix */
    uint32_t column;      /* the first column in the product's output, and in its bias */
    uint32_t at;          /* the first column among those of the host */
};

struct aq_host_product {
    struct aq_host_range range[AQ_VECTOR_PART_MAX];
    uint32_t range_count, columns;
    uint32_t prim;          /* index of the product in the op's list; MERGE runs the rest */
    enum aq_register input; /* HIDDEN, ATTENTION or INNER: the first register that the list reads */
    uint64_t input_bytes;   /* of a row */
    uint64_t column_bytes;  /* of one number of the host's columns */
};

/* Can the host compute columns of this matrix of a step?  Yes if the matrix belongs to PRE, POST,
 * MLP_UP or MLP_DOWN, and that op's list is one product, with at most a norm of the residual stream
 * in front.  The first half of a gated MLP is longer: the device computes all of its columns. */
bool aq_host_product_can(const struct aq_step_desc *step, uint32_t matrix);
/* The index of that product in the op's list; UINT32_MAX: the op has none. */
uint32_t aq_op_host_product(enum aq_op_kind kind, const struct aq_step_desc *step);

/* Does the host compute columns in ops of this kind in this step?  Only PRE, POST, MLP_UP and
 * MLP_DOWN can have such columns.  Fills *ret (may be NULL) if so. */
bool aq_host_product_find(struct aq_host_product *ret, const struct aq_stream *stream,
                          const struct aq_model_steps *steps, const struct aq_plan *plan,
                          enum aq_op_kind kind, uint32_t step);

/* Bytes of a row of the widest input and of the widest columns, which slots are made for; 0 where
 * the host computes nothing. */
void aq_host_product_widest(uint64_t *ret_input, uint64_t *ret_columns,
                            const struct aq_stream *stream, const struct aq_model_steps *steps,
                            const struct aq_plan *plan);

#endif
