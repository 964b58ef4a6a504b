/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/job/distinct.h"

#include "base/mem.h"
#include "engine/records/request.h"

#include <stdlib.h>

/* ---- within a request -------------------------------------------------------------------- */

/* Tokens at the beginning of a prompt whose logits nobody asks for. */
static uint32_t unscored(const struct aq_request *r, const struct aq_prompt *p)
{
    uint32_t from = aq_request_scored_from(r, p);
    if (from >= p->count)
        return p->count;
    return from ? from - 1 : 0;
}

uint32_t aq_distinct_within(const struct aq_request *r)
{
    uint32_t least = UINT32_MAX;
    for (uint32_t i = 0; i < r->prompt_count; i++) {
        const struct aq_prompt *p = &r->prompts[i], *before = i ? p - 1 : p;
        uint32_t n = 0, most = (uint32_t)aq_min_u64(before->count, unscored(r, p));
        while (i && n < most && p->ids[n] == before->ids[n])
            n++;
        least = (uint32_t)aq_min_u64(least, p->estimated ? 0 : i ? n : most);
    }
    return least;
}

/* ---- between requests -------------------------------------------------------------------- */

uint64_t aq_distinct_least(enum aq_share_prefixes when, uint64_t tokens)
{
    return when == AQ_SHARE_ON ? 1 : aq_div_up(tokens, 20);
}

uint64_t *aq_distinct_order(const struct aq_alike *a, uint64_t count, uint64_t least,
                            bool (*wants)(void *user, uint64_t item), void *user,
                            uint64_t *ret_alike)
{
    uint64_t *order = a ? calloc(count + 1, sizeof(*order)) : NULL;
    int64_t same = order ? aq_alike_order(a, order, count, wants, user, NULL) : 0;
    bool pays = same > 0 && (uint64_t)same >= least;
    *ret_alike = pays ? (uint64_t)same : 0;
    if (pays)
        return order;
    free(order);
    return NULL;
}

/* What the item's first sequence shares with the last one of the item before. */
static uint32_t shared_between(const struct aq_distinct *d, uint64_t item, uint32_t most)
{
    if (!d->begun || !most)
        return 0;
    uint64_t same = aq_alike_tokens(d->alike, d->item, item);
    return (uint32_t)aq_min_u64(aq_min_u64(same, most), d->ends);
}

bool aq_distinct_add(struct aq_distinct *d, uint64_t item, struct aq_length each,
                     uint32_t sequences)
{
    struct aq_length first = each;
    bool begins = !d->begun || d->item != item;
    each.shared = d->alike ? each.shared : 0;
    first.shared = !d->alike ? 0 : begins ? shared_between(d, item, each.shared) : each.shared;
    if (!sequences)
        return true;
    if (!aq_lengths_add(d->lengths, first, 1) || !aq_lengths_add(d->lengths, each, sequences - 1)) {
        aq_lengths_close(d->lengths);
        return false;
    }
    /* One token of each prompt is computed, and pages are whole steps. */
    uint64_t most = each.prompt ? each.prompt - 1 : 0, step = AQ_ALIKE_STEP;
    d->shared_sum += aq_min_u64(first.shared, most) / step * step;
    d->shared_sum += (sequences - 1) * (aq_min_u64(each.shared, most) / step * step);
    d->ends = begins && sequences == 1 ? UINT32_MAX : each.shared;
    d->item = item;
    d->begun = true;
    return true;
}
