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
/* What the driver takes of the device's memory for itself: a byte for so many of pinned memory (at
 * first 512: 8 for 4096), and these (16 KiB) for each kernel when it is launched first; kernels are
 * loaded anew from now on. */
void aq_emu_driver_takes(uint64_t table_page, uint64_t kernel_bytes);
/* In which order streams are served: 0 is one item of each in turn. */
void aq_emu_order(uint64_t seed);
/* Times of the device's own from now on, which start at 0 (bytes_per_ms 0: the wall's): a copy
 * between host and device takes so long on the one engine of its direction, a kernel kernel_ns.
 * What could start first is served first, and events tell these times.  The host takes no time: the
 * device's goes on only when nothing has been put into a stream for patience_us of the wall's. */
struct aq_emu_rates {
    uint64_t bytes_per_ms, kernel_ns;
    uint64_t
        slice_ns; /* so long an engine stays with a stream that has copies, though others wait */
    uint64_t small_bytes; /* copies that nothing should keep waiting */
    uint64_t patience_us;
};
void aq_emu_time(const struct aq_emu_rates *rates);
/* Since then: the time, what the engines have been busy for, and all kernels together, and the
 * longest that a small copy has waited for its engine. */
struct aq_emu_timed {
    uint64_t now_ns, to_device_ns, to_host_ns, kernels_ns, late_ns;
};
struct aq_emu_timed aq_emu_timed(void);
/* Whether the device starts nothing for now, so that what is put into streams is there at once. */
void aq_emu_hold(bool hold);
/* In front of so many of 1000 items of work, drawn, the device sleeps for a millisecond. */
void aq_emu_pauses(uint32_t permille);
/* The n-th item from now (0: the next one) fails, and with it everything behind it. */
void aq_emu_fail_after(uint64_t items);
/* Clears a failure; nothing is in any stream. */
void aq_emu_recover(void);
/* From now on captures fail: where they begin, or inside, where launches and products are refused
 * and the end succeeds with what got there.  Both leave an error for the thread's next launch, if
 * nobody reads it before. */
enum aq_emu_capture_failure { AQ_EMU_CAPTURES, AQ_EMU_FAILS_AT_BEGIN, AQ_EMU_FAILS_INSIDE };
void aq_emu_fail_capture(enum aq_emu_capture_failure how);
/* How cuBLASLt behaves from now on. */
enum aq_emu_manner {
    AQ_EMU_BLAS_RIGHT,
    AQ_EMU_BLAS_OFFERS_NOTHING, /* no algorithm, and no error */
    AQ_EMU_BLAS_REFUSES,        /* CUBLAS_STATUS_NOT_SUPPORTED when it is asked for one */
    AQ_EMU_BLAS_BROKEN_FIRST,   /* its first candidate has an error state; to use it is misuse */
    AQ_EMU_BLAS_BROKEN,         /* all candidates have */
    AQ_EMU_BLAS_GREEDY,         /* all want more workspace than they may */
    AQ_EMU_BLAS_PLAIN,          /* products with a bias or an activation are not offered */
    AQ_EMU_BLAS_LOSES_NAN,      /* its activations make 0 of a NaN */
    AQ_EMU_BLAS_COARSE,         /* its GELU is off by 0.0005 of what it is taken of */
    AQ_EMU_BLAS_FAILS,          /* products are refused with CUBLAS_STATUS_EXECUTION_FAILED */
    AQ_EMU_BLAS_SPLITS,         /* more than 16 rows are summed in two halves of k */
    AQ_EMU_BLAS_SPLITS_NARROW,  /* fewer than 65 columns are */
};
void aq_emu_blas(enum aq_emu_manner how);
/* Bytes that copies in streams have been asked to bring to the host, ever. */
uint64_t aq_emu_bytes_home(void);
/* Calls that put something into a stream, ever: launches and copies; events recorded and waited
 * for; launches of graphs, and how many graphs were made.  And streams that were made with the
 * first priority and with the last. */
struct aq_emu_counts {
    uint64_t works, events, graph_launches, graphs;
    uint64_t first_streams, last_streams;
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
