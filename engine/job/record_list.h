/* SPDX-License-Identifier: Apache-2.0
 * engine/job/record_list.h - which of many records a result line belongs to: of a job's rows, or of
 * a shard's list (roster.h).  Knows neither. */
#ifndef AQ_ENGINE_JOB_RECORD_LIST_H
#define AQ_ENGINE_JOB_RECORD_LIST_H

#include "base/err.h"
#include "engine/records/result.h"

#include <stddef.h>
#include <stdint.h>

/* Places of records by the hashes of their ids.  Zeroed it is empty, and without room. */
struct aq_id_table {
    uint32_t *slot; /* open addressing, at most half full: place + 1, 0 free */
    uint64_t slot_count;
};

/* Empty, with room for so many ids. */
int aq_id_table_make(struct aq_id_table *t, uint64_t capacity, struct aq_err *reterr);
void aq_id_table_put(struct aq_id_table *t, uint64_t id_hash, uint64_t place);
void aq_id_table_close(struct aq_id_table *t);

/* Records in the order of the input, each a struct of `stride` bytes with these members; pointers
 * are to those of the first.  Records without an id are in no table. */
struct aq_record_list {
    uint64_t count; /* 0: the rest is not looked at */
    size_t stride;
    const uint64_t *id_hash, *key;
    const uint32_t *index, *line;
    const struct aq_id_table *ids;
};

/* Where a record is; SIZE_MAX: nowhere. */
uint64_t aq_record_list_id(const struct aq_record_list *l, uint64_t id_hash);
uint64_t aq_record_list_index(const struct aq_record_list *l, uint64_t index);
/* The record that a result line belongs to: the one of its id, or else of its index or line, if it
 * is of that very request. */
uint64_t aq_record_list_find(const struct aq_record_list *l, const struct aq_result_mark *m);

#endif
