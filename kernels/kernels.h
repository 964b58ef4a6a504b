/* SPDX-License-Identifier: Apache-2.0
 * kernels/kernels.h - every kernel's type, with its maths, shapes and bytes, and the table that
 * holds one version of each.  Kernels compute on pointers and shapes; they do not know where bytes
 * came from, never allocate, never print and never fail on data (programmer errors are asserted).
 * Reduction orders depend on the model's shape only: a row's result is the same bits alone or in a
 * batch, with one thread or many.
 *
 * A kernel takes one struct.  What the struct points to is an array of the caller's; the structs of
 * AQ_KERNELS have no holes between their members, so that a backend may keep, compare and hash a
 * call as bytes (an odd number of 32-bit members ends in `reserved`, which is 0). */
#ifndef AQ_KERNELS_KERNELS_H
#define AQ_KERNELS_KERNELS_H

#include "base/err.h"
#include "base/kinds.h"
#include "base/kv_block.h"
#include "base/panel.h"
#include "base/threads.h"
#include "base/types.h"

/* Between the two the compiler refuses a struct with a hole. */
#define AQ_NO_HOLES_BEGIN                                                                          \
    _Pragma("GCC diagnostic push") _Pragma("GCC diagnostic error \"-Wpadded\"")
#define AQ_NO_HOLES_END _Pragma("GCC diagnostic pop")

/* ---- execution context ------------------------------------------------------------------- */

/* A worker pool and a scratch area per worker; kernels of another backend have their own. */
struct aq_exec;

/* scratch_bytes per worker: aq_kernels_scratch_bytes() for the largest shapes that will be run.
 * scratch holds threads * scratch_bytes, 64-byte aligned, owned by the caller. */
int aq_exec_open(struct aq_exec **ret, struct aq_pool *pool, void *scratch, size_t scratch_bytes,
                 struct aq_err *reterr);
void aq_exec_close(struct aq_exec *ex);
struct aq_pool *aq_exec_pool(struct aq_exec *ex);
void *aq_exec_scratch(struct aq_exec *ex, uint32_t worker);
size_t aq_exec_scratch_size(const struct aq_exec *ex);
/* Memory for the codes of rows, 64-byte aligned, the caller's: aq_kernels_codes_bytes() for the
 * longest row.  With less of it products on codes read their weights more often; there must be room
 * for a row. */
void aq_exec_lend_codes(struct aq_exec *ex, void *memory, size_t bytes);
void *aq_exec_codes(struct aq_exec *ex, size_t *ret_bytes);
size_t aq_kernels_codes_bytes(uint32_t k_max);

struct aq_scratch_need {
    uint32_t k_max; /* longest row of any product */
    uint32_t head_dim_max;
    uint32_t context_max; /* most keys a query sees */
    /* Query heads of a KV head where attn_decode keeps scores (struct aq_attn_slots); 0 where it
     * never does. */
    uint32_t scored_q_per_kv;
    /* The same where rows choose what they read (aq_kv_choose_fn). */
    uint32_t choosing_q_per_kv;
    /* Queries of a KV head, at most, whose sums come with attn_prefill: rows times query heads. */
    uint32_t observed;
};
/* Bytes of scratch per worker that every kernel of every table can live with. */
size_t aq_kernels_scratch_bytes(const struct aq_scratch_need *need);

/* ---- products ---------------------------------------------------------------------------- */

/* A run of rows of W, in panels of 64 rows; panels follow each other at aq_panel_bytes(dtype, k).
 * Row r of the segment is output column `column + r`.  rows may end inside the last panel
 * (zero-padded). */
struct aq_segment {
    const void *panels;
    uint32_t column, rows;
};

/* y[r][column + n] = act(sum over k of x[r][k] * W[n][k] + bias[column + n])
 *                    (+ y as it was, or * y as it was, by combine)
 *   x     [m][k], row stride x_stride elements; f32 or bf16, which is the compute type
 *   W     segments of panels in w_dtype (f32, f16, bf16, int8, int4), w_layout =
 *         aq_layout_cpu(w_dtype)
 *   bias  f32, indexed by output column; NULL for none
 *   y     [m][...], row stride y_stride elements; f32, or bf16 (then combine is not ADD)
 * Compute type bf16: weights are rounded to bf16 (once, to nearest even), products are exact, sums
 * are f32.  Compute type f32: weights are widened exactly.  int8 and int4 mean code * scale +
 * minimum by one f32 fma, which compute type bf16 rounds once more; weights that aq_unpack_fn made
 * beforehand give the same bits.
 * One accumulator per output, ascending k (bf16: pairs along k), whatever m is.  combine ADD adds
 * the finished f32 sum (with bias and activation) to y once, MULTIPLY multiplies y by it in f32.
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
    enum aq_combine combine;
    void *y;
    enum aq_dtype y_dtype;
    size_t y_stride;
};
typedef void aq_product_fn(struct aq_exec *ex, const struct aq_product *p);

/* The same on codes (aq_product_codes), of W in int8 or int4: lossy in x.  A row of x in groups of
 * 64 columns, as W's are, becomes
 *   code = x * (127 / a) rounded to nearest even, scale = a / 127, a = the largest |x| of the group
 * and a product, group by group in ascending order,
 *   y += (W's scale * x's scale) * (sum of code * W's code)
 *      + W's minimum * (x's scale * sum of code)
 * where sums of codes are exact, products of scales f32, and each `+` is one f32 fma.  A group of x
 * with an infinity or NaN makes NaN of its row; one below 2^-100 counts as zeros.
 * Needs memory for codes (aq_exec_lend_codes). */

/* Re-lays rows of a matrix as one panel: dst[layout] = convert(src[r][0..k)); rows..63 and the
 * padding of K are zero.
 *   src  [rows][k], contiguous; src_dtype f32, f16 or bf16
 *   dst  aq_panel_bytes(dst_dtype, k) bytes; GROUP64 for int8 and int4, another layout else
 * Rounds to nearest even where dst is narrower.  int8 and int4: a row's group has the smallest
 * value rounded down to f16 as its minimum, the step that reaches the largest as its scale (in f16,
 * rounded up for int8, to nearest for int4: aq_quant_scale), and the nearest codes: no value is off
 * by more than half a scale.  A group that f16 cannot reach, or with an infinity or NaN in it, is
 * NaN throughout.  Runs on the calling thread: the caller spreads. */
typedef void aq_pack_panel_fn(void *dst, enum aq_dtype dst_dtype, enum aq_layout dst_layout,
                              const void *src, enum aq_dtype src_dtype, uint32_t rows, uint32_t k);

/* dst panel i = panel i of src, each number as a product of dst_dtype's compute type takes it: once
 * for all products with a matrix that is not in the compute type, instead of once per ~250 rows.
 *   src  `panels` panels in src_dtype (f32, f16, bf16, int8, int4), layout aq_layout_cpu(src_dtype)
 *   dst  as many in dst_dtype, f32 or bf16, aq_panel_bytes(dst_dtype, k) apart; the part past
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

AQ_NO_HOLES_BEGIN
/* LAYER  y = (x - mean) / sqrt(var + eps) * w + b
 * RMS    y = x / sqrt(mean of x^2 + eps) * w
 * CAST   y = x
 *   x          f32 [rows][dim], row stride x_stride
 *   y          f32 or bf16 [rows][dim], row stride y_stride; y may be x when both are f32
 *   w, b       f32 [dim]; NULL for ones, zeros
 *   row_index  NULL, or the row of x for each row of y (a gather) */
struct aq_norm {
    enum aq_norm_kind kind;
    enum aq_dtype y_dtype;
    const float *x;
    size_t x_stride;
    const uint32_t *row_index;
    void *y;
    size_t y_stride;
    const float *w, *b;
    float eps;
    uint32_t rows, dim, reserved;
};
typedef void aq_norm_fn(struct aq_exec *ex, const struct aq_norm *n);

/* y[r][d] = table[id[r]][d] (+ positions[position[r]][d] when positions is given; y is then f32)
 *   table      panels of dtype/layout, width k, f32, f16, bf16, int8 or int4 (code * scale +
 *              minimum by one f32 fma);  y [rows][k], f32 or bf16
 *   positions  rows-major [..][k] of positions_dtype, NULL for none
 *   chosen     on a GPU: ids that the host has not seen yet.  An id of AQ_ID_CHOSEN + i stands for
 *              chosen[i]; NULL elsewhere, and where there are none */
#define AQ_ID_CHOSEN (1u << 31)
struct aq_embed {
    const void *table;
    enum aq_dtype table_dtype;
    enum aq_layout table_layout;
    const uint32_t *id, *chosen;
    const void *positions;
    const uint32_t *position;
    void *y;
    enum aq_dtype positions_dtype, y_dtype;
    size_t y_stride;
    uint32_t rows, k;
};
typedef void aq_embed_fn(struct aq_exec *ex, const struct aq_embed *e);

/* y[r][d] += table[index[r]][d]: positions, for models whose embedding is projected first.
 *   y      f32 [rows][k], row stride y_stride
 *   table  row-major [..][k] of table_dtype */
struct aq_add_rows {
    float *y;
    size_t y_stride;
    const void *table;
    const uint32_t *index;
    enum aq_dtype table_dtype;
    uint32_t rows, k, reserved;
};
typedef void aq_add_rows_fn(struct aq_exec *ex, const struct aq_add_rows *a);

/* In place, for each row r and each of its heads h (q_heads of q, then k_heads of k, side by side
 * from column 0; what lies behind them is left alone):
 *     x = x / sqrt(mean of x^2 + eps) * w, where w (w_q for heads of q, w_k for k's) is given
 *     x[d], x[d + half] = x[d] * c[d] - x[d + half] * s[d],  x[d + half] * c[d] + x[d] * s[d]
 * for d < half = rotary_dim / 2, with c = turn[r][0 .. half) and s = turn[r][half .. rotary_dim):
 * cosine and sine of the row's angles (policy/steps.h: struct aq_rotary).
 *   x         f32, row stride x_stride;  turn  f32 [rows][rotary_dim], contiguous
 *   w_q, w_k  f32 [head_dim], or NULL
 *   rotary_dim is even, at most head_dim; 0: norms alone
 * c * x - s * y is fma(c, x, -(s * y)), and c * y + s * x is fma(c, y, s * x): the same bits for
 * every instruction set where no norm is given. */
struct aq_rotate {
    float *x;
    size_t x_stride;
    const float *turn;
    const float *w_q, *w_k;
    float eps;
    uint32_t rows, q_heads, k_heads, head_dim, rotary_dim;
};
typedef void aq_rotate_fn(struct aq_exec *ex, const struct aq_rotate *r);
AQ_NO_HOLES_END

/* ---- attention over pages of head-blocks ------------------------------------------------- */

/* The memory of the slots of a (sequence, layer), beside K and V.  Row h begins at
 * h * stride; the pointers may be NULL where the rule does not need them. */
struct aq_attn_slots {
    float *score;       /* [kv_heads][stride]; NULL: no scores */
    uint32_t *position; /* [kv_heads][stride]: original positions */
    uint32_t *victim;   /* [kv_heads]: the slot that the next row takes; UINT32_MAX: no candidate */
    uint32_t stride;    /* a multiple of 32 */
};

/* What a query turns back by in front of the first `slots` slots, whose keys count as nearer to it
 * than they were turned for (policy/kv_policy.h: positions in the cache).  In place of q they get
 *     x[d], x[d + half] = x[d] * c[d] + x[d + half] * s[d],  x[d + half] * c[d] - x[d] * s[d]
 * with half = dim / 2, c[d] = turn[d] * scale and s[d] = turn[half + d] * scale; the rest of a head
 * stays as it is. */
struct aq_attn_turn {
    const float *turn; /* [dim]: a row of a rotary table; NULL: q is that of all slots */
    float scale;       /* one over the table's factor */
    uint32_t slots, dim;
};

/* A head-block is 32 slots of one KV head: K rows [32][head_dim], then V rows [32][head_dim], in
 * kv_dtype; int8 and int4 rows are codes behind f16 [4][32], the scales and minima of K and of V,
 * one group per row (base/types.h: aq_kv_block_bytes() and what leads to it).  The address of block
 * b of head h is
 *     block[h * head_table_step + b] + h * head_offset
 * Where kv_dtype is one of KIVI's only the first `coded` blocks are of it; the newest slots lie in
 * blocks of f16 behind them, whose heads are `plain_offset` bytes apart.
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
    uint32_t coded;
    size_t plain_offset;
    /* The members below are for caches that shrink; all zero where nothing is remembered. */
    struct aq_attn_slots slots;
    uint32_t position; /* original position of its first row */
    uint32_t recent;   /* positions that the next victim is not taken from (aq_kv_victim_fn) */
    bool overwrite;    /* its only row goes into slot slots.victim[h], which len counts already */
    /* Of aq_attn_decode_fn on a CPU, where the sequence has one row and keys are numbers. */
    struct aq_attn_turn turn;
    /* Of aq_attn_decode_fn: so many leading blocks of each head are those of the sequence before it
     * in the call, at the same addresses.  Every slot of them is a key of both, and where kv_dtype
     * is one of KIVI's, both have them as codes.  0: none, or nothing is known.  It says how K and
     * V may be read, and changes no bit of a result; of a call's first sequence it says nothing. */
    uint32_t shared;
};

/* Which of the candidates is the victim. */
enum aq_attn_victim {
    AQ_ATTN_NO_RULE,  /* none: there is no rule, and slots.score and slots.victim are left alone */
    AQ_ATTN_BY_SCORE, /* the lowest score */
    AQ_ATTN_BY_POSITION, /* the highest position */
};

AQ_NO_HOLES_BEGIN
/* How a query's probabilities count for its keys, and which key is given up: c(i, j) is the sum,
 * mean, largest or first of f(p) over the query heads of the KV head, for query i and key j.  EACH
 * is for aq_attn_stats_fn alone, MAX_OF_SUMS for aq_kv_value_fn. */
struct aq_attn_rule {
    enum aq_attn_victim victim;
    enum aq_attn_stat stat;
    enum aq_attn_group group;
    float threshold; /* of LOW */
    float decay;     /* what a score is multiplied by per query; 1 keeps all of it */
    uint32_t sinks;  /* the first positions, which are never given up */
    /* Of aq_kv_victim_fn: 1 where all heads give up the same slot, in which they hold the same
     * position: by score the one of the lowest sum over KV heads, from the first on. */
    uint32_t together;
};

/* Which pairs of a query and a key count.  A query's own key is at distance 0. */
struct aq_attn_pairs {
    uint32_t rows;     /* of the last so many queries; 0: of all (aq_attn_prefill_fn: no sums) */
    uint32_t min_dist; /* keys at least so far behind the query; 0: its own too */
    uint32_t band;     /* keys less far than this behind the query; 0: all */
};

/* What keys have got from queries in front of the sequence's first row, which is then one of a
 * multiple of AQ_ATTN_STATS_ROWS: sums f32 [rows of slots.score][stride] of keys 0 to len - 1, as a
 * call with those queries alone leaves them.  May be slots.score itself.  All 0: nothing. */
struct aq_attn_begun {
    const float *sums;
    uint32_t stride, len;
};

/* At least the largest of what the arrays of a call hold, for launches whose host code cannot look
 * into them. */
struct aq_attn_reach {
    uint32_t rows; /* query rows of a sequence */
    uint32_t len;  /* keys of a head */
    /* Of aq_attn_decode_fn: splits of AQ_CUDA_DECODE_SPLIT slots that neighbours share, and 1 where
     * they are worth reading for several sequences at once; where not, both are 0.  Bits do not
     * depend on them. */
    uint32_t shared, joint;
};

/* out[row][h*D + d] = sum over keys j of softmax_j(scale * q[row][h] . K[j]) * V[j][d]
 *   q    f32 [total rows][kv_heads * q_per_kv * head_dim], row stride q_stride
 *   out  f32, f16 or bf16, the same shape, row stride out_stride
 * q is multiplied by scale once, in f32; products, exp and sums are f32 over kv_dtype (f32, f16,
 * bf16) widened exactly, or over code * scale + minimum (codes; KIVI's in decode only).  out in
 * bf16 means compute type bf16: versions of aq_attn_prefill_fn may then round what they multiply to
 * bf16, once, to nearest even (q times scale, K, V, and exp(score - a maximum), but not in sums of
 * it), and those of aq_attn_stats_fn in the same table round q times scale and K.  Blocks and slots
 * ascend and slots that a row does not see take no part, so a row's result depends on nothing but
 * its own keys, whatever lies past them.  A row that sees no key gives zeros and a log_sum_exp of
 * -inf.  Parallel over (sequence, KV head[, query tile]).  Decode reads each K and V row once (per
 * 32 query rows of a KV head): 2 * len * head_dim * kv_heads elements, len being the window's where
 * there is one.  Sequences of a row that share leading blocks with their neighbours (seqs'
 * `shared`) may read these once per 128 query rows between them (on a device 4 or 16), and then
 * their own blocks singly, as ChunkAttention (arXiv 2402.15220) and Hydragen (arXiv
 * 2402.05099) do.  Unlike there, bits are those of each sequence alone: on a CPU a query's sums go
 * on from one part to the other; on a device all is taken in fixed splits anyway, of which some
 * are taken for several sequences.  Nothing is read jointly with a rule or a window. */
struct aq_attn {
    const struct aq_attn_seq *seqs;
    const float *q;
    size_t q_stride;
    void *out;
    size_t out_stride;
    /* Optional f32 [total rows][kv_heads * q_per_kv]: log of the sum of exp(scale q.k). */
    float *log_sum_exp;
    const float *k_new, *v_new; /* of aq_kv_append_fn */
    size_t new_stride;
    struct aq_attn_begun begun; /* of aq_attn_stats_fn, for one sequence */
    uint32_t seq_count;
    enum aq_dtype out_dtype, kv_dtype;
    uint32_t kv_heads, q_per_kv, head_dim;
    float scale;
    struct aq_attn_rule rule;
    struct aq_attn_pairs pairs; /* of aq_attn_stats_fn, and of aq_attn_prefill_fn */
    struct aq_attn_reach reach; /* of another backend than the CPU */
    /* A query sees the last `window` of the keys that it would see, its own among them; 0: all of
     * them.  Slots stand for positions: of caches that have given up no key. */
    uint32_t window;
};
AQ_NO_HOLES_END
/* For one query row, or a few, per sequence: bound by reading K and V.
 * With a rule and slots.score: once a row's softmax is known, for each slot j up to its own key's,
 *     score[h][j] = decay * score[h][j] + c(row, j), where c is 0 in front of its window,
 * row after row.  Then, with a rule and slots.victim, as aq_kv_victim_fn, but for rules of heads
 * together, whose victims are left alone.  Both sum in f32, in an
 * order that depends on the sequence and head only; out and log_sum_exp are the same bits with a
 * rule as without.  Reads a score and a position per slot and writes a score. */
typedef void aq_attn_decode_fn(struct aq_exec *ex, const struct aq_attn *a);
/* For many query rows per sequence (causal): tiles of queries against blocks of keys.  Takes no
 * notice of rules and pairs, unless pairs.rows is given: then the sequences' slots.score become the
 * sums of aq_attn_stats_fn, whose demands the call must meet, with a->begun all 0.  A CPU makes
 * them of the weights that attention has at hand, without products of their own; they differ from
 * those of aq_attn_stats_fn by roundings.  With a window, or of more queries or weights than are
 * kept (kernels/cpu/scratch.h), they are that one's.  Which it is depends on the sequence's keys,
 * the rows and the heads alone. */
typedef void aq_attn_prefill_fn(struct aq_exec *ex, const struct aq_attn *a);

/* slots.score[h][j] = sum over the queries i of a sequence that see j and count (a->pairs) of
 * decay^(last query - i) * c(i, j), for every key j < len[h]; 0 where no query counts.  Where the
 * group is EACH, of query head g of KV head h alone, at slots.score[h * q_per_kv + g][j].
 *   probabilities are exp(scale q.k - a->log_sum_exp) as attention saved it; the products are those
 *   of aq_attn_prefill_fn; sums are f32, queries ascend, in windows of AQ_ATTN_STATS_ROWS of them,
 *   each of which joins the sums of those in front (a->begun), so that what a prompt's queries add
 *   may be summed in several calls with the same bits, each from a window's first query on
 * a->rule is needed and every sequence's slots.score; a->out is not used, nor is V.  Memory beside
 * the scores: a tile.  Parallel over (sequence, KV head, tile of keys); the bits depend on the
 * sequence and head only. */
typedef void aq_attn_stats_fn(struct aq_exec *ex, const struct aq_attn *a);

/* Stores the new K and V rows of each sequence into its last `rows` slots:
 *   k_new, v_new  f32 [total rows][kv_heads * head_dim], row stride new_stride;  rounded to
 *                 kv_dtype, or a group of int8 or int4 each, chosen as by aq_pack_panel_fn
 * or, where the sequence says overwrite, its only row into slot victim[h] of each head.  Where
 * slots.position is given, the position of each slot written is stored there (position + i), and 0
 * as its score where slots.score is.  a->q, a->out and a->rule are not used. */
typedef void aq_kv_append_fn(struct aq_exec *ex, const struct aq_attn *a);

/* victim[h] = the slot that gives way to the row at the next position, t = position + rows: of the
 * slots j < len[h] with sinks <= position[h][j] < t + 1 - recent the one of the lowest score (of
 * equal ones the lowest position), or by position the one of the highest position; UINT32_MAX where
 * there is none.  A NaN counts as an infinite score.
 * a->rule is needed, slots.position, slots.victim, and slots.score unless by position; a sequence
 * without slots.victim is passed over.  q, out, K and V are not used. */
typedef void aq_kv_victim_fn(struct aq_exec *ex, const struct aq_attn *a);

AQ_NO_HOLES_BEGIN
/* What a prompt's keys are worth, made of the column sums of its query heads.  First the sums of a
 * key's neighbours are pooled, then the query heads of its KV head are taken together, or the other
 * way round; then, perhaps, the KV heads. */
struct aq_kv_value {
    const float *sums; /* f32 [kv_heads * q_per_kv][stride], as aq_attn_stats_fn leaves them */
    float *value;      /* f32 [kv_heads][stride], apart from the sums */
    uint32_t stride;
    uint32_t len; /* keys from 0 on that have a value, and that others are pooled with */
    uint32_t kv_heads, q_per_kv;
    enum aq_attn_group group; /* SUM, MEAN or MAX_OF_SUMS */
    enum aq_kv_pool pool;
    uint32_t pool_width; /* of keys around a key and itself: odd, at most AQ_KV_POOL_WIDTH_MAX */
    uint32_t pool_first; /* 1: query heads are taken together afterwards */
    uint32_t together;   /* 1: a key is worth the sum over KV heads, in each of them */
    uint32_t reserved;
};
AQ_NO_HOLES_END
enum { AQ_KV_POOL_WIDTH_MAX = 127 };
/* In f32 and in this order, so that every version gives the same bits: pools go from the lowest key
 * up, those outside [0, len) being left out, and an average divides by the width in any case; sums
 * over heads go from the first one up; of a largest number a NaN is the largest. */
typedef void aq_kv_value_fn(struct aq_exec *ex, const struct aq_kv_value *v);

AQ_NO_HOLES_BEGIN
/* What keys are worth by themselves.  For key j < len of KV head h, with n(j) = |k[j]|, at least
 * 1e-12:
 *   value[h][j] = -n(j), or where `diff` is 1
 *   value[h][j] = -(k[j] . s) / n(j) with s = sum over all keys i of k[i] / n(i): the less like the
 *                 mean direction, the more
 *   k  f32 [len][kv_heads * head_dim], row stride k_stride */
struct aq_kv_key_value {
    const float *k;
    size_t k_stride;
    float *value; /* f32 [kv_heads][stride] */
    uint32_t stride, len, kv_heads, head_dim, diff, reserved;
};
AQ_NO_HOLES_END
/* In f32 and in this order, so that every version gives the same bits: a product of vectors is a
 * sum of eight, of which number i adds up elements i, i + 8, ..., and they are taken together as
 * (i) + (i + 4), then (i) + (i + 2), then (0) + (1); s adds up 64 keys at a time, then those. */
typedef void aq_kv_key_value_fn(struct aq_exec *ex, const struct aq_kv_key_value *v);

/* Which of a sequence's keys stay, of slots 0 .. len - 1, which hold positions 0 .. len - 1. */
struct aq_kv_select {
    const float *value; /* f32 [kv_heads][stride]; NULL: the lower position is worth more */
    uint32_t stride;
    uint32_t len;
    uint32_t recent; /* the last so many stay */
    uint32_t heavy;  /* and of those before them so many of the highest value, */
    uint32_t sinks;  /* the first so many being worth most of all, */
    bool layer;      /* per head; or heavy * kv_heads of all heads taken together, */
    uint32_t floor;  /* each head's so many best ones first (at most heavy) */
    /* With `layer`, where not 0: heads without a floor only say how many of a head, c, would stay.
     * A head keeps its so many best ones as
     *     (c * (10^9 - mix) + floor * 10^9) / 10^9, to the nearest, halves to the even one,
     * is, and all sinks among the heavy. */
    uint32_t mix;
    uint32_t *keep; /* [kv_heads][keep_stride]: the slots that stay, ascending */
    uint32_t keep_stride;
    uint32_t *count; /* [kv_heads]: how many */
};
AQ_NO_HOLES_BEGIN
struct aq_kv_selects {
    const struct aq_kv_select *selects;
    uint32_t count, kv_heads;
};
AQ_NO_HOLES_END
/* Of equal values the higher position stays (then, among heads, the lower head); a NaN counts as
 * infinite.  Parallel over heads (over sequences where layer). */
typedef void aq_kv_select_fn(struct aq_exec *ex, const struct aq_kv_selects *s);

/* A sequence's blocks, addressed as in struct aq_attn_seq, its slots, and which of them move: i
 * stands for slot list[h * list_stride + i] of head h, or first + i where there is no list. */
struct aq_kv_side {
    uint8_t *const *block;
    uint32_t block_count; /* entries of the table, for a backend that has to copy it */
    uint32_t head_table_step;
    size_t head_offset;
    struct aq_attn_slots slots; /* score and position move where both sides have them */
    const uint32_t *list;
    uint32_t list_stride, first;
};
/* For each head h and i = 0 .. count[h * count_step] - 1, in this order: K and V of slot i of one
 * side become those of slot i of the other, with scores and positions.  An i whose slot is
 * UINT32_MAX on either side is passed over.
 *   A gather has an ascending list on the side it comes from and none on the other: then both may
 *   be the same blocks and slots.  Where to.slots.position is given and from.slots.position is not,
 *   slot j is taken to hold position j. */
struct aq_kv_move {
    struct aq_kv_side from, to;
    const uint32_t *count;
    uint32_t count_step;
};
AQ_NO_HOLES_BEGIN
struct aq_kv_moves {
    const struct aq_kv_move *moves;
    uint32_t count;
    enum aq_dtype kv_dtype;
    uint32_t kv_heads, head_dim;
};

/* target[h * AQ_HEAD_BLOCK_SLOTS] = victim[h], or UINT32_MAX where that is not below `whole`. */
struct aq_kv_note {
    uint32_t *target;
    const uint32_t *victim;
    uint32_t kv_heads, whole;
};
AQ_NO_HOLES_END
/* Copies bytes, whatever the format.  Parallel over (move, head); no two moves may touch the same
 * rows. */
typedef void aq_kv_move_fn(struct aq_exec *ex, const struct aq_kv_moves *m);
/* A run of head-blocks, side by side for all KV heads, of f16; and where its codes go. */
struct aq_kv_encode {
    const uint8_t *from;
    uint8_t *to;
};
AQ_NO_HOLES_BEGIN
struct aq_kv_encodes {
    const struct aq_kv_encode *encodes;
    uint32_t count;
    enum aq_dtype kv_dtype; /* of KIVI */
    uint32_t kv_heads, head_dim;
};
AQ_NO_HOLES_END
/* All 32 slots of each head-block of each run become codes of kv_dtype: a group is the 32 tokens of
 * one channel of K, or up to 32 channels of one token of V, with scale and minimum as
 * kernels/cpu/quant.h has them.  Parallel over (run, head). */
typedef void aq_kv_encode_fn(struct aq_exec *ex, const struct aq_kv_encodes *e);

/* ---- attention that is expected ---- */

AQ_NO_HOLES_BEGIN
/* What the keys of a prompt are worth to queries that are still to come (Expected Attention, arXiv
 * 2510.00636, in the order of NVIDIA's kvpress).  Queries i in [skip, len), turned back to what
 * they were before their positions turned them, have a mean m and a covariance C (divided by their
 * number), and A is the mean of the rotations of the positions to come; of each query head
 *     z[j] = scale k[j].(A m) + scale^2 / 2 k[j].(A C A^T) k[j],  skip <= j < len
 * and, over the query heads of KV head h,
 *     value[h][j] = mean of softmax(z)[j], times |v[j]|;  0 for j < skip
 *   q      f32 [len][kv_heads * q_per_kv * head_dim], turned, row stride q_stride
 *   k, v   f32 [len][kv_heads * head_dim], row stride kv_stride; keys are turned
 *   turn   rows turn_first + i of a rotary table (policy/rotary.h), whose panels of AQ_PANEL_ROWS
 *          rows are turn_panel numbers apart; its factor's square has the inverse `unscale`
 *   ahead  f32 [dims]: the means of dims / 2 cosines and then sines, the factor included
 * Without rotary positions dims is 0, and neither is read. */
struct aq_kv_expected {
    const float *q, *k, *v, *turn, *ahead;
    float *value; /* f32 [kv_heads][stride] */
    float *worth; /* f32 [kv_heads * q_per_kv][stride]: room */
    float *room;  /* f32 [kv_heads * q_per_kv][head_dim + AQ_KV_EXPECTED_ROWS][head_dim] */
    size_t q_stride, kv_stride, turn_panel;
    uint32_t turn_first, dims, stride, len, skip, kv_heads, q_per_kv, head_dim;
    float scale, unscale;
};
AQ_NO_HOLES_END
enum { AQ_KV_EXPECTED_ROWS = 9 };
/* In f32, and in an order that gives the same bits for every instruction set and number of threads.
 * Parallel over query heads. */
typedef void aq_kv_expected_fn(struct aq_exec *ex, const struct aq_kv_expected *e);

/* ---- reading a part of the keys ---- */

/* Head-blocks of one sequence whose bounds are made: [first, end), all of them full.  The address
 * of head-block b of head h is block[b] + h * head_offset. */
struct aq_kv_bound {
    uint8_t *const *block;
    size_t head_offset;
    uint16_t *bounds; /* f16 [kv_heads][groups][head_dim][2][AQ_KV_BOUND_BLOCKS]: least, greatest */
    uint32_t groups, first, end;
};
AQ_NO_HOLES_BEGIN
struct aq_kv_bounds {
    const struct aq_kv_bound *bounds;
    uint32_t count;
    enum aq_dtype kv_dtype; /* not one of KIVI's */
    uint32_t kv_heads, head_dim;
};
AQ_NO_HOLES_END
/* The least and the greatest number of each channel of K over the 32 slots of a head-block, codes
 * as code * scale + minimum by one f32 fma, rounded outwards to f16: the same bits for every
 * instruction set.  Where a number is infinite or NaN they are -inf and inf.  Parallel over
 * (sequence, head, group). */
typedef void aq_kv_bounds_fn(struct aq_exec *ex, const struct aq_kv_bounds *b);

/* Which of the first `blocks` head-blocks of each head a query row reads: `keep` of them, the first
 * and the last among them. */
struct aq_kv_choice {
    const uint16_t *bounds; /* of struct aq_kv_bound */
    uint32_t groups, blocks, keep;
    uint32_t row;     /* of q */
    uint32_t *chosen; /* [kv_heads][stride]: numbers of head-blocks, ascending */
    uint32_t stride;
};
AQ_NO_HOLES_BEGIN
struct aq_kv_choices {
    const struct aq_kv_choice *choices;
    const float *q; /* as in struct aq_attn */
    size_t q_stride;
    uint32_t count, kv_heads, q_per_kv, head_dim;
    float scale;
    uint32_t reserved;
};
AQ_NO_HOLES_END
/* Quest (arXiv 2406.10774) bounds the products of a query with the keys of a block from above.  Of
 * head-block b, with bounds lo and hi, and query head i of the KV head, q multiplied by scale once:
 *     u_i(b) = sum over d of max(q_d lo_d, q_d hi_d)
 *     worth(b) = sum over i of exp(u_i(b) - the largest u_i of the head's `blocks` head-blocks)
 * Beside the first and the last one the keep - 2 of the highest worth are chosen, of equal ones the
 * later; a worth that is no number counts as infinite.  In f32: u by one fma for each channel,
 * ascending, the exponentials as kernels/cpu/vec.h has them, query heads ascending, so that every
 * instruction set chooses the same.  Parallel over (sequence, head). */
typedef void aq_kv_choose_fn(struct aq_exec *ex, const struct aq_kv_choices *c);

/* On the calling thread. */
typedef void aq_kv_note_fn(struct aq_exec *ex, const struct aq_kv_note *n);

/* ---- logits ------------------------------------------------------------------------------ */

struct aq_logits_stat {
    float max;          /* largest finite logit; -inf when there is none */
    uint32_t argmax;    /* its index; the lowest one on ties, 0 when there is none */
    float log_sum_exp;  /* ln of the sum of exp over the finite ones: log-probability i =
                           logit[i] - log_sum_exp; -inf when there is none */
    uint32_t bad_count; /* NaN or infinite logits: any at all is for the caller to report */
};
AQ_NO_HOLES_BEGIN
/* stat[r] of logits f32 [rows][vocab], row stride `stride`.  Fixed order per row: chunks of 4096.
 */
struct aq_logits {
    struct aq_logits_stat *stat;
    const float *logits;
    size_t stride;
    uint32_t rows, vocab;
};
AQ_NO_HOLES_END
typedef void aq_logits_stat_fn(struct aq_exec *ex, const struct aq_logits *l);

/* Candidates of a draw: what is at logits[i] lies (best - logits[i]) * inverse from the best. */
struct aq_candidates {
    float *weight;       /* [count], may be logits */
    const float *logits; /* [count], finite or -inf */
    uint32_t count;
    float best;    /* the largest of the finite logits */
    float inverse; /* of the temperature, finite, above 0 */
    float reach;   /* the largest distance that is summed; may be infinite */
    float unit;    /* aq_weight_unit */
};
/* What candidates weigh: weight[i] = exp(-distance) in f32, each step rounded, exp() as
 * kernels/cpu/vec.h has it: the same bits for every instruction set, and on a GPU; -inf weighs
 * nothing.  Returns the sum of those in reach, in units.  On the calling thread. */
typedef uint64_t aq_weigh_fn(const struct aq_candidates *c);
/* The i, ascending, of which least <= weight[i] <= most, into id [count]; returns how many there
 * are.  On the calling thread. */
typedef uint32_t aq_weights_between_fn(uint32_t *id, const float *weight, uint32_t count,
                                       float least, float most);
/* The units of a weight of 1, in which weights are counted, the rest of a unit cut off: those of
 * all ids sum up to less than 2^63. */
static inline float aq_weight_unit(uint32_t vocab)
{
    float unit = 0x1p+50f;
    for (; vocab > 1u << 12; vocab /= 2)
        unit /= 2;
    return unit;
}

/* ---- the table --------------------------------------------------------------------------- */

enum aq_isa {
    AQ_ISA_AVX2 = 1u << 0,       /* AVX2, FMA, F16C */
    AQ_ISA_AVX512 = 1u << 1,     /* F, BW, DQ, VL */
    AQ_ISA_AVX512VNNI = 1u << 2, /* VPDPBUSD, VPDPWSSD */
    AQ_ISA_AVX512BF16 = 1u << 3, /* VDPBF16PS */
    AQ_ISA_AMX = 1u << 4,        /* AMX-BF16 tiles */
};

/* The kernels that every backend has, each with the struct that it takes: what is declared,
 * tabulated or wrapped for all of them is made from these rows. */
#define AQ_KERNELS(ROW)                                                                            \
    ROW(norm, aq_norm)                                                                             \
    ROW(embed, aq_embed)                                                                           \
    ROW(add_rows, aq_add_rows)                                                                     \
    ROW(rotate, aq_rotate)                                                                         \
    ROW(attn_decode, aq_attn)                                                                      \
    ROW(attn_prefill, aq_attn)                                                                     \
    ROW(attn_stats, aq_attn)                                                                       \
    ROW(kv_append, aq_attn)                                                                        \
    ROW(kv_victim, aq_attn)                                                                        \
    ROW(kv_value, aq_kv_value)                                                                     \
    ROW(kv_key_value, aq_kv_key_value)                                                             \
    ROW(kv_select, aq_kv_selects)                                                                  \
    ROW(kv_move, aq_kv_moves) /* gathers too */                                                    \
    ROW(kv_note, aq_kv_note)                                                                       \
    ROW(logits_stat, aq_logits)

struct aq_kernels {
    unsigned isa;                           /* what the CPU's table was filled for */
    aq_product_fn *product_f32;             /* x f32 */
    aq_product_fn *product_bf16;            /* x bf16 */
    aq_product_fn *product_codes;           /* x f32 or bf16, W int8 or int4; the CPU's only */
    aq_pack_panel_fn *pack_panel;           /* the CPU's only */
    aq_kv_encode_fn *kv_encode;             /* the CPU's only */
    aq_kv_bounds_fn *kv_bounds;             /* the CPU's only */
    aq_kv_choose_fn *kv_choose;             /* the CPU's only */
    aq_kv_expected_fn *kv_expected;         /* the CPU's only */
    aq_weigh_fn *weigh;                     /* the CPU's only */
    aq_weights_between_fn *weights_between; /* the CPU's only */
    aq_unpack_fn *unpack;
#define AQ_KERNELS_MEMBER(name, params) aq_##name##_fn *name;
    AQ_KERNELS(AQ_KERNELS_MEMBER)
#undef AQ_KERNELS_MEMBER
};

/* The instruction sets this CPU and operating system offer and this build contains. */
unsigned aq_isa_offered(void);
/* Those of them that compute as their manual says: of tiles, one product is compared. */
unsigned aq_isa_detect(void);
/* "ref", "avx2", "avx512", "avx512vnni", "avx512bf16", "amx": the name means that level and all
 * below it.  False when unknown.  *ret_mask is not limited to what the CPU has. */
bool aq_isa_parse(const char *name, unsigned *ret_mask);
/* How far up instruction sets may be used; all zero: as aq_isa_auto says.  kept: nobody chose, but
 * an earlier part of the same work used those of the mask. */
struct aq_isa_choice {
    bool given, kept;
    unsigned mask;
};
/* What is used of `have` where nobody chose, and a sentence's part that says why: all of it, but
 * not an AVX512BF16 that is slower than what lies below it.  The same each time on one CPU. */
unsigned aq_isa_auto(unsigned have, const char **ret_why);
/* The instruction sets of a choice, which may be more than `have`, and whether products are to
 * compute in bf16 unless something else is said: where the CPU has instructions for it, whether or
 * not aq_isa_auto found them too slow. */
unsigned aq_isa_chosen(const struct aq_isa_choice *choice, unsigned have, bool *ret_bf16);
/* Name of the highest level in the mask. */
const char *aq_isa_name(unsigned mask);
/* Fills the table upward: the reference first, then what each level in `isa` replaces. */
void aq_kernels_cpu(struct aq_kernels *k, unsigned isa);

#endif
