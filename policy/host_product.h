/* SPDX-License-Identifier: Apache-2.0
 * policy/host_product.h - the columns of an op's product that the host computes, because their
 * panels rest in host memory and do not stream.
 *
 * The op's input rows go to the host (D2H of INPUT), PRODUCT_HOST computes the columns of these
 * panels with the op's own primitives, and the columns come back (H2D of COLUMNS).  Meanwhile the
 * op computes all other columns and leaves its output PARTIAL; MERGE puts the host's columns in
 * (adds them, where the product adds to its output) and runs the primitives behind the product.
 * Where several products of one source make one output (the gate of an MLP and what it multiplies),
 * the host computes the same columns of each, so that only finished columns come back.  Each column
 * is the same numbers in the same order on either side, so tokens do not change by a bit.  Pure. */
#ifndef AQ_POLICY_HOST_PRODUCT_H
#define AQ_POLICY_HOST_PRODUCT_H

#include "policy/program.h"

/* Columns of one matrix, or of one in each of the products. */
struct aq_host_range {
    uint32_t place;       /* of the matrix in aq_prim.matrix */
    uint32_t first, rows; /* rows of the matrix */
    uint32_t column;      /* the first column in the product's output, and in its bias */
    uint32_t at;          /* the first column among those of the host */
};

struct aq_host_product {
    struct aq_host_range range[AQ_VECTOR_PART_MAX];
    uint32_t range_count, columns;
    /* The products in the op's list; MERGE runs what is behind them. */
    struct aq_op_products {
        uint32_t first, count;
    } products;
    enum aq_register input; /* HIDDEN, ATTENTION or INNER: the first register that the list reads */
    uint64_t input_bytes;   /* of a row */
    uint64_t column_bytes;  /* of one number of the host's columns */
};

/* Can the host compute columns of products in ops of this kind?  Yes for PRE, POST, MLP_UP and
 * MLP_DOWN, if the op's list begins with them, behind at most a norm of the residual stream, and
 * has no other products.  There are several where the first one fills a register that the next ones
 * add to or multiply, from the same source.  Fills *ret if so. */
bool aq_op_host_products(struct aq_op_products *ret, enum aq_op_kind kind,
                         const struct aq_step_desc *step);
/* Does the matrix of a step belong to such products? */
bool aq_host_product_can(const struct aq_step_desc *step, uint32_t matrix);
/* The same; *ret_first: the matrix of the first of the products that makes the same columns, whose
 * panels must lie on the same tiers. */
bool aq_host_product_like(const struct aq_step_desc *step, uint32_t matrix, uint32_t *ret_first);

/* Does the host compute columns in ops of this kind in this step?  Only PRE, POST, MLP_UP and
 * MLP_DOWN can have such columns.  Fills *ret (may be NULL) if so. */
bool aq_host_product_find(struct aq_host_product *ret, const struct aq_stream *stream,
                          const struct aq_model_steps *steps, const struct aq_plan *plan,
                          enum aq_op_kind kind, uint32_t step);

/* The number of the op's primitives that it runs itself where the host has columns; and the list
 * cut to those behind them, which MERGE runs. */
static inline uint32_t aq_host_product_end(const struct aq_host_product *h)
{
    return h->products.first + h->products.count;
}
void aq_host_product_rest(struct aq_prim_list *list, const struct aq_host_product *h);

/* Bytes of a row of the widest input and of the widest columns, which slots are made for; 0 where
 * the host computes nothing. */
void aq_host_product_widest(uint64_t *ret_input, uint64_t *ret_columns,
                            const struct aq_stream *stream, const struct aq_model_steps *steps,
                            const struct aq_plan *plan);

#endif
