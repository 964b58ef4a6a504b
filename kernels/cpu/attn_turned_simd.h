/* SPDX-License-Identifier: Apache-2.0
 * Queries that are turned back in front of a sequence's first slots (struct aq_attn_turn), on
 * vec.h; included by attn_block_simd.h.  Few slots are, in the first block mostly: they are
 * scored once more, in the order of all scores, and no other slot's score changes. */

VEC_FN void turn_query(float *to, const float *q, uint32_t dim, const struct aq_attn_turn *by)
{
    uint32_t half = by->dim / 2;
    vec scale = vec_set(by->scale);
    for (uint32_t d = 0; d < half; d += VEC_LANES) {
        uint32_t n = (uint32_t)aq_min_u64(VEC_LANES, half - d);
        vec a = vec_load_n(q + d, n), b = vec_load_n(q + half + d, n);
        vec c = vec_mul(vec_load_n(by->turn + d, n), scale);
        vec s = vec_mul(vec_load_n(by->turn + half + d, n), scale);
        vec_store_n(to + d, vec_fma(c, a, vec_mul(s, b)), n);
        vec_store_n(to + half + d, vec_fms(c, b, vec_mul(s, a)), n);
    }
    memcpy(to + by->dim, q + by->dim, (dim - by->dim) * sizeof(*to));
}

static __attribute__((noinline)) void score_turned(struct decode *t, const struct step *x,
                                                   struct form f, uint32_t queries)
{
    uint32_t slots = border_in(t->turn.slots, x->number);
    float p[BLOCK_SLOTS];
    struct step turned = *x;
    turned.slots = (uint32_t)aq_min_u64(slots, x->slots);
    turned.next_slots = 0;
    turned.q = t->q_turned;
    turned.p = p;
    for (uint32_t i = 0; i < queries; i++) {
        turn_query(t->q_turned, x->q + (size_t)i * t->dim_pad, t->dim_pad, &t->turn);
        score(t, &turned, f, 1);
        memcpy(x->p + i * BLOCK_SLOTS, p, turned.slots * sizeof(*p));
    }
}

VEC_FN bool is_turned(const struct decode *t, const struct step *x)
{
    return t->turn.turn && border_in(t->turn.slots, x->number);
}
