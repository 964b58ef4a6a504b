/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/rates_parts.h"

#include <stdlib.h>

enum { HEADS = 32, HEAD_DIM = 64, BLOCKS = AQ_RATES_CONTEXT / AQ_HEAD_BLOCK_SLOTS };

struct aq_rates_attention {
    struct aq_rates_rig *rig;
    uint32_t count; /* sequences */
    struct aq_attn_seq *seq;
    uint8_t **block;
    uint32_t len;
    float *q, *out; /* [count] or [AQ_RATES_CONTEXT] rows, whichever is more */
};

static size_t sequence_bytes(void)
{
    return (size_t)BLOCKS * HEADS * aq_kv_block_bytes(AQ_F16, HEAD_DIM);
}

int aq_rates_attention_open(struct aq_rates_attention **ret, struct aq_rates_rig *r,
                            size_t kv_bytes, struct aq_err *reterr)
{
    struct aq_rates_attention *a = calloc(1, sizeof(*a));
    size_t each = sequence_bytes(), page = HEADS * aq_kv_block_bytes(AQ_F16, HEAD_DIM);
    uint32_t count = (uint32_t)aq_max_u64(1, kv_bytes / each);
    size_t row_bytes = aq_max_u64(count, AQ_RATES_CONTEXT) * HEADS * HEAD_DIM * sizeof(float);
    uint8_t *kv = NULL;
    if (a) {
        a->seq = calloc(count, sizeof(*a->seq));
        a->block = calloc((size_t)count * BLOCKS, sizeof(*a->block));
    }
    int rc = a && a->seq && a->block ? 0 : aq_error(reterr, -ENOMEM, "rates: out of memory");
    rc = rc < 0 ? rc : aq_rates_take(&kv, r, each * count, AQ_RATES_FILL_WEIGHTS, reterr);
    rc = rc < 0 ? rc : aq_rates_take(&a->q, r, row_bytes, AQ_RATES_FILL_ROWS, reterr);
    rc = rc < 0 ? rc : aq_rates_take(&a->out, r, row_bytes, 0, reterr);
    if (rc < 0) {
        aq_rates_attention_close(a);
        return rc;
    }
    a->rig = r;
    a->count = count;
    a->len = AQ_RATES_CONTEXT;
    for (uint32_t i = 0; i < count * BLOCKS; i++)
        a->block[i] = kv + i * page;
    for (uint32_t i = 0; i < count; i++)
        a->seq[i] = (struct aq_attn_seq){
            .block = a->block + (size_t)i * BLOCKS,
            .head_offset = aq_kv_block_bytes(AQ_F16, HEAD_DIM),
            .len = &a->len,
            .row = i,
            .rows = 1,
        };
    *ret = a;
    return 0;
}

void aq_rates_attention_close(struct aq_rates_attention *a)
{
    if (!a)
        return;
    free(a->seq);
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
        .q_stride = HEADS * HEAD_DIM,
        .out = a->out,
        .out_dtype = AQ_F32,
        .out_stride = HEADS * HEAD_DIM,
        .kv_dtype = AQ_F16,
        .kv_heads = HEADS,
        .q_per_kv = 1,
        .head_dim = HEAD_DIM,
        .scale = 0.125f,
    };
}

double aq_rates_decode(struct aq_rates_attention *a)
{
    struct aq_attn attn = attention(a, a->seq, a->count);
    a->rig->kernels->attn_decode(a->rig->exec, &attn);
    return (double)a->count * (double)sequence_bytes();
}

static void run_decode(void *arg)
{
    aq_rates_decode(arg);
}

struct aq_sample aq_rates_decode_bytes(struct aq_rates_attention *a)
{
    return aq_rates_repeat(a->rig, run_decode, a, (double)a->count * (double)sequence_bytes());
}

static void run_prefill(void *arg)
{
    struct aq_rates_attention *a = arg;
    struct aq_attn_seq seq = a->seq[0];
    seq.rows = AQ_RATES_CONTEXT;
    struct aq_attn attn = attention(a, &seq, 1);
    a->rig->kernels->attn_prefill(a->rig->exec, &attn);
}

struct aq_sample aq_rates_prefill_flops(struct aq_rates_attention *a)
{
    double pairs = 0.5 * AQ_RATES_CONTEXT * (AQ_RATES_CONTEXT + 1);
    return aq_rates_repeat(a->rig, run_prefill, a, 4 * pairs * HEADS * HEAD_DIM);
}
