/* SPDX-License-Identifier: Apache-2.0
 * engine/records/input.h - the lines of a prompt file: read once from front to back, and again one
 * by one when their turn comes.  Input that cannot be read twice (standard input, pipes) or is
 * compressed is spooled to an unlinked temporary file first.  Knows lines, not records. */
#ifndef AQ_ENGINE_RECORDS_INPUT_H
#define AQ_ENGINE_RECORDS_INPUT_H

#include "base/err.h"
#include "engine/options/options.h"
#include "engine/records/request.h"

struct aq_input;

struct aq_input_opts {
    const char *path;                 /* "-": standard input; NULL with prompts */
    const struct aq_strings *prompts; /* --prompt: records made of these texts */
    enum aq_input_format format;
    size_t read_bytes;              /* at a time, to begin with; 0: 1 MiB */
    const char *spool_dir;          /* of the spooled input */
    int (*interrupted)(void *user); /* polled while spooling and draining; NULL: never */
    void *user;
};

/* The place of a line in the (spooled) file. */
struct aq_line_place {
    uint64_t offset;
    uint32_t bytes; /* without the line end; UINT32_MAX: longer than AQ_LINE_BYTES_MAX */
};

/* -EINVAL: no such file, or it is plainly not text; -EINTR: interrupted. */
int aq_input_open(struct aq_input **ret, const struct aq_input_opts *opts, struct aq_err *reterr);
void aq_input_close(struct aq_input *in);

/* Next non-blank line.  1: *ret is valid until the next call; 0: the end. */
int aq_input_next(struct aq_input *in, struct aq_line *ret, struct aq_line_place *ret_place,
                  struct aq_err *reterr);
/* Reads on to the end without making lines, so that size and hash are those of the whole input. */
int aq_input_drain(struct aq_input *in, struct aq_err *reterr);
/* A line seen before, its index, number and (of a too long one) hash filled in by the caller. */
int aq_input_at(struct aq_input *in, const struct aq_line_place *place, struct aq_line *ret,
                struct aq_err *reterr);

bool aq_input_is_text(const struct aq_input *in); /* a line is a prompt, not JSON */
bool aq_input_is_list(const struct aq_input *in); /* the input begins like a JSON list */
/* Whether the first `bytes` of it are whole lines with this hash: those of an input that has grown
 * since.  1 yes, 0 no; -EIO. */
int aq_input_begins_so(struct aq_input *in, uint64_t bytes, uint64_t hash, struct aq_err *reterr);
uint64_t aq_input_bytes(const struct aq_input *in);
/* xxh3-64 of the bytes read so far, without a byte order mark. */
uint64_t aq_input_hash(const struct aq_input *in);

#endif
