/* SPDX-License-Identifier: Apache-2.0
 * tests/reference/kivi.h - KIVI's quantiser as its authors describe it: groups of 32 kept tokens of
 * a channel of keys, and of 32 channels of a value. */
#ifndef AQ_TESTS_REFERENCE_KIVI_H
#define AQ_TESTS_REFERENCE_KIVI_H

#include "tests/reference/reference.h"

#include <stdint.h>

/* The next 32 kept tokens of a head after the first `coded` ones become what their codes stand for,
 * which go up to `codes`. */
void ref_kivi_quantise(struct ref_head *h, uint32_t coded, double codes);

#endif
