/* SPDX-License-Identifier: Apache-2.0
 * engine/compute/sample.h - from one row of logits to one token: penalties, temperature,
 * truncation, the draw, and log-probabilities.  A pure function of the row and the sequence: who
 * else is in the batch, when it runs and on which thread never matters.  Allocates nothing. */
#ifndef AQ_ENGINE_COMPUTE_SAMPLE_H
#define AQ_ENGINE_COMPUTE_SAMPLE_H

#include "engine/sequence.h"
#include "kernels/kernels.h"

/* Scratch of one worker, [vocab] each, and the CPU's kernels, which weigh candidates. */
struct aq_sample_work {
    uint32_t *id;
    float *weight, *logits;
    const struct aq_kernels *kernels;
};

/* The next token of s.  logits [vocab] are raw and stay untouched; stat is theirs.
 * Order: ids masked (those without a token; stop ids below min_tokens), penalties, temperature,
 * top_k, top_p, min_p, draw.
 * The draw uses Philox with key seed and counter (record_hash, choice and step). */
uint32_t aq_sample_token(const struct aq_sequence *s, const float *logits,
                         const struct aq_logits_stat *stat, uint32_t vocab,
                         const struct aq_sample_work *work);

/* The end of the ids that may be chosen.  Below it, how many may not come now (some may be counted
 * twice, or lie past it), and those: [aq_sample_masked()].  Are there penalties? */
uint32_t aq_sample_id_end(const struct aq_sequence *s, uint32_t vocab);
uint32_t aq_sample_masked(const struct aq_sequence *s);
void aq_sample_masked_ids(const struct aq_sequence *s, uint32_t *ret);
bool aq_sample_has_penalties(const struct aq_sampling *s);

/* Of a temperature above 0 what distances between logits are multiplied by; and how far a candidate
 * may be from the best then, as min_p has it: minus ln of that share, INFINITY without. */
float aq_sample_inverse(const struct aq_sampling *s);
float aq_sample_reach(const struct aq_sampling *s);

/* The best `count` (<= AQ_TOP_MAX) entries of a row by logit, lowest id first on ties, as natural
 * logs of the softmax over the row. */
void aq_sample_tops(struct aq_top *ret, uint32_t count, const float *logits,
                    const struct aq_logits_stat *stat, uint32_t vocab);

#endif
