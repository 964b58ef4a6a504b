/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/reference/record.h"

#include "base/prng.h"
#include "engine/core/engine_seams.h"
#include "tests/choices.h"
#include "tests/reference/asked.h"
#include "tests/temp.h"
#include "tests/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- random models ---- */

static char scratch[TEMP_PATH_MAX];

int record_make_scratch(void **state)
{
    (void)state;
    temp_dir(scratch, "kept");
    return 0;
}

int record_remove_scratch(void **state)
{
    (void)state;
    return temp_remove(scratch);
}

const char *record_write_model(const struct random_model *m, uint64_t seed)
{
    static char path[TEMP_INSIDE_MAX];
    snprintf(path, sizeof(path), "%s/model", scratch);
    random_model_write(path, m, seed);
    return path;
}

size_t record_at(const struct record *r, uint32_t row, uint32_t layer, uint32_t head)
{
    return (((size_t)row * r->layers + layer) * r->heads + head) * r->room;
}

static void see(void *user, const struct aq_kv_seen *seen)
{
    struct record *r = seen->sequence->user;
    uint32_t row = seen->seen - r->prompt;
    assert_true(row < r->rows && seen->kv_heads == r->heads);
    uint64_t all = 0, uneven = 0;
    for (uint32_t h = 0; h < r->heads; h++) {
        size_t at = record_at(r, row, seen->layer, h);
        uint32_t len = seen->len[h * seen->len_step];
        all += len;
        uneven |= len != seen->held;
        for (uint32_t i = 0; i < len; i++) {
            const struct aq_attn_slots *s = &seen->slots;
            uint32_t position = s->position ? s->position[h * s->stride + i] : i;
            assert_true(position < seen->seen && !r->kept[at + position]);
            r->kept[at + position] = true;
            if (s->score)
                r->score[at + position] = s->score[h * s->stride + i];
            r->scored = r->scored || s->score;
        }
    }
    r->dropped = r->dropped || seen->held < seen->seen;
    r->dropped = r->dropped || (r->profiled && all < (uint64_t)seen->seen * r->heads);
    r->uneven += uneven;
    assert_true(!r->profiled || all <= (uint64_t)seen->held * r->heads);
    /* A layer's budget, to the slot; where numbers are mixed, up to their rounding. */
    if (r->cross || r->profiled)
        return;
    if (r->mixed)
        assert_in_range(2 * all + 3 * r->heads, 2 * (uint64_t)seen->held * r->heads,
                        2 * (uint64_t)seen->held * r->heads + 4 * r->heads);
    else
        assert_int_equal(all, (uint64_t)seen->held * r->heads);
}

void record_open(struct record *r, const struct ref_model *m, uint64_t seed, uint32_t prompt,
                 uint32_t fed)
{
    *r = (struct record){.prompt = prompt,
                         .fed = fed,
                         .room = prompt + fed,
                         .layers = m->layers,
                         .heads = m->kv_heads,
                         .rows = fed};
    size_t all = record_at(r, r->rows, 0, 0);
    r->kept = calloc(all, sizeof(*r->kept));
    r->score = calloc(all, sizeof(*r->score));
    r->ids = calloc(prompt, sizeof(*r->ids));
    r->tokens = calloc(fed, sizeof(*r->tokens));
    r->logprobs = calloc(fed, sizeof(*r->logprobs));
    assert_true(r->kept && r->score && r->ids && r->tokens && r->logprobs);
    for (uint32_t i = 0; i < prompt; i++)
        r->ids[i] = (uint32_t)aq_prng_below(seed, i, 0, m->vocab);
}

void record_close(struct record *r)
{
    free(r->kept);
    free(r->score);
    free(r->ids);
    free(r->tokens);
    free(r->logprobs);
}

/* One of the instruction sets this machine has; NULL: the best. */
static const char *isa_of(uint64_t draw)
{
    static const char *const names[] = {NULL, "ref", "avx2", "avx512"};
    unsigned mask;
    const char *name = names[draw % AQ_ARRAY_LEN(names)];
    return name && aq_isa_parse(name, &mask) && !(mask & ~aq_isa_detect()) ? name : NULL;
}

/* sharing: prompts that begin alike are computed once, in micro-batches of all; returns the tokens
 * that were not. */
static uint64_t run(enum aq_dtype kv_format, const char *dir, const struct aq_kv_policy *kv,
                    struct record *r, uint32_t count, uint32_t draw, const bool *sharing)
{
    struct aq_engine_stats st;
    struct aq_engine_opts opts = {.model_dir = dir,
                                  .compute = AQ_F32,
                                  .weight_format = AQ_F32,
                                  .kv_format = (int)kv_format,
                                  .kv = *kv,
                                  .classes = {asked_classes, ASKED_VOCAB},
                                  .context = kv->positions ? 400 : 0,
                                  .threads = 1,
                                  .host_memory = AQ_GIB,
                                  .isa = using_isa(isa_of(draw)),
                                  .micro_batch = sharing ? count : 1 + draw % 3,
                                  .share_prefixes = sharing && *sharing,
                                  .micro_batches = 1,
                                  .serial = true,
                                  .refill = true};
    struct aq_workload w = {.sequences = count};
    for (uint32_t i = 0; i < count; i++) {
        w.prompt_max = (uint32_t)aq_max_u64(w.prompt_max, r[i].prompt);
        w.total_max = (uint32_t)aq_max_u64(w.total_max, r[i].prompt + r[i].fed);
    }
    struct aq_engine *e;
    struct aq_err err = {0};
    int rc = aq_engine_open(&e, &opts, &err);
    rc = rc < 0 ? rc : aq_engine_plan(e, &w, &err);
    if (rc == 0) {
        aq_engine_set_seams(e, &(struct aq_engine_seams){.kv_seen = see});
        rc = aq_engine_load(e, &err);
    }
    if (rc < 0)
        fail_msg("%s", err.text);
    for (uint32_t i = 0; i < count; i++) {
        r[i].cross = aq_kv_policy_cross(kv);
        r[i].profiled = aq_kv_policy_profiled(kv);
        r[i].mixed = aq_kv_policy_ragged(kv) && kv->floor_kind == AQ_KV_FLOOR_MIX;
        r[i].s = (struct aq_sequence){.prompt = r[i].ids,
                                      .prompt_count = r[i].prompt,
                                      .max_tokens = r[i].fed,
                                      .sampling = {.top_p = 1, .repetition_penalty = 1},
                                      .top_count = 0,
                                      .tokens = r[i].tokens,
                                      .logprobs = r[i].logprobs,
                                      .user = &r[i]};
        aq_engine_submit(e, &r[i].s);
    }
    for (bool worked = true; worked;) {
        if (aq_engine_pass(e, &worked, &err) < 0)
            fail_msg("%s", err.text);
    }
    aq_engine_stats(e, &st);
    aq_engine_close(e);
    return st.shared_tokens;
}

void record_run_in(enum aq_dtype kv_format, const char *dir, const struct aq_kv_policy *kv,
                   struct record *r, uint32_t count, uint32_t draw)
{
    run(kv_format, dir, kv, r, count, draw, NULL);
}

uint64_t record_run_beside(const char *dir, const struct aq_kv_policy *kv, struct record *r,
                           uint32_t count, uint32_t draw, bool share)
{
    return run(AQ_F32, dir, kv, r, count, draw, &share);
}

void record_run(const char *dir, const struct aq_kv_policy *kv, struct record *r, uint32_t count,
                uint32_t draw)
{
    record_run_in(AQ_F32, dir, kv, r, count, draw);
}
