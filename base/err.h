/* SPDX-License-Identifier: Apache-2.0
 * base/err.h - operating errors: a negative errno and one sentence.
 * A function that can fail returns 0 or -Exxx and fills reterr (its last argument, NULL allowed).
 * The code also chooses the exit status of the program:
 *   -EINVAL            usage or configuration (exit 1)
 *   -ENOEXEC           a model, tokenizer or store file is malformed or unsupported (exit 2)
 *   -ENOBUFS           no plan fits the budgets (exit 2)
 *   -ENOMEM, -ENODEV, -ENOENT, -EAGAIN, -EMFILE, -ENFILE  cannot run here: does not fit, no device,
 *                      file missing, no more threads or descriptors (exit 2)
 *   -EIO, -ENOSPC, ... I/O failed while running (exit 4)
 *   -EINTR             interrupted (exit 130) */
#ifndef AQ_BASE_ERR_H
#define AQ_BASE_ERR_H

#include <errno.h>
#include <stddef.h>

struct aq_err {
    int code;         /* negative errno; 0 when nothing went wrong */
    const char *file; /* source file that raised the error */
    int line;
    char text[1024]; /* one sentence: the thing, what was expected, what was found */
};

/* Fills reterr (NULL allowed) and returns code, which is evaluated once.  The text never ends in a
 * newline.  The value of the expression is the code itself, so that the compiler sees that a
 * failure is a failure and does not warn about outputs that only success sets. */
#define aq_error(reterr, code, ...)                                                                \
    ({                                                                                             \
        const int aq_error_code_ = (code);                                                         \
        aq_error_at(reterr, aq_error_code_, __FILE__, __LINE__, __VA_ARGS__);                      \
        aq_error_code_;                                                                            \
    })
int aq_error_at(struct aq_err *reterr, int code, const char *file, int line, const char *format,
                ...) __attribute__((format(printf, 5, 6)));

/* -ENOMEM: the sentence names the thing that could not be allocated, and the cure. */
#define aq_error_memory(reterr, format, ...)                                                       \
    aq_error(reterr, -ENOMEM,                                                                      \
             "out of memory: " format                                                              \
             "; end other programs or raise the limit (ulimit -v, cgroup)",                        \
             ##__VA_ARGS__)

/* Puts "format: " in front of the text of an error already raised; returns its code. */
int aq_error_prefix(struct aq_err *err, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Puts more behind the text of an error already raised, as far as there is room. */
void aq_error_append(struct aq_err *err, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Makes bytes from outside fit for a message: anything but printable ASCII becomes '?', and a text
 * longer than dst_bytes (at least 8, the NUL included) is cut and ends in "...".  Returns dst. */
const char *aq_quote(char *dst, size_t dst_bytes, const void *src, size_t src_bytes);

/* Of a file that an option names and that cannot be read: puts the option in front of the text, and
 * the code becomes -EINVAL, as the command line is what must be changed (-ENOMEM stays).  Returns
 * the code. */
int aq_error_named(struct aq_err *err, int rc, const char *option);

/* The code for a directory in which no file can be made, by the errno of the attempt: -ENOMEM (no
 * space), -ENOENT, -EIO (the disk fails), else -ENODEV (read-only, forbidden, no directory). */
int aq_err_of_place(int errnum);

/* The code for results that cannot be written or synced, by the errno: always one with exit status
 * 4, whatever the errno means elsewhere. */
int aq_err_of_io(int errnum);

/* The program's exit status for a code, as the table above says; 0 for 0. */
int aq_err_exit_status(int code);

#endif
