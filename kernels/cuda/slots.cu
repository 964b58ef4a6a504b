/* SPDX-License-Identifier: Apache-2.0
 * Victims, and which keys of a prompt stay.  Selection finds the key of the last one that stays,
 * digit by digit (a radix selection: counts of digits, no sorting), where the key holds every tie
 * rule: rank of the value, position, head.  All of it exact, whatever the order of threads. */
#include "kernels/cuda/attn.cuh"

enum {
    VICTIM_THREADS = 128,
    SELECT_THREADS = 256,
    SELECT_HEADS_MAX = 512,
    /* Values that a thread has asked for before it looks at the first, and looks at in one turn. */
    FLIGHT = 16,
    PART = 4,
};

__global__ void __launch_bounds__(VICTIM_THREADS) choose_victim(struct aq_attn a)
{
    AQ_SHARED(uint32_t, shared);
    const struct aq_attn_seq *s = &a.seqs[blockIdx.y];
    uint32_t head = blockIdx.x;
    if (!s->slots.victim)
        return;
    struct aq_cu_victim v = aq_cu_victim_start(&a.rule, s);
    size_t row = static_cast<size_t>(head) * s->slots.stride;
    for (uint32_t j = threadIdx.x; j < aq_cu_len(s, head); j += blockDim.x) {
        float score = 0;
        if (a.rule.victim == AQ_ATTN_BY_SCORE)
            score = s->slots.score[(a.rule.together ? 0 : row) + j];
        for (uint32_t h = 1; a.rule.together && h < a.kv_heads; h++)
            score += s->slots.score[static_cast<size_t>(h) * s->slots.stride + j];
        aq_cu_victim_consider(&v, &a.rule, score, s->slots.position[row + j], j);
    }
    uint32_t slot = aq_cu_victim_of_block(v, shared);
    if (threadIdx.x == 0)
        s->slots.victim[head] = slot;
}

int aq_cuda_kv_victim(const struct aq_cuda_exec *ex, const struct aq_attn *a)
{
    assert(a->rule.victim && a->seq_count <= AQ_CU_GRID_YZ_MAX);
    if (!a->seq_count)
        return 0;
    return AQ_LAUNCH(ex, choose_victim, dim3(a->kv_heads, a->seq_count), VICTIM_THREADS,
                     VICTIM_THREADS / AQ_CU_WARP * 3 * sizeof(uint32_t), *a);
}

/* ---- selection ---- */

/* The order of slots that may go, the best one highest: 32 bits of the value's rank, 32 of the
 * slot, 16 of the head from the last to the first.  No two are alike. */
typedef unsigned __int128 slot_key;
enum { KEY_BITS = 80 };

struct chooser {
    uint32_t count[256]; /* of a digit */
    uint32_t head_first, head_count, candidates;
    const struct aq_kv_select *s;
    slot_key found, below[SELECT_HEADS_MAX]; /* only keys below count; per head */
    uint32_t warp_count[SELECT_THREADS / AQ_CU_WARP];
    uint32_t rest; /* to be found yet; 0 when found */
};

/* The value of a head's slot j; where slots have none, the key does not look at it. */
AQ_DEVICE_FN float value_of(const struct aq_kv_select *s, uint32_t head, uint32_t j)
{
    return s->value ? aq_cu_global(s->value)[static_cast<size_t>(head) * s->stride + j] : 0;
}

AQ_DEVICE_FN slot_key key_of(const struct aq_kv_select *s, uint32_t head, uint32_t j, float value)
{
    uint32_t rank = !s->value ? UINT32_MAX - 1 - j : aq_cu_rank(value);
    if (j < s->sinks)
        rank = UINT32_MAX;
    uint64_t high = static_cast<uint64_t>(rank) << 32 | j;
    return static_cast<slot_key>(high) << 16 | (0xffffu - head);
}

/* see(key) of each of a thread's candidates of a head. */
template <class SEE>
AQ_DEVICE_FN void each_candidate(const struct chooser *c, uint32_t head, SEE see)
{
    const struct aq_kv_select *s = aq_cu_global(c->s);
    uint32_t end = c->candidates, threads = blockDim.x;
    for (uint32_t first = threadIdx.x; first < end; first += FLIGHT * threads) {
        float ahead[FLIGHT];
#pragma unroll
        for (uint32_t n = 0; n < FLIGHT; n++) {
            uint32_t j = first + n * threads;
            ahead[n] = j < end ? value_of(s, head, j) : 0;
        }
#pragma unroll 1
        for (uint32_t part = 0; part < FLIGHT && first + part * threads < end; part += PART) {
#pragma unroll
            for (uint32_t n = 0; n < PART; n++) {
                uint32_t j = first + (part + n) * threads;
                if (j < end)
                    see(key_of(s, head, j, ahead[n]));
            }
#pragma unroll
            for (uint32_t n = 0; n + PART < FLIGHT; n++)
                ahead[n] = ahead[n + PART];
        }
    }
}

/* Takes the digit in which the key that is looked for lies; by one thread. */
AQ_DEVICE_FN void take_digit(struct chooser *c, uint32_t shift)
{
    uint32_t digit = 255;
    while (c->count[digit] < c->rest)
        c->rest -= c->count[digit--];
    c->found |= static_cast<slot_key>(digit) << shift;
    if (c->count[digit] == c->rest)
        c->rest = 0; /* all that begin like this stay */
}

/* The least of the `wanted` highest keys of the chooser's heads that are below[head]; of no key at
 * all when none is wanted (all ones), of every key when there are no more (0). */
AQ_DEVICE_FN slot_key find_key(struct chooser *c, uint64_t wanted, uint64_t have)
{
    if (wanted == 0)
        return ~static_cast<slot_key>(0);
    if (wanted >= have)
        return 0;
    __syncthreads();
    if (threadIdx.x == 0) {
        c->found = 0;
        c->rest = static_cast<uint32_t>(wanted);
    }
    for (uint32_t shift = KEY_BITS; shift;) {
        shift -= 8;
        for (uint32_t i = threadIdx.x; i < 256; i += blockDim.x)
            c->count[i] = 0;
        __syncthreads();
        for (uint32_t h = 0; h < c->head_count; h++) {
            slot_key below = c->below[h], found = c->found;
            each_candidate(c, c->head_first + h, [&](slot_key key) {
                if (key < below && (key ^ found) >> shift >> 8 == 0)
                    atomicAdd(&c->count[static_cast<uint32_t>(key >> shift) & 255u], 1u);
            });
        }
        __syncthreads();
        if (threadIdx.x == 0)
            take_digit(c, shift);
        __syncthreads();
        if (!c->rest)
            break;
    }
    return c->found;
}

/* Slots that a head keeps of which `count` are among the best of its layer: struct aq_kv_select. */
AQ_DEVICE_FN uint32_t mixed(const struct aq_kv_select *s, uint64_t count)
{
    const uint64_t one = 1000000000;
    uint64_t exact = count * (one - s->mix) + s->floor * one, part = exact % one;
    uint32_t whole = static_cast<uint32_t>(exact / one), sinks = aq_cu_min(s->sinks, s->heavy);
    whole += part > one / 2 || (part == one / 2 && whole % 2);
    return whole > sinks ? whole : sinks;
}

/* How many of a head's candidates have at least this key; the same for all threads. */
AQ_DEVICE_FN uint32_t count_from(struct chooser *c, uint32_t head, slot_key least)
{
    __syncthreads();
    if (threadIdx.x == 0)
        c->count[0] = 0;
    __syncthreads();
    each_candidate(c, head, [&](slot_key key) {
        if (key >= least)
            atomicAdd(&c->count[0], 1u);
    });
    __syncthreads();
    return c->count[0];
}

/* Writes the slots of a head that stay, ascending. */
AQ_DEVICE_FN void keep_slots(struct chooser *c, uint32_t head, slot_key least, slot_key floor_least)
{
    const struct aq_kv_select *s = aq_cu_global(c->s);
    uint32_t warp = threadIdx.x / AQ_CU_WARP, kept = 0;
    for (uint32_t first = 0; first < s->len; first += blockDim.x) {
        uint32_t j = first + threadIdx.x;
        bool stays = j < s->len && j >= c->candidates;
        if (j < c->candidates) {
            slot_key key = key_of(s, head, j, value_of(s, head, j));
            stays = key >= least || key >= floor_least;
        }
        uint32_t ballot = __ballot_sync(AQ_CU_ALL, stays);
        if (aq_cu_lane() == 0)
            c->warp_count[warp] = __popc(ballot);
        __syncthreads();
        uint32_t at = kept + __popc(ballot & ((1u << aq_cu_lane()) - 1));
        for (uint32_t w = 0; w < blockDim.x / AQ_CU_WARP; w++) {
            at += w < warp ? c->warp_count[w] : 0;
            kept += c->warp_count[w];
        }
        if (stays)
            s->keep[static_cast<size_t>(head) * s->keep_stride + at] = j;
        __syncthreads();
    }
    if (threadIdx.x == 0)
        s->count[head] = kept;
}

__global__ void __launch_bounds__(SELECT_THREADS, 1)
    select_slots(const struct aq_kv_select *selects, uint32_t kv_heads)
{
    AQ_SHARED(struct chooser, c);
    const struct aq_kv_select *s = &selects[blockIdx.y];
    if (s->layer && blockIdx.x)
        return; /* the first block sees to all heads */
    uint32_t heads = s->layer ? kv_heads : 1, n = s->recent < s->len ? s->len - s->recent : 0;
    bool mix = s->layer && s->mix;
    uint32_t first = s->layer && !mix ? aq_cu_min(s->floor, s->heavy) : 0;
    uint32_t floor = aq_cu_min(first, n);
    if (threadIdx.x == 0) {
        c->s = s;
        c->candidates = n;
        c->head_first = blockIdx.x;
        c->head_count = 1;
    }
    for (uint32_t h = threadIdx.x; h < heads; h += blockDim.x)
        c->below[h] = ~static_cast<slot_key>(0);
    __syncthreads();
    /* Each head's `floor` best ones stay; the code below is about the others. */
    for (uint32_t h = 0; floor && h < heads; h++) {
        slot_key first = 0; /* thread 0's alone, which sets it again */
        if (threadIdx.x == 0) {
            first = c->below[0];
            c->head_first = h;
            c->below[0] = ~static_cast<slot_key>(0);
        }
        __syncthreads();
        slot_key least = find_key(c, floor, n);
        __syncthreads();
        if (threadIdx.x == 0) {
            c->below[h] = least;
            c->below[0] = h ? first : least;
        }
        __syncthreads();
    }
    if (threadIdx.x == 0) {
        c->head_first = blockIdx.x;
        c->head_count = heads;
    }
    __syncthreads();
    uint64_t wanted = static_cast<uint64_t>(s->heavy - first) * heads;
    slot_key least = find_key(c, wanted, static_cast<uint64_t>(n - floor) * heads);
    for (uint32_t h = 0; !mix && h < heads; h++)
        keep_slots(c, blockIdx.x + h, least, c->below[h]);
    /* The layer's best slots only say how many each head keeps of its own. */
    for (uint32_t h = 0; mix && h < heads; h++) {
        uint32_t best = count_from(c, h, least);
        if (threadIdx.x == 0) {
            c->head_first = h;
            c->head_count = 1;
        }
        __syncthreads();
        keep_slots(c, h, find_key(c, mixed(s, best), n), ~static_cast<slot_key>(0));
        __syncthreads();
    }
}

int aq_cuda_kv_select(const struct aq_cuda_exec *ex, const struct aq_kv_selects *s)
{
    assert(s->kv_heads <= SELECT_HEADS_MAX && s->count <= AQ_CU_GRID_YZ_MAX);
    if (!s->count)
        return 0;
    return AQ_LAUNCH(ex, select_slots, dim3(s->kv_heads, s->count), SELECT_THREADS,
                     sizeof(struct chooser), s->selects, s->kv_heads);
}
