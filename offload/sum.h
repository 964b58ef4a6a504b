/* SPDX-License-Identifier: Apache-2.0
 * offload/sum.h - the checksum of moved bytes: XXH3-64, with the widest instructions that the
 * library has for this CPU. */
#ifndef AQ_OFFLOAD_SUM_H
#define AQ_OFFLOAD_SUM_H

#include <stddef.h>
#include <stdint.h>

/* When what is read from a store is compared with its checksums: the first time that it comes,
 * every time, never. */
enum aq_verify { AQ_VERIFY_ONCE, AQ_VERIFY_ALWAYS, AQ_VERIFY_OFF };

uint64_t aq_sum(const void *bytes, size_t count);

#endif
