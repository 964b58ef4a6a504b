/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/build_info.h"

#include "commit.h"
#include "config.h"
#include "engine/aquifer.h"

/* The header says by hand which version it is of, so that it is one file that can be read; here the
 * build makes sure that it says what meson.build does. */
_Static_assert(__builtin_strcmp(AQUIFER_VERSION, AQ_VERSION) == 0,
               "AQUIFER_VERSION in engine/aquifer.h is not the version in meson.build");
_Static_assert(AQUIFER_VERSION_MAJOR == AQ_VERSION_MAJOR &&
                   AQUIFER_VERSION_MINOR == AQ_VERSION_MINOR &&
                   AQUIFER_VERSION_PATCH == AQ_VERSION_PATCH,
               "AQUIFER_VERSION_MAJOR, _MINOR or _PATCH in engine/aquifer.h is not that of "
               "meson.build");

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
