/* SPDX-License-Identifier: Apache-2.0
 * tests/cuda_emu/control.h - what a test says to the emulated GPU, and asks of it.
 *
 * One thread of the process carries out what is in the streams, now of one, now of another, in an
 * order that is drawn; events alone order them.  Device memory can be touched while that thread is
 * at work only: the host's reads and writes of it end the program (always, when the host waits for
 * every op).  A copy fills its destination with NaNs when it starts, and other streams may run
 * before it ends.  AQ_EMU_SM in the environment is its compute capability, otherwise 90. */
#ifndef AQ_TESTS_CUDA_EMU_CONTROL_H
#define AQ_TESTS_CUDA_EMU_CONTROL_H

#include "tests/cuda_emu/include/cuda_runtime_api.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What asking for devices comes to from now on: so many, or an error (then there are none). */
void aq_emu_gpus(int count, cudaError_t error);
/* The driver's version as cudaDriverGetVersion says it; 0: none. */
void aq_emu_driver(int version);
/* Whether kernels may be given the host's addresses of pinned memory; they may at first. */
void aq_emu_host_addresses(bool known);
/* Memory of the device; what is taken stays taken. */
void aq_emu_device_memory(uint64_t total_bytes);
/* In which order streams are served: 0 is one item of each in turn. */
void aq_emu_order(uint64_t seed);
/* The n-th item from now (0: the next one) fails, and with it everything behind it. */
void aq_emu_fail_after(uint64_t items);
/* Clears a failure; nothing is in any stream. */
void aq_emu_recover(void);
/* From now on captures fail: where they begin, or inside, where launches and products are refused
 * and the end succeeds with what got there.  Both leave an error for the thread's next launch, if
 * nobody reads it before. */
enum aq_emu_capture_failure { AQ_EMU_CAPTURES, AQ_EMU_FAILS_AT_BEGIN, AQ_EMU_FAILS_INSIDE };
void aq_emu_fail_capture(enum aq_emu_capture_failure how);
/* Bytes that copies in streams have been asked to bring to the host, ever. */
uint64_t aq_emu_bytes_home(void);
/* Calls that put something into a stream, ever: launches and copies; events recorded and waited
 * for; launches of graphs, and how many graphs were made. */
struct aq_emu_counts {
    uint64_t works, events, graph_launches, graphs;
};
struct aq_emu_counts aq_emu_counted(void);
/* Streams, events, allocations, graphs and pinned ranges that are alive. */
uint32_t aq_emu_alive(void);
/* Puts fn(arg) into a stream, as a kernel would be. */
int aq_emu_call(void *stream, void (*fn)(void *arg), void *arg);
/* Is all of [p, p + bytes) memory of the device? */
bool aq_emu_is_device(const void *p, uint64_t bytes);

#ifdef __cplusplus
}
#endif

#endif
