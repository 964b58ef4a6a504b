/* SPDX-License-Identifier: Apache-2.0
 * A plan's document as one page that needs nothing else: memory by tier, a pass lane by lane, what
 * more would buy, the sweep. */
#include "engine/plan/report.h"

#include "base/buf.h"
#include "base/file.h"
#include "base/units.h"
#include "policy/simulate.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { BINS = 400, LEVELS = 5, WIDTH = 880, LABEL = 150, PASSES = 3 };

static double number(const json_t *o, const char *key)
{
    return json_number_value(json_object_get(o, key));
}

/* Text from files and options, for HTML and its attributes. */
static void put(struct aq_buf *out, const char *text)
{
    for (; text && *text; text++) {
        switch (*text) {
        case '<': aq_buf_puts(out, "&lt;"); break;
        case '>': aq_buf_puts(out, "&gt;"); break;
        case '&': aq_buf_puts(out, "&amp;"); break;
        case '"': aq_buf_puts(out, "&quot;"); break;
        default: aq_buf_put(out, text, 1);
        }
    }
}

static const char page_head[] =
    "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
    "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<style>\n"
    ":root{color-scheme:light dark;--bg:#fcfcfa;--fg:#1d1f23;--dim:#6a6f78;--line:#dcdcd6;"
    "--bar:#2f6f8f;--alt:#b0672c}\n"
    "@media(prefers-color-scheme:dark){:root{--bg:#16181c;--fg:#e4e4e0;--dim:#9a9fa8;"
    "--line:#33363d;--bar:#69b3d6;--alt:#e0a064}}\n"
    "body{background:var(--bg);color:var(--fg);font:16px/1.5 system-ui,sans-serif;"
    "max-width:60rem;margin:2.5rem auto;padding:0 1.25rem}\n"
    "h1{font-size:1.5rem;margin:0}h2{font-size:1.05rem;margin:2.2rem 0 .6rem}\n"
    "p{margin:.3rem 0}.dim,figcaption{color:var(--dim)}.big{font-size:2.1rem;font-weight:600}\n"
    "table{border-collapse:collapse;width:100%}"
    "td,th{text-align:left;padding:.25rem .6rem .25rem 0;border-bottom:1px solid var(--line);"
    "font-weight:400;vertical-align:top}th{color:var(--dim)}td.n,th.n{text-align:right;"
    "font-variant-numeric:tabular-nums}\n"
    "figure{margin:0;overflow-x:auto}svg{width:100%;height:auto;display:block}"
    "svg text{fill:var(--fg);font:12px system-ui,sans-serif}svg .t{fill:var(--dim)}"
    "svg .b{fill:var(--bar)}svg .a{fill:var(--alt)}svg .f{fill:none;stroke:var(--line)}\n"
    "pre{white-space:pre-wrap;overflow-wrap:anywhere;border:1px solid var(--line);"
    "padding:.7rem;font-size:.85rem}ul{padding-left:1.2rem;margin:0}\n</style>\n";

/* ---- memory ---- */

static void put_tier(struct aq_buf *out, const char *tier, const json_t *m, const char *used)
{
    double all = number(m, used), budget = number(m, "budget"), x = LABEL;
    double scale = (WIDTH - LABEL) / fmax(1, fmax(all, budget));
    const char *purpose;
    json_t *bytes;
    char a[AQ_SIZE_TEXT_MAX], b[AQ_SIZE_TEXT_MAX];
    int n = 0;
    aq_format_size(a, (uint64_t)all);
    aq_format_size(b, (uint64_t)budget);
    aq_buf_printf(out, "<figure><svg viewBox=\"0 0 %d 34\" role=\"img\"><text x=\"0\" y=\"21\">",
                  WIDTH);
    put(out, tier);
    aq_buf_puts(out, "</text>");
    json_object_foreach(json_object_get(m, "items"), purpose, bytes)
    {
        double width = json_number_value(bytes) * scale;
        aq_buf_printf(out,
                      "<rect class=\"b\" x=\"%.2f\" y=\"6\" width=\"%.2f\" height=\"22\" "
                      "opacity=\"%.2f\"><title>",
                      x, fmax(0.2, width - 0.5), 1 - 0.14 * (n++ % 5));
        put(out, purpose);
        aq_buf_printf(out, ": %s</title></rect>",
                      aq_format_size(a, (uint64_t)json_integer_value(bytes)));
        x += width;
    }
    aq_buf_printf(out,
                  "<rect class=\"f\" x=\"%d.5\" y=\"5.5\" width=\"%.2f\" height=\"23\"/></svg>"
                  "<figcaption>",
                  LABEL, fmax(1, budget * scale - 1));
    aq_buf_printf(out, "%s of %s", aq_format_size(a, (uint64_t)all), b);
    json_object_foreach(json_object_get(m, "items"), purpose, bytes)
    {
        if (json_number_value(bytes) < 0.03 * all)
            continue;
        aq_buf_puts(out, " · ");
        put(out, purpose);
        aq_buf_printf(out, " %s", aq_format_size(a, (uint64_t)json_integer_value(bytes)));
    }
    aq_buf_puts(out, "</figcaption></figure>\n");
}

static void put_memory(struct aq_buf *out, const json_t *memory, const char *used)
{
    const char *tier;
    json_t *m;
    aq_buf_puts(out, "<h2>Memory</h2>\n");
    json_object_foreach((json_t *)memory, tier, m)
    {
        put_tier(out, tier, m, used);
    }
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

/* Equal neighbours are one rectangle. */
static void put_lane(struct aq_buf *out, const double bins[BINS], const char *name, double busy,
                     int y)
{
    aq_buf_printf(out,
                  "<text x=\"0\" y=\"%d\">%s</text><text class=\"t\" x=\"%d\" y=\"%d\" "
                  "text-anchor=\"end\">%.0f %%</text>",
                  y + 14, name, LABEL - 8, y + 14, 100 * busy);
    double step = (double)(WIDTH - LABEL) / BINS;
    for (int first = 0, i = 1; i <= BINS; i++) {
        int level = (int)lround(LEVELS * fmin(1, bins[first]));
        if (i < BINS && lround(LEVELS * fmin(1, bins[i])) == level)
            continue;
        if (level)
            aq_buf_printf(out,
                          "<rect class=\"b\" x=\"%.2f\" y=\"%d\" width=\"%.2f\" height=\"16\" "
                          "opacity=\"%.2f\"/>",
                          LABEL + first * step, y + 2, (i - first) * step, (double)level / LEVELS);
        first = i;
    }
}

static void put_lanes(struct aq_buf *out, const struct aq_planning *p,
                      const struct aq_sim_result *r)
{
    double(*bins)[BINS] = calloc(AQ_LANE_COUNT, sizeof(*bins));
    int rows = 0, y = 4;
    if (!bins)
        return;
    fill_bins(bins, r, &p->block.program, r->end_s[PASSES - 2] - r->pass_s, r->end_s[PASSES - 2]);
    for (int l = 0; l < AQ_LANE_COUNT; l++)
        rows += r->lane[l].busy_s > 0;
    aq_buf_printf(out, "<figure><svg viewBox=\"0 0 %d %d\" role=\"img\">", WIDTH, rows * 22 + 26);
    for (int l = 0; l < AQ_LANE_COUNT; l++) {
        if (r->lane[l].busy_s <= 0)
            continue;
        put_lane(out, bins[l], aq_lane_name((enum aq_lane)l), r->lane[l].share, y);
        y += 22;
    }
    aq_buf_printf(out,
                  "<text class=\"t\" x=\"%d\" y=\"%d\">0 s</text><text class=\"t\" x=\"%d\" "
                  "y=\"%d\" text-anchor=\"end\">%.3g s</text></svg><figcaption>A steady decode "
                  "pass: the stronger the colour, the busier the lane</figcaption></figure>\n",
                  LABEL, y + 14, WIDTH, y + 14, r->pass_s);
    free(bins);
}

static int put_pass(struct aq_buf *out, const struct aq_planning *p, struct aq_err *reterr)
{
    struct aq_sim_result r;
    int rc = aq_forecast_timeline(&r, &p->block, &p->work, &p->hw, PASSES, reterr);
    if (rc < 0)
        return rc;
    aq_buf_puts(out, "<h2>A pass, lane by lane</h2>\n");
    put_lanes(out, p, &r);
    aq_sim_result_close(&r);
    return 0;
}

/* ---- tables ---- */

static void put_changes(struct aq_buf *out, const char *title, const json_t *rows, double now)
{
    size_t i;
    json_t *row;
    if (!json_array_size(rows))
        return;
    aq_buf_printf(out,
                  "<h2>%s</h2>\n<table><tr><th>change</th><th class=\"n\">tok/s</th>"
                  "<th class=\"n\">%s</th></tr>\n",
                  title, now > 0 ? "gain" : "");
    json_array_foreach((json_t *)rows, i, row)
    {
        double rate = number(row, "gen_tok_s");
        aq_buf_puts(out, "<tr><td>");
        put(out, json_string_value(json_object_get(row, "change")));
        if (json_is_true(json_object_get(row, "lossy")))
            aq_buf_puts(out, " <span class=\"dim\">lossy</span>");
        if (json_is_false(json_object_get(row, "feasible")))
            aq_buf_puts(out, "</td><td class=\"n dim\">not enough</td><td></td></tr>\n");
        else if (now > 0)
            aq_buf_printf(out, "</td><td class=\"n\">%.4g</td><td class=\"n\">%+.1f %%</td></tr>\n",
                          rate, 100 * (rate / now - 1));
        else
            aq_buf_printf(out, "</td><td class=\"n\">%.4g</td><td></td></tr>\n", rate);
    }
    aq_buf_puts(out, "</table>\n");
}

static bool is_axis(const char *key)
{
    static const char *const ours[] = {"feasible", "gen_tok_s", "total_s",
                                       "plan",     "bound_by",  "shortfall"};
    for (size_t i = 0; i < AQ_ARRAY_LEN(ours); i++) {
        if (strcmp(ours[i], key) == 0)
            return false;
    }
    return true;
}

static void put_sweep(struct aq_buf *out, const json_t *rows)
{
    double most = 0;
    size_t i;
    json_t *row, *v;
    const char *key;
    int y = 4;
    json_array_foreach((json_t *)rows, i, row) most = fmax(most, number(row, "gen_tok_s"));
    if (!json_array_size(rows))
        return;
    aq_buf_printf(out, "<h2>Sweep</h2>\n<figure><svg viewBox=\"0 0 %d %zu\" role=\"img\">", WIDTH,
                  json_array_size(rows) * 22 + 8);
    json_array_foreach((json_t *)rows, i, row)
    {
        const char *join = "";
        double width = most > 0 ? 480 * number(row, "gen_tok_s") / most : 0;
        aq_buf_printf(out, "<text x=\"0\" y=\"%d\">", y + 14);
        json_object_foreach(row, key, v)
        {
            if (!is_axis(key))
                continue;
            aq_buf_puts(out, join);
            put(out, key);
            aq_buf_puts(out, " ");
            put(out, json_string_value(v));
            join = ", ";
        }
        aq_buf_printf(out,
                      "</text><rect class=\"a\" x=\"300\" y=\"%d\" width=\"%.1f\" "
                      "height=\"16\"/>",
                      y + 2, width);
        if (json_is_true(json_object_get(row, "feasible")))
            aq_buf_printf(out, "<text x=\"%.1f\" y=\"%d\">%.4g tok/s</text>", 306 + width, y + 14,
                          number(row, "gen_tok_s"));
        else
            aq_buf_printf(out, "<text class=\"t\" x=\"306\" y=\"%d\">does not fit</text>", y + 14);
        y += 22;
    }
    aq_buf_puts(out, "</svg></figure>\n");
}

static void put_lines(struct aq_buf *out, const char *title, const json_t *lines)
{
    size_t i;
    json_t *line;
    if (!json_array_size(lines))
        return;
    aq_buf_printf(out, "<h2>%s</h2>\n<ul>\n", title);
    json_array_foreach((json_t *)lines, i, line)
    {
        aq_buf_puts(out, "<li>");
        put(out, json_string_value(line));
        aq_buf_puts(out, "</li>\n");
    }
    aq_buf_puts(out, "</ul>\n");
}

static void put_summary(struct aq_buf *out, const json_t *doc)
{
    const json_t *plan = json_object_get(doc, "plan"), *p = json_object_get(doc, "predicted");
    char text[AQ_SIZE_TEXT_MAX];
    aq_buf_printf(out,
                  "<p class=\"big\">%.4g tok/s</p><p>generated, bound by %s; prefill %.4g, "
                  "decode %.4g tok/s",
                  number(p, "gen_tok_s"), json_string_value(json_object_get(doc, "bound_by")),
                  number(p, "prefill_tok_s"), number(p, "decode_tok_s"));
    if (json_is_number(json_object_get(p, "total_s")))
        aq_buf_printf(out, "; %s in all", aq_format_duration(text, number(p, "total_s")));
    aq_buf_printf(out, "</p>\n<p>%.0f × %.0f seats, attention %s, ", number(plan, "micro_batches"),
                  number(plan, "micro_batch"),
                  json_string_value(json_object_get(plan, "attention")));
    put(out, json_string_value(json_object_get(plan, "placement")));
    const char *windows = json_string_value(json_object_get(plan, "kv_windows"));
    const char *layers = json_string_value(json_object_get(plan, "kv_layers"));
    aq_buf_printf(out,
                  "</p>\n<p class=\"dim\">weights %s, KV %s, compute %s, policy %s%s%s%s%s</p>\n",
                  json_string_value(json_object_get(plan, "weight_format")),
                  json_string_value(json_object_get(plan, "kv_format")),
                  json_string_value(json_object_get(plan, "compute")),
                  json_string_value(json_object_get(plan, "kv_policy")), windows ? "; " : "",
                  windows ? windows : "", layers ? "; " : "", layers ? layers : "");
}

int aq_plan_html_write(const json_t *doc, const struct aq_planning *p, const char *path,
                       struct aq_err *reterr)
{
    struct aq_buf out = {0};
    bool feasible = json_is_true(json_object_get(doc, "feasible"));
    int rc = 0;
    aq_buf_puts(&out, page_head);
    aq_buf_puts(&out, "<title>");
    put(&out, p->model->name);
    aq_buf_puts(&out, " on ");
    put(&out, p->machine.name);
    aq_buf_puts(&out, "</title></head><body>\n<h1>");
    put(&out, p->model->name);
    aq_buf_puts(&out, " on ");
    put(&out, p->machine.name);
    aq_buf_puts(&out, "</h1>\n");
    if (feasible) {
        put_summary(&out, doc);
        put_memory(&out, json_object_get(doc, "memory"), "used");
        rc = put_pass(&out, p, reterr);
        put_changes(&out, "What more would buy", json_object_get(doc, "sensitivity"),
                    number(json_object_get(doc, "predicted"), "gen_tok_s"));
    } else {
        aq_buf_puts(&out, "<p class=\"big\">does not fit</p><p>");
        put(&out, p->why_not.text);
        aq_buf_puts(&out, "</p>\n");
        put_memory(&out, json_object_get(doc, "shortfall"), "needed");
        put_changes(&out, "What would help", json_object_get(doc, "fixes"), 0);
    }
    put_sweep(&out, json_object_get(doc, "sweep"));
    if (feasible) {
        aq_buf_puts(&out, "<h2>Command</h2>\n<pre>");
        put(&out, json_string_value(json_object_get(doc, "command")));
        aq_buf_puts(&out, "</pre>\n");
    }
    put_lines(&out, "Warnings", json_object_get(doc, "warnings"));
    put_lines(&out, "Assumed", json_object_get(doc, "assumptions"));
    aq_buf_puts(&out, "</body></html>\n");
    if (rc == 0)
        rc = aq_file_replace(path, out.data ? out.data : "", out.data ? strlen(out.data) : 0, false,
                             reterr);
    aq_buf_close(&out);
    return rc;
}
