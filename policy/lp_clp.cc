/* SPDX-License-Identifier: Apache-2.0
 * The one file in C++: Clp reports missing memory by an exception, which must not reach callers in
 * C, where nothing catches it and the process would end. */
#include "policy/lp_clp.h"

#include <algorithm>
#include <cerrno>
#include <coin/ClpSimplex.hpp>
#include <new>

extern "C" int aq_lp_clp_solve(double *ret_x, double *ret_cost, const struct aq_lp_columns *lp)
try {
    ClpSimplex s;
    s.setLogLevel(0);
    s.loadProblem(lp->columns, lp->rows, lp->start, lp->row, lp->value, lp->low, lp->high, lp->cost,
                  lp->row_low, lp->row_high);
    s.dual(0);
    if (s.status() != 0)
        return -ERANGE;
    std::copy_n(s.primalColumnSolution(), lp->columns, ret_x);
    *ret_cost = s.objectiveValue();
    return 0;
} catch (const std::bad_alloc &) {
    return -ENOMEM;
} catch (...) {
    return -ERANGE;
}
