/* SPDX-License-Identifier: Apache-2.0
 * engine/sequence.h - one sequence: a prompt, the parameters of its continuation, and the outputs.
 * The caller owns the struct and every array it points to, from submit until the sequence comes
 * back finished; the engine writes the outputs and allocates nothing.  Knows token ids, not
 * text. */
#ifndef AQ_ENGINE_SEQUENCE_H
#define AQ_ENGINE_SEQUENCE_H

#include <stdbool.h>
#include <stdint.h>

enum { AQ_TOP_MAX = 20 };

struct aq_logits_stat; /* kernels/kernels.h */
struct aq_sequence;

struct aq_sampling {
    float temperature;                         /* 0: greedy, ties to the lowest id */
    float top_p;                               /* 1: off */
    float min_p;                               /* 0: off */
    uint32_t top_k;                            /* 0: off */
    float repetition_penalty;                  /* 1: off; over prompt and generated ids */
    float presence_penalty, frequency_penalty; /* 0: off; over generated ids */
    uint64_t seed;                             /* of the run or the record */
    uint64_t record_hash; /* xxh3-64 of the id: with seed, choice and step it keys the draws */
    uint32_t choice;      /* index among the record's sequences */
};

struct aq_top {
    uint32_t id;
    float logprob;
};

enum aq_finish {
    AQ_FINISH_NONE,    /* not finished */
    AQ_FINISH_LENGTH,  /* max_tokens or the context is used up */
    AQ_FINISH_STOP_ID, /* a token of stop_ids came; finish_id says which (the last of tokens) */
    AQ_FINISH_CALLER,  /* on_token returned true (a stop string) */
    AQ_FINISH_ERROR,   /* logits were not finite */
};

struct aq_sequence {
    /* ---- set by the caller ---- */
    const uint32_t *prompt; /* prompt_count >= 1 ids below the vocabulary size */
    uint32_t prompt_count;
    /* Tokens to generate at most; 0 only scores the prompt.  The last one is never computed with,
     * so prompt and new tokens may be one more than the context. */
    uint32_t max_tokens;
    uint32_t min_tokens; /* stop_ids are not allowed before this many */
    /* Lengths that the KV policy's limits follow from, if not the sequence's own: a benchmark fills
     * the cache by a longer prompt.  kv_prompt 0: its own. */
    uint32_t kv_prompt, kv_new;
    struct aq_sampling sampling;
    const uint32_t *stop_ids; /* EOS among them unless it is ignored */
    uint32_t stop_id_count;
    /* Ids that are never chosen, since no token has them: those from id_end on (0: none of them),
     * and these.  Log-probabilities count them nevertheless. */
    uint32_t id_end, never_count;
    const uint32_t *never;
    const uint32_t *forced; /* NULL, or [max_tokens]: taken instead of sampled ones */
    /* The first so many of `tokens` are given, and so is what belongs to them in logprobs and tops:
     * they are fed and neither chosen nor shown to on_token.  Fewer than max_tokens, and what they
     * do to the cache is what generating them does. */
    uint32_t given_count;
    int top_count;        /* -1: no log-probabilities; else 0..AQ_TOP_MAX alternatives a token */
    bool prompt_logprobs; /* also for prompt tokens (echo); needs top_count >= 0 */
    uint32_t prompt_from; /* then: from this prompt token on, which their arrays begin with */
    /* Called after each token, on the control lane: true ends the sequence.  NULL: never. */
    bool (*on_token)(struct aq_sequence *s);
    /* Gets the raw logits [vocab] of token `step` (counted from 0) before the token is chosen.
     * Called on any worker, for several sequences at a time; must not allocate.  NULL: never. */
    void (*on_logits)(struct aq_sequence *s, uint32_t step, uint32_t worker, const float *logits,
                      const struct aq_logits_stat *stat);
    void *user;

    /* ---- written by the engine, arrays provided by the caller ---- */
    uint32_t *tokens;    /* [max_tokens] */
    float *logprobs;     /* [max_tokens], NULL when top_count < 0: ln softmax of the raw logits */
    struct aq_top *tops; /* [max_tokens][top_count], best first; NULL when top_count <= 0 */
    /* [prompt_count - prompt_from], that of token 0 unused; NULL without prompt_logprobs */
    float *prompt_logprob;
    struct aq_top *prompt_tops; /* [prompt_count - prompt_from][top_count], likewise */
    uint32_t token_count;
    enum aq_finish finish;
    uint32_t finish_id;

    /* ---- the engine's own ---- */
    struct aq_sequence *next; /* in the waiting or finished list */
    int32_t seat;             /* -1 when not seated */
};

#endif
