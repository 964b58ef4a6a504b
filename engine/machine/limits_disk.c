/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/machine/limits.h"

#include "offload/disk.h"

int aq_limits_disk(struct aq_disk_limits *ret, const char *directory, struct aq_err *reterr)
{
    struct aq_disk_place place;
    int rc = aq_disk_stat(&place, directory, reterr);
    if (rc < 0)
        return rc;
    *ret = (struct aq_disk_limits){
        .file_system = place.file_system,
        .in_memory = place.in_memory,
        .network = place.network,
        .total = place.total,
        .free = place.free,
        .budget = place.free - place.free / 20,
        .direct = place.direct,
        .direct_reason = place.direct_reason,
    };
    return 0;
}
