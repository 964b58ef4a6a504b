/* SPDX-License-Identifier: Apache-2.0
 * engine/machine/rates.h - this machine as numbers for the simulator, measured in a fraction of a
 * second: rates of products and memory, and of the data files of a store.  The other rates are the
 * defaults of policy/hw.h, scaled by these; engine/machine/probe.h measures all rates, with the
 * same parts, in seconds. */
#ifndef AQ_ENGINE_MACHINE_RATES_H
#define AQ_ENGINE_MACHINE_RATES_H

#include "kernels/kernels.h"
#include "offload/disks.h"
#include "policy/hw.h"

struct aq_rates_opts {
    const struct aq_kernels *kernels;
    uint32_t cores, threads;
    enum aq_dtype compute, weight_format;
    uint64_t memory; /* may be taken for measuring; too little: the defaults are used */
};

/* Which rates were measured; the others are assumed. */
struct aq_rates_measured {
    bool products, memory, disk;
};

/* Fills *ret; takes at most about 0.2 s. */
int aq_rates_measure(struct aq_hardware *ret, struct aq_rates_measured *ret_measured,
                     const struct aq_rates_opts *opts, struct aq_err *reterr);

/* Memory that aq_rates_disk takes while it reads. */
#define AQ_RATES_DISK_MEMORY (17 * AQ_MIB)

/* Bytes per second of the store's data files, read as a run reads them, from all over the store;
 * data, io, io_direct and log of opts count. */
int aq_rates_disk(double *ret_bytes_per_s, const struct aq_disks_opts *opts, struct aq_err *reterr);

#endif
