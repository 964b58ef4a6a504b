/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/options/check.h"
#include "engine/options/notation.h"

#include "base/types.h"
#include "base/units.h"
#include "engine/chat/chat.h"
#include "engine/compute/backend.h"
#include "engine/options/kv.h"
#include "engine/options/shard.h"
#include "offload/numa.h"

#include <stdlib.h>
#include <string.h>

int aq_check_device(const char *label, const char *text, struct aq_err *reterr)
{
    struct aq_device_choice choice; /* whether there is one is found out when it is wanted */
    return aq_device_parse(&choice, text)
               ? 0
               : aq_error(reterr, -EINVAL, "%s: expected auto, cpu, cuda or cuda:N, found '%s'",
                          label, text);
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

int aq_check_kv_floor(const char *label, const char *text, struct aq_err *reterr)
{
    struct aq_kv_amount amount;
    enum aq_kv_floor kind;
    return aq_kv_floor_parse(&amount, &kind, label, text, reterr);
}

int aq_check_kv_layers(const char *label, const char *text, struct aq_err *reterr)
{
    enum aq_kv_layers layers;
    uint32_t beta;
    return aq_kv_layers_parse(&layers, &beta, label, text, reterr);
}

int aq_check_kv_pool(const char *label, const char *text, struct aq_err *reterr)
{
    enum aq_kv_pool pool;
    uint32_t width;
    return aq_kv_pool_parse(&pool, &width, label, text, reterr);
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

int aq_check_shard(const char *label, const char *text, struct aq_err *reterr)
{
    struct aq_shard shard;
    return aq_shard_parse(&shard, label, text, reterr);
}

/* Of options whose value is a struct of engine/options/notation.h. */
#define CHECK(name)                                                                                \
    int aq_check_##name(const char *label, const char *text, struct aq_err *reterr)                \
    {                                                                                              \
        struct aq_##name##_choice choice;                                                          \
        return aq_##name##_parse(&choice, label, text, reterr);                                    \
    }
CHECK(link)
CHECK(price)
CHECK(attention)
CHECK(placement)
CHECK(host_products)
