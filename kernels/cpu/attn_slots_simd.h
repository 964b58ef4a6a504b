/* SPDX-License-Identifier: Apache-2.0
 * The scores and victims that decode attention leaves in the slots, on vec.h; included once by each
 * version's file, before attn_decode_simd.h.
 *
 * Attention keeps the exp() that it took of every score (against the maximum so far, which it keeps
 * per block).  Once the softmax is known, one factor per block turns them into probabilities, and
 * one pass over the slots of a head reads scores and positions, writes scores and finds the lowest;
 * another one, over scores alone, finds whose it is.
 * Slots are taken one by one and query heads in order, so that no bit depends on who shares a
 * tile. */

/* A KV head whose softmax is known, for one query row. */
struct slot_pass {
    const struct aq_attn *a;
    const struct aq_attn_seq *seq;
    struct aq_attn_rule rule;
    float *score; /* [slots] */
    uint32_t head, q_per_kv;
    uint32_t first, keys; /* slots that the query sees: [first, keys) */
    uint32_t queries;     /* query heads at hand: all of the group, or 32 of many */
    bool begins, ends;    /* these are the first, the last of the group */
    bool choose;          /* the victim too */
    const float *kept;    /* [queries][kept_stride]: exp(score - maximum of then) */
    const float *factor;  /* [queries][factor_stride]: per block, what makes these p */
    size_t kept_stride, factor_stride;
    float *partial; /* [slots]: c of the queries before these; NULL where there are none */
};

/* ---- the victim ---- */

enum { LOWESTS = AQ_HEAD_BLOCK_SLOTS / VEC_LANES }; /* one per vector of a block: short chains */

/* Candidates are positions in [sinks, end): position + low < high, of signed numbers, at the price
 * of one comparison.  One pass finds their lowest score, another one, over scores alone, who has
 * it: who comes first among equals is asked of these few only. */
struct slot_choice {
    const int32_t *position;
    vec_int low, high;
    vec lowest[LOWESTS]; /* lane by lane */
};

static inline struct slot_choice choice_open(const struct aq_attn *a, const struct aq_attn_seq *seq,
                                             uint32_t head)
{
    int64_t end = aq_attn_victim_end(seq);
    int64_t sinks = (int64_t)aq_min_u64(a->rule.sinks, INT32_MAX);
    struct slot_choice c = {
        .low = vec_int_set((int32_t)(INT32_MIN - sinks)),
        .high = vec_int_set((int32_t)(INT32_MIN + (end > sinks ? end - sinks : 0)))};
    c.position = (const int32_t *)seq->slots.position + (size_t)head * seq->slots.stride;
    for (int i = 0; i < LOWESTS; i++)
        c.lowest[i] = vec_set(INFINITY);
    return c;
}

VEC_FN vec_mask candidates(const struct slot_choice *c, uint32_t slot)
{
    return vec_int_greater(c->high, vec_int_add(vec_int_load(c->position + slot), c->low));
}

/* Looks at the slots [slot, slot + n), vector i of their block: NaN and infinite ones are not taken
 * here. */
VEC_FN void choice_take(struct slot_choice *c, uint32_t i, uint32_t slot, uint32_t n, vec score)
{
    vec_mask on = candidates(c, slot);
    if (n < VEC_LANES)
        on = vec_both(on, vec_first(n));
    c->lowest[i] = vec_min_where(on, score, c->lowest[i]);
}

VEC_FN float choice_lowest(const struct slot_choice *c)
{
    float lane[VEC_LANES], lowest = INFINITY;
    for (int i = 0; i < LOWESTS; i++) {
        vec_store(lane, c->lowest[i]);
        for (int l = 0; l < VEC_LANES; l++)
            lowest = lane[l] < lowest ? lane[l] : lowest;
    }
    return lowest;
}

/* The candidate of this score whose position is the lowest: there is one. */
static uint32_t choice_find(const struct slot_choice *c, const float *score, uint32_t len,
                            float lowest)
{
    uint32_t best = UINT32_MAX;
    for (uint32_t slot = 0; slot < len; slot += VEC_LANES) {
        vec_mask equal = vec_equal(vec_load(score + slot), vec_set(lowest));
        if (!vec_any(equal))
            continue;
        equal = vec_both(vec_both(equal, candidates(c, slot)), vec_first(len - slot));
        float taken[VEC_LANES];
        vec_store(taken, vec_select(equal, vec_set(1), vec_zero()));
        for (uint32_t i = 0; i < VEC_LANES; i++) {
            if (taken[i] != 0 && (best == UINT32_MAX || c->position[slot + i] < c->position[best]))
                best = slot + i;
        }
    }
    return best;
}

/* Scores that are NaN or infinite, and heads without candidates, are for the plain search. */
static inline void choice_close(const struct slot_choice *c, const struct aq_attn *a,
                                const struct aq_attn_seq *seq, uint32_t head)
{
    float lowest = choice_lowest(c);
    const float *score = seq->slots.score + (size_t)head * seq->slots.stride;
    seq->slots.victim[head] = lowest < INFINITY
                                  ? choice_find(c, score, aq_attn_len(seq, head), lowest)
                                  : aq_slots_victim(a, seq, head);
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
    if (a->rule.victim == AQ_ATTN_BY_POSITION) {
        seq->slots.victim[head] = last_candidate(a, seq, head);
        return;
    }
    struct slot_choice c = choice_open(a, seq, head);
    const float *score = seq->slots.score + (size_t)head * seq->slots.stride;
    uint32_t len = aq_attn_len(seq, head);
    for (uint32_t slot = 0; slot < len; slot += VEC_LANES)
        choice_take(&c, slot / VEC_LANES % LOWESTS, slot, len - slot, vec_load(score + slot));
    choice_close(&c, a, seq, head);
}

/* ---- scores ---- */

/* f(p) of query g for VEC_LANES slots of block b, `slot` being the first. */
VEC_FN vec slot_stat(const struct slot_pass *x, uint32_t g, uint32_t b, uint32_t slot)
{
    vec p = vec_mul(vec_load(x->kept + g * x->kept_stride + slot),
                    vec_set(x->factor[g * x->factor_stride + b]));
    if (x->rule.stat == AQ_ATTN_PROB_SQUARED)
        return vec_mul(p, p);
    if (x->rule.stat == AQ_ATTN_LOW)
        return vec_select(vec_less(p, vec_set(x->rule.threshold / (float)(x->keys - x->first))),
                          vec_set(-1), vec_zero());
    return p;
}

/* c(row, slot) of the queries so far. */
VEC_FN vec slot_count(const struct slot_pass *x, uint32_t b, uint32_t slot)
{
    enum aq_attn_group group = x->rule.group;
    vec start = group == AQ_ATTN_MAX ? vec_set(-INFINITY) : vec_zero();
    vec c = x->begins ? start : vec_load(x->partial + slot);
    if (group == AQ_ATTN_FIRST)
        return x->begins ? slot_stat(x, 0, b, slot) : c;
    for (uint32_t g = 0; g < x->queries; g++) {
        vec f = slot_stat(x, g, b, slot);
        c = group == AQ_ATTN_MAX ? vec_max(c, f) : vec_add(c, f);
    }
    if (group == AQ_ATTN_MEAN && x->ends)
        c = vec_div(c, vec_set((float)x->q_per_kv));
    return c;
}

/* The same where the window begins later: 0 in front of it. */
VEC_FN vec border_count(const struct slot_pass *x, uint32_t b, uint32_t slot)
{
    if (x->first - slot >= VEC_LANES)
        return vec_zero();
    vec_int before = vec_int_set((int32_t)(x->first - slot) - 1);
    return vec_select(vec_int_greater(vec_int_lanes(), before), slot_count(x, b, slot), vec_zero());
}

/* Scores of the slots [slot, slot + n), vector i of block b; looks for the victim among them. */
VEC_FN void slot_update(const struct slot_pass *x, uint32_t b, uint32_t i, uint32_t n,
                        struct slot_choice *choice)
{
    uint32_t slot = b * AQ_HEAD_BLOCK_SLOTS + i * VEC_LANES;
    vec c = slot < x->first ? border_count(x, b, slot) : slot_count(x, b, slot);
    if (!x->ends) {
        vec_store(x->partial + slot, c);
        return;
    }
    c = vec_fma(vec_load(x->score + slot), vec_set(x->rule.decay), c);
    if (n >= VEC_LANES)
        vec_store(x->score + slot, c);
    else
        vec_store_n(x->score + slot, c, n);
    if (x->choose)
        choice_take(choice, i, slot, n, c);
}

/* By value: what is stored cannot change a copy, which then stays in registers. */
VEC_FN void slot_updates(struct slot_pass x)
{
    struct slot_choice choice = {0};
    if (x.choose)
        choice = choice_open(x.a, x.seq, x.head);
    uint32_t whole = x.keys / AQ_HEAD_BLOCK_SLOTS;
    for (uint32_t b = 0; b < whole; b++) {
        AQ_UNROLL(4)
        for (uint32_t i = 0; i < LOWESTS; i++)
            slot_update(&x, b, i, VEC_LANES, &choice);
    }
    AQ_UNROLL(4)
    for (uint32_t i = 0; i < LOWESTS; i++) {
        uint32_t slot = whole * AQ_HEAD_BLOCK_SLOTS + i * VEC_LANES;
        if (slot < x.keys)
            slot_update(&x, whole, i, x.keys - slot, &choice);
    }
    if (x.choose)
        choice_close(&choice, x.a, x.seq, x.head);
}

/* Probabilities are what most rules count: the loop knows it then, and most of all for a query head
 * alone, which every group makes the same number of. */
static void slots_pass(struct slot_pass x)
{
    bool choose = x.choose;
    x.choose = choose && x.rule.victim == AQ_ATTN_BY_SCORE;
    if (x.rule.stat == AQ_ATTN_PROB && x.q_per_kv == 1) {
        x.rule.stat = AQ_ATTN_PROB;
        x.rule.group = AQ_ATTN_SUM;
        x.queries = 1;
        x.begins = x.ends = true;
        slot_updates(x);
    } else if (x.rule.stat == AQ_ATTN_PROB) {
        x.rule.stat = AQ_ATTN_PROB;
        slot_updates(x);
    } else {
        slot_updates(x);
    }
    if (choose && x.rule.victim == AQ_ATTN_BY_POSITION)
        slots_victim(x.a, x.seq, x.head);
}

static void victim_tile(void *arg, uint32_t tile, uint32_t worker)
{
    const struct aq_attn *a = arg;
    const struct aq_attn_seq *seq = aq_slots_victim_alone(a, tile);
    uint32_t head = tile % a->kv_heads;
    if (seq)
        slots_victim(a, seq, head);
}

void VEC_VERSION(kv_victim)(struct aq_exec *ex, const struct aq_attn *a)
{
    aq_attn_assert(a);
    aq_pool_run(aq_exec_pool(ex), victim_tile, (void *)a, a->seq_count * a->kv_heads);
}
