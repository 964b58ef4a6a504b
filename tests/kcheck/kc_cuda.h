/* SPDX-License-Identifier: Apache-2.0
 * tests/kcheck/kc_cuda.h - what checks of the CUDA kernels alone are given. */
#ifndef AQ_TESTS_KCHECK_KC_CUDA_H
#define AQ_TESTS_KCHECK_KC_CUDA_H

#include "kernels/cuda/launch.h"
#include "tests/kcheck/kcheck.h"

/* The device, its stream and a workspace. */
const struct aq_cuda_exec *kc_cuda(void);
/* Ends the case if a launcher failed, and waits for the device. */
void kc_cuda_done(int rc);

struct aq_cuda_reach kc_cuda_reach(const struct aq_attn *a);

/* A slot that every table of a device has: for cases of kernels that are in no table. */
#define KC_CUDA_SLOT KC_SLOT(norm)

#endif
