/* SPDX-License-Identifier: Apache-2.0
 * engine/model/config.h - a model's shape and switches, from config.json or from a table of
 * published shapes.  Owns the reading and the range checks, so that whoever gets a struct
 * aq_model_config may multiply its fields without fear.  Knows no tensor, weight or token text. */
#ifndef AQ_ENGINE_MODEL_CONFIG_H
#define AQ_ENGINE_MODEL_CONFIG_H

#include "base/err.h"
#include "base/types.h"
#include "kernels/kernels.h"

enum aq_model_type { AQ_MODEL_OPT, AQ_MODEL_TYPE_COUNT };

/* Largest values that are accepted; every product of two of them fits 64 bits with room to spare.
 */
enum {
    AQ_CONFIG_VOCAB_MAX = 1 << 24,
    AQ_CONFIG_WIDTH_MAX = 1 << 20, /* hidden_size, ffn_dim, word_embed_proj_dim */
    AQ_CONFIG_LAYERS_MAX = 4096,
    AQ_CONFIG_HEAD_DIM_MAX = 4096,
    AQ_CONFIG_POSITIONS_MAX = 1 << 24,
    AQ_CONFIG_EOS_MAX = 8,
};

/* Names follow config.json; sizes are >= 1 and bounded as above. */
struct aq_model_config {
    enum aq_model_type model_type;
    uint32_t vocab_size, hidden_size, ffn_dim;
    uint32_t layers, heads, kv_heads, head_dim; /* heads * head_dim == hidden_size for OPT */
    uint32_t max_positions;
    uint32_t word_embed_proj_dim; /* width of the token table; hidden_size unless projected */
    bool do_layer_norm_before;
    bool remove_final_layer_norm;
    bool enable_bias;
    bool layer_norm_elementwise_affine;
    bool tie_word_embeddings;
    enum aq_activation activation;
    enum aq_dtype
        torch_dtype;        /* what the file claims; AQ_DTYPE_COUNT when it says nothing usable */
    int32_t bos_id, pad_id; /* -1: none.  pad_id may lie beyond the vocabulary */
    uint32_t eos_id[AQ_CONFIG_EOS_MAX]; /* distinct, each below vocab_size */
    uint32_t eos_count;                 /* 0: none */
};

/* Parses the text of a config.json; `what` names it in errors.  -ENOEXEC with file, key, what was
 * expected and what was found. */
int aq_model_config_parse(struct aq_model_config *ret, const char *text, size_t bytes,
                          const char *what, struct aq_err *reterr);
/* Reads one config.json. */
int aq_model_config_read_file(struct aq_model_config *ret, const char *path, struct aq_err *reterr);
/* Reads dir/config.json, and adds the end-of-sequence ids of dir/generation_config.json if there is
 * one. */
int aq_model_config_read(struct aq_model_config *ret, const char *dir, struct aq_err *reterr);

/* A published shape: "opt-125m" ... "opt-175b", any case.  -EINVAL lists the names. */
int aq_model_config_named(struct aq_model_config *ret, const char *name, struct aq_err *reterr);
/* The names, ordered by size, ended by NULL. */
const char *const *aq_model_config_names(void);

#endif
