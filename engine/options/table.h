/* SPDX-License-Identifier: Apache-2.0
 * engine/options/table.h - the table behind engine/options/options.h: what each option is called,
 * what it takes, where its value goes and what the help says.  Read by options.c (values),
 * options_help.c (texts) and args.c (command line); nothing else needs it.  Constant data, no code
 * but checks. */
#ifndef AQ_ENGINE_OPTIONS_TABLE_H
#define AQ_ENGINE_OPTIONS_TABLE_H

#include "engine/options/options.h"

enum {
    AQ_CMD_GENERATE = 1u << 0,
    AQ_CMD_EVAL = 1u << 1,
    AQ_CMD_BENCH = 1u << 2,
    AQ_CMD_PACK = 1u << 3,
    AQ_CMD_TOKENIZE = 1u << 4,
    AQ_CMD_INFO = 1u << 5,
    AQ_CMD_STATUS = 1u << 6,
    AQ_CMD_PROBE = 1u << 7,
    AQ_CMD_PLAN = 1u << 8,
    AQ_CMD_PUBLISHED = 1u << 9,
    AQ_CMD_MERGE = 1u << 10,
    /* The commands that run a model. */
    AQ_CMD_RUN = AQ_CMD_GENERATE | AQ_CMD_EVAL | AQ_CMD_BENCH,
    AQ_CMD_ALL = (1u << 11) - 1,
};

enum aq_option_group {
    AQ_GROUP_MODEL,
    AQ_GROUP_FILES,
    AQ_GROUP_JOB,
    AQ_GROUP_SAMPLING,
    AQ_GROUP_MEMORY,
    AQ_GROUP_MACHINE,
    AQ_GROUP_REPORT,
    AQ_GROUP_COUNT,
};

/* How a value's text becomes the field at `offset`. */
enum aq_option_kind {
    AQ_OPTION_BOOL,       /* bool: on, off; also --name and --no-name */
    AQ_OPTION_STRING,     /* char * */
    AQ_OPTION_STRINGS,    /* struct aq_strings, one item a use */
    AQ_OPTION_LIST,       /* struct aq_strings, items separated by commas */
    AQ_OPTION_U32,        /* uint32_t within [min, max] */
    AQ_OPTION_U64,        /* uint64_t within [min, max] */
    AQ_OPTION_INT,        /* int within [min, max] */
    AQ_OPTION_U32_LIST,   /* uint32_t * and, at `aux`, its uint32_t count */
    AQ_OPTION_REAL,       /* double within [min, max] */
    AQ_OPTION_SIZE,       /* uint64_t bytes */
    AQ_OPTION_DURATION,   /* double seconds */
    AQ_OPTION_DTYPE,      /* int: enum aq_dtype, -1 for auto */
    AQ_OPTION_CHOICE,     /* char *, one of `choices` */
    AQ_OPTION_ENUM,       /* enum: index in `choices` */
    AQ_OPTION_CHOICE_ON,  /* bool: whether the second of two `choices` was given */
    AQ_OPTION_NO_BOS,     /* bool flag that sets enum aq_bos to never */
    AQ_OPTION_CHECKED,    /* char *, or nowhere (offset 0); `check` says what is wrong */
    AQ_OPTION_LATER,      /* recognised; refused with `why` */
    AQ_OPTION_LATER_FLAG, /* the same, takes no value */
};

enum {
    AQ_OPTION_AUTO = 1u << 0,       /* "auto" is 0 */
    AQ_OPTION_ABOVE_MIN = 1u << 1,  /* min itself is refused */
    AQ_OPTION_POSITIONAL = 1u << 2, /* the command's one word without a flag */
    AQ_OPTION_API_ONLY = 1u << 3,   /* only in JSON given to the library */
    AQ_OPTION_ESCAPES = 1u << 4,    /* on the command line \n, \t and \\ are the characters */
};

struct aq_option {
    const char *name;
    char short_name; /* 0: none */
    enum aq_option_group group;
    unsigned commands;
    enum aq_option_kind kind;
    uint16_t offset; /* in struct aq_options */
    uint16_t aux;    /* list: the count; else a bool that says "given"; 0: none */
    const char *argument;
    const char *choices; /* "auto|f32|bf16": what works */
    const char *later;   /* "int8|int4": known, refused with `why` */
    const char *why;     /* of `later`; NULL: "not available in this version" */
    const char *deflt;   /* parsed before anything else and shown; NULL: zero */
    double min, max;
    unsigned flags;
    int (*check)(const char *label, const char *text, struct aq_err *reterr);
    const char *help;
    /* Writes what stands for {names} in the help; NULL: it has no such place. */
    void (*names)(char *text, size_t bytes);
    const char *suggest; /* "auto|cpu": values that a shell offers, where there are no choices */
};

/* Another program's name for an option, with the same values; habits.h has flags that mean more. */
struct aq_option_alias {
    const char *name, *option;
};

struct aq_command {
    const char *name;
    unsigned bit; /* 0: planned, not in this version */
    const char *summary, *usage, *description;
    const char *basic; /* names of the options that the short help shows; NULL: all */
    const char *examples[2];
};

extern const struct aq_option aq_option_table[];
extern const uint32_t aq_option_count;
extern const struct aq_option_alias aq_option_aliases[];
extern const uint32_t aq_option_alias_count;
extern const struct aq_command aq_command_table[];
extern const uint32_t aq_command_count;

const struct aq_command *aq_command_find(const char *name); /* NULL: unknown */
/* Row of a command's option by name or alias, '-' and '_' alike.  -EINVAL names the commands that
 * have it, or the nearest option; `dashes` ("" or "--") stands before names in the message. */
int aq_option_find(const struct aq_option **ret, const struct aq_command *command, const char *name,
                   const char *dashes, struct aq_err *reterr);
/* The row with exactly this short name, NULL when the command has none. */
const struct aq_option *aq_option_find_short(const struct aq_command *command, char short_name);
/* Whether the option takes no value on the command line unless one is written after '='. */
bool aq_option_is_flag(const struct aq_option *option);

/* ---- texts that help and manual pages share (help.c) ---- */

enum { AQ_OPTION_TEXT_BYTES = 1280, AQ_EXIT_MEANING_COUNT = 6 };

struct aq_exit_meaning {
    const char *status, *means;
};

extern const char *const aq_option_group_titles[AQ_GROUP_COUNT];
extern const struct aq_exit_meaning aq_exit_meanings[AQ_EXIT_MEANING_COUNT];
extern const char aq_options_purpose[], aq_options_notation[], aq_options_signals[];

/* Whether the help of this command shows the option in this group. */
bool aq_option_is_shown(const struct aq_option *option, const struct aq_command *command,
                        enum aq_option_group group);
/* What stands behind the option's name; NULL: it takes nothing. */
const char *aq_option_argument(const struct aq_option *option);
/* Its help with choices and default, in a text of AQ_OPTION_TEXT_BYTES. */
void aq_option_describe(char *text, size_t bytes, const struct aq_option *option);

#endif
