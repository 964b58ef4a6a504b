/* SPDX-License-Identifier: Apache-2.0
 * KV append, on vec.h; included once by each version's file. */

enum { TILE_HEADS = 8 };

struct append_job {
    const struct aq_attn *a;
    const float *k_new, *v_new;
    size_t stride;
    uint32_t tiles_per_seq;
};

VEC_FN void store_row(void *block, enum aq_dtype dtype, size_t index, const float *from,
                      uint32_t dim)
{
    uint32_t d = 0;
    for (; d + VEC_LANES <= dim; d += VEC_LANES)
        vec_store_as(block, dtype, index + d, vec_load(from + d));
    if (d < dim)
        vec_store_as_n(block, dtype, index + d, vec_load_n(from + d, dim - d), dim - d);
}

VEC_FN void append_head(const struct append_job *job, enum aq_dtype dtype,
                        const struct aq_attn_seq *seq, uint32_t head)
{
    uint32_t dim = job->a->head_dim, first = aq_attn_new_first(seq, head);
    for (uint32_t i = 0; i < seq->rows; i++) {
        uint32_t slot = (first + i) % AQ_HEAD_BLOCK_SLOTS;
        uint8_t *block = aq_attn_block(seq, head, (first + i) / AQ_HEAD_BLOCK_SLOTS);
        size_t from = (seq->row + (size_t)i) * job->stride + (size_t)head * dim;
        store_row(block, dtype, (size_t)slot * dim, job->k_new + from, dim);
        store_row(block, dtype, (size_t)(AQ_HEAD_BLOCK_SLOTS + slot) * dim, job->v_new + from, dim);
    }
}

/* A tile is a few KV heads of one sequence. */
static void append_tile(void *arg, uint32_t tile, uint32_t worker)
{
    const struct append_job *job = arg;
    const struct aq_attn_seq *seq = &job->a->seqs[tile / job->tiles_per_seq];
    uint32_t head = tile % job->tiles_per_seq * TILE_HEADS;
    uint32_t end = (uint32_t)aq_min_u64(head + TILE_HEADS, job->a->kv_heads);
    for (; head < end; head++) {
        switch (job->a->kv_dtype) {
        case AQ_F32: append_head(job, AQ_F32, seq, head); break;
        case AQ_F16: append_head(job, AQ_F16, seq, head); break;
        default: append_head(job, AQ_BF16, seq, head);
        }
    }
}

static void kv_append(struct aq_exec *ex, const struct aq_attn *a, const float *k_new,
                      const float *v_new, size_t stride)
{
    aq_attn_assert(a);
    struct append_job job = {.a = a, .k_new = k_new, .v_new = v_new, .stride = stride};
    job.tiles_per_seq = (uint32_t)aq_div_up(a->kv_heads, TILE_HEADS);
    aq_pool_run(aq_exec_pool(ex), append_tile, &job, a->seq_count * job.tiles_per_seq);
}
