/* SPDX-License-Identifier: Apache-2.0
 * engine/job/generator.h - what `generate` and records submitted one by one share: an engine, its
 * tokenizer, and the rules by which lines become requests and requests become results.  Nothing
 * large is taken before the engine is loaded. */
#ifndef AQ_ENGINE_JOB_GENERATOR_H
#define AQ_ENGINE_JOB_GENERATOR_H

#include "base/log.h"
#include "engine/core/engine.h"
#include "engine/options/options.h"
#include "engine/records/record.h"
#include "engine/records/request.h"
#include "engine/records/result.h"
#include "engine/tokenizer/tokenizer.h"

struct aq_generator {
    struct aq_engine *engine;
    const struct aq_engine_info *info;
    struct aq_chat *chat;           /* NULL with tokenizer */
    struct aq_tokenizer *tokenizer; /* NULL: a shape without files; prompts are ids */
    struct aq_ids never;            /* ids below record_rules.id_end that have no token */
    struct aq_template *prompt_template;
    struct aq_unknown_fields unknown;
    struct aq_request_rules rules;
    struct aq_record_rules record_rules;
    struct aq_result_rules result_rules;
};

/* Fills *g, which must stay where it is; o and log are borrowed.  chat_time: what chat templates
 * take for now (engine/chat/chat.h), NULL: the present.  isa: the level of instruction sets that an
 * earlier run used, NULL: none; taken again where the options leave it open and the CPU has it.  On
 * failure what was opened is closed. */
int aq_generator_open(struct aq_generator *g, const struct aq_options *o, const char *chat_time,
                      const char *isa, const struct aq_log *log, struct aq_err *reterr);
/* The same without an engine, for those that only read records; of info, which is borrowed, the
 * model's part is read. */
int aq_generator_open_reader(struct aq_generator *g, const struct aq_options *o,
                             const struct aq_engine_info *info, struct aq_err *reterr);
void aq_generator_close(struct aq_generator *g);

enum { AQ_SCORES_TEXT_MAX = 320 };
/* A line for the list of lossy choices, on log-probabilities of prompts, which `records` records
 * ask for: that the KV policy, which drops, has no part in them.  NULL: there is nothing to say. */
const char *aq_generator_scores_text(char dst[AQ_SCORES_TEXT_MAX], const struct aq_generator *g,
                                     uint64_t records);

#endif
