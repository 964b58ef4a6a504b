/* SPDX-License-Identifier: Apache-2.0
 * tests/test.h - the one place that includes cmocka.  A test program ends with AQ_TEST_MAIN(tests),
 * which exits 0 or 1: cmocka returns the number of failures, and 77 of them would read as
 * "skipped". */
#ifndef AQ_TESTS_TEST_H
#define AQ_TESTS_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define AQ_TEST_MAIN(tests)                                                                        \
    int main(void)                                                                                 \
    {                                                                                              \
        return cmocka_run_group_tests(tests, NULL, NULL) ? 1 : 0;                                  \
    }

#endif
