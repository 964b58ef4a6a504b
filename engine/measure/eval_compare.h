/* SPDX-License-Identifier: Apache-2.0
 * engine/measure/eval_compare.h - how far the distributions of one run are from those of another
 * over the same tokens.  The first run's logits lie in a file without a name, not in memory:
 * windows x tokens x vocabulary x 4 bytes, bounded before it is made.  Owns the file and a row per
 * thread. */
#ifndef AQ_ENGINE_MEASURE_EVAL_COMPARE_H
#define AQ_ENGINE_MEASURE_EVAL_COMPARE_H

#include "base/err.h"
#include "kernels/kernels.h"

struct aq_eval_compare;

struct aq_eval_compare_opts {
    const char *directory; /* for the file; exists */
    uint64_t disk_memory;  /* most bytes of the file; 0: free space less 5 % */
    uint32_t windows, tokens, vocab, threads;
};

int aq_eval_compare_open(struct aq_eval_compare **ret, const struct aq_eval_compare_opts *opts,
                         struct aq_err *reterr);
void aq_eval_compare_close(struct aq_eval_compare *c);
/* Bytes of memory that open takes. */
uint64_t aq_eval_compare_bytes(const struct aq_eval_compare_opts *opts);

/* keep: stores the logits of token `token` of a window; row: compares the other run's with them.
 * From many threads, each as its own worker; a window's tokens one after the other.  A failure to
 * write or read the file is reported by check. */
void aq_eval_compare_keep(struct aq_eval_compare *c, uint32_t window, uint32_t token,
                          const float *logits, const struct aq_logits_stat *stat);
void aq_eval_compare_row(struct aq_eval_compare *c, uint32_t window, uint32_t token,
                         uint32_t worker, const float *logits, const struct aq_logits_stat *stat);
/* Clears the comparison, not the stored logits. */
void aq_eval_compare_reset(struct aq_eval_compare *c);
int aq_eval_compare_check(const struct aq_eval_compare *c, struct aq_err *reterr);

/* [windows] sums over a window's tokens: the Kullback-Leibler divergence of the compared
 * distribution from the kept one, sum of p (ln p - ln q) in nats with p the kept one, and how often
 * both have the same likeliest token. */
const double *aq_eval_compare_kl(const struct aq_eval_compare *c);       /* [windows] */
const uint32_t *aq_eval_compare_agreed(const struct aq_eval_compare *c); /* [windows] */

#endif
