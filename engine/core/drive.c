/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/core/drive.h"

int aq_drive_collect(const struct aq_drive *d, struct aq_err *reterr)
{
    struct aq_sequence *s;
    int rc = 0;
    while (rc == 0 && (s = aq_engine_finished(d->engine)))
        rc = d->ended(d->user, s, reterr);
    return rc;
}

int aq_drive_pass(const struct aq_drive *d, bool *ret_worked, struct aq_err *reterr)
{
    int rc = d->before ? d->before(d->user, reterr) : 0;
    rc = rc < 0 ? rc : aq_engine_pass(d->engine, ret_worked, reterr);
    return rc < 0 ? rc : aq_drive_collect(d, reterr);
}

int aq_drive_all(const struct aq_drive *d, struct aq_err *reterr)
{
    bool worked = true;
    int rc = 0;
    while (rc == 0 && worked)
        rc = aq_drive_pass(d, &worked, reterr);
    return rc;
}
