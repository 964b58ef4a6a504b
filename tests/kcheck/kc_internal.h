/* SPDX-License-Identifier: Apache-2.0
 * tests/kcheck/kc_internal.h - shared by kcheck.c (options, children, reports), kc_data.c (buffers,
 * fills, comparison), kc_bench.c (timing), peaks.c and the programs made of them (kc_cpu.c,
 * kc_cuda.c); checks include kcheck.h only. */
#ifndef AQ_TESTS_KCHECK_KC_INTERNAL_H
#define AQ_TESTS_KCHECK_KC_INTERNAL_H

#include "tests/kcheck/kcheck.h"

#include <stdio.h>

enum {
    KC_TABLES_MAX = 8,
    KC_NAME_MAX = 96,
    KC_WHY_MAX = 200,
    KC_ROWS_MAX = 1024,
    KC_BUFFERS_MAX = 256,
    KC_THREADS_MAX = 64,
};

struct kc_options {
    uint64_t seed;
    const char *filter, *isa, *peer, *json;
    uint32_t threads, sample;
    uint32_t table_first; /* the first table that is compared with the reference */
    double duration_s;    /* of a benchmark line */
    bool bench, list, in_process;
    bool cpu_clock; /* time by processor time */
    /* NULL, or told of buffers that checks are given, so that a device reaches them. */
    void (*mapped)(void *base, size_t bytes);
    void (*unmapped)(void *base);
    /* The same of the arrays in them, to the byte. */
    void (*array)(const void *base, size_t bytes);
    void (*forget)(const void *base);
};

/* One benchmark line. */
struct kc_row {
    char name[KC_NAME_MAX], table[16];
    enum kc_bound bound;
    bool in_bytes;                 /* rate is bytes/s, else flop/s */
    double call_s, best_s, spread; /* median, least, half the distance of the quartiles / median */
    double rate, bound_rate;       /* medians: flop/s or bytes/s */
    double best_rate, best_bound_rate;
    double peer_call_s, peer_best_s; /* 0 without a peer */
    uint32_t samples;
};

/* What a child tells its parent: lies in shared memory, so that it outlives a crash. */
struct kc_report {
    char present[KC_NAME_MAX]; /* the case being run */
    uint32_t cases, failures;
    double worst; /* largest difference as a share of its limit */
    char worst_name[KC_NAME_MAX], worst_why[KC_WHY_MAX];
    uint32_t row_count; /* this and the rows are of the whole run; the above of one child */
    struct kc_row row[KC_ROWS_MAX];
};

struct kc_traits {
    const char *name;
    bool rows_only;       /* kc_rows_only() */
    const char *emulates; /* another table's name, or NULL: kc_instructions() */
};

/* The tables that a program checks, the reference first. */
uint32_t kc_make_tables(struct aq_kernels *tables, struct kc_traits *traits,
                        struct kc_options *options);

struct kc_map {
    void *base;
    size_t bytes;
    void *array; /* what a check was given of it */
};

struct kc {
    const struct kc_options *options;
    const struct aq_kernels *tables; /* 0 is the reference */
    const struct kc_traits *traits;
    uint32_t table; /* the one under test */
    struct kc_report *report;
    struct aq_pool *pool[KC_THREADS_MAX + 1];
    struct aq_exec *exec[KC_THREADS_MAX + 1];
    void *scratch[KC_THREADS_MAX + 1];
    void *codes; /* of rows, for all execution contexts: one kernel runs at a time */
    struct kc_map map[KC_BUFFERS_MAX];
    uint32_t map_count;
    const struct kc_peer *peer;
    const char *cold;
    size_t cold_bytes;
    uint64_t key, counter; /* random numbers of this case */
    uint32_t printed;      /* failures shown so far for this case */
    char name[KC_NAME_MAX];
};

/* kc_data.c */
void kc_release_buffers(struct kc *kc);
void *kc_map_huge(size_t bytes);

/* kc_bench.c */
void kc_print_row(const struct kc_row *row);
void kc_print_heading(void);
const char *kc_bound_name(enum kc_bound bound);
const void *kc_make_cold(size_t bytes);

/* peaks.c: runs a register-only loop, or reads cold memory, on all threads once; returns the flops
 * or bytes done.  turn moves through the memory. */
double kc_peak_run(struct kc *kc, enum kc_bound bound, uint64_t turn);

#endif
