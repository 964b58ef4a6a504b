/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/options/shard.h"

#include <assert.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* Decimal digits and nothing else, below 2^32; returns what follows them, NULL: there are none. */
static const char *read_number(uint64_t *ret, const char *text)
{
    size_t digits = strspn(text, "0123456789");
    if (!digits || digits > 10)
        return NULL;
    *ret = strtoull(text, NULL, 10);
    return *ret <= UINT32_MAX ? text + digits : NULL;
}

int aq_shard_parse(struct aq_shard *ret, const char *label, const char *text, struct aq_err *reterr)
{
    uint64_t index, count;
    if (strcmp(text, "slurm") == 0) {
        *ret = (struct aq_shard){0};
        return 0;
    }
    const char *slash = read_number(&index, text);
    const char *end = slash && *slash == '/' ? read_number(&count, slash + 1) : NULL;
    if (!end || *end)
        return aq_error(reterr, -EINVAL,
                        "%s: expected K/N, such as 0/8 for the first of eight, or slurm, found "
                        "'%s'",
                        label, text);
    if (count < 1 || count > AQ_SHARDS_MAX || index >= count)
        return aq_error(reterr, -EINVAL,
                        "%s: expected K/N with N from 1 to %d and K from 0 to N - 1, found '%s'",
                        label, AQ_SHARDS_MAX, text);
    *ret = (struct aq_shard){(uint32_t)index, (uint32_t)count};
    return 0;
}

static int read_variable(uint64_t *ret, const char *name, const char *if_unset,
                         struct aq_err *reterr)
{
    const char *text = getenv(name);
    if (!text && !if_unset)
        return aq_error(reterr, -EINVAL,
                        "--shard slurm: %s is not set: expected a task of a job array (sbatch "
                        "--array=0-7); elsewhere --shard K/N says which share this run has",
                        name);
    const char *end = read_number(ret, text ? text : if_unset);
    if (!end || *end)
        return aq_error(reterr, -EINVAL, "--shard slurm: %s: expected a number, found '%s'", name,
                        text);
    return 0;
}

/* The rank of a task among the ids of its array.  The variables tell a range and a step; ids in a
 * list (--array=1,4,5) have no rank that a task could know of. */
static int find_slurm(struct aq_shard *ret, struct aq_err *reterr)
{
    uint64_t id, count, first, last, step;
    int rc = read_variable(&id, "SLURM_ARRAY_TASK_ID", NULL, reterr);
    if (rc == 0)
        rc = read_variable(&count, "SLURM_ARRAY_TASK_COUNT", NULL, reterr);
    if (rc == 0)
        rc = read_variable(&first, "SLURM_ARRAY_TASK_MIN", NULL, reterr);
    if (rc == 0)
        rc = read_variable(&last, "SLURM_ARRAY_TASK_MAX", NULL, reterr);
    if (rc == 0)
        rc = read_variable(&step, "SLURM_ARRAY_TASK_STEP", "1", reterr);
    if (rc < 0)
        return rc;
    bool regular = step > 0 && first <= id && id <= last && (last - first) % step == 0 &&
                   (last - first) / step + 1 == count && (id - first) % step == 0;
    if (!regular || count > AQ_SHARDS_MAX)
        return aq_error(reterr, -EINVAL,
                        "--shard slurm: expected an array of at most %d ids in equal steps, such "
                        "as --array=0-7, found %" PRIu64 " ids from %" PRIu64 " to %" PRIu64
                        ".  To run some shards of eight again: --shard $SLURM_ARRAY_TASK_ID/8",
                        AQ_SHARDS_MAX, count, first, last);
    *ret = (struct aq_shard){(uint32_t)((id - first) / step), (uint32_t)count};
    return 0;
}

int aq_shard_find(struct aq_shard *ret, const char *text, struct aq_err *reterr)
{
    if (text && strcmp(text, "slurm") == 0)
        return find_slurm(ret, reterr);
    *ret = (struct aq_shard){0};
    return text ? aq_shard_parse(ret, "--shard", text, reterr) : 0;
}

const char *aq_shard_text(char text[AQ_SHARD_TEXT_MAX], struct aq_shard s)
{
    snprintf(text, AQ_SHARD_TEXT_MAX, "%" PRIu32 "/%" PRIu32, s.index, s.count);
    return text;
}

uint32_t aq_shard_of(uint64_t id_hash, uint64_t key, uint32_t count)
{
    assert(count > 0);
    uint8_t bytes[16]; /* little-endian on every machine */
    for (int i = 0; i < 8; i++) {
        bytes[i] = (uint8_t)(id_hash >> (8 * i));
        bytes[8 + i] = (uint8_t)(key >> (8 * i));
    }
    return (uint32_t)(XXH3_64bits(bytes, sizeof(bytes)) % count);
}
