/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/bench.h"

#include "base/json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Columns of the text formats, in order. */
static const char *const columns[] = {
    "model",         "prompt_len",    "gen_len",      "requests",  "micro_batch",
    "micro_batches", "prefill_tok_s", "decode_tok_s", "gen_tok_s", "gen_tok_s_sd",
    "repeats",       "projected",     "output_xxh3",
};

static void cell(char *text, size_t size, const json_t *row, const char *column)
{
    const json_t *v = json_object_get(row, column);
    if (!v)
        v = json_object_get(json_object_get(row, "row"), column);
    if (strcmp(column, "model") == 0)
        v = json_object_get(v, "name");
    if (json_is_string(v))
        snprintf(text, size, "%s", json_string_value(v));
    else if (json_is_integer(v))
        snprintf(text, size, "%lld", (long long)json_integer_value(v));
    else if (json_is_real(v))
        snprintf(text, size, "%.2f", json_real_value(v));
    else if (json_is_boolean(v))
        snprintf(text, size, "%s", json_is_true(v) ? "yes" : "no");
    else
        snprintf(text, size, "-");
}

static void write_table(FILE *f, const json_t *rows, bool markdown)
{
    const char *left = markdown ? "| " : "", *between = markdown ? " | " : ",",
               *right = markdown ? " |" : "";
    for (size_t c = 0; c < AQ_ARRAY_LEN(columns); c++)
        fprintf(f, "%s%s", c ? between : left, columns[c]);
    fprintf(f, "%s\n", right);
    for (size_t c = 0; markdown && c < AQ_ARRAY_LEN(columns); c++)
        fprintf(f, "%s", c ? "---|" : "|---|");
    fprintf(f, "%s", markdown ? "\n" : "");
    size_t i;
    json_t *row;
    json_array_foreach(rows, i, row)
    {
        char text[128];
        for (size_t c = 0; c < AQ_ARRAY_LEN(columns); c++) {
            cell(text, sizeof(text), row, columns[c]);
            fprintf(f, "%s%s", c ? between : left, text);
        }
        fprintf(f, "%s\n", right);
    }
}

/* md, csv, jsonl as text; json: an object for one row, a list for several. */
static char *format_rows(const json_t *rows, const char *format)
{
    if (strcmp(format, "json") == 0) {
        const json_t *document = json_array_size(rows) == 1 ? json_array_get(rows, 0) : rows;
        char *text = json_dumps(document, JSON_INDENT(1) | JSON_REAL_PRECISION(9));
        return text;
    }
    char *text = NULL;
    size_t bytes;
    FILE *f = open_memstream(&text, &bytes);
    if (!f)
        return NULL;
    if (strcmp(format, "jsonl") == 0) {
        size_t i;
        json_t *row;
        json_array_foreach(rows, i, row)
        {
            json_dumpf(row, f, JSON_COMPACT | JSON_REAL_PRECISION(9));
            fputc('\n', f);
        }
    } else {
        write_table(f, rows, strcmp(format, "md") == 0);
    }
    fclose(f);
    return text;
}

static int deliver(const struct aq_options *o, const json_t *rows,
                   const struct aquifer_hooks *hooks, struct aq_err *reterr)
{
    const char *format = o->json || o->dry_run ? "json" : o->format ? o->format : "md";
    char *text = format_rows(rows, format);
    if (!text)
        return aq_error(reterr, -ENOMEM, "bench table");
    int rc = 0;
    if (o->output) {
        FILE *f = fopen(o->output, "we");
        if (!f || fputs(text, f) < 0 || fputc('\n', f) < 0)
            rc = aq_error(reterr, -EIO, "write '%s': %s", o->output, strerror(errno));
        if (f && fclose(f) != 0 && rc == 0)
            rc = aq_error(reterr, -EIO, "write '%s': %s", o->output, strerror(errno));
    } else if (hooks && hooks->output) {
        hooks->output(hooks->user, text, strlen(text));
        if (strcmp(format, "json") == 0)
            hooks->output(hooks->user, "\n", 1);
    }
    free(text);
    return rc;
}

static void write_report(const struct aq_options *o, const json_t *rows,
                         const struct aquifer_hooks *hooks)
{
    const json_t *document = json_array_size(rows) == 1 ? json_array_get(rows, 0) : rows;
    if (o->report &&
        json_dump_file(document, o->report, JSON_INDENT(1) | JSON_REAL_PRECISION(9)) < 0)
        aq_hooks_line(hooks, AQUIFER_WARNING, "report '%s' could not be written: %s", o->report,
                      strerror(errno));
}

static int run_rows(json_t *rows, const struct aq_options *o, const struct aquifer_hooks *hooks,
                    struct aq_err *reterr)
{
    for (uint32_t p = 0; p < o->prompt_len_count; p++) {
        for (uint32_t g = 0; g < o->gen_len_count; g++) {
            uint32_t batches = o->bench_micro_batch_count ? o->bench_micro_batch_count : 1;
            for (uint32_t b = 0; b < batches; b++) {
                struct aq_bench_row row = {
                    .prompt_len = o->prompt_len[p],
                    .gen_len = o->gen_len[g],
                    .micro_batch =
                        o->bench_micro_batch_count ? o->bench_micro_batch[b] : o->micro_batch,
                    .requests = o->requests,
                };
                json_t *r;
                int rc = aq_bench_run_row(&r, o, &row, hooks, reterr);
                if (rc < 0)
                    return rc;
                json_array_append_new(rows, r);
            }
        }
    }
    return 0;
}

int aq_cmd_bench(const struct aq_options *o, const struct aquifer_hooks *hooks,
                 struct aq_err *reterr)
{
    if (o->table)
        return aq_error(reterr, -EINVAL, "--table: not available in this version");
    if (!o->model && !o->shape)
        return aq_error(reterr, -EINVAL,
                        "bench: expected --model DIR or --shape NAME --random-weights SEED");
    if (!o->prompt_len_count || !o->gen_len_count)
        return aq_error(reterr, -EINVAL, "bench: expected --prompt-len and --gen-len");
    if (!o->repeats)
        return aq_error(reterr, -EINVAL, "--repeats: expected at least 1, found 0");
    json_t *rows = json_array();
    int rc = run_rows(rows, o, hooks, reterr);
    if (json_array_size(rows)) { /* rows that were finished are worth having, whatever came after */
        write_report(o, rows, hooks);
        int rc2 = deliver(o, rows, hooks, rc < 0 ? NULL : reterr);
        rc = rc < 0 ? rc : rc2;
    }
    json_decref(rows);
    return rc;
}
