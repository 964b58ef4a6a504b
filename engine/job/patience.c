/* SPDX-License-Identifier: Apache-2.0
 * A full disk is waited for, as the writer of the results does (engine/job/writer.c), where results
 * that are there already are put in order or mended. */
#include "engine/job/job.h"

#include "base/clock.h"
#include "base/file.h"

#include <poll.h>

enum { POLL_MS = 100 };
static const double try_again_s = 10;

/* Until there is as much room, or it is time to try all the same: a quota, say, shows only then. */
static int wait_for_space(const struct aq_job *j, uint64_t bytes, double until_s,
                          struct aq_err *reterr)
{
    double again_s = aq_clock_s() + try_again_s;
    while (aq_clock_s() < until_s && aq_clock_s() < again_s) {
        if (aq_job_interrupted(j))
            return aq_error(reterr, -EINTR,
                            "interrupted while waiting for space for '%s'; no result is lost and "
                            "the same command goes on",
                            j->output);
        poll(NULL, 0, POLL_MS);
        if (aq_job_free_bytes(j) != UINT64_MAX && aq_job_free_bytes(j) >= bytes)
            break;
    }
    return 0;
}

int aq_job_patiently(struct aq_job *j, aq_job_step_fn *step, void *user, uint64_t bytes,
                     struct aq_err *reterr)
{
    double until_s = aq_clock_s() + j->o->disk_full_wait_s;
    for (bool told = false;; told = true) {
        struct aq_err err;
        int rc = step(j, user, &err);
        if (!aq_file_is_full(rc) || aq_clock_s() >= until_s) {
            if (rc < 0 && reterr)
                *reterr = err;
            return rc;
        }
        if (!told)
            aq_job_note(j, AQUIFER_WARNING, "%s; waiting up to %.0f s for %.1f MB of space",
                        err.text, j->o->disk_full_wait_s, 1e-6 * (double)bytes);
        rc = wait_for_space(j, bytes, until_s, reterr);
        if (rc < 0)
            return rc;
    }
}
