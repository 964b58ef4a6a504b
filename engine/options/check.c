/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/options/check.h"
#include "engine/options/notation.h"

#include "base/types.h"
#include "base/units.h"
#include "engine/chat/chat.h"
#include "engine/options/kv.h"
#include "offload/numa.h"

#include <stdlib.h>
#include <string.h>

static bool all_digits(const char *text)
{
    size_t n = strspn(text, "0123456789");
    return n > 0 && n <= 9 && !text[n];
}

int aq_check_device(const char *label, const char *text, struct aq_err *reterr)
{
    if (strcmp(text, "auto") == 0 || strcmp(text, "cpu") == 0)
        return 0;
    if (strcmp(text, "cuda") == 0 || (strncmp(text, "cuda:", 5) == 0 && all_digits(text + 5)))
        return 0; /* whether there is one is found out when it is wanted */
    return aq_error(reterr, -EINVAL, "%s: expected auto, cpu, cuda or cuda:N, found '%s'", label,
                    text);
}

int aq_check_chat_time(const char *label, const char *text, struct aq_err *reterr)
{
    if (aq_chat_time_valid(text))
        return 0;
    return aq_error(reterr, -EINVAL, "%s: expected 2026-01-31 or 2026-01-31T12:00:00, found '%s'",
                    label, text);
}

int aq_check_kv_budget(const char *label, const char *text, struct aq_err *reterr)
{
    struct aq_kv_amount amount;
    return aq_kv_amount_parse(&amount, label, text, false, reterr);
}

int aq_check_kv_part(const char *label, const char *text, struct aq_err *reterr)
{
    struct aq_kv_amount amount;
    return aq_kv_amount_parse(&amount, label, text, true, reterr);
}

int aq_check_numa(const char *label, const char *text, struct aq_err *reterr)
{
    struct aq_numa_choice choice;
    return aq_numa_parse(text, &choice)
               ? 0
               : aq_error(reterr, -EINVAL, "%s: expected auto, off or a node's number, found '%s'",
                          label, text);
}

int aq_check_length(const char *label, const char *text, struct aq_err *reterr)
{
    uint32_t first, last;
    return aq_length_parse(&first, &last, label, text, reterr);
}

int aq_check_link(const char *label, const char *text, struct aq_err *reterr)
{
    uint64_t bytes_per_s[2];
    return aq_link_parse(bytes_per_s, label, text, reterr);
}

int aq_check_attention(const char *label, const char *text, struct aq_err *reterr)
{
    enum aq_attention_side side;
    double split;
    return strcmp(text, "auto") == 0 ? 0 : aq_attention_parse(&side, &split, label, text, reterr);
}

int aq_check_placement(const char *label, const char *text, struct aq_err *reterr)
{
    struct aq_placement placement;
    return strcmp(text, "auto") == 0 ? 0 : aq_placement_parse(&placement, label, text, reterr);
}

int aq_check_host_products(const char *label, const char *text, struct aq_err *reterr)
{
    double percent;
    return strcmp(text, "auto") == 0 ? 0 : aq_host_products_parse(&percent, label, text, reterr);
}
