/* SPDX-License-Identifier: Apache-2.0
 * Words and configs that run a plan. */
#include "engine/plan/command.h"

#include "base/file.h"
#include "base/json.h"

#include <stdlib.h>
#include <string.h>

static void put_value(struct aq_buf *out, const json_t *v, bool quote)
{
    char *text = json_is_string(v) ? NULL : aq_json_dump(v, JSON_ENCODE_ANY);
    if (text)
        aq_buf_puts(out, text);
    else if (!json_is_string(v))
        out->failed = true;
    else if (quote)
        aq_buf_json_string(out, json_string_value(v), strlen(json_string_value(v)));
    else
        aq_buf_shell_word(out, json_string_value(v));
    free(text);
}

/* A word of an option that reads \n, \t and \\ as the characters they stand for. */
static void put_escaped(struct aq_buf *out, const char *text)
{
    struct aq_buf word = {0};
    for (; *text; text++) {
        const char *escape = *text == '\n' ? "\\n" : *text == '\t' ? "\\t" : "\\\\";
        bool special = *text == '\n' || *text == '\t' || *text == '\\';
        aq_buf_put(&word, special ? escape : text, special ? 2 : 1);
    }
    aq_buf_shell_word(out, word.data ? word.data : "");
    aq_buf_close(&word);
}

void aq_plan_put_flag(struct aq_buf *out, const char *key, const json_t *v)
{
    aq_buf_puts(out, json_is_false(v) ? " --no-" : " --");
    for (const char *c = key; *c; c++)
        aq_buf_printf(out, "%c", *c == '_' ? '-' : *c);
    if (json_is_boolean(v))
        return;
    aq_buf_puts(out, " ");
    put_value(out, v, false);
}

/* How the records of --input were read. */
static void put_reading(struct aq_buf *out, const struct aq_options *o)
{
    static const char *const keys[] = {
        "input_format", "prompt_field", "prompt_template", "limit",    "n",
        "temperature",  "bos",          "no_bos",          "overlong", "allow_errors"};
    json_t *options = aq_options_to_json(o);
    out->failed |= !options;
    for (size_t i = 0; i < AQ_ARRAY_LEN(keys); i++) {
        json_t *v = json_object_get(options, keys[i]);
        if (v && !strcmp(keys[i], "prompt_template")) {
            aq_buf_puts(out, " --prompt-template ");
            put_escaped(out, json_string_value(v));
        } else if (v) {
            aq_plan_put_flag(out, keys[i], v);
        }
    }
    json_decref(options);
}

json_t *aq_plan_command_json(const struct aq_planning *p)
{
    json_t *config = aq_planning_config_json(p), *v;
    const char *key;
    struct aq_buf out = {.failed = !config};
    bool model = p->o->model;
    aq_buf_puts(&out, model ? "aquifer generate --input " : "aquifer bench");
    if (model) {
        aq_buf_shell_word(&out, p->o->input ? p->o->input : "prompts.jsonl");
        aq_buf_puts(&out, " --output results.jsonl");
    }
    if (model)
        aq_buf_printf(&out, " --max-tokens %u", p->o->input ? p->o->max_tokens : p->gen[1]);
    else
        aq_buf_printf(&out, " --prompt-len %u --gen-len %u", p->prompt[1], p->gen[1]);
    if (!model && p->in.sequences)
        aq_buf_printf(&out, " --requests %llu", (unsigned long long)p->in.sequences);
    if (model && p->o->input)
        put_reading(&out, p->o);
    json_object_foreach(config, key, v) aq_plan_put_flag(&out, key, v);
    json_t *ret = !out.failed ? aq_json_string(out.data) : NULL;
    aq_buf_close(&out);
    json_decref(config);
    return ret;
}

int aq_plan_config_write(const struct aq_planning *p, const char *path, struct aq_err *reterr)
{
    json_t *config = aq_planning_config_json(p), *v;
    const char *key;
    struct aq_buf out = {.failed = !config};
    aq_buf_puts(&out, "# Made by aquifer plan; aquifer generate and aquifer bench take it with "
                      "--config.\n");
    json_object_foreach(config, key, v)
    {
        aq_buf_printf(&out, "%s: ", key);
        put_value(&out, v, true);
        aq_buf_puts(&out, "\n");
    }
    json_decref(config);
    int rc = out.failed ? aq_error_memory(reterr, "--write-config '%s'", path)
                        : aq_file_replace(path, out.data, out.count, false, reterr);
    aq_buf_close(&out);
    return rc;
}
