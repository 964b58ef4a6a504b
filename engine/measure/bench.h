/* SPDX-License-Identifier: Apache-2.0
 * engine/measure/bench.h - one row of `aquifer bench`: distinct random prompts, end-of-sequence
 * ignored, no refill, every decode step really run.  Times are the engine's own; samples are
 * kept. */
#ifndef AQ_ENGINE_MEASURE_BENCH_H
#define AQ_ENGINE_MEASURE_BENCH_H

#include "engine/hooks.h"
#include "engine/options/options.h"

struct aq_bench_row {
    uint32_t prompt_len, gen_len;
    uint32_t micro_batch; /* 0: planned */
    uint64_t requests;    /* 0: one block */
};

/* Runs a row: a new reference to the report fields plus "row", "repeats", "gen_tok_s_sd",
 * "samples", "output_xxh3"... */
int aq_bench_run_row(json_t **ret, const struct aq_options *o, const struct aq_bench_row *row,
                     const struct aquifer_hooks *hooks, struct aq_err *reterr);

#endif
