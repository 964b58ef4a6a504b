/* SPDX-License-Identifier: Apache-2.0
 * What decode attention leaves behind in the slots, on vec.h; included once by each version's file,
 * before attn_decode_simd.h.
 *
 * Attention keeps the exp() that it took of every score (against the maximum so far, which it keeps
 * per block).  Once the softmax is known, one factor per block turns them into probabilities, and
 * one pass over the slots of a head reads scores and positions, writes scores and finds the victim.
 * Slots are taken one by one and query heads in order, so that no bit depends on who shares a
 * tile. */

/* The best slot so far, lane by lane. */
struct slot_best {
    vec score;
    vec_int position, slot;
};

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

VEC_FN struct slot_best best_none(void)
{
    return (struct slot_best){vec_set(INFINITY), vec_int_set(INT32_MAX), vec_int_set(-1)};
}

/* Makes the slots [slot, slot + n) the best where they are candidates and better. */
VEC_FN void best_take(struct slot_best *best, const struct aq_attn_rule *rule, int32_t end,
                      uint32_t slot, uint32_t n, vec score, vec_int position)
{
    int32_t sinks = (int32_t)aq_min_u64(rule->sinks, INT32_MAX);
    vec_mask on =
        vec_both(vec_first(n), vec_both(vec_int_greater(vec_int_set(end), position),
                                        vec_int_greater(position, vec_int_set(sinks - 1))));
    vec_mask better;
    if (rule->by_position) {
        better = vec_either(vec_int_greater(position, best->position),
                            vec_int_greater(vec_int_set(0), best->slot));
    } else {
        score = vec_select(vec_equal(score, score), score, vec_set(INFINITY));
        better = vec_either(
            vec_less(score, best->score),
            vec_both(vec_equal(score, best->score), vec_int_greater(best->position, position)));
        best->score = vec_select(vec_both(on, better), score, best->score);
    }
    on = vec_both(on, better);
    best->position = vec_int_select(on, position, best->position);
    best->slot =
        vec_int_select(on, vec_int_add(vec_int_set((int32_t)slot), vec_int_lanes()), best->slot);
}

/* The best of the lanes' best; UINT32_MAX where no slot is a candidate. */
static uint32_t best_slot(const struct slot_best *best, bool by_position)
{
    float score[VEC_LANES];
    int32_t position[VEC_LANES], slot[VEC_LANES];
    vec_store(score, best->score);
    vec_int_store(position, best->position);
    vec_int_store(slot, best->slot);
    uint32_t of = 0;
    for (uint32_t i = 1; i < VEC_LANES; i++) {
        if (slot[i] < 0)
            continue;
        bool better = by_position ? position[i] > position[of]
                                  : score[i] < score[of] ||
                                        (score[i] == score[of] && position[i] < position[of]);
        of = slot[of] < 0 || better ? i : of;
    }
    return (uint32_t)slot[of];
}

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

/* Scores of the slots [slot, slot + n) of block b, and the victim among them. */
VEC_FN void slot_update(const struct slot_pass *x, enum aq_attn_stat stat, uint32_t b,
                        uint32_t slot, uint32_t n, struct slot_best *best)
{
    const struct aq_attn_slots *slots = &x->seq->slots;
    size_t at = (size_t)x->head * slots->stride + slot;
    vec c = slot_count(x, stat, b, slot);
    if (!x->ends) {
        vec_store(x->partial + slot, c);
        return;
    }
    vec score = vec_fma(vec_load(slots->score + at), vec_set(x->a->rule->decay), c);
    if (n >= VEC_LANES)
        vec_store(slots->score + at, score);
    else
        vec_store_n(slots->score + at, score, n);
    if (x->choose) {
        vec_int position = vec_int_load((const int32_t *)slots->position + at);
        best_take(best, x->a->rule, (int32_t)aq_attn_victim_end(x->seq), slot, n, score, position);
    }
}

VEC_FN void slot_updates(const struct slot_pass *x, enum aq_attn_stat stat)
{
    struct slot_best best = best_none();
    uint32_t slot = 0;
    for (; slot + AQ_HEAD_BLOCK_SLOTS <= x->keys; slot += AQ_HEAD_BLOCK_SLOTS) {
        for (uint32_t i = 0; i < AQ_HEAD_BLOCK_SLOTS; i += VEC_LANES)
            slot_update(x, stat, slot / AQ_HEAD_BLOCK_SLOTS, slot + i, VEC_LANES, &best);
    }
    for (; slot < x->keys; slot += VEC_LANES)
        slot_update(x, stat, slot / AQ_HEAD_BLOCK_SLOTS, slot, x->keys - slot, &best);
    if (x->choose)
        x->seq->slots.victim[x->head] = best_slot(&best, x->a->rule->by_position);
}

static void slots_pass(const struct slot_pass *x)
{
    switch (x->a->rule->stat) {
    case AQ_ATTN_PROB: slot_updates(x, AQ_ATTN_PROB); break;
    case AQ_ATTN_PROB_SQUARED: slot_updates(x, AQ_ATTN_PROB_SQUARED); break;
    case AQ_ATTN_BELOW: slot_updates(x, AQ_ATTN_BELOW); break;
    }
}

/* The victim alone. */
static void slots_victim(const struct aq_attn *a, const struct aq_attn_seq *seq, uint32_t head)
{
    aq_slots_assert(a, seq);
    struct slot_best best = best_none();
    size_t first = (size_t)head * seq->slots.stride;
    const int32_t *position = (const int32_t *)seq->slots.position + first;
    const float *score = a->rule->by_position ? NULL : seq->slots.score + first;
    uint32_t len = aq_attn_len(seq, head);
    int32_t end = (int32_t)aq_attn_victim_end(seq);
    for (uint32_t slot = 0; slot < len; slot += VEC_LANES)
        best_take(&best, a->rule, end, slot, len - slot,
                  score ? vec_load(score + slot) : vec_zero(), vec_int_load(position + slot));
    seq->slots.victim[head] = best_slot(&best, a->rule->by_position);
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
