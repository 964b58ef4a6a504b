/* SPDX-License-Identifier: Apache-2.0
 * engine/units.h - numbers as people write them, and back.  Independent of the locale.  Sizes and
 * durations are declared in engine/options.h, which everyone includes. */
#ifndef AQ_ENGINE_UNITS_H
#define AQ_ENGINE_UNITS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Decimal digits only.  False when malformed or above UINT64_MAX. */
bool aq_parse_u64(const char *text, uint64_t *ret);
/* A finite decimal number, with sign and exponent if need be; no hexadecimal, no infinity. */
bool aq_parse_real(const char *text, double *ret);

enum { AQ_SIZE_TEXT_MAX = 32 };
/* "12.0 MiB", "512 B": three or four digits in the largest unit of 1024 that fits. */
const char *aq_format_size(char text[AQ_SIZE_TEXT_MAX], uint64_t bytes);
/* "850 ms", "42 s", "3 m 20 s", "1 h 02 m", "3 d 04 h". */
const char *aq_format_duration(char text[AQ_SIZE_TEXT_MAX], double seconds);

#endif
