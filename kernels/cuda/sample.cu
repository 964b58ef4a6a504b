/* SPDX-License-Identifier: Apache-2.0
 * From logits to tokens: penalties, truncation, the draw and log-probabilities by the rules of
 * engine/compute/sample.h.  A block of threads per row.
 *
 * Nothing is sorted.  Every logit has a place: by logit and then by id, best first, or by id alone
 * without top_k and top_p.  Which candidate ends the best k, or reaches top_p, or is drawn, is
 * the first place up to which a sum passes a limit; it is found digit by digit, the sums of the 16
 * values of a digit at a time.  Weights are whole units (kernels.h): their sums are exact, in
 * whatever order, and a row's token depends on nothing but the row, nor on where it is chosen. */
#include "kernels/cuda/attn.cuh" /* ranks of floats */
#include "kernels/exp.h"

enum {
    SAMPLE_THREADS = 512,
    SAMPLE_WARPS = SAMPLE_THREADS / AQ_CU_WARP,
    DIGIT_BITS = 4,
    BINS = 1 << DIGIT_BITS,
    ID_BITS = 24,
    /* Logits that a thread has asked for before it looks at the first, and looks at without a turn
     * of a loop: code for all of them would not stay in the instruction caches. */
    FLIGHT = 16,
    PART = 4,
};

struct sampler {
    uint64_t sum[SAMPLE_WARPS][BINS];
    uint64_t place[SAMPLE_WARPS], count[SAMPLE_WARPS];
    uint64_t prefix, limit; /* of the place that is looked for */
};

/* Candidates are those with a place up to bound and no further than reach from the best. */
struct row {
    const float *logits;
    uint32_t vocab;
    float best, inverse, reach, unit; /* as struct aq_cuda_draw; the units of a weight of 1 */
    uint64_t bound;
    bool ordered;
};

/* see(logit, id) of each of a thread's logits, in the order of their ids; of -INFINITY past the
 * last. */
template <class SEE> AQ_DEVICE_FN void each_logit(const struct row *r, SEE see)
{
    for (uint32_t i = threadIdx.x; i < r->vocab; i += FLIGHT * SAMPLE_THREADS) {
        float ahead[FLIGHT];
#pragma unroll
        for (uint32_t n = 0; n < FLIGHT; n++) {
            uint32_t id = i + n * SAMPLE_THREADS;
            ahead[n] = id < r->vocab ? r->logits[id] : -INFINITY;
        }
#pragma unroll 1
        for (uint32_t part = 0; part < FLIGHT; part += PART) {
#pragma unroll
            for (uint32_t n = 0; n < PART; n++)
                see(ahead[n], i + (part + n) * SAMPLE_THREADS);
#pragma unroll
            for (uint32_t n = 0; n + PART < FLIGHT; n++)
                ahead[n] = ahead[n + PART];
        }
    }
}

/* ---- candidates ---- */

AQ_DEVICE_FN uint64_t place_of(const struct row *r, float logit, uint32_t id)
{
    return r->ordered ? static_cast<uint64_t>(~aq_cu_rank(logit)) << 32 | id : id;
}

/* 0 where it is none. */
AQ_DEVICE_FN uint64_t weight_of(const struct row *r, float logit, uint64_t place)
{
    if (!isfinite(logit) || place > r->bound || (r->best - logit) * r->inverse > r->reach)
        return 0;
    return static_cast<uint64_t>(aq_exp((logit - r->best) * r->inverse) * r->unit);
}

AQ_DEVICE_FN uint64_t measure_of(const struct row *r, bool weights, float logit, uint64_t place)
{
    return weights ? weight_of(r, logit, place) : isfinite(logit) && place <= r->bound;
}

AQ_DEVICE_FN uint64_t warp_sum(uint64_t v)
{
    for (uint32_t step = AQ_CU_WARP / 2; step; step /= 2)
        v += __shfl_xor_sync(AQ_CU_ALL, v, step);
    return v;
}

AQ_DEVICE_FN uint64_t block_sum(uint64_t v, uint64_t *to)
{
    v = warp_sum(v);
    __syncthreads(); /* to[] may still be read from before */
    if (aq_cu_lane() == 0)
        to[threadIdx.x / AQ_CU_WARP] = v;
    __syncthreads();
    v = 0;
    for (uint32_t w = 0; w < SAMPLE_WARPS; w++)
        v += to[w];
    return v;
}

AQ_DEVICE_FN uint64_t total_of(const struct row *r, struct sampler *s, bool weights)
{
    uint64_t sum = 0;
    each_logit(r, [&](float logit, uint32_t id) {
        sum += measure_of(r, weights, logit, place_of(r, logit, id));
    });
    return block_sum(sum, s->count);
}

/* ---- the place where a sum passes a limit ---- */

/* Sums of the candidates whose places begin like the prefix, by the digit at `shift`; how many
 * there are, and the place of the only one if it is one. */
AQ_DEVICE_FN void add_digits(const struct row *r, struct sampler *s, bool weights, uint32_t shift)
{
    uint64_t sum[BINS] = {}, place_sum = 0, count = 0, prefix = s->prefix;
    each_logit(r, [&](float logit, uint32_t id) {
        uint64_t place = place_of(r, logit, id);
        if ((place ^ prefix) >> (shift + DIGIT_BITS - 1) >> 1)
            return;
        uint64_t m = measure_of(r, weights, logit, place);
        uint32_t digit = static_cast<uint32_t>(place >> shift) % BINS;
#pragma unroll
        for (uint32_t d = 0; d < BINS; d++)
            sum[d] += d == digit ? m : 0;
        count += m > 0;
        place_sum += m > 0 ? place : 0;
    });
    uint32_t warp = threadIdx.x / AQ_CU_WARP;
#pragma unroll
    for (uint32_t d = 0; d < BINS; d++) {
        uint64_t v = warp_sum(sum[d]);
        if (aq_cu_lane() == 0)
            s->sum[warp][d] = v;
    }
    place_sum = warp_sum(place_sum);
    count = warp_sum(count);
    if (aq_cu_lane() == 0) {
        s->place[warp] = place_sum;
        s->count[warp] = count;
    }
}

/* By one thread: the digit in which the limit is passed. */
AQ_DEVICE_FN void take_digit(struct sampler *s, uint32_t shift)
{
    for (uint64_t d = 0; d < BINS; d++) {
        uint64_t sum = 0;
        for (uint32_t w = 0; w < SAMPLE_WARPS; w++)
            sum += s->sum[w][d];
        if (s->limit < sum) {
            s->prefix |= d << shift;
            return;
        }
        s->limit -= sum;
    }
}

/* The first place up to which the candidates' sum is greater than the limit, which is less than the
 * sum of all. */
AQ_DEVICE_FN uint64_t find_place(const struct row *r, struct sampler *s, bool weights,
                                 uint64_t limit)
{
    __syncthreads();
    if (threadIdx.x == 0) {
        s->prefix = 0;
        s->limit = limit;
    }
    __syncthreads();
    for (uint32_t shift = r->ordered ? 64 : ID_BITS; shift;) {
        shift -= DIGIT_BITS;
        add_digits(r, s, weights, shift);
        __syncthreads();
        uint64_t count = 0, place = 0;
        for (uint32_t w = 0; w < SAMPLE_WARPS; w++) {
            count += s->count[w];
            place += s->place[w];
        }
        if (count == 1)
            return place;
        if (threadIdx.x == 0)
            take_digit(s, shift);
        __syncthreads();
        if (shift == 32) /* ranks are through; ids are short */
            shift = ID_BITS;
    }
    return s->prefix;
}

/* ---- the draw ---- */

/* aq_prng_uniform() of base/prng.h, for a device. */
AQ_DEVICE_FN double uniform(uint64_t key, uint64_t low, uint64_t high)
{
    uint32_t c0 = static_cast<uint32_t>(low), c1 = static_cast<uint32_t>(low >> 32);
    uint32_t c2 = static_cast<uint32_t>(high), c3 = static_cast<uint32_t>(high >> 32);
    uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
    for (uint32_t round = 0; round < 10; round++) {
        uint64_t p0 = 0xd2511f53ull * c0, p1 = 0xcd9e8d57ull * c2;
        uint32_t n0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0;
        uint32_t n2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
        c1 = static_cast<uint32_t>(p1);
        c3 = static_cast<uint32_t>(p0);
        c0 = n0;
        c2 = n2;
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
    uint64_t bits = (static_cast<uint64_t>(c1) << 32 | c0) >> 11;
    return static_cast<double>(bits) * 0x1p-53;
}

AQ_DEVICE_FN uint64_t draw(const struct aq_cuda_draw *d, struct row *r, struct sampler *s)
{
    if (d->top_k && d->top_k < r->vocab && total_of(r, s, false) > d->top_k)
        r->bound = find_place(r, s, false, d->top_k - 1);
    if (d->top_p < 1) {
        double share =
            ceil(static_cast<double>(d->top_p) * static_cast<double>(total_of(r, s, true)));
        r->bound = find_place(r, s, true, share >= 1 ? static_cast<uint64_t>(share) - 1 : 0);
    }
    r->reach = d->reach;
    uint64_t total = total_of(r, s, true);
    double u = uniform(d->seed, d->counter_low, d->counter_high);
    uint64_t limit = static_cast<uint64_t>(u * static_cast<double>(total));
    return find_place(r, s, true, limit < total ? limit : total - 1);
}

/* The least value of all threads, for all. */
AQ_DEVICE_FN uint64_t block_min(uint64_t v, uint64_t *to)
{
    for (uint32_t step = AQ_CU_WARP / 2; step; step /= 2) {
        uint64_t other = __shfl_xor_sync(AQ_CU_ALL, v, step);
        v = other < v ? other : v;
    }
    __syncthreads(); /* to[] may still be read from before */
    if (aq_cu_lane() == 0)
        to[threadIdx.x / AQ_CU_WARP] = v;
    __syncthreads();
    for (uint32_t w = 0; w < SAMPLE_WARPS; w++)
        v = to[w] < v ? to[w] : v;
    return v;
}

AQ_DEVICE_FN bool has_penalties(const struct aq_cuda_draw *d)
{
    return d->repetition_penalty != 1 || d->presence_penalty != 0 || d->frequency_penalty != 0;
}

/* A logit as the model gave it: what is masked was masked first, and of an id that is there more
 * than once the first place says what was. */
AQ_DEVICE_FN float raw_logit(const struct aq_cuda_draw *d, const float *logits, uint32_t id,
                             struct sampler *s)
{
    uint64_t at = UINT64_MAX;
    for (uint32_t i = threadIdx.x; i < d->masked_count; i += SAMPLE_THREADS)
        at = aq_cu_global(d->masked)[i] == id && i < at ? i : at;
    for (uint32_t i = threadIdx.x; has_penalties(d) && i < d->seen_count; i += SAMPLE_THREADS)
        at = aq_cu_global(d->seen)[i] == id && d->masked_count + i < at ? d->masked_count + i : at;
    at = block_min(at, s->count);
    return at == UINT64_MAX ? logits[id] : aq_cu_global(d->before)[at];
}

/* The largest logit, of equal ones the lowest id; 0 where none is possible. */
AQ_DEVICE_FN uint32_t best_of(const struct row *r, struct sampler *s)
{
    uint64_t least = UINT64_MAX;
    each_logit(r, [&](float logit, uint32_t id) {
        uint64_t rank = ~aq_cu_rank(logit), place = rank << 32 | id;
        if (isfinite(logit) && place < least)
            least = place;
    });
    least = block_min(least, s->count);
    return least == UINT64_MAX ? 0 : static_cast<uint32_t>(least);
}

__global__ void __launch_bounds__(SAMPLE_THREADS, 1)
    sample_row(struct aq_cuda_rows rows, float unit)
{
    AQ_SHARED(struct sampler, s);
    const struct aq_cuda_draw *d = &rows.draws[blockIdx.x];
    const struct aq_logits_stat *raw = &rows.raw[blockIdx.x];
    uint32_t token = d->given != AQ_CUDA_CHOOSE ? d->given : rows.now[blockIdx.x].argmax;
    struct row r = {rows.logits + blockIdx.x * rows.stride,
                    d->id_end,
                    0,
                    d->inverse,
                    INFINITY,
                    unit,
                    UINT64_MAX,
                    d->top_k || d->top_p < 1};
    if (d->given == AQ_CUDA_CHOOSE && token >= d->id_end)
        token = best_of(&r, s);
    r.best = r.logits[token];
    if (d->given == AQ_CUDA_CHOOSE && d->inverse > 0 && r.best > -INFINITY)
        token = static_cast<uint32_t>(draw(d, &r, s));
    float logit = raw_logit(d, r.logits, token, s);
    if (threadIdx.x == 0) {
        rows.choices[blockIdx.x] = {token, raw->bad_count, logit - raw->log_sum_exp};
        if (d->chosen)
            *d->chosen = token;
    }
}

int aq_cuda_sample(const struct aq_cuda_exec *ex, const struct aq_cuda_rows *r)
{
    assert(r->vocab >= 1 && r->vocab < 1u << ID_BITS);
    if (!r->rows)
        return 0;
    return AQ_LAUNCH(ex, sample_row, r->rows, SAMPLE_THREADS, sizeof(struct sampler), *r,
                     aq_weight_unit(r->vocab));
}

/* ---- penalties ---- */

AQ_DEVICE_FN bool is_first(const uint32_t *ids, uint32_t at)
{
    for (uint32_t i = 0; i < at; i++) {
        if (ids[i] == ids[at])
            return false;
    }
    return true;
}

/* A thread per occurrence of an id; the first occurrence sees to it. */
AQ_DEVICE_FN void penalise_id(const struct aq_cuda_draw *d, float *logits, uint32_t at)
{
    uint32_t id = d->seen[at], times = 0;
    if (!is_first(d->seen, at))
        return;
    for (uint32_t i = d->prompt_count; i < d->seen_count; i++)
        times += d->seen[i] == id;
    float v = logits[id];
    d->before[d->masked_count + at] = v;
    v = v > 0 ? v / d->repetition_penalty : v * d->repetition_penalty;
    if (times)
        v -= d->presence_penalty + d->frequency_penalty * static_cast<float>(times);
    logits[id] = v;
}

__global__ void __launch_bounds__(SAMPLE_THREADS) penalise_row(struct aq_cuda_rows rows)
{
    const struct aq_cuda_draw *d = &rows.draws[blockIdx.x];
    float *row = rows.logits + blockIdx.x * rows.stride;
    for (uint32_t i = threadIdx.x; i < d->masked_count; i += SAMPLE_THREADS) {
        if (d->masked[i] < rows.vocab && is_first(d->masked, i)) {
            d->before[i] = row[d->masked[i]];
            row[d->masked[i]] = -INFINITY;
        }
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; has_penalties(d) && i < d->seen_count; i += SAMPLE_THREADS)
        penalise_id(d, row, i);
}

int aq_cuda_penalise(const struct aq_cuda_exec *ex, const struct aq_cuda_rows *r)
{
    if (!r->rows)
        return 0;
    return AQ_LAUNCH(ex, penalise_row, r->rows, SAMPLE_THREADS, 0, *r);
}

/* ---- log-probabilities ---- */

__global__ void __launch_bounds__(SAMPLE_THREADS) top_row(struct aq_cuda_rows rows)
{
    AQ_SHARED(uint64_t, shared);
    const struct aq_cuda_draw *d = &rows.draws[blockIdx.x];
    struct row r = {
        rows.logits + blockIdx.x * rows.stride, rows.vocab, 0, 0, 0, 0, UINT64_MAX, true};
    uint64_t begin = 0; /* places from here on are left */
    for (uint32_t n = 0; n < d->top_count; n++) {
        uint64_t least = UINT64_MAX;
        each_logit(&r, [&](float logit, uint32_t id) {
            uint64_t place = place_of(&r, logit, id);
            if (logit > -INFINITY && place >= begin && place < least)
                least = place;
        });
        least = block_min(least, shared);
        if (threadIdx.x == 0) {
            struct aq_cuda_top top = {0, -INFINITY};
            if (least != UINT64_MAX) {
                top.id = static_cast<uint32_t>(least);
                top.logprob = r.logits[top.id] - rows.raw[blockIdx.x].log_sum_exp;
            }
            d->tops[n] = top;
        }
        begin = least == UINT64_MAX ? least : least + 1;
    }
}

int aq_cuda_tops(const struct aq_cuda_exec *ex, const struct aq_cuda_rows *r)
{
    if (!r->rows)
        return 0;
    return AQ_LAUNCH(ex, top_row, r->rows, SAMPLE_THREADS, SAMPLE_WARPS * sizeof(uint64_t), *r);
}
