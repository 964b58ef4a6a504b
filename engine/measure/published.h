/* SPDX-License-Identifier: Apache-2.0
 * engine/measure/published.h - predictions of published figures: each row of a table by the model
 * of the engine that made it (policy/flexgen_model.h), by the staircase from that engine's schedule
 * to this one's, and by the plan that this engine would make on the same machine.  Nothing runs. */
#ifndef AQ_ENGINE_MEASURE_PUBLISHED_H
#define AQ_ENGINE_MEASURE_PUBLISHED_H

#include "base/buf.h"
#include "engine/measure/table.h"

/* {"name", "published", "source", "note", "theirs", "stairs", "ours"}, see aquifer help published;
 * theirs and stairs are null where the policy was not published.  New reference.  -EINVAL: an
 * unknown shape or machine; -ENOMEM. */
int aq_published_row(json_t **ret, const struct aq_table *t, const struct aq_table_row *row,
                     struct aq_err *reterr);

/* How far off the rows are: {"rows", "median_ratio", "within_25_percent", ...}.  New reference. */
json_t *aq_published_summary(const json_t *rows);

/* Both as Markdown. */
void aq_published_markdown(struct aq_buf *ret, const struct aq_table *t, const json_t *rows);

#endif
