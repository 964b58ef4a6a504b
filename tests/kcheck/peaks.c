/* SPDX-License-Identifier: Apache-2.0
 * What the machine can do at most: loops that stay in registers, and streaming reads.  Functions
 * carry their instruction set as an attribute and are called only for tables that have it. */
#include "tests/kcheck/kc_internal.h"

#include <assert.h>
#include <stdatomic.h>

#define REPEAT_12(M) M(0) M(1) M(2) M(3) M(4) M(5) M(6) M(7) M(8) M(9) M(10) M(11)
#define REPEAT_24(M)                                                                               \
    REPEAT_12(M)                                                                                   \
    M(12) M(13) M(14) M(15) M(16) M(17) M(18) M(19) M(20) M(21) M(22) M(23)

enum {
    TILES_PER_THREAD = 8,
    LOOPS = 20000,
    READ_TILE = 1 << 20,
    READ_RUN = 64 << 20,
};

#if defined(__x86_64__)

#include <immintrin.h>
#include <string.h>

#define NEW_256(i)  __m256 a##i = _mm256_set1_ps(i);
#define STEP_256(i) a##i = _mm256_fmadd_ps(a##i, y, x);
#define KEEP(i)     __asm__ volatile("" : "+v"(a##i));

__attribute__((target("avx2,fma"))) static double fma_avx2(void)
{
    REPEAT_12(NEW_256)
    __m256 x = _mm256_set1_ps(1e-9f), y = _mm256_set1_ps(1);
    for (uint32_t i = 0; i < LOOPS; i++) {
        REPEAT_12(STEP_256)
        REPEAT_12(KEEP)
    }
    return 12.0 * 8 * 2 * LOOPS;
}

#define NEW_512(i)  __m512 a##i = _mm512_set1_ps(i);
#define STEP_512(i) a##i = _mm512_fmadd_ps(a##i, y, x);
#define STEP_DOT(i) a##i = _mm512_dpbf16_ps(a##i, y, x);

__attribute__((target("avx512f"))) static double fma_avx512(void)
{
    REPEAT_24(NEW_512)
    __m512 x = _mm512_set1_ps(1e-9f), y = _mm512_set1_ps(1);
    for (uint32_t i = 0; i < LOOPS; i++) {
        REPEAT_24(STEP_512)
        REPEAT_24(KEEP)
    }
    return 24.0 * 16 * 2 * LOOPS;
}

__attribute__((target("avx512f,avx512bf16"))) static double dot_avx512bf16(void)
{
    REPEAT_24(NEW_512)
    __m512bh x = (__m512bh)_mm512_set1_epi16(0x3080), y = (__m512bh)_mm512_set1_epi16(0x3f80);
    for (uint32_t i = 0; i < LOOPS; i++) {
        REPEAT_24(STEP_DOT)
        REPEAT_24(KEEP)
    }
    return 24.0 * 16 * 4 * LOOPS;
}

__attribute__((target("amx-tile,amx-bf16"))) static double dot_amx(void)
{
    _Alignas(64) struct {
        uint8_t palette, start_row, zero[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } config;
    memset(&config, 0, sizeof(config));
    config.palette = 1;
    for (int i = 0; i < 8; i++) {
        config.row_bytes[i] = 64;
        config.rows[i] = 16;
    }
    /* Some compilers take the instruction to read eight bytes. */
    __asm__ volatile("" ::"r"(&config) : "memory");
    _tile_loadconfig(&config);
    for (uint32_t i = 0; i < LOOPS; i++) {
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_release();
    return 4.0 * 16 * 16 * 32 * 2 * LOOPS;
}

/* A prefetch a page and a half ahead: more than the hardware's own where it stops at pages. */
__attribute__((target("avx2"))) static uint64_t read_avx2(const char *at)
{
    __m256i sum = _mm256_setzero_si256();
    for (uint32_t i = 0; i < READ_TILE; i += 512) {
        for (uint32_t j = 0; j < 512; j += 64)
            _mm_prefetch(at + i + j + 2048, _MM_HINT_T0);
        for (uint32_t j = 0; j < 512; j += 32)
            sum = _mm256_xor_si256(sum, _mm256_loadu_si256((const void *)(at + i + j)));
    }
    return (uint64_t)_mm256_extract_epi64(sum, 0) ^ (uint64_t)_mm256_extract_epi64(sum, 2);
}

static double fma_run(unsigned isa)
{
    return isa & AQ_ISA_AVX512 ? fma_avx512() : isa & AQ_ISA_AVX2 ? fma_avx2() : 0;
}

#define NEW_INT_256(i)  __m256i a##i = _mm256_set1_epi32(i);
#define STEP_INT_256(i) a##i = _mm256_add_epi32(a##i, _mm256_madd_epi16(a##i, y));
#define NEW_INT_512(i)  __m512i a##i = _mm512_set1_epi32(i);
#define STEP_INT_512(i) a##i = _mm512_add_epi32(a##i, _mm512_madd_epi16(a##i, y));
#define STEP_VNNI(i)    a##i = _mm512_dpbusd_epi32(a##i, y, x);

__attribute__((target("avx2"))) static double int8_avx2(void)
{
    REPEAT_12(NEW_INT_256)
    __m256i y = _mm256_set1_epi16(5);
    for (uint32_t i = 0; i < LOOPS; i++) {
        REPEAT_12(STEP_INT_256)
        REPEAT_12(KEEP)
    }
    return 12.0 * 8 * 4 * LOOPS;
}

__attribute__((target("avx512f,avx512bw"))) static double int8_avx512(void)
{
    REPEAT_24(NEW_INT_512)
    __m512i y = _mm512_set1_epi16(5);
    for (uint32_t i = 0; i < LOOPS; i++) {
        REPEAT_24(STEP_INT_512)
        REPEAT_24(KEEP)
    }
    return 24.0 * 16 * 4 * LOOPS;
}

__attribute__((target("avx512f,avx512vnni"))) static double int8_vnni(void)
{
    REPEAT_24(NEW_INT_512)
    __m512i x = _mm512_set1_epi8(3), y = _mm512_set1_epi8(5);
    for (uint32_t i = 0; i < LOOPS; i++) {
        REPEAT_24(STEP_VNNI)
        REPEAT_24(KEEP)
    }
    return 24.0 * 16 * 8 * LOOPS;
}

static double int8_run(unsigned isa)
{
    if (isa & AQ_ISA_AVX512BF16)
        return int8_vnni();
    return isa & AQ_ISA_AVX512 ? int8_avx512() : int8_avx2();
}

static double dot_run(unsigned isa)
{
    if (isa & AQ_ISA_AMX)
        return dot_amx();
    return isa & AQ_ISA_AVX512BF16 ? dot_avx512bf16() : fma_run(isa);
}

static uint64_t read_run(const char *at, unsigned isa)
{
    if (isa & AQ_ISA_AVX2)
        return read_avx2(at);
    uint64_t sum = 0;
    for (uint32_t i = 0; i < READ_TILE; i += 8)
        sum ^= *(const uint64_t *)(const void *)(at + i);
    return sum;
}

#else

static double fma_run(unsigned isa)
{
    return 0;
}

static double dot_run(unsigned isa)
{
    return 0;
}

static double int8_run(unsigned isa)
{
    return 0;
}

static uint64_t read_run(const char *at, unsigned isa)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < READ_TILE; i += 8)
        sum ^= *(const uint64_t *)(const void *)(at + i);
    return sum;
}

#endif

struct peak {
    enum kc_bound bound;
    unsigned isa;
    const char *memory;
    double done; /* by tile 0; all tiles do the same */
    atomic_ullong sink;
};

static void peak_tile(void *arg, uint32_t tile, uint32_t worker)
{
    struct peak *p = arg;
    double done = 0;
    if (p->bound == KC_BOUND_F32) {
        done = fma_run(p->isa);
    } else if (p->bound == KC_BOUND_BF16) {
        done = dot_run(p->isa);
    } else if (p->bound == KC_BOUND_INT8) {
        done = int8_run(p->isa);
    } else {
        atomic_fetch_xor(&p->sink, read_run(p->memory + (size_t)tile * READ_TILE, p->isa));
        done = READ_TILE;
    }
    if (tile == 0)
        p->done = done;
}

double kc_peak_run(struct kc *kc, enum kc_bound bound, uint64_t turn)
{
    assert(bound != KC_BOUND_NONE);
    struct peak p = {.bound = bound, .isa = kc_new(kc)->isa};
    uint32_t tiles = TILES_PER_THREAD * kc_threads(kc);
    if (bound == KC_BOUND_READ) {
        size_t bytes;
        const char *cold = kc_cold(kc, &bytes);
        p.memory = cold + turn * READ_RUN % bytes;
        tiles = READ_RUN / READ_TILE;
    }
    aq_pool_run(aq_exec_pool(kc_exec(kc, 0)), peak_tile, &p, tiles);
    return p.done * tiles;
}
