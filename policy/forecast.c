/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/forecast.h"

#include "policy/kv_layout.h"
#include "policy/kv_read.h"
#include "policy/seating.h"
#include "policy/seats.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Passes simulated: the ring is full from the second pass on, and two steady passes are enough. */
enum { DECODE_PASSES = 4, PREFILL_PASSES = 4 };

void aq_forecast_mean(struct aq_forecast_work *w, const struct aq_block_inputs *in)
{
    bool known = in->sequences && in->total_sum && in->prompt_sum;
    double count = (double)in->sequences;
    w->prompt = fmax(1, known ? (double)in->prompt_sum / count : in->prompt_max);
    w->total = fmax(w->prompt + 1, known ? (double)in->total_sum / count : in->total_max);
    w->shared = known ? (double)in->shared_sum / count : 0;
    w->alike = !known || (in->prompt_sum == in->sequences * in->prompt_max &&
                          in->total_sum == in->sequences * in->total_max);
}

double aq_forecast_rest(const struct aq_forecast_work *w, double seats)
{
    double all = (double)w->sequences;
    if (all <= seats)
        return all;
    return w->refill && !w->alike ? seats / 2 : all - floor(all / seats) * seats;
}

static uint32_t mean_prompt(const struct aq_forecast_work *w)
{
    return (uint32_t)aq_max_u64(1, (uint64_t)llround(w->prompt));
}

uint32_t aq_forecast_shared(const struct aq_forecast_work *w, uint32_t page_slots)
{
    double lost = page_slots - AQ_HEAD_BLOCK_SLOTS;
    return (uint32_t)fmax(0, fmin(w->shared - lost, mean_prompt(w) - 1));
}

uint32_t aq_forecast_copied(const struct aq_forecast_work *w, const struct aq_kv_kinds *kinds,
                            const struct aq_kv_policy *user)
{
    uint32_t prompt = mean_prompt(w);
    uint32_t max_new = (uint32_t)fmax(0, w->total - prompt), most = prompt - 1;
    bool any = false;
    for (uint32_t k = 0; k < kinds->count; k++) {
        struct aq_kv_policy policy = aq_kv_kind_policy(&kinds->kind[k], user);
        struct aq_kv_limits l;
        aq_kv_kind_limits(&l, kinds, k, user, prompt, max_new);
        bool drops = aq_kv_limits_drop(&l, prompt, max_new);
        uint32_t of = aq_kv_policy_copies_most(&policy, &l, prompt, drops);
        most = of < most ? of : most;
        any |= drops;
    }
    /* In steps of 32; of those of 64 that dropping takes half of these are none. */
    return (uint32_t)fmax(0, fmin(w->shared - (any ? AQ_HEAD_BLOCK_SLOTS / 2 : 0), most));
}

void aq_forecast_held_of(struct aq_forecast_held ret[AQ_KV_KINDS_MAX],
                         const struct aq_kv_kinds *kinds, const struct aq_kv_policy *user,
                         uint32_t head_dim, const struct aq_length *length, uint32_t seen)
{
    for (uint32_t k = 0; k < kinds->count; k++) {
        struct aq_kv_limits l;
        struct aq_kv_policy policy = aq_kv_kind_policy(&kinds->kind[k], user);
        aq_kv_kind_limits(&l, kinds, k, user, length->prompt, length->max_new);
        bool drops = aq_kv_limits_drop(&l, length->prompt, length->max_new);
        ret[k].drops = drops;
        ret[k].stat_pairs =
            drops ? aq_kv_policy_rank_pairs(&policy, &l, length->prompt, head_dim) : 0;
        ret[k].sums_all = drops && aq_kv_policy_sums_all(&policy, &l, length->prompt);
        ret[k].slots = aq_kv_limits_held(&l, length->prompt, seen);
        ret[k].full = ret[k].drops && ret[k].slots == l.slots && !l.bulk;
        ret[k].drop_every = ret[k].drop_leaves = 0;
        if (l.bulk && aq_kv_limits_most(&l, length->prompt, seen) == l.slots) {
            ret[k].drop_leaves = aq_kv_limits_cut(&l);
            ret[k].drop_every = l.slots - ret[k].drop_leaves;
            ret[k].slots = (ret[k].drop_leaves + 1 + l.slots) / 2;
        }
    }
}

/* Moves of KV of equal sequences in layers of one kind, averaged over passes at about the same
 * length (policy/traffic.h has the moves of one sequence in one pass). */
struct mean_rows {
    const struct aq_plan *plan;
    const struct aq_part *part;
    uint32_t kind, seats, prompt;
    uint32_t shared, sharing; /* tokens that so many of the seats do not compute, */
    bool copied;              /* and own all the same */
    struct aq_forecast_held held;
    struct aq_kv_sizes z;
};

static void fill_prefill(struct aq_kv_work *ret, const struct mean_rows *m)
{
    const struct aq_part *p = m->part;
    uint64_t n = m->seats, held = m->held.slots;
    struct aq_kv_policy policy = aq_plan_kind_policy(m->plan, m->kind);
    bool scored = m->held.drops && aq_kv_policy_scores(&policy);
    uint64_t window = m->plan->kinds.kind[m->kind].window;
    uint64_t not_made = m->copied ? 0 : (uint64_t)m->sharing * (m->shared / AQ_HEAD_BLOCK_SLOTS);
    uint64_t known = m->sharing * aq_seats_key_pairs(m->shared, window);
    ret->prefill_key_pairs = n * aq_seats_key_pairs(m->prompt, window) - known;
    ret->stat_key_pairs = n * m->held.stat_pairs - (m->held.sums_all ? known : 0);
    if (p->staged && p->tier == AQ_DISK)
        ret->write_bytes =
            (n * aq_kv_residual_whole(&m->plan->kv.residual, m->held.slots) - not_made) *
            m->z.run_stride;
    if (!p->staged || !m->plan->separate)
        return;
    ret->store_bytes = (n * aq_div_up(held, AQ_HEAD_BLOCK_SLOTS) - not_made) * m->z.run;
    if (scored && p->side == AQ_ATTEND_HOST)
        ret->store_bytes += n * m->z.slots;
}

/* KV of one sequence on disk that a separate device attends and overwrites: its delta is loaded and
 * stored, except in one pass of 32, in which all runs are stored to be written to disk. */
static void fill_delta(struct aq_kv_work *ret, const struct mean_rows *m)
{
    uint64_t held = m->held.slots, n = m->seats, usual = AQ_HEAD_BLOCK_SLOTS - 1;
    uint64_t run = m->z.run, runs = aq_div_up(held, AQ_HEAD_BLOCK_SLOTS);
    uint64_t tail = held % AQ_HEAD_BLOCK_SLOTS ? run : 0;
    uint64_t delta = held < AQ_HEAD_BLOCK_SLOTS ? 0 : m->z.delta; /* else all of it is tail */
    ret->load_bytes += n * delta * usual / AQ_HEAD_BLOCK_SLOTS;
    ret->store_bytes = n * ((delta + tail) * usual + runs * run) / AQ_HEAD_BLOCK_SLOTS;
}

/* Runs that close up are read and written; those of a sequence that is attended elsewhere go home
 * again whole. */
static void fill_drop(struct aq_kv_work *ret, const struct mean_rows *m)
{
    const struct aq_part *p = m->part;
    uint64_t left = m->held.drop_leaves, every = m->held.drop_every, n = m->seats;
    ret->decode_slots += n * 2 * left / every;
    if (p->staged && p->tier == AQ_DISK)
        ret->write_bytes += n * (left / AQ_HEAD_BLOCK_SLOTS) * m->z.run_stride / every;
    if (p->staged && m->plan->separate && p->side != AQ_ATTEND_HOST)
        ret->store_bytes += n * aq_div_up(left + 1, AQ_HEAD_BLOCK_SLOTS) * m->z.run / every;
}

static void fill_decode(struct aq_kv_work *ret, const struct mean_rows *m)
{
    const struct aq_part *p = m->part;
    const struct aq_kv_residual *residual = &m->plan->kv.residual;
    bool full = m->held.full;
    uint64_t n = m->seats, held = m->held.slots, before = full ? held : held - 1;
    uint64_t brought = (uint64_t)m->sharing * (m->shared / AQ_HEAD_BLOCK_SLOTS);
    ret->decode_keys = n * held;
    /* The last head-block is read whole: half full on average, as long as keys are added. */
    ret->decode_slots =
        n * (full ? aq_align_up(held, AQ_HEAD_BLOCK_SLOTS) : held + AQ_HEAD_BLOCK_SLOTS / 2);
    uint32_t read = aq_plan_kind_policy(m->plan, m->kind).read;
    if (residual->tokens || aq_kv_read_chooses(read, (uint32_t)held)) {
        struct aq_kv_reads reads = aq_kv_reads_of(&m->plan->shape, residual, read, (uint32_t)held);
        ret->decode_keys = n * reads.keys;
        ret->decode_slots = n * reads.slots;
    } else if (!m->plan->kinds.kind[m->kind].window) {
        ret->decode_joint = m->sharing * aq_seats_joint(m->shared, (uint32_t)held);
    }
    if (p->staged && p->tier == AQ_DISK) {
        uint64_t whole = aq_kv_residual_whole(residual, (uint32_t)before);
        ret->read_bytes = (n * whole - brought) * m->z.run_stride;
        /* One run is written in 32 passes, or, where keys take the slots of dropped ones, all
         * runs. */
        ret->write_bytes = n * (full ? whole + 1 : 1) * m->z.run_stride / AQ_HEAD_BLOCK_SLOTS;
    }
    if (p->staged && m->plan->separate && p->side != AQ_ATTEND_HOST) {
        ret->load_bytes = (n * aq_div_up(before, AQ_HEAD_BLOCK_SLOTS) - brought) * m->z.run;
        ret->store_bytes = n * (m->z.key + (full ? m->z.victims : 0));
        if (full && p->tier == AQ_DISK)
            fill_delta(ret, m);
    }
    if (m->held.drop_every)
        fill_drop(ret, m);
}

/* Do sequences of a part own all their slots? */
static bool owns_all(const struct aq_plan *plan, const struct aq_part *part,
                     const struct aq_forecast_rows *rows)
{
    bool drops = false;
    for (uint32_t k = 0; k < plan->kinds.count; k++)
        drops |= rows->held[k].drops;
    return drops || !aq_seats_shares(plan, part);
}

void aq_forecast_shape(struct aq_pass_shape *ret, const struct aq_model_steps *steps,
                       const struct aq_plan *plan, const struct aq_forecast_rows *rows)
{
    assert(rows->seats <= plan->shape.micro_batch);
    aq_pass_shape_clear(ret, plan);
    ret->logit_rows = rows->seats;
    for (uint32_t i = 0; i < plan->part_count; i++) {
        const struct aq_part *p = &plan->part[i];
        struct aq_part_shape *to = &ret->part[i];
        uint32_t taken = rows->seats > p->first ? rows->seats - p->first : 0;
        struct mean_rows m = {.plan = plan, .part = p, .prompt = rows->prompt};
        m.seats = taken < p->count ? taken : p->count;
        m.copied = owns_all(plan, p, rows);
        m.shared = m.copied ? rows->prompt ? rows->copied : 0 : rows->shared;
        m.sharing = m.seats - ((rows->leads || m.copied || !rows->prompt) && m.seats);
        to->prefill_rows = rows->prompt ? m.seats * rows->prompt - m.sharing * m.shared : 0;
        to->decode_rows = rows->prompt ? 0 : m.seats;
        ret->prefill_rows += to->prefill_rows;
        ret->decode_rows += to->decode_rows;
        for (m.kind = 0; m.kind < plan->kinds.count; m.kind++) {
            m.held = rows->held[m.kind];
            assert(m.held.slots >= 1);
            aq_kv_sizes_of(&m.z, plan, m.kind, steps->kv_heads, steps->head_dim);
            (rows->prompt ? fill_prefill : fill_decode)(&to->kv[m.kind], &m);
        }
    }
}

/* Seats of micro-batch k that are taken. */
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
    struct aq_op_cost *cost;     /* [PREFILL_PASSES][op_count] */
    struct aq_length mean;       /* of the sequences; shared: of whole pages */
    uint32_t copied;             /* and what is not computed of those who own their slots: */
    bool owned;                  /* in some part they do */
    struct aq_forecast_held held[AQ_KV_KINDS_MAX];
    bool timeline; /* keep every op's start and end */
};

/* Does every micro-batch have seats that compute what others share?  Where steps visit them up and
 * down, or KV passes through a stage. */
static bool each_leads(const struct aq_plan *plan)
{
    bool staged = false;
    for (uint32_t i = 0; i < plan->part_count; i++)
        staged |= plan->part[i].staged;
    return staged || plan->alternate;
}

/* The shape of a pass with these rows, when `sat` seats of every micro-batch were taken before and
 * `most` more do something. */
static void shape_pass(const struct maker *m, struct aq_forecast_rows rows, uint64_t sat,
                       uint64_t most, struct aq_op_cost *cost)
{
    const struct aq_plan *plan = &m->block->plan;
    bool leads = rows.leads;
    for (uint32_t k = 0; k < plan->shape.micro_batches; k++) {
        uint64_t seats = seated(plan, m->work, k);
        rows.seats = (uint32_t)aq_min_u64(most, seats > sat ? seats - sat : 0);
        rows.leads = leads && (k == 0 || each_leads(plan));
        aq_forecast_shape(&m->shape[k], m->work->steps, plan, &rows);
    }
    aq_program_annotate(cost, &m->block->program, m->work->steps, plan, &m->block->stream,
                        m->shape);
}

/* Simulates passes with these costs: all the same, or `stride` apart. */
static int play(struct aq_sim_result *ret, const struct maker *m, uint32_t passes, uint32_t stride,
                struct aq_err *reterr)
{
    struct aq_simulate_opts opts = {
        .passes = passes,
        .timeline = m->timeline,
        .serial = m->work->serial,
        .compute = m->block->plan.shape.products,
        .cost = m->cost,
        .cost_stride = stride,
    };
    assert(m->block->program.ordered);
    return aq_simulate(ret, &m->block->program, m->hw, &opts, reterr);
}

/* Prompts of a micro-batch in a pass of so many rows, one at least, from its first part on. */
static uint64_t prompts_of_pass(const struct maker *m, const struct aq_forecast_rows *rows)
{
    const struct aq_plan *plan = &m->block->plan;
    uint64_t left = aq_max_u64(plan->shape.prompt_tokens, rows->prompt), count = 0;
    for (uint32_t i = 0; i < plan->part_count; i++) {
        bool owned = owns_all(plan, &plan->part[i], rows);
        uint64_t each = rows->prompt - (owned ? rows->copied : rows->shared), seats;
        uint64_t first = owned || rows->leads ? rows->prompt : each;
        if (left < first)
            break;
        left -= first;
        seats = aq_min_u64(plan->part[i].count - 1, left / each);
        left -= seats * each;
        count += 1 + seats;
        if (seats + 1 < plan->part[i].count)
            break;
    }
    return count;
}

/* Full passes, and a last pass with the remaining prompts. */
static int forecast_prefill(struct aq_forecast *f, struct maker *m, struct aq_err *reterr)
{
    const struct aq_plan *plan = &m->block->plan;
    uint32_t ops = m->block->program.op_count, shared = m->mean.shared;
    struct aq_forecast_rows rows = {
        .prompt = m->mean.prompt, .shared = shared, .copied = m->copied, .held = m->held};
    uint64_t n = seated(plan, m->work, 0), made[PREFILL_PASSES] = {0};
    uint64_t seats = (uint64_t)plan->shape.micro_batch * plan->shape.micro_batches;
    /* The mean has the first prompt of all in it; of a later block one more is computed whole. */
    bool leads = shared && (!m->work->sequences || m->work->sequences > seats);
    aq_forecast_held_of(m->held, &plan->kinds, &plan->kv, m->work->steps->head_dim, &m->mean,
                        m->mean.prompt);
    uint64_t each = prompts_of_pass(m, &rows);
    rows.leads = leads;
    uint64_t first = prompts_of_pass(m, &rows);
    uint64_t all = 1 + (n > first ? aq_div_up(n - first, each) : 0);
    uint32_t played = (uint32_t)aq_min_u64(all, PREFILL_PASSES);
    for (uint32_t i = 0; i < played; i++) {
        uint64_t sat = i && i + 1 == played ? first + (all - 2) * each : 0;
        rows.leads = leads && i == 0;
        shape_pass(m, rows, sat, i ? each : first, m->cost + (size_t)i * ops);
        for (uint32_t k = 0; k < plan->shape.micro_batches; k++)
            made[i] += m->shape[k].prefill_rows;
        f->prompt_tokens += (double)made[i];
    }
    f->prompt_tokens += (double)(all - played) * (double)made[1];
    struct aq_sim_result r;
    int rc = play(&r, m, played, ops, reterr);
    if (rc < 0)
        return rc;
    f->prefill_passes = (uint32_t)all;
    f->prefill_pass_s = played > 2 ? r.end_s[1] - r.end_s[0] : r.end_s[0];
    f->prefill_s = r.end_s[played - 1] + (double)(all - played) * f->prefill_pass_s;
    aq_sim_result_close(&r);
    return 0;
}

static int play_decode(struct aq_sim_result *ret, struct maker *m, uint32_t passes,
                       struct aq_err *reterr)
{
    const struct aq_plan *plan = &m->block->plan;
    /* Half of the generated tokens are there. */
    uint32_t seen =
        (uint32_t)aq_max_u64(m->mean.prompt, (uint64_t)((m->work->prompt + m->work->total) / 2));
    aq_forecast_held_of(m->held, &plan->kinds, &plan->kv, m->work->steps->head_dim, &m->mean, seen);
    struct aq_forecast_rows rows = {.shared = m->mean.shared, .held = m->held};
    shape_pass(m, rows, 0, UINT64_MAX, m->cost);
    return play(ret, m, passes, 0, reterr);
}

static int forecast_decode(struct aq_forecast *f, struct maker *m, struct aq_err *reterr)
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
    if (!m->owned) /* by the mean as it is, whoever computes for others */
        f->prompt_tokens = seats * w->prompt - seats * m->mean.shared;
    f->tokens = seats * generated;
    f->block_s = f->prefill_s + fmax(0, generated - 1) * f->decode_pass_s;
    f->gen_tok_s = f->block_s > 0 ? f->tokens / f->block_s : 0;
    f->blocks = (double)w->sequences / fmax(1, seats);
    f->all_prefill_s = f->blocks * f->prefill_s;
    f->all_decode_s = f->blocks * (f->block_s - f->prefill_s);
}

/* What a mean sequence does not compute, where sequences share pages or own all their slots. */
static void find_shared(struct maker *m)
{
    const struct aq_plan *plan = &m->block->plan;
    struct aq_forecast_held held[AQ_KV_KINDS_MAX];
    struct aq_forecast_rows rows = {.held = held};
    aq_forecast_held_of(held, &plan->kinds, &plan->kv, m->work->steps->head_dim, &m->mean,
                        m->mean.prompt);
    for (uint32_t i = 0; i < plan->part_count; i++)
        m->owned |= owns_all(plan, &plan->part[i], &rows);
    m->copied = aq_forecast_copied(m->work, &plan->kinds, &plan->kv);
    m->mean.shared = aq_forecast_shared(m->work, plan->shape.page_slots);
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
    m.mean.prompt = mean_prompt(work);
    m.mean.max_new = (uint32_t)fmax(0, work->total - m.mean.prompt);
    find_shared(&m);
    m.shape = aq_pass_shapes_new(&block->plan);
    m.cost = calloc((size_t)PREFILL_PASSES * ops + 1, sizeof(*m.cost));
    if (!m.shape || !m.cost) {
        maker_close(&m);
        return aq_error_memory(reterr, "forecast of %u ops", ops);
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
    if (rc < 0 || !work->sequences) {
        *ret = rc < 0 ? *ret : f;
        return rc;
    }
    struct aq_forecast_work rest = *work;
    rest.sequences = (uint64_t)aq_forecast_rest(work, f.prompts);
    double whole = (double)(work->sequences - rest.sequences) / f.prompts;
    if (rest.sequences == work->sequences) /* the one block that is there */
        whole = 1;
    f.all_prefill_s = whole * f.prefill_s;
    f.all_decode_s = whole * (f.block_s - f.prefill_s);
    if (rest.sequences && rest.sequences < work->sequences) {
        rc = forecast_block(&last, block, &rest, hw, reterr);
        if (rc < 0)
            return rc;
        f.all_prefill_s += last.prefill_s;
        f.all_decode_s += last.block_s - last.prefill_s;
    }
    if (!work->refill)
        f.blocks = ceil(f.blocks);
    double all_s = f.all_prefill_s + f.all_decode_s;
    f.gen_tok_s = all_s > 0 ? (double)work->sequences * (work->total - work->prompt) / all_s : 0;
    *ret = f;
    return 0;
}

/* ---- a job ------------------------------------------------------------------------------- */

/* Up to so many passes and ops a job is played whole; a longer one by so many samples of each kind
 * of pass, with so many ops together. */
enum {
    PLAYED_MAX = 64,
    PLAYED_OPS = 1000 * 1000,
    SAMPLES_MAX = 16,
    PLAYED_RUN = 64,
    SAMPLE_OPS = 200 * 1000,
    SAMPLE_PASSES = 3
};
#define ADMIT_STEPS 1000000000ull

enum pass_kind { KIND_PREFILL, KIND_DECODE, KIND_MIXED, KINDS };

static enum pass_kind kind_of(uint32_t prefill, uint32_t decode)
{
    return prefill && decode ? KIND_MIXED : prefill ? KIND_PREFILL : KIND_DECODE;
}

struct job {
    struct maker m;
    struct aq_seating_opts seating;
    uint64_t passes[KINDS];
    double seconds[KINDS];
};

/* The costs of the pass that a seating is at. */
static void annotate(const struct job *j, const struct aq_seating *s, struct aq_op_cost *cost)
{
    const struct aq_block *b = j->m.block;
    aq_seating_shape(s, j->m.shape);
    aq_program_annotate(cost, &b->program, j->m.work->steps, &b->plan, &b->stream, j->m.shape);
}

static int count_passes(struct job *j, struct aq_err *reterr)
{
    struct aq_seating *s;
    uint32_t prefill, decode;
    int rc = aq_seating_open(&s, &j->seating, reterr);
    if (rc < 0)
        return rc;
    while (aq_seating_steps(s) < ADMIT_STEPS && aq_seating_next(s, &prefill, &decode))
        j->passes[kind_of(prefill, decode)]++;
    if (aq_seating_steps(s) >= ADMIT_STEPS)
        memset(j->passes, 0, sizeof(j->passes)); /* too long to find out */
    aq_seating_close(s);
    return 0;
}

/* All passes as they come. */
static int play_whole(struct job *j, uint32_t passes, struct aq_err *reterr)
{
    uint32_t ops = j->m.block->program.op_count, prefill, decode, i = 0;
    struct aq_op_cost *cost = calloc((size_t)passes * ops + 1, sizeof(*cost));
    enum pass_kind kind[PLAYED_MAX];
    struct aq_seating *s = NULL;
    int rc = cost ? aq_seating_open(&s, &j->seating, reterr)
                  : aq_error_memory(reterr, "forecast of %u ops", passes * ops);
    for (; rc == 0 && aq_seating_next(s, &prefill, &decode); i++) {
        assert(i < passes);
        kind[i] = kind_of(prefill, decode);
        annotate(j, s, cost + (size_t)i * ops);
    }
    aq_seating_close(s);
    struct aq_sim_result r;
    free(j->m.cost);
    j->m.cost = cost;
    rc = rc < 0 ? rc : play(&r, &j->m, passes, ops, reterr);
    if (rc < 0)
        return rc;
    for (i = 0; i < passes; i++)
        j->seconds[kind[i]] += r.end_s[i] - (i ? r.end_s[i - 1] : 0);
    aq_sim_result_close(&r);
    return 0;
}

/* Passes spread evenly over those of each kind, each repeated until it is steady. */
static int play_samples(struct job *j, struct aq_err *reterr)
{
    uint32_t ops = j->m.block->program.op_count, prefill, decode, played[KINDS] = {0};
    uint64_t most = aq_min_u64(SAMPLES_MAX, SAMPLE_OPS / SAMPLE_PASSES / (ops + 1) / KINDS);
    uint64_t seen[KINDS] = {0}, samples = aq_max_u64(4, most);
    struct aq_seating *s;
    int rc = aq_seating_open(&s, &j->seating, reterr);
    if (rc < 0)
        return rc;
    while (rc == 0 && aq_seating_next(s, &prefill, &decode)) {
        enum pass_kind k = kind_of(prefill, decode);
        uint64_t count = aq_min_u64(samples, j->passes[k]);
        /* The passes in the middle of `count` equal stretches. */
        if (seen[k]++ != (2 * played[k] + 1) * j->passes[k] / (2 * count))
            continue;
        struct aq_sim_result r;
        annotate(j, s, j->m.cost);
        rc = play(&r, &j->m, SAMPLE_PASSES, 0, reterr);
        if (rc < 0)
            break;
        j->seconds[k] += r.pass_s * (double)j->passes[k] / (double)count;
        played[k]++;
        aq_sim_result_close(&r);
    }
    aq_seating_close(s);
    return rc;
}

static bool share_any(const struct aq_length *length, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        if (length[i].shared)
            return true;
    }
    return false;
}

int aq_forecast_job(struct aq_forecast *io, const struct aq_block *block,
                    const struct aq_forecast_work *work, const struct aq_length *length,
                    uint32_t count, const struct aq_hardware *hw, struct aq_err *reterr)
{
    const struct aq_block_shape *shape = &block->plan.shape;
    uint64_t seats = (uint64_t)shape->micro_batch * shape->micro_batches;
    uint64_t most = aq_max_u64(4 * seats, 2048), all = work->sequences;
    /* Where lengths differ, admission compares every end with every seated sequence, which is
     * slow. */
    if (count > 1)
        most = aq_min_u64(most, ADMIT_STEPS / (seats * seats));
    struct job j = {
        .seating = {.steps = work->steps,
                    .block = block,
                    .length = length,
                    .length_count = count,
                    .sequences = aq_min_u64(all, most),
                    .refill = work->refill},
    };
    if (share_any(length, count) && count >= j.seating.sequences + PLAYED_RUN)
        j.seating.run = PLAYED_RUN;
    if (!all || !count || (all > most && (!work->refill || most < 2 * seats)))
        return 0; /* many whole blocks, or huge ones: the forecast of one block is good enough */
    int rc = maker_open(&j.m, block, work, hw, reterr);
    rc = rc < 0 ? rc : count_passes(&j, reterr);
    uint64_t passes = j.passes[KIND_PREFILL] + j.passes[KIND_DECODE] + j.passes[KIND_MIXED];
    bool few = passes <= PLAYED_MAX && passes * block->program.op_count <= PLAYED_OPS;
    if (rc == 0 && passes > 0)
        rc = few ? play_whole(&j, (uint32_t)passes, reterr) : play_samples(&j, reterr);
    maker_close(&j.m);
    if (rc < 0 || !passes)
        return rc;
    double times = (double)all / (double)j.seating.sequences, tokens = 0;
    for (uint64_t i = 0; i < j.seating.sequences; i++)
        tokens += length[aq_seating_item(&j.seating, i)].max_new;
    io->all_prefill_s = times * j.seconds[KIND_PREFILL];
    io->all_decode_s = times * (j.seconds[KIND_DECODE] + j.seconds[KIND_MIXED]);
    double total_s = io->all_prefill_s + io->all_decode_s;
    io->gen_tok_s = total_s > 0 ? times * tokens / total_s : 0;
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
