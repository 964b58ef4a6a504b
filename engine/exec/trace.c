/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/exec/trace.h"

#include "policy/simulate.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The last passes need one more place, for weights that run ahead into the next pass. */
enum { EDGE = AQ_TRACE_PASSES, PLACES = 2 * EDGE + 1, ROWS_MAX = 64 };
enum { PREDICTED = 1, ACTUAL = 2 };
#define NONE UINT64_MAX

struct span {
    uint64_t pass, start_ns, end_ns;
};

struct place {
    uint64_t pass, start_ns, end_ns; /* NONE: no pass; end_ns 0: it has not ended */
    uint32_t prefill_rows, decode_rows;
    struct aq_op_cost *cost; /* [op_count] */
    struct span *span;       /* [op_count] */
};

struct aq_trace {
    struct aq_mem *mem;
    const struct aq_program *program;
    void *buffer;
    uint64_t passes; /* begun */
    struct place place[PLACES];
};

/* ---- recording ---- */

uint64_t aq_trace_bytes(uint32_t op_count)
{
    return (uint64_t)PLACES * op_count * (sizeof(struct aq_op_cost) + sizeof(struct span));
}

int aq_trace_open(struct aq_trace **ret, struct aq_mem *mem, const struct aq_program *program,
                  struct aq_err *reterr)
{
    uint32_t ops = program->op_count;
    struct aq_trace *t = calloc(1, sizeof(*t));
    if (!t)
        return aq_error_memory(reterr, "trace");
    t->mem = mem;
    t->program = program;
    int rc = aq_mem_alloc(&t->buffer, mem, AQ_HOST, "trace", aq_trace_bytes(ops), reterr);
    if (rc < 0) {
        free(t);
        return rc;
    }
    struct aq_op_cost *cost = t->buffer;
    struct span *span = (struct span *)(cost + (size_t)PLACES * ops);
    for (int i = 0; i < PLACES; i++) {
        t->place[i] = (struct place){
            .pass = NONE,
            .cost = cost + (size_t)i * ops,
            .span = span + (size_t)i * ops,
        };
        for (uint32_t n = 0; n < ops; n++)
            t->place[i].span[n].pass = NONE;
    }
    *ret = t;
    return 0;
}

void aq_trace_close(struct aq_trace *t)
{
    if (!t)
        return;
    aq_mem_free(t->mem, AQ_HOST, "trace", t->buffer, aq_trace_bytes(t->program->op_count));
    free(t);
}

static uint32_t place_of(uint64_t pass)
{
    return (uint32_t)(pass < EDGE ? pass : EDGE + (pass - EDGE) % (EDGE + 1));
}

void aq_trace_begin(struct aq_trace *t, uint64_t pass, uint64_t now_ns,
                    const struct aq_op_cost *cost, uint32_t prefill_rows, uint32_t decode_rows)
{
    if (!t)
        return;
    struct place *p = &t->place[place_of(pass)];
    p->pass = pass;
    p->start_ns = now_ns;
    p->end_ns = 0;
    p->prefill_rows = prefill_rows;
    p->decode_rows = decode_rows;
    memcpy(p->cost, cost, t->program->op_count * sizeof(*cost));
    t->passes = pass + 1;
}

void aq_trace_end(struct aq_trace *t, uint64_t pass, uint64_t now_ns)
{
    if (t)
        t->place[place_of(pass)].end_ns = now_ns;
}

void aq_trace_op(struct aq_trace *t, uint32_t op, uint64_t pass, uint64_t start_ns, uint64_t end_ns)
{
    if (t)
        t->place[place_of(pass)].span[op] = (struct span){pass, start_ns, end_ns};
}

/* ---- the file ---- */

/* An op or (lane AQ_LANE_COUNT) a pass, in nanoseconds since the first pass began. */
struct event {
    int64_t start_ns, end_ns;
    uint64_t pass;
    uint32_t op, lane, row;
};

struct list {
    struct event *event;
    size_t count, room;
};

struct writer {
    const struct aq_trace *t;
    const struct aq_trace_write_opts *opts;
    FILE *f;
    bool more; /* not the first event */
    uint64_t kept[2 * EDGE];
    uint32_t kept_count;
    int64_t origin_ns;
    int64_t free_ns; /* predicted: nothing is drawn after this time yet */
};

static const struct place *place_at(const struct writer *w, uint32_t i)
{
    return &w->t->place[place_of(w->kept[i])];
}

static void begin_event(struct writer *w)
{
    fputs(w->more ? ",\n" : "\n", w->f);
    w->more = true;
}

static void put_name(struct writer *w, int process, uint32_t thread, const char *what,
                     const char *name, uint32_t row)
{
    begin_event(w);
    fprintf(w->f, "{\"name\":\"%s\",\"ph\":\"M\",\"pid\":%d,\"tid\":%" PRIu32 ",\"args\":{", what,
            process, thread);
    if (row)
        fprintf(w->f, "\"name\":\"%s +%" PRIu32 "\"}}", name, row);
    else
        fprintf(w->f, "\"name\":\"%s\"}}", name);
}

static uint32_t thread_of(uint32_t lane, uint32_t row)
{
    return lane == AQ_LANE_COUNT ? 0 : 1 + lane * ROWS_MAX + row;
}

static void put_time(struct writer *w, const struct event *e, int process)
{
    int64_t length = e->end_ns - e->start_ns, start = e->start_ns;
    const char *sign = start < 0 ? "-" : "";
    start = start < 0 ? -start : start;
    fprintf(w->f,
            "\"ph\":\"X\",\"pid\":%d,\"tid\":%" PRIu32 ",\"ts\":%s%" PRId64 ".%03d,\"dur\":%" PRId64
            ".%03d,",
            process, thread_of(e->lane, e->row), sign, start / 1000, (int)(start % 1000),
            length / 1000, (int)(length % 1000));
}

static void put_pass(struct writer *w, const struct event *e, int process)
{
    const struct place *p = &w->t->place[place_of(e->pass)];
    const char *kind = !p->prefill_rows ? "decode" : !p->decode_rows ? "prefill" : "mixed";
    begin_event(w);
    fprintf(w->f, "{\"name\":\"pass %" PRIu64 " (%s)\",\"cat\":\"pass\",", e->pass, kind);
    put_time(w, e, process);
    fprintf(w->f, "\"args\":{\"pass\":%" PRIu64 ",\"prefill_rows\":%u,\"decode_rows\":%u}}",
            e->pass, p->prefill_rows, p->decode_rows);
}

static void put_op(struct writer *w, const struct event *e, int process)
{
    const struct aq_op *op = &w->t->program->op[e->op];
    const struct place *p = &w->t->place[place_of(e->pass)];
    /* A pass that never came has no costs; weights that ran ahead into it moved in full. */
    bool known = p->pass == e->pass;
    uint64_t moved = known ? p->cost[e->op].move_bytes : op->bytes_max;
    uint64_t touched = known ? p->cost[e->op].memory_bytes : 0;
    const char *object =
        op->object == AQ_OBJECT_NONE ? "" : aq_object_name((enum aq_object)op->object);
    begin_event(w);
    fprintf(w->f, "{\"name\":\"%s%s%s %u/%u/%u\",\"cat\":\"%s\",",
            aq_op_name((enum aq_op_kind)op->kind), object[0] ? " " : "", object, op->step,
            op->micro_batch, op->part, aq_op_name((enum aq_op_kind)op->kind));
    put_time(w, e, process);
    fprintf(w->f,
            "\"args\":{\"op\":%u,\"pass\":%" PRIu64
            ",\"step\":%u,\"micro_batch\":%u,\"part\":%u,\"bytes\":%" PRIu64 ",\"rows\":%u}}",
            e->op, e->pass, op->step, op->micro_batch, op->part, moved ? moved : touched,
            known ? p->cost[e->op].rows : 0);
}

static int by_lane_and_start(const void *a, const void *b)
{
    const struct event *x = a, *y = b;
    if (x->lane != y->lane)
        return x->lane < y->lane ? -1 : 1;
    if (x->start_ns != y->start_ns)
        return x->start_ns < y->start_ns ? -1 : 1;
    return x->op < y->op ? -1 : x->op > y->op;
}

/* Ops in flight at the same time get threads of their own, as events of one thread must not
 * overlap. */
static void give_rows(struct list *l, uint32_t rows[AQ_LANE_COUNT + 1])
{
    int64_t end_ns[ROWS_MAX] = {0};
    for (size_t i = 0; i < l->count; i++) {
        struct event *e = &l->event[i];
        if (i == 0 || e->lane != e[-1].lane)
            rows[e->lane] = 0;
        while (e->row + 1 < ROWS_MAX && e->row < rows[e->lane] && end_ns[e->row] > e->start_ns)
            e->row++;
        end_ns[e->row] = e->end_ns;
        rows[e->lane] = e->row >= rows[e->lane] ? e->row + 1 : rows[e->lane];
    }
}

static void put_list(struct writer *w, struct list *l, int process, const char *name)
{
    uint32_t rows[AQ_LANE_COUNT + 1] = {0};
    qsort(l->event, l->count, sizeof(*l->event), by_lane_and_start);
    give_rows(l, rows);
    put_name(w, process, 0, "process_name", name, 0);
    put_name(w, process, 0, "thread_name", "passes", 0);
    for (uint32_t lane = 0; lane < AQ_LANE_COUNT; lane++) {
        for (uint32_t row = 0; row < rows[lane]; row++)
            put_name(w, process, thread_of(lane, row), "thread_name",
                     aq_lane_name((enum aq_lane)lane), row);
    }
    for (size_t i = 0; i < l->count; i++)
        (l->event[i].lane == AQ_LANE_COUNT ? put_pass : put_op)(w, &l->event[i], process);
}

static void add(struct list *l, struct event e)
{
    assert(l->count < l->room);
    l->event[l->count++] = e;
}

/* ---- what happened, and what should have ---- */

static bool is_kept(const struct writer *w, uint64_t pass)
{
    for (uint32_t i = 0; i < w->kept_count; i++) {
        if (w->kept[i] == pass)
            return true;
    }
    return pass == w->t->passes; /* run ahead of the last pass */
}

static void list_actual(const struct writer *w, struct list *l)
{
    const struct aq_trace *t = w->t;
    for (int i = 0; i < PLACES; i++) {
        const struct place *p = &t->place[i];
        for (uint32_t op = 0; op < t->program->op_count; op++) {
            const struct span *s = &p->span[op];
            if (s->pass == NONE || !is_kept(w, s->pass))
                continue;
            add(l, (struct event){.start_ns = (int64_t)s->start_ns - w->origin_ns,
                                  .end_ns = (int64_t)s->end_ns - w->origin_ns,
                                  .pass = s->pass,
                                  .op = op,
                                  .lane = t->program->op[op].lane});
        }
    }
    for (uint32_t i = 0; i < w->kept_count; i++) {
        const struct place *p = place_at(w, i);
        uint64_t end = p->end_ns ? p->end_ns : p->start_ns; /* it failed */
        add(l, (struct event){.start_ns = (int64_t)p->start_ns - w->origin_ns,
                              .end_ns = (int64_t)end - w->origin_ns,
                              .pass = p->pass,
                              .lane = AQ_LANE_COUNT});
    }
}

static int64_t to_ns(double s)
{
    return (int64_t)llround(s * 1e9);
}

/* Simulates the kept passes [first, end), which follow one another.  Unless they begin the run, a
 * pass like their first one is simulated before them, so that the ring is as full as it was. */
static int list_group(struct writer *w, struct list *l, uint32_t first, uint32_t end,
                      struct aq_err *reterr)
{
    uint32_t ops = w->t->program->op_count, lead = w->kept[first] ? 1 : 0;
    uint32_t passes = lead + end - first;
    struct aq_op_cost *cost = calloc((size_t)passes * ops + 1, sizeof(*cost));
    if (!cost)
        return aq_error_memory(reterr, "trace: %u passes of %u ops", passes, ops);
    for (uint32_t i = 0; i < passes; i++) {
        uint32_t from = first + (i < lead ? 0 : i - lead);
        memcpy(cost + (size_t)i * ops, place_at(w, from)->cost, ops * sizeof(*cost));
    }
    struct aq_simulate_opts opts = {
        .passes = passes,
        .serial = w->opts->serial,
        .timeline = true,
        .compute = w->opts->compute,
        .cost = cost,
        .cost_stride = ops,
    };
    struct aq_sim_result r;
    int rc = aq_simulate(&r, w->t->program, w->opts->hw, &opts, reterr);
    free(cost);
    if (rc < 0)
        return rc;
    int64_t begin = lead ? to_ns(r.end_s[lead - 1]) : 0, least = begin, last = 0;
    for (uint32_t i = 0; i < r.event_count; i++) {
        if (r.event[i].pass >= lead)
            least = to_ns(r.event[i].start_s) < least ? to_ns(r.event[i].start_s) : least;
    }
    /* The group begins when its passes really began, or behind the events drawn before. */
    int64_t shift = (int64_t)place_at(w, first)->start_ns - w->origin_ns - begin;
    shift = shift + least < w->free_ns ? w->free_ns - least : shift;
    for (uint32_t i = 0; i < r.event_count; i++) {
        const struct aq_sim_event *e = &r.event[i];
        if (e->pass < lead)
            continue;
        add(l, (struct event){.start_ns = to_ns(e->start_s) + shift,
                              .end_ns = to_ns(e->end_s) + shift,
                              .pass = w->kept[first + e->pass - lead],
                              .op = e->op,
                              .lane = w->t->program->op[e->op].lane});
        last = to_ns(e->end_s) > last ? to_ns(e->end_s) : last;
    }
    for (uint32_t i = lead; i < passes; i++)
        add(l, (struct event){.start_ns = (i ? to_ns(r.end_s[i - 1]) : 0) + shift,
                              .end_ns = to_ns(r.end_s[i]) + shift,
                              .pass = w->kept[first + i - lead],
                              .lane = AQ_LANE_COUNT});
    w->free_ns = last + shift;
    aq_sim_result_close(&r);
    return 0;
}

static int list_predicted(struct writer *w, struct list *l, struct aq_err *reterr)
{
    int rc = 0;
    for (uint32_t first = 0, end; first < w->kept_count && rc == 0; first = end) {
        for (end = first + 1; end < w->kept_count && w->kept[end] == w->kept[end - 1] + 1; end++)
            ;
        rc = list_group(w, l, first, end, reterr);
    }
    return rc;
}

static void find_kept(struct writer *w)
{
    uint64_t passes = w->t->passes;
    for (uint64_t p = 0; p < passes && p < EDGE; p++)
        w->kept[w->kept_count++] = p;
    for (uint64_t p = passes > 2 * EDGE ? passes - EDGE : EDGE; p < passes; p++)
        w->kept[w->kept_count++] = p;
    w->origin_ns = w->kept_count ? (int64_t)place_at(w, 0)->start_ns : 0;
}

static int write_events(struct writer *w, struct aq_err *reterr)
{
    struct list l = {.room = (size_t)PLACES * (w->t->program->op_count + 1)};
    l.event = calloc(l.room, sizeof(*l.event));
    if (!l.event)
        return aq_error_memory(reterr, "trace: %zu events", l.room);
    int rc = w->opts->hw ? list_predicted(w, &l, reterr) : 0;
    if (rc == 0) {
        fputs("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[", w->f);
        if (w->opts->hw)
            put_list(w, &l, PREDICTED, "predicted");
        memset(l.event, 0, l.room * sizeof(*l.event));
        l.count = 0;
        list_actual(w, &l);
        put_list(w, &l, ACTUAL, "actual");
        fprintf(w->f, "\n],\"otherData\":{\"passes\":%" PRIu64 ",\"passes_kept\":%u}}\n",
                w->t->passes, w->kept_count);
    }
    free(l.event);
    return rc;
}

int aq_trace_write(const struct aq_trace *t, const struct aq_trace_write_opts *opts,
                   struct aq_err *reterr)
{
    struct writer w = {.t = t, .opts = opts, .f = fopen(opts->path, "we")};
    if (!w.f)
        return aq_error(reterr, -errno, "trace '%s' could not be written: %s", opts->path,
                        strerror(errno));
    find_kept(&w);
    int rc = write_events(&w, reterr);
    bool bad = ferror(w.f);
    bad |= fclose(w.f) != 0;
    if (rc == 0 && bad)
        rc = aq_error(reterr, -EIO, "trace '%s' could not be written", opts->path);
    return rc;
}
