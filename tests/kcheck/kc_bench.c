/* SPDX-License-Identifier: Apache-2.0
 * Timing: a kernel's samples are taken in turns with samples of what bounds it (and of a peer), so
 * that a neighbour on the machine, or a clock that moves, meets all of them alike. */
#include "tests/kcheck/kc_internal.h"

#include "base/clock.h"
#include "base/prng.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum {
    SAMPLES_MIN = 7,
    SAMPLES_MAX = 400,
};

/* Calls are repeated until a sample is this long.  The kernel counts the processor time of threads
 * that are running elsewhere only at its ticks. */
static double sample_s(const struct kc *kc)
{
    return kc->options->cpu_clock ? 40e-3 : 4e-3;
}

void *kc_map_huge(size_t bytes)
{
    const size_t huge = 2 * AQ_MIB;
    char *base =
        mmap(NULL, bytes + huge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED) {
        fprintf(stderr, "kcheck: no %zu bytes of memory\n", bytes);
        exit(1);
    }
    char *start = (char *)aq_align_up((uintptr_t)base, huge);
    madvise(start, bytes, MADV_HUGEPAGE);
    return start;
}

void *kc_hot(struct kc *kc, size_t bytes)
{
    bytes = aq_align_up(bytes, 2 * AQ_MIB);
    char *start = kc_map_huge(bytes);
    if (kc->map_count == KC_BUFFERS_MAX)
        exit(1);
    kc->map[kc->map_count++] = (struct kc_map){start, bytes};
    memset(start, 0, bytes);
    return start;
}

/* Signs and ten mantissa bits are random, the exponent is that of 1 in f16 and lies below that of 1
 * in bf16 and f32: numbers of magnitude below 2 in all three. */
const void *kc_make_cold(size_t bytes)
{
    uint64_t *cold = kc_map_huge(bytes);
    uint64_t state = 0x9e3779b97f4a7c15ull;
    for (size_t i = 0; i < bytes / 8; i++) {
        state ^= state << 13; /* xorshift64: Marsaglia, "Xorshift RNGs", 2003 */
        state ^= state >> 7;
        state ^= state << 17;
        cold[i] = (state & 0x83ff83ff83ff83ffull) | 0x3c003c003c003c00ull;
    }
    return cold;
}

const void *kc_cold(struct kc *kc, size_t *ret_bytes)
{
    *ret_bytes = kc->cold_bytes;
    return kc->cold;
}

/* ---- samples ---- */

struct samples {
    double value[SAMPLES_MAX];
    uint32_t count;
};

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double quantile(struct samples *s, double q)
{
    qsort(s->value, s->count, sizeof(s->value[0]), compare_doubles);
    return s->value[(uint32_t)(q * (s->count - 1) + 0.5)];
}

/* Seconds by the clock asked for.  Processor time is that of all threads, so a thread's share of it
 * stands for the time the work would take with the machine to itself. */
static double now(const struct kc *kc)
{
    if (!kc->options->cpu_clock)
        return (double)aq_clock_ns() * 1e-9;
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return ((double)t.tv_sec + (double)t.tv_nsec * 1e-9) / kc->options->threads;
}

/* One sample: seconds per call of `calls` calls. */
static double time_calls(const struct kc *kc, void (*call)(void *, uint64_t), void *arg,
                         uint32_t calls, uint64_t *turn)
{
    double start = now(kc);
    for (uint32_t i = 0; i < calls; i++)
        call(arg, (*turn)++);
    return (now(kc) - start) / calls;
}

static uint32_t calls_per_sample(const struct kc *kc, void (*call)(void *, uint64_t), void *arg,
                                 uint64_t *turn)
{
    double once = time_calls(kc, call, arg, 1, turn); /* warms up */
    once = fmin(once, time_calls(kc, call, arg, 1, turn));
    double wanted = sample_s(kc);
    return once >= wanted ? 1 : (uint32_t)fmin(wanted / fmax(once, 1e-8) + 1, 1e6);
}

/* Rate of the bound, in flop/s or bytes/s, of one sample. */
static double bound_sample(struct kc *kc, enum kc_bound bound, uint64_t *turn)
{
    double start = now(kc), done = 0, seconds = 0;
    while (seconds < sample_s(kc)) {
        done += kc_peak_run(kc, bound, (*turn)++);
        seconds = now(kc) - start;
    }
    return done / seconds;
}

void kc_bench(struct kc *kc, const struct kc_bench *b)
{
    static struct samples own, bound, peer;
    own.count = bound.count = peer.count = 0;
    uint64_t turn = 0, peer_turn = 0, bound_turn = 0;
    uint32_t calls = calls_per_sample(kc, b->call, b->arg, &turn);
    uint32_t peer_calls = b->peer ? calls_per_sample(kc, b->peer, b->peer_arg, &peer_turn) : 0;
    double end = aq_clock_s() + kc->options->duration_s;
    while (own.count < SAMPLES_MIN || (aq_clock_s() < end && own.count < SAMPLES_MAX)) {
        own.value[own.count++] = time_calls(kc, b->call, b->arg, calls, &turn);
        if (b->bound != KC_BOUND_NONE)
            bound.value[bound.count++] = bound_sample(kc, b->bound, &bound_turn);
        if (b->peer)
            peer.value[peer.count++] = time_calls(kc, b->peer, b->peer_arg, peer_calls, &peer_turn);
    }
    if (kc->report->row_count == KC_ROWS_MAX)
        return;
    struct kc_row *row = &kc->report->row[kc->report->row_count++];
    double work = b->bound == KC_BOUND_READ || b->flops <= 0 ? b->bytes : b->flops;
    *row = (struct kc_row){.bound = b->bound,
                           .samples = own.count,
                           .call_s = quantile(&own, 0.5),
                           .best_s = quantile(&own, 0)};
    memcpy(row->name, kc->name, sizeof(row->name));
    snprintf(row->table, sizeof(row->table), "%s", kc->traits[kc->table].name);
    row->in_bytes = work == b->bytes;
    row->spread = (quantile(&own, 0.75) - quantile(&own, 0.25)) / 2 / row->call_s;
    row->rate = work / row->call_s;
    row->best_rate = work / row->best_s;
    if (bound.count) {
        row->bound_rate = quantile(&bound, 0.5);
        row->best_bound_rate = quantile(&bound, 1);
    }
    if (peer.count) {
        row->peer_call_s = quantile(&peer, 0.5);
        row->peer_best_s = quantile(&peer, 0);
    }
    kc_print_row(row);
}

/* ---- lines ---- */

static const char *const bound_names[KC_BOUND_COUNT] = {[KC_BOUND_NONE] = "",
                                                        [KC_BOUND_READ] = "read",
                                                        [KC_BOUND_F32] = "f32 fma",
                                                        [KC_BOUND_BF16] = "bf16 dot",
                                                        [KC_BOUND_INT8] = "int8 dot"};

const char *kc_bound_name(enum kc_bound bound)
{
    return bound_names[bound];
}

void kc_print_heading(void)
{
    printf("%-40s %-10s %11s %5s  %18s  %-20s %5s  of peer  best\n", "", "", "time/call", "+/-",
           "rate", "of measured bound", "best");
}

void kc_print_row(const struct kc_row *row)
{
    bool micro = row->call_s < 1e-3;
    printf("%-40s %-10s %8.*f %s %4.1f%%  %9.*f %s", row->name, row->table, micro ? 2 : 3,
           row->call_s * (micro ? 1e6 : 1e3), micro ? "us" : "ms", row->spread * 100,
           row->rate < 1e11 ? 2 : 1, row->rate * 1e-9, row->in_bytes ? "GB/s   " : "GFLOP/s");
    if (row->bound_rate > 0)
        printf("  %3.0f%% of %6.*f %-8s %3.0f%%", 100 * row->rate / row->bound_rate,
               row->bound_rate < 1e11 ? 2 : 0, row->bound_rate * 1e-9, bound_names[row->bound],
               100 * row->best_rate / row->best_bound_rate);
    if (row->peer_call_s > 0)
        printf("   %5.2f   %5.2f", row->peer_call_s / row->call_s, row->peer_best_s / row->best_s);
    printf("\n");
    fflush(stdout);
}
