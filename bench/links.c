/* SPDX-License-Identifier: Apache-2.0
 * bench/links.c - the links of the emulated device beside what they are asked to be: each way
 * alone, both at once, by size of a copy, idle and while a memory-bound loop computes.  Also what
 * the lanes cost in core time, and how long a hand-over from stream to stream takes.
 *
 *     build/bench/links [--h2d GB/S] [--d2h GB/S] [--seconds S] [--rounds N] [--json] */
#include "base/clock.h"
#include "base/mem.h"
#include "base/types.h"
#include "engine/build_info.h"
#include "offload/device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>

enum { DEPTH = 8, ROUNDS_MAX = 101, HOPS = 2000 };
#define AREA_BYTES    (256 * AQ_MIB) /* per direction and side: far larger than any cache */
#define COMPUTE_BYTES (256 * AQ_MIB)
#define COMPUTE_STEP  (256 * AQ_KIB)

struct options {
    double rate[AQ_LINK_COUNT]; /* GB/s */
    double seconds;             /* per line and round */
    unsigned rounds;
    bool json;
};

struct bench {
    struct options o;
    struct aq_mem *mem;
    struct aq_device *d;
    struct aq_completions *done;
    struct aq_device_stream *stream[AQ_LINK_COUNT];
    char *host[AQ_LINK_COUNT], *device[AQ_LINK_COUNT];
    uint64_t *compute;
    uint64_t sink; /* what the loop computes, so that it is not left out */
    unsigned lines;
};

/* One measurement. */
struct sample {
    double gb_s[AQ_LINK_COUNT]; /* from the first end to the last */
    double compute_gb_s;        /* of the loop */
    double lane_cores;          /* core seconds per second, all lanes together */
};

static double cpu_s(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void die(const char *what, const struct aq_err *err)
{
    fprintf(stderr, "links: %s: %s\n", what, err->text);
    exit(1);
}

static void compute_some(struct bench *b, uint64_t *at)
{
    const uint64_t *p = b->compute + *at / 8;
    uint64_t sum = 0;
    for (size_t i = 0; i < COMPUTE_STEP / 8; i++)
        sum += p[i];
    b->sink += sum;
    *at = (*at + COMPUTE_STEP) % COMPUTE_BYTES;
}

/* Keeps a few copies of one size in flight. */
struct lane {
    enum aq_direction direction;
    bool used;
    uint64_t copy_bytes, cursor, moved;
    uint32_t out;
    struct aq_copy_piece piece[DEPTH];
    struct aq_device_span span[DEPTH];
    uint64_t first_ns, last_ns;
};

static void lane_submit(struct bench *b, struct lane *l, uint32_t slot)
{
    char *host = b->host[l->direction] + l->cursor, *device = b->device[l->direction] + l->cursor;
    bool up = l->direction == AQ_H2D;
    l->piece[slot] = (struct aq_copy_piece){up ? device : host, up ? host : device, l->copy_bytes};
    l->cursor = l->cursor + 2 * l->copy_bytes > AREA_BYTES ? 0 : l->cursor + l->copy_bytes;
    struct aq_device_copy copy = {.direction = l->direction,
                                  .pieces = &l->piece[slot],
                                  .piece_count = 1,
                                  .token = (uint64_t)l->direction * DEPTH + slot,
                                  .done = b->done,
                                  .span = &l->span[slot]};
    if (aq_device_copy(b->stream[l->direction], &copy) < 0)
        die("a stream is full", &(struct aq_err){0});
    l->out++;
}

static void take(struct bench *b, struct lane lane[], uint64_t timeout_ns, bool again)
{
    struct aq_completion c[2 * DEPTH];
    int n = aq_completions_wait(b->done, c, 2 * DEPTH, timeout_ns);
    for (int i = 0; i < n; i++) {
        struct lane *l = &lane[c[i].token / DEPTH];
        uint32_t slot = c[i].token % DEPTH;
        l->out--;
        /* From the end of the first copy on: when that began a thread still had to wake up. */
        l->last_ns = l->span[slot].end_ns;
        if (l->first_ns == 0)
            l->first_ns = l->last_ns;
        else
            l->moved += l->copy_bytes;
        if (again)
            lane_submit(b, l, slot);
    }
}

static struct sample measure(struct bench *b, bool up, bool down, uint64_t copy_bytes, bool compute)
{
    struct lane lane[AQ_LINK_COUNT] = {{.direction = AQ_H2D, .used = up, .copy_bytes = copy_bytes},
                                       {.direction = AQ_D2H, .used = down}};
    lane[AQ_D2H].copy_bytes = copy_bytes;
    double process = cpu_s(CLOCK_PROCESS_CPUTIME_ID), self = cpu_s(CLOCK_THREAD_CPUTIME_ID);
    uint64_t start = aq_clock_ns(), end = start + (uint64_t)(1e9 * b->o.seconds);
    uint64_t at = 0, computed = 0;
    for (int i = 0; i < AQ_LINK_COUNT; i++) {
        for (uint32_t k = 0; lane[i].used && k < DEPTH; k++)
            lane_submit(b, &lane[i], k);
    }
    while (aq_clock_ns() < end) {
        if (compute) {
            compute_some(b, &at);
            computed += COMPUTE_STEP;
        }
        take(b, lane, compute ? 0 : 1000000, true);
    }
    double elapsed = 1e-9 * (double)(aq_clock_ns() - start);
    double lanes = cpu_s(CLOCK_PROCESS_CPUTIME_ID) - process;
    lanes -= cpu_s(CLOCK_THREAD_CPUTIME_ID) - self;
    while (lane[0].out + lane[1].out > 0)
        take(b, lane, AQ_WAIT_FOREVER, false);
    struct sample s = {.compute_gb_s = 1e-9 * (double)computed / elapsed,
                       .lane_cores = lanes / elapsed};
    for (int i = 0; i < AQ_LINK_COUNT; i++) {
        if (lane[i].last_ns > lane[i].first_ns)
            s.gb_s[i] = (double)lane[i].moved / (double)(lane[i].last_ns - lane[i].first_ns);
    }
    return s;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

struct summary {
    double median, low, high;
};

static struct summary summarize(double *value, unsigned count)
{
    qsort(value, count, sizeof(*value), by_value);
    return (struct summary){value[count / 2], value[0], value[count - 1]};
}

static void print_summary(const struct bench *b, const char *name, struct summary s, double ceiling)
{
    if (b->o.json) {
        printf(", \"%s\": {\"median\": %.4f, \"low\": %.4f, \"high\": %.4f", name, s.median, s.low,
               s.high);
        if (ceiling > 0)
            printf(", \"ceiling\": %.4f", ceiling);
        printf("}");
    } else if (ceiling > 0) {
        printf("  %s %6.2f of %5.2f GB/s (%.2f..%.2f)", name, s.median, ceiling, s.low, s.high);
    } else {
        printf("  %s %6.2f (%.2f..%.2f)", name, s.median, s.low, s.high);
    }
}

static void line_begin(struct bench *b, const char *what, uint64_t copy_bytes, bool compute)
{
    if (b->o.json)
        printf("%s\n  {\"what\": \"%s\", \"copy_bytes\": %llu, \"computing\": %s",
               b->lines ? "," : "", what, (unsigned long long)copy_bytes,
               compute ? "true" : "false");
    else
        printf("%-8s %6llu KiB %-9s", what, (unsigned long long)copy_bytes / 1024,
               compute ? "computing" : "idle");
    b->lines++;
}

static void line(struct bench *b, bool up, bool down, uint64_t copy_bytes, bool compute)
{
    double gb_s[AQ_LINK_COUNT][ROUNDS_MAX], loop[ROUNDS_MAX], cores[ROUNDS_MAX];
    for (unsigned i = 0; i < b->o.rounds; i++) {
        struct sample s = measure(b, up, down, copy_bytes, compute);
        gb_s[AQ_H2D][i] = s.gb_s[AQ_H2D];
        gb_s[AQ_D2H][i] = s.gb_s[AQ_D2H];
        loop[i] = s.compute_gb_s;
        cores[i] = s.lane_cores;
    }
    line_begin(b, up ? down ? "both" : "h2d" : down ? "d2h" : "none", copy_bytes, compute);
    if (up)
        print_summary(b, "h2d_gb_s", summarize(gb_s[AQ_H2D], b->o.rounds), b->o.rate[AQ_H2D]);
    if (down)
        print_summary(b, "d2h_gb_s", summarize(gb_s[AQ_D2H], b->o.rounds), b->o.rate[AQ_D2H]);
    if (up || down)
        print_summary(b, "lane_cores", summarize(cores, b->o.rounds), 0);
    if (compute)
        print_summary(b, "loop_gb_s", summarize(loop, b->o.rounds), 0);
    printf(b->o.json ? "}" : "\n");
}

static int do_nothing(void *arg, void *native)
{
    (void)arg;
    (void)native;
    return 0;
}

/* A chain that goes to and fro between two streams: what one hand-over costs. */
static void line_chain(struct bench *b)
{
    double us[ROUNDS_MAX];
    for (unsigned i = 0; i < b->o.rounds; i++) {
        uint64_t start = aq_clock_ns();
        for (uint64_t hop = 0; hop < HOPS; hop++) {
            struct aq_device_stream *s = b->stream[hop % 2], *other = b->stream[1 - hop % 2];
            bool ask = hop % DEPTH == DEPTH - 1;
            struct aq_device_job job = {.fn = do_nothing, .done = b->done};
            job.token = ask ? 0 : AQ_TOKEN_NONE;
            aq_device_follow(s, other, aq_device_mark(other));
            if (aq_device_run(s, &job) < 0)
                die("a stream is full", &(struct aq_err){0});
            struct aq_completion c;
            while (ask && aq_completions_wait(b->done, &c, 1, AQ_WAIT_FOREVER) == 0)
                continue;
        }
        us[i] = 1e-3 * (double)(aq_clock_ns() - start) / HOPS;
    }
    line_begin(b, "chain", 0, false);
    print_summary(b, "hand_over_us", summarize(us, b->o.rounds), 0);
    printf(b->o.json ? "}" : "\n");
}

static void bench_open(struct bench *b)
{
    struct aq_err err;
    uint64_t limits[AQ_TIER_COUNT] = {AQ_LINK_COUNT * AREA_BYTES, UINT64_MAX, 0};
    struct aq_device_opts o = {.kind = AQ_DEVICE_EMULATED};
    if (aq_mem_open(&b->mem, limits, &err) < 0 ||
        aq_completions_open(&b->done, 4 * DEPTH, NULL, &err) < 0)
        die("open", &err);
    for (int i = 0; i < AQ_LINK_COUNT; i++)
        o.link[i].bytes_per_s = (uint64_t)(1e9 * b->o.rate[i]);
    o.mem = b->mem;
    if (aq_device_open(&b->d, &o, &err) < 0)
        die("device", &err);
    for (int i = 0; i < AQ_LINK_COUNT; i++) {
        struct aq_device_stream_opts so = {.name = i == AQ_H2D ? "h2d" : "d2h", .depth = DEPTH};
        if (aq_device_alloc((void **)&b->host[i], b->d, AQ_MEMORY_PINNED, "host", AREA_BYTES,
                            &err) < 0 ||
            aq_device_alloc((void **)&b->device[i], b->d, AQ_MEMORY_DEVICE, "device", AREA_BYTES,
                            &err) < 0 ||
            aq_device_stream_open(&b->stream[i], b->d, &so, &err) < 0)
            die("device", &err);
        memset(b->host[i], 1, AREA_BYTES);
    }
    if (aq_mem_alloc((void **)&b->compute, b->mem, AQ_HOST, "loop", COMPUTE_BYTES, &err) < 0)
        die("loop", &err);
}

static void bench_close(struct bench *b)
{
    for (int i = 0; i < AQ_LINK_COUNT; i++) {
        aq_device_stream_close(b->stream[i]);
        aq_device_free(b->d, AQ_MEMORY_PINNED, "host", b->host[i], AREA_BYTES);
        aq_device_free(b->d, AQ_MEMORY_DEVICE, "device", b->device[i], AREA_BYTES);
    }
    aq_mem_free(b->mem, AQ_HOST, "loop", b->compute, COMPUTE_BYTES);
    aq_device_close(b->d);
    aq_completions_close(b->done);
    aq_mem_close(b->mem);
}

static double number(const char *option, const char *text, double max)
{
    char *end;
    double x = text ? strtod(text, &end) : 0;
    if (!text || *end || !(x > 0) || x > max) {
        fprintf(stderr, "links: %s: expected a number above 0 and at most %g, found '%s'\n", option,
                max, text ? text : "nothing");
        exit(1);
    }
    return x;
}

static void usage(const char *found)
{
    fprintf(stderr,
            "links: expected --h2d GB/S, --d2h GB/S, --seconds S, --rounds N or --json, "
            "found '%s'\n",
            found);
    exit(1);
}

static struct options parse(int argc, char **argv)
{
    struct options o = {.rate = {4, 4}, .seconds = 0.5, .rounds = 5};
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (strcmp(argv[i], "--json") == 0) {
            o.json = true;
            continue;
        }
        if (strcmp(argv[i], "--h2d") == 0)
            o.rate[AQ_H2D] = number(argv[i], value, 1000);
        else if (strcmp(argv[i], "--d2h") == 0)
            o.rate[AQ_D2H] = number(argv[i], value, 1000);
        else if (strcmp(argv[i], "--seconds") == 0)
            o.seconds = number(argv[i], value, 3600);
        else if (strcmp(argv[i], "--rounds") == 0)
            o.rounds = (unsigned)number(argv[i], value, ROUNDS_MAX);
        else
            usage(argv[i]);
        i++;
    }
    o.rounds = o.rounds ? o.rounds : 1;
    return o;
}

int main(int argc, char **argv)
{
    static const uint64_t copy_bytes[] = {64 * AQ_KIB, AQ_MIB, 8 * AQ_MIB, 64 * AQ_MIB};
    struct bench b = {.o = parse(argc, argv)};
    struct utsname u;
    uname(&u);
    bench_open(&b);
    if (b.o.json)
        printf("{\"commit\": \"%s\", \"machine\": \"%s\", \"kernel\": \"%s\", \"rounds\": %u, "
               "\"seconds\": %g, \"lines\": [",
               aq_build_commit(), u.machine, u.release, b.o.rounds, b.o.seconds);
    else
        printf("medians of %u rounds of %g s (lowest..highest); commit %s\n", b.o.rounds,
               b.o.seconds, aq_build_commit());
    line(&b, false, false, 0, true);
    for (size_t i = 0; i < AQ_ARRAY_LEN(copy_bytes); i++) {
        for (int computing = 0; computing < 2; computing++) {
            line(&b, true, false, copy_bytes[i], computing);
            line(&b, false, true, copy_bytes[i], computing);
            line(&b, true, true, copy_bytes[i], computing);
        }
    }
    line_chain(&b);
    if (b.o.json)
        printf("\n]}\n");
    bench_close(&b);
    return 0;
}
