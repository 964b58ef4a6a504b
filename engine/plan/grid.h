/* SPDX-License-Identifier: Apache-2.0
 * engine/plan/grid.h - the values that the page's sliders stop at: of each axis the value that was
 * asked for and some around it, in all no more combinations than are allowed.  Pure; plans
 * nothing. */
#ifndef AQ_ENGINE_PLAN_GRID_H
#define AQ_ENGINE_PLAN_GRID_H

#include <stdbool.h>
#include <stdint.h>

enum { AQ_PLAN_AXES_MAX = 4, AQ_PLAN_LEVELS_MAX = 5 };

/* Values from `low` to `high`: a range of lengths, or both the same. */
struct aq_plan_level {
    uint64_t low, high;
};

struct aq_plan_axis {
    const char *key, *name; /* of the option, and for people */
    uint64_t unit;          /* that levels beside the first are multiples of */
    bool length;            /* tokens, which share the context; else bytes */
    uint64_t most;          /* no level beside the first is above it; 0: any may be */
    struct aq_plan_level level[AQ_PLAN_LEVELS_MAX]; /* rising */
    uint32_t count, at;                             /* of levels; which of them was asked for */
};

struct aq_plan_grid {
    struct aq_plan_axis axis[AQ_PLAN_AXES_MAX]; /* the more important come first */
    uint32_t count;
};

/* Adds an axis with the one level that was asked for. */
void aq_plan_grid_add(struct aq_plan_grid *g, const struct aq_plan_axis *axis,
                      struct aq_plan_level asked);
/* Adds levels, to one axis after the other, while there are at most `points_max` combinations;
 * the longest lengths together stay within the context. */
void aq_plan_grid_grow(struct aq_plan_grid *g, uint64_t points_max, uint64_t context);
/* Combinations of levels. */
uint64_t aq_plan_grid_points(const struct aq_plan_grid *g);
/* The levels of combination i, by axis; the last axis runs fastest. */
void aq_plan_grid_at(uint32_t ret[AQ_PLAN_AXES_MAX], const struct aq_plan_grid *g, uint64_t i);

#endif
