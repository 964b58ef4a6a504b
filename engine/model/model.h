/* SPDX-License-Identifier: Apache-2.0
 * engine/model/model.h - a model in memory: its steps, and where each matrix, table and vector
 * lies. Open reads the shape and checks that every tensor is there with the right size; load takes
 * the memory and fills it from a checkpoint, a packed store, or a seeded generator.  Read-only
 * afterwards. */
#ifndef AQ_ENGINE_MODEL_MODEL_H
#define AQ_ENGINE_MODEL_MODEL_H

#include "base/log.h"
#include "base/mem.h"
#include "base/threads.h"
#include "engine/checkpoint/store.h"
#include "engine/model/config.h"
#include "kernels/kernels.h"
#include "offload/device.h"
#include "policy/stream.h"

struct aq_weight {
    const struct aq_matrix_desc *desc;
    enum aq_dtype dtype;
    enum aq_layout layout;
    void *data; /* the panels that stay where products run, from panel 0 on; rows for a table */
    uint32_t resident;                /* how many those are */
    void *host;                       /* the panels after them that stream from the host's memory */
    const struct aq_store_item *item; /* that the last panels stream from */
};

/* Where a panel lies that is kept in memory. */
static inline uint8_t *aq_weight_panel(const struct aq_weight *w, uint32_t panel)
{
    bool resident = panel < w->resident;
    uint8_t *first = resident ? w->data : w->host;
    return first + (panel - (resident ? 0 : w->resident)) * aq_panel_bytes(w->dtype, w->desc->k);
}

struct aq_model {
    struct aq_model_config config;
    struct aq_model_steps steps;
    char name[256];
    uint64_t hash;
    enum aq_dtype checkpoint_dtype; /* of the matrices as they are kept in the source */
    enum aq_dtype original_dtype;   /* the same, but of a store: of what it was packed from */
    /* Set before load: the values of the vocabulary's matrices are rounded to it, though they stay
     * in their format (formats.h).  AQ_F32, as at the start, leaves them alone. */
    enum aq_dtype vocabulary_values;
    char quantised[32]; /* how matrices were kept before they were decoded; "": not so */
    bool random;
    bool row_major; /* panels as a GPU takes them */
    bool verify;    /* what is read from a store is compared with its checksums */
    bool unfilled;  /* random weights that nobody multiplies with are not generated */
    uint64_t random_seed;
    struct aq_model_source *source; /* open checkpoint or store; NULL for random weights */

    /* Filled by load, [aq_matrix_index()] and [aq_vector_index()]. */
    struct aq_weight *weight;
    float **vector;
    struct aq_device *device;
    void *weights_buffer
        [AQ_TIER_COUNT]; /* where products run, and on the host of a separate device */
    uint64_t weights_bytes[AQ_TIER_COUNT];
    float *vectors_buffer;
    uint64_t vectors_bytes;
};

struct aq_model_opts {
    const char *dir;   /* checkpoint directory, packed store or org/name; or */
    const char *shape; /* a published shape's name or a config.json */
    uint64_t random_seed;
    /* Of a packed store: its copied files now, and whatever is read from it later, are compared
     * with their checksums. */
    bool verify;
    const struct aq_log *log; /* for what is done otherwise than the configuration says; NULL */
};

/* config.tie_word_embeddings is what the tensors say: a checkpoint or store with a head of its own,
 * of other values than the token table, is not tied. */
int aq_model_open(struct aq_model **ret, const struct aq_model_opts *opts, struct aq_err *reterr);
void aq_model_close(struct aq_model *m);

/* The dtype the source keeps the position table in (it is never rounded). */
enum aq_dtype aq_model_table_dtype(const struct aq_model *m);
/* The format a packed store holds its matrices in; -1 when the source is not a store. */
int aq_model_store_format(const struct aq_model *m);

/* The packed store that the model was opened from; NULL when it was not.  Borrowed. */
struct aq_store *aq_model_store(const struct aq_model *m);

/* The layout of matrices (not tables) of this dtype. */
enum aq_layout aq_model_layout(const struct aq_model *m, enum aq_dtype dtype);

/* Takes "weights" and "vectors" from the device and fills them, in parallel on pool: of the layers
 * the panels that `stream` says are resident or stream from the host.  head: where the other
 * matrices live.
 *   staging: aq_pool_threads(pool) * staging_bytes, at least 64 rows of the widest matrix in f32
 * each */
int aq_model_load(struct aq_model *m, struct aq_device *device, const struct aq_stream *stream,
                  enum aq_tier head, enum aq_dtype format, const struct aq_kernels *kernels,
                  struct aq_pool *pool, void *staging, size_t staging_bytes, struct aq_err *reterr);
/* After load: says which items of `store` (laid out in the loaded format) hold the other panels. */
void aq_model_stream_from(struct aq_model *m, const struct aq_store *store);

/* Is a panel of rows [first, first + rows) of a matrix, packed in `format` from a source dtype,
 * free of infinities and NaN that f16 (also that of scales and minima) had no room for?  -EINVAL
 * names tensor and rows. */
int aq_model_check_panel(const void *panel, enum aq_dtype format, enum aq_dtype source,
                         const char *canonical, uint32_t first, uint32_t rows, uint32_t k,
                         struct aq_err *reterr);

/* Weights of `format` are rounded from this: a dtype, or a form of quantised checkpoints.  NULL: it
 * holds them all. */
const char *aq_model_rounded_from(const struct aq_model *m, enum aq_dtype format);
/* Memory that load and pack take in these threads to decode what is quantised. */
uint64_t aq_model_decoding_bytes(const struct aq_model *m, uint32_t threads);
/* Of a matrix that was decoded as it was read, to f32 `values`: how far the panel is from them. */
void aq_model_measure_panel(const struct aq_model *m, const char *canonical, const void *panel,
                            enum aq_dtype format, enum aq_layout layout, const float *values,
                            uint32_t rows, uint32_t k);
/* After load or pack: one line with what was measured since it was last said, nothing where nothing
 * was; and decoding's memory is given back. */
void aq_model_say_relaid(const struct aq_model *m, enum aq_dtype format, const struct aq_log *log);

/* Reads rows [first, first + rows) of a matrix, or a vector part (as one row of `count`), in the
 * source's dtype, or in f32 where it has codes: how pack and load see a checkpoint or random
 * weights.  A store's checksums are of 64 rows from a multiple of 64 on: others are read without.
 * Thread-safe. */
int aq_model_read_rows(const struct aq_model *m, const char *canonical, uint32_t first,
                       uint32_t rows, uint32_t k, void *dst, enum aq_dtype *ret_dtype,
                       struct aq_err *reterr);
/* The same where the source is a store, which has panels: panel `panel` of a matrix in this layout,
 * made anew where the store has another one.  staging: room for 64 rows in f32. */
int aq_model_read_panel(const struct aq_model *m, const char *canonical, uint32_t panel,
                        enum aq_layout layout, void *dst, void *staging, struct aq_err *reterr);

#endif
