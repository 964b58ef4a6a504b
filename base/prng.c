/* SPDX-License-Identifier: Apache-2.0 */
#include "base/prng.h"

#include <math.h>

void aq_philox(uint32_t ret[4], uint64_t key, uint64_t counter_low, uint64_t counter_high)
{
    uint32_t c0 = (uint32_t)counter_low, c1 = (uint32_t)(counter_low >> 32);
    uint32_t c2 = (uint32_t)counter_high, c3 = (uint32_t)(counter_high >> 32);
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0, n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c0 = n0;
        c1 = (uint32_t)p1;
        c2 = n2;
        c3 = (uint32_t)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    ret[0] = c0;
    ret[1] = c1;
    ret[2] = c2;
    ret[3] = c3;
}

uint64_t aq_prng_u64(uint64_t key, uint64_t counter_low, uint64_t counter_high)
{
    uint32_t w[4];
    aq_philox(w, key, counter_low, counter_high);
    return (uint64_t)w[1] << 32 | w[0];
}

double aq_prng_uniform(uint64_t key, uint64_t counter_low, uint64_t counter_high)
{
    return (double)(aq_prng_u64(key, counter_low, counter_high) >> 11) * 0x1p-53;
}

uint64_t aq_prng_below(uint64_t key, uint64_t counter_low, uint64_t counter_high, uint64_t n)
{
    return (uint64_t)(((unsigned __int128)aq_prng_u64(key, counter_low, counter_high) * n) >> 64);
}

float aq_prng_normal(uint64_t key, uint64_t counter_low, uint64_t counter_high)
{
    uint32_t w[4];
    aq_philox(w, key, counter_low, counter_high);
    double u = ((double)w[0] + 1.0) * 0x1p-32, v = (double)w[1] * 0x1p-32;
    return (float)(sqrt(-2.0 * log(u)) * cos(6.283185307179586 * v));
}
