/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/kv_layout.h"

#include "policy/kv_read.h"

/* Places `bytes` at the end of a layout, on a cache line of their own. */
static uint64_t place(uint64_t *end, uint64_t bytes)
{
    uint64_t at = *end;
    *end = aq_align_up(at + bytes, 64);
    return at;
}

void aq_kv_layout_slots(struct aq_kv_layout *ret, const struct aq_plan *plan, uint32_t kind,
                        uint32_t kv_heads)
{
    struct aq_kv_policy room;
    const struct aq_kv_policy *policy = aq_plan_kind_policy_in(&room, plan, kind);
    *ret = (struct aq_kv_layout){0};
    uint64_t row = 0;
    if (aq_kv_policy_drops(policy)) {
        ret->stride = (uint32_t)aq_align_up(plan->kinds.kind[kind].head_slots, AQ_HEAD_BLOCK_SLOTS);
        row = 4ull * kv_heads * ret->stride;
    }
    ret->score = place(&ret->bytes, aq_kv_policy_scores(policy) ? row : 0);
    ret->position = place(&ret->bytes, row);
    ret->victim = place(&ret->bytes, row ? 4ull * kv_heads : 0);
    if (aq_kv_policy_cross(policy)) {
        ret->cost = place(&ret->bytes, row / AQ_HEAD_BLOCK_SLOTS);
        ret->gone = place(&ret->bytes, 4ull * kv_heads);
    }
    if (aq_kv_policy_profiled(policy)) {
        ret->rule = place(&ret->bytes, 4ull * kv_heads);
        ret->grown = place(&ret->bytes, 4ull * kv_heads);
    }
    ret->residual = place(&ret->bytes, aq_kv_residual_bytes(&plan->shape, &plan->kv.residual, 1));
}

const char *aq_kv_layout_purpose(const struct aq_plan *plan)
{
    return plan->shape.plain_run_bytes ? "kv residual" : "kv scores";
}

struct aq_kv_reads aq_kv_reads_of(const struct aq_block_shape *shape,
                                  const struct aq_kv_residual *residual, uint32_t read,
                                  uint32_t held)
{
    uint64_t blocks = aq_div_up(held, AQ_HEAD_BLOCK_SLOTS);
    struct aq_kv_reads r = {held, blocks * AQ_HEAD_BLOCK_SLOTS};
    if (shape->plain_run_bytes) {
        uint64_t coded = aq_kv_residual_coded(residual, held);
        r.slots = AQ_HEAD_BLOCK_SLOTS *
                  (coded + aq_div_up((blocks - coded) * shape->plain_run_bytes, shape->run_bytes));
    } else if (aq_kv_read_chooses(read, held)) {
        uint64_t bounded = held / AQ_HEAD_BLOCK_SLOTS;
        r.keys = aq_kv_read_slots(read, held) + bounded / 2;
        r.slots = aq_align_up(aq_kv_read_slots(read, held), AQ_HEAD_BLOCK_SLOTS) +
                  aq_div_up(AQ_HEAD_BLOCK_SLOTS * bounded * shape->bound_bytes, shape->run_bytes);
    }
    return r;
}

uint32_t aq_kv_bound_groups_of(const struct aq_kv_kind *kind)
{
    return kind->chooses ? aq_kv_bound_groups(kind->head_slots / AQ_HEAD_BLOCK_SLOTS) : 0;
}

uint64_t aq_kv_bounds_bytes(const struct aq_block_shape *shape, const struct aq_kv_kind *kind)
{
    return shape->bound_bytes * aq_kv_bound_groups_of(kind) * AQ_KV_BOUND_BLOCKS;
}

uint64_t aq_kv_kinds_bounds_bytes(const struct aq_block_shape *shape,
                                  const struct aq_kv_kinds *kinds)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < kinds->count; i++)
        bytes += kinds->kind[i].layers * aq_kv_bounds_bytes(shape, &kinds->kind[i]);
    return bytes;
}

uint64_t aq_kv_residual_bytes(const struct aq_block_shape *shape,
                              const struct aq_kv_residual *residual, uint32_t layers)
{
    return layers * aq_kv_residual_runs(residual) * shape->plain_run_bytes;
}

void aq_kv_layout_delta(struct aq_kv_delta_layout *ret, const struct aq_plan *plan,
                        uint32_t kv_heads)
{
    *ret = (struct aq_kv_delta_layout){0};
    if (!aq_kv_kinds_drop(&plan->kinds, &plan->kv))
        return;
    place(&ret->bytes, plan->shape.run_bytes);
    ret->target = place(&ret->bytes, 4ull * kv_heads * AQ_HEAD_BLOCK_SLOTS);
}

void aq_kv_layout_drop(struct aq_kv_drop_layout *ret, const struct aq_plan *plan, uint32_t kv_heads)
{
    uint64_t row = 0;
    *ret = (struct aq_kv_drop_layout){0};
    for (uint32_t i = 0; i < plan->kinds.count && plan->kv.bulk; i++) {
        struct aq_kv_layout slots;
        aq_kv_layout_slots(&slots, plan, i, kv_heads);
        row = aq_max_u64(row, 4ull * kv_heads * slots.stride);
    }
    if (!row)
        return;
    ret->value = place(&ret->bytes, plan->kv.decode.pool ? row : 0);
    ret->keep = place(&ret->bytes, row);
    ret->count = place(&ret->bytes, 4ull * kv_heads);
}

struct aq_kv_beside aq_kv_beside_of(const struct aq_plan *plan, uint32_t kv_heads)
{
    struct aq_kv_beside sum = {0};
    for (uint32_t i = 0; i < plan->kinds.count; i++) {
        struct aq_kv_layout slots;
        aq_kv_layout_slots(&slots, plan, i, kv_heads);
        sum.slots_bytes += plan->kinds.kind[i].layers * slots.bytes;
        sum.dropping += slots.stride ? plan->kinds.kind[i].layers : 0;
    }
    return sum;
}

bool aq_kv_rows_apart(enum aq_dtype format)
{
    return format == AQ_F32 || format == AQ_F16 || format == AQ_BF16;
}

void aq_kv_sizes_of(struct aq_kv_sizes *ret, const struct aq_plan *plan, uint32_t kind,
                    uint32_t kv_heads, uint32_t head_dim)
{
    enum aq_dtype t = plan->shape.kv_format;
    uint64_t run = plan->shape.run_bytes;
    struct aq_kv_layout slots;
    struct aq_kv_delta_layout delta;
    aq_kv_layout_slots(&slots, plan, kind, kv_heads);
    aq_kv_layout_delta(&delta, plan, kv_heads);
    *ret = (struct aq_kv_sizes){
        .run = run,
        .run_stride = aq_align_up(run, AQ_PANEL_ALIGN),
        .key = aq_kv_rows_apart(t) ? 2ull * kv_heads * head_dim * aq_dtype_bytes(t) : run,
        .victims = kv_heads * sizeof(uint32_t),
        .slots = slots.bytes,
        .delta = delta.bytes,
    };
}

void aq_kv_layout_prefill(struct aq_kv_prefill_layout *ret, const struct aq_plan *plan,
                          const struct aq_model_steps *m)
{
    uint32_t heads = m->heads, kv_heads = m->kv_heads;
    uint64_t plain = plan->shape.plain_run_bytes, run = plain ? plain : plan->shape.run_bytes;
    *ret = (struct aq_kv_prefill_layout){0};
    if (!plain && !aq_kv_kinds_drop(&plan->kinds, &plan->kv))
        return;
    uint32_t prompt = plan->shape.prompt_max, kept = 0;
    for (uint32_t i = 0; i < plan->kinds.count; i++) {
        struct aq_kv_layout slots;
        aq_kv_layout_slots(&slots, plan, i, kv_heads);
        kept = slots.stride > kept ? slots.stride : kept;
    }
    ret->stride = (uint32_t)aq_align_up(prompt, AQ_HEAD_BLOCK_SLOTS);
    place(&ret->room_bytes, ret->stride / AQ_HEAD_BLOCK_SLOTS * run);
    const struct aq_kv_policy *kv = &plan->kv;
    bool columns = kv->prompt.source == AQ_KV_SOURCE_COLUMNS;
    bool by_position = kv->prompt.source == AQ_KV_SOURCE_POSITION || !aq_kv_policy_drops(kv);
    bool expected = kv->prompt.source == AQ_KV_SOURCE_EXPECTED;
    uint32_t rows = aq_kv_policy_each(kv) || expected ? heads : kv_heads;
    bool sums = aq_kv_policy_values(kv) || aq_kv_policy_profiled(kv) || expected;
    ret->sums = place(&ret->room_bytes, sums ? 4ull * rows * ret->stride : 0);
    ret->begun =
        place(&ret->room_bytes, aq_kv_policy_keeps_begun(kv) ? 4ull * rows * ret->stride : 0);
    uint64_t numbers = m->head_dim * (1 + (uint64_t)heads * (m->head_dim + AQ_KV_MOMENT_ROWS));
    ret->moments = place(&ret->room_bytes, expected ? 4 * numbers : 0);
    ret->value = place(&ret->room_bytes, by_position ? 0 : 4ull * kv_heads * ret->stride);
    ret->keep = place(&ret->room_bytes, 4ull * kv_heads * kept);
    ret->count = place(&ret->room_bytes, 4ull * kv_heads);
    ret->sort = place(&ret->room_bytes, aq_kv_policy_cross(kv) ? 8ull * ret->stride : 0);
    ret->classes = place(&ret->room_bytes, aq_kv_policy_profiled(kv) ? ret->stride : 0);
    ret->kept = place(&ret->room_bytes, plain * kept / AQ_HEAD_BLOCK_SLOTS);
    ret->rooms = plan->shape.prompt_rooms ? plan->shape.prompt_rooms : 1;
    ret->bytes = ret->rooms * ret->room_bytes;
    ret->log_sum_exp = place(&ret->bytes, columns ? 4ull * ret->rooms * prompt * heads : 0);
}

void aq_kv_layout_tables(struct aq_kv_table_layout *ret, const struct aq_plan *plan,
                         uint32_t layers, uint32_t kv_heads)
{
    const struct aq_block_shape *s = &plan->shape;
    uint64_t seats = (uint64_t)s->micro_batch * s->micro_batches;
    *ret = (struct aq_kv_table_layout){.runs = aq_kv_kinds_runs(&plan->kinds)};
    place(&ret->bytes, seats * ret->runs * sizeof(void *));
    for (uint32_t i = 0; i < plan->kinds.count; i++) {
        struct aq_kv_policy policy = aq_plan_kind_policy(plan, i);
        uint32_t blocks = (uint32_t)aq_div_up(plan->kinds.kind[i].head_slots, AQ_HEAD_BLOCK_SLOTS);
        bool ragged = aq_kv_policy_ragged(&policy);
        if (policy.read)
            blocks = (uint32_t)aq_min_u64(blocks, policy.read / AQ_HEAD_BLOCK_SLOTS + 1);
        if ((ragged || policy.read) && blocks > ret->head_blocks)
            ret->head_blocks = blocks;
    }
    if (ret->head_blocks) {
        uint64_t places = (uint64_t)aq_plan_attending(plan) * s->micro_batch * kv_heads;
        bool ragged = aq_kv_policy_ragged(&plan->kv);
        ret->spread = place(&ret->bytes, places * ret->head_blocks * sizeof(void *));
        ret->now = place(&ret->bytes, places * sizeof(uint32_t));
        ret->chosen = place(&ret->bytes, ragged ? 0 : places * ret->head_blocks * sizeof(uint32_t));
        ret->len = place(&ret->bytes, ragged ? seats * layers * kv_heads * sizeof(uint32_t) : 0);
        if (aq_kv_policy_cross(&plan->kv) || aq_kv_policy_profiled(&plan->kv))
            ret->packed = place(&ret->bytes, seats * layers * sizeof(uint32_t));
    }
    uint64_t pages = s->page_count[AQ_DEVICE] + s->page_count[AQ_HOST];
    ret->free = place(&ret->bytes, pages * sizeof(uint32_t));
    ret->users = place(&ret->bytes, pages * sizeof(uint32_t));
    uint64_t on_disk = 0;
    for (uint32_t i = 0; i < plan->part_count; i++)
        on_disk += plan->part[i].tier == AQ_DISK ? plan->part[i].count : 0;
    ret->home_runs = plan->kinds.runs;
    on_disk *= (uint64_t)s->micro_batches * ret->home_runs;
    ret->home = place(&ret->bytes, on_disk * sizeof(uint32_t));
    ret->own = place(&ret->bytes, on_disk * sizeof(uint32_t));
}

uint64_t aq_kv_layout_transfer(const struct aq_plan *plan, uint32_t kv_heads)
{
    struct aq_kv_delta_layout delta;
    uint64_t bytes = 0, widest = 0;
    for (uint32_t i = 0; i < plan->kinds.count; i++) {
        struct aq_kv_layout slots;
        aq_kv_layout_slots(&slots, plan, i, kv_heads);
        widest = aq_max_u64(widest, slots.bytes);
    }
    uint64_t victims = widest ? aq_align_up(4ull * kv_heads, 64) : 0;
    aq_kv_layout_delta(&delta, plan, kv_heads);
    for (uint32_t i = 0; i < plan->part_count && plan->separate; i++) {
        const struct aq_part *p = &plan->part[i];
        if (p->side == AQ_ATTEND_HOST)
            bytes = aq_max_u64(bytes, widest);
        else if (p->staged)
            bytes = aq_max_u64(bytes, p->tier == AQ_DISK ? delta.bytes : victims);
    }
    return bytes;
}
