/* SPDX-License-Identifier: Apache-2.0
 * engine/machine/probe.c - single measurements put together as a profile.  A GPU brings its section
 * and the links to it; without one, links are those of the emulated device: copies in memory. */
#include "engine/machine/probe.h"

#include "base/clock.h"
#include "engine/machine/hw_keys.h"
#include "engine/machine/limits.h"
#include "engine/machine/rates_gpu.h"
#include "engine/machine/rates_parts.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* How much of everything: memory beyond what caches hold, where there is enough. */
struct amount {
    double long_s, product_flops; /* of a thread's share of one product; 0: no limit */
    size_t weight_bytes, row_bytes, kv_bytes, link_bytes, gpu_bytes;
    uint64_t disk_bytes;
};
static const struct amount thorough = {0.25,      0,        256 << 20, 128 << 20,
                                       128 << 20, 64 << 20, 512 << 20, 1ull << 30},
                           quick = {0.04,      2e9,      192 << 20, 128 << 20,
                                    128 << 20, 64 << 20, 128 << 20, 128 << 20},
                           small = {0.04,     2e9,      64 << 20,  64 << 20,
                                    32 << 20, 32 << 20, 128 << 20, 128 << 20};

/* At most: weights, what they are unpacked to, KV, both ends of both links, rows and scratch. */
static uint64_t memory_of(const struct amount *a)
{
    return 2 * a->weight_bytes + a->kv_bytes + 4 * a->link_bytes + 64 * AQ_MIB;
}

/* What is read from memory is twice what the caches hold: a server's may hold more than the above.
 * Less where that would not fit, or caches are of the size of memory. */
static void exceed_caches(struct amount *a, uint64_t memory)
{
    long cache = sysconf(_SC_LEVEL3_CACHE_SIZE);
    size_t least = cache > 0 ? aq_align_up(2 * (size_t)cache, AQ_MIB) : 0;
    struct amount more = *a;
    more.weight_bytes = aq_max_u64(more.weight_bytes, least);
    more.row_bytes = aq_max_u64(more.row_bytes, least);
    more.kv_bytes = aq_max_u64(more.kv_bytes, least);
    if (2 * memory_of(&more) <= memory)
        *a = more;
}

struct probe {
    const struct aq_probe_opts *o;
    struct amount amount;
    struct aq_kernels kernels;
    enum aq_dtype compute; /* as --compute auto chooses it */
    uint32_t threads;
    struct aq_rates_rig rig;
    struct aq_disk_limits disk;
    uint64_t disk_bytes; /* to measure it in; 0: it is not measured */
    struct aq_hw_profile *p;
};

static int begin(const struct probe *b, const char *what, struct aq_err *reterr)
{
    aq_log_line(b->o->log, AQ_LOG_INFO, "measuring %s", what);
    if (b->o->stop && b->o->stop(b->o->stop_user))
        return aq_error(reterr, -EINTR, "probe: interrupted before %s", what);
    return 0;
}

static void give(const struct probe *b, const char *key, struct aq_sample s, double unit,
                 const char *source)
{
    if (s.median > 0)
        aq_hw_key_give(b->p, key, s.median / unit, s.spread, source);
}

static void give_sure(const struct probe *b, const char *key, double value, const char *source)
{
    aq_hw_key_give(b->p, key, value, NAN, source);
}

/* ---- host -------------------------------------------------------------------------------- */

static void measure_unpacking(const struct probe *b, const struct aq_rates_products *p, void *dst)
{
    static const char *const keys[] = {"host.unpack_int8_gb_s", "host.unpack_int4_gb_s"};
    static const enum aq_dtype format[] = {AQ_Q8, AQ_Q4};
    char source[AQ_HW_TEXT_MAX];
    snprintf(source, sizeof(source), "measured: to %s, packed bytes", aq_dtype_name(b->compute));
    for (int i = 0; i < 2; i++)
        give(b, keys[i],
             aq_rates_unpack_bytes(p, format[i], b->compute, dst, b->amount.weight_bytes), 1e9,
             source);
}

static void measure_short(const struct probe *b, const struct aq_rates_products *p)
{
    char source[AQ_HW_TEXT_MAX];
    snprintf(source, sizeof(source), "measured: K of %u against %u, %u rows out of caches",
             AQ_HW_K_SHORT, AQ_HW_K, AQ_RATES_ROWS);
    give(b, "host.product_f32_k768_share", aq_rates_short_share(p, AQ_F32), 1, source);
    give(b, "host.product_bf16_k768_share", aq_rates_short_share(p, AQ_BF16), 1, source);
}

/* Of the compute type's weights, int8 and int4. */
static void measure_shares(const struct probe *b, const struct aq_rates_products *p)
{
    static const char *const name[] = {"", "_int8", "_int4"};
    const enum aq_dtype format[] = {b->compute, AQ_Q8, AQ_Q4};
    struct aq_hardware usual;
    aq_hardware_default(&usual, 1, 1, 1);
    for (int f = 0; f < 3; f++) {
        struct aq_sample share[AQ_HW_ROWS];
        char key[AQ_HW_KEY_TEXT_MAX], source[AQ_HW_TEXT_MAX];
        size_t bytes = b->amount.row_bytes;
        snprintf(source, sizeof(source), "measured: %s weights from memory, %s",
                 aq_dtype_name(format[f]), aq_dtype_name(b->compute));
        snprintf(key, sizeof(key), "host.product%s_memory_gb_s", name[f]);
        if (f > 0)
            give(b, key, aq_rates_product_bytes(p, b->compute, format[f], bytes), 1e9, source);
        aq_rates_product_shares(share, p, b->compute, format[f], bytes, usual.host.overlap);
        for (uint32_t i = 0; i < AQ_HW_ROWS; i++) {
            snprintf(key, sizeof(key), "host.product%s_at_%u_rows", name[f], aq_hw_rows[i]);
            give(b, key, share[i], 1, source);
        }
    }
}

/* The rates that most times follow from, each measured at several moments of the probe: others on
 * the machine hold up a whole measurement, which is over in a few hundredths of a second. */
enum { MOMENTS = 3 };
enum main_rate { F32_FLOPS, CODES_FLOPS, BF16_FLOPS, ROW_BYTES, F32_ROW_BYTES, READ_BYTES, MAIN };
struct main_rates {
    struct aq_sample at[MAIN][MOMENTS];
    int count; /* of moments */
};

static void measure_main(const struct probe *b, const struct aq_rates_products *p,
                         struct main_rates *m)
{
    int i = m->count++;
    m->at[F32_FLOPS][i] = aq_rates_product_flops(p, AQ_F32, AQ_F32);
    m->at[CODES_FLOPS][i] = aq_rates_product_flops(p, AQ_Q8, AQ_Q8);
    m->at[BF16_FLOPS][i] = aq_rates_product_flops(p, AQ_BF16, AQ_BF16);
    m->at[ROW_BYTES][i] = aq_rates_product_bytes(p, b->compute, b->compute, p->weight_bytes);
    m->at[F32_ROW_BYTES][i] = aq_rates_product_bytes(p, AQ_F32, AQ_F32, p->weight_bytes);
    m->at[READ_BYTES][i] = aq_rates_read_bytes(p);
}

/* The middle one of the moments, which spreads as much as they do, or more. */
static struct aq_sample middle(const struct main_rates *m, enum main_rate rate)
{
    double median[MOMENTS], spread = 0;
    for (int i = 0; i < m->count; i++) {
        median[i] = m->at[rate][i].median;
        spread = fmax(spread, m->at[rate][i].spread);
    }
    struct aq_sample of = aq_sample_of(median, (size_t)m->count);
    of.spread = fmax(of.spread, spread);
    return of;
}

static void give_main(const struct probe *b, const struct main_rates *m)
{
    char source[AQ_HW_TEXT_MAX];
    snprintf(source, sizeof(source), "measured: %u rows out of caches, %s", AQ_RATES_ROWS,
             aq_isa_name(b->kernels.isa));
    give(b, "host.product_f32_tflop_s", middle(m, F32_FLOPS), 1e12, source);
    give(b, "host.product_codes_tflop_s", middle(m, CODES_FLOPS), 1e12, source);
    give(b, "host.product_bf16_tflop_s", middle(m, BF16_FLOPS), 1e12, source);
    snprintf(source, sizeof(source), "measured: %s product of one row", aq_dtype_name(b->compute));
    give(b, "host.product_memory_gb_s", middle(m, ROW_BYTES), 1e9, source);
    give(b, "host.product_f32_memory_gb_s", middle(m, F32_ROW_BYTES), 1e9, "measured: one row");
    give(b, "host.memory_gb_s", middle(m, READ_BYTES), 1e9, "measured: reading, all threads");
}

static int measure_products(struct probe *b, struct aq_err *reterr)
{
    struct aq_rates_products p;
    struct main_rates m = {.count = 0};
    void *dst = NULL;
    int rc = begin(b, "products and memory", reterr);
    rc = rc < 0 ? rc : aq_rates_products_open(&p, &b->rig, b->amount.weight_bytes, reterr);
    rc = rc < 0 ? rc : aq_rates_take(&dst, &b->rig, b->amount.weight_bytes, 0, reterr);
    if (rc < 0)
        return rc;
    measure_main(b, &p, &m);
    if (b->kernels.isa & AQ_ISA_AVX2) {
        measure_short(b, &p);
        measure_main(b, &p, &m);
        measure_shares(b, &p);
        measure_main(b, &p, &m);
    }
    give_main(b, &m);
    measure_unpacking(b, &p, dst);
    return 0;
}

static int measure_wake(struct probe *b, struct aq_err *reterr)
{
    struct aq_sample wake;
    int rc = aq_rates_wake(&wake, reterr);
    if (rc == 0)
        give(b, "machine.wake_us", wake, 1e-6, "measured: a thread that slept on another core");
    return rc;
}

/* ---- GPU --------------------------------------------------------------------------------- */

static void give_products(const struct probe *b, const struct aq_rates_gpu *g, enum aq_dtype t)
{
    static const uint32_t shown[] = {1, 2, 3}; /* of aq_rates_gpu_rows; the last is the rate */
    char key[AQ_HW_KEY_TEXT_MAX], source[AQ_HW_TEXT_MAX];
    for (uint32_t i = 0; i < AQ_ARRAY_LEN(shown) && t != AQ_F32; i++) {
        uint32_t rows = aq_rates_gpu_rows[shown[i]];
        snprintf(key, sizeof(key), "device.product_%s_rows%u_tflop_s", aq_dtype_name(t), rows);
        snprintf(source, sizeof(source), "measured: %u rows", rows);
        give(b, key, g->product[t][shown[i]], 1e12, source);
    }
    snprintf(key, sizeof(key), "device.product_%s_tflop_s", aq_dtype_name(t));
    snprintf(source, sizeof(source), "measured: %u rows, cuBLASLt, %u x %u in f16",
             AQ_RATES_GPU_ROWS_MAX, g->n, g->k);
    give(b, key, g->product[t][AQ_RATES_GPU_ROWS - 1], 1e12, source);
}

static void give_decode(const struct probe *b, const struct aq_rates_gpu *g)
{
    for (uint32_t i = 0; i < 2 * (1 + AQ_HW_GROUPS); i++) {
        uint32_t wide = i / (1 + AQ_HW_GROUPS), place = i % (1 + AQ_HW_GROUPS);
        const struct aq_rates_gpu_decode *d = &g->decode[wide][place];
        char key[AQ_HW_KEY_TEXT_MAX], source[AQ_HW_TEXT_MAX], name[16] = "", shared[48] = "";
        if (place) {
            uint32_t group = aq_hw_groups[place - 1];
            snprintf(name, sizeof(name), "g%u_", group);
            snprintf(shared, sizeof(shared), ", %u query heads for each", group);
        }
        snprintf(key, sizeof(key), "device.attention_%s%smemory_gb_s", wide ? "d128_" : "", name);
        snprintf(source, sizeof(source),
                 "measured: decode, f16 KV, %u sequences of %u keys, heads of %u%s", d->sequences,
                 d->keys, wide ? AQ_HW_HEAD_WIDE : AQ_HW_HEAD, shared);
        give(b, key, d->bytes, 1e9, source);
    }
}

static void give_gpu(const struct probe *b, const struct aq_rates_gpu *g)
{
    char source[AQ_HW_TEXT_MAX];
    give(b, "device.memory_gb_s", g->memory, 1e9, "measured: a copy inside, read and written");
    give_products(b, g, AQ_F32);
    give_products(b, g, AQ_F16);
    give_products(b, g, AQ_BF16);
    give(b, "device.product_memory_gb_s", g->product_bytes, 1e9,
         "measured: f16 product of one row");
    give_decode(b, g);
    give(b, "device.attention_scored_gb_s", g->scored, 1e9,
         "measured: as attention_memory_gb_s, keeping scores");
    snprintf(source, sizeof(source), "measured: prefill of %u rows, f16 KV, heads of %u",
             g->prefill_rows, AQ_HW_HEAD_WIDE);
    give(b, "device.attention_tflop_s", g->prefill, 1e12, source);
    give(b, "device.unpack_int8_gb_s", g->unpack[0], 1e9, "measured: to f16, packed bytes");
    give(b, "device.unpack_int4_gb_s", g->unpack[1], 1e9, "measured: to f16, packed bytes");
    give(b, "device.start_us", g->op_s, 1e-6, "measured: ops of one small kernel in a queue");
    give(b, "device.launch_us", g->launch_s, 1e-6, "measured: small kernels behind each other");
}

static int measure_gpu(struct probe *b, struct aq_err *reterr)
{
    struct aq_rates_gpu g;
    int rc = begin(b, "the GPU", reterr);
    rc = rc < 0 ? rc : aq_rates_gpu(&g, &b->rig, b->o->cuda, b->amount.gpu_bytes, reterr);
    if (rc == 0)
        give_gpu(b, &g);
    return rc;
}

/* ---- links ------------------------------------------------------------------------------- */

static void give_links(const struct probe *b, const struct aq_rates_link *l)
{
    static const char *const by_size[3][2] = {
        {"links.h2d_64kib_gb_s", "links.d2h_64kib_gb_s"},
        {"links.h2d_1mib_gb_s", "links.d2h_1mib_gb_s"},
        {"links.h2d_16mib_gb_s", "links.d2h_16mib_gb_s"},
    };
    const char *copies = b->o->cuda ? "measured: copies to and from pinned memory"
                                    : "measured: copies in memory, one thread; no device";
    give(b, "links.h2d_gb_s", l->h2d, 1e9, copies);
    give(b, "links.d2h_gb_s", l->d2h, 1e9, copies);
    for (int i = 0; i < 3; i++) {
        give(b, by_size[i][0], l->h2d_size[i], 1e9, copies);
        give(b, by_size[i][1], l->d2h_size[i], 1e9, copies);
    }
    give(b, "links.both_gb_s", l->both, 1e9, "measured: both directions at once, together");
    give(b, "links.copy_core_s_per_gb", l->core_s, 1e-9, "measured");
    give(b, "links.h2d_in_attention_gb_s", l->h2d_in_attention, 1e9,
         "measured: while host attention runs on all threads");
    give(b, "links.attention_in_h2d_gb_s", l->attention_in_h2d, 1e9,
         "measured: host attention while h2d copies run");
    if (!b->o->cuda)
        return;
    /* A small copy takes its bytes' time and this. */
    double start = 65536 / l->h2d_size[0].median - 65536 / l->h2d.median;
    give_sure(b, "links.start_us", 1e6 * fmax(start, 0), "measured: copies of 64 KiB");
    give_sure(b, "links.duplex",
              fmin(fmax(2 * l->both.median / (l->h2d.median + l->d2h.median), 1), 2),
              "measured: both directions at once against each alone");
}

static void give_attention(const struct probe *b, struct aq_rates_attention *a)
{
    for (uint32_t i = 0; i < AQ_RATES_USES; i++) {
        const struct aq_rates_use *use = &aq_rates_uses[i];
        uint32_t dim = use->head_dim, group = use->group;
        struct aq_rates_attended at;
        char source[AQ_HW_TEXT_MAX], key[AQ_HW_KEY_TEXT_MAX], shared[48] = "";
        if (group > 1)
            snprintf(shared, sizeof(shared), ", %u query heads for each", group);
        snprintf(source, sizeof(source),
                 "measured: %s KV, %u heads of %u%s, 64 and 512 keys, prompts in %s",
                 aq_dtype_name(use->format), aq_rates_attention_heads(dim, group), dim, shared,
                 aq_dtype_name(b->compute));
        aq_rates_attention_use(a, use);
        aq_rates_attend(&at, a);
#define KEY(before, after) (snprintf(key, sizeof(key), "host." before "_%s" after, use->name), key)
        give(b, KEY("attention", "memory_gb_s"), at.decode_bytes, 1e9, source);
        give(b, KEY("decode", "head_ns"), at.decode_head_s, 1e-9, source);
        give(b, KEY("attention", "tflop_s"), at.prefill_flops, 1e12, source);
        give(b, KEY("prefill", "head_ns"), at.prefill_head_s, 1e-9, source);
#undef KEY
        if (i + 1 == AQ_RATES_USES && b->rig.threads > 1) {
            struct aq_sample alone = aq_rates_decode_alone(a);
            alone.median *= at.decode_bytes.median;
            give(b, "host.attention_thread_gb_s", alone, 1e9,
                 "measured: one thread in turns with all, as attention_memory_gb_s");
        }
    }
    if (b->compute != AQ_F32) /* the last use, as the rates of others are taken to go with it */
        give(b, "host.attention_f32_share", aq_rates_f32_share(a), 1,
             "measured: f16 KV, 512 keys, f32 against the rates above");
}

static int measure_attention_and_links(struct probe *b, struct aq_err *reterr)
{
    struct aq_rates_attention *a = NULL;
    struct aq_rates_link link;
    int rc = begin(b, "attention", reterr);
    rc = rc < 0 ? rc : aq_rates_attention_open(&a, &b->rig, b->compute, b->amount.kv_bytes, reterr);
    if (rc < 0)
        return rc;
    give_attention(b, a);
    rc = begin(b, "links", reterr);
    rc = rc < 0 ? rc
                : aq_rates_links(&link, &b->rig, b->o->cuda, a,
                                 b->amount.link_bytes * (b->o->cuda ? 2 : 1), reterr);
    if (rc == 0)
        give_links(b, &link);
    aq_rates_attention_close(a);
    return rc;
}

/* ---- disk -------------------------------------------------------------------------------- */

/* Before seconds of measuring are spent: whether there is a disk to measure, and room on it. */
static int look_at_disk(struct probe *b, struct aq_err *reterr)
{
    const char *dir = b->o->disk_dir;
    int rc = dir ? aq_limits_disk(&b->disk, dir, reterr) : 0;
    if (rc < 0 || !dir)
        return rc;
    if (b->disk.in_memory) {
        aq_log_line(b->o->log, AQ_LOG_WARNING, "'%s' lies in memory: no disk is measured", dir);
        return 0;
    }
    b->disk_bytes = aq_min_u64(b->amount.disk_bytes, b->disk.free / 4);
    if (b->disk_bytes < quick.disk_bytes)
        return aq_error(reterr, -ENOMEM,
                        "'%s': expected %llu MiB free to measure the disk in, found %llu MiB", dir,
                        (unsigned long long)(4 * quick.disk_bytes / AQ_MIB),
                        (unsigned long long)(b->disk.free / AQ_MIB));
    return 0;
}

static int measure_disk(struct probe *b, struct aq_err *reterr)
{
    struct aq_rates_disk d;
    char source[AQ_HW_TEXT_MAX];
    if (!b->disk_bytes)
        return 0;
    int rc = begin(b, "the disk", reterr);
    rc = rc < 0 ? rc
                : aq_rates_scratch(&d, b->o->disk_dir, b->disk_bytes, b->o->io, b->o->io_direct,
                                   b->o->log, reterr);
    if (rc < 0)
        return rc;
    snprintf(source, sizeof(source), "measured: %s, %s, pieces of 1 MiB, %s", b->disk.file_system,
             d.direct ? "O_DIRECT" : "buffered", d.engine);
    give_sure(b, "disk.space", (double)(b->disk.free / AQ_MIB * AQ_MIB), "free");
    give(b, "disk.read_gb_s", d.read, 1e9, source);
    give(b, "disk.write_gb_s", d.write, 1e9, source);
    give_sure(b, "disk.duplex", d.together, "measured: both at once against one after the other");
    give_sure(b, "disk.core_s_per_gb", d.core_s * 1e9, source);
    return 0;
}

/* ---- the whole --------------------------------------------------------------------------- */

/* Memory goes as fast as the fastest of what went through it: products ask ahead for what they
 * read, and others on the machine may have slowed one measurement and not the next. */
static void reconcile_memory(const struct probe *b)
{
    static const char *const through[] = {
        "host.product_memory_gb_s",
        "host.product_f32_memory_gb_s",
        "host.attention_memory_gb_s",
        "links.h2d_gb_s",
        "links.d2h_gb_s",
        "disk.read_gb_s",
        "disk.write_gb_s",
    };
    struct aq_hw_profile *p = b->p;
    uint32_t memory = aq_hw_key_find("host.memory_gb_s");
    char source[AQ_HW_TEXT_MAX];
    for (size_t i = 0; i < AQ_ARRAY_LEN(through); i++) {
        uint32_t key = aq_hw_key_find(through[i]);
        double rate = aq_hw_key_value(p, key);
        if (p->note[key].origin == AQ_HW_ABSENT || rate <= aq_hw_key_value(p, memory))
            continue;
        snprintf(source, sizeof(source), "measured: as %s, faster than plain reading", through[i]);
        aq_hw_key_give(p, "host.memory_gb_s", rate, p->note[key].spread, source);
    }
}

/* Of a quiet machine, half of the samples lie within some percent. */
static void warn_of_noise(const struct probe *b)
{
    uint32_t key = 0;
    char name[AQ_HW_KEY_TEXT_MAX];
    double spread = aq_hw_spread(b->p, &key);
    if (spread > 0.25)
        aq_log_line(b->o->log, AQ_LOG_WARNING,
                    "%s varied by %.0f %%: if something else is running, measure again without it",
                    aq_hw_key_name(name, key), 100 * spread);
}

static const char *today(char text[16])
{
    time_t now = (time_t)aq_clock_unix_s();
    struct tm t = {0};
    gmtime_r(&now, &t);
    strftime(text, 16, "%Y-%m-%d", &t);
    return text;
}

static int describe(struct probe *b, struct aq_err *reterr)
{
    char date[16];
    struct aq_cpu_limits c;
    struct aq_host_limits h;
    bool bf16;
    unsigned have = aq_isa_detect(), isa = have & aq_isa_chosen(&b->o->isa, have, &bf16);
    aq_limits_cpu(&c, NULL);
    int rc = aq_limits_host(&h, NULL, reterr);
    if (rc < 0)
        return rc;
    uint64_t memory = b->o->memory ? aq_min_u64(b->o->memory, h.usable) : h.usable;
    if (memory < 2 * memory_of(&thorough))
        b->amount = memory < 2 * memory_of(&quick) ? small : quick;
    exceed_caches(&b->amount, memory);
    if (memory < memory_of(&small))
        return aq_error_memory(
            reterr, "expected %llu MiB of memory to measure this machine in, found %llu MiB",
            (unsigned long long)(memory_of(&small) / AQ_MIB),
            (unsigned long long)(memory / AQ_MIB));
    aq_kernels_cpu(&b->kernels, isa);
    b->compute = bf16 ? AQ_BF16 : AQ_F32;
    b->threads = b->o->threads ? b->o->threads : c.threads;
    aq_limits_cpu_model(b->p->cpu, sizeof(b->p->cpu), NULL);
    snprintf(b->p->name, sizeof(b->p->name), "this machine");
    snprintf(b->p->description, sizeof(b->p->description), "%.64s, %u threads, %s, measured %s",
             b->p->cpu, b->threads, aq_isa_name(isa), today(date));
    give_sure(b, "machine.cores", c.quota > 0 ? fmin(c.quota, c.affinity) : c.affinity,
              strcmp(c.limited_by, "cgroup") == 0 ? "quota of the cgroup" : "affinity");
    give_sure(b, "host.threads", b->threads, "measured with so many");
    give_sure(b, "host.memory", (double)(h.total / AQ_MIB * AQ_MIB), "MemTotal");
    if (b->o->cuda) {
        const struct aq_gpu_info *gpu = &b->o->cuda->info;
        snprintf(b->p->device, sizeof(b->p->device), "%.90s", gpu->name);
        give_sure(b, "device.memory", (double)(gpu->total_bytes / AQ_MIB * AQ_MIB), "the driver");
    }
    return 0;
}

int aq_probe(struct aq_hw_profile *ret, const struct aq_probe_opts *opts, struct aq_err *reterr)
{
    struct aq_hw_profile p;
    struct probe b = {.o = opts, .amount = opts->quick ? quick : thorough, .p = &p};
    memset(&p, 0, sizeof(p));
    for (uint32_t i = 0; i < AQ_HW_KEYS_MAX; i++)
        p.note[i].spread = NAN;
    int rc = describe(&b, reterr);
    rc = rc < 0 ? rc : look_at_disk(&b, reterr);
    rc = rc < 0 ? rc
                : aq_rates_rig_open(&b.rig, &b.kernels, b.threads, b.amount.long_s,
                                    AQ_RATES_CONTEXT, reterr);
    if (rc < 0)
        return rc;
    b.rig.flops_max = b.amount.product_flops * b.threads;
    rc = measure_wake(&b, reterr);
    rc = rc < 0 ? rc : measure_products(&b, reterr);
    rc = rc < 0 ? rc : measure_attention_and_links(&b, reterr);
    if (rc == 0 && opts->cuda)
        rc = measure_gpu(&b, reterr);
    aq_rates_rig_close(&b.rig);
    rc = rc < 0 ? rc : measure_disk(&b, reterr);
    if (rc == 0) {
        reconcile_memory(&b);
        warn_of_noise(&b);
    }
    rc = rc < 0 ? rc : aq_hw_complete(&p, "this machine", NULL, reterr);
    if (rc == 0)
        *ret = p;
    return rc;
}
