/* SPDX-License-Identifier: Apache-2.0
 * base/paths.h - default places of Aquifer's files.  Results are malloc'd. */
#ifndef AQ_BASE_PATHS_H
#define AQ_BASE_PATHS_H

#include "base/err.h"

/* The packed cache: `option` (--cache-dir) when given, else $XDG_CACHE_HOME/aquifer, else
 * $HOME/.cache/aquifer.  Makes nothing.  NULL with -EINVAL when none of them is set. */
char *aq_path_cache(const char *option, struct aq_err *reterr);

/* Makes a directory and those above it that are missing. */
int aq_path_make(const char *path, struct aq_err *reterr);

/* The path itself or its nearest parent that exists, on whose file system a new directory will lie.
 * NULL: out of memory. */
char *aq_path_existing(const char *path);

#endif
