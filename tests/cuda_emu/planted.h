/* SPDX-License-Identifier: Apache-2.0
 * tests/cuda_emu/planted.h - small kernels, each right or with one fault, for whoever looks for
 * faults. */
#ifndef AQ_TESTS_CUDA_EMU_PLANTED_H
#define AQ_TESTS_CUDA_EMU_PLANTED_H

#include "kernels/cuda/launch.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { PLANTED_THREADS = 64, PLANTED_BLOCKS = 3 };

/* What the fault of each is. */
enum planted {
    PLANTED_BARRIER,    /* one is missing between a write and another thread's read */
    PLANTED_SAME,       /* the same, but every value comes out right in any order */
    PLANTED_SYNCWARP,   /* one is missing between the lanes of a warp */
    PLANTED_BLOCKS_ADD, /* blocks add to one number without an atomic operation */
    PLANTED_MIXED,      /* a number that is added to atomically is set by another block */
    PLANTED_COPY,       /* what cp.async brings is read by others before a barrier */
    PLANTED_PAST,       /* the last thread reads the number behind the array */
    PLANTED_BEFORE,     /* the first thread writes the number in front of the array */
    PLANTED_HOST,       /* the number comes from a variable of the host's */
    PLANTED_ODD,        /* eight bytes are read from where four are aligned */
    PLANTED_COUNT,
};

/* from, to: PLANTED_THREADS numbers, aligned to 16 bytes. */
int planted_run(const struct aq_cuda_exec *ex, enum planted which, bool fault, const float *from,
                float *to);

#ifdef __cplusplus
}
#endif

#endif
