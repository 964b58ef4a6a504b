/* SPDX-License-Identifier: Apache-2.0
 * The bytes: the number of choices, then of each a head and its arrays, in the order of struct
 * choice_state, numbers as this machine has them. */
#include "engine/records/record_state.h"

#include <assert.h>
#include <string.h>

struct head {
    uint32_t tokens;
    uint32_t finish, finish_id; /* enum aq_finish; NONE: the choice goes on */
    int32_t top_count;          /* as in the sequence */
    uint32_t prompt_scores;     /* of a choice that has ended: log-probabilities of its prompt */
};

/* A choice's arrays; NULL and 0 bytes where it has none. */
struct choice_state {
    struct {
        void *data;
        size_t bytes;
    } part[5];
};

static uint32_t tops_of(const struct aq_sequence *s)
{
    return s->top_count > 0 ? (uint32_t)s->top_count : 0;
}

/* What is computed again with the prompt is not kept, unless the prompt will not be. */
static uint32_t prompt_scores(const struct aq_sequence *s, bool ended)
{
    return ended && s->prompt_logprobs ? s->prompt_count - s->prompt_from : 0;
}

static struct choice_state arrays_of(const struct aq_sequence *s, const struct head *h)
{
    size_t tokens = h->tokens, top = tops_of(s) * sizeof(struct aq_top), in = h->prompt_scores;
    return (struct choice_state){{
        {s->tokens, tokens * sizeof(*s->tokens)},
        {s->logprobs, s->logprobs ? tokens * sizeof(*s->logprobs) : 0},
        {s->tops, s->tops ? tokens * top : 0},
        {s->prompt_logprob, s->prompt_logprob ? in * sizeof(*s->prompt_logprob) : 0},
        {s->prompt_tops, s->prompt_tops ? in * top : 0},
    }};
}

/* ---- out --------------------------------------------------------------------------------- */

static void put_choice(struct aq_buf *out, const struct aq_choice *c)
{
    const struct aq_sequence *s = &c->sequence;
    struct head h = {
        .tokens = c->ended ? s->token_count : c->known,
        .finish = c->ended ? s->finish : AQ_FINISH_NONE,
        .finish_id = c->ended ? s->finish_id : 0,
        .top_count = s->top_count,
        .prompt_scores = prompt_scores(s, c->ended),
    };
    struct choice_state a = arrays_of(s, &h);
    aq_buf_put(out, &h, sizeof(h));
    for (size_t i = 0; i < AQ_ARRAY_LEN(a.part); i++)
        if (a.part[i].bytes)
            aq_buf_put(out, a.part[i].data, a.part[i].bytes);
}

uint64_t aq_record_state_put(struct aq_buf *out, const struct aq_record *rec)
{
    uint64_t tokens = 0;
    for (uint32_t i = 0; i < rec->choice_count; i++) {
        const struct aq_choice *c = &rec->choices[i];
        if (c->ended && c->sequence.finish == AQ_FINISH_ERROR)
            return 0; /* its record becomes an error in any case */
        tokens += c->ended ? c->sequence.token_count : c->known;
    }
    if (!tokens)
        return 0;
    aq_buf_put(out, &rec->choice_count, sizeof(rec->choice_count));
    for (uint32_t i = 0; i < rec->choice_count; i++)
        put_choice(out, &rec->choices[i]);
    return tokens;
}

/* ---- in ---------------------------------------------------------------------------------- */

struct reader {
    const char *at;
    size_t left;
};

static bool read(struct reader *r, void *dst, size_t bytes)
{
    if (bytes > r->left)
        return false;
    if (bytes)
        memcpy(dst, r->at, bytes);
    r->at += bytes;
    r->left -= bytes;
    return true;
}

static bool is_stop_id(const struct aq_sequence *s, uint32_t id)
{
    for (uint32_t i = 0; i < s->stop_id_count; i++)
        if (s->stop_ids[i] == id)
            return true;
    return false;
}

/* Goes through the tokens as the engine did; how the sequence ends with them. */
static enum aq_finish follow(struct aq_choice *c, uint32_t count, uint32_t *ret_at)
{
    struct aq_sequence *s = &c->sequence;
    enum aq_finish how = AQ_FINISH_NONE;
    for (s->token_count = 0; s->token_count < count && how == AQ_FINISH_NONE;) {
        uint32_t id = s->tokens[s->token_count++];
        if (is_stop_id(s, id) && s->token_count > s->min_tokens)
            how = AQ_FINISH_STOP_ID;
        else if (s->on_token && s->on_token(s))
            how = AQ_FINISH_CALLER;
        else if (s->token_count >= s->max_tokens)
            how = AQ_FINISH_LENGTH;
    }
    *ret_at = s->token_count;
    return how;
}

/* Can these tokens have been chosen? */
static bool are_possible(const struct aq_choice *c, uint32_t count)
{
    const struct aq_sequence *s = &c->sequence;
    for (uint32_t i = 0; i < count; i++)
        if (s->forced ? s->tokens[i] != s->forced[i] : s->tokens[i] >= s->id_end)
            return false;
    return true;
}

/* A natural logarithm of a probability, as far as sums of floats go; never NaN. */
static bool is_logprob(float x)
{
    return x < 0.5F;
}

/* Log-probabilities from `first` on, and `top` others beside each, with ids of the model. */
static bool are_logprobs(const struct aq_choice *c, const float *logprob, const struct aq_top *tops,
                         uint32_t first, uint32_t count)
{
    uint32_t vocab = c->record->rules->vocab, top = tops ? tops_of(&c->sequence) : 0;
    for (uint32_t i = first; logprob && i < count; i++)
        if (!is_logprob(logprob[i]))
            return false;
    for (size_t i = (size_t)first * top; i < (size_t)count * top; i++)
        if ((vocab && tops[i].id >= vocab) || !is_logprob(tops[i].logprob))
            return false;
    return true;
}

static bool take_choice(struct aq_choice *c, struct reader *r)
{
    struct aq_sequence *s = &c->sequence;
    struct head h;
    uint32_t end;
    if (!read(r, &h, sizeof(h)))
        return false;
    bool ended = h.finish != AQ_FINISH_NONE;
    if (h.tokens > s->max_tokens || h.top_count != s->top_count || h.finish == AQ_FINISH_ERROR ||
        h.prompt_scores != prompt_scores(s, ended))
        return false;
    struct choice_state a = arrays_of(s, &h);
    for (size_t i = 0; i < AQ_ARRAY_LEN(a.part); i++)
        if (!read(r, a.part[i].data, a.part[i].bytes))
            return false;
    bool unscored = s->prompt_from == 0; /* the first token of a text has no probability */
    if (!are_logprobs(c, s->logprobs, s->tops, 0, h.tokens) ||
        !are_logprobs(c, s->prompt_logprob, s->prompt_tops, unscored, h.prompt_scores))
        return false;
    if (!are_possible(c, h.tokens) || follow(c, h.tokens, &end) != h.finish || end != h.tokens)
        return false;
    s->token_count = ended ? h.tokens : 0;
    if (!ended) {
        s->given_count = c->known = h.tokens;
        return true;
    }
    if (h.finish == AQ_FINISH_STOP_ID && s->tokens[end - 1] != h.finish_id)
        return false;
    s->finish = h.finish;
    s->finish_id = h.finish_id;
    aq_record_finish(s);
    return true;
}

/* As a record is when it is opened. */
static void forget(struct aq_record *rec)
{
    const struct aq_params *p = &rec->request->params;
    rec->finished_count = 0;
    for (uint32_t i = 0; i < rec->choice_count; i++) {
        struct aq_choice *c = &rec->choices[i];
        struct aq_sequence *s = &c->sequence;
        aq_stop_init(&c->stop, p->stop, p->stop_count, c->stop.tail);
        c->eos = c->ended = false;
        c->known = s->given_count = s->token_count = s->finish_id = 0;
        s->finish = AQ_FINISH_NONE;
    }
}

bool aq_record_state_take(struct aq_record *rec, const char *bytes, size_t count)
{
    struct reader r = {bytes, count};
    uint32_t choices;
    assert(rec->finished_count == 0);
    bool good = read(&r, &choices, sizeof(choices)) && choices == rec->choice_count;
    for (uint32_t i = 0; good && i < choices; i++)
        good = take_choice(&rec->choices[i], &r);
    good = good && r.left == 0 && !aq_record_done(rec);
    if (!good)
        forget(rec);
    return good;
}
