/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/steps.h"

#include <stdlib.h>
#include <string.h>

enum aq_dtype aq_matrix_format(const struct aq_matrix_desc *m, enum aq_dtype format)
{
    return m->vocabulary && format == AQ_Q4 ? AQ_Q8 : format;
}

uint64_t aq_matrix_bytes(const struct aq_matrix_desc *m, enum aq_dtype format)
{
    if (m->table)
        return aq_align_up((uint64_t)m->rows * m->k * aq_dtype_bytes(format), AQ_PANEL_ALIGN);
    return (uint64_t)aq_panel_count(m->rows) * aq_panel_bytes(aq_matrix_format(m, format), m->k);
}

bool aq_matrix_is_tied(const struct aq_model_steps *m, uint32_t step, uint32_t index,
                       uint32_t *ret_step, uint32_t *ret_index)
{
    const struct aq_matrix_desc *of = &m->step[step].matrix[index], *other;
    for (uint32_t s = 0; s <= step && of->vocabulary; s++) {
        uint32_t end = s == step ? index : m->step[s].matrix_count;
        for (uint32_t i = 0; i < end; i++) {
            other = &m->step[s].matrix[i];
            if (other->vocabulary && strcmp(other->name, of->name) == 0) {
                *ret_step = s;
                *ret_index = i;
                return true;
            }
        }
    }
    return false;
}

uint32_t aq_steps_widest_row(const struct aq_model_steps *m)
{
    uint32_t widest = 0;
    for (uint32_t s = 0; s < m->step_count; s++) {
        for (uint32_t i = 0; i < m->step[s].matrix_count; i++) {
            uint32_t k = m->step[s].matrix[i].k;
            widest = k > widest ? k : widest;
        }
    }
    return widest;
}

bool aq_steps_have(const struct aq_model_steps *m, enum aq_step_kind kind)
{
    for (uint32_t s = 0; s < m->step_count; s++) {
        if (m->step[s].kind == kind)
            return true;
    }
    return false;
}

static uint64_t list_flops(const struct aq_step_desc *s, const struct aq_prim_list *list)
{
    uint64_t flops = 0;
    for (uint32_t i = 0; i < list->count; i++) {
        const struct aq_prim *p = &list->prim[i];
        for (uint32_t n = 0; p->kind == AQ_PRIM_PRODUCT && n < p->matrix_count; n++)
            flops += 2ull * s->matrix[p->matrix[n]].rows * s->matrix[p->matrix[n]].k;
    }
    return flops;
}

int aq_steps_open(struct aq_model_steps *m, uint32_t step_count, uint32_t matrix_max,
                  uint32_t vector_max, struct aq_err *reterr)
{
    m->step_count = step_count;
    m->matrix_count = step_count * matrix_max;
    m->vector_count = step_count * vector_max;
    m->step = calloc(step_count, sizeof(*m->step));
    m->matrix = calloc(m->matrix_count + 1, sizeof(*m->matrix));
    m->vector = calloc(m->vector_count + 1, sizeof(*m->vector));
    if (!m->step || !m->matrix || !m->vector) {
        aq_steps_close(m);
        return aq_error_memory(reterr, "description of %u steps", step_count);
    }
    for (uint32_t s = 0; s < step_count; s++) {
        struct aq_step_desc *d = &m->step[s];
        d->matrix_first = s * matrix_max;
        d->vector_first = s * vector_max;
        d->matrix = m->matrix + d->matrix_first;
        d->vector = m->vector + d->vector_first;
    }
    return 0;
}

void aq_steps_close(struct aq_model_steps *m)
{
    free(m->step);
    free(m->matrix);
    free(m->vector);
    for (int i = 0; i < AQ_ROTARY_TABLES; i++)
        free(m->rotary.frequency[i]);
    m->step = NULL;
    m->matrix = NULL;
    m->vector = NULL;
    m->rotary = (struct aq_rotary){0};
}

void aq_steps_finish(struct aq_model_steps *m)
{
    m->parameters = 0;
    for (uint32_t s = 0; s < m->step_count; s++) {
        struct aq_step_desc *d = &m->step[s];
        d->carry_in_bytes = d->kind == AQ_STEP_EMBED ? 0 : 4 * m->hidden;
        d->carry_out_bytes = d->kind == AQ_STEP_HEAD ? 0 : 4 * m->hidden;
        d->flops_per_row = list_flops(d, &d->half[0]) + list_flops(d, &d->half[1]);
        for (uint32_t i = 0; i < d->matrix_count; i++) {
            uint32_t at_step, at_index;
            if (!aq_matrix_is_tied(m, s, i, &at_step, &at_index))
                m->parameters += (uint64_t)d->matrix[i].rows * d->matrix[i].k;
        }
        for (uint32_t i = 0; i < d->vector_count; i++) {
            for (uint32_t n = 0; n < d->vector[i].part_count; n++)
                m->parameters += d->vector[i].part[n].name[0] ? d->vector[i].part[n].count : 0;
        }
    }
}
