/* SPDX-License-Identifier: Apache-2.0
 * Decode attention of sequences that share leading blocks: the bits of each of them alone, and
 * that shared blocks are read through one of those that have them. */
#include "kernels/cpu/attn.h"
#include "tests/kcheck/kc_attn.h"
#include "tests/kcheck/kc_internal.h"

#include <string.h>

static const enum aq_dtype kv_dtypes[] = {AQ_F32, AQ_F16,   AQ_BF16, AQ_Q8,
                                          AQ_Q4,  AQ_KIVI4, AQ_KIVI2};

static const struct size {
    uint32_t kv_heads, q_per_kv, head_dim;
} sizes[] = {
    {4, 1, 64}, {3, 2, 128}, {2, 3, 40}, {2, 4, 64}, {1, 5, 80},
    {2, 6, 12}, {1, 7, 24},  {2, 8, 96}, {8, 1, 1},  {1, 33, 16},
};

/* How groups are drawn: any depth for each pair of neighbours, one block or none, all whole
 * blocks of a few neighbours, or all of everybody. */
static const char *const kinds[] = {"any", "one", "some", "all"};
enum { ANY, ONE, SOME, ALL };

/* A device takes fixed splits of so many blocks together, a CPU each block. */
static uint32_t step_blocks(const struct kc *kc)
{
    return kc_rows_only(kc) ? 8 : 1;
}

static size_t dtype_count(const struct kc *kc)
{
    return AQ_ARRAY_LEN(kv_dtypes) - (kc_new(kc)->kv_encode ? 0 : 2);
}

/* Blocks that sequence i may share with the one before it. */
static uint32_t whole_blocks(const struct kc_attn *t, uint32_t i)
{
    const struct aq_attn_seq *s = &t->seq[i], *before = s - 1;
    uint32_t whole = (uint32_t)aq_min_u64(*s->len, *before->len) / AQ_HEAD_BLOCK_SLOTS;
    if (aq_dtype_is_kivi(t->a.kv_dtype))
        whole = (uint32_t)aq_min_u64(whole, aq_min_u64(s->coded, before->coded));
    return whole;
}

static void share(struct kc *kc, struct kc_attn *t, uint32_t kind, uint32_t *ret)
{
    ret[0] = kc_below(kc, 3); /* says nothing */
    for (uint32_t i = 1; i < t->a.seq_count; i++) {
        uint32_t most = whole_blocks(t, i);
        ret[i] = most;
        if (kind == ANY)
            ret[i] = kc_below(kc, most + 1);
        else if (kind == ONE)
            ret[i] = most ? kc_below(kc, 2) : 0;
        else if (kind == SOME && i % 5 == 0)
            ret[i] = 0;
        memcpy((void *)t->seq[i].block, t->seq[i - 1].block, ret[i] * sizeof(*t->seq[i].block));
    }
}

struct outputs {
    struct kc_out y, log_sum;
};

static void run(struct kc *kc, const struct kc_attn *t, const struct outputs *o, bool into_ref,
                uint32_t threads)
{
    struct aq_attn a = t->a;
    a.out = into_ref ? o->y.ref : o->y.got;
    a.out_stride = o->y.stride;
    a.log_sum_exp = into_ref ? o->log_sum.ref : o->log_sum.got;
    kc_new(kc)->attn_decode(kc_exec(kc, threads), &a);
}

static struct outputs make_outputs(struct kc *kc, const struct kc_attn *t)
{
    uint32_t heads = t->a.kv_heads * t->a.q_per_kv;
    return (struct outputs){
        .y = kc_out(kc, t->a.out_dtype, t->rows, t->columns, t->columns + kc_below(kc, 4)),
        .log_sum = kc_out(kc, AQ_F32, t->rows, heads, heads),
    };
}

static void expect_alike(struct kc *kc, struct kc_attn *t, const uint32_t *shared)
{
    for (uint32_t threads = 1; threads <= 3; threads += 2) {
        struct outputs o = make_outputs(kc, t);
        for (uint32_t i = 0; i < t->a.seq_count; i++)
            t->seq[i].shared = 0;
        run(kc, t, &o, true, 1);
        for (uint32_t i = 0; i < t->a.seq_count; i++)
            t->seq[i].shared = shared[i];
        run(kc, t, &o, false, threads);
        if (!kc_same(kc, &o.y) || !kc_same(kc, &o.log_sum))
            kc_expect(kc, false, "%u threads", threads);
    }
}

static void check_shared(struct kc *kc, const struct kc_attn_shape *shape, uint32_t kind)
{
    uint32_t shared[KC_ATTN_SEQS_MAX];
    struct kc_attn t;
    kc_attn_make(kc, &t, shape);
    share(kc, &t, kind, shared);
    expect_alike(kc, &t, shared);
    t.a.window = 1 + kc_below(kc, shape->len_max); /* attended singly */
    expect_alike(kc, &t, shared);
}

/* Where the others of a group name a block of NaN in place of all blocks that they share, but for
 * the last one, or those behind the last whole split, nothing changes: blocks are read as the first
 * one names them. */
static void check_read_once(struct kc *kc, const struct kc_attn_shape *shape)
{
    struct kc_attn t;
    uint32_t step = step_blocks(kc), len = 200 * (step > 1 ? 3 : 1);
    uint32_t shared = len / AQ_HEAD_BLOCK_SLOTS, once = (shared - 1) / step * step;
    do {
        kc_release_buffers(kc); /* of draws that were too short: a case has few */
        kc_attn_make(kc, &t, shape);
    } while (*t.seq[0].len < len || *t.seq[1].len < len || *t.seq[2].len < len);
    for (uint32_t i = 0; i < shape->seqs; i++)
        t.seq[i].len = &len;
    struct outputs o = make_outputs(kc, &t);
    size_t bytes = shape->kv_heads * aq_kv_block_bytes(AQ_F32, shape->head_dim);
    uint8_t *spoiled = kc_bytes(kc, bytes);
    memset(spoiled, 0xff, bytes);
    for (uint32_t i = 1; i < shape->seqs; i++)
        memcpy((void *)t.seq[i].block, t.seq[0].block, shared * sizeof(*t.seq[i].block));
    run(kc, &t, &o, true, 1);
    for (uint32_t i = 1; i < shape->seqs; i++) {
        uint8_t **block = (uint8_t **)(uintptr_t)t.seq[i].block;
        t.seq[i].shared = shared;
        for (uint32_t b = 0; b < once; b++)
            block[b] = spoiled;
    }
    run(kc, &t, &o, false, 1);
    kc_same(kc, &o.y);
    kc_same(kc, &o.log_sum);
}

static void check(struct kc *kc)
{
    size_t count = dtype_count(kc) * AQ_ARRAY_LEN(kinds);
    bool device = kc_rows_only(kc);
    uint32_t many = device ? 9 : 32;
    for (size_t n = 0; n < AQ_ARRAY_LEN(sizes) * count; n++) {
        const struct size *size = &sizes[n / count];
        uint32_t kind = n % AQ_ARRAY_LEN(kinds), longest = kind == ALL ? 300 : 150;
        struct kc_attn_shape shape = {.seqs = kc_new(kc) == kc_ref(kc) ? 3 : many,
                                      .kv_heads = size->kv_heads,
                                      .q_per_kv = size->q_per_kv,
                                      .head_dim = size->head_dim,
                                      .kv_dtype = kv_dtypes[n % count / AQ_ARRAY_LEN(kinds)],
                                      .out_dtype = n % 3 ? AQ_F32 : AQ_BF16,
                                      .rows_max = 1,
                                      .len_max = device ? 900 : longest,
                                      .holds_rows = true};
        if (kc_begin(kc, KC_SLOT(attn_decode), "attn_joint_%s_%s_h%ux%u_d%u", kinds[kind],
                     aq_dtype_name(shape.kv_dtype), size->kv_heads, size->q_per_kv, size->head_dim))
            check_shared(kc, &shape, kind);
    }
    for (uint32_t i = 0; i < AQ_ARRAY_LEN(kv_dtypes) - 2 && kc_new(kc) != kc_ref(kc); i++) {
        uint32_t few = i && i % 2 == 0 ? 4 : 1; /* of a device, which takes 4 queries or 16 */
        struct kc_attn_shape shape = {.seqs = 3,
                                      .kv_heads = 4,
                                      .q_per_kv = device ? few : 1 + i,
                                      .head_dim = 64,
                                      .kv_dtype = kv_dtypes[i],
                                      .out_dtype = device && few > 1 ? AQ_BF16 : AQ_F32,
                                      .rows_max = 1,
                                      .len_max = device ? 1000 : 500,
                                      .holds_rows = true};
        if (kc_begin(kc, KC_SLOT(attn_decode), "attn_joint_read_once_%s",
                     aq_dtype_name(kv_dtypes[i])))
            check_read_once(kc, &shape);
    }
}

/* ---- benchmark ---- */

enum { SEQS = 32, SHARED = 2048, OWN = 32, BLOCKS = (SHARED + OWN) / AQ_HEAD_BLOCK_SLOTS };

static const struct shape {
    struct size size;
    enum aq_dtype dtype;
} shapes[] = {
    {{32, 1, 64}, AQ_F16},  {{16, 1, 64}, AQ_F32}, {{32, 1, 128}, AQ_F16}, {{8, 4, 64}, AQ_F16},
    {{8, 4, 128}, AQ_BF16}, {{32, 1, 64}, AQ_Q8},  {{32, 1, 64}, AQ_Q4},
};

struct bench {
    struct kc *kc;
    struct aq_attn a;
    struct aq_attn_seq seq[SEQS];
    uint8_t *block[SEQS * BLOCKS];
    const uint8_t *cold;
    size_t page_bytes;
    uint64_t cold_pages;
    uint32_t len;
};

static void attend(struct bench *b, uint64_t turn, uint32_t shared)
{
    uint64_t page = turn * SEQS * BLOCKS;
    for (uint32_t n = 0; n < SEQS * BLOCKS; n++) {
        bool first = n / BLOCKS && n % BLOCKS < shared;
        b->block[n] =
            first ? b->block[n % BLOCKS]
                  : (uint8_t *)(uintptr_t)b->cold + (page + n) % b->cold_pages * b->page_bytes;
    }
    for (uint32_t i = 1; i < SEQS; i++)
        b->seq[i].shared = shared;
    kc_new(b->kc)->attn_decode(kc_exec(b->kc, 0), &b->a);
}

static void attend_jointly(void *arg, uint64_t i)
{
    attend(arg, i, SHARED / AQ_HEAD_BLOCK_SLOTS);
}

static void attend_singly(void *arg, uint64_t i)
{
    attend(arg, i, 0);
}

static void bench_one(struct kc *kc, const struct shape *s)
{
    static struct bench b;
    size_t cold_bytes, head_bytes = aq_kv_block_bytes(s->dtype, s->size.head_dim);
    uint32_t columns = s->size.kv_heads * s->size.q_per_kv * s->size.head_dim;
    b = (struct bench){.kc = kc, .len = SHARED + OWN};
    b.cold = kc_cold(kc, &cold_bytes);
    b.page_bytes = head_bytes * s->size.kv_heads;
    b.cold_pages = cold_bytes / b.page_bytes;
    for (uint32_t i = 0; i < SEQS; i++)
        b.seq[i] = (struct aq_attn_seq){.block = b.block + i * BLOCKS,
                                        .head_offset = head_bytes,
                                        .len = &b.len,
                                        .row = i,
                                        .rows = 1};
    b.a = (struct aq_attn){.seqs = b.seq,
                           .seq_count = SEQS,
                           .q = (const float *)(const void *)b.cold,
                           .q_stride = columns,
                           .out = kc_hot(kc, (size_t)SEQS * columns * sizeof(float)),
                           .out_stride = columns,
                           .kv_dtype = s->dtype,
                           .kv_heads = s->size.kv_heads,
                           .q_per_kv = s->size.q_per_kv,
                           .head_dim = s->size.head_dim,
                           .scale = kc_attn_bench_scale(s->dtype)};
    struct kc_bench line = {
        .call = attend_jointly,
        .arg = &b,
        .bytes = (double)(SHARED + SEQS * OWN) / AQ_HEAD_BLOCK_SLOTS * (double)b.page_bytes,
        .flops = 4.0 * SEQS * b.len * columns,
        .bound = KC_BOUND_F32,
        .peer = attend_singly,
        .peer_arg = &b,
    };
    kc_bench(kc, &line);
}

/* "of peer" is how many times faster sequences are together than each with pages of its own. */
static void bench(struct kc *kc)
{
    if (kc_new(kc) == kc_ref(kc))
        return;
    for (size_t i = 0; i < AQ_ARRAY_LEN(shapes); i++) {
        const struct shape *s = &shapes[i];
        if (kc_bench_begin(kc, KC_SLOT(attn_decode), "attn_joint_%s_b%u_h%ux%u_d%u_s%u_and_%u",
                           aq_dtype_name(s->dtype), SEQS, s->size.kv_heads, s->size.q_per_kv,
                           s->size.head_dim, SHARED, OWN))
            bench_one(kc, s);
    }
}

const struct kc_check kc_check_joint = {.name = "joint", .check = check, .bench = bench};
