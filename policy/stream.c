/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/host_product.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static uint64_t panel_bytes(const struct aq_plan *plan, const struct aq_matrix_desc *m)
{
    return aq_panel_bytes(aq_matrix_format(m, plan->shape.weight_format), m->k);
}

/* How many of `panels` panels lie on the first tiers up to `tier`.  The share counts over the
 * step's bytes so far, so that rounding errors of one matrix are made good by the next. */
static uint32_t panels_until(uint64_t before, uint64_t panel_bytes, uint32_t panels, double share,
                             uint64_t given)
{
    double want = share * (double)(before + panels * panel_bytes) - (double)given;
    double count = want / (double)panel_bytes + 0.5;
    return count <= 0 ? 0 : count >= panels ? panels : (uint32_t)count;
}

/* Splits a step's matrices so that the step's shares are exact to half a panel, or to a whole one
 * where two matrices are split alike. */
static void split_step(struct aq_split *split, const struct aq_step_desc *d,
                       const struct aq_plan *plan)
{
    const double *percent = plan->placement.weights.percent;
    double device =
        plan->separate ? percent[AQ_DEVICE] / 100 : (percent[AQ_DEVICE] + percent[AQ_HOST]) / 100;
    double host = plan->separate ? percent[AQ_HOST] / 100 : 0;
    bool to_end = percent[AQ_DISK] < 1e-9; /* rounding: sums of decimal fractions may miss 1 */
    double on_host = plan->separate ? plan->host_products / 100 : 0;
    if (d->kind == AQ_STEP_MLP && !plan->split_mlp)
        on_host = 0;
    uint64_t before = 0, given[2] = {0}, at_host = 0, given_host = 0;
    for (uint32_t i = 0; i < d->matrix_count; i++) {
        uint64_t bytes = panel_bytes(plan, &d->matrix[i]);
        uint32_t panels = aq_panel_count(d->matrix[i].rows), like = i;
        uint32_t first = panels_until(before, bytes, panels, device, given[0]);
        uint32_t both =
            to_end ? panels : panels_until(before, bytes, panels, device + host, given[1]);
        both = both < first ? first : both;
        if (to_end && !(plan->separate && host > 0))
            first = panels;
        bool shared = aq_host_product_like(d, i, &like);
        uint32_t can = shared ? both - first : 0;
        split[i].panels[AQ_DEVICE] = first;
        split[i].panels[AQ_HOST] = both - first;
        split[i].panels[AQ_DISK] = panels - both;
        split[i].on_host = panels_until(at_host, bytes, can, on_host, given_host);
        if (like < i) { /* the host computes the same columns of both */
            split[i] = split[like];
            first = split[i].panels[AQ_DEVICE];
            both = first + split[i].panels[AQ_HOST];
            can = both - first;
        }
        at_host += can * bytes;
        given_host += split[i].on_host * bytes;
        given[0] += first * bytes;
        given[1] += both * bytes;
        before += panels * bytes;
    }
}

/* Table and head: resident, or streamed if their tier is the host. */
static void split_head(struct aq_split *split, const struct aq_step_desc *d,
                       const struct aq_plan *plan)
{
    for (uint32_t i = 0; i < d->matrix_count; i++) {
        bool streams = d->kind == AQ_STEP_HEAD && plan->separate &&
                       plan->placement.head != AQ_DEVICE && !d->matrix[i].table;
        if (!d->matrix[i].table)
            split[i].panels[streams ? AQ_HOST : AQ_DEVICE] = aq_panel_count(d->matrix[i].rows);
    }
}

struct maker {
    struct aq_stream *s;
    const struct aq_model_steps *steps;
    const struct aq_plan *plan;
    bool failed;
};

static struct aq_chunk *add_chunk(struct maker *m, uint32_t step, enum aq_tier tier)
{
    struct aq_stream *s = m->s;
    if (s->chunk_count == s->chunk_room) {
        uint32_t more = s->chunk_room ? 2 * s->chunk_room : 64;
        void *p = realloc(s->chunk, more * sizeof(*s->chunk));
        if (!p) {
            m->failed = true;
            return NULL;
        }
        s->chunk = p;
        s->chunk_room = more;
    }
    s->chunk[s->chunk_count] =
        (struct aq_chunk){.step = step, .tier = tier, .piece_first = s->piece_count};
    return &s->chunk[s->chunk_count++];
}

static void add_piece(struct maker *m, struct aq_chunk *c, struct aq_piece piece)
{
    struct aq_stream *s = m->s;
    if (s->piece_count == s->piece_room) {
        uint32_t more = s->piece_room ? 2 * s->piece_room : 128;
        void *p = realloc(s->piece, more * sizeof(*s->piece));
        if (!p) {
            m->failed = true;
            return;
        }
        s->piece = p;
        s->piece_room = more;
    }
    piece.offset = c->bytes;
    s->piece[s->piece_count++] = piece;
    c->piece_count++;
    c->bytes += piece.bytes;
}

/* Panels of a matrix on a tier, without those that the host computes with. */
static uint32_t tier_panels(const struct aq_split *s, enum aq_tier tier)
{
    return s->panels[tier] - (tier == AQ_HOST ? s->on_host : 0);
}

/* Bytes of a step that stream from a tier. */
static uint64_t tier_bytes(const struct maker *m, uint32_t step, enum aq_tier tier)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < m->steps->step[step].matrix_count; i++)
        bytes += tier_panels(&m->s->split[aq_matrix_index(m->steps, step, i)], tier) *
                 panel_bytes(m->plan, &m->steps->step[step].matrix[i]);
    return bytes;
}

/* Cuts one step's panels from one tier into chunks of whole panels and about equal bytes. */
static void cut_tier(struct maker *m, uint32_t step, enum aq_tier tier)
{
    uint64_t total = tier_bytes(m, step, tier);
    if (!total)
        return;
    uint64_t count = aq_div_up(total, m->plan->chunk_bytes), target = aq_div_up(total, count);
    struct aq_chunk *c = NULL;
    const struct aq_step_desc *d = &m->steps->step[step];
    for (uint32_t i = 0; i < d->matrix_count && !m->failed; i++) {
        const struct aq_split *split = &m->s->split[aq_matrix_index(m->steps, step, i)];
        uint64_t bytes = panel_bytes(m->plan, &d->matrix[i]);
        uint32_t left = tier_panels(split, tier);
        uint32_t first = split->panels[AQ_DEVICE] + (tier == AQ_DISK ? split->panels[AQ_HOST] : 0);
        while (left && !m->failed) {
            if (!c || c->bytes >= target || c->bytes + bytes > m->plan->chunk_bytes)
                c = add_chunk(m, step, tier);
            if (!c)
                return;
            uint64_t room = aq_min_u64(m->plan->chunk_bytes - c->bytes,
                                       c->bytes < target ? target - c->bytes + bytes - 1 : bytes);
            uint32_t n = (uint32_t)aq_min_u64(left, aq_max_u64(1, room / bytes));
            add_piece(
                m, c,
                (struct aq_piece){.matrix = i, .first = first, .count = n, .bytes = n * bytes});
            first += n;
            left -= n;
        }
    }
}

/* Cuts a chunk in two halves of whole panels; false when it has only one panel. */
static bool halve(struct maker *m, uint32_t index)
{
    struct aq_chunk old = m->s->chunk[index];
    uint32_t panels = 0;
    for (uint32_t i = 0; i < old.piece_count; i++)
        panels += m->s->piece[old.piece_first + i].count;
    if (panels < 2 || !add_chunk(m, old.step, old.tier))
        return false;
    struct aq_chunk *chunk = m->s->chunk;
    memmove(chunk + index + 2, chunk + index + 1, (m->s->chunk_count - index - 2) * sizeof(*chunk));
    struct aq_chunk *half[2] = {&chunk[index], &chunk[index + 1]};
    uint32_t keep = panels / 2, next = 0;
    for (int h = 0; h < 2; h++) {
        *half[h] =
            (struct aq_chunk){.step = old.step, .tier = old.tier, .piece_first = m->s->piece_count};
        uint32_t room = h ? panels - keep : keep;
        for (; room && !m->failed; next++) {
            struct aq_piece p = m->s->piece[old.piece_first + next];
            uint64_t each = p.bytes / p.count;
            if (p.count > room) {
                m->s->piece[old.piece_first + next].first += room;
                m->s->piece[old.piece_first + next].count -= room;
                m->s->piece[old.piece_first + next].bytes -= room * each;
                p.count = room;
                next--;
            }
            p.bytes = p.count * each;
            room -= p.count;
            add_piece(m, half[h], p);
        }
    }
    return !m->failed;
}

/* Halves `count` of the chunks that are larger than half of the largest, evenly distributed over
 * the pass: a half takes a whole slot of the ring, so halves next to each other would leave the
 * ring with the fewest bytes. */
static void halve_some(struct maker *m, uint32_t count)
{
    const struct aq_stream *s = m->s;
    uint64_t largest = 0, large = 0, seen = 0;
    for (uint32_t i = 0; i < s->chunk_count; i++)
        largest = aq_max_u64(largest, s->chunk[i].bytes);
    for (uint32_t i = 0; i < s->chunk_count; i++)
        large += 2 * s->chunk[i].bytes > largest;
    for (uint32_t i = 0; i < s->chunk_count && !m->failed; i++) {
        if (2 * s->chunk[i].bytes <= largest)
            continue;
        bool taken = seen++ * count % large < count; /* the first of each large / count */
        if (taken && halve(m, i))
            i++; /* past the second half */
    }
}

/* Makes the number of chunks a multiple of the ring's slots; with too few panels for that, the ring
 * loses slots. */
static void fit_ring(struct maker *m)
{
    struct aq_stream *s = m->s;
    s->ring = (uint32_t)aq_min_u64(m->plan->ring_chunks, s->chunk_count);
    for (uint32_t before = 0; s->ring && s->chunk_count % s->ring && before != s->chunk_count;) {
        before = s->chunk_count;
        halve_some(m, s->ring - s->chunk_count % s->ring);
        if (m->failed)
            return;
    }
    while (s->ring > 1 && s->chunk_count % s->ring)
        s->ring--;
}

/* Numbers the slots, and sums the bytes. */
static void number_chunks(struct maker *m)
{
    struct aq_stream *s = m->s;
    uint32_t at = 0, disk = 0;
    for (uint32_t j = 0; j < m->steps->step_count; j++) {
        s->step_chunk[j] = at;
        uint64_t bytes = 0;
        for (; at < s->chunk_count && s->chunk[at].step == j; at++) {
            struct aq_chunk *c = &s->chunk[at];
            c->slot = at % s->ring;
            disk += c->tier == AQ_DISK;
            s->bytes[c->tier] += c->bytes;
            s->chunk_bytes = aq_max_u64(s->chunk_bytes, c->bytes);
            bytes += c->bytes;
        }
        s->step_bytes_max = aq_max_u64(s->step_bytes_max, bytes);
    }
    s->step_chunk[m->steps->step_count] = at;
    assert(at == s->chunk_count);
    s->staging = 0;
    if (m->plan->separate && disk) {
        s->staging = (uint32_t)aq_min_u64(aq_max_u64(1, m->plan->staging_chunks), disk);
        while (disk % s->staging)
            s->staging--;
        uint32_t n = 0;
        for (uint32_t i = 0; i < s->chunk_count; i++)
            s->chunk[i].staging = s->chunk[i].tier == AQ_DISK ? n++ % s->staging : 0;
    }
}

/* Checks the number of chunks before any is made: with chunks of 4096 bytes a large model would
 * have hundreds of millions. */
static int check_count(const struct maker *m, struct aq_err *reterr)
{
    uint64_t bytes = 0, each = m->plan->chunk_bytes;
    for (uint32_t j = 0; j < m->steps->step_count; j++)
        bytes += tier_bytes(m, j, AQ_HOST) + tier_bytes(m, j, AQ_DISK);
    if (bytes / each < AQ_STREAM_CHUNKS_MAX)
        return 0;
    return aq_error(reterr, -EINVAL,
                    "--chunk: %llu bytes that stream are more than %d chunks of %llu; give it at "
                    "least %llu bytes",
                    (unsigned long long)bytes, AQ_STREAM_CHUNKS_MAX, (unsigned long long)each,
                    (unsigned long long)(bytes / (AQ_STREAM_CHUNKS_MAX / 2)));
}

static int check_panels(const struct maker *m, struct aq_err *reterr)
{
    for (uint32_t j = 0; j < m->steps->step_count; j++) {
        const struct aq_step_desc *d = &m->steps->step[j];
        for (uint32_t i = 0; i < d->matrix_count; i++) {
            const uint32_t *panels = m->s->split[aq_matrix_index(m->steps, j, i)].panels;
            uint64_t bytes = panel_bytes(m->plan, &d->matrix[i]);
            if ((panels[AQ_HOST] || panels[AQ_DISK]) && bytes > m->plan->chunk_bytes)
                return aq_error(reterr, -EINVAL,
                                "--chunk: a panel of '%s' is %llu bytes, a chunk only %llu",
                                d->matrix[i].name, (unsigned long long)bytes,
                                (unsigned long long)m->plan->chunk_bytes);
        }
    }
    return 0;
}

int aq_stream_build(struct aq_stream *ret, const struct aq_model_steps *steps,
                    const struct aq_plan *plan, struct aq_err *reterr)
{
    aq_stream_clear(ret);
    struct aq_stream s = *ret;
    struct maker m = {.s = &s, .steps = steps, .plan = plan};
    *ret = (struct aq_stream){0};
    s.split = calloc(steps->matrix_count, sizeof(*s.split));
    s.step_chunk = calloc(steps->step_count + 1, sizeof(*s.step_chunk));
    int rc = -ENOMEM;
    if (!s.split || !s.step_chunk) {
        aq_error_memory(reterr, "stream of %u steps", steps->step_count);
        goto fail;
    }
    for (uint32_t j = 0; j < steps->step_count; j++)
        (aq_step_is_layer(&steps->step[j]) ? split_step : split_head)(
            s.split + aq_matrix_index(steps, j, 0), &steps->step[j], plan);
    rc = check_panels(&m, reterr);
    rc = rc < 0 ? rc : check_count(&m, reterr);
    if (rc < 0)
        goto fail;
    for (uint32_t j = 0; j < steps->step_count; j++) {
        cut_tier(&m, j, AQ_HOST);
        cut_tier(&m, j, AQ_DISK);
        s.bytes[AQ_DEVICE] += tier_bytes(&m, j, AQ_DEVICE);
    }
    fit_ring(&m);
    number_chunks(&m);
    if (m.failed) {
        rc = aq_error_memory(reterr, "stream of %u chunks", s.chunk_count);
        goto fail;
    }
    *ret = s;
    return 0;
fail:
    aq_stream_close(&s);
    return rc;
}

void aq_stream_clear(struct aq_stream *s)
{
    free(s->split);
    free(s->step_chunk);
    *s = (struct aq_stream){.chunk = s->chunk,
                            .chunk_room = s->chunk_room,
                            .piece = s->piece,
                            .piece_room = s->piece_room};
}

void aq_stream_close(struct aq_stream *s)
{
    if (!s)
        return;
    free(s->split);
    free(s->chunk);
    free(s->piece);
    free(s->step_chunk);
    *s = (struct aq_stream){0};
}

bool aq_stream_host_rows(const struct aq_stream *s, const struct aq_model_steps *steps,
                         uint32_t step, uint32_t matrix, uint32_t *ret_first, uint32_t *ret_rows)
{
    const struct aq_split *split = &s->split[aq_matrix_index(steps, step, matrix)];
    uint32_t end = split->panels[AQ_DEVICE] + split->panels[AQ_HOST];
    uint32_t last = steps->step[step].matrix[matrix].rows;
    if (!split->on_host)
        return false;
    *ret_first = (end - split->on_host) * AQ_PANEL_ROWS;
    *ret_rows = (uint32_t)aq_min_u64(end * AQ_PANEL_ROWS, last) - *ret_first;
    return true;
}

void aq_stream_matrix_bytes(uint64_t ret[AQ_TIER_COUNT], const struct aq_stream *s,
                            const struct aq_model_steps *steps, uint32_t step, uint32_t matrix,
                            enum aq_dtype dtype, enum aq_tier head)
{
    const struct aq_step_desc *d = &steps->step[step];
    const uint32_t *panels = s->split[aq_matrix_index(steps, step, matrix)].panels;
    memset(ret, 0, AQ_TIER_COUNT * sizeof(*ret));
    if (!aq_step_is_layer(d)) {
        ret[head] = aq_matrix_bytes(&d->matrix[matrix], dtype);
        return;
    }
    for (int t = 0; t < AQ_TIER_COUNT; t++)
        ret[t] = panels[t] * aq_panel_bytes(dtype, d->matrix[matrix].k);
}
