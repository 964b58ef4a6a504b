/* SPDX-License-Identifier: Apache-2.0
 * engine/job/alike.h - an order of prompts in which those that begin alike stand together, so that
 * they run together and what they begin with is computed once.  Keeps sums of the beginnings of
 * each prompt in steps of 32 tokens, not the tokens: two prompts are taken to be alike as far as
 * their sums are equal, which is right but for a chance of 2^-32 a pair, and decides the order and
 * what plans expect, but no result. */
#ifndef AQ_ENGINE_JOB_ALIKE_H
#define AQ_ENGINE_JOB_ALIKE_H

#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>

/* BYTES_MAX: for the sums of a job, four for 32 tokens. */
enum { AQ_ALIKE_STEP = 32, AQ_ALIKE_BYTES_MAX = 256 << 20 };

struct aq_alike;
/* bytes: most memory for sums; later steps of prompts that come when it is used up are left out. */
int aq_alike_open(struct aq_alike **ret, uint64_t bytes, struct aq_err *reterr);
void aq_alike_close(struct aq_alike *a); /* NULL is fine */

/* The prompt of record number `item`; numbers ascend.  ids is read. */
int aq_alike_add(struct aq_alike *a, uint64_t item, const uint32_t *ids, uint32_t count,
                 struct aq_err *reterr);

/* With how many tokens both prompts begin, in whole steps; none where one of them has no sums. */
uint32_t aq_alike_tokens(const struct aq_alike *a, uint64_t item, uint64_t other);

/* Orders the numbers [0, count), of which those that wants() says no to, and those without a prompt
 * of 32 tokens, stand alone.  Numbers stand in ascending order, but those that begin alike follow
 * the first of them: of these, each stands beside one that it shares most with.  ret_order [count].
 * Returns the tokens that need not be computed again where each shares with the one before it, or a
 * negative error. */
int64_t aq_alike_order(const struct aq_alike *a, uint64_t *ret_order, uint64_t count,
                       bool (*wants)(void *user, uint64_t item), void *user, struct aq_err *reterr);

#endif
