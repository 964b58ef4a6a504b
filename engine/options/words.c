/* SPDX-License-Identifier: Apache-2.0
 * engine/options/words.c - command-line words and --config files on their way into the options
 * table. */
#include "base/json.h"
#include "base/yaml.h"
#include "engine/options/give.h"
#include "engine/options/habits.h"
#include "engine/options/help_topics.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The words of a command, its options resolved, values still text. */
struct word {
    const struct aq_option *option;
    char label[64]; /* as it was written, with dashes */
    const char *text;
};

struct words {
    const struct aq_command *command;
    struct word *word;
    uint32_t count, capacity;
    struct aq_habits habits; /* flags of other programs, and the texts of what they became */
    const char **config;     /* --config files in order */
    uint32_t config_count;
    bool help;
    int arg_count, next;
    char **args;
};

enum { SOURCE_COMMAND_LINE = 1u << 30 };
/* Options that a flag of another program becomes at most, and those that none was given for. */
enum { HABIT_WORDS_MAX = 2, DEFAULT_WORDS_MAX = 16 };

static void add_word(struct words *w, const struct aq_option *option, const char *label,
                     const char *text)
{
    assert(w->count < w->capacity);
    struct word *word = &w->word[w->count++];
    word->option = option;
    word->text = text;
    snprintf(word->label, sizeof(word->label), "%s", label);
}

/* Whether a word is a flag of this command: then it is hardly meant as another flag's value. */
static bool is_known_flag(const struct words *w, const char *word)
{
    const struct aq_option *option;
    char name[64];
    if (strncmp(word, "--", 2) != 0 || !word[2])
        return false;
    size_t n = strcspn(word + 2, "=");
    if (n >= sizeof(name))
        return false;
    memcpy(name, word + 2, n);
    name[n] = '\0';
    return strcmp(name, "config") == 0 || strcmp(name, "help") == 0 ||
           aq_option_find(&option, w->command, name, "--", NULL) == 0 ||
           aq_habit_find(name, w->habits.flexgen);
}

/* The value behind a flag: what stands after '=', or the next word. */
static int take_value(struct words *w, const char *label, const char *argument, const char *after,
                      const char **ret, struct aq_err *reterr)
{
    if (after) {
        *ret = after;
        return 0;
    }
    if (w->next == w->arg_count)
        return aq_error(reterr, -EINVAL, "%s: expected %s, found the end of the line", label,
                        argument);
    const char *word = w->args[w->next];
    if (is_known_flag(w, word))
        return aq_error(reterr, -EINVAL, "%s: expected %s, found the flag '%s'", label, argument,
                        word);
    w->next++;
    *ret = word;
    return 0;
}

static bool is_on_off(const char *word)
{
    return strcmp(word, "on") == 0 || strcmp(word, "off") == 0 || strcmp(word, "true") == 0 ||
           strcmp(word, "false") == 0;
}

/* A flag without '=': on, or what a following "on" or "off" says. */
static const char *flag_value(struct words *w, const struct aq_option *option)
{
    if (option->kind == AQ_OPTION_BOOL && w->next < w->arg_count && is_on_off(w->args[w->next]))
        return w->args[w->next++];
    return "on";
}

static const char *argument_of(const struct aq_option *option)
{
    return option->argument ? option->argument : "a value";
}

/* --no-name for a boolean `name`, or a choice that may be off; false when it is none. */
static bool find_negated(const struct words *w, const char *name, const struct aq_option **ret)
{
    const struct aq_option *option;
    if (strncmp(name, "no-", 3) != 0 && strncmp(name, "no_", 3) != 0)
        return false;
    if (aq_option_find(&option, w->command, name + 3, "--", NULL) < 0)
        return false;
    if (option->kind != AQ_OPTION_BOOL && option->kind != AQ_OPTION_CHOICE_ON &&
        !(option->kind == AQ_OPTION_ENUM && strstr(option->choices, "on|off")))
        return false;
    *ret = option;
    return true;
}

/* ---- flags of other programs ------------------------------------------------------------ */

/* What the flags read since the first `from` became joins the words, at the place of the flags. */
static int add_habit_words(struct words *w, uint32_t from, struct aq_err *reterr)
{
    for (uint32_t i = from; i < w->habits.count; i++) {
        const struct aq_habit_word *word = &w->habits.word[i];
        const struct aq_option *option;
        int rc = aq_option_find(&option, w->command, word->name, "--", reterr);
        if (rc < 0)
            return aq_error_prefix(reterr, "%s", word->label);
        add_word(w, option, word->label, word->text);
    }
    return 0;
}

/* Python's argparse and YAML have more words for it than we. */
static const char *switch_word(const char *word)
{
    static const char *const on[] = {"on", "true", "True", "yes", "y", "t", "1"};
    static const char *const off[] = {"off", "false", "False", "no", "n", "f", "0"};
    for (size_t i = 0; i < AQ_ARRAY_LEN(on); i++) {
        if (strcmp(word, on[i]) == 0)
            return "on";
        if (strcmp(word, off[i]) == 0)
            return "off";
    }
    return NULL;
}

static bool is_number(const char *word)
{
    return *word && strspn(word, "0123456789., ") == strlen(word);
}

/* Six numbers, in one word or in several, as one text. */
static void take_numbers(struct words *w, const char *after, struct aq_buf *ret)
{
    aq_buf_puts(ret, after ? after : "");
    for (int i = 0; !after && i < 6 && w->next < w->arg_count && is_number(w->args[w->next]); i++)
        aq_buf_printf(ret, "%s%s", i ? " " : "", w->args[w->next++]);
}

static int read_habit(struct words *w, const struct aq_habit *habit, const char *label,
                      const char *after, struct aq_err *reterr)
{
    const char *value = "on";
    struct aq_buf numbers = {0};
    uint32_t from = w->habits.count;
    int rc = 0;
    if (habit->takes == AQ_HABIT_FLAG && after) {
        rc = aq_error(reterr, -EINVAL, "%s: expected no value, found '%s'", label, after);
    } else if (habit->takes == AQ_HABIT_VALUE) {
        rc = take_value(w, label, "a value", after, &value, reterr);
    } else if (habit->takes == AQ_HABIT_SIX) {
        take_numbers(w, after, &numbers);
        value = numbers.data ? numbers.data : "";
    } else if (habit->takes == AQ_HABIT_SWITCH) {
        const char *next = after ? after : w->next < w->arg_count ? w->args[w->next] : "";
        value = switch_word(next);
        w->next += value && !after;
        if (!value && after)
            rc = aq_error(reterr, -EINVAL, "%s: expected on or off, found '%s'", label, after);
        value = value ? value : "on";
    }
    if (rc == 0 && numbers.failed)
        rc = aq_error_memory(reterr, "command line");
    rc = rc < 0 ? rc : aq_habits_add(&w->habits, habit, label, value, reterr);
    aq_buf_close(&numbers);
    return rc < 0 ? rc : add_habit_words(w, from, reterr);
}

/* A flag that no option has: another program's, its "no-" form, or FlexGen's cut short.  0: none
 * of them. */
static int try_habit(struct words *w, const char *name, const char *label, const char *after,
                     struct aq_err *reterr)
{
    const struct aq_habit *habit = aq_habit_find(name, w->habits.flexgen);
    if (!habit && w->habits.flexgen)
        habit = aq_habit_abbreviated(name);
    if (!habit)
        habit = aq_habit_find(name, false);
    if (habit) {
        int rc = read_habit(w, habit, label, after, reterr);
        return rc < 0 ? rc : 1;
    }
    bool negated = strncmp(name, "no-", 3) == 0 || strncmp(name, "no_", 3) == 0;
    habit = negated && !after ? aq_habit_find(name + 3, false) : NULL;
    if (habit && habit->takes == AQ_HABIT_SWITCH) {
        uint32_t from = w->habits.count;
        int rc = aq_habits_add(&w->habits, habit, label, "off", reterr);
        rc = rc < 0 ? rc : add_habit_words(w, from, reterr);
        return rc < 0 ? rc : 1;
    }
    char names[160];
    aq_habit_candidates(name, names, sizeof(names));
    if (w->habits.flexgen && *names)
        return aq_error(reterr, -EINVAL, "%s: expected one of %s, found their beginning", label,
                        names);
    return 0;
}

static bool has_word(void *user, const char *name)
{
    const struct words *w = user;
    for (uint32_t i = 0; i < w->count; i++) {
        if (strcmp(w->word[i].option->name, name) == 0)
            return true;
    }
    return false;
}

/* What was written, in options of ours alone. */
static void put_native_line(struct words *w, struct aq_buf *ret)
{
    aq_buf_printf(ret, "native command: aquifer %s", w->command->name);
    for (uint32_t i = 0; i < w->config_count; i++) {
        aq_buf_puts(ret, " --config ");
        aq_buf_shell_word(ret, w->config[i]);
    }
    for (uint32_t i = 0; i < w->count; i++) {
        const struct aq_option *option = w->word[i].option;
        const char *text = w->word[i].text;
        bool positional = option->flags & AQ_OPTION_POSITIONAL;
        bool flag = aq_option_is_flag(option), on = flag && strcmp(text, "on") == 0;
        aq_buf_printf(ret, "%s%s", positional ? "" : " --", positional ? "" : option->name);
        if (!on) {
            aq_buf_puts(ret, " ");
            aq_buf_shell_word(ret, text);
        }
    }
    aq_buf_puts(ret, "\n");
}

/* Once all words are read: what several flags mean together, and what is to be said of them. */
static int settle_habits(struct words *w, struct aq_options *o, struct aq_err *reterr)
{
    struct aq_habits *h = &w->habits;
    uint32_t from = h->count;
    int rc = aq_habits_settle(h, has_word, w, reterr);
    rc = rc < 0 ? rc : add_habit_words(w, from, reterr);
    if (rc < 0 || (!h->used && !h->notes.count))
        return rc;
    if (h->used)
        put_native_line(w, &h->notes);
    o->notes = aq_buf_take(&h->notes);
    return o->notes ? 0 : aq_error_memory(reterr, "command line");
}

/* ---- ours -------------------------------------------------------------------------------- */

/* "--name", "--name=value", "--no-name"; `word` is writable and cut at '='. */
static int read_long(struct words *w, char *word, struct aq_err *reterr)
{
    char *after = strchr(word, '='), *name = word + 2;
    if (after)
        *after++ = '\0';
    if (strcmp(name, "help") == 0 || strcmp(name, "help-all") == 0) {
        w->help = true;
        return 0;
    }
    const char *text;
    if (strcmp(name, "config") == 0) {
        int rc = take_value(w, word, "FILE", after, &text, reterr);
        if (rc == 0)
            w->config[w->config_count++] = text;
        return rc;
    }
    const struct aq_option *option;
    bool theirs = w->habits.flexgen && aq_habit_find(name, true);
    int rc = theirs ? -EINVAL : aq_option_find(&option, w->command, name, "--", NULL);
    if (rc < 0 && !theirs && !after && find_negated(w, name, &option)) {
        add_word(w, option, word, "off");
        return 0;
    }
    if (rc < 0) {
        rc = try_habit(w, name, word, after, reterr);
        return rc < 0 ? rc : rc > 0 ? 0 : aq_option_find(&option, w->command, name, "--", reterr);
    }
    if (option->flags & AQ_OPTION_API_ONLY)
        return aq_error(reterr, -EINVAL, "'%s' is only for the library", word);
    if (aq_option_is_flag(option)) {
        text = after ? after : flag_value(w, option);
    } else {
        rc = take_value(w, word, argument_of(option), after, &text, reterr);
        if (rc < 0)
            return rc;
    }
    add_word(w, option, word, text);
    return 0;
}

/* "-m value", "-m=value", "-mvalue"; "-model" is more likely a long name with a dash lost. */
static int read_short(struct words *w, char *word, struct aq_err *reterr)
{
    const struct aq_option *option = aq_option_find_short(w->command, word[1]), *long_one;
    const char *after = word[2] ? word + 2 + (word[2] == '=') : NULL, *text;
    char label[3] = {'-', word[1], '\0'}, name[16];
    if (strcmp(word, "-h") == 0) {
        w->help = true;
        return 0;
    }
    /* "-ngl" is no -n with the value "gl". */
    size_t n = strcspn(word + 1, "=");
    snprintf(name, sizeof(name), "%.*s", (int)n, word + 1);
    const struct aq_habit *habit = n < sizeof(name) ? aq_habit_find(name, false) : NULL;
    if (habit && (!option || n > 1)) {
        after = word[1 + n] ? word + 2 + n : NULL;
        word[1 + n] = '\0';
        return read_habit(w, habit, word, after, reterr);
    }
    if (after && aq_option_find(&long_one, w->command, word + 1, "-", NULL) == 0)
        return aq_error(reterr, -EINVAL, "unknown flag '%s'; the nearest one is '-%s'", word, word);
    if (!option)
        return aq_error(reterr, -EINVAL,
                        "unknown flag '%s' of %s; short ones are -m -i -o -n -t -h where they "
                        "apply, all others begin with --",
                        word, w->command->name);
    int rc = take_value(w, label, argument_of(option), after, &text, reterr);
    if (rc == 0)
        add_word(w, option, label, text);
    return rc;
}

static int read_positional(struct words *w, const char *word, struct aq_err *reterr)
{
    for (uint32_t i = 0; i < aq_option_count; i++) {
        const struct aq_option *option = &aq_option_table[i];
        if (!(option->commands & w->command->bit) || !(option->flags & AQ_OPTION_POSITIONAL))
            continue;
        for (uint32_t k = 0; k < w->count && !aq_option_is_list(option); k++) {
            if (w->word[k].option == option)
                return aq_error(reterr, -EINVAL, "%s: expected one %s, found '%s' and '%s'",
                                w->command->name, option->argument, w->word[k].text, word);
        }
        add_word(w, option, option->argument, word);
        return 0;
    }
    if (w->command->bit == AQ_CMD_BENCH && strcmp(word, "flexgen") == 0 && w->next == 1) {
        w->habits.flexgen = w->habits.used = true;
        return 0;
    }
    return aq_error(reterr, -EINVAL,
                    "%s: expected options that begin with --, found '%s'; aquifer help %s shows "
                    "them",
                    w->command->name, word, w->command->name);
}

/* Resolves all words; stops at the first --help. */
static int read_words(struct words *w, struct aq_err *reterr)
{
    bool only_positional = false;
    while (w->next < w->arg_count && !w->help) {
        char *word = w->args[w->next++];
        int rc;
        if (!only_positional && strcmp(word, "--") == 0) {
            only_positional = true;
            continue;
        }
        if (only_positional || word[0] != '-' || !word[1])
            rc = read_positional(w, word, reterr);
        else if (word[1] == '-')
            rc = read_long(w, word, reterr);
        else
            rc = read_short(w, word, reterr);
        if (rc < 0)
            return rc;
    }
    return 0;
}

/* ---- --config --------------------------------------------------------------------------- */

static int give_yaml_value(struct aq_options *o, const struct aq_option *option, uint32_t source,
                           const char *label, const struct aq_yaml_node *node,
                           struct aq_err *reterr)
{
    char found[256];
    if (node->kind == AQ_YAML_SCALAR)
        return aq_options_give(o, option, source, label, node->text, reterr);
    return aq_error(reterr, -EINVAL, "%s: expected %s%s, found %s", label, argument_of(option),
                    aq_option_is_list(option) ? " or a list" : "",
                    aq_yaml_describe(node, found, sizeof(found)));
}

/* The line before `node` that names the same option in another spelling; 0 when there is none. */
static uint32_t line_before(const struct aq_yaml_node *map, const struct aq_yaml_node *node,
                            const struct aq_command *command, const struct aq_option *option)
{
    const struct aq_option *other;
    for (const struct aq_yaml_node *n = map->first; n != node; n = n->next) {
        if (aq_option_find(&other, command, n->key, "", NULL) == 0 && other == option)
            return n->line;
    }
    return 0;
}

static int give_yaml_entry(struct aq_options *o, const char *path, uint32_t source,
                           const struct aq_yaml_node *map, const struct aq_yaml_node *node,
                           struct aq_err *reterr)
{
    const struct aq_option *option;
    int rc = strcmp(node->key, "config") == 0
                 ? aq_error(reterr, -EINVAL, "a configuration file cannot name another one")
                 : aq_option_find(&option, aq_options_command(o), node->key, "", reterr);
    if (rc == 0 && (option->flags & AQ_OPTION_API_ONLY))
        rc = aq_error(reterr, -EINVAL, "'%s' is only for the library", node->key);
    uint32_t before = rc < 0 ? 0 : line_before(map, node, aq_options_command(o), option);
    if (before)
        rc = aq_error(reterr, -EINVAL, "'%s' was already given in line %u", node->key, before);
    if (rc < 0) {
        aq_error_prefix(reterr, "%s:%u", path, node->line);
        return rc;
    }
    char label[512];
    if (node->kind == AQ_YAML_NULL)
        return 0; /* as if it were not there */
    snprintf(label, sizeof(label), "%.400s:%u: %.80s", path, node->line, node->key);
    if (node->kind != AQ_YAML_LIST || !aq_option_is_list(option))
        return give_yaml_value(o, option, source, label, node, reterr);
    for (const struct aq_yaml_node *item = node->first; item; item = item->next) {
        snprintf(label, sizeof(label), "%.400s:%u: %.80s", path, item->line, node->key);
        rc = give_yaml_value(o, option, source, label, item, reterr);
        if (rc < 0)
            return rc;
    }
    return 0;
}

static int give_config(struct aq_options *o, const char *path, uint32_t source,
                       struct aq_err *reterr)
{
    struct aq_yaml *yaml;
    char *text;
    size_t bytes;
    int rc = aq_read_file(&text, &bytes, path, AQ_YAML_BYTES_MAX, reterr);
    if (rc < 0)
        return aq_error_named(reterr, rc, "--config");
    rc = aq_yaml_parse(&yaml, path, text, bytes, reterr);
    free(text);
    if (rc < 0)
        return rc;
    const struct aq_yaml_node *root = aq_yaml_root(yaml);
    char found[256];
    if (root->kind != AQ_YAML_MAP && root->kind != AQ_YAML_NULL)
        rc = aq_error(reterr, -EINVAL, "%s:%u: expected options as 'name: value', found %s", path,
                      root->line, aq_yaml_describe(root, found, sizeof(found)));
    for (const struct aq_yaml_node *n = root->first; n && rc == 0; n = n->next)
        rc = give_yaml_entry(o, path, source, root, n, reterr);
    aq_yaml_close(yaml);
    return rc;
}

/* ---- both together ---------------------------------------------------------------------- */

/* Shells pass "\n" on as two characters, where nearly everybody means a newline.  Files need none
 * of this: YAML and JSON have escapes of their own.  Other backslashes stay. */
static void unescape(char *text)
{
    static const char names[] = "nt\\", values[] = "\n\t\\";
    char *to = text;
    for (const char *from = text; *from; from++) {
        const char *name = from[0] == '\\' && from[1] ? strchr(names, from[1]) : NULL;
        *to++ = name ? values[name - names] : *from;
        from += name != NULL;
    }
    *to = '\0';
}

static int give_word(struct aq_options *o, const struct word *word, struct aq_err *reterr)
{
    char *text = strdup(word->text);
    if (!text)
        return aq_error_memory(reterr, "command line");
    if (word->option->flags & AQ_OPTION_ESCAPES)
        unescape(text);
    int rc = aq_options_give(o, word->option, SOURCE_COMMAND_LINE, word->label, text, reterr);
    free(text);
    return rc;
}

static int give_words(struct aq_options *o, const struct words *w, struct aq_err *reterr)
{
    for (uint32_t i = 0; i < w->config_count; i++) {
        int rc = give_config(o, w->config[i], i + 1, reterr);
        if (rc < 0)
            return rc;
    }
    for (uint32_t i = 0; i < w->count; i++) {
        int rc = give_word(o, &w->word[i], reterr);
        if (rc < 0)
            return rc;
    }
    int rc = 0;
    for (uint32_t i = 0; i < w->config_count && rc == 0; i++)
        rc = aq_options_check_apart(o, "config", w->config[i], reterr);
    return rc;
}

static void free_args(char **args, int count)
{
    for (int i = 0; args && i < count; i++)
        free(args[i]);
    free(args);
}

/* A private copy: read_long cuts words at '='. */
static char **copy_args(char **args, int count)
{
    char **copy = calloc((size_t)count + 1, sizeof(*copy));
    for (int i = 0; copy && i < count; i++) {
        copy[i] = strdup(args[i]);
        if (!copy[i]) {
            free_args(copy, count);
            return NULL;
        }
    }
    return copy;
}

int aq_options_from_args(struct aq_options **ret, const char *command, int arg_count, char **args,
                         bool *ret_help, struct aq_err *reterr)
{
    assert(ret && command && ret_help && arg_count >= 0);
    struct aq_options *o;
    int rc = aq_options_open(&o, command, reterr);
    if (rc < 0)
        return rc;
    struct words w = {.command = aq_options_command(o), .arg_count = arg_count};
    w.args = copy_args(args, arg_count);
    w.capacity = HABIT_WORDS_MAX * ((uint32_t)arg_count + 1) + DEFAULT_WORDS_MAX;
    w.word = calloc(w.capacity, sizeof(*w.word));
    w.config = calloc((size_t)arg_count + 1, sizeof(*w.config));
    if (!w.args || !w.word || !w.config)
        rc = aq_error_memory(reterr, "command line");
    if (rc == 0)
        rc = read_words(&w, reterr);
    if (rc == 0 && !w.help)
        rc = settle_habits(&w, o, reterr);
    if (rc == 0 && !w.help)
        rc = give_words(o, &w, reterr);
    if (rc == 0) {
        *ret_help = w.help;
        if (!w.help) {
            *ret = o;
            o = NULL;
        }
    }
    free_args(w.args, arg_count);
    free(w.word);
    free(w.config);
    aq_habits_close(&w.habits);
    aq_options_close(o);
    return rc;
}
