/* SPDX-License-Identifier: Apache-2.0
 * engine/exec/stats.h - counts and times of passes. */
#ifndef AQ_ENGINE_EXEC_STATS_H
#define AQ_ENGINE_EXEC_STATS_H

#include "policy/kv_profile.h"
#include "policy/program.h"

/* Passes since load, by kind. */
struct aq_engine_stats {
    uint64_t passes, prefill_passes, decode_passes, mixed_passes;
    uint64_t early_passes;               /* the one behind it began before its tokens were here */
    double prefill_s, decode_s, mixed_s; /* mixed: a pass with prompt rows and decode rows */
    uint64_t prefill_tokens, decode_tokens; /* rows computed: prompt rows, decode rows */
    uint64_t shared_tokens; /* of prompts, not computed: other prompts begin with them, too */
    uint64_t generated_tokens;
    uint64_t finished;
    uint32_t seated, waiting;
    struct {
        double busy_s;
        uint64_t bytes;
        double ceiling_bytes_per_s; /* of its link or disk; 0: unknown or none */
    } lane[AQ_LANE_COUNT];
    double pack_s; /* before the first pass: packing the store that weights stream from */
    double last_pass_s;
};

/* What one head of a layer whose heads have rules has had and held since load. */
struct aq_rule_stats {
    uint64_t had[AQ_KV_PROFILE_COUNT];    /* prompts, by the rule that it found for them */
    uint64_t prompt_tokens, prompt_slots; /* of these prompts; kept of them */
    uint64_t rows, row_slots;             /* rows behind prompts; slots that they attended in all */
    uint32_t slots_max;                   /* most that a row attended */
};

#endif
