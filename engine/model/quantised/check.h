/* SPDX-License-Identifier: Apache-2.0
 * engine/model/quantised/check.h - what the forms check of their tensors, and what they say.
 * Private to engine/model/quantised. */
#ifndef AQ_ENGINE_MODEL_QUANTISED_CHECK_H
#define AQ_ENGINE_MODEL_QUANTISED_CHECK_H

#include "engine/checkpoint/checkpoint.h"

/* "tensor 'NAME': expected ..., found TYPE [SHAPE]". */
int aq_quantised_wrong_shape(const struct aq_tensor_info *t, struct aq_err *reterr,
                             const char *format, ...) __attribute__((format(printf, 3, 4)));
/* Is the part an i32 matrix of this shape?  -ENOEXEC. */
int aq_quantised_check_words(const struct aq_tensor_info *t, uint64_t rows, uint64_t columns,
                             struct aq_err *reterr);
/* Are scales of this tensor numbers, of a size that leaves their products with codes numbers?
 * -ENOEXEC. */
int aq_quantised_check_scales(const struct aq_tensor_info *t, const float *scale, size_t count,
                              struct aq_err *reterr);

#endif
