/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/lp.h"

#include <assert.h>
#include <coin/Clp_C_Interface.h>
#include <errno.h>
#include <math.h>
#include <string.h>

/* Beyond this Clp takes a bound for none. */
#define NO_BOUND 1e30

static double bound(double x)
{
    assert(!isnan(x));
    return fmin(fmax(x, -NO_BOUND), NO_BOUND);
}

int aq_lp_solve(double *ret_x, double *ret_cost, const struct aq_lp *lp, struct aq_err *reterr)
{
    CoinBigIndex start[AQ_LP_COLUMNS_MAX + 1];
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
    Clp_Simplex *s = Clp_newModel();
    if (!s)
        return aq_error_memory(reterr, "linear program of %u columns", lp->columns);
    Clp_setLogLevel(s, 0);
    Clp_loadProblem(s, (int)lp->columns, (int)lp->rows, start, row, value, low, high, lp->cost,
                    row_low, row_high);
    Clp_dual(s, 0);
    int rc = Clp_status(s) == 0 ? 0 : -ERANGE;
    if (rc == 0) {
        memcpy(ret_x, Clp_primalColumnSolution(s), lp->columns * sizeof(*ret_x));
        *ret_cost = Clp_objectiveValue(s);
    }
    Clp_deleteModel(s);
    return rc < 0 ? aq_error(reterr, rc, "linear program: no solution within its bounds") : 0;
}
