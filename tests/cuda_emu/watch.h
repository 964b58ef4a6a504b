/* SPDX-License-Identifier: Apache-2.0
 * tests/cuda_emu/watch.h - emulated kernels whose accesses to memory are looked at one by one.
 *
 * The kernels are compiled with -fsanitize=thread, but instead of the sanitizer's library, which
 * knows nothing of blocks and barriers, watch.cc is told of each access.  It finds
 *   races       of two accesses to a byte, one of which writes, neither comes first: they are of
 *               two blocks of a launch, or of two threads of a block with no barrier between them,
 *               nor, within a warp, a __syncwarp().  Shuffles and votes order nothing, as on a
 *               device, and atomic operations race with everything but each other.
 *   reach       what is touched is shared memory, the thread's own stack, the launch's arguments,
 *               or lies in an array that was made known: anything else is told.
 *   alignment   of each access to its size.
 * The order in which the emulation runs threads does not matter: a race is found where it changes
 * no value, too.  Of each word the last few accesses are remembered; with more than four readers
 * some are forgotten, so that a race may be missed, but none is invented.
 *
 * Compiled without AQ_EMU_WATCHED the emulation has none of it. */
#ifndef AQ_TESTS_CUDA_EMU_WATCH_H
#define AQ_TESTS_CUDA_EMU_WATCH_H

#include <stddef.h>
#include <stdint.h>

#if defined(AQ_EMU_WATCHED)
#define AQ_WATCH(call) call
#else
#define AQ_WATCH(call) ((void)0)
#endif

#ifdef __cplusplus
extern "C" {
#endif

enum aq_watch_finding {
    AQ_WATCH_RACE,
    AQ_WATCH_REACH,
    AQ_WATCH_ALIGNMENT,
    AQ_WATCH_FINDINGS,
};
/* Who is told of a finding, once for each pair of places in the code; NULL: it is printed, and ends
 * the program. */
void aq_watch_listen(void (*tell)(enum aq_watch_finding what, const char *text));

/* Kernels may touch [base, base + bytes) from now on, until it is forgotten by its base. */
void aq_watch_array(const void *base, size_t bytes);
void aq_watch_forget(const void *base);
/* The n-th barrier of each block, from 1, orders nothing: a planted fault.  0: none. */
void aq_watch_skip_barrier(uint32_t n);
/* Accesses looked at since the program began. */
uint64_t aq_watch_accesses(void);

#ifdef __cplusplus
}

/* ---- for the emulation ---- */

enum aq_watch_kind { AQ_WATCH_READ = 1, AQ_WATCH_WRITE, AQ_WATCH_ATOMIC };

/* Of one launch, on the thread that calls these. */
struct aq_watch_launch {
    const void *arg; /* what a thread finds its arguments in */
    size_t arg_bytes;
    const char *stacks; /* of all threads */
    size_t stack_bytes; /* of each */
    const void *own;    /* the emulation's state, which warp operations read */
    size_t own_bytes;
};
void aq_watch_begin(const struct aq_watch_launch *l);
void aq_watch_end(void);
void aq_watch_block(uint64_t block, const char *shared, size_t shared_bytes);
/* The thread that runs from now on. */
void aq_watch_thread(unsigned thread);
/* The thread has passed a barrier; one of its warp. */
void aq_watch_barrier(unsigned thread);
void aq_watch_warp(unsigned thread);
/* By the thread that runs. */
void aq_watch_access(const void *p, size_t bytes, enum aq_watch_kind kind, const void *pc);

#endif

#endif
