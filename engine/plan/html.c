/* SPDX-License-Identifier: Apache-2.0
 * A plan's document as one page that needs nothing else: the plan, sliders over plans that were
 * made ahead, memory by tier, a pass lane by lane, what more would buy, the sweep. */
#include "engine/plan/report.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "base/units.h"
#include "engine/build_info.h"
#include "engine/embedded.h"
#include "engine/options/notation.h"
#include "engine/plan/html.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- head ---- */

static const char *embedded(const char *name)
{
    for (uint32_t i = 0; i < aq_embedded_page_count; i++) {
        if (strcmp(aq_embedded_page[i].name, name) == 0)
            return aq_embedded_page[i].text;
    }
    assert(!"a file of the page is missing in engine/meson.build");
    return "";
}

static void put_head(struct aq_buf *out, const char *title)
{
    aq_buf_puts(out, "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
                     "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; "
                     "style-src 'unsafe-inline'; script-src 'unsafe-inline'\">\n"
                     "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
                     "<meta name=\"color-scheme\" content=\"light dark\">\n<title>");
    aq_html_put(out, title);
    aq_buf_puts(out, "</title>\n<style>\n");
    aq_buf_puts(out, embedded("page_style"));
    aq_buf_puts(out, "</style></head><body>\n");
}

static void put_length(struct aq_buf *out, const json_t *range, const char *what)
{
    double low = json_number_value(json_array_get(range, 0));
    double high = json_number_value(json_array_get(range, 1));
    if (low < high)
        aq_buf_printf(out, "%.0f to %.0f %s", low, high, what);
    else
        aq_buf_printf(out, "%.0f %s", high, what);
}

static void put_workload(struct aq_buf *out, const json_t *work)
{
    const json_t *requests = json_object_get(work, "requests");
    if (json_is_integer(requests))
        aq_buf_printf(out, "%.0f requests of ", json_number_value(requests));
    else
        aq_buf_puts(out, "As many requests as keep it busy, each of ");
    put_length(out, json_object_get(work, "prompt_len"), "prompt tokens and ");
    put_length(out, json_object_get(work, "gen_len"), "generated tokens");
    const char *file = aq_html_text_of(work, json_object_get(work, "input") ? "input" : "lengths");
    if (*file) {
        aq_buf_puts(out, ", from ");
        aq_html_put(out, file);
    }
}

static void put_header(struct aq_buf *out, const json_t *doc, const char *title)
{
    char date[32] = "";
    time_t now = (time_t)aq_clock_unix_s();
    struct tm t;
    if (gmtime_r(&now, &t))
        strftime(date, sizeof(date), "%Y-%m-%d", &t);
    aq_buf_puts(out, "<header><h1>");
    aq_html_put(out, title);
    aq_buf_puts(out, "</h1>\n<p id=\"workload\">");
    put_workload(out, json_object_get(doc, "workload"));
    aq_buf_printf(out,
                  "</p>\n<p class=\"dim\">Planned <time datetime=\"%s\">%s</time> by aquifer "
                  "%s (%s)</p></header>\n<main>\n",
                  date, date, aq_build_version(), aq_build_commit());
}

/* ---- what was asked for ---- */

static void put_range(struct aq_buf *out, const json_t *range)
{
    const json_t *band = json_object_get(range, "gen_tok_s");
    aq_buf_puts(out, "<p id=\"range\">");
    if (json_is_array(band))
        aq_buf_printf(out, "Likely %.3g to %.3g tok/s: there lay ",
                      json_number_value(json_array_get(band, 0)),
                      json_number_value(json_array_get(band, 1)));
    else
        aq_buf_puts(out, "The error of this prediction is ");
    aq_html_put(out, aq_html_text_of(range, "from"));
    aq_buf_puts(out, ".</p>\n");
}

/* What the job costs, and by which price. */
static void put_cost(struct aq_buf *out, const json_t *p, const json_t *price)
{
    char money[AQ_MONEY_TEXT_MAX], million[AQ_MONEY_TEXT_MAX];
    const char *date = json_string_value(json_object_get(price, "date"));
    if (!*aq_plan_money(million, p, "money_per_million"))
        return;
    aq_buf_puts(out, "<p id=\"cost\">Costs ");
    if (*aq_plan_money(money, p, "money")) {
        aq_buf_puts(out, "<b>");
        aq_html_put(out, money);
        aq_buf_puts(out, "</b>, ");
    }
    aq_html_put(out, million);
    aq_buf_puts(out, " a million generated tokens, at ");
    aq_html_put(out, aq_html_text_of(p, "price_per_hour"));
    aq_buf_printf(out, " an hour (%s", date ? "of " : "");
    aq_html_put(out, date ? date : aq_html_text_of(price, "source"));
    aq_buf_puts(out, ").</p>\n");
}

static void put_seats(struct aq_buf *out, const json_t *plan)
{
    double batches = aq_html_number(plan, "micro_batches");
    char placement[160];
    aq_buf_printf(out, "<p>%.0f sequences run at once", aq_html_number(plan, "seats"));
    if (batches > 1)
        aq_buf_printf(out, ", in %.0f micro-batches of %.0f", batches,
                      aq_html_number(plan, "micro_batch"));
    aq_buf_printf(out, ", and share each sweep over the weights. Attention: %s. Placement ",
                  aq_html_text_of(plan, "attention"));
    aq_placement_shown(placement, aq_html_text_of(plan, "placement"));
    aq_html_put(out, placement);
    aq_buf_puts(out, " (percent on device, host, disk).</p>\n");
}

static void put_summary(struct aq_buf *out, const json_t *doc)
{
    const json_t *plan = json_object_get(doc, "plan"), *p = json_object_get(doc, "predicted");
    char text[AQ_SIZE_TEXT_MAX];
    aq_buf_printf(out, "<section><p class=\"big\">%.4g tok/s</p>\n<p>generated, bound by %s",
                  aq_html_number(p, "gen_tok_s"), aq_html_text_of(doc, "bound_by"));
    if (json_is_number(json_object_get(p, "total_s")))
        aq_buf_printf(out, "; <b>%s</b> in all",
                      aq_format_duration(text, aq_html_number(p, "total_s")));
    aq_buf_printf(out, ". Prefill %.4g, decode %.4g tok/s.</p>\n",
                  aq_html_number(p, "prefill_tok_s"), aq_html_number(p, "decode_tok_s"));
    put_cost(out, p, json_object_get(doc, "price"));
    put_range(out, json_object_get(doc, "range"));
    put_seats(out, plan);
    const char *windows = aq_html_text_of(plan, "kv_windows");
    const char *layers = aq_html_text_of(plan, "kv_layers");
    aq_buf_printf(out, "<p>Weights %s, KV %s, compute %s, policy %s%s%s%s%s.</p></section>\n",
                  aq_html_text_of(plan, "weight_format"), aq_html_text_of(plan, "kv_format"),
                  aq_html_text_of(plan, "compute"), aq_html_text_of(plan, "policy"),
                  *windows ? "; " : "", windows, *layers ? "; " : "", layers);
}

static void put_warnings(struct aq_buf *out, const json_t *lines)
{
    if (!json_array_size(lines))
        return;
    aq_buf_puts(out, "<section class=\"warn\"><h2>Warnings</h2>\n");
    aq_html_put_lines(out, lines);
    aq_buf_puts(out, "</section>\n");
}

/* ---- what if ---- */

/* The script builds the sliders; without it the rest of the page stands. */
static void put_what_if(struct aq_buf *out)
{
    aq_buf_puts(out, "<section id=\"what-if\" hidden><h2>What if</h2></section>\n"
                     "<noscript><p class=\"dim\">The sliders of this page need a browser that runs "
                     "its script.</p></noscript>\n");
}

/* JSON within a script ends at "</script" and nowhere else: no '<' is left in its strings. */
static void put_points(struct aq_buf *out, const json_t *points)
{
    char *text = aq_json_dump(points, JSON_COMPACT | JSON_ENSURE_ASCII | JSON_REAL_PRECISION(9));
    out->failed |= !text;
    aq_buf_puts(out, "<script type=\"application/json\" id=\"points\">");
    for (const char *c = text; c && *c; c++)
        aq_buf_puts(out, *c == '<' ? "\\u003c" : (char[2]){*c, '\0'});
    aq_buf_puts(out, "</script>\n<script>\n");
    aq_buf_puts(out, embedded("page_script"));
    aq_buf_puts(out, "</script>\n");
    free(text);
}

/* ---- the page ---- */

static void put_command(struct aq_buf *out, const char *command)
{
    aq_buf_puts(out, "<section><h2>Command</h2>\n<pre class=\"command\">");
    aq_html_put(out, command);
    aq_buf_puts(out, "</pre></section>\n");
}

static void put_folded(struct aq_buf *out, const json_t *doc, const struct aq_planning *p)
{
    const json_t *lines = json_object_get(doc, "assumptions");
    aq_buf_printf(out, "<details><summary><h2>Assumed (%zu)</h2></summary>\n",
                  json_array_size(lines));
    aq_html_put_lines(out, lines);
    aq_buf_puts(out, "</details>\n<details><summary><h2>Numbers of the machine, and their sources"
                     "</h2></summary>\n");
    aq_html_put_rates(out, &p->machine);
    aq_buf_puts(out, "</details>\n");
}

static int put_main(struct aq_buf *out, const json_t *doc, bool points, const struct aq_planning *p,
                    struct aq_err *reterr)
{
    bool feasible = json_is_true(json_object_get(doc, "feasible"));
    int rc = 0;
    if (feasible) {
        put_summary(out, doc);
    } else {
        aq_buf_puts(out, "<section><p class=\"big\">does not fit</p><p>");
        aq_html_put(out, p->why_not.text);
        aq_buf_puts(out, "</p></section>\n");
    }
    put_warnings(out, json_object_get(doc, "warnings"));
    if (points)
        put_what_if(out);
    aq_html_put_memory(out, json_object_get(doc, feasible ? "memory" : "shortfall"),
                       feasible ? "used" : "needed");
    if (feasible)
        rc = aq_html_put_pass(out, p, reterr);
    if (feasible)
        aq_html_put_changes(out, "What more would buy", json_object_get(doc, "sensitivity"),
                            aq_html_number(json_object_get(doc, "predicted"), "gen_tok_s"));
    else
        aq_html_put_changes(out, "What would help", json_object_get(doc, "fixes"), 0);
    aq_html_put_sweep(out, json_object_get(doc, "sweep"));
    if (feasible)
        put_command(out, aq_html_text_of(doc, "command"));
    put_folded(out, doc, p);
    return rc;
}

int aq_plan_html_write(const json_t *doc, const json_t *points, const struct aq_planning *p,
                       const char *path, struct aq_err *reterr)
{
    struct aq_buf out = {0}, title = {0};
    aq_buf_printf(&title, "%s on %s", p->model->name, p->machine.name);
    const char *name = title.data ? title.data : "";
    put_head(&out, name);
    put_header(&out, doc, name);
    int rc = put_main(&out, doc, points != NULL, p, reterr);
    aq_buf_puts(&out, "</main>\n");
    if (points)
        put_points(&out, points);
    aq_buf_puts(&out, "</body></html>\n");
    if (rc == 0 && (out.failed || title.failed))
        rc = aq_error_memory(reterr, "--html '%s'", path);
    if (rc == 0)
        rc = aq_file_replace(path, out.data, out.count, false, reterr);
    aq_buf_close(&out);
    aq_buf_close(&title);
    return rc;
}
