/* SPDX-License-Identifier: Apache-2.0
 * tests/kcheck/kcheck.h - parity checks and micro-benchmarks of every kernel, in one program.
 * A check is run once per table, in rising order (ref, avx2, avx512, ...), each time in a child
 * process of its own, so that a crash is that check's failure and nothing else's.  The reference
 * (f64 sums) is always what a version is compared with: limits never chain.
 *
 * A check file check_NAME.c defines one `const struct kc_check kc_check_NAME`, and meson.build
 * names it for the programs that it belongs to:
 *
 *     static void check(struct kc *kc)
 *     {
 *         for (...) {
 *             if (!kc_begin(kc, KC_SLOT(norm), "norm_%u", dim))
 *                 continue;                       (filtered out, or a lower table's function)
 *             float *x = kc_in(kc, AQ_F32, KC_NORMAL, rows, dim, dim);
 *             struct kc_out y = kc_out(kc, AQ_F32, rows, dim, dim + 3);
 *             n.x = x, n.y = y.ref;
 *             kc_ref(kc)->norm(kc_exec(kc, 0), &n);
 *             n.y = y.got;
 *             kc_new(kc)->norm(kc_exec(kc, 0), &n);
 *             kc_near(kc, &y, NULL, (struct kc_limit){.ulp = 2, .why = "..."});
 *         }
 *     }
 *
 * Buffers live until the next kc_begin().  Random numbers depend on the seed and the case's name
 * only: `kcheck --seed N --filter NAME` replays one case of a full run. */
#ifndef AQ_TESTS_KCHECK_KCHECK_H
#define AQ_TESTS_KCHECK_KCHECK_H

#include "kernels/kernels.h"

struct kc;
struct kc_peer;

struct kc_check {
    const char *name;
    void (*check)(struct kc *kc);
    void (*bench)(struct kc *kc); /* NULL when there is nothing to time */
};

/* ---- tables and cases ---- */

#define KC_SLOT(field) offsetof(struct aq_kernels, field)

/* Starts a case of the kernel in a slot (KC_SLOT(product_f32)).  False when the filter leaves it
 * out or the table under test has the same function there as a lower table, which has been
 * through. */
bool kc_begin(struct kc *kc, size_t slot, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
const struct aq_kernels *kc_ref(const struct kc *kc);
const struct aq_kernels *kc_new(const struct kc *kc);
/* Whether the table under test takes panels of float dtypes in the layout rows only. */
bool kc_rows_only(const struct kc *kc);
/* The table of this name, up to the one under test; NULL: there is none. */
const struct aq_kernels *kc_table(const struct kc *kc, const char *name);
/* The table whose instructions the one under test emulates, where the machine has them, or NULL. */
const struct aq_kernels *kc_instructions(const struct kc *kc);
/* An execution context with this many threads; 0 for the number given on the command line. */
struct aq_exec *kc_exec(struct kc *kc, uint32_t threads);
uint32_t kc_threads(const struct kc *kc);

/* ---- input ---- */

enum kc_fill {
    KC_NORMAL,   /* standard normal */
    KC_POSITIVE, /* uniform in [0, 1): sums that only grow */
    KC_HEAVY,    /* normal times exp(2 * normal), as activations are */
    KC_OUTLIER,  /* standard normal with one element of 1000 per row */
    KC_ZERO,     /* +0 and -0 */
    KC_DENORMAL, /* subnormal in the dtype, both signs */
    KC_LARGE,    /* around 2^15, both signs: near f16's end */
    KC_CONSTANT, /* one value */
    KC_FINITE_COUNT,
    KC_NONFINITE = KC_FINITE_COUNT, /* standard normal with some infinities and NaN */
};
const char *kc_fill_name(enum kc_fill fill);

/* A matrix [rows][cols] with a row stride in elements.  What lies between rows is NaN, and the last
 * row ends right before an unmapped page: reading too far shows.  Aligned to its element only. */
void *kc_in(struct kc *kc, enum aq_dtype dtype, enum kc_fill fill, uint32_t rows, uint32_t cols,
            size_t stride);
/* `bytes` zeroed bytes, aligned to 64, right before an unmapped page if bytes is a multiple of
 * 64. */
void *kc_bytes(struct kc *kc, size_t bytes);
/* The panels of w [rows][k], of w_dtype, in dtype and aq_layout_cpu(dtype), packed by the
 * reference. */
void *kc_panels(struct kc *kc, const void *w, enum aq_dtype w_dtype, enum aq_dtype dtype,
                uint32_t rows, uint32_t k);
/* What a matrix to be packed in dtype is drawn in: dtype itself, f32 for a quantised one, f16 for
 * KIVI's. */
enum aq_dtype kc_source(enum aq_dtype dtype);
/* Random integer in [0, n). */
uint32_t kc_below(struct kc *kc, uint32_t n);

/* ---- output ---- */

/* A matrix twice: for the reference and for the version under test, both full of a NaN pattern,
 * with guard bands of the same around and between the rows. */
struct kc_out {
    void *ref, *got;
    enum aq_dtype dtype;
    uint32_t rows, cols;
    size_t stride;
};
struct kc_out kc_out(struct kc *kc, enum aq_dtype dtype, uint32_t rows, uint32_t cols,
                     size_t stride);
/* Puts the NaN pattern back into `got`, for another call. */
void kc_out_reset(struct kc_out *out);
/* Copies a matrix [rows][cols] of the same dtype and stride into both (kernels that update). */
void kc_out_set(struct kc_out *out, const void *from);

/* A version may differ from the reference by abs + rel * scale + ulp * (one step of the dtype at
 * the reference), whatever terms are given. */
struct kc_limit {
    double abs, rel, ulp;
    const char *why;
};
/* True when every element is within the limit.  scale [rows][cols] contiguous, NULL for
 * |reference|.  NaN matches NaN, an infinity its like.  Guard bands are checked too. */
bool kc_near(struct kc *kc, const struct kc_out *out, const double *scale, struct kc_limit limit);
/* True when every bit is the same. */
bool kc_same(struct kc *kc, const struct kc_out *out);
/* Reports a failure of the present case unless ok. */
bool kc_expect(struct kc *kc, bool ok, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* ---- benchmarks ---- */

/* What bounds a kernel; its rate is measured in turns with the kernel's own samples. */
enum kc_bound {
    KC_BOUND_NONE,
    KC_BOUND_READ, /* streaming reads of memory, all threads, huge pages: bytes */
    KC_BOUND_F32,  /* register-only FMA of the widest vectors of the table: flops */
    KC_BOUND_BF16, /* register-only bf16 dot products, or tiles with amx: flops */
    KC_BOUND_INT8, /* register-only products of codes: operations, two a product */
    KC_BOUND_COUNT,
};

struct kc_bench {
    void (*call)(void *arg, uint64_t i); /* the i-th call: rotate over cold data by it */
    void *arg;
    double bytes, flops; /* per call; the one the bound is about is printed as the rate */
    enum kc_bound bound;
    void (*peer)(void *peer_arg, uint64_t i); /* another library's version; may be NULL */
    void *peer_arg;
};
/* As kc_begin, for a benchmark line of the table under test. */
bool kc_bench_begin(struct kc *kc, size_t slot, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
void kc_bench(struct kc *kc, const struct kc_bench *b);
/* The library named by --peer (tests/kcheck/peer.h), NULL when none was. */
const struct kc_peer *kc_load_peer(struct kc *kc);
/* Random bytes in huge pages, larger than the caches: *ret_bytes of them (>= 512 MiB), shared by
 * all benchmarks, read-only.  Read as f32, f16 or bf16 they are numbers of magnitude below 2. */
const void *kc_cold(struct kc *kc, size_t *ret_bytes);
/* Writable zeroed memory in huge pages; lives until the next kc_bench_begin(). */
void *kc_hot(struct kc *kc, size_t bytes);

#endif
