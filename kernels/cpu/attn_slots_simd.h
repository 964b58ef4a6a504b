/* SPDX-License-Identifier: Apache-2.0
 * What decode attention leaves behind in the slots, on vec.h; included once by each version's file,
 * before attn_decode_simd.h.
 *
 * Attention keeps the exp() that it took of every score (against the maximum so far, which it keeps
 * per block).  Once the softmax is known, one factor per block turns them into probabilities, and
 * one pass over the slots of a head reads scores and positions, writes scores and finds the victim.
 * Slots are taken one by one and query heads in order, so that no bit depends on who shares a
 * tile. */

/* A KV head whose softmax is known, for one query row. */
struct slot_pass {
    const struct aq_attn *a;
    const struct aq_attn_seq *seq;
    uint32_t head;
    uint32_t keys;       /* slots that the query sees */
    uint32_t queries;    /* query heads at hand: all of the group, or 32 of many */
    bool begins, ends;   /* these are the first, the last of the group */
    bool choose;         /* the victim too */
    const float *kept;   /* [queries][kept_stride]: exp(score - maximum of then) */
    const float *factor; /* [queries][factor_stride]: per block, what makes these p */
    size_t kept_stride, factor_stride;
    float *partial; /* [slots]: c of the queries before these; NULL where there are none */
};

/* ---- the victim ---- */

enum { BESTS = AQ_HEAD_BLOCK_SLOTS / VEC_LANES }; /* one per vector of a block: short chains */

/* Candidates are positions in [sinks, end): position + low < high, of signed numbers, at the price
 * of one comparison. */
struct slot_choice {
    const int32_t *position;
    vec_int low, high;
    vec score[BESTS]; /* lowest so far, lane by lane, */
    vec_int slot[BESTS];
};

static inline struct slot_choice choice_open(const struct aq_attn *a, const struct aq_attn_seq *seq,
                                             uint32_t head)
{
    int64_t end = aq_attn_victim_end(seq);
    int64_t sinks = (int64_t)aq_min_u64(a->rule->sinks, INT32_MAX);
    struct slot_choice c = {
        .low = vec_int_set((int32_t)(INT32_MIN - sinks)),
        .high = vec_int_set((int32_t)(INT32_MIN + (end > sinks ? end - sinks : 0)))};
    c.position = (const int32_t *)seq->slots.position + (size_t)head * seq->slots.stride;
    for (int i = 0; i < BESTS; i++) {
        c.score[i] = vec_set(INFINITY);
        c.slot[i] = vec_int_set(-1);
    }
    return c;
}

VEC_FN vec_mask candidates(const struct slot_choice *c, uint32_t slot)
{
    return vec_int_greater(c->high, vec_int_add(vec_int_load(c->position + slot), c->low));
}

/* Of equal scores, which are rare, the lower position is the better one. */
static __attribute__((noinline)) vec_int take_ties(const int32_t *position, vec_int best, vec equal,
                                                   uint32_t first)
{
    int32_t slot[VEC_LANES];
    float tie[VEC_LANES];
    vec_int_store(slot, best);
    vec_store(tie, equal);
    for (uint32_t i = 0; i < VEC_LANES; i++) {
        if (tie[i] != 0 && slot[i] >= 0 && position[first + i] < position[slot[i]])
            slot[i] = (int32_t)(first + i);
    }
    return vec_int_load(slot);
}

/* Looks at the slots [slot, slot + n): NaN and infinite ones are not taken here. */
VEC_FN void choice_take(struct slot_choice *c, uint32_t slot, uint32_t n, vec score)
{
    uint32_t i = slot % AQ_HEAD_BLOCK_SLOTS / VEC_LANES;
    vec_mask on = candidates(c, slot);
    if (n < VEC_LANES)
        on = vec_both(on, vec_first(n));
    vec_mask less = vec_both(on, vec_less(score, c->score[i]));
    vec_mask tie = vec_both(on, vec_equal(score, c->score[i]));
    if (vec_any(tie))
        c->slot[i] =
            take_ties(c->position, c->slot[i], vec_select(tie, vec_set(1), vec_zero()), slot);
    c->score[i] = vec_select(less, score, c->score[i]);
    c->slot[i] =
        vec_int_select(less, vec_int_add(vec_int_set((int32_t)slot), vec_int_lanes()), c->slot[i]);
}

/* The best of the lanes' best; -1 where none has a finite score. */
VEC_FN int32_t choice_best(const struct slot_choice *c)
{
    float score[BESTS * VEC_LANES];
    int32_t slot[BESTS * VEC_LANES], best = -1;
    for (int i = 0; i < BESTS; i++) {
        vec_store(score + i * VEC_LANES, c->score[i]);
        vec_int_store(slot + i * VEC_LANES, c->slot[i]);
    }
    float lowest = INFINITY;
    for (int i = 0; i < BESTS * VEC_LANES; i++) {
        if (slot[i] < 0 || score[i] > lowest)
            continue;
        if (score[i] < lowest || c->position[slot[i]] < c->position[best])
            best = slot[i];
        lowest = score[i];
    }
    return best;
}

/* Scores that are NaN or infinite, and heads without candidates, are for the plain search. */
VEC_FN void choice_close(const struct slot_choice *c, const struct aq_attn *a,
                         const struct aq_attn_seq *seq, uint32_t head)
{
    int32_t best = choice_best(c);
    seq->slots.victim[head] = best >= 0 ? (uint32_t)best : aq_slots_victim(a, seq, head);
}

/* The candidate of the highest position. */
static uint32_t last_candidate(const struct aq_attn *a, const struct aq_attn_seq *seq,
                               uint32_t head)
{
    struct slot_choice c = choice_open(a, seq, head);
    uint32_t len = aq_attn_len(seq, head), best = UINT32_MAX;
    vec_int highest = vec_int_set(-1), at = highest;
    for (uint32_t slot = 0; slot < len; slot += VEC_LANES) {
        vec_int position = vec_int_load(c.position + slot);
        vec_mask on = vec_both(candidates(&c, slot), vec_first(len - slot));
        on = vec_both(on, vec_int_greater(position, highest));
        highest = vec_int_select(on, position, highest);
        at = vec_int_select(on, vec_int_add(vec_int_set((int32_t)slot), vec_int_lanes()), at);
    }
    int32_t slots[VEC_LANES];
    vec_int_store(slots, at);
    for (uint32_t i = 0; i < VEC_LANES; i++) {
        if (slots[i] >= 0 && (best == UINT32_MAX || c.position[slots[i]] > c.position[best]))
            best = (uint32_t)slots[i];
    }
    return best;
}

/* The victim alone. */
static void slots_victim(const struct aq_attn *a, const struct aq_attn_seq *seq, uint32_t head)
{
    aq_slots_assert(a, seq);
    if (a->rule->by_position) {
        seq->slots.victim[head] = last_candidate(a, seq, head);
        return;
    }
    struct slot_choice c = choice_open(a, seq, head);
    const float *score = seq->slots.score + (size_t)head * seq->slots.stride;
    uint32_t len = aq_attn_len(seq, head);
    for (uint32_t slot = 0; slot < len; slot += VEC_LANES)
        choice_take(&c, slot, len - slot, vec_load(score + slot));
    choice_close(&c, a, seq, head);
}

/* ---- scores ---- */

/* f(p) of query g for VEC_LANES slots of block b, `slot` being the first. */
VEC_FN vec slot_stat(const struct slot_pass *x, enum aq_attn_stat stat, uint32_t g, uint32_t b,
                     uint32_t slot)
{
    vec p = vec_mul(vec_load(x->kept + g * x->kept_stride + slot),
                    vec_set(x->factor[g * x->factor_stride + b]));
    if (stat == AQ_ATTN_PROB_SQUARED)
        return vec_mul(p, p);
    if (stat == AQ_ATTN_BELOW)
        return vec_select(vec_less(p, vec_set(x->a->rule->threshold / (float)x->keys)), vec_set(1),
                          vec_zero());
    return p;
}

/* c(row, slot) of the queries so far. */
VEC_FN vec slot_count(const struct slot_pass *x, enum aq_attn_stat stat, uint32_t b, uint32_t slot)
{
    enum aq_attn_group group = x->a->rule->group;
    vec c = x->begins ? vec_zero() : vec_load(x->partial + slot);
    if (group == AQ_ATTN_FIRST)
        return x->begins ? slot_stat(x, stat, 0, b, slot) : c;
    for (uint32_t g = 0; g < x->queries; g++) {
        vec f = slot_stat(x, stat, g, b, slot);
        c = group == AQ_ATTN_MAX ? vec_max(c, f) : vec_add(c, f);
    }
    if (group == AQ_ATTN_MEAN && x->ends)
        c = vec_div(c, vec_set((float)x->a->q_per_kv));
    return c;
}

/* Scores of the slots [slot, slot + n) of block b; looks for the victim among them. */
VEC_FN void slot_update(const struct slot_pass *x, enum aq_attn_stat stat, bool choose, uint32_t b,
                        uint32_t slot, uint32_t n, struct slot_choice *choice)
{
    float *score = x->seq->slots.score + (size_t)x->head * x->seq->slots.stride + slot;
    vec c = slot_count(x, stat, b, slot);
    if (!x->ends) {
        vec_store(x->partial + slot, c);
        return;
    }
    c = vec_fma(vec_load(score), vec_set(x->a->rule->decay), c);
    if (n >= VEC_LANES)
        vec_store(score, c);
    else
        vec_store_n(score, c, n);
    if (choose)
        choice_take(choice, slot, n, c);
}

VEC_FN void slot_updates(const struct slot_pass *x, enum aq_attn_stat stat, bool choose)
{
    struct slot_choice choice = {0};
    if (choose)
        choice = choice_open(x->a, x->seq, x->head);
    uint32_t slot = 0;
    for (; slot + AQ_HEAD_BLOCK_SLOTS <= x->keys; slot += AQ_HEAD_BLOCK_SLOTS) {
        AQ_UNROLL(4)
        for (uint32_t i = 0; i < AQ_HEAD_BLOCK_SLOTS; i += VEC_LANES)
            slot_update(x, stat, choose, slot / AQ_HEAD_BLOCK_SLOTS, slot + i, VEC_LANES, &choice);
    }
    for (; slot < x->keys; slot += VEC_LANES)
        slot_update(x, stat, choose, slot / AQ_HEAD_BLOCK_SLOTS, slot, x->keys - slot, &choice);
    if (choose)
        choice_close(&choice, x->a, x->seq, x->head);
}

static void slots_pass(const struct slot_pass *x)
{
    bool by_score = x->choose && !x->a->rule->by_position;
    if (x->a->rule->stat == AQ_ATTN_PROB && by_score)
        slot_updates(x, AQ_ATTN_PROB, true);
    else if (x->a->rule->stat == AQ_ATTN_PROB)
        slot_updates(x, AQ_ATTN_PROB, false);
    else
        slot_updates(x, x->a->rule->stat, by_score);
    if (x->choose && !by_score)
        slots_victim(x->a, x->seq, x->head);
}

struct victim_job {
    const struct aq_attn *a;
};

static void victim_tile(void *arg, uint32_t tile, uint32_t worker)
{
    const struct aq_attn *a = ((const struct victim_job *)arg)->a;
    const struct aq_attn_seq *seq = &a->seqs[tile / a->kv_heads];
    if (seq->slots.victim)
        slots_victim(a, seq, tile % a->kv_heads);
}

static void kv_victim(struct aq_exec *ex, const struct aq_attn *a)
{
    aq_attn_assert(a);
    struct victim_job job = {.a = a};
    aq_pool_run(aq_exec_pool(ex), victim_tile, &job, a->seq_count * a->kv_heads);
}
