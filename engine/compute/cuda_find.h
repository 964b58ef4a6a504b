/* SPDX-License-Identifier: Apache-2.0
 * engine/compute/cuda_find.h - loading a shared library whose own needs may lie where the loader
 * does not look: cuBLASLt comes with CUDA toolkits and with Python packages. */
#ifndef AQ_ENGINE_COMPUTE_CUDA_FIND_H
#define AQ_ENGINE_COMPUTE_CUDA_FIND_H

#include "base/err.h"

/* Loads the library at `path` for good, after what it needs and the loader does not find: each is
 * looked for by its name in the folders of toolkits ($CUDA_HOME, $CUDA_PATH, /usr/local/cuda*) and
 * of Python environments ($VIRTUAL_ENV, $CONDA_PREFIX, the user's, the system's, those of /opt/).
 * NULL: *reterr names what is missing (-ENODEV). */
void *aq_cuda_find_load(const char *path, struct aq_err *reterr);

#endif
