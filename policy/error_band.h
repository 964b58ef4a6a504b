/* SPDX-License-Identifier: Apache-2.0
 * policy/error_band.h - how far measured rates lay from predicted ones, for each resource that
 * bound the runs: constant data of one document, and no figure where nothing was measured. */
#ifndef AQ_POLICY_ERROR_BAND_H
#define AQ_POLICY_ERROR_BAND_H

#include "policy/hw.h"

struct aq_error_band {
    const char *bound;     /* "computing" */
    double low, high;      /* measured over predicted tokens a second */
    uint32_t runs, inside; /* runs compared; those from low to high */
};

/* The document that lists the runs. */
extern const char aq_error_band_source[];

/* The band of runs that the resource binds.  NULL: no such run was compared, as on an
 * accelerator. */
const struct aq_error_band *aq_error_band(const struct aq_hardware *hw, enum aq_resource binding);

#endif
