/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/forecast.h"
#include "policy/search.h"

#include <errno.h>

/* A share must make the whole this much faster than what is there without it. */
static const double faster = 1.02;
/* Percent of the panels that would stream from the host. */
static const double shares[] = {12.5, 25, 37.5, 50, 75};

static bool fits(const struct aq_block *b, const struct aq_block_inputs *in)
{
    double excess[AQ_TIER_COUNT];
    aq_block_excess(excess, b, in);
    for (int t = 0; t < AQ_TIER_COUNT; t++) {
        if (excess[t] > 0)
            return false;
    }
    return true;
}

static int rate(double *ret, const struct aq_block *b, const struct aq_block_inputs *in)
{
    struct aq_forecast f;
    struct aq_forecast_work work = {
        .steps = in->steps, .sequences = in->sequences, .refill = in->refill, .serial = in->serial};
    aq_forecast_mean(&work, in);
    int rc = aq_forecast_make(&f, b, &work, in->hw, NULL);
    *ret = rc < 0 ? 0 : f.gen_tok_s;
    return rc == -ENOMEM ? rc : 0;
}

/* The inputs with what *b has decided, so that it is made again. */
static struct aq_block_inputs decided(const struct aq_block *b, const struct aq_block_inputs *in)
{
    struct aq_block_inputs d = *in;
    bool host = false, device = false;
    for (uint32_t i = 0; i < b->plan.part_count; i++) {
        host |= b->plan.part[i].side == AQ_ATTEND_HOST;
        device |= b->plan.part[i].side == AQ_ATTEND_DEVICE && b->plan.part[i].tier != AQ_DEVICE;
    }
    d.micro_batch = b->plan.shape.micro_batch;
    d.micro_batches = b->plan.shape.micro_batches;
    if (in->attention_auto) {
        d.attention_auto = false;
        d.attention = host && !device ? AQ_ATTEND_HOST : AQ_ATTEND_DEVICE;
    }
    return d;
}

int aq_block_share_products(struct aq_block *best, const struct aq_block_inputs *in,
                            struct aq_err *reterr)
{
    /* Of weights that do not stream from the host none can be kept from it. */
    if (!in->hw || !in->separate || best->plan.placement.weights.percent[AQ_HOST] <= 0)
        return 0;
    struct aq_block_inputs made = decided(best, in);
    struct aq_block now = {0};
    double least, found;
    int rc = rate(&least, best, in);
    least *= faster;
    for (uint32_t i = 0; i < AQ_ARRAY_LEN(shares) && rc == 0; i++) {
        made.host_products = shares[i];
        rc = aq_block_make(&now, &made, &best->plan.placement, made.micro_batch, NULL);
        if (rc < 0 || !fits(&now, in)) {
            rc = rc == -ENOMEM ? rc : 0; /* such a program there is not */
            continue;
        }
        rc = rate(&found, &now, in);
        if (rc == 0 && found > least) {
            struct aq_block better = now;
            now = *best;
            *best = better;
            least = found;
        }
    }
    aq_block_close(&now);
    return rc < 0 ? aq_error(reterr, rc, "block: shares of products") : 0;
}
