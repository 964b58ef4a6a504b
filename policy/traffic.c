/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/traffic.h"

#include <assert.h>

/* Full runs of `slots` slots: where heads differ, the packed ones, and for growth those that a head
 * without rows of the prompt has filled.  All count as full where no slot is added. */
static uint32_t whole_runs(const struct aq_seat_kv *s, uint32_t slots)
{
    if (!s->differ)
        return slots / AQ_HEAD_BLOCK_SLOTS;
    if (s->limits.slots == s->limits.heavy_prompt + s->limits.recent_prompt)
        return aq_seat_kv_runs(s, slots);
    return (slots + s->spare - (AQ_HEAD_BLOCK_SLOTS - 1)) / AQ_HEAD_BLOCK_SLOTS;
}

/* Head-blocks of codes of `slots` slots. */
static uint32_t coded_runs(const struct aq_plan *plan, uint32_t slots)
{
    return aq_kv_residual_coded(&plan->kv.residual, slots);
}

/* With a residual, whose codes are made where the sequence is attended: runs of codes are read, and
 * those that this pass makes are written. */
static void of_residual(struct aq_kv_traffic *t, const struct aq_plan *plan,
                        const struct aq_part *part, const struct aq_seat_kv *s, bool decoding)
{
    bool disk = part->tier == AQ_DISK;
    assert(!plan->separate);
    t->whole = t->left = coded_runs(plan, s->held);
    if (decoding && disk)
        t->read.end = coded_runs(plan, s->before);
    if (disk)
        t->write = (struct aq_runs){t->read.end, t->whole};
}

/* Are the seat's next victims known after the pass? */
static bool has_victims(const struct aq_seat_kv *s)
{
    return s->drops && s->held == s->limits.slots && !s->limits.bulk;
}

bool aq_kv_uses_delta(const struct aq_part *part, const struct aq_seat_kv *s)
{
    /* Rows in the tail need no delta: the tail is in host memory. */
    return s->overwrites && whole_runs(s, s->held) > 0 && part->tier == AQ_DISK;
}

/* brought: runs that lie in the place of another seat. */
static void of_decoding(struct aq_kv_traffic *t, const struct aq_plan *plan,
                        const struct aq_part *part, const struct aq_seat_kv *s, uint32_t brought)
{
    bool disk = part->tier == AQ_DISK;
    uint32_t runs = aq_seat_kv_runs(s, s->before);
    t->whole = t->left = whole_runs(s, s->before);
    if (s->drops_many)
        t->left = whole_runs(s, aq_kv_limits_cut(&s->limits));
    if (disk) {
        t->read = (struct aq_runs){brought, t->whole};
        t->write.end = s->rewrites || s->drops_many ? t->left : 0;
        t->write_tail = whole_runs(s, s->held) > t->left;
    }
    if (!plan->separate || part->side != AQ_ATTEND_DEVICE)
        return;
    t->load = (struct aq_runs){brought, runs};
    if (s->drops_many) {
        t->store.end = aq_seat_kv_runs(s, s->held);
        return;
    }
    t->load_delta = s->delta && s->overwrites;
    if (disk && s->overwrites) {
        t->store = (struct aq_runs){s->rewrites ? 0 : t->whole, runs};
        t->store_delta = !s->rewrites && aq_kv_uses_delta(part, s);
        return;
    }
    t->store_key = true;
    t->store_victims = !disk && has_victims(s);
}

/* Of a prefix that others have, runs that none of them brings are read; the rest is made. */
static void of_prompt(struct aq_kv_traffic *t, const struct aq_plan *plan,
                      const struct aq_part *part, const struct aq_seat_kv *s, uint32_t brought,
                      uint32_t prefix)
{
    bool disk = part->tier == AQ_DISK, host = part->side == AQ_ATTEND_HOST;
    t->whole = t->left = whole_runs(s, s->held);
    if (disk) {
        t->read = (struct aq_runs){brought, prefix};
        t->write = (struct aq_runs){prefix, t->whole};
    }
    if (!plan->separate)
        return;
    t->load = (struct aq_runs){brought, prefix};
    t->store = (struct aq_runs){prefix, aq_seat_kv_runs(s, s->held)};
    t->store_slots = host && s->drops;
    t->store_victims = !host && !disk && has_victims(s);
}

void aq_kv_traffic_of(struct aq_kv_traffic *ret, const struct aq_plan *plan,
                      const struct aq_part *part, const struct aq_seat *s, uint32_t kind)
{
    *ret = (struct aq_kv_traffic){0};
    if (!part->staged || !s->rows)
        return;
    uint32_t brought = s->brought / AQ_HEAD_BLOCK_SLOTS;
    if (plan->kv.residual.tokens)
        of_residual(ret, plan, part, &s->kv[kind], s->seen > s->prompt);
    else if (s->seen > s->prompt)
        of_decoding(ret, plan, part, &s->kv[kind], brought);
    else
        of_prompt(ret, plan, part, &s->kv[kind], brought, s->prefix / AQ_HEAD_BLOCK_SLOTS);
}

static uint64_t count_of(struct aq_runs r)
{
    return r.end - r.first;
}

void aq_kv_traffic_add(struct aq_kv_work *io, const struct aq_kv_traffic *t,
                       const struct aq_kv_sizes *z)
{
    io->read_bytes += count_of(t->read) * z->run_stride;
    io->write_bytes += (count_of(t->write) + t->write_tail) * z->run_stride;
    io->load_bytes += count_of(t->load) * z->run + t->load_delta * z->delta;
    io->store_bytes += count_of(t->store) * z->run + t->store_key * z->key +
                       t->store_victims * z->victims + t->store_slots * z->slots +
                       t->store_delta * z->delta;
}
