/* SPDX-License-Identifier: Apache-2.0
 * engine/model/quantised/columns.h - columns of tensors whose files have them row by row.  Rows of
 * a matrix that lie so are asked for 64 at a time; each time the whole tensor would pass by.  So a
 * bounded range of columns is kept of each of the tensors that are read now.  Knows no format. */
#ifndef AQ_ENGINE_MODEL_QUANTISED_COLUMNS_H
#define AQ_ENGINE_MODEL_QUANTISED_COLUMNS_H

#include "engine/checkpoint/checkpoint.h"

/* What is kept of a tensor, unless the columns that are asked for at once take more. */
enum { AQ_COLUMNS_SLOTS = 3, AQ_COLUMNS_SLOT_BYTES = 8 << 20 };

/* Shared by all threads that read a model. */
struct aq_columns;
int aq_columns_open(struct aq_columns **ret, const struct aq_checkpoint *c, struct aq_err *reterr);
void aq_columns_close(struct aq_columns *s); /* NULL is fine */

/* Columns [first, first + count) of all rows of a matrix, into dst [rows][count] in the tensor's
 * own type.  slot: tensors that are read in turns have each its own. */
int aq_columns_read(struct aq_columns *s, uint32_t slot, const struct aq_tensor_info *t,
                    uint64_t first, uint64_t count, void *dst, struct aq_err *reterr);
/* Frees what is kept: nothing is read for a while. */
void aq_columns_forget(struct aq_columns *s);

#endif
