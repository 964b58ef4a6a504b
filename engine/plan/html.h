/* SPDX-License-Identifier: Apache-2.0
 * engine/plan/html.h - parts of the page that html.c puts together.  Private to the three html
 * files. */
#ifndef AQ_ENGINE_PLAN_HTML_H
#define AQ_ENGINE_PLAN_HTML_H

#include "base/buf.h"
#include "engine/plan/planning.h"

/* ---- html_tables.c ---- */

double aq_html_number(const json_t *o, const char *key);
/* "" where there is none. */
const char *aq_html_text_of(const json_t *o, const char *key);
/* Text from files and options, for HTML and its attributes. */
void aq_html_put(struct aq_buf *out, const char *text);
/* The same with its addresses, and names such as arXiv:2303.06865, as links. */
void aq_html_put_linked(struct aq_buf *out, const char *text);
/* What more would buy, beside the `now` tokens a second of the plan; or, now = 0, what would
 * help. */
void aq_html_put_changes(struct aq_buf *out, const char *title, const json_t *rows, double now);
void aq_html_put_sweep(struct aq_buf *out, const json_t *rows);
void aq_html_put_lines(struct aq_buf *out, const json_t *lines);
/* Every number of the machine with its source. */
void aq_html_put_rates(struct aq_buf *out, const struct aq_hw_profile *machine);

/* ---- html_draw.c ---- */

void aq_html_put_memory(struct aq_buf *out, const json_t *memory, const char *used);
/* A steady decode pass of a plan that fits. */
int aq_html_put_pass(struct aq_buf *out, const struct aq_planning *p, struct aq_err *reterr);

#endif
