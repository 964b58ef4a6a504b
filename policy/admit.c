/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/admit.h"

uint64_t aq_admit_peak_pages(const struct aq_admit_length *seated, uint32_t count,
                             uint32_t page_slots)
{
    /* Use only falls when a sequence ends, so the peak lies at the last pass of one of them: after
     * last - now more passes. */
    uint64_t peak = 0;
    for (uint32_t e = 0; e < count; e++) {
        uint32_t passes = seated[e].last - seated[e].now;
        uint64_t pages = 0;
        for (uint32_t i = 0; i < count; i++) {
            if (seated[i].last - seated[i].now >= passes)
                pages += aq_div_up((uint64_t)seated[i].now + passes, page_slots);
        }
        peak = aq_max_u64(peak, pages);
    }
    return peak;
}

bool aq_admit_one(const struct aq_admit_limits *limits, struct aq_admit_length *seated,
                  uint32_t count, uint32_t admitted_tokens, uint32_t prompt_tokens, uint32_t last)
{
    if (limits->seats_free == 0)
        return false;
    if (admitted_tokens > 0 && (uint64_t)admitted_tokens + prompt_tokens > limits->prompt_tokens)
        return false;
    seated[count] = (struct aq_admit_length){prompt_tokens, last};
    /* When all fit at their longest, nothing needs to be played through: the common case. */
    uint64_t most = 0;
    for (uint32_t i = 0; i <= count; i++)
        most += aq_div_up(seated[i].last, limits->page_slots);
    return most <= limits->pages ||
           aq_admit_peak_pages(seated, count + 1, limits->page_slots) <= limits->pages;
}
