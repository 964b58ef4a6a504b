/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/versions.h"

#include <string.h>
#include <strings.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

/* Rising order: a name stands for its level and every level before it. */
static const struct {
    const char *name;
    unsigned bit;
    bool compiled;
} level[] = {
    {"avx2", AQ_ISA_AVX2, AQ_HAVE_AVX2},
    {"avx512", AQ_ISA_AVX512, AQ_HAVE_AVX512},
    {"avx512vnni", AQ_ISA_AVX512VNNI, AQ_HAVE_AVX512VNNI},
    {"avx512bf16", AQ_ISA_AVX512BF16, AQ_HAVE_AVX512BF16},
    {"amx", AQ_ISA_AMX, AQ_HAVE_AMX},
};

bool aq_isa_parse(const char *name, unsigned *ret_mask)
{
    if (strcasecmp(name, "ref") == 0) {
        *ret_mask = 0;
        return true;
    }
    unsigned mask = 0;
    for (size_t i = 0; i < AQ_ARRAY_LEN(level); i++) {
        mask |= level[i].bit;
        if (strcasecmp(name, level[i].name) == 0) {
            *ret_mask = mask;
            return true;
        }
    }
    return false;
}

const char *aq_isa_name(unsigned mask)
{
    for (size_t i = AQ_ARRAY_LEN(level); i > 0; i--) {
        if (mask & level[i - 1].bit)
            return level[i - 1].name;
    }
    return "ref";
}

#if defined(__x86_64__)

/* XCR0: which register files the operating system saves (Intel SDM volume 1, 13.3). */
enum {
    XCR0_AVX = 0x6,         /* SSE and the upper halves of YMM */
    XCR0_AVX512 = 0xe6,     /* and opmask, upper halves of ZMM0-15, ZMM16-31 */
    XCR0_AMX = 0x60000,     /* TILECFG and TILEDATA */
    XFEATURE_TILEDATA = 18, /* its component number, for arch_prctl */
    ARCH_REQ_XCOMP_PERM = 0x1023,
};

static uint64_t read_xcr0(void)
{
    uint32_t low, high;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}

/* Linux hands out the 8 KiB of tile state only to processes that ask; the grant holds for every
 * thread of the process and cannot be taken back (Documentation/arch/x86/xstate.rst). */
static bool ask_for_tiles(void)
{
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_TILEDATA) == 0;
}

static unsigned cpu_levels(void)
{
    uint32_t a, b, c, d, b7, c7, d7, a71 = 0;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE))
        return 0;
    uint64_t xcr0 = read_xcr0();
    bool fma = (c & bit_FMA) && (c & bit_F16C);
    if (!__get_cpuid_count(7, 0, &a, &b7, &c7, &d7))
        return 0;
    if (a >= 1)
        __get_cpuid_count(7, 1, &a71, &b, &c, &d);
    unsigned mask = 0;
    if ((xcr0 & XCR0_AVX) != XCR0_AVX || !fma || !(b7 & bit_AVX2) || !(b7 & bit_BMI2))
        return mask;
    mask |= AQ_ISA_AVX2;
    const uint32_t avx512 = bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL;
    if ((xcr0 & XCR0_AVX512) != XCR0_AVX512 || (b7 & avx512) != avx512)
        return mask;
    mask |= AQ_ISA_AVX512;
    if (!(c7 & 1u << 11))
        return mask;
    mask |= AQ_ISA_AVX512VNNI;
    if (!(a71 & 1u << 5)) /* AVX512_BF16: each CPU that has it has VNNI, too */
        return mask;
    mask |= AQ_ISA_AVX512BF16;
    const uint32_t amx = 1u << 24 | 1u << 22; /* AMX-TILE, AMX-BF16 */
    if ((xcr0 & XCR0_AMX) != XCR0_AMX || (d7 & amx) != amx || !AQ_HAVE_AMX || !ask_for_tiles())
        return mask;
    return mask | AQ_ISA_AMX;
}

#else

static unsigned cpu_levels(void)
{
    return 0;
}

#endif

unsigned aq_isa_offered(void)
{
    unsigned compiled = 0;
    for (size_t i = 0; i < AQ_ARRAY_LEN(level); i++)
        compiled |= level[i].compiled ? level[i].bit : 0;
    return cpu_levels() & compiled;
}

unsigned aq_isa_detect(void)
{
    unsigned have = aq_isa_offered();
#if AQ_HAVE_AMX
    if ((have & AQ_ISA_AMX) && !aq_tiles_sound())
        have &= ~(unsigned)AQ_ISA_AMX;
#endif
    return have;
}

unsigned aq_isa_auto(unsigned have, const char **ret_why)
{
    if (aq_isa_offered() & ~have & AQ_ISA_AMX)
        *ret_why = "the CPU's AMX is left out: its tiles do not compute as their manual says";
    else if (have & AQ_ISA_AMX)
        *ret_why = "the highest of this CPU and build: products and prompts' attention in bf16 go "
                   "by AMX tiles";
    else
        *ret_why = "the highest of this CPU and build";
#if AQ_HAVE_AVX512BF16
    if (!(have & AQ_ISA_AMX) && (have & AQ_ISA_AVX512BF16) && aq_dot_is_slow()) {
        *ret_why = "this CPU's VDPBF16PS is slower than products in f32 on rounded numbers";
        return have & ~(unsigned)AQ_ISA_AVX512BF16;
    }
#endif
    return have;
}

unsigned aq_isa_chosen(const struct aq_isa_choice *choice, unsigned have, bool *ret_bf16)
{
    const char *why;
    unsigned isa = choice->given || choice->kept ? choice->mask : aq_isa_auto(have, &why);
    *ret_bf16 = (choice->given ? isa : have) & (AQ_ISA_AVX512BF16 | AQ_ISA_AMX);
    return isa;
}
