/* SPDX-License-Identifier: Apache-2.0
 * One line for the state of things: whole in a log, and cut to the width of a terminal behind a bar
 * that becomes shorter first. */
#include "engine/job/job.h"

#include <inttypes.h>
#include <math.h>

enum { BAR_MAX = 24, BAR_MIN = 4, BAR_FRAME = 3 /* "[", "] " */ };

/* ---- parts ---- */

/* Whole seconds, a part counting as one: what is not over takes some time. */
static void put_clock(struct aq_buf *out, double s)
{
    uint64_t all = (uint64_t)ceil(s);
    aq_buf_printf(out, "%" PRIu64 ":%02u:%02u", all / 3600, (unsigned)(all / 60 % 60),
                  (unsigned)(all % 60));
}

/* How busy each lane has been, where more than one had work. */
static void put_lanes(struct aq_buf *out, const struct aq_engine_stats *s)
{
    double passes_s = s->prefill_s + s->decode_s + s->mixed_s;
    uint32_t busy = 0;
    for (int l = 0; l < AQ_LANE_CONTROL; l++)
        busy += s->lane[l].busy_s > 0;
    if (busy < 2 || passes_s <= 0)
        return;
    const char *before = ", busy:";
    for (int l = 0; l < AQ_LANE_CONTROL; l++) {
        if (s->lane[l].busy_s <= 0)
            continue;
        double share = s->lane[l].busy_s / passes_s;
        aq_buf_printf(out, "%s %s %.0f %%", before, aq_lane_name((enum aq_lane)l),
                      100 * (share < 1 ? share : 1));
        before = ",";
    }
}

/* What a line says of a run; the later ones leave out more, and use fewer words. */
enum detail {
    ALL,
    NO_LANES, /* how busy lanes are */
    SHORT,    /* nor how long a pass takes */
    NO_FLIGHT,
    NO_ERRORS,
    NO_RATE,
    DETAIL_COUNT
};

static void put_counts(struct aq_buf *out, const struct aq_job *j, const struct aq_run_view *view,
                       enum detail detail)
{
    uint64_t errors = j->errors_before + view->errors;
    aq_buf_printf(out, "%" PRIu64 "/%" PRIu64 "%s", j->done_before + view->done, j->row_count,
                  detail < SHORT ? " records" : "");
    if (errors && detail < NO_ERRORS)
        aq_buf_printf(out, " (%" PRIu64 " errors)", errors);
}

/* Of a run whose weights are loaded. */
static void put_state(struct aq_buf *out, const struct aq_job *j, const struct aq_run_view *view,
                      double now_s, enum detail detail)
{
    bool words = detail < SHORT;
    put_counts(out, j, view, detail);
    if (!view->stats.passes) {
        aq_buf_printf(out, ", in pass 1 for %.0f s",
                      view->pass_begin_s > 0 ? now_s - view->pass_begin_s : 0);
        if (detail < NO_FLIGHT)
            aq_buf_printf(out, ", %" PRIu64 " in flight", view->in_flight);
        return;
    }
    if (detail < NO_RATE)
        aq_buf_printf(out, ", %.1f tok/s%s", aq_view_gen_tok_s(view, now_s),
                      words ? " generated" : "");
    if (words)
        aq_buf_printf(out, ", %.3g s a pass", aq_view_pass_s(view));
    if (detail < NO_FLIGHT)
        aq_buf_printf(out, ", %" PRIu64 " in flight", view->in_flight);
    if (detail < NO_LANES)
        put_lanes(out, &view->stats);
    double eta_s = aq_progress_eta_s(j, view, now_s);
    if (eta_s < 0)
        return;
    aq_buf_puts(out, words ? ", about " : ", ");
    put_clock(out, eta_s);
    aq_buf_puts(out, " left");
}

/* ---- lines ---- */

static void put_loading(struct aq_buf *out, const struct aq_run_view *view, double now_s)
{
    aq_buf_printf(out, "loading weights for %.0f s", now_s - view->begin_s);
}

void aq_progress_text(struct aq_buf *out, const struct aq_job *j, const struct aq_run_view *view,
                      double now_s)
{
    if (view->loaded)
        put_state(out, j, view, now_s, ALL);
    else
        put_loading(out, view, now_s);
}

static void put_bar(struct aq_buf *out, const struct aq_job *j, const struct aq_run_view *view,
                    size_t width)
{
    uint64_t done = j->done_before + view->done;
    double share = j->row_count ? (double)done / (double)j->row_count : 1;
    size_t full = (size_t)(share * (double)width);
    aq_buf_puts(out, "[");
    for (size_t i = 0; i < width; i++)
        aq_buf_puts(out, i < full ? "#" : ".");
    aq_buf_puts(out, "] ");
}

void aq_progress_bar(struct aq_buf *out, const struct aq_job *j, const struct aq_run_view *view,
                     double now_s, size_t columns)
{
    if (!view->loaded) {
        put_loading(out, view, now_s);
        return;
    }
    struct aq_buf text = {0};
    size_t least = BAR_FRAME + BAR_MIN;
    for (int detail = ALL; detail < DETAIL_COUNT; detail++) {
        aq_buf_clear(&text);
        put_state(&text, j, view, now_s, (enum detail)detail);
        if (text.count + least <= columns)
            break;
    }
    if (text.count + least <= columns) {
        size_t width = columns - text.count - BAR_FRAME;
        put_bar(out, j, view, width < BAR_MAX ? width : BAR_MAX);
    }
    aq_buf_put(out, text.data, text.count);
    aq_buf_close(&text);
}
