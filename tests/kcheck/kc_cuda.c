/* SPDX-License-Identifier: Apache-2.0
 * kcheck_cuda and kcheck_gpu: the CUDA kernels in a table of their own, with the checks of the
 * CPU's tables as far as they hold for a device, and with those of kc_cuda.h.  What a device would
 * be told of how far arrays reach is read from the arrays. */
#include "tests/kcheck/kc_cuda.h"

#include "kernels/cpu/attn.h"
#include "tests/kcheck/kc_internal.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { STACK_BYTES = 1 << 20 }; /* that checks may use */

/* The program's static variables lie between these symbols of the linker's. */
extern char __data_start[], _end[];

void kc_cuda_own(void (*reach)(void *base, size_t bytes))
{
    volatile char below[STACK_BYTES]; /* from here down as far as checks will go */
    pthread_attr_t attr;
    void *lowest;
    size_t bytes;
    memset((char *)below, 0, sizeof(below)); /* so that it is there */
    if (pthread_getattr_np(pthread_self(), &attr) ||
        pthread_attr_getstack(&attr, &lowest, &bytes)) {
        fprintf(stderr, "kcheck: where is the stack?\n");
        exit(1);
    }
    pthread_attr_destroy(&attr);
    reach((void *)below, (size_t)((char *)lowest + bytes - below));
    reach(__data_start, (size_t)(_end - __data_start));
}

/* Each kernel of the table, as it is launched. */
#define WRAPPER(name, params)                                                                      \
    static void run_##name(struct aq_exec *ex, const struct params *p)                             \
    {                                                                                              \
        kc_cuda_done(kc_cuda_kernels()->name(kc_cuda(), p));                                       \
    }
AQ_KERNELS(WRAPPER)
#undef WRAPPER

const struct aq_attn *kc_cuda_reached(struct aq_attn *a)
{
    a->reach = (struct aq_attn_reach){0};
    for (uint32_t i = 0; i < a->seq_count; i++) {
        uint32_t slots = i ? a->seqs[i].shared * AQ_HEAD_BLOCK_SLOTS : 0;
        a->reach.shared = (uint32_t)aq_max_u64(a->reach.shared, slots / AQ_CUDA_DECODE_SPLIT);
        a->reach.joint = a->reach.shared > 0;
        a->reach.rows = (uint32_t)aq_max_u64(a->reach.rows, a->seqs[i].rows);
        for (uint32_t h = 0; h < a->kv_heads; h++)
            a->reach.len = (uint32_t)aq_max_u64(a->reach.len, aq_attn_len(&a->seqs[i], h));
    }
    return a;
}

/* With room for what it could want, or with none: the bits are the same. */
static void attn_decode(struct aq_exec *ex, const struct aq_attn *a)
{
    struct aq_attn reached = *a;
    struct aq_cuda_exec with = *kc_cuda();
    with.workspace_bytes = kc_cuda_kernels()->attn_decode_workspace(kc_cuda_reached(&reached));
    with.workspace = kc_cuda_take(with.workspace_bytes);
    /* Sometimes a device so small that no splitting is worth its while. */
    static uint32_t turn;
    with.multiprocessors = turn++ % 2 ? 100 : 0;
    kc_cuda_done(kc_cuda_kernels()->attn_decode(&with, &reached));
    kc_cuda_give(with.workspace);
}

/* What tensor cores compute has a check of its own, with wider limits (check_cuda_tiles.c). */
static void attn_prefill(struct aq_exec *ex, const struct aq_attn *a)
{
    struct aq_attn reached = *a;
    kc_cuda_done(kc_cuda_kernels()->attn_prefill_plain(kc_cuda(), kc_cuda_reached(&reached)));
    if (a->pairs.rows)
        run_attn_stats(ex, &reached);
}

static void attn_stats(struct aq_exec *ex, const struct aq_attn *a)
{
    struct aq_attn reached = *a;
    run_attn_stats(ex, kc_cuda_reached(&reached));
}

static void kv_append(struct aq_exec *ex, const struct aq_attn *a)
{
    struct aq_attn reached = *a;
    run_kv_append(ex, kc_cuda_reached(&reached));
}

uint32_t kc_make_tables(struct aq_kernels *tables, struct kc_traits *traits,
                        struct kc_options *options)
{
    options->table_first = 1; /* the reference has been through in kcheck */
    aq_kernels_cpu(&tables[0], 0);
    tables[1] = (struct aq_kernels){
#define MEMBER(name, params) .name = run_##name,
        AQ_KERNELS(MEMBER)
#undef MEMBER
    };
    tables[1].attn_decode = attn_decode;
    tables[1].attn_prefill = attn_prefill;
    tables[1].attn_stats = attn_stats;
    tables[1].kv_append = kv_append;
    traits[0] = (struct kc_traits){.name = "ref"};
    traits[1] = (struct kc_traits){.name = kc_cuda_prepare(options), .rows_only = true};
    return 2;
}
