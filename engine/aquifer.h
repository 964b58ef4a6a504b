/* SPDX-License-Identifier: Apache-2.0
 * engine/aquifer.h - the public face of libaquifer.  JSON strings in and out, opaque handles, no
 * globals, no signal handlers, no exits: usable from C and from any foreign-function interface. The
 * command line uses nothing else.  Behind it lie models, tokens, pages and passes; none of them
 * shows here.
 *
 * Every function returns 0 or a negative errno with a sentence in *reterr (NULL allowed). */
#ifndef AQ_ENGINE_AQUIFER_H
#define AQ_ENGINE_AQUIFER_H

#include <stddef.h>
#include <stdint.h>

/* Of this header; aquifer_version() is the library's.  Equal major and minor versions fit. */
#define AQUIFER_VERSION_MAJOR 0
#define AQUIFER_VERSION_MINOR 1
#define AQUIFER_VERSION_PATCH 0
#define AQUIFER_VERSION       "0.1.0"
/* For comparisons: AQUIFER_VERSION_NUMBER >= 10200 is 1.2.0 or later. */
#define AQUIFER_VERSION_NUMBER                                                                     \
    (AQUIFER_VERSION_MAJOR * 10000 + AQUIFER_VERSION_MINOR * 100 + AQUIFER_VERSION_PATCH)

#ifdef __cplusplus
extern "C" {
#endif

struct aquifer;

struct aquifer_error {
    int code;        /* negative errno */
    int exit_status; /* of the program: 1 usage, 2 cannot run here, 4 I/O, 130 interrupted */
    char text[1024];
};

enum aquifer_level {
    AQUIFER_ERROR,
    AQUIFER_WARNING,
    AQUIFER_INFO,
    AQUIFER_PROGRESS,
    AQUIFER_DEBUG
};

/* All may be NULL.  Calls come from the thread that called the library. */
struct aquifer_hooks {
    void *user;
    /* One line without newline: errors, warnings, notes, progress. */
    void (*line)(void *user, enum aquifer_level level, const char *text);
    /* The command's result: text or one JSON document. */
    void (*output)(void *user, const char *bytes, size_t count);
    /* Non-zero: stop at the next safe point; results so far are kept. */
    int (*interrupted)(void *user);
    int output_is_terminal, lines_are_terminal;
    /* Columns of the terminal that lines go to, 0: unknown.  May change while a call runs. */
    int line_columns;
};

/* ---- whole commands ---------------------------------------------------------------------- */

/* Turns command-line words (without the program's name) into a command and its options as JSON;
 * handles --help, --version and --config.  *ret_json is {"command": ..., ...}; free with
 * aquifer_free.  When the words only ask for a text (help, version), *ret_json is NULL and
 * *ret_text is that text. */
int aquifer_parse_args(int arg_count, char **args, char **ret_json, char **ret_text,
                       struct aquifer_error *reterr);

/* Whether a yes-or-no option is set in such a JSON text, for callers that it concerns: "log_time"
 * asks for a time stamp on each line that hooks->line gets.  1, or 0. */
int aquifer_flag(const char *options_json, const char *name);

/* Runs generate, eval, bench, pack, tokenize, info, probe or status.  Returns the exit status: 0
 * all done, 1 usage, 2 cannot run here, 3 finished with error records, 4 I/O failure, 130
 * interrupted. */
int aquifer_run(const char *options_json, const struct aquifer_hooks *hooks);

/* ---- one engine, record by record -------------------------------------------------------- */

/* Opens a model with the options of `generate` as one JSON object; {"max_prompt_tokens",
 * "max_total_tokens"} bound the records that may be submitted (default: the model's context); a
 * rolling score goes through windows of the longest prompt. */
int aquifer_open(struct aquifer **ret, const char *options_json, const struct aquifer_hooks *hooks,
                 struct aquifer_error *reterr);
/* Queues one record, the same JSON as a line of prompts.jsonl.  A bad record is not an error here:
 * its error record comes out of aquifer_next. */
int aquifer_submit(struct aquifer *a, const char *record_json, struct aquifer_error *reterr);
/* Runs passes until a record is finished: *ret_result_json is its result line (aquifer_free), or
 * NULL when nothing is left. */
int aquifer_next(struct aquifer *a, char **ret_result_json, struct aquifer_error *reterr);
/* Whose result the last line of aquifer_next is: 0 for the record that was submitted first.  (Ids
 * in lines may be missing, or those of several records.) */
uint64_t aquifer_number(const struct aquifer *a);
/* The report so far, one JSON document (aquifer_free). */
int aquifer_report(struct aquifer *a, char **ret_json, struct aquifer_error *reterr);
void aquifer_close(struct aquifer *a);

void aquifer_free(void *p);
/* "0.1.0 (COMMIT)": what the library was built from. */
const char *aquifer_version(void);

#ifdef __cplusplus
}
#endif
#endif
