/* SPDX-License-Identifier: Apache-2.0
 * Sequences of a row each that share their leading blocks (struct aq_attn_seq: shared), on vec.h;
 * included by attn_decode_simd.h.
 *
 * A tile has some neighbours of such a group and one KV head at a time.  Each block that several of
 * them share is attended by all their queries before the next one is, from the first-level cache;
 * then each sequence attends the blocks that are its own.  A query meets its blocks in the order in
 * which it meets them alone, with the same sums, so its bits are the same. */

/* Is sequence i attended together with the one before it?  Where less than a quarter of its keys is
 * shared, blocks of heads side by side are worth more (attend_blocks). */
static inline bool joins(const struct aq_attn *a, uint32_t i)
{
    const struct aq_attn_seq *s = &a->seqs[i];
    if (!i || !s->shared || a->window || a->rule.victim)
        return false;
    if (s->rows != 1 || s[-1].rows != 1 || s->turn.turn || s[-1].turn.turn)
        return false;
    return s->shared >= aq_div_up(aq_attn_len(s, 0), BLOCK_SLOTS) / 4;
}

/* Sequences of a tile at most: as many as one reading of K and V serves, but some tiles must be
 * left for each thread. */
static inline uint32_t joint_members_max(const struct aq_attn *a, uint32_t threads)
{
    uint64_t spread = (uint64_t)a->seq_count * a->kv_heads / (4ull * threads);
    return (uint32_t)aq_max_u64(1, aq_min_u64(QUERIES_MAX / a->q_per_kv, spread));
}

/* Sequences of the tile that begins with sequence i; 0 where another tile has it. */
static inline uint32_t joint_members(const struct aq_attn *a, uint32_t most, uint32_t i)
{
    uint32_t before = 0, members = 1;
    if (most == 1)
        return 1;
    while (joins(a, i - before))
        before++;
    if (before % most)
        return 0;
    while (members < most && i + members < a->seq_count && joins(a, i + members))
        members++;
    return members;
}

/* Tiles of a KV head. */
static inline uint32_t joint_tiles(const struct aq_attn *a, uint32_t most)
{
    uint32_t tiles = 0, members = 0; /* of the last tile */
    for (uint32_t i = 0; i < a->seq_count; i++) {
        bool begins = members == 0 || members == most || !joins(a, i);
        members = begins ? 1 : members + 1;
        tiles += begins;
    }
    return tiles;
}

/* Blocks that member i of a tile has in common with the one before it there. */
static inline uint32_t shared_with_last(const struct decode_run *run, uint32_t i)
{
    return i && i < run->members ? run->seq[i].shared : 0;
}

/* Blocks that it has in common with either neighbour; those behind them are its own. */
static inline uint32_t shared_blocks(const struct decode_run *run, uint32_t i)
{
    return (uint32_t)aq_max_u64(shared_with_last(run, i), shared_with_last(run, i + 1));
}

/* Where a tile is: at a block, which members [first, end) attend. */
struct joint_walk {
    uint32_t first, end, block;
    uint32_t shared, most; /* the block that is looked for among shared ones; how many there are */
    uint32_t member, own;  /* whose own blocks come next, and which */
};

/* The next members side by side that share a block. */
static inline bool find_shared(const struct decode_run *run, struct joint_walk *w)
{
    for (; w->shared < w->most; w->shared++, w->end = 0) {
        while (w->end < run->members) {
            w->first = w->end++;
            while (w->end < run->members && shared_with_last(run, w->end) > w->shared)
                w->end++;
            w->block = w->shared;
            if (w->end > w->first + 1)
                return true;
        }
    }
    return false;
}

static inline bool find_own(const struct decode_run *run, struct joint_walk *w)
{
    for (; w->member < run->members; w->own = shared_blocks(run, ++w->member)) {
        uint32_t len = aq_attn_len(&run->seq[w->member], run->head);
        w->first = w->member;
        w->end = w->member + 1;
        w->block = w->own++;
        if (w->block * BLOCK_SLOTS < len)
            return true;
    }
    return false;
}

/* Sets the block to ask for: the next one of the first of these members, or of those behind it the
 * first of its own. */
static inline void find_joint_next(struct step *x, const struct decode_run *run,
                                   const struct joint_walk *w)
{
    const struct aq_attn_seq *seq = &run->seq[w->first], *next = seq;
    uint32_t len = aq_attn_len(seq, run->head), b = w->block + 1;
    if (b * BLOCK_SLOTS >= len && w->end < run->members) {
        next = &run->seq[w->end];
        b = shared_blocks(run, w->end);
        len = aq_attn_len(next, run->head);
    }
    x->next_slots = 0;
    if (b * BLOCK_SLOTS < len &&
        aq_attn_block_dtype(run->a, next, b) == aq_attn_block_dtype(run->a, seq, w->block)) {
        x->next = aq_attn_block(next, run->head, b);
        x->next_slots = (uint32_t)aq_min_u64(len - b * BLOCK_SLOTS, BLOCK_SLOTS);
    }
}

/* All blocks of a tile's members: those that some share, then each member's own. */
static void attend_jointly(struct decode *t, const struct decode_run *run)
{
    struct joint_walk w = {.own = shared_blocks(run, 0)};
    struct step x = {.p = t->p};
    if (!aq_dtype_is_kivi(run->a->kv_dtype))
        order_queries(t, (struct form){run->a->kv_dtype, t->dim});
    for (uint32_t i = 1; i < run->members; i++)
        w.most = (uint32_t)aq_max_u64(w.most, shared_with_last(run, i));
    while (find_shared(run, &w) || find_own(run, &w)) {
        const struct aq_attn_seq *seq = &run->seq[w.first];
        uint32_t g = run->a->q_per_kv;
        x.block = aq_attn_block(seq, run->head, w.block);
        find_joint_next(&x, run, &w);
        struct span rest = attend_many(t, run, &x, (struct span){w.first * g, w.end * g}, w.block);
        if (rest.begin < rest.end)
            attend(t, run, seq, &x, rest, w.block);
    }
}
