/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/job/rewritten.h"

int aq_rewritten_open(struct aq_rewritten *ret, const char *path, const char *like,
                      enum aq_compression compression, struct aq_err *reterr)
{
    *ret = (struct aq_rewritten){.compression = compression};
    return aq_replacement_open(&ret->file, path, like, reterr);
}

static int end_member(struct aq_rewritten *r, struct aq_err *reterr)
{
    struct aq_buf member = {0};
    int rc = aq_compress(&member, r->compression, r->text.data ? r->text.data : "", r->text.count);
    rc = rc < 0 || r->text.failed ? aq_error_memory(reterr, "compressing '%s'", r->file.path)
                                  : aq_replacement_put(&r->file, member.data, member.count, reterr);
    aq_buf_close(&member);
    aq_buf_clear(&r->text);
    r->filled = true;
    return rc;
}

int aq_rewritten_put(struct aq_rewritten *r, const char *bytes, size_t count, struct aq_err *reterr)
{
    if (r->compression == AQ_PLAIN)
        return aq_replacement_put(&r->file, bytes, count, reterr);
    aq_buf_put(&r->text, bytes, count);
    return r->text.count < AQ_MEMBER_BYTES ? 0 : end_member(r, reterr);
}

int aq_rewritten_close(struct aq_rewritten *r, int rc, struct aq_err *reterr)
{
    if (rc == 0 && r->compression != AQ_PLAIN && (r->text.count || !r->filled))
        rc = end_member(r, reterr);
    aq_buf_close(&r->text);
    return aq_replacement_close(&r->file, rc, true, reterr);
}
