/* SPDX-License-Identifier: Apache-2.0
 * engine/machine/probe.h - this machine, measured in seconds, as a hardware profile. */
#ifndef AQ_ENGINE_MACHINE_PROBE_H
#define AQ_ENGINE_MACHINE_PROBE_H

#include "engine/compute/cuda.h"
#include "engine/machine/hw_file.h"
#include "kernels/kernels.h"
#include "offload/disk.h"

/* Raised whenever what is measured changes: a profile kept with another number is measured anew. */
enum { AQ_PROBE_RATES = 5 };

struct aq_probe_opts {
    const struct aq_cuda *cuda; /* the GPU that is measured too; NULL: none */
    const char *disk_dir;       /* its disk is measured; NULL: none */
    uint32_t threads;           /* 0: as many as this process may use */
    struct aq_isa_choice isa;
    enum aq_io_kind io;
    enum aq_direct io_direct;
    uint64_t memory; /* bytes that may be taken; 0: no limit */
    bool quick;      /* less of everything, in some seconds */
    const struct aq_log *log;
    bool (*stop)(void *user); /* called between measurements; may be NULL */
    void *stop_user;
};

/* -ENOMEM: too little memory or disk to measure in; -EINTR: stopped. */
int aq_probe(struct aq_hw_profile *ret, const struct aq_probe_opts *opts, struct aq_err *reterr);

#endif
