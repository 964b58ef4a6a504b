/* SPDX-License-Identifier: Apache-2.0
 * The words of a command line, one a line: whatever they are, there are options that read back as
 * the same options, a text, or one sentence.  Nothing is run. */
#include "engine/aquifer.h"
#include "engine/options/options.h"
#include "tests/fuzz/fuzz_yaml.h"

#include <stdio.h>

enum { WORDS_MAX = 48 };

/* The lines, without those that name a configuration file: it is somebody else's, and the target
 * "yaml" reads those. */
static int split(char **words, char *text)
{
    int count = 0;
    for (char *at = text, *next; at && count < WORDS_MAX; at = next) {
        next = strchr(at, '\n');
        if (next)
            *next++ = '\0';
        if (!strstr(at, "-config"))
            words[count++] = at;
    }
    return count;
}

/* What aquifer_run would be given. */
static void check_options(const char *text)
{
    json_t *v = json_loads(text, 0, NULL);
    const char *command = json_string_value(json_object_get(v, "command"));
    struct aq_options *o = NULL;
    fuzz_check(command != NULL);
    fuzz_check(aq_options_from_json(&o, command, v, NULL) == 0 && aq_options_check(o, NULL) == 0);
    json_t *again = aq_options_to_json(o);
    json_object_del(v, "notes"); /* said of the words, and no option */
    fuzz_check(json_equal(v, again));
    json_decref(again);
    json_decref(v);
    aq_options_close(o);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    char *text = strndup((const char *)data, bytes), *words[WORDS_MAX];
    char *json = NULL, *answer = NULL;
    struct aquifer_error err = {0};
    fuzz_check(text != NULL);
    int rc = aquifer_parse_args(split(words, text), words, &json, &answer, &err);
    if (rc < 0) {
        struct aq_err inner = {.code = err.code};
        fuzz_check(err.code == rc && err.exit_status == 1 && !json && !answer);
        snprintf(inner.text, sizeof(inner.text), "%s", err.text);
        fuzz_check_error_text(&inner);
    } else {
        fuzz_check((json != NULL) != (answer != NULL));
        if (json)
            check_options(json);
        else
            fuzz_check(answer[0]);
    }
    aquifer_free(json);
    aquifer_free(answer);
    free(text);
    return 0;
}
