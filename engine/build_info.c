/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/build_info.h"

#include "commit.h"
#include "config.h"
#include "engine/aquifer.h"

const char *aq_build_version(void)
{
    return AQ_VERSION;
}

const char *aq_build_commit(void)
{
    return AQ_COMMIT;
}

const char *aquifer_version(void)
{
    return AQ_VERSION " (" AQ_COMMIT ")";
}
