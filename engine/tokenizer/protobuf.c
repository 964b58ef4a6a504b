/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/tokenizer/protobuf.h"

#include <stdbool.h>

enum { VARINT_BYTES_MAX = 10 };

static bool read_varint(struct aq_proto *p, uint64_t *ret)
{
    *ret = 0;
    for (unsigned i = 0; i < VARINT_BYTES_MAX && p->at < p->end; i++) {
        unsigned char byte = (unsigned char)*p->at++;
        *ret |= (uint64_t)(byte & 0x7f) << (7 * i);
        if (!(byte & 0x80))
            return true;
    }
    return false;
}

/* Little-endian. */
static bool read_fixed(struct aq_proto *p, unsigned bytes, uint64_t *ret)
{
    if (p->end - p->at < (ptrdiff_t)bytes)
        return false;
    *ret = 0;
    for (unsigned i = 0; i < bytes; i++)
        *ret |= (uint64_t)(unsigned char)*p->at++ << (8 * i);
    return true;
}

static bool read_inside(struct aq_proto *p, struct aq_proto *ret)
{
    uint64_t bytes;
    if (!read_varint(p, &bytes) || bytes > (uint64_t)(p->end - p->at))
        return false;
    *ret = (struct aq_proto){p->at, p->at + bytes};
    p->at += bytes;
    return true;
}

int aq_proto_next(struct aq_proto *p, struct aq_proto_field *ret, struct aq_err *reterr)
{
    uint64_t key;
    bool good = true;
    if (p->at == p->end)
        return 0;
    if (!read_varint(p, &key) || key >> 3 == 0 || key >> 3 > UINT32_MAX >> 3)
        return aq_error(reterr, -ENOEXEC, "expected a protobuf field, found something else");
    *ret = (struct aq_proto_field){.number = (uint32_t)(key >> 3), .type = key & 7};
    switch (ret->type) {
    case AQ_PROTO_VARINT: good = read_varint(p, &ret->value); break;
    case AQ_PROTO_FIXED64: good = read_fixed(p, 8, &ret->value); break;
    case AQ_PROTO_BYTES: good = read_inside(p, &ret->inside); break;
    case AQ_PROTO_FIXED32: good = read_fixed(p, 4, &ret->value); break;
    default:
        return aq_error(reterr, -ENOEXEC, "protobuf field %u: type %d is none that is in use",
                        ret->number, (int)ret->type);
    }
    return good ? 1
                : aq_error(reterr, -ENOEXEC, "protobuf field %u: the file ends within it",
                           ret->number);
}
