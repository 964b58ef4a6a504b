/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/policy/same_plans.h"

#include <string.h>

#define SAME(member) (memcmp(&a->member, &b->member, sizeof(a->member)) == 0)

static bool same_parts(const struct aq_plan *a, const struct aq_plan *b)
{
    bool same = a->part_count == b->part_count;
    for (uint32_t i = 0; same && i < a->part_count; i++)
        same = SAME(part[i].first) && SAME(part[i].count) && SAME(part[i].tier) &&
               SAME(part[i].side) && SAME(part[i].staged);
    return same;
}

static bool same_kinds(const struct aq_plan *a, const struct aq_plan *b)
{
    bool same = SAME(kinds.count) && SAME(kinds.unpaged) && SAME(kinds.layers) &&
                SAME(kinds.slots) && SAME(kinds.runs) && SAME(kinds.of);
    for (uint32_t i = 0; same && i < a->kinds.count; i++)
        same = SAME(kinds.kind[i].layer) && SAME(kinds.kind[i].layers) && SAME(kinds.kind[i].own) &&
               SAME(kinds.kind[i].window) && SAME(kinds.kind[i].slots) && SAME(kinds.kind[i].runs);
    return same;
}

static bool same_shapes(const struct aq_plan *a, const struct aq_plan *b)
{
    return SAME(shape.micro_batch) && SAME(shape.micro_batches) && SAME(shape.prompt_tokens) &&
           SAME(shape.rows_max) && SAME(shape.tile_rows) && SAME(shape.head_tile_rows) &&
           SAME(shape.page_slots) && SAME(shape.page_bytes) && SAME(shape.run_bytes) &&
           SAME(shape.page_count) && SAME(shape.prompt_max) && SAME(shape.keys_max) &&
           SAME(shape.positions_max) && SAME(shape.compute) && SAME(shape.kv_format) &&
           SAME(shape.weight_format);
}

bool plans_are_same(const struct aq_plan *a, const struct aq_plan *b)
{
    char policy[2][256];
    bool same = !strcmp(aq_kv_policy_text(policy[0], sizeof(policy[0]), &a->kv),
                        aq_kv_policy_text(policy[1], sizeof(policy[1]), &b->kv));
    same &= SAME(placement.weights) && SAME(placement.kv) && SAME(placement.hidden) &&
            SAME(placement.head) && SAME(separate) && SAME(chunk_bytes) && SAME(ring_chunks) &&
            SAME(ring_steps) && SAME(staging_chunks) && SAME(kv_stages) && SAME(stage_bytes) &&
            SAME(workspaces) && SAME(hidden_slots) && SAME(split_host) && SAME(fuse_layer) &&
            SAME(split_mlp) && SAME(side_by_side) && SAME(alternate) && SAME(unpack) &&
            SAME(host_products);
    return same && same_parts(a, b) && same_kinds(a, b) && same_shapes(a, b);
}
