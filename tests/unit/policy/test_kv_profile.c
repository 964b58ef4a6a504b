/* SPDX-License-Identifier: Apache-2.0
 * Rules of heads, against the matrix of attention that they are profiled on; what counts before a
 * prompt has run; and their options. */
#include "policy/kv_profile.h"

#include "base/prng.h"
#include "tests/test.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { DRAWS = 2000, LONGEST = 60 };

static struct aq_kv_amount slots(uint32_t n)
{
    return (struct aq_kv_amount){.unit = AQ_KV_SLOTS, .slots = n};
}

static struct aq_kv_amount share(double x)
{
    return (struct aq_kv_amount){.unit = AQ_KV_SHARE, .share = x};
}

static struct aq_kv_policy resolved(struct aq_kv_options o)
{
    struct aq_kv_policy p;
    struct aq_err err;
    o.policy = "fastgen";
    if (aq_kv_policy_resolve(&p, &o, &err) < 0)
        fail_msg("%s", err.text);
    return p;
}

/* ---- prompts ---- */

struct head {
    uint32_t n;
    double a[LONGEST][LONGEST]; /* rows of attention */
    float all[LONGEST], band[LONGEST];
    uint8_t classes[LONGEST];
    struct aq_kv_sums sums;
};

/* Rows of whole 1/1024ths, so that sums of f32 are exact. */
static void draw_head(struct head *h, uint64_t seed, const struct aq_kv_limits *l)
{
    for (uint32_t i = 0; i < h->n; i++) {
        uint32_t left = 1024;
        for (uint32_t j = 0; j <= i; j++) {
            uint32_t of = (uint32_t)aq_prng_below(seed, i, j, left / 4 + 1);
            of = j == i ? left : of;
            h->a[i][j] = of / 1024.0;
            left -= of;
        }
        h->classes[i] = aq_prng_below(seed, 1000, i, 8) == 0 ? AQ_KV_CLASS_SPECIAL
                        : aq_prng_below(seed, 1001, i, 6)    ? 0
                                                             : AQ_KV_CLASS_PUNCT;
    }
    for (uint32_t j = 0; j < h->n; j++) {
        h->all[j] = h->band[j] = 0;
        for (uint32_t i = j; i < h->n; i++) {
            h->all[j] += (float)h->a[i][j];
            h->band[j] += i - j < l->local ? (float)h->a[i][j] : 0;
        }
    }
    h->sums = (struct aq_kv_sums){h->all, h->band, h->classes, h->n};
}

static bool is_kept(const uint32_t *keep, uint32_t count, uint32_t j)
{
    for (uint32_t i = 0; i < count; i++) {
        if (keep[i] == j)
            return true;
    }
    return false;
}

/* The part of the matrix that a rule's mask leaves: what is kept, and for `local` what was near. */
static double mass_of_matrix(const struct head *h, const struct aq_kv_limits *l,
                             const uint32_t *keep, uint32_t count, enum aq_kv_profile rule)
{
    double sum = 0;
    for (uint32_t i = 0; i < h->n; i++) {
        for (uint32_t j = 0; j <= i; j++) {
            bool near = rule == AQ_KV_PROFILE_LOCAL && i - j < l->local;
            sum += near || is_kept(keep, count, j) ? h->a[i][j] : 0;
        }
    }
    return sum / h->n;
}

/* Is every token kept that the rule names, and of the others `frequent`, none of them of less
 * attention than one that is not? */
static void check_kept(const struct head *h, const struct aq_kv_limits *l, const uint32_t *keep,
                       uint32_t count, enum aq_kv_profile rule)
{
    uint32_t chosen = 0, others = 0;
    float least = INFINITY, most = -1;
    for (uint32_t j = 0; j < h->n; j++) {
        uint8_t classes = rule == AQ_KV_PROFILE_SPECIAL ? 1 : 3;
        bool named = rule == AQ_KV_PROFILE_FULL || j < l->sinks || (h->classes[j] & classes) ||
                     (rule == AQ_KV_PROFILE_LOCAL && j + l->local >= h->n);
        bool kept = is_kept(keep, count, j);
        float each = h->all[j] / (float)(h->n - j);
        if (named) {
            assert_true(kept);
            continue;
        }
        others++;
        chosen += kept;
        if (kept)
            least = fminf(least, each);
        else
            most = fmaxf(most, each);
    }
    uint32_t want = rule >= AQ_KV_PROFILE_FREQUENT ? l->frequent : 0;
    assert_int_equal(chosen, want < others ? want : others);
    assert_true(least >= most);
    for (uint32_t i = 1; i < count; i++)
        assert_true(keep[i] > keep[i - 1]);
}

static void two_sums_recover_the_mass_of_the_matrix(void **state)
{
    uint32_t had[5] = {0};
    for (uint64_t seed = 0; seed < DRAWS; seed++) {
        static struct head h;
        struct aq_kv_options o = {.mass_given = true,
                                  .mass = (10 + (double)aq_prng_below(seed, 1, 0, 90)) / 100,
                                  .frequent = share((double)aq_prng_below(seed, 1, 1, 50) / 100),
                                  .local = slots(1 + (uint32_t)aq_prng_below(seed, 1, 2, 30)),
                                  .sinks_given = true,
                                  .sinks = (uint32_t)aq_prng_below(seed, 1, 3, 6)};
        struct aq_kv_policy p = resolved(o);
        struct aq_kv_limits l;
        h.n = 1 + (uint32_t)aq_prng_below(seed, 1, 4, LONGEST);
        aq_kv_policy_limits(&l, &p, h.n, 10, 0, 1);
        draw_head(&h, seed, &l);
        uint32_t keep[LONGEST];
        enum aq_kv_profile want = AQ_KV_PROFILE_FULL;
        for (int rule = AQ_KV_PROFILE_FULL; rule >= 0; rule--) {
            uint32_t count = aq_kv_profile_keep(keep, &h.sums, &l, (enum aq_kv_profile)rule);
            double mass = aq_kv_profile_mass(&h.sums, &l, (enum aq_kv_profile)rule);
            check_kept(&h, &l, keep, count, (enum aq_kv_profile)rule);
            assert_true(fabs(mass - mass_of_matrix(&h, &l, keep, count, (enum aq_kv_profile)rule)) <
                        1e-12);
            if (mass >= l.mass)
                want = (enum aq_kv_profile)rule;
        }
        assert_int_equal(aq_kv_profile_choose(&h.sums, &l), want);
        had[want]++;
    }
    for (int rule = 0; rule < 5; rule++)
        assert_true(had[rule] > DRAWS / 100);
}

static void of_equal_keys_the_later_ones_stay(void **state)
{
    float all[8], band[8] = {0};
    uint8_t classes[8] = {0};
    uint32_t keep[8];
    for (uint32_t j = 0; j < 8; j++)
        all[j] = (float)(8 - j) / 8;
    struct aq_kv_sums s = {all, band, classes, 8};
    struct aq_kv_limits l = {
        .profiled = true, .heavy_prompt = 8, .frequent = 3, .local = 2, .mass = 0.5};
    assert_int_equal(aq_kv_profile_keep(keep, &s, &l, AQ_KV_PROFILE_FREQUENT), 3);
    assert_true(keep[0] == 5 && keep[1] == 6 && keep[2] == 7);
    assert_int_equal(aq_kv_profile_keep(keep, &s, &l, AQ_KV_PROFILE_LOCAL), 5);
    assert_int_equal(keep[0], 3);
    all[1] = NAN; /* of which nothing is known: it is the last to go */
    l.frequent = 1;
    assert_int_equal(aq_kv_profile_keep(keep, &s, &l, AQ_KV_PROFILE_FREQUENT), 1);
    assert_int_equal(keep[0], 1);
    assert_int_equal(aq_kv_profile_choose(&s, &l), AQ_KV_PROFILE_FREQUENT + 2);
}

/* A cap: the last rule that keeps no more, up to the one that keeps enough; or of the first rule
 * the first tokens and the newest. */
static void heads_that_want_more_than_the_cap_take_an_earlier_rule(void **state)
{
    uint32_t fell = 0, clipped = 0;
    for (uint64_t seed = 0; seed < DRAWS; seed++) {
        static struct head h;
        uint32_t keep[LONGEST], without[LONGEST];
        struct aq_kv_options o = {.mass_given = true,
                                  .mass = (10 + (double)aq_prng_below(seed, 7, 0, 91)) / 100,
                                  .frequent = share((double)aq_prng_below(seed, 7, 1, 50) / 100),
                                  .sinks_given = true,
                                  .sinks = (uint32_t)aq_prng_below(seed, 7, 2, 4),
                                  .budget = slots(4 + (uint32_t)aq_prng_below(seed, 7, 3, 50))};
        struct aq_kv_policy p = resolved(o);
        struct aq_kv_limits l, whole;
        h.n = o.budget.slots + 1 + (uint32_t)aq_prng_below(seed, 7, 4, LONGEST - o.budget.slots);
        aq_kv_policy_limits(&l, &p, h.n, 10, 0, 1);
        assert_int_equal(l.heavy_prompt, o.budget.slots);
        whole = l;
        whole.heavy_prompt = h.n;
        draw_head(&h, seed, &l);
        enum aq_kv_profile want = aq_kv_profile_choose(&h.sums, &whole), rule = want;
        uint32_t count = aq_kv_profile_keep(without, &h.sums, &whole, rule);
        for (; rule > AQ_KV_PROFILE_SPECIAL && count > o.budget.slots; fell++)
            count = aq_kv_profile_keep(without, &h.sums, &whole, --rule);
        assert_int_equal(aq_kv_profile_choose(&h.sums, &l), rule);
        uint32_t found = aq_kv_profile_keep(keep, &h.sums, &l, rule), at = 0;
        assert_int_equal(found, count < o.budget.slots ? count : o.budget.slots);
        clipped += found < count;
        for (uint32_t i = 0; i < count; i++) {
            if (without[i] < l.sinks || i >= count - found + l.sinks)
                assert_int_equal(keep[at++], without[i]);
        }
        assert_int_equal(at, found);
    }
    assert_true(fell > DRAWS / 4 && clipped > 10);
}

/* ---- rows ---- */

/* Scores, classes and positions at random: the victim is the lowest of those that nothing keeps,
 * and there is one only where they are more than `frequent`. */
static void the_least_of_too_many_gives_way(void **state)
{
    uint32_t gone = 0;
    for (uint64_t seed = 0; seed < DRAWS; seed++) {
        float score[LONGEST];
        uint32_t position[LONGEST], len = (uint32_t)aq_prng_below(seed, 2, 0, LONGEST + 1), at = 0;
        struct aq_kv_limits l = {.profiled = true,
                                 .sinks = (uint32_t)aq_prng_below(seed, 2, 1, 5),
                                 .frequent = (uint32_t)aq_prng_below(seed, 2, 2, 40),
                                 .local = 1 + (uint32_t)aq_prng_below(seed, 2, 3, 40)};
        enum aq_kv_profile rule = (enum aq_kv_profile)aq_prng_below(seed, 2, 4, 5);
        for (uint32_t i = 0; i < len; i++) {
            position[i] = at += 1 + (uint32_t)aq_prng_below(seed, 3, i, 2);
            score[i] = (float)aq_prng_below(seed, 4, i, 5);
            if (aq_prng_below(seed, 5, i, 6) == 0)
                score[i] = INFINITY;
        }
        for (uint32_t i = 0; i + 1 < len; i++) { /* slots are in no order */
            uint32_t j = i + (uint32_t)aq_prng_below(seed, 6, i, len - i), was = position[i];
            position[i] = position[j];
            position[j] = was;
        }
        uint32_t next = at + 1, others = 0, want = UINT32_MAX;
        uint32_t newest = rule == AQ_KV_PROFILE_LOCAL ? l.local : 1;
        for (uint32_t i = 0; i < len; i++) {
            if (position[i] < l.sinks || next - position[i] < newest || isinf(score[i]))
                continue;
            others++;
            if (want == UINT32_MAX || score[i] < score[want] ||
                (score[i] == score[want] && position[i] < position[want]))
                want = i;
        }
        if (rule == AQ_KV_PROFILE_FULL ||
            others <= (rule >= AQ_KV_PROFILE_FREQUENT ? l.frequent : 0))
            want = UINT32_MAX;
        gone += want != UINT32_MAX;
        assert_int_equal(aq_kv_profile_victim(score, position, len, &l, rule, next), want);
    }
    assert_true(gone > DRAWS / 4 && gone < DRAWS);
}

static void classes_are_kept_by_the_rules_that_name_them(void **state)
{
    for (int rule = 0; rule < 5; rule++) {
        enum aq_kv_profile r = (enum aq_kv_profile)rule;
        assert_false(aq_kv_profile_safe(r, 0));
        assert_int_equal(aq_kv_profile_safe(r, AQ_KV_CLASS_SPECIAL), rule < 4);
        assert_int_equal(aq_kv_profile_safe(r, AQ_KV_CLASS_PUNCT), rule > 0 && rule < 4);
    }
    const uint8_t of[] = {0, AQ_KV_CLASS_PUNCT};
    struct aq_kv_classes c = {of, 2};
    assert_true(aq_kv_class_of(&c, 1) == AQ_KV_CLASS_PUNCT && aq_kv_class_of(&c, 2) == 0);
}

/* ---- what counts before a prompt has run ---- */

static void limits_are_those_of_heads_that_keep_all(void **state)
{
    struct aq_kv_policy p = resolved((struct aq_kv_options){0});
    struct aq_kv_limits l;
    aq_kv_policy_limits(&l, &p, 101, 10, 0, 1);
    assert_true(l.profiled && l.frequent == 31 && l.local == 30 && l.sinks == 4 && l.mass == 0.95);
    for (uint32_t prompt = 1; prompt <= 130; prompt++) {
        for (uint32_t more = 0; more < 70; more++) {
            struct aq_kv_most most;
            struct aq_kv_lengths of = {prompt, prompt + more, more, prompt};
            aq_kv_policy_limits(&l, &p, prompt, more, 0, 1);
            assert_true(aq_kv_limits_differ(&l, prompt) && aq_kv_limits_drop(&l, prompt, more));
            assert_int_equal(aq_kv_limits_held(&l, prompt, prompt + more), prompt + more);
            uint32_t runs = aq_kv_limits_runs(&l, 3, prompt, prompt + more);
            assert_int_equal(runs, prompt / 32 + (31 + more + 31) / 32);
            assert_false(aq_kv_policy_most(&most, &p, &of, 1, 3));
            assert_true(most.slots == prompt + more && most.head == prompt + more);
            assert_true(aq_kv_policy_runs(&p, &most, 3) >= runs);
            assert_true(aq_kv_policy_runs(&p, &most, 3) <= (prompt + more) / 32 + 2);
        }
    }
    uint64_t pairs = 100 * 101 / 2, near = 30 * 100 - 30 * 29 / 2;
    aq_kv_policy_limits(&l, &p, 100, 10, 0, 1);
    assert_int_equal(aq_kv_policy_stat_pairs(&p, &l, 100), pairs + near);
}

/* Of a prompt a head keeps the cap, and new tokens come on top. */
static void a_cap_is_what_counts_before_a_prompt_has_run(void **state)
{
    const struct aq_kv_amount caps[] = {slots(5), slots(40), slots(64), share(0.3)};
    for (size_t i = 0; i < AQ_ARRAY_LEN(caps); i++) {
        struct aq_kv_policy p = resolved((struct aq_kv_options){.budget = caps[i]});
        struct aq_kv_most most;
        struct aq_kv_limits l;
        uint32_t highest = 0, longest = 130, more_max = 69, runs_max = 0;
        for (uint32_t prompt = 1; prompt <= longest; prompt++) {
            uint32_t cap = caps[i].unit == AQ_KV_SLOTS ? caps[i].slots : prompt * 3 / 10;
            uint32_t kept = cap < 1 ? 1 : cap < prompt ? cap : prompt;
            for (uint32_t more = 0; more <= more_max; more++) {
                aq_kv_policy_limits(&l, &p, prompt, more, 0, 1);
                assert_int_equal(aq_kv_limits_held(&l, prompt, prompt + more), kept + more);
                uint32_t runs = aq_kv_limits_runs(&l, 3, prompt, prompt + more);
                assert_int_equal(runs, kept / 32 + (31 + more + 31) / 32);
                highest = kept + more > highest ? kept + more : highest;
                runs_max = runs > runs_max ? runs : runs_max;
            }
        }
        struct aq_kv_lengths of = {longest, longest + more_max, more_max, 1};
        assert_false(aq_kv_policy_most(&most, &p, &of, 1, 3));
        assert_int_equal(most.slots, highest);
        assert_int_equal(most.head, highest);
        assert_in_range(aq_kv_policy_runs(&p, &most, 3), runs_max, runs_max + 1);
        of.new_max = 0; /* a short prompt may be followed by so many */
        aq_kv_policy_most(&most, &p, &of, 1, 3);
        assert_int_equal(most.slots, longest + more_max);
    }
}

static void all_of_the_mass_is_the_full_cache(void **state)
{
    struct aq_kv_policy p = resolved((struct aq_kv_options){.mass_given = true, .mass = 1});
    struct aq_kv_limits l;
    aq_kv_policy_limits(&l, &p, 100, 50, 0, 1);
    assert_false(l.profiled || aq_kv_limits_differ(&l, 100) || aq_kv_limits_drop(&l, 100, 50));
    assert_int_equal(aq_kv_limits_held(&l, 100, 150), 150);
    p = resolved((struct aq_kv_options){.mass_given = true, .mass = 1, .budget = slots(100)});
    aq_kv_policy_limits(&l, &p, 100, 50, 0, 1);
    assert_false(l.profiled);
    aq_kv_policy_limits(&l, &p, 101, 50, 0, 1);
    assert_true(l.profiled && l.heavy_prompt == 100);
}

/* ---- options ---- */

static void rows_say_what_they_are(void **state)
{
    char text[160];
    struct aq_kv_policy p = resolved((struct aq_kv_options){0});
    assert_string_equal(aq_kv_policy_text(text, sizeof(text), &p),
                        "fastgen: mass 0.95, frequent 30%, local 30%, sinks 4");
    assert_true(aq_kv_policy_ragged(&p) && aq_kv_policy_profiled(&p) && aq_kv_policy_scores(&p));
    assert_false(aq_kv_policy_grows(&p) || aq_kv_policy_values(&p));
    p = resolved((struct aq_kv_options){.mass_given = true,
                                        .mass = 0.9,
                                        .frequent = slots(0),
                                        .local = slots(64),
                                        .sinks_given = true});
    assert_string_equal(aq_kv_policy_text(text, sizeof(text), &p),
                        "fastgen: mass 0.9, frequent 0, local 64");
    p = resolved((struct aq_kv_options){.budget = share(0.2)});
    assert_string_equal(aq_kv_policy_text(text, sizeof(text), &p),
                        "fastgen: budget 20%, mass 0.95, frequent 30%, local 30%, sinks 4");
    p = resolved((struct aq_kv_options){.budget = share(1)}); /* no cap */
    assert_true(p.budget.unit == AQ_KV_UNSET);
}

static void refused(struct aq_kv_options o, const char *with)
{
    struct aq_kv_policy p;
    struct aq_err err = {0};
    if (!o.policy)
        o.policy = "fastgen";
    if (aq_kv_policy_resolve(&p, &o, &err) != -EINVAL)
        fail_msg("expected '%s'", with);
    if (!strstr(err.text, with))
        fail_msg("expected '%s' in '%s'", with, err.text);
}

static void options_that_do_not_go_with_rules_are_refused(void **state)
{
    const struct {
        struct aq_kv_options o;
        const char *name;
    } others[] = {
        {{.heavy = slots(64)}, "--kv-heavy"},
        {{.recent = share(0.5)}, "--kv-recent"},
        {{.grace = 3}, "--kv-grace"},
        {{.decay = 0.5}, "--kv-decay"},
        {{.group_given = true}, "--kv-group"},
        {{.heads_given = true}, "--kv-heads"},
        {{.floor = slots(2)}, "--kv-floor"},
        {{.layers_given = true}, "--kv-layers"},
        {{.decode_given = true}, "--kv-decode"},
        {{.drop = slots(2)}, "--kv-drop"},
        {{.history_given = true}, "--kv-history"},
        {{.observe_given = true, .observe = 4}, "--kv-observe"},
        {{.low = 0.5}, "--kv-low"},
        {{.cross_layer_given = true}, "--kv-cross-layer"},
        {{.read_given = true, .read = 96}, "--kv-read"},
    };
    for (size_t i = 0; i < AQ_ARRAY_LEN(others); i++) {
        char text[80];
        snprintf(text, sizeof(text), "--kv-policy fastgen: %s does not go with it", others[i].name);
        refused(others[i].o, text);
    }
    refused((struct aq_kv_options){.budget = slots(4)},
            "--kv-budget 4: each head keeps the first 4 tokens, and nothing would be left");
    refused((struct aq_kv_options){.mass_given = true}, "--kv-mass 0: expected the part");
    refused((struct aq_kv_options){.mass_given = true, .mass = 1.01}, "--kv-mass 1.01");
    refused((struct aq_kv_options){.mass_given = true, .mass = NAN}, "--kv-mass");
    refused((struct aq_kv_options){.local = slots(0)}, "--kv-local 0: the newest token");
    refused((struct aq_kv_options){.local = share(0)}, "--kv-local 0");
    refused((struct aq_kv_options){.local = share(1.5)}, "--kv-local: expected a share of at most");
    refused((struct aq_kv_options){.frequent = share(2)}, "--kv-frequent: expected a share");
    refused((struct aq_kv_options){.policy = "h2o", .budget = slots(9), .mass_given = true},
            "--kv-policy h2o: --kv-mass does not go with it: its heads have no rules");
    refused((struct aq_kv_options){.policy = "snapkv", .budget = slots(90), .local = slots(9)},
            "--kv-policy snapkv: --kv-local does not go with it");
    refused((struct aq_kv_options){.frequent = slots(9), .policy = "full"},
            "--kv-policy full: --kv-frequent does not go with it");
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(two_sums_recover_the_mass_of_the_matrix),
    cmocka_unit_test(of_equal_keys_the_later_ones_stay),
    cmocka_unit_test(heads_that_want_more_than_the_cap_take_an_earlier_rule),
    cmocka_unit_test(the_least_of_too_many_gives_way),
    cmocka_unit_test(classes_are_kept_by_the_rules_that_name_them),
    cmocka_unit_test(limits_are_those_of_heads_that_keep_all),
    cmocka_unit_test(a_cap_is_what_counts_before_a_prompt_has_run),
    cmocka_unit_test(all_of_the_mass_is_the_full_cache),
    cmocka_unit_test(rows_say_what_they_are),
    cmocka_unit_test(options_that_do_not_go_with_rules_are_refused),
};

int main(void)
{
    return cmocka_run_group_tests(tests, NULL, NULL) ? 1 : 0;
}
