/* SPDX-License-Identifier: Apache-2.0
 * tests/fuzz/fuzz.h - what fuzz targets share.  A target defines LLVMFuzzerTestOneInput, returns 0,
 * and calls abort() (or fails an assert) when an input makes the code under test break a promise.
 */
#ifndef AQ_TESTS_FUZZ_H
#define AQ_TESTS_FUZZ_H

#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A promise of the code under test. */
static inline void fuzz_check(bool ok)
{
    if (!ok)
        abort();
}

/* The input as a file in memory; close it. */
static inline int fuzz_file(const uint8_t *data, size_t size)
{
    int fd = memfd_create("fuzz", MFD_CLOEXEC);
    fuzz_check(fd >= 0);
    for (size_t have = 0; have < size;) {
        ssize_t n = write(fd, data + have, size - have);
        fuzz_check(n > 0);
        have += (size_t)n;
    }
    return fd;
}

/* A failure must carry its code and one printable line. */
static inline void fuzz_check_error(int rc, const struct aq_err *err)
{
    if (rc >= 0)
        return;
    fuzz_check(err->code == rc && err->text[0] != '\0');
    for (const char *p = err->text; *p; p++)
        fuzz_check((unsigned char)*p >= 0x20 && (unsigned char)*p < 0x7f);
}

/* The same of a failure that names what files call things: in any script, but one line that cannot
 * move a terminal's cursor. */
static inline void fuzz_check_error_text(const struct aq_err *err)
{
    fuzz_check(err->code < 0 && err->text[0] != '\0');
    for (const char *p = err->text; *p; p++)
        fuzz_check((unsigned char)*p >= 0x20 && *p != 0x7f);
}

#endif
