/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/plan/grid.h"

#include "base/types.h"

#include <assert.h>
#include <string.h>

/* Levels beside what was asked for are tried in this order, in quarters of it. */
static const uint32_t quarters[] = {8, 2, 16, 1};

void aq_plan_grid_add(struct aq_plan_grid *g, const struct aq_plan_axis *axis,
                      struct aq_plan_level asked)
{
    assert(g->count < AQ_PLAN_AXES_MAX && axis->unit && asked.low <= asked.high);
    struct aq_plan_axis *a = &g->axis[g->count++];
    *a = *axis;
    a->level[0] = asked;
    a->count = 1;
    a->at = 0;
}

uint64_t aq_plan_grid_points(const struct aq_plan_grid *g)
{
    uint64_t points = 1;
    for (uint32_t i = 0; i < g->count; i++)
        points *= g->axis[i].count;
    return points;
}

void aq_plan_grid_at(uint32_t ret[AQ_PLAN_AXES_MAX], const struct aq_plan_grid *g, uint64_t i)
{
    for (uint32_t a = g->count; a-- > 0;) {
        ret[a] = (uint32_t)(i % g->axis[a].count);
        i /= g->axis[a].count;
    }
}

static uint64_t scaled(uint64_t x, uint32_t by, uint64_t unit)
{
    return x * by / 4 / unit * unit;
}

static uint64_t longest(const struct aq_plan_axis *a)
{
    return a->length ? a->level[a->count - 1].high : 0;
}

static bool fits_context(const struct aq_plan_grid *g, const struct aq_plan_axis *of, uint64_t high,
                         uint64_t context)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < g->count; i++)
        sum += &g->axis[i] == of ? aq_max_u64(high, longest(of)) : longest(&g->axis[i]);
    return !of->length || sum <= context;
}

static void insert(struct aq_plan_axis *a, struct aq_plan_level level)
{
    uint32_t at = 0;
    while (at < a->count && a->level[at].high < level.high)
        at++;
    memmove(&a->level[at + 1], &a->level[at], (a->count - at) * sizeof(level));
    a->level[at] = level;
    a->count++;
    a->at += at <= a->at;
}

static bool has(const struct aq_plan_axis *a, uint64_t high)
{
    for (uint32_t i = 0; i < a->count; i++) {
        if (a->level[i].high == high)
            return true;
    }
    return false;
}

/* The next level that is one, from place *tried of the list on. */
static bool add_level(struct aq_plan_grid *g, struct aq_plan_axis *a, uint32_t *tried,
                      uint64_t context)
{
    struct aq_plan_level asked = a->level[a->at];
    while (*tried < AQ_ARRAY_LEN(quarters)) {
        uint32_t by = quarters[(*tried)++];
        struct aq_plan_level level = {scaled(asked.low, by, a->unit),
                                      scaled(asked.high, by, a->unit)};
        bool fits = fits_context(g, a, level.high, context) && (!a->most || level.high <= a->most);
        if (level.low && !has(a, level.high) && fits) {
            insert(a, level);
            return true;
        }
    }
    return false;
}

void aq_plan_grid_grow(struct aq_plan_grid *g, uint64_t points_max, uint64_t context)
{
    uint32_t tried[AQ_PLAN_AXES_MAX] = {0};
    static_assert((int)AQ_ARRAY_LEN(quarters) + 1 == (int)AQ_PLAN_LEVELS_MAX, "a place for each");
    for (bool grew = true; grew;) { /* at most once for each level there is */
        grew = false;
        for (uint32_t i = 0; i < g->count; i++) {
            struct aq_plan_axis *a = &g->axis[i];
            uint64_t more = aq_plan_grid_points(g) / a->count * (a->count + 1);
            if (more <= points_max)
                grew |= add_level(g, a, &tried[i], context);
        }
    }
}
