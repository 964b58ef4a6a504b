/* SPDX-License-Identifier: Apache-2.0
 * The page's pictures: memory by tier, a pass lane by lane.  They hold no text, which would shrink
 * with them on a phone: that stands beside them. */
#include "engine/plan/html.h"

#include "base/units.h"
#include "policy/simulate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { WIDTH = 1000, BINS = 400, LEVELS = 16, PASSES = 3, COLOURS = 8 };

/* ---- memory ---- */

/* Purposes of memory by colour, the same on every tier; what is small or comes late is "other". */
struct palette {
    const char *name[COLOURS];
    int count;
};

static int colour_of(struct palette *colours, const char *purpose)
{
    for (int i = 0; i < colours->count; i++) {
        if (strcmp(colours->name[i], purpose) == 0)
            return i;
    }
    if (colours->count == COLOURS)
        return -1;
    colours->name[colours->count] = purpose;
    return colours->count++;
}

/* The parts of a tier in the order of the ledger, without the small ones, which are put last. */
struct parts {
    const char *name[COLOURS + 1];
    int colour[COLOURS + 1]; /* -1: grey */
    double bytes[COLOURS + 1];
    int count;
};

static void find_parts(struct parts *ret, struct palette *colours, const json_t *items, double all)
{
    const char *purpose;
    json_t *v;
    double other = 0;
    json_object_foreach((json_t *)items, purpose, v)
    {
        double bytes = json_number_value(v);
        int colour = bytes < 0.02 * all ? -1 : colour_of(colours, purpose);
        if (colour < 0)
            other += bytes;
        else {
            ret->name[ret->count] = purpose;
            ret->colour[ret->count] = colour;
            ret->bytes[ret->count++] = bytes;
        }
    }
    if (other > 0) {
        ret->name[ret->count] = "other";
        ret->colour[ret->count] = -1;
        ret->bytes[ret->count++] = other;
    }
}

static void put_part_text(struct aq_buf *out, const struct parts *parts, int i)
{
    char size[AQ_SIZE_TEXT_MAX];
    aq_html_put(out, parts->name[i]);
    aq_buf_printf(out, " %s", aq_format_size(size, (uint64_t)parts->bytes[i]));
}

static void put_class(struct aq_buf *out, int colour)
{
    if (colour < 0)
        aq_buf_puts(out, "mo");
    else
        aq_buf_printf(out, "m%d", colour);
}

static void put_bar(struct aq_buf *out, const char *tier, const struct parts *parts, double scale,
                    double budget)
{
    double x = 0;
    aq_buf_puts(out, "<svg class=\"bar\" viewBox=\"0 0 1000 20\" preserveAspectRatio=\"none\" "
                     "role=\"img\" aria-label=\"");
    aq_html_put(out, tier);
    for (int i = 0; i < parts->count; i++) {
        aq_buf_puts(out, i ? ", " : ": ");
        put_part_text(out, parts, i);
    }
    aq_buf_puts(out, "\">");
    for (int i = 0; i < parts->count; i++) {
        double width = parts->bytes[i] * scale;
        aq_buf_puts(out, "<rect class=\"");
        put_class(out, parts->colour[i]);
        aq_buf_printf(out, "\" x=\"%.2f\" width=\"%.2f\" height=\"20\"><title>", x,
                      fmax(4, width - 1.5));
        put_part_text(out, parts, i);
        aq_buf_puts(out, "</title></rect>");
        x += width;
    }
    aq_buf_printf(out,
                  "<rect class=\"f\" vector-effect=\"non-scaling-stroke\" width=\"%.2f\" "
                  "height=\"20\"/></svg>\n",
                  budget * scale);
}

static void put_tier(struct aq_buf *out, const char *tier, const json_t *m, const char *used,
                     struct palette *colours)
{
    double all = aq_html_number(m, used), budget = aq_html_number(m, "budget");
    char a[AQ_SIZE_TEXT_MAX], b[AQ_SIZE_TEXT_MAX];
    struct parts parts = {0};
    find_parts(&parts, colours, json_object_get(m, "items"), all);
    aq_buf_puts(out, "<div class=\"tier\"><p><b>");
    aq_html_put(out, tier);
    aq_buf_printf(out, "</b> %s of %s%s</p>\n", aq_format_size(a, (uint64_t)all),
                  aq_format_size(b, (uint64_t)budget), all > budget ? ", the outlined part" : "");
    put_bar(out, tier, &parts, WIDTH / fmax(1, fmax(all, budget)), budget);
    aq_buf_puts(out, "<ul class=\"legend\">");
    for (int i = 0; i < parts.count; i++) {
        aq_buf_puts(out, "<li><i class=\"");
        put_class(out, parts.colour[i]);
        aq_buf_puts(out, "\"></i>");
        put_part_text(out, &parts, i);
        aq_buf_puts(out, "</li>");
    }
    aq_buf_puts(out, "</ul></div>\n");
}

void aq_html_put_memory(struct aq_buf *out, const json_t *memory, const char *used)
{
    struct palette colours = {0};
    const char *tier;
    json_t *m;
    aq_buf_puts(out, "<section><h2>Memory</h2>\n");
    json_object_foreach((json_t *)memory, tier, m)
    {
        put_tier(out, tier, m, used, &colours);
    }
    aq_buf_puts(out, "</section>\n");
}

/* ---- a pass ---- */

/* Bins of a lane, each 0 to 1: how much of it the lane is busy. */
static void fill_bins(double bins[AQ_LANE_COUNT][BINS], const struct aq_sim_result *r,
                      const struct aq_program *program, double start_s, double end_s)
{
    double width = (end_s - start_s) / BINS;
    for (uint32_t i = 0; i < r->event_count; i++) {
        const struct aq_sim_event *e = &r->event[i];
        double from = fmax(e->start_s, start_s), to = fmin(e->end_s, end_s);
        double *lane = bins[program->op[e->op].lane];
        for (double t = from; t < to;) {
            int bin = (int)fmin(BINS - 1, floor((t - start_s) / width + 1e-9));
            double next = bin == BINS - 1 ? to : fmin(to, start_s + (bin + 1) * width);
            if (next <= t)
                break; /* below what doubles can tell */
            lane[bin] += (next - t) / width;
            t = next;
        }
    }
}

/* A small load is at least the lowest step: a lane that works is never an empty row. */
static int level_of(double busy)
{
    return busy < 1e-3 ? 0 : (int)fmax(1, lround(LEVELS * fmin(1, busy)));
}

static void put_lane(struct aq_buf *out, const double bins[BINS], const char *name, double busy)
{
    aq_buf_printf(out,
                  "<div class=\"lane\"><span>%s</span><span class=\"n\">%.0f&nbsp;%%</span><svg "
                  "viewBox=\"0 0 %d %d\" preserveAspectRatio=\"none\" role=\"img\" "
                  "aria-label=\"%s is busy for %.0f %% of the pass\"><path class=\"b\" d=\"M0 %d",
                  name, 100 * busy, BINS, LEVELS, name, 100 * busy, LEVELS);
    for (int i = 0; i < BINS; i++) {
        if (!i || level_of(bins[i]) != level_of(bins[i - 1]))
            aq_buf_printf(out, "V%d", LEVELS - level_of(bins[i]));
        if (i == BINS - 1 || level_of(bins[i]) != level_of(bins[i + 1]))
            aq_buf_printf(out, "H%d", i + 1);
    }
    aq_buf_printf(out, "V%dZ\"/></svg></div>\n", LEVELS);
}

static int put_lanes(struct aq_buf *out, const struct aq_planning *p, const struct aq_sim_result *r,
                     struct aq_err *reterr)
{
    double(*bins)[BINS] = calloc(AQ_LANE_COUNT, sizeof(*bins));
    bool quick = r->pass_s < 1;
    if (!bins)
        return aq_error_memory(reterr, "--html");
    fill_bins(bins, r, &p->block.program, r->end_s[PASSES - 2] - r->pass_s, r->end_s[PASSES - 2]);
    aq_buf_printf(out,
                  "<p>A steady decode pass of %.3g&nbsp;%s, from left to right; the taller, the "
                  "busier.%s</p>\n",
                  r->pass_s * (quick ? 1e3 : 1), quick ? "ms" : "s",
                  aq_planning_has_device(p) || p->o->emulate_device
                      ? " h2d is the link from host to device, d2h the way back."
                      : "");
    for (int l = 0; l < AQ_LANE_COUNT; l++) {
        if (r->lane[l].busy_s > 0)
            put_lane(out, bins[l], aq_lane_name((enum aq_lane)l), r->lane[l].share);
    }
    free(bins);
    return 0;
}

int aq_html_put_pass(struct aq_buf *out, const struct aq_planning *p, struct aq_err *reterr)
{
    struct aq_sim_result r;
    int rc = aq_forecast_timeline(&r, &p->block, &p->work, &p->hw, PASSES, reterr);
    if (rc < 0)
        return rc;
    aq_buf_puts(out, "<section><h2>A pass, lane by lane</h2>\n");
    rc = put_lanes(out, p, &r, reterr);
    aq_buf_puts(out, "</section>\n");
    aq_sim_result_close(&r);
    return rc;
}
