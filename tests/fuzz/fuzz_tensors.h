/* SPDX-License-Identifier: Apache-2.0
 * tests/fuzz/fuzz_tensors.h - checks what a reader says of a file against the file. */
#ifndef AQ_TESTS_FUZZ_TENSORS_H
#define AQ_TESTS_FUZZ_TENSORS_H

#include "engine/checkpoint/tensor_file.h"
#include "tests/fuzz/fuzz.h"

#include <assert.h>

typedef int fuzz_lister(struct aq_tensor_list *list, const struct aq_tensor_file *file,
                        uint32_t file_index, uint64_t *ret_header_hash, struct aq_err *reterr);

/* The first and the last row of a tensor must be readable whenever they fit memory. */
static inline void fuzz_read_rows(const struct aq_tensor_file *f, const struct aq_tensor_info *t)
{
    uint64_t rows = aq_tensor_rows(t), row_bytes = aq_tensor_row_bytes(t);
    assert(t->rank <= AQ_TENSOR_RANK_MAX && t->name[0]);
    assert(t->element->bits % 8 != 0 || row_bytes * rows == t->bytes);
    if (rows == 0 || row_bytes > AQ_MIB)
        return;
    struct aq_err err = {0};
    uint8_t *row = malloc(row_bytes ? row_bytes : 1);
    assert(row);
    for (int last = 0; last < 2; last++) {
        int rc = aq_tensor_read(f, t, last ? rows - 1 : 0, 1, row, &err);
        assert(rc == 0 || (rc == -ENOEXEC && t->dtype == AQ_DTYPE_COUNT));
    }
    free(row);
}

static inline void fuzz_tensors(const uint8_t *data, size_t size, fuzz_lister *lister)
{
    struct aq_tensor_file f = {.fd = fuzz_file(data, size), .bytes = size, .name = "fuzz"};
    struct aq_tensor_list list = {0};
    struct aq_err err = {0};
    uint64_t hash;
    int rc = lister(&list, &f, 0, &hash, &err);
    fuzz_check_error(rc, &err);
    assert(rc == 0 || list.count == 0);
    for (size_t i = 0; i < list.count && i < 256; i++)
        fuzz_read_rows(&f, &list.tensor[i]);
    aq_tensor_list_clear(&list);
    close(f.fd);
}

#endif
