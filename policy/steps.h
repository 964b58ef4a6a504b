/* SPDX-License-Identifier: Apache-2.0
 * policy/steps.h - a model as data.  An architecture file emits one description per step
 * (embedding, the two halves of each layer, head): its matrices and vectors, its ops as lists of
 * primitives, and its costs.  Ledger, program builder, loaders and executor read only these
 * descriptions; nothing else knows an architecture.  Plain data, no pointers to weights. */
#ifndef AQ_POLICY_STEPS_H
#define AQ_POLICY_STEPS_H

#include "base/err.h"
#include "base/kinds.h"
#include "base/panel.h"
#include "base/types.h"

enum {
    AQ_LAYERS_MAX = 4096,
    AQ_NAME_MAX = 80,
    AQ_STEP_PRIM_MAX = 8,
    AQ_STEP_HALVES = 2,
    AQ_VECTOR_PART_MAX = 3,
    AQ_ROTARY_TABLES = 2,
};

enum aq_step_kind { AQ_STEP_EMBED, AQ_STEP_ATTENTION, AQ_STEP_MLP, AQ_STEP_HEAD };

/* Rows of a larger tensor, which checkpoints keep as one: row r of the matrix (number r of the
 * vector) is row first + r / block * every + r % block of a tensor of `total` rows.  total 0: the
 * tensor is the matrix.  The names of such matrices end in '#' and a word of their own
 * ("attention.query_key_value.weight#q"), under which stores keep them apart; the checkpoint's
 * tensor has the name in front of '#'. */
struct aq_tensor_rows {
    uint32_t first, block, every, total;
};

/* A weight matrix: y = x W^T, W [rows][k].  Equal names mean the same matrix, stored once (tied
 * embeddings; only vocabulary matrices may be tied).  A table is gathered by row, never multiplied,
 * and kept row-major in its own dtype. */
struct aq_matrix_desc {
    char name[AQ_NAME_MAX]; /* canonical: Hugging Face's, without what stands before all */
    uint32_t rows, k;
    struct aq_tensor_rows from;
    bool table;
    bool vocabulary; /* rows are tokens: the token table, the LM head */
};

/* An f32 vector made of 1..3 tensors one after the other (the biases of q, k and v are one vector).
 * An empty name means that the model has none and `fill` stands for each of its values. */
struct aq_vector_desc {
    struct aq_vector_part {
        char name[AQ_NAME_MAX];
        uint32_t count;
        struct aq_tensor_rows from;
    } part[AQ_VECTOR_PART_MAX];
    uint32_t part_count, count;
    float fill;
};

/* The arrays that primitives read and write.  HIDDEN, QKV and ATTENTION hold all rows of the
 * micro-batch; the others hold one row tile, so that workspace does not grow with the rows. */
enum aq_register {
    AQ_REG_NONE,
    AQ_REG_HIDDEN,    /* f32 [rows][hidden]: the residual stream */
    AQ_REG_QKV,       /* f32 [rows][(heads + 2 kv_heads) * head_dim] */
    AQ_REG_ATTENTION, /* compute type [rows][heads * head_dim] */
    AQ_REG_NORM,      /* compute type [tile][hidden] */
    AQ_REG_INNER,     /* compute type [tile][ffn] */
    AQ_REG_EMBED,     /* compute type [tile][embedding width] */
    AQ_REG_LOGITS,    /* f32 [head tile][vocabulary] */
    AQ_REG_COUNT,
};

enum aq_prim_kind {
    AQ_PRIM_GATHER,   /* dst = token table row (+ position row when vector table given and dst is
                         HIDDEN) */
    AQ_PRIM_POSITION, /* dst += position row */
    AQ_PRIM_NORM,     /* dst = layer norm, RMS norm or cast of src */
    AQ_PRIM_PRODUCT,  /* dst = activation(src W^T + bias), or dst +=, or dst *= */
    AQ_PRIM_ROTATE,   /* dst = src = QKV: the heads of q and of k, each divided by its RMS and
                         multiplied by vector `weight` (q) and `bias` (k) where they are given,
                         then turned by their row's position (struct aq_rotary) */
};

struct aq_prim {
    enum aq_prim_kind kind;
    enum aq_register src, dst;
    uint8_t matrix[AQ_VECTOR_PART_MAX]; /* indices into the step's matrices, side by side in dst */
    uint8_t matrix_count;
    int8_t weight, bias; /* indices into the step's vectors; -1 for none */
    enum aq_norm_kind norm;
    enum aq_activation activation;
    enum aq_combine combine; /* of a product with dst */
    float eps;
};

struct aq_prim_list {
    struct aq_prim prim[AQ_STEP_PRIM_MAX];
    uint32_t count;
};

struct aq_step_desc {
    enum aq_step_kind kind;
    uint32_t layer;                /* attention and MLP steps: the layer's number */
    struct aq_matrix_desc *matrix; /* points into the model's, to matrix_first */
    struct aq_vector_desc *vector; /* likewise, to vector_first */
    uint32_t matrix_first, matrix_count, vector_first, vector_count;
    struct aq_prim_list half[AQ_STEP_HALVES]; /* EMBED, PRE, MLP_UP, HEAD; then POST, MLP_DOWN */
    uint32_t window; /* attention steps: query i sees keys i - window + 1 .. i; 0: all before it */
    uint32_t carry_in_bytes, carry_out_bytes; /* hidden state per row */
    uint64_t flops_per_row;                   /* of the products: 2 * rows * k each */
};

/* Rotary positions (Su et al., "RoFormer", arXiv 2104.09864), by halves: with d < dims / 2 and
 * a = position * frequency[d],
 *     y[d]            = x[d] * cos(a) * factor - x[d + dims / 2] * sin(a) * factor
 *     y[d + dims / 2] = x[d + dims / 2] * cos(a) * factor + x[d] * sin(a) * factor
 * and numbers from `dims` on stay as they are.  A sequence uses table 1 where its prompt and the
 * tokens asked for are together more than `long_from`, else table 0, from its first row to its
 * last. */
struct aq_rotary {
    uint32_t dims;      /* even; 0: no rotation */
    uint32_t long_from; /* 0: table 0 alone */
    float factor[AQ_ROTARY_TABLES];
    float *frequency[AQ_ROTARY_TABLES]; /* dims / 2 each, radians a position */
};

/* A whole model: its steps, and the numbers that they share. */
struct aq_model_steps {
    struct aq_step_desc *step;
    struct aq_matrix_desc *matrix; /* of all steps, one after the other, with unused ones between */
    struct aq_vector_desc *vector;
    uint32_t step_count, matrix_count, vector_count; /* places, unused ones included */
    uint32_t layers, hidden, inner, embed_width, vocab;
    uint32_t heads, kv_heads, head_dim;
    float attention_scale;
    uint32_t context;         /* positions the model knows */
    uint32_t position_offset; /* position p uses row p + offset of the position table */
    struct aq_rotary rotary;  /* its tables belong to the model: aq_steps_close() frees them */
    uint64_t parameters;      /* every distinct matrix, table and vector */
};

/* The format of a matrix (not a table) when the weights are in `format`: the same, but int8 for
 * vocabulary matrices where that is int4. */
enum aq_dtype aq_matrix_format(const struct aq_matrix_desc *m, enum aq_dtype format);

/* Bytes of a matrix when the weights are in `format`: panels of aq_matrix_format() for the kernels;
 * of a table: rows in `format`. */
uint64_t aq_matrix_bytes(const struct aq_matrix_desc *m, enum aq_dtype format);

/* Is this a step of a layer?  Its matrices are divided between tiers panel by panel, while a matrix
 * of the embedding or the head is on one tier. */
static inline bool aq_step_is_layer(const struct aq_step_desc *d)
{
    return d->kind == AQ_STEP_ATTENTION || d->kind == AQ_STEP_MLP;
}

/* The longest row of any matrix. */
uint32_t aq_steps_widest_row(const struct aq_model_steps *m);
/* Has the model a step of this kind? */
bool aq_steps_have(const struct aq_model_steps *m, enum aq_step_kind kind);

/* The first matrix of the same name before (step, index): true if there is one, so that this one is
 * tied to it. */
bool aq_matrix_is_tied(const struct aq_model_steps *m, uint32_t step, uint32_t index,
                       uint32_t *ret_step, uint32_t *ret_index);

/* Empty steps with places for this many matrices and vectors each; an architecture fills them. */
int aq_steps_open(struct aq_model_steps *m, uint32_t step_count, uint32_t matrix_max,
                  uint32_t vector_max, struct aq_err *reterr);
void aq_steps_close(struct aq_model_steps *m);

/* The index of a step's matrix, or vector, in tables of all matrices, or vectors, of the model. */
static inline uint32_t aq_matrix_index(const struct aq_model_steps *m, uint32_t step, uint32_t i)
{
    return m->step[step].matrix_first + i;
}
static inline uint32_t aq_vector_index(const struct aq_model_steps *m, uint32_t step, uint32_t i)
{
    return m->step[step].vector_first + i;
}

/* Adds up flops_per_row and parameters after an architecture has filled in the rest. */
void aq_steps_finish(struct aq_model_steps *m);

#endif
