/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/measure/bench.h"
#include "engine/commands/commands.h"

#include "base/file.h"
#include "base/json.h"
#include "engine/measure/bench_table.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A column of the text formats: where its value is in a row, keys separated by dots. */
struct column {
    const char *title, *path;
};

/* In order; figures of other programs stand beside rows of a table only. */
static const struct column of_table[] = {{"name", "name"}};
static const struct column of_row[] = {
    {"model", "model.name"},
    {"prompt_len", "row.prompt_len"},
    {"gen_len", "row.gen_len"},
    {"requests", "row.requests"},
    {"micro_batch", "row.micro_batch"},
    {"micro_batches", "row.micro_batches"},
    {"prefill_tok_s", "prefill_tok_s"},
    {"decode_tok_s", "decode_tok_s"},
    {"gen_tok_s", "gen_tok_s"},
    {"gen_tok_s_sd", "gen_tok_s_sd"},
    {"repeats", "repeats"},
    {"projected", "projected"},
    {"output_xxh3", "output_xxh3"},
    {"predicted", "predicted.gen_tok_s"},
    {"prediction_error", "prediction_error"},
};
static const struct column beside[] = {
    {"published", "published.gen_tok_s"},
    {"published_ratio", "published_ratio"},
    {"source", "published.source"},
    {"error", "error.message"},
};

static const json_t *value_at(const json_t *row, const char *path)
{
    const json_t *v = row;
    for (const char *at = path; v && *at;) {
        char key[64];
        size_t n = strcspn(at, ".");
        snprintf(key, sizeof(key), "%.*s", (int)n, at);
        v = json_object_get(v, key);
        at += n + (at[n] == '.');
    }
    return v;
}

/* Text that ends neither a cell nor a line. */
static void put_text(FILE *f, const char *text, bool markdown)
{
    bool quoted = !markdown && strpbrk(text, ",\"\n");
    if (quoted)
        fputc('"', f);
    for (; *text; text++) {
        if (markdown && *text == '|')
            fputc('\\', f);
        if (quoted && *text == '"')
            fputc('"', f);
        fputc(markdown && *text == '\n' ? ' ' : *text, f);
    }
    if (quoted)
        fputc('"', f);
}

static void put_cell(FILE *f, const json_t *v, bool markdown)
{
    if (json_is_string(v))
        put_text(f, json_string_value(v), markdown);
    else if (json_is_integer(v))
        fprintf(f, "%lld", (long long)json_integer_value(v));
    else if (json_is_real(v))
        fprintf(f, "%.2f", json_real_value(v));
    else if (json_is_boolean(v))
        fputs(json_is_true(v) ? "yes" : "no", f);
    else
        fputc('-', f);
}

static void write_table(FILE *f, const json_t *rows, bool named, bool markdown)
{
    const char *left = markdown ? "| " : "", *between = markdown ? " | " : ",",
               *right = markdown ? " |" : "";
    struct column column[AQ_ARRAY_LEN(of_table) + AQ_ARRAY_LEN(of_row) + AQ_ARRAY_LEN(beside)];
    size_t count = 0, i;
    for (i = 0; named && i < AQ_ARRAY_LEN(of_table); i++)
        column[count++] = of_table[i];
    for (i = 0; i < AQ_ARRAY_LEN(of_row); i++)
        column[count++] = of_row[i];
    for (i = 0; named && i < AQ_ARRAY_LEN(beside); i++)
        column[count++] = beside[i];
    for (size_t c = 0; c < count; c++)
        fprintf(f, "%s%s", c ? between : left, column[c].title);
    fprintf(f, "%s\n", right);
    for (size_t c = 0; markdown && c < count; c++)
        fprintf(f, "%s", c ? "---|" : "|---|");
    fprintf(f, "%s", markdown ? "\n" : "");
    json_t *row;
    json_array_foreach(rows, i, row)
    {
        for (size_t c = 0; c < count; c++) {
            fputs(c ? between : left, f);
            put_cell(f, value_at(row, column[c].path), markdown);
        }
        fprintf(f, "%s\n", right);
    }
}

/* md, csv, jsonl as text; json: an object for one row, a list for several. */
static char *format_rows(const json_t *rows, bool named, const char *format)
{
    if (strcmp(format, "json") == 0) {
        const json_t *document = json_array_size(rows) == 1 ? json_array_get(rows, 0) : rows;
        char *text = aq_json_dump(document, JSON_INDENT(1) | JSON_REAL_PRECISION(9));
        return text;
    }
    char *text = NULL;
    size_t bytes;
    bool lost = false;
    FILE *f = open_memstream(&text, &bytes);
    if (!f)
        return NULL;
    if (strcmp(format, "jsonl") == 0) {
        size_t i;
        json_t *row;
        json_array_foreach(rows, i, row)
        {
            lost |= json_dumpf(row, f, JSON_COMPACT | JSON_REAL_PRECISION(9)) < 0;
            fputc('\n', f);
        }
    } else {
        write_table(f, rows, named, strcmp(format, "md") == 0);
    }
    lost |= ferror(f);
    lost |= fclose(f) != 0;
    if (!lost)
        return text;
    free(text);
    return NULL;
}

/* To the file, which is only ever seen whole, or else, at the end, to standard output. */
static int deliver(const struct aq_options *o, const json_t *rows, bool last,
                   const struct aquifer_hooks *hooks, struct aq_err *reterr)
{
    const char *format = o->json || o->dry_run ? "json" : o->format ? o->format : "md";
    bool json = strcmp(format, "json") == 0;
    if (!o->output && !last)
        return 0;
    char *text = format_rows(rows, o->table != NULL, format);
    if (!text)
        return aq_error_memory(reterr, "bench table");
    int rc = 0;
    if (o->output) {
        char *line = json ? aq_file_name(text, "\n") : text;
        rc = line ? aq_file_replace(o->output, line, strlen(line), last, reterr)
                  : aq_error_memory(reterr, "bench table");
        if (line != text)
            free(line);
    } else if (hooks && hooks->output) {
        hooks->output(hooks->user, text, strlen(text));
        if (json)
            hooks->output(hooks->user, "\n", 1);
    }
    free(text);
    return rc;
}

static void write_report(const struct aq_options *o, const json_t *rows,
                         const struct aquifer_hooks *hooks)
{
    const json_t *document = json_array_size(rows) == 1 ? json_array_get(rows, 0) : rows;
    if (o->report)
        aq_hooks_report(hooks, o->report, document);
}

static int run_rows(json_t **rows, const struct aq_options *o, const struct aquifer_hooks *hooks,
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
                aq_json_add(rows, r);
                if (!*rows)
                    return aq_error_memory(reterr, "rows of the table");
            }
        }
    }
    return 0;
}

/* Exit status 3: some rows have errors instead of figures. */
static int run_table(json_t **rows, const struct aq_options *o, const struct aquifer_hooks *hooks,
                     struct aq_err *reterr)
{
    struct aq_bench_table *t;
    bool any_failed = false;
    int rc = aq_bench_table_open(&t, o, hooks, reterr);
    if (rc < 0)
        return rc;
    for (uint32_t i = 0; i < aq_bench_table_count(t) && rc == 0; i++) {
        json_t *r;
        bool failed;
        rc = aq_bench_table_row(&r, t, i, &failed, hooks, reterr);
        if (rc < 0)
            break;
        any_failed = any_failed || failed;
        aq_json_add(rows, r);
        rc = *rows ? deliver(o, *rows, false, hooks, reterr)
                   : aq_error_memory(reterr, "rows of the table");
    }
    aq_bench_table_close(t);
    return rc < 0 ? rc : any_failed ? 3 : 0;
}

int aq_cmd_bench(const struct aq_options *o, const struct aquifer_hooks *hooks,
                 struct aq_err *reterr)
{
    json_t *rows = json_array();
    int rc = o->table ? run_table(&rows, o, hooks, reterr) : run_rows(&rows, o, hooks, reterr);
    if (json_array_size(rows)) { /* rows that were finished are worth having, whatever came after */
        write_report(o, rows, hooks);
        int rc2 = deliver(o, rows, true, hooks, rc < 0 ? NULL : reterr);
        rc = rc == 0 || (rc > 0 && rc2 < 0) ? rc2 : rc;
    }
    json_decref(rows);
    return rc;
}
