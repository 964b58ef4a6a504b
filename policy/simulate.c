/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/simulate.h"

#include "policy/checker.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

/* Loads and ends of ops are compared to within rounding errors. */
#define ROUNDING 1e-9

struct running {
    uint32_t op, pass;
    double bytes;
    double start_s;
    double overhead_s, work_s; /* remaining seconds; of work at full speed */
    double work_whole_s;
    double share[AQ_RESOURCE_SHARED_COUNT];               /* of each resource, at full speed */
    uint8_t takes[AQ_RESOURCE_SHARED_COUNT], takes_count; /* those it has a share of */
    double threads, aside;                                /* as struct aq_op_need has them */
    enum aq_resource own_limit;
    double speed;           /* of the work: 0..1 */
    enum aq_resource limit; /* the resource that slows the op now */
};

/* Sums from the start on. */
struct sums {
    double at_s;
    double busy_s[AQ_LANE_COUNT], bytes[AQ_LANE_COUNT];
    double limit_s[AQ_LANE_COUNT][AQ_RESOURCE_COUNT];
};

struct sim {
    const struct aq_program *p;
    const struct aq_hardware *hw;
    const struct aq_simulate_opts *opts;
    uint32_t *lane_op; /* ops of lane 0 in order, then of lane 1, ... */
    uint32_t lane_first[AQ_LANE_COUNT + 1];
    uint32_t head[AQ_LANE_COUNT], pass[AQ_LANE_COUNT];     /* the op that starts next */
    uint32_t awaited[AQ_LANE_COUNT], times[AQ_LANE_COUNT]; /* not before this op ended so often */
    uint32_t on_lane[AQ_LANE_COUNT], width[AQ_LANE_COUNT]; /* running now, at most */
    double busy_until_s[AQ_LANE_COUNT];                    /* when the lane's last op ended */
    uint32_t *done;                                        /* [op] passes */
    uint32_t *to_end; /* [pass] ops that must end before the pass has ended */
    uint32_t ended;   /* passes */
    uint64_t left;    /* ops of all passes */
    struct running *running;
    uint32_t running_count;
    double aside; /* threads of attention that runs beside products */
    double now_s;
    struct sums sums, first, last; /* now; where the steady passes begin and end */
    struct aq_sim_result r;
};

/* ---- sharing ---- */

static double taken(const struct running *x, uint32_t r)
{
    return x->overhead_s > 0 ? 0 : x->speed * x->share[r];
}

/* The weight of an op in sharing: the threads that it has for cores, else 1.  Attention beside
 * products has its own number of them, and products the others. */
static double weight(const struct sim *s, const struct running *x, uint32_t r)
{
    double threads = x->aside > 0 ? x->aside : x->threads - s->aside;
    return r == AQ_RESOURCE_CORES && threads > 1 ? threads : 1;
}

/* The max-min fair level (times weight) of a resource: ops that want more get this level, ops that
 * want less get all that they want, and the sum is the whole resource.  The level rises from round
 * to round, and each round settles at least one more op. */
static double fair_level(const struct sim *s, uint32_t r)
{
    double level = 0;
    for (uint32_t round = 0; round <= s->running_count; round++) {
        double settled = 0, cut = 0;
        for (uint32_t i = 0; i < s->running_count; i++) {
            const struct running *x = &s->running[i];
            double want = taken(x, r);
            if (want <= level * weight(s, x, r))
                settled += want;
            else
                cut += weight(s, x, r);
        }
        double next = cut > 0 ? (1 - settled) / cut : level;
        if (next <= level)
            break;
        level = next;
    }
    return level;
}

static uint32_t most_wanted(const struct sim *s)
{
    double worst = 1 + ROUNDING, load[AQ_RESOURCE_SHARED_COUNT] = {0};
    uint32_t ret = AQ_RESOURCE_SHARED_COUNT;
    for (uint32_t i = 0; i < s->running_count; i++) {
        const struct running *x = &s->running[i];
        for (uint32_t k = 0; k < x->takes_count && x->overhead_s <= 0; k++)
            load[x->takes[k]] += x->speed * x->share[x->takes[k]];
    }
    for (uint32_t r = 0; r < AQ_RESOURCE_SHARED_COUNT; r++) {
        if (load[r] > worst) {
            worst = load[r];
            ret = r;
        }
    }
    return ret;
}

/* Sets speeds: at first all are full; then the most overloaded resource is shared, until none is
 * overloaded.  Sharing only lowers speeds, so each resource is shared at most once. */
static void set_speeds(struct sim *s)
{
    s->aside = 0;
    for (uint32_t i = 0; i < s->running_count; i++) {
        struct running *x = &s->running[i];
        x->speed = 1;
        s->aside += x->aside;
        x->limit = x->overhead_s > 0 ? AQ_RESOURCE_OVERHEAD : x->own_limit;
    }
    uint32_t r;
    while ((r = most_wanted(s)) != AQ_RESOURCE_SHARED_COUNT) {
        double level = fair_level(s, r);
        for (uint32_t i = 0; i < s->running_count; i++) {
            struct running *x = &s->running[i];
            double most = level * weight(s, x, r), want = taken(x, r);
            if (want > most) {
                x->speed *= most / want;
                x->limit = (enum aq_resource)r;
            }
        }
    }
}

/* ---- starts and ends ---- */

static uint32_t lane_length(const struct sim *s, uint32_t lane)
{
    return s->lane_first[lane + 1] - s->lane_first[lane];
}

static bool runs_ahead(const struct aq_op *op)
{
    return op->object == AQ_OBJECT_WEIGHTS && (op->kind == AQ_OP_READ || op->kind == AQ_OP_H2D);
}

/* May the op at the head of the lane start?  If not for another op, that one is remembered. */
static bool can_start(struct sim *s, uint32_t lane)
{
    uint32_t pass = s->pass[lane];
    if (s->done[s->awaited[lane]] < s->times[lane] || s->on_lane[lane] >= s->width[lane] ||
        pass == s->r.passes || !lane_length(s, lane))
        return false;
    uint32_t i = s->lane_op[s->lane_first[lane] + s->head[lane]];
    const struct aq_op *op = &s->p->op[i];
    if (s->done[i] < pass || s->ended + runs_ahead(op) < pass)
        return false;
    for (uint32_t d = 0; d < op->dep_count; d++) {
        const struct aq_dep *dep = &aq_op_deps(s->p, op)[d];
        if (s->done[dep->op] + dep->back <= pass) {
            s->awaited[lane] = dep->op;
            s->times[lane] = pass - dep->back + 1;
            return false;
        }
    }
    return true;
}

/* An op of a pass has ended. */
static void finish(struct sim *s, uint32_t op, uint32_t pass)
{
    s->done[op]++;
    s->left--;
    s->to_end[pass]--;
    for (; s->ended < s->r.passes && s->to_end[s->ended] == 0; s->ended++) {
        s->r.end_s[s->ended] = s->now_s;
        s->sums.at_s = s->now_s;
        if (s->ended == 0)
            s->first = s->sums;
        if (s->ended + 2 == s->r.passes)
            s->last = s->sums;
    }
}

static const struct aq_op_cost *cost_of(const struct sim *s, uint32_t op, uint32_t pass)
{
    return s->opts->cost + pass * s->opts->cost_stride + op;
}

static void record(struct sim *s, const struct running *x)
{
    if (s->opts->timeline)
        s->r.event[s->r.event_count++] =
            (struct aq_sim_event){x->op, x->pass, x->start_s, s->now_s};
}

/* Does the lane's thread sleep, since it had no op before this one? */
static bool slept(const struct sim *s, uint32_t lane)
{
    return !s->opts->serial && !s->on_lane[lane] &&
           s->now_s > s->busy_until_s[lane] * (1 + ROUNDING);
}

/* Starts the op, or ends it at once where it takes no time; false: the machine has no rate for
 * it. */
static bool start(struct sim *s, uint32_t op, uint32_t pass)
{
    const struct aq_op_cost *cost = cost_of(s, op, pass);
    struct aq_op_need need;
    aq_hardware_need(&need, s->hw, &s->p->op[op], cost, s->opts->compute);
    if (!isfinite(need.work_s))
        return false;
    struct running x = {
        .op = op,
        .pass = pass,
        .bytes = (double)cost->move_bytes,
        .start_s = s->now_s,
        .overhead_s = need.overhead_s,
        .work_s = need.work_s,
        .work_whole_s = need.work_s,
        .threads = need.threads,
        .aside = need.aside,
        .own_limit = need.limit,
    };
    for (uint8_t r = 0; r < AQ_RESOURCE_SHARED_COUNT && need.work_s > 0; r++) {
        if (need.shared_s[r] <= 0)
            continue;
        x.share[r] = need.shared_s[r] / need.work_s;
        x.takes[x.takes_count++] = r;
    }
    if (need.overhead_s <= 0 && need.work_s <= 0) {
        if (aq_op_has_work(&s->p->op[op], cost))
            record(s, &x);
        finish(s, op, pass);
        return true;
    }
    uint32_t lane = s->p->op[op].lane;
    if (slept(s, lane))
        x.overhead_s += aq_hardware_wake(s->hw, (enum aq_lane)lane);
    s->running[s->running_count++] = x;
    s->on_lane[lane]++;
    return true;
}

/* Time until the first running op ends its overhead or its work. */
static double next_end(const struct sim *s)
{
    double ret = INFINITY;
    for (uint32_t i = 0; i < s->running_count; i++) {
        const struct running *x = &s->running[i];
        double end = x->overhead_s > 0 ? x->overhead_s : x->work_s / x->speed;
        ret = end < ret ? end : ret;
    }
    return ret;
}

static void add_up(struct sim *s, const struct running *x, double dt, bool *seen)
{
    uint32_t lane = s->p->op[x->op].lane;
    if (x->overhead_s <= 0 && x->work_whole_s > 0)
        s->sums.bytes[lane] += x->bytes * x->speed * dt / x->work_whole_s;
    if (seen[lane])
        return;
    seen[lane] = true;
    s->sums.busy_s[lane] += dt;
    s->sums.limit_s[lane][x->limit] += dt;
}

static void advance(struct sim *s, double dt)
{
    bool seen[AQ_LANE_COUNT] = {0};
    s->now_s += dt;
    for (uint32_t i = 0; i < s->running_count; i++) {
        struct running *x = &s->running[i];
        double *left = x->overhead_s > 0 ? &x->overhead_s : &x->work_s;
        double step = x->overhead_s > 0 ? dt : dt * x->speed;
        add_up(s, x, dt, seen);
        *left = *left - step <= ROUNDING * step ? 0 : *left - step;
    }
    uint32_t kept = 0;
    for (uint32_t i = 0; i < s->running_count; i++) {
        const struct running *x = &s->running[i];
        if (x->overhead_s > 0 || x->work_s > 0) {
            if (kept < i)
                s->running[kept] = *x;
            kept++;
            continue;
        }
        s->on_lane[s->p->op[x->op].lane]--;
        s->busy_until_s[s->p->op[x->op].lane] = s->now_s;
        record(s, x);
        finish(s, x->op, x->pass);
    }
    s->running_count = kept;
}

/* ---- both executors ---- */

static int no_rate(const struct sim *s, uint32_t op, struct aq_err *reterr)
{
    char who[160];
    aq_op_describe(who, sizeof(who), s->p, op);
    return aq_error(reterr, -EINVAL, "hardware: no rate above 0 for %s", who);
}

static int run_to_end(struct sim *s)
{
    while (s->running_count) {
        set_speeds(s);
        advance(s, next_end(s));
    }
    return 0;
}

static int play_serially(struct sim *s, struct aq_err *reterr)
{
    for (uint32_t pass = 0; pass < s->r.passes; pass++) {
        for (uint32_t i = 0; i < s->p->op_count; i++) {
            if (!start(s, i, pass))
                return no_rate(s, i, reterr);
            run_to_end(s);
        }
    }
    return 0;
}

/* Starts all ops that may start; ops without work end at once and may let others start. */
static int start_all(struct sim *s, struct aq_err *reterr)
{
    uint64_t left;
    do {
        left = s->left;
        for (uint32_t lane = 0; lane < AQ_LANE_COUNT; lane++) {
            while (can_start(s, lane)) {
                uint32_t op = s->lane_op[s->lane_first[lane] + s->head[lane]], pass = s->pass[lane];
                if (++s->head[lane] == lane_length(s, lane)) {
                    s->head[lane] = 0;
                    s->pass[lane]++;
                }
                if (!start(s, op, pass))
                    return no_rate(s, op, reterr);
            }
        }
    } while (s->left < left);
    return 0;
}

static int play_overlapped(struct sim *s, struct aq_err *reterr)
{
    while (s->left) {
        int rc = start_all(s, reterr);
        if (rc < 0)
            return rc;
        if (!s->running_count && s->left)
            return aq_error(reterr, -EDEADLK, "program: %llu ops of %u passes wait for one another",
                            (unsigned long long)s->left, s->r.passes);
        set_speeds(s);
        if (s->running_count)
            advance(s, next_end(s));
    }
    return 0;
}

/* ---- open, results ---- */

static bool open_sim(struct sim *s)
{
    const struct aq_program *p = s->p;
    uint32_t passes = s->opts->passes, running_max = 0;
    s->r.passes = passes;
    s->left = (uint64_t)passes * p->op_count;
    for (uint32_t lane = 0; lane < AQ_LANE_COUNT; lane++) {
        bool many = !aq_lane_in_order((enum aq_lane)lane) && s->hw->disk_in_flight > 1;
        s->width[lane] = many ? s->hw->disk_in_flight : 1;
        running_max += s->width[lane];
    }
    s->lane_op = calloc(p->op_count + 1, sizeof(*s->lane_op));
    s->done = calloc(p->op_count + 1, sizeof(*s->done));
    s->to_end = calloc(passes, sizeof(*s->to_end));
    s->running = calloc(running_max, sizeof(*s->running));
    s->r.end_s = calloc(passes, sizeof(*s->r.end_s));
    if (s->opts->timeline)
        s->r.event = calloc(s->left + 1, sizeof(*s->r.event));
    if (!s->lane_op || !s->done || !s->to_end || !s->running || !s->r.end_s ||
        (s->opts->timeline && !s->r.event))
        return false;
    uint32_t at = 0;
    for (uint32_t lane = 0; lane < AQ_LANE_COUNT; lane++) {
        s->lane_first[lane] = at;
        for (uint32_t i = 0; i < p->op_count; i++) {
            if (p->op[i].lane == lane)
                s->lane_op[at++] = i;
        }
    }
    s->lane_first[AQ_LANE_COUNT] = at;
    for (uint32_t pass = 0; pass < passes; pass++)
        s->to_end[pass] = p->op_count;
    return true;
}

static void sum_lane(struct aq_sim_lane *l, const struct sums *from, const struct sums *to,
                     uint32_t lane, double passes, double pass_s)
{
    l->busy_s = (to->busy_s[lane] - from->busy_s[lane]) / passes;
    l->bytes = (to->bytes[lane] - from->bytes[lane]) / passes;
    l->share = pass_s > 0 ? l->busy_s / pass_s : 0;
    l->bytes_per_s = pass_s > 0 ? l->bytes / pass_s : 0;
    double most = 0;
    l->limit = AQ_RESOURCE_OVERHEAD;
    for (uint32_t r = 0; r < AQ_RESOURCE_COUNT; r++) {
        double held = to->limit_s[lane][r] - from->limit_s[lane][r];
        if (held > most) {
            most = held;
            l->limit = (enum aq_resource)r;
        }
    }
}

/* The passes between the first and the last are steady: the first finds empty slots, and in the
 * last no weights run ahead. */
static void sum_up(struct sim *s)
{
    struct aq_sim_result *r = &s->r;
    static const struct sums nothing;
    uint32_t passes = r->passes > 2 ? r->passes - 2 : 1;
    const struct sums *from = r->passes == 1 ? &nothing : &s->first;
    const struct sums *to = r->passes > 2 ? &s->last : &s->sums;
    double to_s = r->passes > 2 ? s->last.at_s : r->end_s[r->passes - 1];
    r->pass_s = (to_s - from->at_s) / passes;
    for (uint32_t lane = 0; lane < AQ_LANE_COUNT; lane++) {
        sum_lane(&r->lane[lane], from, to, lane, passes, r->pass_s);
        if (r->lane[lane].busy_s > r->lane[r->binding_lane].busy_s)
            r->binding_lane = (enum aq_lane)lane;
    }
    r->binding = r->lane[r->binding_lane].limit;
}

int aq_simulate(struct aq_sim_result *ret, const struct aq_program *p, const struct aq_hardware *hw,
                const struct aq_simulate_opts *opts, struct aq_err *reterr)
{
    assert(opts->passes >= 1 && opts->cost);
    struct sim s = {.p = p, .hw = hw, .opts = opts};
    int rc;
    if (!open_sim(&s))
        rc = aq_error_memory(reterr, "simulator: %u passes of %u ops", opts->passes, p->op_count);
    else
        rc = opts->serial ? play_serially(&s, reterr) : play_overlapped(&s, reterr);
    if (rc == 0) {
        sum_up(&s);
        *ret = s.r;
    } else {
        aq_sim_result_close(&s.r);
    }
    free(s.lane_op);
    free(s.done);
    free(s.to_end);
    free(s.running);
    return rc;
}

void aq_sim_result_close(struct aq_sim_result *r)
{
    if (!r)
        return;
    free(r->end_s);
    free(r->event);
    *r = (struct aq_sim_result){0};
}
