/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/lp.h"

#include "policy/lp_clp.h"

#include <assert.h>
#include <errno.h>
#include <math.h>

/* Clp treats larger bounds as none. */
#define NO_BOUND 1e30

static double bound(double x)
{
    assert(!isnan(x));
    return fmin(fmax(x, -NO_BOUND), NO_BOUND);
}

int aq_lp_solve(double *ret_x, double *ret_cost, const struct aq_lp *lp, struct aq_err *reterr)
{
    int start[AQ_LP_COLUMNS_MAX + 1];
    int row[AQ_LP_COLUMNS_MAX * AQ_LP_ROWS_MAX];
    double value[AQ_LP_COLUMNS_MAX * AQ_LP_ROWS_MAX];
    double low[AQ_LP_COLUMNS_MAX], high[AQ_LP_COLUMNS_MAX];
    double row_low[AQ_LP_ROWS_MAX], row_high[AQ_LP_ROWS_MAX];
    int count = 0;
    assert(lp->columns && lp->columns <= AQ_LP_COLUMNS_MAX && lp->rows <= AQ_LP_ROWS_MAX);
    for (uint32_t c = 0; c < lp->columns; c++) {
        start[c] = count;
        low[c] = bound(lp->low[c]);
        high[c] = bound(lp->high[c]);
        for (uint32_t r = 0; r < lp->rows; r++) {
            assert(isfinite(lp->at[r][c]));
            if (lp->at[r][c] == 0)
                continue;
            row[count] = (int)r;
            value[count++] = lp->at[r][c];
        }
    }
    start[lp->columns] = count;
    for (uint32_t r = 0; r < lp->rows; r++) {
        row_low[r] = bound(lp->row_low[r]);
        row_high[r] = bound(lp->row_high[r]);
    }
    const struct aq_lp_columns columns = {
        .columns = (int)lp->columns,
        .rows = (int)lp->rows,
        .start = start,
        .row = row,
        .value = value,
        .low = low,
        .high = high,
        .cost = lp->cost,
        .row_low = row_low,
        .row_high = row_high,
    };
    int rc = aq_lp_clp_solve(ret_x, ret_cost, &columns);
    if (rc == -ENOMEM)
        return aq_error_memory(reterr, "linear program of %u columns", lp->columns);
    return rc < 0 ? aq_error(reterr, rc, "linear program: no solution within its bounds") : 0;
}
