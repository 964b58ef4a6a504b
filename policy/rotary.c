/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/rotary.h"

#include <assert.h>
#include <math.h>

uint32_t aq_rotary_rows(const struct aq_model_steps *m, const struct aq_plan *plan)
{
    const struct aq_rotary *r = &m->rotary;
    uint32_t positions = plan->shape.positions_max;
    if (!r->dims)
        return 0;
    return r->long_from && positions > r->long_from ? AQ_ROTARY_TABLES * positions : positions;
}

uint64_t aq_rotary_bytes(const struct aq_model_steps *m, const struct aq_plan *plan)
{
    uint32_t rows = aq_rotary_rows(m, plan);
    return rows ? (uint64_t)aq_panel_count(rows) * aq_panel_bytes(AQ_F32, m->rotary.dims) : 0;
}

uint32_t aq_rotary_first(const struct aq_model_steps *m, const struct aq_plan *plan,
                         uint64_t positions)
{
    const struct aq_rotary *r = &m->rotary;
    return r->long_from && positions > r->long_from ? plan->shape.positions_max : 0;
}

static void fill_row(float *row, const struct aq_model_steps *m, uint32_t table, uint32_t position)
{
    const struct aq_rotary *r = &m->rotary;
    uint32_t half = r->dims / 2;
    for (uint32_t d = 0; d < half; d++) {
        double angle = (double)((float)position * r->frequency[table][d]);
        if (position >= m->context)
            angle = (double)position * (double)r->frequency[table][d];
        row[d] = (float)cos(angle) * r->factor[table];
        row[half + d] = (float)sin(angle) * r->factor[table];
    }
}

void aq_rotary_fill(float *panel, const struct aq_model_steps *m, const struct aq_plan *plan,
                    uint32_t index)
{
    uint32_t first = index * AQ_PANEL_ROWS, positions = plan->shape.positions_max;
    uint32_t rows = aq_rotary_rows(m, plan);
    assert(first < rows);
    for (uint32_t i = 0; i < AQ_PANEL_ROWS && first + i < rows; i++)
        fill_row(panel + (uint64_t)i * m->rotary.dims, m, (first + i) / positions,
                 (first + i) % positions);
}
