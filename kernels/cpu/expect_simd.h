/* SPDX-License-Identifier: Apache-2.0
 * The compiler makes vectors of the loops of expect.h. */
#include "kernels/cpu/expect.h"
#include "kernels/cpu/vec.h"

void VEC_VERSION(kv_expected)(struct aq_exec *ex, const struct aq_kv_expected *e)
{
    expect_all(ex, e);
}
