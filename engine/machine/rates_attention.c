/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/machine/rates_parts.h"

#include "base/clock.h"

#include <math.h>
#include <stdlib.h>

enum { BLOCKS = AQ_RATES_CONTEXT / AQ_HEAD_BLOCK_SLOTS };
/* Sequences in an eighth of the keys each, to tell what a row takes whatever its keys. */
enum { PARTS = 8, SHORT = AQ_RATES_CONTEXT / PARTS, ROUNDS_MIN = 5, ROUNDS_MAX = 64 };

struct aq_rates_attention {
    struct aq_rates_rig *rig;
    enum aq_dtype format, compute; /* compute: of prompts */
    uint32_t head_dim, group;
    uint8_t *kv;
    size_t kv_bytes;
    uint32_t count;                 /* sequences that fill kv */
    struct aq_attn_seq *seq, *part; /* [count], [PARTS * count]: the same keys in shorter ones */
    uint8_t **block;
    uint32_t len, short_len;
    float *q, *out; /* [PARTS * count] or [AQ_RATES_CONTEXT] rows, whichever is more */
};

uint32_t aq_rates_attention_heads(uint32_t head_dim, uint32_t group)
{
    return group == 1 ? AQ_RATES_WIDTH / head_dim : AQ_RATES_SHARED;
}

static size_t page_bytes(enum aq_dtype format, uint32_t head_dim, uint32_t group)
{
    return aq_rates_attention_heads(head_dim, group) * aq_kv_block_bytes(format, head_dim);
}

static size_t sequence_bytes(enum aq_dtype format, uint32_t head_dim, uint32_t group)
{
    return BLOCKS * page_bytes(format, head_dim, group);
}

/* Groups have half of the KV, or else they took more than a fifth of a probe's time. */
static uint32_t sequences(uint64_t kv_bytes, enum aq_dtype format, uint32_t head_dim,
                          uint32_t group)
{
    uint64_t used = group > 1 ? kv_bytes / 2 : kv_bytes;
    return (uint32_t)(used / sequence_bytes(format, head_dim, group));
}

static uint32_t query_heads(const struct aq_rates_attention *a)
{
    return aq_rates_attention_heads(a->head_dim, a->group) * a->group;
}

/* Numbers of a row of queries; no row of new keys or values is longer. */
static uint32_t query_width(const struct aq_rates_attention *a)
{
    return query_heads(a) * a->head_dim;
}

static struct aq_attn_seq sequence(const struct aq_rates_attention *a, uint32_t block, uint32_t row,
                                   const uint32_t *len)
{
    return (struct aq_attn_seq){
        .block = a->block + block,
        .head_offset = aq_kv_block_bytes(a->format, a->head_dim),
        .len = len,
        .row = row,
        .rows = 1,
    };
}

void aq_rates_attention_use(struct aq_rates_attention *a, const struct aq_rates_use *use)
{
    size_t page = page_bytes(use->format, use->head_dim, use->group);
    a->format = use->format;
    a->head_dim = use->head_dim;
    a->group = use->group;
    a->count = sequences(a->kv_bytes, use->format, use->head_dim, use->group);
    for (uint32_t i = 0; i < a->count * BLOCKS; i++)
        a->block[i] = a->kv + i * page;
    for (uint32_t i = 0; i < a->count; i++)
        a->seq[i] = sequence(a, i * BLOCKS, i, &a->len);
    for (uint32_t i = 0; i < PARTS * a->count; i++)
        a->part[i] = sequence(a, i * (BLOCKS / PARTS), i, &a->short_len);
}

const struct aq_rates_use aq_rates_uses[AQ_RATES_USES] = {
    {AQ_F16, AQ_HW_HEAD_WIDE, 1, "d128_"},    {AQ_Q8, AQ_HW_HEAD, 1, "int8_"},
    {AQ_Q4, AQ_HW_HEAD, 1, "int4_"},          {AQ_F16, AQ_HW_HEAD, 4, "g4_"},
    {AQ_F16, AQ_HW_HEAD, 8, "g8_"},           {AQ_F16, AQ_HW_HEAD_WIDE, 4, "d128_g4_"},
    {AQ_F16, AQ_HW_HEAD_WIDE, 8, "d128_g8_"}, {AQ_F16, AQ_HW_HEAD, 1, ""},
};

/* The most sequences of any of them, and bytes of rows. */
static void size_of_uses(uint32_t *ret_sequences, size_t *ret_row_bytes, uint64_t kv_bytes)
{
    *ret_sequences = 0;
    *ret_row_bytes = 0;
    for (uint32_t i = 0; i < AQ_RATES_USES; i++) {
        const struct aq_rates_use *u = &aq_rates_uses[i];
        uint32_t count = sequences(kv_bytes, u->format, u->head_dim, u->group);
        uint64_t rows = aq_max_u64(PARTS * (uint64_t)count, AQ_RATES_CONTEXT);
        uint64_t heads = aq_rates_attention_heads(u->head_dim, u->group) * u->group;
        *ret_sequences = (uint32_t)aq_max_u64(*ret_sequences, count);
        *ret_row_bytes = aq_max_u64(*ret_row_bytes, rows * heads * u->head_dim * sizeof(float));
    }
}

int aq_rates_attention_open(struct aq_rates_attention **ret, struct aq_rates_rig *r,
                            enum aq_dtype compute, size_t kv_bytes, struct aq_err *reterr)
{
    struct aq_rates_attention *a = calloc(1, sizeof(*a));
    uint64_t bytes = aq_max_u64(kv_bytes, sequence_bytes(AQ_F16, AQ_HW_HEAD, 1));
    uint32_t most;
    size_t row_bytes;
    size_of_uses(&most, &row_bytes, bytes);
    if (a) {
        a->seq = calloc(most, sizeof(*a->seq));
        a->part = calloc((size_t)PARTS * most, sizeof(*a->part));
        a->block = calloc((size_t)most * BLOCKS, sizeof(*a->block));
    }
    int rc = a && a->seq && a->part && a->block ? 0 : aq_error_memory(reterr, "rates");
    rc = rc < 0 ? rc : aq_rates_take(&a->kv, r, bytes, AQ_RATES_FILL_WEIGHTS, reterr);
    rc = rc < 0 ? rc : aq_rates_take(&a->q, r, row_bytes, AQ_RATES_FILL_ROWS, reterr);
    rc = rc < 0 ? rc : aq_rates_take(&a->out, r, row_bytes, 0, reterr);
    if (rc < 0) {
        aq_rates_attention_close(a);
        return rc;
    }
    a->rig = r;
    a->compute = compute;
    a->kv_bytes = bytes;
    a->len = AQ_RATES_CONTEXT;
    a->short_len = SHORT;
    aq_rates_attention_use(a, &aq_rates_uses[AQ_RATES_USES - 1]);
    *ret = a;
    return 0;
}

void aq_rates_attention_close(struct aq_rates_attention *a)
{
    if (!a)
        return;
    free(a->seq);
    free(a->part);
    free(a->block);
    free(a);
}

static struct aq_attn attention(const struct aq_rates_attention *a, const struct aq_attn_seq *seqs,
                                uint32_t count)
{
    return (struct aq_attn){
        .seqs = seqs,
        .seq_count = count,
        .q = a->q,
        .q_stride = query_width(a),
        .out = a->out,
        .out_dtype = AQ_F32,
        .out_stride = query_width(a),
        .kv_dtype = a->format,
        .kv_heads = aq_rates_attention_heads(a->head_dim, a->group),
        .q_per_kv = a->group,
        .head_dim = a->head_dim,
        .scale = 1 / sqrtf((float)a->head_dim),
        .k_new = a->q,
        .v_new = a->q,
        .new_stride = query_width(a),
    };
}

double aq_rates_decode(struct aq_rates_attention *a)
{
    struct aq_attn attn = attention(a, a->seq, a->count);
    a->rig->kernels->attn_decode(a->rig->exec, &attn);
    return (double)a->count * (double)sequence_bytes(a->format, a->head_dim, a->group);
}

/* Seconds that new keys and values, and the attention of their rows, take for a row and head. */
static double row_head_s(struct aq_rates_attention *a, const struct aq_attn_seq *seqs,
                         uint32_t count, bool prefill)
{
    struct aq_attn attn = attention(a, seqs, count);
    struct aq_rates_rig *r = a->rig;
    double start = aq_clock_s(), rows = count * (double)seqs->rows;
    if (prefill)
        attn.out_dtype = a->compute;
    r->kernels->kv_append(r->exec, &attn);
    (prefill ? r->kernels->attn_prefill : r->kernels->attn_decode)(r->exec, &attn);
    return (aq_clock_s() - start) / (rows * query_heads(a));
}

/* Two times of so many keys each as a line: seconds a key, and of none.  What all keys cost is
 * hardly ever in the first few: where the line says so, something held them up. */
static void line(double *ret_key_s, double *ret_none_s, double few, double few_s, double many,
                 double many_s)
{
    double slope = (many_s - few_s) / (many - few);
    bool sane = slope > 0.25 * many_s / many;
    *ret_key_s = sane ? slope : many_s / many;
    *ret_none_s = sane ? fmax(0, few_s - slope * few) : 0;
}

void aq_rates_attend(struct aq_rates_attended *ret, struct aq_rates_attention *a)
{
    struct aq_attn_seq prompt[PARTS], whole = a->seq[0];
    double sample[4][ROUNDS_MAX], begin = aq_clock_s(), key_s, none_s, spread = 0;
    /* Of a query head's part in them. */
    double key_bytes = (double)sequence_bytes(a->format, a->head_dim, a->group) / AQ_RATES_CONTEXT /
                       query_heads(a);
    uint32_t rounds = 0;
    whole.rows = AQ_RATES_CONTEXT;
    for (uint32_t i = 0; i < PARTS; i++) {
        prompt[i] = a->part[i];
        prompt[i].row = i * SHORT;
        prompt[i].rows = SHORT;
    }
    row_head_s(a, a->seq, a->count, false); /* warms up */
    while (rounds < ROUNDS_MAX &&
           ((rounds < ROUNDS_MIN && aq_clock_s() - begin < AQ_RATES_SLOW_S) || rounds == 0 ||
            aq_clock_s() - begin < aq_rates_until_s(2 * a->rig->long_s, spread))) {
        double few_s = row_head_s(a, a->part, PARTS * a->count, false);
        line(&key_s, &none_s, SHORT, few_s, AQ_RATES_CONTEXT,
             row_head_s(a, a->seq, a->count, false));
        sample[0][rounds] = key_bytes / key_s;
        sample[1][rounds] = none_s;
        few_s = row_head_s(a, prompt, PARTS, true);
        line(&key_s, &none_s, 0.5 * (SHORT + 1), few_s, 0.5 * (AQ_RATES_CONTEXT + 1),
             row_head_s(a, &whole, 1, true));
        sample[2][rounds] = 4.0 * a->head_dim / key_s;
        sample[3][rounds++] = none_s;
        ret->decode_bytes = aq_sample_of(sample[0], rounds);
        ret->prefill_flops = aq_sample_of(sample[2], rounds);
        spread = fmax(ret->decode_bytes.spread, ret->prefill_flops.spread);
    }
    ret->decode_head_s = aq_sample_of(sample[1], rounds);
    ret->prefill_head_s = aq_sample_of(sample[3], rounds);
}

struct aq_sample aq_rates_decode_alone(struct aq_rates_attention *a)
{
    struct aq_attn attn = attention(a, a->seq, a->count);
    struct aq_rates_rig *r = a->rig;
    double share[ROUNDS_MAX], begin = aq_clock_s();
    struct aq_sample found = {0};
    uint32_t rounds = 0;
    while (rounds < ROUNDS_MAX &&
           ((rounds < ROUNDS_MIN && aq_clock_s() - begin < AQ_RATES_SLOW_S) || rounds == 0 ||
            aq_clock_s() - begin < aq_rates_until_s(r->long_s, found.spread))) {
        double start = aq_clock_s();
        r->kernels->attn_decode(r->exec, &attn);
        double between = aq_clock_s();
        r->kernels->attn_decode(r->alone, &attn);
        share[rounds++] = fmin((between - start) / (aq_clock_s() - between), 1);
        found = aq_sample_of(share, rounds);
    }
    return found;
}

struct aq_sample aq_rates_f32_share(struct aq_rates_attention *a)
{
    struct aq_attn_seq prompt = a->seq[0];
    double share[ROUNDS_MAX], begin = aq_clock_s();
    struct aq_sample found = {0};
    uint32_t rounds = 0;
    prompt.rows = AQ_RATES_CONTEXT;
    while (rounds < ROUNDS_MAX &&
           ((rounds < ROUNDS_MIN && aq_clock_s() - begin < AQ_RATES_SLOW_S) || rounds == 0 ||
            aq_clock_s() - begin < aq_rates_until_s(a->rig->long_s, found.spread))) {
        enum aq_dtype compute = a->compute;
        double usual_s = row_head_s(a, &prompt, 1, true);
        a->compute = AQ_F32;
        share[rounds++] = usual_s / row_head_s(a, &prompt, 1, true);
        a->compute = compute;
        found = aq_sample_of(share, rounds);
    }
    return found;
}
