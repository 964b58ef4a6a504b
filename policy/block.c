/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/block.h"

#include "base/mem.h"

#include <assert.h>
#include <stdio.h>

#define PAGE_BYTES_MIN (64 * AQ_KIB)

void aq_block_weight_bytes(const struct aq_block_inputs *in, uint64_t *ret_matrices,
                           uint64_t *ret_vectors)
{
    const struct aq_model_steps *m = in->steps;
    uint64_t matrices = 0, vectors = 0;
    for (uint32_t s = 0; s < m->step_count; s++) {
        const struct aq_step_desc *d = &m->step[s];
        for (uint32_t i = 0; i < d->matrix_count; i++) {
            uint32_t at_step, at_index;
            if (!aq_matrix_is_tied(m, s, i, &at_step, &at_index))
                matrices += aq_matrix_bytes(&d->matrix[i], d->matrix[i].table ? in->table_format
                                                                              : in->weight_format);
        }
        for (uint32_t i = 0; i < d->vector_count; i++)
            vectors += aq_align_up(4ull * d->vector[i].count, 64);
    }
    *ret_matrices = matrices;
    *ret_vectors = vectors;
}

uint64_t aq_block_pages(const struct aq_block_shape *s, uint32_t layers, uint64_t keys)
{
    return aq_div_up(keys, s->page_slots) * layers;
}

/* A page is whole runs of 32 slots of all KV heads: at least 64 KiB where that wastes at most 5 %
 * of a sequence (half a page is lost on average). */
static void choose_page(struct aq_block_shape *s, const struct aq_block_inputs *in)
{
    const struct aq_model_steps *m = in->steps;
    uint64_t run = aq_kv_block_bytes(in->kv_format, m->head_dim) * m->kv_heads;
    uint32_t runs = 1;
    while (run * runs < PAGE_BYTES_MIN && 10ull * AQ_HEAD_BLOCK_SLOTS * (runs + 1) <= in->total_max)
        runs++;
    s->page_slots = AQ_HEAD_BLOCK_SLOTS * runs;
    s->page_bytes = run * runs;
}

/* The pool: every seat at its longest, or, where lengths are known to be shorter on average, a
 * quarter more than the average plus one of the longest; admission keeps within it. */
static uint64_t pool_pages(const struct aq_block_shape *s, const struct aq_block_inputs *in)
{
    uint64_t seats = (uint64_t)s->micro_batch * s->micro_batches;
    uint64_t longest = aq_block_pages(s, in->steps->layers, in->total_max);
    uint64_t all = seats * longest;
    if (!in->total_sum || !in->sequences)
        return all;
    uint64_t mean = aq_div_up(in->total_sum, in->sequences) + s->page_slots / 2;
    uint64_t typical = seats * aq_block_pages(s, in->steps->layers, mean) * 5 / 4 + longest;
    return aq_min_u64(all, typical);
}

static void add(struct aq_ledger *l, const char *purpose, uint64_t bytes)
{
    if (bytes)
        aq_ledger_add(l, AQ_HOST, purpose, aq_mem_rounded(bytes));
}

uint64_t aq_block_rows_bytes(const struct aq_block_shape *s)
{
    uint64_t seats = (uint64_t)s->micro_batch * s->micro_batches;
    return s->micro_batches * (s->rows_max * 20ull + 1024) + seats * 192 +
           s->head_tile_rows * 16ull + 1024;
}

static void fill_ledger(struct aq_ledger *l, const struct aq_block_shape *s,
                        const struct aq_block_inputs *in)
{
    const struct aq_model_steps *m = in->steps;
    uint64_t compute = aq_dtype_bytes(s->compute), rows = s->rows_max;
    uint64_t width = (uint64_t)m->heads * m->head_dim,
             kv_width = (uint64_t)m->kv_heads * m->head_dim;
    uint64_t matrices, vectors, seats = (uint64_t)s->micro_batch * s->micro_batches;
    aq_block_weight_bytes(in, &matrices, &vectors);
    *l = (struct aq_ledger){0};
    add(l, "weights", matrices);
    add(l, "vectors", vectors);
    add(l, "kv", s->page_bytes * s->page_count);
    add(l, "kv tables",
        seats * m->layers * aq_div_up(in->total_max, AQ_HEAD_BLOCK_SLOTS) * sizeof(void *) +
            s->page_count * sizeof(uint32_t));
    for (uint32_t k = 0; k < s->micro_batches; k++)
        add(l, "hidden", rows * m->hidden * 4);
    add(l, "qkv", rows * (width + 2 * kv_width) * 4);
    add(l, "attention output", rows * width * compute);
    add(l, "tiles",
        s->tile_rows * ((uint64_t)m->hidden + m->inner + m->embed_width) * compute + 256);
    add(l, "logits", (uint64_t)s->head_tile_rows * m->vocab * 4);
    add(l, "sampler", (uint64_t)in->threads * m->vocab * 12);
    add(l, "scratch", (uint64_t)in->threads * in->scratch_bytes_per_thread);
    add(l, "rows and seats", aq_block_rows_bytes(s));
    uint64_t widest = aq_max_u64(aq_max_u64(m->inner, m->hidden), m->embed_width);
    add(l, "loading", in->threads * aq_panel_bytes(AQ_F32, (uint32_t)widest));
    aq_ledger_add(l, AQ_HOST, "queued records", in->queue_bytes);
    aq_ledger_add(l, AQ_HOST, "process", in->process_bytes);
}

static void shape_for(struct aq_block_shape *s, const struct aq_block_inputs *in,
                      uint32_t seats_per_batch)
{
    s->micro_batch = seats_per_batch;
    s->micro_batches = in->micro_batches ? in->micro_batches : 1;
    s->compute = in->compute;
    s->kv_format = in->kv_format;
    uint64_t cap = (uint64_t)seats_per_batch * in->prompt_max;
    if (in->prompt_sum)
        cap = aq_min_u64(cap, in->prompt_sum);
    uint64_t prompts =
        aq_min_u64(cap, in->prompt_tokens ? in->prompt_tokens : AQ_BLOCK_PROMPT_TOKENS);
    /* One prompt is admitted whatever its length. */
    s->prompt_tokens = (uint32_t)prompts;
    s->rows_max = (uint32_t)aq_max_u64(prompts, in->prompt_max) + seats_per_batch;
    s->tile_rows = (uint32_t)aq_min_u64(AQ_BLOCK_TILE_ROWS, s->rows_max);
    s->head_tile_rows = (uint32_t)aq_min_u64(AQ_BLOCK_HEAD_TILE_ROWS, s->rows_max);
    choose_page(s, in);
    s->page_count = pool_pages(s, in);
}

static bool fits(struct aq_block_shape *s, struct aq_ledger *l, const struct aq_block_inputs *in,
                 uint32_t seats)
{
    shape_for(s, in, seats);
    fill_ledger(l, s, in);
    return aq_ledger_total(l, AQ_HOST) <= in->host_budget;
}

/* Largest number of seats per micro-batch, at most `most`, that fits; 0 when not even one does. */
static uint32_t largest(struct aq_block_shape *s, struct aq_ledger *l,
                        const struct aq_block_inputs *in, uint32_t most)
{
    uint32_t good = 0, bad = most + 1;
    while (bad - good > 1) {
        uint32_t middle = good + (bad - good) / 2;
        if (fits(s, l, in, middle))
            good = middle;
        else
            bad = middle;
    }
    return good;
}

static uint32_t seats_wanted(const struct aq_block_inputs *in)
{
    if (in->micro_batch)
        return in->micro_batch;
    uint32_t k = in->micro_batches ? in->micro_batches : 1;
    uint64_t seats = AQ_BLOCK_SEATS_CAP;
    if (in->sequences)
        seats = aq_min_u64(seats, aq_div_up(in->sequences, k));
    return (uint32_t)aq_max_u64(seats, 1);
}

static void size_text(char *text, size_t size, uint64_t bytes)
{
    bool large = bytes >= AQ_GIB;
    snprintf(text, size, "%.*f %s", large ? 2 : 1,
             (double)bytes / (double)(large ? AQ_GIB : AQ_MIB), large ? "GiB" : "MiB");
}

int aq_block_choose(struct aq_block_shape *ret, struct aq_ledger *ledger,
                    const struct aq_block_inputs *in, struct aq_err *reterr)
{
    assert(in->prompt_max >= 1 && in->total_max >= in->prompt_max && in->threads >= 1);
    struct aq_block_shape s = {0};
    uint32_t wanted = seats_wanted(in);
    if (fits(&s, ledger, in, wanted)) {
        *ret = s;
        return 0;
    }
    uint64_t needed = aq_ledger_total(ledger, AQ_HOST);
    uint32_t most = largest(&s, ledger, in, wanted);
    if (most && !in->micro_batch) {
        bool fit = fits(&s, ledger, in, most);
        assert(fit);
        *ret = s;
        return 0;
    }
    char need[32], have[32], weights[32], kv[32];
    size_text(have, sizeof(have), in->host_budget);
    if (most) {
        size_text(need, sizeof(need), needed);
        return aq_error(reterr, -ENOMEM,
                        "host memory: %u seats x %u micro-batches need %s, the budget is %s; "
                        "the largest block that fits is --micro-batch %u",
                        wanted, s.micro_batches, need, have, most);
    }
    fits(&s, ledger, in, 1);
    size_text(need, sizeof(need), aq_ledger_total(ledger, AQ_HOST));
    size_text(weights, sizeof(weights), aq_ledger_line(ledger, AQ_HOST, "weights"));
    size_text(kv, sizeof(kv), aq_ledger_line(ledger, AQ_HOST, "kv"));
    return aq_error(
        reterr, -ENOMEM,
        "host memory: one seat needs %s (weights %s, KV %s), the budget is %s; no block fits", need,
        weights, kv, have);
}
