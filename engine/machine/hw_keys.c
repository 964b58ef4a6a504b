/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/machine/hw_keys.h"

#include "base/json.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define GB_S    "GB/s", 1e9
#define TFLOP_S "TFLOP/s", 1e12
#define CORE_S  "core-seconds per GB", 1e-9
#define US      "microseconds", 1e-6
#define NS      "nanoseconds", 1e-9
#define BYTES   "bytes", 1
#define PURE    NULL, 1

#define ROW(section, name, kind, need, unit, field, ...)                                           \
    {                                                                                              \
        AQ_HW_##section, name, AQ_HW_##kind, AQ_HW_##need, unit,                                   \
            (uint32_t)offsetof(struct aq_hw_profile, field), __VA_ARGS__                           \
    }

/* Of what other rates promise, what products of so many rows reach. */
#define SHARE(name, weights, rows, what)                                                           \
    ROW(HOST, name, REAL, REFINES, PURE, hw.host.product_share[weights][rows], 1e-3, 10, what)

/* Attention of heads of a size in groups of aq_hw_groups[place]. */
#define GROUP(name, wide, place, heads)                                                            \
    ROW(HOST, "attention_" name "_memory_gb_s", REAL, REFINES, GB_S,                               \
        hw.host.shared[wide][place].bytes_per_s, 0, 1e6, "keys and values read with " heads),      \
        ROW(HOST, "decode_" name "_head_ns", REAL, REFINES, NS,                                    \
            hw.host.shared[wide][place].decode_head_s, 0, 1e6,                                     \
            "further time for each head of it"),                                                   \
        ROW(HOST, "attention_" name "_tflop_s", REAL, REFINES, TFLOP_S,                            \
            hw.host.shared[wide][place].flops_per_s, 0, 1e6, "attention of prompts with " heads),  \
        ROW(HOST, "prefill_" name "_head_ns", REAL, REFINES, NS,                                   \
            hw.host.shared[wide][place].prefill_head_s, 0, 1e6,                                    \
            "further time for each head of a prompt's row")

/* Decode attention of a device, of heads of another size or in groups. */
#define DECODE(name, of, heads)                                                                    \
    ROW(DEVICE, "attention_" name "_memory_gb_s", REAL, REFINES, GB_S, hw.device.of.bytes_per_s,   \
        1e-4, 1e5, "keys and values read with " heads)

/* The limits lie far beyond what there is: they are there for slips of the unit. */
const struct aq_hw_key aq_hw_key_table[] = {
    ROW(MACHINE, "cores", REAL, NEEDED, PURE, hw.cores, 0.01, 4096,
        "cores or hardware threads that compute on the host"),
    ROW(MACHINE, "turn_us", REAL, DERIVES, US, hw.overhead_s[AQ_LANE_CONTROL], 0, 1e6,
        "between two passes, beside their work"),
    ROW(MACHINE, "wake_us", REAL, DERIVES, US, hw.wake_s, 0, 1e6,
        "until a sleeping thread on another core goes on"),

    ROW(DEVICE, "memory", SIZE, NEEDED, BYTES, capacity[AQ_DEVICE], 1e6, 1e15,
        "size of the device's memory"),
    ROW(DEVICE, "memory_gb_s", REAL, NEEDED, GB_S, hw.device_memory_bytes_per_s, 0.1, 1e5,
        "reading it, all together"),
    ROW(DEVICE, "product_f32_tflop_s", REAL, DERIVES, TFLOP_S,
        hw.device.product_flops_per_s[AQ_F32], 1e-6, 1e5, "large products in f32"),
    ROW(DEVICE, "product_f16_tflop_s", REAL, DERIVES, TFLOP_S,
        hw.device.product_flops_per_s[AQ_F16], 1e-6, 1e5, "large products in f16"),
    ROW(DEVICE, "product_bf16_tflop_s", REAL, DERIVES, TFLOP_S,
        hw.device.product_flops_per_s[AQ_BF16], 1e-6, 1e5, "large products in bf16"),
    ROW(DEVICE, "product_f16_rows16_tflop_s", REAL, OPTIONAL, TFLOP_S, seen.gpu_f16_flops_per_s[0],
        1e-6, 1e5, "measured: f16 products of 16 rows"),
    ROW(DEVICE, "product_f16_rows64_tflop_s", REAL, OPTIONAL, TFLOP_S, seen.gpu_f16_flops_per_s[1],
        1e-6, 1e5, "measured: f16 products of 64 rows"),
    ROW(DEVICE, "product_f16_rows256_tflop_s", REAL, OPTIONAL, TFLOP_S, seen.gpu_f16_flops_per_s[2],
        1e-6, 1e5, "measured: f16 products of 256 rows"),
    ROW(DEVICE, "product_bf16_rows16_tflop_s", REAL, OPTIONAL, TFLOP_S,
        seen.gpu_bf16_flops_per_s[0], 1e-6, 1e5, "measured: bf16 products of 16 rows"),
    ROW(DEVICE, "product_bf16_rows64_tflop_s", REAL, OPTIONAL, TFLOP_S,
        seen.gpu_bf16_flops_per_s[1], 1e-6, 1e5, "measured: bf16 products of 64 rows"),
    ROW(DEVICE, "product_bf16_rows256_tflop_s", REAL, OPTIONAL, TFLOP_S,
        seen.gpu_bf16_flops_per_s[2], 1e-6, 1e5, "measured: bf16 products of 256 rows"),
    ROW(DEVICE, "product_memory_gb_s", REAL, DERIVES, GB_S, hw.device.product_bytes_per_s, 1e-3,
        1e5, "weights read by a product of one row"),
    ROW(DEVICE, "attention_tflop_s", REAL, DERIVES, TFLOP_S, hw.device.attention_flops_per_s, 1e-6,
        1e5, "attention of prompts"),
    ROW(DEVICE, "attention_memory_gb_s", REAL, DERIVES, GB_S, hw.device.attention_bytes_per_s, 1e-4,
        1e5, "keys and values that attention of a new token reads"),
    DECODE("d128", wide, "heads of 128"),
    DECODE("g4", shared[0][0], "groups of 4"),
    DECODE("g8", shared[0][1], "groups of 8"),
    DECODE("d128_g4", shared[1][0], "groups of 4 heads of 128"),
    DECODE("d128_g8", shared[1][1], "groups of 8 heads of 128"),
    ROW(DEVICE, "attention_scored_gb_s", REAL, OPTIONAL, GB_S, seen.gpu_scored_bytes_per_s, 1e-4,
        1e5, "measured: the same where scores are kept for a KV policy"),
    ROW(DEVICE, "unpack_int8_gb_s", REAL, DERIVES, GB_S, device_unpack_bytes_per_s[0], 1e-3, 1e5,
        "int8 weights, packed bytes, unpacked to the compute type"),
    ROW(DEVICE, "unpack_int4_gb_s", REAL, DERIVES, GB_S, device_unpack_bytes_per_s[1], 1e-3, 1e5,
        "int4 weights likewise"),
    ROW(DEVICE, "overlap", REAL, DERIVES, PURE, hw.device.overlap, 0, 1,
        "of arithmetic and memory time, the lesser's hidden part"),
    ROW(DEVICE, "start_us", REAL, DERIVES, US, hw.overhead_s[AQ_LANE_COMPUTE], 0, 1e6,
        "start of an op"),
    ROW(DEVICE, "launch_us", REAL, OPTIONAL, US, seen.gpu_launch_s, 0, 1e6,
        "measured: a kernel behind others"),

    ROW(HOST, "memory", SIZE, NEEDED, BYTES, capacity[AQ_HOST], 1e6, 1e16,
        "size of the host's memory"),
    ROW(HOST, "memory_gb_s", REAL, NEEDED, GB_S, hw.host_memory_bytes_per_s, 1e-2, 2e4,
        "reading it, all cores together"),
    ROW(HOST, "threads", REAL, DERIVES, PURE, hw.host.threads, 1, 4096,
        "threads that an op on the host uses"),
    ROW(HOST, "product_f32_tflop_s", REAL, DERIVES, TFLOP_S, hw.host.product_flops_per_s[AQ_F32],
        1e-5, 1e4, "large products in f32, all threads"),
    ROW(HOST, "product_f16_tflop_s", REAL, DERIVES, TFLOP_S, hw.host.product_flops_per_s[AQ_F16],
        1e-5, 1e4, "large products in f16"),
    ROW(HOST, "product_bf16_tflop_s", REAL, DERIVES, TFLOP_S, hw.host.product_flops_per_s[AQ_BF16],
        1e-5, 1e4, "large products in bf16"),
    ROW(HOST, "product_codes_tflop_s", REAL, DERIVES, TFLOP_S, hw.host.product_flops_per_s[AQ_Q8],
        1e-5, 1e4, "large products on int8 codes (--compute int8)"),
    ROW(HOST, "product_memory_gb_s", REAL, DERIVES, GB_S, hw.host.product_bytes_per_s, 1e-3, 2e4,
        "weights read by a product of one row"),
    ROW(HOST, "product_f32_memory_gb_s", REAL, OPTIONAL, GB_S, seen.row_f32_bytes_per_s, 1e-3, 2e4,
        "measured: f32 weights read by a product of one row"),
    ROW(HOST, "product_f32_k768_share", REAL, REFINES, PURE, hw.host.short_share[AQ_F32], 0.1, 1,
        "of its rate, what f32 products of K = 768 reach"),
    ROW(HOST, "product_bf16_k768_share", REAL, REFINES, PURE, hw.host.short_share[AQ_BF16], 0.1, 1,
        "of its rate, what bf16 products of K = 768 reach"),
    SHARE("product_at_4_rows", 0, 0, "of other rates, what products of 4 rows reach"),
    SHARE("product_at_16_rows", 0, 1, "of other rates, what products of 16 rows reach"),
    SHARE("product_at_64_rows", 0, 2, "of other rates, what products of 64 rows reach"),
    SHARE("product_at_256_rows", 0, 3, "of other rates, what products of 256 rows reach"),
    ROW(HOST, "product_int8_memory_gb_s", REAL, REFINES, GB_S, hw.host.code_bytes_per_s[0], 1e-3,
        2e4, "int8 weights read by a product of one row"),
    SHARE("product_int8_at_4_rows", 1, 0, "of other rates, what int8 products of 4 rows reach"),
    SHARE("product_int8_at_16_rows", 1, 1, "of other rates, what int8 products of 16 rows reach"),
    SHARE("product_int8_at_64_rows", 1, 2, "of other rates, what int8 products of 64 rows reach"),
    SHARE("product_int8_at_256_rows", 1, 3, "of other rates, what int8 products of 256 rows reach"),
    ROW(HOST, "product_int4_memory_gb_s", REAL, REFINES, GB_S, hw.host.code_bytes_per_s[1], 1e-3,
        2e4, "int4 weights read by a product of one row"),
    SHARE("product_int4_at_4_rows", 2, 0, "of other rates, what int4 products of 4 rows reach"),
    SHARE("product_int4_at_16_rows", 2, 1, "of other rates, what int4 products of 16 rows reach"),
    SHARE("product_int4_at_64_rows", 2, 2, "of other rates, what int4 products of 64 rows reach"),
    SHARE("product_int4_at_256_rows", 2, 3, "of other rates, what int4 products of 256 rows reach"),
    ROW(HOST, "attention_int8_memory_gb_s", REAL, REFINES, GB_S, host_attention[0].bytes_per_s, 0,
        1e6, "int8 keys and values that attention of a new token reads"),
    ROW(HOST, "decode_int8_head_ns", REAL, REFINES, NS, host_attention[0].decode_head_s, 0, 1e6,
        "further time for each head of it"),
    ROW(HOST, "attention_int8_tflop_s", REAL, REFINES, TFLOP_S, host_attention[0].flops_per_s, 0,
        1e6, "attention of prompts over int8 keys and values"),
    ROW(HOST, "prefill_int8_head_ns", REAL, REFINES, NS, host_attention[0].prefill_head_s, 0, 1e6,
        "further time for each head of a prompt's row"),
    ROW(HOST, "attention_int4_memory_gb_s", REAL, REFINES, GB_S, host_attention[1].bytes_per_s, 0,
        1e6, "int4 keys and values that attention of a new token reads"),
    ROW(HOST, "decode_int4_head_ns", REAL, REFINES, NS, host_attention[1].decode_head_s, 0, 1e6,
        "further time for each head of it"),
    ROW(HOST, "attention_int4_tflop_s", REAL, REFINES, TFLOP_S, host_attention[1].flops_per_s, 0,
        1e6, "attention of prompts over int4 keys and values"),
    ROW(HOST, "prefill_int4_head_ns", REAL, REFINES, NS, host_attention[1].prefill_head_s, 0, 1e6,
        "further time for each head of a prompt's row"),
    ROW(HOST, "attention_d128_memory_gb_s", REAL, REFINES, GB_S, hw.host.wide.bytes_per_s, 0, 1e6,
        "keys and values read with heads of 128"),
    ROW(HOST, "decode_d128_head_ns", REAL, REFINES, NS, hw.host.wide.decode_head_s, 0, 1e6,
        "further time for each head of it"),
    ROW(HOST, "attention_d128_tflop_s", REAL, REFINES, TFLOP_S, hw.host.wide.flops_per_s, 0, 1e6,
        "attention of prompts with heads of 128"),
    ROW(HOST, "prefill_d128_head_ns", REAL, REFINES, NS, hw.host.wide.prefill_head_s, 0, 1e6,
        "further time for each head of a prompt's row"),
    GROUP("g4", 0, 0, "groups of 4"),
    GROUP("g8", 0, 1, "groups of 8"),
    GROUP("d128_g4", 1, 0, "groups of 4 heads of 128"),
    GROUP("d128_g8", 1, 1, "groups of 8 heads of 128"),
    ROW(HOST, "decode_head_ns", REAL, REFINES, NS, hw.host.decode_head_s, 0, 1e6,
        "a new token's attention: further time for each head"),
    ROW(HOST, "prefill_head_ns", REAL, REFINES, NS, hw.host.prefill_head_s, 0, 1e6,
        "prompts' attention: further time for each head of a row"),
    ROW(HOST, "attention_tflop_s", REAL, DERIVES, TFLOP_S, hw.host.attention_flops_per_s, 1e-5, 1e4,
        "attention of prompts, heads of 64"),
    ROW(HOST, "attention_f32_share", REAL, REFINES, PURE, host_attention_f32_share, 1e-3, 10,
        "of these rates for prompts, what f32 compute reaches"),
    ROW(HOST, "attention_memory_gb_s", REAL, DERIVES, GB_S, hw.host.attention_bytes_per_s, 1e-3,
        2e4, "keys and values that attention of a new token reads"),
    ROW(HOST, "attention_thread_gb_s", REAL, REFINES, GB_S, hw.host.attention_thread_bytes_per_s, 0,
        2e4, "the same by one thread alone"),
    ROW(HOST, "unpack_int8_gb_s", REAL, DERIVES, GB_S, host_unpack_bytes_per_s[0], 1e-4, 2e4,
        "int8 weights, packed bytes, unpacked to the compute type"),
    ROW(HOST, "unpack_int4_gb_s", REAL, DERIVES, GB_S, host_unpack_bytes_per_s[1], 1e-4, 2e4,
        "int4 weights likewise"),
    ROW(HOST, "overlap", REAL, DERIVES, PURE, hw.host.overlap, 0, 1,
        "of arithmetic and memory time, the lesser's hidden part"),
    ROW(HOST, "start_us", REAL, DERIVES, US, hw.overhead_s[AQ_LANE_HOST_COMPUTE], 0, 1e6,
        "start of an op"),

    /* Where there is no device, these are what an emulated one has: copies in memory. */
    ROW(LINKS, "h2d_gb_s", REAL, DERIVES, GB_S, hw.h2d_bytes_per_s, 1e-3, 2e3,
        "host memory to the device"),
    ROW(LINKS, "d2h_gb_s", REAL, DERIVES, GB_S, hw.d2h_bytes_per_s, 1e-3, 2e3, "back"),
    ROW(LINKS, "duplex", REAL, DERIVES, PURE, hw.link_duplex, 1, 2,
        "both ways at once, in times of one alone: 1 to 2"),
    ROW(LINKS, "copy_core_s_per_gb", REAL, DERIVES, CORE_S, hw.copy_core_s_per_byte, 0, 100,
        "core time that a copy takes"),
    ROW(LINKS, "host_bytes_per_byte", REAL, DERIVES, PURE, hw.copy_host_bytes_per_byte, 0, 8,
        "host memory traffic of a copied byte"),
    ROW(LINKS, "start_us", REAL, DERIVES, US, hw.overhead_s[AQ_LANE_H2D], 0, 1e6,
        "start of a copy"),
    ROW(LINKS, "h2d_64kib_gb_s", REAL, OPTIONAL, GB_S, seen.h2d_64k_bytes_per_s, 1e-6, 2e4,
        "measured: copies of 64 KiB"),
    ROW(LINKS, "h2d_1mib_gb_s", REAL, OPTIONAL, GB_S, seen.h2d_1m_bytes_per_s, 1e-6, 2e4,
        "measured: copies of 1 MiB"),
    ROW(LINKS, "h2d_16mib_gb_s", REAL, OPTIONAL, GB_S, seen.h2d_16m_bytes_per_s, 1e-6, 2e4,
        "measured: copies of 16 MiB"),
    ROW(LINKS, "d2h_64kib_gb_s", REAL, OPTIONAL, GB_S, seen.d2h_64k_bytes_per_s, 1e-6, 2e4,
        "measured: back, 64 KiB"),
    ROW(LINKS, "d2h_1mib_gb_s", REAL, OPTIONAL, GB_S, seen.d2h_1m_bytes_per_s, 1e-6, 2e4,
        "measured: back, 1 MiB"),
    ROW(LINKS, "d2h_16mib_gb_s", REAL, OPTIONAL, GB_S, seen.d2h_16m_bytes_per_s, 1e-6, 2e4,
        "measured: back, 16 MiB"),
    ROW(LINKS, "both_gb_s", REAL, OPTIONAL, GB_S, seen.both_bytes_per_s, 1e-6, 2e4,
        "measured: both ways at once, together"),
    ROW(LINKS, "h2d_in_attention_gb_s", REAL, OPTIONAL, GB_S, seen.h2d_in_attention_bytes_per_s,
        1e-6, 2e4, "measured: copies while the host attends"),
    ROW(LINKS, "attention_in_h2d_gb_s", REAL, OPTIONAL, GB_S, seen.attention_in_h2d_bytes_per_s,
        1e-6, 2e4, "measured: attention of the host while copies run"),

    ROW(DISK, "space", SIZE, NEEDED, BYTES, capacity[AQ_DISK], 1e6, 1e18,
        "room for packed weights and scratch"),
    ROW(DISK, "read_gb_s", REAL, NEEDED, GB_S, hw.disk_read_bytes_per_s, 1e-3, 500, "large reads"),
    ROW(DISK, "write_gb_s", REAL, DERIVES, GB_S, hw.disk_write_bytes_per_s, 1e-3, 500,
        "large writes"),
    ROW(DISK, "duplex", REAL, DERIVES, PURE, hw.disk_duplex, 1, 2,
        "both ways at once, in times of one alone: 1 to 2"),
    ROW(DISK, "in_flight", COUNT, DERIVES, PURE, hw.disk_in_flight, 1, 1024,
        "transfers that share its rate at once"),
    ROW(DISK, "core_s_per_gb", REAL, DERIVES, CORE_S, hw.disk_core_s_per_byte, 0, 100,
        "core time that a transfer takes"),
    ROW(DISK, "start_us", REAL, DERIVES, US, hw.overhead_s[AQ_LANE_DISK_READ], 0, 1e6,
        "latency of a transfer"),
};

_Static_assert(AQ_ARRAY_LEN(aq_hw_key_table) <= AQ_HW_KEYS_MAX, "room for their notes");

const char *aq_hw_section_name(enum aq_hw_section s)
{
    static const char *const names[AQ_HW_SECTION_COUNT] = {"machine", "device", "host", "links",
                                                           "disk"};
    assert((unsigned)s < AQ_HW_SECTION_COUNT);
    return names[s];
}

uint32_t aq_hw_key_count(void)
{
    return AQ_ARRAY_LEN(aq_hw_key_table);
}

const char *aq_hw_key_name(char text[AQ_HW_KEY_TEXT_MAX], uint32_t key)
{
    assert(key < aq_hw_key_count());
    snprintf(text, AQ_HW_KEY_TEXT_MAX, "%s.%s", aq_hw_section_name(aq_hw_key_table[key].section),
             aq_hw_key_table[key].name);
    return text;
}

uint32_t aq_hw_key_find(const char *name)
{
    char text[AQ_HW_KEY_TEXT_MAX];
    uint32_t key = 0;
    while (key < aq_hw_key_count() && strcmp(aq_hw_key_name(text, key), name) != 0)
        key++;
    assert(key < aq_hw_key_count());
    return key;
}

double aq_hw_key_value(const struct aq_hw_profile *p, uint32_t key)
{
    const struct aq_hw_key *k = &aq_hw_key_table[key];
    const char *at = (const char *)p + k->offset;
    switch (k->kind) {
    case AQ_HW_COUNT: return *(const uint32_t *)(const void *)at;
    case AQ_HW_SIZE: return (double)*(const uint64_t *)(const void *)at;
    case AQ_HW_REAL: break;
    }
    return *(const double *)(const void *)at / k->factor;
}

void aq_hw_key_set(struct aq_hw_profile *p, uint32_t key, double value)
{
    const struct aq_hw_key *k = &aq_hw_key_table[key];
    char *at = (char *)p + k->offset;
    switch (k->kind) {
    case AQ_HW_COUNT: *(uint32_t *)(void *)at = (uint32_t)value; break;
    case AQ_HW_SIZE: *(uint64_t *)(void *)at = (uint64_t)value; break;
    case AQ_HW_REAL: *(double *)(void *)at = value * k->factor; break;
    }
}

void aq_hw_key_give(struct aq_hw_profile *p, const char *name, double value, double spread,
                    const char *source)
{
    uint32_t key = aq_hw_key_find(name);
    aq_hw_key_set(p, key, value);
    p->note[key].origin = AQ_HW_GIVEN;
    p->note[key].spread = spread;
    snprintf(p->note[key].source, sizeof(p->note[key].source), "%s", source);
}

double aq_hw_spread(const struct aq_hw_profile *p, uint32_t *ret_key)
{
    double widest = 0;
    for (uint32_t i = 0; i < aq_hw_key_count(); i++) {
        const struct aq_hw_note *n = &p->note[i];
        if (n->origin != AQ_HW_GIVEN || aq_hw_key_table[i].need == AQ_HW_OPTIONAL ||
            !(n->spread > widest))
            continue;
        widest = n->spread;
        *ret_key = i;
    }
    return widest;
}

bool aq_hw_has(const struct aq_hw_profile *p, enum aq_hw_section s)
{
    if (s == AQ_HW_DEVICE)
        return p->capacity[AQ_DEVICE] > 0;
    return s != AQ_HW_DISK || p->capacity[AQ_DISK] > 0;
}

/* What wide heads and groups change is measured over f16, and assumed alike of other formats. */
static void attend_as(struct aq_hw_side *side, const struct aq_hw_attention *a)
{
    struct aq_hw_attention *others[] = {&side->wide, &side->shared[0][0], &side->shared[0][1],
                                        &side->shared[1][0], &side->shared[1][1]};
    double *to[] = {&side->attention_bytes_per_s, &side->decode_head_s,
                    &side->attention_flops_per_s, &side->prefill_head_s};
    const double from[] = {a->bytes_per_s, a->decode_head_s, a->flops_per_s, a->prefill_head_s};
    if (a->bytes_per_s > 0) /* codes are more of arithmetic, which is the work of all threads */
        side->attention_thread_bytes_per_s = 0;
    for (size_t i = 0; i < AQ_ARRAY_LEN(to); i++) {
        if (from[i] <= 0)
            continue;
        for (size_t n = 0; n < AQ_ARRAY_LEN(others); n++) {
            double *other[] = {&others[n]->bytes_per_s, &others[n]->decode_head_s,
                               &others[n]->flops_per_s, &others[n]->prefill_head_s};
            *other[i] *= *to[i] > 0 ? from[i] / *to[i] : 1;
        }
        *to[i] = from[i];
    }
}

struct aq_hardware aq_hw_for_formats(const struct aq_hw_profile *p, enum aq_dtype compute,
                                     enum aq_dtype weights, enum aq_dtype kv)
{
    struct aq_hardware hw = p->hw;
    if (aq_dtype_is_quantised(weights)) {
        hw.device.unpack_bytes_per_s = p->device_unpack_bytes_per_s[weights == AQ_Q4];
        hw.host.unpack_bytes_per_s = p->host_unpack_bytes_per_s[weights == AQ_Q4];
    }
    if (aq_dtype_is_quantised(kv)) {
        attend_as(&hw.host, &p->host_attention[kv == AQ_Q4]);
        if (hw.device_on_host)
            attend_as(&hw.device, &p->host_attention[kv == AQ_Q4]);
    }
    if (aq_dtype_is_kivi(kv)) { /* decode is taken to read codes as int4's; prompts are f16 */
        struct aq_hw_attention decode = {.bytes_per_s = p->host_attention[1].bytes_per_s,
                                         .decode_head_s = p->host_attention[1].decode_head_s};
        attend_as(&hw.host, &decode);
        if (hw.device_on_host)
            attend_as(&hw.device, &decode);
    }
    double f32_share = p->host_attention_f32_share;
    if (compute == AQ_F32 && f32_share > 0) {
        aq_hardware_scale_attention(&hw.host, 1, f32_share);
        if (hw.device_on_host)
            aq_hardware_scale_attention(&hw.device, 1, f32_share);
    }
    return hw;
}

/* ---- as JSON ----------------------------------------------------------------------------- */

json_t *aq_hw_assumptions_json(const struct aq_hw_profile *p)
{
    char name[AQ_HW_KEY_TEXT_MAX];
    json_t *list = json_array();
    for (uint32_t i = 0; i < aq_hw_key_count(); i++) {
        if (p->note[i].origin == AQ_HW_DERIVED)
            aq_json_add(&list, json_pack("{s:s, s:o, s:s}", "key", aq_hw_key_name(name, i), "value",
                                         aq_json_real(aq_hw_key_value(p, i)), "source",
                                         p->note[i].source));
    }
    return list;
}

static json_t *section_json(const struct aq_hw_profile *p, enum aq_hw_section section)
{
    static const char *const origins[] = {
        [AQ_HW_ABSENT] = "absent", [AQ_HW_GIVEN] = "given", [AQ_HW_DERIVED] = "assumed"};
    json_t *o = json_object();
    for (uint32_t i = 0; i < aq_hw_key_count(); i++) {
        const struct aq_hw_note *n = &p->note[i];
        if (aq_hw_key_table[i].section != section || n->origin == AQ_HW_ABSENT)
            continue;
        aq_json_put(&o, aq_hw_key_table[i].name,
                    json_pack("{s:o, s:o, s:s, s:s}", "value", aq_json_real(aq_hw_key_value(p, i)),
                              "spread", aq_json_real(n->spread), "origin", origins[n->origin],
                              "source", n->source));
    }
    return o;
}

json_t *aq_hw_price_json(const struct aq_hw_price *p)
{
    return p->given
               ? json_pack("{s:o, s:s?, s:s?, s:s?}", "per_hour", aq_json_real(p->per_hour.amount),
                           "currency", *p->per_hour.currency ? p->per_hour.currency : NULL, "date",
                           *p->date ? p->date : NULL, "source", *p->source ? p->source : NULL)
               : json_null();
}

json_t *aq_hw_json(const struct aq_hw_profile *p)
{
    json_t *rates = json_object(), *capacity = json_object();
    for (int s = 0; s < AQ_HW_SECTION_COUNT; s++) {
        if (aq_hw_has(p, (enum aq_hw_section)s))
            aq_json_put(&rates, aq_hw_section_name((enum aq_hw_section)s),
                        section_json(p, (enum aq_hw_section)s));
    }
    for (int t = 0; t < AQ_TIER_COUNT; t++)
        aq_json_put(&capacity, aq_tier_name((enum aq_tier)t),
                    p->capacity[t] ? json_integer((json_int_t)p->capacity[t]) : json_null());
    return json_pack("{s:s, s:s, s:s, s:s?, s:o, s:o, s:o}", "name", p->name, "description",
                     p->description, "cpu", p->cpu, "device", *p->device ? p->device : NULL,
                     "capacity", capacity, "rates", rates, "price", aq_hw_price_json(&p->price));
}
