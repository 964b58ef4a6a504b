/* SPDX-License-Identifier: Apache-2.0
 * The workload of a plan out of a prompt file: every record is read and tokenised as generate would
 * do it, and only its lengths are kept. */
#include "engine/records/input.h"
#include "base/mem.h"
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

static int count_request(struct aq_planning *p, const struct aq_request *r, struct aq_err *reterr)
{
    struct aq_workload *w = &p->workload;
    for (uint32_t i = 0; i < r->prompt_count; i++) {
        uint32_t prompt = r->prompts[i].count, gen = r->prompts[i].max_tokens;
        struct aq_length l = {prompt, gen ? gen : 1};
        if (!aq_lengths_add(&p->lengths, l, r->params.n))
            return aq_error_memory(reterr, "plan");
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
    return 0;
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

static int read_lines(struct aq_planning *p, struct aq_input *input, struct aq_generator *g,
                      const struct aq_log *log, struct aq_err *reterr)
{
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
            rc = count_request(p, r, reterr);
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
        rc = read_lines(p, input, &g, log, reterr);
    }
    aq_input_close(input);
    aq_generator_close(&g);
    return rc;
}
