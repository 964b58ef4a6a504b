/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/gpu_sizes.h"

#include "base/types.h"
#include "policy/registers.h"

/* Sums are computed for whole panels of columns at a time; weights that are unpacked for one
 * product only are unpacked in pieces of about UNPACKED_BYTES. */
#define UNPACKED_BYTES  (32 * AQ_MIB)
#define WORKSPACE_BYTES (32 * AQ_MIB)
/* Device memory of one graph, a generous guess; the engine measures what graphs really take.  A
 * driver takes it from pools of up to 32 MiB, so that there is room for two: some part of what it
 * took for its context, which a device has to have that is large enough for one. */
#define GRAPH_BYTES      (64 * AQ_KIB)
#define GRAPHS_BYTES_MAX (64 * AQ_MIB)
enum { CONTEXT_BY_GRAPHS = 4 };

/* Rows whose sums are kept for all columns.  Of more rows a product that needs sums takes some
 * columns at a time, which keep a GPU as busy. */
enum { SUMS_ROWS = 512 };

/* Most calls that describe one prompt, each with arrays of its own: a prompt that drops keys is
 * copied from another in part, stored, attended, summed, or in two parts, selected from, moved, and
 * its first victim is chosen. */
enum { CALLS_MAX = 8 };

/* An entry of a page table for each page of pinned memory; drivers that use larger pages take less.
 * Of the kernels, which cuBLASLt has hundreds of and launches some dozens, a guess by the context,
 * which is the driver's own code: the engine measures what is taken. */
enum { PAGE_BYTES = 4096, PAGE_ENTRY_BYTES = 8, CONTEXT_BY_KERNELS = 4 };

/* The rows of a micro-batch that choose tokens fit one desk, unless there are many penalties. */
_Static_assert(AQ_GPU_ROW_BYTES <= CALLS_MAX * AQ_GPU_SEQ_BYTES, "a row to a seat");

bool aq_gpu_sizes_is_copied(const struct aq_step_desc *d, uint32_t i, enum aq_dtype compute)
{
    for (uint32_t h = 0; h < AQ_STEP_HALVES; h++) {
        for (uint32_t j = 0; j < d->half[h].count; j++) {
            const struct aq_prim *p = &d->half[h].prim[j];
            bool activation = p->activation == AQ_ACT_RELU || p->activation == AQ_ACT_GELU_TANH;
            if (p->kind == AQ_PRIM_PRODUCT && activation && p->bias == (int32_t)i)
                return aq_register_dtype(p->dst, compute) != AQ_F32;
        }
    }
    return false;
}

uint64_t aq_gpu_sizes_copy(uint32_t count)
{
    return aq_align_up(2ull * count, 64);
}

static uint64_t biases_bytes(const struct aq_model_steps *m, enum aq_dtype compute)
{
    uint64_t bytes = 0;
    for (uint32_t s = 0; s < m->step_count; s++) {
        const struct aq_step_desc *d = &m->step[s];
        for (uint32_t i = 0; i < d->vector_count; i++)
            bytes +=
                aq_gpu_sizes_is_copied(d, i, compute) ? aq_gpu_sizes_copy(d->vector[i].count) : 0;
    }
    return aq_align_up(bytes, 4096);
}

void aq_gpu_sizes_count(struct aq_gpu_sizes *r, const struct aq_model_steps *m,
                        const struct aq_plan *p, uint64_t context_bytes)
{
    const struct aq_block_shape *s = &p->shape;
    uint64_t keys = aq_max_u64(s->keys_max, s->prompt_max), runs = aq_div_up(keys, 32);
    uint64_t seat = AQ_GPU_SEQ_BYTES + AQ_GPU_MOVE_BYTES + 2 * runs * sizeof(void *);
    uint64_t qkv = (m->heads + 2ull * m->kv_heads) * m->head_dim;
    uint64_t widest = aq_max_u64(aq_max_u64(m->inner, m->hidden), qkv);
    uint64_t longest = aq_steps_widest_row(m);
    uint64_t compute = aq_dtype_bytes(s->compute);
    /* A head-block of a query holds 256 keys' scores and a partial sum: the workspace of decode
     * attention for one sequence (kernels/cuda/launch.h); more go where there is room. */
    uint64_t one = m->heads * (aq_div_up(keys, 256) * (256ull + m->head_dim + 2) + 1) * 4;
    uint64_t sums =
        aq_max_u64(aq_min_u64(s->tile_rows, SUMS_ROWS) * aq_align_up(widest, AQ_PANEL_ROWS),
                   s->tile_rows * (uint64_t)AQ_PANEL_ROWS);
    uint64_t lists = (uint64_t)m->step_count * s->micro_batches * p->part_count;
    *r = (struct aq_gpu_sizes){
        .desk_bytes =
            aq_align_up(s->rows_max * 12ull + CALLS_MAX * (s->micro_batch * seat + 4096), 4096),
        .sums_bytes = aq_align_up(4 * sums, 4096),
        .unpacked_bytes = aq_max_u64(aq_min_u64(UNPACKED_BYTES, widest * longest * compute),
                                     AQ_PANEL_ROWS * longest * compute),
        .tables_bytes = s->page_count[AQ_DEVICE] ? (uint64_t)s->micro_batch * s->micro_batches *
                                                       aq_kv_kinds_runs(&p->kinds) * sizeof(void *)
                                                 : 0,
        .workspace_bytes = aq_align_up(aq_max_u64(WORKSPACE_BYTES, one), 4096),
        .biases_bytes = biases_bytes(m, s->compute),
        .chosen_bytes = aq_align_up(4ull * s->micro_batch * s->micro_batches, 4096),
        .stats_bytes = aq_align_up(s->head_tile_rows * 16ull, 4096),
        .logits_bytes = aq_align_up(s->head_tile_rows * 4ull * m->vocab, 4096),
        .graphs_bytes = aq_min_u64(
            aq_max_u64(lists * GRAPH_BYTES, context_bytes / CONTEXT_BY_GRAPHS), GRAPHS_BYTES_MAX),
    };
}

uint64_t aq_gpu_driver_bytes(uint64_t pinned_bytes, uint64_t context_bytes)
{
    uint64_t tables = aq_div_up(pinned_bytes, PAGE_BYTES) * PAGE_ENTRY_BYTES;
    return aq_align_up(tables + context_bytes / CONTEXT_BY_KERNELS, 4096);
}

uint64_t aq_gpu_sizes_device(const struct aq_gpu_sizes *r)
{
    return AQ_GPU_BUNDLE_DESKS * r->desk_bytes + r->sums_bytes +
           aq_align_up(r->unpacked_bytes, 4096) + aq_align_up(r->tables_bytes, 4096) +
           r->workspace_bytes + r->biases_bytes + r->chosen_bytes + 2 * r->stats_bytes;
}

uint64_t aq_gpu_sizes_host(const struct aq_gpu_sizes *r)
{
    return AQ_GPU_DESKS * r->desk_bytes + r->stats_bytes + r->logits_bytes;
}
