/* SPDX-License-Identifier: Apache-2.0
 * engine/compute/backend.h - which compute backend runs, and what NVIDIA hardware this machine
 * shows.  Reads /proc, /sys and /dev below `root` (NULL: the real ones). */
#ifndef AQ_ENGINE_COMPUTE_BACKEND_H
#define AQ_ENGINE_COMPUTE_BACKEND_H

#include "engine/compute/cuda.h"

#include <stdbool.h>

/* Whether an NVIDIA GPU is visible: a device node, the driver's /proc entry, or on the PCI bus.
 * *ret_where (a static string) says where. */
bool aq_device_nvidia_visible(const char *root, const char **ret_where);

enum aq_backend { AQ_BACKEND_CPU, AQ_BACKEND_CUDA, AQ_BACKEND_ANY };
struct aq_device_choice {
    enum aq_backend backend;
    uint32_t gpu; /* its number */
};
/* "auto", "cpu", "cuda" or "cuda:N"; false: something else. */
bool aq_device_parse(struct aq_device_choice *ret, const char *text);

/* *ret_gpu is the GPU's number, or -1 for the CPU.  -ENODEV when the choice cannot be had: a GPU,
 * or any device when a GPU is visible that would stand idle without the user knowing.  Only where a
 * GPU is asked for or visible is the module looked for (module: as aq_cuda_open's path). */
int aq_device_choose(int *ret_gpu, struct aq_device_choice device, const char *root,
                     const char *module, struct aq_err *reterr);
/* The same, opened; zero for the CPU. */
int aq_device_open_gpu(struct aq_cuda *ret, struct aq_device_choice device, struct aq_err *reterr);

#endif
