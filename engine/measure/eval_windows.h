/* SPDX-License-Identifier: Apache-2.0
 * engine/measure/eval_windows.h - the windows that `eval` scores: a text's or file's ids cut into
 * pieces of P + G tokens, as sequences of an engine, and the losses that come back.  Owns ids and
 * losses. */
#ifndef AQ_ENGINE_MEASURE_EVAL_WINDOWS_H
#define AQ_ENGINE_MEASURE_EVAL_WINDOWS_H

#include "engine/core/engine.h"
#include "engine/options/options.h"

struct aq_eval_ids {
    uint32_t *id;
    size_t count;
};

/* Ids of --ids FILE (decimal numbers, or little-endian 16-bit ones in FILE.u16), or of --text FILE
 * by the model's tokenizer. */
int aq_eval_ids_read(struct aq_eval_ids *ret, const struct aq_options *o, struct aq_err *reterr);
void aq_eval_ids_close(struct aq_eval_ids *ids);

struct aq_eval_windows {
    uint32_t *ids; /* [count][stride]: each window's tokens, with BOS in front if bos_each */
    struct aq_sequence *sequence;
    uint32_t *tokens;
    float *logprobs; /* of the scored tokens, [count][G] */
    float *prompt_logprob;
    uint32_t count, prompt_tokens, score_tokens, stride;
    bool bos_each;
};

int aq_eval_windows_open(struct aq_eval_windows *w, const struct aq_eval_ids *text,
                         const struct aq_options *o, int32_t bos_id, struct aq_err *reterr);
void aq_eval_windows_close(struct aq_eval_windows *w);
/* Sequences as they are before a run.  P > 0: prefill P, then G forced tokens.  P = 0: the window
 * is one prefill whose prompt tokens are scored. */
void aq_eval_windows_reset(struct aq_eval_windows *w);
/* Prompt tokens of a window, its BOS among them. */
static inline uint32_t aq_eval_windows_prompt(const struct aq_eval_windows *w)
{
    return w->prompt_tokens ? w->prompt_tokens + w->bos_each : w->stride;
}

struct aq_eval_mean {
    double mean, se; /* se NaN of a single window */
};
/* The mean over all scored tokens; sum[window] is over the window's n tokens.  The standard error
 * comes from the spread of the windows' means, which, unlike tokens, are nearly independent. */
struct aq_eval_mean aq_eval_mean(const double *sum, uint32_t windows, uint32_t n);
/* Tokens scored in a window. */
uint32_t aq_eval_windows_scored(const struct aq_eval_windows *w);
/* nll[i] = sum of the negative log-probabilities of window i's scored tokens. */
void aq_eval_windows_nll(const struct aq_eval_windows *w, double *nll);

#endif
