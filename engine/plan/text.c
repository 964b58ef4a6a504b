/* SPDX-License-Identifier: Apache-2.0
 * A plan's document as text. */
#include "engine/plan/report.h"

#include "base/money.h"
#include "base/units.h"
#include "engine/options/notation.h"

#include <stdio.h>
#include <string.h>

static double number(const json_t *o, const char *key)
{
    return json_number_value(json_object_get(o, key));
}

static const char *text_of(const json_t *o, const char *key)
{
    const char *text = json_string_value(json_object_get(o, key));
    return text ? text : "-";
}

const char *aq_plan_money(char text[AQ_MONEY_TEXT_MAX], const json_t *o, const char *key)
{
    const char *hour = json_string_value(json_object_get(o, "price_per_hour"));
    struct aq_money like;
    text[0] = '\0';
    if (json_is_number(json_object_get(o, key)) && hour && aq_money_parse(&like, hour))
        aq_money_text(text, &like, number(o, key));
    return text;
}

/* What the job costs, and by which price. */
static void put_cost(const json_t *p, const json_t *price, const struct aquifer_hooks *hooks)
{
    char money[AQ_MONEY_TEXT_MAX], million[AQ_MONEY_TEXT_MAX];
    const char *date = json_string_value(json_object_get(price, "date"));
    aq_plan_money(money, p, "money");
    aq_plan_money(million, p, "money_per_million");
    if (*million)
        aq_hooks_outputf(hooks, "  costs %s%s%s a million generated tokens, at %s an hour (%s%s)\n",
                         money, *money ? ", " : "", million, text_of(p, "price_per_hour"),
                         date ? "of " : "", date ? date : text_of(price, "source"));
}

/* Without a device of its own memory there is one side to attend on, and no word for it. */
static void put_plan(const json_t *plan, bool device, const struct aquifer_hooks *hooks)
{
    char placement[160];
    aq_placement_shown(placement, text_of(plan, "placement"));
    aq_hooks_outputf(
        hooks, "  block       %.0f x %.0f seats, %.0f new prompt tokens a micro-batch and pass\n",
        number(plan, "micro_batch"), number(plan, "micro_batches"),
        number(plan, "micro_batch_tokens"));
    aq_hooks_outputf(hooks, "  placement   %s\n", placement);
    if (json_is_true(json_object_get(plan, "side_by_side")))
        aq_hooks_outputf(hooks, "  attention   of new tokens beside the products of other "
                                "micro-batches\n");
    if (device)
        aq_hooks_outputf(hooks, "  attention   %s", text_of(plan, "attention"));
    if (number(plan, "host_products") > 0)
        aq_hooks_outputf(hooks, ", %g %% of the host's weights multiplied there",
                         100 * number(plan, "host_products"));
    const char *windows = json_string_value(json_object_get(plan, "kv_windows"));
    const char *layers = json_string_value(json_object_get(plan, "kv_layers"));
    aq_hooks_outputf(hooks, "%s  formats     weights %s, KV %s, compute %s, policy %s%s%s%s%s\n",
                     device ? "\n" : "", text_of(plan, "weight_format"), text_of(plan, "kv_format"),
                     text_of(plan, "compute"), text_of(plan, "policy"), windows ? "; " : "",
                     windows ? windows : "", layers ? "; " : "", layers ? layers : "");
}

static void put_memory(const json_t *memory, const char *used, const struct aquifer_hooks *hooks)
{
    const char *tier, *purpose;
    json_t *m, *bytes;
    json_object_foreach((json_t *)memory, tier, m)
    {
        char a[AQ_SIZE_TEXT_MAX], b[AQ_SIZE_TEXT_MAX];
        aq_format_size(a, (uint64_t)json_integer_value(json_object_get(m, used)));
        aq_format_size(b, (uint64_t)json_integer_value(json_object_get(m, "budget")));
        aq_hooks_outputf(hooks, "  %-10s  %s of %s:", tier, a, b);
        double all = number(m, used), rest = 0;
        const char *join = " ";
        json_object_foreach(json_object_get(m, "items"), purpose, bytes)
        {
            if (json_number_value(bytes) < 0.02 * all) {
                rest += json_number_value(bytes);
                continue;
            }
            aq_format_size(a, (uint64_t)json_integer_value(bytes));
            aq_hooks_outputf(hooks, "%s%s %s", join, purpose, a);
            join = ", ";
        }
        aq_format_size(a, (uint64_t)rest);
        aq_hooks_outputf(hooks, rest > 0 ? "%sother %s\n" : "\n", join, a);
    }
}

static void put_links(const json_t *links, const struct aquifer_hooks *hooks)
{
    const char *lane;
    json_t *l;
    json_object_foreach((json_t *)links, lane, l)
    {
        aq_hooks_outputf(hooks, "  %-13s %3.0f %% busy", lane, 100 * number(l, "busy"));
        if (number(l, "bytes_per_pass") > 0)
            aq_hooks_outputf(hooks, ", %.4g GB at %.3g GB/s", 1e-9 * number(l, "bytes_per_pass"),
                             number(l, "gb_s"));
        aq_hooks_outputf(hooks, "\n");
    }
}

static void put_lines(const char *title, const json_t *lines, const struct aquifer_hooks *hooks)
{
    size_t i;
    json_t *line;
    if (json_array_size(lines))
        aq_hooks_outputf(hooks, "%s\n", title);
    json_array_foreach((json_t *)lines, i, line)
        aq_hooks_outputf(hooks, "  %s\n", json_string_value(line));
}

static void put_range(const json_t *range, const struct aquifer_hooks *hooks)
{
    const json_t *band = json_object_get(range, "gen_tok_s");
    if (json_is_array(band))
        aq_hooks_outputf(hooks, " (%.3g to %.3g: %s lay so)",
                         json_number_value(json_array_get(band, 0)),
                         json_number_value(json_array_get(band, 1)), text_of(range, "from"));
    else
        aq_hooks_outputf(hooks, " (error %s)", text_of(range, "from"));
}

/* What computes is no device to people whose machine has none. */
static const char *change_of(const json_t *row, bool device)
{
    const char *change = text_of(row, "change");
    return !device && strcmp(change, "+10 % device products") == 0 ? "+10 % products" : change;
}

static void put_feasible(const json_t *doc, const struct aquifer_hooks *hooks)
{
    bool device = json_object_get(json_object_get(doc, "memory"), "device");
    const json_t *p = json_object_get(doc, "predicted");
    char text[AQ_SIZE_TEXT_MAX];
    size_t i;
    json_t *row;
    put_plan(json_object_get(doc, "plan"), device, hooks);
    aq_hooks_outputf(hooks, "memory\n");
    put_memory(json_object_get(doc, "memory"), "used", hooks);
    aq_hooks_outputf(hooks, "a decode pass of %.3g s\n", number(p, "decode_pass_s"));
    put_links(json_object_get(doc, "links"), hooks);
    aq_hooks_outputf(hooks, "predicted\n  %.4g tok/s generated", number(p, "gen_tok_s"));
    put_range(json_object_get(doc, "range"), hooks);
    aq_hooks_outputf(hooks, ", prefill %.4g, decode %.4g\n", number(p, "prefill_tok_s"),
                     number(p, "decode_tok_s"));
    if (json_is_number(json_object_get(p, "total_s")))
        aq_hooks_outputf(hooks, "  %s in all (%.4g h), %.1f blocks of %.0f seats\n",
                         aq_format_duration(text, number(p, "total_s")), number(p, "hours"),
                         number(p, "blocks"), number(json_object_get(doc, "plan"), "seats"));
    put_cost(p, json_object_get(doc, "price"), hooks);
    aq_hooks_outputf(hooks, "  bound by %s (%s)\n", text_of(doc, "bound_by"),
                     text_of(doc, "bound_lane"));
    aq_hooks_outputf(hooks, "what more would buy\n");
    json_array_foreach(json_object_get(doc, "sensitivity"), i, row)
    {
        double gain = 100 * (number(row, "gen_tok_s") / number(p, "gen_tok_s") - 1);
        aq_hooks_outputf(hooks, "  %-36s %.4g tok/s (%+.1f %%)\n", change_of(row, device),
                         number(row, "gen_tok_s"), gain);
    }
}

static void put_infeasible(const json_t *doc, const struct aquifer_hooks *hooks)
{
    const json_t *largest = json_object_get(doc, "largest");
    size_t i;
    json_t *row;
    aq_hooks_outputf(hooks, "  does not fit\nneeded\n");
    put_memory(json_object_get(doc, "shortfall"), "needed", hooks);
    if (json_is_object(largest))
        aq_hooks_outputf(hooks, "fastest block that fits: %.0f x %.0f seats, %.4g tok/s\n",
                         number(largest, "micro_batch"), number(largest, "micro_batches"),
                         number(largest, "gen_tok_s"));
    aq_hooks_outputf(hooks, "what would help\n");
    json_array_foreach(json_object_get(doc, "fixes"), i, row)
    {
        aq_hooks_outputf(hooks, "  %-36s ", text_of(row, "change"));
        if (json_is_true(json_object_get(row, "feasible")))
            aq_hooks_outputf(hooks, "%.4g tok/s%s\n", number(row, "gen_tok_s"),
                             json_is_true(json_object_get(row, "lossy")) ? ", lossy" : "");
        else
            aq_hooks_outputf(hooks, "not enough\n");
    }
}

static void put_sweep_plan(const json_t *row, const json_t *plan, const struct aquifer_hooks *hooks)
{
    char time[AQ_SIZE_TEXT_MAX] = "", money[AQ_MONEY_TEXT_MAX], placement[160];
    aq_placement_shown(placement, text_of(plan, "placement"));
    if (json_is_number(json_object_get(row, "total_s")))
        aq_format_duration(time, number(row, "total_s"));
    aq_hooks_outputf(hooks, " %10.4g tok/s", number(row, "gen_tok_s"));
    if (*time)
        aq_hooks_outputf(hooks, "  %10s", time);
    if (*aq_plan_money(money, row, "money"))
        aq_hooks_outputf(hooks, "  %10s", money);
    aq_hooks_outputf(hooks, "  %.0f x %.0f  %s  %s/%s, policy %s  bound by %s\n",
                     number(plan, "micro_batch"), number(plan, "micro_batches"), placement,
                     text_of(plan, "weight_format"), text_of(plan, "kv_format"),
                     text_of(plan, "policy"), text_of(row, "bound_by"));
}

static void put_sweep(const json_t *rows, const struct aquifer_hooks *hooks)
{
    static const char *const known[] = {"feasible",          "gen_tok_s", "total_s",       "plan",
                                        "bound_by",          "shortfall", "hours",         "money",
                                        "money_per_million", "currency",  "price_per_hour"};
    size_t i;
    json_t *row, *v;
    const char *key;
    if (json_array_size(rows))
        aq_hooks_outputf(hooks, "sweep\n");
    json_array_foreach((json_t *)rows, i, row)
    {
        aq_hooks_outputf(hooks, " ");
        json_object_foreach(row, key, v)
        {
            bool ours = false;
            for (size_t k = 0; k < AQ_ARRAY_LEN(known); k++)
                ours |= strcmp(known[k], key) == 0;
            if (!ours)
                aq_hooks_outputf(hooks, " %s=%-10s", key, json_string_value(v));
        }
        const json_t *plan = json_object_get(row, "plan");
        if (plan)
            put_sweep_plan(row, plan, hooks);
        else
            aq_hooks_outputf(hooks, " does not fit\n");
    }
}

/* Records that are left out, by what is wrong with them. */
static void put_invalid(const json_t *read, const struct aquifer_hooks *hooks)
{
    const char *code;
    json_t *kind;
    if (number(read, "invalid") > 0)
        aq_hooks_outputf(hooks, "  %.0f of %.0f records are invalid and left out\n",
                         number(read, "invalid"), number(read, "records"));
    json_object_foreach(json_object_get(read, "errors"), code, kind)
        aq_hooks_outputf(hooks, "    %s: %.0f; line %.0f: %s\n", code, number(kind, "count"),
                         number(kind, "line"), text_of(kind, "message"));
}

void aq_plan_text(const json_t *doc, const struct aquifer_hooks *hooks)
{
    aq_hooks_outputf(hooks, "%s on %s\n", text_of(doc, "model"), text_of(doc, "hardware"));
    put_invalid(json_object_get(json_object_get(doc, "workload"), "read"), hooks);
    if (json_is_true(json_object_get(doc, "feasible")))
        put_feasible(doc, hooks);
    else
        put_infeasible(doc, hooks);
    put_sweep(json_object_get(doc, "sweep"), hooks);
    put_lines("assumed", json_object_get(doc, "assumptions"), hooks);
    put_lines("warnings", json_object_get(doc, "warnings"), hooks);
    const char *command = json_string_value(json_object_get(doc, "command"));
    if (command) {
        aq_hooks_output(hooks, command, strlen(command));
        aq_hooks_output(hooks, "\n", 1);
    }
}

/* ---- machines side by side ---- */

/* "512 + 128", or ranges, and how many. */
static void put_workload(const json_t *w, const struct aquifer_hooks *hooks)
{
    const json_t *prompt = json_object_get(w, "prompt_len"), *gen = json_object_get(w, "gen_len");
    const json_t *range[] = {prompt, gen};
    const char *join = "";
    if (json_is_number(json_object_get(w, "requests")))
        aq_hooks_outputf(hooks, ", %.0f requests of ", number(w, "requests"));
    else
        aq_hooks_outputf(hooks, ", requests of ");
    for (size_t i = 0; i < AQ_ARRAY_LEN(range); i++) {
        double from = json_number_value(json_array_get(range[i], 0)),
               to = json_number_value(json_array_get(range[i], 1));
        aq_hooks_outputf(hooks, "%s%.0f", join, from);
        if (from < to)
            aq_hooks_outputf(hooks, " to %.0f", to);
        join = " + ";
    }
    aq_hooks_outputf(hooks, " tokens\n");
}

static void put_machine(const json_t *row, size_t rank, bool prices, int policy_width,
                        const struct aquifer_hooks *hooks)
{
    char money[AQ_MONEY_TEXT_MAX], million[AQ_MONEY_TEXT_MAX], hours[32] = "-";
    const json_t *plan = json_object_get(row, "plan");
    if (!plan) {
        aq_hooks_outputf(hooks, "   -  %-18s %s\n", text_of(row, "hardware"),
                         text_of(row, "reason"));
        return;
    }
    if (json_is_number(json_object_get(row, "hours")))
        snprintf(hours, sizeof(hours), "%.4g", number(row, "hours"));
    aq_hooks_outputf(hooks, "  %2zu  %-18s %9.4g %9s", rank, text_of(row, "hardware"),
                     number(row, "gen_tok_s"), hours);
    if (prices)
        aq_hooks_outputf(hooks, " %12s %12s", aq_plan_money(money, row, "money"),
                         aq_plan_money(million, row, "money_per_million"));
    aq_hooks_outputf(hooks, "  %4s/%-4s %5.0f  %-*s  %s%s\n", text_of(plan, "weight_format"),
                     text_of(plan, "kv_format"), number(plan, "seats"), policy_width,
                     text_of(plan, "policy"), text_of(row, "bound_by"),
                     json_is_false(json_object_get(row, "met")) ? ", late" : "");
}

static void put_ranking(const json_t *money, const struct aquifer_hooks *hooks)
{
    const char *currency;
    json_t *names, *name;
    size_t i;
    json_object_foreach((json_t *)money, currency, names)
    {
        aq_hooks_outputf(hooks, "cheapest first%s%s%s:", *currency ? " (" : "", currency,
                         *currency ? ")" : "");
        json_array_foreach(names, i, name)
            aq_hooks_outputf(hooks, "%s %s", i ? "," : "", json_string_value(name));
        aq_hooks_outputf(hooks, "\n");
    }
}

void aq_plan_machines_text(const json_t *doc, const struct aquifer_hooks *hooks)
{
    const json_t *rows = json_object_get(doc, "machines"),
                 *money = json_object_get(json_object_get(doc, "ranking"), "money");
    bool prices = json_object_size(money) > 0;
    size_t i, width = strlen("policy");
    json_t *row;
    json_array_foreach((json_t *)rows, i, row)
    {
        size_t n = strlen(text_of(json_object_get(row, "plan"), "policy"));
        width = n > width ? n : width;
    }
    aq_hooks_outputf(hooks, "%s", text_of(doc, "model"));
    put_workload(json_object_get(doc, "workload"), hooks);
    put_invalid(json_object_get(json_object_get(doc, "workload"), "read"), hooks);
    aq_hooks_outputf(hooks, "      %-18s %9s %9s", "fastest first", "tok/s", "hours");
    if (prices)
        aq_hooks_outputf(hooks, " %12s %12s", "money", "per 1M tok");
    aq_hooks_outputf(hooks, "  %9s %5s  %-*s  %s\n", "weight/KV", "seats", (int)width, "policy",
                     "bound by");
    json_array_foreach(rows, i, row) put_machine(row, i + 1, prices, (int)width, hooks);
    put_ranking(money, hooks);
    if (!prices)
        aq_hooks_outputf(hooks, "--price %s=MONEY/h ranks by money, too\n",
                         text_of(json_array_get(rows, 0), "hardware"));
    put_lines("warnings", json_object_get(doc, "warnings"), hooks);
}

/* A rate of a profile's section; "-" where it has none. */
static const char *rate_text(char text[16], const json_t *section, const char *key)
{
    const json_t *value = json_object_get(json_object_get(section, key), "value");
    snprintf(text, 16, "-");
    if (json_is_number(value))
        snprintf(text, 16, "%.4g", json_number_value(value));
    return text;
}

static void put_profile(const json_t *row, const struct aquifer_hooks *hooks)
{
    const json_t *rates = json_object_get(row, "rates"),
                 *capacity = json_object_get(row, "capacity"),
                 *device = json_object_get(rates, "device"), *host = json_object_get(rates, "host"),
                 *links = device ? json_object_get(rates, "links") : NULL,
                 *disk = json_object_get(rates, "disk");
    char memory[AQ_SIZE_TEXT_MAX] = "-", host_memory[AQ_SIZE_TEXT_MAX], a[16], b[16], c[16], d[16],
         e[16];
    if (device)
        aq_format_size(memory, (uint64_t)number(capacity, "device"));
    aq_format_size(host_memory, (uint64_t)number(capacity, "host"));
    aq_hooks_outputf(hooks, "%-16s %10s %6s %7s %10s %6s %5s %5s  %s\n", text_of(row, "hardware"),
                     memory, rate_text(a, device, "memory_gb_s"),
                     rate_text(b, device, "product_f16_tflop_s"), host_memory,
                     rate_text(c, host, "memory_gb_s"), rate_text(d, links, "h2d_gb_s"),
                     rate_text(e, disk, "read_gb_s"), text_of(row, "description"));
}

void aq_plan_list_text(const json_t *doc, const struct aquifer_hooks *hooks)
{
    size_t i;
    json_t *row;
    aq_hooks_outputf(hooks, "%-16s %10s %6s %7s %10s %6s %5s %5s\n", "", "device", "GB/s",
                     "TFLOP/s", "host", "GB/s", "link", "disk");
    json_array_foreach(json_object_get(doc, "hardware"), i, row) put_profile(row, hooks);
    aq_hooks_outputf(hooks, "local is this machine, as aquifer probe --keep measured it; a file of "
                            "your own: aquifer help hardware\n");
}
