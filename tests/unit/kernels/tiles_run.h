/* SPDX-License-Identifier: Apache-2.0
 * tests/unit/kernels/tiles_run.h - one product of tiles as test_tiles.c draws it, run by the
 * instructions or by their emulation. */
#ifndef AQ_TESTS_UNIT_KERNELS_TILES_RUN_H
#define AQ_TESTS_UNIT_KERNELS_TILES_RUN_H

#include <stddef.h>
#include <stdint.h>

enum { TILES_STRIDE_MAX = 80 };

/* Arrays of 16 rows, `stride` bytes apart. */
struct tiles_run {
    uint8_t rows, columns, pairs; /* 1 to 16 each */
    size_t stride;
    char sum[16 * TILES_STRIDE_MAX];   /* += a * b */
    char fresh[16 * TILES_STRIDE_MAX]; /* what a tile just configured comes to */
    char again[16 * TILES_STRIDE_MAX]; /* and one just zeroed */
    char a[16 * TILES_STRIDE_MAX], b[16 * TILES_STRIDE_MAX];
};

void tiles_run_amx(struct tiles_run *t);
void tiles_run_emulated(struct tiles_run *t);

#endif
