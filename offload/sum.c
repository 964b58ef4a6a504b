/* SPDX-License-Identifier: Apache-2.0 */
#include "offload/sum.h"

#include "config.h"

#include <xxhash.h>

#if AQ_HAVE_XXH_DISPATCH
#include <xxh_x86dispatch.h> /* XXH3_64bits looks at the CPU from here on */
#endif

uint64_t aq_sum(const void *bytes, size_t count)
{
    return XXH3_64bits(bytes, count);
}
