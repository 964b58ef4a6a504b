/* SPDX-License-Identifier: Apache-2.0
 * What forbids a merge: shown as it is found, so that one attempt tells all of it, and kept for
 * --json. */
#include "engine/job/merge_state.h"

#include "base/json.h"

#include <stdarg.h>
#include <stdio.h>

/* The others are only in the list: see --json. */
enum { SHOWN_PROBLEMS = 20, KEPT_PROBLEMS = 10000 };

void aq_merge_problem(struct aq_merge *m, const char *format, ...)
{
    char text[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    size_t count = json_array_size(m->result.problems);
    if (count == SHOWN_PROBLEMS)
        aq_hooks_line(m->o->hooks, AQUIFER_ERROR, "and more; --json lists them");
    if (count < SHOWN_PROBLEMS)
        aq_hooks_line(m->o->hooks, AQUIFER_ERROR, "%s", text);
    if (count < KEPT_PROBLEMS &&
        json_array_append_new(m->result.problems, aq_json_string(text)) < 0)
        m->no_memory = true;
}

size_t aq_merge_problems(const struct aq_merge *m)
{
    return json_array_size(m->result.problems);
}
