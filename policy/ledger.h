/* SPDX-License-Identifier: Apache-2.0
 * policy/ledger.h - every buffer by tier and purpose, before it is allocated.  Pure arithmetic: the
 * ledger allocates nothing and reads nothing of the machine. */
#ifndef AQ_POLICY_LEDGER_H
#define AQ_POLICY_LEDGER_H

#include "base/types.h"

enum { AQ_LEDGER_MAX = 48 };

struct aq_ledger {
    struct aq_ledger_item {
        enum aq_tier tier;
        const char *purpose; /* the name that aq_mem_alloc is called with */
        uint64_t bytes;
    } item[AQ_LEDGER_MAX];
    uint32_t count;
};

/* Adds bytes to the line (tier, purpose), making it if need be; 0 bytes adds nothing. */
void aq_ledger_add(struct aq_ledger *l, enum aq_tier tier, const char *purpose, uint64_t bytes);
uint64_t aq_ledger_total(const struct aq_ledger *l, enum aq_tier tier);
/* Bytes of one line, 0 when absent. */
uint64_t aq_ledger_line(const struct aq_ledger *l, enum aq_tier tier, const char *purpose);

#endif
