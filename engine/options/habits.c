/* SPDX-License-Identifier: Apache-2.0
 * engine/options/habits.c - what flags of other programs become.  FlexGen's are
 * those of its main program (FMInference/FlexLLMGen at 004ffef); the hh- ones are of H2O's fork. */
#include "engine/options/habits.h"

#include "base/units.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* An option of ours in place of the flag `label`. */
static int put(struct aq_habits *h, const char *label, const char *name, const char *text,
               struct aq_err *reterr)
{
    for (uint32_t i = 0; i < h->count; i++) {
        if (strcmp(h->word[i].name, name) == 0 && strcmp(h->word[i].text, text) == 0)
            return 0; /* two flags may need the same option */
    }
    if (h->count == h->capacity) {
        uint32_t capacity = 2 * h->capacity + 16;
        struct aq_habit_word *word = realloc(h->word, capacity * sizeof(*word));
        if (!word)
            return aq_error_memory(reterr, "command line");
        h->word = word;
        h->capacity = capacity;
    }
    struct aq_habit_word *word = &h->word[h->count++];
    *word = (struct aq_habit_word){strdup(name), strdup(text), strdup(label)};
    h->used = true;
    return word->name && word->text && word->label ? 0 : aq_error_memory(reterr, "command line");
}

static void note(struct aq_habits *h, const char *label, const char *why)
{
    aq_buf_printf(&h->notes, "%s has no effect here: %s\n", label, why);
}

/* "name=text name=text", %s being the value. */
static int put_all(struct aq_habits *h, const char *label, const char *becomes, const char *value,
                   struct aq_err *reterr)
{
    int rc = 0;
    for (const char *at = becomes; *at && rc == 0;) {
        size_t n = strcspn(at, " "), name = strcspn(at, "=");
        char word[64], *place;
        struct aq_buf text = {0};
        assert(n < sizeof(word) && name < n);
        snprintf(word, sizeof(word), "%.*s", (int)n, at);
        word[name] = '\0';
        place = strstr(word + name + 1, "%s");
        if (place)
            *place = '\0';
        aq_buf_printf(&text, "%s%s", word + name + 1, place ? value : "");
        rc = text.failed ? aq_error_memory(reterr, "command line")
                         : put(h, label, word, text.data, reterr);
        aq_buf_close(&text);
        at += n + strspn(at + n, " ");
    }
    return rc;
}

/* Whether it is one of "a|b|c". */
static bool is_one_of(const char *value, const char *words)
{
    size_t n = strlen(value);
    for (const char *at = words; at && *at; at += strcspn(at, "|"), at += *at == '|') {
        if (strcspn(at, "|") == n && strncmp(at, value, n) == 0)
            return true;
    }
    return false;
}

int aq_habits_add(struct aq_habits *h, const struct aq_habit *habit, const char *label,
                  const char *value, struct aq_err *reterr)
{
    bool off = habit->takes == AQ_HABIT_SWITCH && strcmp(value, "off") == 0;
    const char *becomes = off ? habit->becomes_off : habit->becomes;
    if (is_one_of(value, habit->neutral))
        return 0;
    if (habit->translate)
        return habit->translate(h, label, value, reterr);
    if (becomes)
        return put_all(h, label, becomes, value, reterr);
    if (off && habit->becomes) /* not asked for, and not done */
        return 0;
    if (!habit->idle)
        return aq_error(reterr, -EINVAL, "'%s' is not an option here: %s", label, habit->why);
    note(h, label, habit->why);
    return 0;
}

/* ---- FlexGen ---------------------------------------------------------------------------- */

int aq_habit_model(struct aq_habits *h, const char *label, const char *value, struct aq_err *reterr)
{
    free(h->model);
    h->model = strdup(value);
    return h->model ? 0 : aq_error_memory(reterr, "%s", label);
}

int aq_habit_path(struct aq_habits *h, const char *label, const char *value, struct aq_err *reterr)
{
    h->dummy = strcmp(value, "_DUMMY_") == 0;
    if (!h->dummy)
        note(h, label, "the checkpoint itself is read, and no converted copy of it is needed");
    return 0;
}

int aq_habit_verbose(struct aq_habits *h, const char *label, const char *value,
                     struct aq_err *reterr)
{
    return strcmp(value, "0") == 0 ? put(h, label, "quiet", "on", reterr) : 0;
}

int aq_habit_log_file(struct aq_habits *h, const char *label, const char *value,
                      struct aq_err *reterr)
{
    if (strcmp(value, "auto") != 0)
        return put(h, label, "report", value, reterr);
    note(h, label, "a log is written where --report FILE says so");
    return 0;
}

static int wrong_percent(const char *label, const char *value, struct aq_err *reterr)
{
    return aq_error(reterr, -EINVAL,
                    "%s: expected six percentages, of weights, KV cache and hidden states on "
                    "device and host each, of which no pair is above 100 (the rest is on disk), "
                    "found '%s'",
                    label, value);
}

int aq_habit_percent(struct aq_habits *h, const char *label, const char *value,
                     struct aq_err *reterr)
{
    double x[6];
    const char *at = value;
    for (int i = 0; i < 6; i++) {
        char *end = NULL;
        x[i] = strtod(at, &end);
        bool fits = x[i] >= 0 && x[i] <= 100 - (i % 2 ? x[i - 1] : 0);
        if (end == at || !fits)
            return wrong_percent(label, value, reterr);
        at = end + strspn(end, " ,");
    }
    if (*at)
        return wrong_percent(label, value, reterr);
    char text[160];
    snprintf(text, sizeof(text), "weights=%g/%g/%g kv=%g/%g/%g hidden=%g/%g/%g", x[0], x[1],
             100 - x[0] - x[1], x[2], x[3], 100 - x[2] - x[3], x[4], x[5], 100 - x[4] - x[5]);
    h->percent = true;
    h->partial_kv = x[2] < 100;
    return put(h, label, "placement", text, reterr);
}

int aq_habit_cpu(struct aq_habits *h, const char *label, const char *value, struct aq_err *reterr)
{
    h->cpu_attention = strcmp(value, "on") == 0;
    return h->cpu_attention ? put(h, label, "attention", "host", reterr) : 0;
}

int aq_habit_hh_ratio(struct aq_habits *h, const char *label, const char *value,
                      struct aq_err *reterr)
{
    double ratio;
    if (!aq_parse_real(value, &ratio) || !(ratio > 0 && ratio <= 1))
        return aq_error(reterr, -EINVAL,
                        "%s: expected the share of the prompt that is kept as heavy tokens and "
                        "again as recent ones, above 0 and at most 1, found '%s'",
                        label, value);
    if (ratio >= 1) /* its default: everything is kept */
        return 0;
    char text[32];
    snprintf(text, sizeof(text), "%.9g%%", 100 * ratio);
    h->hh = true;
    int rc = put(h, label, "kv-policy", "h2o:flexgen", reterr);
    return rc < 0 ? rc : put(h, label, "kv-budget", text, reterr);
}

int aq_habit_hh_all(struct aq_habits *h, const char *label, const char *value,
                    struct aq_err *reterr)
{
    (void)label;
    (void)reterr;
    h->hh_all = strcmp(value, "on") == 0;
    return 0;
}

/* FlexGen decodes N - 1 passes and projects the others; here there are as many, in three parts. */
int aq_habit_cut_gen_len(struct aq_habits *h, const char *label, const char *value,
                         struct aq_err *reterr)
{
    uint64_t n;
    char text[32];
    if (!aq_parse_u64(value, &n) || n < 2 || n > 1000000)
        return aq_error(reterr, -EINVAL, "%s: expected a number of tokens from 2 on, found '%s'",
                        label, value);
    snprintf(text, sizeof(text), "%llu", (unsigned long long)((n - 1 + 2) / 3));
    return put(h, label, "decode-passes", text, reterr);
}

int aq_habit_debug_mode(struct aq_habits *h, const char *label, const char *value,
                        struct aq_err *reterr)
{
    bool breakdown = strcmp(value, "breakdown") == 0;
    if (!breakdown && strcmp(value, "fewer_batch") != 0)
        return aq_error(reterr, -EINVAL, "%s: expected fewer_batch or breakdown, found '%s'", label,
                        value);
    int rc = put(h, label, "decode-passes", "1", reterr);
    return rc < 0 || !breakdown ? rc : put(h, label, "executor", "serial", reterr);
}

/* ---- others ------------------------------------------------------------------------------ */

/* A bare number is of GiB in some programs and of MB in others. */
static int put_memory(struct aq_habits *h, const char *label, const char *option, const char *value,
                      struct aq_err *reterr)
{
    if (strspn(value, "0123456789.") == strlen(value))
        return aq_error(reterr, -EINVAL,
                        "'%s %s' is not an option here: --%s takes a size with its unit, such as "
                        "12GiB",
                        label, value, option);
    return put(h, label, option, value, reterr);
}

int aq_habit_gpu_memory(struct aq_habits *h, const char *label, const char *value,
                        struct aq_err *reterr)
{
    return put_memory(h, label, "device-memory", value, reterr);
}

int aq_habit_cpu_memory(struct aq_habits *h, const char *label, const char *value,
                        struct aq_err *reterr)
{
    return put_memory(h, label, "host-memory", value, reterr);
}

/* ---- the whole line ---------------------------------------------------------------------- */

static int put_default(struct aq_habits *h, const char *name, const char *text,
                       bool (*given)(void *user, const char *option), void *user,
                       struct aq_err *reterr)
{
    return given(user, name) ? 0 : put(h, "bench flexgen", name, text, reterr);
}

/* FlexGen's own defaults, but for the model.  Its weights of ones are random ones here, as tokens
 * of equal weights would tell nothing. */
static int put_defaults(struct aq_habits *h, bool (*given)(void *user, const char *option),
                        void *user, struct aq_err *reterr)
{
    static const struct {
        const char *name, *text;
    } defaults[] = {{"prompt-len", "512"},
                    {"gen-len", "32"},
                    {"micro-batch", "4"},
                    {"micro-batches", "1"},
                    {"repeats", "1"}};
    const char *slash = h->model ? strrchr(h->model, '/') : NULL;
    int rc = 0;
    if (h->model && !given(user, "shape")) {
        rc = put(h, "bench flexgen", h->dummy ? "shape" : "model",
                 h->dummy && slash ? slash + 1 : h->model, reterr);
        if (rc == 0 && h->dummy)
            rc = put_default(h, "random-weights", "1", given, user, reterr);
    }
    for (size_t i = 0; rc == 0 && i < sizeof(defaults) / sizeof(defaults[0]); i++)
        rc = put_default(h, defaults[i].name, defaults[i].text, given, user, reterr);
    if (rc == 0 && !h->percent)
        rc = put_default(h, "placement", "weights=100/0/0 kv=100/0/0 hidden=100/0/0", given, user,
                         reterr);
    if (rc == 0 && h->partial_kv && !h->cpu_attention)
        rc = put_default(h, "attention", "device", given, user, reterr);
    return rc;
}

int aq_habits_settle(struct aq_habits *h, bool (*given)(void *user, const char *option), void *user,
                     struct aq_err *reterr)
{
    if (h->hh && !h->hh_all)
        aq_buf_puts(&h->notes, "without --hh-all H2O's cache grows while it decodes; h2o:flexgen "
                               "drops a token for each new one, as with it\n");
    return h->flexgen ? put_defaults(h, given, user, reterr) : 0;
}

void aq_habits_close(struct aq_habits *h)
{
    for (uint32_t i = 0; i < h->count; i++) {
        free(h->word[i].name);
        free(h->word[i].text);
        free(h->word[i].label);
    }
    free(h->word);
    free(h->model);
    aq_buf_close(&h->notes);
    *h = (struct aq_habits){0};
}
