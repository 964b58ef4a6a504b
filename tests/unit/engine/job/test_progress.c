/* SPDX-License-Identifier: Apache-2.0
 * The time that is left, against runs played through in numbers: when it is first told, and how
 * far it is off from then on. */
#include "engine/job/job.h"

#include "base/prng.h"
#include "tests/test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SEQUENCES_MAX = 2000, PASSES_MAX = 20000 };

/* How long sequences become, each at most its max_tokens. */
enum lengths {
    FULL,       /* as long as they may */
    GEOMETRIC,  /* one token in `mean` ends its sequence */
    EQUAL,      /* `mean` tokens */
    LOG_NORMAL, /* as answers of chat models are, about: `mean` is the median, sigma 0.8 */
    TWO_KINDS,  /* four of five `mean` tokens, about, and the others as long as they may */
};

/* What a run is made of.  A pass takes pass_s for moving weights, row_s for each sequence and
 * prompt_s for each token of a prompt it reads. */
struct work {
    uint32_t sequences, seats, prompt, cap;
    enum lengths lengths;
    uint32_t mean;
    double pass_s, prompt_s, row_s;
    bool ragged; /* prompts have from 1 to 2 * prompt tokens, max_tokens are from 1 to cap */
};

struct played {
    struct aq_options options;
    struct aq_job job;
    struct aq_run_view view[PASSES_MAX]; /* after each pass */
    double at_s[PASSES_MAX], end_s;
    uint32_t passes;
};

struct sequence {
    uint32_t prompt, cap, length, has; /* has: tokens so far; where none are generated, passes */
};

static uint32_t draw(uint32_t sequence, uint32_t what, uint32_t below)
{
    return (uint32_t)aq_prng_below(7, sequence, what, below);
}

/* Normal, by the sum of twelve uniform variables. */
static double draw_normal(uint32_t sequence)
{
    double sum = -6;
    for (uint32_t i = 0; i < 12; i++)
        sum += draw(sequence, 100000 + i, 1u << 20) / (double)(1u << 20);
    return sum;
}

static uint32_t draw_length(const struct work *w, uint32_t i)
{
    uint32_t n = 1;
    switch (w->lengths) {
    case FULL: return w->cap;
    case GEOMETRIC:
        while (n < w->cap && draw(i, n, w->mean))
            n++;
        return n;
    case EQUAL: return w->mean;
    case LOG_NORMAL: return (uint32_t)(w->mean * exp(0.8 * draw_normal(i))) + 1;
    case TWO_KINDS: return draw(i, 1, 5) ? w->mean / 2 + draw(i, 2, w->mean) + 1 : w->cap;
    }
    return 0;
}

static struct sequence draw_sequence(const struct work *w, uint32_t i)
{
    struct sequence q = {.prompt = w->prompt, .cap = w->cap};
    if (w->ragged) {
        q.prompt = 1 + draw(i, 200000, 2 * w->prompt);
        q.cap = 1 + draw(i, 200001, w->cap);
    }
    q.length = w->cap ? draw_length(w, i) : 0;
    q.length = q.length < q.cap ? q.length : q.cap;
    return q;
}

static void end_sequence(struct aq_run_view *v, const struct sequence *q)
{
    v->stats.finished++;
    v->done++;
    aq_eta_end(&v->seen, q->length, q->cap, q->length < q->cap);
}

/* What the job knows of sequences between passes. */
static void look(struct aq_run_view *v, struct sequence *const *seat, uint32_t seats)
{
    uint64_t count = 0;
    for (uint32_t i = 0; i < seats; i++)
        count += seat[i] && seat[i]->has && seat[i]->length;
    aq_eta_begin_flight(&v->seen, count);
    for (uint32_t i = 0; i < seats; i++)
        if (seat[i])
            aq_eta_fly(&v->seen, seat[i]->has, seat[i]->cap);
}

/* One pass over the seats, some of which are free (NULL). */
static void play_pass(struct aq_run_view *v, const struct work *w, struct sequence **seat,
                      struct sequence *all, uint32_t *next, double *now_s)
{
    uint32_t fresh = 0, old = 0, prompts = 0;
    for (uint32_t i = 0; i < w->seats; i++) {
        old += seat[i] != NULL;
        if (seat[i] || *next == w->sequences)
            continue;
        seat[i] = &all[(*next)++];
        aq_eta_wait(&v->seen, seat[i]->cap, -1);
        prompts += seat[i]->prompt;
        fresh++;
    }
    double s = w->pass_s + prompts * w->prompt_s + (fresh + old) * w->row_s;
    v->stats.lane[AQ_LANE_H2D].busy_s += w->pass_s;
    *(fresh && old ? &v->stats.mixed_s : fresh ? &v->stats.prefill_s : &v->stats.decode_s) += s;
    *now_s += s;
    v->stats.passes++;
    v->stats.prefill_passes += fresh && !old;
    v->stats.prefill_tokens += prompts;
    for (uint32_t i = 0; i < w->seats; i++) {
        if (!seat[i])
            continue;
        v->stats.generated_tokens += seat[i]->length > 0;
        if (++seat[i]->has >= seat[i]->length) {
            end_sequence(v, seat[i]);
            seat[i] = NULL;
        }
    }
    look(v, seat, w->seats);
}

static struct played *play(const struct work *w)
{
    struct played *p = calloc(1, sizeof(*p));
    struct sequence **seat = calloc(w->seats, sizeof(struct sequence *));
    struct sequence *all = calloc(w->sequences, sizeof(*all));
    uint32_t next = 0;
    double now_s = 1000;
    assert_true(p && seat && all && w->sequences <= SEQUENCES_MAX);
    p->options.refill = true;
    p->job.o = &p->options;
    p->job.pending = p->job.row_count = w->sequences;
    p->job.workload = (struct aq_workload){.sequences = w->sequences};
    struct aq_run_view v = {.loaded = true, .first_pass_s = now_s, .seats = w->seats};
    for (uint32_t i = 0; i < w->sequences; i++) {
        all[i] = draw_sequence(w, i);
        p->job.workload.prompt_sum += all[i].prompt;
        p->job.workload.total_sum += (uint64_t)all[i].prompt + all[i].cap;
        aq_eta_wait(&v.seen, all[i].cap, 1);
    }
    while (v.done < w->sequences) {
        assert_true(p->passes < PASSES_MAX);
        play_pass(&v, w, seat, all, &next, &now_s);
        p->at_s[p->passes] = now_s;
        p->view[p->passes++] = v;
    }
    p->end_s = now_s;
    free(seat);
    free(all);
    return p;
}

/* The time left is told from a share of the run's on, and from there on within these factors of
 * the truth until a twentieth of the run is left. */
struct told {
    struct work work;
    double from_share, low, high;
};

enum { LOOKS = 200 }; /* of a run, about */

static void assert_told(const struct told *t)
{
    const struct work *w = &t->work;
    struct played *p = play(w);
    double all_s = p->end_s - 1000, least = 1e9, most = 0, first = 1;
    for (uint32_t i = 0; i + 1 < p->passes; i += 1 + p->passes / LOOKS) {
        double left_s = p->end_s - p->at_s[i];
        double eta_s = aq_progress_eta_s(&p->job, &p->view[i], p->at_s[i]);
        assert_true(eta_s != 0); /* there is work left */
        if (eta_s < 0)
            continue;
        first = fmin(first, 1 - left_s / all_s);
        if (left_s < all_s / 20)
            continue;
        least = fmin(least, eta_s / left_s);
        most = fmax(most, eta_s / left_s);
    }
    bool good = first <= t->from_share && least >= t->low && most <= t->high;
    if (!good)
        print_error(
            "%u on %u: first told after %.3f of the run, then %.3f to %.3f of what was left\n",
            w->sequences, w->seats, first, least, most);
    assert_true(good);
    assert_true(aq_progress_eta_s(&p->job, &p->view[p->passes - 1], p->end_s) == 0);
    free(p);
}

static void assert_all_told(const struct told *told, size_t count)
{
    for (size_t i = 0; i < count; i++)
        assert_told(&told[i]);
}

static void lengths_that_are_known_are_told_well(void **state)
{
    static const struct told told[] = {
        {{600, 100, 20, 50, FULL, 0, 1, 0.01, 0, false}, 0.3, 0.9, 1.3},
        {{100, 100, 20, 50, FULL, 0, 1, 0.01, 0, false}, 0.5, 0.9, 1.1},    /* one block */
        {{100, 100, 2000, 50, FULL, 0, 1, 0.001, 0, false}, 0.9, 0.9, 1.1}, /* long prompts */
        {{600, 100, 20, 50, FULL, 0, 0, 0.01, 0.01, false}, 0.3, 0.9, 1.3}, /* computing binds */
    };
    assert_all_told(told, AQ_ARRAY_LEN(told));
}

/* The first to end is far shorter than its max_tokens, and speaks for nobody else. */
static void sequences_that_end_early_are_told_neither_as_short_nor_as_full(void **state)
{
    static const struct told told[] = {
        {{2000, 400, 20, 64, GEOMETRIC, 100, 1, 0.001, 0, false}, 0.1, 0.4, 1.3},   /* some */
        {{2000, 100, 20, 512, GEOMETRIC, 40, 1, 0.001, 0, false}, 0.1, 0.7, 2.2},   /* most */
        {{500, 256, 20, 256, GEOMETRIC, 5000, 1, 0.001, 0, false}, 0.3, 0.9, 1.45}, /* seldom one */
        {{2000, 100, 20, 512, GEOMETRIC, 40, 0, 0.001, 0.01, false},
         0.1,
         0.7,
         1.5}, /* computing binds */
    };
    assert_all_told(told, AQ_ARRAY_LEN(told));
}

static void sequences_of_one_length_are_told_once_the_first_are_through(void **state)
{
    static const struct told told = {
        {1000, 100, 20, 512, EQUAL, 30, 0, 0.001, 0.01, false}, 0.12, 0.9, 2.2};
    assert_told(&told);
}

/* Played through: from a tenth of the run on the time that is told is within 20 % of the truth, or,
 * towards the end, within 6 % of the whole run: how long the last sequences become is chance. */
static void assert_told_within_a_fifth(const struct work *w)
{
    struct played *p = play(w);
    double all_s = p->end_s - 1000;
    for (uint32_t i = 0; i + 1 < p->passes; i += 1 + p->passes / LOOKS) {
        double left_s = p->end_s - p->at_s[i];
        double eta_s = aq_progress_eta_s(&p->job, &p->view[i], p->at_s[i]);
        bool good = fabs(eta_s - left_s) <= fmax(0.2 * left_s, 0.06 * all_s);
        if (left_s > 0.9 * all_s || good)
            continue;
        print_error("%u on %u, lengths %d: after %.3f of the run %.3f of what was left\n",
                    w->sequences, w->seats, w->lengths, 1 - left_s / all_s, eta_s / left_s);
        assert_true(good);
    }
    free(p);
}

static void ragged_lengths_are_told_within_a_fifth_from_a_tenth_on(void **state)
{
    (void)state;
    static const struct work works[] = {
        {2000, 64, 40, 128, FULL, 0, 1, 0.001, 0, true},
        {2000, 64, 40, 128, FULL, 0, 0.01, 0.001, 0.01, true},
        {2000, 100, 40, 512, GEOMETRIC, 40, 1, 0.001, 0, true},
        {2000, 64, 100, 256, LOG_NORMAL, 40, 1, 0.002, 0.002, false},
        {2000, 100, 40, 512, LOG_NORMAL, 60, 1, 0.001, 0, true},
        {2000, 64, 40, 200, TWO_KINDS, 20, 1, 0.001, 0, false},
        {2000, 64, 40, 200, TWO_KINDS, 20, 0.01, 0.001, 0.02, true},
    };
    for (size_t i = 0; i < AQ_ARRAY_LEN(works); i++)
        assert_told_within_a_fifth(&works[i]);
}

static void scoring_is_told_by_its_prompts(void **state)
{
    static const struct told told = {
        {1000, 50, 100, 0, FULL, 0, 0.5, 0.001, 0, false}, 0.12, 0.9, 1.1};
    assert_told(&told);
}

/* While a pass runs, its time goes by, and its end is not before now. */
static void a_long_pass_counts_down(void **state)
{
    (void)state;
    static const struct work w = {600, 100, 20, 50, FULL, 0, 60, 0, 0, false};
    struct played *p = play(&w);
    uint32_t middle = p->passes / 2;
    struct aq_run_view v = p->view[middle];
    double at_s = p->at_s[middle], eta_s = aq_progress_eta_s(&p->job, &v, at_s);
    v.in_pass = true;
    v.pass_begin_s = at_s;
    assert_true(fabs(aq_progress_eta_s(&p->job, &v, at_s + 30) - (eta_s - 30)) < 1e-6);
    assert_true(aq_progress_eta_s(&p->job, &v, at_s + 10 * eta_s) > 0);
    free(p);
}

static void nothing_is_told_that_nobody_knows(void **state)
{
    (void)state;
    static const struct work w = {2000, 400, 20, 64, GEOMETRIC, 100, 1, 0.001, 0, false};
    struct played *p = play(&w);
    struct aq_buf text = {0};
    for (uint32_t i = 0; p->view[i].done < 40; i++) {
        assert_true(aq_progress_eta_s(&p->job, &p->view[i], p->at_s[i]) < 0);
        aq_buf_clear(&text);
        aq_progress_text(&text, &p->job, &p->view[i], p->at_s[i]);
        assert_null(strstr(text.data, "left"));
    }
    uint32_t last = p->passes - 2; /* half a second of work is no 0:00:00 */
    p->view[last].stats.prefill_s = p->view[last].stats.mixed_s = 0;
    p->view[last].stats.decode_s = 0.5 * (double)p->view[last].stats.passes;
    aq_buf_clear(&text);
    aq_progress_text(&text, &p->job, &p->view[last], 1000 + 0.01);
    assert_non_null(strstr(text.data, "about 0:00:01 left"));
    aq_buf_close(&text);
    free(p);
}

/* A view in the middle of a run, with everything in it that a line can tell. */
static void open_middle(struct aq_job *j, struct aq_run_view *v)
{
    *j = (struct aq_job){.row_count = 263, .pending = 263};
    j->workload = (struct aq_workload){.sequences = 263, .prompt_sum = 5260, .total_sum = 18410};
    *v = (struct aq_run_view){.loaded = true, .first_pass_s = 1000, .seats = 16, .done = 130};
    v->errors = 18;
    v->in_flight = 242;
    aq_eta_wait(&v->seen, 50, 130);
    v->stats = (struct aq_engine_stats){
        .passes = 900, .decode_passes = 800, .mixed_passes = 100, .decode_s = 80, .mixed_s = 20};
    v->stats.prefill_tokens = 2600;
    v->stats.generated_tokens = 6500;
    v->stats.finished = 130;
    v->stats.lane[AQ_LANE_COMPUTE].busy_s = v->stats.lane[AQ_LANE_H2D].busy_s = 60;
}

static void a_bar_becomes_shorter_before_words_are_left_out(void **state)
{
    (void)state;
    static const struct aq_options options = {.refill = true};
    struct aq_job j;
    struct aq_run_view v;
    struct aq_buf text = {0};
    size_t bar_before = 0, words_before = 0;
    open_middle(&j, &v);
    j.o = &options;
    for (size_t columns = 200; columns >= 24; columns--) {
        aq_buf_clear(&text);
        aq_progress_bar(&text, &j, &v, 1100, columns);
        assert_true(text.count <= columns);
        size_t bar = strcspn(text.data, "]"), words = text.count - bar;
        bool had_more = bar_before > 5 && words < words_before; /* "[####" is the shortest */
        assert_false(had_more);
        bar_before = bar;
        words_before = words;
        if (columns >= 39) {
            assert_true(text.data[0] == '[' && strstr(text.data, "#"));
            assert_non_null(strstr(text.data, "130/263"));
        }
        if (columns >= 48)
            assert_non_null(strstr(text.data, "tok/s"));
        assert_non_null(strstr(text.data, " left"));
    }
    assert_null(strstr(text.data, "["));
    aq_buf_close(&text);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(a_bar_becomes_shorter_before_words_are_left_out),
    cmocka_unit_test(lengths_that_are_known_are_told_well),
    cmocka_unit_test(sequences_that_end_early_are_told_neither_as_short_nor_as_full),
    cmocka_unit_test(sequences_of_one_length_are_told_once_the_first_are_through),
    cmocka_unit_test(ragged_lengths_are_told_within_a_fifth_from_a_tenth_on),
    cmocka_unit_test(scoring_is_told_by_its_prompts),
    cmocka_unit_test(a_long_pass_counts_down),
    cmocka_unit_test(nothing_is_told_that_nobody_knows),
};

AQ_TEST_MAIN(tests)
