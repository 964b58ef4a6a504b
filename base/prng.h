/* SPDX-License-Identifier: Apache-2.0
 * base/prng.h - counter-based random numbers: a value is a pure function of (key, counter), so that
 * a draw never depends on earlier draws.  Philox4x32-10: Salmon, Moraes, Dror, Shaw, "Parallel
 * random numbers: as easy as 1, 2, 3", SC11. */
#ifndef AQ_BASE_PRNG_H
#define AQ_BASE_PRNG_H

#include <stdint.h>

/* 128 random bits for a 64-bit key and a 128-bit counter. */
void aq_philox(uint32_t ret[4], uint64_t key, uint64_t counter_low, uint64_t counter_high);

/* 64 random bits: the first two words of aq_philox. */
uint64_t aq_prng_u64(uint64_t key, uint64_t counter_low, uint64_t counter_high);
/* Uniform in [0, 1), 53 bits. */
double aq_prng_uniform(uint64_t key, uint64_t counter_low, uint64_t counter_high);
/* Uniform integer in [0, n), n > 0; bias below 2^-32 for n < 2^32. */
uint64_t aq_prng_below(uint64_t key, uint64_t counter_low, uint64_t counter_high, uint64_t n);
/* Standard normal (Box-Muller on one Philox block). */
float aq_prng_normal(uint64_t key, uint64_t counter_low, uint64_t counter_high);

#endif
