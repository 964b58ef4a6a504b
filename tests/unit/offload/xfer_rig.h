/* SPDX-License-Identifier: Apache-2.0
 * tests/unit/offload/xfer_rig.h - transfers over files in memory behind the fault-injecting engine:
 * set 0 is striped over three files, set 1 is one file. */
#ifndef AQ_TESTS_XFER_RIG_H
#define AQ_TESTS_XFER_RIG_H

#include "offload/io_fault.h"
#include "offload/xfer.h"
#include "tests/test.h"

enum {
    STRIPES = 3,
    FILES = STRIPES + 1,
    FILE_BYTES = 8 << 20,
    SET0_BYTES = STRIPES * FILE_BYTES,
    PLACES = 12, /* regions of the sets that transfers keep to, so that none overlap */
    PLACE_BYTES = 256 * 1024,
    POLLS_MAX = 20000,
};

extern unsigned char *buffers; /* [PLACES][PLACE_BYTES] */
extern const struct aq_fault_opts no_faults;

struct rig {
    struct aq_io *io;
    struct aq_xfer *x;
    struct aq_transfer t[PLACES];
};

/* Of a group of tests: the files' content and the buffers, made once. */
int make_data(void **state);
int free_data(void **state);

/* The byte of a set at a logical offset, where it really lies. */
unsigned char *byte_at(uint32_t set, uint64_t offset);
bool same(uint32_t set, uint64_t offset, const unsigned char *bytes, uint64_t count);

/* align: of the engine's requests; what small_requests() leaves at depth 4, 64 KiB and 1 ms. */
void rig_open(struct rig *r, const struct aq_fault_opts *faults, uint32_t align,
              struct aq_xfer_opts opts);
void rig_close(struct rig *r);
struct aq_xfer_opts small_requests(void);

/* Of place i of the buffers. */
struct aq_transfer *start(struct rig *r, int i, enum aq_io_op op, uint32_t set, uint64_t offset,
                          uint64_t bytes);
/* Polls until all have finished; returns how many polls that took. */
int run(struct rig *r);

#endif
