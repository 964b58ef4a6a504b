/* SPDX-License-Identifier: Apache-2.0
 * base/mem.h - accounted memory: every large buffer is taken here, by tier and purpose, under an
 * absolute limit per tier.  Buffers of 2 MiB and more are anonymous maps backed by huge pages
 * (MADV_HUGEPAGE), touched at once so that later passes never fault; smaller ones are 64-byte
 * aligned. Thread-safe.  Knows nothing of what is stored. */
#ifndef AQ_BASE_MEM_H
#define AQ_BASE_MEM_H

#include "base/err.h"
#include "base/types.h"

enum { AQ_MEM_PURPOSE_MAX = 64 };

struct aq_mem;

struct aq_mem_usage {
    const char *purpose; /* static string given to aq_mem_alloc */
    enum aq_tier tier;
    uint64_t bytes, peak_bytes;
};

/* Limits in bytes per tier; UINT64_MAX for none. */
int aq_mem_open(struct aq_mem **ret, const uint64_t limit_bytes[AQ_TIER_COUNT],
                struct aq_err *reterr);
/* Asserts that every buffer came back.  NULL is fine. */
void aq_mem_close(struct aq_mem *m);

/* Takes `bytes` (> 0), zeroed, aligned to 64 bytes, or to 4096 from 4096 bytes on.  purpose must be
 * a string literal, by which totals are kept.  -ENOMEM with both figures at the tier's limit. */
int aq_mem_alloc(void **ret, struct aq_mem *m, enum aq_tier tier, const char *purpose, size_t bytes,
                 struct aq_err *reterr);
/* The same; `place` is called with a buffer of mapped pages before any is touched, to say where
 * they should lie.  Smaller ones are never asked about. */
typedef void aq_mem_place_fn(void *user, void *p, size_t bytes);
int aq_mem_alloc_placed(void **ret, struct aq_mem *m, enum aq_tier tier, const char *purpose,
                        size_t bytes, aq_mem_place_fn *place, void *user, struct aq_err *reterr);
/* Accounts for memory from another allocator (a GPU's driver): the same limits, totals and -ENOMEM,
 * but no bytes. */
int aq_mem_count(struct aq_mem *m, enum aq_tier tier, const char *purpose, size_t bytes,
                 struct aq_err *reterr);
void aq_mem_uncount(struct aq_mem *m, enum aq_tier tier, const char *purpose, size_t bytes);
/* p NULL is fine; bytes as given to aq_mem_alloc. */
void aq_mem_free(struct aq_mem *m, enum aq_tier tier, const char *purpose, void *p, size_t bytes);

uint64_t aq_mem_used(struct aq_mem *m, enum aq_tier tier);
uint64_t aq_mem_peak(struct aq_mem *m, enum aq_tier tier);
/* Copies at most `max` rows; returns how many there are. */
unsigned aq_mem_usage(struct aq_mem *m, struct aq_mem_usage *rows, unsigned max);

/* Bytes that a request really takes, which the ledger must count. */
size_t aq_mem_rounded(size_t bytes);

/* Peak and current resident set of this process in bytes, as the operating system counts them
 * (VmHWM and VmRSS); 0 when unknown. */
uint64_t aq_mem_process_peak(void);
/* Resets the peak to the current resident set, where the kernel can. */
void aq_mem_process_peak_reset(void);
uint64_t aq_mem_process_now(void);

#endif
