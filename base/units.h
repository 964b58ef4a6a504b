/* SPDX-License-Identifier: Apache-2.0
 * base/units.h - parses and formats sizes, times and numbers.  Independent of the locale. */
#ifndef AQ_BASE_UNITS_H
#define AQ_BASE_UNITS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct aq_err;

/* Decimal digits only.  False when malformed or above UINT64_MAX. */
bool aq_parse_u64(const char *text, uint64_t *ret);
/* A finite decimal number, with sign and exponent if need be; no hexadecimal, no infinity. */
bool aq_parse_real(const char *text, double *ret);

/* "16GiB", "15.5GB", "512M", bytes: K/M/G and KB/MB/GB are powers of 1000, KiB/MiB/GiB of 1024, any
 * case. */
int aq_parse_size(const char *text, uint64_t *ret, struct aq_err *reterr);
/* "10m", "90s", "72h", "1.5d", plain seconds. */
int aq_parse_duration(const char *text, double *ret_s, struct aq_err *reterr);

enum { AQ_SIZE_TEXT_MAX = 32 };
/* "12.0 MiB", "512 B": three or four digits in the largest unit of 1024 that fits. */
const char *aq_format_size(char text[AQ_SIZE_TEXT_MAX], uint64_t bytes);
/* "850 ms", "42 s", "3 m 20 s", "1 h 02 m", "3 d 04 h". */
const char *aq_format_duration(char text[AQ_SIZE_TEXT_MAX], double seconds);

#endif
