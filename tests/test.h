/* SPDX-License-Identifier: Apache-2.0
 * tests/test.h - the one place that includes cmocka.  A test program ends with AQ_TEST_MAIN(tests),
 * which exits 0 or 1: cmocka returns the number of failures, and 77 of them would read as
 * "skipped". */
#ifndef AQ_TESTS_TEST_H
#define AQ_TESTS_TEST_H

#include "base/sanitized.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#define AQ_TEST_MAIN(tests)                                                                        \
    int main(void)                                                                                 \
    {                                                                                              \
        return cmocka_run_group_tests(tests, NULL, NULL) ? 1 : 0;                                  \
    }

/* Sanitizers make kernels and loops some twenty to fifty times slower: tests make the same claims
 * on less. */
enum { TEST_SLOW = AQ_SANITIZED };

/* A file of tests/data; valid until the next call. */
static inline const char *test_data_path(const char *name)
{
    static char path[512];
    const char *dir = getenv("AQ_TEST_DATA");
    int count = snprintf(path, sizeof(path), "%s/%s", dir ? dir : "tests/data", name);
    assert_in_range(count, 1, sizeof(path) - 1);
    return path;
}

#endif
