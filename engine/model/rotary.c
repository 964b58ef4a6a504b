/* SPDX-License-Identifier: Apache-2.0
 * Frequencies are theta^(-2i/dims), changed by the kind; the formulas are those of transformers'
 * modeling_rope_utils.py, which cites their authors: Chen et al., arXiv 2306.15595 (linear), Peng
 * et al., arXiv 2309.00071 (yarn), Ding et al., arXiv 2402.13753 (long). */
#include "engine/model/rotary.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

static double plain(const struct aq_rotary_config *r, uint32_t i)
{
    return pow(r->theta, -2.0 * i / r->dims);
}

/* Waves longer than original / low are stretched by the factor, those shorter than original / high
 * are left alone, and between them the change is gradual. */
static double banded(const struct aq_rotary_config *r, double factor, uint32_t i)
{
    double f = plain(r, i), turns = r->original * f / (2 * M_PI);
    double share = fmin(fmax((turns - r->low) / (r->high - r->low), 0), 1);
    return (1 - share) * f / factor + share * f;
}

/* The place of the frequency that turns so often over the original positions. */
static double yarn_place(const struct aq_rotary_config *r, double turns)
{
    return r->dims * log(r->original / (turns * 2 * M_PI)) / (2 * log(r->theta));
}

static double yarn(const struct aq_rotary_config *r, double factor, uint32_t i)
{
    double first = yarn_place(r, r->beta_fast), last = yarn_place(r, r->beta_slow);
    if (r->truncate) {
        first = floor(first);
        last = ceil(last);
    }
    first = fmax(first, 0);
    last = fmin(last, r->dims - 1);
    if (first == last)
        last += 0.001;
    double ramp = fmin(fmax((i - first) / (last - first), 0), 1), f = plain(r, i);
    return f / factor * ramp + f * (1 - ramp);
}

static double frequency(const struct aq_rotary_config *r, double factor, uint32_t table, uint32_t i)
{
    switch (r->kind) {
    case AQ_ROTARY_LINEAR: return plain(r, i) / factor;
    case AQ_ROTARY_BANDS: return banded(r, factor, i);
    case AQ_ROTARY_YARN: return yarn(r, factor, i);
    case AQ_ROTARY_LONG: return plain(r, i) / (table ? r->long_factor[i] : r->short_factor[i]);
    default: return plain(r, i); /* DYNAMIC: its base changes beyond the positions known only */
    }
}

static double yarn_scale(double factor, double by)
{
    return factor > 1 ? 0.1 * by * log(factor) + 1 : 1;
}

/* What cosine and sine are multiplied by. */
static double attention(const struct aq_rotary_config *r, double factor)
{
    if (r->attention > 0)
        return r->attention;
    if (r->kind == AQ_ROTARY_YARN && r->mscale > 0 && r->mscale_all_dim > 0)
        return yarn_scale(factor, r->mscale) / yarn_scale(factor, r->mscale_all_dim);
    if (r->kind == AQ_ROTARY_YARN)
        return yarn_scale(factor, 1);
    if (r->kind == AQ_ROTARY_LONG && factor > 1)
        return sqrt(1 + log(factor) / log(r->original));
    return 1;
}

int aq_rotary_make(struct aq_rotary *ret, const struct aq_rotary_config *r, uint32_t max_positions,
                   struct aq_err *reterr)
{
    struct aq_rotary made = {0};
    if (r->kind == AQ_ROTARY_NONE) {
        *ret = made;
        return 0;
    }
    assert(r->dims >= 2 && r->dims % 2 == 0);
    double factor = r->factor > 0      ? r->factor
                    : r->original >= 1 ? (double)max_positions / r->original
                                       : 1;
    uint32_t tables = r->kind == AQ_ROTARY_LONG ? 2 : 1, pairs = r->dims / 2;
    assert(tables == 1 || pairs <= AQ_CONFIG_TURNS_MAX);
    made.dims = r->dims;
    made.long_from = tables == 2 ? r->original : 0;
    for (uint32_t t = 0; t < tables; t++) {
        made.frequency[t] = calloc(pairs, sizeof(*made.frequency[t]));
        if (!made.frequency[t]) {
            free(made.frequency[0]);
            return aq_error_memory(reterr, "table of %u rotary frequencies", pairs);
        }
        made.factor[t] = (float)attention(r, factor);
        for (uint32_t i = 0; i < pairs; i++)
            made.frequency[t][i] = (float)frequency(r, factor, t, i);
    }
    *ret = made;
    return 0;
}
