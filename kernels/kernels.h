/* SPDX-License-Identifier: Apache-2.0
 * kernels/kernels.h - every kernel's type, with its maths, shapes and bytes, and the table that
 * holds one version of each.  Kernels compute on pointers and shapes; they do not know where bytes
 * came from, never allocate, never print and never fail on data (programmer errors are asserted).
 * Reduction orders depend on the model's shape only: a row's result is the same bits alone or in a
 * batch, with one thread or many. */
#ifndef AQ_KERNELS_KERNELS_H
#define AQ_KERNELS_KERNELS_H

#include "base/err.h"
#include "base/threads.h"
#include "base/types.h"

/* ---- execution context ------------------------------------------------------------------- */

/* A worker pool and a scratch area per worker. */
struct aq_exec;

/* scratch_bytes per worker: aq_kernels_scratch_bytes() for the largest shapes that will be run.
 * scratch holds threads * scratch_bytes, 64-byte aligned, owned by the caller. */
int aq_exec_open(struct aq_exec **ret, struct aq_pool *pool, void *scratch, size_t scratch_bytes,
                 struct aq_err *reterr);
void aq_exec_close(struct aq_exec *ex);
struct aq_pool *aq_exec_pool(struct aq_exec *ex);
void *aq_exec_scratch(struct aq_exec *ex, uint32_t worker);
size_t aq_exec_scratch_size(const struct aq_exec *ex);

struct aq_scratch_need {
    uint32_t k_max; /* longest row of any product */
    uint32_t head_dim_max;
    uint32_t context_max; /* most keys a query sees */
};
/* Bytes of scratch per worker that every kernel of every table can live with. */
size_t aq_kernels_scratch_bytes(const struct aq_scratch_need *need);

/* ---- products ---------------------------------------------------------------------------- */

enum aq_activation { AQ_ACT_NONE, AQ_ACT_RELU, AQ_ACT_GELU, AQ_ACT_GELU_TANH, AQ_ACT_SILU };

/* A run of rows of W, in panels of 64 rows; panels follow each other at aq_panel_bytes(dtype, k).
 * Row r of the segment is output column `column + r`.  rows may end inside the last panel
 * (zero-padded). */
struct aq_segment {
    const void *panels;
    uint32_t column, rows;
};

/* y[r][column + n] = act(sum over k of x[r][k] * W[n][k] + bias[column + n])
 *                    (+ y as it was, if accumulate)
 *   x     [m][k], row stride x_stride elements; f32 or bf16, which is the compute type
 *   W     segments of panels in w_dtype (f32, f16, bf16, int8, int4), w_layout =
 *         aq_layout_cpu(w_dtype)
 *   bias  f32, indexed by output column; NULL for none
 *   y     [m][...], row stride y_stride elements; f32, or bf16 (then accumulate must be false)
 * Compute type bf16: weights are rounded to bf16 (once, to nearest even), products are exact, sums
 * are f32.  Compute type f32: weights are widened exactly.  int8 and int4 mean code * scale +
 * minimum by one f32 fma, which compute type bf16 rounds once more; weights that aq_unpack_fn made
 * beforehand give the same bits.
 * One accumulator per output, ascending k (bf16: pairs along k), whatever m is.  accumulate adds
 * the finished f32 sum (with bias and activation) to y once.
 * Moves the weights once per ~500 rows of x. */
struct aq_product {
    const void *x;
    enum aq_dtype x_dtype;
    uint32_t m, k;
    size_t x_stride;
    const struct aq_segment *segments;
    uint32_t segment_count;
    enum aq_dtype w_dtype;
    enum aq_layout w_layout;
    const float *bias;
    enum aq_activation activation;
    bool accumulate;
    void *y;
    enum aq_dtype y_dtype;
    size_t y_stride;
};
typedef void aq_product_fn(struct aq_exec *ex, const struct aq_product *p);

/* Re-lays rows of a matrix as one panel: dst[layout] = convert(src[r][0..k)); rows..63 and the
 * padding of K are zero.
 *   src  [rows][k], contiguous; src_dtype f32, f16 or bf16
 *   dst  aq_panel_bytes(dst_dtype, k) bytes; GROUP64 for int8 and int4, another layout else
 * Rounds to nearest even where dst is narrower.  int8 and int4: a row's group has the smallest
 * value rounded down to f16 as its minimum, the step that reaches the largest rounded up to f16 as
 * its scale, and the nearest codes: no value is off by more than half a scale.  A group that f16
 * cannot reach, or with an infinity or NaN in it, is NaN throughout.  Runs on the calling thread:
 * the caller spreads. */
typedef void aq_pack_panel_fn(void *dst, enum aq_dtype dst_dtype, enum aq_layout dst_layout,
                              const void *src, enum aq_dtype src_dtype, uint32_t rows, uint32_t k);

/* dst panel i = panel i of src, each number as a product of dst_dtype's compute type takes it: once
 * for all products with a matrix that is not in the compute type, instead of once per ~250 rows.
 *   src  `panels` panels in src_dtype (f32, f16, bf16, int8, int4), layout aq_layout_cpu(src_dtype)
 *   dst  as many in dst_dtype, f32 or bf16, aq_panel_bytes(dst_dtype, k) apart; what lies past
 *        column k (of K padded to an even number) is not written
 * Reads and writes each byte once. */
struct aq_unpack {
    const void *src;
    void *dst;
    enum aq_dtype src_dtype, dst_dtype;
    uint32_t panels, k;
};
typedef void aq_unpack_fn(struct aq_exec *ex, const struct aq_unpack *u);

/* ---- row operations ---------------------------------------------------------------------- */

enum aq_norm_kind { AQ_NORM_LAYER, AQ_NORM_RMS, AQ_NORM_CAST };

/* LAYER  y = (x - mean) / sqrt(var + eps) * w + b
 * RMS    y = x / sqrt(mean of x^2 + eps) * w
 * CAST   y = x
 *   x          f32 [rows][dim], row stride x_stride
 *   y          f32 or bf16 [rows][dim], row stride y_stride; y may be x when both are f32
 *   w, b       f32 [dim]; NULL for ones, zeros
 *   row_index  NULL, or the row of x for each row of y (a gather) */
struct aq_norm {
    enum aq_norm_kind kind;
    const float *x;
    size_t x_stride;
    const uint32_t *row_index;
    void *y;
    enum aq_dtype y_dtype;
    size_t y_stride;
    const float *w, *b;
    float eps;
    uint32_t rows, dim;
};
typedef void aq_norm_fn(struct aq_exec *ex, const struct aq_norm *n);

/* y[r][d] = table[id[r]][d] (+ positions[position[r]][d] when positions is given; y is then f32)
 *   table      panels of dtype/layout, width k, f32, f16, bf16, int8 or int4 (code * scale +
 *              minimum by one f32 fma);  y [rows][k], f32 or bf16
 *   positions  rows-major [..][k] of positions_dtype, NULL for none */
struct aq_embed {
    const void *table;
    enum aq_dtype table_dtype;
    enum aq_layout table_layout;
    const uint32_t *id;
    const void *positions;
    enum aq_dtype positions_dtype;
    const uint32_t *position;
    void *y;
    enum aq_dtype y_dtype;
    size_t y_stride;
    uint32_t rows, k;
};
typedef void aq_embed_fn(struct aq_exec *ex, const struct aq_embed *e);

/* y[r][d] += positions[position[r]][d]: for models whose embedding is projected first. */
typedef void aq_add_rows_fn(struct aq_exec *ex, float *y, size_t y_stride, const void *table,
                            enum aq_dtype table_dtype, const uint32_t *index, uint32_t rows,
                            uint32_t k);

/* ---- attention over pages of head-blocks ------------------------------------------------- */

/* A head-block is 32 slots of one KV head: K rows [32][head_dim], then V rows [32][head_dim], in
 * kv_dtype; int8 and int4 rows are codes behind f16 [4][32], the scales and minima of K and of V,
 * one group per row (base/types.h: aq_kv_block_bytes() and what leads to it).  The address of block
 * b of head h is
 *     block[h * head_table_step + b] + h * head_offset
 * Uniform policies share one table (head_table_step 0) and put heads side by side (head_offset =
 * bytes); ragged ones give each head its own row of the table (head_offset 0).
 * len[h * len_step] is the number of keys of head h, the new rows included. */
struct aq_attn_seq {
    uint8_t *const *block;
    uint32_t head_table_step;
    size_t head_offset;
    const uint32_t *len;
    uint32_t len_step;
    uint32_t row;  /* first row of this sequence in q, k_new, v_new, out */
    uint32_t rows; /* its query rows: query i (of rows) sees keys [0, len - rows + i] */
};

/* out[row][h*D + d] = sum over keys j of softmax_j(scale * q[row][h] . K[j]) * V[j][d]
 *   q    f32 [total rows][kv_heads * q_per_kv * head_dim], row stride q_stride
 *   out  f32 or bf16, the same shape, row stride out_stride
 * q is multiplied by scale once, in f32; products, exp and sums are f32 over kv_dtype (f32, f16,
 * bf16) widened exactly, or over code * scale + minimum (int8, int4).  Blocks and slots ascend and
 * slots that a row does not see take no part, so a row's result depends on nothing but its own
 * keys, whatever lies past them.  A row that sees no key gives zeros and a log_sum_exp of -inf.
 * Parallel over (sequence, KV head[, query tile]). Decode reads each K and V row once (per 32 query
 * rows of a KV head): 2 * len * head_dim * kv_heads elements. */
struct aq_attn {
    const struct aq_attn_seq *seqs;
    uint32_t seq_count;
    const float *q;
    size_t q_stride;
    void *out;
    enum aq_dtype out_dtype;
    size_t out_stride;
    enum aq_dtype kv_dtype;
    uint32_t kv_heads, q_per_kv, head_dim;
    float scale;
    float *log_sum_exp; /* optional f32 [total rows][kv_heads * q_per_kv]: log of the sum of
                           exp(scale q.k) */
};
/* For one query row, or a few, per sequence: bound by reading K and V. */
typedef void aq_attn_decode_fn(struct aq_exec *ex, const struct aq_attn *a);
/* For many query rows per sequence (causal): tiles of queries against blocks of keys. */
typedef void aq_attn_prefill_fn(struct aq_exec *ex, const struct aq_attn *a);

/* Stores the new K and V rows of each sequence into its last `rows` slots:
 *   k_new, v_new  f32 [total rows][kv_heads * head_dim], row stride `stride`;  rounded to kv_dtype,
 *                 or a group of int8 or int4 each, chosen as by aq_pack_panel_fn
 * a->q and a->out are not used. */
typedef void aq_kv_append_fn(struct aq_exec *ex, const struct aq_attn *a, const float *k_new,
                             const float *v_new, size_t stride);

/* ---- logits ------------------------------------------------------------------------------ */

struct aq_logits_stat {
    float max;          /* largest finite logit; -inf when there is none */
    uint32_t argmax;    /* its index; the lowest one on ties, 0 when there is none */
    float log_sum_exp;  /* ln of the sum of exp over the finite ones: log-probability i =
                           logit[i] - log_sum_exp; -inf when there is none */
    uint32_t bad_count; /* NaN or infinite logits: any at all is for the caller to report */
};
/* stat[r] of logits f32 [rows][vocab], row stride `stride`.  Fixed order per row: chunks of 4096.
 */
typedef void aq_logits_stat_fn(struct aq_exec *ex, struct aq_logits_stat *stat, const float *logits,
                               size_t stride, uint32_t rows, uint32_t vocab);

/* ---- the table --------------------------------------------------------------------------- */

enum aq_isa {
    AQ_ISA_AVX2 = 1u << 0,       /* AVX2, FMA, F16C */
    AQ_ISA_AVX512 = 1u << 1,     /* F, BW, DQ, VL */
    AQ_ISA_AVX512BF16 = 1u << 2, /* VDPBF16PS */
    AQ_ISA_AMX = 1u << 3,        /* AMX-BF16 tiles */
};

struct aq_kernels {
    unsigned isa;                /* what the table was filled for */
    aq_product_fn *product_f32;  /* x f32 */
    aq_product_fn *product_bf16; /* x bf16 */
    aq_pack_panel_fn *pack_panel;
    aq_unpack_fn *unpack;
    aq_norm_fn *norm;
    aq_embed_fn *embed;
    aq_add_rows_fn *add_rows;
    aq_attn_decode_fn *attn_decode;
    aq_attn_prefill_fn *attn_prefill;
    aq_kv_append_fn *kv_append;
    aq_logits_stat_fn *logits_stat;
};

/* The instruction sets this CPU and operating system offer and this build contains. */
unsigned aq_isa_detect(void);
/* "ref", "avx2", "avx512", "avx512bf16", "amx": the name means that level and all below it.
 * False when unknown.  *ret_mask is not limited to what the CPU has. */
bool aq_isa_parse(const char *name, unsigned *ret_mask);
/* Name of the highest level in the mask. */
const char *aq_isa_name(unsigned mask);
/* Fills the table upward: the reference first, then what each level in `isa` replaces. */
void aq_kernels_cpu(struct aq_kernels *k, unsigned isa);

#endif
