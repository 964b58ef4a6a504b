/* SPDX-License-Identifier: Apache-2.0
 * engine/executor.h - runs the program: one loop over the ops of a pass, on the kernels, over the
 * weights, pages and rows of this block.  Owns seats, rows and workspace; borrows model, kernels
 * and memory account. Everything that depends on data happens in TURN (ends, admission, refill) or
 * in HEAD (the choice of a token); the program never changes.  Nothing is allocated between open
 * and close. */
#ifndef AQ_ENGINE_EXECUTOR_H
#define AQ_ENGINE_EXECUTOR_H

#include "base/mem.h"
#include "engine/engine.h"
#include "engine/model.h"
#include "kernels/kernels.h"
#include "policy/program.h"

struct aq_executor;

struct aq_executor_opts {
    struct aq_mem *mem;
    const struct aq_model *model;
    const struct aq_kernels *kernels;
    struct aq_exec *exec;
    struct aq_block_shape shape;
    uint32_t keys_max; /* most keys a sequence may come to hold */
    bool refill;
    /* Called with true before the first op of a pass and with false after the last: tests trap
     * allocation in between.  NULL: nobody watches. */
    void (*observe)(void *user, bool running);
    void *observe_user;
};

int aq_executor_open(struct aq_executor **ret, const struct aq_executor_opts *opts,
                     struct aq_err *reterr);
void aq_executor_close(struct aq_executor *x);

void aq_executor_submit(struct aq_executor *x, struct aq_sequence *s);
/* One pass; *ret_worked false when nobody is seated or waiting. */
int aq_executor_pass(struct aq_executor *x, bool *ret_worked, struct aq_err *reterr);
struct aq_sequence *aq_executor_finished(struct aq_executor *x);
struct aq_engine_stats aq_executor_stats(const struct aq_executor *x);
const struct aq_program *aq_executor_program(const struct aq_executor *x);

/* Bytes of the bookkeeping per row and seat that open takes as "rows and seats": at most what
 * aq_block_rows_bytes() puts on the ledger. */
uint64_t aq_executor_rows_bytes(const struct aq_block_shape *shape);

#endif
