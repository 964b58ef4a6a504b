/* SPDX-License-Identifier: Apache-2.0
 * Words and configs that run a plan. */
#include "engine/plan/command.h"

#include "base/buf.h"
#include "base/file.h"
#include "base/json.h"

#include <stdlib.h>
#include <string.h>

/* What else the command has in common with plan, such as how the records of --input were read. */
static void put_shared(struct aq_buf *out, const struct aq_options *o, const char *command,
                       const json_t *config)
{
    json_t *shared = aq_options_shared(o, command, NULL), *v;
    const char *key;
    out->failed |= !shared;
    json_object_foreach(shared, key, v)
    {
        bool told = strcmp(key, "input") == 0 || strcmp(key, "max_tokens") == 0;
        if (!told && !json_object_get(config, key))
            aq_options_put_flag(out, command, key, v);
    }
    json_decref(shared);
}

json_t *aq_plan_command_json(const struct aq_planning *p)
{
    json_t *config = aq_planning_config_json(p), *v;
    const char *key;
    struct aq_buf out = {.failed = !config};
    bool model = p->o->model;
    const char *command = model ? "generate" : "bench";
    aq_buf_printf(&out, "aquifer %s", command);
    if (model) {
        aq_buf_puts(&out, " --input ");
        aq_buf_shell_word(&out, p->o->input ? p->o->input : "prompts.jsonl");
        aq_buf_puts(&out, " --output results.jsonl");
    }
    if (model)
        aq_buf_printf(&out, " --max-tokens %u", p->o->input ? p->o->max_tokens : p->gen[1]);
    else
        aq_buf_printf(&out, " --prompt-len %u --gen-len %u", p->prompt[1], p->gen[1]);
    if (!model && p->in.sequences)
        aq_buf_printf(&out, " --requests %llu", (unsigned long long)p->in.sequences);
    put_shared(&out, p->o, command, config);
    json_object_foreach(config, key, v) aq_options_put_flag(&out, command, key, v);
    json_t *ret = !out.failed ? aq_json_string(out.data) : NULL;
    aq_buf_close(&out);
    json_decref(config);
    return ret;
}

/* A value as JSON, which is YAML, too. */
static void put_value(struct aq_buf *out, const json_t *v)
{
    char *text = json_is_string(v) ? NULL : aq_json_dump(v, JSON_ENCODE_ANY);
    if (json_is_string(v))
        aq_buf_json_string(out, json_string_value(v), strlen(json_string_value(v)));
    else if (text)
        aq_buf_puts(out, text);
    else
        out->failed = true;
    free(text);
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
        put_value(&out, v);
        aq_buf_puts(&out, "\n");
    }
    json_decref(config);
    int rc = out.failed ? aq_error_memory(reterr, "--write-config '%s'", path)
                        : aq_file_replace(path, out.data, out.count, false, reterr);
    aq_buf_close(&out);
    return rc;
}
