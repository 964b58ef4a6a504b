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

/* What a run is made of.  A pass takes pass_s for moving weights, row_s for each sequence and
 * prompt_s for each token of a prompt it reads. */
struct work {
    uint32_t sequences, seats, prompt, cap;
    uint32_t stop_every; /* one token in so many ends its sequence; 0: none does */
    uint32_t length;     /* all end here; 0: they do not */
    double pass_s, prompt_s, row_s;
};

struct played {
    struct aq_options options;
    struct aq_job job;
    struct aq_run_view view[PASSES_MAX]; /* after each pass */
    double at_s[PASSES_MAX], end_s;
    uint32_t passes;
};

static uint32_t length_of(const struct work *w, uint32_t sequence)
{
    uint32_t n = 1;
    while (n < w->cap && (!w->length || n < w->length) &&
           (!w->stop_every || aq_prng_below(7, sequence, n, w->stop_every)))
        n++;
    return w->cap ? n : 0;
}

static void end_sequence(struct aq_run_view *v, const struct work *w, uint32_t tokens)
{
    v->stats.finished++;
    v->done++;
    v->stopped += tokens < w->cap;
    v->ended_tokens += tokens;
    v->ended_max += w->cap;
}

/* One pass over the seats; left[] is what each sequence there still generates, 0: free. */
static void play_pass(struct aq_run_view *v, const struct work *w, uint32_t *left, uint32_t *length,
                      uint32_t *next, double *now_s)
{
    uint32_t fresh = 0, old = 0;
    for (uint32_t i = 0; i < w->seats; i++) {
        old += left[i] > 0;
        if (left[i] || *next == w->sequences)
            continue;
        length[i] = length_of(w, (*next)++);
        left[i] = length[i] ? length[i] : 1;
        fresh++;
    }
    double s = w->pass_s + fresh * w->prompt * w->prompt_s + (fresh + old) * w->row_s;
    v->stats.lane[AQ_LANE_H2D].busy_s += w->pass_s;
    *(fresh && old ? &v->stats.mixed_s : fresh ? &v->stats.prefill_s : &v->stats.decode_s) += s;
    *now_s += s;
    v->stats.passes++;
    v->stats.prefill_passes += fresh && !old;
    v->stats.prefill_tokens += (uint64_t)fresh * w->prompt;
    for (uint32_t i = 0; i < w->seats; i++) {
        v->stats.generated_tokens += left[i] && length[i];
        if (left[i] && !--left[i])
            end_sequence(v, w, length[i]);
    }
}

static struct played *play(const struct work *w)
{
    struct played *p = calloc(1, sizeof(*p));
    uint32_t *left = calloc(w->seats, sizeof(*left)), *length = calloc(w->seats, sizeof(*left));
    uint32_t next = 0;
    double now_s = 1000;
    assert_true(p && left && length && w->sequences <= SEQUENCES_MAX);
    p->options.refill = true;
    p->job.o = &p->options;
    p->job.pending = p->job.row_count = w->sequences;
    p->job.workload =
        (struct aq_workload){.sequences = w->sequences,
                             .prompt_sum = (uint64_t)w->sequences * w->prompt,
                             .total_sum = (uint64_t)w->sequences * (w->prompt + w->cap)};
    struct aq_run_view v = {.loaded = true, .first_pass_s = now_s, .seats = w->seats};
    while (v.done < w->sequences) {
        assert_true(p->passes < PASSES_MAX);
        play_pass(&v, w, left, length, &next, &now_s);
        p->at_s[p->passes] = now_s;
        p->view[p->passes++] = v;
    }
    p->end_s = now_s;
    free(left);
    free(length);
    return p;
}

/* The time left is told from a share of the run's on, and from there on within these factors of
 * the truth until a twentieth of the run is left. */
struct told {
    struct work work;
    double from_share, low, high;
};

static void assert_told(const struct told *t)
{
    const struct work *w = &t->work;
    struct played *p = play(w);
    double all_s = p->end_s - 1000, least = 1e9, most = 0, first = 1;
    for (uint32_t i = 0; i + 1 < p->passes; i++) {
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
        {{600, 100, 20, 50, 0, 0, 1, 0.01, 0}, 0.3, 0.9, 1.3},
        {{100, 100, 20, 50, 0, 0, 1, 0.01, 0}, 0.5, 0.9, 1.1},    /* one block */
        {{100, 100, 2000, 50, 0, 0, 1, 0.001, 0}, 0.9, 0.9, 1.1}, /* long prompts */
        {{600, 100, 20, 50, 0, 0, 0, 0.01, 0.01}, 0.3, 0.9, 1.3}, /* computing binds */
    };
    assert_all_told(told, AQ_ARRAY_LEN(told));
}

/* The first to end is far shorter than its max_tokens, and speaks for nobody else. */
static void sequences_that_end_early_are_told_neither_as_short_nor_as_full(void **state)
{
    static const struct told told[] = {
        {{2000, 400, 20, 64, 100, 0, 1, 0.001, 0}, 0.1, 0.4, 1.3},    /* some */
        {{2000, 100, 20, 512, 40, 0, 1, 0.001, 0}, 0.1, 0.7, 2.2},    /* most */
        {{500, 256, 20, 256, 5000, 0, 1, 0.001, 0}, 0.3, 0.9, 1.2},   /* seldom one */
        {{2000, 100, 20, 512, 40, 0, 0, 0.001, 0.01}, 0.1, 0.7, 1.5}, /* computing binds */
    };
    assert_all_told(told, AQ_ARRAY_LEN(told));
}

static void sequences_of_one_length_are_told_once_the_first_are_through(void **state)
{
    static const struct told told = {{1000, 100, 20, 512, 0, 30, 0, 0.001, 0.01}, 0.12, 0.9, 2.2};
    assert_told(&told);
}

static void scoring_is_told_by_its_prompts(void **state)
{
    static const struct told told = {{1000, 50, 100, 0, 0, 0, 0.5, 0.001, 0}, 0.12, 0.9, 1.1};
    assert_told(&told);
}

/* While a pass runs, its time goes by, and its end is not before now. */
static void a_long_pass_counts_down(void **state)
{
    (void)state;
    static const struct work w = {600, 100, 20, 50, 0, 0, 60, 0, 0};
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
    static const struct work w = {2000, 400, 20, 64, 100, 0, 1, 0.001, 0};
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
    v->ended_tokens = v->ended_max = 6500;
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
    cmocka_unit_test(scoring_is_told_by_its_prompts),
    cmocka_unit_test(a_long_pass_counts_down),
    cmocka_unit_test(nothing_is_told_that_nobody_knows),
};

AQ_TEST_MAIN(tests)
