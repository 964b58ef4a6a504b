/* SPDX-License-Identifier: Apache-2.0
 * engine/commands/published.c - `aquifer published FILE`: a table of others' figures, predicted. */
#include "engine/commands/commands.h"

#include "base/file.h"
#include "base/json.h"
#include "engine/measure/published.h"

#include <stdlib.h>
#include <string.h>

static int all_rows(json_t **rows, const struct aq_table *t, const struct aquifer_hooks *hooks,
                    struct aq_err *reterr)
{
    for (uint32_t i = 0; i < t->row_count; i++) {
        json_t *row;
        if (aq_hooks_interrupted((void *)hooks))
            return aq_error(reterr, -EINTR, "published: interrupted");
        int rc = aq_published_row(&row, t, &t->row[i], reterr);
        if (rc < 0)
            return rc;
        aq_json_add(rows, row);
    }
    return 0;
}

static char *as_text(const struct aq_table *t, const json_t *rows, bool json)
{
    struct aq_buf b = {0};
    if (json) {
        json_t *document =
            json_pack("{s:i, s:s, s:s?, s:O, s:o}", "schema", 1, "table", t->name, "about",
                      t->about, "rows", rows, "summary", aq_published_summary(rows));
        char *text = aq_json_dump(document, JSON_INDENT(1) | JSON_REAL_PRECISION(9));
        json_decref(document);
        char *line = text ? aq_file_name(text, "\n") : NULL;
        free(text);
        return line;
    }
    aq_published_markdown(&b, t, rows);
    char *text = b.failed ? NULL : strdup(b.data);
    aq_buf_close(&b);
    return text;
}

int aq_cmd_published(const struct aq_options *o, const struct aquifer_hooks *hooks,
                     struct aq_err *reterr)
{
    struct aq_table *t;
    int rc = aq_error_named(reterr, aq_table_read(&t, o->published_file, reterr), "published");
    if (rc < 0)
        return rc;
    json_t *rows = json_array();
    rc = all_rows(&rows, t, hooks, reterr);
    if (rc < 0)
        aq_error_prefix(reterr, "%s", o->published_file);
    char *text = rc == 0 ? as_text(t, rows, o->json) : NULL;
    if (rc == 0 && !text)
        rc = aq_error_memory(reterr, "published");
    if (rc == 0 && o->output)
        rc = aq_file_replace(o->output, text, strlen(text), false, reterr);
    else if (rc == 0)
        aq_hooks_output(hooks, text, strlen(text));
    free(text);
    json_decref(rows);
    aq_table_close(t);
    return rc;
}
