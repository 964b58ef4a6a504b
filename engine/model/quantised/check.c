/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model/quantised/check.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>

int aq_quantised_wrong_shape(const struct aq_tensor_info *t, struct aq_err *reterr,
                             const char *format, ...)
{
    char expected[128], found[160];
    va_list args;
    va_start(args, format);
    vsnprintf(expected, sizeof(expected), format, args);
    va_end(args);
    return aq_error(reterr, -ENOEXEC, "tensor '%s': expected %s, found %s", t->name, expected,
                    aq_tensor_text(t, found, sizeof(found)));
}

int aq_quantised_check_words(const struct aq_tensor_info *t, uint64_t rows, uint64_t columns,
                             struct aq_err *reterr)
{
    if (t->dtype == AQ_I32 && t->rank == 2 && t->shape[0] == rows && t->shape[1] == columns)
        return 0;
    return aq_quantised_wrong_shape(t, reterr, "i32 [%llu, %llu] by config.json",
                                    (unsigned long long)rows, (unsigned long long)columns);
}

int aq_quantised_check_scales(const struct aq_tensor_info *t, const float *scale, size_t count,
                              struct aq_err *reterr)
{
    for (size_t i = 0; i < count; i++)
        if (!(fabsf(scale[i]) <= 1e30f)) /* times any code it is a number */
            return aq_error(reterr, -ENOEXEC,
                            "tensor '%s': expected scales that are numbers of at most 1e30, found "
                            "%g",
                            t->name, (double)scale[i]);
    return 0;
}
