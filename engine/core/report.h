/* SPDX-License-Identifier: Apache-2.0
 * engine/core/report.h - the report of a run as one JSON document: the same fields for generate and
 * bench. Owns nothing; reads the engine's counters and the machine's description. */
#ifndef AQ_ENGINE_CORE_REPORT_H
#define AQ_ENGINE_CORE_REPORT_H

#include "engine/core/engine.h"

struct aq_report_times {
    double load_s;  /* of load, packing included: the report tells them apart */
    double total_s; /* first pass to last result so far; idle_s = total_s less the passes */
    uint64_t requests, errors;
    uint64_t prompt_tokens; /* of the records run */
};

/* Everything CLI documents under --report.  `before` (NULL: zeros) is subtracted from the engine's
 * counters, so that one of several runs on the same engine can be reported.  New reference. */
json_t *aq_report_build(const struct aq_engine *e, const struct aq_report_times *t,
                        const struct aq_engine_stats *before);
/* One more line of "lossy"; a report that finds no memory for it is NULL (base/json.h). */
void aq_report_add_lossy(json_t **r, const char *line);

/* Where heads have rules and a prompt has run, "kv_rules" of all since load: {"names": [...],
 * "had": [how often heads had each], "kept_prompt": the part of its prompts that a head kept,
 * "kept_slots": {"mean", "max"} that a row behind a prompt attended in a head, null before there is
 * one, "by_layer": [{"layer", "kept_prompt", "had": [[...] of each head]}]}. */
void aq_report_add_rules(json_t **r, const struct aq_engine *e);

/* {lane: {"busy_s", "bytes", "gb_s", "ceiling_gb_s"}} of the lanes that did something.  New
 * reference. */
json_t *aq_report_lanes(const struct aq_engine_stats *s);
/* {"cpu", "cores", "memory_bytes", "kernel", "hostname"?...}: what the numbers were measured on. */
json_t *aq_report_environment(void);

#endif
