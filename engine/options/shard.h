/* SPDX-License-Identifier: Apache-2.0
 * engine/options/shard.h - --shard as text and as numbers: which share of the records a run has,
 * where several share an input. */
#ifndef AQ_ENGINE_OPTIONS_SHARD_H
#define AQ_ENGINE_OPTIONS_SHARD_H

#include "base/err.h"

#include <stdint.h>

struct aq_shard {
    uint32_t index, count; /* index from 0; count 0: not sharded, all records */
};
enum { AQ_SHARDS_MAX = 1000000, AQ_SHARD_TEXT_MAX = 24 };

/* "K/N", or "slurm", of which *ret has count 0.  -EINVAL. */
int aq_shard_parse(struct aq_shard *ret, const char *label, const char *text,
                   struct aq_err *reterr);
/* The same, where "slurm" stands for the variables of a job array: SLURM_ARRAY_TASK_ID and those
 * that say which ids there are.  text NULL: not sharded. */
int aq_shard_find(struct aq_shard *ret, const char *text, struct aq_err *reterr);
/* "K/N". */
const char *aq_shard_text(char text[AQ_SHARD_TEXT_MAX], struct aq_shard s);
/* The shard, of `count`, of a record with these hashes of its id and its request.  Never changes:
 * shards of several versions must fit together. */
uint32_t aq_shard_of(uint64_t id_hash, uint64_t key, uint32_t count);

#endif
