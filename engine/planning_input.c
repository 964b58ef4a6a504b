/* SPDX-License-Identifier: Apache-2.0
 * The workload of a plan out of a prompt file: every record is read and tokenised as generate would
 * do it, and only its lengths are kept. */
#include "engine/generator.h"
#include "engine/input.h"
#include "engine/planning.h"

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
    struct aq_block_inputs *in = &p->in;
    for (uint32_t i = 0; i < r->prompt_count; i++) {
        uint32_t prompt = r->prompts[i].count, gen = r->prompts[i].max_tokens;
        struct aq_length l = {prompt, gen ? gen : 1};
        if (!aq_lengths_add(&p->lengths, l, r->params.n))
            return aq_error_memory(reterr, "plan");
        widen(p->prompt, prompt, !in->sequences);
        widen(p->gen, gen, !in->sequences);
        in->sequences += r->params.n;
        in->prompt_sum += (uint64_t)prompt * r->params.n;
        in->total_sum += ((uint64_t)prompt + gen) * r->params.n;
        in->total_max = prompt + gen > in->total_max ? prompt + gen : in->total_max;
    }
    in->prompt_max = p->prompt[1];
    return 0;
}

static int read_lines(struct aq_planning *p, struct aq_input *input, struct aq_generator *g,
                      struct aq_err *reterr)
{
    struct aq_line line;
    struct aq_line_place place;
    struct aq_err first = {0};
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
        if (r->error.code && !p->records_invalid++)
            aq_error(&first, -EINVAL, "Line %llu: %s: %s", (unsigned long long)r->line,
                     aq_record_code_name(r->error.code), r->error.message);
        if (!r->error.code)
            rc = count_request(p, r, reterr);
        p->records++;
        aq_request_close(r);
        if (rc < 0)
            return rc;
    }
    if (!p->records)
        return aq_error(reterr, -EINVAL, "--input: '%s' has no records", p->o->input);
    if (!p->in.sequences)
        return aq_error(reterr, -EINVAL, "--input: none of the %llu records of '%s' is valid.  %s",
                        (unsigned long long)p->records, p->o->input, first.text);
    return 0;
}

int aq_planning_read_input(struct aq_planning *p, uint32_t context, struct aq_err *reterr)
{
    const struct aq_options *o = p->o;
    const struct aq_model_config *c = &p->model->config;
    struct aq_engine_info info = {.name = p->model->name,
                                  .vocab = p->model->steps.vocab,
                                  .context = context,
                                  .bos_id = c->bos_id,
                                  .pad_id = c->pad_id,
                                  .eos_count = c->eos_count};
    struct aq_input_opts opts = {.path = o->input, .format = o->input_format};
    struct aq_generator g;
    struct aq_input *input = NULL;
    memcpy(info.eos_id, c->eos_id, sizeof(info.eos_id));
    if (strcmp(o->input, "-") == 0)
        return aq_error(reterr, -EINVAL,
                        "--input -: a plan reads its records once for each case that it tries; "
                        "expected a file");
    int rc = aq_generator_open_reader(&g, o, &info, reterr);
    if (rc < 0)
        return rc;
    /* Of what a record may say, this says nothing about lengths; a plan has no options for it. */
    g.rules.defaults.top_p = g.rules.defaults.repetition_penalty = 1;
    g.rules.defaults.logprobs = -1;
    rc = aq_input_open(&input, &opts, reterr);
    if (rc == 0) {
        g.rules.text_lines = aq_input_is_text(input);
        rc = read_lines(p, input, &g, reterr);
    }
    aq_input_close(input);
    aq_generator_close(&g);
    return rc;
}
