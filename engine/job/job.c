/* SPDX-License-Identifier: Apache-2.0
 * Words of a job that several of its files and its reports use. */
#include "engine/job/job.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void aq_job_note(const struct aq_job *j, enum aquifer_level level, const char *format, ...)
{
    char text[2048];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    aq_hooks_line(j->hooks, level, "%s", text);
}

const char *aq_job_bos_name(enum aq_bos bos)
{
    return bos == AQ_BOS_AUTO ? "auto" : bos == AQ_BOS_ALWAYS ? "always" : "never";
}

const char *aq_job_overlong_name(enum aq_overlong overlong)
{
    static const char *const name[] = {[AQ_OVERLONG_ERROR] = "error",
                                       [AQ_OVERLONG_TRUNCATE_LEFT] = "truncate-left",
                                       [AQ_OVERLONG_TRUNCATE_RIGHT] = "truncate-right",
                                       [AQ_OVERLONG_CLIP] = "clip"};
    return name[overlong];
}

const char *aq_job_device_reason(const struct aq_job *j)
{
    return aq_options_device(j->o).backend == AQ_BACKEND_ANY ? "auto: no NVIDIA GPU is visible"
                                                             : "asked for";
}
