/* SPDX-License-Identifier: Apache-2.0
 * engine/job/rewritten.h - a file of results that is written anew and then takes the place of the
 * old one, compressed where its name says so.  Only engine/job includes it. */
#ifndef AQ_ENGINE_JOB_REWRITTEN_H
#define AQ_ENGINE_JOB_REWRITTEN_H

#include "base/compress.h"
#include "base/file.h"

struct aq_rewritten {
    struct aq_replacement file;
    enum aq_compression compression;
    struct aq_buf text; /* of the member that is being filled */
    bool filled;        /* there is a member; one without text where there are no lines */
};

/* As the functions of aq_replacement (base/file.h). */
int aq_rewritten_open(struct aq_rewritten *ret, const char *path, const char *like,
                      enum aq_compression compression, struct aq_err *reterr);
int aq_rewritten_put(struct aq_rewritten *r, const char *bytes, size_t count,
                     struct aq_err *reterr);
int aq_rewritten_close(struct aq_rewritten *r, int rc, struct aq_err *reterr);

#endif
