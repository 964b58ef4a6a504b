/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/records/record.h"

#include "engine/tokenizer/token_text.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* Sizes of the one block that holds everything of a record. */
struct layout {
    size_t at;
};

static size_t reserve(struct layout *l, size_t bytes)
{
    size_t at = l->at;
    l->at += aq_align_up(bytes, 16);
    return at;
}

/* Where the arrays of one choice lie; SIZE_MAX for those it does not have. */
struct places {
    size_t tokens, logprobs, tops, prompt_logprob, prompt_tops, stop_ids, scratch;
};

/* Where something is scored, the best token of a place says whether it would have been chosen. */
static uint32_t top_count(const struct aq_params *p, const struct aq_prompt *prompt)
{
    return p->logprobs > 0 ? (uint32_t)p->logprobs : prompt->scored > 0;
}

static bool has_logprobs(const struct aq_params *p, const struct aq_prompt *prompt)
{
    return p->logprobs >= 0 || prompt->scored;
}

static void place_choice(struct places *ret, struct layout *l, const struct aq_request *r,
                         const struct aq_prompt *prompt)
{
    const struct aq_params *p = &r->params;
    size_t out = prompt->max_tokens, in = prompt->count - aq_request_scored_from(r, prompt);
    size_t top = sizeof(struct aq_top) * top_count(p, prompt);
    bool logprobs = has_logprobs(p, prompt), echo = in > 0;
    *ret = (struct places){
        .tokens = reserve(l, (out + 1) * sizeof(uint32_t)),
        .logprobs = logprobs ? reserve(l, (out + 1) * sizeof(float)) : SIZE_MAX,
        .tops = top ? reserve(l, (out + 1) * top) : SIZE_MAX,
        .prompt_logprob = echo ? reserve(l, in * sizeof(float)) : SIZE_MAX,
        .prompt_tops = echo && top ? reserve(l, in * top) : SIZE_MAX,
        .scratch = reserve(l, aq_stop_scratch_bytes(p->stop, p->stop_count)),
    };
}

/* The record, its choices, and the ids all choices stop at. */
static size_t place_head(struct layout *l, const struct aq_request *r, size_t *ret_choices)
{
    reserve(l, sizeof(struct aq_record));
    *ret_choices = reserve(l, aq_request_sequences(r) * sizeof(struct aq_choice));
    return reserve(l, (r->params.stop_id_count + AQ_RECORD_EOS_MAX) * sizeof(uint32_t));
}

static uint64_t request_bytes(const struct aq_request *r)
{
    uint64_t bytes = sizeof(*r) + 1024; /* id, labels, stop strings of ordinary size */
    const char *const labels[] = {r->label_model, r->label_user, r->label_metadata, r->scenario,
                                  r->echo_request};
    for (size_t i = 0; i < AQ_ARRAY_LEN(labels); i++)
        bytes += labels[i] ? strlen(labels[i]) : 0;
    for (uint32_t i = 0; i < r->prompt_count; i++)
        bytes += sizeof(struct aq_prompt) + r->prompts[i].text.count +
                 4 * ((uint64_t)r->prompts[i].count +
                      (r->prompts[i].scored ? r->prompts[i].max_tokens : 0));
    return bytes;
}

uint64_t aq_record_bytes(const struct aq_request *r)
{
    struct layout l = {0};
    size_t choices;
    place_head(&l, r, &choices);
    for (uint32_t i = 0; i < r->prompt_count; i++) {
        struct layout one = {0};
        struct places places;
        place_choice(&places, &one, r, &r->prompts[i]);
        l.at += one.at * r->params.n;
    }
    return l.at + request_bytes(r);
}

/* Control lane: looks for a stop string in the token that has just come. */
static bool on_token(struct aq_sequence *s)
{
    struct aq_choice *c = (struct aq_choice *)s;
    size_t bytes;
    const char *text =
        aq_token_text(c->record->rules->tokenizer, s->tokens[s->token_count - 1], &bytes);
    return aq_stop_feed(&c->stop, text, bytes, s->token_count > s->min_tokens);
}

static struct aq_sampling sampling_of(const struct aq_request *r, uint32_t choice)
{
    const struct aq_params *p = &r->params;
    return (struct aq_sampling){
        .temperature = p->temperature,
        .top_p = p->top_p,
        .min_p = p->min_p,
        .top_k = p->top_k,
        .repetition_penalty = p->repetition_penalty,
        .presence_penalty = p->presence_penalty,
        .frequency_penalty = p->frequency_penalty,
        .seed = (uint64_t)p->seed,
        .record_hash = r->id_hash,
        .choice = choice,
    };
}

static void *at_or_null(char *memory, size_t place)
{
    return place == SIZE_MAX ? NULL : memory + place;
}

static void choice_init(struct aq_record *rec, uint32_t index, const struct places *at,
                        const uint32_t *stop_ids, uint32_t stop_id_count)
{
    const struct aq_request *r = rec->request;
    const struct aq_prompt *prompt = &r->prompts[index / r->params.n];
    uint32_t from = aq_request_scored_from(r, prompt);
    struct aq_choice *c = &rec->choices[index];
    char *memory = rec->memory;
    c->record = rec;
    c->prompt = prompt;
    aq_stop_init(&c->stop, r->params.stop, r->params.stop_count, memory + at->scratch);
    c->sequence = (struct aq_sequence){
        .prompt = prompt->ids,
        .prompt_count = prompt->count,
        .max_tokens = prompt->max_tokens,
        .min_tokens =
            r->params.min_tokens < prompt->max_tokens ? r->params.min_tokens : prompt->max_tokens,
        .sampling = sampling_of(r, index),
        .stop_ids = stop_ids,
        .stop_id_count = stop_id_count,
        .forced = prompt->scored ? prompt->ids + prompt->count : NULL,
        .id_end = rec->rules->id_end,
        .never = rec->rules->never,
        .never_count = rec->rules->never_count,
        .top_count = has_logprobs(&r->params, prompt) ? (int)top_count(&r->params, prompt) : -1,
        .prompt_logprobs = from < prompt->count,
        .prompt_from = from,
        .on_token = r->params.stop_count ? on_token : NULL,
        .user = c,
        .tokens = at_or_null(memory, at->tokens),
        .logprobs = at_or_null(memory, at->logprobs),
        .tops = at_or_null(memory, at->tops),
        .prompt_logprob = at_or_null(memory, at->prompt_logprob),
        .prompt_tops = at_or_null(memory, at->prompt_tops),
        .seat = -1,
    };
}

/* The user's ids first, so that one that is also EOS counts as the user's. */
static uint32_t merge_stop_ids(uint32_t *ids, const struct aq_params *p,
                               const struct aq_record_rules *rules)
{
    uint32_t count = 0;
    for (; count < p->stop_id_count; count++)
        ids[count] = p->stop_ids[count];
    for (uint32_t i = 0; i < rules->eos_count && !p->ignore_eos; i++)
        ids[count++] = rules->eos_ids[i];
    return count;
}

int aq_record_open(struct aq_record **ret, struct aq_request *r,
                   const struct aq_record_rules *rules, struct aq_err *reterr)
{
    assert(ret && r && rules && !r->error.code && rules->eos_count <= AQ_RECORD_EOS_MAX);
    struct layout l = {0};
    size_t choices_at, stop_ids_at = place_head(&l, r, &choices_at);
    uint32_t count = aq_request_sequences(r);
    struct places *places = calloc(count, sizeof(*places));
    for (uint32_t i = 0; places && i < count; i++)
        place_choice(&places[i], &l, r, &r->prompts[i / r->params.n]);
    char *memory = places ? calloc(1, l.at) : NULL;
    if (!memory) {
        int rc = aq_error_memory(reterr, "line %llu: %zu bytes for %u sequences",
                                 (unsigned long long)r->line, l.at, count);
        free(places);
        aq_request_close(r);
        return rc;
    }
    struct aq_record *rec = (struct aq_record *)memory;
    uint32_t *stop_ids = (uint32_t *)(memory + stop_ids_at);
    *rec = (struct aq_record){.request = r,
                              .rules = rules,
                              .choices = (struct aq_choice *)(memory + choices_at),
                              .choice_count = count,
                              .bytes = l.at + request_bytes(r),
                              .memory = memory};
    uint32_t stop_id_count = merge_stop_ids(stop_ids, &r->params, rules);
    for (uint32_t i = 0; i < count; i++)
        choice_init(rec, i, &places[i], stop_ids, stop_id_count);
    free(places);
    *ret = rec;
    return 0;
}

void aq_record_close(struct aq_record *rec)
{
    if (!rec)
        return;
    aq_request_close(rec->request);
    free(rec->memory); /* the record itself lies in it */
}

struct aq_choice *aq_record_finish(struct aq_sequence *s)
{
    struct aq_choice *c = (struct aq_choice *)s;
    struct aq_record *rec = c->record;
    assert(s->finish != AQ_FINISH_NONE && rec->finished_count < rec->choice_count);
    if (s->finish == AQ_FINISH_STOP_ID) {
        c->eos = true;
        for (uint32_t i = 0; i < rec->request->params.stop_id_count; i++)
            c->eos = c->eos && rec->request->params.stop_ids[i] != s->finish_id;
    }
    rec->finished_count++;
    c->ended = true;
    return c;
}

void aq_record_know(struct aq_record *rec)
{
    for (uint32_t i = 0; i < rec->choice_count; i++) {
        const struct aq_sequence *s = &rec->choices[i].sequence;
        rec->choices[i].known = s->token_count > s->given_count ? s->token_count : s->given_count;
    }
}

uint64_t aq_record_generated(const struct aq_record *rec)
{
    uint64_t tokens = 0;
    for (uint32_t i = 0; i < rec->choice_count && !rec->request->scoring; i++)
        tokens += rec->choices[i].sequence.token_count;
    return tokens;
}

uint64_t aq_record_prompt_tokens(const struct aq_record *rec)
{
    uint64_t tokens = 0;
    for (uint32_t i = 0; i < rec->request->prompt_count; i++) {
        const struct aq_prompt *p = &rec->request->prompts[i];
        tokens += p->count + (p->scored ? p->max_tokens : 0);
    }
    return tokens;
}

struct aq_score aq_choice_score(const struct aq_choice *c)
{
    const struct aq_sequence *s = &c->sequence;
    const struct aq_prompt *p = c->prompt;
    struct aq_score score = {.tokens = p->scored, .greedy = true};
    uint32_t prefilled = p->scored - p->max_tokens;
    assert(p->scored && s->token_count == p->max_tokens);
    for (uint32_t i = 0; i < p->scored; i++) {
        bool fed = i >= prefilled;
        uint32_t at = fed ? i - prefilled : i;
        uint32_t id = fed ? s->tokens[at] : s->prompt[s->prompt_from + i];
        const struct aq_top *tops = fed ? s->tops : s->prompt_tops;
        score.loglikelihood += (double)(fed ? s->logprobs : s->prompt_logprob)[at];
        score.greedy = score.greedy && tops[(size_t)at * (uint32_t)s->top_count].id == id;
    }
    return score;
}

struct aq_score aq_record_score(const struct aq_record *rec)
{
    struct aq_score all = {.greedy = true};
    for (uint32_t i = 0; i < rec->choice_count; i++) {
        struct aq_score one = aq_choice_score(&rec->choices[i]);
        all.loglikelihood += one.loglikelihood;
        all.tokens += one.tokens;
        all.greedy = all.greedy && one.greedy;
    }
    return all;
}
