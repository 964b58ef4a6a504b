/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/job/generator.h"

#include "engine/chat/chat.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/core/opts_from.h"
#include "engine/job/suggested.h"
#include "policy/kv_read.h"

#include <assert.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>

static int open_tokenizer(struct aq_generator *g, const char *model, const char *chat_time,
                          struct aq_err *reterr)
{
    if (!model)
        return 0; /* a shape: prompts are ids, results have no text */
    char dir[PATH_MAX];
    int rc = aq_checkpoint_resolve(model, dir, sizeof(dir), reterr);
    if (rc < 0)
        return rc;
    const struct aq_engine_info *i = g->info;
    struct aq_tokenizer_defaults defaults = {
        .bos_id = i->bos_id,
        .eos_id = i->eos_count ? (int32_t)i->eos_id[0] : -1,
        .pad_id = i->pad_id,
        .add_bos = i->add_bos,
    };
    rc = aq_tokenizer_open(&g->tokenizer, dir, &defaults, reterr);
    if (rc == 0)
        rc = aq_tok_state_open(&g->rules.tok_state, g->tokenizer, reterr);
    return rc < 0 ? rc : aq_chat_open(&g->chat, dir, chat_time, reterr);
}

/* An EOS is chosen, whatever it is called. */
static bool is_eos(const struct aq_engine_info *i, uint32_t id)
{
    for (uint32_t n = 0; n < i->eos_count; n++)
        if (i->eos_id[n] == id)
            return true;
    return false;
}

/* The model may have more ids than there are tokens: what is generated is text, so the others are
 * never chosen. */
static int find_never(struct aq_generator *g, struct aq_err *reterr)
{
    const struct aq_engine_info *i = g->info;
    uint32_t end = g->tokenizer ? aq_tokenizer_info(g->tokenizer)->id_end : i->vocab;
    for (uint32_t n = 0; n < i->eos_count; n++)
        end = i->eos_id[n] >= end && i->eos_id[n] < i->vocab ? i->eos_id[n] + 1 : end;
    end = end < i->vocab ? end : i->vocab;
    for (uint32_t id = 0; g->tokenizer && id < end; id++) {
        if (aq_tokenizer_token_text(g->tokenizer, id) || is_eos(i, id))
            continue;
        if (!aq_ids_reserve(&g->never, 1))
            return aq_error_memory(reterr, "%zu ids without a token", g->never.count + 1);
        g->never.item[g->never.count++] = id;
    }
    g->record_rules.id_end = end;
    g->record_rules.vocab = i->vocab;
    g->record_rules.never = g->never.item;
    g->record_rules.never_count = (uint32_t)g->never.count;
    return 0;
}

static void say_what_differs(const struct aq_generator *g, const struct aq_log *log)
{
    uint32_t end = g->record_rules.id_end, vocab = g->info->vocab;
    size_t holes = g->never.count;
    const char *notice = g->tokenizer ? aq_tokenizer_info(g->tokenizer)->notice : "";
    if (*notice)
        aq_log_line(log, AQ_LOG_INFO, "bos: %s", notice);
    if (end < vocab && holes)
        aq_log_line(log, AQ_LOG_INFO,
                    "ids %u to %u and %zu below them have no token and are never chosen", end,
                    vocab - 1, holes);
    else if (end < vocab)
        aq_log_line(log, AQ_LOG_INFO, "ids %u to %u have no token and are never chosen", end,
                    vocab - 1);
    else if (holes)
        aq_log_line(log, AQ_LOG_INFO, "%zu ids, the first %u, have no token and are never chosen",
                    holes, g->never.item[0]);
}

/* A prompt is attended as it was computed, whole: what the cache drops or rounds to codes, and what
 * rows do not read of it, shows in tokens that are fed. */
static bool feeds(const void *user, uint32_t prompt, uint32_t count)
{
    const struct aq_engine_info *i = user;
    if (aq_dtype_is_quantised(i->kv_format) || aq_dtype_is_kivi(i->kv_format))
        return true;
    for (uint32_t layer = 0; layer < i->layers && aq_kv_policy_drops(&i->kv); layer++) {
        struct aq_kv_limits l;
        aq_kv_policy_limits(&l, &i->kv, prompt, count, layer, i->layers);
        if (aq_kv_limits_drop(&l, prompt, count))
            return true;
    }
    return aq_kv_read_chooses(i->kv.read, prompt + count);
}

static int open_rules(struct aq_generator *g, const struct aq_options *o, struct aq_err *reterr)
{
    const struct aq_engine_info *i = g->info;
    const struct aq_tokenizer_info *t = g->tokenizer ? aq_tokenizer_info(g->tokenizer) : NULL;
    struct aq_request_rules *r = &g->rules;
    int rc = aq_request_defaults(&r->defaults, o, i->vocab, reterr);
    if (rc < 0)
        return rc;
    r->tokenizer = g->tokenizer;
    r->chat = g->chat;
    r->vocab = i->vocab;
    r->context = i->context;
    r->prompt_max = i->positions;
    r->bos_id = t ? t->bos_id : i->bos_id;
    r->adds_bos = t && t->add_bos;
    r->bos = o->bos;
    r->feeds = feeds;
    r->feeds_user = i;
    r->overlong = o->overlong;
    r->prompt_field = o->prompt_field;
    r->unknown_is_error = o->unknown_fields_error;
    r->unknown = &g->unknown;
    if (r->bos_id >= (int32_t)i->vocab)
        r->bos_id = -1;
    r->prefix_id = r->bos_id < 0 && i->eos_count ? (int32_t)i->eos_id[0] : r->bos_id;
    if (o->bos == AQ_BOS_ALWAYS && r->bos_id < 0)
        return aq_error(reterr, -EINVAL, "--bos always: the model has no BOS token");
    if (o->prompt_field && o->prompt_template)
        return aq_error(reterr, -EINVAL, "--prompt-field and --prompt-template exclude each other");
    if (o->prompt_template)
        rc = aq_template_open_option(&g->prompt_template, o->prompt_template, reterr);
    r->prompt_template = g->prompt_template;
    g->record_rules = (struct aq_record_rules){
        .tokenizer = g->tokenizer, .eos_ids = i->eos_id, .eos_count = i->eos_count};
    g->result_rules = (struct aq_result_rules){.tokenizer = g->tokenizer, .model = i->name};
    return rc < 0 ? rc : find_never(g, reterr);
}

static int open_texts(struct aq_generator *g, const struct aq_options *o,
                      const struct aq_engine_info *info, const char *chat_time,
                      struct aq_err *reterr)
{
    g->info = info;
    int rc = open_tokenizer(g, o->model ? o->model : o->tokenizer, chat_time, reterr);
    return rc < 0 ? rc : open_rules(g, o, reterr);
}

static int open_suggestions(struct aq_generator *g, const struct aq_options *o,
                            const struct aq_log *log, struct aq_err *reterr)
{
    char dir[PATH_MAX];
    if (!o->model)
        return 0;
    int rc = aq_checkpoint_resolve(o->model, dir, sizeof(dir), reterr);
    return rc < 0 ? rc : aq_suggested_params(&g->rules.defaults, o, dir, log, reterr);
}

/* Bits depend on the instruction set: work that is gone on with keeps it. */
static void keep_isa(struct aq_isa_choice *choice, const char *isa)
{
    unsigned mask;
    if (isa && !choice->given && aq_isa_parse(isa, &mask) && !(mask & ~aq_isa_detect()))
        *choice = (struct aq_isa_choice){.kept = true, .mask = mask};
}

int aq_generator_open(struct aq_generator *g, const struct aq_options *o, const char *chat_time,
                      const char *isa, const struct aq_log *log, struct aq_err *reterr)
{
    assert(g && o);
    *g = (struct aq_generator){0};
    struct aq_engine_opts opts;
    int rc = aq_engine_opts_from(&opts, o, log, reterr);
    if (rc == 0)
        keep_isa(&opts.isa, isa);
    rc = rc < 0 ? rc : aq_engine_open(&g->engine, &opts, reterr);
    rc = rc < 0 ? rc : open_texts(g, o, aq_engine_info(g->engine), chat_time, reterr);
    rc = rc < 0 ? rc : open_suggestions(g, o, log, reterr);
    if (rc < 0)
        aq_generator_close(g);
    else
        say_what_differs(g, log);
    return rc;
}

int aq_generator_open_reader(struct aq_generator *g, const struct aq_options *o,
                             const struct aq_engine_info *info, struct aq_err *reterr)
{
    *g = (struct aq_generator){0};
    int rc = open_texts(g, o, info, NULL, reterr);
    if (rc < 0)
        aq_generator_close(g);
    return rc;
}

void aq_generator_close(struct aq_generator *g)
{
    aq_engine_close(g->engine);
    aq_request_defaults_close(&g->rules.defaults);
    aq_template_close(g->prompt_template);
    aq_chat_close(g->chat);
    aq_tok_state_close(g->rules.tok_state);
    aq_tokenizer_close(g->tokenizer);
    aq_ids_close(&g->never);
    *g = (struct aq_generator){0};
}

const char *aq_generator_scores_text(char dst[AQ_SCORES_TEXT_MAX], const struct aq_generator *g,
                                     uint64_t records)
{
    const struct aq_kv_policy *kv = &g->info->kv;
    if (!records || !aq_kv_policy_lossy(kv))
        return NULL;
    const char *name = aq_kv_policy_desc(kv)->name;
    if (!aq_kv_policy_drops(kv)) {
        snprintf(dst, AQ_SCORES_TEXT_MAX,
                 "log-probabilities of prompts (echo with logprobs, %" PRIu64
                 " records) are those of rows that read all keys, whatever --kv-read %u leaves "
                 "out: prompts are attended whole; with it a record's 'continuation' is scored, "
                 "and by aquifer eval --kv-read %u a text",
                 records, kv->read, kv->read);
        return dst;
    }
    snprintf(dst, AQ_SCORES_TEXT_MAX,
             "log-probabilities of prompts (echo with logprobs, %" PRIu64
             " records) are the full cache's, not those under kv policy %s: prompts are attended "
             "whole; under it a record's 'continuation' is scored, and by aquifer eval --kv-policy "
             "%s a text",
             records, name, name);
    return dst;
}
