/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model/random_weights.h"

#include <math.h>
#include <string.h>
#include <xxhash.h>

/* Does the tensor's name end so?  A name of rows of it has '#' and a word behind that. */
static int ends_with(const char *text, const char *end)
{
    size_t n = strcspn(text, "#"), m = strlen(end);
    return n >= m && memcmp(text + n - m, end, m) == 0;
}

static int ends_with_one(const char *text, const char *const *ends)
{
    for (; *ends; ends++) {
        if (ends_with(text, *ends))
            return 1;
    }
    return 0;
}

struct aq_random_tensor aq_random_tensor(uint64_t seed, const char *name,
                                         const char *const *residual_writers, uint32_t layers)
{
    struct aq_random_tensor t = {.key = XXH3_64bits_withSeed(name, strlen(name), seed)};
    if (ends_with(name, ".bias"))
        t.deviation = 0.01f;
    else if (ends_with(name, "norm.weight"))
        t.mean = 1.0f, t.deviation = 0.02f;
    else if (ends_with_one(name, residual_writers))
        t.deviation = 0.02f / sqrtf(2.0f * (float)(layers ? layers : 1));
    else
        t.deviation = 0.02f;
    return t;
}

/* Finaliser of SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators",
 * OOPSLA 2014). */
static uint64_t mix64(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

/* Two 32-bit hashes of the column under the row's key, by the finaliser of MurmurHash3 and one more
 * round: 32-bit multiplies and shifts only, so that a compiler makes vectors of it. */
static inline __attribute__((always_inline)) void random_row(float *restrict dst, uint64_t row_key,
                                                             float mean, float scale, uint32_t cols)
{
    const uint32_t key_a = (uint32_t)row_key, key_b = (uint32_t)(row_key >> 32);
    for (uint32_t c = 0; c < cols; c++) {
        uint32_t a = c * 0x9e3779b1u ^ key_a;
        a = (a ^ (a >> 16)) * 0x85ebca6bu;
        a = (a ^ (a >> 13)) * 0xc2b2ae35u;
        a ^= a >> 16;
        uint32_t b = (a ^ key_b) * 0x27d4eb2fu;
        b ^= b >> 15;
        int32_t sum = (int32_t)((a & 0xffff) + (a >> 16) + (b & 0xffff) + (b >> 16));
        /* The sum is below 2^18: exact in f32.  One product, one addition, each rounded once. */
        dst[c] = mean + (float)(sum - 2 * 0xffff) * scale;
    }
}

static void rows_baseline(float *dst, const struct aq_random_tensor *t, float scale,
                          uint32_t first_row, uint32_t rows, uint32_t cols)
{
    for (uint32_t r = 0; r < rows; r++)
        random_row(dst + (size_t)r * cols, mix64(t->key + first_row + r), t->mean, scale, cols);
}

#if defined(__x86_64__)
/* The same source for wider vectors: three times as fast.  Without FMA, so the bits are the same.
 */
__attribute__((target("avx2"))) static void rows_avx2(float *dst, const struct aq_random_tensor *t,
                                                      float scale, uint32_t first_row,
                                                      uint32_t rows, uint32_t cols)
{
    for (uint32_t r = 0; r < rows; r++)
        random_row(dst + (size_t)r * cols, mix64(t->key + first_row + r), t->mean, scale, cols);
}
#endif

void aq_random_rows(float *dst, const struct aq_random_tensor *t, uint32_t first_row, uint32_t rows,
                    uint32_t cols)
{
    /* Deviation of the sum of four uniform integers 0..65535: sqrt(4 (2^32 - 1) / 12). */
    const float scale = t->deviation / 37837.2275f;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2")) {
        rows_avx2(dst, t, scale, first_row, rows, cols);
        return;
    }
#endif
    rows_baseline(dst, t, scale, first_row, rows, cols);
}
