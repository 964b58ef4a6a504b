/* SPDX-License-Identifier: Apache-2.0
 * Buffers with guards, fills and comparison. */
#include "base/half.h"
#include "base/prng.h"
#include "kernels/cpu/panel.h"
#include "tests/kcheck/kc_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
    PAGE = 4096,
    BAND = 256, /* guard bytes before an output; after it comes an unmapped page */
};

/* A NaN in f32 as in f16 and bf16, that no arithmetic produces. */
#define PATTERN 0xff5bff5bu

static const char *const fill_names[] = {
    [KC_NORMAL] = "normal",   [KC_POSITIVE] = "positive", [KC_HEAVY] = "heavy",
    [KC_OUTLIER] = "outlier", [KC_ZERO] = "zero",         [KC_DENORMAL] = "denormal",
    [KC_LARGE] = "large",     [KC_CONSTANT] = "constant", [KC_NONFINITE] = "nonfinite",
};

const char *kc_fill_name(enum kc_fill fill)
{
    return fill_names[fill];
}

/* ---- memory ---- */

/* Maps bytes so that they end (up to `align`) at an unmapped page, behind a band of others. */
static char *map_guarded(struct kc *kc, size_t band, size_t array_bytes, size_t align)
{
    size_t bytes = band + array_bytes, body = aq_align_up(bytes + align, PAGE);
    char *base =
        mmap(NULL, body + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED || mprotect(base + body, PAGE, PROT_NONE) < 0 ||
        kc->map_count == KC_BUFFERS_MAX) {
        fprintf(stderr, "kcheck: no buffer of %zu bytes for %s\n", bytes, kc->name);
        exit(1);
    }
    char *array = base + (body - bytes) / align * align + band;
    kc->map[kc->map_count++] = (struct kc_map){base, body + PAGE, array};
    if (kc->options->mapped)
        kc->options->mapped(base, body);
    if (kc->options->array)
        kc->options->array(array, array_bytes);
    return array;
}

void kc_release_buffers(struct kc *kc)
{
    for (uint32_t i = 0; i < kc->map_count; i++) {
        if (kc->options->unmapped)
            kc->options->unmapped(kc->map[i].base);
        if (kc->options->forget)
            kc->options->forget(kc->map[i].array);
        munmap(kc->map[i].base, kc->map[i].bytes);
    }
    kc->map_count = 0;
}

static void fill_pattern(void *data, size_t bytes)
{
    const uint32_t pattern = PATTERN;
    for (size_t i = 0; i < bytes; i += 2)
        memcpy((char *)data + i, &pattern, 2);
}

static bool is_pattern(const void *data, size_t bytes)
{
    const uint32_t pattern = PATTERN;
    for (size_t i = 0; i < bytes; i += 2) {
        if (memcmp((const char *)data + i, &pattern, 2) != 0)
            return false;
    }
    return true;
}

/* Elements from the first row's first to the last row's last. */
static size_t span(uint32_t rows, uint32_t cols, size_t stride)
{
    return rows ? (rows - 1) * stride + cols : 0;
}

/* ---- input ---- */

/* Of standard normal numbers, drawn once: logarithms and cosines for each number of each case would
 * take a fifth of all time. */
enum { NORMALS = 1 << 16 };
static float normals[NORMALS];

/* One of them, and a little of another, so that hardly any come twice. */
static float normal(struct kc *kc)
{
    uint32_t w[4];
    for (uint32_t i = 0; i < NORMALS && !normals[NORMALS - 1]; i++)
        normals[i] = aq_prng_normal(0, i, 0);
    aq_philox(w, kc->key, kc->counter++, 0);
    return normals[w[0] % NORMALS] + 0x1p-10f * normals[w[1] % NORMALS];
}

static double uniform(struct kc *kc)
{
    return aq_prng_uniform(kc->key, kc->counter++, 0);
}

uint32_t kc_below(struct kc *kc, uint32_t n)
{
    return (uint32_t)aq_prng_below(kc->key, kc->counter++, 0, n);
}

static float draw(struct kc *kc, enum aq_dtype dtype, enum kc_fill fill)
{
    float sign = kc->counter & 1 ? -1.0f : 1.0f;
    switch (fill) {
    case KC_NORMAL:
    case KC_OUTLIER: return normal(kc);
    case KC_POSITIVE: return (float)uniform(kc);
    case KC_HEAVY: {
        float v = normal(kc) * expf(2 * normal(kc));
        return fminf(fmaxf(v, -30000.0f), 30000.0f);
    }
    case KC_ZERO: return kc_below(kc, 2) ? 0.0f : -0.0f;
    case KC_DENORMAL: return sign * (float)uniform(kc) * (dtype == AQ_F16 ? 0x1p-14f : 0x1p-126f);
    case KC_LARGE: return sign * (float)(20000 + 20000 * uniform(kc));
    case KC_CONSTANT: return 0.7f;
    case KC_NONFINITE:
        switch (kc_below(kc, 16)) {
        case 0: return INFINITY;
        case 1: return -INFINITY;
        case 2: return NAN;
        default: return normal(kc);
        }
    }
    return 0;
}

void *kc_in(struct kc *kc, enum aq_dtype dtype, enum kc_fill fill, uint32_t rows, uint32_t cols,
            size_t stride)
{
    size_t elements = span(rows, cols, stride), size = aq_dtype_bytes(dtype);
    char *data = map_guarded(kc, 0, elements * size, size);
    fill_pattern(data, elements * size);
    for (uint32_t r = 0; r < rows; r++) {
        for (uint32_t c = 0; c < cols; c++)
            aq_element_store(data, dtype, r * stride + c, draw(kc, dtype, fill));
        if (fill == KC_OUTLIER && cols)
            aq_element_store(data, dtype, r * stride + kc_below(kc, cols), 1000.0f);
    }
    return data;
}

void *kc_bytes(struct kc *kc, size_t bytes)
{
    return map_guarded(kc, 0, bytes, 64);
}

enum aq_dtype kc_source(enum aq_dtype dtype)
{
    if (aq_dtype_is_kivi(dtype))
        return AQ_F16; /* what blocks are encoded from */
    return aq_dtype_is_quantised(dtype) ? AQ_F32 : dtype;
}

void *kc_panels(struct kc *kc, const void *w, enum aq_dtype w_dtype, enum aq_dtype dtype,
                uint32_t rows, uint32_t k)
{
    size_t panel_bytes = aq_panel_bytes(dtype, k), size = aq_dtype_bytes(w_dtype);
    uint32_t count = aq_panel_count(rows);
    char *panels = kc_bytes(kc, count * panel_bytes);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t first = i * AQ_PANEL_ROWS;
        uint32_t n = (uint32_t)aq_min_u64(AQ_PANEL_ROWS, rows - first);
        kc_ref(kc)->pack_panel(panels + i * panel_bytes, dtype, aq_layout_cpu(dtype),
                               (const char *)w + (size_t)first * k * size, w_dtype, n, k);
    }
    return panels;
}

/* ---- output ---- */

static size_t out_bytes(const struct kc_out *out)
{
    return span(out->rows, out->cols, out->stride) * aq_dtype_bytes(out->dtype);
}

static void *make_out(struct kc *kc, const struct kc_out *out)
{
    char *data = map_guarded(kc, BAND, out_bytes(out), aq_dtype_bytes(out->dtype));
    fill_pattern(data - BAND, BAND + out_bytes(out));
    return data;
}

struct kc_out kc_out(struct kc *kc, enum aq_dtype dtype, uint32_t rows, uint32_t cols,
                     size_t stride)
{
    struct kc_out out = {.dtype = dtype, .rows = rows, .cols = cols, .stride = stride};
    out.ref = make_out(kc, &out);
    out.got = make_out(kc, &out);
    return out;
}

void kc_out_reset(struct kc_out *out)
{
    fill_pattern(out->got, out_bytes(out));
}

void kc_out_set(struct kc_out *out, const void *from)
{
    size_t size = aq_dtype_bytes(out->dtype);
    for (uint32_t r = 0; r < out->rows; r++) {
        size_t at = r * out->stride * size;
        memcpy((char *)out->ref + at, (const char *)from + at, out->cols * size);
        memcpy((char *)out->got + at, (const char *)from + at, out->cols * size);
    }
}

static bool bands_whole(struct kc *kc, const struct kc_out *out, const char *data,
                        const char *whose)
{
    size_t size = aq_dtype_bytes(out->dtype);
    bool ok = kc_expect(kc, is_pattern(data - BAND, BAND), "%s wrote before its output", whose);
    for (uint32_t r = 0; r + 1 < out->rows; r++) {
        const char *gap = data + (r * out->stride + out->cols) * size;
        ok &= kc_expect(kc, is_pattern(gap, (out->stride - out->cols) * size),
                        "%s wrote past the end of row %u", whose, r);
    }
    return ok;
}

/* One step of the dtype at magnitude v. */
static double step_at(enum aq_dtype dtype, double v)
{
    int exponent;
    frexp(v, &exponent);
    switch (dtype) {
    case AQ_BF16: return ldexp(1, (exponent < -125 ? -125 : exponent) - 8);
    case AQ_F16: return ldexp(1, (exponent < -13 ? -13 : exponent) - 11);
    default: return ldexp(1, (exponent < -125 ? -125 : exponent) - 24);
    }
}

/* Difference as a share of what is allowed; above 1 is a failure. */
static double share_of_limit(enum aq_dtype dtype, double ref, double got, const double *scale,
                             const struct kc_limit *limit)
{
    if (isnan(ref) || isnan(got))
        return isnan(ref) && isnan(got) ? 0 : INFINITY;
    if (ref == got)
        return 0;
    if (isinf(ref) || isinf(got))
        return INFINITY;
    double allowed =
        limit->abs + limit->rel * (scale ? *scale : fabs(ref)) + limit->ulp * step_at(dtype, ref);
    return allowed > 0 ? fabs(ref - got) / allowed : INFINITY;
}

bool kc_near(struct kc *kc, const struct kc_out *out, const double *scale, struct kc_limit limit)
{
    bool ok = bands_whole(kc, out, out->got, "the version") &&
              bands_whole(kc, out, out->ref, "the reference");
    uint64_t bad = 0;
    for (uint32_t r = 0; r < out->rows; r++) {
        for (uint32_t c = 0; c < out->cols; c++) {
            size_t at = r * out->stride + c;
            double ref = aq_element_load(out->ref, out->dtype, at);
            double got = aq_element_load(out->got, out->dtype, at);
            const double *s = scale ? &scale[(size_t)r * out->cols + c] : NULL;
            double share = share_of_limit(out->dtype, ref, got, s, &limit);
            if (share > kc->report->worst && share <= 1) {
                kc->report->worst = share;
                memcpy(kc->report->worst_name, kc->name, sizeof(kc->name));
                snprintf(kc->report->worst_why, KC_WHY_MAX, "%s", limit.why ? limit.why : "");
            }
            if (share > 1 && bad++ < 3)
                kc_expect(kc, false, "[%u][%u] is %.9g, the reference %.9g: %.3g times the limit",
                          r, c, got, ref, share);
        }
    }
    if (bad > 3)
        kc_expect(kc, false, "%llu elements of %llu", (unsigned long long)bad,
                  (unsigned long long)out->rows * out->cols);
    return ok && !bad;
}

bool kc_same(struct kc *kc, const struct kc_out *out)
{
    size_t size = aq_dtype_bytes(out->dtype);
    bool ok = bands_whole(kc, out, out->got, "the version") &&
              bands_whole(kc, out, out->ref, "the reference");
    for (uint32_t r = 0; r < out->rows && ok; r++) {
        const char *ref = (const char *)out->ref + r * out->stride * size;
        const char *got = (const char *)out->got + r * out->stride * size;
        for (uint32_t c = 0; c < out->cols && ok; c++) {
            if (memcmp(ref + c * size, got + c * size, size) == 0)
                continue;
            uint32_t a = 0, b = 0;
            memcpy(&a, ref + c * size, size < 4 ? size : 4);
            memcpy(&b, got + c * size, size < 4 ? size : 4);
            ok = kc_expect(kc, false, "[%u][%u] is 0x%x, expected the bits of 0x%x", r, c, b, a);
        }
    }
    return ok;
}
