/* SPDX-License-Identifier: Apache-2.0
 * base/compress.h - files of compressed text: gzip (RFC 1952) and Zstandard (RFC 8878), by zlib and
 * libzstd.  Both are members (zstd: frames) one after the other, each with a checksum of its own,
 * and whoever unpacks a file unpacks the text of all of them: a file grows by whole members, and
 * what a power cut leaves of the last one is cut off.  Knows bytes. */
#ifndef AQ_BASE_COMPRESS_H
#define AQ_BASE_COMPRESS_H

#include "base/buf.h"
#include "base/err.h"

#include <sys/types.h>

enum aq_compression { AQ_PLAIN, AQ_GZIP, AQ_ZSTD, AQ_COMPRESSION_COUNT };

const char *aq_compression_name(enum aq_compression c); /* "none", "gzip", "zstd" */
/* By the ending of a name, ".gz" or ".zst"; and how many bytes that ending has, 0 for AQ_PLAIN. */
enum aq_compression aq_compression_of_name(const char *name);
size_t aq_compression_ending(const char *name);
/* By the first bytes of a file, four where it has as many. */
enum aq_compression aq_compression_of_bytes(const void *head, size_t count);
/* -EINVAL: this build lacks the library that `path` needs. */
int aq_compression_check(enum aq_compression c, const char *path, struct aq_err *reterr);

/* About how much text a member should have: a damaged one is lost whole, and small ones are larger
 * than their share of a large one. */
enum { AQ_MEMBER_BYTES = 256 << 10 };

/* Appends one member to dst.  Not for AQ_PLAIN.  0 or -ENOMEM. */
int aq_compress(struct aq_buf *dst, enum aq_compression c, const char *text, size_t bytes);

/* ---- unpacking ---- */

struct aq_expander;

/* Not for AQ_PLAIN. */
int aq_expander_open(struct aq_expander **ret, enum aq_compression c, struct aq_err *reterr);
void aq_expander_close(struct aq_expander *e);
/* The bytes that follow are those of a new member. */
void aq_expander_begin(struct aq_expander *e);
/* Unpacks what it can of *in, which moves on, into dst.  1: the member has ended, and its checksum
 * is right; 0: it goes on; -EBADMSG: it is damaged, or none; -EOVERFLOW: it says that it needs more
 * memory than a file may ask for (zstd: a window of more than 128 MiB); -ENOMEM. */
int aq_expand(struct aq_expander *e, const char **in, size_t *in_bytes, char *dst, size_t capacity,
              size_t *ret_bytes);

/* ---- files that may be damaged ---- */

/* Reads the text of all whole members of a file, and passes over what lies between and behind them.
 * A member is read to its end before any of its text is given out. */
struct aq_members;

/* damaged (NULL allowed) gets each run of bytes that is of no whole member; last: none comes behind
 * it.  The descriptor stays the caller's. */
int aq_members_open(struct aq_members **ret, int fd, enum aq_compression c,
                    void (*damaged)(void *user, uint64_t begin, uint64_t end, bool last),
                    void *user, struct aq_err *reterr);
void aq_members_close(struct aq_members *m);
/* Up to `count` bytes of text; their number, 0 at the end, or -errno. */
ssize_t aq_members_read(void *members, void *dst, size_t count);
/* The end of the last whole member met so far. */
uint64_t aq_members_end(const struct aq_members *m);
/* What can be unpacked of a run of bytes that is of no whole member, as far as that goes: for eyes,
 * as no checksum vouches for it.  It is handed on in pieces, as it may be as large as the file; a
 * result of `put` other than 0 ends it and is returned. */
typedef int aq_members_text_fn(void *user, const char *bytes, size_t count);
int aq_members_salvage(int fd, enum aq_compression c, uint64_t begin, uint64_t end,
                       aq_members_text_fn *put, void *user);

#endif
