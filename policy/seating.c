/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/seating.h"

#include "policy/seats.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

struct aq_seating {
    struct aq_seating_opts o;
    struct aq_seats seats;
    struct aq_seats_arrays arrays;
    uint32_t *turn;   /* [micro-batches] in the order of the program's TURN ops */
    uint64_t waiting; /* the next sequence that takes a seat */
    uint32_t *alike;  /* [seats] tokens that it shares with the sequence in each, */
    uint32_t most;    /* and with any at most */
    bool begun;
};

uint32_t aq_seating_item(const struct aq_seating_opts *o, uint64_t sequence)
{
    if (o->run <= 1)
        return (uint32_t)(sequence * o->length_count / o->sequences);
    uint64_t runs = aq_div_up(o->sequences, o->run);
    return (uint32_t)(sequence / o->run * o->length_count / runs + sequence % o->run);
}

/* What a sequence shares with the one before it: what all lengths between theirs do, which are left
 * out; or what those do that its length stands for, up to the next. */
static uint32_t shared_by(const struct aq_seating *s, uint64_t sequence)
{
    uint32_t least = UINT32_MAX, at = aq_seating_item(&s->o, sequence);
    uint32_t before = aq_seating_item(&s->o, sequence - 1);
    if (before == at)
        return at + 1 < s->o.length_count ? s->o.length[at + 1].shared : 0;
    for (uint32_t i = before + 1; i <= at; i++)
        least = s->o.length[i].shared < least ? s->o.length[i].shared : least;
    return least;
}

static bool next_waiting(void *user, struct aq_sitter *ret)
{
    const struct aq_seating *s = user;
    if (s->waiting == s->o.sequences)
        return false;
    const struct aq_length *l = &s->o.length[aq_seating_item(&s->o, s->waiting)];
    *ret = (struct aq_sitter){.prompt = l->prompt, .max_new = l->max_new, .shares = s->most};
    return true;
}

static uint32_t begins_alike(void *user, uint32_t from, uint32_t known)
{
    (void)known;
    return ((const struct aq_seating *)user)->alike[from];
}

static void has_sat(void *user, uint32_t seat)
{
    struct aq_seating *s = user;
    if (++s->waiting == s->o.sequences)
        return;
    uint32_t shared = shared_by(s, s->waiting);
    s->alike[seat] = UINT32_MAX;
    for (uint32_t i = 0; i < s->seats.count; i++)
        s->alike[i] = s->alike[i] < shared ? s->alike[i] : shared;
    s->most = shared; /* what it shares with the one before it, and with no other more */
}

static bool has_ended(void *user, uint32_t seat)
{
    const struct aq_seat *t = &((const struct aq_seating *)user)->seats.seat[seat];
    return t->seen == t->last;
}

/* Lengths hold nothing. */
static void is_gone(void *user, uint32_t seat)
{
    (void)user;
    (void)seat;
}

static const struct aq_seats_ops ops = {.next = next_waiting,
                                        .alike = begins_alike,
                                        .sat = has_sat,
                                        .ended = has_ended,
                                        .gone = is_gone};

int aq_seating_open(struct aq_seating **ret, const struct aq_seating_opts *opts,
                    struct aq_err *reterr)
{
    struct aq_seating *s = calloc(1, sizeof(*s));
    const struct aq_block_shape *shape = &opts->block->plan.shape;
    size_t seats = (size_t)shape->micro_batch * shape->micro_batches;
    size_t kinds = opts->block->plan.kinds.count;
    assert(opts->length_count && opts->sequences);
    assert(opts->run <= 1 || opts->length_count >= opts->sequences + opts->run);
    if (s) {
        struct aq_seats_opts o = {.steps = opts->steps,
                                  .plan = &opts->block->plan,
                                  .refill = opts->refill,
                                  .ops = &ops,
                                  .user = s};
        s->o = *opts;
        s->turn = calloc(shape->micro_batches, sizeof(*s->turn));
        s->alike = calloc(seats, sizeof(*s->alike));
        s->arrays = (struct aq_seats_arrays){
            .seat = calloc(seats, sizeof(*s->arrays.seat)),
            .kv = calloc((seats + 1) * kinds, sizeof(*s->arrays.kv)),
            .lengths = calloc((seats + 1) * kinds, sizeof(*s->arrays.lengths)),
            .prompt_rows = calloc(shape->micro_batches, sizeof(*s->arrays.prompt_rows)),
            .order = calloc(seats, sizeof(*s->arrays.order)),
        };
        if (s->turn && s->alike && s->arrays.seat && s->arrays.kv && s->arrays.lengths &&
            s->arrays.prompt_rows && s->arrays.order)
            aq_seats_open(&s->seats, &o, &s->arrays);
    }
    if (!s || !s->seats.seat) {
        aq_seating_close(s);
        return aq_error_memory(reterr, "forecast of %zu seats", seats);
    }
    const struct aq_program *p = &opts->block->program;
    for (uint32_t i = 0, k = 0; i < p->op_count; i++) {
        if (p->op[i].kind == AQ_OP_TURN)
            s->turn[k++] = p->op[i].micro_batch;
    }
    *ret = s;
    return 0;
}

void aq_seating_close(struct aq_seating *s)
{
    if (!s)
        return;
    free(s->arrays.seat);
    free(s->arrays.kv);
    free(s->arrays.lengths);
    free(s->arrays.prompt_rows);
    free(s->arrays.order);
    free(s->turn);
    free(s->alike);
    free(s);
}

bool aq_seating_next(struct aq_seating *s, uint32_t *ret_prefill, uint32_t *ret_decode)
{
    uint32_t prefill = 0, decode = 0;
    for (uint32_t k = 0; k < s->o.block->plan.shape.micro_batches && s->begun; k++)
        aq_seats_turn(&s->seats, s->turn[k]);
    s->begun = true;
    aq_seats_begin_pass(&s->seats);
    for (uint32_t i = 0; i < s->seats.count; i++) {
        const struct aq_seat *t = &s->seats.seat[i];
        if (t->rows && t->seen > t->prompt)
            decode++;
        else
            prefill += t->rows;
    }
    *ret_prefill = prefill;
    *ret_decode = decode;
    return prefill + decode > 0;
}

void aq_seating_shape(const struct aq_seating *s, struct aq_pass_shape *ret)
{
    const struct aq_plan *plan = &s->o.block->plan;
    for (uint32_t k = 0; k < plan->shape.micro_batches; k++)
        aq_pass_shape_clear(&ret[k], plan);
    for (uint32_t i = 0; i < s->seats.count; i++) {
        struct aq_pass_shape *of = &ret[i / plan->shape.micro_batch];
        const struct aq_seat *t = &s->seats.seat[i];
        if (!t->rows)
            continue;
        aq_seats_count(&s->seats, i, &of->part[aq_seats_part(plan, i)]);
        bool decodes = t->seen > t->prompt;
        of->decode_rows += decodes;
        of->prefill_rows += decodes ? 0 : t->rows;
        of->logit_rows++;
    }
}

const struct aq_seats *aq_seating_seats(const struct aq_seating *s)
{
    return &s->seats;
}

uint64_t aq_seating_steps(const struct aq_seating *s)
{
    return s->seats.steps;
}
