/* SPDX-License-Identifier: Apache-2.0
 * engine/options/help.c - help texts, laid out from the table. */
#include "engine/options/options.h"

#include "base/units.h"
#include "engine/options/help_topics.h"
#include "engine/options/table.h"
#include "policy/kv_policy.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Columns of a text: what COLUMNS says, as shells and the program set it for a terminal. */
enum { WIDTH_DEFAULT = 80, WIDTH_MIN = 60, WIDTH_MAX = 100, WIDE = 96 };

/* A text that grows; `failed` once memory is out. */
struct text {
    char *at;
    size_t bytes, capacity;
    bool failed;
    size_t width, indent; /* of the second column */
};

static struct text text_open(void)
{
    const char *columns = getenv("COLUMNS");
    uint64_t width;
    if (!columns || !aq_parse_u64(columns, &width))
        width = WIDTH_DEFAULT;
    width = width < WIDTH_MIN ? WIDTH_MIN : width > WIDTH_MAX ? WIDTH_MAX : width;
    return (struct text){.width = (size_t)width, .indent = width < WIDE ? 28 : 34};
}

static void add(struct text *t, const char *bytes, size_t count)
{
    if (t->failed)
        return;
    if (t->bytes + count + 1 > t->capacity) {
        size_t capacity = 2 * (t->bytes + count) + 1024;
        char *grown = realloc(t->at, capacity);
        if (!grown) {
            t->failed = true;
            return;
        }
        t->at = grown;
        t->capacity = capacity;
    }
    memcpy(t->at + t->bytes, bytes, count);
    t->bytes += count;
    t->at[t->bytes] = '\0';
}

static void add_text(struct text *t, const char *text)
{
    add(t, text, strlen(text));
}

static void add_spaces(struct text *t, size_t count)
{
    for (size_t i = 0; i < count; i++)
        add(t, " ", 1);
}

/* Characters of the next word that fit a line: of a long list of choices those up to a '|'. */
static size_t word_part(const char *at, size_t room)
{
    size_t n = strcspn(at, " "), part = n;
    if (n <= room)
        return n;
    for (size_t i = 0; i < room; i++)
        part = at[i] == '|' ? i + 1 : part;
    return part;
}

/* Words of `text` from column `column` on, wrapped; further lines begin at `indent`. */
static void add_wrapped(struct text *t, size_t column, size_t indent, const char *text)
{
    bool first = true;
    for (const char *at = text; *at;) {
        size_t n = word_part(at, t->width - indent);
        if (!first && column + 1 + n > t->width) {
            add_text(t, "\n");
            add_spaces(t, indent);
            column = indent;
            first = true;
        }
        if (!first) {
            add_text(t, " ");
            column++;
        }
        add(t, at, n);
        column += n;
        first = false;
        at += n + strspn(at + n, " ");
    }
    add_text(t, "\n");
}

static void add_row(struct text *t, const char *left, const char *right)
{
    size_t n = strlen(left);
    add_text(t, left);
    if (n + 2 > t->indent) {
        add_text(t, "\n");
        n = 0;
    }
    add_spaces(t, t->indent - n);
    add_wrapped(t, t->indent, t->indent, right);
}

/* "auto|f32|bf16" fits the left column better than it fits a sentence. */
const char *aq_option_argument(const struct aq_option *option)
{
    if (option->choices && strlen(option->choices) <= 18)
        return option->choices;
    return option->argument;
}

/* The option's help, with the names that are known in their place. */
static void help_text(char *text, size_t bytes, const struct aq_option *option)
{
    static const char place[] = "{names}";
    const char *at = option->names ? strstr(option->help, place) : NULL;
    char names[256] = "";
    if (at)
        option->names(names, sizeof(names));
    snprintf(text, bytes, "%.*s%s%s", at ? (int)(at - option->help) : 0, option->help, names,
             at ? at + strlen(place) : option->help);
}

void aq_option_describe(char *text, size_t bytes, const struct aq_option *option)
{
    char help[1024];
    bool choices = option->choices && aq_option_argument(option) != option->choices &&
                   strchr(option->choices, '|');
    bool flag = aq_option_is_flag(option);
    bool deflt = option->deflt && strcmp(option->deflt, "auto") != 0 && !flag;
    bool on = flag && option->deflt && strcmp(option->deflt, "on") == 0;
    help_text(help, sizeof(help), option);
    int used = snprintf(text, bytes, "%s%s%s%s%s%s%s", help, choices ? "; " : "",
                        choices ? option->choices : "", deflt ? " (default " : "",
                        deflt ? option->deflt : "", deflt ? ")" : "", on ? " (default on)" : "");
    assert(strlen(help) + 1 < sizeof(help) && used < (int)bytes);
}

static void add_option(struct text *t, const struct aq_option *option)
{
    char left[128], right[AQ_OPTION_TEXT_BYTES];
    bool positional = option->flags & AQ_OPTION_POSITIONAL;
    const char *argument = aq_option_argument(option);
    char letter[8] = "    ";
    if (option->short_name)
        snprintf(letter, sizeof(letter), "-%c, ", option->short_name);
    if (positional)
        snprintf(left, sizeof(left), "  %s", option->argument);
    else
        snprintf(left, sizeof(left), "  %s--%s%s%s", letter, option->name, argument ? " " : "",
                 argument ? argument : "");
    aq_option_describe(right, sizeof(right), option);
    add_row(t, left, right);
}

static bool is_later(const struct aq_option *option)
{
    return option->kind == AQ_OPTION_LATER || option->kind == AQ_OPTION_LATER_FLAG;
}

bool aq_option_is_shown(const struct aq_option *option, const struct aq_command *command,
                        enum aq_option_group group)
{
    return (option->commands & command->bit) && option->group == group && !is_later(option) &&
           !(option->flags & AQ_OPTION_API_ONLY);
}

const char *const aq_option_group_titles[AQ_GROUP_COUNT] = {
    [AQ_GROUP_MODEL] = "Model",
    [AQ_GROUP_FILES] = "Input and results",
    [AQ_GROUP_JOB] = "What to do",
    [AQ_GROUP_SAMPLING] = "Text",
    [AQ_GROUP_MEMORY] = "Memory and placement",
    [AQ_GROUP_MACHINE] = "Machine and schedule",
    [AQ_GROUP_REPORT] = "Reports and messages",
};

const struct aq_exit_meaning aq_exit_meanings[AQ_EXIT_MEANING_COUNT] = {
    {"0", "all done"},
    {"1", "the command line is wrong, or a file that it names"},
    {"2", "cannot run here: does not fit, no such device, a bad or missing model"},
    {"3", "finished, but some records gave errors"},
    {"4", "reading or writing failed during the run; start it again to go on"},
    {"130", "interrupted; start it again to go on"},
};

const char aq_options_notation[] =
    "Options take '--name value' or '--name=value'; switches '--name', '--no-name' or '--name "
    "off'. Sizes: 16GiB (1024), 15.5GB or 512M (1000), or bytes. Times: 90s, 10m, 1.5d, or "
    "seconds.";

const char aq_options_purpose[] =
    "Runs large batches of prompts through language models that need not fit the accelerator or "
    "even the memory.";

const char aq_options_signals[] =
    "SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGXCPU, SIGALRM: end after the pass that runs, "
    "within 20 s, with the results so far safe; SIGINT or SIGTERM again: at once. All but the "
    "first two stay ignored where the parent ignores them, as nohup does.";

/* Whether the short help has it: one of the words in `basic`. */
static bool is_basic(const struct aq_command *command, const struct aq_option *option)
{
    size_t n = strlen(option->name);
    for (const char *at = command->basic; at && *at; at += strcspn(at, " "), at += *at == ' ') {
        if (strcspn(at, " ") == n && strncmp(at, option->name, n) == 0)
            return true;
    }
    return !command->basic;
}

static bool is_shown(const struct aq_command *command, const struct aq_option *option, bool all)
{
    return aq_option_is_shown(option, command, option->group) && (all || is_basic(command, option));
}

static void add_group(struct text *t, const struct aq_command *command, enum aq_option_group group,
                      bool all)
{
    bool titled = false;
    for (uint32_t i = 0; i < aq_option_count; i++) {
        const struct aq_option *option = &aq_option_table[i];
        if (option->group != group || !is_shown(command, option, all))
            continue;
        if (!titled) {
            add_text(t, "\n");
            add_text(t, aq_option_group_titles[group]);
            add_text(t, "\n");
            titled = true;
        }
        add_option(t, option);
    }
}

static void add_later(struct text *t, const struct aq_command *command)
{
    char names[512] = "Not available in this version:";
    size_t used = strlen(names), start = used;
    for (uint32_t i = 0; i < aq_option_count; i++) {
        const struct aq_option *option = &aq_option_table[i];
        if ((option->commands & command->bit) && is_later(option) && used < sizeof(names))
            used += (size_t)snprintf(names + used, sizeof(names) - used, " --%s", option->name);
    }
    assert(used < sizeof(names));
    if (used > start) {
        add_text(t, "\n");
        add_wrapped(t, 0, 2, names);
    }
}

/* How many options the short help leaves out. */
static uint32_t left_out(const struct aq_command *command)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < aq_option_count; i++)
        count += is_shown(command, &aq_option_table[i], true) &&
                 !is_shown(command, &aq_option_table[i], false);
    return count;
}

static void add_command_help(struct text *t, const struct aq_command *command, bool all)
{
    uint32_t more = all ? 0 : left_out(command);
    char line[160];
    add_text(t, "Usage: ");
    add_wrapped(t, 7, 7, command->usage);
    add_text(t, "\n");
    add_wrapped(t, 0, 0, command->description);
    add_text(t, "\nExamples\n");
    for (size_t i = 0; i < AQ_ARRAY_LEN(command->examples) && command->examples[i]; i++) {
        add_text(t, "  ");
        add_wrapped(t, 2, 6, command->examples[i]);
    }
    for (int group = 0; group < AQ_GROUP_COUNT; group++)
        add_group(t, command, (enum aq_option_group)group, all);
    add_row(t, "      --config FILE",
            "read options from a YAML file, 'name: value'; the command "
            "line wins");
    add_row(t, "  -h, --help",
            more ? "print this text; --help-all: every option" : "print this text");
    if (all)
        add_later(t, command);
    add_text(t, "\n");
    snprintf(line, sizeof(line), "aquifer help %s --all shows %u more options. ", command->name,
             more);
    add_wrapped(t, 0, 0, more ? line : "");
    add_wrapped(t, 0, 0, aq_options_notation);
}

static void add_overview(struct text *t)
{
    add_text(t, "Usage: aquifer COMMAND [options]\n\n");
    add_wrapped(t, 0, 0, aq_options_purpose);
    add_text(t, "\nCommands\n");
    for (uint32_t i = 0; i < aq_command_count; i++) {
        char left[32];
        snprintf(left, sizeof(left), "  %-10s", aq_command_table[i].name);
        add_text(t, left);
        add_wrapped(t, strlen(left), strlen(left), aq_command_table[i].summary);
    }
    add_text(t, "\n");
    add_wrapped(t, 0, 0,
                "aquifer help COMMAND shows a command's options, with --all every one; aquifer "
                "--version the version. aquifer help TOPIC, of");
    for (uint32_t i = 0; i < aq_help_topic_count; i++) {
        char left[32];
        snprintf(left, sizeof(left), "  %-10s", aq_help_topics[i].name);
        add_text(t, left);
        add_wrapped(t, strlen(left), strlen(left), aq_help_topics[i].summary);
    }
    add_text(t, "\nExit status\n");
    for (uint32_t i = 0; i < AQ_EXIT_MEANING_COUNT; i++) {
        char left[16];
        snprintf(left, sizeof(left), "  %-5s", aq_exit_meanings[i].status);
        add_text(t, left);
        add_wrapped(t, strlen(left), strlen(left), aq_exit_meanings[i].means);
    }
    add_text(t, "\nSignals\n  ");
    add_wrapped(t, 2, 2, aq_options_signals);
}

/* ---- the table of KV policies ---- */

static const char *ranked_by(const struct aq_kv_score *s)
{
    static const char *const names[] = {"-",          "position",    "attention",
                                        "short keys", "unlike keys", "expected"};
    return s->stat == AQ_ATTN_LOW ? "seldom low" : names[s->source];
}

/* Of a prompt's ranks: which queries count, and how their sums are taken together. */
static void queries_text(char dst[48], const struct aq_kv_score *s)
{
    char pool[32], order[48] = "";
    if (s->source != AQ_KV_SOURCE_COLUMNS) {
        snprintf(dst, 48, "-");
        return;
    }
    const char *group = s->together ? "all heads" : aq_kv_group_name(s->group);
    if (s->pool && s->pool_first)
        snprintf(order, sizeof(order), "%s, ", aq_kv_pool_text(pool, s));
    if (s->rows)
        snprintf(dst, 48, "last %u: %s%s", s->rows, order, group);
    else
        snprintf(dst, 48, "all: %s", group);
    size_t used = strlen(dst);
    if (s->pool && !s->pool_first)
        snprintf(dst + used, 48 - used, ", %s", aq_kv_pool_text(pool, s));
}

/* A row as it stands in the table of policies, without options. */
static void add_policy(struct text *t, const struct aq_kv_policy_desc *d)
{
    struct aq_kv_policy row = {.desc = d,
                               .prompt = d->prompt,
                               .decode = d->decode,
                               .layers = d->layers,
                               .beta = d->beta,
                               .heads = d->heads};
    char line[160], queries[48], layers[32];
    const char *heads = d->heads == AQ_KV_HEADS_UNIFORM    ? "alike"
                        : d->heads == AQ_KV_HEADS_GLOBAL   ? "of all layers"
                        : d->heads == AQ_KV_HEADS_PROFILED ? "a rule each"
                        : d->floor == AQ_KV_FLOOR_MIX      ? "shared, mix:20%"
                                                           : "shared, 20%";
    const char *then = !aq_kv_policy_drops(&row)                   ? "grows"
                       : aq_kv_policy_grows(&row)                  ? "grows"
                       : d->heads == AQ_KV_HEADS_PROFILED          ? "as the rule says"
                       : d->bulk                                   ? "many out at a time"
                       : d->decode.together                        ? "least of a layer out"
                       : d->decode.source == AQ_KV_SOURCE_POSITION ? "oldest out"
                                                                   : "least of a head out";
    queries_text(queries, &d->prompt);
    snprintf(line, sizeof(line), "  %-12s %-11s %-23s %-11s %-15s %s\n", d->name,
             ranked_by(&d->prompt), queries, d->layers ? aq_kv_layers_text(layers, &row) : "alike",
             heads, then);
    add_text(t, line);
}

static void add_policies(struct text *t)
{
    add_text(t, "Usage: aquifer COMMAND --kv-policy NAME --kv-budget X [options]\n\n");
    add_wrapped(t, 0, 0,
                "What the KV cache keeps of a sequence, in each layer and KV head. A policy is a "
                "choice in each of the parts below, and an option changes one of them: what ranks "
                "a prompt's tokens, how a budget is spread over layers and over the heads of a "
                "layer, and what happens to new tokens. Attention of a prompt is full; it is cut "
                "afterwards.");
    add_text(t,
             "\n  policy       prompt by   of queries              layers      heads           new "
             "tokens\n");
    for (uint32_t i = 0; aq_kv_policy_at(i); i++)
        add_policy(t, aq_kv_policy_at(i));
    add_text(t, "\n");
    add_wrapped(t, 0, 0,
                "Policies whose new tokens grow cut the prompt once, and a share of --kv-budget is "
                "of the prompt alone; of the others it is of prompt and new tokens. --kv-decode "
                "bulk makes h2o, snapkv and pyramidkv ones of these others, whose new tokens take "
                "the place of many at a time. Heads share on the cpu backend.");
    add_text(t, "\n");
    add_wrapped(
        t, 0, 0,
        "fastgen needs no budget: each head has the first of five rules that keeps --kv-mass "
        "of its attention to the prompt - special tokens, punctuation too, the most "
        "attended too, the newest too, or everything - so how much stays is known only "
        "then. --kv-budget is a cap, of the prompt: a head whose rule keeps more takes an "
        "earlier one, and plans count with it. --kv-mass is of attention summed; the paper's T, "
        "read as a distance of "
        "rows, asks for a mass of (1 + T) / 2.");
    add_text(t, "\n");
    add_wrapped(t, 0, 0,
                "Where new tokens grow, and heads are alike, --kv-read N has each of them read N "
                "slots of what is kept, chosen anew in every layer: nothing is dropped, and memory "
                "stays what it is. That is faster where reading the cache takes the time: long "
                "sequences, attention on the host, weights that do not stream. While weights "
                "stream in every pass, only a smaller cache helps.");
    add_text(t, "\nOptions\n");
    const struct aq_command *plan = aq_command_find("plan");
    for (uint32_t i = 0; i < aq_option_count; i++) {
        const struct aq_option *option = &aq_option_table[i];
        if ((option->commands & plan->bit) && strncmp(option->name, "kv-", 3) == 0)
            add_option(t, option);
    }
}

/* Its paragraphs and rows ("  left  right", two blanks or more between), to the width. */
static void add_topic(struct text *t, const char *topic)
{
    for (const char *at = topic; *at;) {
        char line[1024], left[64];
        size_t n = strcspn(at, "\n");
        assert(n < sizeof(line));
        snprintf(line, sizeof(line), "%.*s", (int)n, at);
        const char *gap = line[0] == ' ' ? strstr(line + 2, "  ") : NULL;
        if (gap) {
            snprintf(left, sizeof(left), "%.*s", (int)(gap - line), line);
            add_row(t, left, gap + strspn(gap, " "));
        } else {
            add_wrapped(t, 0, 0, line);
        }
        at += n + (at[n] == '\n');
    }
}

char *aq_options_help(const char *command, bool all)
{
    struct text t = text_open();
    const struct aq_command *c = command ? aq_command_find(command) : NULL;
    const struct aq_help_topic *topic = command ? aq_help_topic_find(command) : NULL;
    add_text(&t, "");
    if (!command)
        add_overview(&t);
    else if (topic && topic->id == AQ_HELP_KV)
        add_policies(&t);
    else if (topic && topic->id == AQ_HELP_WORDS)
        add_topic(&t, aq_help_words);
    else if (c && c->bit)
        add_command_help(&t, c, all);
    if (t.failed) {
        free(t.at);
        return NULL;
    }
    return t.at;
}
