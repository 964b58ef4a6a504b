/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/ledger.h"

#include <assert.h>
#include <string.h>

static const struct aq_ledger_item *find(const struct aq_ledger *l, enum aq_tier tier,
                                         const char *purpose)
{
    for (uint32_t i = 0; i < l->count; i++) {
        if (l->item[i].tier == tier && strcmp(l->item[i].purpose, purpose) == 0)
            return &l->item[i];
    }
    return NULL;
}

void aq_ledger_add(struct aq_ledger *l, enum aq_tier tier, const char *purpose, uint64_t bytes)
{
    if (!bytes)
        return;
    const struct aq_ledger_item *have = find(l, tier, purpose);
    if (have) {
        l->item[have - l->item].bytes += bytes;
        return;
    }
    assert(l->count < AQ_LEDGER_MAX);
    l->item[l->count++] = (struct aq_ledger_item){tier, purpose, bytes};
}

uint64_t aq_ledger_total(const struct aq_ledger *l, enum aq_tier tier)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < l->count; i++)
        sum += l->item[i].tier == tier ? l->item[i].bytes : 0;
    return sum;
}

uint64_t aq_ledger_line(const struct aq_ledger *l, enum aq_tier tier, const char *purpose)
{
    const struct aq_ledger_item *have = find(l, tier, purpose);
    return have ? have->bytes : 0;
}
