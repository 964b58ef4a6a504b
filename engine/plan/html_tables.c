/* SPDX-License-Identifier: Apache-2.0
 * The page's text and tables. */
#include "engine/plan/html.h"

#include "base/units.h"
#include "engine/plan/report.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

double aq_html_number(const json_t *o, const char *key)
{
    return json_number_value(json_object_get(o, key));
}

const char *aq_html_text_of(const json_t *o, const char *key)
{
    const char *text = json_string_value(json_object_get(o, key));
    return text ? text : "";
}

static void put_count(struct aq_buf *out, const char *text, size_t count)
{
    for (const char *end = text + count; text < end; text++) {
        switch (*text) {
        case '<': aq_buf_puts(out, "&lt;"); break;
        case '>': aq_buf_puts(out, "&gt;"); break;
        case '&': aq_buf_puts(out, "&amp;"); break;
        case '"': aq_buf_puts(out, "&quot;"); break;
        default: aq_buf_put(out, text, 1);
        }
    }
}

void aq_html_put(struct aq_buf *out, const char *text)
{
    if (text)
        put_count(out, text, strlen(text));
}

/* ---- links ---- */

/* What begins an address, and what is to stand before the rest of it. */
static const struct {
    const char *begins, *address;
} addresses[] = {
    {"https://", "https://"}, {"http://", "http://"}, {"arXiv:", "https://arxiv.org/abs/"}};

/* Bytes of an address without the full stop or comma of the sentence around it. */
static size_t address_bytes(const char *text)
{
    size_t n = strcspn(text, " \t\n\"'<>()[]{},;");
    while (n && strchr(".:!?", text[n - 1]))
        n--;
    return n;
}

void aq_html_put_linked(struct aq_buf *out, const char *text)
{
    while (text && *text) {
        size_t i = 0, n = 0, skip = 0;
        for (; i < AQ_ARRAY_LEN(addresses) && !n; i++) {
            skip = strlen(addresses[i].begins);
            if (strncmp(text, addresses[i].begins, skip) == 0)
                n = address_bytes(text);
        }
        if (n <= skip) {
            put_count(out, text++, 1);
            continue;
        }
        aq_buf_printf(out, "<a rel=\"noreferrer\" href=\"%s", addresses[i - 1].address);
        put_count(out, text + skip, n - skip);
        aq_buf_puts(out, "\">");
        put_count(out, text, n);
        aq_buf_puts(out, "</a>");
        text += n;
    }
}

/* ---- tables ---- */

/* A part of the page that may be wider than a phone scrolls within itself. */
static const char table_open[] = "<div class=\"wide\" tabindex=\"0\" role=\"region\" "
                                 "aria-label=\"%s\"><table><thead><tr>",
                  table_close[] = "</tbody></table></div>\n";

void aq_html_put_changes(struct aq_buf *out, const char *title, const json_t *rows, double now)
{
    size_t i;
    json_t *row;
    if (!json_array_size(rows))
        return;
    aq_buf_printf(out, "<section><h2>%s</h2>\n", title);
    aq_buf_printf(out, table_open, title);
    aq_buf_printf(out,
                  "<th scope=\"col\">change</th><th scope=\"col\" class=\"n\">tok/s</th>%s"
                  "</tr></thead><tbody>\n",
                  now > 0 ? "<th scope=\"col\" class=\"n\">gain</th>" : "");
    json_array_foreach((json_t *)rows, i, row)
    {
        double rate = aq_html_number(row, "gen_tok_s");
        aq_buf_puts(out, "<tr><th scope=\"row\">");
        aq_html_put(out, aq_html_text_of(row, "change"));
        if (json_is_true(json_object_get(row, "lossy")))
            aq_buf_puts(out, " <span class=\"dim\">lossy</span>");
        if (json_is_false(json_object_get(row, "feasible")))
            aq_buf_puts(out, "</th><td class=\"n dim\">not enough</td>");
        else
            aq_buf_printf(out, "</th><td class=\"n\">%.4g</td>", rate);
        if (now > 0)
            aq_buf_printf(out, "<td class=\"n\">%+.1f&nbsp;%%</td>", 100 * (rate / now - 1));
        aq_buf_puts(out, "</tr>\n");
    }
    aq_buf_puts(out, table_close);
    aq_buf_puts(out, "</section>\n");
}

/* A row of a sweep begins with the values of its options; this is the first key behind them. */
static bool is_behind_axes(const char *key)
{
    return strcmp(key, "feasible") == 0;
}

static void put_sweep_head(struct aq_buf *out, json_t *row, bool priced)
{
    const char *key;
    json_t *v;
    json_object_foreach(row, key, v)
    {
        if (is_behind_axes(key))
            break;
        aq_buf_puts(out, "<th scope=\"col\">");
        for (const char *c = key; *c; c++)
            aq_buf_put(out, *c == '_' ? " " : c, 1);
        aq_buf_puts(out, "</th>");
    }
    aq_buf_printf(
        out,
        "<th scope=\"col\" class=\"n\">tok/s</th><th class=\"bars\" aria-hidden=\"true\"></th>"
        "<th scope=\"col\" class=\"n\">time</th>%s<th scope=\"col\">seats</th>"
        "<th scope=\"col\">bound by</th><th scope=\"col\">weights/KV, policy</th></tr></thead>"
        "<tbody>\n",
        priced ? "<th scope=\"col\" class=\"n\">cost</th>" : "");
}

static void put_sweep_row(struct aq_buf *out, json_t *row, double most, bool priced)
{
    const json_t *plan = json_object_get(row, "plan");
    double rate = aq_html_number(row, "gen_tok_s");
    char text[AQ_SIZE_TEXT_MAX] = "", money[AQ_MONEY_TEXT_MAX];
    const char *key;
    json_t *v;
    aq_buf_puts(out, "<tr>");
    json_object_foreach(row, key, v)
    {
        if (is_behind_axes(key))
            break;
        aq_buf_puts(out, "<td>");
        aq_html_put(out, json_string_value(v));
        aq_buf_puts(out, "</td>");
    }
    if (!json_is_true(json_object_get(row, "feasible"))) {
        aq_buf_printf(out, "<td class=\"dim\" colspan=\"%d\">does not fit</td></tr>\n",
                      priced ? 7 : 6);
        return;
    }
    if (json_is_number(json_object_get(row, "total_s")))
        aq_format_duration(text, aq_html_number(row, "total_s"));
    aq_buf_printf(out,
                  "<td class=\"n\">%.4g</td><td class=\"bars\" aria-hidden=\"true\"><svg "
                  "viewBox=\"0 0 100 10\" preserveAspectRatio=\"none\"><rect class=\"a\" "
                  "width=\"%.1f\" height=\"10\"/></svg></td><td class=\"n\">%s</td>",
                  rate, most > 0 ? 100 * rate / most : 0, text);
    if (priced) {
        aq_buf_puts(out, "<td class=\"n\">");
        aq_html_put(out, aq_plan_money(money, row, "money"));
        aq_buf_puts(out, "</td>");
    }
    aq_buf_printf(out, "<td class=\"nb\">%.0f × %.0f</td><td>", aq_html_number(plan, "micro_batch"),
                  aq_html_number(plan, "micro_batches"));
    aq_html_put(out, aq_html_text_of(row, "bound_by"));
    aq_buf_printf(out, "</td><td>%s/%s, %s</td></tr>\n", aq_html_text_of(plan, "weight_format"),
                  aq_html_text_of(plan, "kv_format"), aq_html_text_of(plan, "policy"));
}

void aq_html_put_sweep(struct aq_buf *out, const json_t *rows)
{
    double most = 0;
    size_t i;
    json_t *row;
    bool priced = false;
    json_array_foreach((json_t *)rows, i, row)
    {
        most = fmax(most, aq_html_number(row, "gen_tok_s"));
        priced |= json_is_number(json_object_get(row, "money"));
    }
    if (!json_array_size(rows))
        return;
    aq_buf_puts(out, "<section><h2>Sweep</h2>\n");
    aq_buf_printf(out, table_open, "Sweep");
    put_sweep_head(out, json_array_get(rows, 0), priced);
    json_array_foreach((json_t *)rows, i, row) put_sweep_row(out, row, most, priced);
    aq_buf_puts(out, table_close);
    aq_buf_puts(out, "</section>\n");
}

void aq_html_put_lines(struct aq_buf *out, const json_t *lines)
{
    size_t i;
    json_t *line;
    aq_buf_puts(out, "<ul>\n");
    json_array_foreach((json_t *)lines, i, line)
    {
        aq_buf_puts(out, "<li>");
        aq_html_put_linked(out, json_string_value(line));
        aq_buf_puts(out, "</li>\n");
    }
    aq_buf_puts(out, "</ul>\n");
}

void aq_html_put_rates(struct aq_buf *out, const struct aq_hw_profile *machine)
{
    json_t *all = aq_hw_json(machine), *section, *rate;
    const char *name, *key;
    char value[AQ_SIZE_TEXT_MAX];
    out->failed |= !all;
    aq_buf_printf(out, table_open, "Numbers of the machine");
    aq_buf_puts(out, "<th scope=\"col\">number</th><th scope=\"col\" class=\"n\">value</th>"
                     "<th scope=\"col\">source</th></tr></thead><tbody>\n");
    json_object_foreach(json_object_get(all, "rates"), name, section)
    {
        json_object_foreach(section, key, rate)
        {
            bool assumed = strcmp(aq_html_text_of(rate, "origin"), "assumed") == 0;
            bool size = strcmp(key, "memory") == 0 || strcmp(key, "space") == 0;
            double x = aq_html_number(rate, "value");
            if (size) /* all others have their unit in their name */
                aq_format_size(value, (uint64_t)x);
            else
                snprintf(value, sizeof(value), "%.4g", x);
            aq_buf_printf(out, "<tr><th scope=\"row\">%s.", name);
            for (const char *c = key; *c; c++) /* names may break at each of their words */
                aq_buf_puts(out, *c == '_' ? "_<wbr>" : (char[2]){*c, '\0'});
            aq_buf_printf(out, "</th><td class=\"n\">%s</td><td>%s", value,
                          assumed ? "assumed: " : "");
            aq_html_put_linked(out, aq_html_text_of(rate, "source"));
            aq_buf_puts(out, "</td></tr>\n");
        }
    }
    aq_buf_puts(out, table_close);
    json_decref(all);
}
