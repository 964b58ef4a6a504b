/* SPDX-License-Identifier: Apache-2.0
 * The library in one file: opens a model, submits three records and prints the three answers.
 *     small DIR        DIR: a Hugging Face checkpoint, or a packed store */
#include <aquifer.h>

#include <stdio.h>
#include <string.h>

static const char *const records[] = {
    "{\"id\": \"storm\", \"prompt\": \"It was a dark and stormy night, and\"}",
    "{\"id\": \"lane\", \"prompt\": \"The old house stood\", \"temperature\": 0.8, \"seed\": 7}",
    "{\"id\": \"short\", \"prompt\": \"She said\", \"max_tokens\": 4}",
};

static void print_warning(void *user, enum aquifer_level level, const char *text)
{
    if (level <= AQUIFER_WARNING)
        fprintf(stderr, "small: %s\n", text);
}

/* Options are those of `aquifer generate`, as JSON.  A larger program would write its JSON with a
 * library; here a path that needs escapes is refused. */
static int open_model(struct aquifer **ret, const char *dir, struct aquifer_error *reterr)
{
    static const struct aquifer_hooks hooks = {.line = print_warning};
    char options[4096];
    int bytes = snprintf(options, sizeof(options),
                         "{\"model\": \"%s\", \"device\": \"cpu\", \"max_tokens\": 16}", dir);
    if (bytes >= (int)sizeof(options) || strpbrk(dir, "\"\\")) {
        *reterr = (struct aquifer_error){.exit_status = 1, .text = "expected a simpler path"};
        return -1;
    }
    return aquifer_open(ret, options, &hooks, reterr);
}

/* Answers come in the order in which they end; the id says whose each one is. */
static int print_answers(struct aquifer *a, struct aquifer_error *reterr)
{
    for (;;) {
        char *answer;
        int rc = aquifer_next(a, &answer, reterr);
        if (rc < 0 || !answer)
            return rc;
        puts(answer);
        aquifer_free(answer);
    }
}

int main(int argc, char **argv)
{
    struct aquifer *a = NULL;
    struct aquifer_error err = {0};
    if (argc != 2) {
        fprintf(stderr, "usage: small DIR\n");
        return 1;
    }
    int rc = open_model(&a, argv[1], &err);
    for (size_t i = 0; rc == 0 && i < sizeof(records) / sizeof(records[0]); i++)
        rc = aquifer_submit(a, records[i], &err);
    if (rc == 0)
        rc = print_answers(a, &err);
    aquifer_close(a);
    if (rc < 0)
        fprintf(stderr, "small: %s\n", err.text);
    return rc < 0 ? err.exit_status : 0;
}
