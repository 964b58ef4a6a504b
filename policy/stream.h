/* SPDX-License-Identifier: Apache-2.0
 * policy/stream.h - the tier of every panel of every matrix, and the chunks in which panels stream
 * through the device's memory: real fractions, rounded to panels per step.
 *
 * A matrix has its first panels resident on the device; the next ones stream from host memory
 * (except those that the host computes with), and the last ones from disk.  A chunk is a run of one
 * step's streamed panels from one tier; chunks follow the order of the steps, so that the whole
 * pass is one stream.  The number of chunks is a multiple of the ring's slots: chunk c lies in slot
 * c % ring in every pass. */
#ifndef AQ_POLICY_STREAM_H
#define AQ_POLICY_STREAM_H

#include "policy/plan.h"

/* Panels [first, first + count) of a matrix. */
struct aq_piece {
    uint32_t matrix, first, count;
    uint64_t offset, bytes; /* in the chunk; multiples of AQ_PANEL_ALIGN */
};

struct aq_chunk {
    uint32_t step;
    enum aq_tier tier; /* AQ_HOST or AQ_DISK: the tier that the chunk streams from */
    uint32_t piece_first, piece_count;
    uint64_t bytes;
    uint32_t slot;    /* of the ring */
    uint32_t staging; /* slot of the host staging ring; disk chunks of a separate device */
};

/* Panels of a matrix by tier, in this order. */
struct aq_split {
    uint32_t panels[AQ_TIER_COUNT];
    uint32_t on_host; /* the last panels of AQ_HOST, which the host computes with; not streamed */
};

struct aq_stream {
    struct aq_split *split; /* [aq_matrix_index()] */
    struct aq_chunk *chunk;
    uint32_t chunk_count;
    struct aq_piece *piece;
    uint32_t piece_count;
    uint32_t chunk_room, piece_room; /* of the arrays */
    uint32_t *step_chunk; /* [steps + 1]: chunks of step j are [step_chunk[j], step_chunk[j + 1]) */
    uint32_t ring, staging;        /* slots */
    uint64_t chunk_bytes;          /* bytes of a slot: the largest chunk */
    uint64_t bytes[AQ_TIER_COUNT]; /* device: resident; host, disk: streamed per pass */
    uint64_t step_bytes_max;       /* streamed bytes of the largest step */
};

enum { AQ_STREAM_CHUNKS_MAX = 1024 * 1024 };

/* *ret: zeros, or an earlier stream, which this one replaces, its arrays serving again.  On failure
 * it is closed.  -EINVAL: a panel is larger than a chunk, or chunks are too many.  The program's
 * builder checks whether the ring is large enough for the ops. */
int aq_stream_build(struct aq_stream *ret, const struct aq_model_steps *steps,
                    const struct aq_plan *plan, struct aq_err *reterr);
void aq_stream_close(struct aq_stream *s);
/* No stream any more, but arrays for the next one. */
void aq_stream_clear(struct aq_stream *s);

/* The rows [*ret_first, + *ret_rows) of a matrix whose columns of the product the host computes;
 * false: none. */
bool aq_stream_host_rows(const struct aq_stream *s, const struct aq_model_steps *steps,
                         uint32_t step, uint32_t matrix, uint32_t *ret_first, uint32_t *ret_rows);

/* Bytes of a matrix in each tier; of the embedding and the head all are in `head`.  The ledger and
 * the model's own buffers both add these up. */
void aq_stream_matrix_bytes(uint64_t ret[AQ_TIER_COUNT], const struct aq_stream *s,
                            const struct aq_model_steps *steps, uint32_t step, uint32_t matrix,
                            enum aq_dtype dtype, enum aq_tier head);

#endif
