/* SPDX-License-Identifier: Apache-2.0
 * engine/machine/rates_parts.h - the single measurements that engine/machine/rates.h (quick, before
 * a run) and engine/machine/probe.h (thorough) are made of, and the workers and memory that they
 * share.  Each is repeated many times, and the median counts, because other programs slow some
 * repetitions down, as they will slow parts of a long run. */
#ifndef AQ_ENGINE_MACHINE_RATES_PARTS_H
#define AQ_ENGINE_MACHINE_RATES_PARTS_H

#include "base/mem.h"
#include "base/sanitized.h"
#include "engine/compute/cuda.h"
#include "kernels/kernels.h"
#include "offload/disks.h"
#include "offload/numa.h"
#include "policy/hw.h"

/* K of the products; rows of those that compute, with so few panels that each core's stay in its
 * cache, as in a large block: at least AQ_RATES_PANELS. */
enum { AQ_RATES_K = AQ_HW_K, AQ_RATES_ROWS = 256, AQ_RATES_PANELS = 8 };

/* A measurement that takes longer than this once is not repeated: where one core has the work of a
 * large machine, or in a build with sanitizers, whose numbers say nothing of this machine. */
#define AQ_RATES_SLOW_S (AQ_SANITIZED ? 0.1 : 2.0)

/* Something per second, or seconds per something. */
struct aq_sample {
    double median;
    double spread; /* (third quartile - first) / median */
};

/* Sorts `values`. */
struct aq_sample aq_sample_of(double *values, size_t count);

/* Seconds of a measurement: long_s, and four times that if the middle half of its times differ by
 * more than a fifth, because other programs were running. */
static inline double aq_rates_until_s(double long_s, double spread)
{
    return (spread > 0.2 ? 4 : 1) * long_s;
}

/* ---- workers and memory ---- */

enum { AQ_RATES_BLOCKS_MAX = 16 };

struct aq_rates_rig {
    const struct aq_kernels *kernels;
    uint32_t threads;
    struct aq_mem *mem;
    struct aq_pool *pool;
    struct aq_numa numa;
    struct aq_exec *exec;
    struct aq_pool *single; /* one thread, for what it does alone */
    struct aq_exec *alone;
    double long_s;    /* seconds after which a measurement is not repeated again */
    double flops_max; /* of one product whose weights come from memory; 0: no limit */
    struct {
        void *at;
        size_t bytes;
    } block[AQ_RATES_BLOCKS_MAX];
    uint32_t block_count;
};

/* context_max: of the attention that will be measured. */
int aq_rates_rig_open(struct aq_rates_rig *ret, const struct aq_kernels *kernels, uint32_t threads,
                      double long_s, uint32_t context_max, struct aq_err *reterr);
void aq_rates_rig_close(struct aq_rates_rig *r);
/* Host memory until the rig is closed, each byte `fill`: pages of its own. */
int aq_rates_take(void *ret, struct aq_rates_rig *r, size_t bytes, int fill, struct aq_err *reterr);

/* ---- computing: per second ---- */

/* `amount` per second of a call of fn; the first call only warms up. */
struct aq_sample aq_rates_repeat(const struct aq_rates_rig *r, void (*fn)(void *), void *arg,
                                 double amount);

/* Numbers that are neither zero nor denormal in any format. */
enum { AQ_RATES_FILL_WEIGHTS = 0x11, AQ_RATES_FILL_ROWS = 0x3f };

/* Memory of the products. */
struct aq_rates_products {
    struct aq_rates_rig *rig;
    uint8_t *weights, *x;
    float *y;
    size_t weight_bytes;
};
int aq_rates_products_open(struct aq_rates_products *ret, struct aq_rates_rig *r,
                           size_t weight_bytes, struct aq_err *reterr);
/* Flops of a product of many rows (of one, where kernels are the reference) out of caches. */
struct aq_sample aq_rates_product_flops(const struct aq_rates_products *p, enum aq_dtype compute,
                                        enum aq_dtype format);
/* The share of this rate that the same product with AQ_HW_K_SHORT reaches, both measured in
 * turns. */
struct aq_sample aq_rates_short_share(const struct aq_rates_products *p, enum aq_dtype compute);
/* Bytes of weights through a product of one row, of the first `bytes` of the weights. */
struct aq_sample aq_rates_product_bytes(const struct aq_rates_products *p, enum aq_dtype compute,
                                        enum aq_dtype format, size_t bytes);
/* Products of aq_hw_rows[] rows with weights from memory: their rate as a share of the one
 * predicted from the rates of one row and of many rows, with this overlap (policy/hw.h).  If
 * flops_max allows fewer columns than `bytes` hold, the first columns are used; other reads of the
 * round have evicted them from caches.  Not for the reference. */
void aq_rates_product_shares(struct aq_sample ret[AQ_HW_ROWS], const struct aq_rates_products *p,
                             enum aq_dtype compute, enum aq_dtype format, size_t bytes,
                             double overlap);
/* Bytes of `format` per second that are unpacked to `compute`, into dst. */
struct aq_sample aq_rates_unpack_bytes(const struct aq_rates_products *p, enum aq_dtype format,
                                       enum aq_dtype compute, void *dst, size_t dst_bytes);
/* The share of the rate of a product of one row that one thread alone reaches, in turns. */
struct aq_sample aq_rates_product_alone(const struct aq_rates_products *p, enum aq_dtype compute);
/* Bytes that all threads read. */
struct aq_sample aq_rates_read_bytes(const struct aq_rates_products *p);

/* Attention over 512 keys a sequence: f16, heads of AQ_HW_HEAD and a head of keys each, until
 * others are used; prompts in this compute type.  A row of KV has AQ_RATES_WIDTH elements; of
 * groups, AQ_RATES_SHARED heads. */
enum { AQ_RATES_WIDTH = 2048, AQ_RATES_SHARED = 4 };
struct aq_rates_attention;
int aq_rates_attention_open(struct aq_rates_attention **ret, struct aq_rates_rig *r,
                            enum aq_dtype compute, size_t kv_bytes, struct aq_err *reterr);
void aq_rates_attention_close(struct aq_rates_attention *a);
/* What it is measured with: formats with a head of keys each, and groups over f16; and what keys of
 * profiles have in their names.  The last one stays in use when links are measured beside it. */
enum { AQ_RATES_USES = 8 };
extern const struct aq_rates_use {
    enum aq_dtype format;
    uint32_t head_dim, group;
    const char *name;
} aq_rates_uses[AQ_RATES_USES];
void aq_rates_attention_use(struct aq_rates_attention *a, const struct aq_rates_use *use);
/* Heads of keys and values of a row. */
uint32_t aq_rates_attention_heads(uint32_t head_dim, uint32_t group);
enum { AQ_RATES_CONTEXT = 512 };
/* One decode row of every sequence; returns the bytes of KV that it read. */
double aq_rates_decode(struct aq_rates_attention *a);
/* The cost of one more key, and the cost of a row and head without keys (storing new keys and
 * values included), from sequences of AQ_RATES_CONTEXT keys and of an eighth of that. */
struct aq_rates_attended {
    struct aq_sample decode_bytes, prefill_flops;   /* per second */
    struct aq_sample decode_head_s, prefill_head_s; /* per row and head */
};
void aq_rates_attend(struct aq_rates_attended *ret, struct aq_rates_attention *a);
/* The share of the rate of decode rows that one thread alone reaches, in turns. */
struct aq_sample aq_rates_decode_alone(struct aq_rates_attention *a);
/* The share of a prompt's rate that it reaches where the compute type is f32, in turns. */
struct aq_sample aq_rates_f32_share(struct aq_rates_attention *a);

/* ---- moving ---- */

struct aq_rates_link {
    struct aq_sample h2d, d2h;                 /* bytes per second, in large pieces */
    struct aq_sample h2d_size[3], d2h_size[3]; /* in pieces of 64 KiB, 1 MiB, 16 MiB */
    struct aq_sample both;                     /* both directions at once, together */
    struct aq_sample core_s;                   /* per byte */
    struct aq_sample h2d_in_attention, attention_in_h2d;
};
/* Copies between host memory and a GPU, or where cuda is NULL an emulated device, as fast as they
 * go; bytes: of each side. */
int aq_rates_links(struct aq_rates_link *ret, struct aq_rates_rig *r, const struct aq_cuda *cuda,
                   struct aq_rates_attention *a, size_t bytes, struct aq_err *reterr);

struct aq_rates_disk {
    struct aq_sample read, write; /* bytes per second */
    double together;              /* both at once, in times of one alone: 1 to 2 */
    double core_s;                /* per byte */
    const char *engine;
    bool direct;
};
/* A file of that many bytes in the directory that never has a name, written, read, and both at
 * once. */
int aq_rates_scratch(struct aq_rates_disk *ret, const char *dir, uint64_t bytes, enum aq_io_kind io,
                     enum aq_direct io_direct, const struct aq_log *log, struct aq_err *reterr);

/* Seconds until a thread that slept on another core goes on. */
int aq_rates_wake(struct aq_sample *ret, struct aq_err *reterr);

/* Seconds of CPU time that this process has used. */
double aq_rates_cpu_s(void);

#endif
