/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/expect.h"

void aq_kv_expected_ref(struct aq_exec *ex, const struct aq_kv_expected *e)
{
    expect_all(ex, e);
}
