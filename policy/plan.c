/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/plan.h"

#include <assert.h>
#include <math.h>

static int check_shares(const char *what, const struct aq_shares *s, struct aq_err *reterr)
{
    double sum = 0;
    for (int t = 0; t < AQ_TIER_COUNT; t++) {
        if (!(s->percent[t] >= 0 && s->percent[t] <= 100))
            return aq_error(reterr, -EINVAL,
                            "placement: %s: expected percentages of 0 to 100, found %g", what,
                            s->percent[t]);
        sum += s->percent[t];
    }
    if (fabs(sum - 100) > 0.01)
        return aq_error(reterr, -EINVAL,
                        "placement: %s=%g/%g/%g adds up to %g, expected 100 (device/host/disk)",
                        what, s->percent[0], s->percent[1], s->percent[2], sum);
    return 0;
}

int aq_placement_check(const struct aq_placement *p, struct aq_err *reterr)
{
    int rc = check_shares("weights", &p->weights, reterr);
    rc = rc < 0 ? rc : check_shares("kv", &p->kv, reterr);
    return rc < 0 ? rc : check_shares("hidden", &p->hidden, reterr);
}

void aq_plan_kv_seats(uint32_t seats[AQ_TIER_COUNT], const struct aq_shares *kv, uint32_t count)
{
    double rest[AQ_TIER_COUNT];
    uint32_t given = 0;
    for (int t = 0; t < AQ_TIER_COUNT; t++) {
        double exact = kv->percent[t] * count / 100;
        /* Rounding of the product must not cost a share like 33.3 % of 3 seats its seat. */
        seats[t] = (uint32_t)(exact + 1e-9);
        rest[t] = exact - seats[t];
        given += seats[t];
    }
    for (; given < count; given++) {
        int most = AQ_HOST;
        for (int t = 0; t < AQ_TIER_COUNT; t++)
            most = rest[t] > rest[most] ? t : most;
        seats[most]++;
        rest[most] -= 1;
    }
}

enum aq_tier aq_plan_hidden_tier(const struct aq_plan *p, uint32_t k)
{
    uint32_t count[AQ_TIER_COUNT];
    aq_plan_kv_seats(count, &p->placement.hidden, p->shape.micro_batches);
    if (k < count[AQ_DEVICE])
        return AQ_DEVICE;
    if (k < count[AQ_DEVICE] + count[AQ_HOST])
        return p->separate ? AQ_HOST : AQ_DEVICE;
    return AQ_DISK;
}

uint64_t aq_plan_part_bytes(const struct aq_plan *p, const struct aq_part *part)
{
    /* On disk and in stages runs start at multiples of 4096. */
    return (uint64_t)part->count * p->kinds.runs * aq_align_up(p->shape.run_bytes, AQ_PANEL_ALIGN);
}

static int add_parts(struct aq_plan *p, struct aq_part like, uint32_t *first, uint32_t seats,
                     uint32_t each, struct aq_err *reterr)
{
    for (uint32_t end = *first + seats; *first < end; *first += like.count) {
        if (p->part_count == AQ_PART_MAX)
            return aq_error(reterr, -EINVAL,
                            "plan: more than %d parts in a micro-batch of %u seats; make parts "
                            "larger or the micro-batch smaller",
                            AQ_PART_MAX, p->shape.micro_batch);
        like.first = *first;
        like.count = (uint32_t)aq_min_u64(each ? each : seats, end - *first);
        p->part[p->part_count++] = like;
    }
    return 0;
}

int aq_plan_parts(struct aq_plan *p, enum aq_attention_side side, uint32_t part_seats,
                  struct aq_err *reterr)
{
    uint32_t seats[AQ_TIER_COUNT], first = 0;
    aq_plan_kv_seats(seats, &p->placement.kv, p->shape.micro_batch);
    if (!p->separate) {
        seats[AQ_HOST] += seats[AQ_DEVICE];
        seats[AQ_DEVICE] = 0;
        side = AQ_ATTEND_DEVICE;
    }
    p->part_count = 0;
    int rc = 0;
    for (int t = 0; t < AQ_TIER_COUNT && rc == 0; t++) {
        bool home = t == AQ_DEVICE || (t == AQ_HOST && !p->separate);
        double host = side == AQ_ATTEND_HOST ? 100 : side == AQ_ATTEND_SPLIT ? p->split_host : 0;
        uint32_t on_host = (uint32_t)ceil(seats[t] * host / 100);
        on_host = home ? 0 : on_host;
        struct aq_part part = {.tier = (uint8_t)t, .side = AQ_ATTEND_DEVICE, .staged = !home};
        rc = add_parts(p, part, &first, seats[t] - on_host, home ? 0 : part_seats, reterr);
        part.side = AQ_ATTEND_HOST;
        /* KV in host memory is attended in place; only prompts pass through the stage. */
        rc = rc < 0 ? rc : add_parts(p, part, &first, on_host, part_seats, reterr);
    }
    assert(rc < 0 || first == p->shape.micro_batch);
    return rc;
}

bool aq_plan_attention(enum aq_attention_side *ret, const struct aq_plan *p)
{
    bool host = false, device = false;
    for (uint32_t i = 0; i < p->part_count; i++) {
        host |= p->part[i].side == AQ_ATTEND_HOST;
        device |= p->part[i].side == AQ_ATTEND_DEVICE && p->part[i].staged;
    }
    if (host || device)
        *ret = !host ? AQ_ATTEND_DEVICE : device ? AQ_ATTEND_SPLIT : AQ_ATTEND_HOST;
    return host || device;
}
