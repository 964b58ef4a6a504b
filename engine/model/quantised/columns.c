/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model/quantised/columns.h"

#include <assert.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* Rows of files are read through a buffer of this size, or of one row. */
enum { ONCE_BYTES = 256 << 10 };

/* Columns [first, first + count) of a tensor. */
struct slot {
    pthread_rwlock_t lock;
    const struct aq_tensor_info *tensor; /* NULL: nothing yet */
    uint64_t first, count;
    char *data;
    size_t bytes; /* of data */
};

struct aq_columns {
    const struct aq_checkpoint *checkpoint;
    struct slot slot[AQ_COLUMNS_SLOTS];
};

int aq_columns_open(struct aq_columns **ret, const struct aq_checkpoint *c, struct aq_err *reterr)
{
    struct aq_columns *s = calloc(1, sizeof(*s));
    if (!s)
        return aq_error_memory(reterr, "columns of tensors");
    s->checkpoint = c;
    for (int i = 0; i < AQ_COLUMNS_SLOTS; i++)
        pthread_rwlock_init(&s->slot[i].lock, NULL);
    *ret = s;
    return 0;
}

void aq_columns_forget(struct aq_columns *s)
{
    for (int i = 0; i < AQ_COLUMNS_SLOTS; i++) {
        struct slot *at = &s->slot[i];
        pthread_rwlock_wrlock(&at->lock);
        free(at->data);
        at->data = NULL;
        at->bytes = 0;
        at->tensor = NULL;
        pthread_rwlock_unlock(&at->lock);
    }
}

void aq_columns_close(struct aq_columns *s)
{
    if (!s)
        return;
    aq_columns_forget(s);
    for (int i = 0; i < AQ_COLUMNS_SLOTS; i++)
        pthread_rwlock_destroy(&s->slot[i].lock);
    free(s);
}

static bool covers(const struct slot *s, const struct aq_tensor_info *t, uint64_t first,
                   uint64_t count)
{
    return s->tensor == t && first >= s->first && first + count <= s->first + s->count;
}

static void copy_out(const struct slot *s, uint64_t first, uint64_t count, char *dst)
{
    size_t size = aq_dtype_bytes(s->tensor->dtype);
    for (uint64_t row = 0; row < s->tensor->shape[0]; row++)
        memcpy(dst + row * count * size, s->data + (row * s->count + first - s->first) * size,
               count * size);
}

/* Reads the file's rows one after the other, and keeps the slot's columns of them. */
static int read_rows(struct slot *s, const struct aq_checkpoint *c, const struct aq_tensor_info *t,
                     struct aq_err *reterr)
{
    size_t size = aq_dtype_bytes(t->dtype), row_bytes = aq_tensor_row_bytes(t);
    uint64_t once = aq_max_u64(1, ONCE_BYTES / row_bytes);
    char *rows = malloc(once * row_bytes);
    int rc = rows ? 0 : aq_error_memory(reterr, "tensor '%s'", t->name);
    for (uint64_t at = 0; rc == 0 && at < t->shape[0]; at += once) {
        uint64_t n = aq_min_u64(once, t->shape[0] - at);
        rc = aq_checkpoint_read(c, t, at, n, rows, reterr);
        for (uint64_t i = 0; rc == 0 && i < n; i++)
            memcpy(s->data + (at + i) * s->count * size, rows + i * row_bytes + s->first * size,
                   s->count * size);
    }
    free(rows);
    return rc;
}

/* From `first` on as many as there is room for. */
static int fill(struct slot *s, const struct aq_checkpoint *c, const struct aq_tensor_info *t,
                uint64_t first, uint64_t count, struct aq_err *reterr)
{
    size_t column = t->shape[0] * aq_dtype_bytes(t->dtype);
    uint64_t n = aq_min_u64(aq_max_u64(count, AQ_COLUMNS_SLOT_BYTES / column), t->shape[1] - first);
    s->tensor = NULL;
    if (s->bytes < n * column) {
        free(s->data);
        s->bytes = 0;
        s->data = malloc(n * column);
        if (!s->data)
            return aq_error_memory(reterr, "columns of tensor '%s'", t->name);
        s->bytes = n * column;
    }
    s->first = first;
    s->count = n;
    int rc = read_rows(s, c, t, reterr);
    if (rc == 0)
        s->tensor = t;
    return rc;
}

int aq_columns_read(struct aq_columns *s, uint32_t slot, const struct aq_tensor_info *t,
                    uint64_t first, uint64_t count, void *dst, struct aq_err *reterr)
{
    assert(slot < AQ_COLUMNS_SLOTS && t->rank == 2 && count && first + count <= t->shape[1]);
    struct slot *at = &s->slot[slot];
    int rc = 0;
    pthread_rwlock_rdlock(&at->lock);
    bool there = covers(at, t, first, count);
    if (there)
        copy_out(at, first, count, dst);
    pthread_rwlock_unlock(&at->lock);
    if (there)
        return 0;
    /* Filled and copied under one lock, so that threads at the two ends of a range do not take it
     * from each other for ever. */
    pthread_rwlock_wrlock(&at->lock);
    if (!covers(at, t, first, count))
        rc = fill(at, s->checkpoint, t, first, count, reterr);
    if (rc == 0)
        copy_out(at, first, count, dst);
    pthread_rwlock_unlock(&at->lock);
    return rc;
}
