/* SPDX-License-Identifier: Apache-2.0
 * Prompts whose heads of all layers share one budget (policy/kv_cross.h).  Such a prompt is held
 * whole in its pages while its layers are attended, or, where layers are cut before, what is left
 * of each.  Each leaves the ranks of its keys where their positions come to be, and what its
 * head-blocks cost.  The op of the last layer cuts: of each layer what stays is gathered in
 * scratch, and goes home packed, to the layer's first runs.  The seat's next TURN gives back the
 * pages of the other runs. */
#include "engine/exec/exec.h"

#include <assert.h>
#include <string.h>

/* One layer of such a prompt: where its numbers lie, and scratch. */
struct cross {
    struct aq_executor *x;
    const struct aq_compute *c;
    const struct aq_kv_limits *limits;
    uint32_t seat, layer, prompt, heads;
    struct aq_attn_slots slots; /* ranks, then positions */
    uint32_t costs;             /* of a head */
    uint32_t *cost, *gone, *lens;
    uint32_t *list, *count, *work; /* [heads][stride of the slots], [heads], [2][prompt] */
};

static struct cross cross_of(struct aq_executor *x, const struct aq_compute *c, uint32_t seat,
                             uint32_t layer)
{
    const struct aq_seat *s = &x->seats.seat[seat];
    const struct aq_kv_prefill_layout *layout = &x->prompt_layout;
    uint8_t *scratch = x->prompt_room[0].scratch;
    struct aq_attn_slots slots = aq_kv_slots(x->kv, seat, layer);
    return (struct cross){
        .x = x,
        .c = c,
        .limits = &s->kv[x->plan->kinds.of[layer]].limits,
        .seat = seat,
        .layer = layer,
        .prompt = s->prompt,
        .heads = x->steps->kv_heads,
        .slots = slots,
        .costs = slots.stride / AQ_HEAD_BLOCK_SLOTS,
        .cost = aq_kv_costs(x->kv, seat, layer),
        .gone = aq_kv_gone(x->kv, seat, layer),
        .lens = aq_kv_lens(x->kv, seat, layer),
        .list = (uint32_t *)(scratch + layout->keep),
        .count = (uint32_t *)(scratch + layout->count),
        .work = (uint32_t *)(scratch + layout->sort),
    };
}

static void move(const struct cross *o, const struct aq_kv_move *m)
{
    struct aq_kv_moves one = {m, 1, o->x->plan->shape.kv_format, o->heads, o->x->steps->head_dim};
    o->c->kernels->kv_move(o->c->exec, &one);
}

static struct aq_kv_side in_scratch(const struct cross *o)
{
    return (struct aq_kv_side){.block = o->x->prompt_room[0].block,
                               .block_count = (uint32_t)aq_div_up(o->prompt, AQ_HEAD_BLOCK_SLOTS),
                               .head_offset = aq_kv_head_offset(o->x->kv)};
}

/* Packed as the heads' lengths say, or as a whole prompt lies. */
static struct aq_kv_side at_home(const struct cross *o, bool packed)
{
    struct aq_kv_side side = in_scratch(o);
    struct aq_kv_growth g = {.packed = aq_kv_packed(o->x->kv, o->seat, o->layer)};
    struct aq_attn_seq seq;
    uint8_t *const *run = aq_kv_blocks(o->x->kv, o->seat, o->layer);
    side.block = run;
    if (!packed)
        return side;
    aq_kv_ragged_table(o->x->kv, &seq, o->seat, o->layer, &g, 0, run);
    side.block = seq.block;
    side.head_table_step = seq.head_table_step;
    side.head_offset = seq.head_offset;
    return side;
}

static uint32_t *row_of(const struct cross *o, uint32_t *rows, uint32_t head)
{
    return rows + (size_t)head * o->slots.stride;
}

/* The positions that a head keeps once it has given up so many head-blocks, in place of its ranks
 * or elsewhere. */
static void list_kept(const struct cross *o, uint32_t *positions, uint32_t head, uint32_t freed)
{
    aq_kv_cross_keep(positions, row_of(o, o->slots.position, head), o->limits, o->prompt, freed,
                     o->cost + (size_t)head * o->costs);
}

void exec_cross_rank(struct aq_executor *x, const struct aq_compute *c, uint32_t seat,
                     uint32_t layer, const float *value)
{
    struct cross o = cross_of(x, c, seat, layer);
    for (uint32_t h = 0; h < o.heads; h++) {
        uint32_t *rank = row_of(&o, o.slots.position, h);
        aq_kv_cross_ranks(rank, value + (size_t)h * x->prompt_layout.stride, o.prompt);
        aq_kv_cross_costs(o.cost + (size_t)h * o.costs, rank, o.work, o.limits, o.prompt);
    }
    aq_kv_cross_cut_layer(o.gone, o.cost, o.costs, o.heads, o.limits, o.prompt);
    if (!aq_kv_cross_cuts_layers(o.limits, o.prompt))
        return;
    for (uint32_t h = 0; h < o.heads; h++) {
        o.lens[h] = aq_kv_cross_left(o.prompt, o.gone[h]);
        list_kept(&o, row_of(&o, o.list, h), h, o.gone[h]);
    }
    struct aq_kv_move home = {.from = in_scratch(&o), .to = at_home(&o, true)};
    home.from.list = o.list;
    home.from.list_stride = o.slots.stride;
    home.count = o.lens;
    home.count_step = 1;
    move(&o, &home);
}

/* Which slots of a head stay, of those that are left: both are rising positions. */
static void list_slots(uint32_t *slot, const uint32_t *kept, uint32_t count, const uint32_t *left)
{
    for (uint32_t i = 0, at = 0; i < count; i++, at++) {
        while (left[at] != kept[i])
            at++;
        slot[i] = at;
    }
}

/* Moves what stays of a layer, of whose heads lens[h] are the head-blocks given up in all, and then
 * the slots that are left. */
static void pack(const struct cross *o)
{
    bool packed = aq_kv_cross_cuts_layers(o->limits, o->prompt);
    for (uint32_t h = 0; h < o->heads; h++) {
        uint32_t *kept = row_of(o, o->slots.position, h), freed = o->lens[h];
        o->count[h] = aq_kv_cross_left(o->prompt, freed);
        o->lens[h] = aq_kv_cross_left(o->prompt, o->gone[h]);
        list_kept(o, o->work, h, o->gone[h]);
        list_kept(o, kept, h, freed);
        list_slots(row_of(o, o->list, h), kept, o->count[h], o->work);
    }
    struct aq_kv_move gather = {
        .from = at_home(o, packed), .to = in_scratch(o), .count = o->count, .count_step = 1};
    gather.from.list = o->list;
    gather.from.list_stride = o->slots.stride;
    move(o, &gather);
    memcpy(o->lens, o->count, o->heads * sizeof(*o->lens));
    struct aq_kv_move home = {
        .from = in_scratch(o), .to = at_home(o, true), .count = o->lens, .count_step = 1};
    move(o, &home);
}

/* Tells tests what a layer keeps. */
static void report(const struct cross *o)
{
    struct aq_kv_seen seen = {
        .sequence = o->x->seat[o->seat].sequence,
        .layer = o->layer,
        .kv_heads = o->heads,
        .seen = o->x->seats.seat[o->seat].seen,
        .held = o->limits->heavy_prompt + o->limits->recent_prompt,
        .len = o->lens,
        .len_step = 1,
        .slots = o->slots,
    };
    if (o->x->opts.kv_seen)
        o->x->opts.kv_seen(o->x->opts.kv_user, &seen);
}

void exec_cross_cut(struct aq_executor *x, const struct aq_compute *c, uint32_t seat, uint32_t kind)
{
    const struct aq_kv_kinds *kinds = &x->plan->kinds;
    const uint32_t *cost[AQ_LAYERS_MAX], *gone[AQ_LAYERS_MAX];
    uint32_t *freed[AQ_LAYERS_MAX], layers[AQ_LAYERS_MAX], count = 0;
    struct cross o = {0};
    for (uint32_t layer = 0; layer < kinds->layers; layer++) {
        if (kinds->of[layer] != kind)
            continue;
        o = cross_of(x, c, seat, layer);
        cost[count] = o.cost;
        gone[count] = o.gone;
        freed[count] = o.lens;
        layers[count++] = layer;
    }
    struct aq_kv_cross_heads heads = {.layers = count,
                                      .kv_heads = o.heads,
                                      .cost = cost,
                                      .cost_stride = o.costs,
                                      .gone = gone,
                                      .freed = freed};
    aq_kv_cross_cut(&heads, o.limits, o.prompt);
    for (uint32_t i = 0; i < count; i++) {
        o = cross_of(x, c, seat, layers[i]);
        pack(&o);
        report(&o);
    }
}
