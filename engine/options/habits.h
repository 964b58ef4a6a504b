/* SPDX-License-Identifier: Apache-2.0
 * engine/options/habits.h - flags of other programs on our command lines: each becomes options of
 * ours, has nothing to say here, or is refused with what to do instead.  Owns the table of them and
 * what they become; knows nothing of words that have no habit.  Used by words.c, and by table.c for
 * its messages.
 */
#ifndef AQ_ENGINE_OPTIONS_HABITS_H
#define AQ_ENGINE_OPTIONS_HABITS_H

#include "base/buf.h"
#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>

enum aq_habit_takes {
    AQ_HABIT_FLAG,   /* no value */
    AQ_HABIT_VALUE,  /* one */
    AQ_HABIT_SWITCH, /* a following word for true or false, or none */
    AQ_HABIT_SIX,    /* as many numbers, in one word or in six */
};

struct aq_habits;
struct aq_habit {
    const char *name;
    enum aq_habit_takes takes;
    /* "compute=f16 context=%s": options that it becomes, %s its value; a switch that is on */
    const char *becomes;
    const char *becomes_off; /* of a switch that is off; NULL: nothing */
    const char *neutral;     /* "1|none": values that ask for what is done anyway */
    /* Where it becomes nothing: why it is refused, or why it has no effect (idle). */
    const char *why;
    bool idle;
    bool flexgen; /* only of `bench flexgen`, where it comes before an option of the same name */
    /* Where more is to be said than `becomes` can. */
    int (*translate)(struct aq_habits *h, const char *label, const char *value,
                     struct aq_err *reterr);
};

extern const struct aq_habit aq_habit_table[];
extern const uint32_t aq_habit_count;

/* By its name, '-' and '_' alike; NULL: none.  `flexgen`: of FlexGen's own flags alone. */
const struct aq_habit *aq_habit_find(const char *name, bool flexgen);
/* The one flag of FlexGen's whose name begins so, as its parser allows; NULL: none or several. */
const struct aq_habit *aq_habit_abbreviated(const char *name);
/* "compress-cache, compress-weight": what an abbreviation may mean; "" for none. */
void aq_habit_candidates(const char *name, char *text, size_t bytes);

/* ---- those of one command line ---- */

/* An option that a flag became; label: the flag as it was written, for messages. */
struct aq_habit_word {
    char *name, *text, *label;
};

struct aq_habits {
    bool flexgen; /* bench flexgen: FlexGen's defaults hold */
    bool used;    /* the native command is worth printing */
    bool dummy, cpu_attention, partial_kv, hh, hh_all, percent;
    char *model;
    struct aq_habit_word *word;
    uint32_t count, capacity;
    struct aq_buf notes; /* lines */
};

/* Takes one flag with its value ("on" and "off" of a flag or switch; numbers separated by blanks).
 * -EINVAL: refused, with the reason.  Options that it becomes are appended to h->word. */
int aq_habits_add(struct aq_habits *h, const struct aq_habit *habit, const char *label,
                  const char *value, struct aq_err *reterr);
/* What follows from several flags together, and FlexGen's defaults, of options for which `given`
 * says no. */
int aq_habits_settle(struct aq_habits *h, bool (*given)(void *user, const char *option), void *user,
                     struct aq_err *reterr);
void aq_habits_close(struct aq_habits *h);

/* ---- what the table's rows call ---- */

typedef int aq_habit_fn(struct aq_habits *h, const char *label, const char *value,
                        struct aq_err *reterr);
aq_habit_fn aq_habit_model, aq_habit_path, aq_habit_verbose, aq_habit_log_file, aq_habit_percent,
    aq_habit_cpu, aq_habit_hh_ratio, aq_habit_hh_all, aq_habit_cut_gen_len, aq_habit_debug_mode,
    aq_habit_gpu_memory, aq_habit_cpu_memory;

#endif
