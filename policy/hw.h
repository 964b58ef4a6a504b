/* SPDX-License-Identifier: Apache-2.0
 * policy/hw.h - a machine as numbers: rates of computing on each side, rates of links and disks,
 * and the resources that ops share.  Plain data, measured or read from a file elsewhere.  A rate is
 * what an op reaches with the machine to itself.  Units: bytes, seconds, flop. */
#ifndef AQ_POLICY_HW_H
#define AQ_POLICY_HW_H

#include "policy/program.h"

/* Numbers of rows for which products may have a rate of their own; the last one stands for all
 * larger numbers. */
enum { AQ_HW_ROWS = 4 };
extern const uint32_t aq_hw_rows[AQ_HW_ROWS];

/* The K of products and the head size that rates are given for; and the short K and the wide heads
 * that may have rates of their own. */
enum { AQ_HW_K = 2048, AQ_HW_K_SHORT = 768, AQ_HW_HEAD = 64, AQ_HW_HEAD_WIDE = 128 };
/* The least K that rates are extrapolated to: no model has a smaller one, and one percent of error
 * at AQ_HW_K_SHORT grows to many below. */
enum { AQ_HW_K_LEAST = 256 };

/* Query heads that share a head of keys, for which attention may have rates of its own; those of
 * the fields of one head of keys for each are of 1. */
enum { AQ_HW_GROUPS = 2 };
extern const uint32_t aq_hw_groups[AQ_HW_GROUPS];

/* Rates of attention over KV of one format, with heads of one size, or of one group: as in struct
 * aq_hw_side. */
struct aq_hw_attention {
    double bytes_per_s, decode_head_s, flops_per_s, prefill_head_s;
};

/* A side that computes: the device (compute lane) or the host (host_compute lane). */
struct aq_hw_side {
    double product_flops_per_s[AQ_DTYPE_COUNT]; /* by compute type; many rows */
    double attention_flops_per_s;               /* prompt rows */
    double product_bytes_per_s;                 /* weights through a product of one row */
    double code_bytes_per_s[2];                 /* the same of int8 and int4; 0: as of floats */
    double attention_bytes_per_s;               /* keys and values read for decode rows */
    /* The same by one thread, with heads of AQ_HW_HEAD and a head of keys each.  0: unknown, then
     * all threads are taken to be needed. */
    double attention_thread_bytes_per_s;
    double unpack_bytes_per_s; /* packed weights to the compute type */
    /* Further seconds for each query head of a decode row, and of a prompt row. */
    double decode_head_s, prefill_head_s;
    /* The share of these rates that products of aq_hw_rows[] rows reach, by the format of their
     * weights: floats, int8, int4.  0: all of it. */
    double product_share[3][AQ_HW_ROWS];
    /* The share of product_flops_per_s that products of AQ_HW_K_SHORT reach.  0: all of it. */
    double short_share[AQ_DTYPE_COUNT];
    /* Attention with heads of AQ_HW_HEAD_WIDE.  0: as with those of AQ_HW_HEAD. */
    struct aq_hw_attention wide;
    /* Attention with heads of AQ_HW_HEAD (0) and AQ_HW_HEAD_WIDE (1) in groups of aq_hw_groups[].
     * bytes_per_s contains the arithmetic, which grows with the group.  0: nothing is known of
     * them; then the arithmetic goes at the rate of prompt rows. */
    struct aq_hw_attention shared[2][AQ_HW_GROUPS];
    /* The share of the lesser of arithmetic and memory time that hides behind the greater. */
    double overlap;
    double threads; /* host threads that an op uses; 0: none */
};

struct aq_hardware {
    struct aq_hw_side device, host;
    /* The device's threads and memory are the host's: cpu, with an emulated device or none. */
    bool device_on_host;
    double cores;
    double host_memory_bytes_per_s;   /* all together */
    double device_memory_bytes_per_s; /* all together; unused where the device is on the host */
    double h2d_bytes_per_s, d2h_bytes_per_s;
    double disk_read_bytes_per_s, disk_write_bytes_per_s;
    /* How much both directions carry together, in times of one alone: 1, each waits for the other;
     * 2, neither slows the other. */
    double link_duplex, disk_duplex;
    uint32_t disk_in_flight;          /* ops of a disk lane that share its rate at once */
    double copy_core_s_per_byte;      /* core-seconds for a byte between host and device: 0, DMA */
    double disk_core_s_per_byte;      /* core-seconds for a byte between disk and memory */
    double copy_host_bytes_per_byte;  /* host memory traffic: 1 for DMA, 2 on an emulated device */
    double overhead_s[AQ_LANE_COUNT]; /* launch or latency of every op with work */
    double wake_s;                    /* until a sleeping thread on another core goes on */
};

/* Further seconds of an op whose lane was idle before it: an idle lane's thread sleeps, and so do
 * the workers that compute with it.  The latency of disks contains this time already. */
double aq_hardware_wake(const struct aq_hardware *hw, enum aq_lane lane);

/* How short a K is: 0 at AQ_HW_K and above, 1 at AQ_HW_K_SHORT, linear in 1 / K, because the cost
 * of a sum beside its terms is paid once in K terms. */
double aq_hardware_shortness(uint32_t k);

/* Threads that attend decode rows beside products (struct aq_plan: side_by_side): as many as reach
 * the rate of all, but no more than half. */
uint32_t aq_hardware_aside(const struct aq_hw_side *side);

/* Attention of decode rows, and of prompt rows, so many times as fast with heads of every size. */
void aq_hardware_scale_attention(struct aq_hw_side *side, double decode, double prefill);

/* What limits an op or a lane.  Ops that run at the same time divide the shared ones. */
enum aq_resource {
    AQ_RESOURCE_CORES,
    AQ_RESOURCE_HOST_MEMORY,
    AQ_RESOURCE_DEVICE_MEMORY,
    AQ_RESOURCE_H2D,
    AQ_RESOURCE_D2H,
    AQ_RESOURCE_LINK, /* both directions together */
    AQ_RESOURCE_DISK_READ,
    AQ_RESOURCE_DISK_WRITE,
    AQ_RESOURCE_DISK, /* both directions together */
    AQ_RESOURCE_SHARED_COUNT,
    AQ_RESOURCE_FLOPS = AQ_RESOURCE_SHARED_COUNT, /* of one side's products or attention */
    AQ_RESOURCE_MEMORY,                           /* at the rate one side alone draws on it */
    AQ_RESOURCE_OVERHEAD,
    AQ_RESOURCE_COUNT,
};

const char *aq_resource_name(enum aq_resource r);

/* What an op needs of a machine. */
struct aq_op_need {
    double overhead_s; /* first, without any shared resource */
    double work_s;     /* then, with the machine to itself */
    double
        shared_s[AQ_RESOURCE_SHARED_COUNT]; /* seconds of each whole resource; mostly <= work_s */
    double threads;                         /* threads that compete for cores */
    double aside; /* of attention beside products: so many that products then do without */
    enum aq_resource limit; /* the resource that decides work_s */
};

/* work_s is not finite where the machine has no rate for the op. */
void aq_hardware_need(struct aq_op_need *ret, const struct aq_hardware *hw, const struct aq_op *op,
                      const struct aq_op_cost *cost, enum aq_dtype compute);

/* A machine without an accelerator, each side computing with so many threads: cores with 512-bit
 * bf16 products, two memory channels' worth of bandwidth, an NVMe disk, and for an emulated device
 * a link like PCIe 3.0 x16. */
void aq_hardware_default(struct aq_hardware *ret, uint32_t cores, uint32_t device_threads,
                         uint32_t host_threads);

#endif
