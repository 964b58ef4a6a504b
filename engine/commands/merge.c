/* SPDX-License-Identifier: Apache-2.0
 * engine/commands/merge.c - `aquifer merge OUTPUT SHARD...`. */
#include "engine/job/merge.h"
#include "engine/commands/commands.h"

#include "base/json.h"

#include <inttypes.h>

static json_t *document(const struct aq_options *o, const struct aq_merge_result *r, bool merged)
{
    json_t *d = json_pack("{s:i, s:s, s:b, s:I}", "schema", 1, "command", "merge", "merged", merged,
                          "shards", (json_int_t)(o->merge_files.count - 1));
    aq_json_put(&d, "output", aq_json_string(o->merge_files.item[0]));
    aq_json_put(&d, "records", merged ? json_integer((json_int_t)r->records) : json_null());
    aq_json_put(&d, "errors", merged ? json_integer((json_int_t)r->errors) : json_null());
    aq_json_put(&d, "bytes", merged ? json_integer((json_int_t)r->bytes) : json_null());
    aq_json_put(&d, "problems", json_incref(r->problems));
    return d;
}

int aq_cmd_merge(const struct aq_options *o, const struct aquifer_hooks *hooks,
                 struct aq_err *reterr)
{
    const struct aq_merge_opts opts = {
        .output = o->merge_files.item[0],
        .shards = o->merge_files.item + 1,
        .shard_count = o->merge_files.count - 1,
        .ordered = o->ordered,
        .overwrite = o->overwrite,
        .allow_change = &o->allow_change,
        .hooks = hooks,
    };
    struct aq_merge_result result;
    int rc = aq_merge(&result, &opts, reterr);
    if (rc == 0)
        aq_hooks_line(hooks, AQUIFER_INFO,
                      "merged: %" PRIu64 " records (%" PRIu64 " errors) of %" PRIu32
                      " shards, in %s",
                      result.records, result.errors, opts.shard_count, opts.output);
    int told = o->json && result.problems && (rc == 0 || json_array_size(result.problems))
                   ? aq_hooks_json(hooks, document(o, &result, rc == 0), rc == 0 ? reterr : NULL)
                   : 0;
    json_decref(result.problems);
    return rc < 0 ? rc : told;
}
