/* SPDX-License-Identifier: Apache-2.0
 * policy/rotary.h - the rotary table of a run: cosines and sines of all positions that its
 * sequences come to, made once; ops gather the rows of their positions from it.  Row t * positions
 * + p is position p by the frequencies t of struct aq_rotary.  Pure. */
#ifndef AQ_POLICY_ROTARY_H
#define AQ_POLICY_ROTARY_H

#include "policy/plan.h"

/* Rows of the table, a row being `dims` numbers; 0: the model has no rotary positions.  The second
 * frequencies have rows where sequences may be long enough for them. */
uint32_t aq_rotary_rows(const struct aq_model_steps *m, const struct aq_plan *plan);
/* Its bytes: panels of row-major f32. */
uint64_t aq_rotary_bytes(const struct aq_model_steps *m, const struct aq_plan *plan);

/* The row of position 0 for a sequence that comes to so many positions. */
uint32_t aq_rotary_first(const struct aq_model_steps *m, const struct aq_plan *plan,
                         uint64_t positions);

/* Fills one panel of the table: in each row dims / 2 cosines, then dims / 2 sines.  The angle is
 * f32(position) * frequency rounded to f32, as transformers has it; behind the model's context it
 * is f64's, because only differences of positions are to matter there, and f32 would lose them as
 * positions grow.  Its cosine and sine are taken in f64, rounded to f32, and multiplied by the
 * factor in f32. */
void aq_rotary_fill(float *panel, const struct aq_model_steps *m, const struct aq_plan *plan,
                    uint32_t index);

#endif
