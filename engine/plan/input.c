/* SPDX-License-Identifier: Apache-2.0
 * The workload of a plan out of a prompt file: every record is read and tokenised as generate would
 * do it, and only its lengths are kept. */
#include "engine/records/input.h"
#include "base/mem.h"
#include "engine/job/distinct.h"
#include "engine/job/generator.h"
#include "engine/model/arch/arch.h"
#include "engine/plan/planning.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static void widen(uint32_t range[2], uint32_t to, bool first)
{
    range[0] = !first && range[0] < to ? range[0] : to;
    range[1] = range[1] > to ? range[1] : to;
}

/* What is kept of a prompt until all are read: their order is known then. */
struct kept {
    uint64_t record;
    struct aq_length length;
    uint32_t times;
};

struct reading {
    struct aq_planning *p;
    struct aq_alike *alike; /* NULL: nothing is shared */
    struct kept *kept;      /* [count] */
    uint64_t *first;        /* [records]: the first one kept of each; `count` and more: none */
    uint64_t count, room;
};

static int keep(struct reading *r, struct kept k, struct aq_err *reterr)
{
    if (r->count == r->room) {
        uint64_t room = r->room ? 2 * r->room : 1024;
        struct kept *larger = realloc(r->kept, room * sizeof(*larger));
        if (!larger)
            return aq_error_memory(reterr, "plan");
        r->kept = larger;
        r->room = room;
    }
    r->kept[r->count++] = k;
    return 0;
}

static int count_request(struct reading *to, const struct aq_request *r, struct aq_err *reterr)
{
    struct aq_planning *p = to->p;
    struct aq_workload *w = &p->workload;
    uint32_t shared = aq_distinct_within(r);
    int rc = 0;
    for (uint32_t i = 0; i < r->prompt_count && rc == 0; i++) {
        uint32_t prompt = r->prompts[i].count, gen = r->prompts[i].max_tokens;
        struct aq_length l = {prompt, gen ? gen : 1, shared};
        rc = keep(to, (struct kept){p->records, l, r->params.n}, reterr);
        widen(p->prompt, prompt, !w->sequences);
        widen(p->gen, gen, !w->sequences);
        w->sequences += r->params.n;
        w->prompt_sum += (uint64_t)prompt * r->params.n;
        w->total_sum += ((uint64_t)prompt + gen) * r->params.n;
        w->total_max = prompt + gen > w->total_max ? prompt + gen : w->total_max;
        p->tokens_estimated |= r->prompts[i].estimated;
    }
    w->prompt_max = p->prompt[1];
    w->new_max = p->gen[1];
    const struct aq_prompt *one = r->prompts;
    if (rc == 0 && to->alike && r->prompt_count && !one->estimated)
        rc = aq_alike_add(to->alike, p->records, one->ids, one->count, reterr);
    return rc;
}

static bool is_kept(void *user, uint64_t record)
{
    const struct reading *r = user;
    return r->first[record] < r->count;
}

/* The lengths in the order in which a run would take the records. */
static int list_lengths(struct reading *r, struct aq_err *reterr)
{
    struct aq_planning *p = r->p;
    struct aq_distinct d = {.lengths = &p->lengths, .alike = r->alike};
    uint64_t alike, least = aq_distinct_least(p->o->share_prefixes, p->workload.prompt_sum);
    bool good = true;
    r->first = malloc((p->records + 1) * sizeof(*r->first));
    if (!r->first)
        return aq_error_memory(reterr, "plan");
    memset(r->first, 0xff, (p->records + 1) * sizeof(*r->first));
    for (uint64_t i = r->count; i > 0; i--)
        r->first[r->kept[i - 1].record] = i - 1;
    uint64_t *order = aq_distinct_order(r->alike, p->records, least, is_kept, r, &alike);
    for (uint64_t i = 0; i < p->records && good; i++) {
        uint64_t record = order ? order[i] : i;
        for (uint64_t k = r->first[record]; k < r->count && r->kept[k].record == record && good;
             k++)
            good = aq_distinct_add(&d, record, r->kept[k].length, r->kept[k].times);
    }
    free(order);
    p->workload.shared_sum = d.shared_sum;
    return good ? 0 : aq_error_memory(reterr, "plan");
}

/* Counts it; of each kind the first is kept. */
static void count_invalid(struct aq_planning *p, const struct aq_request *r)
{
    struct aq_planning_invalid *kind = &p->invalid[r->error.code];
    p->records_invalid++;
    if (kind->count++)
        return;
    kind->line = r->line;
    aq_quote(kind->message, sizeof(kind->message), r->error.message, strlen(r->error.message));
}

static int check_invalid(const struct aq_planning *p, const struct aq_log *log,
                         struct aq_err *reterr)
{
    struct aq_records_read read = {.count = p->records, .invalid = p->records_invalid};
    for (int c = 1; c < AQ_RECORD_CODE_COUNT; c++) {
        const struct aq_planning_invalid *kind = &p->invalid[c];
        if (!kind->count || (read.line && read.line < kind->line))
            continue;
        read.line = kind->line;
        read.code = (enum aq_record_code)c;
        read.message = kind->message;
    }
    if (!p->workload.sequences)
        return aq_error(reterr, -EINVAL,
                        "--input: none of the %llu records of '%s' is valid.  Line %llu: %s: %s",
                        (unsigned long long)p->records, p->o->input, (unsigned long long)read.line,
                        aq_record_code_name(read.code), read.message);
    int rc = aq_request_check_invalid(&read, p->o->allow_errors, reterr);
    for (int c = 1; rc < 0 && c < AQ_RECORD_CODE_COUNT; c++) {
        const struct aq_planning_invalid *kind = &p->invalid[c];
        if (kind->count)
            aq_log_line(log, AQ_LOG_WARNING, "%s: %llu; line %llu: %s",
                        aq_record_code_name((enum aq_record_code)c),
                        (unsigned long long)kind->count, (unsigned long long)kind->line,
                        kind->message);
    }
    return rc;
}

static int read_lines(struct reading *to, struct aq_input *input, struct aq_generator *g,
                      const struct aq_log *log, struct aq_err *reterr)
{
    struct aq_planning *p = to->p;
    struct aq_line line;
    struct aq_line_place place;
    while (!p->o->limit || p->records < p->o->limit) {
        struct aq_request *r;
        int rc = aq_input_next(input, &line, &place, reterr);
        if (rc < 0)
            return rc;
        if (rc == 0)
            break;
        rc = aq_request_open(&r, &g->rules, &line, reterr);
        if (rc < 0)
            return rc;
        if (r->error.code)
            count_invalid(p, r);
        else
            rc = count_request(to, r, reterr);
        p->records++;
        aq_request_close(r);
        if (rc < 0)
            return rc;
    }
    if (!p->records)
        return aq_error(reterr, -EINVAL, "--input: '%s' has no records", p->o->input);
    return check_invalid(p, log, reterr);
}

/* info, which g borrows, becomes the model's part of it. */
static int open_reader(struct aq_generator *g, struct aq_engine_info *info,
                       const struct aq_planning *p, struct aq_err *reterr)
{
    const struct aq_model_config *c = &p->model->config;
    *info = (struct aq_engine_info){
        .name = p->model->name,
        .vocab = p->model->steps.vocab,
        .context = p->context,
        .positions = p->positions,
        .layers = p->model->steps.layers,
        .kv = p->choices.kv,
        .kv_format = p->choices.kv_format < 0 ? AQ_F16 : (enum aq_dtype)p->choices.kv_format,
        .bos_id = c->bos_id,
        .pad_id = c->pad_id,
        .add_bos = c->arch->add_bos,
        .eos_count = c->eos_count};
    memcpy(info->eos_id, c->eos_id, sizeof(info->eos_id));
    return aq_generator_open_reader(g, p->o, info, reterr);
}

void aq_planning_count_process(struct aq_planning *p, struct aq_planning_env *env)
{
    struct aq_generator g;
    struct aq_engine_info info;
    uint64_t before = aq_mem_process_now(), after = before;
    if (p->local && !env->held) {
        if (open_reader(&g, &info, p, NULL) == 0) {
            after = aq_mem_process_now();
            aq_generator_close(&g);
        }
        env->held = p->held + (after > before ? after - before : 0);
    }
    if (p->local)
        p->held = env->held;
}

int aq_planning_read_input(struct aq_planning *p, const struct aq_log *log, struct aq_err *reterr)
{
    const struct aq_options *o = p->o;
    struct aq_engine_info info;
    struct aq_input_opts opts = {.path = o->input, .format = o->input_format};
    struct aq_generator g;
    struct aq_input *input = NULL;
    struct reading r = {.p = p};
    if (strcmp(o->input, "-") == 0)
        return aq_error(reterr, -EINVAL,
                        "--input -: a plan reads its records once for each case that it tries; "
                        "expected a file");
    int rc = open_reader(&g, &info, p, reterr);
    if (rc < 0)
        return rc;
    /* Of what a record may say, this says nothing about lengths; a plan has no options for it. */
    g.rules.defaults.top_p = g.rules.defaults.repetition_penalty = 1;
    g.rules.defaults.logprobs = -1;
    g.rules.token_bytes = AQ_PLANNING_TOKEN_BYTES;
    rc = aq_input_open(&input, &opts, reterr);
    if (rc == 0) {
        g.rules.text_lines = aq_input_is_text(input);
        if (p->choices.share_prefixes)
            rc = aq_alike_open(&r.alike, AQ_ALIKE_BYTES_MAX, reterr);
        rc = rc < 0 ? rc : read_lines(&r, input, &g, log, reterr);
        rc = rc < 0 ? rc : list_lengths(&r, reterr);
    }
    aq_alike_close(r.alike);
    free(r.kept);
    free(r.first);
    aq_input_close(input);
    aq_generator_close(&g);
    return rc;
}
