/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/error_band.h"

#include <assert.h>
#include <stddef.h>

const char aq_error_band_source[] = "bench/results/predicted-2026-11-22.md";

/* A band leaves out the worst tenth of the runs of its kind (none of fewer than ten), and contains
 * the prediction itself.  bench/predict.py prints these rows below its table.  The document does
 * not say which resource bound a run; that is taken from plans of the same runs on
 * configs/hardware/epyc-zen5-2vcpu.yaml. */
static const struct aq_error_band bands[] = {
    {"computing", 0.905, 1.055, 30, 27},
    {"a link", 0.931, 1, 5, 5},
    {"a disk", 0.923, 1, 4, 4},
};

const struct aq_error_band *aq_error_band(const struct aq_hardware *hw, enum aq_resource binding)
{
    assert((unsigned)binding < AQ_RESOURCE_COUNT);
    if (!hw->device_on_host)
        return NULL;
    switch (binding) {
    case AQ_RESOURCE_H2D:
    case AQ_RESOURCE_D2H:
    case AQ_RESOURCE_LINK: return &bands[1];
    case AQ_RESOURCE_DISK_READ:
    case AQ_RESOURCE_DISK_WRITE:
    case AQ_RESOURCE_DISK: return &bands[2];
    default: return &bands[0];
    }
}
