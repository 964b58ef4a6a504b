/* SPDX-License-Identifier: Apache-2.0
 * engine/tokenizer/protobuf.h - reads the fields of a protobuf message (protobuf.dev, "Encoding"),
 * bounds-checked.  Part of tokenizer.h.  Knows the wire format; no schema. */
#ifndef AQ_ENGINE_TOKENIZER_PROTOBUF_H
#define AQ_ENGINE_TOKENIZER_PROTOBUF_H

#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

enum aq_proto_type {
    AQ_PROTO_VARINT = 0,
    AQ_PROTO_FIXED64 = 1,
    AQ_PROTO_BYTES = 2, /* a string or a message */
    AQ_PROTO_FIXED32 = 5,
};

/* What is left of a message. */
struct aq_proto {
    const char *at, *end;
};

struct aq_proto_field {
    uint32_t number;
    enum aq_proto_type type;
    uint64_t value;         /* of all but BYTES */
    struct aq_proto inside; /* of BYTES */
};

/* 1 read, 0 the message has ended; -ENOEXEC where it is cut off or no message. */
int aq_proto_next(struct aq_proto *p, struct aq_proto_field *ret, struct aq_err *reterr);

#endif
