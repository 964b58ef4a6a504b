/* SPDX-License-Identifier: Apache-2.0
 * kcheck_cuda: the CUDA kernels, compiled against tests/cuda_emu, in a table of their own, with the
 * checks of the CPU's tables as far as they hold for a device, and with those of kc_cuda.h.  What a
 * device would be told of how far arrays reach is read from the arrays. */
#include "tests/kcheck/kc_cuda.h"

#include "kernels/cpu/attn.h"
#include "tests/kcheck/kc_internal.h"

#include <assert.h>
#include <stdlib.h>

extern const struct kc_check kc_check_cuda_rows;
extern const struct kc_check kc_check_embed;
extern const struct kc_check kc_check_logits;
extern const struct kc_check kc_check_norm;

const struct kc_check *const kc_checks[] = {
    &kc_check_norm, &kc_check_embed, &kc_check_logits, &kc_check_cuda_rows, NULL,
};

/* For tests/cuda_emu: in what order threads run. */
void aq_emu_seed(uint64_t seed);

static const struct aq_cuda_exec device = {.sm = 90, .multiprocessors = 2};

const struct aq_cuda_exec *kc_cuda(void)
{
    return &device;
}

void kc_cuda_done(int rc)
{
    assert(rc == 0);
}

static void norm(struct aq_exec *ex, const struct aq_norm *n)
{
    kc_cuda_done(aq_cuda_norm(kc_cuda(), n));
}

static void embed(struct aq_exec *ex, const struct aq_embed *e)
{
    kc_cuda_done(aq_cuda_embed(kc_cuda(), e));
}

static void add_rows(struct aq_exec *ex, float *y, size_t y_stride, const void *table,
                     enum aq_dtype table_dtype, const uint32_t *index, uint32_t rows, uint32_t k)
{
    kc_cuda_done(aq_cuda_add_rows(kc_cuda(), y, y_stride, table, table_dtype, index, rows, k));
}

static void logits_stat(struct aq_exec *ex, struct aq_logits_stat *stat, const float *logits,
                        size_t stride, uint32_t rows, uint32_t vocab)
{
    kc_cuda_done(aq_cuda_logits_stat(kc_cuda(), stat, logits, stride, rows, vocab));
}

uint32_t kc_make_tables(struct aq_kernels *tables, struct kc_traits *traits,
                        struct kc_options *options)
{
    aq_emu_seed(options->seed | 1);
    options->table_first = 1; /* the reference has been through in kcheck */
    aq_kernels_cpu(&tables[0], 0);
    tables[1] = (struct aq_kernels){
        .norm = norm,
        .embed = embed,
        .add_rows = add_rows,
        .logits_stat = logits_stat,
    };
    traits[0] = (struct kc_traits){.name = "ref"};
    traits[1] = (struct kc_traits){.name = "cuda-emu", .rows_only = true};
    return 2;
}
