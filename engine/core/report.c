/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/core/report.h"

#include "base/json.h"
#include "engine/build_info.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

/* The value of a "name : value" line of a /proc file, empty where there is none; false when memory
 * is out. */
static bool proc_line(const char *path, const char *name, char *text, size_t size)
{
    char line[512];
    text[0] = '\0';
    FILE *f = fopen(path, "re");
    bool known = f || errno != ENOMEM;
    while (f && fgets(line, sizeof(line), f)) {
        char *colon = strchr(line, ':');
        if (!colon || strncmp(line, name, strlen(name)) != 0)
            continue;
        colon += 1 + strspn(colon + 1, " \t");
        colon[strcspn(colon, "\n")] = '\0';
        snprintf(text, size, "%s", colon);
        break;
    }
    if (f)
        fclose(f);
    return known;
}

json_t *aq_report_environment(void)
{
    char cpu[256], memory[64];
    struct utsname u;
    if (!proc_line("/proc/cpuinfo", "model name", cpu, sizeof(cpu)) ||
        !proc_line("/proc/meminfo", "MemTotal", memory, sizeof(memory)))
        return NULL;
    uname(&u);
    return json_pack("{s:o, s:i, s:s, s:s}", "cpu", aq_json_string(cpu), "cores",
                     (int)sysconf(_SC_NPROCESSORS_ONLN), "memory", memory, "kernel", u.release);
}

static json_t *rate(double count, double seconds)
{
    return seconds > 0 ? aq_json_real(count / seconds) : json_null();
}

json_t *aq_report_lanes(const struct aq_engine_stats *s)
{
    json_t *lanes = json_object();
    for (int l = 0; l < AQ_LANE_COUNT; l++) {
        bool moves = l >= AQ_LANE_H2D && l <= AQ_LANE_READ_WEIGHTS;
        if (s->lane[l].busy_s <= 0 && l != AQ_LANE_COMPUTE && l != AQ_LANE_CONTROL)
            continue;
        double bytes = (double)s->lane[l].bytes;
        json_t *lane = json_pack("{s:o}", "busy_s", aq_json_real(s->lane[l].busy_s));
        aq_json_put(&lane, "bytes",
                    moves ? json_integer((json_int_t)s->lane[l].bytes) : json_null());
        aq_json_put(&lane, "gb_s", moves ? rate(bytes * 1e-9, s->lane[l].busy_s) : json_null());
        double ceiling = s->lane[l].ceiling_bytes_per_s;
        aq_json_put(&lane, "ceiling_gb_s",
                    ceiling > 0 ? aq_json_real(ceiling * 1e-9) : json_null());
        aq_json_put(&lanes, aq_lane_name((enum aq_lane)l), lane);
    }
    return lanes;
}

static json_t *had_json(const struct aq_rule_stats *s)
{
    json_t *had = json_array();
    for (int i = 0; i < AQ_KV_PROFILE_COUNT; i++)
        aq_json_add(&had, json_integer((json_int_t)s->had[i]));
    return had;
}

static void add_rules(struct aq_rule_stats *io, const struct aq_rule_stats *s)
{
    for (int i = 0; i < AQ_KV_PROFILE_COUNT; i++)
        io->had[i] += s->had[i];
    io->prompt_tokens += s->prompt_tokens;
    io->prompt_slots += s->prompt_slots;
    io->rows += s->rows;
    io->row_slots += s->row_slots;
    io->slots_max = s->slots_max > io->slots_max ? s->slots_max : io->slots_max;
}

static json_t *part_json(uint64_t part, uint64_t of)
{
    return of ? aq_json_real((double)part / (double)of) : json_null();
}

static json_t *rules_of_layer(const struct aq_rule_stats *head, uint32_t heads, uint32_t layer)
{
    struct aq_rule_stats sum = {0};
    json_t *had = json_array();
    for (uint32_t h = 0; h < heads; h++) {
        add_rules(&sum, &head[h]);
        aq_json_add(&had, had_json(&head[h]));
    }
    return json_pack("{s:i, s:o, s:o}", "layer", (int)layer, "kept_prompt",
                     part_json(sum.prompt_slots, sum.prompt_tokens), "had", had);
}

void aq_report_add_rules(json_t **r, const struct aq_engine *e)
{
    uint32_t heads;
    const struct aq_rule_stats *rules = aq_engine_rules(e, &heads);
    struct aq_rule_stats all = {0};
    json_t *names = json_array(), *by_layer = json_array();
    for (uint32_t l = 0; rules && l < aq_engine_info(e)->layers; l++) {
        const struct aq_rule_stats *head = &rules[(size_t)l * heads];
        if (!head->prompt_tokens) /* a window of the model's own, or nothing has run */
            continue;
        aq_json_add(&by_layer, rules_of_layer(head, heads, l));
        for (uint32_t h = 0; h < heads; h++)
            add_rules(&all, &head[h]);
    }
    for (int i = 0; i < AQ_KV_PROFILE_COUNT; i++)
        aq_json_add(&names, json_string(aq_kv_profile_name((enum aq_kv_profile)i)));
    json_t *o =
        json_pack("{s:o, s:o, s:o, s:{s:o, s:o}, s:o}", "names", names, "had", had_json(&all),
                  "kept_prompt", part_json(all.prompt_slots, all.prompt_tokens), "kept_slots",
                  "mean", part_json(all.row_slots, all.rows), "max",
                  all.rows ? json_integer(all.slots_max) : json_null(), "by_layer", by_layer);
    if (rules && all.prompt_tokens)
        aq_json_put(r, "kv_rules", o);
    else
        json_decref(o);
}

static void subtract(struct aq_engine_stats *s, const struct aq_engine_stats *b)
{
    s->passes -= b->passes;
    s->prefill_passes -= b->prefill_passes;
    s->decode_passes -= b->decode_passes;
    s->mixed_passes -= b->mixed_passes;
    s->prefill_s -= b->prefill_s;
    s->decode_s -= b->decode_s;
    s->mixed_s -= b->mixed_s;
    s->prefill_tokens -= b->prefill_tokens;
    s->shared_tokens -= b->shared_tokens;
    s->decode_tokens -= b->decode_tokens;
    s->generated_tokens -= b->generated_tokens;
    for (int l = 0; l < AQ_LANE_COUNT; l++) {
        s->lane[l].busy_s -= b->lane[l].busy_s;
        s->lane[l].bytes -= b->lane[l].bytes;
    }
}

static void add_model(json_t **r, const struct aq_engine_info *i)
{
    char hash[24];
    snprintf(hash, sizeof(hash), "%016llx", (unsigned long long)i->model_hash);
    json_t *eos = json_array();
    for (uint32_t n = 0; n < i->eos_count; n++)
        aq_json_add(&eos, json_integer((json_int_t)i->eos_id[n]));
    aq_json_put(r, "model",
                json_pack("{s:o, s:s, s:I, s:i, s:i, s:I, s:o}", "name", aq_json_string(i->name),
                          "hash", hash, "parameters", (json_int_t)i->parameters, "layers",
                          (int)i->layers, "hidden", (int)i->hidden, "context",
                          (json_int_t)i->context, "eos", eos));
    aq_json_put(r, "device",
                json_pack("{s:s, s:s, s:i}", "backend", i->backend, "isa", i->isa, "threads",
                          (int)i->threads));
    json_t *lossy = json_array();
    for (uint32_t n = 0; n < i->lossy_count; n++)
        aq_json_add(&lossy, aq_json_string(i->lossy[n]));
    aq_json_put(r, "lossy", lossy);
    aq_json_put(r, "weights", json_string(i->random_weights ? "random" : "real"));
}

void aq_report_add_lossy(json_t **r, const char *line)
{
    json_t *lossy = json_incref(json_object_get(*r, "lossy"));
    aq_json_add(&lossy, aq_json_string(line));
    aq_json_put(r, "lossy", lossy);
}

json_t *aq_report_build(const struct aq_engine *e, const struct aq_report_times *t,
                        const struct aq_engine_stats *before)
{
    struct aq_engine_stats s;
    aq_engine_stats(e, &s);
    if (before)
        subtract(&s, before);
    double passes_s = s.prefill_s + s.decode_s + s.mixed_s;
    double idle_s = t->total_s > passes_s ? t->total_s - passes_s : 0;
    json_t *r = json_pack("{s:i, s:{s:s, s:s}}", "schema", 1, "aquifer", "version",
                          aq_build_version(), "commit", aq_build_commit());
    add_model(&r, aq_engine_info(e));
    aq_json_put(&r, "plan", aq_engine_plan_json(e));
    aq_json_put(&r, "requests", json_integer((json_int_t)t->requests));
    aq_json_put(&r, "errors", json_integer((json_int_t)t->errors));
    aq_json_put(&r, "prompt_tokens", json_integer((json_int_t)t->prompt_tokens));
    aq_json_put(&r, "shared_tokens", json_integer((json_int_t)s.shared_tokens));
    aq_json_put(&r, "prefill_tokens", json_integer((json_int_t)s.prefill_tokens));
    aq_json_put(&r, "generated_tokens", json_integer((json_int_t)s.generated_tokens));
    aq_json_put(&r, "passes", json_integer((json_int_t)s.passes));
    aq_json_put(&r, "load_s", aq_json_real(fmax(0, t->load_s - s.pack_s)));
    aq_json_put(&r, "pack_s", aq_json_real(s.pack_s));
    aq_json_put(&r, "prefill_s", aq_json_real(s.prefill_s));
    aq_json_put(&r, "decode_s", aq_json_real(s.decode_s));
    aq_json_put(&r, "mixed_s", aq_json_real(s.mixed_s));
    aq_json_put(&r, "idle_s", aq_json_real(idle_s));
    aq_json_put(&r, "total_s", aq_json_real(passes_s + idle_s));
    aq_json_put(&r, "prefill_tok_s",
                s.mixed_s > 0 ? json_null() : rate((double)s.prefill_tokens, s.prefill_s));
    aq_json_put(&r, "decode_tok_s",
                s.mixed_s > 0 ? json_null() : rate((double)s.decode_tokens, s.decode_s));
    aq_json_put(&r, "gen_tok_s", rate((double)s.generated_tokens, passes_s + idle_s));
    aq_json_put(&r, "total_tok_s",
                rate((double)(t->prompt_tokens + s.generated_tokens), passes_s + idle_s));
    aq_report_add_rules(&r, e);
    aq_json_put(&r, "lanes", aq_report_lanes(&s));
    aq_json_put(&r, "memory", aq_engine_memory_json(e));
    aq_json_put(&r, "predicted", aq_engine_predicted_json(e));
    aq_json_put(&r, "emulated", json_boolean(aq_engine_emulated(e)));
    aq_json_put(&r, "environment", aq_report_environment());
    return r;
}
