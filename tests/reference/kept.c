/* SPDX-License-Identifier: Apache-2.0
 * What each variant keeps, from its own description.  Of two equal scores the lower position is
 * dropped, in all of them: the original programs leave that open. */
#include "tests/reference/reference.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static uint32_t max_u32(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

static uint32_t count_kept(const struct ref_head *h, uint32_t end)
{
    uint32_t count = 0;
    for (uint32_t j = 0; j < end; j++)
        count += h->kept[j];
    return count;
}

static void keep_all(struct ref_head *h, uint32_t n)
{
    for (uint32_t j = 0; j < n; j++)
        h->kept[j] = true;
}

/* The kept position of the lowest score in [first, end), the lower of equals; UINT32_MAX: none. */
static uint32_t weakest(const struct ref_head *h, uint32_t first, uint32_t end)
{
    uint32_t victim = UINT32_MAX;
    for (uint32_t j = first; j < end; j++) {
        if (h->kept[j] && (victim == UINT32_MAX || h->score[j] < h->score[victim]))
            victim = j;
    }
    return victim;
}

/* Of the kept positions in [first, end) only the `count` strongest stay. */
static void keep_strongest(struct ref_head *h, uint32_t first, uint32_t end, uint32_t count)
{
    uint32_t kept = count_kept(h, end) - count_kept(h, first);
    for (; kept > count; kept--)
        h->kept[weakest(h, first, end)] = false;
}

static void add_probabilities(struct ref_head *h, uint32_t t, const double *p, double decay)
{
    for (uint32_t j = 0; j <= t; j++) {
        if (h->kept[j])
            h->score[j] = decay * h->score[j] + p[j];
    }
}

static void enter(struct ref_head *h, uint32_t t)
{
    h->kept[t] = true;
    h->score[t] = 0;
}

/* ---- full ---- */

static void full_prefilled(const struct ref_policy *p, struct ref_head *h, uint32_t n)
{
    keep_all(h, n);
}

static void full_arrives(const struct ref_policy *p, struct ref_head *h, uint32_t t, uint32_t n)
{
    enter(h, t);
}

static void full_attended(const struct ref_policy *policy, struct ref_head *h, uint32_t t,
                          uint32_t n, const double *p)
{
    add_probabilities(h, t, p, 1);
}

/* ---- h2o: H heavy tokens and the R most recent, the current one among them ----
 * After the prompt the last R stay, and of the older ones the H with the highest scores.  A step
 * first makes room: the token that leaves the recent ones joins the candidates, the lowest score is
 * dropped.  Nothing is dropped while the sequence is no longer than H + R. */

static double h2o_decay(const struct ref_policy *p)
{
    return p->decay == 0 ? 1 : p->decay;
}

static void h2o_prefilled(const struct ref_policy *p, struct ref_head *h, uint32_t n)
{
    keep_all(h, n);
    if (n <= p->heavy + p->recent)
        return;
    /* Sinks are among the heavy ones, whatever their scores. */
    uint32_t old = n - p->recent;
    assert(p->sinks <= p->heavy);
    keep_strongest(h, p->sinks, old, p->heavy - p->sinks);
}

static void h2o_arrives(const struct ref_policy *p, struct ref_head *h, uint32_t t, uint32_t n)
{
    enter(h, t);
    if (count_kept(h, t + 1) <= p->heavy + p->recent)
        return;
    uint32_t safe = max_u32(p->recent, p->grace); /* newest tokens, this one too */
    uint32_t victim = weakest(h, p->sinks, t + 1 - safe);
    assert(victim != UINT32_MAX);
    h->kept[victim] = false;
}

static void h2o_attended(const struct ref_policy *policy, struct ref_head *h, uint32_t t,
                         uint32_t n, const double *p)
{
    add_probabilities(h, t, p, h2o_decay(policy));
}

/* ---- heavy: nothing but the highest scores, beside the current token ---- */

static void heavy_prefilled(const struct ref_policy *p, struct ref_head *h, uint32_t n)
{
    uint32_t budget = p->heavy + p->recent;
    keep_all(h, n);
    if (n > budget) /* the last one is the current token still */
        keep_strongest(h, 0, n - 1, budget - 1);
}

static void heavy_arrives(const struct ref_policy *p, struct ref_head *h, uint32_t t, uint32_t n)
{
    enter(h, t);
    if (count_kept(h, t + 1) > p->heavy + p->recent)
        h->kept[weakest(h, 0, t)] = false;
}

/* ---- window: attention sinks and the last R tokens (StreamingLLM, arXiv 2309.17453) ---- */

static void window_mask(const struct ref_policy *p, struct ref_head *h, uint32_t t)
{
    for (uint32_t j = 0; j <= t; j++)
        h->kept[j] = j < p->heavy || j + p->recent > t;
}

static void window_prefilled(const struct ref_policy *p, struct ref_head *h, uint32_t n)
{
    window_mask(p, h, n - 1);
}

static void window_arrives(const struct ref_policy *p, struct ref_head *h, uint32_t t, uint32_t n)
{
    window_mask(p, h, t);
}

/* ---- h2o:flexgen: K heavy slots, a ring of K - 1 recent tokens and the current one ----
 * Candidates of the prompt are all but its last K - 1 tokens; the ring begins with those.  After
 * each step the token that entered the ring first goes into the heavy slot of the lowest score,
 * whatever its own, and the current token takes its place in the ring.  A prompt shorter than
 * 2K - 1, where the original program fails, leaves heavy slots empty; they fill first. */

static void flexgen_prefilled(const struct ref_policy *p, struct ref_head *h, uint32_t n)
{
    uint32_t k = p->heavy, candidates = n - (k - 1);
    assert(k >= 2 && k <= n);
    keep_all(h, n);
    keep_strongest(h, 0, candidates, k < candidates ? k : candidates);
    h->heavy_count = 0;
    for (uint32_t j = 0; j < candidates; j++) {
        if (h->kept[j])
            h->heavy[h->heavy_count++] = j;
    }
    for (uint32_t i = 0; i < k - 1; i++)
        h->ring[i] = candidates + i;
}

static uint32_t flexgen_weakest_slot(const struct ref_head *h)
{
    uint32_t slot = 0;
    for (uint32_t i = 1; i < h->heavy_count; i++) {
        double score = h->score[h->heavy[i]], least = h->score[h->heavy[slot]];
        if (score < least || (score == least && h->heavy[i] < h->heavy[slot]))
            slot = i;
    }
    return slot;
}

static void flexgen_attended(const struct ref_policy *policy, struct ref_head *h, uint32_t t,
                             uint32_t n, const double *p)
{
    uint32_t k = policy->heavy, oldest = (t - n) % (k - 1), slot = h->heavy_count;
    add_probabilities(h, t, p, 1);
    if (h->heavy_count < k) {
        h->heavy_count++;
    } else {
        slot = flexgen_weakest_slot(h);
        h->kept[h->heavy[slot]] = false;
    }
    h->heavy[slot] = h->ring[oldest];
    h->ring[oldest] = t;
}

/* ---- h2o:hf: attention over the cache and the new token, then the cache is cut ----
 * To H + R: the last R keys of the cache, and of those before them the H highest scores. */

static void hf_cut(const struct ref_policy *p, struct ref_head *h, uint32_t end)
{
    uint32_t recent = 0, first_recent = end;
    if (count_kept(h, end) <= p->heavy + p->recent)
        return;
    while (recent < p->recent)
        recent += h->kept[--first_recent];
    keep_strongest(h, 0, first_recent, p->heavy);
}

static void hf_prefilled(const struct ref_policy *p, struct ref_head *h, uint32_t n)
{
    keep_all(h, n);
    hf_cut(p, h, n);
}

static void hf_attended(const struct ref_policy *policy, struct ref_head *h, uint32_t t, uint32_t n,
                        const double *p)
{
    add_probabilities(h, t, p, 1);
    hf_cut(policy, h, t + 1);
}

/* ---- adakv: h2o with an adaptive number of slots for each head (Ada-KV, arXiv 2407.11550) ----
 * A layer of n heads has n times what h2o gives to each.  After the prompt the last R tokens stay
 * in every head, and so do the best F of the older ones of each; of all other older ones,
 * whichever head's, the lowest scores are dropped until n H older ones are left.  What a head has
 * then it has for good: a step drops one of its own for the new token, as in h2o.  Of equal scores
 * the lower position is dropped, of equal positions the higher head's. */

/* Marks the F strongest positions in [0, end), sinks before all others. */
static void reserve(const struct ref_policy *p, const struct ref_head *h, uint32_t end, bool *mine)
{
    for (uint32_t n = 0; n < p->floor; n++) {
        uint32_t best = UINT32_MAX;
        for (uint32_t j = 0; j < end; j++) {
            if (!mine[j] && (best == UINT32_MAX || best >= p->sinks) &&
                (j < p->sinks || best == UINT32_MAX || h->score[j] >= h->score[best]))
                best = j;
        }
        mine[best] = true;
    }
}

static void share_with_reserves(const struct ref_policy *p, struct ref_head *h, uint32_t count,
                                uint32_t n)
{
    uint32_t old = n - p->recent;
    assert(p->floor >= p->sinks && p->floor <= p->heavy);
    bool *mine = calloc((size_t)count * old, sizeof(*mine));
    assert(mine);
    for (uint32_t a = 0; a < count; a++)
        reserve(p, &h[a], old, mine + (size_t)a * old);
    for (uint32_t left = count * old; left > count * p->heavy; left--) {
        uint32_t head = UINT32_MAX, victim = 0;
        for (uint32_t j = 0; j < old; j++) {
            for (uint32_t a = 0; a < count; a++) {
                bool free = h[a].kept[j] && !mine[(size_t)a * old + j];
                if (free && (head == UINT32_MAX || h[a].score[j] < h[head].score[victim] ||
                             (j == victim && h[a].score[j] == h[head].score[victim]))) {
                    head = a;
                    victim = j;
                }
            }
        }
        h[head].kept[victim] = false;
    }
    free(mine);
}

/* Ada-KV as its authors' program has it: the count * H best tokens of all heads, of which a head
 * has
 * some; it then keeps as many of its own best, but for a percentage of H that each has alike.
 * Rounded to the nearest number, a half to an even one.  Sinks are better than all others. */
static void share_by_mixing(const struct ref_policy *p, struct ref_head *h, uint32_t count,
                            uint32_t n)
{
    uint32_t old = n - p->recent, *best = calloc(count, sizeof(*best));
    bool *taken = calloc((size_t)count * old, sizeof(*taken));
    assert(best && taken);
    for (uint32_t i = 0; i < count * p->heavy; i++) {
        uint32_t head = UINT32_MAX, at = 0;
        for (uint32_t j = old; j-- > 0;) {
            for (uint32_t a = 0; a < count; a++) {
                bool first = head == UINT32_MAX;
                bool more = j < p->sinks
                                ? first || at >= p->sinks
                                : first || (at >= p->sinks && h[a].score[j] > h[head].score[at]);
                if (!taken[(size_t)a * old + j] && more) {
                    head = a;
                    at = j;
                }
            }
        }
        taken[(size_t)head * old + at] = true;
        best[head]++;
    }
    for (uint32_t a = 0; a < count; a++) {
        uint32_t hundredths = best[a] * (100 - p->mix) + 100 * (p->mix * p->heavy / 100);
        uint32_t own = hundredths / 100, part = hundredths % 100;
        own += part > 50 || (part == 50 && own % 2 == 1);
        own = max_u32(own, p->sinks);
        keep_strongest(&h[a], p->sinks, old, own - p->sinks);
    }
    free(best);
    free(taken);
}

void ref_cut_shared(const struct ref_policy *p, struct ref_head *h, uint32_t count, uint32_t n)
{
    for (uint32_t a = 0; a < count; a++) {
        keep_all(&h[a], n);
        h[a].slots = p->heavy + p->recent;
    }
    if (n <= p->heavy + p->recent)
        return;
    (p->mix ? share_by_mixing : share_with_reserves)(p, h, count, n);
    for (uint32_t a = 0; a < count; a++)
        h[a].slots = count_kept(&h[a], n);
}

void ref_cut(const struct ref_policy *p, struct ref_head *h, uint32_t n)
{
    keep_all(h, n);
    if (n > p->heavy + p->recent)
        keep_strongest(h, p->sinks, n - p->recent, p->heavy - p->sinks);
}

static void adakv_arrives(const struct ref_policy *p, struct ref_head *h, uint32_t t, uint32_t n)
{
    enter(h, t);
    if (count_kept(h, t + 1) <= h->slots)
        return;
    /* The newest ones are safe, as far as the smallest of heads has room for them. */
    uint32_t safe = max_u32(p->recent, p->grace), room = p->recent + p->floor - p->sinks;
    uint32_t victim = weakest(h, p->sinks, t + 1 - (safe < room ? safe : room));
    assert(victim != UINT32_MAX);
    h->kept[victim] = false;
}

/* ---- snapkv: the prompt's last tokens choose (SnapKV, arXiv 2404.14469) ----
 * What the last w = `recent` of a prompt's n tokens give to a key in front of them is summed for
 * each query head, and pooled: the mean of the sums of the k keys around it, of which those outside
 * [0, n - w) are 0, or the largest of those inside.  Then the query heads that share a head of k
 * and v are taken together, or they are so before.  The H best stay, and the w.  Nothing is dropped
 * any more. */

static double together(const struct ref_policy *p, const double *x, uint32_t count, size_t stride)
{
    double sum = 0, most = x[0];
    for (uint32_t g = 0; g < count; g++) {
        sum += x[g * stride];
        most = fmax(most, x[g * stride]);
    }
    switch (p->group) {
    case REF_MEAN: return sum / count;
    case REF_MAX_OF_SUMS: return most;
    case REF_FIRST: return x[0];
    default: return sum;
    }
}

/* y[j] = x[j] and its neighbours, pooled. */
static void pool(const struct ref_policy *p, double *y, const double *x, uint32_t end)
{
    int64_t reach = p->pool / 2;
    for (int64_t j = 0; j < end; j++) {
        double sum = 0, most = x[j];
        for (int64_t i = j - reach; i <= j + reach; i++) {
            sum += i >= 0 && i < end ? x[i] : 0;
            most = fmax(most, i >= 0 && i < end ? x[i] : most);
        }
        y[j] = p->pool_largest ? most : sum / p->pool;
    }
}

static void snapkv_valued(const struct ref_policy *p, struct ref_head *h, uint32_t n)
{
    uint32_t end = n - p->recent;
    if (n <= p->heavy + p->recent)
        return;
    double *pooled = calloc((size_t)(h->group + 1) * n, sizeof(*pooled));
    double *one = pooled + (size_t)h->group * n;
    assert(pooled);
    /* Where group is the largest of each query, it has been taken, and summed in `score`. */
    if (p->group == REF_MAX) {
        pool(p, pooled, h->score, end);
        memcpy(one, pooled, end * sizeof(*one));
    } else if (p->pool_each) {
        for (uint32_t g = 0; g < h->group; g++)
            pool(p, pooled + (size_t)g * n, h->each + (size_t)g * h->room, end);
        for (uint32_t j = 0; j < end; j++)
            one[j] = together(p, pooled + j, h->group, n);
    } else {
        for (uint32_t j = 0; j < end; j++)
            pooled[j] = together(p, h->each + j, h->group, h->room);
        pool(p, one, pooled, end);
    }
    memcpy(h->score, one, end * sizeof(*one));
    free(pooled);
}

static void grow_attended(const struct ref_policy *policy, struct ref_head *h, uint32_t t,
                          uint32_t n, const double *p)
{
}

/* ---- kvcompress: all heads of all layers share (KV-Compress, arXiv 2410.00161) ----
 * The squares of what the prompt's last queries give to a key are summed for each query head, and
 * pooled as snapkv's, but over all of the prompt; the sums of the query heads are its score.  Each
 * head holds blocks of 32 keys, the last of them perhaps not full.  As long as one block fewer
 * leaves room for `heavy` + `recent` keys of each head, the head gives one up for which that is
 * cheapest: as many of its keys of the lowest scores as its last block has, and the highest of
 * these is the price.  The `recent` last keys are never given up.  Nothing is dropped any more.
 * Where a layer has room for `cross_layer` times as many, the heads of each layer give up what goes
 * beyond that among themselves, before all do. */

static void kvcompress_valued(const struct ref_policy *p, struct ref_head *h, uint32_t n)
{
    struct ref_policy all = *p;
    all.recent = 0;
    if (n > p->heavy + p->recent) {
        all.heavy = 0;
        snapkv_valued(&all, h, n);
    }
}

/* Marks the keys of the next block that a head would give up, and tells the highest score of
 * them. */
static bool next_block(const struct ref_policy *p, const struct ref_head *h, uint32_t n, bool *gone,
                       double *ret_price)
{
    struct ref_head left = *h;
    uint32_t held = count_kept(h, n), last = held % 32 ? held % 32 : 32;
    memcpy(gone, h->kept, n * sizeof(*gone));
    left.kept = gone;
    for (uint32_t i = 0; i < last; i++) {
        uint32_t at = weakest(&left, 0, n - p->recent);
        if (at == UINT32_MAX)
            return false;
        gone[at] = false;
        *ret_price = h->score[at];
    }
    return true;
}

static void give_up(const struct ref_policy *p, struct ref_head *const *h, uint32_t count,
                    uint32_t n, uint64_t room)
{
    uint64_t blocks = 0;
    bool *left = malloc(n * sizeof(*left)), *best = malloc(n * sizeof(*best));
    assert(left && best);
    for (uint32_t a = 0; a < count; a++)
        blocks += (count_kept(h[a], n) + 31) / 32;
    for (; 32 * (blocks - 1) >= room * count; blocks--) {
        uint32_t cheapest = count;
        double price, least = 0;
        for (uint32_t a = 0; a < count; a++) {
            if (!next_block(p, h[a], n, left, &price) || (cheapest < count && price >= least))
                continue;
            cheapest = a;
            least = price;
            memcpy(best, left, n * sizeof(*best));
        }
        assert(cheapest < count);
        memcpy(h[cheapest]->kept, best, n * sizeof(*best));
    }
    free(left);
    free(best);
}

void ref_cut_all(const struct ref_policy *p, struct ref_head *const *h, uint32_t count,
                 uint32_t each, uint32_t n)
{
    uint32_t room = p->heavy + p->recent, of_layer = (uint32_t)(p->cross_layer * room);
    for (uint32_t a = 0; a < count; a++)
        keep_all(h[a], n);
    if (n <= room)
        return;
    for (uint32_t a = 0; a < count && p->cross_layer > 0 && n > of_layer; a += each)
        give_up(p, h + a, each, n, of_layer);
    give_up(p, h, count, n, room);
}

/* ---- tova: what the newest token attends to (TOVA, arXiv 2401.06104) ----
 * A layer keeps H tokens, the same in all heads: after the prompt those that its last token gives
 * most to, over all heads.  A new token attends, and then the one that it gave least to is dropped,
 * be it itself. */

static void tova_drop(const struct ref_policy *p, struct ref_head *h, uint32_t count, uint32_t end)
{
    for (uint32_t j = 0; j < end; j++) {
        double sum = 0;
        for (uint32_t a = 0; a < count; a++)
            sum += h[a].score[j];
        for (uint32_t a = 0; a < count; a++)
            h[a].score[j] = sum;
    }
    for (uint32_t a = 0; a < count; a++)
        keep_strongest(&h[a], 0, end, p->heavy);
}

static void tova_layer_prefilled(const struct ref_policy *p, struct ref_head *h, uint32_t count,
                                 uint32_t n)
{
    for (uint32_t a = 0; a < count; a++) {
        keep_all(&h[a], n);
        for (uint32_t j = 0; j < n; j++)
            h[a].score[j] = together(p, h[a].each + j, h[a].group, h[a].room);
    }
    if (n > p->heavy)
        tova_drop(p, h, count, n);
}

static void tova_attended(const struct ref_policy *policy, struct ref_head *h, uint32_t t,
                          uint32_t n, const double *p)
{
    memcpy(h->score, p, (t + 1) * sizeof(*p));
}

static void tova_layer_attended(const struct ref_policy *p, struct ref_head *h, uint32_t count,
                                uint32_t t)
{
    if (count_kept(h, t + 1) > p->heavy)
        tova_drop(p, h, count, t + 1);
}

/* ---- many at a time: scissorhands (Scissorhands, arXiv 2305.17118), and h2o and snapkv so ----
 * A head comes to hold `high` tokens.  Before the next one attends, all go but its `recent` newest
 * and, of those before them, the `heavy` ones that have got most from the last `history` tokens; of
 * snapkv with their neighbours' among what is held, in order, the recent ones left out.  A prompt
 * longer than `high` is cut to as many, by its own rule. */

void ref_divide(struct ref_policy *p)
{
    uint32_t drop = p->drop;
    if (p->drop_share > 0)
        drop = (uint32_t)floor(p->drop_share * p->high + 1e-9);
    drop = drop < 1 ? 1 : drop < p->high ? drop : p->high - 1;
    uint32_t left = p->high - drop;
    p->heavy = left / 2;
    if (p->asked_heavy)
        p->heavy = p->asked_heavy < left ? p->asked_heavy : left - 1;
    if (p->asked_recent)
        p->heavy = p->asked_recent < left ? left - p->asked_recent : 0;
    p->recent = left - p->heavy;
    p->sinks = p->asked_sinks < p->heavy ? p->asked_sinks : p->heavy;
    p->history = p->asked_history < drop ? p->asked_history : drop;
}

double ref_given(const struct ref_policy *p, const struct ref_head *h, uint32_t end, uint32_t j)
{
    double sum = 0, decay = h2o_decay(p);
    for (uint32_t i = p->history ? end - p->history : 0; i < end; i++)
        sum = decay * sum + (j <= i ? h->given[(size_t)i * h->room + j] : 0);
    return sum;
}

static void keep_by_rank(const struct ref_policy *p, struct ref_head *h, uint32_t end)
{
    double *score = h->score;
    h->score = h->rank;
    keep_strongest(h, p->sinks, end, p->heavy - p->sinks);
    h->score = score;
}

static void bulk_prefilled(const struct ref_policy *p, struct ref_head *h, uint32_t n)
{
    struct ref_policy all = *p;
    keep_all(h, n);
    if (n <= p->high)
        return;
    all.history = p->observe < n ? p->observe : 0;
    for (uint32_t j = 0; j < n; j++)
        h->rank[j] = ref_given(&all, h, n, j);
    keep_by_rank(p, h, n - p->recent);
}

static void bulk_snapkv_prefilled(const struct ref_policy *p, struct ref_head *h, uint32_t n)
{
    keep_all(h, n);
    if (n <= p->high)
        return;
    snapkv_valued(p, h, n);
    memcpy(h->rank, h->score, n * sizeof(*h->rank));
    keep_by_rank(p, h, n - p->recent);
}

static void bulk_arrives(const struct ref_policy *p, struct ref_head *h, uint32_t t, uint32_t n)
{
    if (count_kept(h, t) == p->high) {
        uint32_t end = t, count = 0, at = 0;
        double *sum = calloc(2 * (size_t)p->high, sizeof(*sum)), *pooled = sum + p->high;
        assert(sum);
        for (uint32_t recent = 0; recent < p->recent;)
            recent += h->kept[--end];
        for (uint32_t j = 0; j < end; j++) {
            if (h->kept[j])
                sum[count++] = ref_given(p, h, t, j);
        }
        bool pools = p->variant == REF_BULK_SNAPKV;
        if (pools)
            pool(p, pooled, sum, count);
        for (uint32_t j = 0; j < end; j++) {
            if (h->kept[j])
                h->rank[j] = (pools ? pooled : sum)[at++];
        }
        keep_by_rank(p, h, end);
        free(sum);
    }
    enter(h, t);
}

/* ---- fastgen: a rule for each head (FastGen, arXiv 2310.01801; details as in cold-compress) ----
 * From the matrix of what each query of the prompt gave each key: rule 0 keeps the first `sinks`
 * tokens and special ones, 1 also punctuation, 2 also `heavy` others that got most from each query
 * that sees them, 3 also the `recent` newest, 4 everything.  A rule sees a mask of that matrix; the
 * first whose part of all attention is enough is the head's.  If that keeps more than the cap, the
 * head goes back, rule by rule; of rule 0 the oldest behind the first tokens go then.  Later tokens
 * enter; and of those that nothing else keeps, the one that got least goes when there are more than
 * `heavy`. */

bool ref_is_of_class(const struct ref_head *h, uint32_t j)
{
    return h->rule < 4 && (h->classes[j] & (h->rule == 0 ? 1 : 3));
}

static bool is_beyond_cap(const struct ref_policy *p, const struct ref_head *h, uint32_t n)
{
    uint32_t kept = 0;
    for (uint32_t j = 0; j < n; j++)
        kept += h->kept[j];
    return p->cap && kept > p->cap;
}

void ref_cut_by_rule(const struct ref_policy *p, struct ref_head *h, uint32_t n)
{
    uint32_t others = 0;
    for (uint32_t j = 0; j < n; j++) {
        h->kept[j] = h->rule == 4 || j < p->sinks || ref_is_of_class(h, j) ||
                     (h->rule == 3 && n - j <= p->recent);
        h->rank[j] = 0;
        for (uint32_t i = j; i < n; i++)
            h->rank[j] += h->given[(size_t)i * h->room + j] / (n - j);
    }
    for (; h->rule >= 2 && others < p->heavy; others++) {
        uint32_t best = n;
        for (uint32_t j = 0; j < n; j++) {
            if (!h->kept[j] && (best == n || h->rank[j] >= h->rank[best]))
                best = j;
        }
        if (best == n)
            break;
        h->kept[best] = true;
    }
    for (uint32_t j = p->sinks; h->rule == 0 && is_beyond_cap(p, h, n); j++)
        h->kept[j] = false;
}

static void fastgen_prefilled(const struct ref_policy *p, struct ref_head *h, uint32_t n)
{
    for (h->rule = 0; h->rule < 5; h->rule++) {
        double sum = 0;
        ref_cut_by_rule(p, h, n);
        for (uint32_t i = 0; i < n; i++) {
            for (uint32_t j = 0; j <= i; j++) {
                bool seen = h->kept[j] || (h->rule == 3 && i - j < p->recent);
                sum += seen ? h->given[(size_t)i * h->room + j] : 0;
            }
        }
        h->recovered[h->rule] = sum / n;
    }
    for (h->rule = 0; h->rule < 4 && h->recovered[h->rule] < p->mass;)
        h->rule++;
    ref_cut_by_rule(p, h, n);
    while (is_beyond_cap(p, h, n)) {
        h->rule--;
        ref_cut_by_rule(p, h, n);
    }
}

static void fastgen_arrives(const struct ref_policy *p, struct ref_head *h, uint32_t t, uint32_t n)
{
    uint32_t newest = h->rule == 3 ? p->recent : 1, may = h->rule >= 2 ? p->heavy : 0;
    uint32_t others = 0, least = UINT32_MAX;
    enter(h, t);
    for (uint32_t j = p->sinks; h->rule < 4 && j <= t && t - j >= newest; j++) {
        if (!h->kept[j] || ref_is_of_class(h, j))
            continue;
        others++;
        if (least == UINT32_MAX || h->score[j] < h->score[least])
            least = j;
    }
    if (others > may)
        h->kept[least] = false;
}

/* ---- knorm, keydiff: what keys are by themselves (arXiv 2406.11430, arXiv 2504.15364) ----
 * Of a prompt stay the H shortest keys; or the H whose cosine with the mean of all keys' directions
 * is lowest.  Nothing is dropped any more. */

static double length_of(const double *x, uint32_t dim)
{
    double square = 0;
    for (uint32_t d = 0; d < dim; d++)
        square += x[d] * x[d];
    return sqrt(square);
}

static void knorm_valued(const struct ref_policy *p, struct ref_head *h, uint32_t n)
{
    for (uint32_t j = 0; j < n; j++)
        h->score[j] = -length_of(h->k + (size_t)j * h->dim, h->dim);
}

static void keydiff_valued(const struct ref_policy *p, struct ref_head *h, uint32_t n)
{
    double *mean = calloc(h->dim, sizeof(*mean));
    assert(mean);
    for (uint32_t j = 0; j < n; j++) {
        const double *k = h->k + (size_t)j * h->dim;
        for (uint32_t d = 0; d < h->dim; d++)
            mean[d] += k[d] / length_of(k, h->dim) / n;
    }
    for (uint32_t j = 0; j < n; j++) {
        const double *k = h->k + (size_t)j * h->dim;
        double product = 0;
        for (uint32_t d = 0; d < h->dim; d++)
            product += k[d] * mean[d];
        h->score[j] = -product / length_of(k, h->dim) / length_of(mean, h->dim);
    }
    free(mean);
}

/* ---- table ---- */

const struct ref_stages *ref_stages(enum ref_variant v)
{
    static const struct ref_stages stages[] = {
        [REF_FULL] = {full_prefilled, NULL, full_arrives, full_attended},
        [REF_H2O] = {h2o_prefilled, NULL, h2o_arrives, h2o_attended},
        [REF_HEAVY] = {heavy_prefilled, NULL, heavy_arrives, full_attended},
        [REF_WINDOW] = {window_prefilled, NULL, window_arrives, full_attended},
        [REF_FLEXGEN] = {flexgen_prefilled, NULL, full_arrives, flexgen_attended},
        [REF_HF] = {hf_prefilled, NULL, full_arrives, hf_attended},
        [REF_ADAKV] = {NULL, ref_cut_shared, adakv_arrives, h2o_attended},
        [REF_SNAPKV] = {NULL, NULL, full_arrives, grow_attended, NULL, snapkv_valued},
        [REF_TOVA] = {NULL, tova_layer_prefilled, full_arrives, tova_attended, tova_layer_attended},
        [REF_KNORM] = {NULL, NULL, full_arrives, grow_attended, NULL, knorm_valued},
        [REF_KEYDIFF] = {NULL, NULL, full_arrives, grow_attended, NULL, keydiff_valued},
        [REF_EXPECTED] = {NULL, NULL, full_arrives, grow_attended, NULL, ref_expected_valued},
        [REF_BULK_H2O] = {bulk_prefilled, NULL, bulk_arrives, grow_attended},
        [REF_BULK_SNAPKV] = {bulk_snapkv_prefilled, NULL, bulk_arrives, grow_attended},
        [REF_SCISSORHANDS] = {bulk_prefilled, NULL, bulk_arrives, grow_attended},
        [REF_FASTGEN] = {fastgen_prefilled, NULL, fastgen_arrives, full_attended},
        [REF_KVCOMPRESS] = {NULL, NULL, full_arrives, grow_attended, NULL, kvcompress_valued},
    };
    return &stages[v];
}

void ref_head_adopt(const struct ref_policy *p, struct ref_head *h, uint32_t out, uint32_t in)
{
    assert(h->kept[out] && !h->kept[in]);
    h->kept[out] = false;
    h->kept[in] = true;
    for (uint32_t i = 0; p->variant == REF_FLEXGEN && i < h->heavy_count; i++) {
        if (h->heavy[i] == out)
            h->heavy[i] = in;
    }
}

void ref_layer_adopt(struct ref_head *loses, uint32_t out, struct ref_head *keeps, uint32_t in)
{
    assert(loses->kept[out] && !keeps->kept[in]);
    loses->kept[out] = false;
    loses->slots--;
    keeps->kept[in] = true;
    keeps->slots++;
}
