/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/seats.h"

#include "policy/kv_read.h"
#include "policy/rotary.h"
#include "policy/traffic.h"

#include <assert.h>
#include <string.h>

void aq_seats_open(struct aq_seats *s, const struct aq_seats_opts *opts,
                   const struct aq_seats_arrays *arrays)
{
    *s = (struct aq_seats){
        .opts = *opts,
        .seat = arrays->seat,
        .lengths = arrays->lengths,
        .prompt_rows = arrays->prompt_rows,
        .order = arrays->order,
        .count = opts->plan->shape.micro_batch * opts->plan->shape.micro_batches,
        .left = -1,
        .filling = true,
    };
    uint32_t kinds = opts->plan->kinds.count;
    for (uint32_t i = 0; i < s->count; i++)
        s->seat[i].kv = arrays->kv + (size_t)i * kinds;
    s->asks = arrays->kv + (size_t)s->count * kinds;
}

uint32_t aq_seats_part(const struct aq_plan *plan, uint32_t seat)
{
    uint32_t place = seat % plan->shape.micro_batch, part = 0, end = plan->part_count;
    while (end - part > 1) {
        uint32_t middle = part + (end - part) / 2;
        *(place >= plan->part[middle].first ? &part : &end) = middle;
    }
    assert(place - plan->part[part].first < plan->part[part].count);
    return part;
}

static const struct aq_part *part_of(const struct aq_seats *s, uint32_t seat)
{
    return &s->opts.plan->part[aq_seats_part(s->opts.plan, seat)];
}

/* ---- admission --------------------------------------------------------------------------- */

/* Does any part of the plan take in several given tokens in a pass?  Not where each row reads the
 * blocks that it chooses. */
static bool feeds_many(const struct aq_plan *plan)
{
    return !plan->separate && !plan->kv.residual.tokens && !plan->kv.read &&
           !aq_kv_policy_ragged(&plan->kv);
}

bool aq_seats_feeds_many(const struct aq_plan *plan, const struct aq_part *part)
{
    return feeds_many(plan) && !part->staged;
}

/* Given tokens that are not in the cache yet. */
static uint32_t not_fed(const struct aq_seat *t)
{
    uint32_t fed = t->seen ? t->seen - t->prompt : 0;
    return t->given > fed ? t->given - fed : 0;
}

/* A sequence that may take in several tokens in a pass grows faster than one that generates: it is
 * counted with all that it will ever hold. */
static void count_at_most(struct aq_admit_length *of)
{
    uint32_t left = of->last - of->now;
    of->slots = (uint32_t)aq_min_u64(of->slots, of->last);
    of->now += left;
    of->last += left;
}

/* Lengths in all kinds of layers of a seat, for admission, whose first `prefix` slots the entry
 * before has, too.  Before a pass seats have turned, and one that sits down then, which will turn
 * before others, counts as those do: with one slot more, while it has as many to come. */
static void put_lengths(const struct aq_seats *s, struct aq_admit_length *ret,
                        const struct aq_seat *t, uint32_t prefix)
{
    uint32_t heads = s->opts.steps->kv_heads, left = t->last - (t->seen ? t->seen : t->prompt);
    bool turned = t->seen || s->turned;
    for (uint32_t k = 0; k < s->opts.plan->kinds.count; k++) {
        const struct aq_seat_kv *kv = &t->kv[k];
        if (aq_kv_cross_cuts(&kv->limits, t->prompt)) {
            /* A seated one may hold one row more than now. */
            ret[k] = aq_admit_length_cross(&kv->limits, heads, s->opts.plan->kinds.kind[k].layers,
                                           t->prompt, (t->seen ? t->seen - t->prompt : 0) + turned,
                                           left, kv->whole || !t->seen);
            continue;
        }
        if (kv->apart) {
            ret[k] = aq_admit_length_apart(kv->spare, kv->packed, t->seen - t->prompt + 1, left);
            continue;
        }
        uint32_t held = aq_kv_limits_most(&kv->limits, t->prompt, t->seen ? t->seen : t->prompt);
        ret[k] = turned ? aq_admit_length_seated(&kv->limits, heads, t->prompt, held, left)
                        : aq_admit_length_of(&kv->limits, heads, t->prompt, t->max_new);
    }
    for (uint32_t k = 0; k < s->opts.plan->kinds.count; k++)
        ret[k].prefix = prefix;
    bool fast = not_fed(t) && feeds_many(s->opts.plan);
    for (uint32_t k = 0; fast && k < s->opts.plan->kinds.count; k++)
        count_at_most(&ret[k]);
}

/* Where a sequence comes in the order: behind the one whose pages it begins with, and those that
 * share more with that one.  One that shares none comes in the order of seats: groups of workers
 * divide rows, and the pages of seats, between them by it. */
static uint32_t place_of(const struct aq_seats *s, uint32_t i, const struct aq_seat *t)
{
    uint32_t at = 0, prefix = aq_seat_shared_slots(s->opts.plan, t);
    while (!prefix && at < s->seated && (s->order[at].prefix || s->order[at].seat < i))
        at++;
    while (prefix && s->order[at++].seat != t->from)
        assert(at < s->seated);
    while (at < s->seated && s->order[at].prefix > prefix)
        at++;
    return at;
}

/* Lengths of the sequences seated in a tier, and in its place of the one that asks for a seat
 * there.  Each may hold one more key than now, and leave one pass later than its length says,
 * because micro-batches turn one after the other.  A sequence seated in this very turn holds no
 * slots yet, and its prompt after the pass. */
static uint32_t list_lengths(struct aq_seats *s, enum aq_tier tier, const struct aq_seat *asks)
{
    uint32_t count = 0, kinds = s->opts.plan->kinds.count, place = place_of(s, 0, asks);
    for (uint32_t i = 0; i <= s->seated; i++) {
        const struct aq_seat_link *at = &s->order[i];
        if (i == place)
            put_lengths(s, s->lengths + (size_t)count++ * kinds, asks,
                        aq_seat_shared_slots(s->opts.plan, asks));
        if (i < s->seated && part_of(s, at->seat)->tier == tier)
            put_lengths(s, s->lengths + (size_t)count++ * kinds, &s->seat[at->seat], at->prefix);
    }
    return count;
}

/* May the sequence take a seat of this tier?  On disk every seat has pages for the longest
 * sequence. */
static bool may_sit(struct aq_seats *s, const struct aq_seat *t, enum aq_tier tier, uint32_t rows)
{
    const struct aq_block_shape *shape = &s->opts.plan->shape;
    const struct aq_kv_kinds *kinds = &s->opts.plan->kinds;
    struct aq_admit_limits limits = {
        .pages = tier == AQ_DISK ? UINT64_MAX : shape->page_count[tier],
        .page_slots = shape->page_slots,
        .prompt_tokens = shape->prompt_tokens,
        .seats_free = 1,
        .kinds = kinds,
    };
    uint32_t count = 1;
    if (tier == AQ_DISK)
        put_lengths(s, s->lengths, t, 0);
    else
        count = list_lengths(s, tier, t);
    s->steps += (uint64_t)count * count * kinds->count;
    return aq_admit_one(&limits, s->lengths, count - 1, rows, t->prompt - aq_seat_shared(t));
}

static struct aq_seat_kv kv_of(const struct aq_seats *s, const struct aq_sitter *who, uint32_t kind)
{
    const struct aq_plan *plan = s->opts.plan;
    struct aq_seat_kv kv = {0};
    bool other = who->kv_prompt > 0;
    aq_kv_kind_limits(&kv.limits, &plan->kinds, kind, &plan->kv,
                      other ? who->kv_prompt : who->prompt, other ? who->kv_new : who->max_new);
    if (other && kv.limits.profiled) { /* how much stays is what its own prompt gives */
        struct aq_kv_limits whole;
        aq_kv_kind_limits(&whole, &plan->kinds, kind, &plan->kv, who->prompt, who->max_new);
        whole.frequent = kv.limits.frequent;
        whole.local = kv.limits.local;
        kv.limits = whole;
    }
    kv.differ = aq_kv_limits_differ(&kv.limits, who->prompt);
    kv.spare = aq_kv_limits_spare(&kv.limits, s->opts.steps->kv_heads, who->prompt);
    kv.drops = aq_kv_limits_drop(&kv.limits, who->prompt, who->max_new) ||
               (other && aq_kv_limits_drop(&kv.limits, who->kv_prompt, who->kv_new));
    return kv;
}

/* Do all layers keep all keys of the sequence? */
static bool drops_none(const struct aq_seats *s, const struct aq_seat *t)
{
    for (uint32_t k = 0; k < s->opts.plan->kinds.count; k++) {
        if (t->kv[k].drops)
            return false;
    }
    return true;
}

struct aq_seat aq_seats_seat(const struct aq_seats *s, const struct aq_sitter *who,
                             struct aq_seat_kv *kv)
{
    struct aq_seat t = {.taken = true,
                        .prompt = who->prompt,
                        .max_new = who->max_new,
                        .given = who->given,
                        .kv = kv};
    /* The key of the last token is never computed. */
    t.last = who->prompt + (who->max_new ? who->max_new - 1 : 0);
    for (uint32_t k = 0; k < s->opts.plan->kinds.count; k++)
        kv[k] = kv_of(s, who, k);
    return t;
}

/* ---- prefixes ---------------------------------------------------------------------------- */

bool aq_seats_shares(const struct aq_plan *plan, const struct aq_part *part)
{
    return part->side == AQ_ATTEND_DEVICE && !plan->kv.residual.tokens;
}

/* Is the prompt in this seat computed in the coming pass? */
static bool is_coming(const struct aq_seats *s, const struct aq_seat *t)
{
    return t->taken && (!t->seen || t->bound == s->pass);
}

/* Are the keys of the prompt in this seat home, whichever part sent them?  The turn behind the pass
 * that computed it waited for all moves of its micro-batch, and came before all turns behind later
 * passes, of which the present one is one. */
static bool is_home(const struct aq_seats *s, const struct aq_seat *t)
{
    return t->seen && t->bound + 2 <= s->pass;
}

bool aq_seats_lends(const struct aq_seats *s, uint32_t from, uint32_t to)
{
    const struct aq_plan *plan = s->opts.plan;
    const struct aq_seat *t = &s->seat[from];
    const struct aq_part *of = part_of(s, from), *part = part_of(s, to);
    uint32_t each = plan->shape.micro_batch;
    bool beside = from / each == to / each;
    bool before = from < to && (beside || !plan->alternate);
    if (!t->taken || !drops_none(s, t) || !aq_seats_shares(plan, of) ||
        !aq_seats_shares(plan, part))
        return false;
    if (of != part || (part->staged && !beside))
        return of->tier == AQ_HOST && part->tier == AQ_HOST && is_home(s, t);
    return before || !is_coming(s, t);
}

bool aq_seats_copies_tail(const struct aq_seats *s, uint32_t from, uint32_t to)
{
    const struct aq_plan *plan = s->opts.plan;
    uint32_t each = plan->shape.micro_batch;
    bool beside = from / each == to / each;
    bool turned = beside || (from < to && !plan->alternate);
    bool still = beside || !plan->side_by_side || is_coming(s, &s->seat[from]);
    return !plan->separate && !part_of(s, to)->staged && turned && still;
}

/* Keys of two sequences are turned alike only where their first positions are the same. */
static uint32_t first_position(const struct aq_seats *s, uint32_t prompt, uint32_t max_new)
{
    const struct aq_plan *plan = s->opts.plan;
    if (!s->opts.steps->rotary.long_from)
        return 0;
    return aq_rotary_first(s->opts.steps, plan, aq_kv_policy_positions(&plan->kv, prompt, max_new));
}

/* Is a prompt of these lengths cut in layers of this kind? */
static bool is_cut(const struct aq_seat *t, uint32_t kind)
{
    return t->prompt > t->kv[kind].limits.keep_prompt;
}

/* Is it attended in scratch there? */
static bool in_scratch(const struct aq_seats *s, const struct aq_seat *t, uint32_t kind)
{
    return s->opts.plan->kv.residual.tokens || is_cut(t, kind);
}

/* Does a sequence in seats of this part own all its slots? */
static bool owns_all(const struct aq_seats *s, const struct aq_seat *t, const struct aq_part *part)
{
    return !drops_none(s, t) || !aq_seats_shares(s->opts.plan, part);
}

uint32_t aq_seats_copies_most(const struct aq_plan *plan, const struct aq_seat *t)
{
    uint32_t most = t->prompt - 1;
    for (uint32_t k = 0; k < plan->kinds.count; k++) {
        struct aq_kv_policy policy = aq_plan_kind_policy(plan, k);
        const struct aq_seat_kv *kv = &t->kv[k];
        uint32_t of = aq_kv_policy_copies_most(&policy, &kv->limits, t->prompt, kv->drops);
        most = of < most ? of : most;
    }
    return most;
}

/* Do all queries of the prompt rank its keys in layers of this kind?  Of one that keeps all keys
 * none does. */
static bool sums_all(const struct aq_seats *s, const struct aq_seat *t, uint32_t kind)
{
    struct aq_kv_policy policy = aq_plan_kind_policy(s->opts.plan, kind);
    return t->kv[kind].drops && aq_kv_policy_sums_all(&policy, &t->kv[kind].limits, t->prompt);
}

/* Are sums of a prompt's beginning there in layers of this kind, from the one in seat `from`?  By
 * the same rule, and none in between has left its own. */
static bool has_begun(const struct aq_seats *s, uint32_t from, uint32_t to, const struct aq_seat *t,
                      uint32_t kind)
{
    const struct aq_seat *of = &s->seat[from];
    if (!sums_all(s, of, kind) || is_cut(of, kind) != is_cut(t, kind))
        return false;
    for (uint32_t i = from + 1; i < to; i++) {
        const struct aq_seat *other = &s->seat[i];
        if (part_of(s, i) == part_of(s, to) && is_coming(s, other) && sums_all(s, other, kind))
            return false;
    }
    return true;
}

bool aq_seats_copies(const struct aq_seats *s, uint32_t from, uint32_t to, const struct aq_seat *t)
{
    const struct aq_seat *of = &s->seat[from];
    const struct aq_part *part = part_of(s, to);
    uint32_t each = s->opts.plan->shape.micro_batch;
    if (from >= to || from / each != to / each || part_of(s, from) != part || !is_coming(s, of))
        return false;
    for (uint32_t k = 0; k < s->opts.plan->kinds.count; k++) {
        struct aq_kv_policy policy = aq_plan_kind_policy(s->opts.plan, k);
        bool by_norm = policy.prompt.source == AQ_KV_SOURCE_KEY_NORM && is_cut(t, k);
        if (by_norm && !is_cut(of, k)) /* what its keys are worth is not in the scratch */
            return false;
        if (sums_all(s, t, k) && !has_begun(s, from, to, t, k))
            return false;
        for (uint32_t i = from + 1; i < to && in_scratch(s, of, k); i++) {
            const struct aq_seat *other = &s->seat[i];
            if (part_of(s, i) == part && is_coming(s, other) && in_scratch(s, other, k))
                return false;
        }
    }
    return true;
}

/* May a sequence in a seat of this part begin as the one in seat `from` did, which has left? */
static bool may_take(const struct aq_seats *s, uint32_t from, const struct aq_part *part,
                     uint32_t first)
{
    const struct aq_seat *t = &s->seat[from];
    bool stays = part->tier != AQ_DISK && !part->staged;
    return part == part_of(s, from) && stays && aq_seats_shares(s->opts.plan, part) &&
           drops_none(s, t) && t->seen && first_position(s, t->prompt, t->max_new) == first;
}

/* Tokens with which the sequence that asks begins as one did that has left; 0 where they are no
 * more than `known`. */
static uint32_t left_alike(const struct aq_seats *s, uint32_t from, uint32_t most, uint32_t known)
{
    uint32_t n = s->opts.ops->alike(s->opts.user, from, known);
    n = (uint32_t)aq_min_u64(aq_min_u64(n, most), s->seat[from].prompt);
    return n > known ? n : 0;
}

/* The least number of tokens that the one who asks must have in common with a prompt whose keys it
 * copies: where all queries rank keys, sums over fewer queries than that one has copied itself are
 * not there. */
static uint32_t least_copied(const struct aq_seats *s, uint32_t from, const struct aq_seat *asks)
{
    bool all = false;
    for (uint32_t k = 0; k < s->opts.plan->kinds.count; k++)
        all = all || sums_all(s, asks, k);
    return all ? s->seat[from].copied : 0;
}

/* In steps of how many tokens may the sequence that asks for seat `to` begin as the one in seat
 * `from` does?  0: it may not. */
static uint32_t unit_of(const struct aq_seats *s, uint32_t from, uint32_t to,
                        const struct aq_seat *asks, bool owns)
{
    if (!(owns ? aq_seats_copies(s, from, to, asks) : aq_seats_lends(s, from, to)))
        return 0;
    if (owns && !drops_none(s, asks))
        return AQ_ATTN_STATS_ROWS;
    if (owns)
        return s->opts.plan->separate ? AQ_HEAD_BLOCK_SLOTS : 1;
    return aq_seats_copies_tail(s, from, to) ? 1 : s->opts.plan->shape.page_slots;
}

/* Finds what the sequence that asks for seat i need not compute: of a prompt that shares pages
 * these, and what is no whole page; of one that drops keys whole windows of attention's sums over
 * queries; of another any tokens, or where a separate device attends whole head-blocks. */
static void find_prefix(const struct aq_seats *s, uint32_t i, const struct aq_sitter *who,
                        struct aq_seat *io)
{
    bool owns = owns_all(s, io, part_of(s, i));
    uint32_t most = (uint32_t)aq_min_u64(who->shares, io->prompt - 1), found = 0;
    if (most && owns)
        most = (uint32_t)aq_min_u64(most, aq_seats_copies_most(s->opts.plan, io));
    if (!most)
        return;
    uint32_t first = first_position(s, io->prompt, io->max_new);
    for (uint32_t from = 0; found < most && from < s->count; from++) {
        const struct aq_seat *t = &s->seat[from];
        uint32_t unit = unit_of(s, from, i, io, owns);
        if (!unit || first_position(s, t->prompt, t->max_new) != first)
            continue;
        uint32_t n = s->opts.ops->alike(s->opts.user, from, found / unit * unit + unit - 1);
        n = (uint32_t)aq_min_u64(n, most) / unit * unit;
        if (n > found && n >= (owns ? least_copied(s, from, io) : 0)) {
            found = n;
            io->from = from;
        }
    }
    if (s->left >= 0 && !owns && may_take(s, (uint32_t)s->left, part_of(s, i), first)) {
        uint32_t n = left_alike(s, (uint32_t)s->left, most, found);
        io->takes = n > 0;
        io->from = n ? (uint32_t)s->left : io->from;
        found = n ? n : found;
    }
    *(owns ? &io->copied : &io->prefix) = found;
}

/* Puts a seat into the order.  What comes behind it shares no more with it than it has from the one
 * before. */
static void link_seat(struct aq_seats *s, uint32_t i)
{
    uint32_t at = place_of(s, i, &s->seat[i]);
    for (uint32_t n = s->seated; n > at; n--)
        s->order[n] = s->order[n - 1];
    s->order[at] = (struct aq_seat_link){i, aq_seat_shared_slots(s->opts.plan, &s->seat[i])};
    s->seated++;
}

static void unlink_seat(struct aq_seats *s, uint32_t i)
{
    uint32_t at = 0;
    while (s->order[at].seat != i)
        at++;
    s->seated--;
    if (at < s->seated && s->order[at].prefix < s->order[at + 1].prefix)
        s->order[at + 1].prefix = s->order[at].prefix;
    for (; at < s->seated; at++)
        s->order[at] = s->order[at + 1];
}

/* Puts the sequence that asked into the seat. */
static void fill_seat(struct aq_seats *s, uint32_t i, const struct aq_seat *t)
{
    struct aq_seat_kv *kv = s->seat[i].kv;
    s->seat[i] = *t;
    s->seat[i].kv = kv;
    memcpy(kv, t->kv, s->opts.plan->kinds.count * sizeof(*kv));
    link_seat(s, i);
}

/* What an ended sequence has left in its seat, which is in no order any more, is given back. */
static void clear_seat(struct aq_seats *s, uint32_t i)
{
    if (s->opts.ops->gone)
        s->opts.ops->gone(s->opts.user, i);
    s->seat[i] = (struct aq_seat){.kv = s->seat[i].kv};
}

static void drop_left(struct aq_seats *s)
{
    if (s->left >= 0)
        clear_seat(s, (uint32_t)s->left);
    s->left = -1;
}

static void call_bound(struct aq_seats *s, uint32_t i)
{
    if (s->opts.ops->bound)
        s->opts.ops->bound(s->opts.user, i);
}

static void bind_prompt(struct aq_seats *s, uint32_t i)
{
    struct aq_seat *t = &s->seat[i];
    uint32_t heads = s->opts.steps->kv_heads;
    t->rows = t->prompt - aq_seat_shared(t);
    t->seen = t->prompt;
    t->bound = s->pass;
    for (uint32_t k = 0; k < s->opts.plan->kinds.count; k++) {
        struct aq_seat_kv *kv = &t->kv[k];
        kv->held = kv->most = aq_kv_limits_held(&kv->limits, t->prompt, t->prompt);
        kv->whole = aq_kv_cross_cuts(&kv->limits, t->prompt);
        if (kv->whole)
            kv->spare =
                AQ_HEAD_BLOCK_SLOTS * aq_kv_cross_whole(&kv->limits, heads, t->prompt) - kv->held;
    }
    s->prompt_rows[i / s->opts.plan->shape.micro_batch] += t->rows;
    call_bound(s, i);
}

/* Gives seats of micro-batch k to waiting sequences, in order.  Without refill only an empty block
 * is filled. */
static void admit(struct aq_seats *s, uint32_t k)
{
    uint32_t each = s->opts.plan->shape.micro_batch, rows = s->prompt_rows[k];
    struct aq_sitter who;
    bool full[AQ_TIER_COUNT] = {false};
    if (!s->opts.refill && !s->filling)
        return;
    for (uint32_t i = k * each; i < (k + 1) * each; i++) {
        enum aq_tier tier = (enum aq_tier)part_of(s, i)->tier;
        if (s->seat[i].taken || full[tier])
            continue;
        if (!s->opts.ops->next(s->opts.user, &who))
            return;
        struct aq_seat t = aq_seats_seat(s, &who, s->asks);
        find_prefix(s, i, &who, &t);
        if (!may_sit(s, &t, tier, rows)) {
            full[tier] = true; /* later sequences must not overtake this one */
            continue;
        }
        if (s->left == i && !t.takes)
            drop_left(s);
        fill_seat(s, i, &t);
        rows += t.prompt - aq_seat_shared(&t);
        s->opts.ops->sat(s->opts.user, i);
        if (t.takes && s->left != i)
            s->seat[s->left] = (struct aq_seat){.kv = s->seat[s->left].kv};
        s->left = t.takes ? -1 : s->left;
    }
}

static bool decodes(const struct aq_seat *t)
{
    return t->taken && t->rows && t->seen > t->prompt;
}

/* Seats of micro-batch k that decode in the coming pass take pages, part by part: chains of each
 * part's seats are made from the last to the first. */
static void bind_steps(struct aq_seats *s, uint32_t k)
{
    const struct aq_plan *plan = s->opts.plan;
    uint32_t first[AQ_PART_MAX], each = plan->shape.micro_batch;
    s->steps += s->seated;
    for (uint32_t part = 0; part < plan->part_count; part++)
        first[part] = s->count;
    for (uint32_t place = s->seated; place-- > 0;) {
        uint32_t i = s->order[place].seat;
        if (i - k * each >= each || !decodes(&s->seat[i]))
            continue;
        uint32_t part = aq_seats_part(plan, i);
        s->seat[i].next = first[part];
        first[part] = i;
    }
    for (uint32_t part = 0; part < plan->part_count; part++) {
        for (uint32_t i = first[part]; i < s->count; i = s->seat[i].next)
            call_bound(s, i);
    }
}

static void bind_prompts(struct aq_seats *s, uint32_t k)
{
    uint32_t each = s->opts.plan->shape.micro_batch;
    for (uint32_t i = k * each; i < (k + 1) * each; i++) {
        if (s->seat[i].taken && !s->seat[i].seen)
            bind_prompt(s, i);
    }
}

/* ---- passes ------------------------------------------------------------------------------ */

void aq_seat_kv_step(struct aq_seat_kv *kv)
{
    bool full = kv->held == kv->limits.slots;
    kv->before = kv->held;
    kv->drops_many = full && kv->limits.bulk;
    kv->overwrites = full && !kv->limits.bulk;
    kv->held = (kv->drops_many ? aq_kv_limits_cut(&kv->limits) : kv->held) + !kv->overwrites;
    /* Each head has a slot of its own for the key, which may be a new one. */
    kv->overwrites = kv->overwrites || kv->limits.profiled;
}

/* Slots for the last `rows` of the positions that seat i has seen. */
static void step_kv(struct aq_seats *s, uint32_t i, struct aq_seat_kv *kv)
{
    kv->start = kv->held;
    kv->most = 0;
    for (uint32_t row = 0; row < s->seat[i].rows; row++) {
        aq_seat_kv_step(kv);
        kv->most = kv->held > kv->most ? kv->held : kv->most;
    }
    kv->delta = kv->delta_next;
    kv->rewrites = false;
    if (aq_kv_uses_delta(part_of(s, i), kv)) {
        /* Every 32 steps, but seats that sat down together not all in the same pass. */
        kv->rewrites = kv->delta && (s->seat[i].seen + i) % AQ_HEAD_BLOCK_SLOTS == 0;
        kv->delta_next = kv->rewrites ? 0 : kv->delta + 1;
        assert(kv->delta_next <= AQ_HEAD_BLOCK_SLOTS);
    }
}

/* One more position for a seat that decodes, or as many given ones as the micro-batch has rows
 * for, beside one of each seat. */
static void step(struct aq_seats *s, uint32_t i)
{
    struct aq_seat *t = &s->seat[i];
    const struct aq_plan *plan = s->opts.plan;
    uint32_t *taken = &s->prompt_rows[i / plan->shape.micro_batch], left = not_fed(t), more = 0;
    if (left > 1 && *taken < plan->shape.prompt_tokens && aq_seats_feeds_many(plan, part_of(s, i)))
        more = (uint32_t)aq_min_u64(left - 1, plan->shape.prompt_tokens - *taken);
    *taken += more;
    t->rows = 1 + more;
    t->seen += t->rows;
    for (uint32_t k = 0; k < s->opts.plan->kinds.count; k++)
        step_kv(s, i, &t->kv[k]);
}

/* Has the seat's prompt, which has pages as if all of it stayed, been cut?  On disk it keeps what
 * it has. */
static bool was_cut(const struct aq_seats *s, uint32_t i, const struct aq_seat_kv *kv)
{
    bool profiled = kv->limits.profiled && !kv->apart && part_of(s, i)->tier != AQ_DISK;
    return s->seat[i].seen && (kv->whole || profiled);
}

/* The heads of all layers of a seat's prompt have shared the budget in the pass that is over, or
 * each has found its rule. */
static void cut(struct aq_seats *s, uint32_t i)
{
    struct aq_seat *t = &s->seat[i];
    for (uint32_t k = 0; t->taken && k < s->opts.plan->kinds.count; k++) {
        struct aq_seat_kv *kv = &t->kv[k];
        if (!was_cut(s, i, kv))
            continue;
        kv->packed = s->opts.plan->kinds.kind[k].layers * (uint64_t)aq_seat_kv_packed(kv);
        kv->apart = true;
        kv->whole = false;
        kv->held = kv->limits.heavy_prompt + kv->limits.recent_prompt;
        kv->spare = kv->limits.cross ? aq_kv_cross_tail(t->prompt) : AQ_HEAD_BLOCK_SLOTS - 1;
        if (s->opts.ops->cut)
            kv->packed = s->opts.ops->cut(s->opts.user, i, k);
    }
}

/* Without refill no sequence decodes while the block is being filled. */
static void step_all(struct aq_seats *s, uint32_t k)
{
    uint32_t each = s->opts.plan->shape.micro_batch;
    s->prompt_rows[k] = 0;
    for (uint32_t i = k * each; i < (k + 1) * each; i++) {
        s->seat[i].rows = 0;
        if (s->seat[i].taken && (s->opts.refill || !s->filling))
            step(s, i);
    }
}

/* Of the sequences in micro-batch k that have ended, the seat of the one that the first waiting one
 * begins most like; -1: it is like none. */
static int64_t most_alike(const struct aq_seats *s, uint32_t k)
{
    uint32_t each = s->opts.plan->shape.micro_batch, first, known = 0;
    struct aq_sitter who;
    int64_t best = -1;
    if (!s->opts.ops->gone || !s->opts.ops->next(s->opts.user, &who) || !who.shares)
        return -1;
    first = first_position(s, who.prompt, who.max_new);
    for (uint32_t i = k * each; i < (k + 1) * each; i++) {
        if (!s->seat[i].over || !may_take(s, i, part_of(s, i), first))
            continue;
        uint32_t n = left_alike(s, i, (uint32_t)aq_min_u64(who.shares, who.prompt - 1), known);
        known = n ? n : known;
        best = n ? (int64_t)i : best;
    }
    return best;
}

/* Does no other sequence have pages of the one in this seat? */
static bool is_sole(const struct aq_seats *s, uint32_t i)
{
    uint32_t at = 0;
    while (s->order[at].seat != i)
        at++;
    return !s->order[at].prefix && (at + 1 == s->seated || !s->order[at + 1].prefix);
}

/* Sequences of micro-batch k that have ended leave. */
static void leave(struct aq_seats *s, uint32_t k)
{
    uint32_t each = s->opts.plan->shape.micro_batch;
    for (uint32_t i = k * each; i < (k + 1) * each; i++)
        s->seat[i].over = s->seat[i].taken && s->opts.ops->ended(s->opts.user, i);
    s->left = most_alike(s, k);
    for (uint32_t i = k * each; i < (k + 1) * each; i++) {
        if (!s->seat[i].over || i == s->left)
            continue;
        unlink_seat(s, i);
        clear_seat(s, i);
    }
    if (s->left >= 0) {
        bool sole = is_sole(s, (uint32_t)s->left);
        unlink_seat(s, (uint32_t)s->left);
        s->seat[s->left].taken = s->seat[s->left].over = false;
        if (!sole)
            drop_left(s);
    }
    s->filling = s->filling || s->seated == 0;
}

void aq_seats_turn(struct aq_seats *s, uint32_t k)
{
    uint32_t each = s->opts.plan->shape.micro_batch;
    leave(s, k);
    for (uint32_t i = k * each; i < (k + 1) * each; i++)
        cut(s, i);
    step_all(s, k);
    admit(s, k);
    drop_left(s);
    bind_steps(s, k);
    bind_prompts(s, k);
}

/* Does the place in the stage of seat `j`, which is in the pass, bring seat `i` anything? */
static bool brings(const struct aq_seats *s, uint32_t j, uint32_t i)
{
    uint32_t each = s->opts.plan->shape.micro_batch;
    return j < i && s->seat[j].rows && i / each == j / each && part_of(s, i) == part_of(s, j);
}

/* Finds the lower seat that shares most with the one at this place in the order.  Two seats share
 * what all links between their places do, so that a look ends where these share no more than what
 * is found. */
static void find_brought(struct aq_seats *s, uint32_t place)
{
    uint32_t i = s->order[place].seat, least = UINT32_MAX;
    struct aq_seat *t = &s->seat[i];
    t->brought = 0;
    if (!t->rows || !part_of(s, i)->staged)
        return;
    for (uint32_t at = place; at > 0; at--) {
        least = s->order[at].prefix < least ? s->order[at].prefix : least;
        if (least <= t->brought)
            break;
        if (brings(s, s->order[at - 1].seat, i)) {
            t->brought = least;
            t->via = s->order[at - 1].seat;
        }
    }
    least = UINT32_MAX;
    for (uint32_t at = place + 1; at < s->seated; at++) {
        least = s->order[at].prefix < least ? s->order[at].prefix : least;
        if (least <= t->brought)
            break;
        if (brings(s, s->order[at].seat, i)) {
            t->brought = least;
            t->via = s->order[at].seat;
        }
    }
    assert(t->seen > t->prompt || t->brought <= t->prefix);
}

static void fill_block(struct aq_seats *s)
{
    uint32_t batches = s->opts.plan->shape.micro_batches, prompt_rows = 0;
    s->turned = true;
    for (uint32_t k = 0; k < batches; k++) {
        admit(s, k);
        bind_prompts(s, k);
        prompt_rows += s->prompt_rows[k];
    }
    s->turned = false;
    if (s->opts.refill || !s->filling || prompt_rows || !s->seated)
        return;
    s->filling = false;
    for (uint32_t k = 0; k < batches; k++) {
        step_all(s, k);
        bind_steps(s, k);
    }
}

/* Finds what the row of the seat at this place shares with the one in front of it: two seats share
 * what all links between their places do. */
static void find_beside(struct aq_seats *s, uint32_t place)
{
    uint32_t i = s->order[place].seat, least = UINT32_MAX;
    uint32_t each = s->opts.plan->shape.micro_batch;
    struct aq_seat *t = &s->seat[i];
    t->beside = 0;
    for (uint32_t at = place; at > 0 && least && decodes(t); at--) {
        uint32_t j = s->order[at - 1].seat;
        least = s->order[at].prefix < least ? s->order[at].prefix : least;
        if (j / each != i / each || part_of(s, j) != part_of(s, i) || !decodes(&s->seat[j]))
            continue;
        t->beside = t->rows == 1 && s->seat[j].rows == 1 ? least : 0;
        break;
    }
}

void aq_seats_begin_pass(struct aq_seats *s)
{
    fill_block(s);
    s->pass++;
    for (uint32_t place = 0; place < s->seated; place++) {
        find_brought(s, place);
        find_beside(s, place);
    }
}

/* ---- counts ------------------------------------------------------------------------------ */

uint64_t aq_seats_key_pairs(uint64_t prompt, uint64_t window)
{
    uint64_t whole = window ? aq_min_u64(prompt, window) : prompt; /* rows that see all keys */
    return whole * (whole + 1) / 2 + (prompt - whole) * window;
}

/* Slots of head-blocks whose bounds a row makes. */
static uint64_t slots_bounded(const struct aq_seat *t, const struct aq_seat_kv *kv, uint32_t read)
{
    uint64_t end = kv->held / AQ_HEAD_BLOCK_SLOTS;
    return AQ_HEAD_BLOCK_SLOTS *
           (end - aq_kv_read_bounded(read, kv->before, t->seen == t->prompt + 1));
}

/* Row by row, as step_kv made them. */
static void count_decode(const struct aq_seats *s, const struct aq_seat *t, uint32_t kind,
                         struct aq_kv_work *io)
{
    const struct aq_plan *plan = s->opts.plan;
    const struct aq_seat_kv *kv = &t->kv[kind];
    struct aq_kv_policy room;
    const struct aq_kv_policy *policy = aq_plan_kind_policy_in(&room, plan, kind);
    uint32_t read = policy->read;
    bool alone = plan->kinds.kind[kind].window || aq_kv_policy_drops(policy);
    struct aq_seat_kv at = *kv;
    at.held = kv->start;
    for (uint32_t row = 0; row < t->rows; row++) {
        aq_seat_kv_step(&at);
        struct aq_kv_reads reads = aq_kv_reads_of(&plan->shape, &plan->kv.residual, read, at.held);
        io->decode_keys += reads.keys;
        io->decode_slots += reads.slots;
        if (at.drops_many) /* they are read and written to close up */
            io->decode_slots += 2ull * aq_kv_limits_cut(&at.limits);
    }
    alone = alone || t->rows != 1 || aq_kv_read_chooses(read, kv->held);
    io->decode_joint += alone ? 0 : aq_seats_joint(t->beside, kv->held);
    if (aq_kv_read_chooses(read, kv->held)) /* keys of which bounds are made */
        io->decode_slots += slots_bounded(t, kv, read) / 2;
}

static void count_kind(const struct aq_seats *s, uint32_t i, uint32_t kind, struct aq_kv_work *io)
{
    const struct aq_plan *plan = s->opts.plan;
    const struct aq_model_steps *m = s->opts.steps;
    const struct aq_seat *t = &s->seat[i];
    const struct aq_seat_kv *kv = &t->kv[kind];
    const struct aq_part *part = part_of(s, i);
    struct aq_kv_policy room;
    const struct aq_kv_policy *policy = aq_plan_kind_policy_in(&room, plan, kind);
    if (t->seen > t->prompt) {
        count_decode(s, t, kind, io);
    } else {
        uint32_t window = plan->kinds.kind[kind].window;
        io->prefill_key_pairs +=
            aq_seats_key_pairs(t->prompt, window) - aq_seats_key_pairs(aq_seat_shared(t), window);
        if (kv->drops)
            io->stat_key_pairs +=
                aq_kv_policy_rank_pairs(policy, &kv->limits, t->prompt, m->head_dim);
        if (kv->drops && t->copied && aq_kv_policy_sums_all(policy, &kv->limits, t->prompt))
            io->stat_key_pairs -= aq_seats_key_pairs(t->copied, 0);
    }
    struct aq_kv_traffic traffic;
    struct aq_kv_sizes sizes;
    if (!part->staged)
        return;
    aq_kv_traffic_of(&traffic, plan, part, t, kind);
    aq_kv_sizes_of(&sizes, plan, kind, m->kv_heads, m->head_dim);
    aq_kv_traffic_add(io, &traffic, &sizes);
}

void aq_seats_count(const struct aq_seats *s, uint32_t seat, struct aq_part_shape *io)
{
    const struct aq_seat *t = &s->seat[seat];
    assert(t->rows);
    if (t->seen > t->prompt)
        io->decode_rows += t->rows;
    else
        io->prefill_rows += t->rows;
    for (uint32_t k = 0; k < s->opts.plan->kinds.count; k++)
        count_kind(s, seat, k, &io->kv[k]);
}
