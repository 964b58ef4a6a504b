/* SPDX-License-Identifier: Apache-2.0
 * base/clock.h - monotonic and wall time. */
#ifndef AQ_BASE_CLOCK_H
#define AQ_BASE_CLOCK_H

#include <stdint.h>

uint64_t aq_clock_ns(void); /* monotonic */
double aq_clock_s(void);    /* monotonic, seconds */
/* CPU time of the calling thread, seconds: for bounds on work, which must not pass while the
 * process is stopped or waits for a CPU. */
double aq_clock_thread_s(void);
int64_t aq_clock_unix_s(void); /* wall clock, seconds since 1970 */

#endif
