/* SPDX-License-Identifier: Apache-2.0
 * policy/lp.h - small linear programs: least cost within bounds.  Owns nothing beyond a call, and
 * hides the solver (Clp).  Equal programs have equal solutions. */
#ifndef AQ_POLICY_LP_H
#define AQ_POLICY_LP_H

#include "base/err.h"

#include <stdint.h>

enum { AQ_LP_COLUMNS_MAX = 16, AQ_LP_ROWS_MAX = 40 };

/* Least sum of cost x over x in [low, high] with every row's sum of at x in [row_low, row_high].
 * INFINITY and -INFINITY: no bound. */
struct aq_lp {
    uint32_t columns, rows;
    double cost[AQ_LP_COLUMNS_MAX], low[AQ_LP_COLUMNS_MAX], high[AQ_LP_COLUMNS_MAX];
    double row_low[AQ_LP_ROWS_MAX], row_high[AQ_LP_ROWS_MAX];
    double at[AQ_LP_ROWS_MAX][AQ_LP_COLUMNS_MAX];
};

/* Fills x[columns] and the cost.  -ERANGE: no x is within the bounds, or the cost has no least;
 * -ENOMEM. */
int aq_lp_solve(double *ret_x, double *ret_cost, const struct aq_lp *lp, struct aq_err *reterr);

#endif
