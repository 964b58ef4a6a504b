/* SPDX-License-Identifier: Apache-2.0
 * Decode attention on a device: whether one block of threads sees to all splits of a head or each
 * split has its own, every bit is the same; a call that cannot do without workspace is refused. */
#include "kernels/cpu/attn.h"
#include "tests/kcheck/kc_attn.h"
#include "tests/kcheck/kc_cuda.h"

#include <string.h>

static const enum aq_dtype kv_dtypes[] = {AQ_F32, AQ_F16, AQ_BF16, AQ_Q8, AQ_Q4};

enum { LEN_MAX = 800, STRIDE = 800 };

/* What is remembered, of every sequence the same room. */
struct notes {
    float *score;
    uint32_t *position, *victim;
};

static struct notes make_notes(struct kc *kc, uint32_t seqs, uint32_t heads)
{
    size_t slots = (size_t)seqs * heads * STRIDE;
    return (struct notes){kc_bytes(kc, slots * sizeof(float)), kc_bytes(kc, slots * 4),
                          kc_bytes(kc, (size_t)seqs * heads * 4)};
}

static void attach(struct kc_attn *t, const struct notes *n)
{
    for (uint32_t i = 0; i < t->a.seq_count; i++) {
        size_t head = (size_t)i * t->a.kv_heads;
        t->seq[i].slots = (struct aq_attn_slots){
            n->score + head * STRIDE, n->position + head * STRIDE, n->victim + head, STRIDE};
        t->seq[i].position = 700;
        t->seq[i].recent = 5;
        for (uint32_t j = 0; j < t->a.kv_heads * STRIDE; j++)
            t->seq[i].slots.position[j] = j % STRIDE;
    }
}

/* Into one half of the outputs, on a device of so many multiprocessors. */
static void run(struct kc_attn *t, const struct kc_out *y, const struct kc_out *log_sum,
                const struct notes *n, bool into_ref, void *workspace, uint32_t multiprocessors)
{
    struct aq_cuda_exec ex = *kc_cuda();
    ex.workspace_bytes = kc_cuda_kernels()->attn_decode_workspace(kc_cuda_reached(&t->a));
    ex.workspace = workspace;
    ex.multiprocessors = multiprocessors;
    attach(t, n);
    t->a.out = into_ref ? y->ref : y->got;
    t->a.out_stride = y->stride;
    t->a.log_sum_exp = into_ref ? log_sum->ref : log_sum->got;
    kc_cuda_done(kc_cuda_kernels()->attn_decode(&ex, &t->a));
}

static void check_ways(struct kc *kc, const struct kc_attn_shape *shape, bool keeps)
{
    struct kc_attn t;
    kc_attn_make(kc, &t, shape);
    if (kc_below(kc, 2)) {
        kc_attn_set_window(&t, kc_below(kc, KC_ATTN_WINDOWS));
        kc_attn_spoil(&t);
    }
    if (keeps)
        t.a.rule = (struct aq_attn_rule){
            .victim = AQ_ATTN_BY_SCORE, .stat = AQ_ATTN_PROB, .decay = 0.9f, .sinks = 2};
    uint32_t heads = shape->kv_heads * shape->q_per_kv;
    struct kc_out y = kc_out(kc, AQ_F32, t.rows, t.columns, t.columns);
    struct kc_out log_sum = kc_out(kc, AQ_F32, t.rows, heads, heads);
    struct notes one = make_notes(kc, shape->seqs, shape->kv_heads);
    struct notes two = make_notes(kc, shape->seqs, shape->kv_heads);
    size_t bytes = kc_cuda_kernels()->attn_decode_workspace(kc_cuda_reached(&t.a));
    void *workspace = kc_bytes(kc, bytes / 64 * 64 + 64);
    run(&t, &y, &log_sum, &one, true, workspace, 0);
    run(&t, &y, &log_sum, &two, false, workspace, 1000);
    kc_same(kc, &y);
    kc_same(kc, &log_sum);
    size_t victims = (size_t)shape->seqs * shape->kv_heads;
    kc_expect(kc, memcmp(one.score, two.score, victims * STRIDE * 4) == 0, "scores differ");
    kc_expect(kc, memcmp(one.victim, two.victim, victims * 4) == 0, "victims differ");
}

static void check_refusal(struct kc *kc)
{
    struct kc_attn_shape shape = {.seqs = 1,
                                  .kv_heads = 1,
                                  .q_per_kv = 7,
                                  .head_dim = 64,
                                  .kv_dtype = AQ_F16,
                                  .rows_max = 1,
                                  .len_max = 300,
                                  .holds_rows = true};
    struct kc_attn t;
    kc_attn_make(kc, &t, &shape);
    t.a.rule = (struct aq_attn_rule){.victim = AQ_ATTN_BY_SCORE, .stat = AQ_ATTN_PROB, .decay = 1};
    int rc = kc_cuda_kernels()->attn_decode(kc_cuda(), kc_cuda_reached(&t.a));
    kc_expect(kc, rc == -ENOSPC, "without workspace: %d", rc);
}

static void check(struct kc *kc)
{
    for (size_t d = 0; d < AQ_ARRAY_LEN(kv_dtypes); d++) {
        for (uint32_t keeps = 0; keeps < 2; keeps++) {
            static const uint32_t dims[] = {64, 80, 96, 128, 40, 250};
            for (size_t i = 0; i < AQ_ARRAY_LEN(dims); i++) {
                if (!kc_begin(kc, KC_CUDA_SLOT, "decode_ways_%s_d%u_%u",
                              aq_dtype_name(kv_dtypes[d]), dims[i], keeps))
                    continue;
                struct kc_attn_shape shape = {.seqs = 2,
                                              .kv_heads = 1 + kc_below(kc, 2),
                                              .q_per_kv = 1 + kc_below(kc, keeps ? 4 : 16),
                                              .head_dim = dims[i],
                                              .kv_dtype = kv_dtypes[d],
                                              .out_dtype = AQ_F32,
                                              .rows_max = 1,
                                              .len_max = LEN_MAX,
                                              .ragged = kc_below(kc, 2),
                                              .holds_rows = true};
                check_ways(kc, &shape, keeps);
            }
        }
    }
    if (kc_begin(kc, KC_CUDA_SLOT, "decode_without_workspace"))
        check_refusal(kc);
}

const struct kc_check kc_check_cuda_attn = {.name = "cuda-attn", .check = check};
