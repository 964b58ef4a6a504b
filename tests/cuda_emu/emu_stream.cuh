/* SPDX-License-Identifier: Apache-2.0
 * tests/cuda_emu/emu_stream.cuh - how emulated launches and libraries put work on an emulated
 * stream. */
#ifndef AQ_TESTS_CUDA_EMU_EMU_STREAM_CUH
#define AQ_TESTS_CUDA_EMU_EMU_STREAM_CUH

#ifdef __cplusplus

#include <functional>

/* Puts work into a stream (a cudaStream_t); at once where it is NULL.  0 or a cudaError. */
int aq_emu_enqueue(void *stream, std::function<void()> work);
/* What is launched first is loaded then, into the device's memory, for good: known by an
 * address. */
void aq_emu_load(const void *kernel);
/* The same of a launch of a kernel, which is loaded first if need be; it is also told what
 * an earlier call of the thread left unread. */
int aq_emu_enqueue_kernel(void *stream, const void *kernel, std::function<void()> work);

#endif

#endif
