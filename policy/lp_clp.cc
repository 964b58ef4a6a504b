/* SPDX-License-Identifier: Apache-2.0
 * The one file in C++: Clp reports missing memory by an exception, which must not reach callers in
 * C, where nothing catches it and the process would end. */
#include "policy/lp_clp.h"

#include <algorithm>
#include <cerrno>
#include <coin/Clp_C_Interface.h>
#include <memory>
#include <new>

extern "C" int aq_lp_clp_solve(double *ret_x, double *ret_cost, const struct aq_lp_columns *lp)
try {
    const std::unique_ptr<Clp_Simplex, void (*)(Clp_Simplex *)> owned(Clp_newModel(),
                                                                      Clp_deleteModel);
    Clp_Simplex *s = owned.get();
    Clp_setLogLevel(s, 0);
    Clp_loadProblem(s, lp->columns, lp->rows, lp->start, lp->row, lp->value, lp->low, lp->high,
                    lp->cost, lp->row_low, lp->row_high);
    Clp_dual(s, 0);
    if (Clp_status(s) != 0)
        return -ERANGE;
    std::copy_n(Clp_primalColumnSolution(s), lp->columns, ret_x);
    *ret_cost = Clp_objectiveValue(s);
    return 0;
} catch (const std::bad_alloc &) {
    return -ENOMEM;
} catch (...) {
    return -ERANGE;
}
