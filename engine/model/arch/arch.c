/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model/arch/rows.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

static const struct aq_arch *const rows[] = {
    &aq_arch_opt,
};

const struct aq_arch *aq_arch_find(const char *name)
{
    for (size_t i = 0; i < AQ_ARRAY_LEN(rows); i++) {
        if (strcmp(name, rows[i]->name) == 0)
            return rows[i];
    }
    return NULL;
}

const char *aq_arch_names(char *text, size_t bytes)
{
    size_t at = 0;
    for (size_t i = 0; i < AQ_ARRAY_LEN(rows); i++) {
        at += (size_t)snprintf(text + at, bytes - at, "%s%s", i ? ", " : "", rows[i]->name);
        assert(at < bytes);
    }
    return text;
}

/* First the canonical name behind each prefix, then its alias, if it has one, behind each. */
bool aq_arch_tensor_name(const struct aq_arch *arch, const char *canonical, uint32_t variant,
                         char *text)
{
    enum { BYTES = 2 * AQ_NAME_MAX };
    uint32_t prefixes = 0;
    while (arch->prefixes[prefixes])
        prefixes++;
    if (variant < prefixes) {
        snprintf(text, BYTES, "%s%s", arch->prefixes[variant], canonical);
        return true;
    }
    if (variant >= 2 * prefixes)
        return false;
    for (const struct aq_arch_alias *a = arch->aliases; a->canonical; a++) {
        size_t n = strlen(a->canonical);
        if (strncmp(canonical, a->canonical, n) == 0) {
            snprintf(text, BYTES, "%s%s%s", arch->prefixes[variant - prefixes], a->other,
                     canonical + n);
            return true;
        }
    }
    return false;
}
