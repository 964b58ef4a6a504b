/* SPDX-License-Identifier: Apache-2.0
 * engine/measure/bench_table.h - the rows of `aquifer bench --table FILE`.  With --output FILE
 * finished rows are kept in FILE.rows.json, which is only ever replaced as a whole; when started
 * again, a row with the same options is taken from there.  A row that cannot run becomes a row with
 * an error, and the others go on. */
#ifndef AQ_ENGINE_MEASURE_BENCH_TABLE_H
#define AQ_ENGINE_MEASURE_BENCH_TABLE_H

#include "engine/hooks.h"
#include "engine/options/options.h"

struct aq_bench_table;

/* Reads o->table and checks the options of every row (those of the command line win) before one is
 * run.  -EINVAL: names file and row, or the process that writes the same output. */
int aq_bench_table_open(struct aq_bench_table **ret, const struct aq_options *o,
                        const struct aquifer_hooks *hooks, struct aq_err *reterr);
void aq_bench_table_close(struct aq_bench_table *t);

uint32_t aq_bench_table_count(const struct aq_bench_table *t);

/* Row i, run now or earlier: a new reference to the result of aq_bench_run_row, with "name",
 * "published": {"gen_tok_s", "source"} or null, "published_ratio", and "note"; or to {"name",
 * "error": {"message", "exit_status"}, ...}, and then *ret_failed is set.  Fails only where other
 * rows could not run either: interrupted, out of memory, I/O. */
int aq_bench_table_row(json_t **ret, struct aq_bench_table *t, uint32_t i, bool *ret_failed,
                       const struct aquifer_hooks *hooks, struct aq_err *reterr);

#endif
