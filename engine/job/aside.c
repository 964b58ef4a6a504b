/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/job/aside.h"

#include "base/file.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OLD_NAMES_MAX = 10000 };

int aq_move_file(const char *from, const char *to, struct aq_err *reterr)
{
    int rc = aq_file_rename(from, to);
    return rc < 0 ? aq_error(reterr, aq_err_of_io(-rc), "rename '%s' to '%s': %s", from, to,
                             strerror(-rc))
                  : aq_file_sync_folder(to, reterr);
}

static int rename_old(const char *path, const char *ending, const char *why,
                      const struct aquifer_hooks *hooks, struct aq_err *reterr)
{
    if (aq_file_size(path) < 0)
        return 0;
    char *to = aq_file_name(path, ending);
    int rc = to ? aq_move_file(path, to, reterr) : aq_error_memory(reterr, "rename '%s'", path);
    if (rc == 0)
        aq_hooks_line(hooks, AQUIFER_INFO, "%s'%s' is now '%s'", why, path, to);
    free(to);
    return rc;
}

int aq_set_aside(const char *const *paths, size_t count, const char *why,
                 const struct aquifer_hooks *hooks, struct aq_err *reterr)
{
    for (int n = 1; n < OLD_NAMES_MAX; n++) {
        char ending[24];
        snprintf(ending, sizeof(ending), ".old.%d", n);
        bool taken = false;
        for (size_t i = 0; i < count; i++) {
            char *name = aq_file_name(paths[i], ending);
            taken |= !name || aq_file_size(name) >= 0;
            free(name);
        }
        int rc = 0;
        for (size_t i = 0; !taken && rc == 0 && i < count; i++)
            rc = rename_old(paths[i], ending, why, hooks, reterr);
        if (!taken)
            return rc;
    }
    return aq_error(reterr, -EINVAL, "'%s.old.1' to '.old.%d' all exist; move some of them away",
                    paths[0], OLD_NAMES_MAX - 1);
}
