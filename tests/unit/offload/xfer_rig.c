/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/offload/xfer_rig.h"

#include "base/types.h"
#include "offload/stripe.h"

#include <stdlib.h>
#include <string.h>

static unsigned char *file_data[FILES];
unsigned char *buffers;

int make_data(void **state)
{
    (void)state;
    for (int f = 0; f < FILES; f++) {
        file_data[f] = malloc(FILE_BYTES);
        assert_non_null(file_data[f]);
        for (uint64_t at = 0; at < FILE_BYTES; at += 8) {
            uint64_t word = (at + (uint64_t)f * FILE_BYTES + 1) * 0x9e3779b97f4a7c15ull;
            memcpy(file_data[f] + at, &word, 8);
        }
    }
    return posix_memalign((void **)&buffers, 4096, (size_t)PLACES * PLACE_BYTES);
}

int free_data(void **state)
{
    (void)state;
    for (int f = 0; f < FILES; f++)
        free(file_data[f]);
    free(buffers);
    return 0;
}

unsigned char *byte_at(uint32_t set, uint64_t offset)
{
    struct aq_stripe_piece p = aq_stripe_locate(set == 0 ? STRIPES : 1, offset, 1);
    return file_data[set == 0 ? p.file : STRIPES] + p.offset;
}

bool same(uint32_t set, uint64_t offset, const unsigned char *bytes, uint64_t count)
{
    for (uint64_t at = 0; at < count;) {
        struct aq_stripe_piece p =
            aq_stripe_locate(set == 0 ? STRIPES : 1, offset + at, count - at);
        if (memcmp(byte_at(set, offset + at), bytes + at, p.bytes) != 0)
            return false;
        at += p.bytes;
    }
    return true;
}

void rig_open(struct rig *r, const struct aq_fault_opts *faults, uint32_t align,
              struct aq_xfer_opts opts)
{
    static const char *const names[FILES] = {"data.0", "data.1", "data.2", "scratch"};
    struct aq_io_mem_file files[FILES];
    struct aq_xfer_set sets[] = {{0, STRIPES, SET0_BYTES}, {STRIPES, 1, FILE_BYTES}};
    struct aq_io *mem;
    memset(r, 0, sizeof(*r));
    for (int f = 0; f < FILES; f++)
        files[f] = (struct aq_io_mem_file){file_data[f], FILE_BYTES, names[f]};
    struct aq_io_mem_opts mem_opts = {
        .files = files, .file_count = FILES, .depth = opts.depth, .align_bytes = align};
    assert_int_equal(aq_io_open_mem(&mem, &mem_opts, NULL), 0);
    assert_int_equal(aq_io_open_fault(&r->io, mem, faults, NULL), 0);
    opts.io = r->io;
    opts.sets = sets;
    opts.set_count = AQ_ARRAY_LEN(sets);
    assert_int_equal(aq_xfer_open(&r->x, &opts, NULL), 0);
}

void rig_close(struct rig *r)
{
    aq_xfer_close(r->x);
    aq_io_close(r->io);
}

const struct aq_fault_opts no_faults;

struct aq_xfer_opts small_requests(void)
{
    struct aq_xfer_opts o = aq_xfer_defaults();
    o.depth = 4;
    o.request_bytes = 64 * 1024;
    o.deadline_ns = 1000 * 1000;
    return o;
}

struct aq_transfer *start(struct rig *r, int i, enum aq_io_op op, uint32_t set, uint64_t offset,
                          uint64_t bytes)
{
    r->t[i] = (struct aq_transfer){.op = op,
                                   .set = set,
                                   .offset = offset,
                                   .bytes = bytes,
                                   .buffer = buffers + (size_t)i * PLACE_BYTES};
    aq_xfer_start(r->x, &r->t[i]);
    return &r->t[i];
}

int run(struct rig *r)
{
    int polls = 0;
    while (aq_xfer_running(r->x) > 0) {
        for (struct aq_transfer *t = aq_xfer_poll(r->x, AQ_IO_FOREVER); t; t = t->next)
            assert_false(t->running);
        assert_true(++polls < POLLS_MAX);
    }
    return polls;
}
