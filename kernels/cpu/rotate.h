/* SPDX-License-Identifier: Apache-2.0
 * kernels/cpu/rotate.h - what every version of rotate takes for granted. */
#ifndef AQ_KERNELS_CPU_ROTATE_H
#define AQ_KERNELS_CPU_ROTATE_H

#include "kernels/kernels.h"

#include <assert.h>

static inline void aq_rotate_assert(const struct aq_rotate *r)
{
    assert(r->head_dim >= 1 && r->rotary_dim <= r->head_dim && r->rotary_dim % 2 == 0);
    assert(r->turn || !r->rotary_dim);
}

#endif
