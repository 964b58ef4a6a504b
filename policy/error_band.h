/* SPDX-License-Identifier: Apache-2.0
 * policy/error_band.h - how far measured runs lay from what was predicted of them, by what bound
 * them: constant data of one document, and no opinion where nothing was measured. */
#ifndef AQ_POLICY_ERROR_BAND_H
#define AQ_POLICY_ERROR_BAND_H

#include "policy/hw.h"

struct aq_error_band {
    const char *bound;     /* "computing" */
    double low, high;      /* measured tokens a second, over those predicted */
    uint32_t runs, inside; /* compared; that lay from low to high */
};

/* Where the runs stand. */
extern const char aq_error_band_source[];

/* Of runs that the resource binds.  NULL: none was compared, as on an accelerator. */
const struct aq_error_band *aq_error_band(const struct aq_hardware *hw, enum aq_resource binding);

#endif
