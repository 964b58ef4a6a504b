/* SPDX-License-Identifier: Apache-2.0
 * policy/lp_clp.h - a linear program as Clp takes it.  Called by lp.c alone. */
#ifndef AQ_POLICY_LP_CLP_H
#define AQ_POLICY_LP_CLP_H

/* By columns: the entries of column c are start[c] to start[c + 1] of row and value. */
struct aq_lp_columns {
    int columns, rows;
    const int *start, *row;
    const double *value, *low, *high, *cost, *row_low, *row_high;
};

#ifdef __cplusplus
extern "C"
#endif
    /* Fills x[columns] and the cost.  -ERANGE: nothing is within the bounds; -ENOMEM. */
    int
    aq_lp_clp_solve(double *ret_x, double *ret_cost, const struct aq_lp_columns *lp);

#endif
