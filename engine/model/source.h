/* SPDX-License-Identifier: Apache-2.0
 * engine/model/source.h - where a model's tensors come from: an open checkpoint or packed store, in
 * which each tensor of the steps is found and checked once, and rows are read.  Used by
 * engine/model/model.c. */
#ifndef AQ_ENGINE_MODEL_SOURCE_H
#define AQ_ENGINE_MODEL_SOURCE_H

#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/store.h"
#include "engine/model/model.h"
#include "engine/model/quantised/quantised.h"
#include "engine/model/relaid.h"

/* One of the two is open; model->source is NULL for random weights. */
struct aq_model_source {
    struct aq_checkpoint *checkpoint;
    struct aq_store *store;
    struct aq_columns *columns;      /* of a checkpoint with quantised matrices */
    struct aq_relaid relaid;         /* of those that were laid out */
    struct aq_source_tensor *tensor; /* of a checkpoint that was checked, by canonical name */
    size_t tensor_count;
};
void aq_source_close(struct aq_model_source *s); /* NULL is fine */

/* Makes config.tie_word_embeddings what the tensors say.  Before the steps are made. */
int aq_source_read_tie(struct aq_model *m, const struct aq_log *log, struct aq_err *reterr);
/* Is every tensor of the steps there, with its shape?  And no other, but for those that the
 * architecture ignores?  -ENOEXEC names the tensor. */
int aq_source_check(struct aq_model *m, const struct aq_log *log, struct aq_err *reterr);

/* Is a matrix of the steps, once they are checked, decoded as it is read? */
bool aq_source_is_quantised(const struct aq_model *m, const char *canonical);
/* How a checkpoint's matrices, or some of them, are kept; NULL: as they are. */
const char *aq_source_quantised_name(const struct aq_model *m);
/* Memory that decoding takes beside the rows themselves: 64 rows of a matrix in each thread. */
uint64_t aq_source_decoding_bytes(const struct aq_model *m, uint32_t threads);
/* What was kept for decoding is freed: no more is read for a while. */
void aq_source_settle(const struct aq_model *m);
/* Of a tensor of the steps, once they are checked; of the configuration for random weights, and for
 * quantised matrices. */
enum aq_dtype aq_source_dtype(const struct aq_model *m, const char *canonical);
/* From a checkpoint: rows of a matrix, or of a vector all k values; quantised ones are f32. */
int aq_source_read_rows(const struct aq_model *m, const char *canonical, uint32_t first,
                        uint32_t rows, uint32_t k, void *dst, enum aq_dtype *ret_dtype,
                        struct aq_err *reterr);

#endif
