/* SPDX-License-Identifier: Apache-2.0
 * engine/exec/trace.h - begin and end of each op in the first and the last passes, and a file that
 * shows them beside the simulator's times for the same passes.  Owns its memory, all taken at open;
 * the executor records.  Knows the program, not the meaning of its ops. */
#ifndef AQ_ENGINE_EXEC_TRACE_H
#define AQ_ENGINE_EXEC_TRACE_H

#include "base/mem.h"
#include "policy/hw.h"

/* Passes kept at each end of a run. */
enum { AQ_TRACE_PASSES = 3 };

struct aq_trace;

/* Bytes of host memory that open takes for a program of op_count ops: the ledger's line "trace". */
uint64_t aq_trace_bytes(uint32_t op_count);

/* mem and program outlive the trace. */
int aq_trace_open(struct aq_trace **ret, struct aq_mem *mem, const struct aq_program *program,
                  struct aq_err *reterr);
void aq_trace_close(struct aq_trace *t);

/* Recording, from one thread: allocates nothing, never waits, and does nothing if t is NULL.
 * Passes count from 0; times are aq_clock_ns().  Ops of a pass may be recorded before the pass has
 * begun (weights run ahead). */
void aq_trace_begin(struct aq_trace *t, uint64_t pass, uint64_t now_ns,
                    const struct aq_op_cost *cost, uint32_t prefill_rows, uint32_t decode_rows);
void aq_trace_end(struct aq_trace *t, uint64_t pass, uint64_t now_ns);
void aq_trace_op(struct aq_trace *t, uint32_t op, uint64_t pass, uint64_t start_ns,
                 uint64_t end_ns);

struct aq_trace_write_opts {
    const char *path;
    const struct aq_hardware *hw; /* NULL: nothing is predicted */
    enum aq_dtype compute;
    bool serial;
};

/* Writes the file in the Trace Event Format of Chrome and Perfetto: complete events in
 * microseconds, processes "predicted" and "actual", each with a thread for the passes, one for
 * every lane, and one more for each further op that a disk has in flight.  Called after the last
 * pass; allocates. */
int aq_trace_write(const struct aq_trace *t, const struct aq_trace_write_opts *opts,
                   struct aq_err *reterr);

#endif
