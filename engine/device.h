/* SPDX-License-Identifier: Apache-2.0
 * engine/device.h - which compute backend runs, and what NVIDIA hardware this machine shows.  Reads
 * /proc, /sys and /dev below `root` (NULL: the real ones); loads no driver. */
#ifndef AQ_ENGINE_DEVICE_H
#define AQ_ENGINE_DEVICE_H

#include "base/err.h"

#include <stdbool.h>

/* Whether an NVIDIA GPU is visible: a device node, the driver's /proc entry, or on the PCI bus.
 * *ret_where (a static string) says where. */
bool aq_device_nvidia_visible(const char *root, const char **ret_where);

/* Why CUDA cannot be used in this build and on this machine; a static string. */
const char *aq_device_cuda_reason(void);

/* Checks --device: NULL or "auto", "cpu", "cuda[:N]".  -ENODEV when it cannot be had: for cuda, and
 * for auto when a GPU is visible that would stand idle without the user knowing. */
int aq_device_choose(const char *device, const char *root, struct aq_err *reterr);

#endif
