/* SPDX-License-Identifier: Apache-2.0
 * The rotary table: made once for all positions of a run, because making the rows of each pass anew
 * would take some per cent of its time. */
#include "policy/rotary.h"
#include "engine/exec/exec.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

static size_t panel_floats(const struct aq_executor *x)
{
    return aq_panel_bytes(AQ_F32, x->steps->rotary.dims) / sizeof(float);
}

static void fill_panel(void *arg, uint32_t index, uint32_t worker)
{
    const struct aq_executor *x = arg;
    (void)worker;
    aq_rotary_fill(x->rotary_table + index * panel_floats(x), x->steps, x->plan, index);
}

/* The host cannot write to a GPU's memory: panels are made in one here, and copied. */
static int fill_gpu(struct aq_executor *x, uint32_t panels, struct aq_err *reterr)
{
    size_t floats = panel_floats(x);
    float *panel = calloc(floats, sizeof(*panel));
    if (!panel)
        return aq_error_memory(reterr, "rows of the rotary table");
    int rc = 0;
    for (uint32_t i = 0; i < panels && rc == 0; i++) {
        aq_rotary_fill(panel, x->steps, x->plan, i);
        rc = aq_device_write(x->opts.device, x->rotary_table + i * floats, panel,
                             floats * sizeof(*panel), reterr);
    }
    free(panel);
    return rc;
}

int exec_rotary_open(struct aq_executor *x, struct aq_err *reterr)
{
    uint64_t bytes = aq_rotary_bytes(x->steps, x->plan);
    if (!bytes)
        return 0;
    /* One array of the batch says which row either table has for a row. */
    assert(x->steps->position_offset == 0);
    int rc = aq_device_alloc((void **)&x->rotary_table, x->opts.device, AQ_MEMORY_DEVICE,
                             "rotary table", bytes, reterr);
    if (rc < 0)
        return rc;
    x->rotary_bytes = bytes;
    uint32_t panels = aq_panel_count(aq_rotary_rows(x->steps, x->plan));
    if (x->opts.cuda)
        return fill_gpu(x, panels, reterr);
    aq_pool_run(x->opts.pool, fill_panel, x, panels);
    return 0;
}

void exec_rotary_close(struct aq_executor *x)
{
    aq_device_free(x->opts.device, AQ_MEMORY_DEVICE, "rotary table", x->rotary_table,
                   x->rotary_bytes);
}

uint32_t exec_position_first(const struct aq_executor *x, const struct aq_sequence *s)
{
    if (!x->rotary_table)
        return x->steps->position_offset;
    if (!x->steps->rotary.long_from)
        return 0;
    return aq_rotary_first(x->steps, x->plan,
                           aq_kv_policy_positions(&x->plan->kv, s->prompt_count, s->max_tokens));
}

struct aq_attn_turn exec_rotary_back(const struct aq_executor *x, const struct aq_sequence *s,
                                     uint32_t positions, uint32_t slots)
{
    const struct aq_rotary *r = &x->steps->rotary;
    uint32_t first = exec_position_first(x, s), row = first + positions;
    assert(x->rotary_table && positions < x->plan->shape.positions_max);
    return (struct aq_attn_turn){
        .turn = x->rotary_table + row / AQ_PANEL_ROWS * panel_floats(x) +
                (size_t)(row % AQ_PANEL_ROWS) * r->dims,
        .scale = 1 / r->factor[first > 0],
        .slots = slots,
        .dim = r->dims,
    };
}

void exec_rotary_mean(const struct aq_executor *x, const struct aq_sequence *s, uint32_t first,
                      uint32_t count, float *ret)
{
    const struct aq_rotary *r = &x->steps->rotary;
    uint32_t table = exec_position_first(x, s) > 0, half = r->dims / 2;
    for (uint32_t d = 0; d < half; d++) {
        /* The sum of exp(i w p) over positions is that of a geometric series. */
        double w = (double)r->frequency[table][d], middle = first + (count - 1) / 2.0;
        double part = sin(w / 2) != 0 ? sin(count * w / 2) / (count * sin(w / 2)) : 1;
        ret[d] = (float)(part * cos(w * middle)) * r->factor[table];
        ret[half + d] = (float)(part * sin(w * middle)) * r->factor[table];
    }
}
