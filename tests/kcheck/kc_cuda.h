/* SPDX-License-Identifier: Apache-2.0
 * tests/kcheck/kc_cuda.h - what checks of the CUDA kernels are given: a device, emulated
 * (kc_cuda_emu.c) or a GPU (kc_cuda_gpu.c). */
#ifndef AQ_TESTS_KCHECK_KC_CUDA_H
#define AQ_TESTS_KCHECK_KC_CUDA_H

#include "engine/compute/cuda_module.h"
#include "tests/kcheck/kcheck.h"

/* Makes the options ready for the device (what is mapped, what is random by their seed); the name
 * of its table. */
struct kc_options;
const char *kc_cuda_prepare(struct kc_options *options);

/* The launchers; buffers of kcheck.h and what lies on the stack may be given to them. */
const struct aq_cuda_kernels *kc_cuda_kernels(void);
/* The device and its stream; no workspace. */
const struct aq_cuda_exec *kc_cuda(void);
/* Ends the case if a launcher failed, and waits for the device. */
void kc_cuda_done(int rc);
/* Memory of the device, full of NaNs; give it back. */
void *kc_cuda_take(size_t bytes);
void kc_cuda_give(void *p);

/* Calls reach() for what checks give to kernels beside buffers: the stack, and static variables. */
void kc_cuda_own(void (*reach)(void *base, size_t bytes));

/* The same call, with how far its arrays reach. */
const struct aq_attn *kc_cuda_reached(struct aq_attn *a);

/* A slot that every table of a device has: for cases of kernels that are in no table. */
#define KC_CUDA_SLOT KC_SLOT(norm)

#endif
