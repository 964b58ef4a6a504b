/* SPDX-License-Identifier: Apache-2.0
 * engine/machine/hw_derive.c - what a hardware profile leaves out, from what it says; and what it
 * may not say.  Each rule is an assumption that reports list with its reason. */
#include "engine/machine/hw_keys.h"

#include <assert.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>

/* A profile being completed: of a file, where it has lines. */
struct rules {
    struct aq_hw_profile *p;
    const char *name;
    const uint32_t *line;
    struct aq_hardware usual; /* of policy/hw.h */
};

static double get(const struct rules *r, const char *name)
{
    return aq_hw_key_value(r->p, aq_hw_key_find(name));
}

static bool known(const struct rules *r, const char *name)
{
    return r->p->note[aq_hw_key_find(name)].origin != AQ_HW_ABSENT;
}

/* Where the key is, or would be: "FILE:12: links.h2d_gb_s". */
static int refuse(const struct rules *r, uint32_t key, struct aq_err *reterr, const char *format,
                  ...) __attribute__((format(printf, 4, 5)));
static int refuse(const struct rules *r, uint32_t key, struct aq_err *reterr, const char *format,
                  ...)
{
    char name[AQ_HW_KEY_TEXT_MAX], what[512], line[16] = "";
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof(what), format, args);
    va_end(args);
    if (r->line && r->line[key])
        snprintf(line, sizeof(line), ":%u", r->line[key]);
    return aq_error(reterr, -EINVAL, "%s%s: %s %s", r->name, line, aq_hw_key_name(name, key), what);
}

/* Sets what is not given. */
static void derive(struct rules *r, const char *name, double value, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
static void derive(struct rules *r, const char *name, double value, const char *format, ...)
{
    uint32_t key = aq_hw_key_find(name);
    struct aq_hw_note *n = &r->p->note[key];
    if (n->origin != AQ_HW_ABSENT)
        return;
    va_list args;
    va_start(args, format);
    vsnprintf(n->source, sizeof(n->source), format, args);
    va_end(args);
    aq_hw_key_set(r->p, key, value);
    n->origin = AQ_HW_DERIVED;
    n->spread = NAN;
}

/* ---- rules ------------------------------------------------------------------------------- */

static void derive_products(struct rules *r, bool device)
{
    const char *f32 = device ? "device.product_f32_tflop_s" : "host.product_f32_tflop_s";
    const char *f16 = device ? "device.product_f16_tflop_s" : "host.product_f16_tflop_s";
    const char *bf16 = device ? "device.product_bf16_tflop_s" : "host.product_bf16_tflop_s";
    if (known(r, bf16))
        derive(r, f16, get(r, bf16), "f16 products as fast as bf16 products");
    if (device)
        derive(r, f32, get(r, known(r, f16) ? f16 : bf16) / 32,
               "1/32 of f16 products: NVIDIA's data sheets from the V100 to the B200 have 1/2 to "
               "1/30");
    derive(r, f16, get(r, f32), "f16 products as fast as f32 products, which they are widened to");
    derive(r, bf16, get(r, f16), "bf16 products as fast as f16 products");
    if (!device)
        derive(r, "host.product_codes_tflop_s", 1.6 * get(r, bf16),
               "1.6 times host.product_bf16_tflop_s (Zen 4, AVX512-VNNI: 357 GOP/s to 219)");
}

static void derive_side(struct rules *r, bool device)
{
    const char *side = device ? "device" : "host";
    char key[AQ_HW_KEY_TEXT_MAX];
#define KEY(name) (snprintf(key, sizeof(key), "%s.%s", side, name), key)
    double memory = get(r, KEY("memory_gb_s")), f16 = get(r, KEY("product_f16_tflop_s"));
    derive(r, KEY("product_memory_gb_s"), memory, "weights stream at the rate of the memory");
    /* bench/results/epyc-zen5-2vcpu-2026-11-21.md: 83 % of the rate of plain reading. */
    derive(
        r, KEY("attention_memory_gb_s"), 0.83 * memory,
        "0.83 of the rate of the memory, as decode attention reaches on the development machine");
    /* There too: 0.36 to 0.38 TFLOP/s where products reach 0.94. */
    derive(r, KEY("attention_tflop_s"), 0.38 * f16,
           "0.38 of the rate of products, as prefill attention reaches on the development machine");
    derive(r, KEY("unpack_int8_gb_s"), memory / 3,
           "a third of the rate of the memory: a byte is read, two are written");
    derive(r, KEY("unpack_int4_gb_s"), memory / 5,
           "a fifth of the rate of the memory: a byte is read, four are written");
    derive(r, KEY("overlap"), r->usual.host.overlap,
           "arithmetic and memory time overlap as on the development machine");
    derive(r, KEY("start_us"), 1e6 * r->usual.overhead_s[AQ_LANE_COMPUTE],
           "assumed alike of every machine");
#undef KEY
}

static void derive_links(struct rules *r)
{
    bool device = aq_hw_has(r->p, AQ_HW_DEVICE);
    double memory = get(r, "host.memory_gb_s");
    derive(r, "links.host_bytes_per_byte", device ? 1 : 2,
           device ? "the link reads or writes host memory once"
                  : "a copy inside the host's memory reads and writes it");
    if (device) {
        derive(r, "links.d2h_gb_s", get(r, "links.h2d_gb_s"), "as fast as h2d");
    } else {
        double copy = memory / fmax(1, get(r, "links.host_bytes_per_byte"));
        derive(r, "links.h2d_gb_s", copy, "copies in memory: no device");
        derive(r, "links.d2h_gb_s", copy, "copies in memory: no device");
    }
    derive(r, "links.duplex", 2, "neither direction disturbs the other");
    derive(r, "links.copy_core_s_per_gb", device ? 0 : 1 / get(r, "links.h2d_gb_s"),
           device ? "the device copies by itself" : "one core copies");
    derive(r, "links.start_us", 1e6 * r->usual.overhead_s[AQ_LANE_H2D],
           "assumed alike of every machine");
}

static void derive_disk(struct rules *r)
{
    const struct aq_hardware *usual = &r->usual;
    derive(r, "disk.write_gb_s", get(r, "disk.read_gb_s") / 2,
           "half of what it reads, as NVMe drives of data centres write at least");
    derive(r, "disk.duplex", usual->disk_duplex, "reading and writing wait for each other");
    derive(r, "disk.in_flight", usual->disk_in_flight,
           "more are asked for, and answered about in that order");
    derive(r, "disk.core_s_per_gb", 1e9 * usual->disk_core_s_per_byte,
           "as io_uring takes on the development machine");
    derive(r, "disk.start_us", 1e6 * usual->overhead_s[AQ_LANE_DISK_READ],
           "assumed alike of every machine");
}

/* ---- what is absurd ---------------------------------------------------------------------- */

static int check_key(const struct rules *r, uint32_t key, struct aq_err *reterr)
{
    const struct aq_hw_key *k = &aq_hw_key_table[key];
    double value = aq_hw_key_value(r->p, key);
    if (!aq_hw_has(r->p, k->section) || r->p->note[key].origin == AQ_HW_ABSENT)
        return 0;
    if (!(value >= k->min && value <= k->max))
        return refuse(r, key, reterr, "must be from %g to %g%s%s, not %g", k->min, k->max,
                      k->unit ? " " : "", k->unit ? k->unit : "", value);
    return 0;
}

/* Whether somebody has to say it: it is absent, and nothing else tells it. */
static bool is_missing(const struct rules *r, uint32_t key)
{
    const struct aq_hw_key *k = &aq_hw_key_table[key];
    uint32_t size = aq_hw_key_find(k->section == AQ_HW_DISK ? "disk.space" : "device.memory");
    bool optional = k->section == AQ_HW_DEVICE || k->section == AQ_HW_DISK;
    bool device =
        aq_hw_has(r->p, AQ_HW_DEVICE) || (r->line && r->line[aq_hw_key_find("device.memory")]);
    if (r->p->note[key].origin != AQ_HW_ABSENT ||
        (optional && !aq_hw_has(r->p, k->section) && !(r->line && r->line[size])))
        return false;
    if (key == aq_hw_key_find("links.h2d_gb_s"))
        return device;
    if (key == aq_hw_key_find("device.product_f16_tflop_s"))
        return !known(r, "device.product_bf16_tflop_s") && !known(r, "device.product_f32_tflop_s");
    return k->need == AQ_HW_NEEDED;
}

static const char *expected_of(const struct aq_hw_key *k)
{
    return k->kind == AQ_HW_SIZE ? "a size such as 16GiB" : k->unit ? k->unit : "a number";
}

/* All of them at once, so that a file is complete at the second try. */
static int check_missing(const struct rules *r, struct aq_err *reterr)
{
    char list[640] = "", name[AQ_HW_KEY_TEXT_MAX];
    uint32_t count = 0, first = 0;
    size_t used = 0;
    for (uint32_t i = 0; i < aq_hw_key_count(); i++) {
        if (!is_missing(r, i))
            continue;
        first = count++ ? first : i;
        if (used < sizeof(list))
            used += (size_t)snprintf(list + used, sizeof(list) - used, "%s%s (%s)",
                                     count > 1 ? ", " : "", aq_hw_key_name(name, i),
                                     expected_of(&aq_hw_key_table[i]));
    }
    if (count == 1)
        return refuse(r, first, reterr,
                      "is missing and cannot be derived: expected %s; aquifer help hardware has "
                      "all keys",
                      expected_of(&aq_hw_key_table[first]));
    return count ? aq_error(reterr, -EINVAL,
                            "%s: %u numbers are missing and cannot be derived: %s; aquifer help "
                            "hardware has all keys",
                            r->name, count, list)
                 : 0;
}

/* No byte comes into memory, or leaves it, faster than memory goes. */
static int check_against_memory(const struct rules *r, const char *name, double slack,
                                const char *memory_name, struct aq_err *reterr)
{
    uint32_t key = aq_hw_key_find(name), memory_key = aq_hw_key_find(memory_name);
    double value = aq_hw_key_value(r->p, key), memory = aq_hw_key_value(r->p, memory_key);
    if (r->p->note[key].origin == AQ_HW_ABSENT || value <= slack * memory)
        return 0;
    return refuse(r, key, reterr, "must be at most %g, %g x %s, not %g", slack * memory, slack,
                  memory_name, value);
}

static int check_relations(const struct rules *r, struct aq_err *reterr)
{
    /* Caches flatter measurements, so that rates of computing may pass that of the memory. */
    static const struct {
        const char *name;
        double slack;
    } host[] = {{"links.h2d_gb_s", 1.25},        {"links.d2h_gb_s", 1.25},
                {"disk.read_gb_s", 1},           {"disk.write_gb_s", 1},
                {"host.product_memory_gb_s", 2}, {"host.attention_memory_gb_s", 2}},
      device[] = {{"device.product_memory_gb_s", 2}, {"device.attention_memory_gb_s", 2}};
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < AQ_ARRAY_LEN(host); i++)
        rc = check_against_memory(r, host[i].name, host[i].slack, "host.memory_gb_s", reterr);
    for (size_t i = 0; rc == 0 && i < AQ_ARRAY_LEN(device); i++)
        rc = check_against_memory(r, device[i].name, device[i].slack, "device.memory_gb_s", reterr);
    return rc;
}

static int check_all(const struct rules *r, struct aq_err *reterr)
{
    int rc = 0;
    for (uint32_t i = 0; rc == 0 && i < aq_hw_key_count(); i++)
        rc = check_key(r, i, reterr);
    return rc;
}

/* ---- one machine ------------------------------------------------------------------------- */

/* Numbers that stand in several places of struct aq_hardware. */
static void spread_out(struct aq_hw_profile *p)
{
    struct aq_hardware *hw = &p->hw;
    hw->device_on_host = !aq_hw_has(p, AQ_HW_DEVICE);
    hw->device.unpack_bytes_per_s =
        fmin(p->device_unpack_bytes_per_s[0], p->device_unpack_bytes_per_s[1]);
    hw->host.unpack_bytes_per_s =
        fmin(p->host_unpack_bytes_per_s[0], p->host_unpack_bytes_per_s[1]);
    /* As derive_products has its rate. */
    const double *share = hw->host.short_share;
    hw->host.short_share[AQ_F16] = share[AQ_BF16] > 0 ? share[AQ_BF16] : share[AQ_F32];
    if (hw->device_on_host) {
        hw->device = hw->host;
        hw->overhead_s[AQ_LANE_COMPUTE] = hw->overhead_s[AQ_LANE_HOST_COMPUTE];
        for (int i = 0; i < 2; i++)
            p->device_unpack_bytes_per_s[i] = p->host_unpack_bytes_per_s[i];
    }
    hw->overhead_s[AQ_LANE_D2H] = hw->overhead_s[AQ_LANE_H2D];
    hw->overhead_s[AQ_LANE_H2D_WEIGHTS] = hw->overhead_s[AQ_LANE_H2D];
    hw->overhead_s[AQ_LANE_DISK_WRITE] = hw->overhead_s[AQ_LANE_DISK_READ];
    hw->overhead_s[AQ_LANE_READ_WEIGHTS] = hw->overhead_s[AQ_LANE_DISK_READ];
}

int aq_hw_complete(struct aq_hw_profile *p, const char *name, const uint32_t *line,
                   struct aq_err *reterr)
{
    struct rules r = {.p = p, .name = name, .line = line};
    aq_hardware_default(&r.usual, 1, 1, 1);
    int rc = check_all(&r, reterr); /* nothing is derived from what is absurd */
    rc = rc < 0 ? rc : check_missing(&r, reterr);
    if (rc < 0)
        return rc;
    derive(&r, "machine.turn_us", 1e6 * r.usual.overhead_s[AQ_LANE_CONTROL],
           "assumed alike of every machine");
    derive(&r, "machine.wake_us", 1e6 * r.usual.wake_s, "assumed alike of every machine");
    derive(&r, "host.threads", fmax(1, floor(p->hw.cores)), "one for each core");
    /* A hardware thread of a cloud is half a core. */
    derive(&r, "host.product_f32_tflop_s", 0.0224 * p->hw.cores,
           "0.0224 for each of the cores: half of 2 GHz x 32 flop (AVX2), 0.7 of it");
    derive_products(&r, false);
    derive_side(&r, false);
    if (aq_hw_has(p, AQ_HW_DEVICE)) {
        derive_products(&r, true);
        derive_side(&r, true);
    }
    derive_links(&r);
    if (aq_hw_has(p, AQ_HW_DISK))
        derive_disk(&r);
    rc = check_all(&r, reterr);
    rc = rc < 0 ? rc : check_relations(&r, reterr);
    if (rc == 0)
        spread_out(p);
    return rc;
}
