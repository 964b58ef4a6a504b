/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/forecast.h"

#include "policy/kv_room.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>

/* Passes simulated: the ring is full from the second on, and two steady ones tell. */
enum { DECODE_PASSES = 4 };

void aq_forecast_mean(struct aq_forecast_work *w, const struct aq_block_inputs *in)
{
    bool known = in->sequences && in->total_sum && in->prompt_sum;
    double count = (double)in->sequences;
    w->prompt = fmax(1, known ? (double)in->prompt_sum / count : in->prompt_max);
    w->total = fmax(w->prompt + 1, known ? (double)in->total_sum / count : in->total_max);
}

/* Bytes of a decoded key of one layer as it comes home over the link: its rows, or the run where
 * rows cannot be told apart (engine/exec_move.c moves it so). */
static uint64_t key_bytes(const struct aq_model_steps *m, const struct aq_block_shape *s)
{
    bool apart = s->kv_format == AQ_F32 || s->kv_format == AQ_F16 || s->kv_format == AQ_BF16;
    return apart ? 2ull * m->kv_heads * m->head_dim * aq_dtype_bytes(s->kv_format) : s->run_bytes;
}

static void fill_prefill(struct aq_part_shape *ret, const struct aq_model_steps *m,
                         const struct aq_plan *plan, const struct aq_part *p,
                         const struct aq_forecast_rows *r, uint64_t n)
{
    uint64_t run = plan->shape.run_bytes, stride = aq_align_up(run, AQ_PANEL_ALIGN);
    ret->prefill_rows = (uint32_t)(n * r->prompt);
    ret->prefill_key_pairs = n * r->prompt * (r->prompt + 1ull) / 2;
    ret->stat_key_pairs = r->scored ? ret->prefill_key_pairs : 0;
    if (p->staged && p->tier == AQ_DISK)
        ret->write_bytes = n * (r->held / AQ_HEAD_BLOCK_SLOTS) * stride;
    if (!p->staged || !plan->separate)
        return;
    struct aq_kv_room room;
    aq_kv_room_slots(&room, plan, m->kv_heads);
    ret->store_bytes = n * aq_div_up(r->held, AQ_HEAD_BLOCK_SLOTS) * run;
    if (r->scored && p->side == AQ_ATTEND_HOST)
        ret->store_bytes += n * room.bytes;
}

/* KV of one sequence on disk that a separate device attends and overwrites: its delta comes and
 * goes, but for one pass in 32, in which everything goes home to be written. */
static void fill_delta(struct aq_part_shape *ret, const struct aq_model_steps *m,
                       const struct aq_plan *plan, const struct aq_forecast_rows *r, uint64_t n)
{
    struct aq_kv_delta_room delta;
    uint64_t run = plan->shape.run_bytes, runs = aq_div_up(r->held, AQ_HEAD_BLOCK_SLOTS);
    uint64_t tail = r->held % AQ_HEAD_BLOCK_SLOTS ? run : 0;
    aq_kv_room_delta(&delta, plan, m->kv_heads);
    if (r->held < AQ_HEAD_BLOCK_SLOTS)
        delta.bytes = 0; /* all of it is tail */
    uint64_t usual = AQ_HEAD_BLOCK_SLOTS - 1;
    ret->load_bytes += n * delta.bytes * usual / AQ_HEAD_BLOCK_SLOTS;
    ret->store_bytes = n * ((delta.bytes + tail) * usual + runs * run) / AQ_HEAD_BLOCK_SLOTS;
}

static void fill_decode(struct aq_part_shape *ret, const struct aq_model_steps *m,
                        const struct aq_plan *plan, const struct aq_part *p,
                        const struct aq_forecast_rows *r, uint64_t n)
{
    const struct aq_block_shape *s = &plan->shape;
    uint64_t run = s->run_bytes, stride = aq_align_up(run, AQ_PANEL_ALIGN);
    uint64_t before = r->full ? r->held : r->held - 1;
    ret->decode_rows = (uint32_t)n;
    ret->decode_keys = n * r->held;
    if (p->staged && p->tier == AQ_DISK) {
        uint64_t whole = before / AQ_HEAD_BLOCK_SLOTS;
        ret->read_bytes = n * whole * stride;
        /* In 32 passes a run, or, where keys take the slots of others, all of them. */
        ret->write_bytes = n * (r->full ? whole + 1 : 1) * stride / AQ_HEAD_BLOCK_SLOTS;
    }
    if (p->staged && plan->separate && p->side != AQ_ATTEND_HOST) {
        ret->load_bytes = n * aq_div_up(before, AQ_HEAD_BLOCK_SLOTS) * run;
        ret->store_bytes = n * (key_bytes(m, s) + (r->full ? m->kv_heads * 4 : 0)); /* victims */
        if (r->full && p->tier == AQ_DISK)
            fill_delta(ret, m, plan, r, n);
    }
}

void aq_forecast_shape(struct aq_pass_shape *ret, const struct aq_model_steps *steps,
                       const struct aq_plan *plan, const struct aq_forecast_rows *rows)
{
    assert(rows->held >= 1 && rows->seats <= plan->shape.micro_batch);
    *ret = (struct aq_pass_shape){.logit_rows = rows->seats};
    if (rows->prompt)
        ret->prefill_rows = rows->seats * rows->prompt;
    else
        ret->decode_rows = rows->seats;
    for (uint32_t i = 0; i < plan->part_count; i++) {
        const struct aq_part *p = &plan->part[i];
        uint32_t taken = rows->seats > p->first ? rows->seats - p->first : 0;
        taken = taken < p->count ? taken : p->count;
        if (rows->prompt)
            fill_prefill(&ret->part[i], steps, plan, p, rows, taken);
        else
            fill_decode(&ret->part[i], steps, plan, p, rows, taken);
    }
}

/* Seats of micro-batch k that have somebody in them. */
static uint32_t seated(const struct aq_plan *plan, const struct aq_forecast_work *w, uint32_t k)
{
    uint64_t each = plan->shape.micro_batch, before = each * k;
    if (!w->sequences)
        return (uint32_t)each;
    return (uint32_t)(w->sequences > before ? aq_min_u64(each, w->sequences - before) : 0);
}

struct maker {
    const struct aq_block *block;
    const struct aq_forecast_work *work;
    const struct aq_hardware *hw;
    struct aq_pass_shape *shape; /* [micro_batches] */
    struct aq_op_cost *cost;     /* [op_count] */
    /* The mean sequence, and what its KV policy makes of it. */
    uint32_t prompt;
    struct aq_kv_limits limits;
    bool drops;
    bool timeline; /* keep every op's start and end */
};

static int play(struct aq_sim_result *ret, const struct maker *m, struct aq_forecast_rows rows,
                uint32_t passes, struct aq_err *reterr)
{
    const struct aq_plan *plan = &m->block->plan;
    for (uint32_t k = 0; k < plan->shape.micro_batches; k++) {
        rows.seats = seated(plan, m->work, k);
        if (rows.prompt)
            rows.seats = (uint32_t)aq_min_u64(
                rows.seats, aq_max_u64(1, plan->shape.prompt_tokens / rows.prompt));
        aq_forecast_shape(&m->shape[k], m->work->steps, plan, &rows);
    }
    aq_program_annotate(m->cost, &m->block->program, m->work->steps, plan, &m->block->stream,
                        m->shape);
    struct aq_simulate_opts opts = {
        .passes = passes,
        .timeline = m->timeline,
        .serial = m->work->serial,
        .compute = plan->shape.compute,
        .cost = m->cost,
    };
    return aq_simulate(ret, &m->block->program, m->hw, &opts, reterr);
}

static int forecast_prefill(struct aq_forecast *f, const struct maker *m, struct aq_err *reterr)
{
    const struct aq_plan *plan = &m->block->plan;
    struct aq_forecast_rows rows = {
        .prompt = m->prompt,
        .held = aq_kv_limits_held(&m->limits, m->prompt, m->prompt),
        .scored = m->drops && aq_kv_policy_scores(&plan->kv),
    };
    uint64_t each = aq_max_u64(1, plan->shape.prompt_tokens / m->prompt);
    f->prefill_passes = (uint32_t)aq_max_u64(1, aq_div_up(seated(plan, m->work, 0), each));
    struct aq_sim_result r;
    int rc = play(&r, m, rows, f->prefill_passes > 1 ? 2 : 1, reterr);
    if (rc < 0)
        return rc;
    f->prefill_s = r.end_s[0];
    f->prefill_pass_s = r.end_s[r.passes - 1] - (r.passes > 1 ? r.end_s[0] : 0);
    f->prefill_s += (f->prefill_passes - 1) * f->prefill_pass_s;
    aq_sim_result_close(&r);
    return 0;
}

static int play_decode(struct aq_sim_result *ret, const struct maker *m, uint32_t passes,
                       struct aq_err *reterr)
{
    /* Half-way through what it generates. */
    uint32_t seen =
        (uint32_t)aq_max_u64(m->prompt, (uint64_t)((m->work->prompt + m->work->total) / 2));
    struct aq_forecast_rows rows = {.held = aq_kv_limits_held(&m->limits, m->prompt, seen)};
    rows.full = m->drops && rows.held == m->limits.slots;
    return play(ret, m, rows, passes, reterr);
}

static int forecast_decode(struct aq_forecast *f, const struct maker *m, struct aq_err *reterr)
{
    struct aq_sim_result r;
    int rc = play_decode(&r, m, DECODE_PASSES, reterr);
    if (rc < 0)
        return rc;
    f->decode_pass_s = r.pass_s;
    f->binding_lane = r.binding_lane;
    f->binding = r.binding;
    for (int l = 0; l < AQ_LANE_COUNT; l++)
        f->lane[l] = r.lane[l];
    aq_sim_result_close(&r);
    return 0;
}

static void add_up(struct aq_forecast *f, const struct maker *m)
{
    const struct aq_block_shape *s = &m->block->plan.shape;
    const struct aq_forecast_work *w = m->work;
    double generated = w->total - w->prompt, seats = 0;
    for (uint32_t k = 0; k < s->micro_batches; k++)
        seats += seated(&m->block->plan, w, k);
    f->prompts = seats;
    f->prompt_tokens = seats * w->prompt;
    f->tokens = seats * generated;
    f->block_s = f->prefill_s + fmax(0, generated - 1) * f->decode_pass_s;
    f->gen_tok_s = f->block_s > 0 ? f->tokens / f->block_s : 0;
    /* With refill others take the seats of those that end. */
    f->blocks = (double)w->sequences / fmax(1, seats);
    f->all_prefill_s = f->blocks * f->prefill_s;
    f->all_decode_s = f->blocks * (f->block_s - f->prefill_s);
}

static void maker_close(struct maker *m)
{
    free(m->shape);
    free(m->cost);
}

static int maker_open(struct maker *ret, const struct aq_block *block,
                      const struct aq_forecast_work *work, const struct aq_hardware *hw,
                      struct aq_err *reterr)
{
    struct maker m = {.block = block, .work = work, .hw = hw};
    uint32_t ops = block->program.op_count;
    m.prompt = (uint32_t)aq_max_u64(1, (uint64_t)llround(work->prompt));
    uint32_t max_new = (uint32_t)fmax(0, work->total - m.prompt);
    aq_kv_policy_limits(&m.limits, &block->plan.kv, m.prompt, max_new);
    m.drops = aq_kv_limits_drop(&m.limits, m.prompt, max_new);
    m.shape = calloc(block->plan.shape.micro_batches, sizeof(*m.shape));
    m.cost = calloc(ops + 1, sizeof(*m.cost));
    if (!m.shape || !m.cost) {
        maker_close(&m);
        return aq_error(reterr, -ENOMEM, "forecast of %u ops", ops);
    }
    *ret = m;
    return 0;
}

static int forecast_block(struct aq_forecast *ret, const struct aq_block *block,
                          const struct aq_forecast_work *work, const struct aq_hardware *hw,
                          struct aq_err *reterr)
{
    struct aq_forecast f = {0};
    struct maker m;
    int rc = maker_open(&m, block, work, hw, reterr);
    if (rc < 0)
        return rc;
    rc = forecast_prefill(&f, &m, reterr);
    rc = rc < 0 ? rc : forecast_decode(&f, &m, reterr);
    if (rc == 0) {
        add_up(&f, &m);
        *ret = f;
    }
    maker_close(&m);
    return rc;
}

int aq_forecast_make(struct aq_forecast *ret, const struct aq_block *block,
                     const struct aq_forecast_work *work, const struct aq_hardware *hw,
                     struct aq_err *reterr)
{
    struct aq_forecast f, last;
    int rc = forecast_block(&f, block, work, hw, reterr);
    if (rc < 0 || !work->sequences || work->refill) {
        *ret = rc < 0 ? *ret : f;
        return rc;
    }
    struct aq_forecast_work rest = *work;
    double whole = floor(f.blocks);
    rest.sequences = work->sequences - (uint64_t)(whole * f.prompts);
    f.all_prefill_s = whole * f.prefill_s;
    f.all_decode_s = whole * (f.block_s - f.prefill_s);
    if (rest.sequences) {
        rc = forecast_block(&last, block, &rest, hw, reterr);
        if (rc < 0)
            return rc;
        f.all_prefill_s += last.prefill_s;
        f.all_decode_s += last.block_s - last.prefill_s;
    }
    f.blocks = ceil(f.blocks);
    double all_s = f.all_prefill_s + f.all_decode_s;
    f.gen_tok_s = all_s > 0 ? (double)work->sequences * (work->total - work->prompt) / all_s : 0;
    *ret = f;
    return 0;
}

int aq_forecast_timeline(struct aq_sim_result *ret, const struct aq_block *block,
                         const struct aq_forecast_work *work, const struct aq_hardware *hw,
                         uint32_t passes, struct aq_err *reterr)
{
    struct maker m;
    int rc = maker_open(&m, block, work, hw, reterr);
    if (rc < 0)
        return rc;
    m.timeline = true;
    rc = play_decode(ret, &m, passes, reterr);
    maker_close(&m);
    return rc;
}
