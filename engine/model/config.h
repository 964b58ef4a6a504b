/* SPDX-License-Identifier: Apache-2.0
 * engine/model/config.h - a model's shape and switches, from config.json.  Owns the reading and the
 * range checks, so that whoever gets a struct aq_model_config may multiply its fields without fear.
 * Fields are of models in general: what an architecture calls them in its config.json, its row
 * knows (engine/model/arch/arch.h).  Knows no tensor, weight or token text. */
#ifndef AQ_ENGINE_MODEL_CONFIG_H
#define AQ_ENGINE_MODEL_CONFIG_H

#include "base/err.h"
#include "base/kinds.h"
#include "base/types.h"
#include "engine/model/quantised/scheme.h"
#include "policy/steps.h"

#include <jansson.h>

struct aq_arch;

/* Largest values that are accepted; every product of two of them fits 64 bits with room to spare.
 */
enum {
    AQ_CONFIG_VOCAB_MAX = 1 << 24,
    AQ_CONFIG_WIDTH_MAX = 1 << 20, /* hidden, inner and embedding width; heads */
    AQ_CONFIG_LAYERS_MAX = AQ_LAYERS_MAX,
    AQ_CONFIG_HEAD_DIM_MAX = 4096,
    AQ_CONFIG_POSITIONS_MAX = 1 << 24,
    AQ_CONFIG_EOS_MAX = 8,
    AQ_CONFIG_TURNS_MAX = 512, /* pairs of a head that have factors of their own */
};

/* How the rotary positions of a model reach beyond those it was first trained on
 * (engine/model/rotary.h has the formulas). */
enum aq_rotary_kind {
    AQ_ROTARY_NONE, /* its positions are not rotary */
    AQ_ROTARY_PLAIN,
    AQ_ROTARY_LINEAR,
    AQ_ROTARY_DYNAMIC,
    AQ_ROTARY_BANDS,
    AQ_ROTARY_YARN,
    AQ_ROTARY_LONG,
};

struct aq_rotary_config {
    enum aq_rotary_kind kind;
    uint32_t dims;     /* of each head that turn: even, 2 to head_dim */
    uint32_t original; /* positions of the first training; BANDS, YARN and LONG */
    double theta;
    double factor;    /* 0: max_positions / original */
    double attention; /* of cosine and sine; 0: what the kind makes of the factor */
    double low, high; /* BANDS: turns over the original positions, between which factors change */
    double beta_fast, beta_slow, mscale, mscale_all_dim; /* YARN */
    bool truncate;
    double short_factor[AQ_CONFIG_TURNS_MAX], long_factor[AQ_CONFIG_TURNS_MAX]; /* LONG */
};

/* Sizes are >= 1 and bounded as above; heads * head_dim is at most AQ_CONFIG_WIDTH_MAX, kv_heads
 * divides heads. */
struct aq_model_config {
    const struct aq_arch *arch;
    uint32_t vocab_size, hidden_size;
    uint32_t intermediate_size; /* between the two halves of an MLP */
    uint32_t layers, heads, kv_heads, head_dim;
    uint32_t max_positions;
    uint32_t embed_width; /* of the token table; hidden_size unless projected */
    enum aq_norm_kind norm;
    float norm_eps;
    bool norm_first;  /* norms stand in front of attention and MLP, not behind the residual */
    bool final_norm;  /* one more in front of the head, where norms stand in front */
    bool norm_affine; /* norms have weights */
    bool qkv_bias, out_bias, mlp_bias;
    bool head_norms;        /* each head of q and k is normed before it is turned */
    bool parallel_residual; /* attention and MLP read the same hidden state */
    bool fused;             /* q, k and v are one tensor, and so are both matrices of a gate */
    bool tie_word_embeddings;
    bool text_of_more; /* the text model of one that takes pictures or sounds as well */
    enum aq_activation activation;
    struct aq_rotary_config rotary;
    uint32_t window; /* positions that the layers marked here look back at; 0: none is marked */
    bool windowed[AQ_CONFIG_LAYERS_MAX];
    enum aq_dtype
        torch_dtype; /* what the file claims; AQ_DTYPE_COUNT when it says nothing usable */
    struct aq_quantised_config quantised;
    int32_t bos_id, pad_id;             /* -1: none.  pad_id may lie beyond the vocabulary */
    uint32_t eos_id[AQ_CONFIG_EOS_MAX]; /* distinct, each below vocab_size */
    uint32_t eos_count;                 /* 0: none */
};

/* Parses the text of a config.json; `what` names it in errors.  -ENOEXEC with file, key, what was
 * expected and what was found. */
int aq_model_config_parse(struct aq_model_config *ret, const char *text, size_t bytes,
                          const char *what, struct aq_err *reterr);
/* The same of what is parsed already. */
int aq_model_config_read_json(struct aq_model_config *ret, const json_t *root, const char *what,
                              struct aq_err *reterr);
/* Reads one config.json. */
int aq_model_config_read_file(struct aq_model_config *ret, const char *path, struct aq_err *reterr);
/* Reads dir/config.json, and adds the end-of-sequence ids of dir/generation_config.json if there is
 * one. */
int aq_model_config_read(struct aq_model_config *ret, const char *dir, struct aq_err *reterr);

#endif
